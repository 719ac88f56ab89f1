"""Attention with any of its options: the library's call, and results with all derivatives in float64.

A case is a dictionary. "window", "causal", "mask", "block_size" and "cap" are options; "segments" and "order" are
pairs, of the queries and of the keys; "i" and "j" are positions. "sinks", "bias" and "data" say whether there are any;
"scale" is a number, or the shape of an array. "data" has the batch and heads of the arrays a, b and g of
`oracles.attention.of_data`. "kv_heads" are two by default. All arrays with derivatives are in a dictionary by name.
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
AT, THERE = np.arange(2, 2 + QUERIES, dtype=np.int32), np.arange(KEYS, dtype=np.int32)
FORMULA = "the float64 formula"
Arrays = dict[str, np.ndarray]


def drawn(case: dict[str, Any], seed: int = 0, dtype: Any = np.float32) -> Arrays:
    """The arrays that a case reads."""
    kv_heads, scale = case.get("kv_heads", KV_HEADS), case.get("scale")
    shapes: dict[str, tuple[int, ...]] = {
        "query": (BATCH, QUERIES, HEADS, WIDTH),
        "key": (BATCH, KEYS, kv_heads, WIDTH),
        "value": (BATCH, KEYS, kv_heads, VALUE_WIDTH),
    }
    shapes |= {name: (HEADS,) for name, of in (("slopes", "bias"), ("sinks", "sinks")) if case.get(of)}
    if isinstance(scale, tuple):
        shapes["scale"] = scale
    if "data" in case:
        a, b, g = case["data"]
        shapes |= {"a": (a[0], QUERIES, a[1], 3), "b": (b[0], KEYS, b[1], 3), "g": (g[0], KEYS, g[1]), "w": (3,)}
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


def cotangents(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Those of the results and of the residuals; 0 where a query sees nothing."""
    rng, shape = np.random.default_rng(2), (BATCH, QUERIES, HEADS, VALUE_WIDTH)
    dy, dl = rng.normal(size=shape).astype(np.float32), rng.normal(size=shape[:3]).astype(np.float32)
    return dy, np.where(np.isfinite(exact(case, drawn(case))[1]), dl, np.float32(0))


def _bias(x: dict[str, jax.Array]) -> Callable[..., jax.Array]:
    def of_positions(i: jax.Array, j: jax.Array, slopes: jax.Array) -> jax.Array:
        """A bias that differs on both sides of a query."""
        ahead = (j[..., None, None, :] - i[..., None, :, None]).astype(slopes.dtype)
        return slopes.reshape(*[1] * (ahead.ndim - 3), -1, 1, 1) * (0.1 * ahead - 0.2 * abs(ahead))

    def of_tokens(i: jax.Array, j: jax.Array, a: jax.Array, of_keys: tuple[jax.Array, jax.Array]) -> jax.Array:
        a, b, g = (jnp.swapaxes(each, 1, 2) for each in (a * x["w"].reshape(1, 1, 1, -1), *of_keys))
        apart = (i[..., None, :, None] - j[..., None, None, :]).astype(a.dtype) / 10
        apart = apart.reshape(-1, *apart.shape[-3:])
        bias = apart * jnp.einsum("...qc,...kc->...qk", a, b) + g[..., None, :]
        if "slopes" not in x:
            return bias
        return bias + of_positions(i, j, x["slopes"]).reshape(-1, x["slopes"].size, *apart.shape[-2:])

    return of_tokens if "a" in x else lambda i, j: of_positions(i, j, x["slopes"])


def attend(case: dict[str, Any], x: Any, **more: Any) -> tuple[jax.Array, jax.Array]:
    """The library's results and residuals."""
    options = {name: case[name] for name in ("window", "causal", "mask") if name in case}
    for name in {"segments", "order"} & {*case}:
        options |= dict(zip((f"query_{name}", f"key_{name}"), case[name], strict=True))
    if "a" in x:
        options |= {"query_data": x["a"], "key_data": (x["b"], x["g"])}
    if {"a", "slopes"} & {*x}:
        options["bias"] = _bias(x)
    options |= {"query_positions": case.get("i", AT), "key_positions": case.get("j", THERE)}
    options |= {"sinks": x.get("sinks"), "scale": x.get("scale", case.get("scale")), "logits_soft_cap": case.get("cap")}
    options |= {"block_size": case.get("block_size", 3), "return_residual": True}
    return pe.attention(x["query"], x["key"], x["value"], **options | more)


def exact(case: dict[str, Any], x: Any, dy: Any = 0.0, dl: Any = 0.0) -> tuple[np.ndarray, np.ndarray, Arrays]:
    """Results, residuals, and the cotangents of all arrays."""
    x = {name: np.asarray(a, np.float64) for name, a in x.items()}
    i, j = case.get("i", AT), case.get("j", THERE)
    ahead = np.float64(j)[..., None, None, :] - np.float64(i)[..., None, :, None]
    sides, bias, of = 0.1 * ahead - 0.2 * abs(ahead), 0.0, None
    if "slopes" in x:
        bias = bias + x["slopes"][:, None, None] * sides
    if "a" in x:
        of = of_data(i, j, HEADS, BATCH, x["a"], x["b"], x["g"], x["w"])
        bias = bias + of.bias
    masks = {name: case[name] for name in ("causal", "segments", "window", "order") if name in case}
    seen = may_see(i, j, **masks) & case.get("mask", True)
    scale = x.get("scale", case.get("scale"))
    y, residual, back = dense(
        x["query"], x["key"], x["value"], bias, seen, scale, cap=case.get("cap"), sinks=x.get("sinks")
    )
    dq, dk, dv, ds, *d_sinks = back(np.broadcast_to(dy, y.shape), dl)
    by = {"query": dq, "key": dk, "value": dv} | dict(zip(["sinks"], d_sinks, strict=False))
    if "slopes" in x:
        by["slopes"] = (ds * sides).sum((0, 2, 3))
    if of is not None:
        by |= dict(zip("abgw", of.back(ds), strict=True))
    if "scale" in x:
        of_scale = np.sum(x["query"] * dq, -1) / scale
        of_scale = of_scale.sum(tuple(range(of_scale.ndim - scale.ndim)))
        by["scale"] = of_scale.sum(tuple(a for a, n in enumerate(scale.shape) if n == 1), keepdims=True)
    return y, residual, by


def along(f: Callable[[Arrays], Any], x: Arrays, v: Arrays, step: float = 2e-4) -> Any:
    """The derivative of f at x along v in float64, by five points; 0 where f is not finite."""
    ends = [f({name: np.float64(a) + n * step * v[name] for name, a in x.items()}) for n in (-2, -1, 1, 2)]
    with np.errstate(invalid="ignore"):
        return jax.tree.map(lambda a, b, c, d: np.nan_to_num((a - 8 * b + 8 * c - d) / (12 * step)), *ends)


def check(got: Any, want: Any, tolerance: float = 1e-5, against: str = FORMULA) -> None:
    """Each array to a tolerance relative to its largest finite element, or to 1 if all are smaller."""
    got, want = (jax.tree_util.tree_leaves_with_path(x) for x in (got, want))
    for (_, a), (path, b) in zip(got, want, strict=True):
        b = np.asarray(b, np.float64)
        largest = np.max(np.abs(b[np.isfinite(b)]), initial=1)
        assert_within(a, b, tolerance * largest, against=f"{against}, {jax.tree_util.keystr(path)}")
