"""`kv_cache`: however a sequence comes, its queries see its keys, and a token that would be lost raises or gives NaN.

- Chunks, padding anywhere, rows at different positions, rings and rejected drafts give the attention of the whole
  sequence, and the same bits of keys and values.
- Each wrong call is an error where values are known, and NaN in its own row alone where they are traced.
- Layers of a cache are caches. A donated cache is updated in place, and a split one without communication.
"""

import functools
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from devices.aot import Compiled
from helpers.closeness import assert_within
from oracles import attention, rotations

RNG = np.random.default_rng(0)
BATCH, LENGTH, TOKENS, KV_HEADS, WIDTH = 2, 14, 7, 2, 8
EMPTY, LEAST = np.iinfo(np.int32).max, np.iinfo(np.int32).min
SPECTRUM = pe.geometric(WIDTH, 500.0)
Q = RNG.normal(size=(BATCH, LENGTH, 2 * KV_HEADS, WIDTH)).astype(np.float32)
K, V = RNG.normal(size=(2, BATCH, LENGTH, KV_HEADS, WIDTH)).astype(np.float32)
COUNTED = np.arange(LENGTH)
LEFT = 4  # keys before its own that a query sees in a window
RING = {"slots": LEFT + TOKENS, "window": (LEFT, None)}
CACHES = {"full": {"slots": LENGTH}, "ring": RING, "roomy ring": RING | {"slots": 20}}


def cache_of(slots=LENGTH, **settings):
    return pe.kv_cache(BATCH, slots, KV_HEADS, WIDTH, **settings)


@jax.jit
def step(cache, q, k, v, p):
    """A call of TOKENS tokens per row, and what its queries see."""
    turned = functools.partial(pe.rotary, positions=p, frequencies=SPECTRUM, head_axis=-2)
    cache = cache.extend(turned(k), v, p)
    return cache, pe.attention(turned(q), cache.keys, cache.values, **cache.seen_from(p))


def want(left):
    """The attention of the whole sequence in float64."""
    turned = (rotations.rotate_by(x, COUNTED[:, None, None] * SPECTRUM.angular, "half") for x in (Q, K))
    seen = attention.may_see(COUNTED, COUNTED, causal=True, window=(left, None))
    return attention.dense(*turned, V, seen=seen).y


def in_chunks(size, place=0):
    """Calls of `size` tokens for each row, at `place` among the padding."""
    for start in range(0, LENGTH, size):
        call = np.full((BATCH, TOKENS), EMPTY)
        chunk = COUNTED[start : start + size]
        call[:, place : place + len(chunk)] = chunk
        yield call


def at_two_speeds():
    """The first row gets two tokens per call, and the second five, padded on the other side, until it ends."""
    for start in range(0, LENGTH, 2):
        call = np.full((BATCH, TOKENS), EMPTY)
        call[0, :2] = COUNTED[start : start + 2]
        chunk = COUNTED[start // 2 * 5 :][:5]
        call[1, TOKENS - len(chunk) :] = chunk
        yield call


WAYS = {
    "chunks of seven": lambda: in_chunks(7),
    "chunks of three, right padding": lambda: in_chunks(3),
    "chunks of three, left padding": lambda: in_chunks(3, 4),
    "one by one": lambda: in_chunks(1, 3),
    "two speeds": at_two_speeds,
}


@pytest.mark.parametrize("start", [0, LEAST + 1, EMPTY - LENGTH], ids=["from 0", "from the least", "to the greatest"])
@pytest.mark.parametrize("kind", CACHES)
def test_every_way_of_making_a_sequence_gives_its_attention(kind, start):
    """Of float64, at the ends of int32 too, and stores the same bits."""
    truth, stored = want(LEFT if "ring" in kind else None), []
    for way, calls in WAYS.items():
        cache, rows = cache_of(**CACHES[kind]), np.arange(BATCH)[:, None]
        for call in calls():
            at, is_token = np.minimum(call, LENGTH - 1), call != EMPTY
            p = np.where(is_token, call + start, EMPTY).astype(np.int32)
            cache, out = step(cache, *(x[rows, at] for x in (Q, K, V)), p)
            assert_within(np.asarray(out)[is_token], truth[rows, at][is_token], 3e-6, against=f"float64, {way}")
        stored.append(jax.tree.leaves(cache))
    for other in stored[1:]:
        jax.tree.map(np.testing.assert_array_equal, other, stored[0])


def test_rejected_drafts_are_as_if_they_had_never_been():
    """A call brings a token and six drafts, of which the row keeps none, one or two."""
    for settings in (CACHES["full"] | {"slots": LENGTH + TOKENS}, RING):
        truth, cache = want(LEFT if "window" in settings else None), cache_of(**settings)
        n, rows = np.zeros(BATCH, int), np.arange(BATCH)
        while (n < LENGTH).all():
            accepted = 1 + RNG.integers(0, 3, BATCH)
            p = n[:, None] + np.arange(TOKENS)
            is_kept = (np.arange(TOKENS) < accepted[:, None]) & (p < LENGTH)
            at = np.minimum(p, LENGTH - 1)
            call = (np.where(is_kept[..., None, None], x[rows[:, None], at], 9) for x in (Q, K, V))
            cache, out = step(cache, *call, p.astype(np.int32))
            assert_within(np.asarray(out)[is_kept], truth[rows[:, None], at][is_kept], 3e-6)
            n += accepted


# What is lost


def calls_of(lost):
    """Calls of three tokens: the first row's positions, and the second row's, which counts two at a time."""
    for start, call in zip((0, 2, 4), lost, strict=False):
        yield np.array([call, [start, start + 1, EMPTY] if start < 4 else [EMPTY] * 3], np.int32)


FIRST, SMALL, NARROW = [0, 1, EMPTY], {"slots": 4}, {"slots": 5, "window": (2, None)}
LOST = {  # positions of the first row in each call, of which the last is wrong; the second row gets as many tokens
    "a full cache": (SMALL, FIRST, [2, 3, EMPTY], [4, EMPTY, EMPTY]),
    "a gap": ({}, FIRST, [3, 4, EMPTY]),
    "a gap in a call": ({}, [0, EMPTY, 2]),
    "twice": (SMALL, [1, 1, EMPTY]),
    "backwards": (SMALL, [1, 0, EMPTY]),
    "backwards behind padding": (SMALL, [1, EMPTY, 0]),
    "the least": ({}, [LEAST, LEAST + 1, EMPTY]),
    "from one end of int32 to the other": ({}, [EMPTY - 2, EMPTY - 1, EMPTY], [LEAST + 5, LEAST + 6, EMPTY]),
    "a draft beyond the slots": (SMALL, FIRST, [1, 2, 3], [2, 3, 4]),
    "too far back in a ring": (NARROW, [4, 5, 6], [3, 4, 5]),
    "after a draft that was taken back": ({}, [0, 1, 2], [1, EMPTY, EMPTY], [3, EMPTY, EMPTY]),
    "a ring that is used again": (NARROW, [8, 9, 10], [0, 1, 2]),
}


@pytest.mark.parametrize("what", LOST)
def test_a_token_that_would_be_lost_raises_or_gives_nan_from_then_on(what):
    """In its row alone, whatever comes after it."""
    settings, *lost = LOST[what]
    *right, wrong = calls_of(lost)
    x, q = np.ones((BATCH, 3, KV_HEADS, WIDTH), np.float32), np.ones((BATCH, 3, 2 * KV_HEADS, WIDTH), np.float32)
    cache = cache_of(**settings)
    for call in right:
        cache = cache.extend(x, x, call)
    with pytest.raises(ValueError, match=r"^KVCache.extend: positions must go on one by one, .* not in row 0$"):
        cache.extend(x, x, wrong)
    none = [EMPTY] * 3
    for call in (wrong, np.int32([[5, 6, EMPTY], none]), np.int32([[0, 1, EMPTY], none])):
        cache, out = step(cache, q, x, x, call)
        is_nan = np.isnan(out).all((2, 3))
        assert (is_nan[0] | (call[0] == EMPTY)).all() and not is_nan[1].any()


def test_slots_say_where_tokens_go():
    """Whatever else is there; a slot out of range gives NaN, or raises."""
    x, p = RNG.normal(size=(BATCH, 3, KV_HEADS, WIDTH)).astype(np.float32), np.int32([[9, 9, EMPTY], [5, 4, 9]])
    cache = cache_of().extend(x, 2 * x, p, slots=np.int32([[4, 2, 2], [2, 4, 0]]))
    keys, positions = map(np.asarray, (cache.keys, cache.positions))
    np.testing.assert_array_equal(positions[:, [2, 4]], [[9, 9], [5, 4]])
    np.testing.assert_array_equal(keys[0, [2, 4]], x[0, [1, 0]])
    assert positions[1, 0] == 9 and not keys[:, 3].any()
    for slot in (-1, LENGTH):
        with pytest.raises(
            ValueError, match=f"^KVCache.extend: slots must be from 0 to {LENGTH - 1}; they do not in row 0$"
        ):
            cache.extend(x, x, p, slots=np.int32([0, slot, 1]))
        lost = jax.jit(cache.extend)(x, x, p, slots=np.int32([0, slot, 1]))
        assert np.isnan(lost.keys).any()
        later = jax.jit(lost.extend)(x, x, p, slots=np.int32([0, 1, 2]))
        assert not np.asarray(later.keys)[:, 1].any()  # nothing more is stored there


ONES = np.ones((BATCH, 3, KV_HEADS, WIDTH), np.float32)


@pytest.mark.parametrize(
    ("settings", "given", "message"),
    [
        ({}, {"key": ONES[:1]}, r"key must have shape (2, 3, 2, 8), got (1, 3, 2, 8)"),
        ({}, {"value": ONES[..., :4]}, r"value must have shape (2, 3, 2, 8), got (2, 3, 2, 4)"),
        ({}, {"positions": np.int32(3)}, r"positions must have shape (3,) or (2, 3), got ()"),
        ({}, {"positions": np.int32([0])}, r"positions must have shape (3,) or (2, 3), got (1,)"),
        ({"slots": 2}, {}, r"a call of 3 tokens needs 3 slots, and the cache has 2"),
        (
            {"slots": 6, "window": (4, 0)},
            {},
            r"a call of 3 tokens needs 7 slots with a window of 4, and the cache has 6",
        ),
        ({"layers": 2}, {}, r"layer must be given for a cache of 2 layers"),
        ({"layers": 2}, {"layer": 2}, r"layer must be from 0 to 1, got 2"),
        ({"layers": 2}, {"layer": -1}, r"layer must be from 0 to 1, got -1"),
        ({}, {"key": ONES[:, :0], "value": ONES[:, :0]}, r"key must have at least one token, got shape (2, 0, 2, 8)"),
        (
            {},
            {"value": ONES.astype(jnp.bfloat16)},
            r"value must be an array of the cache's dtype, float32, got bfloat16",
        ),
        ({}, {"layer": 0}, r"layer must be None for a cache without layers, got 0"),
        ({"dtype": jnp.bfloat16}, {}, r"key must be an array of the cache's dtype, bfloat16, got float32"),
    ],
)
def test_what_does_not_fit_is_named(settings, given, message):
    call = {"key": ONES, "value": ONES, "positions": np.arange(3)} | given
    with pytest.raises((ValueError, TypeError), match="^KVCache.extend: " + re.escape(message)):
        cache_of(**settings).extend(**call)


def test_a_window_needs_slots_and_has_no_right_side():
    with pytest.raises(ValueError, match=r"^kv_cache: slots must be more than window\[0\] = 4, got 4$"):
        cache_of(slots=4, window=(4, None))
    with pytest.raises(ValueError, match=r"^kv_cache: window\[1\] must be None or 0, .* got 1$"):
        cache_of(window=(4, 1))


# What a cache is


def test_each_layer_of_a_cache_is_a_cache():
    """In a scan over layers at positions of their own; a traced layer that does not exist loses the row."""

    def body(cache, layer):
        x = K[:, :TOKENS] * (layer + 1).astype(np.float32)
        p = COUNTED[:TOKENS].astype(np.int32) + np.int32(3) * layer
        return cache.extend(x, -x[..., :4], p, layer=layer), None

    run = jax.jit(lambda cache, layers: jax.lax.scan(body, cache, layers)[0])
    deep = jax.tree.map(np.asarray, run(cache_of(layers=3, value_dim=4), np.int32([0, 2])))
    for layer in range(3):
        is_held = (3 * layer <= COUNTED) & (COUNTED < 3 * layer + TOKENS) & (layer != 1)
        np.testing.assert_array_equal(deep.positions[1, layer], np.where(is_held, COUNTED, EMPTY))
        keys, values = deep.keys[:, layer], deep.values[:, layer]
        assert not keys[:, ~is_held].any() and not values[:, ~is_held].any()
        if layer != 1:
            np.testing.assert_array_equal(keys[:, is_held], K[:, :TOKENS] * np.float32(layer + 1))
            np.testing.assert_array_equal(values[:, is_held], -keys[:, is_held][..., :4])
    assert np.isnan(run(cache_of(layers=3, value_dim=4), np.int32([3, 1])).keys).any((1, 2, 3, 4)).all()


def test_a_donated_cache_is_updated_in_place():
    cache = cache_of(slots=1 << 16)
    size = sum(x.nbytes for x in jax.tree.leaves(cache))
    call = [x[:, :TOKENS] for x in (K, V)]
    memory = jax.jit(pe.KVCache.extend, donate_argnums=0).lower(cache, *call, COUNTED[:TOKENS].astype(np.int32))
    memory = memory.compile().memory_analysis()
    assert memory.alias_size_in_bytes == size and memory.temp_size_in_bytes < size / 8


@pytest.mark.parametrize(("kind", "layers"), [(AxisType.Auto, None), (AxisType.Explicit, 2)])
def test_a_cache_split_over_eight_devices_is_extended_without_communication(kind, layers):
    """It holds the same bits, and attention to it gives what it gives on one device."""
    mesh = jax.make_mesh((4, 2), ("rows", "heads"), axis_types=(kind, kind))
    spec, layer = P("rows", None, "heads"), layers and np.int32(1)
    whole = NamedSharding(mesh, spec if layers is None else P("rows", None, None, "heads"))
    settings, p = {"value_dim": 4, "layers": layers}, COUNTED[:TOKENS].astype(np.int32)
    q, k, v = (np.concatenate([x[:, :TOKENS], x[:, TOKENS:]]) for x in (Q, K, V[..., :4]))

    @jax.jit
    def run(cache, q, k, v):
        cache = cache.extend(k, v, p, layer=layer)
        own = cache if layer is None else jax.tree.map(lambda x: x[:, 1], cache)
        return cache, pe.attention(q, own.keys, own.values, **own.seen_from(p))

    one = run(pe.kv_cache(4, LENGTH, KV_HEADS, WIDTH, **settings), q, k, v)
    with jax.set_mesh(mesh):
        cache = pe.kv_cache(4, LENGTH, KV_HEADS, WIDTH, sharding=whole, **settings)
        call = cache, *jax.device_put((q, k, v), NamedSharding(mesh, spec))
        split, extend = run(*call), jax.jit(pe.KVCache.extend)
        text = extend.lower(call[0], *call[2:], p, layer=layer).compile().as_text()
    for made in (cache, split[0]):
        assert all(x.sharding.is_equivalent_to(whole, x.ndim) for x in (made.keys, made.values))
        assert made.positions.sharding.is_equivalent_to(NamedSharding(mesh, P("rows")), made.positions.ndim)
    by_slots = NamedSharding(mesh, P("rows", "heads"))
    assert pe.kv_cache(4, LENGTH, 1, WIDTH, sharding=by_slots).positions.sharding.is_equivalent_to(by_slots, 2)
    assert Compiled(text, 0, 0).collectives == ([], [])
    jax.tree.map(np.testing.assert_array_equal, split[0], one[0])
    assert_within(split[1], one[1], 3e-6)


def test_positions_of_other_dtypes():
    """Wide ones outside int32 lose their row; others are positions like int32's."""
    with jax.enable_x64(True):
        extend = jax.jit(pe.KVCache.extend)
        for p in (np.arange(3), np.arange(3, dtype=np.uint32), np.arange(3, dtype=np.uint8)):
            positions = np.asarray(extend(cache_of(), ONES, ONES, p).positions)
            np.testing.assert_array_equal(positions[:, :4], [[0, 1, 2, EMPTY]] * 2)
        for p in (
            [0, 1, 2**32 + 2],
            [0, 1, 2**32 + EMPTY],
            [2**32, 2**32 + 1, 2**32 + 2],
            2**32 - 3 + np.arange(3, dtype=np.uint32),
        ):
            assert np.isnan(extend(cache_of(), ONES, ONES, np.asarray(p)).keys).any((1, 2, 3)).all()


def test_a_cache_goes_through_vmap_export_and_pickle():
    cache, p = cache_of(**RING), COUNTED[:TOKENS].astype(np.int32)
    want = cache.extend(K[:, :TOKENS], V[:, :TOKENS], p)
    row = jax.vmap(lambda c, k, v: c.extend(k, v, p))
    apart = row(*jax.tree.map(lambda x: x[:, None], (cache, K[:, :TOKENS], V[:, :TOKENS])))
    exported = export.export(jax.jit(pe.KVCache.extend))(cache, K[:, :TOKENS], V[:, :TOKENS], p)
    called = export.deserialize(exported.serialize()).call(cache, K[:, :TOKENS], V[:, :TOKENS], p)
    for got in (jax.tree.map(lambda x: np.asarray(x)[:, 0], apart), called, pickle.loads(pickle.dumps(want))):
        assert got.window == (LEFT, None)
        jax.tree.map(np.testing.assert_array_equal, got, want)
