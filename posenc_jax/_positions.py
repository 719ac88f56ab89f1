r"""Positions of packed, padded, two-dimensional and sharded sequences, as int32."""

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

from posenc_jax import _checks, _mesh
from posenc_jax._checks import invalid, public, require
from posenc_jax._xla import compiled

LIMIT = 2**31


@public
def positions_from_segments(ids: ArrayLike, *, padding: int | None = None) -> jax.Array:
    r"""Counts positions in packed sequences, restarting at 0 wherever the id changes.

    $$p_i = i - \max\{j \le i : j = 0 \text{ or } s_j \ne s_{j-1}\}$$

    A segment is a run of equal ids, whatever their values. An id that returns after another id starts a new segment.

    Args:
      ids: $s$, integers of shape (..., length).
      padding: the id of padding tokens, whose positions are all 0. With `None`, no id is special, and padding is
        counted as a segment. In both cases attention must mask padding, and `ids` shows where it is. The ids are also
        the segments by which `attention` keeps documents apart: positions alone do not.

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


def _sequences(name: str, x: Any, shape: str = "(..., length)") -> jax.Array:
    """Checks that positions can be counted along the last axis of x."""
    require(x.ndim, "{} must have shape {}, got {}", name, shape, x.shape)
    _checks.countable(name, x.shape[-1])
    _checks.unsharded(name, x)
    return x


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
def positions_from_lengths(lengths: ArrayLike, total: int) -> jax.Array:
    r"""Counts positions in packed sequences, restarting at 0 after each document's length.

    $$p_i = i - \max\{e_k \le i\}, \qquad e_k = \sum_{j < k} n_j$$

    With $e$ (FlashAttention's and Transformer Engine's `cu_seqlens`) instead of the lengths, pass
    `jnp.diff(cu_seqlens)`. Segment ids for `attention` are `jnp.cumsum(positions == 0, axis=-1)`: every document begins
    at 0, and each token of the padding is a segment of its own.

    Args:
      lengths: $n$, integers of shape (..., documents). A document of length 0 has no token.
      total: the static length of the pack. After the last document it is padding, at position 0.

    Returns:
      An int32 array of shape (..., total). Traced lengths cannot raise. If they sum to more than total, the pack holds
      the first `total` tokens, each at its position in its document. If one of them is negative, all positions of its
      pack are −1, which no other pack contains and for which `learned` returns NaN.

    Raises:
      TypeError: if lengths are not an integer array, or total is not an integer.
      ValueError: if lengths have no axis, if total is not from 1 to 2³¹ − 1, or if lengths are known and one of them is
        negative or they sum to more than total.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> positions = pe.positions_from_lengths(jnp.array([3, 2]), 7)
      >>> print(positions, jnp.cumsum(positions == 0))
      [0 1 2 0 1 0 0] [1 1 1 2 2 3 4]

    Reference:
      Krell et al., "Efficient Sequence Packing without Cross-contamination", 2021, section 3.2.
    """
    total = _checks.length("total", total)
    return _positions_from_lengths(_parse_lengths(lengths, "total", total), total=total)


def _parse_lengths(lengths: Any, name: str, total: int, multiple: int = 1, of: str = "") -> jax.Array:
    """Lengths of documents; known ones must fit into `total`, the argument `name`, and be multiples, called `of`."""
    lengths = _checks.array("lengths", lengths, _checks.INTEGERS)
    result = _sequences("lengths", lengths, "(..., documents)")
    _checks.known_size("lengths", lengths.shape, -1)
    if _checks.known(lengths) and lengths.size:
        _checks.within(lengths, 0, LIMIT, "lengths must be at least 0, got {}")
        known = np.asarray(lengths)  # on the host, in int64: int32 would wrap
        used, wrong = int(known.sum(-1, dtype=np.int64).max()), known[known % multiple != 0][:1]
        require(used <= total, "lengths must sum to at most {} = {}, got {}", name, total, used)
        require(not wrong.size, "lengths must be multiples of {}, got {}", of, *wrong.tolist())
    return result


def _ends(lengths: jax.Array) -> jax.Array:
    """Where each document ends: sums that stay at 2³¹ − 1 instead of wrapping around."""
    most = np.uint32(LIMIT - 1)
    x = jnp.clip(lengths, 0, LIMIT - 1).astype(jnp.uint32)
    return lax.associative_scan(lambda a, b: lax.min(a + b, lax.full_like(a, most)), x, axis=-1).astype(jnp.int32)


def _starts(ends: jax.Array, total: int) -> jax.Array:
    """The largest end of a document up to each place, or 0."""
    row = jnp.vectorize(lambda e: jnp.zeros(total, jnp.int32).at[e].max(e, mode="drop"), signature="(n)->(t)")
    return lax.cummax(row(ends), ends.ndim - 1)


def _stops(ends: jax.Array, total: int) -> jax.Array:
    """The smallest end of a document above each place, or total."""

    def row(e: jax.Array) -> jax.Array:
        return jnp.full(total, total, jnp.int32).at[jnp.where(e > 0, e - 1, total)].min(e, mode="drop")

    return lax.cummin(jnp.vectorize(row, signature="(n)->(t)")(ends), ends.ndim - 1, reverse=True)


@compiled("positions_from_lengths", static_argnames=("total",))
def _positions_from_lengths(lengths: jax.Array, *, total: int) -> jax.Array:
    def positions(lengths: jax.Array) -> jax.Array:
        ends = _ends(lengths)
        index = lax.broadcasted_iota(jnp.int32, (*ends.shape[:-1], total), ends.ndim - 1)
        last, negative = ends.max(-1, keepdims=True, initial=0), (lengths < 0).any(-1, keepdims=True)
        return jnp.where(negative, -1, jnp.where(index < last, index - _starts(ends, total), 0))

    return _mesh.sharded_as([lengths], positions, lengths)


@public
def positions_from_mask(mask: ArrayLike) -> jax.Array:
    r"""Counts positions in padded sequences, skipping the padding.

    $$p_i = m_i \left(\sum_{j \le i} m_j - 1\right)$$

    The first token is at 0, whether the padding is on the left, on the right or in between. Padding is also at 0, a
    position that every encoding and every table has. Attention must mask it, or its position lets every query see it:
    pass `attention` the mask, as integers, as key_segments, and ones as query_segments. No check can tell padding on
    the left from tokens that share a position. The next token to decode is at `mask.sum(-1)`.

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
    return _positions_from_mask(_sequences("mask", parse_mask(mask)))


def parse_mask(mask: Any) -> Any:
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
      >>> columns_first = pe.grid_positions((14, 24), order="column")
      >>> mae = pe.sinusoidal(columns_first, 384 // 2, layout="half").reshape(-1, 384)
      >>> encoding.shape == mae.shape == (14 * 24, 384)
      True

    Reference:
      He et al., "Masked Autoencoders Are Scalable Vision Learners", 2022, appendix A.1, and its `pos_embed.py`.
    """
    _checks.one_of("order", order, ("row", "column"))
    shape = _checks.positive_ints("shape", shape)
    leading, least = _checks.integer("leading", leading, 0), 2 if order == "column" else 1
    require(len(shape) >= least, "shape must have more sides for order={!r}, got {}", order, shape)
    if leading + math.prod(shape) >= LIMIT:
        raise invalid(f"shape must have fewer than 2³¹ tokens, got {shape} after leading={leading}")
    return _grid_positions(shape=shape, order=order, leading=leading)


@compiled("grid_positions", static_argnames=("shape", "order", "leading"))
def _grid_positions(*, shape: tuple[int, ...], order: str, leading: int) -> jax.Array:
    axes = list(range(len(shape)))
    if order == "column":
        axes[-2:] = axes[:-3:-1]
    grid = jnp.stack([lax.broadcasted_iota(jnp.int32, shape, axis) for axis in axes], -1)
    return jnp.pad(grid.reshape(-1, len(shape)), ((leading, 0), (0, 0)))


@public
def shard_positions(
    length: int,
    shards: int,
    *,
    order: Literal["contiguous", "zigzag", "striped"] = "contiguous",
    lengths: ArrayLike | None = None,
) -> jax.Array:
    r"""The places of a sequence that each shard holds, for context parallelism and ring attention.

    With the sequence split into chunks $c_0, c_1, …$ of equal length, shard $s$ of $n$ holds

    - "contiguous": chunk $c_s$ of $n$ chunks;
    - "zigzag": chunks $c_s$ and $c_{2n-1-s}$ of $2n$ chunks, which gives every shard the same work in causal attention;
    - "striped": places $s, s + n, s + 2n, …$, which also spreads the work.

    With `lengths`, the sequence is a pack, and each shard holds these chunks of every document, one document after the
    other, and of the padding after the last, as in Transformer Engine and Megatron.

    Use `x[places.reshape(-1)]` to put a sequence x into this order and `y[jnp.argsort(places.reshape(-1))]` to restore
    it. Without lengths, places are positions. In a pack, each document counts from 0: the positions are
    `positions_from_lengths(lengths, length)[places]`. Inside `jax.shard_map` over an axis "context", index with
    `places[jax.lax.axis_index("context")]`, or pass the places as an argument that is split along its first axis.

    Args:
      length: the length of the whole sequence.
      shards: $n$, the number of shards.
      order: "contiguous", "zigzag" or "striped", as above.
      lengths: the lengths of the documents of a pack, integers of shape (..., documents) that sum to at most `length`.
        With leading axes, each pack has places of its own, for `jnp.take_along_axis`.

    Returns:
      An int32 array of shape (shards, length / shards), or (..., shards, length / shards) with lengths. It holds every
      place once. Traced lengths cannot raise; a pack in which they do not fit is ordered as if it were one document,
      which is no less right, but shares the work differently.

    Raises:
      TypeError: if length or shards is not an integer, or lengths are not an integer array.
      ValueError: if length or shards is below 1, if length is 2³¹ or more or not a multiple of shards (of 2·shards for
        "zigzag"), if known lengths are not such multiples, are negative or sum to more than length, or if order is
        unknown.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> pe.shard_positions(8, 2).tolist()
      [[0, 1, 2, 3], [4, 5, 6, 7]]
      >>> pe.shard_positions(8, 2, order="zigzag").tolist()
      [[0, 1, 6, 7], [2, 3, 4, 5]]
      >>> pe.shard_positions(8, 2, order="striped").tolist()
      [[0, 2, 4, 6], [1, 3, 5, 7]]
      >>> lengths = jnp.array([4, 8])
      >>> places = pe.shard_positions(12, 2, order="zigzag", lengths=lengths)
      >>> places.tolist()
      [[0, 3, 4, 5, 10, 11], [1, 2, 6, 7, 8, 9]]
      >>> pe.positions_from_lengths(lengths, 12)[places].tolist()
      [[0, 3, 0, 1, 6, 7], [1, 2, 2, 3, 4, 5]]

    Reference:
      Liu et al., "Ring Attention", 2023; Brandon et al., "Striped Attention", 2023, section 3; zigzag as in Llama 3,
      Grattafiori et al., 2024, section 3.3.2; of packs as in Transformer Engine's `thd_get_partitioned_indices`.
    """
    _checks.one_of("order", order, ("contiguous", "zigzag", "striped"))
    length, shards = _checks.positive_int("length", length), _checks.positive_int("shards", shards)
    multiple = f"2·shards = {2 * shards} for order='zigzag'" if order == "zigzag" else f"shards = {shards}"
    chunks = 2 * shards if order == "zigzag" else shards
    require(length % chunks == 0, "length must be a multiple of {}, got {}", multiple, length)
    require(length < LIMIT, "length must be below 2³¹, got {}", length)
    if lengths is not None:
        lengths = _parse_lengths(lengths, "length", length, chunks, multiple)
    return _shard_positions(lengths, length=length, shards=shards, order=order)


@compiled("shard_positions", static_argnames=("length", "shards", "order"))
def _shard_positions(lengths: jax.Array | None, *, length: int, shards: int, order: str) -> jax.Array:
    # Computed from the index alone, so that indexing by device compiles to one row.
    part = length // shards
    start, stop, batch = 0, part, ()
    if lengths is not None:
        chunks, batch = 2 * shards if order == "zigzag" else shards, lengths.shape[:-1]
        spans = functools.partial(_spans_of_shard, length=length, shards=shards, chunks=chunks)
        start, stop = (x[..., None, :] for x in _mesh.sharded_as(([lengths], [lengths]), spans, lengths))
    shape = (*batch, shards, part)
    shard, index = (lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (len(batch), len(batch) + 1))
    size, offset = stop - start, index - start
    if order == "contiguous":
        return shards * start + size * shard + offset
    if order == "striped":
        return shards * index + shard
    half = size // 2
    return shards * start + offset + jnp.where(offset < half, half * shard, half * (2 * shards - 2 - shard))


def _spans_of_shard(lengths: jax.Array, length: int, shards: int, chunks: int) -> tuple[jax.Array, jax.Array]:
    """Where the document at each place of a shard starts and stops there; one document if the lengths do not fit."""
    ends, part = _ends(lengths), length // shards
    fits = ((lengths >= 0) & (lengths % chunks == 0) & (ends <= length)).all(-1, keepdims=True)
    ends = jnp.where(fits, ends // shards, part)
    return _starts(ends, part), _stops(ends, part)
