r"""Exact phases: position × frequency as a fraction of a cycle, in fixed point.

A float32 product p·ω is wrong by up to half a unit in its last place, 0.03 radian at p = 10⁶. But a sine needs only
the *fraction* of a cycle, and integer multiplication that wraps around computes exactly that. A phase is an int32 φ in
units of 2⁻³² cycle, so integer overflow is the wrap of the circle.

A frequency becomes a *phase increment*. With p = 2¹⁶·h + l (h signed, 0 ≤ l < 2¹⁶) and W = ω/2π cycles per position,

    φ = h·(2¹⁶·W) + l·W   (mod 1 cycle).

The factors 2¹⁶·W and W are each stored as a 32-bit integer that wraps (`jump`, `step`) and a 15-bit remainder below it
(`jump_low`, `step_low`). Products with the remainders are too small to overflow. The error of φ stays below three
units, 5e-9 radian, at every int32 position. A cosine is the sine a quarter cycle later: add 2³⁰.

Nothing here depends on a compiler: integers wrap the same way everywhere, and each float operation is either exact or
rounded on its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

CYCLE_BITS = 128  # static frequencies are integers in units of 2⁻¹²⁸ cycle per position

# 1/2π as a 96-bit binary fraction, in 16-bit digits, most significant first.
_INVERSE_TWO_PI = (0x28BE, 0x60DB, 0x9391, 0x054A, 0x7F09, 0xD5F4)


class PhaseIncrement(NamedTuple):
    """The phase increment of a frequency: int32 arrays with one entry per column of the result."""

    cycles: Any  # whole cycles per position; only fractional positions need them
    step: Any  # cycles per position, in units of 2⁻³² cycle, wrapped
    step_low: Any  # the remainder of `step`, in units of 2⁻⁴⁷ cycle
    jump: Any  # cycles per 2¹⁶ positions, in units of 2⁻³² cycle, wrapped
    jump_low: Any  # the remainder of `jump`, in units of 2⁻⁴⁷ cycle


def _increment_from_digits(digits: Any) -> PhaseIncrement:
    """Builds an increment from six uint32 arrays (NumPy or JAX) of 16-bit digits, weights 2¹⁶, 2⁰, 2⁻¹⁶, … 2⁻⁶⁴ cycle.

    The remainders are centred: |remainder| ≤ 2¹⁴ units of 2⁻¹⁵.
    """
    twos, ones, a, b, c, d = digits

    def join(high: Any, low: Any, below: Any) -> tuple[Any, Any]:
        # Joins two digits and adds one where the digit below rounds up; unsigned integers wrap.
        up = below >> 15
        joined = (high << 16) + low + up
        remainder = ((below + 1) >> 1) - (up << 15)
        return joined.astype(np.int32), remainder.astype(np.int32)

    step, step_low = join(a, b, c)
    jump, jump_low = join(b, c, d)
    # `step` is signed and counts from the nearest whole cycle. A fraction of half a cycle or more, before or after
    # rounding, therefore adds one to `cycles`.
    cycles = ((twos << 16) + ones + ((a >> 15) | (step.astype(np.uint32) >> 31))).astype(np.int32)
    return PhaseIncrement(cycles, step, step_low, jump, jump_low)


def increment_from_cycles(cycles: tuple[int, ...]) -> PhaseIncrement:
    """Phase increments of static frequencies in units of 2⁻¹²⁸ cycle per position, as NumPy constants."""
    low = CYCLE_BITS - 64
    fixed = [(t + (1 << (low - 1))) >> low for t in cycles]
    digits = [np.array([(t >> shift) & 0xFFFF for t in fixed], np.uint32) for shift in (80, 64, 48, 32, 16, 0)]
    return _increment_from_digits(digits)


def _digits(x: jax.Array) -> list[jax.Array]:
    """Splits |x| < 2³¹ into 16-bit digits, as uint32, weights 2¹⁶ … 2⁻⁶⁴. Each subtraction is exact."""
    rest = jnp.abs(x) * 2.0**-16
    digits = []
    for _ in range(6):
        digit = jnp.floor(rest)
        digits.append(digit.astype(jnp.uint32))
        rest = (rest - digit) * 2.0**16
    return digits


def _signed(increment: PhaseIncrement, x: jax.Array) -> PhaseIncrement:
    """Applies the sign of x to the phase increment of |x|."""
    negative = x < 0
    sign = jnp.where(negative, np.int32(-1), np.int32(1))
    cycles, *parts = (part * sign for part in increment)
    # A `step` of half a cycle, −2³¹, negates to itself, so `cycles` must gain one.
    half = negative & (increment.step == np.int32(-(2**31)))
    return PhaseIncrement(cycles + half.astype(np.int32), *parts)


def increment_from_float_cycles(cycles: jax.Array) -> PhaseIncrement:
    """Phase increments of float frequencies, |cycles| < 2³¹ per position, at their exact values."""
    return _signed(_increment_from_digits(_digits(cycles)), cycles)


def increment_from_angular(angular: jax.Array) -> PhaseIncrement:
    """Phase increments of an array of ω, |ω| < 2³¹, at the exact value of each float.

    Multiplies the digits of ω and of 1/2π as integers, like the range reduction of Payne and Hanek.
    """
    # Column c of the product has weight 2^(16·(1−c)) and sums digit i of ω times digit c−i of 1/2π.
    digits = jnp.stack(_digits(angular))
    table = np.zeros((7, 6) + (1,) * angular.ndim, np.uint32)
    for i in range(6):
        for j, digit in enumerate(_INVERSE_TWO_PI, start=1):
            if i + j < 7:
                table[i + j, i] = digit
    products = digits[None] * table
    low = jnp.sum(products & 0xFFFF, axis=1, dtype=jnp.uint32)
    high = jnp.sum(products >> 16, axis=1, dtype=jnp.uint32)
    carry = low[6]
    columns = []
    for c in range(5, -1, -1):
        total = low[c] + high[c + 1] + (carry >> 16)
        columns.append(total & 0xFFFF)
        carry = total
    return _signed(_increment_from_digits(columns[::-1]), angular)


# Every program calls `phase`. Calling `lax` instead of operators makes its trace three times shorter.


def phase(positions: jax.Array, increment: PhaseIncrement, offset: Any) -> jax.Array:
    """The phase ω·p + offset at int32 positions p."""
    shape = lax.broadcast_shapes(positions.shape, increment.step.shape, offset.shape)

    def broadcast(x: Any) -> jax.Array:
        return lax.broadcast_in_dim(x, shape, range(len(shape)))

    high = broadcast(lax.shift_right_arithmetic(positions, np.int32(16)))
    low = broadcast(lax.bitwise_and(positions, np.int32(0xFFFF)))
    step, step_low, jump, jump_low = map(broadcast, increment[1:])
    remainder = lax.add(lax.mul(high, jump_low), lax.mul(low, step_low))
    upper = lax.add(lax.mul(high, jump), lax.mul(low, step))
    return lax.add(lax.add(upper, lax.shift_right_arithmetic(remainder, np.int32(15))), broadcast(offset))


def _phase_of_fraction(fraction: jax.Array, angular: jax.Array, increment: PhaseIncrement) -> jax.Array:
    """The phase at a fraction of a position, |fraction| ≤ ½, which is split into a multiple of 2⁻³¹ and a rest."""
    scaled = fraction * 2.0**31
    units = jnp.round(scaled).astype(jnp.int32)
    high, low = units >> 16, units & 0xFFFF
    step_high, step_low = increment.step >> 16, increment.step & 0xFFFF
    # Twice the high half of units × step, plus whole cycles.
    cross = ((high * step_low) >> 15) + ((low * step_high) >> 15)
    upper = ((high * step_high + units * increment.cycles) << 1) + cross
    # The rest is at most 2⁻³² of a position and matters where ω is large.
    rest = (scaled - jnp.round(scaled)).astype(jnp.float32) * (angular.astype(jnp.float32) * np.float32(1 / np.pi))
    return upper + jnp.round(rest).astype(jnp.int32)


def in_range(positions: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    """Positions as int32 or floats, and a mask of those in the range of int32, None if all are."""
    if jnp.issubdtype(positions.dtype, jnp.floating):
        nearest = jnp.round(positions)
        return positions, (nearest >= -(2.0**31)) & (nearest < 2.0**31)  # false for NaN
    if positions.dtype == jnp.int32:
        return positions, None
    narrow = positions.astype(jnp.int32)  # int64, uint32 or uint64 whose values are traced
    return narrow, (narrow.astype(positions.dtype) == positions) & ((narrow < 0) == (positions < 0))


def phase_at(positions: jax.Array, angular: jax.Array, increment: PhaseIncrement, offset: Any) -> jax.Array:
    """The phase ω·p + offset at int32 or float positions p."""
    if positions.dtype == jnp.int32:
        return phase(positions, increment, offset)
    nearest = jnp.round(positions)
    return phase(nearest.astype(jnp.int32), increment, offset) + _phase_of_fraction(
        positions - nearest, angular, increment
    )


def angular_from_cycles(cycles: tuple[int, ...]) -> np.ndarray:
    """Converts cycles to radians per position in float64, within an ulp."""
    # Rounds twice: in Python's true division t / 2^b and in the product.
    return np.array([t / (1 << CYCLE_BITS) for t in cycles], np.float64) * (2 * np.pi)
