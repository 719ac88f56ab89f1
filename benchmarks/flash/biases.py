"""Biases for the trial kernel, each beside its formula in float64."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from kernel import Bias

from posenc_jax import kernels

BUCKETS, FARTHEST = 32, 128


def slopes(heads: int) -> np.ndarray:
    return np.exp2(-8 * np.arange(1, heads + 1) / heads).astype(np.float32)


def buckets(distance: np.ndarray) -> np.ndarray:
    """T5's buckets of causal distances."""
    exact = BUCKETS // 2
    large = np.log(np.maximum(distance, 1) / exact) / math.log(FARTHEST / exact) * (BUCKETS - exact)
    return np.where(distance < exact, distance, np.minimum(exact + large.astype(int), BUCKETS - 1))


def table(heads: int) -> np.ndarray:
    """T5's bias by distance, (heads, 256), constant from 128 on."""
    learned = np.random.default_rng(1).normal(size=(BUCKETS, heads)).astype(np.float32)
    return np.ascontiguousarray(learned[buckets(np.arange(256))].T)


def _alibi(i: Any, j: Any, slope: Any) -> Any:
    return -slope * jnp.abs(i - j).astype(jnp.float32)


def _alibi_apart(distance: Any, slope: Any) -> Any:
    return -slope * jnp.abs(distance)


def _alibi_after(distance: Any, slope: Any) -> Any:
    return -slope * distance


def _alibi_divided(distance: Any, slope: Any) -> Any:
    return slope * distance


def _t5(i: Any, j: Any, entries: Any) -> Any:
    return entries(jnp.clip(i - j, 0, FARTHEST))


def _t5_far(entries: Any) -> Any:
    return entries.number(FARTHEST)


def _row(i: Any, slope: Any) -> Any:
    return -slope * i


def _column(j: Any, slope: Any) -> Any:
    return slope * j


def _reach(margin: Any, slopes: Any) -> Any:
    return margin / slopes


class Named(NamedTuple):
    """A bias of the kernel and the formula for all heads."""

    bias: Bias | None
    arrays: Any  # (heads, head_dim) -> arrays
    formula: Any  # (head, heads, i, j) -> float64

    def operands(self, heads: int, head_dim: int) -> list[np.ndarray]:
        return [np.asarray(a, np.float32) for a in self.arrays(heads, head_dim)]


def _alibi64(head: int, heads: int, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    return -slopes(heads)[head].astype(np.float64) * np.abs(i - j)


def _t564(head: int, heads: int, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    return table(heads)[head].astype(np.float64)[np.clip(i - j, 0, FARTHEST)]


def _one(heads: int, _: int) -> list[np.ndarray]:
    return [slopes(heads)]


BIASES = {
    "none": Named(None, lambda *_: [], lambda head, heads, i, j: 0.0),
    "alibi": Named(Bias(_alibi), _one, _alibi64),  # integer positions, |i − j| < 2³¹
    "alibi-exact": Named(Bias(kernels.alibi), _one, _alibi64),  # all int32 positions
    "alibi-float": Named(Bias(_alibi, "float32"), _one, _alibi64),
    "alibi-distance": Named(Bias(_alibi_apart, "distance"), _one, _alibi64),
    # As if a compiler knew that a causal distance is not negative, and, below, that ALiBi is linear in its slopes.
    "alibi-causal": Named(Bias(_alibi_after, "distance"), _one, _alibi64),
    "alibi-divided": Named(Bias(_alibi_divided, "distance", True), lambda h, d: [-slopes(h) * math.sqrt(d)], _alibi64),
    "alibi-split": Named(Bias(_alibi_apart, "distance", split=(_row, _column)), _one, _alibi64),
    "alibi-fading": Named(Bias(_alibi_apart, "distance", split=(_row, _column), reach=_reach), _one, _alibi64),
    "t5": Named(Bias(_t5, far=(FARTHEST, _t5_far)), lambda heads, _: [table(heads)], _t564),
    "t5-everywhere": Named(Bias(_t5), lambda heads, _: [table(heads)], _t564),
}
