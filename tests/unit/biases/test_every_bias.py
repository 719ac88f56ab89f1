"""What every attention bias promises, given positions (..., queries) and (..., keys).

- It is its formula of the exact distance, at any int32 positions, in float32 (..., heads, queries, keys).
- A tile and a batch of positions have the bits of that part of the whole bias.
- Derivatives by parameters and by float positions are those of the formula, in forward and in reverse mode.
- Positions are one number per token. Positions and parameters per head shard the bias.
"""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers.biases import BIASES
from helpers.closeness import assert_within
from oracles.biases import bucket

RNG = np.random.default_rng(0)
NEAR = RNG.integers(0, 3000, 24).astype(np.int32)
FAR = np.concatenate([[0, 2**31 - 1, -(2**31), -1], RNG.integers(-(2**31), 2**31, 20)]).astype(np.int32)
EVERY = pytest.mark.parametrize("name", BIASES)
FORMULA = "the float64 formula"
# relative and absolute error; biases that read a table, which are not here, are exact
BOUNDS = {"alibi": (2e-7, 0), "kerple_log": (4e-7, 0), "kerple_power": (6e-7, 0)}
BOUNDS |= {"fire": (0, 2.5e-6), "sandwich": (0, 1.2e-6)}


def assert_same(bias, got, want):
    """Asserts the same bits, or almost for a bias whose last bit the compiler decides (`rounded`)."""
    assert_within(got, want, 4e-6 + 1e-6 * np.abs(want) if bias.rounded else 0, against="the whole bias")


@EVERY
@pytest.mark.parametrize(("at", "parameters"), [(NEAR, jnp.bfloat16), (FAR, np.float32)], ids=["near", "far"])
def test_it_is_its_formula_of_the_exact_distance(name, at, parameters):
    bias = BIASES[name]
    given = bias.arguments(3)
    # the arguments with parameters in the given dtype, and with the same values in float32
    narrow, wide = (
        jax.tree.map(lambda x: x.astype(parameters).astype(dtype) if isinstance(x, np.ndarray) else x, given)  # noqa: B023
        for dtype in (parameters, np.float32)
    )
    q, k = ((p & np.int32(2**31 - 1) if bias.absolute else p) for p in (at, at[::-1]))  # not below 0
    got, want = jax.jit(partial(bias.function, **narrow))(q, k), bias.truth(q, k, **wide)
    assert got.dtype == np.float32
    relative, absolute = BOUNDS.get(name, (0, 0))
    assert_within(got, want, relative * np.abs(want) + absolute, against=FORMULA)


@EVERY
def test_a_tile_and_a_batch_have_the_bits_of_the_whole(name):
    bias = BIASES[name]
    f = partial(bias.function, **bias.arguments(3))
    parts = jax.jit(lambda p: (f(p[2:9], p[1:9]), f(p.reshape(2, 3, 4), p[:18].reshape(2, 1, 9))))
    for at in (NEAR, FAR & np.int32(2**31 - 1) if bias.absolute else FAR):
        whole, (tile, batches) = np.asarray(jax.jit(f)(at, at)), map(np.asarray, parts(at))
        assert_same(bias, tile, whole[:, 2:9, 1:9])
        assert batches.shape == (2, 3, 3, 4, 9)
        for i, j in np.ndindex(2, 3):
            assert_same(bias, batches[i, j], whole[:, 12 * i + 4 * j :][:, :4, 9 * i : 9 * i + 9])


@EVERY
def test_derivatives_are_those_of_the_formula(name):
    """By all arrays and numbers, and by positions if these may be floats. At distance 0, they need only be finite."""
    bias = BIASES[name]
    given = {"query_positions": np.int32([0, 1, 5, 40]), "key_positions": np.int32([0, 3, 5, 6, 300])}
    if not bias.sided:
        given = {"query_positions": np.float32([0.5, 1.5, 2, 70]), "key_positions": np.float32([0.5, 2, 3.25, 7, 71])}
    given |= bias.arguments(3)
    floats = {n: jax.tree.map(np.float32, x) for n, x in given.items() if not isinstance(x, int)}
    if bias.sided:
        floats = {n: x for n, x in floats.items() if "positions" not in n}
    along = jax.tree.map(lambda x: RNG.normal(size=x.shape).astype(np.float32), floats)
    dy = RNG.normal(size=(3, 4, 5)).astype(np.float32)
    f = lambda floats: bias.function(**given | floats)  # noqa: E731
    forward, back = jax.jit(lambda x, v, dy: (jax.jvp(f, (x,), (v,))[1], jax.vjp(f, x)[1](dy)[0]))(floats, along, dy)

    def moved(step):
        at = given | jax.tree.map(lambda x, v: np.float64(x) + step * v, floats, along)
        return bias.truth(**at)

    at_0 = np.equal.outer(given["query_positions"], given["key_positions"]) & (not bias.sided)
    want = np.where(at_0, forward, (moved(1e-6) - moved(-1e-6)) / 2e-6)
    assert np.isfinite(forward).all()
    assert_within(forward, want, 4e-6 * np.abs(want).max(), against=f"differences of {FORMULA}")
    transposed = sum(np.vdot(a, v) for a, v in zip(jax.tree.leaves(back), jax.tree.leaves(along), strict=True))
    np.testing.assert_allclose(transposed, np.vdot(dy, forward), rtol=2e-5)


# Positions


def test_integers_of_two_dtypes_have_the_exact_distance_or_raise():
    np.testing.assert_array_equal(pe.alibi(np.int8([3]), np.uint8([250]), 1), [[[-247 / 256]]])
    mixed = np.int32([-3]), np.uint32([7])
    with jax.enable_x64(True):
        np.testing.assert_array_equal(jax.jit(lambda i, j: pe.alibi(i, j, 1))(*mixed), [[[-10 / 256]]])
    with jax.enable_x64(False), pytest.raises(TypeError, match="^alibi: query_positions of int32 and .*; pass int32$"):
        jax.eval_shape(lambda i, j: pe.alibi(i, j, 1), *mixed)


def test_distances_of_64_bits_are_exact_with_x64():
    table, distances = np.arange(32, dtype=np.float32)[:, None], [2**34, 2**39 + 1, 2**40 - 1, 2**40, 2**62]
    t5 = jax.jit(lambda d: pe.t5(d, d - d, table, bidirectional=False, max_distance=2**40)[0, :, 0])
    with jax.enable_x64(True):
        assert t5(np.array(distances)).tolist() == [bucket(d, 32, 2**40) for d in distances]


FOUR, AXES = np.arange(4), "the leading axes of query_positions, shape (2, 2), and key_positions,"


def test_a_table_of_unknown_length_raises():
    shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, 2"), np.float32)
    for f in (pe.t5, lambda i, j, table: pe.content_bias(i, j, table, query=np.ones((4, 1, 2), np.float32))):
        with pytest.raises(ValueError, match=r"^\w+: table must have a known size along axis 0"):
            jax.eval_shape(f, FOUR, FOUR, shape)


@pytest.mark.parametrize(
    ("queries", "keys", "error", "match"),
    [
        (FOUR, 3, ValueError, "key_positions must have shape (..., keys), got ()"),
        (2, FOUR, ValueError, "query_positions must have shape (..., queries), got ()"),
        (FOUR.reshape(2, 2), FOUR[:3, None], ValueError, f"{AXES} shape (3, 1), must broadcast"),
    ],
)
def test_invalid_positions_raise(queries, keys, error, match):
    with pytest.raises(error, match="^alibi: " + re.escape(match)):
        pe.alibi(queries, keys, 2)


@pytest.mark.parametrize("shape", [(3, 4), (2, 2, 3)])
def test_coordinates_of_a_grid_raise(shape):
    """Traced coordinates cannot raise: by their shape, they may be a batch of short sequences."""
    grid = np.indices(shape).reshape(len(shape), -1).T
    for queries, keys, name in ((grid, FOUR, "query"), (FOUR, grid, "key")):
        with pytest.raises(ValueError, match=rf"^alibi: {name}_positions must be one number .* of a grid, \(12, "):
            pe.alibi(queries, keys, 2)
    assert jax.eval_shape(lambda grid: pe.alibi(grid, grid, 2), grid).shape == (12, 2, *grid.shape[1:] * 2)


@pytest.mark.parametrize("positions", [[[0, 1, 1], [0, 0, 1], [0, 1, 2]], [[0, 1], [7, 8], [0, 0]], [[5, 6]] * 2, FOUR])
def test_a_batch_of_short_sequences_is_no_grid(positions):
    positions = np.int32(positions)
    shape = jax.eval_shape(lambda: pe.alibi(positions, positions, 2)).shape  # concrete positions
    assert shape == (*positions.shape[:-1], 2, *positions.shape[-1:] * 2)


# Shardings on Explicit axes of a mesh

MESH = jax.make_mesh((2, 2), ("x", "y"), (AxisType.Explicit,) * 2, devices=jax.devices("cpu")[:4])


def on_mesh(x, *spec):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(MESH, P(*spec)))


@EVERY
def test_positions_and_parameters_shard_the_bias(name, on_cpu):
    f, parameters = BIASES[name].of(6)
    whole, batch, rows = (on_mesh(np.zeros((2, 8), np.int32), *spec) for spec in ((), ("y",), (None, "x")))
    heads = [on_mesh(x, *[None] * (x.ndim - 1), "x" if x.shape[-1] == 6 else None) for x in parameters]
    with jax.set_mesh(MESH):
        assert jax.eval_shape(f, batch, rows, *parameters).sharding.spec == P("y", None, None, "x")
        assert jax.eval_shape(f, rows, batch, *parameters).sharding.spec == P("y", None, "x", None)
        with pytest.raises(ValueError, match=f"^{name}: query_positions, key_positions.* must be sharded alike"):
            jax.eval_shape(f, rows, rows, *parameters)
        if any("x" in x.sharding.spec for x in heads):
            assert jax.eval_shape(f, batch, whole, *heads).sharding.spec == P("y", "x", None, None)
