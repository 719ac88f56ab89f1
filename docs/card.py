"""The picture that a link to the site shows elsewhere: `card.png`, made when the site is built."""

import textwrap
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import posenc_jax as pe

SIZE = 1200, 630  # pixels, as those who show it ask for
BLUE = "#00314d"


def draw(name: str, description: str) -> Figure:
    """The site's name and what it is, beside a table of encodings."""
    figure = Figure(figsize=(SIZE[0] / 100, SIZE[1] / 100), dpi=100, facecolor=BLUE)
    table = figure.add_axes((0.56, 0, 0.44, 1))
    table.set_axis_off()
    table.imshow(pe.sinusoidal(np.arange(63), pe.geometric(44, 200)), cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
    words = "\n".join(textwrap.wrap(description, 31))
    figure.text(0.05, 0.74, name, color="white", size=46, weight="bold", va="center")
    figure.text(0.05, 0.6, words, color="white", size=23, va="top", linespacing=1.5)
    return figure


def write(path: Path, name: str, description: str) -> None:
    """The same bytes in every run."""
    draw(name, description).savefig(path, metadata={"Software": None})
