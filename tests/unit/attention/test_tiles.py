"""The tiles of attention: which are skipped, which pairs they show, and how arrays are cut into them."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.quick import quick
from helpers.tiers import slow, tiered
from oracles.attention import may_see
from posenc_jax._attention import tiles
from posenc_jax._attention.tiles import Settings, Tile, TokenAttributes

RNG = np.random.default_rng(0)
INT, TRIES = np.iinfo(np.int32), 600
RULES = [(c, w) for c in (False, True) for w in [(None, None), (0, 0), (3, None), (None, 2), (9, 4), (2**31, 7), (2**32 - 2, 2**32 - 1), (None, 2**31 - 1)]]  # fmt: skip
RULES = [rule for rule in RULES if rule != (False, (None, None))]
FEW = [RULES[i] for i in (1, 3, 4, 5, 6, 7)]


def settings(causal, window):
    return Settings(causal, window, None, 1.0, 4, skips=True)


def seen(rule, queries, keys):
    """Of one tile of one sequence, (queries, keys)."""
    return tiles._seen(settings(*rule), Tile(queries, keys, None))[0, 0, 0]


def may_see_any(rule, queries, keys):
    return tiles._may_see(settings(*rule), Tile(queries, keys, None))


def positions_of_tiles(tiles, length):
    """Near each other, far from each other, and at both ends of int32."""
    near = RNG.integers(-12, 12, (tiles, 1)) + RNG.integers(0, 6, (tiles, length))
    far = RNG.integers(INT.min, INT.max, (tiles, length), endpoint=True)
    ends = RNG.choice([INT.min, INT.min + 1, INT.min + 3, -1, 0, INT.max - 3, INT.max - 1, INT.max], (tiles, length))
    which = RNG.integers(0, 4, (tiles, 1))
    return np.select([which <= 1, which == 2], [near, far], ends).astype(np.int32)


def seen_by_oracle(i, j, rule, segments=None):
    """Of many small tiles, (tiles, queries, keys)."""
    causal, window = rule
    return may_see(i, j, causal, segments, window)[:, 0]


@pytest.mark.parametrize("rule", tiered(RULES, FEW), ids=str)
def test_no_pair_is_dropped(rule):
    """A tile in which a query sees a key is visited, and shows the pairs that it should, with segments and without."""
    i, j = positions_of_tiles(TRIES, 3), positions_of_tiles(TRIES, 4)
    close = RNG.random(TRIES) < 0.5
    j[close] = np.clip(np.int64(i[close, :1]) + RNG.integers(-12, 12, (close.sum(), 4)), INT.min, INT.max)
    parts = tuple(RNG.integers(-1, 2, (TRIES, n)).astype(np.int32) for n in (3, 4))

    @quick
    @jax.vmap
    def of_tile(i, j, a, b):
        of = lambda *sides: (seen(rule, *sides), may_see_any(rule, *sides))  # noqa: E731
        return of(TokenAttributes(i), TokenAttributes(j)), of(TokenAttributes(i, a), TokenAttributes(j, b))

    for (pairs, visited), segments in zip(of_tile(i, j, *parts), (None, parts), strict=True):
        pairs, visited = np.asarray(pairs), np.asarray(visited)
        np.testing.assert_array_equal(pairs, seen_by_oracle(i, j, rule, segments))
        assert visited[pairs.any((1, 2))].all()
        assert pairs.any() and not pairs.all()


def test_no_pair_is_dropped_by_order():
    """Of runs of orders, a tile is visited if and only if an order lets a query see a key, wherever they stand."""
    start = RNG.integers(-6, 6, (TRIES, 2)) + RNG.choice([INT.min + 6, 0, INT.max - 12], TRIES)[:, None]
    order = tuple((start[:, [n]] + RNG.permutation(3 + n)).astype(np.int32) for n in range(2))
    i, j = positions_of_tiles(TRIES, 3), positions_of_tiles(TRIES, 4)

    @quick
    @jax.vmap
    def of_tile(i, j, a, b):
        rule, sides = (False, (None, None)), (TokenAttributes(i, order=a), TokenAttributes(j, order=b))
        return seen(rule, *sides), may_see_any(rule, *sides)

    pairs, visited = map(np.asarray, of_tile(i, j, *order))
    np.testing.assert_array_equal(pairs, may_see(i, j, True, order=order)[:, 0])
    np.testing.assert_array_equal(visited, pairs.any((1, 2)))
    assert visited.any() and not visited.all()


@pytest.mark.parametrize("rule", tiered(RULES, FEW), ids=str)
def test_nothing_is_visited_in_vain(rule):
    """Of runs of consecutive positions, of any segment or of one, a tile is visited only if a query sees a key."""
    start = positions_of_tiles(TRIES, 2)
    start[: TRIES // 2, 1] = np.clip(
        np.int64(start[: TRIES // 2, 0]) + RNG.integers(-14, 14, TRIES // 2), INT.min, INT.max
    )
    start = np.minimum(start, INT.max - 8)
    i, j = start[:, :1] + np.arange(3, dtype=np.int32), start[:, 1:] + np.arange(4, dtype=np.int32)[::-1]
    parts = tuple(np.broadcast_to(RNG.integers(-1, 2, (TRIES, 1)).astype(np.int32), (TRIES, n)) for n in (3, 4))

    @quick
    @jax.vmap
    def visited(i, j, a, b):
        both = (TokenAttributes(i), TokenAttributes(j)), (TokenAttributes(i, a), TokenAttributes(j, b))
        return [may_see_any(rule, *sides) for sides in both]

    for got, segments in zip(visited(i, j, *parts), (None, parts), strict=True):
        np.testing.assert_array_equal(got, seen_by_oracle(i, j, rule, segments).any((1, 2)))


def test_a_tile_of_several_sequences_is_visited_for_any_of_them():
    a, b = np.int32([[0, 1], [50, 51]]), np.int32([[40, 41], [50, 60]])
    one, two = np.int32([[0, 0], [1, 1]]), np.int32([[0, 0], [2, 2]])
    causal = True, (None, None)
    # Rule, positions of queries and keys, segments of both, and whether the tile is visited
    cases = [
        (causal, a, b, None, None, True),
        (causal, a[:1], b[:1], None, None, False),
        ((True, (0, None)), a, b, None, None, True),
        ((False, (5, 5)), a[:1], b[:1], None, None, False),
        (causal, a, b, one, two, False),  # of two sequences, one fails by position and the other by segment
        (causal, a, b, one, one, True),
        (causal, a[0], a[0], one, two, True),  # one row of positions for all sequences
        (causal, a[0], b[0], one, two, False),
    ]
    visited = quick(lambda: [may_see_any(rule, TokenAttributes(i, p), TokenAttributes(j, q)).any() for rule, i, j, p, q, _ in cases])()  # fmt: skip
    for case, got in zip(cases, visited, strict=True):
        assert bool(got) is case[-1], case


# Visits


def tiles_seen(n, block, causal=False, window=(None, None), segments=None):
    """How many tiles have a pair that is seen."""
    i = np.arange(n)
    seen = may_see(i, i, causal, None if segments is None else (segments, segments), window)[0]
    starts = range(0, n, block)
    return sum(seen[a : a + block, b : b + block].any() for a, b in itertools.product(starts, starts))


MASKS = {
    "causal": {"causal": True},
    "window": {"window": (5, 3)},
    "window, causal": {"window": (3, None), "causal": True},
    "segments": {"segments": np.repeat(np.arange(5), [8, 3, 5, 4, 4])},
    "all": {"window": (7, None), "causal": True, "segments": np.repeat(np.arange(3), [8, 8, 8])},
    "none": {},
}


@pytest.mark.parametrize(("mask", "orders"), [("all", slice(2)), *(slow(mask, slice(None)) for mask in MASKS)])
def test_tiles_that_nothing_sees_are_not_visited(mask, orders):
    """Neither in attention, nor in its tangent, nor in its transpose, nor in the derivative of either."""
    case, n, block = MASKS[mask], 24, 4
    x, visits = RNG.normal(size=(1, n, 1, 4)).astype(np.float32), []

    def bias(i, j):
        jax.debug.callback(lambda i, j: visits.append((int(i), int(j))), i[0], j[0])
        return jnp.zeros((block, block))

    options = {name: case[name] for name in case if name != "segments"}
    if "segments" in case:
        options |= dict.fromkeys(("query_segments", "key_segments"), case["segments"].astype(np.int32))
    f = functools.partial(pe.attention, bias=bias, block_size=block, **options)
    loss = lambda *x: jnp.sum(f(*x) ** 2)  # noqa: E731
    want = tiles_seen(n, block, **case)
    assert want == 36 if mask == "none" else want < 24
    programs = {
        "attention": (lambda x: f(x, x, x), 1),
        "transpose": (lambda x: jax.grad(loss, (0, 1, 2))(x, x, x), 2),
        "tangent": (lambda x: jax.jvp(f, (x, x, x), (x, x, x))[1], 2),
        "tangent of the transpose": (lambda x: jax.jvp(jax.grad(loss), (x, x, x), (x, x, x))[1], None),
    }
    for name, (program, times) in [*programs.items()][orders]:
        visits.clear()
        jax.block_until_ready(quick(program)(x))
        jax.effects_barrier()
        assert len({*visits}) == want, name
        assert len(visits) == times * want if times else len(visits) <= 6 * want, name


# Cuts


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 16])
def test_what_is_cut_is_joined(length):
    @quick
    def cut_and_joined(whole):
        blocks = tiles.cut_queries(settings(True, (None, None)), whole, 2)
        return blocks, tiles.join(blocks, length)

    whole = RNG.normal(size=(2, length, 6, 3)).astype(np.float32)
    blocks, joined = map(np.asarray, cut_and_joined(whole))
    count, size = tiles.grid(4, length)
    assert blocks.shape == (count, 2, 2, 3, size, 3) and size <= 4 and count * size - length < count or not length
    np.testing.assert_array_equal(joined, whole)
    group = blocks[0, :, 1, 2, 0] if length else None  # the last head of the last key head
    assert group is None or np.array_equal(group, whole[:, 0, 5])


def test_padding_repeats_the_last_position():
    ends = np.int32([INT.max, INT.min, 5, 0, INT.min])
    sides = ends, ends == 5, np.stack([ends, ends[::-1]])
    cut = quick(lambda sides: [tiles._cut_attribute(settings(True, (None, None)), side) for side in sides])
    of_all, of_booleans, of_each = map(np.asarray, cut(sides))
    np.testing.assert_array_equal(of_all, [[INT.max, INT.min, 5], [0, INT.min, INT.min]])
    np.testing.assert_array_equal(of_booleans, [[False, False, True], [False, False, False]])
    np.testing.assert_array_equal(of_each[1], [[0, INT.min, INT.min], [INT.min, INT.max, INT.max]])


@pytest.mark.parametrize(("block", "length", "want"), [(4, 0, (1, 1)), (4, 4, (1, 4)), (4, 5, (2, 3)), (512, 520, (2, 260)), (1, 3, (3, 1)), (512, 3, (1, 3)), (4, 13, (4, 4))])  # fmt: skip
def test_blocks_are_as_even_as_possible(block, length, want):
    assert tiles.grid(block, length) == want
