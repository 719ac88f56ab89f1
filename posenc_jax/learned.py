r"""Learned position tables: lookup with a stated out-of-range rule, addition to embeddings, resizing."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from posenc_jax import _check, _mesh
from posenc_jax._phase import product

OutOfRange = Literal["error", "nan", "zeros"]


def learned(positions: ArrayLike, table: ArrayLike, *, out_of_range: OutOfRange = "error") -> jax.Array:
    r"""Rows of a learned table, $PE(p) = \text{table}_p$; never the wrong row.

    Args:
      positions: integers of shape (...,), each from 0 to length − 1. A negative position is out of range: it does
        not count from the end.
      table: floats of shape (length, dim).
      out_of_range: "error": a `ValueError` where the positions are known, NaN rows where they are traced (under
        `jax.jit` nothing can be raised). "nan": NaN rows in both cases, without looking at the positions first.
        "zeros": rows of zeros, for padding that is marked by a position such as −1.

    Returns:
      The rows, shape (..., dim), of the dtype of the table. Out-of-range positions pass no gradient to the table.

    Raises:
      TypeError: if positions are not integers or the table not of floats.
      ValueError: if the table has not two axes, or positions are known to be out of range.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> table = jnp.array([[0.0, 1.0], [2.0, 3.0]])
      >>> print(pe.learned(jnp.array([1, 0]), table))
      [[2. 3.]
       [0. 1.]]
      >>> print(jax.jit(pe.learned)(jnp.array([1, 2]), table))
      [[ 2.  3.]
       [nan nan]]

    Reference:
      Gehring et al., "Convolutional Sequence to Sequence Learning", 2017, section 3.1; Devlin et al., "BERT", 2019.
    """
    where = "learned"
    table = _table(where, table)
    positions = _positions(where, positions, table, out_of_range)
    _check_split(where, positions, table)
    return _learned(positions, table, out_of_range=out_of_range)


def _table(where, table):
    table = _check.floats(where, "table", table, "(length, dim)")
    if table.ndim != 2 or table.shape[0] < 1:
        raise ValueError(f"{where}: table must have shape (length, dim) with length at least 1, got {table.shape}")
    return table


def _positions(where, positions, table, out_of_range):
    _check.out_of_range(where, out_of_range)
    positions, length = _check.array(where, "positions", positions, "an integer array"), table.shape[0]
    if out_of_range == "error" and positions.size and _check.is_known(positions):
        low, high = _check.limits(positions)
        if low < 0 or high >= length:
            raise ValueError(f"{where}: positions must be from 0 to {length - 1}, got {low} to {high}")
    return jnp.asarray(positions)


def _check_split(where, positions, table, **arrays):
    # Of a lookup the rows of the table are no axis of the result; of the first rows they are.
    specs = {name: tuple(jax.typeof(x).sharding.spec) for name, x in arrays.items()}
    if positions is not None:
        specs["positions"] = (*jax.typeof(positions).sharding.spec, None)
    rows = jax.typeof(table).sharding.spec
    _check.together(where, specs | {"table": tuple(rows if positions is None else rows[1:])})


@functools.partial(jax.jit, static_argnames=("out_of_range",), inline=True)
def _learned(positions, table, *, out_of_range):
    # Compared before the cast to int32, which could wrap; a negative index would count from the end.
    length = table.shape[0]
    inside = (positions >= 0) & (positions < length)
    index = jnp.where(inside, positions, 0).astype(jnp.int32)
    # On a mesh with Explicit axes a lookup must be told that its rows are sharded as the positions are.
    spec = (*jax.typeof(index).sharding.spec, jax.typeof(table).sharding.spec[1])
    rows = table.at[index].get(mode="promise_in_bounds", out_sharding=_mesh.sharding(spec, index, table))
    fill = 0.0 if out_of_range == "zeros" else math.nan
    return jnp.where(inside[..., None], rows, jnp.asarray(fill, table.dtype))


def add_learned(
    x: ArrayLike,
    table: ArrayLike,
    positions: ArrayLike | None = None,
    *,
    scale: ArrayLike = 1.0,
    out_of_range: OutOfRange = "error",
) -> jax.Array:
    r"""Embeddings with their learned positions, $\text{scale} \cdot x + \text{table}_p$.

    Args:
      x: floats of shape (..., seq, d_model).
      table: floats of shape (length, d_model).
      positions: integers of a shape that broadcasts to (..., seq). `None` means 0, 1, 2, …: the first rows of the
        table, read without a lookup; a symbolic seq needs a constraint, such as "seq <= 512".
      scale: multiplies x, a scalar.
      out_of_range: as for `learned`.

    Returns:
      The sum, of the shape and dtype of x: computed in float32 (float64 if x or the table is), rounded once.

    Raises:
      TypeError: if x or table is not of floats or positions are not integers.
      ValueError: if the widths differ, the positions do not broadcast or are known to be out of range, or there are
        no positions and the sequence is longer than the table (for any `out_of_range`: its length is static).

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> x, table = jnp.ones((2, 3, 4)), jnp.full((8, 4), 0.5)
      >>> float(pe.add_learned(x, table)[1, 2, 3])
      1.5

    Reference:
      Devlin et al., "BERT", 2019, section 3, figure 2.
    """
    where = "add_learned"
    x = _check.floats(where, "x", x, "(..., seq, d_model)")
    table = _table(where, table)
    _check.known_size(where, "x", x.shape, -1)
    _check.known_size(where, "table", table.shape, 0, 1)
    if table.shape[1] != x.shape[-1]:
        raise ValueError(f"{where}: table of width {table.shape[1]} must match x, shape {x.shape}")
    scale = _check.scalar(where, "scale", scale, _check.inside(x, table))
    if positions is not None:
        positions = _positions(where, positions, table, out_of_range)
        _check.broadcastable(where, "positions", positions.shape, "x without its last axis", x.shape[:-1])
    elif _is_longer(where, x, table.shape[0]):
        raise ValueError(f"{where}: table of {table.shape[0]} rows is too small for a sequence of {x.shape[-2]}")
    elif x.shape[-2] != table.shape[0]:
        _check.whole(where, "table", table, 0)
    _check_split(where, positions, table, x=x)
    return _add_learned(x, table, positions, scale, out_of_range=out_of_range)


def _is_longer(where, x, length):
    try:
        return bool(x.shape[-2] > length)
    except Exception:  # InconclusiveDimensionOperation, which stands elsewhere in each version of JAX
        message = f"a sequence of known size, or with a constraint such as 'seq <= {length}', got shape {x.shape}"
        raise ValueError(f"{where}: x must have {message}") from None


@functools.partial(jax.jit, static_argnames=("out_of_range",), inline=True)
def _add_learned(x, table, positions, scale, *, out_of_range):
    rows = table[: x.shape[-2]] if positions is None else _learned(positions, table, out_of_range=out_of_range)
    inside = _check.inside(x, table)
    rows = _check.align(rows.astype(inside), x.ndim)
    scaled = product(scale.astype(inside), x.astype(inside))
    return (scaled + rows).astype(x.dtype)


def resize_table(
    table: ArrayLike, shape: int | Sequence[int], *, method: Literal["linear", "cubic"] = "linear"
) -> jax.Array:
    r"""A learned table interpolated to another length or grid.

    Rows stand at the centres of equal cells, so that the new row $j$ of $n$ is read at
    $(j + \tfrac12)\,L/n - \tfrac12$ of $L$, as vision transformers do; beyond the first and the last centre the
    weights are those of the rows that exist. Shrinking averages (it is antialiased).

    Args:
      table: floats of shape (length, dim), or (height, width, dim) and so on for a grid.
      shape: the new length, or the new grid with as many entries as the table has axes before the last.
      method: "linear" or "cubic" (Keys, a = −½): timm's `resample_abs_pos_embed`, and PyTorch's `interpolate` with
        antialias=True, by "bilinear" and "bicubic". Without antialias PyTorch's "bicubic" is another (a = −¾).

    Returns:
      The table of shape (*shape, dim), in its dtype, computed in at least float32. The same shape gives the same bits.

    Raises:
      TypeError: if table is not of floats or shape not of integers.
      ValueError: if shape has not one positive entry for each axis before the last, or method is another.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> print(pe.resize_table(jnp.array([[0.0], [1.0]]), 4)[:, 0])
      [0.   0.25 0.75 1.  ]
      >>> pe.resize_table(jnp.zeros((14, 14, 384)), (16, 24)).shape
      (16, 24, 384)

    Reference:
      Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, section 3.2.
    """
    where = "resize_table"
    _check.one_of(where, "method", method, ("linear", "cubic"))
    table = _check.floats(where, "table", table, "(length, dim)")
    entries: Any = shape if isinstance(shape, (tuple, list)) else (shape,)
    grid = tuple(_check.positive_int(where, "each entry of shape", n) for n in entries)
    if 0 in table.shape[:-1]:
        raise ValueError(f"{where}: table must have at least one row, got {table.shape}")
    if len(grid) != table.ndim - 1:
        expected = f"{table.ndim - 1} entries for a table of shape {table.shape}"
        raise ValueError(f"{where}: shape must have {expected}, got {grid}")
    if math.prod(grid) >= 2**31:
        raise ValueError(f"{where}: shape must have fewer than 2³¹ rows, got {grid}")
    return _resize_table(table, grid=grid, method=method)


@functools.partial(jax.jit, static_argnames=("grid", "method"), inline=True)
def _resize_table(table, *, grid, method):
    inside = table.astype(_check.inside(table))
    return jax.image.resize(inside, (*grid, table.shape[-1]), method, precision=jax.lax.Precision.HIGHEST).astype(
        table.dtype
    )
