"""The patches of a vision tower: their order, their coordinates, and their rows of a learned table."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, get_args

import jax
import numpy as np

from posenc_jax._encodings.learned import resize_table
from posenc_jax._jax import checks
from posenc_jax._jax.errors import public, require
from posenc_jax._jax.workarounds import compiled

# How the rows of a learned table reach the patches of an image
TowerTable = Literal[
    "unknown",
    "none",
    "linear",
    "linear_aligned",
    "linear_zeros_exchanged",
    "torch_cubic",
    "tiled",
    "by_coordinate",
    "fixed",
]
TABLES = get_args(TowerTable)
# What `resize_table` alone does. It equals the tower's code: `interpolate`, `grid_sample` or a weighted sum of rows.
_LINEAR: Any = {"method": "linear", "antialias": False}
RESAMPLING: Any = {
    "linear": _LINEAR,
    "linear_aligned": _LINEAR | {"align_corners": True},
    "torch_cubic": {"method": "torch_cubic", "antialias": False},
}


@dataclasses.dataclass(frozen=True)
class PatchGrid:
    r"""The order in which a vision tower stores the patches of an image or video, and their coordinates.

    The patch in row $r$ and column $c$ is at $(r + o, c + o)$. With `centres=True`, on a grid of $h \times w$ patches,
    it is at $((2r + 1)/h - 1, (2c + 1)/w - 1)$.

    Examples:
      >>> from posenc_jax.hf import PatchGrid
      >>> qwen, dino = PatchGrid(merge=2, window=4), PatchGrid(leading=5, centres=True)
      >>> qwen == PatchGrid(merge=2), qwen.window
      (False, 4)
      >>> dino.leading, dino.offset
      (5, 0)

    Args:
      merge: the side of the squares of patches that are stored together; the squares are stored row by row. 1 means
        that patches are stored row by row. 0 means that the side is given per image.
      window: the side, in such squares, of the windows whose squares are stored together, or 0. Windows at the end of
        the grid may be smaller.
      leading: the number of tokens before the patches. They are not rotated: their coordinates are 0.
      trailing: the number of tokens after the patches. They are not rotated either.
      offset: $o$.
      centres: whether coordinates are centres of patches, from -1 to 1.
      timed: whether the frame is a coordinate, the first one. Its offset is $o$ too.
      frames: whether a grid may have several frames. If not `timed`, all frames have the same coordinates.
      shapes: the grids, (height, width), that the tower accepts; empty if it accepts any.
      inside: the side of the windows if the positions of a layer count within a window, or 0.
    """

    merge: int = 1
    window: int = 0
    leading: int = 0
    trailing: int = 0
    offset: int = 0
    centres: bool = False
    timed: bool = False
    frames: bool = True
    shapes: tuple[tuple[int, int], ...] = ()
    inside: int = 0

    @public
    def __post_init__(self) -> None:
        """Checks the fields."""
        values = vars(self)  # frozen
        for name in ("merge", "window", "leading", "trailing", "offset", "inside"):
            values[name] = parse_count(name, values[name])
        for name in ("centres", "timed", "frames"):
            values[name] = checks.flag(name, values[name])
        shapes = enumerate(checks.sequence("shapes", self.shapes, "(height, width)"))
        values["shapes"] = tuple(checks.positive_ints(f"shapes[{i}]", shape) for i, shape in shapes)
        require({*map(len, self.shapes)} <= {2}, "shapes must hold (height, width), got {!r:.60}", self.shapes)
        require(not (self.centres and (self.offset or self.timed)), "centres must have no offset and no frames")


def parse_count(name: str, value: Any, least: int = 0) -> int:
    """`value` as a number of patches, tokens, layers or features, of at least `least`."""
    require(checks.integer(name, value, least) < 2**16, "{} must be below 65,536, got {!r:.60}", name, value)
    return int(value)


def patch_positions(grid: PatchGrid, shape: Any) -> jax.Array:
    """The coordinates of an image's tokens, (tokens, axes), in the tower's order."""
    frames, *size = _parse_shape(grid, shape)
    if grid.inside:
        size = [grid.inside] * 2
    patches = _ordered(grid, frames, *size)[0 if grid.timed else 1 :].T + grid.offset
    if grid.centres:
        patches = ((2 * patches + 1) / np.array(size) - 1).astype(np.float32)
    return jax.device_put(np.pad(patches, ((grid.leading, grid.trailing), (0, 0))))


def table_rows(method: TowerTable, grid: PatchGrid, table: Any, shape: Any) -> jax.Array:
    """The rows of a learned table of an image's or video's patches, (patches, dim), in the tower's order."""
    require(method not in ("none", "unknown"), "table must be left out, because the table of the plan is {!r}", method)
    axes = ("2", "positions", "dim") if method == "by_coordinate" else ("rows", "columns", "dim")
    table = checks.floats("table", table, axes)
    frames, *size = _parse_shape(grid, shape)
    rows, columns = table.shape[:2]
    enough = {"by_coordinate": rows == 2 and columns >= max(size), "fixed": [rows, columns] == size}
    fits = table.ndim == 3 and enough.get(method, 0 not in (rows, columns))
    message = "table must have shape ({}) and a row for each patch of {}, got shape {}"
    require(fits, message, ", ".join(axes), shape, table.shape)
    for axis in (0, 1):
        checks.unsharded("table", table, axis)
    return _table_rows(table, *_ordered(grid, frames, *size)[1:], method=method, size=tuple(size))


@compiled("table_rows", static_argnames=("method", "size"))
def _table_rows(table: jax.Array, row: Any, column: Any, *, method: TowerTable, size: tuple[int, ...]) -> jax.Array:
    if method == "by_coordinate":
        return table[0, column] + table[1, row]
    if method == "linear_zeros_exchanged":
        table = resize_table(table, size[::-1], zeros_outside=True, **_LINEAR).reshape(*size, -1)
    elif method in RESAMPLING:
        table = resize_table(table, size, **RESAMPLING[method])
    return table[row % table.shape[0], column % table.shape[1]]  # all but tiled tables have the grid's size


def _ordered(grid: PatchGrid, *sides: int) -> np.ndarray:
    """The frame, the row and the column of each patch in the tower's order, (3, patches)."""
    count = math.prod(sides) + grid.leading + grid.trailing
    require(count < 2**31, "shape must have fewer than 2³¹ tokens, got {!r:.60}", sides)
    time, row, column = indices = np.indices(sides, np.int32).reshape(3, -1)
    if grid.merge == 1 and not grid.window:
        return indices
    window = grid.window * grid.merge or max(sides)
    order = np.lexsort((column // grid.merge, row // grid.merge, column // window, row // window, time))  # stable
    return indices[:, order]


def _parse_shape(grid: PatchGrid, shape: Any) -> tuple[int, ...]:
    """(frames, height, width)."""
    sides = checks.positive_ints("shape", shape)
    expected = "(height, width) or (time, height, width)" if grid.frames else "(height, width)"
    require(2 <= len(sides) <= 2 + grid.frames, "shape must be {}, in patches, got {}", expected, sides)
    size, merge = sides[-2:], checks.positive_int("merge", grid.merge)  # a table does not say what 0 leaves open
    taken = not grid.shapes or size in grid.shapes
    require(taken, "shape must be {} in this layer, got {}", " or ".join(map(str, grid.shapes)), sides)
    fits = not any(side % merge for side in size)
    require(fits, "shape must have sides that are multiples of {}, got {}", merge, sides)
    return (1, *sides)[-3:]
