"""Shapes and initial values of the parameters of the NNX and Linen modules."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from posenc_jax._flax.settings import Variant

default_phase_init = jax.nn.initializers.zeros
default_embedding_init = jax.nn.initializers.normal(0.02)
default_t5_init = jax.nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
fire_kernel_init = jax.nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")  # within ±1/√fan_in

_LEAST = 0.01  # the least initial value of KERPLE's parameters, as in the authors' code


def fire_bias_init(key: Any, shape: Any, dtype: Any = jnp.float32, out_sharding: Any = None) -> jax.Array:
    """Uniform within ±1. With bias 0, a hidden unit with a negative weight is dead at every distance."""
    return jax.random.uniform(key, shape, jnp.float32, -1, 1).astype(dtype)


def default_kerple_inits(variant: Variant) -> tuple[Initializer, Initializer]:
    """Initialisers of the authors' code: r₁ begins below 2 (log) or 1 (power), r₂ below 1 (log) or 2 (power)."""
    if variant == "log":
        return _softplus_uniform(2.0), _softplus_uniform(1.0)
    return _softplus_uniform(1.0), _exponents


def _softplus_uniform(high: float) -> Initializer:
    """Initialiser of numbers whose softplus is uniform below `high`."""

    def init(key: Any, shape: Any, dtype: Any = jnp.float32, out_sharding: Any = None) -> jax.Array:
        value = jax.random.uniform(key, shape, jnp.float32, _LEAST, high)
        return (value + jnp.log(-jnp.expm1(-value))).astype(dtype)

    return init


def _exponents(key: Any, shape: Any, dtype: Any = jnp.float32, out_sharding: Any = None) -> jax.Array:
    """Initialiser of numbers x with 2 · sigmoid(x) uniform between 0 and 2."""
    value = jax.random.uniform(key, shape, jnp.float32, _LEAST, 2 - _LEAST)
    return jnp.log(value / (2 - value)).astype(dtype)


def inverse_softplus(value: float) -> float:
    """The number whose softplus is `value`."""
    return value + math.log(-math.expm1(-value))


def offsets_shape(window: tuple[int, ...], num_heads: int, symmetric: bool) -> tuple[int, ...]:
    """The shape of the table of `relative_position_bias`."""
    return *(n if symmetric else 2 * n - 1 for n in window), num_heads


def rows_shape(num_rows: int, num_heads: int | None, head_dim: int) -> tuple[int, ...]:
    """The shape of the table of `content_bias`."""
    return (num_rows, head_dim) if num_heads is None else (num_rows, num_heads, head_dim)
