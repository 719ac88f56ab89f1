"""The coordinates of a vision tower's patches, and the order in which it holds them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import numpy as np

from posenc_jax._jax import checks
from posenc_jax._jax.errors import public, require

_LIMIT = 2**31


@dataclasses.dataclass(frozen=True)
class PatchGrid:
    r"""How a vision tower counts the patches of an image or video, and in which order it holds them.

    The patch in row $r$ and column $c$ is at $(r + o, c + o)$, or, on a grid of $h \times w$ patches with
    `centres=True`, at $((2r + 1)/h - 1, (2c + 1)/w - 1)$.

    Examples:
      >>> from posenc_jax.hf import PatchGrid
      >>> qwen, dino = PatchGrid(merge=2, window=4), PatchGrid(leading=5, centres=True)
      >>> qwen == PatchGrid(merge=2), qwen.window
      (False, 4)
      >>> dino.leading, dino.offset
      (5, 0)

    Args:
      merge: the side of squares whose patches follow each other; the squares go row by row. 1 if the patches do, 0 if
        the side comes with each image.
      window: the side, in such squares, of windows whose squares follow each other, or 0. Windows at the end of the
        grid may be smaller.
      leading: tokens before the patches. They do not rotate, so their coordinates are 0.
      trailing: such tokens after the patches.
      offset: $o$.
      centres: whether coordinates are centres of patches, from -1 to 1.
      timed: whether the frame is a coordinate, the first. Its offset is $o$ too.
      frames: whether a grid may have several frames. If not `timed`, they repeat the same coordinates.
      shapes: the grids, (height, width), that the tower takes; empty if it takes any.
      inside: the side of the windows if a layer's positions are those within a window, or 0.
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
        for name in ("merge", "window", "leading", "trailing", "offset", "inside"):
            object.__setattr__(self, name, parse_count(name, getattr(self, name)))
        for name in ("centres", "timed", "frames"):
            object.__setattr__(self, name, checks.flag(name, getattr(self, name)))
        shapes = checks.sequence("shapes", self.shapes, "(height, width)")
        pairs = tuple(checks.positive_ints(f"shapes[{i}]", shape) for i, shape in enumerate(shapes))
        require(all(len(shape) == 2 for shape in pairs), "shapes must hold (height, width), got {!r:.60}", shapes)
        object.__setattr__(self, "shapes", pairs)
        require(not (self.centres and (self.offset or self.timed)), "centres must have no offset and no frames")


def parse_count(name: str, value: Any, least: int = 0) -> int:
    """`value` as a number of patches, tokens, layers or features, of at least `least`."""
    value = checks.integer(name, value, least)
    require(value < 2**16, "{} must be below 65,536, got {!r:.60}", name, value)
    return value


def patch_positions(grid: PatchGrid, shape: Any) -> jax.Array:
    """The coordinates of an image's tokens, (tokens, axes), in the tower's order."""
    frames, height, width = _parse_shape(grid, shape)
    if grid.inside:
        height = width = grid.inside
    count = frames * height * width + grid.leading + grid.trailing
    require(count < _LIMIT, "shape must have fewer than 2³¹ tokens, got {!r:.60}", shape)
    patches: Any = _ordered(grid, (frames, height, width))[0 if grid.timed else 1 :].T
    if grid.centres:
        patches = ((2 * patches + 1) / np.array([height, width]) - 1).astype(np.float32)
    else:
        patches = (patches + grid.offset).astype(np.int32)
    return jax.device_put(np.pad(patches, ((grid.leading, grid.trailing), (0, 0))))


def patch_indices(grid: PatchGrid, shape: Any) -> tuple[int, int, np.ndarray, np.ndarray]:
    """Height and width, and the row and the column of each patch in the tower's order."""
    sides = _parse_shape(grid, shape)
    return *sides[1:], *_ordered(grid, sides)[1:]


def _ordered(grid: PatchGrid, sides: tuple[int, int, int]) -> np.ndarray:
    """The frame, the row and the column of each patch in the tower's order, (3, patches)."""
    time, row, column = indices = np.indices(sides).reshape(3, -1)
    m = grid.merge
    if m == 1 and not grid.window:
        return indices
    window = grid.window * m or max(sides)
    order = np.lexsort((column, row, column // m, row // m, column // window, row // window, time))
    return indices[:, order]


def _parse_shape(grid: PatchGrid, shape: Any) -> tuple[int, int, int]:
    """(frames, height, width)."""
    sides = checks.positive_ints("shape", shape)
    fits = len(sides) == 2 or len(sides) == 3 and grid.frames
    expected = "(height, width) or (time, height, width)" if grid.frames else "(height, width)"
    require(fits, "shape must be {}, in patches, got {}", expected, sides)
    require(math.prod(sides) < _LIMIT, "shape must have fewer than 2³¹ tokens, got {!r:.60}", sides)
    frames, height, width = (1, *sides)[-3:]
    taken = not grid.shapes or (height, width) in grid.shapes
    require(taken, "shape must be {} in this layer, got {}", " or ".join(map(str, grid.shapes)), sides)
    fits = height % grid.merge == 0 and width % grid.merge == 0
    require(fits, "shape must have sides that are multiples of {}, got {}", grid.merge, sides)
    return frames, height, width
