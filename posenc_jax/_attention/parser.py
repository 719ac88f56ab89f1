"""Parses the arguments of attention."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from posenc_jax._attention.tiles import Settings
from posenc_jax._biases.parser import parse_tile
from posenc_jax._jax import checks, errors, sharding
from posenc_jax._jax.arrays import align, compute_dtype, unwrap_array
from posenc_jax._jax.errors import invalid, require, wrong_type


def parse_operands(query: Any, key: Any, value: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Query (..., queries, heads, head_dim), key and value (..., keys, kv_heads, width) that fit each other."""
    static_axes, axes = (-3, -2, -1), (..., "keys", "kv_heads")
    query = checks.floats("query", query, (..., "queries", "heads", "head_dim"), static_axes)
    key = checks.floats("key", key, (*axes, "head_dim"), static_axes)
    value = checks.floats("value", value, (*axes, "value_dim"), static_axes)
    shape, spec = query.shape, jax.typeof(query).sharding.spec
    leading = [axis for n, axis in zip(shape[:-3], spec, strict=False) if n != 1]
    if any(axis is not None for axis in leading[1:]):  # the reshape would move data between devices
        message = f"sharded on Explicit axes of a mesh along the first at most, got {spec}; use jax.vmap for the others"
        raise invalid(f"the leading axes of query must be {message}")
    for name, x in {"key": key, "value": value}.items():
        if x.dtype != query.dtype:
            raise wrong_type(f"{name} must have the dtype of query, {query.dtype}, got {x.dtype}")
    if key.shape[:-3] != shape[:-3] or key.shape[-1] != shape[-1]:
        raise invalid(f"key must have the leading axes and the head_dim of query, shape {shape}, got {key.shape}")
    if value.shape[:-1] != key.shape[:-1]:
        raise invalid(f"value must have the axes of key but for the last, shape {key.shape}, got {value.shape}")
    (heads, head_dim), kv_heads = shape[-2:], key.shape[-2]
    require(head_dim >= 1 and value.shape[-1] >= 1, "head_dim and value_dim must be at least 1, got 0")
    if kv_heads < 1 or heads % kv_heads:
        raise invalid(f"the heads of query must be a multiple of those of key, got {heads} and {kv_heads}")
    for name, x in {"query": query, "key": key, "value": value}.items():
        for axis in (-3, -1):
            checks.unsharded(name, x, axis)
    return query, _sharded_as_query("key", key, query), _sharded_as_query("value", value, query)


def parse_data(name: str, data: Any, side: str, x: jax.Array) -> Any:
    """A tree of arrays that belong to queries or keys x, (batch or 1, length, heads or 1, …)."""
    axes, spec = x.shape[:-1], jax.typeof(x).sharding.spec

    def parse(path: Any, leaf: Any) -> jax.Array:
        at = name + jax.tree_util.keystr(path)
        leaf = checks.data(at, leaf)
        shape, rest = leaf.shape[: len(axes)], leaf.shape[len(axes) :]
        fits = (
            len(shape) == len(axes)
            and shape[-2] == axes[-2]
            and all(a in (1, b) for a, b in zip(shape, axes, strict=True))
        )
        message = "{} must begin with the axes of {} before its last, {}, where all but {} may be 1, got {}"
        require(fits, message, at, side, axes, axes[-2], leaf.shape)
        want = PartitionSpec(*spec[:-3], None, spec[-2] if shape[-1] > 1 else None, *(None for _ in rest))
        check_sharded_like(at, jax.typeof(leaf).sharding.spec, side, want)
        if math.prod(shape[:-2]) != 1:
            leaf = jnp.broadcast_to(leaf, (*axes[:-2], *shape[-2:], *rest))
        return leaf.reshape(math.prod(leaf.shape[: len(axes) - 2]), *shape[-2:], *rest)

    return jax.tree_util.tree_map_with_path(parse, data)


def parse_scale(query: jax.Array, scale: Any) -> tuple[jax.Array, float]:
    """The query and its scale as a number; an array multiplies the query, and leaves 1."""
    scale = unwrap_array(1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if not checks.is_array(scale):
        return query, checks.number("scale", scale, float32=True)
    scale = checks.array("scale", scale, checks.FLOATS)
    checks.broadcastable("scale", scale.shape, "query without head_dim", query.shape[:-1])
    want = PartitionSpec(*jax.typeof(query).sharding.spec[:-1])
    check_sharded_like("scale", jax.typeof(scale).sharding.spec, "query", want)
    scale = align(jnp.asarray(scale), query.ndim - 1)[..., None]
    dtype = compute_dtype(query)
    return (query.astype(dtype) * scale.astype(dtype)).astype(query.dtype), 1.0


def parse_sinks(sinks: Any, query: jax.Array) -> jax.Array | None:
    """The logits of sinks, (heads,), sharded like the heads of the query."""
    if sinks is None:
        return None
    sinks, heads = checks.floats("sinks", sinks, ("heads",)), query.shape[-2]
    require(sinks.shape == (heads,), "sinks must have shape (heads,) = ({},), got {}", heads, sinks.shape)
    want = PartitionSpec(jax.typeof(query).sharding.spec[-2])
    check_sharded_like("sinks", jax.typeof(sinks).sharding.spec, "the heads of query", want)
    return sharding.resharded(sinks, want, query)


def _sharded_as_query(name: str, x: jax.Array, query: jax.Array) -> jax.Array:
    """Reshards unsharded axes of keys or values like the queries'; a single head only along the batch."""
    want = sharding.spec_of_keys(x, query)
    check_sharded_like(name, jax.typeof(x).sharding.spec, "query", want)
    parts = math.prod(jax.typeof(query).sharding.mesh.shape[axis] for axis in jax.tree.leaves(want[-2]))
    if x.shape[-2] % parts:
        message = f"as many as query's are split into on Explicit axes of a mesh, {parts}, or a multiple, or one"
        raise invalid(f"the heads of {name} must be {message}, got {x.shape[-2]}")
    return sharding.resharded(x, want, query)


def check_sharded_like(name: str, got: Any, like: str, want: Any) -> None:
    """Raises unless Explicit axes shard each of the last axes as `want` says, or not at all."""
    if not all(a in (None, b) for a, b in zip(got[::-1], want[::-1], strict=False)):
        message = f"sharded on Explicit axes of a mesh as {like} is, {want}, or not at all"
        raise invalid(f"{name} must be {message}, got {got}")


def parse_sides(
    what: str, queries: Any, keys: Any, query: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array] | None:
    """Positions or segments of both sides, whose shapes broadcast to (..., length), or None if neither is given."""
    if queries is None and keys is None:
        return None
    require(queries is not None and keys is not None, "query_{} and key_{} must be given together", what, what)
    queries, keys = parse_tile(queries, keys, checks.INTEGERS, what)
    for side, x, of in ("query", queries, query), ("key", keys, key):
        name, length, spec = f"{side}_{what}", of.shape[-3], jax.typeof(of).sharding.spec
        require(x.shape[-1] == length, "{} must have shape (..., {}), got {}", name, length, x.shape)
        checks.broadcastable(name, x.shape, f"{side} without heads", of.shape[:-2])
        checks.unsharded(name, x)
        check_sharded_like(name, jax.typeof(x).sharding.spec, side, PartitionSpec(*spec[:-3], None))
    return queries, keys


def parse_positions_of_sides(
    queries: Any, keys: Any, query: jax.Array, key: jax.Array, needed: bool
) -> tuple[jax.Array, jax.Array]:
    """Query and key positions, 0, 1, … by default; `needed` says whether a mask or a bias reads them."""
    if given := parse_sides("positions", queries, keys, query, key):
        return given
    n, m = query.shape[-3], key.shape[-3]
    require(n == m or not needed, "query_positions and key_positions must be given for {} queries and {} keys", n, m)
    return counted("query", n), counted("key", m)


def refuse_recurring(queries: Any, keys: Any, left: int | None, causal: bool) -> None:
    """Raises if a query may see a position at two places of a row of keys with another between, as in packed rows.

    Slots at the greatest int32 hold nothing. On an accelerator, positions of queries beside more keys are not read:
    each decode step would wait for the device.
    """
    step = queries.shape[-1] < keys.shape[-1]
    if not checks.is_concrete(queries, keys) or step and not all(map(_on_host, (queries, keys))):
        return
    rows, queries, empty = np.asarray(keys), np.asarray(queries), np.iinfo(np.int32).max
    changes, drops = rows[..., 1:] != rows[..., :-1], (rows[..., 1:] < rows[..., :-1]).sum(-1)
    from_oldest = (drops == 1) & (rows[..., -1:] < rows[..., :1]).all(-1)
    if ((drops == 0) | from_oldest).all() or not queries.size:
        return
    last = np.where(queries == empty, ~empty, queries).max(-1, keepdims=True)
    first = queries.min(-1, keepdims=True).astype(np.int64) - (2**32 if left is None else left)
    seen = (first <= rows) & (rows <= last) & np.insert(changes, 0, True, axis=-1)  # one of a run of equal positions
    size = 4 << rows.shape[-1].bit_length()
    for row, own in zip(
        np.broadcast_to(rows, seen.shape).reshape(-1, rows.shape[-1]), seen.reshape(-1, rows.shape[-1]), strict=True
    ):
        positions, found = row[own], np.zeros(size, bool)
        found[positions & (size - 1)] = True
        if np.count_nonzero(found) < positions.size:  # two remainders are equal, which dense positions never have
            values, counts = np.unique(positions, return_counts=True)
            message = (
                "key_positions must not return to a position after another, got {} twice in a row of keys: pass "
                "query_segments and key_segments for documents and padding (ones, if all may see each other){}"
            )
            orders = "slots as query_order and key_order, or the positions as orders for streams that share their time"
            require((counts == 1).all(), message, *values[counts > 1][:1], f", {orders}" if causal else "")


def _on_host(x: Any) -> bool:
    return isinstance(x, np.ndarray) or all(device.platform == "cpu" for device in x.devices())


def counted(name: str, length: Any) -> jax.Array:
    """The default positions, 0 to length − 1, along the argument `name`."""
    return jnp.arange(checks.countable(name, length), dtype=jnp.int32)


def parse_settings(causal: Any, window: Any, soft_cap: Any, scale: float, block_size: Any) -> Settings:
    """The settings that are plain values."""
    causal, block_size = checks.flag("causal", causal), checks.positive_int("block_size", block_size)
    pair = isinstance(window, tuple) and len(window) == 2
    errors.require_type(pair, "window", "a pair (left, right) of integers or None", window)
    window = tuple(n if n is None else checks.integer(f"window[{i}]", n, 0) for i, n in enumerate(window))
    if soft_cap is not None:  # in these bounds neither scores divided by it nor their derivatives leave float32
        soft_cap = checks.positive("logits_soft_cap", soft_cap)
        bounds = "logits_soft_cap must be from 1e-30 to 1e30, or None for no bound, got {}"
        errors.require(1e-30 <= soft_cap <= 1e30, bounds, soft_cap)
    return Settings(causal, window, soft_cap, scale, block_size)


def by_batch(sides: tuple[Any, Any], batch: tuple[int, ...]) -> tuple[Any, Any]:
    """Both sides: (length,) if all sequences share them, else (batch or 1, length) with the batch axes flattened."""
    if all(x is None or x.ndim == 1 for x in sides):
        return sides

    def flat(x: jax.Array) -> jax.Array:
        if math.prod(x.shape[:-1]) != 1:
            x = jnp.broadcast_to(align(x, len(batch) + 1), (*batch, x.shape[-1]))
        return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])

    return flat(sides[0]), flat(sides[1])
