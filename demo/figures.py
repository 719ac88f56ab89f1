"""Figures drawn for light and for dark screens, and those of the page that depend on no result but the tables."""

from __future__ import annotations

import base64
import functools
import io
from collections.abc import Callable
from html import escape

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from matplotlib.figure import Figure

import posenc_jax as pe
from posenc_jax import plot

LIGHT, DARK = "#24292f", "#d7dde3"  # the colours of text on light and on dark screens


def picture(draw: Callable[[], Figure], alt: str, caption: str) -> str:
    """A figure as SVG inside the page, drawn once; for dark screens its text has another colour."""
    names = ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color")
    style = dict.fromkeys(names, LIGHT) | {"svg.hashsalt": "posenc_jax", "svg.fonttype": "path", "font.size": 11}
    with matplotlib.rc_context(style):
        file = io.StringIO()
        draw().savefig(file, format="svg", transparent=True, dpi=200, metadata={"Date": None})
    light, dark = (
        "data:image/svg+xml;base64," + base64.b64encode(text.encode()).decode()
        for text in (file.getvalue(), file.getvalue().replace(LIGHT, DARK))
    )
    source = f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">'
    image = f'<img src="{light}" alt="{escape(alt)}">'
    return f"<figure><picture>{source}{image}</picture><figcaption>{caption}</figcaption></figure>"


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
                lambda: plot.columns(table, features=features),
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
    formula = np.asarray(pe.sinusoidal(jnp.arange(length), width))
    parts = []
    for kind in ("heatmap", "similarity"):
        parts.append(of_table(kind, "sinusoidal", "by formula", formula.shape, formula.tobytes()))
        for name, table in tables.items():
            parts.append(of_table(kind, name, "as trained here", table.shape, table.tobytes()))
    return "".join(parts)


@functools.cache
def of_table(kind: str, name: str, origin: str, shape: tuple[int, ...], values: bytes) -> str:
    """A table of float32; drawn once."""
    table = np.frombuffer(values, np.float32).reshape(shape)
    what = {"heatmap": "positions by features", "similarity": "cosine similarity of all pairs of positions"}[kind]
    draw = functools.partial(getattr(plot, kind), table, title=f"{name.capitalize()} table: {kind}")
    return picture(draw, f"Heatmap of the {name} table, {what}.", f"{what.capitalize()}, {origin}.")
