"""`jax.nn.dot_product_attention` with its `bias`: the ALiBi of each pair of positions, written out in float32."""

import jax
import jax.numpy as jnp

NAME, PACKAGES, FRAMEWORK = "jax.nn, dense bias", (), "jax"
IMPORT = "import jax.nn"


def attention(case):
    _, length, heads, _ = case.shape

    def f(q, k, v):
        slopes = 2.0 ** (-8.0 * jnp.arange(1, heads + 1) / heads)  # of the paper, at powers of two
        distance = jnp.arange(length) - jnp.arange(length)[:, None]
        bias = slopes[:, None, None] * distance
        return jax.nn.dot_product_attention(q, k, v, bias=bias[None], is_causal=True)

    return f
