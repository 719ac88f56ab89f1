"""The layers of a vision tower: which of them rotate, and how each counts its patches."""

from __future__ import annotations

import dataclasses
from typing import Any

from posenc_jax import _checks
from posenc_jax._checks import require
from posenc_jax._frequencies import geometric
from posenc_jax._scalings import linear_scaling
from posenc_jax.hf._keys import Keys, agreed, mapping
from posenc_jax.hf._patches import PatchGrid
from posenc_jax.hf._plan import RotaryLayer
from posenc_jax.hf._towers import Tower

Layers = tuple[list[RotaryLayer], list[PatchGrid]]


def layers_of(config: Keys, facts: Tower, layer: RotaryLayer, grid: PatchGrid, count: int) -> Layers:
    """The layers and their grids, where `layer` and `grid` are those of a plain tower."""
    layers, grids = [layer] * count, [grid] * count
    if facts.kind == "conv":
        layers = _with_convolutions(config, layer, count)
    elif facts.kind == "queries":
        grids = _with_queries(config, grid, count)
    elif facts.kind == "windowed":
        layers, grids = _with_windows(config, layer, grid, count)
    elif facts.kind != "plain":
        shapes = {"fixed": _square, "memory": _memory, "tracker": _tracked}[facts.kind](config)
        grids = [dataclasses.replace(grid, shapes=shapes)] * count
    return layers, grids


def with_default(config: Keys, name: str, default: Any) -> Any:
    """The value of a key, which is that of the class where the config does not have the key."""
    require(not config.is_null(name), "{} is missing", name)
    return config.get(name, default=default)


def number_of(config: Keys, name: str, default: int, least: int = 1) -> int:
    """The value of a key that counts something."""
    value = _checks.integer(config.label + name, with_default(config, name, default), least)
    require(value < 2**16, "{}{} must be below 65,536, got {!r:.60}", config.label, name, value)
    return value


def _with_convolutions(config: Keys, layer: RotaryLayer, count: int) -> list[RotaryLayer]:
    """LFM3-VL: layers of convolutions have no positions."""
    usual = ["conv" if i < 2 or i % 2 else "full_attention" for i in range(count)]
    types = config.items("layer_types")
    types = usual if types is None else types
    fits = len(types) == count and all(kind in ("conv", "full_attention") for kind in types)
    require(fits, "layer_types must hold {} times 'conv' or 'full_attention', got {!r:.60}", count, list(types))
    still = RotaryLayer(geometric(0), layer.head_dim)
    return [still if kind == "conv" else layer for kind in types]


def _with_queries(config: Keys, grid: PatchGrid, count: int) -> list[PatchGrid]:
    """EoMT: the last layers hold learned queries in front of all other tokens."""
    blocks = number_of(config, "num_blocks", 4, 0)
    queries = number_of(config, "num_queries", 200)
    require(blocks <= count, "num_blocks must be at most {} layers, got {}", count, blocks)
    with_queries = dataclasses.replace(grid, leading=grid.leading + queries)
    return [grid] * (count - blocks) + [with_queries] * blocks


def _with_windows(config: Keys, layer: RotaryLayer, grid: PatchGrid, count: int) -> Layers:
    """SAM 3: positions within a window, but in some layers those of the whole grid, scaled to the width of a window."""
    window = number_of(config, "window_size", 24)
    (width, height), (patch_width, patch_height) = _pair(config, "image_size", 1008), _pair(config, "patch_size", 14)
    rows, columns = height // patch_height, width // patch_width
    require(rows and columns, "image_size must hold a patch, got {}", (width, height))
    indices = config.items("global_attn_indexes")
    indices = (7, 15, 23, 31) if indices is None else indices
    whole = {_checks.integer(f"global_attn_indexes[{i}]", index, 0) for i, index in enumerate(indices)}
    scaled = dataclasses.replace(layer, frequencies=linear_scaling(layer.frequencies, columns / window))
    inside, all_of_it = dataclasses.replace(grid, inside=window), dataclasses.replace(grid, shapes=((rows, columns),))
    layers = [scaled if i in whole else layer for i in range(count)]
    return layers, [all_of_it if i in whole else inside for i in range(count)]


def _square(config: Keys) -> tuple[tuple[int, int], ...]:
    """Llama 4: tiles of one size."""
    image = number_of(config, "image_size", 448)
    side = image // number_of(config, "patch_size", 14)
    require(side, "image_size must hold a patch, got {}", image)
    return ((side, side),)


def _memory(config: Keys) -> tuple[tuple[int, int], ...]:
    """SAM 2: the grid of features, also that of each frame in memory; EdgeTAM: that of its latents too."""
    latents = config.values.get("model_type") == "edgetam_video"
    found = [_sides(config, "memory_attention_rope_feat_sizes", 64)]
    if latents:
        found.append(_sides(config, "memory_attention_rope_k_sizes", 16))
    return tuple((height, width) for width, height in found)


def _tracked(config: Keys) -> tuple[tuple[int, int], ...]:
    """SAM 3's tracker: the grid of its vision tower, which overrides memory_attention_rope_feat_sizes."""
    tower = Keys(mapping("vision_config", config.get("vision_config", default={})))
    tower = Keys(mapping("backbone_config", tower.get("backbone_config", default={})))
    patch = number_of(tower, "patch_size", 14)
    image = number_of(config, "image_size", 1008)
    side = image // patch
    require(side, "image_size must hold a patch, got {}", image)
    found = config.take("memory_attention_rope_feat_sizes")
    sizes = {name: _checks.positive_ints(name, value) for name, value in found.items()}
    return (agreed({"image_size / patch_size": (side, side)} | sizes),)


def _sides(config: Keys, name: str, default: int) -> tuple[int, int]:
    """(width, height)."""
    sides = _checks.positive_ints(name, with_default(config, name, (default, default)))
    require(len(sides) == 2, "{} must hold a width and a height, got {}", name, sides)
    return sides[0], sides[1]


def _pair(config: Keys, name: str, default: int) -> tuple[int, int]:
    """(width, height), which are one number if they are equal."""
    value = with_default(config, name, default)
    sides = _checks.positive_ints(name, (value, value) if isinstance(value, int) else value)
    require(len(sides) == 2, "{} must be a number or a width and a height, got {!r:.60}", name, value)
    return sides[0], sides[1]
