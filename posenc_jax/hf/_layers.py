"""Which layers rotate, by their types and by the keys outside the rope settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from posenc_jax._jax import checks
from posenc_jax._jax.errors import invalid, require
from posenc_jax.hf._config import POSITIONS, Config
from posenc_jax.hf._models import Pattern
from posenc_jax.hf._values import Values

ROTATING = set(
    "chunked_attention full_attention hybrid hybrid_sliding indexed_attention reference_sliding_attention "
    "sliding_attention".split()
)
WITHOUT_POSITIONS = {"conv", "linear_attention"}
COUNTS = "num_hidden_layers n_layer n_layers num_layers decoder_num_hidden_layers".split()
_LEGACY = {
    "attention": "full_attention", "mamba": "linear_attention", "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention", "minimax_m3_sparse": "indexed_attention",
}  # fmt: skip


def count_of(config: Values) -> int:
    """The number of layers."""
    count = config.get_integer(*COUNTS)
    require(count <= 2**16, "{} must be at most 65,536, got {!r:.60}", config.spelling(*COUNTS), count)
    return count


# The types


def layer_types(config: Config, count: int) -> list[str]:
    """The type of each layer; "full_attention" where the types make no difference."""
    if config.model.never_rotates:
        return ["full_attention"] * count
    return _written_types(config, count) or _listed_types(config, count) or _types_by_pattern(config, count)


def _written_types(config: Config, count: int) -> list[str] | None:
    """The types that the config lists, one for each layer."""
    names = "layer_types", "layers_block_type"
    types = config.get_list(*names)
    if types is None:
        return None
    fits = len(types) == count and all(isinstance(name, str) for name in types)
    message = "{} must name the {} layers of num_hidden_layers, got {}: {!r:.60}"
    require(fits, message, config.spelling(*names), count, len(types), types)
    return [_LEGACY.get(name) or name for name in types]


def _listed_types(config: Config, count: int) -> list[str] | None:
    """The types by a list of the layers with full attention, or of blocks that repeat."""
    names = "attn_layer_indices", "full_attn_idxs"
    full, blocks = config.get_list(*names), config.get_list("block_types")
    if blocks:  # RecurrentGemma
        blocks = [checks.one_of("block_types", block, ("recurrent", "attention")) for block in blocks]
        full = [i for i in range(count) if blocks[i % len(blocks)] == "attention"]
    if full is None:
        return None
    indices = layer_indices(config.spelling(*names), full, count)
    return ["full_attention" if i in indices else "linear_attention" for i in range(count)]


def _types_by_pattern(config: Config, count: int) -> list[str]:
    """The types by the model's pattern; "full_attention" without one."""
    pattern = config.model.pattern
    if pattern is None:
        raise invalid("layer_types is missing")
    if isinstance(pattern, str) or _all_without_window(config):
        return [pattern if isinstance(pattern, str) else "full_attention"] * count
    usual = Pattern(**pattern)
    period = config.get_integer(usual.key, default=usual.period) if usual.key else usual.period
    return usual._replace(period=period).types(count)


def _all_without_window(config: Config) -> bool:
    """Whether the config has no sliding window, and all layers have positions for that reason."""
    return config.model.all_without_window and config.is_null("sliding_window")


def layer_indices(name: str, indices: Sequence[Any], count: int) -> set[int]:
    """The indices of layers in a list."""
    for i in indices:
        require(isinstance(i, int) and i in range(count), "{} must be of the {} layers, got {!r:.60}", name, count, i)
    return set(indices)


# Layers without positions


def rotating(config: Config, types: list[str]) -> list[bool]:
    """Whether each layer has positions, by its type and by the keys outside the rope settings."""
    model, count, name = config.model, len(types), "cross_attention_layers"
    if model.sliding_only and not _all_without_window(config):
        by_type = [layer_type == "sliding_attention" for layer_type in types]
    else:
        by_type = [layer_type not in WITHOUT_POSITIONS for layer_type in types]
    known = max(count, model.defaults.get("num_hidden_layers", 0))  # the class may list more layers than a file has
    flags, cross_attention = _no_rope_flags(config, count), layer_indices(name, config.get_list(name) or (), known)
    without = model.never_rotates or POSITIONS in model.reads and config.get_string(POSITIONS) == "nope"
    result = [not without and by_type[i] and flags[i] and i not in cross_attention for i in range(count)]
    config.check_flags(any(result))
    return result


def _no_rope_flags(config: Config, count: int) -> list[bool]:
    """Whether each layer has positions, by no_rope_layers or no_rope_layer_interval."""
    flags = config.get_list("no_rope_layers")
    if flags:  # it wins: transformers writes an interval even if it contradicts the list
        fits = len(flags) == count and all(flag in (0, 1) for flag in flags)
        require(fits, "no_rope_layers must hold {} times 0 or 1, got {!r:.60}", count, list(flags))
        return [bool(flag) for flag in flags]
    name = "no_rope_layer_interval"
    period = config.get(name, default=config.model.defaults.get(name))
    return [period is None or (i + 1) % checks.positive_int(name, period) != 0 for i in range(count)]


def bases_of(config: Config, count: int) -> list[float | None]:
    """The base of each layer by layer_rope_theta: 0 for a layer without positions, None if there is no list."""
    key = "layer_rope_theta"
    bases = config.get_list(key)
    if bases is None:
        return [None] * count
    numbers = [checks.number(key, 0 if base is None else base) for base in bases]
    require(len(numbers) == count, "{} must hold {} numbers, got {}", key, count, len(numbers))
    return [*numbers]
