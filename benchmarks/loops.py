"""A rotation inside a program, as models have it: in a scan, between projections, compiled with its derivative.

Each kind makes of a case and of a peer's rotation, (x, positions) → x, a program on x and on what `arguments` adds.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

TURNS, LAYERS, ROTATIONS = 256, 16, 64  # of a loop, of a stack, and compiled in one program


def turn_of(peer, case):
    """The peer's rotation of (batch, seq, heads, head_dim) by positions (batch, seq), or by 0, 1, 2, … for `None`."""
    if hasattr(peer, "turn"):
        return peer.turn(case)
    if case.shape[1] == 1:
        return peer.decode(case)
    rotary = peer.rotary(case)
    return lambda x, positions: rotary(x)


def arguments(case):
    """Positions of a decode step, (batch, 1), or `None`; and the matrices of each layer, stacked where it scans."""
    batch, length, heads, head_dim = case.shape
    random, width = np.random.default_rng(1), heads * head_dim
    positions = jnp.asarray(random.integers(0, 4000, (batch, 1)), jnp.int32) if length == 1 else None
    if case.kind == "loop":
        return (positions,)
    shape = (LAYERS, 4, width, width) if case.kind == "stack" else (ROTATIONS, 1, width, width)
    weights = jnp.asarray(random.standard_normal(shape, np.float32) / width**0.5, case.dtype)
    layers = [[matrix + 0 for matrix in layer] for layer in weights]
    return positions, list(weights.swapaxes(0, 1)) if case.way == "scanned" else layers


def project(x, matrix):
    return (x.reshape(*x.shape[:2], -1) @ matrix).reshape(x.shape)


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
    """16 layers of x + attention(turn(x Q), turn(x K), x V) O; a decode step attends to its own token."""
    causal = case.shape[1] > 1

    def f(x, positions, weights):
        def layer(x, matrices):
            q, k, v = (project(x, matrix) for matrix in matrices[:3])
            mixed = jax.nn.dot_product_attention(turn(q, positions), turn(k, positions), v, is_causal=causal)
            return x + project(mixed, matrices[3])

        if case.way == "scanned":
            return lax.scan(lambda x, matrices: (layer(x, matrices), None), x, weights)[0]
        for matrices in weights:
            x = layer(x, matrices)
        return x

    return f


def compile(case, turn):
    """64 projections, each rotated, and their derivatives: traced, lowered and compiled anew in each call."""

    def loss(x, positions, weights):
        for (matrix,) in weights:
            x = turn(project(x, matrix), positions)
        return jnp.sum(x)

    def f(*arguments):
        jax.clear_caches()
        return jax.jit(jax.grad(loss, argnums=(0, 2))).lower(*arguments).compile()

    return f
