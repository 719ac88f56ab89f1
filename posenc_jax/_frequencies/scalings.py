"""Scalings for longer contexts: lower frequencies, for positions beyond the length that a model was trained on.

Arguments are taken at their exact values. Spectra are computed to 60 digits or as fractions, and are accurate to one or
two units of 2⁻¹²⁸ cycle.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from typing import Any

from posenc_jax._frequencies.frequencies import DECIMAL, TWO_PI, Frequencies, from_base, limited
from posenc_jax._frequencies.parser import one_axis, parse_even_width, parse_growth, parse_static
from posenc_jax._jax import checks
from posenc_jax._jax.calls import cached_by_value
from posenc_jax._jax.errors import public, require
from posenc_jax._numerics.fixed_point import CYCLE_BITS

# Shared by the scalings


def _scaled(
    name: str, value: Any, frequencies: Frequencies, weights: Iterable[Fraction], attention_factor: float = 1.0
) -> Frequencies:
    """Multiplies each ω_i by a weight and rounds once. Errors report `value` as the argument `name`."""
    cycles = tuple(round(t * w) for t, w in zip(frequencies.cycles, weights, strict=True))
    cycles = limited(name, value, cycles)
    amplitude = frequencies.attention_factor * attention_factor
    return dataclasses.replace(frequencies, cycles=cycles, attention_factor=amplitude)


def _clip(x: Fraction) -> Fraction:
    return min(max(x, Fraction(0)), Fraction(1))


def _parse_amplitude(attention_factor: Any, default: float) -> float:
    if attention_factor is None:
        return default
    return checks.number("attention_factor", checks.positive("attention_factor", attention_factor), float32=True)


def temperature(factor: float, mscale: float = 1.0) -> float:
    """YaRN's amplitude, 1 + 0.1·mscale·ln(factor); 1 if the context does not grow."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


# The scalings


@public
@cached_by_value
def linear_scaling(frequencies: Frequencies | int, factor: float) -> Frequencies:
    r"""Position interpolation: divides every frequency by the same factor, $\omega'_i = \omega_i / s$.

    Examples:
      >>> import posenc_jax as pe
      >>> pe.linear_scaling(4, 8).angular.round(6).tolist()
      [0.125, 0.00125]

    Args:
      frequencies: Frequencies, or an int width for `geometric(width)`.
      factor: $s$, positive.

    Returns:
      Frequencies with the axes, attention factor and precision of the input.

    Raises:
      TypeError: if frequencies is neither Frequencies nor an integer, or factor is not a number.
      ValueError: if factor is not positive, or is so small that a pair would reach 2²⁸ cycles per position.

    Reference:
      Chen et al., "Extending Context Window of Large Language Models via Positional Interpolation", 2023, equation 4.
    """
    frequencies, s = parse_static(frequencies), Fraction(checks.positive("factor", factor))
    return _scaled("factor", factor, frequencies, [1 / s] * frequencies.num_pairs)


@public
@cached_by_value
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
    r"""YaRN: keeps high frequencies, divides low frequencies by the factor, blends between, and raises the amplitude.

    $$\omega'_i = \omega_i \left(1 - \gamma_i + \frac{\gamma_i}{s}\right), \quad
      \gamma_i = \operatorname{clip}\left(\frac{i - l}{h - l}, 0, 1\right), \quad
      c(\beta) = \frac{r \ln(L / 2\pi\beta)}{2 \ln b}$$

    The pair with index $c(\beta)$ makes $\beta$ cycles in the training length $L$. The ramp $\gamma$ starts at
    $l = \max(c(\beta_\text{fast}), 0)$ and ends at $h = \min(c(\beta_\text{slow}), r - 1)$.

    Examples:
      >>> import posenc_jax as pe
      >>> f = pe.yarn(8, 10_000, 4, original_max=2048)
      >>> (f.angular / pe.geometric(8).angular).round(6).tolist(), round(f.attention_factor, 6)
      ([1.0, 1.0, 0.625, 0.25], 1.138629)

    Args:
      dim: $r$, the number of features, even.
      base: $b$, above 1.
      factor: $s$, at least 1.
      original_max: $L$, the training length.
      beta_fast: pairs that make at least this many cycles in $L$ are unchanged.
      beta_slow: pairs that make at most this many cycles in $L$ are interpolated: their frequency is divided by $s$. At
        most beta_fast.
      truncate: whether to round $c(\beta_\text{fast})$ down and $c(\beta_\text{slow})$ up to integers first.
      attention_factor: the amplitude, positive; $0.1 \ln s + 1$ by default.

    Returns:
      Frequencies of dim/2 pairs.

    Raises:
      TypeError: if dim or original_max is not an integer, truncate is not a bool, or another argument is not a number.
      ValueError: if an argument is out of range, or original_max is not from 1 to 2³¹ − 1.

    Notes:
      If $l = h$, then $h = l + 0.001$. If $h < l$, which takes an extreme original_max, the ramp falls instead of
      rising, as in reference implementations: if every pair makes fewer than beta_slow cycles, none is interpolated.

    Reference:
      Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", 2024, sections 3.2 and 3.4.
    """
    dim, s = parse_even_width(dim), parse_growth(factor)
    base, original_max = checks.positive("base", base), checks.length("original_max", original_max)
    truncate = checks.flag("truncate", truncate)
    fast, slow = checks.positive("beta_fast", beta_fast), checks.positive("beta_slow", beta_slow)
    require(base > 1, "base must be over 1, got {}", base)
    require(fast >= slow, "beta_fast must be at least beta_slow = {}, got {}", slow, fast)
    with localcontext(DECIMAL):
        ratios = [original_max / (TWO_PI * Decimal(beta)) for beta in (fast, slow)]
        low, high = (dim * x.ln() / (2 * Decimal(base).ln()) for x in ratios)
    if truncate:
        low, high = low.to_integral_value(ROUND_FLOOR), high.to_integral_value(ROUND_CEILING)
    low, high = max(Fraction(low), Fraction(0)), min(Fraction(high), Fraction(dim - 1))
    width = high - low or Fraction(1, 1000)
    gammas = [_clip((i - low) / width) for i in range(dim // 2)]
    amplitude = _parse_amplitude(attention_factor, temperature(float(s)))
    return _scaled("factor", factor, from_base(dim, base), [1 - g + g / s for g in gammas], amplitude)


@public
@cached_by_value
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
    r"""LongRoPE: divides each frequency by its own factor, from a list for short or a list for long sequences.

    $$\omega'_i = \omega_i / \lambda_i, \qquad a = \sqrt{1 + \frac{\ln s}{\ln L}} \text{ (1 if } s \le 1 \text{)}$$

    Examples:
      >>> import posenc_jax as pe
      >>> f = pe.longrope(4, [1, 1], [1, 8], original_max=4096, factor=32, length=100_000)
      >>> f.angular.round(6).tolist(), round(f.attention_factor, 6)
      ([1.0, 0.00125], 1.190238)

    Args:
      frequencies: Frequencies, or an int width for `geometric(width)`.
      short_factor: the $\lambda_i$ for a length of at most $L$, one positive number per pair.
      long_factor: the $\lambda_i$ for a length above $L$, one positive number per pair.
      original_max: $L$, the training length; at least 2 if $a$ is computed from it.
      factor: $s$, the maximum length of the model divided by $L$, positive.
      length: the length of the longest sequence in use, which selects the list.
      attention_factor: the amplitude, positive; $a$ by default. It multiplies the attention factor of the frequencies.

    Returns:
      Frequencies with the axes and precision of the input.

    Raises:
      TypeError: if original_max or length is not an integer, a list is not a sequence, or another argument is not a
        number.
      ValueError: if a list does not have one entry per pair, an argument is out of range, or original_max or length is
        not from 1 to 2³¹ − 1.

    Notes:
      Keys rotated with one list do not match queries rotated with the other. Use one length for the lifetime of a KV
      cache.

    Reference:
      Ding et al., "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens", 2024, section 3; the amplitude
      follows Phi-3, Abdin et al., "Phi-3 Technical Report", 2024.
    """
    frequencies, s = parse_static(frequencies), checks.positive("factor", factor)
    original_max, length = checks.length("original_max", original_max), checks.length("length", length)
    lists = {"short_factor": short_factor, "long_factor": long_factor}
    divisors = {name: _parse_divisors(name, values, frequencies.num_pairs) for name, values in lists.items()}
    default = 1.0
    if s > 1 and attention_factor is None:
        require(original_max > 1, "original_max must be at least 2 for the amplitude of factor {}, got 1", s)
        default = math.sqrt(1 + math.log(s) / math.log(original_max))
    name = "long_factor" if length > original_max else "short_factor"
    amplitude = _parse_amplitude(attention_factor, default)
    return _scaled(name, [*map(float, divisors[name])], frequencies, [1 / x for x in divisors[name]], amplitude)


def _parse_divisors(name: str, values: Any, pairs: int) -> list[Fraction]:
    values = checks.sequence(name, values, "numbers")
    require(len(values) == pairs, "{} must have {} entries, one for each pair, got {}", name, pairs, len(values))
    return [Fraction(checks.positive(f"{name}[{i}]", value)) for i, value in enumerate(values)]


@public
@cached_by_value
def llama3(
    frequencies: Frequencies | int,
    factor: float,
    *,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max: int,
) -> Frequencies:
    r"""Llama 3.1: keeps pairs that make many cycles in the training length, and interpolates pairs that make few.

    $$\omega'_i = \omega_i \left(\frac{1 - \sigma_i}{s} + \sigma_i\right), \qquad
      \sigma_i = \operatorname{clip}\left(\frac{L\,|\omega_i| / 2\pi - \alpha}{\beta - \alpha}, 0, 1\right)$$

    Examples:
      >>> import posenc_jax as pe
      >>> f = pe.geometric(128, 500_000)
      >>> scaled = pe.llama3(f, 8, low_freq_factor=1, high_freq_factor=4, original_max=8192)
      >>> (scaled.angular / f.angular)[[0, 28, 29, 34, 35, 63]].round(4).tolist()
      [1.0, 1.0, 0.8282, 0.1902, 0.125, 0.125]

    Args:
      frequencies: Frequencies, or an int width for `geometric(width)`.
      factor: $s$, at least 1.
      low_freq_factor: $\alpha$, positive. Pairs that make at most this many cycles in $L$ are interpolated: their
        frequency is divided by $s$.
      high_freq_factor: $\beta$, at least $\alpha$. Pairs that make at least this many cycles in $L$ are unchanged. If
        $\beta = \alpha$, a pair that makes exactly $\alpha$ cycles is interpolated.
      original_max: $L$, the training length.

    Returns:
      Frequencies with the axes, attention factor and precision of the input.

    Raises:
      TypeError: if original_max is not an integer, or another argument is not a number.
      ValueError: if an argument is out of range, or original_max is not from 1 to 2³¹ − 1.

    Reference:
      Grattafiori et al., "The Llama 3 Herd of Models", 2024; `apply_scaling` of Meta's llama-models.
    """
    frequencies, s = parse_static(frequencies), parse_growth(factor)
    original_max = checks.length("original_max", original_max)
    low = checks.positive("low_freq_factor", low_freq_factor)
    high = checks.positive("high_freq_factor", high_freq_factor)
    require(low <= high, "high_freq_factor must be at least low_freq_factor = {}, got {}", low, high)
    low, high = Fraction(low), Fraction(high)
    rounds = [Fraction(original_max * abs(t), 1 << CYCLE_BITS) for t in frequencies.cycles]  # in the original length
    sigmas = [_clip((n - low) / (high - low)) if low < high else Fraction(n > low) for n in rounds]
    return _scaled("factor", factor, frequencies, [(1 - sigma) / s + sigma for sigma in sigmas])


@public
@cached_by_value
def proportional(dim: int, base: float, fraction: float, factor: float = 1.0) -> Frequencies:
    r"""Gemma 4: keeps the highest frequencies of a head's spectrum, and sets the other frequencies to 0.

    $$\omega_i = \begin{cases} b^{-2i/d} / s & i < \lfloor \rho d / 2 \rfloor \\ 0 & \text{otherwise} \end{cases}$$

    Pairs of frequency 0 do not rotate.

    Examples:
      >>> import posenc_jax as pe
      >>> pe.proportional(8, 10_000, 0.5).angular.round(6).tolist()
      [1.0, 0.1, 0.0, 0.0]

    Args:
      dim: $d$, the number of features, even.
      base: $b$, positive.
      fraction: $\rho$, the fraction of the pairs that rotate, above 0 and at most 1.
      factor: $s$, positive.

    Returns:
      Frequencies of dim/2 pairs.

    Raises:
      TypeError: if dim is not an integer, or another argument is not a number.
      ValueError: if an argument is out of range, or fraction is so small that no pair rotates.

    Reference:
      Barbero et al., "Round and Round We Go! What Makes Rotary Positional Encodings Useful?", 2025 (p-RoPE), and the
      rope type "proportional" in the configurations of Gemma 4, 2026.
    """
    dim, base, s = parse_even_width(dim), checks.positive("base", base), checks.positive("factor", factor)
    fraction = checks.number("fraction", fraction)
    require(0 < fraction <= 1, "fraction must be over 0 and at most 1, got {}", fraction)
    # Rounds the product in float64, as reference implementations do: 0.7 of 20 features is 14.
    rotating = int(fraction * dim // 2)
    require(rotating or not dim, "fraction must leave a pair of the {} features to rotate, got {}", dim, fraction)
    weights = [(i < rotating) / Fraction(s) for i in range(dim // 2)]
    return _scaled("factor", factor, from_base(dim, base), weights)


@public
@cached_by_value
def riflex(frequencies: Frequencies | int, length: int, *, pair: int) -> Frequencies:
    r"""RIFLEx: lowers the frequency whose period makes a longer video repeat itself.

    $$\omega'_k = \begin{cases} 0.9 \cdot 2\pi / L & L > N_k \\ \omega_k & \text{otherwise} \end{cases}, \qquad
      N_k = \operatorname{round}(2\pi / \omega_k)$$

    Pair $k$ then makes 0.9 cycles in the $L$ frames of the longer video. All other pairs are unchanged.

    Examples:
      >>> import posenc_jax as pe
      >>> f = pe.geometric(16, 256)  # the time axis of HunyuanVideo
      >>> f.wavelengths.round(1).tolist()
      [6.3, 12.6, 25.1, 50.3, 100.5, 201.1, 402.1, 804.2]
      >>> pe.riflex(f, 66, pair=3).wavelengths.round(1).tolist()
      [6.3, 12.6, 25.1, 73.3, 100.5, 201.1, 402.1, 804.2]

    Args:
      frequencies: Frequencies with one axis, or an int width for `geometric(width)`.
      length: $L$, the number of latent frames. If it is at most $N_k$, the spectrum is unchanged.
      pair: $k$, counted from 0: the pair whose period is closest to the number of latent frames after which videos
        begin to repeat. The authors count from 1.

    Returns:
      Frequencies with the attention factor and precision of the input.

    Raises:
      TypeError: if frequencies is neither Frequencies nor an integer, or length or pair is not an integer.
      ValueError: if frequencies have several axes, length is not from 1 to 2³¹ − 1, or pair is not an index of a pair
        or names a pair whose frequency is not above 0.

    Notes:
      Apply it to the spectrum of time alone, before `axial` combines the axes:
      `axial((riflex(16, 66, pair=3), 56, 56))`.

    Reference:
      Zhao et al., "RIFLEx: A Free Lunch for Length Extrapolation in Video Diffusion Transformers", 2025; the factor 0.9
      and the threshold follow `riflex_utils.py` and `hunyuanvideo.py` of its code.
    """
    frequencies, length = one_axis(parse_static(frequencies)), checks.length("length", length)
    pair, cycles = checks.integer("pair", pair, 0), frequencies.cycles
    require(pair < len(cycles), "pair must be below {}, the number of pairs of frequencies, got {}", len(cycles), pair)
    require(cycles[pair] > 0, "frequencies must be above 0 for pair {}, got {}", pair, frequencies.angular[pair])
    period = Fraction(1 << CYCLE_BITS, cycles[pair])
    weight = Fraction(9, 10) * period / length if length > round(period) else Fraction(1)
    return _scaled("length", length, frequencies, [weight if i == pair else Fraction(1) for i in range(len(cycles))])
