"""The rope types: each reads its settings and names the function that makes the frequencies.

`frequencies_of` calls that function once all settings are read, and prefixes its errors with the rope type.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from posenc_jax._frequencies.axes import multi_section
from posenc_jax._frequencies.frequencies import Frequencies, geometric
from posenc_jax._frequencies.ntk import dynamic_ntk, ntk
from posenc_jax._frequencies.scalings import linear_scaling, llama3, longrope, proportional, temperature, yarn
from posenc_jax._jax import checks
from posenc_jax._jax.errors import invalid, labelled, require
from posenc_jax.hf._config import ORIGINAL, Config
from posenc_jax.hf._models import Model
from posenc_jax.hf._values import Values, agreed_value, check_agreement, equal

MAXIMUM = "max_position_embeddings"
_ALIASES = {"su": "longrope", "mrope": "default"}
SHARES = "partial_rotary_factor", "rotary_pct", "rotary_emb_fraction"
LEARNED = "learned_log_factor"  # written by the rewriter of Mistral Large 4: the name of the parameter

Settings = dict[str, Any]
Reading = tuple[Settings, Callable[[], Any]]  # the settings with all defaults, and what makes the frequencies


def rope_type_of(settings: Values) -> str:
    """The rope type, by its name in transformers 5."""
    written = settings.look_up("rope_type", "type")
    if not written:
        return settings.default_unless_null("default", "rope_type", "type")
    names: list[Any] = [_ALIASES.get(str(name), name) for name in written.values()]
    if not equal(names[0], names[-1]):
        check_agreement(written)
    checks.one_of(next(iter(written)), names[0], sorted(_TYPES))
    if "mrope" in written.values():
        settings.get_required("mrope_section")
    return names[0]


def default_share(settings: Values, config: Config) -> float:
    """The share of a head that rotates if no key sets it; where it is less than the whole, a null raises."""
    model = config.model
    share = 1.0 if model.whole_if_scaled and rope_type_of(settings) != "default" else model.partial or 1.0
    settings.default_unless_null(share if share < 1 else None, SHARES[0])
    return config.default_unless_null(share, *(name for name in SHARES if share < 1 and name in model.reads))


class Rope(NamedTuple):
    """The rope settings of a layer, and the values outside them on which they depend."""

    settings: Values
    config: Config
    width: int
    theta: float
    length: int | None

    def unscaled(self) -> Frequencies:
        """The frequencies without scaling."""
        return geometric(self.width, self.theta)

    def maximum(self) -> int:
        """The maximum sequence length of the model."""
        return _parse_length(self.settings.look_up(MAXIMUM) | self.config.look_up(MAXIMUM), MAXIMUM)

    def original(self) -> int:
        """The length that the model was trained for before its frequencies were scaled."""
        inside, outside = self.settings.look_up(ORIGINAL), self.config.look_up(ORIGINAL)
        check_agreement(inside | outside)  # releases and types differ in which one wins
        spellings = inside if self.settings.of_layer_type or self.config.model.bases else inside | outside
        message = (
            "{}{} is missing: write the length that the model was trained for before its scaling; transformers takes "
            "max_position_embeddings = {!r:.60}, which may be that after it"
        )
        require(spellings, message, self.settings.label, ORIGINAL, self.config.values.get(MAXIMUM))
        return _parse_length(spellings, ORIGINAL)

    def factor(self) -> float:
        """How many times longer the model's sequences are than the original ones."""
        value = self.settings.get_number("factor", default=None)
        return self.maximum() / self.original() if value is None else value

    def required_length(self) -> int:
        """The length, which the caller must give."""
        if self.length is None:
            name = self.settings.spelling("rope_type", "type")
            raise invalid(f"length must be given: the spectrum of {name} depends on it")
        return self.length


def _parse_length(spellings: dict[str, Any], missing: str) -> int:
    """A number of positions by its spellings; a file may have it as a float."""
    value = agreed_value(spellings, missing=missing)
    whole = isinstance(value, float) and value.is_integer()
    return checks.length(next(iter(spellings)), int(value) if whole else value)


def _linear(rope: Rope) -> Reading:
    factor = rope.settings.get_number("factor")
    return {"factor": factor}, lambda: linear_scaling(rope.unscaled(), factor)


def _dynamic(rope: Rope) -> Reading:
    alpha = rope.settings.get_number("alpha", default=None)
    if alpha:
        # Hunyuan's configs also have a factor of 1 and YaRN's keys, which its code does not read.
        check_agreement(rope.settings.look_up("factor") | {"the factor that goes with alpha": 1.0})
        return {"alpha": alpha}, partial(ntk, rope.width, rope.theta, alpha)
    if rope.settings.get_flag("dynamic_steps"):
        return _dynamic_steps(rope)
    factor, maximum = rope.settings.get_number("factor"), rope.maximum()
    make = partial(dynamic_ntk, rope.width, rope.theta, factor, maximum, rope.required_length())
    return {"factor": factor, MAXIMUM: maximum}, make


def _dynamic_steps(rope: Rope) -> Reading:
    """Dynamic NTK of Qwen 1: the base grows when the length passes the maximum times a power of two."""
    maximum = rope.maximum()
    steps = math.ceil(math.log2(rope.required_length() / maximum) + 1)
    return {"dynamic_steps": True, MAXIMUM: maximum}, partial(ntk, rope.width, rope.theta, max(2.0**steps - 1, 1.0))


def _yarn(rope: Rope) -> Reading:
    """YaRN, with the keys of its first code too."""
    settings = rope.settings
    # A null factor means the ratio of the lengths; an absent one is an error.
    factor = rope.factor() if settings.is_null("factor") else settings.get_number("factor")
    truncate = settings.get_flag("truncate", default=True)
    is_read = not (settings.of_layer_type or rope.config.model.bases)
    message = "{}truncate = False, which transformers does not read in settings for a layer type"
    require(truncate or is_read, message, settings.label)
    unread = settings.look_up("extrapolation_factor", "attn_factor", "apply_yarn_scaling")
    check_agreement(unread | {"that of the code": 1.0})
    amplitude, mscale, all_dim, beta_fast, beta_slow = (
        settings.get_number(name, default=None)
        for name in ("attention_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow")
    )
    if amplitude is None:
        is_ratio = mscale and all_dim
        amplitude = temperature(factor, mscale) / temperature(factor, all_dim) if is_ratio else temperature(factor)
    original = rope.original()
    options = {"beta_fast": beta_fast or 32.0, "beta_slow": beta_slow or 1.0}
    options |= {"truncate": truncate, "attention_factor": amplitude}
    completed = {"factor": factor, ORIGINAL: original} | options | ({"mscale_all_dim": all_dim} if all_dim else {})
    return completed, partial(yarn, rope.width, rope.theta, factor, original, **options)


def _longrope(rope: Rope) -> Reading:
    settings = rope.settings
    lists = {
        name: checks.sequence(settings.label + name, settings.get_required(name), "numbers")
        for name in ("short_factor", "long_factor")
    }
    original, length = rope.original(), rope.required_length()
    # Phi-3-small and Phi-3.5-MoE have one amplitude for each list.
    of_list = "long_mscale" if length > original else "short_mscale"
    amplitude = settings.get_number("attention_factor", of_list, default=None)
    options = {"factor": rope.factor(), "attention_factor": amplitude}
    make = lambda: longrope(rope.unscaled(), **lists, **options, original_max=original, length=length)  # noqa: E731
    return {**lists, **options, ORIGINAL: original}, make


def _llama3(rope: Rope) -> Reading:
    names = "factor", "low_freq_factor", "high_freq_factor"
    numbers, original = {name: rope.settings.get_number(name) for name in names}, rope.original()
    return numbers | {ORIGINAL: original}, lambda: llama3(rope.unscaled(), **numbers, original_max=original)


def _proportional(rope: Rope) -> Reading:
    name = SHARES[0]
    shares = rope.settings.look_up(name) | ({} if rope.settings.of_layer_type else rope.config.look_up(name))
    fraction = agreed_value(shares or {name: default_share(rope.settings, rope.config)})
    factor = rope.settings.get_number("factor", default=1.0)
    return {name: fraction, "factor": factor}, partial(proportional, rope.width, rope.theta, fraction, factor)


# The function of each rope type, and the keys that may stand beside it.
_TYPES: dict[str, tuple[Callable[[Rope], Reading], str]] = {
    "default": (lambda rope: ({}, rope.unscaled), ""),
    "linear": (_linear, "factor"),
    "dynamic": (_dynamic, "factor"),
    "yarn": (
        _yarn,
        "factor beta_fast beta_slow mscale mscale_all_dim attention_factor attn_factor extrapolation_factor truncate "
        "finetuned apply_yarn_scaling original_max_position_embeddings",
    ),
    "longrope": (
        _longrope,
        "factor short_factor long_factor short_mscale long_mscale attention_factor original_max_position_embeddings",
    ),
    "llama3": (_llama3, "factor low_freq_factor high_freq_factor original_max_position_embeddings"),
    "proportional": (_proportional, "factor"),
}


def _known_keys(rope_type: str, model: Model) -> set[str]:
    """The keys that may stand in the rope settings of a type."""
    known = {"rope_type", "type", "rope_theta", SHARES[0], MAXIMUM, *_TYPES[rope_type][1].split()}
    known |= model.reads & {"alpha", "dynamic_steps", "rope_backward", "mrope_alternating", LEARNED}
    if model.sections is not None:
        known |= {"mrope_section", "mrope_interleaved", "interleaved"}
    if model.query_scale == "beta":
        known |= {"llama_4_scaling_beta", ORIGINAL}
    if rope_type == "dynamic" and "alpha" in model.reads:  # Hunyuan's files have YaRN's keys, which its code ignores
        known |= {"beta_fast", "beta_slow", "mscale", "mscale_all_dim"}
    return known


def _with_coordinates(rope: Rope, frequencies: Frequencies) -> tuple[Frequencies, Settings]:
    """The frequencies with their pairs divided among coordinates, and the settings for that, if there are any."""
    model, settings, model_type = rope.config.model, rope.settings, rope.config.model_type
    sections = None if model.sections is None else settings.get("mrope_section", default=model.sections or None)
    if sections is None:
        return frequencies, {}
    name = settings.spelling("mrope_section")
    sections = checks.positive_ints(name, sections)
    require(not (model_type and sections[3:]), "{} must have three sections, got {}", name, sections)
    completed = {"mrope_section": sections}
    if settings.get_flag("mrope_alternating"):  # in ERNIE; pairs of time come last
        fits = len(sections) == 3 and sections[0] == sections[1] and sum(sections) == frequencies.num_pairs
        message = "{} must be height, width and time, the first two equal, of {} pairs, got {}"
        require(fits, message, name, frequencies.num_pairs, sections)
        axes = (1, 2) * sections[0] + (0,) * sections[2]
        return dataclasses.replace(frequencies, axes=axes), completed | {"mrope_alternating": True}
    flags = settings.look_up("mrope_interleaved", "interleaved")
    if model.interleaved_sections is not None:
        flags[f"that of model_type {model_type!r}"] = model.interleaved_sections
    interleaved = agreed_value(flags, False)
    with labelled(name):
        frequencies = multi_section(frequencies, sections, interleaved=interleaved)
    return frequencies, completed | {"mrope_interleaved": bool(interleaved)}


def frequencies_of(rope: Rope) -> tuple[Frequencies, Settings]:
    """The frequencies of the rope settings, and the settings with all defaults."""
    settings, model = rope.settings, rope.config.model
    rope_type, written = rope_type_of(settings), settings.look_up("rope_type", "type")
    if settings.look_up(MAXIMUM):  # repeated, as in Ministral 3, it must agree with the config
        rope.maximum()
    reads = f"rope_type {rope_type!r}" if written else "the rope_type 'default', because none is written"
    settings.reject_unknown(_known_keys(rope_type, model), reads)
    completed, make = _TYPES[rope_type][0](rope)
    backward, learned = settings.get_flag("rope_backward"), settings.get_string(LEARNED)
    with labelled(next((f"{key} {name!r}" for key, name in written.items()), settings.name)):
        frequencies = make()
    frequencies, coordinates = _with_coordinates(rope, frequencies)
    if backward:
        frequencies = dataclasses.replace(frequencies, cycles=tuple(-cycles for cycles in frequencies.cycles))
        completed["rope_backward"] = True
    if learned:
        completed[LEARNED] = learned
    if "attention_factor" in completed:
        completed["attention_factor"] = frequencies.attention_factor
    return frequencies, {"rope_type": rope_type, "rope_theta": rope.theta} | completed | coordinates
