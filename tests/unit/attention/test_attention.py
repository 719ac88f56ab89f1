"""`attention` against all scores at once, in float64.

- Results, residuals, tangents and cotangents of every array, under each option and under all of them.
- Results have the shape (..., queries, heads, value_dim) and the dtype of the query, residuals are float32 or float64.
- A query that sees nothing has zeros, a residual of −∞ and no derivative.
- Neither blocks, padding, hidden keys nor a bias without bounds leave a trace in what is seen.
- Masks by position are right at the ends of int32 and of int64.
- Documents that are packed or padded, decoding by a ring of a cache, and keys in parts give what the whole gives.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.attention import (
    AT,
    BATCH,
    FORMULA,
    HEADS,
    KEYS,
    KV_HEADS,
    QUERIES,
    THERE,
    VALUE_WIDTH,
    along,
    attend,
    check,
    cotangents,
    drawn,
    exact,
)
from helpers.closeness import assert_within
from helpers.slow import slow
from oracles.attention import dense, may_see
from oracles.biases import alibi, tile

RNG = np.random.default_rng(0)
SEGMENTS = np.int32([[0] * 4 + [1] * 3, [5] * 7]), np.int32([[0] * 5 + [1] * 3, [5] * 5 + [2] * 3])
APART = np.where(AT == 5, 77, SEGMENTS[0]).astype(np.int32), SEGMENTS[1]  # of the query at 5, no key is a neighbour
BATCHED = {
    "i": np.stack([RNG.permutation(AT), 3 + RNG.permutation(AT)]).astype(np.int32),
    "j": np.stack([THERE, THERE[::-1] + 2]).astype(np.int32),
}
# Three tokens share a position, as the patches of an image share their time
SHARED = {"i": AT // 3, "j": THERE // 3}
ORDER = np.stack([AT, RNG.permutation(AT)]), np.stack([THERE, RNG.permutation(THERE)])
MASK = RNG.random((BATCH, HEADS, QUERIES, KEYS)) < 0.6
EACH = (BATCH, HEADS), (BATCH, KV_HEADS), (BATCH, KV_HEADS)  # of data: a batch and heads of its own

CASES = {
    "window, sinks": {"window": (3, 1), "sinks": True},
    "window after, cap, a number as scale": {
        **{"window": (None, 1), "cap": 0.7, "bias": True, "scale": -0.5, "block_size": 512}
    },
    "segments, keys shared by all heads": {
        **{"segments": APART, "causal": True, "sinks": True, "kv_heads": 1, "block_size": 1}
    },
    "order": {"causal": True, "order": ORDER, "window": (2, 1), "bias": True, "sinks": True, **SHARED},
    "mask of heads": {"mask": MASK, "scale": (BATCH, QUERIES, HEADS), "kv_heads": 4},
    "mask of keys, a query that sees nothing": {
        "mask": MASK[:, :1, :1],
        "causal": True,
        "segments": APART,
        "scale": (QUERIES, 1),
    },
    "data, causal window": {"data": EACH, "causal": True, "window": (4, 3), "scale": (HEADS,)},
    "data shared": {"data": ((1, 1), (1, 1), (BATCH, 1)), "window": (3, 1), "cap": 1.5},
    "everything": {
        **{"window": (5, 1), "cap": 1.5, "sinks": True, "bias": True, "segments": SEGMENTS, "mask": MASK[:1]},
        **{"data": ((BATCH, 1), (1, KV_HEADS), (1, 1)), "scale": (HEADS,), **BATCHED},
    },
}


def derivatives(case, x, v, dy):
    """Results, tangents and cotangents."""
    y, tangents = jax.jvp(functools.partial(attend, case), (x,), (v,))
    return y, tangents, jax.vjp(functools.partial(attend, case), x)[1](dy)[0]


@pytest.mark.parametrize("name", [slow(name) if name == "window, sinks" else name for name in CASES])
def test_results_and_derivatives(name):
    case = CASES[name]
    x, v, dy = drawn(case), drawn(case, 1), cotangents(case)
    y, tangents, by = jax.jit(functools.partial(derivatives, case))(x, v, dy)
    *want, want_by = exact(case, x, *dy)
    check(y, tuple(want), 1e-6)
    check(tangents, along(lambda x: exact(case, x)[:2], x, v), against=f"differences of {FORMULA}")
    check(by, want_by, against=f"the derivative of {FORMULA}")


# Dtypes and shapes


@pytest.mark.parametrize("bias", [{"bias": True, "sinks": True}, {"data": EACH}], ids=["positions", "data"])
def test_half_precision(bias):
    """Weights, their cotangents and results are rounded once each: a few units in the last place of the largest."""
    case = {"causal": True} | bias
    x, (dy, dl) = drawn(case), cotangents(case)
    x = {name: a if name == "slopes" else a.astype(jnp.bfloat16) for name, a in x.items()}
    dy = dy.astype(jnp.bfloat16), 0 * dl
    both = jax.jit(lambda x, dy: [*(found := jax.vjp(functools.partial(attend, case), x))[:1], *found[1](dy)])
    (y, residual), by = both(x, dy)
    assert y.dtype == jnp.bfloat16 and residual.dtype == jnp.float32
    assert [a.dtype for a in by.values()] == [x[name].dtype for name in by]
    want, of_sums, want_by = exact(case, x, *dy)
    check((y, by), (want, want_by), 3 * 2.0**-7)
    if "slopes" in x:
        assert_within(residual, of_sums, 2e-5, against=FORMULA)


def test_leading_axes_are_any():
    """Positions, a mask and data may be of some of them."""
    x = [np.stack([a, 2 * a, a - 1]) for a in drawn({}).values()]
    mask, i = RNG.random((3, 1, 1, 1, KEYS)) < 0.7, np.stack([AT, AT[::-1]])[None]
    of_keys = RNG.normal(size=(3, 1, KEYS, 1)).astype(np.float32)

    def bias(i, j, _, of_keys):
        return of_keys[:, None, None, :, 0] * i[:, None, :, None].astype(of_keys.dtype)

    where = {"query_positions": i, "key_positions": THERE, "key_data": of_keys, "mask": mask, "block_size": 3}
    got = jax.jit(lambda *x: pe.attention(*x, bias=bias, return_residual=True, **where))(*x)
    want = dense(*x, of_keys[..., None, None, :, 0] * i[..., None, :, None], mask)
    check(got, (want.y, want.residual), 2e-6)
    alone = jax.eval_shape(functools.partial(pe.attention, return_residual=True), *(a[0, 0] for a in x))
    assert [y.shape for y in alone] == [(QUERIES, HEADS, VALUE_WIDTH), (QUERIES, HEADS)]


def pulled(case, x):
    (y, residual), pull = jax.vjp(functools.partial(attend, case), x)
    return (y, residual), pull((y, jnp.ones_like(residual)))[0]


@pytest.mark.parametrize(("batch", "queries", "keys"), [(BATCH, 3, 0), (BATCH, 0, 3), (0, 3, 3)])
def test_empty_sequences_and_batches(batch, queries, keys):
    """Results are zeros, of keys the sinks are left."""
    case = {"i": AT[:queries], "j": THERE[:keys], "causal": True, "bias": True, "sinks": True}
    x = drawn(case)
    x |= {"query": x["query"][:batch, :queries]} | {name: x[name][:batch, :keys] for name in ("key", "value")}
    (y, residual), by = jax.device_get(jax.jit(functools.partial(pulled, case))(x))
    assert y.shape == (batch, queries, HEADS, VALUE_WIDTH) and not np.any(y)
    if keys == 0:
        np.testing.assert_array_equal(residual, np.broadcast_to(x["sinks"], residual.shape))
        np.testing.assert_array_equal(by["sinks"], np.full(HEADS, BATCH * queries))


def test_positions_count_from_0_and_a_bias_may_be_a_number():
    x = drawn({})
    q, k, v = x["query"], x["key"][:, 1:], x["value"][:, 1:]
    both = jax.jit(lambda *x: (pe.attention(*x, causal=True), pe.attention(*x, bias=lambda i, j: 1.0)))
    check(both(q, k, v), (dense(q, k, v, seen=np.tri(QUERIES, dtype=bool)).y, dense(q, k, v).y), 1e-6)


def test_a_scale_may_be_traced():
    x = [*drawn({}).values()]
    got = jax.jit(lambda scale: pe.attention(*x, scale=scale))(np.asarray(0.5, jnp.bfloat16))
    check(got, dense(*x, scale=0.5).y, 1e-6)


# What is not seen


def gradients(f, *x):
    """A result, and its gradient along itself."""
    y, pull = jax.vjp(f, *x)
    return y, pull(y)


def test_minus_infinity_in_a_bias_hides_a_key():
    """Results and gradients, of the bias too, are those of a mask; where nothing is seen they are 0."""
    x, slopes = drawn({}), RNG.uniform(0.1, 1, HEADS).astype(np.float32)
    hidden = lambda i, j: (j % 3 == 0) | (i == 6)  # noqa: E731

    def f(query, slopes):
        def masked(i, j):
            return jnp.where(hidden(i[:, None], j[None])[None], -jnp.inf, pe.alibi(i, j, slopes))

        where = {"query_positions": AT, "key_positions": THERE, "block_size": 3}
        return pe.attention(query, x["key"], x["value"], bias=masked, **where)

    y, by = jax.jit(functools.partial(gradients, f))(x["query"], slopes)
    table = alibi(tile(AT, THERE), slopes)
    want = dense(*x.values(), table, ~hidden(AT[:, None], THERE))
    dq, _, _, ds = want.back(y)
    check((y, by), (want.y, (dq, (ds * table / np.float64(slopes)[:, None, None]).sum((0, 2, 3)))))


def test_padding_of_a_block_has_finite_derivatives():
    """The last block is padded with the last token: at zeros this bias is infinite, and its derivative NaN."""
    x, i, j = drawn({}), AT - 1, THERE + 1
    gates = RNG.uniform(1, 2, (BATCH, KEYS, 1)).astype(np.float32)

    def f(query, gates):
        def bias(i, j, _, gates):
            logarithms = jnp.log(gates[:, :, 0] * j[None].astype(jnp.float32))
            return logarithms[:, None, None] / i[None, None, :, None].astype(jnp.float32)

        where = {"query_positions": i, "key_positions": j, "key_data": gates, "block_size": 3}
        return pe.attention(query, x["key"], x["value"], bias=bias, **where)

    y, by = jax.jit(functools.partial(gradients, f))(x["query"], gates)
    want = dense(*x.values(), np.log(np.float64(gates[:, None, None, :, 0]) * j) / i[:, None])
    dq, _, _, ds = want.back(y)
    check((y, by), (want.y, (dq, (ds / i[:, None]).sum((1, 2))[..., None] / gates)))


def test_keys_that_are_all_far_away():
    """−2³¹·slope, the same for all keys, changes no weight; beside it float32 does not hold ln(keys)."""
    x = drawn({})
    qkv = 0 * x["query"], x["key"], x["value"]

    @jax.jit
    def at(distance):
        options = {"query_positions": jnp.full(QUERIES, distance, jnp.int32), "key_positions": 0 * THERE}
        bias = lambda i, j: pe.alibi(i, j, HEADS)  # noqa: E731
        return gradients(lambda *x: pe.attention(*x, bias=bias, causal=True, block_size=3, **options), *qkv)

    far = at(np.int32(2**31 - 1))
    jax.tree.map(np.testing.assert_array_equal, far, at(np.int32(0)))
    want = dense(*qkv)
    check(far, (want.y, tuple(want.back(want.y)[:3])))


def test_a_mask_of_more_queries_than_a_word_has_bits():
    """Tiles of 35 queries, of which in some the first 32 see nothing, or one sequence."""
    rng = np.random.default_rng(3)
    q, k, v = (rng.normal(size=(2, n, 1, 8)).astype(np.float32) for n in (70, 50, 50))
    i, j = np.arange(70)[:, None] % 35, np.arange(50)
    seen = (rng.random((2, 1, 70, 50)) < 0.3) & (i >= np.where(j < 25, 32, 0))
    seen[0, ..., :25] = False
    f = functools.partial(pe.attention, mask=seen, block_size=40)
    y, by = jax.jit(functools.partial(gradients, f))(q, k, v)
    want = dense(q, k, v, seen=seen)
    check(y, want.y, 2e-6)
    check(by, tuple(want.back(y)[:3]), 2e-5)


# Numbers at the ends of their ranges

INT = np.iinfo(np.int32)
ENDS = np.int32([INT.min, INT.min + 1, INT.min + 5, -1, 0, 1, INT.max - 5, INT.max - 1, INT.max])


def seen_by(i, j, **options):
    """Which keys a query sees: all scores are 0, and values one-hot."""
    values = np.eye(len(j), dtype=np.float32)[None, :, None]
    q, k = (np.zeros((1, len(x), 1, 4), np.float32) for x in (i, j))
    f = functools.partial(pe.attention, q, k, values, block_size=2, **options)
    return np.asarray(jax.jit(lambda i, j: f(query_positions=i, key_positions=j))(i, j))[0, :, 0] > 0


WINDOWS = (2**32 - 2, 2**32 - 2), (2**40, 2**70)
WIDE = np.int64([0, 2**33, 2**40, -(2**62), 2**63 - 1]), np.int64([1, -1, 2**40 + 3, -(2**62) - 2, -(2**63), 2**34])


@pytest.mark.parametrize(
    ("at", "options"),
    [
        ((ENDS, ENDS[::-1]), {"causal": True}),
        *[((ENDS, ENDS[::-1]), {"window": window}) for window in WINDOWS],
        *[(WIDE, {"window": window}) for window in ((2**33, None), (2**63, 2))],
    ],
)
def test_masks_by_position_do_not_wrap(at, options):
    """So an empty slot of a cache, at the greatest position, is hidden from all queries before it."""
    with jax.enable_x64(at is WIDE):
        got = seen_by(*at, **options)
    np.testing.assert_array_equal(got, may_see(*at, **options)[0])


def test_sinks_of_any_size():
    """One at −∞ is none, a low one is no more than that, and a great one takes all weight."""
    case = {"sinks": True, "segments": APART, "causal": True, "block_size": 512}
    x, (dy, dl) = drawn(case), cotangents(case)
    x["sinks"] = lows = np.float32([-np.inf, 1e4, -1e4, 3e38])
    v = x | {"sinks": np.ones_like(lows)}
    got = jax.jit(functools.partial(derivatives, case))(x, v, (dy, 0 * dl))
    (y, residual), tangents, by = jax.device_get(got)
    without = exact(case, {name: x[name] for name in ("query", "key", "value")})[0]
    check((y[:, :, [0, 2]], y[:, :, [1, 3]]), (without[:, :, [0, 2]], 0 * without[:, :, [1, 3]]))
    np.testing.assert_array_equal(np.isneginf(residual[..., 0]), np.broadcast_to(AT == 5, (BATCH, QUERIES)))
    np.testing.assert_array_equal(residual[..., 3], lows[3])
    assert not np.any(np.delete(by["sinks"], 2)) and all(np.all(np.isfinite(a)) for a in (*tangents, by["sinks"]))


def test_caps_at_their_bounds_and_far_scores():
    x = drawn({"cap": 2.0})
    for cap, scale in ((1e-30, None), (1e30, None), (2.0, 1e6)):
        case = {"cap": cap, "scale": scale, "block_size": 512}
        y, by = jax.jit(functools.partial(gradients, lambda x: attend(case, x)[0]))(x)  # noqa: B023
        check(y, exact(case, x)[0])
        assert all(np.all(np.isfinite(a)) for a in jax.tree.leaves(by)), case


# The same tokens in another arrangement


def test_keys_may_come_in_parts():
    """They merge by their residuals; some queries see nothing of one part. A sink is in one of them."""
    case = {"causal": True, "bias": True, "sinks": True}
    x = drawn(case)

    def part(x, keys):
        of_part = x | {name: x[name][:, keys] for name in ("key", "value")}
        return attend(case | {"j": THERE[keys]}, of_part, **({} if keys.start is None else {"sinks": None}))

    def merged(x):
        (a, of_a), (b, of_b) = part(x, slice(None, 5)), part(x, slice(5, None))
        together = jnp.logaddexp(of_a, of_b)
        return a * jnp.exp(of_a - together)[..., None] + b * jnp.exp(of_b - together)[..., None], together

    check(jax.jit(merged)(x), exact(case, x)[:2], 1e-6)


def test_steps_with_a_ring_of_a_cache_are_rows_of_the_whole():
    """Four slots hold the keys that a window shows; those that are not written yet are at the greatest position."""
    case = {"causal": True, "bias": True, "window": (3, None), "sinks": True, "i": THERE[:QUERIES]}
    x = drawn(case)
    want = exact(case, x)[:2]
    step = jax.jit(lambda x, i, j: attend(case | {"i": i, "j": j}, x))
    for t in range(QUERIES):
        slots = t - (t - np.arange(4)) % 4
        cache = {name: x[name][:, np.maximum(slots, 0)] for name in ("key", "value")}
        got = step(x | {"query": x["query"][:, [t]]} | cache, THERE[[t]], np.where(slots < 0, INT.max, slots))
        check(got, tuple(y[:, [t]] for y in want), 2e-6, f"row {t} of {FORMULA}")


def test_packed_or_padded_documents_are_as_alone():
    """Of three and of four tokens: in one row, told apart by segments, or padded on the left, under a mask of keys."""
    x = [a[0, :7] for a in drawn({}).values()]

    def attend(q, k, v, at, **options):
        return pe.attention(q, k, v, query_positions=at, key_positions=at, window=(1, 0), block_size=3, **options)

    qkv = ([a[document] for a in x] for document in (slice(3), slice(3, 7)))
    first, second = (dense(*a, seen=may_see(n := np.arange(len(a[0])), n, window=(1, 0))).y for a in qkv)
    at, ids = np.int32([0, 1, 2, 0, 1, 2, 3]), np.int32([0, 0, 0, 1, 1, 1, 1])
    rows, places = np.array([[0, 0, 1, 2], [3, 4, 5, 6]]), np.int32([[0, 0, 1, 2], [0, 1, 2, 3]])
    mask = np.array([[False, True, True, True], [True] * 4])[:, None, None]
    padded = functools.partial(attend, *(a[rows] for a in x), places, mask=mask)
    both = jax.jit(lambda *x: (attend(*x, at, query_segments=ids, key_segments=ids), padded()))
    packed, padded = jax.device_get(both(*x))
    check(packed, np.concatenate([first, second]), 1e-6, "each alone")
    check((padded[0, 1:], padded[1]), (first, second), 1e-6, "each alone")
