"""Attention with and without positions."""

import numpy as np
from matplotlib.figure import Figure

import posenc_jax as pe
from drawings import FIRST, SECOND, for_phone, panels
from posenc_jax import plot
from posenc_jax.plot import _drawing

TOKENS = np.array([[1.0, 0.0, 0.5, 0.2], [0.0, 1.0, 0.3, 0.8], [0.5, 0.5, 1.0, 0.1]])
NAMES = ("cat", "sat", "down")
ORDER = np.array([2, 0, 1])


def error_home() -> Figure:
    """Two curves on logarithmic axes, error against position. The error of textbook float32 begins at 5e-8, rises in a
    ragged straight line to 2 near position fifty million, and stays there up to two billion. The error of posenc_jax
    stays level at 5e-8 over the whole range."""
    figure = plot.phase_error(128)
    figure.set_size_inches(*(pixels / 96 for pixels in ((350, 290) if for_phone() else (520, 340))))
    (axes,) = figure.axes
    figure.legends[0].remove()
    axes.lines[2].remove()
    for line, colour in zip(axes.lines, (SECOND, FIRST), strict=True):
        line.set(color=colour, linewidth=2.4, linestyle="-")
    axes.text(1.5, 0.3, "textbook float32", color=SECOND, size="large", weight="bold")
    axes.text(2e9, 6e-9, "posenc_jax", color=FIRST, size="large", weight="bold", ha="right")
    axes.set(title="", xlabel="position", ylabel="largest error", ylim=(1e-9, 10))
    axes.set_xticks([1, 1e3, 1e6, 1e9], ["1", "1 thousand", "1 million", "1 billion"])
    return figure


def three_tokens() -> Figure:
    """Four 3 by 3 tables of attention weights between cat, sat and down. In the first two, without positions, the
    table of the order cat sat down and that of the order down cat sat are equal cell by cell. In the other two, with
    positions, they differ: the weight of cat for itself, for one, depends on where it stands."""
    places = np.asarray(pe.sinusoidal(np.arange(3), 4), np.float64)
    back = np.argsort(ORDER)
    rows = {"without positions": np.zeros_like(places), "with positions": places}
    figure, grid = panels((1, 4, 260), (2, 2, 420), (), "key", "query", sharex=True, sharey=True)
    for line, (name, encoding) in zip((grid[:2], grid[2:]), rows.items(), strict=True):
        here = _drawing.self_attention(TOKENS + encoding)
        there = _drawing.self_attention(TOKENS[ORDER] + encoding)[back][:, back]
        for axes, weights, order in zip(line, (here, there), ("cat sat down", "down cat sat"), strict=True):
            image = _drawing.image(axes, weights, "magma", 0.0, 0.75, "equal")
            _drawing.write_cells(axes, image, weights)
            axes.set_title(f"“{order}”,\n{name}")
            axes.set_xticks(range(3), NAMES)
            axes.set_yticks(range(3), NAMES)
    return figure
