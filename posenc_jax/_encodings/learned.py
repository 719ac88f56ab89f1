r"""Learned position tables: lookup with an explicit out-of-range rule, addition to embeddings, and resizing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from posenc_jax._encodings.parser import check_rows_sharded_together, parse_added_rows, parse_rows, parse_table
from posenc_jax._jax import checks, sharding
from posenc_jax._jax.arrays import align, compute_dtype
from posenc_jax._jax.checks import OutOfRange
from posenc_jax._jax.errors import invalid, public, require
from posenc_jax._jax.workarounds import compiled, product


@public
def learned(positions: ArrayLike, table: ArrayLike, *, out_of_range: OutOfRange = "error") -> jax.Array:
    r"""Looks up rows of a learned table, $PE(p) = \text{table}_p$, and never returns a wrong row.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> table = jnp.array([[0.0, 1.0], [2.0, 3.0]])
      >>> print(pe.learned(jnp.array([1, 0]), table))
      [[2. 3.]
       [0. 1.]]

      Positions outside the table give NaN under `jax.jit`. Elsewhere, they raise an error:

      >>> print(jax.jit(pe.learned)(jnp.array([1, 2]), table))
      [[ 2.  3.]
       [nan nan]]

    Args:
      positions: integer array of shape (...,), each from 0 to length − 1. Negative positions are out of range: they do
        not count from the end.
      table: float array of shape (length, dim).
      out_of_range: what to do about positions outside the table. "error" raises a `ValueError` if positions are
        concrete, and returns NaN rows if they are traced, because code under `jax.jit` cannot raise. "nan" returns NaN
        rows in both cases, without a check. "zeros" returns rows of zeros, for padding that is marked by a position
        such as −1.

    Returns:
      The rows, an array of shape (..., dim) and the dtype of the table. Positions that are out of range pass no
      gradient to the table.

    Raises:
      TypeError: if positions are not integers, or the table is not a float array.
      ValueError: if the table does not have two axes, or concrete positions are out of range.

    Reference:
      Gehring et al., "Convolutional Sequence to Sequence Learning", 2017, section 3.1; Devlin et al., "BERT", 2019.
    """
    table = parse_table(table)
    positions = parse_rows(positions, table.shape[0], out_of_range)
    check_rows_sharded_together(positions, table)
    return _learned(positions, table, out_of_range=out_of_range)


@compiled("learned", static_argnames=("out_of_range",))
def _learned(positions: jax.Array, table: jax.Array, *, out_of_range: OutOfRange) -> jax.Array:
    # Compares before the cast to int32, which could wrap. Replaces negative indices, which would count from the end.
    in_range = (positions >= 0) & (positions < table.shape[0])
    index = jnp.where(in_range, positions, 0).astype(jnp.int32)
    # On Explicit axes of a mesh, JAX must be told that the rows are sharded like the positions.
    spec = (*jax.typeof(index).sharding.spec, jax.typeof(table).sharding.spec[1])
    rows = table.at[index].get(mode="promise_in_bounds", out_sharding=sharding.named_sharding(spec, index, table))
    fill = 0.0 if out_of_range == "zeros" else math.nan
    return jnp.where(in_range[..., None], rows, jnp.asarray(fill, table.dtype))


@public
def add_learned(
    x: ArrayLike,
    table: ArrayLike,
    positions: ArrayLike | None = None,
    *,
    scale: ArrayLike = 1.0,
    out_of_range: OutOfRange = "error",
) -> jax.Array:
    r"""Adds rows of a learned table to embeddings, $\text{scale} \cdot x + \text{table}_p$.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> x, table = jnp.ones((2, 3, 4)), jnp.full((8, 4), 0.5)
      >>> float(pe.add_learned(x, table)[1, 2, 3])
      1.5

    Args:
      x: embeddings, float array of shape (..., seq, d_model), or (d_model,) for one vector.
      table: float array of shape (length, d_model).
      positions: integer array that broadcasts to (..., seq). `None` means 0, 1, 2, …, and slices the first rows of the
        table instead of looking them up.
      scale: a scalar that multiplies x.
      out_of_range: "error", "nan" or "zeros" for positions outside the table; see `learned`.

    Returns:
      The sum, with the shape and dtype of x. It is computed in float32 (float64 if x or the table is float64) and
      rounded once.

    Raises:
      TypeError: if x or table is not a float array, or positions are not integers.
      ValueError: if the widths differ, if positions do not broadcast, or if concrete positions are out of range.
      ValueError: if positions are `None` and the sequence is longer than the table, for any `out_of_range`, because the
        length is static.

    Notes:
      With a symbolic sequence length and without positions, the export needs a constraint such as "seq <= 512".

    Reference:
      Devlin et al., "BERT", 2019, section 3, figure 2.
    """
    x, table, positions = parse_added_rows(x, table, positions, out_of_range)
    scale = checks.scalar("scale", scale, compute_dtype(x, table))
    return _add_learned(x, table, positions, scale, out_of_range=out_of_range)


@compiled("add_learned", static_argnames=("out_of_range",))
def _add_learned(
    x: jax.Array, table: jax.Array, positions: jax.Array | None, scale: jax.Array, *, out_of_range: OutOfRange
) -> jax.Array:
    rows = table[: x.shape[-2]] if positions is None else _learned(positions, table, out_of_range=out_of_range)
    dtype = compute_dtype(x, table)
    rows = align(rows.astype(dtype), x.ndim)
    scaled = product(scale.astype(dtype), x.astype(dtype))
    return (scaled + rows).astype(x.dtype)


@public
def resize_table(
    table: ArrayLike,
    shape: int | Sequence[int],
    *,
    method: Literal["linear", "cubic", "torch_cubic"] = "linear",
    antialias: bool = True,
    align_corners: bool = False,
    zeros_outside: bool = False,
    size_offset: float = 0.0,
) -> jax.Array:
    r"""Interpolates a learned table to another length or grid.

    Along each axis, new row $j$ of $n$ samples the $L$ old rows at

    $$
    \left(j + \tfrac12\right) \frac Ln - \tfrac12, \qquad\text{or with align\_corners at}\qquad j\,\frac{L - 1}{n - 1}
    $$

    In the first formula, rows are the centres of equal cells. In the second, the first and the last row stay where they
    are, and a single new row ($n = 1$) is the first.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> table = jnp.array([[1.0], [2.0]])
      >>> print(pe.resize_table(table, 4)[:, 0])
      [1.   1.25 1.75 2.  ]
      >>> aligned = {"antialias": False, "align_corners": True}
      >>> print(pe.resize_table(table, 5, **aligned)[:, 0])
      [1.   1.25 1.5  1.75 2.  ]
      >>> faded = {"antialias": False, "zeros_outside": True}
      >>> print(pe.resize_table(table, 4, **faded)[:, 0])
      [0.75 1.25 1.75 1.5 ]
      >>> pe.resize_table(jnp.zeros((14, 14, 384)), (16, 24)).shape
      (16, 24, 384)

    Args:
      table: float array of shape (length, dim), or (height, width, dim) and so on for a grid.
      shape: the new length, or the new grid with one entry per axis of the table before the last.
      method: "linear"; "cubic", Keys' kernel with a = −½; or "torch_cubic", Keys' kernel with a = −¾.
      antialias: whether shrinking averages rows, with a kernel that is $L/n$ times as wide. Must be False with
        "torch_cubic", align_corners or zeros_outside.
      align_corners: whether the first and the last row stay where they are. Not available with "cubic".
      zeros_outside: whether the rows before the first and after the last are zeros, so that the border of a larger
        table fades. Not available with "cubic".
      size_offset: $o$, from 0 to below 1, which is added to $n$ in the first formula. Not available with antialias,
        align_corners or "cubic".

    Returns:
      The resized table, of shape (*shape, dim) and the dtype of the table.

    Raises:
      TypeError: if table is not a float array, or shape is not integers.
      ValueError: if shape does not have one positive entry per axis before the last, if method is unknown, if antialias
        is True with "torch_cubic", align_corners or zeros_outside, if "cubic" is combined with align_corners or
        zeros_outside, or if size_offset is not from 0 to below 1, or not 0 with antialias, align_corners or "cubic".

    Notes:
      - The result is computed in at least float32. If the shape does not change, the bits do not change either, unless
        there is a size_offset. A NaN or an infinity in the table spreads to all rows.
      - Without zeros_outside, "torch_cubic" repeats the first and the last row beyond the border. The other methods use
        only the rows that exist, with their weights normalized.

    See Also:
      The guide to learned tables, section "PyTorch's interpolate and grid_sample": the arguments for each of their
      modes, and for the tables of DINO and DINOv2.

    Reference:
      Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, section 3.2; Keys, "Cubic Convolution Interpolation for
      Digital Image Processing", 1981, equation 8.
    """
    checks.one_of("method", method, ("linear", "cubic", "torch_cubic"))
    antialias, align_corners = checks.flag("antialias", antialias), checks.flag("align_corners", align_corners)
    zeros_outside = checks.flag("zeros_outside", zeros_outside)
    fits = method != "torch_cubic" or not antialias
    require(fits, "antialias must be False for method='torch_cubic'; PyTorch's antialiased bicubic is 'cubic'")
    for name, flag in (("align_corners", align_corners), ("zeros_outside", zeros_outside)):
        require(not (flag and antialias), "antialias must be False for {}=True, got True", name)
        fits = not (flag and method == "cubic")
        require(fits, "method must be 'linear' or 'torch_cubic' for {}=True, got 'cubic'", name)
    size_offset = checks.number("size_offset", size_offset)
    require(0 <= size_offset < 1, "size_offset must be from 0 to below 1, got {}", size_offset)
    fits = not size_offset or method != "cubic" and not antialias and not align_corners
    require(fits, "size_offset must be 0 with antialias, align_corners or 'cubic', got {}", size_offset)
    table = checks.floats("table", table, ("length", "dim"))
    entries: Any = shape if isinstance(shape, (tuple, list)) else (shape,)
    grid = tuple(checks.positive_int("each entry of shape", n) for n in entries)
    require(0 not in table.shape[:-1], "table must have at least one row, got {}", table.shape)
    if len(grid) != table.ndim - 1:
        raise invalid(f"shape must have {table.ndim - 1} entries for a table of shape {table.shape}, got {grid}")
    require(math.prod(grid) < 2**31, "shape must have fewer than 2³¹ rows, got {}", grid)
    flags = {"antialias": antialias, "align_corners": align_corners, "zeros_outside": zeros_outside}
    return _resize_table(table, grid=grid, method=method, **flags, size_offset=size_offset)


@compiled(
    "resize_table", static_argnames=("grid", "method", "antialias", "align_corners", "zeros_outside", "size_offset")
)
def _resize_table(
    table: jax.Array,
    *,
    grid: tuple[int, ...],
    method: str,
    antialias: bool,
    align_corners: bool,
    zeros_outside: bool,
    size_offset: float,
) -> jax.Array:
    x = table.astype(compute_dtype(table))
    if method == "torch_cubic" or align_corners or zeros_outside or size_offset:
        for axis, length in enumerate(grid):
            samples = _sampled_rows(x.shape[axis], length, align_corners, size_offset)
            x = _sampled(x, axis, *(_linear if method == "linear" else _torch_cubic)(*samples), zeros_outside)
    else:
        precision = jax.lax.Precision.HIGHEST
        x = jax.image.resize(x, (*grid, table.shape[-1]), method, antialias=antialias, precision=precision)
    return x.astype(table.dtype)


def _sampled_rows(old: int, length: int, align_corners: bool, size_offset: float) -> tuple[np.ndarray, np.ndarray]:
    """Where each of `length` new rows samples the old ones: a whole number, exact, and a fraction."""
    j = np.arange(length)
    if align_corners:
        numerator, denominator = j * (old - 1), max(length - 1, 1)
    else:
        size = length + size_offset if size_offset else length
        numerator, denominator = (2 * j + 1) * old - size, 2 * size
    whole, rest = np.divmod(numerator, denominator)
    return whole.astype(int), rest / denominator


def _linear(whole: np.ndarray, rest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows on either side of each sample, and their weights."""
    return np.stack([whole, whole + 1]), np.stack([1 - rest, rest])


def _torch_cubic(whole: np.ndarray, rest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The four rows around each sample, and their weights by Keys' kernel with a = −¾."""
    taps = np.arange(-1, 3)[:, None]
    d = np.abs(taps - rest)
    weights = np.where(d <= 1, (1.25 * d - 2.25) * d * d + 1, -0.75 * (((d - 5) * d + 8) * d - 4))
    return whole + taps, weights


def _sampled(x: jax.Array, axis: int, rows: np.ndarray, weights: np.ndarray, zeros_outside: bool) -> jax.Array:
    """Weighted sums of rows along an axis of x; rows outside are zeros, or repeat the first and the last."""
    length = x.shape[axis]
    if zeros_outside:
        weights = np.where((rows >= 0) & (rows < length), weights, 0)
    rows, weights = np.clip(rows, 0, length - 1).astype(np.int32), weights.astype(x.dtype)
    row = jax.lax.broadcasted_iota(jnp.int32, (length, rows.shape[1]), 0)
    matrix = sum(jnp.where(row == i[None], w[None], 0) for i, w in zip(rows, weights, strict=True))
    return jnp.moveaxis(jnp.tensordot(x, matrix, (axis, 0), precision="highest"), -1, axis)
