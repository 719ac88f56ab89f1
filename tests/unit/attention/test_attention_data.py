"""A bias that sees the tokens: `query_data` and `key_data` of `attention` against the dense float64 formula."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers.attention import check
from helpers.quick import quick
from helpers.tiers import slow, tiered
from oracles.attention import dense, may_see, of_data

BATCH, QUERIES, KEYS, HEADS, KV_HEADS, WIDTH, FEATURES = 2, 7, 8, 4, 2, 4, 3
AT, THERE = np.arange(1, 1 + QUERIES, dtype=np.int32), np.arange(KEYS, dtype=np.int32)
EACH = np.stack([AT, AT + 3]), np.stack([THERE, THERE + 2])
PARTS = np.int32([[0] * 4 + [1] * 3, [5] * 7]), np.int32([[0] * 5 + [1] * 3, [5] * 6 + [2] * 2])
ORDER = np.int32([0, 1, 1, 1, 4, 5, 6]), np.int32([0, 1, 1, 1, 2, 5, 5, 6])
WHOLE = (BATCH, HEADS), (BATCH, KV_HEADS), (BATCH, KV_HEADS)
FORMULA = "the dense float64 formula"
# Batch and heads of the data a, b and g, the positions, and the options
CASES = {
    "causal": (WHOLE, (AT, THERE), {"causal": True}),
    "shared": (((1, 1), (1, 1), (BATCH, 1)), (AT, THERE), {"window": (3, 1), "logits_soft_cap": 1.5}),
    "everything": (
        ((BATCH, 1), (1, KV_HEADS), (BATCH, KV_HEADS)),
        EACH,
        {"segments": PARTS, "window": (5, None), "causal": True, "logits_soft_cap": 1.5, "sinks": True},
    ),
    "order": (((1, HEADS), (BATCH, 1), (1, 1)), (AT, THERE), {"order": ORDER, "causal": True}),
}


def drawn(seed, shapes=WHOLE, lengths=(QUERIES, KEYS), heads=(HEADS, KV_HEADS), batch=BATCH):
    """Query, key, value, the data a, b and g, the weights and the sinks."""
    rng, (a, b, g), (n, m) = np.random.default_rng(seed), shapes, lengths
    of_data = (a[0], n, a[1], FEATURES), (b[0], m, b[1], FEATURES), (g[0], m, g[1])
    shapes = *((batch, size, of, WIDTH) for size, of in ((n, heads[0]), (m, heads[1]), (m, heads[1]))), *of_data
    return tuple(rng.normal(size=shape).astype(np.float32) for shape in (*shapes, (FEATURES,), (heads[0],)))


def bias(i, j, a, of_keys, weights):
    a, b, g = (jnp.swapaxes(x, 1, 2) for x in (a * weights.reshape(1, 1, 1, -1), *of_keys))
    apart = (i[..., None, :, None] - j[..., None, None, :]).astype(a.dtype) / 10
    products = jnp.einsum("...qc,...kc->...qk", a, b)
    return apart.reshape(-1, *apart.shape[-3:]) * products + g[..., None, :]


def tiled(q, k, v, a, b, g, weights, of_sinks, i=AT, j=THERE, block_size=3, return_residual=True, **options):
    """The library's; the options of both sides are pairs."""
    for name in {"segments", "order"} & set(options):
        options |= dict(zip((f"query_{name}", f"key_{name}"), options.pop(name), strict=True))
    options["sinks"] = of_sinks if options.get("sinks") else None
    return pe.attention(
        q, k, v, bias=lambda *tile: bias(*tile, weights), query_data=a, key_data=(b, g),
        query_positions=i, key_positions=j, block_size=block_size, return_residual=return_residual, **options,
    )  # fmt: skip


def exact(x, dy, i=AT, j=THERE, sinks=False, logits_soft_cap=None, **masks):
    """Results, residuals, and the cotangents of all operands, for cotangents of both; float64."""
    q, k, v, a, b, g, weights, of_sinks = x
    of = of_data(i, j, q.shape[2], q.shape[0], a, b, g, weights)
    y, residual, back = dense(
        q, k, v, of.bias, may_see(i, j, **masks), cap=logits_soft_cap, sinks=of_sinks if sinks else None
    )
    residual_seen = np.where(np.isfinite(residual), dy[1], 0)
    dq, dk, dv, ds, *d_sinks = back(dy[0], residual_seen)
    return y, residual, (dq, dk, dv, *of.back(ds), *(d_sinks or [np.zeros(q.shape[2])]))


def along(f, x, v, step=1e-5):
    """The derivative of results of f along v, by differences in float64."""
    ends = [f([np.asarray(a, np.float64) + sign * step * b for a, b in zip(x, v, strict=True)]) for sign in (1, -1)]
    return jax.tree.map(lambda a, b: (a - b) / (2 * step), *ends)


def program(f, order=2):
    """Results, tangents and cotangents; with the second order, the tangents of the cotangents."""

    def of(x, v, dy):
        back = lambda *x: jax.vjp(f, *x)[1](dy)  # noqa: E731
        y, tangents = jax.jvp(f, x, v)
        return y, tangents, *([back(*x)] if order == 1 else jax.jvp(back, x, v))

    return quick(of)


def compare(got, x, v, dy, tolerance=1e-5, **options):
    y, residual, by = exact(x, dy, **options)
    check(got[0], (y, residual), 1e-6, FORMULA)
    results = along(lambda x: exact(x, dy, **options)[:2], x, v)
    check(got[1], jax.tree.map(np.nan_to_num, results), tolerance, f"differences of {FORMULA}")
    check(got[2], by, tolerance, f"the derivative of {FORMULA}")
    if len(got) > 3:
        second = along(lambda x: exact(x, dy, **options)[2], x, v)
        check(got[3], second, tolerance, f"differences of the derivative of {FORMULA}")


def cotangents(seed, x):
    rng, shape = np.random.default_rng(seed), x[0].shape
    return rng.normal(size=shape).astype(np.float32), rng.normal(size=shape[:3]).astype(np.float32)


@pytest.mark.parametrize(("name", "order"), [("everything", 1), *(slow(name, 2) for name in CASES)])
def test_results_and_derivatives(name, order):
    shapes, (i, j), options = CASES[name]
    x, v = drawn(0, shapes), drawn(1, shapes)
    dy = cotangents(2, x)
    got = program(functools.partial(tiled, i=i, j=j, **options), order)(x, v, dy)
    compare(got, x, v, dy, i=i, j=j, **options)


@pytest.mark.slow
@pytest.mark.parametrize("block_size", tiered([1, 4, 1000], [4]))
def test_blocks_and_one_key_head(block_size):
    shapes = (BATCH, HEADS), (BATCH, 1), (1, 1)
    x, v = (drawn(seed, shapes, heads=(HEADS, 1)) for seed in (0, 1))
    dy = cotangents(2, x)
    got = program(functools.partial(tiled, causal=True, block_size=block_size), 1)(x, v, dy)
    compare(got, x, v, dy, causal=True)


@pytest.mark.slow
def test_leading_axes():
    q, k, v, a, b, g, weights, sinks = drawn(0, ((6, HEADS), (6, 1), (1, KV_HEADS)), batch=6)
    lifted = lambda x: x.reshape(*((1, 1) if len(x) == 1 else (3, 2)), *x.shape[1:])  # noqa: E731
    b = np.broadcast_to(lifted(b)[:, :1], (3, 2, *b.shape[1:]))  # one for each of the first axis
    arrays = *map(lifted, (q, k, v, a)), b[:, :1], lifted(g), weights
    dy = cotangents(2, (q,))

    @quick
    def got(*x):
        f = lambda *x: tiled(*x, sinks, causal=True)  # noqa: E731
        return (*jax.vjp(f, *x)[0:1], jax.vjp(f, *x)[1](tuple(map(lifted, dy))))

    y, by = got(*arrays)
    flat = q, k, v, a, b.reshape(6, *b.shape[2:]), g, weights, sinks
    want, residual, (*first, db, dg, dw, _) = exact(flat, dy, causal=True)
    check(y, (lifted(want), lifted(residual)), 1e-6, FORMULA)
    db = db.reshape(3, 2, *db.shape[1:]).sum(1, keepdims=True)
    check(by, (*map(lifted, first), db, lifted(dg), dw), 1e-5, f"the derivative of {FORMULA}")


@pytest.mark.slow
def test_keys_in_parts():
    """Each part has its share of the data, and they merge by their residuals."""
    x = drawn(0)

    @quick
    def merged(q, k, v, a, b, g, *rest):
        parts = [
            tiled(q, k[:, s], v[:, s], a, b[:, s], g[:, s], *rest, j=THERE[s], causal=True)
            for s in (slice(5), slice(5, None))
        ]
        (first, of_first), (second, of_second) = parts
        together = jnp.logaddexp(of_first, of_second)
        return sum(y * jnp.exp(r - together)[..., None] for y, r in ((first, of_first), (second, of_second))), together

    check(merged(*x), exact(x, cotangents(2, x), causal=True)[:2], 1e-6, FORMULA)


def test_integers():
    """The types of tokens on both sides, in a tree with a leaf of floats; they have no derivative."""
    q, k, v, *_ = drawn(0)
    types = np.int32([[0, 1, 2, 0, 1, 2, 2], [2, 2, 1, 1, 0, 0, 1]]), np.int32([[0, 1, 1, 2, 2, 0, 1, 0]])
    table, gates = np.random.default_rng(3).normal(size=(3, 3)).astype(np.float32), drawn(0)[5]

    @quick
    def got(table, gates):
        def f(table, gates):
            def of_types(i, j, a, b):
                found = table[a["type"][:, :, 0, None], b["type"][:, None, :, 0]]
                return found[:, None] + jnp.swapaxes(b["gate"], 1, 2)[:, :, None]

            options = {"query_positions": AT, "key_positions": THERE, "block_size": 3}
            data = {"type": types[0][..., None]}, {"type": types[1][..., None], "gate": gates}
            return pe.attention(q, k, v, bias=of_types, query_data=data[0], key_data=data[1], **options)

        y, pull = jax.vjp(f, table, gates)
        return y, pull(y)

    y, (d_table, d_gates) = got(table, gates)
    found = np.float64(table)[types[0][..., None], types[1][:, None]][:, None]
    of_gates = np.repeat(np.swapaxes(gates, 1, 2), HEADS // KV_HEADS, 1)[:, :, None]
    want = dense(q, k, v, found + of_gates)
    check([y], [want.y], 1e-6, FORMULA)
    ds = want.back(want.y)[3]
    d_want, places = np.zeros((3, 3)), np.broadcast_arrays(types[0][..., None], types[1][:, None])
    np.add.at(d_want, tuple(places), ds.sum(1))
    grouped = np.swapaxes(ds.sum(2).reshape(BATCH, KV_HEADS, -1, KEYS).sum(2), 1, 2)
    check((d_table, d_gates), (d_want, grouped), 1e-5, f"the derivative of {FORMULA}")


def test_padding_of_a_block_has_finite_derivatives():
    """The last block is padded with the last token: a bias of zeros would be infinite there, and its derivative NaN."""
    q, k, v, a, *_, weights, sinks = drawn(0)
    rng = np.random.default_rng(5)
    scales, gates = (rng.uniform(1, 2, (BATCH, n, 1)).astype(np.float32) for n in (QUERIES, KEYS))

    @quick
    def got(scales, gates):
        def f(scales, gates):
            of = lambda i, j, a, b: jnp.log(b)[:, None, None, :, 0] / a[:, None, :, None, 0]  # noqa: E731
            options = {"query_positions": AT, "key_positions": THERE, "block_size": 3, "causal": True}
            return pe.attention(q, k, v, bias=of, query_data=scales, key_data=gates, **options)

        y, pull = jax.vjp(f, scales, gates)
        return y, pull(y), jax.jvp(f, (scales, gates), (scales, gates))[1]

    y, by, _ = got(scales, gates)
    logs = np.log(np.float64(gates))[:, None, None, :, 0]
    want = dense(q, k, v, logs / scales[:, None, :, None, 0], may_see(AT, THERE, True))
    ds = want.back(want.y)[3].sum(1)
    d_scales = -(ds * logs[:, 0]).sum(2)[..., None] / np.float64(scales) ** 2
    d_gates = (ds / scales[..., :, None, 0]).sum(1)[..., None] / gates
    check((y, by), (want.y, (d_scales, d_gates)), 1e-5, FORMULA)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(got(scales, gates)))


@pytest.mark.slow
def test_half_precision():
    x = tuple(a.astype(jnp.bfloat16) for a in drawn(0))
    low = lambda *x: tiled(*x, causal=True, return_residual=False)  # noqa: E731

    @quick
    def got(*x):
        y, pull = jax.vjp(low, *x)
        return y, pull(y)[:7]

    y, by = got(*x)
    assert all(a.dtype == jnp.bfloat16 for a in (y, *by))
    wide = [np.float64(a) for a in x]
    want, _, (*d_want, _) = exact(wide, (np.float64(y), 0), causal=True)
    eps = float(jnp.finfo(jnp.bfloat16).eps)
    check((y, tuple(by)), (want, tuple(d_want)), 4 * eps, FORMULA)


@pytest.mark.parametrize(("queries", "keys"), [slow(QUERIES, 0), (0, KEYS), (0, 0)])
def test_empty_sequences(queries, keys):
    x = drawn(0, lengths=(queries, keys))
    f = functools.partial(tiled, i=AT[:queries], j=THERE[:keys])
    dy = cotangents(2, x)
    y, _ = jax.eval_shape(f, *x)
    assert y.shape == x[0].shape
    if queries:  # a program for no keys; the other two have none to give
        y, by = quick(lambda *x: (f(*x)[0], jax.vjp(f, *x)[1](dy)))(*x)
        assert not any(np.any(np.asarray(x)) for x in (y, *by))


def test_vmap():
    """Over what query data, weights and keys' data may each have or lack."""
    x = drawn(0)
    rows = [np.stack([a, -2 * a, a / 2]) if n in (3, 5, 6) else a for n, a in enumerate(x)]
    dy = cotangents(2, x)
    axes = [0 if n in (3, 5, 6) else None for n in range(len(x))]
    f = functools.partial(tiled, causal=True)
    y, by = jax.device_get(quick(jax.vmap(lambda *x: (f(*x), jax.vjp(f, *x)[1](dy)), axes))(*rows))
    for row in range(3):
        one = [a if axis is None else a[row] for a, axis in zip(rows, axes, strict=True)]
        want, residual, d_want = exact(one, dy, causal=True)
        got = jax.tree.map(lambda a, row=row: a[row], (y, tuple(by)))
        check(got[0], (want, residual), 1e-6, f"{FORMULA} of row {row}")
        check(got[1], d_want, 1e-5, f"the derivative of {FORMULA} of row {row}")


# On meshes

D, H = "data", "heads"
ROWS = P(D, None, H)
SPLIT = ROWS, ROWS, ROWS, ROWS, ROWS, P(D, None, H), P(), P(H)


def mesh_of(kind):
    return jax.make_mesh((2, 2), (D, H), axis_types=(kind,) * 2, devices=jax.devices("cpu")[:4])


@pytest.mark.parametrize(
    ("shapes", "specs"),
    [
        (WHOLE, SPLIT),
        slow(((BATCH, 1), (1, 1), (BATCH, 1)), (*SPLIT[:3], P(D), P(), P(D), P(), P(H))),
    ],
    ids=["split", "shared"],
)
def test_on_a_mesh_with_explicit_axes(shapes, specs, on_cpu):
    x, v = drawn(0, shapes), drawn(1, shapes)
    dy = cotangents(2, x)
    mesh = mesh_of(AxisType.Explicit)
    put = lambda x, specs: tuple(jax.device_put(a, NamedSharding(mesh, s)) for a, s in zip(x, specs, strict=True))  # noqa: E731
    options = {"causal": True, "sinks": True}
    with jax.set_mesh(mesh):
        f = program(functools.partial(tiled, **options), 1)
        arguments = put(x, specs), put(v, specs), put(dy, (ROWS, ROWS))
        *_, by = jax.eval_shape(f, *arguments)
        assert [a.sharding.spec for a in by] == [jax.typeof(a).sharding.spec for a in arguments[0]]
        compare(f(*arguments), x, v, dy, **options)


@pytest.mark.parametrize("whole", [slow("weights"), "weights and data of keys"])
@pytest.mark.parametrize("inside", tiered([False, True], [False]))
def test_in_shard_map(whole, inside, on_cpu):
    """Queries are split: what is whole gets the sum of all devices' cotangents, once, and may be `pcast` before."""
    n = 8
    i = np.arange(n, dtype=np.int32)
    x = drawn(0, ((BATCH, HEADS), (BATCH, KV_HEADS), (1, KV_HEADS)), lengths=(n, KEYS))
    dy = cotangents(2, x)
    rows = P(None, D)
    specs = rows, P(), P(), rows, P(), P(), P(), P()

    def local(dy, i, *x):
        def f(*x):
            if whole == "weights":  # what else is whole varies from here on
                x = [a if n in (0, 3, 6, 7) else lax.pcast(a, (D,), to="varying") for n, a in enumerate(x)]
            return tiled(*x, i=i, j=THERE, causal=True, sinks=True, block_size=2)

        return f(*x) if not inside else jax.vjp(f, *x)[1](dy)

    mesh = jax.make_mesh((4,), (D,), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:4])
    out = specs if inside else (rows, rows)
    mapped = jax.shard_map(local, mesh=mesh, in_specs=((rows, rows), P(D), *specs), out_specs=out)
    want, residual, by = exact(x, dy, i=i, causal=True, sinks=True)
    if inside:
        return check(quick(mapped)(dy, i, *x), by, 1e-5, f"the derivative of {FORMULA}")
    f = functools.partial(mapped, dy, i)
    y, got = quick(lambda *x: (f(*x), jax.vjp(f, *x)[1](dy)))(*x)
    check(y, (want, residual), 1e-6, FORMULA)
    check(got, by, 1e-5, f"the derivative of {FORMULA}")


# Memory


@pytest.mark.slow
def test_memory_is_linear():
    """The temporaries of a gradient double with the length; one array of scores would take four times as much."""

    def temporaries(n):
        shapes = *((1, n, heads, 8) for heads in (2, 1, 1)), (1, n, 2, 4), (1, n, 1, 4), (1, n, 1), (4,)
        of = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        at = np.arange(n, dtype=np.int32)
        f = lambda *x: jnp.sum(tiled(*x, None, i=at, j=at, causal=True, block_size=128, return_residual=False))  # noqa: E731
        return quick(jax.grad(f, range(7))).lower(*of).compile().memory_analysis().temp_size_in_bytes

    short, long = temporaries(4096), temporaries(8192)
    assert long < 2.2 * short and long < 8192 * 8192 / 8


# Errors


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"query_data": [1.0]}, TypeError, r"^attention: query_data\[0\] must be an array, got float 1.0"),
        ({"key_data": {"x": "a"}}, TypeError, r"^attention: key_data\['x'\] must be an array, got str 'a'"),
        ({"key_data": np.array([{}])}, TypeError, "^attention: key_data must be an array, got "),
        ({"query_data": np.ones((1, 7, 1), ">f4")}, TypeError, "^attention: query_data is >f4, which JAX does not have; pass float32$"),
        ({"key_data": np.full((1, 8, 1), 2**63, np.uint64)}, ValueError, "^attention: key_data must fit into uint32, got uint64 values"),
        ({"query_data": np.ones(QUERIES, np.float32)}, ValueError, r"^attention: query_data must begin with the axes of query before its last, \(2, 7, 4\), where all but 7 may be 1, got \(7,\)"),
        ({"query_data": np.ones((2, 8, 4), np.float32)}, ValueError, r"^attention: query_data must begin with .* got \(2, 8, 4\)"),
        ({"query_data": np.ones((2, 7, 2), np.float32)}, ValueError, r"^attention: query_data must begin with .* got \(2, 7, 2\)"),
        ({"query_data": np.ones((3, 7, 4), np.float32)}, ValueError, r"^attention: query_data must begin with .* got \(3, 7, 4\)"),
        ({"key_data": (np.ones((2, 8, 2), np.int8), np.ones((2, 8, 4), np.int8))}, ValueError, r"^attention: key_data\[1\] must begin with the axes of key before its last, \(2, 8, 2\), where all but 8 may be 1, got \(2, 8, 4\)"),
        ({"bias": None}, ValueError, "^attention: bias must be given with query_data or key_data, got None"),
        ({"bias": lambda i, j, a, b: a}, ValueError, r"^attention: bias of shape \(1, 7, 1, 5\) must broadcast to a tile"),
    ],
)  # fmt: skip
def test_bad_data(change, error, match):
    if "uint64" in match and jax.config.read("jax_enable_x64"):
        pytest.skip("x64 holds it")
    q, k, v, *_ = drawn(0)
    valid = {
        "query_data": np.ones((1, QUERIES, 1, 5), np.float32),
        "key_data": None,
        "bias": lambda i, j, a, b: jnp.float32(0),
    }
    with pytest.raises(error, match=match):
        pe.attention(q, k, v, query_positions=AT, key_positions=THERE, **valid | change)


def test_data_must_be_sharded_as_their_side(on_cpu):
    q, k, v, a, b, g, weights, sinks = drawn(0)
    mesh = mesh_of(AxisType.Explicit)
    with jax.set_mesh(mesh):
        put = lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))  # noqa: E731
        q, k, v = (put(x, ROWS) for x in (q, k, v))
        for name, spec in (("query_data", P(H)), ("key_data", P(None, D)), ("query_data", P(None, None, None, D))):
            data = {"query_data": a[:, :, :, :2], "key_data": b}
            data[name] = put(data[name], spec)
            match = (
                rf"^attention: {name} must be sharded on Explicit axes of a mesh as {name[:-5]} is, .*, or not at all"
            )
            with pytest.raises(ValueError, match=match):
                pe.attention(q, k, v, bias=bias, query_positions=AT, key_positions=THERE, **data)
