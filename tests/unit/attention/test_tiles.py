"""The tiles of attention: which pairs they show, and which tiles are visited.

- A tile shows the pairs that masks let through, at any int32 positions. A tile that shows a pair is visited.
- If positions are runs of consecutive numbers, and segments and orders are sorted, no other tile is visited.
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
INT, TRIES = np.iinfo(np.int32), 400  # tries: tiles of each kind
ENDS = [INT.min, INT.min + 1, INT.min + 3, -1, 0, INT.max - 3, INT.max - 1, INT.max]
RULES = [  # whether causal, and the window
    *[(True, (None, None)), (True, (3, None)), (False, (0, 0)), (False, (9, 4))],
    *[(False, (2**31, 2**32 - 1)), (False, (None, 2**31 - 1))],
]


def settings(causal=False, window=(None, None)):
    return Settings(causal, window, None, 1.0, 4, skips=True)


@functools.partial(jax.jit, static_argnums=0)
def seen_and_visited(rule, queries, keys):
    """The pairs that each tile shows, and whether it is visited; attributes of tokens are (tiles, tokens)."""

    @jax.vmap
    def of_tile(queries, keys):
        tile = Tile(queries, keys, None)
        return tiles._seen(settings(*rule), tile)[0, 0, 0], tiles._may_see(settings(*rule), tile)

    return of_tile(queries, keys)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_no_pair_is_dropped_and_no_run_is_visited_in_vain(rule):
    """The first half of the tiles are of runs of positions; the second half are of scattered positions.

    A tile has three queries and four keys. Each tile that shows a pair is visited, and of runs, no other tile.
    """
    center = RNG.choice([INT.min + 20, 0, INT.max - 20], (2, TRIES, 1))  # of queries and of keys
    center[1, ::2] = center[0, ::2]  # in every other tile, keys are near queries
    runs = (c + RNG.integers(-20, 18, (TRIES, 1)) + RNG.permutation(n) for c, n in zip(center, (3, 4), strict=True))
    i, j = (np.concatenate([run, RNG.choice(ENDS, run.shape)]).astype(np.int32) for run in runs)
    pairs, visited = map(np.asarray, seen_and_visited(rule, TokenAttributes(i), TokenAttributes(j)))
    np.testing.assert_array_equal(pairs, may_see(i, j, rule[0], window=rule[1])[:, 0])
    shows_a_pair = pairs.any((1, 2))
    assert visited[shows_a_pair].all() and shows_a_pair.any() and not shows_a_pair.all()
    np.testing.assert_array_equal(visited[:TRIES], shows_a_pair[:TRIES])


PROGRAMS = {  # a program of attention f, and how often it visits a tile
    "attention": (lambda f, *x: f(*x), 1),
    "transpose": (lambda f, *x: jax.vjp(f, *x)[1](x[0]), 2),
    "tangent": (lambda f, *x: jax.jvp(f, x, x)[1], 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_tiles_that_nothing_sees_are_not_visited(name):
    """The bias records the first query and key of each tile that computes it."""
    n, block, visits = 24, 4, []
    program, times = PROGRAMS[name]
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
