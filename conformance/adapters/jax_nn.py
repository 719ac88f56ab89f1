"""`jax.nn.dot_product_attention`: windows and causal masks of tokens counted from 0, values as wide as queries."""

import jax
import jax.numpy as jnp

from conformance.adapters import only

NAME, PACKAGES = "jax.nn", ("jax",)


def attention(
    query_positions,
    key_positions,
    query,
    key,
    value,
    scale,
    causal=False,
    window=(None, None),
    soft_cap=None,
    sinks=None,
):
    only(soft_cap is None and sinks is None, "neither soft caps nor sinks")
    only(len(value[0][0]) == len(query[0][0]), "values are as wide as queries")
    only(all(p == list(range(len(p))) for p in (query_positions, key_positions)), "positions count from 0")
    q, k, v = (jnp.array(x, jnp.float32)[None] for x in (query, key, value))
    local = None if tuple(window) == (None, None) else tuple(len(key) if n is None else n for n in window)
    return jax.nn.dot_product_attention(q, k, v, scale=scale, is_causal=causal, local_window_size=local)[0]
