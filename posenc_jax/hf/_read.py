"""`rotary_from_config`: a config.json → a plan."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from posenc_jax._frequencies.frequencies import geometric
from posenc_jax._frequencies.scalings import temperature
from posenc_jax._jax import checks, errors
from posenc_jax._jax.checks import Layout
from posenc_jax._jax.errors import invalid, public, require
from posenc_jax.hf._composite import text_of
from posenc_jax.hf._config import Config, model_of, overrides
from posenc_jax.hf._head import rotary_dim_of, share_for, widths_of
from posenc_jax.hf._keys import Keys, agreed, equal, speaks_of_positions
from posenc_jax.hf._layers import bases_of, count_of, layer_types, rotating
from posenc_jax.hf._plan import RotaryLayer, RotaryPlan
from posenc_jax.hf._rewrites import note_of, rewritten
from posenc_jax.hf._rope import LEARNED, MAXIMUM, Rope, spectrum
from posenc_jax.hf._scales import scale_with_positions, scale_without_positions, with_written_scales
from posenc_jax.hf._settings import base_of, rope_settings, settings_by_type
from posenc_jax.hf._typos import meant

# What an error is about: the first key that it names, and one that contradicts it.
_SUBJECTS = re.compile(r"(?:^(?:the key |the layer types \[.*?\] of )?|contradicts )([\w.]+)")
# A config without a model_type may have these keys, although nothing is read from them.
_SIZES = "hidden_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings"


@public
def rotary_from_config(config: Any, *, layout: Layout | None = None, length: int | None = None) -> RotaryPlan:
    r"""How the language model of a Hugging Face config rotates its queries and keys, layer by layer.

    For a query $q$ at position $p$ and a key $k$ at position $p'$, with the rotation $R$ of `rotary`,

    $$\text{score} = \frac{\text{softmax\_scale}}{\sqrt{\text{head\_dim}}}\,
        \text{query\_scale}(p)\, (R_p q) \cdot (R_{p'} k)$$

    The settings are those of `rope_parameters`, or of the older `rope_scaling`, `rope_theta`, `rotary_pct` and so on,
    for all layers or for each layer type. Rope types: default, linear, dynamic, yarn, longrope (su), llama3,
    proportional; with `mrope_section`, positions have several coordinates. For some 260 model types, the library knows
    what transformers keeps in code and not in the config, such as the layout or the layers without positions.

    Every key about rotations must be understood: an unknown, unused or misspelled key is an error, and so are two keys
    that contradict each other. Missing rope settings are an error too if the model's class in transformers has its own
    defaults for them, or if releases have different ones and `transformers_version` names none. The order in which
    rotated features are stored does not change the scores, as long as queries and keys share it: transformers sorts the
    interleaved pairs of DeepSeek's latent attention into halves.

    Args:
      config: a parsed config.json, or an object whose to_dict() returns one. In multimodal ones, text_config is read.
      layout: "half" or "interleaved", for weights in another layout than the model_type's. It must be given for a
        config without a model_type, unless that has `rope_interleave`.
      length: the longest sequence, prompt and answer, that the frequencies are for. It must be given for the rope types
        "dynamic" and "longrope", whose spectra depend on it, and may be given for any config. Use one length for the
        lifetime of a KV cache.

    Returns:
      RotaryPlan: layers (frequencies, head_dim, query_scale), layout, part, softmax_scale; `rotate` applies it.

    Raises:
      TypeError: if config is not a mapping, or a value does not have the type of its key.
      ValueError: if a key is missing, misspelled, not used or contradicts another, a value is outside its range,
        length or layout is needed and not given, or the model rotates in a way that a plan cannot express.

    Examples:
      >>> from posenc_jax.hf import rotary_from_config
      >>> llama = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 4096}
      >>> llama |= {"num_attention_heads": 32, "rope_theta": 500000.0}
      >>> llama |= {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
      >>> plan = rotary_from_config(llama)
      >>> plan.layout, plan.part, plan.layers[0].frequencies
      ('half', 'first', Frequencies(dim=128, angular=0.125 … 3.06893e-07))

    Reference:
      Hugging Face transformers 5.23.0: modeling_rope_utils.py, configuration_utils.py and the models' own modules.
    """
    length = None if length is None else checks.positive_int("length", length)
    values = text_of(config)
    new = rewritten(values)
    try:
        return _agreed_plan(new, layout, length)
    except (TypeError, ValueError) as error:
        message = str(error).removeprefix(errors.prefixed(""))
        if message != str(error) and _names_rewritten(message, values, new):
            error.args = (f"{error} (by the spelling of model_type {values['model_type']!r}: {note_of(values)})",)
        elif " is missing" in message and (typo := _misspelled(values, message)):
            error.args = (f"{error}; is the key {typo} meant for it?",)
        raise


def _misspelled(values: Mapping[str, Any], message: str) -> str | None:
    """The first key that is near the missing ones that a message names."""
    missing = re.findall(r"(\w+)(?![\w.])", message.partition(" is missing")[0])  # the ends of dotted names
    settings = [d for found in rope_settings(values) for d in (found.values, *found.values.values())]
    keys = [key for d in (values, *settings) if isinstance(d, Mapping) for key, value in d.items() if value is not None]
    return next((key for key in keys if isinstance(key, str) and meant(key, missing)), None)


def _names_rewritten(message: str, old: Mapping[Any, Any], new: Mapping[Any, Any]) -> bool:
    """Whether a message is about a key that a rewriter wrote."""
    words = {word for match in _SUBJECTS.finditer(message) for word in match[1].split(".")}
    for key in [key for key, value in new.items() if key in words and old.get(key) is not value]:
        if equal(old.get(key), new[key]):
            continue
        both = isinstance(old.get(key), Mapping) and isinstance(new[key], Mapping)
        if not both or _names_rewritten(message, old[key], new[key]):
            return True
    return False


def _agreed_plan(values: Mapping[str, Any], layout: Any, length: int | None) -> RotaryPlan:
    """The plan; all spellings of the rope settings must give the same."""
    written = rope_settings(values)
    plans = [_plan(values, settings, layout, length) for settings in reversed(written)]  # rope_parameters first
    if plans[0] != plans[-1]:  # transformers takes rope_scaling
        both = " contradicts ".join(f"{d.name} = {d.values!r:.60}" for d in written)
        raise invalid(f"{both}: write all settings into one of them, the base of the model too")
    return plans[0]


def _plan(values: Mapping[str, Any], settings: Keys, layout: Any, length: int | None) -> RotaryPlan:
    """The plan of a config from one spelling of its rope settings."""
    config = Config(values, model_of(values))
    layers = with_written_scales(config, "query_scales", _all_layers(config, settings, length))
    layout = _layout(config, layout)
    _check_switches(config)
    _check_chunks(config, length)
    spectra = [dict(d) for d in dict.fromkeys(layer.settings for layer in layers) if d]
    by_length = any("short_factor" in d or MAXIMUM in d for d in spectra)
    length = length if by_length else None
    indexer = _indexer(config, layers, length)
    rotates_values = "rope_on_values" in config.model.reads and config.flag("rope_on_values")
    if not config.model_type:
        config.use(*_SIZES)
        config.finish()
    config.check_spelling()
    if config.model_type and spectra:  # if no layer rotates, keys may stay unused
        config.finish(speaks_of_positions)
    part = "last" if config.latent and spectra else "first"
    return RotaryPlan(tuple(layers), layout, part, _softmax_scale(spectra), length, indexer, rotates_values)


def _check_switches(config: Config) -> None:
    """Raises if a switch is true that the model_type does not read."""
    for name, read in config.switches.items():
        fits = not config.found(name) or not config.flag(name) or read
        require(fits, "the key {} = True is not known or not used here", name)


def _check_chunks(config: Config, length: int | None) -> None:
    """Raises beyond one chunk of Qwen2.5-1M: dual-chunk attention equals plain RoPE only within one."""
    d = config.within("dual_chunk_attention_config")
    if d.values:
        last = d.integer("chunk_size") - d.integer("local_size")
        reason = "dual-chunk attention equals plain RoPE only within one chunk"
        if length is None:
            raise invalid(f"length must be given, at most {last}: {reason}")
        require(length <= last, "length must be at most {}: {}, got {}", last, reason, length)


def _indexer(config: Config, layers: list[RotaryLayer], length: int | None) -> RotaryPlan | None:
    """The plan of sparse attention's indexer: the spectra of the layers, in heads of its own width."""
    names, flag, reads = ("index_head_dim", "indexer_head_dim"), "indexer_rope_interleave", config.model.reads
    part = config.get("indexer_part", default="first") if "indexer_part" in reads else "first"
    part, facts = checks.one_of("indexer_part", part, ("first", "last")), config.model.indexer
    if not (facts and (config.found(*names) or facts.head_dim)):
        return None
    head_dim = config.integer(*names) if config.found(*names) else config.or_default(facts.head_dim, *names)
    layout = facts.layout
    if flag in reads and config.found(flag):
        layout = "interleaved" if config.flag(flag) else "half"
    widest = max(layer.rotary_dim for layer in layers)
    require(head_dim >= widest, "{} must be at least {}, got {}", config.spelled(*names), widest, head_dim)
    own = {layer: dataclasses.replace(layer, head_dim=head_dim, query_scale=None) for layer in set(layers)}
    layers = with_written_scales(config, "indexer_query_scales", [own[layer] for layer in layers])
    return RotaryPlan(tuple(layers), layout, part, length=length)


def _all_layers(config: Config, settings: Keys, length: int | None) -> list[RotaryLayer]:
    """All layers; equal ones are read once."""
    count = count_of(config)
    types = layer_types(config, count)
    by_type, own = settings_by_type(config, settings, types), overrides(config, count)
    rotates, bases = rotating(config, types), bases_of(config, count)
    layers, shared = [], {}
    for i, (kind, base) in enumerate(zip(types, bases, strict=True)):
        d = by_type.get(kind) if rotates[i] and base != 0 else None
        key = kind, base, d is None, _identity(own.get(i, {}))
        if key not in shared:
            shared[key] = _layer(config.with_own(own.get(i, {})), kind, d, base, length)
        layers.append(shared[key])
    return layers


def _identity(own: Mapping[str, Any]) -> frozenset[Any]:
    """A key that is equal only for values that read alike; 1, 1.0 and True do not."""
    return frozenset((k, type(v), v if isinstance(v, (str, int, float)) else id(v)) for k, v in own.items())


def _layer(config: Config, kind: str, d: Keys | None, base: float | None, length: int | None) -> RotaryLayer:
    """A layer of type `kind` with the rope settings `d` (None: without positions); `base` replaces their base."""
    head_dim, width = widths_of(config, kind)
    if d is None:
        return RotaryLayer(geometric(0), head_dim, scale_without_positions(config))
    width, by_type = rotary_dim_of(d, config, head_dim, width), base_of(d, config, kind)
    rope = Rope(d, config, width, by_type if base is None else base, length)
    frequencies, settings = spectrum(rope)
    scale = scale_with_positions(rope)
    d.finish()
    if not config.latent or config.model.latent == "unscaled":
        settings.pop("mscale_all_dim", None)  # its scores are not scaled
    if not config.latent:
        settings |= {"partial_rotary_factor": share_for(width, head_dim)} if width < head_dim else {}
    learned = settings.get(LEARNED)
    return RotaryLayer(frequencies, head_dim, scale, tuple(sorted(settings.items())), learned)


def _layout(config: Config, given: Any) -> Layout:
    """Which features make a pair, as the caller, the model's code or the config says, in this order."""
    model, names = config.model, ("rope_interleave", "rope_interleaved", "rotary_emb_interleaved")
    # A value that is not a flag is an error even if the caller overrules it.
    said: dict[str, Layout] = {n: "interleaved" if config.flag(n) else "half" for n in config.found(*names)}
    read = names[0] in model.reads and bool(said)
    # rope_traditional is MLX's; where positions have coordinates, `interleaved` may be about these.
    others = ("rope_traditional", "interleaved") if model.sections is None else ("rope_traditional",)
    said |= {n: "interleaved" if config.flag(n) else "half" for n in config.found(*others)}
    written = config.found(*said)
    if given is not None:
        return checks.layout("layout", given)
    if names[0] in model.reads and not read:
        config.or_default(model.layout == "interleaved" or None, names[0])  # a null means halves
    if model.layout and not read:
        said[f"the layout of model_type {config.model_type!r}"] = model.layout
    require(said, 'layout must be given, "half" or "interleaved", for a config without a model_type')
    return agreed(said, written=written)


def _softmax_scale(spectra: list[dict[str, Any]]) -> float:
    """The factor by which mscale_all_dim multiplies the scores of latent attention."""
    roots = [temperature(d["factor"], d["mscale_all_dim"]) for d in spectra if "mscale_all_dim" in d]
    scales = {checks.number("the square that mscale_all_dim asks for", x * x) for x in roots} or {1.0}
    require(len(scales) == 1, "mscale_all_dim asks for different scales of the scores, {}", sorted(scales))
    return scales.pop()
