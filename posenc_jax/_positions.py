r"""Positions of packed, padded, two-dimensional, multimodal and sharded sequences, as int32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from posenc_jax import _checks
from posenc_jax._checks import InvalidValue, public, require
from posenc_jax._xla import compiled

_LIMIT = 2**31


@public
def positions_from_segments(ids: ArrayLike, *, padding: int | None = None) -> jax.Array:
    r"""Counts positions in packed sequences, restarting at 0 wherever the id changes.

    $$p_i = i - \max\{j \le i : j = 0 \text{ or } s_j \ne s_{j-1}\}$$

    A segment is a run of equal ids, whatever their values. An id that returns after another id starts a new segment.

    Args:
      ids: $s$, integers of shape (..., length).
      padding: the id of padding tokens, whose positions are all 0. With `None`, no id is special, and padding is
        counted as a segment. In both cases attention must mask padding, and `ids` shows where it is.

    Returns:
      An int32 array of the shape of `ids`.

    Raises:
      TypeError: if ids are not an integer array, or padding is not an integer.
      ValueError: if ids have no axis or a length above 2³¹, or if ids or padding are known not to fit into int32.

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
    """Checks that positions can be counted along the last axis of x."""
    require(x.ndim, "{} must have shape (..., length), got {}", name, x.shape)
    _checks.countable(name, x.shape[-1])
    _checks.unsharded(name, x)
    return jnp.asarray(x)


@compiled("positions_from_segments", static_argnames=("padding",))
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
    r"""Counts positions in padded sequences, skipping the padding.

    $$p_i = m_i \left(\sum_{j \le i} m_j - 1\right)$$

    The first token is at 0, whether the padding is on the left, on the right or in between. Padding is also at 0, a
    position that every encoding and every table has; attention masks padding, and the loss ignores it. The next token
    to decode is at `mask.sum(-1)`.

    Args:
      mask: $m$, of shape (..., length): booleans, or integers 0 and 1 as in Hugging Face's `attention_mask`. True and 1
        mark tokens.

    Returns:
      An int32 array of the shape of the mask. In a traced integer mask, every nonzero value counts as a token.

    Raises:
      TypeError: if the mask is not a boolean or integer array. A float mask is one that is added to scores.
      ValueError: if the mask has no axis or a length above 2³¹, or is known to hold integers other than 0 and 1.

    Examples:
      >>> import numpy as np
      >>> import posenc_jax as pe
      >>> print(pe.positions_from_mask(np.array([[0, 0, 1, 1, 1], [1, 1, 0, 0, 0]])))
      [[0 0 0 1 2]
       [0 1 0 0 0]]

    Reference:
      Wolf et al., "Transformers", 2020: `position_ids` in generation with left padding.
    """
    return _positions_from_mask(_sequences("mask", _parse_mask(mask)))


def _parse_mask(mask: Any) -> Any:
    """Returns booleans or integers; integers that are known must be 0 or 1."""
    mask = _checks.held(mask)
    if _checks.is_array(mask) and mask.dtype == np.bool_:
        return mask
    mask = _checks.array("mask", mask, _checks.Kind("a boolean or integer array", floats=False))
    _checks.within(mask, 0, 1, "mask must hold 0 and 1, got {} to {}")
    return mask


@compiled("positions_from_mask")
def _positions_from_mask(mask: jax.Array) -> jax.Array:
    tokens = mask != jnp.zeros((), mask.dtype)
    return jnp.where(tokens, lax.cumsum(tokens.astype(jnp.int32), mask.ndim - 1) - 1, 0)


@public
def grid_positions(shape: Sequence[int], *, order: Literal["row", "column"] = "row", leading: int = 0) -> jax.Array:
    r"""Positions of the patches of an image or video, in the order in which the grid is flattened.

    Token $i$ of an $h \times w$ grid is at $(\lfloor i/w \rfloor, i \bmod w)$, row before column.

    Args:
      shape: the sides of the grid: (height, width), (time, height, width), or any other number of sides.
      order: the order of the coordinates, not of the tokens. "row" keeps the order of the sides: (row, column) or
        (time, row, column). "column" swaps the last two: (column, row) or (time, column, row), as in the tables of MAE
        and big_vision.
      leading: the number of tokens before the grid (class, register), which are at 0 in every coordinate. `rotary`
        leaves them unrotated, as rotary vision transformers do. No position encodes to zeros, so a table that is zero
        for these tokens, like MAE's, needs rows of zeros before the encodings of the grid.

    Returns:
      An int32 array of shape (leading + product of the sides, number of sides), for frequencies with one axis for each
      side (`axial`, `multi_section`).

    Raises:
      TypeError: if shape is not a sequence of integers, or leading is not an integer.
      ValueError: if a side is below 1, if leading is below 0, if order is unknown or is "column" for a single side, or
        if there are 2³¹ tokens or more.

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
    shape = _checks.positive_ints("shape", shape)
    leading, least = _checks.integer("leading", leading, 0), 2 if order == "column" else 1
    require(len(shape) >= least, "shape must have more sides for order={!r}, got {}", order, shape)
    if leading + math.prod(shape) >= _LIMIT:
        raise InvalidValue(f"shape must have fewer than 2³¹ tokens, got {shape} after leading={leading}")
    return _grid_positions(shape=shape, order=order, leading=leading)


@compiled("grid_positions", static_argnames=("shape", "order", "leading"))
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

    Each text token advances all three coordinates by 1. Token $(t, y, x)$ of a grid that starts at $s$ is at
    $(s + \lfloor t\Delta \rfloor, s + y, s + x)$. The next token to decode is at `positions.max() + 1` in all three
    coordinates, and later tokens count up from there.

    Args:
      parts: the parts of the sequence. An integer is a number of text tokens. (time, height, width) is an image
        (time 1) or a video, in tokens, that is, after the model merges patches. (time, height, width, Δ) is a video
        whose frames are Δ positions apart. For Qwen2.5-VL, Δ is `tokens_per_second` times the seconds per frame; Δ and
        its product with t are float32. Qwen3-VL puts a timestamp before each frame, so each frame is a grid of time 1.
      following: where the next part starts. "maximum": above every position so far, as in the papers and in the
        models' own code. "side": at $s + \max(\text{height}, \text{width})$, as in transformers 5. The two differ only
        after a video that spans more positions in time than in height and width; with "side", the text after it then
        shares positions with its frames.

    Returns:
      An int32 array of shape (length, 3), for `multi_section`. Pad the sequences of a batch to one length with any
      value.

    Raises:
      TypeError: if parts are not integers and sequences of numbers.
      ValueError: if a length or side is below 1, if Δ is not positive in float32, if a grid does not have three or four
        numbers, if following is unknown, or if a position is beyond int32.

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
    last = positions.max(initial=0)
    require(last < _LIMIT, "positions must fit into int32, got up to {}", last)
    return jnp.asarray(positions.astype(np.int32))


def _text(name: str, part: Any) -> tuple[np.ndarray, int]:
    """The positions of text that starts at 0, and its length."""
    length = _tokens(name, _checks.positive_int(name, part))
    return np.repeat(np.arange(length)[:, None], 3, axis=1), length


def _grid(name: str, part: Any) -> tuple[np.ndarray, int]:
    """The positions of an image or video that starts at 0, and its longer side."""
    (time, height, width), step = _parse_grid(name, part)
    # In float32, as in the models, because rounding can carry a product across an integer.
    times = np.floor(np.arange(time, dtype=np.float32) * np.float32(step)).astype(np.int64)
    grid = np.stack(np.meshgrid(times, np.arange(height), np.arange(width), indexing="ij"), -1)
    return grid.reshape(-1, 3), max(height, width)


def _parse_grid(name: str, part: Any) -> tuple[tuple[int, int, int], float]:
    """(time, height, width) and Δ."""
    numbers = _checks.sequence(name, part, "numbers, or an integer")
    require(len(numbers) in (3, 4), "{} must be a length, (time, height, width) or these and Δ, got {!r}", name, part)
    time, height, width = (_checks.positive_int(f"{name}[{i}]", n) for i, n in enumerate(numbers[:3]))
    step = _checks.positive_float32(f"{name}[3]", numbers[3]) if len(numbers) == 4 else 1.0
    _tokens(name, time * height * width)
    last = (time - 1) * step  # checked before the cast to integers, which would wrap
    require(last < _LIMIT, "positions must fit into int32, got up to {:.15g}", last)
    return (time, height, width), step


def _tokens(name: str, tokens: int) -> int:
    """Checks that int32 can count the tokens."""
    require(tokens < _LIMIT, "{} must have fewer than 2³¹ tokens, got {}", name, tokens)
    return tokens


@public
def shard_positions(
    length: int, shards: int, *, order: Literal["contiguous", "zigzag", "striped"] = "contiguous"
) -> jax.Array:
    r"""The positions that each shard of a sequence holds, for context parallelism and ring attention.

    With the sequence split into chunks $c_0, c_1, …$ of equal length, shard $s$ of $n$ holds

    - "contiguous": chunk $c_s$ of $n$ chunks;
    - "zigzag": chunks $c_s$ and $c_{2n-1-s}$ of $2n$ chunks, which gives every shard the same work in causal attention;
    - "striped": positions $s, s + n, s + 2n, …$, which also spreads the work.

    Use `x[positions.reshape(-1)]` to put a sequence x into this order and `y[jnp.argsort(positions.reshape(-1))]` to
    restore it. Inside `jax.shard_map` over an axis "context", index with `positions[jax.lax.axis_index("context")]`, or
    pass the positions as an argument that is split along its first axis.

    Args:
      length: the length of the whole sequence.
      shards: $n$, the number of shards.
      order: "contiguous", "zigzag" or "striped", as above.

    Returns:
      An int32 array of shape (shards, length / shards), with every position once.

    Raises:
      TypeError: if length or shards is not an integer.
      ValueError: if either is below 1, if length is 2³¹ or more or not a multiple of shards (of 2·shards for "zigzag"),
        or if order is unknown.

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


@compiled("shard_positions", static_argnames=("length", "shards", "order"))
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
