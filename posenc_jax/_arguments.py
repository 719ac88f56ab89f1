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
from jax.core import Tracer
from jax.sharding import PartitionSpec

from posenc_jax import _checks, _mesh
from posenc_jax._arrays import align, compute_dtype
from posenc_jax._checks import InvalidType, InvalidValue, Kind, require
from posenc_jax._frequencies import Spectrum, amplitude_of, dim_of, num_axes_of, parse, parse_positions

# Scaled spectra


def even_width(dim: Any, least: int = 2) -> int:
    """`dim` as an even number of features, from `least` to 2²⁰."""
    dim = _checks.positive_int("dim", dim)
    require(dim % 2 == 0 and least <= dim <= 2**20, "dim must be even, from {} to 2²⁰, got {}", least, dim)
    return dim


def growth(factor: Any) -> Fraction:
    """The factor of a context extension, at least 1."""
    result = _checks.number("factor", factor)
    require(result >= 1, "factor must be at least 1, got {}", result)
    return Fraction(result)


# Encodings: of positions, by frequencies


def encoding(
    positions: Any, frequencies: Any, layout: Any, name: str = "positions", even: bool = False
) -> tuple[jax.Array, Spectrum]:
    """Positions (..., axes), and frequencies."""
    _checks.settings(layout=layout)
    frequencies = parse(frequencies, even=even, unsharded=layout == "half")
    return parse_positions(name, positions, frequencies), frequencies


# Vectors that encodings are added to


def added_encoding(
    x: Any, positions: Any, frequencies: Any, layout: Any
) -> tuple[jax.Array, jax.Array | None, Spectrum]:
    """x, positions (..., axes) or None, and frequencies, for an encoding that is added to x."""
    _checks.settings(layout=layout)
    x = _checks.floats("x", x, (..., "seq", "d_model"), known=(-1,))
    frequencies = parse(x.shape[-1] if frequencies is None else frequencies)
    same_width("x", x, frequencies)
    return x, beside("positions", positions, "x", x, frequencies, "x without its last axis"), frequencies


def shifted(encodings: Any, offset: Any, frequencies: Any, layout: Any) -> tuple[jax.Array, jax.Array, Spectrum]:
    """Encodings (..., dim), an offset (..., axes) that broadcasts to them, and frequencies."""
    _checks.settings(layout=layout)
    encodings = _checks.floats("encodings", encodings, (..., "dim"), known=(-1,))
    frequencies = parse(frequencies, even=True, unsharded=True)
    same_width("encodings", encodings, frequencies)
    if layout == "half":
        _checks.unsharded("encodings", encodings)
    _checks.require_type(offset is not None, "offset", _checks.NUMBERS.text, offset)  # to `beside`, None means 0, 1, …
    rows_of = "encodings without their last axis"
    offset = beside("offset", offset, "encodings", encodings, frequencies, rows_of)
    return encodings, cast(jax.Array, offset), frequencies


def same_width(name: str, x: jax.Array, frequencies: Spectrum) -> None:
    """Raises unless the frequencies have as many features as x."""
    width = dim_of(frequencies)
    require(width == x.shape[-1], "frequencies of width {} must match {}, shape {}", width, name, x.shape)


def beside(
    name: str, positions: Any, x_name: str, x: jax.Array, frequencies: Spectrum, rows_of: str, *, head_axis: Any = None
) -> jax.Array | None:
    """Positions (..., axes) that broadcast to x without its last axis and its head axis; None if they are counted."""
    rows = _rows(x, head_axis)
    if positions is None:
        axes = num_axes_of(frequencies)
        require(rows or axes > 1, "{} must be given where {} has no sequence axis, shape {}", name, x_name, x.shape)
        require(axes == 1, "{} must be given for frequencies of {} axes, got None", name, axes)
        _checks.countable(x_name, rows[-1])
        return None
    positions = parse_positions(name, positions, frequencies)
    _fits_beside(name, positions, x_name, x, rows_of, head_axis)
    return positions


def _rows(x: jax.Array, head_axis: int | None) -> tuple[int, ...]:
    """The shape of x without its last axis and its head axis."""
    return x.shape[:-1] if head_axis is None else x.shape[:head_axis] + x.shape[head_axis + 1 : -1]


def _fits_beside(
    name: str, positions: jax.Array, x_name: str, x: jax.Array, rows_of: str, head_axis: int | None
) -> None:
    """Raises unless positions (..., axes) broadcast to the rows of x, sharded alike."""
    _checks.broadcastable(name, positions.shape[:-1], rows_of, _rows(x, head_axis))
    places = [*jax.typeof(positions).sharding.spec[:-1]]
    if head_axis is not None:
        places.insert(max(0, len(places) + head_axis + 2 - x.ndim), None)
    _checks.sharded_together({name: (*places, None), x_name: tuple(jax.typeof(x).sharding.spec)})


# Rows of a table


def parse_table(x: Any) -> jax.Array:
    """Floats (length, dim), at least one row."""
    x = _checks.floats("table", x, ("length", "dim"))
    fits = x.ndim == 2 and x.shape[0] >= 1
    require(fits, "table must have shape (length, dim) with length at least 1, got {}", x.shape)
    return x


def parse_rows(positions: Any, length: int, out_of_range: Any) -> jax.Array:
    """Integer positions in a table of this length."""
    _checks.settings(out_of_range=out_of_range)
    positions = _checks.array("positions", positions, _checks.INTEGERS)
    if out_of_range == "error":
        _checks.within(positions, 0, length - 1, f"positions must be from 0 to {length - 1}, got {{}} to {{}}")
    return jnp.asarray(positions)


def rows_sharded_together(positions: jax.Array | None, table: jax.Array, **arrays: jax.Array) -> None:
    """Raises if positions, table and arrays shard the result differently."""
    specs = {name: tuple(jax.typeof(x).sharding.spec) for name, x in arrays.items()}
    if positions is not None:
        specs["positions"] = (*jax.typeof(positions).sharding.spec, None)
    # A lookup drops the table's row axis; a slice keeps it.
    spec = jax.typeof(table).sharding.spec
    _checks.sharded_together(specs | {"table": tuple(spec if positions is None else spec[1:])})


def added_rows(x: Any, table: Any, positions: Any, out_of_range: Any) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """x, a table of its width, and integer positions or None, for rows that are added to x."""
    x, table = _checks.floats("x", x, (..., "seq", "d_model"), known=(-1,)), parse_table(table)
    _checks.known_size("table", table.shape, 0, 1)
    length, width = table.shape
    require(width == x.shape[-1], "table of width {} must match x, shape {}", width, x.shape)
    if positions is not None:
        positions = parse_rows(positions, length, out_of_range)
        _checks.broadcastable("positions", positions.shape, "x without its last axis", x.shape[:-1])
    else:
        _first_rows(x, table)
    rows_sharded_together(positions, table, x=x)
    return x, table, positions


def _first_rows(x: jax.Array, table: jax.Array) -> None:
    """Raises unless the table has a row for each position of the sequence."""
    length, seq = table.shape[0], x.shape[-2]
    try:
        longer = bool(seq > length)
    except Exception:  # InconclusiveDimensionOperation, whose import brings in Pallas
        size = f"of known size, or with a constraint such as 'seq <= {length}'"
        raise InvalidValue(f"x must have a sequence {size}, got shape {x.shape}") from None
    require(not longer, "table of {} rows is too small for a sequence of {}", length, seq)
    if seq != length:
        _checks.unsharded("table", table, 0)


# Queries and keys that turn


def _turning(name: str, x: Any, layout: Any, head_axis: Any, part: Any) -> tuple[jax.Array, int | None]:
    """x, and its head axis counted from the front."""
    _checks.settings(layout=layout, part=part)
    axes = (..., "head_dim") if head_axis is None else (..., "heads", "head_dim")
    x = _checks.floats(name, x, axes, known=(-1,))
    if head_axis is not None:
        head_axis = _checks.integer("head_axis", head_axis, expected="an integer or None")
        ok = -x.ndim <= head_axis < x.ndim and head_axis not in (-1, x.ndim - 1)
        require(ok, "head_axis must be an axis of {} other than its last, shape {}, got {}", name, x.shape, head_axis)
        head_axis %= x.ndim
    require(x.shape[-1], "{} must have features to turn, got shape {}", name, x.shape)
    return x, head_axis


def _unsharded_pairs(name: str, x: jax.Array, layout: Any, dim: int) -> None:
    """Raises if an Explicit axis of a mesh shards the features of x where a rotation needs them whole."""
    if dim and (layout == "half" or dim < x.shape[-1]):
        _checks.unsharded(name, x)


def rotated_by_waves(
    x: Any, waves: Any, layout: Any, head_axis: Any, part: Any
) -> tuple[jax.Array, jax.Array, int | None]:
    """x, the waves as one array (..., 2·pairs), sines before cosines, and the head axis counted from the front."""
    x, head_axis = _turning("x", x, layout, head_axis, part)
    given = _checks.sequence("waves", waves, "two float arrays, the cosines and the sines")
    require(len(given) == 2, "waves must be two arrays, the cosines and the sines, got {}", len(given))
    cosine, sine = (_checks.floats(f"waves[{i}]", w, (..., "num_pairs"), known=(-1,)) for i, w in enumerate(given))
    alike = cosine.shape == sine.shape and cosine.dtype == sine.dtype
    require(alike, "waves must have one shape and one dtype, got {} and {}", *map(_checks.describe, (cosine, sine)))
    dim = 2 * cosine.shape[-1]
    require(0 < dim <= x.shape[-1], "waves of {} pairs must fit into head_dim, x has shape {}", dim // 2, x.shape)
    _unsharded_pairs("x", x, layout, dim)
    for wave in (cosine, sine):
        _checks.unsharded("waves", wave)
        _fits_beside("waves", wave, "x", x, "x without its head axis and its last", head_axis)
    return x, jnp.concatenate(_mesh.agreeing((sine, cosine)), axis=-1), head_axis


def rotated(
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
) -> tuple[jax.Array, jax.Array | None, Spectrum, int | None]:
    """x, positions with an axis of coordinates or None, frequencies, and the head axis counted from the front.

    `ndim` is the highest rank of frequencies that are an array.
    """
    x, head_axis = _turning(name, x, layout, head_axis, part)
    given = x.shape[-1] if frequencies is None else frequencies
    frequencies = parse(given, even=True, unsharded=True, empty=True, ndim=ndim)
    dim = dim_of(frequencies)
    hint = f"; for a base of {dim}, pass geometric({x.shape[-1]}, {dim})" if dim >= 2**12 else ""
    message = "frequencies of width {} must fit into head_dim, {} has shape {}{}"
    require(dim <= x.shape[-1], message, dim, name, x.shape, hint)
    _unsharded_pairs(name, x, layout, dim)
    if isinstance(frequencies, jax.Array) and frequencies.ndim == 3:
        heads = None if head_axis is None else x.shape[head_axis]
        message = "frequencies must have one entry for each head of {}, shape {}, got shape {}"
        require(frequencies.shape[0] == heads, message, name, x.shape, frequencies.shape)
    rows_of = f"{name} without its head axis and its last"
    positions = beside(positions_name, positions, name, x, frequencies, rows_of, head_axis=head_axis)
    if dim and positions is not None and amplitude_of(frequencies) != 1:
        _refuse_one_position(name, x, positions_name, positions, head_axis, amplitude_of(frequencies))
    return x, positions, frequencies, head_axis


def _refuse_one_position(
    name: str, x: jax.Array, positions_name: str, positions: jax.Array, head_axis: Any, factor: float
) -> None:
    """Raises if several vectors share one position: it may be an offset, which must not apply an amplitude again."""
    rows = [n for axis, n in enumerate(x.shape[:-1]) if axis != head_axis]
    shared = positions.ndim == 1 or positions.shape[-2] == 1
    if shared and rows and not (isinstance(rows[-1], int) and rows[-1] <= 1):
        ways = "to place them, give each its position; to move rotated vectors, use with_attention_factor(1)"
        message = (
            f"{positions_name} must not be one for the {rows[-1]} vectors of {name} if attention_factor is {factor}"
        )
        raise InvalidValue(f"{message}: {ways}")


# Tiles of queries and keys


def tile(queries: Any, keys: Any, kind: Kind = _checks.NUMBERS, what: str = "positions") -> tuple[jax.Array, jax.Array]:
    """Positions or segments (..., queries) and (..., keys), of one dtype if they are integers."""
    names = f"query_{what}", f"key_{what}"
    queries, keys = (jnp.asarray(_checks.array(n, x, kind)) for n, x in zip(names, (queries, keys), strict=True))
    for name, x, axis in zip(names, (queries, keys), ("queries", "keys"), strict=True):
        require(x.ndim, "{} must have shape (..., {}), got ()", name, axis)
    if what == "positions":
        no_coordinates(names[0], queries)
        no_coordinates(names[1], keys)
    try:
        jnp.broadcast_shapes(queries.shape[:-1], keys.shape[:-1])
    except ValueError:
        both = f"{names[0]}, shape {queries.shape}, and {names[1]}, shape {keys.shape}"
        raise InvalidValue(f"the leading axes of {both}, must broadcast") from None
    tile_sharded_together(queries, keys, {}, what)
    integers = all(jnp.issubdtype(x.dtype, jnp.integer) for x in (queries, keys))
    return of_one_dtype(names, queries, keys) if integers else (queries, keys)


def of_one_dtype(names: tuple[str, str], a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two arrays of integers, of the dtype that holds both."""
    common = np.promote_types(a.dtype, b.dtype)
    if common.kind == "f" or jax.dtypes.canonicalize_dtype(common) != common:
        both = f"{names[0]} of {a.dtype} and {names[1]} of {b.dtype}"
        raise InvalidType(f"{both} have no common dtype here; pass int32")
    return a.astype(common), b.astype(common)


def no_coordinates(name: str, x: Any) -> None:
    """Raises if known positions (..., 2 or 3) are the points of a full grid; short sequences of a batch never are."""
    known = not isinstance(x, Tracer) and getattr(x, "is_fully_addressable", True)
    if not known or x.ndim < 2 or x.shape[-1] not in (2, 3):
        return
    rows = np.unique(np.asarray(x).reshape(-1, x.shape[-1]), axis=0)
    sizes = [len(np.unique(column)) for column in rows.T]
    grid = len(rows) == math.prod(sizes) and sum(n > 1 for n in sizes) > 1
    message = (
        "{} must be one number for each token, (..., tokens), got the coordinates of a grid, {}; bias each by itself"
    )
    require(not grid, message, name, x.shape)


def tile_sharded_together(
    queries: jax.Array, keys: jax.Array, per_head: dict[str, jax.Array], what: str = "positions", axes: int = 0
) -> None:
    """Raises if both sides, (..., tokens) and `axes` axes more, and arrays (..., heads) shard a tile differently."""
    (*batch, row), (*other, column) = (jax.typeof(x).sharding.spec[: x.ndim - axes] for x in (queries, keys))
    specs = {f"query_{what}": (*batch, None, row, None), f"key_{what}": (*other, None, None, column)}
    heads = {name: (jax.typeof(x).sharding.spec[-1], None, None) for name, x in per_head.items()}
    _checks.sharded_together(specs | heads)


def of_heads(positions: tuple[jax.Array, jax.Array], **arrays: Any) -> list[jax.Array]:
    """Arrays (heads,) of one shape, whose shardings agree with the positions of a tile."""
    arrays = {name: _checks.floats(name, x, ("heads",)) for name, x in arrays.items()}
    first, shape = next((name, x.shape) for name, x in arrays.items())
    for name, x in arrays.items():
        require(x.ndim == 1 and x.size, "{} must have shape (heads,), got {}", name, x.shape)
        require(x.shape == shape, "{} of shape {} must match {}, shape {}", name, x.shape, first, shape)
    tile_sharded_together(*positions, arrays)
    return list(arrays.values())


# Attention


def operands(query: Any, key: Any, value: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Query (..., queries, heads, head_dim), key and value (..., keys, kv_heads, width) that fit each other."""
    known, axes = (-3, -2, -1), (..., "keys", "kv_heads")
    query = _checks.floats("query", query, (..., "queries", "heads", "head_dim"), known)
    key = _checks.floats("key", key, (*axes, "head_dim"), known)
    value = _checks.floats("value", value, (*axes, "value_dim"), known)
    shape, spec = query.shape, jax.typeof(query).sharding.spec
    leading = [axis for n, axis in zip(shape[:-3], spec, strict=False) if n != 1]
    if any(axis is not None for axis in leading[1:]):  # the reshape would move data between devices
        message = f"sharded on Explicit axes of a mesh along the first at most, got {spec}; use jax.vmap for the others"
        raise InvalidValue(f"the leading axes of query must be {message}")
    for name, x in {"key": key, "value": value}.items():
        if x.dtype != query.dtype:
            raise InvalidType(f"{name} must have the dtype of query, {query.dtype}, got {x.dtype}")
    if key.shape[:-3] != shape[:-3] or key.shape[-1] != shape[-1]:
        raise InvalidValue(f"key must have the leading axes and the head_dim of query, shape {shape}, got {key.shape}")
    if value.shape[:-1] != key.shape[:-1]:
        raise InvalidValue(f"value must have the axes of key but for the last, shape {key.shape}, got {value.shape}")
    (heads, head_dim), kv_heads = shape[-2:], key.shape[-2]
    require(head_dim >= 1 and value.shape[-1] >= 1, "head_dim and value_dim must be at least 1, got 0")
    if kv_heads < 1 or heads % kv_heads:
        raise InvalidValue(f"the heads of query must be a multiple of those of key, got {heads} and {kv_heads}")
    for name, x in {"query": query, "key": key, "value": value}.items():
        for axis in (-3, -1):
            _checks.unsharded(name, x, axis)
    return query, _sharded_as_query("key", key, query), _sharded_as_query("value", value, query)


def scaled(query: jax.Array, scale: Any) -> tuple[jax.Array, float]:
    """The query and its scale as a number; an array multiplies the query, and leaves 1."""
    scale = _checks.held(1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if not _checks.is_array(scale):
        return query, _checks.number("scale", scale, float32=True)
    scale = _checks.array("scale", scale, _checks.FLOATS)
    _checks.broadcastable("scale", scale.shape, "query without head_dim", query.shape[:-1])
    want = PartitionSpec(*jax.typeof(query).sharding.spec[:-1])
    sharded_like("scale", jax.typeof(scale).sharding.spec, "query", want)
    scale = align(jnp.asarray(scale), query.ndim - 1)[..., None]
    dtype = compute_dtype(query)
    return (query.astype(dtype) * scale.astype(dtype)).astype(query.dtype), 1.0


def sinks(sinks: Any, query: jax.Array) -> jax.Array | None:
    """The logits of sinks, (heads,), sharded like the heads of the query."""
    if sinks is None:
        return None
    sinks, heads = _checks.floats("sinks", sinks, ("heads",)), query.shape[-2]
    require(sinks.shape == (heads,), "sinks must have shape (heads,) = ({},), got {}", heads, sinks.shape)
    want = PartitionSpec(jax.typeof(query).sharding.spec[-2])
    sharded_like("sinks", jax.typeof(sinks).sharding.spec, "the heads of query", want)
    return _mesh.resharded(sinks, want, query)


def _sharded_as_query(name: str, x: jax.Array, query: jax.Array) -> jax.Array:
    """Reshards unsharded axes of keys or values like the queries'; a single head only along the batch."""
    want = _mesh.spec_of_keys(x, query)
    sharded_like(name, jax.typeof(x).sharding.spec, "query", want)
    parts = math.prod(jax.typeof(query).sharding.mesh.shape[axis] for axis in jax.tree.leaves(want[-2]))
    if x.shape[-2] % parts:
        message = f"as many as query's are split into on Explicit axes of a mesh, {parts}, or a multiple, or one"
        raise InvalidValue(f"the heads of {name} must be {message}, got {x.shape[-2]}")
    return _mesh.resharded(x, want, query)


def sharded_like(name: str, got: Any, like: str, want: Any) -> None:
    """Raises unless Explicit axes shard each of the last axes as `want` says, or not at all."""
    if not all(a in (None, b) for a, b in zip(got[::-1], want[::-1], strict=False)):
        message = f"sharded on Explicit axes of a mesh as {like} is, {want}, or not at all"
        raise InvalidValue(f"{name} must be {message}, got {got}")


def sides(what: str, queries: Any, keys: Any, query: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array] | None:
    """Positions or segments of both sides, whose shapes broadcast to (..., length), or None if neither is given."""
    if queries is None and keys is None:
        return None
    require(queries is not None and keys is not None, "query_{} and key_{} must be given together", what, what)
    queries, keys = tile(queries, keys, _checks.INTEGERS, what)
    for side, x, of in ("query", queries, query), ("key", keys, key):
        name, length, spec = f"{side}_{what}", of.shape[-3], jax.typeof(of).sharding.spec
        require(x.shape[-1] == length, "{} must have shape (..., {}), got {}", name, length, x.shape)
        _checks.broadcastable(name, x.shape, f"{side} without heads", of.shape[:-2])
        _checks.unsharded(name, x)
        sharded_like(name, jax.typeof(x).sharding.spec, side, PartitionSpec(*spec[:-3], None))
    return queries, keys


def positions_of_sides(
    queries: Any, keys: Any, query: jax.Array, key: jax.Array, needed: bool
) -> tuple[jax.Array, jax.Array]:
    """Query and key positions, 0, 1, … by default; `needed` says whether a mask or a bias reads them."""
    if given := sides("positions", queries, keys, query, key):
        return given
    n, m = query.shape[-3], key.shape[-3]
    require(n == m or not needed, "query_positions and key_positions must be given for {} queries and {} keys", n, m)
    return counted("query", n), counted("key", m)


def counted(name: str, length: Any) -> jax.Array:
    """The default positions, 0 to length − 1, along the argument `name`."""
    return jnp.arange(_checks.countable(name, length), dtype=jnp.int32)
