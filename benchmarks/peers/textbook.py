"""The textbook formula in plain JAX, in float32 and rounded to the dtype of x: the unit of loops and compilations.

In a scan at one position XLA hoists its cosines and sines out of the loop.
"""

import jax.numpy as jnp
from formulas import halves, phases, rotate_every_two

NAME, PACKAGES, FRAMEWORK = "textbook", ("jax",), "jax"
IMPORT = "import jax.numpy"
HEAD_AXIS, LAYOUTS = -2, ("half", "interleaved")


def turn(case):
    rotate = {"half": halves, "interleaved": rotate_every_two}[case.layout]

    def f(x, positions=None):
        positions = jnp.arange(x.shape[1]) if positions is None else positions
        phase = phases(positions, x.shape[-1])[..., None, :]
        return rotate(x.astype(jnp.float32), jnp.cos(phase), jnp.sin(phase)).astype(x.dtype)

    return f
