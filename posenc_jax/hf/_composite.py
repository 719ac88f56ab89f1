"""The language model inside a composite config, and what may stand beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from posenc_jax._jax.errors import invalid, require
from posenc_jax.hf._config import (
    NAMES,
    ORIGINAL,
    POSITIONS,
    RAW,
    REDUNDANT_FLAGS,
    SWITCHES,
    VERSION,
    canonical,
    check_spelling,
    model_of,
)
from posenc_jax.hf._layers import COUNTS, ROTATING
from posenc_jax.hf._models import MODELS, UNNAMED, canonical_type
from posenc_jax.hf._refused import REFUSED
from posenc_jax.hf._tracked_mapping import (
    TrackedMapping,
    agreed_value,
    check_agreement,
    concerns_positions,
    equal,
    parse_config,
    reject_refused,
)
from posenc_jax.hf._typos import spelled_like

# The keys under which a composite config holds its language model.
_TEXT_KEYS = "thinker_config", "text_config", "language_config", "llm_config", "lm_config"
_TEXT_KEYS_OF = {
    "dia": ("decoder_config",),
    "esmfold2": ("esmc_config",),
    "t5gemma": ("decoder",),
    "t5gemma2": ("decoder",),
    "vibevoice": ("decoder_config",),
    "vibepod": ("decoder_config",),
}
# Composites whose language model has this type, whatever text_config says.
_LANGUAGE_TYPES = {"deepseek_ocr2": "deepseek_ocr2_text", "step3p7": "step3p5", "unlimited_ocr": "unlimited_ocr_text"}
# The type of a language model that leaves it out, by the composite's class, where their names differ.
_DEFAULT_TYPES = {
    "emu3": "emu3_text_model",
    "mllama": "mllama_text_model",
    "qwen2_5_omni_thinker": "qwen2_5_omni_text",
    "qwen3_omni_moe_thinker": "qwen3_omni_moe_text",
    "t5gemma2_encoder": "t5gemma2_text",
}
# Composites whose own keys belong to the language model too.
_SHARED_KEYS = {"DeepseekOCR", "deepseek_vl_v2"}
# Keys of a composite that do not concern its language model.
_UNRELATED_KEYS = {"glmasr": ("use_rope",), "musicflamingo": ("rope_parameters",)}
# Keys of the language model that people write beside it.
_TEXT_SETTINGS = *RAW, "rope_theta", "partial_rotary_factor", ORIGINAL
# Parts of the names of keys that people write for one of _TEXT_KEYS.
_TEXT_KEY_NAMES = re.compile(r"text|languag|llm|(?<![a-z])lm(?![a-z])|^decoder(.?config)?$", re.IGNORECASE)
_ROPE_TYPE = "rope_type", "type"
# Keys that concern positions, but neither bases nor shares.
_NEUTRAL_KEYS = "layer_types", "position_embedding_type", "rope_interleave", *REDUNDANT_FLAGS
# What a composite's class writes into its language model's config where it lacks the key, whatever its type.
_TEXT_DEFAULTS = {
    "voxtral": {"rope_theta": 1e8, "head_dim": 128},
    "voxtral_realtime": {"rope_theta": 1e6, "head_dim": 128},
}
_MISPLACED = "the key {} = {!r:.60} stands beside {}, where nothing reads it: write it into {}"


def parse_text_config(config: Any, depth: int = 4, label: str = "config") -> dict[str, Any]:
    """The language model's part of a config, at most `depth` levels deep; errors call the config `label`."""
    require(depth, "config must hold its text_config within four levels")
    composite, model_type = parse_config(config, label)
    parts = composite.look_up(*_TEXT_KEYS, *_TEXT_KEYS_OF.get(model_type or "", ()))
    if not parts:
        _check_no_text_config(composite, model_type)
        return dict(composite.values)
    reject_refused(model_type, REFUSED)
    text_config = agreed_value({key: parse_text_config(part, depth - 1, key) for key, part in parts.items()})
    text_key = next(iter(parts))
    text_config["model_type"] = _parse_text_type(text_config.get("model_type"), model_type, text_key)
    if model_type in _SHARED_KEYS:
        return {key: value for key, value in composite.values.items() if key not in _TEXT_KEYS} | text_config
    # transformers 4 wrote some settings in both places; transformers 5 reads the inner one.
    composite.mark_read(*(key for key, value in text_config.items() if equal(value, composite.values.get(key))))
    composite.mark_read(*_UNRELATED_KEYS.get(model_type or "", ()))
    composite.mark_read(*(key for key in SWITCHES if composite.values.get(key) is False))
    check_spelling(composite.values, _TEXT_SETTINGS, "the language model may have")
    text_config = _with_defaults(text_config, model_type or "", text_key)
    _check_misplaced(composite, text_config, text_key)
    _move_redundant_flags(composite, text_config, text_key)
    composite.reject_unread(concerns_positions)
    if text_config["model_type"] and composite.look_up(VERSION):
        text_config.setdefault(VERSION, composite.values[VERSION])
    return text_config


def _parse_text_type(written: Any, composite_type: str | None, text_key: str) -> Any:
    """The language model's type: by the composite's class, as written, by default, or that of the composite."""
    name = composite_type or ""
    text_type = _LANGUAGE_TYPES.get(name) or written or _DEFAULT_TYPES.get(name)
    message = "{}.model_type is missing: model_type {!r} may hold any language model"
    fits = text_type or not name or canonical_type(name) or name in _SHARED_KEYS or spelled_like(name, NAMES)
    require(fits, message, text_key, composite_type)
    text_type, usual = text_type or composite_type, f"{composite_type}_text"
    if usual in MODELS and text_type != composite_type and MODELS.get(str(text_type)) != MODELS[usual]:
        raise invalid(f"model_type must be {usual!r} in the language model of {composite_type!r}, got {text_type!r}")
    return text_type


def _check_no_text_config(config: TrackedMapping, model_type: str | None) -> None:
    """Raises if a key that is not known holds the language model, or a composite holds none."""
    for key, value in config.values.items():
        holds = isinstance(value, Mapping) and not value.keys().isdisjoint((*COUNTS, *_TEXT_SETTINGS))
        message = "the key {} = {!r:.60} is not known and holds a language model: write text_config if that is meant"
        require(not (holds and _TEXT_KEY_NAMES.search(key)), message, key, value)
    tower = next(iter(config.look_up("vision_config", "audio_config")), None)
    is_whole = not model_type or canonical_type(model_type) or model_type in REFUSED
    message = "text_config is missing beside {}, with the language model of model_type {!r}"
    require(not tower or is_whole or config.look_up(*COUNTS), message, tower, model_type)


def _rope_settings(text_config: Mapping[str, Any], layer_type: str | None = None) -> dict[str, Mapping[str, Any]]:
    """The rope settings of a language model by their dotted names: those of all layers, or of one layer type."""
    flat = {name: settings for name in RAW if isinstance(settings := text_config.get(name), Mapping)}
    nested = {
        f"{name}.{key}": value
        for name, settings in flat.items()
        for key, value in settings.items()
        if isinstance(value, Mapping)
    }
    if layer_type is None or not nested:
        return nested or flat
    names = [f"{name}.{layer_type}" for name in flat]
    return {name: nested[name] for name in names if name in nested}


def _check_misplaced(composite: TrackedMapping, text_config: Mapping[str, Any], text_key: str) -> None:
    """Raises for settings beside the language model, where nothing reads them, unless its own mean the same."""
    for key, value in composite.look_up(*_TEXT_SETTINGS).items():
        if key not in composite.keys_read and not (key == ORIGINAL and _repeats_length(value, text_config)):
            for layer_type, label, settings in _by_layer_type(key, value):
                for name, setting in settings.items():
                    repeats = setting is None or _repeats(
                        f"{label}{name}", name, setting, text_config, text_key, layer_type
                    )
                    shown = (f"{label}{name}", setting) if layer_type else (key, value)
                    require(repeats, _MISPLACED, *shown, text_key, text_key)
        composite.mark_read(key)


def _by_layer_type(key: str, value: Any) -> list[tuple[str | None, str, Mapping[str, Any]]]:
    """Settings for all layers and for each layer type: the type, how errors begin their names, the settings."""
    if not isinstance(value, Mapping):
        return [(None, "", {key: value})]
    nested = {name: settings for name, settings in value.items() if isinstance(settings, Mapping)}
    # A null may be a layer type's.
    flat = {name: nested and x is None or x for name, x in value.items() if name not in nested}
    return [(None, f"{key}.", flat), *((name, f"{key}.{name}.", settings) for name, settings in nested.items())]


def _repeats(
    label: str, name: str, value: Any, text_config: Mapping[str, Any], text_key: str, layer_type: str | None
) -> bool:
    """Whether the language model's config has the same value for a setting, by default too.

    Raises if it has another one.
    """
    model = MODELS.get(canonical_type(str(text_config.get("model_type"))) or "", UNNAMED)
    settings = _rope_settings(text_config, layer_type)
    nested = not _rope_settings(text_config).keys() <= {*RAW}
    has_type = bool(settings) if nested else layer_type in ROTATING
    if layer_type is not None and not has_type:
        return False
    if model.thetas and not nested and layer_type not in (None, *model.scaled_types):
        settings = {}  # an old rope_scaling is for the other layers
    base_key, base = (model.thetas or {}).get(layer_type or "", ("rope_theta", model.theta))
    names = _ROPE_TYPE if name in _ROPE_TYPE else (name,)
    spellings = {
        f"{text_key}.{where}.{k}": d[k] for where, d in settings.items() for k in names if d.get(k) is not None
    }
    if layer_type is None or not spellings:
        outside = (base_key,) if name == "rope_theta" else names
        spellings |= {f"{text_key}.{k}": text_config[k] for k in outside if text_config.get(k) is not None}
    if spellings:
        written = {label: value} | spellings
        check_agreement({key: canonical(x) if name in _ROPE_TYPE else x for key, x in written.items()}, written)
        return True
    usual: dict[str, Any] = {**dict.fromkeys(_ROPE_TYPE, "default"), "beta_fast": 32, "beta_slow": 1, "truncate": True}
    base_keys = [key for key, _ in (model.thetas or {}).values()]
    read = *_TEXT_SETTINGS, *base_keys, *_NEUTRAL_KEYS
    others = (key for key, x in text_config.items() if x is not None and key not in read)
    if not any(map(concerns_positions, others)):  # other keys may set the base or the share
        usual["rope_theta"] = None if model.changed_default or model.nested else base
        differs = model.whole_if_scaled or model.rotary_dim or text_config.get("model_type") == "neomme"
        usual["partial_rotary_factor"] = None if differs else model.partial or 1.0
    return name in usual and equal(canonical(value), usual[name])


def _move_redundant_flags(composite: TrackedMapping, text_config: dict[str, Any], text_key: str) -> None:
    """Moves keys that repeat what the code does into the language model's config, where they are checked."""
    for key, value in composite.look_up(*REDUNDANT_FLAGS, "rope_traditional", POSITIONS).items():
        if key in composite.keys_read:
            continue
        check_agreement({key: value} | TrackedMapping(text_config, text_key).look_up(key))
        require(key not in model_of(text_config).reads, _MISPLACED, key, value, text_key, text_key)
        text_config[key] = value
        composite.mark_read(key)


def _with_defaults(text_config: dict[str, Any], composite_type: str, text_key: str) -> dict[str, Any]:
    """The language model's config with the defaults that the composite's class has for it."""
    defaults = dict(_TEXT_DEFAULTS.get(composite_type, {}))
    if any(settings.get("rope_theta") is not None for settings in _rope_settings(text_config).values()):
        defaults.pop("rope_theta", None)
    elif defaults:
        TrackedMapping(text_config, text_key).default_unless_null(defaults["rope_theta"], "rope_theta")
    return defaults | text_config  # where a null head_dim means hidden_size / num_attention_heads


def _repeats_length(value: Any, text_config: Mapping[str, Any]) -> bool:
    """Whether an original length beside the language model is the one inside, or none is needed there."""
    settings = _rope_settings(text_config).values()
    lengths = [d[ORIGINAL] for d in (text_config, *settings) if d.get(ORIGINAL) is not None]
    model = MODELS.get(str(text_config.get("model_type")))
    if not lengths and model and model.original_max:
        lengths = [model.original_max]
    if not lengths:
        return not any("factor" in d for d in settings)
    return all(equal(value, length) for length in lengths)
