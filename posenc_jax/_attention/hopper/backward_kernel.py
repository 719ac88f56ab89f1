r"""Attention backward on a Hopper GPU, in kernels that compute each tile again with its bias in registers.

From the maximum $m_i$, the sum of weights $t_i$ and $\delta_i = \bar o_i \cdot o_i - \bar t_i t_i$, with the
$x'$ and $c'$ of `scores`,

$$p_{ij} = 2^{c' x'_{ij} - m_i} / t_i, \qquad \bar v_j = \sum_i p_{ij} \bar o_i, \qquad
  \bar s_{ij} = p_{ij} (\bar o_i \cdot v_j - \delta_i).$$

One kernel sums over keys: $\bar q$, and for each query the cotangents of the numbers that the bias reads. Another one
sums over queries, with keys as rows: $\bar k$ and $\bar v$, of all queries' heads that a head of keys serves. Nothing
is added to memory that another block writes, so repeated calls have the same bits.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from posenc_jax._attention.hopper.forward_kernel import (
    Keys,
    block_of_queries,
    grid_of_queries,
    load_keys,
    memory_of_keys,
    numbers_of,
    observe,
    read_keys,
)
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
    cotangents,
    is_key,
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
    d_out: Any  # like query
    known: Any  # m, 1/t and δ, float32 (batch, heads, 3, queries)
    steps: Any  # for each block of rows the first tile, those seen whole from and to, and the last: (batch, blocks, 4)
    queries: tuple[Any, ...]  # the sides, int32 (batch, queries)
    keys: tuple[Any, ...]
    bias: tuple[Any, ...]  # the operands of the program


# Queries


class _Queries(NamedTuple):
    """What a block of queries shares."""

    query: Any
    d_out: Any
    sums: Any
    keys: Keys
    ready: Any


def d_query(shape: Shape, inputs: Inputs, numbers: int) -> list[jax.Array]:
    """The cotangents of queries; and the part of each query in those of the numbers that the bias reads.

    `numbers` is how many these are, 0 if they do not move. The parts are float32 (batch, heads, numbers, queries).
    """
    query = inputs.query
    batch, length, heads, width = query.shape
    of_queries = plgpu.SMEM((WARPGROUPS, ROWS_OF_TILE, width), query.dtype, transforms=TILED)
    sums = plgpu.SMEM((WARPGROUPS, numbers, ROWS_OF_TILE), jnp.float32) if numbers else None
    ready = plgpu.Barrier(num_barriers=WARPGROUPS, num_arrivals=2)
    memory = _Queries(of_queries, of_queries, sums, memory_of_keys(shape, query), ready)

    out = [jax.ShapeDtypeStruct(query.shape, query.dtype)]
    out += [jax.ShapeDtypeStruct((batch, heads, numbers, length), jnp.float32)] * bool(numbers)
    run = functools.partial(_over_keys, shape)
    return kernel("d_query", run, shape, grid_of_queries(shape, query), inputs, memory, out)


def _over_keys(shape: Shape, index: dict[str, Any], inputs: Inputs, outputs: Any, memory: _Queries) -> None:
    block, warpgroup = block_of_queries(shape, index, inputs), lax.axis_index("warpgroup")

    @pl.when(warpgroup < WARPGROUPS)
    def compute() -> None:
        plgpu.set_max_registers(REGISTERS[0], action="increase")
        base = block.start + warpgroup * ROWS_OF_TILE
        rows = pl.ds(base, ROWS_OF_TILE)
        q, d_out, ready = (x.at[warpgroup] for x in (memory.query, memory.d_out, memory.ready))
        for x, ref in (inputs.query, q), (inputs.d_out, d_out):
            plgpu.copy_gmem_to_smem(x.at[block.batch, rows, block.head], ref, ready)
        sides = [plgpu.load(x.at[block.row(x), rows], layout=ROWS, optimized=False) for x in inputs.queries]
        of_queries = inputs.known.at[block.batch, block.head]
        top, share, delta = (plgpu.load(of_queries.at[n, rows], layout=ROWS, optimized=False) for n in range(3))
        numbers = numbers_of(shape, inputs, block.head)
        plgpu.barrier_wait(ready)

        def visit(step: Any, sums: Any, whole: bool) -> Any:
            slot = lax.rem(step, jnp.int32(shape.stages))
            key, value = memory.keys.key.at[slot], memory.keys.value.at[slot]
            plgpu.barrier_wait(memory.keys.k_ready.at[slot])
            plgpu.barrier_wait(memory.keys.v_ready.at[slot])
            x, dp = products(shape, (q, key), (d_out, value))
            plgpu.barrier_arrive(memory.keys.v_free.at[slot])
            at = At(base, step * shape.block, warpgroup * ROWS_OF_TILE + shape.block)
            read = read_keys(memory.keys, slot, sides, numbers)
            e, slope = weights(shape, x, at, read, top, whole)
            ds = e * (dp * spread(share, at, dp.shape) - spread(share * delta, at, dp.shape))
            dq, *d_numbers = sums
            if d_numbers:
                found = cotangents(shape, ds, at, read)
                if not whole and shape.keys % shape.block:  # the bias may be NaN beyond the last key
                    found = [jnp.where(is_key(shape, at, x.shape), x, 0.0) for x in found]
                d_numbers = [total + jnp.sum(x, 1) for total, x in zip(d_numbers, found, strict=True)]
            ds16 = (ds if slope is None else ds * slope).astype(q.dtype)
            (dq,) = add_products(shape, [(dq, ds16, key)])
            release(memory.keys.k_free.at[slot], read=bool(shape.sides) or shape.looks_up)
            return dq, *d_numbers

        sums = memory.sums
        parts = [] if sums is None else [sums.at[warpgroup, n] for n in range(sums.shape[1])]
        start = zeros((ROWS_OF_TILE, q.shape[-1]), TILE), *(zeros((ROWS_OF_TILE,), ROWS) for _ in parts)
        ends = shape.masked and shape.ragged, shape.masked or shape.keys % shape.block
        dq, *d_numbers = visit_all(visit, block.steps, start, *ends)
        q[...] = (dq * shape.scale).astype(q.dtype)
        for ref, x in zip(parts, d_numbers, strict=True):
            ref[...] = x
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(q, outputs[0].at[block.batch, rows, block.head])
        for n, ref in enumerate(parts):
            plgpu.copy_smem_to_gmem(ref, outputs[1].at[block.batch, block.head, n, rows])
        plgpu.wait_smem_to_gmem(0)

    pl.when(warpgroup == WARPGROUPS)(lambda: load_keys(shape, inputs, block, memory.keys))


# Keys


class _Memory(NamedTuple):
    """What a block of keys shares."""

    key: Any
    value: Any
    query: Any
    d_out: Any
    known: Any
    sides: tuple[Any, ...]
    table: Any
    ready: Any
    q_ready: Any
    free: Any


def d_key_value(shape: Shape, inputs: Inputs) -> list[jax.Array]:
    """The cotangents of keys and values."""
    (batch, keys, kv_heads, width), dtype = inputs.key.shape, inputs.query.dtype
    of_keys = plgpu.SMEM((WARPGROUPS, ROWS_OF_TILE, width), dtype, transforms=TILED)
    of_queries = plgpu.SMEM((shape.stages, shape.block, width), dtype, transforms=TILED)
    arrivals = 3 + len(shape.sides) + shape.looks_up
    memory = _Memory(
        of_keys,
        of_keys,
        of_queries,
        of_queries,
        plgpu.SMEM((shape.stages, 3, shape.block), jnp.float32),
        tuple(plgpu.SMEM((shape.stages, shape.block), jnp.int32) for _ in shape.sides),
        plgpu.SMEM((shape.stages, shape.entries), jnp.float32) if shape.looks_up else None,
        plgpu.Barrier(num_barriers=WARPGROUPS, num_arrivals=2),
        plgpu.Barrier(num_barriers=shape.stages, num_arrivals=arrivals),
        plgpu.Barrier(num_barriers=shape.stages, num_arrivals=WARPGROUPS),
    )

    grid = {"head": kv_heads, "tile": keys // BLOCK, "batch": batch}
    out = [jax.ShapeDtypeStruct(inputs.key.shape, dtype)] * 2
    return kernel("d_key_value", functools.partial(_over_queries, shape), shape, grid, inputs, memory, out)


def _over_queries(shape: Shape, index: dict[str, Any], inputs: Inputs, outputs: Any, memory: _Memory) -> None:
    batch, kv_head, tile, warpgroup = index["batch"], index["head"], index["tile"], lax.axis_index("warpgroup")
    row = lambda ref: 0 if ref.shape[0] == 1 else batch  # noqa: E731
    steps = [inputs.steps[row(inputs.steps), tile, n] for n in range(4)]
    first, last, group = steps[0], steps[3], inputs.query.shape[2] // inputs.key.shape[2]
    tiles, block = last - first, tile * BLOCK

    @pl.when(warpgroup < WARPGROUPS)
    def compute() -> None:
        plgpu.set_max_registers(REGISTERS[0], action="increase")
        base = block + warpgroup * ROWS_OF_TILE
        rows = pl.ds(base, ROWS_OF_TILE)
        k, v, ready = (x.at[warpgroup] for x in (memory.key, memory.value, memory.ready))
        for x, ref in (inputs.key, k), (inputs.value, v):
            plgpu.copy_gmem_to_smem(x.at[batch, rows, kv_head], ref, ready)
        sides = [plgpu.load(x.at[row(x), rows], layout=ROWS, optimized=False) for x in inputs.keys]
        plgpu.barrier_wait(ready)

        def of_head(n: Any, sums: Any) -> Any:
            numbers = numbers_of(shape, inputs, kv_head * group + n)

            def visit(step: Any, sums: Any, whole: bool) -> Any:
                slot = lax.rem(n * tiles + step - first, jnp.int32(shape.stages))
                q, d_out, known = (x.at[slot] for x in (memory.query, memory.d_out, memory.known))
                plgpu.barrier_wait(memory.q_ready.at[slot])
                own = warpgroup + (unknown_zero(step) if k.shape[-1] > 64 else 0)
                x, dp = products(shape, (memory.key.at[own], q), (memory.value.at[own], d_out))
                of_queries = [plgpu.load(x.at[slot], layout=COLUMNS, optimized=False) for x in memory.sides]
                at = At(step * shape.block, base, BLOCK - warpgroup * ROWS_OF_TILE, transposed=True)
                of = lambda n: plgpu.load(known.at[n], layout=COLUMNS, optimized=False)  # noqa: E731
                table = None if memory.table is None else memory.table.at[slot]
                e, slope = weights(shape, x, at, Read(of_queries, sides, numbers, table), of(0), whole)
                p = e * spread(of(1), at, dp.shape)  # δ is read after this: of each, a thread holds 16 numbers
                dp -= spread(of(2), at, dp.shape)
                ds = p * (dp if slope is None else dp * slope)
                p16, ds16 = (y.astype(k.dtype) for y in (p, ds))
                dk, dv = add_products(shape, [(sums[0], ds16, q), (sums[1], p16, d_out)])
                release(memory.free.at[slot])
                return dk, dv

            return visit_all(visit, steps, sums, shape.masked, shape.masked and shape.ragged)

        start = [zeros((ROWS_OF_TILE, k.shape[-1]), TILE) for _ in range(2)]
        dk, dv = lax.fori_loop(0, group, of_head, tuple(start))
        for x, ref, to in (dk * shape.scale, k, outputs[0]), (dv, v, outputs[1]):
            ref[...] = x.astype(k.dtype)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(ref, to.at[batch, rows, kv_head])
        plgpu.wait_smem_to_gmem(0)

    @pl.when(warpgroup == WARPGROUPS)
    def load() -> None:
        plgpu.set_max_registers(REGISTERS[1], action="decrease")

        @pl.loop(0, group * tiles)
        def _(n: Any) -> None:
            head = kv_head * group + lax.div(n, jnp.maximum(tiles, 1))
            start = (first + lax.rem(n, jnp.maximum(tiles, 1))) * shape.block
            slot, again = lax.rem(n, jnp.int32(shape.stages)), n >= shape.stages
            rows, q_ready = pl.ds(start, shape.block), memory.q_ready.at[slot]
            pl.when(again)(lambda: plgpu.barrier_wait(memory.free.at[slot]))
            for x, ref in zip(inputs.queries, memory.sides, strict=True):
                plgpu.copy_gmem_to_smem(x.at[row(x), rows], ref.at[slot], q_ready)
            if memory.table is not None:
                at = 0 if shape.near else start - block + (inputs.key.shape[1] - BLOCK)
                plgpu.copy_gmem_to_smem(
                    inputs.bias[0].at[head, pl.ds(at, shape.entries)], memory.table.at[slot], q_ready
                )
            known = inputs.known.at[batch, head, pl.ds(0, 3), rows]
            plgpu.copy_gmem_to_smem(known, memory.known.at[slot], q_ready)
            plgpu.copy_gmem_to_smem(inputs.query.at[batch, rows, head], memory.query.at[slot], q_ready)
            plgpu.copy_gmem_to_smem(inputs.d_out.at[batch, rows, head], memory.d_out.at[slot], q_ready)

        observe(shape, jnp.int32(0), group * tiles, (memory.free,))


# Tiles


def visit_all(visit: Any, steps: Any, sums: Any, before: Any, after: Any) -> Any:
    """Visits the tiles of a row, of which those `before` and `after` those seen whole may have a mask."""
    first, whole_from, whole_to, last = steps
    if before:
        sums = lax.fori_loop(first, whole_from, functools.partial(visit, whole=False), sums)
    sums = lax.fori_loop(whole_from, whole_to, functools.partial(visit, whole=True), sums)
    if after:
        sums = lax.fori_loop(whole_to, last, functools.partial(visit, whole=False), sums)
    return sums


def products(shape: Shape, *pairs: tuple[Any, Any]) -> tuple[Any, ...]:
    """The products of all rows of a and all rows of b, for each (a, b)."""

    def issue(*products: Any) -> tuple[Any, ...]:
        for total, (a, b) in zip(products, pairs, strict=True):
            plgpu.wgmma(total, a, b.transpose((1, 0)))
        return tuple(total[...] for total in products)

    return pl.run_scoped(issue, *[plgpu.ACC((ROWS_OF_TILE, shape.block), jnp.float32)] * len(pairs))


def spread(x: Any, at: At, tile: Any) -> Any:
    """What there is of each query, for a tile."""
    return lax.broadcast_in_dim(x, tile, (1 if at.transposed else 0,))


def weights(shape: Shape, x: Any, at: At, read: Read, top: Any, whole: bool) -> tuple[Any, Any]:
    """The weights of a tile times t, and the derivative of the cap."""
    found = scores(shape, x, at, read, whole)
    shift = top if found.left is None else top - found.left
    e = jnp.exp2(found.x * (shape.scale * LOG2E) - spread(shift, at, x.shape))
    if shape.unbounded:  # such a maximum is that of the padding
        e = jnp.where(spread(top, at, x.shape) == -LOWEST, 0.0, e)
    return e, found.slope
