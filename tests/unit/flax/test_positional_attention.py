"""The attention_fn of both stacks: positions are never guessed, and a cache gives what the whole sequence gives."""

import copy
import functools
import inspect
import itertools
import pickle

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posenc_jax as pe
import posenc_jax.linen as linen
import posenc_jax.nnx as nnx_modules
from helpers.biases import BIASES as every_bias
from helpers.closeness import assert_within
from helpers.modules import content_by_loops
from helpers.quick import quick
from helpers.tiers import slow, tiered
from oracles import attention
from oracles import biases as oracle_biases
from oracles.attention import dense
from oracles.biases import softplus, twice_sigmoid
from oracles.rotations import rope
from posenc_jax._flax.attention import PositionalSettings

OF_NNX, OF_LINEN = nnx_modules.positional_attention, linen.positional_attention
MAKERS = pytest.mark.parametrize("make", [OF_NNX, OF_LINEN], ids=["nnx", "linen"])
FIRST = pytest.mark.parametrize("make", [OF_NNX, slow(OF_LINEN)], ids=["nnx", "linen"])  # what both share
RNG = np.random.default_rng(7)
Q, K, V = RNG.normal(size=(3, 2, 6, 2, 8)).astype(np.float32)  # batch, seq, heads, head_dim
X = RNG.normal(size=(2, 6, 16)).astype(np.float32)
CAUSAL = np.tril(np.ones((1, 1, 6, 6), bool))
WRITTEN = CAUSAL[..., 4:5, :]  # the slots of a cache up to the fourth
FAR = np.array([3, 4, 5, 6, 7, 2_000_000_000])
KEY = jax.random.key(0)


@pytest.fixture
def as_flax():
    """Flax's own layers add biases of other ranks and dtypes."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def attended(*qkv, mask=True, bias=0.0):
    return dense(*qkv, bias, mask).y


def seen(query, key, value, *args, **kwargs):
    """In the place of Flax's function: what it is given."""
    return query, key, value, args, kwargs


def what_flax_gets(*arrays, rotation=8, bias=None, content_bias=None, layout="half", part="first", **kwargs):
    settings, _ = PositionalSettings.parse(
        rotation, layout, part, None, "input", nnx_modules.PoPE, nnx_modules.RotaryEncoding
    )
    return settings.attend(seen, None, None, (bias, content_bias), *arrays, **kwargs)


LAST = {"width": 4, "part": "last"}
INTERLEAVED = {"width": 6, "base": 50.0, "layout": "interleaved"}


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        slow(OF_NNX, LAST),
        (OF_LINEN, INTERLEAVED),
        slow(OF_NNX, INTERLEAVED),
        slow(OF_LINEN, LAST),
        *(slow(make, given) for make in (OF_NNX, OF_LINEN) for given in ({}, {"layout": "interleaved"})),
    ],
    ids=lambda x: x.__module__.split(".")[1] if callable(x) else str(x),
)
def test_is_attention_of_what_is_turned(make, settings):
    width, base = settings.get("width", 8), settings.get("base", 10_000.0)
    attend = make(rotation=pe.geometric(width, base), **{k: settings[k] for k in ("layout", "part") if k in settings})
    counted, positions, others = np.arange(6), np.array([[0, 1, 2, 3, 4, 5], [9, 8, 7, 3, 1, 12]]), np.arange(6) + 2
    given = {}, {"input_positions": positions}, {"input_positions": positions, "key_positions": others}
    found = quick(lambda q, k, v: [attend(q, k, v, mask=CAUSAL, **places) for places in given])(Q, K, V)
    for got, p, t in zip(found, (counted, positions, positions), (counted, positions, others), strict=True):
        want = attended(rope(Q, p, **settings), rope(K, t, **settings), V, mask=CAUSAL)
        assert_within(got, want, 2e-6, against=f"queries at {p} and keys at {t}")


def test_flax_gets_the_bits_of_rotary_and_everything_else():
    f = pe.geometric(6, 77.0)
    settings = {"layout": "interleaved", "part": "last"}
    query, key, value, args, kwargs = what_flax_gets(
        Q, K, V, "bias", rotation=f, **settings, input_positions=FAR, key_positions=FAR - 3, mask=CAUSAL, new_argument=3
    )
    np.testing.assert_array_equal(query, pe.rotary(Q, FAR, f, head_axis=-2, **settings))
    np.testing.assert_array_equal(key, pe.rotary(K, FAR - 3, f, head_axis=-2, **settings))
    assert value is V and args == ("bias", CAUSAL) and kwargs == {"new_argument": 3}


@pytest.mark.parametrize(
    ("queries", "keys", "given", "want"),
    [
        (6, 6, {}, (range(6), range(6))),
        (6, 6, {"input_positions": FAR}, (FAR, FAR)),
        (6, 6, {"input_positions": FAR, "key_positions": np.arange(6)}, (FAR, range(6))),
        (2, 6, {"input_positions": FAR[:2], "key_positions": FAR}, (FAR[:2], FAR)),
        (6, 3, {"input_positions": FAR, "key_positions": FAR[:3]}, (FAR, FAR[:3])),
        (1, 6, {"input_positions": 5, "key_positions": np.arange(6)}, ([5], range(6))),
        (1, 6, {"input_positions": 4, "mask": WRITTEN}, ([4], range(6))),  # Flax's cache
        (1, 6, {"input_positions": np.array([4]), "mask": WRITTEN}, ([4], range(6))),
        (1, 6, {"input_positions": np.array([[4]]), "mask": WRITTEN, "is_causal": False}, ([4], range(6))),
        (6, 6, {"input_positions": FAR, "mask": CAUSAL}, (FAR, FAR)),  # the inputs before there is a cache
    ],
)
def test_positions(queries, keys, given, want):
    query, key, *_ = what_flax_gets(Q[:, :queries], K[:, :keys], V[:, :keys], **given)
    np.testing.assert_array_equal(query, pe.rotary(Q[:, :queries], np.array(want[0]), head_axis=-2))
    np.testing.assert_array_equal(key, pe.rotary(K[:, :keys], np.array(want[1]), head_axis=-2))


def test_one_key_needs_no_position():
    """A cache of one slot looks like an input: the weight of a single key is 1 wherever it stands."""
    attend = nnx_modules.positional_attention(rotation=8)
    given = {}, {"input_positions": 9}, {"input_positions": 9, "key_positions": 0}
    found = jax.jit(lambda q, k, v: [attend(q, k, v, **places) for places in given])(Q[:, :1], K[:, :1], V[:, :1])
    for places, got in zip(given, found, strict=True):
        np.testing.assert_array_equal(got, V[:, :1], err_msg=str(places))


@pytest.mark.parametrize("axes", [1, 2])
def test_several_coordinates(axes):
    f = pe.axial(8, 2) if axes == 2 else pe.geometric(8)
    positions = np.arange(12).reshape(6, 2) if axes == 2 else np.arange(6) + 5
    query, key, *_ = what_flax_gets(Q, K, V, rotation=f, input_positions=positions)
    np.testing.assert_array_equal(query, pe.rotary(Q, positions, f, head_axis=-2))
    np.testing.assert_array_equal(key, pe.rotary(K, positions, f, head_axis=-2))
    with pytest.raises(ValueError, match=r"input_positions must hold 5 along the sequence, got shape \(6,\)"):
        what_flax_gets(Q[:, :5], K[:, :5], V[:, :5], rotation=f, input_positions=positions)


# A layer of Flax, in both stacks, with the same parameters.


def from_rng(key, shape, dtype):
    """An initialiser by NumPy, which compiles nothing."""
    return (RNG.normal(size=shape) / 5).astype(dtype)


def nnx_layer(attention_fn, **settings):
    settings = {"decode": False, "kernel_init": from_rng, "rngs": nnx.Rngs(0)} | settings
    return nnx.MultiHeadAttention(2, 16, attention_fn=attention_fn, **settings)


def in_one_program(call, layer, *arguments):
    """call(layer, *arguments), with the layer split and merged."""
    graphdef, state = nnx.split(layer)
    return quick(lambda state, *arguments: call(nnx.merge(graphdef, state), *arguments))(state, *arguments)


def nnx_call(layer, x, positions, **kwargs):
    """Of the layer with input_positions, bound where it does not take them yet."""
    if "input_positions" in inspect.signature(type(layer).__call__).parameters:
        return layer(x, input_positions=positions, **kwargs)
    attention_fn = layer.attention_fn
    layer.attention_fn = functools.partial(attention_fn, input_positions=positions)
    out = layer(x, **kwargs)
    layer.attention_fn = attention_fn
    return out


def parameters(layer):
    """An NNX layer's parameters as Linen has them."""
    return {"params": nnx.to_pure_dict(nnx.state(layer, nnx.Param))}


def layer_in_numpy(module, x, positions, mask=True, bias=0.0):
    """An NNX layer by the oracle."""
    return attention.layer(parameters(module)["params"], x, positions, bias, mask)


@pytest.mark.parametrize("masked", tiered([False, True], [True]))
def test_in_the_layers_of_both_stacks(as_flax, masked):
    mask = CAUSAL if masked else None
    layer = nnx_layer(nnx_modules.positional_attention(rotation=8))
    same = nn.MultiHeadDotProductAttention(2, attention_fn=linen.positional_attention(rotation=8))
    both = lambda m, variables, x: (m(x, mask=mask), same.apply(variables, x, mask=mask))  # noqa: E731
    want = layer_in_numpy(layer, X, np.arange(6), CAUSAL if masked else True)
    for stack, got in zip(("NNX", "Linen"), in_one_program(both, layer, parameters(layer), X), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-6, err_msg=stack)
    unturned = layer_in_numpy(layer, X, np.zeros(6), CAUSAL if masked else True)
    assert np.abs(unturned - want).max() > 1e-2  # the order is seen


def test_explicit_positions_in_the_layers_of_both_stacks(as_flax):
    positions = np.array([[0, 1, 2, 0, 1, 2], [7, 8, 9, 10, 11, 12]])
    layer = nnx_layer(nnx_modules.positional_attention(rotation=8))
    attend = functools.partial(linen.positional_attention(rotation=8), input_positions=positions)
    same = nn.MultiHeadDotProductAttention(2, attention_fn=attend)
    both = lambda m, variables, x: (nnx_call(m, x, positions), same.apply(variables, x))  # noqa: E731
    want = layer_in_numpy(layer, X, positions)
    for stack, got in zip(("NNX", "Linen"), in_one_program(both, layer, parameters(layer), X), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-6, err_msg=stack)


GROUPS = "num_kv_heads" in inspect.signature(nnx.MultiHeadAttention.__init__).parameters


@pytest.mark.skipif(not GROUPS, reason="this nnx.MultiHeadAttention takes no num_kv_heads (0.12.7 does)")
def test_grouped_queries(as_flax):
    attend = nnx_modules.positional_attention(rotation=8)
    settings = {"num_kv_heads": 2, "decode": False, "kernel_init": from_rng}
    layer = nnx.MultiHeadAttention(4, 32, attention_fn=attend, rngs=nnx.Rngs(0), **settings)
    x = np.concatenate([X, X[::-1]], axis=-1)
    want = layer_in_numpy(layer, x, np.arange(6), CAUSAL)
    np.testing.assert_allclose(in_one_program(lambda m, x: m(x, mask=CAUSAL), layer, x), want, atol=2e-6)


def test_linen_passes_on_all_that_its_own_function_takes(monkeypatch):
    """Linen asks inspect.signature which arguments a function takes, and leaves the others out without a word."""
    own = inspect.signature(nn.dot_product_attention).parameters
    attend = linen.positional_attention(rotation=8)
    for function in (attend, functools.partial(attend, input_positions=np.arange(6))):
        assert set(inspect.signature(function).parameters) == {*own, "input_positions", "key_positions"}
    given = {}

    def spy(query, key, value, bias=None, mask=None, dropout_rng=None, dropout_rate=0.0, deterministic=False,
            force_fp32_for_softmax=False, precision=None):  # fmt: skip
        given.update(mask=mask, dropout_rate=dropout_rate, fp32=force_fp32_for_softmax, precision=precision)
        return value

    monkeypatch.setattr(nn, "dot_product_attention", spy)
    layer = nn.MultiHeadDotProductAttention(
        2, attention_fn=attend, force_fp32_for_softmax=True, dropout_rate=0.5,
        deterministic=True, precision="highest",
    )  # fmt: skip
    jax.eval_shape(lambda: layer.init(KEY, X, mask=CAUSAL))
    assert given.pop("mask") is CAUSAL
    assert given == {"dropout_rate": 0.5, "fp32": True, "precision": "highest"}


@pytest.mark.parametrize("setting", [slow({"force_fp32_for_softmax": True}), {"qk_attn_weights_einsum_cls": lambda: jnp.einsum, "attn_weights_value_einsum_cls": lambda: jnp.einsum}])  # fmt: skip
def test_settings_of_linen(as_flax, setting):
    layer = nn.MultiHeadDotProductAttention(
        2, dtype=jnp.bfloat16, attention_fn=linen.positional_attention(rotation=8), **setting
    )
    plain = nnx_layer(nnx_modules.positional_attention(rotation=8))
    assert jax.tree.structure(jax.eval_shape(layer.init, KEY, X)) == jax.tree.structure(parameters(plain))
    got = quick(layer.apply)(parameters(plain), X)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(got, np.float32), layer_in_numpy(plain, X, np.arange(6)), atol=2e-2)


@pytest.mark.filterwarnings("ignore:Using 'Module.sow:DeprecationWarning")
def test_weights_are_sown_and_dropped(as_flax):
    layer = nnx_layer(nnx_modules.positional_attention(rotation=8), dropout_rate=0.5, deterministic=False)
    same = nn.MultiHeadDotProductAttention(2, attention_fn=linen.positional_attention(rotation=8))

    def compute(m, variables, x):
        dropped = [m(x, rngs=nnx.Rngs(dropout=seed)) for seed in (1, 2)]
        m(x, deterministic=True, sow_weights=True, mask=CAUSAL)
        sown = nnx.pop(m, nnx.Intermediate)["attention_weights"][0]
        _, found = same.apply(variables, x, mask=CAUSAL, sow_weights=True, mutable="intermediates")
        return dropped, {"NNX": sown, "Linen": found["intermediates"]["attention_weights"][0]}

    (one, two), sown = in_one_program(compute, layer, parameters(layer), X)
    assert not np.allclose(one, two)
    p = parameters(layer)["params"]
    q, k = (rope(attention.project(p[n], X), np.arange(6)) for n in ("query", "key"))
    eye = np.broadcast_to(np.eye(6)[:, None], (2, 6, 2, 6))  # values that show the weights
    want = np.moveaxis(attended(q, k, eye, mask=CAUSAL), 1, 2)
    for stack, got in sown.items():
        np.testing.assert_allclose(got, want, atol=2e-6, err_msg=stack)


# Decoding.


@jax.jit
def one_row(query, keys, values, index):
    """Attention of a query to the first index + 1 keys: the same program for a whole sequence and for a cache."""
    scores = jnp.einsum("bhd,bkhd->bhk", query, keys) / jnp.sqrt(jnp.float32(8))
    weights = jax.nn.softmax(jnp.where(jnp.arange(keys.shape[1])[None, None] <= index, scores, -jnp.inf))
    return jnp.einsum("bhk,bkhd->bhd", weights, values)


@pytest.mark.parametrize(
    ("frequencies", "offset", "prefix", "dtype"),
    [
        slow(8, 0, 4, jnp.float32),
        slow(pe.geometric(8, 500_000.0), 1_999_999_990, 1, jnp.float32),
        (pe.yarn(4, 10_000.0, 4.0, 2048), 100_000, 3, jnp.bfloat16),
    ],
    ids=["float32", "far", "yarn, partial, bfloat16"],
)
def test_prefill_then_steps_is_the_whole_sequence(frequencies, offset, prefix, dtype):
    q, k, v = (x.astype(dtype) for x in (Q, K, V))
    rotated = jax.jit(lambda x, p: pe.rotary(x, p, frequencies, head_axis=-2))
    turn = lambda x, p: np.asarray(rotated(x, p))  # noqa: E731
    positions = np.arange(offset, offset + 6, dtype=np.int32)
    whole_q, whole_k = turn(q, positions), turn(k, positions)

    cache = {"key": np.zeros_like(k), "value": np.zeros_like(v)}  # keys as they are turned
    cache["key"][:, :prefix] = turn(k[:, :prefix], positions[:prefix])
    cache["value"][:, :prefix] = v[:, :prefix]
    queries = [turn(q[:, :prefix], positions[:prefix])]
    rows = {}
    for i in range(prefix, 6):
        at = np.full((2, 1), offset + i, np.int32)  # a position for each row of the batch
        cache["key"][:, i] = turn(k[:, i : i + 1], at)[:, 0]
        cache["value"][:, i] = v[:, i]
        queries.append(turn(q[:, i : i + 1], at))
        rows[i] = one_row(*(x.astype(np.float32) for x in (queries[-1][:, 0], cache["key"], cache["value"])), i)
    np.testing.assert_array_equal(np.concatenate(queries, axis=1), whole_q)
    np.testing.assert_array_equal(cache["key"], whole_k)

    whole_q, whole_k, v = (x.astype(np.float32) for x in (whole_q, whole_k, v))
    together = attended(whole_q, whole_k, v, mask=CAUSAL)
    for i, row in rows.items():
        np.testing.assert_array_equal(row, one_row(whole_q[:, i], whole_k, v, i))
        np.testing.assert_allclose(row, together[:, i], atol=1e-6)  # sums of other programs are rounded otherwise


def test_a_cache_needs_positions(as_flax):
    match = "input_positions must be given where queries and keys differ in number, 1 and 6"
    layer = nnx_layer(nnx_modules.positional_attention(rotation=8))
    layer.init_cache(X.shape)
    with pytest.raises(ValueError, match=match):
        in_one_program(lambda m, x: m(x, decode=True), layer, X[:, :1])
    guess = nn.MultiHeadDotProductAttention(2, decode=True, attention_fn=linen.positional_attention(rotation=8))
    variables = jax.eval_shape(guess.init, KEY, X)
    with pytest.raises(ValueError, match=match):
        jax.eval_shape(functools.partial(guess.apply, mutable=["cache"]), variables, X[:, :1])


TAKES_POSITIONS = "input_positions" in inspect.signature(nnx.MultiHeadAttention.__call__).parameters


# From 0.12.11 on, a layer that decodes does not pass `is_causal` on, and before it hides all keys but the first.
CAUSAL_STEPS = [False, True] if tuple(map(int, flax.__version__.split(".")[:3])) >= (0, 12, 11) else [False]


@pytest.mark.skipif(not TAKES_POSITIONS, reason="this nnx.MultiHeadAttention takes no input_positions (0.12.9 does)")
@pytest.mark.parametrize("name", [None, slow("FIRE")])
def test_the_loop_as_documented(as_flax, name):
    bias = name and getattr(nnx_modules, name)(2, rngs=nnx.Rngs(3))
    layer = nnx_layer(nnx_modules.positional_attention(rotation=8, bias=bias))
    whole = in_one_program(lambda m, x: m(x, mask=CAUSAL), layer, X)
    layer.init_cache(X.shape)
    for causal, i in itertools.product(CAUSAL_STEPS, range(6)):
        layer.cache_index[...] = jnp.int32(i)
        step = layer(X[:, i : i + 1], decode=True, is_causal=causal, input_positions=layer.cache_index[...][None])
        np.testing.assert_allclose(step, whole[:, i : i + 1], atol=1e-6)


@pytest.mark.parametrize(
    ("queries", "memory", "given"),
    [slow(3, 6, {}), slow(6, 3, {}), slow(1, 6, {}), (3, 6, {"mask": CAUSAL[:, :, 3:]})],
)
def test_keys_of_another_sequence_are_no_cache(as_flax, queries, memory, given):
    """Cross-attention in a layer needs key_positions; they may be bound, for example to count from 0."""
    layer = nnx_layer(nnx_modules.positional_attention(rotation=8))
    x, memory, positions = X[:, :queries], X[::-1, :memory], np.arange(queries) + 20
    of_memory = np.arange(memory.shape[1])

    def call(m, x, memory, key_positions=None):
        m.attention_fn = functools.partial(m.attention_fn, key_positions=key_positions)
        return nnx_call(m, x, positions, inputs_k=memory, **given)

    with pytest.raises(
        ValueError, match=f"key_positions must be given .* {queries} and {memory.shape[1]} .Flax's cache"
    ):
        in_one_program(call, layer, x, memory)
    kernels = parameters(layer)["params"]
    query, key, value = (
        attention.project(kernels[n], y) for n, y in (("query", x), ("key", memory), ("value", memory))
    )
    want = attended(rope(query, positions), rope(key, of_memory), value, mask=given.get("mask", True))
    want = np.einsum("...hd,hdf->...f", want, kernels["out"]["kernel"]) + kernels["out"]["bias"]
    got = in_one_program(functools.partial(call, key_positions=of_memory), layer, x, memory)
    np.testing.assert_allclose(got, want, atol=2e-6)


@FIRST
def test_rows_padded_on_the_left_decode_by_slots(make):
    padding, slot = np.array([0, 2]), 5
    kept = (np.arange(6) >= padding[:, None])[:, None, None]
    positions = np.arange(6) - padding[:, None]
    tokens = positions[:, slot:]  # of the queries: those of the keys are not the slots
    given = (
        {"input_positions": np.array([slot])},
        {"input_positions": tokens, "key_positions": positions},
        {"input_positions": tokens, "key_positions": np.arange(6)},
    )
    step = lambda q, k, v: [make(rotation=8)(q, k, v, mask=kept, **places) for places in given]  # noqa: E731
    by_slots, by_tokens, mixed = quick(step)(Q[:, slot:], K, V)
    want = attended(rope(Q, positions)[:, slot:], rope(K, positions), V, mask=kept)
    np.testing.assert_allclose(by_slots, want, atol=2e-6)
    np.testing.assert_allclose(by_tokens, want, atol=2e-6)
    assert np.abs(np.asarray(mixed) - want).max() > 1e-2
    with pytest.raises(ValueError, match=r"input_positions must be one slot for all rows .* got shape \(2, 1\)"):
        make(rotation=8)(Q[:, slot:], K, V, mask=kept, input_positions=tokens)


# Biases.

D, AFTER = oracle_biases.tile(range(6), range(6)), np.arange(6)[:, None] < np.arange(6)
# By its name: the modules' settings, and the bias in float64 by its parameters.
LEARNED = {
    None: ({}, lambda p: 0.0),
    "ALiBi": ({}, lambda p: oracle_biases.alibi(D, oracle_biases.slopes(2))),
    "T5Bias": ({}, lambda p: oracle_biases.t5(D, AFTER, p["embedding"])),
    "KERPLE": ({}, lambda p: oracle_biases.kerple_log(D, softplus(p["free_r1"]), softplus(p["free_r2"]))),
    "KERPLE, power": (
        {"variant": "power"},
        lambda p: oracle_biases.kerple_power(D, softplus(p["free_r1"]), twice_sigmoid(p["free_r2"])),
    ),
    "FIRE": (
        {"threshold": 3.0},
        lambda p: oracle_biases.fire(
            D,
            np.arange(6)[:, None],
            [p[name] for name in ("kernel1", "bias1", "kernel2", "bias2")],
            softplus(p["free_c"]),
            3 * softplus(p["free_multiplier"]),
        ),
    ),
    # Shaw's: a function of the layer's queries and keys
    "ContentBias": (
        {"num_rows": 5, "source": "query", "scale": 8**-0.5, "out_of_range": "nearest"},
        lambda p: lambda q, k: 8**-0.5 * of_content(q, p["embedding"], of="query", first=-2, outside=None),
    ),
}


def of_content(x, table, positions=range(6), **told):
    return content_by_loops(positions, positions, x, table, **told)


def t5_of(stack):
    """With a table whose order of buckets and heads shows."""
    init = lambda key, shape, dtype: TABLE.astype(dtype).reshape(shape)  # noqa: E731
    if stack is linen:
        return linen.T5Bias(2, embedding_init=init)
    return nnx_modules.T5Bias(2, embedding_init=init, rngs=nnx.Rngs(0))


TABLE = np.arange(64).reshape(32, 2) % 7 - 3.0
BIASES = [functools.partial(pe.alibi, heads=2), functools.partial(pe.t5, table=TABLE.astype(np.float32))]
BIASES += [every_bias[name].beside(2)[0] for name in ("kerple_log", "kerple_power")]


@pytest.mark.parametrize("bias", tiered(BIASES, [BIASES[1]]), ids=lambda b: b.func.__name__)
def test_a_step_gets_the_bits_of_the_bias_of_the_whole(bias):
    bias = jax.jit(bias)
    *_, (whole, _), _ = what_flax_gets(Q, K, V, rotation=0, bias=bias)
    assert whole.shape == (1, 2, 6, 6)
    np.testing.assert_array_equal(whole[0], bias(np.arange(6), np.arange(6)))
    for i in range(6):
        at = {"input_positions": np.array([[i]]), "mask": CAUSAL[..., i : i + 1, :]}
        query, key, _, (row, _), _ = what_flax_gets(Q[:, i : i + 1], K, V, bias=bias, **at)
        np.testing.assert_array_equal(row, whole[..., i : i + 1, :])
        np.testing.assert_array_equal(query, pe.rotary(Q[:, i : i + 1], np.array([i]), head_axis=-2))
        np.testing.assert_array_equal(key, pe.rotary(K, head_axis=-2))


def test_a_bias_is_added_to_what_is_given_and_without_frequencies_nothing_turns():
    bias, given = BIASES[0], RNG.normal(size=(2, 1, 6)).astype(np.float32)
    settings = {"rotation": 0, "bias": bias, "input_positions": FAR}
    apart = {"key_positions": np.arange(6) + 2}

    @jax.jit
    def compute(given):
        query, key, value, (both, *args), kwargs = what_flax_gets(Q, K, V, given, CAUSAL, **settings, new=1)
        assert query is Q and key is K and value is V and args == [CAUSAL] and kwargs == {"new": 1}
        *_, (sum16, _), _ = what_flax_gets(Q, K, V, given.astype(jnp.bfloat16), **settings)
        *_, (other, _), _ = what_flax_gets(Q, K, V, **settings | apart)
        one = settings | {"input_positions": 7, "key_positions": np.arange(6)}
        *_, (one, _), _ = what_flax_gets(Q[:, :1], K, V, **one)
        want = bias(FAR, FAR)[None] + given[None], bias(FAR, np.arange(6) + 2), bias(np.array([7]), np.arange(6))
        assert sum16.dtype == np.float32
        return (both, other[0], one[0]), want

    for name, got, want in zip(("both", "keys apart", "one query"), *compute(given), strict=True):
        np.testing.assert_array_equal(got, want, err_msg=name)


@pytest.mark.parametrize(
    ("learned", "masked"), [slow(False, False), (True, True), slow(False, True), slow(True, False)]
)
def test_rotary_and_a_bias_in_the_layers_of_both_stacks(as_flax, masked, learned):
    mask = CAUSAL if masked else None
    of = lambda stack: t5_of(stack) if learned else BIASES[0]  # noqa: E731
    layer = nnx_layer(nnx_modules.positional_attention(rotation=8, bias=of(nnx_modules)))
    same = nn.MultiHeadDotProductAttention(2, attention_fn=linen.positional_attention(rotation=8, bias=of(linen)))
    order, places = np.arange(6), np.array([[0, 1, 2, 0, 1, 2], [7, 8, 9, 10, 11, 30]])
    attends = same.attention_fn, functools.partial(same.attention_fn, input_positions=places)
    counted, placed = (same.clone(attention_fn=f) for f in attends)

    def compute(m, variables, x):
        found = {(n, "nnx"): nnx_call(m, x, p, mask=mask) for n, p in (("counted", order), ("placed", places))}
        found["counted", "linen"] = counted.apply(variables, x, mask=mask)
        if not learned:
            found["placed", "linen"] = placed.apply(variables, x, mask=mask)
        return found

    def by_oracle(p, biased=True):
        _, d, after = oracle_biases.exact_tile(p, p)
        bias = oracle_biases.t5(d, after, TABLE) if learned else oracle_biases.alibi(d, oracle_biases.slopes(2))
        return layer_in_numpy(layer, X, p, CAUSAL if masked else True, bias * biased)

    want = {"counted": by_oracle(order), "placed": by_oracle(places)}
    for (n, stack), got in in_one_program(compute, layer, parameters(layer), X).items():
        assert_within(got, want[n], 3e-6, against=f"the dense float64 layer, positions {n}, in {stack}")
    assert np.abs(want["placed"] - by_oracle(places, biased=False)).max() > 1e-2  # the bias is seen


def test_parameters_of_a_bias_are_those_of_the_layer(as_flax):
    layer = nnx_layer(nnx_modules.positional_attention(rotation=8, bias=t5_of(nnx_modules)))
    same = nn.MultiHeadDotProductAttention(2, attention_fn=linen.positional_attention(rotation=8, bias=t5_of(linen)))
    begun = jax.eval_shape(same.init, KEY, X)
    shapes = lambda tree: jax.tree.map(lambda leaf: leaf.shape, tree)  # noqa: E731
    assert shapes(begun) == shapes(parameters(layer))
    assert set(begun["params"]) == {"query", "key", "value", "out", "attention_fn"}
    of_linen = quick(lambda: same.init(KEY, X)["params"]["attention_fn"]["bias"])()
    np.testing.assert_array_equal(of_linen["embedding"], TABLE)
    np.testing.assert_array_equal(layer.attention_fn.bias.embedding[...], TABLE)

    def gradients(m, variables, x):
        loss = lambda y: jnp.sum(jnp.sin(y))  # noqa: E731
        grads = nnx.to_pure_dict(nnx.grad(lambda m: loss(m(x)))(m))
        return m(x), {"params": grads}, jax.grad(lambda v: loss(same.apply(v, x)))(variables)

    y, grads, wanted = in_one_program(gradients, layer, parameters(layer), X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), grads, wanted)

    rows = oracle_biases.t5_rows(D, AFTER, len(TABLE))
    by_table = lambda table: layer_in_numpy(layer, X, np.arange(6), bias=np.moveaxis(table[rows], -1, 0))  # noqa: E731
    np.testing.assert_allclose(y, by_table(TABLE), atol=2e-6)
    loss = lambda table: np.sum(np.sin(by_table(table)))  # noqa: E731
    steps = 1e-5 * np.eye(TABLE.size).reshape(-1, *TABLE.shape)
    differences = np.array([loss(TABLE + step) - loss(TABLE - step) for step in steps]).reshape(TABLE.shape) / 2e-5
    assert np.any(differences)
    got = grads["params"]["attention_fn"]["bias"]["embedding"]
    assert_within(got, differences, 1e-5, against="differences of the dense float64 layer")
    graphdef, state = nnx.split(layer)
    call = nnx.jit(lambda m, x: m(x))
    np.testing.assert_array_equal(call(nnx.merge(graphdef, state), X), call(layer, X))


def test_a_content_bias_reads_what_the_layer_projected():
    """Neither rotated nor scaled, with the positions that the other bias gets."""
    given = []

    def content(queries, keys, query, key):
        given.append((queries, keys, query, key))
        return jnp.ones((2, 6, 6), jnp.float32)

    added, positions = np.full((2, 2, 6, 6), 0.5, np.float32), {"input_positions": FAR, "key_positions": FAR - 3}
    settings = {"bias": lambda i, j: jnp.full((2, 6, 6), 4.0), "content_bias": content}
    query, _, _, (bias, _), _ = what_flax_gets(Q, K, V, added, **settings, **positions)
    ((i, j, q, k),) = given
    assert q is Q and k is K and query is not Q
    np.testing.assert_array_equal(i, FAR)
    np.testing.assert_array_equal(j, FAR - 3)
    np.testing.assert_array_equal(bias, added + 5)
    half = [x.astype(jnp.bfloat16) for x in (Q, K, V)]
    *_, (bias, _), _ = jax.eval_shape(lambda: what_flax_gets(*half, content_bias=shaw(5, 8)))
    assert bias.dtype == jnp.float32


def content_of(stack):
    """With keys, a table for each head, and rows for the offsets from −3 to 2."""
    settings = {"source": "key", "scale": 0.7, "num_heads": 2, "first": -3, "out_of_range": "zeros"}
    settings |= {"embedding_init": from_rng} | ({"rngs": nnx.Rngs(0)} if stack is nnx_modules else {})
    return stack.ContentBias(6, 8, **settings)


@pytest.mark.slow
def test_both_biases_in_the_layers_of_both_stacks(as_flax):
    layer = nnx_layer(
        nnx_modules.positional_attention(rotation=8, bias=t5_of(nnx_modules), content_bias=content_of(nnx_modules))
    )
    attend = linen.positional_attention(rotation=8, bias=t5_of(linen), content_bias=content_of(linen))
    same = nn.MultiHeadDotProductAttention(2, attention_fn=attend)
    shapes = lambda tree: jax.tree.map(lambda leaf: leaf.shape, tree)  # noqa: E731
    begun = shapes(jax.eval_shape(same.init, KEY, X))
    assert begun == shapes(parameters(layer))
    of_terms = {"bias": {"embedding": (32, 2)}, "content_bias": {"embedding": (6, 2, 8)}}
    assert begun["params"]["attention_fn"] == of_terms
    places = np.array([0, 1, 2, 5, 1, 30])

    def compute(m, variables, x):
        loss = lambda y: jnp.sum(jnp.sin(y))  # noqa: E731
        grads = nnx.to_pure_dict(nnx.grad(lambda m: loss(m(x)))(m))["attention_fn"]
        of_linen = jax.grad(lambda v: loss(same.apply(v, x)))(variables)["params"]["attention_fn"]
        return (m(x), same.apply(variables, x)), nnx_call(m, x, places), grads, of_linen

    counted, placed, grads, of_linen = in_one_program(compute, layer, parameters(layer), X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), grads, of_linen)
    table = np.asarray(layer.attention_fn.content_bias.embedding[...], np.float64)
    told = {"of": "key", "first": -3, "outside": 0.0}

    def by_loops(table, p=range(6), scale=0.7, read=lambda q, k: k):
        _, d, after = oracle_biases.exact_tile(*2 * (np.asarray(p),))
        t5 = oracle_biases.t5(d, after, TABLE)
        return layer_in_numpy(layer, X, p, bias=lambda q, k: t5 + scale * of_content(read(q, k), table, p, **told))

    want = by_loops(table)
    for stack, y in zip(("NNX", "Linen"), counted, strict=True):
        assert_within(y, want, 3e-6, against=f"loops in the dense float64 layer, {stack}")
    assert_within(placed, by_loops(table, places), 3e-6, against="loops at other positions")
    wrong = {
        "no content": by_loops(table, scale=0),
        "no scale": by_loops(table, scale=1),
        "scaled as the scores are": by_loops(table, scale=0.7 * 8**-0.5),
        "rotated": by_loops(table, read=lambda q, k: rope(k, np.arange(6))),
        "the other side": by_loops(table, read=lambda q, k: q),
        "rows in the order of j − i": by_loops(table[::-1]),
        "heads swapped": by_loops(table[:, ::-1]),
    }
    for what, other in wrong.items():
        assert np.abs(counted[0] - other).max() > 1e-3, what
    loss = lambda table: np.sum(np.sin(by_loops(table)))  # noqa: E731
    step = RNG.normal(size=table.shape)
    slope = (loss(table + 1e-4 * step) - loss(table - 1e-4 * step)) / 2e-4
    along = np.sum(grads["content_bias"]["embedding"] * step)
    assert abs(slope) > 0.1 and abs(along - slope) < 1e-4 * abs(slope)


@pytest.mark.slow
def test_layers_share_a_bias(as_flax):
    class Model(nnx.Module):
        def __init__(self):
            bias = t5_of(nnx_modules)
            self.layers = nnx.List([nnx_layer(nnx_modules.positional_attention(bias=bias)) for _ in range(2)])

        def __call__(self, x):
            return self.layers[1](self.layers[0](x))

    class Same(nn.Module):
        @nn.compact
        def __call__(self, x, positions):
            bias = linen.T5Bias(2)
            for _ in range(2):
                attend = functools.partial(linen.positional_attention(bias=bias), input_positions=positions)
                x = nn.MultiHeadDotProductAttention(2, attention_fn=attend)(x)
            return x

    model = Model()
    paths = [path for path, _ in nnx.to_flat_state(nnx.state(model)) if path[-1] == "embedding"]
    assert len(paths) == 1
    begun = jax.eval_shape(Same().init, KEY, X, np.arange(6))["params"]
    assert set(begun) == {"T5Bias_0", "MultiHeadDotProductAttention_0", "MultiHeadDotProductAttention_1"}
    first, second = (parameters(layer)["params"] for layer in model.layers)
    params = {
        "T5Bias_0": first.pop("attention_fn")["bias"],
        "MultiHeadDotProductAttention_0": first,
        "MultiHeadDotProductAttention_1": {k: v for k, v in second.items() if k != "attention_fn"},
    }
    both = lambda m, params, x: (m(x), Same().apply({"params": params}, x, np.arange(6) + 90))  # noqa: E731
    of_nnx, of_linen = in_one_program(both, model, params, X)
    np.testing.assert_allclose(of_linen, of_nnx, atol=2e-6)


def biased_by(stack, name):
    """As an argument of `positional_attention`, a module of its name in LEARNED, whose parameters NNX draws."""
    if name is None:
        return {}
    rngs = {"rngs": nnx.Rngs(1)} if stack is nnx_modules and name != "ALiBi" else {}
    of_content = name == "ContentBias"
    init = {"head_dim": 8, "embedding_init": from_rng} if of_content else {"num_heads": 2}
    module = getattr(stack, name.split(",")[0])(**init, **LEARNED[name][0], **rngs)
    return {"content_bias" if of_content else "bias": module}


def learned_bias(params):
    """The parameters of the bias of a layer."""
    return next(iter(params.get("attention_fn", {}).values()), {})


@pytest.mark.parametrize("name", tiered(LEARNED, ["ContentBias"]))
def test_the_cache_of_both_layers(as_flax, name):
    bias_in_float64, order = LEARNED[name][1], np.arange(6)
    layer = nnx_layer(nnx_modules.positional_attention(rotation=8, **biased_by(nnx_modules, name)))
    params = parameters(layer)["params"]
    bias = learned_bias(params)
    whole = layer_in_numpy(layer, X, order, CAUSAL, bias_in_float64(bias))

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x, positions):
            attend = linen.positional_attention(rotation=8, **biased_by(linen, name))
            attend = functools.partial(attend, input_positions=positions)
            return nn.MultiHeadDotProductAttention(2, decode=True, attention_fn=attend, name="layer")(x)

    layer.init_cache(X.shape)
    graphdef, state = nnx.split(layer)
    shapes = jax.eval_shape(Model().init, KEY, X, order)
    cache = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes["cache"])  # as Flax begins it
    of_linen = {"layer": {n: p for n, p in params.items() if n != "attention_fn"}}
    of_linen |= {n: bias for n in shapes["params"] if n != "layer"}

    @quick
    def step(state, cache, x, i):
        m = nnx.merge(graphdef, state)
        got = nnx_call(m, x, m.cache_index[...], decode=True)
        other, found = Model().apply({"params": of_linen, "cache": cache}, x, i, mutable=["cache"])
        return {"NNX": got, "Linen": other}, nnx.state(m), found["cache"]

    for i in range(6):
        found, state, cache = step(state, cache, X[:, i : i + 1], np.array([i]))
        for stack, got in found.items():
            np.testing.assert_allclose(got, whole[:, i : i + 1], atol=1e-6, err_msg=stack)


def shaw(rows, width, **settings):
    """A function of content, whose table is one of zeros."""
    table = jnp.zeros((rows, *([settings.pop("num_heads")] if "num_heads" in settings else []), width), jnp.float32)
    settings = {"out_of_range": "nearest"} | settings
    return lambda i, j, q, k: pe.content_bias(i, j, table, query=q, **settings)


@MAKERS
@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda f: f(), ValueError, "positional_attention: rotation, bias, content_bias or attention must be given, got none"),
        (lambda f: f(rotation=0), ValueError, "rotation, bias, content_bias or attention must be given, got none"),
        (lambda f: f(bias=3.0), TypeError, "positional_attention: bias must be a function of positions, got float 3.0"),
        (lambda f: f(bias=functools.partial(pe.alibi, heads=1))(Q, K, V), ValueError, r"bias must return shape \(..., 2, 6, 6\), got \(1, 6, 6\)"),
        (lambda f: f(bias=lambda q, k: BIASES[0](k, q[:2]))(Q, K, V), ValueError, r"bias must return shape \(..., 2, 6, 6\), got \(2, 6, 2\)"),
        (lambda f: f(bias=lambda q, k: jnp.zeros((3, 2, 6, 6)))(Q, K, V), ValueError, "must broadcast to the scores"),
        (lambda f: f(bias=lambda q, k: 0.0)(Q, K, V), TypeError, "what bias returns must be a float array"),
        (lambda f: f(content_bias=3.0), TypeError, "positional_attention: content_bias must be a function of positions, query and key, got float 3.0"),
        (lambda f: f(content_bias=lambda *_: jnp.zeros((1, 6, 6))), ValueError, r"positional_attention: content_bias must return shape \(..., 2, 6, 6\), got \(1, 6, 6\)"),
        (lambda f: f(content_bias=lambda i, j, q, k: shaw(5, 8)(j[:2], i, q[:, :2], k)), ValueError, r"content_bias must return shape \(..., 2, 6, 6\), got \(2, 2, 2, 6\)"),
        (lambda f: f(content_bias=lambda *_: jnp.zeros((3, 2, 6, 6))), ValueError, "what content_bias returns, of shape .* must broadcast to the scores"),
        (lambda f: f(content_bias=lambda *_: 0.0), TypeError, "what content_bias returns must be a float array"),
        (lambda f: f(content_bias=lambda i, j, _, k: shaw(5, 8)(j, i, k, k))(Q, K[:, :, :1], V[:, :, :1]), ValueError, r"content_bias must return shape \(..., 2, 6, 6\), got \(2, 1, 6, 6\)"),
        (lambda f: f(content_bias=shaw(5, 4)), ValueError, "^content_bias: query must have shape"),
        (lambda f: f(content_bias=shaw(5, 8, num_heads=3)), ValueError, "^content_bias: query must have shape"),
        (lambda f: f(content_bias=shaw(5, 8))(Q[:, :1], K, V), ValueError, "input_positions must be given where queries and keys differ in number, 1 and 6"),
        (lambda f: f(bias=BIASES[0])(Q[:, :1], K, V), ValueError, "input_positions must be given where queries and keys differ in number, 1 and 6"),
        (lambda f: f(bias=BIASES[0])(Q[:, :1], K, V, input_positions=5), ValueError, "key_positions must be given where queries and keys differ in number, 1 and 6"),
        (lambda f: f(bias=BIASES[0])(Q, K, V, input_positions=np.zeros((6, 2), int)), ValueError, r"input_positions must hold 6 along the sequence, got shape \(6, 2\); for coordinates set num_axes=2"),
        (lambda f: f(bias=BIASES[0])(Q, K, V, input_positions=[0] * 6), TypeError, "input_positions must be an integer or float array"),
    ],
)  # fmt: skip
def test_bad_biases(make, call, error, match):
    def tried():
        attend = call(make)
        return attend(Q, K, V) if callable(attend) else attend

    with pytest.raises(error, match=match):
        jax.eval_shape(tried)


# A value among the settings of a layer.


@pytest.mark.parametrize(
    "make",
    [lambda *a, **k: nnx.graphdef(nnx_modules.positional_attention(*a, **k)), linen.positional_attention],
    ids=["nnx", "linen"],
)
def test_a_value_without_arrays(make):
    attend = make(rotation=8)
    assert attend == make(rotation=pe.geometric(8)) and hash(attend) == hash(make(rotation=pe.geometric(8)))
    others = (
        make(rotation=4),
        make(rotation=8, layout="interleaved"),
        make(rotation=8, part="last"),
        make(rotation=8, bias=pe.alibi),
        make(rotation=8, content_bias=pe.alibi),
    )
    for other in others:
        assert attend != other
    assert pickle.loads(pickle.dumps(attend)) == attend == copy.deepcopy(attend)


def test_nothing_is_added_to_the_state():
    layer, plain = nnx_layer(nnx_modules.positional_attention(rotation=8)), nnx_layer(nnx.dot_product_attention)
    graphdef, state = nnx.split(layer)
    assert jax.tree.structure(nnx.to_pure_dict(state)) == jax.tree.structure(nnx.to_pure_dict(nnx.state(plain)))
    assert graphdef == nnx.graphdef(nnx_layer(nnx_modules.positional_attention(rotation=8))) != nnx.graphdef(plain)
    assert nnx.graphdef(nnx.merge(graphdef, state).attention_fn) == nnx.graphdef(layer.attention_fn)


def test_layers_of_equal_settings_are_traced_once(as_flax):
    traces = []

    @functools.partial(jax.jit, static_argnums=0)
    def forward(graphdef, state, x):
        traces.append(1)
        return nnx.merge(graphdef, state)(x)

    for _ in range(2):
        forward.trace(*nnx.split(nnx_layer(nnx_modules.positional_attention(rotation=8))), X)
    assert len(traces) == 1


@FIRST
def test_transforms(make):
    """Under the strict promotion of these tests."""
    attend, p = make(rotation=8), np.arange(6)
    remat = jax.checkpoint(lambda q, k, v, p: attend(q, k, v, input_positions=p))
    each = lambda q, k, v: jax.vmap(remat, in_axes=(0, 0, 0, None))(q, k, v, p)  # noqa: E731
    y, _, back = dense(rope(Q, p), rope(K, p), V)
    dq, dk, dv, _ = back(np.cos(y))
    want = np.sum(np.sin(y)), rope(dq, -p), rope(dk, -p), dv
    got = quick(jax.value_and_grad(lambda *qkv: jnp.sum(jnp.sin(each(*qkv))), argnums=(0, 1, 2)))(Q, K, V)
    for a, b in zip(jax.tree.leaves(got), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNED)
def test_forward_mode_in_the_layers_of_both_stacks(as_flax, name):
    """`jacfwd` and `hessian` along the input and all parameters, beside differences of the float64 layer."""
    bias_in_float64 = LEARNED[name][1]
    layer = nnx_layer(nnx_modules.positional_attention(rotation=8, **biased_by(nnx_modules, name)))
    graphdef, state = nnx.split(layer)
    attend = linen.positional_attention(rotation=8, **biased_by(linen, name))
    same = nn.MultiHeadDotProductAttention(2, attention_fn=attend)
    draw = np.random.default_rng(5)
    random = lambda w: draw.normal(size=w.shape).astype(w.dtype)  # noqa: E731
    state = jax.tree.map(lambda w: w + 0.3 * random(w), state)  # FIRE begins on the kinks of its perceptron
    step, dx = jax.tree.map(random, state), draw.normal(size=X.shape)
    dicts, dx = [{"params": nnx.to_pure_dict(tree)} for tree in (state, step)], dx.astype(np.float32)

    def along(a, base, direction, apply):
        """Of two numbers: how far along the parameters, and along the input."""
        return apply(jax.tree.map(lambda w, v: w + a[0] * v, base, direction), X + a[1] * dx)

    def in_float64(p, x):
        p = p["params"]
        return attention.layer(p, x, np.arange(6), bias_in_float64(learned_bias(p)))

    def derivatives(f, base, direction):
        f = functools.partial(along, base=base, direction=direction, apply=f)
        return jax.jacfwd(f)(jnp.zeros(2)), jax.hessian(f)(jnp.zeros(2)), jax.jacrev(f)(jnp.zeros(2))

    exact = [jax.tree.map(lambda w: np.asarray(w, np.float64), tree) for tree in dicts]
    f, e = functools.partial(along, base=exact[0], direction=exact[1], apply=in_float64), 1e-4 * np.eye(2)
    slope = np.stack([f(d) - f(-d) for d in e], axis=-1) / 2e-4
    curve = np.stack([np.stack([f(a + b) - f(a - b) - f(b - a) + f(-a - b) for a in e], -1) for b in e], -1) / 4e-8
    for call in (
        quick(functools.partial(derivatives, lambda s, x: nnx.merge(graphdef, s)(x)))(state, step),
        quick(functools.partial(derivatives, same.apply))(*dicts),
    ):
        for got, want in zip(call, (slope, curve, slope), strict=True):
            assert_within(got, want, 1e-4 * np.abs(want).max(), against="differences in float64")


@MAKERS
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_dtype_is_kept(as_flax, make, dtype):
    assert jax.eval_shape(make(rotation=8), *(x.astype(dtype) for x in (Q, K, V))).dtype == dtype


@FIRST
@pytest.mark.parametrize("dtype", tiered([jnp.bfloat16, jnp.float16], [jnp.bfloat16]))
def test_a_float32_bias_of_16_bit_scores(make, dtype):
    """Under the strict promotion of these tests; with dropout, for which Flax adds the bias itself."""
    q, k, v = (x.astype(dtype) for x in (Q, K, V))
    bias = functools.partial(pe.alibi, heads=2)
    attend = make(bias=bias)

    def with_and_without_dropout(q, k, v):
        # A rate so small that nothing is dropped.
        return attend(q, k, v), attend(q, k, v, dropout_rng=KEY, dropout_rate=1e-9, deterministic=False)

    if dtype == jnp.bfloat16:  # on a CPU jax.jit has no product of float16 with a float32 result
        with_and_without_dropout = quick(with_and_without_dropout)
    want = attended(*(x.astype(np.float64) for x in (q, k, v)), bias=oracle_biases.alibi(D, oracle_biases.slopes(2)))
    for y in with_and_without_dropout(q, k, v):
        assert y.dtype == dtype
        assert_within(y, want, 4 * float(jnp.finfo(dtype).eps), against="the dense float64 formula")


@pytest.mark.slow
def test_scanned_nnx_layers(as_flax):
    rngs = [nnx.Rngs(i) for i in range(2)]
    layers = [
        nnx.MultiHeadAttention(2, 16, decode=False, attention_fn=nnx_modules.positional_attention(rotation=8), rngs=r)
        for r in rngs
    ]
    graphdef, _ = nnx.split(layers[0])
    stacked = nnx.merge(
        graphdef, jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *(nnx.state(layer) for layer in layers))
    )
    step = lambda x, layer: x + layer(x, mask=jnp.asarray(CAUSAL))  # noqa: E731
    scanned = nnx.scan(nnx.remat(step), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    got, grads = nnx.jit(nnx.value_and_grad(lambda m: jnp.sum(jnp.sin(scanned(X, m)))))(stacked)
    want, wanted = nnx.jit(nnx.value_and_grad(lambda m: jnp.sum(jnp.sin(step(step(X, m[0]), m[1])))))(nnx.List(layers))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    for i in range(2):
        for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(wanted[i]), strict=True):
            np.testing.assert_allclose(a[i], b, atol=1e-5)


def test_scanned_linen_layers():
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return x + nn.MultiHeadDotProductAttention(2, attention_fn=linen.positional_attention(rotation=8))(
                x, mask=CAUSAL
            ), None

    stack = nn.scan(nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=2)()
    shapes = jax.eval_shape(stack.init, KEY, X, None)
    variables = jax.tree.map(lambda leaf: from_rng(None, leaf.shape, leaf.dtype), shapes)
    want = X
    for i in range(2):
        (layer,) = jax.tree.map(lambda leaf, i=i: leaf[i], variables["params"]).values()
        want = want + attention.layer(layer, want, np.arange(6), seen=CAUSAL)
    np.testing.assert_allclose(quick(stack.apply)(variables, X, None)[0], want, atol=1e-5)


@MAKERS
@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda f: f(rotation=jnp.ones(4)), TypeError, "positional_attention: rotation must be a width, Frequencies, .* or None, got float32 of shape"),
        (lambda f: f(rotation=7), ValueError, "positional_attention: rotation: frequencies must have an even dim, got 7"),
        (lambda f: f(8), TypeError, "positional_attention: arguments must be given by name, as rotation=8"),
        (lambda f: f(rotation=True), TypeError, "rotation must be a width, .* got bool True"),
        (lambda f: f(rotation=lambda *qkij: qkij[:2], layout="interleaved"), ValueError, "layout and part must be left out unless rotation is a width or Frequencies, got 'interleaved' and 'first'"),
        (lambda f: f(bias=pe.alibi, part="last"), ValueError, "layout and part must be left out unless rotation is"),
        (lambda f: f(rotation=8, num_axes=2), ValueError, "num_axes must be that of the frequencies, 1, or None, got 2"),
        (lambda f: f(bias=pe.alibi, num_axes=0), ValueError, "num_axes must be at least 1, got 0"),
        (lambda f: f(bias=pe.alibi, bias_positions="indices"), ValueError, "bias_positions must be one of .* got 'indices'"),
        (lambda f: f(rotation=lambda q, k, i, j: q)(Q, K, V), TypeError, "what rotation returns must be query and key as float32 of shape"),
        (lambda f: f(rotation=lambda q, k, i, j: (q, k[:, :, :1]))(Q, K, V), ValueError, r"rotation must return query and key as .* got .* \(2, 6, 1, 8\)"),
        (lambda f: f(rotation=lambda q, k, i, j: (q, k.astype(jnp.bfloat16)))(Q, K, V), ValueError, "rotation must return query and key as .* and bfloat16"),
        (lambda f: f(bias=pe.alibi, num_axes=2)(Q, K, V), ValueError, "input_positions must be given for positions of 2 coordinates, got None"),
        (lambda f: f(rotation=8, layout="x"), ValueError, "positional_attention: layout must be one of .* got 'x'"),
        (lambda f: f(rotation=8, part="middle"), ValueError, "positional_attention: part must be one of .* got 'middle'"),
        (lambda f: f(rotation=8)(Q[:, :1], K, V), ValueError, "input_positions must be given where queries and keys differ in number, 1 and 6, got None"),
        (lambda f: f(rotation=8)(Q[:, :1], K, V, input_positions=3), ValueError, r"key_positions must be given where queries and keys differ in number, 1 and 6 \(Flax's cache has one query and a mask\), got None"),
        (lambda f: f(rotation=8)(Q[:, :1], K, V, None, WRITTEN, input_positions=np.array([[3], [4]])), ValueError, r"input_positions must be one slot for all rows if the keys are Flax's cache \(for others, give key_positions\), got shape \(2, 1\)"),
        (lambda f: f(rotation=8)(Q[:, :1], K, V, None, WRITTEN, input_positions=4, is_causal=True), ValueError, "is_causal must be False with one query, from which it hides all keys but the first, got True"),
        (lambda f: f(rotation=8)(Q[:, :2], K, V, mask=CAUSAL[..., :2, :], input_positions=np.arange(2)), ValueError, "key_positions must be given where queries and keys differ in number, 2 and 6"),
        (lambda f: f(rotation=8)(Q, K[:, :2], V[:, :2], input_positions=np.arange(6)), ValueError, "key_positions must be given where queries and keys differ in number, 6 and 2 "),
        (lambda f: f(rotation=pe.axial(8, 2))(Q[:, :1], K, V, mask=WRITTEN, input_positions=np.zeros((1, 2), int)), ValueError, r"give key_positions\), got shape \(1, 2\)"),
        (lambda f: f(rotation=8)(Q[:, :1], K, V, key_positions=np.arange(6)), ValueError, "input_positions must be given with key_positions, got None"),
        (lambda f: f(rotation=8)(Q, K, V, key_positions=np.arange(6)), ValueError, "input_positions must be given with key_positions, got None"),
        (lambda f: f(rotation=8)(Q, K, V, input_positions=3), ValueError, r"input_positions must hold 6 along the sequence, got shape \(\)"),
        (lambda f: f(rotation=8)(Q, K, V, input_positions=np.array([[3], [4]])), ValueError, r"input_positions must hold 6 along the sequence, got shape \(2, 1\)"),
        (lambda f: f(rotation=8)(Q, K, V, input_positions=np.arange(6), key_positions=np.arange(5)), ValueError, r"key_positions must hold 6 along the sequence, got shape \(5,\)"),
        (lambda f: f(rotation=8)(Q, K, V, input_positions=np.zeros((3, 6), int)), ValueError, r"positional_attention: input_positions of shape \(3, 6\) must broadcast to query without heads"),
        (lambda f: f(rotation=8)(Q, K, V, input_positions=[0, 1, 2, 3, 4, 5]), TypeError, "positional_attention: input_positions must be an integer or float array"),
        (lambda f: f(rotation=16)(Q, K, V), ValueError, "frequencies of width 16 must fit into head_dim"),
        (lambda f: f(rotation=8)(Q[0, :, 0], K, V), ValueError, r"positional_attention: query must have shape \(..., seq, heads, head_dim\), got \(6, 8\)"),
        (lambda f: f(rotation=8)(Q, K.astype(int), V), TypeError, "positional_attention: key must be a float array"),
        (lambda f: f(rotation=pe.axial(8, 2))(Q, K, V), ValueError, "input_positions must be given for positions of 2 coordinates, got None"),
    ],
)  # fmt: skip
def test_bad_input(make, call, error, match):
    with pytest.raises(error, match=match):
        call(make)
