"""The keys of a mapping: each is used or refused.

`found` looks keys up, and `use` records them as used. The methods that read a setting do both. `finish` refuses keys
that were not used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from posenc_jax._jax import checks, errors
from posenc_jax._jax.errors import describe, invalid, require, require_type, wrong_type
from posenc_jax.hf._typos import meant, same_word

# Parts of names of keys that speak of rotations, of positions, or of which layers have them.
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
_PLAIN = bool, int, float, str, tuple  # defaults that errors show


def speaks_of_positions(name: str) -> bool:
    """Whether a key of this name must be understood."""
    return bool(_POSITIONS.search(name) and not _NEUTRAL.search(name))


def mapping(name: str, value: Any, expected: str = "a mapping") -> Mapping[Any, Any]:
    """`value`, which must be a mapping."""
    require_type(isinstance(value, Mapping), name, expected, value)
    return value


def mapping_of_strings(name: str, value: Any, expected: str = "a mapping") -> Mapping[str, Any]:
    """`value`, which must be a mapping whose keys are strings."""
    for key in mapping(name, value, expected):
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


def check_agreement(found: Mapping[str, Any], written: Mapping[str, Any] | None = None) -> None:
    """Raises if two spellings of a setting contradict each other; errors show the values of `written`."""
    for name, value in found.items():
        first, result = next(iter(found.items()))
        if value is not result and not equal(value, result):
            shown = {**found, **(written or {})}
            raise invalid(f"{first} = {shown[first]!r:.60} contradicts {name} = {shown[name]!r:.60}")


def agreed(
    found: Mapping[str, Any],
    default: Any = _MISSING,
    *,
    missing: str = "",
    written: Mapping[str, Any] | None = None,
) -> Any:
    """The value that all spellings of a setting agree on; errors show the values of `written`."""
    require(found or default is not _MISSING, "{} is missing", missing)
    check_agreement(found, written)
    return next(iter(found.values()), default)


class Keys:
    """The keys of a mapping, and a record of those that are used.

    A null counts as a missing key, but no default stands for it: `or_default` refuses it.
    """

    def __init__(self, values: Mapping[str, Any], name: str = "", *, nested: bool = False):
        """`values` stand under the key `name` of a config; `nested`: they are for one of its layer types."""
        self.values, self.name, self.nested = values, name, nested
        self.label = f"{name}." if name else ""
        self.used: set[str] = set()
        self.asked: set[str] = set()  # used, or looked for

    # Find

    def found(self, *names: str) -> dict[str, Any]:
        """The spellings of a setting that are there, as errors name them, and their values."""
        self.asked.update(names)
        return {self.label + name: self.values[name] for name in names if self.values.get(name) is not None}

    def spelled(self, *names: str) -> str:
        """The spelling that the config has, for errors."""
        return next(iter(self.found(*names)), self.label + names[0])

    def is_null(self, *names: str) -> bool:
        """Whether one of these keys is a null; then no default applies."""
        self.asked.update(names)
        return any(self.values.get(name, 0) is None for name in names)

    def or_default(self, default: Any, *names: str) -> Any:
        """`default`, for a setting that is missing; raises for a null, unless null is what the default says."""
        for name in names:
            if default is not None and self.is_null(name):
                usual = f"left out for {default!r:.60}" if isinstance(default, _PLAIN) else "left out"
                raise invalid(f"{self.label}{name} must have a value or be {usual}, got null")
        return default

    # Use

    def use(self, *names: str) -> None:
        """Records these keys as used, so that `finish` accepts them."""
        self.used.update(names)
        self.asked.update(names)

    def finish(self, matters: Callable[[str], bool] = lambda name: True) -> None:
        """Raises if a key was not used whose name `matters`."""
        for name, value in mapping_of_strings(self.name or "config", self.values).items():
            if value is not None and name not in self.used and matters(name):
                meaning = " or ".join(meant(name, self.asked))
                hint = f": is {meaning} meant?" if meaning else ""
                name, value = f"{self.label}{name}", f"{value!r:.60}"
                raise invalid(f"the key {name} = {value} is not known or not used here{hint}")

    # Both

    def take(self, *names: str) -> dict[str, Any]:
        """Uses all spellings of a setting, and returns them as `found` does."""
        self.use(*names)
        return self.found(*names)

    def get(self, *names: str, default: Any = None) -> Any:
        """The value of a setting."""
        found = self.take(*names)
        return agreed(found) if found else self.or_default(default, *names)

    def need(self, *names: str) -> Any:
        """The value of a required setting."""
        return agreed(self.take(*names), missing=self.label + " or ".join(names))

    def within(self, name: str) -> Keys:
        """The keys of the mapping `name`; none if it is not there."""
        value = self.get(name)
        return Keys(mapping(self.label + name, {} if value is None else value), self.label + name)

    def number(self, name: str, default: Any = _MISSING) -> Any:
        """The value of a setting that is a number."""
        value = self.need(name) if default is _MISSING else self.get(name, default=default)
        return value if value is default else checks.number(self.label + name, value)

    def integer(self, *names: str) -> int:
        """The value of a required setting, an integer of at least one."""
        return checks.positive_int(self.spelled(*names), self.need(*names))

    def integer_or(self, default: int, name: str) -> int:
        """The value of a setting, an integer of at least one."""
        return self.integer(name) if self.found(name) else self.or_default(default, name)

    def string(self, name: str) -> str | None:
        """The value of a setting that is a string, None if it is not there."""
        value = self.get(name)
        require_type(value is None or isinstance(value, str), self.label + name, "a string", value)
        return value

    def flag(self, *names: str, default: bool = False) -> bool:
        """The value of a setting that is true or false, or a number instead (Llama 4 has 4)."""
        found = self.take(*names)
        for name, value in found.items():
            require_type(isinstance(value, int), name, "true or false", value)
        return bool(agreed(found) if found else self.or_default(default, *names))

    def items(self, *names: str) -> tuple[Any, ...] | None:
        """The value of a setting that is a list, None if it is not there."""
        name, value, expected = self.spelled(*names), self.get(*names), "strings or numbers"
        result = None if value is None else checks.sequence(name, value, expected)
        for item in result or ():
            if getattr(item, "ndim", 0):
                raise wrong_type(f"{name} must be a sequence of {expected}, got one of {describe(item)}")
        return result


def parse_config(config: Any, label: str = "config") -> Keys:
    """The keys of a config, a mapping or an object with to_dict()."""
    if not isinstance(config, type) and callable(getattr(config, "to_dict", None)):
        with errors.callback():
            config = config.to_dict()
    return Keys(mapping_of_strings(label, config, "a mapping or have to_dict()"))


def check_read(name: str | None, refused: Mapping[str, str]) -> None:
    """Raises for a model_type that is refused by name."""
    reason = refused.get(name or "")
    require(not reason, "model_type {!r} is not read: {}", name, reason)


def check_case(name: str, known: Collection[str]) -> None:
    """Raises for a model_type that differs from a known one in case and separators alone."""
    right = same_word(name, known)
    require(right in (None, name), "model_type {!r} is not known: write {!r} if that is meant", name, right)
