"""`rotary_from_config` refuses a config that it cannot read rightly, with an error that names the key or the type.

Rows are a model type, words of the error and some keys of its config.
"""

import re

import pytest

from helpers.plans import read, row
from huggingface.test_reading import FULL, LINEAR, LISTS, SIZES, SLIDING
from posenc_jax.hf._models import FACTS, MODELS
from posenc_jax.hf._refused import REFUSED as TYPES_REFUSED

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2048.0, "original_max_position_embeddings": 512}
REFUSED = [
    # values of the wrong kind
    row("exaone4", "sliding_window_pattern must be a number or letters L and G", sliding_window_pattern="LLS"),
    row("neomme", "full_attention must be a mapping", rope_parameters={FULL: None}),
    row("llama", "each key of rope_scaling must be a string, got int 1", rope_scaling={1: 2.0}),
    row("llama", "each key of per_layer_config.0 must be a string", per_layer_config={"0": {1: 2}}),
    # a null where a default would apply
    row("phi", "partial_rotary_factor must have a value", rope_parameters={"partial_rotary_factor": None}),
    row(
        "laguna",
        "rope_parameters.full_attention.rope_theta must have a value",
        rope_theta=2e4,
        rope_parameters={x: {"rope_theta": None} for x in (FULL, SLIDING)},
    ),
    # keys that are not read
    row("llama", "is per_layer_config.0.head_dim meant?", per_layer_config={"0": {"head_dims": 64}}),
    row("", "is text_config meant?", textConfig={"rope_scaling": {}}),
    row("", "lm = {'rope_scaling': {}} is not read by a config without a model_type", lm={"rope_scaling": {}}),
    row(
        "llama",
        "rope_scaling.facter = 2.0 is not read by rope_type 'linear'",
        rope_scaling={"type": "linear", "facter": 2.0},
    ),
    row("neomme", "rope_parameters.rope_theta = 1.0 is not read", rope_parameters={"rope_theta": 1.0}),
    row(
        "zaya",
        "rope_parameters.rope_type = 'x' is none of the layer_types",
        rope_parameters={"hybrid": {}, "rope_type": "x"},
    ),
    # flags that contradict the code
    row("esm", "position_embedding_type must be one of ['rotary'], got 'absolute'"),
    # model types
    row("my_vl", "text_config is missing", audio_config={}),
    row("llava", "lm_config.model_type is missing", lm_config={}),
    row(
        "",
        "config must hold its text_config within four levels",
        text_config={"text_config": {"text_config": {"text_config": {}}}},
    ),
    row(
        "llava",
        "{'rope_theta': 10000.0} beside the language model's config",
        text_config={"rope_theta": 5e5},
        rope_theta=1e4,
    ),
    row("llava", "{'rope_traditional': 'yes'} beside", text_config={}, rope_traditional="yes"),
    row("bailing_hybrid", "{'linear_silu': True} are those of Ring-2.5 or Ling-2.6", linear_silu=True),
    row("bailing_hybrid", "'BailingMoeV2_5'", architectures=["BailingMoeV2_5"]),
    # the base
    row("molmo", "rope_theta is missing", num_hidden_layers=2, **SIZES),
    row(
        "persimmon",
        "rope_theta is missing: its default is 10000.0 since transformers 5.0",
        transformers_version="5.0.0.dev0",
    ),
    row(
        "qwen3",
        "rope_scaling.rope_theta is missing beside rope_type = 'yarn'",
        rope_scaling={"rope_type": "yarn", "factor": 4.0},
    ),
    row(
        "llama",
        "rope_parameters.rope_theta = 500000.0 contradicts rope_theta",
        rope_theta=1e4,
        rope_parameters={"rope_theta": 5e5},
    ),
    row("apertus", "the class's rope_parameters.rope_theta = 12000000.0 contradicts", rope_theta=2e4),
    row("chatglm", "rope_theta = 10000.0 contradicts 10000 times rope_ratio = ", rope_ratio=50, rope_theta=1e4),
    # the rope type and its settings
    row(
        "llama",
        "rope_scaling.rope_type = 'linear' contradicts rope_scaling.type = 'su'",
        rope_scaling={"type": "su", "rope_type": "linear"},
    ),
    row("modernbert", "rope_scaling.type = 'linear' must be spelled rope_type", rope_scaling={"type": "linear"}),
    row(
        "llama",
        "rope_scaling = {'factor': 2.0} contradicts rope_parameters",
        rope_parameters={"rope_type": "linear", "rope_theta": 1e4},
        rope_scaling={"factor": 2.0},
    ),
    row("nanochat", "rope_scaling.factor is missing", rope_scaling={"type": "linear"}),
    row(
        "llama",
        "linear_scaling: factor must be positive",
        rope_theta=1e4,
        rope_scaling={"rope_type": "linear", "factor": 0},
    ),
    row("llama", "rope_scaling.short_factor is missing", rope_theta=1e4, rope_scaling={"rope_type": "longrope"}),
    row(
        "llama",
        "attention_factor = 1.0 contradicts rope_scaling.short_mscale",
        length=4096,
        original_max_position_embeddings=4096,
        rope_scaling={"type": "longrope", "attention_factor": 1.0, "short_mscale": 1.25} | LISTS,
    ),
    row(
        "phi3",
        "rope_scaling.original_max_position_embeddings = 1 contradicts",
        length=9,
        rope_scaling={"type": "longrope", "original_max_position_embeddings": 1} | LISTS,
    ),
    row(
        "llama",
        "original_max_position_embeddings is missing",
        rope_theta=1e6,
        rope_scaling={"rope_type": "yarn", "factor": 2.0},
    ),
    row(
        "llama",
        "extrapolation_factor = 0.5 contradicts",
        rope_scaling={"type": "yarn", "factor": 8.0, "extrapolation_factor": 0.5},
    ),
    row(
        "",
        "truncate = False, which transformers does not read",
        **SIZES,
        num_hidden_layers=2,
        rope_parameters={FULL: YARN | {"truncate": False}},
    ),
    row(
        "",
        "mscale_all_dim asks for different scales",
        layout="half",
        num_hidden_layers=2,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        layer_types=[FULL, SLIDING],
        rope_parameters={x: YARN | {"mscale_all_dim": m} for x, m in ((FULL, 1.0), (SLIDING, 0.5))},
    ),
    row(
        "deepseek_v3",
        "the scale of the scores by mscale_all_dim must be finite",
        rope_scaling=YARN | {"mscale_all_dim": 1e200},
    ),
    row(
        "llama",
        "max_position_embeddings is missing",
        max_position_embeddings=None,
        rope_scaling={"type": "dynamic", "factor": 2.0},
    ),
    row(
        "llama",
        "rope_parameters.max_position_embeddings = 4096 contradicts",
        rope_parameters={"max_position_embeddings": 4096},
        max_position_embeddings=8192,
    ),
    row(
        "hunyuan_v1_dense",
        "rope_scaling.factor = 2.0 contradicts the factor",
        rope_scaling={"type": "dynamic", "alpha": 1000.0, "factor": 2.0},
    ),
    row("qwen", "seq_length must be at least 2", **SIZES, length=5000, num_hidden_layers=4, seq_length=1),
    row(
        "",
        "variant must be one of",
        head_dim=64,
        num_hidden_layers=1,
        query_scale={"coefficient": 0.2, "period": 16, "offset": 1, "variant": "exp"},
    ),
    # coordinates
    row("llama", "rope_parameters.mrope_section is missing", rope_parameters={"rope_type": "mrope"}),
    row("qwen2_5_vl", "multi_section: sections must sum", head_dim=128, rope_scaling={"mrope_section": [16, 24, 20]}),
    row(
        "qwen2_5_vl", "rope_scaling.mrope_interleaved = True contradicts that", rope_scaling={"mrope_interleaved": True}
    ),
    row(
        "ernie4_5_vl_moe_text",
        "rope_scaling.mrope_section must be height, width and time",
        rope_scaling={"mrope_section": [4, 4]},
        **SIZES,
    ),
    # the layers and their types
    row("", "num_hidden_layers or n_layer or n_layers or num_layers or decoder_num_hidden_layers is missing"),
    row("longcat_flash", "num_hidden_layers must be 6", num_layers=3, num_hidden_layers=3),
    row(
        "olmo3",
        "the layer types ['full'] of layer_types are not known",
        num_hidden_layers=2,
        layer_types=["full", FULL],
    ),
    row("", "layer_types is missing", num_hidden_layers=2, rope_parameters={FULL: {}, SLIDING: {}}),
    row("llama", "rope_parameters must hold one set of settings", rope_parameters={FULL: {}}),
    row("gemma3_text", "rope_parameters must hold settings for each", rope_parameters={"factor": 8.0}),
    row("gemma3_text", "rope_parameters.sliding_attention must be a mapping", rope_parameters={SLIDING: None}),
    row("zaya", "rope_parameters.hybrid is missing", rope_parameters={FULL: {}}),
    row(
        "",
        "rope_theta = 100000.0 contradicts rope_parameters",
        num_hidden_layers=2,
        rope_theta=1e5,
        rope_parameters={FULL: None},
    ),
    row(
        "mimo_v2_flash",
        "hybrid_layer_pattern = ['full_attention'] contradicts layer_types",
        num_hidden_layers=1,
        hybrid_layer_pattern=[0],
        layer_types=[SLIDING],
    ),
    row("deepseek_v4", "compress_ratios must hold [0, 4, 128]", num_hidden_layers=2, compress_ratios=[0, 8]),
    row("nemotron-nas", "block_configs must have 4 items", block_configs=[{}] * 3, num_hidden_layers=4),
    row("bamba", "attn_layer_indices must be of the 2 layers", num_hidden_layers=2, attn_layer_indices=[7]),
    row("smollm3", "no_rope_layers must hold 6 times 0 or 1", num_hidden_layers=6, no_rope_layers=[1, 0]),
    row("granite_swa", "layer_rope_theta must hold 2 numbers", num_hidden_layers=2, layer_rope_theta=[1.0]),
    row(
        "llama",
        "per_layer_config must map layers below 2 to mappings, got '2'",
        num_hidden_layers=2,
        per_layer_config={"2": {"head_dim": 8}},
    ),
    row(
        "voxtral_realtime_encoder",
        "encoder_layers = 3 contradicts num_hidden_layers = 1",
        encoder_layers=3,
        num_hidden_layers=1,
    ),
    row(
        "deepseek_v4", "the layer type 'full_attention' is not known", num_hidden_layers=2, layer_types=[SLIDING, FULL]
    ),
    row(
        "deepseek_v4",
        "rope_parameters.compress.partial_rotary_factor is missing",
        rope_parameters={"compress": {"rope_theta": 1e5}},
    ),
    row("deepseek_v4", "rope_scaling.rope_theta = 5000000.0 contradicts rope_theta", rope_scaling={"rope_theta": 5e6}),
    # the widths
    row("", 'layout must be given, "half" or "interleaved"', head_dim=8, num_hidden_layers=1),
    row("", "hidden_size or n_embd or d_model is missing", num_hidden_layers=2),
    row("", "head_dim is missing, and hidden_size = 64 is", num_hidden_layers=2, hidden_size=64, num_attention_heads=3),
    row("deepseek_v3", "qk_nope_head_dim + qk_rope_head_dim must be at most 2²⁰", qk_nope_head_dim=2**20),
    row("deepseek_v3", "qk_rope_head_dim = 64 contradicts rotary_dim = 32", rotary_dim=32),
    row("deepseek_v4", "head_dim must be more than the 64 features that rotate", head_dim=61, qk_rope_head_dim=64),
    row("minimax_m3_vl_text", "partial_rotary_factor is missing", rotary_dim=64),
    row("mistral4", "rope_parameters.partial_rotary_factor = 0.5 contradicts qk_rope", qk_nope_head_dim=128),
    row("llama", "the width of model_type 'llama' = 64 contradicts rotary_dim = 32", head_dim=64, rotary_dim=32),
    row("phi", "partial_rotary_factor (of 30) must rotate an even number", head_dim=30),
]


@pytest.mark.parametrize(
    ("config", "words"), REFUSED, ids=[f"{i} {x['model_type']}" for i, (x, _) in enumerate(REFUSED)]
)
def test_a_config_is_refused_with_these_words(config, words):
    with pytest.raises((ValueError, TypeError), match=f"^rotary_from_config: .*{re.escape(words)}"):
        read(config)


# By a regular expression for the constraint: model types, and keys with refused values.
BY_KEY = {
    "must be at (least|most) ": {
        "axk2": {"index_head_dim": 16},
        "llama": {"length": 0, "num_hidden_layers": 2**16 + 1},
        "llama4_text": {"floor_scale": 1},
    },
    "must be a (mapping|sequence|string)": {
        "afmoe": {"layer_types": 3},
        "llama": {"rope_scaling": "linear", "position_embedding_type": 5},
    },
    "must be an integer": {"exaone4": {"sliding_window_pattern": 4.0}},
    "must be true or false": {"gptj": {"rotary": "false"}},
    "must be one of": {
        "granitemoehybrid": {"position_embedding_type": "rotary"},
        "recurrent_gemma": {"block_types": ["1"]},
    },
    "must (name|be of) the 3. layers": {
        "falcon_h1": {"layer_types": [FULL]},
        "molmo2_text": {"rope_scaling_layers": ["0"]},
    },
    # a null where a default would apply
    "must have a value or be left out": {
        "axk1": {"rope_interleave": None},
        "llama": {"rope_theta": None},
        "qwen3": {"head_dim": None},
    },
    "must not be null": {"cohere2_moe": {"sliding_window": None}},
    # keys that no code reads
    "is not read by model_type": {"llama": {"my_rope_key": 1, "rope_on_values": True}},
    "is not .* is rope_theta meant": {"llama": {"ropeTheta": 1}},
    "is not .* is num_hidden_layers meant": {"llama": {"num_hidden_layerz": 1}},
    # keys that ask for something else than the code of a model type does
    "contradicts (the code|that) of model_type": {
        "jamba": {"position_embedding_type": "rope"},
        "llama": {"alibi": True, "use_rope": False, "position_embedding_type": "alibi", "rope_interleave": True},
        "qwen2": {"use_mrope": True},
        "qwen2_vl_text": {"rotary_emb_interleaved": True},
    },
    "divides the positions": {"chatglm": {"rope_ratio": 16}},
    # keys that the code of a model type does not read, with another value than the fixed one of that code
    "must be .* in model_type": {
        "bailing_hybrid": {"rotary_dim": 66},
        "chatglm": {"original_rope": False, "position_encoding_2d": True},
        "cohere2_moe dots3_note_text": {"rope_scaling": LINEAR},
        "deepseek_ocr2_text unlimited_ocr_text": {"qk_nope_head_dim": 2, "qk_rope_head_dim": 2, "use_mla": True},
        "esm": {"rope_parameters": LINEAR},
        "glm_moe_dsa": {"indexer_rope_interleave": False},
        "glm5_next_text kimi_linear": {"mla_use_nope": False},
        "lfm2 lfm2_moe": {"use_pos_enc": False},
        "longcat_flash": {"head_dim": 128},
        "mimo_v2_flash": {"swa_head_dim": 128},
        "nomic_bert": {"rotary_emb_base": 1e4},
        "olmo3": {"rope_theta": 12345.0},
        "phi3small": {"rope_position_scale": 2.0},
        "qwen": {"pos_emb": "alibi"},
        "codegen gptj roformer": {"rope_theta": 5e5},
        "roformer": {"rotary_value": True},
        "stablelm_epoch": {"rotary_scaling_factor": 2.0},
        "step3p5": {
            "use_rope_layers": [True],
            "yarn_only_types": [],
            "partial_rotary_factor": 0.5,
            "rope_parameters": LINEAR,
        },
        "unlimited_ocr_text": {"head_dim": 66},
    },
}


@pytest.mark.parametrize(
    ("constraint", "model_type", "key", "value"),
    [
        (constraint, name, *item)
        for constraint, by_type in BY_KEY.items()
        for names, keys in by_type.items()
        for name in names.split()
        for item in keys.items()
    ],
)
def test_a_value_is_refused_with_its_key_and_the_constraint(constraint, model_type, key, value):
    with pytest.raises((ValueError, TypeError), match=f"^rotary_from_config: .*{key}( = .*)? {constraint}"):
        read({"model_type": model_type, key: value})


def test_types_without_rotary_embedding_are_refused_by_name():
    """Among them those whose class, by facts.json, has no rotary code."""
    assert {"bert", "t5", "vit", "whisper"} <= {*FACTS["without_rope"]} - MODELS.keys()
    for name in TYPES_REFUSED.keys() - MODELS.keys():
        with pytest.raises(ValueError, match=f"^rotary_from_config: model_type '{name}' is not read: "):
            read({"model_type": name})
