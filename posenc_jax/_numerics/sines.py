r"""Sines of exact phases. No other module computes a sine or a cosine."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

from posenc_jax._jax.arrays import align
from posenc_jax._numerics import fixed_point
from posenc_jax._numerics.fixed_point import PhaseIncrement

# sin(πz/2) = z + ½·z·(1 − (u − v²·(c₁ + c₃·v·(r − u)))) with u = z² and v = 1 − u, for 0 ≤ z ≤ 1: within 8.6e-8 at
# every phase with these coefficients (benchmarks/fits.py). The correction to z vanishes at both ends; it is below 0.22.
_C1, _C3, _R = (np.float32(c) for c in (0.13315121829509735, 0.0002988768392242491, 28.242717742919922))


def sine_of_phase(phase: jax.Array) -> jax.Array:
    """The sine of (phase − ¼ cycle), float32, for an int32 phase in units of 2⁻³² cycle.

    LLVM and NVIDIA's compiler contract a product and a sum to an FMA in some programs but not in others. The bits are
    the same nevertheless: inexact products are only multiplied, and each product in a sum has a power of two as a
    factor, so it is exact. (No two products of a sum have the same factor, which XLA would take out.) Calling `lax`
    instead of operators makes the trace three times shorter.
    """
    # A triangle wave reflects the phase to within a quarter cycle of zero. |−2³¹| wraps to −2³¹, which is right.
    t = lax.convert_element_type(lax.sub(lax.abs(phase), np.int32(2**30)), np.float32)
    z = lax.mul(t, np.float32(2.0**-30))
    u = lax.mul(lax.mul(t, z), np.float32(2.0**-30))
    v = lax.sub(np.float32(1), u)
    q = lax.mul(lax.mul(np.float32(16) * _C3, v), lax.sub(_R, u))
    q = lax.mul(lax.mul(v, v), lax.add(np.float32(4) * _C1, lax.mul(np.float32(0.25), q)))
    q = lax.sub(np.float32(1), lax.sub(u, lax.mul(np.float32(0.25), q)))
    return lax.add(z, lax.mul(np.float32(0.5), lax.mul(z, q)))


# Sines of ω·p


def _finite(positions: jax.Array) -> jax.Array:
    """Positions in float32, 0 where not finite, so that a masked row adds 0 and not NaN to the gradient for ω."""
    positions = positions.astype(jnp.float32)
    return jnp.where(jnp.isfinite(positions), positions, np.float32(0))


@jax.custom_jvp
def _sine_of_sum(terms: Sequence[tuple[jax.Array, jax.Array, PhaseIncrement]], offset: jax.Array) -> jax.Array:
    """The sine of Σ ω·p + offset over terms (p, ω, phase increment of ω), with int32 or float p.

    Phases are integers that wrap, so their sum is exact in any order.
    """
    phase = offset
    for term in terms:
        phase = fixed_point.phase_at(*term, phase)
    return sine_of_phase(phase)


def _sine_of_sum_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    terms, offset = primals
    result = _sine_of_sum(*primals)
    slope = _sine_of_sum(terms, offset + np.int32(2**30))
    tangent = jnp.zeros_like(result)
    for (positions, angular, _), (d_positions, d_angular, _) in zip(terms, tangents[0], strict=True):
        if not isinstance(d_positions, SymbolicZero):
            tangent += slope * (angular.astype(jnp.float32) * d_positions.astype(jnp.float32))
        if not isinstance(d_angular, SymbolicZero):
            tangent += slope * (_finite(positions) * d_angular.astype(jnp.float32))
    return result, tangent


_sine_of_sum.defjvp(_sine_of_sum_jvp, symbolic_zeros=True)


def sine(
    positions: jax.Array, frequencies: tuple[int, ...] | list[jax.Array], quarter: Any, start: jax.Array | None = None
) -> jax.Array:
    r"""The sine of ω·p + start + quarter·π/2 in float32, its phase within three units of 2⁻³² cycle for each term.

    Args:
      positions: integers or floats of shape (..., 1) or (..., columns); (..., axes) for several arrays of ω.
      frequencies: static, in units of 2⁻¹²⁸ cycle per position; or arrays of ω, (columns,) or of positions' rank, one
        per coordinate of the positions, whose angles are added.
      quarter: integers (columns,) or (): 0 for the sine, 1 for the cosine, 2 for the negated sine.
      start: the angle at position 0, floats of positions' rank; None for 0.

    Returns:
      float32 (..., columns); NaN where a position is NaN or outside int32, or where |ω| or |start| ≥ 2³¹.
    """
    row = (1,) * (positions.ndim - 1) + (-1,)  # explicit, for jax_numpy_rank_promotion="raise"
    # `sine_of_phase` lags by a quarter cycle.
    offset = ((quarter.astype(np.int32) + 1) << 30).reshape(row)
    positions, valid = fixed_point.in_range(positions)
    # A start is added as a frequency at position 1. It comes first: its phase is added to the quarters, a small array.
    unit_positions = [] if start is None else [np.ones((1,) * positions.ndim, np.int32)]
    arrays = [] if start is None else [start]
    if isinstance(frequencies, tuple):
        increment = PhaseIncrement(*(part.reshape(row) for part in fixed_point.increment_from_cycles(frequencies)))
        if positions.dtype == jnp.int32 and start is None:
            return _masked(sine_of_phase(fixed_point.phase(positions, increment, offset)), valid)
        angular = fixed_point.angular_from_cycles(frequencies).astype(np.float32).reshape(row)
        terms, coordinates = [(positions, angular, increment)], unit_positions
    else:
        arrays += [align(angular, positions.ndim) for angular in frequencies]
        several = len(frequencies) > 1
        columns = jnp.split(positions, len(frequencies), axis=-1) if several else [positions]
        terms, coordinates = [], unit_positions + columns
        valid = jnp.all(valid, axis=-1, keepdims=True) if several and valid is not None else valid
    increments = [fixed_point.increment_from_angular(lax.stop_gradient(angular)) for angular in arrays]
    result = _sine_of_sum([*zip(coordinates, arrays, increments, strict=True), *terms], offset)
    for angular in arrays:
        fits = jnp.abs(angular) < 2.0**31
        valid = fits if valid is None else valid & fits
    return _masked(result, valid)


def _masked(result: jax.Array, valid: jax.Array | None) -> jax.Array:
    """NaN where a mask is false; None masks nothing."""
    return result if valid is None else jnp.where(valid, result, np.float32(np.nan))


def sine_float32(
    positions: jax.Array, frequencies: tuple[int, ...], quarter: Any, start: jax.Array | None = None
) -> jax.Array:
    """`sine` as float32 references compute it: rounds ω, and then ω·p, to float32."""
    row = (1,) * (positions.ndim - 1) + (-1,)
    angular = fixed_point.angular_from_cycles(frequencies).astype(np.float32).reshape(row)
    phase = positions.astype(jnp.float32) * angular
    phase = phase if start is None else phase + start.astype(np.float32)
    odd, sign = ((quarter & 1) == 1).reshape(row), (1 - (quarter & 2)).astype(np.float32).reshape(row)
    return jnp.where(odd, jnp.cos(phase), jnp.sin(phase)) * sign


def sine_float64(positions: np.ndarray, frequencies: tuple[int, ...], quarter: np.ndarray) -> np.ndarray:
    """`sine` in float64 on the host, from exact integers of any size; figures compare with it."""
    cycle = 1 << fixed_point.CYCLE_BITS
    phases = [[int(p) * f % cycle / cycle for f in frequencies] for p in positions]
    return np.sin(2 * np.pi * np.array(phases) + np.pi / 2 * quarter)


# Sines of 2π·x·B


@jax.custom_jvp
def _sine_of_dot(x: jax.Array, matrix: jax.Array, offset: Any) -> jax.Array:
    """The sine of 2π·x·B + offset, for x (..., inputs) and B (inputs, columns)."""
    row = (1,) * (x.ndim - 1) + matrix.shape
    increment = PhaseIncrement(*(part.reshape(row) for part in fixed_point.increment_from_float_cycles(matrix)))
    angular = matrix.astype(jnp.float32).reshape(row) * np.float32(2 * np.pi)
    # Phases are integers that wrap, so their sum is exact in any order.
    terms = fixed_point.phase_at(x[..., None], angular, increment, np.zeros((1,) * len(row), np.int32))
    return sine_of_phase(jnp.sum(terms, axis=-2, dtype=jnp.int32) + offset)


def _sine_of_dot_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    x, matrix, offset = primals
    d_x, d_matrix = tangents[:2]
    dot = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
    x32, matrix32 = _finite(x), matrix.astype(jnp.float32)
    result = _sine_of_dot(*primals)
    d_cycles = jnp.zeros_like(result)
    if not isinstance(d_x, SymbolicZero):
        d_cycles += dot(d_x.astype(jnp.float32), matrix32)
    if not isinstance(d_matrix, SymbolicZero):
        d_cycles += dot(x32, d_matrix.astype(jnp.float32))
    slope = _sine_of_dot(x, matrix, offset + np.int32(2**30))
    return result, slope * (d_cycles * np.float32(2 * np.pi))


_sine_of_dot.defjvp(_sine_of_dot_jvp, symbolic_zeros=True)


def sine_of_dot(x: jax.Array, matrix: jax.Array, quarter: int) -> jax.Array:
    r"""The sine of 2π·x·B + quarter·π/2 in float32; the phases of the products and their sum are exact.

    Args:
      x: integers or floats of shape (..., inputs).
      matrix: B, floats of shape (inputs, columns), in cycles per unit of each input.
      quarter: 0 for the sine, 1 for the cosine.

    Returns:
      float32 (..., columns); NaN where an x is NaN or outside int32, or where |B| ≥ 2²⁸.
    """
    x, valid = fixed_point.in_range(x)
    result = _sine_of_dot(x, matrix, np.int32(2**30 if quarter == 0 else -(2**31)))
    fits = jnp.all(jnp.abs(matrix) < 2.0**28, axis=0).reshape((1,) * (x.ndim - 1) + (-1,))
    valid = fits if valid is None else fits & jnp.all(valid, axis=-1, keepdims=True)
    return jnp.where(valid, result, np.float32(np.nan))
