"""What a layer attends to, and the factor of its scores, as the code of transformers 5.23.0 and 5.24.0 has them.

A config leaves to the code which layers have a window, what its number counts, and what stands in place of
1/√head_dim. What neither says is None.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from posenc_jax._jax import checks
from posenc_jax._jax.errors import require
from posenc_jax.hf._config import Config
from posenc_jax.hf._layers import WITHOUT_POSITIONS, layer_types
from posenc_jax.hf._models import FACTS, canonical_type
from posenc_jax.hf._plan import RotaryLayer
from posenc_jax.hf._values import Values, parse_mapping

_FULL, _SLIDING, _CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
_WRITTEN, _FIELDS = "layer_attention", ("kind", "window", "chunk", "score_scale")


def _by_type(groups: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for names, value in groups.items() for name in names.split()}


# Their layer types say too little, or their masks are no windows or not the same in all modules and caches.
_OTHER_MASKS = set(
    "blt_global_transformer blt_local_decoder blt_local_encoder cohere2_moe deepseek_ocr2_encoder diffusion_gemma_text "
    "dots3_note_text falcon_h1 kyutai_speech_to_text moshi neomme qwen3_omni_moe_talker_text qwen3_omni_moe_text "
    "t5_gemma_module unlimited_ocr_text".split()
)
# Every layer has the window, if there is one.
_EVERYWHERE = set(
    "blt_patcher doge mimi mimi_decoder mimi_encoder minimax ministral3 mistral mixtral openai_privacy_filter "
    "phi3 phi4_multimodal phimoe pocket_tts_audio_tokenizer pocket_tts_audio_tokenizer_decoder "
    "pocket_tts_audio_tokenizer_encoder qwen3_moe recurrent_gemma starcoder2 voxtral_realtime_encoder "
    "voxtral_realtime_text".split()
)
# There is one with use_sliding_window alone.
_SWITCHED = set(
    "qwen2 qwen2_5_omni_talker qwen2_5_omni_text qwen2_5_vl_text qwen2_moe qwen2_vl_text qwen3 qwen3_moe "
    "smollm3".split()
)
# Which layers have it without layer_types, by their index, whether they rotate, and max_window_layers.
_WINDOWED: dict[str, Callable[[int, bool, int], bool]] = _by_type(
    {
        "dots1 qwen2 qwen2_5_omni_talker qwen2_5_omni_text qwen2_5_vl_text qwen2_vl_text qwen3": (
            lambda i, rotates, depth: i >= depth
        ),
        "qwen2_moe": lambda i, rotates, depth: i % 2 == 0 and i < depth,
        "ministral muse_glimmer_assistant": lambda i, rotates, depth: True,
        "smollm3": lambda i, rotates, depth: not rotates,
    }
)
# What transformers calls a layer type that is read here by another name.
_RENAMED: dict[str, dict[str, str]] = _by_type(
    {
        "axk2 deepseek_v32 glm_moe_dsa hy_v4 hy_v4_vl_text mistral_large4_text qwen4_exp_text": {
            _FULL: "indexed_attention"
        },
        "lfm2 lfm2_moe lfm3": {"linear_attention": "conv"},
        "molmo2_text": {"scaled": _FULL, "plain": _FULL},
    }
)
# The keys of the window's width, in their order, and what the code makes of their numbers.
_WIDTHS: dict[str, dict[str, Callable[[int], int]]] = {
    "llama4_text": {"attention_chunk_size": int},
    "mimo_v2_flash": {"sliding_window_size": lambda n: n + 1, "sliding_window": int},
    "modernbert": {"local_attention": int},
    "modernbert-decoder": {"local_attention": lambda n: n // 2},  # whatever sliding_window says
    "recurrent_gemma": {"attention_window_size": int},
}
# Windows that look both ways, by their width.
_BOTH_WAYS: dict[str, Callable[[int], tuple[int, int]]] = _by_type(
    {
        "embedding_gemma2_text muse_glimmer_assistant openai_privacy_filter ultrabert": lambda n: (n, n),
        "gemma3_text gemma4_text gemma4_unified_text modernbert": lambda n: (n // 2, n // 2),
        "t5gemma2_text": lambda n: ((n - 1) // 2, n // 2),
    }
)
# Those of these types do so with this value of use_bidirectional_attention.
_FLAGS = {"gemma3_text": True, "gemma4_text": "all", "gemma4_unified_text": "all"}
# What stands in place of 1/√head_dim: the key of a number, or a number.
_MULTIPLIER = "attention_multiplier"
_SCALES: dict[str, str | float] = _by_type(
    {
        "gemma2 gemma3_text step3p5 t5_gemma_module t5gemma2_decoder t5gemma2_text vaultgemma": "query_pre_attn_scalar",
        "granite granite4_vision_text granite_docling_text granite_swa granitemoe granitemoe_swa granitemoehybrid "
        "granitemoeshared hyperclovax": _MULTIPLIER,
        "dia_decoder dia_encoder diffusion_gemma_text embedding_gemma2_text gemma3n_text gemma4_text "
        "gemma4_unified_text": 1.0,
    }
)


def with_attention(config: Config, layers: Sequence[RotaryLayer], softmax_scale: float) -> list[RotaryLayer]:
    """The layers, with what they attend to and the factors of their scores."""
    if not config.model_type:
        return _with_written_attention(config, layers)
    model_type, values = canonical_type(config.model_type), config.values
    if model_type is None or model_type not in FACTS["types"]:
        return list(layers)
    width = _width(values, model_type)
    types = [None] * len(layers) if config.model.never_rotates else layer_types(config, len(layers))
    result, described = [], {}
    for layer, kind in zip(layers, _kinds(values, model_type, width, layers, types), strict=True):
        key = id(layer), kind  # equal layers are one object, and hashing each of them is slow
        if key not in described:
            attention: dict[str, Any] = {"kind": kind}
            if kind not in WITHOUT_POSITIONS:
                scale = _scale(values, model_type, layer.head_dim)
                attention["score_scale"] = None if scale is None else scale * softmax_scale
                attention["window"] = _window(values, model_type, kind, width)
                attention["chunk"] = width if kind == _CHUNKED else None
            described[key] = dataclasses.replace(layer, **attention)
        result.append(described[key])
    return result


def _with_written_attention(config: Config, layers: Sequence[RotaryLayer]) -> list[RotaryLayer]:
    """The layers, with what `written_attention` put into a config."""
    written = config.get_list(_WRITTEN)
    if written is None:
        return list(layers)
    count = len(layers)
    require(len(written) == count, "{} must hold a mapping for {} layers, got {}", _WRITTEN, count, len(written))
    result = []
    for i, (layer, values) in enumerate(zip(layers, written, strict=True)):
        fields = Values(parse_mapping(f"{_WRITTEN}[{i}]", values), f"{_WRITTEN}[{i}]")
        attention = {name: fields.get(name) for name in _FIELDS}
        fields.reject_unknown(_FIELDS, "layer_attention")
        result.append(dataclasses.replace(layer, **attention | {"window": fields.get_list("window")}))
    return result


def written_attention(layers: Sequence[RotaryLayer]) -> dict[str, Any]:
    """The config key that holds what the layers attend to, where that is known."""
    written = [{name: getattr(layer, name) for name in _FIELDS} for layer in layers]
    known = [{k: [*v] if k == "window" else v for k, v in fields.items() if v is not None} for fields in written]
    return {_WRITTEN: known} if any(known) else {}


def _width(values: Mapping[str, Any], model_type: str) -> int:
    """The width of windows or chunks: 0 for none."""
    if model_type in _SWITCHED and not values.get("use_sliding_window"):
        return 0
    keys = _WIDTHS.get(model_type, {"sliding_window": int})
    widths = [make(values[key]) for key, make in keys.items() if isinstance(values.get(key), int)]
    return max(widths[0], 0) if widths else 0


def _kinds(
    values: Mapping[str, Any], model_type: str, width: int, layers: Sequence[RotaryLayer], types: Sequence[Any]
) -> list[str | None]:
    """The layer types of the config, or those of the class."""
    if model_type in _OTHER_MASKS:
        return [None] * len(types)
    renamed = _RENAMED.get(model_type, {}) | ({_CHUNKED: _FULL} if width == 0 else {})
    types = [renamed.get(name, name) for name in types]
    if values.get("layer_types") or values.get("layers_block_type"):
        return types
    windowed = _WINDOWED.get(model_type, lambda *_: model_type in _EVERYWHERE)
    depth = values.get("max_window_layers", 28)
    return [
        _SLIDING if kind == _FULL and width != 0 and windowed(i, layer.rotary_dim > 0, depth) else kind
        for i, (layer, kind) in enumerate(zip(layers, types, strict=True))
    ]


def _window(
    values: Mapping[str, Any], model_type: str, kind: str | None, width: int
) -> tuple[int | None, int | None] | None:
    """(left, right), of which a causal mask bounds the right; None if it is not known, or for chunks."""
    everywhere = model_type in _EVERYWHERE
    if kind and width == 0 or kind in (_FULL, "hybrid", "indexed_attention") and not everywhere:
        return None, None
    if kind in (None, _CHUNKED):
        return None
    looks_ahead = model_type not in _FLAGS or values.get("use_bidirectional_attention") == _FLAGS[model_type]
    return _BOTH_WAYS[model_type](width) if model_type in _BOTH_WAYS and looks_ahead else (width - 1, None)


def _scale(values: Mapping[str, Any], model_type: str, head_dim: int) -> float | None:
    """The factor of the scores but for softmax_scale."""
    if model_type == "zamba2":  # counts half of their features
        return (head_dim / 2) ** -0.5
    scale = _SCALES.get(model_type, head_dim**-0.5)
    if not isinstance(scale, str):
        return scale
    if scale not in values:  # the class makes it of head_dim
        return head_dim**-0.5
    if values[scale] is None:
        return None
    value = checks.positive(scale, values[scale])
    return value if scale == _MULTIPLIER else value**-0.5
