"""M_k: PE(p+k) = M_k PE(p), as a matrix, without it, and through the dot product."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.quick import quick
from helpers.tiers import slow, tiered
from oracles import encodings, rotations, spectra

BOUND = 5e-7
INT32 = st.integers(-(2**31), 2**31 - 1)
LAYOUTS = ("interleaved", "half")


def moved(matrix, encoding):
    return np.einsum("...rc,...c->...r", np.asarray(matrix, np.float64), np.asarray(encoding, np.float64))


def moves(p, q, k, f, layout="interleaved"):
    """The encodings at p and at q = p + k, M_k, and the encoding at p shifted by k."""
    here, there = (pe.sinusoidal(x, f, layout=layout) for x in (p, q))
    return here, there, pe.rotation_matrix(k, f, layout=layout), pe.shift(here, k, f, layout=layout)


@quick
def moves_of_each_spectrum(p, q, k):
    cases = itertools.product(LAYOUTS, (100.0, 10_000.0, 1e7))
    return {f"{layout}, base {base}": moves(p, q, k, pe.geometric(64, base), layout) for layout, base in cases}


def check_moves(got, bound=BOUND, case=""):
    here, there, matrix, shifted = got
    assert_within(moved(matrix, here), there, bound, against=f"the encoding there {case}")
    assert_within(shifted, there, bound, against=f"the encoding there {case}")


@settings(max_examples=60, deadline=None)
@given(p=INT32, q=INT32)
def test_moving_by_an_offset_is_one_linear_map(p, q):
    k = q - p
    if not -(2**31) <= k < 2**31:
        k, q = 77, max(min(p, 2**31 - 78), -(2**31))
        p, q = q, q + 77
    for case, got in moves_of_each_spectrum(*np.int32((p, q, k))).items():
        check_moves(got, case=case)


@pytest.mark.parametrize("count", [50, slow(500)])
def test_the_matrix_is_independent_of_the_position(count):
    positions = np.random.default_rng(0).integers(-(2**30), 2**30, count).astype(np.int32)
    matrix, here = quick(lambda k, p: (pe.rotation_matrix(k, 128), pe.sinusoidal(p, 128)))(np.int32(-12_345), positions)
    got = moved(matrix, here)
    assert_within(got, encodings.encode(positions - 12_345, 128), BOUND, against="mpmath at 60 digits")


def test_entries():
    sine, cosine = (w[0] for w in encodings.waves([5], spectra.geometric(6, 10_000)))
    matrices = quick(lambda k: {layout: pe.rotation_matrix(k, 6, layout=layout) for layout in LAYOUTS})(np.int32(5))
    for layout, got in matrices.items():
        assert_within(got, rotations.matrix(sine, cosine, layout), 9e-8, against=f"float64, {layout}")


def test_group():
    a, b = 123_456, -7
    product = np.asarray(pe.rotation_matrix(a, 16), np.float64) @ np.asarray(pe.rotation_matrix(b, 16), np.float64)
    np.testing.assert_allclose(product, pe.rotation_matrix(a + b, 16), rtol=0, atol=3e-7)
    np.testing.assert_allclose(pe.rotation_matrix(-a, 16), np.asarray(pe.rotation_matrix(a, 16)).T, atol=1.5e-7)
    np.testing.assert_array_equal(pe.rotation_matrix(0, 16), np.eye(16))


@pytest.mark.parametrize("shape", tiered([(), (3,), (2, 3), (0,)], [(2, 3), (0,)]))
def test_array_offsets(shape):
    offsets = np.random.default_rng(1).integers(-(2**31), 2**31, shape).astype(np.int32)
    each = [np.asarray(pe.rotation_matrix(int(k), 8)) for k in offsets.ravel()]
    want = np.array(each, np.float32).reshape(*shape, 8, 8)
    np.testing.assert_array_equal(pe.rotation_matrix(offsets, 8), want, strict=True)


def test_float_offsets_and_array_frequencies():
    p, k, angular = np.float32(0.75), np.float32(-2.5), np.array([1.0, 0.1], np.float32)
    check_moves(quick(moves)(p, p + k, k, angular))


def test_offsets_on_several_axes():
    p, k = np.array([[3, 5], [-100, 2**30]], np.int32), np.array([10, -7], np.int32)
    check_moves(quick(moves)(p, p + k, k[None], pe.axial(8, 2)))


def test_shift_broadcasts_offsets():
    positions = np.arange(10).reshape(2, 5) * 1000
    here = encodings.encode(positions.ravel(), 8).reshape(2, 5, 8).astype(np.float32)
    shapes = [(), (5,), (2, 1), (2, 5)]
    offsets = [np.random.default_rng(2).integers(-(2**20), 2**20, shape).astype(np.int32) for shape in shapes]
    shifted = quick(lambda x, offsets: [pe.shift(x, k, 8) for k in offsets])(here, offsets)
    for shape, offset, got in zip(shapes, offsets, shifted, strict=True):
        there = encodings.encode((positions + offset).ravel(), 8).reshape(2, 5, 8)
        assert_within(got, there, BOUND, against=f"mpmath at 60 digits, offsets of shape {shape}")


@pytest.mark.parametrize("dtype", [jnp.bfloat16, slow(jnp.float16), slow(jnp.float32)])
def test_dtypes(dtype):
    matrix = functools.partial(pe.rotation_matrix, frequencies=8, dtype=dtype)
    assert jax.eval_shape(matrix, 3).dtype == dtype
    encoding = encodings.encode(np.arange(7), 8).astype(dtype)
    got, wide = jax.jit(lambda *xs: [pe.shift(x, 5, 8) for x in xs])(encoding, encoding.astype(np.float32))
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, np.asarray(wide).astype(dtype))


def test_norms_are_kept():
    x = np.random.default_rng(3).normal(size=(100, 64)).astype(np.float32)
    offsets = np.random.default_rng(4).integers(-(2**31), 2**31, 100).astype(np.int32)
    shifted, encoded = quick(lambda x, k: (pe.shift(x, k, 64), pe.sinusoidal(k, 64)))(x, offsets)
    norm = lambda a: np.linalg.norm(np.asarray(a, np.float64), axis=-1)  # noqa: E731
    np.testing.assert_allclose(norm(shifted), norm(x), rtol=2e-7)
    np.testing.assert_allclose(norm(encoded), np.sqrt(32), rtol=1e-7)


def test_an_amplitude_is_that_of_the_encodings_and_no_move_changes_it():
    f, p, k = pe.geometric(8).with_attention_factor(1.25), np.arange(9, dtype=np.int32), np.int32(1000)
    got, similarity = quick(lambda *at: (moves(*at, f), pe.offset_similarity(at[-1], f)))(p, p + k, k)
    check_moves(got, 1.25 * BOUND)
    here, there = (np.asarray(x, np.float64) for x in got[:2])
    np.testing.assert_allclose(np.sum(here * there, axis=-1), np.full(9, similarity), rtol=0, atol=4e-6)


def test_offset_similarity_is_the_sum_of_cosines():
    offsets = np.array([0, 1, -1, 20, 12_345, 2**31 - 1, -(2**31)])
    want = encodings.offset_similarity(offsets, spectra.geometric(128, 10_000))
    got = pe.offset_similarity(offsets, 128)
    assert got.dtype == np.float32 and got.shape == (7,)
    np.testing.assert_allclose(got, want, rtol=0, atol=64 * 9e-8 + 4e-6)
    assert np.asarray(got)[0] == 64.0


def test_dot_products_depend_on_the_offset_alone():
    starts, offsets = [0, 5, 10, 20, 2_000_000_000, -(2**31)], np.arange(20)
    encoded = np.asarray(pe.sinusoidal(np.add.outer(starts, offsets), 16), np.float64)
    similarity = pe.offset_similarity(offsets, 16)
    for start, there in zip(starts, encoded, strict=True):
        np.testing.assert_allclose(there @ there[0], similarity, rtol=0, atol=3e-6, err_msg=f"from {start}")


def test_similarity_of_axes_is_a_sum_over_axes():
    offset = np.array([3, -8], np.int32)
    of_axes = lambda k: (pe.offset_similarity(k, 8), pe.offset_similarity(k, pe.axial(16, 2)))  # noqa: E731
    parts, whole = quick(of_axes)(offset)
    np.testing.assert_allclose(whole, sum(map(float, parts)), rtol=1e-6)


def test_derivatives():
    sine = np.sin(1.5 * pe.geometric(8).angular)
    x = np.random.default_rng(5).normal(size=8).astype(np.float32)
    by_offset = jax.grad(lambda k: pe.offset_similarity(k, 8))
    by_x = jax.jacrev(lambda x: pe.shift(x, 3, 8))
    got, jacobian, matrix = quick(lambda k, x: (by_offset(k), by_x(x), pe.rotation_matrix(3, 8)))(np.float32(1.5), x)
    np.testing.assert_allclose(got, -(pe.geometric(8).angular * sine).sum(), rtol=1e-6)
    np.testing.assert_allclose(jacobian, matrix, rtol=0, atol=1e-7)


def test_the_largest_amplitude():
    """Four times its square is the largest float32, and no more."""
    largest = float(np.finfo(np.float32).max)
    frequencies = pe.geometric(8).with_attention_factor(math.sqrt(largest / 4))
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
