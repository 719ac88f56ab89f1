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
    """A bias as a function of positions, and what tests need to know of it."""

    function: Callable[..., jax.Array]
    arguments: Callable[[int], dict[str, Any]]  # besides the positions, for so many heads; arrays are parameters
    formula: Callable[..., np.ndarray]  # in float64, of the distances |i − j| and `arguments`
    sided: bool = False  # the formula asks before `arguments` whether the key is after the query; integers alone
    absolute: bool = False  # the formula asks before `arguments` where the query is, which is not before 0
    rounded: bool = False  # its last bit depends on the order of a sum, or on how the compiler divides

    def of(self, heads: int) -> tuple[Callable[..., jax.Array], tuple[np.ndarray, ...]]:
        """The function of positions and parameters, and the parameters, in the order of the arguments."""
        leaves, tree = jax.tree.flatten([*self.arguments(heads).items()])
        at = [n for n, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray)]

        def call(queries: Any, keys: Any, *parameters: Any) -> jax.Array:
            given = dict(enumerate(leaves)) | dict(zip(at, parameters, strict=True))
            return self.function(queries, keys, **dict(tree.unflatten(given.values())))

        return call, tuple(leaves[n] for n in at)

    def truth(self, query_positions: Any, key_positions: Any, **given: Any) -> np.ndarray:
        """The formula of positions and of all arguments by name, which JAX sorts."""
        at, distance, after = oracles.exact_tile(query_positions, key_positions)
        asked = [after] * self.sided + [at] * self.absolute
        return self.formula(distance, *asked, *(given[name] for name in self.arguments(1)))

    def beside(self, heads: int) -> tuple[Callable[..., jax.Array], Callable[..., np.ndarray]]:
        """The function of positions, and its truth from distances, queries' positions and sides."""
        given = self.arguments(heads)

        def truth(distance: Any, queries: Any, after: Any) -> np.ndarray:
            asked = [after] * self.sided + [queries] * self.absolute
            return self.formula(distance, *asked, *given.values())

        return partial(self.function, **given), truth


def _spread(start: float, end: float) -> Callable[[int], np.ndarray]:
    return lambda heads: np.linspace(start, end, heads, dtype=np.float32)


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _sandwich(distance: Any, heads: int, width: int) -> np.ndarray:
    return oracles.sandwich(distance, heads, spectra.geometric(width, 10_000))


_slopes, _rates = _spread(0.5, 0.3), _spread(0.4, 0.9)
_powers = _spread(0.75, 1.25)  # not ½, which becomes a square root
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
