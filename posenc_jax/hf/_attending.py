"""What a layer attends to, and the factors of its queries and scores, as in the code of transformers.

A config leaves to the code which layers have a window, what its number counts, and what stands in place of
1/√head_dim. What neither says is None.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from posenc_jax._jax import checks
from posenc_jax.hf._apply import HeadScale
from posenc_jax.hf._config import Config
from posenc_jax.hf._layers import WITHOUT_POSITIONS
from posenc_jax.hf._models import FACTS, by_model_type, canonical_type
from posenc_jax.hf._plan import QueryScale, RotaryLayer
from posenc_jax.hf._rope import Rope

_FULL, _SLIDING, _CHUNKED = "full_attention", "sliding_attention", "chunked_attention"

# Their layer types say too little, or their masks are no windows or not the same in all modules and caches.
_OTHER_MASKS = set(
    "blt_global_transformer blt_local_decoder blt_local_encoder cohere2_moe deepseek_ocr2_encoder diffusion_gemma_text "
    "dots3_note_text falcon_h1 kyutai_speech_to_text moshi neomme qwen3_omni_moe_talker_text qwen3_omni_moe_text "
    "t5_gemma_module unlimited_ocr_text".split()
)
# Whether a layer has a window where a config lists no types, by its index, whether it rotates, and max_window_layers.
_WINDOWED = by_model_type(
    {
        "dots1 qwen2 qwen2_5_omni_talker qwen2_5_omni_text qwen2_5_vl_text qwen2_vl_text qwen3": (
            lambda i, rotates, start: i >= start
        ),
        "qwen2_moe": lambda i, rotates, end: i % 2 == 0 and i < end,
        "smollm3": lambda i, rotates, _: not rotates,
    }
)
# What transformers calls a layer type that is read here by another name.
_RENAMED = by_model_type(
    {
        "axk2 deepseek_v32 glm_moe_dsa hy_v4 hy_v4_vl_text mistral_large4_text qwen4_exp_text": {
            _FULL: "indexed_attention"
        },
        "lfm2 lfm2_moe lfm3": {"linear_attention": "conv"},
        "molmo2_text": {"scaled": _FULL, "plain": _FULL},
        "recurrent_gemma": {_FULL: _SLIDING},
    }
)
# The keys of the window's width, in their order, and what the code makes of their numbers.
_WIDTHS: dict[str, dict[str, Callable[[int], int]]] = {
    "llama4_text": {"attention_chunk_size": int},
    "mimo_v2_flash": {"sliding_window_size": lambda n: n + 1, "sliding_window": int},
    "modernbert": {"local_attention": int},
    "modernbert-decoder": {"sliding_window": int, "local_attention": lambda n: n // 2},
    "recurrent_gemma": {"attention_window_size": int},
}
# Windows that look both ways, by their width.
_BOTH_WAYS = by_model_type(
    {
        "embedding_gemma2_text muse_glimmer_assistant openai_privacy_filter ultrabert": lambda n: (n, n),
        "gemma3_text gemma4_text gemma4_unified_text modernbert": lambda n: (n // 2, n // 2),
        "t5gemma2_text": lambda n: ((n - 1) // 2, n // 2),
    }
)
# These types have them with this value of use_bidirectional_attention.
_FLAGS = {"gemma3_text": True, "gemma4_text": "all", "gemma4_unified_text": "all"}
# Keys that replace 1/√head_dim where a class has them, and the power of their numbers; types that scale by 1.
_SCALES = {"query_pre_attn_scalar": -0.5, "attention_multiplier": 1.0}
_UNSCALED = set(
    "dia_decoder dia_encoder diffusion_gemma_text embedding_gemma2_text gemma3n_text gemma4_text "
    "gemma4_unified_text".split()
)


def with_attention(
    config: Config, layers: Sequence[RotaryLayer], types: Sequence[str], softmax_scale: float
) -> Sequence[RotaryLayer]:
    """The layers of these types, with what they attend to and the factors of their scores."""
    model_type = canonical_type(config.model_type or "")
    if model_type not in FACTS["types"]:
        return layers
    width, described, result = _width(config, model_type), {}, []
    for layer, kind in zip(layers, _kinds(config, model_type, width, layers, types), strict=True):
        key = id(layer), kind  # equal layers are one object, and hashing each of them is slow
        if key not in described:
            attention: dict[str, Any] = {"kind": kind}
            if kind not in WITHOUT_POSITIONS:
                scale = _scale(config, model_type, layer.head_dim)
                attention["score_scale"] = None if scale is None else scale * softmax_scale
                attention["window"] = _window(config, model_type, kind, width)
                attention["chunk"] = width if kind == _CHUNKED else None
            described[key] = dataclasses.replace(layer, **attention)
        result.append(described[key])
    return result


def _width(config: Config, model_type: str) -> int:
    """The width of windows or chunks: 0 for none."""
    values = config.values
    if "use_sliding_window" in config.model.reads and not values.get("use_sliding_window"):
        return 0
    keys = _WIDTHS.get(model_type, {"sliding_window": int})
    widths = [make(values[key]) for key, make in keys.items() if isinstance(values.get(key), int)]
    return max(widths[0], 0) if widths else 0


def _kinds(
    config: Config, model_type: str, width: int, layers: Sequence[RotaryLayer], types: Sequence[str]
) -> Sequence[str | None]:
    """The layer types of the config, or those of the class."""
    values, model = config.values, config.model
    if model_type in _OTHER_MASKS or model.never_rotates:
        return [None] * len(layers)
    renamed = _RENAMED.get(model_type, {}) | ({_CHUNKED: _FULL} if width == 0 else {})
    kinds = [renamed.get(name, name) for name in types]
    if width == 0 or values.get("layer_types") or values.get("layers_block_type"):
        return kinds
    everywhere = "sliding_window" in model.reads and "layer_types" not in model.reads
    windowed = _WINDOWED.get(model_type, lambda *_: everywhere)
    bound = config.get_number("max_window_layers") if "max_window_layers" in model.reads else 0
    return [
        _SLIDING if kind == _FULL and windowed(i, layer.rotary_dim > 0, bound) else kind
        for i, (layer, kind) in enumerate(zip(layers, kinds, strict=True))
    ]


def _window(config: Config, model_type: str, kind: str | None, width: int) -> tuple[int | None, ...] | None:
    """(left, right), of which a causal mask bounds the right; None if it is not known, or for chunks."""
    if kind in (None, _CHUNKED):
        return None
    # Layers of MiniMax that are of type full_attention have a window too.
    if width == 0 or kind in (_FULL, "hybrid", "indexed_attention") and model_type != "minimax":
        return None, None
    looks_ahead = _FLAGS.get(model_type) in (None, config.values.get("use_bidirectional_attention"))
    return _BOTH_WAYS[model_type](width) if looks_ahead and model_type in _BOTH_WAYS else (width - 1, None)


def _scale(config: Config, model_type: str, head_dim: int) -> float | None:
    """The factor of the scores but for softmax_scale; None if it is not known."""
    for key, power in _SCALES.items():
        if key in config.model.reads and key in config.values:  # else the class makes it of head_dim
            value = config.values[key]
            return None if value is None else checks.positive(key, value) ** power
    counted = head_dim / 2 if model_type == "zamba2" else head_dim  # counts half of the features
    return 1.0 if model_type in _UNSCALED else counted**-0.5


# Factors of the queries that grow with their position


def query_scale_of(config: Config, rope: Rope | None) -> QueryScale | HeadScale | None:
    """The query scale of a layer with these rope settings; None: without positions."""
    kind, written = config.model.query_scale, written_scale(config, "query_scale")
    if kind == "llama4" and not rope and config.get_flag("attn_temperature_tuning", default=True):
        period = checks.integer("floor_scale", config.get("floor_scale", default=8192), 2)  # above the offset
        return QueryScale(config.get_number("attn_scale", default=0.1), period, 1)
    if kind == "beam" and not rope:
        return QueryScale(0.1, 2048, 1, "power")
    if kind == "beta" and rope:
        return QueryScale(rope.settings.get_number("llama_4_scaling_beta"), rope.original())
    if kind == "logn" and rope and config.get_flag("use_logn_attn", default=True):
        length = checks.integer("seq_length", config.get_required("seq_length"), 2)
        return QueryScale(1 / math.log(length), length, 1, "log")
    return written


def written_scale(config: Config, key: str) -> QueryScale | HeadScale | None:
    """The query scale whose fields `plan_to_config` or a rewriter put under a key."""
    if key not in config.model.reads or not (fields := config.get_mapping(key)).values:
        return None
    cls = HeadScale if fields.look_up("num_heads") else QueryScale
    names = [field.name for field in dataclasses.fields(cls)]
    fields.reject_unknown(names, "a query scale")
    return cls(**{field: fields.get_required(field) for field in names})
