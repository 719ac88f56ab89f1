"""For tests/models: scores depend on distances alone, however far the positions are."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

SETTINGS = {
    "llama3": {"head_dim": 64},
    "qwen3": {"head_dim": 64},
    "gemma": {"head_dim": 64},
    "gemma3": {"head_dim": 64, "base_frequency": 10_000},
    "gemma4": {"base_frequency": 10_000},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_rope_far_from_the_start(name):
    model = importlib.import_module(f"tunix.models.{name}.model")
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 64))

    def score(position):

        def turn(x, at):
            return model.apply_rope(x, jnp.array([[at]]), **SETTINGS[name])

        return float(jnp.vdot(turn(q, position + 7), turn(k, position)))

    np.testing.assert_allclose(score(1_000_000), score(0), atol=1e-5)
