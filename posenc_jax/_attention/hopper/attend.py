"""`attention` by a kernel for NVIDIA GPUs: the checks of its arguments, and its operands.

One kernel computes the forward pass, and others compute the cotangents from its outputs; `holds_backward` says when.
All other derivatives are those of `blockwise`, tile by tile.
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
from posenc_jax._attention.hopper.bias_programs import FALLBACK_HINT, BiasProgram
from posenc_jax._attention.tiles import Operands, Settings
from posenc_jax._jax import workarounds
from posenc_jax._jax.derivatives import Kernels, operation
from posenc_jax._jax.errors import require

EXPERIMENTAL = "it is experimental: forward seen on an H200 in an older form, backward compiled only"
LN2 = math.log(2)
BLOCK = 128  # rows of a block of threads
MOST_CAP = 100  # of soft caps: tanh from exponentials is within 2e-7, which the cap multiplies
# By the width of heads, the keys of a tile: two tiles of keys and two of values fit in 227 KB of shared memory. On an
# H200, tiles of 64 keys took 1.3 times as long at a width of 128, and tiles of 256 took 1.25 times as long under ALiBi
# at 64.
BLOCK_KV = {64: 128, 128: 128, 192: 64, 256: 64}
# By the width of heads, the keys of a tile in the kernel that sums over keys, and the queries of a tile in the one that
# sums over queries. Wider heads have XLA's tiles: at 192, the cotangents of keys and values alone take 192 registers of
# 240.
BACKWARD = {64: (128, 64), 128: (64, 64)}


class KernelSettings(NamedTuple):
    """The settings of the kernel besides `Settings`."""

    width: int  # of heads and values, which are padded with zeros
    counted: bool  # whether positions count from 0
    bias: BiasProgram | None
    interpret: bool = False  # whether it runs in interpret mode, for tests


def prepare(
    settings: Settings, x: Operands, bias: Callable[..., Any] | None, counted: bool, reads_data: bool
) -> tuple[Settings, Operands]:
    """The settings and the operands of the kernel; raises for arguments that it does not support."""
    x = _mask_as_segments(x)
    _check(settings, x, counted)
    name = "implementation='mosaic_gpu'"
    constraint = f"bias must be of positions alone with {name}, or {FALLBACK_HINT}; got query_data or key_data"
    require(not reads_data, constraint)
    program, operands = None, ()
    if bias is not None:
        lengths = x.query.shape[1], x.key.shape[1]
        padded = lengths[0] + -lengths[0] % BLOCK, lengths[1] + -lengths[1] % BLOCK
        axes = x.query_tokens.positions.ndim
        program, operands = bias_programs.plan(bias, x.query.shape[2], axes, lengths if counted else None, padded)
    return settings._replace(kernel=KernelSettings(_width(x), counted, program)), x._replace(kernel=operands)


def _mask_as_segments(x: Operands) -> Operands:
    """The operands with a mask of keys as segments: queries are in 1, and so are the keys that they see."""
    if x.mask is None:
        return x
    message = (
        "mask must be the same for all heads and queries, (..., 1, 1, keys), and without segments, with "
        f"implementation='mosaic_gpu', or {FALLBACK_HINT}; got {{}}{{}}"
    )
    has_segments = x.query_tokens.segments is not None
    fits = x.mask.shape[1:3] == (1, 1) and not has_segments
    require(fits, message, x.mask.shape, " and segments" if has_segments else "")
    batch, queries, keys = len(x.mask), x.query.shape[1], x.key.shape[1]
    seen = jnp.broadcast_to(x.mask[:, 0, 0].astype(jnp.int32), (batch, keys))
    query_tokens = x.query_tokens._replace(segments=jnp.ones((batch, queries), jnp.int32))
    return x._replace(query_tokens=query_tokens, key_tokens=x.key_tokens._replace(segments=seen), mask=None)


def _width(x: Operands) -> int:
    """The width of heads and values in the kernel."""
    width = max(x.query.shape[-1], x.value.shape[-1])
    return width + -width % 64


def _check(settings: Settings, x: Operands, counted: bool) -> None:
    """Raises for arguments that the kernel does not support."""
    name = "implementation='mosaic_gpu'"
    require(
        workarounds.HAS_MOSAIC_GPU,
        f"{name} needs JAX 0.11 or later, this is {jax.__version__}; {FALLBACK_HINT}; {EXPERIMENTAL}",
    )
    or_xla = f" with {name}, or {FALLBACK_HINT}; got {{}}"
    dtype, most = x.query.dtype, max(BLOCK_KV)
    require(dtype in (jnp.bfloat16, jnp.float16), "query must be bfloat16 or float16" + or_xla, dtype)
    require(
        _width(x) <= most,
        f"head_dim and value_dim must be at most {most}" + or_xla,
        (x.query.shape[-1], x.value.shape[-1]),
    )
    sizes = x.query.shape, x.key.shape
    require(x.query.size and x.key.size, "query and key must not be empty" + or_xla, sizes)
    ptxas, attributes = workarounds.ptxas(), (x.query_tokens.segments, x.query_tokens.order)
    masked = settings.masked or any(a is not None for a in attributes) or x.key.shape[1] % BLOCK
    require(
        not masked or ptxas is None or not (12, 8) <= ptxas < (12, 9, 86),
        f"{name} cannot mask scores with CUDA from 12.8.0 to before 12.9.1, whose ptxas miscompiles that; "
        f"{FALLBACK_HINT}; "
        "got a mask, segments, orders or a number of keys that is no multiple of 128, with nvidia-cuda-nvcc-cu12 {}",
        ".".join(map(str, ptxas or ())),
    )
    soft_cap = settings.soft_cap or 0
    require(soft_cap <= MOST_CAP, f"logits_soft_cap must be at most {MOST_CAP}" + or_xla, soft_cap)
    require(not counted or max(s[1] for s in sizes) < 2**24, "counted positions must be below 2²⁴" + or_xla, sizes)
    require(1e-6 <= settings.scale <= 1e6, "scale must be from 1e-6 to 1e6" + or_xla, settings.scale)
    most = max(n or 0 for n in settings.window)
    require(most < 2**31, "window must be below 2³¹" + or_xla, most)
    dtypes = [str(a.dtype) for a in jax.tree.leaves((x.query_tokens, x.key_tokens)) if a.dtype != np.int32]
    require(not dtypes, "positions, orders and segments must be int32" + or_xla, ", ".join(dtypes))
    spec = jax.typeof(x.query).sharding.spec
    require(not any(spec), "query must not be sharded on Explicit axes of a mesh, but by jax.shard_map," + or_xla, spec)


class _Tokens(NamedTuple):
    """The attributes of queries and keys from which scores are masked."""

    lengths: tuple[int, int]
    reach: tuple[int | None, int | None]  # how many keys before and after a query's position it sees; None: all
    attributes: dict[str, Any]  # by name, of queries and of keys; also "positions" that are counted
    in_kernel: tuple[str, ...]  # the names of those that a kernel reads

    def visible_tiles(self, blocks: tuple[int, int], transposed: bool = False) -> tuple[Any, Any]:
        return _visible_tiles(self.reach, self.attributes, self.lengths, blocks, transposed)

    def padded(self, side: int) -> tuple[Any, ...]:
        """The attributes of queries (side 0) or keys that a kernel reads."""
        return tuple(_pad(self.attributes[name][side], BLOCK, "edge") for name in self.in_kernel)


def _tokens(settings: Settings, x: Operands) -> _Tokens:
    """The attributes that these settings mask and bias by."""
    lengths, counted = (x.query.shape[1], x.key.shape[1]), settings.kernel.counted
    names = [n for n in ("segments", "order") if getattr(x.query_tokens, n) is not None]
    if not counted and (settings.masked or settings.kernel.bias is not None):
        names = ["positions", *names]
    attributes = {n: [jnp.atleast_2d(getattr(tokens, n)) for tokens in (x.query_tokens, x.key_tokens)] for n in names}
    if counted:
        attributes = {"positions": [np.arange(n, dtype=np.int32)[None] for n in lengths]} | attributes
    reach = settings.window[0], 0 if settings.causal else settings.window[1]
    return _Tokens(lengths, reach, attributes, tuple(names))


def _padded_arrays(settings: Settings, *arrays: Any) -> list[Any]:
    """Arrays (batch, length, heads, width), padded to the width of the kernel and to whole tiles."""
    wide = lambda a: jnp.pad(a, (*[(0, 0)] * 3, (0, settings.kernel.width - a.shape[-1])))  # noqa: E731
    return [_pad(wide(a), BLOCK) for a in arrays]


def _static_settings(settings: Settings, tokens: _Tokens, block: int, side: int = 1) -> Any:
    """The static settings of a kernel that loads tiles of `block` queries (side 0) or keys."""
    from posenc_jax._attention.hopper.blocks import StaticSettings  # noqa: PLC0415 - it imports Pallas

    kernel, stages = settings.kernel, min(2, -(-tokens.lengths[side] // block))
    return StaticSettings(
        tokens.lengths[1],
        block,
        stages,
        settings.scale,
        settings.soft_cap,
        tokens.reach,
        tokens.in_kernel,
        kernel.bias,
        side == 0 and _unbounded(kernel, tokens),
        kernel.interpret,
    )


def _unbounded(kernel: KernelSettings, tokens: _Tokens) -> bool:
    """Whether the bias of a query of the padding may be NaN: its counted position is beyond that of the last query.

    A table has the differences of tokens alone. Without a window to the left, segments or orders, each difference that
    a query of the padding reads is also read for some token.
    """
    if kernel.bias is None or not kernel.counted or tokens.lengths[0] % BLOCK == 0 or kernel.bias.kind == "linear":
        return False
    return kernel.bias.kind == "steps" or tokens.reach[0] is not None or bool(tokens.in_kernel)


def forward(settings: Settings, *leaves: Any) -> list[jax.Array]:
    """The output, the sums of weights, and the maximum scores times log₂ e."""
    from posenc_jax._attention.hopper import forward_kernel  # noqa: PLC0415 - it imports Pallas
    from posenc_jax._attention.hopper.scores import LOG2E, LOWEST  # noqa: PLC0415

    x: Operands = settings.tree.unflatten(leaves)
    tokens, block_kv, sinks = _tokens(settings, x), BLOCK_KV[settings.kernel.width], ()
    if x.sinks is not None:
        top = x.sinks.astype(jnp.float32)
        sinks = jnp.maximum(top * LOG2E, LOWEST), jnp.where(jnp.isneginf(top), 0.0, 1.0)
    query, key, value = _padded_arrays(settings, x.query, x.key, x.value)
    tile_ranges, (queries, keys) = _tile_ranges(*tokens.visible_tiles((BLOCK, block_kv))), map(tokens.padded, range(2))
    inputs = forward_kernel.Inputs(query, key, value, tile_ranges, queries, keys, sinks, x.kernel)
    out, *statistics = forward_kernel.attend(_static_settings(settings, tokens, block_kv), inputs)
    total, top = (jnp.swapaxes(y, 1, 2)[:, : tokens.lengths[0]] for y in statistics)
    out = out[:, : tokens.lengths[0], :, : x.value.shape[-1]]
    return [out, jnp.where(total == 0, 1, total), jnp.where(total == 0, -jnp.inf, top)]


def _with_natural_maximum(outputs: Any) -> tuple[Any, Any, Any]:
    """The outputs with the maximum of `blockwise`, which is not times log₂ e.

    The backward kernels read the one of the forward kernel: converted twice, a large maximum would become another
    number, and the weights would be wrong.
    """
    out, total, top = outputs
    return out, total, top * LN2


def holds_backward(settings: Settings, has_tangent: tuple[bool, ...]) -> bool:
    """Whether `backward` can compute the cotangents of the leaves that have a tangent."""
    kernel, bias_has_tangent = settings.kernel, settings.tree.unflatten(has_tangent).kernel
    return kernel.width in BACKWARD and (not any(bias_has_tangent) or kernel.bias.pullback is not None)


def backward(
    settings: Settings, leaves: Any, outputs: Any, cotangents: Any, has_tangent: tuple[bool, ...]
) -> list[jax.Array]:
    """The cotangents of the leaves that have a tangent."""
    from posenc_jax._attention.hopper import backward_kernel, table_kernel  # noqa: PLC0415
    from posenc_jax._attention.hopper.scores import LOWEST  # noqa: PLC0415

    x, (out, total, top), (d_out, d_total) = settings.tree.unflatten(leaves), outputs, cotangents
    tokens, (block_kv, block_q) = _tokens(settings, x), BACKWARD[settings.kernel.width]
    top = jnp.where(jnp.isneginf(top), 0, top)
    delta = jnp.sum(d_out.astype(jnp.float32) * out.astype(jnp.float32), -1) - d_total * total
    # The padding has weights of 0: its maximum is above any score.
    statistics = _pad(top, BLOCK, value=-LOWEST), _pad(1 / total, BLOCK), _pad(delta, BLOCK)
    statistics = jnp.stack(statistics, 1).transpose(0, 3, 1, 2)
    query, key, value, d_out = _padded_arrays(settings, x.query, x.key, x.value, d_out)
    queries, keys = map(tokens.padded, range(2))
    arguments = backward_kernel.Inputs(query, key, value, d_out, statistics, None, queries, keys, x.kernel)

    bias_has_tangent = any(settings.tree.unflatten(has_tangent).kernel)
    looks_up = bias_has_tangent and settings.kernel.bias.kind == "table"
    numbers = x.kernel[0].shape[0] if bias_has_tangent and not looks_up else 0
    if numbers and len(settings.kernel.bias.pullback[0]) > bias_programs.MANY_STEPS:
        block_kv = 64  # the results of so many steps for 128 keys do not fit in registers
    inputs = arguments._replace(tile_ranges=_tile_ranges(*tokens.visible_tiles((BLOCK, block_kv))))
    dq, *d_numbers = backward_kernel.d_query(_static_settings(settings, tokens, block_kv), inputs, numbers)
    tiles = tokens.visible_tiles((block_q, BLOCK), transposed=True)
    inputs = arguments._replace(tile_ranges=_tile_ranges(*tiles, masked_first=True))
    dk, dv = backward_kernel.d_key_value(_static_settings(settings, tokens, block_q, side=0), inputs)

    index_of: Operands = settings.tree.unflatten(range(len(leaves)))
    results = {index_of.query: dq, index_of.key: dk, index_of.value: dv}
    results = {i: y[tuple(map(slice, leaves[i].shape))] for i, y in results.items()}
    if numbers:
        per_query = d_numbers[0][..., : tokens.lengths[0]]  # those of the padding may be NaN
        results[index_of.kernel[0]] = jnp.sum(per_query, (0, 3)).T
    if looks_up:
        block = table_kernel.BLOCK_KV
        tiles = tokens.visible_tiles((BLOCK, block))
        offsets = table_kernel.band_offsets(tokens.reach, tiles[0].shape[1:])
        inputs = arguments._replace(tile_ranges=_tile_ranges(*(table_kernel.along_bands(offsets, y) for y in tiles)))
        static = _static_settings(settings, tokens, block, side=0)
        results[index_of.kernel[0]] = table_kernel.d_table(static, inputs, offsets)
    if x.sinks is not None:
        results[index_of.sinks] = blockwise.cotangent_of_sinks(x, total, top * LN2, delta)
    # Of arrays that the bias closes over, the cotangents are 0 here: they come from those of its numbers or its table.
    return [results[i] if i in results else jnp.zeros_like(leaves[i]) for i, has in enumerate(has_tangent) if has]


def _pad(x: Any, multiple: int, mode: Any = "constant", value: float = 0) -> Any:
    """Pads axis 1 to a multiple."""
    missing = -x.shape[1] % multiple
    pad, more = np.pad if isinstance(x, np.ndarray) else jnp.pad, {"constant_values": value} if value else {}
    return pad(x, [(0, missing if axis == 1 else 0) for axis in range(x.ndim)], mode=mode, **more) if missing else x


def _visible_tiles(
    reach: Any, attributes: dict[str, Any], lengths: tuple[int, int], blocks: tuple[int, int], transposed: bool = False
) -> tuple[Any, Any]:
    """Whether some query may see some key in a tile, and whether each sees all: bools (batch, tiles, tiles of keys).

    If `transposed`, they are (batch, tiles of keys, tiles), and keys of the padding count as seen. NumPy computes them
    if all attributes are NumPy arrays.
    """
    xp: Any = np if all(isinstance(x, np.ndarray) for pair in attributes.values() for x in pair) else jnp
    counts = [-(-length // block) for length, block in zip(lengths, blocks, strict=True)]
    visible = np.ones((1, *counts), bool)
    unmasked = visible & (transposed | (np.arange(counts[1]) < lengths[1] // blocks[1]))
    most, (left, right) = 2**31 - 1, reach
    for name, (q, k) in attributes.items():
        q = _pad(q, blocks[0], "edge").reshape(len(q), -1, 1, blocks[0])
        k = _pad(k, blocks[1], "edge").reshape(len(k), 1, -1, blocks[1])
        q_low, q_high, k_low, k_high = q.min(-1), q.max(-1), k.min(-1), k.max(-1)
        if name == "segments":
            visible = visible & (q_low <= k_high) & (k_low <= q_high)
            unmasked = unmasked & (q_low == k_high) & (k_low == q_high)
        if name == "order":
            visible, unmasked = visible & (q_high >= k_low), unmasked & (q_low >= k_high)
        if name == "positions" and right is not None:
            low, high = (xp.minimum(x, most - right) + right for x in (q_low, q_high))
            visible, unmasked = visible & (k_low <= high), unmasked & (k_high <= low)
        if name == "positions" and left is not None:
            low, high = (xp.maximum(x, left - most) - left for x in (q_low, q_high))
            visible, unmasked = visible & (k_high >= low), unmasked & (k_low >= high)
    visible, unmasked = (xp.swapaxes(x, 1, 2) if transposed else x for x in (visible, unmasked & visible))
    return visible, unmasked


def _tile_ranges(visible: Any, unmasked: Any, masked_first: bool = False) -> jax.Array:
    """The ranges of tiles that each row visits: int32 (batch, rows, 4).

    The four numbers are the first tile, the first unmasked tile, the end of the unmasked tiles, and the end of all. If
    no tile is unmasked, all count as behind the unmasked ones, or as before them if they are `masked_first`.
    """
    xp: Any = np if isinstance(visible, np.ndarray) else jnp
    count, some = visible.shape[-1], visible.any(-1)
    index = np.arange(count, dtype=np.int32)[None, None]
    first, last = xp.where(some, visible.argmax(-1), 0), xp.where(some, count - visible[..., ::-1].argmax(-1), 0)
    start = xp.where(unmasked.any(-1), unmasked.argmax(-1), last if masked_first else first)
    after = ~unmasked & (index >= start[..., None])
    stop = xp.where(after.any(-1), after.argmax(-1), count)
    return jnp.asarray(xp.stack([first, start, stop, last], -1).astype(np.int32))


def _other_platform(*_: Any) -> list[jax.Array]:
    """The program for platforms other than CUDA, which raises."""
    only = "attention: implementation='mosaic_gpu' compiles for NVIDIA GPUs alone; elsewhere"
    raise ValueError(f"{only}, {FALLBACK_HINT}; {EXPERIMENTAL}")


def _tangent(settings: Settings, leaves: Any, outputs: Any, tangents: Any) -> list[jax.Array]:
    return blockwise.tangent(settings, leaves, _with_natural_maximum(outputs), tangents)


def _transpose(settings: Settings, leaves: Any, outputs: Any, cotangents: Any, has_tangent: Any) -> list[jax.Array]:
    return blockwise.transpose(settings, leaves, _with_natural_maximum(outputs), cotangents, has_tangent)


RULES = {"types": blockwise.types, "tangent": _tangent, "transpose": _transpose}
kernels = operation(
    "flash_attention",
    **RULES,
    compute=_other_platform,
    cuda=forward,
    kernels=Kernels({None: _other_platform, "cuda": backward}, holds_backward),
)


def attend(settings: Settings, *leaves: Any) -> tuple[Any, Any, Any]:
    return _with_natural_maximum(kernels(settings, *leaves))
