"""For tests/nn/embedding_test.py: scores depend on distances alone, however far the positions are."""

import jax
import jax.numpy as jnp
import numpy as np
from penzai import pz


def test_rope_far_from_the_start():
    rope = pz.nn.ApplyRoPE(embedding_axis="feature", max_wavelength=10_000.0, positions_input_name="at")
    q, k = jax.random.normal(jax.random.key(0), (2, 64))

    def score(position):
        def turn(x, at):
            return rope(pz.nx.wrap(x).tag("feature"), at=pz.nx.wrap(jnp.array(at))).unwrap("feature")

        return float(jnp.vdot(turn(q, position + 7), turn(k, position)))

    np.testing.assert_allclose(score(1_000_000), score(0), atol=1e-5)
