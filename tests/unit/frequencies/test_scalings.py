"""The scalings against formulas at 70 digits."""

import dataclasses
import decimal
import math

import jax
import numpy as np
import pytest

import posenc_jax as pe
from helpers.quick import quick
from helpers.spectra import SCALINGS, WIDTHS, assert_exact, count_traces
from helpers.tiers import slow, tiered
from oracles import encodings, rotations, spectra
from posenc_jax._frequencies import frequencies, scalings


@pytest.mark.parametrize(("dim", "base"), WIDTHS)
@pytest.mark.parametrize("factor", [0.75, 1, 2.0, 1.1, 32, 1e-3, 1e6])
def test_linear_scaling(dim, base, factor):
    expected = spectra.linear(dim, base, factor)
    assert_exact(pe.linear_scaling(pe.geometric(dim, base), factor), expected, 0.51 + 0.51 / factor)


YARN = [
    (64, 150_000.0, 32, 4096, {}),
    (64, 150_000.0, 32, 4096, {"truncate": False}),
    (64, 10_000.0, 40, 4096, {"beta_fast": 32, "beta_slow": 1}),
    (128, 1e6, 4, 32768, {}),
    (128, 1e6, 1.1, 32768, {"beta_fast": 40.5, "beta_slow": 1.5}),
    (64, 10_000.0, 8, 131072, {}),  # the ramp ends behind the last pair
    (8, 10.0, 8, 400, {}),  # and beyond r − 1
    (8, 10.0, 8, 4096, {}),
    (8, 10.0, 8, 4096, {"truncate": False}),
    (64, 10_000.0, 8, 64, {"truncate": False}),  # the ramp would begin before the first
    (64, 10_000.0, 8, 4096, {"beta_fast": 3, "beta_slow": 3, "truncate": False}),  # no ramp
    (8, 10_000.0, 8, 4, {}),  # no ramp either: both bounds are 0
    (2, 10_000.0, 8, 4096, {}),
    (64, 10_000.0, 2, 4, {}),  # the ramp falls from 0 to −1: all pairs are kept
    (64, 10_000.0, 4, 8, {"beta_slow": 2}),  # the same in a test of axlearn
    (8, 2.0, 2, 10**9, {}),  # from 88 to 7: all pairs are interpolated
]


@pytest.mark.parametrize(("dim", "base", "factor", "original_max", "settings"), YARN)
def test_yarn(dim, base, factor, original_max, settings):
    got = pe.yarn(dim, base, factor, original_max, **settings)
    assert_exact(got, spectra.yarn(dim, base, factor, original_max, **settings), 1.01)
    assert got.attention_factor == pytest.approx(float(spectra.temperature(factor)), rel=1e-15)


@pytest.mark.parametrize(("truncate", "low", "high"), [(False, 8.092779, 17.398025), (True, 8, 18)])
def test_the_ramp_of_gpt_oss(truncate, low, high):
    got = pe.yarn(64, 150_000, 32, 4096, truncate=truncate)
    weight = [a / b for a, b in zip(got.cycles, pe.geometric(64, 150_000).cycles, strict=True)]
    share = [(1 - w) / (1 - 1 / 32) for w in weight]
    slope = (share[17] - share[9]) / 8
    assert (9 - share[9] / slope, 17 + (1 - share[17]) / slope) == pytest.approx((low, high), abs=5e-7)
    assert weight[:9] == [1] * 9 and weight[18:] == pytest.approx([1 / 32] * 14, rel=1e-15)


def test_amplitudes_of_published_models():
    assert pe.yarn(64, 150_000, 32, 4096).attention_factor == pytest.approx(1.3465735902799727, rel=1e-15)  # gpt-oss
    assert scalings.temperature(40.0) ** 2 == pytest.approx(1.8739, abs=5e-5)  # DeepSeek-V3's softmax scale
    assert scalings.temperature(40.0, 0.707) == pytest.approx(1 + 0.0707 * math.log(40), rel=1e-15)
    assert scalings.temperature(1.0, 0.5) == scalings.temperature(0.5) == 1
    phi3 = pe.longrope(4, [1, 1], [1, 1], original_max=4096, factor=32, length=1)
    assert phi3.attention_factor == pytest.approx(1.190238, abs=5e-7)
    assert phi3.attention_factor == pytest.approx(float(spectra.longrope_amplitude(32, 4096)), rel=1e-15)


@pytest.mark.parametrize("factor", [0.5, 1, 1.5, 32])
@pytest.mark.parametrize(("length", "long"), [(1, False), (4096, False), (4097, True), (10**6, True)])
def test_longrope(length, long, factor):
    f = pe.geometric(8, 10_000)
    short_factor, long_factor = [1, 1.1, 1.25, 3], (1.05, 2.5, np.float32(17.3), 64)
    got = pe.longrope(f, short_factor, np.array(long_factor), original_max=4096, factor=factor, length=length)
    divisors = long_factor if long else short_factor
    assert_exact(got, spectra.longrope(8, 10_000, divisors, divisors, 4096, factor, length), 1.01)
    assert got.attention_factor == pytest.approx(float(spectra.longrope_amplitude(factor, 4096)), rel=1e-15)


@pytest.mark.parametrize(("dim", "base"), WIDTHS)
@pytest.mark.parametrize("factor", tiered([1, 1.1, 8.0, 32], [1.1, 32]))
@pytest.mark.parametrize(("low", "high"), [(1, 4), slow(1, 2), (0.3, 50.7)])
@pytest.mark.parametrize("original_max", [64, 8192])
def test_llama3(dim, base, factor, low, high, original_max):
    f = pe.geometric(dim, base)
    got = pe.llama3(f, factor, low_freq_factor=low, high_freq_factor=high, original_max=original_max)
    assert_exact(got, spectra.llama3(dim, base, factor, low, high, original_max))
    assert got.attention_factor == 1


def test_llama3_with_one_bound_is_a_step():
    # Llama 4 Scout: pairs that turn more than once in 8,192 positions are kept, the others divided.
    f = pe.geometric(128, 500_000)
    got = pe.llama3(f, 16, low_freq_factor=1, high_freq_factor=1, original_max=8192).angular
    np.testing.assert_allclose(got, np.where(f.wavelengths < 8192, f.angular, f.angular / 16), rtol=1e-15)
    # At the bound itself a pair is divided: ω = 2π/8192, exactly 2⁻¹³ cycle per position.
    edge = dataclasses.replace(pe.geometric(2), cycles=(1 << 115,))
    assert pe.llama3(edge, 16, low_freq_factor=1, high_freq_factor=1, original_max=8192).cycles == (1 << 111,)


def test_llama3_of_pairs_that_rest_or_turn_backwards():
    cycles = pe.geometric(64, 5e5).cycles
    settings = {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max": 8192}
    forwards = pe.llama3(pe.Frequencies((0, *cycles), 66), **settings)
    backwards = pe.llama3(pe.Frequencies(tuple(-t for t in (0, *cycles)), 66), **settings)
    assert forwards.cycles[0] == 0 and backwards.cycles == tuple(-t for t in forwards.cycles)


@pytest.mark.parametrize(
    ("dim", "fraction", "turning"),
    [(8, 1, 4), (8, 0.25, 1), (512, 0.25, 64), (10, 0.3, 1), (20, 0.7, 7), (20, 0.69, 6)],
)
@pytest.mark.parametrize("factor", [1.0, 8, 1.1])
def test_proportional(dim, fraction, turning, factor):
    got = pe.proportional(dim, 1e6, fraction, factor)
    assert_exact(got, spectra.proportional(dim, 1e6, fraction, factor), 1.01)
    assert all(got.cycles[:turning])
    assert got.cycles[turning:] == (0,) * (dim // 2 - turning)


def test_what_leaves_a_spectrum_as_it_is():
    f = dataclasses.replace(pe.geometric(16, 5e5), attention_factor=1.5)
    assert pe.linear_scaling(f, 1) == f
    assert pe.llama3(f, 1, low_freq_factor=1, high_freq_factor=4, original_max=64) == f
    assert pe.longrope(f, [1] * 8, [2] * 8, original_max=64, factor=1, length=64) == f
    for same in (pe.ntk(16, 5e5, 1), pe.yarn(16, 5e5, 1, 64), pe.proportional(16, 5e5, 1)):
        assert same == pe.geometric(16, 5e5)
    assert pe.linear_scaling(16, 2) == pe.linear_scaling(pe.geometric(16), 2)


@pytest.mark.parametrize("label", SCALINGS)
def test_every_scaling_is_its_formula(label):
    scaling = SCALINGS[label]
    (omegas, amplitude), got = scaling.formula(), scaling.function(**scaling.arguments)
    assert_exact(got, omegas)
    assert got.attention_factor == pytest.approx(float(amplitude), rel=1e-15)


CALLS = [
    (pe.ntk, {"dim": 16, "base": 1e4, "factor": 2}, {"dim": 18, "base": 1e5, "factor": 3}),
    (pe.dynamic_ntk, {"dim": 16, "base": 1e4, "factor": 2, "original_max": 64, "length": 100}, {"dim": 18, "base": 1e5, "factor": 3, "original_max": 65, "length": 101}),
    (pe.yarn, {"dim": 64, "base": 1e4, "factor": 2, "original_max": 4096}, {"dim": 66, "base": 1e5, "factor": 3, "original_max": 8192, "beta_fast": 64, "beta_slow": 2, "truncate": False, "attention_factor": 1}),
    (pe.longrope, {"frequencies": 4, "short_factor": [1, 2], "long_factor": [3, 4], "original_max": 64, "factor": 2, "length": 64}, {"short_factor": [1, 3], "original_max": 63, "factor": 3, "length": 65, "attention_factor": 1}),
    (pe.llama3, {"frequencies": 64, "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max": 8192}, {"frequencies": 62, "factor": 4, "low_freq_factor": 2, "high_freq_factor": 5, "original_max": 8193}),
    (pe.proportional, {"dim": 16, "base": 1e4, "fraction": 0.5}, {"dim": 18, "base": 1e5, "fraction": 0.75, "factor": 2}),
    (pe.linear_scaling, {"frequencies": 16, "factor": 2}, {"frequencies": 18, "factor": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("function", "settings", "changes"), CALLS)
def test_every_argument_matters_and_equal_ones_are_equal(function, settings, changes):
    first = function(**settings)
    assert function(**settings) == first and hash(function(**settings)) == hash(first)
    changed = [function(**{**settings, name: value}) for name, value in changes.items()]
    assert len({first, *changed}) == 1 + len(changes)


def test_a_given_amplitude():
    assert pe.yarn(64, 1e4, 8, 4096, attention_factor=0.5).attention_factor == 0.5
    f = dataclasses.replace(pe.geometric(4), attention_factor=3.0)
    lists = {"short_factor": [1, 1], "long_factor": [1, 1], "original_max": 64, "factor": 8, "length": 1}
    assert pe.longrope(f, **lists, attention_factor=0.5).attention_factor == 1.5
    assert pe.longrope(f, **lists).attention_factor == pytest.approx(3 * math.sqrt(1.5), rel=1e-15)
    lists["original_max"] = 1
    assert pe.longrope(f, **lists, attention_factor=0.5).attention_factor == 1.5


def scale_linear(f):
    return pe.linear_scaling(f, 3)


def scale_llama3(f):
    return pe.llama3(f, 8, low_freq_factor=1, high_freq_factor=4, original_max=8192)


def scale_longrope(f):
    repeated = [1 + i % 12 for i in range(pe.linear_scaling(f, 1).num_pairs)]
    return pe.longrope(f, repeated, repeated, original_max=64, factor=8, length=100)


@pytest.mark.parametrize("scale", [scale_linear, scale_llama3, scale_longrope])
@pytest.mark.parametrize("give_axes", [lambda f: pe.axial(f, 3), lambda f: pe.multi_section(f, (6, 4, 2)), lambda f: pe.multi_section(f, (4, 4, 4), interleaved=True)])  # fmt: skip
def test_scalings_and_axes_compose_in_either_order(scale, give_axes):
    f = dataclasses.replace(pe.geometric(24, 5e5), attention_factor=1.5, precision="float32")
    got = scale(give_axes(f))
    assert got == give_axes(scale(f)) and got.axes == give_axes(f).axes
    assert got.precision == "float32" and got.num_axes == 3
    assert got.attention_factor == (1.5 * math.sqrt(1.5) if scale is scale_longrope else 1.5)
    assert got.cycles != give_axes(f).cycles


def test_scalings_of_scalings():
    twice, once = pe.linear_scaling(pe.linear_scaling(16, 2), 4), pe.linear_scaling(16, 8)
    assert max(abs(a - b) for a, b in zip(twice.cycles, once.cycles, strict=True)) <= 1
    yarn = pe.yarn(16, 1e4, 8, 4096)
    both = pe.linear_scaling(yarn, 2)
    assert both.attention_factor == yarn.attention_factor
    np.testing.assert_allclose(both.angular, yarn.angular / 2, rtol=1e-15)


def test_an_interpolated_position_is_the_fraction_of_it():
    positions = np.arange(0, 4096, 4, dtype=np.int32)
    encode = quick(lambda p: (pe.sinusoidal(p, pe.linear_scaling(64, 4)), pe.sinusoidal(p // 4, 64)))
    np.testing.assert_allclose(*encode(positions), rtol=0, atol=1.8e-7)


def test_the_encoding_is_exact_at_any_position():
    omegas = spectra.yarn(16, 1e4, 40, 4096)
    positions = np.array([3, 163_840, 2_000_000_011])
    sine, cosine = encodings.waves(positions, omegas)
    amplitude = float(spectra.temperature(40))
    got = pe.sinusoidal(positions, pe.yarn(16, 1e4, 40, 4096), layout="half")
    np.testing.assert_allclose(got, amplitude * np.concatenate([sine, cosine], axis=1), rtol=0, atol=1.5e-7)


def test_a_part_of_a_head_turns_by_several_coordinates_scaled_and_amplified():
    f = pe.multi_section(pe.yarn(16, 1e4, 40, 4096), (3, 3, 2), interleaved=True)
    positions = np.array([[3, 70, 900], [163_840, 0, 2_000_000_011]])
    x = np.random.default_rng(0).standard_normal((2, 1, 24)).astype(np.float32)
    got = np.asarray(pe.rotary(x, positions, f, head_axis=-2))
    np.testing.assert_array_equal(got[..., 16:], x[..., 16:])
    for i, omega in enumerate(spectra.yarn(16, 1e4, 40, 4096)):
        sine, cosine = (w[:, 0] for w in encodings.waves(positions[:, i % 3], [omega]))
        expected = rotations.turn(x[:, 0, i].astype(float), x[:, 0, i + 8].astype(float), sine, cosine)
        amplitude = float(spectra.temperature(40))
        np.testing.assert_allclose(got[:, 0, [i, i + 8]].T, amplitude * np.array(expected), rtol=0, atol=1.5e-6)


def test_static_under_jit():
    assert count_traces(np.arange(3), (pe.yarn(16, 1e4, factor, 4096) for factor in (8, 8.0, 9))) == 2
    lengths = lambda p: [pe.sinusoidal(p, pe.dynamic_ntk(16, 1e4, 2, 64, length)) for length in (len(p), 100)]  # noqa: E731
    np.testing.assert_array_equal(*jax.jit(lengths)(np.arange(100)))


def test_the_callers_decimal_context_changes_nothing():
    expected = [pe.yarn(34, 1234.5, 3, 4096, truncate=False), pe.ntk(34, 1234.5, 3)]
    frequencies.geometric_cycles.cache_clear()
    with decimal.localcontext(prec=3, rounding=decimal.ROUND_UP, traps=[decimal.Inexact]):
        assert [pe.yarn(34, 1234.5, 3, 4096, truncate=False), pe.ntk(34, 1234.5, 3)] == expected


LISTS = {"short_factor": [1, 1], "long_factor": [2, 2], "original_max": 64, "factor": 2, "length": 64}
LLAMA = {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max": 8192}
nan, inf = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: pe.linear_scaling(8, 0), ValueError, "linear_scaling: factor must be positive, got 0.0"),
        (lambda: pe.linear_scaling(8, -2), ValueError, "linear_scaling: factor must be positive, got -2.0"),
        (lambda: pe.linear_scaling(8, nan), ValueError, "linear_scaling: factor must be finite, got nan"),
        (lambda: pe.linear_scaling(8, inf), ValueError, "linear_scaling: factor must be finite, got inf"),
        (lambda: pe.linear_scaling(8, True), TypeError, "linear_scaling: factor must be a number, got bool True"),
        (lambda: pe.linear_scaling(8, "2"), TypeError, "linear_scaling: factor must be a number, got str '2'"),  # type: ignore
        (lambda: pe.linear_scaling(8, jax.device_put(np.float32(2))), TypeError, "linear_scaling: factor must be a number, got float32 of shape"),  # type: ignore
        (lambda: pe.linear_scaling(pe.Frequencies((1 << 155,), 2), 0.5), ValueError, "linear_scaling: factor must keep every pair below 2²⁸ cycles"),
        (lambda: pe.linear_scaling(8, 1e-10), ValueError, "linear_scaling: factor must keep every pair below 2²⁸ cycles per position, got 1e-10"),
        (lambda: pe.linear_scaling(jax.device_put(np.ones(4, np.float32)), 2), TypeError, "linear_scaling: frequencies must be Frequencies or an integer width"),  # type: ignore
        (lambda: pe.linear_scaling(-2, 2), ValueError, r"linear_scaling: frequencies \(a width\) must be at least 0, got -2"),
        (lambda: pe.linear_scaling(True, 2), TypeError, "linear_scaling: frequencies must be Frequencies"),
        (lambda: pe.linear_scaling(8.0, 2), TypeError, "linear_scaling: frequencies must be Frequencies"),  # type: ignore
        (lambda: pe.proportional(8, 10_000, 0.5, 1e-10), ValueError, "proportional: factor must keep every pair below 2²⁸ cycles per position, got 1e-10"),
        (lambda: pe.longrope(4, **{**LISTS, "short_factor": [1e-10, 1]}), ValueError, r"longrope: short_factor must keep every pair below 2²⁸ cycles per position, got \[1e-10, 1.0\]"),
        (lambda: pe.longrope(4, **LISTS, attention_factor=1e39), ValueError, "longrope: attention_factor must fit into float32, got 1e\\+39"),
        (lambda: pe.yarn(8, 10_000, 4, 64, attention_factor=1e39), ValueError, "yarn: attention_factor must fit into float32, got 1e\\+39"),
        (lambda: pe.yarn(7, 1e4, 2, 64), ValueError, "yarn: dim must be 0, or even and from 2 to 2²⁰, got 7"),
        (lambda: pe.yarn(8, 0, 2, 64), ValueError, "yarn: base must be positive, got 0.0"),
        (lambda: pe.yarn(8, 1, 2, 64), ValueError, "yarn: base must be over 1, got 1.0"),
        (lambda: pe.yarn(8, 0.5, 2, 64), ValueError, "yarn: base must be over 1, got 0.5"),
        (lambda: pe.yarn(8, 1e4, 0.5, 64), ValueError, "yarn: factor must be at least 1, got 0.5"),
        (lambda: pe.yarn(8, 1e4, inf, 64), ValueError, "yarn: factor must be finite, got inf"),
        (lambda: pe.yarn(8, 1e4, 2, -64), ValueError, "yarn: original_max must be at least 1, got -64"),
        (lambda: pe.yarn(8, 1e4, 2, 64.5), TypeError, "yarn: original_max must be an integer, got float 64.5"),  # type: ignore
        (lambda: pe.yarn(8, 1e4, 2, 64, beta_fast=1, beta_slow=2), ValueError, "yarn: beta_fast must be at least beta_slow = 2.0, got 1.0"),
        (lambda: pe.yarn(8, 1e4, 2, 64, beta_fast=0), ValueError, "yarn: beta_fast must be positive, got 0.0"),
        (lambda: pe.yarn(8, 1e4, 2, 64, beta_slow=-1), ValueError, "yarn: beta_slow must be positive, got -1.0"),
        (lambda: pe.yarn(8, 1e4, 2, 64, beta_slow=None), TypeError, "yarn: beta_slow must be a number, got NoneType None"),  # type: ignore
        (lambda: pe.yarn(8, 1e4, 2, 64, truncate=1), TypeError, "yarn: truncate must be True or False, got int 1"),  # type: ignore
        (lambda: pe.yarn(8, 1e4, 2, 64, attention_factor=0), ValueError, "yarn: attention_factor must be positive, got 0.0"),
        (lambda: pe.yarn(8, 1e4, 2, 64, attention_factor=True), TypeError, "yarn: attention_factor must be a number, got bool True"),
        (lambda: pe.longrope(6, **LISTS), ValueError, "longrope: short_factor must have 3 entries, one for each pair, got 2"),
        (lambda: pe.longrope(4, **{**LISTS, "long_factor": [1, 1, 1]}), ValueError, "longrope: long_factor must have 2 entries, one for each pair, got 3"),
        (lambda: pe.longrope(4, **{**LISTS, "long_factor": [1, 0]}), ValueError, r"longrope: long_factor\[1\] must be positive, got 0.0"),
        (lambda: pe.longrope(4, **{**LISTS, "short_factor": [-1, 1]}), ValueError, r"longrope: short_factor\[0\] must be positive, got -1.0"),
        (lambda: pe.longrope(4, **{**LISTS, "short_factor": [1, nan]}), ValueError, r"longrope: short_factor\[1\] must be finite, got nan"),
        (lambda: pe.longrope(4, **{**LISTS, "short_factor": [1, True]}), TypeError, r"longrope: short_factor\[1\] must be a number, got bool True"),
        (lambda: pe.longrope(4, **{**LISTS, "short_factor": 2.0}), TypeError, "longrope: short_factor must be a sequence of numbers, got float 2.0"),
        (lambda: pe.longrope(4, **{**LISTS, "short_factor": "12"}), TypeError, "longrope: short_factor must be a sequence of numbers, got str '12'"),
        (lambda: pe.longrope(4, **{**LISTS, "short_factor": np.array(1.0)}), TypeError, r"longrope: short_factor must be a sequence of numbers, got float64 of shape \(\)"),
        (lambda: pe.longrope(4, **{**LISTS, "short_factor": jax.device_put(np.ones(2, np.float32))}), TypeError, "longrope: short_factor must be a sequence of numbers, got float"),
        (lambda: pe.longrope(4, **{**LISTS, "factor": 0}), ValueError, "longrope: factor must be positive, got 0.0"),
        (lambda: pe.longrope(4, **{**LISTS, "original_max": 0}), ValueError, "longrope: original_max must be at least 1, got 0"),
        (lambda: pe.longrope(4, **{**LISTS, "original_max": 1}), ValueError, "longrope: original_max must be at least 2 for the amplitude of factor 2.0, got 1"),
        (lambda: pe.longrope(4, **{**LISTS, "length": 0}), ValueError, "longrope: length must be at least 1, got 0"),
        (lambda: pe.longrope(4, **{**LISTS, "length": jax.device_put(np.int32(9))}), TypeError, r"longrope: length must be an integer, got int32 of shape \(\)"),
        (lambda: pe.longrope(4, **LISTS, attention_factor=-1), ValueError, "longrope: attention_factor must be positive, got -1.0"),
        (lambda: pe.longrope("4", **LISTS), TypeError, "longrope: frequencies must be Frequencies"),
        (lambda: pe.llama3(8, **{**LLAMA, "factor": 0.5}), ValueError, "llama3: factor must be at least 1, got 0.5"),
        (lambda: pe.llama3(8, **{**LLAMA, "high_freq_factor": 0.5}), ValueError, "llama3: high_freq_factor must be at least low_freq_factor = 1.0, got 0.5"),
        (lambda: pe.llama3(8, **{**LLAMA, "low_freq_factor": 0}), ValueError, "llama3: low_freq_factor must be positive, got 0.0"),
        (lambda: pe.llama3(8, **{**LLAMA, "high_freq_factor": inf}), ValueError, "llama3: high_freq_factor must be finite, got inf"),
        (lambda: pe.llama3(8, **{**LLAMA, "original_max": 0}), ValueError, "llama3: original_max must be at least 1, got 0"),
        (lambda: pe.llama3(8, **{**LLAMA, "original_max": True}), TypeError, "llama3: original_max must be an integer, got bool True"),
        (lambda: pe.llama3(None, **LLAMA), TypeError, "llama3: frequencies must be Frequencies"),
        (lambda: pe.proportional(7, 1e4, 0.5), ValueError, "proportional: dim must be 0, or even and from 2 to 2²⁰, got 7"),
        (lambda: pe.proportional(8, 0, 0.5), ValueError, "proportional: base must be positive, got 0.0"),
        (lambda: pe.proportional(8, 1e4, 0), ValueError, "proportional: fraction must be over 0 and at most 1, got 0.0"),
        (lambda: pe.proportional(8, 1e4, 1.5), ValueError, "proportional: fraction must be over 0 and at most 1, got 1.5"),
        (lambda: pe.proportional(8, 1e4, nan), ValueError, "proportional: fraction must be finite, got nan"),
        (lambda: pe.proportional(8, 1e4, True), TypeError, "proportional: fraction must be a number, got bool True"),
        (lambda: pe.proportional(8, 1e4, 0.2), ValueError, "proportional: fraction must leave a pair of the 8 features to rotate, got 0.2"),
        (lambda: pe.proportional(8, 1e4, 0.5, 0), ValueError, "proportional: factor must be positive, got 0.0"),
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
