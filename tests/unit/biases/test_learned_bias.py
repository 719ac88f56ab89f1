"""T5's buckets and FIRE's perceptron, against integers, float64 of exact distances, and recorded peers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.biases import FAR, HEADS, MLP, NEAR, TABLE, THRESHOLD, C
from helpers.closeness import assert_within
from helpers.tiers import tiered
from oracles import biases, recorded
from oracles.biases import bucket
from posenc_jax._biases import learned

PEERS = recorded.read("biases")
RNG = np.random.default_rng(0)

# T5's buckets


def buckets_of(*cases):
    """What `t5` finds, in one program, in each case: keys at distances from a query, rows, max_distance, both sides."""
    query = np.zeros(1, np.int32)
    keys = [np.asarray(distances, np.int32) for distances, *_ in cases]
    tables = [np.arange(rows, dtype=np.float32)[:, None] for _, rows, *_ in cases]

    @jax.jit
    def find(keys, tables):
        settings = [{"max_distance": largest, "bidirectional": both} for *_, largest, both in cases]
        return [pe.t5(query, *arrays, **given) for *arrays, given in zip(keys, tables, settings, strict=True)]

    return [np.asarray(found)[0, 0].astype(int) for found in find(keys, tables)]


@pytest.mark.parametrize(
    "peer",
    tiered(PEERS["buckets"], [PEERS["buckets"][i] for i in (0, 1, -1)]),
    ids=lambda c: f"{c['buckets']}, {c['max_distance']}",
)
def test_buckets_at_all_distances(peer):
    rows, largest, both = (peer[key] for key in ("buckets", "max_distance", "bidirectional"))
    n, all_distances = rows // (1 + both), np.arange(100_001)
    change = [d for d in range(largest + 2) if d == 0 or bucket(d, n, largest) != bucket(d - 1, n, largest)]
    numbers = [bucket(d, n, largest) for d in change]
    want = np.repeat(numbers, np.diff([*change, len(all_distances)]))
    (got,) = buckets_of((np.concatenate([-all_distances, all_distances]), rows, largest, both))
    got_before, got_after = np.split(got, 2)
    np.testing.assert_array_equal(got_before, want)
    after = np.where(all_distances > 0, want + n, 0) if both else 0 * want
    np.testing.assert_array_equal(got_after, after)
    # transformers, whose logarithm is of float32, is one off where (81/24)^(16/24) = 54/24 exactly.
    for sign, name, ours in ((-1, "before", want), (1, "after", after)):
        starts, found = zip(*peer[name], strict=True)
        theirs = np.repeat(found, np.diff([*starts, len(all_distances)]))
        off = all_distances[ours != theirs].tolist()
        assert off == ([54] if (rows, largest, sign) == (48, 81, -1) else [])


def test_a_bucket_begins_where_a_logarithm_in_floats_is_one_off():
    cases, expected = [([-53, -54], 48, 81, False)], [[39, 40]]
    for base, power in ((3, 5), (5, 4), (10, 6), (7, 7)):  # edges at e · base^k
        edges = [power * base**k for k in range(1, power)]
        cases.append(([-d for e in edges for d in (e - 1, e)], 2 * power, power * base**power, False))
        expected.append([bucket for k in range(1, power) for bucket in (power + k - 1, power + k)])
    for case, got, want in zip(cases, buckets_of(*cases), expected, strict=True):
        np.testing.assert_array_equal(got, want, err_msg=str(case))


def test_few_and_odd_numbers_of_buckets_and_last_ones_that_begin_together():
    odd = [(rows, 500, both) for rows, both in ((18, True), (10, True), (4, True), (31, False), (3, False), (2, False))]
    together = [(rows, largest, False) for rows, largest in ((8, 5), (8, 6), (16, 9), (7, 4), (2, 2), (3, 2))]
    cases, d = odd + together, np.arange(3000)
    for (rows, largest, both), got in zip(cases, buckets_of(*((-d, *case) for case in cases)), strict=True):
        want = [bucket(int(x), rows // (1 + both), largest) for x in d]
        np.testing.assert_array_equal(got, want, err_msg=f"{rows} rows, {largest=}, {both=}")


def test_a_bucket_that_begins_at_the_largest_distance():
    keys = np.array([-(2**31), -(2**31) + 1], np.int32)  # 2³² − 1 and one less from the query
    table = np.arange(3, dtype=np.float32)[:, None]
    for largest, want in (((2**32 - 1) ** 2, [2, 1]), ((2**32 - 1) ** 2 + 1, [1, 1])):
        got = pe.t5(np.array([2**31 - 1]), keys, table, bidirectional=False, max_distance=largest)
        np.testing.assert_array_equal(got, [[want]])


def test_buckets_at_any_distance_of_int32():
    lengths = 128, 10_000, 2**31, 2**32 - 1, 2**32, 2**35, 2**40, 10**30
    table = np.arange(32, dtype=np.float32)[:, None]
    found = jax.jit(lambda p, t: [pe.t5(p, p, t, max_distance=largest) for largest in lengths])(FAR, table)
    for largest, got in zip(lengths, found, strict=True):
        want = biases.t5_rows(biases.tile(FAR, FAR), FAR[:, None] < FAR[None], 32, max_distance=largest)
        np.testing.assert_array_equal(got, want[None], err_msg=f"max_distance={largest}")


@pytest.mark.parametrize("peer", PEERS["t5"])
def test_t5_beside_transformers(peer):
    table = np.array(peer["table"], np.float32)
    got = pe.t5(np.array(peer["queries"]), np.array(peer["keys"]), table, bidirectional=peer["bidirectional"])
    np.testing.assert_array_equal(got, np.array(peer["bias"], np.float32))


@pytest.mark.parametrize("lookup", [learned._rows_by_gather, learned._rows_by_product])
def test_the_tangent_in_the_table_on_every_platform(lookup):
    row, dy = RNG.integers(0, 32, (2, 6, 7)).astype(np.int32), RNG.normal(size=(2, HEADS, 6, 7)).astype(np.float32)

    @jax.jit
    def compute(row, table, dy):
        y, back = jax.vjp(lambda table: lookup(row, table), table)
        return y, back(dy)[0]

    y, back = compute(row, TABLE, dy)
    np.testing.assert_array_equal(y, np.moveaxis(TABLE[row], -1, 1))
    want = np.zeros((32, HEADS))
    np.add.at(want, row, np.moveaxis(dy, 1, -1))
    np.testing.assert_allclose(back, want, atol=1e-6)


@pytest.mark.parametrize("both", [True, False])
def test_the_derivative_by_the_table_counts_buckets(both):
    q, k = NEAR.reshape(2, 12), NEAR[::-1].reshape(2, 12)
    got = jax.jit(jax.grad(lambda t: jnp.sum(pe.t5(q, k, t, bidirectional=both))))(TABLE)
    want = np.zeros(32)
    for a, b in zip(q, k, strict=True):
        rows = biases.t5_rows(biases.tile(a, b), a[:, None] < b[None], 32, bidirectional=both)
        np.add.at(want, rows, 1)
    np.testing.assert_array_equal(got, np.repeat(want[:, None], HEADS, 1))


def test_the_derivative_by_the_table_counts_beyond_2_to_the_24():
    n = 4200  # all at one place: a sum of ones in float32, one after the other, ends at 16,777,216
    same = np.zeros(n, np.int32)
    got = jax.jit(jax.grad(lambda t, at: jnp.sum(pe.t5(at, at, t))))(np.zeros((4, 1), np.float32), same)
    np.testing.assert_array_equal(got, [[n * n], [0], [0], [0]])


@pytest.mark.slow
def test_the_bias_is_linear_in_the_table():
    f = lambda table: pe.t5(FAR, FAR, table)  # noqa: E731
    v, dy = RNG.normal(size=TABLE.shape).astype(np.float32), RNG.normal(size=(HEADS, 24, 24)).astype(np.float32)
    y, along = jax.jvp(f, (TABLE,), (v,))
    np.testing.assert_array_equal(y, f(TABLE))
    np.testing.assert_array_equal(along, f(v))
    np.testing.assert_array_equal(jax.linearize(f, TABLE)[1](v), along)
    np.testing.assert_array_equal(jax.jacfwd(f)(TABLE), jax.jacrev(f)(TABLE))
    (back,) = jax.vjp(f, TABLE)[1](dy)
    np.testing.assert_allclose(np.vdot(back, v), np.vdot(dy, along), rtol=1e-5)
    np.testing.assert_allclose(jax.linear_transpose(f, TABLE)(dy)[0], back, atol=1e-4)


# FIRE


@pytest.mark.parametrize("positions", [NEAR, FAR], ids=["near", "far"])
def test_fire(positions):
    want = biases.fire(biases.tile(positions, positions), positions[:, None], MLP, C, THRESHOLD)
    got = pe.fire(positions, positions, MLP, c=C, threshold=THRESHOLD)
    bound = 3e-6 * np.max(np.abs(MLP[0][:, None] * MLP[2]))
    assert_within(got, want, bound, against="the float64 formula of exact distances")


@pytest.mark.parametrize("peer", PEERS["fire"], ids=["short", "long"])
def test_fire_beside_the_code_of_its_paper(peer):
    mlp, queries = [np.array(w, np.float32) for w in peer["mlp"]], np.array(peer["queries"])
    compute = lambda by: pe.fire(queries + by, np.arange(peer["length"]) + by, mlp, c=peer["c"], threshold=peer["threshold"])  # noqa: E731  # fmt: skip
    np.testing.assert_allclose(compute(0), peer["bias"], atol=1e-6)  # keys after the query too
    if peer["length"] > peer["threshold"]:
        assert np.max(np.abs(np.asarray(compute(1)) - peer["bias"])) > 1e-4  # positions count from 0


@pytest.mark.parametrize("lowering", [learned._by_units, learned._by_product])
def test_the_perceptron_on_every_platform(lowering):
    x = RNG.uniform(0, 1, (2, 1, 5, 6)).astype(np.float32)
    np.testing.assert_allclose(jax.jit(lowering)(x, *MLP), biases.perceptron(x, *MLP), atol=1e-5)


@pytest.mark.slow
def test_the_hessian_of_fire_is_symmetric_and_the_same_in_every_order():
    f = lambda x: jnp.sum(pe.fire(NEAR[:5], NEAR[5:9], (x[:4], x[4:8], x[8:16].reshape(4, 2), x[16:18]), c=x[18], threshold=x[19]) ** 2)  # noqa: E731  # fmt: skip
    x = np.append(RNG.uniform(0.1, 1, 18), [0.3, 2000]).astype(np.float32)
    want = jax.jit(jax.hessian(f))(x)
    bound = 2e-6 * np.abs(want).max()
    np.testing.assert_allclose(want, want.T, atol=bound)
    for outer, inner in ((jax.jacrev, jax.jacrev), (jax.jacrev, jax.jacfwd), (jax.jacfwd, jax.jacfwd)):
        np.testing.assert_allclose(jax.jit(outer(inner(f)))(x), want, atol=bound)


P, H = np.arange(4), np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
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
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
