"""Positions of several coordinates: which coordinate turns which pair, and by how much."""

import dataclasses

import jax
import numpy as np
import pytest

import posenc_jax as pe
from helpers import pages
from helpers.closeness import assert_within
from helpers.quick import quick
from helpers.spectra import count_traces
from helpers.tiers import slow
from oracles import encodings, recorded, spectra


def test_axial_is_an_equal_share_for_each_axis():
    one, two = pe.geometric(8, 100.0), pe.axial(16, 2, 100.0)
    assert two.axes == (0,) * 4 + (1,) * 4 and two.num_axes == 2 and two.dim == 16
    np.testing.assert_array_equal(two.angular, np.tile(one.angular, 2))
    assert pe.axial(16, 1) == pe.geometric(16)
    assert pe.axial(4, 2).angular.tolist() == [1.0, 1.0]


def test_axial_repeats_a_given_spectrum():
    assert pe.axial(pe.geometric(8, 100.0), 2) == pe.axial(16, 2, 100.0)
    assert pe.axial(pe.geometric(8), 3) == pe.axial(24, 3) == pe.axial(24, 3, 10_000)
    yarn = pe.yarn(16, 1e4, 8, 4096).with_precision("float32")
    two = pe.axial(yarn, 2)
    assert two.cycles == yarn.cycles * 2 and two.axes == (0,) * 8 + (1,) * 8 and two.dim == 32
    assert two.attention_factor == yarn.attention_factor > 1 and two.precision == "float32"
    assert pe.axial(yarn, 1) == yarn


def test_axial_of_a_scaled_spectrum_concatenates_the_coordinates():
    yarn = pe.yarn(16, 1e4, 8, 4096)
    rows, columns = np.meshgrid(np.arange(7), np.arange(3) * 1000, indexing="ij")
    got = pe.sinusoidal(np.stack([rows, columns], -1), pe.axial(yarn, 2))
    np.testing.assert_array_equal(got, np.concatenate([pe.sinusoidal(rows, yarn), pe.sinusoidal(columns, yarn)], -1))


def test_a_width_for_each_axis():
    got = pe.axial((16, 56, 56), base=256.0)
    assert got.axes == (0,) * 8 + (1,) * 28 + (2,) * 28 and got.dim == 128 and got.num_axes == 3
    want = [256.0 ** (-2 * i / width) for width in (16, 56, 56) for i in range(width // 2)]
    np.testing.assert_allclose(got.angular, want, rtol=1e-15)
    assert pe.axial((8, 8)) == pe.axial(16, 2) and pe.axial((8,)) == pe.geometric(8)
    assert pe.axial([8, 4]) == pe.axial(np.array([8, 4])) == pe.axial((pe.geometric(8), 4))
    yarn = pe.yarn(16, 1e4, 8, 4096)
    assert pe.axial((yarn, yarn)) == pe.axial(yarn, 2)


# docs/dimensions.md writes the spectra of checkpoints; smaller heads were recorded.
SMALLER = {"(16, 56, 56)": "(4, 6, 6)", "(44, 42, 42)": "(8, 6, 6)", "(16, 24, 24)": "(4, 6, 6)"}
SMALLER |= {"axial(64, 2)[": "axial(16, 2)[", "np.arange(32).reshape(2, 16)": "np.arange(8).reshape(2, 4)"}


def spectra_of_the_page():
    code = pages.block("docs/dimensions.md", '"Lumina"').partition("for name")[0]
    for of_checkpoint, recorded_one in SMALLER.items():
        assert of_checkpoint in code
        code = code.replace(of_checkpoint, recorded_one)
    models = pages.run(code, {"np": np, "pe": pe})["models"]
    return {name.lower(): f for name, f in models.items()}


VIDEO = spectra_of_the_page()
VIDEO |= {"hunyuan_video": VIDEO["hunyuanvideo"], "lumina2": pe.axial((4, 6, 6))}


@pytest.mark.parametrize("case", recorded.cases("diffusers_rotations"), ids=lambda case: case["model"])
def test_image_and_video_models_of_diffusers(case):
    x, want = (np.array(case[key], np.float32) for key in ("x", "rotated"))
    positions = np.array(case["positions"])
    positions = positions.astype(np.int32 if positions.dtype.kind == "i" else np.float32)
    rotate = lambda p: pe.rotary(x, p, VIDEO[case["model"]], layout="interleaved", head_axis=None)  # noqa: E731
    got, swapped = quick(lambda p: (rotate(p), rotate(p[..., ::-1])))(positions)
    assert_within(got, want, 3e-6, against="diffusers, recorded")
    assert np.abs(np.asarray(swapped) - want).max() > 0.5


def test_each_part_of_a_joined_spectrum_keeps_its_frequencies():
    f, g = pe.geometric(8, 100.0), pe.linear_scaling(pe.geometric(4), 2)
    same = pe.join(f, g)
    assert same.cycles == f.cycles + g.cycles and same.axes == (0,) * 6 and same.dim == 12
    other = pe.join(g, pe.multi_section(f, (1, 3)), g, axes=(2, 0, 3))
    assert other.cycles == g.cycles + f.cycles + g.cycles and other.axes == (2, 2, 0, 1, 1, 1, 3, 3)
    assert pe.join(pe.multi_section(f, (1, 3)), g).axes == (0, 1, 1, 1, 0, 0)
    yarn = pe.yarn(16, 1e4, 8, 4096).with_precision("float32")
    joined = pe.join(pe.geometric(0), yarn, axes=(5, 1))  # features alone have an amplitude
    assert joined.attention_factor == yarn.attention_factor > 1 and joined.precision == "float32"
    assert joined.axes == (1,) * 8 and joined.cycles == yarn.cycles
    assert pe.join(f) == f and pe.join(0, 0) == pe.geometric(0) and pe.join(8) == pe.geometric(8)


def test_pairs_are_chosen_as_in_numpy():
    f = pe.multi_section(pe.yarn(16, 1e4, 8, 4096), (3, 5))
    for index in (slice(None, None, 2), slice(1, None, 2), slice(None, 3), slice(None, None, -1), [7, 0, 0, -1], []):
        got = f[index]
        assert got.angular.tolist() == f.angular[np.array(index, int) if isinstance(index, list) else index].tolist()
        assert list(got.axes) == list(np.array(f.axes)[np.array(index, int) if isinstance(index, list) else index])
        assert got.dim == 2 * got.num_pairs and got.attention_factor == f.attention_factor
    assert f[np.array([1, 0])] == f[[1, 0]] == f[(1, 0)] != f[[0, 1]]
    assert f[:] == f and f[:0].dim == 0
    with pytest.raises(TypeError):
        iter(f).__next__()


@pytest.mark.parametrize("sections", [(16, 24, 24), (8, 12, 12), (1, 2, 3), (5, 1), (7,), (3, 1, 2, 4)])
def test_contiguous_sections(sections):
    f = pe.geometric(2 * sum(sections), 1e6)
    got = pe.multi_section(f, sections)
    assert got.axes == tuple(spectra.axes_of(sections).tolist())
    assert got.cycles == f.cycles and got.num_axes == len(sections)
    assert pe.multi_section(f, np.array(sections)) == pe.multi_section(f, list(sections)) == got


@pytest.mark.parametrize(
    "sections", [(24, 20, 20), (3, 2, 1), (2, 2, 2), (4, 1, 1), (6, 2), (5,), (3, 2, 2, 1), (3, 3, 2)]
)
def test_interleaved_sections(sections):
    f = pe.geometric(2 * sum(sections), 1e6)
    got = pe.multi_section(f, sections, interleaved=True)
    assert got.axes == tuple(spectra.axes_of(sections, interleaved=True).tolist()) and got.cycles == f.cycles
    assert tuple(got.axes.count(axis) for axis in range(len(sections))) == sections


def test_published_sections():
    qwen2 = pe.multi_section(pe.geometric(128, 1e6), (16, 24, 24)).axes
    assert (qwen2[15], qwen2[16], qwen2[39], qwen2[40]) == (0, 1, 1, 2)
    qwen3 = pe.multi_section(pe.geometric(128, 5e6), (24, 20, 20), interleaved=True).axes
    assert qwen3[:6] == (0, 1, 2, 0, 1, 2) and qwen3[57:] == (0, 1, 2, 0, 0, 0, 0)


@pytest.mark.parametrize("interleaved", [False, True])
def test_each_pair_turns_by_its_coordinate(interleaved):
    sections, dim = (4, 3, 1), 16
    f = pe.multi_section(dim, sections, interleaved=interleaved)
    axes = (0, 1, 2, 0, 1, 0, 0, 1) if interleaved else (0, 0, 0, 0, 1, 1, 1, 2)
    positions = np.array([[5, 70, 900], [1_000_003, 2, 0], [0, 0, 2_000_000_000]])
    got = np.asarray(pe.sinusoidal(positions, f, layout="half"))
    for row, position in enumerate(positions):
        for i, (axis, omega) in enumerate(zip(axes, spectra.geometric(dim, 10_000), strict=True)):
            sine, cosine = encodings.waves([position[axis]], [omega])
            assert got[row, [i, i + 8]] == pytest.approx([sine.item(), cosine.item()], abs=9e-8)


@pytest.mark.parametrize("interleaved", [False, True])
def test_text_is_encoded_as_without_sections(interleaved):
    f = pe.yarn(16, 1e4, 8, 4096)
    sections = pe.multi_section(f, (4, 2, 2), interleaved=interleaved)
    assert sections.attention_factor == f.attention_factor
    positions = np.array([0, 17, 123_456_789])
    everywhere = np.stack([positions] * 3, axis=-1)
    np.testing.assert_array_equal(pe.sinusoidal(everywhere, sections), pe.sinusoidal(positions, f))


def test_the_two_forms_and_the_order_of_sections_differ():
    f = dataclasses.replace(pe.geometric(12), attention_factor=1.5, precision="float32")
    results = [pe.multi_section(f, s, interleaved=b) for s, b in (((2, 2, 2), False), ((2, 2, 2), True), ((3, 2, 1), False), ((1, 2, 3), False), ((3, 3), False))]  # fmt: skip
    assert len(set(results)) == 5
    assert all(r.attention_factor == 1.5 and r.precision == "float32" for r in results)
    assert pe.multi_section(f, [6]) == pe.multi_section(f, [6], interleaved=True) == f
    assert pe.multi_section(12, (2, 4)) == pe.multi_section(pe.geometric(12), (np.int64(2), np.int8(4)))


def test_static_under_jit():
    given = (pe.multi_section(12, sections) for sections in ((2, 2, 2), [2, 2, 2], (1, 2, 3)))
    assert count_traces(np.zeros((4, 3), np.int32), given) == 2


F = pe.geometric(12)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: pe.axial(6, 2), ValueError, r"axial: frequencies \(a width\) must be a multiple of 2·num_axes = 4, got 6"),
        (lambda: pe.axial(8, 0), ValueError, "axial: num_axes must be at least 1, got 0"),
        (lambda: pe.axial(8, 2.0), TypeError, "axial: num_axes must be an integer, got float 2.0"),  # type: ignore
        (lambda: pe.axial(8, True), TypeError, "axial: num_axes must be an integer, got bool True"),
        (lambda: pe.axial(8, 2, -1.0), ValueError, "base must be positive, got -1.0"),
        (lambda: pe.axial(8, 2, float("nan")), ValueError, "base must be finite, got nan"),
        (lambda: pe.axial(-4, 2), ValueError, r"axial: frequencies \(a width\) must be at least 0, got -4"),
        (lambda: pe.axial(True, 2), TypeError, r"axial: frequencies \(a width\) must be an integer, got bool True"),
        (lambda: pe.axial("8", 2), TypeError, r"axial: frequencies \(a width\) must be an integer, got str '8'"),  # type: ignore
        (lambda: pe.axial(jax.device_put(np.ones(4, np.float32)), 2), TypeError, r"axial: frequencies \(a width\) must be an integer, got float.. of shape \(4,\)"),  # type: ignore
        (lambda: pe.axial(F, 2, 10_000), ValueError, "axial: base must not be given with Frequencies, which have their own, got 10000"),
        (lambda: pe.axial(pe.geometric(7), 2), ValueError, "axial: frequencies must have an even dim, got 7"),
        (lambda: pe.axial(pe.axial(8, 2), 2), ValueError, "axial: frequencies must have one axis, got 2"),
        (lambda: pe.axial(pe.multi_section(F, (2, 2, 2)), 2), ValueError, "axial: frequencies must have one axis, got 3"),
        slow(lambda: pe.axial(2**21, 2), ValueError, "axial: frequencies of all axes must have a width of at most 2²⁰, got 2097152"),
        (lambda: pe.axial(32, 2, 1e-12), ValueError, "axial: base must keep every pair below 2²⁸ cycles per position, got 1e-12"),
        (lambda: pe.axial(F, 10**9), ValueError, "axial: num_axes must be at most 2²⁰, got 1000000000"),
        (lambda: pe.axial(F, 10**6), ValueError, "axial: frequencies of all axes must have a width of at most 2²⁰, got 12000000"),
        (lambda: pe.axial(8), ValueError, "axial: num_axes must be given, unless frequencies is a sequence, got None"),
        (lambda: pe.axial((8, 8), 2), ValueError, "axial: num_axes must not be given with a sequence of 2 spectra, one for each coordinate, got 2"),
        (lambda: pe.axial(()), ValueError, "axial: frequencies must hold a spectrum for each coordinate, got none"),
        (lambda: pe.axial((8, 7)), ValueError, r"axial: frequencies\[1\] \(a width\) must be even, got 7"),
        (lambda: pe.axial((8, -2)), ValueError, r"axial: frequencies\[1\] \(a width\) must be at least 0, got -2"),
        (lambda: pe.axial((8, 8.0)), TypeError, r"axial: frequencies\[1\] \(a width\) must be an integer, got float 8.0"),  # type: ignore
        (lambda: pe.axial((8, F), base=100.0), ValueError, "axial: base must not be given with Frequencies"),
        (lambda: pe.axial((F, pe.geometric(7))), ValueError, "axial: frequencies must have an even dim, got 7"),
        (lambda: pe.axial((F, pe.axial(8, 2))), ValueError, "axial: frequencies must have one axis, got 2"),
        (lambda: pe.axial((F, F.with_attention_factor(2.0))), ValueError, "axial: frequencies must have one attention_factor and one precision, got Frequencies.* and Frequencies"),
        slow(lambda: pe.axial((2**19, 2**20)), ValueError, "axial: frequencies of all axes must have a width of at most 2²⁰, got 1572864"),
        (lambda: pe.join(), ValueError, "join: frequencies must hold at least one spectrum, got none"),
        (lambda: pe.join(F, 7), ValueError, "join: frequencies must have an even dim, got 7"),
        (lambda: pe.join((F, F)), TypeError, "join: frequencies must be Frequencies or an integer width, got tuple"),  # type: ignore
        (lambda: pe.join(F, F.with_precision("float32")), ValueError, "join: frequencies must have one attention_factor and one precision"),
        (lambda: pe.join(F, F, axes=(0,)), ValueError, r"join: axes must hold one coordinate for each of 2 spectra, got \(0,\)"),
        (lambda: pe.join(F, F, axes=(0, -1)), ValueError, r"join: axes\[1\] must be at least 0, got -1"),
        (lambda: pe.join(F, axes=1), TypeError, "join: axes must be a sequence of integers, got int 1"),  # type: ignore
        (lambda: pe.join(F, F, axes=(0, 1.0)), TypeError, r"join: axes\[1\] must be an integer, got float 1.0"),  # type: ignore
        (lambda: pe.join(2**20, 2), ValueError, "join: frequencies of all axes must have a width of at most 2²⁰, got 1048578"),
        (lambda: F[[0, 6]], ValueError, r"Frequencies.__getitem__: index must name pairs below 6, got \[0, 6\]"),
        (lambda: F[[-7]], ValueError, r"index must name pairs below 6, got \[-7\]"),
        (lambda: F[0], TypeError, "index must be a sequence of integers, or a slice, got int 0"),  # type: ignore
        (lambda: F[[0.0]], TypeError, r"index\[0\] must be an integer, got float 0.0"),  # type: ignore
        (lambda: F[[True]], TypeError, r"index\[0\] must be an integer, got bool True"),
        (lambda: F["a":], TypeError, "index must be a slice of integers, with a step other than 0, got slice"),  # type: ignore
        (lambda: F[::0], TypeError, "index must be a slice of integers, with a step other than 0, got slice"),
        (lambda: pe.geometric(7)[:2], ValueError, "frequencies must have an even dim to choose pairs, got 7"),
        (lambda: pe.multi_section(F, (2, 2, 3)), ValueError, r"multi_section: sections must sum to the 6 pairs of frequencies, got \(2, 2, 3\)"),
        (lambda: pe.multi_section(F, (2, 3)), ValueError, r"multi_section: sections must sum to the 6 pairs of frequencies, got \(2, 3\)"),
        (lambda: pe.multi_section(F, (4, 4, 4)), ValueError, r"sections must sum to the 6 pairs of frequencies, got \(4, 4, 4\)"),
        (lambda: pe.multi_section(F, ()), ValueError, r"sections must sum to the 6 pairs of frequencies, got \(\)"),
        (lambda: pe.multi_section(F, (6, 0)), ValueError, r"multi_section: sections\[1\] must be at least 1, got 0"),
        (lambda: pe.multi_section(F, (7, -1)), ValueError, r"multi_section: sections\[1\] must be at least 1, got -1"),
        (lambda: pe.multi_section(F, (3.0, 3)), TypeError, r"multi_section: sections\[0\] must be an integer, got float 3.0"),  # type: ignore
        (lambda: pe.multi_section(F, (5, True)), TypeError, r"multi_section: sections\[1\] must be an integer, got bool True"),
        (lambda: pe.multi_section(F, 6), TypeError, "multi_section: sections must be a sequence of integers, got int 6"),  # type: ignore
        (lambda: pe.multi_section(F, "222"), TypeError, "multi_section: sections must be a sequence of integers, got str '222'"),  # type: ignore
        (lambda: pe.multi_section(F, (1, 2, 3), interleaved=True), ValueError, r"multi_section: sections must give each coordinate its pairs when they are dealt out in turn, got \(1, 2, 3\), which deals out \(2, 2, 2\)"),
        (lambda: pe.multi_section(pe.geometric(128), (16, 24, 24), interleaved=True), ValueError, r"got \(16, 24, 24\), which deals out \(22, 21, 21\)"),
        (lambda: pe.multi_section(F, (2, 2, 2), interleaved=1), TypeError, "multi_section: interleaved must be True or False, got int 1"),  # type: ignore
        (lambda: pe.multi_section(pe.axial(12, 2), (3, 3)), ValueError, "multi_section: frequencies must have one axis, got 2"),
        (lambda: pe.multi_section(np.ones(6, np.float32), (3, 3)), TypeError, "multi_section: frequencies must be Frequencies or an integer width"),  # type: ignore
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_the_width_of_all_axes_has_a_limit():
    assert pe.axial(pe.geometric(2), 2**19).dim == 2**20
    with pytest.raises(
        ValueError, match="^axial: frequencies of all axes must have a width of at most 2²⁰, got 1048578$"
    ):
        pe.axial(pe.geometric(2), 2**19 + 1)
