r"""Attention forward on a Hopper GPU in one kernel, with any bias computed in registers.

One block of threads computes a tile of queries of one head: two warpgroups compute, each for its own queries, and a
third loads tiles of keys and values ahead of them. While one of the two multiplies, the other computes weights.
The structure follows `jax.experimental.pallas.ops.gpu.attention_mgpu`, which takes no bias.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from posenc_jax._attention.hopper.bias_programs import MANY_STEPS
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
from posenc_jax._attention.hopper.scores import LOG2E, LOWEST, ScoreInputs, TileOrigin, scores


class Inputs(NamedTuple):
    """The operands, padded to whole tiles. Tile ranges and attributes may have a batch of 1."""

    query: Any  # (batch, queries, heads, width)
    key: Any  # (batch, keys, kv_heads, width)
    value: Any
    tile_ranges: Any  # of tiles of keys, for each tile of queries: (batch, tiles, 4), see `attend._tile_ranges`
    queries: tuple[Any, ...]  # the attributes of queries, int32 (batch, queries)
    keys: tuple[Any, ...]  # the attributes of keys
    sinks: tuple[Any, ...]  # the maximum and the sum of the sinks, (heads,) each; or ()
    bias: tuple[Any, ...]  # the operands of the bias program


def attend(static: StaticSettings, inputs: Inputs) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The output; and for each query the sum of weights and the maximum score times log₂ e, (batch, heads, queries)."""
    query = inputs.query
    batch, length, heads, width = query.shape
    per_query = plgpu.SMEM((WARPGROUPS, ROWS_OF_TILE), jnp.float32)
    memory = _QueryMemory(
        plgpu.SMEM((WARPGROUPS, ROWS_OF_TILE, width), query.dtype, transforms=TILED),
        (per_query, per_query),
        key_tiles(static, query),
        plgpu.Barrier(num_barriers=WARPGROUPS),
        plgpu.Barrier(num_arrivals=WARPGROUPS),
    )
    statistic = jax.ShapeDtypeStruct((batch, heads, length), jnp.float32)
    out = [jax.ShapeDtypeStruct(query.shape, query.dtype), statistic, statistic]
    return kernel("attend", _kernel, static, query_grid(static, query), inputs, memory, out)


def query_grid(static: StaticSettings, query: Any) -> dict[str, int]:
    """A block for each tile of queries of a head; the last axis is the fastest."""
    batch, length, heads, _ = query.shape
    grid = {"head": heads, "tile": length // BLOCK, "batch": batch}
    # With few tiles, blocks of all heads run at once, not those of one head: on an H200 with 132 processors, that
    # gained 6 % under ALiBi at 64 tiles, and lost 6 % at 256.
    if static.bias is not None and grid["tile"] <= 128:
        grid = {"tile": grid["tile"], "head": heads, "batch": batch}
    return grid


class KeyTiles(NamedTuple):
    """The tiles of keys and values that the warpgroups of a block share, and barriers for their use.

    A tile is ready when it is loaded, and free when the next tile may replace it.
    """

    key: Any
    value: Any
    attributes: tuple[Any, ...]  # those of the keys
    table: Any  # the part of a table that the block reads, or None
    k_ready: Any
    v_ready: Any
    k_free: Any
    v_free: Any


class _QueryMemory(NamedTuple):
    """The shared memory and the barriers of a block of queries."""

    query: Any  # and later the output
    statistics: tuple[Any, Any]  # the sums of weights, and the maxima
    keys: KeyTiles
    q_ready: Any
    alternation: Any  # a barrier that makes the two warpgroups alternate


def key_tiles(static: StaticSettings, query: Any) -> KeyTiles:
    """The memory and the barriers for tiles of keys."""
    tile = plgpu.SMEM((static.stages, static.block, query.shape[-1]), query.dtype, transforms=TILED)
    free = plgpu.Barrier(num_barriers=static.stages, num_arrivals=WARPGROUPS)
    return KeyTiles(
        tile,
        tile,
        tuple(plgpu.SMEM((static.stages, static.block), jnp.int32) for _ in static.attributes),
        plgpu.SMEM((static.stages, static.entries), jnp.float32) if static.looks_up else None,
        plgpu.Barrier(num_barriers=static.stages, num_arrivals=1 + len(static.attributes) + static.looks_up),
        plgpu.Barrier(num_barriers=static.stages),
        free,
        free,
    )


class QueryBlock(NamedTuple):
    """The place of a block of queries, and the tiles of keys that it visits."""

    batch: Any
    head: Any
    start: Any  # the index of its first query
    tile_range: list[Any]


def query_block(static: StaticSettings, index: dict[str, Any], inputs: Any) -> QueryBlock:
    batch, head, tile = (index[name] for name in ("batch", "head", "tile"))
    if static.reach[1] is not None or "order" in static.attributes:  # the rows with most tiles first
        tile = inputs.query.shape[1] // BLOCK - 1 - tile
    return QueryBlock(batch, head, tile * BLOCK, tile_range_of(inputs, batch, tile))


def bias_numbers(static: StaticSettings, inputs: Any, head: Any) -> list[Any]:
    """The numbers of a head that the bias reads, if it looks up no table."""
    return [] if static.looks_up else [x[n, head] for x in inputs.bias for n in range(x.shape[0])]


def score_inputs_of(memory: KeyTiles, slot: Any, queries: list[Any], numbers: list[Any]) -> ScoreInputs:
    """The inputs of the scores for the tile of keys in a slot, and for queries with these attributes."""
    keys = [to_registers(x.at[slot], COLUMNS) for x in memory.attributes]
    return ScoreInputs(queries, keys, numbers, None if memory.table is None else memory.table.at[slot])


def load_keys(static: StaticSettings, inputs: Any, block: QueryBlock, memory: KeyTiles) -> None:
    """Loads the keys and values that a block visits, tile by tile."""
    plgpu.set_max_registers(REGISTERS[1], action="decrease")
    heads, (keys, kv_heads) = inputs.query.shape[2], inputs.key.shape[1:3]
    kv_head, first, last = lax.div(block.head, jnp.int32(heads // kv_heads)), block.tile_range[0], block.tile_range[3]

    @pl.loop(first, last)
    def _(step: Any) -> None:
        slot, start = static.slot(step), step * static.block
        rows, reused = pl.ds(start, static.block), step >= first + static.stages
        pl.when(reused)(lambda: plgpu.barrier_wait(memory.k_free.at[slot]))
        for x, ref in zip(inputs.keys, memory.attributes, strict=True):
            plgpu.copy_gmem_to_smem(x.at[row_of(x, block.batch), rows], ref.at[slot], memory.k_ready.at[slot])
        if memory.table is not None:
            entry = 0 if static.near else block.start - start + (keys - static.block)
            source = inputs.bias[0].at[block.head, pl.ds(entry, static.entries)]
            plgpu.copy_gmem_to_smem(source, memory.table.at[slot], memory.k_ready.at[slot])
        key, value = (x.at[block.batch, rows, kv_head] for x in (inputs.key, inputs.value))
        plgpu.copy_gmem_to_smem(key, memory.key.at[slot], memory.k_ready.at[slot])
        pl.when(reused)(lambda: plgpu.barrier_wait(memory.v_free.at[slot]))
        plgpu.copy_gmem_to_smem(value, memory.value.at[slot], memory.v_ready.at[slot])

    observe(static, first, last, (memory.k_free, memory.v_free))


def _kernel(static: StaticSettings, index: dict[str, Any], inputs: Inputs, outputs: Any, memory: _QueryMemory) -> None:
    block, warpgroup = query_block(static, index, inputs), lax.axis_index("warpgroup")

    @pl.when(warpgroup < WARPGROUPS)
    def compute() -> None:
        plgpu.set_max_registers(REGISTERS[0], action="increase")
        base = block.start + warpgroup * ROWS_OF_TILE
        rows = pl.ds(base, ROWS_OF_TILE)
        q, q_ready = memory.query.at[warpgroup], memory.q_ready.at[warpgroup]
        plgpu.copy_gmem_to_smem(inputs.query.at[block.batch, rows, block.head], q, q_ready)
        attributes = [to_registers(x.at[row_of(x, block.batch), rows], ROWS) for x in inputs.queries]
        numbers, sinks = bias_numbers(static, inputs, block.head), [x[block.head] for x in inputs.sinks]
        plgpu.barrier_wait(q_ready)

        def scores_of(step: Any, x: Any, unmasked: bool) -> Any:
            origin = TileOrigin(base, step * static.block, warpgroup * ROWS_OF_TILE + static.block)
            slot = static.slot(step)
            return scores(static, x, origin, score_inputs_of(memory.keys, slot, attributes, numbers), unmasked)

        out, *statistics = _compute(static, warpgroup, scores_of, block.tile_range, sinks, memory)
        q[...] = out.astype(q.dtype)
        stored = [x.at[warpgroup] for x in memory.statistics]
        for ref, x in zip(stored, statistics, strict=True):
            ref[...] = x
        plgpu.commit_smem()
        if _registers_are_scarce(static, q):
            rows = pl.ds(block.start + (warpgroup + unknown_zero(warpgroup)) * ROWS_OF_TILE, ROWS_OF_TILE)
        plgpu.copy_smem_to_gmem(q, outputs[0].at[block.batch, rows, block.head])
        for ref, output in zip(stored, outputs[1:], strict=True):
            plgpu.copy_smem_to_gmem(ref, output.at[block.batch, block.head, rows])
        plgpu.wait_smem_to_gmem(0)

    pl.when(warpgroup == WARPGROUPS)(lambda: load_keys(static, inputs, block, memory.keys))


def _registers_are_scarce(static: StaticSettings, q: Any) -> bool:
    """Whether a bias of many steps and the sums for wide heads leave no register free."""
    return q.shape[-1] > 64 and static.bias is not None and len(static.bias.steps) > MANY_STEPS


# The sums over keys


class _Sums(NamedTuple):
    """The sums of a warpgroup over the keys so far."""

    top: Any  # the maximum, times log₂ e
    total: Any
    out: Any


def _compute(
    static: StaticSettings, warpgroup: Any, scores_of: Any, tile_range: Any, sinks: Any, memory: _QueryMemory
) -> tuple[Any, Any, Any]:
    """A warpgroup's output, sums of weights, and maxima times log₂ e.

    Its products alternate with those of the other warpgroup.
    """
    q, keys, (first, unmasked_from, unmasked_to, last) = memory.query.at[warpgroup], memory.keys, tile_range

    def alternate() -> None:
        plgpu.barrier_arrive(memory.alternation)
        plgpu.barrier_wait(memory.alternation)

    def visit(step: Any, sums: _Sums, unmasked: bool) -> _Sums:
        slot = static.slot(step)
        query = q
        if _registers_are_scarce(static, q):
            query = memory.query.at[warpgroup + unknown_zero(unmasked_from if unmasked else unmasked_to)]
        (x,) = products(static, [(query, keys.key.at[slot])], alternate)
        if k_free_early:
            plgpu.barrier_arrive(keys.k_free.at[slot])
        x, query_term, _ = scores_of(step, x, unmasked)
        if not k_free_early:
            release(keys.k_free.at[slot])
        top, shrink, p = _weights(static, x, query_term, sums.top)
        total = sums.total * shrink
        out = sums.out * lax.broadcast_in_dim(shrink, sums.out.shape, (0,))
        p16 = p.astype(q.dtype)
        if narrow:  # the order of these matters for speed, as in attention_mgpu
            total += jnp.sum(p, 1)
            out, total, top, p16 = lax.optimization_barrier((out, total, top, p16))
        plgpu.barrier_arrive(memory.alternation)
        plgpu.barrier_wait(keys.v_ready.at[slot])
        plgpu.barrier_wait(memory.alternation)
        if not narrow:
            total += jnp.sum(p, 1)

        def wait_for_keys() -> None:
            slot = static.slot(step + 1)
            pl.when(step + 1 < last)(lambda: plgpu.barrier_wait(keys.k_ready.at[slot]))

        (out,) = add_products(static, [(out, p16, keys.value.at[slot])], wait_for_keys)
        plgpu.barrier_arrive(keys.v_free.at[slot])
        return _Sums(top, total, out)

    narrow, k_free_early = q.shape[-1] <= 128, not keys.attributes and keys.table is None
    pl.when(last > first)(lambda: plgpu.barrier_wait(keys.k_ready.at[static.slot(first)]))
    pl.when(warpgroup == 1)(alternate)
    top, total = sinks or (LOWEST, 0.0)
    rows = (ROWS_OF_TILE,)
    start = _Sums(full(rows, ROWS, top), full(rows, ROWS, total), full((*rows, q.shape[-1]), TILE))
    masked = static.masked or static.keys % static.block
    sums = visit_all(visit, tile_range, start, masked and static.ragged, masked)
    pl.when(warpgroup == 0)(alternate)
    inverse_total = 1 / jnp.where(sums.total == 0, 1, sums.total)
    out = sums.out * lax.broadcast_in_dim(inverse_total, sums.out.shape, (0,))
    return out, sums.total, sums.top


def _weights(static: StaticSettings, x: Any, query_term: Any, top: Any) -> tuple[Any, Any, Any]:
    """The new maximum, the factor of the sums so far, and the weights of a tile."""
    factor, most = static.scale * LOG2E, jnp.max(x, 1)
    query_term = 0.0 if query_term is None else query_term
    higher = jnp.maximum(top, most * factor + query_term)
    shift = lax.broadcast_in_dim(higher - query_term, x.shape, (0,))
    return higher, jnp.exp2(top - higher), jnp.exp2(x * factor - shift)
