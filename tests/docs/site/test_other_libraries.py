"""The recipe's layers in Equinox and Haiku: what the layer in plain JAX computes, with the same gradient."""

import functools
import re
import textwrap
from pathlib import Path

import equinox
import haiku
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe

TEXT = (Path(__file__).parents[3] / "docs" / "recipes.md").read_text(encoding="utf-8")
RNG = np.random.default_rng(0)


def shown(tab):
    """The code in that tab of the recipe."""
    (code,) = re.findall(rf'^=== "{tab}"\n\n    ```[^\n]*\n(.*?)^    ```$', TEXT, flags=re.M | re.S)
    return textwrap.dedent(code)


@pytest.mark.parametrize("library", [equinox, haiku])
def test_layers(library):
    q, k, v = RNG.normal(size=(3, 12, 4, 16)).astype(np.float32)
    names = {"jax": jax, "jnp": jnp, "functools": functools, "pe": pe, "q": q, "k": k, "v": v}
    exec(shown("Plain JAX"), names)
    f = names["f"]
    if library is equinox:
        exec(shown("Equinox"), names)
        layer = names["Attention"](names["table"], f)
        got = equinox.filter_jit(layer)(q, k, v)
        gradient = equinox.filter_grad(lambda layer: layer(q, k, v).var())(layer).table
        want, of_table = names["y"], names["gradient"]
    else:
        exec(shown("Haiku"), names)
        model = haiku.without_apply_rng(haiku.transform(lambda *x: names["Attention"]()(*x)))
        parameters = model.init(jax.random.key(0), q, k, v, f)
        (table,) = jax.tree.leaves(parameters)
        got = jax.jit(model.apply, static_argnums=4)(parameters, q, k, v, f)
        (gradient,) = jax.tree.leaves(jax.grad(lambda p: model.apply(p, q, k, v, f).var())(parameters))
        want = names["forward"](table, q, k, v, f)
        of_table = jax.grad(lambda table: names["forward"](table, q, k, v, f).var())(table)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6)
    np.testing.assert_allclose(gradient, of_table, rtol=0, atol=2e-6)
    assert of_table[:12].all() and not of_table[16:].any()
