"""The vision tower's part of a config.json, and its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc_jax._jax.errors import invalid, require
from posenc_jax.hf._config import RAW
from posenc_jax.hf._models import PARTS, canonical_type
from posenc_jax.hf._patches import parse_count
from posenc_jax.hf._refused import REFUSED
from posenc_jax.hf._towers import TOWER_KEYS, TOWERS, tower_type
from posenc_jax.hf._values import (
    Values,
    agreed_value,
    parse_config,
    parse_string_mapping,
    reject_refused,
    speaks_of_positions,
)


class TowerConfig(Values):
    """A tower's config, the facts of its model_type, and its rope settings."""

    def __init__(self, values: Mapping[str, Any]):
        """`values` as `parse_tower_config` returns them."""
        super().__init__(values)
        self.facts = TOWERS[values["model_type"]]
        name, settings = self.spelling(*RAW), self.get(*RAW)
        self.settings = Values(parse_string_mapping(name, {} if settings is None else settings), name)

    def look_up(self, *names: str) -> dict[str, Any]:
        """As for `Values`, under both names of a key."""
        return super().look_up(*self._both(names))

    def is_null(self, *names: str) -> bool:
        """As for `Values`, under both names of a key."""
        return super().is_null(*self._both(names))

    def _both(self, names: tuple[str, ...]) -> list[str]:
        return [name for key in names for name in (key, self.facts.names.get(key, key))]

    def value(self, name: str) -> Any:
        """The value of a key, by default that of the class."""
        return self.get(name, default=self.facts.defaults[name])

    def count(self, name: str, least: int = 1) -> int:
        """The value of a key that counts something, by default that of the class."""
        return parse_count(self.spelling(name), self.value(name), least)

    def reject_unknown_keys(self) -> None:
        """Raises for a key that speaks of positions, or is near a known one, and that the class does not take."""
        facts, reads = self.facts, f"model_type {self.values['model_type']!r}"
        self.settings.reject_unknown({*facts.rope, "type"}, reads)
        known = *facts.keys, "model_type", "head_dim", "rope_theta"
        self.reject_unknown(known, reads, speaks_of_positions)


def parse_tower_config(config: Any, part: Mapping[str, Any], label: str = "config", depth: int = 4) -> dict[str, Any]:
    """The config of the tower in a config, at most `depth` levels deep; errors call the config `label`.

    `part` has the facts of a config that is a part of a composite.
    """
    require(depth, "config must hold its vision_config within four levels")
    config, name = parse_config(config, label)
    name = part["type"] if part.get("always") else name or part.get("type")
    composite, tower = PARTS.get(name or "", {}), tower_type(name)
    if not tower and not composite:
        reject_refused(name, REFUSED)
    keys = [key for key in TOWER_KEYS if key in composite]
    parts = {} if name in TOWERS or composite and not keys else config.look_up(*TOWER_KEYS)
    if parts:
        towers = {
            key: parse_tower_config(value, composite.get(key, {}), key, depth - 1) for key, value in parts.items()
        }
        return agreed_value(towers)
    # An old tower may have the name of the whole model, but a whole model has no patch_size.
    if tower and (not composite or name in TOWERS or label == "vision_config" or config.look_up("patch_size")):
        return {**config.values, "model_type": tower}
    raise invalid(_reason(name, label, composite, keys))


def _reason(name: str | None, label: str, composite: Mapping[str, Any], keys: list[str]) -> str:
    """Why a config without a tower is not read."""
    if not name:
        path = "" if label == "config" else f"{label}."
        return f"{path}model_type is missing: no key says how a vision tower rotates"
    if composite:
        why = f", and {keys[0]} is missing" if keys else f" without a vision tower: it has {', '.join(composite)}"
        return f"model_type {name!r} is a whole model{why}"
    if canonical_type(name):
        return f"model_type {name!r} is no vision tower: rotary_from_config reads it"
    return (
        f"model_type {name!r} is not known as a vision tower, and no key says which coordinate rotates which pair: "
        "a known type may be written in its place only if the code of both rotates the same pairs by the same "
        "coordinates"
    )
