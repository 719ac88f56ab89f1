r"""Learned position tables: lookup with an explicit out-of-range rule, addition to embeddings, and resizing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from posenc_jax import _arguments, _checks, _mesh
from posenc_jax._arrays import align, compute_dtype
from posenc_jax._checks import InvalidValue, public, require
from posenc_jax._xla import compiled, product

OutOfRange = Literal["error", "nan", "zeros"]


@public
def learned(positions: ArrayLike, table: ArrayLike, *, out_of_range: OutOfRange = "error") -> jax.Array:
    r"""Looks up rows of a learned table, $PE(p) = \text{table}_p$, and never returns the wrong row.

    Args:
      positions: integers of shape (...,), each from 0 to length − 1. A negative position is out of range: it does
        not count from the end.
      table: floats of shape (length, dim).
      out_of_range: "error" raises a `ValueError` if positions are known and returns NaN rows if they are traced (code
        under `jax.jit` cannot raise). "nan" returns NaN rows in both cases and does not check the positions first.
        "zeros" returns rows of zeros, for padding that is marked by a position such as −1.

    Returns:
      The rows, of shape (..., dim) and the dtype of the table. Out-of-range positions pass no gradient to the table.

    Raises:
      TypeError: if positions are not integers, or the table is not a float array.
      ValueError: if the table does not have two axes, or positions are known to be out of range.

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
    table = _arguments.parse_table(table)
    positions = _arguments.parse_rows(positions, table.shape[0], out_of_range)
    _arguments.rows_sharded_together(positions, table)
    return _learned(positions, table, out_of_range=out_of_range)


@compiled("learned", static_argnames=("out_of_range",))
def _learned(positions: jax.Array, table: jax.Array, *, out_of_range: OutOfRange) -> jax.Array:
    # Compares before the cast to int32, which could wrap. Replaces negative indices, which would count from the end.
    in_range = (positions >= 0) & (positions < table.shape[0])
    index = jnp.where(in_range, positions, 0).astype(jnp.int32)
    # On Explicit axes of a mesh, JAX must be told that the rows are sharded like the positions.
    spec = (*jax.typeof(index).sharding.spec, jax.typeof(table).sharding.spec[1])
    rows = table.at[index].get(mode="promise_in_bounds", out_sharding=_mesh.sharding(spec, index, table))
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

    Args:
      x: floats of shape (..., seq, d_model).
      table: floats of shape (length, d_model).
      positions: integers of a shape that broadcasts to (..., seq). `None` means 0, 1, 2, … and slices the first rows of
        the table instead of looking them up. A symbolic seq then needs a constraint such as "seq <= 512".
      scale: a scalar that multiplies x.
      out_of_range: as for `learned`.

    Returns:
      The sum, with the shape and dtype of x. It is computed in float32 (float64 if x or the table is float64) and
      rounded once.

    Raises:
      TypeError: if x or table is not a float array, or positions are not integers.
      ValueError: if the widths differ, if positions do not broadcast or are known to be out of range, or if positions
        are `None` and the sequence is longer than the table (for any `out_of_range`, because the length is static).

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> x, table = jnp.ones((2, 3, 4)), jnp.full((8, 4), 0.5)
      >>> float(pe.add_learned(x, table)[1, 2, 3])
      1.5

    Reference:
      Devlin et al., "BERT", 2019, section 3, figure 2.
    """
    x, table, positions = _arguments.added_rows(x, table, positions, out_of_range)
    scale = _checks.scalar("scale", scale, compute_dtype(x, table))
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
) -> jax.Array:
    r"""Interpolates a learned table to another length or grid.

    Rows are at the centres of equal cells, as in vision transformers: new row $j$ of $n$ samples the $L$ old rows at
    $(j + \tfrac12)\,L/n - \tfrac12$. Beyond the first and the last centre, only rows that exist have weight, except for
    "torch_cubic", which repeats the first and the last row.

    PyTorch's `interpolate` with align_corners=False is

    - mode "bilinear": "linear", with either antialias;
    - mode "bicubic", antialias=True: "cubic", as in timm's `resample_abs_pos_embed`;
    - mode "bicubic", antialias=False: "torch_cubic", as in `interpolate_pos_encoding` of transformers' ViT and DINOv2.

    Args:
      table: floats of shape (length, dim), or (height, width, dim) and so on for a grid.
      shape: the new length, or the new grid with one entry for each axis of the table before the last.
      method: "linear"; "cubic", Keys' kernel with a = −½; or "torch_cubic", a = −¾.
      antialias: whether shrinking averages rows, over a kernel that is wider by $L/n$. Must be False for "torch_cubic".

    Returns:
      The table, of shape (*shape, dim) and its dtype, computed in at least float32. The same shape gives the same bits.
      A NaN or an infinity in the table spreads to all rows.

    Raises:
      TypeError: if table is not a float array, or shape is not integers.
      ValueError: if shape does not have one positive entry for each axis before the last, if method is unknown, or if
        method is "torch_cubic" and antialias is True.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> print(pe.resize_table(jnp.array([[0.0], [1.0]]), 4)[:, 0])
      [0.   0.25 0.75 1.  ]
      >>> pe.resize_table(jnp.zeros((14, 14, 384)), (16, 24)).shape
      (16, 24, 384)

    Reference:
      Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, section 3.2; Keys, "Cubic Convolution Interpolation for
      Digital Image Processing", 1981, equation 8.
    """
    _checks.one_of("method", method, ("linear", "cubic", "torch_cubic"))
    (antialias,) = _checks.settings(antialias=antialias)
    aliased = method != "torch_cubic" or not antialias
    require(aliased, "antialias must be False for method='torch_cubic'; PyTorch's antialiased bicubic is 'cubic'")
    table = _checks.floats("table", table, ("length", "dim"))
    entries: Any = shape if isinstance(shape, (tuple, list)) else (shape,)
    grid = tuple(_checks.positive_int("each entry of shape", n) for n in entries)
    require(0 not in table.shape[:-1], "table must have at least one row, got {}", table.shape)
    if len(grid) != table.ndim - 1:
        raise InvalidValue(f"shape must have {table.ndim - 1} entries for a table of shape {table.shape}, got {grid}")
    require(math.prod(grid) < 2**31, "shape must have fewer than 2³¹ rows, got {}", grid)
    return _resize_table(table, grid=grid, method=method, antialias=antialias)


@compiled("resize_table", static_argnames=("grid", "method", "antialias"))
def _resize_table(table: jax.Array, *, grid: tuple[int, ...], method: str, antialias: bool) -> jax.Array:
    x = table.astype(compute_dtype(table))
    if method == "torch_cubic":
        for axis, length in enumerate(grid):
            x = _torch_cubic(x, axis, length)
    else:
        precision = jax.lax.Precision.HIGHEST
        x = jax.image.resize(x, (*grid, table.shape[-1]), method, antialias=antialias, precision=precision)
    return x.astype(table.dtype)


def _torch_cubic(x: jax.Array, axis: int, length: int) -> jax.Array:
    """Keys' kernel with a = −¾ along an axis of x, on rows that repeat the first and the last."""
    # (j + ½)·L/n − ½ as a whole number and a fraction, both exact.
    old, taps = x.shape[axis], np.arange(-1, 3)[:, None]
    whole, rest = np.divmod((2 * np.arange(length) + 1) * old - length, 2 * length)
    d = np.abs(taps - rest / (2 * length))
    weights = np.where(d <= 1, (1.25 * d - 2.25) * d * d + 1, -0.75 * (((d - 5) * d + 8) * d - 4)).astype(x.dtype)
    sources = np.clip(whole + taps, 0, old - 1).astype(np.int32)
    row = jax.lax.broadcasted_iota(jnp.int32, (old, length), 0)
    matrix = sum(jnp.where(row == i[None], w[None], 0) for i, w in zip(sources, weights, strict=True))
    return jnp.moveaxis(jnp.tensordot(x, matrix, (axis, 0), precision="highest"), -1, axis)
