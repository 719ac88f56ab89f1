"""Rewriters of the keys about layers: how many there are, their types, and which of them rotate."""

from __future__ import annotations

from typing import Any

from posenc_jax._jax import checks
from posenc_jax._jax.errors import require, require_type
from posenc_jax.hf._config import RAW
from posenc_jax.hf._layers import COUNTS, count_of
from posenc_jax.hf._rewriting import (
    FULL,
    LINEAR,
    SLIDING,
    Config,
    drop_default_base,
    parse_natural,
    put_flags,
    put_types,
    refuse,
    take_flags,
    take_layers,
    take_only,
)
from posenc_jax.hf._values import Values, equal, parse_mapping


def exaone4(config: Config) -> None:
    """A sliding_window_pattern may be a string that repeats, such as LLLG."""
    letters = config.get("sliding_window_pattern")
    if not isinstance(letters, str):
        return
    fits = letters and set(letters) <= {"L", "G"}
    require(fits, "sliding_window_pattern must be a number or letters L and G, got {!r:.60}", letters)
    del config["sliding_window_pattern"]
    if not Values(config).look_up("layer_types", "layers_block_type"):
        count = count_of(Values(config))
        config["layer_types"] = [SLIDING if letters[i % len(letters)] == "L" else FULL for i in range(count)]


def dory(config: Config) -> None:
    """layer_types may have an "mlp" after each layer, which num_hidden_layers then counts too."""
    types = Values(config).get_list("layer_types")
    if not types or "mlp" not in types:
        return
    count = count_of(Values(config))
    fits = len(types) == count and set(types[1::2]) == {"mlp"} and "mlp" not in types[::2]
    require(fits, 'layer_types must have {} items, an "mlp" after each layer, got {!r:.60}', count, list(types))
    for name in COUNTS:
        config.pop(name, None)
    config["num_hidden_layers"], config["layer_types"] = count // 2, list(types[::2])


def lara_mini(config: Config) -> None:
    """Layer i is a full one where i % 5 is 3, a sliding one where it is 1 or 4; the others have no attention."""
    if not Values(config).look_up("layer_types"):
        period = LINEAR, SLIDING, LINEAR, FULL, SLIDING
        config["layer_types"] = [period[i % 5] for i in range(count_of(Values(config)))]


def nemotron_h(config: Config) -> None:
    """hybrid_override_pattern or layers_block_type has an item for each layer."""
    letters = config.get("hybrid_override_pattern")
    require_type(letters is None or isinstance(letters, str), "hybrid_override_pattern", "a string", letters)
    blocks = Values(config).get_list("layers_block_type", "layer_types")
    blocks = letters if blocks is None else blocks
    counts = () if blocks is None else COUNTS
    for name in ("layers_block_type", "layer_types", "hybrid_override_pattern", *counts):
        config.pop(name, None)
    if blocks is not None:
        config["num_hidden_layers"] = len(blocks)


def nemotron_nas(config: Config) -> None:
    """block_configs says which layers have no attention."""
    blocks = take_layers(config, "block_configs")
    if blocks is not None:
        put_types(config, "block_configs", [FULL if _has_attention(block) else LINEAR for block in blocks])


def _has_attention(block: Any) -> bool:
    """Whether a block of block_configs has attention."""
    block = Values(parse_mapping("block_configs", block), "block_configs")
    attention = Values(parse_mapping("block_configs.attention", block.get_required("attention")))
    return not (attention.get_flag("no_op") or attention.get_flag("replace_with_linear"))


def minimax(config: Config) -> None:
    """attn_type_list: 1 for a layer with softmax attention, 0 for one with linear attention."""
    flags = take_flags(config, "attn_type_list")
    if flags is not None:
        put_types(config, "attn_type_list", [FULL if flag else LINEAR for flag in flags])


def muse(config: Config) -> None:
    """layer_rope_theta is 0 for layers without positions; by default they are every fourth, counted from the last."""
    count, bases = count_of(Values(config)), take_layers(config, "layer_rope_theta")
    if bases is None:
        bases = [(count - 1 - i) % 4 for i in range(count)]
    put_flags(config, [checks.number("layer_rope_theta", base) for base in bases])


def cohere2_moe(config: Config) -> None:
    """Sliding layers rotate, and so do dense layers where prefix_dense_sliding_window_pattern is 1."""
    drop_default_base(config, 10_000.0)
    tracked = Values(config)
    count, first = count_of(tracked), parse_natural(config, "first_k_dense_replace", 0)
    prefix = tracked.get_integer("prefix_dense_sliding_window_pattern", default=1)
    period = tracked.get_integer("sliding_window_pattern", default=4)
    dense = take_layers(config, "mlp_layer_types") or ["dense" if i < first else "sparse" for i in range(count)]
    full = [(i + 1) % prefix == 0 if i < first else (i - first + 1) % period == 0 for i in range(count)]
    types = take_layers(config, "layer_types") or [FULL if x else SLIDING for x in full]
    require(config.get("sliding_window", 0) is not None, "sliding_window must not be null in model_type 'cohere2_moe'")
    refuse(config, "rope_scaling")
    pairs = zip(types, dense, strict=True)
    put_flags(config, [layer_type == SLIDING or (mlp == "dense" and prefix == 1) for layer_type, mlp in pairs])


def gemma4(config: Config) -> None:
    """The last layer has full attention, whatever layer_types says."""
    types = take_layers(config, "layer_types")
    if types is not None:
        config["layer_types"] = [*types[:-1], FULL]


def zamba2(config: Config) -> None:
    """use_mem_rope says whether attention, whose heads are twice as wide as usual, has positions."""
    tracked = Values(config)
    config.pop("kv_channels", None)  # half the width of a head
    if not tracked.look_up("head_dim", "attention_head_dim"):
        usual = 2 * tracked.get_integer("hidden_size") // tracked.get_integer("num_attention_heads")
        config["head_dim"] = tracked.default_unless_null(usual, "attention_head_dim")
    if tracked.get_flag("use_long_context"):
        config["max_position_embeddings"] = 16384
    put_flags(config, [tracked.get_flag("use_mem_rope")] * count_of(tracked))
    config.pop("use_mem_rope", None)
    types = {str(layer_type) for layer_type in tracked.get_list("layers_block_type", "layer_types") or ()}
    unknown = sorted(types - {"hybrid", "mamba", LINEAR})
    named = tracked.spelling("layers_block_type", "layer_types")
    require(not unknown, "{} must hold 'hybrid', 'mamba' or 'linear_attention', got {}", named, unknown)


def latent_without_positions(config: Config) -> None:
    """Latent attention never rotates; the width of its heads is qk_nope_head_dim + qk_rope_head_dim, not head_dim."""
    take_only(config, True, "mla_use_nope")
    rest = Values(config).get_required("qk_rope_head_dim")
    width = 0 if isinstance(rest, int) and rest == 0 else Values(config).get_integer("qk_rope_head_dim")
    config["head_dim"] = Values(config).get_integer("qk_nope_head_dim") + width


def longcat(config: Config) -> None:
    """num_layers counts pairs of attentions; head_dim is the rotated width, qk_rope_head_dim."""
    tracked = Values(config)
    if tracked.look_up("num_layers"):
        count = 2 * tracked.get_integer("num_layers")
        take_only(config, count, "num_hidden_layers")
        del config["num_layers"]
        config["num_hidden_layers"] = count
    if tracked.look_up("qk_rope_head_dim"):
        take_only(config, tracked.get_integer("qk_rope_head_dim"), "head_dim")


def hrm(config: Config) -> None:
    """Without num_layers_per_stack, num_hidden_layers counts the layers of one stack, which runs several times."""
    tracked = Values(config)
    high, low = tracked.get_integer("H_cycles", default=2), tracked.get_integer("L_cycles", default=3)
    count, runs = count_of(tracked), high * (low + 1)
    if tracked.look_up("num_layers_per_stack"):
        stack = tracked.get_integer("num_layers_per_stack")
        message = "num_hidden_layers must be {} times num_layers_per_stack = {}, got {}"
        require(count == stack * runs, message, runs, stack, count)
    else:
        config["num_hidden_layers"] = count * runs


def granitemoehybrid(config: Config) -> None:
    """Layers have positions only if position_embedding_type is "rope"."""
    name, names = Values(config).get_string("position_embedding_type"), ("nope", "rope")
    require(name is None or name in names, "position_embedding_type = {!r} is not one of {}", name, names)
    config["position_embedding_type"] = name or "nope"


def mllama(config: Config) -> None:
    """cross_attention_layers must be given."""
    Values(config).get_required("cross_attention_layers")


def baichuan(config: Config) -> None:
    """Only the smaller models have a rotary embedding."""
    hidden = Values(config).get_integer("hidden_size")
    require(hidden == 4096, "hidden_size must be 4096, got {}: the larger models of this type have ALiBi", hidden)


def esm(config: Config) -> None:
    """position_embedding_type must be "rotary"; the code reads no scaling."""
    name = Values(config).get_required("position_embedding_type")
    require(equal(name, "rotary"), "position_embedding_type must be 'rotary', got {!r:.60}", name)
    refuse(config, *RAW)
