"""Learned tables of another length."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np


def centres(old: int, new: int) -> np.ndarray:
    """Where the rows of the new table lie in the old one: cell j of `new` has its centre at (j + ½)·old/new − ½."""
    return np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)


def lengthened(table: np.ndarray, length: int) -> np.ndarray:
    """Linear interpolation at the centres of cells."""
    at, rows = centres(len(table), length), np.arange(len(table))
    return np.stack([np.interp(at, rows, column) for column in table.T], 1)


def keys(x: float, a: float) -> float:
    """The kernel of Keys, 1981, equation 4, whose weights at whole distances are 1 and 0 for any a."""
    x = abs(x)
    return (a + 2) * x**3 - (a + 3) * x**2 + 1 if x <= 1 else a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0


def cubic(table: np.ndarray, shape: tuple[int, ...], a: float) -> np.ndarray:
    """Cubic convolution along each axis but the last, with the first and the last row repeated; not antialiased."""
    found = table.astype(np.float64)
    for axis, new in enumerate(shape):
        rows, old = np.moveaxis(found, axis, 0), found.shape[axis]
        resized = []
        for j in range(new):
            at = Fraction((2 * j + 1) * old - new, 2 * new)
            near = range(math.floor(at) - 1, math.floor(at) + 3)
            resized.append(sum(keys(float(at - i), a) * rows[min(max(i, 0), old - 1)] for i in near))
        found = np.moveaxis(np.array(resized), 0, axis)
    return found
