r"""The cotangent of a bias that a table of differences gives, on a Hopper GPU.

A block of threads sums one band: the tiles of queries and keys whose starts have the same difference, so that scores
with the same indices in these tiles have the same difference too. The tiles are added to one tile in registers, in the
same order each time. Only at the end are the diagonals of that tile summed:

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

from posenc_jax._attention.hopper.backward_kernel import Inputs, per_query, weights
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
    full,
    kernel,
    observe,
    plgpu,
    products,
    release,
    row_of,
    rows_and_columns,
    tile_range_of,
    to_registers,
    visit_all,
)
from posenc_jax._attention.hopper.scores import ScoreInputs, TileOrigin, look_up, tile_bias, write

BLOCK_KV = ROWS_OF_TILE  # keys of a tile
RATIO = BLOCK // BLOCK_KV
DIAGONALS = 2 * ROWS_OF_TILE  # those of a tile of a warpgroup, and one more, which is empty


def band_offsets(reach: tuple[int | None, int | None], tiles: tuple[int, int]) -> np.ndarray:
    """The offset of each band: the difference of its tiles' starts, in tiles of keys. In others no query sees a key."""
    (left, right), (queries, keys) = reach, tiles
    low, high = 1 - keys, RATIO * (queries - 1)
    if right is not None:
        low = max(low, -((right + BLOCK - 1) // BLOCK_KV))
    if left is not None:
        high = min(high, (left + BLOCK_KV - 1) // BLOCK_KV)
    return np.arange(low, high + 1, dtype=np.int32)


def along_bands(offsets: np.ndarray, tiles: Any) -> Any:
    """Reads an array of tiles (batch, queries, keys) along bands: (batch, bands, queries)."""
    xp: Any = np if isinstance(tiles, np.ndarray) else jnp
    query = np.arange(tiles.shape[1], dtype=np.int32)[None]
    key = RATIO * query - offsets[:, None]
    within = ((key >= 0) & (key < tiles.shape[2]))[None]
    return xp.where(within, tiles[:, query, key.clip(0, tiles.shape[2] - 1)], False)


class _BandMemory(NamedTuple):
    """The shared memory and the barriers of a block."""

    query: Any
    d_out: Any
    key: Any
    value: Any
    statistics: Any
    queries: tuple[Any, ...]  # the attributes of queries
    keys: tuple[Any, ...]  # the attributes of keys
    table: Any  # the part of the table for the band
    tile: Any  # the sum of a warpgroup's tiles, first of one warpgroup and then of the other
    sums: Any  # those of its diagonals
    t_ready: Any  # a barrier for the table
    ready: Any  # for a pair of tiles, which is loaded
    free: Any  # for a pair of tiles, which the next one may replace
    first_done: Any  # a barrier by which the second warpgroup waits until the first has read `tile`


def d_table(static: StaticSettings, inputs: Inputs, offsets: np.ndarray) -> jax.Array:
    """The cotangent of the table, float32 (heads, entries); the tile ranges of the inputs are those of each band."""
    query, stages, dtype = inputs.query, static.stages, inputs.query.dtype
    (batch, _, heads, width), entries = query.shape, inputs.bias[0].shape[1]
    query_tile = plgpu.SMEM((stages, BLOCK, width), dtype, transforms=TILED)
    key_tile = plgpu.SMEM((stages, BLOCK_KV, width), dtype, transforms=TILED)
    memory = _BandMemory(
        query_tile,
        query_tile,
        key_tile,
        key_tile,
        plgpu.SMEM((stages, 3, BLOCK), jnp.float32),
        tuple(plgpu.SMEM((stages, BLOCK), jnp.int32) for _ in static.attributes),
        tuple(plgpu.SMEM((stages, BLOCK_KV), jnp.int32) for _ in static.attributes),
        plgpu.SMEM((static.entries,), jnp.float32),
        plgpu.SMEM((ROWS_OF_TILE, BLOCK_KV), jnp.float32),
        plgpu.SMEM((WARPGROUPS, DIAGONALS), jnp.float32),
        plgpu.Barrier(),
        plgpu.Barrier(num_barriers=stages, num_arrivals=5 + 2 * len(static.attributes)),
        plgpu.Barrier(num_barriers=stages, num_arrivals=WARPGROUPS),
        plgpu.Barrier(),
    )

    grid = {"head": heads, "band": len(offsets), "batch": batch}
    out = [jax.ShapeDtypeStruct((batch, heads, len(offsets), WARPGROUPS, DIAGONALS), jnp.float32)]
    run = functools.partial(_along_band, lowest=int(offsets[0]))
    (sums,) = kernel("d_table", run, static, grid, inputs, memory, out)
    sums = jnp.sum(sums, 0)
    # The second warpgroup of a band has the diagonals of the next band's first one, and the next band has half of them.
    rows = jnp.pad(sums[:, :, 0], ((0, 0), (0, 1), (0, 0))) + jnp.pad(sums[:, :, 1], ((0, 0), (1, 0), (0, 0)))
    halves = rows[..., :ROWS_OF_TILE], rows[..., ROWS_OF_TILE:]
    joined = jnp.pad(halves[0], ((0, 0), (0, 1), (0, 0))) + jnp.pad(halves[1], ((0, 0), (1, 0), (0, 0)))
    joined = joined.reshape(heads, -1)[:, :-1]
    first = BLOCK_KV * int(offsets[0]) + 1 - BLOCK_KV + inputs.key.shape[1]
    return jnp.pad(joined, ((0, 0), (first, entries - first - joined.shape[1])))


def _along_band(
    static: StaticSettings, index: dict[str, Any], inputs: Inputs, outputs: Any, memory: _BandMemory, lowest: int
) -> None:
    batch, head, band, warpgroup = index["batch"], index["head"], index["band"], lax.axis_index("warpgroup")
    tile_range = tile_range_of(inputs, batch, band)
    first, last, offset = tile_range[0], tile_range[3], band + lowest

    @pl.when(warpgroup < WARPGROUPS)
    def compute() -> None:
        plgpu.set_max_registers(REGISTERS[0], action="increase")
        base, rows = warpgroup * ROWS_OF_TILE, pl.ds(warpgroup * ROWS_OF_TILE, ROWS_OF_TILE)
        tile_shape = ROWS_OF_TILE, BLOCK_KV
        plgpu.barrier_wait(memory.t_ready)
        origin = TileOrigin(base, offset * -BLOCK_KV, base + BLOCK_KV)
        bias = tile_bias(static, tile_shape, origin, ScoreInputs((), (), (), memory.table))

        def visit(step: Any, sums: Any, unmasked: bool) -> Any:
            slot = static.slot(step)
            plgpu.barrier_wait(memory.ready.at[slot])
            q, d_out = (x.at[slot, rows] for x in (memory.query, memory.d_out))
            x, dp = products(static, [(q, memory.key.at[slot]), (d_out, memory.value.at[slot])])
            top, inverse_total, delta = (to_registers(memory.statistics.at[slot, n, rows], ROWS) for n in range(3))
            queries = [to_registers(x.at[slot, rows], ROWS) for x in memory.queries]
            keys = [to_registers(x.at[slot], COLUMNS) for x in memory.keys]
            release(memory.free.at[slot])
            origin = TileOrigin(step * BLOCK + base, (step * RATIO - offset) * BLOCK_KV, None)
            e, _ = weights(static, x, origin, ScoreInputs(queries, keys, (), bias=bias), top, unmasked)
            scaled = dp * per_query(inverse_total, origin, tile_shape)
            ds = e * (scaled - per_query(inverse_total * delta, origin, tile_shape))
            return sums + ds

        ends = static.masked and static.ragged, static.masked or static.keys % static.block
        sums = visit_all(visit, tile_range, full(tile_shape, TILE), *ends)
        pl.when(warpgroup == 1)(lambda: plgpu.barrier_wait(memory.first_done))
        write(memory.tile, sums, static.interpret)
        plgpu.commit_smem()
        row, column = rows_and_columns(tile_shape)
        for half in range(2):  # a row for each diagonal, and a column for each query
            key = column - row + (BLOCK_KV - 1 - half * ROWS_OF_TILE)
            within = (key >= 0) & (key < BLOCK_KV)
            diagonals = look_up(memory.tile, jnp.where(within, column * BLOCK_KV + key, 0), static.interpret)
            stored = memory.sums.at[warpgroup, pl.ds(half * ROWS_OF_TILE, ROWS_OF_TILE)]
            stored[...] = jnp.sum(jnp.where(within, diagonals, 0.0), 1)
        plgpu.commit_smem()
        pl.when(warpgroup == 0)(lambda: plgpu.barrier_arrive(memory.first_done))
        plgpu.copy_smem_to_gmem(memory.sums.at[warpgroup], outputs[0].at[batch, head, band, warpgroup])
        plgpu.wait_smem_to_gmem(0)

    @pl.when(warpgroup == WARPGROUPS)
    def load() -> None:
        plgpu.set_max_registers(REGISTERS[1], action="decrease")
        heads, (length, kv_heads) = inputs.query.shape[2], inputs.key.shape[1:3]
        kv_head = lax.div(head, jnp.int32(heads // kv_heads))
        source = inputs.bias[0].at[head, pl.ds(offset * BLOCK_KV + (length - BLOCK_KV), static.entries)]
        plgpu.copy_gmem_to_smem(source, memory.table, memory.t_ready)

        @pl.loop(first, last)
        def _(step: Any) -> None:
            slot, reused = static.slot(step), step >= first + static.stages
            queries, keys = pl.ds(step * BLOCK, BLOCK), pl.ds((step * RATIO - offset) * BLOCK_KV, BLOCK_KV)
            pl.when(reused)(lambda: plgpu.barrier_wait(memory.free.at[slot]))
            copies = [
                (inputs.query.at[batch, queries, head], memory.query),
                (inputs.d_out.at[batch, queries, head], memory.d_out),
                (inputs.statistics.at[batch, head, pl.ds(0, 3), queries], memory.statistics),
                (inputs.key.at[batch, keys, kv_head], memory.key),
                (inputs.value.at[batch, keys, kv_head], memory.value),
                *((x.at[row_of(x, batch), queries], y) for x, y in zip(inputs.queries, memory.queries, strict=True)),
                *((x.at[row_of(x, batch), keys], y) for x, y in zip(inputs.keys, memory.keys, strict=True)),
            ]
            for source, ref in copies:
                plgpu.copy_gmem_to_smem(source, ref.at[slot], memory.ready.at[slot])

        observe(static, first, last, (memory.free,))
