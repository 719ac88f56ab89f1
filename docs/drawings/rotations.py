"""The matrix that moves an encoding, and the dot product of two encodings."""

import numpy as np
from matplotlib.figure import Figure

import posenc_jax as pe
from posenc_jax import plot
from posenc_jax.plot import _drawing


def matrices() -> Figure:
    """Three 16 by 16 matrices in red and blue, for k = 1, 3 and 10. All cells away from the two-by-two blocks on the
    diagonal are zero. The upper left blocks change their colours from matrix to matrix; the lower right blocks keep a
    red diagonal and pale other cells."""
    figure = Figure(figsize=(6.8, 2.9), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for axes, k in zip(panels, (1, 3, 10), strict=True):
        image = _drawing.image(axes, np.asarray(pe.rotation_matrix(k, 16)), "RdBu_r", -1, 1, "equal")
        axes.set_title(f"k = {k}", size="medium")
        axes.set_xlabel("feature at p")
    panels[0].set_ylabel("feature at p + k")
    figure.colorbar(image, ax=panels, label="entry", ticks=[-1, 0, 1], shrink=0.8)
    return figure


def products() -> Figure:
    """Dot product against offset, from 0 to 20, at width 16: a line that falls from 8 to 5.5 within three steps and
    then swings between 3.6 and 6.4. Hollow marks for four starting positions lie on it, inside each other."""
    return plot.offset_products(16)
