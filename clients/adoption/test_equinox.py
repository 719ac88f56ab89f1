"""For tests/test_nn.py: each layer turns by its own base, and the last position is as right as the first."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np


def test_rope_of_two_bases():
    x = jnp.ones((8, 4))
    slow, fast = (eqx.nn.RotaryPositionalEmbedding(4, theta)(x) for theta in (10_000.0, 100.0))
    assert not jnp.allclose(slow, fast)


def test_rope_far_from_the_start():
    x, length = np.ones((100_000, 64), np.float32), 100_000
    got = eqx.nn.RotaryPositionalEmbedding(64, 10_000.0)(jnp.asarray(x))[-1]
    angle = (length - 1) * 10_000.0 ** (-np.arange(0, 64, 2) / 64)
    want = np.concatenate([np.cos(angle) - np.sin(angle), np.cos(angle) + np.sin(angle)])
    np.testing.assert_allclose(got, want, atol=1e-6)
