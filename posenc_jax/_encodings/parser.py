"""Parses the arguments of encodings: positions and frequencies, and the vectors that an encoding is added to."""

from __future__ import annotations

from typing import Any, cast

import jax

from posenc_jax._frequencies.frequencies import AnyFrequencies
from posenc_jax._frequencies.parser import (
    dim_of,
    parse,
    parse_positions,
    parse_positions_of,
    refuse_no_position,
    refuse_one_position,
)
from posenc_jax._jax import checks, workarounds
from posenc_jax._jax.errors import invalid, require, require_type

# Encodings: of positions, by frequencies


def parse_encoding(
    positions: Any, frequencies: Any, layout: Any, name: str = "positions", even: bool = False
) -> tuple[jax.Array, AnyFrequencies]:
    """Positions (..., axes), and frequencies."""
    checks.layout("layout", layout)
    frequencies = parse(frequencies, even=even, unsharded=layout == "half")
    return parse_positions(name, positions, frequencies), frequencies


# Vectors that encodings are added to


def parse_added_encoding(
    x: Any, positions: Any, frequencies: Any, layout: Any
) -> tuple[jax.Array, jax.Array | None, AnyFrequencies]:
    """x, positions (..., axes) or None, and frequencies, for an encoding that is added to x."""
    checks.layout("layout", layout)
    x = checks.floats("x", x, (..., "d_model"), static_axes=(-1,))
    frequencies = parse(x.shape[-1] if frequencies is None else frequencies)
    check_same_width("x", x, frequencies, padded=True)
    return x, parse_positions_of("positions", positions, "x", x, frequencies, "x without its last axis"), frequencies


def parse_shift(
    encodings: Any, offset: Any, frequencies: Any, layout: Any
) -> tuple[jax.Array, jax.Array, AnyFrequencies]:
    """Encodings (..., dim), an offset (..., axes) that broadcasts to them, and frequencies."""
    checks.layout("layout", layout)
    encodings = checks.floats("encodings", encodings, (..., "dim"), static_axes=(-1,))
    frequencies = parse(frequencies, even=True, unsharded=True)
    check_same_width("encodings", encodings, frequencies)
    if layout == "half":
        checks.unsharded("encodings", encodings)
    # To `parse_positions_of`, None means 0, 1, …
    require_type(offset is not None, "offset", checks.POSITIONS.text, offset)
    rows_name = "encodings without their last axis"
    offset = parse_positions_of("offset", offset, "encodings", encodings, frequencies, rows_name, shared=True)
    return encodings, cast(jax.Array, offset), frequencies


def check_same_width(name: str, x: jax.Array, frequencies: AnyFrequencies, *, padded: bool = False) -> None:
    """Raises unless the frequencies have as many features as x; `padded` also allows one less, an even number."""
    width = dim_of(frequencies)
    fits = width == x.shape[-1] or padded and width == x.shape[-1] - 1 and width % 2 == 0
    require(fits, "frequencies of width {} must match {}, shape {}", width, name, x.shape)


# Rows of a table


def parse_table(x: Any) -> jax.Array:
    """Floats (length, dim), at least one row."""
    x = checks.floats("table", x, ("length", "dim"))
    fits = x.ndim == 2 and x.shape[0] >= 1
    require(fits, "table must have shape (length, dim) with length at least 1, got {}", x.shape)
    return x


def parse_rows(positions: Any, length: int, out_of_range: Any) -> jax.Array:
    """Integer positions in a table of this length."""
    checks.out_of_range("out_of_range", out_of_range)
    positions = checks.array("positions", positions, checks.INTEGERS)
    if out_of_range == "error":
        checks.within(positions, 0, length - 1, f"positions must be from 0 to {length - 1}, got {{}} to {{}}")
    return positions


def check_rows_sharded_together(positions: jax.Array | None, table: jax.Array, **arrays: jax.Array) -> None:
    """Raises if positions, table and arrays shard the result differently."""
    specs = {name: tuple(jax.typeof(x).sharding.spec) for name, x in arrays.items()}
    if positions is not None:
        specs["positions"] = (*jax.typeof(positions).sharding.spec, None)
    # A lookup drops the table's row axis; a slice keeps it.
    spec = jax.typeof(table).sharding.spec
    checks.sharded_together(specs | {"table": tuple(spec if positions is None else spec[1:])})


def parse_added_rows(
    x: Any, table: Any, positions: Any, out_of_range: Any
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """x, a table of its width, and integer positions or None, for rows that are added to x."""
    x, table = checks.floats("x", x, (..., "d_model"), static_axes=(-1,)), parse_table(table)
    checks.require_static_size("table", table.shape, 0, 1)
    length, width = table.shape
    require(width == x.shape[-1], "table of width {} must match x, shape {}", width, x.shape)
    if positions is not None:
        positions = parse_rows(positions, length, out_of_range)
        checks.broadcastable("positions", positions.shape, "x without its last axis", x.shape[:-1])
        refuse_one_position("positions", positions.shape, "x", x.shape[:-1])
    else:
        require(x.ndim > 1, "positions must be given where x has no sequence axis, shape {}", x.shape)
        refuse_no_position("positions", "x", x, x.shape[:-1])
        _first_rows(x, table)
    check_rows_sharded_together(positions, table, x=x)
    return x, table, positions


def _first_rows(x: jax.Array, table: jax.Array) -> None:
    """Raises unless the table has a row for each position of the sequence."""
    length, seq = table.shape[0], x.shape[-2]
    try:
        longer = bool(seq > length)
    except workarounds.InconclusiveDimensionOperation:  # a symbolic size, without a constraint that decides
        size = f"of known size, or with a constraint such as 'seq <= {length}'"
        raise invalid(f"x must have a sequence {size}, got shape {x.shape}") from None
    require(not longer, "table of {} rows is too small for a sequence of {}", length, seq)
    if seq != length:
        checks.unsharded("table", table, 0)
