"""`rotary_from_config`: a config.json → a plan."""

from __future__ import annotations

import dataclasses
from typing import Any

from posenc_jax._frequencies.frequencies import geometric
from posenc_jax._frequencies.scalings import temperature
from posenc_jax._jax import checks
from posenc_jax._jax.checks import Layout
from posenc_jax._jax.errors import public, require
from posenc_jax.hf._attending import query_scale_of, with_attention, written_scale
from posenc_jax.hf._config import (
    LAYOUT_FLAGS,
    WRITTEN,
    Config,
    layer_overrides,
    model_of,
    parse_text_config,
    with_class_values,
)
from posenc_jax.hf._layers import bases_of, count_of, layer_types, rotating
from posenc_jax.hf._models import Model
from posenc_jax.hf._plan import RotaryLayer, RotaryPlan
from posenc_jax.hf._rewrites import rewritten
from posenc_jax.hf._rope import LEARNED, MAXIMUM, Rope, frequencies_of
from posenc_jax.hf._settings import base_of, head_dim_of, rope_settings, rotary_dim_of, settings_by_type, share_for
from posenc_jax.hf._values import Json, Values, agreed_value


@public
def rotary_from_config(config: Any, *, layout: Layout | None = None, length: int | None = None) -> RotaryPlan:
    r"""Reads how the language model of a Hugging Face config rotates its queries and keys, layer by layer.

    For a query $q$ at position $p$ and a key $k$ at position $p'$, with $R$ the rotation of `rotary`,

    $$\text{score} = \frac{\text{softmax\_scale}}{\sqrt{\text{head\_dim}}}\,
        \text{query\_scale}(p)\, (R_p q) \cdot (R_{p'} k)$$

    Examples:
      >>> from posenc_jax.hf import rotary_from_config
      >>> llama = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 4096}
      >>> llama |= {"num_attention_heads": 32, "rope_theta": 500000.0}
      >>> llama |= {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
      >>> plan = rotary_from_config(llama)
      >>> plan.layout, plan.part, plan.layers[0].frequencies
      ('half', 'first', Frequencies(dim=128, angular=0.125 … 3.06893e-07))

    Args:
      config: a parsed config.json, or an object whose to_dict() returns one. In the config of a multimodal model,
        text_config is read.
      layout: "half" or "interleaved", for weights whose layout differs from the model_type's. It must be given if the
        config has neither a model_type nor `rope_interleave`.
      length: the length, prompt and answer together, of the longest sequence. It must be given for the rope types
        "dynamic" and "longrope", whose frequencies depend on it. Use one length for the lifetime of a KV cache.

    Returns:
      A RotaryPlan with layers (frequencies, head_dim, query_scale, window, …), layout, part and softmax_scale. `rotate`
      applies the plan, and `print` shows it as a table.

    Raises:
      TypeError: if config is not a mapping, or a value does not have the type of its key.
      ValueError: if a key is missing, misspelled, unused or contradicts another key, or a value is outside its range.
      ValueError: if length or layout is needed and not given, or the model rotates in a way that a plan cannot express.

    Notes:
      - A config is read as transformers' class of its model_type reads it, or rejected with the reason. For some 260
        model types, the library knows what transformers defines in code: the values of missing keys, the layout, the
        layers without positions.
      - The settings are in `rope_parameters`, or in the older `rope_scaling`, `rope_theta`, `rotary_pct` and so on, for
        all layers or per layer type. Rope types: default, linear, dynamic, yarn, longrope (su), llama3, proportional.
        With `mrope_section`, positions have several coordinates.
      - Keys about positions (rope, rotary, theta, …) that the class does not read are rejected. So are likely
        misspellings of a missing key, and two keys that contradict each other. Other keys are ignored.
      - If the default of a missing key differs between releases, the config is rejected unless `transformers_version`
        names the release.
      - Queries and keys may store their rotated features in any order, as long as both use the same order. transformers
        reorders the interleaved pairs of DeepSeek's latent attention into halves, which does not change the scores.

    Reference:
      Hugging Face transformers 5.24.0: modeling_rope_utils.py, configuration_utils.py and the models' own modules.
    """
    length = None if length is None else checks.positive_int("length", length)
    values, beside = parse_text_config(config)
    plan = _agreed_plan(values, layout, length)
    if beside:
        try:
            same = _agreed_plan(values | beside, layout, length) == plan
        except (TypeError, ValueError):
            same = False
        message = (
            "{!r:.200} beside the language model's config would change it, but its class does not read it there: write "
            "it into that config, or remove it"
        )
        require(same, message, beside)
    return plan


def _agreed_plan(values: Json, layout: Any, length: int | None) -> RotaryPlan:
    """The plan of a language model's config; all spellings of its rope settings must give the same."""
    model = model_of(values)
    Config(values, model).reject_unknown_keys()
    values = rewritten(with_class_values(values, model))
    model = model_of(values)
    spellings = rope_settings(values)
    try:
        plans = [_plan(values, model, settings, layout, length) for settings in spellings]
    except ValueError:
        if len(spellings) == 1:
            raise
        plans = []
    shown = (f"{settings.name} = {settings.values!r:.60}" for settings in spellings)
    message = "{} contradicts {}: write all settings into one of them, the base of the model too"
    require(plans and plans[0] == plans[-1], message, *shown)
    return plans[0]


def _plan(values: Json, model: Model, settings: Values, layout: Any, length: int | None) -> RotaryPlan:
    """The plan of a config from one spelling of its rope settings."""
    config = Config(values, model)
    types = layer_types(config, count_of(config))
    layers = _all_layers(config, settings, types, length)
    layout = _layout(config, layout)
    completed = [dict(items) for items in dict.fromkeys(layer.settings for layer in layers) if items]
    # The plan depends on the length in these two cases alone.
    length = length if any("short_factor" in x or MAXIMUM in x for x in completed) else None
    indexer = _indexer(config, layers, length)
    rotates_values = config.get_flag("rope_on_values")
    softmax_scale = _softmax_scale(completed)
    layers = with_attention(config, layers, types, softmax_scale)
    part = "last" if config.latent and completed else "first"
    return RotaryPlan(tuple(layers), layout, part, softmax_scale, length, indexer, rotates_values)


def _indexer(config: Config, layers: list[RotaryLayer], length: int | None) -> RotaryPlan | None:
    """The plan of sparse attention's indexer: the spectra of the layers, in heads of its own width."""
    names, model = ("index_head_dim", "indexer_head_dim"), config.model
    # Every class that has index_head_dim has this default.
    default = 128 if config.model_type and names[0] in model.reads else None
    head_dim = config.get(*names, default=default) if model.indexer else None
    if head_dim is None:
        return None
    name, widest = config.spelling(*names), max(layer.rotary_dim for layer in layers)
    head_dim = checks.positive_int(name, head_dim)
    require(head_dim >= widest, "{} must be at least {}, got {}", name, widest, head_dim)
    part = checks.part("indexer_part", config.get("indexer_part", default="first"))
    interleaved = config.get_flag("indexer_rope_interleave", default=model.indexer == "interleaved")
    fields = dict.fromkeys(WRITTEN) | {"query_scale": written_scale(config, "indexer_query_scale")}
    layers = [dataclasses.replace(layer, head_dim=head_dim, **fields) for layer in layers]
    return RotaryPlan(tuple(layers), "interleaved" if interleaved else "half", part, length=length)


def _all_layers(config: Config, settings: Values, types: list[str], length: int | None) -> list[RotaryLayer]:
    """All layers; equal ones are read once."""
    by_type, overrides = settings_by_type(config, settings, types), layer_overrides(config, len(types))
    rotates, bases = rotating(config, types), bases_of(config, len(types))
    layers, shared = [], {}
    for i, (layer_type, base) in enumerate(zip(types, bases, strict=True)):
        layer_settings = by_type.get(layer_type) if rotates[i] and base != 0 else None
        layer_values = overrides.get(i, {})
        key = layer_type, base, layer_settings is None, repr(layer_values)
        if key not in shared:
            of_layer = Config({**config.values, **layer_values}, config.model)
            shared[key] = _layer(of_layer, layer_type, layer_settings, base, length)
        layers.append(shared[key])
    return layers


def _layer(
    config: Config, layer_type: str, settings: Values | None, base: float | None, length: int | None
) -> RotaryLayer:
    """A layer of type `layer_type` with these rope settings (None: without positions); `base` replaces their base."""
    head_dim = head_dim_of(config, layer_type)
    written = () if config.model_type else WRITTEN[1:]
    attention: Any = {name: config.get_list(name) if name == "window" else config.get(name) for name in written}
    if settings is None:
        return RotaryLayer(geometric(0), head_dim, query_scale_of(config, None), **attention)
    width, base_of_type = rotary_dim_of(settings, config, head_dim), base_of(settings, config, layer_type)
    rope = Rope(settings, config, width, base_of_type if base is None else base, length)
    frequencies, completed = frequencies_of(rope)
    if not config.latent or config.model.latent == "unscaled":
        completed.pop("mscale_all_dim", None)  # its scores are not scaled
    if not config.latent:
        completed |= {"partial_rotary_factor": share_for(width, head_dim)} if width < head_dim else {}
    learned = completed.get(LEARNED)
    items, scale = tuple(sorted(completed.items())), query_scale_of(config, rope)
    return RotaryLayer(frequencies, head_dim, scale, items, learned, **attention)


def _layout(config: Config, layout: Any) -> Layout:
    """Which features make a pair, as the caller, the model's code or the config says, in this order."""
    model, own = config.model, LAYOUT_FLAGS[0]
    # Where positions have coordinates, `interleaved` may be about these.
    names = LAYOUT_FLAGS if model.sections is None else LAYOUT_FLAGS[:-1]
    interleaved: dict[str, Any] = {name: config.get_flag(name) for name in config.look_up(*names)}
    if layout is not None:
        return checks.layout("layout", layout)
    if own in model.reads:
        config.default_unless_null(model.layout == "interleaved" or None, own)
    if model.layout and not (own in model.reads and own in interleaved):
        interleaved["that of " + config.label_of_type] = model.layout == "interleaved"
    require(interleaved, 'layout must be given, "half" or "interleaved", for a config without a model_type')
    return "interleaved" if agreed_value(interleaved) else "half"


def _softmax_scale(completed: list[dict[str, Any]]) -> float:
    """The factor by which mscale_all_dim multiplies the scores of latent attention."""
    roots = [temperature(x["factor"], x["mscale_all_dim"]) for x in completed if "mscale_all_dim" in x]
    scales = {x * x for x in roots} or {1.0}
    require(len(scales) == 1, "mscale_all_dim asks for different scales of the scores, {}", scales)
    return checks.number("the scale of the scores by mscale_all_dim", scales.pop())
