r"""Pairs of features turned by the phases of their positions: what `rotary` and `shift` have in common.

With $c = a\cos\omega p$ and $s = a\sin\omega p$ for the pair's frequency and the vector's position,

$$y_1 = x_1 c - x_2 s, \qquad y_2 = x_2 c + x_1 s$$

forward, and with $-s$ backward. Every product is rounded by itself, so that the same position gives the same bits in
every program. The derivative is the same program the other way, for which positions are kept and nothing of x's size.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posenc_jax import _check, _mesh
from posenc_jax._phase import kept, rounded_product
from posenc_jax.frequencies import Frequencies, Layout, dim_of, features, has_derivatives, is_shared, pairs


class Settings(NamedTuple):
    """How the pairs lie in the last axis of x, and which way they turn."""

    layout: Layout
    last: bool = False  # whether the features that turn are the last ones rather than the first
    backward: bool = False
    result: np.dtype | None = None  # the dtype of the result; None: that of x


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def turn(settings: Settings, x: jax.Array, positions: jax.Array, frequencies: Frequencies | jax.Array) -> jax.Array:
    """The pairs of x (..., features) turned; positions (..., axes) of its rank broadcast to it."""
    shared, barrier = is_shared(x, positions), lax.optimization_barrier
    cpu = functools.partial(_form_on_cpu(settings, x, dim_of(frequencies), shared), settings)
    # Where a table does not pay, a GPU's compiler would keep one of phases for a form by pieces.
    gpu = (
        functools.partial(_by_pieces, settings, keep=barrier)
        if shared
        else functools.partial(_by_reads, settings, partner_of=_padded, multiply=rounded_product, keep=barrier)
    )
    # A TPU multiplies and adds in instructions of their own: there is nothing to contract to.
    tpu = functools.partial(_by_reads, settings, partner_of=_padded, multiply=lax.mul, keep=barrier)
    return lax.platform_dependent(x, positions, frequencies, tpu=tpu, cuda=gpu, rocm=gpu, default=cpu)


def _forward(settings, x, positions, frequencies):
    # x is kept for the derivatives in the others. Whether those are asked for is not looked at (`symbolic_zeros`): JAX
    # 0.10 mixes up the two kinds of one traced call.
    others = has_derivatives(positions, frequencies)
    y = turn(settings, x, positions, frequencies)
    return y, (_Type(jax.typeof(x)), x if others else None, positions, frequencies)


@functools.partial(jax.jit, static_argnums=0, inline=True)  # else op by op in an eager `jax.grad`
def _backward(settings, residuals, dy):
    x_type, x, positions, frequencies = residuals
    back = settings._replace(backward=not settings.backward, result=x_type.value.dtype)
    if x is None:
        return _mesh.cotangent_of(x_type.value, turn(back, dy, positions, frequencies)), None, None
    # With J a quarter turn, the derivative by the phase is dy·(a J R x) = (a Rᵀ dy)·(J x) = dx·(J x), for each pair.
    inside, dim = _check.inside(x), dim_of(frequencies)
    dx: jax.Array = turn(back._replace(result=np.dtype(inside)), dy, positions, frequencies)
    products = dx * _padded(settings, x, dim).astype(inside)

    def slopes(products, axes):  # summed before they are split into pairs, which is cheap in a small array alone
        summed = jnp.sum(products, axis=axes, keepdims=True)
        first, second = _split(_turned(settings, summed, dim), settings.layout, inside)
        return first - second if settings.backward else second - first

    d_positions = d_frequencies = None
    static = isinstance(frequencies, Frequencies)
    if not static:
        # Over all at once: over several devices one row is communicated, and not one for each position.
        rows = slopes(products * positions.astype(inside), tuple(range(x.ndim - 1))).reshape(-1)
        d_frequencies = _mesh.cotangent_of(jax.typeof(frequencies), rows.astype(frequencies.dtype))
    if jnp.issubdtype(positions.dtype, jnp.floating):
        angular = jnp.asarray(frequencies.angular if static else frequencies).astype(inside)
        shared = tuple(axis for axis in range(x.ndim - 1) if positions.shape[axis] == 1)
        rows = slopes(products, shared) * _check.align(angular, x.ndim)
        axes = np.array(frequencies.axes if static else [0] * (dim // 2))
        masks = (_check.align((axes == axis).astype(inside), x.ndim) for axis in range(positions.shape[-1]))
        rows = jnp.stack([jnp.sum(rows * mask, axis=-1) for mask in masks], -1).astype(positions.dtype)
        d_positions = _mesh.cotangent_of(jax.typeof(positions), rows)
    return _mesh.cotangent_of(x_type.value, dx.astype(x.dtype)), d_positions, d_frequencies


turn.defvjp(_forward, _backward)


@jax.tree_util.register_static
class _Type(NamedTuple):
    """The type of an array, as a residual."""

    value: Any


def _turned(settings, x, dim):
    """The features that turn."""
    return x[..., x.shape[-1] - dim :] if settings.last else x[..., :dim]


def _margin(settings, x, dim):
    """How many features stand before and after those that turn."""
    rest = x.shape[-1] - dim
    return (rest, 0) if settings.last else (0, rest)


def _split(x, layout, dtype):
    """The first and the second feature of each pair."""
    axis, shape = (x.ndim - 1, (2, x.shape[-1] // 2)) if layout == "half" else (x.ndim, (x.shape[-1] // 2, 2))
    pairs = x.reshape(*x.shape[:-1], *shape)
    return tuple(lax.index_in_dim(pairs, i, axis, keepdims=False).astype(dtype) for i in range(2))


def _waves(positions, frequencies):
    """The sines and the cosines, each (..., num_pairs)."""
    return tuple(pairs(positions, frequencies, quarter) for quarter in np.arange(2, dtype=np.int32))


def _table(keep, positions, frequencies):
    """The same as one array, which `keep` makes the compiler keep."""
    return jnp.split(keep(features(positions, frequencies, "half")), 2, axis=-1)


def _form_on_cpu(settings, x, dim, shared):
    """One pass over x; narrow floats cost more to convert twice than to read again, unless the pieces are many."""
    if _piece(settings, x, dim, most=8) and not (shared and x.dtype == _check.inside(x)):
        return functools.partial(_by_pieces, keep=kept)
    # JAX before 0.12 drops the barrier; next to axes of one the compiler would give the halves another order.
    halves = settings.layout == "half" and x.shape[-1] == dim and not _inner_ones(x)
    if halves and jax.__version_info__ >= (0, 12):
        return _by_halves
    partner_of = _reversed if settings.layout == "interleaved" and x.shape[-1] % 2 == 0 else _padded
    return functools.partial(_by_reads, partner_of=partner_of, multiply=rounded_product, keep=kept)


def _piece(settings, x, dim, most):
    """How wide the slices of x are that hold either feature of their pairs, or 0 if they are more than so many."""
    if settings.layout == "interleaved":
        return 0 if x.shape[-1] % 2 else 2
    size = math.gcd(dim // 2, x.shape[-1])
    return size if x.shape[-1] <= most * size else 0


def _by_pieces(settings, x, positions, frequencies, *, keep):
    """For CPU and GPU: slices of x with both features of a pair in the same place, turned and stacked again."""
    layout, _, backward, result = settings
    if ones := _inner_ones(x):
        within = settings._replace(result=np.dtype(_check.inside(x)))
        y = _by_pieces(within, lax.squeeze(x, ones), lax.squeeze(positions, ones), frequencies, keep=keep)
        y = lax.expand_dims(y, ones)
        # Alone, a CPU's compiler gives an array with axes of one another order, and copies it number by number. To meet
        # x keeps it in order: where x is NaN, so is y.
        old = x.astype(y.dtype)
        return jnp.where(jnp.isnan(old), old, y).astype(result or x.dtype)
    dim, inside, (before, after) = dim_of(frequencies), _check.inside(x), _margin(settings, x, dim_of(frequencies))
    if not (size := _piece(settings, x, dim, most=16)):  # a GPU's compiler joins what is concatenated in the same pass
        y = _by_pieces(settings, _turned(settings, x, dim), positions, frequencies, keep=keep)
        x = x.astype(y.dtype)
        return jnp.concatenate([x[..., :before], y, x[..., x.shape[-1] - after :]], axis=-1)
    waves = _table(keep, positions, frequencies) if is_shared(x, positions) else _waves(positions, frequencies)
    if layout == "interleaved":
        old = _split(x, layout, inside)
        margin = [(0, 0, 0)] * (x.ndim - 1) + [(before // 2, after // 2, 0)]
        y = _rotate(old, [lax.pad(w, np.float32(0), margin) for w in waves], backward)
        if before or after:
            here = _check.align(np.pad(np.ones(dim // 2, bool), margin[-1][:2]), x.ndim)
            y = [jnp.where(here, *both) for both in zip(y, old, strict=True)]
        return jnp.stack(y, -1).reshape(x.shape).astype(result or x.dtype)
    pieces = x.reshape(*x.shape[:-1], x.shape[-1] // size, size)
    y = [lax.index_in_dim(pieces, i, x.ndim - 1, keepdims=False).astype(inside) for i in range(x.shape[-1] // size)]
    for i in range(dim // 2 // size):
        first, second = before // size + i, before // size + i + dim // 2 // size
        here = slice(i * size, (i + 1) * size)
        y[first], y[second] = _rotate((y[first], y[second]), [w[..., here] for w in waves], backward)
    return jnp.stack(y, -2).reshape(x.shape).astype(result or x.dtype)


def _inner_ones(x):
    """The axes of one between others, that no mesh axis shards."""
    spec = (*jax.typeof(x).sharding.spec, *(None,) * x.ndim)
    one = [isinstance(n, int) and n == 1 and s is None for n, s in zip(x.shape[:-1], spec, strict=False)]
    return [axis for axis in range(x.ndim - 1) if one[axis] and not all(one[:axis])]


def _rotate(features, waves, backward):
    """The two features of pairs, turned by their sines and cosines."""
    first, second = features
    sine, cosine = (w.astype(first.dtype) for w in waves)
    add, subtract = (lax.sub, lax.add) if backward else (lax.add, lax.sub)
    y1 = subtract(rounded_product(first, cosine), rounded_product(second, sine))
    return y1, add(rounded_product(second, cosine), rounded_product(first, sine))


def _padded(settings, x, dim):
    """The other feature of each pair, by two padded reads and a select."""
    half, index = settings.layout == "half", np.arange(dim)
    is_second, distance = (index // (dim // 2), dim // 2) if half else (index % 2, 1)
    read = lambda by: lax.pad(x, np.zeros((), x.dtype), [(0, 0, 0)] * (x.ndim - 1) + [(by, -by, 0)])  # noqa: E731
    second = _check.align(np.pad(is_second == 1, _margin(settings, x, dim)), x.ndim)
    return jnp.where(second, read(distance), read(-distance))


def _reversed(settings, x, dim):
    """The same where pairs are interleaved in all of x."""
    return lax.rev(x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2), (x.ndim,)).reshape(x.shape)


def _by_halves(settings, x, positions, frequencies):
    """x·C + x′·S in one pass for halves that are all of x, of its precision, where waves are shared.

    A loop over the two halves, which the barrier keeps from being one with that over features.
    """
    axis, shape = x.ndim - 1, (*x.shape[:-1], 2, x.shape[-1] // 2)
    sine, cosine = (lax.expand_dims(w.astype(x.dtype), [axis]) for w in _table(kept, positions, frequencies))
    # A product and no select, for which the compiler makes two loops.
    sign = _check.align(np.array([[1], [-1]] if settings.backward else [[-1], [1]], x.dtype), len(shape))
    pairs = x.reshape(shape)
    y = rounded_product(pairs, cosine) + rounded_product(lax.rev(pairs, [axis]), sine * sign)
    return lax.optimization_barrier(y).reshape(x.shape).astype(settings.result or x.dtype)


def _by_reads(settings, x, positions, frequencies, *, partner_of, multiply, keep):
    """x·C + x′·S with the partners x′, in one pass. On a TPU slices of pairs would copy x, on a CPU read it twice."""
    layout, _, backward, result = settings
    dim, inside = dim_of(frequencies), _check.inside(x)
    margin, index = _margin(settings, x, dim), np.arange(dim)
    table = is_shared(x, positions)

    def waves(positions, frequencies):
        return [features(positions, frequencies, layout, np.full(dim, quarter), margin) for quarter in (1, 0)]

    def of_each(positions, frequencies):
        return waves(jnp.broadcast_to(positions, (*x.shape[:-1], positions.shape[-1])), frequencies)

    is_second = index % 2 if layout == "interleaved" else index // (dim // 2)
    if table:
        cosine, sine = waves(positions, frequencies)
    else:  # where they are used, for each element: broadcasting them would keep a table all the same
        cosine, sine = _mesh.sharded_as([x, positions], of_each, positions, frequencies)
    # Negated by a product, so that a zero has the sign that it has in the other forms.
    sine *= _check.align(np.pad(np.where(is_second == backward, -1, 1).astype(sine.dtype), margin), x.ndim)
    if table:
        cosine, sine = keep(cosine), keep(sine)
    cosine, sine = (w.astype(inside) for w in (cosine, sine))
    y = multiply(x.astype(inside), cosine) + multiply(partner_of(settings, x, dim).astype(inside), sine)
    turned = _check.align(np.pad(np.ones(dim, bool), margin), x.ndim)
    y = y.astype(result or x.dtype)
    return jnp.where(turned, y, x.astype(y.dtype)) if any(margin) else y
