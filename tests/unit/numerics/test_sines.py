"""Exact phases and their sines.

- Sines are within 9e-8 of the truth at every int32 and float position, for static frequencies and for arrays.
- Derivatives by positions and by frequencies are exact in both modes. A float that is no int32 position gives NaN.
- Precision "float32" computes what references compute. x64 gives the same bits, and float64 frequencies are exact.
- No other module computes a sine, and the phase path has no gather, product of matrices or float64.
"""

import ast
import functools
from pathlib import Path

import jax
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_within
from oracles import encodings, spectra
from oracles.fourier import fourier_features
from posenc_jax._numerics import sines

INT32 = np.iinfo(np.int32)
BOUND = 9e-8
MPMATH = "mpmath at 60 digits"
RNG = np.random.default_rng(0)
EDGES = [0, 1, -1, 2**16, 2**16 - 1, 2**16 + 1, -(2**16), -(2**16) - 1, 2**31 - 1, -(2**31), -(2**31) + 1, 2**24 + 1]
POSITIONS = np.concatenate([EDGES, RNG.integers(0, 2**20, 12), RNG.integers(INT32.min, INT32.max, 36)]).astype(np.int32)


def exact(positions, omegas):
    """The encoding in the half layout, by mpmath."""
    return np.concatenate(encodings.waves(positions, [float(w) for w in omegas]), 1)


encode = functools.partial(pe.sinusoidal, layout="half")


@pytest.mark.parametrize("dim", [7, 64])
def test_static_frequencies_are_exact_at_every_int32_position(dim):
    bases = 100, 10_000, 500_000, 1e7
    encoded = jax.jit(lambda p: [pe.sinusoidal(p, pe.geometric(dim, base)) for base in bases])(POSITIONS)
    for base, got in zip(bases, encoded, strict=True):
        assert_within(got, encodings.encode(POSITIONS, dim, base), BOUND, against=f"base {base}, {MPMATH}")


def test_the_sine_of_a_phase_a_quarter_cycle_behind_is_exact():
    drawn = RNG.integers(INT32.min, INT32.max, 2**20)
    phase = np.concatenate([drawn, np.arange(-(2**31), 2**31, 2**12)]).astype(np.int32)
    got = np.asarray(jax.jit(sines.sine_of_phase)(phase), np.float64)
    want = np.sin(2 * np.pi * (phase.astype(np.float64) / 2**32 - 0.25))
    assert_within(got, want, 8.6e-8, against="the sine in float64")
    assert np.abs(got).max() <= 1.0


def test_quarter_cycles_are_exact():
    quarters = np.array([-(2**31), -(2**30), 0, 2**30], np.int32)  # the sine a quarter cycle behind is −cos
    np.testing.assert_array_equal(jax.jit(sines.sine_of_phase)(quarters), [1.0, 0.0, -1.0, 0.0])
    np.testing.assert_array_equal(pe.sinusoidal(np.int32(0), 8), [0, 1] * 4)


def test_array_frequencies_are_exact_relative_to_their_float():
    angular = np.array([1.0, 0.3, 1e-4, 3.0, -0.7, 0.0, 2.0**-60, 20.5], np.float32)
    assert_within(jax.jit(encode)(POSITIONS, angular), exact(POSITIONS, angular), BOUND, against=MPMATH)


@pytest.mark.parametrize("frequencies", [16, np.array([1.0, 0.25, 7.5, -0.01], np.float32)], ids=["static", "array"])
def test_float_positions_are_exact(frequencies):
    drawn = [RNG.uniform(-end, end, 40) for end in (2, 1e4, 2e9)]
    edges = [0.5, -0.5, 1.5, 2.5, 1e-20, -0.0, 2.0**31 - 128, -(2.0**31)]
    positions = np.concatenate([*drawn, edges]).astype(np.float32)
    omegas = spectra.geometric(16, 10_000) if isinstance(frequencies, int) else frequencies
    assert_within(encode(positions, frequencies), exact(positions, omegas), BOUND, against=MPMATH)


def test_small_float_positions_with_fast_frequencies_are_exact():
    positions = (10.0 ** RNG.uniform(-9, 0, 60) * RNG.choice([-1, 1], 60)).astype(np.float32)
    angular = (10.0 ** RNG.uniform(0, 6, 16)).astype(np.float32)
    assert_within(encode(positions, angular), exact(positions, angular), BOUND, against=MPMATH)


def test_half_a_cycle_per_position_is_exact():
    # Half a cycle is −2³¹ units of 2⁻³² cycle, whose opposite int32 lacks. At fractions, whole cycles of ω count too.
    positions = np.array([-1.5, -0.25, 0.25, 0.5, 1.25, 3.75, 100_000.125])
    angular = np.pi * np.array([-1, 1, -3, 3])
    with jax.enable_x64(True):
        assert_within(jax.jit(encode)(positions, angular), exact(positions, angular), BOUND, against=MPMATH)


def test_sines_of_dot_products_are_exact():
    x = np.float32([[1.5, -3], [2.0**24, 0.25], [1e6 + 0.5, 7]])
    matrix = (RNG.normal(size=(2, 3)) * [[1], [2.0**20]]).astype(np.float32)
    both = jax.jit(lambda *x: [sines.sine_of_dot(*x, quarter) for quarter in (0, 1)])(x, matrix)  # sine, cosine
    for quarter, want in enumerate(np.split(fourier_features(x, matrix), 2, axis=1)):
        assert_within(both[quarter], want, 1.1e-7, against=f"quarter {quarter}, {MPMATH}")


def test_dot_products_of_a_float_that_is_no_int32_position_give_nan():
    x, matrix = np.float32([[1, 2.0**31], [np.nan, 1], [1, 2]]), np.float32([[1, 2.0**28], [1, 1]])
    got = np.isnan(jax.jit(sines.sine_of_dot, static_argnums=2)(x, matrix, 0))
    np.testing.assert_array_equal(got, [[True, True], [True, True], [False, True]])


# Derivatives


@pytest.mark.parametrize("p", [np.float32(-1234.5), np.float32(1e6)])
def test_derivatives_by_a_position_are_exact(p):
    omegas = spectra.floats(spectra.geometric(8, 10_000))
    f = lambda p: encode(p, 8)  # noqa: E731
    forward, reverse, second = jax.jit(lambda p: (jax.jacfwd(f)(p), jax.jacrev(f)(p), jax.jacfwd(jax.jacrev(f))(p)))(p)
    sine, cosine = (wave[0] for wave in encodings.waves([p], omegas.tolist()))
    assert_within(forward, np.concatenate([omegas * cosine, -omegas * sine]), 2e-7, against=MPMATH)
    np.testing.assert_array_equal(reverse, forward)
    assert_within(second, np.concatenate([-(omegas**2) * sine, -(omegas**2) * cosine]), 2e-7, against=MPMATH)


@pytest.mark.parametrize("p", [np.int32(-70_000), np.float32(2.5)])
def test_derivatives_by_frequencies_are_exact(p):
    angular = np.array([1.0, 0.3, -0.02], np.float32)
    forward, reverse = jax.jit(lambda *at: (jax.jacfwd(encode, 1)(*at), jax.jacrev(encode, 1)(*at)))(p, angular)
    sine, cosine = encodings.waves([p], angular.tolist())
    want = np.concatenate([np.diag(p * cosine[0]), np.diag(-p * sine[0])])
    assert_within(forward, want, 3e-7 * np.abs(want) + abs(p) * 1e-7, against=MPMATH)
    np.testing.assert_array_equal(reverse, forward)


def test_derivatives_of_dot_products_are_those_of_the_formula():
    x, matrix, dx, dm = (RNG.normal(size=shape).astype(np.float32) for shape in ((4, 2), (2, 3)) * 2)
    f = lambda x, matrix: sines.sine_of_dot(x, matrix, 0)  # noqa: E731

    @jax.jit
    def tangents(x, matrix, dx, dm):
        of_x = jax.jvp(lambda x: f(x, matrix), (x,), (dx,))[1]
        of_matrix = jax.jvp(lambda matrix: f(x, matrix), (matrix,), (dm,))[1]
        return of_x, of_matrix, jax.jvp(f, (x, matrix), (dx, dm))[1]

    slope = 2 * np.pi * np.cos(2 * np.pi * (np.float64(x) @ matrix))
    wants = dx @ matrix, x @ dm, dx @ matrix + x @ dm
    for by, got, want in zip(("x", "matrix", "both"), tangents(x, matrix, dx, dm), wants, strict=True):
        assert_within(got, slope * want, 1e-5, against=f"by {by}, NumPy")


def test_masked_rows_add_nothing_to_the_derivative_by_frequencies():
    positions, angular = np.float32([1.0, np.nan, np.inf]), np.float32([0.5])
    got = jax.jit(jax.grad(lambda w: pe.sinusoidal(positions, w)[0].sum()))(angular)
    assert_within(got, [np.cos(0.5) - np.sin(0.5)], 1e-6, against="NumPy")


# Floats that are no int32 position, and other precisions


@pytest.mark.parametrize("frequencies", [4, np.array([1.0, 0.01], np.float32)], ids=["static", "array"])
def test_floats_that_are_no_int32_position_give_nan(frequencies):
    positions = np.array([np.nan, np.inf, -np.inf, 2.0**31, -(2.0**31) - 256, 2.0**31 - 128], np.float32)
    got = jax.jit(lambda positions: pe.sinusoidal(positions, frequencies))(positions)
    np.testing.assert_array_equal(np.isnan(got), [[True] * 4] * 5 + [[False] * 4])


def test_a_vector_with_one_coordinate_that_is_no_position_is_nan():
    positions, angular = np.float32([[1, 2], [1, np.nan], [2.0**31, 1]]), np.float32([1, 0.5])
    got = jax.jit(lambda p, w: sines.sine(p, [w, w], np.array([0, 1])))(positions, angular)
    np.testing.assert_array_equal(np.isnan(got), [[False] * 2, [True] * 2, [True] * 2])


def test_floats_that_round_beyond_the_ends_give_nan():
    ends = np.array([2.0**31 - 0.6, 2.0**31 - 0.4, -(2.0**31) - 0.4, -(2.0**31) - 0.6])
    with jax.enable_x64(True):
        got = np.asarray(jax.jit(lambda p: pe.sinusoidal(p, 4))(ends))
    np.testing.assert_array_equal(np.isnan(got).all(1), [False, True, False, True])
    assert_within(got[::2], encodings.encode(ends[::2], 4), BOUND, against=MPMATH)


def test_frequencies_that_are_no_numbers_give_nan():
    angular = np.float32([np.nan, np.inf, 2.0**31, -(2.0**31), 2.0**31 - 128])
    got = jax.jit(encode)(np.int32([3]), angular)
    np.testing.assert_array_equal(np.isnan(got), [[True, True, True, True, False] * 2])


def test_float32_precision_is_what_references_compute():
    positions, f = np.array([0, 1, 511, 4095, 1_000_000], np.int32), pe.geometric(64)
    both = jax.jit(lambda p: (encode(p, f.with_precision("float32")), encode(p, f)))
    got, precise = jax.device_get(both(positions))
    phase = encodings.float32_phases(positions, spectra.geometric(64, 10_000))
    assert_within(got, np.concatenate([np.sin(phase), np.cos(phase)], 1), 3e-7, against="float32 phases")
    assert np.abs(got - precise)[-1].max() > 0.01


@pytest.mark.parametrize("positions", [np.arange(-50, 50, dtype=np.int32), np.linspace(-9, 9, 100, dtype=np.float32)])
def test_x64_gives_the_same_bits(positions):
    with jax.enable_x64(False):
        without = jax.jit(lambda p: pe.sinusoidal(p, 32))(positions)
    with jax.enable_x64(True):
        wide = jax.jit(lambda p: pe.sinusoidal(p, 32))(positions.astype(f"{positions.dtype.kind}8"))
    np.testing.assert_array_equal(wide, without, strict=True)


def test_float64_frequencies_are_exact_under_x64():
    angular = np.array([0.1, 1 / 3, 2e-5])
    with jax.enable_x64(True):
        assert_within(encode(POSITIONS, angular), exact(POSITIONS, angular), BOUND, against=MPMATH)


@pytest.mark.parametrize(
    "positions", [np.arange(4, dtype=np.int32), np.arange(4, dtype=np.float32)], ids=["int", "float"]
)
@pytest.mark.parametrize("frequencies", [16, np.ones(8, np.float32)], ids=["static", "array"])
def test_the_phase_path_has_no_sine_matmul_gather_or_float64(positions, frequencies):
    array = None if isinstance(frequencies, int) else frequencies
    encode = lambda p, w: pe.sinusoidal(p, frequencies if w is None else w)  # noqa: E731
    text = str(jax.make_jaxpr(encode)(positions, array))
    for word in ("= sin ", "= cos ", "dot_general", "gather", "f64", "i64"):
        assert word not in text, word
    assert array is not None or "concatenate" not in text  # the digits of an array of ω are concatenated


def test_the_float64_sine_that_figures_use_is_exact():
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
