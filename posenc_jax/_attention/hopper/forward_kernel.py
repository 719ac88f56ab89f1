r"""Attention forward on a Hopper GPU in one kernel, with any bias computed in registers.

One block of threads computes a tile of queries of one head: two warpgroups compute, each for its own queries, and a
third loads tiles of keys and values ahead of them. One of the two multiplies while the other computes the weights.
The structure follows `jax.experimental.pallas.ops.gpu.attention_mgpu`, which takes no bias.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from posenc_jax._attention.hopper.bias_programs import LONG
from posenc_jax._attention.hopper.scores import (
    BLOCK,
    COLUMNS,
    LOG2E,
    LOWEST,
    REGISTERS,
    ROWS,
    ROWS_OF_TILE,
    TILE,
    TILED,
    WARPGROUPS,
    At,
    Read,
    Shape,
    add_products,
    kernel,
    plgpu,
    release,
    scores,
    unknown_zero,
    zeros,
)


class Inputs(NamedTuple):
    """The operands, padded to whole tiles. A batch of sides may be 1."""

    query: Any  # (batch, queries, heads, width)
    key: Any  # (batch, keys, kv_heads, width)
    value: Any
    steps: Any  # (batch, tiles of queries, 4): the first tile of keys, those seen whole from and to, and the last
    queries: tuple[Any, ...]  # the sides, int32 (batch, queries)
    keys: tuple[Any, ...]
    start: tuple[Any, ...]  # the maximum and the sum of the sinks, (heads,) each; or ()
    bias: tuple[Any, ...]  # the operands of the program


def attend(shape: Shape, inputs: Inputs) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The output, and of each query the sum of weights and the maximum score times log₂ e, (batch, heads, queries)."""
    query = inputs.query
    batch, length, heads, width = query.shape
    of_rows = plgpu.SMEM((WARPGROUPS, ROWS_OF_TILE), jnp.float32)
    memory = _Memory(
        plgpu.SMEM((WARPGROUPS, ROWS_OF_TILE, width), query.dtype, transforms=TILED),
        (of_rows, of_rows),
        memory_of_keys(shape, query),
        plgpu.Barrier(num_barriers=WARPGROUPS),
        plgpu.Barrier(num_arrivals=WARPGROUPS),
    )
    of_queries = jax.ShapeDtypeStruct((batch, heads, length), jnp.float32)
    out = [jax.ShapeDtypeStruct(query.shape, query.dtype), of_queries, of_queries]
    run = functools.partial(_kernel, shape)
    return kernel("attend", run, shape, grid_of_queries(shape, query), inputs, memory, out)


def grid_of_queries(shape: Shape, query: Any) -> dict[str, int]:
    """A block for each tile of queries of a head; the last axis is the fastest."""
    batch, length, heads, _ = query.shape
    grid = {"head": heads, "tile": length // BLOCK, "batch": batch}
    # Blocks of all heads side by side, not of one: on an H200 with 132 processors, that gained 6 % under ALiBi at 64
    # tiles, and lost 6 % at 256.
    if shape.bias is not None and grid["tile"] <= 128:
        grid = {"tile": grid["tile"], "head": heads, "batch": batch}
    return grid


class Keys(NamedTuple):
    """Tiles of keys that the warpgroups of a block share, and barriers that say when they are ready or free."""

    key: Any
    value: Any
    sides: tuple[Any, ...]
    table: Any
    k_ready: Any
    v_ready: Any
    k_free: Any
    v_free: Any


class _Memory(NamedTuple):
    """What a block shares."""

    query: Any
    sums: tuple[Any, Any]
    keys: Keys
    q_ready: Any
    order: Any


def memory_of_keys(shape: Shape, query: Any) -> Keys:
    of_keys = plgpu.SMEM((shape.stages, shape.block, query.shape[-1]), query.dtype, transforms=TILED)
    free = plgpu.Barrier(num_barriers=shape.stages, num_arrivals=WARPGROUPS)
    return Keys(
        of_keys,
        of_keys,
        tuple(plgpu.SMEM((shape.stages, shape.block), jnp.int32) for _ in shape.sides),
        plgpu.SMEM((shape.stages, shape.entries), jnp.float32) if shape.looks_up else None,
        plgpu.Barrier(num_barriers=shape.stages, num_arrivals=1 + len(shape.sides) + shape.looks_up),
        plgpu.Barrier(num_barriers=shape.stages),
        free,
        free,
    )


class Block(NamedTuple):
    """Where a block of queries is, and which tiles of keys it visits."""

    batch: Any
    head: Any
    start: Any  # its first query
    steps: list[Any]

    def row(self, ref: Any) -> Any:
        """The row of an array whose batch may be 1."""
        return 0 if ref.shape[0] == 1 else self.batch


def block_of_queries(shape: Shape, index: dict[str, Any], inputs: Any) -> Block:
    batch, head, tile = (index[name] for name in ("batch", "head", "tile"))
    if shape.reach[1] is not None or "order" in shape.sides:  # the longest rows first
        tile = inputs.query.shape[1] // BLOCK - 1 - tile
    block = Block(batch, head, tile * BLOCK, [])
    return block._replace(steps=[inputs.steps[block.row(inputs.steps), tile, n] for n in range(4)])


def numbers_of(shape: Shape, inputs: Any, head: Any) -> list[Any]:
    """What the bias reads of a head, if it looks up no table."""
    return [] if shape.looks_up else [x[n, head] for x in inputs.bias for n in range(x.shape[0])]


def read_keys(memory: Keys, slot: Any, queries: list[Any], numbers: list[Any]) -> Read:
    of_keys = [plgpu.load(x.at[slot], layout=COLUMNS, optimized=False) for x in memory.sides]
    return Read(queries, of_keys, numbers, None if memory.table is None else memory.table.at[slot])


def load_keys(shape: Shape, inputs: Any, block: Block, memory: Keys) -> None:
    """Loads what a block visits, tile by tile."""
    plgpu.set_max_registers(REGISTERS[1], action="decrease")
    heads, (keys, kv_heads) = inputs.query.shape[2], inputs.key.shape[1:3]
    kv_head, first, last = lax.div(block.head, jnp.int32(heads // kv_heads)), block.steps[0], block.steps[3]

    @pl.loop(first, last)
    def _(step: Any) -> None:
        slot, start = lax.rem(step, jnp.int32(shape.stages)), step * shape.block
        rows, again = pl.ds(start, shape.block), step >= first + shape.stages
        pl.when(again)(lambda: plgpu.barrier_wait(memory.k_free.at[slot]))
        for x, ref in zip(inputs.keys, memory.sides, strict=True):
            plgpu.copy_gmem_to_smem(x.at[block.row(x), rows], ref.at[slot], memory.k_ready.at[slot])
        if memory.table is not None:
            at = 0 if shape.near else block.start - start + (keys - shape.block)
            source = inputs.bias[0].at[block.head, pl.ds(at, shape.entries)]
            plgpu.copy_gmem_to_smem(source, memory.table.at[slot], memory.k_ready.at[slot])
        key, value = (x.at[block.batch, rows, kv_head] for x in (inputs.key, inputs.value))
        plgpu.copy_gmem_to_smem(key, memory.key.at[slot], memory.k_ready.at[slot])
        pl.when(again)(lambda: plgpu.barrier_wait(memory.v_free.at[slot]))
        plgpu.copy_gmem_to_smem(value, memory.value.at[slot], memory.v_ready.at[slot])

    observe(shape, first, last, (memory.k_free, memory.v_free))


def observe(shape: Shape, first: Any, last: Any, barriers: Any) -> None:
    """Waits for the last tiles: no barrier may end while a phase of it is not observed."""

    @pl.loop(jnp.maximum(last - shape.stages, first), last)
    def _(step: Any) -> None:
        for barrier in barriers:
            plgpu.barrier_wait(barrier.at[lax.rem(step, jnp.int32(shape.stages))])


def _kernel(shape: Shape, index: dict[str, Any], inputs: Inputs, outputs: Any, memory: _Memory) -> None:
    block, warpgroup = block_of_queries(shape, index, inputs), lax.axis_index("warpgroup")

    @pl.when(warpgroup < WARPGROUPS)
    def compute() -> None:
        plgpu.set_max_registers(REGISTERS[0], action="increase")
        base = block.start + warpgroup * ROWS_OF_TILE
        rows = pl.ds(base, ROWS_OF_TILE)
        q, q_ready = memory.query.at[warpgroup], memory.q_ready.at[warpgroup]
        plgpu.copy_gmem_to_smem(inputs.query.at[block.batch, rows, block.head], q, q_ready)
        sides = [plgpu.load(x.at[block.row(x), rows], layout=ROWS, optimized=False) for x in inputs.queries]
        numbers, start = numbers_of(shape, inputs, block.head), [x[block.head] for x in inputs.start]
        plgpu.barrier_wait(q_ready)

        def scores_of(step: Any, x: Any, whole: bool) -> Any:
            at = At(base, step * shape.block, warpgroup * ROWS_OF_TILE + shape.block)
            read = read_keys(memory.keys, lax.rem(step, jnp.int32(shape.stages)), sides, numbers)
            return scores(shape, x, at, read, whole)

        out, *sums = _compute(shape, warpgroup, scores_of, block.steps, start, memory)
        q[...] = out.astype(q.dtype)
        stored = [x.at[warpgroup] for x in memory.sums]
        for ref, x in zip(stored, sums, strict=True):
            ref[...] = x
        plgpu.commit_smem()
        if _crowded(shape, q):
            rows = pl.ds(block.start + (warpgroup + unknown_zero(warpgroup)) * ROWS_OF_TILE, ROWS_OF_TILE)
        plgpu.copy_smem_to_gmem(q, outputs[0].at[block.batch, rows, block.head])
        for ref, to in zip(stored, outputs[1:], strict=True):
            plgpu.copy_smem_to_gmem(ref, to.at[block.batch, block.head, rows])
        plgpu.wait_smem_to_gmem(0)

    pl.when(warpgroup == WARPGROUPS)(lambda: load_keys(shape, inputs, block, memory.keys))


def _crowded(shape: Shape, q: Any) -> bool:
    """Whether a bias of many steps and sums for wide heads leave no register free."""
    return q.shape[-1] > 64 and shape.bias is not None and len(shape.bias.steps) > LONG


# The sums over keys


class _Sums(NamedTuple):
    """What a warpgroup keeps of the keys so far."""

    top: Any  # the maximum, times log₂ e
    total: Any
    out: Any


def _compute(
    shape: Shape, warpgroup: Any, scores_of: Any, steps: Any, start: Any, memory: _Memory
) -> tuple[Any, Any, Any]:
    """A warpgroup's output, sums, and maxima times log₂ e.

    It multiplies, computes weights and multiplies in turn with the other warpgroup.
    """
    q, keys, (first, whole_from, whole_to, last) = memory.query.at[warpgroup], memory.keys, steps

    def pass_barrier() -> None:
        plgpu.barrier_arrive(memory.order)
        plgpu.barrier_wait(memory.order)

    def visit(step: Any, sums: _Sums, whole: bool) -> _Sums:
        slot = lax.rem(step, jnp.int32(shape.stages))
        own = memory.query.at[warpgroup + unknown_zero(whole_from if whole else whole_to)] if _crowded(shape, q) else q
        x = _products(shape, own, keys.key.at[slot], pass_barrier)
        if k_free_early:
            plgpu.barrier_arrive(keys.k_free.at[slot])
        x, left, _ = scores_of(step, x, whole)
        if not k_free_early:
            release(keys.k_free.at[slot])
        top, shrink, p = _weights(shape, x, left, sums.top)
        total = sums.total * shrink
        out = sums.out * lax.broadcast_in_dim(shrink, sums.out.shape, (0,))
        p16 = p.astype(q.dtype)
        if narrow:  # the order of these matters for speed, as in attention_mgpu
            total += jnp.sum(p, 1)
            out, total, top, p16 = lax.optimization_barrier((out, total, top, p16))
        plgpu.barrier_arrive(memory.order)
        plgpu.barrier_wait(keys.v_ready.at[slot])
        plgpu.barrier_wait(memory.order)
        if not narrow:
            total += jnp.sum(p, 1)

        def wait_for_keys() -> None:
            slot = lax.rem(step + 1, jnp.int32(shape.stages))
            pl.when(step + 1 < last)(lambda: plgpu.barrier_wait(keys.k_ready.at[slot]))

        (out,) = add_products(shape, [(out, p16, keys.value.at[slot])], wait_for_keys)
        plgpu.barrier_arrive(keys.v_free.at[slot])
        return _Sums(top, total, out)

    narrow, k_free_early = q.shape[-1] <= 128, not keys.sides and keys.table is None
    pl.when(last > first)(lambda: plgpu.barrier_wait(keys.k_ready.at[lax.rem(first, jnp.int32(shape.stages))]))
    pl.when(warpgroup == 1)(pass_barrier)
    top, total = start or (LOWEST, 0.0)
    rows = (ROWS_OF_TILE,)
    sums = _Sums(zeros(rows, ROWS, top), zeros(rows, ROWS, total), zeros((*rows, q.shape[-1]), TILE))
    masked = shape.masked or shape.keys % shape.block
    if masked and shape.ragged:
        sums = lax.fori_loop(first, whole_from, functools.partial(visit, whole=False), sums)
    sums = lax.fori_loop(whole_from, whole_to, functools.partial(visit, whole=True), sums)
    if masked:
        sums = lax.fori_loop(whole_to, last, functools.partial(visit, whole=False), sums)
    pl.when(warpgroup == 0)(pass_barrier)
    share = 1 / jnp.where(sums.total == 0, 1, sums.total)
    out = sums.out * lax.broadcast_in_dim(share, sums.out.shape, (0,))
    return out, sums.total, sums.top


def _weights(shape: Shape, x: Any, left: Any, top: Any) -> tuple[Any, Any, Any]:
    """The new maximum, what shrinks the sums so far, and the weights of a tile."""
    factor, most = shape.scale * LOG2E, jnp.max(x, 1)
    left = 0.0 if left is None else left
    higher = jnp.maximum(top, most * factor + left)
    shift = lax.broadcast_in_dim(higher - left, x.shape, (0,))
    return higher, jnp.exp2(top - higher), jnp.exp2(x * factor - shift)


def _products(shape: Shape, q: Any, k: Any, then: Callable[[], None]) -> Any:
    """The products of all queries and keys of a tile; `then` runs after they are issued."""

    def issue(products: Any) -> Any:
        plgpu.wgmma(products, q, k.transpose((1, 0)))
        then()
        return products[...]

    return pl.run_scoped(issue, plgpu.ACC((ROWS_OF_TILE, shape.block), jnp.float32))
