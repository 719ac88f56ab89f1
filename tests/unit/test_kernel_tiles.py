"""Kernels of one's own: functions of tiles in Pallas's interpreters, beside the public functions.

- `cos_sin`, `rotate`, `rotate_pairs` and `alibi` have the bits of the public functions, at any int32 position.
- KERPLE's biases are within 3e-7 and 1e-5 of the public functions.
- Errors name the function, the tile and what it must be.

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
    """One tile: the whole of each operand; results are (shape, dtype)."""
    shapes = [jax.ShapeDtypeStruct(*result) for result in results]
    return pl.pallas_call(kernel, shapes, interpret=interpret)(*operands)


def same_bits(got, want):
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype
    if jax.default_backend() != "cpu":  # a GPU chooses the bits of a NaN
        got, want = (np.where(np.isnan(x), x.dtype.type(np.nan), x) for x in (got, want))
    np.testing.assert_array_equal(*(x.view(f"u{x.dtype.itemsize}") for x in (got, want)))


def cos_sin(positions, frequencies, interpret=True):
    def kernel(positions, constants, cosine, sine):
        cosine[...], sine[...] = kernels.cos_sin(positions[...], constants[...])

    constants = kernels.phase_constants(frequencies)
    shape = positions.shape[0], constants.shape[1]
    return call(kernel, [(shape, jnp.float32)] * 2, positions, constants, interpret=interpret)


def rotate(x, positions, frequencies, layout):
    """A kernel that rotates a tile (rows, heads, dim)."""

    def kernel(x, positions, constants, out):
        cosine, sine = kernels.cos_sin(positions[...], constants[...])
        out[...] = kernels.rotate(x[...], cosine[:, None], sine[:, None], layout)

    return call(kernel, [(x.shape, x.dtype)], x, positions[:, None], kernels.phase_constants(frequencies, layout))[0]


def same_rotation(x, positions, frequencies, layout):
    public = functools.partial(pe.rotary, frequencies=frequencies, head_axis=-2, layout=layout)
    same_bits(*jax.jit(lambda x, i: (rotate(x, i, frequencies, layout), public(x, i)))(x, positions))


# Cosines and sines


@pytest.mark.parametrize(
    ("frequencies", "interpret"),
    [(OMEGA, True), (YARN, True), (OMEGA, pltpu.InterpretParams())],
    ids=["array-generic", "yarn-generic", "array-tpu"],
)
def test_cosines_and_sines_are_those_of_the_encoding(frequencies, interpret):
    """Also where each is a program of its own."""
    waves = jax.jit(functools.partial(cos_sin, frequencies=frequencies, interpret=interpret))
    cosine, sine = waves(POSITIONS[:, None])
    same_bits(np.concatenate([sine, cosine], 1), pe.sinusoidal(POSITIONS, frequencies, layout="half"))


def test_cosines_and_sines_are_right():
    got = jax.jit(functools.partial(cos_sin, frequencies=pe.geometric(64, 500_000.0)))(POSITIONS[:, None])
    sine, cosine = np.split(encodings.encode(POSITIONS, 64, 500_000.0, layout="half"), 2, axis=1)
    for wave, want in zip(got, (cosine, sine), strict=True):
        assert_within(wave, want, 9e-8, against="mpmath at 60 digits")


def test_each_column_may_have_a_coordinate_of_its_own():
    f, grid = pe.axial(64, 2, 100.0), np.stack([POSITIONS, POSITIONS[::-1]], 1)
    waves = functools.partial(cos_sin, frequencies=dataclasses.replace(f, axes=None))
    (cosine, sine), want = jax.jit(lambda i: (waves(i[:, f.axes]), pe.sinusoidal(i, f, layout="half")))(grid)
    same_bits(np.concatenate([sine, cosine], 1), want)


def test_constants_may_be_six_tiles():
    """As Mosaic GPU, which broadcasts nothing by itself, takes them."""

    @jax.jit
    def both(positions):
        constants = kernels.phase_constants(4)
        tiles = [jnp.broadcast_to(row, positions.shape) for row in constants]
        return [kernels.cos_sin(positions, each) for each in (tiles, constants)]

    jax.tree.map(same_bits, *both(np.tile(POSITIONS[:8, None], 2)))


def test_phase_constants_have_no_derivative():
    places = np.zeros((4, 1), np.int32)
    loss = lambda w: kernels.cos_sin(places, kernels.phase_constants(w))[0].sum()  # noqa: E731
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
    """Widths below and above a register of 128 lanes, and halves that are none."""
    f = pe.geometric(dim, 500_000.0).with_attention_factor(1.25)
    x = RNG.normal(size=(ROWS, 3, dim)).astype(dtype)
    same_rotation(x, POSITIONS, f, layout)


def test_zeros_keep_their_signs():
    x = np.array(np.meshgrid(*[[0.0, -0.0, 1.0, -1.0]] * 2), np.float32).reshape(2, -1).T[:, None]
    same_rotation(x, np.zeros(len(x), np.int32), 2, "interleaved")


def test_pairs_rotate_as_by_rotary():
    x = RNG.normal(size=(ROWS, 64)).astype(jnp.bfloat16)

    def kernel(x1, x2, positions, constants, y1, y2):
        y1[...], y2[...] = kernels.rotate_pairs(x1[...], x2[...], *kernels.cos_sin(positions[...], constants[...]))

    @jax.jit
    def both(x, positions):
        halves, constants = jnp.split(x, 2, axis=1), kernels.phase_constants(YARN)
        got = call(kernel, [(halves[0].shape, x.dtype)] * 2, *halves, positions[:, None], constants)
        return jnp.concatenate(got, 1), pe.rotary(x, positions, YARN, head_axis=None)

    same_bits(*both(x, POSITIONS))


@pytest.mark.parametrize("layout", ["half", "interleaved", "pairs"])
def test_the_derivative_of_a_rotation(layout):
    """Outside a kernel: that of w · R x is Rᵀ w."""
    x, w = RNG.normal(size=(2, 2, 4)).astype(np.float32)
    positions, pairs = np.int32([[3], [5]]), layout == "pairs"

    def product(x):
        waves = kernels.cos_sin(positions, kernels.phase_constants(4, None if pairs else layout))
        y = kernels.rotate_pairs(x[:, :2], x[:, 2:], *waves) if pairs else [kernels.rotate(x, *waves, layout)]
        return jnp.vdot(w, jnp.concatenate(y, 1))

    angles = positions * np.array([1, 0.01])
    want = rotations.rotate(np.float64(w), -np.sin(angles), np.cos(angles), "half" if pairs else layout)
    np.testing.assert_allclose(jax.jit(jax.grad(product))(x), want, rtol=1e-5)


# Biases


def bias(function, queries, keys, *parameters):
    def kernel(queries, keys, *refs):
        *parameters, out = refs
        out[...] = function(queries[...], keys[...], *(parameter[0] for parameter in parameters))

    operands = queries[:, None], keys[None], *(p[None] for p in parameters)
    return call(kernel, [((len(queries), len(keys)), jnp.float32)], *operands)[0]


@functools.cache
def beside(function, public):
    """The bias by a kernel and by the public function."""
    return jax.jit(lambda i, j, *p: (bias(function, i, j, *p), public(i, j, *(a[None] for a in p))[0]))


NEAR = np.arange(ROWS, dtype=np.int32)
TILES = {"edges": (POSITIONS, POSITIONS[::-1].copy()), "near": (3 * NEAR, 2 * NEAR + 40)}
FUNCTIONS = {  # and the public one, the formula, the bounds beside the public one and beside the formula
    "alibi": (kernels.alibi, pe.alibi, biases.alibi, 0, 1.2e-7),
    "kerple_log": (kernels.kerple_log, pe.kerple_log, biases.kerple_log, 3e-7, 5e-7),
    "kerple_power": (kernels.kerple_power, pe.kerple_power, biases.kerple_power, 1e-5, 1.02e-5),
}


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_bias_is_near_the_public_function(name, tile):
    function, public, formula, bound, of_formula = FUNCTIONS[name]
    (queries, keys), parameters = TILES[tile], np.float32([0.3] if name == "alibi" else [0.3, 0.7])
    want = formula(biases.tile(queries, keys), *parameters)[0]
    got, theirs = beside(function, public)(queries, keys, *parameters)
    assert_within(got, want, of_formula * np.abs(want), against="float64")
    theirs = np.asarray(theirs, np.float64)
    assert_within(got, theirs, bound * np.abs(theirs), against="the public function")


def test_parameters_of_several_heads():
    slopes = np.float32([0.5, 0.1, 0.02])
    tiles = lambda i, j, m: kernels.alibi(i[None, :, None], j[None, None], m[:, None, None])  # noqa: E731
    same_bits(*jax.jit(lambda *x: (tiles(*x), pe.alibi(*x)))(NEAR[:16], NEAR[:8], slopes))


def test_the_derivative_of_kerple_and_its_end():
    i, j, parameters = np.int32([[10]]), np.int32([[3]]), np.float32([0.5, 0.3])
    got = jax.jit(jax.grad(lambda p: kernels.kerple_log(i, j, *p).sum()))(parameters)
    np.testing.assert_allclose(got, [-np.log1p(7 * 0.3), -0.5 * 7 / (1 + 7 * 0.3)], rtol=1e-6)
    beyond_float32 = bias(kernels.kerple_log, NEAR[:1], NEAR[2:3], *np.float32([1, 3e38]))
    np.testing.assert_array_equal(beyond_float32, [[-np.inf]])


# Errors

CONSTANTS, PLACES, TILE = np.zeros((6, 4), np.int32), np.zeros((4, 1), np.int32), np.zeros((4, 4), np.float32)
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
        ("cos_sin", (PLACES, CONSTANTS[:5]), ValueError, "constants must have 6 rows.*got 5"),
        ("cos_sin", (PLACES, CONSTANTS[0, 0]), ValueError, "constants must have 6 rows.*got 0"),
        ("cos_sin", (PLACES, [*[PLACES] * 5, TILE]), TypeError, "constants must be an int32 array"),
        ("rotate", (PLACES, TILE, TILE), TypeError, "x must be a float tile"),
        ("rotate", (np.float32, TILE, TILE), TypeError, "x must be a float tile, got type"),
        ("rotate", (TILE, HALF, TILE), TypeError, "cosine must be a float32 tile"),
        ("rotate", (TILE[:, :0], TILE, TILE), ValueError, "x must have an even number of features"),
        ("rotate", (TILE, TILE[:, :2], TILE), ValueError, "cosine must have 4 columns"),
        ("rotate", (TILE, TILE, TILE[:3]), ValueError, "sine of shape .* must broadcast to x"),
        ("rotate", (TILE, TILE, TILE, "pairs"), ValueError, "layout must be one of"),
        ("rotate_pairs", (PLACES, TILE, TILE, TILE), TypeError, "x1 must be a float tile"),
        ("rotate_pairs", (TILE, HALF, TILE, TILE), TypeError, "x2 must be a float32 tile"),
        ("rotate_pairs", (HALF, HALF, HALF, TILE), TypeError, "cosine must be a float32 tile"),
        ("rotate_pairs", (TILE, TILE, TILE, TILE[:1]), ValueError, "sine must have the shape of x1"),
        ("kerple_log", (PLACES, TILE, ONE, ONE), TypeError, "key_positions must be an int32 tile"),
        ("alibi", (None, PLACES, ONE), TypeError, "query_positions must be an int32 tile"),
    ],
)
def test_errors(name, arguments, error, match):
    with pytest.raises(error, match=f"^{name}: {match}"):
        jax.eval_shape(lambda: getattr(kernels, name)(*arguments))
