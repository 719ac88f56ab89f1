"""The rope settings of each layer type, from rope_parameters or rope_scaling, its base, and the widths of its heads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from posenc_jax._jax import checks
from posenc_jax._jax.errors import invalid, require
from posenc_jax.hf._config import HEAD_DIMS, RAW, Config
from posenc_jax.hf._layers import ROTATING, WITHOUT_POSITIONS
from posenc_jax.hf._rope import MAXIMUM, SHARES, default_share, rope_type_of
from posenc_jax.hf._values import Values, agreed_value, check_agreement, equal, parse_mapping

_BASES = "rope_theta", "rotary_emb_base"
_WIDTHS = "rotary_dim", "attn_rotary_emb", "rope_dim"


def rope_settings(values: Mapping[str, Any]) -> list[Values]:
    """The rope settings in each spelling that a config has; empty ones if it has none."""
    spellings = Values(values).look_up(*RAW)
    result = [Values(parse_mapping(name, value), name) for name, value in spellings.items()]
    return [settings for settings in result if settings.values] or [Values({}, "rope_parameters")]


def _class_settings(config: Config, layer_type: str) -> Values | None:
    """The rope settings of the class for a layer type, without those for which keys outside them stand."""
    model, given = config.model, config.values.keys() & config.model.reads
    settings = model.settings.get(layer_type, {}) if model.nested else model.settings
    if settings is None:
        return None
    outside = {MAXIMUM}
    if model.bases or model.changed_defaults or given.intersection(_BASES):
        outside.add("rope_theta")
    if given.intersection((*SHARES, "rotary_dim")):
        outside.add(SHARES[0])
    outside.difference_update(model.ignores)
    return Values({key: value for key, value in settings.items() if key not in outside}, "the class's rope_parameters")


def settings_by_type(config: Config, settings: Values, types: list[str]) -> dict[str, Values | None]:
    """The rope settings of each layer type; a type with None, or without an entry, has no positions."""
    model, name, values = config.model, settings.name, settings.values
    is_nested = any(key in types or isinstance(value, Mapping) for key, value in values.items())
    # A type without settings of its own that is not known would have no positions.
    unknown = set(types) - ROTATING - WITHOUT_POSITIONS - model.bases.keys() - (values.keys() if is_nested else set())
    message = "the layer types {} of {} are not known"
    require(not unknown, message, sorted(unknown), config.spelling("layer_types", "layers_block_type"))
    if is_nested:
        message = "{} must hold one set of settings, not one per layer type, got {!r:.60}"
        is_read = model.nested is not False and not (model.bases and name == RAW[0])
        require(is_read, message, name, values)  # transformers ignores them, or fails
        return _nested(config, settings, types)
    if model.nested and values and (name == RAW[1] or not model.bases):
        rotating = sorted(set(types) - WITHOUT_POSITIONS)
        raise invalid(f"{name} must hold settings for each of the layer types {rotating}")
    scaled = () if not values else model.scaled_types if model.bases else types
    return {x: settings if x in scaled else _class_settings(config, x) for x in dict.fromkeys(types)}


def _nested(config: Config, settings: Values, types: list[str]) -> dict[str, Values | None]:
    """Settings that have an entry for each layer type."""
    model, name = config.model, settings.name
    result: dict[str, Values | None] = {}
    for layer_type, value in settings.values.items():
        fits, label = layer_type in types or layer_type in ROTATING, f"{name}.{layer_type}"
        require(fits, "the key {} = {!r:.60} is none of the layer_types", label, value)
        is_null = value is None and (model.null_settings or layer_type not in ROTATING)
        result[layer_type] = None if is_null else Values(parse_mapping(label, value), label, of_layer_type=True)
    has_types = config.model_type or config.look_up("layer_types", "layers_block_type")
    message = "layer_types is missing, and {} has settings for {}"
    require(has_types or result.keys() <= set(types), message, name, sorted(result))
    for layer_type in sorted(ROTATING.intersection(types)):
        require(layer_type in result, "{}.{} is missing", name, layer_type)
    rotating = [of_type.values for of_type in result.values() if of_type is not None]
    for names, default in ((_BASES, None), (SHARES, model.partial)):
        outside = {} if names is _BASES and model.bases else config.look_up(*names)
        for key, outer in outside.items():
            inner = [default if values.get(names[0]) is None else values[names[0]] for values in rotating]
            fits = any(value is None or equal(value, outer) for value in inner)
            message = "{} = {!r:.60} contradicts {}, whose layer types have {}"
            require(fits, message, key, outer, name, inner or "no positions")
    return result


def base_of(settings: Values, config: Config, layer_type: str) -> float:
    """The base of a layer type with these rope settings."""
    model, inside = config.model, settings.look_up("rope_theta")
    if model.bases:
        message = "the layer type {!r} is not known for model_type {!r}"
        require(layer_type in model.bases, message, layer_type, config.model_type)
        key, default = model.bases[layer_type]
        keys, read = [key], [key for key, _ in model.bases.values()]
    else:
        keys = read = [key for key in _BASES if key in model.reads]
        default = None if settings.of_layer_type else model.theta
    unread = config.look_up(*(key for key in _BASES if key not in read))
    outside = {} if inside and settings.of_layer_type and not model.bases else config.look_up(*keys)
    settings.default_unless_null(default or next(iter(outside.values()), None), "rope_theta")
    if not inside and not outside:
        # Settings that replace those of a file have lost its base. Files from before 2024, with `type`, may have none.
        is_old = settings.name == RAW[0] and (model.bases or not settings.look_up("rope_type"))
        message = (
            "{}rope_theta is missing beside rope_type = {!r}: transformers takes {}, which the model may not "
            "have been trained with: write its base"
        )
        rope_type, usual = rope_type_of(settings), default or model.theta
        require(is_old or rope_type == "default", message, settings.label, rope_type, usual)
        default = config.default_unless_null(default, *keys)
        for key in model.changed_defaults.keys() & {*keys}:
            default = config.in_release(key, default, *model.changed_defaults[key])
    by_default = {} if default is None else {"the base of " + config.label_of_type: default}
    spellings = inside | outside or by_default
    base = agreed_value(spellings and spellings | unread, missing="rope_theta")
    return checks.positive(next(iter(spellings)), base)


# The width of a head, and how many of its features rotate


def head_dim_of(config: Config, layer_type: str) -> int:
    """The width of a head in layers of type `layer_type`."""
    model, names, parts = config.model, HEAD_DIMS, ("qk_nope_head_dim", "qk_rope_head_dim")
    if config.latent:
        return checks.size(" + ".join(parts), sum(map(config.get_integer, parts)))
    is_global = layer_type == "full_attention" and config.look_up("global_head_dim")
    if is_global and "per_layer_config" not in config.values:  # it holds the widths that differ
        names = ("global_head_dim",)
    result = config.get(*names, default=None if model.derives_head_dim else model.defaults.get("head_dim"))
    if result is not None:
        return checks.size(config.spelling(*names), result)
    hidden = config.get_integer("hidden_size", "n_embd", "d_model")
    heads = config.get_integer("num_attention_heads", "n_head", "n_heads", "decoder_num_attention_heads")
    require(hidden % heads == 0, "head_dim is missing, and hidden_size = {} is no multiple of {} heads", hidden, heads)
    return checks.size("hidden_size", hidden // heads)


def rotary_dim_of(settings: Values, config: Config, head_dim: int) -> int:
    """How many features of a head rotate by these rope settings."""
    inside, others = settings.look_up(SHARES[0]), config.look_up(*_WIDTHS)
    if config.latent:
        width = _parse_even("qk_rope_head_dim", config.get("qk_rope_head_dim"), head_dim)
        check_agreement({"qk_rope_head_dim": width} | others)
        wholes = (width,) if config.model.partial == 1 else (head_dim, width)  # 1: the class counts it of the width
        for name, share in (inside | config.look_up(*SHARES)).items():
            if width not in (share_of(name, share, n) for n in wholes):
                raise invalid(f"{name} = {share!r} contradicts qk_rope_head_dim = {width} of {head_dim} features")
        return width
    if rope_type_of(settings) == "proportional":  # its share selects frequencies, not features
        return head_dim
    outside = {} if settings.of_layer_type else config.look_up(*SHARES)
    widths = {f"{name} (of {head_dim})": share_of(name, x, head_dim) for name, x in (inside | outside).items()}
    widths |= others
    is_read = inside or config.model.reads.intersection((*outside, *others))
    default_name = f"the width of model_type {config.model_type!r}" if config.model_type else "head_dim"
    if config.model.partial is None or not is_read:
        widths = {default_name: int(head_dim * default_share(settings, config))} | widths
    check_agreement(widths)
    name, result = next(iter(widths.items()))
    return _parse_even("head_dim" if name == default_name else name, result, head_dim)


def share_of(name: str, share: Any, whole: int) -> int:
    """A share of the whole as a number of features, rounded down."""
    return int(checks.number(name, whole * checks.number(name, share)))


def _parse_even(name: str, width: Any, head_dim: int) -> int:
    """A width that a head can rotate: even, and at most head_dim."""
    fits = isinstance(width, int) and width % 2 == 0 and 2 <= width <= head_dim
    require(fits, "{} must rotate an even number of features, from 2 to {}, got {!r:.60}", name, head_dim, width)
    return width


def share_for(width: int, head_dim: int) -> float:
    """The share of the head that reads back as `width`."""
    share = width / head_dim
    return share if int(head_dim * share) == width else math.nextafter(share, 1)
