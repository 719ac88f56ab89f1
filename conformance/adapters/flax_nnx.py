"""`flax.nnx.RoPE`, called with positions: half layout, whole heads, no scaling."""

import jax.numpy as jnp
from flax import nnx

from conformance.adapters import only

NAME, PACKAGES = "flax.nnx", ("flax", "jax")


def rotary(positions, x, rotary_width, base, layout, scaling=None, axes=None):
    only(hasattr(nnx, "RoPE"), "this Flax has no nnx.RoPE (0.12.9 has)")
    only(layout == "half" and rotary_width == len(x) and not scaling and not axes, "theta is its one setting")
    rows = jnp.tile(jnp.array(x, jnp.float32), (len(positions), 1))
    return nnx.RoPE(theta=base)(rows, jnp.array(positions))
