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
    Rewriter,
    by_type,
    drop_default_base,
    extended,
    put_flags,
    put_settings,
    put_types,
    refuse,
    renamed,
    settings_of_types,
    take_flags,
    take_layers,
    take_only,
    take_repeated,
    take_settings,
)
from posenc_jax.hf._rope import SHARES
from posenc_jax.hf._settings import check_base_kept, rope_settings
from posenc_jax.hf._tracked_mapping import TrackedMapping, agreed_value, check_agreement, equal, parse_mapping

# A spectrum for each layer type


def mimo_v2(config: dict[str, Any]) -> None:
    """hybrid_layer_pattern: 1 for a sliding layer, whose base is swa_rope_theta; the settings are for full layers."""
    flags = take_flags(config, "hybrid_layer_pattern")
    nested = {
        name: value
        for settings in rope_settings(config)
        for name, value in settings.values.items()
        if isinstance(value, Mapping)
    }
    if flags is None and not nested:
        return
    tracked = TrackedMapping(config)
    width = checks.size("head_dim", tracked.get("head_dim", default=192))
    tracked.default_unless_null(width, "swa_head_dim")
    take_only(config, width, "swa_head_dim")
    types = [SLIDING if flag else FULL for flag in flags or ()]
    if flags is not None:
        put_types(config, "hybrid_layer_pattern", types)
    if nested:  # transformers 5 keeps the older keys beside them
        _check_older_bases(tracked, nested)
    else:
        settings = _settings_of_mimo(config)
        config["rope_parameters"] = {layer_type: settings[layer_type] for layer_type in types}
    for name in ("swa_rope_theta", "swa_v_head_dim", "swa_num_attention_heads", "swa_num_key_value_heads"):
        config.pop(name, None)


def _check_older_bases(config: TrackedMapping, nested: Mapping[str, Any]) -> None:
    """Raises if swa_rope_theta, or rope_theta beside it, is not the base of its layer type."""
    if not config.look_up("swa_rope_theta"):
        return
    for layer_type, key in {SLIDING: "swa_rope_theta", FULL: "rope_theta"}.items():
        if layer_type in nested and (older := config.look_up(key)):
            settings = TrackedMapping(nested[layer_type], f"rope_parameters.{layer_type}")
            check_agreement({f"{settings.label}rope_theta": settings.get_required("rope_theta")} | older)


def _settings_of_mimo(config: dict[str, Any]) -> dict[str, Any]:
    """The settings of each layer type by the older keys."""
    tracked = TrackedMapping(config)
    require(not tracked.is_null(SHARES[0]), "{} must have a value or be left out, got null", SHARES[0])
    share = config.pop(SHARES[0], None)
    full = extended(take_settings(config), rope_theta=config.pop("rope_theta", None), partial_rotary_factor=share)
    message = "swa_rope_theta is missing beside hybrid_layer_pattern: sliding layers have their own base"
    base = config.get("swa_rope_theta")
    require(base is not None, message)
    return {FULL: full, SLIDING: extended({"rope_theta": base}, partial_rotary_factor=full.get(SHARES[0]))}


def step3p5(config: dict[str, Any]) -> None:
    """rope_theta and partial_rotary_factors have an item for each layer, and rope_scaling is for full layers."""
    take_only(config, [], "use_rope_layers")
    take_only(config, [FULL], "yarn_only_types")
    more = "num_nextn_predict_layers"
    types = take_layers(config, "layer_types", more=more) or (FULL,) * count_of(TrackedMapping(config))
    config["layer_types"] = list(types)
    needs_rope_type(config)
    if config.get("rope_parameters"):
        take_repeated(config, types, "rope_theta", more=more)
        take_repeated(config, types, "partial_rotary_factors", "partial_rotary_factor", more=more)
    else:
        _put_settings_by_type(config, types, more)
    shares = TrackedMapping(config).look_up(SHARES[0])  # for the layer types without one
    share = checks.number(next(iter(shares)), agreed_value(shares)) if shares else None
    if share is not None:  # errors name the key of the config, which the settings lack
        require(0 < share <= 1, "{} must be more than 0 and at most 1, got {!r:.60}", next(iter(shares)), share)
    for name in TrackedMapping(config).look_up(*RAW) if shares else ():
        for layer_type, values in TrackedMapping(config).get_mapping(name).values.items():
            if isinstance(values, Mapping) and values.get("partial_rotary_factor") is None:
                config[name] = {**config[name], layer_type: {**values, "partial_rotary_factor": share}}


def _put_settings_by_type(config: dict[str, Any], types: Sequence[Any], more: str) -> None:
    refuse(config, "partial_rotary_factor")
    default = TrackedMapping(config).default_unless_null(10_000.0, "rope_theta")
    bases, shares = (
        take_layers(config, name, more=more)
        if isinstance(config.get(name), Sequence)
        else [config.pop(name, None)] * len(types)
        for name in ("rope_theta", "partial_rotary_factors")
    )
    bases, shares = by_type("rope_theta", types, bases or ()), by_type("partial_rotary_factors", types, shares or ())
    scaling = take_settings(config)
    config["rope_parameters"] = {
        layer_type: extended(
            scaling if layer_type == FULL else {},
            rope_theta=default if bases[layer_type] is None else bases[layer_type],
            partial_rotary_factor=shares[layer_type],
        )
        for layer_type in types
    }


def ultrabert(config: dict[str, Any]) -> None:
    """attention_windows gives the types of layers, and rope_theta a base for each layer."""
    windows, types = take_layers(config, "attention_windows"), TrackedMapping(config).get_list("layer_types")
    if types is None and windows is not None:
        put_types(config, "attention_windows", [SLIDING if window else FULL for window in windows])
        types = config["layer_types"]
    if config.get("rope_parameters"):
        take_repeated(config, types or (), "rope_theta")
    elif config.get("rope_theta") is not None and types:
        refuse(config, *RAW)
        bases = by_type("rope_theta", types, take_layers(config, "rope_theta") or ())
        config["rope_parameters"] = {layer_type: {"rope_theta": base} for layer_type, base in bases.items()}


def molmo2(config: dict[str, Any]) -> None:
    """rope_scaling_layers lists the layers whose spectrum is scaled."""
    layers = TrackedMapping(config).get_list("rope_scaling_layers")
    config.pop("rope_scaling_layers", None)
    if layers is None:
        return
    count = count_of(TrackedMapping(config))
    fits = all(i in range(count) for i in layers)
    require(fits, "rope_scaling_layers must be of the {} layers, got {!r:.60}", count, layers)
    label = "rope_parameters." if config.get("rope_parameters") else ""
    scaled = take_settings(config)
    has_base = scaled.get("rope_theta") or config.get("rope_theta") or not label or not scaled
    require(has_base, "{}rope_theta is missing beside rope_scaling_layers", label)
    default = scaled.get("rope_theta") or TrackedMapping(config).default_unless_null(10_000.0, "rope_theta")
    scaled = extended(scaled, rope_theta=config.pop("rope_theta", None))
    scaled.setdefault("rope_theta", default)
    scaled = extended(scaled, original_max_position_embeddings=config.pop(ORIGINAL, None))
    by_layer_type = {"scaled": scaled, "plain": {"rope_theta": scaled["rope_theta"]}}
    config["layer_types"] = types = ["scaled" if i in layers else "plain" for i in range(count)]
    config["rope_parameters"] = {layer_type: by_layer_type[layer_type] for layer_type in types}


def neomme(config: dict[str, Any]) -> None:
    """Pairs alternate between row and column."""
    head_dim = checks.size("head_dim", TrackedMapping(config).get("head_dim", default=64))
    rope_parameters = settings_of_types(config)
    for layer_type, (base, share) in {FULL: (1e6, 0.25), SLIDING: (1e4, 1.0)}.items():
        name = f"rope_parameters.{layer_type}"
        settings = TrackedMapping(parse_mapping(name, rope_parameters.get(layer_type, {})), name)
        rotated = head_dim * settings.get_number("partial_rotary_factor", share)
        pairs = int(checks.number("partial_rotary_factor", rotated)) // 2
        refuse({"model_type": "neomme", **settings.values}, "mrope_section", "mrope_interleaved", "interleaved")
        outside = config.get("rope_theta")
        defaults: dict[str, Any] = {"partial_rotary_factor": share}
        if outside is not None or settings.get("rope_type", "type", default="default") == "default":
            defaults["rope_theta"] = base if outside is None else outside
        rope_parameters[layer_type] = defaults | dict(settings.values) | {"mrope_section": [pairs // 2] * 2}
    config["rope_parameters"] = rope_parameters


def ignored_beside_types(*names: str) -> Rewriter:
    """A rewriter of settings beside those for each layer type, which published files have and the code ignores.

    A rope_type other than "default" stays, and is refused.
    """

    def rewrite(config: dict[str, Any]) -> None:
        settings = TrackedMapping(config).get_mapping("rope_parameters").values
        if any(isinstance(value, Mapping) for value in settings.values()):
            config["rope_parameters"] = {
                k: x for k, x in settings.items() if k not in names or k == "rope_type" and x != "default"
            }

    rewrite.__doc__ = f"The code ignores {' and '.join(names)} beside the settings for each layer type."
    return rewrite


_DOTS3_SIZES = "num_attention_heads", "num_key_value_heads", "q_lora_rank", "kv_lora_rank", "v_head_dim"


def dots3(config: dict[str, Any]) -> None:
    """Sliding layers have their own base, swa_rope_theta, and their own latent heads."""
    tracked = TrackedMapping(config)
    refuse(config, "rope_scaling")
    if not tracked.look_up("layer_types"):
        windows = tracked.get_flag("use_sliding_window", default=True)
        full = [i < 2 or i % 4 == 1 or not windows for i in range(count_of(tracked))]
        config["layer_types"] = [FULL if x else SLIDING for x in full]
    types = [str(layer_type) for layer_type in tracked.get_list("layer_types") or ()]
    if not tracked.look_up("rope_parameters"):
        bases = {
            layer_type: ("swa_rope_theta", 5e4) if layer_type == SLIDING else ("rope_theta", 8e7)
            for layer_type in types
        }
        config["rope_parameters"] = {
            layer_type: {"rope_theta": tracked.get_number(*base)} for layer_type, base in bases.items()
        }
        config.pop("rope_theta", None)
    if not tracked.look_up("per_layer_config"):
        head_dim, nope = tracked.get_number("swa_head_dim", 256), tracked.get_number("swa_qk_nope_head_dim", 192)
        rotated = tracked.get_number("swa_qk_rope_head_dim", head_dim - nope)
        widths = {"qk_nope_head_dim": int(nope), "qk_rope_head_dim": int(rotated)}
        config["per_layer_config"] = {str(i): widths for i, layer_type in enumerate(types) if layer_type == SLIDING}
    for name in ("rope_theta", "head_dim", "qk_nope_head_dim", "qk_rope_head_dim", *_DOTS3_SIZES):
        config.pop(f"swa_{name}", None)
    width, head_dim = tracked.get_integer("qk_rope_head_dim"), tracked.get_number("head_dim", 256)
    share = tracked.get_number("partial_rotary_factor", None)
    if share is not None and int(head_dim * share) == width:
        del config["partial_rotary_factor"]
    settings = settings_of_types(config)
    for layer_type, values in settings.items():
        of_type = TrackedMapping(parse_mapping(layer_type, values), f"rope_parameters.{layer_type}")
        share = of_type.get_number("partial_rotary_factor", None)  # of head_dim
        fits = share is None or int(head_dim * share) == width
        require(fits, "partial_rotary_factor = {} contradicts qk_rope_head_dim = {} of {}", share, width, head_dim)
        settings[layer_type] = {k: x for k, x in values.items() if k != "partial_rotary_factor"}
    config["rope_parameters"] = settings


# Bases and widths


def bailing_hybrid(config: dict[str, Any]) -> None:
    """A share is of head_dim, not of the width of latent heads; Ring-2.5 and Ling-2.6 rotate more and are refused."""
    for name in ("group_norm_size", "linear_silu", "num_kv_heads_for_linear_attn"):
        message = "{} must be absent, got {!r:.60}: the linear attention of Ring-2.5 and Ling-2.6 rotates too"
        require(config.get(name) is None, message, name, config.get(name))
    drop_default_base(config, 6e6)
    tracked = TrackedMapping(config)
    width = tracked.get_integer("qk_rope_head_dim")
    head_dim, share = tracked.get_number("head_dim", width), tracked.get_number("partial_rotary_factor", None)
    if share is not None and int(head_dim * share) == width:
        del config["partial_rotary_factor"]
    take_only(config, width, "rotary_dim")
    renamed(model_max_length="max_position_embeddings")(config)


def deepseek_ocr(config: dict[str, Any]) -> None:
    """There is no latent attention, whatever its keys say; the heads share hidden_size evenly."""
    take_only(config, 0, "qk_rope_head_dim", "qk_nope_head_dim")
    take_only(config, False, "use_mla")
    even_heads(config)


def even_heads(config: dict[str, Any]) -> None:
    """The heads share hidden_size evenly, whatever head_dim says."""
    tracked = TrackedMapping(config)
    if tracked.look_up("head_dim"):
        take_only(config, tracked.get_integer("hidden_size") // tracked.get_integer("num_attention_heads"), "head_dim")


def deepseek_v2(config: dict[str, Any]) -> None:
    """Smaller models of DeepSeek-VL2 and DeepSeek-OCR have no latent attention and rotate as the first DeepSeek."""
    plain = not TrackedMapping(config).get_flag("use_mla", default=not equal(config.get("qk_rope_head_dim"), 0))
    config["model_type"] = "deepseek" if plain else "deepseek_v2"
    if plain:
        deepseek_ocr(config)


def sarvam_mla(config: dict[str, Any]) -> None:
    """head_dim and q_head_dim are not read; rope type deepseek_yarn is YaRN."""
    for name in ("head_dim", "q_head_dim"):
        config.pop(name, None)
    for name, settings in TrackedMapping(config).look_up("rope_scaling").items():
        config[name] = {k: "yarn" if equal(x, "deepseek_yarn") else x for k, x in parse_mapping(name, settings).items()}


def minimax_m3(config: dict[str, Any]) -> None:
    """sparse_attention_config may have the indexer's width; rotary_dim alone is refused, because programs differ."""
    tracked = TrackedMapping(config)
    sparse = tracked.get_mapping("sparse_attention_config")
    if sparse.look_up("sparse_index_dim"):
        widths = {f"{sparse.label}sparse_index_dim": sparse.get_integer("sparse_index_dim")}
        config["index_head_dim"] = agreed_value(widths | tracked.look_up("index_head_dim"))
    settings = TrackedMapping(take_settings(dict(config)))
    shares = tracked.look_up("partial_rotary_factor") | settings.look_up("partial_rotary_factor")
    message = "partial_rotary_factor is missing: transformers ignores rotary_dim, and other code reads it"
    require(shares or config.get("rotary_dim") is None, message)


def olmo_hybrid(config: dict[str, Any]) -> None:
    """A null rope_theta means that no layer has positions; there are no settings for each layer type."""
    one_set_of_settings(config)
    nulls = {settings.name: settings.is_null("rope_theta") for settings in rope_settings(config)}
    require(len({*nulls.values()}) == 1, "rope_theta must be null in all of {} or in none", sorted(nulls))
    put_flags(config, [not any(nulls.values())] * count_of(TrackedMapping(config)))


def dbrx(config: dict[str, Any]) -> None:
    """The base stands in attn_config; transformers 5 ignores it there."""
    tracked = TrackedMapping(config)
    bases = tracked.get_mapping("attn_config").look_up("rope_theta")
    if bases:
        config["rope_theta"] = agreed_value(bases | tracked.look_up("rope_theta"))


def qwen(config: dict[str, Any]) -> None:
    """Beyond seq_length, the base grows in steps with the length (use_dynamic_ntk)."""
    tracked = TrackedMapping(config)
    if tracked.get_flag("use_dynamic_ntk", default=True):
        refuse(config, *RAW)
        length = checks.length("seq_length", tracked.get_required("seq_length"))
        config["rope_scaling"] = {"rope_type": "dynamic_steps", "max_position_embeddings": length}
    config["max_position_embeddings"] = None
    config["use_logn_attn"] = tracked.get_flag("use_logn_attn", default=True)
    config.pop("use_dynamic_ntk", None)
    take_only(config, "rotary", "pos_emb")


def chatglm(config: dict[str, Any]) -> None:
    """rope_ratio multiplies the base; 16 is refused, because ChatGLM2-6B-32K divides positions by it."""
    renamed(rotary_percent="partial_rotary_factor")(config)
    tracked = TrackedMapping(config)
    message = "position_encoding_2d must be False, got True: the first ChatGLM has positions of two coordinates"
    require(not tracked.get_flag("position_encoding_2d"), message)
    ratio = tracked.get_number("rope_ratio", 1.0)
    message = (
        "rope_ratio = 16 divides the positions of ChatGLM2-6B-32K and multiplies the base of other models: "
        "write rope_theta or rope_scaling in its place"
    )
    require(ratio != 16, message)
    if ratio != 1:
        config["rope_theta"] = agreed_value(tracked.look_up("rope_theta") | {"10000 times rope_ratio": 1e4 * ratio})
    for name in ("rope_ratio", "position_encoding_2d"):
        config.pop(name, None)
    take_only(config, True, "original_rope")


def internlm(config: dict[str, Any]) -> None:
    """`rotary` holds the settings."""
    settings = TrackedMapping(config).get_mapping("rotary")
    config.pop("rotary", None)
    if settings.look_up("base"):
        config["rope_theta"] = agreed_value(settings.read("base") | TrackedMapping(config).look_up("rope_theta"))
    factor, rope_type = settings.get_number("scaling_factor", 1.0), settings.get("type", default="origin")
    settings.reject_unread()
    if checks.one_of("rotary.type", rope_type, ("origin", "dynamic")) == "dynamic":
        refuse(config, *RAW)
        config["rope_scaling"] = {"rope_type": "dynamic", "factor": factor}


def fixed_base(config: dict[str, Any]) -> None:
    """The code has a base of 10,000, whatever rope_theta says, and no scaling."""
    take_only(config, False, "rotary_value")  # RoFormer may rotate values
    base, model_type = TrackedMapping(config).get("rope_theta"), config["model_type"]
    require(
        base is None or equal(base, 10_000),
        "rope_theta must be 10000 in model_type {!r}, got {!r:.60}",
        model_type,
        base,
    )
    refuse(config, *RAW)


def one_set_of_settings(config: dict[str, Any]) -> None:
    """The code ignores settings for each layer type."""
    for name, settings in TrackedMapping(config).look_up(*RAW).items():
        nested = any(isinstance(value, Mapping) for value in parse_mapping(name, settings).values())
        require(not nested, "{} must hold one set of settings, not those of layer types, got {!r:.60}", name, settings)


def needs_rope_type(config: dict[str, Any]) -> None:
    """The code reads rope_type in an old rope_scaling, and not `type`."""
    scaling = TrackedMapping(config).get_mapping("rope_scaling")
    scales = not equal(scaling.values.get("factor"), 1)
    fits = not scaling.look_up("type") or scaling.look_up("rope_type") or not scales
    message = "rope_scaling.type = {!r:.60} must be spelled rope_type in model_type {!r}"
    require(fits, message, scaling.values.get("type"), config["model_type"])


def modernbert(config: dict[str, Any]) -> None:
    """The code reads rope_type in an old rope_scaling, and not position_embedding_type, left over from BERT.

    It is "absolute" in ModernBERT's files and "sans_pos" in those of mmBERT and Ettin.
    """
    needs_rope_type(config)
    if TrackedMapping(config).get_string(POSITIONS) in ("absolute", "sans_pos"):
        del config[POSITIONS]


def lfm2(config: dict[str, Any]) -> None:
    """The key theta repeats the base, and is not read; use_pos_enc must be True."""
    take_only(config, True, "use_pos_enc")
    _take_unread(config, "rope_theta", 1e6, "theta")


def nemotron(config: dict[str, Any]) -> None:
    """rope_percent and rope_percentage repeat the share that rotates; vLLM reads them, transformers does not."""
    _take_unread(config, SHARES[0], 0.5, "rope_percent", "rope_percentage")


def _take_unread(config: dict[str, Any], key: str, usual: float, *names: str) -> None:
    """Takes out keys that the code does not read: they must have the value of `key`, or else its default `usual`."""
    tracked, values = TrackedMapping(config), {}
    for settings in (*rope_settings(config), tracked):
        values |= settings.look_up(key)
    values = values or {f"the {key} of model_type {config['model_type']!r}": usual}
    check_agreement(values | tracked.look_up(*names))
    for name in names:
        config.pop(name, None)


def nanochat(config: dict[str, Any]) -> None:
    """The code rotates backwards."""
    put_settings(config, rope_backward=True)


def ernie4_5_vl(config: dict[str, Any]) -> None:
    """Pairs of height and width alternate, and those of time come last; mrope_interleaved is not read."""
    put_settings(config, "mrope_interleaved", "interleaved", mrope_alternating=True)


def hy_v4(config: dict[str, Any]) -> None:
    """The indexer rotates the last features of its heads."""
    config["indexer_part"] = "last"


def stablelm_epoch(config: dict[str, Any]) -> None:
    """rope_pct is the share that rotates."""
    renamed(rope_pct="partial_rotary_factor")(config)
    take_only(config, 1.0, "rotary_scaling_factor")


def phi3small(config: dict[str, Any]) -> None:
    """rope_embedding_base is the base; rope_position_scale must be 1: some programs multiply by it, others divide."""
    renamed(rope_embedding_base="rope_theta")(config)
    take_only(config, 1.0, "rope_position_scale")


# Values that rotate, and what is learned

_TYPES_OF_V4 = {0: SLIDING, 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
_BASES_OF_V4 = {"main": ("rope_theta", 10_000.0), "compress": ("compress_rope_theta", 160_000.0)}


def deepseek_v4(config: dict[str, Any]) -> None:
    """Values rotate too, outputs back; sliding layers have rope_theta, others compress_rope_theta and the scaling."""
    refuse(config, "rope_on_values", "indexer_part")
    tracked, types = TrackedMapping(config), _layer_types_of_v4(config)
    head_dim = checks.size("head_dim", tracked.get("head_dim", default=512))
    outer_share = tracked.get_number("partial_rotary_factor", None)
    if outer_share is None and tracked.look_up("qk_rope_head_dim"):
        width = tracked.get_integer("qk_rope_head_dim")
    else:
        width = int(head_dim * (0.125 if outer_share is None else outer_share))
    require(width < head_dim, "head_dim must be more than the {} features that rotate, got {}", width, head_dim)
    take_only(config, width, "qk_rope_head_dim")
    take_only(config, head_dim - width, "qk_nope_head_dim")
    spellings = rope_settings(config)
    outer, by_name = take_settings(config), {}
    nested = any(isinstance(outer.get(name), Mapping) for name in _BASES_OF_V4)
    for name, (key, default) in _BASES_OF_V4.items():
        if nested:
            label = f"{spellings[0].name}.{name}"
            settings = dict(parse_mapping(label, TrackedMapping(outer, spellings[0].name).get_required(name)))
            del outer[name]
            settings.setdefault("partial_rotary_factor", outer_share)
            inner = TrackedMapping(settings, label)
            inner.get_required("partial_rotary_factor")  # transformers would rotate the whole head
            inner.get_required("rope_theta")  # and take the other base
            check_agreement(inner.look_up("rope_theta") | tracked.look_up(key))
        else:
            settings = _flat_of_v4(config, outer, name) | {"rope_theta": tracked.get_number(key, default)}
        share = TrackedMapping(settings, f"rope_parameters.{name}").get_number("partial_rotary_factor", None)
        fits = share is None or int(head_dim * share) == width
        require(fits, "partial_rotary_factor = {} contradicts {} rotated features of {}", share, width, head_dim)
        by_name[name] = {k: x for k, x in settings.items() if k != "partial_rotary_factor"}
    if not nested and not tracked.look_up("rope_theta", "compress_rope_theta") and outer.get("rope_theta") is None:
        for spelling in spellings:
            check_base_kept(spelling)
    if nested:
        refuse({"model_type": config["model_type"], **outer}, *outer)
    else:
        default_base = {f"the base of model_type {config['model_type']!r}": by_name["main"]["rope_theta"]}
        base = tracked.look_up("rope_theta") or default_base
        check_agreement(base | TrackedMapping(outer, spellings[0].name).look_up("rope_theta"))
    for name in ("rope_theta", "compress_rope_theta", "partial_rotary_factor", "head_dim"):
        config.pop(name, None)
    config |= {"qk_nope_head_dim": head_dim - width, "qk_rope_head_dim": width, "rope_on_values": True}
    config |= {"layer_types": types, "indexer_part": "last"}
    config["rope_parameters"] = {
        layer_type: by_name["main" if layer_type == SLIDING else "compress"] for layer_type in types
    }


def _layer_types_of_v4(config: dict[str, Any]) -> list[str]:
    """The types by layer_types, by compress_ratios, or by the class, which has no sliding layers."""
    more, count = "num_nextn_predict_layers", count_of(TrackedMapping(config))
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


def _flat_of_v4(config: Mapping[str, Any], settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The settings "main" or "compress", from one set of settings for both."""
    if name == "main":
        return {}
    rope_types = [settings.get("rope_type"), settings.get("type")]
    message = "rope_type 'deepseek_yarn' has an amplitude of its own: write 'yarn', and attention_factor if it has one"
    require("deepseek_yarn" not in rope_types, message)
    settings = extended(settings, original_max_position_embeddings=config.get(ORIGINAL))
    return ({"attention_factor": 1.0} if "yarn" in rope_types else {}) | settings


def mistral_large4(config: dict[str, Any]) -> None:
    """Frequencies have learned factors, and the queries of each head a learned scale: `plan.parameters` names them."""
    refuse(config, "query_scales", "indexer_query_scales")
    if any(settings.values for settings in rope_settings(config)):
        put_settings(config, learned_log_factor="lerope.alpha")
    tracked = TrackedMapping(config)
    heads = {
        "query_scales": ("attention", tracked.get_integer("num_attention_heads")),
        "indexer_query_scales": ("attention.indexer", tracked.get_integer_or(32, "index_n_heads")),
    }
    for key, (module, count) in heads.items():
        name = f"layers.{{layer}}.{module}.ssmax_scaling"
        config[key] = [{"scale": f"{name}.s", "bias": f"{name}.b", "num_heads": count}] * count_of(tracked)
