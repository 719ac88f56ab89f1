"""`content_bias` is the float64 formula, in which a one-hot matrix selects each row.

- The bias is query i or key j times row i − j of a table, which heads may share. Rows begin at offset `first`, or are
  DeBERTa's buckets.
- Offsets without a row raise, or give NaN, 0 or the nearest row.
- Of a table longer than a tile, consecutive positions read one window, and other positions all blocks.
- The derivative stores no one-hot matrix; a TPU selects rows by products.
- On Explicit axes of a mesh each argument shards its axes of the bias.
"""

import bisect
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
from oracles import biases
from posenc_jax._biases import content

HEADS, WIDTH, BATCH = 3, 4, 2
LOWEST, HIGHEST = -(2**31), 2**31 - 1
# positions
QUERIES = np.int32([5, 4, 0, LOWEST, HIGHEST])
KEYS = np.int32([3, 6, 2, 5, HIGHEST, HIGHEST - 1, LOWEST])
FORMULA = "the float64 formula"
NEAREST, ZEROS = {"out_of_range": "nearest"}, {"out_of_range": "zeros"}


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def bias(source, x, table, settings, i=QUERIES, j=KEYS):
    return pe.content_bias(i, j, table, **{source: x}, **settings)


def exact(source, x, table, settings, i=QUERIES, j=KEYS):
    """The arguments of the oracle: the row of each offset, content and table with all heads, whether keys have it."""
    given = {name: value for name, value in settings.items() if name != "out_of_range"}
    rows = biases.content_rows(i, j, len(table), nearest=settings.get("out_of_range") == "nearest", **given)
    table = table if table.ndim == 3 else table[:, None]
    heads = max(x.shape[-2], table.shape[1])
    x, table = (np.broadcast_to(a, (*a.shape[:-2], heads, WIDTH)) for a in (x, table))
    return rows, x, table, source == "key"


def formula(*arguments):
    return biases.content(*exact(*arguments))


def check(source, x, table, settings, i=QUERIES, j=KEYS):
    """Asserts that values, tangents and cotangents are those of the formula."""
    dx, dt = normal(7, *x.shape), normal(8, *table.shape)
    operands = exact(source, x, table, settings, i, j)
    want = biases.content(*operands)
    dy = normal(9, *want.shape)

    @jax.jit
    def derivatives(i, j, x, table, dx, dt, dy):
        f = lambda x, table: bias(source, x, table, settings, i, j)  # noqa: E731
        y, pull = jax.vjp(f, x, table)
        return y, jax.jvp(f, (x, table), (dx, dt))[1], pull(dy)

    y, forward, back = derivatives(i, j, x, table, dx, dt, dy)
    tangent = formula(source, dx, table, settings, i, j) + formula(source, x, dt, settings, i, j)
    assert y.dtype == np.float32
    assert_within(y, want, 4e-6, against=FORMULA)
    assert_within(forward, tangent, 1e-5, against=f"the tangent of {FORMULA}")
    of_x, of_table = biases.content_back(*operands, dy)  # with all heads: summed where heads share x or the table
    of_x = of_x.sum(-2, keepdims=True) if x.shape[-2] == 1 else of_x
    of_table = of_table if table.ndim == 3 else of_table.sum(1)
    for got, cotangent in zip(back, (of_x.reshape(x.shape), of_table), strict=True):
        assert_within(got, cotangent, 1e-5, against=f"the cotangent of {FORMULA}")


# name → whose content, its heads, the table's shape without features (rows, or rows and heads), and settings
CASES = {
    "Shaw": ("query", HEADS, (5,), NEAREST),
    "one head, a table for each": ("query", 1, (5, HEADS), NEAREST),
    "a bank": ("query", HEADS, (6, HEADS), {"first": 0} | ZEROS),
    "offsets from -7 on": ("query", HEADS, (3,), {"first": -7} | ZEROS),
    "keys": ("key", HEADS, (4, HEADS), {"first": -1} | NEAREST),
    "buckets": ("query", HEADS, (16,), {"max_distance": 40}),
    "buckets of keys": ("key", HEADS, (10, HEADS), {"max_distance": 7}),
}


def drawn(name):
    source, heads, rows, settings = CASES[name]
    length = len(KEYS if source == "key" else QUERIES)
    return source, normal(0, BATCH, length, heads, WIDTH), normal(1, *rows, WIDTH), settings


@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives_are_those_of_the_formula(name):
    check(*drawn(name))


@pytest.mark.parametrize(("of_x", "of_table"), [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_narrow_content_or_table_gives_float32_and_cotangents_of_its_dtype(of_x, of_table):
    source, x, table, settings = drawn("keys")
    x, table = x.astype(of_x), table.astype(of_table)

    @jax.jit
    def derivatives(*x):
        y, pull = jax.vjp(lambda *x: bias(source, *x, settings), *x)
        return y, pull(y)

    y, back = derivatives(x, table)
    assert y.dtype == np.float32
    assert_within(y, formula(source, x.astype(np.float32), table.astype(np.float32), settings), 4e-6, against=FORMULA)
    assert [dx.dtype for dx in back] == [x.dtype, table.dtype]


def test_positions_and_content_may_have_a_batch():
    source, x, table, settings = drawn("Shaw")
    check(source, x, table, settings, np.stack([QUERIES, QUERIES[::-1]]))
    check(source, x[0], table, settings, QUERIES, KEYS[None])


@pytest.mark.parametrize(("n", "m"), [(0, 7), (5, 0)])
def test_sequences_may_be_empty(n, m):
    f = lambda x, table: bias("query", x, table, NEAREST, np.arange(n), np.arange(m))  # noqa: E731
    assert jax.eval_shape(f, normal(0, n, HEADS, WIDTH), normal(1, 1201, WIDTH)).shape == (HEADS, n, m)


def test_there_may_be_no_heads():
    i, x, table = np.arange(6), normal(0, 6, 0, WIDTH), normal(1, 21, WIDTH)
    assert jax.eval_shape(lambda x: pe.content_bias(i, i, table, query=x), x).shape == (0, 6, 6)


# DeBERTa's buckets


def rows_of_offsets(offsets, rows, max_distance):
    """The row of each offset, read from a table of its rows' indices."""
    table, one = np.arange(rows, dtype=np.float32)[:, None], np.ones((1, 1, 1), np.float32)
    got = pe.content_bias(offsets, np.zeros(1, np.int32), table, key=one, max_distance=max_distance)
    return np.asarray(got)[0, :, 0].astype(int)


@pytest.mark.parametrize(("rows", "max_distance"), [(512, 512), (8, 4), (64, 65), (34, 2**40), (36, 9 * 81 + 1)])
def test_every_distance_is_in_its_bucket(rows, max_distance):
    """With 36 rows and a maximum of 730, buckets end exactly at 27, 81, 243 and 729, which floats may miss."""
    edges = np.unique(np.add.outer(content._edges(rows // 2, max_distance), [-1, 0, 1]))  # and their neighbours
    offsets = np.unique([*range(3 * rows), *edges[edges < 2**31], HIGHEST])
    offsets = np.concatenate([-offsets[::-1], offsets, [LOWEST]]).astype(np.int32)
    want = [np.sign(int(d)) * biases.log_bucket(abs(int(d)), rows // 2, max_distance) for d in offsets]
    got = rows_of_offsets(offsets, rows, max_distance)
    np.testing.assert_array_equal(got, np.clip(np.add(want, rows // 2), 0, rows - 1))


@pytest.mark.parametrize(("span", "max_distance"), [(6, 82), (4, 1000), (5, 7), (128, 5000), (256, 10**20)])
def test_every_edge_within_64_bits_is_where_its_bucket_begins(span, max_distance):
    edges = [edge for edge in content._edges(span, max_distance) if edge < 2**64]
    for d in {2**64 - 1, *edges, *(edge - 1 for edge in edges)}:
        assert min(biases.log_bucket(d, span, max_distance), span) == span // 2 + bisect.bisect(edges, d)


# Offsets without a row


def test_concrete_offsets_without_a_row_raise():
    i, j, x, table = np.arange(4), np.arange(3), normal(0, 4, 1, WIDTH), normal(1, 5, WIDTH)
    message = "^content_bias: query_positions and key_positions must differ by {} for this table, got {}$"
    with pytest.raises(ValueError, match=message.format("-2 to 2", "-2 to 3")):
        jax.eval_shape(lambda table: pe.content_bias(i, j, table, query=x), table)
    with pytest.raises(ValueError, match=message.format("-3 to 1", "-2 to 3")):
        pe.content_bias(i, j, table, query=x, first=-3)
    pe.content_bias(i[:3], j, table, query=x[:3])  # just within reach
    both = np.stack([i[:2], i[:2] + 1_000_000])  # the offsets of each row of a batch are checked alone
    with pytest.raises(ValueError, match=message.format("-2 to 2", "-1 to 1000001")):
        pe.content_bias(both, j[:2], table, query=x[:2])
    pe.content_bias(both, both, table, query=x[:2])


@pytest.mark.parametrize("rule", ["error", "nan"])
def test_traced_offsets_without_a_row_are_nan(rule):
    """Derivatives by rows of the table stay finite."""
    i, j, x, table = np.arange(4, dtype=np.int32), np.arange(3), normal(0, 4, 1, WIDTH), normal(1, 5, WIDTH)
    f = lambda i, table: pe.content_bias(i, j, table, query=x, out_of_range=rule)  # noqa: E731
    y, back = jax.jit(lambda i, table: (f(i, table), jax.grad(lambda table: jnp.nansum(f(i, table)))(table)))(i, table)
    row = i[:, None] - j + 2
    want = np.where(row < 5, formula("query", x, table, ZEROS, i, j)[0], np.nan)
    assert_within(y, want[None], 4e-6, against=FORMULA)
    of_rows = [sum(x[query, 0] for query in np.nonzero(row == r)[0]) for r in range(5)]
    assert_within(back, of_rows, 1e-5, against="sums of queries")


# Tables of more rows than a tile has offsets

LENGTH, ROWS = 13, 1201
# how a long table is read → positions of queries and of keys
LONG_POSITIONS = {
    "one window": np.arange(LENGTH, dtype=np.int32),
    "one window, at the highest positions": HIGHEST - np.arange(LENGTH, dtype=np.int32)[::-1],
    "one offset more than a window": np.int32([*range(LENGTH - 1), content._WINDOW // 2]),
    # offsets beyond one window of rows; offset 424 is the first row of the third block
    "blocks": np.int32([0, 590, 424, 3, 512, 88, 500, 76, 301, 20, 444, 11, 598]),
}


@pytest.mark.parametrize("first", [-1188, -600, 0])  # offsets are in the last rows, in the middle, or in the first rows
@pytest.mark.parametrize("name", LONG_POSITIONS)
def test_a_long_table_is_read_in_a_window_or_in_blocks(name, first):
    x, table, i = normal(0, LENGTH, HEADS, WIDTH), normal(1, ROWS, HEADS, WIDTH), LONG_POSITIONS[name]
    check("query", x, table, {"first": first} | ZEROS, i, i)


@pytest.mark.parametrize(("source", "n", "m"), [("query", 192, 5), ("key", 192, 5), ("query", 5, 192), ("key", 1, 3)])
def test_consecutive_tokens_in_blocks(source, n, m):
    i, j = np.arange(9, 9 + n), np.arange(40, 40 + m)
    tokens = normal(0, BATCH, n, HEADS, WIDTH)
    i, j = (i, j) if source == "query" else (j, i)
    check(source, tokens, normal(1, 500, HEADS, WIDTH), {"first": -200} | ZEROS, np.int32(i), np.int32(j))


def test_positions_that_pass_the_highest_are_not_consecutive():
    x, table, i = normal(0, 3, HEADS, WIDTH), normal(1, 9, HEADS, WIDTH), np.int32([HIGHEST - 1, HIGHEST, LOWEST])
    check("query", x, table, ZEROS, i, i)


def test_products_and_a_gather_select_the_same_entries():
    products, row = normal(0, 2, HEADS, 5, 9), np.random.default_rng(1).integers(0, 9, (2, 1, 5, 7)).astype(np.int32)
    want = np.take_along_axis(products, np.broadcast_to(row, (2, HEADS, 5, 7)), -1)
    for select in (content._select_by_product, content._select_by_gather):
        np.testing.assert_array_equal(jax.jit(select)(products, row), want)


def test_the_derivative_stores_no_one_hot_matrix():
    """A one-hot matrix (queries, keys, rows) is what a TPU selects rows by; `lax.cond` could make it a residual."""
    i, q, table = LONG_POSITIONS["blocks"], normal(0, LENGTH, HEADS, WIDTH), normal(1, ROWS, HEADS, WIDTH)
    stored = jax.tree.leaves(
        jax.eval_shape(lambda *x: jax.vjp(lambda *x: bias("query", *x, ZEROS, i, i), *x)[1], q, table)
    )
    assert stored and max(x.size for x in stored) <= table.size


# On meshes


def mesh_of(kind):
    return jax.make_mesh((2, 3), ("x", "h"), axis_types=(kind,) * 2, devices=jax.devices("cpu")[:6])


def on_mesh(shape, dtype, spec):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(jax.sharding.get_mesh(), spec))


@pytest.mark.parametrize(
    ("source", "of_i", "of_j", "of_x", "of_table", "expected"),
    [
        ("query", P("x"), P("x", "h"), P(), P(), P("x", None, None, "h")),
        ("query", P(), P(), P(None, "x", "h"), P(None, "h"), P(None, "h", "x", None)),
        ("key", P(), P(), P(None, "x", "h"), P(), P(None, "h", None, "x")),
        ("key", P(), P(None, "h"), P(None, "x"), P(), "query_positions, key_positions, key, table must be sharded"),
        ("key", P(), P(), P(None, None, None, "x"), P(), "key must not be sharded along axis 3"),
    ],
)
def test_each_argument_shards_its_axes_of_the_bias(source, of_i, of_j, of_x, of_table, expected, on_cpu):
    f = lambda i, j, x, table: bias(source, x, table, {"first": 0} | NEAREST, i, j)  # noqa: E731
    with jax.set_mesh(mesh_of(AxisType.Explicit)):
        i, j = (on_mesh((2, 6), np.int32, spec) for spec in (of_i, of_j))
        arrays = on_mesh((2, 6, HEADS, WIDTH), np.float32, of_x), on_mesh((6, HEADS, WIDTH), np.float32, of_table)
        if isinstance(expected, P):
            assert jax.eval_shape(f, i, j, *arrays).sharding.spec == expected
        else:
            with pytest.raises(ValueError, match=f"^content_bias: {expected}"):
                jax.eval_shape(f, i, j, *arrays)


def test_cotangents_are_summed_outside_branches(on_cpu):
    """Inside a branch of `lax.cond`, a device would wait forever for devices that take the other branch."""
    specs = P("x"), P("x"), P()
    local = lambda i, q, table: pe.content_bias(i, QUERIES, table, query=q, **NEAREST)  # noqa: E731
    f = jax.shard_map(local, mesh=mesh_of(AxisType.Auto), in_specs=specs, out_specs=P("x"))
    x = np.stack([QUERIES, QUERIES]), normal(0, 2, len(QUERIES), 1, WIDTH), normal(1, 2 * content._WINDOW + 1, WIDTH)
    gradient = jax.grad(lambda table: jnp.sum(f(*x[:2], table)))
    assert jax.jit(gradient).lower(x[2]).as_text().count("all_reduce") == 1


# Arguments

X, TABLE = normal(0, 5, HEADS, WIDTH), normal(1, 5, HEADS, WIDTH)
TEN_ROWS = np.repeat(TABLE, 2, 0)
AXES = "the leading axes of query, (3,), must broadcast with those of positions, (2,) and ()"


@pytest.mark.parametrize(
    ("changed", "error", "match"),
    [
        ({"query": None}, ValueError, "either query or key must be given, got neither"),
        ({"key": X}, ValueError, "either query or key must be given, got query and key"),
        ({"query": None, "key": X}, ValueError, "key must have shape (..., 7, 3 or 1, 4), by key_positions"),
        ({"query": X[:, :2]}, ValueError, "query must have shape (..., 5, 3 or 1, 4), by query_positions"),
        ({"query": X[..., :3], "table": TABLE[:, 0]}, ValueError, "query must have shape (..., 5, heads, 4)"),
        ({"query": X[None].repeat(3, 0), "query_positions": np.zeros((2, 5), int)}, ValueError, AXES),
        ({"table": TABLE[0, 0]}, ValueError, "table must have shape (rows, heads, features)"),
        ({"table": TABLE[:0]}, ValueError, "table must have shape"),
        ({"table": TABLE[:4]}, ValueError, "first must be given for a table with an even number"),
        ({"first": 0.5}, TypeError, "first must be an integer"),
        ({"first": -(2**30) - 1}, ValueError, "first must be from -2³⁰ to 2³⁰"),
        ({"out_of_range": "clip"}, ValueError, "out_of_range must be one of"),
        ({"max_distance": 9}, ValueError, "table must have an even number of rows, from 8 to 2¹²"),
        ({"table": TEN_ROWS[:6], "max_distance": 9}, ValueError, "table must have an even number of rows"),
        ({"table": TEN_ROWS, "max_distance": 3}, ValueError, "max_distance must be above 3"),
        ({"table": TEN_ROWS, "max_distance": 9, "first": 0}, ValueError, "first must not be given"),
        ({"table": TEN_ROWS, "max_distance": 9, **ZEROS}, ValueError, "out_of_range must not be given"),
        ({"table": TEN_ROWS, "max_distance": 9.0}, TypeError, "max_distance must be an integer"),
    ],
)
def test_invalid_arguments_raise(changed, error, match):
    arguments = {"query_positions": np.arange(5), "key_positions": np.arange(7), "table": TABLE, "query": X} | changed
    with pytest.raises(error, match="^content_bias: " + re.escape(match)):
        jax.eval_shape(functools.partial(pe.content_bias, **arguments))
