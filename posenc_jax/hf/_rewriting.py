"""What rewriters work on: a config whose keys they take out, check and put in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from posenc_jax._jax.errors import require
from posenc_jax.hf._config import RAW
from posenc_jax.hf._layers import count_of
from posenc_jax.hf._settings import rope_settings
from posenc_jax.hf._values import Values, agreed_value, check_agreement, equal

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"


class Draft(Values):
    """A config while it is rewritten."""

    values: dict[str, Any]

    def __setitem__(self, name: str, value: Any) -> None:
        self.values[name] = value

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        return count_of(self)

    @property
    def settings(self) -> list[Values]:
        """The rope settings in each spelling that is there."""
        return rope_settings(self.values)

    def take(self, name: str) -> Any:
        """Takes out a key."""
        return self.values.pop(name, None)

    def take_only(self, **usual: Any) -> None:
        """Takes out keys that must be missing or have these values."""
        for name, value in usual.items():
            written, message = self.take(name), "{} must be {!r} in model_type {!r}, got {!r:.60}"
            fits = equal(written, value) and isinstance(written, bool) == isinstance(value, bool)
            require(written is None or fits, message, name, value, self.values["model_type"], written)

    def take_settings(self) -> Values:
        """Takes out the rope settings, in either spelling."""
        spellings = self.settings
        check_agreement({settings.name: settings.values for settings in spellings})
        for name in RAW:
            self.take(name)
        return spellings[0]

    def put_settings(self, **more: Any) -> None:
        """Writes what the code does into the rope settings, in the config's spelling."""
        for settings in self.settings:
            self[settings.name] = extended(settings, **more).values

    def put_from(self, mapping: str, key: str, name: str) -> None:
        """Writes as `name` the value that a key has in a mapping; the config must not contradict it."""
        spellings = self.get_mapping(mapping).look_up(key) | self.look_up(name)
        if spellings:
            self[name] = agreed_value(spellings)

    def take_layers(self, name: str) -> list[Any]:
        """Takes out a list with an item for each layer, and without more for those that predict further tokens."""
        items = self.get_list(name)
        self.take(name)
        if items is None:
            return []
        count, more = self.num_layers, self.get_number("num_nextn_predict_layers", default=None) or 0
        fits = len(items) in (count, count + more)
        require(fits, "{} must have {} items, one for each layer, got {}", name, count, len(items))
        return [*items[:count]]

    def put_types(self, source: str, types: list[str]) -> None:
        """Writes the types of layers, which come from the key `source`; the config must not contradict them."""
        if types:
            self["layer_types"] = agreed_value({source: types, "layer_types": self.take_layers("layer_types") or types})

    def put_numbered_types(self, source: str, names: Mapping[int, str]) -> None:
        """Writes the types of layers, for which the key `source` has numbers."""
        numbers = self.take_layers(source)
        fits = all(isinstance(number, int) and number in names for number in numbers)
        require(fits, "{} must hold {}, got {!r:.60}", source, [*names], numbers)
        self.put_types(source, [names[number] for number in numbers])

    def put_usual_types(self, type_of: Callable[[int], str]) -> list[str]:
        """Writes the types of layers that the class has if the config has none, and returns those that it then has."""
        types = self["layer_types"] = self.take_layers("layer_types") or [type_of(i) for i in range(self.num_layers)]
        return types


def extended(settings: Values, **more: Any) -> Values:
    """Rope settings with more of them, except None; they must not contradict each other."""
    result = dict(settings.values)
    for name, value in more.items():
        if value is not None:
            check_agreement(settings.look_up(name) | {name: value})
            result[name] = value
    return Values(result, settings.name)


def is_nested(settings: Values) -> bool:
    """Whether rope settings have an entry for each layer type."""
    return any(isinstance(value, Mapping) for value in settings.values.values())
