"""README's examples run, and decode what the whole sequence gives."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.pages import text_of


@pytest.mark.slow
def test_the_examples():
    names = {}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as a user has them
        for block in re.findall(r"```python\n(.*?)```", text_of("README.md"), flags=re.DOTALL):
            exec(block, names)
        rotate = lambda x: pe.rotary(x, None, pe.geometric(128, 500_000.0), head_axis=-2)  # noqa: E731
        keys = jnp.concatenate([names["prompt"], names["token"]], axis=1)
        queries = jnp.broadcast_to(names["query"], (2, 101, 32, 128))
        whole = jax.nn.dot_product_attention(rotate(queries), rotate(keys), keys, is_causal=True)
    np.testing.assert_allclose(*(x.astype(np.float32) for x in (names["out"], whole[:, -1:])), rtol=0, atol=0.02)
    assert names["layer"](np.ones((1, 3, 512), np.float32)).shape == (1, 3, 512)


def test_nothing_is_left_to_fill_in():
    assert not re.findall(r"\b[A-Z]{3,}_[A-Z]+\b|TODO|TBD", text_of("README.md"))
