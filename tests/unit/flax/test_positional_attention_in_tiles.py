"""positional_attention(attention=pe.attention): the same attention in the layers of both stacks, without its matrix."""

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
from oracles.rotations import rope

needs_kernel = pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="the kernel needs JAX 0.11")
MAKERS = pytest.mark.parametrize("make", [nnx_modules.positional_attention, linen.positional_attention], ids=["nnx", "linen"])  # fmt: skip
FIRST = pytest.mark.parametrize("make", [nnx_modules.positional_attention, slow(linen.positional_attention)], ids=["nnx", "linen"])  # fmt: skip
RNG = np.random.default_rng(11)
Q, K, V = RNG.normal(size=(3, 2, 6, 2, 8)).astype(np.float32)  # batch, seq, heads, head_dim
X = RNG.normal(size=(2, 6, 16)).astype(np.float32)
TABLE = RNG.normal(size=(11, 8)).astype(np.float32)  # a row for each offset from −5 to 5
COUNTED = np.arange(6)
MIXED = np.array([3, 1, 4, 0, 5, 2])  # the index and the position give other causal masks
REAL = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 1, 1]], bool)  # tokens that are no padding
TILED = functools.partial(pe.attention, block_size=4)


@pytest.fixture
def as_flax():
    """Flax's own layers add biases of other ranks and dtypes."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def alibi(i, j):
    """Of two heads, in NumPy."""
    return -np.array([2.0**-4, 2.0**-8])[:, None, None] * abs(np.subtract.outer(i, j))


def content(i, j, query, key):
    return pe.content_bias(i, j, jnp.asarray(TABLE), query=query, first=-5)


def content_in_numpy(i, j):
    """Each query times the row of its offset."""
    return np.einsum("bqhd,qkd->bhqk", Q[:, : len(i)], TABLE[np.subtract.outer(i, j) + 5])


CASES = {
    "plain": ({}, {}, {}, {}),
    "causal by the index": ({}, {"input_positions": MIXED, "is_causal": True}, {"causal": True}, {}),
    "causal by the position": ({"causal": True}, {"input_positions": MIXED}, {"by": MIXED, "causal": True}, {}),
    "keys that are padding": ({}, {"mask": REAL[:, None, None]}, {"real": REAL}, {}),
    "causal with padding": ({}, {"mask": REAL[:, None, None], "is_causal": True}, {"real": REAL, "causal": True}, {}),
    "window": ({"window": (2, 0)}, {"input_positions": MIXED}, {"by": MIXED, "window": (2, 0)}, {}),
    "capped, with sinks": ({"logits_soft_cap": 2.0, "sinks": np.float32([0.5, -1])}, {}, {}, {"cap": 2.0, "sinks": [0.5, -1]}),
    "other keys": ({}, {"input_positions": MIXED, "key_positions": COUNTED}, {}, {}),
}  # fmt: skip


@FIRST
def test_is_what_the_formula_says(make):
    """Rotated, under a bias of positions and one of content, with masks as Flax gives them and options of `attention`."""
    biases = {"bias": functools.partial(pe.alibi, heads=2), "content_bias": content}

    def every(q, k, v):
        made = {
            name: make(rotation=8, **biases, attention=functools.partial(TILED, **case[0]))
            for name, case in CASES.items()
        }
        of_linen = make is linen.positional_attention
        return {name: made[name](q, k, v, **CASES[name][1]) for name in made if not (of_linen and "index" in name)}

    for name, got in quick(every)(Q, K, V).items():
        _, call, masks, options = CASES[name]
        i = call.get("input_positions", COUNTED)
        j = call.get("key_positions", i)
        by = masks.get("by", COUNTED)
        seen = may_see(by, by, **{n: x for n, x in masks.items() if n in ("causal", "window")})
        seen = seen & masks.get("real", np.ones((1, 6), bool))[:, None, None]
        want = dense(rope(Q, i), rope(K, j), V, alibi(i, j) + content_in_numpy(i, j), seen, **options).y
        assert_within(got, want, 3e-6, against=name)


def test_a_step_of_flaxs_cache_and_positions_of_several_axes():
    attend = nnx_modules.positional_attention(rotation=8, bias=functools.partial(pe.alibi, heads=2), attention=TILED)
    written = (COUNTED <= 4)[None, None, None]
    grid = pe.axial(8, 2)
    places = np.stack([COUNTED // 3, COUNTED % 3], -1)
    of_grid = nnx_modules.positional_attention(rotation=grid, attention=TILED)

    def both(q, k, v):
        step = attend(q[:, 4:5], k, v, input_positions=jnp.array([4]), mask=written)
        return step, of_grid(q, k, v, input_positions=places, is_causal=True)

    step, of_images = quick(both)(Q, K, V)
    scores = rope(Q[:, 4:5], COUNTED[4:5]), rope(K, COUNTED)
    assert_within(step, dense(*scores, V, alibi(COUNTED[4:5], COUNTED), written).y, 3e-6, against="a step")
    turned = [np.asarray(pe.rotary(x, places, grid, head_axis=-2)) for x in (Q, K)]
    want = dense(*turned, V, 0.0, may_see(COUNTED, COUNTED, causal=True)).y
    assert_within(of_images, want, 3e-6, against="a grid, causal by the index")


def of_linen(attention):
    modules = {"bias": linen.T5Bias(2), "content_bias": linen.ContentBias(11, 8, source="query", scale=1.0)}
    attend = linen.positional_attention(rotation=8, **modules, attention=attention)
    return nn.MultiHeadDotProductAttention(2, attention_fn=attend)


def of_nnx(attention):
    rngs = nnx.Rngs(0)
    modules = {"bias": nnx_modules.T5Bias(2, rngs=rngs)}
    modules["content_bias"] = nnx_modules.ContentBias(11, 8, source="query", scale=1.0, rngs=rngs)
    attend = nnx_modules.positional_attention(rotation=8, **modules, attention=attention)
    return nnx.MultiHeadAttention(2, 16, attention_fn=attend, decode=False, rngs=rngs)


def test_a_layer_of_linen_has_the_tables_of_its_biases(as_flax):
    """It makes them before the tiles, for one query and one key."""
    parameters = jax.eval_shape(lambda: of_linen(TILED).init(jax.random.key(0), X))["params"]
    shapes = jax.tree.map(lambda a: a.shape, parameters["attention_fn"])
    assert shapes == {"bias": {"embedding": (32, 2)}, "content_bias": {"embedding": (11, 8)}}


@pytest.mark.slow
def test_trains_in_the_layers_of_both_stacks(as_flax):
    """Outputs and gradients of all parameters, the biases' too, are those of Flax's attention."""
    rng = np.random.default_rng(3)
    bound, causal = functools.partial(TILED, causal=True), np.tril(np.ones((1, 1, 6, 6), bool))
    layer = of_linen(None)
    variables = jax.tree.map(
        lambda a: rng.normal(size=a.shape).astype(np.float32) / 4, jax.eval_shape(layer.init, jax.random.key(0), X)
    )

    def loss(variables, layer, **options):
        return (layer.apply(variables, X, **options) ** 2).sum()

    want = quick(jax.value_and_grad(functools.partial(loss, layer=layer, mask=causal)))(variables)
    found = [quick(jax.value_and_grad(functools.partial(loss, layer=of_linen(bound))))(variables)]
    graphdef, state = nnx.split(nnx.eval_shape(lambda: of_nnx(bound)))
    nnx.replace_by_pure_dict(state, variables["params"])
    of_state = quick(jax.value_and_grad(lambda state: (nnx.merge(graphdef, state)(X) ** 2).sum()))
    value, gradients = of_state(state)
    found.append((value, {"params": nnx.to_pure_dict(nnx.filter_state(gradients, nnx.Param))}))
    for got in found:
        np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5 * abs(b).max()), got[1], want[1])


def test_memory_is_linear_in_a_layer(as_flax):
    def made():
        causal = functools.partial(pe.attention, causal=True)
        attend = nnx_modules.positional_attention(rotation=16, bias=nnx_modules.ALiBi(2), attention=causal)
        return nnx.MultiHeadAttention(2, 32, attention_fn=attend, decode=False, rngs=nnx.Rngs(0))

    graphdef, state = nnx.split(nnx.eval_shape(made))
    x = jax.ShapeDtypeStruct((1, 8192, 32), jnp.float32)
    ids = jax.ShapeDtypeStruct((1, 8192), jnp.int32)
    packed = lambda state, x, ids: nnx.merge(graphdef, state)(x, mask=nnx_modules.SegmentMask(ids))  # noqa: E731
    program = jax.jit(packed).lower(state, x, ids).compile()
    assert program.memory_analysis().temp_size_in_bytes < 2 * 8192**2  # a fourth of the matrix of scores


@needs_kernel
@pytest.mark.slow
def test_the_kernel_in_a_layer(as_flax, monkeypatch):
    """A layer trains by it: outputs, and gradients of the weights and of T5's table."""
    from helpers.hopper import interpreted

    interpreted(monkeypatch.setattr)
    x, found = np.random.default_rng(5).normal(size=(1, 130, 128)).astype(np.float32), []
    for implementation in ("xla", "mosaic_gpu"):
        attention = functools.partial(pe.attention, implementation=implementation, causal=True)
        bias = nnx_modules.T5Bias(2, bidirectional=False, rngs=nnx.Rngs(1))
        attend = nnx_modules.positional_attention(rotation=64, bias=bias, attention=attention)
        settings = {"decode": False, "dtype": jnp.bfloat16, "rngs": nnx.Rngs(0)}
        layer = nnx.MultiHeadAttention(2, 128, attention_fn=attend, **settings)

        @nnx.jit
        def run(layer):
            def loss(layer):
                y = layer(x).astype(jnp.float32)
                return jnp.mean(y**2), y

            return nnx.grad(loss, has_aux=True)(layer)

        gradients, y = run(layer)
        found.append((y, *jax.tree.leaves(gradients)))
    assert len(found[0]) == 10  # kernels and biases of four projections, and the table
    for got, want in zip(found[1], found[0], strict=True):
        assert np.any(want)
        assert_within(got, want, 2e-2 * np.abs(want).max(), against="XLA")


GIVEN = "bias key_data key_order key_positions key_segments query_data query_order query_positions query_segments return_residual".split()  # fmt: skip


@MAKERS
@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda f: f(rotation=8, attention="xla"), TypeError, "positional_attention: attention must be posenc_jax.attention or None, got"),
        (lambda f: f(rotation=8, attention=functools.partial(pe.attention, **dict.fromkeys(GIVEN))), ValueError, f"attention must not bind {', '.join(GIVEN)}: the attention_fn gives it"),
        (lambda f: f(rotation=8, attention=TILED)(Q, K, V, mask=np.ones((2, 1, 1, 5), bool)), ValueError, r"mask must broadcast to the scores, .* got shape \(2, 1, 1, 5\)"),
        (lambda f: f(rotation=8, attention=TILED)(Q, K, V, mask=np.ones((6, 6), bool)), ValueError, "mask must have the axes .* for .batch, keys. pass mask"),
        (lambda f: f(rotation=8)(Q, K, V, mask=np.ones((2, 6), bool)), ValueError, r"mask must broadcast to .* got shape \(2, 6\); for \(batch, keys\) pass mask"),
        (lambda f: f(rotation=8, attention=TILED)(Q, K, V, mask=np.ones((2, 1, 5), bool)), ValueError, r"mask must broadcast to the scores, .* got shape \(2, 1, 5\)"),
        (lambda f: f(rotation=8, attention=TILED)(Q, K, V, np.zeros((1, 2, 6, 6))), ValueError, r"bias must be None with attention \(Flax's own attention takes it\), got \(1, 2, 6, 6\)"),
        (lambda f: f(rotation=8, attention=TILED)(Q, K, V, dropout_rate=0.5), ValueError, r"dropout_rate must be 0.0 with attention .* got 0.5"),
        (lambda f: f(rotation=8, attention=TILED)(Q, K, V, dtype=jnp.bfloat16), ValueError, "dtype must be None with attention"),
        (lambda f: f(rotation=8, attention=TILED)(Q, K, V, precision="highest"), ValueError, "precision must be None with attention .* got highest"),
        (lambda f: f(rotation=8, attention=TILED)(Q, K, V, module=object()), ValueError, "module must be None with attention"),
        (lambda f: f(rotation=8, bias=lambda i, j: jnp.zeros((3, 6, 6)), attention=TILED)(Q, K, V), ValueError, "bias"),
        slow(lambda f: f(rotation=8, attention=TILED)(Q, K, V, is_causal=1), TypeError, "is_causal must be"),
    ],
)  # fmt: skip
def test_bad_input(make, call, error, match):
    with pytest.raises(error, match=match):
        call(make)


def test_what_changes_nothing_is_taken():
    """Layers always pass these; dropout is off where it is deterministic."""
    attend = nnx_modules.positional_attention(rotation=8, attention=lambda *qkv, **options: options)
    options = {"dropout_rng": 1, "broadcast_dropout": False, "dtype": jnp.float32, "precision": None, "module": None}
    assert attend(Q, K, V, dropout_rate=0.5, deterministic=True, **options) == {}
    assert attend(Q, K, V, dropout_rate=0.0, is_causal=True, **options) == {"causal": True}
    assert attend(*map(np.float64, (Q, K, V))) == {}
