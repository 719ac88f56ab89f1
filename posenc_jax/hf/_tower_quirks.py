"""What one vision tower alone does: each function changes the plan that the facts of its model_type give.

Its docstring says what is special: the site's table of towers shows it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from posenc_jax._frequencies.frequencies import geometric
from posenc_jax._frequencies.scalings import linear_scaling
from posenc_jax._jax import checks
from posenc_jax._jax.errors import require
from posenc_jax.hf._patches import parse_count
from posenc_jax.hf._plan import RotaryLayer
from posenc_jax.hf._tower_config import TowerConfig
from posenc_jax.hf._values import agreed_value
from posenc_jax.hf._vision_plan import VisionPlan


def lfm3_vl_vision(config: TowerConfig, plan: VisionPlan) -> VisionPlan:
    """Layers of convolutions, which layer_types lists, have no positions."""
    count = len(plan.layers)
    types = config.get_list("layer_types")
    if types is None:
        types = ["conv" if not i or i % 2 else "full_attention" for i in range(count)]
    fits = len(types) == count and all(layer_type in ("conv", "full_attention") for layer_type in types)
    require(fits, "layer_types must hold {} times 'conv' or 'full_attention', got {!r:.60}", count, types)
    without = RotaryLayer(geometric(0), plan.layers[0].head_dim)
    layers = [without if layer_type == "conv" else layer for layer_type, layer in zip(types, plan.layers, strict=True)]
    return dataclasses.replace(plan, layers=tuple(layers))


def eomt_dinov3(config: TowerConfig, plan: VisionPlan) -> VisionPlan:
    """The last num_blocks layers hold num_queries learned queries in front, which do not rotate."""
    count, blocks = len(plan.grids), config.count("num_blocks", 0)
    require(blocks <= count, "num_blocks must be at most {} layers, got {}", count, blocks)
    last = dataclasses.replace(plan.grids[0], leading=plan.grids[0].leading + config.count("num_queries"))
    return dataclasses.replace(plan, grids=plan.grids[blocks:] + (last,) * blocks)


def sam3_vit_model(config: TowerConfig, plan: VisionPlan) -> VisionPlan:
    """Positions within windows of window_size; layers of global_attn_indexes take those of the whole grid, scaled."""
    window, shape = config.count("window_size"), _grid_of(config)
    indices = checks.sequence("global_attn_indexes", config.value("global_attn_indexes"), "integers")
    indices = {checks.integer(f"global_attn_indexes[{i}]", index, 0) for i, index in enumerate(indices)}
    layer, grid = plan.layers[0], plan.grids[0]
    scaled = dataclasses.replace(layer, frequencies=linear_scaling(layer.frequencies, shape[1] / window))
    windowed, whole = dataclasses.replace(grid, inside=window), dataclasses.replace(grid, shapes=(shape,))
    is_global = [i in indices for i in range(len(plan.layers))]
    layers = tuple(scaled if x else layer for x in is_global)
    return dataclasses.replace(plan, layers=layers, grids=tuple(whole if x else windowed for x in is_global))


def llama4_vision_model(config: TowerConfig, plan: VisionPlan) -> VisionPlan:
    """The tower takes image_size alone; a class token after the patches does not rotate."""
    return _with_grid(plan, trailing=1, shapes=(_grid_of(config),))


def sam2_video(config: TowerConfig, plan: VisionPlan) -> VisionPlan:
    """The memory attention; it takes a grid of memory_attention_rope_feat_sizes alone, or several such frames."""
    return _with_grid(plan, shapes=(_height_and_width(config, "memory_attention_rope_feat_sizes"),))


def edgetam_video(config: TowerConfig, plan: VisionPlan) -> VisionPlan:
    """As for sam2_video; keys of a frame are latents at no position, then a grid of memory_attention_rope_k_sizes."""
    shapes = sam2_video(config, plan).grids[0].shapes
    return _with_grid(plan, shapes=(*shapes, _height_and_width(config, "memory_attention_rope_k_sizes")))


def sam3_tracker_video(config: TowerConfig, plan: VisionPlan) -> VisionPlan:
    """The memory attention; it takes a grid of image_size / patch_size alone, or several such frames."""
    tower = config.get_mapping("vision_config").get_mapping("backbone_config")
    tower = {**tower.values, "image_size": config.count("image_size"), "model_type": "sam3_vit_model"}
    shapes = {"image_size / patch_size": _grid_of(TowerConfig(tower))}
    for name in config.look_up("memory_attention_rope_feat_sizes"):
        shapes[name] = _height_and_width(config, name)
    return _with_grid(plan, shapes=(agreed_value(shapes),))


def gemma4_vision(config: TowerConfig, plan: VisionPlan) -> VisionPlan:
    """Each half of a head rotates by itself."""
    return dataclasses.replace(plan, slices=2)


def video_llama_3_vision(config: TowerConfig, plan: VisionPlan) -> VisionPlan:
    """Squares of merge_size, which comes with each image, follow each other."""
    return _with_grid(plan, merge=0)


def minimax_m3_vl_vision(config: TowerConfig, plan: VisionPlan) -> VisionPlan:
    """In published files position_embedding_type is "rope" and rope_mode is "3d"; no class reads them."""
    for name, usual in {"position_embedding_type": "rope", "rope_mode": "3d"}.items():
        checks.one_of(name, config.get(name, default=usual), (usual,))
    return plan


def efficientloftr(config: TowerConfig, plan: VisionPlan) -> VisionPlan:
    """All heads rotate as one; partial_rotary_factor must be half of their number."""
    heads, name = config.count("num_attention_heads"), "partial_rotary_factor"
    share = agreed_value(config.look_up(name) | config.settings.look_up(name), config.facts.rope[name])
    fits = 2 * checks.number(name, share) == heads
    require(fits, "{} must be half of num_attention_heads = {}, got {!r}", name, heads, share)
    return plan


QUIRKS: dict[str, Callable[[TowerConfig, VisionPlan], VisionPlan]] = {
    quirk.__name__: quirk
    for quirk in (
        edgetam_video,
        efficientloftr,
        eomt_dinov3,
        gemma4_vision,
        lfm3_vl_vision,
        llama4_vision_model,
        minimax_m3_vl_vision,
        sam2_video,
        sam3_tracker_video,
        sam3_vit_model,
        video_llama_3_vision,
    )
}


def _with_grid(plan: VisionPlan, **changes: Any) -> VisionPlan:
    """The plan with another grid, the same in all layers."""
    grid = dataclasses.replace(plan.grids[0], **changes)
    return dataclasses.replace(plan, grids=(grid,) * len(plan.grids))


def _grid_of(config: TowerConfig) -> tuple[int, int]:
    """The height and the width of image_size in patches."""
    image, patch = _height_and_width(config, "image_size"), _height_and_width(config, "patch_size")
    require(image[0] >= patch[0] and image[1] >= patch[1], "image_size must hold a patch, got {}", image)
    return image[0] // patch[0], image[1] // patch[1]


def _height_and_width(config: TowerConfig, name: str) -> tuple[int, int]:
    """(height, width), which a config has as width and height, or as one number if they are equal."""
    value = config.value(name)
    sides = (value, value) if isinstance(value, int) else checks.sequence(name, value, "a width and a height")
    require(len(sides) == 2, "{} must be a number or a width and a height, got {!r:.60}", name, value)
    return parse_count(name, sides[1], 1), parse_count(name, sides[0], 1)
