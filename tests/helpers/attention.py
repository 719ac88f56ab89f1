"""Attention with any of its options: the library's call, and results with all derivatives in float64.

A case is a dictionary with any of these keys:
- "window", "causal", "mask", "block_size" and "cap" (`logits_soft_cap`) are values of options.
- "segments" and "order" are pairs (of the queries, of the keys); "i" and "j" are positions of queries and keys.
- "sinks" and "bias" are True where the case has sinks, or a bias of positions with a slope per head.
- "scale" is a number, or the shape of a random array.
- "data" holds a pair (batch, heads) for each of the arrays a, b and g of `oracles.attention.of_data`.
- "kv_heads" is the number of heads of keys and values.

The arrays of a case, all of which have derivatives, are a second dictionary: `random_arrays` returns it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import posenc_jax as pe
from helpers.closeness import assert_within
from oracles.attention import dense, may_see, of_data

BATCH, QUERIES, KEYS, HEADS, KV_HEADS, WIDTH, VALUE_WIDTH = 2, 7, 8, 4, 2, 4, 3
QUERY_AT, KEY_AT = np.arange(2, 2 + QUERIES, dtype=np.int32), np.arange(KEYS, dtype=np.int32)
FORMULA = "the float64 formula"
Arrays = dict[str, np.ndarray]


def random_arrays(case: dict[str, Any], seed: int = 0, dtype: Any = np.float32) -> Arrays:
    """Normal numbers for each array that a case reads: query, key, value, slopes, sinks, scale, and a, b, g, w."""
    kv_heads, scale = case.get("kv_heads", KV_HEADS), case.get("scale")
    shapes: dict[str, tuple[int, ...]] = {
        "query": (BATCH, QUERIES, HEADS, WIDTH),
        "key": (BATCH, KEYS, kv_heads, WIDTH),
        "value": (BATCH, KEYS, kv_heads, VALUE_WIDTH),
    }
    shapes |= {name: (HEADS,) for name, option in (("slopes", "bias"), ("sinks", "sinks")) if case.get(option)}
    if isinstance(scale, tuple):
        shapes["scale"] = scale
    if "data" in case:
        a, b, g = case["data"]
        shapes |= {"a": (a[0], QUERIES, a[1], 3), "b": (b[0], KEYS, b[1], 3), "g": (g[0], KEYS, g[1]), "w": (3,)}
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


def cotangents(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Random cotangents of results and residuals; a residual of −∞, of a query that sees nothing, has 0."""
    rng, shape = np.random.default_rng(2), (BATCH, QUERIES, HEADS, VALUE_WIDTH)
    dy, dl = rng.normal(size=shape).astype(np.float32), rng.normal(size=shape[:3]).astype(np.float32)
    return dy, np.where(np.isfinite(exact(case, random_arrays(case))[1]), dl, np.float32(0))


def _bias(x: dict[str, jax.Array]) -> Callable[..., jax.Array]:
    """The bias function of a case: of positions if x has slopes, of token data if x has a; or the sum of both."""

    def of_positions(i: jax.Array, j: jax.Array, slopes: jax.Array) -> jax.Array:
        """A bias that is steeper before a query than after it."""
        ahead = (j[..., None, None, :] - i[..., None, :, None]).astype(slopes.dtype)
        return slopes.reshape(*[1] * (ahead.ndim - 3), -1, 1, 1) * (0.1 * ahead - 0.2 * abs(ahead))

    def of_tokens(i: jax.Array, j: jax.Array, a: jax.Array, key_data: tuple[jax.Array, jax.Array]) -> jax.Array:
        a, b, g = (jnp.swapaxes(each, 1, 2) for each in (a * x["w"].reshape(1, 1, 1, -1), *key_data))
        apart = (i[..., None, :, None] - j[..., None, None, :]).astype(a.dtype) / 10
        apart = apart.reshape(-1, *apart.shape[-3:])
        bias = apart * jnp.einsum("...qc,...kc->...qk", a, b) + g[..., None, :]
        if "slopes" not in x:
            return bias
        return bias + of_positions(i, j, x["slopes"]).reshape(-1, x["slopes"].size, *apart.shape[-2:])

    return of_tokens if "a" in x else lambda i, j: of_positions(i, j, x["slopes"])


def attend(case: dict[str, Any], x: Any, **more: Any) -> tuple[jax.Array, jax.Array]:
    """The library's results and residuals; `more` are options of `attention` that replace those of the case."""
    options = {name: case[name] for name in ("window", "causal", "mask") if name in case}
    for name in {"segments", "order"} & {*case}:
        options |= dict(zip((f"query_{name}", f"key_{name}"), case[name], strict=True))
    if "a" in x:
        options |= {"query_data": x["a"], "key_data": (x["b"], x["g"])}
    if {"a", "slopes"} & {*x}:
        options["bias"] = _bias(x)
    options |= {"query_positions": case.get("i", QUERY_AT), "key_positions": case.get("j", KEY_AT)}
    options |= {"sinks": x.get("sinks"), "scale": x.get("scale", case.get("scale")), "logits_soft_cap": case.get("cap")}
    options |= {"block_size": case.get("block_size", 3), "return_residual": True}
    return pe.attention(x["query"], x["key"], x["value"], **options | more)


def exact(case: dict[str, Any], x: Any, dy: Any = 0.0, dl: Any = 0.0) -> tuple[np.ndarray, np.ndarray, Arrays]:
    """Results, residuals and cotangents of all arrays in float64, for cotangents dy of results, dl of residuals."""
    x = {name: np.asarray(a, np.float64) for name, a in x.items()}
    i, j = case.get("i", QUERY_AT), case.get("j", KEY_AT)
    ahead = np.float64(j)[..., None, None, :] - np.float64(i)[..., None, :, None]
    per_slope, bias, data = 0.1 * ahead - 0.2 * abs(ahead), 0.0, None
    if "slopes" in x:
        bias = bias + x["slopes"][:, None, None] * per_slope
    if "a" in x:
        data = of_data(i, j, HEADS, BATCH, x["a"], x["b"], x["g"], x["w"])
        bias = bias + data.bias
    masks = {name: case[name] for name in ("causal", "segments", "window", "order") if name in case}
    seen = may_see(i, j, **masks) & case.get("mask", True)
    scale = x.get("scale", case.get("scale"))
    y, residual, back = dense(
        x["query"], x["key"], x["value"], bias, seen, scale, cap=case.get("cap"), sinks=x.get("sinks")
    )
    dq, dk, dv, ds, *d_sinks = back(np.broadcast_to(dy, y.shape), dl)
    gradients = {"query": dq, "key": dk, "value": dv} | dict(zip(["sinks"], d_sinks, strict=False))
    if "slopes" in x:
        gradients["slopes"] = (ds * per_slope).sum((0, 2, 3))
    if data is not None:
        gradients |= dict(zip("abgw", data.back(ds), strict=True))
    if "scale" in x:
        of_scale = np.sum(x["query"] * dq, -1) / scale  # scores have the factor scale · query
        of_scale = of_scale.sum(tuple(range(of_scale.ndim - scale.ndim)))
        gradients["scale"] = of_scale.sum(tuple(a for a, n in enumerate(scale.shape) if n == 1), keepdims=True)
    return y, residual, gradients


def derivative_along(f: Callable[[Arrays], Any], x: Arrays, v: Arrays, step: float = 2e-4) -> Any:
    """The derivative of f at x along v, by a five-point stencil in float64; 0 where f is not finite."""
    values = [f({name: np.float64(a) + n * step * v[name] for name, a in x.items()}) for n in (-2, -1, 1, 2)]
    with np.errstate(invalid="ignore"):
        return jax.tree.map(lambda a, b, c, d: np.nan_to_num((a - 8 * b + 8 * c - d) / (12 * step)), *values)


def check(got: Any, want: Any, tolerance: float = 1e-5, against: str = FORMULA) -> None:
    """Asserts that each array of `got` is within tolerance · max(1, the largest finite |want|) of that of `want`."""
    got, want = (jax.tree_util.tree_leaves_with_path(x) for x in (got, want))
    for (_, a), (path, b) in zip(got, want, strict=True):
        b = np.asarray(b, np.float64)
        largest = np.max(np.abs(b[np.isfinite(b)]), initial=1)
        assert_within(a, b, tolerance * largest, against=f"{against}, {jax.tree_util.keystr(path)}")
