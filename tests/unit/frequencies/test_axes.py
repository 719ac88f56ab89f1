"""Frequencies for positions of several coordinates: by which coordinate and ω each pair rotates.

- `axial` gives each coordinate a spectrum: an equal share of a width, a width or spectrum of its own, or one for all,
  in blocks or in turn.
- `join` concatenates spectra, at the given coordinates.
- `multi_section` divides the pairs of one spectrum among coordinates, in blocks or in turn.
- Each keeps the amplitude and the precision. They give the models of diffusers.
"""

import re

import jax
import numpy as np
import pytest

import posenc_jax as pe
from helpers import pages
from helpers.closeness import assert_within
from oracles import encodings, recorded, spectra

F = pe.geometric(12)
YARN = pe.yarn(16, 1e4, 8, 4096).with_precision("float32")  # with an amplitude of its own


def test_axial_gives_each_coordinate_an_equal_share_of_a_width():
    one, two = pe.geometric(8, 100.0), pe.axial(16, 2, 100.0)
    assert (two.cycles, two.axes, two.dim, two.num_axes) == (one.cycles * 2, (0,) * 4 + (1,) * 4, 16, 2)
    assert pe.axial(24, 3) == pe.axial(pe.geometric(8), 3) and pe.axial(16, 1) == pe.geometric(16)


def test_axial_repeats_a_given_spectrum():
    two = pe.axial(YARN, 2)
    assert (two.cycles, two.axes, two.dim) == (YARN.cycles * 2, (0,) * 8 + (1,) * 8, 32)
    assert two.attention_factor == YARN.attention_factor > 1 and two.precision == "float32"
    assert pe.axial((YARN, YARN)) == two and pe.axial(YARN, 1) == YARN
    assert pe.axial(pe.geometric(2), 2**19).dim == 2**20


def test_axial_gives_each_coordinate_a_width_of_its_own():
    got = pe.axial((16, 56, 56), base=256.0)
    assert got.axes == (0,) * 8 + (1,) * 28 + (2,) * 28 and got.dim == 128
    want = [256.0 ** (-2 * i / width) for width in (16, 56, 56) for i in range(width // 2)]
    np.testing.assert_allclose(got.angular, want, rtol=1e-15)
    assert pe.axial([8, 4]) == pe.axial(np.array([8, 4])) == pe.axial((pe.geometric(8), 4))
    assert pe.axial((8, 0)) == pe.geometric(8) and pe.axial((0, 8)).num_axes == 2


def test_axial_deals_the_pairs_of_the_coordinates_out_in_turn():
    f, g = pe.geometric(6), pe.geometric(6, 7.0)
    got = pe.axial((f, g), interleaved=True)
    assert got.axes == (0, 1, 0, 1, 0, 1)
    assert got.cycles == tuple(each for both in zip(f.cycles, g.cycles, strict=True) for each in both)
    assert pe.axial(YARN, 3, interleaved=True).axes == (0, 1, 2) * 8
    three = pe.axial(YARN, 3, interleaved=True)
    assert three.cycles == tuple(np.repeat(np.array(YARN.cycles, object), 3))
    assert (three.attention_factor, three.precision) == (YARN.attention_factor, "float32")
    assert pe.axial(16, 1, interleaved=True) == pe.geometric(16)


def test_join_concatenates_spectra_at_their_coordinates():
    f, g = pe.geometric(8, 100.0), pe.linear_scaling(4, 2)
    same = pe.join(f, g)
    assert (same.cycles, same.axes, same.dim) == (f.cycles + g.cycles, (0,) * 6, 12)
    sections = pe.multi_section(f, (1, 3))
    assert pe.join(g, sections, g, axes=(2, 0, 3)).axes == (2, 2, 0, 1, 1, 1, 3, 3)
    assert pe.join(sections, g).axes == (0, 1, 1, 1, 0, 0)
    joined = pe.join(0, YARN, axes=(5, 1))  # a spectrum of width 0 has no amplitude or precision to keep
    assert (joined.cycles, joined.axes) == (YARN.cycles, (1,) * 8)
    assert joined.attention_factor == YARN.attention_factor and joined.precision == "float32"


@pytest.mark.parametrize(
    ("interleaved", "sections"),
    [
        *((False, sections) for sections in [(16, 24, 24), (1, 2, 3), (7,), (3, 1, 2, 4)]),
        *((True, sections) for sections in [(24, 20, 20), (3, 2, 1), (4, 1, 1), (6, 2), (5,), (3, 2, 2, 1)]),
    ],
)
def test_sections_have_their_pairs_of_the_spectrum(interleaved, sections):
    f = pe.geometric(2 * sum(sections), 1e6).with_attention_factor(1.5).with_precision("float32")
    got = pe.multi_section(f, np.array(sections), interleaved=interleaved)
    assert got.axes == tuple(spectra.axes_of(sections, interleaved).tolist()) and got.cycles == f.cycles
    assert tuple(got.axes.count(axis) for axis in range(len(sections))) == sections
    assert (got.attention_factor, got.precision) == (1.5, "float32")


@pytest.mark.parametrize("interleaved", [False, True])
def test_each_pair_rotates_by_its_coordinate(interleaved):
    f = pe.multi_section(16, (4, 3, 1), interleaved=interleaved)
    positions = np.array([[5, 70, 900], [1_000_003, 2, 0], [0, 0, 2_000_000_000]])
    axes = spectra.axes_of((4, 3, 1), interleaved).tolist()
    want = np.concatenate(encodings.waves(positions, spectra.geometric(16, 10_000), axes), -1)
    assert_within(pe.sinusoidal(positions, f, layout="half"), want, 9e-8, against="mpmath")


# docs/dimensions.md has the spectra of checkpoints. The recordings are of smaller heads: what to replace by what.
SMALLER = {"(16, 56, 56)": "(4, 6, 6)", "(44, 42, 42)": "(8, 6, 6)", "(16, 24, 24)": "(4, 6, 6)"}
SMALLER |= {"axial(64, 2, interleaved": "axial(16, 2, interleaved"}


def spectra_of_the_page():
    """Model → Frequencies, by the code of docs/dimensions.md at the recorded widths."""
    code = pages.block("docs/dimensions.md", '"Lumina"').partition("for name")[0]
    for of_checkpoint, recorded_one in SMALLER.items():
        assert of_checkpoint in code
        code = code.replace(of_checkpoint, recorded_one)
    models = pages.run(code, {"np": np, "pe": pe})["models"]
    return {name.lower(): f for name, f in models.items()}


VIDEO = spectra_of_the_page()
VIDEO |= {"hunyuan_video": VIDEO["hunyuanvideo"], "lumina2": pe.axial((4, 6, 6))}


@pytest.mark.parametrize("case", recorded.cases("diffusers_rotations"), ids=lambda case: case["model"])
def test_rotations_are_those_of_image_and_video_models_of_diffusers(case):
    x, want = (np.array(case[key], np.float32) for key in ("x", "rotated"))
    positions = np.array(case["positions"])
    positions = positions.astype(np.int32 if positions.dtype.kind == "i" else np.float32)
    got = jax.jit(lambda p: pe.rotary(x, p, VIDEO[case["model"]], layout="interleaved", head_axis=None))(positions)
    assert_within(got, want, 3e-6, against="diffusers, recorded")


def test_fractions_cost_nothing_as_whole_numbers():
    """LTX-2's coordinates, 2p/top − 1, times π/2 to 5,000π: in mpmath, and by whole numbers with a scaled spectrum."""
    spectrum, units = pe.geometric(2 * 8, endpoint=True)[::-1], np.array([480, 64, 64])
    axes = [pe.linear_scaling(spectrum, n / (5000 * np.pi)) for n in (480, 64, 64)]
    whole = pe.join(pe.geometric(4).with_angular([0.0, 0.0]), pe.axial(axes, interleaved=True))
    powers = [spectra.MP.mpf(10_000) ** (spectra.MP.mpf(i) / 7) for i in range(8)]
    omegas = [0, 0] + [w * spectra.MP.pi / 2 for w in powers for _ in units]  # at rest, then time, row, column in turn
    n = (np.array([[1, 31, 33], [477, 1, 127], [959, 63, 65]]) - units).astype(np.int32)
    fractions = n.astype(object) * (spectra.MP.mpf(1) / units.astype(object))
    want = np.concatenate(encodings.waves(fractions, omegas, [0, 0] + [0, 1, 2] * 8), -1)
    rounded = whole.with_angular([float(w) for w in omegas]), np.float32(n / units)
    got, inexact = jax.jit(lambda: [pe.sinusoidal(p, f, layout="half") for f, p in ((whole, n), rounded)])()
    assert_within(got, want, 9e-8, against="mpmath")
    assert 1e-4 < np.abs(inexact - want).max() < 5e-4


def test_pairs_at_rest_are_those_that_part_leaves_out():
    x, p = np.random.default_rng(0).normal(size=(3, 12)).astype(np.float32), np.arange(6, dtype=np.int32).reshape(3, 2)
    f, at = pe.axial(8, 2), {"head_axis": None, "layout": "interleaved"}
    resting = pe.join(pe.geometric(4).with_angular([0.0, 0.0]), f)
    by_rest, by_part = jax.jit(lambda: (pe.rotary(x, p, resting, **at), pe.rotary(x, p, f, part="last", **at)))()
    np.testing.assert_array_equal(by_rest, by_part)
    np.testing.assert_array_equal(by_rest[:, :4], x[:, :4])


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: pe.axial(6, 2), ValueError, "axial: frequencies (a width) must be a multiple of 2·num_axes = 4"),
        (lambda: pe.axial(8, 0), ValueError, "axial: num_axes must be at least 1"),
        (lambda: pe.axial(8), ValueError, "axial: num_axes must be given"),
        (lambda: pe.axial((8, 8), 2), ValueError, "axial: num_axes must not be given with a sequence"),
        (lambda: pe.axial(F, 2**20 + 1), ValueError, "axial: num_axes must be at most 2²⁰"),
        (lambda: pe.axial("8", 2), TypeError, "axial: frequencies (a width) must be an integer"),
        (lambda: pe.axial((8, 4), interleaved=True), ValueError, "axial: frequencies must have as many pairs for each"),
        (lambda: pe.axial(8, 2, interleaved=1), TypeError, "axial: interleaved must be True or False"),
        (lambda: pe.axial(()), ValueError, "axial: frequencies must hold a spectrum for each coordinate"),
        (lambda: pe.axial(np.array(8)), TypeError, "axial: frequencies must be a sequence of"),
        (lambda: pe.axial((8, 7)), ValueError, "axial: frequencies[1] (a width) must be even"),
        (lambda: pe.axial((8, -2)), ValueError, "axial: frequencies[1] (a width) must be at least 0"),
        (lambda: pe.axial((8, F), base=100.0), ValueError, "axial: base must not be given with Frequencies"),
        (lambda: pe.axial(pe.geometric(7), 2), ValueError, "axial: frequencies must have an even dim"),
        (lambda: pe.axial((F, YARN)), ValueError, "axial: frequencies must have one attention_factor"),
        (lambda: pe.axial(pe.geometric(2), 2**19 + 1), ValueError, "axial: frequencies of all axes must have a width"),
        (lambda: pe.join(), ValueError, "join: frequencies must hold at least one spectrum"),
        (lambda: pe.join(F, 7), ValueError, "join: frequencies must have an even dim"),
        (lambda: pe.join((F, F)), TypeError, "join: frequencies must be Frequencies"),
        (lambda: pe.join(F, F.with_precision("float32")), ValueError, "join: frequencies must have one attention_f"),
        (lambda: pe.join(F, F, axes=(0,)), ValueError, "join: axes must hold one coordinate"),
        (lambda: pe.join(F, F, axes=(0, -1)), ValueError, "join: axes[1] must be at least 0"),
        (lambda: pe.multi_section(F, (2, 2, 3)), ValueError, "multi_section: sections must sum to the 6 pairs"),
        (lambda: pe.multi_section(F, (6, 0)), ValueError, "multi_section: sections[1] must be at least 1"),
        (
            lambda: pe.multi_section(F, (1, 2, 3), interleaved=True),
            ValueError,
            "multi_section: sections must be the numbers of pairs that coordinates get when pairs alternate",
        ),
        (lambda: pe.multi_section(F, (2, 4), interleaved=1), TypeError, "multi_section: interleaved must be True"),
        (
            lambda: pe.multi_section(pe.axial(12, 2), (3, 3)),
            ValueError,
            "multi_section: frequencies must have one axis",
        ),
        (lambda: pe.multi_section(np.ones(6), (3, 3)), TypeError, "multi_section: frequencies must be Frequencies"),
    ],
)
def test_invalid_arguments_raise(call, error, match):
    with pytest.raises(error, match="^" + re.escape(match)):
        call()
