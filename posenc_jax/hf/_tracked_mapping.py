"""A mapping that remembers which of its keys have been read, so that a key that nothing reads is rejected.

`look_up` returns settings without reading them, `read` and the `get_` methods read them, and `mark_read` accepts keys
whose values do not matter. `reject_unread` raises for every key that was not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from posenc_jax._jax import checks
from posenc_jax._jax.errors import callback, describe, invalid, require, require_type, wrong_type
from posenc_jax.hf._typos import similar_keys, spelled_like

# Parts of the names of keys that concern rotations, positions, or which layers have positions.
_POSITIONS = re.compile(
    "rope(?!rt)|rotary|theta|alibi|nope|fope|ntk|logn|log_scaling|yarn|xpos|pos_?emb|(?<!com)position|dual_chunk|"
    r"attn_scale|floor_scale|temperature_tuning|query_scale|hybrid_\w+_pattern|^swa_|^layer_types|block_type|attn_type|"
    "interleaved?$|index(er)?_head_dim",
    re.IGNORECASE,
)
# Keys with such a name that no rotation depends on.
_NEUTRAL = re.compile(
    "^(original_)?max_.*position|^n_positions$|^position_embedding_type$|^position_id_per_seconds$|^dropout_positions$|temperature$"
)
_MISSING: Any = object()
_SHOWN_TYPES = bool, int, float, str, tuple  # the types of defaults that errors show


def concerns_positions(name: str) -> bool:
    """Whether a key of this name must be understood."""
    return bool(_POSITIONS.search(name) and not _NEUTRAL.search(name))


def parse_mapping(name: str, value: Any, expected: str = "a mapping") -> Mapping[Any, Any]:
    """`value`, which must be a mapping."""
    require_type(isinstance(value, Mapping), name, expected, value)
    return value


def parse_string_mapping(name: str, value: Any, expected: str = "a mapping") -> Mapping[str, Any]:
    """`value`, which must be a mapping whose keys are strings."""
    for key in parse_mapping(name, value, expected):
        if not isinstance(key, str):
            raise wrong_type(f"{name} must have keys that are strings, got {describe(key)}")
    return value


def equal(a: Any, b: Any) -> bool:
    """Whether two values of a config are equal; they may be of any types."""
    try:
        with np.errstate(over="ignore"):
            return bool(a == b)
    except (ValueError, OverflowError):  # arrays, and numbers that no float holds
        return False


def check_agreement(spellings: Mapping[str, Any], written: Mapping[str, Any] | None = None) -> None:
    """Raises if two spellings of a setting contradict each other; errors show the values of `written`."""
    for name, value in spellings.items():
        first, expected = next(iter(spellings.items()))
        if value is not expected and not equal(value, expected):
            shown = {**spellings, **(written or {})}
            raise invalid(f"{first} = {shown[first]!r:.60} contradicts {name} = {shown[name]!r:.60}")


def agreed_value(
    spellings: Mapping[str, Any],
    default: Any = _MISSING,
    *,
    missing: str = "",
    written: Mapping[str, Any] | None = None,
) -> Any:
    """The value on which all spellings of a setting agree, or the default; errors show the values of `written`."""
    require(spellings or default is not _MISSING, "{} is missing", missing)
    check_agreement(spellings, written)
    return next(iter(spellings.values()), default)


class TrackedMapping:
    """A mapping, and a record of the keys that have been read.

    A null counts as a missing key, but no default stands for it: `default_unless_null` rejects it.
    """

    def __init__(self, values: Mapping[str, Any], name: str = "", *, of_layer_type: bool = False):
        """`values` stand under the key `name` of a config; `of_layer_type`: they are for one of its layer types."""
        self.values, self.name, self.of_layer_type = values, name, of_layer_type
        self.label = f"{name}." if name else ""
        self.keys_read: set[str] = set()
        self.keys_looked_up: set[str] = set()  # read or looked up

    # Look up

    def look_up(self, *names: str) -> dict[str, Any]:
        """The spellings of a setting that are there, as errors name them, and their values."""
        self.keys_looked_up.update(names)
        return {self.label + name: self.values[name] for name in names if self.values.get(name) is not None}

    def spelling(self, *names: str) -> str:
        """The spelling that the config has, for errors."""
        return next(iter(self.look_up(*names)), self.label + names[0])

    def is_null(self, *names: str) -> bool:
        """Whether one of these keys is a null; then no default applies."""
        self.keys_looked_up.update(names)
        return any(self.values.get(name, 0) is None for name in names)

    def default_unless_null(self, default: Any, *names: str) -> Any:
        """`default`, for a setting that is missing; raises for a null, unless the default is None."""
        for name in names:
            if default is not None and self.is_null(name):
                usual = f"left out for {default!r:.60}" if isinstance(default, _SHOWN_TYPES) else "left out"
                raise invalid(f"{self.label}{name} must have a value or be {usual}, got null")
        return default

    # Read

    def mark_read(self, *names: str) -> None:
        """Records these keys as read, so that `reject_unread` accepts them."""
        self.keys_read.update(names)
        self.keys_looked_up.update(names)

    def read(self, *names: str) -> dict[str, Any]:
        """Marks all spellings of a setting as read, and returns what `look_up` does."""
        self.mark_read(*names)
        return self.look_up(*names)

    def reject_unread(self, matters: Callable[[str], bool] = lambda name: True) -> None:
        """Raises if a key whose name `matters` was not read."""
        for name, value in parse_string_mapping(self.name or "config", self.values).items():
            if value is not None and name not in self.keys_read and matters(name):
                similar = " or ".join(similar_keys(name, self.keys_looked_up))
                hint = f": is {similar} meant?" if similar else ""
                name, value = f"{self.label}{name}", f"{value!r:.60}"
                raise invalid(f"the key {name} = {value} is not known or not used here{hint}")

    # Read a value

    def get(self, *names: str, default: Any = None) -> Any:
        """The value of a setting."""
        spellings = self.read(*names)
        return agreed_value(spellings) if spellings else self.default_unless_null(default, *names)

    def get_required(self, *names: str) -> Any:
        """The value of a required setting."""
        return agreed_value(self.read(*names), missing=self.label + " or ".join(names))

    def get_mapping(self, name: str) -> TrackedMapping:
        """The mapping under the key `name`; an empty one if it is not there."""
        value = self.get(name)
        return TrackedMapping(parse_mapping(self.label + name, {} if value is None else value), self.label + name)

    def get_number(self, name: str, default: Any = _MISSING) -> Any:
        """The value of a setting that is a number."""
        value = self.get_required(name) if default is _MISSING else self.get(name, default=default)
        return value if value is default else checks.number(self.label + name, value)

    def get_integer(self, *names: str) -> int:
        """The value of a required setting, an integer of at least one."""
        return checks.positive_int(self.spelling(*names), self.get_required(*names))

    def get_integer_or(self, default: int, name: str) -> int:
        """The value of a setting, an integer of at least one."""
        return self.get_integer(name) if self.look_up(name) else self.default_unless_null(default, name)

    def get_string(self, name: str) -> str | None:
        """The value of a setting that is a string, None if it is not there."""
        value = self.get(name)
        require_type(value is None or isinstance(value, str), self.label + name, "a string", value)
        return value

    def get_flag(self, *names: str, default: bool = False) -> bool:
        """The value of a setting that is true or false, or a number instead (Llama 4 has 4)."""
        spellings = self.read(*names)
        for name, value in spellings.items():
            require_type(isinstance(value, int), name, "true or false", value)
        return bool(agreed_value(spellings) if spellings else self.default_unless_null(default, *names))

    def get_list(self, *names: str) -> tuple[Any, ...] | None:
        """The value of a setting that is a list, None if it is not there."""
        name, value, expected = self.spelling(*names), self.get(*names), "strings or numbers"
        result = None if value is None else checks.sequence(name, value, expected)
        for item in result or ():
            if getattr(item, "ndim", 0):
                raise wrong_type(f"{name} must be a sequence of {expected}, got one of {describe(item)}")
        return result


def parse_config(config: Any, label: str = "config") -> tuple[TrackedMapping, str | None]:
    """A config, which is a mapping or has to_dict(), and its model_type."""
    if not isinstance(config, type) and callable(getattr(config, "to_dict", None)):
        with callback():
            config = config.to_dict()
    result = TrackedMapping(parse_string_mapping(label, config, "a mapping or have to_dict()"))
    return result, result.get_string("model_type")


def reject_refused(name: str | None, refused: Mapping[str, str]) -> None:
    """Raises for a model_type that is refused by name."""
    reason = refused.get(name or "")
    require(not reason, "model_type {!r} is not read: {}", name, reason)


def check_case(name: str, model_types: Collection[str]) -> None:
    """Raises for a model_type that differs from one of `model_types` in case and separators alone."""
    correct = spelled_like(name, model_types)
    require(correct in (None, name), "model_type {!r} is not known: write {!r} if that is meant", name, correct)
