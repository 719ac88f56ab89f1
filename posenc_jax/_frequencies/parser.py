r"""Parses widths, frequencies, and the positions that they encode."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posenc_jax._frequencies.frequencies import AnyFrequencies, Frequencies, cycles_of, geometric
from posenc_jax._jax import checks
from posenc_jax._jax.arrays import unwrap_array
from posenc_jax._jax.errors import describe, invalid, require, require_type, wrong_type

F = TypeVar("F", bound=AnyFrequencies)

# The shapes of frequencies that are an array, by rank.
SHAPES = "(num_pairs,)", "(axes, num_pairs)", "(heads, axes, num_pairs)"


def parse(frequencies: Any, *, even: bool = False, unsharded: bool = False, ndim: int = 1) -> AnyFrequencies:
    """Converts a width to Frequencies; accepts Frequencies and float arrays of ω as they are.

    `even` requires an even width; `unsharded` requires that no Explicit axis of a mesh shards the axes and pairs of an
    array; `ndim` is the highest rank of an array, of those in `SHAPES`. NumPy's float64 ω where JAX has none, of one
    axis, become Frequencies: rounded, they would be off at large positions.
    """
    frequencies = unwrap_array(frequencies)
    if isinstance(frequencies, (int, np.integer)) and not isinstance(frequencies, bool):
        frequencies = geometric(checks.size("frequencies (a width)", frequencies, 0))
    if isinstance(frequencies, Frequencies):
        require(not (even and frequencies.dim % 2), "frequencies must have an even dim, got {}", frequencies.dim)
        return frequencies
    expected = "Frequencies, an integer width or a float array of angular frequencies"
    require_type(isinstance(frequencies, (jax.Array, np.ndarray)), "frequencies", expected, frequencies)
    needs_x64 = checks.needs_x64(frequencies)
    x: Any = frequencies if needs_x64 else checks.array("frequencies", frequencies, checks.FREQUENCIES)
    shapes, fits = " or ".join(SHAPES[:ndim]), 1 <= x.ndim <= ndim and all(n != 0 for n in x.shape[:-1])
    require(fits, "frequencies as an array must have shape {}, got {}", shapes, x.shape)
    if needs_x64:
        message = "frequencies must be float32 if they have several axes and jax_enable_x64 is off, got {}"
        require(x.ndim == 1, message, describe(x))
        return Frequencies(cycles_of("frequencies", x), 2 * x.size)
    checks.require_static_size("frequencies", x.shape, *range(x.ndim))
    for axis in range(1, 1 + min(2, x.ndim) * unsharded):
        checks.unsharded("frequencies", x, -axis)
    return checks.on_device(x)


def parse_static(frequencies: Any, *, even: bool = False) -> Frequencies:
    """`parse` that rejects arrays, for spectra and for settings of modules, where an array would become state."""
    frequencies, expected = unwrap_array(frequencies), "Frequencies or an integer width"
    if isinstance(frequencies, (jax.Array, np.ndarray)):
        raise wrong_type(f"frequencies must be {expected}, got an array")
    fits = isinstance(frequencies, (Frequencies, int, np.integer)) and not isinstance(frequencies, bool)
    require_type(fits, "frequencies", expected, frequencies)
    return cast(Frequencies, parse(frequencies, even=even))


def num_axes_of(frequencies: AnyFrequencies) -> int:
    """The number of coordinates of a position."""
    if isinstance(frequencies, Frequencies):
        return frequencies.num_axes
    return frequencies.shape[-2] if frequencies.ndim > 1 else 1


def one_axis(frequencies: F) -> F:
    """Returns the frequencies; raises if they have several axes."""
    axes = num_axes_of(frequencies)
    require(axes == 1, "frequencies must have one axis, got {}", axes)
    return frequencies


def parse_positions(name: str, positions: Any, frequencies: AnyFrequencies) -> jax.Array:
    """Converts positions to integers or floats (..., num_axes), whose last axis holds the coordinates."""
    positions = checks.array(name, positions)
    if not isinstance(frequencies, Frequencies):
        spec, frequencies_spec = (jax.typeof(x).sharding.spec for x in (positions, frequencies))
        checks.sharded_together({name: (*spec, None), "frequencies": frequencies_spec[-1:]})
    return parse_coordinates(name, positions, num_axes_of(frequencies), " of the frequencies")


def parse_coordinates(name: str, positions: Any, num_axes: int, of: str = "") -> jax.Array:
    """Checked positions as (..., num_axes), whose last axis holds the coordinates; all are equal if it has size 1."""
    if num_axes == 1:
        if not isinstance(positions, jax.Array):  # stays NumPy's: JAX would compile a program for each shape
            return positions[..., None]
        return lax.expand_dims(positions, (positions.ndim,))  # eagerly faster than an index
    if positions.shape[-1:] not in ((num_axes,), (1,)):
        axis = f"a last axis of size {num_axes}, one coordinate for each axis{of}"
        ways = f"pass {name}[..., None] if all coordinates are equal, as in text"
        if positions.ndim > 1 and positions.shape[0] == num_axes:
            ways += f", or jnp.moveaxis({name}, 0, -1) if the first axis holds the coordinates"
        raise invalid(f"{name} must have {axis}, got shape {positions.shape}; {ways}")
    checks.unsharded(name, positions)
    module: Any = jnp if isinstance(positions, jax.Array) else np
    return module.broadcast_to(positions, (*positions.shape[:-1], num_axes))


def dim_of(frequencies: AnyFrequencies) -> int:
    """The number of features."""
    return frequencies.dim if isinstance(frequencies, Frequencies) else 2 * frequencies.shape[-1]


def amplitude_of(frequencies: AnyFrequencies) -> float:
    """The amplitude of the sines and cosines."""
    return frequencies.attention_factor if isinstance(frequencies, Frequencies) else 1.0


def check_energy(frequencies: AnyFrequencies, times: float) -> None:
    """Raises if a sum of `times` squared amplitudes, such as a dot product of encodings, overflows float32."""
    amplitude, allowed = amplitude_of(frequencies), f"whose square float32 holds {times:g} times"
    if times * amplitude**2 > float(np.finfo(np.float32).max):
        raise invalid(f"frequencies must have an attention_factor {allowed}, got {amplitude}")


# Arguments of scalings


def parse_even_width(dim: Any, least: int = 2) -> int:
    """`dim` as an even number of features, 0 or from `least` to 2²⁰."""
    dim = checks.integer("dim", dim)
    fits = dim == 0 or dim % 2 == 0 and least <= dim <= 2**20
    require(fits, "dim must be 0, or even and from {} to 2²⁰, got {}", least, dim)
    return dim


def parse_growth(factor: Any) -> Fraction:
    """The factor of a context extension, at least 1."""
    result = checks.number("factor", factor)
    require(result >= 1, "factor must be at least 1, got {}", result)
    return Fraction(result)


# Positions beside the vectors that they belong to


def parse_positions_of(
    name: str,
    positions: Any,
    x_name: str,
    x: jax.Array,
    frequencies: AnyFrequencies,
    rows_name: str,
    *,
    heads: tuple[int, ...] = (),
    shared: bool = False,
    hint: str = "",
) -> jax.Array | None:
    """Positions (..., axes) that broadcast to x without its last axis and its head axes; None if they are counted.

    `shared` allows one position for a whole sequence, as an offset is, and None for one token; `hint` ends the error
    about such a position.
    """
    rows = shape_of_rows(x, heads)
    if positions is None:
        axes = num_axes_of(frequencies)
        require(rows or axes > 1, "{} must be given where {} has no sequence axis, shape {}", name, x_name, x.shape)
        require(axes == 1, "{} must be given for frequencies of {} axes, got None", name, axes)
        checks.countable(x_name, rows[-1])
        if not shared:
            refuse_no_position(name, x_name, x, rows)
        return None
    _refuse_ambiguous_axes(name, unwrap_array(positions), rows, num_axes_of(frequencies))
    width_hint = f"; for a width, pass frequencies={positions}" if type(positions) is int else ""
    positions = parse_positions(name, positions, frequencies)
    require_rows_fit(name, positions, x_name, x, rows_name, heads)
    if not shared:
        refuse_one_position(name, positions.shape[:-1], x_name, rows, hint + width_hint, axes=positions.shape[-1])
    return positions


def refuse_no_position(name: str, x_name: str, x: jax.Array, rows: tuple[int, ...]) -> None:
    """Raises if x holds one token: a decode step that forgot its position would be at 0."""
    if isinstance(rows[-1], int) and rows[-1] == 1:
        ways = "pass the position of a decode step, or 0 for a prompt of one token"
        raise invalid(f"{name} must be given where {x_name} holds one token, shape {x.shape}, got None: {ways}")


def refuse_one_position(
    name: str,
    shape: tuple[int, ...],
    x_name: str,
    rows: tuple[int, ...],
    hint: str = "",
    axes: int = 1,
    positions: str = "",
) -> None:
    """Raises if positions of this shape, without coordinates, give all vectors of a sequence one position."""
    if rows and isinstance(rows[-1], int) and rows[-1] > 1 and shape[-1:] in ((), (1,)):
        shape, target = ((*each, axes) if axes > 1 else each for each in (shape, rows))
        ways = f"if they share it, use jnp.broadcast_to({positions or name}, {target}){hint}"
        raise invalid(f"{name} must not be one for all {rows[-1]} vectors of {x_name}, got shape {shape}: {ways}")


def _refuse_ambiguous_axes(name: str, positions: Any, rows: tuple[int, ...], axes: int) -> None:
    """Raises if the last axis may hold coordinates or one position for each row, or if the first holds coordinates."""
    shape = positions.shape if checks.is_array(positions) else ()
    if axes == 1 or shape[-1:] not in ((1,), (axes,)):
        return
    message = (
        "{} of shape {} must have {} axes with frequencies of {} axes, the last for the coordinates; pass "
        "{}[..., None] if all coordinates are equal, as in text"
    )
    is_ambiguous = math.prod(shape) != 1 and checks.broadcasts(shape, rows)
    require(not is_ambiguous, message, name, shape, len(rows) + 1, axes, name)
    is_first = shape[:1] == (axes,) and not checks.broadcasts(shape[:-1], rows) and checks.broadcasts(shape[1:], rows)
    message = "{} of shape {} must have the axis of coordinates last; pass jnp.moveaxis({}, 0, -1)"
    require(not is_first, message, name, shape, name)


def shape_of_rows(x: jax.Array, heads: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of x without its last axis and its head axes."""
    return tuple(n for axis, n in enumerate(x.shape[:-1]) if axis not in heads)


def require_rows_fit(
    name: str,
    positions: jax.Array,
    x_name: str,
    x: jax.Array,
    rows_name: str,
    heads: tuple[int, ...],
    trailing_axes: int = 1,
) -> None:
    """Raises unless positions, without the last `trailing_axes`, broadcast to the rows of x and are sharded alike."""
    leading_name = name if trailing_axes == 1 else f"{name} without their last {trailing_axes} axes,"
    checks.broadcastable(leading_name, positions.shape[:-trailing_axes], rows_name, shape_of_rows(x, heads))
    spec: list[Any] = [None] * x.ndim
    row_axes = [axis for axis in range(x.ndim - 1) if axis not in heads]
    leading_spec = jax.typeof(positions).sharding.spec[:-trailing_axes]
    for axis, mesh_axes in zip(row_axes[::-1], leading_spec[::-1], strict=False):
        spec[axis] = mesh_axes
    checks.sharded_together({name: tuple(spec), x_name: tuple(jax.typeof(x).sharding.spec)})
