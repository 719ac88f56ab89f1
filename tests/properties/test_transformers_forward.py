"""Forward-mode derivatives of a small NNX Transformer agree with differences of a float64 network in NumPy.

- They hold in a training step of MeanFlow, whose loss contains the network's tangent along input and time.
- They hold in a Hessian-vector product.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posenc_jax as pe
from helpers.closeness import assert_within
from oracles import fourier
from oracles.attention import layer as attention_in_float64
from posenc_jax.nnx import positional_attention

RNG = np.random.default_rng(3)
WIDTH, HEADS, LAYERS = 16, 2, 2
X, V = RNG.normal(size=(2, 2, 6, WIDTH)).astype(np.float32)
AT = np.float32([0, 1, 2.5, 3, 4.25, 7])  # positions, which are parameters
START, END = np.float32([0.125, 0.5]), np.float32([0.25, 0.75])  # r and t of MeanFlow, one of each per sequence


def at_time(x, start, time):
    """Adds the embeddings of the time and of the interval since `start`, as MeanFlow does."""
    for t in (time, time - start):
        x = x + pe.timestep_embedding(t, WIDTH, scale=1000)[:, None]
    return x


class Transformer(nnx.Module):
    """LAYERS of attention at learned positions and a perceptron; the times are added to every token."""

    def __init__(self, attend, rngs):
        self.attend, self.positions = attend, nnx.Param(AT)
        self.attention = nnx.List(nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs) for _ in range(LAYERS))
        self.up = nnx.List(nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs) for _ in range(LAYERS))
        self.down = nnx.List(nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs) for _ in range(LAYERS))

    def __call__(self, x, start, time):
        x = at_time(x, start, time)
        for attention, up, down in zip(self.attention, self.up, self.down, strict=True):
            attention.attention_fn = functools.partial(self.attend, input_positions=self.positions[...])
            x = x + attention(x)
            x = x + down(jnp.tanh(up(x)))
        return x


@pytest.fixture
def network():
    """The Transformer as a function of (parameters, x, start, time), and its parameters."""
    attend = positional_attention(rotation=WIDTH // HEADS)
    graph, state = nnx.split(nnx.eval_shape(lambda: Transformer(attend, nnx.Rngs(0))))
    parameters = jax.tree.map(lambda w: np.float32(WIDTH**-0.5) * w, normal_like(nnx.to_pure_dict(state), 7))
    return lambda p, *inputs: nnx.merge(graph, p)(*inputs), parameters | {"positions": AT}


def normal_like(tree, seed):
    """A tree of normal float32 numbers with the shapes of another tree."""
    draw = np.random.default_rng(seed)
    return jax.tree.map(lambda w: draw.normal(size=w.shape).astype(np.float32), tree)


@pytest.fixture(autouse=True)
def as_flax():
    with jax.numpy_rank_promotion("allow"):
        yield


def plain(parameters):
    """In float64: the positions, and for each layer the parameters of attention and of both linear maps."""
    layers = [[parameters[name][i] for name in ("attention", "up", "down")] for i in range(LAYERS)]
    return jax.tree.map(lambda w: np.asarray(w, np.float64), (parameters["positions"], layers))


def in_float64(parameters, x, start, time):
    """The same network in NumPy, of `plain` parameters."""
    positions, layers = parameters
    for t in (time, time - start):
        x = x + fourier.timestep_embedding(t, WIDTH, scale=1000)[0][:, None]
    for attend, up, down in layers:
        x = x + attention_in_float64(attend, x, positions)
        x = x + np.tanh(x @ up["kernel"] + up["bias"]) @ down["kernel"] + down["bias"]
    return x


def moved(parameters, *steps):
    """The parameters plus step · direction for each (step, direction)."""
    for step, direction in steps:
        parameters = jax.tree.map(lambda w, v, step=step: w + step * v, parameters, direction)
    return parameters


def target_in_float64(parameters):
    """MeanFlow's target v − (t − r) du/dt, where x moves along v while t grows; du/dt by central differences."""
    x, v, start, end, h = *(np.asarray(a, np.float64) for a in (X, V, START, END)), 1e-6
    after, before = (in_float64(parameters, x + step * v, start, end + step) for step in (h, -h))
    return v - (end - start)[:, None, None] * (after - before) / (2 * h)


def slope_along(v, gradient):
    """The inner product of a gradient and v, and the length of the gradient."""
    leaves = jax.tree.leaves(gradient)
    slope = sum(np.vdot(a, b) for a, b in zip(leaves, jax.tree.leaves(v), strict=True))
    return slope, np.sqrt(sum(np.sum(a**2) for a in leaves))


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [True, False])
def test_a_training_step_of_mean_flow(network, stopped):
    """The loss |u − stopgrad(v − (t − r) du/dt)|² and its gradient; without stopgrad, in reverse over forward mode."""
    apply, parameters = network

    def loss(parameters):
        u = functools.partial(apply, parameters)
        y, du_dt = jax.jvp(u, (X, START, END), (V, np.zeros_like(START), np.ones_like(END)))
        target = V - (END - START)[:, None, None] * du_dt
        return jnp.mean((y - (jax.lax.stop_gradient(target) if stopped else target)) ** 2)

    value, gradient = jax.jit(jax.value_and_grad(loss))(parameters)
    base, gradient = plain(parameters), plain(gradient)
    target = target_in_float64(base)

    def loss_in_float64(parameters):
        y = in_float64(parameters, np.float64(X), np.float64(START), np.float64(END))
        return np.mean((y - (target if stopped else target_in_float64(parameters))) ** 2)

    assert_within(value, loss_in_float64(base), 1e-4 * float(value), against="float64")
    v, h = plain(normal_like(parameters, 0)), 1e-5
    want = (loss_in_float64(moved(base, (h, v))) - loss_in_float64(moved(base, (-h, v)))) / (2 * h)
    got, length = slope_along(v, gradient)
    assert_within(got, want, 2e-4 * length, against="differences in float64")


@pytest.mark.slow
def test_a_hessian_vector_product(network):
    """The Hessian times v, forward over reverse; its inner product with another direction is ∂²loss/∂v∂other."""
    apply, parameters = network
    loss = lambda w: jnp.mean(apply(w, X, START, END) ** 2)  # noqa: E731

    def loss_in_float64(parameters):
        return np.mean(in_float64(parameters, np.float64(X), np.float64(START), np.float64(END)) ** 2)

    v, other, h = normal_like(parameters, 0), normal_like(parameters, 1), 1e-4
    product = plain(jax.jit(lambda v: jax.jvp(jax.grad(loss), (parameters,), (v,))[1])(v))
    base, v, other = map(plain, (parameters, v, other))
    # ∂²loss/∂v∂other from the loss at four corners: (f₊₊ − f₊₋ − f₋₊ + f₋₋) / 4h²
    corners = [a * b * loss_in_float64(moved(base, (a * h, v), (b * h, other))) for a in (1, -1) for b in (1, -1)]
    got, length = slope_along(other, product)
    assert_within(got, sum(corners) / (4 * h * h), 2e-4 * length, against="differences in float64")
