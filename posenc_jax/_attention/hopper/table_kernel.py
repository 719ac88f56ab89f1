r"""The cotangent of a bias that a table of differences gives, on a Hopper GPU.

A block of threads sums one band: tiles of queries and keys whose starts have one difference, so that a score at one
place of these tiles has one difference too. The sums of all tiles are those of one tile in registers, in the same order
each time. Only at the end are its diagonals summed:

$$\bar b_d = \sum_{i - j = d} \bar s_{ij}.$$
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from posenc_jax._attention.hopper.backward_kernel import Inputs, products, spread, visit_all, weights
from posenc_jax._attention.hopper.forward_kernel import observe
from posenc_jax._attention.hopper.scores import (
    BLOCK,
    COLUMNS,
    REGISTERS,
    ROWS,
    ROWS_OF_TILE,
    TILE,
    TILED,
    WARPGROUPS,
    At,
    Read,
    Shape,
    bias_of,
    kernel,
    look_up,
    plgpu,
    release,
    write,
    zeros,
)

BLOCK_KV = ROWS_OF_TILE  # keys of a tile
RATIO = BLOCK // BLOCK_KV
DIAGONALS = 2 * ROWS_OF_TILE  # of a tile of a warpgroup, and one more that has nothing


def bands(reach: tuple[int | None, int | None], tiles: tuple[int, int]) -> np.ndarray:
    """The differences of the starts of tiles, in tiles of keys, where a query may see a key by counted positions."""
    (left, right), (queries, keys) = reach, tiles
    low, high = 1 - keys, RATIO * (queries - 1)
    if right is not None:
        low = max(low, -((right + BLOCK - 1) // BLOCK_KV))
    if left is not None:
        high = min(high, (left + BLOCK_KV - 1) // BLOCK_KV)
    return np.arange(low, high + 1, dtype=np.int32)


def along_bands(which: np.ndarray, seen: Any) -> Any:
    """Of tiles (batch, queries, keys), those of each band by their tile of queries: (batch, bands, queries)."""
    xp: Any = np if isinstance(seen, np.ndarray) else jnp
    query = np.arange(seen.shape[1], dtype=np.int32)[None]
    key = RATIO * query - which[:, None]
    within = ((key >= 0) & (key < seen.shape[2]))[None]
    return xp.where(within, seen[:, query, key.clip(0, seen.shape[2] - 1)], False)


class _Memory(NamedTuple):
    """What a block shares."""

    query: Any
    d_out: Any
    key: Any
    value: Any
    known: Any
    queries: tuple[Any, ...]  # the sides
    keys: tuple[Any, ...]
    table: Any
    tile: Any  # the sums of a warpgroup
    sums: Any
    t_ready: Any
    ready: Any
    free: Any
    order: Any


def d_table(shape: Shape, inputs: Inputs, which: np.ndarray) -> jax.Array:
    """The cotangent of the table, float32 (heads, entries); `steps` of the inputs are tiles of queries of each band."""
    query, stages, dtype = inputs.query, shape.stages, inputs.query.dtype
    (batch, _, heads, width), entries = query.shape, inputs.bias[0].shape[1]
    of_queries = plgpu.SMEM((stages, BLOCK, width), dtype, transforms=TILED)
    of_keys = plgpu.SMEM((stages, BLOCK_KV, width), dtype, transforms=TILED)
    memory = _Memory(
        of_queries,
        of_queries,
        of_keys,
        of_keys,
        plgpu.SMEM((stages, 3, BLOCK), jnp.float32),
        tuple(plgpu.SMEM((stages, BLOCK), jnp.int32) for _ in shape.sides),
        tuple(plgpu.SMEM((stages, BLOCK_KV), jnp.int32) for _ in shape.sides),
        plgpu.SMEM((shape.entries,), jnp.float32),
        plgpu.SMEM((ROWS_OF_TILE, BLOCK_KV), jnp.float32),
        plgpu.SMEM((WARPGROUPS, DIAGONALS), jnp.float32),
        plgpu.Barrier(),
        plgpu.Barrier(num_barriers=stages, num_arrivals=5 + 2 * len(shape.sides)),
        plgpu.Barrier(num_barriers=stages, num_arrivals=WARPGROUPS),
        plgpu.Barrier(),
    )

    grid = {"head": heads, "band": len(which), "batch": batch}
    out = [jax.ShapeDtypeStruct((batch, heads, len(which), WARPGROUPS, DIAGONALS), jnp.float32)]
    run = functools.partial(_along_band, shape, int(which[0]))
    (sums,) = kernel("d_table", run, shape, grid, inputs, memory, out)
    sums = jnp.sum(sums, 0)
    # Those of the second warpgroup are those of the next band's first; half of a band's are half of the next band's.
    rows = jnp.pad(sums[:, :, 0], ((0, 0), (0, 1), (0, 0))) + jnp.pad(sums[:, :, 1], ((0, 0), (1, 0), (0, 0)))
    halves = rows[..., :ROWS_OF_TILE], rows[..., ROWS_OF_TILE:]
    joined = jnp.pad(halves[0], ((0, 0), (0, 1), (0, 0))) + jnp.pad(halves[1], ((0, 0), (1, 0), (0, 0)))
    joined = joined.reshape(heads, -1)[:, :-1]
    first = BLOCK_KV * int(which[0]) + 1 - BLOCK_KV + inputs.key.shape[1]
    return jnp.pad(joined, ((0, 0), (first, entries - first - joined.shape[1])))


def _along_band(
    shape: Shape, lowest: int, index: dict[str, Any], inputs: Inputs, outputs: Any, memory: _Memory
) -> None:
    batch, head, band, warpgroup = index["batch"], index["head"], index["band"], lax.axis_index("warpgroup")
    row = lambda ref: 0 if ref.shape[0] == 1 else batch  # noqa: E731
    steps = [inputs.steps[row(inputs.steps), band, n] for n in range(4)]
    first, last, apart = steps[0], steps[3], band + lowest

    @pl.when(warpgroup < WARPGROUPS)
    def compute() -> None:
        plgpu.set_max_registers(REGISTERS[0], action="increase")
        base, own = warpgroup * ROWS_OF_TILE, pl.ds(warpgroup * ROWS_OF_TILE, ROWS_OF_TILE)
        tile, layout = (ROWS_OF_TILE, BLOCK_KV), {"layout": ROWS, "optimized": False}
        plgpu.barrier_wait(memory.t_ready)
        at = At(base, apart * -BLOCK_KV, base + BLOCK_KV)
        bias = bias_of(shape, tile, at, Read((), (), (), memory.table))

        def visit(step: Any, sums: Any, whole: bool) -> Any:
            slot = lax.rem(step, jnp.int32(shape.stages))
            plgpu.barrier_wait(memory.ready.at[slot])
            q, d_out = (x.at[slot, own] for x in (memory.query, memory.d_out))
            x, dp = products(shape, (q, memory.key.at[slot]), (d_out, memory.value.at[slot]))
            top, share, delta = (plgpu.load(memory.known.at[slot, n, own], **layout) for n in range(3))
            queries = [plgpu.load(x.at[slot, own], **layout) for x in memory.queries]
            keys = [plgpu.load(x.at[slot], layout=COLUMNS, optimized=False) for x in memory.keys]
            release(memory.free.at[slot])
            at = At(step * BLOCK + base, (step * RATIO - apart) * BLOCK_KV, None)
            e, _ = weights(shape, x, at, Read(queries, keys, (), bias=bias), top, whole)
            return sums + e * (dp * spread(share, at, tile) - spread(share * delta, at, tile))

        ends = shape.masked and shape.ragged, shape.masked or shape.keys % shape.block
        sums = visit_all(visit, steps, zeros(tile, TILE), *ends)
        pl.when(warpgroup == 1)(lambda: plgpu.barrier_wait(memory.order))
        write(memory.tile, sums, shape.interpret)
        plgpu.commit_smem()
        row, column = (plgpu.broadcasted_iota(jnp.int32, tile, axis, layout=TILE) for axis in range(2))
        for half in range(2):  # the rows are diagonals, and the columns are the queries of each
            key = column - row + (BLOCK_KV - 1 - half * ROWS_OF_TILE)
            within = (key >= 0) & (key < BLOCK_KV)
            found = look_up(memory.tile, jnp.where(within, column * BLOCK_KV + key, 0), shape.interpret)
            to = memory.sums.at[warpgroup, pl.ds(half * ROWS_OF_TILE, ROWS_OF_TILE)]
            to[...] = jnp.sum(jnp.where(within, found, 0.0), 1)
        plgpu.commit_smem()
        pl.when(warpgroup == 0)(lambda: plgpu.barrier_arrive(memory.order))
        plgpu.copy_smem_to_gmem(memory.sums.at[warpgroup], outputs[0].at[batch, head, band, warpgroup])
        plgpu.wait_smem_to_gmem(0)

    @pl.when(warpgroup == WARPGROUPS)
    def load() -> None:
        plgpu.set_max_registers(REGISTERS[1], action="decrease")
        heads, (keys, kv_heads) = inputs.query.shape[2], inputs.key.shape[1:3]
        kv_head = lax.div(head, jnp.int32(heads // kv_heads))
        source = inputs.bias[0].at[head, pl.ds(apart * BLOCK_KV + (keys - BLOCK_KV), shape.entries)]
        plgpu.copy_gmem_to_smem(source, memory.table, memory.t_ready)

        @pl.loop(first, last)
        def _(step: Any) -> None:
            slot, again = lax.rem(step, jnp.int32(shape.stages)), step >= first + shape.stages
            queries, of_keys = pl.ds(step * BLOCK, BLOCK), pl.ds((step * RATIO - apart) * BLOCK_KV, BLOCK_KV)
            pl.when(again)(lambda: plgpu.barrier_wait(memory.free.at[slot]))
            parts = [
                (inputs.query.at[batch, queries, head], memory.query),
                (inputs.d_out.at[batch, queries, head], memory.d_out),
                (inputs.known.at[batch, head, pl.ds(0, 3), queries], memory.known),
                (inputs.key.at[batch, of_keys, kv_head], memory.key),
                (inputs.value.at[batch, of_keys, kv_head], memory.value),
                *((x.at[row(x), queries], ref) for x, ref in zip(inputs.queries, memory.queries, strict=True)),
                *((x.at[row(x), of_keys], ref) for x, ref in zip(inputs.keys, memory.keys, strict=True)),
            ]
            for source, ref in parts:
                plgpu.copy_gmem_to_smem(source, ref.at[slot], memory.ready.at[slot])

        observe(shape, first, last, (memory.free,))
