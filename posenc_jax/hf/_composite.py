"""The language model inside a composite config, and what stands beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc_jax._jax.errors import require
from posenc_jax.hf._config import ORIGINAL, RAW, VERSION
from posenc_jax.hf._models import PARTS, canonical_type
from posenc_jax.hf._refused import REFUSED
from posenc_jax.hf._values import Values, agreed_value, equal, parse_config, reject_refused, speaks_of_positions

# The keys under which a composite config holds its language model.
_TEXT_KEYS = "thinker_config", "text_config", "language_config", "llm_config", "lm_config", "vlm_config"
# Composites whose own keys belong to the language model too.
_SHARED_KEYS = "DeepseekOCR", "deepseek_vl_v2"
_OLD_KEYS = {"vibepod": ["decoder_config"], "vibevoice": ["decoder_config"], "esmfold2": ["esmc_config"]}
# Keys of a composite that do not concern its language model.
_UNRELATED = {"glmasr": "use_rope", "musicflamingo": "rope_parameters"}
_TEXT_SETTINGS = *RAW, "rope_theta", "partial_rotary_factor", ORIGINAL


def parse_text_config(config: Any, depth: int = 4, label: str = "config") -> tuple[dict[str, Any], dict[str, Any]]:
    """The language model's part of a config, at most `depth` levels deep, and the settings that stand beside it.

    Errors call the config `label`.
    """
    require(depth, "config must hold its text_config within four levels")
    composite, model_type = parse_config(config, label)
    facts = PARTS.get(model_type or "", {})
    languages = (key for key, part in facts.items() if part.get("language"))
    keys = dict.fromkeys((*_TEXT_KEYS, *languages, *_OLD_KEYS.get(model_type or "", ())))
    parts = {key: composite.values[key] for key in keys if composite.look_up(key)}
    if not parts:
        composite.reject_unknown(keys, "rotary_from_config", lambda key: False)
        tower = composite.look_up("vision_config", "audio_config")
        is_whole = not model_type or canonical_type(model_type) or model_type in REFUSED
        missing = not is_whole and (model_type in PARTS or tower and not composite.look_up("num_hidden_layers"))
        require(not missing, "text_config is missing, with the language model of model_type {!r}", model_type)
        return dict(composite.values), {}
    reject_refused(model_type, REFUSED)
    parsed = {key: parse_text_config(part, depth - 1, key) for key, part in parts.items()}
    text, beside = agreed_value(parsed)
    text_key = next(iter(parts))
    part = {"type": "deepseek_v2"} if model_type in _SHARED_KEYS else facts.get(text_key, {})
    always = part.get("always") and part["type"] not in PARTS  # the class ignores a written type
    text_type = part["type"] if always else text.get("model_type") or part.get("type")
    message = "{}.model_type is missing: model_type {!r} may hold any language model"
    require(text_type or not model_type or canonical_type(model_type), message, text_key, model_type)
    text = {**_defaults(part, text), **text, "model_type": text_type or model_type}
    if model_type in _SHARED_KEYS:
        return {key: value for key, value in composite.values.items() if key not in parts} | text, {}
    if composite.look_up(VERSION):
        text.setdefault(VERSION, composite.values[VERSION])
    for key, value in composite.values.items():
        is_setting = (key in _TEXT_SETTINGS or speaks_of_positions(key)) and key != _UNRELATED.get(model_type or "")
        if is_setting and value is not None and not equal(value, text.get(key)):
            beside[key] = value
    return text, beside


def _defaults(part: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    """What the composite's class writes into the config of its language model, which may have settings of its own."""
    defaults = dict(part.get("defaults", {}))
    settings = [Values(text).get_mapping(name) for name in RAW if isinstance(text.get(name), Mapping)]
    if any(values.look_up("rope_theta") for values in (Values(text), *settings)):
        defaults.pop(RAW[1], None)
    elif RAW[1] in defaults and any(mapping.values for mapping in settings):
        defaults["rope_theta"] = defaults.pop(RAW[1])["rope_theta"]
    return defaults
