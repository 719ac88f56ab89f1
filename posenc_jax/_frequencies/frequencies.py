r"""`Frequencies` and the geometric spectrum."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any, Literal

import jax
import numpy as np

from posenc_jax._jax import checks
from posenc_jax._jax.arrays import unwrap_array
from posenc_jax._jax.errors import describe, invalid, public, require, wrong_type
from posenc_jax._numerics import fixed_point

Precision = Literal["exact", "float32"]

DECIMAL = Context(prec=60)
LIMIT = 1 << (fixed_point.CYCLE_BITS + 28)  # 2²⁸ cycles per position: above, fractional positions lose precision
TWO_PI = Decimal("6.28318530717958647692528676655900576839433879875021164194988918461563281257241799")


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Frequencies:
    r"""The frequency of each feature pair of an encoding, stored exactly.

    At position $p$, feature pair $i$ of the sinusoidal encoding is

    $$a\,(\sin \omega_i p_{c_i},\ \cos \omega_i p_{c_i}),$$

    where $\omega_i$ is the frequency of the pair, $a$ the amplitude (`attention_factor`), and $c_i$ the coordinate of
    the position that drives the pair. Positions of text have a single coordinate.

    Examples:
      >>> import posenc_jax as pe
      >>> f = pe.geometric(6)
      >>> f.dim, f.num_pairs, f.num_axes
      (6, 3, 1)
      >>> [round(float(w), 4) for w in 1 / f.angular]
      [1.0, 21.5443, 464.1589]

    Args:
      cycles: $\omega_i / 2\pi$, the number of cycles per position, one integer per pair in units of $2^{-128}$ cycle.
      dim: the number of features. It is twice the number of pairs, or one less, which drops the last cosine.
      axes: the coordinate $c_i$ that drives each pair. `None` means that positions have a single coordinate.
      attention_factor: the amplitude $a$ of the sines and cosines.
      precision: "exact", or "float32" to reproduce float32 references. Such references round $\omega$, and its product
        with the position, to float32.

    Raises:
      TypeError: if dim or attention_factor is not a number.
      ValueError: if the arguments contradict each other, or if a pair reaches 2²⁸ cycles per position.

    Notes:
      Most spectra are created by `geometric` or `axial`. Indexing selects pairs, by a slice or by a sequence of
      integers: `f[::2]`, `f[:8]`, `f[[1, 0]]`.

      Because the frequencies are exact, phases are correct at every int32 position. Instances are immutable and
      hashable and hold no arrays. They can be static arguments of `jax.jit` and plain attributes of a Flax module.
    """

    cycles: tuple[int, ...]
    dim: int
    axes: tuple[int, ...] | None = None
    attention_factor: float = 1.0
    precision: Precision = "exact"

    @public
    def __post_init__(self) -> None:
        """Checks the fields, separately and together, and caches their hash."""
        pairs = len(checks.sequence("cycles", self.cycles, "integers"))
        fits = all(isinstance(t, int) and abs(t) < LIMIT for t in self.cycles)
        require(fits, "cycles must be integers below 2²⁸ cycles per position, in units of 2⁻¹²⁸")
        dim, most = checks.integer("dim", self.dim, 0), 2 * pairs
        allowed = (most, most - 1) if pairs else (0,)
        require(dim in allowed, "dim must be {} for {} pairs, got {}", " or ".join(map(str, allowed)), pairs, dim)
        axes = (0,) * pairs if self.axes is None else checks.sequence("axes", self.axes, "integers")
        fits = len(axes) == pairs and all(isinstance(axis, int) and axis >= 0 for axis in axes)
        require(fits, "axes must hold {} coordinates of at least 0, got {}", pairs, self.axes)
        factor = checks.number("attention_factor", self.attention_factor, float32=True)
        checks.one_of("precision", self.precision, ("exact", "float32"))
        values = {"cycles": tuple(self.cycles), "dim": dim, "axes": axes, "attention_factor": factor}
        # Every call of a jitted function hashes its static arguments, and hashing all cycles each time would be slow.
        values["_key"] = (*values.values(), self.precision)
        values["_hash"] = hash(values["_key"])
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the fields but not the hash, because hashes of strings differ between processes."""
        return Frequencies, (self.cycles, self.dim, self.axes, self.attention_factor, self.precision)

    @property
    def _axes(self) -> tuple[int, ...]:
        assert self.axes is not None
        return self.axes

    def __hash__(self) -> int:
        """Hashes by value, because equal spectra are interchangeable."""
        return self._hash  # type: ignore[attr-defined]

    def __eq__(self, other: object) -> bool:
        """Compares all fields."""
        if not isinstance(other, Frequencies):
            return NotImplemented
        return self is other or self._key == other._key  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        """One line with the first and the last frequency."""
        if not self.dim:
            return "Frequencies(dim=0)"
        w = self.angular
        rest = f", num_axes={self.num_axes}" if self.num_axes > 1 else ""
        rest += f", attention_factor={self.attention_factor}" if self.attention_factor != 1 else ""
        rest += ", precision='float32'" if self.precision == "float32" else ""
        return f"Frequencies(dim={self.dim}, angular={w[0]:.6g} … {w[-1]:.6g}{rest})"

    @property
    def num_pairs(self) -> int:
        """The number of (sine, cosine) pairs."""
        return len(self.cycles)

    @property
    def num_axes(self) -> int:
        """The number of coordinates of a position. If it is above 1, positions have a last axis of this size."""
        return max(self._axes, default=0) + 1

    @property
    def angular(self) -> np.ndarray:
        r"""$\omega_i$ in radians per unit of position, float64 of shape (num_pairs,)."""
        return fixed_point.angular_from_cycles(self.cycles)

    @property
    def wavelengths(self) -> np.ndarray:
        r"""$2\pi/\omega_i$ in positions per cycle, float64 of shape (num_pairs,); inf where $\omega_i = 0$."""
        return np.array([(1 << fixed_point.CYCLE_BITS) / t if t else math.inf for t in self.cycles])

    def with_precision(self, precision: Precision) -> Frequencies:
        """Returns the same spectrum with another precision: "exact", or "float32" to reproduce float32 references."""
        return dataclasses.replace(self, precision=precision)

    @public
    def with_attention_factor(self, attention_factor: float) -> Frequencies:
        """Returns the same spectrum with another amplitude."""
        return dataclasses.replace(self, attention_factor=attention_factor)

    @public
    def __getitem__(self, index: slice | Sequence[int] | np.ndarray) -> Frequencies:
        """Returns the selected pairs, in the order of the index: `f[::2]`, `f[:8]`, `f[[1, 0]]`.

        Raises:
          TypeError: if index is neither a slice nor a sequence of integers.
          ValueError: if the width is odd, or if the index names a pair that does not exist.
        """
        require(self.dim % 2 == 0, "frequencies must have an even dim to choose pairs, got {}", self.dim)
        pairs = range(self.num_pairs)
        if isinstance(index, slice):
            try:
                chosen = list(pairs[index])
            except (TypeError, ValueError) as error:
                raise wrong_type(
                    f"index must be a slice of integers, with a step other than 0, got {index!r:.60}"
                ) from error
        else:
            indices = checks.sequence("index", index, "integers, or a slice")
            chosen = [checks.integer(f"index[{i}]", pair) for i, pair in enumerate(indices)]
            fits = all(-self.num_pairs <= pair < self.num_pairs for pair in chosen)
            require(fits, "index must name pairs below {}, got {}", self.num_pairs, chosen)
        cycles, axes = (tuple(values[pair] for pair in chosen) for values in (self.cycles, self._axes))
        return dataclasses.replace(self, cycles=cycles, dim=2 * len(chosen), axes=axes)

    @public
    def with_angular(self, angular: Sequence[float] | np.ndarray) -> Frequencies:
        r"""Returns a spectrum with other frequencies $\omega_i$: one number per pair, in radians per position.

        Each number is taken at its exact value. The float32 frequencies of a reference implementation contain rounding
        errors, which grow to 2e-4 at position 4,095. With the `inv_freq` of a model,
        `f.with_angular(inv_freq).with_precision("float32")` reproduces the model to 1e-6.

        Raises:
          TypeError: if angular is not a sequence of numbers.
          ValueError: if angular does not hold one number per pair, or a number is not finite.
        """
        cycles = cycles_of("angular", angular)
        if len(cycles) != self.num_pairs:
            raise invalid(f"angular must hold {self.num_pairs} numbers, one for each pair, got {len(cycles)}")
        return dataclasses.replace(self, cycles=cycles)


AnyFrequencies = Frequencies | jax.Array  # parsed: exact, or an array of angular frequencies


def _cycles(angular: Decimal) -> int:
    """Converts radians to units of 2⁻¹²⁸ cycle."""
    scaled = DECIMAL.divide(DECIMAL.multiply(angular, Decimal(1 << fixed_point.CYCLE_BITS)), TWO_PI)
    return int(DECIMAL.to_integral_value(scaled))  # independent of the caller's decimal context


def cycles_of(name: str, angular: Any) -> tuple[int, ...]:
    """A sequence of ω at their exact values, in units of 2⁻¹²⁸ cycle."""
    values = checks.sequence(name, angular, "numbers")
    for w in (angular, *values):
        checks.refuse_narrow_frequencies(name, w)
    numbers = [checks.number(name, w) for w in values]
    return limited(name, angular, tuple(_cycles(Decimal(w)) for w in numbers))


@functools.lru_cache(maxsize=256)
def geometric_cycles(pairs: int, base: float | Decimal, numerator: int, denominator: int) -> tuple[int, ...]:
    """ω_i = base^(−i·numerator/denominator) in units of 2⁻¹²⁸ cycle, computed to 60 digits."""
    exponent = DECIMAL.divide(Decimal(-numerator), Decimal(denominator))
    ratio = DECIMAL.power(Decimal(base), exponent)
    angular, cycles = Decimal(1), []
    for _ in range(pairs):
        cycles.append(_cycles(angular))
        angular = DECIMAL.multiply(angular, ratio)
    return tuple(cycles)


@public
def geometric(dim: int, base: float = 10_000.0, *, endpoint: bool = False) -> Frequencies:
    r"""The geometric spectrum of the Transformer, $\omega_i = \text{base}^{-2i/\text{dim}}$.

    Examples:
      >>> import posenc_jax as pe
      >>> pe.geometric(4).angular.round(6).tolist()
      [1.0, 0.01]
      >>> pe.geometric(4, endpoint=True).angular.round(6).tolist()
      [1.0, 0.0001]

    Args:
      dim: the number of features. An odd width has (dim + 1)/2 pairs and drops the last cosine. A width of 0 is for a
        layer without positions (NoPE): `rotary` then rotates nothing, and encodings have no features.
      base: the base of the frequencies, positive and finite.
      endpoint: whether the last frequency is exactly 1/base, $\omega_i = \text{base}^{-i/(n-1)}$ for $n$ pairs, as in
        Tensor2Tensor, the Flax examples and diffusion models. A single pair has $\omega_0 = 1$.

    Returns:
      Frequencies of (dim + 1)//2 pairs, correct to 2⁻¹²⁸ cycle per position.

    Raises:
      TypeError: if dim is not an integer, base is not a number or endpoint is not a bool.
      ValueError: if dim is not from 0 to 2²⁰, or if base is not positive and finite or is so small that a pair would
        reach 2²⁸ cycles per position.

    Notes:
      Wavelengths grow from $2\pi$ to $2\pi\cdot\text{base}^{(d-2)/d}$ positions for $d$ = dim, one step short of
      $2\pi\cdot\text{base}$. With endpoint, the last wavelength is $2\pi\cdot\text{base}$.

    Reference:
      Vaswani et al., "Attention Is All You Need", 2017, section 3.5.
    """
    return from_base(checks.size("dim", dim, 0), base, endpoint)


def from_base(dim: int, base: float, endpoint: bool = False) -> Frequencies:
    """`geometric` for a width that has been checked."""
    if isinstance(unwrap_array(base), jax.Array):
        step = (
            f"jnp.arange({(dim + 1) // 2}) / {max((dim - 1) // 2, 1)}"
            if endpoint
            else f"jnp.arange(0, {dim}, 2) / {dim}"
        )
        array = f"as frequencies, pass the array base ** (-{step})"
        raise wrong_type(f"base must be a number, got {describe(base)}; where base is an array, {array}")
    return _from_base(dim, checks.positive("base", base), checks.flag("endpoint", endpoint))


# Repeated eager calls with a width instead of `Frequencies` take one object, which is checked and hashed once.
@functools.lru_cache(maxsize=256)
def _from_base(dim: int, base: float, endpoint: bool) -> Frequencies:
    pairs = (dim + 1) // 2
    step = (1, max(pairs - 1, 1)) if endpoint else (2, max(dim, 1))
    return Frequencies(limited("base", base, geometric_cycles(pairs, base, *step)), dim)


def limited(name: str, value: Any, cycles: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the cycles, which follow from the named argument; raises unless all are below the limit."""
    fastest = max(map(abs, cycles), default=0)
    require(fastest < LIMIT, "{} must keep every pair below 2²⁸ cycles per position, got {!r:.60}", name, value)
    return cycles
