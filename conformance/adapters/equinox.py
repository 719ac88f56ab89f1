"""`equinox.nn.RotaryPositionalEmbedding`: half layout, whole heads, no scaling.

It takes no positions: a position is reached by a sequence of that length, here of up to 2¹⁷.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from conformance.adapters import only

NAME, PACKAGES = "equinox.nn", ("equinox", "jax")


def rotary(positions, x, rotary_width, base, layout, scaling=None, axes=None):
    only(layout == "half" and rotary_width == len(x) and not scaling and not axes, "theta is its one setting")
    only(min(positions) >= 0 and max(positions) < 2**17, "positions count from 0")
    rows = jnp.tile(jnp.array(x, jnp.float32), (max(positions) + 1, 1))
    return eqx.nn.RotaryPositionalEmbedding(rotary_width, theta=base)(rows)[np.array(positions)]
