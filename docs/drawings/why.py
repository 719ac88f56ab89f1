"""Attention with and without positions."""

import numpy as np
from matplotlib.figure import Figure

import posenc_jax as pe
from posenc_jax import plot
from posenc_jax.plot import _drawing

TOKENS = np.array([[1.0, 0.0, 0.5, 0.2], [0.0, 1.0, 0.3, 0.8], [0.5, 0.5, 1.0, 0.1]])
NAMES = ("cat", "sat", "down")
ORDER = np.array([2, 0, 1])


def error_home() -> Figure:
    """Two curves on logarithmic axes, error against position. The error of textbook float32 begins at 5e-8, rises in a
    ragged straight line to 2 near position fifty million, and stays there up to two billion. The error of exact phases
    stays level at 5e-8, under a dotted line at 9e-8, over the whole range."""
    figure = plot.phase_error(128)
    figure.set_size_inches(6.4, 3.4)
    return figure


def three_tokens() -> Figure:
    """Four 3 by 3 tables of attention weights between cat, sat and down. In the upper row, without positions, the
    table of the order cat sat down and that of the order down cat sat are equal cell by cell. In the lower row, with
    positions, they differ: the weight of cat for itself, for one, depends on where it stands."""
    places = np.asarray(pe.sinusoidal(np.arange(3), 4), np.float64)
    back = np.argsort(ORDER)
    rows = {"without positions": np.zeros_like(places), "with positions": places}
    figure = Figure(figsize=(5.6, 5.4), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for line, (name, encoding) in zip(panels, rows.items(), strict=True):
        here = _drawing.self_attention(TOKENS + encoding)
        there = _drawing.self_attention(TOKENS[ORDER] + encoding)[back][:, back]
        for axes, weights, order in zip(line, (here, there), ("cat sat down", "down cat sat"), strict=True):
            image = _drawing.image(axes, weights, "magma", 0.0, 0.75, "equal")
            _drawing.write_cells(axes, image, weights)
            axes.set_title(f"“{order}”,\n{name}", size="medium")
            axes.set_xticks(range(3), NAMES)
            axes.set_yticks(range(3), NAMES)
    for axes in panels[1]:
        axes.set_xlabel("key")
    for axes in panels[:, 0]:
        axes.set_ylabel("query")
    return figure
