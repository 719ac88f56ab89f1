"""`positions_from_tokens`: a config.json and token ids → the positions of text, images and videos in one sequence."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from posenc_jax import _checks, _parts
from posenc_jax._checks import InvalidValue, public, require
from posenc_jax._parts import Grid, Part, Run
from posenc_jax.hf._keys import Keys, agreed, mapping, mapping_of_strings
from posenc_jax.hf._multimodal_models import MULTIMODAL, REFUSED, THINKERS, Multimodal

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
    that starts at $s$ is at $(s + \tau_t, s + y, s + x)$. The config and its model_type say which ids are placeholders,
    how many patches become a token, the times $\tau_t$ of frames, whether a video is one run of placeholders or one for
    each frame, and where the part after a grid starts: at $s + \max(\text{height}, \text{width})$ ("side" of
    `pe.positions_from_tokens`), or in Qwen2.5-Omni and Qwen3-Omni above all positions of the grid ("maximum").

    In the Omni models, audio is like text. Where it is inside a video, its tokens and those of the video's frames stand
    among each other, and each counts on its own from one start.

    Args:
      config: a parsed config.json, or an object whose to_dict() returns one, of the whole model. For the talker of an
        Omni model, its talker_config.
      tokens: token ids, integers of shape (length,) or (batch, length), known on the host, as the model's processor
        writes them: with as many placeholders as an image or a video has tokens.
      image_grids: (time, height, width) of all images of the batch in their order, in patches before the model merges
        them: the processor's `image_grid_thw`. For GLM-Image, those of the prompt alone.
      video_grids: the same for videos: `video_grid_thw`.
      video_seconds: the seconds from one step of each video's grid to the next. They must be given with videos of
        Qwen2.5-VL (`second_per_grid_ts`) and of the Omni models (`video_second_per_grid`), and are not read by others.
      mask: marks tokens, as for `positions_from_mask`, with the shape of `tokens`. Padding, on any side, is at 0.

    Returns:
      An array of shape (length, 3) or (batch, length, 3), for the plan of `rotary_from_config`. It is int32, but
      float32 for Qwen3-Omni, whose frames may stand between whole positions. The next text position of each row is
      `positions.max((-2, -1)) + 1` in all three coordinates.

    Raises:
      TypeError: if config is not a mapping, tokens or mask are traced or of another dtype, or grids are not sequences
        of integers.
      ValueError: if the model_type is not known or not read; if a run of placeholders does not have the tokens of its
        grid, or a run has no grid or a grid no run; if video_seconds are missing or not read; if a grid does not divide
        into tokens, or a position is beyond int32.

    Examples:
      >>> import numpy as np
      >>> from posenc_jax.hf import positions_from_tokens
      >>> config = {"model_type": "qwen2_5_omni", "thinker_config": {}}
      >>> tokens = np.array([7, 151652, 151656, 151656, 151653, 8])
      >>> positions_from_tokens(
      ...     config, tokens, video_grids=[(2, 2, 2)], video_seconds=[2.0])[:, 0].tolist()
      [0, 1, 2, 52, 53, 54]

    Reference:
      Hugging Face transformers 5.23.0: get_rope_index of the models' own modules.
    """
    keys, facts = _model_of(config)
    tokens, kept = _parts.parse_tokens(tokens, mask)
    kinds = _kinds(keys, facts, tokens, kept)
    images, videos = _grids(keys, facts, image_grids, video_grids, video_seconds)
    dtype = np.int64 if facts.whole else np.float32
    positions = np.zeros((*tokens.shape, 3), np.int32 if facts.whole else dtype)
    for row in np.ndindex(tokens.shape[:-1]):
        runs = list(_parts.runs_of(row, kinds[row], kept[row]))
        if facts.audio is None:
            parts = (_part_of(facts, run, images, videos) for run in runs)
        else:
            parts = _omni_parts(keys, facts, runs, tokens[row][kept[row]], images, videos)
        positions[row][kept[row]] = _parts.placed(parts, dtype)
    _parts.check_all_taken((*images, *videos))
    return jnp.asarray(positions)


# The config


def _model_of(config: Any, label: str = "config") -> tuple[Keys, Multimodal]:
    """The keys of the part of a config that has the placeholders, and the facts of its model_type."""
    if not isinstance(config, type) and callable(getattr(config, "to_dict", None)):
        with _checks.callback():
            config = config.to_dict()
    keys = Keys(mapping_of_strings(label, config, "a mapping or have to_dict()"))
    name = keys.string("model_type")
    if name in THINKERS:
        thinker = Keys(mapping_of_strings("thinker_config", keys.need("thinker_config")), "thinker_config")
        inner, name = thinker.string("model_type"), THINKERS[name]
        fits = inner in (None, name)
        require(fits, "thinker_config.model_type must be {!r}, got {!r:.60}", name, inner)
        keys = thinker
    if name in REFUSED:
        raise InvalidValue(f"model_type {name!r} is not read: {REFUSED[name]}")
    if name not in MULTIMODAL:
        raise InvalidValue(
            f"model_type {name!r} is not known as that of a whole model that gives images and videos positions of "
            "several coordinates: if it does as a known type does, write that type in its place"
        )
    return keys, MULTIMODAL[name]


def _token(keys: Keys, name: str, default: int | None) -> int:
    """A token id, which may also be called an index."""
    names = f"{name}_id", f"{name}_index"
    return _checks.integer(keys.spelled(*names), agreed(keys.found(*names), default, missing=keys.label + names[0]))


def _part(keys: Keys, name: str) -> Keys:
    """A mapping within a config, which may be missing; the config itself if it has no name."""
    return Keys(mapping(keys.label + name, keys.get(name, default={})), keys.label + name) if name else keys


def _count(keys: Keys, part: str, name: str, default: int) -> int:
    """The value of a key that counts something."""
    d = _part(keys, part)
    return _checks.positive_int(d.label + name, d.get(name, default=default))


# Tokens and grids


def _kinds(keys: Keys, facts: Multimodal, tokens: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """What each token is."""
    kinds, image = np.zeros(tokens.shape, np.int8), _token(keys, "image_token", facts.image)
    kinds[tokens == image] = IMAGE
    named = {"video": (VIDEO, facts.video), "audio": (AUDIO, facts.audio)}
    taken = {image: "image_token_id"}
    for name, (kind, default) in named.items():
        if default is not None:
            token = _token(keys, f"{name}_token", default)
            message = "{}_token_id must differ from {}, got {}"
            require(token not in taken, message, keys.label + name, taken.get(token), token)
            taken[token] = f"{name}_token_id"
            kinds[tokens == token] = kind
    if facts.enclosed:
        names = zip(("video_start_token", "video_end_token"), facts.enclosed, strict=True)
        start, end = (np.cumsum(kept & (tokens == _token(keys, *name)), -1) for name in names)
        kinds[(kinds == IMAGE) & (start > end)] = VIDEO
    return kinds


def _grids(
    keys: Keys, facts: Multimodal, image_grids: Any, video_grids: Any, video_seconds: Any
) -> tuple[deque[Grid], deque[Grid]]:
    """The grids of images and of videos, in tokens; of frames, where these are apart."""
    merge = 1 if facts.merged is None else _count(keys, facts.merged, "spatial_merge_size", 2)
    frames = _count(keys, "vision_config", "temporal_merge_size", facts.frames) if facts.frames else 1
    images = _parts.parse_grids("image_grids", image_grids, merge)
    videos = _parts.parse_grids(
        "video_grids", video_grids, merge, video_seconds, steps_name="video_seconds", frames=frames
    )
    if facts.rate is None:
        require(
            video_seconds is None,
            "video_seconds must not be given: the model does not read them, got {!r:.60}",
            video_seconds,
        )
        videos = [grid._replace(step=1.0) for grid in videos]
    else:
        where, name, default = facts.rate
        d = _part(keys, where)
        rate = _checks.positive(d.label + name, d.number(name, default))
        missing = "video_seconds must be given: the times of frames depend on them"
        require(video_seconds is not None or not videos, missing)
        videos = [grid._replace(times=_times(facts, grid, rate)).fitting() for grid in videos]
        if facts.audio is not None:  # an image is a video of one second a frame
            images = [grid._replace(times=_times(facts, grid, rate)).fitting() for grid in images]
    if facts.video is None and facts.enclosed is None:
        require(not videos, "video_grids must be empty: the model takes no videos, got {}", len(videos))
    if facts.apart:
        videos = [frame for grid in videos for frame in _parts.frames_of(grid)]
    return deque(images), deque(videos)


def _times(facts: Multimodal, grid: Grid, rate: float) -> np.ndarray:
    """The times of a video's frames; the order of roundings can carry a product across an integer."""
    t, seconds, rate = np.arange(grid.time, dtype=np.float32), np.float32(grid.step), np.float32(rate)
    times = t * seconds * rate if facts.seconds_first else t * (rate * seconds)
    require(times[-1] < _parts.LIMIT, "positions must fit into int32, got up to {:.15g}", times[-1])
    return np.floor(times).astype(np.int64) if facts.whole else times


def _part_of(facts: Multimodal, run: Run, images: deque[Grid], videos: deque[Grid]) -> Part:
    """A text, an image, a video or a frame."""
    if run.kind == TEXT:
        return _parts.text(run.length)
    grid = _parts.next_grid(images, "image", run) if run.kind == IMAGE else _parts.next_grid(videos, "video", run)
    return grid.check(run.length, run.where).part(facts.following)


# Omni models: audio, and audio inside a video


def _omni_parts(
    keys: Keys, facts: Multimodal, runs: list[Run], tokens: np.ndarray, images: deque[Grid], videos: deque[Grid]
) -> Iterator[Part]:
    """The parts of a row.

    The model's code counts on from the tokens that start or end an image, a video or audio. They are parts of their own
    here, so that each sum is rounded as in that code where positions are not whole.
    """
    edge, ends = 0, 0
    for span in _spans(runs):
        starts = 1 if len(span) == 1 else 2  # a video with audio has two start tokens and two end tokens
        if starts == 2:
            _check_starts(keys, span, tokens)
        yield from _text_between(facts, span[0].start - edge, ends, starts, span[0].where)
        yield (
            _part_of_video_with_audio(facts, span, videos)
            if starts == 2
            else _part_alone(facts, span[0], images, videos)
        )
        edge, ends = span[-1].stop, starts
    where = runs[-1].where if runs else ""
    yield from _text_between(facts, len(tokens) - edge, ends, 0, where)


def _spans(runs: list[Run]) -> Iterator[list[Run]]:
    """The runs of placeholders, those together that no text separates."""
    for is_text, span in itertools.groupby(runs, lambda run: run.kind == TEXT):
        if not is_text:
            yield list(span)


def _check_starts(keys: Keys, span: list[Run], tokens: np.ndarray) -> None:
    """Raises unless placeholders that no text separates are those of one video and its audio."""
    where, kinds = f"{span[0].where} to {span[-1].where}", {run.kind for run in span}
    require(kinds == {VIDEO, AUDIO}, "{} must have text between placeholders of an image and others", where)
    wanted = [
        _token(keys, name, default) for name, default in (("vision_start_token", 151652), ("audio_start_token", 151647))
    ]
    found = tokens[max(span[0].start - 2, 0) : span[0].start].tolist()
    message = "{} must follow the start tokens of a video with audio, {}, got {}"
    require(found == wanted, message, where, wanted, found)


def _text_between(facts: Multimodal, length: int, ends: int, starts: int, where: str) -> Iterator[Part]:
    """Text between placeholders, of which the first so many tokens end what is before and the last start what follows."""
    needed = (ends if ends == 2 else 0) + (starts if starts == 2 else 0)
    require(length >= needed, "{} must have two tokens that end a video with audio before it", where)
    ends = min(ends, length)
    starts = min(starts, length - ends)
    if ends == 2 and facts.starts_shared:
        yield _SHARED
    else:
        yield from [_parts.text(1)] * ends
    yield _parts.text(length - ends - starts)
    yield _SHARED if starts == 2 and facts.starts_shared else _parts.text(starts)


_SHARED = Part(np.zeros((2, 3), np.int64), 1)  # two tokens at one position


def _part_alone(facts: Multimodal, run: Run, images: deque[Grid], videos: deque[Grid]) -> Part:
    """An image, a video, or audio, which is like text."""
    if run.kind == AUDIO:
        return _parts.text(run.length)._replace(extent=None)
    return _part_of(facts, run, images, videos)


def _part_of_video_with_audio(facts: Multimodal, span: list[Run], videos: deque[Grid]) -> Part:
    """Frames and audio, each of which counts on its own; what follows starts above the last of their tokens."""
    kinds = np.repeat([run.kind for run in span], [run.length for run in span])
    grid = _parts.next_grid(videos, "video", span[0])
    grid.check(int((kinds == VIDEO).sum()), f"{span[0].where} to {span[-1].where}")
    frames = grid.part(facts.following).offsets
    offsets = np.zeros((len(kinds), 3), frames.dtype)
    offsets[kinds == VIDEO] = frames
    offsets[kinds == AUDIO] = _parts.text(int((kinds == AUDIO).sum())).offsets
    return Part(offsets, None, last=1)
