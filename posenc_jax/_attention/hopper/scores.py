r"""The scores of a tile in the kernels for NVIDIA GPUs: products with their cap, bias and mask, in registers.

With raw products $x$, a scale $c$ and a bias $b$, both the maximum and the weights need only

$$x'_{ij} = x_{ij} + b(i, j) / c, \qquad p_{ij} = 2^{c' x'_{ij} - m_i}, \qquad c' = c \log_2 e,$$

so that without a bias, the weights cost one fused multiply-add and one exponential per score.

Interpret mode runs other lines in four functions: `look_up`, `same_in_thread`, `write` and `blocks.add_products`.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from posenc_jax._attention.hopper.bias_programs import NEAR, Constant, Step
from posenc_jax._attention.hopper.blocks import COLUMNS, ROWS, TILE, StaticSettings, plgpu, rows_and_columns

LOG2E = math.log2(math.e)
LOWEST = -1e37  # the maximum before any key; finite, so that no difference of two maxima is NaN


class TileOrigin(NamedTuple):
    """The start of a tile."""

    query: Any  # the index of its first query
    key: Any  # the index of its first key
    entry: Any  # the index in the loaded part of a table of the entry for that query and key
    transposed: bool = False  # whether rows are keys, and columns queries


class ScoreInputs(NamedTuple):
    """What the masks and the bias of a tile are computed from."""

    queries: Any  # the attributes of its queries
    keys: Any  # the attributes of its keys
    numbers: Any  # those of the head that the bias reads
    table: Any = None  # the part of a table that the tile needs, in shared memory
    bias: Any = None  # the bias of the tile, if it is already computed


class TileScores(NamedTuple):
    """The scores of a tile divided by the scale; −∞ for keys that a query does not see."""

    x: Any
    query_term: Any  # a term that all scores of a query lack, times log₂ e, or None
    cap_derivative: Any  # the derivative of the soft cap, or None


def scores(static: StaticSettings, x: Any, origin: TileOrigin, score_inputs: ScoreInputs, unmasked: bool) -> TileScores:
    """The scores of a tile of products. In an `unmasked` tile, each query sees all keys."""
    bias, cap_derivative = static.bias, None
    if static.soft_cap is not None:
        x = _tanh(x * (static.scale / static.soft_cap))
        cap_derivative = 1 - x * x
        x *= static.soft_cap / static.scale
    i, j, thread_part, constant_part, query_attributes, key_attributes = _positions(
        static, x.shape, origin, score_inputs
    )
    if unmasked and bias is not None and bias.kind == "linear" and static.reach[1] == 0:
        # b = −m (i − j) in two terms, of which one is the same for all keys.
        axis, layout, bits = (1, COLUMNS, 6) if origin.transposed else (0, ROWS, ~8)  # those bits are equal in a thread
        query_number = plgpu.broadcasted_iota(jnp.int32, x.shape[axis : axis + 1], 0, layout=layout)
        _, key_number = _numbers_within(x.shape, origin)
        x -= key_number.astype(jnp.float32) * (score_inputs.numbers[0] * (1 / static.scale))
        difference = (origin.query - origin.key + (query_number & bits)).astype(jnp.float32)
        difference += (query_number & ~bits).astype(jnp.float32)
        return TileScores(x, difference * (score_inputs.numbers[0] * LOG2E), cap_derivative)
    if bias is not None:
        bias_of_tile = score_inputs.bias
        if bias_of_tile is None:
            bias_of_tile = tile_bias(static, x.shape, origin, score_inputs)
        x += bias_of_tile * (1 / static.scale)
    if unmasked:
        return TileScores(x, None, cap_derivative)
    if "positions" not in static.attributes:
        i, j = thread_part, -constant_part
    for seen in _masks(static, i, j, query_attributes, key_attributes):
        x = jnp.where(seen, x, -jnp.inf)
    if static.keys % static.block and not origin.transposed:
        x = jnp.where(is_key(static, origin, x.shape), x, -jnp.inf)
    return TileScores(x, None, cap_derivative)


def is_key(static: StaticSettings, origin: TileOrigin, tile_shape: Any) -> Any:
    """Whether a column is a key and not padding."""
    column = plgpu.broadcasted_iota(jnp.int32, tile_shape, 1, layout=TILE)
    return (column & 6) < static.keys - origin.key - (column & ~6)


def tile_bias(static: StaticSettings, tile_shape: Any, origin: TileOrigin, score_inputs: ScoreInputs) -> Any:
    """The bias of a tile, float32."""
    bias: Any = static.bias
    if bias.kind == "table":
        per_thread, constant = _difference_within(static, tile_shape, origin)
        return look_up(score_inputs.table, constant + origin.entry + per_thread, static.interpret)
    i, j, thread_part, constant_part, *_ = _positions(static, tile_shape, origin, score_inputs)
    if bias.kind == "near":  # j is limited to |i − j| ≤ reach, without overflow
        reach = bias.constant_from
        j = jnp.maximum(j, jnp.maximum(i, reach - 2**31) - reach)
        j = jnp.minimum(j, jnp.minimum(i, 2**31 - 1 - reach) + reach)
        return look_up(score_inputs.table, i - j + NEAR, static.interpret)
    if bias.kind == "linear":
        return jnp.abs(thread_part + constant_part) * score_inputs.numbers[0]
    return _evaluate(bias.steps, [i, j, *score_inputs.numbers], thread_part + constant_part)[-1]


def cotangents(static: StaticSettings, ds: Any, origin: TileOrigin, score_inputs: ScoreInputs) -> list[Any]:
    """The cotangents of the numbers that each score's bias reads, from the cotangent of the score."""
    i, j, thread_part, constant_part, *_ = _positions(static, ds.shape, origin, score_inputs)
    program: Any = static.bias
    if program.kind == "linear":
        return [ds * jnp.abs(thread_part + constant_part)]
    steps, indices = program.pullback
    values = _evaluate(steps, [i, j, *score_inputs.numbers, ds], thread_part + constant_part)
    return [values[n] for n in indices]


def _positions(static: StaticSettings, tile_shape: Any, origin: TileOrigin, score_inputs: ScoreInputs) -> Any:
    """The positions of queries and keys, their difference in two parts if they are counted, and all attributes."""
    query_axis = 1 if origin.transposed else 0
    broadcast = lambda attributes, axis: [lax.broadcast_in_dim(x, tile_shape, (axis,)) for x in attributes]  # noqa: E731
    query_attributes = dict(zip(static.attributes, broadcast(score_inputs.queries, query_axis), strict=True))
    key_attributes = dict(zip(static.attributes, broadcast(score_inputs.keys, 1 - query_axis), strict=True))
    query_number, key_number = _numbers_within(tile_shape, origin)
    i: Any = query_attributes.get("positions", origin.query + query_number)
    j: Any = key_attributes.get("positions", origin.key + key_number)
    per_thread, constant = _difference_within(static, tile_shape, origin)
    thread_part = (origin.query - origin.key + per_thread).astype(jnp.float32)
    return i, j, thread_part, constant.astype(jnp.float32), query_attributes, key_attributes


def _numbers_within(tile_shape: Any, origin: TileOrigin) -> tuple[Any, Any]:
    """The number of each score's query within the tile, and that of its key."""
    row, column = rows_and_columns(tile_shape)
    return (column, row) if origin.transposed else (row, column)


def _difference_within(static: StaticSettings, tile_shape: Any, origin: TileOrigin) -> tuple[Any, Any]:
    """The number of a score's query within the tile minus that of its key, as one number per thread and a constant.

    A thread has the same differences in its two rows, so the compiler computes each once.
    """
    row, column = rows_and_columns(tile_shape)
    per_thread, constant = (row & ~8) - (column & 6), (row & 8) - (column & ~6)
    if origin.transposed:
        per_thread, constant = -per_thread, -constant
    return same_in_thread(per_thread, static.interpret), constant


def _masks(static: StaticSettings, i: Any, j: Any, queries: Any, keys: Any) -> list[Any]:
    """Whether each mask lets a query see a key."""
    (left, right), most, explicit, masks = static.reach, 2**31 - 1, "positions" in static.attributes, []
    if right is not None:
        masks.append(j <= (jnp.minimum(i, most - right) + right if explicit and right else i + right))
    if left is not None:
        masks.append(j >= (jnp.maximum(i, left - most) - left if explicit else i - left))
    if "segments" in static.attributes:
        masks.append(queries["segments"] == keys["segments"])
    if "order" in static.attributes:
        masks.append(queries["order"] >= keys["order"])
    return masks


# Biases


def _evaluate(steps: tuple[Step, ...], values: list[Any], difference: Any) -> list[Any]:
    """The given values, of which the first has the shape of the tile, and the results of the steps."""
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
        values.append(REPLACEMENTS.get(operation.name, bind)(*tiles))
    return values


def _tanh(x: Any) -> Any:
    """The hyperbolic tangent with an error of 2e-7; that of the device's own is 5e-4."""
    return 1 - 2 / (jnp.exp2(x * (2 * LOG2E)) + 1)


def _log1p(x: Any) -> Any:
    """ln(1 + x), as `kernels.kerple_log` computes it."""
    u = 1 + x
    return jnp.log(u) + jnp.where(u == x, 0.0, (x - (u - 1)) * (1 / u))


def _div(x: Any, y: Any) -> Any:
    """A division without the rescaling of the device's own, which takes five instructions."""
    return x * (1 / y) if x.dtype == jnp.float32 else lax.div(x, y)


# By the name of an operation that Mosaic GPU does not lower, or not well, what computes it.
REPLACEMENTS = {
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
            if not has_rows:
                return memref.load(table, [i])
            row_width: Any = arith.constant(ir.IndexType.get(), width)
            return memref.load(table, [arith.divui(i, row_width), arith.remui(i, row_width)])

        return index.foreach(load, create_array=True)

    has_rows = len(table.shape) == 2
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
