r"""Primitives of x (..., features) and arrays of its rank, and the derivatives of those that are linear in x and in w.

The leading axes of all operands broadcast, so `jax.vmap` adds an axis to each and repeats nothing; the result has the
features of x. $y = f(x, w)$, linear in both, has the tangent $\dot y = f(\dot x, w) + f(x, \dot w)$. A primitive brings
its programs and its two transposes, from $\bar y$ to $\bar x$ and to $\bar w$.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posenc_jax._jax import sharding
from posenc_jax._jax.primitives import primitive, retyped


def broadcasting_primitive(
    name: str,
    programs: Mapping[str | None, Callable[..., Any]],
    *,
    parameters: tuple[str, ...],
    dtype: Callable[..., Any],
    mapped: Callable[..., dict[str, Any]] = dict,
) -> Any:
    """Makes a primitive of operands whose leading axes broadcast.

    Args:
      name: as for `primitive`.
      programs: as for `primitive`.
      parameters: as for `primitive`.
      dtype: dtype(x, **parameters) is that of the result.
      mapped: mapped(**parameters) are the parameters under one more `jax.vmap`.
    """

    def type_of(*operands: Any, **static: Any) -> Any:
        x, rows = operands[0], jnp.broadcast_shapes(*(operand.shape[:-1] for operand in operands))
        common = sharding.common_sharding(operands)
        return retyped(x, (*rows, x.shape[-1]), dtype=dtype(x, **static), sharding=common)

    def batch(bound: Any, _: Any, axes: Any, *operands: Any, **static: Any) -> Any:
        batched = (x[None] if axis is None else x for x, axis in zip(operands, axes, strict=True))
        return bind(bound, *batched, **mapped(**static))

    return primitive(name, type_of, programs, batch, parameters=parameters)


def bind(bound: Any, *operands: jax.Array, **parameters: Any) -> jax.Array:
    """Binds a primitive to operands that vary along one set of manual axes and are sharded alike."""
    return bound.bind(*sharding.agreeing(operands), **parameters)


def bilinear_jvp(
    f: Callable[..., jax.Array],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    result: Any,
    compute_dtype: Any,
    multiplied: np.ndarray,
) -> tuple[jax.Array, jax.Array]:
    """f(x, w) and its tangent f(dx, w) + f(x, dw), rounded once. If only x has a tangent, f need not be linear in w.

    Args:
      f: f(x, *w, result=dtype) is the operation.
      primals: x, then the arrays of w: one, if w has a tangent.
      tangents: those of the primals, or None.
      result: the dtype of the result.
      compute_dtype: the dtype in which f computes products and sums.
      multiplied: which features of x are multiplied by w, at x's rank; the others pass through.
    """
    (x, *w), (dx, *dw) = primals, tangents
    y = f(x, *w, result=result)
    if all(d is None for d in dw):
        return y, f(dx, *w, result=result)
    if not multiplied.all():  # features that pass through do not depend on w
        x = jnp.where(multiplied, x, np.zeros((), x.dtype))
    if dx is None:
        return y, f(x, *dw, result=result)
    return y, (f(dx, *w, result=compute_dtype) + f(x, *dw, result=compute_dtype)).astype(y.dtype)


def broadcast_axes(like: Any) -> list[int]:
    """The axes before the last along which an operand of this type may be broadcast: those of size 1."""
    return [axis for axis, n in enumerate(like.shape[:-1]) if isinstance(n, int) and n == 1]


def sum_to(like: Any, x: jax.Array) -> jax.Array:
    """Sums a cotangent over the axes along which an operand of this type was broadcast."""
    axes = [axis for axis in broadcast_axes(like) if x.shape[axis] != 1]
    return jnp.sum(x, axis=axes, keepdims=True) if axes else x
