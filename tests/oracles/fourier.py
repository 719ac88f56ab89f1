"""Fourier features and timestep embeddings, feature by feature."""

from fractions import Fraction

import numpy as np

from oracles.encodings import waves
from oracles.rotations import features
from oracles.spectra import MP


def fourier_features(x, matrix, layout="half"):
    """sin and cos of 2π times the exact sum of products, less its whole turns: a rational number until the end."""
    sine, cosine = np.zeros((2, len(x), matrix.shape[1]))
    for i, row in enumerate(x):
        for j, column in enumerate(matrix.T):
            turns = sum(Fraction(float(a)) * Fraction(float(b)) for a, b in zip(row, column, strict=True)) % 1
            phase = 2 * MP.pi * turns.numerator / turns.denominator
            sine[i, j], cosine[i, j] = float(MP.sin(phase)), float(MP.cos(phase))
    return features(sine, cosine, layout)


def along(x, matrix, one, other, layout="half"):
    """The derivatives of the features along the direction `one` = (dx, db), and those of these along `other`."""
    sine, cosine = np.split(fourier_features(x, matrix), 2, axis=1)
    x, matrix = x.astype(np.float64), matrix.astype(np.float64)
    by_one, by_other = (2 * np.pi * (dx @ matrix + x @ db) for dx, db in (one, other))
    both = 2 * np.pi * (one[0] @ other[1] + other[0] @ one[1])
    first = cosine * by_one, -sine * by_one
    second = cosine * both - sine * by_one * by_other, -sine * both - cosine * by_one * by_other
    return features(*first, layout), features(*second, layout)


def nerf(x, octaves):
    """The encoding of NeRF's paper: sin and cos of 2ᵏ·π·p for each coordinate p and octave k."""
    return np.stack(waves(x, [2**k * MP.pi for k in range(octaves)]), -1).reshape(len(x), -1)


def timestep_embedding(timesteps, dim, flip=False, shift=1, scale=1, period=10_000):
    """The waves, and the zeros that fill an odd width."""
    n = dim // 2
    exponents = [MP.mpf(i) / (n - MP.mpf(shift)) if i else MP.mpf(0) for i in range(n)]
    sine, cosine = waves(timesteps, [MP.mpf(scale) * MP.mpf(period) ** -e for e in exponents])
    return np.concatenate([cosine, sine] if flip else [sine, cosine], 1), np.zeros((len(timesteps), dim % 2))
