"""The positions that transformers' own functions give to rows of tokens with images and videos."""

import functools
from types import SimpleNamespace

import numpy as np
import torch
from embeddings import modeling
from transformers import CONFIG_MAPPING, Glm4vProcessor, ProcessorMixin


@functools.cache
def model_class(name):
    """The model class of a model_type, the one with a method get_rope_index."""
    family, *part = name.replace("glmga", "glm46v").replace("_talker", "_thinker").split("_thinker")
    ends = name.rpartition("_")[2].title() + "ForConditionalGeneration" if part else "Model"
    code = modeling(family)
    own = (cls for key, cls in vars(code).items() if key.endswith(ends) and cls.__module__ == code.__name__)
    return next(cls for cls in own if hasattr(cls, "get_rope_index"))


def model_of(name, settings):
    """A model without weights: its positions need the config alone."""
    cls = model_class(name)
    model = cls.__new__(cls)
    torch.nn.Module.__init__(model)
    config_class = CONFIG_MAPPING[name] if name in CONFIG_MAPPING else cls.config_class
    model.config = config_class(**{key: value for key, value in settings.items() if key != "model_type"})
    if cls.__name__.endswith("ForConditionalGeneration"):
        model.spatial_merge_size = getattr(model.config, "vision_config", model.config).spatial_merge_size
    return model


def kinds_of(processor, tokens, image, video, start=-1, end=-1):
    """The mm_token_type_ids that a processor makes of tokens; image, video, start and end are token ids."""
    ids = {"image_token_ids": [image], "video_token_ids": [video], "audio_token_ids": [], "image_token_id": image}
    own = SimpleNamespace(**ids, video_start_id=start, video_end_id=end)
    return torch.tensor(np.array(processor.create_mm_token_type_ids(own, tokens)))


def optional(values):
    """A tensor, or None if there are no values."""
    return torch.tensor(values) if values else None


def indexed(model, tokens, mask, images, videos, **more):
    """The positions (batch, seq, coordinates), and how far behind them the next token is."""
    grids = {"image_grid_thw": optional(images), "video_grid_thw": optional(videos)}
    positions, deltas = model.get_rope_index(torch.tensor(tokens), **grids, attention_mask=optional(mask), **more)
    return positions.permute(1, 2, 0), deltas


def hf_multimodal(case):
    """The positions of rows of tokens, 0 for padding."""
    name = case["config"]["model_type"]
    model, seconds = model_of(name, case["config"]), optional(case.get("video_seconds"))
    if "audio_lengths" in case:
        more = {"use_audio_in_video": case["audio_in_video"], "audio_seqlens": optional(case["audio_lengths"])}
        more["second_per_grids"] = seconds
    elif name == "glm_image":
        starts = np.array(case["tokens"]) == model.config.image_start_token_id
        more = {"images_per_sample": torch.tensor(starts.sum(1))}
    else:
        keys = "image", "video", "video_start", "video_end"
        ids = [getattr(model.config, f"{key}_token_id", -1) for key in keys]
        processor = Glm4vProcessor if name.startswith("glm") else ProcessorMixin
        more = {"mm_token_type_ids": kinds_of(processor, case["tokens"], *ids)}
        more |= {} if seconds is None else {"second_per_grid_ts": seconds}
    positions, _ = indexed(model, case["tokens"], case["mask"], case["image_grids"], case["video_grids"], **more)
    return {"positions": positions * torch.tensor(case["mask"])[..., None]}


def rope_index(case):
    """The positions by a config that has a merge size and tokens per second alone."""
    tower = {key: case[key] for key in ("spatial_merge_size", "tokens_per_second") if key in case}
    kinds = case.get("mm_token_type_ids")
    more = {"mm_token_type_ids": torch.tensor(kinds) if kinds else kinds_of(ProcessorMixin, case["tokens"], 5, 6)}
    more |= {key: torch.tensor(case[key]) for key in ["second_per_grid_ts"] if case.get(key) is not None}
    model, grids = model_of(case["model"], {"vision_config": tower}), (case["image_grid_thw"], case["video_grid_thw"])
    return {"positions": indexed(model, case["tokens"], case["mask"], *grids, **more)[0]}


def qwen_positions(case):
    """The positions of one row of parts: a number of text tokens, or a grid of tokens (time, height, width).

    A fourth item of a grid is the time between its steps.
    """
    kinds, images, videos, times = [], [], [], []
    for part in case["parts"]:
        if isinstance(part, int):
            kinds += [0] * part
            continue
        time, height, width = part[:3]
        (videos if time > 1 else images).append([time, 2 * height, 2 * width])
        times += part[3:]
        kinds += [2 if time > 1 else 1] * (time * height * width)
    more, tower = {"mm_token_type_ids": torch.tensor([kinds])}, {"spatial_merge_size": 2}
    if times:
        more["second_per_grid_ts"], tower["tokens_per_second"] = torch.tensor(times), 1
    model = model_of(case["model"], {"vision_config": tower})
    positions, delta = indexed(model, [[0] * len(kinds)], None, images, videos, **more)
    return {"positions": positions[0], "delta": int(delta)}
