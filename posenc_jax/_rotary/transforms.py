r"""A matrix times each group of four features, as one linear operation, for `prope`.

The transform $y_g = M x_g$ of each group $g$ is a primitive of JAX, because compilers for CPUs and TPUs need different
lowerings of it. It is linear in $x$ and in $M$, so its derivative is $M\,dx + dM\,x$. Its transpose takes $\bar y$ to
$\bar x = M^\top \bar y$, the same transform, and to $\bar M = \sum_g \bar y_g x_g^\top$.

A matrix is an array (..., 16), row by row, of the rank of x.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posenc_jax._jax import workarounds
from posenc_jax._jax.arrays import align, compute_dtype
from posenc_jax._jax.bilinear import bilinear_jvp, bind, broadcast_axes, broadcasting_primitive, sum_to
from posenc_jax._jax.primitives import set_jvp, set_transpose, unknown
from posenc_jax._jax.workarounds import Target, compiled


def transform(x: jax.Array, matrix: jax.Array, *, width: int, result: Any) -> jax.Array:
    """M times each group of the first `width` features of x, rounded once to `result`."""
    return bind(_transform, x, matrix, width=width, result=np.dtype(result))


def transposed(matrix: jax.Array) -> jax.Array:
    """Mᵀ (..., 16) of M (..., 16)."""
    return jnp.concatenate([matrix[..., i::4] for i in range(4)], axis=-1)


# The lowerings


def _by_columns(x: jax.Array, matrix: jax.Array, *, width: int, result: np.dtype, target: Target) -> jax.Array:
    """Sums the columns of M times the members of each group: on CPUs and GPUs one pass, which LLVM vectorizes."""
    groups = x.reshape(*x.shape[:-1], x.shape[-1] // 4, 4)
    columns = matrix.reshape(*matrix.shape[:-1], 1, 4, 4)
    dtype = compute_dtype(x, matrix)
    pairs = ((columns[..., j], groups[..., j : j + 1].astype(dtype)) for j in range(4))
    terms = [target.product(*jnp.broadcast_arrays(*pair)) for pair in pairs]
    y = (terms[0] + terms[1] + terms[2] + terms[3]).astype(result)
    if width < x.shape[-1]:
        transformed = align(np.arange(x.shape[-1] // 4)[:, None] < width // 4, y.ndim)
        y = workarounds.bits_where(transformed, y, groups.astype(result))
    y = workarounds.separate_loop(y) if target is workarounds.CPU else y
    return y.reshape(*y.shape[:-2], x.shape[-1])


def _by_shifts(x: jax.Array, matrix: jax.Array, *, width: int, result: np.dtype) -> jax.Array:
    """Sums the diagonals of M times shifted reads of x: on TPUs one pass, where groups would be copied to lanes.

    A select spreads each entry of M over the features: a diagonal put together first would be stored for each row.
    """
    dtype, features, terms = compute_dtype(x, matrix), np.arange(x.shape[-1]), []
    for shift in range(-3, 4):
        diagonal: Any = 0
        for i in range(max(0, -shift), min(4, 4 - shift)):
            entry = matrix[..., 5 * i + shift : 5 * i + shift + 1].astype(dtype)
            diagonal = jnp.where(align(features % 4 == i, x.ndim), entry, diagonal)
        read = lax.pad(x, np.zeros((), x.dtype), [(0, 0, 0)] * (x.ndim - 1) + [(-shift, shift, 0)])
        inside = align((features + shift) // 4 == features // 4, x.ndim)
        terms.append(diagonal * jnp.where(inside, read, 0).astype(dtype))  # else 0 · ∞
    y = sum(terms[1:], terms[0]).astype(result)
    return y if width == x.shape[-1] else jnp.where(align(features < width, x.ndim), y, x.astype(result))


# The derivatives


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, width: int, result: np.dtype) -> tuple[Any, Any]:
    """M dx + dM x, rounded once."""
    x, dtype = primals[0], compute_dtype(*primals)
    multiplied = align(np.arange(x.shape[-1]) < width, x.ndim)
    f = functools.partial(transform, width=width)
    return bilinear_jvp(f, primals, tangents, result=result, compute_dtype=dtype, multiplied=multiplied)


def _transpose(dy: Any, x: Any, matrix: Any, *, width: int, result: np.dtype) -> list[Any]:
    if (like := unknown(x)) is not None:
        return [_cotangent_of_features(dy, matrix, like=like, width=width), None]
    return [None, _cotangent_of_matrix(dy, x, like=unknown(matrix), width=width)]


@compiled("prope_transpose", static_argnames=("like", "width"))
def _cotangent_of_features(dy: jax.Array, matrix: jax.Array, *, like: Any, width: int) -> jax.Array:
    """Mᵀȳ."""
    return sum_to(like, transform(dy, transposed(matrix), width=width, result=like.dtype))


@compiled("prope_matrix_transpose", static_argnames=("like", "width"))
def _cotangent_of_matrix(dy: jax.Array, x: jax.Array, *, like: Any, width: int) -> jax.Array:
    """Σ ȳxᵀ over all groups that share a matrix."""
    dy, x = (a[..., :width].reshape(*a.shape[:-1], width // 4, 4).astype(like.dtype) for a in (dy, x))
    axes = (*broadcast_axes(like), dy.ndim - 2)  # of rows, and of groups
    outer = jnp.sum(dy[..., :, None] * x[..., None, :], axis=axes, keepdims=True)
    return outer.reshape(*outer.shape[:-3], 16)


PROGRAMS = {
    None: functools.partial(_by_columns, target=workarounds.CPU),
    "cuda": functools.partial(_by_columns, target=workarounds.GPU),
    "rocm": functools.partial(_by_columns, target=workarounds.GPU),
    "tpu": _by_shifts,
}
_transform = broadcasting_primitive(
    "groups", PROGRAMS, parameters=("width", "result"), dtype=lambda x, *, result, **_: result
)
set_jvp(_transform, _jvp)
set_transpose(_transform, _transpose)
