"""T5's buckets and FIRE: what each promises besides `test_every_bias.py`.

- `t5` is right in the bucket of every distance of integers, for any number of rows, max_distance and direction, where a
  logarithm in floats may be one off; it is the bias of transformers.
- `fire` normalizes by the query's position, from a threshold on, as the code of its paper; its c and threshold are
  numbers or arrays.
- On TPUs both are matrix products, of the same values and derivatives.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_within
from oracles import biases, recorded
from oracles.biases import bucket
from posenc_jax._biases import learned

PEERS = recorded.read("biases")
RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


# T5's buckets


def buckets_at(distances, rows, max_distance, bidirectional=False):
    """The bucket of keys so far before the query, read from a table of the rows' indices."""
    table, keys = np.arange(rows, dtype=np.float32)[:, None], -np.asarray(distances, np.int32)
    got = pe.t5(np.zeros(1, np.int32), keys, table, max_distance=max_distance, bidirectional=bidirectional)
    return np.asarray(got)[0, 0].astype(int)


@pytest.mark.parametrize("peer", PEERS["buckets"], ids=lambda c: f"{c['buckets']}, {c['max_distance']}")
def test_buckets_of_transformers(peer):
    rows, most, both = (peer[key] for key in ("buckets", "max_distance", "bidirectional"))
    for sign, name in ((1, "before"), (-1, "after")):
        starts, found = zip(*peer[name], strict=True)
        edges = np.unique(np.clip(np.add.outer(starts, [-1, 0, 1]), 0, 100_000))
        want = np.array(found)[np.searchsorted(starts, edges, side="right") - 1]
        if (rows, most, sign) == (48, 81, 1):  # its logarithm of float32 is one off where (81/24)^(16/24) = 54/24
            want[edges == 54] += 1
        np.testing.assert_array_equal(buckets_at(sign * edges, rows, most, both), want)


@pytest.mark.parametrize(("base", "power"), [(3, 5), (5, 4), (10, 6), (7, 7)])
def test_a_bucket_begins_exactly_at_a_power(base, power):
    edges = np.array([power * base**k for k in range(1, power)])
    for step, at in ((0, edges - 1), (1, edges)):
        got = buckets_at(at, 2 * power, power * base**power)
        np.testing.assert_array_equal(got, power + np.arange(power - 1) + step)


@pytest.mark.parametrize(
    ("rows", "max_distance"),
    [(9, 500), (5, 500), (2, 500), (31, 500), (3, 500), (8, 5), (8, 6), (16, 9), (7, 4), (2, 2), (3, 2)],
)
def test_few_and_odd_numbers_of_buckets(rows, max_distance):
    distances = np.arange(600)
    want = [bucket(int(d), rows, max_distance) for d in distances]
    np.testing.assert_array_equal(buckets_at(distances, rows, max_distance), want)
    both = buckets_at(-distances, 2 * rows, max_distance, bidirectional=True)
    np.testing.assert_array_equal(both[1:], np.add(want, rows)[1:])


@pytest.mark.parametrize("max_distance", [128, 2**32, 10**30, (2**32 - 1) ** 2, (2**32 - 1) ** 2 + 1])
def test_buckets_at_the_ends_of_int32(max_distance):
    """With (2³² − 1)², the last of three buckets begins at the largest distance of all; with one more, beyond it."""
    at = np.int32([2**31 - 1, -(2**31), -(2**31) + 1, -1, 0, 12345])
    table = np.arange(3, dtype=np.float32)[:, None]
    got = pe.t5(at, at, table, bidirectional=False, max_distance=max_distance)[0]
    after, distance = at[:, None] < at, biases.tile(at, at)
    np.testing.assert_array_equal(
        got, biases.t5_rows(distance, after, 3, bidirectional=False, max_distance=max_distance)
    )


@pytest.mark.parametrize("peer", PEERS["t5"])
def test_t5_beside_transformers(peer):
    table = np.float32(peer["table"])
    got = pe.t5(np.array(peer["queries"]), np.array(peer["keys"]), table, bidirectional=peer["bidirectional"])
    np.testing.assert_array_equal(got, np.float32(peer["bias"]))


@pytest.mark.parametrize("both", [True, False])
def test_the_derivative_by_the_table_counts_the_pairs_of_each_bucket(both):
    q, k = RNG.integers(0, 3000, (2, 2, 12)).astype(np.int32)
    table = np.zeros((32, 3), np.float32)
    got = jax.jit(jax.grad(lambda t: jnp.sum(pe.t5(q, k, t, bidirectional=both))))(table)
    want = np.zeros(32)
    for a, b in zip(q, k, strict=True):
        np.add.at(want, biases.t5_rows(biases.tile(a, b), a[:, None] < b, 32, bidirectional=both), 1)
    np.testing.assert_array_equal(got, np.repeat(want[:, None], 3, 1))


def test_the_derivative_by_the_table_counts_beyond_2_to_the_24():
    n = 4200  # all in one bucket: a sum of ones in float32, one after the other, ends at 16,777,216
    same = np.zeros(n, np.int32)
    got = jax.jit(jax.grad(lambda t, at: jnp.sum(pe.t5(at, at, t))))(np.zeros((4, 1), np.float32), same)
    np.testing.assert_array_equal(got, [[n * n], [0], [0], [0]])


@pytest.mark.parametrize("look_up", [learned._rows_by_gather, learned._rows_by_product])
def test_rows_on_every_platform(look_up):
    row, table, dy = RNG.integers(0, 32, (2, 6, 7)).astype(np.int32), normal(32, 3), normal(2, 3, 6, 7)
    y, back = jax.jit(lambda table, dy: (look_up(row, table), jax.vjp(lambda t: look_up(row, t), table)[1](dy)[0]))(
        table, dy
    )
    np.testing.assert_array_equal(y, np.moveaxis(table[row], -1, 1))
    want = np.zeros((32, 3))
    np.add.at(want, row, np.moveaxis(dy, 1, -1))
    assert_within(back, want, 1e-6, against="sums over buckets")


# FIRE


@pytest.mark.parametrize("peer", PEERS["fire"], ids=["short", "long"])
def test_fire_beside_the_code_of_its_paper(peer):
    mlp, at = [np.float32(w) for w in peer["mlp"]], np.arange(peer["length"])
    got = pe.fire(np.array(peer["queries"]), at, mlp, c=peer["c"], threshold=peer["threshold"])
    assert_within(got, peer["bias"], 1e-6, against="keys after the query too, the paper's code")


@pytest.mark.parametrize("scalar", [float, np.float32, np.asarray, lambda x: jnp.asarray(x, jnp.bfloat16)])
def test_c_and_threshold_are_numbers_or_arrays(scalar):
    at, mlp = np.arange(0, 90, 8), (normal(4), normal(4), normal(4, 2), normal(2))
    want = biases.fire(biases.tile(at, at), at[:, None], mlp, 0.125, 64.0)
    got = pe.fire(at, at, mlp, c=scalar(0.125), threshold=scalar(64.0))
    assert_within(got, want, 1e-5, against="the float64 formula")


@pytest.mark.parametrize("lowering", [learned._by_units, learned._by_product])
def test_the_perceptron_on_every_platform(lowering):
    x, mlp = RNG.uniform(0, 1, (2, 1, 5, 6)).astype(np.float32), (normal(32), normal(32), normal(32, 3), normal(3))
    assert_within(jax.jit(lowering)(x, *mlp), biases.perceptron(x, *mlp), 1e-5, against="the float64 formula")


P, TABLE, H = np.arange(4), np.ones((32, 3), np.float32), np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("positions", "table", "settings", "error", "match"),
    [
        (P.astype(np.float32), TABLE, {}, TypeError, "query_positions must be an integer array"),
        (P, TABLE.astype(int), {}, TypeError, "table must be a float array of shape (buckets, heads)"),
        (P, TABLE[0], {}, ValueError, "table must have shape (buckets, heads)"),
        (P, TABLE[:, :0], {}, ValueError, "table must have shape (buckets, heads)"),
        (P, TABLE[:31], {}, ValueError, "table must have an even number of rows, at least 4 with bidirectional=True"),
        (P, TABLE[:2], {}, ValueError, "table must have an even number of rows, at least 4 with bidirectional=True"),
        (
            P,
            TABLE[:1],
            {"bidirectional": False},
            ValueError,
            "table must have at least 2 rows with bidirectional=False",
        ),
        (P, TABLE, {"max_distance": 8}, ValueError, "max_distance must be above 8"),
        (P, TABLE, {"max_distance": 128.0}, TypeError, "max_distance must be an integer"),
        (P, TABLE, {"bidirectional": 1}, TypeError, "bidirectional must be True or False"),
    ],
)
def test_arguments_of_t5_that_raise(positions, table, settings, error, match):
    with pytest.raises(error, match="^t5: " + re.escape(match)):
        pe.t5(positions, P, table, **settings)


@pytest.mark.parametrize(
    ("changed", "error", "match"),
    [
        ({"mlp": (H, H, H)}, TypeError, "mlp must be four arrays"),
        ({"w1": H[None]}, ValueError, "mlp must have shapes (hidden,), (hidden,), (hidden, heads), (heads,)"),
        ({"w1": H[:1]}, ValueError, "mlp must have shapes"),
        ({"w1": H[:0], "b1": H[:0], "w2": TABLE[:0]}, ValueError, "mlp must have shapes"),
        ({"w2": TABLE[:3, :2]}, ValueError, "mlp must have shapes"),
        ({"w2": TABLE[:3, :, None]}, ValueError, "mlp must have shapes"),
        ({"b2": H[:0], "w2": TABLE[:3, :0]}, ValueError, "mlp must have shapes"),
        *(({n: P}, TypeError, f"{n} of mlp must be a float array of shape") for n in ("w1", "b1", "w2", "b2")),
        ({"c": 0}, ValueError, "c must be positive"),
        ({"threshold": -1}, ValueError, "threshold must be positive"),
        ({"c": 1e-39}, ValueError, "c must be from 1.2e-38 to 3.4e+38 for float32"),
        ({"threshold": 1e39}, ValueError, "threshold must be from 1.2e-38 to 3.4e+38 for float32"),
        ({"c": 1e-20, "threshold": 1e-20}, ValueError, "c times the threshold must be from"),
        ({"c": 1e29}, ValueError, "c times a distance of 2³² must be from"),
        ({"c": H}, ValueError, "c must be a scalar"),
    ],
)
def test_arguments_of_fire_that_raise(changed, error, match):
    valid = {"w1": H, "b1": H, "w2": TABLE[:3], "b2": H, "c": 1.0, "threshold": 1.0} | changed
    mlp = changed.get("mlp", [valid[name] for name in ("w1", "b1", "w2", "b2")])
    with pytest.raises(error, match="^fire: " + re.escape(match)):
        pe.fire(P, P, mlp, c=valid["c"], threshold=valid["threshold"])
