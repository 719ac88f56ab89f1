r"""A Hugging Face config.json → how each layer of the model rotates its queries and keys, and back.

Held against transformers 5.23.0, which is not needed. Every key that speaks of rotations is read or refused: a setting
that is not understood would be a wrong model without an error.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from posenc_jax import _check, _hf_config
from posenc_jax._hf_config import WHERE, Keys, error, one
from posenc_jax._hf_models import Model
from posenc_jax._hf_rope import MAXIMUM, ORIGINAL, Rope, rope_type, spectrum
from posenc_jax.frequencies import Frequencies, Layout
from posenc_jax.scalings import temperature


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class QueryScale:
    r"""A factor of the queries that grows with their position, so that attention stays sharp in long contexts.

    $$1 + c \ln\left(1 + \left\lfloor\frac{p + o}{n}\right\rfloor\right)$$

    Args:
      coefficient: $c$.
      period: $n$, an integer of at least 1.
      offset: $o$, an integer from 0 to below the period: 1 for Llama 4, 0 for Ministral 3.

    Examples:
      >>> import jax.numpy as jnp
      >>> from posenc_jax.hf import QueryScale
      >>> QueryScale(0.1, 8192, 1)(jnp.array([0, 8190, 8191])).round(3).tolist()
      [1.0, 1.0, 1.069000005722046]
    """

    coefficient: float
    period: int
    offset: int = 0

    def __post_init__(self):
        """Checks the fields."""
        _check.number("QueryScale", "coefficient", self.coefficient)
        period = _check.positive_int("QueryScale", "period", self.period)
        if period > np.iinfo(np.int32).max:
            raise ValueError(f"QueryScale: period must fit into int32, got {period}")
        if isinstance(self.offset, bool) or not isinstance(self.offset, int) or not 0 <= self.offset < period:
            raise ValueError(f"QueryScale: offset must be an integer from 0 to below {period}, got {self.offset!r}")

    def __call__(self, positions: jax.typing.ArrayLike) -> jax.Array:
        """The factor, float32, for positions of at least 0, of any shape."""
        return _query_scale(jnp.asarray(_check.array("QueryScale", "positions", positions)), self)


@functools.partial(jax.jit, static_argnums=1)
def _query_scale(positions: jax.Array, scale: QueryScale) -> jax.Array:
    if jnp.issubdtype(positions.dtype, jnp.integer):  # p + o would wrap at the last position
        period, last = (np.asarray(n, positions.dtype) for n in (scale.period, scale.period - scale.offset))
        periods = positions // period + (positions % period >= last).astype(positions.dtype)
    else:
        periods = jnp.floor((positions + scale.offset) / scale.period)
    return (scale.coefficient * jnp.log1p(periods.astype(jnp.float32)) + 1).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class RotaryLayer:
    """How one layer rotates.

    Args:
      frequencies: as `rotary` takes them, or None for a layer without positions.
      head_dim: features of a query and key, of which `rotary_dim` are rotated.
      query_scale: a factor of the queries by position, or None.
      parameters: the rope settings, complete and sorted, from which `plan_to_config` writes them.

    Examples:
      >>> import posenc_jax as pe
      >>> from posenc_jax.hf import RotaryLayer
      >>> RotaryLayer(pe.geometric(32), head_dim=128).rotary_dim
      32
    """

    frequencies: Frequencies | None
    head_dim: int
    query_scale: QueryScale | None = None
    parameters: tuple[tuple[str, Any], ...] = dataclasses.field(default=(), repr=False)

    @property
    def rotary_dim(self) -> int:
        """The features that are rotated."""
        return 0 if self.frequencies is None else self.frequencies.dim


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class RotaryPlan:
    r"""How a model rotates its queries and keys: immutable, hashable, static under `jax.jit`.

    Args:
      layers: one for each layer of the model.
      layout: which features make a pair, as `rotary` takes it.
      part: which features are rotated, as `rotary` takes it: "last" in latent attention, whose queries and keys are
        the features without positions followed by those with.
      softmax_scale: a factor of the scores, beside $1/\sqrt{\text{head\_dim}}$ or what else the model has.
      length: the length for which the spectra were chosen; None if they do not depend on it.

    Examples:
      >>> from posenc_jax.hf import rotary_from_config
      >>> plan = rotary_from_config({"model_type": "gpt_neox", "head_dim": 64, "num_hidden_layers": 2})
      >>> plan.layers[0]
      RotaryLayer(frequencies=Frequencies(dim=16, angular=1 … 0.000316228), head_dim=64, query_scale=None)
    """

    layers: tuple[RotaryLayer, ...]
    layout: Layout
    part: Literal["first", "last"] = "first"
    softmax_scale: float = 1.0
    length: int | None = None


def _layout(config: Keys, model: Model | None, layout: Any) -> Layout:
    """Which features make a pair: what the caller says, else the model's code, else the config."""
    names = [n for n in ("rope_interleave", "rope_interleaved", "rotary_emb_interleaved") if config.found(n)]
    said: dict[str, Layout] = {name: "interleaved" if config.flag(name) else "half" for name in names}
    name = config.values.get("model_type")
    if layout is not None:
        return _check.layout(WHERE, layout)
    if model is None and not said:
        raise error(f'layout must be given, "half" or "interleaved": that of model_type {name!r} is not known')
    if model and not (model.switched and said):
        said[f"the layout of model_type {name!r}"] = model.layout
    return one(said)


def _scale_without_positions(config: Keys, model: Model | None) -> QueryScale | None:
    """The query scale of layers without positions."""
    names = ("attn_temperature_tuning", "attn_scale", "floor_scale")
    if model is None and config.flag(names[0]):
        return QueryScale(config.number(names[1]), config.integer(names[2]), 1)
    if model and model.temperature == "llama4" and config.flag(names[0], default=True):
        period = config.integer(names[2]) if config.found(names[2]) else 8192
        return QueryScale(config.number(names[1], 0.1), period, 1)
    return None


def _is_set(width: Any) -> bool:
    """Whether a width is there, right or wrong, and not 0."""
    return not (width is None or isinstance(width, int) and width == 0)


def _layer(
    kind: str, d: Keys | None, config: Keys, model: Model | None, latent: bool, theta: float | None, length: int | None
) -> RotaryLayer:
    """A layer of a type with its rope settings, None where it has no positions, and a base of its own, if any."""
    if latent:
        width = config.integer("qk_rope_head_dim")
        head_dim = _check.size(WHERE, "qk_nope_head_dim + qk_rope_head_dim", config.integer("qk_nope_head_dim") + width)
        _hf_config.even("qk_rope_head_dim", width, head_dim)
    else:
        width = head_dim = _hf_config.head_dim_of(config, model, kind)
    if d is None:
        return RotaryLayer(None, head_dim, _scale_without_positions(config, model))
    if latent:
        shares = d.found("partial_rotary_factor") | config.found("partial_rotary_factor")
        for name, share in shares.items():  # of the whole head, or of its rotated part
            if width not in (_hf_config.share_of(name, share, n) for n in (head_dim, width)):
                raise error(f"{name} = {share!r} contradicts qk_rope_head_dim = {width} of {head_dim} features")
    elif rope_type(d) != "proportional":
        width = _hf_config.width_of(d, config, model, head_dim)
    base = _hf_config.theta_of(d, config, model, kind)
    rope = Rope(d, config, model, width, base if theta is None else theta, length)
    frequencies, settings = spectrum(rope)
    scale = None
    if model.temperature == "beta" if model else d.found("llama_4_scaling_beta"):
        scale = QueryScale(d.number("llama_4_scaling_beta"), rope.original())
        settings |= {"llama_4_scaling_beta": scale.coefficient, ORIGINAL: scale.period}
    d.finish(None)
    if not latent:
        settings.pop("mscale_all_dim", None)
        if width < head_dim:
            share = width / head_dim  # of which int(head_dim · share) must be the width again
            settings["partial_rotary_factor"] = share if int(head_dim * share) == width else math.nextafter(share, 1)
    return RotaryLayer(frequencies, head_dim, scale, tuple(sorted(settings.items())))


def rotary_from_config(config: Any, *, layout: Layout | None = None, length: int | None = None) -> RotaryPlan:
    r"""How the language model of a Hugging Face config rotates its queries and keys, layer by layer.

    For a query $q$ at position $p$ and a key $k$ at position $p'$, with the rotation $R$ of `rotary`,

    $$\text{score} = \frac{\text{softmax\_scale}}{\sqrt{\text{head\_dim}}}\,
        \text{query\_scale}(p)\, (R_p q) \cdot (R_{p'} k)$$

    The settings stand in `rope_parameters`, or in the older `rope_scaling`, `rope_theta`, `rotary_pct` and so on, for
    all layers or for each layer type. Rope types: default, linear, dynamic, yarn, longrope (su), llama3, proportional;
    with `mrope_section`, positions have several coordinates. What transformers has in code and not in the config, such
    as the layout or layers without positions, is known here for some 130 model types.

    Every key that speaks of rotations must be understood: an unknown one, one that is not used, and two that contradict
    each other are errors. So is a setting that transformers would take from a default of the model's class, if that
    default is a rope type. Where a rotated vector is stored in another order, the same for queries and keys, scores are
    the same: transformers sorts the interleaved pairs of DeepSeek's latent attention into halves.

    Args:
      config: a parsed config.json, or an object whose to_dict() gives one. Of a multimodal model, its text_config.
      layout: "half" or "interleaved", for weights that are not stored as the model_type's are, and for a model_type
        that is not known, for which it must be given (unless the config has `rope_interleave`).
      length: the longest sequence, prompt and answer, that the frequencies are for. The spectra of "dynamic" and
        "longrope" depend on it and need it: one choice holds for a cache's whole life. All others are the same for
        every length and do not need it; it may be given for any config.

    Returns:
      RotaryPlan: layers (frequencies or None, head_dim, query_scale), layout, part, softmax_scale.

    Raises:
      TypeError: if config is no mapping, or a value is of another type than its key's.
      ValueError: if a key is missing, not known, not used or contradicts another, a value is outside its range,
        length or layout is needed and not given, or the model rotates in a way that a plan cannot say.

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
    values = _hf_config.text_of(config)
    both = _hf_config.rope_settings(values)
    if len(both) == 2:  # transformers takes the first
        plans = [rotary_from_config(values | {name: None}, layout=layout, length=length) for name in both]
        if plans[0] != plans[1]:
            raise error(" contradicts ".join(f"{name} = {value!r:.60}" for name, value in both.items()))
        return plans[0]
    if length is not None:
        length = _check.positive_int(WHERE, "length", length)
    keys, model = Keys(values), _hf_config.model_of(values.get("model_type"))
    names = "num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_num_hidden_layers"
    count = keys.integer(*names)
    if count > 2**16:
        raise error(f"{keys.spelled(*names)} must be at most 65,536, got {count!r:.60}")
    types = _hf_config.layer_types(keys, model, count)
    settings, overrides = _hf_config.settings_of(keys, model, types), _hf_config.overrides(keys, count)
    rotates = _hf_config.rotates(keys, model, types)
    latent = model.latent if model else _is_set(keys.get("qk_rope_head_dim"))
    bases = keys.items("layer_rope_theta") if model is None or model.layer_thetas else None
    name = "layer_rope_theta"
    bases = [None] * count if bases is None else [_check.number(WHERE, name, 0 if b is None else b) for b in bases]
    if len(bases) != count:
        raise error(f"layer_rope_theta must hold {count} numbers, got {len(bases)}")
    layers, known = [], {}
    for i, (kind, base) in enumerate(zip(types, bases, strict=True)):
        d = settings.get(kind) if rotates[i] and base != 0 else None  # a base of 0: a layer without positions
        key = kind, base, d is None, str(overrides.get(i))
        if key not in known:
            own = Keys(values | dict(overrides.get(i, {})), read=keys.read)
            known[key] = _layer(kind, d, own, model, latent, base, length)
        layers.append(known[key])
    layout = _layout(keys, model, layout)
    parameters = [dict(layer.parameters) for layer in layers]
    if any(parameters):  # else the keys are there, but no layer rotates
        keys.finish()
    roots = [temperature(p["factor"], p["mscale_all_dim"]) for p in parameters if "mscale_all_dim" in p]
    scales = {_check.number(WHERE, "the square that mscale_all_dim asks for", x * x) for x in roots} or {1.0}
    if len(scales) > 1:
        raise error(f"mscale_all_dim asks for different scales of the scores, {sorted(scales)}")
    chosen = any("short_factor" in p or MAXIMUM in p for p in parameters)
    part = "last" if latent and any(parameters) else "first"
    return RotaryPlan(tuple(layers), layout, part, scales.pop(), length if chosen else None)


def plan_to_config(plan: RotaryPlan) -> dict[str, Any]:
    """The keys of a config.json, in today's spelling, that read to the same plan.

    `rotary_from_config(plan_to_config(plan), length=plan.length) == plan`.

    The settings are complete, with nothing left to a default, and of no model_type: `rope_interleave` says the layout,
    `no_rope_layers` or a null in `rope_parameters` the layers without positions. Where layers differ, `layer_types`
    are named rope_0, rope_1, … after their spectra.

    Args:
      plan: as `rotary_from_config` made it.

    Returns:
      A dict that json can write: rope_parameters, num_hidden_layers, head_dim or qk_nope_head_dim and
      qk_rope_head_dim, and what else the plan needs.

    Raises:
      TypeError: if plan is not a RotaryPlan.
      ValueError: if no config says it, as of a plan that was put together or changed by hand.

    Examples:
      >>> from posenc_jax.hf import plan_to_config, rotary_from_config
      >>> config = {"model_type": "gpt_neox", "head_dim": 64, "num_hidden_layers": 2, "rotary_emb_base": 5000}
      >>> plan_to_config(rotary_from_config(config))["rope_parameters"]
      {'partial_rotary_factor': 0.25, 'rope_theta': 5000.0, 'rope_type': 'default'}

    Reference:
      Hugging Face transformers 5.23.0, modeling_rope_utils.py, RopeParameters.
    """
    if not isinstance(plan, RotaryPlan):
        raise TypeError(f"plan_to_config: plan must be a RotaryPlan, got {_check.describe(plan)}")
    layers = plan.layers
    if not isinstance(layers, tuple) or not layers or not all(isinstance(layer, RotaryLayer) for layer in layers):
        raise TypeError(f"plan_to_config: plan.layers must be a tuple of RotaryLayer, got {_check.describe(layers)}")
    config: dict[str, Any] = {"num_hidden_layers": len(layers), "rope_interleave": plan.layout == "interleaved"}
    head_dim = layers[0].head_dim
    if plan.part == "last":
        width = max(layer.rotary_dim for layer in layers)
        config |= {"qk_nope_head_dim": head_dim - width, "qk_rope_head_dim": width}
    else:
        config["head_dim"] = head_dim
        different = {str(i): {"head_dim": x.head_dim} for i, x in enumerate(layers) if x.head_dim != head_dim}
        config |= {"per_layer_config": different} if different else {}
    groups = list(dict.fromkeys(layer.parameters for layer in layers if layer.parameters))
    dicts = [{k: list(v) if isinstance(v, tuple) else v for k, v in group} for group in groups]
    for d in dicts:
        if MAXIMUM in d:
            config[MAXIMUM] = d.pop(MAXIMUM)
    if len(dicts) <= 1:
        config["rope_parameters"] = dicts[0] if dicts else None
        if not all(layer.parameters for layer in layers):
            config["no_rope_layers"] = [int(bool(layer.parameters)) for layer in layers]
    else:
        config["layer_types"] = [f"rope_{groups.index(x.parameters)}" if x.parameters else "no_rope" for x in layers]
        config["rope_parameters"] = dict.fromkeys(config["layer_types"])
        config["rope_parameters"] |= {f"rope_{i}": d for i, d in enumerate(dicts)}
    for scale in {layer.query_scale for layer in layers if layer.query_scale and not layer.parameters}:
        config |= {"attn_temperature_tuning": True, "attn_scale": scale.coefficient, "floor_scale": scale.period}
    if rotary_from_config(config, length=plan.length) != plan:
        raise ValueError("plan_to_config: plan must be one that rotary_from_config made: no config says this one")
    return config
