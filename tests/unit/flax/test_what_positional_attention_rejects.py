"""What `positional_attention` rejects; each error names the argument.

- Wrong settings, positions that it would have to guess, arrays of other shapes or dtypes, and masks that do not fit.
- Positions that restart under a causal mask or a window without a mask of documents: a document would see the documents
  before it in its row.
- Masks by index where the indices of queries are unknown.

What looks alike but is right is accepted. From the third table on, NNX stands for both: they share what checks.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
import posenc_jax.linen as linen
import posenc_jax.nnx as nnx_modules
from posenc_jax.nnx import SegmentMask

Q, K, V = np.random.default_rng(5).normal(size=(3, 2, 6, 2, 8)).astype(np.float32)  # batch, seq, heads, head_dim
MAKERS = pytest.mark.parametrize(
    "make", [nnx_modules.positional_attention, linen.positional_attention], ids=["nnx", "linen"]
)
COUNTED, TIMES = np.arange(6), np.float32([0, 0.5, 0.5, 2.25, 7, 100])  # positions of six tokens
CACHED = np.ones((1, 1, 1, 6), bool)  # the mask of a step with Flax's cache
CAUSAL = np.tril(np.ones((1, 1, 6, 6), bool))
# Settings: in ROPE with the attention of Flax, in TILES with that of posenc_jax.
ROPE, TILES = {"rotation": 8}, {"rotation": 8, "attention": pe.attention}
ROPE_2D, BIAS_2D = {"rotation": pe.axial(8, 2)}, {"bias": pe.alibi, "num_axes": 2}
# Arguments of `attention` that the attention_fn passes itself.
RESERVED = "bias key_data key_order key_positions key_segments query_data query_order query_positions query_segments"
BINDS_ALL = functools.partial(pe.attention, **dict.fromkeys(RESERVED.split()), return_residual=None)


def zeros(*shape):
    """A function that returns a bias of this shape."""
    return lambda *_: jnp.zeros(shape)


@MAKERS
@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({}, ValueError, "rotation, bias, content_bias or attention must be given, got none"),
        ({"rotation": 0}, ValueError, "rotation, bias, content_bias or attention must be given, got none"),
        ({"rotation": Q}, TypeError, "rotation must be a width, Frequencies, .* or None, got float32"),
        ({"rotation": True}, TypeError, "rotation must be a width"),
        ({"rotation": 7}, ValueError, "rotation: frequencies must have an even dim, got 7"),
        (ROPE | {"layout": "x"}, ValueError, "layout must be one of"),
        (ROPE | {"part": "middle"}, ValueError, "part must be one of"),
        ({"bias": pe.alibi, "layout": "interleaved"}, ValueError, "layout and part must be left out unless rotation"),
        ({"rotation": lambda *_: _, "part": "last"}, ValueError, "layout and part must be left out unless rotation"),
        (ROPE | {"num_axes": 2}, ValueError, "num_axes must be 1, as in the frequencies, or None, got 2"),
        ({"bias": pe.alibi, "num_axes": 0}, ValueError, "num_axes must be at least 1"),
        (ROPE | {"bias_positions": "indices"}, ValueError, "bias_positions must be one of"),
        ({"bias": 3.0}, TypeError, "bias must be a function of positions, got float 3.0"),
        ({"content_bias": 3.0}, TypeError, "content_bias must be a function of positions, query and key"),
        ({"attention": "xla"}, TypeError, "attention must be posenc_jax.attention or None"),
        (
            {"attention": BINDS_ALL},
            ValueError,
            f"attention must not bind {RESERVED.replace(' ', ', ')}, return_residual: .*; pass mask=SegmentMask",
        ),
        (
            {"attention": functools.partial(pe.attention, mask=None)},
            ValueError,
            "attention must not bind mask: the attention_fn gives it$",
        ),
    ],
)
def test_wrong_settings_are_rejected(make, settings, error, match):
    with pytest.raises(error, match=f"^positional_attention: {match}"):
        make(**settings)


@MAKERS
def test_settings_must_be_given_by_name(make):
    with pytest.raises(TypeError, match="positional_attention: arguments must be given by name"):
        make(8)


def test_a_module_that_rotates_must_have_the_head_axis_of_flax():
    rotary = linen.RotaryEncoding(8, head_axis=None)
    with pytest.raises(ValueError, match="rotation must be a module with head_axis -2, got RotaryEncoding with None"):
        linen.positional_attention(rotation=rotary)


SIX, ONE, TWO = (Q, K, V), (Q[:, :1], K, V), (Q[:, :2], K, V)  # numbers of queries, beside six keys
DIFFER = "must be given where queries and keys differ in number, "


def at(positions, **more):
    """The arguments of a call at these positions of queries."""
    return {"input_positions": positions} | more


@MAKERS
@pytest.mark.parametrize(
    ("settings", "arrays", "call", "match"),
    [
        (ROPE, ONE, {}, f"input_positions {DIFFER}1 and 6, got None"),
        (ROPE, ONE, at(3), rf"key_positions {DIFFER}1 and 6 \(Flax's cache has one query and a mask\)"),
        (ROPE, TWO, at(np.arange(2), mask=CAUSAL[..., :2, :]), f"key_positions {DIFFER}2 and 6"),
        (ROPE, ONE, at(3, mask=SegmentMask(COUNTED[:1], COUNTED)), f"key_positions {DIFFER}1 and 6"),
        (ROPE, (Q, K[:, :2], V[:, :2]), at(COUNTED), f"key_positions {DIFFER}6 and 2"),
        (ROPE, ONE, at(np.array([[3], [4]]), mask=CACHED), r"input_positions must be one slot .* \(2, 1\)"),
        (ROPE, ONE, at(np.float32([3]), mask=CACHED), "input_positions must be an integer, the slot"),
        (ROPE_2D, ONE, at(np.zeros((1, 2), int), mask=CACHED), r"input_positions must be one slot .* \(1, 2\)"),
        (ROPE, ONE, at(4, mask=CACHED, is_causal=True), "is_causal must be False with one query"),
        (ROPE, ONE, at(4, mask=np.float32(CACHED) - 2), "mask must be 1 where .* got -1"),
        (ROPE, SIX, {"key_positions": COUNTED}, "input_positions must be given with key_positions"),
        (ROPE, SIX, at(3), r"input_positions must hold 6 along the sequence, got shape \(\)$"),
        (ROPE, SIX, at(np.array([[3], [4]])), r"input_positions must hold 6 .* got shape \(2, 1\)$"),
        (ROPE, SIX, at(np.zeros((6, 2), int)), r"input_positions .* \(6, 2\); for coordinates set num_axes=2"),
        (ROPE_2D, SIX, at(np.zeros((5, 2), int)), r"input_positions must hold 6 .* got shape \(5,\)$"),
        (BIAS_2D, SIX, at(np.zeros((6, 3), int)), "input_positions must have a last axis of size 2"),
        (ROPE, SIX, at(COUNTED, key_positions=np.arange(5)), r"key_positions must hold 6 .* \(5,\)"),
        (ROPE, SIX, at(np.zeros((3, 6), int)), "input_positions .* must broadcast to query without heads"),
        (ROPE_2D, SIX, {}, "input_positions must be given for positions of 2 coordinates"),
        (BIAS_2D, SIX, {}, "input_positions must be given for positions of 2 coordinates"),
    ],
)
def test_positions_are_rejected_rather_than_guessed(make, settings, arrays, call, match):
    with pytest.raises(ValueError, match=f"^positional_attention: {match}"):
        jax.eval_shape(lambda: make(**settings)(*arrays, **call))


@pytest.mark.parametrize(
    ("settings", "arrays", "error", "match"),
    [
        (ROPE, (Q[0, :, 0], K, V), ValueError, r"query must have shape \(..., seq, heads, head_dim\), got \(6, 8\)"),
        (ROPE, (Q, K.astype(int), V), TypeError, "key must be a float array"),
        ({"rotation": lambda q, *_: q}, SIX, TypeError, "what rotation returns must be query and key as float32"),
        ({"rotation": lambda q, k, *_: (q, k[:, :1])}, SIX, ValueError, "rotation must return query and key as"),
        ({"rotation": lambda q, k, *_: (q, k * 1j)}, SIX, ValueError, "rotation must return .* and complex64"),
        ({"bias": zeros(1, 6, 6)}, SIX, ValueError, r"bias must return shape \(..., 2, 6, 6\), got \(1, 6, 6\)"),
        ({"bias": zeros(3, 2, 6, 6)}, SIX, ValueError, r"what bias returns, .* must broadcast to the scores\b"),
        ({"bias": lambda *_: 0.0}, SIX, TypeError, "what bias returns must be a float array"),
        ({"content_bias": zeros(2, 2, 6)}, SIX, ValueError, r"content_bias must return shape \(..., 2, 6, 6\)"),
    ],
)
def test_arrays_of_other_shapes_or_dtypes_are_rejected(settings, arrays, error, match):
    with pytest.raises(error, match=f"^positional_attention: {match}"):
        jax.eval_shape(lambda: nnx_modules.positional_attention(**settings)(*arrays))


@pytest.mark.parametrize(
    ("settings", "call", "error", "match"),
    [
        (ROPE, {"mask": "ids"}, TypeError, "mask must be an array or a SegmentMask"),
        (ROPE, {"mask": np.ones((2, 6), bool)}, ValueError, r"mask must broadcast to .* \(2, 6\); for \(batch, keys\)"),
        (TILES, {"mask": np.ones((2, 1, 5), bool)}, ValueError, r"mask must broadcast to .* \(2, 1, 5\)$"),
        (ROPE, {"mask": np.where(CAUSAL, 0, np.float32(-1))}, ValueError, "mask must be 1 where .* got -1"),
        (ROPE, {"query_segments": 1}, ValueError, "query_segments must be given as mask=SegmentMask"),
        (ROPE, {"mask": SegmentMask(TIMES)}, TypeError, "query_segments must be an integer"),
        (TILES, {"mask": SegmentMask(COUNTED[:5])}, ValueError, r"query_segments must have shape \(..., 6\)"),
        (ROPE, {"mask": SegmentMask(COUNTED, COUNTED[:4])}, ValueError, r"key_segments must have shape \(..., 6\)"),
        # What tiles do not take.
        (TILES, {"bias": np.zeros((1, 2, 6, 6))}, ValueError, r"bias must be None with attention .* \(1, 2, 6, 6\)"),
        (TILES, {"dropout_rate": 0.5}, ValueError, "dropout_rate must be 0.0 with attention .* got 0.5"),
        (TILES, {"dtype": jnp.bfloat16}, ValueError, "dtype must be None with attention"),
        (TILES, {"is_causal": 1}, TypeError, "is_causal must be"),
    ],
)
def test_masks_and_options_that_do_not_fit_are_rejected(settings, call, error, match):
    with pytest.raises(error, match=f"^positional_attention: {match}"):
        jax.eval_shape(lambda: nnx_modules.positional_attention(**settings)(Q, K, V, **call))


def test_segments_given_once_need_as_many_queries_as_keys():
    call = at(3, key_positions=COUNTED, mask=SegmentMask(COUNTED[:1]))
    with pytest.raises(ValueError, match="key_segments must be given to SegmentMask where .* differ .*, 1 and 6"):
        jax.eval_shape(lambda: nnx_modules.positional_attention(rotation=8)(*ONE, **call))


def attend(attention=None, arrays=SIX, content_bias=None, **call):
    """Traces a call. Only NumPy's arrays in `call` are concrete, and can be checked."""
    made = nnx_modules.positional_attention(rotation=8, attention=attention, content_bias=content_bias)
    return jax.eval_shape(lambda *qkv: made(*qkv, **call), *arrays)


RESTARTED = np.int32([[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 1]])
SEGMENTS = SegmentMask(np.int32([[1, 1, 1, 2, 2, 3], [1, 1, 1, 1, 2, 2]]))
CAUSAL_TILES = {"attention": functools.partial(pe.attention, causal=True)}
WINDOW_TILES = {"attention": functools.partial(pe.attention, window=(9, 0))}


@pytest.mark.parametrize(
    "way",
    [{"is_causal": True}, {"attention": pe.attention, "is_causal": True}, CAUSAL_TILES, WINDOW_TILES],
    ids=["by Flax", "by the index", "by the position", "by a window"],
)
def test_positions_that_restart_under_a_causal_mask_need_a_mask_of_documents(way):
    """Accepted: any mask of queries and keys (it is not read), traced positions, times that only grow, a content_bias.

    A content_bias may hide other documents.
    """
    message = "^positional_attention: input_positions must not return .* pass mask=SegmentMask"
    for positions, more in (
        (RESTARTED, {}),
        (RESTARTED, {"mask": np.ones((2, 1, 1, 6), bool)}),
        (jax.device_put(RESTARTED), {}),  # concrete, though JAX's
        (np.float32([0, 0.5, 1, 0, 0.5, 1]), {}),
    ):
        with pytest.raises(ValueError, match=message):
            attend(**way, **more, input_positions=positions)
    with pytest.raises(ValueError, match="key_positions must not return"):
        attend(**way, input_positions=COUNTED, key_positions=RESTARTED)
    # accepted
    for mask in SEGMENTS, np.broadcast_to(CAUSAL, (2, 1, 6, 6)):
        attend(**way, input_positions=RESTARTED, mask=mask)
    jax.eval_shape(lambda positions: attend(**way, input_positions=positions), RESTARTED)
    attend(**way, input_positions=np.float32([0, 0.5, 0.5, 1, 3, 3]))
    attend(**way, input_positions=RESTARTED, content_bias=zeros(2, 6, 6))


def test_positions_may_restart_without_a_causal_mask_or_beyond_its_window():
    attend(input_positions=RESTARTED)
    attend(pe.attention, input_positions=RESTARTED)
    real = np.int32([[1, 1, 1, 0, 0, 0], [1] * 6])
    attend(**CAUSAL_TILES, input_positions=pe.positions_from_mask(real), mask=real[:, None, None] > 0)
    queries, keys = np.int32([8, 9, 10, 11, 12, 13]), np.int32([0, 1, 0, 1, 12, 13])
    in_window = functools.partial(pe.attention, causal=True, window=(2, 0))
    attend(in_window, input_positions=queries, key_positions=keys)  # the window ends after the restart
    # Over times a window counts tokens, so it reaches across the restart.
    with pytest.raises(ValueError, match="key_positions must not return"):
        attend(in_window, input_positions=np.float32(queries), key_positions=np.float32(keys))


def test_masks_by_index_need_the_indices_of_queries():
    """Times are masked by the index of tokens, which is unknown for two queries beside six keys."""
    for attention in CAUSAL_TILES["attention"], functools.partial(pe.attention, window=(2, None)):
        with pytest.raises(ValueError, match="attention must bind neither causal nor window where .* 2 and 6"):
            attend(attention, TWO, input_positions=TIMES[4:], key_positions=TIMES)
    attend(pe.attention, TWO, input_positions=TIMES[4:], key_positions=TIMES)
