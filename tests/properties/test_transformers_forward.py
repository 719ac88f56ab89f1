"""Forward mode through a small Transformer in both Flax stacks.

A tangent along the input and time, a training step of MeanFlow around it, and Hessian-vector products, forward over
reverse; beside the same with textbook RoPE, which JAX derives, and beside differences of a float64 network in NumPy.
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
from oracles import fourier, spectra
from oracles.attention import layer as attention_in_float64

RNG = np.random.default_rng(3)
WIDTH, HEADS, LAYERS = 16, 2, 2
X, V = RNG.normal(size=(2, 2, 6, WIDTH)).astype(np.float32)
AT = np.float32([0, 1, 2.5, 3, 4.25, 7])
TIME, STEP = np.float32([0.3, 0.7]), np.float32([1, -0.5])
START, END = np.float32([0.125, 0.5]), np.float32([0.25, 0.75])
OMEGA = spectra.floats(spectra.geometric(WIDTH // HEADS, 10_000)).astype(np.float32)


def textbook(attend, query, key, value, *args, input_positions, **kwargs):
    """Flax's own attention of a query and a key that are turned as everybody writes it."""

    def turned(x):
        angle = input_positions[:, None, None] * OMEGA.reshape(1, 1, -1)
        angle = angle.reshape((1,) * (x.ndim - 3) + angle.shape)
        a, b = jnp.split(x, 2, axis=-1)
        return jnp.concatenate(
            [a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], axis=-1
        )

    return attend(turned(query), turned(key), value, *args, **kwargs)


def at_time(x, time, start):
    """Adds the embedding of the time and, as MeanFlow has it, that of the interval from `start`."""
    x = x + pe.timestep_embedding(time, WIDTH, scale=1000)[:, None]
    return x if start is None else x + pe.timestep_embedding(time - start, WIDTH, scale=1000)[:, None]


class OfNNX(nnx.Module):
    """Attention at learned positions and a perceptron, twice, at a time that is added to every token."""

    def __init__(self, attend, rngs):
        self.attend, self.positions = attend, nnx.Param(AT)
        self.attention = nnx.List(nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs) for _ in range(LAYERS))
        self.up = nnx.List(nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs) for _ in range(LAYERS))
        self.down = nnx.List(nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs) for _ in range(LAYERS))

    def __call__(self, x, time, start=None):
        x = at_time(x, time, start)
        for attention, up, down in zip(self.attention, self.up, self.down, strict=True):
            attention.attention_fn = functools.partial(self.attend, input_positions=self.positions[...])
            x = x + attention(x)
            x = x + down(jnp.tanh(up(x)))
        return x


class OfLinen(nn.Module):
    """The same in Linen."""

    attend: object

    @nn.compact
    def __call__(self, x, time, start=None):
        x = at_time(x, time, start)
        attend = functools.partial(self.attend, input_positions=self.param("positions", lambda _: jnp.asarray(AT)))
        for _ in range(LAYERS):
            x = x + nn.MultiHeadDotProductAttention(HEADS, attention_fn=attend)(x)
            x = x + nn.Dense(WIDTH)(jnp.tanh(nn.Dense(2 * WIDTH)(x)))
        return x


def of_nnx(ours):
    rotated = pe.nnx.positional_attention(rotation=WIDTH // HEADS)
    attend = rotated if ours else functools.partial(textbook, nnx.dot_product_attention)
    graph, state = nnx.split(nnx.eval_shape(lambda: OfNNX(attend, nnx.Rngs(0))))
    return lambda parameters, *inputs: nnx.merge(graph, parameters)(*inputs), drawn(nnx.to_pure_dict(state))


def of_linen(ours):
    rotated = pe.linen.positional_attention(rotation=WIDTH // HEADS)
    model = OfLinen(rotated if ours else functools.partial(textbook, nn.dot_product_attention))
    return model.apply, drawn(jax.eval_shape(model.init, jax.eval_shape(jax.random.key, 0), X, TIME))


def like(tree, seed):
    draw = np.random.default_rng(seed)
    return jax.tree.map(lambda w: draw.normal(size=w.shape).astype(np.float32), tree)


def drawn(types):
    """Parameters of these types, at the positions `AT`."""
    at = lambda path, w: AT if "positions" in jax.tree_util.keystr(path) else np.float32(WIDTH**-0.5) * w  # noqa: E731
    return jax.tree.map_with_path(at, like(types, 7))


@pytest.fixture(autouse=True)
def as_flax():
    with jax.numpy_rank_promotion("allow"):
        yield


def assert_alike(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_within(a, b, 1e-4 * (1e-2 + np.abs(b).max()), against="textbook RoPE")  # float32, thousands of terms


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("of", [of_nnx, of_linen])
def test_without_positions_the_derivatives_are_others(of):
    """The control: RoPE matters in this network."""
    apply, parameters = of(True)
    tangent = quick(lambda x, v: jax.jvp(lambda x: apply(parameters, x, TIME), (x,), (v,))[1])
    along, reversed_ = (np.asarray(tangent(x, v)) for x, v in ((X, V), (X[:, ::-1], V[:, ::-1])))
    assert np.abs(along - reversed_[:, ::-1]).max() > 1e-2


# Beside differences in float64


def plain(parameters):
    """Parameters of either stack: the positions, and of each layer those of attention and of both linear maps."""
    if "params" not in parameters:
        found = parameters
        layers = [[found[name][i] for name in ("attention", "up", "down")] for i in range(LAYERS)]
    else:
        found = parameters["params"]
        names = [(f"MultiHeadDotProductAttention_{i}", f"Dense_{2 * i + 1}", f"Dense_{2 * i}") for i in range(LAYERS)]
        layers = [[found[name] for name in each] for each in names]
    return jax.tree.map(lambda w: np.asarray(w, np.float64), (found["positions"], layers))


def in_float64(parameters, x, start, time):
    """The network, by oracles."""
    positions, layers = parameters
    for t in (time, time - start):
        x = x + fourier.timestep_embedding(t, WIDTH, scale=1000)[0][:, None]
    for attend, up, down in layers:
        x = x + attention_in_float64(attend, x, positions)
        x = x + np.tanh(x @ up["kernel"] + up["bias"]) @ down["kernel"] + down["bias"]
    return x


def moved(parameters, *steps):
    """The parameters and multiples of others, each (number, parameters)."""
    for step, others in steps:
        parameters = jax.tree.map(lambda w, v, step=step: w + step * v, parameters, others)
    return parameters


def target_in_float64(parameters):
    """v − (t − r) du/dt, by differences along the path."""
    x, v, start, end, h = *(np.asarray(a, np.float64) for a in (X, V, START, END)), 1e-6
    after, before = (in_float64(parameters, x + step * v, start, end + step) for step in (h, -h))
    return v - (end - start)[:, None, None] * (after - before) / (2 * h)


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.parametrize("of", [of_nnx, of_linen])
def test_a_training_step_of_mean_flow(of, stopped):
    """|u − stopgrad(v − (t − r) du/dt)|², whose derivative holds a tangent; without stopgrad, reverse over forward."""
    apply, parameters = of(True)

    def loss(parameters):
        u = lambda x, start, time: apply(parameters, x, time, start)  # noqa: E731
        y, along = jax.jvp(u, (X, START, END), (V, np.zeros_like(START), np.ones_like(END)))
        target = V - (END - START)[:, None, None] * along
        return jnp.mean((y - (jax.lax.stop_gradient(target) if stopped else target)) ** 2)

    value, gradient = quick(jax.value_and_grad(loss))(parameters)
    base, gradient = plain(parameters), plain(gradient)
    target = target_in_float64(base)

    def loss_in_float64(parameters):
        y = in_float64(parameters, np.float64(X), np.float64(START), np.float64(END))
        return np.mean((y - (target if stopped else target_in_float64(parameters))) ** 2)

    assert_within(value, loss_in_float64(base), 1e-4 * float(value), against="float64")
    for seed in range(3):
        v, h = plain(like(parameters, seed)), 1e-5
        want = (loss_in_float64(moved(base, (h, v))) - loss_in_float64(moved(base, (-h, v)))) / (2 * h)
        got = sum(np.vdot(a, b) for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(v), strict=True))
        length = np.sqrt(sum(np.sum(a**2) for a in jax.tree.leaves(gradient)))
        assert_within(got, want, 2e-4 * length, against="differences in float64")


@pytest.mark.slow
@pytest.mark.parametrize("of", [of_nnx, of_linen])
def test_hessian_vector_products_beside_float64(of):
    apply, parameters = of(True)
    loss = lambda w: jnp.mean(apply(w, X, END, START) ** 2)  # noqa: E731

    def loss_in_float64(parameters):
        return np.mean(in_float64(parameters, np.float64(X), np.float64(START), np.float64(END)) ** 2)

    v, others, h = like(parameters, 0), [like(parameters, seed) for seed in (0, 1, 2)], 1e-4
    product = plain(quick(lambda v: jax.jvp(jax.grad(loss), (parameters,), (v,))[1])(v))
    length = np.sqrt(sum(np.sum(a**2) for a in jax.tree.leaves(product)))
    base, v = plain(parameters), plain(v)
    for other in map(plain, others):
        four = [a * b * loss_in_float64(moved(base, (a * h, v), (b * h, other))) for a in (1, -1) for b in (1, -1)]
        got = sum(np.vdot(a, b) for a, b in zip(jax.tree.leaves(product), jax.tree.leaves(other), strict=True))
        assert_within(got, sum(four) / (4 * h * h), 2e-4 * length, against="differences in float64")
