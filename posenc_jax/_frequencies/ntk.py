r"""NTK-aware scaling: extends the context by a larger base, fixed or growing with the sequence length."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from posenc_jax._frequencies.frequencies import DECIMAL, Frequencies, from_base, geometric_cycles, limited
from posenc_jax._frequencies.parser import parse_even_width, parse_growth
from posenc_jax._jax import checks
from posenc_jax._jax.arrays import unwrap_array
from posenc_jax._jax.calls import cached_by_value
from posenc_jax._jax.errors import public, require
from posenc_jax._jax.workarounds import compiled, positive_product


@public
@cached_by_value
def ntk(dim: int, base: float, factor: float) -> Frequencies:
    r"""NTK-aware scaling: the geometric spectrum of a larger base, $b' = b\,s^{r/(r-2)}$ for $r$ features.

    Examples:
      >>> import posenc_jax as pe
      >>> pe.ntk(6, 1000, 8).angular.round(6).tolist()
      [1.0, 0.035355, 0.00125]

    Args:
      dim: $r$, the number of features, even and at least 4.
      base: $b$, positive.
      factor: $s$, at least 1.

    Returns:
      Frequencies of dim/2 pairs.

    Raises:
      TypeError: if dim is not an integer, or another argument is not a number.
      ValueError: if dim is odd or below 4, base is not positive, or factor is below 1.

    Notes:
      The highest frequency is unchanged. The lowest is divided by $s$: $\omega'_{r/2-1} = \omega_{r/2-1} / s$.

    Reference:
      bloc97, "NTK-Aware Scaled RoPE", 2023; Peng et al., "YaRN", 2024, section 3.1 (arXiv version 2).
    """
    return _ntk(parse_even_width(dim, 4), checks.positive("base", base), parse_growth(factor))


def _ntk(dim: int, base: float, s: Fraction) -> Frequencies:
    if not dim:
        return from_base(0, base)
    with localcontext(DECIMAL):
        stretched = Decimal(base) * (Decimal(s.numerator) / s.denominator) ** (Decimal(dim) / (dim - 2))
    return Frequencies(limited("base", base, geometric_cycles(dim // 2, stretched, 2, dim)), dim)


@public
def dynamic_ntk(dim: int, base: float, factor: float, original_max: int, length: ArrayLike) -> Frequencies | jax.Array:
    r"""NTK-aware scaling whose base grows with the sequence length $S$; short sequences are unchanged.

    $$b' = b\,m^{r/(r-2)}, \qquad m = s\,S/L - (s - 1)$$

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> pe.dynamic_ntk(4, 10_000, 2, original_max=2048, length=4096).angular.round(6).tolist()
      [1.0, 0.003333]
      >>> print(pe.dynamic_ntk(4, 10_000, 2, 2048, jnp.int32(4096)).round(6))
      [1.       0.003333]

    Args:
      dim: $r$, the number of features, even and at least 4.
      base: $b$, positive.
      factor: $s$, at least 1.
      original_max: $L$, the training length.
      length: $S$, an integer or a scalar integer array, which may be traced. If it is below original_max, original_max
        is used.

    Returns:
      Frequencies of dim/2 pairs if length is an integer. If length is an array, the $\omega_i$ as a float32 array of
      shape (dim/2,), accurate to a few units in the last place. Every function accepts this array as `frequencies`.

    Raises:
      TypeError: if dim or original_max is not an integer, length is neither an integer nor an integer array, or another
        argument is not a number.
      ValueError: if dim is odd or below 4, base is not positive, factor is below 1 (or, if length is an array, above
        2⁹⁶), original_max or length is not from 1 to 2³¹ − 1, or an array is not a scalar.

    Notes:
      Keys rotated for one length do not match queries rotated for another. Use one length for the lifetime of a KV
      cache.

    Reference:
      emozilla, "Dynamically Scaled RoPE", 2023; Peng et al., "YaRN", 2024, section 3.3 (arXiv version 2).
    """
    dim, s = parse_even_width(dim, 4), parse_growth(factor)
    base, original_max = checks.positive("base", base), checks.length("original_max", original_max)
    length = unwrap_array(length)
    if not isinstance(length, (jax.Array, np.ndarray)):
        longer = max(checks.length("length", length) - original_max, 0)
        return _ntk(dim, base, 1 + s * longer / original_max)
    kind = checks.Kind("an integer or a scalar integer array", floats=False)
    length = checks.zero_dimensional("length", length, kind)
    require(s <= 2**96, "factor must be at most 2⁹⁶ for a length that is an array, got {}", float(s))
    return _dynamic_ntk(length, from_base(dim, base), s / original_max, original_max)


@compiled("dynamic_ntk", static_argnums=(1, 2, 3))
def _dynamic_ntk(length: jax.Array, frequencies: Frequencies, slope: Fraction, original_max: int) -> jax.Array:
    """Computes ω_i·m^(−y), where y = i/(n−1) for n pairs, as ω_i·2^(−y·log₂ m).

    If y·log₂ m is large, float32 keeps too few bits of its fraction. Let m = f·2^e, and y = c + d where c has 12 bits.
    Then c·e is exact: its integer part becomes the exponent, and the rest is small. y·log₂ f is (y/ln 2)·ln f.
    """
    start = np.asarray(original_max, length.dtype)
    beyond = (jnp.maximum(length, start) - start).astype(jnp.float32)
    half, e = jnp.frexp(1 + positive_product(beyond, np.float32(float(slope))))
    e, ln_f = (e - 1).astype(jnp.float32), jnp.log(2 * half)
    y = np.arange(frequencies.num_pairs) / (frequencies.num_pairs - 1)
    c = np.floor(y * 2**12) / 2**12
    y, c, d = (part.astype(np.float32) for part in (y / math.log(2), c, y - c))
    exponent = jnp.round(c * e)
    rest = (c * e - exponent) + positive_product(d, e) + positive_product(y, ln_f)
    return jnp.ldexp(frequencies.angular.astype(np.float32) * jnp.exp2(-rest), -exponent.astype(jnp.int32))
