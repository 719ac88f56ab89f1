"""`posenc_jax.kernels`, functions of tiles for kernels that users write, in Pallas's interpreters.

- `cos_sin`, `rotate`, `rotate_pairs` and `alibi` have the bits of the public functions, at any int32 position.
- The relative error of `kerple_log` beside the public function is at most 3e-7, that of `kerple_power` 1e-5.
- Errors name the function and the argument, and say what it must be.

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
from oracles import biases, encodings, rotations
from posenc_jax import kernels

RNG = np.random.default_rng(0)
INT32 = np.iinfo(np.int32)
EDGES = [3, 0, 1, -1, 65535, 65536, -65537, 2**24 + 1, INT32.max, INT32.max - 1, INT32.min, INT32.min + 1]
POSITIONS = np.concatenate([EDGES, RNG.integers(INT32.min, INT32.max, 52)]).astype(np.int32)
ROWS = len(POSITIONS)
YARN = pe.yarn(64, 1e4, 4.0, original_max=4096)  # with an amplitude
OMEGA = np.float32([1.0, 0.3, -0.7, 1e-4, 0.0, 2.1e9, 3e9])


def call(kernel, results, *operands, interpret=True):
    """Runs a kernel on one tile, the whole of each operand; `results` has the (shape, dtype) of each output."""
    shapes = [jax.ShapeDtypeStruct(*result) for result in results]
    return pl.pallas_call(kernel, shapes, interpret=interpret)(*operands)


def assert_same_bits(got, want):
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype
    if jax.default_backend() != "cpu":  # a GPU chooses the bits of a NaN
        got, want = (np.where(np.isnan(x), x.dtype.type(np.nan), x) for x in (got, want))
    np.testing.assert_array_equal(*(x.view(f"u{x.dtype.itemsize}") for x in (got, want)))


def cos_sin(positions, frequencies, interpret=True):
    """`kernels.cos_sin` in a kernel, for positions (rows, 1) or (rows, pairs)."""

    def kernel(positions, constants, cosine, sine):
        cosine[...], sine[...] = kernels.cos_sin(positions[...], constants[...])

    constants = kernels.phase_constants(frequencies)
    shape = positions.shape[0], constants.shape[1]
    return call(kernel, [(shape, jnp.float32)] * 2, positions, constants, interpret=interpret)


def rotate(x, positions, frequencies, layout):
    """`kernels.rotate` in a kernel, for a tile x (rows, heads, dim)."""

    def kernel(x, positions, constants, out):
        cosine, sine = kernels.cos_sin(positions[...], constants[...])
        out[...] = kernels.rotate(x[...], cosine[:, None], sine[:, None], layout)

    return call(kernel, [(x.shape, x.dtype)], x, positions[:, None], kernels.phase_constants(frequencies, layout))[0]


def assert_same_rotation(x, positions, frequencies, layout):
    public = functools.partial(pe.rotary, frequencies=frequencies, head_axis=-2, layout=layout)
    assert_same_bits(*jax.jit(lambda x, i: (rotate(x, i, frequencies, layout), public(x, i)))(x, positions))


# Cosines and sines


@pytest.mark.parametrize(
    ("frequencies", "interpret"),
    [(OMEGA, True), (YARN, True), (OMEGA, pltpu.InterpretParams())],
    ids=["array-generic", "yarn-generic", "array-tpu"],
)
def test_cosines_and_sines_are_those_of_the_encoding(frequencies, interpret):
    """The kernel and the encoding are compiled as separate programs."""
    cosine, sine = jax.jit(functools.partial(cos_sin, frequencies=frequencies, interpret=interpret))(POSITIONS[:, None])
    assert_same_bits(np.concatenate([sine, cosine], 1), pe.sinusoidal(POSITIONS, frequencies, layout="half"))


def test_cosines_and_sines_are_within_9e_minus_8_of_mpmath():
    got = jax.jit(functools.partial(cos_sin, frequencies=pe.geometric(64, 500_000.0)))(POSITIONS[:, None])
    sine, cosine = np.split(encodings.encode(POSITIONS, 64, 500_000.0, layout="half"), 2, axis=1)
    for values, want in zip(got, (cosine, sine), strict=True):
        assert_within(values, want, 9e-8, against="mpmath at 60 digits")


def test_each_column_may_have_a_coordinate_of_its_own():
    f, grid = pe.axial(64, 2, 100.0), np.stack([POSITIONS, POSITIONS[::-1]], 1)
    of_columns = functools.partial(cos_sin, frequencies=dataclasses.replace(f, axes=None))
    (cosine, sine), want = jax.jit(lambda i: (of_columns(i[:, f.axes]), pe.sinusoidal(i, f, layout="half")))(grid)
    assert_same_bits(np.concatenate([sine, cosine], 1), want)


def test_constants_may_be_six_tiles():
    """Mosaic GPU does not broadcast a row of constants by itself, so a kernel for it passes six whole tiles."""

    @jax.jit
    def both(positions):
        constants = kernels.phase_constants(4)
        tiles = [jnp.broadcast_to(row, positions.shape) for row in constants]
        return [kernels.cos_sin(positions, each) for each in (tiles, constants)]

    jax.tree.map(assert_same_bits, *both(np.tile(POSITIONS[:8, None], 2)))


def test_phase_constants_have_no_derivative():
    """A gradient by frequencies raises, unless they pass `lax.stop_gradient`: then it is zero."""
    positions = np.zeros((4, 1), np.int32)
    loss = lambda w: kernels.cos_sin(positions, kernels.phase_constants(w))[0].sum()  # noqa: E731
    with pytest.raises(ValueError, match="^phase_constants: frequencies must pass lax.stop_gradient"):
        jax.eval_shape(jax.grad(loss), np.ones(4, np.float32))
    gradient = jax.jit(jax.grad(lambda w: loss(jax.lax.stop_gradient(w))))
    np.testing.assert_array_equal(gradient(np.ones(4, np.float32)), np.zeros(4))


# Rotations


@pytest.mark.parametrize(
    ("dim", "dtype", "layout"),
    [
        (2, np.float32, "half"),
        (96, jnp.bfloat16, "interleaved"),
        *[(192, np.float16, layout) for layout in ("half", "interleaved")],
    ],
)
def test_a_tile_rotates_as_by_rotary(dim, dtype, layout):
    """Widths are below and above the 128 lanes of a TPU's register; half of 192 is no multiple of 128."""
    f = pe.geometric(dim, 500_000.0).with_attention_factor(1.25)
    x = RNG.normal(size=(ROWS, 3, dim)).astype(dtype)
    assert_same_rotation(x, POSITIONS, f, layout)


def test_zeros_keep_their_signs():
    x = np.array(np.meshgrid(*[[0.0, -0.0, 1.0, -1.0]] * 2), np.float32).reshape(2, -1).T[:, None]
    assert_same_rotation(x, np.zeros(len(x), np.int32), 2, "interleaved")


def test_pairs_rotate_as_by_rotary():
    x = RNG.normal(size=(ROWS, 64)).astype(jnp.bfloat16)

    def kernel(x1, x2, positions, constants, y1, y2):
        y1[...], y2[...] = kernels.rotate_pairs(x1[...], x2[...], *kernels.cos_sin(positions[...], constants[...]))

    @jax.jit
    def both(x, positions):
        halves, constants = jnp.split(x, 2, axis=1), kernels.phase_constants(YARN)
        got = call(kernel, [(halves[0].shape, x.dtype)] * 2, *halves, positions[:, None], constants)
        return jnp.concatenate(got, 1), pe.rotary(x, positions, YARN, head_axis=None)

    assert_same_bits(*both(x, POSITIONS))


@pytest.mark.parametrize("layout", ["half", "interleaved", "pairs"])
def test_the_derivative_of_a_rotation(layout):
    """Outside a kernel: the gradient of w · R x by x is Rᵀ w, w rotated by the negative angles."""
    x, w = RNG.normal(size=(2, 2, 4)).astype(np.float32)
    positions, pairs = np.int32([[3], [5]]), layout == "pairs"

    def product(x):
        values = kernels.cos_sin(positions, kernels.phase_constants(4, None if pairs else layout))
        y = kernels.rotate_pairs(x[:, :2], x[:, 2:], *values) if pairs else [kernels.rotate(x, *values, layout)]
        return jnp.vdot(w, jnp.concatenate(y, 1))

    angles = positions * np.array([1, 0.01])
    want = rotations.rotate(np.float64(w), -np.sin(angles), np.cos(angles), "half" if pairs else layout)
    np.testing.assert_allclose(jax.jit(jax.grad(product))(x), want, rtol=1e-5)


# Biases


def bias(function, queries, keys, *parameters):
    """The bias by this function of tiles in a kernel; each parameter is a scalar."""

    def kernel(queries, keys, *refs):
        *parameters, out = refs
        out[...] = function(queries[...], keys[...], *(parameter[0] for parameter in parameters))

    operands = queries[:, None], keys[None], *(p[None] for p in parameters)
    return call(kernel, [((len(queries), len(keys)), jnp.float32)], *operands)[0]


@functools.cache
def beside(function, public):
    """A program of the bias by a kernel and of the bias of one head by the public function."""
    return jax.jit(lambda i, j, *p: (bias(function, i, j, *p), public(i, j, *(a[None] for a in p))[0]))


NEAR = np.arange(ROWS, dtype=np.int32)
TILES = {"edges": (POSITIONS, POSITIONS[::-1].copy()), "near": (3 * NEAR, 2 * NEAR + 40)}
# The function of tiles, the public function, the formula; and the relative bounds beside the last two.
FUNCTIONS = {
    "alibi": (kernels.alibi, pe.alibi, biases.alibi, 0, 1.2e-7),
    "kerple_log": (kernels.kerple_log, pe.kerple_log, biases.kerple_log, 3e-7, 5e-7),
    "kerple_power": (kernels.kerple_power, pe.kerple_power, biases.kerple_power, 1e-5, 1.02e-5),
}


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_bias_is_near_the_public_function(name, tile):
    function, public, formula, public_bound, formula_bound = FUNCTIONS[name]
    (queries, keys), parameters = TILES[tile], np.float32([0.3] if name == "alibi" else [0.3, 0.7])
    want = formula(biases.tile(queries, keys), *parameters)[0]
    got, by_public = beside(function, public)(queries, keys, *parameters)
    assert_within(got, want, formula_bound * np.abs(want), against="float64")
    by_public = np.asarray(by_public, np.float64)
    assert_within(got, by_public, public_bound * np.abs(by_public), against="the public function")


def test_parameters_may_be_of_several_heads():
    slopes = np.float32([0.5, 0.1, 0.02])
    tiles = lambda i, j, m: kernels.alibi(i[None, :, None], j[None, None], m[:, None, None])  # noqa: E731
    assert_same_bits(*jax.jit(lambda *x: (tiles(*x), pe.alibi(*x)))(NEAR[:16], NEAR[:8], slopes))


def test_kerple_has_a_derivative_and_is_minus_infinity_beyond_float32():
    """−r₁ ln(1 + r₂ |i − j|), here with |i − j| = 7; and with r₂ |i − j| beyond float32."""
    i, j, parameters = np.int32([[10]]), np.int32([[3]]), np.float32([0.5, 0.3])
    got = jax.jit(jax.grad(lambda p: kernels.kerple_log(i, j, *p).sum()))(parameters)
    np.testing.assert_allclose(got, [-np.log1p(7 * 0.3), -0.5 * 7 / (1 + 7 * 0.3)], rtol=1e-6)
    beyond_float32 = bias(kernels.kerple_log, NEAR[:1], NEAR[2:3], *np.float32([1, 3e38]))
    np.testing.assert_array_equal(beyond_float32, [[-np.inf]])


# Errors

CONSTANTS, COLUMN, TILE = np.zeros((6, 4), np.int32), np.zeros((4, 1), np.int32), np.zeros((4, 4), np.float32)
HALF, ONE = TILE.astype(np.float16), np.float32(1)


@pytest.mark.parametrize(
    ("name", "arguments", "error", "match"),
    [
        ("phase_constants", ("x",), TypeError, "frequencies must be"),
        ("phase_constants", (pe.axial(8, 2),), ValueError, "frequencies must have one axis, got 2"),
        ("phase_constants", (pe.geometric(8).with_precision("float32"),), ValueError, ".*precision 'exact' in kernels"),
        ("phase_constants", (7, "half"), ValueError, ".*even"),
        ("phase_constants", (8, "pairs"), ValueError, "layout must be one of"),
        ("cos_sin", (TILE, CONSTANTS), TypeError, "positions must be an int32 tile"),
        ("cos_sin", (COLUMN, CONSTANTS[:5]), ValueError, "constants must have 6 rows.*got 5"),
        ("cos_sin", (COLUMN, CONSTANTS[0, 0]), ValueError, "constants must have 6 rows.*got 0"),
        ("cos_sin", (COLUMN, [*[COLUMN] * 5, TILE]), TypeError, "constants must be an int32 array"),
        ("rotate", (COLUMN, TILE, TILE), TypeError, "x must be a float tile"),
        ("rotate", (np.float32, TILE, TILE), TypeError, "x must be a float tile, got type"),
        ("rotate", (TILE, HALF, TILE), TypeError, "cosine must be a float32 tile"),
        ("rotate", (TILE[:, :0], TILE, TILE), ValueError, "x must have an even number of features"),
        ("rotate", (TILE, TILE[:, :2], TILE), ValueError, "cosine must have 4 columns"),
        ("rotate", (TILE, TILE, TILE[:3]), ValueError, "sine of shape .* must broadcast to x"),
        ("rotate", (TILE, TILE, TILE, "pairs"), ValueError, "layout must be one of"),
        ("rotate_pairs", (COLUMN, TILE, TILE, TILE), TypeError, "x1 must be a float tile"),
        ("rotate_pairs", (TILE, HALF, TILE, TILE), TypeError, "x2 must be a float32 tile"),
        ("rotate_pairs", (HALF, HALF, HALF, TILE), TypeError, "cosine must be a float32 tile"),
        ("rotate_pairs", (TILE, TILE, TILE, TILE[:1]), ValueError, "sine must have the shape of x1"),
        ("kerple_log", (COLUMN, TILE, ONE, ONE), TypeError, "key_positions must be an int32 tile"),
        ("alibi", (None, COLUMN, ONE), TypeError, "query_positions must be an int32 tile"),
    ],
)
def test_errors_name_the_function_and_the_argument(name, arguments, error, match):
    with pytest.raises(error, match=f"^{name}: {match}"):
        jax.eval_shape(lambda: getattr(kernels, name)(*arguments))
