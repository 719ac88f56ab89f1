r"""Positions in grids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from posenc_jax._jax import checks
from posenc_jax._jax.errors import invalid, public, require
from posenc_jax._jax.workarounds import compiled
from posenc_jax._positions.sequences import LIMIT


@public
def grid_positions(shape: Sequence[int], *, order: Literal["row", "column"] = "row", leading: int = 0) -> jax.Array:
    r"""Positions of the patches of an image or video, in the order in which the grid is flattened.

    Token $i$ of an $h \times w$ grid is at $(\lfloor i/w \rfloor, i \bmod w)$, row before column.

    Examples:
      >>> import posenc_jax as pe
      >>> pe.grid_positions((2, 3)).tolist()
      [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
      >>> pe.grid_positions((2, 3), order="column").tolist()
      [[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1]]
      >>> encoding = pe.sinusoidal(pe.grid_positions((14, 24)), pe.axial(384, 2))
      >>> columns_first = pe.grid_positions((14, 24), order="column")
      >>> mae = pe.sinusoidal(columns_first, 384 // 2, layout="half").reshape(-1, 384)
      >>> encoding.shape == mae.shape == (14 * 24, 384)
      True

    Args:
      shape: the sides of the grid: (height, width), (time, height, width), or any other number of sides.
      order: the order of the coordinates, not of the tokens. "row" keeps the order of the sides: (row, column) or
        (time, row, column). "column" swaps the last two: (column, row) or (time, column, row), as in the tables of MAE
        and big_vision.
      leading: the number of tokens before the grid (class, register), which are at 0 in every coordinate. `rotary`
        leaves them unrotated, as rotary vision transformers do. No position encodes to zeros, so a table that is zero
        for these tokens, like MAE's, needs rows of zeros before the encodings of the grid.

    Returns:
      An int32 array of shape (leading + product of the sides, number of sides), for frequencies with one axis for each
      side (`axial`, `multi_section`).

    Raises:
      TypeError: if shape is not a sequence of integers, or leading is not an integer.
      ValueError: if a side is below 1, if leading is below 0, if order is unknown or is "column" for a single side, or
        if there are 2³¹ tokens or more.

    Reference:
      He et al., "Masked Autoencoders Are Scalable Vision Learners", 2022, appendix A.1, and its `pos_embed.py`.
    """
    checks.one_of("order", order, ("row", "column"))
    shape = checks.positive_ints("shape", shape)
    leading, least = checks.integer("leading", leading, 0), 2 if order == "column" else 1
    require(len(shape) >= least, "shape must have more sides for order={!r}, got {}", order, shape)
    if leading + math.prod(shape) >= LIMIT:
        raise invalid(f"shape must have fewer than 2³¹ tokens, got {shape} after leading={leading}")
    return _grid_positions(shape=shape, order=order, leading=leading)


@compiled("grid_positions", static_argnames=("shape", "order", "leading"))
def _grid_positions(*, shape: tuple[int, ...], order: str, leading: int) -> jax.Array:
    axes = list(range(len(shape)))
    if order == "column":
        axes[-2:] = axes[:-3:-1]
    grid = jnp.stack([lax.broadcasted_iota(jnp.int32, shape, axis) for axis in axes], -1)
    return jnp.pad(grid.reshape(-1, len(shape)), ((leading, 0), (0, 0)))
