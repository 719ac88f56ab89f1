"""`gemma.gm.math.apply_rope`: half layout, whole heads; a linear factor and Gemma 4's proportion of the pairs."""

import jax.numpy as jnp
from gemma import gm

from conformance.adapters import only

NAME, PACKAGES = "gemma", ("gemma", "jax")


def rotary(positions, x, rotary_width, base, layout, scaling=None, axes=None):
    only(layout == "half" and rotary_width == len(x) and not axes, "half layout, whole heads, one coordinate")
    settings = dict(scaling or {"type": "linear"})
    only((kind := settings.pop("type")) in ("linear", "proportional"), f"no {kind}")
    factor, proportion = settings.pop("factor", 1.0), settings.pop("fraction", 1.0)
    rows = jnp.tile(jnp.array(x, jnp.float32), (len(positions), 1))[None, :, None]
    options = {"base_frequency": base, "scale_factor": factor, "rope_proportion": proportion}
    return gm.math.apply_rope(rows, jnp.array(positions)[None], **options)[0, :, 0]
