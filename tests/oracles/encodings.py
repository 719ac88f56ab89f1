"""Sines and cosines of ω·p, and the sinusoidal encoding that they make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from oracles.spectra import MP, Real, geometric


def waves(points: Any, omegas: Sequence[Real], axes: Sequence[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """sin and cos of ω·p, float64 (..., pairs), of positions and ω at their exact value.

    Positions are (...), or (..., coordinates), of which pair i turns by number axes[i].
    """
    points = np.asarray(points) if axes is not None else np.asarray(points)[..., None]
    axes = [0] * len(omegas) if axes is None else axes
    rows = points.reshape(-1, points.shape[-1]).tolist()
    phases = [[MP.mpf(row[axis]) * w for axis, w in zip(axes, omegas, strict=True)] for row in rows]
    shape = *points.shape[:-1], len(omegas)
    sine, cosine = (np.array([[float(f(x)) for x in row] for row in phases]).reshape(shape) for f in (MP.sin, MP.cos))
    return sine, cosine


def encode(
    positions: Any, dim: int, base: Real = 10_000, layout: str = "interleaved", endpoint: bool = False
) -> np.ndarray:
    """The sinusoidal encoding, written as the notation in the paper writes it: feature by feature."""
    sine, cosine = waves(positions, geometric(dim, base, endpoint))
    pairs = (dim + 1) // 2
    out = np.zeros((len(sine), dim))
    for i in range(pairs):
        s, c = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + pairs)
        out[:, s] = sine[:, i]
        if c < dim:
            out[:, c] = cosine[:, i]
    return out


def textbook(positions: Any, dim: int, base: float = 10_000.0) -> np.ndarray:
    """The naive formula in float64: good to 1e-10 at positions up to a few thousand."""
    out = np.zeros((len(positions), dim))
    for j in range(dim):
        angle = np.asarray(positions, np.float64) / base ** (2 * (j // 2) / dim)
        out[:, j] = np.sin(angle) if j % 2 == 0 else np.cos(angle)
    return out
