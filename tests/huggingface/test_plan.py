"""Plans and query scales as values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.tiers import tiered
from huggingface.published import LLAMA_4
from oracles.configs import query_scale
from posenc_jax.hf import QueryScale, RotaryPlan, rotary_from_config


def test_the_plan_is_static_and_hashable():
    plans = [rotary_from_config(LLAMA_4) for _ in range(2)]
    assert plans[0] == plans[1] and hash(plans[0]) == hash(plans[1]) and len({*plans}) == 1
    assert jax.tree.leaves(plans[0]) == []
    rotated = jax.jit(lambda x, plan: pe.rotary(x, None, plan.layers[0].frequencies, layout=plan.layout, head_axis=-2))(
        jnp.ones((1, 4, 2, 128)), plans[0]
    )
    assert rotated.shape == (1, 4, 2, 128)
    assert plans[0] != rotary_from_config(LLAMA_4, layout="half")
    assert RotaryPlan(plans[0].layers, "interleaved") == plans[0]
    assert "parameters" not in repr(plans[0])


SCALES = [
    QueryScale(0.1, 8192, 1),
    QueryScale(0.25, 16384, 0),
    QueryScale(1.0, 3, 2),
    QueryScale(0.1, 2**31 - 1),
    QueryScale(0.1, 2048, 1, "power"),
    QueryScale(-0.1, 3, 0, "power"),
    QueryScale(1 / np.log(2048), 2048, 1, "log"),
    QueryScale(0.25, 1, 0, "log"),
]


@pytest.mark.parametrize("scale", SCALES)
def test_query_scale(scale):
    positions = [0, 1, 2, 3, 8190, 8191, 8192, 16383, 16384, 131071, 10**6, 2**31 - 2, 2**31 - 1]
    want = query_scale(positions, scale.coefficient, scale.period, scale.offset, scale.variant)
    positions = np.array(positions, np.int32)
    got, of_floats = jax.jit(lambda p, few: (scale(p), scale(few)))(positions, positions[:10].astype(np.float32))
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, rtol=2.5e-7)
    np.testing.assert_array_equal(of_floats, np.asarray(got)[:10])  # which float32 holds


@pytest.mark.parametrize("scale", tiered(SCALES, SCALES[:1]))
def test_a_query_scale_outside_of_a_program(scale):
    positions = np.array([0, 1, 2, 3, 8190, 8191, 8192, 16383, 16384, 131071], np.int32)
    np.testing.assert_array_equal(scale(positions), jax.jit(scale)(positions))
    assert scale(7).shape == ()


def test_a_query_scale_holds_python_numbers():
    scale = QueryScale(np.float64(0.1), np.int64(4))  # type: ignore
    assert type(scale.coefficient) is float and type(scale.period) is int
    assert float(scale(np.float32(9))) == float(QueryScale(0.1, 4)(np.float32(9)))  # under strict promotion
