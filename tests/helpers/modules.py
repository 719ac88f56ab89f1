"""Modules of NNX with random parameters, which NumPy draws without compiling; and `ContentBias` by loops."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx


def drawn(make: Callable[[], Any], rng: np.random.Generator, deviation: float = 0.3) -> Any:
    """The module that `make` returns; its parameters are normal numbers with this standard deviation."""
    graphdef, state = nnx.split(nnx.eval_shape(make))
    return nnx.merge(graphdef, jax.tree.map(lambda w: (deviation * rng.normal(size=w.shape)).astype(w.dtype), state))


def content_by_loops(i: Any, j: Any, x: Any, table: Any, *, of: str, first: int, outside: float | None) -> np.ndarray:
    """Query or key times the row of the table for the offset i − j, in float64: (batch, heads, queries, keys).

    x is (batch, tokens, heads, features), of queries or keys as `of` says. The table is (rows, heads, features), or
    (rows, features) for all heads; its first row is of the offset `first`. Offsets beyond the table have the bias
    `outside`, or the nearest row if `outside` is None.
    """
    x, table = np.asarray(x, np.float64), np.asarray(table, np.float64)
    table = table if table.ndim == 3 else np.repeat(table[:, None], x.shape[2], 1)
    bias = np.empty((len(x), x.shape[2], len(i), len(j)))
    for b, h, q, k in np.ndindex(bias.shape):
        row = int(i[q]) - int(j[k]) - first
        if outside is not None and not 0 <= row < len(table):
            bias[b, h, q, k] = outside
        else:
            bias[b, h, q, k] = x[b, q if of == "query" else k, h] @ table[min(max(row, 0), len(table) - 1), h]
    return bias
