"""`RotaryPlan.rotate` and `shift_keys`: each layer is its formula, static or traced, with learned parameters or without."""

import functools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers.quick import quick
from helpers.tiers import slow
from oracles import rotations
from oracles.encodings import query_scale
from posenc_jax.hf import HeadScale, QueryScale, RotaryLayer, RotaryPlan, rotary_from_config

RNG = np.random.default_rng(0)
X, COTANGENT = RNG.normal(size=(2, 2, 5, 4, 8)).astype(np.float32)
AT = np.int32([[0, 1, 2, 3, 4], [1_000_000, 7, 3, 2_000_000_000, 5]])
NEAR = AT < 100  # where float32 frequencies say the phase to 1e-6
SMALL = np.where(NEAR, AT, 9)
NOPE, FAST, YARN = pe.geometric(0), pe.geometric(8, 100.0), pe.yarn(6, 100.0, 8.0, 64)  # the last with an amplitude
STEPS, HEADS = QueryScale(0.1, 4, 1), HeadScale("{layer}.s", "{layer}.b", num_heads=4)
ARRAYS = {name: RNG.normal(size=4).astype(np.float32) for name in (HEADS.scale, HEADS.bias)}
ARRAYS["alpha"] = np.float32([0.3, -0.2, 0.05])
LAYER = functools.partial(RotaryLayer, head_dim=8)
MIXED = RotaryPlan(
    (
        LAYER(FAST),
        LAYER(NOPE),
        LAYER(NOPE, query_scale=STEPS),
        LAYER(FAST),
        LAYER(YARN, query_scale=STEPS),
        LAYER(YARN, query_scale=HEADS, learned_log_factor="alpha"),
    ),
    "interleaved",
    "last",
    softmax_scale=1.7,
)
LEARNED = 5  # the layer that learns frequencies and scales
VALUES = RotaryPlan((LAYER(YARN), LAYER(pe.geometric(6, 50.0))), "half", rotates_values=True)


def formula(layer, role="query", scaled=True, plan=MIXED, x=X, positions=AT, parameters=ARRAYS):
    """In float64."""
    how, p = plan.layers[layer], np.expand_dims(positions, (-2, -1))
    f = how.frequencies
    factors = np.exp(np.float64(parameters["alpha"])) if how.learned_log_factor else 1.0
    angles = p * f.angular * factors * (-1 if role == "output" else 1)
    waves = f.attention_factor * np.sin(angles), f.attention_factor * np.cos(angles)
    y = rotations.rotate(x, *waves, plan.layout, plan.part)
    if role == "query" and how.query_scale == STEPS:
        y = y * query_scale(p, 0.1, 4, 1)
    if role == "query" and how.query_scale == HEADS:
        y = y * (parameters[HEADS.scale] * np.log1p(p[..., 0]) + parameters[HEADS.bias])[..., None]
    return y * plan.softmax_scale if scaled and role == "query" else y


def rotate(layer, role="query", scaled=True, plan=MIXED, x=X, positions=AT, parameters=ARRAYS):
    return plan.rotate(x, layer, positions, head_axis=-2, role=role, scaled=scaled, parameters=parameters)


@pytest.mark.parametrize(
    ("plan", "role", "scaled"),
    [
        (MIXED, "query", True),
        (MIXED, "key", True),
        slow(MIXED, "query", False),
        (VALUES, "value", False),
        (VALUES, "output", False),
    ],
)
def test_each_layer_is_its_formula(plan, role, scaled):
    """With the same bits where the layer is traced, and token by token."""
    count = len(plan.layers)

    @quick
    def each(x, parameters):
        turn = functools.partial(rotate, role=role, scaled=scaled, plan=plan, parameters=parameters)
        by_token = lambda xp: turn(count - 1, x=xp[0][None], positions=xp[1][None])[0]  # noqa: E731
        tokens = jax.lax.map(by_token, (x.reshape(10, 4, 8), AT.ravel())).reshape(x.shape)
        layers = np.arange(-1, count + 1)
        of_layer = functools.partial(turn, x=x)
        return [of_layer(i) for i in range(count)], jax.lax.map(of_layer, layers), jax.vmap(of_layer)(layers), tokens

    static, *traced, tokens = each(X, ARRAYS)
    np.testing.assert_array_equal(tokens, static[-1])
    for layer, y in enumerate(static):
        want, learned = formula(layer, role, scaled, plan), plan.layers[layer].learned_log_factor
        where = NEAR if learned else np.ones_like(NEAR)
        np.testing.assert_allclose(np.asarray(y)[where], want[where], rtol=1e-6, atol=1e-6, err_msg=f"layer {layer}")
        assert np.array_equal(y, X) or not np.array_equal(want, X)  # bit for bit
        for by_index in traced:
            np.testing.assert_array_equal(by_index[1 + layer], y, f"layer {layer}")
            assert np.isnan(by_index[0]).all() and np.isnan(by_index[-1]).all()


def test_the_error_of_a_phase_is_that_of_a_small_correction():
    """Within 2⁻²² of ω(e^α − 1)p, where a float32 frequency would be within 2⁻²³ of ω·e^α·p."""
    f = pe.yarn(64, 10_000.0, 2048.0, 512, attention_factor=1.0)
    plan = RotaryPlan((RotaryLayer(f, head_dim=64, learned_log_factor="alpha"),), "half")
    at = np.int32([1, 4095, 65_535, 1_048_575, -1_048_575, 2**31 - 1])
    unit = np.repeat(np.float32([1, 0]), 32)
    turn = quick(lambda arrays: plan.rotate(np.tile(unit, (6, 1)), 0, at, head_axis=None, parameters=arrays))
    for size in (0.0, 1e-4, 1e-2, 0.1, 1.0):
        alpha = RNG.uniform(-size, size, 32).astype(np.float32)
        y = np.float64(turn({"alpha": alpha}))
        with mpmath.workdps(60):
            for i, k in np.ndindex(6, 32):
                phase, a = 2 * mpmath.pi * f.cycles[k] * int(at[i]) / mpmath.mpf(2) ** 128, mpmath.mpf(float(alpha[k]))
                error = abs(mpmath.mpc(*y[i, [k, 32 + k]]) * mpmath.expj(-phase * mpmath.exp(a)) - 1)
                assert error <= 2.0**-22 * abs(phase * mpmath.expm1(a)) + 2.0**-48 * abs(phase) + 2e-7, (size, i, k)


def test_16_bits_are_rounded_once():
    x = X.astype(jnp.bfloat16)
    both = jax.jit(lambda *each: [[rotate(layer, x=x) for layer in (2, 4, LEARNED)] for x in each])
    for narrow, wide in zip(*both(x, x.astype(np.float32)), strict=True):
        assert narrow.dtype == x.dtype
        np.testing.assert_array_equal(narrow, wide.astype(x.dtype))


def test_derivatives():
    """In x and in the parameters, of a static and of a traced layer, beside a difference in float64."""
    given = {"x": X} | ARRAYS
    along = {name: RNG.normal(size=x.shape).astype(np.float32) for name, x in given.items()}

    def f(given, layer=LEARNED):
        return jnp.vdot(rotate(layer, x=given["x"], positions=SMALL, parameters=given), COTANGENT)

    @quick
    def each(given, layer):
        return jax.jvp(f, (given,), (along,))[1], [jax.grad(f)(given, i) for i in (LEARNED, layer)]

    def moved(step):
        there = {name: np.float64(x) + step * along[name] for name, x in given.items()}
        return np.sum(formula(LEARNED, x=there["x"], positions=SMALL, parameters=there) * COTANGENT)

    tangent, gradients = each(given, LEARNED)
    want = (moved(1e-4) - moved(-1e-4)) / 2e-4
    for got in (tangent, *(sum(np.vdot(gradient[name], along[name]) for name in given) for gradient in gradients)):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_heads_stand_anywhere():
    """Two axes of heads have a parameter for each head."""

    @quick
    def each(x):
        turn = functools.partial(
            MIXED.rotate, layer=LEARNED, positions=AT, role="query", scaled=True, parameters=ARRAYS
        )
        grouped = turn(x.reshape(2, 5, 2, 2, 8), head_axis=(-3, -2)).reshape(x.shape)
        return grouped, turn(x.swapaxes(1, 2), head_axis=-3).swapaxes(1, 2), turn(x, head_axis=-2)

    *others, want = each(X)
    np.testing.assert_allclose(others, [want, want], rtol=1e-6, atol=1e-6)


def test_x_may_be_the_features_that_rotate():
    plan = rotary_from_config({"model_type": "deepseek_v3", "num_hidden_layers": 1})
    x = RNG.normal(size=(4, 2, 192)).astype(np.float32)
    turn = functools.partial(plan.rotate, head_axis=-2, role="key")
    whole, part, traced = jax.jit(lambda x, i: (turn(x, 0), turn(x[..., 128:], 0), turn(x[..., 128:], i)))(x, 0)
    np.testing.assert_array_equal(whole, np.concatenate([x[..., :128], part], -1))
    np.testing.assert_array_equal(traced, part)


def test_layers_without_positions_in_a_model_of_several_coordinates():
    plan = RotaryPlan((LAYER(pe.axial(8, 2)), LAYER(NOPE), LAYER(NOPE, query_scale=STEPS)), "half")
    p = np.stack([np.arange(1000, 1005), np.arange(5) % 2], -1)
    turn = jax.jit(lambda x, i: [plan.rotate(x, k, p, head_axis=-2, role="query") for k in (1, i, 2)])
    *still, scaled = turn(X, 1)
    np.testing.assert_array_equal(still, [X, X])
    np.testing.assert_allclose(scaled, X * np.asarray(STEPS(p[:, 0]))[:, None, None], rtol=1e-6)  # by the first one


def test_what_does_not_turn_stays():
    """A width of 0, where `None` would have meant a base of 10,000; values and outputs of other models; cached keys."""
    np.testing.assert_array_equal(
        [pe.rotary(X, AT, 0, head_axis=-2), *pe.xpos(X, X, AT[0], NOPE, head_axis=-2)], [X] * 3
    )
    wide = RNG.normal(size=(5, 3, 24)).astype(np.float32)
    for role in ("value", "output"):
        np.testing.assert_array_equal(jax.jit(lambda i: rotate(i, role, x=wide, positions=None))(0), wide)  # noqa: B023
    np.testing.assert_array_equal(rotate(2, "key", x=X[:, :1], positions=None), X[:, :1])


def test_moving_keys_applies_no_amplitude_again():
    @quick
    def each(x, traced):
        result = []
        for layer, i in zip((1, 4, LEARNED), traced, strict=True):
            keys = rotate(layer, "key", x=x, positions=SMALL)
            moved = [MIXED.shift_keys(keys, to, 7, head_axis=-2, parameters=ARRAYS) for to in (layer, i)]
            result.append((moved, rotate(layer, "key", x=x, positions=SMALL + 7)))
        return result

    (still, _), *others = each(X, (1, 4, LEARNED))
    np.testing.assert_array_equal(still, [X, X])  # a layer without positions
    for moved, there in others:
        np.testing.assert_allclose(moved, [there, there], atol=1e-6)


def test_learned_frequencies_must_be_whole(on_cpu):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Explicit,), devices=jax.devices("cpu")[:2])
    plan = RotaryPlan((LAYER(FAST, learned_log_factor="a"),), "half")
    with jax.set_mesh(mesh), pytest.raises(ValueError, match=r"parameters\['a'\] must not be sharded along axis 0"):
        plan.rotate(X, 0, head_axis=-2, parameters={"a": jax.device_put(np.ones(4, np.float32), P("d"))})
