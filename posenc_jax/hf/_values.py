"""The values of a config or of its rope settings: looked up by their keys, and checked."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from posenc_jax._jax import checks
from posenc_jax._jax.errors import callback, invalid, require, require_type

Json = Mapping[str, Any]  # an object, as json.loads gives it

# Words in the names of keys that speak of positions.
_WORDS = frozenset(
    "alibi fope logn mrope nope ntk position positional positions rope rotary theta thetas xpos yarn".split()
)
# Keys with such words that set a length, an id or a rate, and no rotation.
_NEUTRAL = re.compile("max_.*position|^n_positions$|^num_position|^position_ids?_|_id$|dropout")
_MISSING: Any = object()


@lru_cache(maxsize=4096)
def speaks_of_positions(key: str) -> bool:
    """Whether a word in the name of a key speaks of positions."""
    words = re.findall("[a-z0-9]+", re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", key).lower())
    return not (_WORDS.isdisjoint(words) or _NEUTRAL.search(key.lower()))


def parse_mapping(name: str, value: Any, expected: str = "a mapping") -> Json:
    """`value`, which must be a mapping whose keys are strings."""
    require_type(isinstance(value, Mapping), name, expected, value)
    for key in value:
        require_type(isinstance(key, str), "each key of " + name, "a string", key)
    return value


def equal(a: Any, b: Any) -> bool:
    """Whether two values of a config are equal; they may be of any types."""
    try:
        with np.errstate(over="ignore"):
            return bool(a == b)
    except (ValueError, OverflowError):  # arrays, and numbers that no float holds
        return False


def check_agreement(spellings: Json) -> None:
    """Raises if two spellings of a setting contradict each other."""
    for name, value in spellings.items():
        first, expected = next(iter(spellings.items()))
        if value is not expected and not equal(value, expected):
            raise invalid(f"{first} = {expected!r:.60} contradicts {name} = {value!r:.60}")


def agreed_value(spellings: Json, default: Any = _MISSING, *, missing: str = "") -> Any:
    """The value on which all spellings of a setting agree, or the default; without one, errors name what is missing."""
    require(spellings or default is not _MISSING, "{} is missing", missing)
    check_agreement(spellings)
    return next(iter(spellings.values()), default)


class Values:
    """Values by their keys, of a config or of the mapping under its key `name`.

    A null counts as a missing key, but no default stands for it: `default_unless_null` rejects it.
    """

    def __init__(self, values: Json, name: str = "", *, of_layer_type: bool = False):
        """`of_layer_type`: the values are the rope settings of one layer type."""
        self.values, self.name, self.of_layer_type = values, name, of_layer_type
        self.label = name + "." if name else ""

    def look_up(self, *names: str) -> dict[str, Any]:
        """The spellings of a setting that are there, as errors name them, and their values."""
        return {self.label + name: self.values[name] for name in names if self.values.get(name) is not None}

    def spelling(self, *names: str) -> str:
        """The spelling that is there, for errors."""
        return next(iter(self.look_up(*names)), self.label + names[0])

    def is_null(self, name: str) -> bool:
        """Whether a key is a null; then no default applies."""
        return self.values.get(name, 0) is None

    def default_unless_null(self, default: Any, *names: str) -> Any:
        """`default`, for a setting that is missing; raises for a null, unless the default is None."""
        for name in names:
            message = "{}{} must have a value or be left out for {!r:.60}, got null"
            require(default is None or not self.is_null(name), message, self.label, name, default)
        return default

    def get(self, *names: str, default: Any = None) -> Any:
        """The value of a setting."""
        spellings = self.look_up(*names)
        return agreed_value(spellings) if spellings else self.default_unless_null(default, *names)

    def get_required(self, *names: str) -> Any:
        """The value of a required setting."""
        return agreed_value(self.look_up(*names), missing=self.label + " or ".join(names))

    def get_mapping(self, name: str) -> Values:
        """The mapping under the key `name`; an empty one if it is not there."""
        value = self.get(name)
        return Values(parse_mapping(self.label + name, {} if value is None else value), self.label + name)

    def _parse(self, parse: Callable[[str, Any], Any], names: tuple[str, ...], default: Any) -> Any:
        value = self.get_required(*names) if default is _MISSING else self.get(*names, default=default)
        return value if value is default else parse(self.spelling(*names), value)

    def get_number(self, *names: str, default: Any = _MISSING) -> Any:
        """The value of a setting that is a number; required without a default."""
        return self._parse(checks.number, names, default)

    def get_integer(self, *names: str, default: Any = _MISSING) -> int:
        """The value of a setting, an integer of at least one; required without a default."""
        return self._parse(checks.positive_int, names, default)

    def get_string(self, name: str) -> str | None:
        """The value of a setting that is a string, None if it is not there."""
        value = self.get(name)
        require_type(isinstance(value, str | None), self.label + name, "a string", value)
        return value

    def get_flag(self, name: str, default: bool = False) -> bool:
        """The value of a setting that is true or false, or a number instead (Llama 4 has 4)."""
        value = self.get(name, default=default)
        require_type(isinstance(value, int), self.label + name, "true or false", value)
        return bool(value)

    def get_list(self, *names: str) -> tuple[Any, ...] | None:
        """The value of a setting that is a list, None if it is not there."""
        name, value, expected = self.spelling(*names), self.get(*names), "strings or numbers"
        if value is None:
            return None
        for item in checks.sequence(name, value, expected):
            require_type(not getattr(item, "ndim", 0), name, f"a sequence of {expected}", item)
        return tuple(value)

    def reject_unknown(
        self,
        known: Collection[str],
        reads: str,
        matters: Callable[[str], bool] = lambda key: True,
        others: Collection[str] = (),
    ) -> None:
        """Raises for a key that is not known if its name matters, or is near that of a known one that is absent.

        `others` are the names of something else.
        """
        absent = [name for name in known if self.values.get(name) is None]
        for key, value in parse_mapping(self.name, self.values).items():
            if value is None or key in known or key[:1] == "_":  # transformers 4 wrote some private attributes
                continue
            meant = [] if key in others else difflib.get_close_matches(key.lower(), absent, 1, 0.85)
            hint = "".join(f": is {self.label}{name} meant?" for name in meant)
            message = "the key {}{} = {!r:.60} is not read by {}{}"
            require(not meant and not matters(key), message, self.label, key, value, reads, hint)


def parse_config(config: Any, label: str = "config") -> tuple[Values, str]:
    """A config, which is a mapping or has to_dict(), and its model_type, empty if it has none."""
    if not isinstance(config, type) and callable(getattr(config, "to_dict", None)):
        with callback():
            config = config.to_dict()
    result = Values(parse_mapping(label, config, "a mapping or have to_dict()"))
    return result, result.get_string("model_type") or ""


def reject_refused(name: str, refused: Mapping[str, str]) -> None:
    """Raises for a model_type that is refused by name."""
    reason = refused.get(name)
    require(not reason, "model_type {!r} is not read: {}", name, reason)
