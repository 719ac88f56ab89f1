"""What `attention` rejects: each error names the argument and its constraint.

- Types, shapes and dtypes of arguments are checked, and bounds of numbers; some arguments need others beside them.
- Positions 0 1 2 0 1 of packed documents *return*: one comes again after another one. A causal mask or a window would
  then mix documents, so concrete positions that return are rejected, unless an option may separate the documents.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from posenc_jax._attention import parser

Q, K, V = (np.zeros(shape, np.float32) for shape in ((2, 11, 4, 8), (2, 13, 2, 8), (2, 13, 2, 6)))
QUERY_AT, KEY_AT = np.arange(11, dtype=np.int32), np.arange(13, dtype=np.int32)
FLOAT32 = np.float32
POSITIONS = {"query_positions": QUERY_AT, "key_positions": KEY_AT}
NO_POSITIONS = {"query_positions": None, "key_positions": None}
MASK = np.ones((2, 4, 11, 13), bool)
WITH_DATA = {"query_data": np.ones((1, 11, 1, 5), FLOAT32), "bias": lambda i, j, a, b: jnp.float32(0)}
TILE = r"\(2, 4, 11, 13\)"
POSITIONS_MISSING = "query_positions and key_positions must be given for 11 queries and 13 keys"

# What changes in a valid call, and how the message goes on after "attention: " (a regular expression).
TYPES = [
    ({"query": Q.astype(int)}, "query must be a float array"),
    ({"key": K.astype(np.float16)}, "key must have the dtype of query, float32, got float16"),
    ({"value": V.astype(np.float16)}, "value must have the dtype of query"),
    ({"bias": Q}, "bias must be a function of positions"),
    ({"bias": lambda i, j: i[:, None] - j[None]}, "bias must give one float array"),
    ({"causal": 1}, "causal must be True or False"),
    ({"return_residual": 1}, "return_residual must be True or False"),
    ({"scale": "a"}, "scale must be a number"),
    ({"scale": np.ones(4, np.int32)}, "scale must be a float array"),
    ({"window": 3}, r"window must be a pair \(left, right\)"),
    ({"window": [3, 0]}, "window must be a pair"),
    ({"window": (2.0, 0)}, r"window\[0\] must be an integer"),
    ({"logits_soft_cap": jnp.float32(3)}, "logits_soft_cap must be a number"),
    ({"sinks": np.arange(4)}, r"sinks must be a float array of shape \(heads,\)"),
    ({"mask": MASK.astype(np.int32)}, "mask must be an array of booleans, True where a query sees a key, got int32"),
    ({"mask": MASK.astype(FLOAT32)}, "mask must be .*; an additive mask is a bias, got float32"),
    ({"query_positions": FLOAT32(QUERY_AT)}, "query_positions must be an integer array"),
    (WITH_DATA | {"key_data": {"x": "a"}}, r"key_data\['x'\] must be an array"),
]
VALUES = [
    ({"query": Q[0, 0]}, r"query must have shape \(..., queries, heads, head_dim\)"),
    ({"key": K[0, 0]}, r"key must have shape \(..., keys, kv_heads, head_dim\)"),
    ({"value": V[0, 0]}, r"value must have shape \(..., keys, kv_heads, value_dim\)"),
    ({"key": K[:1], "value": V[:1]}, r"key must have the leading axes and the head_dim of query, .* got \(1, "),
    ({"key": K[..., :7]}, "key must have the leading axes and the head_dim of query"),
    ({"value": V[:, 1:]}, "value must have the axes of key but for the last"),
    ({"value": V[..., :0]}, "head_dim and value_dim must be at least 1"),
    ({"query": Q[:, :, :3]}, "the heads of query must be a multiple of the heads of key, got 3 and 2"),
    (
        {"key": K[:, :, :0], "value": V[:, :, :0]},
        "the heads of query must be a multiple of the heads of key, got 4 and 0",
    ),
    ({"bias": lambda i, j: pe.alibi(i, j, 3)}, r"bias of shape \(3, 11, 13\) must broadcast to a tile .*" + TILE),
    ({"bias": lambda i, j: jnp.ones((11, 13)), "block_size": 4}, r"bias of shape .*\(2, 4, 4, 4\)"),
    ({"block_size": 0}, "block_size must be at least 1, got 0"),
    (
        {"scale": np.ones(3, FLOAT32)},
        r"scale of shape \(3,\) must broadcast to query without head_dim, shape \(2, 11, 4\)",
    ),
    ({"window": (-1, None)}, r"window\[0\] must be at least 0, got -1"),
    ({"window": (None, -2)}, r"window\[1\] must be at least 0, got -2"),
    ({"logits_soft_cap": 0}, "logits_soft_cap must be positive"),
    ({"logits_soft_cap": 1.0005e30}, "logits_soft_cap must be from 1e-30 to 1e30"),
    ({"logits_soft_cap": 9.995e-31}, "logits_soft_cap must be from 1e-30 to 1e30"),
    ({"sinks": np.ones(3, FLOAT32)}, r"sinks must have shape \(heads,\) = \(4,\), got \(3,\)"),
    ({"mask": MASK[:, 0, 0]}, rf"mask must have .* {TILE}, got .*13\); for \(batch, keys\) pass mask\[:, None, None"),
    ({"mask": MASK[:, :2]}, rf"mask must have the axes \(..., heads, queries, keys\), .* {TILE}, got .* 13\)$"),
    ({"mask": MASK[None]}, r"mask must have the axes .* got \(1, 2, 4, 11, 13\)$"),
    (NO_POSITIONS | {"query_positions": QUERY_AT}, "query_positions and key_positions must be given together"),
    ({"key_segments": KEY_AT}, "query_segments and key_segments must be given together"),
    ({"key_order": KEY_AT, "causal": True}, "query_order and key_order must be given together"),
    (NO_POSITIONS | {"causal": True}, POSITIONS_MISSING),
    (NO_POSITIONS | {"bias": pe.alibi}, POSITIONS_MISSING),
    ({"query_positions": QUERY_AT[1:]}, r"query_positions must have shape \(..., 11\), got \(10,\)"),
    ({"key_positions": KEY_AT[None, None]}, "key_positions of shape .* must broadcast to key without heads"),
    (
        {"query_order": QUERY_AT, "key_order": KEY_AT},
        "causal must be True if query_order and key_order are given, got False",
    ),
    (WITH_DATA | {"bias": None}, "bias must be given with query_data or key_data, got None"),
    (
        WITH_DATA | {"query_data": FLOAT32(QUERY_AT)},
        r"query_data must begin with .* \(2, 11, 4\), where all but 11 may",
    ),
    (WITH_DATA | {"query_data": np.ones((1, 1, 1), FLOAT32)}, r"query_data must begin with .* got \(1, 1, 1\)"),
    (
        WITH_DATA | {"key_data": (K, np.ones((2, 13, 4), FLOAT32))},
        r"key_data\[1\] must begin with .* key .*\(2, 13, 2\)",
    ),
    ({"implementation": "flash"}, r"implementation must be one of \('xla', 'mosaic_gpu'\), got 'flash'"),
]
CASES = [(TypeError, *case) for case in TYPES] + [(ValueError, *case) for case in VALUES]


@pytest.mark.parametrize(("error", "change", "match"), CASES, ids=[match for *_, match in CASES])
def test_wrong_arguments_are_rejected_by_name(error, change, match):
    with pytest.raises(error, match=f"^attention: {match}"):
        pe.attention(**{"query": Q, "key": K, "value": V} | POSITIONS | change)


# Positions that return

LAST = np.iinfo(np.int32).max  # the position of empty slots
RETURNS = {  # positions of queries, and of keys
    "packed, a row of two": ([[0, 1, 2, 3], [0, 1, 0, 1]],) * 2,
    "padding on the right": ([0, 1, 2, 0, 0],) * 2,
    "a tree of drafts": ([5, 6], [0, 1, 2, 3, 4, 5, 6, 5, 6]),
    "a step in a packed row": ([2], [0, 1, 2, 0, 1, 2, LAST, LAST]),
    "two slots of a token": ([5], [5, LAST, 5]),
    "where differences wrap": ([LAST - 1], [LAST - 1, -LAST, LAST - 1]),
    "at the first and the last position that are seen": ([4], [4, 1, 4]),
    "seen by some row": ([[0], [4]], [4, 5, 4]),
}
DOES_NOT_RETURN = {  # positions of queries, and of keys
    "far apart": ([-(2**31), 0, LAST - 1],) * 2,
    "a ring": ([13], [8, 9, 10, 11, 12, 13, 6, 7]),
    "a ring of several laps, chunks and rejected drafts": ([12, 13], [8, 9, 10, 11, 12, 13, 14, 15, 4, 5, 6, 7]),
    "a ring that fills, in a batch": ([[2], [9]], [[0, 1, 2, LAST], [8, 9, 6, 7]]),
    "sinks and a ring": ([9], [0, 1, 8, 9, 6, 7]),
    "pages": ([9], [4, 5, 6, 7, 0, 1, 2, 3, 8, 9, LAST, LAST]),
    "zigzag, an image inside a chunk": ([0, 1, 1, 6, 7], [0, 1, 1, 6, 7, 2, 3, 4, 5]),
    "striped": ([0, 2, 4, 6], [0, 2, 4, 6, 1, 3, 5, 7]),
    "backwards": (range(8)[::-1],) * 2,
    "padding on the left": ([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]],) * 2,
    "padding on the left, and empty slots": ([[LAST, 0, 1], [0, 1, 2]], [[LAST, 0, 1, LAST], [0, 1, 2, LAST]]),
    "remainders that are equal": ([9999], [0, 5000, 1, 64, 2, 128]),
    "an image at one position": ([0, 1, 1, 1, 2],) * 2,
    "what no query sees": ([3], [0, 1, 2, 3, 7, 8, 7]),
    "no key": ([3], []),
    "no query": ([], [0, 1, 0]),
}
BY_POSITION = [{"causal": True}, {"window": (None, 0)}, {"window": (2, 3)}]


def attend(queries, keys, **options):
    """Traces a call at these positions, which checks them: they are concrete in a trace too."""
    q, k = (jax.ShapeDtypeStruct((2, np.shape(p)[-1], 2, 4), FLOAT32) for p in (queries, keys))
    where = {"query_positions": np.int32(queries), "key_positions": np.int32(keys)}
    return jax.eval_shape(lambda q, k: pe.attention(q, k, k, **where | options), q, k)


@pytest.mark.parametrize("name", RETURNS)
def test_a_position_that_returns_is_rejected(name):
    match = r"^attention: key_positions must not return to .* got -?\d+ twice in a row of keys: pass query_segments.*"
    for options in BY_POSITION:
        # orders are in place of a causal mask, so a window alone is not offered them
        remedy = "orders" if options.get("causal") else "mask of queries and keys$"
        with pytest.raises(ValueError, match=match + remedy):
            attend(*RETURNS[name], **options)


@pytest.mark.parametrize("name", DOES_NOT_RETURN)
def test_caches_shards_padding_and_images_do_not_return(name):
    for options in BY_POSITION:
        attend(*DOES_NOT_RETURN[name], **options)


PACKED = np.int32([0, 1, 2, 3, 0, 1, 2, 3])
SEGMENTS = np.int32([0] * 4 + [1] * 4)
MAY_SEPARATE = {  # what is in data and orders is not read
    "segments": {"query_segments": SEGMENTS, "key_segments": SEGMENTS},
    "a mask of queries and keys": {"mask": np.equal.outer(SEGMENTS, SEGMENTS)[None, None]},
    "a mask that hides what returns": {"mask": np.arange(8)[None, None, None] < 4},
    "slots as orders": {"query_order": np.arange(8), "key_order": np.arange(8)},
    "positions as orders": {"query_order": PACKED, "key_order": PACKED},
    "data": {"query_data": np.ones((1, 8, 1), FLOAT32), "bias": lambda i, j, a, b: jnp.zeros((2, 8, 8))},
}


@pytest.mark.parametrize("name", MAY_SEPARATE)
def test_positions_may_return_beside_options_that_may_separate_documents(name):
    attend(PACKED, PACKED, causal=True, **MAY_SEPARATE[name])


def test_a_mask_of_keys_or_heads_that_hides_no_key_separates_nothing():
    """The second hides all keys from one head, and none from the other."""
    for mask in (np.ones((1, 1, 1, 8), bool), np.array([False, True])[None, :, None, None]):
        with pytest.raises(ValueError, match="key_positions must not return"):
            attend(PACKED, PACKED, causal=True, mask=mask)


def test_only_keys_that_a_mask_or_window_shows_are_checked():
    """Traced positions are not checked."""
    for queries, keys, options in (
        (PACKED, PACKED, {}),
        (PACKED, PACKED, {"window": (2, None)}),
        ([9], [0, 1, 0, 1, 8, 9], {"window": (2, 0)}),
        ([9], [6, 8, 6, 9], {"window": (2, 0)}),
        ([5], [6, 4, 6, 5], {"causal": True}),
    ):
        attend(queries, keys, **options)
    with pytest.raises(ValueError, match="got 7 twice"):  # the furthest that the window shows
        attend([9], [7, 8, 7, 9], window=(2, 0))
    q, k = Q[:, :8], K[:, :8]
    jax.eval_shape(lambda p: pe.attention(q, k, k, causal=True, query_positions=p, key_positions=p), PACKED)


def test_times_return_if_their_ranks_do():
    """Flax layers may pass times (floats) as positions. Over times a window counts tokens, so it hides none here."""

    def check(queries, keys):
        parser.reject_returning_positions(queries, keys, None, 0, "times", "this")

    check(FLOAT32([7]), FLOAT32([0, 0.5, 0.5, 7]))
    with pytest.raises(ValueError, match="times must not return .* pass this"):
        check(FLOAT32([7]), FLOAT32([0, 0.5, 0.25, 0.5, 7]))
