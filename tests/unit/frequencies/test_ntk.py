"""NTK-aware scalings are their formulas at 70 digits, for integer and for traced lengths.

- `ntk` keeps the fastest pair and interpolates the slowest. `dynamic_ntk` is `ntk` by a factor that grows with length.
- A traced length gives float32 frequencies, right to four units in the last place, with the same bits in every
  program. A length within the original one changes nothing.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.spectra import WIDTHS, assert_exact
from oracles import spectra


@pytest.mark.parametrize(("dim", "base"), [*WIDTHS, (6, 0.5)])
@pytest.mark.parametrize("factor", [1.0, 1.1, 40])
def test_ntk_stretches_the_base(dim, base, factor):
    got = pe.ntk(dim, base, factor)
    assert_exact(got, spectra.ntk(dim, base, factor), 0.51)
    assert got.cycles[0] == pe.geometric(dim, base).cycles[0]
    assert abs(got.cycles[-1] - pe.linear_scaling(pe.geometric(dim, base), factor).cycles[-1]) <= 2


@pytest.mark.parametrize(("original_max", "length"), [(2048, 2049), (1000, np.int16(7777)), (1, 2**31 - 1)])
@pytest.mark.parametrize("factor", [1.0, 1.1, 8])
def test_dynamic_ntk_of_an_integer_length_is_its_formula(factor, original_max, length):
    got = pe.dynamic_ntk(64, 1e4, factor, original_max, length)
    assert_exact(got, spectra.dynamic_ntk(64, 1e4, factor, original_max, int(length)), 0.51)


def test_dynamic_ntk_is_ntk_by_the_growth():
    assert pe.dynamic_ntk(64, 1e4, 2, 1024, 1024) == pe.dynamic_ntk(64, 1e4, 2, 1024, 3) == pe.geometric(64)
    assert pe.dynamic_ntk(64, 1e4, 2, 1024, 4096) == pe.ntk(64, 1e4, 7)  # 2·4096/1024 − (2 − 1)


# A traced length


def dynamic(dim, base, factor, original_max):
    return lambda length: pe.dynamic_ntk(dim, base, factor, original_max, length)


@pytest.mark.parametrize(("dim", "base"), [(4, 1e4), (64, 15e4)])
@pytest.mark.parametrize("original_max", [1, 2048])
def test_a_traced_length_gives_each_frequency_to_four_units(dim, base, original_max):
    lengths = np.array([original_max + 1, 3 * original_max + 7, 1_932_175_153, 2**31 - 1], np.int32)
    factors = 1.0, 1.5, 8, 1e6
    of_factors = [jax.vmap(dynamic(dim, base, factor, original_max)) for factor in factors]
    for factor, of_lengths in zip(factors, jax.jit(lambda n: [f(n) for f in of_factors])(lengths), strict=True):
        assert of_lengths.dtype == jnp.float32
        for length, got in zip(lengths.tolist(), np.asarray(of_lengths), strict=True):
            want = spectra.floats(spectra.dynamic_ntk(dim, base, factor, original_max, length))
            bound = 4 * np.spacing(want.astype(np.float32)).astype(np.float64)
            assert_within(got, want, bound, against=f"mpmath, factor {factor}, length {length}")


@pytest.mark.parametrize(("factor", "length"), [(8, -5), (8, 0), (8, 1), (8, 2047), (2**96, 2048)])
def test_a_traced_length_within_the_original_changes_nothing(factor, length):
    got = jax.jit(dynamic(64, 1e4, factor, 2048))(np.int32(length))
    np.testing.assert_array_equal(got, pe.geometric(64).angular.astype(np.float32))


def test_a_traced_length_gives_the_same_bits_in_every_program():
    f = dynamic(64, 1e4, 8.3, 2048)
    many = np.array([1, 2048, 2049, *range(5000, 300_000, 7919), 2**31 - 1], np.int32)
    alone = np.array([f(n) for n in jax.device_put(list(many))])
    np.testing.assert_array_equal(jax.jit(jax.vmap(f))(many), alone)
    np.testing.assert_array_equal(jax.jit(lambda n: f(n) * 2 + 1)(many[3]), alone[3] * np.float32(2) + np.float32(1))
    np.testing.assert_array_equal(jax.jit(f)(np.uint16(5000)), f(jax.device_put(np.int32(5000))))


def test_a_traced_length_may_be_beyond_int32():
    """Twice the length halves the slowest frequency, and keeps the fastest."""
    f = jax.jit(dynamic(64, 1e4, 8, 2048))
    longest, long = f(np.uint32(2**32 - 1)), f(np.int32(2**31 - 1))
    np.testing.assert_allclose(longest, np.asarray(long) * 0.5 ** (np.arange(32) / 31), rtol=1e-6)


def test_a_traced_length_needs_no_float64_and_few_equations():
    traced = jax.make_jaxpr(dynamic(64, 1e4, 8, 2048))(np.int32(5000))
    assert "f64" not in str(traced) and len(traced.eqns) <= 45


ARRAY = "length must be an integer or a scalar integer array"
EVEN = "dim must be 0, or even and from 4 to 2²⁰"


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((2, 1e4, 2), ValueError, EVEN),
        ((7, 1e4, 2), ValueError, EVEN),
        ((2**21, 1e4, 2), ValueError, EVEN),
        ((8, 1e4, 0.5), ValueError, "factor must be at least 1"),
        ((16, 1e-12, 1), ValueError, "base must keep every pair"),
        ((8, 1e4, 0.9, 64, 64), ValueError, "factor must be at least 1"),
        ((8, 1e4, 2, 0, 64), ValueError, "original_max must be at least 1"),
        ((8, 1e4, 2, 64, 0), ValueError, "length must be at least 1"),
        ((8, 1e4, 2, 64, 64.0), TypeError, "length must be an integer"),
        ((8, 1e4, 2, 64, np.ones(3, np.int32)), ValueError, "length must be a scalar, got shape (3,)"),
        ((8, 1e4, 2, 64, jnp.float32(64)), TypeError, ARRAY),
        ((8, 1e4, 2, 64, np.array(True)), TypeError, ARRAY),
        ((8, 1e4, 1e30, 64, np.asarray(64)), ValueError, "factor must be at most 2⁹⁶"),
    ],
)
def test_invalid_arguments_raise(arguments, error, match):
    function = pe.ntk if len(arguments) == 3 else pe.dynamic_ntk  # which also takes original_max and length
    with pytest.raises(error, match=f"^{function.__name__}: {re.escape(match)}"):
        function(*arguments)
