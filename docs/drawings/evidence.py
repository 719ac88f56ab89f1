"""What positions do to the loss: of the numbers in demo/evidence.json, and of vectors far out."""

import pathlib
import runpy
from collections.abc import Mapping

import findings
import jax
import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import posenc_jax as pe
from posenc_jax.plot import _drawing

_COLOURS = runpy.run_path(str(pathlib.Path(__file__).parents[2] / "demo" / "colours.py"))["VERDICTS"]
_PHASES = {"exact": _drawing.line(0), "float32": _drawing.line(1), "bfloat16": _drawing.line(2)}


def _dots(title: str, labels: Mapping[str, str]) -> Figure:
    """A row for each model: its loss at 1, 2 and 4 training lengths, with bars over the seeds."""
    figure = Figure(figsize=(6.4, 1.7 + 0.42 * len(labels)), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title)
    axes.set_xlabel("held-out bits per byte")
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
    axes.text(1.02, -0.75, "1× to 4×", va="center", size="small", transform=axes.get_yaxis_transform())
    axes.set_yticks(range(len(labels)), list(labels.values()))
    axes.set_ylim(len(labels) - 0.5, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.grid(axis="x", alpha=0.6)
    text = rcParams["text.color"]
    handles = [
        Line2D([], [], ls="none", marker="o", color=text, fillstyle=fill, markerfacecoloralt="none", ms=7, label=label)
        for fill, label in (("none", "training length"), ("left", "twice"), ("full", "four times"))
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def loss_at_lengths() -> Figure:
    """Dots for ten models, at one, two and four times the training length, with bars over three seeds. RoPE begins
    near 2.5 bits per byte, and ends at 3.3; with YaRN at 2.7. PoPE begins near RoPE and ends at 2.8. Sinusoidal goes
    from 3.0 to 4.0. ALiBi, near 2.75, and KERPLE, near 2.7, stay where they are; FIRE goes from 2.60 to 2.66, T5 from
    2.9 to 3.1, no positions from 3.3 to 3.4. The learned table has one dot, at 3.3."""
    return _dots("Read beyond the training length", findings.LABELS)


def loss_of_bases() -> Figure:
    """Dots for RoPE of five bases, at one, two and four times the training length, with bars over three seeds. All
    begin near 2.5 bits per byte. Base 10 ends at 2.7; bases 100, 1,000 and 10,000 end near 3.2 with bars that
    overlap, and base 500,000 at about 3.5."""
    return _dots("RoPE with another base", {name: f"base {base:,}" for name, base in findings.BASES.items()})


def _far_axes(axes: Axes, title: str) -> None:
    axes.set(title=title, xlabel="position", xscale="log", yscale="log")
    axes.grid(alpha=0.6)


def far_scores() -> Figure:
    """Two panels against position, on logarithmic axes: the largest change of scores, and of attention weights.
    With exact phases both stay level near 1e-7. With float32 phases both rise in a straight line from 1e-6 at a
    hundred to about a half at two billion."""
    dim, length = 128, 128
    query, key = jax.random.normal(jax.random.key(0), (2, length, dim))
    starts = np.unique(np.geomspace(1, 2**31 - 1 - length, 30).astype(np.int64)).astype(np.int32)
    sizes = np.linalg.norm(query, axis=1)[:, None] * np.linalg.norm(key, axis=1)
    figure = Figure(figsize=(7.2, 3.7), layout="constrained")
    left, right = figure.subplots(1, 2)

    def scores(start: int, frequencies: pe.Frequencies) -> np.ndarray:
        positions = np.arange(length, dtype=np.int32) + np.int32(start)
        turned = (pe.rotary(x, positions, frequencies, head_axis=None) for x in (query, key))
        q, k = (np.asarray(x, np.float64) for x in turned)
        return q @ k.T

    def weights(scores: np.ndarray) -> np.ndarray:
        masked = np.where(np.tri(length) > 0, scores / dim**0.5, -np.inf)
        e = np.exp(masked - masked.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    for phases in ("exact", "float32"):
        frequencies = pe.geometric(dim).with_precision(phases)
        near = scores(0, pe.geometric(dim))
        found = [scores(start, frequencies) for start in starts]
        largest = [np.abs((s - near) / sizes).max() for s in found]
        moved = [np.abs(weights(s) - weights(near)).sum(axis=1).max() / 2 for s in found]
        left.plot(starts, largest, label=f"{phases} phases", markevery=3, **_PHASES[phases])
        right.plot(starts, moved, markevery=3, **_PHASES[phases])
    _far_axes(left, "Scores")
    left.set_ylabel("largest change / (|q| |k|)")
    _far_axes(right, "Attention weights")
    right.set_ylabel("largest share that moves")
    _drawing.legend(figure)
    return figure


def far_weights() -> Figure:
    """Three panels of one head's attention weights against distance. The weights of exact phases are a peak at
    distances 1 to 3 in all three. Those of float32 phases lie on it at one million and nearly so at ten million; at
    a hundred million the peak is a flat step, lower."""
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for axes, offset, name in zip(
        panels, (10**6, 10**7, 10**8), ("one million", "ten million", "a hundred million"), strict=True
    ):
        for phases in ("exact", "float32"):
            found = findings.attention(phases, offset)
            label = f"{phases} phases" if axes is panels[0] else None
            axes.plot(np.arange(len(found)), found, label=label, markevery=2, **_PHASES[phases])
        axes.set(title=f"at {name}", xlabel="distance (bytes)")
        axes.grid(alpha=0.6)
    panels[0].set_ylabel("attention weight")
    _drawing.legend(figure)
    return figure


def far_loss() -> Figure:
    """Two panels against position. The loss of exact phases is level at 2.54 bits per byte up to a billion; that of
    float32 phases too up to ten million, then it climbs to 4; that of bfloat16 phases climbs from a hundred on to
    4.3. On a logarithmic axis the change with exact phases stays near 1e-8; with float32 it rises from there,
    crosses the line of another seed between three and ten million, and jumps behind it."""
    figure = Figure(figsize=(7.2, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    x = findings.OFFSETS[1:]
    for phases, style in _PHASES.items():
        found = findings.far(phases)[:, 1:]
        left.plot(x, found.mean(axis=0), label=f"{phases} phases", **style)
        left.fill_between(x, found.min(axis=0), found.max(axis=0), color=style["color"], alpha=0.25, lw=0)
        right.plot(x, np.maximum(findings.change(phases)[1:], 1e-8), **style)
    noise = findings.seed_noise()
    right.axhline(noise, color=rcParams["text.color"], lw=1, ls=(0, (1, 3)))
    right.text(3e4, noise, "another seed", ha="center", va="bottom", size="small")
    _far_axes(right, "Change of the loss")
    left.set(title="Loss", xlabel="position", xscale="log", ylabel="held-out bits per byte")
    left.grid(alpha=0.6)
    right.set_ylabel("bits per byte")
    _drawing.legend(figure)
    return figure
