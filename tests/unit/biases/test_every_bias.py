"""What every attention bias promises, of positions (..., queries) and (..., keys).

- It is its formula of the exact distance, at any int32 or float positions, in float32 (..., heads, queries, keys).
- A tile and a batch of positions have the bits of that part of the whole bias.
- Derivatives by parameters and by float positions are those of the formula, in forward and in reverse mode.
- Positions are one integer or float for each token; they shard the bias together with parameters per head.
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
from oracles.biases import bucket, exact_tile

RNG = np.random.default_rng(0)
NEAR = RNG.integers(0, 3000, 24).astype(np.int32)
FAR = np.concatenate([[0, 2**31 - 1, -(2**31), -1], RNG.integers(-(2**31), 2**31, 20)]).astype(np.int32)
EVERY = pytest.mark.parametrize("name", BIASES)
OF_FLOATS = pytest.mark.parametrize("name", [name for name, bias in BIASES.items() if not bias.sided])


def formula(bias, arguments, queries, keys):
    """The bias in float64; JAX sorts the names of arguments."""
    ordered = (arguments[name] for name in bias.arguments(1))
    at, distance, after = exact_tile(queries, keys)
    return bias.formula(distance, *[after] * bias.sided, *[at] * bias.absolute, *ordered)


def from_start(bias, *positions):
    """Positions, without their signs where a bias counts from 0."""
    return [p & np.int32(2**31 - 1) for p in positions] if bias.absolute else positions


def assert_same(bias, got, want):
    """Bits; the last one may differ where the compiler orders a sum or chooses how to divide."""
    assert_within(got, want, 4e-6 + 1e-6 * np.abs(want) if bias.rounded else 0, against="the whole bias")


@EVERY
@pytest.mark.parametrize("at", [NEAR, FAR], ids=["near", "far"])
def test_it_is_its_formula_of_the_exact_distance(name, at):
    bias, arguments = BIASES[name], BIASES[name].arguments(3)
    q, k = from_start(bias, at, at[::-1])
    got, want = jax.jit(partial(bias.function, **arguments))(q, k), formula(bias, arguments, q, k)
    assert got.dtype == np.float32
    assert_within(got, want, 6e-7 * np.abs(want) + 2e-5 * bias.rounded, against="the float64 formula")


@OF_FLOATS
@pytest.mark.parametrize("dtype", [np.float32, np.int32], ids=["float queries", "integer queries"])
def test_keys_at_fractions_of_a_position(name, dtype):
    bias, arguments = BIASES[name], BIASES[name].arguments(3)
    q, k = np.arange(0, 90, 9).astype(dtype), np.arange(20, dtype=np.float32) / 4
    got, want = jax.jit(partial(bias.function, **arguments))(q, k), formula(bias, arguments, q, k)
    assert_within(got, want, 2e-6 * np.abs(want) + 2e-5 * bias.rounded, against="the float64 formula")


@EVERY
def test_a_tile_and_a_batch_have_the_bits_of_the_whole(name):
    bias = BIASES[name]
    f = jax.jit(partial(bias.function, **bias.arguments(3)))
    whole = np.asarray(f(NEAR, NEAR))
    assert_same(bias, f(NEAR[2:9], NEAR[1:9]), whole[:, 2:9, 1:9])
    batches = np.asarray(f(NEAR.reshape(2, 3, 4), NEAR[:18].reshape(2, 1, 9)))
    assert batches.shape == (2, 3, 3, 4, 9)
    for i, j in np.ndindex(2, 3):
        assert_same(bias, batches[i, j], whole[:, 12 * i + 4 * j :][:, :4, 9 * i : 9 * i + 9])


@pytest.mark.parametrize("name", [name for name in BIASES if name != "sandwich"])
def test_derivatives_by_parameters(name):
    bias, q = BIASES[name], np.int32([0, 1, 5, 5, 40, 300])
    arrays = jax.tree.map(np.float32, bias.arguments(3))
    along = jax.tree.map(lambda x: RNG.normal(size=x.shape).astype(np.float32), arrays)

    def derivatives(arrays, along, dy):
        f = lambda arrays: bias.function(q, q, **arrays)  # noqa: E731
        return jax.jvp(f, (arrays,), (along,))[1], jax.vjp(f, arrays)[1](dy)[0]

    dy = RNG.normal(size=(3, 6, 6)).astype(np.float32)
    forward, back = jax.jit(derivatives)(arrays, along, dy)
    after, before = (
        formula(bias, jax.tree.map(lambda x, v: np.float64(x) + step * v, arrays, along), q, q)  # noqa: B023
        for step in (1e-6, -1e-6)
    )
    want = (after - before) / 2e-6
    assert_within(forward, want, 2e-6 * np.abs(want).max(), against="differences of the float64 formula")
    transposed = sum(np.vdot(a, v) for a, v in zip(jax.tree.leaves(back), jax.tree.leaves(along), strict=True))
    np.testing.assert_allclose(transposed, np.vdot(dy, forward), rtol=1e-5)


@OF_FLOATS
def test_derivatives_by_positions(name):
    """At distance 0, where the distance has none, they are finite."""
    bias, arguments = BIASES[name], BIASES[name].arguments(3)
    q, k = np.float32([0.5, 1.5, 2, 70]), np.float32([0.5, 2, 3.25, 7, 71])
    dq, dk = np.float32([1, -2, 0.5, 1]), np.float32([0.5, 1, 2, -1, 0.25])
    along = jax.jit(lambda *x: jax.jvp(partial(bias.function, **arguments), x, (dq, dk))[1])(q, k)
    after, before = (formula(bias, arguments, q + np.float64(h) * dq, k + np.float64(h) * dk) for h in (1e-6, -1e-6))
    want = np.where(q[:, None] == k, along, (after - before) / 2e-6)
    assert np.isfinite(along).all()
    assert_within(along, want, 4e-6 * np.abs(want).max(), against="differences of the float64 formula")


@EVERY
def test_narrow_parameters_are_computed_in_float32(name):
    f, parameters = BIASES[name].of(3)
    narrow = [x.astype(jnp.bfloat16) for x in parameters]
    got, want = (jax.jit(f)(NEAR, NEAR, *x) for x in (narrow, [x.astype(np.float32) for x in narrow]))
    assert got.dtype == np.float32
    assert_same(BIASES[name], got, np.asarray(want))


# Positions


def test_integers_of_two_dtypes_have_the_exact_distance():
    np.testing.assert_array_equal(pe.alibi(np.int8([3]), np.uint8([250]), 1), [[[-247 / 256]]])
    mixed = jax.jit(lambda queries, keys: pe.alibi(queries, keys, 1))
    if jax.config.jax_enable_x64:
        np.testing.assert_array_equal(mixed(np.int32([-3]), np.uint32([7])), [[[-10 / 256]]])
    else:
        expected = "^alibi: query_positions of int32 and key_positions of uint32 have no common dtype here; pass int32$"
        with pytest.raises(TypeError, match=expected):
            mixed(np.int32([-3]), np.uint32([7]))


def test_positions_of_64_bits():
    if not jax.config.jax_enable_x64:
        pytest.skip("float64 and int64 positions need x64: nox -s x64")
    far = jnp.array([2.0**30 + 0.5]), jnp.array([2.0**30 + 0.25])
    assert pe.alibi(*far, jnp.array([1.0], jnp.float32))[0, 0, 0] == -0.25
    table = np.arange(32, dtype=np.float32)[:, None]
    row = jax.jit(lambda d: pe.t5(d, d - d, table, bidirectional=False, max_distance=2**40)[0, :, 0])
    distances = [2**34, 2**39 + 1, 2**40 - 1, 2**40, 2**62]
    assert row(jnp.array(distances)).tolist() == [bucket(d, 32, 2**40) for d in distances]


FOUR = np.arange(4)


@pytest.mark.parametrize(
    ("queries", "keys", "error", "match"),
    [
        (FOUR, 3, ValueError, "key_positions must have shape (..., keys), got ()"),
        (2, FOUR, ValueError, "query_positions must have shape (..., queries), got ()"),
        ("a", FOUR, TypeError, "query_positions must be an integer or float array"),
        (np.array([2**31]), FOUR, ValueError, "query_positions must fit into int32"),
        (
            FOUR.reshape(2, 2),
            FOUR[:3, None],
            ValueError,
            "the leading axes of query_positions, shape (2, 2), and key_positions",
        ),
    ],
)
def test_positions_that_raise(queries, keys, error, match):
    with pytest.raises(error, match="^alibi: " + re.escape(match)):
        pe.alibi(queries, keys, 2)


@pytest.mark.parametrize("shape", [(3, 4), (2, 2, 3)])
def test_coordinates_of_a_grid_raise(shape):
    """Unless they are traced, they have the shape of a batch of short sequences."""
    grid = np.asarray(pe.grid_positions(shape))
    for queries, keys, name in ((grid, FOUR, "query"), (FOUR, grid, "key"), (jnp.asarray(grid), FOUR, "query")):
        with pytest.raises(ValueError, match=rf"^alibi: {name}_positions must be one number .* of a grid, \(12, "):
            pe.alibi(queries, keys, 2)
    assert jax.eval_shape(lambda grid: pe.alibi(grid, grid, 2), grid).shape == (12, 2, *grid.shape[1:] * 2)


@pytest.mark.parametrize(
    "positions",
    [[[0, 1, 1], [0, 0, 1], [0, 1, 2], [0, 0, 0]], [[0, 1], [7, 8], [0, 0], [3, 4]], [[5, 6], [5, 6]], FOUR],
    ids=["padded", "other starts", "one row", "a column"],
)
def test_a_batch_of_short_sequences_is_no_grid(positions):
    positions = np.int32(positions)
    assert pe.alibi(positions, positions, 2).shape == (*positions.shape[:-1], 2, *positions.shape[-1:] * 2)


# Shardings on Explicit axes of a mesh

MESH = jax.make_mesh((2, 2), ("x", "y"), (AxisType.Explicit,) * 2, devices=jax.devices("cpu")[:4])


def on_mesh(x, *spec):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(MESH, P(*spec)))


@EVERY
def test_positions_and_parameters_shard_the_bias(name, on_cpu):
    f, parameters = BIASES[name].of(6)
    tokens, per_head = np.zeros((2, 8), np.int32), [x.shape[-1:] == (6,) for x in parameters]
    whole, batch, rows = (on_mesh(tokens, *spec) for spec in ((), ("y",), (None, "x")))
    heads = [
        on_mesh(x, *[None] * (x.ndim - 1), "x" if of else None) for x, of in zip(parameters, per_head, strict=True)
    ]
    together = f"^{name}: query_positions, key_positions(, .*)? must be sharded alike where they share an axis"
    with jax.set_mesh(MESH):
        assert jax.eval_shape(f, batch, rows, *parameters).sharding.spec == P("y", None, None, "x")
        assert jax.eval_shape(f, rows, batch, *parameters).sharding.spec == P("y", None, "x", None)
        with pytest.raises(ValueError, match=together):
            jax.eval_shape(f, rows, rows, *parameters)
        if any(per_head):
            assert jax.eval_shape(f, batch, whole, *heads).sharding.spec == P("y", "x", None, None)
            with pytest.raises(ValueError, match=together):
                jax.eval_shape(f, whole, rows, *heads)


@pytest.mark.parametrize(
    ("name", "index", "argument"),
    [("t5", 0, "table"), ("fire", 0, "w1 of mlp"), ("fire", 1, "b1 of mlp"), ("fire", 2, "w2 of mlp")],
)
def test_axes_that_are_summed_or_looked_up_must_be_whole(name, index, argument, on_cpu):
    f, parameters = BIASES[name].of(6)
    parameters = [on_mesh(x, "x" if n == index else None) for n, x in enumerate(parameters)]
    with jax.set_mesh(MESH), pytest.raises(ValueError, match=f"^{name}: {argument} must not be sharded along axis 0"):
        jax.eval_shape(f, FOUR, FOUR, *parameters)
