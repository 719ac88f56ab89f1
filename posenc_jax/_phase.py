r"""Exact phases: position × frequency as a fraction of a turn, and its sine.

A float32 product p·ω of a large position is wrong by up to half a unit in its last place: 0.03 radian at
p = 10⁶. But a sine needs only the *fraction* of a turn, and fixed-point arithmetic that wraps around computes
just that. A phase here is an int32 φ in units of 2⁻³² turn, so that integer overflow is the wrap of the circle.

A frequency becomes a *tuning word*. With p = 2¹⁶·h + l (h signed, 0 ≤ l < 2¹⁶) and W = ω/2π turns a position,

    φ = h·(2¹⁶·W) + l·W   (mod 1 turn),

each factor held as a 32-bit integer that wraps (`jump`, `step`) and a 15-bit remainder below it
(`jump_low`, `step_low`), whose products are too small to overflow. The error of φ is a few units, under
6e-9 radian, at every int32 position. A cosine is a sine a quarter turn later: add 2³⁰.

Nothing else in the library calls a sine or a cosine.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

TURN_BITS = 128  # static frequencies are integers in units of 2⁻¹²⁸ turn a position

# 1/2π as a 96-bit binary fraction, in 16-bit digits, most significant first.
_INVERSE_TWO_PI = (0x28BE, 0x60DB, 0x9391, 0x054A, 0x7F09, 0xD5F4)

# sin(πz/2) = z + z·v·Q(v) with v = 1 − z² and Q(v) = c₀ + v·(c₁ + c₃·v·(v + r)), minimax over 0 ≤ z ≤ 1 with float32
# coefficients: the correction to z vanishes at both ends and stays below 0.22.
_C0, _C1, _C3, _R = (
    np.float32(c) for c in (0.4999997913837433, 0.06657696515321732, 0.00015119873569346964, 26.90729522705078)
)


class Word(NamedTuple):
    """The tuning word of a frequency: int32 arrays, one entry for each column of the result."""

    whole: Any  # whole turns a position (matters to fractional positions alone)
    step: Any  # turns a position, in units of 2⁻³² turn, wrapped
    step_low: Any  # what `step` leaves, in units of 2⁻⁴⁷ turn
    jump: Any  # turns in 2¹⁶ positions, in units of 2⁻³² turn, wrapped
    jump_low: Any  # what `jump` leaves, in units of 2⁻⁴⁷ turn


def _word_from_digits(digits: Any) -> Word:
    """Six uint32 arrays of 16-bit digits, weights 2¹⁶, 2⁰, 2⁻¹⁶, … 2⁻⁶⁴ turn, to a tuning word.

    NumPy and JAX arrays alike. The remainders are centred, so that |remainder| ≤ 2¹⁴ units of 2⁻¹⁵.
    """
    twos, ones, a, b, c, d = digits

    def pair(high, low, below):
        # Unsigned wrap-around: (high, low) plus one where the digit below rounds up.
        up = below >> 15
        word = (high << 16) + low + up
        remainder = ((below + 1) >> 1) - (up << 15)
        return word.astype(np.int32), remainder.astype(np.int32)

    step, step_low = pair(a, b, c)
    jump, jump_low = pair(b, c, d)
    # `step` is signed, a fraction from the nearest turn, so `whole` counts up where the fraction is a half or more,
    # before or after rounding.
    whole = ((twos << 16) + ones + ((a >> 15) | (step.astype(np.uint32) >> 31))).astype(np.int32)
    return Word(whole, step, step_low, jump, jump_low)


def word_from_turns(turns: tuple[int, ...]) -> Word:
    """Tuning words of static frequencies, given in units of 2⁻¹²⁸ turn a position: NumPy constants."""
    low = TURN_BITS - 64
    fixed = [(t + (1 << (low - 1))) >> low for t in turns]
    digits = [np.array([(t >> shift) & 0xFFFF for t in fixed], np.uint32) for shift in (80, 64, 48, 32, 16, 0)]
    return _word_from_digits(digits)


def _digits(x: jax.Array) -> list[jax.Array]:
    """|x| < 2³¹ in 16-bit digits, weights 2¹⁶ … 2⁻⁶⁴, as uint32; each subtraction is exact."""
    rest = jnp.abs(x) * 2.0**-16
    digits = []
    for _ in range(6):
        digit = jnp.floor(rest)
        digits.append(digit.astype(jnp.uint32))
        rest = (rest - digit) * 2.0**16
    return digits


def _signed(word: Word, x: jax.Array) -> Word:
    """The word of |x| with the sign of x."""
    negative = x < 0
    sign = jnp.where(negative, np.int32(-1), np.int32(1))
    whole, *parts = (part * sign for part in word)
    # Half a turn is −2³¹ and stays it: the turn that `whole` counts for it is taken back.
    half = negative & (word.step == np.int32(-(2**31)))
    return Word(whole + half.astype(np.int32), *parts)


def word_from_angular(angular: jax.Array) -> Word:
    """Tuning words of frequencies that are arrays: ω/2π of the exact value of each float, |ω| < 2³¹.

    The digits of ω are multiplied with those of 1/2π, as in Payne and Hanek's range reduction, in integers.
    """
    # Column c of the product, of weight 2^(16·(1−c)), sums ω's digit i times 1/2π's digit c−i.
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
    return _signed(_word_from_digits(columns[::-1]), angular)


# The next functions are every program's hot path: `lax` rather than operators, for a trace three times shorter.


def _phase(positions: jax.Array, word: Word, offset: Any) -> jax.Array:
    """The fraction of a turn at int32 positions, plus an offset."""
    shape = lax.broadcast_shapes(positions.shape, word.step.shape)
    spread = lambda x: lax.broadcast_in_dim(x, shape, range(len(shape)))  # noqa: E731
    high = spread(lax.shift_right_arithmetic(positions, np.int32(16)))
    low = spread(lax.bitwise_and(positions, np.int32(0xFFFF)))
    _, step, step_low, jump, jump_low = map(spread, word)
    remainder = lax.add(lax.mul(high, jump_low), lax.mul(low, step_low))
    phase = lax.add(lax.mul(high, jump), lax.mul(low, step))
    return lax.add(lax.add(phase, lax.shift_right_arithmetic(remainder, np.int32(15))), spread(offset))


def _sine(phase: jax.Array) -> jax.Array:
    """The sine of (phase − ¼ turn), float32, for an int32 phase in units of 2⁻³² turn.

    The same bits in every program: a compiler that may contract a·b + c to one rounding does so in one place and not
    in another, so no product that is rounded meets an addition here. |a·b| is the product where it is known to be
    positive.
    """
    # Reflect into a quarter turn either side of zero: a triangle wave. |−2³¹| wraps to −2³¹, which is right.
    t = lax.sub(lax.abs(phase), np.int32(2**30))
    rounded = lax.convert_element_type(t, np.float32)
    z = lax.mul(rounded, np.float32(2.0**-30))
    v = lax.abs(lax.mul(lax.sub(np.float32(1), z), lax.add(np.float32(1), z)))
    q = lax.add(lax.abs(lax.mul(lax.mul(_C3, v), lax.add(v, _R))), _C1)
    q = lax.add(lax.abs(lax.mul(v, q)), _C0)
    # The correction is added to the exact integer t: what the float lost of t, and a rounding, are saved.
    correction = lax.convert_element_type(lax.mul(rounded, lax.mul(v, q)), np.int32)
    return lax.mul(lax.convert_element_type(lax.add(t, correction), np.float32), np.float32(2.0**-30))


def _phase_of_fraction(fraction: jax.Array, angular: jax.Array, word: Word) -> jax.Array:
    """The phase at a fraction of a position, |fraction| ≤ ½: an integer multiple of 2⁻³¹, and what is left."""
    scaled = fraction * 2.0**31
    units = jnp.round(scaled).astype(jnp.int32)
    high, low = units >> 16, units & 0xFFFF
    step_high, step_low = word.step >> 16, word.step & 0xFFFF
    # Twice the high half of units × step, and whole turns.
    cross = ((high * step_low) >> 15) + ((low * step_high) >> 15)
    phase = ((high * step_high + units * word.whole) << 1) + cross
    # Less than 2⁻³² of a position is left: it counts where ω is large.
    rest = (scaled - jnp.round(scaled)).astype(jnp.float32) * (angular.astype(jnp.float32) * np.float32(1 / np.pi))
    return phase + jnp.round(rest).astype(jnp.int32)


def rounded_product(a: jax.Array, b: jax.Array) -> jax.Array:
    """a·b, rounded by itself in every program (see `_sine`); without derivatives.

    A compiler that cannot know that no product is the NaN of all ones cannot look through the select.
    """
    result = lax.mul(a, b)
    bits = lax.bitcast_convert_type(result, np.dtype(f"int{8 * result.dtype.itemsize}"))
    ones = lax.eq(bits, lax.full_like(bits, -1))
    return lax.select(ones, lax.full_like(result, np.nan), result)


@jax.custom_jvp
def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """The same with derivatives."""
    return rounded_product(a, b)


def _product_jvp(primals, tangents):
    a, b = primals
    result = product(a, b)
    terms = [x * d for x, d in zip((b, a), tangents, strict=True) if not isinstance(d, SymbolicZero)]
    return result, sum(terms[1:], terms[0]) if terms else jnp.zeros_like(result)


product.defjvp(_product_jvp, symbolic_zeros=True)


def kept(wave: jax.Array) -> jax.Array:
    """A wave as an array of its own, on a CPU: whose compiler else computes it anew for each use.

    It keeps what it takes for expensive: the remainder by 2³² − 1, of bits that are less. Of them only the NaN of all
    ones is not, and it is made another.
    """
    bits = lax.bitcast_convert_type(wave, np.uint32)
    bits = lax.min(bits, lax.full_like(bits, 2**32 - 2))
    return lax.bitcast_convert_type(lax.rem(bits, lax.full_like(bits, 2**32 - 1)), np.float32)


def _in_range(positions: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    """Positions as int32 or floats, and which of them are numbers in the range of int32 (`None`: all)."""
    if jnp.issubdtype(positions.dtype, jnp.floating):
        nearest = jnp.round(positions)
        return positions, (nearest >= -(2.0**31)) & (nearest < 2.0**31)  # false for NaN
    if positions.dtype == jnp.int32:
        return positions, None
    narrow = positions.astype(jnp.int32)  # of int64, uint32 or uint64 whose values were not known when tracing
    return narrow, (narrow.astype(positions.dtype) == positions) & ((narrow < 0) == (positions < 0))


def _phase_at(positions: jax.Array, angular: jax.Array, word: Word, offset: Any) -> jax.Array:
    """The fraction of a turn at int32 or float positions, plus an offset."""
    if positions.dtype == jnp.int32:
        return _phase(positions, word, offset)
    nearest = jnp.round(positions)
    phase = _phase(nearest.astype(jnp.int32), word, offset)
    return phase + _phase_of_fraction(positions - nearest, angular, word)


def _finite(positions: jax.Array) -> jax.Array:
    """In float32, 0 where there is no number: a row that a mask leaves out adds 0·p to the derivative by ω, no NaN."""
    positions = positions.astype(jnp.float32)
    return jnp.where(jnp.isfinite(positions), positions, np.float32(0))


@jax.custom_jvp
def _wave(positions: jax.Array, angular: jax.Array, word: Word, offset: jax.Array) -> jax.Array:
    """The sine of ω·p + offset for int32 or float positions; `word` is the exact form of ω."""
    return _sine(_phase_at(positions, angular, word, offset))


def _wave_jvp(primals, tangents):
    positions, angular, word, offset = primals
    d_positions, d_angular = tangents[:2]
    wave = _wave(*primals)
    slope = _wave(positions, angular, word, offset + np.int32(2**30))
    tangent = jnp.zeros_like(wave)
    if not isinstance(d_positions, SymbolicZero):
        tangent += slope * (angular.astype(jnp.float32) * d_positions.astype(jnp.float32))
    if not isinstance(d_angular, SymbolicZero):
        tangent += slope * (_finite(positions) * d_angular.astype(jnp.float32))
    return wave, tangent


_wave.defjvp(_wave_jvp, symbolic_zeros=True)


def wave(positions: jax.Array, frequencies: tuple[int, ...] | jax.Array, quarter: Any) -> jax.Array:
    r"""The sine of ω·p + quarter·π/2 in float32, exact at every int32 position.

    Args:
      positions: integers or floats of shape (..., 1) or (..., columns).
      frequencies: turns in units of 2⁻¹²⁸ a position, static, or an array of ω (columns,).
      quarter: integers (columns,) or (): 0 for the sine, 1 for the cosine, 2 for the negated sine.

    Returns:
      float32 (..., columns); NaN where a position is not a number in the range of int32, or |ω| ≥ 2³¹.
    """
    row = (1,) * (positions.ndim - 1) + (-1,)  # explicit, for jax_numpy_rank_promotion="raise"
    # `_sine` is a quarter turn behind.
    offset = ((quarter.astype(np.int32) + 1) << 30).reshape(row)
    positions, known = _in_range(positions)
    if isinstance(frequencies, tuple):
        word = Word(*(part.reshape(row) for part in word_from_turns(frequencies)))
        if positions.dtype == jnp.int32:
            result = _sine(_phase(positions, word, offset))
        else:
            angular = angular_from_turns(frequencies).astype(np.float32).reshape(row)
            result = _wave(positions, angular, word, offset)
    else:
        angular = frequencies.reshape(row)
        word = word_from_angular(lax.stop_gradient(angular))
        result = _wave(positions, angular, word, offset)
        fits = jnp.abs(angular) < 2.0**31
        known = fits if known is None else known & fits
    return result if known is None else jnp.where(known, result, np.float32(np.nan))


@jax.custom_jvp
def _wave_of_dot(x: jax.Array, matrix: jax.Array, offset: Any) -> jax.Array:
    """The sine of 2π·x·B + offset, for x (..., inputs) and B (inputs, columns)."""
    row = (1,) * (x.ndim - 1) + matrix.shape
    word = Word(*(part.reshape(row) for part in _signed(_word_from_digits(_digits(matrix)), matrix)))
    angular = matrix.astype(jnp.float32).reshape(row) * np.float32(2 * np.pi)
    # Phases add up in integers that wrap: exactly, so in any order.
    terms = _phase_at(x[..., None], angular, word, np.zeros((1,) * len(row), np.int32))
    return _sine(jnp.sum(terms, axis=-2, dtype=jnp.int32) + offset)


def _wave_of_dot_jvp(primals, tangents):
    x, matrix, offset = primals
    d_x, d_matrix = tangents[:2]
    dot = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
    x32, matrix32 = _finite(x), matrix.astype(jnp.float32)
    wave = _wave_of_dot(*primals)
    d_turns = jnp.zeros_like(wave)
    if not isinstance(d_x, SymbolicZero):
        d_turns += dot(d_x.astype(jnp.float32), matrix32)
    if not isinstance(d_matrix, SymbolicZero):
        d_turns += dot(x32, d_matrix.astype(jnp.float32))
    slope = _wave_of_dot(x, matrix, offset + np.int32(2**30))
    return wave, slope * (d_turns * np.float32(2 * np.pi))


_wave_of_dot.defjvp(_wave_of_dot_jvp, symbolic_zeros=True)


def wave_of_dot(x: jax.Array, matrix: jax.Array, quarter: int) -> jax.Array:
    r"""The sine of 2π·x·B + quarter·π/2 in float32: the phase of each product is exact, and so is their sum.

    Args:
      x: integers or floats of shape (..., inputs).
      matrix: B, turns a unit of each input, floats of shape (inputs, columns).
      quarter: 0 for the sine, 1 for the cosine.

    Returns:
      float32 (..., columns); NaN where an x is not a number in the range of int32, or |B| ≥ 2²⁸.
    """
    x, known = _in_range(x)
    wave = _wave_of_dot(x, matrix, np.int32(2**30 if quarter == 0 else -(2**31)))
    fits = jnp.all(jnp.abs(matrix) < 2.0**28, axis=0).reshape((1,) * (x.ndim - 1) + (-1,))
    known = fits if known is None else fits & jnp.all(known, axis=-1, keepdims=True)
    return jnp.where(known, wave, np.float32(np.nan))


def wave_float32(positions: jax.Array, frequencies: tuple[int, ...], quarter: Any) -> jax.Array:
    """The same as float32 references compute it: ω rounded, the product rounded, sine or cosine of that."""
    row = (1,) * (positions.ndim - 1) + (-1,)
    angular = angular_from_turns(frequencies).astype(np.float32).reshape(row)
    phase = positions.astype(jnp.float32) * angular
    odd, sign = ((quarter & 1) == 1).reshape(row), (1 - (quarter & 2)).astype(np.float32).reshape(row)
    return jnp.where(odd, jnp.cos(phase), jnp.sin(phase)) * sign


def wave_float64(positions: np.ndarray, frequencies: tuple[int, ...], quarter: np.ndarray) -> np.ndarray:
    """The same on the host in float64, by exact integers of any size: the truth that figures compare with."""
    turn = 1 << TURN_BITS
    phases = [[int(p) * f % turn / turn for f in frequencies] for p in positions]
    return np.sin(2 * np.pi * np.array(phases) + np.pi / 2 * quarter)


def angular_from_turns(turns: tuple[int, ...]) -> np.ndarray:
    """Radians a position, in float64, correctly rounded but for an ulp."""
    # t / 2^b is rounded once by Python's true division, and once more by the product.
    return np.array([t / (1 << TURN_BITS) for t in turns], np.float64) * (2 * np.pi)
