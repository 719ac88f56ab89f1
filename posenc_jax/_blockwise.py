r"""Blockwise attention, forward and backward: the computation of `attention`.

For the scores $s_{ij} = c\,q_i \cdot k_j + b(i, j)$ of the keys $j$ that query $i$ sees, the forward pass accumulates

$$o_i = \sum_j p_{ij} v_j, \qquad p_{ij} = e^{s_{ij} - m_i} / t_i, \qquad m_i = \max_j s_{ij}, \qquad
  t_i = \sum_j e^{s_{ij} - m_i}, \qquad \ell_i = m_i + \ln t_i$$

tile by tile with a running maximum. The backward pass recomputes each tile from $m$ and $t$, not from $\ell$: for a
query whose keys are all distant, a bias can make $m$ so large that $\ell$ in float32 loses $\ln t$. With
$\delta_i = \dot o_i \cdot o_i - \dot\ell_i$ for the cotangents $\dot o$ and $\dot\ell$,

$$\dot v_j = \sum_i p_{ij} \dot o_i, \qquad \dot s_{ij} = p_{ij} (\dot o_i \cdot v_j - \delta_i), \qquad
  \dot q_i = c \sum_j \dot s_{ij} k_j, \qquad \dot k_j = c \sum_i \dot s_{ij} q_i,$$

and $\dot s$ is the cotangent of the tile's bias.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import eval_jaxpr

from posenc_jax import _mesh
from posenc_jax._arrays import align, compute_dtype
from posenc_jax._xla import compiled


class BlockwiseSettings(NamedTuple):
    """How to mask, bias and tile the scores."""

    causal: bool
    scale: float
    block_size: int
    skips: bool = False  # whether to skip a tile in which no query sees a key
    residual: bool = False  # whether to return ℓ too
    bias: Any = None  # a jaxpr that takes the positions of a tile
    learned: tuple[int, ...] = ()  # indices of the arrays that bias closes over and that may have derivatives


class Side(NamedTuple):
    """What masks and bias read of queries or keys: (length,) on both sides, or (batch or 1, length) on both."""

    positions: jax.Array
    segments: jax.Array | None = None
    real: jax.Array | None = None  # for keys: False in the padding of the last block, None without padding


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(settings: BlockwiseSettings, query: Any, key: Any, value: Any, sides: Any, arrays: Any) -> Any:
    return _forward(settings, query, key, value, sides, arrays)[0]


def _forward(
    settings: BlockwiseSettings, query: Any, key: Any, value: Any, sides: Any, arrays: Any
) -> tuple[Any, tuple[Any, ...]]:
    queries, keys = _blocks(settings, query, key, value, sides)

    def row(block: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        q, q_side = block

        def step(sums: Any, block: Any) -> tuple[Any, None]:
            k, v, k_side = block
            top, total, out = sums

            def visit() -> Any:
                scores = _scores(settings, q, k, q_side, k_side, arrays)
                higher = jnp.maximum(top, jnp.max(scores, -1))
                finite = jnp.where(jnp.isneginf(higher), 0, higher)  # −∞ until the query sees a key
                p, shrink = jnp.exp(scores - finite[..., None]), jnp.exp(top - finite)
                seen = _dot("bkgqs,bksd->bkgqd", p.astype(v.dtype), v)
                return higher, total * shrink + jnp.sum(p, -1), out * shrink[..., None] + seen

            return _visit_or_skip(settings, q_side, k_side, visit, lambda: sums), None

        start = _full(q[..., 0], -jnp.inf), _full(q[..., 0], 0), _full(q, 0)
        (top, total, out), _ = lax.scan(step, start, keys)
        total = jnp.where(total == 0, 1, total)  # 0 if the query sees no key
        return (out / total[..., None]).astype(q.dtype), top, total

    out, top, total = lax.map(row, queries)
    out = _join(out, query)
    results = (out, _join((top + jnp.log(total))[..., None], query[..., :1])[..., 0]) if settings.residual else out
    return results, (query, key, value, sides, arrays, out, top, total)


def _backward(settings: BlockwiseSettings, residuals: Any, d_results: Any) -> tuple[Any, ...]:
    query, key, value, sides, arrays, out, top, total = residuals
    top = jnp.where(jnp.isneginf(top), 0, top)  # −∞, like all its scores, if the query sees no key
    share = 1 / total
    d_out, d_normalizer = d_results if settings.residual else (d_results, None)
    queries, keys = _blocks(settings, query, key, value, sides)
    dtype = compute_dtype(query)
    d_outs, outs = (_cut(settings, _heads_first(x, key.shape[2])) for x in (d_out, out))
    delta = jnp.sum(d_outs.astype(dtype) * outs.astype(dtype), -1)
    if d_normalizer is not None:
        delta -= _cut(settings, _heads_first(d_normalizer[..., None], key.shape[2]))[..., 0]
    learned = [arrays[i] for i in settings.learned]

    def biased(q_side: Side, k_side: Side, scores: Any, *learned: Any) -> jax.Array:
        given = dict(enumerate(arrays)) | dict(zip(settings.learned, learned, strict=True))
        return _biased(settings, scores, q_side, k_side, list(given.values()))

    def column(carry: Any, block: Any) -> tuple[Any, Any]:
        k, v, k_side = block

        def step(carry: Any, block: Any) -> tuple[Any, None]:
            i, (q, q_side), do, top, share, delta = block

            def visit() -> Any:
                p = jnp.exp(_scores(settings, q, k, q_side, k_side, arrays) - top[..., None]) * share[..., None]
                ds = p * (_dot("bkgqd,bksd->bkgqs", do, v) - delta[..., None])
                dv = _dot("bkgqs,bkgqd->bksd", p.astype(do.dtype), do, like=v)
                d_learned = ()
                if learned:
                    d_learned = jax.vjp(functools.partial(biased, q_side, k_side, _full(ds, 0)), *learned)[1](ds)
                ds = ds.astype(q.dtype)
                dq, dk = _dot("bkgqs,bksd->bkgqd", ds, k), _dot("bkgqs,bkgqd->bksd", ds, q, like=k)
                return dq, (dk, dv, [x.astype(compute_dtype(x)) for x in d_learned])

            dq, sums = carry
            tile = _visit_or_skip(settings, q_side, k_side, visit, lambda: _zeros((q, (k, v, learned))))
            return (dq.at[i].add(tile[0]), jax.tree.map(jnp.add, sums, tile[1])), None

        dq, d_learned = carry
        index = jnp.arange(len(queries[0]), dtype=jnp.int32)
        blocks = index, queries, d_outs, top, share, delta
        (dq, (dk, dv, d_learned)), _ = lax.scan(step, (dq, (*_zeros((k, v)), d_learned)), blocks)
        return (dq, d_learned), ((dk * settings.scale).astype(k.dtype), dv.astype(v.dtype))

    (dq, d_learned), d_keys = lax.scan(column, (_zeros(queries[0]), _zeros(learned)), keys)
    d_arrays = [None] * len(arrays)
    for i, x in zip(settings.learned, d_learned, strict=True):
        d_arrays[i] = x.astype(arrays[i].dtype)
    dq = _join((dq * settings.scale).astype(query.dtype), query)
    return dq, *(_join(x, key) for x in d_keys), None, d_arrays


# Jitted, because an eager `jax.grad` would run it op by op.
_attention.defvjp(_forward, jax.jit(_backward, static_argnums=0, inline=True))
blockwise = compiled("attention", static_argnums=0)(_attention)


# A tile: queries (batch, kv_heads, group, queries, head_dim), keys (batch, kv_heads, keys, head_dim)


def _scores(settings: BlockwiseSettings, q: Any, k: Any, q_side: Side, k_side: Side, arrays: Any) -> jax.Array:
    """The scores (batch, kv_heads, group, queries, keys), −∞ where a query does not see a key."""
    scores = _biased(settings, _dot("bkgqd,bksd->bkgqs", q, k) * settings.scale, q_side, k_side, arrays)
    seen = _seen(settings, q_side, k_side)
    if seen is None:
        return scores
    return jnp.where(seen[..., None, None, :, :] if seen.ndim == 3 else align(seen, 5), scores, -jnp.inf)


def _biased(settings: BlockwiseSettings, scores: Any, q_side: Side, k_side: Side, arrays: Any) -> jax.Array:
    """Adds the bias of the tile to its scores."""
    if settings.bias is None:
        return scores
    (bias,) = map(jnp.asarray, eval_jaxpr(settings.bias, arrays, q_side.positions, k_side.positions))
    batch, heads, *tile = align(bias, 4).shape
    groups = scores.shape[1:3] if heads > 1 else (1, 1)
    return scores + bias.reshape(batch, *groups, *tile).astype(scores.dtype)


def _seen(settings: BlockwiseSettings, q_side: Side, k_side: Side) -> jax.Array | None:
    """Whether a query sees a key, (queries, keys) or (batch or 1, queries, keys); None if nothing is masked."""
    seen = []
    if settings.causal:
        seen.append(q_side.positions[..., :, None] >= k_side.positions[..., None, :])
    if q_side.segments is not None and k_side.segments is not None:
        seen.append(q_side.segments[..., :, None] == k_side.segments[..., None, :])
    if k_side.real is not None:
        seen.append(k_side.real[None, :])
    ndim = max((x.ndim for x in seen), default=0)
    return functools.reduce(jnp.logical_and, (align(x, ndim) for x in seen)) if seen else None


def _visit_or_skip(
    settings: BlockwiseSettings, q_side: Side, k_side: Side, visit: Callable[[], Any], skip: Callable[[], Any]
) -> Any:
    """Runs `visit` for a tile, or `skip` if none of its queries sees a key."""
    seen = _seen(settings, q_side, k_side) if settings.skips else None
    return visit() if seen is None else lax.cond(jnp.any(seen), visit, skip)


def _dot(axes: str, a: jax.Array, b: jax.Array, like: jax.Array | None = None) -> jax.Array:
    """An einsum, sharded like `like` if it sums over groups of query heads, which Explicit axes may shard."""
    sharding = None if like is None else _mesh.sharding(jax.typeof(like).sharding.spec, like)
    return jnp.einsum(axes, a, b, preferred_element_type=compute_dtype(a), out_sharding=sharding)


# Cutting arrays (batch, length, heads, head_dim) into blocks of equal size, and joining them


def grid(settings: BlockwiseSettings, length: int) -> tuple[int, int]:
    """The number and size of the blocks: as even as possible, and at least 1 each, even for empty arrays."""
    count = max(1, -(-length // settings.block_size))
    return count, max(1, -(-length // count))


def _blocks(settings: BlockwiseSettings, query: Any, key: Any, value: Any, sides: Any) -> tuple[Any, Any]:
    """Cuts the queries and their side, and the keys and values and their side, into blocks."""
    (q_side, k_side), (length, kv_heads) = sides, key.shape[1:3]
    if length != math.prod(grid(settings, length)):  # for queries, `_join` drops the padding
        k_side = k_side._replace(real=jnp.ones(length, bool))
    q_side, k_side = (jax.tree.map(functools.partial(_cut_side, settings), side) for side in (q_side, k_side))
    keys = (_cut(settings, jnp.swapaxes(x, 1, 2)) for x in (key, value))
    return (_cut(settings, _heads_first(query, kv_heads)), q_side), (*keys, k_side)


def _cut_side(settings: BlockwiseSettings, x: jax.Array) -> jax.Array:
    """Cuts positions, segments or a mask into blocks."""
    if x.dtype == np.bool_ or not x.shape[-1]:
        return _cut(settings, x, -1)
    # Pads with the last position: elsewhere the bias may not be finite, and its derivative would be 0 · NaN = NaN.
    # Edge padding by jnp.pad would slice the batch axis too, which may be sharded.
    last = x[..., -1:]
    return _cut(settings, x - last, -1) + last[None]


def _heads_first(x: jax.Array, kv_heads: int) -> jax.Array:
    """Transposes to (batch, kv_heads, group, length, head_dim)."""
    batch, length, heads, width = x.shape
    return x.reshape(batch, length, kv_heads, heads // kv_heads, width).transpose(0, 2, 3, 1, 4)


def _cut(settings: BlockwiseSettings, x: jax.Array, axis: int = -2) -> jax.Array:
    """Cuts an axis into blocks along a new first axis, and pads the last block with zeros."""
    axis += x.ndim
    length = x.shape[axis]
    count, size = grid(settings, length)
    x = jnp.pad(x, [(0, count * size - length if i == axis else 0) for i in range(x.ndim)])
    return jnp.moveaxis(x.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :]), axis, 0)


def _join(blocks: jax.Array, like: jax.Array) -> jax.Array:
    """Joins blocks (blocks, batch, ..., block, head_dim) into an array with the shape of `like`."""
    x = jnp.moveaxis(blocks, 0, -3)
    x = x.reshape(*x.shape[:-3], x.shape[-3] * x.shape[-2], x.shape[-1])[..., : like.shape[1], :]
    return jnp.moveaxis(x, -2, 1).reshape(like.shape)


def _full(x: jax.Array, value: float) -> jax.Array:
    """An accumulator filled with `value`, with x's shape and placement on the mesh."""
    return _mesh.vary(jnp.full_like(x, value, compute_dtype(x)), _mesh.varying(x))


def _zeros(like: Any) -> Any:
    """Accumulators that start at 0."""
    return jax.tree.map(lambda x: _full(x, 0), like)
