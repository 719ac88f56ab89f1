"""Plans and query scales as values.

- A plan is static under `jit`, and equal to a plan with the same fields.
- A plan made by hand names the parameters that it needs; no config says it.
- A query scale is its formula.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from oracles.encodings import query_scale
from posenc_jax.hf import HeadScale, QueryScale, RotaryLayer, RotaryPlan, plan_to_config, rotary_from_config

LLAMA_4 = {"model_type": "llama4_text", "num_hidden_layers": 4}


def test_a_plan_is_static_and_hashable():
    plan, again = (rotary_from_config(LLAMA_4) for _ in range(2))
    assert plan == again and hash(plan) == hash(again) and jax.tree.leaves(plan) == []
    rotate = jax.jit(lambda plan, x: plan.rotate(x, 3, head_axis=-2, role="query"))
    assert jax.eval_shape(rotate, plan, np.ones((1, 4, 2, 128), np.float32)).shape == (1, 4, 2, 128)
    assert plan != rotary_from_config(LLAMA_4, layout="half")
    assert RotaryPlan(plan.layers, "interleaved") == plan and "parameters" not in repr(plan)


def test_a_plan_made_by_hand_names_its_parameters_and_has_no_config():
    learned = functools.partial(RotaryLayer, pe.geometric(6), head_dim=8, learned_log_factor="alpha")
    scale = HeadScale("layers.{layer}.s", "layers.{layer}.b", num_heads=3)
    plan = RotaryPlan((learned(query_scale=scale), learned()), "half", rotates_values=True)
    assert plan.parameters == (("alpha", (3,)), ("layers.{layer}.s", (3,)), ("layers.{layer}.b", (3,)))
    with pytest.raises(ValueError, match="no config gives this one"):
        plan_to_config(plan)


@pytest.mark.parametrize(
    "scale",
    [
        QueryScale(0.1, 8192, 1),
        QueryScale(1.0, 3, 2),
        QueryScale(0.1, 2**31 - 1),
        QueryScale(0.1, 2048, 1, "power"),
        QueryScale(1 / np.log(2048), 2048, 1, "log"),
    ],
)
def test_a_query_scale_is_its_formula_at_integers_and_at_floats(scale):
    positions = [0, 1, 2, 3, 8190, 8191, 8192, 16383, 16384, 131071, 10**6, 2**31 - 2, 2**31 - 1]
    want = query_scale(positions, scale.coefficient, scale.period, scale.offset, scale.variant)
    positions = np.array(positions, np.int32)
    both = jax.jit(lambda p: (scale(p), scale(p[:10].astype(np.float32))))
    at_integers, at_floats = jax.device_get(both(positions))
    assert at_integers.dtype == jnp.float32
    np.testing.assert_allclose(at_integers, want, rtol=2.5e-7)  # two units of 2⁻²³, rounded up
    np.testing.assert_array_equal(at_floats, at_integers[:10])  # at positions that float32 represents


def test_a_query_scale_holds_python_numbers_and_an_offset_below_its_period():
    scale = QueryScale(np.float64(0.1), np.int64(4))  # type: ignore
    assert type(scale.coefficient) is float and type(scale.period) is int
    with pytest.raises(ValueError, match="QueryScale: offset must be below the period, 4, got 4"):
        QueryScale(0.1, 4, 4)
