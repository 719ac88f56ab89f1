"""Joint checks of arguments: one parser for each family of functions.

Each returns the arguments in the form in which they are computed, so that the function itself reads as its formula.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from posenc_jax import _checks, _mesh
from posenc_jax._arrays import compute_dtype
from posenc_jax._checks import InvalidType, InvalidValue, Kind, require
from posenc_jax._frequencies import Frequencies, dim_of, num_axes_of, parse, parse_positions

Spectrum = Frequencies | jax.Array

# Scaled spectra


def even_width(dim: Any, least: int = 2) -> int:
    """A number of features, all in pairs."""
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
    _checks.layout(layout)
    frequencies = parse(frequencies, even=even, unsharded=layout == "half")
    return parse_positions(name, positions, frequencies), frequencies


def _uncounted(name: str, x_name: str, length: Any, frequencies: Spectrum) -> None:
    """Raises if positions cannot default to 0, 1, …, length − 1."""
    axes = num_axes_of(frequencies)
    require(axes == 1, "{} must be given for frequencies of {} axes, got None", name, axes)
    _checks.countable(x_name, length)


# Vectors that encodings are added to


def added_encoding(x: Any, positions: Any, frequencies: Any, layout: Any) -> tuple[jax.Array, Any, Spectrum]:
    """x, positions (..., axes) or None, and frequencies, for an encoding that is added to x."""
    _checks.layout(layout)
    x = _checks.floats("x", x, (..., "seq", "d_model"), known=(-1,))
    frequencies = parse(x.shape[-1] if frequencies is None else frequencies)
    same_width("x", x, frequencies)
    if positions is None:
        _uncounted("positions", "x", x.shape[-2], frequencies)
    else:
        positions = parse_positions("positions", positions, frequencies)
        beside("positions", positions, "x", x, "x without its last axis")
    return x, positions, frequencies


def shifted(encodings: Any, offset: Any, frequencies: Any, layout: Any) -> tuple[jax.Array, jax.Array, Spectrum]:
    """Encodings (..., dim), an offset (..., axes) of theirs, and frequencies."""
    _checks.layout(layout)
    encodings = _checks.floats("encodings", encodings, (..., "dim"), known=(-1,))
    frequencies = parse(frequencies, even=True, unsharded=True)
    same_width("encodings", encodings, frequencies)
    if layout == "half":
        _checks.unsharded("encodings", encodings)
    offset = parse_positions("offset", offset, frequencies)
    beside("offset", offset, "encodings", encodings, "encodings without their last axis")
    return encodings, offset, frequencies


def same_width(name: str, x: jax.Array, frequencies: Spectrum) -> None:
    """Raises unless the frequencies have as many features as x."""
    width = dim_of(frequencies)
    require(width == x.shape[-1], "frequencies of width {} must match {}, shape {}", width, name, x.shape)


def beside(
    name: str, positions: jax.Array, x_name: str, x: jax.Array, target: str, head_axis: int | None = None
) -> None:
    """Raises unless positions (..., axes) broadcast to x without its last axis and its head axis, sharded alike."""
    _checks.broadcastable(name, positions.shape[:-1], target, _without_heads(x, head_axis))
    places = [*jax.typeof(positions).sharding.spec[:-1]]
    if head_axis is not None:
        places.insert(max(0, len(places) + head_axis + 2 - x.ndim), None)
    _checks.sharded_together({name: (*places, None), x_name: tuple(jax.typeof(x).sharding.spec)})


def _without_heads(x: jax.Array, head_axis: int | None) -> tuple[int, ...]:
    """The shape of x without its head axis and its last."""
    return x.shape[:-1] if head_axis is None else x.shape[:head_axis] + x.shape[head_axis + 1 : -1]


def scale_factor(scale: Any, *arrays: jax.Array) -> jax.Array:
    """A scalar that multiplies, in the dtype in which these arrays are computed."""
    return _checks.scalar("scale", scale, compute_dtype(*arrays))


# Rows of a table


def parse_table(x: Any) -> jax.Array:
    """Floats (length, dim), at least one row."""
    x = _checks.floats("table", x, ("length", "dim"))
    fits = x.ndim == 2 and x.shape[0] >= 1
    require(fits, "table must have shape (length, dim) with length at least 1, got {}", x.shape)
    return x


def parse_rows(positions: Any, length: int, out_of_range: Any) -> jax.Array:
    """Integer positions in a table of this length."""
    _checks.out_of_range(out_of_range)
    positions = _checks.array("positions", positions, _checks.INTEGERS)
    if out_of_range == "error" and positions.size and _checks.is_known(positions):
        low, high = _checks.limits(positions)
        require(0 <= low and high < length, "positions must be from 0 to {}, got {} to {}", length - 1, low, high)
    return jnp.asarray(positions)


def rows_sharded_together(positions: jax.Array | None, table: jax.Array, **arrays: jax.Array) -> None:
    """Raises if positions, table and arrays shard the result differently."""
    specs = {name: tuple(jax.typeof(x).sharding.spec) for name, x in arrays.items()}
    if positions is not None:
        specs["positions"] = (*jax.typeof(positions).sharding.spec, None)
    # A lookup drops the table's row axis; a slice keeps it.
    spec = jax.typeof(table).sharding.spec
    _checks.sharded_together(specs | {"table": tuple(spec if positions is None else spec[1:])})


def added_rows(x: Any, table: Any, positions: Any, out_of_range: Any) -> tuple[jax.Array, jax.Array, Any]:
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
    """Raises unless the table has a row for each of the sequence."""
    length, seq = table.shape[0], x.shape[-2]
    try:
        longer = bool(seq > length)
    except Exception:  # InconclusiveDimensionOperation, which stands elsewhere in each version of JAX
        message = "x must have a sequence of known size, or with a constraint such as 'seq <= {}', got shape {}"
        raise InvalidValue(message.format(length, x.shape)) from None
    require(not longer, "table of {} rows is too small for a sequence of {}", length, seq)
    if seq != length:
        _checks.unsharded("table", table, 0)


# Queries and keys that turn


def rotated(
    x: Any,
    positions: Any,
    frequencies: Any,
    *,
    layout: Any,
    head_axis: Any,
    part: Any = "first",
    name: str = "x",
    positions_name: str = "positions",
) -> tuple[jax.Array, jax.Array | None, Spectrum, int | None]:
    """x, positions with an axis of coordinates or None, frequencies, and the head axis counted from the front."""
    _checks.layout(layout)
    _checks.part(part)
    axes = (..., "head_dim") if head_axis is None else (..., "heads", "head_dim")
    x = _checks.floats(name, x, axes, known=(-1,))
    if head_axis is not None:
        head_axis = _checks.integer("head_axis", head_axis, expected="an integer or None")
        fits = -x.ndim <= head_axis < x.ndim and head_axis % x.ndim != x.ndim - 1
        message = "head_axis must be an axis of {} other than its last, shape {}, got {}"
        require(fits, message, name, x.shape, head_axis)
        head_axis %= x.ndim
    require(x.shape[-1], "{} must have features to turn, got shape {}", name, x.shape)
    frequencies = parse(x.shape[-1] if frequencies is None else frequencies, even=True, unsharded=True)
    width = dim_of(frequencies)
    message = "frequencies of width {} must fit into head_dim, {} has shape {}"
    require(width <= x.shape[-1], message, width, name, x.shape)
    if layout == "half" or width < x.shape[-1]:
        _checks.unsharded(name, x)
    if positions is None:
        rows, message = _without_heads(x, head_axis), "{} must be given where {} has no sequence axis, shape {}"
        require(rows or num_axes_of(frequencies) > 1, message, positions_name, name, x.shape)
        _uncounted(positions_name, name, rows[-1] if rows else 0, frequencies)
    else:
        positions = parse_positions(positions_name, positions, frequencies)
        beside(positions_name, positions, name, x, f"{name} without its head axis and its last", head_axis)
    return x, positions, frequencies, head_axis


def inverted(frequencies: Spectrum) -> Spectrum:
    """The frequencies with the inverse amplitude."""
    if not isinstance(frequencies, Frequencies):
        return frequencies
    amplitude = frequencies.attention_factor
    representable = abs(amplitude) * float(np.finfo(np.float32).max) >= 1
    require(representable, "inverse needs frequencies with an attention_factor above 3e-39, got {}", amplitude)
    return dataclasses.replace(frequencies, attention_factor=1 / amplitude)


# Tiles of queries and keys


def tile(queries: Any, keys: Any, kind: Kind = _checks.NUMBERS, what: str = "positions") -> tuple[jax.Array, jax.Array]:
    """Positions or segments (..., queries) and (..., keys), of one dtype if they are integers."""
    names = f"query_{what}", f"key_{what}"
    queries, keys = (jnp.asarray(_checks.array(n, x, kind)) for n, x in zip(names, (queries, keys), strict=True))
    for name, x, axis in zip(names, (queries, keys), ("queries", "keys"), strict=True):
        require(x.ndim, "{} must have shape (..., {}), got ()", name, axis)
    try:
        jnp.broadcast_shapes(queries.shape[:-1], keys.shape[:-1])
    except ValueError:
        both = f"{names[0]}, shape {queries.shape}, and {names[1]}, shape {keys.shape}"
        raise InvalidValue(f"the leading axes of {both}, must broadcast") from None
    tile_sharded_together(queries, keys, {}, what)
    if all(jnp.issubdtype(x.dtype, jnp.integer) for x in (queries, keys)) and queries.dtype != keys.dtype:
        common = np.promote_types(queries.dtype, keys.dtype)
        if common.kind == "f" or jax.dtypes.canonicalize_dtype(common) != common:
            both = f"{names[0]} of {queries.dtype} and {names[1]} of {keys.dtype}"
            raise InvalidType(f"{both} have no common dtype here; pass int32")
        queries, keys = queries.astype(common), keys.astype(common)
    return queries, keys


def tile_sharded_together(
    queries: jax.Array, keys: jax.Array, per_head: dict[str, jax.Array], what: str = "positions"
) -> None:
    """Raises if positions of both sides, and arrays whose last axis is of heads, shard a tile differently."""
    (*batch, row), (*other, column) = (jax.typeof(x).sharding.spec for x in (queries, keys))
    specs = {f"query_{what}": (*batch, None, row, None), f"key_{what}": (*other, None, None, column)}
    heads = {name: (jax.typeof(x).sharding.spec[-1], None, None) for name, x in per_head.items()}
    _checks.sharded_together(specs | heads)


def of_heads(positions: tuple[jax.Array, jax.Array], **arrays: Any) -> list[jax.Array]:
    """Arrays (heads,) of one shape that shard a tile as its positions do."""
    arrays = {name: _checks.floats(name, x, ("heads",)) for name, x in arrays.items()}
    first, shape = next((name, x.shape) for name, x in arrays.items())
    for name, x in arrays.items():
        require(x.ndim == 1 and x.size, "{} must have shape (heads,), got {}", name, x.shape)
        require(x.shape == shape, "{} of shape {} must match {}, shape {}", name, x.shape, first, shape)
    tile_sharded_together(*positions, arrays)
    return list(arrays.values())


# Attention


def operands(query: Any, key: Any, value: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Query (..., queries, heads, head_dim), key and value (..., keys, kv_heads, head_dim) that fit each other."""
    known, axes = (-3, -2, -1), (..., "keys", "kv_heads", "head_dim")
    query = _checks.floats("query", query, (..., "queries", "heads", "head_dim"), known)
    key, value = _checks.floats("key", key, axes, known), _checks.floats("value", value, axes, known)
    named = {"query": query, "key": key, "value": value}
    spec = jax.typeof(query).sharding.spec
    leading = [axis for n, axis in zip(query.shape[:-3], spec, strict=False) if n != 1]
    one = not any(axis is not None for axis in leading[1:])  # otherwise the reshape would move data between devices
    message = "the leading axes of query must be sharded on Explicit axes of a mesh along the first at most, got {}"
    require(one, message + "; use jax.vmap for the others", spec)
    for name in ("key", "value"):
        if named[name].dtype != query.dtype:
            raise InvalidType(f"{name} must have the dtype of query, {query.dtype}, got {named[name].dtype}")
    fits = key.ndim == query.ndim and key.shape[:-3] == query.shape[:-3] and key.shape[-1] == query.shape[-1]
    message = "key must have the leading axes and the head_dim of query, shape {}, got {}"
    require(fits, message, query.shape, key.shape)
    require(value.shape == key.shape, "value must have the shape of key, {}, got {}", key.shape, value.shape)
    (heads, head_dim), kv_heads = query.shape[-2:], key.shape[-2]
    require(head_dim >= 1, "head_dim must be at least 1, got 0")
    fits = kv_heads >= 1 and heads % kv_heads == 0
    require(fits, "the heads of query must be a multiple of those of key, got {} and {}", heads, kv_heads)
    for name, x in named.items():
        for axis in (-3, -1):
            _checks.unsharded(name, x, axis)
    return query, _sharded_as_query("key", key, query), _sharded_as_query("value", value, query)


def _sharded_as_query(name: str, x: jax.Array, query: jax.Array) -> jax.Array:
    """Reshards unsharded axes of keys or values like the queries'; a single head only along the batch."""
    (*batch, _, heads, _), got = jax.typeof(query).sharding.spec, jax.typeof(x).sharding.spec
    want = PartitionSpec(*batch, None, heads if x.shape[-2] > 1 else None, None)
    sharded_like(name, got, "query", want)
    parts = math.prod(jax.typeof(query).sharding.mesh.shape[axis] for axis in jax.tree.leaves(want[-2]))
    message = "the heads of {} must be as many as query's are split into on Explicit axes of a mesh, {}, or a multiple"
    require(x.shape[-2] % parts == 0, message + ", or one, got {}", name, parts, x.shape[-2])
    return x if got == want else jax.sharding.reshard(x, _mesh.sharding(want, query))


def sharded_like(name: str, got: Any, like: str, want: Any) -> None:
    """Raises unless Explicit axes shard each of the last axes as `want` says, or not at all."""
    fits = all(a in (None, b) for a, b in zip(got[::-1], want[::-1], strict=False))
    message = "{} must be sharded on Explicit axes of a mesh as {} is, {}, or not at all, got {}"
    require(fits, message, name, like, want, got)


def sides(what: str, queries: Any, keys: Any, query: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array] | None:
    """Positions or segments of both sides, (length,) or (batch or 1, length), or None if neither is given."""
    if queries is None and keys is None:
        return None
    both = queries is not None and keys is not None
    require(both, "query_{} and key_{} must be given together", what, what)
    found = []
    for side, x, of in zip(("query", "key"), tile(queries, keys, _checks.INTEGERS, what), (query, key), strict=True):
        name, length = f"{side}_{what}", of.shape[-3]
        require(x.shape[-1] == length, "{} must have shape (..., {}), got {}", name, length, x.shape)
        _checks.broadcastable(name, x.shape, f"{side} without heads", of.shape[:-2])
        _checks.unsharded(name, x)
        spec = jax.typeof(of).sharding.spec
        sharded_like(name, jax.typeof(x).sharding.spec, side, PartitionSpec(*spec[:-3], None))
        found.append(x)
    queries, keys = found
    if queries.ndim == keys.ndim == 1:
        return queries, keys
    return _of_batch(queries, query.shape[:-3]), _of_batch(keys, key.shape[:-3])


def _of_batch(x: jax.Array, batch: tuple[int, ...]) -> jax.Array:
    """(1, length) if all sequences share it, else (batch, length)."""
    if math.prod(x.shape[:-1]) != 1:
        x = jnp.broadcast_to(x.reshape((1,) * (len(batch) + 1 - x.ndim) + x.shape), (*batch, x.shape[-1]))
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def positions_of_sides(
    queries: Any, keys: Any, query: jax.Array, key: jax.Array, needed: bool
) -> tuple[jax.Array, jax.Array]:
    """Query and key positions, 0, 1, … by default; `needed` says whether a mask or a bias reads them."""
    if given := sides("positions", queries, keys, query, key):
        return given
    lengths = query.shape[-3], key.shape[-3]
    message = "query_positions and key_positions must be given for {} queries and {} keys"
    require(lengths[0] == lengths[1] or not needed, message, *lengths)
    named = zip(("query", "key"), lengths, strict=True)
    queries, keys = (jnp.arange(_checks.countable(name, n), dtype=jnp.int32) for name, n in named)
    return queries, keys
