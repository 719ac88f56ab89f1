"""The language model's part of a config.json, and the facts of its model_type."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Set
from typing import Any

from posenc_jax._checks import invalid, require
from posenc_jax.hf._forks import advice
from posenc_jax.hf._keys import (
    Keys,
    agreed,
    check_agreement,
    check_case,
    check_read,
    equal,
    mapping_of_strings,
    parse_config,
    speaks_of_positions,
)
from posenc_jax.hf._models import MODELS, UNNAMED, Model, known
from posenc_jax.hf._refused import REFUSED
from posenc_jax.hf._typos import SAME, meant, same_word

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
ORIGINAL = "original_max_position_embeddings"
# Keys of the language model that people write beside it.
_OVERRIDDEN = (
    "rope_scaling",
    "rope_parameters",
    "rope_theta",
    "partial_rotary_factor",
    ORIGINAL,
)
_NAMES = *MODELS, *(name.removesuffix("_text") for name in MODELS), *REFUSED
VERSION = "transformers_version"
# What a layer may have for itself, in per_layer_config.
_OWN_WIDTHS = "head_dim", "qk_nope_head_dim", "qk_rope_head_dim"
# What a composite's class writes into its language model's config where it lacks the key, whatever its type.
_OWN_DEFAULTS = {
    "voxtral": {"rope_theta": 1e8, "head_dim": 128},
    "voxtral_realtime": {"rope_theta": 1e6, "head_dim": 128},
}
# What kind of positions there are, in the words of many files whose code does not read them.
POSITIONS = "position_embedding_type"
ALIBI = "alibi", "use_alibi"
# Flags that many configs have and no code reads, and what they say where layers have positions.
WORDS = {
    **dict.fromkeys(("rope", "rotary", "use_rope", "use_rotary", "use_rotary_embedding", "use_rotary_pos_emb"), True),
    **dict.fromkeys(("nope", "use_nope", *ALIBI), False),
}
RAW = "rope_scaling", "rope_parameters"
_TYPE = "rope_type", "type"
_ALIASES = {"su": "longrope", "mrope": "default", "deepseek_yarn": "yarn"}
_BESIDE = "the key {} = {!r:.60} stands beside {}, where nothing reads it: write it into {}"
# Ignored when false; when true, refused unless the model reads them.
SWITCHES = "use_mrope", "use_dynamic_ntk", "use_logn_attn", "mla_use_nope", "use_fope"


class Config(Keys):
    """The keys of a language model's config, and the facts of its model_type."""

    def __init__(self, values: Mapping[str, Any], model: Model):
        """`values` as `text_of` returns them, `model` as `model_of` does."""
        super().__init__(values)
        self.model, self.model_type = model, values.get("model_type")
        # The keys that a rewriter looked for, and those that it refuses.
        self.rewritten, self.refused = (set(getattr(values, name, ())) for name in ("asked", "refused"))
        self.asked |= self.rewritten

    def with_own(self, own: Mapping[str, Any]) -> Config:
        """The config of a layer with its own values; both configs record keys in the same sets."""
        result = Config({**self.values, **own}, self.model)
        result.used, result.asked = self.used, self.asked
        return result

    def default_of(self, key: str, default: float | None) -> float | None:
        """The default of a missing key in the config's release; raises if releases differ and it says none."""
        moved = self.model.moved
        if moved is None or moved.key != key:
            return default
        written, since = self.string(VERSION) or "", _release(moved.since)
        release = _release(written)
        if release == since and "dev" in written:  # before the change or after it
            release = ()
        message = (
            "{} is missing; its default is {} since transformers {} and was {} before: write {}, or the release that "
            "the config is for as transformers_version, got {!r:.60}"
        )
        said = self.values.get(VERSION)
        require(release, message, key, default, moved.since, moved.before, key, said)
        return default if release >= since else moved.before

    @property
    def switches(self) -> dict[str, bool]:
        """Whether the model reads each switch."""
        read = {"use_logn_attn": self.model.query_scale == "logn", "use_mrope": bool(self.model.sections)}
        return dict.fromkeys(SWITCHES, False) | read

    def check_spelling(self) -> None:
        """Raises for a key that is near one that was looked for, and names one that the model reads."""
        model, optional = self.model, (*UNNAMED.reads, *SWITCHES, "layers_block_type")
        read = {*model.reads, *(name for name, read in self.switches.items() if read)}
        read |= {"layers_block_type"} if model.hybrid else set()
        read |= {"qk_rope_head_dim"} if model.latent else set()
        unread = set(optional) - read - self.rewritten | self.refused
        unread |= {"partial_rotary_factor"} if model.partial is None else set()
        check_spelling(self.values, self.asked, f"model_type {self.model_type!r} reads", unread)

    @property
    def latent(self) -> bool:
        """Whether attention is latent: only the last features of queries and keys have positions."""
        if "qk_rope_head_dim" not in self.model.reads:
            return self.model.latent is not None
        width = agreed(self.found("qk_rope_head_dim"), None)
        return width is not None and not (isinstance(width, int) and width == 0)  # checked where it is read


def _release(version: str) -> tuple[int, ...]:
    """The first two numbers of a version; none if it has none."""
    match = re.match(r"\s*v?(\d+)\.(\d+)", version)
    return tuple(map(int, match.groups())) if match else ()


def check_spelling(
    values: Mapping[str, Any], known: Collection[str], reads: str, unread: Set[str] = frozenset()
) -> None:
    """Raises for a key that is near one of those that are known, of which `unread` only must not contradict others."""
    for key, value in values.items():
        if value is None or not (near := meant(key, known)):
            continue
        read = [name for name in near if name not in unread]
        same = [SAME[name] for name in near if SAME.get(name, key) in set(known) - unread]
        said, name = f"the key {key} = {value!r:.60} is near {' or '.join(read or near)}", " or ".join(read or same)
        if not name:
            raise invalid(f"{said}, which is no key that {reads}: remove it")
        where = "which" if read else "in whose place"
        raise invalid(
            f"{said}, {where} {reads}{'' if read else f' {name}'}: write {name} if that is meant, and remove it if not"
        )


def text_of(config: Any, depth: int = 4, label: str = "config") -> dict[str, Any]:
    """The language model's part of a config, at most `depth` levels deep; errors call the config `label`."""
    require(depth, "config must hold its text_config within four levels")
    outer = parse_config(config, label)
    name = outer.string("model_type")
    parts = outer.found(*_PARTS, *_PARTS_OF.get(name or "", ()))
    if not parts:
        return dict(outer.values)
    check_read(name, REFUSED)
    inner = agreed({key: text_of(part, depth - 1, key) for key, part in parts.items()})
    own_type = _LANGUAGE_TYPES.get(name or "") or inner.get("model_type") or _DEFAULT_TYPES.get(name or "")
    message = "{}.model_type is missing: model_type {!r} may hold any language model"
    fits = own_type or not name or known(name) or name in _SHARED_KEYS or same_word(name, _NAMES)
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
    _check_beside(outer, inner, part)
    _take_words_beside(outer, inner, part)
    outer.finish(speaks_of_positions)
    if inner["model_type"] and outer.found(VERSION):
        inner.setdefault(VERSION, outer.values[VERSION])
    return _with_own_defaults(inner, name or "", part)


def _own_settings(inner: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The rope settings of a language model by where they stand, one for all layers or for each layer type."""
    written = {name: d for name in RAW if isinstance(d := inner.get(name), Mapping)}
    nested = {f"{name}.{k}": x for name, d in written.items() for k, x in d.items() if isinstance(x, Mapping)}
    return nested or written


def _check_beside(outer: Keys, inner: Mapping[str, Any], part: str) -> None:
    """Raises for settings beside the language model, where nothing reads them, unless its own say the same."""
    own = {f"{part}.{where}.": d for where, d in _own_settings(inner).items()} | {f"{part}.": inner}
    for key, value in outer.found(*_OVERRIDDEN).items():
        if key in outer.used or key == ORIGINAL and _repeats_length(value, inner):
            outer.use(key)
            continue
        label, settings = (f"{key}.", value) if isinstance(value, Mapping) else ("", {key: value})
        for name, said in settings.items():
            if said is not None:
                written = {f"{label}{name}": said} | _spelled_in(own, name)
                found = {where: canonical(x) if name in _TYPE else x for where, x in written.items()}
                check_agreement(found, written)
                implied = name in _TYPE and canonical(said) == "default"  # what a missing type means
                require(len(written) > 1 or implied, _BESIDE, key, value, part, part)
        outer.use(key)


def canonical(kind: Any) -> Any:
    """A rope type by its name in transformers 5."""
    return _ALIASES.get(kind, kind) if isinstance(kind, str) else kind


def _spelled_in(own: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    """What settings say for a key, of which `type` and `rope_type` are one."""
    names = _TYPE if name in _TYPE else (name,)
    return {f"{where}{key}": d[key] for where, d in own.items() for key in names if d.get(key) is not None}


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


def model_of(values: Mapping[str, Any]) -> Model:
    """The facts of a config's model_type."""
    name = Keys(values).string("model_type")
    if not name:
        return UNNAMED
    check_read(name, REFUSED)
    own = known(name)
    if own is None or own != name and values.get("patch_size"):  # a tower may have the name of the whole model
        check_case(name, _NAMES)
        raise invalid(f"model_type {name!r} is not known, and its code may do what no key says: {advice(name)}")
    return MODELS[own]


def overrides(config: Config, count: int) -> dict[int, Mapping[str, Any]]:
    """What per_layer_config says of each layer."""
    result = {}
    for index, values in config.within("per_layer_config").values.items():
        fits = str(index).isdecimal() and int(index) < count and isinstance(values, Mapping)
        require(fits, "per_layer_config must map layers below {} to mappings, got {!r}: {!r:.60}", count, index, values)
        name = f"per_layer_config.{index}"
        for key in mapping_of_strings(name, values):
            fits = key in _OWN_WIDTHS or not (speaks_of_positions(key) or meant(key, _OWN_WIDTHS))
            require(fits, "the key {}.{} is not known or not used here", name, key)
        result[int(index)] = values
    return result
