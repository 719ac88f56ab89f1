"""`attention` equals a float64 formula that computes all scores at once.

- Results, residuals, tangents and cotangents of every array are right, under each option and under all of them.
- Results have the shape (..., queries, heads, value_dim). For bfloat16 arrays, results are bfloat16 and residuals
  float32.
- A query that sees nothing has zeros as results, a residual of −∞, and derivatives of zero.
- Padding of blocks, hidden keys, and biases of −∞ or −2³¹·slope do not change what a query sees.
- Masks by position are right at the ends of int32 and of int64.
- Packed or padded documents equal each document alone. Decoding with a ring cache, and merging attention over parts of
  the keys, equal one call with all keys.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.attention import (
    BATCH,
    FORMULA,
    HEADS,
    KEY_AT,
    KEYS,
    KV_HEADS,
    QUERIES,
    QUERY_AT,
    VALUE_WIDTH,
    attend,
    check,
    cotangents,
    derivative_along,
    exact,
    random_arrays,
)
from helpers.closeness import assert_within
from helpers.slow import slow
from oracles.attention import dense, may_see
from oracles.biases import alibi, tile

RNG = np.random.default_rng(0)
SEGMENTS = np.int32([[0] * 4 + [1] * 3, [5] * 7]), np.int32([[0] * 5 + [1] * 3, [5] * 5 + [2] * 3])
QUERY_5_ALONE = np.where(QUERY_AT == 5, 77, SEGMENTS[0]).astype(np.int32), SEGMENTS[1]  # no key is in segment 77
POSITIONS_OF_EACH_ROW = {
    "i": np.stack([RNG.permutation(QUERY_AT), 3 + RNG.permutation(QUERY_AT)]).astype(np.int32),
    "j": np.stack([KEY_AT, KEY_AT[::-1] + 2]).astype(np.int32),
}
# Three tokens share a position, as the patches of an image share their time.
SHARED_POSITIONS = {"i": QUERY_AT // 3, "j": KEY_AT // 3}
ORDER = np.stack([QUERY_AT, RNG.permutation(QUERY_AT)]), np.stack([KEY_AT, RNG.permutation(KEY_AT)])
MASK = RNG.random((BATCH, HEADS, QUERIES, KEYS)) < 0.6
DATA_OF_EACH_HEAD = (BATCH, HEADS), (BATCH, KV_HEADS), (BATCH, KV_HEADS)  # (batch, heads) of the arrays a, b and g

CASES = {  # `helpers.attention` explains the keys of a case
    "window, sinks": {"window": (3, 1), "sinks": True},
    "window after, cap, a number as scale": {
        "window": (None, 1),
        "cap": 0.7,
        "bias": True,
        "scale": -0.5,
        "block_size": 512,
    },
    "segments, keys shared by all heads": {
        "segments": QUERY_5_ALONE,
        "causal": True,
        "sinks": True,
        "kv_heads": 1,
        "block_size": 1,
    },
    "order": {"causal": True, "order": ORDER, "window": (2, 1), "bias": True, "sinks": True, **SHARED_POSITIONS},
    "mask of heads": {"mask": MASK, "scale": (BATCH, QUERIES, HEADS), "kv_heads": 4},
    "mask of keys, a query that sees nothing": {
        "mask": MASK[:, :1, :1],
        "causal": True,
        "segments": QUERY_5_ALONE,
        "scale": (QUERIES, 1),
    },
    "data, causal window": {"data": DATA_OF_EACH_HEAD, "causal": True, "window": (4, 3), "scale": (HEADS,)},
    "data shared": {"data": ((1, 1), (1, 1), (BATCH, 1)), "window": (3, 1), "cap": 1.5},
    "everything": {
        "window": (5, 1),
        "cap": 1.5,
        "sinks": True,
        "bias": True,
        "segments": SEGMENTS,
        "mask": MASK[:1],
        "data": ((BATCH, 1), (1, KV_HEADS), (1, 1)),
        "scale": (HEADS,),
        **POSITIONS_OF_EACH_ROW,
    },
}


def derivatives(case, x, v, dy):
    """Results and residuals, tangents for v, and the cotangents of all arrays for dy."""
    y, tangents = jax.jvp(functools.partial(attend, case), (x,), (v,))
    return y, tangents, jax.vjp(functools.partial(attend, case), x)[1](dy)[0]


@pytest.mark.parametrize("name", [slow(name) if name == "window, sinks" else name for name in CASES])
def test_results_and_derivatives_are_those_of_the_formula(name):
    case = CASES[name]
    x, v, dy = random_arrays(case), random_arrays(case, 1), cotangents(case)
    y, tangents, gradients = jax.jit(functools.partial(derivatives, case))(x, v, dy)
    *want, want_gradients = exact(case, x, *dy)
    check(y, tuple(want), 1e-6)
    check(tangents, derivative_along(lambda x: exact(case, x)[:2], x, v), against=f"differences of {FORMULA}")
    check(gradients, want_gradients, against=f"the derivative of {FORMULA}")


# Dtypes and shapes


@pytest.mark.parametrize(
    "options", [{"bias": True, "sinks": True}, {"data": DATA_OF_EACH_HEAD}], ids=["positions", "data"]
)
def test_half_precision_rounds_weights_cotangents_and_results_once(options):
    """The error is at most three units in the last place (2⁻⁷ in bfloat16) of the largest element."""
    case = {"causal": True} | options
    x, (dy, dl) = random_arrays(case), cotangents(case)
    x = {name: a if name == "slopes" else a.astype(jnp.bfloat16) for name, a in x.items()}
    dy = dy.astype(jnp.bfloat16), 0 * dl

    @jax.jit
    def results_and_gradients(x, dy):
        y, pull = jax.vjp(functools.partial(attend, case), x)
        return y, pull(dy)[0]

    (y, residual), gradients = results_and_gradients(x, dy)
    assert y.dtype == jnp.bfloat16 and residual.dtype == jnp.float32
    assert [a.dtype for a in gradients.values()] == [x[name].dtype for name in gradients]
    want, want_residual, want_gradients = exact(case, x, *dy)
    check((y, gradients), (want, want_gradients), 3 * 2.0**-7)
    if "slopes" in x:  # a bias of bfloat16 data has an error of its own
        assert_within(residual, want_residual, 2e-5, against=FORMULA)


def test_leading_axes_may_be_several_or_none():
    """Positions, a mask and key data may have size 1 along some of the leading axes."""
    x = [np.stack([a, 2 * a, a - 1]) for a in random_arrays({}).values()]  # leading axes of sizes 3 and BATCH
    mask, i = RNG.random((3, 1, 1, 1, KEYS)) < 0.7, np.stack([QUERY_AT, QUERY_AT[::-1]])[None]
    of_keys = RNG.normal(size=(3, 1, KEYS, 1)).astype(np.float32)

    def bias(i, j, _, of_keys):
        return of_keys[:, None, None, :, 0] * i[:, None, :, None].astype(of_keys.dtype)

    where = {"query_positions": i, "key_positions": KEY_AT, "key_data": of_keys, "mask": mask, "block_size": 3}
    got = jax.jit(lambda *x: pe.attention(*x, bias=bias, return_residual=True, **where))(*x)
    want = dense(*x, of_keys[..., None, None, :, 0] * i[..., None, :, None], mask)
    check(got, (want.y, want.residual), 2e-6)
    alone = jax.eval_shape(functools.partial(pe.attention, return_residual=True), *(a[0, 0] for a in x))
    assert [y.shape for y in alone] == [(QUERIES, HEADS, VALUE_WIDTH), (QUERIES, HEADS)]


def test_positions_are_checked_beside_a_key_mask_of_several_leading_axes():
    at = np.tile(np.arange(8, dtype=np.int32), (2, 3, 1))
    mask, x = np.ones((2, 3, 1, 1, 8), bool), np.ones((2, 3, 8, 1, 4), np.float32)

    def attend(at, mask):
        return jax.eval_shape(
            lambda x: pe.attention(x, x, x, query_positions=at, key_positions=at, mask=mask, causal=True), x
        )

    assert attend(at, mask).shape == x.shape
    packed = at.copy()
    packed[1, 2, 4:] = range(4)
    with pytest.raises(ValueError, match="^attention: key_positions must not return"):
        attend(packed, mask)
    mask[1, 2, ..., 4:] = False
    attend(packed, mask)


def results_and_gradients(case, x):
    """Results and residuals; and the cotangents of all arrays, if those of results are y and of residuals 1."""
    (y, residual), pull = jax.vjp(functools.partial(attend, case), x)
    return (y, residual), pull((y, jnp.ones_like(residual)))[0]


@pytest.mark.parametrize(("batch", "queries", "keys"), [(BATCH, 3, 0), (BATCH, 0, 3), (0, 3, 3)])
def test_empty_sequences_and_batches_have_results_of_zeros(batch, queries, keys):
    """Without keys, a residual is the sink of its head."""
    case = {"i": QUERY_AT[:queries], "j": KEY_AT[:keys], "causal": True, "bias": True, "sinks": True}
    x = random_arrays(case)
    x |= {"query": x["query"][:batch, :queries]} | {name: x[name][:batch, :keys] for name in ("key", "value")}
    (y, residual), gradients = jax.device_get(jax.jit(functools.partial(results_and_gradients, case))(x))
    assert y.shape == (batch, queries, HEADS, VALUE_WIDTH) and not np.any(y)
    if keys == 0:
        np.testing.assert_array_equal(residual, np.broadcast_to(x["sinks"], residual.shape))
        np.testing.assert_array_equal(gradients["sinks"], np.full(HEADS, BATCH * queries))


def test_positions_count_from_0_and_a_bias_may_be_a_number():
    x = random_arrays({})
    q, k, v = x["query"], x["key"][:, 1:], x["value"][:, 1:]
    both = jax.jit(lambda *x: (pe.attention(*x, causal=True), pe.attention(*x, bias=lambda i, j: 1.0)))
    check(both(q, k, v), (dense(q, k, v, seen=np.tri(QUERIES, dtype=bool)).y, dense(q, k, v).y), 1e-6)


def test_a_scale_may_be_traced():
    x = [*random_arrays({}).values()]
    got = jax.jit(lambda scale: pe.attention(*x, scale=scale))(np.asarray(0.5, jnp.bfloat16))  # 0.5 is exact
    check(got, dense(*x, scale=0.5).y, 1e-6)


# What is not seen


def gradients(f, *x):
    """The result y of f, and the gradients of y² / 2: the cotangent is y."""
    y, pull = jax.vjp(f, *x)
    return y, pull(y)


def test_minus_infinity_in_a_bias_hides_a_key():
    """Results and gradients by query and slopes are those under a mask. The query at 6 sees nothing."""
    x, slopes = random_arrays({}), RNG.uniform(0.1, 1, HEADS).astype(np.float32)
    hidden = lambda i, j: (j % 3 == 0) | (i == 6)  # noqa: E731

    def f(query, slopes):
        def masked(i, j):
            return jnp.where(hidden(i[:, None], j[None])[None], -jnp.inf, pe.alibi(i, j, slopes))

        where = {"query_positions": QUERY_AT, "key_positions": KEY_AT, "block_size": 3}
        return pe.attention(query, x["key"], x["value"], bias=masked, **where)

    y, by = jax.jit(functools.partial(gradients, f))(x["query"], slopes)
    table = alibi(tile(QUERY_AT, KEY_AT), slopes)
    want = dense(*x.values(), table, ~hidden(QUERY_AT[:, None], KEY_AT))
    dq, _, _, ds = want.back(y)
    check((y, by), (want.y, (dq, (ds * table / np.float64(slopes)[:, None, None]).sum((0, 2, 3)))))


def test_padding_of_a_block_has_finite_derivatives():
    """The last block is padded by repeating the last token.

    This bias, ln(gate · j) / i, would be infinite at zeros, and its derivative NaN.
    """
    x, i, j = random_arrays({}), QUERY_AT - 1, KEY_AT + 1  # all at least 1
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
    """ALiBi's bias at the distance 2³¹ − 1 is the same for all keys, so it changes no weight.

    A float32 sum of this bias and ln(number of keys) would round the logarithm off.
    """
    x = random_arrays({})
    qkv = 0 * x["query"], x["key"], x["value"]

    @jax.jit
    def at(distance):
        options = {"query_positions": jnp.full(QUERIES, distance, jnp.int32), "key_positions": 0 * KEY_AT}
        bias = lambda i, j: pe.alibi(i, j, HEADS)  # noqa: E731
        return gradients(lambda *x: pe.attention(*x, bias=bias, causal=True, block_size=3, **options), *qkv)

    far = at(np.int32(2**31 - 1))
    jax.tree.map(np.testing.assert_array_equal, far, at(np.int32(0)))
    want = dense(*qkv)
    check(far, (want.y, tuple(want.back(want.y)[:3])))


def test_a_mask_of_more_queries_than_a_word_has_bits():
    """Tiles have 35 queries, more than the 32 bits of a word.

    For the first 25 keys, the first 32 queries of a tile see nothing; in the first sequence no query does.
    """
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
    """Which keys each query sees, (queries, keys).

    All scores are 0 and values are one-hot, so the result of a query is positive exactly at the keys that it sees.
    """
    values = np.eye(len(j), dtype=np.float32)[None, :, None]
    q, k = (np.zeros((1, len(x), 1, 4), np.float32) for x in (i, j))
    f = functools.partial(pe.attention, q, k, values, block_size=2, **options)
    return np.asarray(jax.jit(lambda i, j: f(query_positions=i, key_positions=j))(i, j))[0, :, 0] > 0


WINDOWS = (2**32 - 2, 2**32 - 2), (2**40, 2**70)
# Positions of queries and keys in int64.
WIDE = np.int64([0, 2**33, 2**40, -(2**62), 2**63 - 1]), np.int64([1, -1, 2**40 + 3, -(2**62) - 2, -(2**63), 2**34])


@pytest.mark.parametrize(
    ("positions", "options"),
    [
        ((ENDS, ENDS[::-1]), {"causal": True}),
        *[((ENDS, ENDS[::-1]), {"window": window}) for window in WINDOWS],
        *[(WIDE, {"window": window}) for window in ((2**33, None), (2**63, 2))],
    ],
)
def test_masks_by_position_do_not_wrap(positions, options):
    """An empty slot of a cache has the greatest position: it is hidden from all queries before that position."""
    with jax.enable_x64(positions is WIDE):
        got = seen_by(*positions, **options)
    np.testing.assert_array_equal(got, may_see(*positions, **options)[0])


def test_sinks_of_any_size():
    """A sink of −∞ or −1e4 takes no weight; a sink of 1e4 or 3e38 takes all weight."""
    case = {"sinks": True, "segments": QUERY_5_ALONE, "causal": True, "block_size": 512}
    x, (dy, dl) = random_arrays(case), cotangents(case)
    x["sinks"] = sinks = np.float32([-np.inf, 1e4, -1e4, 3e38])  # of heads 0 to 3
    v = x | {"sinks": np.ones_like(sinks)}
    got = jax.jit(functools.partial(derivatives, case))(x, v, (dy, 0 * dl))
    (y, residual), tangents, gradients = jax.device_get(got)
    without = exact(case, {name: x[name] for name in ("query", "key", "value")})[0]
    check((y[:, :, [0, 2]], y[:, :, [1, 3]]), (without[:, :, [0, 2]], 0 * without[:, :, [1, 3]]))
    np.testing.assert_array_equal(np.isneginf(residual[..., 0]), np.broadcast_to(QUERY_AT == 5, (BATCH, QUERIES)))
    np.testing.assert_array_equal(residual[..., 3], sinks[3])
    assert not np.any(np.delete(gradients["sinks"], 2))  # of the sink of −1e4, only finiteness is promised
    assert all(np.all(np.isfinite(a)) for a in (*tangents, gradients["sinks"]))


def test_caps_at_their_bounds_and_large_scores_have_finite_gradients():
    x = random_arrays({"cap": 2.0})
    for cap, scale in ((1e-30, None), (1e30, None), (2.0, 1e6)):
        case = {"cap": cap, "scale": scale, "block_size": 512}
        y, dx = jax.jit(functools.partial(gradients, lambda x: attend(case, x)[0]))(x)  # noqa: B023
        check(y, exact(case, x)[0])
        assert all(np.all(np.isfinite(a)) for a in jax.tree.leaves(dx)), case


# The same tokens in another arrangement


def test_keys_may_come_in_parts():
    """Residuals merge the results of the parts. Some queries see no key of one part. Sinks belong to one part."""
    case = {"causal": True, "bias": True, "sinks": True}
    x = random_arrays(case)

    def part(x, keys, sinks):
        keys_of_part = {name: x[name][:, keys] for name in ("key", "value")}
        return attend(case | {"j": KEY_AT[keys]}, x | keys_of_part, sinks=sinks)

    def merged(x):
        a, residual_a = part(x, slice(None, 5), x["sinks"])
        b, residual_b = part(x, slice(5, None), None)
        together = jnp.logaddexp(residual_a, residual_b)
        return a * jnp.exp(residual_a - together)[..., None] + b * jnp.exp(residual_b - together)[..., None], together

    check(jax.jit(merged)(x), exact(case, x)[:2], 1e-6)


def test_decode_steps_with_a_ring_cache_are_rows_of_the_whole():
    """A ring of four slots holds the four keys that the window shows. Empty slots have the greatest position."""
    case = {"causal": True, "bias": True, "window": (3, None), "sinks": True, "i": KEY_AT[:QUERIES]}
    x = random_arrays(case)
    want = exact(case, x)[:2]
    step = jax.jit(lambda x, i, j: attend(case | {"i": i, "j": j}, x))
    for t in range(QUERIES):
        slots = t - (t - np.arange(4)) % 4  # the position of the key in each slot; negative if the slot is empty
        cache = {name: x[name][:, np.maximum(slots, 0)] for name in ("key", "value")}
        got = step(x | {"query": x["query"][:, [t]]} | cache, KEY_AT[[t]], np.where(slots < 0, INT.max, slots))
        check(got, tuple(y[:, [t]] for y in want), 2e-6, f"row {t} of {FORMULA}")


def test_packed_or_padded_documents_are_as_alone():
    """One document has three tokens, the other four.

    Packed, both are in one row and segments separate them. Padded, the first begins with a token that a mask hides.
    """
    x = [a[0, :7] for a in random_arrays({}).values()]

    def alone(start, stop):
        """The formula for the tokens of one document."""
        positions = np.arange(stop - start)
        return dense(*(a[start:stop] for a in x), seen=may_see(positions, positions, window=(1, 0))).y

    first, second = alone(0, 3), alone(3, 7)

    def windowed(q, k, v, at, **options):
        return pe.attention(q, k, v, query_positions=at, key_positions=at, window=(1, 0), block_size=3, **options)

    positions, segments = np.int32([0, 1, 2, 0, 1, 2, 3]), np.int32([0, 0, 0, 1, 1, 1, 1])
    tokens, padded_positions = np.array([[0, 0, 1, 2], [3, 4, 5, 6]]), np.int32([[0, 0, 1, 2], [0, 1, 2, 3]])
    mask = np.array([[False, True, True, True], [True] * 4])[:, None, None]
    padded = functools.partial(windowed, *(a[tokens] for a in x), padded_positions, mask=mask)
    both = jax.jit(lambda *x: (windowed(*x, positions, query_segments=segments, key_segments=segments), padded()))
    packed, padded = jax.device_get(both(*x))
    check(packed, np.concatenate([first, second]), 1e-6, "each alone")
    check((padded[0, 1:], padded[1]), (first, second), 1e-6, "each alone")
