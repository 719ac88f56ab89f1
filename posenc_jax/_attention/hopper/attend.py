"""`attention` by a kernel for NVIDIA GPUs: what it can hold, and its operands.

One kernel computes the forward pass, and others the cotangents from its outputs, if they can: see `holds_backward`. All
other derivatives are those of `blockwise`, tile by tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posenc_jax._attention import blockwise
from posenc_jax._attention.hopper import bias_programs
from posenc_jax._attention.hopper.bias_programs import OR_XLA, BiasProgram
from posenc_jax._attention.tiles import Operands, Settings
from posenc_jax._jax import workarounds
from posenc_jax._jax.derivatives import Kernels, operation
from posenc_jax._jax.errors import require

EXPERIMENTAL = "it is experimental: forward seen on an H200 in an older form, backward compiled only"
LN2 = math.log(2)
BLOCK = 128  # rows of a block of threads
MOST_CAP = 100  # of soft caps: tanh from exponentials is within 2e-7, which the cap multiplies
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
    bias: BiasProgram | None
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
        axes = x.query_tokens.positions.ndim
        program, operands = bias_programs.plan(bias, x.query.shape[2], axes, lengths if counted else None, padded)
    return settings._replace(kernel=Kernel(_width(x), counted, program)), x._replace(kernel=operands)


def _width(x: Operands) -> int:
    """The width of heads and values in the kernel."""
    width = max(x.query.shape[-1], x.value.shape[-1])
    return width + -width % 64


def _check(settings: Settings, x: Operands, counted: bool) -> None:
    """Raises for what the kernel cannot hold."""
    name = "implementation='mosaic_gpu'"
    require(
        workarounds.HAS_MOSAIC_GPU,
        f"{name} needs JAX 0.11 or later, this is {jax.__version__}; {OR_XLA}; {EXPERIMENTAL}",
    )
    of = f" with {name}, or {OR_XLA}; got {{}}"
    dtype, most = x.query.dtype, max(BLOCK_KV)
    require(dtype in (jnp.bfloat16, jnp.float16), "query must be bfloat16 or float16" + of, dtype)
    require(
        _width(x) <= most, f"head_dim and value_dim must be at most {most}" + of, (x.query.shape[-1], x.value.shape[-1])
    )
    sizes = x.query.shape, x.key.shape
    require(x.query.size and x.key.size, "query and key must not be empty" + of, sizes)
    ptxas, given = workarounds.ptxas(), (x.query_tokens.segments, x.query_tokens.order)
    masks = settings.masked or any(s is not None for s in given) or x.key.shape[1] % BLOCK
    require(
        not masks or ptxas is None or not (12, 8) <= ptxas < (12, 9, 86),
        f"{name} cannot mask scores with CUDA from 12.8.0 to before 12.9.1, whose ptxas miscompiles that; {OR_XLA}; "
        "got a mask, segments, orders or a number of keys that is no multiple of 128, with nvidia-cuda-nvcc-cu12 {}",
        ".".join(map(str, ptxas or ())),
    )
    soft_cap = settings.soft_cap or 0
    require(soft_cap <= MOST_CAP, f"logits_soft_cap must be at most {MOST_CAP}" + of, soft_cap)
    require(not counted or max(s[1] for s in sizes) < 2**24, "counted positions must be below 2²⁴" + of, sizes)
    require(1e-6 <= settings.scale <= 1e6, "scale must be from 1e-6 to 1e6" + of, settings.scale)
    most = max(n or 0 for n in settings.window)
    require(most < 2**31, "window must be below 2³¹" + of, most)
    odd = [str(a.dtype) for a in jax.tree.leaves((x.query_tokens, x.key_tokens)) if a.dtype != np.int32]
    require(not odd, "positions, orders and segments must be int32" + of, ", ".join(odd))
    spec = jax.typeof(x.query).sharding.spec
    require(not any(spec), "query must not be sharded on Explicit axes of a mesh, but by jax.shard_map," + of, spec)


class _Tokens(NamedTuple):
    """What masks read of queries and keys, and which of their tiles they leave."""

    lengths: tuple[int, int]
    reach: tuple[int | None, int | None]
    sides: dict[str, Any]  # what is given of queries and of keys, and "positions" if they are counted
    given: tuple[str, ...]  # what of that a kernel reads

    def seen(self, blocks: tuple[int, int], transposed: bool = False) -> tuple[Any, Any]:
        return _seen_tiles(self.reach, self.sides, self.lengths, blocks, transposed)

    def padded(self, side: int) -> tuple[Any, ...]:
        return tuple(_pad(self.sides[name][side], BLOCK, "edge") for name in self.given)


def _tokens(settings: Settings, x: Operands) -> _Tokens:
    lengths, counted = (x.query.shape[1], x.key.shape[1]), settings.kernel.counted
    given = [n for n in ("segments", "order") if getattr(x.query_tokens, n) is not None]
    if not counted and (settings.masked or settings.kernel.bias is not None):
        given = ["positions", *given]
    sides = {n: [jnp.atleast_2d(getattr(tokens, n)) for tokens in (x.query_tokens, x.key_tokens)] for n in given}
    if counted:
        sides = {"positions": [np.arange(n, dtype=np.int32)[None] for n in lengths]} | sides
    reach = settings.window[0], 0 if settings.causal else settings.window[1]
    return _Tokens(lengths, reach, sides, tuple(given))


def _widened(settings: Settings, *arrays: Any) -> list[Any]:
    """Arrays (batch, length, heads, width) with as many features as the kernel has, in whole tiles."""
    wide = lambda a: jnp.pad(a, (*[(0, 0)] * 3, (0, settings.kernel.width - a.shape[-1])))  # noqa: E731
    return [_pad(wide(a), BLOCK) for a in arrays]


def _shape(settings: Settings, tokens: _Tokens, block: int, side: int = 1) -> Any:
    """The `Shape` of a kernel that loads tiles of `block` queries (side 0) or keys."""
    from posenc_jax._attention.hopper.scores import Shape  # noqa: PLC0415 - it imports Pallas

    kernel, stages = settings.kernel, min(2, -(-tokens.lengths[side] // block))
    masks = tokens.reach, tokens.given
    return Shape(
        tokens.lengths[1],
        block,
        stages,
        settings.scale,
        settings.soft_cap,
        *masks,
        kernel.bias,
        side == 0 and _unbounded(kernel, tokens),
        kernel.interpret,
    )


def _unbounded(kernel: Kernel, tokens: _Tokens) -> bool:
    """Whether the bias of a query of the padding may be NaN: positions that are counted run on beyond the last query.

    A table has the differences of tokens alone. Without a window to the left, segments or orders, some token sees each
    of those that a query of the padding reads.
    """
    if kernel.bias is None or not kernel.counted or tokens.lengths[0] % BLOCK == 0 or kernel.bias.kind == "linear":
        return False
    return kernel.bias.kind == "steps" or tokens.reach[0] is not None or bool(tokens.given)


def forward(settings: Settings, *leaves: Any) -> list[jax.Array]:
    from posenc_jax._attention.hopper import forward_kernel  # noqa: PLC0415 - it imports Pallas
    from posenc_jax._attention.hopper.scores import LOG2E, LOWEST  # noqa: PLC0415

    x: Operands = settings.tree.unflatten(leaves)
    tokens, block_kv, start = _tokens(settings, x), BLOCK_KV[settings.kernel.width], ()
    if x.sinks is not None:
        top = x.sinks.astype(jnp.float32)
        start = jnp.maximum(top * LOG2E, LOWEST), jnp.where(jnp.isneginf(top), 0.0, 1.0)
    query, key, value = _widened(settings, x.query, x.key, x.value)
    steps, (queries, keys) = _steps(*tokens.seen((BLOCK, block_kv))), map(tokens.padded, range(2))
    inputs = forward_kernel.Inputs(query, key, value, steps, queries, keys, start, x.kernel)
    out, *sums = forward_kernel.attend(_shape(settings, tokens, block_kv), inputs)
    total, top = (jnp.swapaxes(y, 1, 2)[:, : tokens.lengths[0]] for y in sums)
    out = out[:, : tokens.lengths[0], :, : x.value.shape[-1]]
    return [out, jnp.where(total == 0, 1, total), jnp.where(total == 0, -jnp.inf, top)]


def _natural(outputs: Any) -> tuple[Any, Any, Any]:
    """The outputs with a maximum that is not times log₂ e, as `blockwise` has it.

    Kernels keep their own: converted twice, a large one would be another, by which weights are wrong.
    """
    out, total, top = outputs
    return out, total, top * LN2


def holds_backward(settings: Settings, moving: tuple[bool, ...]) -> bool:
    """Whether `backward` can compute the cotangents of what moves."""
    kernel, moved = settings.kernel, settings.tree.unflatten(moving).kernel
    return kernel.width in BACKWARD and (not any(moved) or kernel.bias.pullback is not None)


def backward(
    settings: Settings, leaves: Any, outputs: Any, cotangents: Any, moving: tuple[bool, ...]
) -> list[jax.Array]:
    from posenc_jax._attention.hopper import backward_kernel, table_kernel  # noqa: PLC0415
    from posenc_jax._attention.hopper.scores import LOWEST  # noqa: PLC0415

    x, (out, total, top), (d_out, d_total) = settings.tree.unflatten(leaves), outputs, cotangents
    tokens, (block_kv, block_q) = _tokens(settings, x), BACKWARD[settings.kernel.width]
    top = jnp.where(jnp.isneginf(top), 0, top)
    delta = jnp.sum(d_out.astype(jnp.float32) * out.astype(jnp.float32), -1) - d_total * total
    # The padding weighs nothing: its maximum is beyond any score.
    known = _pad(top, BLOCK, value=-LOWEST), _pad(1 / total, BLOCK), _pad(delta, BLOCK)
    known = jnp.stack(known, 1).transpose(0, 3, 1, 2)
    query, key, value, d_out = _widened(settings, x.query, x.key, x.value, d_out)
    queries, keys = map(tokens.padded, range(2))
    of = backward_kernel.Inputs(query, key, value, d_out, known, None, queries, keys, x.kernel)

    moved: Operands = settings.tree.unflatten(moving)
    looks_up = any(moved.kernel) and settings.kernel.bias.kind == "table"
    numbers = x.kernel[0].shape[0] if any(moved.kernel) and not looks_up else 0
    if numbers and len(settings.kernel.bias.pullback[0]) > bias_programs.LONG:
        block_kv = 64  # of 128 keys the registers do not hold what these steps compute
    inputs = of._replace(steps=_steps(*tokens.seen((BLOCK, block_kv))))
    dq, *sums = backward_kernel.d_query(_shape(settings, tokens, block_kv), inputs, numbers)
    inputs = of._replace(steps=_steps(*tokens.seen((block_q, BLOCK), transposed=True), masked_first=True))
    dk, dv = backward_kernel.d_key_value(_shape(settings, tokens, block_q, side=0), inputs)

    at: Operands = settings.tree.unflatten(range(len(leaves)))
    found = {at.query: dq, at.key: dk, at.value: dv}
    found = {place: y[tuple(map(slice, leaves[place].shape))] for place, y in found.items()}
    if numbers:
        of_queries = sums[0][..., : tokens.lengths[0]]  # those of the padding may be NaN
        found[at.kernel[0]] = jnp.sum(of_queries, (0, 3)).T
    if looks_up:
        block = table_kernel.BLOCK_KV
        seen = tokens.seen((BLOCK, block))
        bands = table_kernel.bands(tokens.reach, seen[0].shape[1:])
        inputs = of._replace(steps=_steps(*(table_kernel.along_bands(bands, y) for y in seen)))
        found[at.kernel[0]] = table_kernel.d_table(_shape(settings, tokens, block, side=0), inputs, bands)
    if x.sinks is not None:
        found[at.sinks] = blockwise.cotangent_of_sinks(x, total, top * LN2, delta)
    # What the bias closes over has no other cotangent than that of its numbers or its table.
    return [found[i] if i in found else jnp.zeros_like(leaves[i]) for i, moves in enumerate(moving) if moves]


def _pad(x: Any, multiple: int, mode: Any = "constant", value: float = 0) -> Any:
    """Pads axis 1 to a multiple."""
    missing = -x.shape[1] % multiple
    pad, more = np.pad if isinstance(x, np.ndarray) else jnp.pad, {"constant_values": value} if value else {}
    return pad(x, [(0, missing if axis == 1 else 0) for axis in range(x.ndim)], mode=mode, **more) if missing else x


def _seen_tiles(
    reach: Any, sides: dict[str, Any], lengths: tuple[int, int], blocks: tuple[int, int], transposed: bool = False
) -> tuple[Any, Any]:
    """Which tiles of queries and keys have something to see, and which are seen whole: (batch, tiles, tiles of keys).

    `transposed` lists them for each tile of keys, and counts keys of the padding as seen. NumPy computes them if all
    positions are counted.
    """
    xp: Any = np if all(isinstance(x, np.ndarray) for side in sides.values() for x in side) else jnp
    counts = [-(-length // block) for length, block in zip(lengths, blocks, strict=True)]
    may = np.ones((1, *counts), bool)
    whole = may & (transposed | (np.arange(counts[1]) < lengths[1] // blocks[1]))
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
    may, whole = (xp.swapaxes(x, 1, 2) if transposed else x for x in (may, whole & may))
    return may, whole


def _steps(may: Any, whole: Any, masked_first: bool = False) -> jax.Array:
    """For each row, which tiles it visits and which it sees whole: int32 (batch, rows, 4).

    It visits those from the first number to the last, and sees those whole that are from the second to the third. If
    there are none, all others are after these, or before them if they are `masked_first`.
    """
    xp: Any = np if isinstance(may, np.ndarray) else jnp
    count, some = may.shape[-1], may.any(-1)
    index = np.arange(count, dtype=np.int32)[None, None]
    first, last = xp.where(some, may.argmax(-1), 0), xp.where(some, count - may[..., ::-1].argmax(-1), 0)
    start = xp.where(whole.any(-1), whole.argmax(-1), last if masked_first else first)
    after = ~whole & (index >= start[..., None])
    stop = xp.where(after.any(-1), after.argmax(-1), count)
    return jnp.asarray(xp.stack([first, start, stop, last], -1).astype(np.int32))


def _elsewhere(*_: Any) -> list[jax.Array]:
    """The program for other platforms than CUDA."""
    only = "attention: implementation='mosaic_gpu' compiles for NVIDIA GPUs alone; elsewhere"
    raise ValueError(f"{only}, {OR_XLA}; {EXPERIMENTAL}")


def _tangent(settings: Settings, leaves: Any, outputs: Any, tangents: Any) -> list[jax.Array]:
    return blockwise.tangent(settings, leaves, _natural(outputs), tangents)


def _transpose(settings: Settings, leaves: Any, outputs: Any, cotangents: Any, moving: Any) -> list[jax.Array]:
    return blockwise.transpose(settings, leaves, _natural(outputs), cotangents, moving)


PROGRAMS = {"types": blockwise.types, "tangent": _tangent, "transpose": _transpose}
kernels = operation(
    "flash_attention",
    **PROGRAMS,
    compute=_elsewhere,
    cuda=forward,
    kernels=Kernels({None: _elsewhere, "cuda": backward}, holds_backward),
)


def attend(settings: Settings, *leaves: Any) -> tuple[Any, Any, Any]:
    return _natural(kernels(settings, *leaves))
