"""The mask of a Flax attention layer: an array, or segments, which take memory linear in the sequence length."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from posenc_jax._attention.parser import is_on_host, parse_pair, reject_returning_positions
from posenc_jax._jax import checks
from posenc_jax._jax.arrays import unwrap_array
from posenc_jax._jax.errors import invalid, require, require_type


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SegmentMask:
    """A mask for Flax's attention layers: each token sees only its own segment, such as a document in a packed row.

    Examples:
      >>> import functools
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> from flax import nnx
      >>> from posenc_jax.nnx import ALiBi, SegmentMask, positional_attention
      >>> tiles = functools.partial(pe.attention, causal=True)
      >>> attend = positional_attention(bias=ALiBi(2), attention=tiles)
      >>> settings = {"attention_fn": attend, "decode": False, "rngs": nnx.Rngs(0)}
      >>> layer = nnx.MultiHeadAttention(2, 16, **settings)
      >>> segments = jnp.array([[1, 1, 1, 2, 2]])  # two documents in one row
      >>> x = jnp.ones((1, 5, 16))
      >>> packed, alone = layer(x, mask=SegmentMask(segments)), layer(x[:, 3:])
      >>> bool(jnp.allclose(packed[:, 3:], alone, atol=1e-6))
      True

    Args:
      query_segments: integer array of shape (..., queries): one number per document, and one more for padding.
      key_segments: integer array of shape (..., keys), for other keys, as in cross-attention. None means that keys have
        the segments of the queries.

    Notes:
      - Pass it to a layer whose `attention_fn` is made by `positional_attention`. With
        `attention=posenc_jax.attention`, it takes memory linear in the sequence length. Otherwise it becomes the matrix
        `nnx.make_attention_mask(segments, segments, jnp.equal)`.
      - It also becomes a matrix where a layer or `nnx.combine_masks` combines it with another mask, as Flax's layers do
        in decoding.
    """

    query_segments: ArrayLike
    key_segments: ArrayLike | None = None

    def __jax_array__(self) -> jax.Array:
        """The matrix, of shape (..., 1, queries, keys)."""
        keys = self.query_segments if self.key_segments is None else self.key_segments
        return (jnp.asarray(self.query_segments)[..., :, None] == jnp.asarray(keys)[..., None, :])[..., None, :, :]

    @property
    def ndim(self) -> int:
        """The number of axes of the matrix."""
        return np.ndim(self.query_segments) + 2


def parse(mask: Any, query: jax.Array, key: jax.Array) -> Any:
    """The mask as an array, as a `SegmentMask` that fits query and key, or None."""
    if isinstance(mask, SegmentMask):
        keys, sizes = mask.key_segments, (query.shape[-3], key.shape[-3])
        message = "key_segments must be given to SegmentMask where queries and keys differ in number, {} and {}"
        require(keys is not None or sizes[0] == sizes[1], message, *sizes)
        keys = mask.query_segments if keys is None else keys
        return SegmentMask(*parse_pair("segments", (mask.query_segments, keys), query, key))
    mask = unwrap_array(mask)
    if mask is None:
        return None
    require_type(isinstance(mask, (jax.Array, np.ndarray)), "mask", "an array or a SegmentMask", mask)
    *batch, queries, heads, _ = query.shape
    shape = *batch, heads, queries, key.shape[-3]
    hint = "; for (batch, keys) pass mask[:, None, None, :]" if mask.ndim == 2 else ""
    message = "mask must broadcast to the scores, (..., heads, queries, keys) = {}, got shape {}{}"
    require(checks.broadcasts(mask.shape, shape), message, shape, mask.shape, hint)
    is_step = queries < key.shape[-3]  # which would wait for the device
    if jnp.issubdtype(mask.dtype, jnp.floating) and checks.is_concrete(mask) and (is_on_host(mask) or not is_step):
        least = np.asarray(mask, np.float32).min(initial=0)  # Flax makes masks of 0 and 1 in float32
        require(least >= 0, "mask must be 1 where a query sees a key, and 0 where not, got {}; a bias is added", least)
    return mask


def is_by_query(mask: Any, queries: int) -> bool:
    """Whether the mask may hide a key from one query and not from another."""
    return isinstance(mask, SegmentMask) or mask is not None and mask.ndim > 1 and mask.shape[-2] == queries


def for_flax(mask: Any) -> Any:
    """The mask as an array that broadcasts to (..., heads, queries, keys)."""
    return jnp.asarray(mask) if isinstance(mask, SegmentMask) else mask


def options(mask: Any) -> dict[str, Any]:
    """The mask as options of `posenc_jax.attention`."""
    if mask is None:
        return {}
    if isinstance(mask, SegmentMask):
        return {"query_segments": mask.query_segments, "key_segments": mask.key_segments}
    return {"mask": mask if mask.dtype == np.bool_ else mask.astype(bool)}


def require_cache(query: Any, key: Any, positions: jax.Array, mask: Any, is_causal: Any) -> None:
    """Raises unless the keys may be Flax's cache: a step has one query, at the same slot in all rows, and a mask.

    With several queries, without a mask or with per-row positions, the keys are not a cache: their positions are
    unknown.
    """
    sizes = query.shape[-3], key.shape[-3]
    if sizes[0] != 1 or mask is None or isinstance(mask, SegmentMask):
        differ = "where queries and keys differ in number, {} and {}".format(*sizes)
        line = "bind them, functools.partial(attention_fn, input_positions=…, key_positions=…)"
        raise invalid(f"key_positions must be given {differ} (Flax's cache has one query and a mask), got None: {line}")
    other = "if the keys are Flax's cache (for others, give key_positions)"
    require(
        positions.size == 1, "input_positions must be one slot for all rows {}, got shape {}", other, positions.shape
    )
    is_slot = jnp.issubdtype(positions.dtype, jnp.integer)
    require(is_slot, "input_positions must be an integer, the slot, {}, got {}", other, positions.dtype)
    require(
        not is_causal, "is_causal must be False with one query, from which it hides all keys but the first, got True"
    )


def bound_masks(attention: Any) -> tuple[bool, tuple[int | None, int | None]]:
    """Whether `attention` binds `causal`, and the window that it binds."""
    bound = getattr(attention, "keywords", {})
    window = bound.get("window")
    return bool(bound.get("causal")), window if isinstance(window, tuple) and len(window) == 2 else (None, None)


def require_indices(attention: Any, query: Any, key: Any) -> None:
    """Raises if `attention` binds a mask by position, and the indices of queries among other keys are unknown."""
    sizes = query.shape[-3], key.shape[-3]
    message = (
        "attention must bind neither causal nor window where queries and keys differ in number, {} and {}, and "
        "positions are times or coordinates: pass a mask"
    )
    require(sizes[0] == sizes[1] or bound_masks(attention) == (False, (None, None)), message, *sizes)


def require_apart(attention: Any, queries: Any, keys: Any, mask: Any, is_causal: Any) -> None:
    """Raises if concrete positions restart, as in packed rows, and no mask may keep documents apart.

    Under a causal mask, by position or by index, a document would see those before it in its row.
    """
    causal, (left, right) = bound_masks(attention)
    if not (is_causal or causal or right is not None) or is_by_query(mask, queries.shape[-1]):
        return
    remedy = (
        "mask=SegmentMask(segments) for documents and padding (ones, if all may see each other), or a mask of queries "
        "and keys"
    )
    name = "input_positions" if keys is queries else "key_positions"
    reject_returning_positions(queries, keys, mask, left, name, remedy)
