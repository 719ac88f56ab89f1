"""Exact phases and their sines: the error bound, the derivatives, the edges."""

import ast
import functools
from pathlib import Path

import jax
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.quick import quick
from helpers.tiers import slow
from oracles import encodings, spectra
from posenc_jax._numerics import sines

INT32 = np.iinfo(np.int32)
BOUND = 9e-8


def positions_to_try(seed, each=12):
    rng = np.random.default_rng(seed)
    edges = [0, 1, -1, 2**16, 2**16 - 1, 2**16 + 1, -(2**16), -(2**16) - 1, 2**31 - 1, -(2**31), -(2**31) + 1, 2**24 + 1]  # fmt: skip
    drawn = [rng.integers(0, 101, each), rng.integers(0, 2**20, each), rng.integers(INT32.min, INT32.max, 2 * each)]
    return np.concatenate([edges, *drawn, -rng.integers(1, 2**31, each)]).astype(np.int32)


def exact(positions, omegas):
    """The encoding in the half layout."""
    return np.concatenate(encodings.waves(positions, [float(w) for w in omegas]), 1)


@pytest.mark.parametrize("dim", [slow(6), 7, 64, slow(128)])
def test_error_is_within_the_bound_at_every_int32_position(dim):
    positions, bases = positions_to_try(dim), (100, 10_000, 500_000, 1e7)
    encoded = quick(lambda positions: [pe.sinusoidal(positions, pe.geometric(dim, base)) for base in bases])(positions)
    for base, got in zip(bases, encoded, strict=True):
        against = f"base {base}, mpmath at 60 digits"
        assert_within(got, encodings.encode(positions, dim, base), BOUND, against=against)


@pytest.mark.slow
@pytest.mark.parametrize("dim", [512, 4096])
def test_error_of_wide_encodings(dim):
    positions = positions_to_try(dim, each=4)[:: 1 if dim == 512 else 5]
    got = pe.sinusoidal(positions, pe.geometric(dim, 1e7))
    assert_within(got, encodings.encode(positions, dim, 1e7), BOUND, against="mpmath at 60 digits")


def test_sine_of_a_phase():
    rng = np.random.default_rng(0)
    phase = np.concatenate([rng.integers(INT32.min, INT32.max, 2**20), np.arange(-(2**31), 2**31, 2**12)]).astype(
        np.int32
    )
    got = np.asarray(jax.jit(sines.sine_of_phase)(phase), np.float64)
    want = np.sin(2 * np.pi * (phase.astype(np.float64) / 2**32 - 0.25))
    assert_within(got, want, 8.6e-8, against="the sine in float64")
    assert np.abs(got).max() <= 1.0


def test_quarter_cycles_are_exact():
    quarters = np.array([-(2**31), -(2**30), 0, 2**30], np.int32)  # a quarter cycle behind: sin at 180°, 270°… of φ−90°
    sine, origin = jax.jit(lambda phase, p: (sines.sine_of_phase(phase), pe.sinusoidal(p, 8)))(quarters, np.int32(0))
    np.testing.assert_array_equal(sine, [1.0, 0.0, -1.0, 0.0])
    np.testing.assert_array_equal(origin, [0, 1] * 4)


def test_array_frequencies_are_exact_relative_to_their_float():
    angular = np.array([1.0, 0.3, 1e-4, 3.0, -0.7, 0.0, 2.0**-60, 20.5], np.float32)
    positions = positions_to_try(3)
    got = quick(functools.partial(pe.sinusoidal, layout="half"))(positions, angular)
    assert_within(got, exact(positions, angular), BOUND, against="mpmath at 60 digits")


@pytest.mark.parametrize("frequencies", [16, np.array([1.0, 0.25, 7.5, -0.01], np.float32)], ids=["static", "array"])
def test_float_positions_are_exact(frequencies):
    rng = np.random.default_rng(4)
    positions = np.concatenate([rng.uniform(-2, 2, 50), rng.uniform(-1e4, 1e4, 50), rng.uniform(-2e9, 2e9, 20)])
    positions = np.concatenate([positions, [0.5, -0.5, 1.5, 2.5, 1e-20, -0.0, 2.0**31 - 128, -(2.0**31)]]).astype(
        np.float32
    )
    omegas = spectra.geometric(16, 10_000) if isinstance(frequencies, int) else frequencies
    got = quick(lambda p: pe.sinusoidal(p, frequencies, layout="half"))(positions)
    assert_within(got, exact(positions, omegas), BOUND, against="mpmath at 60 digits")


def test_small_float_positions_and_fast_frequencies():
    rng = np.random.default_rng(5)
    positions = (10.0 ** rng.uniform(-9, 0, 60) * rng.choice([-1, 1], 60)).astype(np.float32)
    angular = (10.0 ** rng.uniform(0, 6, 16)).astype(np.float32)
    got = quick(functools.partial(pe.sinusoidal, layout="half"))(positions, angular)
    assert_within(got, exact(positions, angular), BOUND, against="mpmath at 60 digits")


def test_integers_as_floats_give_the_same_bits():
    positions = np.arange(-1000, 1000, dtype=np.int32)
    of_integers, of_floats = jax.jit(lambda *ps: [pe.sinusoidal(p, 64) for p in ps])(
        positions, positions.astype(np.float32)
    )
    np.testing.assert_array_equal(of_integers, of_floats)


def test_derivative_in_position():
    omegas = np.array([float(w) for w in spectra.geometric(8, 10_000)])
    encode = lambda x: pe.sinusoidal(x, 8, layout="half")  # noqa: E731
    both = quick(lambda p: (jax.jacfwd(encode)(p), jax.jacrev(encode)(p)))
    for p in (0.3, 2.5, -1234.5, 1e6):
        sine, cosine = encodings.waves([p], omegas.tolist())
        got, reverse = both(np.float32(p))
        want = np.concatenate([omegas * cosine[0], -omegas * sine[0]])
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-7, err_msg=f"position {p}")
        np.testing.assert_allclose(reverse, got, err_msg=f"position {p}")


@pytest.mark.slow
def test_second_derivative_in_position():
    omegas = np.array([float(w) for w in spectra.geometric(8, 10_000)])
    second = quick(jax.jacfwd(jax.jacrev(lambda p: pe.sinusoidal(p, 8, layout="half"))))
    for p in (0.3, 2.5, -1234.5, 1e6):
        want = np.concatenate([-(omegas**2) * wave[0] for wave in encodings.waves([p], omegas.tolist())])
        np.testing.assert_allclose(second(np.float32(p)), want, atol=2e-7, err_msg=f"position {p}")


@pytest.mark.parametrize("p", [slow(np.int32(3)), np.int32(-70_000), slow(np.float32(2.5))])
def test_derivative_in_frequencies(p):
    angular = np.array([1.0, 0.3, -0.02], np.float32)
    encode = functools.partial(pe.sinusoidal, layout="half")
    got, reverse = jax.jit(lambda *at: (jax.jacfwd(encode, 1)(*at), jax.jacrev(encode, 1)(*at)))(p, angular)
    sine, cosine = encodings.waves([p], angular.tolist())
    want = np.concatenate([np.diag(p * cosine[0]), np.diag(-p * sine[0])])
    np.testing.assert_allclose(got, want, rtol=3e-7, atol=abs(p) * 1e-7)
    np.testing.assert_array_equal(reverse, got)


def test_both_derivatives_at_once():
    at = np.array([0.5, 3.0], np.float32), np.array([1.0, 0.1], np.float32)
    encode = functools.partial(pe.sinusoidal, layout="half")
    (primal, tangent), plain = jax.jit(lambda *at: (jax.jvp(encode, at, at), encode(*at)))(*at)
    phase = np.outer(*at)
    want = np.concatenate([2 * phase * np.cos(phase), -2 * phase * np.sin(phase)], 1)
    np.testing.assert_allclose(tangent, want, atol=1e-6)
    np.testing.assert_array_equal(primal, plain)


def test_float32_precision_is_what_references_compute():
    positions = np.array([0, 1, 511, 4095, 1_000_000], np.int32)

    @quick
    def of_both_precisions(positions, offset):
        both = pe.geometric(64).with_precision("float32"), pe.geometric(64)
        encoded = [pe.sinusoidal(positions, f, layout="half") for f in both]
        return encoded, *([move(offset, f) for f in both] for move in (pe.rotation_matrix, pe.offset_similarity))

    encoded, matrices, similarities = of_both_precisions(positions, np.int32(3))
    phase = encodings.float32_phases(positions, spectra.geometric(64, 10_000))
    got, within_the_bound = map(np.asarray, encoded)
    np.testing.assert_allclose(got, np.concatenate([np.sin(phase), np.cos(phase)], 1), rtol=0, atol=3e-7)
    assert np.abs(got - within_the_bound)[-1].max() > 0.01
    np.testing.assert_allclose(*matrices, atol=1e-6)
    np.testing.assert_allclose(*similarities, atol=1e-5)


def test_floats_that_are_no_int32_position_give_nan():
    positions = np.array([np.nan, np.inf, -np.inf, 2.0**31, -(2.0**31) - 256, 2.0**31 - 128], np.float32)
    kinds = {"static": 4, "array": np.array([1.0, 0.01], np.float32)}
    encode = quick(lambda positions: {name: pe.sinusoidal(positions, f) for name, f in kinds.items()})
    for name, got in encode(positions).items():
        finite = np.isfinite(got).all(1), np.isnan(got).all(1)
        np.testing.assert_array_equal(finite, [[False] * 5 + [True], [True] * 5 + [False]], err_msg=name)


def test_floats_that_round_beyond_the_ends_give_nan():
    ends = np.array([2.0**31 - 0.6, 2.0**31 - 0.4, -(2.0**31) - 0.4, -(2.0**31) - 0.6])
    with jax.enable_x64(True):
        got = np.asarray(quick(lambda p: pe.sinusoidal(p, 2))(ends))
    np.testing.assert_array_equal(np.isnan(got).any(1), [False, True, False, True])
    assert_within(got[::2], encodings.encode(ends[::2], 2), BOUND, against="mpmath at 60 digits")


def test_frequencies_that_are_no_numbers_give_nan():
    angular = np.array([np.nan, np.inf, 2.0**31, 1.0], np.float32)
    encode = quick(lambda *ps: [pe.sinusoidal(p, angular, layout="half").reshape(-1, 2, 4) for p in ps])
    got, floats = map(np.asarray, encode(np.arange(3, dtype=np.int32), np.array([0.5, np.nan], np.float32)))
    assert np.isnan(got[..., :3]).all() and np.isfinite(got[..., 3]).all()
    assert np.isnan(floats[0, :, :3]).all() and np.isfinite(floats[0, :, 3]).all() and np.isnan(floats[1]).all()


def test_traced_uint32_beyond_int32_gives_nan_and_is_right_within():
    positions = np.array([5, 2**31 - 1, 2**31, 2**32 - 1], np.uint32)
    got = np.asarray(jax.jit(lambda p: pe.sinusoidal(p, 6))(positions))
    np.testing.assert_array_equal(got[:2], pe.sinusoidal(np.array([5, 2**31 - 1]), 6))
    assert np.isnan(got[2:]).all()


def test_traced_int64_beyond_int32_gives_nan_and_is_right_within():
    with jax.enable_x64(True):
        positions = np.array([-5, 2**31 - 1, 2**31, -(2**31) - 1, 2**32 + 5, 2**63 - 1], np.int64)
        got = np.asarray(jax.jit(lambda p: pe.sinusoidal(p, 6))(positions))
    np.testing.assert_array_equal(got[:2], pe.sinusoidal(np.array([-5, 2**31 - 1]), 6))
    assert np.isnan(got[2:]).all()


def test_x64_gives_the_same_bits():
    positions, floats = np.arange(-50, 50, dtype=np.int32), np.linspace(-9, 9, 100, dtype=np.float32)
    encode = lambda *ps: [pe.sinusoidal(p, 32) for p in ps]  # noqa: E731
    with jax.enable_x64(False):
        without = jax.jit(encode)(positions, floats)
    with jax.enable_x64(True):
        wide = jax.jit(encode)(positions.astype(np.int64), floats.astype(np.float64))
    for a, b in zip(without, wide, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


@pytest.mark.slow
def test_x64_gives_the_same_bits_for_array_frequencies():
    positions, angular = np.arange(-50, 50, dtype=np.int32), np.array([0.1, 0.7], np.float32)
    with jax.enable_x64(False):
        without = pe.sinusoidal(positions, angular)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(pe.sinusoidal(positions, angular.astype(np.float64)), without, strict=True)


@pytest.mark.slow
def test_float64_frequencies_are_exact_under_x64():
    angular, positions = np.array([0.1, 1 / 3, 2e-5]), positions_to_try(9)
    with jax.enable_x64(True):
        got = quick(functools.partial(pe.sinusoidal, layout="half"))(positions, angular)
    assert_within(got, exact(positions, angular), BOUND, against="mpmath at 60 digits")


def test_half_a_cycle_per_position():
    # −2³¹ units of 2⁻³² cycle, which has no positive; whole cycles count where positions are not whole.
    positions = np.array([-1.5, -0.25, 0.25, 0.5, 1.25, 3.75, 100_000.125])
    angular = np.pi * np.array([-1, 1, -3, 3])
    with jax.enable_x64(True):
        got = quick(functools.partial(pe.sinusoidal, layout="half"))(positions, angular)
    assert_within(got, exact(positions, angular), BOUND, against="mpmath at 60 digits")


@pytest.mark.parametrize(
    "positions", [np.arange(4, dtype=np.int32), np.arange(4, dtype=np.float32)], ids=["int", "float"]
)
@pytest.mark.parametrize("frequencies", [16, np.ones(8, np.float32)], ids=["static", "array"])
def test_no_sine_no_matmul_no_gather_no_float64_in_the_phase_path(positions, frequencies):
    array = None if isinstance(frequencies, int) else frequencies
    encode = lambda p, w: pe.sinusoidal(p, frequencies if w is None else w)  # noqa: E731
    text = str(jax.make_jaxpr(encode)(positions, array))
    for word in ("= sin ", "= cos ", "dot_general", "gather", "f64", "i64", "concatenate"):
        if word == "concatenate" and array is not None:
            continue  # the digits of a learned frequency, (digits, pairs), are stacked
        assert word not in text, word


def test_the_truth_of_figures():
    positions, quarter = np.array([0, 1, 4095, 2**31 - 1, 2**40]), np.array([0, 1])
    got = sines.sine_float64(positions, pe.geometric(4).cycles, quarter)
    want = np.stack([w[:, i] for i, w in enumerate(encodings.waves(positions, spectra.geometric(4, 10_000)))], -1)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-15)


def test_only_this_module_calls_sine_or_cosine():
    package = Path(pe.__file__).parent
    names = {"sin", "cos", "tan", "sinc", "sincos"}
    calls = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in names
    }
    assert calls == {"_numerics/sines.py"}
