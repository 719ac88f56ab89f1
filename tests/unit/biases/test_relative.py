"""Relative position biases, beside a loop over elements and beside layers of transformers and timm."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.quick import quick
from helpers.tiers import slow, tiered
from helpers.vision_biases import bias_of, grid_of, of_offsets
from oracles import biases, recorded

PEERS = recorded.read("relative_biases")
RNG = np.random.default_rng(0)
HEADS = 3
LOWEST, HIGHEST = -(2**31), 2**31 - 1
WINDOWS = [(5,), (1,), (3, 4), (1, 5), (2, 3, 4), (2, 1, 2, 3)]


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def table_of(window, symmetric=False):
    return normal(*(n if symmetric else 2 * n - 1 for n in window), HEADS)


def coordinates(positions, window):
    """What the function takes: a table with one axis of offsets has positions without an axis of coordinates."""
    return positions[..., 0] if len(window) == 1 else positions


def bias(window, queries, keys, *arguments, **settings):
    sides = (coordinates(np.asarray(x), window) for x in (queries, keys))
    return pe.relative_position_bias(*sides, *arguments, **settings)


# Values


@pytest.mark.parametrize("window", tiered(WINDOWS, [(5,), (2, 3, 4)]), ids=str)
def test_each_offset_has_its_value(window):
    grid, tables = grid_of(window), {symmetric: table_of(window, symmetric) for symmetric in (False, True)}
    both = lambda tables: {kind: bias(window, grid, grid, table, symmetric=kind) for kind, table in tables.items()}  # noqa: E731
    for symmetric, got in jax.jit(both)(tables).items():
        want = biases.relative(grid, grid, tables[symmetric], symmetric=symmetric)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, want, err_msg=f"{symmetric=}")
        # What is wrong by a sign, by the order of axes or by one place is another bias.
        wrong = {"a place": (grid + 1, grid)} if max(window) > 1 else {}
        wrong |= {"the order": (grid[:, ::-1],) * 2} if window != window[::-1] else {}
        wrong |= {"the sign": (-grid, -grid)} if max(window) > 1 and not symmetric else {}
        for name, sides in wrong.items():
            other = biases.relative(*sides, tables[symmetric], symmetric=symmetric)
            assert not np.array_equal(other, want), (symmetric, name)


DEFAULT = "timm, RelPosBias, class token", "timm, RelPosBiasTf", "timm, LeViT, subsampled"


@pytest.mark.parametrize(
    "case",
    tiered(PEERS["layers"], [case for case in PEERS["layers"] if case["peer"] in DEFAULT]),
    ids=lambda c: c["peer"],
)
def test_beside_layers_of_transformers_and_timm(case):
    arrays = {name: np.array(x, np.float32) for name, x in case.items() if name not in ("peer", "window")}
    got = bias_of(case["peer"], tuple(case["window"]), arrays)
    bound = 2e-6 * np.abs(arrays["bias"]) if "Mlp" in case["peer"] else 0
    assert_within(got, arrays["bias"], bound, against=case["peer"])


@pytest.mark.parametrize(
    "case", tiered(PEERS["resized"], PEERS["resized"][1:2]), ids=lambda case: f"{case['window']} {case['new']}"
)
def test_a_table_for_another_window_as_timm_resizes_it(case):
    old, new = (np.float32(case[name]).reshape(2 * n - 1, 2 * n - 1, -1) for name, n in (("table", case["window"]), ("resized", case["new"])))  # fmt: skip
    assert_within(pe.resize_table(old, new.shape[:2], method="cubic"), new, 5e-6, against="bicubic with antialias")


@pytest.mark.parametrize("case", PEERS["larger"], ids=lambda case: f"{case['window']} {case['new']}")
def test_a_larger_window_as_beit_resizes_its_table(case):
    table, new = np.float32(case["table"]), case["new"]
    inner = pe.resize_table(of_offsets(table[:-3], (case["window"],) * 2), (2 * new - 1,) * 2)
    table = np.concatenate([inner.reshape(-1, 2), table[-3:]])
    assert_within(bias_of("BEiT", (new, new), {"table": table}), case["bias"], 2e-6, against="bilinear")


def test_tokens_outside_the_grid():
    grid, table, prefix = grid_of((2, 3)), table_of((2, 3)), normal(3, HEADS)
    tokens = np.concatenate([[[-1, -1]], grid[:4], [[-7, 2]], grid[4:]])  # two of them, one in between
    symmetric = table_of((2, 3), True)
    far = tokens + np.where(tokens[:, :1] < 0, 0, 1_000_000_000)

    @jax.jit
    def compute(table, symmetric, prefix):
        f = functools.partial(pe.relative_position_bias, prefix=prefix)
        of_far, part = f(far, far, table), f(tokens, tokens[2:], table)
        # Without prefix a negative coordinate is a place.
        negative, places = (pe.relative_position_bias(p, p, table) for p in (grid - 5, grid))
        return f(tokens, tokens, table), of_far, part, f(tokens, tokens, symmetric, symmetric=True), negative, places

    whole, of_far, part, mirrored, negative, places = map(np.asarray, compute(table, symmetric, prefix))
    np.testing.assert_array_equal(part, biases.relative(tokens, tokens[2:], table, prefix=prefix))
    np.testing.assert_array_equal(whole[:, 0, 1], prefix[0])  # from a class token to the grid
    np.testing.assert_array_equal(whole[:, 1, 0], prefix[1])
    np.testing.assert_array_equal(whole[:, 0, 5], prefix[2])
    np.testing.assert_array_equal(of_far, whole)
    np.testing.assert_array_equal(mirrored, biases.relative(tokens, tokens, symmetric, prefix=prefix, symmetric=True))
    np.testing.assert_array_equal(negative, places)


# Offsets that the table does not hold


@pytest.mark.parametrize("symmetric", [False, slow(True)])
def test_out_of_range(symmetric):
    at = np.array([[0, 0], [2, 1], [3, 0], [0, -4], [LOWEST, 0], [HIGHEST, 3], [-1, HIGHEST]])
    table = table_of((3, 4), symmetric)
    f = functools.partial(pe.relative_position_bias, symmetric=symmetric)
    want = biases.relative(at, at, table, symmetric=symmetric)
    assert np.isnan(want).any(axis=0).sum() > 20
    with pytest.raises(ValueError, match="^relative_position_bias: query_positions and key_positions must differ by at most 2 in coordinate 0 for this table, got 4294967295$"):  # fmt: skip
        f(at, at, table)
    with pytest.raises(ValueError, match="by at most 3 in coordinate 1 for this table, got 4$"):
        f(at[:1], at[3:4], table)
    with pytest.raises(ValueError, match="by at most 2 in coordinate 0"):
        jax.jit(lambda table: f(at, at, table))(table)  # known to the trace
    np.testing.assert_array_equal(f(at, at, table, out_of_range="nan"), want)

    @jax.jit
    def traced(at, table):
        gradient = jax.grad(lambda table: jnp.nansum(f(at, at, table)))(table)
        return f(at, at, table), f(at, at, table, out_of_range="zeros"), gradient

    nan, zeros, gradient = traced(at, table)
    np.testing.assert_array_equal(nan, want)
    np.testing.assert_array_equal(zeros, np.nan_to_num(want))
    counts = np.zeros(table.shape)
    for p in at:
        for q in at:
            place = abs(p - q) if symmetric else p - q + [2, 3]
            if (place >= 0).all() and (place < table.shape[:2]).all():
                counts[tuple(place)] += 1
    np.testing.assert_array_equal(gradient, counts)


def test_each_batch_is_checked_by_itself():
    grid, table = grid_of((2, 3)), table_of((2, 3))
    apart = np.stack([grid, grid + 1_000_000])
    both = np.asarray(pe.relative_position_bias(apart, apart, table))
    np.testing.assert_array_equal(both[1], biases.relative(grid, grid, table))
    with pytest.raises(ValueError, match="in coordinate 0 for this table, got 1000001$"):
        pe.relative_position_bias(apart, grid, table)
    none = jax.eval_shape(lambda table: pe.relative_position_bias(apart[:, :0], grid, table), table)
    assert none.shape == (2, HEADS, 0, 6)


# Tiles, batches and programs


def test_tiles_batches_and_transforms_have_the_same_bits():
    window, table, prefix = (4, 5), table_of((4, 5)), normal(3, HEADS)
    grid = np.pad(grid_of(window), ((1, 0), (0, 0)), constant_values=-1)
    f = functools.partial(pe.relative_position_bias, prefix=prefix)
    whole = np.asarray(f(grid, grid, table))
    rows, columns = np.arange(1, 13).reshape(2, 3, 2), np.arange(8).reshape(2, 1, 4)
    q, k = grid[rows], grid[columns]
    want = np.moveaxis(whole[:, rows[..., :, None], columns[..., None, :]], 0, 2)
    tables = np.stack([table, 2 * table])

    @jax.jit
    def compute(grid, q, k, tables):
        return {
            "a tile": f(grid[3:7], grid[:9], tables[0]),
            "batches": f(q, k, tables[0]),
            "maps": jax.vmap(jax.vmap(f, (0, None, None)), (0, 0, None))(q, k[:, 0], tables[0]),
            "a scan": jax.lax.scan(lambda _, q: (0, f(q, k[0, 0], tables[0])), 0, q[0])[1],
            "mapped tables": jax.vmap(f, (None, None, 0))(grid, grid, tables)[1, :, 1:, 1:],
        }

    found = compute(grid, q, k, tables)
    expected = {"a tile": whole[:, 3:7, :9], "mapped tables": 2 * whole[:, 1:, 1:], "a scan": want[0]}
    for name, got in found.items():
        np.testing.assert_array_equal(got, expected.get(name, want), err_msg=name)


@pytest.mark.slow
def test_exported_with_symbolic_sizes():
    grid, table = grid_of((4, 5)), table_of((4, 5))
    n, m = export.symbolic_shape("n, m")
    shapes = jax.ShapeDtypeStruct((n, 2), jnp.int32), jax.ShapeDtypeStruct((m, 2), jnp.int32)
    exported = export.export(jax.jit(lambda q, k: pe.relative_position_bias(q, k, table)))(*shapes)
    np.testing.assert_array_equal(exported.call(grid[:5], grid), pe.relative_position_bias(grid[:5], grid, table))


def test_positions_of_other_dtypes():
    grid, table = grid_of((3, 4)), table_of((3, 4))
    sides = [grid.astype(dtype) for dtype in (np.int8, np.uint8, np.int16, np.uint32, np.int64, np.uint64)]
    f = pe.relative_position_bias
    alike = jax.jit(lambda sides, table: [f(p, p, table) for p in sides])(sides, table)
    mixed = jax.jit(lambda table: [f(p, grid, table) for p in sides])(table)
    want = biases.relative(grid, grid, table)
    for side, *found in zip(sides, alike, mixed, strict=True):
        for got in found:
            np.testing.assert_array_equal(got, want, err_msg=str(side.dtype))


def test_positions_without_a_common_dtype():
    grid = grid_of((3, 4))
    with pytest.raises(TypeError, match="^relative_position_bias: query_positions of uint\\d+ and key_positions of int\\d+ have no common dtype"):  # fmt: skip
        wide = (np.uint64, np.int64) if jax.config.read("jax_enable_x64") else (np.uint32, np.int32)
        jax.jit(lambda q, k: pe.relative_position_bias(q, k, table_of((3, 4))))(*map(grid.astype, wide))


def test_tables_of_other_dtypes():
    grid, table = grid_of((3, 4)), table_of((3, 4))
    low, prefix = table.astype(jnp.bfloat16), np.ones((3, HEADS), np.float32)
    got = pe.relative_position_bias(grid, grid, low, prefix=prefix)
    assert got.dtype == jnp.float32
    np.testing.assert_array_equal(got, biases.relative(grid, grid, low.astype(np.float32)))


@pytest.mark.slow
def test_a_bias_of_attention():
    window, table, prefix = (3, 4), table_of((3, 4)), normal(3, HEADS)
    tokens = np.pad(grid_of(window), ((1, 0), (0, 0)), constant_values=-1)
    q, k, v = normal(3, 2, 13, HEADS, 4)

    def attend(table, prefix):
        at = jnp.asarray(tokens)
        return pe.attention(q, k, v, bias=lambda i, j: pe.relative_position_bias(at[i], at[j], table, prefix=prefix), block_size=5)  # fmt: skip

    def dense(table, prefix):
        whole = pe.relative_position_bias(tokens, tokens, table, prefix=prefix)[None]
        return jax.nn.dot_product_attention(q, k, v, bias=whole)

    both = lambda f: lambda *p: (f(*p), jax.grad(lambda *p: jnp.sum(f(*p) ** 2), (0, 1))(*p))  # noqa: E731
    (y, gradients), (dense_y, dense_gradients) = quick(lambda *p: (both(attend)(*p), both(dense)(*p)))(table, prefix)
    assert_within(y, dense_y, 1e-6, against="a dense bias")
    for got, want in zip(gradients, dense_gradients, strict=True):
        assert np.any(want)
        assert_within(got, want, 1e-5, against="the derivative of a dense bias")


# Derivatives


def test_derivatives_in_both_modes():
    grid = np.pad(grid_of((2, 3)), ((1, 0), (0, 0)), constant_values=-1)
    f = lambda table, prefix: pe.relative_position_bias(grid, grid, table, prefix=prefix)  # noqa: E731
    parameters, along = ((table_of((2, 3)), normal(3, HEADS)) for _ in range(2))
    cotangent = normal(HEADS, 7, 7)
    compute = lambda p, v, ct: (f(*v), jax.jvp(f, p, v)[1], jax.vjp(f, *p)[1](ct), jax.jacrev(f)(*p), jax.jacfwd(f)(*p))  # noqa: E731  # fmt: skip
    want, moved, back, jacobian, forward = jax.jit(compute)(parameters, along, cotangent)
    np.testing.assert_array_equal(moved, want)  # it is linear
    assert np.sum([np.vdot(a, b) for a, b in zip(back, along, strict=True)]) == pytest.approx(np.vdot(cotangent, want), rel=1e-4)  # fmt: skip
    np.testing.assert_array_equal(jacobian, forward)


@pytest.mark.slow
def test_derivatives_outside_of_jit_and_of_higher_order():
    grid = np.pad(grid_of((2, 3)), ((1, 0), (0, 0)), constant_values=-1)
    f = lambda table, prefix: pe.relative_position_bias(grid, grid, table, prefix=prefix)  # noqa: E731
    parameters, along = ((table_of((2, 3)), normal(3, HEADS)) for _ in range(2))
    np.testing.assert_array_equal(jax.jvp(f, parameters, along)[1], f(*along))
    cubes = lambda table: jnp.sum(f(table, parameters[1]) ** 3)  # noqa: E731
    compute = lambda table: (jax.jacrev(f)(*parameters), jax.hessian(cubes)(table), jax.jacrev(jax.grad(cubes))(table))  # noqa: E731  # fmt: skip
    jacobian, hessian, back = quick(compute)(parameters[0])
    np.testing.assert_allclose(hessian, back, rtol=1e-5)
    counts = np.einsum("hqkabc,hqkabc->abc", *[np.asarray(jacobian)] * 2)
    np.testing.assert_allclose(np.einsum("abcabc->abc", hessian), 6 * counts * parameters[0], rtol=1e-5)


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
    f = jax.jit(jax.grad(lambda table, q, k: jnp.sum(pe.relative_position_bias(q, k, table))))
    np.testing.assert_array_equal(f(table_of((2, 3)), q, k), np.zeros((3, 5, HEADS)))


def test_derivatives_store_positions_only():
    grid, table = grid_of((6, 7)), table_of((6, 7))
    f = lambda p, table: jax.vjp(lambda table: pe.relative_position_bias(p, p, table), table)[1]  # noqa: E731
    back = jax.eval_shape(f, grid, table)
    assert sum(x.size for x in jax.tree.leaves(back)) <= 4 * grid.size


def test_temporaries():
    """Forward nothing; backward, on a CPU, sums of 64 copies of the table."""
    grid, table = grid_of((24, 24)), np.zeros((47, 47, 8), np.float32)
    forward = jax.jit(pe.relative_position_bias).lower(grid, grid, table).compile()
    size = 4 * 8 * 24**4
    assert forward.memory_analysis().temp_size_in_bytes < size / 50
    f = lambda dy, p, t: jax.vjp(lambda t: pe.relative_position_bias(p, p, t), t)[1](dy)  # noqa: E731
    backward = jax.jit(f).lower(np.zeros((8, 576, 576), np.float32), grid, table).compile()
    assert backward.memory_analysis().temp_size_in_bytes < 2.7 * size + 64 * table.nbytes


# Meshes


@pytest.mark.parametrize(
    ("rows", "columns", "heads"), [slow("x", None, None), slow(None, "x", None), (None, None, "x")]
)
def test_on_a_mesh_with_explicit_axes(rows, columns, heads, on_cpu):
    grid, table, prefix = grid_of((3, 4)), normal(5, 7, 4), normal(3, 4)
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Explicit,), devices=jax.devices("cpu"))
    weights = normal(4, 12, 12)

    def derivatives(t, p, i, j, weights):
        f = lambda t, p: pe.relative_position_bias(i, j, t, prefix=p)  # noqa: E731
        return jax.grad(lambda *p: jnp.sum(weights * f(*p)), (0, 1))(t, p), jax.jvp(f, (t, p), (t, p))

    want, (_, tangent) = jax.jit(derivatives)(table, prefix, grid - 1, grid - 1, weights)
    with jax.set_mesh(mesh):
        put = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, P(*spec)))  # noqa: E731
        placed = put(table, None, None, heads), prefix, put(grid - 1, rows), put(grid - 1, columns)
        without_prefix = jax.jit(pe.relative_position_bias).trace(*placed[2:], placed[0]).out_info
        assert without_prefix.sharding.spec == P(heads, rows, columns)
        got, (y, moved) = jax.jit(derivatives)(*placed, weights)
        assert jax.typeof(y).sharding.spec == P(heads, rows, columns)
        assert jax.typeof(got[0]).sharding.spec == P(None, None, heads)
    np.testing.assert_array_equal(moved, tangent)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


G, T = grid_of((2, 3)), np.ones((3, 5, 2), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: pe.relative_position_bias(G.astype(np.float32), G, T), TypeError, "query_positions must be an integer array, got float32"),
        (lambda: pe.relative_position_bias(G, G[:, :1], T), ValueError, r"key_positions must have shape \(..., keys, 2\), one coordinate for each axis of the table, got \(6, 1\)"),
        (lambda: pe.relative_position_bias(G[0], G, T), ValueError, r"query_positions must have shape \(..., queries, 2\), one .*, got \(2,\)"),
        (lambda: pe.relative_position_bias(np.int32(0), G[:, 0], T[0]), ValueError, r"query_positions must have shape \(..., queries\), got \(\)"),
        (lambda: pe.relative_position_bias(G[:, 0], jnp.asarray(G), T[0]), ValueError, r"key_positions must be one number for each token, .* got the coordinates of a grid, \(6, 2\)"),
        (lambda: pe.relative_position_bias(G[None].repeat(2, 0), G[None].repeat(3, 0), T), ValueError, r"the leading axes of query_positions, \(2,\), and of key_positions, \(3,\), must broadcast"),
        (lambda: pe.relative_position_bias(G, G, T.astype(int)), TypeError, r"table must be a float array of shape \(..., offsets, heads\), got int64"),
        (lambda: pe.relative_position_bias(G, G, T[0, 0]), ValueError, r"table must have shape \(..., offsets, heads\), got \(2,\)"),
        (lambda: pe.relative_position_bias(G, G, T[..., :0]), ValueError, r"table must have shape \(..., offsets, heads\), got \(3, 5, 0\)"),
        (lambda: pe.relative_position_bias(G, G, T[:2]), ValueError, r"table must have an odd number of offsets, 2w − 1 for a window of w, along each axis with symmetric=False, got \(2, 5, 2\)"),
        (lambda: pe.relative_position_bias(G, G, T[:0], symmetric=True), ValueError, "table must have at least one distance along each axis with symmetric=True, got"),
        (lambda: jax.eval_shape(lambda t: pe.relative_position_bias(G, G, t), jax.ShapeDtypeStruct((2**16 + 1, 2**16 + 1, 1), jnp.float32)), ValueError, "table must have fewer than 2³¹ rows, got shape"),
        (lambda: pe.relative_position_bias(G, G, T, prefix=T[:, 0, 0]), ValueError, r"prefix must have shape \(3, heads\) = \(3, 2\), got \(3,\)"),
        (lambda: pe.relative_position_bias(G, G, T, prefix=T[:2, 0]), ValueError, r"prefix must have shape \(3, heads\) = \(3, 2\), got \(2, 2\)"),
        (lambda: pe.relative_position_bias(G, G, T, prefix=np.ones((3, 2), int)), TypeError, r"prefix must be a float array of shape \(rows, heads\), got int64"),
        (lambda: pe.relative_position_bias(G, G, T, symmetric=1), TypeError, "symmetric must be True or False"),  # type: ignore
        (lambda: pe.relative_position_bias(G, G, T, out_of_range="clip"), ValueError, "out_of_range must be one of"),  # type: ignore
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=f"^relative_position_bias: {match}"):
        call()
