"""Distances between positions, exact for integers until they are rounded to float32."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posenc_jax._jax.arrays import align, compute_dtype


def difference(a: Any, b: Any) -> tuple[jax.Array, jax.Array]:
    """|a − b| and whether a < b, for arrays of the same rank.

    Integers must have the same dtype. Their difference is exact and unsigned: for int32, a uint32 of up to 2³² − 1.
    """
    if not jnp.issubdtype(a.dtype, jnp.integer) or not jnp.issubdtype(b.dtype, jnp.integer):
        dtype = compute_dtype(a, b)
        a, b = a.astype(dtype), b.astype(dtype)
        return jnp.abs(a - b), a < b
    unsigned = np.dtype(f"uint{8 * a.dtype.itemsize}")
    less = a < b
    a, b = a.astype(unsigned), b.astype(unsigned)  # wraps around, and the subtraction wraps back
    return jnp.where(less, b - a, a - b), less


# Tiles of scores, (..., heads or 1, queries, keys)


def tile_difference(queries: jax.Array, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    """|i − j| and whether j > i, of shape (..., 1, queries, keys)."""
    ndim = max(queries.ndim, keys.ndim) + 2
    queries, keys = queries[..., None, :, None], keys[..., None, None, :]
    return difference(align(queries, ndim), align(keys, ndim))


def tile_distance(queries: jax.Array, keys: jax.Array) -> jax.Array:
    """|i − j| in float32, of shape (..., 1, queries, keys)."""
    return tile_difference(queries, keys)[0].astype(jnp.float32)


def per_head(x: jax.Array | np.ndarray, like: jax.Array) -> jax.Array:
    """Reshapes one value per head, (heads,), to broadcast over a tile."""
    return align(x.astype(jnp.float32).reshape(-1, 1, 1), like.ndim)
