"""Grouped-query attention with RoPE and a cache: a Flax layer to copy, or to import from this folder.

Without a cache it attends within x. With one, x is the next tokens: a prompt or a chunk of it, one token, or drafts.
`decoder.py` builds its layers on it.
"""

from __future__ import annotations

# --8<-- [start:layer]
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import posenc_jax as pe


class GroupedQueryAttention(nnx.Module):
    """`rotate(x, positions)` rotates queries and keys (batch, tokens, heads, head_dim)."""

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        rotate: Callable[[jax.Array, jax.Array], jax.Array],
        *,
        window: tuple[int | None, int | None] = (None, None),
        scale: float | None = None,
        use_bias: bool = False,
        dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        options = {"use_bias": use_bias, "dtype": dtype, "param_dtype": dtype}
        linear = functools.partial(nnx.Linear, **options, rngs=rngs)
        self.q_proj, self.o_proj = linear(width, heads * head_dim), linear(heads * head_dim, width)
        self.k_proj, self.v_proj = (linear(width, kv_heads * head_dim) for _ in range(2))
        self.head_dim, self.rotate, self.options = head_dim, rotate, {"window": window, "scale": scale}

    def __call__(
        self, x: jax.Array, positions: jax.Array, cache: pe.KVCache | None = None, **options: Any
    ) -> tuple[jax.Array, pe.KVCache | None]:
        """Takes x (batch, tokens, width) and its positions; returns the same shape, and the cache."""
        y, cache = attend(*self.heads_of(x, positions), positions, cache, **self.options, **options)
        return self.o_proj(y.reshape(*x.shape[:2], -1)), cache

    def heads_of(self, x: jax.Array, positions: jax.Array) -> tuple[jax.Array, ...]:
        """Rotated queries, rotated keys, and values."""
        projections = self.q_proj, self.k_proj, self.v_proj
        q, k, v = (p(x).reshape(*x.shape[:2], -1, self.head_dim) for p in projections)
        return self.rotate(q, positions), self.rotate(k, positions), v


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions: jax.Array,
    cache: pe.KVCache | None = None,
    *,
    layer: Any = None,
    window: tuple[int | None, int | None] = (None, None),
    values_in_keys: int | None = None,
    **options: Any,
) -> tuple[jax.Array, pe.KVCache | None]:
    """Causal attention by position, among these tokens or with those of a cache, or of a layer of it.

    Values may be the first features of the keys.
    """
    seen = {"query_positions": positions, "key_positions": positions, "causal": True, "window": window}
    if cache is not None:
        if cache.window not in (window, (None, None)):
            raise ValueError(f"the cache's window is {cache.window}, and the layer's {window}")
        cache = cache.extend(k, v, positions, layer=layer)
        own = cache if layer is None else jax.tree.map(lambda x: x[:, layer], cache)
        k, v, seen = own.keys, own.values, own.seen_from(positions) | {"window": window}
    v = v if values_in_keys is None else k[..., :values_in_keys]
    return pe.attention(q, k, v, **seen, **options), cache


# --8<-- [end:layer]
