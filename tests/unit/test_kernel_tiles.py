"""Kernels of one's own: `posenc_jax.kernels` in Pallas's interpreters has the bits of the public functions.

tests/devices/compile/test_own_kernels.py compiles the same for TPUs and for an H200.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.quick import quick
from helpers.tiers import slow, tiered
from oracles import biases, encodings
from posenc_jax import kernels

RNG = np.random.default_rng(0)
INT32 = np.iinfo(np.int32)
EDGES = [3, 0, 1, -1, 65535, 65536, -65537, 2**24 + 1, INT32.max, INT32.max - 1, INT32.min, INT32.min + 1]
POSITIONS = np.concatenate([EDGES, RNG.integers(INT32.min, INT32.max, 52)]).astype(np.int32)
ROWS = len(POSITIONS)
OMEGA = np.float32([1.0, 0.3, -0.7, 1e-4, 0.0, 3e9])
SPECTRA = {
    "geometric": pe.geometric(128),
    "yarn": pe.yarn(64, 1e4, 4.0, original_max=4096),  # with an amplitude
    "array": OMEGA,
}
TPU = pltpu.InterpretParams()


def phase_constants(frequencies, layout=None):
    """In one program; op by op they are twenty."""
    return np.asarray(quick(lambda: kernels.phase_constants(frequencies, layout))())


def call(kernel, results, *operands, interpret=True):
    """One tile: the whole of each operand; results are (shape, dtype)."""
    shapes = [jax.ShapeDtypeStruct(*result) for result in results]
    return pl.pallas_call(kernel, shapes, interpret=interpret)(*operands)


def same_bits(got, want):
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype and got.shape == want.shape
    if jax.default_backend() != "cpu":  # a GPU chooses the bits of a NaN
        got, want = (np.where(np.isnan(x), x.dtype.type(np.nan), x) for x in (got, want))
    integers = f"u{got.dtype.itemsize}"
    np.testing.assert_array_equal(got.view(integers), want.view(integers))


def cos_sin(positions, constants, interpret=True):
    def kernel(positions, constants, cosine, sine):
        cosine[...], sine[...] = kernels.cos_sin(positions[...], constants[...])

    shape = positions.shape[0], constants.shape[1]
    return call(kernel, [(shape, jnp.float32)] * 2, positions, constants, interpret=interpret)


@pytest.mark.parametrize(
    ("name", "interpret"),
    [
        slow("geometric", True),
        ("yarn", True),
        ("array", True),
        ("yarn", TPU),
        slow("geometric", TPU),
        slow("array", TPU),
    ],
    ids=["geometric-generic", "yarn-generic", "array-generic", "yarn-tpu", "geometric-tpu", "array-tpu"],
)
def test_cosines_and_sines_are_those_of_the_encoding(name, interpret):
    cosine, sine = cos_sin(POSITIONS[:, None], phase_constants(SPECTRA[name]), interpret)
    table = pe.sinusoidal(POSITIONS, SPECTRA[name], layout="half")
    same_bits(np.concatenate([sine, cosine], 1), table)


def test_cosines_and_sines_are_right():
    f = pe.geometric(64, 500_000.0)
    sine, cosine = np.split(encodings.encode(POSITIONS, 64, 500_000.0, layout="half"), 2, axis=1)
    got = cos_sin(POSITIONS[:, None], phase_constants(f))
    for wave, want in zip(got, (cosine, sine), strict=True):
        assert_within(wave, want, 9e-8, against="mpmath at 60 digits")


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_column_for_each_feature(layout):
    f = SPECTRA["yarn"]
    order = np.tile(np.arange(32), 2) if layout == "half" else np.repeat(np.arange(32), 2)
    first = np.repeat([True, False], 32) if layout == "half" else np.tile([True, False], 32)
    cosine, sine = cos_sin(POSITIONS[:, None], phase_constants(f))
    wide = cos_sin(POSITIONS[:, None], phase_constants(f, layout))
    cosine, sine = (np.asarray(wave)[:, order] for wave in (cosine, sine))
    same_bits(wide[0], cosine)
    same_bits(wide[1], np.where(first, -sine, sine))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_position_of_several_coordinates(layout):
    f = pe.axial(64, 2, 100.0)
    grid = RNG.integers(INT32.min, INT32.max, (ROWS, 2)).astype(np.int32)
    x = RNG.normal(size=(ROWS, 64)).astype(np.float32)
    constants = phase_constants(dataclasses.replace(f, axes=None), layout)
    axes = np.tile(f.axes, 2) if layout == "half" else np.repeat(f.axes, 2)

    def kernel(x, positions, constants, out):
        out[...] = kernels.rotate(x[...], *kernels.cos_sin(positions[...], constants[...]), layout)

    (got,) = call(kernel, [(x.shape, x.dtype)], x, grid[:, axes], constants)
    same_bits(got, pe.rotary(x, grid, f, head_axis=None, layout=layout))


# Widths below, at and above a register of 128 lanes, and halves that are none
DIMS = tiered([2, 64, 96, 128, 192, 256], [192])
DTYPES = [slow(jnp.float32), jnp.bfloat16, slow(jnp.float16)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["half", slow("interleaved")])
@pytest.mark.parametrize("dim", DIMS)
def test_a_tile_turns_as_by_rotary(dim, layout, dtype):
    f = pe.geometric(dim, 500_000.0).with_attention_factor(1.25)
    x = RNG.normal(size=(ROWS, 3, dim)).astype(dtype)

    def kernel(x, positions, constants, out):
        cosine, sine = kernels.cos_sin(positions[...], constants[...])
        out[...] = kernels.rotate(x[...], cosine[:, None], sine[:, None], layout)

    constants = phase_constants(f, layout)
    (got,) = call(kernel, [(x.shape, dtype)], x, POSITIONS[:, None], constants)
    same_bits(got, pe.rotary(x, POSITIONS, f, head_axis=-2, layout=layout))


def turn_pairs(x1, x2, positions, constants, y1, y2):
    y1[...], y2[...] = kernels.rotate_pairs(x1[...], x2[...], *kernels.cos_sin(positions[...], constants[...]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", tiered(SPECTRA, ["yarn"]))
def test_pairs_turn_as_by_rotary(name, dtype):
    constants = phase_constants(SPECTRA[name])
    x = RNG.normal(size=(ROWS, 2 * constants.shape[1])).astype(dtype)
    halves = np.split(x, 2, axis=1)
    got = call(turn_pairs, [(halves[0].shape, dtype)] * 2, *halves, POSITIONS[:, None], constants)
    same_bits(np.concatenate(got, 1), pe.rotary(x, POSITIONS, SPECTRA[name], head_axis=None))


def test_zeros_keep_their_signs():
    x = np.array(np.meshgrid(*[[0.0, -0.0, 1.0, -1.0]] * 2), np.float32).reshape(2, -1).T
    positions = np.zeros(len(x), np.int32)

    def kernel(x, positions, constants, out):
        out[...] = kernels.rotate(x[...], *kernels.cos_sin(positions[...], constants[...]), "interleaved")

    (got,) = call(kernel, [(x.shape, x.dtype)], x, positions[:, None], phase_constants(2, "interleaved"))
    same_bits(got, pe.rotary(x, positions, 2, head_axis=None, layout="interleaved"))


def test_the_derivative_is_the_rotation_backward():
    f = pe.geometric(64)
    x, dy = RNG.normal(size=(2, ROWS, 64)).astype(np.float32)

    def kernel(dy, positions, constants, dx):
        cosine, sine = kernels.cos_sin(positions[...], constants[...])
        dx[...] = kernels.rotate(dy[...], cosine, -sine)

    (got,) = call(kernel, [(dy.shape, dy.dtype)], dy, POSITIONS[:, None], phase_constants(f, "half"))
    (want,) = jax.vjp(lambda x: pe.rotary(x, POSITIONS, f, head_axis=None), x)[1](dy)
    same_bits(got, want)


# Biases


def bias(function, queries, keys, *parameters):
    def kernel(queries, keys, *refs):
        *parameters, out = refs
        out[...] = function(queries[...], keys[...], *(parameter[0] for parameter in parameters))

    operands = queries[:, None], keys[None], *(np.float32([p]) for p in parameters)
    return call(kernel, [((len(queries), len(keys)), jnp.float32)], *operands)[0]


NEAR = np.arange(200, dtype=np.int32)
TILES = {"edges": (POSITIONS, POSITIONS[::-1].copy()), "near": (NEAR, NEAR[::2] + 40), "far": (NEAR, INT32.max - NEAR)}


@pytest.mark.parametrize("name", tiered(TILES, ["edges", "near"]))
def test_alibi_has_the_bits_of_the_public_function(name):
    queries, keys = TILES[name]
    slope = np.float32(0.3)
    got = bias(kernels.alibi, queries, keys, slope)
    same_bits(got, np.asarray(pe.alibi(queries, keys, slope[None]))[0])
    want = biases.alibi(biases.tile(queries, keys), slope)[0]
    assert_within(got, want, 1.2e-7 * np.abs(want), against="float64")


PARAMETERS = [(0.3, 0.7), (1.7, 1.9), (1.0, 2.0), (0.01, 1e-6), (3.0, 1.0)]


@pytest.mark.parametrize("parameters", tiered(PARAMETERS, [(0.3, 0.7)]))
@pytest.mark.parametrize("name", tiered(TILES, ["edges"]))
def test_kerple_is_within_its_bounds(name, parameters):
    queries, keys = TILES[name]
    scale, second = np.float32(parameters)
    distance = biases.tile(queries, keys)
    functions = [
        (kernels.kerple_log, pe.kerple_log, biases.kerple_log, 3e-7),
        (kernels.kerple_power, pe.kerple_power, biases.kerple_power, 1e-5),
    ]
    for function, public, exact, bound in functions:
        got, want = bias(function, queries, keys, scale, second), exact(distance, scale, second)[0]
        assert_within(got, want, (bound + 2e-7) * np.abs(want), against="float64")
        theirs = np.asarray(public(queries, keys, scale[None], second[None]), np.float64)[0]
        assert_within(got, theirs, bound * np.abs(theirs), against="the public function")


def test_the_derivative_of_a_rotation_outside_a_kernel():
    x = np.arange(1, 9, dtype=np.float32).reshape(2, 4)

    @jax.jit
    def gradients(x):
        loss = lambda x, layout: (kernels.rotate(x, *rotation(4, layout), layout) ** 3).sum()  # noqa: E731
        pairs = lambda x: sum((y**3).sum() for y in kernels.rotate_pairs(x[:, :2], x[:, 2:], *rotation(4)))  # noqa: E731
        return jax.grad(loss)(x, "half"), jax.grad(loss)(x, "interleaved"), jax.grad(pairs)(x)

    def rotation(*spectrum):
        return kernels.cos_sin(jnp.array([[3], [5]]), kernels.phase_constants(*spectrum))

    def expected(first, second):  # of Σ(R x)³, 3 Rᵀ(R x)²
        phasor = np.exp(1j * np.array([[3], [5]]) * [1, 0.01])
        y = phasor * (first + 1j * second)
        back = np.conj(phasor) * (3 * (y.real**2 + 1j * y.imag**2))
        return back.real, back.imag

    half, interleaved, pairs = gradients(x)
    np.testing.assert_allclose(half, np.concatenate(expected(x[:, :2], x[:, 2:]), -1), rtol=1e-5)
    np.testing.assert_allclose(interleaved.reshape(2, 2, 2), np.stack(expected(x[:, ::2], x[:, 1::2]), -1), rtol=1e-5)
    np.testing.assert_array_equal(pairs, half)


def test_the_derivative_of_kerple_by_its_parameters():
    i, j, parameters = jnp.array([[10]]), jnp.array([[3]]), np.float32([0.5, 0.3])
    got = jax.jit(jax.grad(lambda p: kernels.kerple_log(i, j, *p).sum()))(parameters)
    np.testing.assert_allclose(got, [-np.log1p(7 * 0.3), -0.5 * 7 / (1 + 7 * 0.3)], rtol=1e-6)


def test_kerple_of_products_beyond_float32():
    np.testing.assert_array_equal(bias(kernels.kerple_log, NEAR[:1], NEAR[2:3], 1.0, 3e38), [[-np.inf]])


def test_parameters_of_several_heads():
    queries, keys = NEAR[:16], NEAR[:8]
    slopes = np.float32([0.5, 0.1, 0.02])
    got = jax.jit(kernels.alibi)(queries[None, :, None], keys[None, None], slopes[:, None, None])
    same_bits(got, pe.alibi(queries, keys, slopes))


# Mosaic GPU


def test_the_interpreter_of_mosaic_gpu():
    """Mosaic GPU loads each row in a layout and broadcasts it to a tile; see docs/kernels.md."""
    plgpu = pytest.importorskip("jax.experimental.pallas.mosaic_gpu")
    if jax.__version_info__ < (0, 12):
        pytest.skip("another interface before JAX 0.12")
    shape, layout = (64, 32), plgpu.Layout.WGMMA
    f = SPECTRA["yarn"]
    x = RNG.normal(size=(64, 64)).astype(np.float32)

    def tile(ref, axis=None):
        if axis is None:
            return plgpu.load(ref, layout=layout, optimized=False)
        along = plgpu.load(ref, layout=layout.reduce(1 - axis), optimized=False)
        return plgpu.layout_cast(jax.lax.broadcast_in_dim(along, shape, (axis,)), layout)

    def kernel(x1, x2, positions, constants, y1, y2, score):
        place = tile(positions, 0)
        cosine, sine = kernels.cos_sin(place, [tile(constants.at[i], 1) for i in range(6)])
        y1[...], y2[...] = kernels.rotate_pairs(tile(x1), tile(x2), cosine, sine)
        score[...] = kernels.alibi(place, tile(constants.at[0], 1), jnp.float32(0.5))

    out = [jax.ShapeDtypeStruct(shape, jnp.float32)] * 3
    run = plgpu.kernel(kernel, out_type=out, interpret=plgpu.InterpretGPUParams())
    constants = phase_constants(f)
    y1, y2, score = run(x[:, :32], x[:, 32:], POSITIONS[:64], constants)
    same_bits(np.concatenate([y1, y2], 1), pe.rotary(x, POSITIONS[:64], f, head_axis=None))
    same_bits(score, np.asarray(pe.alibi(POSITIONS[:64], constants[0], np.float32([0.5])))[0])


# Errors

CONSTANTS, PLACES, TILE = np.zeros((6, 4), np.int32), np.zeros((4, 1), np.int32), np.zeros((4, 4), np.float32)


@pytest.mark.parametrize(
    ("function", "arguments", "error", "match"),
    [
        (kernels.phase_constants, ("x",), TypeError, "phase_constants: frequencies must be"),
        (
            kernels.phase_constants,
            (pe.axial(8, 2),),
            ValueError,
            "phase_constants: frequencies must have one axis, got 2",
        ),
        (
            kernels.phase_constants,
            (pe.geometric(8).with_precision("float32"),),
            ValueError,
            "precision 'exact' in kernels",
        ),
        (kernels.phase_constants, (7, "half"), ValueError, "even dim"),
        (kernels.phase_constants, (8, "pairs"), ValueError, "phase_constants: layout must be one of"),
        (kernels.cos_sin, (TILE, CONSTANTS), TypeError, "cos_sin: positions must be an int32 tile, got float32"),
        (kernels.cos_sin, (PLACES, CONSTANTS[:5]), ValueError, "cos_sin: constants must have 6 rows"),
        (
            kernels.cos_sin,
            (PLACES, None),
            TypeError,
            "cos_sin: constants must be an int32 array, .*, got NoneType None",
        ),
        (kernels.cos_sin, (PLACES, np.float32(CONSTANTS)), TypeError, "cos_sin: constants must be an int32 array"),
        (kernels.cos_sin, (PLACES, np.array(3, np.int32)), ValueError, "constants must have 6 rows, .*, got 0"),
        (kernels.rotate, ([1.0], TILE, TILE), TypeError, "rotate: x must be a float tile, got list"),
        (
            kernels.rotate,
            (TILE, TILE.astype(np.float16), TILE),
            TypeError,
            "rotate: cosine must be a float32 tile, got",
        ),
        (
            kernels.rotate,
            (TILE[:, :0], TILE, TILE),
            ValueError,
            r"x must have an even number of features, got shape \(4, 0\)",
        ),
        (
            kernels.rotate,
            (TILE, TILE, TILE[:3]),
            ValueError,
            r"sine of shape \(3, 4\) must broadcast to x, shape \(4, 4\)",
        ),
        (kernels.rotate_pairs, (TILE, TILE, TILE.astype(np.float16), TILE), TypeError, "cosine must be a float32 tile"),
        (kernels.rotate, (PLACES, TILE, TILE), TypeError, "rotate: x must be a float tile, got int32"),
        (kernels.rotate, (TILE[:, :3], TILE, TILE), ValueError, "rotate: x must have an even number"),
        (kernels.rotate, (TILE, TILE[:, :2], TILE), ValueError, "rotate: cosine must have 4 columns"),
        (kernels.rotate, (TILE, TILE, TILE, "pairs"), ValueError, "rotate: layout must be one of"),
        (kernels.rotate_pairs, (PLACES, TILE, TILE, TILE), TypeError, "rotate_pairs: x1 must be a float tile"),
        (
            kernels.rotate_pairs,
            (TILE, TILE.astype(np.float16), TILE, TILE),
            TypeError,
            "x2 must be a float32 tile, got float16",
        ),
        (kernels.rotate_pairs, (TILE, TILE, TILE, TILE[:1]), ValueError, "sine must have the shape of x1"),
        (kernels.alibi, (TILE, PLACES, np.float32(1)), TypeError, "alibi: query_positions must be an int32 tile"),
        (kernels.kerple_log, (PLACES, TILE, *np.ones(2, np.float32)), TypeError, "kerple_log: key_positions must be"),
        (kernels.kerple_power, (None, PLACES, *np.ones(2, np.float32)), TypeError, "kerple_power: query_positions"),
    ],
)
def test_errors(function, arguments, error, match):
    with pytest.raises(error, match=match):
        function(*arguments)


def test_phase_constants_have_no_derivative():
    loss = lambda w: kernels.cos_sin(PLACES, kernels.phase_constants(w))[0].sum()  # noqa: E731
    with pytest.raises(ValueError, match="^phase_constants: frequencies must pass lax.stop_gradient"):
        jax.eval_shape(jax.grad(loss), np.ones(4, np.float32))
    gradient = quick(jax.grad(lambda w: loss(jax.lax.stop_gradient(w))))
    np.testing.assert_array_equal(gradient(np.ones(4, np.float32)), np.zeros(4))


@pytest.mark.slow
def test_phase_constants_are_computed_under_jit():
    f, omega = functools.partial(kernels.phase_constants, layout="half"), OMEGA
    if jax.default_backend() != "cpu":  # above 2³¹ there is no increment, and a GPU answers as it likes
        omega = OMEGA[OMEGA < 2.0**31]
    np.testing.assert_array_equal(jax.jit(f)(omega), f(omega))
    np.testing.assert_array_equal(jax.jit(lambda: f(8))(), f(8))
