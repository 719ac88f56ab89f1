"""The drawings of the site, a module for each page or two, and what they share.

A drawing is made twice: as wide as the column of a page, and for a phone, where panels stand one below another. It has
no title, since the caption says it; the names of panels stand above them.

A colour means one thing on all pages. Red and blue: numbers above and below zero (encodings, matrices, parts of scores,
biases). Dark blue to yellow: similarity. Black to cream: attention weights. Blue lines are exact or known, vermilion
ones rounded or new. Green is a query, purple a key.
"""

from collections.abc import Iterable
from typing import Any

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure

from posenc_jax.plot import _drawing

WIDE, NARROW = 760, 350  # CSS pixels
# As they are written in a drawing; `figures.py` has those of light and of dark pages.
FIRST, SECOND, QUERY, KEY, AMBER, SKY = COLOURS = tuple(map(str.lower, _drawing.COLOURS))
SEEN, NEW, GREY, GOOD, BAD = "#7f97ab", "#e2701e", "#8c959f", "#2e9e4f", "#e5533d"
UPRIGHT = {"rotation": 90, "rotation_mode": "anchor", "ha": "right", "va": "center"}  # of words below a heatmap


def for_phone() -> bool:
    """Whether the drawing is made for a phone."""
    return 96 * rcParams["figure.figsize"][0] < WIDE


def panels(
    wide: tuple[int, int, int],
    phone: tuple[int, int, int],
    titles: Iterable[str] = (),
    xlabel: str = "",
    ylabel: str = "",
    layout: str = "compressed",
    **options: Any,
) -> tuple[Figure, list[Axes]]:
    """Axes in rows and columns, with a height in pixels, for a page's column and a phone; labels at the outer ones."""
    rows, columns, height = phone if for_phone() else wide
    figure = Figure(figsize=(rcParams["figure.figsize"][0], height / 96), layout=layout)
    grid = figure.subplots(rows, columns, squeeze=False, **options)
    for axes, title in zip(grid.flat, titles, strict=False):
        axes.set_title(title)
    for axes in grid[-1]:
        axes.set_xlabel(xlabel)
    for axes in grid[:, 0]:
        axes.set_ylabel(ylabel)
    return figure, list(grid.flat)


def single(xlabel: str, ylabel: str, wide: int = 340, phone: int = 300) -> tuple[Figure, Axes]:
    """A figure with one panel."""
    figure, (axes,) = panels((1, 1, wide), (1, 1, phone), xlabel=xlabel, ylabel=ylabel)
    return figure, axes


def colour_bar(image: ScalarMappable, axes: list[Axes], label: str, ticks: list[float] | None = None) -> None:
    """A scale of colours below panels."""
    shrink, aspect = (0.9, 24) if for_phone() else (0.5, 30)
    axes[0].figure.colorbar(image, ax=axes, label=label, ticks=ticks, location="bottom", shrink=shrink, aspect=aspect)


def legend(figure: Figure, **options: Any) -> None:
    """A legend below the axes."""
    figure.legend(loc="outside lower center", **options)


def fit(figure: Figure, wide: int = 340, phone: int = 300) -> Figure:
    """A figure of posenc_jax.plot in a drawing's size, without its title."""
    figure.set_size_inches(rcParams["figure.figsize"][0], (phone if for_phone() else wide) / 96)
    figure.set_layout_engine("compressed")
    (figure.suptitle if figure.get_suptitle() else figure.axes[0].set_title)("")
    for old in list(figure.legends):
        old.remove()
        _drawing.legend(figure, old.get_title().get_text() or None)
    return figure
