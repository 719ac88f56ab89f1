"""A block of threads of the kernels for NVIDIA GPUs: its settings, tiles that are loaded, products and registers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu

from posenc_jax._attention.hopper.bias_programs import NEAR, BiasProgram

plgpu: Any = mosaic_gpu  # what it exports is not all typed
ROWS_OF_TILE, WARPGROUPS = 64, 2  # the rows of a warpgroup, and the number of warpgroups that compute
BLOCK = ROWS_OF_TILE * WARPGROUPS
TILE, ROWS, COLUMNS = plgpu.Layout.WGMMA, plgpu.Layout.WGMMA.reduce(1), plgpu.Layout.WGMMA.reduce(0)
TILED = plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128)
REGISTERS = 240, 24  # those of a thread that computes, and of one that loads


class StaticSettings(NamedTuple):
    """What a kernel is compiled for, besides the shapes of its operands."""

    keys: int  # without padding
    block: int  # the columns of a tile: keys, or queries in a kernel whose rows are keys
    stages: int  # tiles that are loaded or in use
    scale: float
    soft_cap: float | None
    reach: tuple[int | None, int | None]  # how many keys before and after a query's position it sees; None: all
    attributes: tuple[str, ...]  # those of tokens that masks and bias read: of "positions", "segments" and "order"
    bias: BiasProgram | None
    unbounded: bool  # whether columns are queries, and scores of queries of the padding may be NaN
    interpret: bool

    @property
    def masked(self) -> bool:
        return self.reach != (None, None) or bool({"segments", "order"} & {*self.attributes})

    @property
    def ragged(self) -> bool:
        """Whether tiles with a mask may be at both ends of a row."""
        return self.reach[0] is not None or bool(self.attributes)

    @property
    def near(self) -> bool:
        return self.bias is not None and self.bias.kind == "near"

    @property
    def looks_up(self) -> bool:
        return self.bias is not None and self.bias.kind in ("table", "near")

    @property
    def entries(self) -> int:
        """The number of a table's entries that the rows of a block and the columns of a tile need."""
        return 2 * NEAR if self.near else BLOCK + self.block

    def slot(self, step: Any) -> Any:
        """The slot of shared memory for the tile of a step."""
        return lax.rem(step, jnp.int32(self.stages))


def kernel(
    name: str,
    run: Callable[..., None],
    static: StaticSettings,
    grid: dict[str, int],
    inputs: Any,
    memory: Any,
    out: Any,
) -> Any:
    """Runs `run(static, index, inputs, outputs, memory)` in blocks of two warpgroups that compute and one that loads.

    `inputs` is a tree of arrays, which `run` gets as a tree of references, and `memory` the shared memory and barriers
    of a block. `index` has the block's index along each of the three axes of the grid. The last axis is the fastest.
    """
    leaves, tree = jax.tree.flatten(inputs)
    outer, middle, inner = grid

    def entry(*refs: Any) -> None:
        both, count = lax.axis_index("both"), jnp.int32(grid[inner])
        index = {outer: lax.axis_index("outer"), middle: lax.div(both, count), inner: lax.rem(both, count)}
        run_block = functools.partial(run, static, index, tree.unflatten(refs[: len(leaves)]), refs[len(leaves) :])
        pl.run_scoped(run_block, memory, collective_axes="warpgroup")

    entry.__name__ = name  # what the compiler writes is named after it
    return plgpu.kernel(
        entry,
        out_type=out,
        # A grid has at most 65,535 blocks along its slower axes, and `jax.vmap` makes the slowest axis longer.
        grid=(grid[outer], grid[middle] * grid[inner]),
        grid_names=("outer", "both"),
        num_threads=WARPGROUPS + 1,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=plgpu.InterpretGPUParams() if static.interpret else None,
    )(*leaves)


# Tiles


def row_of(array: Any, batch: Any) -> Any:
    """The index of a batch in an array whose batch may be 1."""
    return 0 if array.shape[0] == 1 else batch


def tile_range_of(inputs: Any, batch: Any, block: Any) -> list[Any]:
    """The range of the tiles that a block visits, see `attend._tile_ranges`."""
    return [inputs.tile_ranges[row_of(inputs.tile_ranges, batch), block, n] for n in range(4)]


def visit_all(visit: Any, tile_range: Any, sums: Any, before: Any, after: Any) -> Any:
    """Visits the tiles of a row, of which those `before` and `after` the unmasked ones may have a mask."""
    first, unmasked_from, unmasked_to, last = tile_range
    if before:
        sums = lax.fori_loop(first, unmasked_from, functools.partial(visit, unmasked=False), sums)
    sums = lax.fori_loop(unmasked_from, unmasked_to, functools.partial(visit, unmasked=True), sums)
    if after:
        sums = lax.fori_loop(unmasked_to, last, functools.partial(visit, unmasked=False), sums)
    return sums


def release(barrier: Any, read: bool = True) -> None:
    """Lets the next tile be loaded to a slot, after a fence if the slot was `read` other than by matrix products."""
    if read:
        plgpu.commit_smem()
    plgpu.barrier_arrive(barrier)


def observe(static: StaticSettings, first: Any, last: Any, barriers: Any) -> None:
    """Waits until the last tiles are free: a kernel must observe all phases of a barrier before it ends."""

    @pl.loop(jnp.maximum(last - static.stages, first), last)
    def _(step: Any) -> None:
        for barrier in barriers:
            plgpu.barrier_wait(barrier.at[static.slot(step)])


# Registers


def products(
    static: StaticSettings, pairs: Sequence[tuple[Any, Any]], then: Callable[[], None] = lambda: None
) -> tuple[Any, ...]:
    """The products of the rows of a and the rows of b, for each pair (a, b); `then` runs after they are issued."""

    def issue(*products: Any) -> tuple[Any, ...]:
        for total, (a, b) in zip(products, pairs, strict=True):
            plgpu.wgmma(total, a, b.transpose((1, 0)))
        then()
        return tuple(total[...] for total in products)

    return pl.run_scoped(issue, *[plgpu.ACC((ROWS_OF_TILE, static.block), jnp.float32)] * len(pairs))


def add_products(
    static: StaticSettings, terms: Sequence[tuple[Any, Any, Any]], then: Callable[[], None] = lambda: None
) -> Any:
    """The sums `total` + a b of all terms (total, a, b); `then` runs after the products are issued."""
    if static.interpret:  # the interpreter has no accumulators with an initial value
        then()
        return [total + jnp.dot(a, b[...], preferred_element_type=jnp.float32) for total, a, b in terms]

    def issue(totals: Any) -> None:
        for total, (_, a, b) in zip(totals, terms, strict=True):
            plgpu.wgmma(total, a, b)
        then()

    return pl.run_state(issue)([plgpu.ACC.init(total) for total, *_ in terms])


def rows_and_columns(tile_shape: tuple[int, ...]) -> list[Any]:
    """The number of each row and of each column, at every entry of a tile."""
    return [plgpu.broadcasted_iota(jnp.int32, tile_shape, axis, layout=TILE) for axis in range(2)]


def to_registers(array: Any, layout: Any) -> Any:
    """The numbers of an array in registers, one per row or column of a tile."""
    return plgpu.load(array, layout=layout, optimized=False)


def full(shape: tuple[int, ...], layout: Any, value: Any = 0.0) -> Any:
    """A float32 array of one value in registers."""
    return plgpu.layout_cast(jnp.full(shape, value, jnp.float32), layout)


def unknown_zero(number: Any) -> Any:
    """0, computed from the index of a tile or warpgroup, which is below 2³⁰; the compiler does not know that.

    Added to an index, it makes the compiler compute addresses where they are used, instead of keeping them in registers
    that other values need. Where registers are not scarce, it would only cost instructions.
    """
    return lax.shift_right_logical(number, jnp.int32(30))
