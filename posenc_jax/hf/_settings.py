"""The rope settings of each layer type, from rope_parameters or rope_scaling, and its base."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from posenc_jax._jax import checks
from posenc_jax._jax.errors import invalid, require
from posenc_jax.hf._config import VERSION, Config
from posenc_jax.hf._layers import ROTATING, WITHOUT_POSITIONS
from posenc_jax.hf._rope import SHARES, rope_type_of
from posenc_jax.hf._tracked_mapping import (
    TrackedMapping,
    agreed_value,
    check_agreement,
    equal,
    parse_mapping,
    parse_string_mapping,
)

_BASES = "rope_theta", "rotary_emb_base"
# Bases that transformers 5 does not read in some layer types, and the base of these types.
_UNREAD_BASES = {
    "nomic_bert": ("rotary_emb_base", ROTATING, 1_000.0),
    "olmo3": ("rope_theta", {"sliding_attention"}, 500_000.0),
}


def rope_settings(values: Mapping[str, Any]) -> list[TrackedMapping]:
    """The rope settings in each spelling that a config has; empty ones if it has none."""
    spellings = TrackedMapping(values).look_up("rope_scaling", "rope_parameters")
    result = [TrackedMapping(parse_string_mapping(name, value), name) for name, value in spellings.items()]
    return [settings for settings in result if settings.values] or [TrackedMapping({}, "rope_parameters")]


def settings_by_type(config: Config, settings: TrackedMapping, types: list[str]) -> dict[str, TrackedMapping | None]:
    """The rope settings of each layer type; a type with None, or without an entry, has no positions."""
    config.mark_read("rope_scaling", "rope_parameters")
    message = "{} is missing, and model_type {!r} has its own default"
    require(settings.values or not config.model.needs_settings, message, settings.name, config.model_type)
    if any(key in types or isinstance(value, Mapping) for key, value in settings.values.items()):
        model = config.model
        is_read = model.nested is not False or model.thetas and settings.name == "rope_parameters"
        message = "{} must hold one set of settings, not those of layer types, got {!r:.60}"
        require(is_read, message, settings.name, settings.values)  # transformers ignores them, or fails
        return _nested(config, settings, types)
    return _flat(config, settings, types)


def _nested(config: Config, settings: TrackedMapping, types: list[str]) -> dict[str, TrackedMapping | None]:
    """Settings that have an entry for each layer type."""
    result = {layer_type: _settings_of_type(config, settings, layer_type, types) for layer_type in settings.values}
    has_types = config.look_up("layer_types", "layers_block_type") or config.model.pattern
    message = "layer_types is missing, and {} has settings for {}"
    require(has_types or result.keys() <= set(types), message, settings.name, sorted(result))
    _check_types(config, types, result)
    for layer_type in sorted(ROTATING.intersection(types)):
        require(layer_type in result, "{}.{} is missing", settings.name, layer_type)
    rotating = [type_settings for type_settings in result.values() if type_settings is not None]
    if not config.model.thetas:
        bases = [type_settings.values.get(_BASES[0]) for type_settings in rotating]
        _check_outer_value(config, settings.name, _BASES, bases)
    _drop_repeated_share(config, settings.name, rotating)
    return result


def _check_types(config: Config, types: list[str], with_settings: Collection[str] = ()) -> None:
    """Raises for layer types that are not known and have no settings of their own: they would have no positions."""
    unknown = sorted(set(types) - ROTATING - WITHOUT_POSITIONS - set(with_settings))
    spelling = config.spelling("layer_types", "layers_block_type")
    require(not unknown, "the layer types {} of {} are not known", unknown, spelling)


def _settings_of_type(
    config: Config, settings: TrackedMapping, layer_type: str, types: list[str]
) -> TrackedMapping | None:
    """The settings of one layer type; None if it has no positions."""
    name, value = f"{settings.name}.{layer_type}", settings.values[layer_type]
    require(
        layer_type in types or layer_type in ROTATING, "the key {} = {!r:.60} is none of the layer_types", name, value
    )
    if value is not None:
        return TrackedMapping(parse_mapping(name, value), name, of_layer_type=True)
    message = "{} must be a mapping, got None: in model_type {!r} every layer type has positions"
    require(config.model.null_settings or layer_type not in ROTATING, message, name, config.model_type)
    return None


def _check_outer_value(config: Config, name: str, keys: tuple[str, ...], inner_values: list[Any]) -> None:
    """Raises if every layer type has a value of its own and none equals the one outside the settings."""
    outer = agreed_value(config.look_up(*keys), None)
    if outer is not None and not any(value is None or equal(value, outer) for value in inner_values):
        of_types = f"whose layer types have {inner_values or 'no positions'}"
        raise invalid(f"{config.spelling(*keys)} = {outer!r:.60} contradicts {name}, {of_types}")


def _drop_repeated_share(config: Config, name: str, rotating: list[TrackedMapping]) -> None:
    """Drops a share outside the settings if a layer type has the same, by default too.

    Another share stays, and contradicts the widths of the layer types without one.
    """
    outer = agreed_value(config.look_up(*SHARES), None)
    if outer is None:
        return
    shares = [type_settings.values.get(SHARES[0]) for type_settings in rotating]
    some = any(share is not None for share in shares)
    if some:
        _check_outer_value(config, name, SHARES, shares)
    default = 1.0 if some and config.model.partial == 1 else None  # for a layer type without a share
    if any(equal(default if share is None else share, outer) for share in shares):
        config.values = {k: x for k, x in config.values.items() if k not in SHARES}


def _flat(config: Config, settings: TrackedMapping, types: list[str]) -> dict[str, TrackedMapping | None]:
    """Settings that are the same for all layer types."""
    model, distinct_types = config.model, sorted(set(types))
    _check_types(config, types)
    if model.nested or (model.thetas and settings.name == "rope_parameters" and settings.values):
        rotating = [layer_type for layer_type in distinct_types if layer_type not in WITHOUT_POSITIONS]
        raise invalid(f"{settings.name} must hold settings for each of the layer types {rotating}")
    scaled_types = model.scaled_types if model.thetas else distinct_types
    return {x: settings if x in scaled_types else TrackedMapping({}) for x in distinct_types}


def check_base_kept(settings: TrackedMapping) -> None:
    """Raises for a scaling without a base in rope_parameters: files have both, unless the scaling replaced them."""
    rope_type = rope_type_of(settings)
    message = (
        "{}rope_theta is missing beside rope_type = {!r}: settings that replace those of a file lose its base, "
        "so write that base into them"
    )
    fits = rope_type == "default" or not settings.name.startswith("rope_parameters")
    require(fits, message, settings.label, rope_type)


def _check_unread_base(config: Config, layer_type: str, outside: Mapping[str, Any]) -> None:
    """Raises for a base that transformers 5 does not read, and code before it does, unless the config is older."""
    key, unread_types, default = _UNREAD_BASES.get(config.model_type or "", ("", (), 0.0))
    if layer_type not in unread_types or key not in outside or equal(outside[key], default):
        return
    if () < config.release < (5, 0):
        return
    message = (
        "{} = {!r:.60} is the base of all layers in code before transformers 5.0, and in releases since, {} have {}: "
        "write rope_parameters, or the release that the config is for as transformers_version, got {!r:.60}"
    )
    layers = f"those of type {layer_type}" if config.model.thetas else "they"
    raise invalid(message.format(key, outside[key], layers, default, config.values.get(VERSION)))


def base_of(settings: TrackedMapping, config: Config, layer_type: str) -> float:
    """The base of a layer type with these rope settings."""
    model, inside = config.model, settings.read("rope_theta")
    key, default, keys_with_default, unread = _BASES[0], None, (), {}
    if model.thetas:
        require(
            layer_type in model.thetas,
            "the layer type {!r} is not known for model_type {!r}",
            layer_type,
            config.model_type,
        )
        config.mark_read(*(key for key, _ in model.thetas.values()))  # the others are for layers of other types
        key, default = model.thetas[layer_type]
        outside, keys_with_default = config.look_up(key), (key,)
    else:
        keys_read = tuple(name for name in _BASES if name in model.reads)
        outside = config.read(*keys_read)
        unread = config.read(*(name for name in _BASES if name not in keys_read))  # the code does not read them
        if settings.of_layer_type:
            outside = {} if inside else outside  # a base outside is for layer types without one
        else:
            default, keys_with_default = model.theta, keys_read
    settings.default_unless_null(default or outside or None, "rope_theta")
    if not inside and not outside:
        check_base_kept(settings)
        config.default_unless_null(default, *keys_with_default)
        default = config.default_in_release(key, default)
    if not inside:
        _check_unread_base(config, layer_type, outside)
    spellings = inside | outside
    if not spellings and default is not None:
        spellings = {f"the base of model_type {config.model_type!r}": default}
    base = agreed_value(spellings, missing="rope_theta")
    name = next(iter(spellings))
    check_agreement({name: base} | unread)
    return checks.positive(name, base)
