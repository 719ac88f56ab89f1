"""Attention with every option, and the same with all scores at once, by JAX's own operations, for derivatives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import posenc_jax as pe
from helpers.closeness import assert_within
from oracles.attention import may_see

RNG = np.random.default_rng(0)
BATCH, QUERIES, KEYS, HEADS, KV_HEADS, WIDTH, VALUE_WIDTH = 2, 7, 8, 4, 2, 4, 3
NAMES = "query", "key", "value", "slopes", "sinks", "scale"
AT, THERE = np.arange(2, 2 + QUERIES, dtype=np.int32), np.arange(KEYS, dtype=np.int32)
PARTS = np.int32([[0] * 4 + [1] * 3, [5] * 7]), np.int32([[0] * 5 + [1] * 3, [5] * 6 + [2] * 2])
# Which operands are used, and the options
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("", {}),
    "window, sinks": ("sinks", {"window": (3, 1)}),
    "cap, bias": ("slopes", {"logits_soft_cap": 1.5}),
    "segments, scale": ("scale", {"segments": PARTS, "causal": True}),
    "everything": ("slopes sinks scale", {"segments": PARTS, "window": (5, None), "causal": True, "logits_soft_cap": 1.5}),
}  # fmt: skip


def drawn(seed: int = 0, dtype: Any = np.float64) -> tuple[np.ndarray, ...]:
    """Query, key, value, slopes, sinks and scale."""
    rng = np.random.default_rng(seed)
    shapes = (BATCH, QUERIES, HEADS, WIDTH), (BATCH, KEYS, KV_HEADS, WIDTH), (BATCH, KEYS, KV_HEADS, VALUE_WIDTH), (HEADS,), (HEADS,), (QUERIES, 1)  # fmt: skip
    return tuple(rng.normal(size=shape).astype(dtype) for shape in shapes)


def bias_of(i: jax.Array, j: jax.Array, slopes: jax.Array) -> jax.Array:
    """A bias that differs on both sides of a query, (..., heads, queries, keys)."""
    ahead = (j[..., None, None, :] - i[..., None, :, None]).astype(slopes.dtype)
    return slopes.reshape((-1, 1, 1)) * (0.1 * ahead - 0.2 * abs(ahead))


def tiled(name: str, *arrays: Any, i: Any = AT, j: Any = THERE, block_size: int = 3) -> tuple[jax.Array, jax.Array]:
    """The library's results and residuals."""
    used, options = CASES[name]
    q, k, v, slopes, sinks, scale = arrays
    options = dict(options)
    if "segments" in options:
        options |= dict(zip(("query_segments", "key_segments"), options.pop("segments"), strict=True))
    if "slopes" in used:
        options["bias"] = lambda i, j: bias_of(i, j, slopes)
    options |= {"sinks": sinks} if "sinks" in used else {}
    options |= {"scale": scale} if "scale" in used else {}
    return pe.attention(
        q, k, v, query_positions=i, key_positions=j, block_size=block_size, return_residual=True, **options
    )


def dense(name: str, *arrays: Any, i: Any = AT, j: Any = THERE) -> tuple[jax.Array, jax.Array]:
    """The same with all scores at once; where nothing is seen, 0, and −∞ for the residual."""
    used, options = CASES[name]
    q, k, v, slopes, sinks, scale = arrays
    group = q.shape[2] // k.shape[2]
    k, v = (jnp.repeat(x, group, 2) for x in (k, v))
    q = q * (scale[..., None] if "scale" in used else jnp.full((1, 1, 1), q.shape[-1] ** -0.5, q.dtype))[None]
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    if cap := options.get("logits_soft_cap"):
        s = cap * jnp.tanh(s / cap)
    if "slopes" in used:
        s = s + bias_of(i, j, slopes)[None]
    masks = {name: options[name] for name in ("causal", "segments", "window") if name in options}
    seen = np.broadcast_to(may_see(i, j, **masks), (q.shape[0], 1, len(i), len(j)))
    one = jnp.broadcast_to(sinks[None, :, None, None] if "sinks" in used else jnp.full((1, 1, 1, 1), -jnp.inf, q.dtype), (*s.shape[:3], 1))  # fmt: skip
    s = jnp.concatenate([one, jnp.where(seen, s, -jnp.inf)], -1)
    empty = ~(np.any(seen, -1) | ("sinks" in used))[..., None]
    p = jax.nn.softmax(jnp.where(empty, 0.0, s), -1)
    residual = jnp.where(empty[..., 0], -jnp.inf, jax.nn.logsumexp(jnp.where(empty, 0.0, s), -1))
    p = jnp.where(empty, 0.0, p)[..., 1:]
    return jnp.einsum("bhqk,bkhd->bqhd", p, v), jnp.swapaxes(residual, 1, 2)


def outputs(f: Any) -> Any:
    """f with finite residuals: 0 where a query sees nothing."""

    def of(*arrays: Any) -> tuple[jax.Array, jax.Array]:
        y, residual = f(*arrays)
        return y, jnp.where(jnp.isfinite(residual), residual, 0)

    return of


def check(got: Any, want: Any, tolerance: float = 1e-5, against: str = "the dense float64 formula") -> None:
    """Each array to a tolerance relative to its largest finite element, or to 1 if all are smaller."""
    got, want = (jax.tree_util.tree_leaves_with_path(x) for x in (got, want))
    for (_, a), (path, b) in zip(got, want, strict=True):
        b = np.asarray(b, np.float64)
        largest = np.max(np.abs(b[np.isfinite(b)]), initial=1)
        assert_within(a, b, tolerance * largest, against=f"{against}, {jax.tree_util.keystr(path)}")
