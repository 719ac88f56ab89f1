"""Positions of several coordinates."""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import posenc_jax as pe
from posenc_jax.plot import _drawing


def patch_similarity() -> Figure:
    """Similarity of one patch, in row 4 and column 15 of a grid of 14 rows and 24 columns, with all others, in three
    panels. Encoded by row and column, it is largest at the patch and along its row and its column, a cross. Encoded by
    its index in the flattened order, a few patches to its left and right are similar, and the patches above and below
    are not. Encoded with the sides of the grid exchanged, the cross breaks into short dashes all over the image, in
    slanting rows."""
    height, width, row, column = 14, 24, 4, 15
    f = pe.axial(64, 2, 100.0)
    tables = {
        "by row and column": pe.sinusoidal(pe.grid_positions((height, width)), f),
        "by index in the sequence": pe.sinusoidal(jnp.arange(height * width), pe.geometric(64, 100.0)),
        "with the sides exchanged": pe.sinusoidal(pe.grid_positions((width, height)), f),
    }
    figure = Figure(figsize=(5.2, 7.2), layout="constrained")
    panels = figure.subplots(3, 1, sharex=True)
    for axes, (title, table) in zip(panels, tables.items(), strict=True):
        table = np.asarray(table).astype(np.float64)
        similarity = table @ table[row * width + column] / f.num_pairs
        image = _drawing.image(axes, similarity.reshape(height, width), "viridis", -0.5, 1.0, "equal")
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=_drawing.COLOURS[1], lw=2))
        axes.set_title(title, size="medium")
        axes.set_ylabel("row")
    panels[2].set_xlabel("column")
    figure.colorbar(image, ax=panels, label="cosine similarity", location="bottom", shrink=0.7, aspect=30)
    return figure


def mixed_similarity() -> Figure:
    """Score of the middle patch of a grid of 21 by 21 with all others, in two panels. Axial pairs give a bright cross
    through the patch, as wide as the picture. Pairs of mixed directions give a bright disc around the patch, which
    fades irregularly on all sides."""
    side, pairs = 21, 32
    grid = pe.grid_positions((side, side))
    middle = side * side // 2
    speeds = pe.geometric(2 * pairs, 100.0).angular
    turn = np.asarray(jax.random.uniform(jax.random.key(3), (pairs,), maxval=2 * np.pi))
    mixed = jnp.float32(speeds * np.stack([np.sin(turn), np.cos(turn)]))
    spectra = {"axial": pe.axial(2 * pairs, 2, 100.0), "mixed directions": mixed}
    figure = Figure(figsize=(5.6, 3.8), layout="constrained")
    both = figure.subplots(1, 2, sharey=True)
    for axes, (name, f) in zip(both, spectra.items(), strict=True):
        turned = np.asarray(pe.rotary(jnp.ones((side * side, 1, 2 * pairs)), grid, f, head_axis=-2))[:, 0]
        score = (turned @ turned[middle] / (2 * pairs)).reshape(side, side)
        image = _drawing.image(axes, score, "viridis", -0.5, 1.0, "equal")
        centre = side // 2 - 0.5
        axes.add_patch(Rectangle((centre, centre), 1, 1, fill=False, edgecolor=_drawing.COLOURS[1], lw=2))
        axes.set_title(name, size="medium")
        axes.set_xlabel("column")
    both[0].set_ylabel("row")
    figure.colorbar(image, ax=both, label="score / largest", location="bottom", shrink=0.6, aspect=30)
    return figure


def pair_coordinates() -> Figure:
    """Three strips of 64 pairs, each with lanes for time, row and column and a mark where the coordinate rotates
    the pair. Axial for an image: the first half row, the second half column. Sections in blocks, 16, 24, 24: time, then
    row, then column. Alternating sections, 24, 20, 20: the three alternate up to pair 59, then time has the rest."""
    spectra = {
        "axial(128, 2)": pe.axial(128, 2),
        "multi_section(128, (16, 24, 24))": pe.multi_section(128, (16, 24, 24)),
        "multi_section(128, (24, 20, 20), interleaved=True)": pe.multi_section(128, (24, 20, 20), interleaved=True),
    }
    figure = Figure(figsize=(6.6, 4.8), layout="constrained")
    for axes, (title, f) in zip(figure.subplots(3, 1, sharex=True), spectra.items(), strict=True):
        names = ("row", "column") if f.num_axes == 2 else ("time", "row", "column")
        places = [np.flatnonzero(np.asarray(f.axes) == axis) for axis in range(f.num_axes)]
        colours = _drawing.COLOURS[3 - len(names) : 3]
        axes.eventplot(places, lineoffsets=range(len(names)), linelengths=0.8, linewidths=3.2, colors=colours)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_title(title, size="medium")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    axes.set_xlabel("pair of features, from fast to slow (axial: twice from fast to slow)")
    return figure
