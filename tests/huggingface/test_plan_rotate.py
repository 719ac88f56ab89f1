"""`RotaryPlan.rotate`: each layer as the model has it, static or traced, on meshes and under transformations."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers.quick import quick
from helpers.tiers import thorough, tiered
from huggingface.published import DEEPSEEK_V3
from oracles import rotations
from oracles.configs import query_scale
from posenc_jax.hf import QueryScale, RotaryLayer, RotaryPlan, rotary_from_config

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 5, 3, 8)).astype(np.float32)
AT = np.int32([[0, 1, 2, 3, 4], [1_000_000, 7, 3, 2_000_000_000, 5]])
NOPE, FAST, YARN = pe.geometric(0), pe.geometric(8, 100.0), pe.yarn(8, 10_000.0, 8.0, 64)
SCALE = QueryScale(0.1, 4, 1)
# Rotates, does not, scales queries, both with an amplitude; equal layers are one choice.
PLAN = RotaryPlan(
    (
        RotaryLayer(FAST, 8),
        RotaryLayer(NOPE, 8),
        RotaryLayer(NOPE, 8, SCALE),
        RotaryLayer(FAST, 8),
        RotaryLayer(YARN, 8, SCALE),
    ),
    "interleaved",
    softmax_scale=1.7,
)


def formula(layer, role, scaled, x=X):
    """In float64."""
    f = PLAN.layers[layer].frequencies
    angles = AT[..., None, None] * f.angular
    y = np.float64(x)
    if f.dim:
        y = f.attention_factor * rotations.rotate_by(y, angles, "interleaved")
    if role == "query" and PLAN.layers[layer].query_scale:
        y = y * np.reshape(query_scale(AT.ravel().tolist(), 0.1, 4, 1), AT.shape)[..., None, None]
    return y * (1.7 if scaled and role == "query" else 1)


def rotate(x, layer, role, scaled=False, positions=AT):
    return PLAN.rotate(x, layer, positions, head_axis=-2, role=role, scaled=scaled)


@pytest.mark.parametrize(
    ("role", "scaled"), [("query", True), ("key", False), thorough("query", False), thorough("key", True)]
)
def test_each_layer_is_its_formula(role, scaled):
    def every(x):
        return [rotate(x, layer, role, scaled) for layer in range(5)]

    def traced(x):
        return jax.lax.map(lambda layer: rotate(x, layer, role, scaled), np.arange(-1, 6))

    static, by_index = quick(lambda x: (every(x), traced(x)))(X)
    by_index = np.asarray(by_index)
    for layer, y in enumerate(static):
        np.testing.assert_allclose(y, formula(layer, role, scaled), rtol=1e-6, atol=1e-6, err_msg=f"layer {layer}")
        np.testing.assert_array_equal(by_index[1 + layer], y, f"layer {layer}")
    assert np.isnan(by_index[0]).all() and np.isnan(by_index[-1]).all()
    if not scaled or role == "key":
        np.testing.assert_array_equal(static[1], X)  # bit for bit


@pytest.mark.parametrize("dtype", [jnp.bfloat16, thorough(jnp.float16)])
def test_scales_are_rounded_once(dtype):
    x = X.astype(dtype)
    both = jax.jit(lambda *each: [rotate(x, layer, "query", True) for layer in (2, 4) for x in each])
    found = both(x, x.astype(np.float32))
    for layer, got, want in ((2, *found[:2]), (4, *found[2:])):
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, np.asarray(want).astype(dtype), f"layer {layer}")


def test_under_transformations():
    f = lambda x, layer: jnp.sum(rotate(x, layer, "query") * X[::-1])  # noqa: E731

    @jax.jit
    def of_each_layer(x, layers):
        by_layer = [functools.partial(rotate, layer=layer, role="query") for layer in range(5)]
        return {
            "each": [turn(x) for turn in by_layer],
            "mapped": jax.vmap(lambda layer, x: rotate(x, layer, "query"), (0, None))(layers, x),
            "backwards": [turn(x[::-1]) for turn in by_layer],
            "tangents": [jax.jvp(turn, (x,), (x[::-1],))[1] for turn in by_layer],
            "gradients": [jax.grad(f)(x, layer) for layer in range(5)],
        }

    got = of_each_layer(X, np.arange(5, dtype=np.int32))
    np.testing.assert_array_equal(got["mapped"], got["each"])
    np.testing.assert_array_equal(got["tangents"], got["backwards"])
    traced = jax.jit(jax.grad(f))
    for layer in range(5):
        np.testing.assert_array_equal(traced(X, layer), got["gradients"][layer], f"layer {layer}")


@pytest.mark.thorough
def test_export():
    exported = export.export(jax.jit(lambda x, layer: rotate(x, layer, "key")), platforms=("cpu", "cuda", "tpu"))
    loaded = export.deserialize(exported(X, np.int32(0)).serialize())
    np.testing.assert_array_equal(loaded.call(X, np.int32(4)), rotate(X, 4, "key"))


SPLIT = [(P("d", None, "h"), P("d")), (P("d", None, "h"), P()), (P(), P("d")), (P(None, None, "h"), P("d"))]
BIG, AT8 = RNG.normal(size=(4, 6, 4, 8)).astype(np.float32), np.arange(24, dtype=np.int32).reshape(4, 6)


@pytest.mark.thorough
@pytest.mark.parametrize(("x_spec", "p_spec"), SPLIT)
def test_branches_share_a_sharding(x_spec, p_spec, on_cpu):
    mesh = jax.make_mesh((2, 4), ("d", "h"), axis_types=(AxisType.Explicit,) * 2, devices=jax.devices("cpu"))
    f = lambda x, p, layer: rotate(x, layer, "query", positions=p)  # noqa: E731
    want = jax.jit(lambda x, p: [f(x, p, layer) for layer in range(5)])(BIG, AT8)
    with jax.set_mesh(mesh):
        x, p = (jax.device_put(a, NamedSharding(mesh, s)) for a, s in ((BIG, x_spec), (AT8, p_spec)))
        of_rotary = jax.eval_shape(lambda x, p: pe.rotary(x, p, FAST, head_axis=-2), x, p)
        for layer in range(5):
            got = jax.jit(f)(x, p, layer)
            assert jax.typeof(got).sharding == of_rotary.sharding
            np.testing.assert_array_equal(got, want[layer], f"layer {layer}")


@pytest.mark.parametrize("x_spec", tiered([P("d"), P()], [P("d")]))
def test_in_shard_map(x_spec, on_cpu):
    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:4])
    f = lambda x, p, layer: rotate(x, layer, "query", positions=p)  # noqa: E731
    layers = 0, 1, 2, 4
    x = BIG if x_spec == P("d") else BIG[:1]
    whole = jax.jit(lambda x, p: [f(x, p, layer) for layer in layers])(np.broadcast_to(x, BIG.shape), AT8)
    split = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=(x_spec, P("d"), P()), out_specs=P("d")))
    for layer, want in zip(layers, whole, strict=True):
        np.testing.assert_array_equal(split(x, AT8, layer), want, f"layer {layer}")


def test_a_layer_without_positions_in_a_model_of_several_coordinates():
    layers = RotaryLayer(pe.axial(8, 2), 8), RotaryLayer(NOPE, 8)
    plan, p = RotaryPlan(layers, "half"), np.stack([np.arange(5), np.arange(5) % 2], -1)
    scaling = RotaryPlan((layers[0], RotaryLayer(NOPE, 8, SCALE)), "half")  # by the first coordinate

    @jax.jit
    def each(x, layer):
        turn = functools.partial(plan.rotate, positions=p, head_axis=-2)
        scaled = scaling.rotate(x, 1, p + [[1000, 0]], head_axis=-2, role="query")
        return (turn(x, 0), pe.rotary(x, p, pe.axial(8, 2), head_axis=-2)), (turn(x, 1), turn(x, layer)), scaled

    (turned, want), still, scaled = each(X, 1)
    np.testing.assert_array_equal(turned, want)
    np.testing.assert_array_equal(still, [X, X])
    np.testing.assert_allclose(scaled, X * np.asarray(SCALE(np.arange(1000, 1005)))[:, None, None], rtol=1e-6)


def test_latent_attention():
    plan = rotary_from_config(DEEPSEEK_V3)
    x = RNG.normal(size=(1, 4, 2, 192)).astype(np.float32)
    still = dataclasses.replace(plan, layers=(RotaryLayer(NOPE, 192), *plan.layers))

    @jax.jit
    def each(x):
        turn = functools.partial(plan.rotate, layer=0, head_axis=-2)
        return {
            "whole": turn(x, role="query", scaled=False),
            "part": turn(x[..., 128:], role="key"),
            "scaled": turn(x, role="query", scaled=True),
            "key": turn(x, role="key", scaled=True),
            "still": still.rotate(x[..., 128:], 0, head_axis=-2, scaled=False),
        }

    got = {name: np.asarray(y) for name, y in each(x).items()}
    whole = got["whole"]
    np.testing.assert_array_equal(whole[..., :128], x[..., :128])
    np.testing.assert_array_equal(got["part"], whole[..., 128:])
    np.testing.assert_allclose(got["scaled"], plan.softmax_scale * whole, rtol=1e-6)
    np.testing.assert_array_equal(got["key"], whole)
    np.testing.assert_array_equal(got["still"], x[..., 128:])


def test_heads_before_the_sequence():
    turn = functools.partial(PLAN.rotate, layer=4, positions=AT, role="query", scaled=False)

    @jax.jit
    def each(x):
        return turn(x, head_axis=-2), turn(x.swapaxes(1, 2), head_axis=-3), turn(x[:, :, 0], head_axis=None)

    want, swapped, alone = map(np.asarray, each(X))
    np.testing.assert_array_equal(swapped.swapaxes(1, 2), want)
    np.testing.assert_array_equal(alone, want[:, :, 0])


UNEQUAL = dataclasses.replace(PLAN, layers=(*PLAN.layers, RotaryLayer(pe.geometric(4), 16)))
PARTS = RotaryPlan((RotaryLayer(pe.geometric(4).with_attention_factor(1.5), 8), RotaryLayer(FAST, 8)), "half")
BARE = RotaryPlan((RotaryLayer(FAST, 8), RotaryLayer(NOPE, 8)), "half")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: BARE.rotate(X, 0), TypeError, "head_axis"),
        (lambda: BARE.rotate(X, 2, head_axis=-2), ValueError, "RotaryPlan.rotate: layer must be from 0 to 1, got 2"),
        (lambda: BARE.rotate(X, np.asarray(-1), head_axis=-2), ValueError, "layer must be from 0 to 1, got -1"),
        (lambda: BARE.rotate(X, 1.0, head_axis=-2), TypeError, "layer must be an integer, got float 1.0"),
        (lambda: BARE.rotate(X, True, head_axis=-2), TypeError, "layer must be an integer, got bool True"),
        (lambda: jax.jit(lambda i: BARE.rotate(X, i, head_axis=-2))(1.5), TypeError, "layer must be an integer, got"),
        (lambda: jax.jit(lambda i: BARE.rotate(X, i, head_axis=-2))(np.arange(2)), ValueError, "layer must be a scalar"),
        (lambda: PLAN.rotate(X, 2, -AT, head_axis=-2, role="query", scaled=True), ValueError, "positions must be at least 0 where a layer"),
        (lambda: BARE.rotate(X[..., :6], 0, head_axis=-2), ValueError, "x must have 8 features in this layer, got shape"),
        (lambda: UNEQUAL.rotate(X, 5, head_axis=-2, role="key"), ValueError, "x must have 16 or 4 features in this layer"),
        (lambda: jax.jit(lambda i: PARTS.rotate(X[..., :4], i, head_axis=-2))(0), ValueError, "x must have 8 features in"),
        (lambda: PLAN.rotate(X, 0, head_axis=-2), ValueError, 'role must be "query" or "key", because layer 2 scales its'),
        (lambda: PLAN.rotate(X, 0, head_axis=-2, role="query"), ValueError, "scaled must be True or False, because .* 1.7, got"),
        (lambda: PLAN.rotate(X, 0, head_axis=-2, role="q"), ValueError, "role must be one of"),
        (lambda: BARE.rotate(X, 0, head_axis=-2, scaled=True), ValueError, 'role must be "query" or "key" with scaled'),
        (lambda: BARE.rotate(X, 0, head_axis=-2, scaled=1), TypeError, "scaled must be True or False, got int 1"),
        (
            lambda: jax.jit(lambda i: UNEQUAL.rotate(X, i, head_axis=-2, role="key"))(0),
            ValueError,
            "layer must be a Python integer where head_dim differs between layers, 8 in layer 0, 16 in layer 5",
        ),
    ],
)  # fmt: skip
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_no_positions_turn_nothing():
    """The trap that a width of 0 closes: `None` would have meant a base of 10,000."""
    for f in (pe.geometric(0), 0):
        np.testing.assert_array_equal(pe.rotary(X, AT, f, head_axis=-2), X)
        for q in pe.xpos(X, X, AT[0], f, head_axis=-2):
            np.testing.assert_array_equal(q, X)
    plan = rotary_from_config({"model_type": "smollm3", "head_dim": 8, "num_hidden_layers": 4, "rope_theta": 5e6})
    naive = functools.partial(pe.rotary, positions=AT, head_axis=-2)
    np.testing.assert_array_equal(naive(X, frequencies=plan.layers[3].frequencies), X)
    assert np.abs(naive(X, frequencies=plan.layers[2].frequencies) - X).max() > 0.1
    assert (pe.geometric(0).dim, pe.geometric(0).num_axes, pe.geometric(0).angular.shape) == (0, 1, (0,))
    assert repr(pe.geometric(0)) == "Frequencies(dim=0)"


@pytest.mark.thorough
def test_several_head_axes():
    divided = X.reshape(2, 5, 3, 1, 8)
    for layer in (4, jnp.int32(4)):
        call = jax.jit(
            lambda x, heads, layer: PLAN.rotate(x, layer, AT, head_axis=heads, role="query", scaled=True),
            static_argnums=1,
        )
        np.testing.assert_array_equal(call(divided, (-3, -2), layer), call(X, -2, layer)[..., None, :])


def test_a_traced_layer_checks_what_any_layer_needs():
    mixed = RotaryPlan((RotaryLayer(pe.axial(8, 2), 8), RotaryLayer(FAST, 8)), "half")
    with pytest.raises(ValueError, match=r"positions of shape \(5, 2\) must broadcast"):
        jax.jit(lambda layer: mixed.rotate(X, layer, np.zeros((5, 2), np.int32), head_axis=-2))(0)


def test_moving_keys_applies_no_amplitude_again():
    plan, k = RotaryPlan((RotaryLayer(YARN, 8), RotaryLayer(NOPE, 8)), "half"), X
    cached = plan.rotate(k, 0, head_axis=-2)
    with pytest.raises(ValueError, match=r"RotaryPlan.rotate: positions must not be one for all 5 vectors of x"):
        plan.rotate(cached, 0, 7, head_axis=-2)
    there = plan.rotate(k, 0, np.arange(7, 12), head_axis=-2)
    np.testing.assert_allclose(plan.shift_keys(cached, 0, 7, head_axis=-2), there, atol=1e-6)
    np.testing.assert_array_equal(plan.shift_keys(k, 1, 7, head_axis=-2), k)  # a layer without positions
    np.testing.assert_array_equal(plan.rotate(k, 1, 7, head_axis=-2), k)
    either = jax.jit(lambda k, layer: plan.shift_keys(k, layer, 7, head_axis=-2))
    np.testing.assert_allclose(either(cached, 0), there, atol=1e-6)


def test_a_query_scale_reads_the_position_of_one_token():
    """Llama 4 scales the queries of layers without positions, by their position."""
    scaled = RotaryPlan((RotaryLayer(NOPE, 8, QueryScale(0.1, 2)), RotaryLayer(NOPE, 8)), "half")
    one = functools.partial(scaled.rotate, X[:, :1], head_axis=-2)
    with pytest.raises(ValueError, match="RotaryPlan.rotate: positions must be given where x holds one token"):
        one(0, role="query")
    with pytest.raises(ValueError, match="RotaryPlan.rotate: positions must not be one for all 5 vectors of x"):
        scaled.rotate(X, 0, 7, head_axis=-2, role="query")
    np.testing.assert_array_equal(one(0, role="key"), X[:, :1])
    assert not np.array_equal(one(0, 7, role="query"), one(0, 0, role="query"))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: RotaryLayer(None, 8), TypeError, "RotaryLayer: frequencies must be Frequencies or an integer width"),  # type: ignore
        (lambda: RotaryLayer(pe.geometric(7), 8), ValueError, "RotaryLayer: frequencies must have an even dim, got 7"),
        (lambda: RotaryLayer(FAST, 6), ValueError, "RotaryLayer: frequencies of width 8 must fit into a head_dim of 6"),
        (lambda: RotaryLayer(FAST, 8, 1.0), TypeError, "RotaryLayer: query_scale must be a QueryScale, a HeadScale or None"),  # type: ignore
        (lambda: RotaryPlan(PLAN.layers, "halves"), ValueError, "RotaryPlan: layout must be one of"),  # type: ignore
        (lambda: RotaryPlan(PLAN.layers, "half", "lats"), ValueError, "RotaryPlan: part must be one of"),  # type: ignore
        (lambda: RotaryPlan(PLAN.layers, "half", softmax_scale=np.nan), ValueError, "RotaryPlan: softmax_scale must be fin"),
    ],
)  # fmt: skip
def test_bad_plans(make, error, message):
    with pytest.raises(error, match=message):
        make()
