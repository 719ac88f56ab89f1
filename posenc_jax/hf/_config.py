"""A config.json before its rope settings are read: the language model's part, and the facts of its model_type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc_jax import _checks
from posenc_jax._checks import InvalidValue, require
from posenc_jax.hf._keys import Keys, agreed, equal, mapping, mapping_of_strings, speaks_of_positions
from posenc_jax.hf._models import MODELS, UNNAMED, Model, known
from posenc_jax.hf._refused import REFUSED

# Where the language model of a composite config stands.
_PARTS = "thinker_config", "text_config", "language_config", "llm_config", "lm_config"
_OWN_PARTS = {
    "dia": ("decoder_config",),
    "esmfold2": ("esmc_config",),
    "t5gemma": ("decoder",),
    "t5gemma2": ("decoder",),
    "vibevoice": ("decoder_config",),
    "vibepod": ("decoder_config",),
}
# Composites whose language model is of this type, whatever text_config says.
_INNER = {"deepseek_ocr2": "deepseek_ocr2_text", "step3p7": "step3p5", "unlimited_ocr": "unlimited_ocr_text"}
# Composites whose own keys are those of the language model too.
_MERGED = {"DeepseekOCR", "deepseek_vl_v2"}
# Keys of a composite that are not about its language model.
_OTHERS = {"glmasr": ("use_rope",), "musicflamingo": ("rope_parameters",)}
# Keys that say nothing while they are false, whatever the model_type; on, only some read them.
SWITCHES = "use_mrope", "use_dynamic_ntk", "use_logn_attn", "mla_use_nope", "use_fope"


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


def text_of(config: Any, depth: int = 4, label: str = "config") -> dict[str, Any]:
    """The language model's part of a config, at most `depth` levels deep; `label` is what errors call it."""
    require(depth, "config must hold its text_config within four levels")
    if not isinstance(config, type) and callable(getattr(config, "to_dict", None)):
        with _checks.callback():
            config = config.to_dict()
    outer = Keys(mapping_of_strings(label, config, "a mapping or have to_dict()"))
    name = outer.string("model_type")
    parts = outer.found(*_PARTS, *_OWN_PARTS.get(name or "", ()))
    if not parts:
        return dict(outer.values)
    _check_known(name)
    inner = agreed({key: text_of(part, depth - 1, key) for key, part in parts.items()})
    inner["model_type"] = _INNER.get(name or "") or inner.get("model_type") or name
    own = MODELS.get(f"{name}_text")
    if own and inner["model_type"] != name and MODELS.get(str(inner["model_type"])) != own:
        expected, got = f"{name}_text", inner["model_type"]
        raise InvalidValue(f"model_type must be {expected!r} in the language model of {name!r}, got {got!r}")
    if name in _MERGED:
        return {key: value for key, value in outer.values.items() if key not in _PARTS} | inner
    # transformers 4 wrote some settings in both places; transformers 5 reads the inner.
    outer.use(*(name for name, value in inner.items() if equal(value, outer.values.get(name))))
    outer.use(*_OTHERS.get(name or "", ()), *(switch for switch in SWITCHES if outer.values.get(switch) is False))
    outer.finish(strict=False)
    return inner


def _check_known(name: str | None) -> None:
    """Raises for a model_type that is refused by name."""
    if name in REFUSED:
        raise InvalidValue(f"model_type {name!r} is not read: {REFUSED[name]}")


def model_of(values: Mapping[str, Any]) -> Model:
    """The facts of a config's model_type."""
    name = Keys(values).string("model_type")
    if not name:
        return UNNAMED
    _check_known(name)
    own = known(name)
    if own is None or own != name and values.get("patch_size"):  # a tower has the name of the whole model too
        raise InvalidValue(
            f"model_type {name!r} is not known, and its code may do what no key says, such as layers without "
            "positions, other pairs or a scale of queries: if it rotates as a known type does, write "
            "that type in its place"
        )
    return MODELS[own]


def overrides(config: Config, count: int) -> dict[int, Mapping[str, Any]]:
    """What per_layer_config says of each layer."""
    result = {}
    for index, values in mapping("per_layer_config", config.get("per_layer_config", default={})).items():
        fits = str(index).isdecimal() and int(index) < count and isinstance(values, Mapping)
        require(fits, "per_layer_config must map layers below {} to mappings, got {!r}: {!r:.60}", count, index, values)
        name = f"per_layer_config.{index}"
        for key in mapping_of_strings(name, values):
            known = key in ("qk_nope_head_dim", "qk_rope_head_dim") or not speaks_of_positions(key)
            require(known, "the key {}.{} is not known or not used here", name, key)
        result[int(index)] = values
    return result
