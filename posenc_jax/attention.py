"""Attention whose memory grows with the length, not with its square, under any bias of positions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Literal, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike

from posenc_jax import _check, _mesh
from posenc_jax._blockwise import Settings, Side, blockwise, grid


class _Options(TypedDict, total=False):
    bias: Callable[[jax.Array, jax.Array], jax.Array] | None
    query_positions: ArrayLike | None
    key_positions: ArrayLike | None
    query_segments: ArrayLike | None
    key_segments: ArrayLike | None
    causal: bool
    scale: float | None
    block_size: int


@overload
def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    return_residual: Literal[False] = ...,
    **options: Unpack[_Options],
) -> jax.Array: ...
@overload
def attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, *, return_residual: Literal[True], **options: Unpack[_Options]
) -> tuple[jax.Array, jax.Array]: ...
def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    bias: Callable[[jax.Array, jax.Array], jax.Array] | None = None,
    query_positions: ArrayLike | None = None,
    key_positions: ArrayLike | None = None,
    query_segments: ArrayLike | None = None,
    key_segments: ArrayLike | None = None,
    causal: bool = False,
    scale: float | None = None,
    block_size: int = 512,
    return_residual: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    r"""Attention in memory that grows with the length, not with its square.

    $$o_i = \sum_j \frac{e^{s_{ij}}}{\sum_k e^{s_{ik}}} v_j, \qquad s_{ij} = c\,q_i \cdot k_j + b(i, j),$$

    over the keys $j$ that query $i$ sees, with the results and derivatives of `jax.nn.dot_product_attention` under a
    dense bias, in tiles of at most block_size queries and as many keys. The bias is computed where it is used, in the
    derivative too. A tile in which nothing is seen costs nothing. A query that sees nothing gives zeros.

    Scores and sums are of float32 (float64 for float64); weights are multiplied in the dtype of value. It is
    differentiable in reverse mode, in the arrays that bias closes over too. What a query does not see must be finite
    all the same, as in any attention. Lengths must be known when tracing. A call with a bias is compiled anew each time
    unless it is inside `jax.jit`. On a mesh with Explicit axes sequences must not be sharded, nor leading axes after
    the first; `jax.vmap` takes those. Inside `jax.shard_map` sequences may be; give bias its replicated parameters as
    `jax.lax.pcast(parameters, axes, to="varying")` there: their cotangents are then summed over devices once, and not
    for every tile.

    Keys in parts $s$, such as those of several devices, are attended to one part at a time: of the results $o^s$ and
    residuals $\ell^s_i = \ln \sum_{j \in s} e^{s_{ij}}$ of all parts

    $$\ell_i = \ln \sum_s e^{\ell^s_i}, \qquad o_i = \sum_s e^{\ell^s_i - \ell_i} o^s_i.$$

    In float32 a residual is right to $2^{-24} |\ell^s_i|$: where a bias of far keys is all that a query has, parts are
    weighed no better than that.

    Args:
      query: floats of shape (..., queries, heads, head_dim).
      key: of shape (..., keys, kv_heads, head_dim) and query's dtype; each of its heads serves heads / kv_heads
        consecutive ones of query.
      value: like key.
      bias: $b$, a function of positions (..., queries) and (..., keys) of a tile to floats that broadcast to (batch,
        heads, queries, keys), such as `lambda i, j: alibi(i, j, 8)`. Positions have an axis of batches, or of one, only
        if query_positions or key_positions has.
      query_positions: integers of shape (..., queries), leading axes broadcast to those of query. If both are None,
        both count from 0; with as many keys as queries, unless neither the mask nor a bias asks for them.
      key_positions: integers of shape (..., keys), in the same way, given if query_positions is.
      query_segments: integers of shape (..., queries), in the same way: a query sees keys with its own number only.
      key_segments: integers of shape (..., keys), in the same way, given if query_segments is.
      causal: whether a query sees no key at a position after its own.
      scale: $c$; None for $1/\sqrt{\text{head\_dim}}$.
      block_size: how many queries, and how many keys, a tile has.
      return_residual: whether to return $\ell_i = \ln \sum_j e^{s_{ij}}$ too. Unlike that of
        `jax.nn.dot_product_attention` it has a derivative, and is not rounded to the dtype of key.

    Returns:
      Like query. With return_residual, that and the residuals, of shape (..., queries, heads), in float32 (float64 for
      float64): $-\infty$ where a query sees nothing.

    Raises:
      TypeError: if an operand is not of floats or not of query's dtype, positions or segments are not integers, bias is
        not a function or gives anything but floats, or another argument has the wrong type.
      ValueError: if shapes do not fit each other, the heads of query are no multiple of key's, positions or segments of
        one side only are given, positions are needed and cannot be counted, a tile of the bias has another shape,
        block_size is below 1, a length, heads or head_dim are symbolic, or on Explicit axes a sequence, head_dim or
        second leading axis is sharded, or a key's or the bias's batch or heads otherwise than query's.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 1000, 8, 16))
      >>> @jax.jit
      ... def attend(q, k, v):
      ...     return pe.attention(q, k, v, bias=lambda i, j: pe.alibi(i, j, 8), causal=True, block_size=128)
      >>> attend(q, k, v).shape
      (2, 1000, 8, 16)

      One step of decoding, with the keys of a cache of which 7 are written:

      >>> position = jnp.full((2, 1), 6)
      >>> y = pe.attention(q[:, 6:7], k, v, query_positions=position, key_positions=jnp.arange(1000), causal=True)
      >>> bool(jnp.allclose(y, pe.attention(q[:, :7], k[:, :7], v[:, :7], causal=True)[:, 6:], atol=1e-6))
      True

      Keys in two parts:

      >>> parts = [pe.attention(q, k[:, s], v[:, s], return_residual=True) for s in (slice(600), slice(600, None))]
      >>> (a, of_a), (b, of_b) = parts
      >>> share = jax.nn.sigmoid(of_a - of_b)[..., None]
      >>> bool(jnp.allclose(share * a + (1 - share) * b, pe.attention(q, k, v), atol=1e-6))
      True

    Reference:
      Rabe and Staats, "Self-attention Does Not Need O(n²) Memory", 2021, section 2; Dao et al., "FlashAttention", 2022,
      appendix B, for the derivative.
    """
    where = "attention"
    operands = _operands(where, query, key, value)
    query, key, _ = operands
    if bias is not None and not callable(bias):
        raise TypeError(f"{where}: bias must be a function of positions, got {_check.describe(bias)}")
    causal = _check.flag(where, "causal", causal)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else _check.number(where, "scale", scale)
    if abs(scale) > float(np.finfo(np.float32).max):
        raise ValueError(f"{where}: scale must fit into float32, got {scale}")
    block_size = _check.positive_int(where, "block_size", block_size)
    return_residual = _check.flag(where, "return_residual", return_residual)
    positions = _rows(where, "positions", query_positions, key_positions, query, key)
    if positions is None:
        lengths = query.shape[-3], key.shape[-3]
        if lengths[0] != lengths[1] and (causal or bias is not None):
            message = "query_positions and key_positions must be given for {} queries and {} keys"
            raise ValueError(f"{where}: {message.format(*lengths)}")
        named = zip(("query", "key"), lengths, strict=True)
        positions = tuple(jnp.arange(_check.counted(where, name, n), dtype=jnp.int32) for name, n in named)
    segments = _rows(where, "segments", query_segments, key_segments, query, key) or (None, None)
    sides = tuple(map(Side, positions, segments))
    operands = tuple(x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:]) for x in operands)
    # All as varying along the same axes of a mesh; the transpose of this sums the cotangents along them, once.
    axes = frozenset().union(*map(_mesh.varying, jax.tree.leaves((operands, sides))))
    operands, sides = jax.tree.map(functools.partial(_mesh.vary, axes=axes), (operands, sides))
    skips = causal or query_segments is not None
    settings, arrays = Settings(causal, scale, block_size, skips, return_residual), []
    if bias is not None:
        settings, arrays = _traced(where, settings, bias, operands, sides, axes)
    results = blockwise(settings, *operands, sides, arrays)
    if return_residual:
        return results[0].reshape(query.shape), results[1].reshape(query.shape[:-1])
    return results.reshape(query.shape)


# What the arguments may be


def _operands(where, query, key, value):
    axes = "(..., queries, heads, head_dim)", *["(..., keys, kv_heads, head_dim)"] * 2
    named = zip(("query", "key", "value"), (query, key, value), axes, strict=True)
    query, key, value = (_check.floats(where, name, x, of) for name, x, of in named)
    for name, x in (("query", query), ("key", key), ("value", value)):
        _check.known_size(where, name, x.shape, -3, -2, -1)
    leading = [(n, axis) for n, axis in zip(query.shape[:-3], jax.typeof(query).sharding.spec, strict=False) if n != 1]
    if any(axis is not None for _, axis in leading[1:]):  # a reshape that would move parts
        message = f"sharded on Explicit axes of a mesh along the first at most, got {jax.typeof(query).sharding.spec}"
        raise ValueError(f"{where}: the leading axes of query must be {message}; use jax.vmap for the others")
    for name, x in (("key", key), ("value", value)):
        if x.dtype != query.dtype:
            raise TypeError(f"{where}: {name} must have the dtype of query, {query.dtype}, got {x.dtype}")
    if key.ndim != query.ndim or key.shape[:-3] != query.shape[:-3] or key.shape[-1] != query.shape[-1]:
        message = f"key must have the leading axes and the head_dim of query, shape {query.shape}, got {key.shape}"
        raise ValueError(f"{where}: {message}")
    if value.shape != key.shape:
        raise ValueError(f"{where}: value must have the shape of key, {key.shape}, got {value.shape}")
    (heads, head_dim), kv_heads = query.shape[-2:], key.shape[-2]
    if head_dim < 1:
        raise ValueError(f"{where}: head_dim must be at least 1, got 0")
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"{where}: the heads of query must be a multiple of those of key, got {heads} and {kv_heads}")
    for name, x in (("query", query), ("key", key), ("value", value)):
        for axis in (-3, -1):
            _check.whole(where, name, x, axis)
    return query, _placed(where, "key", key, query), _placed(where, "value", value, query)


def _placed(where, name, x, query) -> jax.Array:
    """Keys or values split on Explicit axes as the queries are, where they are whole; of one head, along the batch."""
    (*batch, _, heads, _), got = jax.typeof(query).sharding.spec, jax.typeof(x).sharding.spec
    want = P(*batch, None, heads if x.shape[-2] > 1 else None, None)
    _follows(where, name, got, "query", want)
    parts = math.prod(jax.typeof(query).sharding.mesh.shape[axis] for axis in jax.tree.leaves(want[-2]))
    if x.shape[-2] % parts:
        message = f"as many as query's are split into on Explicit axes of a mesh, {parts}, or a multiple, or one"
        raise ValueError(f"{where}: the heads of {name} must be {message}, got {x.shape[-2]}")
    return x if got == want else jax.sharding.reshard(x, _mesh.sharding(want, query))


def _follows(where, name, got, like, want):
    """Raises unless the last axes are split on Explicit axes as `want` says, or whole."""
    if any(a not in (None, b) for a, b in zip(got[::-1], want[::-1], strict=False)):
        message = f"sharded on Explicit axes of a mesh as {like} is, {want}, or not at all, got {got}"
        raise ValueError(f"{where}: {name} must be {message}")


def _rows(where, what, queries, keys, query, key):
    """Positions or segments of both sides, as a `Side` has them, or None."""
    if queries is None and keys is None:
        return None
    if queries is None or keys is None:
        raise ValueError(f"{where}: query_{what} and key_{what} must be given together")
    rows = _check.pair(where, what, queries, keys, "an integer array")
    for side, x, of in zip(("query", "key"), rows, (query, key), strict=True):
        length = of.shape[-3]
        if x.shape[-1] != length:
            raise ValueError(f"{where}: {side}_{what} must have shape (..., {length}), got {x.shape}")
        _check.broadcastable(where, f"{side}_{what}", x.shape, f"{side} without heads", of.shape[:-2])
        _check.whole(where, f"{side}_{what}", x)
        spec, got = (jax.typeof(a).sharding.spec for a in (of, x))
        _follows(where, f"{side}_{what}", got, side, P(*spec[:-3], None))
    if all(x.ndim == 1 for x in rows):
        return rows
    return tuple(_of_batch(x, of.shape[:-3]) for x, of in zip(rows, (query, key), strict=True))


def _of_batch(x, batch):
    """(1, length) if it is one for all, or (batch, length)."""
    if math.prod(x.shape[:-1]) != 1:
        x = jnp.broadcast_to(x.reshape((1,) * (len(batch) + 1 - x.ndim) + x.shape), (*batch, x.shape[-1]))
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _traced(where, settings, bias, operands, sides, axes):
    """The settings with the bias as a jaxpr, and the arrays it closes over, of which derivatives are to be explicit."""
    positions = [jax.typeof(side.positions) for side in sides]
    tiles = [x.update(shape=(*x.shape[:-1], grid(settings, x.shape[-1])[1]), weak_type=False) for x in positions]
    traced = jax.make_jaxpr(bias)(*tiles)
    found, arrays = traced.out_avals, traced.consts
    if len(found) != 1 or not jnp.issubdtype(found[0].dtype, jnp.floating):
        raise TypeError(f"{where}: bias must give one float array, got {', '.join(map(str, found)) or 'none'}")
    target = operands[0].shape[0], operands[0].shape[2], *(x.shape[-1] for x in tiles)
    _check.broadcastable(where, "bias", found[0].shape, "a tile (batch, heads, queries, keys)", target)
    batch, _, heads, _ = jax.typeof(operands[0]).sharding.spec
    _follows(where, "a tile of bias", found[0].sharding.spec, "query", P(batch, heads, None, None))
    # Only what is being transformed can have a derivative.
    learned = [i for i, x in enumerate(arrays) if isinstance(x, Tracer) and jnp.issubdtype(x.dtype, jnp.floating)]
    # The cotangent of a parameter that is the same along an axis is summed along it with every tile, on all devices.
    skips = settings.skips and all(_mesh.varying(arrays[i]) == axes for i in learned)
    return settings._replace(skips=skips, bias=traced.jaxpr, learned=tuple(learned)), arrays
