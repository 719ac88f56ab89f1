"""The figures of the page, drawn for light and for dark screens."""

from __future__ import annotations

import base64
import functools
import io
from collections.abc import Callable
from html import escape
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from matplotlib.figure import Figure

import posenc_jax as pe
from posenc_jax import plot

# Dashes or markers differ as well as colours, which stand out from light and from dark backgrounds.
LINES = {
    "none": {"color": "#D55E00", "ls": ":"},
    "sinusoidal": {"color": "#0072B2", "ls": "-"},
    "learned": {"color": "#009E73", "ls": "--"},
    "rotary": {"color": "#CC79A7", "ls": "-."},
    "yarn": {"color": "#9A7B00", "ls": "-", "marker": "o", "markersize": 4, "markevery": 2},
}
TEXT = {"light": "#24292f", "dark": "#d7dde3"}


def picture(draw: Callable[[], Figure], alt: str, caption: str) -> str:
    """A figure drawn for both colour schemes, as SVG inside the page."""
    uris = {}
    for scheme, colour in TEXT.items():
        names = ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color")
        style = dict.fromkeys(names, colour) | {"svg.hashsalt": "posenc_jax", "svg.fonttype": "path", "font.size": 11}
        with matplotlib.rc_context(style):
            file = io.BytesIO()
            draw().savefig(file, format="svg", transparent=True, dpi=200, metadata={"Date": None})
        uris[scheme] = "data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode()
    source = f'<source media="(prefers-color-scheme: dark)" srcset="{uris["dark"]}">'
    image = f'<img src="{uris["light"]}" alt="{escape(alt)}">'
    return f"<figure><picture>{source}{image}</picture><figcaption>{caption}</figcaption></figure>"


def lines(variants: dict[str, Any], points: Callable[[dict], tuple], title: str, xlabel: str) -> Figure:
    """A line for each variant."""
    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.set(title=title, xlabel=xlabel, ylabel="bits per byte")
    for name, variant in variants.items():
        axes.plot(*points(variant), lw=1.8, label=variant["label"], **LINES.get(name, {}))
    axes.grid(alpha=0.25)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def training_curves(results: dict[str, Any]) -> Figure:
    trained = {name: variant for name, variant in results["variants"].items() if variant["training"]}
    figure = lines(trained, lambda v: v["training"].values(), "Loss of the training batches", "step")
    figure.axes[0].set_ylim(top=min(figure.axes[0].get_ylim()[1], 5.0))
    return figure


def loss_by_position(results: dict[str, Any]) -> Figure:
    length = results["setup"]["length"]

    def points(variant):
        values = [w["by_position"] for w in variant["windows"].values() if "by_position" in w][-1]
        return (np.arange(len(values)) + 0.5) * length / 8, values

    figure = lines(results["variants"], points, "Held-out loss by position in the window", "position (bytes)")
    axes = figure.axes[0]
    axes.margins(y=0.15)  # room for the label above the lines
    axes.axvline(length, color=matplotlib.rcParams["text.color"], lw=1, ls=(0, (1, 3)))
    axes.text(length, 0.98, "  training length", va="top", transform=axes.get_xaxis_transform())
    return figure


def of_training(results: dict[str, Any]) -> str:
    if not results["variants"]:
        return "<p>No model was finished.</p>"
    length = results["setup"]["length"]
    longest = max(int(n) for v in results["variants"].values() for n in v["windows"])
    curves = picture(
        lambda: training_curves(results),
        "Line chart: bits per byte of the training batches against the step, a line for each model.",
        "Each point is the mean of about a sixtieth of the steps. All models see the same batches.",
    )
    by_position = picture(
        lambda: loss_by_position(results),
        "Line chart: held-out bits per byte against the position of the byte in its window, a line for each model.",
        f"In windows of {longest} bytes; for a learned table, which ends at {length}, in windows of {length}. YaRN is "
        f"set for {longest} bytes. Each point is the mean over {length // 8} neighbouring positions. In training, no "
        f"model saw positions from {length} on.",
    )
    return f'<div class="grid">{curves}{by_position}</div>'


@functools.cache
def of_library(width: int, length: int) -> str:
    """The figures that depend on no training; drawn once."""
    frequencies, table = pe.geometric(width), pe.sinusoidal(jnp.arange(length), width)
    small = pe.sinusoidal(jnp.arange(4), 16)
    x = 0.1 * jax.random.normal(jax.random.key(0), (4, 16))
    features = tuple(width * i // 16 * 2 for i in (0, 1, 2, 4, 7))
    return "".join(
        [
            picture(
                lambda: plot.waves(table, features=features),
                "Line chart: five features of the encoding against position, from a fast to a slow sine.",
                "Single features: sines that turn ever more slowly towards the last feature.",
            ),
            picture(
                lambda: plot.spectrum(frequencies),
                "Line chart: the wavelength of each pair of features, rising evenly on a logarithmic axis.",
                f"From 2π to 2π · 10000<sup>(d − 2)/d</sup> = {frequencies.wavelengths[-1]:,.0f} positions a turn, at "
                f"width d = {width}.",
            ),
            picture(
                lambda: plot.offset_products(width, starts=(0, 1000, 10**6, 2**31 - 1 - length), max_offset=length),
                "Line chart: dot products of encodings against their offset, from four starting positions, on one "
                "curve.",
                "The dot product of two encodings depends on their offset alone, even at the end of int32.",
            ),
            picture(
                lambda: plot.phase_error(frequencies),
                "Line chart on logarithmic axes: the error of the float32 formula rises with the position up to "
                "about one; that of posenc_jax stays below 9e-8.",
                "The usual float32 formula loses the phase as positions grow. The library keeps it.",
            ),
            picture(
                lambda: plot.attention_weights(x, small, tokens=("The", "cat", "sat", "down")),
                "Two matrices of attention weights of four tokens, without and with positions.",
                "Attention weights of four random embeddings of width 16, without projections, before and after "
                "positions are added to the √d-fold embeddings.",
            ),
        ]
    )


def of_tables(tables: dict[str, np.ndarray], width: int, length: int) -> str:
    """The sinusoidal table beside those that were learned."""
    parts = []
    for kind in ("heatmap", "similarity"):
        parts.append(of_formula(kind, width, length))
        parts += [of_table(kind, name, table, "as trained here") for name, table in tables.items()]
    return "".join(parts)


@functools.cache
def of_formula(kind: str, width: int, length: int) -> str:
    return of_table(kind, "sinusoidal", np.asarray(pe.sinusoidal(jnp.arange(length), width)), "by formula")


def of_table(kind: str, name: str, table: np.ndarray, origin: str) -> str:
    what = {"heatmap": "positions by features", "similarity": "cosine similarity of all pairs of positions"}[kind]
    draw = functools.partial(getattr(plot, kind), table, title=f"{name.capitalize()} table: {kind}")
    return picture(draw, f"Heatmap of the {name} table, {what}.", f"{what.capitalize()}, {origin}.")
