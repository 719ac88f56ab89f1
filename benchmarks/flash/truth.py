"""The operands of what `device.py` measures, and how far a result is from float64."""

from __future__ import annotations

import functools
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from biases import BIASES
from cases import Problem, sides_of, sinks_of

MOST = 1.5  # times the error of rounding, at which a result is right
MOST_OF_SUMS = 1e-5  # of the sum of their parts without signs, for cotangents of what a bias learns


def operands(problem: Problem) -> tuple[Any, ...]:
    """Query, key and value."""
    return _drawn(Problem(*problem[:8]))


@functools.lru_cache(maxsize=4)
def _drawn(problem: Problem) -> tuple[Any, ...]:
    import jax
    import jax.numpy as jnp

    def draw(seed: int, length: int, heads: int, width: int) -> Any:
        shape = problem.batch, length, heads, width
        return jax.random.normal(jax.random.key(seed), shape, jnp.float32).astype(problem.dtype)

    width, of_keys = problem.head_dim, (problem.keys, problem.kv_heads)
    sizes = (problem.queries, problem.heads, width), (*of_keys, width), (*of_keys, problem.value_dim or width)
    return tuple(draw(i, *size) for i, size in enumerate(sizes))


@functools.lru_cache(maxsize=1)
def _on_host(problem: Problem) -> tuple[Any, ...]:
    return tuple(np.asarray(x) for x in operands(problem))


class _Head(NamedTuple):
    """Some queries of one head, in float64."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    i: np.ndarray
    j: np.ndarray
    weights: np.ndarray  # they sum to one with that of the sink
    residual: np.ndarray
    slope: np.ndarray  # the derivative of the cap


def _of_head(problem: Problem, batch: int, head: int, chosen: np.ndarray, scale: float) -> _Head:
    (q, k, v), sinks = _on_host(Problem(*problem[:8])), sinks_of(problem)
    count = np.arange(problem.queries)[None], np.arange(problem.keys)[None]
    sides = {"positions": count} | sides_of(problem)
    of_row = {name: [x[min(batch, len(x) - 1)].astype(int) for x in side] for name, side in sides.items()}
    apart = {name: (x[chosen][:, None], y[None, :]) for name, (x, y) in of_row.items()}
    group = head // (problem.heads // problem.kv_heads)
    query = q[batch, chosen, head].astype(np.float64)
    key, value = (x[batch, :, group].astype(np.float64) for x in (k, v))
    i, j = apart["positions"]
    scores, slope = query @ key.T * scale, np.ones((len(chosen), problem.keys))
    if problem.soft_cap is not None:
        bent = np.tanh(scores / problem.soft_cap)
        scores, slope = problem.soft_cap * bent, 1 - bent**2
    scores = scores + BIASES[problem.bias].formula(head, problem.heads, i, j)
    first, later = apart.get("order", (i, j))
    seen = (later <= first if problem.causal else True) & (True if problem.window is None else i - j <= problem.window)
    seen = seen & (True if problem.right is None else j - i <= problem.right)
    if "segments" in apart:
        seen = seen & np.equal(*apart["segments"])
    scores = np.where(seen, scores, -np.inf)
    top = np.maximum(scores.max(1, keepdims=True), -np.inf if sinks is None else sinks[head])
    p = np.exp(scores - top)
    total = p.sum(1, keepdims=True) + (0 if sinks is None else np.exp(sinks[head] - top))
    return _Head(query, key, value, i, j, p / total, (top + np.log(total))[:, 0], slope)


def compare(problem: Problem, out: Any, residual: Any, scale: float | None = None, rows: int = 12) -> dict[str, Any]:
    """The error of some rows of the output beside float64."""
    scale = 1 / math.sqrt(problem.head_dim) if scale is None else scale
    random, out = np.random.default_rng(2), np.asarray(out)
    residual = None if residual is None else np.asarray(residual)
    wrong, least, size, worst, worst_sum = 0.0, 0.0, 0.0, 0.0, 0.0
    for head in sorted({0, problem.heads // 2, problem.heads - 1}):
        batch = int(random.integers(problem.batch))
        chosen = np.unique(np.append(random.integers(problem.queries, size=rows), [0, problem.queries - 1]))
        of = _of_head(problem, batch, head, chosen, scale)
        truth, got = of.weights @ of.value, out[batch, chosen, head].astype(np.float64)
        wrong, size = wrong + np.sum((got - truth) ** 2), size + np.sum(truth**2)
        least += np.sum((truth.astype(out.dtype).astype(np.float64) - truth) ** 2)
        worst = max(worst, float(np.max(np.abs(got - truth))))
        if residual is not None:
            worst_sum = max(worst_sum, float(np.max(np.abs(residual[batch, chosen, head] - of.residual))))
    result = {"error": math.sqrt(wrong / size), "of_rounding": math.sqrt(wrong / least), "worst": worst}
    right = result["of_rounding"] <= MOST and worst_sum <= 1e-5
    return result | {"residual_error": worst_sum, "right": bool(right)}


def compare_gradients(problem: Problem, out: Any, got: Any) -> dict[str, Any]:
    """The errors of cotangents of query, key, value and what the bias learns, if that of the output is the query.

    Of long sequences, those of the first head of keys and the heads of queries that it serves, in the first row.
    """
    heads, batches, long = problem.heads, problem.batch, problem.keys > 1024
    if long:
        heads, batches = problem.heads // problem.kv_heads, 1
    out, got = np.asarray(out), [np.asarray(x) for x in got]
    want, least = ([np.zeros(x.shape) for x in got] for _ in range(2))
    sizes, lock = [np.zeros(x.shape) for x in got[3:]], threading.Lock()

    def add(block: tuple[int, int, np.ndarray]) -> None:
        batch, head, chosen = block
        parts = _parts(problem, batch, head, chosen, out[batch, chosen, head].astype(np.float64))
        group = head // (problem.heads // problem.kv_heads)
        with lock:
            for total, (dq, dk, dv, *learned) in zip((want, least), parts, strict=False):
                total[0][batch, chosen, head] = dq
                total[1][batch, :, group] += dk
                total[2][batch, :, group] += dv
                for x, part in zip(total[3:], learned, strict=False):
                    x[..., head] += part
            for x, part in zip(sizes, parts[2], strict=False):
                x[..., head] += part

    pieces = np.split(np.arange(problem.queries), range(512, problem.queries, 512))
    blocks = [(batch, head, piece) for batch in range(batches) for head in range(heads) for piece in pieces]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, blocks))
    result: dict[str, Any] = {"errors": [], "of_rounding": [], "of_sums": []}
    kv_heads = -(-heads * problem.kv_heads // problem.heads)
    for n, (x, y, z) in enumerate(zip(got, want, least, strict=True)):
        if n < 3:
            x, y, z = (a[:batches, :, : heads if n == 0 else kv_heads] for a in (x, y, z))
            error, rounding = (np.linalg.norm(a.astype(np.float64) - y) for a in (x, z.astype(x.dtype)))
            result["of_rounding"].append(float(error / rounding))
            result["errors"].append(float(error / np.linalg.norm(y)))
        elif BIASES[problem.bias].back and batches == problem.batch:  # for the output that was rounded
            error = np.abs(x[..., :heads] - z[..., :heads]) / sizes[n - 3][..., :heads].clip(1e-30)
            result["of_sums"].append(float(np.max(error)))
    right = max(result["of_rounding"]) <= MOST and max(result["of_sums"], default=0) <= MOST_OF_SUMS
    return result | {"right": bool(right)}


def _parts(problem: Problem, batch: int, head: int, chosen: np.ndarray, out: np.ndarray) -> tuple[Any, Any, Any]:
    """What some queries add to the cotangents: exactly, with products and output rounded; and the sums of |parts|."""
    of, scale = _of_head(problem, batch, head, chosen, problem.head_dim**-0.5), problem.head_dim**-0.5
    do, back = of.query[:, : of.value.shape[-1]], BIASES[problem.bias].back
    dp = do @ of.value.T

    def rounded(x: np.ndarray) -> np.ndarray:
        return x.astype(jnp.dtype(problem.dtype)).astype(np.float64)

    def learned(ds: np.ndarray) -> tuple[Any, ...]:
        return back(head, problem.heads, of.i, of.j, ds) if back and problem.learns else ()

    y = of.weights @ of.value
    ds, of_rounded, of_out = (of.weights * (dp - np.sum(do * x, 1, keepdims=True)) for x in (y, rounded(y), out))
    exact = scale * (of.slope * ds) @ of.key, scale * (of.slope * ds).T @ of.query, of.weights.T @ do
    products = rounded(of.slope * of_rounded)
    least = scale * products @ of.key, scale * products.T @ of.query, rounded(of.weights).T @ do
    sizes = tuple(map(np.abs, learned(np.abs(of_out))))
    return (*exact, *learned(ds)), (*least, *learned(of_out)), sizes
