"""Rewriters of the keys for bases, scalings and widths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posenc_jax._jax import checks
from posenc_jax._jax.errors import require
from posenc_jax.hf._config import ORIGINAL, POSITIONS, RAW
from posenc_jax.hf._layers import count_of
from posenc_jax.hf._rewriting import (
    FULL,
    SLIDING,
    Config,
    by_type,
    drop_default_base,
    extended,
    is_nested,
    put_flags,
    put_settings,
    put_types,
    refuse,
    take_flags,
    take_layers,
    take_only,
    take_settings,
)
from posenc_jax.hf._rope import SHARES
from posenc_jax.hf._settings import rope_settings
from posenc_jax.hf._values import Values, agreed_value, check_agreement, equal, parse_mapping

_SHARE = SHARES[0]

# A spectrum for each layer type


def mimo_v2(config: Config) -> None:
    """hybrid_layer_pattern: 1 for a sliding layer, whose base is swa_rope_theta; the settings are for full layers."""
    flags = take_flags(config, "hybrid_layer_pattern")
    if flags is not None:
        put_types(config, "hybrid_layer_pattern", [SLIDING if flag else FULL for flag in flags])
    take_only(config, Values(config).get_integer("head_dim"), "swa_head_dim")
    if not is_nested(config):
        config["rope_scaling"] = take_settings(config)


def _put_lists(config: Config, types: Sequence[Any], more: str = "", **lists: str) -> None:
    """Writes into the settings of each layer type what lists have for each layer: the key of a list → a setting."""
    nested, settings = is_nested(config), take_settings(config)
    by_layer_type = {x: settings.get(x) or {} if nested else settings if x == FULL else {} for x in types}
    for name, key in lists.items():
        if isinstance(config.get(name), Sequence):
            items = by_type(name, types, take_layers(config, name, more=more) or ())
        else:
            items = {} if nested else dict.fromkeys(types, config.pop(name, None))
        for layer_type, item in items.items():
            by_layer_type[layer_type] = extended(by_layer_type[layer_type], **{key: item})
    usual = {} if nested else {"rope_theta": 10_000.0}
    config["rope_parameters"] = {x: usual | values for x, values in by_layer_type.items()}


def step3p5(config: Config) -> None:
    """rope_theta and partial_rotary_factors have an item for each layer, and rope_scaling is for full layers."""
    take_only(config, [FULL], "yarn_only_types")
    take_only(config, [], "use_rope_layers")
    needs_rope_type(config)
    more = "num_nextn_predict_layers"
    types = take_layers(config, "layer_types", more=more) or (FULL,) * count_of(Values(config))
    config["layer_types"] = list(types)
    _put_lists(config, types, more, rope_theta="rope_theta", partial_rotary_factors=_SHARE)
    share = config.get(_SHARE)  # for the layer types without one
    config["rope_parameters"] = {
        x: values if share is None else {_SHARE: share, **values} for x, values in config["rope_parameters"].items()
    }


def ultrabert(config: Config) -> None:
    """attention_windows gives the types of layers, and rope_theta a base for each layer."""
    windows, types = take_layers(config, "attention_windows"), Values(config).get_list("layer_types")
    if types is None and windows is not None:
        types = config["layer_types"] = [SLIDING if window else FULL for window in windows]
    if types and isinstance(config.get("rope_theta"), Sequence):
        _put_lists(config, types, rope_theta="rope_theta")


def molmo2(config: Config) -> None:
    """rope_scaling_layers lists the layers whose spectrum is scaled."""
    layers, count = Values(config).get_list("rope_scaling_layers"), count_of(Values(config))
    if layers is None:
        return
    fits = all(i in range(count) for i in layers)
    require(fits, "rope_scaling_layers must be of the {} layers, got {!r:.60}", count, layers)
    outside = {key: config.pop(key, None) for key in ("rope_theta", ORIGINAL)}
    scaled = extended(take_settings(config), **outside)
    base = Values(scaled, "rope_parameters").get("rope_theta", default=10_000.0)
    config["layer_types"] = ["scaled" if i in layers else "plain" for i in range(count)]
    settings = {"scaled": scaled | {"rope_theta": base}, "plain": {"rope_theta": base}}
    config["rope_parameters"] = {layer_type: settings[layer_type] for layer_type in config["layer_types"]}


def neomme(config: Config) -> None:
    """Pairs alternate between row and column."""
    head_dim, base = Values(config).get_integer("head_dim"), config.get("rope_theta")
    given, config["rope_parameters"] = take_settings(config), {}
    for layer_type, (default_base, share) in {FULL: (1e6, 0.25), SLIDING: (1e4, 1.0)}.items():
        settings = {
            "rope_theta": base or default_base,
            _SHARE: share,
            **parse_mapping(layer_type, given.get(layer_type, {})),
        }
        width = head_dim * Values(settings, f"rope_parameters.{layer_type}").get_number(_SHARE)
        pairs = int(checks.number(_SHARE, width)) // 2
        config["rope_parameters"][layer_type] = settings | {"mrope_section": [pairs // 2] * 2}


def ignored_beside_types(config: Config) -> None:
    """The code ignores rope_theta and a rope_type of "default" beside the settings for each layer type."""
    settings = Values(config).get_mapping("rope_parameters").values
    if is_nested(config):
        drop = {"rope_theta", *(["rope_type"] if settings.get("rope_type") == "default" else [])}
        config["rope_parameters"] = {key: value for key, value in settings.items() if key not in drop}


def dots3(config: Config) -> None:
    """Sliding layers have their own base, swa_rope_theta, and their own latent heads."""
    values = Values(config)
    refuse(config, "rope_scaling")
    if not values.look_up("layer_types"):
        windows = values.get_flag("use_sliding_window", default=True)
        full = [i < 2 or i % 4 == 1 or not windows for i in range(count_of(values))]
        config["layer_types"] = [FULL if x else SLIDING for x in full]
    types = [str(layer_type) for layer_type in values.get_list("layer_types") or ()]
    width, head_dim = values.get_integer("qk_rope_head_dim"), values.get_number("head_dim", 256)
    if not values.look_up("per_layer_config"):
        sliding_dim, nope = values.get_number("swa_head_dim", 256), values.get_number("swa_qk_nope_head_dim", 192)
        rotated = values.get_number("swa_qk_rope_head_dim", sliding_dim - nope)
        widths = {"qk_nope_head_dim": int(nope), "qk_rope_head_dim": int(rotated)}
        config["per_layer_config"] = {str(i): widths for i, x in enumerate(types) if x == SLIDING}
    if values.look_up("rope_parameters"):
        settings = values.get_mapping("rope_parameters")
        inner = {x: _without_share(settings.get_mapping(x), head_dim, width) for x in settings.values}
        config["rope_parameters"] = inner
    _without_share(values, head_dim, width)
    config.pop(_SHARE, None)


def _without_share(values: Values, head_dim: float, width: int) -> dict[str, Any]:
    """The values without a share of head_dim, which the width of latent heads must be."""
    for name, share in values.look_up(_SHARE).items():
        fits = int(head_dim * checks.number(name, share)) == width
        require(fits, "{} = {} contradicts {} rotated features of {}", name, share, width, head_dim)
    return {key: value for key, value in values.values.items() if key != _SHARE}


# Bases and widths

_LING_2 = "group_norm_size", "linear_silu", "num_kv_heads_for_linear_attn"


def bailing_hybrid(config: Config) -> None:
    """A share is of head_dim, not of the width of latent heads; Ring-2.5 and Ling-2.6 rotate more and are refused."""
    architectures, values = str(config.get("architectures")), Values(config)
    is_new = "MoeV3" in architectures or any("kda" in key for key in config)
    old = "architectures" if "MoeV2" in architectures else next(iter(values.look_up(*_LING_2)), "")
    message = "{} = {!r:.60} is that of Ring-2.5 or Ling-2.6, whose linear attention rotates too: it is not read"
    require(not old or is_new and old != "architectures", message, old, config.get(old))
    width = values.get_integer("qk_rope_head_dim")
    head_dim, share = values.get_number("head_dim", width), values.get_number(_SHARE, None)
    if share is not None and int(head_dim * share) == width:
        del config[_SHARE]
    take_only(config, width, "rotary_dim")
    drop_default_base(config, 6e6)


def deepseek_ocr(config: Config) -> None:
    """There is no latent attention, whatever its keys say; the heads share hidden_size evenly."""
    take_only(config, 0, "qk_rope_head_dim", "qk_nope_head_dim")
    take_only(config, False, "use_mla")
    even_heads(config)


def even_heads(config: Config) -> None:
    """The heads share hidden_size evenly, whatever head_dim says."""
    values = Values(config)
    if values.look_up("head_dim"):
        take_only(config, values.get_integer("hidden_size") // values.get_integer("num_attention_heads"), "head_dim")


def deepseek_v2(config: Config) -> None:
    """Smaller models of DeepSeek-VL2 and DeepSeek-OCR have no latent attention and rotate as the first DeepSeek."""
    plain = not Values(config).get_flag("use_mla", default=not equal(config.get("qk_rope_head_dim"), 0))
    config["model_type"] = "deepseek" if plain else "deepseek_v2"
    if plain:
        deepseek_ocr(config)


def sarvam_mla(config: Config) -> None:
    """head_dim is not read; rope type deepseek_yarn is YaRN."""
    config.pop("head_dim", None)
    for name, settings in Values(config).look_up("rope_scaling").items():
        config[name] = {k: "yarn" if equal(x, "deepseek_yarn") else x for k, x in parse_mapping(name, settings).items()}


def minimax_m3(config: Config) -> None:
    """sparse_attention_config may have the indexer's width; rotary_dim alone is refused, because programs differ."""
    values = Values(config)
    width = values.get_mapping("sparse_attention_config").look_up("sparse_index_dim")
    if width:
        config["index_head_dim"] = agreed_value(width | values.look_up("index_head_dim"))
    shares = values.look_up(_SHARE) or any(settings.look_up(_SHARE) for settings in rope_settings(config))
    message = "partial_rotary_factor is missing: transformers ignores rotary_dim, and other code reads it"
    require(shares or config.get("rotary_dim") is None, message)


def olmo_hybrid(config: Config) -> None:
    """A null rope_theta means that no layer has positions."""
    nulls = {settings.name: settings.is_null("rope_theta") for settings in rope_settings(config)}
    require(len({*nulls.values()}) == 1, "rope_theta must be null in all of {} or in none", sorted(nulls))
    put_flags(config, [not any(nulls.values())] * count_of(Values(config)))


def dbrx(config: Config) -> None:
    """The base stands in attn_config; transformers 5 ignores it there."""
    bases = Values(config).get_mapping("attn_config").look_up("rope_theta")
    if bases:
        config["rope_theta"] = agreed_value(bases | Values(config).look_up("rope_theta"))


def qwen(config: Config) -> None:
    """Beyond seq_length, the base grows in steps with the length (use_dynamic_ntk)."""
    values = Values(config)
    if values.get_flag("use_dynamic_ntk", default=True):
        refuse(config, *RAW)
        length = checks.length("seq_length", values.get_required("seq_length"))
        config["rope_scaling"] = {"type": "dynamic_steps", "max_position_embeddings": length}
    config["max_position_embeddings"] = None
    config["use_logn_attn"] = values.get_flag("use_logn_attn", default=True)
    config.pop("use_dynamic_ntk", None)
    take_only(config, "rotary", "pos_emb")


def chatglm(config: Config) -> None:
    """rope_ratio multiplies the base; 16 is refused, because ChatGLM2-6B-32K divides positions by it."""
    values = Values(config)
    message = "position_encoding_2d must be False, got True: the first ChatGLM has positions of two coordinates"
    require(not values.get_flag("position_encoding_2d"), message)
    ratio = values.get_number("rope_ratio", 1.0)
    message = (
        "rope_ratio = 16 divides the positions of ChatGLM2-6B-32K and multiplies the base of other models: "
        "write rope_theta or rope_scaling in its place"
    )
    require(ratio != 16, message)
    if ratio != 1:
        config["rope_theta"] = agreed_value(values.look_up("rope_theta") | {"10000 times rope_ratio": 1e4 * ratio})
    take_only(config, True, "original_rope")


def internlm(config: Config) -> None:
    """`rotary` holds the settings."""
    settings, values = Values(config).get_mapping("rotary"), Values(config)
    config.pop("rotary", None)
    settings.reject_unknown(("base", "type", "scaling_factor"), "model_type 'internlm'")
    if settings.look_up("base"):
        config["rope_theta"] = agreed_value(settings.look_up("base") | values.look_up("rope_theta"))
    factor, rope_type = settings.get_number("scaling_factor", 1.0), settings.get("type", default="origin")
    if checks.one_of("rotary.type", rope_type, ("origin", "dynamic")) == "dynamic":
        refuse(config, *RAW)
        config["rope_scaling"] = {"type": "dynamic", "factor": factor}


def fixed_base(config: Config) -> None:
    """The code has a base of 10,000, whatever rope_theta says, and no scaling."""
    take_only(config, False, "rotary_value")  # RoFormer may rotate values
    take_only(config, 10_000.0, "rope_theta")
    refuse(config, *RAW)


def needs_rope_type(config: Config) -> None:
    """The code reads rope_type in an old rope_scaling, and not `type`."""
    scaling = Values(config).get_mapping("rope_scaling")
    fits = not scaling.look_up("type") or scaling.look_up("rope_type") or equal(scaling.values.get("factor"), 1)
    message = "rope_scaling.type = {!r:.60} must be spelled rope_type in model_type {!r}"
    require(fits, message, scaling.values.get("type"), config["model_type"])


def modernbert(config: Config) -> None:
    """The code reads rope_type in an old rope_scaling, and not position_embedding_type, left over from BERT.

    It is "absolute" in ModernBERT's files and "sans_pos" in those of mmBERT and Ettin.
    """
    needs_rope_type(config)
    if Values(config).get_string(POSITIONS) in ("absolute", "sans_pos"):
        del config[POSITIONS]


def lfm2(config: Config) -> None:
    """The key theta repeats the base, and is not read; use_pos_enc must be True."""
    take_only(config, True, "use_pos_enc")
    _check_unread(config, "rope_theta", 1e6, "theta")


def nemotron(config: Config) -> None:
    """rope_percent and rope_percentage repeat the share that rotates; vLLM reads them, transformers does not."""
    _check_unread(config, _SHARE, 0.5, "rope_percent", "rope_percentage")


def _check_unread(config: Config, key: str, usual: float, *names: str) -> None:
    """Raises for a key that the code does not read, unless it has the value of `key`, or of its default `usual`."""
    read = {
        name: x for settings in (*rope_settings(config), Values(config)) for name, x in settings.look_up(key).items()
    }
    read = read or {f"the {key} of model_type {config['model_type']!r}": usual}
    check_agreement(read | Values(config).look_up(*names))


def nanochat(config: Config) -> None:
    """The code rotates backwards."""
    put_settings(config, rope_backward=True)


def ernie4_5_vl(config: Config) -> None:
    """Pairs of height and width alternate, and those of time come last; mrope_interleaved is not read."""
    put_settings(config, "mrope_interleaved", "interleaved", mrope_alternating=True)


def hy_v4(config: Config) -> None:
    """The indexer rotates the last features of its heads."""
    config["indexer_part"] = "last"


# Values that rotate, and what is learned

_TYPES_OF_V4 = {0: SLIDING, 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}


def deepseek_v4(config: Config) -> None:
    """Values rotate too, outputs back; sliding layers have rope_theta, others compress_rope_theta and the scaling."""
    values, types = Values(config), _layer_types_of_v4(config)
    head_dim, outer_share = values.get_integer("head_dim"), values.get_number(_SHARE, None)
    if outer_share is None and values.look_up("qk_rope_head_dim"):
        width = values.get_integer("qk_rope_head_dim")
    else:
        width = int(head_dim * (0.125 if outer_share is None else outer_share))
    require(width < head_dim, "head_dim must be more than the {} features that rotate, got {}", width, head_dim)
    take_only(config, width, "qk_rope_head_dim")
    take_only(config, head_dim - width, "qk_nope_head_dim")
    label, outer = rope_settings(config)[0].name, take_settings(config)
    for name in (_SHARE, "head_dim"):
        config.pop(name, None)
    config |= {"qk_nope_head_dim": head_dim - width, "qk_rope_head_dim": width, "rope_on_values": True}
    config |= {"layer_types": types, "indexer_part": "last"}
    if any(isinstance(outer.get(name), Mapping) for name in ("main", "compress")):
        refuse({"model_type": config["model_type"], **outer}, *(outer.keys() - {"main", "compress"}))
        by_name = {}
        for name in ("main", "compress"):
            of_type = parse_mapping(f"{label}.{name}", Values(outer, label).get_required(name))
            inner = Values({_SHARE: outer_share, **of_type}, f"{label}.{name}")
            inner.get_required(_SHARE)  # transformers would rotate the whole head
            inner.get_required("rope_theta")  # and take the other base
            by_name[name] = _without_share(inner, head_dim, width)
        config["rope_parameters"] = {x: by_name["main" if x == SLIDING else "compress"] for x in types}
        return
    rope_types = [outer.get("rope_type"), outer.get("type")]
    message = "rope_type 'deepseek_yarn' has an amplitude of its own: write 'yarn', and attention_factor if it has one"
    require("deepseek_yarn" not in rope_types, message)
    check_agreement({"rope_theta": values.get("rope_theta", default=1e4)} | Values(outer, label).look_up("rope_theta"))
    scaled = {"attention_factor": 1.0} if "yarn" in rope_types else {}
    scaled |= _without_share(Values(outer, label), head_dim, width)
    scaled = extended(scaled, original_max_position_embeddings=config.get(ORIGINAL))
    config["rope_scaling"] = {key: value for key, value in scaled.items() if key != "rope_theta"}


def _layer_types_of_v4(config: Config) -> list[str]:
    """The types by layer_types, by compress_ratios, or by the class, which has no sliding layers."""
    more, count = "num_nextn_predict_layers", count_of(Values(config))
    types, ratios = (take_layers(config, name, more=more) for name in ("layer_types", "compress_ratios"))
    names = [*_TYPES_OF_V4.values()]
    if ratios is not None:
        fits = all(isinstance(ratio, int) and ratio in _TYPES_OF_V4 for ratio in ratios)
        require(fits, "compress_ratios must be of {}, got {!r:.60}", [*_TYPES_OF_V4], ratios)
        of_ratios = tuple(_TYPES_OF_V4[ratio] for ratio in ratios)
        require(types in (None, of_ratios), "compress_ratios contradicts layer_types = {!r:.60}", types)
        return [*of_ratios]
    if types is None:
        return [names[1 if i > 2 and i % 2 else 2] for i in range(count)]
    require(all(layer_type in names for layer_type in types), "layer_types must be of {}, got {!r:.60}", names, types)
    return [*types]


def mistral_large4(config: Config) -> None:
    """Frequencies have learned factors, and the queries of each head a learned scale: `plan.parameters` names them."""
    if any(settings.values for settings in rope_settings(config)):
        put_settings(config, learned_log_factor="lerope.alpha")
    values = Values(config)
    heads = {
        "query_scales": ("attention", values.get_integer("num_attention_heads")),
        "indexer_query_scales": ("attention.indexer", values.get_integer("index_n_heads", default=32)),
    }
    for key, (module, count) in heads.items():
        name = f"layers.{{layer}}.{module}.ssmax_scaling"
        config[key] = [{"scale": f"{name}.s", "bias": f"{name}.b", "num_heads": count}] * count_of(values)
