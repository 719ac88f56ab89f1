"""`rotation_matrix`, `shift` and `offset_similarity`: M_k with PE(p + k) = M_k PE(p).

- The matrix and the shift take the encoding at any position p to the one at p + k, in either layout, within 5e-7.
- The dot product of two encodings is the sum of cosines of their offset.
- The encodings have the amplitude, and no shift changes it.
- Results are rounded once; derivatives are those of the formula.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_rounded_once, assert_within
from helpers.differences import assert_derivatives
from oracles import encodings, rotations, spectra

RNG = np.random.default_rng(0)
BOUND = 5e-7
# where encodings are, and the offsets to other int32 positions
FROM = np.int32([0, 1, -5, 2_000_000_000, -(2**31), 2**31 - 1, 123_456_789])
OFFSET = np.int32([3, -1, 2**31 - 1, 147_483_647, 2**31 - 1, -(2**31), 77])


@pytest.mark.parametrize(("layout", "base"), [("interleaved", 100), ("half", 10_000_000)])
def test_an_offset_takes_an_encoding_to_another_position(layout, base):
    here, there = (encodings.encode(np.int64(p), 64, base, layout) for p in (FROM, np.int64(FROM) + OFFSET))
    settings = {"frequencies": pe.geometric(64, base), "layout": layout}
    both = jax.jit(lambda x, k: (pe.rotation_matrix(k, **settings), pe.shift(x, k, **settings)))
    matrix, shifted = both(here.astype(np.float32), OFFSET)
    assert_within(np.einsum("krc,kc->kr", np.float64(matrix), here), there, BOUND, against="mpmath")
    assert_within(shifted, there, BOUND, against="mpmath")


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_the_matrix_is_that_of_the_formula(layout):
    sine, cosine = (w[0] for w in encodings.waves([5], spectra.geometric(6, 10_000)))
    got = pe.rotation_matrix(5, 6, layout=layout)
    assert_within(got, rotations.matrix(sine, cosine, layout), 9e-8, against="float64")


def test_offsets_broadcast_to_encodings():
    positions, offset = np.arange(10).reshape(2, 5) * 1000, RNG.integers(-(2**20), 2**20, (2, 1)).astype(np.int32)
    here, there = (encodings.encode(p.ravel(), 8).reshape(2, 5, 8) for p in (positions, positions + offset))
    assert_within(pe.shift(here.astype(np.float32), offset, 8), there, BOUND, against="mpmath")


def test_an_offset_may_have_several_axes():
    axial, p, k = pe.axial(8, 2), np.int32([[3, 5], [-100, 2**30]]), np.int32([[10, -7]])
    moved = jax.jit(lambda p, k: (pe.shift(pe.sinusoidal(p, axial), k, axial), pe.sinusoidal(p + k, axial)))
    assert_within(*moved(p, k), BOUND, against="the encoding there")


def test_a_narrow_result_is_rounded_once():
    narrow, wide = jax.jit(lambda k: (pe.rotation_matrix(k, 8, dtype=jnp.bfloat16), pe.rotation_matrix(k, 8)))(3)
    np.testing.assert_array_equal(narrow, np.asarray(wide).astype(jnp.bfloat16), strict=True)
    assert_rounded_once(lambda x: pe.shift(x, 5, 8), encodings.encode(np.arange(7), 8).astype(jnp.bfloat16))


def test_no_shift_changes_an_amplitude():
    f, p = pe.geometric(8).with_attention_factor(1.25), np.arange(9)

    @jax.jit
    def shifted_and_matrices(p, k):
        return pe.shift(pe.sinusoidal(p, f), k, f), pe.rotation_matrix(k, f), pe.rotation_matrix(k, 8)

    got, *matrices = shifted_and_matrices(p, 1000)
    assert_within(got, 1.25 * encodings.encode(p + 1000, 8), 1.25 * BOUND, against="mpmath")
    np.testing.assert_array_equal(*matrices)


# The dot product


def similarity(offset, frequencies):
    return np.asarray(jax.jit(lambda k: pe.offset_similarity(k, frequencies))(offset))


def test_the_similarity_is_the_sum_of_cosines():
    offsets = np.array([0, 1, -1, 20, 12_345, 2**31 - 1, -(2**31)])
    got = similarity(offsets, 128)
    assert got.dtype == np.float32 and got[0] == 64
    want = encodings.offset_similarity(offsets, spectra.geometric(128, 10_000))
    scaled = similarity(offsets, pe.geometric(128).with_attention_factor(1.25))
    for product in (got, scaled / 1.25**2):
        assert_within(product, want, 64 * 9e-8 + 4e-6, against="mpmath")


def test_the_similarity_of_axes_is_a_sum_over_axes():
    want = encodings.offset_similarity([3, -8], spectra.geometric(8, 10_000)).sum()
    assert_within(similarity(np.int32([3, -8]), pe.axial(16, 2)), want, 1e-6 * want, against="mpmath")


def test_the_similarity_allows_the_largest_amplitude():
    """Four pairs times its square is the largest float32."""
    largest = float(np.finfo(np.float32).max)
    frequencies = pe.geometric(8).with_attention_factor(math.sqrt(largest / 4))
    assert float(pe.offset_similarity(0, frequencies)) == largest


# Derivatives

OMEGA = 10_000.0 ** (-np.arange(4) / 4)


def test_derivatives_of_a_shift_are_those_of_the_formula():
    f = lambda x, k, w: pe.shift(x, k, w, layout="half")  # noqa: E731
    exact = lambda x, k, w: rotations.rotate_by(x, -k[:, None] * w, "half")  # noqa: E731
    x, k = RNG.normal(size=(5, 8)).astype(np.float32), np.linspace(-2, 3, 5, dtype=np.float32)
    assert_derivatives(f, exact, x, k, OMEGA.astype(np.float32))


def test_derivatives_of_the_matrix_and_of_the_similarity_are_those_of_the_formula():
    exact = lambda k: rotations.matrix(np.sin(k * OMEGA), np.cos(k * OMEGA), "interleaved")  # noqa: E731
    assert_derivatives(lambda k: pe.rotation_matrix(k, 8), exact, np.float32(1.5))
    assert_derivatives(lambda k: pe.offset_similarity(k, 8), lambda k: np.cos(k * OMEGA).sum(), np.float32(1.5))


# Errors

X = np.zeros((2, 5, 8), np.float32)


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (ValueError, "frequencies must have an even dim", {"encodings": X[..., :7], "frequencies": 7}),
        (ValueError, "frequencies of width 6 must match encodings", {"frequencies": 6}),
        (TypeError, "offset must be an integer or float array", {"offset": None}),
        (ValueError, r"offset of shape \(4,\) must broadcast to encodings without", {"offset": np.arange(4)}),
        (TypeError, r"encodings must be a float array of shape \(..., dim\)", {"encodings": X.astype(int)}),
        (ValueError, "layout must be one of", {"layout": "x"}),
    ],
)
def test_invalid_arguments_of_shift_raise(error, match, change):
    with pytest.raises(error, match=f"^shift: {match}"):
        pe.shift(**{"encodings": X, "offset": 1, "frequencies": 8} | change)


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (ValueError, "rotation_matrix: frequencies must have an even dim", lambda: pe.rotation_matrix(1, 7)),
        (ValueError, "rotation_matrix: layout must be one of", lambda: pe.rotation_matrix(1, 8, layout="x")),
        (TypeError, "rotation_matrix: dtype must be a float dtype", lambda: pe.rotation_matrix(1, 8, dtype=int)),
        (ValueError, "rotation_matrix: offset must have a last axis", lambda: pe.rotation_matrix(1, pe.axial(8, 2))),
        (ValueError, "offset_similarity: frequencies must have an even dim", lambda: pe.offset_similarity(1, 7)),
        (ValueError, "offset_similarity: offset must fit into int32", lambda: pe.offset_similarity(2**31, 8)),
        (
            ValueError,
            "offset_similarity: frequencies must have an attention_factor whose square float32 holds 4 times",
            lambda: pe.offset_similarity(0, pe.geometric(8).with_attention_factor(1.6e19)),
        ),
    ],
)
def test_invalid_arguments_of_the_matrix_and_of_the_similarity_raise(error, match, call):
    with pytest.raises(error, match=f"^{match}"):
        call()


@pytest.mark.parametrize(("offset", "has_barrier"), [(3, True), (np.arange(5), False)], ids=["one", "many"])
def test_the_cosines_of_one_offset_are_computed_once(offset, has_barrier):
    """A barrier keeps XLA from fusing them into the rotation, which would compute them for each vector."""
    traced = jax.jit(lambda x: pe.shift(x, offset, 8)).trace(X)
    assert ("optimization_barrier" in traced.lower(lowering_platforms=("tpu",)).as_text()) == has_barrier
