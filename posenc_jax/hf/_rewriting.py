"""Functions of several rewriters, which take keys out of a config, check them, and put others in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from posenc_jax._jax import checks
from posenc_jax._jax.errors import invalid, require
from posenc_jax.hf._config import RAW
from posenc_jax.hf._layers import count_of
from posenc_jax.hf._tracked_mapping import TrackedMapping, agreed_value, check_agreement, equal, parse_mapping

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"

Rewriter = Callable[[dict[str, Any]], None]


class RewrittenConfig(dict[str, Any]):
    """A config that records which keys its rewriter looked up, and which of them are refused."""

    def __init__(self, values: Mapping[str, Any]):
        super().__init__(values)
        self.keys_looked_up: set[str] = set()
        self.refused: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key."""
        self.keys_looked_up.add(key)
        return super().get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        """Takes out a key."""
        self.keys_looked_up.add(key)
        return super().pop(key, *default)

    def __contains__(self, key: object) -> bool:
        self.keys_looked_up.add(str(key))
        return super().__contains__(key)


# Take


def take_layers(config: dict[str, Any], name: str, *, more: str = "") -> tuple[Any, ...] | None:
    """Takes out a list with an item for each layer; the key `more` says how many more items it may have."""
    items = TrackedMapping(config).get_list(name)
    config.pop(name, None)
    if items is None:
        return None
    count = count_of(TrackedMapping(config))
    rest = config.get(more) if more else 0
    fits = len(items) == count or isinstance(rest, int) and len(items) == count + rest
    require(fits, "{} must have {} items, one for each layer, got {}", name, count, len(items))
    return items[:count]


def take_flags(config: dict[str, Any], name: str) -> tuple[Any, ...] | None:
    """Takes out a list of zeros and ones, one for each layer."""
    flags = take_layers(config, name)
    fits = flags is None or all(isinstance(flag, int) and flag in (0, 1) for flag in flags)
    require(fits, "{} must hold 0 or 1, got {!r:.60}", name, flags)
    return flags


def take_only(config: dict[str, Any], usual: Any, *names: str) -> None:
    """Takes out keys that must have the value `usual`."""
    for name in names:
        value = config.pop(name, None)
        if value is not None and not _same(value, usual):
            raise invalid(f"{name} must be {usual!r} in model_type {config['model_type']!r}, got {value!r:.60}")


def _same(value: Any, usual: Any) -> bool:
    """Whether two values are equal, and both numbers or of one type: True is not 1, but 128 is 128.0."""
    if checks.is_number(value) and checks.is_number(usual):
        return equal(value, usual)
    return type(value) is type(usual) and value == usual


def take_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Takes out the rope settings, in either spelling."""
    spellings = {name: dict(parse_mapping(name, value)) for name, value in TrackedMapping(config).look_up(*RAW).items()}
    for name in RAW:
        config.pop(name, None)
    return agreed_value({name: settings for name, settings in spellings.items() if settings}, {})


def settings_of_types(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rope settings of a type that has an entry for each layer type."""
    settings = parse_mapping("rope_parameters", TrackedMapping(config).get_required("rope_parameters"))
    flat = settings and not any(value is None or isinstance(value, Mapping) for value in settings.values())
    message = "rope_parameters must hold settings for each layer type, got {!r:.60}"
    require(not flat, message, settings)
    return dict(settings)


def take_repeated(config: dict[str, Any], types: Sequence[Any], name: str, key: str = "", *, more: str = "") -> None:
    """Takes out a value, or a list for each layer, that repeats `key` of the layer types' settings."""
    value, settings = config.get(name), parse_mapping("rope_parameters", config["rope_parameters"])
    by_layer_type = {x: TrackedMapping(settings).get_mapping(x) for x in dict.fromkeys(map(str, types))}
    values = {layer_type: inner.values.get(key or name) for layer_type, inner in by_layer_type.items()}
    if value is None:
        return
    if None in values.values():
        refuse(config, name)
    if isinstance(value, Sequence) and not isinstance(value, str):
        for layer_type, item in by_type(name, types, take_layers(config, name, more=more) or ()).items():
            check_agreement(
                {f"rope_parameters.{layer_type}.{key or name}": values[layer_type], f"{name} of {layer_type}": item}
            )
    else:
        message = "{} = {!r:.60} contradicts rope_parameters, whose layer types have {}"
        require(any(equal(value, x) for x in values.values()), message, name, value, list(values.values()))
        del config[name]


def refuse(config: Mapping[str, Any], *names: str) -> None:
    """Raises if a config has one of these keys: the code of its model_type does not read them."""
    if isinstance(config, RewrittenConfig):
        config.refused.update(names)
    for name in names:
        value, model_type = config.get(name), config["model_type"]
        if value is not None and not equal(value, {}):
            raise invalid(f"{name} = {value!r:.60} is not read by the code of model_type {model_type!r}")


# Put


def put_types(config: dict[str, Any], source: str, types: Iterable[str]) -> None:
    """Writes the types of layers, which come from the key `source`; the config must not contradict them."""
    types = list(types)
    for name, value in TrackedMapping(config).look_up("layer_types", "layers_block_type").items():
        same = isinstance(value, Sequence) and list(value) == types
        require(same, "{} contradicts {} = {!r:.60}", source, name, value)
    config["layer_types"] = types


def put_flags(config: dict[str, Any], rotates: Iterable[Any]) -> None:
    """Writes for each layer whether it rotates."""
    refuse(config, "no_rope_layers", "no_rope_layer_interval")
    config["no_rope_layers"] = [int(bool(x)) for x in rotates]


def put_settings(config: dict[str, Any], *unread: str, **more: Any) -> None:
    """Writes what the code does into the rope settings, in the config's spelling, and drops `unread` ones."""
    for name in [name for name in RAW if TrackedMapping(config).get_mapping(name).values] or RAW[1:]:
        settings = TrackedMapping(config).get_mapping(name).values
        refuse({"model_type": config["model_type"], **settings}, *more)
        config[name] = {key: value for key, value in settings.items() if key not in unread} | more


def drop_default_base(config: dict[str, Any], base: float) -> None:
    """Takes out a base that is the class's, which transformers writes beside the base in rope_parameters."""
    settings = TrackedMapping(config).get_mapping("rope_parameters")
    if equal(config.get("rope_theta"), base) and settings.look_up("rope_theta"):
        del config["rope_theta"]


def extended(settings: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Settings with more of them, except None; they must not contradict each other."""
    for name, value in more.items():
        if value is not None and settings.get(name) is not None:
            check_agreement({f"rope_parameters.{name}": settings[name], name: value})
    return {**settings, **{name: value for name, value in more.items() if value is not None}}


def by_type(name: str, types: Sequence[Any], items: Sequence[Any]) -> dict[str, Any]:
    """The item of each layer type; layers of one type must have the same."""
    require(len(types) == len(items), "{} must have {} items, one for each layer, got {}", name, len(types), len(items))
    result: dict[str, Any] = {}
    for layer_type, item in zip(map(str, types), items, strict=True):
        first = result.setdefault(layer_type, item)
        message = "{} must be the same in all layers of type {!r}, got {!r:.60} and {!r:.60}"
        require(equal(item, first), message, name, layer_type, first, item)
    return result


def renamed(**names: str) -> Rewriter:
    """A rewriter of keys, by their old names and the new ones."""

    def rewrite(config: dict[str, Any]) -> None:
        for old, new in names.items():
            if old in config:
                tracked = TrackedMapping(config)
                value = agreed_value(tracked.look_up(old, new), None)
                config[new] = tracked.default_unless_null(value, old, new)  # raises for a null beside the value
                del config[old]

    rewrite.__doc__ = "; ".join(f"{old} is another name of {new}" for old, new in names.items()) + "."
    return rewrite


def only(usual: Mapping[str, Any], *ignored: str) -> Rewriter:
    """A rewriter that takes out keys that must have their usual value, and keys that no rotation depends on."""

    def rewrite(config: dict[str, Any]) -> None:
        for name, value in usual.items():
            take_only(config, value, name)
        for name in ignored:
            config.pop(name, None)

    sentences = [f"{name} must be {value!r}" for name, value in usual.items()]
    rewrite.__doc__ = "; ".join([*sentences, *(f"{name} is ignored" for name in ignored)]) + "."
    return rewrite


def parse_natural(config: Mapping[str, Any], name: str, default: int) -> int:
    """The value of a key, an integer of at least 0."""
    value = TrackedMapping(config).get(name, default=default)
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    require(fits, "{} must be an integer of at least 0, got {!r:.60}", name, value)
    return checks.integer(name, value)
