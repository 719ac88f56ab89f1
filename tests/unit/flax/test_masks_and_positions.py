"""positional_attention under any mask, rotation and kind of position: dense and in tiles, against float64."""

import functools

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
from helpers.quick import quick
from helpers.tiers import slow
from oracles.attention import dense, may_see
from posenc_jax.hf import rotary_from_config

RNG = np.random.default_rng(5)
Q, K, V = RNG.normal(size=(3, 2, 6, 2, 8)).astype(np.float32)  # batch, seq, heads, head_dim
COUNTED, RESTARTED = np.arange(6), np.int32([[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 1]])
SEGMENTS = np.int32([[1, 1, 1, 2, 2, -1], [4, 4, 4, 4, 0, 0]])
OTHERS = np.int32([[4, 4, 0, 0, 0, 4], [4, 0, 4, 0, 4, 0]])
BY_QUERY = RNG.random((2, 1, 6, 6)) < 0.6
BY_QUERY |= np.eye(6, dtype=bool)  # Flax averages all values where a query sees nothing
BY_HEAD = (RNG.random((1, 2, 6, 6)) < 0.6) | np.eye(6, dtype=bool)
GRID = np.stack([COUNTED // 3, COUNTED % 3], -1)
TIMES = np.float32([0, 0.5, 0.5, 2.25, 7, 100])
OTHER_TIMES = np.stack([TIMES, TIMES[::-1] / 3])  # of each sequence
SLOPES = np.float32([0.2, 0.7])
OF_HEADS = np.float32(RNG.uniform(0.1, 1, (2, 1, 4)))  # heads, axes, pairs
PLAN = rotary_from_config({"model_type": "llama4_text", "head_dim": 8, "num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]})  # fmt: skip


def manhattan(i, j):
    """A bias of coordinates (..., tokens, 2), (..., heads, queries, keys)."""
    steps = abs(i[..., :, None, :] - j[..., None, :, :]).sum(-1)
    return -SLOPES[:, None, None] * steps[..., None, :, :].astype(np.float32)


def apart(i, j):
    """A bias of one number per token."""
    return -SLOPES[:, None, None] * abs(i[..., None, :, None] - j[..., None, None, :]).astype(np.float32)


def one_row(i, j):
    """A bias that takes positions without a batch alone."""
    return -((i[:, None] - j) ** 2 / np.float32(10))[None] * np.ones((2, 1, 1), np.float32)


def of_content(i, j, query, key):
    """A bias of coordinates and tokens."""
    module = jnp if isinstance(query, jax.Array) else np
    rows = module.moveaxis(query[..., :2], -2, -3)  # (..., heads, queries, 2)
    return (rows @ module.swapaxes(j[..., None, :, :].astype(np.float32), -1, -2)) / 8


def by_heads(query, key, i, j):
    return tuple(pe.rotary(x, p, OF_HEADS, head_axis=-2) for x, p in ((query, i), (key, j)))


def of_plan(query, key, i, j):
    query = PLAN.rotate(query, 3, i, head_axis=-2, role="query")  # scales queries by position, and does not rotate
    return query, PLAN.rotate(key, 3, j, head_axis=-2, role="key")


def rotated(positions, omega, x=Q):
    """x in float64, pairs (i, i + 4); the angles (..., 4) are Σ over coordinates, or of each head."""
    angles = np.asarray(positions, np.float64)[..., None, None] * omega
    first, second = np.float64(x[..., :4]), np.float64(x[..., 4:])
    c, s = np.cos(angles), np.sin(angles)
    return np.concatenate([first * c - second * s, second * c + first * s], -1)


ROPE = 10_000.0 ** (-np.arange(4) / 4)
ROTATED = rotated(COUNTED, ROPE), rotated(COUNTED, ROPE, K)
AXIAL = np.stack([np.repeat(GRID[:, :1], 2, 1), np.repeat(GRID[:, 1:], 2, 1)], 1).reshape(6, 4)
AXIAL_ROTATED = [rotated(np.ones(6), (AXIAL * np.tile([1, 0.01], 2))[:, None], x) for x in (Q, K)]
CAUSAL = may_see(COUNTED, COUNTED, causal=True)
# name → settings, options of `attention`, the call, rotated query and key, bias, what is seen
CASES = {
    "a mask of queries and keys": ({"rotation": 8}, {"mask": BY_QUERY}, ROTATED, 0, BY_QUERY),
    "a mask of each head, in floats": ({"bias": apart}, {"mask": np.float32(BY_HEAD)}, (Q, K), apart(COUNTED, COUNTED), BY_HEAD),
    "a mask that all sequences share": ({"bias": apart}, {"mask": BY_QUERY[:1]}, (Q, K), apart(COUNTED, COUNTED), BY_QUERY[:1]),
    "segments": ({"rotation": 8}, {"mask": nnx_modules.SegmentMask(SEGMENTS)}, ROTATED, 0, may_see(COUNTED, COUNTED, segments=(SEGMENTS,) * 2)),
    "segments of other keys": ({"bias": apart}, {"mask": nnx_modules.SegmentMask(OTHERS, SEGMENTS[1:])}, (Q, K), apart(COUNTED, COUNTED),
        may_see(COUNTED, COUNTED, segments=(OTHERS, SEGMENTS[1:]))),
    "packed": ({"bias": apart}, {"mask": nnx_modules.SegmentMask(SEGMENTS), "input_positions": RESTARTED, "is_causal": True}, (Q, K),
        apart(RESTARTED, RESTARTED), may_see(COUNTED, COUNTED, segments=(SEGMENTS,) * 2) & CAUSAL),
    "axes, a bias of the index": ({"rotation": pe.axial(8, 2), "bias": apart, "bias_positions": "index"}, {"input_positions": GRID}, AXIAL_ROTATED, apart(COUNTED, COUNTED), True),
    "axes, a bias of coordinates": ({"rotation": pe.axial(8, 2), "bias": manhattan}, {"input_positions": np.stack([GRID] * 2), "is_causal": True}, AXIAL_ROTATED, manhattan(GRID, GRID), CAUSAL),
    "coordinates without a rotation": ({"bias": manhattan, "content_bias": of_content, "num_axes": 2}, {"input_positions": GRID}, (Q, K), manhattan(GRID, GRID) + of_content(GRID, GRID, Q, K), True),
    "times": ({"rotation": 8, "bias": apart}, {"input_positions": TIMES, "is_causal": True}, (rotated(TIMES, ROPE), rotated(TIMES, ROPE, K)), apart(TIMES, TIMES), CAUSAL),
    "times of each sequence": (
        {"rotation": 8, "bias": apart},
        {"input_positions": OTHER_TIMES},
        (rotated(OTHER_TIMES, ROPE), rotated(OTHER_TIMES, ROPE, K)),
        apart(OTHER_TIMES, OTHER_TIMES),
        True,
    ),
    "times, a bias of the index": ({"rotation": 8, "bias": apart, "bias_positions": "index"}, {"input_positions": TIMES[::-1]}, (rotated(TIMES[::-1], ROPE), rotated(TIMES[::-1], ROPE, K)), apart(COUNTED, COUNTED), True),
    "a bias of the index at positions": ({"bias": apart, "bias_positions": "index"}, {"input_positions": COUNTED * 7, "key_positions": COUNTED}, (Q, K), apart(COUNTED, COUNTED), True),
    "frequencies of each head": ({"rotation": by_heads}, {"input_positions": COUNTED + 3}, (rotated(COUNTED, OF_HEADS[:, 0]), rotated(COUNTED, OF_HEADS[:, 0], K)), 0, True),
    "a module of the same settings": (
        {"rotation": "RotaryEncoding"},
        {"input_positions": COUNTED, "key_positions": COUNTED + 2},
        (rotated(COUNTED, ROPE), rotated(COUNTED + 2, ROPE, K)),
        0,
        True,
    ),
    "a bias of one row at positions as data": (
        {"bias": one_row, "bias_positions": "index"},
        {"input_positions": COUNTED * 3},
        (Q, K),
        one_row(COUNTED, COUNTED),
        True,
    ),
    "frequencies of each head, other keys": (
        {"rotation": by_heads},
        {"input_positions": COUNTED + 3, "key_positions": COUNTED},
        (rotated(COUNTED + 3, OF_HEADS[:, 0]), rotated(COUNTED, OF_HEADS[:, 0], K)),
        0,
        True,
    ),
    "a layer of a plan": ({"rotation": of_plan}, {"input_positions": COUNTED * 9000}, (Q * (1 + 0.1 * np.log(1 + (COUNTED * 9000 + 1) // 8192))[:, None, None], K), 0, True),
}  # fmt: skip
WAYS = {
    "nnx": (nnx_modules.positional_attention, None),
    "nnx, tiles": (nnx_modules.positional_attention, functools.partial(pe.attention, block_size=4)),
    "linen": (linen.positional_attention, None),
    "linen, tiles": (linen.positional_attention, functools.partial(pe.attention, block_size=4)),
}


@pytest.fixture
def as_flax():
    """Flax's own layers add biases of other ranks and dtypes."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.parametrize("way", ["nnx", "nnx, tiles", slow("linen"), slow("linen, tiles")])
def test_each_is_attention_as_it_says(way, as_flax):
    make, attention = WAYS[way]

    def every(q, k, v):
        for name, (settings, call, *_) in CASES.items():
            if make is nnx_modules.positional_attention or "is_causal" not in call:  # Linen has no is_causal
                if settings.get("rotation") == "RotaryEncoding":
                    modules = nnx_modules if make is nnx_modules.positional_attention else linen
                    settings = {"rotation": modules.RotaryEncoding(8, head_axis=-2)}
                yield name, make(**settings, attention=attention)(q, k, v, **call)

    for name, got in quick(lambda *qkv: dict(every(*qkv)))(Q, K, V).items():
        *_, (q, k), bias, seen = CASES[name]
        assert_within(got, dense(q, k, V, bias, seen).y, 3e-6, against=name)


def from_numpy(key, shape, dtype):
    """An initialiser that compiles nothing."""
    return (RNG.normal(size=shape) / 4).astype(dtype)


def layer_of(stack, attend):
    """An attention layer of either stack, as a function of its input and mask."""
    if stack == "nnx":
        settings = {"kernel_init": from_numpy, "bias_init": from_numpy, "decode": False, "rngs": nnx.Rngs(0)}
        layer = nnx.MultiHeadAttention(2, 16, attention_fn=attend, **settings)
        graphdef, state = nnx.split(layer)
        return state, lambda state, x, **options: nnx.merge(graphdef, state)(x, **options)
    layer = nn.MultiHeadDotProductAttention(2, attention_fn=attend)
    return layer.init(jax.random.key(0), np.zeros((1, 6, 16), np.float32)), layer.apply


@pytest.mark.parametrize("stack", ["nnx", slow("linen")])
def test_packed_documents_are_as_if_alone(stack, as_flax):
    """Outputs and gradients of a packed row are those of its documents, whose positions need not restart."""
    modules = nnx_modules if stack == "nnx" else linen
    tiles = functools.partial(pe.attention, causal=True, block_size=4)
    state, call = layer_of(stack, modules.positional_attention(rotation=8, bias=modules.ALiBi(2), attention=tiles))
    x, ids = RNG.normal(size=(1, 6, 16)).astype(np.float32), np.int32([[5, 5, 5, 5, 2, 2]])

    def outputs(state):
        yield call(state, x, mask=modules.SegmentMask(ids))
        yield jnp.concatenate([call(state, x[:, :4]), call(state, x[:, 4:])], 1)

    def gradients(state):
        return [jax.grad(lambda s, n=n: (list(outputs(s))[n] ** 2).sum())(state) for n in range(2)]

    (packed, alone), (by_packed, by_alone) = quick(lambda s: (list(outputs(s)), gradients(s)))(state)
    assert_within(packed, alone, 1e-6, against="each document alone")
    for got, want in zip(jax.tree.leaves(by_packed), jax.tree.leaves(by_alone), strict=True):
        assert_within(got, want, 1e-5, against="each document alone")


def attend(**settings):
    """The call of a new attention_fn, traced as far as its type."""
    call = settings.pop("call")
    return jax.eval_shape(lambda q: nnx_modules.positional_attention(rotation=8, **settings)(q, q, q, **call), Q)


def test_positions_that_restart_need_segments_or_a_mask_of_queries():
    bound, window = (functools.partial(pe.attention, **x) for x in ({"causal": True}, {"window": (9, 0)}))
    restarted = {"input_positions": RESTARTED}
    ways = (None, restarted | {"is_causal": True}), (pe.attention, restarted | {"is_causal": True}), (bound, restarted), (window, restarted)  # fmt: skip
    for attention, call in ways:
        for more in {}, {"mask": np.ones((2, 1, 1, 6), bool)}:
            message = "^positional_attention: input_positions must not return .* pass mask=SegmentMask"
            with pytest.raises(ValueError, match=message):
                attend(attention=attention, call=call | more)
        for mask in nnx_modules.SegmentMask(SEGMENTS), BY_QUERY, BY_HEAD[:, :1]:
            attend(attention=attention, call=call | {"mask": mask})
        traced = functools.partial(lambda call, p: attend(attention=bound, call=call | {"input_positions": p}), call)
        jax.eval_shape(traced, RESTARTED)
        with pytest.raises(ValueError, match=message):  # an array of JAX's that a traced function closes over
            attend(attention=attention, call=call | {"input_positions": jnp.asarray(RESTARTED)})
        message = message.replace("input_positions", "key_positions")
        with pytest.raises(ValueError, match=message):
            attend(attention=attention, call=call | {"input_positions": COUNTED, "key_positions": RESTARTED})
        with pytest.raises(ValueError, match="input_positions must not return"):  # times
            attend(attention=attention, call=call | {"input_positions": np.float32([0, 0.5, 1, 0, 0.5, 1])})
        attend(attention=attention, call=call | {"input_positions": np.float32([0, 0.5, 0.5, 1, 3, 3])})
        content = {"content_bias": lambda i, j, q, k: jnp.zeros((2, 6, 6))}
        attend(attention=attention, call=call, **content)
    real, padded = np.int32([[1, 1, 1, 0, 0, 0], [1] * 6]), functools.partial(pe.attention, causal=True)
    attend(attention=padded, call={"input_positions": pe.positions_from_mask(real), "mask": real[:, None, None] > 0})
    behind = functools.partial(pe.attention, causal=True, window=(2, 0))
    behind_window = {
        "input_positions": np.int32([8, 9, 10, 11, 12, 13]),
        "key_positions": np.int32([0, 1, 0, 1, 12, 13]),
    }
    attend(attention=behind, call=behind_window)
    with pytest.raises(ValueError, match="key_positions must not return"):  # at times, the window counts tokens
        times = {"input_positions": np.float32([8, 9, 10, 11, 12, 13]), "key_positions": np.float32([0, 1, 0, 1, 5, 6])}
        attend(attention=behind, call=times)
    attend(attention=None, call=restarted)  # both directions
    attend(attention=pe.attention, call=restarted)


def test_what_fits_no_segments():
    bad = {
        "ids of 5 tokens": ((SEGMENTS[:, :5],), r"query_segments must have shape \(..., 6\), got \(2, 5\)"),
        "ids of 3 rows": ((np.zeros((3, 6), int),), r"query_segments of shape \(3, 6\) must broadcast"),
        "ids of keys": ((SEGMENTS, SEGMENTS[:, :4]), r"key_segments must have shape \(..., 6\), got \(2, 4\)"),
    }
    for name, (segments, message) in bad.items():
        for attention in None, pe.attention:
            with pytest.raises(ValueError, match=message):
                attend(attention=attention, call={"mask": nnx_modules.SegmentMask(*segments)})
                raise AssertionError(name)
    with pytest.raises(
        ValueError, match="key_segments must be given to SegmentMask where queries and keys differ in number, 6 and 4"
    ):
        call = {"mask": nnx_modules.SegmentMask(SEGMENTS), "input_positions": COUNTED, "key_positions": np.arange(4)}
        jax.eval_shape(lambda q: nnx_modules.positional_attention(rotation=8)(q, q[:, :4], q[:, :4], **call), Q)
    for attention in None, pe.attention:
        with pytest.raises(
            ValueError, match=r"mask must be 1 where a query sees a key, and 0 where not, got -inf; a bias is added"
        ):
            attend(attention=attention, call={"mask": np.where(BY_QUERY, 0, -np.inf).astype(np.float32)})
        with pytest.raises(
            ValueError,
            match=r"key_segments, query_segments must be given as mask=SegmentMask\(query_segments, key_segments\)",
        ):
            attend(attention=attention, call={"query_segments": SEGMENTS, "key_segments": SEGMENTS})
    for mask in np.float32(SEGMENTS), "ids":
        with pytest.raises(TypeError, match="mask must be an array or a SegmentMask|query_segments must be an integer"):
            attend(call={"mask": mask if isinstance(mask, str) else nnx_modules.SegmentMask(mask)})


@pytest.mark.parametrize("attention", [None, pe.attention], ids=["dense", "tiles"])
def test_segments_join_the_masks_of_flax(attention, as_flax):
    """`combine_masks` and a step of a layer's cache, whose own mask hides the empty slots."""
    ids, x = np.int32([[1, 1, 2, 2, 2, 0]]), RNG.normal(size=(1, 6, 16)).astype(np.float32)
    attend = nnx_modules.positional_attention(bias=nnx_modules.ALiBi(2), attention=attention)
    state, call = layer_of("nnx", attend)
    step = linen.positional_attention(bias=linen.ALiBi(2), attention=attention)
    step = nn.MultiHeadDotProductAttention(2, decode=True, attention_fn=functools.partial(step, input_positions=np.array([3])))  # fmt: skip

    @quick
    def program(state):
        segments = nnx_modules.SegmentMask(ids)
        whole = call(state, x, mask=nnx.combine_masks(segments, nnx.make_causal_mask(ids)))
        params = {name: nnx.to_pure_dict(state)[name] for name in ("query", "key", "value", "out")}
        cache = {name: jnp.zeros((1, 6, 2, 8)) for name in ("cached_key", "cached_value")} | {
            "cache_index": jnp.int32(0)
        }
        for n in range(4):
            variables = {"params": params, "cache": cache}
            mask = linen.SegmentMask(ids[:, n : n + 1], ids)
            last, cache = step.apply(variables, x[:, n : n + 1], mask=mask, mutable=["cache"])
            cache = cache["cache"]
        return whole[:, 3:4], last

    whole, last = program(state)
    assert_within(last, whole, 1e-5, against="the whole")


@pytest.mark.parametrize("attention", [None, pe.attention], ids=["dense", "tiles"])
def test_a_step_of_the_cache_counts_slots(attention):
    """A function that rotates, and biases of the index: the last query beside keys 0, 1, 2, …."""
    rotation = lambda q, k, i, j: by_heads(q, k, 1 * i, 1 * j)  # noqa: E731
    attend = nnx_modules.positional_attention(
        rotation=rotation, bias=apart, bias_positions="index", attention=attention
    )
    step = {"input_positions": np.array([4]), "mask": (COUNTED <= 4)[None, None, None]}
    got = quick(lambda q, k, v: attend(q[:, 4:5], k, v, **step))(Q, K, V)
    scores = rotated(COUNTED[4:5], OF_HEADS[:, 0], Q[:, 4:5]), rotated(COUNTED, OF_HEADS[:, 0], K)
    assert_within(got, dense(*scores, V, apart(COUNTED[4:5], COUNTED), COUNTED <= 4).y, 3e-6)


def test_what_positions_of_other_keys_cannot_say():
    """The indices of queries beside more keys are unknown, so masks by index would hide the wrong keys."""
    q, k = (jax.ShapeDtypeStruct((1, n, 2, 8), np.float32) for n in (2, 6))
    grid = {"input_positions": GRID[4:], "key_positions": GRID}

    def call(attention, settings, **call):
        attend = nnx_modules.positional_attention(**settings, attention=attention)
        return jax.eval_shape(lambda q, k: attend(q, k, k, **call), q, k)

    of_grid, of_times = {"rotation": pe.axial(8, 2), "bias": manhattan}, {"rotation": 8}
    call(pe.attention, of_grid, **grid)
    for masked in {"causal": True}, {"window": (2, None)}:
        bound = functools.partial(pe.attention, **masked)
        with pytest.raises(
            ValueError,
            match="attention must bind neither causal nor window where .* 2 and 6, and positions are times or coordinates",
        ):
            call(bound, of_grid, **grid)
        with pytest.raises(ValueError, match="attention must bind neither causal nor window"):
            call(bound, of_times, input_positions=TIMES[4:], key_positions=TIMES)
    one = jax.ShapeDtypeStruct((1, 1, 2, 8), np.float32)
    with pytest.raises(ValueError, match="key_positions must be given where .* 1 and 6 .* got None: bind them"):
        segments = nnx_modules.SegmentMask(np.ones(1, int), np.ones(6, int))  # no cache of Flax's has one
        attend = nnx_modules.positional_attention(rotation=8)
        jax.eval_shape(lambda q, k: attend(q, k, k, input_positions=np.array([3]), mask=segments), one, k)
    with pytest.raises(ValueError, match="input_positions must be an integer, the slot, if the keys are Flax's cache"):
        attend = nnx_modules.positional_attention(rotation=8)
        jax.eval_shape(
            lambda q, k: attend(q, k, k, input_positions=TIMES[1:2], mask=np.ones((1, 1, 1, 6), bool)), one, k
        )


def test_the_index_is_what_nothing_masks_by():
    """Biases of the index get it as positions where `attention` masks by none, so a kernel needs no data."""
    given = lambda *qkv, **options: options  # noqa: E731
    settings = {"bias": apart, "bias_positions": "index"}
    options = nnx_modules.positional_attention(**settings, attention=given)(Q, K, V, input_positions=COUNTED * 7)
    assert "query_data" not in options
    np.testing.assert_array_equal(options["query_positions"], COUNTED)
    windowed = functools.partial(given, window=(9, 9))
    options = nnx_modules.positional_attention(**settings, attention=windowed)(Q, K, V, input_positions=COUNTED * 7)
    np.testing.assert_array_equal(options["query_positions"], COUNTED * 7)
    np.testing.assert_array_equal(options["query_data"]["positions"].ravel(), COUNTED)
