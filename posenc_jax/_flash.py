"""`attention` by a kernel for NVIDIA GPUs: what it can hold, and its operands.

The kernel computes the forward pass. The derivatives are those of `_blockwise`, tile by tile, from its outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posenc_jax import _blockwise, _flash_bias, _xla
from posenc_jax._checks import require
from posenc_jax._flash_bias import OR_XLA, Program
from posenc_jax._operation import Kernels, operation
from posenc_jax._tiles import Operands, Settings

BLOCK = 128  # rows of a block of threads
# By the width of heads, a tile of keys: two of keys and two of values fit in 227 KB of shared memory. On an H200, tiles
# of 64 keys took 1.3 times as long at a width of 128, and tiles of 256 took 1.25 times as long under ALiBi at 64.
BLOCK_KV = {64: 128, 128: 128, 192: 64, 256: 64}
# Backward, a tile of keys of the kernel that sums over keys, and a tile of queries of that which sums over queries.
# Wider heads have XLA's tiles: the sums of keys and values of a width of 192 alone take 192 registers of 240.
BACKWARD = {64: (128, 64), 128: (64, 64)}


class Kernel(NamedTuple):
    """What the kernel needs to know besides `Settings`."""

    width: int  # of heads and values, which are padded with zeros
    counted: bool  # whether positions count from 0
    bias: Program | None
    interpret: bool = False  # whether it runs in interpret mode, for tests


def prepare(
    settings: Settings, x: Operands, bias: Callable[..., Any] | None, counted: bool, reads_data: bool
) -> tuple[Settings, Operands]:
    """The settings and operands of the kernel; raises for what it cannot hold."""
    _check(settings, x, counted)
    need = f"bias must be of positions alone with implementation='mosaic_gpu', or {OR_XLA}; got query_data or key_data"
    require(not reads_data, need)
    program, operands = None, ()
    if bias is not None:
        lengths = x.query.shape[1], x.key.shape[1]
        padded = lengths[0] + -lengths[0] % BLOCK, lengths[1] + -lengths[1] % BLOCK
        axes = x.sides[0].positions.ndim
        program, operands = _flash_bias.plan(bias, x.query.shape[2], axes, lengths if counted else None, padded)
    return settings._replace(kernel=Kernel(_width(x), counted, program)), x._replace(kernel=operands)


def _width(x: Operands) -> int:
    """The width of heads and values in the kernel."""
    width = max(x.query.shape[-1], x.value.shape[-1])
    return width + -width % 64


def _check(settings: Settings, x: Operands, counted: bool) -> None:
    """Raises for what the kernel cannot hold."""
    name = "implementation='mosaic_gpu'"
    require(_xla.HAS_MOSAIC_GPU, f"{name} needs JAX 0.11 or later, this is {jax.__version__}; {OR_XLA}")
    of = f" with {name}, or {OR_XLA}; got {{}}"
    dtype, most = x.query.dtype, max(BLOCK_KV)
    require(dtype in (jnp.bfloat16, jnp.float16), "query must be bfloat16 or float16" + of, dtype)
    require(_width(x) <= most, f"head_dim and value_dim must be at most {most}" + of, x.query.shape[-1])
    sizes = x.query.shape, x.key.shape
    require(x.query.size and x.key.size, "query and key must not be empty" + of, sizes)
    require(not counted or max(s[1] for s in sizes) < 2**24, "counted positions must be below 2²⁴" + of, sizes)
    require(1e-6 <= settings.scale <= 1e6, "scale must be from 1e-6 to 1e6" + of, settings.scale)
    most = max(n or 0 for n in settings.window)
    require(most < 2**31, "window must be below 2³¹" + of, most)
    odd = [str(a.dtype) for a in jax.tree.leaves(x.sides) if a.dtype != np.int32]
    require(not odd, "positions, orders and segments must be int32" + of, ", ".join(odd))
    spec = jax.typeof(x.query).sharding.spec
    require(not any(spec), "query must not be sharded on Explicit axes of a mesh, but by jax.shard_map," + of, spec)


class _Padded(NamedTuple):
    """What the kernels read, in whole tiles."""

    lengths: tuple[int, int]  # without padding
    reach: tuple[int | None, int | None]
    sides: dict[str, Any]  # what is given of queries and of keys, with "positions" if they are counted
    given: tuple[str, ...]  # what of that a kernel reads

    def steps(self, blocks: tuple[int, int], turned: bool = False) -> jax.Array:
        may, whole = _seen_tiles(self.reach, self.sides, self.lengths, blocks, turned)
        return jnp.asarray(_steps(may, whole, masked_first=turned))

    def read(self, block: int) -> Any:
        """What a kernel reads of queries and keys, padded to blocks."""
        return (tuple(_pad(self.sides[n][side], block, "edge") for n in self.given) for side in range(2))


def _padded(settings: Settings, x: Operands) -> _Padded:
    lengths, counted = (x.query.shape[1], x.key.shape[1]), settings.kernel.counted
    given = [n for n in ("segments", "order") if getattr(x.sides[0], n) is not None]
    if not counted and (settings.masked or settings.kernel.bias is not None):
        given = ["positions", *given]
    sides = {n: [jnp.atleast_2d(getattr(side, n)) for side in x.sides] for n in given}
    if counted:
        sides = {"positions": [np.arange(n, dtype=np.int32)[None] for n in lengths]} | sides
    reach = settings.window[0], 0 if settings.causal else settings.window[1]
    return _Padded(lengths, reach, sides, tuple(given))


def _widened(settings: Settings, *arrays: Any) -> list[Any]:
    """Arrays (batch, length, heads, width) with as many features as the kernel has, in whole tiles."""
    wide = lambda a: jnp.pad(a, (*[(0, 0)] * 3, (0, settings.kernel.width - a.shape[-1])))  # noqa: E731
    return [_pad(wide(a), BLOCK) for a in arrays]


def forward(settings: Settings, *leaves: Any) -> list[jax.Array]:
    from posenc_jax import _flash_gpu  # noqa: PLC0415 - it imports Pallas
    from posenc_jax._flash_gpu_scores import LOG2E, LOWEST, Shape  # noqa: PLC0415

    x: Operands = settings.tree.unflatten(leaves)
    padded, block_kv = _padded(settings, x), BLOCK_KV[settings.kernel.width]
    start = ()
    if x.sinks is not None:
        top = x.sinks.astype(jnp.float32)
        start = jnp.maximum(top * LOG2E, LOWEST), jnp.where(jnp.isneginf(top), 0.0, 1.0)
    operands, steps = _widened(settings, x.query, x.key, x.value), padded.steps((BLOCK, block_kv))
    inputs = _flash_gpu.Inputs(*operands, steps, *padded.read(BLOCK), start, x.kernel)
    out, *sums = _flash_gpu.attend(Shape(*_shape(settings, padded, block_kv, padded.lengths[1])), inputs)
    total, top = (jnp.swapaxes(y, 1, 2)[:, : padded.lengths[0]] for y in sums)
    out = out[:, : padded.lengths[0], :, : x.value.shape[-1]]
    return [out, jnp.where(total == 0, 1, total), jnp.where(total == 0, -jnp.inf, top)]


def _shape(settings: Settings, padded: _Padded, block: int, length: int) -> tuple[Any, ...]:
    """The `Shape` of a kernel that loads tiles of `block` tokens of `length`."""
    kernel, stages = settings.kernel, min(2, -(-length // block))
    options = settings.scale, settings.soft_cap, padded.reach, padded.given, kernel.bias, kernel.interpret
    return padded.lengths[1], block, stages, *options


def holds_backward(settings: Settings, moving: tuple[bool, ...]) -> bool:
    """Whether `backward` can compute the cotangents of what moves."""
    kernel, moved = settings.kernel, settings.tree.unflatten(moving).kernel
    return kernel.width in BACKWARD and (not any(moved) or kernel.bias.pullback is not None)


def backward(
    settings: Settings, leaves: Any, outputs: Any, cotangents: Any, moving: tuple[bool, ...]
) -> list[jax.Array]:
    from posenc_jax import _flash_gpu_backward, _flash_gpu_table  # noqa: PLC0415
    from posenc_jax._flash_gpu_scores import LOG2E, LOWEST, Shape  # noqa: PLC0415

    x, moved, program = settings.tree.unflatten(leaves), settings.tree.unflatten(moving), settings.kernel.bias
    padded, (block_kv, block_q) = _padded(settings, x), BACKWARD[settings.kernel.width]
    (out, total, top), (d_out, d_total) = outputs, cotangents
    share, top = 1 / total, jnp.where(jnp.isneginf(top), 0, top)
    delta = jnp.sum(d_out.astype(jnp.float32) * out.astype(jnp.float32), -1) - d_total * total
    known = jnp.stack([_pad(top * LOG2E, BLOCK, value=-LOWEST), *(_pad(y, BLOCK) for y in (share, share * delta))], 1)
    known = jnp.moveaxis(known, 3, 1)
    operands = _widened(settings, x.query, x.key, x.value, d_out)
    of_queries, of_keys = padded.read(BLOCK)

    def run(block: int, side: int, *more: Any) -> Any:
        blocks, turned = ((BLOCK, block), False) if side else ((block, BLOCK), True)
        inputs = operands, known, padded.steps(blocks, turned), of_queries, of_keys, x.kernel
        inputs = _flash_gpu_backward.Inputs(*inputs[0], *inputs[1:])
        kernel = (_flash_gpu_backward.d_key_value, _flash_gpu_backward.d_query)[side]
        return kernel(Shape(*_shape(settings, padded, block, padded.lengths[side])), inputs, *more)

    def of_table() -> Any:
        block = _flash_gpu_table.BLOCK_KV
        may, whole = _seen_tiles(padded.reach, padded.sides, padded.lengths, (BLOCK, block))
        which = _flash_gpu_table.bands(padded.reach, may.shape[1:])
        steps = jnp.asarray(_steps(*(_flash_gpu_table.along_bands(which, y) for y in (may, whole))))
        inputs = _flash_gpu_backward.Inputs(*operands, known, steps, of_queries, of_keys, x.kernel)
        return _flash_gpu_table.d_table(Shape(*_shape(settings, padded, block, padded.lengths[0])), inputs, which)

    of_bias = any(moved.kernel)
    numbers = x.kernel[0].shape[0] if of_bias and program.kind != "table" else 0
    (dq, *sums), (dk, dv) = run(block_kv, 1, numbers), run(block_q, 0)
    at: Operands = settings.tree.unflatten(range(len(leaves)))
    found = {
        place: y[:, :length, :, : like.shape[-1]]
        for place, y, length, like in (
            (at.query, dq, padded.lengths[0], x.query),
            (at.key, dk, padded.lengths[1], x.key),
            (at.value, dv, padded.lengths[1], x.value),
        )
    }
    if numbers:
        found[at.kernel[0]] = jnp.sum(sums[0], (0, 3)).T
    elif of_bias:
        found[at.kernel[0]] = of_table()
    if x.sinks is not None:
        found[at.sinks] = _blockwise.cotangent_of_sinks(x, total, top, delta)
    zeros = {i: jnp.zeros_like(y) for i, y in enumerate(leaves) if moving[i] and i not in found}
    return [(found | zeros)[i] for i, moves in enumerate(moving) if moves]


def _pad(x: Any, multiple: int, mode: Any = "constant", value: float = 0) -> Any:
    """Pads axis 1 to a multiple."""
    missing = -x.shape[1] % multiple
    pad, more = np.pad if isinstance(x, np.ndarray) else jnp.pad, {"constant_values": value} if value else {}
    return pad(x, [(0, missing if axis == 1 else 0) for axis in range(x.ndim)], mode=mode, **more) if missing else x


def _seen_tiles(
    reach: Any, sides: dict[str, Any], lengths: tuple[int, int], blocks: tuple[int, int], turned: bool = False
) -> tuple[Any, Any]:
    """Which tiles of queries and keys have something to see, and which are seen whole: (batch, tiles, tiles of keys).

    If it is `turned`, these are for each tile of keys, and keys of the padding count as seen. NumPy computes them if
    all positions are counted.
    """
    xp: Any = np if all(isinstance(x, np.ndarray) for side in sides.values() for x in side) else jnp
    counts = [-(-length // block) for length, block in zip(lengths, blocks, strict=True)]
    may = np.ones((1, *counts), bool)
    whole = may & (turned | (np.arange(counts[1]) < lengths[1] // blocks[1]))
    most, (left, right) = 2**31 - 1, reach
    for name, (q, k) in sides.items():
        q = _pad(q, blocks[0], "edge").reshape(len(q), -1, 1, blocks[0])
        k = _pad(k, blocks[1], "edge").reshape(len(k), 1, -1, blocks[1])
        q_low, q_high, k_low, k_high = q.min(-1), q.max(-1), k.min(-1), k.max(-1)
        if name == "segments":
            may = may & (q_low <= k_high) & (k_low <= q_high)
            whole = whole & (q_low == k_high) & (k_low == q_high)
        if name == "order":
            may, whole = may & (q_high >= k_low), whole & (q_low >= k_high)
        if name == "positions" and right is not None:
            low, high = (xp.minimum(x, most - right) + right for x in (q_low, q_high))
            may, whole = may & (k_low <= high), whole & (k_high <= low)
        if name == "positions" and left is not None:
            low, high = (xp.maximum(x, left - most) - left for x in (q_low, q_high))
            may, whole = may & (k_high >= low), whole & (k_low >= high)
    may, whole = (xp.swapaxes(x, 1, 2) if turned else x for x in (may, whole & may))
    return may, whole


def _steps(may: Any, whole: Any, masked_first: bool = False) -> Any:
    """For each row, which tiles it visits and which it sees whole: int32 (batch, rows, 4).

    It visits those from the first number to the last, and sees those whole that are from the second to the third. If
    there are none, all others are after these, or before them if they are `masked_first`.
    """
    xp: Any = np if isinstance(may, np.ndarray) else jnp
    count, some = may.shape[-1], may.any(-1)
    index = np.arange(count, dtype=np.int32)
    first, last = xp.where(some, may.argmax(-1), 0), xp.where(some, count - may[..., ::-1].argmax(-1), 0)
    start = xp.where(whole.any(-1), whole.argmax(-1), last if masked_first else first)
    after = ~whole & (index >= start[..., None])
    stop = xp.where(after.any(-1), after.argmax(-1), count)
    return xp.stack([first, start, stop, last], -1).astype(np.int32)


def _elsewhere(*_: Any) -> list[jax.Array]:
    """The program for other platforms than CUDA."""
    raise ValueError(f"attention: implementation='mosaic_gpu' compiles for NVIDIA GPUs alone; elsewhere, {OR_XLA}")


attend = operation(
    "flash_attention",
    types=_blockwise.types,
    compute=_elsewhere,
    cuda=forward,
    tangent=_blockwise.tangent,
    transpose=_blockwise.transpose,
    kernels=Kernels({None: _elsewhere, "cuda": backward}, holds_backward),
)
