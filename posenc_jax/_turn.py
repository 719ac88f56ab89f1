r"""Rotates feature pairs by the phases of their positions, for `rotary`, `xpos` and `shift`.

With $c = a\cos\omega p$ and $s = a\sin\omega p$ for the frequency of a pair and the position of a vector, the forward
rotation is

$$y_1 = x_1 c - x_2 s, \qquad y_2 = x_2 c + x_1 s$$

and the backward rotation uses $-s$. `_rotate` is this formula; `_by_halves` and `_by_reads` compute the same as
x·C + x′·S. Every product is rounded before it is summed (as always on a TPU), so a position gives the same bits in
every program. The derivative is the same program in the other direction. It stores positions, and nothing of x's size
unless positions are floats or frequencies are an array.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posenc_jax import _mesh
from posenc_jax._arrays import align, compute_dtype
from posenc_jax._frequencies import Frequencies, Layout, Spectrum, dim_of
from posenc_jax._waves import features, has_derivatives, is_shared, pair_waves
from posenc_jax._xla import materialized, rounded_product

Keep = Callable[[jax.Array], jax.Array]


class TurnSettings(NamedTuple):
    """Which features of x form pairs, and in which direction they rotate."""

    layout: Layout
    last: bool = False  # whether the last features rotate instead of the first
    backward: bool = False
    result: np.dtype | None = None  # the dtype of the result; None for the dtype of x


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def turn(settings: TurnSettings, x: jax.Array, positions: jax.Array, frequencies: Spectrum) -> jax.Array:
    """Rotates the pairs of x (..., features) by positions (..., axes), which have x's rank and broadcast to it."""
    shared, barrier = is_shared(x, positions), lax.optimization_barrier
    cpu = functools.partial(_form_on_cpu(settings, x, dim_of(frequencies), shared), settings)
    # Without sharing, splitting would make the GPU compiler store a table of phases.
    gpu = (
        functools.partial(_by_pieces, settings, keep=barrier)
        if shared
        else functools.partial(_by_reads, settings, partner_of=_padded, multiply=rounded_product, keep=barrier)
    )
    # A TPU has no FMA to contract to, so a plain product will do.
    tpu = functools.partial(_by_reads, settings, partner_of=_padded, multiply=lax.mul, keep=barrier)
    return lax.platform_dependent(x, positions, frequencies, tpu=tpu, cuda=gpu, rocm=gpu, default=cpu)


def _forward(
    settings: TurnSettings, x: jax.Array, positions: jax.Array, frequencies: Spectrum
) -> tuple[jax.Array, tuple[Any, ...]]:
    # Stores x whenever waves can have a derivative. `symbolic_zeros` would tell whether x is needed, but with it
    # JAX 0.10 confuses the two variants of a traced call.
    y: Any = turn(settings, x, positions, frequencies)
    return y, (_Type(jax.typeof(x)), x if has_derivatives(positions, frequencies) else None, positions, frequencies)


@functools.partial(jax.jit, static_argnums=0, inline=True)  # an eager `jax.grad` would run it op by op
def _backward(settings: TurnSettings, residuals: tuple[Any, ...], dy: jax.Array) -> tuple[Any, Any, Any]:
    x_type, x, positions, frequencies = residuals
    back = settings._replace(backward=not settings.backward, result=x_type.value.dtype)
    if x is None:
        return _mesh.cotangent_of(x_type.value, turn(back, dy, positions, frequencies)), None, None
    # With J a quarter turn, the gradient for the phase of a pair is dy·(a J R x) = (a Rᵀ dy)·(J x) = dx·(J x).
    dtype, dim = compute_dtype(x), dim_of(frequencies)
    dx: jax.Array = turn(back._replace(result=np.dtype(dtype)), dy, positions, frequencies)
    products = dx * _padded(settings, x, dim).astype(dtype)

    def slopes(products: jax.Array, axes: tuple[int, ...]) -> jax.Array:
        # Sums before splitting into pairs, because only a small array is cheap to split.
        summed = jnp.sum(products, axis=axes, keepdims=True)
        first, second = _split(_rotary_part(settings, summed, dim), settings.layout, dtype)
        return first - second if settings.backward else second - first

    d_positions = d_frequencies = None
    static = isinstance(frequencies, Frequencies)
    if not static:
        # Sums over all axes at once, so that devices exchange one row instead of one row per position.
        rows = slopes(products * positions.astype(dtype), tuple(range(x.ndim - 1))).reshape(-1)
        d_frequencies = _mesh.cotangent_of(jax.typeof(frequencies), rows.astype(frequencies.dtype))
    if jnp.issubdtype(positions.dtype, jnp.floating):
        angular = jnp.asarray(frequencies.angular if static else frequencies).astype(dtype)
        shared = tuple(axis for axis in range(x.ndim - 1) if positions.shape[axis] == 1)
        rows = slopes(products, shared) * align(angular, x.ndim)
        axes = np.array(frequencies.axes if static else [0] * (dim // 2))
        masks = (align((axes == axis).astype(dtype), x.ndim) for axis in range(positions.shape[-1]))
        rows = jnp.stack([jnp.sum(rows * mask, axis=-1) for mask in masks], -1).astype(positions.dtype)
        d_positions = _mesh.cotangent_of(jax.typeof(positions), rows)
    return _mesh.cotangent_of(x_type.value, dx.astype(x.dtype)), d_positions, d_frequencies


turn.defvjp(_forward, _backward)


@jax.tree_util.register_static
class _Type(NamedTuple):
    """The type of an array, wrapped to serve as a residual."""

    value: Any


def _rotary_part(settings: TurnSettings, x: jax.Array, dim: int) -> jax.Array:
    """The features of x that rotate."""
    return x[..., x.shape[-1] - dim :] if settings.last else x[..., :dim]


def _margin(settings: TurnSettings, x: jax.Array, dim: int) -> tuple[int, int]:
    """The number of features before and after those that rotate."""
    rest = x.shape[-1] - dim
    return (rest, 0) if settings.last else (0, rest)


def _split(x: jax.Array, layout: Layout, dtype: Any) -> tuple[jax.Array, ...]:
    """The first and the second feature of each pair."""
    axis, shape = (x.ndim - 1, (2, x.shape[-1] // 2)) if layout == "half" else (x.ndim, (x.shape[-1] // 2, 2))
    split = x.reshape(*x.shape[:-1], *shape)
    return tuple(lax.index_in_dim(split, i, axis, keepdims=False).astype(dtype) for i in range(2))


def _waves(positions: jax.Array, frequencies: Spectrum) -> list[jax.Array]:
    """The sines and the cosines, each (..., num_pairs)."""
    return [pair_waves(positions, frequencies, quarter) for quarter in np.arange(2, dtype=np.int32)]


def _table(keep: Keep, positions: jax.Array, frequencies: Spectrum) -> list[jax.Array]:
    """`_waves` as one array, which `keep` makes the compiler store."""
    return jnp.split(keep(features(positions, frequencies, "half")), 2, axis=-1)


def _form_on_cpu(settings: TurnSettings, x: jax.Array, dim: int, shared: bool) -> Callable[..., jax.Array]:
    """Chooses a form with one pass over x. For few pieces, reading 16-bit floats twice beats converting them twice."""
    if _piece(settings, x, dim, most=8) and not (shared and x.dtype == compute_dtype(x)):
        return functools.partial(_by_pieces, keep=materialized)
    # JAX before 0.12 drops the barrier. With inner axes of size 1, XLA would transpose the halves.
    halves = settings.layout == "half" and x.shape[-1] == dim and not _inner_ones(x)
    if halves and jax.__version_info__ >= (0, 12):
        return _by_halves
    partner_of = _reversed if settings.layout == "interleaved" and x.shape[-1] % 2 == 0 else _padded
    return functools.partial(_by_reads, partner_of=partner_of, multiply=rounded_product, keep=materialized)


def _piece(settings: TurnSettings, x: jax.Array, dim: int, most: int) -> int:
    """Width of the slices that separate the members of pairs; 0 if that takes more than `most` slices."""
    if settings.layout == "interleaved":
        return 0 if x.shape[-1] % 2 else 2
    size = math.gcd(dim // 2, x.shape[-1])
    return size if x.shape[-1] <= most * size else 0


def _by_pieces(
    settings: TurnSettings, x: jax.Array, positions: jax.Array, frequencies: Spectrum, *, keep: Keep
) -> jax.Array:
    """For CPU and GPU: slices x so that the members of pairs align, rotates the slices and stacks them."""
    layout, _, backward, result = settings
    if ones := _inner_ones(x):
        within = settings._replace(result=np.dtype(compute_dtype(x)))
        y = _by_pieces(within, lax.squeeze(x, ones), lax.squeeze(positions, ones), frequencies, keep=keep)
        y = lax.expand_dims(y, ones)
        # XLA:CPU transposes size-1 axes and then copies element by element; this select keeps x's layout. It changes no
        # value, because y is NaN wherever x is.
        old = x.astype(y.dtype)
        return jnp.where(jnp.isnan(old), old, y).astype(result or x.dtype)
    dim, dtype, (before, after) = dim_of(frequencies), compute_dtype(x), _margin(settings, x, dim_of(frequencies))
    if not (size := _piece(settings, x, dim, most=16)):  # the GPU compiler fuses this concatenation
        y = _by_pieces(settings, _rotary_part(settings, x, dim), positions, frequencies, keep=keep)
        x = x.astype(y.dtype)
        return jnp.concatenate([x[..., :before], y, x[..., x.shape[-1] - after :]], axis=-1)
    waves = _table(keep, positions, frequencies) if is_shared(x, positions) else _waves(positions, frequencies)
    if layout == "interleaved":
        old = _split(x, layout, dtype)
        margin = [(0, 0, 0)] * (x.ndim - 1) + [(before // 2, after // 2, 0)]
        y = _rotate(old, [lax.pad(w, np.float32(0), margin) for w in waves], backward)
        if before or after:
            here = align(np.pad(np.ones(dim // 2, bool), margin[-1][:2]), x.ndim)
            y = [jnp.where(here, *both) for both in zip(y, old, strict=True)]
        return jnp.stack(y, -1).reshape(x.shape).astype(result or x.dtype)
    pieces = x.reshape(*x.shape[:-1], x.shape[-1] // size, size)
    y = [lax.index_in_dim(pieces, i, x.ndim - 1, keepdims=False).astype(dtype) for i in range(x.shape[-1] // size)]
    for i in range(dim // 2 // size):
        first, second = before // size + i, before // size + i + dim // 2 // size
        here = slice(i * size, (i + 1) * size)
        y[first], y[second] = _rotate((y[first], y[second]), [w[..., here] for w in waves], backward)
    return jnp.stack(y, -2).reshape(x.shape).astype(result or x.dtype)


def _inner_ones(x: jax.Array) -> list[int]:
    """Axes of size 1, neither leading nor last, that no Explicit axis of a mesh shards."""
    spec = (*jax.typeof(x).sharding.spec, *(None,) * x.ndim)
    one = [isinstance(n, int) and n == 1 and s is None for n, s in zip(x.shape[:-1], spec, strict=False)]
    return [axis for axis in range(x.ndim - 1) if one[axis] and not all(one[:axis])]


def _rotate(members: Any, waves: Any, backward: bool) -> tuple[jax.Array, jax.Array]:
    """Rotates the first and the second members of pairs by sines and cosines."""
    first, second = members
    sine, cosine = (w.astype(first.dtype) for w in waves)
    add, subtract = (lax.sub, lax.add) if backward else (lax.add, lax.sub)
    y1 = subtract(rounded_product(first, cosine), rounded_product(second, sine))
    return y1, add(rounded_product(second, cosine), rounded_product(first, sine))


def _padded(settings: TurnSettings, x: jax.Array, dim: int) -> jax.Array:
    """The partner of each feature, from two padded reads and a select."""
    half, index = settings.layout == "half", np.arange(dim)
    is_second, distance = (index // (dim // 2), dim // 2) if half else (index % 2, 1)

    def read(by: int) -> jax.Array:
        return lax.pad(x, np.zeros((), x.dtype), [(0, 0, 0)] * (x.ndim - 1) + [(by, -by, 0)])

    second = align(np.pad(is_second == 1, _margin(settings, x, dim)), x.ndim)
    return jnp.where(second, read(distance), read(-distance))


def _reversed(settings: TurnSettings, x: jax.Array, dim: int) -> jax.Array:
    """The partner of each feature, if pairs are interleaved in all of x."""
    return lax.rev(x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2), (x.ndim,)).reshape(x.shape)


def _by_halves(settings: TurnSettings, x: jax.Array, positions: jax.Array, frequencies: Spectrum) -> jax.Array:
    """For CPU: x·C + x′·S in one pass, if the halves make up all of x, in its compute dtype and with shared waves.

    XLA compiles it to a loop over the two halves; the barrier keeps XLA from fusing that with the loop over features.
    """
    axis, shape = x.ndim - 1, (*x.shape[:-1], 2, x.shape[-1] // 2)
    sine, cosine = (lax.expand_dims(w.astype(x.dtype), [axis]) for w in _table(materialized, positions, frequencies))
    # A product, because XLA would compile a select to two loops.
    sign = align(np.array([[1], [-1]] if settings.backward else [[-1], [1]], x.dtype), len(shape))
    halves = x.reshape(shape)
    y = rounded_product(halves, cosine) + rounded_product(lax.rev(halves, [axis]), sine * sign)
    return lax.optimization_barrier(y).reshape(x.shape).astype(settings.result or x.dtype)


def _by_reads(
    settings: TurnSettings,
    x: jax.Array,
    positions: jax.Array,
    frequencies: Spectrum,
    *,
    partner_of: Callable[[TurnSettings, jax.Array, int], jax.Array],
    multiply: Callable[[jax.Array, jax.Array], jax.Array],
    keep: Keep,
) -> jax.Array:
    """x·C + x′·S with partners x′, in one pass. Slicing pairs would copy x on a TPU and read it twice on a CPU."""
    layout, _, backward, result = settings
    dim, dtype = dim_of(frequencies), compute_dtype(x)
    margin, index = _margin(settings, x, dim), np.arange(dim)
    table = is_shared(x, positions)

    def waves(positions: jax.Array, frequencies: Spectrum) -> list[jax.Array]:
        return [features(positions, frequencies, layout, np.full(dim, quarter), margin) for quarter in (1, 0)]

    def waves_of_each(positions: jax.Array, frequencies: Spectrum) -> list[jax.Array]:
        return waves(jnp.broadcast_to(positions, (*x.shape[:-1], positions.shape[-1])), frequencies)

    is_second = index % 2 if layout == "interleaved" else index // (dim // 2)
    if table:
        cosine, sine = waves(positions, frequencies)
    else:  # computes waves where they are used; broadcasting them would store a table
        cosine, sine = _mesh.sharded_as([x, positions], waves_of_each, positions, frequencies)
    # Negates by a product, so that zeros have the same sign as in the other forms.
    sine *= align(np.pad(np.where(is_second == backward, -1, 1).astype(sine.dtype), margin), x.ndim)
    if table:
        cosine, sine = keep(cosine), keep(sine)
    cosine, sine = (w.astype(dtype) for w in (cosine, sine))
    y = multiply(x.astype(dtype), cosine) + multiply(partner_of(settings, x, dim).astype(dtype), sine)
    rotates = align(np.pad(np.ones(dim, bool), margin), x.ndim)
    y = y.astype(result or x.dtype)
    return jnp.where(rotates, y, x.astype(y.dtype)) if any(margin) else y
