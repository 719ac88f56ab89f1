"""The yardstick: an array of the size of the result filled, or one of the size of the argument copied.

Forward and backward it copies twice in one call, the argument and the cotangent.
"""

import jax.numpy as jnp

NAME, PACKAGES, FRAMEWORK = "copy or fill", ("jax",), "jax"
IMPORT = "import jax.numpy"
HEAD_AXIS, LAYOUTS = -2, ("half", "interleaved")


def table(case):
    return lambda positions: jnp.full(case.shape, positions[0].astype(jnp.float32))  # a constant would be folded


def add(case):
    return lambda x: x + jnp.ones((), x.dtype)


rotary = add


def decode(case):
    return lambda x, positions: x + jnp.ones((), x.dtype)


def turn(case):
    return lambda x, positions: x  # the unit of a stack is the stack that does not rotate


def attention(case):
    return lambda q, k, v: q + jnp.ones((), q.dtype)
