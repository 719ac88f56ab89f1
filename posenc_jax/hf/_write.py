"""`plan_to_config`: a plan → a config.json."""

from __future__ import annotations

from typing import Any

from posenc_jax._checks import public, require, require_type
from posenc_jax.hf._plan import RotaryLayer, RotaryPlan
from posenc_jax.hf._read import rotary_from_config
from posenc_jax.hf._rope import MAXIMUM


@public
def plan_to_config(plan: RotaryPlan) -> dict[str, Any]:
    """The keys of a config.json, in today's spelling, that read back as the same plan.

    `rotary_from_config(plan_to_config(plan), length=plan.length) == plan`.

    They are complete: they leave nothing to defaults and name no model_type. `rope_interleave` says the layout, and
    `no_rope_layers` or a null in `rope_parameters` says which layers have no positions. Where layers differ, their
    `layer_types` are rope_0, rope_1, …, one for each spectrum.

    Args:
      plan: as `rotary_from_config` made it.

    Returns:
      A dict that json can write: rope_parameters, num_hidden_layers, head_dim or qk_nope_head_dim and
      qk_rope_head_dim, and whatever else the plan needs.

    Raises:
      TypeError: if plan is not a RotaryPlan.
      ValueError: if no config gives this plan, because the plan was made or changed by hand.

    Examples:
      >>> from posenc_jax.hf import plan_to_config, rotary_from_config
      >>> config = {"model_type": "gpt_neox", "head_dim": 64, "num_hidden_layers": 2, "rotary_emb_base": 5000}
      >>> plan_to_config(rotary_from_config(config))["rope_parameters"]
      {'partial_rotary_factor': 0.25, 'rope_theta': 5000.0, 'rope_type': 'default'}

    Reference:
      Hugging Face transformers 5.23.0, modeling_rope_utils.py, RopeParameters.
    """
    require_type(isinstance(plan, RotaryPlan), "plan", "a RotaryPlan", plan)
    layers = plan.layers
    fits = isinstance(layers, tuple) and layers and all(isinstance(layer, RotaryLayer) for layer in layers)
    require_type(fits, "plan.layers", "a tuple of RotaryLayer", layers)
    config: dict[str, Any] = {"num_hidden_layers": len(layers), "rope_interleave": plan.layout == "interleaved"}
    config |= _widths(plan) | _settings(layers) | _query_scale(layers)
    same = rotary_from_config(config, length=plan.length) == plan
    require(same, "plan must be one that rotary_from_config made: no config says this one")
    return config


def _widths(plan: RotaryPlan) -> dict[str, Any]:
    head_dim = plan.layers[0].head_dim
    if plan.part == "last":
        width = max(layer.rotary_dim for layer in plan.layers)
        return {"qk_nope_head_dim": head_dim - width, "qk_rope_head_dim": width}
    others = {str(i): {"head_dim": x.head_dim} for i, x in enumerate(plan.layers) if x.head_dim != head_dim}
    return {"head_dim": head_dim} | ({"per_layer_config": others} if others else {})


def _settings(layers: tuple[RotaryLayer, ...]) -> dict[str, Any]:
    """The rope settings, for each layer type if there are several, and which layers have none."""
    groups = list(dict.fromkeys(layer.parameters for layer in layers if layer.parameters))
    dicts = [{k: list(v) if isinstance(v, tuple) else v for k, v in group} for group in groups]
    lengths = [d.pop(MAXIMUM) for d in dicts if MAXIMUM in d]
    outside = {MAXIMUM: lengths[-1]} if lengths else {}
    if len(dicts) > 1:
        names = {group: f"rope_{i}" for i, group in enumerate(groups)}
        types = [names.get(layer.parameters, "no_rope") for layer in layers]
        by_type = dict.fromkeys(types) | dict(zip(names.values(), dicts, strict=True))
        return outside | {"layer_types": types, "rope_parameters": by_type}
    flags = [int(bool(layer.parameters)) for layer in layers]
    some = {} if all(flags) else {"no_rope_layers": flags}
    return outside | {"rope_parameters": dicts[0] if dicts else None} | some


def _query_scale(layers: tuple[RotaryLayer, ...]) -> dict[str, Any]:
    """The settings of the query scale of layers without positions."""
    scale = next((layer.query_scale for layer in layers if layer.query_scale and not layer.parameters), None)
    if scale is None:
        return {}
    return {"attn_temperature_tuning": True, "attn_scale": scale.coefficient, "floor_scale": scale.period}
