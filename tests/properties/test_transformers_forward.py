"""Forward mode through a small Transformer in both Flax stacks, beside the same with textbook RoPE, which JAX derives.

A tangent along the input and time, as MeanFlow takes it; and a Hessian-vector product, forward over reverse.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posenc_jax as pe
import posenc_jax.linen
import posenc_jax.nnx
from helpers.closeness import assert_within
from helpers.quick import quick
from oracles import spectra

RNG = np.random.default_rng(3)
WIDTH, HEADS, LAYERS = 16, 2, 2
X, V = RNG.normal(size=(2, 2, 6, WIDTH)).astype(np.float32)
TIME, STEP = np.float32([0.3, 0.7]), np.float32([1, -0.5])
OMEGA = spectra.floats(spectra.geometric(WIDTH // HEADS, 10_000)).astype(np.float32)


def textbook(attend, query, key, value, *args, **kwargs):
    """Flax's own attention of a query and a key that are turned as everybody writes it."""

    def turned(x):
        angle = jnp.arange(x.shape[-3], dtype=jnp.float32)[:, None, None] * OMEGA.reshape(1, 1, -1)
        angle = angle.reshape((1,) * (x.ndim - 3) + angle.shape)
        a, b = jnp.split(x, 2, axis=-1)
        return jnp.concatenate(
            [a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], axis=-1
        )

    return attend(turned(query), turned(key), value, *args, **kwargs)


class OfNNX(nnx.Module):
    """Attention and a perceptron, twice, at a time that is added to every token."""

    def __init__(self, attend, rngs):
        self.attention = nnx.List(
            nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, attention_fn=attend, rngs=rngs) for _ in range(LAYERS)
        )
        self.up = nnx.List(nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs) for _ in range(LAYERS))
        self.down = nnx.List(nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs) for _ in range(LAYERS))

    def __call__(self, x, time):
        x = x + pe.timestep_embedding(1000 * time, WIDTH)[:, None]
        for attention, up, down in zip(self.attention, self.up, self.down, strict=True):
            x = x + attention(x)
            x = x + down(jnp.tanh(up(x)))
        return x


class OfLinen(nn.Module):
    """The same in Linen."""

    attend: object

    @nn.compact
    def __call__(self, x, time):
        x = x + pe.timestep_embedding(1000 * time, WIDTH)[:, None]
        for _ in range(LAYERS):
            x = x + nn.MultiHeadDotProductAttention(HEADS, attention_fn=self.attend)(x)
            x = x + nn.Dense(WIDTH)(jnp.tanh(nn.Dense(2 * WIDTH)(x)))
        return x


def of_nnx(ours):
    rotated = pe.nnx.positional_attention(WIDTH // HEADS)
    attend = rotated if ours else functools.partial(textbook, nnx.dot_product_attention)
    graph, parameters = nnx.split(OfNNX(attend, nnx.Rngs(0)))
    return lambda parameters, x, time: nnx.merge(graph, parameters)(x, time), parameters


def of_linen(ours):
    rotated = pe.linen.positional_attention(WIDTH // HEADS)
    model = OfLinen(rotated if ours else functools.partial(textbook, nn.dot_product_attention))
    return model.apply, model.init(jax.random.key(0), X, TIME)


@pytest.fixture(autouse=True)
def as_flax():
    with jax.numpy_rank_promotion("allow"):
        yield


def like(tree, seed):
    draw = np.random.default_rng(seed)
    return jax.tree.map(lambda w: jnp.asarray(draw.normal(size=w.shape), w.dtype), tree)


def assert_alike(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_within(a, b, 1e-4 * (1e-2 + np.abs(b).max()), against="textbook RoPE")  # float32, thousands of terms


@pytest.mark.parametrize("of", [of_nnx, of_linen])
def test_a_step_of_mean_flow_and_a_hessian_vector_product(of):
    results = []
    for ours in (True, False):
        apply, parameters = of(ours)
        v = like(parameters, 1)

        def derivatives(parameters, v, apply=apply):
            # The average velocity u(x, t) and its derivative along the path, du/dt = v ∂u/∂x + ∂u/∂t.
            u, along = jax.jvp(functools.partial(apply, parameters), (X, TIME), (V, STEP))
            loss = lambda w: jnp.mean((apply(w, X, TIME) - jax.lax.stop_gradient(V - along)) ** 2)  # noqa: E731
            gradient = jax.grad(loss)(parameters)
            product = jax.jvp(jax.grad(loss), (parameters,), (v,))[1]
            reverse = jax.grad(lambda w: sum(map(jnp.vdot, *map(jax.tree.leaves, (jax.grad(loss)(w), v)))))(parameters)
            return u, along, gradient, product, reverse

        results.append(quick(derivatives)(parameters, v))
    ours, theirs = results
    assert_alike(ours, theirs)
    assert_alike(ours[3], ours[4])
    assert float(jnp.abs(ours[1]).max()) > 0.1
    assert any(float(jnp.abs(x).max()) > 1e-3 for x in jax.tree.leaves(ours[3]))


@pytest.mark.parametrize("of", [of_nnx, of_linen])
def test_without_positions_the_derivatives_are_others(of):
    """The control: RoPE matters in this network."""
    apply, parameters = of(True)
    along = [
        jax.jvp(lambda x: apply(parameters, x, TIME), (x,), (v,))[1] for x, v in ((X, V), (X[:, ::-1], V[:, ::-1]))
    ]
    assert float(jnp.abs(along[0] - along[1][:, ::-1]).max()) > 1e-2
