r"""Who stands where: int32 positions of packed, padded, two-dimensional, multimodal and sharded sequences."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from posenc_jax import _checks
from posenc_jax._checks import public, require

_LIMIT = 2**31


@public
def positions_from_segments(ids: ArrayLike, *, padding: int | None = None) -> jax.Array:
    r"""Positions of packed sequences, which start again at 0 wherever the id changes.

    $$p_i = i - \max\{j \le i : j = 0 \text{ or } s_j \ne s_{j-1}\}$$

    A segment is a run of equal ids, whatever their values; an id that comes back after another starts a new segment.

    Args:
      ids: $s$, integers of shape (..., length).
      padding: the id of padding, whose positions are all 0. `None`: no id is special, and padding is counted as a
        segment. Either way attention has to mask it, which `ids` says too.

    Returns:
      int32 of the shape of `ids`.

    Raises:
      TypeError: if ids are not an array of integers, or padding is not an integer.
      ValueError: if ids have no axis or one of more than 2³¹, or they or padding are known not to fit into int32.

    Examples:
      >>> import numpy as np
      >>> import posenc_jax as pe
      >>> print(pe.positions_from_segments(np.array([7, 7, 7, 3, 3, 0, 0]), padding=0))
      [0 1 2 0 1 0 0]

    Reference:
      Krell et al., "Efficient Sequence Packing without Cross-contamination", 2021, section 3.2.
    """
    ids = _sequences("ids", _checks.array("ids", ids, _checks.INTEGERS))
    if padding is not None:
        padding = int(_checks.array("padding", _checks.integer("padding", padding)))
    return _positions_from_segments(ids, padding=padding)


def _sequences(name: str, x: Any) -> jax.Array:
    """An array (..., length) along which positions are counted."""
    require(x.ndim, "{} must have shape (..., length), got {}", name, x.shape)
    _checks.countable(name, x.shape[-1])
    _checks.unsharded(name, x)
    return jnp.asarray(x)


@functools.partial(jax.jit, static_argnames=("padding",), inline=True)
def _positions_from_segments(ids: jax.Array, *, padding: int | None) -> jax.Array:
    axis = ids.ndim - 1
    index = lax.broadcasted_iota(jnp.int32, ids.shape, axis)
    previous = jnp.concatenate([ids[..., :1], ids[..., :-1]], axis)
    start = lax.cummax(jnp.where(ids != previous, index, 0), axis)
    positions = index - start
    limits = np.iinfo(ids.dtype)
    if padding is None or not limits.min <= padding <= limits.max:
        return positions
    return jnp.where(ids == jnp.asarray(padding, ids.dtype), 0, positions)


@public
def positions_from_mask(mask: ArrayLike) -> jax.Array:
    r"""Positions of padded sequences: the tokens are counted and the padding is not.

    $$p_i = m_i \left(\sum_{j \le i} m_j - 1\right)$$

    So the first token is at 0 wherever the padding stands, left, right or between. Padding is at 0 too: a position that
    every encoding and every table has, of a token that attention masks and the loss leaves out. The token that is
    decoded next is at `mask.sum(-1)`.

    Args:
      mask: $m$, of shape (..., length): booleans, or integers 0 and 1 as Hugging Face's `attention_mask`; 1 and True
        are tokens.

    Returns:
      int32 of the shape of the mask. Integers that are not known when tracing count as tokens unless they are 0.

    Raises:
      TypeError: if the mask is not an array of booleans or integers: floats are masks to add to scores.
      ValueError: if it has no axis or one of more than 2³¹, or is known to hold other integers than 0 and 1.

    Examples:
      >>> import numpy as np
      >>> import posenc_jax as pe
      >>> print(pe.positions_from_mask(np.array([[0, 0, 1, 1, 1], [1, 1, 0, 0, 0]])))
      [[0 0 0 1 2]
       [0 1 0 0 0]]

    Reference:
      Wolf et al., "Transformers", 2020: `position_ids` in generation with left padding.
    """
    if not (_checks.is_array(mask) and mask.dtype == np.bool_):
        mask = _checks.array("mask", mask, _checks.Kind("a boolean or integer array", floats=False))
        if _checks.is_known(mask) and mask.size:
            low, high = _checks.limits(mask)
            require(0 <= low <= high <= 1, "mask must hold 0 and 1, got {} to {}", low, high)
    return _positions_from_mask(_sequences("mask", mask))


@functools.partial(jax.jit, inline=True)
def _positions_from_mask(mask: jax.Array) -> jax.Array:
    tokens = mask != jnp.zeros((), mask.dtype)
    return jnp.where(tokens, lax.cumsum(tokens.astype(jnp.int32), mask.ndim - 1) - 1, 0)


@public
def grid_positions(shape: Sequence[int], *, order: Literal["row", "column"] = "row", leading: int = 0) -> jax.Array:
    r"""Positions of the patches of an image or video, in the order in which they are flattened.

    Token $i$ of a grid of $h \times w$ stands at $(\lfloor i/w \rfloor, i \bmod w)$, row before column.

    Args:
      shape: the sides of the grid, (height, width) or (time, height, width), or of any other number.
      order: of the coordinates, not of the tokens. "row": as the sides, so (row, column) or (time, row, column).
        "column": with the last two exchanged, (column, row) or (time, column, row), as MAE's and big_vision's tables.
      leading: tokens before the grid (class, register), which stand at 0 in every coordinate. There `rotary` leaves
        them as they are, as rotary vision transformers do. A table that is zero for them, as MAE's is, has zeros put
        before that of the grid: no position has such an encoding.

    Returns:
      int32 (leading + product of the sides, number of sides), for frequencies of so many axes (`axial`,
      `multi_section`).

    Raises:
      TypeError: if shape is not a sequence of integers, or leading not an integer.
      ValueError: if a side is below 1, leading below 0, order is not one of the above, or is "column" for a single
        side, or there are 2³¹ tokens or more.

    Examples:
      >>> import posenc_jax as pe
      >>> pe.grid_positions((2, 3)).tolist()
      [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
      >>> pe.grid_positions((2, 3), order="column").tolist()
      [[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1]]
      >>> encoding = pe.sinusoidal(pe.grid_positions((14, 24)), pe.axial(384, 2))
      >>> mae = pe.sinusoidal(pe.grid_positions((14, 24), order="column"), 384 // 2, layout="half").reshape(-1, 384)
      >>> encoding.shape == mae.shape == (14 * 24, 384)
      True

    Reference:
      He et al., "Masked Autoencoders Are Scalable Vision Learners", 2022, appendix A.1, and its `pos_embed.py`.
    """
    _checks.one_of("order", order, ("row", "column"))
    sides = _checks.sequence("shape", shape, "integers")
    shape = tuple(_checks.positive_int(f"shape[{i}]", n) for i, n in enumerate(sides))
    leading, least = _checks.integer("leading", leading, 0), 2 if order == "column" else 1
    require(len(shape) >= least, "shape must have more sides for order={!r}, got {}", order, shape)
    fits, message = (
        leading + math.prod(shape) < _LIMIT,
        "shape must have fewer than 2³¹ tokens, got {} after leading={}",
    )
    require(fits, message, shape, leading)
    return _grid_positions(shape=shape, order=order, leading=leading)


@functools.partial(jax.jit, static_argnames=("shape", "order", "leading"), inline=True)
def _grid_positions(*, shape: tuple[int, ...], order: str, leading: int) -> jax.Array:
    axes = list(range(len(shape)))
    if order == "column":
        axes[-2:] = axes[:-3:-1]
    grid = jnp.stack([lax.broadcasted_iota(jnp.int32, shape, axis) for axis in axes], -1)
    return jnp.pad(grid.reshape(-1, len(shape)), ((leading, 0), (0, 0)))


@public
def multimodal_positions(
    parts: Sequence[int | Sequence[float]], *, following: Literal["maximum", "side"] = "maximum"
) -> jax.Array:
    r"""Positions of text, images and videos in one sequence, for M-RoPE: (time, row, column) of each token.

    Text counts on in all three coordinates. Token $(t, y, x)$ of a grid that starts at $s$ stands at
    $(s + \lfloor t\Delta \rfloor, s + y, s + x)$. The token that is decoded next is at `positions.max() + 1` in all
    three coordinates, and those after it count on.

    Args:
      parts: what the sequence consists of: an integer is a number of text tokens; (time, height, width) is an image
        (time 1) or video, in tokens, so after the model's merging of patches; (time, height, width, Δ) is a video whose
        frames are Δ positions apart: for Qwen2.5-VL `tokens_per_second` times seconds a frame, in float32 as is its
        product with t. Qwen3-VL has a timestamp before each frame, and so a grid of time 1 for each.
      following: where the next part starts. "maximum": above every position so far, as the papers say and the
        models' own code does. "side": at $s + \max(\text{height}, \text{width})$, as transformers 5 does: another
        place only where a video is longer than wide, and there text stands beside frames.

    Returns:
      int32 (length, 3), for `multi_section`. Sequences of a batch are padded to one length with anything.

    Raises:
      TypeError: if parts are not integers and sequences of numbers.
      ValueError: if a length or side is below 1, Δ not positive in float32, a grid not of three or four numbers,
        following not one of the above, or a position is beyond int32.

    Examples:
      >>> import posenc_jax as pe
      >>> pe.multimodal_positions([2, (1, 2, 2), 1]).tolist()
      [[0, 0, 0], [1, 1, 1], [2, 2, 2], [2, 2, 3], [2, 3, 2], [2, 3, 3], [4, 4, 4]]
      >>> pe.multimodal_positions([(3, 1, 1, 2.0)])[:, 0].tolist()
      [0, 2, 4]

    Reference:
      Wang et al., "Qwen2-VL", 2024, section 2.1; Bai et al., "Qwen2.5-VL", 2025, section 2.1.2, for Δ.
    """
    _checks.one_of("following", following, ("maximum", "side"))
    pieces, start = [np.zeros((0, 3), np.int64)], 0
    for i, part in enumerate(_checks.sequence("parts", parts, "integers and grids")):
        grid, side = _text(f"parts[{i}]", part) if isinstance(part, (int, np.integer)) else _grid(f"parts[{i}]", part)
        pieces.append(grid + start)
        start = int(pieces[-1].max()) + 1 if following == "maximum" else start + side
    positions = np.concatenate(pieces)
    fits = not positions.size or positions.max() < _LIMIT
    require(fits, "positions must fit into int32, got up to {}", positions.max(initial=0))
    return jnp.asarray(positions.astype(np.int32))


def _text(name: str, part: Any) -> tuple[np.ndarray, int]:
    """The positions of text from 0 on, and its length."""
    length = _tokens(name, _checks.positive_int(name, part))
    return np.repeat(np.arange(length)[:, None], 3, axis=1), length


def _grid(name: str, part: Any) -> tuple[np.ndarray, int]:
    """The positions of an image or video that starts at 0, and its longer side."""
    numbers = _checks.sequence(name, part, "numbers, or an integer")
    message = "{} must be a length, (time, height, width) or these and Δ, got {!r}"
    require(len(numbers) in (3, 4), message, name, part)
    time, height, width = (_checks.positive_int(f"{name}[{i}]", n) for i, n in enumerate(numbers[:3]))
    step = _checks.positive_float32(f"{name}[3]", numbers[3]) if len(numbers) == 4 else 1.0
    _tokens(name, time * height * width)
    last = (time - 1) * step  # checked before the cast, which would wrap around
    require(last < _LIMIT, "positions must fit into int32, got up to {:.15g}", last)
    # In float32, as in the models: it decides which integer a product just below one becomes.
    times = np.floor(np.arange(time, dtype=np.float32) * np.float32(step)).astype(np.int64)
    grid = np.stack(np.meshgrid(times, np.arange(height), np.arange(width), indexing="ij"), -1)
    return grid.reshape(-1, 3), max(height, width)


def _tokens(name: str, tokens: int) -> int:
    """A number of tokens that int32 can count."""
    require(tokens < _LIMIT, "{} must have fewer than 2³¹ tokens", name)
    return tokens


@public
def shard_positions(
    length: int, shards: int, *, order: Literal["contiguous", "zigzag", "striped"] = "contiguous"
) -> jax.Array:
    r"""Which positions of a sequence each shard of it holds, for context parallelism and ring attention.

    Shard $s$ of $n$ holds, of a sequence in chunks $c_0, c_1, …$ of equal length,

    - "contiguous": chunk $c_s$ of $n$;
    - "zigzag": chunks $c_s$ and $c_{2n-1-s}$ of $2n$, so that causal attention is the same work for every shard;
    - "striped": $s, s + n, s + 2n, …$, which spreads the work too.

    A sequence x is put in this order by `x[positions.reshape(-1)]` and back by
    `y[jnp.argsort(positions.reshape(-1))]`. Inside `jax.shard_map` over an axis "context", a shard has
    `positions[jax.lax.axis_index("context")]`, or gets them as an argument that is split along its first axis.

    Args:
      length: of the whole sequence.
      shards: $n$.
      order: as above.

    Returns:
      int32 (shards, length / shards), every position once.

    Raises:
      TypeError: if length or shards is not an integer.
      ValueError: if either is below 1, length is 2³¹ or more or no multiple of shards (of 2·shards for "zigzag"), or
        order is not one of the above.

    Examples:
      >>> import posenc_jax as pe
      >>> pe.shard_positions(8, 2).tolist()
      [[0, 1, 2, 3], [4, 5, 6, 7]]
      >>> pe.shard_positions(8, 2, order="zigzag").tolist()
      [[0, 1, 6, 7], [2, 3, 4, 5]]
      >>> pe.shard_positions(8, 2, order="striped").tolist()
      [[0, 2, 4, 6], [1, 3, 5, 7]]

    Reference:
      Liu et al., "Ring Attention", 2023; Brandon et al., "Striped Attention", 2023, section 3; zigzag as in Llama 3,
      Grattafiori et al., 2024, section 3.3.2.
    """
    _checks.one_of("order", order, ("contiguous", "zigzag", "striped"))
    length, shards = _checks.positive_int("length", length), _checks.positive_int("shards", shards)
    multiple = f"2·shards = {2 * shards} for order='zigzag'" if order == "zigzag" else f"shards = {shards}"
    chunks = 2 * shards if order == "zigzag" else shards
    require(length % chunks == 0, "length must be a multiple of {}, got {}", multiple, length)
    require(length < _LIMIT, "length must be below 2³¹, got {}", length)
    return _shard_positions(length=length, shards=shards, order=order)


@functools.partial(jax.jit, static_argnames=("length", "shards", "order"), inline=True)
def _shard_positions(*, length: int, shards: int, order: str) -> jax.Array:
    # Computed from the index alone, so that indexing by device compiles to one row.
    part = length // shards
    shard, index = (lax.broadcasted_iota(jnp.int32, (shards, part), axis) for axis in range(2))
    if order == "contiguous":
        return part * shard + index
    if order == "striped":
        return shards * index + shard
    half = part // 2
    return index + half * jnp.where(index < half, shard, 2 * shards - 2 - shard)
