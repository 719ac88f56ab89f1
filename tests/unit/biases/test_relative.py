"""Relative position biases, beside a loop over elements and beside layers of transformers and timm.

- Each offset on a grid of any number of axes has its value of the table, exactly, and so each distance if symmetric.
- With a prefix, tokens whose first coordinate is negative are outside of the grid.
- Offsets that the table does not have raise, are NaN or are 0.
- It is linear in table and prefix, counts beyond 2²⁴, stores positions alone, and shards with its arguments.
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
from helpers.vision_biases import bias_of, grid_of, of_offsets
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


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("window", [(5,), (1, 5), (3, 4), (2, 3, 4)], ids=str)
def test_each_offset_has_its_value(window, symmetric):
    grid, table = grid_of(window), table_of(window, symmetric)
    positions = grid[:, 0] if len(window) == 1 else grid
    got = pe.relative_position_bias(positions, positions[2:], table, symmetric=symmetric)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, biases.relative(grid, grid[2:], table, symmetric=symmetric))


@pytest.mark.parametrize("case", PEERS["layers"], ids=lambda case: case["peer"])
def test_beside_layers_of_transformers_and_timm(case):
    arrays = {name: np.array(x, np.float32) for name, x in case.items() if name not in ("peer", "window")}
    got = bias_of(case["peer"], tuple(case["window"]), arrays)
    bound = 2e-6 * np.abs(arrays["bias"]) if "Mlp" in case["peer"] else 0
    assert_within(got, arrays["bias"], bound, against=case["peer"])


@pytest.mark.parametrize("case", PEERS["resized"], ids=lambda case: f"{case['window']} {case['new']}")
def test_a_table_for_another_window_as_timm_resizes_it(case):
    old, new = (of_offsets(np.float32(case[x]), (case[n],) * 2) for x, n in (("table", "window"), ("resized", "new")))
    assert_within(pe.resize_table(old, new.shape[:2], method="cubic"), new, 5e-6, against="bicubic with antialias")


@pytest.mark.parametrize("case", PEERS["larger"], ids=lambda case: f"{case['window']} {case['new']}")
def test_a_larger_window_as_beit_resizes_its_table(case):
    table, new = np.float32(case["table"]), case["new"]
    inner = pe.resize_table(of_offsets(table[:-3], (case["window"],) * 2), (2 * new - 1,) * 2)
    table = np.concatenate([inner.reshape(-1, 2), table[-3:]])
    assert_within(bias_of("BEiT", (new, new), {"table": table}), case["bias"], 2e-6, against="bilinear")


@pytest.mark.parametrize("symmetric", [False, True])
def test_tokens_outside_the_grid_have_the_prefix(symmetric):
    grid, table, prefix = grid_of((2, 3)), table_of((2, 3), symmetric), normal(3, HEADS)
    tokens = np.concatenate([[[-1, -1]], grid[:4], [[-7, 2]], grid[4:]])  # two of them, one in between
    far = tokens + np.where(tokens[:, :1] < 0, 0, 1_000_000_000)
    f = functools.partial(pe.relative_position_bias, prefix=prefix, symmetric=symmetric)
    want = biases.relative(tokens, tokens[2:], table, prefix=prefix, symmetric=symmetric)
    np.testing.assert_array_equal(f(tokens, tokens[2:], table), want)
    np.testing.assert_array_equal(f(far, far[2:], table), want)


def test_without_a_prefix_a_negative_coordinate_is_like_any_other():
    grid, table = grid_of((2, 3)), table_of((2, 3))
    got, want = (pe.relative_position_bias(p, p, table) for p in (grid - 5, grid))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint32, np.int64])
def test_positions_of_other_dtypes(dtype):
    grid, table = grid_of((3, 4)), table_of((3, 4))
    got = pe.relative_position_bias(grid.astype(dtype), grid, table)
    np.testing.assert_array_equal(got, biases.relative(grid, grid, table))


def test_tiles_and_batches_have_the_bits_of_the_whole():
    grid = np.pad(grid_of((4, 5)), ((1, 0), (0, 0)), constant_values=-1)
    f = functools.partial(pe.relative_position_bias, table=table_of((4, 5)), prefix=normal(3, HEADS))
    whole = np.asarray(f(grid, grid))
    rows, columns = np.arange(1, 13).reshape(2, 3, 2), np.arange(8).reshape(2, 1, 4)
    want = np.moveaxis(whole[:, rows[..., :, None], columns[..., None, :]], 0, 2)
    np.testing.assert_array_equal(f(grid[rows], grid[columns]), want)


# Offsets that the table does not have

SCATTERED = np.array([[0, 0], [2, 1], [3, 0], [0, -4], [LOWEST, 0], [HIGHEST, 3], [-1, HIGHEST]], np.int32)


@pytest.mark.parametrize("symmetric", [False, True])
def test_offsets_outside_the_table_are_nan_or_0(symmetric):
    table = table_of((3, 4), symmetric)
    f = functools.partial(pe.relative_position_bias, symmetric=symmetric)
    want = biases.relative(SCATTERED, SCATTERED, table, symmetric=symmetric)
    np.testing.assert_array_equal(f(SCATTERED, SCATTERED, table, out_of_range="nan"), want)
    np.testing.assert_array_equal(f(SCATTERED, SCATTERED, table, out_of_range="zeros"), np.nan_to_num(want))
    np.testing.assert_array_equal(jax.jit(f)(SCATTERED, SCATTERED, table), want)


@pytest.mark.parametrize("symmetric", [False, True])
def test_the_derivative_by_the_table_counts_the_offsets_that_it_has(symmetric):
    table, dy = table_of((3, 4), symmetric), normal(HEADS, 7, 7)
    f = functools.partial(pe.relative_position_bias, SCATTERED, SCATTERED, symmetric=symmetric, out_of_range="zeros")
    back = jax.jit(lambda table, dy: jax.vjp(f, table)[1](dy)[0])(table, dy)
    rows = np.arange(table.size, dtype=np.float64).reshape(table.shape)
    row = biases.relative(SCATTERED, SCATTERED, rows, symmetric=symmetric)
    want = np.zeros(table.size)
    np.add.at(want, row[~np.isnan(row)].astype(int), dy[~np.isnan(row)])
    assert_within(back, want.reshape(table.shape), 1e-6, against="sums over offsets")


def test_concrete_offsets_outside_the_table_raise():
    table = table_of((3, 4))
    message = (
        "^relative_position_bias: query_positions and key_positions must differ by at most {} for this table, got {}$"
    )
    with pytest.raises(ValueError, match=message.format("2 in coordinate 0", 2**32 - 1)):
        pe.relative_position_bias(SCATTERED, SCATTERED, table)
    with pytest.raises(ValueError, match=message.format("3 in coordinate 1", 4)):
        pe.relative_position_bias(SCATTERED[:1], SCATTERED[3:4], table)
    with pytest.raises(ValueError, match=message.format("4 in coordinate 0", 5)):
        pe.relative_position_bias(np.arange(6), np.arange(6), table_of((5,)))
    with pytest.raises(ValueError, match="by at most 2 in coordinate 0"):  # concrete where only the table is traced
        jax.eval_shape(lambda table: pe.relative_position_bias(SCATTERED, SCATTERED, table), table)


def test_each_batch_is_checked_by_itself():
    grid, table = grid_of((2, 3)), table_of((2, 3))
    apart = np.stack([grid, grid + 1_000_000])
    np.testing.assert_array_equal(pe.relative_position_bias(apart, apart, table)[1], biases.relative(grid, grid, table))
    with pytest.raises(ValueError, match="in coordinate 0 for this table, got 1000001$"):
        pe.relative_position_bias(apart, grid, table)
    none = jax.eval_shape(lambda table: pe.relative_position_bias(apart[:, :0], grid, table), table)
    assert none.shape == (2, HEADS, 0, 6)


# Derivatives


def test_it_is_linear_in_table_and_prefix():
    grid = np.pad(grid_of((2, 3)), ((1, 0), (0, 0)), constant_values=-1)
    f = lambda table, prefix: pe.relative_position_bias(grid, grid, table, prefix=prefix)  # noqa: E731
    parameters, along = ((table_of((2, 3)), normal(3, HEADS)) for _ in range(2))
    dy = normal(HEADS, 7, 7)
    forward, back = jax.jit(lambda p, v, dy: (jax.jvp(f, p, v)[1], jax.vjp(f, *p)[1](dy)))(parameters, along, dy)
    np.testing.assert_array_equal(forward, f(*along))
    transposed = sum(np.vdot(a, b) for a, b in zip(back, along, strict=True))
    np.testing.assert_allclose(transposed, np.vdot(dy, forward), rtol=1e-4)


def test_the_derivative_counts_beyond_2_to_the_24():
    n = 4200  # all but the first at one place: a sum of ones in float32, one after the other, ends at 16,777,216
    places = np.zeros((n, 2), np.int32)
    places[0] = 1, 0
    counts = jax.jit(jax.grad(lambda t, at: jnp.sum(pe.relative_position_bias(at, at, t))))
    got = np.asarray(counts(np.zeros((3, 3, 1), np.float32), places))
    np.testing.assert_array_equal(got[..., 0], [[0, n - 1, 0], [0, (n - 1) ** 2 + 1, 0], [0, n - 1, 0]])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 3), (0, 3, 3)], ids=str)
def test_derivatives_of_nothing(shape):
    *batch, n, m = shape
    q, k = (np.zeros((*batch, size, 2), np.int32) for size in (n, m))
    f = jax.jit(jax.grad(lambda table: jnp.sum(pe.relative_position_bias(q, k, table))))
    np.testing.assert_array_equal(f(table_of((2, 3))), np.zeros((3, 5, HEADS)))


def test_the_derivative_stores_positions_alone():
    grid, table = grid_of((6, 7)), table_of((6, 7))
    f = lambda p, table: jax.vjp(lambda table: pe.relative_position_bias(p, p, table), table)[1]  # noqa: E731
    assert sum(x.size for x in jax.tree.leaves(jax.eval_shape(f, grid, table))) <= 4 * grid.size


def test_temporaries():
    """Forward nothing; backward, on a CPU, sums of 64 copies of the table."""
    grid, table = grid_of((24, 24)), np.zeros((47, 47, 8), np.float32)
    forward = jax.jit(pe.relative_position_bias).lower(grid, grid, table).compile()
    size = 4 * 8 * 24**4
    assert forward.memory_analysis().temp_size_in_bytes < size / 50
    f = lambda dy, p, t: jax.vjp(lambda t: pe.relative_position_bias(p, p, t), t)[1](dy)  # noqa: E731
    backward = jax.jit(f).lower(np.zeros((8, 576, 576), np.float32), grid, table).compile()
    assert backward.memory_analysis().temp_size_in_bytes < 2.7 * size + 64 * table.nbytes


# Explicit axes of a mesh


@pytest.mark.parametrize(("rows", "columns", "heads"), [("x", None, None), (None, "x", None), (None, None, "x")])
def test_positions_and_heads_shard_the_bias_and_its_derivatives(rows, columns, heads, on_cpu):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Explicit,), devices=jax.devices("cpu")[:2])

    def place(shape, dtype, *spec):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))

    table = place((5, 7, 4), np.float32, None, None, heads)
    q, k = (place((12, 2), np.int32, spec) for spec in (rows, columns))

    def derivatives(q, k, table, prefix):
        f = lambda table, prefix: pe.relative_position_bias(q, k, table, prefix=prefix)  # noqa: E731
        y, pull = jax.vjp(f, table, prefix)
        return pe.relative_position_bias(q, k, table), y, pull(y)[0]

    with jax.set_mesh(mesh):
        without, y, back = jax.eval_shape(derivatives, q, k, table, place((3, 4), np.float32))
    assert without.sharding.spec == y.sharding.spec == P(heads, rows, columns)
    assert back.sharding.spec == P(None, None, heads)


G, T = grid_of((2, 3)), np.ones((3, 5, 2), np.float32)
HUGE = jax.ShapeDtypeStruct((2**16 + 1, 2**16 + 1, 1), jnp.float32)


@pytest.mark.parametrize(
    ("changed", "error", "match"),
    [
        ({"query_positions": G.astype(np.float32)}, TypeError, "query_positions must be an integer array"),
        ({"key_positions": G[:, :1]}, ValueError, "key_positions must have shape (..., keys, 2)"),
        ({"query_positions": G[0]}, ValueError, "query_positions must have shape (..., queries, 2)"),
        (
            {"query_positions": 0, "key_positions": G[:, 0], "table": T[0]},
            ValueError,
            "query_positions must have shape (..., queries), got ()",
        ),
        ({"query_positions": G[:, 0], "table": T[0]}, ValueError, "key_positions must be one number for each token"),
        (
            {"query_positions": G[None, None].repeat(2, 1), "key_positions": G[None].repeat(3, 0)},
            ValueError,
            "the leading axes of query_positions, (1, 2), and of key_positions, (3,), must broadcast",
        ),
        (
            {"query_positions": np.zeros((2, 3), int), "key_positions": np.zeros((3, 3), int), "table": T[0]},
            ValueError,
            "the leading axes of query_positions, (2,), and of key_positions, (3,), must broadcast",
        ),
        ({"table": T.astype(int)}, TypeError, "table must be a float array of shape (..., offsets, heads)"),
        ({"table": T[0, 0]}, ValueError, "table must have shape (..., offsets, heads)"),
        ({"table": T[..., :0]}, ValueError, "table must have shape (..., offsets, heads)"),
        (
            {"table": T[:2]},
            ValueError,
            "table must have an odd number of offsets, 2w − 1 for a window of w, along each axis",
        ),
        ({"table": T[:0], "symmetric": True}, ValueError, "table must have at least one distance along each axis"),
        ({"table": HUGE}, ValueError, "table must have fewer than 2³¹ rows"),
        ({"prefix": T[:, 0, 0]}, ValueError, "prefix must have shape (3, heads) = (3, 2)"),
        ({"prefix": T[:2, 0]}, ValueError, "prefix must have shape (3, heads) = (3, 2)"),
        ({"prefix": np.ones((3, 2), int)}, TypeError, "prefix must be a float array of shape (rows, heads)"),
        ({"symmetric": 1}, TypeError, "symmetric must be True or False"),
        ({"out_of_range": "clip"}, ValueError, "out_of_range must be one of"),
    ],
)
def test_arguments_that_raise(changed, error, match):
    arguments = {"query_positions": G, "key_positions": G, "table": T} | changed
    with pytest.raises(error, match="^relative_position_bias: " + re.escape(match)):
        if arguments["table"] is HUGE:
            jax.eval_shape(lambda table: pe.relative_position_bias(**(arguments | {"table": table})), HUGE)
        pe.relative_position_bias(**arguments)
