"""One T5 table for all layers of a scanned stack: the bias is computed once and broadcast to the layers."""

import copy
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posenc_jax.linen as linen
import posenc_jax.nnx as nnx_modules
from helpers.closeness import assert_within
from helpers.quick import quick

LAYERS, HEADS, WIDTH = 3, 2, 16
X = np.random.default_rng(0).normal(size=(2, 6, WIDTH)).astype(np.float32)
POSITIONS = np.arange(6)[None]
KEY = jax.eval_shape(jax.random.key, 0)


class Block(nnx.Module):
    def __init__(self, rngs):
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)

    def __call__(self, x, bias):
        attention = copy.copy(self.attention)
        attention.attention_fn = functools.partial(attention.attention_fn, bias=bias)
        return x + attention(x)


class Stack(nnx.Module):
    def __init__(self, rngs):
        self.t5 = nnx_modules.T5Bias(HEADS, rngs=rngs)
        self.blocks = nnx.split_rngs(splits=LAYERS)(nnx.vmap(Block))(rngs)

    def __call__(self, x):
        scanned = nnx.scan(lambda x, block, bias: block(x, bias), in_axes=(nnx.Carry, 0, None), out_axes=nnx.Carry)
        return scanned(x, self.blocks, self.t5(POSITIONS, POSITIONS))


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x, bias):
        attend = functools.partial(nn.dot_product_attention, bias=bias)
        return x + nn.MultiHeadDotProductAttention(HEADS, attention_fn=attend)(x), None


def scanned(block):
    split = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
    return nn.scan(block, **split, in_axes=nn.broadcast, length=LAYERS)  # type: ignore


class LinenStack(nn.Module):
    @nn.compact
    def __call__(self, x):
        bias = linen.T5Bias(HEADS, name="t5")(POSITIONS, POSITIONS)
        return scanned(LinenBlock)(name="blocks")(x, bias)[0]


def loss(y):
    return jnp.sum(jnp.sin(y)) / 8


def tables(tree):
    """All T5 tables in a tree of parameters or of their gradients."""
    leaves = jax.tree.leaves_with_path(tree)
    return [leaf for path, leaf in leaves if "embedding" in jax.tree_util.keystr(path)]


def shapes(tree):
    return [table.shape for table in tables(tree)]


def drawn(tree):
    """Parameters of these shapes."""
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: 0.3 * rng.normal(size=x.shape).astype(np.float32), tree)


def check(value, gradient, unrolled, table, blocks):
    """Compares both with those of an unrolled stack that has a table for each layer."""
    wanted, (of_layers, of_unrolled) = quick(jax.value_and_grad(unrolled, (0, 1)))([table] * LAYERS, blocks)
    (of_table,) = tables(gradient)
    for a, b in zip(jax.tree.leaves((value, gradient["blocks"])), jax.tree.leaves((wanted, of_unrolled)), strict=True):
        assert_within(a, b, 1e-5, against="the unrolled stack")
    of_layers = np.asarray(of_layers)
    assert of_layers.shape == (LAYERS, 32, HEADS) and np.abs(of_layers).max((1, 2)).min() > 0.01
    assert_within(of_table, of_layers.sum(0), 1e-5, against="the sum over layers")


def test_nnx():
    graph, state = nnx.split(nnx.eval_shape(lambda: Stack(nnx.Rngs(0))))
    parameters = drawn(nnx.to_pure_dict(state))
    assert shapes(parameters) == [(32, HEADS)]

    def unrolled(tables, blocks):
        x = X
        for i, table in enumerate(tables):
            stack = nnx.merge(graph, {"t5": {"embedding": table}, "blocks": blocks})
            x = jax.tree.map(lambda leaf, i=i: leaf[i], stack.blocks)(x, stack.t5(POSITIONS, POSITIONS))
        return loss(x)

    step = nnx.jit(nnx.value_and_grad(lambda stack: loss(stack(X))))
    value, gradient = step(nnx.merge(graph, parameters))
    check(value, nnx.to_pure_dict(gradient), unrolled, tables(parameters)[0], parameters["blocks"])


@pytest.mark.slow
def test_linen():
    parameters = drawn(jax.eval_shape(LinenStack().init, KEY, X)["params"])
    assert shapes(parameters) == [(32, HEADS)]

    def unrolled(tables, blocks):
        x = X
        for i, table in enumerate(tables):
            layer = jax.tree.map(lambda leaf, i=i: leaf[i], blocks)
            bias = linen.T5Bias(HEADS).apply({"params": {"embedding": table}}, POSITIONS, POSITIONS)
            x, _ = LinenBlock().apply({"params": layer}, x, bias)
        return loss(x)

    step = quick(jax.value_and_grad(lambda parameters: loss(LinenStack().apply({"params": parameters}, X))))
    check(*step(parameters), unrolled, tables(parameters)[0], parameters["blocks"])


@pytest.mark.parametrize("stack", ["nnx", "linen"])
def test_layers_see_the_bias_alone(stack):
    """The table is looked up before the scan, not in each of its steps."""
    if stack == "nnx":
        graphdef, state = nnx.split(nnx.eval_shape(lambda: Stack(nnx.Rngs(0))))
        jaxpr = jax.make_jaxpr(lambda state: nnx.merge(graphdef, state)(X))(state)
    else:
        jaxpr = jax.make_jaxpr(LinenStack().apply)(jax.eval_shape(LinenStack().init, KEY, X), X)
    (scan,) = (equation for equation in jaxpr.eqns if equation.primitive.name == "scan")
    given = [v.aval.shape for v in scan.invars]
    assert (1, HEADS, 6, 6) in given and (32, HEADS) not in given


def test_a_module_made_in_a_layer_has_a_table_for_each():
    class Own(nnx.Module):
        def __init__(self, rngs):
            self.t5 = nnx_modules.T5Bias(HEADS, rngs=rngs)

    own = nnx.eval_shape(lambda: nnx.split_rngs(splits=LAYERS)(nnx.vmap(Own))(nnx.Rngs(0)))
    assert shapes(nnx.state(own)) == [(LAYERS, 32, HEADS)]

    class LinenOwn(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return x + jnp.sum(linen.T5Bias(HEADS)(POSITIONS, POSITIONS)), None

    assert shapes(jax.eval_shape(scanned(LinenOwn)().init, KEY, X[0, 0, 0], None)) == [(LAYERS, 32, HEADS)]


def test_a_linen_module_passed_to_a_scanned_layer_has_a_table_for_each():
    class Given(nn.Module):
        t5: nn.Module

        @nn.compact
        def __call__(self, x, _):
            return x + jnp.sum(self.t5(POSITIONS, POSITIONS)), None

    class Parent(nn.Module):
        @nn.compact
        def __call__(self, x):
            return scanned(Given)(linen.T5Bias(HEADS))(x, None)[0]

    assert shapes(jax.eval_shape(Parent().init, KEY, X[0, 0, 0])) == [(LAYERS, 32, HEADS)]
