"""The rope types: each reads its settings and names the function that makes the spectrum.

`spectrum` calls that function once all settings are read, and prefixes its errors with the rope type.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from posenc_jax._frequencies.axes import multi_section
from posenc_jax._frequencies.frequencies import Frequencies, geometric
from posenc_jax._frequencies.ntk import dynamic_ntk, ntk
from posenc_jax._frequencies.scalings import linear_scaling, llama3, longrope, proportional, temperature, yarn
from posenc_jax._jax import checks, errors
from posenc_jax._jax.errors import invalid, require
from posenc_jax.hf._config import ORIGINAL, Config, canonical
from posenc_jax.hf._keys import Keys, agreed, check_agreement, equal
from posenc_jax.hf._typos import meant

MAXIMUM = "max_position_embeddings"
SHARES = "partial_rotary_factor", "rotary_pct", "rotary_emb_fraction"
LEARNED = "learned_log_factor"  # written by the rewriter of Mistral Large 4: the name of the parameter
_STEPS = "dynamic_steps"  # written by the rewriter of Qwen 1, whose configs say it in other keys
# Settings of scalings, without which a rope type means nothing.
_SCALED = (
    "factor", "alpha", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
    "attention_factor", "attn_factor", "extrapolation_factor", "truncate", "short_factor", "long_factor",
)  # fmt: skip
_NONE: Any = object()  # for a null key that has no default: it is an error all the same
_REFUSED_TYPES = {
    "mllama4": "it is that of Llama 4's vision tower, which vision_rotary_from_config reads",
    "xdrope": "its two features of a pair may turn by different coordinates",
}

Settings = dict[str, Any]
Make = Callable[[], Any]  # makes the Frequencies


def rope_type_of(d: Keys) -> str:
    """The rope type, by its name in transformers 5."""
    found = d.take("rope_type", "type")
    for name, value in found.items():
        reason = _REFUSED_TYPES.get(str(value))
        require(not reason, "{} = {!r} is not read: {}", name, value, reason)
    names = {name: canonical(value) for name, value in found.items()}
    result = agreed(names, written=found) if names else d.or_default("default", "rope_type", "type")
    if not equal(result, _STEPS):
        known, name = sorted(set(_TYPES) - {_STEPS}), next(iter(found), "")
        near = meant(str(result), known)
        message = "{} must be one of {}, got {!r:.60}: is {} meant?"
        require(not near, message, name, known, result, " or ".join(map(repr, near)))
        result = checks.one_of(name, result, known)
    require("mrope" not in found.values() or d.found("mrope_section"), "{}mrope_section is missing", d.label)
    return result


def default_share(d: Keys, config: Config) -> float:
    """The share of a head that rotates if no key says it. A null raises where it means something else, or nothing."""
    model = config.model
    share = 1.0 if model.whole_if_scaled and rope_type_of(d) != "default" else model.partial or 1.0
    # A null partial_rotary_factor means the whole head, but the classes of Phi-3 have no null.
    names = SHARES if share < 1 or model.original_max else SHARES[1:]
    return config.or_default(share, *(name for name in names if name in model.reads))


@dataclasses.dataclass(frozen=True)
class Rope:
    """The rope settings `d` of a layer, and the values outside that they depend on."""

    d: Keys
    config: Config
    width: int
    theta: float
    length: int | None

    def plain(self) -> Frequencies:
        """The unscaled spectrum."""
        return geometric(self.width, self.theta)

    def maximum(self) -> int:
        """The maximum sequence length of the model."""
        return _length(self.d.take(MAXIMUM) | self.config.take(MAXIMUM), MAXIMUM)

    def original(self) -> int:
        """The length that the model was trained for before its spectrum was scaled."""
        within, outside = self.d.take(ORIGINAL), self.config.take(ORIGINAL)
        default, own = self.config.model.original_max, self.d.nested or self.config.model.thetas
        if not own:
            self.config.or_default(default or _NONE, ORIGINAL)
        if own or not (outside or default):
            self.d.or_default(_NONE, ORIGINAL)
        if default and not outside:
            outside = {f"{ORIGINAL}, where absent,": default}
        check_agreement(within | outside)  # releases and types differ in which one wins
        found = within if own else within | outside  # beside settings for layer types, it is not read
        message = (
            "{}{} is missing: write the length that the model was trained for before its scaling; transformers takes "
            "max_position_embeddings = {!r:.60}, which may be that after it"
        )
        require(found, message, self.d.label, ORIGINAL, self.config.values.get(MAXIMUM))
        return _length(found, ORIGINAL)

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
            raise invalid(f"length must be given: the spectrum of {self.d.spelled('rope_type', 'type')} depends on it")
        return self.length


def _length(found: dict[str, Any], missing: str) -> int:
    """A number of positions by its spellings; a file may have it as a float."""
    value = agreed(found, missing=missing)
    whole = isinstance(value, float) and value.is_integer()
    return checks.length(next(iter(found)), int(value) if whole else value)


def _default(x: Rope) -> tuple[Settings, Make]:
    return {}, x.plain


def _linear(x: Rope) -> tuple[Settings, Make]:
    factor = x.needed_factor()
    return {"factor": factor}, lambda: linear_scaling(x.plain(), factor)


def _dynamic(x: Rope) -> tuple[Settings, Make]:
    if "alpha" in x.config.model.reads and (alpha := x.d.number("alpha", None)):
        # Hunyuan's configs also have a factor of 1 and YaRN's keys, which its code does not read.
        x.d.use("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
        check_agreement(x.d.take("factor") | {"the factor that goes with alpha": 1.0})
        return {"alpha": alpha}, partial(ntk, x.width, x.theta, alpha)
    factor, maximum = x.needed_factor(), x.maximum()
    result = partial(dynamic_ntk, x.width, x.theta, factor, maximum, x.needed_length())
    return {"factor": factor, MAXIMUM: maximum}, result


def _dynamic_steps(x: Rope) -> tuple[Settings, Make]:
    """Dynamic NTK of Qwen 1: the base grows when the length passes the maximum times a power of two."""
    maximum = x.maximum()
    steps = math.ceil(math.log2(x.needed_length() / maximum) + 1)
    return {MAXIMUM: maximum}, partial(ntk, x.width, x.theta, max(2.0**steps - 1, 1.0))


def _yarn(x: Rope) -> tuple[Settings, Make]:
    # A null factor means the ratio of the lengths; an absent one is an error.
    factor = x.factor() if x.d.is_null("factor") else x.needed_factor()
    truncate = x.d.get("truncate", default=True)
    message = "{}truncate = False, which transformers does not read in settings for a layer type"
    require(truncate is not False or not (x.d.nested or x.config.model.thetas), message, x.d.label)
    original = x.original()
    mscale, all_dim = x.d.number("mscale", None), x.d.number("mscale_all_dim", None)
    if "deepseek_yarn" in x.d.found("rope_type", "type").values():  # vLLM's name, with its own defaults
        own = temperature(factor, 1.0 if mscale is None else mscale) / temperature(factor, all_dim or 0.0)
    else:
        own = temperature(factor, mscale) / temperature(factor, all_dim) if mscale and all_dim else temperature(factor)
    own, given = _scaled_amplitude(x.d, own), x.d.number("attention_factor", None)
    settings = {
        "beta_fast": x.d.number("beta_fast", None) or 32.0,
        "beta_slow": x.d.number("beta_slow", None) or 1.0,
        "truncate": truncate,
        "attention_factor": own if given is None else given,
    }
    result = partial(yarn, x.width, x.theta, factor, original, **settings)
    rest = {"factor": factor, ORIGINAL: original} | ({"mscale_all_dim": all_dim} if all_dim else {})
    return settings | rest, result


def _scaled_amplitude(d: Keys, own: float) -> float:
    """The amplitude `own`, multiplied or dropped by keys of the first YaRN code and of vLLM."""
    d.use("finetuned")
    message = "{}extrapolation_factor must be 1, which keeps fast pairs as they are, got {}"
    extrapolation = d.number("extrapolation_factor", 1.0)
    require(extrapolation == 1, message, d.label, extrapolation)
    factor, scaled = d.number("attn_factor", 1.0), d.flag("apply_yarn_scaling", default=True)
    for name, value in d.found("attention_factor").items():
        others = ", ".join(d.found("attn_factor", "apply_yarn_scaling"))
        require(factor == 1 and scaled, "{} = {!r:.60} contradicts {}", name, value, others)
    return factor * (own if scaled else 1.0)


def _longrope(x: Rope) -> tuple[Settings, Make]:
    names = ("short_factor", "long_factor")
    lists = {name: checks.sequence(x.d.label + name, x.d.need(name), "numbers") for name in names}
    lengths = {"original_max": x.original(), "factor": x.factor(), "length": x.needed_length()}
    # Phi-3-small and Phi-3.5-MoE have one amplitude for each list.
    own = {name: x.d.number(name, None) for name in ("short_mscale", "long_mscale")}
    chosen = own["long_mscale" if lengths["length"] > lengths["original_max"] else "short_mscale"]
    given = x.d.number("attention_factor", None)
    amplitude = chosen if given is None else given
    message = "{}attention_factor = {} contradicts short_mscale and long_mscale"
    require(chosen in (None, amplitude), message, x.d.label, amplitude)
    settings = {"factor": lengths["factor"], ORIGINAL: lengths["original_max"], "attention_factor": amplitude}
    return lists | settings, lambda: longrope(x.plain(), **lists, **lengths, attention_factor=amplitude)


def _llama3(x: Rope) -> tuple[Settings, Make]:
    factor = x.needed_factor()
    bounds = {name: x.d.number(name) for name in ("low_freq_factor", "high_freq_factor")}
    original = x.original()
    settings = {"factor": factor, ORIGINAL: original}
    return bounds | settings, lambda: llama3(x.plain(), factor, original_max=original, **bounds)


def _proportional(x: Rope) -> tuple[Settings, Make]:
    name = SHARES[0]
    found = x.d.take(name) | ({} if x.d.nested else x.config.take(name))
    fraction = agreed(found) if found else default_share(x.d, x.config)
    factor = x.d.number("factor", 1.0)
    return {name: fraction, "factor": factor}, partial(proportional, x.width, x.theta, fraction, factor)


_TYPES: dict[str, Callable[[Rope], tuple[Settings, Make]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    _STEPS: _dynamic_steps,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": _proportional,
}


def _coordinates(x: Rope, frequencies: Frequencies, said: str) -> tuple[Frequencies, Settings]:
    """The spectrum with its pairs divided among coordinates, and the settings that say how, if any do."""
    model = x.config.model
    sections = None if model.sections is None else x.d.get("mrope_section", default=model.sections or None)
    if sections is None:
        return frequencies, {}
    name, count = f"{x.d.label}mrope_section", frequencies.num_pairs
    message = "{} is missing, and {} of model_type {!r} do not sum to {} pairs"
    fits = x.d.found("mrope_section") or sum(sections) == count
    require(fits, message, name, sections, x.config.model_type, count)
    sections = checks.positive_ints(name, sections)
    few = len(sections) <= 3 or not x.config.model_type
    require(few, "{}mrope_section must have three sections, got {}", x.d.label, sections)
    if "mrope_alternating" in model.reads and x.d.flag("mrope_alternating"):
        frequencies = _alternating(frequencies, sections)
        return frequencies, {"mrope_section": sections, "mrope_alternating": True}
    own = {f"that of model_type {x.config.model_type!r}": model.interleaved_sections}
    own = {} if model.interleaved_sections is None else own
    interleaved = agreed(x.d.take("mrope_interleaved", "interleaved") | own, False)
    with errors.labelled(said):
        frequencies = multi_section(frequencies, sections, interleaved=interleaved)
    return frequencies, {"mrope_section": sections, "mrope_interleaved": bool(interleaved)}


def _alternating(frequencies: Frequencies, sections: tuple[int, ...]) -> Frequencies:
    """ERNIE's M-RoPE: pairs of height and width alternate, and those of time come last."""
    fits = len(sections) == 3 and sections[0] == sections[1] and sum(sections) == frequencies.num_pairs
    message = "mrope_section must be height, width and time, the first two equal, of {} pairs, got {}"
    require(fits, message, frequencies.num_pairs, sections)
    return dataclasses.replace(frequencies, axes=(1, 2) * sections[0] + (0,) * sections[2])


def spectrum(x: Rope) -> tuple[Frequencies, Settings]:
    """The spectrum of the settings, and the completed settings."""
    name, model = rope_type_of(x.d), x.config.model
    if x.d.found(MAXIMUM):  # repeated, as in Ministral 3, it must agree with the config
        x.maximum()
    known = name != _STEPS or model.query_scale == "logn" or not x.config.model_type
    require(known, "{}rope_type = {!r} is not known", x.d.label, name)
    settings, make = _TYPES[name](x)
    backward = "rope_backward" in model.reads and x.d.flag("rope_backward")
    said = next((f"{key} {value!r}" for key, value in x.d.found("rope_type", "type").items()), x.d.name or "rope_type")
    with errors.labelled(said):
        frequencies = make()
    frequencies, coordinates = _coordinates(x, frequencies, said)
    if backward:
        frequencies = dataclasses.replace(frequencies, cycles=tuple(-cycles for cycles in frequencies.cycles))
        settings["rope_backward"] = True
    if LEARNED in model.reads and (learned := x.d.string(LEARNED)):
        settings[LEARNED] = learned
    if "attention_factor" in settings:
        settings["attention_factor"] = frequencies.attention_factor
    if "truncate" in settings:
        settings["truncate"] = bool(settings["truncate"])  # not NumPy's
    scaled = x.d.found(*(key for key in _SCALED if key not in x.d.used))
    typed = not scaled or x.d.found("rope_type", "type")
    require(
        typed, "{}rope_type is missing beside {}", x.d.label, ", ".join(f"{k} = {v!r:.60}" for k, v in scaled.items())
    )
    return frequencies, {"rope_type": name, "rope_theta": x.theta} | settings | coordinates
