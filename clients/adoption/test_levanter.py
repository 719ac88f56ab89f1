"""For tests/test_rotary.py: scores depend on distances alone, however far the positions are."""

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from levanter.layers import rotary

CONFIGS = {
    "default": rotary.DefaultRotaryEmbeddingsConfig(),
    "llama3": rotary.Llama3RotaryEmbeddingsConfig(),
    "yarn": rotary.YarnRotaryEmbeddingsConfig(factor=4.0, original_max_position_embeddings=2048),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_rope_far_from_the_start(name):
    axes = hax.Axis("position", 1), hax.Axis("heads", 1), hax.Axis("head_size", 64)
    rope = CONFIGS[name].build(axes[-1])
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 64))

    def score(position):

        def turn(x, at):
            return rope(hax.named(x, axes), hax.named(jnp.array([at]), axes[0])).rearrange(axes).array

        return float(jnp.vdot(turn(q, position + 7), turn(k, position)))

    np.testing.assert_allclose(score(1_000_000), score(0), atol=1e-5)
