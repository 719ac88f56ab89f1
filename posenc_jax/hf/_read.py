"""`rotary_from_config`: a config.json → a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc_jax import _checks
from posenc_jax._checks import InvalidValue, public, require
from posenc_jax._frequencies import Layout
from posenc_jax._scalings import temperature
from posenc_jax.hf._config import Config, model_of, overrides, text_of
from posenc_jax.hf._head import rotary_dim_of, share_for, widths_of
from posenc_jax.hf._keys import Keys, agreed
from posenc_jax.hf._layers import bases_of, count_of, layer_types, rotating
from posenc_jax.hf._plan import QueryScale, RotaryLayer, RotaryPlan
from posenc_jax.hf._rope import MAXIMUM, ORIGINAL, Rope, spectrum
from posenc_jax.hf._settings import base_of, rope_settings, settings_by_type


@public
def rotary_from_config(config: Any, *, layout: Layout | None = None, length: int | None = None) -> RotaryPlan:
    r"""How the language model of a Hugging Face config rotates its queries and keys, layer by layer.

    For a query $q$ at position $p$ and a key $k$ at position $p'$, with the rotation $R$ of `rotary`,

    $$\text{score} = \frac{\text{softmax\_scale}}{\sqrt{\text{head\_dim}}}\,
        \text{query\_scale}(p)\, (R_p q) \cdot (R_{p'} k)$$

    The settings are those of `rope_parameters`, or of the older `rope_scaling`, `rope_theta`, `rotary_pct` and so on,
    for all layers or for each layer type. Rope types: default, linear, dynamic, yarn, longrope (su), llama3,
    proportional; with `mrope_section`, positions have several coordinates. For some 130 model types, the library knows
    what transformers keeps in code and not in the config, such as the layout or the layers without positions.

    Every key that speaks of rotations must be understood: an unknown key, an unused key, and two keys that contradict
    each other are errors. Missing rope settings are an error too if the model's class in transformers has its own
    defaults for them. The order in which rotated features are stored does not change the scores, as long as queries and
    keys share it: transformers sorts the interleaved pairs of DeepSeek's latent attention into halves.

    Args:
      config: a parsed config.json, or an object whose to_dict() returns one. In multimodal ones, text_config is read.
      layout: "half" or "interleaved", for weights in another layout than the model_type's. It must be given for an
        unknown model_type, unless the config has `rope_interleave`.
      length: the longest sequence, prompt and answer, that the frequencies are for. It must be given for the rope types
        "dynamic" and "longrope", whose spectra depend on it, and may be given for any config. Use one length for the
        lifetime of a KV cache.

    Returns:
      RotaryPlan: layers (frequencies or None, head_dim, query_scale), layout, part, softmax_scale.

    Raises:
      TypeError: if config is not a mapping, or a value does not have the type of its key.
      ValueError: if a key is missing, not known, not used or contradicts another, a value is outside its range,
        length or layout is needed and not given, or the model rotates in a way that a plan cannot express.

    Examples:
      >>> from posenc_jax.hf import rotary_from_config
      >>> llama = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 2,
      ...          "rope_theta": 500000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
      >>> plan = rotary_from_config(llama)
      >>> plan.layout, plan.part, plan.layers[0].frequencies
      ('half', 'first', Frequencies(dim=128, angular=0.125 … 3.06893e-07))

    Reference:
      Hugging Face transformers 5.23.0: modeling_rope_utils.py, configuration_utils.py and the models' own modules.
    """
    values = text_of(config)
    written = rope_settings(values)
    length = None if length is None else _checks.positive_int("length", length)
    plans = [_plan(values, settings, layout, length) for settings in reversed(written)]  # today's spelling first
    if plans[0] != plans[-1]:  # transformers takes the older
        raise InvalidValue(" contradicts ".join(f"{d.name} = {d.values!r:.60}" for d in written))
    return plans[0]


def _plan(values: Mapping[str, Any], settings: Keys, layout: Any, length: int | None) -> RotaryPlan:
    """The plan of a config from one spelling of its rope settings."""
    config = Config(values, model_of(values))
    layers = _all_layers(config, settings, length)
    layout = _layout(config, layout)
    parameters = [dict(p) for p in dict.fromkeys(layer.parameters for layer in layers) if p]
    if parameters:  # if no layer rotates, the keys may go unused
        config.finish()
    by_length = any("short_factor" in p or MAXIMUM in p for p in parameters)
    part = "last" if config.latent and parameters else "first"
    return RotaryPlan(layers, layout, part, _softmax_scale(parameters), length if by_length else None)


def _all_layers(config: Config, settings: Keys, length: int | None) -> tuple[RotaryLayer, ...]:
    """All layers; equal ones are read once."""
    count = count_of(config)
    types = layer_types(config, count)
    by_type, own = settings_by_type(config, settings, types), overrides(config, count)
    turning, bases = rotating(config, types), bases_of(config, count)
    layers, shared = [], {}
    for i, (kind, base) in enumerate(zip(types, bases, strict=True)):
        d = by_type.get(kind) if turning[i] and base != 0 else None
        key = kind, base, d is None, _identity(own.get(i, {}))
        if key not in shared:
            shared[key] = _layer(config.with_own(own.get(i, {})), kind, d, base, length)
        layers.append(shared[key])
    return tuple(layers)


def _identity(own: Mapping[str, Any]) -> frozenset[Any]:
    """Equal only for settings that read alike, which 1, 1.0 and True do not."""
    return frozenset((k, type(v), v if isinstance(v, (str, int, float)) else id(v)) for k, v in own.items())


def _layer(config: Config, kind: str, d: Keys | None, base: float | None, length: int | None) -> RotaryLayer:
    """A layer of type `kind` with the rope settings `d` (None: without positions); `base` replaces their base."""
    head_dim, width = widths_of(config, kind)
    if d is None:
        return RotaryLayer(None, head_dim, _scale_without_positions(config))
    width, by_type = rotary_dim_of(d, config, head_dim, width), base_of(d, config, kind)
    rope = Rope(d, config, width, by_type if base is None else base, length)
    frequencies, parameters = spectrum(rope)
    if scale := _scale_with_positions(rope):
        parameters |= {"llama_4_scaling_beta": scale.coefficient, ORIGINAL: scale.period}
    d.finish(None)
    if not config.latent:
        parameters.pop("mscale_all_dim", None)  # only latent attention scales its scores by it
        parameters |= {"partial_rotary_factor": share_for(width, head_dim)} if width < head_dim else {}
    return RotaryLayer(frequencies, head_dim, scale, tuple(sorted(parameters.items())))


def _scale_with_positions(rope: Rope) -> QueryScale | None:
    """The query scale of layers that rotate."""
    name, scaled_by = "llama_4_scaling_beta", rope.config.model.temperature
    if scaled_by == "beta" or scaled_by == "written" and rope.d.found(name):
        return QueryScale(rope.d.number(name), rope.original())
    return None


def _scale_without_positions(config: Config) -> QueryScale | None:
    """The query scale of layers without positions."""
    llama4 = config.model.temperature == "llama4"
    if not (llama4 or config.model.temperature == "written"):
        return None
    if not config.flag("attn_temperature_tuning", default=llama4):
        return None
    defaults = {"attn_scale": 0.1, "floor_scale": 8192} if llama4 else {}
    settings = Keys(defaults | config.take("attn_scale", "floor_scale"))
    coefficient, period = settings.number("attn_scale"), _checks.length("floor_scale", settings.need("floor_scale"))
    require(period > 1, "floor_scale must be over 1, got {}", period)  # the offset is below it
    return QueryScale(coefficient, period, 1)


def _layout(config: Config, given: Any) -> Layout:
    """Which features make a pair: by the caller, else by the model's code, else by the config."""
    model, names = config.model, ("rope_interleave", "rope_interleaved", "rotary_emb_interleaved")
    # Reads the flags in any case: a value that is not a flag is an error even if the caller overrules it.
    said: dict[str, Layout] = {n: "interleaved" if config.flag(n) else "half" for n in config.found(*names)}
    if given is not None:
        return _checks.settings(layout=given)[0]
    if model.layout and not (model.switched and said):
        said[f"the layout of model_type {config.model_type!r}"] = model.layout
    message = 'layout must be given, "half" or "interleaved": that of model_type {!r} is not known'
    require(said, message, config.model_type)
    return agreed(said)


def _softmax_scale(parameters: list[dict[str, Any]]) -> float:
    """The factor of the scores that mscale_all_dim asks for in latent attention."""
    roots = [temperature(p["factor"], p["mscale_all_dim"]) for p in parameters if "mscale_all_dim" in p]
    scales = {_checks.number("the square that mscale_all_dim asks for", x * x) for x in roots} or {1.0}
    require(len(scales) == 1, "mscale_all_dim asks for different scales of the scores, {}", sorted(scales))
    return scales.pop()
