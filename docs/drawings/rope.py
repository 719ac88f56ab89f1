"""Rotary embeddings."""

import jax.numpy as jnp
import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Arc, Circle

import posenc_jax as pe
from drawings import COLOURS, GREY, KEY, QUERY, panels, single
from posenc_jax.plot import _drawing


def _dial(axes: Axes) -> None:
    """The unit circle and its centre."""
    axes.set(aspect="equal", xlim=(-1.32, 1.32), ylim=(-1.32, 1.32))
    axes.set_axis_off()
    axes.add_patch(Circle((0, 0), 1, fill=False, color=GREY, lw=1, alpha=0.6))


def _hand(axes: Axes, angle: float, colour: str, label: str, **style: object) -> None:
    """An arrow from the centre to the circle."""
    tip = np.cos(angle), np.sin(angle)
    arrow = {"arrowstyle": "-|>", "color": colour, "lw": 2, "shrinkA": 0, "shrinkB": 0} | style
    axes.annotate("", tip, (0, 0), arrowprops=arrow)
    axes.text(1.17 * tip[0], 1.17 * tip[1], label, color=rcParams["text.color"], ha="center", va="center")


def turned_pairs() -> Figure:
    """Three dials of one pair of features. In the first, arrows for positions 0 to 5 stand at equal angles, each a step
    further round. In the second, a query at position 5 and a key at position 2 enclose an angle of one hundred degrees.
    In the third, with the query at 11 and the key at 8, both arrows are rotated by the same amount from where they
    were, drawn dashed, and the angle between them is the same."""
    step, query, key = 0.42, 0.5, 0.02  # radians a position, and the angles of the contents
    titles = ("a pair at positions 0 to 5", "query at 5, key at 2", "query at 11, key at 8")
    figure, (fan, here, moved) = panels((1, 3, 255), (3, 1, 770), titles)
    _dial(fan)
    for p in range(6):
        _hand(fan, query + step * p, QUERY, str(p), alpha=0.35 + 0.13 * p)
    for axes, p, q in ((here, 5, 2), (moved, 11, 8)):
        _dial(axes)
        ends = key + step * q, query + step * p
        if axes is moved:
            for angle, colour in zip((ends[0] - 6 * step, ends[1] - 6 * step), (KEY, QUERY), strict=True):
                _hand(axes, angle, colour, "", linestyle=(0, (3, 2)), lw=1.4, alpha=0.7)
        _hand(axes, ends[1], QUERY, "q")
        _hand(axes, ends[0], KEY, "k")
        degrees = np.degrees(ends)
        axes.add_patch(Arc((0, 0), 0.8, 0.8, theta1=degrees[0], theta2=degrees[1], color=rcParams["text.color"], lw=1))
        middle = sum(ends) / 2
        axes.text(
            0.6 * np.cos(middle), 0.6 * np.sin(middle), f"{degrees[1] - degrees[0]:.0f}°", ha="center", va="center"
        )
    return figure


def heads() -> Figure:
    """Two curves of score against how many tokens back the key stands. The first peaks at 1 for the token itself and
    falls to one half within forty tokens, with ripples. The second has the same shape moved by five: its peak
    stands at the key five tokens back."""
    back = jnp.arange(41)
    ones = jnp.ones((41, 1, 64))
    figure, axes = single("key, tokens before the query", "score / largest")
    for i, (turn, label) in enumerate({0: "looks at itself", -5: "looks five back"}.items()):
        query = pe.rotary(jnp.ones((1, 1, 64)), turn, head_axis=-2)  # at position 0, after the rotation by its weights
        scores = np.asarray(jnp.sum(query * pe.rotary(ones, -back, head_axis=-2), axis=(1, 2))) / 64
        axes.plot(np.asarray(back), scores, label=label, markevery=5, **_drawing.line(i))
    axes.xaxis.set_major_locator(_drawing.whole_ticks())
    _drawing.legend(figure)
    return figure


def partial_scores() -> Figure:
    """Four curves of score against offset, from 1 to 100,000 on a logarithmic axis. Without rotation it is a level line
    at 1. A quarter of the features rotated, as in GPT-NeoX or as in p-RoPE, gives curves that fall to about 0.75 and
    swing around it; p-RoPE gets there within ten tokens. With all features rotated the curve falls to 0 and swings."""
    offsets = np.unique(np.geomspace(1, 100_000, 400).round()).astype(np.int32)
    spectra = {
        "all pairs": pe.geometric(64),
        "a quarter, own spectrum": pe.geometric(16),
        "a quarter, p-RoPE": pe.proportional(64, 10_000.0, 0.25),
    }
    figure, axes = single("offset (tokens)", "score / largest")
    for i, (label, f) in enumerate(spectra.items()):
        rest = 1 - f.num_pairs / 32
        scores = rest + np.asarray(pe.offset_similarity(offsets, f)) / 32
        axes.plot(offsets, scores, label=label, **_drawing.line(i) | {"marker": ""})
    axes.plot(offsets, np.ones(len(offsets)), label="none (NoPE)", **_drawing.line(3) | {"marker": ""})
    axes.set(xscale="log", ylim=(-0.45, 1.1))
    _drawing.legend(figure)
    return figure


def layouts() -> Figure:
    """Two rows of eight features, numbered 0 to 7, with arcs that join the members of a pair. In the half layout arcs
    join 0 with 4, 1 with 5, 2 with 6 and 3 with 7. In the interleaved layout they join 0 with 1, 2 with 3, 4 with 5 and
    6 with 7."""
    pairs = {"half": [(i, i + 4) for i in range(4)], "interleaved": [(2 * i, 2 * i + 1) for i in range(4)]}
    figure, rows = panels((2, 1, 270), (2, 1, 250), pairs)
    for axes, (name, joined) in zip(rows, pairs.items(), strict=True):
        axes.set_axis_off()
        axes.set(xlim=(-0.6, 7.6), ylim=(-0.5, 2.1 if name == "half" else 1.2))
        for i, (a, b) in enumerate(joined):
            colour = COLOURS[i]
            axes.add_patch(
                Arc(((a + b) / 2, 0.42), b - a, 0.75 * (b - a) ** 0.8, theta1=0, theta2=180, color=colour, lw=2)
            )
            for feature in (a, b):
                box = {"boxstyle": "square,pad=0.35", "facecolor": "none", "edgecolor": colour, "lw": 2}
                axes.text(feature, 0, str(feature), ha="center", va="center", bbox=box)
    return figure
