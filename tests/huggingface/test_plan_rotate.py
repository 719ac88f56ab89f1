"""`RotaryPlan.rotate` and `shift_keys`: each layer is its formula, static or traced, with learned parameters or without."""

import functools

import jax
import jax.numpy as jnp
import mpmath
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
from posenc_jax.hf import HeadScale, QueryScale, RotaryLayer, RotaryPlan, rotary_from_config

RNG = np.random.default_rng(0)
X, COTANGENT = RNG.normal(size=(2, 2, 5, 3, 8)).astype(np.float32)
AT = np.int32([[0, 1, 2, 3, 4], [1_000_000, 7, 3, 2_000_000_000, 5]])
NEAR = np.abs(AT) < 100  # where float32 frequencies say the phase to 1e-6
NOPE, FAST, YARN = pe.geometric(0), pe.geometric(8, 100.0), pe.yarn(6, 100.0, 8.0, 64)  # the last with an amplitude
STEPS, HEADS = QueryScale(0.1, 4, 1), HeadScale("{layer}.s", "{layer}.b", num_heads=3)
ARRAYS = {"alpha": np.float32([0.3, -0.2, 0.05])}
ARRAYS |= {name: RNG.normal(size=3).astype(np.float32) for name in (HEADS.scale, HEADS.bias)}
LAYER = functools.partial(RotaryLayer, head_dim=8)
LEARNED = 6  # the layer that learns frequencies and scales
MIXED = RotaryPlan(
    (
        LAYER(FAST),
        LAYER(NOPE),
        LAYER(NOPE, query_scale=STEPS),
        LAYER(FAST),
        LAYER(YARN, query_scale=STEPS),
        LAYER(NOPE, query_scale=HEADS),
        LAYER(YARN, query_scale=HEADS, learned_log_factor="alpha"),
    ),
    "interleaved",
    "last",
    softmax_scale=1.7,
)
VALUES = RotaryPlan((LAYER(YARN), LAYER(pe.geometric(6, 50.0))), "half", rotates_values=True)


def formula(plan, layer, role, scaled, x=X, arrays=ARRAYS, positions=AT):
    """In float64, by angles of 60 digits."""
    how, y = plan.layers[layer], np.float64(x)
    f, heads = how.frequencies, how.query_scale
    factors = np.exp(np.float64(arrays["alpha"])) if how.learned_log_factor else np.ones(f.num_pairs)
    cycles = [mpmath.mpf(t) * float(a) / 2**128 for t, a in zip(f.cycles, factors, strict=True)]
    angles = [float(t * int(p) % 1) for p in positions.ravel() for t in cycles]
    angles = 2 * np.pi * np.reshape(angles, (*positions.shape, 1, f.num_pairs)) * (-1 if role == "output" else 1)
    if f.dim:
        waves = f.attention_factor * np.sin(angles), f.attention_factor * np.cos(angles)
        y = rotations.rotate(y, *waves, plan.layout, plan.part)
    if role != "query":
        return y
    if isinstance(heads, HeadScale):
        y = y * (arrays[heads.scale] * np.log1p(positions)[..., None] + arrays[heads.bias])[..., None]
    elif heads:
        y = y * query_scale(positions, 0.1, 4, 1)[..., None, None]
    return y * plan.softmax_scale if scaled else y


def rotate(x, layer, role, scaled=True, plan=MIXED, positions=AT, parameters=ARRAYS):
    return plan.rotate(x, layer, positions, head_axis=-2, role=role, scaled=scaled, parameters=parameters)


# Each layer


@pytest.mark.parametrize(
    ("plan", "role", "scaled"),
    [
        (MIXED, "query", True),
        (MIXED, "key", False),
        thorough(MIXED, "query", False),
        thorough(MIXED, "key", True),
        (VALUES, "value", False),
        (VALUES, "output", False),
        thorough(VALUES, "query", False),
        thorough(VALUES, "key", False),
    ],
)
def test_each_layer_is_its_formula(plan, role, scaled):
    count = len(plan.layers)

    @quick
    def each(x, arrays):
        of_layer = functools.partial(rotate, x, role=role, scaled=scaled, plan=plan, parameters=arrays)
        return [of_layer(i) for i in range(count)], jax.lax.map(of_layer, np.arange(-1, count + 1))

    static, traced = each(X, ARRAYS)
    for layer, y in enumerate(static):
        want, learned = formula(plan, layer, role, scaled), plan.layers[layer].learned_log_factor
        where = NEAR if learned else np.ones_like(NEAR)
        bound = {"rtol": 0, "atol": 2e-6 * np.abs(want).max()} if learned else {"rtol": 1e-6, "atol": 1e-6}
        np.testing.assert_allclose(np.asarray(y)[where], want[where], **bound, err_msg=f"layer {layer}")
        assert np.array_equal(y, X) or not np.array_equal(want, X)  # bit for bit
        np.testing.assert_array_equal(traced[1 + layer], y, f"layer {layer}")
    assert np.isnan(traced[0]).all() and np.isnan(traced[-1]).all()


def test_the_error_of_a_phase_is_that_of_a_small_correction():
    """Within 2⁻²² of ω(e^α − 1)p, where a float32 frequency would be within 2⁻²³ of ω·e^α·p."""
    f = pe.yarn(64, 10_000.0, 2048.0, 512, attention_factor=1.0)
    plan = RotaryPlan((RotaryLayer(f, head_dim=64, learned_log_factor="alpha"),), "half")
    at = np.int32([1, 4095, 65_535, 1_048_575, -1_048_575, 2**31 - 1])
    unit = np.repeat(np.float32([[1, 0]]), 32, 1).repeat(len(at), 0)
    turn = quick(lambda arrays: plan.rotate(unit, 0, at, head_axis=None, parameters=arrays))
    for size in (0.0, 1e-4, 1e-2, 0.1, 1.0):
        alpha = RNG.uniform(-size, size, 32).astype(np.float32)
        y = np.float64(turn({"alpha": alpha}))
        with mpmath.workdps(60):
            for i, k in np.ndindex(len(at), 32):
                omega, a, p = 2 * mpmath.pi * f.cycles[k] / mpmath.mpf(2) ** 128, mpmath.mpf(float(alpha[k])), int(at[i])
                error = abs(mpmath.mpc(*y[i, [k, 32 + k]]) * mpmath.expj(-omega * mpmath.exp(a) * p) - 1)
                bound = 2.0**-22 * abs(omega * mpmath.expm1(a) * p) + 2.0**-48 * omega * abs(p) + 2e-7
                assert error <= bound, (size, p, k)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, thorough(jnp.float16)])
def test_16_bits_are_rounded_once(dtype):
    x, layers = X.astype(dtype), (2, 4, LEARNED)
    both = jax.jit(lambda *each: [[rotate(x, layer, "query") for layer in layers] for x in each])
    for narrow, wide in zip(*both(x, x.astype(np.float32)), strict=True):
        assert narrow.dtype == dtype
        np.testing.assert_array_equal(narrow, np.asarray(wide).astype(dtype))


def test_the_same_bits_in_every_program():
    """Of keys that are cached, at positions where an ulp of a frequency would be a tenth of a radian."""
    at, keys = np.arange(1_000_000, 1_000_008, dtype=np.int32), RNG.normal(size=(1, 8, 3, 8)).astype(np.float32)
    turn = functools.partial(MIXED.rotate, head_axis=-2, role="key")
    whole = jax.jit(lambda k, arrays: turn(k, LEARNED, at, parameters=arrays))(keys, ARRAYS)

    @jax.jit
    def others(k, layer, arrays):
        steps = k.swapaxes(0, 1)[:, :, None], at
        by_scan = jax.lax.map(lambda given: turn(given[0], layer, given[1][None], parameters=arrays), steps)
        of_arrays = jax.vmap(lambda arrays: turn(k, LEARNED, at, parameters=arrays))
        of_layers = jax.vmap(lambda layer: turn(k, layer, at, parameters=arrays))
        several = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), arrays)
        constant = turn(k, LEARNED, at, parameters=ARRAYS)
        return by_scan.reshape(k.shape), of_arrays(several)[0], of_layers(jnp.stack([layer, 1]))[0], constant

    for y in others(keys, LEARNED, ARRAYS):
        np.testing.assert_array_equal(y, whole)


def test_derivatives():
    """In x and in each parameter, of a static and of a traced layer, beside differences in float64."""
    at = np.where(NEAR, AT, 9).astype(np.int32)
    given = {"x": X} | ARRAYS
    along = {name: RNG.normal(size=x.shape).astype(np.float32) for name, x in given.items()}

    def f(given, layer=LEARNED):
        arrays = {name: given[name] for name in ARRAYS}
        return jnp.sum(rotate(given["x"], layer, "query", positions=at, parameters=arrays) * COTANGENT)

    @quick
    def each(given, layer):
        return jax.jvp(f, (given,), (along,))[1], [jax.grad(f)(given, i) for i in (LEARNED, layer)]

    def wanted(name, step):
        moved = {k: np.float64(v) for k, v in given.items()}
        moved[name] = moved[name] + step * along[name]
        return np.sum(formula(MIXED, LEARNED, "query", True, moved["x"], moved, at) * COTANGENT)

    tangent, gradients = each(given, LEARNED)
    want = {name: (wanted(name, 1e-4) - wanted(name, -1e-4)) / 2e-4 for name in given}
    for gradient in gradients:
        got = {name: np.sum(np.float64(gradient[name]) * along[name]) for name in given}
        np.testing.assert_allclose([*got.values()], [want[name] for name in got], rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(tangent, sum(want.values()), rtol=1e-4)


@pytest.mark.thorough
def test_export():
    f = lambda x, layer, arrays: rotate(x, layer, "query", parameters=arrays)  # noqa: E731
    exported = export.export(jax.jit(f), platforms=("cpu", "cuda", "tpu"))(X, np.int32(0), ARRAYS)
    got = export.deserialize(exported.serialize()).call(X, np.int32(LEARNED), ARRAYS)
    np.testing.assert_array_equal(got, rotate(X, LEARNED, "query"))


# Heads, widths and coordinates


@pytest.mark.parametrize("layer", [4, LEARNED])
def test_heads_stand_anywhere(layer):
    """Two axes of heads have a parameter for each head."""
    x = np.concatenate([X, X[::-1]], 2)
    arrays = {name: a if name == "alpha" else np.concatenate([a, -a]) for name, a in ARRAYS.items()}

    @quick
    def each(x):
        turn = functools.partial(MIXED.rotate, layer=layer, positions=AT, role="query", scaled=True, parameters=arrays)
        grouped = turn(x.reshape(2, 5, 2, 3, 8), head_axis=(-3, -2)).reshape(x.shape)
        swapped = turn(x.swapaxes(1, 2), head_axis=-3).swapaxes(1, 2)
        alone = turn(x[:, :, 0], head_axis=None)[:, :, None] if layer == 4 else swapped[:, :, :1]
        return turn(x, head_axis=-2), grouped, swapped, alone

    want, *others, alone = map(np.asarray, each(x))
    for got in others:
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(alone, want[:, :, :1], rtol=1e-6, atol=1e-6)


def test_x_may_be_the_features_that_rotate():
    plan, x = rotary_from_config(DEEPSEEK_V3), RNG.normal(size=(1, 4, 2, 192)).astype(np.float32)
    turn = functools.partial(plan.rotate, layer=0, head_axis=-2, role="key")
    whole, part = jax.jit(lambda x: (turn(x), turn(x[..., 128:])))(x)
    np.testing.assert_array_equal(whole[..., :128], x[..., :128])
    np.testing.assert_array_equal(whole[..., 128:], part)
    assert jax.eval_shape(lambda i: turn(x[..., 128:], layer=i), 0).shape == part.shape


def test_layers_without_positions_in_a_model_of_several_coordinates():
    plan = RotaryPlan((LAYER(pe.axial(8, 2)), LAYER(NOPE), LAYER(NOPE, query_scale=STEPS)), "half")
    p = np.stack([np.arange(1000, 1005), np.arange(5) % 2], -1)

    @jax.jit
    def each(x, layer):
        turn = functools.partial(plan.rotate, x, positions=p, head_axis=-2, role="query")
        return turn(0), pe.rotary(x, p, pe.axial(8, 2), head_axis=-2), turn(1), turn(layer), turn(2)

    turned, want, *still, scaled = each(X, 1)
    np.testing.assert_array_equal(turned, want)
    np.testing.assert_array_equal(still, [X, X])
    np.testing.assert_allclose(scaled, X * np.asarray(STEPS(p[:, 0]))[:, None, None], rtol=1e-6)  # by the first one


def test_a_width_of_0_turns_nothing():
    """`None` would have meant a base of 10,000."""
    for f in (NOPE, 0):
        np.testing.assert_array_equal([pe.rotary(X, AT, f, head_axis=-2), *pe.xpos(X, X, AT[0], f, head_axis=-2)], [X] * 3)


def test_in_other_models_values_and_outputs_stay():
    wide, plan = RNG.normal(size=(5, 3, 24)).astype(np.float32), RotaryPlan((LAYER(pe.axial(8, 2)),), "half")
    for role in ("value", "output"):
        np.testing.assert_array_equal(plan.rotate(wide, 0, head_axis=-2, role=role), wide)
    traced = jax.jit(lambda layer: MIXED.rotate(wide, layer, AT, head_axis=-2, role="value"))(1)
    np.testing.assert_array_equal(traced, wide)


def test_keys_of_a_scaling_plan_need_no_position():
    """Llama 4 scales the queries of layers without positions, by their position."""
    one = X[:, :1]
    np.testing.assert_array_equal(rotate(one, 2, "key", positions=None), one)
    assert not np.array_equal(rotate(one, 2, "query", positions=7), rotate(one, 2, "query", positions=0))


# Moving keys


def test_moving_keys_applies_no_amplitude_again():
    at = np.where(NEAR, AT, 9).astype(np.int32)
    layers = 1, 4, LEARNED

    @quick
    def each(x, traced):
        turn = functools.partial(rotate, x, role="key")
        move = lambda layer, i: MIXED.shift_keys(turn(layer, positions=at), i, 7, head_axis=-2, parameters=ARRAYS)  # noqa: E731
        moved = [(move(layer, layer), move(layer, i)) for layer, i in zip(layers, traced, strict=True)]
        return moved, [turn(layer, positions=at + 7) for layer in layers]

    moved, want = each(X, layers)
    for got, there in zip(moved, want, strict=True):
        np.testing.assert_allclose(got, [there, there], atol=1e-6)
    np.testing.assert_array_equal(moved[0], [X, X])  # a layer without positions
    np.testing.assert_array_equal(MIXED.rotate(X, 1, 7, head_axis=-2, role="key"), X)


# Meshes

BIG, AT8 = RNG.normal(size=(4, 6, 4, 8)).astype(np.float32), np.arange(24, dtype=np.int32).reshape(4, 6)
ARRAYS8 = ARRAYS | {name: RNG.normal(size=4).astype(np.float32) for name in (HEADS.scale, HEADS.bias)}
ON_HEADS = P("d", None, "h")


def turned(x, p, layer, arrays):
    return rotate(x, layer, "query", positions=p, parameters=arrays)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("x_spec", "p_spec", "arrays_spec"),
    [(ON_HEADS, P("d"), P("h")), (ON_HEADS, P(), P()), (P(), P("d"), P()), (P(None, None, "h"), P("d"), P("h"))],
)
def test_branches_share_a_sharding(x_spec, p_spec, arrays_spec, on_cpu):
    mesh = jax.make_mesh((2, 4), ("d", "h"), axis_types=(AxisType.Explicit,) * 2, devices=jax.devices("cpu"))
    layers = 0, 1, 2, 4, LEARNED
    want = jax.jit(lambda x, p, arrays: [turned(x, p, layer, arrays) for layer in layers])(BIG, AT8, ARRAYS8)
    with jax.set_mesh(mesh):
        put = lambda a, spec: jax.device_put(a, NamedSharding(mesh, spec))  # noqa: E731
        x, p = put(BIG, x_spec), put(AT8, p_spec)
        arrays = {name: put(a, P() if name == "alpha" else arrays_spec) for name, a in ARRAYS8.items()}
        of_rotary = jax.eval_shape(lambda x, p: pe.rotary(x, p, FAST, head_axis=-2), x, p)
        for layer, y in zip(layers, want, strict=True):
            for f in (jax.jit(turned), jax.jit(turned, static_argnums=2)):
                got = f(x, p, layer, arrays)
                assert jax.typeof(got).sharding == of_rotary.sharding
                np.testing.assert_allclose(got, y, rtol=1e-6, atol=1e-6, err_msg=f"layer {layer}")
        plan, alpha = RotaryPlan((LAYER(FAST, learned_log_factor="a"),), "half"), put(np.ones(4, np.float32), P("h"))
        with pytest.raises(ValueError, match=r"parameters\['a'\] must not be sharded along axis 0"):
            plan.rotate(BIG, 0, head_axis=-2, parameters={"a": alpha})


@pytest.mark.parametrize("x_spec", tiered([ON_HEADS, P(None, None, "h")], [ON_HEADS]))
def test_in_shard_map(x_spec, on_cpu):
    """Each device has the parameters of its heads."""
    mesh = jax.make_mesh((4, 2), ("d", "h"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices("cpu"))
    layers, x = (0, 1, 2, 4, LEARNED), BIG if x_spec == ON_HEADS else BIG[:1]
    whole = jax.jit(lambda x, p, arrays: [turned(x, p, layer, arrays) for layer in layers])
    specs = {name: P() if name == "alpha" else P("h") for name in ARRAYS8}
    split = jax.jit(jax.shard_map(turned, mesh=mesh, in_specs=(x_spec, P("d"), P(), specs), out_specs=ON_HEADS))
    for layer, want in zip(layers, whole(np.broadcast_to(x, BIG.shape), AT8, ARRAYS8), strict=True):
        np.testing.assert_allclose(split(x, AT8, layer, ARRAYS8), want, rtol=1e-6, atol=1e-6, err_msg=f"layer {layer}")
