r"""RoPE's formula, and the forms in which compilers make it one read and one write.

With $c = a\cos\omega p$ and $s = a\sin\omega p$ for the frequency of a pair and the position of a vector, the forward
rotation is

$$y_1 = x_1 c - x_2 s, \qquad y_2 = x_2 c + x_1 s$$

and the backward rotation uses $-s$. `reference` is this formula. The other forms compute the same bits: every product
is rounded before it is summed. `FORMS` says which platform takes which.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posenc_jax import _mesh, _xla
from posenc_jax._arrays import align, compute_dtype
from posenc_jax._frequencies import Layout, Spectrum, dim_of
from posenc_jax._waves import features, is_shared, pair_waves
from posenc_jax._xla import Target


class TurnSettings(NamedTuple):
    """Which features of x form pairs, and in which direction they rotate."""

    layout: Layout
    last: bool = False  # whether the last features rotate instead of the first
    backward: bool = False
    result: np.dtype | None = None  # the dtype of the result; None for the dtype of x


# Each form rotates x (..., features) by positions (..., axes). Frequencies that are an array have shape (..., pairs).
# All have x's rank, and positions and frequencies broadcast to x.


def reference(
    settings: TurnSettings, x: jax.Array, positions: jax.Array, frequencies: Spectrum, target: Target = _xla.CPU
) -> jax.Array:
    """Splits the pairs, rotates them and joins them again: right on every platform, and the oracle of the other forms.

    No platform takes it: XLA:CPU copies x to split and to join it, and so do the compilers of TPUs.
    """
    before, after = margin(settings, x, dim_of(frequencies))
    first, second = split(x[..., before : x.shape[-1] - after], settings.layout)
    turned = _rotate(settings, (first, second), _waves(positions, frequencies), target)
    joined = jnp.stack(turned, -1 if settings.layout == "interleaved" else -2)
    rest = [part.astype(joined.dtype) for part in (x[..., :before], x[..., x.shape[-1] - after :])]
    y = jnp.concatenate([rest[0], joined.reshape(*x.shape[:-1], 2 * first.shape[-1]), rest[1]], axis=-1)
    return y.astype(settings.result or x.dtype)


def split_and_stack(
    settings: TurnSettings, x: jax.Array, positions: jax.Array, frequencies: Spectrum, target: Target
) -> jax.Array:
    """Slices x so that the members of pairs align, features that pass through included, and stacks what is rotated.

    When: on a CPU, up to 8 slices of 16-bit x or of waves for a few vectors; on a GPU, up to 16 slices and a table.
    Why: waves for each pair, half as many as for each feature; a CPU converts 16-bit features once, not twice.
    """
    if _xla.unit_axes(x):
        wide = settings._replace(result=np.dtype(compute_dtype(x)))
        turned = lambda x, p, w: split_and_stack(wide, x, p, w, target)  # noqa: E731
        y = _xla.without_unit_axes(turned, x, positions, frequencies)
        return y.astype(settings.result or x.dtype)
    dim, dtype = dim_of(frequencies), compute_dtype(x)
    before, after = margin(settings, x, dim)
    shared = is_shared(x, positions, frequencies)
    waves = _table(target, positions, frequencies) if shared else _waves(positions, frequencies)
    if settings.layout == "interleaved":
        old = split(x, "interleaved")
        around = [(0, 0, 0)] * (x.ndim - 1) + [(before // 2, after // 2, 0)]
        y = _rotate(settings, old, [lax.pad(w, np.float32(0), around) for w in waves], target)
        if before or after:
            here = align(np.pad(np.ones(dim // 2, bool), around[-1][:2]), x.ndim)
            y = [jnp.where(here, *both) for both in zip(y, old, strict=True)]
        return jnp.stack(y, -1).reshape(x.shape).astype(settings.result or x.dtype)
    size = math.gcd(dim // 2, x.shape[-1])
    slices = x.reshape(*x.shape[:-1], x.shape[-1] // size, size)
    y = [lax.index_in_dim(slices, i, x.ndim - 1, keepdims=False).astype(dtype) for i in range(x.shape[-1] // size)]
    for i in range(dim // 2 // size):
        first, second = before // size + i, before // size + i + dim // 2 // size
        here = slice(i * size, (i + 1) * size)
        y[first], y[second] = _rotate(settings, (y[first], y[second]), [w[..., here] for w in waves], target)
    return jnp.stack(y, -2).reshape(x.shape).astype(settings.result or x.dtype)


def reverse_halves(
    settings: TurnSettings, x: jax.Array, positions: jax.Array, frequencies: Spectrum, target: Target
) -> jax.Array:
    """x·C + x′·S for the two halves of x, with partners x′ from reversing the two.

    When: on a CPU, all features of a float32 (or float64) x rotate as halves, by a table.
    Why: a loop over both halves, which reads each wave once for two features.
    """
    axis, shape = x.ndim - 1, (*x.shape[:-1], 2, x.shape[-1] // 2)
    table = _table(target, positions, frequencies)
    sine, cosine = (lax.expand_dims(w.astype(x.dtype), [axis]) for w in table)
    # Negates by a product, because XLA would compile a select to two loops.
    sign = align(np.array([[1], [-1]] if settings.backward else [[-1], [1]], x.dtype), len(shape))
    halves = x.reshape(shape)
    y = target.product(halves, cosine) + target.product(lax.rev(halves, [axis]), sine * sign)
    return _xla.own_loop(y).reshape(x.shape).astype(settings.result or x.dtype)


def reverse_pairs(
    settings: TurnSettings, x: jax.Array, positions: jax.Array, frequencies: Spectrum, target: Target
) -> jax.Array:
    """x·C + x′·S, with partners x′ from reversing each two neighbours.

    When: on a CPU, interleaved float32 (or float64) features of an even width rotate by a table.
    Why: x is not split; slices of every second feature would be copied.
    """
    partner = lax.rev(x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2), (x.ndim,)).reshape(x.shape)
    return _two_products(settings, x, partner, positions, frequencies, target)


def pad_and_select(
    settings: TurnSettings, x: jax.Array, positions: jax.Array, frequencies: Spectrum, target: Target
) -> jax.Array:
    """x·C + x′·S, with partners x′ from two padded reads of x and a select.

    When: on a TPU always; on a GPU without a table; on a CPU if no other form fits.
    Why: one pass over x in any layout, with features that pass through; a TPU would copy slices of pairs.
    """
    partner = partners(settings, x, dim_of(frequencies))
    return _two_products(settings, x, partner, positions, frequencies, target)


class Case(NamedTuple):
    """What decides about the form."""

    shared: bool  # a table of waves pays: at least four vectors share each of its rows
    wide: bool  # x has the dtype in which it is computed
    slices: float  # how many slices separate the members of pairs
    halves: bool  # all features rotate, as halves, and XLA:CPU loops over them
    pairs: bool  # features are interleaved and even in number


def case_of(settings: TurnSettings, x: jax.Array, positions: jax.Array, frequencies: Spectrum) -> Case:
    """The case of these arguments."""
    dim, width, half = dim_of(frequencies), x.shape[-1], settings.layout == "half"
    return Case(
        shared=is_shared(x, positions, frequencies),
        wide=x.dtype == compute_dtype(x),
        slices=width // math.gcd(dim // 2, width) if half else math.inf if width % 2 else 2,
        halves=half and width == dim and _xla.KEEPS_BARRIERS and not _xla.unit_axes(x),
        pairs=not half and width % 2 == 0,
    )


Form = Callable[[TurnSettings, jax.Array, jax.Array, Spectrum, Target], jax.Array]

# Each platform takes the first form whose condition holds.
FORMS: dict[str, tuple[Target, list[tuple[Callable[[Case], bool], Form]]]] = {
    "tpu": (_xla.TPU, [(lambda case: True, pad_and_select)]),
    "gpu": (
        _xla.GPU,
        [
            (lambda case: case.shared and case.slices <= 16, split_and_stack),
            (lambda case: True, pad_and_select),
        ],
    ),
    "cpu": (
        _xla.CPU,
        [
            (lambda case: case.slices <= 8 and not (case.shared and case.wide), split_and_stack),
            (lambda case: case.halves, reverse_halves),
            (lambda case: case.pairs, reverse_pairs),
            (lambda case: True, pad_and_select),
        ],
    ),
}


def rotated_on(
    platform: str, settings: TurnSettings, x: jax.Array, positions: jax.Array, frequencies: Spectrum
) -> jax.Array:
    """Rotates x in the form that the platform takes for these arguments."""
    target, rows = FORMS[platform]
    case = case_of(settings, x, positions, frequencies)
    form = next(form for condition, form in rows if condition(case))
    return form(settings, x, positions, frequencies, target)


# Pairs, partners and waves


def margin(settings: TurnSettings, x: jax.Array, dim: int) -> tuple[int, int]:
    """The number of features before and after those that rotate."""
    rest = x.shape[-1] - dim
    return (rest, 0) if settings.last else (0, rest)


def split(x: jax.Array, layout: Layout) -> tuple[jax.Array, ...]:
    """The first and the second feature of each pair, in the compute dtype."""
    axis, shape = (x.ndim - 1, (2, x.shape[-1] // 2)) if layout == "half" else (x.ndim, (x.shape[-1] // 2, 2))
    pairs = x.reshape(*x.shape[:-1], *shape)
    return tuple(lax.index_in_dim(pairs, i, axis, keepdims=False).astype(compute_dtype(x)) for i in range(2))


def partners(settings: TurnSettings, x: jax.Array, dim: int) -> jax.Array:
    """The partner of each feature that rotates, from two padded reads and a select."""
    half, index = settings.layout == "half", np.arange(dim)
    is_second, distance = (index // (dim // 2), dim // 2) if half else (index % 2, 1)

    def read(by: int) -> jax.Array:
        return lax.pad(x, np.zeros((), x.dtype), [(0, 0, 0)] * (x.ndim - 1) + [(by, -by, 0)])

    second = align(np.pad(is_second == 1, margin(settings, x, dim)), x.ndim)
    return jnp.where(second, read(distance), read(-distance))


def _waves(positions: jax.Array, frequencies: Spectrum) -> list[jax.Array]:
    """The sines and the cosines, each (..., pairs)."""
    return [pair_waves(positions, frequencies, quarter) for quarter in np.arange(2, dtype=np.int32)]


def _table(target: Target, positions: jax.Array, frequencies: Spectrum) -> list[jax.Array]:
    """`_waves` as one stored array."""
    return jnp.split(target.stored(features(positions, frequencies, "half")), 2, axis=-1)


def _rotate(settings: TurnSettings, members: Any, waves: Any, target: Target) -> tuple[jax.Array, jax.Array]:
    """Rotates the first and the second members of pairs by sines and cosines."""
    first, second = members
    sine, cosine = (w.astype(first.dtype) for w in waves)
    add, subtract = (lax.sub, lax.add) if settings.backward else (lax.add, lax.sub)
    y1 = subtract(target.product(first, cosine), target.product(second, sine))
    return y1, add(target.product(second, cosine), target.product(first, sine))


def _two_products(
    settings: TurnSettings, x: jax.Array, partner: jax.Array, positions: jax.Array, frequencies: Spectrum, on: Target
) -> jax.Array:
    """x·C + x′·S for the partners x′, with waves for each feature; features beyond the pairs pass through."""
    dim, dtype, index = dim_of(frequencies), compute_dtype(x), np.arange(dim_of(frequencies))
    around, shared = margin(settings, x, dim), is_shared(x, positions, frequencies)

    def waves(positions: jax.Array, frequencies: Spectrum) -> list[jax.Array]:
        return [features(positions, frequencies, settings.layout, np.full(dim, quarter), around) for quarter in (1, 0)]

    def waves_of_each(positions: jax.Array, frequencies: Spectrum) -> list[jax.Array]:
        return waves(jnp.broadcast_to(positions, (*x.shape[:-1], positions.shape[-1])), frequencies)

    if shared:
        cosine, sine = waves(positions, frequencies)
    else:  # computes waves where they are used; broadcasting them would store a table
        cosine, sine = _mesh.sharded_as([x, positions], waves_of_each, positions, frequencies)
    is_second = index % 2 if settings.layout == "interleaved" else index // (dim // 2)
    # Negates by a product, so that zeros have the same sign as in the other forms.
    sine *= align(np.pad(np.where(is_second == settings.backward, -1, 1).astype(sine.dtype), around), x.ndim)
    if shared:
        cosine, sine = on.stored(cosine), on.stored(sine)
    cosine, sine = (w.astype(dtype) for w in (cosine, sine))
    y = on.product(x.astype(dtype), cosine) + on.product(partner.astype(dtype), sine)
    y = y.astype(settings.result or x.dtype)
    rotates = align(np.pad(np.ones(dim, bool), around), x.ndim)
    return jnp.where(rotates, y, x.astype(y.dtype)) if any(around) else y
