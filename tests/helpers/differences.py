"""Derivatives beside differences of a formula in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from helpers.closeness import assert_within


def assert_derivatives(f: Callable[..., jax.Array], exact: Callable[..., Any], *arguments: Any) -> None:
    """Forward and reverse mode of f, along a direction of each float32 argument, beside differences of `exact`."""
    rng = np.random.default_rng(0)
    directions = [rng.normal(size=np.shape(a)).astype(np.float32) for a in arguments]

    def slope(i: int) -> np.ndarray:
        def at(step: float) -> np.ndarray:
            return exact(
                *(np.float64(a) + step * (i == j) * np.float64(directions[j]) for j, a in enumerate(arguments))
            )

        return (at(1e-5) - at(-1e-5)) / 2e-5

    wants = [slope(i) for i in range(len(arguments))]
    ct = rng.normal(size=wants[0].shape).astype(np.float32)

    @jax.jit
    def both_modes(*arguments: Any) -> Any:
        return jax.jvp(f, arguments, tuple(directions))[1], jax.vjp(f, *arguments)[1](ct)

    forward, reverse = both_modes(*arguments)
    assert_within(forward, sum(wants), 5e-5 * max(np.abs(want).max() for want in wants), against="differences")
    for i, (got, want) in enumerate(zip(reverse, wants, strict=True)):
        assert got.shape == np.shape(arguments[i])
        scale = np.abs(ct * want).sum() + np.abs(np.float64(got) * directions[i]).sum()
        product = np.vdot(np.float64(got), directions[i])
        assert_within(product, np.vdot(ct, want), 2e-5 * scale, against=f"differences in argument {i}")
