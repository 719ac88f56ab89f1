"""The rope settings of each layer type, from rope_parameters or rope_scaling, and its base."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from posenc_jax._jax import checks
from posenc_jax._jax.errors import invalid, require
from posenc_jax.hf._config import VERSION, Config
from posenc_jax.hf._keys import Keys, agreed, check_agreement, equal, mapping, mapping_of_strings
from posenc_jax.hf._layers import ROTATING, WITHOUT_POSITIONS
from posenc_jax.hf._rope import SHARES, rope_type_of

_BASES = "rope_theta", "rotary_emb_base"
# Bases that transformers 5 does not read in some layer types, and what these have.
_FORGOTTEN = {
    "nomic_bert": ("rotary_emb_base", ROTATING, 1_000.0),
    "olmo3": ("rope_theta", {"sliding_attention"}, 500_000.0),
}


def rope_settings(values: Mapping[str, Any]) -> list[Keys]:
    """The rope settings in each spelling that a config has; empty ones if it has none."""
    found = Keys(values).found("rope_scaling", "rope_parameters")
    settings = [Keys(mapping_of_strings(name, value), name) for name, value in found.items()]
    return [d for d in settings if d.values] or [Keys({}, "rope_parameters")]


def settings_by_type(config: Config, settings: Keys, types: list[str]) -> dict[str, Keys | None]:
    """The rope settings of each layer type; a type with None, or without an entry, has no positions."""
    config.use("rope_scaling", "rope_parameters")
    message = "{} is missing, and model_type {!r} has its own default"
    require(settings.values or not config.model.needs_settings, message, settings.name, config.model_type)
    if any(key in types or isinstance(value, Mapping) for key, value in settings.values.items()):
        model = config.model
        read = model.nested is not False or model.thetas and settings.name == "rope_parameters"
        message = "{} must hold one set of settings, not those of layer types, got {!r:.60}"
        require(read, message, settings.name, settings.values)  # transformers ignores them, or fails
        return _nested(config, settings, types)
    return _flat(config, settings, types)


def _nested(config: Config, settings: Keys, types: list[str]) -> dict[str, Keys | None]:
    """Settings that have an entry for each layer type."""
    result = {kind: _entry(config, settings, kind, types) for kind in settings.values}
    known = config.found("layer_types", "layers_block_type") or config.model.pattern
    message = "layer_types is missing, and {} has settings for {}"
    require(known or result.keys() <= set(types), message, settings.name, sorted(result))
    _check_types(config, types, result)
    for kind in sorted(ROTATING.intersection(types)):
        require(kind in result, "{}.{} is missing", settings.name, kind)
    own = [d for d in result.values() if d is not None]
    if not config.model.thetas:
        _outer_fits(config, settings.name, _BASES, [d.values.get(_BASES[0]) for d in own])
    _settle_outer_share(config, settings.name, own)
    return result


def _check_types(config: Config, types: list[str], own: Collection[str] = ()) -> None:
    """Raises for layer types that are not known and have no settings of their own: they would have no positions."""
    unknown = sorted(set(types) - ROTATING - WITHOUT_POSITIONS - set(own))
    named = config.spelled("layer_types", "layers_block_type")
    require(not unknown, "the layer types {} of {} are not known", unknown, named)


def _entry(config: Config, settings: Keys, kind: str, types: list[str]) -> Keys | None:
    name, value = f"{settings.name}.{kind}", settings.values[kind]
    require(kind in types or kind in ROTATING, "the key {} = {!r:.60} is none of the layer_types", name, value)
    if value is not None:
        return Keys(mapping(name, value), name, nested=True)
    message = "{} must be a mapping, got None: in model_type {!r} every layer type has positions"
    require(config.model.null_settings or kind not in ROTATING, message, name, config.model_type)
    return None


def _outer_fits(config: Config, name: str, keys: tuple[str, ...], own: list[Any]) -> None:
    """Raises if every layer type has its own value and none equals the one outside."""
    outer = agreed(config.found(*keys), None)
    if outer is not None and not any(x is None or equal(x, outer) for x in own):
        of_types = f"whose layer types have {own or 'no positions'}"
        raise invalid(f"{config.spelled(*keys)} = {outer!r:.60} contradicts {name}, {of_types}")


def _settle_outer_share(config: Config, name: str, own: list[Keys]) -> None:
    """Drops a share outside the settings if a layer type has the same, by default too.

    Another share stays, and contradicts the widths of the layer types without one.
    """
    outer, shares = agreed(config.found(*SHARES), None), [d.values.get(SHARES[0]) for d in own]
    if outer is None:
        return
    given = any(share is not None for share in shares)
    if given:
        _outer_fits(config, name, SHARES, shares)
    default = 1.0 if given and config.model.partial == 1 else None  # for a layer type without a share
    if any(equal(default if share is None else share, outer) for share in shares):
        config.values = {k: x for k, x in config.values.items() if k not in SHARES}


def _flat(config: Config, settings: Keys, types: list[str]) -> dict[str, Keys | None]:
    """Settings that are the same for all layer types."""
    model, kinds = config.model, sorted(set(types))
    named = [kind for kind in kinds if kind not in WITHOUT_POSITIONS]
    _check_types(config, types)
    if model.nested or (model.thetas and settings.name == "rope_parameters" and settings.values):
        raise invalid(f"{settings.name} must hold settings for each of the layer types {named}")
    scaled = model.scaled_types if model.thetas else kinds
    return {kind: settings if kind in scaled else Keys({}) for kind in kinds}


def check_not_replaced(d: Keys) -> None:
    """Raises for a scaling without a base in rope_parameters: files have both, unless the scaling replaced them."""
    kind = rope_type_of(d)
    message = (
        "{}rope_theta is missing beside rope_type = {!r}: settings that replace those of a file lose its base, "
        "so write that base into them"
    )
    require(kind == "default" or not d.name.startswith("rope_parameters"), message, d.label, kind)


def _check_forgotten(config: Config, kind: str, outside: Mapping[str, Any]) -> None:
    """Raises for a base that transformers 5 does not read, and code before it does, unless the config is older."""
    key, kinds, default = _FORGOTTEN.get(config.model_type or "", ("", (), 0.0))
    if kind not in kinds or key not in outside or equal(outside[key], default) or () < config.release < (5, 0):
        return
    message = (
        "{} = {!r:.60} is the base of all layers in code before transformers 5.0, and in releases since, {} have {}: "
        "write rope_parameters, or the release that the config is for as transformers_version, got {!r:.60}"
    )
    layers = f"those of type {kind}" if config.model.thetas else "they"
    raise invalid(message.format(key, outside[key], layers, default, config.values.get(VERSION)))


def base_of(d: Keys, config: Config, kind: str) -> float:
    """The base of a layer type with the settings `d`."""
    own, model, default, others, null, key = d.take("rope_theta"), config.model, None, {}, (), _BASES[0]
    if model.thetas:
        require(kind in model.thetas, "the layer type {!r} is not known for model_type {!r}", kind, config.model_type)
        config.use(*(key for key, _ in model.thetas.values()))  # the others are for layers of other types
        key, default = model.thetas[kind]
        outside, null = config.found(key), (key,)
    else:
        outside = config.take(*(name for name in _BASES if name in model.reads))
        others = config.take(*(name for name in _BASES if name not in model.reads))  # the code does not read them
        if d.nested:
            outside = {} if own else outside  # a base outside is for layer types without one
        else:
            default, null = model.theta, tuple(name for name in _BASES if name in model.reads)
    d.or_default(default or outside or None, "rope_theta")
    if not own and not outside:
        check_not_replaced(d)
        config.or_default(default, *null)
        default = config.default_of(key, default)
    if not own:
        _check_forgotten(config, kind, outside)
    found = own | outside or ({} if default is None else {f"the base of model_type {config.model_type!r}": default})
    base = agreed(found, missing="rope_theta")
    check_agreement({next(iter(found)): base} | others)
    return checks.positive(next(iter(found)), base)
