"""Compares derivatives with finite differences of a formula in float64, and counts the bytes that derivatives store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from helpers.closeness import assert_within

H1, H2 = 1e-5, 1e-4  # steps of first and second differences


class Directions:
    """A function of floats, its formula in float64, and what its derivatives are compared along.

    `v` and `u` are two directions, with one array for each float. `weights` define a loss, Σ weights · y³.
    """

    def __init__(self, f: Callable[..., Any], exact: Callable[..., Any], floats: Sequence[Any]) -> None:
        rng = np.random.default_rng(1)
        draw = lambda arrays: [rng.normal(size=np.shape(x)).astype(np.float32) for x in arrays]  # noqa: E731
        self.f, self.exact, self.floats, self.v, self.u = f, exact, floats, draw(floats), draw(floats)
        self.weights = draw(jax.tree.leaves(self.truth()))

    def truth(self, *steps: tuple[float, list[np.ndarray]]) -> Any:
        """The formula of the floats, each moved by the sum of h·v over the steps (h, v)."""
        moved = lambda i: sum(h * np.float64(v[i]) for h, v in steps)  # noqa: E731
        return self.exact(*(np.float64(x) + moved(i) for i, x in enumerate(self.floats)))

    def loss(self, *floats: Any) -> Any:
        ys = jax.tree.leaves(self.f(*floats))
        return sum(jnp.sum(w * y**3) for w, y in zip(self.weights, ys, strict=True))

    def gradient(self, *floats: Any) -> tuple[jax.Array, ...]:
        return jax.grad(self.loss, [*range(len(floats))])(*floats)

    def check_loss(self, got: Any, want: Any) -> None:
        size = sum(np.abs(w).sum() for w in self.weights)
        assert_within(got, want, 3e-5 * size + 1e-5 * abs(want), against="the difference of the loss")

    def true_loss(self, *steps: Any) -> Any:
        return sum(np.sum(w * y**3) for w, y in zip(self.weights, jax.tree.leaves(self.truth(*steps)), strict=True))

    def alone(self, i: int) -> list[np.ndarray]:
        """The direction that is v for float i and 0 for the others."""
        return [v * (i == j) for j, v in enumerate(self.v)]

    def along(self, f: Callable[..., Any], v: list[np.ndarray]) -> list[np.ndarray]:
        """The derivative of f along v, by a central difference; f takes steps, as `truth` does."""
        each = zip(jax.tree.leaves(f((H1, v))), jax.tree.leaves(f((-H1, v))), strict=True)
        return [(a - b) / (2 * H1) for a, b in each]

    def along_two(self, f: Callable[..., Any]) -> list[np.ndarray]:
        """The second derivative of f along v and u, by differences of four corners."""
        signs = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
        corners = [jax.tree.leaves(f((a * H2, self.v), (b * H2, self.u))) for a, b in signs]
        return [
            sum(a * b * y for (a, b), y in zip(signs, ys, strict=True)) / (4 * H2**2)
            for ys in zip(*corners, strict=True)
        ]


def assert_derivatives(f: Callable[..., jax.Array], exact: Callable[..., Any], *arguments: Any) -> None:
    """Asserts that forward and reverse mode of f, in all float32 arguments, give the differences of `exact`."""
    d = Directions(f, exact, arguments)
    (weights,), (want,) = d.weights, d.along(d.truth, d.v)

    @jax.jit
    def both_modes(*arguments: Any) -> Any:
        return jax.jvp(f, arguments, tuple(d.v))[1], jax.vjp(f, *arguments)[1](weights)

    forward, reverse = both_modes(*arguments)
    assert_within(forward, want, 2e-6 * (1 + np.abs(want)), against="differences")
    for i, got in enumerate(reverse):  # gradient i, times v, is the derivative along v of argument i alone
        assert got.shape == np.shape(arguments[i])
        product, terms = np.vdot(np.float64(got), d.v[i]), weights * d.along(d.truth, d.alone(i))[0]
        bound = 1e-6 * (1 + np.abs(terms).sum())
        assert_within(product, terms.sum(), bound, against=f"differences in argument {i}")


def stored(f: Callable[..., Any], *arguments: Any) -> int:
    """The number of bytes that the derivative of f in all of its arguments stores; nothing is computed."""
    arrays = jax.tree.leaves(jax.eval_shape(lambda *x: jax.vjp(f, *x)[1], *arguments))
    return sum(x.size * x.dtype.itemsize for x in arrays)
