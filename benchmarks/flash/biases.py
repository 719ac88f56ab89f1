"""The biases that `device.py` measures, as users write them, each beside its formula in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

BUCKETS, FARTHEST, HIDDEN = 32, 128, 4


class Named(NamedTuple):
    """A bias with what it learns, and the formula of one head."""

    of: Callable[..., Any] | None  # of positions and what it learns, as users write it
    learned: Callable[[int], tuple[np.ndarray, ...]]  # of so many heads
    formula: Callable[..., Any]  # (head, heads, i, j) -> float64
    # (head, heads, i, j, cotangent of the bias) -> the cotangents of what one head learns, float64; None: not compared
    back: Callable[..., tuple[Any, ...]] | None = None

    def closed(self, learned: Any) -> Any:
        """What `attention` takes."""
        return None if self.of is None else lambda i, j: self.of(i, j, *learned)


def slopes(heads: int) -> np.ndarray:
    return np.exp2(-8 * np.arange(1, heads + 1) / heads).astype(np.float32)


def table(heads: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(BUCKETS, heads)).astype(np.float32)


def perceptron(heads: int) -> tuple[np.ndarray, ...]:
    shapes = (HIDDEN,), (HIDDEN,), (HIDDEN, heads), (heads,)
    return tuple(np.random.default_rng(3).normal(size=shape).astype(np.float32) for shape in shapes)


def _alibi(i: Any, j: Any, slopes: Any) -> Any:
    import posenc_jax as pe

    return pe.alibi(i, j, slopes)


def _t5(i: Any, j: Any, table: Any) -> Any:
    import posenc_jax as pe

    return pe.t5(i, j, table, bidirectional=False)


def _kerple(i: Any, j: Any, scale: Any, rate: Any) -> Any:
    import posenc_jax as pe

    return pe.kerple_log(i, j, scale, rate)


def _fire(i: Any, j: Any, *mlp: Any) -> Any:
    import posenc_jax as pe

    return pe.fire(i, j, mlp, c=0.1, threshold=512.0)


def _own(i: Any, j: Any, slopes: Any) -> Any:
    """Not in the library: what is seen of even positions is favored, and all keys fade by their distance."""
    import jax.numpy as jnp

    i, j = i[..., None, :, None], j[..., None, None, :]
    even = jnp.where(j & 1 == 0, np.float32(0.5), np.float32(0))
    return even - slopes[:, None, None] * jnp.abs(i - j).astype(jnp.float32)


def _alibi64(head: int, heads: int, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    return -slopes(heads)[head].astype(np.float64) * np.abs(i - j)


def _alibi_back(head: int, heads: int, i: np.ndarray, j: np.ndarray, ds: np.ndarray) -> tuple[Any, ...]:
    return (-np.sum(ds * np.abs(i - j)),)


def bucket(distance: Any) -> np.ndarray:
    """T5's, of keys before the query."""
    distance, exact = np.maximum(distance, 0), BUCKETS // 2
    large = np.log(np.maximum(distance, 1) / exact) / math.log(FARTHEST / exact) * (BUCKETS - exact)
    return np.where(distance < exact, distance, np.minimum(exact + large.astype(int), BUCKETS - 1))


def _t564(head: int, heads: int, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    return table(heads)[bucket(i - j), head].astype(np.float64)


def _t5_back(head: int, heads: int, i: np.ndarray, j: np.ndarray, ds: np.ndarray) -> tuple[Any, ...]:
    rows = np.broadcast_to(bucket(i - j), ds.shape)
    return (np.bincount(rows.ravel(), ds.ravel(), BUCKETS),)


def _kerple64(head: int, heads: int, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    return -np.log1p(slopes(heads)[head].astype(np.float64) * np.abs(i - j))


def _kerple_back(head: int, heads: int, i: np.ndarray, j: np.ndarray, ds: np.ndarray) -> tuple[Any, ...]:
    distance, rate = np.abs(i - j), slopes(heads)[head].astype(np.float64)
    return -np.sum(ds * np.log1p(rate * distance)), -np.sum(ds * distance / (1 + rate * distance))


def _fire64(head: int, heads: int, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    w1, b1, w2, b2 = (w.astype(np.float64) for w in perceptron(heads))
    x = np.log1p(0.1 * np.abs(i - j)) / np.log1p(0.1 * np.maximum(i, 512.0))
    return sum(w2[n, head] * np.maximum(w1[n] * x + b1[n], 0) for n in range(HIDDEN)) + b2[head]


def _own64(head: int, heads: int, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    return _alibi64(head, heads, i, j) + np.where(j % 2 == 0, 0.5, 0.0)


def _kerple_learned(heads: int) -> tuple[np.ndarray, ...]:
    return np.ones(heads, np.float32), slopes(heads)


BIASES = {
    "none": Named(None, lambda heads: (), lambda head, heads, i, j: 0.0),
    "alibi": Named(_alibi, lambda heads: (slopes(heads),), _alibi64, _alibi_back),
    "t5": Named(_t5, lambda heads: (table(heads),), _t564, _t5_back),
    "kerple_log": Named(_kerple, _kerple_learned, _kerple64, _kerple_back),
    "fire": Named(_fire, perceptron, _fire64),
    "own": Named(_own, lambda heads: (slopes(heads),), _own64, _alibi_back),
}
