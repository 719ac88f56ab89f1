"""`positional_attention`: attention at positions, in both stacks, by Flax's function and by `posenc_jax.attention`.

- It computes softmax(rotated query · rotated key / √d + biases) · value, over the keys that the mask shows, as float64.
- Flax's function gets the bits of `rotary`, the sum of all biases, and every other argument that a layer passes.
- Positions are never guessed: the caller gives them, or they are counted, or they are the slots of Flax's cache.
- In a layer, decoding step by step equals the whole sequence, and a packed document equals the document alone. The
  parameters of rotations and biases are among the layer's.
- The attention_fn is a value: equal settings make equal values. test_what_positional_attention_rejects.py tests errors.
"""

import copy
import functools
import inspect
import pickle
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posenc_jax as pe
import posenc_jax.linen as linen
import posenc_jax.nnx as nnx_modules
from helpers.closeness import assert_within
from helpers.modules import drawn
from helpers.slow import slow
from oracles import attention as oracle_attention
from oracles import biases as oracle_biases
from oracles.attention import dense, may_see
from oracles.biases import softplus
from oracles.rotations import rope, rotate_by

RNG = np.random.default_rng(7)
Q, K, V = RNG.normal(size=(3, 2, 6, 2, 8)).astype(np.float32)  # batch, seq, heads, head_dim
X = RNG.normal(size=(2, 6, 16)).astype(np.float32)
RNG_KEY = np.uint32([0, 0])
STACKS = {"nnx": nnx_modules, "linen": linen}
BOTH = pytest.mark.parametrize("stack", STACKS)
TILES = functools.partial(pe.attention, block_size=4)
SegmentMask = nnx_modules.SegmentMask

# Positions, or times, of six tokens.
COUNTED, MIXED = np.arange(6), np.array([3, 1, 4, 0, 5, 2])
FAR = np.array([3, 4, 5, 6, 7, 2_000_000_000])
EACH_ROW = np.array([[0, 1, 2, 3, 4, 5], [9, 8, 7, 3, 1, 12]])
RESTARTED = np.int32([[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 1]])
TIMES = np.float32([0, 0.5, 0.5, 2.25, 7, 100])
ROW_TIMES = np.stack([TIMES, TIMES[::-1] / 3])
GRID = np.stack([COUNTED // 3, COUNTED % 3], -1)
SEGMENTS = np.int32([[1, 1, 1, 2, 2, -1], [4, 4, 4, 4, 0, 0]])
OTHERS = np.int32([[4, 4, 0, 0, 0, 4], [4, 0, 4, 0, 4, 0]])
NOT_PADDING = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 1, 1]], bool)
# Masks that differ by query, and by head too; a query sees at least its own key, since Flax averages all otherwise.
BY_QUERY, BY_HEAD = (RNG.random(shape) < 0.6 for shape in ((2, 1, 6, 6), (1, 2, 6, 6)))
BY_QUERY, BY_HEAD = (x | np.eye(6, dtype=bool) for x in (BY_QUERY, BY_HEAD))
CAUSAL = np.tril(np.ones((1, 1, 6, 6), bool))
FREQUENCIES_OF_HEADS = np.float32(RNG.uniform(0.1, 1, (2, 1, 4)))  # heads, axes, pairs
GRID_ANGLES = np.concatenate([GRID[:, :1] * [1, 0.01], GRID[:, 1:] * [1, 0.01]], -1)  # angles of `axial`


@pytest.fixture
def as_flax():
    """Allows what Flax's own layers need: adding biases of other ranks and dtypes."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


# Biases and rotations of the cases. Biases take arrays of JAX and of NumPy.

SLOPES = np.float32([0.2, 0.7])[:, None, None]


def distance(i, j):
    """A bias of positions that are one number per token."""
    return -SLOPES * abs(i[..., None, :, None] - j[..., None, None, :]).astype(np.float32)


def manhattan(i, j):
    """A bias of positions that are coordinates (..., tokens, 2)."""
    steps = abs(i[..., :, None, :] - j[..., None, :, :]).sum(-1)
    return -SLOPES * steps[..., None, :, :].astype(np.float32)


def without_batch(i, j):
    """A bias that only takes positions without a batch."""
    return -((i[:, None] - j) ** 2 / np.float32(10))[None] * np.ones((2, 1, 1), np.float32)


def content_alone(i, j, query, key):
    """A bias that ignores positions: the first features of the query times the last features of the key."""
    einsum = jnp.einsum if isinstance(query, jax.Array) else np.einsum
    return einsum("...qhd,...khd->...hqk", query[..., :4], key[..., 4:]) / 9


def content_and_coordinates(i, j, query, key):
    """A bias of the query and the coordinates of the key."""
    module = jnp if isinstance(query, jax.Array) else np
    rows = module.moveaxis(query[..., :2], -2, -3)  # (..., heads, queries, 2)
    return (rows @ module.swapaxes(j[..., None, :, :].astype(np.float32), -1, -2)) / 8


def rotate_heads(query, key, i, j):
    """A rotation that is a function: each head has frequencies of its own."""
    return tuple(pe.rotary(x, p, FREQUENCIES_OF_HEADS, head_axis=-2) for x, p in ((query, i), (key, j)))


def roped(i, j=None, **settings):
    """Q and K, rotated at positions i and j in float64."""
    return rope(Q, i, **settings), rope(K, i if j is None else j, **settings)


def rotated_heads(i, j):
    """What `rotate_heads` makes of Q and K, in float64."""
    return tuple(rotate_by(x, p[:, None, None] * FREQUENCIES_OF_HEADS[:, 0], "half") for x, p in ((Q, i), (K, j)))


class Case(NamedTuple):
    """Settings of `positional_attention`, arguments of a call, and what the float64 oracle gets instead."""

    settings: dict[str, Any]
    call: dict[str, Any]
    vectors: Any = (Q, K)  # for the oracle: rotated query and key
    bias: Any = 0  # for the oracle
    seen: Any = True  # for the oracle: the mask
    bound: dict[str, Any] = {}  # noqa: RUF012  # options that are bound to `posenc_jax.attention`
    options: dict[str, Any] = {}  # noqa: RUF012  # for the oracle: the same options


PARTIAL = {"width": 4, "layout": "interleaved", "part": "last"}
ROPE, BIAS = {"rotation": 8}, {"bias": distance}
BY_INDEX = BIAS | {"bias_positions": "index"}
OF_GRID = {"rotation": pe.axial(8, 2)}
AT_GRID = tuple(rotate_by(x, GRID_ANGLES[:, None], "half") for x in (Q, K))
NEAR, BENT = {"window": (2, 0)}, {"logits_soft_cap": 2.0, "sinks": np.float32([0.5, -1])}
IN_SEGMENTS = may_see(COUNTED, COUNTED, segments=(SEGMENTS, SEGMENTS))
IN_OTHERS = may_see(COUNTED, COUNTED, segments=(OTHERS, SEGMENTS[1:]))


def at(positions, keys=None, **more):
    """The arguments of a call at these positions of queries and, if given, of keys."""
    return {"input_positions": positions} | ({} if keys is None else {"key_positions": keys}) | more


CASES = {
    "positions from zero": Case(ROPE, {}, roped(COUNTED)),
    "positions of each row and of other keys": Case(ROPE, at(EACH_ROW, COUNTED + 2), roped(EACH_ROW, COUNTED + 2)),
    "the last features": Case({"rotation": 4, "part": "last"}, {}, roped(COUNTED, width=4, part="last")),
    "neighbouring features": Case(
        {"rotation": pe.geometric(6, 50.0), "layout": "interleaved"},
        at(MIXED),
        roped(MIXED, width=6, base=50.0, layout="interleaved"),
    ),
    "a module": Case({"rotation": "RotaryEncoding"}, at(MIXED, COUNTED), roped(MIXED, COUNTED, **PARTIAL)),
    "a bias of positions and one of contents": Case(
        ROPE | BIAS | {"content_bias": content_alone},
        at(MIXED),
        roped(MIXED),
        distance(MIXED, MIXED) + content_alone(0, 0, Q, K),
    ),
    "causal by the index": Case(ROPE | BIAS, at(MIXED, is_causal=True), roped(MIXED), distance(MIXED, MIXED), CAUSAL),
    "causal by the position": Case(
        ROPE | BIAS, at(MIXED), roped(MIXED), distance(MIXED, MIXED), may_see(MIXED, MIXED, True), {"causal": True}
    ),
    "a mask of queries and keys": Case(ROPE, {"mask": BY_QUERY}, roped(COUNTED), 0, BY_QUERY),
    "a mask that all rows share": Case(BIAS, {"mask": BY_QUERY[:1]}, (Q, K), distance(COUNTED, COUNTED), BY_QUERY[:1]),
    "keys that are padding": Case(
        ROPE, {"mask": NOT_PADDING[:, None, None]}, roped(COUNTED), 0, NOT_PADDING[:, None, None]
    ),
    "a mask of each head, in floats": Case(ROPE, {"mask": np.float32(BY_HEAD)}, roped(COUNTED), 0, BY_HEAD),
    "segments": Case(ROPE, {"mask": SegmentMask(SEGMENTS)}, roped(COUNTED), 0, IN_SEGMENTS),
    "segments of other keys": Case(
        BIAS, {"mask": SegmentMask(OTHERS, SEGMENTS[1:])}, (Q, K), distance(COUNTED, COUNTED), IN_OTHERS
    ),
    "packed documents": Case(
        BIAS,
        at(RESTARTED, mask=SegmentMask(SEGMENTS), is_causal=True),
        (Q, K),
        distance(RESTARTED, RESTARTED),
        IN_SEGMENTS & CAUSAL,
    ),
    "a grid, a bias of the index": Case(OF_GRID | BY_INDEX, at(GRID), AT_GRID, distance(COUNTED, COUNTED)),
    "grids, a bias of coordinates": Case(
        OF_GRID | {"bias": manhattan}, at(np.stack([GRID] * 2), is_causal=True), AT_GRID, manhattan(GRID, GRID), CAUSAL
    ),
    "coordinates without a rotation": Case(
        {"bias": manhattan, "content_bias": content_and_coordinates, "num_axes": 2},
        at(GRID),
        (Q, K),
        manhattan(GRID, GRID) + content_and_coordinates(GRID, GRID, Q, K),
    ),
    "times": Case(ROPE | BIAS, at(TIMES, is_causal=True), roped(TIMES), distance(TIMES, TIMES), CAUSAL),
    "times of each row": Case(ROPE | BIAS, at(ROW_TIMES), roped(ROW_TIMES), distance(ROW_TIMES, ROW_TIMES)),
    "times, a bias of the index": Case(
        ROPE | BY_INDEX, at(TIMES[::-1]), roped(TIMES[::-1]), distance(COUNTED, COUNTED)
    ),
    "a bias of the index at positions": Case(BY_INDEX, at(COUNTED * 7, COUNTED), (Q, K), distance(COUNTED, COUNTED)),
    "a bias of the index beside a window, a cap and sinks": Case(
        BY_INDEX,
        at(MIXED),
        (Q, K),
        distance(COUNTED, COUNTED),
        may_see(MIXED, MIXED, **NEAR),
        NEAR | BENT,
        {"cap": 2.0, "sinks": [0.5, -1]},
    ),
    "a bias without a batch, of the index": Case(
        {"bias": without_batch, "bias_positions": "index"}, at(COUNTED * 3), (Q, K), without_batch(COUNTED, COUNTED)
    ),
    "frequencies of each head": Case(
        {"rotation": rotate_heads}, at(COUNTED + 3, COUNTED), rotated_heads(COUNTED + 3, COUNTED)
    ),
    "a function without positions": Case({"rotation": rotate_heads}, {}, rotated_heads(COUNTED, COUNTED)),
}
# Faults that these cases find, default cases find too.
SLOW = {
    "positions of each row and of other keys",
    "the last features",
    "neighbouring features",
    "a mask of queries and keys",
    "a mask that all rows share",
    "times, a bias of the index",
    "a bias of the index at positions",
    "a function without positions",
}
IN_LINEN_TOO = ("a module", "segments", "a bias of positions and one of contents", "frequencies of each head")


@pytest.mark.parametrize("name", [slow(name) if name in SLOW else name for name in CASES])
def test_is_attention_in_float64(name, as_flax):
    """By tiles, and by Flax's function unless the case binds options to tiles; in Linen too where its code differs."""
    case, attends = CASES[name], {}
    for stack in STACKS if name in IN_LINEN_TOO else ["nnx"]:
        settings = dict(case.settings)
        if settings.get("rotation") == "RotaryEncoding":
            settings["rotation"] = STACKS[stack].RotaryEncoding(4, layout="interleaved", head_axis=-2, part="last")
        make = functools.partial(STACKS[stack].positional_attention, **settings)
        attends[f"{stack} in tiles"] = make(attention=functools.partial(TILES, **case.bound))
        if not case.bound:
            attends[stack] = make()
    got = jax.jit(lambda *qkv: {way: attend(*qkv, **case.call) for way, attend in attends.items()})(Q, K, V)
    want = dense(*case.vectors, V, case.bias, case.seen, **case.options).y
    for way, y in got.items():
        assert_within(y, want, 2e-6, against=f"float64, {way}")


@BOTH
def test_pope_is_attention_of_polar_vectors(stack, as_flax):
    """PoPE doubles the width of queries and keys, not of values. Scores are divided by √8, of the narrow head_dim."""
    phase = np.float32(RNG.uniform(-7, 1, (2, 8)))

    def polar(x, positions, phase=0.0):
        """PoPE's vectors in float64."""
        angles = positions[..., None, None] * 10_000.0 ** (-np.arange(8) / 8) + phase
        return np.concatenate([softplus(x) * np.cos(angles), softplus(x) * np.sin(angles)], -1)

    def attended(attention, *qkv):
        """The result of a layer's call, by this function or, if None, by Flax's."""
        call = at(EACH_ROW, EACH_ROW - 5, mask=BY_QUERY)
        if stack == "linen":
            attend = linen.positional_attention(rotation=linen.PoPE(2, 16, head_axis=-2), attention=attention)
            return attend.apply({"params": {"rotation": {"phase": phase}}}, *qkv, **call)
        pope = nnx_modules.PoPE(2, 16, head_axis=-2, phase_init=lambda *_: phase, rngs=nnx.Rngs(0))
        return nnx_modules.positional_attention(rotation=pope, attention=attention)(*qkv, **call)

    scales = {"Flax": 8**-0.5, "tiles": 8**-0.5, "tiles of a scale": 0.5}
    functions = None, TILES, functools.partial(TILES, scale=0.5)
    got = jax.jit(lambda *qkv: [attended(attention, *qkv) for attention in functions])(Q, K, V)
    keys = polar(K, EACH_ROW - 5, np.clip(phase, -2 * np.pi, 0))
    for (way, scale), y in zip(scales.items(), got, strict=True):
        want = dense(polar(Q, EACH_ROW), keys, V, 0, BY_QUERY, scale).y
        assert_within(y, want, 2e-6, against=f"float64, {way}")


@pytest.mark.parametrize("tiles", [False, True])
def test_keys_may_have_fewer_heads(tiles, as_flax):
    if not tiles and "num_kv_heads" not in inspect.signature(nnx.MultiHeadAttention.__init__).parameters:
        pytest.skip("this Flax groups no queries (0.12.7 does)")
    attend = nnx_modules.positional_attention(rotation=8, attention=TILES if tiles else None)
    query = np.concatenate([Q, -Q], 2)
    want = dense(rope(query, COUNTED), rope(K, COUNTED), V, 0, CAUSAL).y
    got = jax.jit(functools.partial(attend, mask=CAUSAL))(query, K, V)
    assert_within(got, want, 2e-6, against="float64")


DROPOUT = {"dropout_rng": RNG_KEY, "dropout_rate": 1e-9, "deterministic": False}  # of so low a rate that nothing drops


@pytest.mark.parametrize(
    ("stack", "dropout"),
    [("nnx", {}), ("nnx", DROPOUT), slow("linen", {}), ("linen", DROPOUT)],
    ids=["nnx-0", "nnx-3", "linen-0", "linen-3"],
)
def test_16_bit_scores_take_a_float32_bias(stack, dropout):
    """Under JAX's strict promotion, which these tests set. With dropout, Flax adds the bias itself."""
    q, k, v = (x.astype(jnp.bfloat16) for x in (Q, K, V))
    attend = STACKS[stack].positional_attention(bias=distance)
    got = jax.jit(functools.partial(attend, **dropout))(q, k, v)
    assert got.dtype == jnp.bfloat16
    want = dense(*(x.astype(np.float64) for x in (q, k, v)), distance(COUNTED, COUNTED)).y
    assert_within(got, want, 2**-5, against="float64")
    assert jax.eval_shape(attend, *(x.astype(np.float16) for x in (Q, K, V))).dtype == np.float16


# What Flax's function gets.


@pytest.fixture
def what_flax_gets(monkeypatch):
    """A function that calls a new attention_fn, and returns the arguments of `nnx.dot_product_attention`."""
    arguments = lambda query, key, value, *args, **kwargs: (query, key, value, args, kwargs)  # noqa: E731
    monkeypatch.setattr(nnx, "dot_product_attention", arguments)

    def call(*arrays, rotation=8, bias=None, content_bias=None, layout="half", part="first", **kwargs):
        settings = {"rotation": rotation, "bias": bias, "content_bias": content_bias, "layout": layout, "part": part}
        return nnx_modules.positional_attention(**settings)(*arrays, **kwargs)

    return call


def test_flax_gets_the_bits_of_rotary_and_everything_else(what_flax_gets):
    f, settings = pe.geometric(6, 77.0), {"layout": "interleaved", "part": "last"}
    call = settings | at(FAR, FAR - 3, mask=CAUSAL, new_argument=3)
    query, key, value, args, kwargs = what_flax_gets(Q, K, V, "bias", rotation=f, **call)
    np.testing.assert_array_equal(query, pe.rotary(Q, FAR, f, head_axis=-2, **settings))
    np.testing.assert_array_equal(key, pe.rotary(K, FAR - 3, f, head_axis=-2, **settings))
    assert value is V and args == ("bias", CAUSAL) and kwargs == {"new_argument": 3}


SLOTS = CAUSAL[..., 4:5, :]  # the mask that Flax's cache gives for a query in slot 4


# The numbers of queries and keys, the arguments of a call, and the positions of queries and keys that follow.
@pytest.mark.parametrize(
    ("queries", "keys", "call", "want"),
    [
        (6, 6, {}, (COUNTED, COUNTED)),
        (6, 6, at(FAR, mask=CAUSAL), (FAR, FAR)),
        (6, 6, at(FAR, COUNTED), (FAR, COUNTED)),
        slow(3, 6, at(FAR[:3], FAR), (FAR[:3], FAR)),
        (6, 1, at(FAR, FAR[:1]), (FAR, FAR[:1])),
        (1, 6, at(5, COUNTED), ([5], COUNTED)),
        (1, 6, at(4, mask=SLOTS), ([4], COUNTED)),
        (1, 6, at(np.array([[4]]), mask=SLOTS, is_causal=False), ([[4]], COUNTED)),
    ],
)
def test_positions_are_given_counted_or_slots_of_the_cache(queries, keys, call, want, what_flax_gets):
    """The rotation by a width, a bias, and a rotation by a function all get these positions."""
    i, j = map(np.array, want)
    arrays, found = (Q[:, :queries], K[:, :keys], V[:, :keys]), []

    def bias(*positions):
        found.append(positions)
        return np.zeros((1, 2, queries, keys), np.float32)

    def rotation(query, key, *positions):
        found.append(positions)
        return query, key

    query, key, *_ = what_flax_gets(*arrays, bias=bias, **call)
    np.testing.assert_array_equal(query, pe.rotary(arrays[0], i, head_axis=-2))
    np.testing.assert_array_equal(key, pe.rotary(arrays[1], j, head_axis=-2))
    what_flax_gets(*arrays, rotation=rotation, **call)
    for got in found:
        np.testing.assert_array_equal(got[0], i)
        np.testing.assert_array_equal(got[1], j)
    assert len(found) == 2


def test_biases_are_added_to_what_a_layer_gives(what_flax_gets):
    """A content_bias reads query and key as the layer projected them, neither rotated nor scaled."""
    from_layer, found = RNG.normal(size=(2, 1, 6)).astype(np.float32), []

    def content(*inputs):
        found.append(inputs)
        return np.full((2, 6, 6), 0.5, np.float32)

    call = {"bias": distance, "content_bias": content} | at(FAR, FAR - 3)

    def added(layer_bias):
        query, key, value, (bias, mask), kwargs = what_flax_gets(Q, K, V, layer_bias, CAUSAL, rotation=0, **call, new=1)
        assert query is Q and key is K and value is V and mask is CAUSAL and kwargs == {"new": 1}
        return bias

    layer_biases = from_layer, from_layer.astype(jnp.bfloat16)
    for layer_bias, bias in zip(layer_biases, jax.jit(lambda *each: [*map(added, each)])(*layer_biases), strict=True):
        summands = distance(FAR, FAR - 3), np.float64(0.5), layer_bias.astype(np.float64)
        assert bias.dtype == np.float32
        assert_within(bias, sum(summands)[None], 2**-22 * sum(map(np.abs, summands)), against="the sum")
    i, j, query, key = found[0]
    np.testing.assert_array_equal(i, FAR)
    np.testing.assert_array_equal(j, FAR - 3)
    assert query is Q and key is K
    what_flax_gets(Q, K, V, content_bias=content)
    assert found[-1][2] is Q and found[-1][3] is K


def test_a_single_key_needs_no_position():
    """Its weight is 1 at any position. So a cache of one slot, which looks like one key, gives the right result."""
    attend = nnx_modules.positional_attention(rotation=8)
    calls = {"none": {}, "the query's": at(9), "both": at(9, 0)}
    attended = jax.jit(lambda *qkv: {name: attend(*qkv, **call) for name, call in calls.items()})
    for name, got in attended(Q[:, :1], K[:, :1], V[:, :1]).items():
        np.testing.assert_array_equal(got, V[:, :1], name)


def test_linen_passes_on_all_that_its_own_function_takes(monkeypatch):
    """Linen asks `inspect.signature` which arguments a function takes, and silently leaves out the others."""
    own, given = inspect.signature(nn.dot_product_attention).parameters, {}
    attend = linen.positional_attention(rotation=8)
    for function in (attend, functools.partial(attend, input_positions=np.arange(6))):
        assert set(inspect.signature(function).parameters) == {*own, "input_positions", "key_positions"}
    spy = functools.wraps(nn.dot_product_attention)(lambda *qkv, **kwargs: given.update(kwargs) or qkv[2])
    monkeypatch.setattr(nn, "dot_product_attention", spy)
    settings = {"dropout_rate": 0.5, "precision": "highest"}
    layer = nn.MultiHeadDotProductAttention(2, attention_fn=attend, deterministic=True, **settings)
    jax.eval_shape(lambda: layer.init(RNG_KEY, X, mask=CAUSAL))
    assert {name: given[name] for name in settings} == settings


def test_tiles_take_what_layers_always_pass():
    """Options of layers that change nothing do not reach tiles: for instance dropout that is deterministic.

    A bias of the index gets the indices as positions, if nothing masks by positions: a kernel then needs no data.
    """
    returns_options = lambda *qkv, **options: options  # noqa: E731
    attend = nnx_modules.positional_attention(rotation=8, attention=returns_options)
    options = {"dropout_rng": 1, "broadcast_dropout": False, "dtype": jnp.float32, "precision": None, "module": None}
    assert attend(Q, K, V, dropout_rate=0.5, deterministic=True, **options) == {}
    assert attend(Q, K, V, dropout_rate=0.0, is_causal=True, **options) == {"causal": True}
    assert attend(*map(np.float64, (Q, K, V))) == {}
    assert linen.positional_attention(rotation=8, attention=returns_options)(Q, K, V, force_fp32_for_softmax=True) == {}
    options = nnx_modules.positional_attention(**BY_INDEX, attention=returns_options)(Q, K, V, **at(COUNTED * 7))
    assert "query_data" not in options
    np.testing.assert_array_equal(options["query_positions"], COUNTED)


# A layer of Flax, in both stacks, with the same parameters.


def bias_setting(stack, name):
    """The setting of `positional_attention` for a module of this name: a bias, a content_bias, or none."""
    rngs = {"rngs": nnx.Rngs(0)} if stack == "nnx" else {}
    if name == "T5Bias":
        return {"bias": STACKS[stack].T5Bias(2, **rngs)}
    settings = {"source": "key", "scale": 0.7, "num_heads": 2, "first": -3, "out_of_range": "zeros"}
    return {"content_bias": STACKS[stack].ContentBias(6, 8, **settings, **rngs)} if name else {}


def in_float64(params, x, positions, seen=True):
    """The result of a layer with these parameters: RoPE, and T5's bias or `ContentBias` if the layer has one."""
    of_biases = params.get("attention_fn", {})
    _, d, after = oracle_biases.exact_tile(*2 * (np.asarray(positions),))
    bias = oracle_biases.t5(d, after, of_biases["bias"]["embedding"]) if "bias" in of_biases else 0
    if "content_bias" in of_biases:
        table = of_biases["content_bias"]["embedding"]
        rows = oracle_biases.content_rows(positions, positions, len(table), first=-3)
        bias = lambda q, k: 0.7 * oracle_biases.content(rows, k, table, of_keys=True)  # noqa: E731
    return oracle_attention.layer(params, x, positions, bias, seen)


def layer_of_nnx(name=None, **settings):
    """A layer with a bias of this name and random parameters, as a graphdef and its state."""

    def make():
        attend = nnx_modules.positional_attention(**settings, **bias_setting("nnx", name))
        return nnx.MultiHeadAttention(2, 16, attention_fn=attend, decode=False, rngs=nnx.Rngs(0))

    return nnx.split(drawn(make, RNG, 0.25))


def call_nnx(layer, x, positions, **kwargs):
    """Calls a layer with input_positions; if this Flax's layer does not take them, they are bound to its function."""
    if "input_positions" in inspect.signature(type(layer).__call__).parameters:
        return layer(x, input_positions=positions, **kwargs)
    attention_fn = layer.attention_fn
    layer.attention_fn = functools.partial(attention_fn, input_positions=positions)
    y = layer(x, **kwargs)
    layer.attention_fn = attention_fn
    return y


@pytest.mark.parametrize("name", [slow(None), "T5Bias", "ContentBias"])
def test_layers_of_both_stacks_are_that_in_float64(name, as_flax):
    """Both stacks have the same parameters and gradients. Gradients by a bias are those of differences in float64."""
    graphdef, state = layer_of_nnx(name, rotation=8)
    params = nnx.to_pure_dict(state)
    attend = linen.positional_attention(rotation=8, **bias_setting("linen", name))
    linen_layer = nn.MultiHeadDotProductAttention(2, attention_fn=attend)
    types = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)  # noqa: E731
    assert types(jax.eval_shape(linen_layer.init, RNG_KEY, X)) == {"params": types(params)}
    places = np.array([0, 1, 2, 5, 1, 30])

    @jax.jit
    def compute(state, params):
        loss = lambda y: (jnp.sum(jnp.sin(y)), y)  # noqa: E731
        layer = nnx.merge(graphdef, state)
        by_nnx, y = nnx.grad(lambda m: loss(m(X, mask=CAUSAL)), has_aux=True)(layer)
        by_linen = jax.grad(lambda p: loss(linen_layer.apply({"params": p}, X, mask=CAUSAL)), has_aux=True)(params)
        return y, call_nnx(layer, X, places), nnx.to_pure_dict(by_nnx), by_linen

    got, placed, gradients, (slopes_of_linen, of_linen) = compute(state, params)
    want = in_float64(params, X, COUNTED, CAUSAL)
    assert_within(got, want, 2e-6, against="float64")
    assert_within(of_linen, want, 2e-6, against="float64, Linen")
    assert_within(placed, in_float64(params, X, places), 2e-6, against="float64 at other positions")
    jax.tree.map(lambda a, b: assert_within(a, b, 1e-5, against="Linen's derivative"), gradients, slopes_of_linen)
    if name is None:
        return
    of_bias = params["attention_fn"]
    step = jax.tree.map(lambda w: RNG.normal(size=w.shape), of_bias)

    def loss_in_float64(h):
        moved = jax.tree.map(lambda w, v: w + h * v, of_bias, step)
        return np.sum(np.sin(in_float64(params | {"attention_fn": moved}, X, COUNTED, CAUSAL)))

    slope = (loss_in_float64(1e-4) - loss_in_float64(-1e-4)) / 2e-4
    along = sum(map(np.vdot, *map(jax.tree.leaves, (gradients["attention_fn"], step))))
    assert abs(slope) > 0.1
    assert_within(along, slope, 1e-4 * abs(slope), against="differences in float64")


# Settings: attention by Flax's function, the same with a bias of the index, and attention in tiles.
WAYS = {"Flax": {}, "index": {"bias_positions": "index"}, "tiles": {"attention": TILES}}
DEFAULT = ("T5Bias", "index"), ("ContentBias", "Flax"), ("ContentBias", "tiles")  # each bias, and each way


@pytest.mark.parametrize(
    ("name", "way"),
    [
        (name, way) if (name, way) in DEFAULT else slow(name, way)
        for name in (None, "T5Bias", "ContentBias")
        for way in WAYS
    ],
)
def test_steps_with_a_cache_are_the_whole_sequence(name, way, as_flax):
    """Each step with one token, in both stacks, is a row of the whole sequence in float64."""
    settings = ROPE | WAYS[way]
    graphdef, state = layer_of_nnx(name, **settings)
    params = nnx.to_pure_dict(state)
    whole = in_float64(params, X, COUNTED, CAUSAL)
    of_biases = params.pop("attention_fn", {})

    class Model(nn.Module):
        """A module of Linen that makes a bias, which becomes its submodule, and binds positions to a layer."""

        @nn.compact
        def __call__(self, x, positions):
            attend = linen.positional_attention(**settings, **bias_setting("linen", name))
            attend = functools.partial(attend, input_positions=positions)
            return nn.MultiHeadDotProductAttention(2, decode=True, attention_fn=attend, name="layer")(x)

    def with_cache(state):
        layer = nnx.merge(graphdef, state)
        layer.init_cache(X.shape)
        return layer

    zeros = lambda tree: jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), tree)  # noqa: E731
    graphdef, empty_cache = nnx.split(nnx.eval_shape(with_cache, state))
    state = nnx.merge_state(zeros(empty_cache), state)
    shapes = jax.eval_shape(Model().init, RNG_KEY, X, COUNTED)
    cache = zeros(shapes["cache"])
    (of_bias,) = of_biases.values() or [None]
    params = {"layer": params} | {n: of_bias for n in shapes["params"] if n != "layer"}

    @jax.jit
    def step(state, cache, x, i):
        layer = nnx.merge(graphdef, state)
        of_nnx = call_nnx(layer, x, layer.cache_index[...], decode=True)
        of_linen, variables = Model().apply({"params": params, "cache": cache}, x, i, mutable=["cache"])
        return {"NNX": of_nnx, "Linen": of_linen}, nnx.state(layer), variables["cache"]

    for i in range(6):
        results, state, cache = step(state, cache, X[:, i : i + 1], np.array([i]))
        for stack, got in results.items():
            assert_within(got, whole[:, i : i + 1], 1e-6, against=f"float64, {stack}")


def test_packed_documents_are_as_if_alone(as_flax):
    """Outputs and gradients of a packed row by tiles are Flax's for each document. Positions need not restart."""
    settings, ids = {"rotation": 8, "bias": nnx_modules.ALiBi(2)}, np.int32([[5, 5, 5, 5, 2, 2]])
    graphdef, state = layer_of_nnx(**settings, attention=functools.partial(TILES, causal=True))
    of_flax, _ = layer_of_nnx(**settings)

    def in_tiles(state):
        return nnx.merge(graphdef, state)(X[:1], mask=SegmentMask(ids))

    def each_alone(state):
        layer = nnx.merge(of_flax, state)
        first, second = layer(X[:1, :4], mask=CAUSAL[..., :4, :4]), layer(X[:1, 4:], mask=CAUSAL[..., :2, :2])
        return jnp.concatenate([first, second], 1)

    @jax.jit
    def both(state):
        squares = lambda y: (jnp.sum(y**2), y)  # noqa: E731
        return [jax.grad(lambda s, f=f: squares(f(s)), has_aux=True)(state) for f in (in_tiles, each_alone)]

    (gradients, packed), (want_gradients, alone) = both(state)
    assert_within(packed, alone, 1e-6, against="each document alone")
    jax.tree.map(lambda a, b: assert_within(a, b, 1e-5, against="each document alone"), gradients, want_gradients)


def test_segments_join_the_mask_of_a_cache(as_flax):
    """Flax's layer makes the mask of its cache, and combines it with segments.

    The last of four steps of Linen's layer is row 3 of the whole sequence in NNX's layer.
    """
    ids = np.int32([[1, 1, 2, 2, 2, 0]])
    graphdef, state = layer_of_nnx(bias=nnx_modules.ALiBi(2))
    attend = functools.partial(linen.positional_attention(bias=linen.ALiBi(2)), input_positions=np.array([3]))
    layer = nn.MultiHeadDotProductAttention(2, decode=True, attention_fn=attend)
    cache = {name: np.zeros((1, 6, 2, 8), np.float32) for name in ("cached_key", "cached_value")}
    cache |= {"cache_index": np.int32(0)}

    @jax.jit
    def whole(state):
        mask = nnx.combine_masks(SegmentMask(ids), nnx.make_causal_mask(ids))
        return nnx.merge(graphdef, state)(X[:1], mask=mask)

    @jax.jit
    def step(params, cache, x, segments):
        variables, mask = {"params": params, "cache": cache}, linen.SegmentMask(segments, ids)
        return layer.apply(variables, x, mask=mask, mutable=["cache"])

    for n in range(4):
        last, found = step(nnx.to_pure_dict(state), cache, X[:1, n : n + 1], ids[:, n : n + 1])
        cache = found["cache"]
    assert_within(last, np.asarray(whole(state))[:, 3:4], 1e-5, against="the whole")


def test_layers_share_a_bias_that_is_made_outside_of_them():
    """There is one table of parameters for two layers."""

    class OfNNX(nnx.Module):
        def __init__(self):
            bias, rngs = bias_setting("nnx", "T5Bias"), nnx.Rngs(0)
            attends = (nnx_modules.positional_attention(**bias) for _ in range(2))
            self.layers = nnx.List([nnx.MultiHeadAttention(2, 16, attention_fn=f, rngs=rngs) for f in attends])

    class OfLinen(nn.Module):
        @nn.compact
        def __call__(self, x):
            bias = linen.T5Bias(2)
            for _ in range(2):
                x = nn.MultiHeadDotProductAttention(2, attention_fn=linen.positional_attention(bias=bias))(x)
            return x

    assert sum(path[-1] == "embedding" for path, _ in nnx.to_flat_state(nnx.state(nnx.eval_shape(OfNNX)))) == 1
    layers = {f"MultiHeadDotProductAttention_{i}" for i in range(2)}
    assert set(jax.eval_shape(OfLinen().init, RNG_KEY, X)["params"]) == {"T5Bias_0"} | layers


def test_linen_initialises_biases_of_tiles_and_trains_them():
    """Linen cannot initialise modules inside the loop over tiles. Gradients are those by Flax's function."""
    settings = bias_setting("linen", "T5Bias") | bias_setting("linen", "ContentBias")
    attend = linen.positional_attention(rotation=8, **settings, attention=TILES)
    params = jax.eval_shape(attend.init, RNG_KEY, Q, K, V)["params"]
    shapes = jax.tree.map(lambda x: x.shape, params)
    assert shapes == {"bias": {"embedding": (32, 2)}, "content_bias": {"embedding": (6, 2, 8)}}
    variables = {"params": jax.tree.map(lambda x: RNG.normal(size=x.shape).astype(x.dtype) / 4, params)}
    whole = linen.positional_attention(rotation=8, **settings)
    squares = lambda variables, module: jnp.sum(module.apply(variables, Q, K, V) ** 2)  # noqa: E731
    both = jax.jit(lambda v: [jax.value_and_grad(squares)(v, module) for module in (attend, whole)])
    got, want = jax.device_get(both(variables))
    within = lambda a, b: assert_within(a, b, 2e-5 * abs(b).max(), against="Flax's attention")  # noqa: E731
    jax.tree.map(within, got, want)


def test_a_layer_of_tiles_takes_less_memory_than_a_matrix_of_scores(as_flax):
    def made():
        causal = functools.partial(pe.attention, causal=True)
        attend = nnx_modules.positional_attention(rotation=16, bias=nnx_modules.ALiBi(2), attention=causal)
        return nnx.MultiHeadAttention(2, 32, attention_fn=attend, decode=False, rngs=nnx.Rngs(0))

    graphdef, state = nnx.split(nnx.eval_shape(made))
    x, ids = (jax.ShapeDtypeStruct((1, 8192, *tail), t) for tail, t in (((32,), jnp.float32), ((), jnp.int32)))
    packed = jax.jit(lambda state, x, ids: nnx.merge(graphdef, state)(x, mask=SegmentMask(ids)))
    program = packed.lower(state, x, ids).compile()
    assert program.memory_analysis().temp_size_in_bytes < 2 * 8192**2  # a fourth of float32 scores of two heads


# A layer has the attention_fn among its settings.


@BOTH
def test_equal_settings_make_equal_values_which_pickle(stack):
    make = STACKS[stack].positional_attention
    value = (lambda **settings: nnx.graphdef(make(**settings))) if stack == "nnx" else make
    one = value(rotation=8)
    assert one == value(rotation=pe.geometric(8)) and hash(one) == hash(value(rotation=pe.geometric(8)))
    others = {"part": "last"}, {"layout": "interleaved"}, {"bias": pe.alibi}, {"content_bias": pe.alibi}
    for other in ({"rotation": 4}, *others, {"attention": pe.attention}, {"bias_positions": "index"}):
        assert one != value(**{"rotation": 8} | other)
    assert pickle.loads(pickle.dumps(one)) == one == copy.deepcopy(one)
