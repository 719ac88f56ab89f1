"""The rope types: from the settings of a config to a spectrum, and the settings complete."""

from __future__ import annotations

import dataclasses
from typing import Any

from posenc_jax import _check
from posenc_jax._hf_config import WHERE, Keys, error, one
from posenc_jax._hf_models import Model
from posenc_jax.axes import multi_section
from posenc_jax.frequencies import Frequencies, geometric
from posenc_jax.scalings import dynamic_ntk, linear_scaling, llama3, longrope, ntk, proportional, temperature, yarn

MAXIMUM = "max_position_embeddings"
ORIGINAL = "original_max_position_embeddings"
_ALIASES = {"su": "longrope", "mrope": "default"}


def rope_type(d: Keys) -> str:
    """The rope type, in today's spelling."""
    found = d.found("rope_type", "type")
    result = one({name: _ALIASES.get(str(value), value) for name, value in found.items()}, "default")
    if not isinstance(result, str) or result not in _TYPES:
        raise error(f"{next(iter(found))} must be one of {sorted(_TYPES)}, got {result!r}")
    if "mrope" in found.values() and d.values.get("mrope_section") is None:
        raise error(f"{d.label}mrope_section is missing")
    return result


def _positions(name: str, value: Any) -> int:
    """A number of positions."""
    if (result := _check.positive_int(WHERE, name, value)) >= 2**31:
        raise error(f"{name} must fit into int32, got {result!r:.60}")
    return result


@dataclasses.dataclass(frozen=True)
class Rope:
    """The rope settings `d` of a layer, and what they refer to."""

    d: Keys
    config: Keys
    model: Model | None
    width: int
    theta: float
    length: int | None

    @property
    def plain(self) -> Frequencies:
        return geometric(self.width, self.theta)

    def maximum(self) -> int:
        value = one(self.d.found(MAXIMUM) | self.config.found(MAXIMUM), missing=MAXIMUM)
        return _positions(MAXIMUM, value)

    def original(self) -> int:
        within, outside = self.d.found(ORIGINAL), self.config.found(ORIGINAL)
        if self.model and self.model.original_max and ORIGINAL not in self.config.values:
            outside = {f"{ORIGINAL}, where absent,": self.model.original_max}
            one(within | outside)
        # Outside, as Phi-3 writes it, it wins, but not over settings for one layer type.
        found = within if self.d.nested else outside or within
        return _positions(ORIGINAL, one(found) if found else self.maximum())

    def factor(self) -> float:
        value = self.d.number("factor", None)
        return self.maximum() / self.original() if value is None else value

    def need_length(self) -> int:
        if self.length is None:
            raise error(f"length must be given: the spectrum of {self.d.label}rope_type depends on it")
        return self.length


def _default(x: Rope) -> tuple[Frequencies, dict[str, Any]]:
    return x.plain, {}


def _linear(x: Rope) -> tuple[Frequencies, dict[str, Any]]:
    x.d.need("factor")
    return linear_scaling(x.plain, x.factor()), {"factor": x.factor()}


def _dynamic(x: Rope) -> tuple[Frequencies, dict[str, Any]]:
    hunyuan = x.model is None or "hunyuan" in x.config.values["model_type"]  # the others do not read it
    if hunyuan and (alpha := x.d.number("alpha", None)):
        # Hunyuan's configs also have a factor of one and YaRN's keys, which its code does not read.
        x.d.found("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
        one(x.d.found("factor") | {"the factor that goes with alpha": 1.0})
        return ntk(x.width, x.theta, alpha), {"alpha": alpha}
    x.d.need("factor")
    settings = {"factor": x.factor(), MAXIMUM: x.maximum()}
    result = dynamic_ntk(x.width, x.theta, x.factor(), x.maximum(), x.need_length())
    assert isinstance(result, Frequencies)
    return result, settings


def _yarn(x: Rope) -> tuple[Frequencies, dict[str, Any]]:
    if "factor" not in x.d.values:
        x.d.need("factor")  # null has a meaning, absence has none
    if x.d.nested and x.d.get("truncate") is False:
        raise error(f"{x.d.label}truncate = False, which transformers does not read in settings for a layer type")
    factor, original = x.factor(), x.original()
    mscale, all_dim = x.d.number("mscale", None), x.d.number("mscale_all_dim", None)
    own = temperature(factor, mscale) / temperature(factor, all_dim) if mscale and all_dim else temperature(factor)
    settings = {
        "beta_fast": x.d.number("beta_fast", None) or 32.0,
        "beta_slow": x.d.number("beta_slow", None) or 1.0,
        "truncate": x.d.get("truncate", default=True),
        "attention_factor": x.d.number("attention_factor", own),
    }
    result = yarn(x.width, x.theta, factor, original, **settings)
    settings |= {"truncate": bool(settings["truncate"]), "factor": factor, ORIGINAL: original}  # not NumPy's
    return result, settings | ({"mscale_all_dim": all_dim} if all_dim else {})


def _longrope(x: Rope) -> tuple[Frequencies, dict[str, Any]]:
    names = ("short_factor", "long_factor")
    lists = {name: _check.sequence(WHERE, x.d.label + name, x.d.need(name), "numbers") for name in names}
    result = longrope(
        x.plain,
        **lists,
        original_max=x.original(),
        factor=x.factor(),
        length=x.need_length(),
        attention_factor=x.d.number("attention_factor", None),
    )
    rest = {"factor": x.factor(), ORIGINAL: x.original(), "attention_factor": result.attention_factor}
    return result, lists | rest


def _llama3(x: Rope) -> tuple[Frequencies, dict[str, Any]]:
    x.d.need("factor")
    low, high = x.d.number("low_freq_factor"), x.d.number("high_freq_factor")
    bounds = {"low_freq_factor": low, "high_freq_factor": high}
    result = llama3(x.plain, x.factor(), original_max=x.original(), **bounds)
    return result, bounds | {"factor": x.factor(), ORIGINAL: x.original()}


def _proportional(x: Rope) -> tuple[Frequencies, dict[str, Any]]:
    name = "partial_rotary_factor"
    fraction, factor = one(x.d.found(name) | x.config.found(name), 1.0), x.d.number("factor", 1.0)
    return proportional(x.width, x.theta, fraction, factor), {name: fraction, "factor": factor}


_TYPES = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": _proportional,
}


def spectrum(x: Rope) -> tuple[Frequencies, dict[str, Any]]:
    """The spectrum that the settings say, and the settings complete."""
    name = rope_type(x.d)
    if x.d.found(MAXIMUM):  # Ministral 3 keeps a copy within
        x.maximum()
    try:
        frequencies, settings = _TYPES[name](x)
        default = x.model.sections if x.model else None
        sections = one(x.d.found("mrope_section"), default) if x.model is None or default else None
        if sections is not None:
            form = {f"that of model_type {x.config.values['model_type']!r}": x.model.dealt} if x.model else {}
            dealt = one(x.d.found("mrope_interleaved", "interleaved") | form, False)
            frequencies = multi_section(frequencies, sections, interleaved=dealt)
            settings = settings | {"mrope_section": tuple(sections), "mrope_interleaved": dealt}
    except (TypeError, ValueError) as e:
        if str(e).startswith(WHERE):
            raise
        raise type(e)(f"{WHERE}: {x.d.label}rope_type {name!r}: {e}") from e
    return frequencies, {"rope_type": name, "rope_theta": x.theta} | settings
