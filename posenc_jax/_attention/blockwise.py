r"""Blockwise attention with its derivative in both modes: the computation of `attention`.

For the scores $s_{ij}$ of the keys $j$ that query $i$ sees, and the score $s_{i0}$ of a sink with $v_0 = 0$,

$$o_i = \sum_j p_{ij} v_j, \qquad p_{ij} = e^{s_{ij} - m_i} / t_i, \qquad m_i = \max_j s_{ij}, \qquad
  t_i = \sum_j e^{s_{ij} - m_i}$$

accumulate tile by tile with a running maximum. The derivatives compute each tile again from $m$ and $t$. (From
$\ell = m + \ln t$ they would be wrong for a query whose keys are all distant: a bias can make $m$ so large that float32
loses $\ln t$.) Only $m_i + \ln t_i$ is ever used, so $m$ may count as a constant. The tangent is

$$\dot o_i = \sum_j p_{ij} \dot v_j + \sum_j p_{ij} \dot s_{ij} (v_j - o_i), \qquad
  \dot t_i = t_i \sum_j p_{ij} \dot s_{ij},$$

and its transpose, with $\delta_i = \bar o_i \cdot o_i - \bar t_i t_i$,

$$\bar v_j = \sum_i p_{ij} \bar o_i, \qquad \bar s_{ij} = p_{ij} (\bar o_i \cdot v_j - \delta_i).$$

For $s_{ij} = c\,q_i \cdot k_j$ that is $\bar q_i = c \sum_j \bar s_{ij} k_j$ and $\bar k_j = c \sum_i \bar s_{ij} q_i$.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from posenc_jax._attention import tiles
from posenc_jax._attention.tiles import Operands, Settings
from posenc_jax._jax.arrays import align, compute_dtype
from posenc_jax._jax.derivatives import operation
from posenc_jax._jax.primitives import differentiated, retyped


def types(settings: Settings, *leaves: Any) -> list[Any]:
    """The types of o (batch, queries, heads, value_dim), and of t and m (batch, queries, heads)."""
    x: Operands = settings.tree.unflatten(leaves)
    query, dtype = x.query, compute_dtype(x.query)
    out = retyped(query, (*query.shape[:-1], x.value.shape[-1]))
    sums = retyped(query, query.shape[:-1], dtype=dtype, spec=query.sharding.spec[:-1])
    return [out, sums, sums]


def _forward(settings: Settings, *leaves: Any) -> list[jax.Array]:
    x: Operands = settings.tree.unflatten(leaves)
    queries, keys = tiles.blocks(settings, x)

    def row(block: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        q, q_data, q_side = block

        def step(sums: Any, block: Any) -> tuple[Any, None]:
            k, v, k_data, k_side = block
            top, total, out = sums

            def visit() -> Any:
                read = x.arrays, q_data, k_data
                scores = tiles.scores(settings, tiles.logits(settings, q, k), q_side, k_side, read)
                higher = jnp.maximum(top, jnp.max(scores, -1))
                p, shrink = jnp.exp(scores - _finite(higher)[..., None]), jnp.exp(top - _finite(higher))
                return higher, total * shrink + jnp.sum(p, -1), out * shrink[..., None] + _weighted(p, v)

            return tiles.visit_or_skip(settings, q_side, k_side, visit, lambda: sums), None

        (top, total, out), _ = lax.scan(step, _start(x, q), keys)
        total = jnp.where(total == 0, 1, total)  # 0 if the query sees no key
        return (out / total[..., None]).astype(q.dtype), total, top

    out, total, top = lax.map(row, queries)
    length = x.query.shape[1]
    return [tiles.join(out, length), *(tiles.join(y, length, 0) for y in (total, top))]


def _start(x: Operands, q: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The maximum, the sum of weights and the output before any key: those of the sink."""
    out = jnp.broadcast_to(tiles.full(q[..., :1], 0), (*q.shape[:-1], x.value.shape[-1]))
    top = tiles.full(q[..., 0], -jnp.inf if x.sinks is None else 0)
    if x.sinks is None:
        return top, tiles.full(q[..., 0], 0), out
    top += x.sinks.astype(top.dtype).reshape(1, *q.shape[1:3], 1)
    return top, jnp.exp(top - _finite(top)), out


def _cut_tops(settings: Settings, top: jax.Array, kv_heads: int) -> jax.Array:
    """Blocks of the maxima, ∞ in the padding: its weights are 0 under any bias, and so are their derivatives."""
    return tiles.cut_queries(settings, _finite(top), kv_heads, jnp.inf)


def _sink_weights(x: Operands, total: jax.Array, top: jax.Array) -> jax.Array:
    """The weight of each query's sink, (batch, queries, heads)."""
    return jnp.exp(align(x.sinks.astype(total.dtype), 3) - _finite(top)) / total


def cotangent_of_sinks(x: Operands, total: jax.Array, top: jax.Array, delta: jax.Array) -> jax.Array:
    """From δ of each query, (batch, queries, heads)."""
    return -jnp.sum(_sink_weights(x, total, top) * delta, (0, 1)).astype(x.sinks.dtype)


def _finite(top: jax.Array) -> jax.Array:
    """The maximum, or 0 where it is −∞, like all scores, because the query sees no key."""
    return jnp.where(jnp.isneginf(top), 0, top)


def tangent(settings: Settings, leaves: Sequence[Any], outputs: Any, tangents: Sequence[Any]) -> list[jax.Array]:
    x, d = (settings.tree.unflatten(y) for y in (leaves, tangents))
    queries, keys = tiles.blocks(settings, x)
    kv_heads = x.key.shape[2]
    d_queries, d_keys = tiles.cut_operands(settings, d, kv_heads)
    out, total, top = outputs
    of_sinks = None if d.sinks is None else _sink_weights(x, total, top) * align(d.sinks.astype(total.dtype), 3)
    known = jax.tree.map(lambda y: tiles.cut_queries(settings, y, kv_heads), (out, 1 / total, of_sinks))
    tops = _cut_tops(settings, top, kv_heads)

    def row(block: Any) -> tuple[jax.Array, jax.Array]:
        (q, q_data, q_side), (dq, dq_data), (out, share, of_sink), top = block
        zeros = tiles.zeros((share, out, out))

        def step(sums: Any, block: Any) -> tuple[Any, None]:
            (k, v, k_data, k_side), (dk, dv, dk_data) = block

            def score(q: Any, k: Any, read: Any) -> jax.Array:
                return tiles.scores(settings, tiles.logits(settings, q, k), q_side, k_side, read)

            def visit() -> Any:
                moves = (dq, dk, (d.arrays, dq_data, dk_data))
                scores, ds = _jvp(score, (q, k, (x.arrays, q_data, k_data)), moves)
                p = jnp.exp(scores - top[..., None]) * share[..., None]
                d_total, d_out, again = zeros
                if ds is not None:
                    ds = jnp.where(p == 0, 0, ds)
                    d_total, again = jnp.sum(p * ds, -1), _weighted(p, v)
                    # Σ p ṡ v as Σ p (ṡ − r) v + r Σ p v: relative to their mean, ṡ are small when they are rounded.
                    r = _mean(p, ds)
                    d_out = _weighted(p * (ds - r), v) + r * again
                if dv is not None:
                    d_out += _weighted(p, dv)
                return d_total, d_out, again

            tile = tiles.recomputed(settings, q_side, k_side, visit, lambda: zeros)
            return jax.tree.map(jnp.add, sums, tile), None

        (d_total, d_out, again), _ = lax.scan(step, zeros, (keys, d_keys))
        # The output again, by the same roundings: what is common to all ṡ cancels.
        d_out -= d_total[..., None] * again
        if of_sink is not None:
            d_total, d_out = d_total + of_sink, d_out - of_sink[..., None] * out.astype(d_out.dtype)
        return d_out.astype(out.dtype), d_total

    d_out, d_total = lax.map(row, (queries, d_queries, known, tops))
    length = x.query.shape[1]
    return [tiles.join(d_out, length), tiles.join(d_total, length, 0) * total]


def _weighted(p: jax.Array, v: jax.Array) -> jax.Array:
    """The sums of values by weights that are rounded to their dtype."""
    return tiles.dot("bkgqs,bksd->bkgqd", p.astype(v.dtype), v)


def _mean(p: jax.Array, ds: jax.Array) -> jax.Array:
    """The mean ṡ of each query in a tile, which counts as a constant: 0 if all weights are 0."""
    weight = jnp.sum(p, -1, keepdims=True)
    return lax.stop_gradient(jnp.sum(p * ds, -1, keepdims=True) / jnp.where(weight == 0, 1, weight))


def _jvp(f: Any, primals: Any, tangents: Any) -> tuple[Any, Any]:
    """Applies f and its tangent, where tangents that are None do not move; None if none moves."""
    leaves, tree = jax.tree.flatten(primals)
    moved = tree.flatten_up_to(tangents)
    if all(t is None for t in moved):
        return f(*primals), None
    return differentiated(lambda *leaves: f(*tree.unflatten(leaves)), leaves, moved)


def transpose(
    settings: Settings, leaves: Sequence[Any], outputs: Any, cotangents: Any, moving: tuple[bool, ...]
) -> list[Any]:
    x: Operands = settings.tree.unflatten(leaves)
    kv_heads, dtype = x.key.shape[2], compute_dtype(x.query)
    out, total, top = outputs
    d_out, d_total = cotangents
    known = d_out, out, 1 / total, d_total * total
    d_outs, outs, shares, d_totals = (tiles.cut_queries(settings, y, kv_heads) for y in known)
    deltas = jnp.sum(d_outs.astype(dtype) * outs.astype(dtype), -1) - d_totals
    queries, keys = tiles.blocks(settings, x)
    blocks = queries, d_outs, (_cut_tops(settings, top, kv_heads), shares, deltas)
    moved: Operands = settings.tree.unflatten(moving)
    moved_read = moved.arrays, moved.query_data, moved.key_data

    def column(carry: Any, block: Any) -> tuple[Any, Any]:
        k, v, k_data, k_side = block
        columns = jnp.swapaxes(k, -1, -2), jnp.swapaxes(v, -1, -2)

        def step(carry: Any, block: Any) -> tuple[Any, None]:
            i, ((q, q_data, q_side), do, (top, share, delta)) = block
            read = x.arrays, q_data, k_data
            learned = _moving(read, moved_read)

            def score(logits: Any, learned: Any) -> jax.Array:
                values = (iter(values) for values in learned)
                whole = [
                    [next(new) if moves else old for old, moves in zip(group, flags, strict=True)]
                    for group, flags, new in zip(read, moved_read, values, strict=True)
                ]
                return tiles.scores(settings, logits, q_side, k_side, (whole[0], whole[1], whole[2]))

            def visit() -> Any:
                scores, pull = jax.vjp(score, tiles.logits(settings, q, k), learned)
                p = jnp.exp(scores - top[..., None]) * share[..., None]
                ds = p * (tiles.dot("bkgqd,bksd->bkgqs", do, v) - delta[..., None])
                dv = tiles.sums_over_queries(do, p, like=v)
                ds, d_learned = pull(ds)
                ds = ds.astype(q.dtype)
                dq, dk = tiles.dot("bkgqs,bksd->bkgqd", ds, k), tiles.sums_over_queries(q, ds, like=k)
                d_arrays, dq_data, dk_data = jax.tree.map(lambda y: y.astype(compute_dtype(y)), d_learned)
                return (dq, dq_data), (dk, dv, dk_data, d_arrays)

            d_queries, sums = carry
            skip = lambda: tiles.zeros(((q, learned[1]), (*columns, learned[2], learned[0])))  # noqa: E731
            tile = tiles.recomputed(settings, q_side, k_side, visit, skip)
            d_queries = jax.tree.map(lambda d, new: d.at[i].add(new), d_queries, tile[0])
            return (d_queries, jax.tree.map(jnp.add, sums, tile[1])), None

        d_queries, d_arrays = carry
        index = jnp.arange(len(queries[0]), dtype=jnp.int32)
        sums = (*tiles.zeros((*columns, _moving([k_data], [moved.key_data])[0])), d_arrays)
        (d_queries, (dk, dv, dk_data, d_arrays)), _ = lax.scan(step, (d_queries, sums), (index, blocks))
        rows = (jnp.swapaxes(d, -1, -2).astype(k.dtype) for d in (dk * settings.scale, dv))
        return (d_queries, d_arrays), (*rows, dk_data)

    arrays, q_data = _moving([x.arrays, queries[1]], [moved.arrays, moved.query_data])
    start = tiles.zeros(((queries[0], q_data), arrays))
    ((dq, dq_data), d_arrays), (dk, dv, dk_data) = lax.scan(column, start, keys)
    at: Operands = settings.tree.unflatten(range(len(leaves)))
    lengths = x.query.shape[1], x.key.shape[1]
    found = {
        at.query: tiles.join((dq * settings.scale).astype(x.query.dtype), lengths[0]),
        at.key: tiles.join(dk, lengths[1]),
        at.value: tiles.join(dv, lengths[1]),
    }
    d_read = d_arrays, *([tiles.join_data(y, n) for y in d] for d, n in zip((dq_data, dk_data), lengths, strict=True))
    places = _moving([at.arrays, at.query_data, at.key_data], moved_read)
    for place, y in zip(jax.tree.leaves(places), jax.tree.leaves(d_read), strict=True):
        found[place] = y.astype(leaves[place].dtype)
    if x.sinks is not None:
        found[at.sinks] = cotangent_of_sinks(x, total, top, tiles.join(deltas, lengths[0], 0))
    found |= {i: jnp.zeros_like(leaves[i]) for i in at.kernel}  # all of theirs is that of `arrays`
    return [found[i] for i, moves in enumerate(moving) if moves]


def _moving(groups: Sequence[Any], flags: Sequence[Any]) -> list[list[Any]]:
    """What moves of each group."""
    pairs = zip(groups, flags, strict=True)
    return [[x for x, moves in zip(group, moved, strict=True) if moves] for group, moved in pairs]


attend = operation("attention", types=types, compute=_forward, tangent=tangent, transpose=transpose)
