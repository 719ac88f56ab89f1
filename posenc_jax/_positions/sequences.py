r"""Positions in packed and padded sequences."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from posenc_jax._jax import checks, sharding
from posenc_jax._jax.arrays import unwrap_array
from posenc_jax._jax.errors import public, require
from posenc_jax._jax.workarounds import compiled

LIMIT = 2**31  # above every position


@public
def positions_from_segments(ids: ArrayLike, *, padding: int | None = None) -> jax.Array:
    r"""Positions in packed sequences, from segment ids: they restart at 0 wherever the id changes.

    $$p_i = i - \max\{j \le i : j = 0 \text{ or } s_j \ne s_{j-1}\}$$

    A segment is a run of equal ids. If an id occurs again after another id, it starts a new segment.

    Examples:
      >>> import numpy as np
      >>> import posenc_jax as pe
      >>> print(pe.positions_from_segments(np.array([7, 7, 7, 3, 3, 0, 0]), padding=0))
      [0 1 2 0 1 0 0]

    Args:
      ids: $s$, integer array of shape (..., length).
      padding: the id of padding tokens, whose positions are all 0. `None` means that no id is special: padding is then
        counted like any other segment.

    Returns:
      An int32 array of the shape of `ids`.

    Raises:
      TypeError: if ids are not an integer array, or padding is not an integer.
      ValueError: if ids have no axis or a length above 2³¹, or if concrete ids or padding do not fit into int32.

    Notes:
      Positions alone do not keep documents apart, and they do not hide padding. Mask both in attention: pass the ids to
      `attention` as query_segments and key_segments.

    Reference:
      Krell et al., "Efficient Sequence Packing without Cross-contamination", 2021, section 3.2.
    """
    ids = _parse_sequences("ids", checks.array("ids", ids, checks.INTEGERS))
    if padding is not None:
        padding = int(checks.array("padding", checks.integer("padding", padding)))
    return _positions_from_segments(ids, padding=padding)


def _parse_sequences(name: str, x: Any, shape: str = "(..., length)") -> jax.Array:
    """Returns x, along whose last axis positions can be counted."""
    require(x.ndim, "{} must have shape {}, got {}", name, shape, x.shape)
    checks.countable(name, x.shape[-1])
    checks.unsharded(name, x)
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
    r"""Positions in packed sequences, from document lengths: they restart at 0 in every document.

    $$p_i = i - \max\{e_k \le i\}, \qquad e_k = \sum_{j < k} n_j$$

    where $n_j$ are the lengths and $e_k$ is the index at which document $k$ starts.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> positions = pe.positions_from_lengths(jnp.array([3, 2]), 7)
      >>> print(positions, jnp.cumsum(positions == 0))
      [0 1 2 0 1 0 0] [1 1 1 2 2 3 4]

    Args:
      lengths: $n$, integer array of shape (..., documents). A document of length 0 has no token.
      total: the length of the pack, a Python integer. Tokens after the last document are padding, at position 0.

    Returns:
      An int32 array of shape (..., total).

    Raises:
      TypeError: if lengths are not an integer array, or total is not an integer.
      ValueError: if lengths have no axis, if total is not from 1 to 2³¹ − 1, or if lengths are concrete and one of them
        is negative or they sum to more than total.

    Notes:
      - Segment ids for `attention` are `jnp.cumsum(positions == 0, axis=-1)`. Every document then has an id of its own,
        and so has each padding token.
      - For FlashAttention's and Transformer Engine's `cu_seqlens`, which are the $e_k$, pass `jnp.diff(cu_seqlens)` as
        lengths.
      - Traced lengths cannot raise. If they sum to more than total, the result holds the first `total` tokens, each at
        its position in its document. If one length is negative, all positions of its pack are −1, a value that is
        otherwise never returned and for which `learned` returns NaN.

    Reference:
      Krell et al., "Efficient Sequence Packing without Cross-contamination", 2021, section 3.2.
    """
    total = checks.length("total", total)
    return _positions_from_lengths(parse_lengths(lengths, "total", total), total=total)


def parse_lengths(lengths: Any, name: str, total: int, multiple: int = 1, multiple_name: str = "") -> jax.Array:
    """Lengths of documents. Concrete ones must fit into `total`, the argument `name`, and be multiples."""
    lengths = checks.array("lengths", lengths, checks.INTEGERS)
    result = _parse_sequences("lengths", lengths, "(..., documents)")
    checks.require_static_size("lengths", lengths.shape, -1)
    if checks.is_concrete(lengths) and lengths.size:
        checks.within(lengths, 0, LIMIT, "lengths must be at least 0, got {}")
        host = np.asarray(lengths)  # summed on the host, in int64: int32 would wrap
        longest, wrong = int(host.sum(-1, dtype=np.int64).max()), host[host % multiple != 0][:1]
        require(longest <= total, "lengths must sum to at most {} = {}, got {}", name, total, longest)
        require(not wrong.size, "lengths must be multiples of {}, got {}", multiple_name, *wrong.tolist())
    return result


def document_ends(lengths: jax.Array) -> jax.Array:
    """The end of each document: sums that stay at 2³¹ − 1 instead of wrapping around."""
    most = np.uint32(LIMIT - 1)
    x = jnp.clip(lengths, 0, LIMIT - 1).astype(jnp.uint32)
    return lax.associative_scan(lambda a, b: lax.min(a + b, lax.full_like(a, most)), x, axis=-1).astype(jnp.int32)


def document_starts(ends: jax.Array, total: int) -> jax.Array:
    """The largest end of a document up to each index, or 0."""
    row = jnp.vectorize(lambda e: jnp.zeros(total, jnp.int32).at[e].max(e, mode="drop"), signature="(n)->(t)")
    return lax.cummax(row(ends), ends.ndim - 1)


def document_stops(ends: jax.Array, total: int) -> jax.Array:
    """The smallest end of a document above each index, or total."""

    def row(e: jax.Array) -> jax.Array:
        return jnp.full(total, total, jnp.int32).at[jnp.where(e > 0, e - 1, total)].min(e, mode="drop")

    return lax.cummin(jnp.vectorize(row, signature="(n)->(t)")(ends), ends.ndim - 1, reverse=True)


@compiled("positions_from_lengths", static_argnames=("total",))
def _positions_from_lengths(lengths: jax.Array, *, total: int) -> jax.Array:
    def positions(lengths: jax.Array) -> jax.Array:
        ends = document_ends(lengths)
        index = lax.broadcasted_iota(jnp.int32, (*ends.shape[:-1], total), ends.ndim - 1)
        last, negative = ends.max(-1, keepdims=True, initial=0), (lengths < 0).any(-1, keepdims=True)
        return jnp.where(negative, -1, jnp.where(index < last, index - document_starts(ends, total), 0))

    return sharding.sharded_as([lengths], positions, lengths)


@public
def positions_from_mask(mask: ArrayLike) -> jax.Array:
    r"""Positions in padded sequences, from a mask of tokens: padding is not counted.

    $$p_i = m_i \left(\sum_{j \le i} m_j - 1\right)$$

    Examples:
      >>> import numpy as np
      >>> import posenc_jax as pe
      >>> print(pe.positions_from_mask(np.array([[0, 0, 1, 1, 1], [1, 1, 0, 0, 0]])))
      [[0 0 0 1 2]
       [0 1 0 0 0]]

    Args:
      mask: $m$, array of shape (..., length): booleans, or the integers 0 and 1 as in Hugging Face's `attention_mask`.
        True and 1 mark tokens.

    Returns:
      An int32 array of the shape of the mask. In a traced integer mask, every nonzero value counts as a token.

    Raises:
      TypeError: if the mask is not a boolean or integer array. Float masks, which are added to scores, are rejected.
      ValueError: if the mask has no axis or a length above 2³¹, or if concrete integers are not all 0 or 1.

    Notes:
      - The first token is at position 0, whether the padding is on the left, on the right or in between. The next token
        to decode is at `mask.sum(-1)`.
      - Padding is at position 0 too, which every encoding and every table accepts. Attention must therefore mask
        padding: pass the mask to `attention`, as integers, as key_segments, and ones as query_segments. No check can
        tell padding on the left from tokens that share a position.

    Reference:
      Wolf et al., "Transformers", 2020: `position_ids` in generation with left padding.
    """
    return _positions_from_mask(_parse_sequences("mask", parse_mask(mask)))


def parse_mask(mask: Any) -> Any:
    """Booleans or integers. Concrete integers must be 0 or 1."""
    mask = unwrap_array(mask)
    if checks.is_array(mask) and mask.dtype == np.bool_:
        return mask
    mask = checks.array("mask", mask, checks.Kind("a boolean or integer array", floats=False))
    checks.within(mask, 0, 1, "mask must hold 0 and 1, got {} to {}")
    return mask


@compiled("positions_from_mask")
def _positions_from_mask(mask: jax.Array) -> jax.Array:
    tokens = mask != jnp.zeros((), mask.dtype)
    return jnp.where(tokens, lax.cumsum(tokens.astype(jnp.int32), mask.ndim - 1) - 1, 0)
