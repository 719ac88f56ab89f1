"""Layers whose values rotate, or that learn spectra, beside what those of transformers gave: recorded values."""

import jax
import numpy as np
import pytest

from helpers.layers import LAYERS
from helpers.tiers import slow
from oracles import recorded

CASES = {case["name"]: case for case in recorded.cases("hf_layers")}
FEW = "DeepSeek-V4, heavily compressed, with an amplitude", "Mistral Large 4"  # others run the same functions


@pytest.mark.parametrize("name", [name if name in FEW else slow(name) for name in CASES])
def test_outputs(name):
    """Within 1e-5 of their standard deviation."""
    case = CASES[name]
    weights = {key: np.float32(weight) for key, weight in case["weights"].items()}
    layer = LAYERS[case["config"]["model_type"]]
    got = jax.jit(lambda w, x: layer(case["config"], w, x, case["layer"]))(weights, np.float32(case["input"]))
    want = np.array(case["output"])
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * want.std())
