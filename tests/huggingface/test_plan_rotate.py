"""`RotaryPlan.rotate` and `shift_keys`: each layer is its formula, with a static or a traced index, learned or not.

- Learned factors keep the accuracy of phases; bfloat16 vectors are rounded once; derivatives are those of the formula.
- Heads may be any axes, x may be the rotated features alone, and what does not rotate is returned as it is.
- Keys that are shifted do not get their amplitude again.
"""

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
# Vectors (batch, tokens, heads, features), and positions (batch, tokens).
X, COTANGENT = RNG.normal(size=(2, 2, 5, 4, 8)).astype(np.float32)
AT = np.int32([[0, 1, 2, 3, 4], [1_000_000, 7, 3, 2_000_000_000, 5]])
NEAR = AT < 100  # where learned frequencies, in float32, keep phases within 1e-6
SMALL = np.where(NEAR, AT, 9)  # such positions alone
NOPE, FAST, YARN = pe.geometric(0), pe.geometric(8, 100.0), pe.yarn(6, 100.0, 8.0, 64)  # YARN has an amplitude
# Query scales: STEPS by coefficient, period and offset; HEADS by parameters of each head.
STEPS, HEADS = QueryScale(0.1, 4, 1), HeadScale("{layer}.s", "{layer}.b", num_heads=4)
ARRAYS = {name: RNG.normal(size=4).astype(np.float32) for name in (HEADS.scale, HEADS.bias)}
ARRAYS["alpha"] = np.float32([0.3, -0.2, 0.05])
LAYER = functools.partial(RotaryLayer, head_dim=8)
LAYERS = (
    LAYER(FAST),
    LAYER(NOPE),
    LAYER(NOPE, query_scale=STEPS),  # for keys the same as the layer before
    LAYER(YARN, query_scale=STEPS),
    LAYER(YARN, query_scale=HEADS, learned_log_factor="alpha"),
)
MIXED = RotaryPlan(LAYERS, "interleaved", "last", softmax_scale=1.7)
LEARNED = 4  # the index of the layer with learned parameters
VALUES = RotaryPlan((LAYER(YARN), LAYER(pe.geometric(6, 50.0))), "half", rotates_values=True)


def formula(index, role="query", plan=MIXED, x=X, positions=AT, parameters=ARRAYS):
    """The output of a layer in float64: rotated, and for queries multiplied by the layer's scale and the plan's."""
    layer, p = plan.layers[index], np.expand_dims(positions, (-2, -1))
    f = layer.frequencies
    factors = np.exp(np.float64(parameters["alpha"])) if layer.learned_log_factor else 1.0
    angles = p * f.angular * factors * (-1 if role == "output" else 1)  # outputs are rotated back
    sines, cosines = f.attention_factor * np.sin(angles), f.attention_factor * np.cos(angles)
    y = rotations.rotate(x, sines, cosines, plan.layout, plan.part)
    if role != "query":
        return y
    if layer.query_scale == STEPS:
        y = y * query_scale(p, 0.1, 4, 1)
    if layer.query_scale == HEADS:
        y = y * (parameters[HEADS.scale] * np.log1p(p[..., 0]) + parameters[HEADS.bias])[..., None]
    return y * plan.softmax_scale


def rotate(layer, role="query", plan=MIXED, x=X, positions=AT, parameters=ARRAYS):
    """The output of a layer by the plan."""
    return plan.rotate(x, layer, positions, head_axis=-2, role=role, scaled=True, parameters=parameters)


@pytest.mark.parametrize(
    ("plan", "role"),
    [(MIXED, "query"), (MIXED, "key"), (VALUES, "value"), (VALUES, "output")],
    ids=["query", "key", "value", "output"],
)
def test_each_layer_is_its_formula(plan, role):
    """A traced index gives the bits of a static one, and NaN if the plan has no such layer."""
    rotate_layer, count = functools.partial(rotate, role=role, plan=plan), len(plan.layers)

    @jax.jit
    def both(layers, x, a):
        static = [rotate_layer(i, x=x, parameters=a) for i in range(count)]
        return static, jax.lax.map(lambda i: rotate_layer(i, x=x, parameters=a), layers)

    static, (before_first, *traced, after_last) = jax.device_get(both(np.arange(-1, count + 1), X, ARRAYS))
    assert np.isnan(before_first).all() and np.isnan(after_last).all()
    for layer, y in enumerate(static):
        want, learned = formula(layer, role, plan), plan.layers[layer].learned_log_factor
        where = NEAR if learned else np.ones_like(NEAR)
        np.testing.assert_allclose(y[where], want[where], rtol=1e-6, atol=1e-6, err_msg=f"layer {layer}")
        assert np.array_equal(y, X) or not np.array_equal(want, X)  # a layer that changes nothing keeps all bits
        np.testing.assert_array_equal(traced[layer], y, f"layer {layer}")


def test_a_learned_factor_costs_the_accuracy_of_its_correction_alone():
    """The error of a phase is at most 2⁻²²·ω(e^α − 1)p, where that of a float32 frequency is up to 2⁻²³·ω·e^α·p.

    Plus 2⁻⁴⁸ of the phase, and 2e-7 of the float32 output.
    """
    f = pe.yarn(64, 10_000.0, 2048.0, 512, attention_factor=1.0)
    plan = RotaryPlan((RotaryLayer(f, head_dim=64, learned_log_factor="alpha"),), "half")
    at = np.int32([1, 4095, 65_535, 1_048_575, -1_048_575, 2**31 - 1])
    unit = np.tile(np.repeat(np.float32([1, 0]), 32), (6, 1))  # each pair is (1, 0) before its rotation
    for size in (0.0, 1e-4, 1e-2, 0.1, 1.0):
        alpha = RNG.uniform(-size, size, 32).astype(np.float32)
        y = np.float64(plan.rotate(unit, 0, at, head_axis=None, parameters={"alpha": alpha}))
        with mpmath.workdps(60):
            for i, k in np.ndindex(6, 32):
                phase, a = 2 * mpmath.pi * f.cycles[k] * int(at[i]) / mpmath.mpf(2) ** 128, mpmath.mpf(float(alpha[k]))
                error = abs(mpmath.mpc(*y[i, [k, 32 + k]]) * mpmath.expj(-phase * mpmath.exp(a)) - 1)
                assert error <= 2.0**-22 * abs(phase * mpmath.expm1(a)) + 2.0**-48 * abs(phase) + 2e-7, (size, i, k)


def test_bfloat16_vectors_are_computed_in_float32_and_rounded_once():
    x = X.astype(jnp.bfloat16)
    both = jax.jit(lambda *xs: [{layer: rotate(layer, x=x) for layer in (3, LEARNED)} for x in xs])
    narrow, wide = jax.device_get(both(x, x.astype(np.float32)))
    for layer, y in narrow.items():
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(y, wide[layer].astype(x.dtype), f"layer {layer}")


def test_derivatives_are_those_of_the_formula():
    """Of x and of the parameters, forward and reverse mode, beside a central difference of the formula."""
    inputs = {"x": X} | ARRAYS
    direction = {name: RNG.normal(size=x.shape).astype(np.float32) for name, x in inputs.items()}

    def projected(inputs):
        return jnp.vdot(rotate(LEARNED, x=inputs["x"], positions=SMALL, parameters=inputs), COTANGENT)

    def formula_after(step):
        moved = {name: np.float64(x) + step * direction[name] for name, x in inputs.items()}
        return np.vdot(formula(LEARNED, x=moved["x"], positions=SMALL, parameters=moved), COTANGENT)

    want = (formula_after(1e-4) - formula_after(-1e-4)) / 2e-4
    both = jax.jit(lambda inputs: (jax.jvp(projected, (inputs,), (direction,))[1], jax.grad(projected)(inputs)))
    tangent, gradient = both(inputs)
    by_gradient = sum(np.vdot(gradient[name], direction[name]) for name in inputs)
    np.testing.assert_allclose([tangent, by_gradient], want, rtol=1e-5)


def test_heads_may_be_any_axis_or_two_axes():
    """Each head has its own parameters, also where two axes hold the heads."""
    rotated = functools.partial(MIXED.rotate, role="query", scaled=True, parameters=ARRAYS)
    grouped, swapped = X.reshape(2, 5, 2, 2, 8), X.swapaxes(1, 2)

    @jax.jit
    def both():
        of_grouped = rotated(grouped, LEARNED, SMALL, head_axis=(-3, -2))
        of_swapped = rotated(swapped, LEARNED, SMALL, head_axis=-3)
        return of_grouped.reshape(X.shape), of_swapped.swapaxes(1, 2)

    np.testing.assert_allclose(both(), [formula(LEARNED, positions=SMALL)] * 2, rtol=1e-6, atol=1e-6)


def test_x_may_be_the_rotated_features_alone():
    plan = rotary_from_config({"model_type": "deepseek_v3", "num_hidden_layers": 1})
    x = RNG.normal(size=(4, 2, 192)).astype(np.float32)
    rotated = functools.partial(plan.rotate, head_axis=-2, role="key")

    @jax.jit
    def each(x, i):
        return rotated(x, 0), rotated(x[..., 128:], 0), rotated(x[..., 128:], i)

    whole, part, traced = each(x, 0)  # DeepSeek-V3 rotates the last 64 of 192 features
    np.testing.assert_array_equal(whole, np.concatenate([x[..., :128], part], -1))
    np.testing.assert_array_equal(traced, part)


def test_without_rotation_positions_may_still_have_several_coordinates():
    """Layers without RoPE return x; their query scale is that of the first coordinate."""
    plan = RotaryPlan((LAYER(pe.axial(8, 2)), LAYER(NOPE), LAYER(NOPE, query_scale=STEPS)), "half")
    p = np.stack([np.arange(1000, 1005), np.arange(5) % 2], -1)
    rotated = jax.jit(lambda x, i: [plan.rotate(x, k, p, head_axis=-2, role="query") for k in (1, i, 2)])
    *unchanged, scaled = rotated(X, 1)
    np.testing.assert_array_equal(unchanged, [X, X])
    np.testing.assert_allclose(scaled, X * query_scale(p[:, 0], 0.1, 4, 1)[:, None, None], rtol=1e-6)


def test_what_does_not_rotate_is_returned_as_it_is():
    """Values and outputs, unless the plan rotates values; keys of a layer without RoPE, here one cached key."""
    wide = RNG.normal(size=(5, 3, 24)).astype(np.float32)
    for role in ("value", "output"):
        np.testing.assert_array_equal(rotate(0, role, x=wide, positions=None), wide)
    np.testing.assert_array_equal(rotate(2, "key", x=X[:, :1], positions=None), X[:, :1])


shift = functools.partial(MIXED.shift_keys, offset=7, head_axis=-2, parameters=ARRAYS)
shift_traced = jax.jit(shift)  # keys and layer are traced


@pytest.mark.parametrize("layer", [1, 3, LEARNED])
def test_shifted_keys_do_not_get_their_amplitude_again(layer):
    keys, want = (np.float32(formula(layer, "key", positions=SMALL + offset)) for offset in (0, 7))
    for shifted in (shift(keys, layer), shift_traced(keys, layer)):
        np.testing.assert_allclose(shifted, want, rtol=0, atol=1e-6 if MIXED.layers[layer].rotary_dim else 0)
