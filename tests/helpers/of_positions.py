"""Functions of positions and rows that must give the same bits in every program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import posenc_jax as pe
from oracles import cameras

SEQ, DIM = 64, 12
RNG = np.random.default_rng(0)
POSITIONS = RNG.integers(-(2**31), 2**31, SEQ).astype(np.int32)
FLOATS = RNG.uniform(-1e4, 1e4, SEQ).astype(np.float32)
LEARNED = RNG.uniform(0.01, 2, DIM // 2).astype(np.float32)
X = RNG.normal(size=(SEQ, DIM)).astype(np.float32)
SCALED = dataclasses.replace(pe.geometric(DIM), attention_factor=1.3)
NEAR = RNG.integers(-9000, 9000, SEQ).astype(np.int32)
CAMERAS = cameras.poses(RNG, 16).astype(np.float32)
LENSES = cameras.lenses(RNG, 16, image_size=(3, 4)).astype(np.float32)


def heads(f: Callable[[jax.Array], jax.Array], x: Any) -> jax.Array:
    """The last of enough heads for them to share a table of waves."""
    return f(jnp.stack([x] * 8, axis=-2))[..., -1, :]


def turned_back(p: Any, dy: Any) -> jax.Array:
    return jax.vjp(lambda x: pe.rotary(x, p, SCALED, head_axis=None), jnp.zeros_like(dy))[1](dy)[0]


def by_camera(p: Any, x: Any, **settings: Any) -> jax.Array:
    """By one of 16 cameras, as the position says."""
    at = p & 15
    camera, lens = jnp.asarray(CAMERAS)[at], jnp.asarray(LENSES)[at]
    return pe.prope(x, camera, lens, image_size=(3, 4), **settings)


# name → (function of positions (n,) and x (n, DIM) that gives (n, DIM), positions)
CASES = {
    "sinusoidal": (lambda p, x: pe.sinusoidal(p, DIM), POSITIONS),
    "half": (lambda p, x: pe.sinusoidal(p, DIM, layout="half"), POSITIONS),
    "float positions": (lambda p, x: pe.sinusoidal(p, DIM), FLOATS),
    "array frequencies": (lambda p, x: pe.sinusoidal(p, jnp.asarray(LEARNED)), POSITIONS),
    # Not converted to float32 here: a GPU's XLA would leave out the rounding.
    "bfloat16": (lambda p, x: pe.sinusoidal(p, DIM, dtype=jnp.bfloat16), POSITIONS),
    "add": (lambda p, x: pe.add_sinusoidal(x, p, scale=1.7), POSITIONS),
    "add, amplitude": (lambda p, x: pe.add_sinusoidal(x, p, SCALED, scale=0.3), POSITIONS),
    "shift": (lambda p, x: pe.shift(x, p, DIM), POSITIONS),
    "rotary": (lambda p, x: pe.rotary(x, p, SCALED, head_axis=None), POSITIONS),
    "rotary, interleaved": (lambda p, x: pe.rotary(x, p, layout="interleaved", head_axis=None), POSITIONS),
    "rotary, heads": (lambda p, x: heads(lambda h: pe.rotary(h, p, 4, part="last", head_axis=-2), x), POSITIONS),
    "rotary, float positions": (lambda p, x: heads(lambda h: pe.rotary(h, p, 8, head_axis=-2), x), FLOATS),
    "rotary, array frequencies": (
        lambda p, x: heads(lambda h: pe.rotary(h, p, jnp.asarray(LEARNED), head_axis=-2), x),
        POSITIONS,
    ),
    "rotary, derivative": (turned_back, POSITIONS),
    "prope, key": (lambda p, x: by_camera(p, x, role="key", head_axis=None), POSITIONS),
    "prope, heads": (lambda p, x: heads(lambda h: by_camera(p, h, role="query", head_axis=-2, width=8), x), POSITIONS),
    "pope": (lambda p, x: heads(lambda h: pe.pope(h, p, SCALED, head_axis=-2), x[..., : DIM // 2]), POSITIONS),
    "pope, phase": (
        lambda p, x: pe.pope(x[..., ::2], p, layout="interleaved", phase=jnp.asarray(LEARNED), head_axis=None),
        POSITIONS,
    ),
    "xpos, query": (lambda p, x: heads(lambda h: pe.xpos(h, h, p, origin=100, head_axis=-2)[0], x), NEAR),
    "xpos, key": (lambda p, x: pe.xpos(x, x, p, origin=100, head_axis=None)[1], NEAR),
}
