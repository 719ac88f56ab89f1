"""`fourier_features` and `timestep_embedding`.

- Features are within 9e-8 + 6e-9 · inputs of the sines and cosines of the exact sum of products, for coordinates below
  2³¹ and frequencies below 2²⁸.
- A coordinate that is NaN or out of range makes its row NaN, a frequency its columns, and nothing else is NaN.
- First and second derivatives are those of the formula.
- No matrix product rounds the sum, and no table has an entry for each input of each feature.
- Embeddings of timesteps are within 9e-8 of the formula, and those of diffusers. An odd width ends in a zero.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.differences import assert_derivatives
from oracles import fourier, recorded, rotations

RNG = np.random.default_rng(0)
features = jax.jit(pe.fourier_features, static_argnames=("layout", "dtype"))


def bound(inputs):
    """The largest error of a feature of so many coordinates."""
    return 9e-8 + 6e-9 * inputs


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("inputs", [1, 3, 64])
@pytest.mark.parametrize(
    ("x_scale", "b_scale"),
    [(1, 1), (1, 4e6), (1e-3, 4e6), (1e4, 1e3), (6e8, 4e6), (6e8, 1e-12), (1e-30, 1e5), (1e-10, 6e7)],
)
def test_features_are_within_their_bound(inputs, x_scale, b_scale):
    x = (RNG.normal(size=(12, inputs)) * x_scale).clip(-2e9, 2e9).astype(np.float32)
    matrix = (RNG.normal(size=(inputs, 9)) * b_scale).astype(np.float32)
    want = fourier.fourier_features(x, matrix)
    assert_within(features(x, matrix), want, bound(inputs), against="exact products, then mpmath")


def test_frequencies_at_and_beside_half_a_cycle_are_exact():
    x = np.resize(np.float32([0.25, -0.3, 0.49999997, 1.5, 7.3, -1e5, 3.0, 2.0**31 - 128]), (12, 1))
    matrix = np.resize(np.float32([0.5, -1.5, 6441807.5, -0.25, 2.0**-31, 1.5 - 2.0**-20]), (1, 9))
    assert_within(features(x, matrix), fourier.fourier_features(x, matrix), bound(1), against="mpmath")


def test_octaves_give_the_encoding_of_nerf():
    x = RNG.uniform(-1, 1, (11, 3)).astype(np.float32)
    octaves = np.kron(np.eye(3), 2.0 ** np.arange(-1, 9)).astype(np.float32)
    assert_within(features(x, octaves, layout="interleaved"), fourier.nerf(x, 10), bound(1), against="mpmath")


@pytest.mark.parametrize("x_dtype", [np.int32, jnp.bfloat16])
def test_integers_and_narrow_floats_are_taken_at_their_value(x_dtype):
    x, matrix = RNG.integers(-(2**31), 2**31 - 2**23, (20, 3)).astype(x_dtype), normal(3, 5).astype(np.float16)
    want = fourier.fourier_features(np.float64(x), np.float32(matrix))
    assert_within(features(x, matrix), want, bound(3), against="exact products, then mpmath")


def test_float64_is_taken_at_its_value_with_x64():
    with jax.enable_x64(True):
        x, matrix = RNG.normal(size=(6, 2)) * 1e5, RNG.normal(size=(2, 4)) * 1e2
        assert_within(features(x, matrix), fourier.fourier_features(x, matrix), bound(2), against="mpmath")


@pytest.mark.parametrize(("shape", "layout"), [((), "half"), ((2, 3), "interleaved")])
def test_points_may_have_any_shape_in_either_layout(shape, layout):
    x, matrix = normal(*shape, 3), normal(3, 5)
    got = features(x, matrix, layout=layout)
    assert got.dtype == np.float32
    want = fourier.fourier_features(x.reshape(-1, 3), matrix, layout).reshape(*shape, 10)
    assert_within(got, want, bound(3), against="mpmath")


def test_a_narrow_result_is_rounded_once():
    x, matrix = normal(12, 3), normal(3, 9)
    want = np.asarray(features(x, matrix)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(features(x, matrix, dtype=jnp.bfloat16), want, strict=True)


def test_rows_and_columns_out_of_range_are_nan_and_nothing_else():
    x = np.float32([[0, 1], [np.nan, 1], [0, np.inf], [2**31, 0], [-(2.0**31), 0]])
    matrix = np.float32([[1, 0.5, 2.0**28, np.nan], [1, 0.5, 0, 1]])
    # which rows of x and which columns of the features are out of range: −2³¹ is an int32, 2³¹ is not
    rows, columns = np.array([0, 1, 1, 1, 0], bool), np.array([0, 0, 1, 1] * 2, bool)
    np.testing.assert_array_equal(np.isnan(features(x, matrix)), rows[:, None] | columns)
    unsigned = features(np.array([[1, 1], [2**32 - 1, 0]], np.uint32), matrix[:, :2])
    np.testing.assert_array_equal(np.isnan(unsigned).any(1), [False, True])


def test_derivatives_are_those_of_the_formula():
    def exact(x, matrix):
        phase = 2 * np.pi * x @ matrix
        return rotations.features(np.sin(phase), np.cos(phase), "interleaved")

    f = functools.partial(pe.fourier_features, layout="interleaved")
    assert_derivatives(f, exact, normal(4, 3), normal(3, 5))


def test_second_derivatives_are_those_of_the_formula():
    x, matrix, weights = normal(4, 3), normal(3, 5), normal(4, 10)
    one, other = (normal(4, 3), normal(3, 5)), (normal(4, 3), normal(3, 5))  # directions of x and of the matrix
    gradient = jax.grad(lambda x, b: jnp.sum(weights * pe.fourier_features(x, b)), (0, 1))
    by_x, by_matrix = jax.jit(lambda: jax.jvp(gradient, (x, matrix), other)[1])()
    want = np.vdot(weights, fourier.along(x, matrix, one, other)[1])  # the second derivative along both
    assert_within(np.vdot(by_x, one[0]) + np.vdot(by_matrix, one[1]), want, 2e-3, against="float64")


def test_no_matrix_product_rounds_the_sum_and_no_input_has_a_table():
    x, matrix = (jax.ShapeDtypeStruct(shape, np.float32) for shape in ((2048, 16), (16, 32)))
    assert "dot_general" not in features.lower(x, matrix).as_text()
    compiled = features.lower(x, matrix).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= 2048 * 64 * 4 + 2**16  # at most that of the features


# Timesteps


def embedded(timesteps, dim, **settings):
    """`timestep_embedding` in one program; timesteps are traced."""
    return np.asarray(jax.jit(lambda t: pe.timestep_embedding(t, dim, **settings))(timesteps))


TIMES = np.float32([0, 0.5, 1, 17.25, 999, 1e6 + 0.5, -3, np.nan])


@pytest.mark.parametrize(
    ("timesteps", "dim", "flip", "shift", "scale", "period"),
    [
        (np.int32([[0, 1, 999], [2**31 - 1, -5, 7]]), 8, False, 1, 1.0, 10_000),
        (TIMES, 7, True, 0, 1.0, 10_000),
        (TIMES, 9, False, 0.5, 1.5, 500),
        (TIMES, 3, False, 7, 1000.0, 10_000),
    ],
)
def test_timesteps_are_the_formula(timesteps, dim, flip, shift, scale, period):
    settings = {"flip_sin_to_cos": flip, "downscale_freq_shift": shift, "scale": scale, "max_period": period}
    want = np.concatenate(fourier.timestep_embedding(timesteps.reshape(-1), dim, flip, shift, scale, period), -1)
    got = embedded(timesteps, dim, **settings)
    assert got.dtype == np.float32
    assert_within(got, want.reshape(*timesteps.shape, dim), 9e-8, against="mpmath")
    np.testing.assert_array_equal(got[..., dim // 2 * 2 :], 0)


@pytest.mark.parametrize("case", recorded.cases("diffusers_timesteps"), ids=lambda case: str(case["arguments"]))
def test_timesteps_are_those_of_diffusers(case):
    settings, t = dict(case["arguments"]), np.float32(case["timesteps"])
    # diffusers rounds its frequencies, of magnitude 1 or less, and their products to float32.
    tolerance = 2e-7 + 2e-7 * settings.get("scale", 1) * np.abs(t)[:, None]
    got = embedded(t, settings.pop("embedding_dim"), **settings)
    assert_within(got, case["values"], tolerance, against="diffusers")


def test_a_timestep_may_be_a_number_and_its_embedding_bfloat16():
    want = embedded(np.float32(0.5), 9).astype(jnp.bfloat16)
    np.testing.assert_array_equal(pe.timestep_embedding(0.5, 9, dtype=jnp.bfloat16), want, strict=True)


def test_derivatives_in_timesteps_are_those_of_the_formula():
    omega = 2 * 10_000.0 ** -np.arange(2)
    exact = lambda t: np.concatenate([np.sin(t[:, None] * omega), np.cos(t[:, None] * omega)], -1)  # noqa: E731
    assert_derivatives(lambda t: pe.timestep_embedding(t, 4, scale=2.0), exact, np.float32([0.3, -2]))


# Errors

X, B = np.zeros((4, 3), np.float32), np.zeros((3, 5), np.float32)


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (ValueError, r"x must have shape \(..., 5\) for matrix \(5, 3\)", {"matrix": B.T}),
        (ValueError, r"x must have shape \(..., 3\) for matrix \(3, 5\)", {"x": 1.0}),
        (ValueError, r"matrix must have shape \(inputs, n\)", {"matrix": B[0]}),
        (TypeError, "matrix must be a float array", {"matrix": B.astype(np.int32)}),
        (TypeError, "x must be an integer or float array", {"x": X > 0}),
        (ValueError, "layout must be one of", {"layout": "sines"}),
        (TypeError, "dtype must be a float dtype", {"dtype": jnp.int32}),
    ],
)
def test_invalid_arguments_of_fourier_features_raise(error, match, change):
    with pytest.raises(error, match=f"^fourier_features: {match}"):
        pe.fourier_features(**{"x": X, "matrix": B} | change)


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (ValueError, "dim must be at least 0", {"dim": -1}),
        (ValueError, "max_period must keep every pair below 2²⁸ cycles", {"max_period": 1e-10, "dim": 64}),
        (ValueError, "max_period must be positive", {"max_period": -1}),
        (ValueError, "downscale_freq_shift must be below dim // 2 = 4", {"downscale_freq_shift": 4}),
        (TypeError, "downscale_freq_shift must be a number", {"downscale_freq_shift": "1"}),
        (ValueError, "scale must be positive", {"scale": 0}),
        (ValueError, "scale must be below 1.6e9", {"scale": 1.6e9}),
        (TypeError, "flip_sin_to_cos must be True or False", {"flip_sin_to_cos": 1}),
        (ValueError, "timesteps must fit into int32", {"timesteps": 2**31}),
        (TypeError, "dtype must be a float dtype", {"dtype": int}),
    ],
)
def test_invalid_arguments_of_timestep_embedding_raise(error, match, change):
    with pytest.raises(error, match=f"^timestep_embedding: {match}"):
        pe.timestep_embedding(**{"timesteps": 1, "dim": 8} | change)
