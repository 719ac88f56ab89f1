"""What positions do to the loss: of the numbers in demo/evidence.json, and of vectors far out."""

from collections.abc import Mapping

import findings
import jax
import numpy as np
from matplotlib import rcParams
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import posenc_jax as pe
from drawings import BAD, GOOD, legend, panels, single
from posenc_jax.plot import _drawing

_COLOURS = {"gains": GOOD, "keeps": GOOD, "loses": BAD}
_PHASES = {"exact": _drawing.line(0), "float32": _drawing.line(1), "bfloat16": _drawing.line(2)}


def _dots(labels: Mapping[str, str]) -> Figure:
    """A row for each model: its loss at 1, 2 and 4 training lengths, with bars over the seeds."""
    height = 90 + 38 * len(labels)
    figure, axes = single("held-out bits per byte", "", height, height)
    for row, name in enumerate(labels):
        found, colour = findings.losses(name), _COLOURS[findings.verdict(name)]
        rows = row + np.array([-0.25, 0.0, 0.25])
        axes.plot(found.mean(axis=0), rows, color=colour, lw=1, alpha=0.5)
        for i, fill in enumerate(("none", "left", "full")):
            mean, low, high = found[:, i].mean(), found[:, i].min(), found[:, i].max()
            axes.plot([low, high], rows[[i, i]], color=colour, lw=3, alpha=0.5, solid_capstyle="butt")
            style = {"color": colour, "fillstyle": fill, "markerfacecoloralt": "none", "ms": 7, "mew": 1.4}
            axes.plot(mean, rows[i], "o", **style)
        gain = found[:, 2].mean() - found[:, 0].mean()
        text = "no answer" if np.isnan(gain) else f"{gain:+.2f}".replace("-", "−")
        axes.text(1.02, row, text, va="center", transform=axes.get_yaxis_transform())
    axes.text(1.02, -0.75, "1× to 4×", va="center", transform=axes.get_yaxis_transform())
    axes.set_yticks(range(len(labels)), list(labels.values()))
    axes.set_ylim(len(labels) - 0.5, -0.6)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")
    text = rcParams["text.color"]
    handles = [
        Line2D([], [], ls="none", marker="o", color=text, fillstyle=fill, markerfacecoloralt="none", ms=7, label=label)
        for fill, label in (("none", "training length"), ("left", "twice"), ("full", "four times"))
    ]
    legend(figure, handles=handles, ncols=3, handlelength=1)
    return figure


def loss_at_lengths() -> Figure:
    """Dots for ten models, at one, two and four times the training length, with bars over three seeds. RoPE begins
    near 2.5 bits per byte, and ends at 3.3; with YaRN at 2.7. PoPE begins near RoPE and ends at 2.8. Sinusoidal goes
    from 3.0 to 4.0. ALiBi, near 2.75, and KERPLE, near 2.7, stay where they are; FIRE goes from 2.60 to 2.66, T5 from
    2.9 to 3.1, no positions from 3.3 to 3.4. The learned table has one dot, at 3.3."""
    return _dots(findings.LABELS)


def loss_of_bases() -> Figure:
    """Dots for RoPE of five bases, at one, two and four times the training length, with bars over three seeds. All
    begin near 2.5 bits per byte. Base 10 ends at 2.7; bases 100, 1,000 and 10,000 end near 3.2 with bars that
    overlap, and base 500,000 at about 3.5."""
    return _dots({name: f"base {base:,}" for name, base in findings.BASES.items()})


def far_scores() -> Figure:
    """Two panels against position, on logarithmic axes: the largest change of scores, and of attention weights.
    With exact phases both stay level near 1e-7. With float32 phases both rise in a straight line from 1e-6 at a
    hundred to about a half at two billion."""
    dim, length = 128, 128
    query, key = jax.random.normal(jax.random.key(0), (2, length, dim))
    starts = np.unique(np.geomspace(1, 2**31 - 1 - length, 30).astype(np.int64)).astype(np.int32)
    sizes = np.linalg.norm(query, axis=1)[:, None] * np.linalg.norm(key, axis=1)

    def scores(start: int, frequencies: pe.Frequencies) -> np.ndarray:
        positions = np.arange(length, dtype=np.int32) + np.int32(start)
        turned = (pe.rotary(x, positions, frequencies, head_axis=None) for x in (query, key))
        q, k = (np.asarray(x, np.float64) for x in turned)
        return q @ k.T

    def weights(scores: np.ndarray) -> np.ndarray:
        masked = np.where(np.tri(length) > 0, scores / dim**0.5, -np.inf)
        e = np.exp(masked - masked.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    titles = ("scores", "attention weights")
    scales = {"xscale": "log", "yscale": "log"}
    figure, (left, right) = panels((1, 2, 360), (2, 1, 600), titles, "position", subplot_kw=scales)
    for phases in ("exact", "float32"):
        frequencies = pe.geometric(dim).with_precision(phases)
        near = scores(0, pe.geometric(dim))
        found = [scores(start, frequencies) for start in starts]
        largest = [np.abs((s - near) / sizes).max() for s in found]
        moved = [np.abs(weights(s) - weights(near)).sum(axis=1).max() / 2 for s in found]
        left.plot(starts, largest, label=f"{phases} phases", markevery=3, **_PHASES[phases])
        right.plot(starts, moved, markevery=3, **_PHASES[phases])
    left.set_ylabel("largest change / (|q| |k|)")
    right.set_ylabel("largest share that moves")
    _drawing.legend(figure)
    return figure


def far_weights() -> Figure:
    """Three panels of one head's attention weights against distance. The weights of exact phases are a peak at
    distances 1 to 3 in all three. Those of float32 phases lie on it at one million and nearly so at ten million; at
    a hundred million the peak is a flat step, lower."""
    offsets = {"at one million": 10**6, "at ten million": 10**7, "at a hundred million": 10**8}
    figure, grid = panels((1, 3, 290), (3, 1, 660), offsets, "distance (bytes)", "attention weight", sharey=True)
    for axes, offset in zip(grid, offsets.values(), strict=True):
        for phases in ("exact", "float32"):
            found = findings.attention(phases, offset)
            label = f"{phases} phases" if axes is grid[0] else None
            axes.plot(np.arange(len(found)), found, label=label, markevery=2, **_PHASES[phases])
    _drawing.legend(figure)
    return figure


def far_loss() -> Figure:
    """Two panels against position. The loss of exact phases is level at 2.54 bits per byte up to a billion; that of
    float32 phases too up to ten million, then it climbs to 4; that of bfloat16 phases climbs from a hundred on to
    4.3. On a logarithmic axis the change with exact phases stays near 1e-8; with float32 it rises from there,
    crosses the line of another seed between three and ten million, and jumps behind it."""
    titles = ("loss", "change of the loss")
    figure, (left, right) = panels((1, 2, 370), (2, 1, 620), titles, "position", subplot_kw={"xscale": "log"})
    x = findings.OFFSETS[1:]
    for phases, style in _PHASES.items():
        found = findings.far(phases)[:, 1:]
        left.plot(x, found.mean(axis=0), label=f"{phases} phases", **style)
        left.fill_between(x, found.min(axis=0), found.max(axis=0), color=style["color"], alpha=0.25, lw=0)
        right.plot(x, np.maximum(findings.change(phases)[1:], 1e-8), **style)
    noise = findings.seed_noise()
    right.axhline(noise, color=rcParams["text.color"], lw=1, ls=(0, (1, 3)))
    right.annotate("another seed", (3e4, noise), xytext=(0, 3), textcoords="offset points", ha="center")
    right.set(yscale="log", ylabel="bits per byte")
    left.set_ylabel("held-out bits per byte")
    _drawing.legend(figure)
    return figure
