"""The vision tower's part of a config.json, and its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc_jax._jax import checks
from posenc_jax._jax.errors import invalid, require
from posenc_jax.hf._config import RAW
from posenc_jax.hf._models import PARTS, canonical_type
from posenc_jax.hf._patches import parse_count
from posenc_jax.hf._refused import REFUSED
from posenc_jax.hf._towers import TOWERS
from posenc_jax.hf._values import (
    Values,
    agreed_value,
    check_agreement,
    parse_config,
    reject_refused,
    speaks_of_positions,
)

# The keys under which a composite config holds its tower
_TOWER_KEYS = "vision_config", "thinker_config", "backbone_config", "vlm_config"
_OLD_NAMES = {"mlcd": "mlcd_vision_model"}


class TowerConfig(Values):
    """A tower's config, the facts of its model_type, and its rope settings.

    It has the keys that the class takes, under the names that the class has for them, and its values for missing ones.
    """

    def __init__(self, values: Mapping[str, Any]):
        """`values` as `parse_tower_config` returns them; raises for a key of positions that the class does not take."""
        self.given, self.facts = Values(values), TOWERS[values["model_type"]]
        reads = f"model_type {values['model_type']!r}"
        check_agreement(self.given.look_up(*RAW))
        self.settings = self.given.get_mapping(self.given.spelling(*RAW))
        self.settings.reject_unknown({*self.facts.rope, "type"}, reads)
        self.given.reject_unknown(self.facts.keys, reads, speaks_of_positions)
        taken = {key: value for key, value in values.items() if key in self.facts.keys}
        for key, other in self.facts.names.items():
            if other in values:
                taken[key] = agreed_value(self.given.look_up(key, other), None)
        super().__init__({**self.facts.defaults, **taken})

    def count(self, name: str, least: int = 1, default: Any = None) -> int:
        """The value of a key that counts something; `default` if the class has no such key."""
        return parse_count(name, self.values.get(name, default), least)


def parse_tower_config(config: Any, part: Mapping[str, Any], label: str = "config", depth: int = 4) -> dict[str, Any]:
    """The config of the tower in a config, at most `depth` levels deep; errors call the config `label`.

    `part` has the facts of a config that is a part of a composite.
    """
    require(depth, "config must hold its vision_config within four levels")
    config, name = parse_config(config, label)
    name = part["type"] if part.get("always") else name or part.get("type", "")
    composite, tower = PARTS.get(name, {}), _tower_type(name)
    if not tower and not composite:
        reject_refused(name, REFUSED)
    keys = [key for key in _TOWER_KEYS if key in composite]
    parts = {} if name in TOWERS or composite and not keys else config.look_up(*_TOWER_KEYS)
    if parts:
        towers = {
            key: parse_tower_config(value, composite.get(key, {}), key, depth - 1) for key, value in parts.items()
        }
        return agreed_value(towers)
    # An old tower may have the name of the whole model, but a whole model has no patch_size.
    if tower and (not composite or name in TOWERS or label == "vision_config" or config.look_up("patch_size")):
        return {**config.values, "model_type": tower}
    where = "" if label == "config" else f"{label}."
    require(name, "{}model_type is missing: no key says how a vision tower rotates", where)
    has = f", and {keys[0]} is missing" if keys else f" without a vision tower: it has {', '.join(composite)}"
    require(not composite, "model_type {!r} is a whole model{}", name, has)
    require(not canonical_type(name), "model_type {!r} is no vision tower: rotary_from_config reads it", name)
    raise invalid(
        f"model_type {name!r} is not known as a vision tower, and no key says which coordinate rotates which pair: "
        "a known type may be written in its place only if the code of both rotates the same pairs by the same "
        "coordinates"
    )


def _tower_type(name: str) -> str | None:
    """The type of the tower of a model_type; None if it has none, or may have any."""
    name, parts = _OLD_NAMES.get(name, name), PARTS.get(name, {})
    if name in TOWERS:
        return name
    towers = (_tower_type(parts[key]["type"]) for key in _TOWER_KEYS if key in parts)
    return next(filter(None, towers), None)


def height_and_width(values: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """(height, width), which a config has as width and height, or as one number if they are equal."""
    value = values[name]
    sides = [value] * 2 if isinstance(value, int) else checks.sequence(name, value, "a width and a height")
    require(len(sides) == 2, "{} must be a number or a width and a height, got {!r:.60}", name, value)
    return tuple(parse_count(name, side, 1) for side in sides[::-1])
