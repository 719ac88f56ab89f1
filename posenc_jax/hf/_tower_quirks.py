"""What one vision tower alone does: each function gives the fields of the plan that the table of towers does not say.

Its docstring says what is special: the site's table of towers shows it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from posenc_jax._frequencies.frequencies import geometric
from posenc_jax._frequencies.scalings import linear_scaling
from posenc_jax._jax import checks
from posenc_jax._jax.errors import require
from posenc_jax.hf._tower_config import TowerConfig, height_and_width
from posenc_jax.hf._towers import TOWERS
from posenc_jax.hf._values import agreed_value
from posenc_jax.hf._vision_plan import VisionPlan

Fields = Mapping[str, Any]


def lfm3_vl_vision(config: TowerConfig, plan: VisionPlan) -> Fields:
    """Layers of convolutions, which layer_types lists, have no positions."""
    layer, *others = plan.layers
    types = config.get_list("layer_types")
    if types is None:
        types = ["conv", *("full_attention" if i % 2 else "conv" for i, _ in enumerate(others))]
    fits = len(types) == len(plan.layers) and all(each in ("conv", "full_attention") for each in types)
    message = "layer_types must hold {} times 'conv' or 'full_attention', got {!r:.60}"
    require(fits, message, len(plan.layers), types)
    without = dataclasses.replace(layer, frequencies=geometric(0))
    return {"layers": [without if each == "conv" else layer for each in types]}


def eomt_dinov3(config: TowerConfig, plan: VisionPlan) -> Fields:
    """The last num_blocks layers hold num_queries learned queries in front, which do not rotate."""
    count, blocks, grid = len(plan.grids), config.count("num_blocks", 0), plan.grids[0]
    require(blocks <= count, "num_blocks must be at most {} layers, got {}", count, blocks)
    last = dataclasses.replace(grid, leading=grid.leading + config.count("num_queries"))
    return {"grids": plan.grids[blocks:] + (last,) * blocks}


def sam3_vit_model(config: TowerConfig, plan: VisionPlan) -> Fields:
    """Positions within windows of window_size; layers of global_attn_indexes take those of the whole grid, scaled."""
    window, shape, name = config.count("window_size"), _grid_of(config.values), "global_attn_indexes"
    layers = list(plan.layers)
    grids = [dataclasses.replace(grid, inside=window) for grid in plan.grids]
    for i, index in enumerate(checks.sequence(name, config.values[name], "integers")):
        if checks.integer(f"{name}[{i}]", index, 0) < len(layers):
            scaled = linear_scaling(plan.layers[0].frequencies, shape[1] / window)
            layers[index] = dataclasses.replace(plan.layers[0], frequencies=scaled)
            grids[index] = dataclasses.replace(plan.grids[0], shapes=(shape,))
    return {"layers": layers, "grids": grids}


def llama4_vision_model(config: TowerConfig, plan: VisionPlan) -> Fields:
    """The tower takes image_size alone."""
    return _with_shape(plan, _grid_of(config.values))


def sam3_tracker_video(config: TowerConfig, plan: VisionPlan) -> Fields:
    """The memory attention; it takes a grid of image_size / patch_size alone, or several such frames."""
    tower = config.given.get_mapping("vision_config").get_mapping("backbone_config").values
    tower = {**TOWERS["sam3_vit_model"].defaults, **tower, "image_size": config.count("image_size")}
    shapes = {"image_size / patch_size": _grid_of(tower)}
    for name in config.given.look_up("memory_attention_rope_feat_sizes"):
        shapes[name] = height_and_width(config.values, name)
    return _with_shape(plan, agreed_value(shapes))


def gemma4_vision(config: TowerConfig, plan: VisionPlan) -> Fields:
    """Each half of a head rotates by itself."""
    return {"slices": 2}


def minimax_m3_vl_vision(config: TowerConfig, plan: VisionPlan) -> Fields:
    """In published files position_embedding_type is "rope" and rope_mode is "3d"; no class reads them."""
    for name, usual in {"position_embedding_type": "rope", "rope_mode": "3d"}.items():
        checks.one_of(name, config.get(name, default=usual), (usual,))
    return {}


def efficientloftr(config: TowerConfig, plan: VisionPlan) -> Fields:
    """All heads rotate as one; partial_rotary_factor must be half of their number."""
    heads, name = config.count("num_attention_heads"), "partial_rotary_factor"
    share = agreed_value(config.look_up(name) | config.settings.look_up(name), config.facts.rope[name])
    fits = 2 * checks.number(name, share) == heads
    require(fits, "{} must be half of num_attention_heads = {}, got {!r}", name, heads, share)
    return {}


QUIRKS: dict[str, Callable[[TowerConfig, VisionPlan], Fields]] = {
    quirk.__name__: quirk
    for quirk in (
        efficientloftr,
        eomt_dinov3,
        gemma4_vision,
        lfm3_vl_vision,
        llama4_vision_model,
        minimax_m3_vl_vision,
        sam3_tracker_video,
        sam3_vit_model,
    )
}


def _with_shape(plan: VisionPlan, shape: tuple[int, ...]) -> Fields:
    """Grids of this shape alone."""
    return {"grids": [dataclasses.replace(grid, shapes=(shape,)) for grid in plan.grids]}


def _grid_of(values: Mapping[str, Any]) -> tuple[int, ...]:
    """The height and the width of image_size in patches."""
    image, patch = height_and_width(values, "image_size"), height_and_width(values, "patch_size")
    shape = tuple(length // side for length, side in zip(image, patch, strict=True))
    require(all(shape), "image_size must hold a patch, got {}", image)
    return shape
