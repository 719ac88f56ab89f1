"""Biases of content and offset, beside the float64 formula with a matrix that selects each row."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.quick import quick
from helpers.tiers import slow, tiered
from oracles import biases
from oracles.attention import dense, may_see
from posenc_jax._biases import content

HEADS, WIDTH, BATCH = 3, 4, 2
LOWEST, HIGHEST = -(2**31), 2**31 - 1
AT = np.int32([5, 4, 0, LOWEST, HIGHEST])
THERE = np.int32([3, 6, 2, 5, HIGHEST, HIGHEST - 1, LOWEST])
FORMULA = "the float64 formula"


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# Whose content it is, its heads, the shape of the table without features, and the settings
CASES = {
    "Shaw": ("query", HEADS, (5,), {"out_of_range": "nearest"}),
    "one head, a table for each": ("query", 1, (5, HEADS), {"out_of_range": "nearest"}),
    "a bank": ("query", HEADS, (6, HEADS), {"first": 0, "out_of_range": "zeros"}),
    "before": ("query", HEADS, (3,), {"first": -7, "out_of_range": "zeros"}),
    "keys": ("key", HEADS, (4, HEADS), {"first": -1, "out_of_range": "nearest"}),
    "buckets": ("query", HEADS, (16,), {"max_distance": 40}),
    "buckets of keys": ("key", HEADS, (10, HEADS), {"max_distance": 7}),
}


def of(side, x, table, settings, i=AT, j=THERE):
    return pe.content_bias(i, j, table, **{side: x}, **settings)


def exact(side, x, table, settings, i=AT, j=THERE):
    """The selected rows, the content with all heads, and the table with an axis of heads."""
    settings = dict(settings)
    nearest = settings.pop("out_of_range", None) == "nearest"
    table = table if table.ndim == 3 else table[:, None]
    heads = max(x.shape[-2], table.shape[1])
    x, table = (np.broadcast_to(a, (*a.shape[:-2], heads, WIDTH)) for a in (x, table))
    return biases.content_rows(i, j, len(table), nearest=nearest, **settings), x, table, side == "key"


def to_shapes(cotangents, *arrays):
    """Cotangents of arrays with all heads, summed to those of the arrays."""
    dx, dt = cotangents
    x, table = arrays
    dx = dx.sum(-2, keepdims=True) if x.shape[-2] == 1 else dx
    return dx, dt if table.ndim == 3 and table.shape[1] > 1 else dt.sum(1).reshape(table.shape)


def drawn(name, seed=0):
    side, heads, rows, settings = CASES[name]
    length = len(THERE if side == "key" else AT)
    return side, normal(seed, BATCH, length, heads, WIDTH), normal(seed + 1, *rows, WIDTH), settings


@pytest.mark.parametrize("name", tiered(CASES, ["Shaw", "a bank", "keys", "buckets of keys"]))
def test_values_and_derivatives(name):
    side, x, table, settings = drawn(name)
    moves = drawn(name, 7)[1:3]
    dy = normal(9, BATCH, HEADS, len(AT), len(THERE))

    @quick
    def got(x, table, moves, dy):
        f = lambda x, table: of(side, x, table, settings)  # noqa: E731
        y, pull = jax.vjp(f, x, table)
        again = lambda x, table: jax.vjp(f, x, table)[1](dy)  # noqa: E731
        return y, pull(dy), *jax.jvp(f, (x, table), moves)[1:], jax.jvp(again, (x, table), moves)[1]

    y, back, along, second = got(x, table, moves, dy)
    selected, *operands = exact(side, x, table, settings)
    assert y.dtype == np.float32
    assert_within(y, biases.content(selected, *operands), 4e-6, against=FORMULA)
    want = to_shapes(biases.content_back(selected, *operands, dy), x, table)
    _, *moving = exact(side, *moves, settings)
    tangent = sum(biases.content(selected, *pair, side == "key") for pair in ((operands[0], moving[1]), (moving[0], operands[1])))  # fmt: skip
    assert_within(along, tangent, 1e-5, against=f"the tangent of {FORMULA}")
    of_moves = to_shapes(biases.content_back(selected, *moving, dy), x, table)  # it is bilinear
    for name, a, b in (("x", back, want), ("x of second order", second, of_moves)):
        for found, right in zip(a, b, strict=True):
            assert np.any(right)
            assert_within(found, right, 1e-5, against=f"the cotangent by {name} of {FORMULA}")


def test_wrong_variants_differ():
    """The oracle with the sign of the offset, an edge, the side or the heads wrong is far from the values."""
    side, x, table, settings = drawn("a bank")
    i, j = np.arange(5), np.arange(7)
    y = np.asarray(of(side, x, table, settings, i, j))
    want = exact(side, x, table, settings, i, j)
    assert_within(y, biases.content(*want), 4e-6, against=FORMULA)
    wrong = {
        "the sign": exact(side, x, table, settings, -i, -j),
        "a place": exact(side, x, table, settings | {"first": 1}, i, j),
        "the rows reversed": exact(side, x, table[::-1], settings, i, j),
        "beyond the end": exact(side, x, table, settings | {"out_of_range": "nearest"}, i, j),
        "the heads": exact(side, x[:, :, ::-1], table, settings, i, j),
        "the heads of the table": exact(side, x, table[:, ::-1], settings, i, j),
    }
    for name, operands in wrong.items():
        assert np.abs(biases.content(*operands) - y).max() > 0.5, name


def rows_of_offsets(offsets, rows, **settings):
    """The row of each offset, read from a table of its rows' indices."""
    table, one = np.arange(rows, dtype=np.float32)[:, None], np.ones((1, 1, 1), np.float32)
    return np.asarray(pe.content_bias(offsets, np.zeros(1, np.int32), table, key=one, **settings)[0, :, 0]).astype(int)


@pytest.mark.parametrize(
    ("rows", "max_distance"),
    [(512, 512), (12, 82), *(slow(*x) for x in [(8, 4), (8, 1000), (10, 7), (64, 65), (34, 2**40), (256, 5000)])],
)
def test_every_distance_is_in_its_bucket(rows, max_distance):
    edges = np.unique([e + d for e in content._edges(rows // 2, max_distance) for d in (-1, 0, 1)])
    offsets = np.unique([*range(3 * rows), *edges[edges < 2**31], HIGHEST])
    offsets = np.concatenate([-offsets[::-1], offsets, [LOWEST]]).astype(np.int32)
    want = [np.sign(int(d)) * biases.log_bucket(abs(int(d)), rows // 2, max_distance) for d in offsets]
    np.testing.assert_array_equal(rows_of_offsets(offsets, rows, max_distance=max_distance), np.clip(np.add(want, rows // 2), 0, rows - 1))  # fmt: skip


def test_a_bucket_that_begins_at_a_power_is_exact():
    """Of 36 rows up to 730, bucket 9 + k ends with 9 · 81^(k / 8): at 27, 81, 243 and 729, which floats may miss."""
    rows, most = 36, 9 * 81 + 1
    row = rows_of_offsets(np.arange(1000, dtype=np.int32), rows, max_distance=most) - rows // 2
    for k, edge in ((2, 27), (4, 81), (6, 243), (8, 729)):
        assert row[edge] == 9 + k and row[edge + 1] == min(10 + k, rows // 2 - 1), (k, edge)


def test_edges_beyond_all_integers():
    """Of a max_distance beyond 64 bits too, the edges within them are exact."""
    edges, within = content._edges(256, 10**20), 122
    assert edges[within - 1] < 2**64 <= min(edges[within:])
    for k, edge in enumerate(edges[:within]):
        assert [biases.log_bucket(d, 256, 10**20) for d in (edge - 1, edge)] == [128 + k, 129 + k]


# Offsets that the table does not hold


def test_out_of_range():
    i, j = np.arange(4, dtype=np.int32), np.arange(3, dtype=np.int32)
    x, table = normal(0, 4, 1, WIDTH), normal(1, 5, WIDTH)
    message = "^content_bias: query_positions and key_positions must differ by -2 to 2 for this table, got -2 to 3$"
    with pytest.raises(ValueError, match=message):
        pe.content_bias(i, j, table, query=x)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda table: pe.content_bias(i, j, table, query=x), table)  # known to the trace
    with pytest.raises(ValueError, match="by -3 to 1 for this table, got -2 to 3$"):
        pe.content_bias(i, j, table, query=x, first=-3)
    both = np.stack([i[:2], i[:2] + 1_000_000])  # each batch by itself
    with pytest.raises(ValueError, match="got -1 to 1000001$"):
        pe.content_bias(both, j[:2], table, query=x[:2])
    inside = pe.content_bias(both, np.stack([j, j + 1_000_000])[:, :2], table, query=x[:2])
    np.testing.assert_array_equal(inside[0], inside[1])

    @quick
    def traced(i, table):
        f = lambda table, **rule: pe.content_bias(i, j, table, query=x, **rule)  # noqa: E731
        gradient = jax.grad(lambda table: jnp.nansum(f(table)))(table)
        return f(table), f(table, out_of_range="nan"), f(table, out_of_range="zeros"), gradient

    error, nan, zeros, gradient = traced(i, table)
    selected, *operands = exact("query", x, table, {}, i, j)
    want = biases.content(selected, *operands)
    held = selected.any(-1)[None]
    assert not held.all()
    assert_within(zeros, want, 4e-6, against=FORMULA)
    for got in (error, nan):
        np.testing.assert_array_equal(np.isnan(got), ~held)
        np.testing.assert_array_equal(np.where(held, got, 0), zeros)
    back = biases.content_back(selected, *operands, np.ones_like(want))
    assert_within(gradient, to_shapes(back, x, table)[1], 1e-5, against=FORMULA)


# In attention

LENGTH, ROWS = 13, 1201
SPREAD = np.cumsum(np.random.default_rng(5).integers(1, 90, LENGTH)).astype(np.int32)
PLACES = {
    "counted": np.arange(LENGTH, dtype=np.int32),
    "far": HIGHEST - LENGTH + np.arange(LENGTH, dtype=np.int32),
    "spread": SPREAD,
    # further apart in a tile than one window of rows reaches; offset 424 is the first row of the third part
    "scattered": np.int32([0, 590, 424, 3, 512, 88, 500, 76, 301, 20, 444, 11, 598]),
    "packed": np.int32([*range(6), *range(7)]),
    "zigzag": np.int32([*range(3), *range(23, 26), *range(7)]),
}
PARTS = np.int32([0] * 6 + [1] * 7)


@quick
def in_tiles(x, i, segments, dy):
    """`attention` with a table of more rows than a tile has offsets, as Transformer-XL's; and one of few rows."""

    def f(q, k, v, table, few):
        def bias(i, j, q, k):
            of_keys = pe.content_bias(i, j, few, key=k, out_of_range="nearest")
            return pe.content_bias(i, j, table, query=q) + of_keys

        options = {"query_positions": i, "key_positions": i, "causal": True, "block_size": 4}
        options |= {"query_segments": segments, "key_segments": segments}
        return pe.attention(q, k, v, bias=bias, query_data=q, key_data=k, **options)

    y, pull = jax.vjp(f, *x)
    return y, pull(dy), jax.jvp(f, x, x)[1]


def operands(seed=0):
    shapes = *[(1, LENGTH, HEADS, WIDTH)] * 3, (ROWS, HEADS, WIDTH), (7, WIDTH)
    return tuple(normal(seed + n, *shape) for n, shape in enumerate(shapes))


def whole(x, i, segments, dy, causal=True):
    q, k, v, table, few = x
    of_table = exact("query", q, table, {"out_of_range": "zeros"}, i, i)
    of_few = exact("key", k, few, {"out_of_range": "nearest"}, i, i)
    bias = biases.content(*of_table) + biases.content(*of_few)
    y, _, back = dense(q, k, v, bias, may_see(i, i, causal, (segments, segments)))
    dq, dk, dv, ds = back(dy)
    by_query, by_table = biases.content_back(*of_table, ds)
    by_key, by_few = to_shapes(biases.content_back(*of_few, ds), k, few)
    return y, (dq + by_query, dk + by_key, dv, by_table, by_few)


@pytest.mark.parametrize("name", tiered(PLACES, ["counted", "packed"]))
def test_in_the_tiles_of_attention(name):
    """All places run the same program: consecutive ones in one window of the table, others by its parts."""
    x, i, dy = operands(), PLACES[name], normal(9, 1, LENGTH, HEADS, WIDTH)
    segments = PARTS if name == "packed" else np.zeros(LENGTH, np.int32)
    y, back, along = in_tiles(x, i, segments, dy)
    want, cotangents = whole(x, i, segments, dy)
    assert_within(y, want, 2e-6 * np.abs(want).max(), against=FORMULA)
    for found, right in zip(back, cotangents, strict=True):
        assert np.any(right)
        assert_within(found, right, 1e-5 * np.abs(right).max(), against=f"the cotangents of {FORMULA}")
    step = 1e-6
    ends = [whole([np.float64(a) * (1 + sign * step) for a in x], i, segments, dy)[0] for sign in (1, -1)]
    assert_within(along, (ends[0] - ends[1]) / (2 * step), 2e-5, against=f"differences of {FORMULA}")


def test_where_a_query_stands_does_not_matter():
    x, dy = operands(), normal(9, 1, LENGTH, HEADS, WIDTH)
    zeros = np.zeros(LENGTH, np.int32)
    here, far = (in_tiles(x, PLACES[name], zeros, dy) for name in ("counted", "far"))
    jax.tree.map(np.testing.assert_array_equal, here, far)
    packed = in_tiles(x, PLACES["packed"], PARTS, dy)[0]
    alone = [np.concatenate([a[:, 6:], a[:, :6]], 1) if a.shape[1] == LENGTH else a for a in x]
    second = in_tiles(tuple(alone), PLACES["counted"], zeros, dy)[0]
    assert_within(packed[:, 6:], second[:, :7], 1e-6, against="the document alone")  # other tiles, other sums
    assert_within(packed[:, :6], here[0][:, :6], 1e-6, against="the document alone")


def test_decode_equals_prefill():
    """One query beside a cache in which later slots are not written."""
    q, k, v, table, few = operands()
    zeros, dy = np.zeros(LENGTH, np.int32), normal(9, 1, LENGTH, HEADS, WIDTH)
    prefill = in_tiles((q, k, v, table, few), PLACES["counted"], zeros, dy)[0]

    @quick
    def step(q, p):
        def bias(i, j, q, k):
            of_keys = pe.content_bias(i, j, few, key=k, out_of_range="nearest")
            return pe.content_bias(i, j, table, query=q) + of_keys

        where = {"query_positions": p[None], "key_positions": jnp.arange(LENGTH)}
        return pe.attention(q, k, v, bias=bias, query_data=q, key_data=k, causal=True, block_size=4, **where)

    for p in (0, 5, 12):
        assert_within(step(q[:, p : p + 1], np.int32(p)), prefill[:, p : p + 1], 1e-6, against="prefill")


def test_the_form_for_tpus():
    """One-hot products select what a gather does, here compiled for a CPU."""
    products, row = normal(0, 2, HEADS, 5, 9), np.random.default_rng(1).integers(0, 9, (2, 1, 5, 7)).astype(np.int32)
    got, want = quick(lambda *x: [f(*x) for f in (content._select_by_product, content._select_by_gather)])(products, row)  # fmt: skip
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(want, np.take_along_axis(products, np.broadcast_to(row, (2, HEADS, 5, 7)), -1))


# Types, shapes and transforms


def test_dtypes():
    side, x, table, settings = drawn("keys")
    low = x.astype(jnp.bfloat16), table.astype(jnp.bfloat16)

    @quick
    def got(x, table, low):
        f = lambda x, table: of(side, x, table, settings)  # noqa: E731
        both, pull = jax.vjp(f, *low)
        return f(low[0], table), f(x, low[1]), both, pull(both)

    *found, back = got(x, table, low)
    wide = [np.float32(a) for a in low]
    for y, operands in zip(found, ((wide[0], table), (x, wide[1]), wide), strict=True):
        assert y.dtype == np.float32
        assert_within(y, biases.content(*exact(side, *operands, settings)), 4e-6, against=FORMULA)
    assert [a.dtype for a in back] == [jnp.bfloat16] * 2


def test_vmap_and_batches():
    side, x, table, settings = drawn("Shaw")
    at, tables = np.stack([AT, AT[::-1]]), np.stack([table, 2 * table])
    f = functools.partial(of, side, settings=settings)

    @quick
    def got(x, tables, at):
        each = jax.vmap(lambda x, i: f(x, tables[0], i=i))(x, at)
        by_table = jax.vmap(lambda table: f(x, table))(tables)
        return each, f(x, tables[0], i=at), by_table, f(x[0], tables[0]), f(x, tables[0], i=at, j=THERE[None])  # fmt: skip

    mapped, batched, by_table, alone, again = got(x, tables, at)
    want = np.stack([biases.content(*exact(side, a, table, settings, i=i)) for a, i in zip(x, at, strict=True)])
    for y in (mapped, batched, again):
        assert_within(y, want, 4e-6, against=FORMULA)
    both = biases.content(*exact(side, x, table, settings))
    assert_within(by_table, np.stack([both, 2 * both]), 8e-6, against=FORMULA)
    assert_within(alone, both[0], 4e-6, against=FORMULA)


@pytest.mark.parametrize("shape", [(0, 7), (5, 0), (0, 0)])
def test_empty_sequences(shape):
    n, m = shape
    settings = {"out_of_range": "nearest"}
    f = lambda x, table: of("query", x, table, settings, np.arange(n), np.arange(m))  # noqa: E731
    for rows in (5, ROWS):
        assert jax.eval_shape(f, normal(0, BATCH, n, HEADS, WIDTH), normal(1, rows, WIDTH)).shape == (
            BATCH,
            HEADS,
            n,
            m,
        )


# On meshes

D, H = "data", "heads"


def mesh_of(kind):
    return jax.make_mesh((2, 3), (D, H), axis_types=(kind,) * 2, devices=jax.devices("cpu")[:6])


@pytest.mark.parametrize("name", tiered(["a bank", "keys", "Shaw"], ["a bank"]))
def test_on_explicit_axes(name, on_cpu):
    side, x, table, settings = drawn(name)
    of_table = P(None, H) if table.ndim == 3 else P()
    dy = normal(9, BATCH, HEADS, len(AT), len(THERE))

    def f(x, table, dy):
        y, pull = jax.vjp(lambda x, table: of(side, x, table, settings), x, table)
        return y, pull(dy)

    mesh = mesh_of(AxisType.Explicit)
    put = lambda a, spec: jax.device_put(a, NamedSharding(mesh, spec))  # noqa: E731
    with jax.set_mesh(mesh):
        y, back = quick(f)(put(x, P(D, None, H)), put(table, of_table), put(dy, P(D, H)))
    assert y.sharding.is_equivalent_to(NamedSharding(mesh, P(D, H)), 4)
    selected, *arrays = exact(side, x, table, settings)
    assert_within(y, biases.content(selected, *arrays), 4e-6, against=FORMULA)
    for found, right in zip(back, to_shapes(biases.content_back(selected, *arrays, dy), x, table), strict=True):
        assert_within(found, right, 1e-5, against=FORMULA)


@pytest.mark.parametrize(
    ("side", "of_tokens", "of_table", "spec"),
    [
        ("query", P(None, D, H), P(), P(None, H, D, None)),
        ("key", P(None, D, H), P(), P(None, H, None, D)),
        ("query", P(), P(None, H), P(None, H, None, None)),
    ],
)
def test_one_argument_alone_shards_its_axes_of_the_bias(side, of_tokens, of_table, spec, on_cpu):
    mesh, i = mesh_of(AxisType.Explicit), np.arange(6)
    x, table = (
        jax.ShapeDtypeStruct((*shape, HEADS, WIDTH), np.float32, sharding=NamedSharding(mesh, spec))
        for shape, spec in (((1, 6), of_tokens), ((5,), of_table))
    )
    with jax.set_mesh(mesh):
        y = jax.eval_shape(lambda x, table: of(side, x, table, {"out_of_range": "nearest"}, i, i), x, table)
    assert y.sharding.spec == spec


@pytest.mark.slow
def test_in_shard_map(on_cpu):
    """Queries are split, the tables are whole: their cotangents are summed over devices once."""
    n = 12
    x = tuple(a[:, :n] if a.shape[1] == LENGTH else a for a in operands())
    i, dy = np.arange(n, dtype=np.int32), normal(9, 1, n, HEADS, WIDTH)
    rows = P(None, D)

    def local(i, q, k, v, table, few):
        def bias(i, j, q, k):
            of_keys = pe.content_bias(i, j, few, key=k, out_of_range="nearest")
            return pe.content_bias(i, j, table, query=q) + of_keys

        where = {"query_positions": i, "key_positions": jnp.arange(n), "causal": True, "block_size": 4}
        return pe.attention(q, k, v, bias=bias, query_data=q, key_data=k, **where)

    mesh = jax.make_mesh((3,), (D,), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:3])
    f = jax.shard_map(local, mesh=mesh, in_specs=(P(D), rows, P(), P(), P(), P()), out_specs=rows)
    y, back = quick(lambda *x: (f(i, *x), jax.vjp(functools.partial(f, i), *x)[1](dy)))(*x)
    want, cotangents = whole(x, i, np.zeros(n, np.int32), dy)
    assert_within(y, want, 2e-6 * np.abs(want).max(), against=FORMULA)
    for found, right in zip(back, cotangents, strict=True):
        assert_within(found, right, 1e-5 * np.abs(right).max(), against=f"the cotangents of {FORMULA}")


def test_cotangents_are_summed_outside_branches(on_cpu):
    """Devices whose positions take different branches of `lax.cond` would wait for each other forever inside them."""
    specs = P(D), P(D), P()
    bias = lambda i, q, table: pe.content_bias(i, AT, table, query=q, out_of_range="nearest")  # noqa: E731
    f = jax.shard_map(bias, mesh=mesh_of(AxisType.Auto), in_specs=specs, out_specs=P(D))
    x = np.stack([AT, AT]), normal(0, 2, len(AT), 1, WIDTH), normal(1, 2 * content._WINDOW + 1, WIDTH)
    gradient = jax.grad(lambda table: jnp.sum(f(*x[:2], table)))
    assert jax.jit(gradient).lower(x[2]).as_text().count("all_reduce") == 1


# Memory


@pytest.mark.slow
@pytest.mark.parametrize("rows", [(9,), (4 * 512 - 1, 2)], ids=str)
def test_memory_grows_with_the_length(rows):
    """Beside attention without a bias, temporaries stay those of tiles, in the derivative too."""

    def temporaries(length, kind):
        shapes = [jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32)] * 3
        shapes.append(jax.ShapeDtypeStruct((*rows, 8), jnp.float32))

        def f(q, k, v, table):
            bias = lambda i, j, q, _: pe.content_bias(i, j, table, query=q, out_of_range="nearest")  # noqa: E731
            return jnp.sum(pe.attention(q, k, v, bias=bias, query_data=q, block_size=64) ** 2)

        program = quick(jax.grad(f, (0, 3))).lower(*shapes).compile()
        return program.memory_analysis().temp_size_in_bytes

    less, more = (temporaries(length, rows) for length in (1024, 4096))
    assert more < 4.5 * less and more < 2 * 4096**2


def test_the_derivative_stores_no_one_hot_matrix():
    """It is (queries, keys, rows), and where two branches of `lax.cond` are apart, a TPU would store it."""
    q, *_, table, _ = operands()
    f = lambda q, table: pe.content_bias(SPREAD, SPREAD, table, query=q, out_of_range="zeros")  # noqa: E731
    stored = jax.tree.leaves(jax.eval_shape(lambda *x: jax.vjp(f, *x)[1], q, table))
    assert stored and max(x.size for x in stored) <= table.size


# Arguments

X, TABLE = normal(0, 5, HEADS, WIDTH), normal(1, 5, HEADS, WIDTH)
FIVE, SEVEN = np.arange(5), np.arange(7)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"table": TABLE}, ValueError, "either query or key must be given, got neither$"),
        ({"table": TABLE, "query": X, "key": X}, ValueError, "either query or key must be given, got query and key$"),
        ({"table": TABLE, "key": X}, ValueError, r"key must have shape \(..., 7, 3 or 1, 4\), by key_positions and table, got \(5, 3, 4\)$"),
        ({"table": TABLE[:, :2], "query": X}, ValueError, r"query must have shape \(..., 5, 2 or 1, 4\), by query_positions and table, got \(5, 3, 4\)$"),
        ({"table": TABLE[..., :3], "query": X}, ValueError, r"query must have shape \(..., 5, 3 or 1, 3\), by query_positions and table, got \(5, 3, 4\)$"),
        ({"table": TABLE[0, 0], "query": X}, ValueError, r"table must have shape \(rows, heads, features\) or \(rows, features\), got \(4,\)$"),
        ({"table": TABLE[:0], "query": X}, ValueError, r"table must have shape .*, got \(0, 3, 4\)$"),
        ({"table": TABLE[:4], "query": X}, ValueError, "first must be given for a table with an even number of rows, 4, got None$"),
        ({"table": TABLE, "query": X, "first": 0.5}, TypeError, "first must be an integer, got float 0.5$"),
        ({"table": TABLE, "query": X, "first": 2**40}, ValueError, "first must be from -2³⁰ to 2³⁰, got 1099511627776$"),
        ({"table": TABLE, "query": X, "out_of_range": "clip"}, ValueError, "out_of_range must be one of .*, got 'clip'$"),
        ({"table": TABLE, "query": X, "max_distance": 9}, ValueError, "table must have an even number of rows, from 8 to 2¹², with max_distance, got 5$"),
        ({"table": np.repeat(TABLE, 2, 0), "query": X, "max_distance": 3}, ValueError, "max_distance must be above 3 for a table of 10 rows, got 3$"),
        ({"table": np.repeat(TABLE, 2, 0), "query": X, "max_distance": 9, "first": 0}, ValueError, "first must not be given with max_distance, got 0$"),
        ({"table": np.repeat(TABLE, 2, 0), "query": X, "max_distance": 9, "out_of_range": "zeros"}, ValueError, "out_of_range must not be given with max_distance, got 'zeros'$"),
        ({"table": np.repeat(TABLE, 2, 0), "query": X, "max_distance": 9.0}, TypeError, "max_distance must be an integer, got float 9.0$"),
        ({"table": TABLE, "query": X.astype(int)}, TypeError, "query must be a float array"),
        ({"table": TABLE, "query": np.ones((3, *X.shape), np.float32), "query_positions": np.zeros((2, 5), int)}, ValueError, r"the leading axes of query, \(3,\), must broadcast with those of positions, \(2,\) and \(\)$"),
        ({"table": TABLE, "query": X, "query_positions": np.float32(FIVE)}, TypeError, "query_positions must be an integer array"),
    ],
)  # fmt: skip
def test_wrong_arguments(arguments, kind, message):
    arguments = {"query_positions": FIVE, "key_positions": SEVEN} | arguments
    with pytest.raises(kind, match=f"^content_bias: {message}"):
        jax.eval_shape(lambda: pe.content_bias(**arguments))
