"""Every attention bias: a function, valid arguments for any number of heads, and its formula."""

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
    """A bias as a function of positions, its formula in float64, and what the formula takes."""

    function: Callable[..., jax.Array]
    arguments: Callable[[int], dict[str, Any]]  # number of heads → keyword arguments; arrays are parameters
    formula: Callable[..., np.ndarray]  # of the distances |i − j| and `arguments`, in float64
    sided: bool = False  # the formula takes `after`, whether j > i, before `arguments`; positions are integers
    absolute: bool = False  # the formula takes the positions of queries before `arguments`; they are at least 0
    rounded: bool = False  # the last bit of a value depends on the order of a sum, or on how the compiler divides

    def of(self, heads: int) -> tuple[Callable[..., jax.Array], tuple[np.ndarray, ...]]:
        """A function of positions and parameters (the arrays among the arguments), and these parameters in order."""
        leaves, tree = jax.tree.flatten([*self.arguments(heads).items()])
        arrays = [n for n, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray)]

        def call(queries: Any, keys: Any, *parameters: Any) -> jax.Array:
            given = dict(enumerate(leaves)) | dict(zip(arrays, parameters, strict=True))
            return self.function(queries, keys, **dict(tree.unflatten(given.values())))

        return call, tuple(leaves[n] for n in arrays)

    def of_distances(self, distance: Any, queries: Any, after: Any, arguments: Any) -> np.ndarray:
        """The formula of distances, positions of queries, whether j > i, and the values of `arguments` in order."""
        return self.formula(distance, *[after] * self.sided, *[queries] * self.absolute, *arguments)

    def truth(self, query_positions: Any, key_positions: Any, **given: Any) -> np.ndarray:
        """The formula of positions and of all arguments by name; JAX may have sorted their names."""
        queries, distance, after = oracles.exact_tile(query_positions, key_positions)
        return self.of_distances(distance, queries, after, (given[name] for name in self.arguments(1)))

    def beside(self, heads: int) -> tuple[Callable[..., jax.Array], Callable[..., np.ndarray]]:
        """The function of positions, and its formula of (distance, positions of queries, whether j > i)."""
        given = self.arguments(heads)
        return partial(self.function, **given), partial(self.of_distances, arguments=given.values())


def _spread(start: float, end: float) -> Callable[[int], np.ndarray]:
    """A function that spreads one value per head evenly from start to end."""
    return lambda heads: np.linspace(start, end, heads, dtype=np.float32)


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _sandwich(distance: Any, heads: int, width: int) -> np.ndarray:
    return oracles.sandwich(distance, heads, spectra.geometric(width, 10_000))


_slopes, _rates = _spread(0.5, 0.3), _spread(0.4, 0.9)
_powers = _spread(0.75, 1.25)  # without 0.5: XLA turns x^0.5 into a square root
_relative = partial(pe.relative_position_bias, out_of_range="zeros")

BIASES = {
    "alibi": Bias(pe.alibi, lambda n: {"heads": _slopes(n)}, oracles.alibi),
    "t5": Bias(pe.t5, lambda n: {"table": _normal(32, n)}, oracles.t5, sided=True),
    "relative_position_bias": Bias(_relative, lambda n: {"table": _normal(99, n)}, oracles.of_offsets, sided=True),
    "kerple_log": Bias(
        pe.kerple_log,
        lambda n: {"scale": _slopes(n), "rate": _rates(n)},
        oracles.kerple_log,
    ),
    "kerple_power": Bias(
        pe.kerple_power,
        lambda n: {"scale": _slopes(n), "exponent": _powers(n)},
        oracles.kerple_power,
    ),
    "fire": Bias(
        pe.fire,
        lambda n: {"mlp": (_normal(4), _normal(4)[::-1], _normal(4, n), _normal(n)), "c": 0.125, "threshold": 64.0},
        oracles.fire,
        absolute=True,
        rounded=True,
    ),
    "sandwich": Bias(pe.sandwich, lambda n: {"heads": n, "frequencies": 6}, _sandwich, rounded=True),
}
