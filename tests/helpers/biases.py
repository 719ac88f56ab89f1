"""Every attention bias: a function, valid arguments for any number of heads, and its formula; what tests share of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

import posenc_jax as pe
from oracles import biases as oracles
from oracles import spectra


class Bias(NamedTuple):
    """A bias as a function of positions, and what tests need to know of it."""

    function: Callable[..., jax.Array]
    arguments: Callable[[int], dict[str, Any]]  # besides the positions, for so many heads; arrays are parameters
    # In float64 from the distances |i − j|, the queries' positions, whether the key is after the query, and `arguments`.
    formula: Callable[..., np.ndarray]
    slope: Callable[..., np.ndarray] | None = None  # its derivative by the distance, of the distances and `arguments`
    integers: bool = False  # takes integer positions alone, and may tell keys before the query from those after it
    absolute: bool = False  # depends on where the query is, which is not before 0
    rounded: bool = False  # its last bit depends on the order of a sum, or on how the compiler divides

    def of(self, heads: int) -> tuple[Callable[..., jax.Array], tuple[np.ndarray, ...]]:
        """The function of positions and parameters, and the parameters."""
        arguments = self.arguments(heads)
        leaves, tree = jax.tree.flatten(arguments)
        arrays = [isinstance(leaf, np.ndarray) for leaf in leaves]

        def call(queries: Any, keys: Any, *parameters: Any) -> jax.Array:
            rest = iter(parameters)
            filled = [next(rest) if array else leaf for array, leaf in zip(arrays, leaves, strict=True)]
            return self.function(queries, keys, **tree.unflatten(filled))

        return call, tuple(leaf for array, leaf in zip(arrays, leaves, strict=True) if array)

    def beside(
        self, heads: int
    ) -> tuple[Callable[..., Any], Callable[..., np.ndarray], Callable[..., np.ndarray] | None]:
        """The function of positions, its formula, and the slope if it has one."""
        given = self.arguments(heads)
        return *(partial(f, **given) for f in (self.function, self.formula)), self.slope and partial(
            self.slope, **given
        )


def _spread(start: float, end: float) -> Callable[[int], np.ndarray]:
    return lambda heads: np.linspace(start, end, heads, dtype=np.float32)


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


_slopes, _rates, _powers = (
    _spread(0.5, 0.3),
    _spread(0.4, 0.9),
    _spread(0.75, 1.25),
)  # not ½, which becomes a square root

BIASES = {
    "alibi": Bias(
        pe.alibi,
        lambda heads: {"heads": _slopes(heads)},
        lambda d, i, after, heads: oracles.alibi(d, heads),
        lambda d, heads: oracles.alibi_slope(d, heads),
    ),
    "t5": Bias(
        pe.t5,
        lambda heads: {"table": _normal(32, heads)},
        lambda d, i, after, **settings: oracles.t5(d, after, **settings),
        integers=True,
    ),
    "relative_position_bias": Bias(
        pe.relative_position_bias,
        lambda heads: {"table": _normal(99, heads), "out_of_range": "zeros"},
        lambda d, i, after, table, out_of_range: oracles.of_offsets(d, after, table),
        integers=True,
    ),
    "kerple_log": Bias(
        pe.kerple_log,
        lambda heads: {"scale": _slopes(heads), "rate": _rates(heads)},
        lambda d, i, after, scale, rate: oracles.kerple_log(d, scale, rate),
        oracles.kerple_log_slope,
    ),
    "kerple_power": Bias(
        pe.kerple_power,
        lambda heads: {"scale": _slopes(heads), "exponent": _powers(heads)},
        lambda d, i, after, scale, exponent: oracles.kerple_power(d, scale, exponent),
        oracles.kerple_power_slope,
    ),
    "fire": Bias(
        pe.fire,
        lambda heads: {
            "mlp": (_normal(4), _normal(4)[::-1], _normal(4, heads), _normal(heads)),
            "c": 0.125,
            "threshold": 64.0,
        },
        lambda d, i, after, **settings: oracles.fire(d, i, **settings),
        absolute=True,
        rounded=True,
    ),
    "sandwich": Bias(
        pe.sandwich,
        lambda heads: {"heads": heads, "frequencies": 6},
        lambda d, i, after, heads, frequencies: oracles.sandwich(d, heads, spectra.geometric(frequencies, 10_000)),
        rounded=True,
    ),
}

# Parameters of three heads, at positions near each other and at the ends of int32

RNG = np.random.default_rng(0)
HEADS = 3
NEAR = RNG.integers(0, 3000, 24).astype(np.int32)
FAR = np.concatenate([[0, 2**31 - 1, -(2**31), -1], RNG.integers(-(2**31), 2**31, 20)]).astype(np.int32)
SCALE, RATE = (RNG.uniform(0.1, 1.5, HEADS).astype(np.float32) for _ in range(2))
TABLE = RNG.normal(size=(32, HEADS)).astype(np.float32)
OFFSETS = np.random.default_rng(1).normal(size=(1999, HEADS)).astype(np.float32)  # of one axis, from −999 to 999
MLP = tuple(RNG.normal(size=n).astype(np.float32) for n in ((32,), (32,), (32, HEADS), (HEADS,)))
C, THRESHOLD = np.float32(0.1), np.float32(512)

# name → function of positions and parameters, the parameters
CASES = {name: bias.of(HEADS) for name, bias in BIASES.items()} | {
    "alibi": (lambda q, k: pe.alibi(q, k, HEADS), ()),
    "alibi, slopes": (pe.alibi, (SCALE,)),
    "t5, causal": (lambda q, k, t: pe.t5(q, k, t, bidirectional=False), (TABLE,)),
    "relative_position_bias": (partial(pe.relative_position_bias, out_of_range="zeros"), (OFFSETS,)),
    "fire": (lambda q, k, mlp, c, threshold: pe.fire(q, k, mlp, c=c, threshold=threshold), (MLP, C, THRESHOLD)),
    "sandwich": (lambda q, k: pe.sandwich(q, k, HEADS, 16), ()),
}


def facts(case: str) -> Bias:
    """The entry of a case."""
    return BIASES[case.partition(",")[0]]
