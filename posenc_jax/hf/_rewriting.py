"""Functions of several rewriters, which take keys out of a config, check them, and put others in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from posenc_jax._jax import checks
from posenc_jax._jax.errors import invalid, require
from posenc_jax.hf._config import RAW
from posenc_jax.hf._layers import count_of
from posenc_jax.hf._values import Values, agreed_value, check_agreement, equal, parse_mapping

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"

Config = dict[str, Any]
Rewriter = Callable[[Config], None]


# Take


def take_layers(config: Config, name: str, *, more: str = "") -> tuple[Any, ...] | None:
    """Takes out a list with an item for each layer; the key `more` says how many more items it may have."""
    items = Values(config).get_list(name)
    config.pop(name, None)
    if items is None:
        return None
    count, rest = count_of(Values(config)), config.get(more) if more else 0
    fits = len(items) == count or isinstance(rest, int) and len(items) == count + rest
    require(fits, "{} must have {} items, one for each layer, got {}", name, count, len(items))
    return items[:count]


def take_flags(config: Config, name: str) -> tuple[Any, ...] | None:
    """Takes out a list of zeros and ones, one for each layer."""
    flags = take_layers(config, name)
    fits = flags is None or all(isinstance(flag, int) and flag in (0, 1) for flag in flags)
    require(fits, "{} must hold 0 or 1, got {!r:.60}", name, flags)
    return flags


def take_only(config: Config, usual: Any, *names: str) -> None:
    """Takes out keys that must have the value `usual`."""
    for name in names:
        value = config.pop(name, None)
        same = equal(value, usual) and isinstance(value, bool) == isinstance(usual, bool)
        if value is not None and not same:
            raise invalid(f"{name} must be {usual!r} in model_type {config['model_type']!r}, got {value!r:.60}")


def take_settings(config: Config) -> dict[str, Any]:
    """Takes out the rope settings, in either spelling."""
    spellings = {name: dict(parse_mapping(name, value)) for name, value in Values(config).look_up(*RAW).items()}
    for name in RAW:
        config.pop(name, None)
    return agreed_value({name: settings for name, settings in spellings.items() if settings}, {})


def is_nested(config: Config) -> bool:
    """Whether the rope settings have an entry for each layer type."""
    settings = [Values(config).get_mapping(name).values for name in RAW]
    return any(isinstance(value, Mapping) for mapping in settings for value in mapping.values())


def refuse(config: Mapping[str, Any], *names: str) -> None:
    """Raises if a config has one of these keys: the code of its model_type does not read them."""
    for name in names:
        value, model_type = config.get(name), config["model_type"]
        if value is not None and not equal(value, {}):
            raise invalid(f"{name} = {value!r:.60} is not read by the code of model_type {model_type!r}")


# Put


def put_types(config: Config, source: str, types: Iterable[str]) -> None:
    """Writes the types of layers, which come from the key `source`; the config must not contradict them."""
    types = list(types)
    for name, value in Values(config).look_up("layer_types", "layers_block_type").items():
        same = isinstance(value, Sequence) and list(value) == types
        require(same, "{} contradicts {} = {!r:.60}", source, name, value)
    config["layer_types"] = types


def put_flags(config: Config, rotates: Iterable[Any]) -> None:
    """Writes for each layer whether it rotates."""
    config["no_rope_layers"] = [int(bool(x)) for x in rotates]


def put_settings(config: Config, *unread: str, **more: Any) -> None:
    """Writes what the code does into the rope settings, in the config's spelling, and drops `unread` ones."""
    for name in [name for name in RAW if Values(config).get_mapping(name).values] or RAW[1:]:
        settings = Values(config).get_mapping(name).values
        refuse({"model_type": config["model_type"], **settings}, *more)
        config[name] = {key: value for key, value in settings.items() if key not in unread} | more


def drop_default_base(config: Config, base: float) -> None:
    """Takes out a base that is the class's, which transformers writes beside the base in rope_parameters."""
    settings = Values(config).get_mapping("rope_parameters")
    if equal(config.get("rope_theta"), base) and settings.look_up("rope_theta"):
        del config["rope_theta"]


def extended(settings: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Settings with more of them, except None; they must not contradict each other."""
    more = {name: value for name, value in more.items() if value is not None}
    for name, value in more.items():
        if settings.get(name) is not None:
            check_agreement({f"rope_parameters.{name}": settings[name], name: value})
    return {**settings, **more}


def by_type(name: str, types: Sequence[Any], items: Sequence[Any]) -> dict[str, Any]:
    """The item of each layer type; layers of one type must have the same."""
    require(len(types) == len(items), "{} must have {} items, one for each layer, got {}", name, len(types), len(items))
    result: dict[str, Any] = {}
    for layer_type, item in zip(map(str, types), items, strict=True):
        first = result.setdefault(layer_type, item)
        message = "{} must be the same in all layers of type {!r}, got {!r:.60} and {!r:.60}"
        require(equal(item, first), message, name, layer_type, first, item)
    return result


def fixed(**usual: Any) -> Rewriter:
    """A rewriter that takes out keys that must have one value."""

    def rewrite(config: Config) -> None:
        for name, value in usual.items():
            take_only(config, value, name)

    rewrite.__doc__ = "; ".join(f"{name} must be {value!r}" for name, value in usual.items()) + "."
    return rewrite


def parse_natural(config: Config, name: str, default: int) -> int:
    """The value of a key, an integer of at least 0."""
    return checks.integer(name, Values(config).get(name, default=default), 0)
