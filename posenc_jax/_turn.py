r"""Pairs of features turned by the phases of their positions: what `rotary` and `shift` have in common.

With $c = a\cos\omega p$ and $s = a\sin\omega p$ for the pair's frequency and the vector's position,

$$y_1 = x_1 c - x_2 s, \qquad y_2 = x_2 c + x_1 s$$

forward, and with $-s$ backward. Every product is rounded by itself, so that the same position gives the same bits in
every program. The derivative is the same program the other way, for which positions are kept and nothing of x's size.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posenc_jax import _check
from posenc_jax._phase import product
from posenc_jax.frequencies import Frequencies, Layout, dim_of, features


class Settings(NamedTuple):
    """How the pairs lie in the last axis of x, and which way they turn."""

    layout: Layout = "half"
    last: bool = False  # whether the features that turn are the last ones rather than the first
    backward: bool = False


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def turn(settings: Settings, x: jax.Array, positions: jax.Array, frequencies: Frequencies | jax.Array) -> jax.Array:
    """The pairs of x (..., features) turned, in its dtype; positions (..., axes) of its rank broadcast to it."""
    by_reads, by_pairs = (functools.partial(f, settings) for f in (_by_reads, _by_pairs))
    return lax.platform_dependent(x, positions, frequencies, tpu=by_reads, default=by_pairs)


def _forward(settings, x, positions, frequencies):
    # x is kept for the derivatives in the others, which integers and static frequencies do not have. Whether those are
    # asked for is not looked at (`symbolic_zeros`): JAX 0.10 mixes up the two kinds of one traced call.
    others = jnp.issubdtype(positions.dtype, jnp.floating) or not isinstance(frequencies, Frequencies)
    return turn(settings, x, positions, frequencies), (x if others else None, positions, frequencies)


def _backward(settings, residuals, dy):
    x, positions, frequencies = residuals
    dx = turn(settings._replace(backward=not settings.backward), dy, positions, frequencies)
    if x is None:
        return dx, None, None
    # With J a quarter turn, the derivative by the phase is dy·(a J R x) = (a Rᵀ dy)·(J x) = dx·(J x), for each pair.
    inside, dim = _check.inside(x), dim_of(frequencies)
    (x1, x2), (d1, d2) = (_split(_turned(settings, v, dim), settings.layout, inside) for v in (x, dx))
    slope = d1 * x2 - d2 * x1 if settings.backward else d2 * x1 - d1 * x2
    d_positions = d_frequencies = None
    shared = tuple(axis for axis in range(x.ndim - 1) if positions.shape[axis] == 1)
    static = isinstance(frequencies, Frequencies)
    if not static:
        rows = jnp.sum(slope, axis=shared, keepdims=True) * positions.astype(inside)
        d_frequencies = jnp.sum(rows, axis=tuple(range(x.ndim - 1))).astype(frequencies.dtype)
    if jnp.issubdtype(positions.dtype, jnp.floating):
        angular = jnp.asarray(frequencies.angular if static else frequencies).astype(inside)
        rows = jnp.sum(slope * _check.align(angular, x.ndim), axis=shared, keepdims=True)
        axes = np.array(frequencies.axes if static else [0] * (dim // 2))
        masks = (_check.align((axes == axis).astype(inside), x.ndim) for axis in range(positions.shape[-1]))
        d_positions = jnp.stack([jnp.sum(rows * mask, axis=-1) for mask in masks], -1).astype(positions.dtype)
    return dx, d_positions, d_frequencies


turn.defvjp(_forward, _backward)


def _turned(settings, x, dim):
    """The features that turn."""
    return x[..., x.shape[-1] - dim :] if settings.last else x[..., :dim]


def _split(x, layout, dtype):
    """The first and the second feature of each pair."""
    axis = x.ndim - 1 if layout == "half" else x.ndim
    pairs = x.reshape(*x.shape[:-1], *((2, -1) if layout == "half" else (-1, 2)))
    return tuple(lax.index_in_dim(pairs, i, axis, keepdims=False).astype(dtype) for i in range(2))


def _shared(x, positions):
    """How many vectors of x each position serves, at least."""
    return math.prod(n for n, m in zip(x.shape[:-1], positions.shape, strict=False) if m == 1 and isinstance(n, int))


def _by_pairs(settings, x, positions, frequencies):
    """For CPU and GPU: both features of a pair at once, and a table of waves where enough heads share it."""
    dim = dim_of(frequencies)
    waves = features(positions, frequencies, "half")  # sines, then cosines
    if _shared(x, positions) >= 8:
        waves = lax.optimization_barrier(waves)
    if x.shape[-1] % dim == 0:
        return _turn_groups(settings, x, waves, dim)
    y = _turn_groups(settings, _turned(settings, x, dim), waves, dim)
    rest = x.shape[-1] - dim
    return jnp.concatenate([x[..., :rest], y] if settings.last else [y, x[..., dim:]], axis=-1)


def _turn_groups(settings, x, waves, dim):
    """Of the groups of `dim` features of x, one turns."""
    layout, last, backward = settings
    groups, inside = x.shape[-1] // dim, _check.inside(x)
    first, second = _split(x.reshape(*x.shape[:-1], groups, dim), layout, inside)
    spread = lambda w: jnp.broadcast_to(w.astype(inside)[..., None, :], first.shape)  # noqa: E731
    sine, cosine = spread(waves[..., : dim // 2]), spread(waves[..., dim // 2 :])
    add, subtract = (lax.sub, lax.add) if backward else (lax.add, lax.sub)
    y = [
        subtract(product(first, cosine), product(second, sine)),
        add(product(second, cosine), product(first, sine)),
    ]
    if groups > 1:
        here = _check.align(np.arange(groups)[:, None] == (groups - 1 if last else 0), first.ndim)
        y = [jnp.where(here, new, old) for new, old in zip(y, (first, second), strict=True)]
    return jnp.stack(y, -2 if layout == "half" else -1).reshape(x.shape).astype(x.dtype)


def _by_reads(settings, x, positions, frequencies):
    """For TPU, where a reshape to pairs copies x: the partner of each feature by two padded reads and a select."""
    layout, last, backward = settings
    dim, inside = dim_of(frequencies), _check.inside(x)
    before, after = (x.shape[-1] - dim, 0) if last else (0, x.shape[-1] - dim)
    index = np.arange(dim)
    is_second, distance = (index % 2, 1) if layout == "interleaved" else (index // (dim // 2), dim // 2)
    table = before or after or _shared(x, positions) >= 8
    if not table:  # the waves where they are used, for each element: broadcasting them would keep a table all the same
        positions = jnp.broadcast_to(positions, (*x.shape[:-1], positions.shape[-1]))
    cosine = features(positions, frequencies, layout, np.ones(dim, int))
    sine = features(positions, frequencies, layout, 2 * (is_second == backward))  # 0 is the sine, 2 the negated sine
    if table:
        cosine, sine = lax.optimization_barrier((cosine, sine))
    untouched = [(0, 0, 0)] * (x.ndim - 1)
    pad = lambda v, low, high: lax.pad(v, np.zeros((), v.dtype), [*untouched, (low, high, 0)])  # noqa: E731
    row = lambda v: _check.align(np.pad(v, (before, after)), x.ndim) == 1  # noqa: E731
    partner = jnp.where(row(is_second), pad(x, distance, -distance), pad(x, -distance, distance))
    cosine, sine = (jnp.broadcast_to(pad(v, before, after).astype(inside), x.shape) for v in (cosine, sine))
    # No `product` here: a TPU multiplies and adds in instructions of their own, there is nothing to contract to.
    y = (x.astype(inside) * cosine + partner.astype(inside) * sine).astype(x.dtype)
    return jnp.where(row(np.ones(dim, int)), y, x) if before or after else y
