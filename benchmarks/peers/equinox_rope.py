"""`equinox.nn.RotaryPositionalEmbedding`, mapped over the heads as its documentation does.

Its tables are made when the function is compiled. It takes no positions, so it decodes nothing, and reaches a position
by a sequence of that length.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

NAME, PACKAGES, FRAMEWORK = "equinox.nn", ("equinox",), "jax"
IMPORT = "import equinox"
HEAD_AXIS, LAYOUTS = -2, ("half",)


def rotary(case):
    rope = eqx.nn.RotaryPositionalEmbedding(case.shape[-1])
    return jax.vmap(jax.vmap(rope, in_axes=1, out_axes=1))  # over the batch, as its modules are; over the heads


def waves(position):
    if position >= 2**20:
        return None
    x = jnp.ones((position + 1, 128)).at[:, 64:].set(0)
    turned = np.asarray(eqx.nn.RotaryPositionalEmbedding(128)(x)[-1])
    return turned[:64] + 1j * turned[64:]
