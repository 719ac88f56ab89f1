"""Attention with all scores at once, and its derivative by hand, in float64; and Flax's layer around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from oracles.rotations import rope


class Dense(NamedTuple):
    """What `dense` found."""

    y: np.ndarray  # (..., queries, heads, head_dim)
    residual: np.ndarray  # the logarithm of each query's sum of weights, (..., queries, heads)
    back: Callable[..., tuple[np.ndarray, ...]]  # from cotangents of both to those of query, key, value and scores


def may_see(i: Any, j: Any, causal: bool = False, segments: tuple[Any, Any] | None = None) -> np.ndarray:
    """Whether a query at i (..., queries) may see a key at j (..., keys), (..., 1, queries, keys).

    `causal` hides the keys after a query. `segments`, (of the queries, of the keys), hides the keys of other segments.
    """
    i, j = np.asarray(i), np.asarray(j)
    seen = (i[..., None, :, None] >= j[..., None, None, :]) | (not causal)
    if segments is not None:
        a, b = map(np.asarray, segments)
        seen = seen & (a[..., None, :, None] == b[..., None, None, :])
    return seen


def dense(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = 0.0,
    seen: Any = True,
    scale: float | None = None,
    rounded: Any = np.float64,
) -> Dense:
    """softmax(scale · q·k + bias) · v, where `seen`; a query that sees nothing gives zeros.

    Queries are (..., queries, heads, head_dim), keys and values have as many heads or a divisor of them; bias and seen
    broadcast to (..., heads, queries, keys). Scores with their bias are rounded to the dtype `rounded`.
    """
    q, k, v = (np.asarray(x, np.float64) for x in (query, key, value))
    group = q.shape[-2] // k.shape[-2]
    keys, values = (np.repeat(x, group, -2) for x in (k, v))
    c = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
    scores = c * np.einsum("...qhd,...khd->...hqk", q, keys) + np.asarray(bias, np.float64)
    scores = np.where(seen, scores.astype(rounded).astype(np.float64), -np.inf)
    top = np.max(scores, -1, initial=-np.inf, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = weights.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        residual = np.swapaxes((top + np.log(total))[..., 0], -1, -2)
    p = weights / np.where(total == 0, 1, total)

    def back(dy: Any, dl: Any = 0.0) -> tuple[np.ndarray, ...]:
        dl = np.swapaxes(np.broadcast_to(dl, residual.shape), -1, -2)[..., None]
        dp = np.einsum("...qhd,...khd->...hqk", np.asarray(dy, np.float64), values)
        ds = p * (dp - np.sum(p * dp, -1, keepdims=True) + dl)
        dq = c * np.einsum("...hqk,...khd->...qhd", ds, keys)
        dk = c * np.einsum("...hqk,...qhd->...khd", ds, q)
        dv = np.einsum("...hqk,...qhd->...khd", p, np.asarray(dy, np.float64))
        of_group = (x.reshape(*x.shape[:-2], k.shape[-2], group, x.shape[-1]).sum(-2) for x in (dk, dv))
        return dq, *of_group, ds

    return Dense(np.einsum("...hqk,...khd->...qhd", p, values), residual, back)


def project(parameters: Mapping[str, Any], x: Any) -> np.ndarray:
    """Flax's projection of x (..., features) to (..., heads, head_dim)."""
    kernel, bias = (np.asarray(parameters[name], np.float64) for name in ("kernel", "bias"))
    return np.einsum("...f,fhd->...hd", x, kernel) + bias


def layer(parameters: Mapping[str, Any], x: Any, positions: Any, bias: Any = 0.0, seen: Any = True) -> np.ndarray:
    """Flax's attention layer with RoPE, by its parameters."""
    q, k, v = (project(parameters[name], x) for name in ("query", "key", "value"))
    y = dense(rope(q, positions), rope(k, positions), v, bias, seen).y
    kernel, added = (np.asarray(parameters["out"][name], np.float64) for name in ("kernel", "bias"))
    return np.einsum("...hd,hdf->...f", y, kernel) + added
