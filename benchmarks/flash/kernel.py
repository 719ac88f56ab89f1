r"""A trial: attention forward on a Hopper GPU in one kernel, with any bias of positions computed in registers.

One block of threads computes a tile of queries of one head: two warpgroups compute, each for its own queries, and a
third loads tiles of keys and values ahead of them. One of the two multiplies while the other computes the weights.
With raw products $x$, a scale $c$ and a bias $b$, both the maximum and the weights need only

$$x'_{ij} = x_{ij} + b(i, j) / c, \qquad p_{ij} = 2^{c' x'_{ij} - m_i}, \qquad c' = c \log_2 e,$$

so that without a bias, the weights cost one fused multiply-add and one exponential a score.

The structure follows `jax.experimental.pallas.ops.gpu.attention_mgpu`, which takes no bias.
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
from jax.experimental.pallas import mosaic_gpu as plgpu

LOG2E = math.log2(math.e)
LOWEST = -1e37  # a maximum before any key; finite, so that no difference of two is NaN
ROWS = plgpu.Layout.WGMMA.reduce(1)
COLUMNS = plgpu.Layout.WGMMA.reduce(0)


class Config(NamedTuple):
    """How to cut the work."""

    block_q: int = 64  # queries of a warpgroup
    block_kv: int = 128
    stages: int = 2  # tiles of keys, and of values, that are loaded or in use
    warpgroups: int = 2  # that compute
    overlap: bool = False  # whether a warpgroup multiplies by the next keys while it computes weights
    registers: tuple[int, int] | None = None  # of threads that compute, and of those that load
    turns: bool = True  # whether two warpgroups multiply in turn
    heads_first: bool = True  # whether blocks of all heads start before the next tile of queries

    @property
    def queries(self) -> int:
        return self.block_q * self.warpgroups


class Bias(NamedTuple):
    """A bias of positions, `function(*positions, *arrays)`, for tiles (queries, keys) of one head.

    An array (heads,) is a number for the head, and an array (heads, n) is a `Table`.
    """

    function: Callable[..., Any]
    # "int32" or "float32": i and j in this dtype. "distance": only i − j in float32, which costs least.
    positions: str = "int32"
    divided: bool = False  # whether the function returns b / c instead of b
    # What costs less under a causal mask, when positions are counted from 0. (n, f): b = f(*arrays) where i − j ≥ n.
    far: tuple[int, Callable[..., Any]] | None = None
    # (f, g): b = f(i − n, *arrays) + g(j − n, *arrays) where i ≥ j, for any n, with float32 differences.
    split: tuple[Callable[..., Any], Callable[..., Any]] | None = None
    # f: b(i, j) ≤ b(i, i) − m where i − j ≥ f(m, *arrays), for arrays of all heads. Tiles of keys whose weights all
    # underflow, by bounds of the products, are skipped.
    reach: Callable[..., Any] | None = None


class Shape(NamedTuple):
    """What is known when the kernel is traced."""

    keys: int  # without padding
    causal: bool
    scale: float
    bias: Bias | None
    config: Config
    explicit: bool  # whether positions are given, instead of counted from 0
    fades: bool  # whether the first tile of keys is given for each tile of queries
    interpret: bool


def flash(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *arrays: jax.Array,
    bias: Bias | None = None,
    causal: bool = False,
    scale: float | None = None,
    positions: tuple[jax.Array, jax.Array] | None = None,
    config: Config | None = None,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Attention of query (batch, queries, heads, head_dim) to key and value (batch, keys, kv_heads, head_dim).

    Args:
      query: bfloat16 or float16; head_dim is a multiple of 64 up to 256.
      key: of query's dtype.
      value: of query's dtype.
      *arrays: what bias takes, float32.
      bias: what is added to the scores.
      causal: whether to mask keys at later positions.
      scale: what multiplies the products; None for 1/√head_dim.
      positions: int32, (batch or 1, queries) and (batch or 1, keys); None if both count from 0.
      config: how to cut the work; None for `Config()`.
      interpret: whether to run in interpret mode.

    Returns:
      The output, and the log-sum-exp of the scores, float32 (batch, heads, queries): −∞ for a query that sees no key.
    """
    length, keys, head_dim = query.shape[1], key.shape[1], query.shape[3]
    config = config or Config()
    config = config._replace(stages=min(config.stages, -(-keys // config.block_kv)))
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    fades = bias is not None and bias.reach is not None and causal and positions is None
    shape = Shape(keys, causal, scale, bias, config, positions is not None, fades, interpret)
    query, key, value = (
        _pad(x, n, axis=1) for x, n in ((query, config.queries), (key, config.block_kv), (value, config.block_kv))
    )
    operands: list[jax.Array] = []
    if positions is not None:
        q, k = (p.astype(jnp.int32) for p in positions)
        q, k = _pad(q, config.queries, 1, "edge"), _pad(k, config.block_kv, 1, "edge")
        operands = [q, k, _steps(shape, q, k)]
    if fades:
        operands = [_firsts(shape, query, key, arrays)]
    out, residual = _call(shape, query, key, value, operands, arrays)
    return out[:, :length], residual[..., :length]


def _pad(x: jax.Array, multiple: int, axis: int, mode: Any = "constant") -> jax.Array:
    missing = -x.shape[axis] % multiple
    return jnp.pad(x, [(0, missing if i == axis else 0) for i in range(x.ndim)], mode=mode) if missing else x


def _steps(shape: Shape, q: jax.Array, k: jax.Array) -> jax.Array:
    """For each tile of queries, how many tiles of keys it sees whole, from the first, and how many it visits."""
    config = shape.config
    q, k = (x.reshape(len(x), -1, n) for x, n in ((q, config.queries), (k, config.block_kv)))
    q_low, q_high, k_low, k_high = q.min(-1), q.max(-1), k.min(-1), k.max(-1)
    whole = jnp.arange(k.shape[1]) < shape.keys // config.block_kv
    some = jnp.ones_like(whole)
    if shape.causal:
        whole = whole & (k_high[:, None] <= q_low[..., None])
        some = some & (k_low[:, None] <= q_high[..., None])
    whole, some = (jnp.broadcast_to(x, (max(len(q), len(k)), q.shape[1], k.shape[1])) for x in (whole, some))
    visited = jnp.max(jnp.where(some, jnp.arange(1, k.shape[1] + 1), 1), -1)  # at least one
    seen = jnp.minimum(jnp.sum(jnp.cumprod(whole, -1), -1), visited)
    return jnp.stack([seen, visited], -1).astype(jnp.int32)


def _firsts(shape: Shape, query: jax.Array, key: jax.Array, arrays: Any) -> jax.Array:
    """For each batch, head and tile of queries, the first tile of keys that has weights above 2⁻¹²⁶."""
    config = shape.config
    batch, length, heads, _ = query.shape
    squares = lambda x: jnp.sum(jnp.square(x.astype(jnp.float32)), -1)  # noqa: E731
    of_queries = squares(query).reshape(batch, -1, config.queries, heads).max(2)  # (batch, tiles, heads)
    of_keys = jnp.repeat(squares(key).max(1), heads // key.shape[2], -1)[:, None]
    # A query sees its own key. No product is below −bound, and none above bound.
    bound = jnp.sqrt(of_queries * of_keys) * shape.scale * 1.001
    distance = jnp.ceil(shape.bias.reach(2 * bound + 126 / LOG2E + 1, *arrays))
    first = jnp.arange(length // config.queries)[:, None] * config.queries - jnp.minimum(distance, 2.0**30)
    return (jnp.maximum(first, 0).astype(jnp.int32) // config.block_kv).swapaxes(1, 2)


def _call(shape: Shape, query: Any, key: Any, value: Any, operands: Any, arrays: Any) -> Any:
    config, dtype = shape.config, query.dtype
    batch, length, heads, head_dim = query.shape
    keys, kv_heads = key.shape[1:3]
    stages, warpgroups = config.stages, config.warpgroups
    tiled = plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128)

    def entry(*refs: Any) -> None:
        tables = [plgpu.SMEM((a.shape[1],), jnp.float32) for a in arrays if a.ndim == 2]
        pl.run_scoped(
            functools.partial(_kernel, shape, heads // kv_heads, keys // config.block_kv, *refs),
            [plgpu.SMEM((warpgroups, config.block_q, head_dim), dtype, transforms=tiled)]
            + [plgpu.SMEM((stages, config.block_kv, head_dim), dtype, transforms=tiled)] * 2
            + [plgpu.SMEM((warpgroups, config.block_q), jnp.float32)],
            [plgpu.SMEM((stages, config.block_kv), jnp.int32)] * shape.explicit + tables,
            (
                plgpu.Barrier(num_barriers=warpgroups),
                plgpu.Barrier(num_barriers=stages, num_arrivals=1 + shape.explicit),
                plgpu.Barrier(num_barriers=stages),
                *[plgpu.Barrier(num_barriers=stages, num_arrivals=warpgroups)] * 2,
                plgpu.Barrier(num_arrivals=warpgroups),
                *(plgpu.Barrier(num_arrivals=len(tables)) for _ in tables[:1]),
            ),
            collective_axes="warpgroup",
        )

    grid, names = (heads, length // config.queries, batch), ("head", "tile", "batch")  # the first is the fastest
    if not config.heads_first:
        grid, names = (grid[1], grid[0], grid[2]), (names[1], names[0], names[2])
    return plgpu.kernel(
        entry,
        out_type=[query, jax.ShapeDtypeStruct((batch, heads, length), jnp.float32)],
        grid=grid,
        grid_names=names,
        num_threads=warpgroups + 1,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=plgpu.InterpretGPUParams() if shape.interpret else None,
    )(query, key, value, *operands, *arrays)


def _kernel(shape: Shape, group: int, tiles_kv: int, *refs: Any) -> None:
    config, explicit = shape.config, shape.explicit
    (q_ref, k_ref, v_ref, *inputs, out_ref, residual_ref), (memory, more, barriers) = refs[:-3], refs[-3:]
    (q_positions, k_positions, steps_ref), arrays = (inputs[:3], inputs[3:]) if explicit else ((None,) * 3, inputs)
    firsts_ref, arrays = (arrays[0], arrays[1:]) if shape.fades else (None, arrays)
    q_all, k_all, v_all, residual_all = memory
    k_positions_all, tables = (more[0], more[1:]) if explicit else (None, more)
    q_ready, k_ready, v_ready, k_free, v_free, turn, *tables_ready = barriers
    batch, head, warpgroup = (lax.axis_index(name) for name in ("batch", "head", "warpgroup"))
    tile = lax.axis_index("tile")
    if shape.causal:  # the longest rows first
        tile = q_ref.shape[1] // config.queries - 1 - tile
    first = 0 if firsts_ref is None else firsts_ref[batch, head, tile]
    counts = first, *_counts(shape, steps_ref, batch, tile, tiles_kv)
    visited = counts[-1]
    row = lambda ref: lax.rem(batch, jnp.int32(ref.shape[0]))  # positions are shared by the batch or not  # noqa: E731

    @pl.when(warpgroup < config.warpgroups)
    def compute() -> None:
        if registers := _registers(config):
            plgpu.set_max_registers(registers[0], action="increase")
        base = tile * config.queries + warpgroup * config.block_q
        rows = pl.ds(base, config.block_q)
        q_smem, residual_smem = q_all.at[warpgroup], residual_all.at[warpgroup]
        plgpu.copy_gmem_to_smem(q_ref.at[batch, rows, head], q_smem, q_ready.at[warpgroup])
        of_queries = None
        if explicit:
            of_queries = plgpu.load(q_positions.at[row(q_positions), rows], layout=ROWS, optimized=False)
        values = _values(arrays, tables, head, shape.interpret)
        if tables:
            plgpu.barrier_wait(tables_ready[0])
        plgpu.barrier_wait(q_ready.at[warpgroup])

        def scores(step: Any, x: Any, kind: str) -> Any:
            slot = lax.rem(step, jnp.int32(config.stages))
            of_keys = plgpu.load(k_positions_all.at[slot], layout=COLUMNS, optimized=False) if explicit else None
            return _scores(shape, x, base, step, of_queries, of_keys, values, kind)

        run = functools.partial(_compute_overlapped if config.overlap else _compute, shape, warpgroup, scores)
        out, residual = run(counts, (q_smem, k_all, v_all), (k_ready, v_ready, k_free, v_free, turn))
        q_smem[...] = out.astype(q_smem.dtype)
        residual_smem[...] = residual
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(q_smem, out_ref.at[batch, rows, head])
        plgpu.copy_smem_to_gmem(residual_smem, residual_ref.at[batch, head, rows])
        plgpu.wait_smem_to_gmem(0)

    @pl.when(warpgroup == config.warpgroups)
    def load() -> None:
        if registers := _registers(config):
            plgpu.set_max_registers(registers[1], action="decrease")
        for table, ref in zip(tables, [a for a in arrays if len(a.shape) == 2], strict=True):
            plgpu.copy_gmem_to_smem(ref.at[head], table, tables_ready[0])
        kv_head = lax.div(head, jnp.int32(group))

        @pl.loop(first, visited)
        def _(step: Any) -> None:
            slot = lax.rem(step, jnp.int32(config.stages))
            rows = pl.ds(step * config.block_kv, config.block_kv)
            again = step >= first + config.stages
            pl.when(again)(lambda: plgpu.barrier_wait(k_free.at[slot]))
            if explicit:
                source = k_positions.at[row(k_positions), rows]
                plgpu.copy_gmem_to_smem(source, k_positions_all.at[slot], k_ready.at[slot])
            plgpu.copy_gmem_to_smem(k_ref.at[batch, rows, kv_head], k_all.at[slot], k_ready.at[slot])
            pl.when(again)(lambda: plgpu.barrier_wait(v_free.at[slot]))
            plgpu.copy_gmem_to_smem(v_ref.at[batch, rows, kv_head], v_all.at[slot], v_ready.at[slot])

        @pl.loop(_largest(visited - config.stages, first), visited)
        def _(step: Any) -> None:  # no barrier may end while a phase of it is not observed
            slot = lax.rem(step, jnp.int32(config.stages))
            plgpu.barrier_wait(k_free.at[slot])
            plgpu.barrier_wait(v_free.at[slot])


def _registers(config: Config) -> tuple[int, int] | None:
    return config.registers or {1: None, 2: (240, 24), 3: (160, 32)}[config.warpgroups]


def _counts(shape: Shape, steps_ref: Any, batch: Any, tile: Any, tiles_kv: int) -> tuple[Any, Any, Any]:
    """How many tiles of keys, from the first, are far from all queries of the block, seen whole, and visited."""
    config = shape.config
    if steps_ref is not None:
        row = lax.rem(batch, jnp.int32(steps_ref.shape[0]))
        return 0, steps_ref[row, tile, 0], steps_ref[row, tile, 1]
    tiles = lambda keys: lax.div(keys, jnp.int32(config.block_kv))  # noqa: E731
    far, whole, visited = 0, shape.keys // config.block_kv, tiles_kv
    if shape.causal:
        first = tile * config.queries
        visited = jnp.minimum(visited, tiles(first + (config.queries + config.block_kv - 1)))
        whole = jnp.minimum(jnp.minimum(whole, visited), tiles(first + 1))
        if shape.bias is not None and shape.bias.far:
            far = jnp.minimum(whole, tiles(jnp.maximum(first + (1 - shape.bias.far[0]), 0)))
    return far, whole, visited


def _largest(x: Any, y: Any) -> Any:
    return max(x, y) if isinstance(x, int) and isinstance(y, int) else jnp.maximum(x, y)


def _ranges(shape: Shape, counts: Any, start: Any) -> list[tuple[Any, Any, str]]:
    """Loops over the tiles of keys from `start`, each with the kind of its tiles."""
    _, far, whole, visited = counts
    ends = [(whole, "whole")]
    if shape.causal and not shape.explicit and shape.bias is not None and shape.bias.far:
        ends = [(far, "far"), *ends]
    if shape.causal or shape.keys % shape.config.block_kv:
        ends.append((visited, "masked"))
    ranges = []
    for end, kind in ends:
        end = _largest(end, start)
        ranges.append((start, end, kind))
        start = end
    return ranges


def _values(arrays: Any, tables: Any, head: Any, interpret: bool) -> list[Any]:
    """What the bias takes after positions: a number, or a table, for each array."""
    remaining = iter(tables)
    return [a[head] if len(a.shape) == 1 else Table(next(remaining), interpret) for a in arrays]


class Table(NamedTuple):
    """The entries for one head, in shared memory."""

    ref: Any
    interpret: bool

    def number(self, index: int) -> Any:
        return self.ref[index]

    def __call__(self, index: Any) -> Any:
        """The entries at a tile of indices, which must be within the table."""
        if self.interpret:
            return self.ref[...][index]
        from jax._src.lib.mlir import ir  # noqa: PLC0415
        from jax._src.lib.mlir.dialects import arith, memref  # noqa: PLC0415

        layout = plgpu.Layout.WGMMA
        result = plgpu.ShapeDtypeStruct(index.shape, jnp.dtype(jnp.float32), layout)

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), layout), return_type=result)
        def gather(ctx: Any, table: Any, index: Any) -> Any:
            load = lambda i, _: memref.load(table, [arith.index_castui(ir.IndexType.get(), i)])  # noqa: E731
            return index.foreach(load, create_array=True)

        return gather(self.ref, index)


def _scores(
    shape: Shape, x: Any, base: Any, step: Any, of_queries: Any, of_keys: Any, values: Any, kind: str
) -> tuple[Any, Any]:
    """The products with their bias, divided by the scale, and what is left to add to the scores of a query, or None.

    The products are −∞ for keys that a query does not see.
    """
    config, tile, bias = shape.config, x.shape, shape.bias
    if kind == "far":
        return x, bias.far[1](*values)
    row, column = (plgpu.broadcasted_iota(jnp.int32, tile, axis, layout=plgpu.Layout.WGMMA) for axis in range(2))
    start = step * config.block_kv
    offset = base - start  # from the first key of the tile to the first query
    if kind == "whole" and bias is not None and bias.split and shape.causal and not shape.explicit:
        of_row, of_column = bias.split
        rows = plgpu.broadcasted_iota(jnp.int32, tile[:1], 0, layout=ROWS)
        x += of_column(column.astype(jnp.float32), *values) * (1 / shape.scale)
        return x, of_row((offset + rows).astype(jnp.float32), *values)
    if shape.explicit:
        i, j = (lax.broadcast_in_dim(p, tile, (axis,)) for axis, p in enumerate((of_queries, of_keys)))
    else:
        i, j = base + row, start + column
    if bias is not None:
        if bias.positions != "distance":
            positions = [p.astype(bias.positions) for p in (i, j)]
        elif shape.explicit:
            positions = [(i - j).astype(jnp.float32)]
        else:
            # Of a column's index, only the last three bits differ between threads: the rest are constants.
            near = (offset + (row - (column & 7))).astype(jnp.float32)
            positions = [near - (column & -8).astype(jnp.float32)]
        added = bias.function(*positions, *values)
        x += added if bias.divided else added * (1 / shape.scale)
    if kind == "masked" and shape.causal:
        x = jnp.where(i >= j if shape.explicit else row + offset >= column, x, -jnp.inf)
    if kind == "masked" and shape.keys % config.block_kv:
        x = jnp.where(column < shape.keys - start, x, -jnp.inf)
    return x, None


class _Sums(NamedTuple):
    """What a warpgroup keeps of the keys so far."""

    top: Any  # the maximum, times the scale and log₂ e
    total: Any
    out: Any


def _start(config: Config, head_dim: int) -> _Sums:
    full = lambda shape, value, layout: plgpu.layout_cast(jnp.full(shape, value, jnp.float32), layout)  # noqa: E731
    rows = (config.block_q,)
    return _Sums(full(rows, LOWEST, ROWS), full(rows, 0, ROWS), full((*rows, head_dim), 0, plgpu.Layout.WGMMA))


def _weights(shape: Shape, x: Any, left: Any, top: Any) -> tuple[Any, Any, Any]:
    """The new maximum, what shrinks the sums so far, and the weights of a tile."""
    factor, most = shape.scale * LOG2E, jnp.max(x, 1)
    left = 0.0 if left is None else left * LOG2E
    higher = jnp.maximum(top, most * factor + left)
    shift = lax.broadcast_in_dim(higher - left, x.shape, (0,))
    return higher, jnp.exp2(top - higher), jnp.exp2(x * factor - shift)


def _result(sums: _Sums) -> tuple[Any, Any]:
    share = 1 / jnp.where(sums.total == 0, 1, sums.total)
    residual = (sums.top + jnp.log2(sums.total)) * (1 / LOG2E)
    return sums.out * lax.broadcast_in_dim(share, sums.out.shape, (0,)), residual


def _products(q: Any, k: Any, config: Config, then: Callable[[], None] = lambda: None) -> Any:
    """The products of all queries and keys of a tile; `then` runs after they are issued."""

    def issue(products: Any) -> Any:
        plgpu.wgmma(products, q, k.transpose((1, 0)))
        then()
        return products[...]

    return pl.run_scoped(issue, plgpu.ACC((config.block_q, config.block_kv), jnp.float32))


def _add_values(shape: Shape, out: Any, p: Any, v: Any, then: Callable[[], None]) -> Any:
    """`out` + p v; `then` runs after the product is issued."""
    if shape.interpret:  # the interpreter has no accumulators with a start
        then()
        return out + jnp.dot(p, v[...], preferred_element_type=jnp.float32)

    def issue(total: Any) -> None:
        plgpu.wgmma(total, p, v)
        then()

    return pl.run_state(issue)(plgpu.ACC.init(out))


def _compute(shape: Shape, warpgroup: Any, scores: Any, counts: Any, memory: Any, barriers: Any) -> tuple[Any, Any]:
    """A warpgroup's output and residual: products, weights and products in turn with the other warpgroup."""
    config, first, visited = shape.config, counts[0], counts[-1]
    (q, k_all, v_all), (k_ready, v_ready, k_free, v_free, turn) = memory, barriers
    alternate = config.turns and config.warpgroups == 2

    def arrive() -> None:
        if alternate:
            plgpu.barrier_arrive(turn)

    def wait() -> None:
        if alternate:
            plgpu.barrier_wait(turn)

    def pass_turn() -> None:
        arrive()
        wait()

    def visit(step: Any, sums: Any, kind: str) -> Any:
        slot = lax.rem(step, jnp.int32(config.stages))
        x = _products(q, k_all.at[slot], config, pass_turn)
        if not shape.explicit:
            plgpu.barrier_arrive(k_free.at[slot])
        x, left = scores(step, x, kind)
        if shape.explicit:
            plgpu.barrier_arrive(k_free.at[slot])  # positions are in the same slot
        top, shrink, p = _weights(shape, x, left, sums.top)
        total = sums.total * shrink
        out = sums.out * lax.broadcast_in_dim(shrink, sums.out.shape, (0,))
        p16 = p.astype(q.dtype)
        if out.shape[1] <= 128:  # the order of these matters for speed, as in attention_mgpu
            total += jnp.sum(p, 1)
            out, total, top, p16 = lax.optimization_barrier((out, total, top, p16))
        arrive()
        plgpu.barrier_wait(v_ready.at[slot])
        wait()
        if out.shape[1] > 128:
            total += jnp.sum(p, 1)
        after = step + 1

        def wait_for_keys() -> None:
            slot = lax.rem(after, jnp.int32(config.stages))
            pl.when(after < visited)(lambda: plgpu.barrier_wait(k_ready.at[slot]))

        out = _add_values(shape, out, p16, v_all.at[slot], wait_for_keys)
        plgpu.barrier_arrive(v_free.at[slot])
        return _Sums(top, total, out)

    slot = lax.rem(jnp.int32(first), jnp.int32(config.stages))
    pl.when(visited > first)(lambda: plgpu.barrier_wait(k_ready.at[slot]))
    pl.when(warpgroup == 1)(pass_turn)
    sums = _start(config, q.shape[-1])
    for start, stop, kind in _ranges(shape, counts, first):
        sums = lax.fori_loop(start, stop, functools.partial(visit, kind=kind), sums)
    pl.when(warpgroup == 0)(pass_turn)
    return _result(sums)


def _compute_overlapped(
    shape: Shape, warpgroup: Any, scores: Any, counts: Any, memory: Any, barriers: Any
) -> tuple[Any, Any]:
    """As `_compute`, but the products of the next keys are issued before the weights of a tile multiply values.

    Weights are computed while values are multiplied. It needs at least one tile of keys.
    """
    config, first, visited = shape.config, counts[0], counts[-1]
    (q, k_all, v_all), (k_ready, v_ready, k_free, v_free, turn) = memory, barriers

    def pass_turn() -> None:
        if config.turns and config.warpgroups == 2:
            plgpu.barrier_arrive(turn)
            plgpu.barrier_wait(turn)

    slot_of = lambda step: lax.rem(jnp.int32(step), jnp.int32(config.stages))  # noqa: E731

    def weigh(step: Any, x: Any, top: Any, total: Any, kind: str) -> tuple[Any, Any, Any, Any]:
        """The new maximum and total, what shrinks the output, and the weights."""
        top, shrink, p = _weights(shape, *scores(step, x, kind), top)
        plgpu.barrier_arrive(k_free.at[slot_of(step)])
        return top, total * shrink + jnp.sum(p, 1), shrink, p

    def visit(step: Any, carry: Any, kind: str) -> Any:
        sums, p = carry
        slot, before = slot_of(step), slot_of(step - 1)
        k, v = k_all.at[slot], v_all.at[before]
        plgpu.barrier_wait(k_ready.at[slot])

        def issue(refs: Any) -> None:
            products, out, top, total, shrink, weights = refs
            plgpu.wgmma(products, q, k.transpose((1, 0)))
            plgpu.barrier_wait(v_ready.at[before])
            plgpu.wgmma(out, p, v)
            pass_turn()
            x = plgpu.wgmma_accumulator_load(products, wait_n=1)
            top[...], total[...], shrink[...], weights[...] = weigh(step, x, top[...], total[...], kind)

        if shape.interpret:
            x = _products(q, k, config)
            plgpu.barrier_wait(v_ready.at[before])
            out = sums.out + jnp.dot(p, v[...], preferred_element_type=jnp.float32)
            pass_turn()
            top, total, shrink, weights = weigh(step, x, sums.top, sums.total, kind)
        else:
            zeros = jnp.zeros((config.block_q, config.block_kv), jnp.float32)
            zeros = plgpu.layout_cast(zeros, plgpu.Layout.WGMMA)
            accumulators = plgpu.ACC.init(zeros), plgpu.ACC.init(sums.out)
            # The weights are cast to 16 bits after both products: nothing may write registers that a product reads.
            _, out, top, total, shrink, weights = pl.run_state(issue)(
                (*accumulators, sums.top, sums.total, sums.top, zeros)
            )
        plgpu.barrier_arrive(v_free.at[before])
        pass_turn()
        return _Sums(top, total, out * lax.broadcast_in_dim(shrink, out.shape, (0,))), weights.astype(q.dtype)

    pl.when(warpgroup == 1)(pass_turn)
    plgpu.barrier_wait(k_ready.at[slot_of(first)])
    sums = _start(config, q.shape[-1])
    x = _products(q, k_all.at[slot_of(first)], config, pass_turn)
    top, total, _, p = weigh(first, x, sums.top, sums.total, "masked")
    pass_turn()
    carry = _Sums(top, total, sums.out), p.astype(q.dtype)
    for start, stop, kind in _ranges(shape, counts, first + 1):
        carry = lax.fori_loop(start, stop, functools.partial(visit, kind=kind), carry)
    sums, p = carry
    last = slot_of(visited - 1)
    plgpu.barrier_wait(v_ready.at[last])
    out = _add_values(shape, sums.out, p, v_all.at[last], lambda: None)
    plgpu.barrier_arrive(v_free.at[last])
    pl.when(warpgroup == 0)(pass_turn)
    return _result(sums._replace(out=out))
