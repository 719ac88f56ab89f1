"""Shared by all figures: inputs, colours, lines, legends and images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from posenc_jax._jax.arrays import unwrap_array
from posenc_jax._jax.errors import invalid, require, require_type, wrong_type

# Okabe and Ito's colours without black and yellow, which vanish on dark and on light backgrounds, and with a lighter
# blue, whose contrast is about 4:1 on both. There are 6 colours but 5 dashes and 5 markers, so that combinations repeat
# only after 30 lines.
COLOURS = ("#1A86CC", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)), (0, (9, 1.5)))
MARKERS = ("o", "s", "D", "^", "v")


def matrix(name: str, value: Any, axes: str) -> np.ndarray:
    """`value` as a float64 matrix; float64 holds every entry of every table dtype."""
    value = unwrap_array(value)
    kinds, is_array = (jnp.integer, jnp.floating), isinstance(value, (jax.Array, np.ndarray))
    fits = is_array and any(jnp.issubdtype(value.dtype, kind) for kind in kinds)
    require_type(fits, name, f"an integer or float array of shape {axes}", value)
    require(value.ndim == 2 and value.size, "{} must have shape {}, not empty, got {}", name, axes, value.shape)
    result = np.asarray(value).astype(np.float64)
    if not np.isfinite(result).all():
        row, column = np.argwhere(~np.isfinite(result))[0]
        raise invalid(f"{name} must be finite, got {result[row, column]} at ({row}, {column})")
    return result


def integers(name: str, values: Sequence[int], low: int, high: int) -> list[int]:
    """`values` as one or more Python integers from `low` to `high`."""
    result = np.asarray(values)
    require(result.ndim == 1 and result.size, "{} must be one or more integers, got {!r:.60}", name, values)
    if not np.issubdtype(result.dtype, np.integer):
        raise wrong_type(f"{name} must be integers, got {values!r:.60}")
    if result.min() < low or result.max() > high:
        raise invalid(f"{name} must be from {low} to {high}, got {values!r:.60}")
    return result.tolist()


def self_attention(h: np.ndarray) -> np.ndarray:
    """The attention weights softmax(h hᵀ/√d)."""
    scores = h @ h.T / h.shape[1] ** 0.5
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def single(title: str, xlabel: str, ylabel: str, width: float = 5.2) -> tuple[Figure, Axes]:
    """A figure with one panel. It is small relative to its text, to stay readable in a narrow column."""
    figure = Figure(figsize=(width, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    return figure, axes


def line(i: int) -> dict[str, Any]:
    """The style of line i."""
    return {
        "color": COLOURS[i % len(COLOURS)],
        "linestyle": DASHES[i % len(DASHES)],
        "marker": MARKERS[i % len(MARKERS)],
        "markerfacecolor": "none",
        "markersize": 5,
    }


def legend(figure: Figure, title: str | None = None) -> None:
    """Adds a legend below the axes, where it hides no data. A frame would be opaque on transparent figures."""
    # Fits as many columns as possible: a character is about 0.6 em wide, a handle with its margins about 4.5 em.
    entries = [0.6 * len(str(drawn.get_label())) + 4.5 for drawn in figure.axes[0].lines]
    width = 72 * figure.get_figwidth() / rcParams["font.size"]
    columns = len(entries) if sum(entries) <= width else max(int(width / max(entries)), 1)
    figure.legend(
        loc="outside lower center", ncols=columns, title=title, frameon=False, handlelength=2.5, columnspacing=1
    )


def whole_ticks() -> MaxNLocator:
    """A locator of ticks at whole numbers, with at most six intervals."""
    return MaxNLocator(6, integer=True, steps=[1, 2, 5, 10])


def image(axes: Axes, values: np.ndarray, cmap: str, low: float, high: float, aspect: Any) -> AxesImage:
    """Draws an array as an image with its first row at the top."""
    # Averages values, not colours, where entries are smaller than pixels: an average colour may not be in the map.
    picture = axes.imshow(
        values, cmap=cmap, vmin=low, vmax=high, aspect=aspect, origin="upper", interpolation_stage="data"
    )
    axes.grid(False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(whole_ticks())
    return picture


def write_cells(axes: Axes, cells: AxesImage, values: np.ndarray) -> None:
    """Writes each value in its opaque cell, in black or white, whichever contrasts more."""
    # Relative luminance as WCAG 2 defines it; at about 0.18, black and white contrast equally.
    rgb = np.asarray(cells.to_rgba(values))[..., :3]
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    luminance = linear @ np.array([0.2126, 0.7152, 0.0722])
    for (row, column), value in np.ndenumerate(values):
        colour = "black" if luminance[row, column] > 0.18 else "white"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", size="small", color=colour)
