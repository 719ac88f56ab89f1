"""Cases of `attention(implementation="mosaic_gpu")`: biases with what they learn, options, and the dense formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import posenc_jax as pe
from oracles import biases as oracle
from oracles.attention import Dense, dense, may_see

RNG = np.random.default_rng(0)
BFLOAT16 = jnp.bfloat16
SIDES = "query", "key"


class Bias(NamedTuple):
    """A bias of positions and learned arrays, and its formula in float64, of positions that broadcast to a tile."""

    of: Callable[..., Any]
    learned: tuple[np.ndarray, ...]
    formula: Callable[..., np.ndarray]

    def closed(self, i: Any, j: Any) -> Any:
        return self.of(i, j, *self.learned)


def custom(i: Any, j: Any, size: Any, rate: Any) -> Any:
    """A bias that is not in the library, and no function of i − j."""
    i, j = (x.astype(jnp.float32) for x in (i[..., None, :, None], j[..., None, None, :]))
    size, rate = (x[:, None, None] for x in (size, rate))
    return jnp.where(i > j, size, np.float32(-0.25)) * jnp.tanh(rate * i)


def custom64(i: Any, j: Any, size: Any, rate: Any) -> np.ndarray:
    return np.where(i > j, size[:, None, None], -0.25) * np.tanh(rate[:, None, None] * i)


def network(i: Any, j: Any, inner: Any, outer: Any) -> Any:
    """A network of the distance, unit by unit."""
    x = jnp.log1p(jnp.abs(i[..., None, :, None] - j[..., None, None, :]).astype(jnp.float32))
    return sum(outer[n][:, None, None] * jnp.tanh(inner[n] * x) for n in range(len(inner)))


def network64(i: Any, j: Any, inner: Any, outer: Any) -> np.ndarray:
    x = np.log1p(np.abs(i - j))
    return sum(outer[n][:, None, None] * np.tanh(inner[n] * x) for n in range(len(inner)))


def to_the_end(i: Any, j: Any, size: Any) -> Any:
    """Finite at the positions of 200 tokens alone."""
    i, j = i[..., None, :, None], j[..., None, None, :]
    left = (200 - x for x in (i, j, jnp.abs(i - j)))
    return size[:, None, None] * sum(jnp.log(x.astype(jnp.float32)) for x in left)


def to_the_end64(i: Any, j: Any, size: Any) -> np.ndarray:
    return size[:, None, None] * sum(np.log(200 - x) for x in (i, j, np.abs(i - j)))


# By i − j + 199, finite where a window of 80 keys sees it
SEEN = np.where(np.arange(399) - 199 <= 80, np.cos(np.arange(399)), np.nan).astype(np.float32)


def of_distance(formula: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda i, j, *learned: formula(np.abs(i - j), *learned)


def fire64(i: Any, j: Any, *mlp: np.ndarray) -> np.ndarray:
    shape = np.broadcast_shapes(np.shape(i), np.shape(j))
    tiles = [oracle.fire(np.abs(i - j)[..., 0, :, :], i[..., 0, :, :], mlp, 0.1, 30.0)]
    return tiles[0].reshape(*shape[:-3], *tiles[0].shape[-3:])


MLP = tuple(RNG.normal(size=shape).astype(np.float32) for shape in ((2,), (2,), (2, 2), (2,)))
TABLE = RNG.normal(size=(32, 2)).astype(np.float32)
ONES, RATES = np.ones(2, np.float32), np.float32([0.5, 1.0])
KERPLE = (ONES, RATES)
BIASES = {
    "ALiBi": Bias(pe.alibi, (np.float32([1 / 16, 1 / 256]),), of_distance(oracle.alibi)),
    "T5": Bias(pe.t5, (TABLE,), lambda i, j, table: oracle.t5(np.abs(i - j), i < j, table)),
    "KERPLE, logarithm": Bias(pe.kerple_log, KERPLE, of_distance(oracle.kerple_log)),
    "KERPLE, power": Bias(pe.kerple_power, KERPLE, of_distance(oracle.kerple_power)),
    "FIRE": Bias(lambda i, j, *mlp: pe.fire(i, j, mlp, c=0.1, threshold=30.0), MLP, fire64),
    "custom": Bias(custom, (np.float32([0.5, -1]), np.float32([0.01, 0.02])), custom64),
    "network": Bias(network, (np.float32([0.5, -2]), np.float32([[1, 0.5], [0.25, -1]])), network64),
    "to the end": Bias(to_the_end, (np.float32([0.5, -0.25]),), to_the_end64),
    "in the window": Bias(
        lambda i, j: jnp.asarray(SEEN)[jnp.clip(i[..., :, None] - j[..., None, :] + 199, 0, 398)],
        (),
        lambda i, j: np.nan_to_num(SEEN[i - j + 199]),
    ),
    "ALiBi of four": Bias(pe.alibi, (np.float32([1 / 2, 1 / 8, 1 / 32, 1 / 128]),), of_distance(oracle.alibi)),
    "tiny": Bias(pe.alibi, (np.float32([1e-9, 1e-3]),), of_distance(oracle.alibi)),
}


def pair(what: str, queries: Any, keys: Any) -> dict[str, np.ndarray]:
    return {f"query_{what}": np.asarray(queries, np.int32), f"key_{what}": np.asarray(keys, np.int32)}


COUNT = np.arange(256)
SHUFFLED = pair("positions", RNG.permutation(256), RNG.permutation(256))
FAR = pair("positions", 2**31 - 1 - COUNT, np.where(COUNT < 200, 2**31 - 1 - 2 * COUNT, COUNT - 2**31))
ROWS = pair("positions", np.stack([COUNT + 5, COUNT]), np.stack([COUNT, COUNT]))
DOCUMENTS = pair("segments", COUNT // 100, np.where(COUNT < 50, 7, COUNT // 100))  # some queries see no key
SINKS = {"sinks": np.float32([0.5, -1])}
CASES = {  # queries, keys, head_dim, value_dim, bias, options
    "no bias": (200, 333, 64, 64, None, {}),
    "every option": (
        *(256, 256, 64, 64, "custom"),
        {"causal": True, "window": (90, None), "logits_soft_cap": 5.0, **SINKS, **DOCUMENTS},
    ),
    "few tokens": (
        *(128, 128, 64, 64, "custom"),
        {
            "causal": True,
            "window": (40, None),
            "logits_soft_cap": 5.0,
            **SINKS,
            **pair("segments", *[COUNT[:128] // 50] * 2),
        },
    ),
    "causal ALiBi": (384, 384, 64, 64, "ALiBi", {"causal": True}),
    "ALiBi, heads of 128": (256, 256, 128, 128, "ALiBi", {}),
    "ALiBi, shuffled": (256, 256, 64, 64, "ALiBi", {"causal": True, **SHUFFLED}),
    "both windows, far": (256, 256, 64, 64, "tiny", {"window": (40, 40), **FAR}),
    "T5": (300, 300, 64, 64, "T5", {"causal": True}),
    "T5, shuffled": (256, 256, 64, 64, "T5", SHUFFLED),
    "T5, far": (256, 256, 64, 64, "T5", FAR),
    "T5, documents": (256, 256, 64, 64, "T5", {"window": (150, 20), "logits_soft_cap": 5.0, **SINKS, **DOCUMENTS}),
    "network": (300, 300, 64, 64, "network", {}),
    "KERPLE": (256, 256, 64, 64, "KERPLE, logarithm", {"window": (100, 0)}),
    "KERPLE by order": (
        *(256, 256, 64, 64, "KERPLE, logarithm"),
        {"causal": True, **pair("positions", COUNT // 3, COUNT // 3), **pair("order", COUNT, COUNT)},
    ),
    "rows apart": (256, 256, 64, 64, "KERPLE, power", {"causal": True, **ROWS}),
    "FIRE": (256, 256, 64, 64, "FIRE", {"causal": True}),
    "heads of 80, values of 96": (256, 256, 80, 96, None, {"causal": True}),
    "heads of 256": (256, 256, 256, 256, None, {"causal": True}),
    "segments alone": (256, 256, 64, 64, None, DOCUMENTS),
    "to the end": (200, 200, 64, 64, "to the end", {}),
    "nothing beyond the window": (200, 200, 64, 64, "in the window", {"window": (80, None)}),
    "four heads": (128, 128, 64, 64, "ALiBi of four", {"causal": True}),
}


def operands(
    queries: int,
    keys: int,
    width: int = 64,
    value_width: int = 64,
    *,
    batch: int = 2,
    heads: int = 2,
    dtype: Any = BFLOAT16,
) -> tuple[Any, ...]:
    """Query, key and value; two heads of queries share one of keys."""
    shapes = (heads, queries, width), (heads // 2, keys, width), (heads // 2, keys, value_width)
    shapes = ((batch, length, n, size) for n, length, size in shapes)
    return tuple(RNG.normal(size=shape).astype(np.float32).astype(dtype) for shape in shapes)


class Truth(NamedTuple):
    """What a case has in float64."""

    dense: Dense
    bias: Callable[..., np.ndarray]  # of what it learns


def truth(name: str, x: Any) -> Truth:
    queries, keys, *_, bias, options = CASES[name]
    i, j = options.get("query_positions", np.arange(queries)), options.get("key_positions", np.arange(keys))
    masks = {k: options[k] for k in ("causal", "window") if k in options}
    masks |= {
        k: sides for k in ("segments", "order") if (sides := [options.get(f"{s}_{k}") for s in SIDES])[0] is not None
    }
    tile = i.astype(np.int64)[..., None, :, None], j.astype(np.int64)[..., None, None, :]

    def formula(*learned: np.ndarray) -> Any:
        return 0.0 if bias is None else BIASES[bias].formula(*tile, *learned)

    learned = () if bias is None else BIASES[bias].learned
    table = formula(*(a.astype(np.float64) for a in learned))
    capped = {"cap": options.get("logits_soft_cap"), "sinks": options.get("sinks")}
    return Truth(dense(*x, table, may_see(i, j, **masks), **capped), formula)
