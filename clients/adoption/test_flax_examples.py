"""For examples/gemma/positional_embeddings_test.py: scores depend on distances alone, and jit takes what is added."""

import jax
import jax.numpy as jnp
import numpy as np
from examples.gemma import positional_embeddings


def score(position):
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 64))
    turned = [
        positional_embeddings.apply_rope(x, jnp.array([[at]]), head_dim=64)
        for x, at in ((q, position + 7), (k, position))
    ]
    return float(jnp.vdot(*turned))


def test_rope_far_from_the_start():
    np.testing.assert_allclose(score(1_000_000), score(0), atol=1e-5)


def test_adds_positional_embeddings_under_jit():
    add = jax.jit(positional_embeddings.add_positional_embedding)
    np.testing.assert_allclose(add(jnp.zeros((1, 3)), 2), [[np.sin(2), np.cos(2), 0]], atol=1e-6)
