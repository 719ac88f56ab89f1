"""For rotary_embedding_test.py and sine_position_encoding_test.py, on JAX."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras_hub
import numpy as np


def test_rope_far_from_the_start():
    rope = keras_hub.layers.RotaryEmbedding()
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 64))

    def score(position):

        def turn(x, at):
            return rope(x, positions=jnp.array([[at]]))

        return float(jnp.vdot(turn(q, position + 7), turn(k, position)))

    np.testing.assert_allclose(score(1_000_000), score(0), atol=1e-5)


def test_sines_in_bfloat16():
    x = jnp.zeros((1, 4001, 64), jnp.bfloat16)
    got = np.asarray(keras_hub.layers.SinePositionEncoding(dtype="bfloat16")(x)[0, -1], np.float32)
    angle = 4000 * 10_000.0 ** (-np.arange(0, 64, 2) / 64)
    want = np.stack([np.sin(angle), np.cos(angle)], -1).reshape(64)
    np.testing.assert_allclose(got, want, atol=4e-3)
