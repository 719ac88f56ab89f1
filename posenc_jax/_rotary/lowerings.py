r"""The lowerings of a rotation, by which compilers make it one read and one write.

`reference` is the formula of `rotation`. The other lowerings compute the same bits, because every product is rounded
before it is summed, as always on a TPU. `LOWERINGS` says which platform takes which; `benchmarks/lowerings.py` measures
what they cite.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posenc_jax._frequencies.angles import Angles, SinCosTable, features
from posenc_jax._jax import workarounds
from posenc_jax._jax.arrays import align
from posenc_jax._rotary.rotation import Rotation, rotate_members, split, two_products


def reference(r: Rotation) -> jax.Array:
    """Splits x into pairs, rotates them and joins them: right on every platform, and the oracle of the other lowerings.

    When: in tests alone.
    Why: compilers for CPUs and TPUs split and join in separate passes over x.
    Measured: (1,4096,32,128) half float32 takes 1.35 copies of x on a CPU, and 0.96 by `sum_columns`.
    """
    before, after = r.margin
    pairs = split(r.x[..., before : r.width - after], r.settings.layout)
    rotated = rotate_members(*pairs, r.sin_cos(), r.target, backward=r.settings.backward)
    joined = jnp.stack(rotated, -2 if r.is_half else -1)
    rest = [part.astype(joined.dtype) for part in (r.x[..., :before], r.x[..., r.width - after :])]
    return r.result(jnp.concatenate([rest[0], joined.reshape(*r.x.shape[:-1], r.dim), rest[1]], axis=-1))


def split_and_stack(r: Rotation) -> jax.Array:
    """Cuts x into equal slices that each hold one member of their pairs, rotates the slices in pairs and stacks them.

    When: on a CPU without a table, in up to 8 slices; before JAX 0.12 also if all features of a 16-bit x rotate.
    Why: it needs a sine and a cosine for each pair, not for each feature, and converts 16-bit features once, not twice.
    More slices are more code, and other lowerings are then faster.
    Measured: one head of (1,4096,1,128) half float32 takes 4.7 copies on a CPU, and 5.1 by `pad_and_select`; 1.9 and
    3.1 on JAX 0.10. Inside `lax.scan`, it is ten times slower than outside on JAX 0.12.
    """
    if axes := workarounds.unit_axes(r.x, r.settings.batch):
        unrounded = dataclasses.replace(r, settings=r.settings._replace(result=r.dtype))
        rotate_unrounded = lambda x, angles: split_and_stack(dataclasses.replace(unrounded, x=x, angles=angles))  # noqa: E731
        return r.result(workarounds.without_axes(axes, rotate_unrounded, r.x, r.angles))
    rotate = functools.partial(rotate_members, target=r.target, backward=r.settings.backward)
    if not r.is_half:
        old = split(r.x, "interleaved")
        y = rotate(*old, r.sin_cos_of_all_pairs())
        if not r.rotates_all:
            y = [jnp.where(r.rotates[..., ::2], *both) for both in zip(y, old, strict=True)]
        return r.result(jnp.stack(y, -1).reshape(r.x.shape))
    sin_cos, size, n = r.sin_cos(stored=True), math.gcd(r.dim // 2, r.width), r.x.ndim
    slices = r.x.reshape(*r.x.shape[:-1], r.width // size, size)
    y = [lax.index_in_dim(slices, i, n - 1, keepdims=False).astype(r.dtype) for i in range(r.width // size)]
    for i in range(r.dim // 2 // size):
        first, second = r.margin[0] // size + i, r.margin[0] // size + i + r.dim // 2 // size
        columns = slice(i * size, (i + 1) * size)
        y[first], y[second] = rotate(y[first], y[second], [each[..., columns] for each in sin_cos])
    return r.result(jnp.stack(y, -2).reshape(r.x.shape))


def split_and_concatenate(r: Rotation) -> jax.Array:
    """Rotates slices of x, its first and its second members of pairs, and concatenates them with the rest of x.

    When: on a GPU, for halves, with a table.
    Why: XLA then moves four features in each load and store, and one if the members are stacked.
    Measured: (4,4096,32,128) half takes 1.02 copies on an H200 in float32 and 1.09 in bfloat16, and 1.08 and 1.22 by
    `pad_and_select`; 32 of 256 features in bfloat16 take 1.22, and 1.49 by `pad_and_select`.
    """
    before, middle = r.margin[0], r.margin[0] + r.dim // 2
    first, x1, x2, last = jnp.split(r.x, [before, middle, before + r.dim], axis=-1)
    pairs, backward = (x1.astype(r.dtype), x2.astype(r.dtype)), r.settings.backward
    y = rotate_members(*pairs, r.sin_cos(stored=True), r.target, backward=backward)
    return lax.concatenate([r.result(part) for part in (first, *y, last)], r.x.ndim - 1)


def rotate_in_words(r: Rotation) -> jax.Array:
    """Rotates pairs of 16-bit features, each read and written as one word of 32 bits.

    When: on a GPU, for pairs in 16 bits, with a table.
    Why: XLA then moves four pairs in each load and store. It moves one if pairs are stacked.
    Measured: (4,4096,32,128) interleaved bfloat16 takes 1.06 copies on an H200, 1.29 by `pad_and_select` and 2.38 by
    `split_and_stack`. Compiled, these are 20, 38 and 43 instructions per pair.
    """
    x, dtype = r.x, r.x.dtype
    words = lax.bitcast_convert_type(x.reshape(*x.shape[:-1], r.width // 2, 2), np.uint32)
    bits = (words & np.uint32(2**16 - 1), words >> np.uint32(16))
    x1, x2 = (lax.bitcast_convert_type(each.astype(np.uint16), dtype).astype(r.dtype) for each in bits)
    y = rotate_members(x1, x2, r.sin_cos_of_all_pairs(), r.target, backward=r.settings.backward)
    first, second = (lax.bitcast_convert_type(each.astype(dtype), np.uint16).astype(np.uint32) for each in y)
    rotated = first | second << np.uint32(16)
    if not r.rotates_all:
        rotated = jnp.where(r.rotates[..., ::2], rotated, words)
    return lax.bitcast_convert_type(rotated, dtype).reshape(x.shape)


def sum_columns(r: Rotation) -> jax.Array:
    """x₁·(c, s) + x₂·(−s, c), the columns of the rotation times the members of each pair.

    When: on a CPU, if all features rotate as halves, with a table, or if they are interleaved, and XLA keeps a barrier.
    Why: one loop over pairs and over their members, which LLVM vectorizes in either order of the two, in 16 and in 32
    bits, and inside `lax.scan`, where XLA emits other code.
    Measured: (1,4096,32,128) interleaved takes 0.99 copies in float32 and 1.08 in bfloat16, and 1.27 and 1.47 by
    `split_and_stack`; (8,512,16,64) in bfloat16, whose copy stays in the cache, 2.2, and 4.5 by `split_and_stack`.
    """
    axis = r.x.ndim - 1 if r.is_half else r.x.ndim  # of the members
    sin_cos = r.sin_cos(stored=True) if r.rotates_all else r.sin_cos_of_all_pairs()
    sine, cosine = (lax.expand_dims(each.astype(r.dtype), [axis]) for each in sin_cos)
    sine = -sine if r.settings.backward else sine
    x1, x2 = split(r.x, r.settings.layout, keepdims=True)
    # A constant array would be one more buffer, which LLVM checks for overlap with y.
    first = lax.broadcasted_iota(np.int32, [2 if i == axis else 1 for i in range(r.x.ndim + 1)], axis) == 0
    y = two_products(x1, x2, jnp.where(first, cosine, sine), jnp.where(first, -sine, cosine), r.target)
    if not r.rotates_all:
        y = workarounds.bits_where(r.rotates[..., ::2, None], y, jnp.where(first, x1, x2))
    return workarounds.separate_loop(r.result(y)).reshape(r.x.shape)


def reverse_halves_in_place(r: Rotation) -> jax.Array:
    """x·C + x′·S for the halves of x, whose partners x′ come from reversing the two.

    When: on a TPU, if all features of a 16-bit x rotate, as halves of up to 56, with a table of 128 positions or more.
    Why: positions then lie on the lanes of registers, and the two halves in different registers, so reversing them
    moves nothing. `pad_and_select` reads x three times. (In float32, XLA cuts the reversal of some shapes into
    thousands of steps.)
    Measured: (8,512,16,64) half bfloat16 takes the cycles of 1.07 copies on a TPU v5e, and of 1.62 by `pad_and_select`;
    with 128 features, whose halves share registers, 2.4 and 1.6.
    """
    axis, shape = r.x.ndim - 1, (*r.x.shape[:-1], 2, r.width // 2)
    sine, cosine = (lax.expand_dims(each, [axis]) for each in r.sin_cos())
    sine *= align(np.array([[1], [-1]] if r.settings.backward else [[-1], [1]], sine.dtype), len(shape))
    cosine, sine = (r.target.stored(each).astype(r.dtype) for each in (cosine, sine))
    halves = r.x.reshape(shape)
    # Converts after reversing: XLA would store x in float32 for the two uses of a conversion.
    y = two_products(halves.astype(r.dtype), lax.rev(halves, [axis]).astype(r.dtype), cosine, sine, r.target)
    return r.result(y).reshape(r.x.shape)


def pad_and_select(r: Rotation) -> jax.Array:
    """x·C + x′·S, with partners x′ from two padded reads of x and a select.

    When: on every platform, if no other lowering fits.
    Why: one pass over x in any layout, whatever part of it rotates.
    Measured: (1,4096,32,128) half float32 takes the cycles of 2.1 copies on a TPU v5e, and of 2.9 by `split_and_stack`;
    40 of 64 features in float32 take 1.3 copies on a CPU, and 13 by `split_and_stack`.
    """

    def sin_cos(angles: Angles | SinCosTable) -> list[jax.Array]:
        """The cosine and the sine for each feature: quarter 1 and 0."""
        quarters = (np.full(r.dim, quarter) for quarter in (1, 0))
        return [features(angles, r.settings.layout, quarter, r.margin) for quarter in quarters]

    cosine, sine = sin_cos(r.angles) if r.shares_table else workarounds.computed_where_used(sin_cos, r.x, r.angles)
    # Negates by a product, so that zeros have the same sign as in the other lowerings.
    sine *= r.signs.astype(sine.dtype)
    if r.shares_table:
        cosine, sine = r.target.stored(cosine), r.target.stored(sine)
    cosine, sine = (each.astype(r.dtype) for each in (cosine, sine))
    y = r.result(two_products(r.x.astype(r.dtype), r.partners().astype(r.dtype), cosine, sine, r.target))
    return y if r.rotates_all else jnp.where(r.rotates, y, r.x.astype(y.dtype))


Lowering = Callable[[Rotation], jax.Array]

# Each platform takes the first lowering whose condition holds.
LOWERINGS: dict[str, list[tuple[Callable[[Rotation], bool], Lowering]]] = {
    "tpu": [
        (lambda r: r.shares_table and r.rotates_all and r.fills_tpu_lanes and r.is_narrow, reverse_halves_in_place),
        (lambda r: True, pad_and_select),
    ],
    "gpu": [
        (lambda r: r.shares_table and r.is_half, split_and_concatenate),
        (lambda r: r.shares_table and r.has_32_bit_pairs, rotate_in_words),
        (lambda r: True, pad_and_select),
    ],
    "cpu": [
        (
            lambda r: r.loops_over_pairs and (r.has_adjacent_pairs or r.is_half and r.rotates_all and r.shares_table),
            sum_columns,
        ),
        (lambda r: r.num_slices <= 2 and r.is_narrow if r.shares_table else r.num_slices <= 8, split_and_stack),
        (lambda r: True, pad_and_select),
    ],
}


def lowering_of(platform: str, r: Rotation) -> Lowering:
    """The lowering that the platform takes."""
    return next(lowering for holds, lowering in LOWERINGS[platform] if holds(r))
