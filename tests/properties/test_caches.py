"""Caches of keys that are rotated once, with `attention`: each gives what the whole sequence gives.

The cached keys have its bits. Outputs are sums over other tiles, so they agree to a few units in the last place.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import posenc_jax as pe
from helpers.biases import CASES, HEADS
from helpers.closeness import assert_within
from helpers.quick import quick
from helpers.tiers import slow, tiered

RNG = np.random.default_rng(0)
BATCH, SEQ, DIM = 2, 37, 8
Q, K, V = RNG.normal(size=(3, BATCH, SEQ, HEADS, DIM)).astype(np.float32)
EMPTY = np.iinfo(np.int32).max  # the position of a slot without a key: after every query, so a causal mask hides it
BIASES = tiered([None, "alibi", "t5", "fire"], [None])
ATOL = 2e-6


def counted(n):
    """0, 1, 2, …, in int32 with x64 too."""
    return np.arange(n, dtype=np.int32)


def rotated(x, positions):
    return pe.rotary(x, positions, head_axis=-2)


def bias_of(name):
    function, parameters = CASES.get(name, (None, ()))
    return function and (lambda i, j: function(i, j, *parameters))


def whole(name, window=(None, None), q=Q, k=K, v=V):
    """Attention of each sequence to itself, and its keys."""

    @jax.jit
    def run(q, k, v):
        q, k = (rotated(x, counted(x.shape[1])) for x in (q, k))
        return pe.attention(q, k, v, bias=bias_of(name), causal=True, window=window), k

    return jax.device_get(run(q, k, v))


def by_token(*arrays):
    """Arrays (batch, seq, …) as `lax.scan` takes them, (seq, batch, 1, …)."""
    return [np.moveaxis(x, 1, 0)[:, :, None] for x in arrays]


def by_row(y):
    """The inverse for what `lax.scan` gives."""
    return np.moveaxis(np.asarray(y)[:, :, 0], 0, 1)


# A ring: the key at position p is in slot p % slots


@pytest.mark.parametrize("name", BIASES)
@pytest.mark.parametrize("slots", [slow(8), 11])
def test_a_ring_of_slots(slots, name):
    window = (7, 0)  # eight keys; a longer ring holds keys that the window hides

    def step(ring, token):
        (keys, values, places), (q, k, v, p) = ring, token
        keys, values = (c.at[:, p % slots].set(x[:, 0]) for c, x in ((keys, rotated(k, p)), (values, v)))
        places = places.at[p % slots].set(p)
        settings = {"query_positions": p[None], "key_positions": places, "bias": bias_of(name)}
        out = pe.attention(rotated(q, p), keys, values, causal=True, window=window, **settings)
        return (keys, values, places), out

    empty = np.zeros((BATCH, slots, HEADS, DIM), np.float32)
    start = empty, empty, np.full(slots, EMPTY, np.int32)
    run = jax.jit(lambda *x: lax.scan(step, start, x))
    (keys, _, places), out = jax.device_get(run(*by_token(Q, K, V), counted(SEQ)))
    want, whole_keys = whole(name, window)
    assert_within(by_row(out), want, ATOL, against="the whole sequence")
    assert sorted(places.tolist()) == list(range(SEQ - slots, SEQ))
    np.testing.assert_array_equal(keys, whole_keys[:, places])


@pytest.mark.parametrize("place", [0, slow(-1), slow(-EMPTY)])
def test_an_empty_slot_needs_a_position_that_no_query_sees(place):
    """The control: with any position before the query, zeros that no one wrote take part."""

    @quick
    def fifth(q, k, v, at):
        q, k = (rotated(x, counted(SEQ)) for x in (q, k))
        k, v = (jnp.where((counted(SEQ) < 5)[:, None, None], x, 0) for x in (k, v))
        return pe.attention(q[:, 4:5], k, v, query_positions=np.int32([4]), key_positions=at, causal=True)

    got = fifth(Q, K, V, np.where(counted(SEQ) < 5, counted(SEQ), np.int32(place)))
    assert np.abs(got - whole(None)[0][:, 4:5]).max() > 0.1


# A prompt in chunks


@pytest.mark.parametrize("name", BIASES)
@pytest.mark.parametrize(
    ("size", "window"), [slow(8, (None, None)), (8, (10, 0)), slow(1, (None, None)), slow(40, (10, 0))]
)
def test_a_prompt_in_chunks(size, window, name):
    """Slots that are not written yet are after the queries of the chunk, and so are those beyond the prompt."""
    chunks = -(-SEQ // size)
    pad = [(0, 0), (0, chunks * size - SEQ), (0, 0), (0, 0)]
    q, k, v = (np.moveaxis(np.pad(x, pad).reshape(BATCH, chunks, size, HEADS, DIM), 1, 0) for x in (Q, K, V))

    def step(cache, chunk):
        q, k, v, start = chunk
        positions = start + counted(size)
        new = rotated(k, positions), v
        keys, values = cache = tuple(
            lax.dynamic_update_slice_in_dim(c, x, start, 1) for c, x in zip(cache, new, strict=True)
        )
        settings = {"query_positions": positions, "key_positions": counted(chunks * size), "bias": bias_of(name)}
        return cache, pe.attention(rotated(q, positions), keys, values, causal=True, window=window, **settings)

    empty = np.zeros((BATCH, chunks * size, HEADS, DIM), np.float32)
    run = jax.jit(lambda *x: lax.scan(step, (empty, empty), x))
    (keys, _), out = jax.device_get(run(q, k, v, size * counted(chunks)))
    want, whole_keys = whole(name, window)
    out = np.moveaxis(out, 0, 1).reshape(BATCH, -1, HEADS, DIM)[:, :SEQ]
    assert_within(out, want, ATOL, against="the whole sequence")
    np.testing.assert_array_equal(keys[:, :SEQ], whole_keys)


# Prompts of several lengths in one batch, and a loop that decodes them together

LENGTHS, STEPS = np.int32([5, 12]), 20
LONGEST = LENGTHS.max()


def in_the_batch(name):
    """What each row gives without padding: its outputs and its keys. A causal mask hides what comes later."""
    out, keys = whole(name)
    return [(out[r, : n + STEPS], keys[r, : n + STEPS]) for r, n in enumerate(LENGTHS)]


def alone(name):
    """The same from each row without the others and without what comes later."""
    rows = [[x[r : r + 1, : n + STEPS] for x in (Q, K, V)] for r, n in enumerate(LENGTHS)]
    return [(out[0], keys[0]) for out, keys in (whole(name, (None, None), *row) for row in rows)]


PADDED = pytest.mark.parametrize(
    ("program", "row_by_row"), [(jax.jit, in_the_batch), slow(lambda f: f, alone)], ids=["jit", "eager"]
)


def decode(cache, places, slot, name, **segments):
    """All outputs of the loop; the token of step t is at LENGTHS + t and goes into the slots `slot(t)` of the rows.

    `places` are the positions of the slots, of which those of the loop's tokens are written in it.
    """
    rows = np.arange(BATCH)
    tokens = [np.stack([x[r, n : n + STEPS] for r, n in enumerate(LENGTHS)]) for x in (Q, K, V)]

    def step(state, token):
        (cache, places), (q, k, v, t) = state, token
        positions = LENGTHS[:, None] + t
        new = rotated(k, positions), v
        keys, values = cache = tuple(c.at[rows, slot(t)].set(x[:, 0]) for c, x in zip(cache, new, strict=True))
        places = places.at[rows, slot(t)].set(positions[:, 0])
        settings = {"query_positions": positions, "key_positions": places, "bias": bias_of(name)}
        out = pe.attention(rotated(q, positions), keys, values, causal=True, **settings, **segments)
        return (cache, places), out

    run = jax.jit(lambda *x: lax.scan(step, (cache, places), x))
    ((keys, _), places), out = jax.device_get(run(*by_token(*tokens), counted(STEPS)))
    return by_row(out), keys, places


def prefilled(program, tokens, positions, name, **segments):
    """The prompts' outputs, and the cache with room for the loop."""
    room = [(0, 0), (0, STEPS), (0, 0), (0, 0)]

    @program
    def run(q, k, v, positions):
        q, k = (rotated(x, positions) for x in (q, k))
        at = {"query_positions": positions, "key_positions": positions, "bias": bias_of(name)}
        return pe.attention(q, k, v, causal=True, **at, **segments), (jnp.pad(k, room), jnp.pad(v, room))

    return jax.device_get(run(*tokens, positions))


@PADDED
@pytest.mark.parametrize("name", BIASES)
def test_prompts_padded_on_the_right(name, program, row_by_row):
    """Position i is in slot i of each row. What is behind a prompt is after its queries, until it is overwritten."""
    tokens = [x[:, :LONGEST] for x in (Q, K, V)]  # the padding of the shorter row is as good as any
    prompt, cache = prefilled(program, tokens, counted(LONGEST), name)
    places = np.tile(counted(LONGEST + STEPS), (BATCH, 1))
    out, keys, _ = decode(cache, places, lambda t: LENGTHS + t, name)
    for r, (n, (want, whole_keys)) in enumerate(zip(LENGTHS, row_by_row(name), strict=True)):
        assert_within(prompt[r, :n], want[:n], ATOL, against=f"row {r} {row_by_row.__name__}")
        assert_within(out[r], want[n:], ATOL, against=f"row {r} {row_by_row.__name__}")
        np.testing.assert_array_equal(keys[r, : n + STEPS], whole_keys)


@PADDED
@pytest.mark.parametrize("by_segments", [slow(False), True])
@pytest.mark.parametrize("name", BIASES)
def test_prompts_padded_on_the_left(by_segments, name, program, row_by_row):
    """Tokens are counted from the first. Padding is in another segment, or at a position that no query sees."""
    padding = LONGEST - LENGTHS
    order = np.maximum(np.arange(LONGEST) - padding[:, None], 0)
    tokens = [np.take_along_axis(x, order[..., None, None], 1) for x in (Q, K, V)]
    mask = np.arange(LONGEST) >= padding[:, None]
    positions = pe.positions_from_mask(mask) if by_segments else np.where(mask, order, EMPTY).astype(np.int32)
    ids, room = mask.astype(np.int32), [(0, 0), (0, STEPS)]
    of_prompts = {"query_segments": ids, "key_segments": ids} if by_segments else {}
    of_steps = {"query_segments": np.int32([1]), "key_segments": np.pad(ids, room, constant_values=1)}
    prompt, cache = prefilled(program, tokens, positions, name, **of_prompts)
    places = np.pad(positions, room, constant_values=EMPTY)
    slot = lambda t: np.full(BATCH, LONGEST, np.int32) + t  # noqa: E731
    out, keys, places = decode(cache, places, slot, name, **(of_steps if by_segments else {}))
    for r, (n, (want, whole_keys)) in enumerate(zip(LENGTHS, row_by_row(name), strict=True)):
        assert_within(prompt[r, padding[r] :], want[:n], ATOL, against=f"row {r} {row_by_row.__name__}")
        assert_within(out[r], want[n:], ATOL, against=f"row {r} {row_by_row.__name__}")
        np.testing.assert_array_equal(keys[r, padding[r] :], whole_keys)
        np.testing.assert_array_equal(places[r, padding[r] :], np.arange(n + STEPS))
