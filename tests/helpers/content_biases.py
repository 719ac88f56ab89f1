"""`examples/content_attention.py` beside modules of transformers: inputs drawn from a seed, outputs and gradients of a case.

A case says which layer it is, its settings, the shapes of the module's arrays by name, and what the module computed:
an output, and gradients of its sum with a cotangent. Weights are drawn, by name, wherever they are needed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def drawn(seed: int, name: str, shape: Any, deviation: float | None = None) -> np.ndarray:
    """Normal float32 numbers; NumPy promises that those of a RandomState never change."""
    random = np.random.RandomState([seed, zlib.crc32(name.encode())])
    deviation = 1.5 * shape[-1] ** -0.5 if deviation is None and len(shape) > 1 else deviation or 0.5
    return (random.standard_normal(tuple(shape)) * deviation).astype(np.float32)


def hidden_and_cotangent(seed: int, shape: Any, mask: Any) -> tuple[np.ndarray, np.ndarray]:
    """Nothing depends on the outputs of padding."""
    x, cotangent = (drawn(seed, name, shape, 1.0) for name in ("hidden", "cotangent"))
    return x, cotangent if mask is None else cotangent * np.float32(mask)[..., None]


def inputs(case: dict[str, Any]) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Hidden states, weights and cotangent."""
    weights = {name: drawn(case["seed"], name, shape) for name, shape in case["weights"].items()}
    x, cotangent = hidden_and_cotangent(case["seed"], case["hidden"], case["mask"])
    return x, weights, cotangent


def options(case: dict[str, Any]) -> dict[str, Any]:
    found = dict(case["settings"])
    if case["mask"] is not None:
        found["mask"] = np.array(case["mask"], np.int32)
    return found


def output(layer: Callable[..., Any], case: dict[str, Any], block_size: int) -> Any:
    x, weights, _ = inputs(case)
    return jax.jit(lambda x, weights: layer(x, weights, **options(case), block_size=block_size))(x, weights)


def output_and_gradients(layer: Callable[..., Any], case: dict[str, Any], block_size: int) -> dict[str, Any]:
    """By one program."""
    x, weights, cotangent = inputs(case)
    tables = [name for name in case["gradients"] if name != "hidden"]

    def both(x, weights, cotangent):
        def of(x, found):
            return layer(x, weights | found, **options(case), block_size=block_size)

        y, back = jax.vjp(of, x, {name: weights[name] for name in tables})
        of_hidden, of_tables = back(cotangent)
        return {"output": y, "gradients": {"hidden": of_hidden} | of_tables}

    return jax.jit(both)(x, weights, cotangent)


def difference(got: Any, want: Any, case: dict[str, Any], of_tokens: bool = False) -> float:
    """The largest one, over the largest number; of tokens without padding. NaN is infinitely far."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    if of_tokens and case["mask"] is not None:
        real = np.array(case["mask"]) == 1
        got, want = got[real], want[real]
    return float(np.nan_to_num(np.abs(got - want) / np.abs(want).max(), nan=np.inf).max())


def differences(layer: Callable[..., Any], case: dict[str, Any], block_size: int) -> dict[str, float]:
    """By the name of what differs."""
    got = output_and_gradients(layer, case, block_size)
    found = {"output": difference(got["output"], case["output"], case, of_tokens=True)}
    return found | {name: difference(got["gradients"][name], want, case) for name, want in case["gradients"].items()}
