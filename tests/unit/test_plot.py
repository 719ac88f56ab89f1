"""Figures show what the formulas say, follow the style at the time of the call, and leave pyplot alone."""

import functools
import importlib
import io
import sys

import jax.numpy as jnp
import matplotlib
import matplotlib.colors
import matplotlib.pyplot
import matplotlib.style
import numpy as np
import pytest

import posenc_jax as pe
from oracles.attention import dense
from oracles.encodings import offset_similarity, textbook
from oracles.spectra import geometric, wavelengths
from posenc_jax import plot

LENGTH, DIM = 50, 16
VALUES = textbook(range(LENGTH), DIM)
TOKENS = ["The", "cat", "sat", "down"]
X = np.random.default_rng(0).normal(size=(4, DIM)) / 10
FIGURES = {
    "heatmap": lambda: plot.heatmap(VALUES),
    "columns": lambda: plot.columns(VALUES),
    "similarity": lambda: plot.similarity(VALUES),
    "offset_products": lambda: plot.offset_products(DIM),
    "spectrum": lambda: plot.spectrum({"a": 8, "b": pe.geometric(8, 100.0)}),
    "attention_weights": lambda: plot.attention_weights(VALUES[:4], VALUES, tokens=TOKENS),
    "phase_error": lambda: plot.phase_error(8, samples=20),
}


def image(axes):
    (found,) = axes.images
    return np.asarray(found.get_array())


def labels(lines):
    return [line.get_label() for line in lines]


# What every figure has.


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_has_titles_labels_and_a_legend_and_leaves_pyplot_alone(name):
    assert sorted(FIGURES) == plot.__all__
    before = dict(matplotlib.rcParams)
    figure = FIGURES[name]()
    assert figure is not FIGURES[name]()
    assert matplotlib.pyplot.get_fignums() == [] and dict(matplotlib.rcParams) == before
    assert figure.get_suptitle() or figure.axes[0].get_title()
    assert figure.axes[0].get_ylabel() and figure.axes[0].get_xlabel()
    bars = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    assert len(bars) == any(axes.images for axes in figure.axes)
    assert all(bar.get_xlabel() or bar.get_ylabel() for bar in bars)
    assert bool(figure.legends) == (len(figure.axes[0].lines) > 1)
    figure.savefig(io.BytesIO(), dpi=380 / figure.get_figwidth())  # warnings, of layout or glyphs, are errors


@pytest.mark.parametrize("name", ["heatmap", "offset_products", "attention_weights"])
def test_colours_of_text_follow_the_style_even_when_drawn_later(name):
    with matplotlib.style.context("dark_background"):
        figure = FIGURES[name]()
    figure.savefig(io.BytesIO(), transparent=True)
    assert matplotlib.colors.to_rgb(figure.get_facecolor()) == (0, 0, 0)
    texts = [figure._suptitle or figure.axes[0].title, *figure.axes[0].lines[:1]]  # and the curve of reference
    for axes in figure.axes:
        texts += [axes.xaxis.label, axes.yaxis.label, *axes.get_xticklabels(), *axes.get_yticklabels()]
    for legend in figure.legends:
        texts += legend.get_texts()
        assert not legend.get_frame_on()  # its patch would stay opaque
    assert {matplotlib.colors.to_rgb(text.get_color()) for text in texts} == {(1, 1, 1)}


def test_lines_differ_in_more_than_colour():
    lines = plot.columns(VALUES, range(5)).axes[0].lines
    assert len({(line.get_marker(), str(line._unscaled_dash_pattern)) for line in lines}) == 5


def test_a_legend_fits_into_the_figure():
    figure = plot.spectrum(dict.fromkeys([f"a label of some length, number {i}" for i in range(4)], 8))
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width


# Tables.


@pytest.mark.parametrize("dtype", [np.float64, jnp.bfloat16])
def test_heatmap(dtype):
    figure = plot.heatmap((VALUES * 0.75).astype(dtype), title="Mine")
    axes = figure.axes[0]
    np.testing.assert_allclose(image(axes), VALUES * 0.75, rtol=2**-8, atol=1e-7)
    low, high = axes.images[0].get_clim()
    assert (low, high) == (-high, high) and high == np.abs(image(axes)).max()
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("Mine", "feature", "position (tokens)")
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # position 0 at the top
    assert figure.axes[1].get_ylabel() == "value"
    red, _, blue, _ = axes.images[0].cmap(1.0)
    assert red > blue
    assert plot.heatmap(np.zeros((3, 2), int)).axes[0].images[0].get_clim() == (-1, 1)


def test_columns():
    axes = plot.columns(VALUES).axes[0]
    assert labels(axes.lines) == ["0", "2", "4", "8", "14"]
    for line in axes.lines:
        np.testing.assert_array_equal(line.get_xdata(), np.arange(LENGTH))
        np.testing.assert_array_equal(line.get_ydata(), VALUES[:, int(line.get_label())])
    assert labels(plot.columns(VALUES, [15, 3]).axes[0].lines) == ["15", "3"]
    assert labels(plot.columns(np.ones((2, 1))).axes[0].lines) == ["0"]


@pytest.mark.parametrize("name", ["heatmap", "columns", "similarity"])
def test_a_width_or_a_spectrum_is_drawn_by_its_encoding(name):
    figures = [getattr(plot, name)(x) for x in (VALUES, 16, pe.geometric(16))]
    want, *drawn = [image(f.axes[0]) if name != "columns" else f.axes[0].lines[1].get_ydata() for f in figures]
    for got in drawn:
        np.testing.assert_allclose(got, want, atol=1e-6 if name == "similarity" else 9e-8)


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_similarity_of_any_scale_and_sign(scale):
    figure = plot.similarity(scale * np.array([[1.0, 0.0], [-3.0, 4.0]]))
    np.testing.assert_allclose(image(figure.axes[0]), [[1, -0.6], [-0.6, 1]], atol=1e-15)
    assert figure.axes[0].images[0].get_clim() == pytest.approx((-0.6, 1))
    assert figure.axes[1].get_ylabel() == "cosine similarity"
    assert plot.similarity(VALUES).axes[0].images[0].get_clim() == (0, 1)


# Frequencies.


def test_offset_products():
    axes = plot.offset_products(DIM, starts=[0, -7, 1000], max_offset=30).axes[0]
    exact = functools.partial(offset_similarity, omegas=geometric(DIM, 10_000))
    curve, *starts = axes.lines
    assert curve.get_xdata()[-1] == 30 and labels(starts) == ["p = 0", "p = -7", "p = 1000"]
    np.testing.assert_allclose(curve.get_ydata(), exact(curve.get_xdata()), atol=3e-6)
    for line in starts:
        np.testing.assert_array_equal(line.get_xdata(), np.arange(31))
        np.testing.assert_allclose(line.get_ydata(), exact(np.arange(31)), atol=3e-6)
    assert "offset k" in axes.get_xlabel() and "PE(p) · PE(p + k)" in axes.get_ylabel()


def test_spectrum():
    spectra = {"width": 6, "array": np.float32([2, 0]), "still, and backwards": pe.Frequencies((0, -(1 << 126)), 4)}
    axes = plot.spectrum(spectra).axes[0]
    assert labels(axes.lines) == list(spectra)
    for line, want in zip(axes.lines, [wavelengths(geometric(6, 10_000)), [np.pi, np.nan], [np.nan, 4]], strict=True):
        np.testing.assert_allclose(line.get_ydata(), want, rtol=1e-14)
    assert axes.get_yscale() == "log" and "positions per cycle" in axes.get_ylabel()
    assert not plot.spectrum(8).legends


def test_phase_error():
    """Whatever precision and amplitude the frequencies have, to the last position."""
    frequencies = pe.Frequencies(pe.geometric(63).cycles, 63, attention_factor=3.0, precision="float32")
    axes = plot.phase_error(frequencies, samples=40).axes[0]
    float32, exact, bound = axes.lines
    assert labels(axes.lines) == ["textbook float32", "exact phases", "bound 9e-8"]
    positions = float32.get_xdata()
    assert positions[0] == 1 and positions[-1] == 2**31 - 1 and (np.diff(positions) > 0).all()
    np.testing.assert_array_equal(positions, exact.get_xdata())
    assert 0.1 < float32.get_ydata()[-1] <= 2 and exact.get_ydata().max() < 9e-8 and set(bound.get_ydata()) == {9e-8}
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert len(plot.phase_error(4, max_position=1).axes[0].lines[0].get_xdata()) == 1


# Attention.


def test_attention_weights():
    without, with_positions, bar = plot.attention_weights(X, VALUES, tokens=TOKENS).axes
    for axes, h in ((without, X), (with_positions, 4 * X + VALUES[:4])):
        weights = dense(h[:, None], h[:, None], np.eye(4)[:, None]).y[:, 0]
        np.testing.assert_allclose(image(axes), weights, atol=1e-6)
        assert axes.images[0].get_clim() == (0, max(image(without).max(), image(with_positions).max()))
        assert [label.get_text() for label in axes.get_xticklabels()] == TOKENS
        assert [text.get_text() for text in axes.texts] == [f"{weight:.2f}" for weight in image(axes).ravel()]
    assert [label.get_text() for label in without.get_yticklabels()] == TOKENS
    assert (without.get_xlabel(), without.get_ylabel(), bar.get_xlabel()) == ("key", "query", "weight")


def test_numbers_are_black_on_light_cells_and_white_on_dark_ones():
    panels = plot.attention_weights(X, VALUES).axes[:2]
    dark, *_, light = sorted((float(text.get_text()), text.get_color()) for axes in panels for text in axes.texts)
    assert (dark[1], light[1]) == ("white", "black")


def test_attention_of_many_tokens_is_not_crowded():
    table = np.ones((40, DIM))
    axes = plot.attention_weights(table, table, tokens=[f"word{i}" for i in range(40)]).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == [f"word{i}" for i in range(0, 40, 4)]
    assert not axes.texts


def test_attention_of_large_scores_does_not_overflow():
    axes = plot.attention_weights(1000 * np.eye(3), np.zeros((3, 3))).axes
    np.testing.assert_array_equal(image(axes[0]), np.eye(3))


# Inputs.

T = np.ones((4, 8), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: plot.heatmap(T[0]), ValueError, r"table must have shape \(length, dim\), not empty, got \(8,\)"),
        (lambda: plot.columns(T / np.eye(4, 8)), ValueError, r"table must be finite, got inf at \(0, 1\)"),
        (lambda: plot.similarity(T > 0), TypeError, "table must be an integer or float array"),
        (lambda: plot.columns(T, [8]), ValueError, r"features must be from 0 to 7, got \[8\]"),
        (lambda: plot.columns(T, []), ValueError, "features must be one or more integers"),
        (lambda: plot.similarity(T * [[1], [1], [0], [1]]), ValueError, "no row of zeros, got one at position 2"),
        (lambda: plot.offset_products(8, starts=[2**31 - 9]), ValueError, "starts must be from -2147483648"),
        (lambda: plot.spectrum({}), ValueError, "frequencies as a mapping must hold at least one"),
        (lambda: plot.attention_weights(T, T[:, :6]), ValueError, "table of width 6 must match x"),
        (lambda: plot.attention_weights(T, T[:3]), ValueError, "table of 3 rows is too small"),
        (lambda: plot.attention_weights(T, T, tokens=["a"]), ValueError, "tokens must be 4 labels, .* got 1"),
    ],
)
def test_wrong_inputs_raise(call, error, match):
    with np.errstate(divide="ignore"), pytest.raises(error, match=f"^[a-z_]+: .*{match}"):
        call()


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("matplotlib.", "posenc_jax.plot"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install posenc_jax\[plot\]"):
        importlib.import_module("posenc_jax.plot")
