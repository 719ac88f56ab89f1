"""T5's buckets and FIRE: what each promises besides `test_every_bias.py`.

- `t5` finds the bucket of every integer distance, for any number of rows, max_distance and direction, also where a
  logarithm in floats is one off. The buckets are those of transformers.
- `fire` is the code of its paper; its c and threshold are numbers or arrays.
- On TPUs, both are matrix products with the same values; `t5` has the same derivatives.
"""

import bisect
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


def buckets_at(distances, max_distance, *sides):
    """For each side (rows, bidirectional, direction), the buckets of keys at the distances from a query.

    Keys are before the query (direction -1) or after it (1). A table of the rows' indices tells the buckets.
    """
    apart = np.resize(distances, 1024).astype(np.int64)
    ends = {-1: 2**31 - 1, 1: -(2**31)}  # where the query is, so that any distance fits
    places = {n: (np.int32([end]), np.int32(end + n * apart)) for n, end in ends.items()}

    def read(places, rows, both, direction):
        table = np.arange(rows, dtype=np.float32)[:, None]
        return pe.t5(*places[direction], table, max_distance=max_distance, bidirectional=both)[0, 0]

    found = jax.device_get(jax.jit(lambda places: [read(places, *side) for side in sides])(places))
    return np.int64(found)[:, : len(distances)]


@pytest.mark.parametrize("peer", PEERS["buckets"], ids=lambda c: f"{c['buckets']}, {c['max_distance']}")
def test_buckets_are_those_of_transformers(peer):
    """No bucket begins at an exact power but those of two: there its float32 may be one off, or not, by the machine."""
    rows, most, both = (peer[key] for key in ("buckets", "max_distance", "bidirectional"))
    for name, direction in (("before", -1), ("after", 1)):
        starts, buckets = zip(*peer[name], strict=True)  # where each bucket begins
        edges = np.unique(np.clip(np.add.outer(starts, [-1, 0, 1]), 0, 100_000))
        want = np.array(buckets)[np.searchsorted(starts, edges, side="right") - 1]
        np.testing.assert_array_equal(*buckets_at(edges, most, (rows, both, direction)), want)


# rows, max_distance
SMALL = [(2, 500), (3, 2), (7, 4), (16, 9), (31, 500)]
POWERS = [(10, 5 * 3**5), (48, 81)]  # where buckets begin exactly at powers
LARGE = [(3, (2**32 - 1) ** 2), (3, (2**32 - 1) ** 2 + 1)]  # the last bucket begins at 2³² − 1, and beyond


@pytest.mark.parametrize(("rows", "max_distance"), SMALL + POWERS + LARGE)
def test_every_distance_is_in_its_bucket(rows, max_distance):
    edges = np.add.outer(learned._edges(rows, max_distance), [-1, 0, 1]).ravel()
    distances = np.unique([*range(600), *(d for d in edges if 0 <= d < 2**32), 2**32 - 1])
    want = [bucket(int(d), rows, max_distance) for d in distances]
    sides = (rows, False, -1), (rows, False, 1), (2 * rows, True, 1)
    before, first, after = buckets_at(distances, max_distance, *sides)
    np.testing.assert_array_equal(before, want)
    assert not first.any()
    np.testing.assert_array_equal(after[1:], np.add(want, rows)[1:])


EDGES = [(2, 2), (3, 500), (5, 500), (8, 5), (8, 6), (8, 4 * 5**4), (12, 6 * 10**6), (3, 2**32), (3, 10**30)]
EDGES += [(14, 7 * 7**7), (16, 10**4), (16, 2**31), (16, 2**32 - 1), (16, 2**35), (16, 10**30)]


@pytest.mark.parametrize(("rows", "max_distance"), EDGES)
def test_every_edge_is_where_its_bucket_begins(rows, max_distance):
    edges = learned._edges(rows, max_distance)
    for d in {2**63 - 2, *edges, *(edge - 1 for edge in edges)}:
        assert bisect.bisect(edges, d) == bucket(d, rows, max_distance)


def test_the_derivative_by_the_table_counts_beyond_2_to_the_24():
    n = 4200  # n² pairs in one bucket; a running float32 sum of ones would stall at 2²⁴ = 16,777,216
    same = np.zeros(n, np.int32)
    got = jax.jit(jax.grad(lambda t, at: jnp.sum(pe.t5(at, at, t))))(np.zeros((4, 1), np.float32), same)
    np.testing.assert_array_equal(got, [[n * n], [0], [0], [0]])


@pytest.mark.parametrize("look_up", [learned._rows_by_gather, learned._rows_by_product])
def test_a_gather_and_a_product_look_up_the_same_rows(look_up):
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
def test_fire_is_that_of_the_code_of_its_paper(peer):
    mlp, at = [np.float32(w) for w in peer["mlp"]], np.arange(peer["length"])
    got = pe.fire(np.array(peer["queries"]), at, mlp, c=peer["c"], threshold=peer["threshold"])
    assert_within(got, peer["bias"], 1e-6, against="the paper's code, keys after the query too")


@pytest.mark.parametrize("scalar", [float, np.asarray, lambda x: jax.device_put(np.asarray(x, "bfloat16"))])
def test_c_and_threshold_are_numbers_or_arrays(scalar):
    at, mlp = np.arange(0, 90, 8), (normal(4), normal(4), normal(4, 2), normal(2))
    want = biases.fire(biases.tile(at, at), at[:, None], mlp, 0.125, 64.0)
    got = jax.jit(lambda mlp: pe.fire(at, at, mlp, c=scalar(0.125), threshold=scalar(64.0)))(mlp)
    assert_within(got, want, 1e-5, against="the float64 formula")


@pytest.mark.parametrize("lowering", [learned._by_units, learned._by_product])
def test_each_lowering_of_the_perceptron_is_the_formula(lowering):
    x, mlp = RNG.uniform(0, 1, (2, 1, 5, 6)).astype(np.float32), (normal(32), normal(32), normal(32, 3), normal(3))
    assert_within(jax.jit(lowering)(x, *mlp), biases.perceptron(x, *mlp), 1e-5, against="the float64 formula")


P, TABLE, H = np.arange(4), np.ones((32, 3), np.float32), np.ones(3, np.float32)
LIMIT = "must be from 1.2e-38 to 3.4e+38 for float32"


@pytest.mark.parametrize(
    ("table", "settings", "error", "match"),
    [
        (TABLE[0], {}, ValueError, "table must have shape (buckets, heads)"),
        (TABLE[:, :0], {}, ValueError, "table must have shape (buckets, heads)"),
        (TABLE[:31], {}, ValueError, "table must have an even number of rows, at least 4"),
        (TABLE[:2], {}, ValueError, "table must have an even number of rows, at least 4"),
        (TABLE[:1], {"bidirectional": False}, ValueError, "table must have at least 2 rows"),
        (TABLE, {"max_distance": 8}, ValueError, "max_distance must be above 8"),
        (TABLE, {"max_distance": 128.0}, TypeError, "max_distance must be an integer"),
        (TABLE, {"bidirectional": 1}, TypeError, "bidirectional must be True or False"),
    ],
)
def test_invalid_arguments_of_t5_raise(table, settings, error, match):
    with pytest.raises(error, match="^t5: " + re.escape(match)):
        pe.t5(P, P, table, **settings)


@pytest.mark.parametrize(
    ("changed", "error", "match"),
    [
        ({"mlp": (H, H, H)}, TypeError, "mlp must be four arrays"),
        ({"w1": H[None]}, ValueError, "mlp must have shapes (hidden,)"),
        ({"w1": H[:1]}, ValueError, "mlp must have shapes"),
        ({"w1": H[:0], "b1": H[:0], "w2": TABLE[:0]}, ValueError, "mlp must have shapes"),
        ({"w2": TABLE[:3, :2]}, ValueError, "mlp must have shapes"),
        ({"w2": TABLE[:3, :, None]}, ValueError, "mlp must have shapes"),
        ({"b2": H[:0], "w2": TABLE[:3, :0]}, ValueError, "mlp must have shapes"),
        *(({n: P}, TypeError, f"{n} of mlp must be a float array of shape") for n in ("w1", "b1", "w2", "b2")),
        ({"c": 0}, ValueError, "c must be positive"),
        ({"threshold": 1e39}, ValueError, f"threshold {LIMIT}"),
        ({"c": 1e-20, "threshold": 1e-20}, ValueError, f"c times the threshold {LIMIT}"),
        ({"c": 1e29}, ValueError, f"c times a distance of 2³² {LIMIT}"),
        ({"c": H}, ValueError, "c must be a scalar"),
    ],
)
def test_invalid_arguments_of_fire_raise(changed, error, match):
    valid = {"w1": H, "b1": H, "w2": TABLE[:3], "b2": H, "c": 1.0, "threshold": 1.0} | changed
    mlp = changed.get("mlp", [valid[name] for name in ("w1", "b1", "w2", "b2")])
    with pytest.raises(error, match="^fire: " + re.escape(match)):
        pe.fire(P, P, mlp, c=valid["c"], threshold=valid["threshold"])
