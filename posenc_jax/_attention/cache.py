"""A KV cache that stores keys, values, and the position of the token in each slot."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from posenc_jax._attention.parser import is_on_host, parse_window
from posenc_jax._jax import checks
from posenc_jax._jax.errors import public, require, require_type
from posenc_jax._jax.sharding import sharded_as
from posenc_jax._jax.workarounds import compiled

EMPTY = np.iinfo(np.int32).max  # the position of empty slots: after every query, so no query sees them
LOST = np.iinfo(np.int32).min  # the position of all slots in a row that has lost a token


@dataclasses.dataclass(frozen=True, eq=False)
class KVCache:
    """Keys, values and positions of past tokens. `kv_cache` creates a cache, `extend` adds tokens.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> cache = pe.kv_cache(batch=1, slots=4, heads=2, head_dim=8)
      >>> cache = cache.extend(jnp.ones((1, 3, 2, 8)), jnp.ones((1, 3, 2, 8)), jnp.arange(3))
      >>> beams = jax.tree.map(lambda x: jnp.repeat(x, 2, axis=0), cache)
      >>> beams.keys.shape
      (2, 4, 2, 8)

    Args:
      keys: float array of shape (batch, slots, heads, head_dim), or (batch, layers, slots, heads, head_dim).
      values: float array of shape (..., slots, heads, value_dim).
      positions: int32 array of shape (batch, slots), or (batch, layers, slots). Empty slots hold the greatest int32.
      window: (left, right), as in `attention`.

    Notes:
      - A cache is a pytree of arrays. It works with `jax.jit` and donation, `jax.lax.scan`, `jax.vmap` and checkpoints.
      - Attention masks according to the position of each slot. Rows may therefore have different lengths, and slots
        that were never written are never seen.
      - If a call of `extend` begins at an earlier position, it removes the tokens at that position and after it, such
        as rejected drafts.
    """

    keys: jax.Array
    values: jax.Array
    positions: jax.Array
    window: tuple[int | None, int | None]

    @public
    def extend(
        self,
        key: ArrayLike,
        value: ArrayLike,
        positions: ArrayLike,
        *,
        layer: ArrayLike | None = None,
        slots: ArrayLike | None = None,
    ) -> KVCache:
        """Returns the cache with more tokens. A token at position p goes to slot p modulo the number of slots.

        Args:
          key: float array of shape (batch, tokens, heads, head_dim) and the cache's dtype, with any number of tokens.
          value: float array of shape (batch, tokens, heads, value_dim) and the cache's dtype.
          positions: integer array of shape (tokens,) or (batch, tokens), consecutive in each row. The first is the next
            position of the row, or an earlier one to remove tokens. In an empty row it may be any position but −2³¹.
            The greatest int32 marks padding, which is not stored and may be anywhere in a row.
          layer: the index of the layer, for a cache of several layers.
          slots: integer array of shape (tokens,) or (batch, tokens), where to store the tokens instead, whatever their
            positions.

        Returns:
          A new cache.

        Raises:
          TypeError: if key or value has another dtype than the cache, or positions, layer or slots are not integers.
          ValueError: if shapes do not fit, or the cache has too few slots: with a window, a call needs left + tokens
            slots, otherwise one slot per token.
          ValueError: if a row skips a position, would lose a key that its queries see, or has a slot out of range, and
            the values are concrete on a CPU. If they are traced or on another device, all keys of that row become NaN
            instead, and so do its outputs.

        Notes:
          `jax.tree.map(lambda x: x[:, layer], cache)` is the cache of one layer.
        """
        key, value = self._parse("key", key), self._parse("value", value)
        (batch, *_, size), tokens, left = self.positions.shape, key.shape[1], self.window[0]
        require(tokens, "key must have at least one token, got shape {}", key.shape)
        checks.unsharded("the cache's positions", self.positions)
        positions = _parse_rows("positions", positions, batch, tokens)
        if slots is None:
            needed = tokens if left is None else left + tokens
            message = "a call of {} tokens needs {} slots{}, and the cache has {}"
            require(needed <= size, message, tokens, needed, "" if left is None else f" with a window of {left}", size)
        else:
            slots = _parse_rows("slots", slots, batch, tokens)
        layers = self.keys.shape[1] if self.keys.ndim == 5 else None
        if layers is not None:
            require(layer is not None, "layer must be given for a cache of {} layers", layers)
            layer = checks.zero_dimensional("layer", layer, checks.INTEGERS)
            checks.within(layer, 0, layers - 1, f"layer must be from 0 to {layers - 1}, got {{}}")
        else:
            require(layer is None, "layer must be None for a cache without layers, got {}", layer)
        arrays, fits = _extend(self, key, value, positions, layer, slots)
        if checks.is_concrete(fits) and is_on_host(fits):
            message = "slots must be from 0 to {}"
            if slots is None:
                message = "positions must go on one by one, and what queries see must fit into {} slots"
            row, size = int(np.asarray(fits).argmin()), size if slots is None else size - 1
            require(np.asarray(fits).all(), message + "; they do not in row {}", size, row)
        return KVCache(*arrays, window=self.window)

    def seen_from(self, positions: ArrayLike) -> dict[str, Any]:
        """Arguments of `attention` for queries at these positions: causal, and in the window of the cache."""
        return {
            "query_positions": positions,
            "key_positions": self.positions,
            "causal": True,
            "window": self.window,
        }

    def _parse(self, name: str, x: Any) -> jax.Array:
        x, held = checks.floats(name, x, ("batch", "tokens", "heads", "width")), getattr(self, f"{name}s")
        require_type(x.dtype == held.dtype, name, f"an array of the cache's dtype, {held.dtype}", x)
        shape = (held.shape[0], x.shape[1], *held.shape[-2:])
        require(x.shape == shape, "{} must have shape {}, got {}", name, shape, x.shape)
        return x


def _parse_rows(name: str, x: Any, batch: int, tokens: int) -> jax.Array:
    x = checks.on_device(checks.array(name, x, checks.INTEGERS))
    shapes = ((tokens,), (batch, tokens))
    require(x.shape in shapes, "{} must have shape {} or {}, got {}", name, *shapes, x.shape)
    return x


@compiled("extend")
def _extend(
    cache: KVCache, key: jax.Array, value: jax.Array, positions: jax.Array, layer: Any, slots: Any
) -> tuple[list[jax.Array], jax.Array]:
    """The arrays of the cache with these tokens, and whether each row may take them."""
    arrays = cache.keys, cache.values, cache.positions
    first = cache.positions if layer is None else cache.positions[:, 0]
    like = tuple([x] for x in (*arrays, first[:, 0]))
    extended = functools.partial(_extended, cache.window[0])
    *arrays, fits = sharded_as(like, extended, *arrays, key, value, positions, layer, slots)
    return arrays, fits


def _extended(
    left: int | None,
    keys: jax.Array,
    values: jax.Array,
    all_held: jax.Array,
    key: jax.Array,
    value: jax.Array,
    positions: jax.Array,
    layer: Any,
    slots: Any,
) -> tuple[jax.Array, ...]:
    shape, size, is_layer = key.shape[:2], all_held.shape[-1], True
    if layer is not None:
        is_layer = (0 <= layer) & (layer < all_held.shape[1])
        layer = jnp.where(is_layer, layer, 0).astype(jnp.int32)
    held = all_held if layer is None else lax.dynamic_index_in_dim(all_held, layer, 1, keepdims=False)
    positions = jnp.broadcast_to(positions, shape)
    narrow, is_token, oldest = positions.astype(jnp.int32), positions != EMPTY, jnp.min(held, 1)
    # No position wraps in the cast from a wider dtype.
    fits = (narrow.astype(positions.dtype) == positions) & ((narrow < 0) == (positions < 0)) & is_layer
    fits &= (oldest != LOST)[:, None]
    if slots is None:
        slots = narrow % size
        # The token of a row after n others is at its first position and n.
        after = jnp.cumsum(is_token, 1, jnp.int32) - 1
        first = jnp.min(jnp.where(is_token, narrow, EMPTY), 1)
        fits &= (narrow - after == first[:, None]) & (narrow != LOST)
        # The first is at most one more than the newest of the row, unless the row is empty.
        newest = jnp.max(jnp.where(held == EMPTY, LOST, held), 1)
        fits &= ((first <= newest + 1) | (oldest == EMPTY))[:, None]
        # The slots hold all from the oldest key that a query sees to the newest.
        if left is not None:
            oldest = first - left  # where it wraps, nothing is older than the first
        span = jnp.maximum(newest, first + after[:, -1]) - jnp.minimum(oldest, first)
        fits &= (span.astype(jnp.uint32) < size)[:, None]
        held = jnp.where(held < first[:, None], held, EMPTY)  # takes back what stood there
    else:
        slots = jnp.broadcast_to(slots, shape)
        fits &= (0 <= slots) & (slots < size)
        slots = slots.astype(jnp.int32)
    fits = jnp.all(fits | ~is_token, 1)
    key = jnp.where(fits[:, None, None, None], key, jnp.asarray(math.nan, key.dtype))
    # A lost row's NaN lands in a slot that exists, and padding in none.
    slots = jnp.where(is_token, jnp.where(fits[:, None], slots, narrow % size), size)
    held = _write(jnp.where(fits[:, None], held, LOST), narrow, slots, None)
    if layer is not None:
        held = lax.dynamic_update_index_in_dim(all_held, held, layer, 1)
    return _write(keys, key, slots, layer), _write(values, value, slots, layer), held, fits


def _write(x: jax.Array, new: jax.Array, slots: jax.Array, layer: Any) -> jax.Array:
    """An array with new rows (batch, tokens, …) in these slots, of a layer if it has some.

    XLA splits the batch of this scatter over devices, and TPUs compile it without a loop, as the batch comes first.
    """
    at = (lambda s: s) if layer is None else (lambda s: (layer, s))
    put = lambda x, new, s: x.at[at(s)].set(new, mode="drop", wrap_negative_indices=False)  # noqa: E731
    return jax.vmap(put)(x, new, slots)


@public
def kv_cache(
    batch: int,
    slots: int,
    heads: int,
    head_dim: int,
    value_dim: int | None = None,
    *,
    layers: int | None = None,
    window: tuple[int | None, int | None] = (None, None),
    dtype: DTypeLike = jnp.float32,
    sharding: NamedSharding | None = None,
) -> KVCache:
    r"""An empty cache of keys, values and their positions, for decoding.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> cache = pe.kv_cache(batch=2, slots=8, heads=4, head_dim=16)
      >>> def step(cache, q, k, v, p):
      ...     q, k = (pe.rotary(x, p, head_axis=-2) for x in (q, k))
      ...     cache = cache.extend(k, v, p)
      ...     return cache, pe.attention(q, cache.keys, cache.values, **cache.seen_from(p))
      >>> tokens = jnp.ones((2, 3, 4, 16))
      >>> cache, out = step(cache, tokens, tokens, tokens, jnp.arange(3))
      >>> token = tokens[:, :1]  # in the second row, the last token was a rejected draft
      >>> cache, out = step(cache, token, token, token, jnp.array([[3], [2]]))
      >>> cache.positions[:, 2:5]
      Array([[         2,          3, 2147483647],
             [         2, 2147483647, 2147483647]], dtype=int32)

    Args:
      batch: the number of rows.
      slots: the number of tokens that a row can hold, drafts included. With a window, left + $n$ slots are enough for
        calls with $n$ tokens.
      heads: the number of key heads.
      head_dim: the number of features of a key.
      value_dim: the number of features of a value. None means head_dim; 0 means that values are slices of the keys.
      layers: the number of layers; None for a cache of one layer, without an axis of layers.
      window: (left, right), as in `attention`: queries at $p$ see keys from $p - \text{left}$. None means no bound.
      dtype: the dtype of keys and values.
      sharding: the sharding of the keys, which also determines the sharding of values and positions.

    Returns:
      A `KVCache` whose slots are empty.

    Raises:
      TypeError: if a size is not an integer, or dtype is not a float dtype.
      ValueError: if a size is not positive, slots is not above left, or right is not None or 0.

    See Also:
      The page "Inference" (sliding windows, drafts, prefixes, eviction).

    Reference:
      Pope et al., "Efficiently Scaling Transformer Inference", 2022, section 3.3; Jiang et al., "Mistral 7B", 2023,
      section 2 (rolling buffer).
    """
    left, right = parse_window(window)
    require(right in (None, 0), "window[1] must be None or 0, as queries see no later keys, got {}", right)
    slots = checks.length("slots", slots)
    require(left is None or left < slots, "slots must be more than window[0] = {}, got {}", left, slots)
    batch, axis = checks.size("batch", batch), () if layers is None else (checks.size("layers", layers),)
    leading = (batch, *axis, slots, checks.size("heads", heads))
    head_dim = checks.size("head_dim", head_dim)
    value_dim = head_dim if value_dim is None else checks.size("value_dim", value_dim, 0)
    dtype, of_positions = checks.floating_dtype("dtype", dtype), None
    if sharding is not None:
        require_type(isinstance(sharding, NamedSharding), "sharding", "a NamedSharding", sharding)
        of_positions = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[: len(axis) + 2]))
    # One program makes all three arrays. Sharded ones are made outside it, where their sharding is more than a hint.
    make = _compiled_empty if sharding is None else _empty
    return KVCache(*make(leading, (head_dim, value_dim), dtype, sharding, of_positions), window=(left, right))


def _empty(
    leading: tuple[int, ...], widths: tuple[int, int], dtype: Any, sharding: Any, of_positions: Any
) -> tuple[jax.Array, ...]:
    keys, values = (jnp.zeros((*leading, width), dtype, device=sharding) for width in widths)
    return keys, values, jnp.full(leading[:-1], EMPTY, jnp.int32, device=of_positions)


_compiled_empty = compiled("kv_cache", static_argnums=range(5))(_empty)

jax.tree_util.register_dataclass(KVCache, ("keys", "values", "positions"), ("window",))
jax.export.register_pytree_node_serialization(
    KVCache,
    serialized_name="posenc_jax.KVCache",
    serialize_auxdata=lambda data: json.dumps(data).encode(),
    deserialize_auxdata=lambda text: tuple(map(tuple, json.loads(text))),
)
