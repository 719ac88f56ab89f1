"""The recipe's layers in Equinox and Haiku: what the layer in plain JAX computes, with the same gradient."""

import re
import textwrap
from pathlib import Path

import equinox
import haiku
import jax
import numpy as np
import pytest

import posenc_jax as pe
from helpers import pages

TEXT = (Path(__file__).parents[3] / "docs" / "recipes.md").read_text(encoding="utf-8")
Q, K, V = np.random.default_rng(0).normal(size=(3, 12, 4, 16)).astype(np.float32)


@pytest.fixture
def run():
    """Runs the code in a tab of the recipe, and returns the names that it and those before it define."""
    names = pages.run(pages.definition("docs/recipes.md", "attention_layer"), {"jax": jax, "pe": pe})
    names |= {"q": Q, "k": K, "v": V}

    def run(tab):
        (code,) = re.findall(rf'^=== "{tab}"\n\n    ```[^\n]*\n(.*?)^    ```$', TEXT, flags=re.M | re.S)
        exec(textwrap.dedent(code), names)
        return names

    return run


def check(got, gradient, table, plain):
    """Against the layer in plain JAX with that table; the buckets that occur have a gradient."""
    attend, f = plain["forward"], plain["f"]
    np.testing.assert_allclose(got, attend(table, Q, K, V, f), rtol=0, atol=2e-6)
    want = jax.grad(lambda table: attend(table, Q, K, V, f).var())(table)
    np.testing.assert_allclose(gradient, want, rtol=1e-4, atol=1e-7)
    assert gradient[:12].all() and not gradient[16:].any()


def test_equinox(run):
    plain = dict(run("Plain JAX"))
    layer = run("Equinox")["Attention"](plain["table"], plain["f"])
    gradient = equinox.filter_grad(lambda layer: layer(Q, K, V).var())(layer).table
    check(equinox.filter_jit(layer)(Q, K, V), gradient, plain["table"], plain)


def test_haiku(run):
    plain = dict(run("Plain JAX"))
    attention = run("Haiku")["Attention"]
    model = haiku.without_apply_rng(haiku.transform(lambda q, k, v: attention()(q, k, v, plain["f"])))
    parameters = model.init(jax.random.key(0), Q, K, V)
    (table,) = jax.tree.leaves(parameters)
    (gradient,) = jax.tree.leaves(jax.grad(lambda p: model.apply(p, Q, K, V).var())(parameters))
    check(jax.jit(model.apply)(parameters, Q, K, V), gradient, table, plain)
