"""The recipe's layers in Equinox and Haiku: what the layer in plain JAX computes, with the same gradient."""

import re
import textwrap
import types

import equinox
import haiku
import jax
import numpy as np

import posenc_jax as pe
from helpers import pages

Q, K, V = np.random.default_rng(0).normal(size=(3, 12, 4, 16)).astype(np.float32)


def tab(name):
    """What the recipe's tab of plain JAX defines, and another tab after it."""
    code = [pages.definition("docs/recipes.md", "attention_layer")]
    for title in ("Plain JAX", name):
        block = rf'^=== "{title}"\n\n    ```[^\n]*\n(.*?)^    ```$'
        code += map(textwrap.dedent, re.findall(block, pages.text_of("docs/recipes.md"), flags=re.M | re.S))
    return types.SimpleNamespace(**pages.run("\n".join(code), {"jax": jax, "pe": pe, "q": Q, "k": K, "v": V}))


def check(y, gradient, table, page):
    want = jax.grad(lambda table: page.forward(table, Q, K, V, page.f).var())(table)
    np.testing.assert_allclose(y, page.forward(table, Q, K, V, page.f), rtol=0, atol=2e-6)
    np.testing.assert_allclose(gradient, want, rtol=1e-4, atol=1e-7)
    assert want[:12].all()  # the buckets that occur


def test_equinox():
    page = tab("Equinox")
    layer = page.Attention(page.table, page.f)
    gradient = equinox.filter_grad(lambda layer: layer(Q, K, V).var())(layer)
    check(layer(Q, K, V), gradient.table, page.table, page)


def test_haiku():
    page = tab("Haiku")
    model = haiku.without_apply_rng(haiku.transform(lambda: page.Attention()(Q, K, V, page.f)))
    parameters = model.init(jax.random.key(0))
    gradient = jax.grad(lambda parameters: model.apply(parameters).var())(parameters)
    check(model.apply(parameters), *jax.tree.leaves([gradient, parameters]), page)
