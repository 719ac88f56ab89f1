"""Positions of text, images and videos in one sequence, as int32."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np
from jax.typing import ArrayLike

from posenc_jax._jax import checks
from posenc_jax._jax.errors import public, require
from posenc_jax._positions import spans
from posenc_jax._positions.spans import FollowingRule, Grid, Span, TokenRun


@public
def multimodal_positions(
    parts: Sequence[int | Sequence[float]], *, following: Literal["maximum", "side"] = "maximum"
) -> jax.Array:
    r"""Positions for M-RoPE of text, images and videos in one sequence: (time, row, column) of each token.

    Each text token is 1 further in all three coordinates. Token $(t, y, x)$ of an image or video that starts at $s$ is
    at $(s + \lfloor t\Delta \rfloor,\ s + y,\ s + x)$. Its frames are $\Delta$ positions apart, 1 by default.

    Examples:
      >>> import posenc_jax as pe
      >>> pe.multimodal_positions([2, (1, 2, 2), 1]).tolist()
      [[0, 0, 0], [1, 1, 1], [2, 2, 2], [2, 2, 3], [2, 3, 2], [2, 3, 3], [4, 4, 4]]
      >>> pe.multimodal_positions([(3, 1, 1, 2.0)])[:, 0].tolist()
      [0, 2, 4]

    Args:
      parts: the parts of the sequence, in order. An integer is a number of text tokens. (time, height, width) is an
        image (time 1) or a video; the sides count tokens, that is, patches after the model merges them. (time, height,
        width, Δ) is a video whose frames are Δ positions apart.
      following: where the part after an image or video starts. "maximum": above every position so far, as in the papers
        and in the models' first code, and in transformers 5 for Qwen2.5-Omni and Qwen3-Omni. "side": at
        $s + \max(\text{height}, \text{width})$, as in transformers 5 for Qwen2-VL, Qwen2.5-VL, Qwen3-VL and GLM-4V.

    Returns:
      An int32 array of shape (length, 3), for `multi_section`.

    Raises:
      TypeError: if parts are not integers and sequences of numbers.
      ValueError: if a length or side is below 1, if Δ is not positive in float32, if a grid does not have three or four
        numbers, if following is unknown, or if a position is beyond int32.

    Notes:
      - The next token to decode is at `positions.max() + 1` in all three coordinates. Later tokens count up from there.
      - To batch sequences of different lengths, pad the positions with any value.
      - For Qwen2.5-VL, Δ is `tokens_per_second` times the seconds per frame. Δ and its product with t are float32.
        Qwen3-VL puts a timestamp before each frame, so each of its frames is a part with time 1.
      - "maximum" and "side" differ only after a video that spans more positions in time than in height and width. With
        "side", the text after such a video shares positions with its frames.

    Reference:
      Wang et al., "Qwen2-VL", 2024, section 2.1; Bai et al., "Qwen2.5-VL", 2025, section 2.1.2, for Δ.
    """
    checks.one_of("following", following, ("maximum", "side"))
    items = enumerate(checks.sequence("parts", parts, "integers and grids"))
    return jax.device_put(spans.positions_of([_parse_span(f"parts[{i}]", part, following) for i, part in items]))


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
    """Positions for M-RoPE from token ids with image and video placeholders: (time, row, column) of each token.

    The function finds the text, images and videos in each row. Their positions follow the formula of
    `multimodal_positions`.

    Examples:
      >>> import numpy as np
      >>> import posenc_jax as pe
      >>> tokens = np.array([5, 9, 9, 9, 9, 6])
      >>> pe.positions_from_tokens(tokens, image_token=9, image_grids=[(1, 4, 4)]).tolist()
      [[0, 0, 0], [1, 1, 1], [1, 1, 2], [1, 2, 1], [1, 2, 2], [3, 3, 3]]

    Args:
      tokens: token ids, concrete integer array of shape (length,) or (batch, length). Or the `mm_token_type_ids` of a
        transformers processor, with image_token=1 and video_token=2; GLM-4V needs them.
      image_token: the token id of image placeholders; `None` if there are no images.
      video_token: the token id of video placeholders; `None` if there are no videos.
      image_grids: (time, height, width) of every image of the batch, in order, in patches before the model merges them:
        the processor's `image_grid_thw`.
      video_grids: (time, height, width) of every video, likewise: `video_grid_thw`. The placeholders of a video form
        one run, as in Qwen2-VL, or one run per frame with timestamps in between, as in Qwen3-VL.
      video_steps: Δ of each video; see `multimodal_positions`. `None` means 1. For Qwen2.5-VL, pass `tokens_per_second`
        times the processor's `second_per_grid_ts` in float32, or `tokens_per_second` if there is no such value.
      spatial_merge_size: the side of the square of patches that the model merges into one token.
      mask: marks tokens, with the shape of `tokens`; see `positions_from_mask`. Padding, on any side, is at 0.
      following: where the text after a grid starts; see `multimodal_positions`. It depends on the model.

    Returns:
      An int32 array of shape (length, 3) or (batch, length, 3), for `multi_section`.

    Raises:
      TypeError: if tokens or mask are traced or have a wrong dtype, or grids are not sequences of integers.
      ValueError: if the length of a run of placeholders does not match its grid, if a run has no grid, or a grid has no
        run, or if spatial_merge_size does not divide a grid.
      ValueError: if there is not one step per video, or a video whose frames are separate runs has a step other than 1.
      ValueError: if both placeholders are equal, or a position is beyond int32.

    Notes:
      The next text position of each row is `positions.max((-2, -1)) + 1` in all three coordinates. The `rope_deltas` of
      transformers are this position minus the number of tokens, `mask.sum(-1)`.

    See Also:
      `posenc_jax.hf.positions_from_tokens` reads all settings from a model's config. Only that function supports the
      fractional frame positions of Qwen3-Omni, and audio whose tokens are interleaved with video frames.

    Reference:
      Wang et al., "Qwen2-VL", 2024, section 2.1; Bai et al., "Qwen3-VL", 2025, for timestamps between frames.
    """
    checks.one_of("following", following, ("maximum", "side"))
    tokens, is_token = spans.parse_tokens(tokens, mask)
    kinds = _kinds(tokens, image_token, video_token)
    merge = checks.positive_int("spatial_merge_size", spatial_merge_size)
    images = deque(spans.parse_grids("image_grids", image_grids, merge))
    videos = deque(spans.parse_grids("video_grids", video_grids, merge, video_steps))
    positions = np.zeros((*tokens.shape, 3), np.int32)
    for row in np.ndindex(tokens.shape[:-1]):
        runs = spans.runs_of(row, kinds[row], is_token[row])
        row_spans = (_span_of(run, images, videos, following) for run in runs)
        positions[row][is_token[row]] = spans.positions_of(row_spans)
    spans.check_all_taken((*images, *videos))
    return jax.device_put(positions)


def _parse_span(name: str, part: Any, following: FollowingRule) -> Span:
    """The span of a length, or of (time, height, width) with or without Δ."""
    if isinstance(part, (int, np.integer)):
        return spans.text(spans.countable(name, checks.positive_int(name, part)))
    numbers = checks.sequence(name, part, "numbers, or an integer")
    require(len(numbers) in (3, 4), "{} must be a length, (time, height, width) or these and Δ, got {!r}", name, part)
    time, height, width = (checks.positive_int(f"{name}[{i}]", n) for i, n in enumerate(numbers[:3]))
    step = checks.positive_float32(f"{name}[3]", numbers[3]) if len(numbers) == 4 else 1.0
    return Grid(name, time, height, width, step).check_int32().span(following)


def _kinds(tokens: np.ndarray, image_token: Any, video_token: Any) -> np.ndarray:
    """The kind of each token: 0 for text, 1 for images, 2 for videos."""
    kinds = np.zeros(tokens.shape, np.int8)
    for kind, name, value in ((1, "image_token", image_token), (2, "video_token", video_token)):
        if value is not None:
            matches = tokens == int(checks.array(name, checks.integer(name, value)))
            require(
                name == "image_token" or value != image_token, "{} must differ from image_token, got {}", name, value
            )
            kinds[matches] = kind
    return kinds


def _span_of(run: TokenRun, images: deque[Grid], videos: deque[Grid], following: FollowingRule) -> Span:
    """The span of a run: text, the next grid, or the next frame of a video whose frames are separate runs."""
    if run.kind == 0:
        return spans.text(run.length)
    grids = images if run.kind == 1 else videos
    grid = spans.next_grid(grids, "image" if run.kind == 1 else "video", run)
    if run.kind == 2 and run.length == grid.height * grid.width < grid.tokens:
        message = "video_steps must be 1 for {}, whose frames are separate runs of tokens, got {}"
        require(grid.step == 1, message, grid.name, grid.step)
        grid, *others = spans.frames_of(grid)
        grids.extendleft(reversed(others))
    return grid.check(run.length, run.where).span(following)
