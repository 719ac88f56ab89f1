"""Reading a config.json: its keys, each of which is read or refused, and what each layer is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from posenc_jax import _check
from posenc_jax._hf_models import MODELS, REFUSED, Model

WHERE = "rotary_from_config"
ROTATING = {
    "chunked_attention", "full_attention", "hybrid", "hybrid_sliding", "indexed_attention",
    "reference_sliding_attention", "sliding_attention",
}  # fmt: skip
_STILL = {"conv", "linear_attention"}
_LEGACY = {"attention": "full_attention", "mamba": "linear_attention", "deepseek_sparse_attention": "indexed_attention"}
# Lists of layers, and what the model types that have them are called
_LISTS = {
    "attn_layer_indices": "bamba",
    "full_attn_idxs": "lfm",
    "block_types": "recurrent_gemma",
    "cross_attention_layers": "mllama",
}
_ROPE = re.compile("rope|rotary|theta|alibi")
_MISSING = object()


def error(message: str) -> ValueError:
    """A ValueError of `rotary_from_config`."""
    return ValueError(f"{WHERE}: {message}")


def one(found: Mapping[str, Any], default: Any = _MISSING, *, missing: str = "") -> Any:
    """The value that all spellings of a setting agree on."""
    for name, value in found.items():
        first, agreed = next(iter(found.items()))
        if value is not agreed and not _equal(value, agreed):
            raise error(f"{first} = {agreed!r:.60} contradicts {name} = {value!r:.60}")
    if not found and default is _MISSING:
        raise error(f"{missing} is missing")
    return next(iter(found.values()), default)


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except ValueError:  # arrays
        return False


class Keys:
    """The keys of a mapping, which remembers those that were read. A null is as good as no key."""

    def __init__(self, values: Mapping[str, Any], label: str = "", read: set[str] | None = None):
        """Of `values`; error messages write `label` before the names."""
        self.values, self.label = values, label
        self.read: set[str] = set() if read is None else read

    @property
    def nested(self) -> bool:
        """Whether these are settings for one layer type among others."""
        return self.label.count(".") > 1

    def found(self, *names: str) -> dict[str, Any]:
        """Those of the spellings of a setting that are there."""
        self.read.update(names)
        return {self.label + name: self.values[name] for name in names if self.values.get(name) is not None}

    def spelled(self, *names: str) -> str:
        """How a setting is spelled here: an error names what is written."""
        return next(iter(self.found(*names)), self.label + names[0])

    def get(self, *names: str, default: Any = None) -> Any:
        """The value of a setting."""
        return one(self.found(*names), default)

    def need(self, *names: str) -> Any:
        """The value of a setting that must be there."""
        return one(self.found(*names), missing=self.label + " or ".join(names))

    def number(self, name: str, default: Any = _MISSING) -> Any:
        """The value of a setting that is a number."""
        value = one(self.found(name), default, missing=self.label + name)
        return value if value is default else _check.number(WHERE, self.label + name, value)

    def integer(self, *names: str) -> int:
        """The value of a setting that must be there, an integer of at least one."""
        return _check.positive_int(WHERE, self.spelled(*names), self.need(*names))

    def flag(self, *names: str, default: Any = None) -> Any:
        """The value of a setting that is true or false, or a number in their place (Llama 4 has 4)."""
        found = self.found(*names)
        for name, value in found.items():
            if not isinstance(value, int):
                raise TypeError(f"{WHERE}: {name} must be true or false, got {_check.describe(value)}")
        return bool(one(found, default))

    def items(self, *names: str) -> tuple[Any, ...] | None:
        """The value of a setting that is a list, None if it is not there."""
        name, value, kinds = self.spelled(*names), self.get(*names), "strings or numbers"
        result = None if value is None else _check.sequence(WHERE, name, value, kinds)
        for item in result or ():
            if getattr(item, "ndim", 0):
                raise TypeError(f"{WHERE}: {name} must be a sequence of {kinds}, got one of {_check.describe(item)}")
        return result

    def finish(self, pattern: re.Pattern | None = _ROPE) -> None:
        """Raises if a key that speaks of rotations (None: any key) was not read."""
        for name, value in self.values.items():
            if value is not None and name not in self.read and (pattern is None or pattern.search(name)):
                raise error(f"the key {self.label}{name} = {value!r:.60} is not known or not used here")


def overrides(config: Keys, count: int) -> dict[int, Mapping[str, Any]]:
    """What per_layer_config says of each layer."""
    given = config.get("per_layer_config", default={})
    if not isinstance(given, Mapping):
        raise TypeError(f"{WHERE}: per_layer_config must be a mapping, got {_check.describe(given)}")
    result = {}
    for index, values in given.items():
        if not str(index).isdecimal() or int(index) >= count or not isinstance(values, Mapping):
            raise error(f"per_layer_config must map layers below {count} to mappings, got {index!r}: {values!r:.60}")
        if found := [name for name in values if _ROPE.search(name)]:
            raise error(f"the key per_layer_config.{index}.{found[0]} is not known or not used here")
        result[int(index)] = values
    return result


def text_of(config: Any, depth: int = 4) -> dict[str, Any]:
    """The language model's part of a config, at most so many levels deep."""
    if not depth:
        raise error("config must hold its text_config within four levels")
    if not isinstance(config, type) and callable(getattr(config, "to_dict", None)):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        raise TypeError(f"{WHERE}: config must be a mapping or have to_dict(), got {_check.describe(config)}")
    for name in config:
        if not isinstance(name, str):
            raise TypeError(f"{WHERE}: config must have keys that are strings, got {_check.describe(name)}")
    parts = Keys(config).found("thinker_config", "text_config", "language_config")
    if not parts:
        return dict(config)
    inner = one({name: text_of(part, depth - 1) for name, part in parts.items()})
    inner["model_type"] = inner.get("model_type") or config.get("model_type")
    # transformers 4 wrote some settings in both places; transformers 5 reads the inner.
    Keys(config, read={name for name in inner if _equal(inner[name], config.get(name))}).finish()
    return inner


def rope_settings(values: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The rope settings of a config in both spellings, those that are there and not empty."""
    found = Keys(values).found("rope_scaling", "rope_parameters")
    for name, value in found.items():
        if not isinstance(value, Mapping):
            raise TypeError(f"{WHERE}: {name} must be a mapping, got {_check.describe(value)}")
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{WHERE}: {name} must have keys that are strings, got {_check.describe(key)}")
    return {name: value for name, value in found.items() if value}


def model_of(name: Any) -> Model | None:
    """The facts of a model_type, None if it is not known."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"{WHERE}: model_type must be a string, got {_check.describe(name)}")
    for refused, why in REFUSED.items():
        if name in (refused, f"{refused}_text"):
            raise error(f"model_type {name!r} rotates in a way that a plan cannot say: {why}")
    # A multimodal config of the time before text_config has the name of the whole.
    return MODELS.get(name or "", MODELS.get(f"{name}_text"))


def layer_types(config: Keys, model: Model | None, count: int) -> list[str]:
    """The type of each layer; "full_attention" where the types make no difference."""
    names = "layer_types", "layers_block_type"
    types = config.items(*names)
    if types is not None:
        if len(types) != count or not all(isinstance(name, str) for name in types):
            expected = f"the {count} layers of num_hidden_layers"
            raise error(f"{config.spelled(*names)} must name {expected}, got {len(types)}: {types!r:.60}")
        return [_LEGACY.get(str(name), str(name)) for name in types]
    indices, blocks = (
        _listed(config, model, *names) for names in (("attn_layer_indices", "full_attn_idxs"), ("block_types",))
    )
    if blocks:  # repeated, as by RecurrentGemma
        blocks = [_check.one_of(WHERE, "block_types", block, ("recurrent", "attention")) for block in blocks]
        indices = [i for i in range(count) if blocks[i % len(blocks)] == "attention"]
    if indices is not None:
        _layers(config.spelled("attn_layer_indices", "full_attn_idxs"), indices, count)
        return ["full_attention" if i in indices else "linear_attention" for i in range(count)]
    if model and model.typed:
        raise error("layer_types is missing")
    pattern = model.pattern if model and not _windowless(config, model) else None
    if pattern is None:
        return ["full_attention"] * count
    period = config.integer(pattern.key) if pattern.key and config.found(pattern.key) else pattern.period
    full = [(i + pattern.phase) % period == 0 or (pattern.last and i == count - 1) for i in range(count)]
    return ["full_attention" if x else pattern.other for x in full]


def _listed(config: Keys, model: Model | None, *names: str) -> tuple[Any, ...] | None:
    """The value of a list of layers, which the model type, if it is known, must have."""
    for name, value in config.found(*names).items():
        if model and _LISTS[name] not in config.values["model_type"]:
            raise error(f"the key {name} = {value!r:.60} is not used by model_type {config.values['model_type']!r}")
    return config.items(*names)


def _layers(name: str, indices: Any, count: int) -> None:
    for i in indices:
        if not isinstance(i, int) or i not in range(count):
            raise error(f"{name} must be of the {count} layers, got {i!r:.60}")


def _windowless(config: Keys, model: Model) -> bool:
    return model.windowless and "sliding_window" in config.values and config.values["sliding_window"] is None


def rotates(config: Keys, model: Model | None, types: list[str]) -> list[bool]:
    """Whether each layer has positions, as far as the keys outside the rope settings say."""
    count = len(types)
    result = [name not in _STILL for name in types]
    if model and model.sliding_only and not _windowless(config, model):
        result = [name == "sliding_attention" for name in types]
    if model is None or model.interval:
        # A list wins over the interval, which transformers writes even where it is not the list's.
        flags = config.items("no_rope_layers")
        interval = config.get("no_rope_layer_interval", default=model and model.interval)
        if flags:
            if len(flags) != count or not all(flag in (0, 1) for flag in flags):
                raise error(f"no_rope_layers must hold {count} times 0 or 1, got {list(flags)!r:.60}")
            result = [x and bool(flag) for x, flag in zip(result, flags, strict=True)]
        elif interval is not None:
            interval = _check.positive_int(WHERE, "no_rope_layer_interval", interval)
            result = [x and (i + 1) % interval != 0 for i, x in enumerate(result)]
    crossed = _listed(config, model, "cross_attention_layers") or ()
    _layers("cross_attention_layers", crossed, count)
    result = [x and i not in crossed for i, x in enumerate(result)]
    if config.flag("alibi") or not config.flag("rotary", default=True):
        raise error("the model has no rotary embedding: alibi is true, or rotary false")
    position = config.get("position_embedding_type")
    if position is not None and not isinstance(position, str):
        raise TypeError(f"{WHERE}: position_embedding_type must be a string, got {_check.describe(position)}")
    if model and model.position or position is not None and model is None:
        if position in (None, "nope"):
            return [False] * count
        if position not in ("rope", "rotary"):
            raise error(f"position_embedding_type = {position!r} is not rotary")
    return result


def settings_of(config: Keys, model: Model | None, types: list[str]) -> dict[str, Keys | None]:
    """The rope settings of each layer type, None for layers without positions."""
    config.found("rope_scaling", "rope_parameters")
    name, raw = next(iter(rope_settings(config.values).items()), ("rope_parameters", {}))
    if model and model.required and not raw:
        raise error(f"{name} is missing, and model_type {config.values['model_type']!r} has a default of its own")
    if any(key in types or isinstance(value, Mapping) for key, value in raw.items()):
        result: dict[str, Keys | None] = {}
        for key, value in raw.items():
            if key not in types and key not in ROTATING:
                raise error(f"the key {name}.{key} = {value!r:.60} is none of the layer_types")
            if value is not None and not isinstance(value, Mapping):
                raise TypeError(f"{WHERE}: {name}.{key} must be a mapping, got {_check.describe(value)}")
            if value is None and model and model.thetas:
                raise error(f"{name}.{key} = None: no model_type {config.values['model_type']!r} is without positions")
            result[key] = None if value is None else Keys(value, f"{name}.{key}.")
        if not (config.found("layer_types", "layers_block_type") or model and model.pattern) and not set(raw) <= set(
            types
        ):
            raise error(f"layer_types is missing, and {name} has settings for {sorted(raw)}")
        for missing in ROTATING.intersection(types).difference(raw):
            raise error(f"{name}.{missing} is missing")
        own = [d.values.get("rope_theta") for d in result.values() if d is not None]
        outside = None if model and model.thetas else config.get("rope_theta")
        if outside is not None and outside not in own and None not in own:
            raise error(f"rope_theta = {outside!r} contradicts {name}, whose layer types have {own or 'no positions'}")
        return result
    if unknown := set(types) - ROTATING - _STILL:
        raise error(f"the layer types {sorted(unknown)} of layer_types are not known")
    if model and (model.nested or model.thetas and raw and name == "rope_parameters"):
        raise error(f"{name} must hold settings for each of the layer types {sorted(set(types))}")
    if model and model.null_theta and "rope_theta" in raw and raw["rope_theta"] is None:
        return {}
    same = Keys(raw, f"{name}.")
    return {kind: same if not (model and model.thetas) or kind in model.scaled else Keys({}) for kind in types}


def theta_of(d: Keys, config: Keys, model: Model | None, kind: str) -> float:
    """The base of a layer type."""
    own, default = d.found("rope_theta"), None
    outside = {} if model and model.thetas else config.found("rope_theta", "rotary_emb_base")
    if model and model.thetas:
        if kind not in model.thetas:
            raise error(f"the layer type {kind!r} is not known for model_type {config.values['model_type']!r}")
        config.found(*(key for key, _ in model.thetas.values()))
        key, default = model.thetas[kind]
        outside = config.found(key)
    elif d.nested:  # the outer one is for the layer types that have none
        outside = {} if own else outside
    elif "rope_theta" not in d.values and config.values.get("rope_theta", "") is not None:  # a null is not a default
        default = model.theta if model else None if config.values.get("model_type") else 10_000.0
    found = own | outside or ({} if default is None else {"default": default})
    return _check.positive(WHERE, next(iter(own | outside), "rope_theta"), one(found, missing="rope_theta"))


def head_dim_of(config: Keys, model: Model | None, kind: str) -> int:
    """The features of a query and key of one head."""
    names = ("head_dim", "kv_channels", "attention_head_dim")
    name = config.spelled(*names)
    if found := config.found(*names):
        result = one(found)
    elif model and model.head_dim and not any(name in config.values for name in names):
        result = model.head_dim
    else:
        hidden = config.integer("hidden_size", "n_embd", "d_model")
        heads = config.integer("num_attention_heads", "n_head", "n_heads", "decoder_num_attention_heads")
        if hidden % heads:
            raise error(f"head_dim is missing, and hidden_size = {hidden} is no multiple of {heads} heads")
        result = hidden // heads
    if model and model.global_head_dim and kind == "full_attention":
        written = "per_layer_config" in config.values  # which then holds what differs
        outside = config.found("global_head_dim")
        name = next(iter(outside), name)
        result = one(outside | ({"head_dim": result} if written else {}), model.global_head_dim)
    return _check.size(WHERE, name, result)


def share_of(name: str, value: Any, whole: int) -> int:
    """So many of the features as a share says, rounded down."""
    return int(_check.number(WHERE, name, whole * _check.number(WHERE, name, value)))


def width_of(d: Keys, config: Keys, model: Model | None, head_dim: int) -> int:
    """The features of a head that are rotated."""
    shares = d.found("partial_rotary_factor")
    shares |= config.found("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction")
    found = {f"{name} (of {head_dim})": share_of(name, x, head_dim) for name, x in shares.items()}
    found |= config.found("rotary_dim", "attn_rotary_emb")
    if model and model.partial is None:
        found[f"the width of model_type {config.values['model_type']!r}"] = head_dim
    elif model and model.rotary_dim and "rotary_dim" not in config.values and not found:
        found = {"rotary_dim": model.rotary_dim}
    width = one(found, int(head_dim * model.partial) if model and model.partial else head_dim)
    name = next(iter(found), "head_dim")
    return even(name, width, head_dim)


def even(name: str, width: Any, head_dim: int) -> int:
    """A number of features that can be rotated."""
    if not isinstance(width, int) or width % 2 or not 2 <= width <= head_dim:
        raise error(f"{name} must rotate an even number of features, from 2 to {head_dim}, got {width!r:.60}")
    return width
