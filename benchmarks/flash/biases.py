"""The biases that `device.py` measures, as users write them, each beside its formula in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

BUCKETS, FARTHEST, HIDDEN = 32, 128, 4


class Named(NamedTuple):
    """A bias of all heads, as `attention` takes it, and the formula of one."""

    make: Callable[[int], Any]  # heads -> a function of positions
    formula: Callable[..., Any]  # (head, heads, i, j) -> float64


def slopes(heads: int) -> np.ndarray:
    return np.exp2(-8 * np.arange(1, heads + 1) / heads).astype(np.float32)


def table(heads: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(BUCKETS, heads)).astype(np.float32)


def perceptron(heads: int) -> list[np.ndarray]:
    shapes = (HIDDEN,), (HIDDEN,), (HIDDEN, heads), (heads,)
    return [np.random.default_rng(3).normal(size=shape).astype(np.float32) for shape in shapes]


def _alibi(heads: int) -> Any:
    import jax.numpy as jnp

    import posenc_jax as pe

    of_heads = jnp.asarray(slopes(heads))
    return lambda i, j: pe.alibi(i, j, of_heads)


def _t5(heads: int) -> Any:
    import jax.numpy as jnp

    import posenc_jax as pe

    rows = jnp.asarray(table(heads))
    return lambda i, j: pe.t5(i, j, rows, bidirectional=False)


def _kerple(heads: int) -> Any:
    import jax.numpy as jnp

    import posenc_jax as pe

    scale, rate = jnp.ones(heads, jnp.float32), jnp.asarray(slopes(heads))
    return lambda i, j: pe.kerple_log(i, j, scale, rate)


def _fire(heads: int) -> Any:
    import posenc_jax as pe

    return lambda i, j: pe.fire(i, j, perceptron(heads), c=0.1, threshold=512.0)


def _own(heads: int) -> Any:
    """Not in the library: what is seen of even positions is favored, and all keys fade by their distance."""
    import jax.numpy as jnp

    of_heads = jnp.asarray(slopes(heads))[:, None, None]

    def bias(i: Any, j: Any) -> Any:
        i, j = i[..., None, :, None], j[..., None, None, :]
        even = jnp.where(j & 1 == 0, np.float32(0.5), np.float32(0))
        return even - of_heads * jnp.abs(i - j).astype(jnp.float32)

    return bias


def _alibi64(head: int, heads: int, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    return -slopes(heads)[head].astype(np.float64) * np.abs(i - j)


def _t564(head: int, heads: int, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    distance, exact = np.maximum(i - j, 0), BUCKETS // 2
    large = np.log(np.maximum(distance, 1) / exact) / math.log(FARTHEST / exact) * (BUCKETS - exact)
    bucket = np.where(distance < exact, distance, np.minimum(exact + large.astype(int), BUCKETS - 1))
    return table(heads)[bucket, head].astype(np.float64)


def _kerple64(head: int, heads: int, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    return -np.log1p(slopes(heads)[head].astype(np.float64) * np.abs(i - j))


def _fire64(head: int, heads: int, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    w1, b1, w2, b2 = (w.astype(np.float64) for w in perceptron(heads))
    x = np.log1p(0.1 * np.abs(i - j)) / np.log1p(0.1 * np.maximum(i, 512.0))
    return sum(w2[n, head] * np.maximum(w1[n] * x + b1[n], 0) for n in range(HIDDEN)) + b2[head]


def _own64(head: int, heads: int, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    return _alibi64(head, heads, i, j) + np.where(j % 2 == 0, 0.5, 0.0)


BIASES = {
    "none": Named(lambda heads: None, lambda head, heads, i, j: 0.0),
    "alibi": Named(_alibi, _alibi64),
    "t5": Named(_t5, _t564),
    "kerple_log": Named(_kerple, _kerple64),
    "fire": Named(_fire, _fire64),
    "own": Named(_own, _own64),
}
