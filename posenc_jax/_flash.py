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
from posenc_jax._operation import operation
from posenc_jax._tiles import Operands, Settings

BLOCK_Q = 128  # queries of a block of threads
# By the width of heads, a tile of keys: two of keys and two of values fit in 227 KB of shared memory. On an H200, tiles
# of 64 keys took 1.3 times as long at a width of 128, and tiles of 256 took 1.25 times as long under ALiBi at 64.
BLOCK_KV = {64: 128, 128: 128, 192: 64, 256: 64}


class Kernel(NamedTuple):
    """What the kernel needs to know besides `Settings`."""

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
        padded = lengths[0] + -lengths[0] % BLOCK_Q, lengths[1] + -lengths[1] % BLOCK_KV[_width(x)]
        axes = x.sides[0].positions.ndim
        program, operands = _flash_bias.plan(bias, x.query.shape[2], axes, lengths if counted else None, padded)
    return settings._replace(kernel=Kernel(counted, program)), x._replace(kernel=operands)


def _width(x: Operands) -> int:
    """The width of heads and values in the kernel, which pads them with zeros."""
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


def forward(settings: Settings, *leaves: Any) -> list[jax.Array]:
    from posenc_jax import _flash_gpu  # noqa: PLC0415 - it imports Pallas

    x: Operands = settings.tree.unflatten(leaves)
    kernel, width, (length, keys) = settings.kernel, _width(x), (x.query.shape[1], x.key.shape[1])
    block_kv, reach = BLOCK_KV[width], (settings.window[0], 0 if settings.causal else settings.window[1])
    names = [n for n in ("segments", "order") if getattr(x.sides[0], n) is not None]
    if not kernel.counted and (settings.masked or kernel.bias is not None):
        names = ["positions", *names]
    sides = {n: [jnp.atleast_2d(getattr(side, n)) for side in x.sides] for n in names}
    counted = {"positions": [np.arange(n, dtype=np.int32)[None] for n in (length, keys)]}
    steps = _steps(reach, (counted if kernel.counted else {}) | sides, (length, keys), block_kv)
    queries, of_keys = (
        tuple(_pad(x[side], block, "edge") for x in sides.values()) for side, block in enumerate((BLOCK_Q, block_kv))
    )
    start = ()
    if x.sinks is not None:
        top = x.sinks.astype(jnp.float32)
        start = jnp.maximum(top * _flash_gpu.LOG2E, _flash_gpu.LOWEST), jnp.where(jnp.isneginf(top), 0.0, 1.0)
    query, key, value = (
        _pad(jnp.pad(a, (*[(0, 0)] * 3, (0, width - a.shape[-1]))), block)
        for a, block in ((x.query, BLOCK_Q), (x.key, block_kv), (x.value, block_kv))
    )
    inputs = _flash_gpu.Inputs(query, key, value, jnp.asarray(steps), queries, of_keys, start, x.kernel)
    stages = min(2, -(-keys // block_kv))
    options = settings.scale, settings.soft_cap, reach, tuple(sides), kernel.bias, kernel.interpret
    out, *sums = _flash_gpu.attend(_flash_gpu.Shape(keys, block_kv, stages, *options), inputs)
    total, top = (jnp.swapaxes(y, 1, 2)[:, :length] for y in sums)
    out = out[:, :length, :, : x.value.shape[-1]]
    return [out, jnp.where(total == 0, 1, total), jnp.where(total == 0, -jnp.inf, top)]


def _pad(x: Any, multiple: int, mode: Any = "constant") -> Any:
    """Pads axis 1 to a multiple."""
    missing = -x.shape[1] % multiple
    pad = np.pad if isinstance(x, np.ndarray) else jnp.pad
    return pad(x, [(0, missing if axis == 1 else 0) for axis in range(x.ndim)], mode=mode) if missing else x


def _steps(reach: Any, sides: dict[str, Any], lengths: tuple[int, int], block_kv: int) -> Any:
    """For each tile of queries, which tiles of keys it visits and which it sees whole: int32 (batch, tiles, 4).

    It visits those from the first number to the last, and sees those whole that are from the second to the third. NumPy
    computes them if all positions are counted.
    """
    xp: Any = np if all(isinstance(x, np.ndarray) for side in sides.values() for x in side) else jnp
    count = -(-lengths[1] // block_kv)
    index = np.arange(count, dtype=np.int32)[None, None]
    may = np.ones((1, -(-lengths[0] // BLOCK_Q), count), bool)
    whole = may & (index < lengths[1] // block_kv)
    most, (left, right) = 2**31 - 1, reach
    for name, (q, k) in sides.items():
        q = _pad(q, BLOCK_Q, "edge").reshape(len(q), -1, 1, BLOCK_Q)
        k = _pad(k, block_kv, "edge").reshape(len(k), 1, -1, block_kv)
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
    whole = whole & may
    some = may.any(-1)
    first, last = xp.where(some, may.argmax(-1), 0), xp.where(some, count - may[..., ::-1].argmax(-1), 0)
    start = xp.where(whole.any(-1), whole.argmax(-1), first)
    after = ~whole & (index >= start[..., None])
    stop = xp.where(after.any(-1), after.argmax(-1), count)
    return xp.stack([first, start, stop, last], -1).astype(np.int32)


def _elsewhere(settings: Settings, *leaves: Any) -> list[jax.Array]:
    """The program for other platforms than CUDA."""
    del settings, leaves
    raise ValueError(f"attention: implementation='mosaic_gpu' compiles for NVIDIA GPUs alone; elsewhere, {OR_XLA}")


attend = operation(
    "flash_attention",
    types=_blockwise.types,
    compute=_elsewhere,
    cuda=forward,
    tangent=_blockwise.tangent,
    transpose=_blockwise.transpose,
)
