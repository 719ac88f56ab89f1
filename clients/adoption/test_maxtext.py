"""For tests/unit/embeddings_test.py: scores depend on distances alone, however far the positions are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from maxtext.layers import embeddings

PLAIN = {"min_timescale": 1, "max_timescale": 10_000, "mesh": None, "embedding_dims": 64}
ROPES = {
    "plain": lambda: embeddings.RotaryEmbedding(**PLAIN, fprop_dtype=jnp.float32),
    "llama": lambda: embeddings.LLaMARotaryEmbedding(**PLAIN, fprop_dtype=jnp.float32),
    "yarn": lambda: embeddings.YarnRotaryEmbedding(64, None, fprop_dtype=jnp.float32),
}


@pytest.mark.parametrize("name", ROPES)
def test_rope_far_from_the_start(name):
    rope = ROPES[name]()
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 64))

    def score(position):

        def turn(x, at):
            return rope(x, jnp.array([[at]]))

        return float(jnp.vdot(turn(q, position + 7), turn(k, position)))

    np.testing.assert_allclose(score(1_000_000), score(0), atol=1e-5)
