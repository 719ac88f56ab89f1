"""The recipe's layers in Equinox and Haiku: what the layer in plain JAX computes, with the same gradient."""

import re
import textwrap

import equinox
import haiku
import jax
import numpy as np
import pytest

import posenc_jax as pe
from helpers import pages

Q, K, V = np.random.default_rng(0).normal(size=(3, 12, 4, 16)).astype(np.float32)


@pytest.fixture
def run():
    """What the recipe's tab of plain JAX defines, and another tab after it."""

    def run(tab):
        code = [pages.definition("docs/recipes.md", "attention_layer")]
        for name in ("Plain JAX", tab):
            block = rf'^=== "{name}"\n\n    ```[^\n]*\n(.*?)^    ```$'
            code += map(textwrap.dedent, re.findall(block, pages.text_of("docs/recipes.md"), flags=re.M | re.S))
        return pages.run("\n".join(code), {"jax": jax, "pe": pe, "q": Q, "k": K, "v": V})

    return run


def check(y, gradient, table, names):
    forward = lambda table: names["forward"](table, Q, K, V, names["f"])  # noqa: E731
    np.testing.assert_allclose(y, forward(table), rtol=0, atol=2e-6)
    want = jax.grad(lambda table: forward(table).var())(table)
    np.testing.assert_allclose(gradient, want, rtol=1e-4, atol=1e-7)
    assert want[:12].all()  # the buckets that occur


def test_equinox(run):
    names = run("Equinox")
    layer = names["Attention"](names["table"], names["f"])
    gradient = equinox.filter_grad(lambda layer: layer(Q, K, V).var())(layer)
    check(equinox.filter_jit(layer)(Q, K, V), gradient.table, names["table"], names)


def test_haiku(run):
    names = run("Haiku")
    model = haiku.without_apply_rng(haiku.transform(lambda q, k, v: names["Attention"]()(q, k, v, names["f"])))
    parameters = model.init(jax.random.key(0), Q, K, V)
    gradient = jax.grad(lambda parameters: model.apply(parameters, Q, K, V).var())(parameters)
    (table,), (of_table,) = jax.tree.leaves(parameters), jax.tree.leaves(gradient)
    check(jax.jit(model.apply)(parameters, Q, K, V), of_table, table, names)
