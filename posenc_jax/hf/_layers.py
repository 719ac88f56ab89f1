"""Which layers rotate: the type of each, and what the keys outside the rope settings say of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from posenc_jax import _checks
from posenc_jax._checks import require
from posenc_jax.hf._config import Config
from posenc_jax.hf._keys import Keys

ROTATING = {
    "chunked_attention", "full_attention", "hybrid", "hybrid_sliding", "indexed_attention",
    "reference_sliding_attention", "sliding_attention",
}  # fmt: skip
STILL = {"conv", "linear_attention"}
COUNTS = "num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_num_hidden_layers"
_LEGACY = {
    "attention": "full_attention", "mamba": "linear_attention", "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention", "minimax_m3_sparse": "indexed_attention",
}  # fmt: skip


def count_of(config: Keys) -> int:
    """The number of layers."""
    count = config.integer(*COUNTS)
    require(count <= 2**16, "{} must be at most 65,536, got {!r:.60}", config.spelled(*COUNTS), count)
    return count


# The types


def layer_types(config: Config, count: int) -> list[str]:
    """The type of each layer; "full_attention" where the types make no difference."""
    if config.model.still:
        return ["full_attention"] * count
    types = _written_types(config, count)
    if types is None:
        types = _listed_types(config, count)
    if types is None:
        require(not config.model.typed, "layer_types is missing")
        types = _types_by_pattern(config, count)
    if not (config.model.mixed or config.model.pattern and config.model.pattern.other in STILL):
        still = sorted(STILL.intersection(types))
        message = "the layer types {} of {} are not known for model_type {!r}"
        require(not still, message, still, config.spelled("layer_types"), config.model_type)
    return types


def _written_types(config: Config, count: int) -> list[str] | None:
    names = "layer_types", *(("layers_block_type",) if config.model.mixed else ())
    types = config.items(*names)
    if types is None:
        return None
    fits = len(types) == count and all(isinstance(name, str) for name in types)
    message = "{} must name the {} layers of num_hidden_layers, got {}: {!r:.60}"
    require(fits, message, config.spelled(*names), count, len(types), types)
    return [_LEGACY.get(str(name), str(name)) for name in types]


def _listed_types(config: Config, count: int) -> list[str] | None:
    """From a list of the layers with full attention, or of blocks that repeat."""
    names = "attn_layer_indices", "full_attn_idxs"
    full, blocks = _list(config, *names), _list(config, "block_types")
    if blocks:  # RecurrentGemma
        blocks = [_checks.one_of("block_types", block, ("recurrent", "attention")) for block in blocks]
        full = [i for i in range(count) if blocks[i % len(blocks)] == "attention"]
    if full is None:
        return None
    indices = _layer_indices(config.spelled(*names), full, count)
    return ["full_attention" if i in indices else "linear_attention" for i in range(count)]


def _types_by_pattern(config: Config, count: int) -> list[str]:
    pattern = config.model.pattern
    if pattern is None or _windowless(config):
        return ["full_attention"] * count
    period = config.integer(pattern.key) if pattern.key and config.found(pattern.key) else pattern.period
    full = [(i + pattern.phase) % period == 0 or (pattern.last and i == count - 1) for i in range(count)]
    return ["full_attention" if x else pattern.other for x in full]


def _windowless(config: Config) -> bool:
    return config.model.windowless and config.is_null("sliding_window")


def _list(config: Config, *names: str) -> tuple[Any, ...] | None:
    """A list of layers; raises if the config has one that the model does not read."""
    for name, value in config.found(*names).items():
        message = "the key {} = {!r:.60} is not used by model_type {!r}"
        require(name in config.model.lists, message, name, value, config.model_type)
    return config.items(*names)


def _layer_indices(name: str, indices: Sequence[Any], count: int) -> set[int]:
    for i in indices:
        require(isinstance(i, int) and i in range(count), "{} must be of the {} layers, got {!r:.60}", name, count, i)
    return set(indices)


# Layers without positions


def rotating(config: Config, types: list[str]) -> list[bool]:
    """Whether each layer has positions, as far as the keys outside the rope settings say."""
    count = len(types)
    if config.model.sliding_only and not _windowless(config):
        result = [kind == "sliding_attention" for kind in types]
    else:
        result = [kind not in STILL for kind in types]
    flags = _no_rope_flags(config, count)
    crossed = _layer_indices("cross_attention_layers", _crossed(config), count)
    rotary = not config.flag("alibi") and config.flag("rotary", default=True)
    require(rotary, "the model has no rotary embedding: alibi is true, or rotary false")
    if config.model.still or not _has_positions(config):
        return [False] * count
    return [result[i] and flags[i] and i not in crossed for i in range(count)]


def _crossed(config: Config) -> tuple[Any, ...]:
    """The layers with cross attention, which have no positions."""
    name = "cross_attention_layers"
    layers = _list(config, name)
    require(
        layers is not None or config.model.lists != (name,), "{} is missing", name
    )  # mllama_text_model has defaults
    return layers or ()


def _no_rope_flags(config: Config, count: int) -> list[bool]:
    """What no_rope_layers, or else no_rope_layer_interval, says."""
    if config.model.interval is None:
        return [True] * count
    # A list wins: transformers writes the interval even if it contradicts the list.
    flags, interval = config.items("no_rope_layers"), config.get("no_rope_layer_interval")
    if flags:
        fits = len(flags) == count and all(flag in (0, 1) for flag in flags)
        require(fits, "no_rope_layers must hold {} times 0 or 1, got {!r:.60}", count, list(flags))
        return [bool(flag) for flag in flags]
    period = config.model.interval if interval is None else _checks.positive_int("no_rope_layer_interval", interval)
    return [not period or (i + 1) % period != 0 for i in range(count)]


def _has_positions(config: Config) -> bool:
    """Whether position_embedding_type gives layers positions."""
    name, needed = config.string("position_embedding_type"), config.model.position
    if needed is None:
        return True
    if name is None:
        return not needed
    known = ("nope", needed) if needed else ("nope", "rope", "rotary")
    require(name in known, "position_embedding_type = {!r} is not one of {}", name, known)
    return name != "nope"


def bases_of(config: Config, count: int) -> list[float | None]:
    """The base of each layer from layer_rope_theta: 0 for a layer without positions, None if there is no list."""
    bases = config.items("layer_rope_theta") if config.model.layer_thetas else None
    if bases is None:
        return [None] * count
    numbers = [_checks.number("layer_rope_theta", 0 if base is None else base) for base in bases]
    require(len(numbers) == count, "layer_rope_theta must hold {} numbers, got {}", count, len(numbers))
    return [*numbers]
