"""The positions that transformers' own functions give to rows of tokens with images and videos."""

import functools
import importlib
from types import SimpleNamespace

import numpy as np
import torch
from transformers import CONFIG_MAPPING, Glm4vProcessor, ProcessorMixin

TEXT, IMAGE, VIDEO = range(3)


@functools.cache
def model_class(name):
    """The class of a model_type that has get_rope_index."""
    part = name.partition("_thinker")[0].partition("_talker")[0]
    family = {"glmga": "glm46v"}.get(name, part)
    code = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    ends = name.rpartition("_")[2].title() + "ForConditionalGeneration" if part != name else "Model"
    own = (value for key, value in vars(code).items() if key.endswith(ends) and value.__module__ == code.__name__)
    return next(value for value in own if hasattr(value, "get_rope_index"))


def model_of(name, settings):
    """A model without weights: its positions need the config alone."""
    cls = model_class(name)
    model = cls.__new__(cls)
    torch.nn.Module.__init__(model)
    config_class = CONFIG_MAPPING[name] if name in CONFIG_MAPPING else cls.config_class
    model.config = config_class(**{key: value for key, value in settings.items() if key != "model_type"})
    if cls.__name__.endswith("ForConditionalGeneration"):
        own = getattr(model.config, "vision_config", model.config)
        model.spatial_merge_size = own.spatial_merge_size
    return model


def kinds_of(processor, tokens, image, video, start=-1, end=-1):
    """The mm_token_type_ids of a processor."""
    ids = {"image_token_ids": [image], "video_token_ids": [video], "audio_token_ids": [], "image_token_id": image}
    own = SimpleNamespace(**ids, video_start_id=start, video_end_id=end)
    return torch.tensor(np.array(processor.create_mm_token_type_ids(own, tokens)))


def optional(values):
    return torch.tensor(values) if values else None


def indexed(model, case, grids, **more):
    """The positions (batch, seq, coordinates), and how far behind them the next token is."""
    grids = {f"{kind}_grid_thw": optional(grid) for kind, grid in zip(("image", "video"), grids, strict=True)}
    mask = case["mask"] and torch.tensor(case["mask"])
    positions, deltas = model.get_rope_index(torch.tensor(case["tokens"]), **grids, attention_mask=mask, **more)
    return positions.permute(1, 2, 0), deltas


def by_config(case):
    """0 for padding."""
    name, model = case["config"]["model_type"], model_of(case["config"]["model_type"], case["config"])
    seconds, config = optional(case.get("video_seconds")), model.config
    if "audio_lengths" in case:
        more = {"use_audio_in_video": case["audio_in_video"], "audio_seqlens": optional(case["audio_lengths"])}
        more["second_per_grids"] = seconds
    elif name == "glm_image":
        starts = np.array(case["tokens"]) == config.image_start_token_id
        more = {"images_per_sample": torch.tensor(starts.sum(1))}
    else:
        ids = [getattr(config, f"{key}_token_id", -1) for key in ("image", "video", "video_start", "video_end")]
        glm = name.startswith("glm")
        more = {"mm_token_type_ids": kinds_of(Glm4vProcessor if glm else ProcessorMixin, case["tokens"], *ids)}
        more |= {} if seconds is None else {"second_per_grid_ts": seconds}
    positions, _ = indexed(model, case, (case["image_grids"], case["video_grids"]), **more)
    return {"positions": (positions * torch.tensor(case["mask"])[..., None]).tolist()}


def by_grids(case):
    """Of a config with a merge size and a rate alone."""
    tower = {"spatial_merge_size": case["spatial_merge_size"]}
    tower |= {"tokens_per_second": case["tokens_per_second"]} if "tokens_per_second" in case else {}
    kinds = case.get("mm_token_type_ids")
    kinds = torch.tensor(kinds) if kinds else kinds_of(ProcessorMixin, case["tokens"], 5, 6)
    seconds = case.get("second_per_grid_ts")
    more = {"second_per_grid_ts": torch.tensor(seconds)} if seconds is not None else {}
    grids = case["image_grid_thw"], case["video_grid_thw"]
    model = model_of(case["model"], {"vision_config": tower})
    positions, deltas = indexed(model, case, grids, mm_token_type_ids=kinds, **more)
    return {"positions": positions.tolist(), "rope_deltas": deltas.reshape(-1).tolist()}


def of_sequence(case):
    """Parts are a number of text tokens, or a grid after merging with the time between its steps if there are four."""
    kinds, grids, times = [], ([], []), []
    for part in case["parts"]:
        if isinstance(part, int):
            kinds += [TEXT] * part
            continue
        time, height, width = part[:3]
        kind = VIDEO if time > 1 else IMAGE
        grids[kind - 1].append([time, 2 * height, 2 * width])
        times += part[3:]
        kinds += [kind] * (time * height * width)
    more = {"second_per_grid_ts": torch.tensor(times)} if times else {}
    tower = {"spatial_merge_size": 2} | ({"tokens_per_second": 1} if times else {})
    model = model_of(case["model"], {"vision_config": tower})
    given = {"tokens": [[0] * len(kinds)], "mask": None}
    positions, delta = indexed(model, given, grids, mm_token_type_ids=torch.tensor([kinds]), **more)
    return {"positions": positions[0].tolist(), "delta": int(delta)}
