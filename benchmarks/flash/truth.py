"""The operands of what `device.py` measures, and how far a result is from float64."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from cases import Problem, positions_of, segments_of, sinks_of


def operands(problem: Problem) -> tuple[Any, ...]:
    """Query, key and value."""
    return _drawn(Problem(*problem[:7]))


@functools.lru_cache(maxsize=4)
def _drawn(problem: Problem) -> tuple[Any, ...]:
    import jax
    import jax.numpy as jnp

    def draw(seed: int, length: int, heads: int) -> Any:
        shape = problem.batch, length, heads, problem.head_dim
        return jax.random.normal(jax.random.key(seed), shape, jnp.float32).astype(problem.dtype)

    lengths = (problem.queries, problem.heads), (problem.keys, problem.kv_heads), (problem.keys, problem.kv_heads)
    return tuple(draw(i, *size) for i, size in enumerate(lengths))


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
    from biases import BIASES

    (q, k, v), positions = _on_host(Problem(*problem[:7])), positions_of(problem)
    segments, sinks = segments_of(problem), sinks_of(problem)
    group = head // (problem.heads // problem.kv_heads)
    query = q[batch, chosen, head].astype(np.float64)
    key, value = (x[batch, :, group].astype(np.float64) for x in (k, v))
    i, j = chosen, np.arange(problem.keys)
    if positions is not None:
        i, j = (p[min(batch, len(p) - 1)].astype(int) for p in positions)
        i = i[chosen]
    i, j = i[:, None], j[None, :]
    scores, slope = query @ key.T * scale, np.ones((len(chosen), problem.keys))
    if problem.soft_cap is not None:
        bent = np.tanh(scores / problem.soft_cap)
        scores, slope = problem.soft_cap * bent, 1 - bent**2
    scores = scores + BIASES[problem.bias].formula(head, problem.heads, i, j)
    seen = (j <= i if problem.causal else True) & (True if problem.window is None else i - j <= problem.window)
    if segments is not None:
        seen = seen & (segments[0][chosen][:, None] == segments[1])
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
    wrong, size, worst, worst_sum = 0.0, 0.0, 0.0, 0.0
    for head in sorted({0, problem.heads // 2, problem.heads - 1}):
        batch = int(random.integers(problem.batch))
        chosen = np.unique(np.append(random.integers(problem.queries, size=rows), [0, problem.queries - 1]))
        of = _of_head(problem, batch, head, chosen, scale)
        truth, got = of.weights @ of.value, out[batch, chosen, head].astype(np.float64)
        wrong, size = wrong + np.sum((got - truth) ** 2), size + np.sum(truth**2)
        worst = max(worst, float(np.max(np.abs(got - truth))))
        if residual is not None:
            worst_sum = max(worst_sum, float(np.max(np.abs(residual[batch, chosen, head] - of.residual))))
    result = {"error": float(math.sqrt(wrong / size)), "worst": worst}
    return result if residual is None else result | {"residual_error": worst_sum}


def compare_gradients(problem: Problem, got: Any) -> dict[str, Any]:
    """The errors of cotangents of query, key, value and what the bias learns, if that of the output is the query."""
    from biases import BIASES

    scale, bias, chosen = 1 / math.sqrt(problem.head_dim), BIASES[problem.bias], np.arange(problem.queries)
    want = [np.zeros(x.shape) for x in got]
    for head in range(problem.heads):
        group = head // (problem.heads // problem.kv_heads)
        for batch in range(problem.batch):
            of = _of_head(problem, batch, head, chosen, scale)
            dp = of.query @ of.value.T
            ds = of.weights * (dp - np.sum(of.weights * dp, 1, keepdims=True))
            want[0][batch, :, head] = scale * (of.slope * ds) @ of.key
            want[1][batch, :, group] += scale * (of.slope * ds).T @ of.query
            want[2][batch, :, group] += of.weights.T @ of.query
            for x, part in zip(
                want[3:], bias.back(head, problem.heads, of.i, of.j, ds) if want[3:] else (), strict=True
            ):
                x[..., head] += part
    errors = [np.linalg.norm(np.asarray(x, np.float64) - y) / np.linalg.norm(y) for x, y in zip(got, want, strict=True)]
    return {"errors": [float(e) for e in errors]}
