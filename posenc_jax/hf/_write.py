"""`plan_to_config`: a plan → a config.json."""

from __future__ import annotations

import dataclasses
from typing import Any

from posenc_jax._jax.errors import public, require, require_type
from posenc_jax.hf._config import WRITTEN
from posenc_jax.hf._plan import RotaryLayer, RotaryPlan
from posenc_jax.hf._read import rotary_from_config


@public
def plan_to_config(plan: RotaryPlan) -> dict[str, Any]:
    """Writes a plan as the keys of a config.json, in the spelling of transformers 5.

    Reading them returns the same plan: `rotary_from_config(plan_to_config(plan), length=plan.length) == plan`.

    Examples:
      >>> from posenc_jax.hf import plan_to_config, rotary_from_config
      >>> config = {"model_type": "gpt_neox", "head_dim": 64, "num_hidden_layers": 2}
      >>> config |= {"rotary_emb_base": 5000}
      >>> plan_to_config(rotary_from_config(config))["rope_parameters"]
      {'partial_rotary_factor': 0.25, 'rope_theta': 5000.0, 'rope_type': 'default'}

    Args:
      plan: a RotaryPlan from `rotary_from_config`.

    Returns:
      A dict that json can write: rope_parameters, num_hidden_layers, head_dim or qk_nope_head_dim and qk_rope_head_dim,
      and the other keys that the plan needs.

    Raises:
      TypeError: if plan is not a RotaryPlan.
      ValueError: if no config gives this plan, which may happen for plans made or changed by hand.

    Notes:
      The keys rely on no defaults and contain no model_type. `rope_interleave` is the layout. If layers differ, their
      `layer_types` are rope_0, rope_1, …, one per set of settings, and no_rope for layers without positions.
      `per_layer_config` holds the kinds, windows and scales that are known.

    Reference:
      Hugging Face transformers 5.23.0, modeling_rope_utils.py, RopeParameters.
    """
    require_type(isinstance(plan, RotaryPlan), "plan", "a RotaryPlan", plan)
    layers = plan.layers
    config: dict[str, Any] = {"num_hidden_layers": len(layers), "rope_interleave": plan.layout == "interleaved"}
    config |= _by_layer(plan) | _settings(layers)
    if plan.rotates_values:
        config["rope_on_values"] = True
    if plan.indexer:
        config["index_head_dim"] = plan.indexer.layers[0].head_dim
        config["indexer_rope_interleave"] = plan.indexer.layout == "interleaved"
        config["indexer_part"] = plan.indexer.part
        scale = plan.indexer.layers[0].query_scale
        config |= {"indexer_query_scale": dataclasses.asdict(scale)} if scale else {}
    same = rotary_from_config(config, length=plan.length) == plan
    require(same, "plan must be one that rotary_from_config made: no config gives this one")
    return config


def _by_layer(plan: RotaryPlan) -> dict[str, Any]:
    """The widths of heads in the first layer; in per_layer_config other widths, and what else is known of a layer."""
    widest, result = max(layer.rotary_dim for layer in plan.layers), []
    for layer in plan.layers:
        width = layer.rotary_dim or widest
        latent = {"qk_nope_head_dim": layer.head_dim - width, "qk_rope_head_dim": width}
        widths = latent if plan.part == "last" else {"head_dim": layer.head_dim}
        fields = {name: getattr(layer, name) for name in WRITTEN}
        fields["query_scale"] = layer.query_scale and dataclasses.asdict(layer.query_scale)
        fields["window"] = layer.window and [*layer.window]
        result.append((widths, {name: value for name, value in fields.items() if value is not None}))
    usual = result[0][0]
    others = {i: fields if widths == usual else widths | fields for i, (widths, fields) in enumerate(result)}
    return usual | {"per_layer_config": {str(i): values for i, values in others.items() if values}}


def _settings(layers: tuple[RotaryLayer, ...]) -> dict[str, Any]:
    """The rope settings, by layer type if there are several, and which layers have none."""
    distinct = dict.fromkeys(layer.settings for layer in layers if layer.settings)
    names = {settings: f"rope_{i}" for i, settings in enumerate(distinct)}
    by_type = {names[x]: {key: [*v] if isinstance(v, tuple) else v for key, v in x} for x in distinct}
    types = [names.get(layer.settings, "no_rope") for layer in layers]
    if by_type and len({*types}) == 1:
        return {"rope_parameters": by_type[types[0]]}
    return {"layer_types": types, "rope_parameters": dict.fromkeys(types) | by_type}
