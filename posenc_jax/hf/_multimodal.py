"""`positions_from_tokens`: a config.json and token ids → the positions of text, images and videos in one sequence."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from posenc_jax._jax import checks
from posenc_jax._jax.errors import invalid, public, require
from posenc_jax._positions import spans
from posenc_jax._positions.spans import Grid, Span, TokenRun
from posenc_jax.hf._multimodal_models import MULTIMODAL, REFUSED, THINKERS, Multimodal
from posenc_jax.hf._values import (
    Values,
    parse_config,
    parse_string_mapping,
    reject_refused,
)

TEXT, IMAGE, VIDEO, AUDIO = range(4)


@public
def positions_from_tokens(
    config: Any,
    tokens: ArrayLike,
    *,
    image_grids: Any = (),
    video_grids: Any = (),
    video_seconds: Sequence[float] | None = None,
    mask: ArrayLike | None = None,
) -> jax.Array:
    r"""Positions for M-RoPE from the token ids of a Hugging Face model: (time, row, column) of each token.

    These are the positions of the model's own `get_rope_index` in transformers 5.23.0. A token $(t, y, x)$ of a grid
    that starts at $s$ is at $(s + \tau_t, s + y, s + x)$; frame $t$ is at the time $\tau_t$.

    Examples:
      >>> import numpy as np
      >>> from posenc_jax.hf import positions_from_tokens
      >>> config = {"model_type": "qwen2_5_omni", "thinker_config": {}}
      >>> tokens = np.array([7, 151652, 151656, 151656, 151653, 8])
      >>> positions_from_tokens(
      ...     config, tokens, video_grids=[(2, 2, 2)], video_seconds=[2.0])[:, 0].tolist()
      [0, 1, 2, 52, 53, 54]

    Args:
      config: a parsed config.json, or an object whose to_dict() returns one, of the whole model; for the talker of an
        Omni model, its talker_config, with a model_type.
      tokens: concrete token ids, integers of shape (length,) or (batch, length). The model's processor writes them,
        with a placeholder for each token of an image or a video.
      image_grids: (time, height, width) of all images of the batch in their order, in patches before the model merges
        them: the processor's `image_grid_thw`. For GLM-Image, those of the prompt alone.
      video_grids: the same for videos: `video_grid_thw`.
      video_seconds: the seconds from one step of each video's grid to the next, for Qwen2.5-VL (`second_per_grid_ts`)
        and the Omni models (`video_second_per_grid`) alone.
      mask: marks tokens, as for `positions_from_mask`, with the shape of `tokens`. Padding, on any side, is at 0.

    Returns:
      An array of shape (length, 3) or (batch, length, 3), for the plan of `rotary_from_config`. It is int32, but
      float32 for Qwen3-Omni, whose frames may be between integers. The next text position of each row is
      `positions.max((-2, -1)) + 1` in all three coordinates.

    Raises:
      TypeError: if config is not a mapping, tokens or mask are traced or of another dtype, or grids are not sequences
        of integers.
      ValueError: if the model_type is not known or not read; if a run of placeholders does not have the tokens of its
        grid, or a run has no grid or a grid no run; if video_seconds are missing or not read; if a grid does not divide
        into tokens, or a position is beyond int32.

    Notes:
      - The config and its model_type determine the ids of placeholders, the number of patches of a token, the times
        $\tau_t$, whether a video is one run of placeholders or one for each frame, and the start of the text after a
        grid: $s + \max(\text{height}, \text{width})$ ("side" of `pe.positions_from_tokens`), or in Qwen2.5-Omni and
        Qwen3-Omni above all positions of the grid ("maximum").
      - In the Omni models, audio counts like text. The tokens of audio inside a video are interleaved with those of its
        frames; both count by themselves from the same start.
      - transformers 5.23.0 gives the talker of Qwen3-Omni no model_type: write "qwen3_omni_moe_talker".

    Reference:
      Hugging Face transformers 5.23.0: get_rope_index of the models' own modules.
    """
    config, facts = _model_of(config)
    tokens, is_token = spans.parse_tokens(tokens, mask)
    kinds = _kinds(config, facts, tokens)
    images, videos = _grids(config, facts, image_grids, video_grids, video_seconds)
    dtype = np.int64 if facts.whole_times else np.float32
    positions = np.zeros((*tokens.shape, 3), np.int32 if facts.whole_times else dtype)
    for row in np.ndindex(tokens.shape[:-1]):
        runs = list(spans.runs_of(row, kinds[row], is_token[row]))
        if facts.audio is None:
            spans_of_row = (_span_of(facts, run, images, videos) for run in runs)
        else:
            spans_of_row = _omni_spans(facts, runs, images, videos)
        positions[row][is_token[row]] = spans.positions_of(spans_of_row, dtype)
    spans.check_all_taken((*images, *videos))
    return jax.device_put(positions)


# The config


def _model_of(config: Any) -> tuple[Values, Multimodal]:
    """The part of a config that has the placeholders, and the facts of its model_type."""
    config, name = parse_config(config)
    if name is None:
        raise invalid("model_type is missing: it says how a model places images and videos")
    if name in THINKERS:
        key, name = "thinker_config", THINKERS[name]
        config = Values(parse_string_mapping(key, config.get_required(key)), key)
        inner_name = config.get("model_type", default=name)
        require(inner_name == name, "{}.model_type must be {!r}, got {!r:.60}", key, name, inner_name)
    reject_refused(name, REFUSED)
    if name not in MULTIMODAL:
        raise invalid(
            f"model_type {name!r:.60} is not known as a whole model with positions of several coordinates: if it "
            "places images and videos as a known type does, write that type in its place"
        )
    return config, MULTIMODAL[name]


def _token(config: Values, name: str, default: int) -> int:
    """A token id, which may also be called an index."""
    names = f"{name}_id", f"{name}_index"
    return checks.integer(config.spelling(*names), config.get(*names, default=default))


def _part(config: Values, name: str, key: str) -> Values:
    """The part `name` of a config that may have `key`, empty if it is missing; for "", the config itself."""
    result = config.get_mapping(name) if name else config
    result.reject_unknown([key], "this model", lambda other: False)
    return result


# Tokens and grids


def _kinds(config: Values, facts: Multimodal, tokens: np.ndarray) -> np.ndarray:
    """The kind of each token."""
    kinds, names = np.zeros(tokens.shape, np.int8), {}
    for kind, (name, default) in enumerate(
        {"image": facts.image, "video": facts.video, "audio": facts.audio}.items(), IMAGE
    ):
        if default is not None:
            token = _token(config, f"{name}_token", default)
            other = names.setdefault(token, name)
            require(other == name, "the token of {} must differ from that of {}, got {}", name, other, token)
            kinds[tokens == token] = kind
    if facts.video_edges:
        edges = zip(("video_start_token", "video_end_token"), facts.video_edges, strict=True)
        starts, ends = (np.cumsum(tokens == _token(config, *edge), -1) for edge in edges)
        kinds[(kinds == IMAGE) & (starts > ends)] = VIDEO
    return kinds


def _grids(
    config: Values, facts: Multimodal, image_grids: Any, video_grids: Any, video_seconds: Any
) -> tuple[deque[Grid], deque[Grid]]:
    """The grids of images and of videos, in tokens; of single frames, where these are separate."""
    merge, frames = (
        _part(config, facts.merge_part, name).get_integer(name, default=2) if name in facts.merge_keys else 1
        for name in ("spatial_merge_size", "temporal_merge_size")
    )
    images = spans.parse_grids("image_grids", image_grids, merge)
    videos = spans.parse_grids(
        "video_grids", video_grids, merge, video_seconds, steps_name="video_seconds", frames=frames
    )
    if facts.video is None and not facts.video_edges:
        require(not videos, "video_grids must be empty: the model takes no videos, got {}", len(videos))
    if facts.rate:
        missing = "video_seconds must be given: the times of frames depend on them"
        require(video_seconds is not None or not videos, missing)
        videos = [_with_times(config, facts, facts.rate, grid) for grid in videos]
    else:
        unread = "video_seconds must not be given: the model does not read them, got {!r:.60}"
        require(video_seconds is None, unread, video_seconds)
    if facts.separate_frames:
        videos = [frame for grid in videos for frame in spans.frames_of(grid)]
    return deque(images), deque(videos)


def _with_times(config: Values, facts: Multimodal, rate: tuple[str, str, int], grid: Grid) -> Grid:
    """The video with its step in positions instead of seconds."""
    part_name, name, default = rate
    part = _part(config, part_name, name)
    per_second = checks.positive_float32(part.label + name, part.get_number(name, default=default))
    if facts.seconds_first:
        return grid._replace(rate=per_second, whole=facts.whole_times).check_int32()
    step = per_second * float(np.float32(grid.step))  # the processor writes the seconds as float32
    step = checks.positive_float32(f"{part.label}{name} times the seconds of {grid.name}", step)
    return grid._replace(step=step).check_int32()


def _span_of(facts: Multimodal, run: TokenRun, images: deque[Grid], videos: deque[Grid]) -> Span:
    """A text, an image, a video or a frame."""
    if run.kind == TEXT:
        return spans.text(run.length)
    grid = spans.next_grid(images, "image", run) if run.kind == IMAGE else spans.next_grid(videos, "video", run)
    return grid.check(run.length, run.where).span(facts.following)


# Omni models: audio, and audio inside a video


def _omni_spans(facts: Multimodal, runs: list[TokenRun], images: deque[Grid], videos: deque[Grid]) -> Iterator[Span]:
    """The spans of a row.

    One token starts an image, a video or audio, and one ends it; two start and end a video with audio inside. These
    tokens are spans of their own, because the model rounds every sum of fractional positions.
    """
    groups = [list(group) for _, group in itertools.groupby(runs, lambda run: run.kind == TEXT)]
    edges = [0 if group[0].kind == TEXT else min(len(group), 2) for group in groups]
    for group, before, after in zip(groups, [0, *edges], [*edges[1:], 0], strict=False):
        if group[0].kind == TEXT:
            yield from _text_between(facts, group[0], before, after)
        elif len(group) > 1:
            yield _video_with_audio(facts, group, videos)
        elif group[0].kind == AUDIO:
            yield spans.text(group[0].length)._replace(extent=None)
        else:
            yield _span_of(facts, group[0], images, videos)


def _text_between(facts: Multimodal, run: TokenRun, ends: int, starts: int) -> list[Span]:
    """Text whose first tokens end what comes before, and whose last tokens start what follows."""
    needed = 2 * ((ends == 2) + (starts == 2))
    message = "{} must have two tokens that end, and two that start, a video with audio beside it"
    require(run.length >= needed, message, run.where)
    ends = min(ends, run.length)
    starts = min(starts, run.length - ends)
    first = [_SHARED] if ends == 2 and facts.edges_share_position else [spans.text(1)] * ends
    last = _SHARED if starts == 2 and facts.edges_share_position else spans.text(starts)
    return [*first, spans.text(run.length - ends - starts), last]


_SHARED = Span(np.zeros((2, 3), np.int64), 1)  # two tokens at one position


def _video_with_audio(facts: Multimodal, runs: list[TokenRun], videos: deque[Grid]) -> Span:
    """Frames and audio, each counted by itself; the next span starts above their last token."""
    where = f"{runs[0].where} to {runs[-1].where}"
    kinds = np.repeat([run.kind for run in runs], [run.length for run in runs])
    frames = kinds == VIDEO
    message = "{} must have text between placeholders, unless they are those of a video and its audio"
    require({run.kind for run in runs} == {VIDEO, AUDIO}, message, where)
    grid = spans.next_grid(videos, "video", runs[0]).check(int(frames.sum()), where)
    offsets = np.zeros((len(kinds), 3), np.int64 if facts.whole_times else np.float32)
    offsets[frames] = grid.span(facts.following).offsets
    offsets[~frames] = spans.text(int((~frames).sum())).offsets
    return Span(offsets, None, last=1)
