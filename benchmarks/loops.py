"""A rotation inside a program, as models have it: in a scan, between projections, compiled with its derivative.

Each kind makes of a case and of a peer's rotation, (x, positions) → x, a program on x and on what `arguments` adds.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

TURNS, LAYERS, ROTATIONS = 256, 16, 64  # of a loop, of a stack, of a compilation


def turn_of(peer, case):
    """The peer's rotation of (batch, seq, heads, head_dim) by positions (batch, seq), or by 0, 1, 2, … for `None`."""
    if hasattr(peer, "turn"):
        return peer.turn(case)
    if case.shape[1] == 1:
        return peer.decode(case)
    rotary = peer.rotary(case)
    return lambda x, positions: rotary(x)


def arguments(case):
    """Positions of a decode step, (batch, 1), or `None`; and the matrix of each layer."""
    batch, length, heads, head_dim = case.shape
    random, width = np.random.default_rng(1), heads * head_dim
    positions = jnp.asarray(random.integers(0, 4000, (batch, 1)), jnp.int32) if length == 1 else None
    if case.kind == "loop":
        return (positions,)
    layers = LAYERS if case.kind == "stack" else ROTATIONS
    weights = jnp.asarray(random.standard_normal((layers, width, width), np.float32) / width**0.5, case.dtype)
    return positions, weights if case.way == "scanned" else list(weights)


def loop(case, turn):
    """256 turns of x in a scan: at the same positions, as layers turn it, or each one further, as decode steps do."""
    moving = case.way == "position moving"

    def f(x, positions):
        def step(carry, _):
            x, positions = carry
            return (turn(x, positions), positions + 1 if moving else positions), None

        return lax.scan(step, (x, positions), length=TURNS)[0][0]

    return f


def stack(case, turn):
    """16 layers that project x and turn it, scanned over or unrolled."""

    def f(x, positions, weights):
        def layer(x, matrix):
            return turn((x.reshape(*x.shape[:2], -1) @ matrix).reshape(x.shape), positions), None

        if case.way == "scanned":
            return lax.scan(layer, x, weights)[0]
        for matrix in weights:
            x, _ = layer(x, matrix)
        return x

    return f


def compile(case, turn):
    """64 such layers, unrolled, and their derivatives: traced, lowered and compiled anew in each call."""
    loss = lambda *arguments: jnp.sum(stack(case, turn)(*arguments))  # noqa: E731

    def f(*arguments):
        jax.clear_caches()
        return jax.jit(jax.grad(loss, argnums=(0, 2))).lower(*arguments).compile()

    return f
