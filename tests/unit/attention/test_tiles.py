"""The tiles of attention: which pairs they show, which tiles are visited, and how arrays are cut into blocks.

- A tile shows the pairs that masks let through, at any int32 positions, and is visited if it shows one.
- Of runs of consecutive positions or segments, no tile is visited in vain.
- Blocks are as even as possible.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from oracles.attention import may_see
from posenc_jax._attention import tiles
from posenc_jax._attention.tiles import Settings, Tile, TokenAttributes

RNG = np.random.default_rng(0)
INT, TRIES = np.iinfo(np.int32), 400
ENDS = [INT.min, INT.min + 1, INT.min + 3, -1, 0, INT.max - 3, INT.max - 1, INT.max]
RULES = [  # whether causal, and the window
    *[(True, (None, None)), (True, (3, None)), (False, (0, 0)), (False, (9, 4))],
    *[(False, (2**31, 2**32 - 1)), (False, (None, 2**31 - 1))],
]


def settings(causal=False, window=(None, None)):
    return Settings(causal, window, None, 1.0, 4, skips=True)


@functools.partial(jax.jit, static_argnums=0)
def seen_and_visited(rule, queries, keys):
    """Of many tiles of one sequence: the pairs that a tile shows, and whether it is visited."""

    @jax.vmap
    def of_tile(queries, keys):
        tile = Tile(queries, keys, None)
        return tiles._seen(settings(*rule), tile)[0, 0, 0], tiles._may_see(settings(*rule), tile)

    return of_tile(queries, keys)


def positions(length):
    """Near 0, far from each other, and at both ends of int32; half of the tiles are runs."""
    near = RNG.integers(-12, 12, (TRIES, 1)) + RNG.integers(0, 6, (TRIES, length))
    far = RNG.integers(INT.min, INT.max, (TRIES, length), endpoint=True)
    which = RNG.integers(0, 3, (TRIES, 1))
    found = np.select([which == 0, which == 1], [near, far], RNG.choice(ENDS, (TRIES, length)))
    runs = np.minimum(found[::2, :1], INT.max - length) + RNG.permutation(length)
    found[::2] = runs
    return found.astype(np.int32)


@pytest.mark.parametrize("with_segments", [False, True])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_no_pair_is_dropped_and_no_run_is_visited_in_vain(rule, with_segments):
    i, j = positions(3), positions(4)
    # Half of the tiles are near each other.
    apart = np.int64(i[: TRIES // 2, :1]) + RNG.integers(-14, 14, (TRIES // 2, 1)) + np.arange(4)[::-1]
    j[: TRIES // 2] = np.where(apart[:, :1] > INT.max - 8, j[: TRIES // 2], np.clip(apart, INT.min, INT.max))
    segments = tuple(RNG.integers(-1, 2, (TRIES, n)).astype(np.int32) for n in (3, 4)) if with_segments else None
    for each in segments or ():
        each[::2] = each[::2, :1]  # runs are of one segment
    sides = [TokenAttributes(p, s) for p, s in zip((i, j), segments or (None, None), strict=True)]
    pairs, visited = map(np.asarray, seen_and_visited(rule, *sides))
    np.testing.assert_array_equal(pairs, may_see(i, j, rule[0], segments, rule[1])[:, 0])
    some = pairs.any((1, 2))
    assert visited[some].all() and some.any() and not pairs.all()
    is_run = (np.diff(np.sort(j.astype(np.int64)), axis=1) == 1).all(1) & (np.arange(TRIES) % 2 == 0)
    np.testing.assert_array_equal(visited[is_run], some[is_run])


NEAR, BEHIND = np.int32([[0, 1], [50, 51]]), np.int32([[40, 41], [50, 60]])
ONE, TWO = np.int32([[0, 0], [1, 1]]), np.int32([[0, 0], [2, 2]])


@pytest.mark.parametrize(
    ("i", "j", "segments", "visited"),
    [
        (NEAR, BEHIND, ONE, True),
        (NEAR[:1], BEHIND[:1], ONE[:1], False),
        (NEAR, BEHIND, TWO, False),  # one sequence fails by position, the other by segment
        (NEAR[0], NEAR[0], TWO, True),  # one row of positions for all sequences
        (NEAR[0], BEHIND[0], TWO, False),
    ],
)
def test_a_tile_of_several_sequences_is_visited_for_any_of_them(i, j, segments, visited):
    tile = Tile(TokenAttributes(i, ONE[: len(segments)]), TokenAttributes(j, segments), None)
    assert tiles._may_see(settings(causal=True), tile).any() == visited


PROGRAMS = {  # and how often each visits a tile
    "attention": (lambda f, *x: f(*x), 1),
    "transpose": (lambda f, *x: jax.vjp(f, *x)[1](x[0]), 2),
    "tangent": (lambda f, *x: jax.jvp(f, x, x)[1], 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_tiles_that_nothing_sees_are_not_visited(name):
    n, block, visits, (program, times) = 24, 4, [], PROGRAMS[name]
    segments = np.repeat(np.arange(3, dtype=np.int32), 8)
    x = RNG.normal(size=(1, n, 1, 4)).astype(np.float32)

    def bias(i, j):
        jax.debug.callback(lambda i, j: visits.append((int(i), int(j))), i[0], j[0])
        return jnp.zeros((block, block))

    options = {"causal": True, "window": (7, None), "query_segments": segments, "key_segments": segments}
    options |= dict.fromkeys(("query_order", "key_order"), np.arange(n, dtype=np.int32))
    f = functools.partial(pe.attention, bias=bias, block_size=block, **options)
    jax.block_until_ready(jax.jit(functools.partial(program, f))(x, x, x))
    jax.effects_barrier()
    seen = may_see(np.arange(n), np.arange(n), True, (segments, segments), (7, None))[0]
    want = {(a, b) for a in range(0, n, block) for b in range(0, n, block) if seen[a : a + block, b : b + block].any()}
    assert {*visits} == want and len(visits) == times * len(want)


@pytest.mark.parametrize(
    ("length", "grid"), [(0, (1, 1)), (1, (1, 1)), (4, (1, 4)), (7, (2, 4)), (9, (3, 3)), (13, (4, 4))]
)
def test_blocks_are_even(length, grid):
    """Their number and size, where a block has four tokens at most."""
    assert tiles.grid(4, length) == grid
