r"""Positions of text, images and videos in one sequence, as int32."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from posenc_jax import _checks
from posenc_jax._checks import public, require, require_type
from posenc_jax._positions import LIMIT, parse_mask


@public
def multimodal_positions(
    parts: Sequence[int | Sequence[float]], *, following: Literal["maximum", "side"] = "maximum"
) -> jax.Array:
    r"""Positions of text, images and videos in one sequence, for M-RoPE: (time, row, column) of each token.

    Each text token advances all three coordinates by 1. Token $(t, y, x)$ of a grid that starts at $s$ is at
    $(s + \lfloor t\Delta \rfloor, s + y, s + x)$. The next token to decode is at `positions.max() + 1` in all three
    coordinates, and later tokens count up from there.

    Args:
      parts: the parts of the sequence. An integer is a number of text tokens. (time, height, width) is an image
        (time 1) or a video, in tokens, that is, after the model merges patches. (time, height, width, Δ) is a video
        whose frames are Δ positions apart. For Qwen2.5-VL, Δ is `tokens_per_second` times the seconds per frame; Δ and
        its product with t are float32. Qwen3-VL puts a timestamp before each frame, so each frame is a grid of time 1.
      following: where the next part starts. "maximum": above every position so far, as in the papers and in the
        models' own code. "side": at $s + \max(\text{height}, \text{width})$, as in transformers 5. The two differ only
        after a video that spans more positions in time than in height and width; with "side", the text after it then
        shares positions with its frames.

    Returns:
      An int32 array of shape (length, 3), for `multi_section`. Pad the sequences of a batch to one length with any
      value.

    Raises:
      TypeError: if parts are not integers and sequences of numbers.
      ValueError: if a length or side is below 1, if Δ is not positive in float32, if a grid does not have three or four
        numbers, if following is unknown, or if a position is beyond int32.

    Examples:
      >>> import posenc_jax as pe
      >>> pe.multimodal_positions([2, (1, 2, 2), 1]).tolist()
      [[0, 0, 0], [1, 1, 1], [2, 2, 2], [2, 2, 3], [2, 3, 2], [2, 3, 3], [4, 4, 4]]
      >>> pe.multimodal_positions([(3, 1, 1, 2.0)])[:, 0].tolist()
      [0, 2, 4]

    Reference:
      Wang et al., "Qwen2-VL", 2024, section 2.1; Bai et al., "Qwen2.5-VL", 2025, section 2.1.2, for Δ.
    """
    _checks.one_of("following", following, ("maximum", "side"))
    items = enumerate(_checks.sequence("parts", parts, "integers and grids"))
    return jnp.asarray(_placed([_parse_part(f"parts[{i}]", part) for i, part in items], following))


@public
def positions_from_tokens(
    tokens: ArrayLike,
    *,
    image_token: int | None = None,
    video_token: int | None = None,
    image_grids: Any = (),
    video_grids: Any = (),
    video_steps: Sequence[float] | None = None,
    spatial_merge_size: int = 2,
    mask: ArrayLike | None = None,
    following: Literal["maximum", "side"] = "maximum",
) -> jax.Array:
    r"""Positions for M-RoPE from token ids with placeholders of images and videos: (time, row, column) of each token.

    Finds the parts of each row and places them as `multimodal_positions` does. With `following="side"`, these are the
    positions that `get_rope_index` of transformers 5 gives Qwen2-VL, Qwen2.5-VL, Qwen3-VL, GLM-4V and their relatives.

    The next text position of each row is `positions.max((-2, -1)) + 1` in all three coordinates. The `rope_deltas` of
    transformers are this minus the number of tokens, `mask.sum(-1)`.

    Args:
      tokens: token ids, integers of shape (length,) or (batch, length), known on the host. The `mm_token_type_ids` of a
        processor of transformers serve as well, with 1 for `image_token` and 2 for `video_token`. GLM-4V needs them,
        because it has one placeholder for images and videos.
      image_token: the placeholder of images; `None` if there is none.
      video_token: the placeholder of videos; `None` if there is none.
      image_grids: (time, height, width) of all images of the batch in their order, in patches before the model merges
        them: the processor's `image_grid_thw`.
      video_grids: the same for videos: `video_grid_thw`. The placeholders of a video are one run, as in Qwen2-VL, or
        one run for each of its `time` frames, with timestamps between them, as in Qwen3-VL.
      video_steps: Δ of each video, as for `multimodal_positions`; `None` means 1. For Qwen2.5-VL, `tokens_per_second`
        times the processor's `second_per_grid_ts` in float32, or `tokens_per_second` without it.
      spatial_merge_size: the model merges squares of this side into one token.
      mask: marks tokens, as for `positions_from_mask`, with the shape of `tokens`. Padding, on any side, is at 0.
      following: where the part after a grid starts, as for `multimodal_positions`.

    Returns:
      An int32 array of shape (length, 3) or (batch, length, 3), for `multi_section`.

    Raises:
      TypeError: if tokens or mask are traced or of another dtype, or grids are not sequences of integers.
      ValueError: if a run of placeholders does not have the tokens of its grid, if a run has no grid or a grid no run,
        if spatial_merge_size does not divide a grid, if there is not one step for each video, if a video whose frames
        are apart has a step other than 1, if both placeholders are equal, or if a position is beyond int32.

    Examples:
      >>> import numpy as np
      >>> import posenc_jax as pe
      >>> tokens = np.array([5, 9, 9, 9, 9, 6])
      >>> pe.positions_from_tokens(tokens, image_token=9, image_grids=[(1, 4, 4)]).tolist()
      [[0, 0, 0], [1, 1, 1], [1, 1, 2], [1, 2, 1], [1, 2, 2], [3, 3, 3]]

    Reference:
      Wang et al., "Qwen2-VL", 2024, section 2.1; Bai et al., "Qwen3-VL", 2025, for timestamps between frames.
    """
    _checks.one_of("following", following, ("maximum", "side"))
    tokens = _known("tokens", _checks.array("tokens", tokens, _checks.INTEGERS))
    require(tokens.ndim in (1, 2), "tokens must have shape (length,) or (batch, length), got {}", tokens.shape)
    kept = np.ones(tokens.shape, bool) if mask is None else _known("mask", parse_mask(mask)) != 0
    require(kept.shape == tokens.shape, "mask must have the shape of tokens, {}, got {}", tokens.shape, kept.shape)
    kinds = _kinds(tokens, image_token, video_token)
    merge = _checks.positive_int("spatial_merge_size", spatial_merge_size)
    images = _parse_grids("image_grids", image_grids, merge, None)
    videos = _parse_grids("video_grids", video_grids, merge, video_steps)
    positions = np.zeros((*tokens.shape, 3), np.int32)
    for row in np.ndindex(tokens.shape[:-1]):
        positions[row][kept[row]] = _placed(_parts(row, kinds[row], kept[row], images, videos), following)
    for grid in (*images, *videos):
        require(False, "{} must have {} placeholders in tokens, got none", grid.name, grid.tokens)
    return jnp.asarray(positions)


# Parts: the length of a text, or a grid


class _Grid(NamedTuple):
    """An image, a video or a frame, in tokens, and Δ."""

    name: str
    time: int
    height: int
    width: int
    step: float

    @property
    def tokens(self) -> int:
        return self.time * self.height * self.width


def _parse_part(name: str, part: Any) -> int | _Grid:
    """A length, or (time, height, width) with or without Δ."""
    if isinstance(part, (int, np.integer)):
        return _countable(name, _checks.positive_int(name, part))
    numbers = _checks.sequence(name, part, "numbers, or an integer")
    require(len(numbers) in (3, 4), "{} must be a length, (time, height, width) or these and Δ, got {!r}", name, part)
    time, height, width = (_checks.positive_int(f"{name}[{i}]", n) for i, n in enumerate(numbers[:3]))
    step = _checks.positive_float32(f"{name}[3]", numbers[3]) if len(numbers) == 4 else 1.0
    return _fitting(_Grid(name, time, height, width, step))


def _fitting(grid: _Grid) -> _Grid:
    """Checks a grid before the cast of its positions to integers, which would wrap."""
    _countable(grid.name, grid.tokens)
    last = (grid.time - 1) * grid.step
    require(last < LIMIT, "positions must fit into int32, got up to {:.15g}", last)
    return grid


def _countable(name: str, tokens: int) -> int:
    """Checks that int32 can count the tokens."""
    require(tokens < LIMIT, "{} must have fewer than 2³¹ tokens, got {}", name, tokens)
    return tokens


def _placed(parts: Sequence[int | _Grid], following: str) -> np.ndarray:
    """The positions of parts that follow one another."""
    pieces, start = [np.zeros((0, 3), np.int64)], 0
    for part in parts:
        positions, side = _of_grid(part) if isinstance(part, _Grid) else _of_text(part)
        pieces.append(positions + start)
        start = int(pieces[-1].max()) + 1 if following == "maximum" else start + side
    positions = np.concatenate(pieces)
    last = positions.max(initial=0)
    require(last < LIMIT, "positions must fit into int32, got up to {}", last)
    return positions.astype(np.int32)


def _of_text(length: int) -> tuple[np.ndarray, int]:
    """The positions of text that starts at 0, and its length."""
    return np.repeat(np.arange(length)[:, None], 3, axis=1), length


def _of_grid(grid: _Grid) -> tuple[np.ndarray, int]:
    """The positions of an image or video that starts at 0, and its longer side."""
    # In float32, as in the models, because rounding can carry a product across an integer.
    times = np.floor(np.arange(grid.time, dtype=np.float32) * np.float32(grid.step)).astype(np.int64)
    positions = np.stack(np.meshgrid(times, np.arange(grid.height), np.arange(grid.width), indexing="ij"), -1)
    return positions.reshape(-1, 3), max(grid.height, grid.width)


# Parts of a row of tokens


def _known(name: str, x: Any) -> np.ndarray:
    """An array whose values the host knows: they say how many tokens each part has."""
    require_type(not isinstance(x, Tracer), name, "known, not traced", x)
    return np.asarray(x)


def _kinds(tokens: np.ndarray, image_token: Any, video_token: Any) -> np.ndarray:
    """0 for text, 1 for images and 2 for videos."""
    kinds = np.zeros(tokens.shape, np.int8)
    for kind, name, value in ((1, "image_token", image_token), (2, "video_token", video_token)):
        if value is not None:
            same = tokens == int(_checks.array(name, _checks.integer(name, value)))
            require(
                name == "image_token" or value != image_token, "{} must differ from image_token, got {}", name, value
            )
            kinds[same] = kind
    return kinds


def _parse_grids(name: str, grids: Any, merge: int, steps: Any) -> deque[_Grid]:
    """The grids of a batch, in tokens."""
    items = _checks.sequence(name, np.asarray(grids) if isinstance(grids, jax.Array) else grids, "grids")
    steps = (1.0,) * len(items) if steps is None else _checks.sequence("video_steps", steps, "numbers")
    require(
        len(steps) == len(items), "video_steps must have {} numbers, as {} has, got {}", len(items), name, len(steps)
    )
    found = deque[_Grid]()
    for i, (item, step) in enumerate(zip(items, steps, strict=True)):
        sides = _checks.positive_ints(f"{name}[{i}]", item)
        fits = len(sides) == 3 and sides[1] % merge == sides[2] % merge == 0
        of = f"(time, height, width) with multiples of spatial_merge_size={merge} for height and width"
        require(fits, "{}[{}] must be {}, got {}", name, i, of, sides)
        step = _checks.positive_float32(f"video_steps[{i}]", step)
        found.append(_fitting(_Grid(f"{name}[{i}]", sides[0], sides[1] // merge, sides[2] // merge, step)))
    return found


def _parts(
    row: tuple[int, ...], kinds: np.ndarray, kept: np.ndarray, images: deque[_Grid], videos: deque[_Grid]
) -> list[int | _Grid]:
    """The parts of a row of tokens, whose grids it takes from the left of `images` and `videos`."""
    places = np.flatnonzero(kept)
    starts = np.flatnonzero(np.diff(kinds[places], prepend=-1))
    parts = []
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(places)], strict=False):
        first, last = places[[start, stop - 1]]
        kind, where = kinds[first], f"tokens[{', '.join(map(str, (*row, f'{first}:{last + 1}')))}]"
        length = stop - start
        parts.append(
            length
            if kind == 0
            else _take(length, where, "image" if kind == 1 else "video", images if kind == 1 else videos)
        )
    return parts


def _take(tokens: int, where: str, kind: str, grids: deque[_Grid]) -> _Grid:
    """The next grid, or the next frame of a video whose frames are apart, for a run of so many tokens."""
    require(grids, "{}_grids must have a grid for {}", kind, where)
    grid = grids.popleft()
    if kind == "video" and tokens == grid.height * grid.width < grid.tokens:
        apart = "video_steps must be 1 for {}, whose frames are apart in tokens, got {}"
        require(grid.step == 1, apart, grid.name, grid.step)
        frames = [grid._replace(name=f"frame {i} of {grid.name}", time=1) for i in range(grid.time)]
        grids.extendleft(frames[:0:-1])
        grid = frames[0]
    require(tokens == grid.tokens, "{} must have {} placeholders, got {} in {}", grid.name, grid.tokens, tokens, where)
    return grid
