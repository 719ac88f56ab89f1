r"""Attention forward on a Hopper GPU in one kernel, with any bias computed in registers.

One block of threads computes a tile of queries of one head: two warpgroups compute, each for its own queries, and a
third loads tiles of keys and values ahead of them. One of the two multiplies while the other computes the weights.
With raw products $x$, a scale $c$ and a bias $b$, both the maximum and the weights need only

$$x'_{ij} = x_{ij} + b(i, j) / c, \qquad p_{ij} = 2^{c' x'_{ij} - m_i}, \qquad c' = c \log_2 e,$$

so that without a bias, the weights cost one fused multiply-add and one exponential a score. The structure follows
`jax.experimental.pallas.ops.gpu.attention_mgpu`, which takes no bias.

Interpret mode runs other lines in two places: `_add_values` and `_look_up`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu

from posenc_jax._flash_bias import NEAR, Constant, Program

plgpu: Any = mosaic_gpu  # what it exports is not all typed
BLOCK_Q, WARPGROUPS = 64, 2  # queries of a warpgroup, and how many compute
LOG2E = math.log2(math.e)
LOWEST = -1e37  # a maximum before any key; finite, so that no difference of two is NaN
TILE, ROWS, COLUMNS = plgpu.Layout.WGMMA, plgpu.Layout.WGMMA.reduce(1), plgpu.Layout.WGMMA.reduce(0)
REGISTERS = 240, 24  # of threads that compute, and of those that load


class Shape(NamedTuple):
    """What is known when the kernel is traced."""

    keys: int  # without padding
    block_kv: int
    stages: int  # tiles of keys, and of values, that are loaded or in use
    scale: float
    soft_cap: float | None
    reach: tuple[int | None, int | None]  # how many keys before and after a query's position it sees; None: all
    sides: tuple[str, ...]  # what is given of each token, of "positions", "segments" and "order"
    bias: Program | None
    interpret: bool


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
    """The output, and the sum of weights and the maximum score of each query, float32 (batch, heads, queries)."""
    query = inputs.query
    batch, length, heads, width = query.shape
    leaves, tree = jax.tree.flatten(inputs)
    tiled = plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128)
    looks_up = shape.bias is not None and shape.bias.kind in ("table", "near")
    many = functools.partial(plgpu.SMEM, dtype=query.dtype, transforms=tiled)
    of_rows = plgpu.SMEM((WARPGROUPS, BLOCK_Q), jnp.float32)
    memory = _Memory(
        many((WARPGROUPS, BLOCK_Q, width)),
        many((shape.stages, shape.block_kv, width)),
        many((shape.stages, shape.block_kv, width)),
        (of_rows, of_rows),
        tuple(plgpu.SMEM((shape.stages, shape.block_kv), jnp.int32) for _ in shape.sides),
        plgpu.SMEM((shape.stages, _entries(shape)), jnp.float32) if looks_up else None,
        plgpu.Barrier(num_barriers=WARPGROUPS),
        plgpu.Barrier(num_barriers=shape.stages, num_arrivals=1 + len(shape.sides) + looks_up),
        plgpu.Barrier(num_barriers=shape.stages),
        plgpu.Barrier(num_barriers=shape.stages, num_arrivals=WARPGROUPS),
        plgpu.Barrier(num_barriers=shape.stages, num_arrivals=WARPGROUPS),
        plgpu.Barrier(num_arrivals=WARPGROUPS),
    )

    def entry(*refs: Any) -> None:
        run = functools.partial(_kernel, shape, tree.unflatten(refs[: len(leaves)]), refs[len(leaves) :])
        pl.run_scoped(run, memory, collective_axes="warpgroup")

    grid = {"head": heads, "tile": length // (BLOCK_Q * WARPGROUPS), "batch": batch}  # the first is the fastest
    # Blocks of one head side by side share its keys. On an H200 with 132 processors, that gained 6 % under ALiBi at 64
    # tiles, and lost 6 % at 256, of which the last are the shortest.
    if shape.bias is not None and grid["tile"] <= 128:
        grid = {"tile": grid["tile"], "head": heads, "batch": batch}
    of_queries = jax.ShapeDtypeStruct((batch, heads, length), jnp.float32)
    return plgpu.kernel(
        entry,
        out_type=[jax.ShapeDtypeStruct(query.shape, query.dtype), of_queries, of_queries],
        grid=tuple(grid.values()),
        grid_names=tuple(grid),
        num_threads=WARPGROUPS + 1,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=plgpu.InterpretGPUParams() if shape.interpret else None,
    )(*leaves)


class _Memory(NamedTuple):
    """What a block shares: arrays, and barriers that say when they are ready or free."""

    query: Any
    key: Any
    value: Any
    sums: tuple[Any, Any]
    sides: tuple[Any, ...]
    table: Any
    q_ready: Any
    k_ready: Any
    v_ready: Any
    k_free: Any
    v_free: Any
    turn: Any


def _entries(shape: Shape) -> int:
    """The entries of a table for the queries of a block and a tile of keys."""
    return 2 * NEAR if _near(shape) else BLOCK_Q * WARPGROUPS + shape.block_kv


def _near(shape: Shape) -> bool:
    return shape.bias is not None and shape.bias.kind == "near"


def _kernel(shape: Shape, inputs: Inputs, outputs: Any, memory: _Memory) -> None:
    batch, head, tile, warpgroup = (lax.axis_index(name) for name in ("batch", "head", "tile", "warpgroup"))
    if shape.reach[1] is not None or "order" in shape.sides:  # the longest rows first
        tile = inputs.query.shape[1] // (BLOCK_Q * WARPGROUPS) - 1 - tile
    row = lambda ref: 0 if ref.shape[0] == 1 else batch  # noqa: E731
    steps = [inputs.steps[row(inputs.steps), tile, n] for n in range(4)]
    block = tile * (BLOCK_Q * WARPGROUPS)

    @pl.when(warpgroup < WARPGROUPS)
    def compute() -> None:
        plgpu.set_max_registers(REGISTERS[0], action="increase")
        base = block + warpgroup * BLOCK_Q
        rows = pl.ds(base, BLOCK_Q)
        q, q_ready = memory.query.at[warpgroup], memory.q_ready.at[warpgroup]
        plgpu.copy_gmem_to_smem(inputs.query.at[batch, rows, head], q, q_ready)
        sides = [plgpu.load(x.at[row(x), rows], layout=ROWS, optimized=False) for x in inputs.queries]
        numbers = []
        if memory.table is None:
            numbers = [x[n, head] for x in inputs.bias for n in range(x.shape[0])]
        start = [x[head] for x in inputs.start]
        plgpu.barrier_wait(q_ready)

        def scores(step: Any, x: Any, whole: bool) -> Any:
            slot = lax.rem(step, jnp.int32(shape.stages))
            of_keys = [plgpu.load(x.at[slot], layout=COLUMNS, optimized=False) for x in memory.sides]
            table = None if memory.table is None else memory.table.at[slot]
            at = base, step * shape.block_kv, warpgroup * BLOCK_Q
            return _scores(shape, x, at, sides, of_keys, numbers, table, whole)

        out, *sums = _compute(shape, warpgroup, scores, steps, start, memory)
        q[...] = out.astype(q.dtype)
        stored = [x.at[warpgroup] for x in memory.sums]
        for ref, x in zip(stored, sums, strict=True):
            ref[...] = x
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(q, outputs[0].at[batch, rows, head])
        for ref, to in zip(stored, outputs[1:], strict=True):
            plgpu.copy_smem_to_gmem(ref, to.at[batch, head, rows])
        plgpu.wait_smem_to_gmem(0)

    @pl.when(warpgroup == WARPGROUPS)
    def load() -> None:
        plgpu.set_max_registers(REGISTERS[1], action="decrease")
        heads, (keys, kv_heads) = inputs.query.shape[2], inputs.key.shape[1:3]
        kv_head, first, last = lax.div(head, jnp.int32(heads // kv_heads)), steps[0], steps[3]

        @pl.loop(first, last)
        def _(step: Any) -> None:
            slot, start = lax.rem(step, jnp.int32(shape.stages)), step * shape.block_kv
            rows, again = pl.ds(start, shape.block_kv), step >= first + shape.stages
            pl.when(again)(lambda: plgpu.barrier_wait(memory.k_free.at[slot]))
            for x, ref in zip(inputs.keys, memory.sides, strict=True):
                plgpu.copy_gmem_to_smem(x.at[row(x), rows], ref.at[slot], memory.k_ready.at[slot])
            if memory.table is not None:
                at = 0 if _near(shape) else block - start + (keys - shape.block_kv)
                source = inputs.bias[0].at[head, pl.ds(at, _entries(shape))]
                plgpu.copy_gmem_to_smem(source, memory.table.at[slot], memory.k_ready.at[slot])
            plgpu.copy_gmem_to_smem(inputs.key.at[batch, rows, kv_head], memory.key.at[slot], memory.k_ready.at[slot])
            pl.when(again)(lambda: plgpu.barrier_wait(memory.v_free.at[slot]))
            plgpu.copy_gmem_to_smem(
                inputs.value.at[batch, rows, kv_head], memory.value.at[slot], memory.v_ready.at[slot]
            )

        @pl.loop(jnp.maximum(last - shape.stages, first), last)
        def _(step: Any) -> None:  # no barrier may end while a phase of it is not observed
            slot = lax.rem(step, jnp.int32(shape.stages))
            plgpu.barrier_wait(memory.k_free.at[slot])
            plgpu.barrier_wait(memory.v_free.at[slot])


def _scores(
    shape: Shape, x: Any, at: Any, queries: Any, keys: Any, numbers: Any, table: Any, whole: bool
) -> tuple[Any, Any]:
    """The products with their bias, divided by the scale, and what is left to add to the scores of a query, or None.

    The products are −∞ for keys that a query does not see.
    """
    (base, start, local), tile, bias = at, x.shape, shape.bias
    if shape.soft_cap is not None:
        x = _tanh(x * (shape.scale / shape.soft_cap)) * (shape.soft_cap / shape.scale)
    row, column = (plgpu.broadcasted_iota(jnp.int32, tile, axis, layout=TILE) for axis in range(2))
    if whole and bias is not None and bias.kind == "linear" and shape.reach[1] == 0:
        # b = −m (i − j) in two parts, of which one is the same for all keys.
        rows = plgpu.broadcasted_iota(jnp.int32, tile[:1], 0, layout=ROWS)
        x -= column.astype(jnp.float32) * (numbers[0] * (1 / shape.scale))
        return x, (base - start + rows).astype(jnp.float32) * numbers[0]
    spread = lambda sides, axis: [lax.broadcast_in_dim(s, tile, (axis,)) for s in sides]  # noqa: E731
    q_sides, k_sides = (dict(zip(shape.sides, spread(s, axis), strict=True)) for axis, s in enumerate((queries, keys)))
    i: Any = q_sides.get("positions", base + row)
    j: Any = k_sides.get("positions", start + column)
    # A row less a column in two parts: one number for each thread, and a constant. The compiler sees that a thread has
    # equal differences in its two rows, and computes these once.
    of_thread, constant = (row & ~8) - (column & 6), (row & 8) - (column & ~6)
    near, far = (base - start + of_thread).astype(jnp.float32), constant.astype(jnp.float32)
    if bias is not None:
        if bias.kind == "table":
            added = _look_up(table, constant + (local + shape.block_kv) + of_thread, shape.interpret)
        elif bias.kind == "near":  # |i − j| ≤ end, without overflow
            to = jnp.maximum(j, jnp.maximum(i, bias.end - 2**31) - bias.end)
            to = jnp.minimum(to, jnp.minimum(i, 2**31 - 1 - bias.end) + bias.end)
            added = _look_up(table, i - to + NEAR, shape.interpret)
        else:
            added = _evaluate(bias, i, j, near + far, numbers)
        x += added * (1 / shape.scale)
    if whole:
        return x, None
    if "positions" not in shape.sides:
        i, j = near, -far
    for seen in _seen(shape, i, j, q_sides, k_sides, (column & 6) < shape.keys - start - (column & ~6)):
        x = jnp.where(seen, x, -jnp.inf)
    return x, None


def _seen(shape: Shape, i: Any, j: Any, queries: Any, keys: Any, real: Any) -> list[Any]:
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
    return rules + [real] * bool(shape.keys % shape.block_kv)


# Biases


def _evaluate(program: Program, i: Any, j: Any, difference: Any, numbers: Any) -> Any:
    """The bias of a tile whose counted positions have these differences, float32."""
    values, shape = [i, j, *numbers], i.shape
    if program.kind == "linear":
        return jnp.abs(difference) * numbers[0]
    for operation, inputs, parameters in program.steps:
        if isinstance(operation, str):
            values.append(jnp.abs(difference) if operation == "|i-j|" else difference)
            continue
        tiles = (
            lax.full(shape, x.value, x.dtype) if isinstance(x, Constant) else jnp.broadcast_to(values[x], shape)
            for x in inputs
        )
        bind = functools.partial(operation.bind, **dict(parameters))
        values.append(INSTEAD.get(operation.name, bind)(*tiles))
    return values[-1]


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
INSTEAD = {"div": _div, "tanh": _tanh, "log1p": _log1p, "pow": lambda x, y: jnp.exp2(y * jnp.log2(x))}


def _look_up(table: Any, index: Any, interpret: bool) -> Any:
    """The entries of a table in shared memory at a tile of indices, which must be within it."""
    if interpret:
        return table[...][index]
    from jaxlib.mlir import ir  # noqa: PLC0415
    from jaxlib.mlir.dialects import arith, memref  # noqa: PLC0415

    result = plgpu.ShapeDtypeStruct(index.shape, jnp.dtype(jnp.float32), TILE)

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), TILE), return_type=result)
    def gather(ctx: Any, table: Any, index: Any) -> Any:
        load = lambda i, _: memref.load(table, [arith.index_castui(ir.IndexType.get(), i)])  # noqa: E731
        return index.foreach(load, create_array=True)

    return gather(table, index)


# The sums over keys


class _Sums(NamedTuple):
    """What a warpgroup keeps of the keys so far."""

    top: Any  # the maximum, times log₂ e
    total: Any
    out: Any


def _compute(
    shape: Shape, warpgroup: Any, scores: Any, steps: Any, start: Any, memory: _Memory
) -> tuple[Any, Any, Any]:
    """A warpgroup's output, sums and maxima: products, weights and products in turn with the other warpgroup."""
    q, (first, whole_from, whole_to, last) = memory.query.at[warpgroup], steps

    def pass_turn() -> None:
        plgpu.barrier_arrive(memory.turn)
        plgpu.barrier_wait(memory.turn)

    def visit(step: Any, sums: _Sums, whole: bool) -> _Sums:
        slot = lax.rem(step, jnp.int32(shape.stages))
        x = _products(shape, q, memory.key.at[slot], pass_turn)
        if k_free_early:
            plgpu.barrier_arrive(memory.k_free.at[slot])
        x, left = scores(step, x, whole)
        if not k_free_early:
            plgpu.barrier_arrive(memory.k_free.at[slot])
        top, shrink, p = _weights(shape, x, left, sums.top)
        total = sums.total * shrink
        out = sums.out * lax.broadcast_in_dim(shrink, sums.out.shape, (0,))
        p16 = p.astype(q.dtype)
        if narrow:  # the order of these matters for speed, as in attention_mgpu
            total += jnp.sum(p, 1)
            out, total, top, p16 = lax.optimization_barrier((out, total, top, p16))
        plgpu.barrier_arrive(memory.turn)
        plgpu.barrier_wait(memory.v_ready.at[slot])
        plgpu.barrier_wait(memory.turn)
        if not narrow:
            total += jnp.sum(p, 1)

        def wait_for_keys() -> None:
            slot = lax.rem(step + 1, jnp.int32(shape.stages))
            pl.when(step + 1 < last)(lambda: plgpu.barrier_wait(memory.k_ready.at[slot]))

        out = _add_values(shape, out, p16, memory.value.at[slot], wait_for_keys)
        plgpu.barrier_arrive(memory.v_free.at[slot])
        return _Sums(top, total, out)

    narrow, k_free_early = q.shape[-1] <= 128, not memory.sides and memory.table is None
    pl.when(last > first)(lambda: plgpu.barrier_wait(memory.k_ready.at[lax.rem(first, jnp.int32(shape.stages))]))
    pl.when(warpgroup == 1)(pass_turn)
    full = lambda of, value, layout: plgpu.layout_cast(jnp.full(of, value, jnp.float32), layout)  # noqa: E731
    top, total = start or (LOWEST, 0.0)
    rows = (BLOCK_Q,)
    sums = _Sums(full(rows, top, ROWS), full(rows, total, ROWS), full((*rows, q.shape[-1]), 0.0, TILE))
    masked = shape.reach != (None, None) or {"segments", "order"} & {*shape.sides} or shape.keys % shape.block_kv
    if masked and (shape.reach[0] is not None or shape.sides):
        sums = lax.fori_loop(first, whole_from, functools.partial(visit, whole=False), sums)
    sums = lax.fori_loop(whole_from, whole_to, functools.partial(visit, whole=True), sums)
    if masked:
        sums = lax.fori_loop(whole_to, last, functools.partial(visit, whole=False), sums)
    pl.when(warpgroup == 0)(pass_turn)
    share = 1 / jnp.where(sums.total == 0, 1, sums.total)
    out = sums.out * lax.broadcast_in_dim(share, sums.out.shape, (0,))
    return out, sums.total, sums.top * (1 / LOG2E)


def _weights(shape: Shape, x: Any, left: Any, top: Any) -> tuple[Any, Any, Any]:
    """The new maximum, what shrinks the sums so far, and the weights of a tile."""
    factor, most = shape.scale * LOG2E, jnp.max(x, 1)
    left = 0.0 if left is None else left * LOG2E
    higher = jnp.maximum(top, most * factor + left)
    shift = lax.broadcast_in_dim(higher - left, x.shape, (0,))
    return higher, jnp.exp2(top - higher), jnp.exp2(x * factor - shift)


def _products(shape: Shape, q: Any, k: Any, then: Callable[[], None]) -> Any:
    """The products of all queries and keys of a tile; `then` runs after they are issued."""

    def issue(products: Any) -> Any:
        plgpu.wgmma(products, q, k.transpose((1, 0)))
        then()
        return products[...]

    return pl.run_scoped(issue, plgpu.ACC((BLOCK_Q, shape.block_kv), jnp.float32))


def _add_values(shape: Shape, out: Any, p: Any, v: Any, then: Callable[[], None]) -> Any:
    """`out` + p v; `then` runs after the product is issued."""
    if shape.interpret:  # the interpreter has no accumulators with a start
        then()
        return out + jnp.dot(p, v[...], preferred_element_type=jnp.float32)

    def issue(total: Any) -> None:
        plgpu.wgmma(total, p, v)
        then()

    return pl.run_state(issue)(plgpu.ACC.init(out))
