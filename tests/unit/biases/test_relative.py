"""`relative_position_bias` is that of a loop over elements, and that of layers of transformers and timm.

- Each offset on a grid of any number of axes has exactly its value in the table; if symmetric, each distance.
- With a prefix, tokens whose first coordinate is negative are outside the grid.
- Offsets that the table does not have raise, or give NaN or 0.
- It is linear in table and prefix. Its derivative counts beyond 2²⁴ and stores positions alone.
- It needs no temporary of its size, and shards with its arguments.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.vision_biases import bias_of, grid_of
from oracles import biases, recorded

PEERS = recorded.read("relative_biases")
RNG = np.random.default_rng(0)
HEADS = 3
LOWEST, HIGHEST = -(2**31), 2**31 - 1


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def table_of(window, symmetric=False):
    return normal(*(n if symmetric else 2 * n - 1 for n in window), HEADS)


# Values


@pytest.mark.parametrize("window", [(5,), (1, 5), (3, 4), (2, 3, 4)], ids=str)
def test_each_offset_has_its_value(window):
    grid, tables = grid_of(window), [table_of(window, symmetric) for symmetric in (False, True)]
    p = grid[:, 0] if len(window) == 1 else grid
    f = lambda table, symmetric: pe.relative_position_bias(p, p[2:], table, symmetric=symmetric)  # noqa: E731
    for symmetric, got in enumerate(jax.jit(lambda tables: list(map(f, tables, (False, True))))(tables)):
        assert got.dtype == np.float32
        want = biases.relative(grid, grid[2:], tables[symmetric], symmetric=bool(symmetric))
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("case", PEERS["layers"], ids=lambda case: case["peer"])
def test_it_is_that_of_layers_of_transformers_and_timm(case):
    arrays = {name: np.array(x, np.float32) for name, x in case.items() if name not in ("peer", "window")}
    got = bias_of(case["peer"], tuple(case["window"]), arrays)
    bound = 2e-6 * np.abs(arrays["bias"]) if "Mlp" in case["peer"] else 0
    assert_within(got, arrays["bias"], bound, against=case["peer"])


@pytest.mark.parametrize("symmetric", [False, True])
def test_tokens_outside_the_grid_have_the_prefix(symmetric):
    grid, table, prefix = grid_of((2, 3)), table_of((2, 3), symmetric), normal(3, HEADS)
    # two tokens outside the grid, one of them between others
    tokens = np.concatenate([[[-1, -1]], grid[:4], [[-7, 2]], grid[4:]])
    far = tokens + np.where(tokens[:, :1] < 0, 0, 1_000_000_000)
    f = functools.partial(pe.relative_position_bias, prefix=prefix, symmetric=symmetric)
    want = biases.relative(tokens, tokens[2:], table, prefix=prefix, symmetric=symmetric)
    np.testing.assert_array_equal(f(tokens, tokens[2:], table), want)
    np.testing.assert_array_equal(f(far, far[2:], table), want)


def test_without_a_prefix_a_negative_coordinate_is_like_any_other():
    grid, table = grid_of((2, 3)), table_of((2, 3))
    np.testing.assert_array_equal(*(pe.relative_position_bias(p, p, table) for p in (grid - 5, grid)))


# Offsets that the table does not have

SCATTERED = np.array([[0, 0], [2, 1], [3, 0], [0, -4], [LOWEST, 0], [HIGHEST, 3], [-1, HIGHEST]], np.int32)


@pytest.mark.parametrize("symmetric", [False, True])
def test_offsets_outside_the_table_are_nan_or_0(symmetric):
    table = table_of((3, 4), symmetric)
    f = functools.partial(pe.relative_position_bias, symmetric=symmetric)
    nan, zeros = (functools.partial(f, SCATTERED, SCATTERED, out_of_range=rule) for rule in ("nan", "zeros"))
    every = jax.jit(lambda at, table: (f(at, at, table), nan(table), zeros(table)))(SCATTERED, table)
    want = biases.relative(SCATTERED, SCATTERED, table, symmetric=symmetric)
    for got, expected in zip(every, (want, want, np.nan_to_num(want)), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_concrete_offsets_outside_the_table_raise():
    """Each row of a batch is checked alone, also if the table is traced."""
    grid, table = grid_of((2, 3)), table_of((3, 4))
    apart = np.stack([grid, grid + 1_000_000])
    message = "^relative_position_bias: query_positions and key_positions must differ by at most {} .*, got {}$"
    for q, k, most, largest in (
        (SCATTERED, SCATTERED, "2 in coordinate 0", 2**32 - 1),
        (SCATTERED[:1], SCATTERED[3:4], "3 in coordinate 1", 4),
        (apart, grid, "2 in coordinate 0", 1_000_001),
    ):
        with pytest.raises(ValueError, match=message.format(most, largest)):
            jax.eval_shape(lambda table: pe.relative_position_bias(q, k, table), table)  # noqa: B023
    with pytest.raises(ValueError, match=message.format("4 in coordinate 0", 5)):
        pe.relative_position_bias(np.arange(6), np.arange(6), table_of((5,)))
    assert jax.eval_shape(lambda table: pe.relative_position_bias(apart, apart, table), table_of((2, 3))).shape
    assert jax.eval_shape(lambda table: pe.relative_position_bias(apart[:, :0], grid, table), table).shape[2] == 0


# Derivatives


@pytest.mark.parametrize("symmetric", [False, True])
def test_it_is_linear_in_table_and_prefix(symmetric):
    f = functools.partial(pe.relative_position_bias, SCATTERED, SCATTERED, symmetric=symmetric, out_of_range="zeros")
    both = lambda table, prefix: f(table, prefix=prefix)  # noqa: E731
    whole = lambda *shape: RNG.integers(-9, 9, shape).astype(np.float32)  # noqa: E731  # sums are exact
    parameters = table_of((3, 4), symmetric), normal(3, HEADS)
    along, dy = tuple(whole(*x.shape) for x in parameters), whole(HEADS, 7, 7)
    at_once = jax.jit(lambda p, v, dy: (both(*v), jax.jvp(both, p, v)[1], jax.vjp(both, *p)[1](dy)))
    want, forward, back = at_once(parameters, along, dy)
    np.testing.assert_array_equal(forward, want)
    transposed = sum(np.vdot(a, b) for a, b in zip(back, along, strict=True))
    assert transposed == np.vdot(dy, forward)


@pytest.mark.parametrize(("n", "m"), [(0, 3), (3, 0)])
def test_the_derivative_without_queries_or_keys_is_0(n, m):
    q, k = (np.zeros((size, 2), np.int32) for size in (n, m))
    f = jax.jit(jax.grad(lambda table: jnp.sum(pe.relative_position_bias(q, k, table))))
    np.testing.assert_array_equal(f(table_of((2, 3))), np.zeros((3, 5, HEADS)))


def test_the_derivative_counts_beyond_2_to_the_24():
    n = 4200  # tokens, all but the first at one place; a running float32 sum of ones would stall at 2²⁴
    places = np.zeros((n, 2), np.int32)
    places[0] = 1, 0
    counts = jax.jit(jax.grad(lambda t, at: jnp.sum(pe.relative_position_bias(at, at, t))))
    got = np.asarray(counts(np.zeros((3, 3, 1), np.float32), places))
    np.testing.assert_array_equal(got[..., 0], [[0, n - 1, 0], [0, (n - 1) ** 2 + 1, 0], [0, n - 1, 0]])


def test_the_derivative_stores_positions_alone():
    grid, table = grid_of((6, 7)), table_of((6, 7))
    f = lambda p, table: jax.vjp(lambda table: pe.relative_position_bias(p, p, table), table)[1]  # noqa: E731
    assert sum(x.size for x in jax.tree.leaves(jax.eval_shape(f, grid, table))) <= 4 * grid.size


def test_forward_has_no_temporary_of_its_size():
    grid, table = grid_of((24, 24)), np.zeros((47, 47, 8), np.float32)
    compiled = jax.jit(pe.relative_position_bias).lower(grid, grid, table).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 8 * 24**4 * 4 / 50  # 8 heads, 24² × 24² float32 values


# Explicit axes of a mesh


def test_positions_and_heads_shard_the_bias_and_its_derivatives(on_cpu):
    mesh = jax.make_mesh((2, 2, 2), ("x", "y", "h"), axis_types=(AxisType.Explicit,) * 3, devices=jax.devices("cpu"))

    def place(shape, dtype, *spec):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))

    def derivatives(q, k, table, prefix):
        y, pull = jax.vjp(lambda table, prefix: pe.relative_position_bias(q, k, table, prefix=prefix), table, prefix)
        return y, pull(y)[0]

    q, k = (place((12, 2), np.int32, axis) for axis in "xy")
    table = place((5, 7, 4), np.float32, None, None, "h")
    with jax.set_mesh(mesh):
        y, back = jax.eval_shape(derivatives, q, k, table, place((3, 4), np.float32))
        with pytest.raises(ValueError, match="^relative_position_bias: table must not be sharded along axis 0"):
            half = place((2, 7, 4), np.float32, "h")
            jax.eval_shape(functools.partial(pe.relative_position_bias, symmetric=True), q, k, half)
    assert y.sharding.spec == P("h", "x", "y") and back.sharding.spec == P(None, None, "h")


# valid positions and table, and a table with too many rows
G, T = grid_of((2, 3)), np.ones((3, 5, 2), np.float32)
HUGE = jax.ShapeDtypeStruct((2**16 + 1, 2**16 + 1, 1), jnp.float32)
ZEROS, AXES = np.zeros((3, 3), int), "the leading axes of query_positions, (2,), and of key_positions, (3,), must broad"


@pytest.mark.parametrize(
    ("changed", "error", "match"),
    [
        ({"key_positions": G[:, :1]}, ValueError, "key_positions must have shape (..., keys, 2)"),
        ({"query_positions": G[0]}, ValueError, "query_positions must have shape (..., queries, 2)"),
        ({"query_positions": 0, "table": T[0]}, ValueError, "query_positions must have shape (..., queries), got ()"),
        ({"query_positions": G[:, 0], "table": T[0]}, ValueError, "key_positions must be one number for each token"),
        ({"query_positions": G[None].repeat(2, 0), "key_positions": G[None].repeat(3, 0)}, ValueError, AXES),
        ({"query_positions": ZEROS[:2], "key_positions": ZEROS, "table": T[0]}, ValueError, AXES),
        ({"table": T[0, 0]}, ValueError, "table must have shape (..., offsets, heads)"),
        ({"table": T[..., :0]}, ValueError, "table must have shape (..., offsets, heads)"),
        ({"table": T[:2]}, ValueError, "table must have an odd number of offsets"),
        ({"table": T[:0], "symmetric": True}, ValueError, "table must have at least one distance"),
        ({"table": HUGE}, ValueError, "table must have fewer than 2³¹ rows"),
        ({"prefix": T[:, 0, 0]}, ValueError, "prefix must have shape (3, heads) = (3, 2)"),
        ({"prefix": T[:2, 0]}, ValueError, "prefix must have shape (3, heads) = (3, 2)"),
        ({"symmetric": 1}, TypeError, "symmetric must be True or False"),
        ({"out_of_range": "clip"}, ValueError, "out_of_range must be one of"),
    ],
)
def test_invalid_arguments_raise(changed, error, match):
    arguments = {"query_positions": G, "key_positions": G, "table": T} | changed
    with pytest.raises(error, match="^relative_position_bias: " + re.escape(match)):
        jax.eval_shape(lambda table: pe.relative_position_bias(**(arguments | {"table": table})), arguments["table"])
