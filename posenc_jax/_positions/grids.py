r"""Positions in grids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posenc_jax._jax import checks
from posenc_jax._jax.errors import invalid, public, require
from posenc_jax._jax.workarounds import compiled
from posenc_jax._positions.sequences import LIMIT


@public
def grid_positions(
    shape: Sequence[int],
    *,
    start: float | Sequence[float] = 0,
    step: float | Sequence[float] = 1,
    order: Literal["row", "column"] = "row",
    leading: int = 0,
) -> jax.Array:
    r"""Coordinates of the patches of an image or video, in the order in which the grid is flattened.

    Token $i$ of a grid of $h \times w$ patches is at $(a_0 + s_0 \lfloor i/w \rfloor,\ a_1 + s_1 (i \bmod w))$, row
    before column, where $a$ is start and $s$ is step.

    Examples:
      >>> import posenc_jax as pe
      >>> pe.grid_positions((2, 3)).tolist()
      [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
      >>> encoding = pe.sinusoidal(pe.grid_positions((14, 24)), pe.axial(384, 2))
      >>> encoding.shape == (14 * 24, 384)
      True

      Column before row, as in the tables of MAE and big_vision:

      >>> pe.grid_positions((2, 3), order="column").tolist()
      [[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1]]
      >>> columns_first = pe.grid_positions((14, 24), order="column")
      >>> mae = pe.sinusoidal(columns_first, 384 // 2, layout="half").reshape(-1, 384)

      Counted from the centre, as in Qwen-Image; the second reference image of FLUX.2; frames at a distance of 8:

      >>> pe.grid_positions((1, 2, 2), start=(0, -1, -1)).tolist()
      [[0, -1, -1], [0, -1, 0], [0, 0, -1], [0, 0, 0]]
      >>> second_reference_of_flux2 = pe.grid_positions((1, 2, 3, 1), start=(20, 0, 0, 0))
      >>> pe.grid_positions((3, 2), step=(8, 0.5))[-1].tolist()
      [16.0, 0.5]

    Args:
      shape: the number of patches along each side: (height, width), (time, height, width), or any other number of
        sides.
      start: the coordinate of the first patch: one number, or one per side. For a side of 1, it is the coordinate that
        all patches share.
      step: the distance between neighbours: one number, or one per side; of any sign.
      order: the order of the coordinates within a position. It does not change the order of the tokens. "row" keeps the
        order of the sides: (row, column) or (time, row, column). "column" swaps the last two: (column, row) or (time,
        column, row). Each side keeps its start and its step.
      leading: the number of tokens before the grid (class, register). Their coordinates are 0, wherever the grid
        starts, so `rotary` does not rotate them.

    Returns:
      An array of shape (leading + product of the sides, number of sides), for frequencies with one axis per side
      (`axial`, `multi_section`). It is int32 if start and step are integers. Otherwise it is float32, and each
      coordinate is the float32 closest to the exact $a + s\,i$.

    Raises:
      TypeError: if shape is not a sequence of integers, start or step is neither a number nor a sequence of numbers, or
        leading is not an integer.
      ValueError: if a side is below 1, if leading is below 0, if order is unknown or is "column" for a single side, if
        start or step does not hold one number per side, if a step or a coordinate does not fit into int32, or if there
        are 2³¹ tokens or more.

    Notes:
      The encoding of position 0 is not zero. If a table is zero for its class token, as in MAE, put rows of zeros
      before the encodings of the grid.

    Reference:
      He et al., "Masked Autoencoders Are Scalable Vision Learners", 2022, appendix A.1, and its `pos_embed.py`.
    """
    checks.one_of("order", order, ("row", "column"))
    shape = checks.positive_ints("shape", shape)
    leading, least = checks.integer("leading", leading, 0), 2 if order == "column" else 1
    require(len(shape) >= least, "shape must have more sides for order={!r}, got {}", order, shape)
    if leading + math.prod(shape) >= LIMIT:
        raise invalid(f"shape must have fewer than 2³¹ tokens, got {shape} after leading={leading}")
    starts, steps = _parse_sides("start", start, shape), _parse_sides("step", step, shape)
    for first, by, side in zip(starts, steps, shape, strict=True):
        fits = all(-LIMIT <= x < LIMIT for x in (by, first, first + by * (side - 1)))
        message = "start and step must keep every coordinate within int32, got {} and {} for a side of {}"
        require(fits, message, float(first), float(by), side)
    integral = all(isinstance(x, int) for x in (*starts, *steps))  # a key of its own: 1 and Fraction(1) are equal
    return _grid_positions(shape=shape, starts=starts, steps=steps, integral=integral, order=order, leading=leading)


def _parse_sides(name: str, values: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """One number for each side at its exact value, integers as int and floats as Fraction."""
    each = (values,) * len(shape)
    if not checks.is_number(values):
        each = checks.sequence(name, values, "numbers, or one number for all sides")
    message = "{} must hold one number for each side of shape {}, got {}"
    require(len(each) == len(shape), message, name, shape, each)
    for i, value in enumerate(each):
        checks.number(f"{name}[{i}]", value)
    return tuple(int(x) if isinstance(x, (int, np.integer)) else Fraction(float(x)) for x in each)


@compiled("grid_positions", static_argnames=("shape", "starts", "steps", "integral", "order", "leading"))
def _grid_positions(
    *, shape: tuple[int, ...], starts: Any, steps: Any, integral: bool, order: str, leading: int
) -> jax.Array:
    axes = list(range(len(shape)))
    if order == "column":
        axes[-2:] = axes[:-3:-1]
    along = _integers_along if integral else _floats_along
    grid = jnp.stack([along(shape, axis, starts[axis], steps[axis]) for axis in axes], -1)
    return jnp.pad(grid.reshape(-1, len(shape)), ((leading, 0), (0, 0)))


def _integers_along(shape: tuple[int, ...], axis: int, start: int, step: int) -> jax.Array:
    """The coordinate start + step·i of a side; a product beyond int32 wraps around, and the sum wraps back."""
    return np.int32(start) + np.int32(step) * lax.broadcasted_iota(jnp.int32, shape, axis)


def _floats_along(shape: tuple[int, ...], axis: int, start: int | Fraction, step: int | Fraction) -> jax.Array:
    """The coordinate start + step·i of a side, on the host: float32 would round both the product and the sum."""
    unit = max(start.denominator, step.denominator)  # a power of two
    first, by = int(start * unit), int(step * unit)
    side = np.array([_to_odd(first + by * i) / unit for i in range(shape[axis])])
    return lax.broadcast_in_dim(side.astype(np.float32), shape, (axis,))


def _to_odd(n: int) -> int:
    """In 50 bits, the last of them 1 if others are lost: float64 holds this, and float32 rounds it as it would n."""
    lost = max(n.bit_length() - 50, 0)
    return (n >> lost | (n % (1 << lost) > 0)) << lost
