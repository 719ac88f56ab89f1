r"""Attention backward on a Hopper GPU, in kernels that compute each tile again with its bias in registers.

The statistics of a query are its maximum $m_i$, its sum of weights $t_i$, of which kernels read $1/t_i$, and
$\delta_i = \bar o_i \cdot o_i - \bar t_i t_i$. With the $x'$ and $c'$ of `scores`,

$$p_{ij} = 2^{c' x'_{ij} - m_i} / t_i, \qquad \bar v_j = \sum_i p_{ij} \bar o_i, \qquad
  \bar s_{ij} = p_{ij} (\bar o_i \cdot v_j - \delta_i).$$

One kernel sums over keys: $\bar q$, and for each query the cotangents of the numbers that the bias reads. Another one
sums over queries, with keys as rows: $\bar k$ and $\bar v$, over all query heads that share a key head. No block adds
to memory that another block writes, so repeated calls have the same bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from posenc_jax._attention.hopper.blocks import (
    BLOCK,
    COLUMNS,
    REGISTERS,
    ROWS,
    ROWS_OF_TILE,
    TILE,
    TILED,
    WARPGROUPS,
    StaticSettings,
    add_products,
    full,
    kernel,
    observe,
    plgpu,
    products,
    release,
    row_of,
    tile_range_of,
    to_registers,
    unknown_zero,
    visit_all,
)
from posenc_jax._attention.hopper.forward_kernel import (
    KeyTiles,
    bias_numbers,
    key_tiles,
    load_keys,
    query_block,
    query_grid,
    score_inputs_of,
)
from posenc_jax._attention.hopper.scores import LOG2E, LOWEST, ScoreInputs, TileOrigin, cotangents, is_key, scores


class Inputs(NamedTuple):
    """The operands, padded to whole tiles. Tile ranges and attributes may have a batch of 1."""

    query: Any  # (batch, queries, heads, width)
    key: Any  # (batch, keys, kv_heads, width)
    value: Any
    d_out: Any  # like query
    statistics: Any  # m, 1/t and δ, float32 (batch, heads, 3, queries)
    tile_ranges: Any  # of the tiles of each block of rows: (batch, blocks, 4), see `attend._tile_ranges`
    queries: tuple[Any, ...]  # the attributes of queries, int32 (batch, queries)
    keys: tuple[Any, ...]  # the attributes of keys
    bias: tuple[Any, ...]  # the operands of the bias program


# Queries


class _QueryMemory(NamedTuple):
    """The shared memory and the barriers of a block of queries."""

    query: Any  # and later its cotangent
    d_out: Any
    d_numbers: Any  # the cotangents of the numbers that the bias reads, or None
    keys: KeyTiles
    ready: Any


def d_query(static: StaticSettings, inputs: Inputs, numbers: int) -> list[jax.Array]:
    """The cotangents of queries; and for each query, its part of the cotangents of the numbers that the bias reads.

    `numbers` is their number, 0 for no such cotangents. The parts are float32 (batch, heads, numbers, queries).
    """
    query = inputs.query
    batch, length, heads, width = query.shape
    rows = plgpu.SMEM((WARPGROUPS, ROWS_OF_TILE, width), query.dtype, transforms=TILED)
    d_numbers = plgpu.SMEM((WARPGROUPS, numbers, ROWS_OF_TILE), jnp.float32) if numbers else None
    ready = plgpu.Barrier(num_barriers=WARPGROUPS, num_arrivals=2)
    memory = _QueryMemory(rows, rows, d_numbers, key_tiles(static, query), ready)

    out = [jax.ShapeDtypeStruct(query.shape, query.dtype)]
    out += [jax.ShapeDtypeStruct((batch, heads, numbers, length), jnp.float32)] * bool(numbers)
    return kernel("d_query", _over_keys, static, query_grid(static, query), inputs, memory, out)


def _over_keys(
    static: StaticSettings, index: dict[str, Any], inputs: Inputs, outputs: Any, memory: _QueryMemory
) -> None:
    block, warpgroup = query_block(static, index, inputs), lax.axis_index("warpgroup")

    @pl.when(warpgroup < WARPGROUPS)
    def compute() -> None:
        plgpu.set_max_registers(REGISTERS[0], action="increase")
        base = block.start + warpgroup * ROWS_OF_TILE
        rows = pl.ds(base, ROWS_OF_TILE)
        q, d_out, ready = (x.at[warpgroup] for x in (memory.query, memory.d_out, memory.ready))
        for x, ref in (inputs.query, q), (inputs.d_out, d_out):
            plgpu.copy_gmem_to_smem(x.at[block.batch, rows, block.head], ref, ready)
        attributes = [to_registers(x.at[row_of(x, block.batch), rows], ROWS) for x in inputs.queries]
        statistics = inputs.statistics.at[block.batch, block.head]
        top, inverse_total, delta = (to_registers(statistics.at[n, rows], ROWS) for n in range(3))
        numbers = bias_numbers(static, inputs, block.head)
        plgpu.barrier_wait(ready)

        def visit(step: Any, sums: Any, unmasked: bool) -> Any:
            slot = static.slot(step)
            key, value = memory.keys.key.at[slot], memory.keys.value.at[slot]
            plgpu.barrier_wait(memory.keys.k_ready.at[slot])
            plgpu.barrier_wait(memory.keys.v_ready.at[slot])
            x, dp = products(static, [(q, key), (d_out, value)])
            plgpu.barrier_arrive(memory.keys.v_free.at[slot])
            origin = TileOrigin(base, step * static.block, warpgroup * ROWS_OF_TILE + static.block)
            score_inputs = score_inputs_of(memory.keys, slot, attributes, numbers)
            e, cap_derivative = weights(static, x, origin, score_inputs, top, unmasked)
            scaled = dp * per_query(inverse_total, origin, dp.shape)
            ds = e * (scaled - per_query(inverse_total * delta, origin, dp.shape))
            dq, *d_numbers = sums
            if d_numbers:
                per_score = cotangents(static, ds, origin, score_inputs)
                if not unmasked and static.keys % static.block:  # the bias may be NaN beyond the last key
                    per_score = [jnp.where(is_key(static, origin, x.shape), x, 0.0) for x in per_score]
                d_numbers = [total + jnp.sum(x, 1) for total, x in zip(d_numbers, per_score, strict=True)]
            ds16 = (ds if cap_derivative is None else ds * cap_derivative).astype(q.dtype)
            (dq,) = add_products(static, [(dq, ds16, key)])
            release(memory.keys.k_free.at[slot], read=bool(static.attributes) or static.looks_up)
            return dq, *d_numbers

        stored = memory.d_numbers
        parts = [] if stored is None else [stored.at[warpgroup, n] for n in range(stored.shape[1])]
        start = full((ROWS_OF_TILE, q.shape[-1]), TILE), *(full((ROWS_OF_TILE,), ROWS) for _ in parts)
        ends = static.masked and static.ragged, static.masked or static.keys % static.block
        dq, *d_numbers = visit_all(visit, block.tile_range, start, *ends)
        q[...] = (dq * static.scale).astype(q.dtype)
        for ref, x in zip(parts, d_numbers, strict=True):
            ref[...] = x
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(q, outputs[0].at[block.batch, rows, block.head])
        for n, ref in enumerate(parts):
            plgpu.copy_smem_to_gmem(ref, outputs[1].at[block.batch, block.head, n, rows])
        plgpu.wait_smem_to_gmem(0)

    pl.when(warpgroup == WARPGROUPS)(lambda: load_keys(static, inputs, block, memory.keys))


# Keys


class _KeyMemory(NamedTuple):
    """The shared memory and the barriers of a block of keys."""

    key: Any  # and later its cotangent
    value: Any  # and later its cotangent
    query: Any
    d_out: Any
    statistics: Any
    attributes: tuple[Any, ...]  # those of the queries
    table: Any
    ready: Any  # a barrier for the keys and the values
    q_ready: Any  # for a tile of queries, which is loaded
    free: Any  # for a tile of queries, which the next one may replace


def d_key_value(static: StaticSettings, inputs: Inputs) -> list[jax.Array]:
    """The cotangents of keys and values."""
    (batch, keys, kv_heads, width), dtype = inputs.key.shape, inputs.query.dtype
    rows = plgpu.SMEM((WARPGROUPS, ROWS_OF_TILE, width), dtype, transforms=TILED)
    tile = plgpu.SMEM((static.stages, static.block, width), dtype, transforms=TILED)
    arrivals = 3 + len(static.attributes) + static.looks_up
    memory = _KeyMemory(
        rows,
        rows,
        tile,
        tile,
        plgpu.SMEM((static.stages, 3, static.block), jnp.float32),
        tuple(plgpu.SMEM((static.stages, static.block), jnp.int32) for _ in static.attributes),
        plgpu.SMEM((static.stages, static.entries), jnp.float32) if static.looks_up else None,
        plgpu.Barrier(num_barriers=WARPGROUPS, num_arrivals=2),
        plgpu.Barrier(num_barriers=static.stages, num_arrivals=arrivals),
        plgpu.Barrier(num_barriers=static.stages, num_arrivals=WARPGROUPS),
    )

    grid = {"head": kv_heads, "tile": keys // BLOCK, "batch": batch}
    out = [jax.ShapeDtypeStruct(inputs.key.shape, dtype)] * 2
    return kernel("d_key_value", _over_queries, static, grid, inputs, memory, out)


def _over_queries(
    static: StaticSettings, index: dict[str, Any], inputs: Inputs, outputs: Any, memory: _KeyMemory
) -> None:
    batch, kv_head, tile, warpgroup = index["batch"], index["head"], index["tile"], lax.axis_index("warpgroup")
    tile_range = tile_range_of(inputs, batch, tile)
    first, last, group = tile_range[0], tile_range[3], inputs.query.shape[2] // inputs.key.shape[2]
    tiles, block = last - first, tile * BLOCK

    @pl.when(warpgroup < WARPGROUPS)
    def compute() -> None:
        plgpu.set_max_registers(REGISTERS[0], action="increase")
        base = block + warpgroup * ROWS_OF_TILE
        rows = pl.ds(base, ROWS_OF_TILE)
        k, v, ready = (x.at[warpgroup] for x in (memory.key, memory.value, memory.ready))
        for x, ref in (inputs.key, k), (inputs.value, v):
            plgpu.copy_gmem_to_smem(x.at[batch, rows, kv_head], ref, ready)
        attributes = [to_registers(x.at[row_of(x, batch), rows], ROWS) for x in inputs.keys]
        plgpu.barrier_wait(ready)

        def visit_head(n: Any, sums: Any) -> Any:
            numbers = bias_numbers(static, inputs, kv_head * group + n)

            def visit(step: Any, sums: Any, unmasked: bool) -> Any:
                slot = static.slot(n * tiles + step - first)
                q, d_out, statistics = (x.at[slot] for x in (memory.query, memory.d_out, memory.statistics))
                plgpu.barrier_wait(memory.q_ready.at[slot])
                half = warpgroup + (unknown_zero(step) if k.shape[-1] > 64 else 0)
                x, dp = products(static, [(memory.key.at[half], q), (memory.value.at[half], d_out)])
                queries = [to_registers(x.at[slot], COLUMNS) for x in memory.attributes]
                origin = TileOrigin(step * static.block, base, BLOCK - warpgroup * ROWS_OF_TILE, transposed=True)
                statistic = lambda n: to_registers(statistics.at[n], COLUMNS)  # noqa: E731
                table = None if memory.table is None else memory.table.at[slot]
                score_inputs = ScoreInputs(queries, attributes, numbers, table)
                e, cap_derivative = weights(static, x, origin, score_inputs, statistic(0), unmasked)
                # A thread holds 16 numbers of each statistic, so each is read when it is needed.
                p = e * per_query(statistic(1), origin, dp.shape)
                dp -= per_query(statistic(2), origin, dp.shape)
                ds = p * (dp if cap_derivative is None else dp * cap_derivative)
                p16, ds16 = (y.astype(k.dtype) for y in (p, ds))
                dk, dv = add_products(static, [(sums[0], ds16, q), (sums[1], p16, d_out)])
                release(memory.free.at[slot])
                return dk, dv

            return visit_all(visit, tile_range, sums, static.masked, static.masked and static.ragged)

        start = [full((ROWS_OF_TILE, k.shape[-1]), TILE) for _ in range(2)]
        dk, dv = lax.fori_loop(0, group, visit_head, tuple(start))
        for x, ref, output in (dk * static.scale, k, outputs[0]), (dv, v, outputs[1]):
            ref[...] = x.astype(k.dtype)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(ref, output.at[batch, rows, kv_head])
        plgpu.wait_smem_to_gmem(0)

    @pl.when(warpgroup == WARPGROUPS)
    def load() -> None:
        plgpu.set_max_registers(REGISTERS[1], action="decrease")

        @pl.loop(0, group * tiles)
        def _(n: Any) -> None:
            head = kv_head * group + lax.div(n, jnp.maximum(tiles, 1))
            start = (first + lax.rem(n, jnp.maximum(tiles, 1))) * static.block
            slot, reused = static.slot(n), n >= static.stages
            rows, q_ready = pl.ds(start, static.block), memory.q_ready.at[slot]
            pl.when(reused)(lambda: plgpu.barrier_wait(memory.free.at[slot]))
            for x, ref in zip(inputs.queries, memory.attributes, strict=True):
                plgpu.copy_gmem_to_smem(x.at[row_of(x, batch), rows], ref.at[slot], q_ready)
            if memory.table is not None:
                entry = 0 if static.near else start - block + (inputs.key.shape[1] - BLOCK)
                source = inputs.bias[0].at[head, pl.ds(entry, static.entries)]
                plgpu.copy_gmem_to_smem(source, memory.table.at[slot], q_ready)
            statistics = inputs.statistics.at[batch, head, pl.ds(0, 3), rows]
            plgpu.copy_gmem_to_smem(statistics, memory.statistics.at[slot], q_ready)
            plgpu.copy_gmem_to_smem(inputs.query.at[batch, rows, head], memory.query.at[slot], q_ready)
            plgpu.copy_gmem_to_smem(inputs.d_out.at[batch, rows, head], memory.d_out.at[slot], q_ready)

        observe(static, jnp.int32(0), group * tiles, (memory.free,))


# Tiles


def per_query(x: Any, origin: TileOrigin, tile_shape: Any) -> Any:
    """Broadcasts one number per query to a tile."""
    return lax.broadcast_in_dim(x, tile_shape, (1 if origin.transposed else 0,))


def weights(
    static: StaticSettings, x: Any, origin: TileOrigin, score_inputs: ScoreInputs, top: Any, unmasked: bool
) -> tuple[Any, Any]:
    """The weights of a tile times t, and the derivative of the soft cap."""
    tile = scores(static, x, origin, score_inputs, unmasked)
    shift = top if tile.query_term is None else top - tile.query_term
    e = jnp.exp2(tile.x * (static.scale * LOG2E) - per_query(shift, origin, x.shape))
    if static.unbounded:  # queries of the padding have the maximum −LOWEST
        e = jnp.where(per_query(top, origin, x.shape) == -LOWEST, 0.0, e)
    return e, tile.cap_derivative
