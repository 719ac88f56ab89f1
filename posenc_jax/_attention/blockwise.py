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

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from posenc_jax._attention import tiles
from posenc_jax._attention.tiles import BiasOperands, Operands, Settings, Tile
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
    queries, keys, mask = tiles.blocks(settings, x)

    def row(block: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        (q, q_data, q_tokens), mask = block

        def step(sums: Any, block: Any) -> tuple[Any, None]:
            (k, v, k_data, k_tokens), mask = block
            tile, (maximum, total, out) = Tile(q_tokens, k_tokens, mask), sums

            def visit() -> Any:
                bias_operands = BiasOperands(x.arrays, q_data, k_data)
                scores = tiles.scores(settings, tiles.logits(settings, q, k), tile, bias_operands)
                higher = jnp.maximum(maximum, jnp.max(scores, -1))
                p, shrink = jnp.exp(scores - _finite(higher)[..., None]), jnp.exp(maximum - _finite(higher))
                return higher, total * shrink + jnp.sum(p, -1), out * shrink[..., None] + _weighted(p, v)

            return tiles.visit_or_skip(settings, tile, visit, lambda: sums), None

        (maximum, total, out), _ = tiles.scan(step, _start(x, q), (keys, mask))
        total = jnp.where(total == 0, 1, total)  # 0 if the query sees no key
        return (out / total[..., None]).astype(q.dtype), total, maximum

    _, (out, total, maximum) = tiles.scan(lambda _, block: (None, row(block)), None, (queries, mask))
    length = x.query.shape[1]
    return [tiles.join(out, length), *(tiles.join(y, length, has_width=False) for y in (total, maximum))]


def _start(x: Operands, q: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The maximum, the sum of weights and the output before any key: those of the sink."""
    out = jnp.broadcast_to(tiles.full(q[..., :1], 0), (*q.shape[:-1], x.value.shape[-1]))
    maximum = tiles.full(q[..., 0], -jnp.inf if x.sinks is None else 0)
    if x.sinks is None:
        return maximum, tiles.full(q[..., 0], 0), out
    maximum += x.sinks.astype(maximum.dtype).reshape(1, *q.shape[1:3], 1)
    return maximum, jnp.exp(maximum - _finite(maximum)), out


def _cut_maxima(settings: Settings, maximum: jax.Array, kv_heads: int) -> jax.Array:
    """Blocks of the maxima, ∞ in the padding: its weights are 0 under any bias, and so are their derivatives."""
    return tiles.cut_queries(settings, _finite(maximum), kv_heads, jnp.inf)


def _sink_weights(x: Operands, total: jax.Array, maximum: jax.Array) -> jax.Array:
    """The weight of each query's sink, (batch, queries, heads)."""
    return jnp.exp(align(x.sinks.astype(total.dtype), 3) - _finite(maximum)) / total


def cotangent_of_sinks(x: Operands, total: jax.Array, maximum: jax.Array, delta: jax.Array) -> jax.Array:
    """The cotangent of the sinks, from the δ of each query, (batch, queries, heads)."""
    return -jnp.sum(_sink_weights(x, total, maximum) * delta, (0, 1)).astype(x.sinks.dtype)


def _finite(maximum: jax.Array) -> jax.Array:
    """The maximum, or 0 where it is −∞, like all scores, because the query sees no key."""
    return jnp.where(jnp.isneginf(maximum), 0, maximum)


def tangent(settings: Settings, leaves: Sequence[Any], outputs: Any, tangents: Sequence[Any]) -> list[jax.Array]:
    """The tangents of o and t; a tangent of None is zero."""
    x, d = (settings.tree.unflatten(y) for y in (leaves, tangents))
    queries, keys, mask = tiles.blocks(settings, x)
    kv_heads = x.key.shape[2]
    d_queries, d_keys = tiles.cut_operands(settings, d, kv_heads)
    out, total, maximum = outputs
    # p ṡ of the sink
    sink_terms = None if d.sinks is None else _sink_weights(x, total, maximum) * align(d.sinks.astype(total.dtype), 3)
    per_query = jax.tree.map(lambda y: tiles.cut_queries(settings, y, kv_heads), (out, 1 / total, sink_terms))
    maxima = _cut_maxima(settings, maximum, kv_heads)

    def row(block: Any) -> tuple[jax.Array, jax.Array]:
        ((q, q_data, q_tokens), mask), (dq, dq_data), (out, inverse_total, sink_term), maximum = block
        zeros = tiles.zeros((inverse_total, out, out))

        def step(sums: Any, block: Any) -> tuple[Any, None]:
            ((k, v, k_data, k_tokens), mask), (dk, dv, dk_data) = block
            tile = Tile(q_tokens, k_tokens, mask)

            def score(q: Any, k: Any, bias_operands: BiasOperands) -> jax.Array:
                return tiles.scores(settings, tiles.logits(settings, q, k), tile, bias_operands)

            def visit() -> Any:
                primals = q, k, BiasOperands(x.arrays, q_data, k_data)
                scores, ds = _jvp(score, primals, (dq, dk, BiasOperands(d.arrays, dq_data, dk_data)))
                p = jnp.exp(scores - maximum[..., None]) * inverse_total[..., None]
                d_total, d_out, same_out = zeros
                if ds is not None:
                    ds = jnp.where(p == 0, 0, ds)
                    d_total, same_out = jnp.sum(p * ds, -1), _weighted(p, v)
                    # Σ p ṡ v as Σ p (ṡ − r) v + r Σ p v: relative to their mean, ṡ are small when they are rounded.
                    r = _mean(p, ds)
                    d_out = _weighted(p * (ds - r), v) + r * same_out
                if dv is not None:
                    d_out += _weighted(p, dv)
                return d_total, d_out, same_out

            terms = tiles.recomputed(settings, tile, visit, lambda: zeros)
            return jax.tree.map(jnp.add, sums, terms), None

        (d_total, d_out, same_out), _ = tiles.scan(step, zeros, ((keys, mask), d_keys))
        # The output is summed again, by the same roundings, so that what is common to all ṡ cancels.
        d_out -= d_total[..., None] * same_out
        if sink_term is not None:
            d_total, d_out = d_total + sink_term, d_out - sink_term[..., None] * out.astype(d_out.dtype)
        return d_out.astype(out.dtype), d_total

    blocks = (queries, mask), d_queries, per_query, maxima
    _, (d_out, d_total) = tiles.scan(lambda _, block: (None, row(block)), None, blocks)
    length = x.query.shape[1]
    return [tiles.join(d_out, length), tiles.join(d_total, length, has_width=False) * total]


def _weighted(p: jax.Array, v: jax.Array) -> jax.Array:
    """The sums of values by weights that are rounded to their dtype."""
    return tiles.dot("bkgqs,bksd->bkgqd", p.astype(v.dtype), v)


def _mean(p: jax.Array, ds: jax.Array) -> jax.Array:
    """The mean ṡ of each query in a tile, which counts as a constant: 0 if all weights are 0."""
    weight = jnp.sum(p, -1, keepdims=True)
    return lax.stop_gradient(jnp.sum(p * ds, -1, keepdims=True) / jnp.where(weight == 0, 1, weight))


def _jvp(f: Any, primals: Any, tangents: Any) -> tuple[Any, Any]:
    """The result of f and its tangent; a tangent of None is zero."""
    leaves, tree = jax.tree.flatten(primals)
    tangents = tree.flatten_up_to(tangents)
    if all(t is None for t in tangents):
        return f(*primals), None
    return differentiated(lambda *leaves: f(*tree.unflatten(leaves)), leaves, tangents)


def transpose(
    settings: Settings, leaves: Sequence[Any], outputs: Any, cotangents: Any, has_tangent: tuple[bool, ...]
) -> list[Any]:
    """The cotangents of the operands with a tangent, from those of o and t."""
    x: Operands = settings.tree.unflatten(leaves)
    kv_heads, dtype = x.key.shape[2], compute_dtype(x.query)
    out, total, maximum = outputs
    d_out, d_total = cotangents
    per_query = d_out, out, 1 / total, d_total * total
    d_outs, outs, inverse_totals, d_totals = (tiles.cut_queries(settings, y, kv_heads) for y in per_query)
    deltas = jnp.sum(d_outs.astype(dtype) * outs.astype(dtype), -1) - d_totals
    queries, keys, mask = tiles.blocks(settings, x)
    blocks = queries, d_outs, (_cut_maxima(settings, maximum, kv_heads), inverse_totals, deltas)
    flags: Operands = settings.tree.unflatten(has_tangent)
    bias_flags = BiasOperands(flags.arrays, flags.query_data, flags.key_data)

    def column(carry: Any, block: Any) -> tuple[Any, Any]:
        (k, v, k_data, k_tokens), mask = block
        columns = jnp.swapaxes(k, -1, -2), jnp.swapaxes(v, -1, -2)

        def step(carry: Any, block: Any) -> tuple[Any, None]:
            i, ((q, q_data, q_tokens), do, (maximum, inverse_total, delta)), mask = block
            tile, bias_operands = Tile(q_tokens, k_tokens, mask), BiasOperands(x.arrays, q_data, k_data)
            variables = BiasOperands(*map(_flagged, bias_operands, bias_flags))

            def score(logits: Any, variables: BiasOperands) -> jax.Array:
                operands = BiasOperands(*map(_with_flagged, bias_operands, bias_flags, variables))
                return tiles.scores(settings, logits, tile, operands)

            def visit() -> Any:
                scores, pull = jax.vjp(score, tiles.logits(settings, q, k), variables)
                p = jnp.exp(scores - maximum[..., None]) * inverse_total[..., None]
                ds = p * (tiles.dot("bkgqd,bksd->bkgqs", do, v) - delta[..., None])
                dv = tiles.sums_over_queries(do, p, like=v)
                ds, d_variables = pull(ds)
                ds = ds.astype(q.dtype)
                dq, dk = tiles.dot("bkgqs,bksd->bkgqd", ds, k), tiles.sums_over_queries(q, ds, like=k)
                d_arrays, dq_data, dk_data = jax.tree.map(lambda y: y.astype(compute_dtype(y)), d_variables)
                return (dq, dq_data), (dk, dv, dk_data, d_arrays)

            def skip() -> Any:
                d_query, d_key = (q, variables.query_data), (*columns, variables.key_data, variables.arrays)
                return tiles.zeros((d_query, d_key))

            d_queries, sums = carry
            by_query, by_key = tiles.recomputed(settings, tile, visit, skip)
            d_queries = jax.tree.map(functools.partial(_add_at, i), d_queries, by_query)
            return (d_queries, jax.tree.map(jnp.add, sums, by_key)), None

        d_queries, d_arrays = carry
        index = jnp.arange(len(queries[0]), dtype=jnp.int32)
        sums = (*tiles.zeros((*columns, _flagged(k_data, flags.key_data))), d_arrays)
        (d_queries, (dk, dv, dk_data, d_arrays)), _ = tiles.scan(step, (d_queries, sums), (index, blocks, mask))
        rows = (jnp.swapaxes(d, -1, -2).astype(k.dtype) for d in (dk * settings.scale, dv))
        return (d_queries, d_arrays), (*rows, dk_data)

    q, q_data, _ = queries
    start = tiles.zeros(((q, _flagged(q_data, flags.query_data)), _flagged(x.arrays, flags.arrays)))
    ((dq, dq_data), d_arrays), (dk, dv, dk_data) = tiles.scan(
        column, start, (keys, mask if mask is None else jnp.swapaxes(mask, 0, 1))
    )
    index: Operands = settings.tree.unflatten(range(len(leaves)))
    n, m = x.query.shape[1], x.key.shape[1]
    result = {
        index.query: tiles.join((dq * settings.scale).astype(x.query.dtype), n),
        index.key: tiles.join(dk, m),
        index.value: tiles.join(dv, m),
    }
    bias_index = map(_flagged, (index.arrays, index.query_data, index.key_data), bias_flags)
    d_bias = d_arrays, [tiles.join_data(y, n) for y in dq_data], [tiles.join_data(y, m) for y in dk_data]
    for i, y in zip(jax.tree.leaves([*bias_index]), jax.tree.leaves(d_bias), strict=True):
        result[i] = y.astype(leaves[i].dtype)
    if x.sinks is not None:
        result[index.sinks] = cotangent_of_sinks(x, total, maximum, tiles.join(deltas, n, has_width=False))
    result |= {i: jnp.zeros_like(leaves[i]) for i in index.kernel}  # the cotangents of `arrays` are all of theirs
    return [result[i] for i, has in enumerate(has_tangent) if has]


def _add_at(i: jax.Array, blocks: jax.Array, block: jax.Array) -> jax.Array:
    """Adds to block i, without an index if it is the only one."""
    return blocks + block[None] if len(blocks) == 1 else blocks.at[i].add(block)


def _flagged(values: Sequence[Any], flags: Sequence[bool]) -> list[Any]:
    """The values whose flag is set."""
    return [x for x, flag in zip(values, flags, strict=True) if flag]


def _with_flagged(values: Sequence[Any], flags: Sequence[bool], flagged: Sequence[Any]) -> list[Any]:
    """The values, those whose flag is set replaced in turn by the `flagged`."""
    new = iter(flagged)
    return [next(new) if flag else x for x, flag in zip(values, flags, strict=True)]


attend = operation("attention", types=types, compute=_forward, tangent=tangent, transpose=transpose)
