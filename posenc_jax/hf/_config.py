"""A language model's config: the facts of its model_type, and the default values of its class for missing keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from posenc_jax._jax.errors import invalid, require, require_type
from posenc_jax.hf._models import MODELS, OTHER_KEYS, PARTS, UNNAMED, Model, canonical_type
from posenc_jax.hf._refused import REFUSED
from posenc_jax.hf._values import (
    Json,
    Values,
    agreed_value,
    check_agreement,
    equal,
    parse_config,
    reject_refused,
    speaks_of_positions,
)

ORIGINAL = "original_max_position_embeddings"
VERSION = "transformers_version"
POSITIONS = "position_embedding_type"
RAW = "rope_scaling", "rope_parameters"
HEAD_DIMS = "head_dim", "kv_channels", "attention_head_dim"
# Keys that only some classes read, which others may have and ignore.
_OF_SOME = {*HEAD_DIMS[1:], "global_head_dim", "layer_types", "layers_block_type"}.union(
    "attn_layer_indices full_attn_idxs block_types cross_attention_layers".split()
)
# What per_layer_config may set for a layer, and what `plan_to_config` writes there: the fields of a `RotaryLayer`.
_LAYER_WIDTHS = "head_dim", "qk_nope_head_dim", "qk_rope_head_dim"
WRITTEN = "query_scale", "kind", "window", "chunk", "score_scale"
# Flags that no code here reads, and what they must say: that layers rotate, by the position alone.
_FLAGS = dict.fromkeys("rope rotary use_rope use_rotary use_rotary_embedding use_rotary_pos_emb".split(), True)
_FLAGS |= dict.fromkeys(
    "alibi mla_use_nope nope position_embedding_xdrope use_alibi use_dynamic_ntk use_fope use_logn_attn use_mrope "
    "use_nope".split(),
    False,
)
LAYOUT_FLAGS = "rope_interleave rope_interleaved rotary_emb_interleaved rope_traditional interleaved".split()
# Keys that are read in, or make no difference to, the config of every model_type.
_COMMON = frozenset((*RAW, *_FLAGS, *LAYOUT_FLAGS, POSITIONS, VERSION, ORIGINAL)).union(
    "model_type hidden_size num_attention_heads num_key_value_heads head_dim num_hidden_layers layer_types "
    "per_layer_config max_position_embeddings rope_theta partial_rotary_factor rotary_dim rope_dim".split()
)


class Config(Values):
    """A language model's config, and the facts of its model_type."""

    def __init__(self, values: Json, model: Model):
        super().__init__(values)
        self.model, self.model_type = model, values.get("model_type")

    def in_release(self, key: str, default: float, since: str, before: float) -> float:
        """The default of a missing key in the config's release: `before` until `since`."""
        written = self.get_string(VERSION)
        numbers = (re.match(r"\s*v?(\d+)\.(\d+)", x or "") for x in (written, since))
        release, first = (tuple(map(int, match.groups())) if match else () for match in numbers)
        message = (
            "{} is missing: its default is {} since transformers {} and {} before: write it, or the release that the "
            "config is for as transformers_version, got {!r:.60}"
        )
        is_known = release and not (release == first and "dev" in str(written))  # before the change or after it
        require(is_known, message, key, default, since, before, written)
        return default if release >= first else before

    @property
    def latent(self) -> bool:
        """Whether attention is latent: only the last features of queries and keys have positions."""
        return self.model.latent is not None and bool(self.model_type or self.look_up("qk_rope_head_dim"))

    @property
    def label_of_type(self) -> str:
        """The model_type, as errors name it."""
        return f"model_type {self.model_type!r}" if self.model_type else "a config without a model_type"

    def reject_unknown_keys(self) -> None:
        """Raises for a key that speaks of positions, or is near one that is read, and that the class does not take."""
        matters = speaks_of_positions if self.model_type else bool
        self.reject_unknown(_COMMON | self.model.reads, self.label_of_type, matters, OTHER_KEYS)

    def check_flags(self, rotates: bool) -> None:
        """Raises for a flag that the code does not read, and that contradicts it."""
        message = "{} = {!r:.60} contradicts the code of {}"
        is_read = {"use_mrope": self.model.sections is not None, "use_logn_attn": self.model.query_scale == "logn"}
        for name in filter(self.look_up, _FLAGS):
            fits = not rotates or is_read.get(name) or self.get_flag(name) == _FLAGS[name]
            require(fits, message, name, not _FLAGS[name], self.label_of_type)
        name = self.get_string(POSITIONS)
        if name is not None and (rotates or POSITIONS not in self.model.reads):
            fits = name.lower() in (("rope", "rotary", "rope_gptj") if rotates else ("nope",))
            require(fits, message, POSITIONS, name, self.label_of_type)


def model_of(values: Json) -> Model:
    """The facts of a config's model_type."""
    name = Values(values).get_string("model_type")
    if not name:
        return UNNAMED
    canonical_name = canonical_type(name)
    reject_refused(name, {} if canonical_name else REFUSED)
    # A tower may have the name of the whole model.
    if not canonical_name or canonical_name != name and values.get("patch_size"):
        raise invalid(
            f"model_type {name!r} is not known, and its code may do what no key says: a known type may be written in "
            "its place only if the code of both is the same in this: which features make a pair, how many rotate, the "
            "base, which layers have positions, what scales queries and scores"
        )
    return MODELS[canonical_name]


def with_class_values(values: Json, model: Model) -> dict[str, Any]:
    """The keys that the class reads, under the names that it maps to, with its values for those that are left out."""
    result = {key: value for key, value in values.items() if key in model.reads or key not in _OF_SOME}
    for name, other in model.names.items():
        if result.get(other) is not None:
            check_agreement(Values(result).look_up(other, name))
            result[name] = result.pop(other)
    defaults = dict(model.defaults)
    if Values(result).look_up(*HEAD_DIMS[1:]):
        defaults.pop(HEAD_DIMS[0], None)
    return defaults | result


def layer_overrides(config: Config, count: int) -> dict[int, Json]:
    """What per_layer_config sets for each layer."""
    result, overrides = {}, config.get("per_layer_config")
    require_type(isinstance(overrides, Mapping | None), "per_layer_config", "a mapping", overrides)
    for index, values in (overrides or {}).items():  # transformers takes integers too
        fits = str(index).isdecimal() and int(index) < count and isinstance(values, Mapping)
        require(fits, "per_layer_config must map layers below {} to mappings, got {!r}: {!r:.60}", count, index, values)
        of_layer = Values(values, f"per_layer_config.{index}")
        known = _LAYER_WIDTHS if config.model_type else _LAYER_WIDTHS + WRITTEN
        of_layer.reject_unknown(known, "rotary_from_config", speaks_of_positions if config.model_type else bool)
        result[int(index)] = values
    return result


# The language model inside a composite config, and what stands beside it

# The keys under which a composite config holds its language model.
_TEXT_KEYS = "thinker_config text_config language_config llm_config lm_config vlm_config".split()
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
    facts = PARTS.get(model_type, {})
    languages = (key for key, part in facts.items() if part.get("language"))
    keys = dict.fromkeys((*_TEXT_KEYS, *languages, *_OLD_KEYS.get(model_type, ())))
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
        is_setting = (key in _TEXT_SETTINGS or speaks_of_positions(key)) and key != _UNRELATED.get(model_type)
        if is_setting and value is not None and not equal(value, text.get(key)):
            beside[key] = value
    return text, beside


def _defaults(part: Json, text: Json) -> dict[str, Any]:
    """What the composite's class writes into the config of its language model, which may have settings of its own."""
    defaults = dict(part.get("defaults", {}))
    settings = [Values(text).get_mapping(name) for name in RAW if isinstance(text.get(name), Mapping)]
    if any(values.look_up("rope_theta") for values in (Values(text), *settings)):
        defaults.pop(RAW[1], None)
    elif RAW[1] in defaults and any(mapping.values for mapping in settings):
        defaults["rope_theta"] = defaults.pop(RAW[1])["rope_theta"]
    return defaults
