"""`keras_hub.layers.SinePositionEncoding` and `RotaryEmbedding` on Keras's JAX backend, called as their docs do.

Each layer has the dtype of its inputs. In bfloat16 `SinePositionEncoding` computes in it from the positions
on. `waves` are of `RotaryEmbedding`.
"""

import os

os.environ["KERAS_BACKEND"] = "jax"

import jax.numpy as jnp  # noqa: E402
import keras_hub  # noqa: E402
import numpy as np  # noqa: E402

NAME, PACKAGES, FRAMEWORK = "keras_hub.layers", ("keras-hub", "keras"), "jax"
IMPORT = 'import os; os.environ["KERAS_BACKEND"] = "jax"; import keras_hub'
HEAD_AXIS, LAYOUTS = -2, ("half",)


def table(case):
    layer = keras_hub.layers.SinePositionEncoding()
    return lambda positions: layer(jnp.zeros((1, *case.shape)), positions=positions)[0]  # of which it takes the shape


def add(case):
    layer = keras_hub.layers.SinePositionEncoding(dtype=case.dtype)
    return lambda x: x + layer(x)


def rotary(case):
    return keras_hub.layers.RotaryEmbedding(dtype=case.dtype)


def decode(case):
    layer = keras_hub.layers.RotaryEmbedding(dtype=case.dtype)
    return lambda x, positions: layer(x, positions=positions)


def waves(position):
    x = jnp.ones((1, 1, 128)).at[..., 64:].set(0)
    turned = np.asarray(keras_hub.layers.RotaryEmbedding()(x, start_index=position))[0, 0]
    return turned[:64] + 1j * turned[64:]
