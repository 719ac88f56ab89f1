"""`gemma.gm.math.apply_rope`, as the attention of the library's Gemma models calls it."""

import jax.numpy as jnp
import numpy as np
from gemma import gm

NAME, PACKAGES, FRAMEWORK = "gemma", ("gemma",), "jax"
IMPORT = "from gemma import gm; gm.math.apply_rope"  # `gm` imports what it is asked for
HEAD_AXIS, LAYOUTS = -2, ("half",)


def rotary(case):
    # One row of positions for all of the batch: its models pass one for each, of which the sines are found again.
    return lambda x: gm.math.apply_rope(x, jnp.arange(case.shape[1])[None], base_frequency=10_000)


def decode(case):
    return lambda x, positions: gm.math.apply_rope(x, positions, base_frequency=10_000)


def waves(position):
    x = jnp.ones((1, 1, 1, 128)).at[..., 64:].set(0)
    turned = np.asarray(gm.math.apply_rope(x, jnp.array([[position]]), base_frequency=10_000))[0, 0, 0]
    return turned[:64] + 1j * turned[64:]
