"""Where models add their biases: each row of docs/attention_models.md beside modules of transformers and timm, of other numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import placed_biases
import pytest
import torch
from transformers.models.falcon.modeling_falcon import build_alibi_tensor

from helpers.closeness import assert_within
from helpers.placed_biases import attended, names_of, rounded


@pytest.fixture(autouse=True)
def as_a_user_runs_them():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.parametrize("seed", [1, 2])
def test_rows(seed, differences):
    for row, case in placed_biases.cases(seed):
        options = rounded(case) if row == "Falcon" and case["length"] > 256 else {}
        got = attended(row, case, **options)
        differences(row, {"output": float(np.abs(got - case["output"]).max())})
        assert_within(got, case["output"], 1e-5, against=row)


@pytest.mark.parametrize("heads", [1, 8, 12, 32, 71])
def test_falcon_rounds_as_its_code_does(heads):
    theirs = build_alibi_tensor(torch.ones(1, 2048, dtype=torch.long), heads, torch.float32)
    falcon_alibi = names_of("Falcon", {})["falcon_alibi"]
    np.testing.assert_array_equal(falcon_alibi(jnp.arange(2048), heads), theirs.numpy())
