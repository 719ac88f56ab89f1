"""`RotaryPlan.rotate` and `shift_keys`: each layer is its formula, static or traced, learned or not."""

import functools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import posenc_jax as pe
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
LAYERS = (
    LAYER(FAST),
    LAYER(NOPE),
    LAYER(NOPE, query_scale=STEPS),  # for keys the same layer
    LAYER(YARN, query_scale=STEPS),
    LAYER(YARN, query_scale=HEADS, learned_log_factor="alpha"),
)
MIXED, LEARNED = RotaryPlan(LAYERS, "interleaved", "last", softmax_scale=1.7), 4  # a layer that learns
VALUES = RotaryPlan((LAYER(YARN), LAYER(pe.geometric(6, 50.0))), "half", rotates_values=True)


def formula(layer, role="query", plan=MIXED, x=X, positions=AT, parameters=ARRAYS):
    """In float64."""
    how, p = plan.layers[layer], np.expand_dims(positions, (-2, -1))
    f = how.frequencies
    factors = np.exp(np.float64(parameters["alpha"])) if how.learned_log_factor else 1.0
    angles = p * f.angular * factors * (-1 if role == "output" else 1)
    waves = f.attention_factor * np.sin(angles), f.attention_factor * np.cos(angles)
    y = rotations.rotate(x, *waves, plan.layout, plan.part)
    if role != "query":
        return y
    if how.query_scale == STEPS:
        y = y * query_scale(p, 0.1, 4, 1)
    if how.query_scale == HEADS:
        y = y * (parameters[HEADS.scale] * np.log1p(p[..., 0]) + parameters[HEADS.bias])[..., None]
    return y * plan.softmax_scale


def rotate(layer, role="query", plan=MIXED, x=X, positions=AT, parameters=ARRAYS):
    return plan.rotate(x, layer, positions, head_axis=-2, role=role, scaled=True, parameters=parameters)


@pytest.mark.parametrize(
    ("plan", "role"),
    [(MIXED, "query"), (MIXED, "key"), (VALUES, "value"), (VALUES, "output")],
    ids=["query", "key", "value", "output"],
)
def test_each_layer_is_its_formula(plan, role):
    """With the same bits where the layer is traced; one that is not there is NaN."""
    of_layer, count = functools.partial(rotate, role=role, plan=plan), len(plan.layers)

    @jax.jit
    def both(layers, x, a):
        static = [of_layer(i, x=x, parameters=a) for i in range(count)]
        return static, jax.lax.map(lambda i: of_layer(i, x=x, parameters=a), layers)

    static, (none, *by_index, beyond) = jax.device_get(both(np.arange(-1, count + 1), X, ARRAYS))
    assert np.isnan(none).all() and np.isnan(beyond).all()
    for layer, y in enumerate(static):
        want, learned = formula(layer, role, plan), plan.layers[layer].learned_log_factor
        where = NEAR if learned else np.ones_like(NEAR)
        np.testing.assert_allclose(y[where], want[where], rtol=1e-6, atol=1e-6, err_msg=f"layer {layer}")
        assert np.array_equal(y, X) or not np.array_equal(want, X)  # bit for bit
        np.testing.assert_array_equal(by_index[layer], y, f"layer {layer}")


def test_the_error_of_a_phase_is_that_of_a_small_correction():
    """Within 2⁻²² of ω(e^α − 1)p, where a float32 frequency would be within 2⁻²³ of ω·e^α·p."""
    f = pe.yarn(64, 10_000.0, 2048.0, 512, attention_factor=1.0)
    plan = RotaryPlan((RotaryLayer(f, head_dim=64, learned_log_factor="alpha"),), "half")
    at = np.int32([1, 4095, 65_535, 1_048_575, -1_048_575, 2**31 - 1])
    unit = np.tile(np.repeat(np.float32([1, 0]), 32), (6, 1))
    for size in (0.0, 1e-4, 1e-2, 0.1, 1.0):
        alpha = RNG.uniform(-size, size, 32).astype(np.float32)
        y = np.float64(plan.rotate(unit, 0, at, head_axis=None, parameters={"alpha": alpha}))
        with mpmath.workdps(60):
            for i, k in np.ndindex(6, 32):
                phase, a = 2 * mpmath.pi * f.cycles[k] * int(at[i]) / mpmath.mpf(2) ** 128, mpmath.mpf(float(alpha[k]))
                error = abs(mpmath.mpc(*y[i, [k, 32 + k]]) * mpmath.expj(-phase * mpmath.exp(a)) - 1)
                assert error <= 2.0**-22 * abs(phase * mpmath.expm1(a)) + 2.0**-48 * abs(phase) + 2e-7, (size, i, k)


def test_16_bits_are_rounded_once():
    x = X.astype(jnp.bfloat16)
    both = jax.jit(lambda *xs: [{layer: rotate(layer, x=x) for layer in (3, LEARNED)} for x in xs])
    narrow, wide = jax.device_get(both(x, x.astype(np.float32)))
    for layer, y in narrow.items():
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(y, wide[layer].astype(x.dtype), f"layer {layer}")


def test_derivatives():
    """In x and in the parameters, forwards and backwards, beside a difference of the formula."""
    given = {"x": X} | ARRAYS
    along = {name: RNG.normal(size=x.shape).astype(np.float32) for name, x in given.items()}

    def projected(given):
        return jnp.vdot(rotate(LEARNED, x=given["x"], positions=SMALL, parameters=given), COTANGENT)

    def moved(step):
        there = {name: np.float64(x) + step * along[name] for name, x in given.items()}
        return np.vdot(formula(LEARNED, x=there["x"], positions=SMALL, parameters=there), COTANGENT)

    want = (moved(1e-4) - moved(-1e-4)) / 2e-4
    both = jax.jit(lambda given: (jax.jvp(projected, (given,), (along,))[1], jax.grad(projected)(given)))
    tangent, gradient = both(given)
    np.testing.assert_allclose([tangent, sum(np.vdot(gradient[x], along[x]) for x in given)], want, rtol=1e-5)


def test_heads_stand_anywhere():
    """Two axes of heads have a parameter for each head."""
    at = functools.partial(MIXED.rotate, layer=LEARNED, positions=SMALL, role="query", scaled=True, parameters=ARRAYS)
    grouped, swapped = X.reshape(2, 5, 2, 2, 8), X.swapaxes(1, 2)
    both = jax.jit(lambda: (at(grouped, head_axis=(-3, -2)).reshape(X.shape), at(swapped, head_axis=-3).swapaxes(1, 2)))
    np.testing.assert_allclose(both(), [formula(LEARNED, positions=SMALL)] * 2, rtol=1e-6, atol=1e-6)


def test_x_may_be_the_features_that_rotate():
    plan = rotary_from_config({"model_type": "deepseek_v3", "num_hidden_layers": 1})
    x = RNG.normal(size=(4, 2, 192)).astype(np.float32)
    rotated = functools.partial(plan.rotate, head_axis=-2, role="key")
    whole, part, traced = jax.jit(lambda x, i: (rotated(x, 0), rotated(x[..., 128:], 0), rotated(x[..., 128:], i)))(
        x, 0
    )
    np.testing.assert_array_equal(whole, np.concatenate([x[..., :128], part], -1))
    np.testing.assert_array_equal(traced, part)


def test_layers_without_positions_in_a_model_of_several_coordinates():
    plan = RotaryPlan((LAYER(pe.axial(8, 2)), LAYER(NOPE), LAYER(NOPE, query_scale=STEPS)), "half")
    p = np.stack([np.arange(1000, 1005), np.arange(5) % 2], -1)
    rotated = jax.jit(lambda x, i: [plan.rotate(x, k, p, head_axis=-2, role="query") for k in (1, i, 2)])
    *still, scaled = rotated(X, 1)
    np.testing.assert_array_equal(still, [X, X])
    np.testing.assert_allclose(
        scaled, X * query_scale(p[:, 0], 0.1, 4, 1)[:, None, None], rtol=1e-6
    )  # by the first one


def test_what_does_not_rotate_stays():
    """Values and outputs of other models; the one cached key of a layer without positions."""
    wide = RNG.normal(size=(5, 3, 24)).astype(np.float32)
    for role in ("value", "output"):
        np.testing.assert_array_equal(rotate(0, role, x=wide, positions=None), wide)
    np.testing.assert_array_equal(rotate(2, "key", x=X[:, :1], positions=None), X[:, :1])


shift = functools.partial(MIXED.shift_keys, offset=7, head_axis=-2, parameters=ARRAYS)
shift_of_traced = jax.jit(shift)


@pytest.mark.parametrize("layer", [1, 3, LEARNED])
def test_moving_keys_applies_no_amplitude_again(layer):
    keys, there = (np.float32(formula(layer, "key", positions=SMALL + by)) for by in (0, 7))
    for moved in (shift(keys, layer), shift_of_traced(keys, layer)):
        np.testing.assert_allclose(moved, there, rtol=0, atol=1e-6 if MIXED.layers[layer].rotary_dim else 0)
