"""Rewriters of keys that say bases, scalings and widths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posenc_jax._jax import checks
from posenc_jax._jax.errors import require
from posenc_jax.hf._config import ORIGINAL, POSITIONS, RAW
from posenc_jax.hf._keys import Keys, agreed, check_agreement, equal, mapping
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
from posenc_jax.hf._settings import check_not_replaced, rope_settings

# A spectrum for each layer type


def mimo_v2(config: dict[str, Any]) -> None:
    """hybrid_layer_pattern: 1 for a sliding layer, whose base is swa_rope_theta; the settings are for full layers."""
    flags, given = take_flags(config, "hybrid_layer_pattern"), [d.values for d in rope_settings(config)]
    nested = {k: x for settings in given for k, x in settings.items() if isinstance(x, Mapping)}
    if flags is None and not nested:
        return
    d = Keys(config)
    width = checks.size("head_dim", d.get("head_dim", default=192))
    d.or_default(width, "swa_head_dim")
    take_only(config, width, "swa_head_dim")
    types = [SLIDING if flag else FULL for flag in flags or ()]
    if flags is not None:
        put_types(config, "hybrid_layer_pattern", types)
    if nested:  # transformers 5 keeps the older keys beside them
        _check_older_bases(d, nested)
    else:
        spectra = _spectra_of_mimo(config)
        config["rope_parameters"] = {kind: spectra[kind] for kind in types}
    for name in ("swa_rope_theta", "swa_v_head_dim", "swa_num_attention_heads", "swa_num_key_value_heads"):
        config.pop(name, None)


def _check_older_bases(d: Keys, nested: Mapping[str, Any]) -> None:
    """Raises if swa_rope_theta, or rope_theta beside it, is not the base of its layer type."""
    if not d.found("swa_rope_theta"):
        return
    for kind, base in {SLIDING: "swa_rope_theta", FULL: "rope_theta"}.items():
        if kind in nested and (found := d.found(base)):
            own = Keys(nested[kind], f"rope_parameters.{kind}")
            check_agreement({f"{own.label}rope_theta": own.need("rope_theta")} | found)


def _spectra_of_mimo(config: dict[str, Any]) -> dict[str, Any]:
    """The settings of each layer type by the older keys."""
    d = Keys(config)
    require(not d.is_null(SHARES[0]), "{} must have a value or be left out, got null", SHARES[0])
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
    types = take_layers(config, "layer_types", more=more) or (FULL,) * count_of(Keys(config))
    config["layer_types"] = list(types)
    needs_rope_type(config)
    if config.get("rope_parameters"):
        take_repeated(config, types, "rope_theta", more=more)
        take_repeated(config, types, "partial_rotary_factors", "partial_rotary_factor", more=more)
    else:
        _put_settings_by_type(config, types, more)
    shares = Keys(config).found(SHARES[0])  # for the layer types without one
    share = checks.number(next(iter(shares)), agreed(shares)) if shares else None
    if share is not None:  # under its own name, which the settings lack
        require(0 < share <= 1, "{} must be more than 0 and at most 1, got {!r:.60}", next(iter(shares)), share)
    for name in Keys(config).found(*RAW) if shares else ():
        for kind, own in Keys(config).within(name).values.items():
            if isinstance(own, Mapping) and own.get("partial_rotary_factor") is None:
                config[name] = {**config[name], kind: {**own, "partial_rotary_factor": share}}


def _put_settings_by_type(config: dict[str, Any], types: Sequence[Any], more: str) -> None:
    refuse(config, "partial_rotary_factor")
    usual = Keys(config).or_default(10_000.0, "rope_theta")
    bases, shares = (
        take_layers(config, name, more=more)
        if isinstance(config.get(name), Sequence)
        else [config.pop(name, None)] * len(types)
        for name in ("rope_theta", "partial_rotary_factors")
    )
    bases, shares = by_type("rope_theta", types, bases or ()), by_type("partial_rotary_factors", types, shares or ())
    scaling = take_settings(config)
    config["rope_parameters"] = {
        kind: extended(
            scaling if kind == FULL else {},
            rope_theta=usual if bases[kind] is None else bases[kind],
            partial_rotary_factor=shares[kind],
        )
        for kind in types
    }


def ultrabert(config: dict[str, Any]) -> None:
    """attention_windows gives the types of layers, and rope_theta a base for each layer."""
    windows, types = take_layers(config, "attention_windows"), Keys(config).items("layer_types")
    if types is None and windows is not None:
        put_types(config, "attention_windows", [SLIDING if window else FULL for window in windows])
        types = config["layer_types"]
    if config.get("rope_parameters"):
        take_repeated(config, types or (), "rope_theta")
    elif config.get("rope_theta") is not None and types:
        refuse(config, *RAW)
        bases = by_type("rope_theta", types, take_layers(config, "rope_theta") or ())
        config["rope_parameters"] = {kind: {"rope_theta": base} for kind, base in bases.items()}


def molmo2(config: dict[str, Any]) -> None:
    """rope_scaling_layers lists the layers whose spectrum is scaled."""
    layers = Keys(config).items("rope_scaling_layers")
    config.pop("rope_scaling_layers", None)
    if layers is None:
        return
    count = count_of(Keys(config))
    fits = all(i in range(count) for i in layers)
    require(fits, "rope_scaling_layers must be of the {} layers, got {!r:.60}", count, layers)
    named = "rope_parameters." if config.get("rope_parameters") else ""
    scaled = take_settings(config)
    based = scaled.get("rope_theta") or config.get("rope_theta") or not named or not scaled
    require(based, "{}rope_theta is missing beside rope_scaling_layers", named)
    usual = scaled.get("rope_theta") or Keys(config).or_default(10_000.0, "rope_theta")
    scaled = extended(scaled, rope_theta=config.pop("rope_theta", None))
    scaled.setdefault("rope_theta", usual)
    scaled = extended(scaled, original_max_position_embeddings=config.pop(ORIGINAL, None))
    spectra = {"scaled": scaled, "plain": {"rope_theta": scaled["rope_theta"]}}
    config["layer_types"] = types = ["scaled" if i in layers else "plain" for i in range(count)]
    config["rope_parameters"] = {kind: spectra[kind] for kind in types}


def neomme(config: dict[str, Any]) -> None:
    """Pairs alternate between row and column."""
    d = Keys(config)
    head_dim = checks.size("head_dim", d.get("head_dim", default=64))
    given = settings_of_types(config)
    spectra = {}
    for kind, (base, share) in {FULL: (1e6, 0.25), SLIDING: (1e4, 1.0)}.items():
        own = Keys(mapping(f"rope_parameters.{kind}", given.get(kind, {})), f"rope_parameters.{kind}")
        rotated = checks.number("partial_rotary_factor", head_dim * own.number("partial_rotary_factor", share))
        pairs = int(rotated) // 2
        refuse({"model_type": "neomme", **own.values}, "mrope_section", "mrope_interleaved", "interleaved")
        outside = config.get("rope_theta")
        usual: dict[str, Any] = {"partial_rotary_factor": share}
        if outside is not None or own.get("rope_type", "type", default="default") == "default":
            usual["rope_theta"] = base if outside is None else outside
        spectra[kind] = usual | dict(own.values) | {"mrope_section": [pairs // 2] * 2}
    config["rope_parameters"] = {**given, **spectra}


def ignored_beside_types(*names: str) -> Rewriter:
    """A rewriter of settings beside those for each layer type, which published files have and the code ignores.

    A rope_type that would say something is kept, and refused.
    """

    def rewrite(config: dict[str, Any]) -> None:
        settings = Keys(config).within("rope_parameters").values
        if any(isinstance(value, Mapping) for value in settings.values()):
            config["rope_parameters"] = {
                k: x for k, x in settings.items() if k not in names or k == "rope_type" and x != "default"
            }

    rewrite.__doc__ = f"The code ignores {' and '.join(names)} beside the settings for each layer type."
    return rewrite


_DOTS3_SIZES = "num_attention_heads", "num_key_value_heads", "q_lora_rank", "kv_lora_rank", "v_head_dim"


def dots3(config: dict[str, Any]) -> None:
    """Sliding layers have their own base, swa_rope_theta, and their own latent heads."""
    d = Keys(config)
    refuse(config, "rope_scaling")
    if not d.found("layer_types"):
        windows = d.flag("use_sliding_window", default=True)
        full = [i < 2 or i % 4 == 1 or not windows for i in range(count_of(d))]
        config["layer_types"] = [FULL if x else SLIDING for x in full]
    types = [str(kind) for kind in d.items("layer_types") or ()]
    if not d.found("rope_parameters"):
        bases = {kind: ("swa_rope_theta", 5e4) if kind == SLIDING else ("rope_theta", 8e7) for kind in types}
        config["rope_parameters"] = {kind: {"rope_theta": d.number(*base)} for kind, base in bases.items()}
        config.pop("rope_theta", None)
    if not d.found("per_layer_config"):
        head_dim, nope = d.number("swa_head_dim", 256), d.number("swa_qk_nope_head_dim", 192)
        rotated = d.number("swa_qk_rope_head_dim", head_dim - nope)
        own = {"qk_nope_head_dim": int(nope), "qk_rope_head_dim": int(rotated)}
        config["per_layer_config"] = {str(i): own for i, kind in enumerate(types) if kind == SLIDING}
    for name in ("rope_theta", "head_dim", "qk_nope_head_dim", "qk_rope_head_dim", *_DOTS3_SIZES):
        config.pop(f"swa_{name}", None)
    width, head_dim = d.integer("qk_rope_head_dim"), d.number("head_dim", 256)
    if d.found("partial_rotary_factor") and int(head_dim * d.number("partial_rotary_factor")) == width:
        del config["partial_rotary_factor"]
    settings = settings_of_types(config)
    for kind, own in settings.items():
        share = Keys(mapping(kind, own), f"rope_parameters.{kind}").number("partial_rotary_factor", None)  # of head_dim
        fits = share is None or int(head_dim * share) == width
        require(fits, "partial_rotary_factor = {} contradicts qk_rope_head_dim = {} of {}", share, width, head_dim)
        settings[kind] = {k: x for k, x in own.items() if k != "partial_rotary_factor"}
    config["rope_parameters"] = settings


# Bases and widths


def bailing_hybrid(config: dict[str, Any]) -> None:
    """A share is of head_dim, not of the width of latent heads; Ring-2.5 and Ling-2.6 rotate more and are refused."""
    for name in ("group_norm_size", "linear_silu", "num_kv_heads_for_linear_attn"):
        message = "{} must be absent, got {!r:.60}: the linear attention of Ring-2.5 and Ling-2.6 rotates too"
        require(config.get(name) is None, message, name, config.get(name))
    drop_default_base(config, 6e6)
    d = Keys(config)
    width = d.integer("qk_rope_head_dim")
    head_dim, share = d.number("head_dim", width), d.number("partial_rotary_factor", None)
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
    d = Keys(config)
    if d.found("head_dim"):
        take_only(config, d.integer("hidden_size") // d.integer("num_attention_heads"), "head_dim")


def deepseek_v2(config: dict[str, Any]) -> None:
    """Smaller models of DeepSeek-VL2 and DeepSeek-OCR have no latent attention and rotate as the first DeepSeek."""
    plain = not Keys(config).flag("use_mla", default=not equal(config.get("qk_rope_head_dim"), 0))
    config["model_type"] = "deepseek" if plain else "deepseek_v2"
    if plain:
        deepseek_ocr(config)


def sarvam_mla(config: dict[str, Any]) -> None:
    """head_dim and q_head_dim are not read; rope type deepseek_yarn is YaRN."""
    for name in ("head_dim", "q_head_dim"):
        config.pop(name, None)
    for name, settings in Keys(config).found("rope_scaling").items():
        config[name] = {k: "yarn" if equal(x, "deepseek_yarn") else x for k, x in mapping(name, settings).items()}


def minimax_m3(config: dict[str, Any]) -> None:
    """sparse_attention_config may have the indexer's width; rotary_dim alone is refused, because programs differ."""
    sparse = Keys(config).within("sparse_attention_config")
    if sparse.found("sparse_index_dim"):
        own = {f"{sparse.label}sparse_index_dim": sparse.integer("sparse_index_dim")}
        config["index_head_dim"] = agreed(own | Keys(config).found("index_head_dim"))
    shares = [Keys(d).found("partial_rotary_factor") for d in (config, take_settings(dict(config)))]
    message = "partial_rotary_factor is missing: transformers ignores rotary_dim, and other code reads it"
    require(any(shares) or config.get("rotary_dim") is None, message)


def olmo_hybrid(config: dict[str, Any]) -> None:
    """A null rope_theta means that no layer has positions; there are no settings for each layer type."""
    one_set_of_settings(config)
    found = {d.name: d.is_null("rope_theta") for d in rope_settings(config)}
    require(len({*found.values()}) == 1, "rope_theta must be null in all of {} or in none", sorted(found))
    put_flags(config, [not any(found.values())] * count_of(Keys(config)))


def dbrx(config: dict[str, Any]) -> None:
    """The base stands in attn_config; transformers 5 ignores it there."""
    attention = Keys(config).within("attn_config")
    if attention.found("rope_theta"):
        config["rope_theta"] = agreed(attention.found("rope_theta") | Keys(config).found("rope_theta"))


def qwen(config: dict[str, Any]) -> None:
    """Beyond seq_length, the base grows in steps with the length (use_dynamic_ntk)."""
    d = Keys(config)
    if d.flag("use_dynamic_ntk", default=True):
        refuse(config, *RAW)
        length = checks.length("seq_length", d.need("seq_length"))
        config["rope_scaling"] = {"rope_type": "dynamic_steps", "max_position_embeddings": length}
    config["max_position_embeddings"] = None
    config["use_logn_attn"] = d.flag("use_logn_attn", default=True)
    config.pop("use_dynamic_ntk", None)
    take_only(config, "rotary", "pos_emb")


def chatglm(config: dict[str, Any]) -> None:
    """rope_ratio multiplies the base; 16 is refused, because ChatGLM2-6B-32K divides positions by it."""
    renamed(rotary_percent="partial_rotary_factor")(config)
    d = Keys(config)
    message = "position_encoding_2d must be False, got True: the first ChatGLM has positions of two coordinates"
    require(not d.flag("position_encoding_2d"), message)
    ratio = d.number("rope_ratio", 1.0)
    message = (
        "rope_ratio = 16 divides the positions of ChatGLM2-6B-32K and multiplies the base of other models: "
        "write rope_theta or rope_scaling in its place"
    )
    require(ratio != 16, message)
    if ratio != 1:
        config["rope_theta"] = agreed(d.found("rope_theta") | {"10000 times rope_ratio": 1e4 * ratio})
    for name in ("rope_ratio", "position_encoding_2d"):
        config.pop(name, None)
    take_only(config, True, "original_rope")


def internlm(config: dict[str, Any]) -> None:
    """`rotary` holds the settings."""
    d = Keys(config).within("rotary")
    config.pop("rotary", None)
    if d.found("base"):
        config["rope_theta"] = agreed(d.take("base") | Keys(config).found("rope_theta"))
    factor, kind = d.number("scaling_factor", 1.0), d.get("type", default="origin")
    d.finish()
    if checks.one_of("rotary.type", kind, ("origin", "dynamic")) == "dynamic":
        refuse(config, *RAW)
        config["rope_scaling"] = {"rope_type": "dynamic", "factor": factor}


def fixed_base(config: dict[str, Any]) -> None:
    """The code has a base of 10,000, whatever rope_theta says, and no scaling."""
    take_only(config, False, "rotary_value")  # RoFormer may rotate values
    base, model_type = Keys(config).get("rope_theta"), config["model_type"]
    require(
        base is None or equal(base, 10_000),
        "rope_theta must be 10000 in model_type {!r}, got {!r:.60}",
        model_type,
        base,
    )
    refuse(config, *RAW)


def one_set_of_settings(config: dict[str, Any]) -> None:
    """The code ignores settings for each layer type."""
    for name, settings in Keys(config).found(*RAW).items():
        some = any(isinstance(value, Mapping) for value in mapping(name, settings).values())
        require(not some, "{} must hold one set of settings, not those of layer types, got {!r:.60}", name, settings)


def needs_rope_type(config: dict[str, Any]) -> None:
    """The code reads rope_type in an old rope_scaling, and not `type`."""
    scaling = Keys(config).within("rope_scaling")
    alone = scaling.found("type") and not scaling.found("rope_type") and not equal(scaling.values.get("factor"), 1)
    message = "rope_scaling.type = {!r:.60} must be spelled rope_type in model_type {!r}"
    require(not alone, message, scaling.values.get("type"), config["model_type"])


def modernbert(config: dict[str, Any]) -> None:
    """The code reads rope_type in an old rope_scaling, and not position_embedding_type, which BERT's config left.

    It is "absolute" in ModernBERT's files and "sans_pos" in those of mmBERT and Ettin.
    """
    needs_rope_type(config)
    if Keys(config).string(POSITIONS) in ("absolute", "sans_pos"):
        del config[POSITIONS]


def lfm2(config: dict[str, Any]) -> None:
    """The key theta repeats the base, and is not read; use_pos_enc must be True."""
    take_only(config, True, "use_pos_enc")
    _take_unread(config, "rope_theta", 1e6, "theta")


def nemotron(config: dict[str, Any]) -> None:
    """rope_percent and rope_percentage repeat the share that rotates; vLLM reads them, transformers does not."""
    _take_unread(config, SHARES[0], 0.5, "rope_percent", "rope_percentage")


def _take_unread(config: dict[str, Any], key: str, usual: float, *names: str) -> None:
    """Takes out keys that the code does not read: they must say what it reads, or takes where it reads nothing."""
    read: dict[str, Any] = {}
    for d in (*rope_settings(config), Keys(config)):
        read |= d.found(key)
    check_agreement((read or {f"the {key} of model_type {config['model_type']!r}": usual}) | Keys(config).found(*names))
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
    d, types = Keys(config), _layer_types_of_v4(config)
    head_dim = checks.size("head_dim", d.get("head_dim", default=512))
    outer = d.number("partial_rotary_factor", None)
    if outer is None and d.found("qk_rope_head_dim"):
        width = d.integer("qk_rope_head_dim")
    else:
        width = int(head_dim * (0.125 if outer is None else outer))
    require(width < head_dim, "head_dim must be more than the {} features that rotate, got {}", width, head_dim)
    take_only(config, width, "qk_rope_head_dim")
    take_only(config, head_dim - width, "qk_nope_head_dim")
    written = rope_settings(config)
    given, spectra = take_settings(config), {}
    nested = any(isinstance(given.get(name), Mapping) for name in _BASES_OF_V4)
    for name, (key, usual) in _BASES_OF_V4.items():
        if nested:
            label = f"{written[0].name}.{name}"
            own = dict(mapping(label, Keys(given, written[0].name).need(name)))
            del given[name]
            own.setdefault("partial_rotary_factor", outer)
            inner = Keys(own, label)
            inner.need("partial_rotary_factor")  # transformers would rotate the whole head
            inner.need("rope_theta")  # and take the other base
            check_agreement(inner.found("rope_theta") | d.found(key))
        else:
            own = _flat_of_v4(config, given, name) | {"rope_theta": d.number(key, usual)}
        share = Keys(own, f"rope_parameters.{name}").number("partial_rotary_factor", None)
        fits = share is None or int(head_dim * share) == width
        require(fits, "partial_rotary_factor = {} contradicts {} rotated features of {}", share, width, head_dim)
        spectra[name] = {k: x for k, x in own.items() if k != "partial_rotary_factor"}
    if not nested and not d.found("rope_theta", "compress_rope_theta") and given.get("rope_theta") is None:
        for settings in written:
            check_not_replaced(settings)
    if nested:
        refuse({"model_type": config["model_type"], **given}, *given)
    else:
        usual = {f"the base of model_type {config['model_type']!r}": spectra["main"]["rope_theta"]}
        check_agreement((d.found("rope_theta") or usual) | Keys(given, written[0].name).found("rope_theta"))
    for name in ("rope_theta", "compress_rope_theta", "partial_rotary_factor", "head_dim"):
        config.pop(name, None)
    config |= {"qk_nope_head_dim": head_dim - width, "qk_rope_head_dim": width, "rope_on_values": True}
    config |= {"layer_types": types, "indexer_part": "last"}
    config["rope_parameters"] = {kind: spectra["main" if kind == SLIDING else "compress"] for kind in types}


def _layer_types_of_v4(config: dict[str, Any]) -> list[str]:
    """By layer_types, by compress_ratios, or by the class, which has no sliding layers."""
    more, count = "num_nextn_predict_layers", count_of(Keys(config))
    types, ratios = (take_layers(config, name, more=more) for name in ("layer_types", "compress_ratios"))
    known = [*_TYPES_OF_V4.values()]
    if ratios is not None:
        fits = all(isinstance(ratio, int) and ratio in _TYPES_OF_V4 for ratio in ratios)
        require(fits, "compress_ratios must be of {}, got {!r:.60}", [*_TYPES_OF_V4], ratios)
        of_ratios = tuple(_TYPES_OF_V4[ratio] for ratio in ratios)
        require(types in (None, of_ratios), "compress_ratios contradicts layer_types = {!r:.60}", types)
        return [*of_ratios]
    if types is None:
        return [known[1]] * count  # or [2], in turn: both have the spectrum "compress"
    require(all(kind in known for kind in types), "layer_types must be of {}, got {!r:.60}", known, types)
    return [*types]


def _flat_of_v4(config: Mapping[str, Any], given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The settings of one spectrum, of those for both."""
    if name == "main":
        return {}
    kinds = [given.get("rope_type"), given.get("type")]
    message = "rope_type 'deepseek_yarn' has an amplitude of its own: write 'yarn', and attention_factor if it has one"
    require("deepseek_yarn" not in kinds, message)
    given = extended(given, original_max_position_embeddings=config.get(ORIGINAL))
    return ({"attention_factor": 1.0} if "yarn" in kinds else {}) | given


def mistral_large4(config: dict[str, Any]) -> None:
    """Frequencies have learned factors, and the queries of each head a learned scale: `plan.parameters` names them."""
    refuse(config, "query_scales", "indexer_query_scales")
    if any(settings.values for settings in rope_settings(config)):
        put_settings(config, learned_log_factor="lerope.alpha")
    d = Keys(config)
    heads = {
        "query_scales": ("attention", d.integer("num_attention_heads")),
        "indexer_query_scales": ("attention.indexer", d.integer_or(32, "index_n_heads")),
    }
    for key, (module, count) in heads.items():
        name = f"layers.{{layer}}.{module}.ssmax_scaling"
        config[key] = [{"scale": f"{name}.s", "bias": f"{name}.b", "num_heads": count}] * count_of(d)
