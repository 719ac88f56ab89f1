"""NTK-aware scalings against formulas at 70 digits, of known and of traced lengths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.quick import quick
from helpers.spectra import WIDTHS, assert_exact
from helpers.tiers import slow, tiered
from oracles import encodings, spectra


@pytest.mark.parametrize(("dim", "base"), [*WIDTHS, (6, 0.5)])
@pytest.mark.parametrize("factor", [1.0, 1.1, 2.0, 8, 40])
def test_ntk(dim, base, factor):
    got = pe.ntk(dim, base, factor)
    assert_exact(got, spectra.ntk(dim, base, factor), 0.51)
    slowest = pe.linear_scaling(pe.geometric(dim, base), factor).cycles[-1]
    assert got.cycles[0] == pe.geometric(dim, base).cycles[0] and abs(got.cycles[-1] - slowest) <= 2


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


@pytest.mark.parametrize(("dim", "base"), [(4, 1e4), slow(8, 10.0), (64, 15e4), slow(128, 5e5), slow(256, 5e5)])
@pytest.mark.parametrize("original_max", tiered(ORIGINALS, [2048]))
def test_a_traced_length_gives_each_frequency_to_a_few_ulp(dim, base, original_max):
    lengths = np.array([original_max + 1, 3 * original_max + 7, 1_932_175_153, 2**31 - 1], np.int32)
    of = {factor: jax.vmap(dynamic(dim, base, factor, original_max)) for factor in FACTORS}
    every = quick(lambda lengths: {factor: f(lengths) for factor, f in of.items()})
    for factor, found in every(lengths).items():
        assert found.dtype == jnp.float32
        for length, got in zip(lengths.tolist(), np.asarray(found), strict=True):
            expected = spectra.floats(spectra.dynamic_ntk(dim, base, factor, original_max, length))
            bound = 4 * np.spacing(expected.astype(np.float32)).astype(np.float64)
            assert_within(got, expected, bound, against=f"mpmath for factor {factor}, length {length}")


@pytest.mark.parametrize("length", [-5, 0, 1, 2047, 2048])
def test_a_traced_length_within_the_original_changes_nothing(length):
    got = jax.jit(dynamic(64, 1e4, 8, 2048))(np.int32(length))
    np.testing.assert_array_equal(got, pe.geometric(64).angular.astype(np.float32))


MANY = np.array([1, 2048, 2049, *range(5000, 300_000, 7919), 2**31 - 1], np.int32)


def test_a_traced_length_gives_the_same_bits_in_every_program():
    f = dynamic(64, 1e4, 8.3, 2048)
    alone = np.array([f(n) for n in jax.device_put(list(MANY))])
    np.testing.assert_array_equal(jax.jit(jax.vmap(f))(MANY), alone)
    np.testing.assert_array_equal(jax.lax.map(f, jax.device_put(MANY)), alone)
    np.testing.assert_array_equal(jax.jit(lambda n: f(n) * 2 + 1)(MANY[3]), alone[3] * np.float32(2) + np.float32(1))


@pytest.mark.slow
def test_a_traced_length_gives_the_same_bits_op_by_op():
    f = dynamic(64, 1e4, 8.3, 2048)
    lengths = jax.device_put(list(MANY))
    with jax.disable_jit():  # op by op: no compiler contracts a product and a sum
        expected = np.array([f(n) for n in lengths])
    for each in (f, jax.jit(f)):
        np.testing.assert_array_equal([each(n) for n in lengths], expected)
    np.testing.assert_array_equal(jax.vmap(f)(MANY), expected)


def test_every_integer_dtype_of_length():
    f = dynamic(16, 1e4, 8, 2048)
    dtypes = (np.int16, np.uint16, np.uint32, np.int64 if jax.config.jax_enable_x64 else np.int32)
    lengths = [np.asarray(5000, dtype) for dtype in dtypes]
    expected = np.asarray(f(jax.device_put(np.int32(5000))))

    @jax.jit
    def each(traced, short, long, longest):
        return (
            [(f(n), f(m)) for n, m in zip(lengths, traced, strict=True)],
            (f(short), f(short.astype(np.int32))),
            (f(longest), f(long)),
        )

    of_dtypes, (short, of_200), (longest, long) = each(
        lengths, np.uint8(200), np.int32(2**31 - 1), np.uint32(2**32 - 1)
    )
    # XLA computes the power of a known length on the host, so a GPU's own may differ in the last bit.
    rtol = 0 if jax.default_backend() == "cpu" else 2**-23
    for dtype, found in zip(dtypes, of_dtypes, strict=True):
        np.testing.assert_allclose(found, [expected] * 2, rtol, 0, err_msg=f"{dtype.__name__}, known and traced")
    np.testing.assert_array_equal(short, of_200)
    np.testing.assert_allclose(longest, np.asarray(long) * 0.5 ** (np.arange(8) / 7), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.int16, np.uint16, np.uint32, np.int64])
def test_every_integer_dtype_of_a_length_outside_of_a_program(dtype):
    f, length = dynamic(16, 1e4, 8, 2048), np.asarray(5000, dtype)
    for got in (f(length), f(jax.device_put(length)), jax.jit(f)(length)):
        np.testing.assert_array_equal(got, f(jax.device_put(np.int32(5000))))


def test_no_float64_and_few_equations():
    traced = jax.make_jaxpr(dynamic(64, 1e4, 8, 2048))(np.int32(5000))
    assert "f64" not in str(traced) and len(traced.eqns) <= 45


def test_frequencies_of_a_traced_length_encode():
    encode = quick(lambda length: pe.sinusoidal(np.arange(300), pe.dynamic_ntk(16, 1e4, 4, 64, length)))
    expected = encodings.waves(np.arange(300), spectra.dynamic_ntk(16, 1e4, 4, 64, 300))
    got = np.asarray(encode(np.int32(300)))
    for features, want in zip((got[:, ::2], got[:, 1::2]), expected, strict=True):
        assert_within(features, want, 300 * 3e-7, against="mpmath")


nan, inf = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: pe.ntk(2, 1e4, 2), ValueError, "ntk: dim must be 0, or even and from 4 to 2²⁰, got 2"),
        (lambda: pe.ntk(7, 1e4, 2), ValueError, "ntk: dim must be 0, or even and from 4 to 2²⁰, got 7"),
        (lambda: pe.ntk(2**21, 1e4, 2), ValueError, "ntk: dim must be 0, or even and from 4 to 2²⁰, got 2097152"),
        (lambda: pe.ntk(-4, 1e4, 2), ValueError, "ntk: dim must be 0, or even and from 4 to 2²⁰, got -4"),
        (lambda: pe.ntk(8.0, 1e4, 2), TypeError, "ntk: dim must be an integer, got float 8.0"),  # type: ignore
        (lambda: pe.ntk(True, 1e4, 2), TypeError, "ntk: dim must be an integer, got bool True"),
        (lambda: pe.ntk(8, 0, 2), ValueError, "ntk: base must be positive, got 0.0"),
        (lambda: pe.ntk(8, -1e4, 2), ValueError, "ntk: base must be positive, got -10000.0"),
        (lambda: pe.ntk(8, inf, 2), ValueError, "ntk: base must be finite, got inf"),
        (lambda: pe.ntk(8, 1e4, 0.5), ValueError, "ntk: factor must be at least 1, got 0.5"),
        (lambda: pe.ntk(8, 1e4, nan), ValueError, "ntk: factor must be finite, got nan"),
        (lambda: pe.ntk(8, 1e4, True), TypeError, "ntk: factor must be a number, got bool True"),
        (lambda: pe.ntk(16, 1e-12, 1), ValueError, "ntk: base must keep every pair below 2²⁸ cycles per position, got 1e-12"),
        (lambda: pe.dynamic_ntk(16, 1e-12, 1, 8, 9), ValueError, "dynamic_ntk: base must keep every pair below 2²⁸ cycles"),
        (lambda: pe.dynamic_ntk(2, 1e4, 2, 64, 64), ValueError, "dynamic_ntk: dim must be 0, or even and from 4 to 2²⁰, got 2"),
        (lambda: pe.dynamic_ntk(9, 1e4, 2, 64, np.asarray(64)), ValueError, "dynamic_ntk: dim must be 0, or even and from 4 to 2²⁰, got 9"),
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
        (lambda: pe.dynamic_ntk(8, 1e4, 2, 64, np.ones(3, np.int32)), ValueError, r"dynamic_ntk: length must be a scalar, got shape \(3,\)"),
        (lambda: pe.dynamic_ntk(8, 1e4, 2, 64, jnp.float32(64)), TypeError, r"dynamic_ntk: length must be an integer or a scalar integer array, got float32 of shape \(\)"),
        (lambda: pe.dynamic_ntk(8, 1e4, 2, 64, np.array(True)), TypeError, "dynamic_ntk: length must be an integer or a scalar integer array, got bool"),
        (lambda: jax.jit(dynamic(8, 1e4, 2, 64))(64.0), TypeError, "dynamic_ntk: length must be an integer or a scalar integer array, got float"),
        (lambda: pe.dynamic_ntk(8, 1e4, 1e30, 64, np.asarray(64)), ValueError, r"dynamic_ntk: factor must be at most 2⁹⁶ for a length that is an array, got 1e\+30"),
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
