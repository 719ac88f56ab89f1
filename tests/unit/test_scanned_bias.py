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
KEY = jax.random.key(0)


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


def check(got, want, of_layers):
    """Compares values and gradients; `of_layers` are the gradients of tables of their own, one for each layer."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_within(a, b, 1e-5, against="the unrolled stack")
    (table,) = tables(got)
    of_layers = np.asarray(of_layers)
    assert of_layers.shape == (LAYERS, 32, HEADS) and np.abs(of_layers).max((1, 2)).min() > 0.01
    assert_within(table, of_layers.sum(0), 1e-5, against="the sum over layers")


def test_nnx():
    stack = Stack(nnx.Rngs(0))
    assert shapes(nnx.state(stack, nnx.Param)) == [(32, HEADS)]

    def unrolled(stack, modules):
        x = X
        for i, t5 in enumerate(modules):
            x = jax.tree.map(lambda leaf, i=i: leaf[i], stack.blocks)(x, t5(POSITIONS, POSITIONS))
        return loss(x)

    got = nnx.jit(nnx.value_and_grad(lambda stack: loss(stack(X))))(stack)
    apart = nnx.List([nnx.clone(stack.t5) for _ in range(LAYERS)])
    shared = nnx.value_and_grad(lambda stack: unrolled(stack, [stack.t5] * LAYERS))
    want, of_layers = quick(lambda *both: (shared(both[0]), nnx.grad(unrolled, argnums=1)(*both)))(stack, apart)
    check(got, want, jax.tree.leaves(of_layers))


def test_linen():
    stack = LinenStack()
    params = quick(stack.init)(KEY, X)["params"]
    assert shapes(params) == [(32, HEADS)]

    def unrolled(params, of_layers):
        x = X
        for i, t5 in enumerate(of_layers):
            layer = jax.tree.map(lambda leaf, i=i: leaf[i], params["blocks"])
            bias = linen.T5Bias(HEADS).apply({"params": t5}, POSITIONS, POSITIONS)
            x, _ = LinenBlock().apply({"params": layer}, x, bias)
        return loss(x)

    got = quick(jax.value_and_grad(lambda params: loss(stack.apply({"params": params}, X))))(params)
    want = quick(jax.value_and_grad(lambda params: unrolled(params, [params["t5"]] * LAYERS)))(params)
    check(got, want, jax.tree.leaves(quick(jax.grad(unrolled, argnums=1))(params, [params["t5"]] * LAYERS)))


@pytest.mark.parametrize("stack", ["nnx", "linen"])
def test_layers_see_the_bias_alone(stack):
    """The table is looked up before the scan, not in each of its steps."""
    if stack == "nnx":
        graphdef, state = nnx.split(Stack(nnx.Rngs(0)))
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

    assert shapes(nnx.state(nnx.split_rngs(splits=LAYERS)(nnx.vmap(Own))(nnx.Rngs(0)))) == [(LAYERS, 32, HEADS)]

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
