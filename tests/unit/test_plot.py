"""Figures: what they show equals what the formulas say, in any style, and pyplot never hears of it."""

import functools
import importlib
import io
import sys

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.colors
import matplotlib.pyplot
import matplotlib.style
import numpy as np
import pytest

import posenc_jax as pe
from helpers.tiers import slow, tiered
from oracles.attention import dense
from oracles.encodings import offset_similarity, textbook
from oracles.spectra import geometric, wavelengths
from posenc_jax import plot

LENGTH, DIM = 50, 16
TOKENS = ["The", "cat", "sat", "down"]


def naive(length=LENGTH):
    return textbook(range(length), DIM)


def softmax_attention(h):
    """The weights of self-attention without a projection."""
    return dense(h[:, None], h[:, None], np.eye(len(h))[:, None]).y[:, 0]


@pytest.fixture(scope="module")
def table():
    return pe.sinusoidal(np.arange(LENGTH), DIM)


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(4, DIM)).astype(np.float32) * np.float32(0.1)


def image(axes):
    (found,) = axes.images
    return np.asarray(found.get_array())


FIGURES = {
    "heatmap": lambda: plot.heatmap(naive()),
    "columns": lambda: plot.columns(naive()),
    "similarity": lambda: plot.similarity(naive()),
    "offset_products": lambda: plot.offset_products(DIM),
    "spectrum": lambda: plot.spectrum({"a": 8, "b": pe.geometric(8, 100.0)}),
    "attention_weights": lambda: plot.attention_weights(naive()[:4], naive(), tokens=TOKENS),
    "phase_error": lambda: plot.phase_error(8, samples=20),
}


def test_all_is_drawn_here():
    assert sorted(FIGURES) == plot.__all__


# What every figure has.


@pytest.mark.parametrize("name", FIGURES)
def test_title_labels_and_drawing(name):
    figure = FIGURES[name]()
    assert figure.get_suptitle() or figure.axes[0].get_title()
    for axes in figure.axes[: 2 if name == "attention_weights" else 1]:
        assert axes.get_xlabel()
    assert figure.axes[0].get_ylabel()
    images = [axes for axes in figure.axes if axes.images]
    colour_bars = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    assert len(colour_bars) == bool(images)
    for bar in colour_bars:
        assert bar.get_xlabel() or bar.get_ylabel()
    assert bool(figure.legends) == (len(figure.axes[0].lines) > 1)
    figure.savefig(io.BytesIO(), dpi=380 / figure.get_figwidth())  # warnings, of layout or glyphs, are errors


@pytest.mark.parametrize("name", FIGURES)
def test_pyplot_is_left_alone(name):
    before = dict(matplotlib.rcParams)
    assert FIGURES[name]() is not FIGURES[name]()
    assert matplotlib.pyplot.get_fignums() == []
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("name", tiered(FIGURES, ["heatmap", "spectrum", "attention_weights"]))
def test_colours_of_text_follow_the_style_even_when_drawn_later(name):
    with matplotlib.style.context("dark_background"):
        figure = FIGURES[name]()
    figure.savefig(io.BytesIO(), transparent=True)
    assert matplotlib.colors.to_rgb(figure.get_facecolor()) == (0, 0, 0)
    texts = [figure._suptitle] if figure._suptitle else [figure.axes[0].title]
    for axes in figure.axes:
        texts += [axes.xaxis.label, axes.yaxis.label, *axes.get_xticklabels(), *axes.get_yticklabels()]
    for legend in figure.legends:
        texts += legend.get_texts()
        assert not legend.get_frame_on()  # its patch would stay opaque
    assert {matplotlib.colors.to_rgb(text.get_color()) for text in texts} == {(1, 1, 1)}


@pytest.mark.parametrize("colour", ["#123456", "#fedcba"])
def test_reference_lines_have_the_colour_of_text(colour):
    with matplotlib.rc_context({"text.color": colour}):
        assert plot.offset_products(DIM).axes[0].lines[0].get_color() == colour
        assert plot.phase_error(8, samples=20).axes[0].lines[2].get_color() == colour


def test_lines_differ_in_more_than_colour():
    lines = plot.columns(naive(), range(16)).axes[0].lines
    colours = [line.get_color() for line in lines]
    others = [(line.get_marker(), line._unscaled_dash_pattern) for line in lines]
    assert len(set(zip(colours, map(str, others), strict=True))) == 16
    assert len(set(map(str, others[:5]))) == 5


def test_legend_fits_into_the_figure():
    for labels in (["short", "b"], [f"a label of some length, number {i}" for i in range(4)]):
        figure = plot.spectrum(dict.fromkeys(labels, 8))
        figure.draw_without_rendering()
        box = figure.legends[0].get_window_extent()
        assert box.x0 >= 0 and box.x1 <= figure.bbox.width


# Tables.


@pytest.mark.parametrize("dtype", [np.float64, np.float32, jnp.float32, jnp.bfloat16])
def test_heatmap(dtype):
    values = naive() * 0.75
    cast = values.astype(dtype) if dtype in (np.float64, np.float32) else jnp.asarray(values.astype(np.float32), dtype)
    figure = plot.heatmap(cast, title="Mine")
    axes = figure.axes[0]
    np.testing.assert_allclose(image(axes), values, rtol=2**-8, atol=1e-7)
    low, high = axes.images[0].get_clim()
    assert (low, high) == (-high, high) and high == np.abs(image(axes)).max()
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("Mine", "feature", "position (tokens)")
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # position 0 at the top
    assert figure.axes[1].get_ylabel() == "value"
    red, _, blue, _ = axes.images[0].cmap(1.0)
    assert red > blue


def test_heatmap_of_the_encoding_and_of_special_tables(table):
    np.testing.assert_allclose(image(plot.heatmap(table).axes[0]), naive(), atol=9e-8)
    assert plot.heatmap(np.zeros((3, 2))).axes[0].images[0].get_clim() == (-1, 1)
    bits = np.arange(8)[:, None] >> np.arange(3) & 1
    np.testing.assert_array_equal(image(plot.heatmap(bits).axes[0]), bits)


def test_columns(table):
    axes = plot.columns(table).axes[0]
    assert [line.get_label() for line in axes.lines] == ["0", "2", "4", "8", "14"]
    for line in axes.lines:
        np.testing.assert_array_equal(line.get_xdata(), np.arange(LENGTH))
        np.testing.assert_allclose(line.get_ydata(), naive()[:, int(line.get_label())], atol=9e-8)
    assert [line.get_label() for line in plot.columns(table, [15, 3]).axes[0].lines] == ["15", "3"]


@pytest.mark.parametrize("name", ["heatmap", "columns", "similarity"])
def test_a_width_or_a_spectrum_is_drawn_by_its_encoding(name):
    draw = getattr(plot, name)
    drawn = [draw(x) for x in (16, pe.geometric(16), pe.sinusoidal(np.arange(50), 16))]
    data = [image(figure.axes[0]) if name != "columns" else figure.axes[0].lines[1].get_ydata() for figure in drawn]
    np.testing.assert_array_equal(data[0], data[2])
    np.testing.assert_array_equal(data[1], data[2])


@pytest.mark.parametrize("dim", [1, 2, 3, 5, 64])
def test_columns_by_default_are_sines_that_the_table_has(dim):
    shown = [int(line.get_label()) for line in plot.columns(np.ones((2, dim))).axes[0].lines]
    assert shown == sorted(set(shown)) and shown[0] == 0 and shown[-1] < dim
    assert all(feature % 2 == 0 for feature in shown)


def test_similarity(table):
    figure = plot.similarity(table)
    values = naive()
    expected = values @ values.T / (DIM / 2)  # every row has squared norm dim / 2
    np.testing.assert_allclose(image(figure.axes[0]), expected, atol=1e-6)
    assert figure.axes[0].images[0].get_clim() == (0, 1) and expected.min() > 0
    assert figure.axes[1].get_ylabel() == "cosine similarity"


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_similarity_of_any_scale_and_sign(scale):
    figure = plot.similarity(scale * np.array([[1.0, 0.0], [-3.0, 4.0]]))
    np.testing.assert_allclose(image(figure.axes[0]), [[1, -0.6], [-0.6, 1]], atol=1e-15)
    assert figure.axes[0].images[0].get_clim() == pytest.approx((-0.6, 1))


# Frequencies.


@pytest.mark.parametrize(
    "frequencies", [DIM, slow(pe.geometric(DIM)), slow(pe.geometric(DIM).angular.astype(np.float32))]
)
def test_offset_products(frequencies):
    axes = plot.offset_products(frequencies, starts=[0, -7, 1000], max_offset=30).axes[0]
    exact = functools.partial(offset_similarity, omegas=geometric(DIM, 10_000))
    curve, *starts = axes.lines
    # An array of float32 frequencies is off by up to 2⁻²⁴, times 1030 positions.
    np.testing.assert_allclose(curve.get_ydata(), exact(curve.get_xdata()), atol=1e-5)
    assert curve.get_xdata()[-1] == 30
    assert [line.get_label() for line in starts] == ["p = 0", "p = -7", "p = 1000"]
    for line in starts:
        np.testing.assert_array_equal(line.get_xdata(), np.arange(31))
        np.testing.assert_allclose(line.get_ydata(), exact(np.arange(31)), atol=1e-5)
    assert "offset k" in axes.get_xlabel() and "PE(p) · PE(p + k)" in axes.get_ylabel()


def test_offset_products_come_from_encodings():
    # With float32 phases the products leave the curve: that is seen, not assumed.
    curve, start = plot.offset_products(pe.geometric(DIM).with_precision("float32"), starts=[10**8]).axes[0].lines
    shown = np.interp(start.get_xdata(), curve.get_xdata(), curve.get_ydata())
    assert np.abs(start.get_ydata() - shown).max() > 0.1
    curve, start = plot.offset_products(DIM, starts=[10**8]).axes[0].lines
    np.testing.assert_allclose(start.get_ydata(), curve.get_ydata()[::40], atol=3e-6)


def test_offset_marks_that_coincide_nest():
    for count in (1, 4, 6):
        marks = plot.offset_products(DIM, starts=range(count)).axes[0].lines[1:]
        sizes = [line.get_markersize() for line in marks]
        assert sizes == sorted(set(sizes), reverse=True) and sizes[-1] >= 3
        assert {line.get_markerfacecolor() for line in marks} == {"none"}
        assert len({line.get_marker() for line in marks}) == min(count, 5)


def test_spectrum():
    spectra = {"ten": pe.geometric(DIM), "end": pe.geometric(8, endpoint=True), "width": 6, "array": np.float32([2, 0])}
    axes = plot.spectrum(spectra).axes[0]
    expected = {
        "ten": wavelengths(geometric(DIM, 10_000)),
        "end": wavelengths(geometric(8, 10_000, endpoint=True)),
        "width": wavelengths(geometric(6, 10_000)),
        "array": [np.pi, np.nan],
    }
    assert {line.get_label() for line in axes.lines} == set(expected)
    for line in axes.lines:
        np.testing.assert_allclose(line.get_ydata(), expected[line.get_label()], rtol=1e-14)
    assert axes.get_yscale() == "log" and "positions per cycle" in axes.get_ylabel()


def test_spectrum_of_one():
    figure = plot.spectrum(pe.axial(8, 2))
    (line,) = figure.axes[0].lines
    np.testing.assert_allclose(line.get_ydata(), 2 * np.pi * np.array([1, 100, 1, 100]), rtol=1e-14)
    assert not figure.legends
    still = pe.Frequencies((0, -(1 << 126)), 4)  # one pair that stands, and one that turns backwards
    np.testing.assert_array_equal(plot.spectrum(still).axes[0].lines[0].get_ydata(), [np.nan, 4])


def test_phase_error():
    axes = plot.phase_error(64, max_position=10**6, samples=40).axes[0]
    float32, exact, bound = axes.lines
    assert [line.get_label() for line in axes.lines] == ["textbook float32", "exact phases", "bound 9e-8"]
    positions = float32.get_xdata()
    assert positions[0] == 1 and positions[-1] == 10**6 and (np.diff(positions) > 0).all()
    np.testing.assert_array_equal(positions, exact.get_xdata())
    assert float32.get_ydata()[-1] > 1e-2
    assert exact.get_ydata().max() < 9e-8
    assert set(bound.get_ydata()) == {9e-8}
    assert axes.get_xscale() == axes.get_yscale() == "log"

    truth = textbook(positions, 64)  # float64 products are right to 1e-10 at these positions
    for line, frequencies in ((float32, pe.geometric(64).with_precision("float32")), (exact, pe.geometric(64))):
        error = np.abs(np.asarray(pe.sinusoidal(positions, frequencies)).astype(np.float64) - truth).max(axis=1)
        np.testing.assert_allclose(line.get_ydata(), error, atol=1e-9)


def test_phase_error_to_the_last_position_whatever_amplitude_precision_and_width():
    frequencies = pe.Frequencies(pe.geometric(7).cycles, 7, attention_factor=3.0, precision="float32")
    textbook, exact, _ = plot.phase_error(frequencies, samples=30).axes[0].lines
    assert textbook.get_xdata()[-1] == 2**31 - 1
    assert 0.1 < textbook.get_ydata()[-1] <= 2 and exact.get_ydata().max() < 9e-8
    assert len(plot.phase_error(4, max_position=1).axes[0].lines[0].get_xdata()) == 1


# Attention.


def test_attention_weights(x, table):
    figure = plot.attention_weights(x, table, tokens=TOKENS)
    without, with_positions, bar = figure.axes
    wide = x.astype(np.float64)
    np.testing.assert_allclose(image(without), softmax_attention(wide), rtol=1e-12)
    np.testing.assert_allclose(image(with_positions), softmax_attention(4 * wide + naive(4)), atol=1e-6)
    for axes in (without, with_positions):
        np.testing.assert_allclose(image(axes).sum(axis=1), 1, rtol=1e-12)
        assert axes.images[0].get_clim() == (0, max(image(without).max(), image(with_positions).max()))
        assert [label.get_text() for label in axes.get_xticklabels()] == TOKENS
        written = [[text.get_text() for text in axes.texts[row * 4 : row * 4 + 4]] for row in range(4)]
        assert written == [[f"{weight:.2f}" for weight in row] for row in image(axes)]
    assert [label.get_text() for label in without.get_yticklabels()] == TOKENS
    assert (without.get_xlabel(), without.get_ylabel(), bar.get_xlabel()) == ("key", "query", "weight")


def test_attention_without_positions_is_permuted_with_its_tokens(x, table):
    order = np.array([2, 0, 3, 1])
    ours, permuted = (plot.attention_weights(tokens, table).axes for tokens in (x, x[order]))
    np.testing.assert_allclose(image(permuted[0]), image(ours[0])[order][:, order], rtol=1e-12)
    assert np.abs(image(permuted[1]) - image(ours[1])[order][:, order]).max() > 0.01


@pytest.mark.parametrize("style", ["default", "dark_background"])
def test_numbers_contrast_with_their_cells(x, table, style):
    def luminance(colour):
        rgb = np.array(matplotlib.colors.to_rgb(colour))
        return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]

    with matplotlib.style.context(style):
        panels = plot.attention_weights(x, table).axes[:2]
    for axes in panels:
        cells = axes.images[0].to_rgba(image(axes)).reshape(-1, 4)
        for text, cell in zip(axes.texts, cells, strict=True):
            dark, light = sorted([luminance(text.get_color()), luminance(cell[:3])])
            assert (light + 0.05) / (dark + 0.05) >= 4.5  # WCAG 2.2, level AA


def test_attention_of_many_tokens_is_not_crowded():
    many = np.random.default_rng(1).normal(size=(40, DIM))
    for axes in plot.attention_weights(many, naive(), tokens=[f"word{i}" for i in range(40)]).axes[:2]:
        labels = [label.get_text() for label in axes.get_xticklabels()]
        assert len(labels) <= 12 and not axes.texts
        assert labels == [f"word{round(i)}" for i in axes.get_xticks()]


def test_attention_of_large_scores_does_not_overflow():
    axes = plot.attention_weights(1000 * np.eye(3), np.zeros((3, 3))).axes
    np.testing.assert_array_equal(image(axes[0]), np.eye(3))


# Inputs.

T = np.ones((4, 8), np.float32)


@pytest.mark.parametrize("name", ["heatmap", "columns", "similarity"])
@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        (np.ones(3), ValueError, r"table must have shape \(length, dim\), not empty, got \(3,\)"),
        (np.ones((1, 2, 3)), ValueError, r"got \(1, 2, 3\)"),
        (np.ones((0, 3)), ValueError, r"not empty, got \(0, 3\)"),
        (np.array([[1.0, 2.0], [np.nan, 3.0]]), ValueError, r"table must be finite, got nan at \(1, 0\)"),
        (jnp.full((2, 2), jnp.inf, jnp.bfloat16), ValueError, r"table must be finite, got inf at \(0, 0\)"),
        ([[1.0]], TypeError, r"table must be an integer or float array of shape \(length, dim\), got list"),
        (np.ones((2, 2), bool), TypeError, r"got bool of shape \(2, 2\)"),
        (np.ones((2, 2), complex), TypeError, r"got complex128 of shape \(2, 2\)"),
        (jax.random.key(0), TypeError, r"got key<fry> of shape \(\)"),
    ],
)
def test_tables_that_are_none(name, table, error, message):
    with pytest.raises(error, match=f"^{name}: .*{message}"):
        getattr(plot, name)(table)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: plot.columns(T, [8]), ValueError, r"columns: features must be from 0 to 7, got \[8\]"),
        (lambda: plot.columns(T, [-1]), ValueError, r"columns: features must be from 0 to 7, got \[-1\]"),
        (lambda: plot.columns(T, []), ValueError, r"columns: features must be one or more integers, got \[\]"),
        (lambda: plot.columns(T, 3), ValueError, r"columns: features must be one or more integers, got 3"),
        (lambda: plot.columns(T, [0.5]), TypeError, r"columns: features must be integers, got \[0.5\]"),
        (lambda: plot.similarity(T * [[1], [1], [0], [1]]), ValueError, r"no row of zeros, got one at position 2"),
        (lambda: plot.offset_products(7), ValueError, r"offset_products: frequencies must have an even dim, got 7"),
        (lambda: plot.offset_products(pe.axial(8, 2)), ValueError, r"offset_products: .* must have one axis, got 2"),
        (lambda: plot.offset_products(8, max_offset=0), ValueError, r"offset_products: max_offset .*at least 1, got 0"),
        (lambda: plot.offset_products(8, starts=[2**31 - 9]), ValueError, r"starts must be from -2147483648 to 21474"),
        (lambda: plot.offset_products(8, starts=[1.5]), TypeError, r"offset_products: starts must be integers"),
        (lambda: plot.spectrum({}), ValueError, r"spectrum: frequencies as a mapping must hold at least one"),
        (lambda: plot.spectrum({"a": "b"}), TypeError, r"spectrum: frequencies must be Frequencies"),
        (lambda: plot.spectrum(np.ones((2, 2), np.float32)), ValueError, r"spectrum: .*shape \(num_pairs,\), got"),
        (lambda: plot.attention_weights(T, T[:, :6]), ValueError, r"table of width 6 must match x, shape \(4, 8\)"),
        (lambda: plot.attention_weights(T, T[:3]), ValueError, r"table of 3 rows is too small for a sequence of 4"),
        (lambda: plot.attention_weights(T[0], T), ValueError, r"x must have shape \(seq, dim\), not empty, got \(8,\)"),
        (lambda: plot.attention_weights(T, T, tokens=["a"]), ValueError, r"tokens must be 4 labels, .* got 1"),
        (lambda: plot.phase_error(np.ones(3, np.float32)), TypeError, r"phase_error: frequencies must be .*an array"),
        (lambda: plot.phase_error(pe.axial(8, 2)), ValueError, r"phase_error: frequencies must have one axis, got 2"),
        (lambda: plot.phase_error(8, max_position=2**31), ValueError, r"max_position must fit into int32, got 21474"),
        (lambda: plot.phase_error(8, samples=0), ValueError, r"phase_error: samples must be at least 1, got 0"),
    ],
)
def test_inputs_that_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("matplotlib.", "posenc_jax.plot"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install posenc_jax\[plot\]"):
        importlib.import_module("posenc_jax.plot")
