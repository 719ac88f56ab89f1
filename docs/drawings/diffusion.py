"""Where diffusion models place text and pixels."""

import math
from typing import NamedTuple

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon

from drawings import FIRST, QUERY, SECOND, panels
from posenc_jax.hf import diffusion_rotary_from_config

BACK = 0.5, -0.38  # of a step of depth 1, in columns and rows
CORNERS = np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) - 0.5


class Panel(NamedTuple):
    """A model, the sizes of a sequence in tokens, and how they are drawn."""

    title: str
    name: str
    shape: tuple[int, ...]
    text: int | None = None
    references: tuple[tuple[int, int], ...] = ()
    rate: float | None = None
    depth: float = 1.0  # of a step of the first coordinate, in columns
    units: tuple[float, ...] = (1, 1, 1)  # of the coordinates
    far: int | None = None  # where the image is drawn, if it is too far away
    plane: str = "t = {:.0f}"  # the label of a plane
    label: tuple[str, int, str] = ("text", -1, "left")  # of text: beside which token, and how it is aligned


PANELS = (
    Panel("Flux 1 (Kontext)", "Flux", (4, 6), 6, ((3, 4),), depth=6.5, label=("text", 0, "right")),
    Panel("Flux 2", "Flux2", (4, 6), 6, ((3, 4), (4, 4)), depth=0.65, label=("text: 4th\ncoordinate", -1, "left")),
    Panel("Qwen-Image", "QwenImage", (4, 6), 6, depth=0.7),
    Panel("LongCat-Image", "LongCatImage", (4, 6), 5, ((3, 4),), depth=6.5),
    Panel("Ovis-Image", "OvisImage", (4, 6), 5, label=("text", 3, "left")),
    Panel("Mochi", "Mochi", (2, 4, 6), 3, depth=6.5, units=(1, 39.2, 39.2), label=("text", 0, "left")),
    Panel("Z-Image, Lumina", "ZImage", (4, 8), 32, depth=0.45, label=("text", 0, "left")),
    Panel("Ideogram 4", "Ideogram4", (4, 6), 5, depth=0.6, far=9, plane="t, r, c from 65,536"),
    Panel("Wan, HunyuanVideo", "Wan", (3, 4, 6), depth=6.5),
    Panel(
        "LTX-Video",
        "LTXVideo",
        (3, 6, 10),
        rate=25,
        units=(120_000, 64, 64),
        plane="10 s and\n1,024 pixels\nbefore the origin",
    ),
)


def diffusion_placements() -> Figure:
    """Ten panels of small sequences in perspective: rows go down, columns to the right and the first coordinate back.
    In Flux 1 all text is at the origin, the first pixel of the image, and a reference image is one step behind. In
    Flux 2 text is a line on a fourth coordinate, and reference images are 10 and 20 steps behind. In Qwen-Image the
    origin is the middle of the image, and text a diagonal that starts at its edge. In LongCat-Image text is the
    diagonal of the first plane, and image and reference begin where it ends, on the next planes. In Ovis-Image it is
    the diagonal of the image itself. In Mochi the origin is the middle of each frame. In Z-Image and Lumina
    text is a line that goes back from the origin, and the image a plane behind its end. In Ideogram 4 text is a
    diagonal, and the image starts far away on it, at 65,536. In Wan and HunyuanVideo frames are planes one behind
    another. In LTX-Video so are they, but their first pixel is 10 seconds and 1,024 pixels before the origin."""
    figure, grid = panels((5, 2, 1000), (10, 1, 1900), layout="constrained")
    for axes, panel in zip(grid, PANELS, strict=True):
        _draw(axes, panel)
    return figure


def _draw(axes: Axes, panel: Panel) -> None:
    dimensions = 3 if len(panel.shape) == 3 else 2
    options = {"causal": True} if panel.name == "LTXVideo" else {}
    plan = diffusion_rotary_from_config({"_class_name": f"{panel.name}Transformer{dimensions}DModel"}, **options)
    sizes = {"text": panel.text, "references": panel.references or None, "rate": panel.rate}
    positions = np.asarray(plan.positions(panel.shape, **sizes)).astype(np.float64)
    counts = [math.prod(sides) for sides in (panel.shape, *panel.references)]
    counts.insert(0 if plan.text_first else len(counts), panel.text or 0)
    parts = np.split(positions, np.cumsum(counts)[:-1])
    text = parts.pop(0 if plan.text_first else -1)
    if panel.far:
        parts[0] += panel.far - parts[0].min()

    def drawn(tokens: np.ndarray) -> np.ndarray:
        """Columns to the right, rows down, the first coordinate back, a fourth one to the left."""
        t, row, column, *fourth = (tokens / np.array([*panel.units, 1])[: tokens.shape[1]]).T
        back = panel.depth * t
        return np.stack([column + BACK[0] * back - sum(fourth), row + BACK[1] * back], axis=-1)

    for i, part in [*enumerate(parts)][::-1]:
        colour = SECOND if i else FIRST
        times = np.unique(part[:, 0])
        for t in times[::-1]:
            plane = drawn(part[part[:, 0] == t])
            for middle in plane:
                square = middle + CORNERS
                axes.add_patch(Polygon(square, facecolor=colour + "50", edgecolor=colour, lw=0.6))
            if "{" in panel.plane:
                place = plane.min(0) + [-0.5, -0.6]
                axes.annotate(panel.plane.format(t), place, color=colour, va="bottom")
        if "{" not in panel.plane:
            place = plane[0, 0] - 0.5, plane[-1, 1] + 0.7
            axes.annotate(panel.plane, place, color=colour, va="top")
    if panel.text:
        dots, (label, beside, side) = drawn(text), panel.label
        axes.plot(*dots.T, "o", color=QUERY, ms=3.5)
        place = dots[beside] + [-0.6 if side == "right" else 0.3, 0.4]
        axes.annotate(label, place, color=QUERY, va="top", ha=side)
    axes.plot(0, 0, "+", color=rcParams["text.color"], ms=9)
    axes.set_title(panel.title, pad=16)
    axes.set_aspect("equal")
    axes.margins(0.06)
    axes.autoscale_view()
    axes.invert_yaxis()
    axes.set_axis_off()
