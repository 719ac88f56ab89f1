"""Small vision towers of every type, run forward, with a record of the queries and keys that their layers attend with.

The attention that records returns zeros. A pass at rest, in which all cosines are 1 and all sines 0, records queries and
keys before their rotation; a second pass records them after it.
"""

import contextlib
import functools
import importlib
import inspect
import math
from typing import NamedTuple

import numpy as np
import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from helpers.towers import LATENT_GRID, LATENTS, OBJECTS, memory_of, positions_of
from posenc_jax import hf

# Two images, or an image and a video of three frames, (time, height, width) in patches.
PACKED = ((1, 4, 6), (3, 6, 2))
IMAGES = ((1, 4, 6), (1, 6, 2))
VIDEOS = ((2, 4, 6), (2, 6, 2))
WIDE = ((1, 6, 10), (2, 10, 4))  # more than a window
ONE_SIZE = ((1, 3, 5),)  # a batch of two
_PACKED = {"hidden_size": 64, "num_heads": 2, "depth": 3, "intermediate_size": 32, "out_hidden_size": 32}
_PACKED |= {"patch_size": 2, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
_LAYERS = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 32}
_DINO = _LAYERS | {"patch_size": 2, "image_size": 8, "num_register_tokens": 3}
_MEMORY = {
    "memory_attention_hidden_size": 64,
    "memory_attention_num_layers": 2,
    "memory_attention_num_attention_heads": 2,
    "memory_attention_feed_forward_hidden_size": 32,
    "memory_attention_mlp_hidden_size": 32,
    "memory_encoder_output_channels": 64,
}


class Case(NamedTuple):
    """A small tower: settings, images, and how its model is made and called."""

    settings: dict
    images: tuple = PACKED
    call: str = "grids"
    make: str = ""  # a class of the module


CASES = {
    **dict.fromkeys(
        "cohere_compass_vision ernie4_5_vl_moe_vision glm5_next_vision glm_ocr_vision "
        "qwen3_5_moe_vision qwen3_5_vision qwen3_omni_moe_vision_encoder qwen3_vl_moe_vision qwen3_vl_vision "
        "qwen4_exp_vision".split(),
        Case(_PACKED | {"image_size": 8}),
    ),
    **dict.fromkeys(["glm4v_moe_vision", "glm4v_vision"], Case(_PACKED | {"image_size": 8}, IMAGES)),
    "qwen2_vl_vision": Case({"embed_dim": 64, "hidden_size": 32, "num_heads": 2, "depth": 3, "patch_size": 2}),
    **dict.fromkeys(
        ["qwen2_5_omni_vision_encoder", "qwen2_5_vl_vision", "exaone4_5_vision"],
        Case(_PACKED | {"window_size": 8, "fullatt_block_indexes": [1], "num_key_value_heads": 1}, WIDE),
    ),
    "dots3_note_vision_encoder": Case(
        _LAYERS | {"patch_size": 2, "adapter_in_dim": 64, "adapter_out_dim": 32, "mlp_layer_types": ["dense"] * 3}
    ),
    "lfm3_vl_vision": Case(_LAYERS | {"patch_size": 2, "num_key_value_heads": 1, "num_hidden_layers": 5}),
    "paddleocr_vl_vision": Case(_LAYERS | {"patch_size": 2, "image_size": 8}, call="paddle"),
    "video_llama_3_vision": Case(_LAYERS | {"patch_size": 2}, call="merge_sizes"),
    "mlcd_vision_model": Case(_LAYERS | {"patch_size": 2, "image_size": 8}, ONE_SIZE, "pixels"),
    "step3p5_vision": Case(
        _LAYERS | {"patch_size": 2, "image_size": 8, "max_position_embeddings": 16}, ONE_SIZE, "pixels"
    ),
    "kimi_k25_vision": Case(_LAYERS | {"patch_size": 2, "pos_emb_height": 8, "pos_emb_width": 8}, VIDEOS, "kimi"),
    **dict.fromkeys(
        ["muse_glimmer_vision", "muse_spark_vision"],
        Case(
            _LAYERS | {"patch_size": 2, "pos_emb_height": 3, "pos_emb_width": 3, "max_position_embeddings": 9},
            WIDE,
            "muse",
        ),
    ),
    "inkling2_vision": Case(_LAYERS | {"patch_size": 2, "posemb_grid_size": 4, "text_hidden_size": 32}, call="inkling"),
    "llama4_vision_model": Case(
        _LAYERS
        | {"patch_size": 2, "image_size": 8, "projector_input_dim": 32, "projector_output_dim": 32}
        | {"intermediate_size": 256},
        ((1, 4, 4),),
        "pixels",
    ),
    "sam3_vit_model": Case(
        _LAYERS
        | {"patch_size": 2, "image_size": [12, 8], "pretrain_image_size": 8, "window_size": 3}
        | {"global_attn_indexes": [1]},
        ((1, 4, 6),),
        "pixels",
    ),
    "gemma4_vision": Case(
        _LAYERS | {"patch_size": 2, "num_key_value_heads": 2, "position_embedding_size": 16},
        ((1, 3, 6),),
        "gemma",
    ),
    "pixtral": Case(_LAYERS | {"patch_size": 2, "image_size": 16}, ((1, 3, 5), (1, 6, 2)), "pixtral"),
    "minimax_m3_vl_vision": Case(_LAYERS | {"patch_size": 2}),
    "dinov3_vit": Case(_DINO, ONE_SIZE, "pixels", "ViTModel"),
    "sapiens2": Case(_DINO | {"num_key_value_heads_per_layer": [2, 1, 2]}, ONE_SIZE, "pixels", "Sapiens2Model"),
    "eomt_dinov3": Case(
        _DINO | {"num_queries": 4, "num_blocks": 1}, ((1, 2, 8),), "pixels", "ForUniversalSegmentation"
    ),
    "sam2_video": Case(
        _MEMORY | {"memory_attention_rope_feat_sizes": [5, 3]}, ((1, 3, 5),), "memory", "Sam2VideoMemoryAttention"
    ),
    "sam3_tracker_video": Case(_MEMORY | {"image_size": 56}, ((1, 4, 4),), "memory", "Sam3TrackerVideoMemoryAttention"),
    "edgetam_video": Case(
        _MEMORY | {"memory_attention_rope_feat_sizes": [5, 3], "memory_attention_rope_k_sizes": [4, 2]},
        ((1, 3, 5),),
        "memory",
        "EdgeTamVideoMemoryAttention",
    ),
    "efficientloftr": Case(
        {"hidden_size": 64, "num_attention_layers": 4, "out_features": [16, 16, 32, 64], "num_attention_heads": 8},
        ONE_SIZE,
        "pair",
    ),
}

# Models


def settings_of(model_type):
    """The settings of a small tower that its class knows."""
    config_class = CONFIG_MAPPING[model_type]
    known = config_class().to_dict().keys() | config_class.attribute_map | {"image_size"}
    return {name: value for name, value in CASES[model_type].settings.items() if name in known}


def make_config(model_type):
    """The small config of a tower."""
    return CONFIG_MAPPING[model_type](**settings_of(model_type))


def _modeling_of(config):
    return importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))


def make_model(config):
    """A tower with weights from a fixed seed."""
    torch.manual_seed(0)
    modeling, wanted = _modeling_of(config), CASES[config.model_type].make
    config._attn_implementation = "record_towers"
    found = [
        value
        for name, value in vars(modeling).items()
        if inspect.isclass(value) and getattr(value, "__module__", "") == modeling.__name__
        if (name.endswith(wanted) if wanted else _is_model(name, value, config))
    ]
    model = found[0](config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.2)
    return model


def _is_model(name, value, config):
    fits = issubclass(value, PreTrainedModel) and value.config_class is type(config)
    return fits and name.endswith(("Model", "Encoder")) and not name.endswith("PreTrainedModel")


# Calls


def _grid(images):
    return torch.tensor(images)


def _patches(config, images, temporal):
    channels = getattr(config, "in_channels", None) or getattr(config, "num_channels", 3)
    count, side = sum(t * h * w for t, h, w in images), config.patch_size
    return torch.randn(count, channels * temporal * side * side)


def _pixels(config, images, count=2):
    (_, height, width), side = images[0], config.patch_size
    return torch.randn(count, 3, height * side, width * side)


def _call_grids(model, config, images):
    return model(_patches(config, images, getattr(config, "temporal_patch_size", 1)), grid_thw=_grid(images))


def _call_paddle(model, config, images):
    pixels = _patches(config, images, 1).reshape(1, -1, 3, config.patch_size, config.patch_size)
    return model(pixels, grid_thw=_grid(images))


def _call_merge_sizes(model, config, images):
    return model(_patches(config, images, 1), grid_thw=_grid(images), merge_sizes=torch.tensor([1, 2]))


def _call_kimi(model, config, images):
    pixels = _patches(config, images, 1).reshape(-1, 3, config.patch_size, config.patch_size)
    return model(pixels, grid_thw=_grid(images))


def _call_muse(model, config, images):
    return model(_patches(config, images, config.patch_temporal), grid_thw=_grid(images))


def _call_inkling(model, config, images):
    merge = config.spatial_merge_size
    grid = torch.tensor([(t, h // merge, w // merge) for t, h, w in images])
    side = merge * config.patch_size
    return model(torch.randn(int(grid.prod(-1).sum()), side, side, 3), image_grid_thw=grid)


def _call_pixels(model, config, images):
    return model(_pixels(config, images))


def _call_pair(model, config, images):
    _, height, width = images[0]
    scale = config.q_aggregation_stride * int(np.prod(config.stage_stride))
    return model(torch.rand(1, 2, 3, height * scale, width * scale))


def _call_pixtral(model, config, images):
    sizes = [(h * config.patch_size, w * config.patch_size) for _, h, w in images]
    height, width = (max(side) for side in zip(*sizes, strict=True))
    return model(torch.randn(len(images), 3, height, width), image_sizes=torch.tensor(sizes))


def _call_gemma(model, config, images):
    _, height, width = images[0]
    y, x = np.indices((height, width)).reshape(2, -1)
    at = torch.tensor(np.stack([x, y], -1))[None].expand(2, -1, -1)
    return model(torch.randn(2, height * width, 3 * config.patch_size**2), pixel_position_ids=at)


def _call_memory(model, config, images):
    _, height, width = images[0]
    edge = config.model_type == "edgetam_video"
    count, memory = height * width, 2 * (LATENTS + math.prod(LATENT_GRID) if edge else height * width)
    features, channels = config.memory_attention_hidden_size, config.memory_encoder_output_channels
    more = {"num_spatial_memory_tokens": 2} if edge else {}
    return model(
        torch.randn(count, 1, features),
        torch.randn(memory + OBJECTS, 1, channels),
        torch.randn(count, 1, features),
        torch.randn(memory + OBJECTS, 1, channels),
        num_object_pointer_tokens=OBJECTS,
        **more,
    )


# Records

_calls: dict[torch.nn.Module, list] = {}  # of the pass in progress


def _record(module, query, key, value, *args, **kwargs):
    """Attention that returns zeros."""
    _calls.setdefault(module, []).append((query.numpy(), key.numpy()))
    return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]), None


AttentionInterface.register("record_towers", _record)


def _stand_still(module, args, waves):
    """Cosines of 1 and sines of 0."""
    if isinstance(waves, tuple):
        return torch.ones_like(waves[0]), torch.zeros_like(waves[1])
    return torch.ones_like(waves)


class Passes(NamedTuple):
    """For each attention, queries and keys at rest and moved, (batch, heads, seq, features)."""

    rest: list
    moved: list
    names: list


@functools.cache
def passes(model_type):
    """Both passes of a tower."""
    config = make_config(model_type)
    model, call, images = make_model(config), CASES[model_type].call, CASES[model_type].images
    results = []
    for rest in (True, False):
        with contextlib.ExitStack() as stack:
            for module in model.modules():
                if rest and type(module).__name__.endswith(("RotaryEmbedding", "RopePositionEmbedding")):
                    stack.callback(module.register_forward_hook(_stand_still).remove)
            _calls.clear()
            torch.manual_seed(1)
            with torch.no_grad():
                globals()[f"_call_{call}"](model, config, images)
        results.append([[np.concatenate(x, 2) for x in zip(*parts, strict=True)] for parts in _calls.values()])
    names = {module: name for name, module in model.named_modules()}
    return Passes(*results, [names[module] for module in _calls])


# Comparisons


@functools.cache
def plan(model_type):
    """The plan of a small tower."""
    return hf.vision_rotary_from_config(make_config(model_type).to_dict())


def layers_of(model_type):
    """The index of the layer of each attention, by the names of the modules."""
    return [next(int(part) for part in name.split(".") if part.isdecimal()) for name in passes(model_type).names]


class Attention(NamedTuple):
    """What one attention has at rest and moved, (batch, heads, seq, features), its layer, and where it all is."""

    layer: int
    role: str
    rest: np.ndarray
    moved: np.ndarray
    positions: np.ndarray
    memory: bool  # keys of something else


def attentions(model_type, made):
    """Queries and keys of every attention of a tower that rotates."""
    rest, moved, _ = passes(model_type)
    layers = layers_of(model_type)
    twice = CASES[model_type].call in ("memory", "pair")  # attention to itself, then to something else
    for i, (before, after) in enumerate(zip(rest, moved, strict=True)):
        layer, images = layers[i], CASES[model_type].images
        positions = positions_of(made, model_type, images, layer)
        for role, x, y in zip(("query", "key"), before, after, strict=True):
            if model_type == "mlcd_vision_model":  # its class token turns by learned angles
                x, y = x[:, :, 1:], y[:, :, 1:]
            if CASES[model_type].call == "pair":
                if i % 2:
                    continue
                x, y = (z.swapaxes(1, 2).reshape(z.shape[0], 1, z.shape[2], -1) for z in (x, y))
            memory = bool(twice and i % 2) and role == "key"
            at = memory_of(made, model_type, images, layer) if memory else positions
            yield Attention(layer, role, x, y, at, memory)


def errors(model_type, change=lambda made: made):
    """The largest difference between a tower and its plan, of the largest feature, by layer and role."""
    made, result = change(plan(model_type)), {}
    for i, of in enumerate(attentions(model_type, made)):
        if of.positions.shape[0] != of.rest.shape[2]:
            return {"the number of tokens": np.inf}
        expected = made.rotate(of.rest, of.layer, of.positions, head_axis=-3)
        result[i, of.layer, of.role] = np.abs(expected - of.moved).max() / np.abs(of.moved).max()
    return result
