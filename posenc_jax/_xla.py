"""Workarounds for compiler optimizations, one function each."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero


def rounded_product(a: jax.Array, b: jax.Array) -> jax.Array:
    """a·b, rounded before anything is added to it; without derivatives.

    Compilers contract a·b + c to an FMA in some programs and not in others, so the bits differ. This select blocks the
    contraction. XLA cannot remove it, because XLA does not know that no product has all bits set: arithmetic never
    yields that NaN. Where products are known to be positive, |a·b| blocks contraction too.
    """
    result = lax.mul(a, b)
    bits = lax.bitcast_convert_type(result, np.dtype(f"int{8 * result.dtype.itemsize}"))
    ones = lax.eq(bits, lax.full_like(bits, -1))
    return lax.select(ones, lax.full_like(result, np.nan), result)


@jax.custom_jvp
def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """`rounded_product` with derivatives."""
    return rounded_product(a, b)


def _product_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, Any]:
    a, b = primals
    result = product(a, b)
    terms = [x * d for x, d in zip((b, a), tangents, strict=True) if not isinstance(d, SymbolicZero)]
    return result, sum(terms[1:], terms[0]) if terms else jnp.zeros_like(result)


product.defjvp(_product_jvp, symbolic_zeros=True)


def materialized(x: jax.Array) -> jax.Array:
    """Makes XLA:CPU store a float32 array instead of recomputing it at each use.

    XLA does not duplicate an integer remainder, and `bits % (2³² − 1)` leaves all smaller bit patterns unchanged. The
    only other pattern, the NaN of all ones, becomes another NaN.
    """
    bits = lax.bitcast_convert_type(x, np.uint32)
    bits = lax.min(bits, lax.full_like(bits, 2**32 - 2))
    return lax.bitcast_convert_type(lax.rem(bits, lax.full_like(bits, 2**32 - 1)), np.float32)
