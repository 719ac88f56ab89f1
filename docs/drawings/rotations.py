"""The matrix that moves an encoding, and the dot product of two encodings."""

import numpy as np
from matplotlib.figure import Figure

import posenc_jax as pe
from drawings import colour_bar, fit, panels
from posenc_jax import plot
from posenc_jax.plot import _drawing


def matrices() -> Figure:
    """Three 16 by 16 matrices in red and blue, for k = 1, 3 and 10. All cells away from the two-by-two blocks on the
    diagonal are zero. The upper left blocks change their colours from matrix to matrix; the lower right blocks keep a
    red diagonal and pale other cells."""
    offsets = {"k = 1": 1, "k = 3": 3, "k = 10": 10}
    figure, grid = panels((1, 3, 340), (1, 3, 220), offsets, "feature at p", "feature at p + k", sharey=True)
    for axes, k in zip(grid, offsets.values(), strict=True):
        image = _drawing.image(axes, np.asarray(pe.rotation_matrix(k, 16)), "RdBu_r", -1, 1, "equal")
    colour_bar(image, grid, "entry", [-1, 0, 1])
    return figure


def products() -> Figure:
    """Dot product against offset, from 0 to 20, at width 16: a line that falls from 8 to 5.5 within three steps and
    then swings between 3.6 and 6.4. Hollow marks for four starting positions lie on it, inside each other."""
    return fit(plot.offset_products(16), phone=340)
