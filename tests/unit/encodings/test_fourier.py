"""Fourier features and timesteps, against exact arithmetic and recorded values."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.quick import quick
from helpers.tiers import tiered
from oracles import fourier, recorded
from oracles.fourier import fourier_features as exact
from oracles.fourier import timestep_embedding

RNG = np.random.default_rng(0)
DIFFUSERS = recorded.cases("diffusers_timesteps")
features = quick(pe.fourier_features)


def bound(inputs):
    return 9e-8 + 6e-9 * inputs


@pytest.mark.parametrize("inputs", tiered([1, 2, 3, 16, 64], [1, 3, 64]))
@pytest.mark.parametrize(
    ("x_scale", "b_scale"),
    [(1, 1), (1, 10), (1, 4e6), (1e-3, 4e6), (1e4, 1e3), (6e8, 4e6), (6e8, 1e-12), (1e-30, 1e5), (1e-10, 6e7)],
)
def test_accuracy(inputs, x_scale, b_scale):
    x = (RNG.normal(size=(12, inputs)) * x_scale).clip(-2e9, 2e9).astype(np.float32)
    matrix = (RNG.normal(size=(inputs, 9)) * b_scale).astype(np.float32)
    assert_within(features(x, matrix), exact(x, matrix), bound(inputs), against="exact products, then mpmath")


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("frequency", [0.5, 1.5, 2.5, 6441807.5, 0.25, 1.0, 3.0, 2.0**-31, 1.5 - 2.0**-20])
def test_frequencies_at_and_beside_half_a_turn(frequency, sign):
    x = np.float32([[0.25], [-0.3], [0.49999997], [1.5], [7.3], [-1e5], [3.0], [2.0**31 - 128]])
    matrix = np.float32([[sign * frequency]])
    np.testing.assert_allclose(features(x, matrix), exact(x, matrix), rtol=0, atol=bound(1))


def test_integers_and_narrow_floats():
    x = RNG.integers(-(2**31), 2**31, (20, 3)).astype(np.int32)
    matrix = RNG.normal(size=(3, 5)).astype(np.float32)
    half, short = x.astype(jnp.bfloat16) / np.array(2**31, jnp.bfloat16), matrix.astype(np.float16)

    @jax.jit
    def each(x, matrix, half, short):
        rounded = pe.fourier_features(x, matrix, dtype=jnp.bfloat16)
        return pe.fourier_features(x, matrix), pe.fourier_features(half, short), rounded

    whole, narrow, rounded = map(np.asarray, each(x, matrix, half, short))
    np.testing.assert_allclose(whole, exact(x, matrix), rtol=0, atol=bound(3))
    want = exact(half.astype(np.float32), short.astype(np.float32))
    np.testing.assert_allclose(narrow, want, rtol=0, atol=bound(3))
    assert rounded.dtype == jnp.bfloat16
    np.testing.assert_array_equal(rounded, whole.astype(jnp.bfloat16))


def test_float64_counts_where_it_can_be_held():
    with jax.enable_x64(True):
        x, matrix = RNG.normal(size=(6, 2)) * 1e5, RNG.normal(size=(2, 4)) * 1e2
        np.testing.assert_allclose(features(x, matrix), exact(x, matrix), rtol=0, atol=bound(2))


@pytest.mark.parametrize("count", tiered([1, 4, 10, 16], [4, 16]))
def test_octaves_of_nerf(count):
    x = RNG.uniform(-1, 1, (11, 3)).astype(np.float32)
    matrix = np.kron(np.eye(3), 2.0 ** np.arange(-1, count - 1)).astype(np.float32)
    got = quick(functools.partial(pe.fourier_features, layout="interleaved"))(x, matrix)
    np.testing.assert_allclose(got, fourier.nerf(x, count), rtol=0, atol=bound(1))


@pytest.mark.parametrize("shape", tiered([(), (4,), (2, 3), (0,), (2, 0)], [(2, 3), (0,)]))
def test_shapes_and_layouts(shape):
    x = RNG.normal(size=(*shape, 3)).astype(np.float32)
    matrix = RNG.normal(size=(3, 5)).astype(np.float32)
    layouts = "half", "interleaved"

    @quick
    def each(x, matrix):
        empty = pe.fourier_features(x, matrix[:, :0])
        return [pe.fourier_features(x, matrix, layout=layout) for layout in layouts], empty

    got, empty = each(x, matrix)
    for layout, of_layout in zip(layouts, got, strict=True):
        assert of_layout.shape == (*shape, 10) and of_layout.dtype == jnp.float32
        want = exact(x.reshape(-1, 3), matrix, layout).reshape(of_layout.shape)
        assert_within(of_layout, want, bound(3), against=f"{layout}: the exact sum of products, then mpmath")
    assert empty.shape == (*shape, 0)


@pytest.mark.parametrize("apart", tiered([False, True], [False]))
def test_the_same_bits_in_every_program(apart):
    x = RNG.normal(size=(64, 3)).astype(np.float32)
    matrix = (RNG.normal(size=(3, 16)) * 10).astype(np.float32)
    whole = np.asarray(pe.fourier_features(x, matrix))
    shuffled = np.array([2, 0, 1])

    def by_columns(x, b):
        columns = jax.vmap(lambda column: pe.fourier_features(x, column[:, None]), in_axes=1, out_axes=1)(b)
        return jnp.concatenate([columns[..., 0], columns[..., 1]], 1)

    programs = {
        "jit": pe.fourier_features,
        "known matrix": lambda x, _: pe.fourier_features(x, matrix),
        "vmap": jax.vmap(pe.fourier_features, (0, None)),
        "columns": by_columns,
        "shuffled": lambda x, b: pe.fourier_features(x[:, shuffled], b[shuffled]),
        "scan": lambda x, b: jax.lax.scan(lambda c, row: (c, pe.fourier_features(row, b)), None, x)[1],
    }
    if apart:
        found = {name: jax.jit(f)(x, matrix) for name, f in programs.items()}
    else:
        found = jax.jit(lambda *arguments: {name: f(*arguments) for name, f in programs.items()})(x, matrix)
    for name, got in found.items():
        np.testing.assert_array_equal(got, whole, name)
    np.testing.assert_array_equal(pe.fourier_features(x[7], matrix), whole[7])


@pytest.mark.parametrize("layout", tiered(["half", "interleaved"], ["interleaved"]))
def test_derivatives_in_both(layout):
    x = RNG.uniform(-1, 1, (4, 3)).astype(np.float32)
    matrix = RNG.normal(size=(3, 5)).astype(np.float32)
    weights = RNG.normal(size=(4, 10)).astype(np.float32)
    whole_numbers = np.arange(6, dtype=np.int32).reshape(2, 3)
    one, other = (
        (RNG.normal(size=(4, 3)).astype(np.float32), RNG.normal(size=(3, 5)).astype(np.float32)) for _ in range(2)
    )

    @quick
    def slopes(x, matrix, weights, whole_numbers, one, other):
        f = lambda x, b: pe.fourier_features(x, b, layout=layout)  # noqa: E731
        forward = lambda x, b: jax.jvp(f, (x, b), one)[1]  # noqa: E731
        reverse = jax.grad(lambda x, b: jnp.sum(weights * f(x, b)), (0, 1))
        dot = lambda v, direction: sum(jnp.vdot(a, b) for a, b in zip(v, direction, strict=True))  # noqa: E731
        along = lambda x, b: dot(reverse(x, b), one)  # noqa: E731
        by_forward = jax.grad(lambda x, b: jnp.sum(weights * forward(x, b)), (0, 1))
        return {
            "reverse": reverse(x, matrix),
            "reverse, whole numbers": jax.grad(lambda b: jnp.sum(pe.fourier_features(whole_numbers, b)))(matrix),
            "forward": forward(x, matrix),
            "forward of forward": jax.jvp(forward, (x, matrix), other)[1],
            "forward of reverse": dot(jax.jvp(reverse, (x, matrix), other)[1], one),
            "reverse of forward": dot(by_forward(x, matrix), other),
            "reverse of reverse": dot(jax.grad(along, (0, 1))(x, matrix), other),
        }

    got = slopes(x, matrix, weights, whole_numbers, one, other)
    for mine, want in zip(got["reverse"], fourier.pulled_back(x, matrix, weights, layout), strict=True):
        assert_within(mine, want, 3e-5, against="the derivative in float64")
    _, want = fourier.pulled_back(whole_numbers, matrix, np.ones((2, 10)))
    assert_within(got["reverse, whole numbers"], want, 2e-4, against="the derivative in float64")
    first, second = fourier.along(x, matrix, one, other, layout)
    assert_within(got["forward"], first, 1e-4, against="the derivative along a direction, in float64")
    assert_within(got["forward of forward"], second, 2e-3, against="the second derivative, in float64")
    for name in ("forward of reverse", "reverse of forward", "reverse of reverse"):
        assert_within(got[name], np.vdot(weights, second), 2e-3, against=f"{name}: the second derivative, in float64")


def test_what_is_out_of_range_is_nan_and_nothing_else_is():
    x = np.float32([[0, 1], [np.nan, 1], [0, np.inf], [2**31, 0], [-(2.0**31), 0]])
    matrix = np.float32([[1, 0.5, 2.0**28, np.nan], [1, 0.5, 0, 1]])
    nan = np.isnan(features(x, matrix))
    rows, columns = np.array([0, 1, 1, 1, 0], bool), np.array([0, 0, 1, 1] * 2, bool)
    np.testing.assert_array_equal(nan, rows[:, None] | columns)
    wide = features(np.array([[1, 1], [2**32 - 1, 0]], np.uint32), matrix[:, :2])
    np.testing.assert_array_equal(np.isnan(wide).any(1), [False, True])


def test_neither_a_matrix_product_nor_a_table_for_each_input():
    jaxpr = str(jax.make_jaxpr(pe.fourier_features)(*(np.zeros(shape, np.float32) for shape in ((5, 3), (3, 7)))))
    assert "dot_general" not in jaxpr
    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((2048, 16), (16, 32))]
    compiled = features.lower(*shapes).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= 2048 * 64 * 4 + 2**16  # that of the features at most


TIMESTEPS = [
    (8, {}),
    (320, {"flip": True, "shift": 0}),
    (7, {"flip": True}),
    (9, {"shift": 0.5, "scale": 1.5, "period": 500}),
    (64, {"shift": 0, "scale": 1000.0}),
    (6, {"shift": -2.25, "scale": 0.1}),
    (2, {}),
    (3, {"shift": 0, "scale": 3}),
]
NAMES = {"flip": "flip_sin_to_cos", "shift": "downscale_freq_shift", "period": "max_period"}


def test_timesteps():
    timesteps = np.float32([0, 0.5, 1, 17.25, 999, 1e6 + 0.5, -3]), np.array([0, 1, 999, 2**31 - 1, -5], np.int32)

    @quick
    def embed(timesteps):
        keywords = [{NAMES.get(k, k): v for k, v in arguments.items()} for _, arguments in TIMESTEPS]
        return [
            [pe.timestep_embedding(t, dim, **settings) for t in timesteps]
            for (dim, _), settings in zip(TIMESTEPS, keywords, strict=True)
        ]

    for (dim, arguments), embedded in zip(TIMESTEPS, embed(timesteps), strict=True):
        for t, got in zip(timesteps, embedded, strict=True):
            waves, zeros = timestep_embedding(t, dim, **arguments)
            assert got.shape == (len(t), dim) and got.dtype == jnp.float32
            got = np.asarray(got)
            against = f"mpmath at 60 digits: {dim} features, {arguments}"
            assert_within(got[:, : dim // 2 * 2], waves, 9e-8, against=against)
            np.testing.assert_array_equal(got[:, dim // 2 * 2 :], zeros, against)


def test_timesteps_of_diffusers():
    cases = [(dict(case["arguments"]), np.float32(case["timesteps"]), case["values"]) for case in DIFFUSERS]

    @quick
    def embed(timesteps):
        return [
            pe.timestep_embedding(t, **{"dim" if k == "embedding_dim" else k: v for k, v in keywords.items()})
            for (keywords, *_), t in zip(cases, timesteps, strict=True)
        ]

    for (keywords, t, want), got in zip(cases, embed([t for _, t, _ in cases]), strict=True):
        # The reference rounds its frequencies, of magnitude 1 or less, and their products to float32.
        tolerance = 2e-7 + 2e-7 * keywords.get("scale", 1) * np.abs(t)[:, None]
        assert_within(got, np.array(want), tolerance, against=f"diffusers, recorded: {keywords}")


@pytest.mark.slow
def test_timesteps_of_any_shape_and_dtype():
    timesteps = (3, 0.5, np.float32(0.5), np.ones((2, 3), np.float32), np.zeros((0,), np.int32))
    embed = functools.partial(pe.timestep_embedding, dim=10, flip_sin_to_cos=True, dtype=jnp.bfloat16)
    assert embed(3).shape == (10,)  # called by itself
    embedded = quick(lambda each: [embed(t) for t in each])(timesteps)
    for t, got in zip(timesteps, embedded, strict=True):
        assert got.shape == (*np.shape(t), 10) and got.dtype == jnp.bfloat16
    t = np.float32([0.25, 700.5])

    @jax.jit
    def each(t):
        return {
            "endpoint": (pe.timestep_embedding(t, 8), pe.sinusoidal(t, pe.geometric(8, endpoint=True), layout="half")),
            "no shift": (pe.timestep_embedding(t, 8, downscale_freq_shift=0), pe.sinusoidal(t, 8, layout="half")),
            "vmap": (jax.vmap(lambda t: pe.timestep_embedding(t, 9))(t), pe.timestep_embedding(t, 9)),
        }

    for name, (got, want) in each(t).items():
        np.testing.assert_array_equal(got, want, name)

    @quick
    def slope_and_nan(t, nan):
        return jax.jacobian(lambda t: pe.timestep_embedding(t, 4, scale=2.0))(t), pe.timestep_embedding(nan, 4)

    slope, of_nan = slope_and_nan(np.float32(0.3), np.float32([np.nan, 1]))
    np.testing.assert_allclose(
        slope, [2 * np.cos(0.6), 2e-4, -2 * np.sin(0.6), -2e-4 * np.sin(6e-5)], rtol=0, atol=3e-7
    )
    assert np.isnan(of_nan).all(1).tolist() == [True, False]


X, B = np.zeros((4, 3), np.float32), np.zeros((3, 5), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: pe.fourier_features(X, B.T), ValueError, r"fourier_features: x must have shape \(..., 5\) for matrix \(5, 3\), got \(4, 3\)"),
        (lambda: pe.fourier_features(1.0, B), ValueError, r"fourier_features: x must have shape \(..., 3\) for matrix \(3, 5\), got \(\)"),
        (lambda: pe.fourier_features(X, B[0]), ValueError, r"fourier_features: matrix must have shape \(inputs, n\), got \(5,\)"),
        (lambda: pe.fourier_features(X, B.astype(np.int32)), TypeError, "fourier_features: matrix must be a float array, got int32"),
        (lambda: pe.fourier_features(X > 0, B), TypeError, "fourier_features: x must be an integer or float array, got bool"),
        (lambda: pe.fourier_features(X, B.tolist()), TypeError, "fourier_features: matrix must be a float array, got list"),
        (lambda: pe.fourier_features(X, B, layout="sines"), ValueError, "fourier_features: layout must be one of .* got 'sines'"),  # type: ignore
        (lambda: pe.fourier_features(X, B, dtype=jnp.int32), TypeError, "fourier_features: dtype must be a float dtype, got int32"),
        (lambda: pe.timestep_embedding(1, -1), ValueError, "timestep_embedding: dim must be at least 0, got -1"),
        (lambda: pe.timestep_embedding(1, 64, max_period=1e-10), ValueError, "timestep_embedding: max_period must keep every pair below 2²⁸ cycles"),
        (lambda: pe.timestep_embedding(1, 8.0), TypeError, "timestep_embedding: dim must be an integer, got float 8.0"),  # type: ignore
        (lambda: pe.timestep_embedding(1, 8, downscale_freq_shift=4), ValueError, r"timestep_embedding: downscale_freq_shift must be below dim // 2 = 4, got 4.0"),
        (lambda: pe.timestep_embedding(1, 4, downscale_freq_shift=2), ValueError, r"timestep_embedding: downscale_freq_shift must be below dim // 2 = 2, got 2.0"),
        (lambda: pe.timestep_embedding(1, 8, scale=0), ValueError, "timestep_embedding: scale must be positive, got 0.0"),
        (lambda: pe.timestep_embedding(1, 8, scale=1.6e9), ValueError, "timestep_embedding: scale must be below 1.6e9, got 1600000000.0"),
        (lambda: pe.timestep_embedding(1, 8, scale=1e10), ValueError, "timestep_embedding: scale must be below 1.6e9, got 10000000000.0"),
        (lambda: pe.timestep_embedding(1, 8, max_period=-1), ValueError, "timestep_embedding: max_period must be positive, got -1.0"),
        (lambda: pe.timestep_embedding(1, 8, flip_sin_to_cos=1), TypeError, "timestep_embedding: flip_sin_to_cos must be True or False, got int 1"),  # type: ignore
        (lambda: pe.timestep_embedding("1", 8), TypeError, "timestep_embedding: timesteps must be an integer or float array, got str '1'"),  # type: ignore
        (lambda: pe.timestep_embedding(2**31, 8), ValueError, "timestep_embedding: timesteps must fit into int32, got 2147483648"),
        (lambda: pe.timestep_embedding(1, 8, dtype=int), TypeError, "timestep_embedding: dtype must be a float dtype"),
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
