"""The vision tower's part of a config.json, and the facts of its model_type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc_jax._jax import checks
from posenc_jax._jax.errors import invalid, require
from posenc_jax.hf._keys import Keys, agreed, check_case, check_read, mapping_of_strings, parse_config
from posenc_jax.hf._towers import CHOSEN, FIXED, REFUSED, TOWERS, Tower

# The keys under which a composite config holds its tower, and its language model.
_PARTS = "vision_config", "thinker_config", "backbone_config"
_TEXT = "text_config", "language_config", "llm_config"
# Composites that rotate outside their tower; the tower does not rotate, or has its own config.
_OWN = "edgetam_video", "sam2_video", "sam3_tracker_video"


class TowerConfig(Keys):
    """The keys of a tower's config and of its rope settings, and the facts of its model_type."""

    def __init__(self, values: Mapping[str, Any]):
        """`values` as `tower_of` returns them."""
        super().__init__(values)
        self.model_type, self.facts = _facts_of(values)
        settings = self.take("rope_scaling", "rope_parameters")
        self.settings = [Keys(mapping_of_strings(name, value), name) for name, value in settings.items()]


def parse_count(config: Keys, name: str, default: int, least: int = 1) -> int:
    """The value of a key that counts something."""
    value = checks.integer(config.label + name, value_of(config, name, default), least)
    require(value < 2**16, "{}{} must be below 65,536, got {!r:.60}", config.label, name, value)
    return value


def value_of(config: Keys, name: str, default: Any) -> Any:
    """The value of a key, by default that of the class; a null is an error."""
    require(not config.is_null(name), "{} is missing", name)
    return config.get(name, default=default)


def tower_of(config: Any, label: str = "config", depth: int = 4) -> dict[str, Any]:
    """The tower's part of a config, at most `depth` levels deep; errors call the config `label`."""
    require(depth, "config must hold its vision_config within four levels")
    keys = parse_config(config, label)
    name = keys.string("model_type")
    check_read(name, REFUSED)
    parts = {} if name in _OWN else keys.found(*_PARTS)
    if not parts:
        outer = next(iter(keys.found(*_TEXT)), "")
        require(not outer, "vision_config is missing beside {}", outer)
        # An old tower may have the name of the whole model, but a whole model has no patch_size.
        whole = label == "config" and name not in TOWERS and name in FIXED | CHOSEN and not keys.found("patch_size")
        require(not whole, "vision_config is missing: model_type {!r} is a whole model", name)
        return dict(keys.values)
    inner = agreed({key: tower_of(part, key, depth - 1) for key, part in parts.items()})
    found, fixed = inner.get("model_type"), FIXED.get(name or "")
    fits = fixed is None or found in (None, name) or _tower_named(found) == _tower_named(fixed)
    require(fits, "model_type must be {!r} in the vision tower of {!r}, got {!r}", fixed, name, found)
    if found is None:
        inner["model_type"] = fixed or CHOSEN.get(name or "")
    return inner


def _tower_named(name: str) -> str:
    """The tower that a model_type means; in an old config it may name the whole model."""
    return name if name in TOWERS or name not in FIXED | CHOSEN else _tower_named((FIXED | CHOSEN)[name])


def _facts_of(values: Mapping[str, Any]) -> tuple[str, Tower]:
    """The tower's model_type and its facts."""
    name = Keys(values).string("model_type")
    if not name:
        raise invalid("model_type is missing: no key says how a vision tower rotates")
    own = _tower_named(name)
    if own not in TOWERS:
        check_case(name, [*TOWERS, *FIXED, *CHOSEN])
        raise invalid(
            f"model_type {name!r} is not known as a vision tower, and no key says which coordinate turns which pair: "
            "a known type may be written in its place only if the code of both turns the same pairs by the same "
            "coordinates"
        )
    return own, TOWERS[own]
