"""`vision_rotary_from_config`: the config.json of a vision tower → a plan."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from posenc_jax._frequencies.axes import join
from posenc_jax._frequencies.frequencies import Frequencies, geometric
from posenc_jax._frequencies.scalings import linear_scaling
from posenc_jax._jax import checks
from posenc_jax._jax.errors import public, require
from posenc_jax.hf._patches import PatchGrid
from posenc_jax.hf._plan import RotaryLayer
from posenc_jax.hf._tower_config import TowerConfig, height_and_width, parse_tower_config
from posenc_jax.hf._tower_quirks import QUIRKS
from posenc_jax.hf._towers import Tower
from posenc_jax.hf._values import agreed_value
from posenc_jax.hf._vision_plan import VisionPlan


@public
def vision_rotary_from_config(config: Any) -> VisionPlan:
    r"""How the vision tower of a Hugging Face config rotates its queries and keys, and where its patches are.

    Each pair of features rotates by one coordinate of its patch, row, column or frame, with the rotation $R$ of
    `rotary`:

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
      config: a parsed config.json, or an object whose to_dict() returns one: of a tower, or of a model with a
        vision_config.

    Returns:
      VisionPlan: layers, layout, grids, table. `positions` gives the coordinates of a grid of patches, `rotate` applies
      them, and `table_rows` resizes the learned table of the tower as its code does.

    Raises:
      TypeError: if config is not a mapping, or a value does not have the type of its key.
      ValueError: if a key speaks of positions and its class does not take it, is near the name of a missing one, or
        contradicts another, a value is outside its range, or the tower is not known, does not rotate, or rotates in a
        way that a plan cannot express.

    Notes:
      - For 38 model types the library knows what transformers keeps in code: which coordinate rotates which pair, the
        layout, the offset or scale of coordinates, the order of the patches, the tokens beside them, and how a learned
        table is resized. Missing sizes and rope settings have the values of the class; of keys that it does not take,
        it ignores those that speak of no positions, and so does this.
      - SAM 2, SAM 3's tracker and EdgeTAM rotate in the memory attention of their video models; to read the tower of
        SAM 3's tracker, pass its vision_config.
      - The plan is for inference: DINOv3 also draws random shifts and scales of its coordinates in training.

    Reference:
      Hugging Face transformers 5.24.0: vision_utils.py and the towers' own modules.
    """
    config = TowerConfig(parse_tower_config(config, {}))
    facts, head_dim = config.facts, _head_dim(config)
    layer = RotaryLayer(_frequencies(facts, _base(config), head_dim), head_dim)
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
    heads = config.count(facts.heads) * config.count("memory_attention_downsample_rate", default=1)
    require(hidden % heads == 0, "{} = {} must be a multiple of {}", name, hidden, heads)
    return agreed_value({f"{name} / heads": hidden // heads} | config.look_up("head_dim"))


def _base(config: TowerConfig) -> float:
    """The base."""
    rope, settings = config.facts.rope, config.settings
    for name, rope_type in settings.look_up("rope_type", "type").items():
        # transformers takes "default" for "axial"
        checks.one_of(name, rope_type, tuple(sorted({rope["rope_type"], "default"})))
    for values in (config, settings):
        values.default_unless_null(rope["rope_theta"], "rope_theta")
    bases = config.look_up("rope_theta") | settings.look_up("rope_theta")
    return checks.positive("rope_theta", agreed_value(bases, rope["rope_theta"]))


def _frequencies(facts: Tower, base: float, head_dim: int) -> Frequencies:
    """The frequencies of a head."""
    axes = len(facts.axes)
    require(axes == 3 or head_dim % 4 == 0, "head_dim must be a multiple of 4, got {}", head_dim)
    of_axis, of_head = geometric(2 * (head_dim // (2 * axes)), base), geometric(head_dim, base)
    parts = [of_head[::2], of_head[1::2]] if facts.pairs == "halved" else [of_axis] * axes
    result = join(*parts, axes=facts.axes)
    if facts.pairs == "alternating":
        count = of_axis.num_pairs
        result = result[[i + axis * count for i in range(count) for axis in range(axes)]]
    return linear_scaling(result, 1 / (2 * math.pi)) if facts.grid.centres else result


def _grid(config: TowerConfig) -> PatchGrid:
    """How patches are counted."""
    facts, grid = config.facts, config.facts.grid
    merge = config.count("spatial_merge_size") if facts.squares else grid.merge
    window = config.count(facts.windows) if facts.windows else 0
    if facts.windows == "window_size":  # in pixels
        patch, side = config.count("patch_size"), window
        window = side // merge // patch
        require(window, "window_size must hold a square of {} patches of {}, got {}", merge, patch, side)
    leading = grid.leading + config.count("num_register_tokens", 0, default=0)
    shapes = [height_and_width(config.values, name) for name in facts.shapes]
    return dataclasses.replace(grid, merge=merge, window=window, leading=leading, shapes=shapes)
