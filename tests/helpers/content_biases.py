"""Inputs from a seed of layers of `examples/content_attention.py` and of their modules of transformers."""

from __future__ import annotations

import zlib
from typing import Any

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
