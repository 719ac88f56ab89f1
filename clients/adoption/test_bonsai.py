"""For the models' tests: scores depend on distances alone, and a turn by nothing changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bonsai.models.dinov3 import modeling as dinov3
from bonsai.models.gemma3 import modeling as gemma3
from bonsai.models.qwen3 import modeling as qwen3
from bonsai.utils import rope

ROPES = {
    "qwen3": lambda x, at: qwen3.apply_rope(x, *qwen3._generate_pos_embeddings(at, 64, 10_000)),
    "gemma3": lambda x, at: gemma3.apply_rope(x, *gemma3._generate_pos_embeddings(at, 64, 10_000)),
    "utils": lambda x, at: rope.apply_rope(x, *rope.RoPE(rope_type="default", head_dim=64, rope_theta=10_000)(at)),
}


@pytest.mark.parametrize("name", ROPES)
def test_rope_far_from_the_start(name):
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 64))

    def score(position):
        turned = [ROPES[name](x, jnp.array([[at]])) for x, at in ((q, position + 7), (k, position))]
        return float(jnp.vdot(*turned))

    np.testing.assert_allclose(score(1_000_000), score(0), atol=1e-5)


def test_dinov3_keeps_float32():
    q = jax.random.normal(jax.random.key(0), (1, 2, 9, 64))
    turned, _ = dinov3.apply_rotary_pos_emb(q, q, jnp.ones((4, 64)), jnp.zeros((4, 64)))
    np.testing.assert_array_equal(turned, q)
