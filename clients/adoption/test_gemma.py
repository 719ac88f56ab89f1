"""For gemma/gm/math: scores depend on distances alone, however far the positions are."""

import jax
import jax.numpy as jnp
import numpy as np
from gemma.gm.math import _positional_embeddings


def score(position):
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 64))
    turned = [
        _positional_embeddings.apply_rope(x, jnp.array([[at]]), base_frequency=10_000)
        for x, at in ((q, position + 7), (k, position))
    ]
    return float(jnp.vdot(*turned))


def test_rope_far_from_the_start():
    np.testing.assert_allclose(score(1_000_000), score(0), atol=1e-5)
