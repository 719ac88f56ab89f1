"""Equal jaxprs are one object, so that equal layers share one function; any difference keeps them apart."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import posenc_jax as pe
from posenc_jax._jax.primitives import interned

X = np.random.default_rng(0).normal(size=(1, 8, 2, 4)).astype(np.float32)


def formula():
    """A new function in each call."""
    return lambda i, j: (jnp.sum(i * -0.0, 0), i - 2.0 * j)


def of(function, dtype=np.float32):
    return jax.make_jaxpr(function)(*[jax.ShapeDtypeStruct((3, 3), dtype)] * 2).jaxpr


def test_equal_jaxprs_are_one_and_none_is_kept():
    first = interned(of(formula()))
    assert interned(of(formula())) is first
    kept, first = weakref.ref(first), None
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize(
    "other",
    [
        lambda i, j: (jnp.sum(i * -0.0, 0), i - 3.0 * j),
        lambda i, j: (jnp.sum(i * 0.0, 0), i - 2.0 * j),  # the sign of a zero
        lambda i, j: (jnp.sum(i * -0.0, 0), j - 2.0 * i),  # the operands
        lambda i, j: (jnp.sum(j * -0.0, 0), i - 2.0 * j),
        lambda i, j: formula()(i, j)[::-1],  # the results
        lambda i, j: (lax.reduce_max(i * -0.0, (0,)), i - 2.0 * j),  # a primitive
        lambda i, j: (jnp.sum(i * -0.0, 1), i - 2.0 * j),  # its parameters
    ],
)
def test_a_difference_keeps_jaxprs_apart(other):
    first = interned(of(formula()))
    assert interned(of(other)) is not first


def test_a_type_keeps_jaxprs_apart():
    first, other = (interned(of(jnp.add, dtype)) for dtype in (np.float32, np.float16))
    assert first is not other


def test_layers_with_biases_made_anew_share_one_function_and_keep_their_parameters():
    """Each bias closes over slopes of its own; the oracle is dense attention in float64."""
    slopes = np.float32([[0.5, 0.25], [2.0, 1.0]])

    def layers(x, slopes):
        for each in slopes:
            x = pe.attention(x, x, x, bias=lambda i, j, each=each: pe.alibi(i, j, each), implementation="xla")
        return x

    program = jax.jit(layers).lower(X, slopes)
    assert program.as_text().count("stablehlo.dot_general") == 2  # of one layer
    want, distance = np.float64(X), np.abs(np.subtract.outer(np.arange(8), np.arange(8)))
    for each in slopes:
        scores = np.einsum("bqhd,bkhd->bhqk", want, want) / 2 - each[:, None, None] * distance
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        want = np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), want)
    np.testing.assert_allclose(program.compile()(X, slopes), want, atol=1e-6)
