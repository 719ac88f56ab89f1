"""Settings that a single model type or family has, rewritten in the keys that `plan_to_config` writes.

A rewriter changes some keys of a config; the others are read as in every config. Its docstring says what is special:
the site's table of model types shows it. Those of the keys for bases, scalings and shares stand here, those of the keys
about layers and heads in `_rewriting.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posenc_jax._jax import checks
from posenc_jax._jax.errors import require
from posenc_jax.hf._layers import layer_indices
from posenc_jax.hf._models import MODELS, UNNAMED, by_model_type, canonical_type
from posenc_jax.hf._rewriting import FULL, LAYERS, SLIDING, Draft, extended, is_nested
from posenc_jax.hf._settings import share_of
from posenc_jax.hf._values import Values, agreed_value, equal, parse_mapping

_SHARE = "partial_rotary_factor"
_NO_SETTINGS = {"rope_scaling": {}, "rope_parameters": {}}

# A spectrum for each layer type


def mimo_v2(config: Draft) -> None:
    """hybrid_layer_pattern: 1 for a sliding layer, whose base is swa_rope_theta; the settings are for full layers."""
    config.put_numbered_types("hybrid_layer_pattern", {0: FULL, 1: SLIDING})
    config.take_only(swa_head_dim=config.get_integer("head_dim"))
    settings = config.take_settings()
    config["rope_parameters" if is_nested(settings) else "rope_scaling"] = settings.values


def _put_lists(config: Draft, types: Sequence[str], usual: dict[str, Any], **lists: str) -> None:
    """Writes into the settings of each layer type what lists have for its layers: a setting → the key of a list.

    `usual` is for the layer types without these settings.
    """
    settings = config.take_settings()
    settings = settings if is_nested(settings) else Values({FULL: settings.values}, settings.name)
    by_type = {x: settings.get_mapping(x) for x in types}
    for setting, name in lists.items():
        for layer_type, item in zip(types, config.take_layers(name), strict=False):
            by_type[layer_type] = extended(by_type[layer_type], **{setting: item})
    config["rope_parameters"] = {x: {**usual, **of_type.values} for x, of_type in by_type.items()}


def step3p5(config: Draft) -> None:
    """rope_theta and partial_rotary_factors have an item for each layer, and rope_scaling is for full layers."""
    needs_rope_type(config)
    types = config.put_usual_types(lambda i: FULL)
    if not any(map(is_nested, config.settings)):
        config.take_only(rope_parameters={}, partial_rotary_factor=1.0)  # the class overwrites them
        base = config.get("rope_theta", default=10_000.0)
        config["rope_theta"] = base if isinstance(base, Sequence) else [base] * len(types)
    bases = {"rope_theta": "rope_theta"} if isinstance(config.values.get("rope_theta"), Sequence) else {}
    _put_lists(config, types, config.look_up(_SHARE), partial_rotary_factor="partial_rotary_factors", **bases)


def ultrabert(config: Draft) -> None:
    """attention_windows gives the types of layers, and rope_theta a base for each layer."""
    config.put_types("attention_windows", [SLIDING if x else FULL for x in config.take_layers("attention_windows")])
    if config.look_up("layer_types") and isinstance(config.values.get("rope_theta"), Sequence):
        types = config["layer_types"] = config.take_layers("layer_types")
        _put_lists(config, types, {}, rope_theta="rope_theta")


def molmo2(config: Draft) -> None:
    """rope_scaling_layers lists the layers whose spectrum is scaled."""
    layers, count = config.get_list("rope_scaling_layers"), config.num_layers
    if layers is None:
        return
    layers = layer_indices("rope_scaling_layers", layers, count)
    outside = config.look_up("rope_theta", "original_max_position_embeddings")
    scaled = extended(config.take_settings(), **outside)
    base = {"rope_theta": scaled.get("rope_theta", default=10_000.0)}
    types = config["layer_types"] = ["scaled" if i in layers else "plain" for i in range(count)]
    config["rope_parameters"] = {x: {**scaled.values, **base} if x == "scaled" else base for x in types}


def neomme(config: Draft) -> None:
    """Pairs alternate between row and column."""
    head_dim, base, given = config.get_integer("head_dim"), config.look_up("rope_theta"), config.take_settings()
    given.reject_unknown(MODELS["neomme"].settings, "model_type 'neomme'")
    config["rope_parameters"] = by_type = {}
    for layer_type, usual in MODELS["neomme"].settings.items():
        settings = {**usual, **base, **parse_mapping(layer_type, given.values.get(layer_type, {}))}
        rotated = share_of(f"rope_parameters.{layer_type}.{_SHARE}", settings[_SHARE], head_dim)
        by_type[layer_type] = settings | {"mrope_section": [rotated // 4] * 2}


def ignored_beside_types(config: Draft) -> None:
    """The code ignores rope_theta and a rope_type of "default" beside the settings for each layer type."""
    settings = config.get_mapping("rope_parameters")
    if is_nested(settings):
        items = settings.values.items()
        config["rope_parameters"] = {x: y for x, y in items if x != "rope_theta" and (x, y) != ("rope_type", "default")}


def dots3(config: Draft) -> None:
    """Sliding layers have their own base, swa_rope_theta, and their own latent heads; no share is read."""
    windows = config.get_flag("use_sliding_window", default=True)
    types = config.put_usual_types(lambda i: SLIDING if windows and i > 1 and i % 4 != 1 else FULL)
    if not config.look_up("per_layer_config"):
        rest = config.get_integer("swa_qk_nope_head_dim", default=192)
        usual = config.get_integer("swa_head_dim", default=256) - rest
        width = config.get_integer("swa_qk_rope_head_dim", default=usual)
        widths = {"qk_nope_head_dim": rest, "qk_rope_head_dim": width}
        config["per_layer_config"] = {str(i): widths for i, x in enumerate(types) if x == SLIDING}
    config.take(_SHARE)
    settings = config.get_mapping("rope_parameters")
    config["rope_parameters"] = {x: {**settings.get_mapping(x).values, _SHARE: None} for x in settings.values}


# Bases and scalings


def sarvam_mla(config: Draft) -> None:
    """The rope type deepseek_yarn is YaRN."""
    settings = config.get_mapping("rope_scaling").values
    config["rope_scaling"] = {name: "yarn" if equal(x, "deepseek_yarn") else x for name, x in settings.items()}


def minimax_m3(config: Draft) -> None:
    """sparse_attention_config may have the indexer's width; rotary_dim alone is refused, because programs differ."""
    config.put_from("sparse_attention_config", "sparse_index_dim", "index_head_dim")
    shares = any(values.look_up(_SHARE) for values in (config, *config.settings))
    message = "partial_rotary_factor is missing: transformers ignores rotary_dim, and other code reads it"
    require(shares or not config.look_up("rotary_dim"), message)


def dbrx(config: Draft) -> None:
    """The base stands in attn_config; transformers 5 ignores it there."""
    config.put_from("attn_config", "rope_theta", "rope_theta")


def qwen(config: Draft) -> None:
    """Beyond seq_length, the base grows in steps with the length (use_dynamic_ntk)."""
    is_dynamic = config.get_flag("use_dynamic_ntk", default=True)
    config.take("use_dynamic_ntk")
    if is_dynamic:
        config.take_only(**_NO_SETTINGS)
        config["rope_scaling"] = {
            "type": "dynamic",
            "dynamic_steps": True,
            "max_position_embeddings": config.get_integer("seq_length"),
        }
    config["max_position_embeddings"] = None


def chatglm(config: Draft) -> None:
    """rope_ratio multiplies the base; 16 is refused, because ChatGLM2-6B-32K divides positions by it."""
    ratio = config.get_number("rope_ratio", default=1.0)
    message = (
        "rope_ratio = 16 divides the positions of ChatGLM2-6B-32K and multiplies the base of other models: "
        "write rope_theta or rope_scaling in its place"
    )
    require(ratio != 16, message)
    if ratio != 1:
        config["rope_theta"] = agreed_value(config.look_up("rope_theta") | {"10000 times rope_ratio": 1e4 * ratio})


def internlm(config: Draft) -> None:
    """`rotary` holds the settings."""
    settings = config.get_mapping("rotary")
    settings.reject_unknown(("base", "type", "scaling_factor"), "model_type 'internlm'")
    config.put_from("rotary", "base", "rope_theta")
    config.take("rotary")
    if checks.one_of("rotary.type", settings.get("type", default="origin"), ("origin", "dynamic")) == "dynamic":
        config.take_only(**_NO_SETTINGS)
        config["rope_scaling"] = {"type": "dynamic", "factor": settings.get_number("scaling_factor", default=1.0)}


def needs_rope_type(config: Draft) -> None:
    """The code reads rope_type in an old rope_scaling, and not `type`."""
    scaling = config.get_mapping("rope_scaling")
    fits = not scaling.look_up("type") or scaling.look_up("rope_type") or equal(scaling.values.get("factor"), 1)
    message = "rope_scaling.type = {!r:.60} must be spelled rope_type for this model_type"
    require(fits, message, scaling.values.get("type"))


def modernbert(config: Draft) -> None:
    """The code reads rope_type in an old rope_scaling, and not position_embedding_type, left over from BERT.

    It is "absolute" in ModernBERT's files and "sans_pos" in those of mmBERT and Ettin.
    """
    needs_rope_type(config)
    if config.get_string("position_embedding_type") in ("absolute", "sans_pos"):
        config.take("position_embedding_type")


def nanochat(config: Draft) -> None:
    """The code rotates backwards."""
    config.put_settings(rope_backward=True)


def ernie4_5_vl(config: Draft) -> None:
    """Pairs of height and width alternate, and those of time come last; mrope_interleaved is not read."""
    config.put_settings(mrope_alternating=True)


# Values that rotate, and what is learned

_TYPES_OF_V4 = {0: SLIDING, 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}


def deepseek_v4(config: Draft) -> None:
    """Values rotate too, outputs back; sliding layers have rope_theta, others compress_rope_theta and the scaling."""
    config.put_numbered_types("compress_ratios", _TYPES_OF_V4)
    types = config.put_usual_types(lambda i: _TYPES_OF_V4[4 if i > 2 and i % 2 else 128])
    head_dim = config.get_integer("head_dim")
    share = config.get_number(_SHARE, default=None) or 0.125
    width = config.get_integer("qk_rope_head_dim", default=int(head_dim * share))
    require(width < head_dim, "head_dim must be more than the {} features that rotate, got {}", width, head_dim)
    config["qk_nope_head_dim"], config["qk_rope_head_dim"] = head_dim - width, width
    settings = config.take_settings()
    if is_nested(settings):
        config["rope_parameters"] = by_type = {}
        for layer_type in types:
            of_type = settings.get_mapping("main" if layer_type == SLIDING else "compress")
            by_type[layer_type] = of_type.values
            # Without them, transformers would take the other base and rotate the whole head.
            of_type.get_required("rope_theta")
            if not config.look_up(_SHARE):
                of_type.get_required(_SHARE)
        return
    rope_types = settings.look_up("rope_type", "type").values()
    base, original = config.get("rope_theta", default=1e4), config.get("original_max_position_embeddings")
    usual = {"attention_factor": 1.0} if "yarn" in rope_types else {}
    scaled = {**usual, **extended(settings, rope_theta=base, original_max_position_embeddings=original).values}
    del scaled["rope_theta"]  # that of sliding layers
    config["rope_scaling"] = scaled


def mistral_large4(config: Draft) -> None:
    """Frequencies have learned factors, and the queries of each head a learned scale: `plan.parameters` names them."""
    if any(settings.values for settings in config.settings):
        config.put_settings(learned_log_factor="lerope.alpha")
    config["query_scale"] = {
        "scale": "layers.{layer}.attention.ssmax_scaling.s",
        "bias": "layers.{layer}.attention.ssmax_scaling.b",
        "num_heads": config.get_integer("num_attention_heads"),
    }
    config["indexer_query_scale"] = {
        "scale": "layers.{layer}.attention.indexer.ssmax_scaling.s",
        "bias": "layers.{layer}.attention.indexer.ssmax_scaling.b",
        "num_heads": config.get_integer("index_n_heads", default=32),
    }


REWRITERS = LAYERS | by_model_type(
    {
        "chatglm": chatglm,
        "cohere_compass_text zaya": ignored_beside_types,
        "dbrx": dbrx,
        "deepseek_v4": deepseek_v4,
        "dots3_note_text": dots3,
        "ernie4_5_vl_moe_text": ernie4_5_vl,
        "gemma3_text gemma3n_text olmo3 t5gemma2_decoder t5gemma2_text": needs_rope_type,
        "internlm": internlm,
        "mimo_v2 mimo_v2_flash": mimo_v2,
        "minimax_m3 minimax_m3_vl_text": minimax_m3,
        "mistral_large4_text": mistral_large4,
        "modernbert modernbert-decoder": modernbert,
        "molmo2_text": molmo2,
        "nanochat": nanochat,
        "neomme": neomme,
        "qwen": qwen,
        "sarvam_mla": sarvam_mla,
        "step3p5": step3p5,
        "ultrabert": ultrabert,
    }
)
# Keys that the code does not read, and the only values that files may have there.
FIXED = by_model_type(
    {
        "chatglm": {"original_rope": True, "position_encoding_2d": False},
        "cohere2_moe dots3_note_text": {"rope_scaling": {}},
        "deepseek_ocr2_text unlimited_ocr_text": {"qk_rope_head_dim": 0, "qk_nope_head_dim": 0, "use_mla": False},
        "esm": _NO_SETTINGS,
        "glm_moe_dsa": {"indexer_rope_interleave": True},
        "glm5_next_text kimi_linear": {"mla_use_nope": True},
        "lfm2 lfm2_moe": {"use_pos_enc": True},
        "nomic_bert": {"rotary_emb_base": 1_000.0},
        "olmo3": {"rope_theta": 5e5},  # the class reads another for full layers alone, and code before it for all
        "phi3small": {"rope_position_scale": 1.0},
        "qwen": {"pos_emb": "rotary"},
        "roformer gptj codegen": {"rope_theta": 10_000.0, "rotary_value": False, **_NO_SETTINGS},
        "stablelm_epoch": {"rotary_scaling_factor": 1.0},
        "step3p5": {"yarn_only_types": [FULL], "use_rope_layers": []},
    }
)


def rewritten(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config, rewritten for its model_type."""
    draft, name = Draft({**values}), canonical_type(str(values.get("model_type")))
    model = MODELS.get(name, UNNAMED)
    is_usual = model.writes_theta and equal(values.get("rope_theta"), model.theta)
    if is_usual and draft.get_mapping("rope_parameters").look_up("rope_theta"):
        draft.take("rope_theta")
    draft.take_only(**FIXED.get(name, {}))
    if name in REWRITERS:
        REWRITERS[name](draft)
    return draft.values
