"""The Equinox and Haiku layers of docs/flax.md#other-libraries have the output and gradient of its plain JAX."""

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


def defined_by(name):
    """What the tabs "Plain JAX" and `name` define, with `attention_layer`: `table`, `forward`, `f` and `Attention`."""
    code = [pages.definition("docs/flax.md", "attention_layer")]
    for title in ("Plain JAX", name):
        block = rf'^=== "{title}"\n\n    ```[^\n]*\n(.*?)^    ```$'
        code += map(textwrap.dedent, re.findall(block, pages.text_of("docs/flax.md"), flags=re.M | re.S))
    return types.SimpleNamespace(**pages.run("\n".join(code), {"jax": jax, "pe": pe, "q": Q, "k": K, "v": V}))


def assert_as_in_plain_jax(y, gradient, table, recipe):
    """The gradient is that of the variance of y by the table."""
    want = jax.grad(lambda table: recipe.forward(table, Q, K, V, recipe.f).var())(table)
    np.testing.assert_allclose(y, recipe.forward(table, Q, K, V, recipe.f), rtol=0, atol=2e-6)
    np.testing.assert_allclose(gradient, want, rtol=1e-4, atol=1e-7)
    assert want[:12].all()  # the buckets of distances 0 to 11


def test_the_equinox_layer_is_the_plain_one():
    recipe = defined_by("Equinox")
    layer = recipe.Attention(recipe.table, recipe.f)
    gradient = equinox.filter_grad(lambda layer: layer(Q, K, V).var())(layer)
    assert_as_in_plain_jax(layer(Q, K, V), gradient.table, recipe.table, recipe)


def test_the_haiku_layer_is_the_plain_one():
    recipe = defined_by("Haiku")
    model = haiku.without_apply_rng(haiku.transform(lambda: recipe.Attention()(Q, K, V, recipe.f)))
    parameters = model.init(jax.random.key(0))
    gradient = jax.grad(lambda parameters: model.apply(parameters).var())(parameters)
    # both have one leaf, the table
    assert_as_in_plain_jax(model.apply(parameters), *jax.tree.leaves([gradient, parameters]), recipe)
