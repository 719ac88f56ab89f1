r"""RoPE's formula, and the forms in which compilers make it one read and one write.

With $c = a\cos\omega p$ and $s = a\sin\omega p$ for the frequency of a pair and the position of a vector, the forward
rotation is

$$y_1 = x_1 c - x_2 s, \qquad y_2 = x_2 c + x_1 s$$

and the backward rotation uses $-s$. `reference` is this formula. The other forms compute the same bits, because every
product is rounded before it is summed, as always on a TPU. `FORMS` says which platform takes which; what the forms cite
as measured stands in benchmarks/results/forms_*.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posenc_jax import _mesh, _xla
from posenc_jax._arrays import align, compute_dtype
from posenc_jax._frequencies import Layout, Spectrum
from posenc_jax._waves import features, is_shared, num_features, pair_waves
from posenc_jax._xla import Target


class TurnSettings(NamedTuple):
    """Which features of x form pairs, and in which direction they rotate."""

    layout: Layout
    last: bool = False  # whether the last features rotate instead of the first
    backward: bool = False
    batch: int = 0  # how many leading axes `jax.vmap` added
    result: np.dtype | None = None  # the dtype of the result; None for the dtype of x


def rotate_pairs(
    settings: TurnSettings, x1: jax.Array, x2: jax.Array, waves: Sequence[jax.Array], target: Target
) -> tuple[jax.Array, jax.Array]:
    """The formula: rotates the first and the second members of pairs by sines and cosines."""
    sine, cosine = (wave.astype(x1.dtype) for wave in waves)
    # Backward, the sine changes its sign; a GPU's compiler would store a negated sine beside the table.
    add, subtract = (lax.sub, lax.add) if settings.backward else (lax.add, lax.sub)
    y1 = subtract(target.product(x1, cosine), target.product(x2, sine))
    y2 = add(target.product(x2, cosine), target.product(x1, sine))
    return y1, y2


def two_products(x: jax.Array, partner: jax.Array, cosine: jax.Array, sine: jax.Array, target: Target) -> jax.Array:
    """The formula for either member of a pair and its partner; the sine of first members is negated."""
    return target.product(x, cosine) + target.product(partner, sine)


# Each form rotates x (..., features) by positions (..., axes), or, without frequencies, by waves (..., 2·pairs).
# Frequencies that are an array have shape (..., axes·pairs). All have one rank, and their leading axes broadcast.


def reference(
    settings: TurnSettings, x: jax.Array, positions: jax.Array, frequencies: Spectrum | None, target: Target = _xla.CPU
) -> jax.Array:
    """Splits x into pairs, rotates them and joins them: right on every platform, and the oracle of the other forms.

    When: in tests alone.
    Why: compilers for CPUs and TPUs split and join in separate passes over x.
    Measured: (1,4096,32,128) half float32 takes 1.35 copies of x on a CPU, and 0.96 by `sum_columns`.
    """
    x = repeated(x, positions, frequencies)
    before, after = margin(settings, x, num_features(positions, frequencies))
    first, second = split(x[..., before : x.shape[-1] - after], settings.layout)
    turned = rotate_pairs(settings, first, second, _waves(positions, frequencies), target)
    joined = jnp.stack(turned, -1 if settings.layout == "interleaved" else -2)
    rest = [part.astype(joined.dtype) for part in (x[..., :before], x[..., x.shape[-1] - after :])]
    y = jnp.concatenate([rest[0], joined.reshape(*x.shape[:-1], 2 * first.shape[-1]), rest[1]], axis=-1)
    return y.astype(settings.result or x.dtype)


def split_and_stack(
    settings: TurnSettings, x: jax.Array, positions: jax.Array, frequencies: Spectrum | None, target: Target
) -> jax.Array:
    """Cuts x into equal slices that each hold one member of their pairs, rotates the slices in pairs and stacks them.

    When: on a CPU without a table, in up to 8 slices; before JAX 0.12 also if all features of a 16-bit x rotate.
    Why: it needs a wave for each pair, not for each feature, and converts 16-bit features once, not twice. More slices
    are more code, and other forms are then faster.
    Measured: one head of (1,4096,1,128) half float32 takes 4.7 copies on a CPU, and 5.1 by `pad_and_select`; 1.9 and
    3.1 on JAX 0.10. Inside `lax.scan`, it is ten times slower than outside on JAX 0.12 (benchmarks/NOTES.md).
    """
    x = repeated(x, positions, frequencies)
    if axes := _xla.unit_axes(x, settings.batch):
        wide = settings._replace(result=np.dtype(compute_dtype(x)))
        turned = lambda x, p, w: split_and_stack(wide, x, p, w, target)  # noqa: E731
        y = _xla.without_axes(axes, turned, x, positions, frequencies)
        return y.astype(settings.result or x.dtype)
    dim, dtype = num_features(positions, frequencies), compute_dtype(x)
    before, after = margin(settings, x, dim)
    shared = is_shared(x, positions, frequencies)
    waves = _table(target, positions, frequencies) if shared else _waves(positions, frequencies)
    if settings.layout == "interleaved":
        old = split(x, "interleaved")
        y = rotate_pairs(settings, *old, _of_all_pairs(settings, x, waves), target)
        if before or after:
            here = rotates(settings, x, dim)[..., ::2]
            y = [jnp.where(here, *both) for both in zip(y, old, strict=True)]
        return jnp.stack(y, -1).reshape(x.shape).astype(settings.result or x.dtype)
    size = math.gcd(dim // 2, x.shape[-1])
    slices = x.reshape(*x.shape[:-1], x.shape[-1] // size, size)
    y = [lax.index_in_dim(slices, i, x.ndim - 1, keepdims=False).astype(dtype) for i in range(x.shape[-1] // size)]
    for i in range(dim // 2 // size):
        first, second = before // size + i, before // size + i + dim // 2 // size
        here = slice(i * size, (i + 1) * size)
        y[first], y[second] = rotate_pairs(settings, y[first], y[second], [w[..., here] for w in waves], target)
    return jnp.stack(y, -2).reshape(x.shape).astype(settings.result or x.dtype)


def split_and_concatenate(
    settings: TurnSettings, x: jax.Array, positions: jax.Array, frequencies: Spectrum | None, target: Target
) -> jax.Array:
    """Rotates slices of x, its first and its second members of pairs, and concatenates them with the rest of x.

    When: on a GPU, for halves, with a table.
    Why: XLA then moves four features in each load and store, and one if the members are stacked.
    Measured: (4,4096,32,128) half takes 1.02 copies on an H200 in float32 and 1.09 in bfloat16, and 1.08 and 1.22 by
    `pad_and_select`; 32 of 256 features in bfloat16 take 1.22, and 1.49 by `pad_and_select`.
    """
    x = repeated(x, positions, frequencies)
    dim, dtype = num_features(positions, frequencies), compute_dtype(x)
    before, _ = margin(settings, x, dim)
    first, x1, x2, last = jnp.split(x, [before, before + dim // 2, before + dim], axis=-1)
    y = rotate_pairs(settings, x1.astype(dtype), x2.astype(dtype), _table(target, positions, frequencies), target)
    parts = [part.astype(settings.result or x.dtype) for part in (first, *y, last)]
    return lax.concatenate(parts, x.ndim - 1)


def rotate_words(
    settings: TurnSettings, x: jax.Array, positions: jax.Array, frequencies: Spectrum | None, target: Target
) -> jax.Array:
    """Rotates pairs of 16-bit features, each read and written as one word of 32 bits.

    When: on a GPU, for pairs in 16 bits, with a table.
    Why: XLA then moves four pairs in each load and store. It moves one if pairs are stacked.
    Measured: (4,4096,32,128) interleaved bfloat16 takes 1.06 copies on an H200, 1.29 by `pad_and_select` and 2.38 by
    `split_and_stack`. Compiled, these are 20, 38 and 43 instructions a pair.
    """
    x = repeated(x, positions, frequencies)
    dim = num_features(positions, frequencies)
    before, after = margin(settings, x, dim)
    waves = _of_all_pairs(settings, x, _table(target, positions, frequencies))
    words = lax.bitcast_convert_type(x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2), np.uint32)
    bits = (words & np.uint32(2**16 - 1), words >> np.uint32(16))
    x1, x2 = (lax.bitcast_convert_type(half.astype(np.uint16), x.dtype).astype(compute_dtype(x)) for half in bits)
    y = rotate_pairs(settings, x1, x2, waves, target)
    first, second = (lax.bitcast_convert_type(each.astype(x.dtype), np.uint16).astype(np.uint32) for each in y)
    turned = first | second << np.uint32(16)
    if before or after:
        turned = jnp.where(rotates(settings, x, dim)[..., ::2], turned, words)
    return lax.bitcast_convert_type(turned, x.dtype).reshape(x.shape)


def sum_columns(
    settings: TurnSettings, x: jax.Array, positions: jax.Array, frequencies: Spectrum | None, target: Target
) -> jax.Array:
    """x₁·(c, s) + x₂·(−s, c), the columns of the rotation times the members of each pair.

    When: on a CPU, if all features rotate as halves, with a table, or if they are interleaved, and XLA keeps a barrier.
    Why: one loop over pairs and over their members, which LLVM vectorizes in either order of the two, in 16 and in 32
    bits, and inside `lax.scan`, where XLA emits other code.
    Measured: (1,4096,32,128) interleaved takes 0.99 copies in float32 and 1.08 in bfloat16, and 1.27 and 1.47 by
    `split_and_stack`; (8,512,16,64) in bfloat16, whose copy stays in the cache, 2.2, and 4.5 by `split_and_stack`.
    """
    x = repeated(x, positions, frequencies)
    dim, dtype, half = num_features(positions, frequencies), compute_dtype(x), settings.layout == "half"
    axis = x.ndim - 1 if half else x.ndim  # of the members
    before, after = margin(settings, x, dim)
    shared = is_shared(x, positions, frequencies)
    waves = _table(target, positions, frequencies) if shared else _waves(positions, frequencies)
    if before or after:
        waves = _of_all_pairs(settings, x, waves)
    sine, cosine = (lax.expand_dims(wave.astype(dtype), [axis]) for wave in waves)
    sine = -sine if settings.backward else sine
    x1, x2 = (lax.expand_dims(member, [axis]) for member in split(x, settings.layout))
    # A constant array would be one more buffer, which LLVM checks for overlap with y.
    first = lax.broadcasted_iota(np.int32, [2 if i == axis else 1 for i in range(x.ndim + 1)], axis) == 0
    y = two_products(x1, x2, jnp.where(first, cosine, sine), jnp.where(first, -sine, cosine), target)
    if before or after:
        y = _xla.bits_where(rotates(settings, x, dim)[..., ::2, None], y, jnp.where(first, x1, x2))
    return _xla.own_loop(y.astype(settings.result or x.dtype)).reshape(x.shape)


def reverse_halves_in_place(
    settings: TurnSettings, x: jax.Array, positions: jax.Array, frequencies: Spectrum | None, target: Target
) -> jax.Array:
    """x·C + x′·S for the halves of x, whose partners x′ come from reversing the two.

    When: on a TPU, if all features of a 16-bit x rotate, as halves of up to 56, with a table of 128 positions or more.
    Why: positions then lie on the lanes of registers, and the two halves in different registers, so reversing them
    moves nothing. `pad_and_select` reads x three times. (In float32, XLA cuts the reversal of some shapes into
    thousands of steps: benchmarks/NOTES.md.)
    Measured: (8,512,16,64) half bfloat16 takes the cycles of 1.07 copies on a TPU v5e, and of 1.62 by `pad_and_select`;
    with 128 features, whose halves share registers, 2.4 and 1.6.
    """
    x = repeated(x, positions, frequencies)
    axis, shape, dtype = x.ndim - 1, (*x.shape[:-1], 2, x.shape[-1] // 2), compute_dtype(x)
    sine, cosine = (lax.expand_dims(w, [axis]) for w in _waves(positions, frequencies))
    sine *= align(np.array([[1], [-1]] if settings.backward else [[-1], [1]], sine.dtype), len(shape))
    cosine, sine = (target.stored(w).astype(dtype) for w in (cosine, sine))
    halves = x.reshape(shape)
    # Converts after reversing: XLA would store x in float32 for the two uses of a conversion.
    y = two_products(halves.astype(dtype), lax.rev(halves, [axis]).astype(dtype), cosine, sine, target)
    return y.astype(settings.result or x.dtype).reshape(x.shape)


def pad_and_select(
    settings: TurnSettings, x: jax.Array, positions: jax.Array, frequencies: Spectrum | None, target: Target
) -> jax.Array:
    """x·C + x′·S, with partners x′ from two padded reads of x and a select.

    When: on every platform, if no other form fits.
    Why: one pass over x in any layout, whatever part of it rotates.
    Measured: (1,4096,32,128) half float32 takes the cycles of 2.1 copies on a TPU v5e, and of 2.9 by `split_and_stack`;
    40 of 64 features in float32 take 1.3 copies on a CPU, and 13 by `split_and_stack`.
    """
    dim, dtype = num_features(positions, frequencies), compute_dtype(x)
    x, partner = (repeated(each, positions, frequencies) for each in (x, partners(settings, x, dim)))
    around, shared = margin(settings, x, dim), is_shared(x, positions, frequencies)

    def waves(positions: jax.Array, frequencies: Spectrum | None) -> list[jax.Array]:
        """The cosine and the sine for each feature: quarter 1 and 0."""
        return [features(positions, frequencies, settings.layout, np.full(dim, quarter), around) for quarter in (1, 0)]

    if shared:
        cosine, sine = waves(positions, frequencies)
    else:
        cosine, sine = _xla.computed_where_used(waves, x, positions, frequencies)
    # Negates by a product, so that zeros have the same sign as in the other forms.
    sine *= signs(settings, x, dim).astype(sine.dtype)
    if shared:
        cosine, sine = target.stored(cosine), target.stored(sine)
    cosine, sine = (w.astype(dtype) for w in (cosine, sine))
    y = two_products(x.astype(dtype), partner.astype(dtype), cosine, sine, target)
    y = y.astype(settings.result or x.dtype)
    return jnp.where(rotates(settings, x, dim), y, x.astype(y.dtype)) if any(around) else y


class Case(NamedTuple):
    """What decides about the form."""

    shared: bool  # a table of waves pays: at least four vectors share each of its rows
    wide: bool  # x is in the compute dtype, not in 16 bits
    slices: float  # into how many equal slices x is cut so that no slice holds both members of a pair
    half: bool  # the layout is that of halves
    whole: bool  # all features rotate
    lanes: bool  # a TPU puts positions on the 128 lanes of its registers, and the halves of x in different ones
    pairs: bool  # features are interleaved and even in number
    words: bool  # pairs of 16-bit numbers, in x and in the result
    own_loop: bool  # XLA:CPU can loop over pairs by themselves, without storing more than a table


def case_of(settings: TurnSettings, x: jax.Array, positions: jax.Array, frequencies: Spectrum | None) -> Case:
    """The case of these arguments, whose leading axes broadcast."""
    x = repeated(x, positions, frequencies)
    dim, width, half = num_features(positions, frequencies), x.shape[-1], settings.layout == "half"
    shared, pairs = is_shared(x, positions, frequencies), not half and width % 2 == 0
    wide = x.dtype == compute_dtype(x)
    fill_lanes = any(isinstance(n, int) and n >= 128 for n in positions.shape[:-1])
    return Case(
        shared=shared,
        wide=wide,
        slices=width // math.gcd(dim // 2, width) if half else 2 if pairs else math.inf,
        half=half,
        whole=width == dim,
        lanes=half and width < 128 and width % 16 == 0 and fill_lanes,
        pairs=pairs,
        words=pairs and not wide and settings.result in (None, x.dtype),
        own_loop=_xla.KEEPS_BARRIERS and (shared or not _xla.unit_axes(x, settings.batch)),
    )


Form = Callable[[TurnSettings, jax.Array, jax.Array, Spectrum | None, Target], jax.Array]

# Each platform takes the first form whose condition holds.
FORMS: dict[str, list[tuple[Callable[[Case], bool], Form]]] = {
    "tpu": [
        (lambda case: case.shared and case.whole and case.lanes and not case.wide, reverse_halves_in_place),
        (lambda case: True, pad_and_select),
    ],
    "gpu": [
        (lambda case: case.shared and case.half, split_and_concatenate),
        (lambda case: case.shared and case.words, rotate_words),
        (lambda case: True, pad_and_select),
    ],
    "cpu": [
        (lambda case: case.own_loop and (case.pairs or case.half and case.whole and case.shared), sum_columns),
        (lambda case: case.slices <= (2 if case.shared else 8) and not (case.shared and case.wide), split_and_stack),
        (lambda case: True, pad_and_select),
    ],
}


def rotated_on(
    platform: str, settings: TurnSettings, x: jax.Array, positions: jax.Array, frequencies: Spectrum
) -> jax.Array:
    """Rotates x in the form that the platform takes for these arguments, whose leading axes broadcast."""
    case = case_of(settings, x, positions, frequencies)
    form = next(form for holds, form in FORMS[platform] if holds(case))
    return form(settings, x, positions, frequencies, _xla.TARGETS[platform])


def repeated(x: jax.Array, positions: jax.Array, frequencies: Spectrum | None) -> jax.Array:
    """Broadcasts x to the leading axes of positions and frequencies."""
    angle = (positions, frequencies) if isinstance(frequencies, jax.Array) else (positions,)
    rows = jnp.broadcast_shapes(*(array.shape[:-1] for array in (x, *angle)))
    return _mesh.agreeing((jnp.broadcast_to(x, (*rows, x.shape[-1])), *angle))[0]


# Pairs, partners and waves


def margin(settings: TurnSettings, x: jax.Array, dim: int) -> tuple[int, int]:
    """The number of features before and after those that rotate."""
    rest = x.shape[-1] - dim
    return (rest, 0) if settings.last else (0, rest)


def split(x: jax.Array, layout: Layout) -> tuple[jax.Array, jax.Array]:
    """The first and the second feature of each pair, in the compute dtype."""
    axis, shape = (x.ndim - 1, (2, x.shape[-1] // 2)) if layout == "half" else (x.ndim, (x.shape[-1] // 2, 2))
    pairs = x.reshape(*x.shape[:-1], *shape)
    first, second = (lax.index_in_dim(pairs, i, axis, keepdims=False).astype(compute_dtype(x)) for i in range(2))
    return first, second


def partners(settings: TurnSettings, x: jax.Array, dim: int) -> jax.Array:
    """The partner of each feature that rotates, from two padded reads and a select."""
    distance = dim // 2 if settings.layout == "half" else 1

    def shifted(by: int) -> jax.Array:
        """Feature i − by of x at i."""
        return lax.pad(x, np.zeros((), x.dtype), [(0, 0, 0)] * (x.ndim - 1) + [(by, -by, 0)])

    second = align(np.pad(is_second(settings, dim), margin(settings, x, dim)), x.ndim)
    return jnp.where(second, shifted(distance), shifted(-distance))


def signs(settings: TurnSettings, x: jax.Array, dim: int) -> np.ndarray:
    """The sign of each feature's partner in the rotation, −1 and 1 for a pair, or 1 and −1 for a backward one."""
    sign = np.where(is_second(settings, dim) != settings.backward, 1, -1)
    return align(np.pad(sign, margin(settings, x, dim)), x.ndim)


def rotates(settings: TurnSettings, x: jax.Array, dim: int) -> np.ndarray:
    """Whether each feature rotates, of x's rank."""
    return align(np.pad(np.ones(dim, bool), margin(settings, x, dim)), x.ndim)


def is_second(settings: TurnSettings, dim: int) -> np.ndarray:
    """Whether a feature is the second of its pair, (dim,)."""
    index = np.arange(dim)
    return (index % 2 if settings.layout == "interleaved" else index // (dim // 2)) == 1


def _waves(positions: jax.Array, frequencies: Spectrum | None) -> list[jax.Array]:
    """The sines and the cosines, each (..., pairs)."""
    return [pair_waves(positions, frequencies, quarter) for quarter in np.arange(2, dtype=np.int32)]


def _of_all_pairs(settings: TurnSettings, x: jax.Array, waves: Sequence[jax.Array]) -> list[jax.Array]:
    """Waves (..., pairs) for all pairs of interleaved features of x, with zeros for those that do not rotate."""
    before, after = margin(settings, x, 2 * waves[0].shape[-1])
    around = [(0, 0, 0)] * (x.ndim - 1) + [(before // 2, after // 2, 0)]
    return [lax.pad(wave, np.zeros((), wave.dtype), around) for wave in waves]


def _table(target: Target, positions: jax.Array, frequencies: Spectrum | None) -> list[jax.Array]:
    """`_waves`, which the compiler is told to store as one array."""
    table = positions if frequencies is None else target.stored(features(positions, frequencies, "half"))
    return jnp.split(table, 2, axis=-1)
