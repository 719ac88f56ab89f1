"""`vision_rotary_from_config`: the config.json of a vision tower → a plan."""

from __future__ import annotations

import dataclasses
import math
import operator
from typing import Any

from posenc_jax._frequencies.axes import join
from posenc_jax._frequencies.frequencies import Frequencies, geometric
from posenc_jax._frequencies.scalings import linear_scaling
from posenc_jax._jax import checks
from posenc_jax._jax.errors import public, require
from posenc_jax.hf._patches import PatchGrid, parse_count
from posenc_jax.hf._plan import RotaryLayer
from posenc_jax.hf._towers import TOWERS, Tower, TowerConfig
from posenc_jax.hf._values import Json, agreed_value
from posenc_jax.hf._vision_plan import VisionPlan


@public
def vision_rotary_from_config(config: Any) -> VisionPlan:
    r"""Reads how the vision tower of a Hugging Face config rotates its queries and keys, and where its patches are.

    Each feature pair is rotated by one coordinate of its patch: row, column or frame. With $R$ the rotation of
    `rotary`,

    $$\text{score} \propto (R_{r, c}\, q) \cdot (R_{r', c'}\, k)$$

    Examples:
      >>> import jax.numpy as jnp
      >>> from posenc_jax.hf import vision_rotary_from_config
      >>> pixtral = {"model_type": "pixtral", "hidden_size": 1024}
      >>> pixtral |= {"num_attention_heads": 16, "num_hidden_layers": 24}
      >>> plan = vision_rotary_from_config({"model_type": "mistral3", "vision_config": pixtral})
      >>> positions = plan.positions((3, 5))
      >>> queries = jnp.ones((1, 15, 16, 64))
      >>> plan.rotate(queries, 0, positions, head_axis=-2).shape
      (1, 15, 16, 64)

    Args:
      config: a parsed config.json, or an object whose to_dict() returns one, of a tower or of a model with a
        vision_config.

    Returns:
      A VisionPlan with layers, layout, grids and table. `positions` returns the coordinates of a grid of patches,
      `rotate` applies them, and `table_rows` resizes the learned table of the tower as its code does.

    Raises:
      TypeError: if config is not a mapping, or a value does not have the type of its key.
      ValueError: if a key about positions is not read by the class, is a likely misspelling of a missing key, or
        contradicts another, or a value is outside its range.
      ValueError: if the tower is not known, does not rotate, or rotates in a way that a plan cannot express.

    Notes:
      - For 38 model types, the library knows what transformers defines in code: which coordinate rotates which pair,
        the layout, the offset or scale of coordinates, the order of the patches, the tokens beside them, and how a
        learned table is resized. Missing sizes and rope settings have the values of the class. Keys that are not about
        positions are ignored if the class does not read them.
      - SAM 2, SAM 3's tracker and EdgeTAM rotate in the memory attention of their video models. To read the tower of
        SAM 3's tracker, pass its vision_config.
      - The plan is for inference. In training, DINOv3 also draws random shifts and scales of its coordinates.

    Reference:
      Hugging Face transformers 5.24.0: vision_utils.py and the towers' own modules.
    """
    config = TowerConfig(config)
    facts, head_dim = config.facts, _head_dim(config)
    layer = RotaryLayer(_frequencies(facts, config.rope_setting("rope_theta"), head_dim), head_dim)
    count = config.count(facts.depth)
    plan = VisionPlan((layer,) * count, facts.layout, grids=(_grid(config),) * count, table=facts.table)
    quirk = QUIRKS.get(config.values["model_type"])
    return dataclasses.replace(plan, **quirk(config, plan)) if quirk else plan


def _head_dim(config: TowerConfig) -> int:
    """The number of features that rotate together."""
    facts, name = config.facts, config.facts.hidden
    hidden = config.count(name)
    if not facts.heads:
        return hidden
    heads = config.count(facts.heads) * config.count("memory_attention_downsample_rate")
    require(hidden % heads == 0, "{} = {} must be a multiple of {}", name, hidden, heads)
    return agreed_value({name + " / heads": hidden // heads} | config.look_up("head_dim"))


def _frequencies(facts: Tower, base: float, head_dim: int) -> Frequencies:
    """The frequencies of a head."""
    axes = len(facts.axes)
    require(axes == 3 or head_dim % 4 == 0, "head_dim must be a multiple of 4, got {}", head_dim)
    of_axis, of_head = geometric(2 * (head_dim // (2 * axes)), base), geometric(head_dim, base)
    parts = [of_head[::2], of_head[1::2]] if facts.pairs == "halved" else [of_axis] * axes
    result = join(*parts, axes=facts.axes)
    if facts.pairs == "alternating":
        result = result[sorted(range(result.num_pairs), key=lambda i: i % of_axis.num_pairs)]
    return linear_scaling(result, 1 / (2 * math.pi)) if facts.grid.centres else result


def _grid(config: TowerConfig) -> PatchGrid:
    """How patches are counted."""
    facts, grid = config.facts, config.facts.grid
    merge = config.count("spatial_merge_size") if facts.squares else grid.merge
    window = config.count(facts.windows) if facts.windows else 0
    if facts.windows == "window_size":  # in pixels
        patch, side = config.count("patch_size"), window
        window = side // (merge * patch)
        require(window, "window_size must hold a square of {} patches of {}, got {}", merge, patch, side)
    leading = grid.leading + config.count("num_register_tokens", 0)
    shapes = [_shape(config.values, name) for name in facts.shapes]
    return dataclasses.replace(grid, merge=merge, window=window, leading=leading, shapes=shapes)


def _shape(values: Json, name: str) -> tuple[int, ...]:
    """(height, width), of image_size in patches; a config has width and height, or one number if they are equal."""
    value = values[name]
    sides = [value] * 2 if isinstance(value, int) else checks.sequence(name, value, "a width and a height")
    require(len(sides) == 2, "{} must be a number or a width and a height, got {!r:.60}", name, value)
    shape = tuple(parse_count(name, side, 1) for side in sides[::-1])
    if name != "image_size":
        return shape
    patches = tuple(map(operator.floordiv, shape, _shape(values, "patch_size")))
    require(all(patches), "image_size must hold a patch, got {}", shape)
    return patches


# What one tower alone does: fields of the plan that `TOWERS` does not say. The docstring of each function says what is
# special: the site's table of towers shows it.


def lfm3_vl_vision(config: TowerConfig, plan: VisionPlan) -> Json:
    """Layers of convolutions, which layer_types lists, have no positions."""
    layer, count, types = plan.layers[0], len(plan.layers), config.get_list("layer_types")
    if types is None:
        types = ("conv", *("conv", "full_attention") * count)[:count]
    fits = len(types) == count and all(each in ("conv", "full_attention") for each in types)
    require(fits, "layer_types must hold {} times 'conv' or 'full_attention', got {!r:.60}", count, types)
    without = dataclasses.replace(layer, frequencies=geometric(0))
    return {"layers": [without if each == "conv" else layer for each in types]}


def eomt_dinov3(config: TowerConfig, plan: VisionPlan) -> Json:
    """The last num_blocks layers hold num_queries learned queries in front, which do not rotate."""
    grid, count, blocks = plan.grids[0], len(plan.grids), config.count("num_blocks", 0)
    require(blocks <= count, "num_blocks must be at most {} layers, got {}", count, blocks)
    last = dataclasses.replace(grid, leading=grid.leading + config.count("num_queries"))
    return {"grids": plan.grids[blocks:] + (last,) * blocks}


def sam3_vit_model(config: TowerConfig, plan: VisionPlan) -> Json:
    """Positions within windows of window_size; layers of global_attn_indexes take those of the whole grid, scaled."""
    layer, grid, count = plan.layers[0], plan.grids[0], len(plan.layers)
    window, shape, name = config.count("window_size"), _shape(config.values, "image_size"), "global_attn_indexes"
    layers, grids = [layer] * count, [dataclasses.replace(grid, inside=window)] * count
    scaled = linear_scaling(layer.frequencies, shape[1] / window)
    for i, index in enumerate(checks.sequence(name, config.values[name], "integers")):
        if checks.integer(f"{name}[{i}]", index, 0) < count:
            layers[index] = dataclasses.replace(layer, frequencies=scaled)
            grids[index] = dataclasses.replace(grid, shapes=(shape,))
    return {"layers": layers, "grids": grids}


def sam3_tracker_video(config: TowerConfig, plan: VisionPlan) -> Json:
    """The memory attention; it takes a grid of image_size / patch_size alone, or several such frames."""
    tower = config.given.get_mapping("vision_config").get_mapping("backbone_config").values
    tower = {**TOWERS["sam3_vit_model"].defaults, **tower, "image_size": config.count("image_size")}
    shapes = {"image_size / patch_size": _shape(tower, "image_size")}
    for name in config.given.look_up("memory_attention_rope_feat_sizes"):
        shapes[name] = _shape(config.values, name)
    grid = dataclasses.replace(plan.grids[0], shapes=[agreed_value(shapes)])
    return {"grids": [grid] * len(plan.grids)}


def gemma4_vision(config: TowerConfig, plan: VisionPlan) -> Json:
    """Each half of a head rotates by itself."""
    return {"slices": 2}


def minimax_m3_vl_vision(config: TowerConfig, plan: VisionPlan) -> Json:
    """In published files position_embedding_type is "rope" and rope_mode is "3d"; no class reads them."""
    for name, usual in {"position_embedding_type": "rope", "rope_mode": "3d"}.items():
        checks.one_of(name, config.get(name, default=usual), (usual,))
    return {}


def efficientloftr(config: TowerConfig, plan: VisionPlan) -> Json:
    """All heads rotate as one; partial_rotary_factor must be half of their number."""
    heads, name = config.count("num_attention_heads"), "partial_rotary_factor"
    share = config.rope_setting(name)
    require(2 * share == heads, "{} must be half of num_attention_heads = {}, got {}", name, heads, share)
    return {}


QUIRKS = {
    quirk.__name__: quirk
    for quirk in (
        efficientloftr,
        eomt_dinov3,
        gemma4_vision,
        lfm3_vl_vision,
        minimax_m3_vl_vision,
        sam3_tracker_video,
        sam3_vit_model,
    )
}
