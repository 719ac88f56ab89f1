"""The scalings are their formulas at 70 digits.

- Each is its formula within one or two units of 2⁻¹²⁸ cycle, with the amplitude of its paper or the given one.
- They keep axes, precision and amplitude of the spectrum that they scale. Scaling before or after `axial` and
  `multi_section` is the same.
- The caller's decimal context changes nothing.
"""

import decimal
import math
import re

import numpy as np
import pytest

import posenc_jax as pe
from helpers.spectra import SCALINGS, assert_exact, scaling
from oracles import spectra
from posenc_jax._frequencies import frequencies, scalings

# Besides the cases that the oracles list: label (scaling, what is special) → width, base and settings
EDGES = {
    "linear, faster": (64, 150_000.0, {"factor": 0.75}),
    "linear, much faster": (8, 10.0, {"factor": 1e-3}),
    "linear, slower": (128, 500_000.0, {"factor": 1e6}),
    "yarn, other bounds": (128, 1e6, {"factor": 1.1, "original_max": 32768, "beta_fast": 40.5, "beta_slow": 1.5}),
    "yarn, a ramp that ends behind the last pair": (64, 1e4, {"factor": 8, "original_max": 131072}),
    "yarn, a ramp that ends behind r − 1": (8, 10.0, {"factor": 8, "original_max": 400}),
    "yarn, a ramp that begins before the first pair": (64, 1e4, {"factor": 8, "original_max": 64, "truncate": False}),
    "yarn, no ramp": (64, 1e4, {"factor": 8, "original_max": 4096, "beta_fast": 3, "beta_slow": 3, "truncate": False}),
    "yarn, bounds of 0": (8, 1e4, {"factor": 8, "original_max": 4}),
    "yarn, one pair": (2, 1e4, {"factor": 8, "original_max": 4096}),
    "yarn, from 0 to −1: all pairs are kept": (64, 1e4, {"factor": 2, "original_max": 4}),
    "yarn, from 88 to 7: all pairs are interpolated": (8, 2.0, {"factor": 2, "original_max": 10**9}),
    "llama3, of fractions": (
        128,
        5e5,
        {"factor": 1.1, "low_freq_factor": 0.3, "high_freq_factor": 50.7, "original_max": 64},
    ),
    "llama3, few pairs": (8, 10.0, {"factor": 32, "low_freq_factor": 1, "high_freq_factor": 4, "original_max": 64}),
    "proportional, all": (8, 1e6, {"fraction": 1}),
    "proportional, rounded as transformers does": (20, 1e6, {"fraction": 0.7, "factor": 1.1}),
    "proportional, one pair": (10, 1e6, {"fraction": 0.3}),
    "riflex, the longest unchanged": (16, 256.0, {"length": 50, "pair": 3}),  # its period is 50.3 frames
    "riflex, the shortest slowed": (16, 256.0, {"length": 51, "pair": 3}),
}
TRIED = SCALINGS | {
    label: scaling(width, base, {"type": label.partition(",")[0]} | settings)
    for label, (width, base, settings) in EDGES.items()
}


@pytest.mark.parametrize("label", TRIED)
def test_a_scaling_is_its_formula(label):
    function, arguments, formula = TRIED[label]
    (omegas, amplitude), got = formula(), function(**arguments)
    # half a unit for each rounding, and 1% for the arithmetic of the scaling; others round twice
    units = {"linear_scaling": 0.51 + 0.51 / arguments.get("factor", 1), "llama3": 2.01}
    assert_exact(got, omegas, units.get(function.__name__, 1.01))
    assert got.attention_factor == pytest.approx(float(amplitude), rel=1e-15)


def test_amplitudes_are_those_of_published_models():
    assert pe.yarn(64, 150_000, 32, 4096).attention_factor == pytest.approx(1.3465735902799727, rel=1e-15)  # gpt-oss
    assert scalings.temperature(40.0) ** 2 == pytest.approx(1.8739, abs=5e-5)  # DeepSeek-V3's softmax scale
    assert scalings.temperature(40.0, 0.707) == pytest.approx(1 + 0.0707 * math.log(40), rel=1e-15)
    assert scalings.temperature(1.0, 0.5) == scalings.temperature(0.5) == 1
    phi3 = pe.longrope(4, [1, 1], [1, 1], original_max=4096, factor=32, length=1)
    assert phi3.attention_factor == pytest.approx(1.190238, abs=5e-7)


@pytest.mark.parametrize("factor", [0.5, 1.5, 32])
@pytest.mark.parametrize(("length", "long"), [(4096, False), (4097, True)])
def test_longrope_divides_by_its_long_factors_beyond_the_original_length(length, long, factor):
    short_factor, long_factor = [1, 1.1, 1.25, 3], (1.05, 2.5, np.float32(17.3), 64)
    got = pe.longrope(8, short_factor, np.array(long_factor), original_max=4096, factor=factor, length=length)
    divisors = long_factor if long else short_factor
    assert_exact(got, spectra.longrope(8, 10_000, divisors, divisors, 4096, factor, length), 1.01)
    assert got.attention_factor == pytest.approx(float(spectra.longrope_amplitude(factor, 4096)), rel=1e-15)


def test_llama3_with_one_bound_is_a_step():
    # Llama 4 Scout: pairs that rotate by more than a cycle in 8,192 positions are kept, the others divided.
    f, settings = pe.geometric(128, 500_000), {"low_freq_factor": 1, "high_freq_factor": 1, "original_max": 8192}
    want = np.where(f.wavelengths < 8192, f.angular, f.angular / 16)
    np.testing.assert_allclose(pe.llama3(f, 16, **settings).angular, want, rtol=1e-15)
    # At the bound itself a pair is divided: ω = 2π/8192, exactly 2⁻¹³ cycle per position.
    assert pe.llama3(pe.Frequencies((1 << 115,), 2), 16, **settings).cycles == (1 << 111,)


def test_llama3_takes_frequencies_that_are_0_or_negative():
    cycles = (0, *pe.geometric(64, 5e5).cycles)
    settings = {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max": 8192}
    forwards, backwards = (pe.llama3(pe.Frequencies(tuple(s * t for t in cycles), 66), **settings) for s in (1, -1))
    assert forwards.cycles[0] == 0 and backwards.cycles == tuple(-t for t in forwards.cycles)


def test_riflex_slows_one_pair_and_makes_none_faster():
    f = pe.geometric(16, 256).with_attention_factor(1.5).with_precision("float32")  # HunyuanVideo
    assert np.abs(f.wavelengths - 48).argmin() == 3 and pe.riflex(f, 50, pair=3) == f  # its authors' k − 1 and N_k
    others = [0, 1, 2, 4, 5, 6, 7]
    assert pe.riflex(f, 66, pair=3)[others] == f[others]
    for pair, w in enumerate(f.angular):
        assert max(pe.riflex(f, length, pair=pair).angular[pair] for length in range(1, 999)) == w


def test_a_given_amplitude_multiplies_that_of_the_frequencies():
    assert pe.yarn(64, 1e4, 8, 4096, attention_factor=0.5).attention_factor == 0.5
    f = pe.geometric(4).with_attention_factor(3.0)
    lists = {"short_factor": [1, 1], "long_factor": [1, 1], "factor": 8, "length": 1}
    assert pe.longrope(f, **lists, original_max=1, attention_factor=0.5).attention_factor == 1.5
    got = pe.longrope(f, **lists, original_max=64).attention_factor
    assert got == pytest.approx(3 * math.sqrt(1.5), rel=1e-15)


# What scales a spectrum, and what gives it axes
COMPOSED = {
    "linear_scaling": lambda f: pe.linear_scaling(f, 3),
    "llama3": lambda f: pe.llama3(f, 8, low_freq_factor=1, high_freq_factor=4, original_max=8192),
    "longrope": lambda f: pe.longrope(f, *[[2] * f.num_pairs] * 2, original_max=64, factor=1, length=100),
}
AXES = {
    "axial": lambda f: pe.axial(f, 3),
    "blocks": lambda f: pe.multi_section(f, (6, 4, 2)),
    "in turn": lambda f: pe.multi_section(f, (4, 4, 4), interleaved=True),
}


@pytest.mark.parametrize("scale", COMPOSED.values(), ids=COMPOSED)
@pytest.mark.parametrize("give_axes", AXES.values(), ids=AXES)
def test_scalings_and_axes_compose_in_either_order(scale, give_axes):
    f = pe.geometric(24, 5e5).with_attention_factor(1.5).with_precision("float32")
    got = scale(give_axes(f))
    assert got == give_axes(scale(f)) and got.cycles != give_axes(f).cycles
    assert (got.axes, got.precision, got.attention_factor) == (give_axes(f).axes, "float32", 1.5)


def test_the_callers_decimal_context_changes_nothing():
    expected = [pe.yarn(34, 1234.5, 3, 4096, truncate=False), pe.ntk(34, 1234.5, 3)]
    frequencies.geometric_cycles.cache_clear()
    with decimal.localcontext(prec=3, rounding=decimal.ROUND_UP, traps=[decimal.Inexact]):
        assert [pe.yarn(34, 1234.5, 3, 4096, truncate=False), pe.ntk(34, 1234.5, 3)] == expected


# scaling → valid arguments
VALID = {
    "linear_scaling": {"frequencies": 8, "factor": 2},
    "yarn": {"dim": 8, "base": 1e4, "factor": 2, "original_max": 64},
    "longrope": {
        "frequencies": 4,
        "short_factor": [1, 1],
        "long_factor": [2, 2],
        "original_max": 64,
        "factor": 2,
        "length": 64,
    },
    "llama3": {"frequencies": 8, "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max": 8192},
    "proportional": {"dim": 8, "base": 1e4, "fraction": 0.5, "factor": 1},
    "riflex": {"frequencies": 16, "length": 66, "pair": 3},
}
FREQUENCIES = "frequencies must be Frequencies or an integer width"
LIMIT = "must keep every pair below 2²⁸ cycles"
# scaling → its arguments that must be positive, and those that must be at least 1
POSITIVE = {"linear_scaling": ["factor"], "yarn": ["beta_fast", "beta_slow"], "longrope": ["factor"]}
POSITIVE |= {"llama3": ["low_freq_factor", "high_freq_factor"]}
COUNTS = {"yarn": ["original_max"], "longrope": ["original_max", "length"], "llama3": ["original_max"]}
COUNTS |= {"riflex": ["length"]}


@pytest.mark.parametrize(
    ("name", "changed", "error", "match"),
    [
        ("linear_scaling", {"frequencies": 8.0}, TypeError, FREQUENCIES),
        *((f, {name: 0}, ValueError, f"{name} must be positive") for f in POSITIVE for name in POSITIVE[f]),
        *((f, {name: 0}, ValueError, f"{name} must be at least 1") for f in COUNTS for name in COUNTS[f]),
        *((f, {"factor": 0.5}, ValueError, "factor must be at least 1") for f in ("yarn", "llama3")),
        ("linear_scaling", {"factor": 1e-10}, ValueError, f"factor {LIMIT}"),
        ("yarn", {"dim": 7}, ValueError, "dim must be 0, or even"),
        ("yarn", {"base": 1}, ValueError, "base must be over 1"),
        ("yarn", {"beta_fast": 1, "beta_slow": 2}, ValueError, "beta_fast must be at least beta_slow = 2.0, got 1.0"),
        ("yarn", {"attention_factor": 1e39}, ValueError, "attention_factor must fit into float32"),
        ("yarn", {"truncate": 1}, TypeError, "truncate must be True or False"),
        ("longrope", {"short_factor": 2.0}, TypeError, "short_factor must be a sequence of numbers"),
        ("longrope", {"short_factor": [-1, 1]}, ValueError, "short_factor[0] must be positive"),
        ("longrope", {"short_factor": [1e-10, 1]}, ValueError, f"short_factor {LIMIT}"),
        ("longrope", {"long_factor": [1e-10, 1], "length": 65}, ValueError, f"long_factor {LIMIT}"),
        ("longrope", {"long_factor": [1, 1, 1]}, ValueError, "long_factor must have 2 entries"),
        ("longrope", {"original_max": 1}, ValueError, "original_max must be at least 2 for the amplitude"),
        ("llama3", {"high_freq_factor": 0.5}, ValueError, "high_freq_factor must be at least low_freq_factor = 1.0"),
        ("proportional", {"dim": 7}, ValueError, "dim must be 0, or even"),
        ("proportional", {"factor": 1e-10}, ValueError, f"factor {LIMIT}"),
        ("proportional", {"fraction": 0}, ValueError, "fraction must be over 0 and at most 1"),
        ("proportional", {"fraction": 1.5}, ValueError, "fraction must be over 0 and at most 1"),
        ("proportional", {"fraction": 0.2}, ValueError, "fraction must leave a pair of the 8 features to rotate"),
        ("riflex", {"frequencies": pe.axial((16, 56, 56))}, ValueError, "frequencies must have one axis, got 3"),
        ("riflex", {"pair": 8}, ValueError, "pair must be below 8, the number of pairs of frequencies, got 8"),
        ("riflex", {"pair": -1}, ValueError, "pair must be at least 0"),
        (
            "riflex",
            {"frequencies": pe.geometric(16).with_angular([0] * 8)},
            ValueError,
            "frequencies must be above 0 for pair",
        ),
    ],
)
def test_invalid_arguments_raise(name, changed, error, match):
    with pytest.raises(error, match=f"^{name}: {re.escape(match)}"):
        getattr(pe, name)(**(VALID[name] | changed))
