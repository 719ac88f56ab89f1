"""The vision tower's part of a config.json, and the facts of its model_type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc_jax._jax import checks
from posenc_jax._jax.errors import invalid, require
from posenc_jax.hf._towers import CHOSEN, FIXED, REFUSED, TOWERS, Tower
from posenc_jax.hf._values import (
    Values,
    agreed_value,
    parse_config,
    parse_string_mapping,
    reject_refused,
)

# The keys under which a composite config holds its tower, and its language model.
_PARTS = "vision_config", "thinker_config", "backbone_config"
_TEXT = "text_config", "language_config", "llm_config"
# Composites that rotate outside their tower; the tower does not rotate, or has its own config.
_ROTATE_OUTSIDE_TOWER = "edgetam_video", "sam2_video", "sam3_tracker_video"


class TowerConfig(Values):
    """A tower's config and its rope settings, and the facts of its model_type."""

    def __init__(self, values: Mapping[str, Any]):
        """`values` as `parse_tower_config` returns them."""
        super().__init__(values)
        self.model_type, self.facts = _facts_of(values)
        settings = self.look_up("rope_scaling", "rope_parameters")
        self.settings = [Values(parse_string_mapping(name, value), name) for name, value in settings.items()]


def parse_count(config: Values, name: str, default: int, least: int = 1) -> int:
    """The value of a key that counts something."""
    value = checks.integer(config.label + name, value_of(config, name, default), least)
    require(value < 2**16, "{}{} must be below 65,536, got {!r:.60}", config.label, name, value)
    return value


def value_of(config: Values, name: str, default: Any) -> Any:
    """The value of a key, by default that of the class; a null is an error."""
    require(not config.is_null(name), "{} is missing", name)
    return config.get(name, default=default)


def parse_tower_config(config: Any, label: str = "config", depth: int = 4) -> dict[str, Any]:
    """The tower's part of a config, at most `depth` levels deep; errors call the config `label`."""
    require(depth, "config must hold its vision_config within four levels")
    config, name = parse_config(config, label)
    reject_refused(name, REFUSED)
    parts = {} if name in _ROTATE_OUTSIDE_TOWER else config.look_up(*_PARTS)
    if not parts:
        text_key = next(iter(config.look_up(*_TEXT)), "")
        require(not text_key, "vision_config is missing beside {}", text_key)
        # An old tower may have the name of the whole model, but a whole model has no patch_size.
        is_composite = name not in TOWERS and name in FIXED | CHOSEN and not config.look_up("patch_size")
        message = "vision_config is missing: model_type {!r} is a whole model"
        require(label != "config" or not is_composite, message, name)
        return dict(config.values)
    tower = agreed_value({key: parse_tower_config(part, key, depth - 1) for key, part in parts.items()})
    tower_type, fixed_type = tower.get("model_type"), FIXED.get(name or "")
    fits = fixed_type is None or tower_type in (None, name) or _tower_named(tower_type) == _tower_named(fixed_type)
    require(fits, "model_type must be {!r} in the vision tower of {!r}, got {!r}", fixed_type, name, tower_type)
    if tower_type is None:
        tower["model_type"] = fixed_type or CHOSEN.get(name or "")
    return tower


def _tower_named(name: str) -> str:
    """The tower that a model_type means; in an old config it may name the whole model."""
    return name if name in TOWERS or name not in FIXED | CHOSEN else _tower_named((FIXED | CHOSEN)[name])


def _facts_of(values: Mapping[str, Any]) -> tuple[str, Tower]:
    """The tower's model_type and its facts."""
    name = Values(values).get_string("model_type")
    if not name:
        raise invalid("model_type is missing: no key says how a vision tower rotates")
    tower_name = _tower_named(name)
    if tower_name not in TOWERS:
        raise invalid(
            f"model_type {name!r} is not known as a vision tower, and no key says which coordinate rotates which pair: "
            "a known type may be written in its place only if the code of both rotates the same pairs by the same "
            "coordinates"
        )
    return tower_name, TOWERS[tower_name]
