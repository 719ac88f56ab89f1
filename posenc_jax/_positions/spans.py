"""Parts of a sequence, texts and grids of images and videos, and the positions of tokens in parts that follow."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from posenc_jax._jax import checks
from posenc_jax._jax.errors import require, require_type
from posenc_jax._positions.sequences import LIMIT, parse_mask

Following = Literal["maximum", "side"]


class Span(NamedTuple):
    """Positions of tokens relative to the start of their part, (length, 3), and where the next part starts."""

    offsets: np.ndarray
    extent: int | None = None  # so far after the start; None: above the positions of this part
    last: int = 0  # above the positions of the last so many tokens; 0: of all


class Grid(NamedTuple):
    """An image, a video or a frame, in tokens."""

    name: str
    time: int
    height: int
    width: int
    step: float = 1.0  # frame t is at ⌊t · step · rate⌋
    rate: float = 1.0
    whole: bool = True  # False: times are not rounded down

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return self.time * self.height * self.width

    def part(self, following: Following) -> Span:
        """Its positions, row by row and frame by frame."""
        # In float32, as in the models, because rounding can carry a product across an integer.
        times = np.arange(self.time, dtype=np.float32) * np.float32(self.step) * np.float32(self.rate)
        times = np.floor(times).astype(np.int64) if self.whole else times
        offsets = np.stack(np.meshgrid(times, np.arange(self.height), np.arange(self.width), indexing="ij"), -1)
        return Span(offsets.reshape(-1, 3), max(self.height, self.width) if following == "side" else None)

    def fitting(self) -> Grid:
        """The grid, checked before the cast of its positions to integers, which would wrap."""
        countable(self.name, self.tokens)
        last = (self.time - 1) * self.step * self.rate
        require(last < LIMIT, "positions must fit into int32, got up to {:.15g}", last)
        return self

    def check(self, tokens: int, where: str) -> Grid:
        """The grid, checked against its run of tokens."""
        message = "{} must have {} placeholders, got {} in {}"
        require(tokens == self.tokens, message, self.name, self.tokens, tokens, where)
        return self


def countable(name: str, tokens: int) -> int:
    """Checks that int32 can count the tokens."""
    require(tokens < LIMIT, "{} must have fewer than 2³¹ tokens, got {}", name, tokens)
    return tokens


def text(length: int) -> Span:
    """The positions of text."""
    return Span(np.repeat(np.arange(length)[:, None], 3, axis=1), length)


def placed(parts: Iterable[Span], dtype: Any = np.int64) -> np.ndarray:
    """The positions of parts that follow one another, int32, or in the float dtype in which they are counted."""
    pieces, start = [np.zeros((0, 3), dtype)], dtype(0)
    for part in parts:
        if not len(part.offsets):
            continue
        pieces.append(part.offsets.astype(dtype) + start)
        start = pieces[-1][-part.last :].max() + dtype(1) if part.extent is None else start + dtype(part.extent)
    positions = np.concatenate(pieces)
    last = positions.max(initial=0)
    require(last < LIMIT, "positions must fit into int32, got up to {}", last)
    return positions.astype(np.int32) if dtype is np.int64 else positions


# Rows of tokens


class Run(NamedTuple):
    """Tokens of one kind that follow each other in a row, padding aside."""

    kind: int
    start: int
    stop: int
    where: str  # in an error

    @property
    def length(self) -> int:
        """The number of tokens."""
        return self.stop - self.start


def parse_tokens(tokens: Any, mask: Any) -> tuple[np.ndarray, np.ndarray]:
    """Token ids, and which of them are no padding."""
    tokens = _known("tokens", checks.array("tokens", tokens, checks.INTEGERS))
    require(tokens.ndim in (1, 2), "tokens must have shape (length,) or (batch, length), got {}", tokens.shape)
    kept = np.ones(tokens.shape, bool) if mask is None else _known("mask", parse_mask(mask)) != 0
    require(kept.shape == tokens.shape, "mask must have the shape of tokens, {}, got {}", tokens.shape, kept.shape)
    return tokens, kept


def _known(name: str, x: Any) -> np.ndarray:
    """An array whose values the host knows: they say how many tokens each part has."""
    require_type(not isinstance(x, Tracer), name, "known, not traced", x)
    return np.asarray(x)


def _as_known(x: Any) -> Any:
    """Numbers in a JAX array whose values the host knows, as NumPy's; anything else as it is."""
    known = isinstance(x, jax.Array) and not isinstance(x, Tracer) and isinstance(x.dtype, np.dtype)
    return np.asarray(x) if known else x


def parse_grids(
    name: str, grids: Any, merge: int, steps: Any = None, *, steps_name: str = "video_steps", frames: int = 1
) -> list[Grid]:
    """The grids of a batch, in tokens, each of so many `frames` in time and `merge` patches to each side."""
    grids, steps = _as_known(grids), _as_known(steps)
    items = checks.sequence(name, grids, "grids")
    steps = (1.0,) * len(items) if steps is None else checks.sequence(steps_name, steps, "numbers")
    message = "{} must have {} numbers, as {} has, got {}"
    require(len(steps) == len(items), message, steps_name, len(items), name, len(steps))
    found = []
    for i, (item, step) in enumerate(zip(items, steps, strict=True)):
        sides = checks.positive_ints(f"{name}[{i}]", item)
        fits = len(sides) == 3 and sides[1] % merge == sides[2] % merge == 0
        of = f"(time, height, width) with multiples of spatial_merge_size={merge} for height and width"
        require(fits, "{}[{}] must be {}, got {}", name, i, of, sides)
        fits = sides[0] % frames == 0
        require(fits, "{}[{}] must have a time that is a multiple of {}, got {}", name, i, frames, sides)
        step = checks.positive_float32(f"{steps_name}[{i}]", step)
        grid = Grid(f"{name}[{i}]", sides[0] // frames, sides[1] // merge, sides[2] // merge, step)
        found.append(grid.fitting())
    return found


def frames_of(grid: Grid) -> list[Grid]:
    """Each frame of a video as a grid of its own."""
    return [grid._replace(name=f"frame {i} of {grid.name}", time=1) for i in range(grid.time)]


def runs_of(row: tuple[int, ...], kinds: np.ndarray, kept: np.ndarray) -> Iterator[Run]:
    """The runs of tokens of one kind in a row; they count the tokens that are kept."""
    places = np.flatnonzero(kept)
    starts = np.flatnonzero(np.diff(kinds[places], prepend=-1))
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(places)], strict=False):
        first, last = places[[start, stop - 1]]
        where = f"tokens[{', '.join(map(str, (*row, f'{first}:{last + 1}')))}]"
        yield Run(int(kinds[first]), start, stop, where)


def next_grid(grids: deque[Grid], kind: str, run: Run) -> Grid:
    """Takes the grid of a run from the left of the others."""
    require(grids, "{}_grids must have a grid for {}", kind, run.where)
    return grids.popleft()


def check_all_taken(grids: Iterable[Grid]) -> None:
    """Raises if a grid has no run."""
    for grid in grids:
        require(False, "{} must have {} placeholders in tokens, got none", grid.name, grid.tokens)
