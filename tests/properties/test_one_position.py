"""Where tokens stand: one position for a sequence is an error, so is none for a single token, and one that returns.

What has no sequence may have one position, a length that is not known is taken, and so are caches, shards and images.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx as flax_nnx
from jax import export

import posenc_jax as pe
from posenc_jax import linen, nnx
from posenc_jax.hf import RotaryLayer, RotaryPlan

TABLE = np.ones((9, 8), np.float32)
PLAN = RotaryPlan((RotaryLayer(8, 8), RotaryLayer(0, 8)), "half")
LINEN = {
    "SinusoidalEncoding": (linen.SinusoidalEncoding(8), lambda x: [x[:, :, 0]]),
    "LearnedEncoding": (linen.LearnedEncoding(9, 8), lambda x: [x[:, :, 0]]),
    "RotaryEncoding": (linen.RotaryEncoding(8, head_axis=-2), lambda x: [x]),
    "PoPE": (linen.PoPE(2, 16, head_axis=-2), lambda x: [x, x]),
}


def applied(name):
    """A Linen module with variables that a whole sequence made."""
    module, of = LINEN[name]
    return lambda x, p: module.apply(module.init(jax.random.key(0), *of(jnp.zeros((2, 5, 2, 8)))), *of(x), p)


# What places x (batch, seq, heads, 8) at positions
PLACES = {
    "rotary": lambda x, p: pe.rotary(x, p, head_axis=-2),
    "rotary, heads first": lambda x, p: pe.rotary(x.swapaxes(1, 2), p, head_axis=-3),
    "rotary, no heads": lambda x, p: pe.rotary(x[:, :, 0], p, head_axis=None),
    "pope": lambda x, p: pe.pope(x, p, head_axis=-2),
    "xpos": lambda x, p: pe.xpos(x, x, p, head_axis=-2),
    "add_sinusoidal": lambda x, p: pe.add_sinusoidal(x[:, :, 0], p),
    "add_learned": lambda x, p: pe.add_learned(x[:, :, 0], TABLE, p),
    "RotaryPlan.rotate": lambda x, p: PLAN.rotate(x, 0, p, head_axis=-2),
    "SinusoidalEncoding": lambda x, p: nnx.SinusoidalEncoding(8)(x[:, :, 0], p),
    "LearnedEncoding": lambda x, p: nnx.LearnedEncoding(9, 8, rngs=flax_nnx.Rngs(0))(x[:, :, 0], p),
    "RotaryEncoding": lambda x, p: nnx.RotaryEncoding(8, head_axis=-2)(x, p),
    "PoPE": lambda x, p: nnx.PoPE(2, 16, head_axis=-2, rngs=flax_nnx.Rngs(0))(x, x, p),
    **{f"{name} of Linen": applied(name) for name in LINEN},
}
FIVE, ONE = (jax.ShapeDtypeStruct((2, n, 2, 8), np.float32) for n in (5, 1))
SHARED = np.int32(7), np.int32([7]), np.int32([[7], [8]])


@pytest.mark.parametrize("name", PLACES)
def test_one_position_for_a_sequence_is_refused(name):
    """Concrete and traced; to move keys there is `shift_keys`."""
    call = PLACES[name]
    message = r"positions must not be one for all 5 vectors of \w+, got shape .*jnp.broadcast_to\(positions, \(2, 5\)\)"
    for p in SHARED:
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(lambda x: call(x, p), FIVE)  # noqa: B023
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(call, FIVE, p)
    each = jax.eval_shape(lambda x, p: call(x, jnp.broadcast_to(p, (2, 5))), FIVE, SHARED[2])
    assert each == jax.eval_shape(call, FIVE, None)


@pytest.mark.parametrize("name", PLACES)
def test_a_token_without_a_position_is_refused(name):
    message = r"positions must be given where \w+ holds one token, .* got None: pass the position of a decode"
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda x: PLACES[name](x, None), ONE)
    first, *others = (jax.eval_shape(PLACES[name], ONE, p) for p in SHARED)
    assert all(other == first for other in others)


@pytest.mark.parametrize("name", [name for name in PLACES if "earned" not in name])  # a table must be long enough
def test_a_length_that_is_not_known_is_taken(name):
    (n,) = export.symbolic_shape("n")
    for p in (None, np.int32(7)):
        export.export(jax.jit(lambda x: PLACES[name](x, p)))(jax.ShapeDtypeStruct((2, n, 2, 8), np.float32))  # noqa: B023


def test_a_row_of_coordinates_is_one_position():
    rotate = lambda x, p: pe.rotary(x, p, pe.axial(8, 2), head_axis=-2)  # noqa: E731
    for p in (np.int32([3, 4]), np.int32([[3, 4]])):
        with pytest.raises(ValueError, match=r"one for all 5 vectors of x, .*broadcast_to\(positions, \(2, 5, 2\)\)"):
            jax.eval_shape(rotate, FIVE, p)
        jax.eval_shape(rotate, ONE, p)


def test_what_has_no_sequence_has_one_position():
    """A vector, vectors of a batch at positions of their own, and layers that do not rotate."""
    batch, vector = (jax.ShapeDtypeStruct(shape, np.float32) for shape in ((2, 4, 8), (8,)))
    jax.eval_shape(lambda x: pe.rotary(x, np.int32([3, 9]), head_axis=-2), batch)
    jax.eval_shape(lambda x: (pe.add_sinusoidal(x, 7), pe.rotary(x, 7, head_axis=None), pe.shift(x, 7, 8)), vector)
    jax.eval_shape(lambda p: (pe.sinusoidal(p, 8), pe.cos_sin(p, 8), pe.learned(p, TABLE)), np.int32(7))
    for rotate in (lambda x, p: pe.rotary(x, p, 0, head_axis=-2), lambda x, p: PLAN.rotate(x, 1, p, head_axis=-2)):
        jax.eval_shape(lambda one, five: (rotate(one, None), rotate(five, np.int32(7))), ONE, FIVE)  # noqa: B023
    with pytest.raises(ValueError, match="got shape .* if axis -2 is that of heads, pass head_axis=-2; to move"):
        jax.eval_shape(lambda x: pe.rotary(x, np.zeros((2, 5, 1), np.int32), head_axis=None), FIVE)


@pytest.mark.parametrize("name", LINEN)
def test_init_of_linen_takes_one_token_and_still_checks(name):
    module, of = LINEN[name]
    init = lambda x: jax.eval_shape(lambda: module.init(jax.random.key(0), *of(x)))  # noqa: E731
    assert init(np.ones((2, 1, 2, 8), np.float32)) == init(np.ones((2, 5, 2, 8), np.float32))
    with pytest.raises(TypeError, match="must be a float array"):
        init(np.ones((2, 1, 2, 8), np.int32))


def test_one_query_and_one_key_need_no_position():
    """Nothing else is seen, so it does not matter where they stand."""
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 1, 2, 8)).astype(np.float32)
    for settings in ({}, {"attention": pe.attention}):
        attend = nnx.positional_attention(rotation=8, **settings)
        np.testing.assert_array_equal(jax.jit(lambda *x: attend(*x))(q, k, v), v)  # noqa: B023


# Rows that return to a position

LAST = np.iinfo(np.int32).max
BY_POSITION = [{"causal": True}, {"window": (None, 0)}, {"window": (2, 3)}]


def attend(queries, keys, **options):
    """The type of the result, whose trace checks the positions."""
    q, k = (jax.ShapeDtypeStruct((2, np.shape(p)[-1], 2, 4), np.float32) for p in (queries, keys))
    where = {"query_positions": np.int32(queries), "key_positions": np.int32(keys)}
    return jax.eval_shape(lambda q, k: pe.attention(q, k, k, **where | options), q, k)


SEEN_TWICE = {
    "packed": ([0, 1, 2, 3, 0, 1, 2, 3],) * 2,
    "packed, a row of two": ([[0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 1, 2]],) * 2,
    "padding on the right": ([0, 1, 2, 0, 0],) * 2,
    "a tree of drafts": ([5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 5, 6]),
    "a step in a packed row": ([2], [0, 1, 2, 0, 1, 2, LAST, LAST]),
    "two slots of a token": ([5], [5, LAST, 5]),
    "where differences wrap": ([LAST - 1], [LAST - 1, -LAST, LAST - 1]),
    "seen by some row": ([[0], [4]], [4, 5, 4]),
}
SEEN_ONCE = {
    "a sequence": (range(8),) * 2,
    "far apart": ([-(2**31), 0, LAST - 1],) * 2,
    "a ring": ([13], [8, 9, 10, 11, 12, 13, 6, 7]),
    "a ring of several laps, chunks and rejected drafts": ([12, 13], [8, 9, 10, 11, 12, 13, 14, 15, 4, 5, 6, 7]),
    "a ring that fills, in batch": ([[2], [9]], [[0, 1, 2, LAST], [8, 9, 6, 7]]),
    "slots that were never written first": ([1], [LAST, LAST, 0, 1]),
    "zigzag, an image inside a chunk": ([0, 1, 1, 6, 7], [0, 1, 1, 6, 7, 2, 3, 4, 5]),
    "striped": ([0, 2, 4, 6], [0, 2, 4, 6, 1, 3, 5, 7]),
    "pages": ([9], [4, 5, 6, 7, 0, 1, 2, 3, 8, 9, LAST, LAST]),
    "sinks and a ring": ([9], [0, 1, 8, 9, 6, 7]),
    "backwards": (range(8)[::-1],) * 2,
    "slots that hold nothing": ([[LAST, LAST, 0, 1], [0, 1, 2, 3]], [[LAST, LAST, 0, 1, LAST], [0, 1, 2, 3, LAST]]),
    "remainders that are equal": ([9999], [0, 5000, 1, 64, 2, 128]),
    "an image at one position": ([0, 1, 1, 1, 1, 2],) * 2,
    "padding on the left": ([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]],) * 2,
    "what no query sees": ([3], [0, 1, 2, 3, 7, 8, 7]),
    "no key": ([3], []),
    "no query": ([], [0, 1, 0]),
}


@pytest.mark.parametrize("options", BY_POSITION)
@pytest.mark.parametrize("name", SEEN_TWICE)
def test_a_position_that_returns_is_refused(name, options):
    message = (
        r"^attention: key_positions must not return to a position after another, got -?\d+ twice in a row of keys: "
    )
    with pytest.raises(ValueError, match=message + "pass query_segments"):
        attend(*SEEN_TWICE[name], **options)


@pytest.mark.parametrize("options", BY_POSITION)
@pytest.mark.parametrize("name", SEEN_ONCE)
def test_caches_shards_and_images_are_taken(name, options):
    attend(*SEEN_ONCE[name], **options)


PACKED = np.int32([0, 1, 2, 3, 0, 1, 2, 3])
DOCUMENTS = np.int32([0, 0, 0, 0, 1, 1, 1, 1])
TOLD_APART = {
    "segments": {"query_segments": DOCUMENTS, "key_segments": DOCUMENTS},
    "a mask of queries and keys": {"mask": np.equal.outer(DOCUMENTS, DOCUMENTS)[None, None]},
    "slots as orders": {"query_order": np.arange(8), "key_order": np.arange(8)},
    "positions as orders": {"query_order": PACKED, "key_order": PACKED},
    "a bias of tokens": {
        **{"query_data": np.ones((1, 8, 1)), "key_data": np.ones((1, 8, 1))},
        "bias": lambda i, j, a, b: jnp.zeros((2, 8, 8)),
    },
    "keys that are hidden": {"mask": np.arange(8)[None, None, None] < 4},
    "both directions": {"causal": False},
}


@pytest.mark.parametrize("name", TOLD_APART)
def test_what_tells_tokens_apart_is_taken(name):
    attend(PACKED, PACKED, **{"causal": True} | TOLD_APART[name])


@pytest.mark.parametrize("mask", [np.ones((1, 1, 1, 8), bool), np.array([False, True])[None, :, None, None]])
def test_a_mask_of_padding_or_of_one_head_tells_no_tokens_apart(mask):
    with pytest.raises(ValueError, match="key_positions must not return"):
        attend(PACKED, PACKED, causal=True, mask=mask)


def test_a_flax_layer_says_so_too():
    x = jnp.ones((1, 8, 2, 8))
    layer = nnx.positional_attention(rotation=8, attention=functools.partial(pe.attention, causal=True))
    message = "^positional_attention: input_positions must not return to a position after .* pass mask=SegmentMask"
    with pytest.raises(ValueError, match=message):
        layer(x, x, x, input_positions=PACKED)
    every = nnx.SegmentMask(np.ones(8, np.int32))
    jax.eval_shape(lambda x: layer(x, x, x, input_positions=PACKED, mask=every), x)
