"""The frequencies ω of pairs in radians a position, as numbers of 60 digits, and the coordinate that turns each pair."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import mpmath
import numpy as np

# The sine of a phase of 2³¹ radians loses ten digits to range reduction, so 60 leave 50.
MP = mpmath.MPContext()
MP.dps = 60
Real = Any  # a number of MP, or one that it takes at its exact value


def geometric(dim: int, base: Real, endpoint: bool = False) -> list[Real]:
    """base^(−2i/dim), or down to exactly 1/base."""
    pairs = (dim + 1) // 2
    exponents = [MP.mpf(i) / max(pairs - 1, 1) if endpoint else MP.mpf(2 * i) / dim for i in range(pairs)]
    return [MP.mpf(base) ** -e for e in exponents]


def floats(omegas: Iterable[Real]) -> np.ndarray:
    """The same in float64."""
    return np.array([float(w) for w in omegas])


def exact_turns(omegas: Iterable[Real]) -> list[Real]:
    """In units of 2⁻¹²⁸ turn; floats are taken at their exact value."""
    scale = MP.mpf(2) ** 128 / (2 * MP.pi)
    return [MP.mpf(w) * scale for w in omegas]


def turns(omegas: Iterable[Real]) -> tuple[int, ...]:
    """`exact_turns`, rounded to the nearest integers."""
    return tuple(int(MP.nint(t)) for t in exact_turns(omegas))


def wavelengths(omegas: Iterable[Real]) -> np.ndarray:
    """Positions per turn, in float64."""
    return floats(2 * MP.pi / w for w in omegas)


# Scalings, with the names and the arguments of the papers


def linear(omegas: Sequence[Real], factor: Real) -> list[Real]:
    return [w / MP.mpf(factor) for w in omegas]


def ntk(dim: int, base: Real, factor: Real) -> list[Real]:
    return geometric(dim, MP.mpf(base) * MP.mpf(factor) ** (MP.mpf(dim) / (dim - 2)))


def dynamic_ntk(dim: int, base: Real, factor: Real, original_max: int, length: int) -> list[Real]:
    growth = MP.mpf(factor) * max(length, original_max) / original_max - (MP.mpf(factor) - 1)
    return ntk(dim, base, growth)


def yarn(
    dim: int,
    base: Real,
    factor: Real,
    original_max: int,
    beta_fast: Real = 32,
    beta_slow: Real = 1,
    truncate: bool = True,
) -> list[Real]:
    """Pairs are kept below a ramp, divided by the factor above it, and mixed on it."""

    def pair_of(beta: Real) -> Real:
        """The pair, a real number, that makes `beta` turns in the original length."""
        return dim * MP.log(original_max / (MP.mpf(beta) * 2 * MP.pi)) / (2 * MP.log(base))

    low, high = pair_of(beta_fast), pair_of(beta_slow)
    if truncate:
        low, high = MP.floor(low), MP.ceil(high)
    low, high = max(low, MP.mpf(0)), min(high, MP.mpf(dim - 1))
    if low == high:
        high += MP.mpf(1) / 1000
    divided = [_clip((i - low) / (high - low)) for i in range(dim // 2)]
    return [w * (1 - g) + w / MP.mpf(factor) * g for w, g in zip(geometric(dim, base), divided, strict=True)]


def temperature(factor: Real, mscale: Real = 1) -> Real:
    """YaRN's amplitude."""
    return MP.mpf(1) if factor <= 1 else MP.mpf("0.1") * mscale * MP.log(factor) + 1


def longrope(omegas: Sequence[Real], divisors: Iterable[Real]) -> list[Real]:
    return [w / MP.mpf(float(d)) for w, d in zip(omegas, divisors, strict=True)]


def longrope_amplitude(factor: Real, original_max: int) -> Real:
    return MP.mpf(1) if factor <= 1 else MP.sqrt(1 + MP.log(factor) / MP.log(original_max))


def llama3(
    omegas: Sequence[Real], factor: Real, low_freq_factor: Real, high_freq_factor: Real, original_max: int
) -> list[Real]:
    """Pairs are kept above `high_freq_factor` turns in the original length, and divided below `low_freq_factor`."""
    low, high, scaled = MP.mpf(low_freq_factor), MP.mpf(high_freq_factor), []
    for w in omegas:
        made = original_max * w / (2 * MP.pi)
        kept = MP.mpf(int(made > low)) if low == high else _clip((made - low) / (high - low))
        scaled.append((1 - kept) * w / MP.mpf(factor) + kept * w)
    return scaled


def proportional(dim: int, base: Real, fraction: float, factor: Real = 1) -> list[Real]:
    """The first pairs turn, as many as a fraction of the features has; the product is rounded as transformers does."""
    turning = int(fraction * dim // 2)
    return [w / MP.mpf(factor) * (i < turning) for i, w in enumerate(geometric(dim, base))]


def _clip(x: Real) -> Real:
    return min(max(x, MP.mpf(0)), MP.mpf(1))


# Coordinates


def axes_of(sections: Sequence[int], interleaved: bool = False) -> np.ndarray:
    """The coordinate of each pair: one section after the other, or dealt out as Qwen3-VL does.

    That is the first coordinate everywhere, and strided slices of the others over it.
    """
    if not interleaved:
        return np.repeat(np.arange(len(sections)), sections)
    axes = np.zeros(sum(sections), int)
    for axis in range(1, len(sections)):
        axes[axis : sections[axis] * len(sections) : len(sections)] = axis
    return axes


# As Hugging Face configs write them


def from_parameters(
    rope: Mapping[str, Any], head_dim: int, max_length: int, length: int | None = None
) -> tuple[list[Real], Real]:
    """ω of each pair and the amplitude, of a flat `rope_parameters`; `length` is max(position) + 1."""
    kind, base, factor = rope["rope_type"], rope["rope_theta"], rope.get("factor")
    original = rope.get("original_max_position_embeddings", max_length)
    width = head_dim if kind == "proportional" else int(head_dim * rope.get("partial_rotary_factor", 1.0))
    plain, amplitude = geometric(width, base), MP.mpf(1)
    if factor is None and kind in ("yarn", "longrope"):
        factor = MP.mpf(max_length) / original
    if kind == "linear":
        omegas = linear(plain, factor)
    elif kind == "dynamic" and "alpha" in rope:
        omegas = ntk(width, base, rope["alpha"])
    elif kind == "dynamic":
        omegas = dynamic_ntk(width, base, factor, max_length, length or 0)
    elif kind == "yarn":
        betas = rope.get("beta_fast") or 32, rope.get("beta_slow") or 1
        omegas = yarn(width, base, factor, original, *betas, rope.get("truncate", True))
        both = [temperature(factor, m) for m in (rope.get("mscale"), rope.get("mscale_all_dim")) if m]
        amplitude = both[0] / both[1] if len(both) == 2 else temperature(factor)
    elif kind == "longrope":
        long = length is not None and length > original
        omegas = longrope(plain, rope["long_factor" if long else "short_factor"])
        amplitude = longrope_amplitude(factor, original)
    elif kind == "llama3":
        omegas = llama3(plain, factor, rope["low_freq_factor"], rope["high_freq_factor"], original)
    elif kind == "proportional":
        omegas = proportional(head_dim, base, rope.get("partial_rotary_factor", 1.0), factor or 1)
    else:
        assert kind == "default", kind
        omegas = plain
    if kind in ("yarn", "longrope") and rope.get("attention_factor") is not None:
        amplitude = MP.mpf(rope["attention_factor"])
    return omegas, amplitude


def axes_from_parameters(rope: Mapping[str, Any], pairs: int) -> np.ndarray:
    """The coordinate of each pair, of a flat `rope_parameters`."""
    if not rope.get("mrope_section"):
        return np.zeros(pairs, int)
    return axes_of(rope["mrope_section"], rope.get("mrope_interleaved", False)) % 3
