"""Parses the arguments of attention."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from posenc_jax._attention.tiles import Operands, Settings, TokenAttributes, by_query_heads, grid
from posenc_jax._biases.parser import check_no_coordinates, parse_tile
from posenc_jax._jax import checks, sharding
from posenc_jax._jax.arrays import align, compute_dtype, unwrap_array
from posenc_jax._jax.errors import callback, invalid, require, require_type, wrong_type
from posenc_jax._jax.primitives import interned, retyped, varying


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
        raise invalid(f"the heads of query must be a multiple of the heads of key, got {heads} and {kv_heads}")
    for name, x in {"query": query, "key": key, "value": value}.items():
        for axis in (-3, -1):
            checks.unsharded(name, x, axis)
    key, value = (sharding.sharded_as_query(name, x, query) for name, x in (("key", key), ("value", value)))
    return query, key, value


def parse_scale(query: jax.Array, scale: Any) -> tuple[jax.Array, float]:
    """The query and its scale as a number: 1 if the scale is an array, which multiplies the query."""
    scale = unwrap_array(1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if not checks.is_array(scale):
        return query, checks.number("scale", scale, float32=True)
    scale = checks.array("scale", scale, checks.FLOATS)
    checks.broadcastable("scale", scale.shape, "query without head_dim", query.shape[:-1])
    spec = PartitionSpec(*jax.typeof(query).sharding.spec[:-1])
    checks.sharded_like("scale", jax.typeof(scale).sharding.spec, "query", spec)
    scale = align(jnp.asarray(scale), query.ndim - 1)[..., None]
    dtype = compute_dtype(query)
    return (query.astype(dtype) * scale.astype(dtype)).astype(query.dtype), 1.0


def parse_sinks(sinks: Any, query: jax.Array) -> jax.Array | None:
    """The logits of sinks, (heads,), sharded like the heads of the query."""
    if sinks is None:
        return None
    sinks, heads = checks.floats("sinks", sinks, ("heads",)), query.shape[-2]
    require(sinks.shape == (heads,), "sinks must have shape (heads,) = ({},), got {}", heads, sinks.shape)
    spec = PartitionSpec(jax.typeof(query).sharding.spec[-2])
    checks.sharded_like("sinks", jax.typeof(sinks).sharding.spec, "the heads of query", spec)
    return sharding.resharded(sinks, spec, query)


def parse_window(window: Any) -> tuple[int | None, int | None]:
    """(left, right), the numbers of keys on each side that a query sees; None for no bound."""
    is_pair = isinstance(window, tuple) and len(window) == 2
    require_type(is_pair, "window", "a pair (left, right) of integers or None", window)
    left, right = (n if n is None else checks.integer(f"window[{i}]", n, 0) for i, n in enumerate(window))
    return left, right


def parse_settings(causal: Any, window: Any, soft_cap: Any, scale: float, block_size: Any) -> Settings:
    """The settings that are plain values."""
    causal, block_size = checks.flag("causal", causal), checks.positive_int("block_size", block_size)
    window = parse_window(window)
    if soft_cap is not None:  # in these bounds neither scores divided by it nor their derivatives leave float32
        soft_cap = checks.positive("logits_soft_cap", soft_cap)
        bounds = "logits_soft_cap must be from 1e-30 to 1e30, or None for no bound, got {}"
        require(1e-30 <= soft_cap <= 1e30, bounds, soft_cap)
    return Settings(causal, window, soft_cap, scale, block_size)


def parse_mask(mask: Any, query: jax.Array, key: jax.Array) -> Any:
    """The mask, (batch or 1, heads or 1, queries or 1, keys or 1); None if there is none, or nothing to mask."""
    if mask is None:
        return None
    x: Any = unwrap_array(mask)
    hint = "; an additive mask is a bias" if checks.is_array(x) and jnp.issubdtype(x.dtype, jnp.floating) else ""
    is_boolean = checks.is_array(x) and x.dtype == np.bool_
    require_type(is_boolean, "mask", f"an array of booleans, True where a query sees a key{hint}", mask)
    batch, (queries, heads, _), spec = query.shape[:-3], query.shape[-3:], jax.typeof(query).sharding.spec
    shape = *batch, heads, queries, key.shape[-3]
    fits = x.ndim == len(shape) and checks.broadcasts(x.shape, shape)
    hint = "; for (batch, keys) pass mask[:, None, None, :]" if x.ndim < len(shape) else ""
    message = "mask must have the axes (..., heads, queries, keys), each 1 or that of {}, got {}{}"
    require(fits, message, shape, x.shape, hint)
    like_spec = PartitionSpec(*spec[:-3], spec[-2], None, None)
    checks.sharded_like("mask", jax.typeof(x).sharding.spec, "query", like_spec)
    if not math.prod(shape):
        return None
    if math.prod(x.shape[:-3]) not in (1, math.prod(batch)):
        x = jnp.broadcast_to(x, (*batch, *x.shape[-3:]))
    # What is concrete stays so: a check of the positions reads it.
    return x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:])


Pair = tuple[Any, Any]  # an argument for queries and one for keys


def parse_attributes(
    settings: Settings,
    query: jax.Array,
    key: jax.Array,
    *,
    positions: Pair,
    order: Pair,
    segments: Pair,
    mask: Any,
    has_bias: bool,
    has_data: bool,
) -> tuple[Settings, TokenAttributes, TokenAttributes]:
    """The settings with the masks that these arguments make, and the attributes of queries and of keys."""
    order = parse_pair("order", order, query, key)
    is_ordered = order[0] is not None
    if is_ordered:
        require(settings.causal, "causal must be True if query_order and key_order are given, got False")
        settings = settings._replace(causal=False)
    given = positions = parse_pair("positions", positions, query, key)
    if given[0] is None:
        positions = _count_tokens(query, key, needed=settings.masked or has_bias)
    segments = parse_pair("segments", segments, query, key)
    has_segments = segments[0] is not None
    if not has_data:
        with_batch = mask
        if mask is not None and len(mask) > 1:
            with_batch = mask.reshape(*query.shape[:-3], *mask.shape[1:])
        _reject_packed_rows(query, given, order[0], segments[0], with_batch, settings.causal, settings.window)
    attributes = (_flatten_batch(pair, query.shape[:-3]) for pair in (positions, segments, order))
    query_tokens, key_tokens = map(TokenAttributes, *attributes)
    skips = settings.masked or is_ordered or has_segments or mask is not None
    is_one_tile = all(x.shape[-3] <= settings.block_size for x in (query, key))
    skips &= not is_one_tile or bool(varying(query))  # of keys in parts, whole parts may be hidden
    return settings._replace(skips=skips), query_tokens, key_tokens


def check_positions(
    query: Any,
    *,
    query_positions: Any = None,
    key_positions: Any = None,
    query_order: Any = None,
    query_segments: Any = None,
    mask: Any = None,
    causal: bool = False,
    window: Any = (None, None),
    **_: Any,
) -> None:
    """What `parse_attributes` checks of concrete positions, of arguments that have been parsed; there are no data."""
    if query_positions is not None:
        check_no_coordinates("query_positions", query_positions)
        check_no_coordinates("key_positions", key_positions)
    _reject_packed_rows(query, (query_positions, key_positions), query_order, query_segments, mask, causal, window)


def _reject_packed_rows(
    query: Any, positions: Pair, order: Any, segments: Any, mask: Any, causal: bool, window: Any
) -> None:
    """Raises for key positions that return, where no argument keeps a query from the documents of others.

    Counted positions never return. Orders, segments and masks of queries hide documents, and so may the bias of data.
    """
    masks_by_query = mask is not None and mask.shape[-2] == query.shape[-3]
    if positions[0] is None or order is not None or segments is not None or masks_by_query:
        return
    if not causal and window[1] is None:
        return
    remedy = (
        "query_segments and key_segments for documents and padding (ones, if all may see each other), a mask of "
        "queries and keys"
    )
    if causal:
        remedy += ", slots as query_order and key_order, or positions as orders for streams that share their time"
    reject_returning_positions(*positions, mask, window[0], "key_positions", remedy)


def parse_pair(attribute: str, pair: Pair, query: jax.Array, key: jax.Array) -> Pair:
    """An attribute of queries and of keys, whose shapes broadcast to (..., length); None stays None for both."""
    if all(x is None for x in pair):
        return pair
    complete = all(x is not None for x in pair)
    require(complete, "query_{} and key_{} must be given together", attribute, attribute)
    pair = parse_tile(*pair, checks.INTEGERS, attribute)
    for tokens, x, operand in zip(("query", "key"), pair, (query, key), strict=True):
        name, length, spec = f"{tokens}_{attribute}", operand.shape[-3], jax.typeof(operand).sharding.spec
        require(x.shape[-1] == length, "{} must have shape (..., {}), got {}", name, length, x.shape)
        checks.broadcastable(name, x.shape, f"{tokens} without heads", operand.shape[:-2])
        checks.unsharded(name, x)
        checks.sharded_like(name, jax.typeof(x).sharding.spec, tokens, PartitionSpec(*spec[:-3], None))
    return pair


def _count_tokens(query: jax.Array, key: jax.Array, needed: bool) -> Pair:
    """The default positions, 0, 1, …; `needed` says whether a mask or a bias reads them."""
    n, m = query.shape[-3], key.shape[-3]
    require(n == m or not needed, "query_positions and key_positions must be given for {} queries and {} keys", n, m)
    return checks.counted("query", n), checks.counted("key", m)


def reject_returning_positions(queries: Any, keys: Any, mask: Any, left: int | None, name: str, remedy: str) -> None:
    """Raises if a query may see a position at two places of a row of keys with another between, as in packed rows.

    `left` is how far before its position a query sees keys. The error names the argument and what to pass instead.
    Slots at the greatest int32 are empty, and so are those that a concrete mask hides from all queries. On an
    accelerator, positions of queries beside more keys are not read: each decode step would wait for the device.
    """
    is_step = queries.shape[-1] < keys.shape[-1]
    hides_keys = mask is not None and mask.shape[-3:-1] == (1, 1) and checks.is_concrete(mask)
    arrays = queries, keys, *([mask] if hides_keys else [])
    if not checks.is_concrete(*arrays) or is_step and not all(map(is_on_host, arrays)):
        return
    rows: Any = np.asarray(keys)
    queries, empty = np.asarray(queries), np.iinfo(np.int32).max
    if not all(np.issubdtype(x.dtype, np.integer) for x in (rows, queries)):  # times, by their ranks
        _, ranks = np.unique(np.concatenate([rows.ravel(), queries.ravel()]), return_inverse=True)
        rows, queries, left = ranks[: rows.size].reshape(rows.shape), ranks[rows.size :].reshape(queries.shape), None
    if hides_keys:
        rows = np.where(np.asarray(mask)[..., 0, 0, :], rows, empty)
    changes, drops = rows[..., 1:] != rows[..., :-1], (rows[..., 1:] < rows[..., :-1]).sum(-1)
    is_ring = (drops == 1) & (rows[..., -1:] < rows[..., :1]).all(-1)  # sorted from its oldest slot on
    if ((drops == 0) | is_ring).all() or not queries.size:
        return
    last = np.where(queries == empty, ~empty, queries).max(-1, keepdims=True)
    first = queries.min(-1, keepdims=True).astype(np.int64) - (2**32 if left is None else left)
    # Of a run of equal positions, the first.
    visible = (first <= rows) & (rows <= last) & np.insert(changes, 0, True, axis=-1)
    rows, visible = (x.reshape(-1, rows.shape[-1]) for x in (np.broadcast_to(rows, visible.shape), visible))
    size = 4 << rows.shape[-1].bit_length()
    for row, is_visible in zip(rows, visible, strict=True):
        positions, remainders = row[is_visible], np.zeros(size, bool)
        remainders[positions & (size - 1)] = True
        if np.count_nonzero(remainders) < positions.size:  # two are equal, which they never are of dense positions
            values, counts = np.unique(positions, return_counts=True)
            message = "{} must not return to a position after another, got {} twice in a row of keys: pass {}"
            require((counts == 1).all(), message, name, *values[counts > 1][:1], remedy)


def is_on_host(x: Any) -> bool:
    """Whether reading the values of a concrete array waits for no accelerator."""
    return isinstance(x, np.ndarray) or all(device.platform == "cpu" for device in x.devices())


def _flatten_batch(pair: Pair, batch: tuple[int, ...]) -> Pair:
    """Both of shape (length,) if all sequences share them, else (batch or 1, length)."""
    if all(x is None or x.ndim == 1 for x in pair):
        return pair

    def flatten(x: jax.Array) -> jax.Array:
        if math.prod(x.shape[:-1]) != 1:
            x = jnp.broadcast_to(align(x, len(batch) + 1), (*batch, x.shape[-1]))
        return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])

    return flatten(pair[0]), flatten(pair[1])


def parse_bias(bias: Any, query_data: Any, key_data: Any) -> bool:
    """Whether a bias reads data of the tokens."""
    require_type(bias is None or callable(bias), "bias", "a function of positions", bias)
    has_data = query_data is not None or key_data is not None
    require(bias is not None or not has_data, "bias must be given with query_data or key_data, got None")
    return has_data


class Data(NamedTuple):
    """The arrays that a bias reads of tokens, and how to make its arguments of them."""

    query: tuple[jax.Array, ...] = ()  # (batch or 1, queries, heads or 1, …)
    key: tuple[jax.Array, ...] = ()  # (batch or 1, keys, kv_heads or 1, …)
    structures: tuple[Any, ...] = ()  # the tree structures of query_data and key_data; none if the bias reads neither


def parse_data(query_data: Any, key_data: Any, query: jax.Array, key: jax.Array) -> Data:
    """The data of queries and of keys."""
    if query_data is None and key_data is None:
        return Data()
    data = _parse_data("query_data", query_data, "query", query), _parse_data("key_data", key_data, "key", key)
    (query_leaves, query_tree), (key_leaves, key_tree) = map(jax.tree.flatten, data)
    return Data(tuple(query_leaves), tuple(key_leaves), (query_tree, key_tree))


def _parse_data(name: str, data: Any, tokens: str, x: jax.Array) -> Any:
    """A tree of arrays that belong to queries or keys x, (batch or 1, length, heads or 1, …)."""
    axes, spec = x.shape[:-1], jax.typeof(x).sharding.spec

    def parse(path: Any, leaf: Any) -> jax.Array:
        leaf_name = name + jax.tree_util.keystr(path)
        leaf = checks.data(leaf_name, leaf)
        shape, trailing = leaf.shape[: len(axes)], leaf.shape[len(axes) :]
        fits = (
            len(shape) == len(axes)
            and shape[-2] == axes[-2]
            and all(a in (1, b) for a, b in zip(shape, axes, strict=True))
        )
        message = "{} must begin with the axes of {} before its last, {}, where all but {} may be 1, got {}"
        require(fits, message, leaf_name, tokens, axes, axes[-2], leaf.shape)
        heads = spec[-2] if shape[-1] > 1 else None
        like_spec = PartitionSpec(*spec[:-3], None, heads, *(None for _ in trailing))
        checks.sharded_like(leaf_name, jax.typeof(leaf).sharding.spec, tokens, like_spec)
        if math.prod(shape[:-2]) != 1:
            leaf = jnp.broadcast_to(leaf, (*axes[:-2], *shape[-2:], *trailing))
        return leaf.reshape(math.prod(leaf.shape[: len(axes) - 2]), *shape[-2:], *trailing)

    return jax.tree_util.tree_map_with_path(parse, data)


def trace_bias(
    settings: Settings, bias: Callable[..., Any], x: Operands, structures: tuple[Any, ...]
) -> tuple[Any, tuple[Any, ...]]:
    """The bias of a tile as a jaxpr, whose result fits the scores, and the arrays that it closes over.

    `structures` are the tree structures of its data, () if it takes positions alone.
    """
    positions = [jax.typeof(tokens.positions) for tokens in (x.query_tokens, x.key_tokens)]
    sizes = [grid(settings.block_size, p.shape[-1])[1] for p in positions]
    arguments: list[Any] = [retyped(p, (*p.shape[:-1], n)) for p, n in zip(positions, sizes, strict=True)]
    group = x.query.shape[2] // x.key.shape[2]
    key_data = [jax.eval_shape(functools.partial(by_query_heads, group=group), a) for a in x.key_data]
    for structure, leaves, size in zip(structures, (x.query_data, key_data), sizes, strict=False):
        types = [retyped(a, (a.shape[0], size, *a.shape[2:])) for a in map(jax.typeof, leaves)]
        arguments.append(structure.unflatten(types))
    with callback():
        traced = jax.make_jaxpr(bias)(*arguments)
    outputs: Any = traced.out_avals
    checks.one_float_array("bias", outputs)
    tile = x.query.shape[0], x.query.shape[2], *sizes
    checks.broadcastable("bias", outputs[0].shape, "a tile (batch, heads, queries, keys)", tile)
    batch, _, heads, _ = jax.typeof(x.query).sharding.spec
    like_spec = PartitionSpec(batch, heads, None, None)
    checks.sharded_like("a tile of bias", outputs[0].sharding.spec, "query", like_spec)
    return interned(traced.jaxpr), tuple(traced.consts)
