"""The tiles of attention: which pairs they show, and which tiles are visited.

- A tile shows the pairs that masks let through, at any int32 positions, and is visited if it shows one.
- Of runs of consecutive positions, and of sorted segments and orders, no tile is visited in vain.
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


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_no_pair_is_dropped_and_no_run_is_visited_in_vain(rule):
    """Runs of positions, of which half are near each other, and positions that are scattered."""
    center = RNG.choice([INT.min + 20, 0, INT.max - 20], (2, TRIES, 1))
    center[1, ::2] = center[0, ::2]
    runs = (c + RNG.integers(-20, 18, (TRIES, 1)) + RNG.permutation(n) for c, n in zip(center, (3, 4), strict=True))
    i, j = (np.concatenate([run, RNG.choice(ENDS, run.shape)]).astype(np.int32) for run in runs)
    pairs, visited = map(np.asarray, seen_and_visited(rule, TokenAttributes(i), TokenAttributes(j)))
    np.testing.assert_array_equal(pairs, may_see(i, j, rule[0], window=rule[1])[:, 0])
    some = pairs.any((1, 2))
    assert visited[some].all() and some.any() and not some.all()
    np.testing.assert_array_equal(visited[:TRIES], some[:TRIES])


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
