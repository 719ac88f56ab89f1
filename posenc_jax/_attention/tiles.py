"""The tiles of attention: queries and keys cut into blocks, and the scores of a query block and a key block.

Blocks of queries are (batch, kv_heads, group, queries, head_dim), those of keys and values (batch, kv_heads, keys,
width). The scores of a tile are (batch, kv_heads, group, queries, keys).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import eval_jaxpr

from posenc_jax._jax import sharding
from posenc_jax._jax.arrays import align, compute_dtype
from posenc_jax._jax.primitives import varying
from posenc_jax._numerics.distances import difference


class Settings(NamedTuple):
    """How to mask, bias and tile the scores."""

    causal: bool  # whether keys at later positions are masked; False if tokens have an order, which masks instead
    window: tuple[int | None, int | None]  # how far before and after its position a query sees keys; None: no bound
    soft_cap: float | None
    scale: float
    block_size: int
    skips: bool = False  # whether to skip a tile in which no query sees a key
    bias: Any = None  # a jaxpr that takes the positions of a tile, and the data of its queries and keys
    tree: Any = None  # the tree structure of `Operands`
    kernel: Any = None  # `hopper.attend.KernelSettings`, if kernels compute attention

    @property
    def masked(self) -> bool:
        """Whether positions mask scores."""
        return self.causal or self.window != (None, None)


class TokenAttributes(NamedTuple):
    """What masks and bias read of queries or keys: (length,) for both, or (batch or 1, length) for both."""

    positions: jax.Array
    segments: jax.Array | None = None
    order: jax.Array | None = None  # a query sees no key of a later order
    is_token: jax.Array | None = None  # for keys: False in the padding of the last block, None without padding
    mask: jax.Array | None = None  # for keys: a mask that all queries share, (batch or 1, heads or 1, 1, keys)


class Operands(NamedTuple):
    """The arrays of attention, or their tangents, None for an array without one."""

    query: Any  # (batch, queries, heads, head_dim)
    key: Any  # (batch, keys, kv_heads, head_dim)
    value: Any  # (batch, keys, kv_heads, value_dim)
    sinks: Any  # (heads,) or None
    query_tokens: Any  # `TokenAttributes`
    key_tokens: Any
    mask: Any  # whether queries see keys, (batch or 1, heads or 1, queries or 1, keys or 1), or None
    query_data: tuple[Any, ...]  # data of the queries, which the bias reads, (batch or 1, queries, heads or 1, …)
    key_data: tuple[Any, ...]  # data of the keys, (batch or 1, keys, kv_heads or 1, …)
    arrays: tuple[Any, ...]  # arrays that the bias closes over
    kernel: tuple[Any, ...] = ()  # the operands of a kernel's bias program, computed from `arrays`


class BiasOperands(NamedTuple):
    """What the bias of a tile reads besides positions, or a value for each of these arrays."""

    arrays: Sequence[Any]
    query_data: Sequence[Any]
    key_data: Sequence[Any]


class Tile(NamedTuple):
    """What masks read of one block of queries beside one block of keys."""

    queries: TokenAttributes
    keys: TokenAttributes
    mask: Any  # of this tile, as `_pack` gives it, or None


# Scores


def logits(settings: Settings, q: jax.Array, k: jax.Array) -> jax.Array:
    """The scaled products c q·k."""
    return dot("bkgqd,bksd->bkgqs", q, k) * settings.scale


def scores(
    settings: Settings,
    logits: Any,
    tile: Tile,
    operands: BiasOperands,
) -> jax.Array:
    """The scores with their cap and bias, −∞ where a query does not see a key."""
    if settings.soft_cap is not None:
        logits = settings.soft_cap * jnp.tanh(logits / settings.soft_cap)
    result, seen = _biased(settings, logits, tile, operands), _seen(settings, tile, *logits.shape[1:])
    return result if seen is None else jnp.where(seen, result, -jnp.inf)


def _biased(settings: Settings, scores: Any, tile: Tile, operands: BiasOperands) -> jax.Array:
    """Adds the bias of the tile to its scores."""
    if settings.bias is None:
        return scores
    kv_heads, group = scores.shape[1:3]
    data = *operands.query_data, *(by_query_heads(x, group) for x in operands.key_data)
    positions = tile.queries.positions, tile.keys.positions
    (bias,) = map(jnp.asarray, eval_jaxpr(settings.bias, operands.arrays, *positions, *data))
    return scores + _split_heads(bias, kv_heads, group).astype(scores.dtype)


def _split_heads(x: jax.Array, kv_heads: int, group: int) -> jax.Array:
    """A tile (batch, heads, queries, keys), or fewer axes, as (batch, kv_heads, group, queries, keys)."""
    batch, heads, *tile = align(x, 4).shape
    return x.reshape(batch, *((kv_heads, group) if heads > 1 else (1, 1)), *tile)


def by_query_heads(x: jax.Array, group: int) -> jax.Array:
    """Data of keys (batch, keys, kv_heads or 1, …) with the heads of the queries, if there are several."""
    if x.shape[2] == 1 or group == 1:
        return x
    shape = (*x.shape[:3], group, *x.shape[3:])
    return jnp.broadcast_to(x[:, :, :, None], shape).reshape(*x.shape[:2], x.shape[2] * group, *x.shape[3:])


def _seen(settings: Settings, tile: Tile, *sizes: int) -> jax.Array | None:
    """Whether a query sees a key, at the rank of the scores; None if nothing is masked.

    `sizes` are those of the scores without their batch: (kv_heads, group, queries, keys).
    """
    masks, (q_tokens, k_tokens, words) = [], tile
    if settings.masked:
        distance, after = difference(q_tokens.positions[..., :, None], k_tokens.positions[..., None, :])
        masks += _masks_by_distance(settings, distance, after)
    if q_tokens.order is not None and k_tokens.order is not None:
        masks.append(q_tokens.order[..., :, None] >= k_tokens.order[..., None, :])
    if q_tokens.segments is not None and k_tokens.segments is not None:
        masks.append(q_tokens.segments[..., :, None] == k_tokens.segments[..., None, :])
    if k_tokens.is_token is not None:
        masks.append(k_tokens.is_token[None, :])
    masks = [x[..., None, None, :, :] if x.ndim == 3 else align(x, 5) for x in masks]
    by_head = k_tokens.mask if words is None else _unpack(words, sizes[2])
    if by_head is not None:
        masks.append(_split_heads(by_head, *sizes[:2]))
    return functools.reduce(jnp.logical_and, masks) if masks else None


def _pack(settings: Settings, mask: jax.Array, keys: int) -> jax.Array:
    """A mask by query as (blocks of queries, blocks of keys, batch, heads, words, keys).

    Each bit of a word is a query, so that what is cut takes an eighth of the mask: XLA copies it, on a TPU all of it to
    another layout (JAX 0.12).
    """
    count, size = grid(settings.block_size, mask.shape[2])
    rows = [(0, 0)] * 2
    mask = jnp.pad(mask, (*rows, (0, count * size - mask.shape[2]), (0, 0)))
    mask = mask.reshape(*mask.shape[:2], count, size, mask.shape[3])
    mask = jnp.pad(mask, (*rows, (0, 0), (0, -size % 32), (0, 0)))
    mask = mask.reshape(*mask.shape[:3], -1, 32, mask.shape[4])
    words = jnp.sum(jnp.where(mask, _bits(6), 0), 4, dtype=jnp.int32)
    words = jnp.broadcast_to(words, (*words.shape[:-1], keys))
    return jnp.moveaxis(_cut(settings, words, -1), 3, 0)


def _unpack(words: jax.Array, queries: int) -> jax.Array:
    """The mask of a tile, (batch, heads, queries, keys)."""
    mask = (words[..., None, :] & _bits(5)) != 0
    return mask.reshape(*words.shape[:2], -1, words.shape[3])[:, :, :queries]


def _bits(ndim: int) -> jax.Array:
    """The 32 bits of an int32 along the last axis but one."""
    shape = (*(1 for _ in range(ndim - 2)), 32, 1)
    return jnp.int32(1) << lax.broadcasted_iota(jnp.int32, shape, ndim - 2)


def _masks_by_distance(settings: Settings, distance: jax.Array, after: jax.Array) -> list[jax.Array]:
    """Whether the causal mask and the window show keys at a distance; `after` says whether they follow the query."""
    masks, (left, right), most = [], settings.window, np.iinfo(distance.dtype).max
    if settings.causal:
        masks.append(~after)
    elif right is not None and right < most:
        masks.append(~after | (distance <= np.asarray(right, distance.dtype)))
    if left is not None and left < most:
        masks.append(after | (distance <= np.asarray(left, distance.dtype)))
    return masks


def scan(step: Callable[..., Any], carry: Any, blocks: Any) -> tuple[Any, Any]:
    """`jax.lax.scan`; a single block runs without a loop, which takes longer to compile than its body."""
    if jax.tree.leaves(blocks)[0].shape[0] > 1:
        return lax.scan(step, carry, blocks)
    carry, y = step(carry, jax.tree.map(lambda x: lax.squeeze(x, [0]), blocks))
    return carry, jax.tree.map(lambda x: lax.expand_dims(x, [0]), y)


def visit_or_skip(settings: Settings, tile: Tile, visit: Callable[[], Any], skip: Callable[[], Any]) -> Any:
    """Runs `visit` for a tile, or `skip` if the attributes of its tokens show that no query sees a key."""
    may_see = _may_see(settings, tile) if settings.skips else None
    return visit() if may_see is None else lax.cond(jnp.any(may_see), visit, skip)


def recomputed(settings: Settings, tile: Tile, visit: Callable[[], Any], skip: Callable[[], Any]) -> Any:
    """`visit_or_skip` whose derivative computes the tile again instead of storing its scores."""
    return jax.checkpoint(functools.partial(visit_or_skip, settings, tile, visit, skip))()


def _may_see(settings: Settings, tile: Tile) -> jax.Array | None:
    """Whether a query may see a key, by the mask and the extremes of each attribute; None if any query may."""
    rules, (q_tokens, k_tokens, words) = [], tile
    if settings.masked:
        (q_low, q_high), (k_low, k_high) = map(_extremes, (q_tokens.positions, k_tokens.positions))
        # If all keys are after all queries, or before them, the nearest two decide.
        for apart, q, k in (q_high < k_low, q_high, k_low), (k_high < q_low, q_low, k_high):
            rules += [~apart | mask for mask in _masks_by_distance(settings, *difference(q, k))]
    if q_tokens.order is not None and k_tokens.order is not None:
        rules.append(_extremes(q_tokens.order)[1] >= _extremes(k_tokens.order)[0])
    if q_tokens.segments is not None and k_tokens.segments is not None:
        (q_low, q_high), (k_low, k_high) = map(_extremes, (q_tokens.segments, k_tokens.segments))
        rules.append((q_low <= k_high) & (k_low <= q_high))
    by_head = k_tokens.mask if words is None else words != 0
    if by_head is not None:
        rules.append(jnp.any(by_head, (1, 2, 3)))
    return functools.reduce(jnp.logical_and, rules) if rules else None


def _extremes(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.min(x, -1), jnp.max(x, -1)


def dot(axes: str, a: jax.Array, b: jax.Array, out_sharding: Any = None) -> jax.Array:
    """An einsum with sums in the compute dtype."""
    return jnp.einsum(axes, a, b, preferred_element_type=compute_dtype(a), out_sharding=out_sharding)


def sums_over_queries(rows: jax.Array, weights: jax.Array, like: jax.Array) -> jax.Array:
    """Sums of rows (..., queries, width), weighted by (..., queries, keys), as columns (..., width, keys).

    They are sharded like keys: they sum over groups of query heads, which Explicit axes may shard. XLA:CPU transposes
    the first operand of this product (JAX 0.10 and 0.12). For sums as rows (..., keys, width), it would transpose the
    weights, which takes as long as the product.
    """
    like_keys = sharding.named_sharding(jax.typeof(like).sharding.spec, like)
    return dot("bkgqd,bkgqs->bkds", rows, weights.astype(rows.dtype), like_keys)


# Cutting arrays (batch, length, heads, width) into blocks of equal size, and joining them


def grid(block_size: int, length: int) -> tuple[int, int]:
    """The number and size of the blocks: as even as possible, and at least 1 each, even for empty arrays."""
    count = max(1, -(-length // block_size))
    return count, max(1, -(-length // count))


def blocks(settings: Settings, x: Operands) -> tuple[Any, Any, Any]:
    """Blocks of (query, data, token attributes), of (key, value, data, token attributes), and of the mask by query."""
    q_tokens, k_tokens, length, mask = x.query_tokens, x.key_tokens, x.key.shape[1], x.mask
    if mask is not None and mask.shape[2] == 1:
        k_tokens, mask = k_tokens._replace(mask=jnp.broadcast_to(mask, (*mask.shape[:3], length))), None
    if length != math.prod(grid(settings.block_size, length)):  # for queries, `join` drops the padding
        k_tokens = k_tokens._replace(is_token=jnp.ones(length, bool))
    q_tokens, k_tokens = jax.tree.map(functools.partial(_cut_attribute, settings), (q_tokens, k_tokens))
    queries, keys = cut_operands(settings, x, x.key.shape[2])
    mask = None if mask is None else _pack(settings, mask, length)
    return (*queries, q_tokens), (*keys, k_tokens), mask


def cut_operands(settings: Settings, x: Operands, kv_heads: int) -> tuple[Any, Any]:
    """Blocks of (query, data) and of (key, value, data); None stays None."""
    query = None if x.query is None else cut_queries(settings, x.query, kv_heads)
    key, value = (None if a is None else _cut(settings, jnp.swapaxes(a, 1, 2)) for a in (x.key, x.value))
    q_data, k_data = jax.tree.map(functools.partial(_cut_data, settings), (x.query_data, x.key_data))
    return (query, q_data), (key, value, k_data)


def _cut_data(settings: Settings, x: jax.Array) -> jax.Array:
    """Cuts data (batch, length, …) into blocks, padded as by `_cut_attribute`, for its reason."""
    length = x.shape[1]
    missing = math.prod(grid(settings.block_size, length)) - length
    if missing and length:
        x = jnp.concatenate([x, jnp.broadcast_to(x[:, -1:], (x.shape[0], missing, *x.shape[2:]))], axis=1)
    return _cut(settings, x, 1 - x.ndim)


def _cut_attribute(settings: Settings, x: jax.Array) -> jax.Array:
    """Cuts an attribute of tokens into blocks."""
    if x.dtype == np.bool_ or not x.shape[-1] or x.shape[-1] == math.prod(grid(settings.block_size, x.shape[-1])):
        return _cut(settings, x, -1)
    # Pads with the last position: elsewhere the bias may not be finite, and its derivative would be 0 · NaN = NaN.
    # Edge padding by jnp.pad would slice the batch axis too, which may be sharded.
    last = x[..., -1:]
    return _cut(settings, x - last, -1) + last[None]


def cut_queries(settings: Settings, x: jax.Array, kv_heads: int, padding: float = 0) -> jax.Array:
    """Cuts an array of queries, (batch, queries, heads) or (batch, queries, heads, width), into blocks."""
    batch, length, heads, *width = x.shape
    x = x.reshape(batch, length, kv_heads, heads // kv_heads, *width)
    return _cut(settings, jnp.moveaxis(x, 1, 3), -1 - len(width), padding)


def _cut(settings: Settings, x: jax.Array, axis: int = -2, padding: float = 0) -> jax.Array:
    """Cuts an axis into blocks along a new first axis, and fills the last block with `padding`."""
    axis += x.ndim
    length = x.shape[axis]
    count, size = grid(settings.block_size, length)
    if count * size != length:
        widths = [(0, count * size - length if i == axis else 0) for i in range(x.ndim)]
        x = jnp.pad(x, widths, constant_values=padding)
    if count == 1:
        return x[None]
    return jnp.moveaxis(x.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :]), axis, 0)


def join(blocks: jax.Array, length: int, *, has_width: bool = True) -> jax.Array:
    """Joins blocks (blocks, batch, ..., block, width) to (batch, length, heads, width); either may lack the width."""
    x = jnp.moveaxis(blocks, 0, -2 - has_width)
    *outer, count, size = x.shape[: x.ndim - has_width]
    x = x.reshape(*outer, count * size, *x.shape[x.ndim - has_width :])
    x = jnp.moveaxis(x, len(outer), 1)[:, :length]
    return x.reshape(*x.shape[:2], math.prod(outer[1:]), *x.shape[x.ndim - has_width :])


def join_data(blocks: jax.Array, length: int) -> jax.Array:
    """Joins blocks (blocks, batch, block, …) to (batch, length, …)."""
    x = jnp.moveaxis(blocks, 0, 1)
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:])[:, :length]


# Accumulators


def full(x: jax.Array, value: float) -> jax.Array:
    """An accumulator filled with `value`, with x's shape and placement on the mesh."""
    return sharding.vary(jnp.full_like(x, value, compute_dtype(x)), varying(x))


def zeros(like: Any) -> Any:
    """Accumulators that start at 0."""
    return jax.tree.map(lambda x: full(x, 0), like)
