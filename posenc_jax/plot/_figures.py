"""The figures, one function each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from posenc_jax._encodings.shifts import offset_similarity
from posenc_jax._encodings.sinusoidal import sinusoidal
from posenc_jax._frequencies.frequencies import Frequencies, Precision
from posenc_jax._frequencies.parser import one_axis, parse, parse_static
from posenc_jax._jax import checks
from posenc_jax._jax.errors import public, require
from posenc_jax._numerics.sines import sine_float64

try:
    from matplotlib import rcParams
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    from posenc_jax.plot import _drawing
except ImportError as error:
    raise ImportError("posenc_jax.plot needs matplotlib: pip install posenc_jax[plot]") from error


_BOUND = 9e-8  # the error bound of `sinusoidal`
_INT32_MAX = 2**31 - 1


@public
def heatmap(table: ArrayLike | Frequencies, *, title: str = "Positional encoding") -> Figure:
    """A table of encodings as a heatmap of positions × features: red above zero, blue below, white at zero.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> from posenc_jax import plot
      >>> figure = plot.heatmap(pe.sinusoidal(jnp.arange(50), 16))
      >>> figure.axes[0].images[0].get_clim()
      (-1.0, 1.0)

    Args:
      table: encodings, a finite array of shape (length, dim), sinusoidal or learned. Or `Frequencies` or a width, for
        the sinusoidal encoding of positions 0 to 49.
      title: the title of the figure.

    Returns:
      The figure, with position 0 at the top. Its colour limits are ±max |table|, so that zero is white.

    Raises:
      TypeError: if the table is not an array of integers or floats.
      ValueError: if the table does not have shape (length, dim), is empty, or has entries that are not finite.
    """
    values = _drawing.matrix("table", _encoded(table), "(length, dim)")
    limit = float(np.abs(values).max()) or 1.0
    figure, axes = _drawing.single(title, "feature", "position (tokens)")
    image = _drawing.image(axes, values, "RdBu_r", -limit, limit, "auto")
    figure.colorbar(image, ax=axes, label="value", ticks=MaxNLocator(4))
    return figure


def _encoded(table: Any) -> Any:
    """The table itself, or the first 50 rows of that of a spectrum."""
    encoded = isinstance(table, (int, np.integer, Frequencies)) and not isinstance(table, bool)
    return sinusoidal(np.arange(50), table) if encoded else table  # type: ignore[arg-type]


@public
def columns(
    table: ArrayLike | Frequencies,
    features: Sequence[int] | None = None,
    *,
    title: str = "Single features against position",
) -> Figure:
    """Columns of a table plotted against position: high frequencies in the first features, low ones in the last.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> from posenc_jax import plot
      >>> figure = plot.columns(pe.sinusoidal(jnp.arange(50), 16))
      >>> [line.get_label() for line in figure.axes[0].lines]
      ['0', '2', '4', '8', '14']

    Args:
      table: a table of shape (length, dim), `Frequencies` or a width; see `heatmap`.
      features: the columns to draw, from 0 to dim − 1. `None` draws the columns at 0, 1/8, 1/4, 1/2 and 7/8 of the
        width, rounded down to even numbers, which are sines in the interleaved layout.
      title: the title of the figure.

    Returns:
      The figure, with one line per feature.

    Raises:
      TypeError: if the table is not an array of integers or floats, or features are not integers.
      ValueError: if features is empty or has a column outside the table, or for the same reasons as in `heatmap`.
    """
    values = _drawing.matrix("table", _encoded(table), "(length, dim)")
    length, dim = values.shape
    if features is None:
        features = sorted({dim * eighths // 16 * 2 for eighths in (0, 1, 2, 4, 7)})
    features = _drawing.integers("features", features, 0, dim - 1)
    figure, axes = _drawing.single(title, "position (tokens)", "value")
    for i, feature in enumerate(features):
        # Draws a few markers on each line, at positions that differ between lines.
        every = max(1, length // 8)
        axes.plot(
            values[:, feature], label=str(feature), markevery=(i * every // len(features), every), **_drawing.line(i)
        )
    axes.xaxis.set_major_locator(_drawing.whole_ticks())
    _drawing.legend(figure, "feature")
    return figure


@public
def similarity(table: ArrayLike | Frequencies, *, title: str = "Cosine similarity of positions") -> Figure:
    r"""The cosine similarity between the encodings of each pair of positions, $t_p \cdot t_q / |t_p||t_q|$.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> from posenc_jax import plot
      >>> figure = plot.similarity(pe.sinusoidal(jnp.arange(50), 16))
      >>> figure.axes[0].images[0].get_array().shape
      (50, 50)

    Args:
      table: a table of shape (length, dim) without rows of zeros, `Frequencies` or a width; see `heatmap`.
      title: the title of the figure.

    Returns:
      The figure. Its colours range from 0, or from the smallest similarity if it is negative, to 1.

    Raises:
      TypeError: if the table is not an array of integers or floats.
      ValueError: if a row is all zeros and so has no direction, or for the same reasons as in `heatmap`.
    """
    values = _drawing.matrix("table", _encoded(table), "(length, dim)")
    # Divides by the largest entry first, so that no sum of squares overflows or underflows.
    largest = np.abs(values).max(axis=1, keepdims=True)
    require(largest.all(), "table must have no row of zeros, got one at position {}", int(largest.argmin()))
    values = values / largest
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    cosines = values @ values.T
    figure, axes = _drawing.single(title, "position (tokens)", "position (tokens)", 4.4)
    image = _drawing.image(axes, cosines, "viridis", min(0.0, float(cosines.min())), 1.0, "equal")
    figure.colorbar(image, ax=axes, label="cosine similarity")
    return figure


@public
def offset_products(
    frequencies: Frequencies | int | jax.Array,
    *,
    starts: Sequence[int] = (0, 5, 10, 20),
    max_offset: int = 20,
) -> Figure:
    r"""Dot products $PE(p) \cdot PE(p+k)$ for several positions $p$, all on the curve $\sum_i \cos \omega_i k$.

    Examples:
      >>> from posenc_jax import plot
      >>> figure = plot.offset_products(16)
      >>> [line.get_label() for line in figure.axes[0].lines]
      ['any p (exact)', 'p = 0', 'p = 5', 'p = 10', 'p = 20']

    Args:
      frequencies: `Frequencies`, a width or a float array, with one axis and an even width; see `sinusoidal`.
      starts: the positions $p$.
      max_offset: the largest $k$. Markers are drawn at whole offsets, at most about 24 per start.

    Returns:
      The figure: one line for the curve, from `offset_similarity` (also between whole offsets), then markers for each
      start, from products of `sinusoidal` encodings.

    Raises:
      TypeError: if starts or max_offset are not integers, or for the same reasons as in `offset_similarity`.
      ValueError: if a position does not fit into int32, max_offset is below 1, the frequencies have several axes, or
        for the same reasons as in `offset_similarity`.

    Reference:
      Vaswani et al., "Attention Is All You Need", 2017, section 3.5.
    """
    parsed = one_axis(parse(frequencies, even=True))
    max_offset = checks.positive_int("max_offset", max_offset)
    starts = _drawing.integers("starts", starts, -(2**31), _INT32_MAX - max_offset)
    offsets = np.arange(max_offset + 1)
    encodings = np.asarray(sinusoidal(np.add.outer(starts, offsets), parsed)).astype(np.float64)
    products = np.sum(encodings[:, :1] * encodings, axis=-1)
    between = np.linspace(0, max_offset, 801, dtype=np.float32)

    figure, axes = _drawing.single(
        "The dot product depends on the offset alone", "offset k (tokens)", "dot product PE(p) · PE(p + k)"
    )
    axes.plot(between, np.asarray(offset_similarity(between, parsed)), color=rcParams["text.color"], lw=1)
    axes.lines[0].set_label("any p (exact)")
    for i, (start, product) in enumerate(zip(starts, products, strict=True)):
        # The markers coincide, by the theorem. They are hollow and shrink by equal ratios, so that they nest.
        style = _drawing.line(i) | {"linestyle": "none", "markersize": 12 * 0.25 ** (i / max(1, len(starts) - 1))}
        axes.plot(offsets, product, label=f"p = {start}", markevery=-(-max_offset // 24), **style)
    axes.xaxis.set_major_locator(_drawing.whole_ticks())
    _drawing.legend(figure)
    return figure


@public
def spectrum(
    frequencies: Frequencies | int | jax.Array | Mapping[str, Frequencies | int | jax.Array],
) -> Figure:
    r"""The wavelength of each feature pair, $2\pi/\omega_i$ positions per cycle, on a logarithmic axis.

    Examples:
      >>> import posenc_jax as pe
      >>> from posenc_jax import plot
      >>> bases = {"base 10⁴": pe.geometric(64), "base 10⁶": pe.geometric(64, 1e6)}
      >>> figure = plot.spectrum(bases)
      >>> figure.axes[0].get_ylabel()
      'wavelength (positions per cycle)'

    Args:
      frequencies: `Frequencies`, a width or a float array; see `sinusoidal`. Or a mapping from labels to frequencies,
        to compare several spectra. Pairs of frequency 0 have no wavelength and are omitted.

    Returns:
      The figure, with one line per spectrum, and a legend if frequencies is a mapping.

    Raises:
      TypeError: for the same reasons as in `sinusoidal`.
      ValueError: if the mapping is empty, or for the same reasons as in `sinusoidal`.
    """
    labelled = frequencies if isinstance(frequencies, Mapping) else {"": frequencies}
    require(labelled, "frequencies as a mapping must hold at least one spectrum, got none")
    figure, axes = _drawing.single("Wavelengths", "pair of features i", "wavelength (positions per cycle)")
    axes.set_yscale("log", nonpositive="mask")
    for i, (label, value) in enumerate(labelled.items()):
        parsed = parse(value)
        if isinstance(parsed, Frequencies):
            wavelengths = np.abs(parsed.wavelengths)
        else:
            angular = np.abs(np.asarray(parsed).astype(np.float64))
            wavelengths = np.divide(2 * np.pi, angular, where=angular > 0, out=np.full_like(angular, np.inf))
        wavelengths = np.where(np.isfinite(wavelengths), wavelengths, np.nan)
        axes.plot(wavelengths, label=str(label), markevery=max(1, len(wavelengths) // 16), **_drawing.line(i))
    axes.xaxis.set_major_locator(_drawing.whole_ticks())
    if isinstance(frequencies, Mapping):
        _drawing.legend(figure)
    return figure


@public
def attention_weights(x: ArrayLike, table: ArrayLike, *, tokens: Sequence[str] | None = None) -> Figure:
    r"""Self-attention weights without projections, $\text{softmax}(h h^T\!/\sqrt d)$, with and without positions.

    One panel shows $h = x$, the other $h = \sqrt d\,x + PE$. Without positions, permuting the tokens only permutes the
    weights: the order of the tokens has no influence.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> from posenc_jax import plot
      >>> x = 0.1 * jax.random.normal(jax.random.key(0), (4, 16))
      >>> table = pe.sinusoidal(jnp.arange(4), 16)
      >>> figure = plot.attention_weights(x, table, tokens=["The", "cat", "sat", "down"])
      >>> [axes.get_title() for axes in figure.axes[:2]]
      ['without positions', 'with positions']

    Args:
      x: embeddings, a finite array of shape (seq, dim).
      table: encodings, a finite array of shape (length, dim) with length ≥ seq. The first seq rows are added.
      tokens: one label per token. `None` numbers the positions.

    Returns:
      The figure: two panels of queries × keys with the same colour scale. With at most 6 tokens, each cell also shows
      its weight as a number.

    Raises:
      TypeError: if x or table is not an array of integers or floats.
      ValueError: if the widths differ, the table is shorter than x, there is not one label per row of x, or for the
        same reasons as in `heatmap`.

    Reference:
      Vaswani et al., "Attention Is All You Need", 2017, sections 3.2.1 and 3.4.
    """
    x, table = _drawing.matrix("x", x, "(seq, dim)"), _drawing.matrix("table", table, "(length, dim)")
    (seq, dim), (length, width) = x.shape, table.shape
    require(width == dim, "table of width {} must match x, shape {}", width, x.shape)
    require(length >= seq, "table of {} rows is too small for a sequence of {}", length, seq)
    labels = seq if tokens is None else len(tokens)
    require(labels == seq, "tokens must be {} labels, one for each row of x, got {}", seq, labels)

    panels = {
        "without positions": _drawing.self_attention(x),
        "with positions": _drawing.self_attention(dim**0.5 * x + table[:seq]),
    }
    largest = max(float(weights.max()) for weights in panels.values())
    figure = Figure(figsize=(5.2, 4.0), layout="constrained")
    figure.suptitle("Attention weights")
    both = figure.subplots(1, 2, sharey=True)
    for axes, (name, weights) in zip(both, panels.items(), strict=True):
        axes.set_title(name, size="medium")
        axes.set_xlabel("key")
        image = _drawing.image(axes, weights, "magma", 0.0, largest, "equal")
        if tokens is not None:
            shown = range(0, seq, -(-seq // 12))
            texts = [str(tokens[i]) for i in shown]
            upright = len(texts) * max(map(len, texts)) > 20
            axes.set_xticks(shown, texts, rotation=90 if upright else 0)
            axes.set_yticks(shown, texts)
        if seq <= 6:
            _drawing.write_cells(axes, image, weights)
    both[0].set_ylabel("query")
    figure.colorbar(both[0].images[0], ax=both, label="weight", location="bottom", shrink=0.6, aspect=30)
    return figure


@public
def phase_error(frequencies: Frequencies | int, *, max_position: int = _INT32_MAX, samples: int = 300) -> Figure:
    r"""The largest error of any feature against position: textbook float32 compared with this library.

    Textbook code rounds $\omega$ and the product $\omega p$ to float32. Each rounding shifts the phase by up to
    $2^{-24}\omega p$ radians, so the error grows with the position until no digit is right.

    Examples:
      >>> from posenc_jax import plot
      >>> figure = plot.phase_error(16, samples=50)
      >>> textbook, exact, bound = (line.get_ydata() for line in figure.axes[0].lines)
      >>> bool(textbook[-1] > 0.1), bool(exact.max() < 9e-8)
      (True, True)

    Args:
      frequencies: `Frequencies` with one axis, or a width. The figure always shows both precisions, at amplitude 1: the
        precision and the amplitude of the frequencies are ignored.
      max_position: the last position, from 1 to 2³¹ − 1.
      samples: the number of positions, spaced at equal ratios from 1 to max_position. Positions that coincide after
        rounding are drawn once.

    Returns:
      The figure, with both axes logarithmic: one line for float32, one for the library, and one for its bound of 9e-8.
      The reference values are computed from exact integers. Errors of zero are omitted.

    Raises:
      TypeError: if frequencies is an array, whose cycles are not known exactly, or another argument is not an integer.
      ValueError: if the frequencies have several axes, max_position does not fit into int32, or an argument is below 1.
    """
    parsed = one_axis(parse_static(frequencies))
    max_position, samples = checks.length("max_position", max_position), checks.positive_int("samples", samples)
    parsed = dataclasses.replace(parsed, attention_factor=1.0)
    positions = np.unique(np.geomspace(1, max_position, samples).round().astype(np.int32))
    feature = np.arange(parsed.dim)
    cycles = tuple(parsed.cycles[i] for i in feature // 2)
    truth = sine_float64(positions, cycles, feature % 2)

    figure, axes = _drawing.single("Error of the encoding", "position (tokens)", "largest error of any feature")
    axes.set_xscale("log")
    axes.set_yscale("log", nonpositive="mask")
    precisions: dict[str, Precision] = {"textbook float32": "float32", "exact phases": "exact"}
    for i, (label, precision) in enumerate(precisions.items()):
        encoding = np.asarray(sinusoidal(positions, parsed.with_precision(precision))).astype(np.float64)
        style = {"color": _drawing.COLOURS[1 - i], "linestyle": _drawing.DASHES[i]}
        axes.plot(positions, np.abs(encoding - truth).max(axis=1), label=label, lw=1.3, **style)
    axes.axhline(_BOUND, color=rcParams["text.color"], lw=1, ls=":", label="bound 9e-8")
    _drawing.legend(figure)
    return figure
