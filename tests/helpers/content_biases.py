"""`examples/content_attention.py` beside modules of transformers: inputs from a seed, outputs and gradients.

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


def differences(layer: Callable[..., Any], case: dict[str, Any], block_size: int) -> dict[str, float]:
    """Of the output and each gradient, the largest one over the largest number; NaN is infinitely far."""
    weights = {name: drawn(case["seed"], name, shape) for name, shape in case["weights"].items()}
    x, cotangent = hidden_and_cotangent(case["seed"], case["hidden"], case["mask"])
    mask = {} if case["mask"] is None else {"mask": np.array(case["mask"], np.int32)}
    tables = {name: weights[name] for name in case["gradients"] if name != "hidden"}

    @jax.jit
    def output_and_gradients(x, weights, tables, cotangent):
        def of(x, tables):
            return layer(x, weights | tables, **case["settings"], **mask, block_size=block_size)

        y, back = jax.vjp(of, x, tables)
        of_hidden, of_tables = back(cotangent)
        return {"output": y, "hidden": of_hidden} | of_tables

    found, result = output_and_gradients(x, weights, tables, cotangent), {}
    for name, want in ({"output": case["output"]} | case["gradients"]).items():
        got, want = np.asarray(found[name], np.float64), np.asarray(want, np.float64)
        assert got.shape == want.shape
        if name == "output" and mask:
            got, want = got[mask["mask"] == 1], want[mask["mask"] == 1]
        result[name] = float(np.nan_to_num(np.abs(got - want) / np.abs(want).max(), nan=np.inf).max())
    return result
