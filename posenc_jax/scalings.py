r"""Context extension: spectra that turn more slowly, so that a model may read beyond the length it was trained on."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posenc_jax import _check, _phase
from posenc_jax.frequencies import DECIMAL, TWO_PI, Frequencies, geometric, resolve_static, spectrum

_MAX_LENGTH = np.iinfo(np.int32).max


def _scaled(frequencies: Frequencies, weights: Iterable[Fraction], attention_factor: float = 1.0) -> Frequencies:
    """Each ω_i times a weight: a rational number, so that nothing but the result is rounded."""
    turns = tuple(round(t * w) for t, w in zip(frequencies.turns, weights, strict=True))
    attention_factor *= frequencies.attention_factor
    return dataclasses.replace(frequencies, turns=turns, attention_factor=attention_factor)


def _even(where: str, dim: Any, least: int = 2) -> int:
    dim = _check.positive_int(where, "dim", dim)
    if dim % 2 or not least <= dim <= 2**20:
        raise ValueError(f"{where}: dim must be even, from {least} to 2²⁰, got {dim}")
    return dim


def _factor(where: str, factor: Any) -> Fraction:
    """A factor by which a context grows, at its exact value."""
    factor = _check.number(where, "factor", factor)
    if factor < 1:
        raise ValueError(f"{where}: factor must be at least 1, got {factor}")
    return Fraction(factor)


def _length(where: str, name: str, value: Any) -> int:
    value = _check.positive_int(where, name, value)
    if value > _MAX_LENGTH:
        raise ValueError(f"{where}: {name} must fit into int32, got {value}")
    return value


def _decimal(x: Fraction) -> Decimal:
    return DECIMAL.divide(Decimal(x.numerator), Decimal(x.denominator))


def temperature(factor: float, mscale: float = 1.0) -> float:
    """YaRN's g: 1 + 0.1·mscale·ln(factor), and 1 where the context does not grow."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def linear_scaling(frequencies: Frequencies | int, factor: float) -> Frequencies:
    frequencies = resolve_static("linear_scaling", frequencies)
    factor = _check.positive("linear_scaling", "factor", factor)
    return _scaled(frequencies, [1 / Fraction(factor)] * frequencies.num_pairs)


def ntk(dim: int, base: float, factor: float) -> Frequencies:
    dim, base = _even("ntk", dim, 4), _check.positive("ntk", "base", base)
    return _ntk(dim, base, _factor("ntk", factor))


def _ntk(dim: int, base: float, stretch: Fraction) -> Frequencies:
    exponent = DECIMAL.divide(Decimal(dim), Decimal(dim - 2))
    base = DECIMAL.multiply(Decimal(base), DECIMAL.power(_decimal(stretch), exponent))
    return Frequencies(spectrum(dim // 2, base, 2, dim), dim)


def dynamic_ntk(dim: int, base: float, factor: float, original_max: int, length: Any) -> Frequencies | jax.Array:
    where = "dynamic_ntk"
    dim, base = _even(where, dim, 4), _check.positive(where, "base", base)
    factor, original_max = _factor(where, factor), _length(where, "original_max", original_max)
    if isinstance(length, (jax.Array, np.ndarray)):
        length = _check.array(where, "length", length, "an integer or a scalar integer array")
        if length.ndim:
            raise ValueError(f"{where}: length must be a scalar, got shape {length.shape}")
        return _dynamic_ntk(length, geometric(dim, base), factor, original_max)
    beyond = max(_length(where, "length", length) - original_max, 0)
    return _ntk(dim, base, 1 + factor * beyond / original_max)


def _dynamic_ntk(length, frequencies, factor, original_max):
    threshold = np.asarray(original_max, length.dtype)
    beyond = (jnp.maximum(length, threshold) - threshold).astype(jnp.float32)
    m = 1 + beyond * np.float32(float(factor / original_max))
    pairs = frequencies.num_pairs
    exponent = -np.arange(pairs) / (pairs - 1)
    return frequencies.angular.astype(np.float32) * m ** exponent.astype(np.float32)


def _ramp(dim, base, original_max, beta_fast, beta_slow, truncate):
    def index(beta):
        turns = DECIMAL.divide(Decimal(original_max), DECIMAL.multiply(TWO_PI, Decimal(beta)))
        return DECIMAL.divide(dim * DECIMAL.ln(turns), 2 * DECIMAL.ln(Decimal(base)))

    low, high = index(beta_fast), index(beta_slow)
    if truncate:
        low, high = low.to_integral_value(ROUND_FLOOR), high.to_integral_value(ROUND_CEILING)
    low, high = max(Fraction(low), Fraction(0)), min(Fraction(high), Fraction(dim - 1))
    return low, high + Fraction(1, 1000) if low == high else high


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
    where = "yarn"
    dim, base = _even(where, dim), _check.positive(where, "base", base)
    factor, original_max = _factor(where, factor), _length(where, "original_max", original_max)
    low, high = _ramp(dim, base, original_max, beta_fast, beta_slow, truncate)
    share = [min(max((i - low) / (high - low), Fraction(0)), Fraction(1)) for i in range(dim // 2)]
    if attention_factor is None:
        attention_factor = temperature(float(factor))
    return _scaled(geometric(dim, base), [1 - x + x / factor for x in share], attention_factor)


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
    where = "longrope"
    frequencies = resolve_static(where, frequencies)
    factor = _check.positive(where, "factor", factor)
    if attention_factor is None:
        attention_factor = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original_max))
    divisors = long_factor if length > original_max else short_factor
    return _scaled(frequencies, [1 / Fraction(float(x)) for x in divisors], attention_factor)


def llama3(
    frequencies: Frequencies | int,
    factor: float,
    *,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max: int,
) -> Frequencies:
    where = "llama3"
    frequencies = resolve_static(where, frequencies)
    factor, original_max = _factor(where, factor), _length(where, "original_max", original_max)
    low, high = Fraction(low_freq_factor), Fraction(high_freq_factor)

    def weight(turns):
        in_context = Fraction(original_max * abs(turns), 1 << _phase.TURN_BITS)
        kept = min(max((in_context - low) / (high - low), Fraction(0)), Fraction(1))
        return (1 - kept) / factor + kept

    return _scaled(frequencies, map(weight, frequencies.turns))


def proportional(dim: int, base: float, fraction: float, factor: float = 1.0) -> Frequencies:
    where = "proportional"
    dim, base = _even(where, dim), _check.positive(where, "base", base)
    fraction, factor = _check.positive(where, "fraction", fraction), _check.positive(where, "factor", factor)
    turning = int(fraction * dim // 2)
    return _scaled(geometric(dim, base), [Fraction(i < turning) / Fraction(factor) for i in range(dim // 2)])
