"""Random rows of tokens with images and videos, and the positions that transformers' own functions give them."""

import functools
import importlib
from types import SimpleNamespace

import numpy as np
import torch

PAD, VIDEO_START, VIDEO_END, START, END, IMAGE, VIDEO = range(7)
# What holds get_rope_index, whether a video's frames are apart, and whether frames have the placeholder of images.
MODELS = {
    "qwen2_vl": ("Qwen2VLModel", False, False),
    "qwen2_5_vl": ("Qwen2_5_VLModel", False, False),
    "qwen3_vl": ("Qwen3VLModel", True, False),
    "qwen3_vl_moe": ("Qwen3VLMoeModel", True, False),
    "qwen3_5": ("Qwen3_5Model", True, False),
    "glm4v": ("Glm4vModel", True, True),
    "glm4v_moe": ("Glm4vMoeModel", True, True),
    "paddleocr_vl": ("PaddleOCRVLModel", False, False),
}
SECONDS = [0.5, 1.0, 2.0, 2 / 3, 2 / 7, 0.083]


@functools.cache
def model_of(name, spatial_merge_size, tokens_per_second):
    """One without weights: its positions need the configuration alone."""
    cls = getattr(importlib.import_module(f"transformers.models.{name}.modeling_{name}"), MODELS[name][0])
    config = cls.config_class()
    config.vision_config.spatial_merge_size = spatial_merge_size
    config.vision_config.tokens_per_second = tokens_per_second
    model = cls.__new__(cls)
    torch.nn.Module.__init__(model)
    model.config = config
    return model


def kinds_of(name, tokens):
    """The mm_token_type_ids of the model's processor."""
    from transformers import Glm4vProcessor, ProcessorMixin

    cls = Glm4vProcessor if MODELS[name][2] else ProcessorMixin
    of = SimpleNamespace(
        image_token_ids=[IMAGE], video_token_ids=[VIDEO], audio_token_ids=[],
        image_token_id=IMAGE, video_start_id=VIDEO_START, video_end_id=VIDEO_END,
    )  # fmt: skip
    return np.array(cls.create_mm_token_type_ids(of, tokens.tolist()))


def row(rng, name, merge, grids):
    """The tokens of a row; appends the grids of its images and videos."""
    _, apart, one = MODELS[name]
    tokens, text = [], lambda most: rng.integers(10, 99, rng.integers(1, most)).tolist()
    for kind in rng.choice(["text", "image", "video"], rng.integers(1, 6)):
        if kind == "text":
            tokens += text(7)
            continue
        time = int(rng.integers(1, 6)) if kind == "video" else 1
        height, width = (int(n) for n in rng.integers(1, 5, 2))
        grids[kind].append([time, merge * height, merge * width])
        placeholder = VIDEO if kind == "video" and not one else IMAGE
        runs = time if apart and kind == "video" else 1
        run = [placeholder] * (time * height * width // runs)
        inner = [token for _ in range(runs) for token in [*text(4)[: runs - 1], START, *run, END]]
        tokens += [VIDEO_START, *inner, VIDEO_END] if one and kind == "video" else inner
    return tokens


def conversation(rng, name):
    """A batch, its grids and what the model makes of them; padded on the left, on the right, or not at all."""
    merge, rate, rows = int(rng.choice([1, 2, 3])), int(rng.choice([2, 4, 25])), int(rng.integers(1, 4))
    grids = {"image": [], "video": []}
    lists = [row(rng, name, merge, grids) for _ in range(rows)]
    length = max(map(len, lists)) + int(rng.integers(0, 3))
    tokens, mask = np.full((rows, length), PAD), np.zeros((rows, length), int)
    for i, (found, left) in enumerate(zip(lists, rng.integers(0, 2, rows), strict=True)):
        where = slice(length - len(found), None) if left else slice(len(found))
        tokens[i, where], mask[i, where] = found, 1
    whole = bool(mask.all())
    case = {"model": name, "tokens": tokens.tolist(), "mask": None if whole else mask.tolist()}
    case |= {"spatial_merge_size": merge, "image_grid_thw": grids["image"], "video_grid_thw": grids["video"]}
    if name == "qwen2_5_vl" and rng.integers(4):
        case |= {"second_per_grid_ts": rng.choice(SECONDS, len(grids["video"])).astype(np.float32).tolist()}
    if name == "qwen2_5_vl":
        case |= {"tokens_per_second": rate}
    kinds = kinds_of(name, tokens)
    if MODELS[name][2]:
        case["mm_token_type_ids"] = kinds.tolist()
    return case | theirs(case, kinds, rate)


def theirs(case, kinds, rate):
    images, videos = (
        torch.tensor(case[f"{kind}_grid_thw"]) if case[f"{kind}_grid_thw"] else None for kind in ("image", "video")
    )
    model = model_of(case["model"], case["spatial_merge_size"], rate)
    seconds = case.get("second_per_grid_ts")
    more = {} if seconds is None else {"second_per_grid_ts": torch.tensor(seconds)}
    mask = None if case["mask"] is None else torch.tensor(case["mask"])
    positions, delta = model.get_rope_index(
        torch.tensor(case["tokens"]), torch.tensor(kinds), images, videos, attention_mask=mask, **more
    )
    return {"positions": positions.permute(1, 2, 0).tolist(), "rope_deltas": delta.reshape(-1).tolist()}
