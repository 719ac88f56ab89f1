"""The rope types: each reads its settings and names the function that makes a spectrum of them.

`spectrum` reads the settings first, and then calls the function and prefixes its errors with the rope type.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from posenc_jax import _checks
from posenc_jax._axes import multi_section
from posenc_jax._checks import InvalidType, InvalidValue, require
from posenc_jax._frequencies import Frequencies, geometric
from posenc_jax._ntk import dynamic_ntk, ntk
from posenc_jax._scalings import linear_scaling, llama3, longrope, proportional, temperature, yarn
from posenc_jax.hf._config import Config
from posenc_jax.hf._keys import Keys, agreed, check_agreement

MAXIMUM = "max_position_embeddings"
ORIGINAL = "original_max_position_embeddings"
_ALIASES = {"su": "longrope", "mrope": "default"}

Settings = dict[str, Any]
Make = Callable[[], Any]  # makes the Frequencies, after the settings have been read


def rope_type_of(d: Keys) -> str:
    """The rope type, in today's spelling."""
    found = d.take("rope_type", "type")
    result = agreed({name: _ALIASES.get(str(value), value) for name, value in found.items()}, "default")
    result = _checks.one_of(next(iter(found), ""), result, sorted(_TYPES))
    require("mrope" not in found.values() or d.found("mrope_section"), "{}mrope_section is missing", d.label)
    return result


@dataclasses.dataclass(frozen=True)
class Rope:
    """The rope settings `d` of a layer, and what they refer to."""

    d: Keys
    config: Config
    width: int
    theta: float
    length: int | None

    def plain(self) -> Frequencies:
        """The spectrum before it is scaled."""
        return geometric(self.width, self.theta)

    def maximum(self) -> int:
        """The maximum sequence length of the model."""
        value = agreed(self.d.take(MAXIMUM) | self.config.take(MAXIMUM), missing=MAXIMUM)
        return _checks.length(MAXIMUM, value)

    def check_copy(self) -> None:
        """Raises if the rope settings have a copy of the maximum (as in Ministral 3) that contradicts the config."""
        if self.d.found(MAXIMUM):
            self.maximum()

    def original(self) -> int:
        """The length that the model was trained for before its spectrum was scaled."""
        within, outside = self.d.take(ORIGINAL), self.config.take(ORIGINAL)
        default = self.config.model.original_max
        if default and not outside and not self.config.is_null(ORIGINAL):
            outside = {f"{ORIGINAL}, where absent,": default}
            check_agreement(within | outside)
        # A length outside the rope settings, as in Phi-3, wins, but not over settings for one layer type.
        found = within if self.d.nested else outside or within
        return _checks.length(ORIGINAL, agreed(found)) if found else self.maximum()

    def factor(self) -> float:
        """How many times longer the model's sequences are than the original ones."""
        value = self.d.number("factor", None)
        return self.maximum() / self.original() if value is None else value

    def needed_factor(self) -> float:
        """The factor, which the config must give."""
        require(self.d.found("factor"), "{}factor is missing", self.d.label)
        return self.factor()

    def needed_length(self) -> int:
        """The length, which the caller must give."""
        if self.length is None:
            raise InvalidValue(f"length must be given: the spectrum of {self.d.label}rope_type depends on it")
        return self.length


def _default(x: Rope) -> tuple[Settings, Make]:
    return {}, x.plain


def _linear(x: Rope) -> tuple[Settings, Make]:
    factor = x.needed_factor()
    return {"factor": factor}, lambda: linear_scaling(x.plain(), factor)


def _dynamic(x: Rope) -> tuple[Settings, Make]:
    if x.config.model.alpha and (alpha := x.d.number("alpha", None)):
        # Hunyuan's configs also have a factor of one and YaRN's keys, which its code does not read.
        x.d.use("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
        check_agreement(x.d.take("factor") | {"the factor that goes with alpha": 1.0})
        return {"alpha": alpha}, partial(ntk, x.width, x.theta, alpha)
    factor, maximum = x.needed_factor(), x.maximum()
    result = partial(dynamic_ntk, x.width, x.theta, factor, maximum, x.needed_length())
    return {"factor": factor, MAXIMUM: maximum}, result


def _yarn(x: Rope) -> tuple[Settings, Make]:
    # A null factor means the ratio of the lengths; an absent one is an error.
    factor = x.factor() if x.d.is_null("factor") else x.needed_factor()
    truncate = x.d.get("truncate", default=True)
    message = "{}truncate = False, which transformers does not read in settings for a layer type"
    require(truncate is not False or not x.d.nested, message, x.d.label)
    original = x.original()
    mscale, all_dim = x.d.number("mscale", None), x.d.number("mscale_all_dim", None)
    own = temperature(factor, mscale) / temperature(factor, all_dim) if mscale and all_dim else temperature(factor)
    settings = {
        "beta_fast": x.d.number("beta_fast", None) or 32.0,
        "beta_slow": x.d.number("beta_slow", None) or 1.0,
        "truncate": truncate,
        "attention_factor": x.d.number("attention_factor", own),
    }
    result = partial(yarn, x.width, x.theta, factor, original, **settings)
    rest = {"factor": factor, ORIGINAL: original} | ({"mscale_all_dim": all_dim} if all_dim else {})
    return settings | rest, result


def _longrope(x: Rope) -> tuple[Settings, Make]:
    names = ("short_factor", "long_factor")
    lists = {name: _checks.sequence(x.d.label + name, x.d.need(name), "numbers") for name in names}
    lengths = {"original_max": x.original(), "factor": x.factor(), "length": x.needed_length()}
    amplitude = x.d.number("attention_factor", None)
    settings = {"factor": lengths["factor"], ORIGINAL: lengths["original_max"], "attention_factor": amplitude}
    return lists | settings, lambda: longrope(x.plain(), **lists, **lengths, attention_factor=amplitude)


def _llama3(x: Rope) -> tuple[Settings, Make]:
    factor = x.needed_factor()
    bounds = {name: x.d.number(name) for name in ("low_freq_factor", "high_freq_factor")}
    original = x.original()
    settings = {"factor": factor, ORIGINAL: original}
    return bounds | settings, lambda: llama3(x.plain(), factor, original_max=original, **bounds)


def _proportional(x: Rope) -> tuple[Settings, Make]:
    name = "partial_rotary_factor"
    fraction, factor = agreed(x.d.take(name) | x.config.take(name), 1.0), x.d.number("factor", 1.0)
    return {name: fraction, "factor": factor}, partial(proportional, x.width, x.theta, fraction, factor)


_TYPES: dict[str, Callable[[Rope], tuple[Settings, Make]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": _proportional,
}


def _sections(x: Rope) -> dict[str, Any]:
    """The arguments of `multi_section`; nothing for positions of one coordinate."""
    model = x.config.model
    sections = None if model.sections is None else agreed(x.d.take("mrope_section"), model.sections or None)
    if sections is None:
        return {}
    form = {} if model.dealt is None else {f"that of model_type {x.config.model_type!r}": model.dealt}
    return {"sections": sections, "interleaved": agreed(x.d.take("mrope_interleaved", "interleaved") | form, False)}


def spectrum(x: Rope) -> tuple[Frequencies, Settings]:
    """The spectrum of the settings, and the completed settings."""
    name = rope_type_of(x.d)
    x.check_copy()
    settings, make = _TYPES[name](x)
    sections = _sections(x)
    try:
        frequencies = make()
        if sections:
            frequencies = multi_section(frequencies, **sections)
    except (InvalidType, InvalidValue) as error:  # `error` names the function that raised it
        error.message = f"{x.d.label}rope_type {name!r}: {error}"
        raise
    if "attention_factor" in settings:
        settings["attention_factor"] = frequencies.attention_factor
    if "truncate" in settings:
        settings["truncate"] = bool(settings["truncate"])  # not NumPy's
    if sections:
        settings["mrope_section"] = tuple(sections["sections"])
        settings["mrope_interleaved"] = bool(sections["interleaved"])
    return frequencies, {"rope_type": name, "rope_theta": x.theta} | settings
