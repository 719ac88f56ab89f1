"""Joint checks of arguments: one parser for each family of functions.

Each parser returns the arguments as the computation takes them, so that the function itself reads as its formula.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from posenc_jax import _checks, _mesh
from posenc_jax._checks import Layout, invalid, require, wrong_type
from posenc_jax._frequencies import Spectrum, dim_of, num_axes_of, parse, parse_positions

# Scaled spectra


def parse_even_width(dim: Any, least: int = 2) -> int:
    """`dim` as an even number of features, 0 or from `least` to 2²⁰."""
    dim = _checks.integer("dim", dim)
    fits = dim == 0 or dim % 2 == 0 and least <= dim <= 2**20
    require(fits, "dim must be 0, or even and from {} to 2²⁰, got {}", least, dim)
    return dim


def parse_growth(factor: Any) -> Fraction:
    """The factor of a context extension, at least 1."""
    result = _checks.number("factor", factor)
    require(result >= 1, "factor must be at least 1, got {}", result)
    return Fraction(result)


# Encodings: of positions, by frequencies


def parse_encoding(
    positions: Any, frequencies: Any, layout: Any, name: str = "positions", even: bool = False
) -> tuple[jax.Array, Spectrum]:
    """Positions (..., axes), and frequencies."""
    _checks.layout("layout", layout)
    frequencies = parse(frequencies, even=even, unsharded=layout == "half")
    return parse_positions(name, positions, frequencies), frequencies


# Vectors that encodings are added to


def parse_added_encoding(
    x: Any, positions: Any, frequencies: Any, layout: Any
) -> tuple[jax.Array, jax.Array | None, Spectrum]:
    """x, positions (..., axes) or None, and frequencies, for an encoding that is added to x."""
    _checks.layout("layout", layout)
    x = _checks.floats("x", x, (..., "d_model"), known=(-1,))
    frequencies = parse(x.shape[-1] if frequencies is None else frequencies)
    check_same_width("x", x, frequencies, padded=True)
    return x, parse_positions_of("positions", positions, "x", x, frequencies, "x without its last axis"), frequencies


def parse_shift(encodings: Any, offset: Any, frequencies: Any, layout: Any) -> tuple[jax.Array, jax.Array, Spectrum]:
    """Encodings (..., dim), an offset (..., axes) that broadcasts to them, and frequencies."""
    _checks.layout("layout", layout)
    encodings = _checks.floats("encodings", encodings, (..., "dim"), known=(-1,))
    frequencies = parse(frequencies, even=True, unsharded=True)
    check_same_width("encodings", encodings, frequencies)
    if layout == "half":
        _checks.unsharded("encodings", encodings)
    # To `parse_positions_of`, None means 0, 1, …
    _checks.require_type(offset is not None, "offset", _checks.POSITIONS.text, offset)
    rows_of = "encodings without their last axis"
    offset = parse_positions_of("offset", offset, "encodings", encodings, frequencies, rows_of, shared=True)
    return encodings, cast(jax.Array, offset), frequencies


def check_same_width(name: str, x: jax.Array, frequencies: Spectrum, *, padded: bool = False) -> None:
    """Raises unless the frequencies have as many features as x; `padded` also allows one less, an even number."""
    width = dim_of(frequencies)
    fits = width == x.shape[-1] or padded and width == x.shape[-1] - 1 and width % 2 == 0
    require(fits, "frequencies of width {} must match {}, shape {}", width, name, x.shape)


def parse_positions_of(
    name: str,
    positions: Any,
    x_name: str,
    x: jax.Array,
    frequencies: Spectrum,
    rows_of: str,
    *,
    heads: tuple[int, ...] = (),
    shared: bool = False,
    hint: str = "",
) -> jax.Array | None:
    """Positions (..., axes) that broadcast to x without its last axis and its head axes; None if they are counted.

    `shared` allows one for a whole sequence, as an offset is, and None for one token; `hint` ends the error for one.
    """
    rows = shape_of_rows(x, heads)
    if positions is None:
        axes = num_axes_of(frequencies)
        require(rows or axes > 1, "{} must be given where {} has no sequence axis, shape {}", name, x_name, x.shape)
        require(axes == 1, "{} must be given for frequencies of {} axes, got None", name, axes)
        _checks.countable(x_name, rows[-1])
        if not shared:
            _refuse_no_position(name, x_name, x, rows)
        return None
    _refuse_two_readings(name, _checks.held(positions), rows, num_axes_of(frequencies))
    width = f"; for a width, pass frequencies={positions}" if type(positions) is int else ""
    positions = parse_positions(name, positions, frequencies)
    fits_beside(name, positions, x_name, x, rows_of, heads)
    if not shared:
        refuse_one_position(name, positions.shape[:-1], x_name, rows, hint + width, axes=positions.shape[-1])
    return positions


def _refuse_no_position(name: str, x_name: str, x: jax.Array, rows: tuple[int, ...]) -> None:
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
    """Raises if positions of this shape, without coordinates, put all vectors of a sequence at one place."""
    if rows and isinstance(rows[-1], int) and rows[-1] > 1 and shape[-1:] in ((), (1,)):
        shape, target = ((*each, axes) if axes > 1 else each for each in (shape, rows))
        ways = f"if they share it, use jnp.broadcast_to({positions or name}, {target}){hint}"
        raise invalid(f"{name} must not be one for all {rows[-1]} vectors of {x_name}, got shape {shape}: {ways}")


def _refuse_two_readings(name: str, positions: Any, rows: tuple[int, ...], axes: int) -> None:
    """Raises if a last axis may be that of coordinates, or that of one position for each row; or if a first axis is."""
    shape = getattr(positions, "shape", ())
    if axes == 1 or shape[-1:] not in ((1,), (axes,)):
        return
    message = (
        "{} of shape {} must have {} axes with frequencies of {} axes, the last for the coordinates; pass "
        "{}[..., None] if all coordinates are equal, as those of text are"
    )
    by_row = math.prod(shape) != 1 and _checks.broadcasts(shape, rows)
    require(not by_row, message, name, shape, len(rows) + 1, axes, name)
    first = shape[:1] == (axes,) and not _checks.broadcasts(shape[:-1], rows) and _checks.broadcasts(shape[1:], rows)
    message = "{} of shape {} must have the axis of coordinates last; pass jnp.moveaxis({}, 0, -1)"
    require(not first, message, name, shape, name)


def shape_of_rows(x: jax.Array, heads: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of x without its last axis and its head axes."""
    return tuple(n for axis, n in enumerate(x.shape[:-1]) if axis not in heads)


def fits_beside(
    name: str, positions: jax.Array, x_name: str, x: jax.Array, rows_of: str, heads: tuple[int, ...], own: int = 1
) -> None:
    """Raises unless positions (..., axes), or with so many own axes, broadcast to the rows of x, sharded alike."""
    said = name if own == 1 else f"{name} without their last {own} axes,"
    _checks.broadcastable(said, positions.shape[:-own], rows_of, shape_of_rows(x, heads))
    places: list[Any] = [None] * x.ndim
    of_rows = [axis for axis in range(x.ndim - 1) if axis not in heads]
    for axis, place in zip(of_rows[::-1], jax.typeof(positions).sharding.spec[:-own][::-1], strict=False):
        places[axis] = place
    _checks.sharded_together({name: tuple(places), x_name: tuple(jax.typeof(x).sharding.spec)})


# Rows of a table


def parse_table(x: Any) -> jax.Array:
    """Floats (length, dim), at least one row."""
    x = _checks.floats("table", x, ("length", "dim"))
    fits = x.ndim == 2 and x.shape[0] >= 1
    require(fits, "table must have shape (length, dim) with length at least 1, got {}", x.shape)
    return x


def parse_rows(positions: Any, length: int, out_of_range: Any) -> jax.Array:
    """Integer positions in a table of this length."""
    _checks.out_of_range("out_of_range", out_of_range)
    positions = _checks.array("positions", positions, _checks.INTEGERS)
    if out_of_range == "error":
        _checks.within(positions, 0, length - 1, f"positions must be from 0 to {length - 1}, got {{}} to {{}}")
    return positions


def check_rows_sharded_together(positions: jax.Array | None, table: jax.Array, **arrays: jax.Array) -> None:
    """Raises if positions, table and arrays shard the result differently."""
    specs = {name: tuple(jax.typeof(x).sharding.spec) for name, x in arrays.items()}
    if positions is not None:
        specs["positions"] = (*jax.typeof(positions).sharding.spec, None)
    # A lookup drops the table's row axis; a slice keeps it.
    spec = jax.typeof(table).sharding.spec
    _checks.sharded_together(specs | {"table": tuple(spec if positions is None else spec[1:])})


def parse_added_rows(
    x: Any, table: Any, positions: Any, out_of_range: Any
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """x, a table of its width, and integer positions or None, for rows that are added to x."""
    x, table = _checks.floats("x", x, (..., "d_model"), known=(-1,)), parse_table(table)
    _checks.known_size("table", table.shape, 0, 1)
    length, width = table.shape
    require(width == x.shape[-1], "table of width {} must match x, shape {}", width, x.shape)
    if positions is not None:
        positions = parse_rows(positions, length, out_of_range)
        _checks.broadcastable("positions", positions.shape, "x without its last axis", x.shape[:-1])
        refuse_one_position("positions", positions.shape, "x", x.shape[:-1])
    else:
        require(x.ndim > 1, "positions must be given where x has no sequence axis, shape {}", x.shape)
        _refuse_no_position("positions", "x", x, x.shape[:-1])
        _first_rows(x, table)
    check_rows_sharded_together(positions, table, x=x)
    return x, table, positions


def _first_rows(x: jax.Array, table: jax.Array) -> None:
    """Raises unless the table has a row for each position of the sequence."""
    length, seq = table.shape[0], x.shape[-2]
    try:
        longer = bool(seq > length)
    except Exception:  # InconclusiveDimensionOperation, whose import brings in Pallas
        size = f"of known size, or with a constraint such as 'seq <= {length}'"
        raise invalid(f"x must have a sequence {size}, got shape {x.shape}") from None
    require(not longer, "table of {} rows is too small for a sequence of {}", length, seq)
    if seq != length:
        _checks.unsharded("table", table, 0)


# Queries and keys that turn


def _hint(name: str, x: jax.Array, heads: tuple[int, ...]) -> str:
    """What else one position for a sequence may be meant as."""
    by_head = "" if heads or x.ndim < 3 else "; if axis -2 is that of heads, pass head_axis=-2"
    return by_head + ("; to move rotated keys, use shift_keys" if name == "x" else "")


def _turning(name: str, x: Any, layout: Any, head_axis: Any, part: Any) -> tuple[jax.Array, tuple[int, ...]]:
    """x, and its head axes counted from the front."""
    _checks.layout("layout", layout)
    _checks.part("part", part)
    axes = (..., "head_dim") if head_axis is None else (..., "heads", "head_dim")
    x = _checks.floats(name, x, axes, known=(-1,))
    return x, parse_head_axis(name, x, head_axis)


def parse_head_axis(name: str, x: jax.Array, head_axis: Any) -> tuple[int, ...]:
    """The head axes of x counted from the front, in their order; none for None."""
    if head_axis is None:
        return ()
    one, expected = not isinstance(head_axis, (tuple, list)), "an integer, a tuple of integers or None"
    axes = [_checks.integer("head_axis", axis, expected=expected) for axis in ([head_axis] if one else head_axis)]
    ok = all(-x.ndim <= axis < x.ndim and axis not in (-1, x.ndim - 1) for axis in axes)
    require(ok, "head_axis must be an axis of {} other than its last, shape {}, got {}", name, x.shape, head_axis)
    heads = {axis % x.ndim for axis in axes}
    require(len(heads) == len(axes), "head_axis must name each axis of {} once, got {}", name, head_axis)
    return tuple(sorted(heads))


def _unsharded_pairs(name: str, x: jax.Array, layout: Any, dim: int) -> None:
    """Raises if an Explicit axis of a mesh shards the features of x where a rotation needs them whole."""
    if dim and (layout == "half" or dim < x.shape[-1]):
        _checks.unsharded(name, x)


def parse_rotary_by_cos_sin(
    x: Any, cos_sin: Any, layout: Any, head_axis: Any, part: Any
) -> tuple[jax.Array, jax.Array, tuple[int, ...]]:
    """x, cosines and sines as one array (..., 2·pairs), sines first, and the head axes counted from the front."""
    x, heads = _turning("x", x, layout, head_axis, part)
    columns: Any = getattr(cos_sin, "columns", None)  # of a `CosSin`
    if columns is None:
        raw = 'CosSin(cosine, sine, columns=…) with columns "pair", "half" or "interleaved"'
        raise wrong_type(f"cos_sin must be what cos_sin returns, or {raw}, got {type(cos_sin).__name__}")
    names = "cos_sin[0]", "cos_sin[1]"
    cosine, sine = (_checks.floats(*each, (..., "columns"), known=(-1,)) for each in zip(names, cos_sin, strict=True))
    alike = cosine.shape == sine.shape and cosine.dtype == sine.dtype
    require(alike, "cos_sin must have one shape and one dtype, got {} and {}", *map(_checks.describe, (cosine, sine)))
    if columns != "pair":
        message = "cos_sin must have a column per pair, or per feature in layout {!r}, got columns={!r}"
        require(columns == layout, message, layout, columns)
        require(cosine.shape[-1] % 2 == 0, "cos_sin must have an even number of columns, got {}", cosine.shape[-1])
        cosine, sine = (_columns_of_pairs(name, a, columns) for name, a in zip(names, (cosine, sine), strict=True))
    dim = 2 * cosine.shape[-1]
    message = "cos_sin of {} pairs must fit into head_dim, x has shape {}"
    require(dim <= x.shape[-1], message, cosine.shape[-1], x.shape)
    _unsharded_pairs("x", x, layout, dim)
    for each in (cosine, sine):
        _checks.unsharded("cos_sin", each)
        fits_beside("cos_sin", each, "x", x, "x without its head axis and its last", heads)
    if dim:
        rows, hint = shape_of_rows(x, heads), _hint("x", x, heads)
        refuse_one_position("cos_sin", cosine.shape[:-1], "x", rows, hint, positions="positions")
    return x, jnp.concatenate(_mesh.agreeing((sine, cosine)), axis=-1), heads


def _columns_of_pairs(name: str, x: jax.Array, layout: Layout) -> jax.Array:
    """One of the two columns of each pair; NaN where they differ."""
    _checks.unsharded("cos_sin", x)

    def members(x: Any) -> list[Any]:
        pairs = x.reshape(*x.shape[:-1], *((2, x.shape[-1] // 2) if layout == "half" else (x.shape[-1] // 2, 2)))
        return [pairs[..., i, :] if layout == "half" else pairs[..., i] for i in range(2)]

    near = 0.01  # a compiler and 16 bits may round the two differently
    if _checks.known(x):
        first, second = members(np.asarray(x, np.float32))
        order = "all of them and then all again" if layout == "half" else "each twice in a row"
        message = "{} with columns={!r} must have {}"
        require(not (np.abs(first - second) > near).any(), message, name, layout, order)
    first, second = members(x)
    return jnp.where(jnp.abs(first - second) > near, np.array(np.nan, x.dtype), first)


def parse_rotary(
    x: Any,
    positions: Any,
    frequencies: Any,
    layout: Any,
    head_axis: Any,
    part: Any = "first",
    *,
    name: str = "x",
    positions_name: str = "positions",
    ndim: int = 1,
    shared: bool = False,
    reads_positions: bool = False,
) -> tuple[jax.Array, jax.Array | None, Spectrum, tuple[int, ...]]:
    """x, positions with an axis of coordinates or None, frequencies, and the head axes counted from the front.

    `ndim` is the highest rank of frequencies that are an array; `shared` is as for `parse_positions_of`, and needs
    frequencies. A width of 0 reads no positions, unless a scale does.
    """
    x, heads = _turning(name, x, layout, head_axis, part)
    given = x.shape[-1] if frequencies is None and not shared else frequencies
    frequencies = parse(given, even=True, unsharded=True, ndim=ndim)
    dim = dim_of(frequencies)
    hint = f"; for a base of {dim}, pass geometric({x.shape[-1]}, {dim})" if dim >= 2**12 else ""
    message = "frequencies of width {} must fit into head_dim, {} has shape {}{}"
    require(dim <= x.shape[-1], message, dim, name, x.shape, hint)
    _unsharded_pairs(name, x, layout, dim)
    if isinstance(frequencies, jax.Array) and frequencies.ndim == 3:
        fits = heads and frequencies.shape[0] == math.prod(x.shape[axis] for axis in heads)
        message = "frequencies must have one entry for each head of {}, shape {}, got shape {}"
        require(fits, message, name, x.shape, frequencies.shape)
    rows_of = f"{name} without its head axis and its last"
    options: Any = {"heads": heads, "hint": _hint(name, x, heads)}
    shared = shared or not (dim or reads_positions)
    positions = parse_positions_of(positions_name, positions, name, x, frequencies, rows_of, shared=shared, **options)
    return x, positions, frequencies, heads


def parse_pope(
    x: Any,
    positions: Any,
    frequencies: Any,
    phase: Any,
    layout: Any,
    head_axis: Any,
    *,
    name: str = "x",
    positions_name: str = "positions",
) -> tuple[jax.Array, jax.Array | None, Spectrum, jax.Array | None, tuple[int, ...]]:
    """x, positions with an axis of coordinates or None, frequencies, the phase at x's rank or None, the head axes."""
    x, heads = _turning(name, x, layout, head_axis, "first")
    _checks.unsharded(name, x)
    width = 2 * x.shape[-1]
    frequencies = parse(width if frequencies is None else frequencies, even=True, unsharded=True)
    message = "frequencies must have width {}, twice the features of {}, shape {}, got {}"
    require(dim_of(frequencies) == width, message, width, name, x.shape, dim_of(frequencies))
    rows_of = f"{name} without its head axis and its last"
    options: Any = {"heads": heads, "hint": _hint(name, x, heads)}
    positions = parse_positions_of(positions_name, positions, name, x, frequencies, rows_of, **options)
    return x, positions, frequencies, None if phase is None else _phase_beside(name, x, phase, heads), heads


def _phase_beside(name: str, x: jax.Array, phase: Any, heads: tuple[int, ...]) -> jax.Array:
    """A phase (head_dim,) or (heads, head_dim), at x's rank."""
    phase = _checks.on_device(_checks.array("phase", phase, _checks.FLOATS))
    own, features = [x.shape[axis] for axis in heads], x.shape[-1]
    shapes = [(features,), *([(math.prod(own), features)] if heads else [])]
    message = "phase must have shape {} beside {}, shape {}, got {}"
    require(phase.shape in shapes, message, " or ".join(map(str, shapes)), name, x.shape, phase.shape)
    _checks.unsharded("phase", phase)
    own_axes = heads if phase.ndim == 2 else ()
    if len(own_axes) > 1:
        phase = phase.reshape(*own, features)
    phase = jnp.expand_dims(phase, [i for i in range(x.ndim - 1) if i not in own_axes])
    _checks.sharded_together({each: tuple(jax.typeof(a).sharding.spec) for each, a in (("phase", phase), (name, x))})
    return phase
