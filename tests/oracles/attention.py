"""Attention with all scores at once, and its derivative by hand, in float64; and Flax's layer around it."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from oracles.rotations import rope


class Dense(NamedTuple):
    """What `dense` found."""

    y: np.ndarray  # (..., queries, heads, value_dim)
    residual: np.ndarray  # the logarithm of each query's sum of weights, (..., queries, heads)
    back: Callable[..., tuple[np.ndarray, ...]]  # from cotangents of both to those of query, key, value, scores, sinks


def may_see(i, j, causal=False, segments=None, window=(None, None), order=None):
    """Whether a query at i (..., queries) may see a key at j (..., keys), (..., 1, queries, keys).

    `causal` hides the keys after a query, or those of a later order if `order` gives those (of the queries, of the
    keys). `segments`, (of the queries, of the keys), hides the keys of other segments.
    `window`, (before, after), hides the keys that are further from the query on either side.
    """
    i, j = (np.asarray(x).astype(object) for x in (i, j))  # Python's integers have no end
    ahead, (before, after) = j[..., None, None, :] - i[..., None, :, None], window
    seen = np.ones(ahead.shape, bool)
    for most, distance in ((0 if causal and order is None else None, ahead), (after, ahead), (before, -ahead)):
        if most is not None:
            seen = seen & (distance <= most).astype(bool)
    for labels, agree in ((order, np.greater_equal), (segments, np.equal)):
        if labels is not None:
            a, b = map(np.asarray, labels)
            seen = seen & agree(a[..., None, :, None], b[..., None, None, :])
    return seen


def dense(query, key, value, bias=0.0, seen=True, scale=None, rounded=np.float64, *, cap=None, sinks=None):
    """softmax(cap(scale · q·k) + bias) · v, where `seen`; a query that sees nothing gives zeros.

    Queries are (..., queries, heads, head_dim), keys and values have as many heads or a divisor of them; bias and seen
    broadcast to (..., heads, queries, keys), scale to (..., queries, heads). Scores with their bias are rounded to the
    dtype `rounded`. A sink, one for each head, is the score of one more key, whose value is 0. Only if there are sinks
    does `back` return their cotangents, as the last; that of the scores is of those with bias.

    `back` takes the output y that another computed to find the sum of each query from it, as fused kernels do, and the
    dtype in which such a kernel multiplies matrices and returns cotangents.
    """
    q, k, v = (np.asarray(x, np.float64) for x in (query, key, value))
    group = q.shape[-2] // k.shape[-2]
    keys, values = (np.repeat(x, group, -2) for x in (k, v))
    c = np.asarray(1 / np.sqrt(q.shape[-1]) if scale is None else scale, np.float64)[..., None]
    scores = np.einsum("...qhd,...khd->...hqk", c * q, keys)
    slope = np.ones_like(scores)
    if cap is not None:
        bent = np.tanh(scores / cap)
        scores, slope = cap * bent, 1 - bent**2
    scores = scores + np.asarray(bias, np.float64)
    scores = np.where(seen, scores.astype(rounded).astype(np.float64), -np.inf)
    sink = np.full((*scores.shape[:-1], 1), -np.inf)
    if sinks is not None:
        sink[:] = np.asarray(sinks, np.float64)[:, None, None]
    top = np.maximum(np.max(scores, -1, initial=-np.inf, keepdims=True), sink)
    finite = np.where(np.isneginf(top), 0, top)
    weights, of_sink = np.exp(scores - finite), np.exp(sink - finite)
    total = weights.sum(-1, keepdims=True) + of_sink
    with np.errstate(divide="ignore"):
        residual = np.swapaxes((top + np.log(total))[..., 0], -1, -2)
    p, p_sink = (x / np.where(total == 0, 1, total) for x in (weights, of_sink))

    def back(dy, dl=0.0, *, y=None, dtype=np.float64):
        def rounded(x):
            return x.astype(dtype).astype(np.float64)

        dl = np.swapaxes(np.broadcast_to(dl, residual.shape), -1, -2)[..., None]
        dp = np.einsum("...qhd,...khd->...hqk", np.asarray(dy, np.float64), values)
        mean = np.sum(p * dp, -1, keepdims=True)
        if y is not None:
            mean = np.einsum("...qhd,...qhd->...hq", np.asarray(dy, np.float64), np.asarray(y, np.float64))[..., None]
        ds = p * (dp - mean + dl)
        of_products = rounded(slope * ds)
        dq = c * np.einsum("...hqk,...khd->...qhd", of_products, keys)
        dk = np.einsum("...hqk,...qhd->...khd", of_products, c * q)
        dv = np.einsum("...hqk,...qhd->...khd", rounded(p), np.asarray(dy, np.float64))
        of_group = (x.reshape(*x.shape[:-2], k.shape[-2], group, x.shape[-1]).sum(-2) for x in (dk, dv))
        dq, dk, dv = map(rounded, (dq, *of_group))
        if sinks is None:
            return dq, dk, dv, ds
        d_sinks = np.sum((p_sink * (dl - mean))[..., 0], -1)
        return dq, dk, dv, ds, d_sinks.sum(tuple(range(d_sinks.ndim - 1)))

    return Dense(np.einsum("...hqk,...khd->...qhd", p, values), residual, back)


class OfData(NamedTuple):
    """A bias Σ_c w_c a_ic b_jc · (i − j) / 10 + g_j, and its derivative."""

    bias: np.ndarray  # (batch, heads, queries, keys)
    back: Callable[[np.ndarray], tuple[np.ndarray, ...]]  # from its cotangent to those of a, b, g and w


def of_data(i, j, heads, batch, a, b, g, w):
    """a is (batch or 1, queries, heads or 1, c); b (batch or 1, keys, kv_heads or 1, c) and g without c; w is (c,)."""
    given = [np.asarray(x, np.float64) for x in (a, b, np.asarray(g)[..., None])]
    each = (np.repeat(x, heads // x.shape[2], 2) for x in given)
    a, b, g = (np.broadcast_to(x, (batch, *x.shape[1:])) for x in each)
    apart = (np.asarray(i, np.float64)[..., None, :, None] - np.asarray(j, np.float64)[..., None, None, :]) / 10

    def back(ds):
        by = apart * ds
        found = np.einsum("zhqk,c,zkhc->zqhc", by, w, b), np.einsum("zhqk,c,zqhc->zkhc", by, w, a)
        found = *found, np.einsum("zhqk->zkh", ds)[..., None]
        da, db, dg = (_summed(x, own.shape) for x, own in zip(found, given, strict=True))
        return da, db, dg[..., 0], np.einsum("zhqk,zqhc,zkhc->c", by, a, b)

    return OfData(apart * np.einsum("zqhc,c,zkhc->zhqk", a, w, b) + np.einsum("zkh->zhk", g[..., 0])[:, :, None], back)


def _summed(x, shape):
    """Sums cotangents (batch, length, heads, …) over what read one entry of this shape: a batch, a group of heads."""
    x = x.reshape(*x.shape[:2], shape[2], -1, *x.shape[3:]).sum(3)
    return x.sum(0, keepdims=True) if shape[0] == 1 else x


def project(parameters, x):
    """Flax's projection of x (..., features) to (..., heads, head_dim)."""
    kernel, bias = (np.asarray(parameters[name], np.float64) for name in ("kernel", "bias"))
    return np.einsum("...f,fhd->...hd", x, kernel) + bias


def layer(parameters, x, positions, bias=0.0, seen=True):
    """Flax's attention layer with RoPE, by its parameters; the bias may be a function of what it projects, q and k."""
    q, k, v = (project(parameters[name], x) for name in ("query", "key", "value"))
    bias = bias(q, k) if callable(bias) else bias
    y = dense(rope(q, positions), rope(k, positions), v, bias, seen).y
    kernel, added = (np.asarray(parameters["out"][name], np.float64) for name in ("kernel", "bias"))
    return np.einsum("...hd,hdf->...f", y, kernel) + added
