"""Where tokens stand: one position for a sequence is an error, and so is none for a single token."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx as flax_nnx
from jax import export

import posenc_jax as pe
from helpers.quick import quick
from posenc_jax import linen, nnx
from posenc_jax.hf import RotaryLayer, RotaryPlan

HEADED = functools.partial(dict, head_axis=-2)
TABLE = np.ones((9, 8), np.float32)
PLAN = RotaryPlan((RotaryLayer(8, 8), RotaryLayer(0, 8)), "half")
LINEN = {
    "SinusoidalEncoding": (linen.SinusoidalEncoding(8), lambda x: x[:, :, 0]),
    "LearnedEncoding": (linen.LearnedEncoding(9, 8), lambda x: x[:, :, 0]),
    "RotaryEncoding": (linen.RotaryEncoding(8, head_axis=-2), lambda x: x),
}
POPE = linen.PoPE(2, 16, head_axis=-2)


def applied(name):
    """A Linen module with variables that a whole sequence made."""
    module, of = LINEN[name]
    return lambda x, p: module.apply(module.init(jax.random.key(0), of(jnp.zeros((2, 5, 2, 8)))), of(x), p)


def polar(x, p):
    whole = jnp.zeros((2, 5, 2, 8))
    return POPE.apply(POPE.init(jax.random.key(0), whole, whole), x, x, p)


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
    "PoPE of Linen": polar,
}
FIVE, ONE = (jax.ShapeDtypeStruct((2, n, 2, 8), np.float32) for n in (5, 1))
SHARED = {"()": np.int32(7), "(1,)": np.int32([7]), "(batch, 1)": np.int32([[7], [8]])}


@pytest.mark.parametrize("name", PLACES)
def test_one_position_for_a_sequence_is_refused(name):
    """Known and traced: as a width it is none, and moving keys is `shift_keys`."""
    call, match = (
        PLACES[name],
        r"positions must not be one for all 5 vectors of \w+, got shape .*jnp.broadcast_to\(positions, \(2, 5\)\)",
    )
    for p in SHARED.values():
        with pytest.raises(ValueError, match=match):
            jax.eval_shape(lambda x: call(x, p), FIVE)  # noqa: B023
        with pytest.raises(ValueError, match=match):
            jax.eval_shape(call, FIVE, p)
    each = jax.eval_shape(lambda x, p: call(x, jnp.broadcast_to(p, (2, 5))), FIVE, SHARED["(batch, 1)"])
    assert each == jax.eval_shape(call, FIVE, None)


@pytest.mark.parametrize("name", PLACES)
def test_a_token_without_a_position_is_refused(name):
    call = PLACES[name]
    with pytest.raises(
        ValueError,
        match=r"positions must be given where \w+ holds one token, .* got None: pass the position of a decode",
    ):
        jax.eval_shape(lambda x: call(x, None), ONE)
    found = [jax.eval_shape(call, ONE, p) for p in SHARED.values()]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("name", [name for name in PLACES if "earned" not in name])  # a table must be long enough
def test_a_length_that_is_not_known_is_taken(name):
    (n,) = export.symbolic_shape("n")
    x = jax.ShapeDtypeStruct((2, n, 2, 8), np.float32)
    for p in (None, np.int32(7)):
        export.export(jax.jit(lambda x: PLACES[name](x, p)))(x)  # noqa: B023


def test_a_row_of_coordinates_is_one_position():
    f = pe.axial(8, 2)
    rotate = lambda x, p: pe.rotary(x, p, f, head_axis=-2)  # noqa: E731
    for p in (np.int32([3, 4]), np.int32([[3, 4]])):
        with pytest.raises(
            ValueError, match=r"one for all 5 vectors of x, got shape .*broadcast_to\(positions, \(2, 5, 2\)\)"
        ):
            jax.eval_shape(rotate, FIVE, p)
        jax.eval_shape(rotate, ONE, p)


def test_what_has_no_sequence_has_one_position():
    """A vector, and vectors of a batch at positions of their own."""
    batch, vector = (jax.ShapeDtypeStruct(shape, np.float32) for shape in ((2, 4, 8), (8,)))
    jax.eval_shape(lambda x, p: pe.rotary(x, p, head_axis=-2), batch, np.int32([3, 9]))
    jax.eval_shape(lambda x: pe.add_sinusoidal(x, 7), vector)
    jax.eval_shape(lambda x: pe.rotary(x, 7, head_axis=None), vector)
    with pytest.raises(ValueError, match="got shape .* if axis -2 is that of heads, pass head_axis=-2; to move"):
        jax.eval_shape(lambda x, p: pe.rotary(x, p, head_axis=None), FIVE, np.zeros((2, 5, 1), np.int32))
    for f in (functools.partial(pe.sinusoidal, frequencies=8), functools.partial(pe.cos_sin, frequencies=8)):
        jax.eval_shape(f, np.int32(7))
    jax.eval_shape(pe.learned, np.int32(7), TABLE)
    jax.eval_shape(lambda x: pe.shift(x, 7, 8), jax.ShapeDtypeStruct((2, 5, 8), np.float32))


def test_a_layer_without_positions_reads_none():
    for rotate in (lambda x, p: pe.rotary(x, p, 0, head_axis=-2), lambda x, p: PLAN.rotate(x, 1, p, head_axis=-2)):
        for x, p in ((ONE, None), (FIVE, np.int32(7))):
            assert jax.eval_shape(lambda x: rotate(x, p), x).shape == x.shape  # noqa: B023


@pytest.mark.parametrize("name", [*LINEN, "PoPE"])
def test_init_of_linen_takes_one_token(name):
    module, of = (POPE, lambda x: x) if name == "PoPE" else LINEN[name]
    arguments = [of(np.ones((2, 1, 2, 8), np.float32))] * (1 + (name == "PoPE"))
    init = lambda *x: jax.eval_shape(lambda: module.init(jax.random.key(0), *x))  # noqa: E731
    assert init(*arguments) == init(*(np.repeat(x, 5, 1) for x in arguments))


def test_init_of_linen_still_checks():
    one = np.ones((2, 1, 2, 8), np.float32)
    init = lambda module, x: jax.eval_shape(lambda: module.init(jax.random.key(0), x))  # noqa: E731
    with pytest.raises(ValueError, match="rotary: positions must be given for frequencies of 2 axes, got None"):
        init(linen.RotaryEncoding(pe.axial(8, 2), head_axis=-2), one)
    with pytest.raises(TypeError, match="rotary: head_axis must be an integer"):
        init(linen.RotaryEncoding(8, head_axis="x"), one)  # type: ignore
    with pytest.raises(TypeError, match="add_sinusoidal: x must be a float array"):
        init(linen.SinusoidalEncoding(8), 1.0)


def test_one_query_and_one_key_need_no_position():
    """Nothing else is seen, so it does not matter where they stand."""
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 1, 2, 8)).astype(np.float32)
    for attend in (nnx.positional_attention(rotation=8), nnx.positional_attention(rotation=8, attention=pe.attention)):
        np.testing.assert_array_equal(quick(lambda *x: attend(*x))(q, k, v), v)  # noqa: B023


# Rows that return to a position

LAST = np.iinfo(np.int32).max


def attend(queries, keys, **options):
    """The type of the result, whose trace checks the positions."""
    q, k = (jax.ShapeDtypeStruct((2, np.shape(p)[-1], 2, 4), np.float32) for p in (queries, keys))
    where = {"query_positions": np.int32(queries), "key_positions": np.int32(keys)}
    return jax.eval_shape(lambda q, k: pe.attention(q, k, k, **where | options), q, k)


SEEN_TWICE = {
    "packed": ([0, 1, 2, 3, 0, 1, 2, 3],) * 2,
    "packed, a row of two": ([[0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 1, 2]],) * 2,
    "padding on the right": ([0, 1, 2, 0, 0],) * 2,
    "padding in between": ([0, 1, 0, 2],) * 2,
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
    "a cache that fills": ([2], [0, 1, 2, LAST, LAST, LAST]),
    "a ring that fills, in batch": ([[2], [9]], [[0, 1, 2, LAST], [8, 9, 6, 7]]),
    "slots that were never written first": ([1], [LAST, LAST, 0, 1]),
    "zigzag": ([0, 1, 6, 7], [0, 1, 6, 7, 2, 3, 4, 5]),
    "zigzag, an image inside a chunk": ([0, 1, 1, 6, 7], [0, 1, 1, 6, 7, 2, 3, 4, 5]),
    "striped": ([0, 2, 4, 6], [0, 2, 4, 6, 1, 3, 5, 7]),
    "pages": ([9], [4, 5, 6, 7, 0, 1, 2, 3, 8, 9, LAST, LAST]),
    "sinks and a ring": ([9], [0, 1, 8, 9, 6, 7]),
    "backwards": (range(8)[::-1],) * 2,
    "padding on the left, and slots that hold nothing, at the greatest": (
        [[LAST, LAST, 0, 1, 2], [0, 1, 2, 3, 4]],
        [[LAST, LAST, 0, 1, 2, LAST, LAST], [0, 1, 2, 3, 4, LAST, LAST]],
    ),
    "a chunk of rows of different lengths": (
        [[3, 4, LAST], [4, 5, 6]],
        [[0, 1, 2, LAST, 3, 4, LAST, LAST], [*range(7), LAST]],
    ),
    "remainders that are equal": ([9999], [0, 5000, 1, 64, 2, 128]),
    "an image at one position": ([0, 1, 1, 1, 1, 2],) * 2,
    "padding on the left": ([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]],) * 2,
    "M-RoPE, text alone": ([0, 1, 2, 3],) * 2,
    "what no query sees": ([3], [0, 1, 2, 3, 7, 8, 7]),
    "no key": ([3], []),
    "no query": ([], [0, 1, 0]),
}
BY_POSITION = [{"causal": True}, {"window": (None, 0)}, {"window": (2, 3)}]


@pytest.mark.parametrize("name", SEEN_TWICE)
def test_a_position_that_returns_is_refused(name):
    message = r"^attention: key_positions must not return to a position after another, got -?\d+ twice in a row of keys: pass query_segments .*"
    for options in BY_POSITION:
        orders = (
            "query_order .* or positions as orders"
            if options.get("causal")
            else r"see each other\), a mask of queries and keys$"
        )
        with pytest.raises(ValueError, match=message + orders):
            attend(*SEEN_TWICE[name], **options)


@pytest.mark.parametrize("name", SEEN_ONCE)
def test_caches_shards_and_images_are_taken(name):
    for options in BY_POSITION:
        attend(*SEEN_ONCE[name], **options)


def test_what_tells_tokens_apart_is_taken():
    p = np.int32([0, 1, 2, 3, 0, 1, 2, 3])
    ways = {
        "segments": {"query_segments": p[:4].repeat(2), "key_segments": p[:4].repeat(2)},
        "a mask of queries and keys": {"mask": np.equal.outer(p[:4].repeat(2), p[:4].repeat(2))[None, None]},
        "slots as orders": {"query_order": np.arange(8), "key_order": np.arange(8)},
        "positions as orders": {"query_order": p, "key_order": p},
        "tokens": {
            "query_data": np.ones((1, 8, 1)),
            "key_data": np.ones((1, 8, 1)),
            "bias": lambda i, j, a, b: jnp.zeros((2, 8, 8)),
        },
    }
    for options in ways.values():
        attend(p, p, causal=True, **options)
    with pytest.raises(ValueError, match="key_positions must not return"):
        attend(p, p, causal=True, mask=np.ones((1, 1, 1, 8), bool))  # it hides padding alone
    with pytest.raises(ValueError, match="key_positions must not return"):
        attend(p, p, causal=True, mask=np.array([False, True])[None, :, None, None])  # from one head alone
    attend(p, p, causal=True, mask=np.arange(8)[None, None, None] < 4)  # nothing that is seen returns
    attend(p, p)  # both directions
    attend([9], [0, 1, 0, 1, 8, 9], window=(2, 0))  # behind the window
    attend(p, p, window=(2, None))
    f = lambda p: pe.attention(*[jnp.ones((2, 8, 2, 4))] * 3, causal=True, query_positions=p, key_positions=p)  # noqa: E731
    jax.eval_shape(f, p)  # traced


def test_a_flax_layer_says_so_too():
    p, x = np.int32([0, 1, 2, 3, 0, 1, 2, 3]), jnp.ones((1, 8, 2, 8))
    tiles = nnx.positional_attention(rotation=8, attention=functools.partial(pe.attention, causal=True))
    with pytest.raises(
        ValueError,
        match="^positional_attention: input_positions must not return to a position after .* pass mask=SegmentMask",
    ):
        tiles(x, x, x, input_positions=p)
    every = nnx.SegmentMask(np.ones(8, np.int32))
    jax.eval_shape(lambda x: tiles(x, x, x, input_positions=p, mask=every), x)
