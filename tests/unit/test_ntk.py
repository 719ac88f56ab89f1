"""NTK-aware scalings against formulas at 60 digits, of known and of traced lengths."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.spectra import WIDTHS, assert_exact
from helpers.tiers import thorough, tiered
from oracles import spectra


@pytest.mark.parametrize(("dim", "base"), [*WIDTHS, (6, 0.5)])
@pytest.mark.parametrize("factor", [1.0, 1.1, 2.0, 8, 40])
def test_ntk(dim, base, factor):
    got = pe.ntk(dim, base, factor)
    assert_exact(got, spectra.ntk(dim, base, factor), 0.51)
    slowest = pe.linear_scaling(pe.geometric(dim, base), factor).turns[-1]
    assert got.turns[0] == pe.geometric(dim, base).turns[0] and abs(got.turns[-1] - slowest) <= 2


@pytest.mark.parametrize(("dim", "base"), WIDTHS)
@pytest.mark.parametrize("factor", [1.0, 1.1, 8])
@pytest.mark.parametrize(
    ("original_max", "length"), [(2048, 1), (2048, 2048), (2048, 2049), (1000, 7777), (1, 2**31 - 1)]
)
def test_dynamic_ntk_of_a_known_length(dim, base, factor, original_max, length):
    got = pe.dynamic_ntk(dim, base, factor, original_max, length)
    assert_exact(got, spectra.dynamic_ntk(dim, base, factor, original_max, length), 0.51)
    assert pe.dynamic_ntk(dim, base, factor, original_max, np.int16(min(length, 2**15 - 1))) == pe.dynamic_ntk(
        dim, base, factor, original_max, min(length, 2**15 - 1)
    )


def test_dynamic_ntk_is_static_ntk_of_its_growth():
    assert pe.dynamic_ntk(64, 1e4, 2, 1024, 1024) == pe.dynamic_ntk(64, 1e4, 2, 1024, 3) == pe.geometric(64)
    assert pe.dynamic_ntk(64, 1e4, 2, 1024, 4096) == pe.ntk(64, 1e4, 7)
    assert pe.dynamic_ntk(64, 1e4, 1, 1024, 4096) == pe.ntk(64, 1e4, 4)


# A length that is an array.


def dynamic(dim, base, factor, original_max):
    return lambda length: pe.dynamic_ntk(dim, base, factor, original_max, length)


FACTORS, ORIGINALS = [1.0, 1.5, 8, 1e6], [1, 2048, 131072]


@functools.cache
def of_traced_lengths(dim, base):
    """For each factor and each original length, some lengths and the frequencies of each, in one program."""
    lengths = {o: (o + 1, 3 * o + 7, 1_932_175_153, 2**31 - 1) for o in ORIGINALS}

    @jax.jit
    def each(lengths):
        return {
            (factor, o): jax.vmap(dynamic(dim, base, factor, o))(lengths[o]) for factor in FACTORS for o in ORIGINALS
        }

    return lengths, each({o: np.array(ns, np.int32) for o, ns in lengths.items()})


@pytest.mark.parametrize(
    ("dim", "base"), [(4, 1e4), thorough(8, 10.0), (64, 15e4), thorough(128, 5e5), thorough(256, 5e5)]
)
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("original_max", tiered(ORIGINALS, [2048]))
def test_a_traced_length_gives_each_frequency_to_a_few_ulp(dim, base, factor, original_max):
    lengths, frequencies = of_traced_lengths(dim, base)
    for length, got in zip(lengths[original_max], frequencies[factor, original_max], strict=True):
        expected = spectra.floats(spectra.dynamic_ntk(dim, base, factor, original_max, length))
        assert got.dtype == jnp.float32
        bound = 4 * np.spacing(expected.astype(np.float32)).astype(np.float64)
        assert_within(got, expected, bound, against=f"mpmath at 60 digits for length {length}")


WITHIN = jax.jit(dynamic(64, 1e4, 8, 2048))


@pytest.mark.parametrize("length", [-5, 0, 1, 2047, 2048])
def test_a_traced_length_within_the_original_changes_nothing(length):
    got = WITHIN(jnp.int32(length))
    np.testing.assert_array_equal(got, pe.geometric(64).angular.astype(np.float32))


def test_a_traced_length_gives_the_same_bits_in_every_program():
    f = dynamic(64, 1e4, 8.3, 2048)
    lengths = np.array([1, 2048, 2049, *range(5000, 300_000, 7919), 2**31 - 1], np.int32)
    each = jax.device_put(list(lengths))
    with jax.disable_jit():  # op by op: no compiler contracts a product and a sum
        expected = np.array([f(n) for n in each])
    np.testing.assert_array_equal([f(n) for n in each], expected)
    np.testing.assert_array_equal([jax.jit(f)(n) for n in each], expected)
    np.testing.assert_array_equal(jax.vmap(f)(lengths), expected)
    np.testing.assert_array_equal(jax.jit(jax.vmap(f))(lengths), expected)
    np.testing.assert_array_equal(jax.lax.map(f, jax.device_put(lengths)), expected)
    np.testing.assert_array_equal(jax.jit(lambda n: f(n) * 2 + 1)(each[3]), expected[3] * np.float32(2) + np.float32(1))


def test_every_integer_dtype_of_length():
    f = dynamic(16, 1e4, 8, 2048)
    expected = f(jnp.int32(5000))
    for dtype in (np.int16, np.uint16, np.uint32, jnp.int64 if jax.config.jax_enable_x64 else np.int32):
        for length in (jnp.asarray(5000, dtype), np.asarray(5000, dtype)):
            np.testing.assert_array_equal(f(length), expected)
            np.testing.assert_array_equal(jax.jit(f)(length), expected)
    np.testing.assert_array_equal(jax.jit(f)(jnp.uint8(200)), f(jnp.int32(200)))
    large = jax.jit(f)(jnp.uint32(2**32 - 1))
    np.testing.assert_allclose(large, np.asarray(f(jnp.int32(2**31 - 1))) * 0.5 ** (np.arange(8) / 7), rtol=1e-6)


def test_no_float64_and_few_equations():
    traced = jax.make_jaxpr(dynamic(64, 1e4, 8, 2048))(jnp.int32(5000))
    assert "f64" not in str(traced) and len(traced.eqns) <= 45


def test_frequencies_of_a_traced_length_encode():
    def encode(length):
        return pe.sinusoidal(jnp.arange(300, dtype=jnp.int32), pe.dynamic_ntk(16, 1e4, 4, 64, length))

    expected = pe.sinusoidal(np.arange(300), pe.dynamic_ntk(16, 1e4, 4, 64, 300))
    np.testing.assert_allclose(jax.jit(encode)(jnp.int32(300)), expected, rtol=0, atol=300 * 3e-7)


nan, inf = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: pe.ntk(2, 1e4, 2), ValueError, "ntk: dim must be even, from 4 to 2²⁰, got 2"),
        (lambda: pe.ntk(7, 1e4, 2), ValueError, "ntk: dim must be even, from 4 to 2²⁰, got 7"),
        (lambda: pe.ntk(2**21, 1e4, 2), ValueError, "ntk: dim must be even, from 4 to 2²⁰, got 2097152"),
        (lambda: pe.ntk(0, 1e4, 2), ValueError, "ntk: dim must be at least 1, got 0"),
        (lambda: pe.ntk(8.0, 1e4, 2), TypeError, "ntk: dim must be an integer, got float 8.0"),  # type: ignore
        (lambda: pe.ntk(True, 1e4, 2), TypeError, "ntk: dim must be an integer, got bool True"),
        (lambda: pe.ntk(8, 0, 2), ValueError, "ntk: base must be positive, got 0.0"),
        (lambda: pe.ntk(8, -1e4, 2), ValueError, "ntk: base must be positive, got -10000.0"),
        (lambda: pe.ntk(8, inf, 2), ValueError, "ntk: base must be finite, got inf"),
        (lambda: pe.ntk(8, 1e4, 0.5), ValueError, "ntk: factor must be at least 1, got 0.5"),
        (lambda: pe.ntk(8, 1e4, nan), ValueError, "ntk: factor must be finite, got nan"),
        (lambda: pe.ntk(8, 1e4, True), TypeError, "ntk: factor must be a number, got bool True"),
        (lambda: pe.ntk(16, 1e-12, 1), ValueError, "ntk: base must let no pair turn 2²⁸ times a position, got 1e-12"),
        (lambda: pe.dynamic_ntk(16, 1e-12, 1, 8, 9), ValueError, "dynamic_ntk: base must let no pair turn 2²⁸ times"),
        (lambda: pe.dynamic_ntk(2, 1e4, 2, 64, 64), ValueError, "dynamic_ntk: dim must be even, from 4 to 2²⁰, got 2"),
        (lambda: pe.dynamic_ntk(9, 1e4, 2, 64, jnp.int32(64)), ValueError, "dynamic_ntk: dim must be even, from 4 to 2²⁰, got 9"),
        (lambda: pe.dynamic_ntk(8, 0.0, 2, 64, 64), ValueError, "dynamic_ntk: base must be positive, got 0.0"),
        (lambda: pe.dynamic_ntk(8, 1e4, 0.9, 64, 64), ValueError, "dynamic_ntk: factor must be at least 1, got 0.9"),
        (lambda: pe.dynamic_ntk(8, 1e4, 2, 0, 64), ValueError, "dynamic_ntk: original_max must be at least 1, got 0"),
        (lambda: pe.dynamic_ntk(8, 1e4, 2, 64.0, 64), TypeError, "dynamic_ntk: original_max must be an integer, got float 64.0"),  # type: ignore
        (lambda: pe.dynamic_ntk(8, 1e4, 2, 2**31, 64), ValueError, "dynamic_ntk: original_max must fit into int32, got 2147483648"),
        (lambda: pe.dynamic_ntk(8, 1e4, 2, 64, 0), ValueError, "dynamic_ntk: length must be at least 1, got 0"),
        (lambda: pe.dynamic_ntk(8, 1e4, 2, 64, 2**31), ValueError, "dynamic_ntk: length must fit into int32, got 2147483648"),
        (lambda: pe.dynamic_ntk(8, 1e4, 2, 64, 64.0), TypeError, "dynamic_ntk: length must be an integer, got float 64.0"),
        (lambda: pe.dynamic_ntk(8, 1e4, 2, 64, True), TypeError, "dynamic_ntk: length must be an integer, got bool True"),
        (lambda: pe.dynamic_ntk(8, 1e4, 2, 64, None), TypeError, "dynamic_ntk: length must be an integer, got NoneType None"),  # type: ignore
        (lambda: pe.dynamic_ntk(8, 1e4, 2, 64, jnp.ones(3, int)), ValueError, r"dynamic_ntk: length must be a scalar, got shape \(3,\)"),
        (lambda: pe.dynamic_ntk(8, 1e4, 2, 64, jnp.float32(64)), TypeError, r"dynamic_ntk: length must be an integer or a scalar integer array, got float32 of shape \(\)"),
        (lambda: pe.dynamic_ntk(8, 1e4, 2, 64, jnp.array(True)), TypeError, "dynamic_ntk: length must be an integer or a scalar integer array, got bool"),
        (lambda: jax.jit(dynamic(8, 1e4, 2, 64))(64.0), TypeError, "dynamic_ntk: length must be an integer or a scalar integer array, got float"),
        (lambda: pe.dynamic_ntk(8, 1e4, 1e30, 64, jnp.int32(64)), ValueError, r"dynamic_ntk: factor must be at most 2⁹⁶ for a length that is an array, got 1e\+30"),
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
