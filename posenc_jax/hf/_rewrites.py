"""What one type or family alone does or spells, rewritten in the keys that `plan_to_config` writes.

A rewriter changes some keys of a config; the others are read as in every config. Its docstring says what is special:
the site's table of model types shows it. Those of the keys about layers (how many there are, their types, and which of
them rotate) stand here, those of the keys for bases, scalings and widths in `_rewrite_settings.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc_jax._jax import checks
from posenc_jax._jax.errors import require
from posenc_jax.hf import _rewrite_settings as settings
from posenc_jax.hf._layers import COUNTS
from posenc_jax.hf._models import MODELS, UNNAMED, Pattern, by_model_type, canonical_type
from posenc_jax.hf._rewriting import FULL, LINEAR, SLIDING, Draft
from posenc_jax.hf._values import Values, equal, parse_mapping


def exaone4(config: Draft) -> None:
    """A sliding_window_pattern may be a string that repeats, such as LLLG."""
    letters = config.values.get("sliding_window_pattern")
    if isinstance(letters, str):
        fits = letters and set(letters) <= {"L", "G"}
        require(fits, "sliding_window_pattern must be a number or letters L and G, got {!r:.60}", letters)
        config.take("sliding_window_pattern")
        config.put_usual_types(lambda i: SLIDING if letters[i % len(letters)] == "L" else FULL)


def dory(config: Draft) -> None:
    """layer_types may have an "mlp" after each layer, which num_hidden_layers then counts too."""
    types = config.get_list("layer_types") or ()
    if "mlp" in types:
        config["num_hidden_layers"], config["layer_types"] = config.num_layers // 2, types[::2]


def lara_mini(config: Draft) -> None:
    """Layer i is a full one where i % 5 is 3, a sliding one where it is 1 or 4; the others have no attention."""
    config.put_usual_types(lambda i: (LINEAR, SLIDING, LINEAR, FULL, SLIDING)[i % 5])


def nemotron_h(config: Draft) -> None:
    """hybrid_override_pattern or layers_block_type has an item for each layer."""
    blocks = config.get_list("layers_block_type", "layer_types") or config.get_string("hybrid_override_pattern")
    if blocks is not None:
        for name in COUNTS:
            config.take(name)
        config["num_hidden_layers"] = len(blocks)


def nemotron_nas(config: Draft) -> None:
    """block_configs says which layers have no attention."""
    types = []
    for block in config.take_layers("block_configs"):
        attention = Values(parse_mapping("block_configs", block), "block_configs").get_mapping("attention")
        types.append(LINEAR if attention.get_flag("no_op") or attention.get_flag("replace_with_linear") else FULL)
    config.put_types("block_configs", types)


def minimax(config: Draft) -> None:
    """attn_type_list: 1 for a layer with softmax attention, 0 for one with linear attention."""
    config.put_numbered_types("attn_type_list", {0: LINEAR, 1: FULL})


def muse(config: Draft) -> None:
    """layer_rope_theta is 0 for layers without positions; by default they are every fourth, counted from the last."""
    bases = config.take_layers("layer_rope_theta") or [(1 + i) % 4 for i in range(-config.num_layers, 0)]
    config["no_rope_layers"] = [checks.number("layer_rope_theta", base) != 0 for base in bases]


def cohere2_moe(config: Draft) -> None:
    """Sliding layers rotate, and so do dense layers where prefix_dense_sliding_window_pattern is 1."""
    first = checks.integer("first_k_dense_replace", config.get("first_k_dense_replace", default=0), 0)
    prefix = config.get_integer("prefix_dense_sliding_window_pattern", default=1)
    period = config.get_integer("sliding_window_pattern", default=4)
    usual = [*Pattern(prefix).types(first), *Pattern(period).types(config.num_layers)]
    types = config.put_usual_types(lambda i: usual[i])
    require(not config.is_null("sliding_window"), "sliding_window must not be null in model_type 'cohere2_moe'")
    blocks = config.take_layers("mlp_layer_types") or ["dense"] * first + ["sparse"] * len(types)
    config["no_rope_layers"] = [x == SLIDING or prefix == 1 and blocks[i] == "dense" for i, x in enumerate(types)]


def gemma4(config: Draft) -> None:
    """The last layer has full attention, whatever layer_types says."""
    if types := config.take_layers("layer_types"):
        config["layer_types"] = [*types[:-1], FULL]


def zamba2(config: Draft) -> None:
    """use_mem_rope says whether attention, whose heads are twice as wide as usual, has positions."""
    usual = 2 * config.get_integer("hidden_size") // config.get_integer("num_attention_heads")
    config["attention_head_dim"] = config.get("attention_head_dim", default=usual)
    config.take("kv_channels")  # half of it
    if config.get_flag("use_long_context"):
        config["max_position_embeddings"] = 16384
    config["no_rope_layers"] = [config.get_flag("use_mem_rope")] * config.num_layers


def latent_without_positions(config: Draft) -> None:
    """Latent attention never rotates; the width of its heads is qk_nope_head_dim + qk_rope_head_dim, not head_dim."""
    name = "qk_rope_head_dim"
    config["head_dim"] = config.get_integer("qk_nope_head_dim") + checks.integer(name, config.get_required(name), 0)


def longcat(config: Draft) -> None:
    """num_layers counts pairs of attentions; head_dim is the rotated width, qk_rope_head_dim."""
    if config.look_up("num_layers"):
        count = 2 * config.get_integer("num_layers")
        config.take("num_layers")
        config.take_only(num_hidden_layers=count)
        config["num_hidden_layers"] = count
    config.take_only(head_dim=config.get("qk_rope_head_dim"))


def hrm(config: Draft) -> None:
    """Without num_layers_per_stack, num_hidden_layers counts the layers of one stack, which runs several times."""
    runs = config.get_integer("H_cycles", default=2) * (config.get_integer("L_cycles", default=3) + 1)
    count = runs * config.get_integer("num_layers_per_stack", default=config.num_layers)
    if config.look_up("num_layers_per_stack"):
        config.take_only(num_hidden_layers=count)
    config["num_hidden_layers"] = count


def granitemoehybrid(config: Draft) -> None:
    """Layers have positions only if position_embedding_type is "rope"."""
    name = "position_embedding_type"
    config[name] = checks.one_of(name, config.get(name) or "nope", ("nope", "rope"))


def baichuan(config: Draft) -> None:
    """Only the smaller models have a rotary embedding."""
    hidden = config.get_integer("hidden_size")
    require(hidden == 4096, "hidden_size must be 4096, got {}: the larger models of this type have ALiBi", hidden)


def esm(config: Draft) -> None:
    """position_embedding_type must be "rotary"; the code reads no scaling."""
    checks.one_of("position_embedding_type", config.get("position_embedding_type"), ["rotary"])


REWRITERS = settings.REWRITERS | by_model_type(
    {
        "baichuan": baichuan,
        "cohere2_moe": cohere2_moe,
        "dory": dory,
        "embedding_gemma2_text gemma4_text gemma4_unified_text diffusion_gemma_text": gemma4,
        "esm": esm,
        "exaone4 exaone4_5_text exaone_moe": exaone4,
        "glm5_next_text kimi_linear": latent_without_positions,
        "granitemoehybrid": granitemoehybrid,
        "hrm_text": hrm,
        "lara_mini": lara_mini,
        "longcat_flash": longcat,
        "minimax minimax_m1 minimax_m2 minimax_text_01": minimax,
        "muse_glimmer_text muse_spark_text": muse,
        "nemotron-nas nemotron_nas deci": nemotron_nas,
        "nemotron_h": nemotron_h,
        "zamba2": zamba2,
    }
)
_NO_SCALING = {"rope_scaling": {}, "rope_parameters": {}}
# Keys that the code does not read, and the only values that files may have there.
FIXED = by_model_type(
    {
        "chatglm": {"original_rope": True, "position_encoding_2d": False},
        "cohere2_moe dots3_note_text": {"rope_scaling": {}},
        "deepseek_ocr2_text unlimited_ocr_text": {"qk_rope_head_dim": 0, "qk_nope_head_dim": 0, "use_mla": False},
        "esm": _NO_SCALING,
        "glm_moe_dsa": {"indexer_rope_interleave": True},
        "glm5_next_text kimi_linear": {"mla_use_nope": True},
        "lfm2 lfm2_moe": {"use_pos_enc": True},
        "phi3small": {"rope_position_scale": 1.0},
        "qwen": {"pos_emb": "rotary"},
        "roformer gptj codegen": {"rope_theta": 10_000.0, "rotary_value": False, **_NO_SCALING},
        "stablelm_epoch": {"rotary_scaling_factor": 1.0},
        "step3p5": {"yarn_only_types": [FULL], "use_rope_layers": []},
    }
)


def rewritten(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config, rewritten for its model_type."""
    draft, name = Draft({**values}), canonical_type(str(values.get("model_type"))) or ""
    model = MODELS.get(name, UNNAMED)
    is_usual = model.writes_theta and equal(values.get("rope_theta"), model.theta)
    if is_usual and draft.get_mapping("rope_parameters").look_up("rope_theta"):
        draft.take("rope_theta")
    draft.take_only(**FIXED.get(name, {}))
    if name in REWRITERS:
        REWRITERS[name](draft)
    return draft.values
