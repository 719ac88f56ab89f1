r"""Unconstrained parameters of the learned biases: initial values, and the parameters that they stand for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from posenc_jax import _checks
from posenc_jax._bias import kerple_log, kerple_power
from posenc_jax._learned_bias import fire

Form = Literal["log", "power"]
ONE = math.log(math.expm1(1))  # its softplus is 1
_LEAST = 0.01  # of KERPLE's parameters, as in the authors' code


def parse_form(value: Any) -> Form:
    """Which of KERPLE's two biases."""
    return _checks.one_of("form", value, ("log", "power"))


def inverse_softplus(value: float) -> float:
    """The number whose softplus is `value`."""
    return value + math.log(-math.expm1(-value))


def softplus_uniform(high: float) -> Callable[..., jax.Array]:
    """Initialiser of numbers whose softplus is uniform below `high`."""

    def init(key: Any, shape: Any, dtype: Any = jnp.float32, out_sharding: Any = None) -> jax.Array:
        value = jax.random.uniform(key, shape, jnp.float32, _LEAST, high)
        return (value + jnp.log(-jnp.expm1(-value))).astype(dtype)

    return init


def sigmoid_uniform(key: Any, shape: Any, dtype: Any = jnp.float32, out_sharding: Any = None) -> jax.Array:
    """Initialiser of numbers x with 2 · sigmoid(x) uniform between 0 and 2."""
    value = jax.random.uniform(key, shape, jnp.float32, _LEAST, 2 - _LEAST)
    return jnp.log(value / (2 - value)).astype(dtype)


def kerple_inits(form: Form) -> tuple[Callable[..., jax.Array], Callable[..., jax.Array]]:
    """Initialisers of the authors' code: p from 0 to 2, a from 0 to 1."""
    return (softplus_uniform(2.0), softplus_uniform(1.0)) if form == "log" else (softplus_uniform(1.0), sigmoid_uniform)


def kerple(form: Form, queries: ArrayLike, keys: ArrayLike, r1: jax.Array, r2: jax.Array) -> jax.Array:
    """KERPLE from its unconstrained parameters."""
    r1, r2 = r1.astype(jnp.float32), r2.astype(jnp.float32)
    if form == "log":
        return kerple_log(queries, keys, jax.nn.softplus(r1), jax.nn.softplus(r2))
    return kerple_power(queries, keys, jax.nn.softplus(r1), 2 * jax.nn.sigmoid(r2))


fire_kernel_init = jax.nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")  # within ±1/√fan_in


def fire_bias_init(key: Any, shape: Any, dtype: Any = jnp.float32, out_sharding: Any = None) -> jax.Array:
    """Uniform within ±1. With a bias of 0, a hidden unit of negative weight is 0 at every distance, and stays so."""
    return jax.random.uniform(key, shape, jnp.float32, -1, 1).astype(dtype)


def fire_from(
    queries: ArrayLike, keys: ArrayLike, mlp: tuple[jax.Array, ...], c: jax.Array, multiplier: jax.Array, start: float
) -> jax.Array:
    """FIRE from w1 (1, hidden), the other weights, and unconstrained c and multiplier of the initial threshold."""
    w1, b1, w2, b2 = mlp
    c, multiplier = (jax.nn.softplus(x.astype(jnp.float32)) for x in (c, multiplier))
    return fire(queries, keys, (w1[0], b1, w2, b2), c=c, threshold=multiplier * start)
