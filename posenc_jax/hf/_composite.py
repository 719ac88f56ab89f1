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
    SWITCHES,
    VERSION,
    WORDS,
    canonical,
    check_spelling,
    model_of,
)
from posenc_jax.hf._keys import Keys, agreed, check_agreement, check_read, equal, parse_config, speaks_of_positions
from posenc_jax.hf._layers import COUNTS, ROTATING
from posenc_jax.hf._models import MODELS, UNNAMED, Model, canonical_type
from posenc_jax.hf._refused import REFUSED
from posenc_jax.hf._typos import same_word

# The keys under which a composite config holds its language model.
_PARTS = "thinker_config", "text_config", "language_config", "llm_config", "lm_config"
_PARTS_OF = {
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
_OVERRIDDEN = (
    "rope_scaling",
    "rope_parameters",
    "rope_theta",
    "partial_rotary_factor",
    ORIGINAL,
)
# In names of keys that are meant for one of them.
_NAMES_OF_PARTS = re.compile(r"text|languag|llm|(?<![a-z])lm(?![a-z])|^decoder(.?config)?$", re.IGNORECASE)
_TYPE = "rope_type", "type"
# Keys that speak of positions, but not of bases and shares.
_NO_SETTINGS = "layer_types", "position_embedding_type", "rope_interleave", *WORDS
# What a composite's class writes into its language model's config where it lacks the key, whatever its type.
_OWN_DEFAULTS = {
    "voxtral": {"rope_theta": 1e8, "head_dim": 128},
    "voxtral_realtime": {"rope_theta": 1e6, "head_dim": 128},
}
_BESIDE = "the key {} = {!r:.60} stands beside {}, where nothing reads it: write it into {}"


def text_of(config: Any, depth: int = 4, label: str = "config") -> dict[str, Any]:
    """The language model's part of a config, at most `depth` levels deep; errors call the config `label`."""
    require(depth, "config must hold its text_config within four levels")
    outer = parse_config(config, label)
    name = outer.string("model_type")
    parts = outer.found(*_PARTS, *_PARTS_OF.get(name or "", ()))
    if not parts:
        _check_parts(outer, name)
        return dict(outer.values)
    check_read(name, REFUSED)
    inner = agreed({key: text_of(part, depth - 1, key) for key, part in parts.items()})
    own_type = _LANGUAGE_TYPES.get(name or "") or inner.get("model_type") or _DEFAULT_TYPES.get(name or "")
    message = "{}.model_type is missing: model_type {!r} may hold any language model"
    fits = own_type or not name or canonical_type(name) or name in _SHARED_KEYS or same_word(name, NAMES)
    require(fits, message, next(iter(parts)), name)
    inner["model_type"] = own_type or name
    own = MODELS.get(f"{name}_text")
    if own and inner["model_type"] != name and MODELS.get(str(inner["model_type"])) != own:
        expected, got = f"{name}_text", inner["model_type"]
        raise invalid(f"model_type must be {expected!r} in the language model of {name!r}, got {got!r}")
    if name in _SHARED_KEYS:
        return {key: value for key, value in outer.values.items() if key not in _PARTS} | inner
    # transformers 4 wrote some settings in both places; transformers 5 reads the inner one.
    part = next(iter(parts))
    outer.use(*(name for name, value in inner.items() if equal(value, outer.values.get(name))))
    outer.use(*_UNRELATED_KEYS.get(name or "", ()), *(key for key in SWITCHES if outer.values.get(key) is False))
    check_spelling(outer.values, _OVERRIDDEN, "the language model may have")
    inner = _with_own_defaults(inner, name or "", part)
    _check_beside(outer, inner, part)
    _take_words_beside(outer, inner, part)
    outer.finish(speaks_of_positions)
    if inner["model_type"] and outer.found(VERSION):
        inner.setdefault(VERSION, outer.values[VERSION])
    return inner


def _check_parts(outer: Keys, name: str | None) -> None:
    """Raises if a key that is not known holds the language model, or a composite holds none."""
    for key, value in outer.values.items():
        holds = isinstance(value, Mapping) and not value.keys().isdisjoint((*COUNTS, *_OVERRIDDEN))
        message = "the key {} = {!r:.60} is not known and holds a language model: write text_config if that is meant"
        require(not (holds and _NAMES_OF_PARTS.search(key)), message, key, value)
    tower = next(iter(outer.found("vision_config", "audio_config")), None)
    whole = tower and name and not canonical_type(name) and name not in REFUSED and not outer.found(*COUNTS)
    require(not whole, "text_config is missing beside {}, with the language model of model_type {!r}", tower, name)


def _own_settings(inner: Mapping[str, Any], kind: str | None = None) -> dict[str, Mapping[str, Any]]:
    """The rope settings of a language model by where they stand: those of all layers, or of one layer type."""
    written = {name: d for name in RAW if isinstance(d := inner.get(name), Mapping)}
    nested = {f"{name}.{k}": x for name, d in written.items() for k, x in d.items() if isinstance(x, Mapping)}
    if kind is None or not nested:
        return nested or written
    return {f"{name}.{kind}": nested[f"{name}.{kind}"] for name in written if f"{name}.{kind}" in nested}


def _check_beside(outer: Keys, inner: Mapping[str, Any], part: str) -> None:
    """Raises for settings beside the language model, where nothing reads them, unless its own mean the same."""
    for key, value in outer.found(*_OVERRIDDEN).items():
        if key not in outer.used and not (key == ORIGINAL and _repeats_length(value, inner)):
            for kind, label, settings in _groups(key, value):
                for name, said in settings.items():
                    fits = said is None or _repeats(f"{label}{name}", name, said, inner, part, kind)
                    shown = (f"{label}{name}", said) if kind else (key, value)
                    require(fits, _BESIDE, *shown, part, part)
        outer.use(key)


def _groups(key: str, value: Any) -> list[tuple[str | None, str, Mapping[str, Any]]]:
    """Settings for all layers and for each layer type: the type, how errors begin their names, the settings."""
    if not isinstance(value, Mapping):
        return [(None, "", {key: value})]
    nested = {kind: d for kind, d in value.items() if isinstance(d, Mapping)}
    flat = {k: nested and x is None or x for k, x in value.items() if k not in nested}  # a null may be a layer type's
    return [(None, f"{key}.", flat), *((kind, f"{key}.{kind}.", d) for kind, d in nested.items())]


def _repeats(label: str, name: str, said: Any, inner: Mapping[str, Any], part: str, kind: str | None) -> bool:
    """Whether the language model's config says the same for a key, or leaves it out and means the same.

    Raises if it says something else.
    """
    model, own, nested = _facts_of(inner), _own_settings(inner, kind), not _own_settings(inner).keys() <= {*RAW}
    known_kind = bool(own) if nested else kind in ROTATING
    if kind is not None and not known_kind:
        return False
    if model.thetas and not nested and kind not in (None, *model.scaled_types):
        own = {}  # an old rope_scaling is for the other layers
    theta, base = (model.thetas or {}).get(kind or "", ("rope_theta", model.theta))
    names = _TYPE if name in _TYPE else (name,)
    found = {f"{part}.{where}.{k}": d[k] for where, d in own.items() for k in names if d.get(k) is not None}
    if kind is None or not found:
        outside = (theta,) if name == "rope_theta" else names
        found |= {f"{part}.{k}": inner[k] for k in outside if inner.get(k) is not None}
    if found:
        written = {label: said} | found
        check_agreement({key: canonical(x) if name in _TYPE else x for key, x in written.items()}, written)
        return True
    usual: dict[str, Any] = {**dict.fromkeys(_TYPE, "default"), "beta_fast": 32, "beta_slow": 1, "truncate": True}
    read = *RAW, *_OVERRIDDEN, *(key for key, _ in (model.thetas or {}).values()), *_NO_SETTINGS
    others = (key for key, value in inner.items() if value is not None and key not in read)
    if not any(map(speaks_of_positions, others)):  # they may say it in other words
        usual["rope_theta"] = None if model.moved or model.nested else base
        by_itself = model.whole_if_scaled or model.rotary_dim or inner.get("model_type") == "neomme"
        usual["partial_rotary_factor"] = None if by_itself else model.partial or 1.0
    return name in usual and equal(canonical(said), usual[name])


def _facts_of(inner: Mapping[str, Any]) -> Model:
    return MODELS.get(canonical_type(str(inner.get("model_type"))) or "", UNNAMED)


def _take_words_beside(outer: Keys, inner: dict[str, Any], part: str) -> None:
    """Moves words that only say what the code does into the language model's config, where they are checked."""
    for key, value in outer.found(*WORDS, "rope_traditional", POSITIONS).items():
        if key in outer.used:
            continue
        check_agreement({key: value} | Keys(inner, part).found(key))
        require(key not in model_of(inner).reads, _BESIDE, key, value, part, part)
        inner[key] = value
        outer.use(key)


def _with_own_defaults(inner: dict[str, Any], name: str, part: str) -> dict[str, Any]:
    """The language model's config with the defaults that the composite's class has for it."""
    own = dict(_OWN_DEFAULTS.get(name, {}))
    if any(d.get("rope_theta") is not None for d in _own_settings(inner).values()):
        own.pop("rope_theta", None)
    elif own:
        Keys(inner, part).or_default(own["rope_theta"], "rope_theta")  # raises for a null
    return own | inner  # where a null head_dim means hidden_size / num_attention_heads


def _repeats_length(value: Any, inner: Mapping[str, Any]) -> bool:
    """Whether an original length beside the language model is the one inside, or none is needed there."""
    settings = _own_settings(inner).values()
    lengths = [d[ORIGINAL] for d in (inner, *settings) if d.get(ORIGINAL) is not None]
    model = MODELS.get(str(inner.get("model_type")))
    if not lengths and model and model.original_max:
        lengths = [model.original_max]
    if not lengths:
        return not any("factor" in d for d in settings)
    return all(equal(value, length) for length in lengths)
