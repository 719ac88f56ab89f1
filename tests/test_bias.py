"""Attention biases against 40 digits, integers and recorded peers, and the properties they exist for."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import oracle
import pytest
from closeness import assert_within
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import posenc_jax as pe
from posenc_jax import learned_bias

PEERS = json.loads((Path(__file__).parent / "data" / "biases.json").read_text(encoding="utf-8"))
RNG = np.random.default_rng(0)
HEADS = 3
NEAR = RNG.integers(0, 3000, 24).astype(np.int32)
FAR = np.concatenate([[0, 2**31 - 1, -(2**31), -1], RNG.integers(-(2**31), 2**31, 20)]).astype(np.int32)
SCALE, RATE = (RNG.uniform(0.1, 1.5, HEADS).astype(np.float32) for _ in range(2))
TABLE = RNG.normal(size=(32, HEADS)).astype(np.float32)
MLP = tuple(RNG.normal(size=n).astype(np.float32) for n in ((32,), (32,), (32, HEADS), (HEADS,)))
C, THRESHOLD = np.float32(0.1), np.float32(512)

# name → function of positions and parameters, the parameters
CASES = {
    "alibi": (lambda q, k: pe.alibi(q, k, HEADS), ()),
    "alibi, slopes": (pe.alibi, (SCALE,)),
    "t5": (pe.t5, (TABLE,)),
    "t5, causal": (lambda q, k, t: pe.t5(q, k, t, bidirectional=False), (TABLE,)),
    "kerple_log": (pe.kerple_log, (SCALE, RATE)),
    "kerple_power": (pe.kerple_power, (SCALE, RATE)),
    "fire": (lambda q, k, mlp, c, threshold: pe.fire(q, k, mlp, c=c, threshold=threshold), (MLP, C, THRESHOLD)),
    "sandwich": (lambda q, k: pe.sandwich(q, k, HEADS, 16), ()),
}


@pytest.fixture(params=CASES, ids=str)
def case(request):
    return CASES[request.param]


def check(got, want, name=""):
    """Bits, or but for the last where the compiler orders a sum or chooses how to divide."""
    if name in ("fire", "sandwich"):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=4e-6)
    else:
        np.testing.assert_array_equal(got, want)


def apart(q, k):
    return np.abs(np.asarray(q, object)[:, None] - np.asarray(k, object)[None])  # integers of any size


def exactly(function, *arrays):
    """A function of Python numbers for each element, at 40 digits."""
    with mpmath.workdps(40):
        return np.vectorize(lambda *x: float(function(*x)), otypes=[float])(*arrays)


def by_heads(function, distances, *parameters):
    return np.stack([exactly(lambda d, p=p: function(mpmath.mpf(int(d)), *p), distances) for p in zip(*parameters, strict=True)])  # fmt: skip


# The formulas, near and at the ends of int32


def slopes(n):
    """As the paper has them for powers of two, and its code for others."""
    power = 2 ** int(np.log2(n))
    first = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    return first if n == power else first + slopes(2 * power)[::2][: n - power]


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16, 71, 128])
def test_alibi(heads):
    for p in (NEAR, FAR):
        want = -np.array(slopes(heads))[:, None, None] * apart(p, p).astype(float)
        np.testing.assert_allclose(pe.alibi(p, p, heads), want, rtol=2e-7)
    np.testing.assert_array_equal(pe.alibi(FAR, NEAR, np.float32(slopes(heads))), pe.alibi(FAR, NEAR, heads))


@pytest.mark.parametrize("positions", [NEAR, FAR], ids=["near", "far"])
def test_kerple(positions):
    d = apart(positions, positions)
    want = by_heads(lambda d, p, a: -p * mpmath.log1p(a * d), d, SCALE.astype(float), RATE.astype(float))
    np.testing.assert_allclose(pe.kerple_log(positions, positions, SCALE, RATE), want, rtol=4e-7)
    want = by_heads(lambda d, a, p: -a * d**p, d, SCALE.astype(float), RATE.astype(float))
    np.testing.assert_allclose(pe.kerple_power(positions, positions, SCALE, RATE), want, rtol=6e-7)
    one = pe.kerple_power(positions, positions, SCALE, np.ones_like(SCALE))
    np.testing.assert_allclose(one, pe.alibi(positions, positions, SCALE), rtol=2e-7)


@pytest.mark.parametrize("positions", [NEAR, FAR], ids=["near", "far"])
def test_fire(positions):
    d, i = apart(positions, positions), np.maximum(positions.astype(float), 512)[:, None]
    x = exactly(lambda d, i: mpmath.log1p(C * mpmath.mpf(int(d))) / mpmath.log1p(C * mpmath.mpf(i)), d, i)
    w1, b1, w2, b2 = (np.asarray(w, float) for w in MLP)
    want = np.moveaxis(np.maximum(x[..., None] * w1 + b1, 0) @ w2 + b2, -1, 0)
    got = pe.fire(positions, positions, MLP, c=C, threshold=THRESHOLD)
    bound = 3e-6 * np.max(np.abs(w1[:, None] * w2))
    assert_within(got, want, bound, against="mpmath at 40 digits and a float64 perceptron")


@pytest.mark.parametrize("width", [2, 16, 128])
def test_sandwich(width):
    heads = 5
    for p in (NEAR, FAR):
        distances = apart(p, p)
        each, place = np.unique(distances.reshape(-1), return_inverse=True)
        _, cosine = oracle.waves(each, oracle.geometric(width, 10_000))
        similarity = np.sum(cosine, -1)[place].reshape(distances.shape) - width / 2
        want = similarity / (8 * np.arange(1, heads + 1) / heads)[:, None, None]
        np.testing.assert_allclose(pe.sandwich(p, p, heads, width), want, atol=2e-7 * width)


def test_sandwich_of_other_frequencies():
    f = pe.axial(8, 1, 500.0)
    double = pe.Frequencies(f.turns, f.dim, attention_factor=2.0)
    single = np.asarray(pe.sandwich(NEAR, NEAR, 4, f))
    np.testing.assert_allclose(pe.sandwich(NEAR, NEAR, 4, double), 4 * single, rtol=1e-6, atol=1e-5)
    learned = pe.sandwich(NEAR[:3], NEAR[:3], 4, jnp.asarray(f.angular, jnp.float32))
    np.testing.assert_allclose(learned, single[:, :3, :3], atol=2e-3)


# T5's buckets


def bucket(d, buckets, largest):
    """By the definition, the logarithms compared as powers of integers."""
    exact = buckets // 2
    if d < exact:
        return d
    step, steps = 0, buckets - exact
    while step + 1 < steps and d**steps >= largest ** (step + 1) * exact ** (steps - step - 1):
        step += 1
    return exact + step


def buckets_of(distances, rows, largest, bidirectional):
    """What `t5` finds for keys at these distances from a query."""
    query, table = np.zeros(1, np.int32), np.arange(rows, dtype=np.float32)[:, None]
    got = pe.t5(query, np.asarray(distances, np.int32), table, max_distance=largest, bidirectional=bidirectional)
    return np.asarray(got)[0, 0].astype(int)


@pytest.mark.parametrize("peer", PEERS["buckets"], ids=lambda c: f"{c['buckets']}, {c['max_distance']}")
def test_buckets_at_all_distances(peer):
    rows, largest, both = (peer[key] for key in ("buckets", "max_distance", "bidirectional"))
    n, all_distances = rows // (1 + both), np.arange(100_001)
    change = [d for d in range(largest + 2) if d == 0 or bucket(d, n, largest) != bucket(d - 1, n, largest)]
    numbers = [bucket(d, n, largest) for d in change]
    want = np.repeat(numbers, np.diff([*change, len(all_distances)]))
    np.testing.assert_array_equal(buckets_of(-all_distances, rows, largest, both), want)
    after = np.where(all_distances > 0, want + n, 0) if both else 0 * want
    np.testing.assert_array_equal(buckets_of(all_distances, rows, largest, both), after)
    # transformers, whose logarithm is of float32, is one off where (81/24)^(16/24) = 54/24 exactly.
    for sign, name, ours in ((-1, "before", want), (1, "after", after)):
        starts, found = zip(*peer[name], strict=True)
        theirs = np.repeat(found, np.diff([*starts, len(all_distances)]))
        off = all_distances[ours != theirs].tolist()
        assert off == ([54] if (rows, largest, sign) == (48, 81, -1) else [])


def test_a_bucket_begins_where_a_logarithm_in_floats_is_one_off():
    assert buckets_of([-53, -54], 48, 81, False).tolist() == [39, 40]
    for base, power in ((3, 5), (5, 4), (10, 6), (7, 7)):  # edges at e · base^k
        exact, largest = power, power * base**power
        edges = [exact * base**k for k in range(1, power)]
        got = buckets_of([-d for e in edges for d in (e - 1, e)], 2 * power, largest, False)
        assert got.reshape(-1, 2).tolist() == [[exact + k - 1, exact + k] for k in range(1, power)]


@pytest.mark.parametrize(("rows", "both"), [(18, True), (10, True), (4, True), (31, False), (3, False), (2, False)])
def test_odd_numbers_of_buckets(rows, both):
    n, d = rows // (1 + both), np.arange(3000)
    want = [bucket(int(x), n, 500) for x in d]
    np.testing.assert_array_equal(buckets_of(-d, rows, 500, both), want)


@pytest.mark.parametrize(("rows", "largest"), [(8, 5), (8, 6), (16, 9), (7, 4), (2, 2), (3, 2)])
def test_last_buckets_that_begin_together(rows, largest):
    d = np.arange(largest + 3)
    np.testing.assert_array_equal(buckets_of(-d, rows, largest, False), [bucket(int(x), rows, largest) for x in d])


def test_a_bucket_that_begins_at_the_largest_distance():
    keys = np.array([-(2**31), -(2**31) + 1], np.int32)  # 2³² − 1 and one less from the query
    table = np.arange(3, dtype=np.float32)[:, None]
    for largest, want in (((2**32 - 1) ** 2, [2, 1]), ((2**32 - 1) ** 2 + 1, [1, 1])):
        got = pe.t5(np.array([2**31 - 1]), keys, table, bidirectional=False, max_distance=largest)
        assert got[0, 0].tolist() == want


@pytest.mark.parametrize("largest", [128, 10_000, 2**31, 2**32 - 1, 2**32, 2**35, 2**40, 10**30])
def test_buckets_at_any_distance_of_int32(largest):
    table = np.arange(32, dtype=np.float32)[:, None]
    got = np.asarray(pe.t5(FAR, FAR, table, max_distance=largest))[0].astype(int)
    d, after = apart(FAR, FAR), FAR[:, None] < FAR[None]
    np.testing.assert_array_equal(got, np.vectorize(lambda d: bucket(int(d), 16, largest))(d) + 16 * after)


def test_wide_positions():
    if not jax.config.read("jax_enable_x64"):
        pytest.skip("float64 and int64 positions need x64: nox -s x64")
    far = jnp.array([2.0**30 + 0.5]), jnp.array([2.0**30 + 0.25])
    assert pe.alibi(*far, jnp.array([1.0], jnp.float32))[0, 0, 0] == -0.25
    table = np.arange(32, dtype=np.float32)[:, None]
    row = jax.jit(lambda d: pe.t5(d, d - d, table, bidirectional=False, max_distance=2**40)[0, :, 0])
    distances = [2**34, 2**39 + 1, 2**40 - 1, 2**40, 2**62]
    assert row(jnp.array(distances)).tolist() == [bucket(d, 32, 2**40) for d in distances]


# Peers


def test_alibi_beside_bloom_and_mpt():
    n = 9
    for peer in PEERS["alibi"]:
        heads, keys = peer["heads"], np.arange(n)
        ours = np.asarray(pe.alibi([n - 1] * np.ones(1, np.int32), keys, heads), np.float64)[:, 0]
        bloom, mpt = np.array(peer["bloom"]), np.array(peer["mpt"])  # at keys 1 and 8, and at keys 0 and 7
        # BLOOM's grows with the key: the query's own is subtracted, which a softmax does not see.
        np.testing.assert_allclose(ours[:, 1], bloom[:, 0] - bloom[:, 1], rtol=1e-6)
        np.testing.assert_allclose(ours[:, [0, n - 2]], mpt, rtol=1e-6)


@pytest.mark.parametrize("peer", PEERS["t5"])
def test_t5_beside_transformers(peer):
    table = np.array(peer["table"], np.float32)
    got = pe.t5(np.array(peer["queries"]), np.array(peer["keys"]), table, bidirectional=peer["bidirectional"])
    np.testing.assert_array_equal(got, np.array(peer["bias"], np.float32))


def causal(got, want, queries):
    """The largest error at keys that a query may see, relative to the largest bias."""
    got, want = np.asarray(got), np.array(want)
    seen = np.arange(want.shape[-1]) <= np.array(queries)[:, None]
    return np.max(np.abs(got - want), where=seen, initial=0) / np.max(np.abs(want), where=seen, initial=0)


@pytest.mark.parametrize("name", ["kerple_log", "kerple_power"])
def test_kerple_beside_the_authors_code(name):
    (peer,) = PEERS[name]
    a, p = (np.array(peer[key], np.float32) for key in "ap")
    got = getattr(pe, name)(np.array(peer["queries"]), np.arange(60), *((p, a) if name == "kerple_log" else (a, p)))
    assert causal(got, peer["bias"], peer["queries"]) <= 1e-6
    swapped = getattr(pe, name)(np.array(peer["queries"]), np.arange(60), *((a, p) if name == "kerple_log" else (p, a)))
    assert causal(swapped, peer["bias"], peer["queries"]) > 0.05


@pytest.mark.parametrize("peer", PEERS["fire"], ids=["short", "long"])
def test_fire_beside_the_code_of_its_paper(peer):
    mlp, queries = [np.array(w, np.float32) for w in peer["mlp"]], np.array(peer["queries"])
    compute = lambda by: pe.fire(queries + by, np.arange(peer["length"]) + by, mlp, c=peer["c"], threshold=peer["threshold"])  # noqa: E731  # fmt: skip
    np.testing.assert_allclose(compute(0), peer["bias"], atol=1e-6)  # keys after the query too
    if peer["length"] > peer["threshold"]:
        assert np.max(np.abs(np.asarray(compute(1)) - peer["bias"])) > 1e-4  # positions count from 0


def test_sandwich_beside_nemo():
    # NeMo counts the frequencies from one step later, as the paper's equation does.
    (peer,) = PEERS["sandwich"]
    width = peer["width"]
    later = pe.geometric(width).with_angular([10_000.0 ** (-2 * i / width) for i in range(1, width // 2 + 1)])
    got = pe.sandwich(np.array(peer["queries"]), np.arange(50), peer["heads"], later)
    np.testing.assert_allclose(got, peer["bias"], atol=2e-6)


# Tiles, batches, programs


def test_a_tile_has_the_bits_of_that_tile_of_the_whole(case, request):
    f, parameters = case
    name, tile = request.node.callspec.params["case"], jax.jit(f)
    for q, k in ((NEAR, NEAR[::-1]), (FAR, FAR[::-1])):  # of one shape, so that the programs are the same
        if name.startswith("fire"):
            q, k = abs(q), abs(k)
        whole = np.asarray(f(q, k, *parameters))
        assert whole.shape == (HEADS, len(q), len(k)) and whole.dtype == np.float32
        for rows, columns in ((slice(3, 4), slice(5, 6)), (slice(2, 9), slice(1, 9)), (slice(0, 2), slice(None))):
            check(tile(q[rows], k[columns], *parameters), whole[:, rows, columns], name)


def test_positions_of_each_batch_and_in_other_programs(case, request):
    f, parameters = case
    name, q, k = request.node.callspec.params["case"], NEAR.reshape(2, 3, 4), NEAR[:18].reshape(2, 1, 9)
    want = np.stack([[np.asarray(f(q[i, j], k[i, 0], *parameters)) for j in range(3)] for i in range(2)])
    check(f(q, k, *parameters), want, name)
    check(jax.jit(jax.vmap(jax.vmap(lambda q, k: f(q, k, *parameters), (0, None))))(q, k[:, 0]), want, name)
    scanned = jax.lax.scan(lambda _, q: (0, f(q, k[0, 0], *parameters)), 0, q[0])[1]
    check(scanned, want[0], name)
    shapes = (0, 4), (4, 0), (0, 0)
    empty = jax.jit(lambda *parameters: [f(NEAR[:n], NEAR[:m], *parameters) for n, m in shapes])(*parameters)
    assert [x.shape for x in empty] == [(HEADS, *shape) for shape in shapes]


def test_translations_change_nothing(case, request):
    name = request.node.callspec.params["case"]
    f, parameters = case
    want = np.asarray(f(NEAR, NEAR, *parameters))
    moved = np.asarray(f(NEAR + 2_000_000_000, NEAR + 2_000_000_000, *parameters))
    if name == "fire":
        assert np.max(np.abs(moved - want)) > 0.1  # it depends on how far the query has come
    else:
        check(moved, want, name)
    if "t5" not in name and name != "fire":
        check(want, np.swapaxes(want, 1, 2), name)


def test_float_positions_and_dtypes():
    halves = NEAR.astype(np.float32) + np.float32(0.5)
    for f, parameters in (CASES[name] for name in ("alibi", "kerple_log", "kerple_power", "sandwich")):
        np.testing.assert_allclose(f(halves, halves, *parameters), f(NEAR, NEAR, *parameters), atol=1e-5)
        np.testing.assert_allclose(f(NEAR, halves, *parameters), f(NEAR.astype(np.float32), halves, *parameters))
    for dtype in (np.int16, np.uint16, np.int64, np.uint32):
        for f, parameters in CASES.values():
            np.testing.assert_array_equal(f(NEAR.astype(dtype), NEAR, *parameters), f(NEAR, NEAR, *parameters))
    low = pe.kerple_log(NEAR, NEAR, SCALE.astype(jnp.bfloat16), RATE)
    assert low.dtype == jnp.float32


def test_integers_of_two_dtypes():
    np.testing.assert_array_equal(pe.alibi(np.int8([3]), np.uint8([250]), 1), [[[-247 / 256]]])
    mixed = jax.jit(lambda queries, keys: pe.alibi(queries, keys, 1))
    if jax.config.jax_enable_x64:
        np.testing.assert_array_equal(mixed(np.int32([-3]), np.uint32([7])), [[[-10 / 256]]])
    else:
        expected = "alibi: query_positions of int32 and key_positions of uint32 have no common dtype here; pass int32"
        with pytest.raises(TypeError, match=expected):
            mixed(np.int32([-3]), np.uint32([7]))


def test_traced_wide_integers():
    every = jax.jit(lambda q, given: {name: f(q, q, *given[name]) for name, (f, _) in CASES.items()})
    for dtype in (np.uint32, np.int64 if jax.config.jax_enable_x64 else np.int32):
        got = every(NEAR.astype(dtype), {name: parameters for name, (_, parameters) in CASES.items()})
        for name, (f, parameters) in CASES.items():
            want = f(NEAR, NEAR, *parameters)
            np.testing.assert_allclose(got[name], want, rtol=1e-6, atol=4e-6, err_msg=f"{name}, {dtype}")


# Derivatives


def test_derivatives_by_parameters_are_finite_and_right(case):
    f, parameters = case
    if not parameters:
        return
    q = k = np.array([0, 1, 5, 5, 300], np.int32)  # distance 0 and keys after the query among them
    weights = RNG.normal(size=(HEADS, 5, 5)).astype(np.float32)
    loss_and_gradient = jax.jit(jax.value_and_grad(lambda parameters: jnp.vdot(f(q, k, *parameters), weights)))
    loss, gradient = lambda parameters: loss_and_gradient(parameters)[0], loss_and_gradient(parameters)[1]
    for i, (g, p) in enumerate(zip(*map(jax.tree.leaves, (gradient, parameters)), strict=True)):
        assert np.all(np.isfinite(g)) and np.any(g)
        step = 1e-3 if np.ndim(p) else 0.02 * p
        direction = step * RNG.normal(size=np.shape(p)).astype(np.float32)
        leaves, tree = jax.tree.flatten(parameters)
        ends = [loss(tree.unflatten([x + s * direction if j == i else x for j, x in enumerate(leaves)])) for s in (1, -1)]  # fmt: skip
        np.testing.assert_allclose(np.vdot(g, direction), (ends[0] - ends[1]) / 2, rtol=2e-2, atol=2e-3 * step * np.linalg.norm(g))  # fmt: skip


@pytest.mark.parametrize("rows", [learned_bias._sums_by_scatter, learned_bias._sums_by_product])
def test_the_derivative_by_the_table_on_every_platform(rows):
    row, dy = RNG.integers(0, 32, (2, 6, 7)), RNG.normal(size=(2, HEADS, 6, 7)).astype(np.float32)
    want = np.zeros((32, HEADS))
    np.add.at(want, row, np.moveaxis(dy, 1, -1))
    got = jax.jit(rows)(jnp.asarray(row, jnp.int32), jnp.asarray(dy), jnp.asarray(TABLE))
    np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("both", [True, False])
def test_the_derivative_by_the_table_counts_buckets(both):
    q, k = NEAR.reshape(2, 12), NEAR[::-1].reshape(2, 12)
    got = jax.jit(jax.grad(lambda t: jnp.sum(pe.t5(q, k, t, bidirectional=both))))(TABLE)
    n = 32 // (1 + both)
    want = np.zeros(32)
    for a, b in zip(q, k, strict=True):
        for i in a:
            for j in b:
                before = bucket(max(int(i) - int(j), 0), n, 128)
                want[bucket(int(j) - int(i), n, 128) + n if both and j > i else before] += 1
    np.testing.assert_array_equal(got, np.repeat(want[:, None], HEADS, 1))


def test_the_derivative_by_the_table_counts_beyond_2_to_the_24():
    n = 4200  # all at one place: a sum of ones in float32, one after the other, ends at 16,777,216
    same = np.zeros(n, np.int32)
    got = jax.jit(jax.grad(lambda t, at: jnp.sum(pe.t5(at, at, t))))(np.zeros((4, 1), np.float32), same)
    np.testing.assert_array_equal(got, [[n * n], [0], [0], [0]])


@pytest.mark.parametrize("form", [learned_bias._by_units, learned_bias._by_product])
def test_the_perceptron_on_every_platform(form):
    x = RNG.uniform(0, 1, (2, 1, 5, 6)).astype(np.float32)
    w1, b1, w2, b2 = (np.asarray(w, float) for w in MLP)
    want = np.moveaxis(np.maximum(x[:, 0, ..., None] * w1 + b1, 0) @ w2 + b2, -1, 1)
    np.testing.assert_allclose(jax.jit(form)(x, *MLP), want, atol=1e-5)


@pytest.mark.parametrize("name", ["alibi, slopes", "t5", "kerple_log", "kerple_power", "fire"])
def test_on_a_mesh_with_explicit_axes(name, on_cpu):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Explicit,), devices=jax.devices("cpu"))
    f, parameters = CASES[name]
    q, k, w = jnp.arange(8, dtype=jnp.int32), jnp.arange(6, dtype=jnp.int32), RNG.normal(size=(HEADS, 8, 6))
    grad = jax.jit(jax.grad(lambda p, q, k, w: jnp.sum(w * f(q, k, *p))))
    want = grad(parameters, q, k, jnp.asarray(w, jnp.float32))
    with jax.set_mesh(mesh):
        put = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))  # noqa: E731
        got = grad(parameters, put(q, "x"), k, put(jnp.asarray(w, jnp.float32), None, "x"))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_derivatives_by_positions_are_finite():
    q = np.array([0.0, 1.5, 2.0, 700.0], np.float32)
    cases = {name: CASES[name] for name in ("alibi, slopes", "kerple_log", "kerple_power", "fire", "sandwich")}

    @jax.jit
    def gradients(q, k):
        return {
            name: jax.grad(lambda q, k, f=f, rest=parameters: jnp.sum(f(q, k, *rest)), (0, 1))(q, k)
            for name, (f, parameters) in cases.items()
        }

    for name, pair in gradients(q, q).items():
        assert len(pair) == 2 and np.all(np.isfinite(pair)), name
    power = lambda p: pe.kerple_power(p, *np.float32([[1.0], [2.0], [0.5]]))[0, 0, 0]  # noqa: E731
    slope = jax.grad(power)(jnp.array([5.0]))  # op by op
    np.testing.assert_allclose(slope, [-0.5], rtol=1e-6)


P, H = np.arange(4), np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: pe.alibi(P, P, 0), ValueError, "alibi: heads must be at least 1, got 0"),
        (lambda: pe.alibi(P, P, 2.0), TypeError, "alibi: heads must be an integer, got float 2.0"),  # type: ignore
        (lambda: pe.alibi(P, P, np.arange(3)), TypeError, r"alibi: heads must be a float array of shape \(heads,\), got int64"),
        (lambda: pe.alibi(P, P, np.ones((2, 2), np.float32)), ValueError, r"alibi: heads must have shape \(heads,\), got \(2, 2\)"),
        (lambda: pe.alibi(P, 3, 2), ValueError, r"alibi: key_positions must have shape \(..., keys\), got \(\)"),
        (lambda: pe.alibi(2, P, 2), ValueError, r"alibi: query_positions must have shape \(..., queries\), got \(\)"),
        (lambda: pe.alibi("a", P, 2), TypeError, "alibi: query_positions must be an integer or float array, got str"),
        (lambda: pe.alibi(P.reshape(2, 2), np.zeros((3, 2), int), 2), ValueError, r"alibi: the leading axes of query_positions, shape \(2, 2\), and"),
        (lambda: pe.alibi(np.array([2**31]), P, 2), ValueError, "alibi: query_positions must fit into int32"),
        (lambda: pe.t5(P.astype(np.float32), P, TABLE), TypeError, "t5: query_positions must be an integer array, got float32"),
        (lambda: pe.t5(P, P, TABLE.astype(int)), TypeError, r"t5: table must be a float array of shape \(buckets, heads\), got int64"),
        (lambda: pe.t5(P, P, TABLE[0]), ValueError, r"t5: table must have shape \(buckets, heads\), got \(3,\)"),
        (lambda: pe.t5(P, P, TABLE[:31]), ValueError, "t5: table must have an even number of rows, at least 4 with bidirectional=True, got"),
        (lambda: pe.t5(P, P, TABLE[:2]), ValueError, "t5: table must have an even number of rows, at least 4 with bidirectional=True, got"),
        (lambda: pe.t5(P, P, TABLE[:1], bidirectional=False), ValueError, "t5: table must have at least 2 rows with bidirectional=False, got"),
        (lambda: pe.t5(P, P, TABLE[:, :0]), ValueError, "t5: table must have shape"),
        (lambda: pe.t5(P, P, TABLE, max_distance=8), ValueError, "t5: max_distance must be above 8, half the buckets"),
        (lambda: pe.t5(P, P, TABLE, max_distance=128.0), TypeError, "t5: max_distance must be an integer"),  # type: ignore
        (lambda: pe.t5(P, P, TABLE, bidirectional=1), TypeError, "t5: bidirectional must be True or False"),  # type: ignore
        (lambda: pe.kerple_log(P, P, H, H[:2]), ValueError, r"kerple_log: rate of shape \(2,\) must match scale, shape \(3,\)"),
        (lambda: pe.kerple_power(P, P, H, H[:2]), ValueError, r"kerple_power: exponent of shape \(2,\) must match scale"),
        (lambda: pe.kerple_log(P, P, 1.0, H), TypeError, r"kerple_log: scale must be a float array of shape \(heads,\), got float"),
        (lambda: pe.kerple_log(P, P, H[:0], H[:0]), ValueError, r"kerple_log: scale must have shape \(heads,\), got \(0,\)"),
        (lambda: pe.fire(P, P, MLP[:3], c=1.0, threshold=1.0), TypeError, "fire: mlp must be four arrays"),  # type: ignore
        (lambda: pe.fire(P, P, (*MLP[:2], MLP[2].T, MLP[3]), c=1.0, threshold=1.0), ValueError, r"fire: mlp must have shapes \(hidden,\), \(hidden,\), \(hidden, heads\), \(heads,\), got \("),
        (lambda: pe.fire(P, P, (MLP[0][None], *MLP[1:]), c=1.0, threshold=1.0), ValueError, r"fire: mlp must have shapes"),
        (lambda: pe.fire(P, P, (MLP[0][:0], MLP[1][:0], MLP[2][:0], MLP[3]), c=1.0, threshold=1.0), ValueError, "fire: mlp must have shapes"),
        (lambda: pe.fire(P, P, (*MLP[:2], MLP[2][..., None], MLP[3]), c=1.0, threshold=1.0), ValueError, "fire: mlp must have shapes"),
        (lambda: pe.fire(P, P, (MLP[0][:1], *MLP[1:]), c=1.0, threshold=1.0), ValueError, "fire: mlp must have shapes"),
        (lambda: pe.fire(P, P, MLP, c=1e-39, threshold=1.0), ValueError, r"fire: c must be from 1.2e-38 to 3.4e\+38 for float32, got 1e-39$"),
        (lambda: pe.fire(P, P, MLP, c=1e-20, threshold=1e-20), ValueError, r"fire: c times the threshold must be from 1.2e-38 to 3.4e\+38 for float32, got 1e-40$"),
        (lambda: pe.fire(P, P, MLP, c=1e29, threshold=1.0), ValueError, r"fire: c times a distance of 2³² must be from 1.2e-38 to 3.4e\+38 for float32, got 4.29"),
        (lambda: pe.fire(P, P, MLP, c=1.0, threshold=1e39), ValueError, r"fire: threshold must be from 1.2e-38 to 3.4e\+38 for float32, got 1e\+39$"),
        (lambda: pe.fire(P, P, (*MLP[:3], MLP[3][:1]), c=1.0, threshold=1.0), ValueError, "fire: mlp must have shapes"),
        (lambda: pe.fire(P, P, (MLP[0].astype(int), MLP[1], MLP[2], MLP[3]), c=1.0, threshold=1.0), TypeError, "fire: w1 of mlp must be a float array of shape"),
        (lambda: pe.fire(P, P, (MLP[0], MLP[1].astype(int), MLP[2], MLP[3]), c=1.0, threshold=1.0), TypeError, "fire: b1 of mlp must be a float array of shape"),
        (lambda: pe.fire(P, P, (MLP[0], MLP[1], MLP[2].astype(int), MLP[3]), c=1.0, threshold=1.0), TypeError, "fire: w2 of mlp must be a float array of shape"),
        (lambda: pe.fire(P, P, (MLP[0], MLP[1], MLP[2], MLP[3].astype(int)), c=1.0, threshold=1.0), TypeError, "fire: b2 of mlp must be a float array of shape"),
        (lambda: pe.fire(P, P, MLP, c=0, threshold=1.0), ValueError, "fire: c must be positive, got 0"),
        (lambda: pe.fire(P, P, MLP, c=1.0, threshold=-1), ValueError, "fire: threshold must be positive, got -1"),
        (lambda: pe.fire(P, P, MLP, c=H, threshold=1.0), ValueError, "fire: c must be a scalar"),
        (lambda: pe.sandwich(P, P, 0, 8), ValueError, "sandwich: heads must be at least 1"),
        (lambda: pe.sandwich(P, P, 2, 7), ValueError, "sandwich: frequencies must have an even dim, got 7"),
        (lambda: pe.sandwich(P, P, 2, dataclasses.replace(pe.geometric(8), attention_factor=1e30)), ValueError, r"sandwich: frequencies must have an attention_factor whose square float32 holds 8 times, got 1e\+30"),
        (lambda: pe.sandwich(P, P, 16, dataclasses.replace(pe.geometric(8), attention_factor=1e30)), ValueError, r"sandwich: frequencies must have an attention_factor whose square float32 holds 16 times, got 1e\+30"),
        (lambda: pe.sandwich(P, P, 2, pe.axial(8, 2)), ValueError, "sandwich: frequencies must have one axis, got 2"),
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
