r"""The scores of a tile in the kernels for NVIDIA GPUs: products with their cap, bias and mask, in registers.

With raw products $x$, a scale $c$ and a bias $b$, both the maximum and the weights need only

$$x'_{ij} = x_{ij} + b(i, j) / c, \qquad p_{ij} = 2^{c' x'_{ij} - m_i}, \qquad c' = c \log_2 e,$$

so that without a bias, the weights cost one fused multiply-add and one exponential a score.

Interpret mode runs other lines in four places: `add_products`, `look_up`, `same_in_thread` and `write`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu

from posenc_jax._attention.hopper.bias_programs import NEAR, BiasProgram, Constant, Step

plgpu: Any = mosaic_gpu  # what it exports is not all typed
ROWS_OF_TILE, WARPGROUPS = 64, 2  # rows of a warpgroup, and how many compute
BLOCK = ROWS_OF_TILE * WARPGROUPS
LOG2E = math.log2(math.e)
LOWEST = -1e37  # a maximum before any key; finite, so that no difference of two is NaN
TILE, ROWS, COLUMNS = plgpu.Layout.WGMMA, plgpu.Layout.WGMMA.reduce(1), plgpu.Layout.WGMMA.reduce(0)
TILED = plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128)
REGISTERS = 240, 24  # of threads that compute, and of those that load


class Shape(NamedTuple):
    """What is known when a kernel is traced."""

    keys: int  # without padding
    block: int  # the columns of a tile: keys, or queries in a kernel whose rows are keys
    stages: int  # tiles that are loaded or in use
    scale: float
    soft_cap: float | None
    reach: tuple[int | None, int | None]  # how many keys before and after a query's position it sees; None: all
    sides: tuple[str, ...]  # what is given of each token, of "positions", "segments" and "order"
    bias: BiasProgram | None
    unbounded: bool  # whether columns of the padding, which are queries, may have scores that are not numbers
    interpret: bool

    @property
    def masked(self) -> bool:
        return self.reach != (None, None) or bool({"segments", "order"} & {*self.sides})

    @property
    def ragged(self) -> bool:
        """Whether tiles with a mask may come at both ends of a row."""
        return self.reach[0] is not None or bool(self.sides)

    @property
    def near(self) -> bool:
        return self.bias is not None and self.bias.kind == "near"

    @property
    def looks_up(self) -> bool:
        return self.bias is not None and self.bias.kind in ("table", "near")

    @property
    def entries(self) -> int:
        """The entries of a table for a block's rows and the columns of a tile."""
        return 2 * NEAR if self.near else BLOCK + self.block


class At(NamedTuple):
    """Where a tile is."""

    query: Any  # its first
    key: Any
    entry: Any  # of a table, for these two
    transposed: bool = False  # whether rows are keys, and columns queries


class Read(NamedTuple):
    """What masks and bias read of a tile."""

    queries: Any  # the sides
    keys: Any
    numbers: Any  # of the head
    table: Any = None  # in shared memory
    bias: Any = None  # the bias itself, if it is known


class Scores(NamedTuple):
    """Those of a tile divided by the scale, −∞ for keys that a query does not see."""

    x: Any
    left: Any  # what is left to add to the scores of a query, times log₂ e, or None
    slope: Any  # the derivative of the cap, if there is one


def kernel(
    name: str, run: Callable[..., None], shape: Shape, grid: dict[str, int], inputs: Any, memory: Any, out: Any
) -> Any:
    """Runs `run(index, inputs, outputs, memory)` in blocks of two warpgroups that compute and one that loads.

    `inputs` are a tree of arrays, of which it gets one of references; `memory` is what a block shares. `index` is
    its number along each of the three axes of the grid, of which the last is the fastest.
    """
    leaves, tree = jax.tree.flatten(inputs)
    outer, middle, inner = grid

    def entry(*refs: Any) -> None:
        both, count = lax.axis_index("both"), jnp.int32(grid[inner])
        index = {outer: lax.axis_index("outer"), middle: lax.div(both, count), inner: lax.rem(both, count)}
        of_block = functools.partial(run, index, tree.unflatten(refs[: len(leaves)]), refs[len(leaves) :])
        pl.run_scoped(of_block, memory, collective_axes="warpgroup")

    entry.__name__ = name  # what the compiler writes is named after it
    return plgpu.kernel(
        entry,
        out_type=out,
        # A grid has at most 65,535 blocks along its slower axes, and all levels of `jax.vmap` are along the slowest.
        grid=(grid[outer], grid[middle] * grid[inner]),
        grid_names=("outer", "both"),
        num_threads=WARPGROUPS + 1,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=plgpu.InterpretGPUParams() if shape.interpret else None,
    )(*leaves)


def release(barrier: Any, read: bool = True) -> None:
    """Lets the next tile be loaded to a slot; what was `read` of it other than by matrix products is fenced."""
    if read:
        plgpu.commit_smem()
    plgpu.barrier_arrive(barrier)


def scores(shape: Shape, x: Any, at: At, read: Read, whole: bool) -> Scores:
    """The scores of a tile of products, where all keys are seen if it is `whole`."""
    bias, slope = shape.bias, None
    if shape.soft_cap is not None:
        x = _tanh(x * (shape.scale / shape.soft_cap))
        slope = 1 - x * x
        x *= shape.soft_cap / shape.scale
    i, j, near, far, q_sides, k_sides = _positions(shape, x.shape, at, read)
    if whole and bias is not None and bias.kind == "linear" and shape.reach[1] == 0:
        # b = −m (i − j) in two parts, of which one is the same for all keys.
        axis, layout, bits = (1, COLUMNS, 6) if at.transposed else (0, ROWS, ~8)  # those bits are equal in a thread
        each = plgpu.broadcasted_iota(jnp.int32, x.shape[axis : axis + 1], 0, layout=layout)
        _, k_number = _numbers_within(x.shape, at)
        x -= k_number.astype(jnp.float32) * (read.numbers[0] * (1 / shape.scale))
        difference = (at.query - at.key + (each & bits)).astype(jnp.float32) + (each & ~bits).astype(jnp.float32)
        return Scores(x, difference * (read.numbers[0] * LOG2E), slope)
    if bias is not None:
        added = read.bias
        if added is None:
            added = bias_of(shape, x.shape, at, read)
        x += added * (1 / shape.scale)
    if whole:
        return Scores(x, None, slope)
    if "positions" not in shape.sides:
        i, j = near, -far
    for seen in _seen(shape, i, j, q_sides, k_sides):
        x = jnp.where(seen, x, -jnp.inf)
    if shape.keys % shape.block and not at.transposed:
        x = jnp.where(is_key(shape, at, x.shape), x, -jnp.inf)
    return Scores(x, None, slope)


def is_key(shape: Shape, at: At, tile: Any) -> Any:
    """Whether a column is a key, not padding."""
    column = plgpu.broadcasted_iota(jnp.int32, tile, 1, layout=TILE)
    return (column & 6) < shape.keys - at.key - (column & ~6)


def bias_of(shape: Shape, tile: Any, at: At, read: Read) -> Any:
    """The bias of a tile, float32."""
    bias: Any = shape.bias
    if bias.kind == "table":
        of_thread, constant = _difference_within(shape, tile, at)
        return look_up(read.table, constant + at.entry + of_thread, shape.interpret)
    i, j, near, far, *_ = _positions(shape, tile, at, read)
    if bias.kind == "near":  # |i − j| ≤ end, without overflow
        to = jnp.maximum(j, jnp.maximum(i, bias.end - 2**31) - bias.end)
        to = jnp.minimum(to, jnp.minimum(i, 2**31 - 1 - bias.end) + bias.end)
        return look_up(read.table, i - to + NEAR, shape.interpret)
    if bias.kind == "linear":
        return jnp.abs(near + far) * read.numbers[0]
    return _evaluate(bias.steps, [i, j, *read.numbers], near + far)[-1]


def cotangents(shape: Shape, ds: Any, at: At, read: Read) -> list[Any]:
    """Of each score's bias, those of the numbers that it reads, from the cotangent of the score."""
    i, j, near, far, *_ = _positions(shape, ds.shape, at, read)
    program: Any = shape.bias
    if program.kind == "linear":
        return [ds * jnp.abs(near + far)]
    steps, results = program.pullback
    values = _evaluate(steps, [i, j, *read.numbers, ds], near + far)
    return [values[n] for n in results]


def _positions(shape: Shape, tile: Any, at: At, read: Read) -> Any:
    """The positions of queries and keys, their difference in two parts if they are counted, and the sides."""
    q_axis = 1 if at.transposed else 0
    spread = lambda sides, axis: [lax.broadcast_in_dim(s, tile, (axis,)) for s in sides]  # noqa: E731
    q_sides = dict(zip(shape.sides, spread(read.queries, q_axis), strict=True))
    k_sides = dict(zip(shape.sides, spread(read.keys, 1 - q_axis), strict=True))
    q_number, k_number = _numbers_within(tile, at)
    i: Any = q_sides.get("positions", at.query + q_number)
    j: Any = k_sides.get("positions", at.key + k_number)
    of_thread, constant = _difference_within(shape, tile, at)
    near, far = (at.query - at.key + of_thread).astype(jnp.float32), constant.astype(jnp.float32)
    return i, j, near, far, q_sides, k_sides


def _numbers_within(tile: Any, at: At) -> tuple[Any, Any]:
    """The number of each score's query, and of its key, within the tile."""
    row, column = (plgpu.broadcasted_iota(jnp.int32, tile, axis, layout=TILE) for axis in range(2))
    return (column, row) if at.transposed else (row, column)


def _difference_within(shape: Shape, tile: Any, at: At) -> tuple[Any, Any]:
    """The first of these less the second, in two parts: one number for each thread, and a constant.

    A thread has the same differences in its two rows, so the compiler computes each once.
    """
    row, column = (plgpu.broadcasted_iota(jnp.int32, tile, axis, layout=TILE) for axis in range(2))
    of_thread, constant = (row & ~8) - (column & 6), (row & 8) - (column & ~6)
    if at.transposed:
        of_thread, constant = -of_thread, -constant
    return same_in_thread(of_thread, shape.interpret), constant


def _seen(shape: Shape, i: Any, j: Any, queries: Any, keys: Any) -> list[Any]:
    """What masks say of each score."""
    (left, right), most, explicit, rules = shape.reach, 2**31 - 1, "positions" in shape.sides, []
    if right is not None:
        rules.append(j <= (jnp.minimum(i, most - right) + right if explicit and right else i + right))
    if left is not None:
        rules.append(j >= (jnp.maximum(i, left - most) - left if explicit else i - left))
    if "segments" in shape.sides:
        rules.append(queries["segments"] == keys["segments"])
    if "order" in shape.sides:
        rules.append(queries["order"] >= keys["order"])
    return rules


# Biases


def _evaluate(steps: tuple[Step, ...], values: list[Any], difference: Any) -> list[Any]:
    """The given values of a tile, of which the first is one of each score, and the results of the steps."""
    values, shape = list(values), values[0].shape
    for operation, inputs, parameters in steps:
        if isinstance(operation, str):
            values.append(jnp.abs(difference) if operation == "|i-j|" else difference)
            continue
        tiles = (
            lax.full(shape, x.value, x.dtype) if isinstance(x, Constant) else jnp.broadcast_to(values[x], shape)
            for x in inputs
        )
        bind = functools.partial(operation.bind, **dict(parameters))
        values.append(INSTEAD.get(operation.name, bind)(*tiles))
    return values


def _tanh(x: Any) -> Any:
    """The hyperbolic tangent within 2e-7; the device's own is within 5e-4."""
    return 1 - 2 / (jnp.exp2(x * (2 * LOG2E)) + 1)


def _log1p(x: Any) -> Any:
    """As `kernels.kerple_log` computes it."""
    u = 1 + x
    return jnp.log(u) + jnp.where(u == x, 0.0, (x - (u - 1)) * (1 / u))


def _div(x: Any, y: Any) -> Any:
    """Without the rescaling of the device's own division, which takes five instructions."""
    return x * (1 / y) if x.dtype == jnp.float32 else lax.div(x, y)


# Operations that Mosaic GPU does not lower, or not well.
INSTEAD = {
    "div": _div,
    "tanh": _tanh,
    "log1p": _log1p,
    "pow": lambda x, y: jnp.exp2(y * jnp.log2(x)),
    "add_any": lax.add,
    "one_minus_square": lambda x: 1 - x * x,
}


def look_up(table: Any, index: Any, interpret: bool) -> Any:
    """The entries of an array of one or two axes in shared memory, at a tile of flat indices within it."""
    if interpret:
        return table[...].reshape(-1)[index]
    from jaxlib.mlir import ir  # noqa: PLC0415
    from jaxlib.mlir.dialects import arith, memref  # noqa: PLC0415

    result, width = plgpu.ShapeDtypeStruct(index.shape, jnp.dtype(jnp.float32), TILE), table.shape[-1]

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), TILE), return_type=result)
    def gather(ctx: Any, table: Any, index: Any) -> Any:
        def load(i: Any, _: Any) -> Any:
            i = arith.index_castui(ir.IndexType.get(), i)
            if not of_two:
                return memref.load(table, [i])
            each: Any = arith.constant(ir.IndexType.get(), width)
            return memref.load(table, [arith.divui(i, each), arith.remui(i, each)])

        return index.foreach(load, create_array=True)

    of_two = len(table.shape) == 2
    return gather(table, index)


def same_in_thread(tile: Any, interpret: bool) -> Any:
    """An int32 tile in which a thread has one number for all its scores, which the compiler does not always see."""
    if interpret:
        return tile

    @plgpu.inline_mgpu(arg_types=(TILE,), return_type=plgpu.ShapeDtypeStruct(tile.shape, tile.dtype, TILE))
    def first(ctx: Any, tile: Any) -> Any:
        number: list[Any] = []
        tile.foreach(lambda x, _: number.append(x))
        return tile.foreach(lambda *_: number[0], create_array=True, is_signed=True)

    return first(tile)


def write(array: Any, tile: Any, interpret: bool) -> None:
    """Writes a tile to an array in shared memory that `look_up` reads."""
    if interpret:
        array[...] = tile
        return
    from jaxlib.mlir.dialects import memref  # noqa: PLC0415

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), TILE))
    def scatter(ctx: Any, array: Any, tile: Any) -> None:
        tile.foreach(lambda x, index: memref.store(x, array, index))

    scatter(array, tile)


# Registers


def unknown_zero(number: Any) -> Any:
    """0, from the number of a tile or warpgroup, of which none reaches 2³⁰; the compiler does not know that.

    Added to an index, it makes the compiler compute addresses where they are used, instead of keeping them in registers
    that others need. Where no register is short it would only cost instructions.
    """
    return lax.shift_right_logical(number, jnp.int32(30))


def zeros(shape: tuple[int, ...], layout: Any, value: Any = 0.0) -> Any:
    return plgpu.layout_cast(jnp.full(shape, value, jnp.float32), layout)


def add_products(shape: Shape, terms: Sequence[tuple[Any, Any, Any]], then: Callable[[], None] = lambda: None) -> Any:
    """The sums `total` + a b of all terms (total, a, b); `then` runs after the products are issued."""
    if shape.interpret:  # the interpreter has no accumulators with a start
        then()
        return [total + jnp.dot(a, b[...], preferred_element_type=jnp.float32) for total, a, b in terms]

    def issue(totals: Any) -> None:
        for total, (_, a, b) in zip(totals, terms, strict=True):
            plgpu.wgmma(total, a, b)
        then()

    return pl.run_state(issue)([plgpu.ACC.init(total) for total, *_ in terms])
