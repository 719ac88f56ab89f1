"""What one vision tower alone does: each quirk changes the plan that the tower's facts give.

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
from posenc_jax.hf._plan import RotaryLayer
from posenc_jax.hf._tower_config import TowerConfig, parse_count, value_of
from posenc_jax.hf._values import Values, agreed_value
from posenc_jax.hf._vision_plan import VisionPlan


def lfm3_vl(config: TowerConfig, plan: VisionPlan) -> VisionPlan:
    """Layers of convolutions, which layer_types lists, have no positions."""
    count = len(plan.layers)
    usual = ["conv" if i < 2 or i % 2 else "full_attention" for i in range(count)]
    types = config.get_list("layer_types")
    types = usual if types is None else types
    fits = len(types) == count and all(layer_type in ("conv", "full_attention") for layer_type in types)
    require(fits, "layer_types must hold {} times 'conv' or 'full_attention', got {!r:.60}", count, list(types))
    without = RotaryLayer(geometric(0), plan.layers[0].head_dim)
    layers = [without if layer_type == "conv" else layer for layer_type, layer in zip(types, plan.layers, strict=True)]
    return dataclasses.replace(plan, layers=tuple(layers))


def eomt(config: TowerConfig, plan: VisionPlan) -> VisionPlan:
    """The last num_blocks layers hold num_queries learned queries in front, which do not rotate."""
    count, grid = len(plan.grids), plan.grids[0]
    blocks = parse_count(config, "num_blocks", 4, 0)
    queries = parse_count(config, "num_queries", 200)
    require(blocks <= count, "num_blocks must be at most {} layers, got {}", count, blocks)
    last = dataclasses.replace(grid, leading=grid.leading + queries)
    return dataclasses.replace(plan, grids=(grid,) * (count - blocks) + (last,) * blocks)


def sam3(config: TowerConfig, plan: VisionPlan) -> VisionPlan:
    """Positions within windows of window_size; layers of global_attn_indexes take those of the whole grid, scaled."""
    window = parse_count(config, "window_size", 24)
    (width, height), (patch_width, patch_height) = _pair(config, "image_size", 1008), _pair(config, "patch_size", 14)
    rows, columns = height // patch_height, width // patch_width
    require(rows and columns, "image_size must hold a patch, got {}", (width, height))
    indices = config.get_list("global_attn_indexes")
    indices = (7, 15, 23, 31) if indices is None else indices
    global_layers = {checks.integer(f"global_attn_indexes[{i}]", index, 0) for i, index in enumerate(indices)}
    layer, grid, count = plan.layers[0], plan.grids[0], len(plan.layers)
    scaled = dataclasses.replace(layer, frequencies=linear_scaling(layer.frequencies, columns / window))
    windowed, whole = dataclasses.replace(grid, inside=window), dataclasses.replace(grid, shapes=((rows, columns),))
    layers = tuple(scaled if i in global_layers else layer for i in range(count))
    grids = tuple(whole if i in global_layers else windowed for i in range(count))
    return dataclasses.replace(plan, layers=layers, grids=grids)


def llama4(config: TowerConfig, plan: VisionPlan) -> VisionPlan:
    """The tower takes image_size alone; a class token after the patches does not rotate."""
    side = _side(config, parse_count(config, "image_size", 448))
    return _with_grid(plan, trailing=1, shapes=((side, side),))


def sam2(config: TowerConfig, plan: VisionPlan) -> VisionPlan:
    """The memory attention; it takes a grid of memory_attention_rope_feat_sizes alone, or several such frames."""
    return _with_grid(plan, shapes=(_grid(config, "memory_attention_rope_feat_sizes", 64),))


def edgetam(config: TowerConfig, plan: VisionPlan) -> VisionPlan:
    """As for sam2_video; keys of a frame are latents at no position, then a grid of memory_attention_rope_k_sizes."""
    plan = sam2(config, plan)
    return _with_grid(plan, shapes=(*plan.grids[0].shapes, _grid(config, "memory_attention_rope_k_sizes", 16)))


def sam3_tracker(config: TowerConfig, plan: VisionPlan) -> VisionPlan:
    """The memory attention; it takes a grid of image_size / patch_size alone, or several such frames."""
    tower = config.get_mapping("vision_config").get_mapping("backbone_config")
    side = _side(tower, parse_count(config, "image_size", 1008))
    sizes = config.look_up("memory_attention_rope_feat_sizes")
    sizes = {name: checks.positive_ints(name, value) for name, value in sizes.items()}
    return _with_grid(plan, shapes=(agreed_value({"image_size / patch_size": (side, side)} | sizes),))


def gemma4(config: TowerConfig, plan: VisionPlan) -> VisionPlan:
    """Each half of a head rotates by itself."""
    return dataclasses.replace(plan, slices=2)


def video_llama3(config: TowerConfig, plan: VisionPlan) -> VisionPlan:
    """Squares of merge_size, which comes with each image, follow each other."""
    return _with_grid(plan, merge=0)


def efficientloftr(config: TowerConfig, plan: VisionPlan) -> VisionPlan:
    """All heads rotate as one; partial_rotary_factor must be half of their number."""
    hidden, heads = config.get_integer(*config.facts.hidden), config.get_integer("num_attention_heads")
    require(hidden % heads == 0, "{} = {} must be a multiple of {}", config.facts.hidden[0], hidden, heads)
    name = "partial_rotary_factor"
    for settings in (*config.settings, config):
        for key, value in (settings.look_up(name) or {f"{name}, where absent,": 4.0}).items():
            fits = checks.number(key, value) == heads / 2
            require(fits, "{} must be {}, half of the heads, got {}", key, heads / 2, value)
    return plan


QUIRKS: dict[str, Callable[[TowerConfig, VisionPlan], VisionPlan]] = {
    "edgetam_video": edgetam,
    "efficientloftr": efficientloftr,
    "eomt_dinov3": eomt,
    "gemma4_vision": gemma4,
    "lfm3_vl_vision": lfm3_vl,
    "llama4_vision_model": llama4,
    "sam2_video": sam2,
    "sam3_tracker_video": sam3_tracker,
    "sam3_vit_model": sam3,
    "video_llama_3_vision": video_llama3,
}


def _with_grid(plan: VisionPlan, **changes: Any) -> VisionPlan:
    """The plan with another grid, the same in all layers."""
    grid = dataclasses.replace(plan.grids[0], **changes)
    return dataclasses.replace(plan, grids=(grid,) * len(plan.grids))


def _side(config: Values, image: int) -> int:
    """The side of an image in patches."""
    side = image // parse_count(config, "patch_size", 14)
    require(side, "image_size must hold a patch, got {}", image)
    return side


def _grid(config: Values, name: str, default: int) -> tuple[int, int]:
    """(height, width), which the config has as width and height."""
    sides = checks.positive_ints(name, value_of(config, name, (default, default)))
    require(len(sides) == 2, "{} must hold a width and a height, got {}", name, sides)
    return sides[1], sides[0]


def _pair(config: Values, name: str, default: int) -> tuple[int, int]:
    """(width, height), which are one number if they are equal."""
    value = value_of(config, name, default)
    sides = checks.positive_ints(name, (value, value) if isinstance(value, int) else value)
    require(len(sides) == 2, "{} must be a number or a width and a height, got {!r:.60}", name, value)
    return sides[0], sides[1]
