"""`positions_from_tokens`: a config.json and token ids → the positions of text, images and videos in one sequence."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from posenc_jax._jax import checks
from posenc_jax._jax.errors import public, require
from posenc_jax._positions import spans
from posenc_jax._positions.spans import Grid, Span, TokenRun
from posenc_jax.hf._multimodal_models import MULTIMODAL, REFUSED, THINKERS, Multimodal
from posenc_jax.hf._values import Values, parse_config, reject_refused

TEXT, IMAGE, VIDEO, AUDIO = range(4)
_KINDS = "text", "image", "video", "audio"
Grids = dict[str, deque[Grid]]  # of images and of videos


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

    They are the positions of the model's own `get_rope_index` in transformers 5.23.0. Token $(t, y, x)$ of an image or
    video that starts at $s$ is at $(s + \tau_t, s + y, s + x)$, where $\tau_t$ is the time of frame $t$.

    Examples:
      >>> import numpy as np
      >>> from posenc_jax.hf import positions_from_tokens
      >>> config = {"model_type": "qwen2_5_omni", "thinker_config": {}}
      >>> tokens = np.array([7, 151652, 151656, 151656, 151653, 8])
      >>> positions_from_tokens(
      ...     config, tokens, video_grids=[(2, 2, 2)], video_seconds=[2.0])[:, 0].tolist()
      [0, 1, 2, 52, 53, 54]

    Args:
      config: a parsed config.json of the whole model, or an object whose to_dict() returns one. For the talker of an
        Omni model, its talker_config, with a model_type.
      tokens: concrete token ids, integer array of shape (length,) or (batch, length). The model's processor writes one
        placeholder per token of an image or a video.
      image_grids: (time, height, width) of every image of the batch, in order, in patches before the model merges them:
        the processor's `image_grid_thw`. For GLM-Image, only images of the prompt.
      video_grids: (time, height, width) of every video, likewise: `video_grid_thw`.
      video_seconds: the seconds between consecutive steps of each video's grid, only for Qwen2.5-VL
        (`second_per_grid_ts`) and the Omni models (`video_second_per_grid`).
      mask: marks tokens, with the shape of `tokens`; see `positions_from_mask`. Padding, on any side, is at 0.

    Returns:
      An array of shape (length, 3) or (batch, length, 3), for the plan of `rotary_from_config`. It is int32, or float32
      for Qwen3-Omni, whose frames may be between integers.

    Raises:
      TypeError: if config is not a mapping, tokens or mask are traced or have a wrong dtype, or grids are not sequences
        of integers.
      ValueError: if the model_type is not known or not supported.
      ValueError: if the length of a run of placeholders does not match its grid, a run has no grid or a grid no run, a
        grid does not divide into tokens, or a position is beyond int32.
      ValueError: if video_seconds are missing, or given to a model that does not read them.

    Notes:
      - The next text position of each row is `positions.max((-2, -1)) + 1` in all three coordinates.
      - The config and its model_type determine the ids of placeholders, the number of patches per token, the times
        $\tau_t$, and whether a video is one run of placeholders or one run per frame.
      - The text after a grid starts at $s + \max(\text{height}, \text{width})$ ("side" in `pe.positions_from_tokens`).
        In Qwen2.5-Omni and Qwen3-Omni it starts above all positions of the grid ("maximum").
      - In the Omni models, audio is counted like text. Audio tokens inside a video are interleaved with the tokens of
        its frames. Both count separately from the same start.
      - transformers 5.23.0 gives the talker of Qwen3-Omni no model_type: write "qwen3_omni_moe_talker".

    Reference:
      Hugging Face transformers 5.23.0: get_rope_index of the models' own modules.
    """
    config, facts = _model_of(config)
    tokens, is_token = spans.parse_tokens(tokens, mask)
    kinds = _kinds(config, facts, tokens)
    grids = _grids(config, facts, image_grids, video_grids, video_seconds)
    dtype = np.int64 if facts.whole_times else np.float32
    positions = np.zeros((*tokens.shape, 3), np.int32 if facts.whole_times else dtype)
    for row in np.ndindex(tokens.shape[:-1]):
        runs = spans.runs_of(row, kinds[row], is_token[row])
        row_spans = _omni_spans(facts, runs, grids) if facts.omni else (_span_of(facts, run, grids) for run in runs)
        positions[row][is_token[row]] = spans.positions_of(row_spans, dtype)
    spans.check_all_taken(itertools.chain(*grids.values()))
    return jax.device_put(positions)


# The config


def _model_of(config: Any) -> tuple[Values, Multimodal]:
    """The part of a config that has the placeholders, and the facts of its model_type."""
    config, name = parse_config(config)
    require(name, "model_type is missing: it determines how a model places images and videos")
    if name in THINKERS:
        key, name = "thinker_config", THINKERS[name]
        config.get_required(key)
        config = config.get_mapping(key)
        inner_name = config.get("model_type", default=name)
        require(inner_name == name, "{}.model_type must be {!r}, got {!r:.60}", key, name, inner_name)
    reject_refused(name, REFUSED)
    message = (
        "model_type {!r:.60} is not known as a whole model with positions of several coordinates: if it places images "
        "and videos as a known type does, write that type in its place"
    )
    require(name in MULTIMODAL, message, name)
    return config, MULTIMODAL[str(name)]


def _setting(config: Values, part: str, key: str, default: int, parse: Callable[..., Any]) -> Any:
    """The value of a key in a part of a config, or for "" in the config itself."""
    values = config.get_mapping(part) if part else config
    values.reject_unknown([key], "this model", lambda other: False)
    return parse(values.label + key, values.get(key, default=default))


# Tokens and grids


def _kinds(config: Values, facts: Multimodal, tokens: np.ndarray) -> np.ndarray:
    """The kind of each token."""
    names = ("image", "video_start", "video_end") if facts.frames_as_images else _KINDS
    ids, kinds = {}, np.zeros(tokens.shape, np.int8)
    for name in names:
        if name in facts.tokens:
            keys = name + "_token_id", name + "_token_index"
            ids[name] = checks.integer(config.spelling(*keys), config.get(*keys, default=facts.tokens[name]))
            if name in _KINDS:
                kinds[tokens == ids[name]] = _KINDS.index(name)
    require(len({*ids.values()}) == len(ids), "the tokens must differ, got {}", ids)
    if facts.frames_as_images:
        starts, ends = (np.cumsum(tokens == ids[name], -1) for name in names[1:])
        kinds[(kinds == IMAGE) & (starts > ends)] = VIDEO
    return kinds


def _grids(config: Values, facts: Multimodal, image_grids: Any, video_grids: Any, video_seconds: Any) -> Grids:
    """The grids of images and of videos, in tokens; of single frames, where these are separate."""
    merge, frames = (
        _setting(config, facts.merge_part, key, 2, checks.positive_int) if key in facts.merge_keys else 1
        for key in ("spatial_merge_size", "temporal_merge_size")
    )
    images = spans.parse_grids("image_grids", image_grids, merge)
    videos = spans.parse_grids(
        "video_grids", video_grids, merge, video_seconds, steps_name="video_seconds", frames=frames
    )
    if not facts.rate:
        unread = "video_seconds must not be given: the model does not read them, got {!r:.60}"
        require(video_seconds is None, unread, video_seconds)
    elif videos:
        require(video_seconds is not None, "video_seconds must be given: the times of frames depend on them")
        rate = _setting(config, *facts.rate, checks.positive_float32)
        videos = [_with_times(facts, rate, grid) for grid in videos]
    if facts.separate_frames:
        videos = [frame for grid in videos for frame in spans.frames_of(grid)]
    return {"image": deque(images), "video": deque(videos)}


def _with_times(facts: Multimodal, rate: float, grid: Grid) -> Grid:
    """The video with its step in positions instead of seconds."""
    if facts.omni:
        grid = grid._replace(rate=rate, whole=facts.whole_times)
    else:
        step = rate * float(np.float32(grid.step))  # the processor writes the seconds as float32
        grid = grid._replace(step=checks.positive_float32("the rate times the seconds of " + grid.name, step))
    return grid.check_int32()


def _span_of(facts: Multimodal, run: TokenRun, grids: Grids) -> Span:
    """A text, an image, a video or a frame."""
    if run.kind == TEXT:
        return spans.text(run.length)
    kind = _KINDS[run.kind]
    grid = spans.next_grid(grids[kind], kind, run).check(run.length, run.where)
    return grid.span("maximum" if facts.omni else "side")


# Omni models: audio, and audio inside a video


def _omni_spans(facts: Multimodal, runs: Iterator[TokenRun], grids: Grids) -> Iterator[Span]:
    """The spans of a row.

    One token starts an image, a video or audio, and one ends it; two start and end a video with audio inside. These
    tokens are spans of their own, because the model rounds every sum of fractional positions.
    """
    groups = [(is_text, list(group)) for is_text, group in itertools.groupby(runs, lambda run: run.kind == TEXT)]
    edges = [0, *(min(len(group), 2) for _, group in groups), 0]
    for (is_text, group), before, after in zip(groups, edges, edges[2:], strict=False):
        yield from _text_between(facts, group[0], before, after) if is_text else [_media_span(facts, group, grids)]


def _text_between(facts: Multimodal, run: TokenRun, ends: int, starts: int) -> list[Span]:
    """Text whose first tokens end what comes before, and whose last tokens start what follows."""
    message = "{} must have two tokens that end, and two that start, a video with audio beside it"
    require(run.length >= 2 * [ends, starts].count(2), message, run.where)
    ends = min(ends, run.length)
    starts = min(starts, run.length - ends)
    first = [_SHARED] if ends == 2 and facts.edges_share_position else [spans.text(1)] * ends
    last = _SHARED if starts == 2 and facts.edges_share_position else spans.text(starts)
    return [*first, spans.text(run.length - ends - starts), last]


_SHARED = Span(np.zeros((2, 3)), 1)  # two tokens at one position


def _media_span(facts: Multimodal, runs: list[TokenRun], grids: Grids) -> Span:
    """An image, a video, audio, or a video with audio, each counted by itself; the next starts above the last token."""
    where = " to ".join(dict.fromkeys((runs[0].where, runs[-1].where)))
    kinds = {run.kind for run in runs}
    message = "{} must have text between placeholders, unless they are those of a video and its audio"
    require(len(runs) == 1 or kinds == {VIDEO, AUDIO}, message, where)
    is_audio = np.repeat([run.kind == AUDIO for run in runs], [run.length for run in runs])
    offsets, count = np.zeros((len(is_audio), 3)), int(is_audio.sum())
    offsets[is_audio] = spans.text(count).offsets
    for kind in kinds - {AUDIO}:
        run = TokenRun(kind, 0, len(is_audio) - count, where)
        offsets[~is_audio] = _span_of(facts, run, grids).offsets
    return Span(offsets, None, last=1)
