r"""Angles of positions, and the columns of sines and cosines that they make."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posenc_jax._frequencies.frequencies import AnyFrequencies, Frequencies
from posenc_jax._frequencies.parser import dim_of
from posenc_jax._jax import workarounds
from posenc_jax._jax.arrays import align
from posenc_jax._jax.checks import Layout
from posenc_jax._numerics.sines import sine, sine_float32


class Angles(NamedTuple):
    """The angles Σ ω·p + start over the axes of positions; `apply_rotation` takes them without a start."""

    positions: Any  # integers or floats (..., axes); None for 0, 1, …, until they are counted
    frequencies: AnyFrequencies  # an array has shape (..., axes·pairs), one axis after the other
    start: Any = None  # the angles at position 0, floats (..., pairs) of positions' rank; None for 0

    @property
    def dim(self) -> int:
        """The number of features that they rotate."""
        dim = dim_of(self.frequencies)
        return dim if isinstance(self.frequencies, Frequencies) else dim // self.positions.shape[-1]

    @property
    def have_derivatives(self) -> bool:
        """Whether they have derivatives: positions are floats, frequencies are an array, or there is a start."""
        floats = jnp.issubdtype(self.positions.dtype, jnp.floating)
        return floats or not isinstance(self.frequencies, Frequencies) or self.start is not None


class SinCosTable(NamedTuple):
    """Sines and cosines that were computed before."""

    table: jax.Array  # (..., 2·pairs), the sines and then the cosines

    @property
    def dim(self) -> int:
        """The number of features that they rotate."""
        return self.table.shape[-1]


def is_shared(x: jax.Array, angles: Angles | SinCosTable) -> bool:
    """Whether at least four vectors of x share each of the angles, so that a table of sines and cosines pays."""
    rows = lax.broadcast_shapes(*(array.shape[:-1] for array in jax.tree.leaves(angles)))
    sizes = zip(x.shape[:-1], rows, strict=False)
    return math.prod(n for n, m in sizes if m == 1 and isinstance(n, int)) >= 4


def coordinates(positions: jax.Array, axes: Any) -> jax.Array:
    """The coordinate of positions (..., axes) that drives each column, (..., 1 or columns)."""
    axes = align(np.asarray(axes), positions.ndim)
    result = positions[..., :1]
    for axis in range(1, positions.shape[-1]):  # a select for each axis: XLA does not fuse a gather
        result = jnp.where(axes == axis, positions[..., axis : axis + 1], result)
    return result


def expand(x: Any, layout: Layout, dim: int, margin: tuple[int, int] = (0, 0)) -> Any:
    """Repeats entries of pairs (..., pairs) for the columns of their features, (..., dim), with zeros in the margin."""
    # Repeats along a new axis, which keeps the sharding of x on Explicit axes.
    twice = x[..., None].repeat(2, axis=-1) if layout == "interleaved" else x[..., None, :].repeat(2, axis=-2)
    twice = twice.reshape(*x.shape[:-1], 2 * x.shape[-1])[..., :dim]
    around = [(0, 0)] * (x.ndim - 1) + [margin]
    return (np if isinstance(x, np.ndarray) else jnp).pad(twice, around) if any(margin) else twice


def _columns(angles: Angles, to_columns: Callable[[Any], Any], quarter: Any) -> jax.Array:
    """The sine of ω·p + quarter·π/2 in each column; `to_columns` maps one entry per pair to one entry per column."""
    positions, frequencies, start = angles
    start = None if start is None else to_columns(start)
    if not isinstance(frequencies, Frequencies):
        axes = positions.shape[-1]
        angulars = [frequencies] if axes == 1 else jnp.split(frequencies, axes, axis=-1)
        return sine(positions, [to_columns(angular) for angular in angulars], quarter, start)
    pair = to_columns(np.arange(1, frequencies.num_pairs + 1))  # 0 for a column without a pair
    cycles_by_pair = (0, *frequencies.cycles)
    cycles = tuple(cycles_by_pair[i] for i in pair)
    coordinate = coordinates(positions, np.pad(np.array(frequencies.axes), (1, 0))[pair])
    compute = sine if frequencies.precision == "exact" else sine_float32
    result = compute(coordinate, cycles, quarter, start)
    amplitude = frequencies.attention_factor
    return result if amplitude == 1 else workarounds.product(result, jnp.asarray(amplitude, jnp.float32))


def features(
    angles: Angles | SinCosTable, layout: Layout, quarter: np.ndarray | None = None, margin: tuple[int, int] = (0, 0)
) -> jax.Array:
    """The columns of an encoding, float32 (..., dim), in one elementwise expression.

    Args:
      angles: of dim features.
      layout: which columns hold the sine and the cosine of a pair.
      quarter: (dim,), makes each feature sin(ω·p + quarter·π/2) of its pair; None for sines and cosines.
      margin: the number of columns without a frequency to add before and after.
    """
    dim = angles.dim
    if quarter is None:
        quarter = np.arange(dim) % 2 if layout == "interleaved" else np.arange(dim) // ((dim + 1) // 2)
    to_columns = functools.partial(expand, layout=layout, dim=dim, margin=margin)
    if isinstance(angles, SinCosTable):  # all columns are sines, or all are cosines
        return to_columns(pair_sines(angles, quarter[0]))
    return _columns(angles, to_columns, np.pad(quarter, margin))


def pair_sines(angles: Angles | SinCosTable, quarter: np.integer) -> jax.Array:
    """sin(ω·p + quarter·π/2) of each pair, the sine or the cosine, float32 (..., num_pairs)."""
    if isinstance(angles, SinCosTable):
        return jnp.split(angles.table, 2, axis=-1)[quarter]
    return _columns(angles, lambda x: x, quarter)
