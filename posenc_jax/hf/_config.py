"""A config.json before its rope settings are read: the language model's part, and the facts of its model_type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc_jax import _checks
from posenc_jax._checks import require
from posenc_jax.hf._keys import ROTATIONS, Keys, agreed, equal, mapping, mapping_of_strings
from posenc_jax.hf._models import MODELS, REFUSED, UNKNOWN, UNNAMED, Model


class Config(Keys):
    """The keys of a language model's config, and the facts of its model_type."""

    def __init__(self, values: Mapping[str, Any], model: Model):
        """`values` as `text_of` returns them, `model` as `model_of` does."""
        super().__init__(values)
        self.model, self.model_type = model, values.get("model_type")

    def with_own(self, own: Mapping[str, Any]) -> Config:
        """The config of a layer that has settings of its own; both share the record of used keys."""
        result = Config({**self.values, **own}, self.model)
        result.used = self.used
        return result

    @property
    def latent(self) -> bool:
        """Whether attention is latent: only the last features of queries and keys have positions."""
        if self.model.latent is not None:
            return self.model.latent
        width = agreed(self.found("qk_rope_head_dim"), None)
        return width is not None and not (isinstance(width, int) and width == 0)  # other widths are checked when read


def text_of(config: Any, depth: int = 4) -> dict[str, Any]:
    """The language model's part of a config, at most `depth` levels deep."""
    require(depth, "config must hold its text_config within four levels")
    if not isinstance(config, type) and callable(getattr(config, "to_dict", None)):
        with _checks.callback():
            config = config.to_dict()
    outer = Keys(mapping_of_strings("config", config, "a mapping or have to_dict()"))
    parts = outer.found("thinker_config", "text_config", "language_config")
    if not parts:
        return dict(outer.values)
    inner = agreed({name: text_of(part, depth - 1) for name, part in parts.items()})
    inner["model_type"] = inner.get("model_type") or outer.values.get("model_type")
    # transformers 4 wrote some settings in both places; transformers 5 reads the inner.
    outer.use(*(name for name, value in inner.items() if equal(value, outer.values.get(name))))
    outer.finish()
    return inner


def model_of(values: Mapping[str, Any]) -> Model:
    """The facts of a config's model_type."""
    name = Keys(values).string("model_type")
    why = REFUSED.get(name or "") or REFUSED.get((name or "").removesuffix("_text"))
    require(not why, "model_type {!r} rotates in a way that a plan cannot say: {}", name, why)
    if not name:
        return UNNAMED
    # A multimodal config from before text_config existed has the model_type of the whole model.
    return MODELS.get(name) or MODELS.get(f"{name}_text", UNKNOWN)


def overrides(config: Config, count: int) -> dict[int, Mapping[str, Any]]:
    """What per_layer_config says of each layer."""
    result = {}
    for index, values in mapping("per_layer_config", config.get("per_layer_config", default={})).items():
        fits = str(index).isdecimal() and int(index) < count and isinstance(values, Mapping)
        require(fits, "per_layer_config must map layers below {} to mappings, got {!r}: {!r:.60}", count, index, values)
        name = f"per_layer_config.{index}"
        for key in mapping_of_strings(name, values):
            require(not ROTATIONS.search(key), "the key {}.{} is not known or not used here", name, key)
        result[int(index)] = values
    return result
