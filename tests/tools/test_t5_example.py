"""`examples/t5.py` by the kernels for NVIDIA GPUs, in interpret mode."""

import importlib
from pathlib import Path

import jax
import numpy as np
import pytest

from helpers.closeness import assert_within
from helpers.flash import interpreted

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.thorough
@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="the kernels need JAX 0.11")
def test_it_trains_by_the_kernels(monkeypatch):
    """The losses differ from XLA's in float32 by no more than bfloat16 rounds, and the table learns the same."""
    interpreted(monkeypatch.setattr)
    monkeypatch.syspath_prepend(EXAMPLES)
    t5, sizes = importlib.import_module("t5"), {"heads": 2, "layers": 1, "batch": 2}
    runs = (0, "xla"), (3, "xla"), (3, "mosaic_gpu")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # for optax
        (start, _), *trained = (t5.train(n, implementation=name, **sizes) for n, name in runs)
    (_, want), (_, got) = trained
    assert_within(got, want, 2.0**-9 * want[0], against="XLA")
    by_xla, by_kernels = (np.asarray(model.bias.embedding[...] - start.bias.embedding[...]) for model, _ in trained)
    assert np.abs(by_xla).max() > 5e-3  # three steps of Adam at 3e-3
    assert_within(by_kernels, by_xla, 1e-3, against="XLA")
