r"""How fast each pair of features turns: `Frequencies`, and the spectra that models use."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posenc_jax import _check, _mesh, _phase

Layout = Literal["interleaved", "half"]
Precision = Literal["exact", "float32"]

DECIMAL = Context(prec=60)
LIMIT = 1 << (_phase.TURN_BITS + 28)  # ω below 1.6e9: more than a turn has no place in a float's fraction
TWO_PI = Decimal("6.28318530717958647692528676655900576839433879875021164194988918461563281257241799")


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Frequencies:
    r"""How fast each pair of features turns, which coordinate of the position turns it, and the amplitude.

    Feature pair $i$ of an encoding is $a\,(\sin \omega_i p_{c_i}, \cos \omega_i p_{c_i})$ for a position $p$. The
    $\omega_i$ are held exactly (to $2^{-128}$ turn a position), so that phases are right at every int32 position.

    Immutable, hashable and without arrays: static under `jax.jit`, safe as a plain attribute of a Flax module.
    Usually made by `geometric` or `axial`.

    Args:
      turns: $\omega_i / 2\pi$, turns a unit of position, as integers in units of $2^{-128}$ turn.
      dim: features covered, 2 × pairs, or one less: the last cosine is dropped.
      axes: the coordinate $c_i$ that drives each pair; `None` for positions of one coordinate.
      attention_factor: the amplitude $a$ of sine and cosine.
      precision: "exact", or "float32" to reproduce what float32 references compute: float32 $\omega$, float32 product.

    Raises:
      TypeError: if dim or attention_factor is not a number.
      ValueError: if the arguments do not fit each other, or a pair turns 2²⁸ times a position or faster.

    Examples:
      >>> import posenc_jax as pe
      >>> f = pe.geometric(6)
      >>> f.dim, f.num_pairs, f.num_axes
      (6, 3, 1)
      >>> [round(float(w), 4) for w in 1 / f.angular]
      [1.0, 21.5443, 464.1589]
    """

    turns: tuple[int, ...]
    dim: int
    axes: tuple[int, ...] | None = None
    attention_factor: float = 1.0
    precision: Precision = "exact"

    def __post_init__(self):
        """Checks the fields, each and against each other, and hashes them once."""
        where = "Frequencies"
        pairs = len(_check.sequence(where, "turns", self.turns, "integers"))
        if not all(isinstance(t, int) and abs(t) < LIMIT for t in self.turns):
            raise ValueError(f"{where}: turns must be integers below 2²⁸ turns a position, in units of 2⁻¹²⁸")
        if _check.positive_int(where, "dim", self.dim) not in (2 * pairs, 2 * pairs - 1):
            expected = f"{2 * pairs} or {2 * pairs - 1}"
            raise ValueError(f"{where}: dim must be {expected} for {pairs} pairs, got {self.dim}")
        axes = (0,) * pairs if self.axes is None else _check.sequence(where, "axes", self.axes, "integers")
        if len(axes) != pairs or not all(isinstance(axis, int) and axis >= 0 for axis in axes):
            raise ValueError(f"{where}: axes must hold {pairs} coordinates of at least 0, got {self.axes}")
        factor = _check.number(where, "attention_factor", self.attention_factor)
        if abs(factor) > float(np.finfo(np.float32).max):
            raise ValueError(f"{where}: attention_factor must fit into float32, got {factor}")
        _check.one_of(where, "precision", self.precision, ("exact", "float32"))
        values = {"turns": tuple(self.turns), "dim": int(self.dim), "axes": axes, "attention_factor": factor}
        # Hashed at every call of a jitted function: the turns are many, so only once.
        values["_key"] = (*values.values(), self.precision)
        values["_hash"] = hash(values["_key"])
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __reduce__(self):
        """By the fields alone: hashes of strings differ between processes."""
        return Frequencies, (self.turns, self.dim, self.axes, self.attention_factor, self.precision)

    @property
    def _axes(self) -> tuple[int, ...]:
        assert self.axes is not None
        return self.axes

    def __hash__(self):
        """Of the value: equal spectra are interchangeable."""
        return self._hash  # type: ignore[attr-defined]

    def __eq__(self, other):
        """Equal when all fields are."""
        if not isinstance(other, Frequencies):
            return NotImplemented
        return self is other or self._key == other._key  # type: ignore[attr-defined]

    def __repr__(self):
        """A line: the spectrum is too long to print."""
        w = self.angular
        rest = f", num_axes={self.num_axes}" if self.num_axes > 1 else ""
        rest += f", attention_factor={self.attention_factor}" if self.attention_factor != 1 else ""
        rest += ", precision='float32'" if self.precision == "float32" else ""
        return f"Frequencies(dim={self.dim}, angular={w[0]:.6g} … {w[-1]:.6g}{rest})"

    @property
    def num_pairs(self) -> int:
        """The number of (sine, cosine) pairs."""
        return len(self.turns)

    @property
    def num_axes(self) -> int:
        """The number of coordinates of a position; positions have a trailing axis of this size when it is over 1."""
        return max(self._axes) + 1

    @property
    def angular(self) -> np.ndarray:
        r"""$\omega_i$ in radians a unit of position, float64, shape (num_pairs,)."""
        return _phase.angular_from_turns(self.turns)

    @property
    def wavelengths(self) -> np.ndarray:
        r"""$2\pi/\omega_i$ in positions a turn, float64, shape (num_pairs,); inf where a pair does not turn."""
        return np.array([(1 << _phase.TURN_BITS) / t if t else math.inf for t in self.turns])

    def with_precision(self, precision: Precision) -> Frequencies:
        """The same spectrum, computed as "exact" or as "float32" references do."""
        return dataclasses.replace(self, precision=precision)

    def with_angular(self, angular: Sequence[float] | np.ndarray) -> Frequencies:
        r"""The same, but for other $\omega_i$: a number for each pair, taken at its exact value.

        A reference's float32 frequencies are a few roundings off, which position 4,095 makes 2e-4 of: with the
        `inv_freq` of a model, `f.with_angular(inv_freq).with_precision("float32")` reproduces it to 1e-6.

        Raises:
          TypeError: if it is not a sequence of numbers.
          ValueError: if they are not one for each pair, or not finite.
        """
        where = "Frequencies.with_angular"
        values = [_check.number(where, "angular", w) for w in _check.sequence(where, "angular", angular, "numbers")]
        if len(values) != self.num_pairs:
            raise ValueError(
                f"{where}: angular must hold {self.num_pairs} numbers, one for each pair, got {len(values)}"
            )
        return dataclasses.replace(self, turns=tuple(_turns(Decimal(w)) for w in values))


def _turns(angular: Decimal) -> int:
    """Radians to units of 2⁻¹²⁸ turn."""
    scaled = DECIMAL.divide(DECIMAL.multiply(angular, Decimal(1 << _phase.TURN_BITS)), TWO_PI)
    return int(DECIMAL.to_integral_value(scaled))  # not by the rounding of the caller's context


@functools.lru_cache(maxsize=256)
def spectrum(pairs: int, base: float | Decimal, numerator: int, denominator: int) -> tuple[int, ...]:
    """ω_i = base^(−i·numerator/denominator) to 60 digits, in turns."""
    exponent = DECIMAL.divide(Decimal(-numerator), Decimal(denominator))
    ratio = DECIMAL.power(Decimal(base), exponent)
    angular, turns = Decimal(1), []
    for _ in range(pairs):
        turns.append(_turns(angular))
        angular = DECIMAL.multiply(angular, ratio)
    return tuple(turns)


def geometric(dim: int, base: float = 10_000.0, *, endpoint: bool = False) -> Frequencies:
    r"""The geometric spectrum of the Transformer, $\omega_i = \text{base}^{-2i/\text{dim}}$.

    Wavelengths run from $2\pi$ to $2\pi\cdot\text{base}^{(d-2)/d}$, one step short of $2\pi\cdot\text{base}$.

    Args:
      dim: number of features, at least 1. An odd width has (dim + 1)/2 pairs and drops the last cosine.
      base: positive and finite.
      endpoint: space the pairs to end at exactly 1/base, $\omega_i = \text{base}^{-i/(n-1)}$ for $n$ pairs, as
        Tensor2Tensor, the Flax examples and diffusion models do. A single pair has $\omega_0 = 1$.

    Returns:
      Frequencies of (dim + 1)//2 pairs, correct to 2⁻¹²⁸ turn.

    Raises:
      TypeError: if dim is not an integer, base not a number or endpoint not a bool.
      ValueError: if dim is not from 1 to 2²⁰, base is not positive and finite, or so small that a pair would turn 2²⁸
        times a position.

    Examples:
      >>> import posenc_jax as pe
      >>> pe.geometric(4).angular.round(6).tolist()
      [1.0, 0.01]
      >>> pe.geometric(4, endpoint=True).angular.round(6).tolist()
      [1.0, 0.0001]

    Reference:
      Vaswani et al., "Attention Is All You Need", 2017, section 3.5.
    """
    return from_base("geometric", _check.size("geometric", "dim", dim), base, endpoint)


def from_base(where: str, dim: int, base: float, endpoint: bool = False) -> Frequencies:
    """`geometric` of a width that was checked, by the name of another function."""
    base, pairs = _check.positive(where, "base", base), (dim + 1) // 2
    step = (1, max(pairs - 1, 1)) if _check.flag(where, "endpoint", endpoint) else (2, dim)
    return Frequencies(limited(where, "base", base, spectrum(pairs, base, *step)), dim)


def limited(where: str, name: str, value: Any, turns: tuple[int, ...]) -> tuple[int, ...]:
    """The turns that an argument gives, if they are below the limit."""
    if max(map(abs, turns)) >= LIMIT:
        raise ValueError(f"{where}: {name} must let no pair turn 2²⁸ times a position, got {value!r:.60}")
    return turns


def resolve(where: str, frequencies: Any, *, even: bool = False, whole: bool = False) -> Frequencies | jax.Array:
    """What a `frequencies` argument means: Frequencies, a width, or a float array of ω (num_pairs,), possibly whole."""
    if isinstance(frequencies, (int, np.integer)) and not isinstance(frequencies, bool):
        frequencies = geometric(_check.size(where, "frequencies (a width)", frequencies))
    if isinstance(frequencies, Frequencies):
        if even and frequencies.dim % 2:
            raise ValueError(f"{where}: frequencies must have an even dim, got {frequencies.dim}")
        return frequencies
    if not isinstance(frequencies, (jax.Array, np.ndarray)):
        raise TypeError(
            f"{where}: frequencies must be Frequencies, an integer width or a float array of angular frequencies, "
            f"got {_check.describe(frequencies)}"
        )
    result = _check.array(where, "frequencies", frequencies, "a float array")
    if result.ndim != 1 or not result.size:
        raise ValueError(f"{where}: frequencies as an array must have shape (num_pairs,), got {result.shape}")
    _check.known_size(where, "frequencies", result.shape, 0)
    if whole:
        _check.whole(where, "frequencies", result)
    return jnp.asarray(result)


def resolve_static(where: str, frequencies: Any) -> Frequencies:
    """The same for a module's setting, which cannot be an array: that would become its state."""
    if isinstance(frequencies, (jax.Array, np.ndarray)):
        raise TypeError(f"{where}: frequencies must be Frequencies or an integer width, got an array")
    result = resolve(where, frequencies)
    assert isinstance(result, Frequencies)
    return result


def dim_of(frequencies: Frequencies | jax.Array) -> int:
    """The number of features."""
    return frequencies.dim if isinstance(frequencies, Frequencies) else 2 * frequencies.shape[0]


def amplitude_of(frequencies: Frequencies | jax.Array) -> float:
    """The factor of sines and cosines."""
    return frequencies.attention_factor if isinstance(frequencies, Frequencies) else 1.0


def check_energy(where: str, frequencies: Frequencies | jax.Array, times: float) -> None:
    """Raises where float32 cannot hold so many times the square of the amplitude: a sum of products of two waves."""
    amplitude = amplitude_of(frequencies)
    if times * amplitude**2 > float(np.finfo(np.float32).max):
        message = f"an attention_factor whose square float32 holds {times:g} times, got {amplitude}"
        raise ValueError(f"{where}: frequencies must have {message}")


def positions_of(where: str, name: str, positions: Any, frequencies: Frequencies | jax.Array) -> jax.Array:
    """A `positions` argument as int32 or float, with one trailing axis of coordinates: (..., num_axes)."""
    positions = jnp.asarray(_check.array(where, name, positions))
    num_axes = frequencies.num_axes if isinstance(frequencies, Frequencies) else 1
    if not isinstance(frequencies, Frequencies):
        places, pairs = (jax.typeof(x).sharding.spec for x in (positions, frequencies))
        _check.together(where, {name: (*places, None), "frequencies": tuple(pairs)})
    if num_axes == 1:
        return positions[..., None]
    if positions.ndim < 1 or positions.shape[-1] != num_axes:
        raise ValueError(
            f"{where}: {name} must have a last axis of size {num_axes}, one coordinate for each axis of the "
            f"frequencies, got shape {positions.shape}"
        )
    _check.whole(where, name, positions)
    return positions


def counted(x: jax.Array, axis: int) -> jax.Array:
    """0, 1, 2, … along an axis of x, of its rank; on a mesh with Explicit axes sharded as that axis is."""
    shape = [n if i == axis else 1 for i, n in enumerate(x.shape)]
    spec = (s if i == axis else None for i, s in enumerate(jax.typeof(x).sharding.spec))
    return lax.broadcasted_iota(jnp.int32, shape, axis, out_sharding=_mesh.sharding(spec, x))


def has_derivatives(positions: jax.Array, frequencies: Frequencies | jax.Array) -> bool:
    """Whether waves have: integers and static frequencies give none."""
    return jnp.issubdtype(positions.dtype, jnp.floating) or not isinstance(frequencies, Frequencies)


def is_shared(x: jax.Array, positions: jax.Array) -> bool:
    """Whether each position, of (..., axes), serves so many vectors of x that a table of its waves pays."""
    sizes = zip(x.shape[:-1], positions.shape, strict=False)
    return math.prod(n for n, m in sizes if m == 1 and isinstance(n, int)) >= 4


def _waves(positions: jax.Array, frequencies: Frequencies | jax.Array, expand: Any, quarter: Any) -> jax.Array:
    """The sine of ω·p + quarter·π/2 for each column; `expand` makes columns of something for each pair."""
    if not isinstance(frequencies, Frequencies):
        return _phase.wave(positions, expand(frequencies), quarter)
    column = expand(np.arange(1, frequencies.num_pairs + 1))  # 0 where there is none
    each = (0, *frequencies.turns)
    turns = tuple(each[i] for i in column)
    axes = _check.align(np.pad(np.array(frequencies.axes), (1, 0))[column], positions.ndim)
    coordinate = positions[..., :1]
    for axis in range(1, frequencies.num_axes):  # a select for each axis: it fuses, a gather does not
        coordinate = jnp.where(axes == axis, positions[..., axis : axis + 1], coordinate)
    wave = _phase.wave if frequencies.precision == "exact" else _phase.wave_float32
    result = wave(coordinate, turns, quarter)
    amplitude = frequencies.attention_factor
    return result if amplitude == 1 else _phase.product(result, jnp.asarray(amplitude, jnp.float32))


def features(
    positions: jax.Array,
    frequencies: Frequencies | jax.Array,
    layout: Layout,
    quarter: np.ndarray | None = None,
    margin: tuple[int, int] = (0, 0),
) -> jax.Array:
    """The encoding, float32 (..., dim), of positions (..., num_axes): one elementwise expression.

    `quarter` says for each feature which wave of its pair it is: sin(ω·p + quarter·π/2). `margin` is a number of
    columns of no frequency before and after them.
    """
    dim = dim_of(frequencies)
    if quarter is None:
        quarter = np.arange(dim) % 2 if layout == "interleaved" else np.arange(dim) // ((dim + 1) // 2)

    def expand(x):
        # Along an axis of its own, which keeps the sharding of x on a mesh with Explicit axes.
        twice = (x[:, None].repeat(2, axis=1) if layout == "interleaved" else x[None].repeat(2, axis=0)).reshape(-1)
        return (np if isinstance(x, np.ndarray) else jnp).pad(twice[:dim], margin) if any(margin) else twice[:dim]

    return _waves(positions, frequencies, expand, np.pad(quarter, margin))


def pairs(positions: jax.Array, frequencies: Frequencies | jax.Array, quarter: np.integer) -> jax.Array:
    """One wave of each pair, float32 (..., num_pairs): sin(ω·p + quarter·π/2)."""
    return _waves(positions, frequencies, lambda x: x, quarter)
