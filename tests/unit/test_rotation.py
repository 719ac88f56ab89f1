"""M_k: PE(p+k) = M_k PE(p), as a matrix, without it, and through the dot product."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import posenc_jax as pe
from helpers.closeness import assert_within
from oracles import encodings, rotations, spectra

BOUND = 5e-7
INT32 = st.integers(-(2**31), 2**31 - 1)


def moved(matrix, encoding):
    return np.einsum("...rc,...c->...r", np.asarray(matrix, np.float64), np.asarray(encoding, np.float64))


@settings(max_examples=60, deadline=None)
@given(p=INT32, q=INT32, layout=st.sampled_from(["interleaved", "half"]), base=st.sampled_from([100.0, 10_000.0, 1e7]))
def test_moving_by_an_offset_is_one_linear_map(p, q, layout, base):
    k = q - p
    if not -(2**31) <= k < 2**31:
        k, q = 77, max(min(p, 2**31 - 78), -(2**31))
        p, q = q, q + 77
    f = pe.geometric(64, base)
    here, there = (np.asarray(pe.sinusoidal(x, f, layout=layout)) for x in (p, q))
    assert_within(moved(pe.rotation_matrix(k, f, layout=layout), here), there, BOUND, against="the encoding there")
    assert_within(pe.shift(here, k, f, layout=layout), there, BOUND, against="the encoding there")


def test_the_matrix_is_independent_of_the_position():
    positions = np.random.default_rng(0).integers(-(2**30), 2**30, 500)
    matrix = pe.rotation_matrix(-12_345, 128)
    got = moved(matrix, pe.sinusoidal(positions, 128))
    assert_within(got, encodings.encode(positions - 12_345, 128), BOUND, against="mpmath at 60 digits")


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_entries(layout):
    sine, cosine = (w[0] for w in encodings.waves([5], spectra.geometric(6, 10_000)))
    want = rotations.matrix(sine, cosine, layout)
    np.testing.assert_allclose(pe.rotation_matrix(5, 6, layout=layout), want, rtol=0, atol=9e-8)


def test_group():
    a, b = 123_456, -7
    product = np.asarray(pe.rotation_matrix(a, 16), np.float64) @ np.asarray(pe.rotation_matrix(b, 16), np.float64)
    np.testing.assert_allclose(product, pe.rotation_matrix(a + b, 16), rtol=0, atol=3e-7)
    np.testing.assert_allclose(pe.rotation_matrix(-a, 16), np.asarray(pe.rotation_matrix(a, 16)).T, atol=1.5e-7)
    np.testing.assert_array_equal(pe.rotation_matrix(0, 16), np.eye(16))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,)])
def test_array_offsets(shape):
    offsets = np.random.default_rng(1).integers(-(2**31), 2**31, shape).astype(np.int32)
    got = np.asarray(pe.rotation_matrix(offsets, 8))
    assert got.shape == (*shape, 8, 8)
    each = [np.asarray(pe.rotation_matrix(int(k), 8)) for k in offsets.ravel()]
    np.testing.assert_array_equal(got, np.array(each, np.float32).reshape(*shape, 8, 8))


def test_float_offsets_and_array_frequencies():
    angular = np.array([1.0, 0.1], np.float32)
    p, k = np.float32(0.75), np.float32(-2.5)
    got = moved(pe.rotation_matrix(k, angular), pe.sinusoidal(p, angular))
    np.testing.assert_allclose(got, pe.sinusoidal(p + k, angular), rtol=0, atol=BOUND)
    np.testing.assert_allclose(pe.shift(pe.sinusoidal(p, angular), k, angular), got, rtol=0, atol=BOUND)


def test_offsets_on_several_axes():
    f = pe.axial(8, 2)
    positions, offset = np.array([[3, 5], [-100, 2**30]]), np.array([10, -7])
    here, there = pe.sinusoidal(positions, f), pe.sinusoidal(positions + offset, f)
    np.testing.assert_allclose(moved(pe.rotation_matrix(offset, f), here), there, rtol=0, atol=BOUND)
    np.testing.assert_allclose(pe.shift(here, offset, f), there, rtol=0, atol=BOUND)


@pytest.mark.parametrize("shape", [(), (5,), (2, 1), (2, 5)])
def test_shift_broadcasts_offsets(shape):
    positions = np.arange(10).reshape(2, 5) * 1000
    offset = np.random.default_rng(2).integers(-(2**20), 2**20, shape)
    got = pe.shift(pe.sinusoidal(positions, 8), offset, 8)
    np.testing.assert_allclose(got, pe.sinusoidal(positions + offset, 8), rtol=0, atol=BOUND)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_dtypes(dtype):
    assert pe.rotation_matrix(3, 8, dtype=dtype).dtype == dtype
    encoding = pe.sinusoidal(np.arange(7), 8).astype(dtype)
    got = pe.shift(encoding, 5, 8)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, pe.shift(encoding.astype(jnp.float32), 5, 8).astype(dtype))


def test_norms_are_kept():
    x = np.random.default_rng(3).normal(size=(100, 64)).astype(np.float32)
    offsets = np.random.default_rng(4).integers(-(2**31), 2**31, 100)
    norm = lambda a: np.linalg.norm(np.asarray(a, np.float64), axis=-1)  # noqa: E731
    np.testing.assert_allclose(norm(pe.shift(x, offsets, 64)), norm(x), rtol=2e-7)
    np.testing.assert_allclose(norm(pe.sinusoidal(offsets, 64)), np.sqrt(32), rtol=1e-7)


def test_an_amplitude_is_that_of_the_encodings_and_no_move_changes_it():
    f = dataclasses.replace(pe.geometric(8), attention_factor=1.25)
    here, there = pe.sinusoidal(np.arange(9), f), pe.sinusoidal(np.arange(9) + 1000, f)
    np.testing.assert_allclose(pe.shift(here, 1000, f), there, rtol=0, atol=1.25 * BOUND)
    np.testing.assert_allclose(moved(pe.rotation_matrix(1000, f), here), there, rtol=0, atol=1.25 * BOUND)
    products = np.sum(np.asarray(here, np.float64) * np.asarray(there, np.float64), axis=-1)
    np.testing.assert_allclose(products, np.full(9, pe.offset_similarity(1000, f)), rtol=0, atol=4e-6)


def test_offset_similarity_is_the_sum_of_cosines():
    offsets = np.array([0, 1, -1, 20, 12_345, 2**31 - 1, -(2**31)])
    want = encodings.offset_similarity(offsets, spectra.geometric(128, 10_000))
    got = pe.offset_similarity(offsets, 128)
    assert got.dtype == np.float32 and got.shape == (7,)
    np.testing.assert_allclose(got, want, rtol=0, atol=64 * 9e-8 + 4e-6)
    assert float(pe.offset_similarity(0, 128)) == 64.0


@pytest.mark.parametrize("start", [0, 5, 10, 20, 2_000_000_000, -(2**31)])
def test_dot_products_depend_on_the_offset_alone(start):
    offsets = np.arange(0, 20)
    here, there = (np.asarray(pe.sinusoidal(p, 16), np.float64) for p in (start, start + offsets))
    np.testing.assert_allclose(there @ here, pe.offset_similarity(offsets, 16), rtol=0, atol=3e-6)


def test_similarity_of_axes_is_a_sum_over_axes():
    offset = np.array([3, -8])
    parts = [float(pe.offset_similarity(k, 8)) for k in offset.tolist()]
    np.testing.assert_allclose(pe.offset_similarity(offset, pe.axial(16, 2)), sum(parts), rtol=1e-6)


def test_derivatives():
    offset = jnp.float32(1.5)
    sine = np.sin(1.5 * pe.geometric(8).angular)
    got = jax.grad(lambda k: pe.offset_similarity(k, 8))(offset)
    np.testing.assert_allclose(got, -(pe.geometric(8).angular * sine).sum(), rtol=1e-6)
    x = jnp.asarray(np.random.default_rng(5).normal(size=8).astype(np.float32))
    jacobian = jax.jacrev(lambda x: pe.shift(x, 3, 8))(x)
    np.testing.assert_allclose(jacobian, pe.rotation_matrix(3, 8), rtol=0, atol=1e-7)


def test_the_largest_amplitude():
    """Four times its square is the largest float32, and no more."""
    largest = float(np.finfo(np.float32).max)
    frequencies = dataclasses.replace(pe.geometric(8), attention_factor=math.sqrt(largest / 4))
    assert 4 * frequencies.attention_factor**2 == largest
    assert float(pe.offset_similarity(0, frequencies)) == largest


X = np.zeros((2, 5, 8), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: pe.rotation_matrix(1, 7), ValueError, "rotation_matrix: frequencies must have an even dim, got 7"),
        (lambda: pe.shift(X[..., :7], 1, 7), ValueError, "shift: frequencies must have an even dim, got 7"),
        (lambda: pe.shift(np.ones(8, np.float32), None, 8), TypeError, "shift: offset must be an integer or float array, got NoneType None"),  # type: ignore
        (lambda: pe.offset_similarity(1, 7), ValueError, "offset_similarity: frequencies must have an even dim, got 7"),
        (lambda: pe.rotation_matrix(True, 8), TypeError, "rotation_matrix: offset must be an integer or float array, got bool True"),
        (lambda: pe.rotation_matrix(1j, 8), TypeError, "rotation_matrix: offset must be .* got complex 1j"),  # type: ignore
        (lambda: pe.shift(X, "3", 8), TypeError, "shift: offset must be an integer or float array, got str '3'"),  # type: ignore
        (lambda: pe.offset_similarity(0, dataclasses.replace(pe.geometric(8), attention_factor=1.6e19)), ValueError, r"offset_similarity: frequencies must have an attention_factor whose square float32 holds 4 times, got 1.6e\+19"),
        (lambda: pe.offset_similarity(2**31, 8), ValueError, "offset_similarity: offset must fit into int32, got 2147483648"),
        (lambda: pe.rotation_matrix(1, 8, layout="x"), ValueError, "rotation_matrix: layout must be one of"),  # type: ignore
        (lambda: pe.rotation_matrix(1, 8, dtype=int), TypeError, "rotation_matrix: dtype must be a float dtype, got int"),
        (lambda: pe.rotation_matrix(1, pe.axial(8, 2)), ValueError, r"rotation_matrix: offset must have a last axis of size 2, .* got shape \(\)"),
        (lambda: pe.shift(X, 1, 6), ValueError, r"shift: frequencies of width 6 must match encodings, shape \(2, 5, 8\)"),
        (lambda: pe.shift(X, np.arange(4), 8), ValueError, r"shift: offset of shape \(4,\) must broadcast to encodings without their last axis, shape \(2, 5\)"),
        (lambda: pe.shift(X.astype(int), 1, 8), TypeError, r"shift: encodings must be a float array of shape \(..., dim\), got int64"),
        (lambda: pe.shift(np.float32(1), 1, 8), TypeError, "shift: encodings must be a float array"),
        (lambda: pe.shift(X, 1, 8, layout="x"), ValueError, "shift: layout must be one of"),  # type: ignore
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_the_waves_of_one_offset_are_made_once():
    # For one offset they are a row, kept apart from the array's elements; for many they are made where they are used.
    for offset, apart in ((3, True), (np.arange(5), False)):
        traced = jax.jit(lambda x, k=offset: pe.shift(x, k, 8)).trace(X)
        assert ("optimization_barrier" in traced.lower(lowering_platforms=("tpu",)).as_text()) == apart
