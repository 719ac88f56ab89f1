"""Positions of several coordinates."""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import posenc_jax as pe
from drawings import COLOURS, colour_bar, for_phone, panels
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
    figure, grid = panels((1, 3, 260), (3, 1, 780), tables, "column", "row", sharex=True, sharey=True)
    for axes, table in zip(grid, tables.values(), strict=True):
        table = np.asarray(table).astype(np.float64)
        similarity = table @ table[row * width + column] / f.num_pairs
        image = _drawing.image(axes, similarity.reshape(height, width), "viridis", -0.5, 1.0, "equal")
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="black", lw=2))
    colour_bar(image, grid, "cosine similarity")
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
    figure, both = panels((1, 2, 430), (1, 2, 260), spectra, "column", "row", sharey=True)
    for axes, f in zip(both, spectra.values(), strict=True):
        turned = np.asarray(pe.rotary(jnp.ones((side * side, 1, 2 * pairs)), grid, f, head_axis=-2))[:, 0]
        score = (turned @ turned[middle] / (2 * pairs)).reshape(side, side)
        image = _drawing.image(axes, score, "viridis", -0.5, 1.0, "equal")
        centre = side // 2 - 0.5
        axes.add_patch(Rectangle((centre, centre), 1, 1, fill=False, edgecolor="black", lw=2))
    colour_bar(image, both, "score / largest")
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
    figure, strips = panels((3, 1, 430), (3, 1, 430), spectra, "pair of features", sharex=True)
    for axes, (title, f) in zip(strips, spectra.items(), strict=True):
        names = ("row", "column") if f.num_axes == 2 else ("time", "row", "column")
        places = [np.flatnonzero(np.asarray(f.axes) == axis) for axis in range(f.num_axes)]
        colours = COLOURS[3 - len(names) : 3]
        width = 2.4 if for_phone() else 6
        axes.eventplot(places, lineoffsets=range(len(names)), linelengths=0.8, linewidths=width, colors=colours)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.grid(False)
        if for_phone():
            axes.set_title(title.replace(", interleaved", ",\n  interleaved"))
    return figure
