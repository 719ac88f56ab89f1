r"""Context extension: spectra that turn more slowly, for positions beyond those that a model was trained on.

Numbers are taken at their exact value, and spectra computed to 60 digits or as fractions: right to a unit or two of
2⁻¹²⁸ turn.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from posenc_jax import _checks
from posenc_jax._checks import public, require
from posenc_jax._fixed_point import TURN_BITS
from posenc_jax._frequencies import DECIMAL, TWO_PI, Frequencies, from_base, limited, parse_static, spectrum

# What the scalings share


def _scaled(
    name: str, value: Any, frequencies: Frequencies, weights: Iterable[Fraction], attention_factor: float = 1.0
) -> Frequencies:
    """Each ω_i times a weight, rounded once; `name` and `value` are the argument behind the weights."""
    turns = tuple(round(t * w) for t, w in zip(frequencies.turns, weights, strict=True))
    turns = limited(name, value, turns)
    amplitude = frequencies.attention_factor * attention_factor
    return dataclasses.replace(frequencies, turns=turns, attention_factor=amplitude)


def _clip(x: Fraction) -> Fraction:
    return min(max(x, Fraction(0)), Fraction(1))


def _even(dim: Any, least: int = 2) -> int:
    dim = _checks.positive_int("dim", dim)
    require(dim % 2 == 0 and least <= dim <= 2**20, "dim must be even, from {} to 2²⁰, got {}", least, dim)
    return dim


def _growth(factor: Any) -> Fraction:
    result = _checks.number("factor", factor)
    require(result >= 1, "factor must be at least 1, got {}", result)
    return Fraction(result)


def _amplitude(attention_factor: Any, default: float) -> float:
    if attention_factor is None:
        return default
    return _checks.fits_float32("attention_factor", _checks.positive("attention_factor", attention_factor))


def temperature(factor: float, mscale: float = 1.0) -> float:
    """YaRN's amplitude, 1 + 0.1·mscale·ln(factor); 1 if the context does not grow."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


# The scalings


@public
def linear_scaling(frequencies: Frequencies | int, factor: float) -> Frequencies:
    r"""Position interpolation: every pair turns `factor` times more slowly, $\omega'_i = \omega_i / s$.

    Args:
      frequencies: Frequencies, or an int, a width: `geometric(width)`.
      factor: $s$, positive.

    Returns:
      Frequencies with the axes, attention factor and precision of the given.

    Raises:
      TypeError: if frequencies are neither Frequencies nor an integer, or factor is not a number.
      ValueError: if factor is not positive, or so small that a pair would turn 2²⁸ times a position.

    Examples:
      >>> import posenc_jax as pe
      >>> pe.linear_scaling(4, 8).angular.round(6).tolist()
      [0.125, 0.00125]

    Reference:
      Chen et al., "Extending Context Window of Large Language Models via Positional Interpolation", 2023, equation 4.
    """
    frequencies, s = parse_static(frequencies), Fraction(_checks.positive("factor", factor))
    return _scaled("factor", factor, frequencies, [1 / s] * frequencies.num_pairs)


@public
def ntk(dim: int, base: float, factor: float) -> Frequencies:
    r"""NTK-aware scaling: a larger base, $b' = b\,s^{r/(r-2)}$ for $r$ features.

    The fastest pair is left as it is and the slowest interpolated in full, $\omega'_{r/2-1} = \omega_{r/2-1} / s$.

    Args:
      dim: $r$, the number of features, even and at least 4.
      base: $b$, positive.
      factor: $s$, at least 1.

    Returns:
      Frequencies of dim/2 pairs.

    Raises:
      TypeError: if dim is not an integer, or another argument not a number.
      ValueError: if dim is odd or below 4, base not positive, or factor below 1.

    Examples:
      >>> import posenc_jax as pe
      >>> pe.ntk(6, 1000, 8).angular.round(6).tolist()
      [1.0, 0.035355, 0.00125]

    Reference:
      bloc97, "NTK-Aware Scaled RoPE", 2023; Peng et al., "YaRN", 2023, section 3.1 (arXiv version 2).
    """
    return _ntk(_even(dim, 4), _checks.positive("base", base), _growth(factor))


def _ntk(dim: int, base: float, s: Fraction) -> Frequencies:
    with localcontext(DECIMAL):
        stretched = Decimal(base) * (Decimal(s.numerator) / s.denominator) ** (Decimal(dim) / (dim - 2))
    return Frequencies(limited("base", base, spectrum(dim // 2, stretched, 2, dim)), dim)


@public
def dynamic_ntk(dim: int, base: float, factor: float, original_max: int, length: ArrayLike) -> Frequencies | jax.Array:
    r"""NTK-aware scaling that grows with the length $S$ of the sequence, and leaves short ones as they are.

    $$b' = b\,m^{r/(r-2)}, \qquad m = s\,S/L - (s - 1)$$

    Keys rotated for one length do not fit queries rotated for another: keep one for a cache's whole life.

    Args:
      dim: $r$, the number of features, even and at least 4.
      base: $b$, positive.
      factor: $s$, at least 1.
      original_max: $L$, the length of the training.
      length: $S$, an integer, or a scalar integer array, traced or not. Below original_max it counts as that.

    Returns:
      Frequencies of dim/2 pairs; for an array, the $\omega_i$ as float32 (dim/2,), each within a few units in the last
      place, which every function takes for `frequencies`.

    Raises:
      TypeError: if dim, original_max or length is not of integers, or another argument not a number.
      ValueError: if dim is odd or below 4, base not positive, factor below 1 (or, with an array, above 2⁹⁶),
        original_max or length not from 1 to 2³¹ − 1, or an array not a scalar.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> pe.dynamic_ntk(4, 10_000, 2, original_max=2048, length=4096).angular.round(6).tolist()
      [1.0, 0.003333]
      >>> print(pe.dynamic_ntk(4, 10_000, 2, 2048, jnp.int32(4096)).round(6))
      [1.       0.003333]

    Reference:
      emozilla, "Dynamically Scaled RoPE", 2023; Peng et al., "YaRN", 2023, section 3.3 (arXiv version 2).
    """
    dim, base, s = _even(dim, 4), _checks.positive("base", base), _growth(factor)
    original_max = _checks.length("original_max", original_max)
    if not isinstance(length, (jax.Array, np.ndarray)):
        longer = max(_checks.length("length", length) - original_max, 0)
        return _ntk(dim, base, 1 + s * longer / original_max)
    kind = _checks.Kind("an integer or a scalar integer array", floats=False)
    length = _checks.zero_dimensional("length", jnp.asarray(_checks.array("length", length, kind)))
    require(s <= 2**96, "factor must be at most 2⁹⁶ for a length that is an array, got {}", float(s))
    return _dynamic_ntk(length, from_base(dim, base), s / original_max, original_max)


@functools.partial(jax.jit, static_argnums=(1, 2, 3), inline=True)
def _dynamic_ntk(length: jax.Array, frequencies: Frequencies, slope: Fraction, original_max: int) -> jax.Array:
    """ω_i·m^(−y), y = i/(n−1) for n pairs, as ω_i·2^(−y·log₂ m).

    y·log₂ m can be large, and float32 then keeps too few places of its fraction. With m = f·2^e, and y = c + d where c
    has 12 bits, c·e is exact; its integer part becomes the exponent, and the rest is small. y·log₂ f is (y/ln 2)·ln f.
    |a·b| gives the same bits in every program (see `_xla.rounded_product`).
    """
    start = np.asarray(original_max, length.dtype)
    beyond = (jnp.maximum(length, start) - start).astype(jnp.float32)
    half, e = jnp.frexp(1 + jnp.abs(beyond * np.float32(float(slope))))
    e, ln_f = (e - 1).astype(jnp.float32), jnp.log(2 * half)
    y = np.arange(frequencies.num_pairs) / (frequencies.num_pairs - 1)
    c = np.floor(y * 2**12) / 2**12
    y, c, d = (part.astype(np.float32) for part in (y / math.log(2), c, y - c))
    exponent = jnp.round(c * e)
    rest = (c * e - exponent) + jnp.abs(d * e) + jnp.abs(y * ln_f)
    return jnp.ldexp(frequencies.angular.astype(np.float32) * jnp.exp2(-rest), -exponent.astype(jnp.int32))


@public
def yarn(
    dim: int,
    base: float,
    factor: float,
    original_max: int,
    *,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
    attention_factor: float | None = None,
) -> Frequencies:
    r"""YaRN: fast pairs as they are, slow pairs interpolated, a ramp between, and a larger amplitude.

    $$\omega'_i = \omega_i \left(1 - \gamma_i + \frac{\gamma_i}{s}\right), \quad
      \gamma_i = \operatorname{clip}\left(\frac{i - l}{h - l}, 0, 1\right), \quad
      c(\beta) = \frac{r \ln(L / 2\pi\beta)}{2 \ln b}$$

    The pair of index $c(\beta)$ turns $\beta$ times in the original length. $l$ is $c(\beta_\text{fast})$, at least 0,
    and $h$ is $c(\beta_\text{slow})$, at most $r - 1$, or 0.001 more than an equal $l$.

    Args:
      dim: $r$, the number of features, even.
      base: $b$, over 1.
      factor: $s$, at least 1.
      original_max: $L$, the length of the training.
      beta_fast: pairs that turn at least so often in $L$ are left as they are.
      beta_slow: pairs that turn at most so often in $L$ are interpolated in full; at most beta_fast.
      truncate: round $c(\beta)$ to whole indices first, outwards.
      attention_factor: the amplitude, positive; $0.1 \ln s + 1$ by default.

    Returns:
      Frequencies of dim/2 pairs.

    Raises:
      TypeError: if dim or original_max is not an integer, truncate not a bool, or another argument not a number.
      ValueError: if an argument is outside its range, original_max is not from 1 to 2³¹ − 1, or $h < l$.

    Examples:
      >>> import posenc_jax as pe
      >>> f = pe.yarn(8, 10_000, 4, original_max=2048)
      >>> (f.angular / pe.geometric(8).angular).round(6).tolist(), round(f.attention_factor, 6)
      ([1.0, 1.0, 0.625, 0.25], 1.138629)

    Reference:
      Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", 2023, sections 3.2 and 3.4.
    """
    dim, base, s = _even(dim), _checks.positive("base", base), _growth(factor)
    original_max = _checks.length("original_max", original_max)
    fast, slow = _checks.positive("beta_fast", beta_fast), _checks.positive("beta_slow", beta_slow)
    require(base > 1, "base must be over 1, got {}", base)
    require(fast >= slow, "beta_fast must be at least beta_slow = {}, got {}", slow, fast)
    with localcontext(DECIMAL):
        turns = [original_max / (TWO_PI * Decimal(beta)) for beta in (fast, slow)]
        low, high = (dim * x.ln() / (2 * Decimal(base).ln()) for x in turns)
    if _checks.flag("truncate", truncate):
        low, high = low.to_integral_value(ROUND_FLOOR), high.to_integral_value(ROUND_CEILING)
    low, high = max(Fraction(low), Fraction(0)), min(Fraction(high), Fraction(dim - 1))
    # References go on with a ramp that falls: they interpolate fast pairs and not slow ones.
    message = "original_max must give a ramp that rises, got {}: from {:.6g} to {:.6g}"
    require(low <= high, message, original_max, float(low), float(high))
    width = high - low or Fraction(1, 1000)
    gammas = [_clip((i - low) / width) for i in range(dim // 2)]
    amplitude = _amplitude(attention_factor, temperature(float(s)))
    return _scaled("factor", factor, from_base(dim, base), [1 - g + g / s for g in gammas], amplitude)


@public
def longrope(
    frequencies: Frequencies | int,
    short_factor: Sequence[float],
    long_factor: Sequence[float],
    *,
    original_max: int,
    factor: float,
    length: int,
    attention_factor: float | None = None,
) -> Frequencies:
    r"""LongRoPE: a divisor for each pair, found by search, from one list for short sequences and one for long.

    $$\omega'_i = \omega_i / \lambda_i, \qquad a = \sqrt{1 + \frac{\ln s}{\ln L}} \text{ (1 where } s \le 1 \text{)}$$

    Keys rotated by one list do not fit queries rotated by the other: keep one length for a cache's whole life.

    Args:
      frequencies: Frequencies, or an int, a width: `geometric(width)`.
      short_factor: $\lambda$ where length is at most $L$: a positive number for each pair.
      long_factor: $\lambda$ where length is over $L$.
      original_max: $L$, the length of the training, at least 2 where $a$ needs its logarithm.
      factor: $s$, the longest length of the model over $L$, positive.
      length: the longest sequence of this use.
      attention_factor: the amplitude, positive; $a$ by default. It multiplies that of the frequencies.

    Returns:
      Frequencies with the axes and precision of the given.

    Raises:
      TypeError: if original_max or length is not an integer, a list not a sequence, or another argument not a number.
      ValueError: if a list has not one entry for each pair, an argument is outside its range, or original_max or length
        is not from 1 to 2³¹ − 1.

    Examples:
      >>> import posenc_jax as pe
      >>> f = pe.longrope(4, [1, 1], [1, 8], original_max=4096, factor=32, length=100_000)
      >>> f.angular.round(6).tolist(), round(f.attention_factor, 6)
      ([1.0, 0.00125], 1.190238)

    Reference:
      Ding et al., "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens", 2024, section 3; the amplitude is
      that of Phi-3, Abdin et al., "Phi-3 Technical Report", 2024.
    """
    frequencies, s = parse_static(frequencies), _checks.positive("factor", factor)
    original_max, length = _checks.length("original_max", original_max), _checks.length("length", length)
    lists = {"short_factor": short_factor, "long_factor": long_factor}
    divisors = {name: _divisors(name, values, frequencies.num_pairs) for name, values in lists.items()}
    default = 1.0
    if s > 1 and attention_factor is None:
        require(original_max > 1, "original_max must be at least 2 for the amplitude of factor {}, got 1", s)
        default = math.sqrt(1 + math.log(s) / math.log(original_max))
    name = "long_factor" if length > original_max else "short_factor"
    amplitude = _amplitude(attention_factor, default)
    return _scaled(name, [*map(float, divisors[name])], frequencies, [1 / x for x in divisors[name]], amplitude)


def _divisors(name: str, values: Any, pairs: int) -> list[Fraction]:
    values = _checks.sequence(name, values, "numbers")
    require(len(values) == pairs, "{} must have {} entries, one for each pair, got {}", name, pairs, len(values))
    return [Fraction(_checks.positive(f"{name}[{i}]", value)) for i, value in enumerate(values)]


@public
def llama3(
    frequencies: Frequencies | int,
    factor: float,
    *,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max: int,
) -> Frequencies:
    r"""Llama 3.1: pairs that turn often in the original length are kept, those that turn seldom interpolated.

    $$\omega'_i = \omega_i \left(\frac{1 - \sigma_i}{s} + \sigma_i\right), \qquad
      \sigma_i = \operatorname{clip}\left(\frac{L\,|\omega_i| / 2\pi - \alpha}{\beta - \alpha}, 0, 1\right)$$

    Args:
      frequencies: Frequencies, or an int, a width: `geometric(width)`.
      factor: $s$, at least 1.
      low_freq_factor: $\alpha$, positive; pairs that turn at most so often in $L$ are interpolated in full.
      high_freq_factor: $\beta$, at least $\alpha$; pairs that turn at least so often in $L$ are left as they are. If it
        is $\alpha$, those that turn more often are, with nothing between.
      original_max: $L$, the length of the training.

    Returns:
      Frequencies with the axes, attention factor and precision of the given.

    Raises:
      TypeError: if original_max is not an integer, or another argument not a number.
      ValueError: if an argument is outside its range, or original_max is not from 1 to 2³¹ − 1.

    Examples:
      >>> import posenc_jax as pe
      >>> f = pe.geometric(128, 500_000)
      >>> scaled = pe.llama3(f, 8, low_freq_factor=1, high_freq_factor=4, original_max=8192)
      >>> (scaled.angular / f.angular)[[0, 28, 29, 34, 35, 63]].round(4).tolist()
      [1.0, 1.0, 0.8282, 0.1902, 0.125, 0.125]

    Reference:
      Grattafiori et al., "The Llama 3 Herd of Models", 2024; `apply_scaling` of Meta's llama-models.
    """
    frequencies, s = parse_static(frequencies), _growth(factor)
    original_max = _checks.length("original_max", original_max)
    low = Fraction(_checks.positive("low_freq_factor", low_freq_factor))
    high = Fraction(_checks.positive("high_freq_factor", high_freq_factor))
    message = "high_freq_factor must be at least low_freq_factor = {}, got {}"
    require(low <= high, message, float(low), float(high))
    turns = [Fraction(original_max * abs(t), 1 << TURN_BITS) for t in frequencies.turns]
    sigmas = [_clip((t - low) / (high - low)) if low < high else Fraction(t > low) for t in turns]
    return _scaled("factor", factor, frequencies, [(1 - sigma) / s + sigma for sigma in sigmas])


@public
def proportional(dim: int, base: float, fraction: float, factor: float = 1.0) -> Frequencies:
    r"""Gemma 4: the fastest pairs of a whole head's spectrum; the others rest.

    $$\omega_i = \begin{cases} b^{-2i/d} / s & i < \lfloor \rho d / 2 \rfloor \\ 0 & \text{else} \end{cases}$$

    Args:
      dim: $d$, the number of features, even.
      base: $b$, positive.
      fraction: $\rho$, the share of the pairs that turn, over 0 and at most 1.
      factor: $s$, positive.

    Returns:
      Frequencies of dim/2 pairs.

    Raises:
      TypeError: if dim is not an integer, or another argument not a number.
      ValueError: if an argument is outside its range, or fraction so small that no pair turns.

    Examples:
      >>> import posenc_jax as pe
      >>> pe.proportional(8, 10_000, 0.5).angular.round(6).tolist()
      [1.0, 0.1, 0.0, 0.0]

    Reference:
      Gemma 4, 2026: "proportional" in its configurations.
    """
    dim, base, s = _even(dim), _checks.positive("base", base), _checks.positive("factor", factor)
    fraction = _checks.number("fraction", fraction)
    require(0 < fraction <= 1, "fraction must be over 0 and at most 1, got {}", fraction)
    turning = int(fraction * dim // 2)  # float64 rounds the product, as in references: 0.7 of 20 features is 14
    require(turning, "fraction must leave a pair of the {} features to turn, got {}", dim, fraction)
    weights = [(i < turning) / Fraction(s) for i in range(dim // 2)]
    return _scaled("factor", factor, from_base(dim, base), weights)
