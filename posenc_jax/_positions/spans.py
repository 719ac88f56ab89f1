"""Token spans, that is, texts, images and videos, and the positions of a sequence of spans."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from posenc_jax._jax import checks
from posenc_jax._jax.errors import invalid, require, require_type
from posenc_jax._positions.sequences import LIMIT, parse_mask

FollowingRule = Literal["maximum", "side"]


class Span(NamedTuple):
    """A token span: its positions relative to its start, (length, 3), and where the next span starts."""

    offsets: np.ndarray
    extent: int | None = None  # the next span starts this far after the start; None: above the positions of this span
    last: int = 0  # with extent None: above the positions of this number of last tokens; 0: of all tokens


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

    def span(self, following: FollowingRule) -> Span:
        """The span of its tokens, frame by frame and row by row."""
        # In float32, as in the models, because rounding can carry a product across an integer.
        times = np.arange(self.time, dtype=np.float32) * np.float32(self.step) * np.float32(self.rate)
        times = np.floor(times).astype(np.int64) if self.whole else times
        offsets = np.stack(np.meshgrid(times, np.arange(self.height), np.arange(self.width), indexing="ij"), -1)
        return Span(offsets.reshape(-1, 3), max(self.height, self.width) if following == "side" else None)

    def check_int32(self) -> Grid:
        """Returns the grid, whose positions fit into int32. Comes before their cast to integers, which would wrap."""
        countable(self.name, self.tokens)
        last = (self.time - 1) * self.step * self.rate
        require(last < LIMIT, "positions must fit into int32, got up to {:.15g}", last)
        return self

    def check(self, tokens: int, where: str) -> Grid:
        """Returns the grid, which has as many tokens as its run of placeholders."""
        message = "{} must have {} placeholders, got {} in {}"
        require(tokens == self.tokens, message, self.name, self.tokens, tokens, where)
        return self


def countable(name: str, tokens: int) -> int:
    """Returns the number of tokens, which int32 can count."""
    require(tokens < LIMIT, "{} must have fewer than 2³¹ tokens, got {}", name, tokens)
    return tokens


def text(length: int) -> Span:
    """The span of a text."""
    return Span(np.repeat(np.arange(length)[:, None], 3, axis=1), length)


def positions_of(spans: Iterable[Span], dtype: Any = np.int64) -> np.ndarray:
    """The positions of spans that follow one another, int32, or in the float dtype in which they are counted."""
    pieces, start = [np.zeros((0, 3), dtype)], dtype(0)
    for span in spans:
        if not len(span.offsets):
            continue
        pieces.append(span.offsets.astype(dtype) + start)
        start = pieces[-1][-span.last :].max() + dtype(1) if span.extent is None else start + dtype(span.extent)
    positions = np.concatenate(pieces)
    last = positions.max(initial=0)
    require(last < LIMIT, "positions must fit into int32, got up to {}", last)
    return positions.astype(np.int32) if dtype is np.int64 else positions


# Rows of tokens


class TokenRun(NamedTuple):
    """Consecutive tokens of one kind in a row, not counting padding."""

    kind: int
    start: int
    stop: int
    where: str  # the name of the run in errors

    @property
    def length(self) -> int:
        """The number of tokens."""
        return self.stop - self.start


def parse_tokens(tokens: Any, mask: Any) -> tuple[np.ndarray, np.ndarray]:
    """Token ids, and whether each is a token rather than padding."""
    tokens = _on_host("tokens", checks.array("tokens", tokens, checks.INTEGERS))
    require(tokens.ndim in (1, 2), "tokens must have shape (length,) or (batch, length), got {}", tokens.shape)
    is_token = np.ones(tokens.shape, bool) if mask is None else _on_host("mask", parse_mask(mask)) != 0
    message = "mask must have the shape of tokens, {}, got {}"
    require(is_token.shape == tokens.shape, message, tokens.shape, is_token.shape)
    return tokens, is_token


def _on_host(name: str, x: Any) -> np.ndarray:
    """A concrete array as NumPy's; its values say how many tokens each span has."""
    require_type(not isinstance(x, Tracer), name, "known, not traced", x)
    return np.asarray(x)


def _on_host_if_concrete(x: Any) -> Any:
    """A concrete JAX array of numbers as NumPy's; anything else as it is."""
    concrete = isinstance(x, jax.Array) and not isinstance(x, Tracer) and isinstance(x.dtype, np.dtype)
    return np.asarray(x) if concrete else x


def parse_grids(
    name: str, grids: Any, merge: int, steps: Any = None, *, steps_name: str = "video_steps", frames: int = 1
) -> list[Grid]:
    """The grids of a batch, in tokens. A token is `frames` frames of squares of `merge` × `merge` patches."""
    grids, steps = _on_host_if_concrete(grids), _on_host_if_concrete(steps)
    items = checks.sequence(name, grids, "grids")
    steps = (1.0,) * len(items) if steps is None else checks.sequence(steps_name, steps, "numbers")
    message = "{} must have {} numbers, as {} has, got {}"
    require(len(steps) == len(items), message, steps_name, len(items), name, len(steps))
    parsed = []
    for i, (item, step) in enumerate(zip(items, steps, strict=True)):
        sides = checks.positive_ints(f"{name}[{i}]", item)
        fits = len(sides) == 3 and sides[1] % merge == sides[2] % merge == 0
        expected = f"(time, height, width) with multiples of spatial_merge_size={merge} for height and width"
        require(fits, "{}[{}] must be {}, got {}", name, i, expected, sides)
        fits = sides[0] % frames == 0
        require(fits, "{}[{}] must have a time that is a multiple of {}, got {}", name, i, frames, sides)
        step = checks.positive_float32(f"{steps_name}[{i}]", step)
        grid = Grid(f"{name}[{i}]", sides[0] // frames, sides[1] // merge, sides[2] // merge, step)
        parsed.append(grid.check_int32())
    return parsed


def frames_of(grid: Grid) -> list[Grid]:
    """Each frame of a video as a grid of its own."""
    return [grid._replace(name=f"frame {i} of {grid.name}", time=1) for i in range(grid.time)]


def runs_of(row: tuple[int, ...], kinds: np.ndarray, is_token: np.ndarray) -> Iterator[TokenRun]:
    """The runs of tokens of one kind in a row, without the padding."""
    indices = np.flatnonzero(is_token)
    starts = np.flatnonzero(np.diff(kinds[indices], prepend=-1))
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(indices)], strict=False):
        first, last = indices[[start, stop - 1]]
        where = f"tokens[{', '.join(map(str, (*row, f'{first}:{last + 1}')))}]"
        yield TokenRun(int(kinds[first]), start, stop, where)


def next_grid(grids: deque[Grid], kind: str, run: TokenRun) -> Grid:
    """The grid of a run, removed from the left of the queue."""
    require(grids, "{}_grids must have a grid for {}", kind, run.where)
    return grids.popleft()


def check_all_taken(grids: Iterable[Grid]) -> None:
    """Raises if a grid is left, which has no run of tokens."""
    for grid in grids:
        raise invalid(f"{grid.name} must have {grid.tokens} placeholders in tokens, got none")
