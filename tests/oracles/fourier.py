"""Fourier features and timestep embeddings, feature by feature."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from oracles.encodings import waves
from oracles.rotations import features
from oracles.spectra import MP


def fourier_features(x: np.ndarray, matrix: np.ndarray, layout: str = "half") -> np.ndarray:
    """sin and cos of 2π times the exact sum of products, less its whole turns: a rational number until the end."""
    sine, cosine = np.zeros((2, len(x), matrix.shape[1]))
    for i, row in enumerate(x):
        for j, column in enumerate(matrix.T):
            turns = sum(Fraction(float(a)) * Fraction(float(b)) for a, b in zip(row, column, strict=True)) % 1
            phase = 2 * MP.pi * turns.numerator / turns.denominator
            sine[i, j], cosine[i, j] = float(MP.sin(phase)), float(MP.cos(phase))
    return features(sine, cosine, layout)


def timestep_embedding(
    timesteps: Any, dim: int, flip: bool = False, shift: float = 1, scale: float = 1, period: float = 10_000
) -> tuple[np.ndarray, np.ndarray]:
    """The waves, and the zeros that fill an odd width."""
    n = dim // 2
    exponents = [MP.mpf(i) / (n - MP.mpf(shift)) if i else MP.mpf(0) for i in range(n)]
    sine, cosine = waves(timesteps, [MP.mpf(scale) * MP.mpf(period) ** -e for e in exponents])
    return np.concatenate([cosine, sine] if flip else [sine, cosine], 1), np.zeros((len(timesteps), dim % 2))
