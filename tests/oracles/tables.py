"""Learned tables of another length."""

import math
from fractions import Fraction

import numpy as np


def keys(x):
    """The kernel of Keys, 1981, equation 4, with the a of torch."""
    x, a = abs(x), -0.75
    return (a + 2) * x**3 - (a + 3) * x**2 + 1 if x <= 1 else a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0


def hat(x):
    """The kernel of linear interpolation."""
    return max(0.0, 1 - abs(x))


def resampled(table, shape, kernel, *, align_corners=False, zeros_outside=False, size_offset=0.0):
    """Sums of rows by a kernel of the distance, along each axis but the last; not antialiased.

    New row j is at (j + ½)·old/(new + size_offset) − ½, or at j·(old − 1)/(new − 1), 0 for one row, with corners
    aligned. Rows outside are zeros, or the first and the last row.
    """
    found = table.astype(np.float64)
    for axis, new in enumerate(shape):
        rows, old, size = np.moveaxis(found, axis, 0), found.shape[axis], new + Fraction(size_offset)
        resized = []
        for j in range(new):
            at = Fraction(2 * j + 1, 2) * old / size - Fraction(1, 2)
            if align_corners:
                at = Fraction(j * (old - 1), new - 1) if new > 1 else Fraction(0)
            near = range(math.floor(at) - 1, math.floor(at) + 3)
            found_at = [rows[min(max(i, 0), old - 1)] * (0 <= i < old or not zeros_outside) for i in near]
            resized.append(sum(kernel(float(at - i)) * row for i, row in zip(near, found_at, strict=True)))
        found = np.moveaxis(np.array(resized), 0, axis)
    return found


def cubic(table, shape, **settings):
    """Cubic convolution along each axis but the last."""
    return resampled(table, shape, keys, **settings)


def linear(table, shape, **settings):
    """Linear interpolation along each axis but the last."""
    return resampled(table, shape, hat, **settings)
