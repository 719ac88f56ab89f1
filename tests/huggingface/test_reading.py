"""`rotary_from_config` reads a config as this plan, and a config written from the plan gives the same plan.

Each row of `READ` is a model type, its plan in words (see `in_words`) and some keys of its config; a key left out has
the value of the class. `length` and `layout` are arguments. Values computed by transformers are in test_recorded.py.
"""

import pytest

from helpers.plans import WithToDict, in_runs, read, row
from posenc_jax.hf import plan_to_config, rotary_from_config
from posenc_jax.hf._models import FACTS, MODELS

FULL, SLIDING = "full_attention", "sliding_attention"
SIZES = {"hidden_size": 64, "num_attention_heads": 4}
LINEAR = {"rope_type": "linear", "factor": 2.0}
LISTS = {"short_factor": [1.5] * 48, "long_factor": [2.5] * 48}
# Settings that are left out of the words where they have these values.
USUAL = {"rope_type": "default", "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True, "attention_factor": 1.0}


def in_words(plan):
    """The layers, the layout unless it is "half", the part unless it is "first", and the indexer.

    Each run of equal layers is its length, rotated features of all features in a head, the base and unusual settings:
    "2 x 64/128 10000 factor=2.0 rope_type=linear" or, without RoPE, "2 x -/128".
    """
    words = [in_runs(map(layer_in_words, plan.layers))]
    words += [plan.layout] * (plan.layout != "half") + [plan.part] * (plan.part != "first")
    words += ["values rotate"] * plan.rotates_values
    return "; ".join(words + ([f"indexer: {in_words(plan.indexer)}"] if plan.indexer else []))


def layer_in_words(layer):
    """One layer, such as "64/128 10000 factor=2.0 rope_type=linear"."""
    settings = dict(layer.settings)
    if settings.get("rope_type") != "proportional":
        settings.pop("partial_rotary_factor", None)
    words = [f"{layer.rotary_dim or '-'}/{layer.head_dim}"]
    words += [f"{settings.pop('rope_theta'):g}"] if settings else []
    words += [f"{name}={in_short(value)}" for name, value in settings.items() if USUAL.get(name) != value]
    return " ".join(words + [str(layer.query_scale)] * bool(layer.query_scale))


def in_short(value):
    """A setting: the first item of a long list, and floats with four decimals."""
    if isinstance(value, tuple) and len(value) > 3:
        return f"{value[0]}..."
    return round(value, 4) if isinstance(value, float) else value


YARN_IN_WORDS = "factor=2048.0 original_max_position_embeddings=512 rope_type=yarn"
YARN = {"rope_type": "yarn", "factor": 2048.0, "original_max_position_embeddings": 512}
V4_IN_WORDS = "interleaved; last; values rotate; indexer: "
READ = [
    # without a model_type
    row(
        "",
        "1 x 8/8 10, 1 x -/8; interleaved",
        head_dim=8,
        num_hidden_layers=2,
        rope_interleave=True,
        layer_types=["a", "b"],
        rope_parameters={"a": {"rope_theta": 10.0}, "b": None},
    ),
    row(
        "",
        "1 x 64/64 10000, 1 x -/64 QueryScale(coefficient=0.2, period=16, offset=1, variant='log')",
        layout="half",
        head_dim=64,
        num_hidden_layers=2,
        no_rope_layers=[1, 0],
        per_layer_config={"1": {"query_scale": {"coefficient": 0.2, "period": 16, "offset": 1, "variant": "log"}}},
    ),
    # the language model of a composite
    row(
        "",
        "2 x 64/64 100000",
        text_config={"head_dim": 64, "num_hidden_layers": 2, "rope_interleave": False, "rope_theta": 1e5},
    ),
    row("llava", "32 x 128/128 500000", text_config={"rope_theta": 5e5}, rope_theta=5e5),
    row("step3p7", "2 x 128/128 10000", text_config={"model_type": "ignored", "num_hidden_layers": 2}),
    row("voxtral", "2 x 128/128 1e+08", text_config={"num_hidden_layers": 2}),
    row("dia", "2 x 128/128 10000", decoder_config={"num_hidden_layers": 2}),
    # keys that change nothing, and other names of keys
    row(
        "llama",
        "32 x 128/128 10000",
        use_rope=True,
        alibi=False,
        nope=False,
        rope_traditional=False,
        layer_types=5,
        my_key=1,
        partial_rotary_factor=None,
        _rope=1,
        moe_layer_freq=2,
        max_2d_position_embeddings=8,
    ),
    row("cohere", "40 x 128/128 10000; interleaved", transformers_version="4.9", position_embedding_type="rope_gptj"),
    row("bailing_moe", "2 x 8/16 10000", **SIZES, num_hidden_layers=2, rope_theta=1e4, rotary_dim=8),
    row("gptj", "2 x 32/256 10000; interleaved", n_layer=2, rotary_dim=32, rotary=True),
    row("jetmoe", "12 x 64/64 10000", kv_channels=64),
    row("lfm2", "1 x -/80, 1 x 80/80 1e+06, 30 x -/80", full_attn_idxs=[1], theta=1e6),
    row("nemotron", "32 x 64/128 10000", rope_percent=0.5),
    row("openelm", "2 x 16/16 500000", num_transformer_layers=2, head_dim=16, rope_freq_constant=5e5),
    # a share of 44 features that reads back as 30: 30 / 44 · 44 < 30 in float64
    row("phi-msft", "2 x 30/44 10000", n_layer=2, n_embd=1408, n_head=32, rotary_dim=30, flash_rotary=True),
    row("phi3small", "2 x 16/16 500000", num_hidden_layers=2, head_dim=16, rope_embedding_base=5e5),
    row("stablelm_epoch", "2 x 8/16 10000", **SIZES, num_hidden_layers=2, rope_pct=0.5),
    # defaults that differ between releases
    row("exaone", "2 x 128/128 10000", num_layers=2, transformers_version="5.23.1"),
    row("exaone", "2 x 128/128 500000", num_layers=2, transformers_version="v5.24"),
    row("falcon_h1", "32 x 128/128 100000", transformers_version="4.9"),
    row("persimmon", "36 x 32/64 25000", transformers_version="4.9"),
    row("modernbert-decoder", "22 x 64/64 160000", transformers_version="4.57.0"),
    row("modernbert-decoder", "1 x 64/64 160000, 1 x 64/64 10000", num_hidden_layers=2, transformers_version="5.0.0"),
    row(
        "qwen3_vl_text",
        "32 x 128/128 5e+06 mrope_interleaved=True mrope_section=(24, 20, 20)",
        transformers_version="4.57",
    ),
    # scalings
    row(
        "llama",
        "32 x 128/128 10000 factor=2.0 rope_type=linear",
        rope_scaling={"type": "linear", "factor": 2.0},
        rope_parameters=LINEAR | {"rope_theta": 1e4},
    ),
    row(
        "llama",
        "32 x 128/128 500000 attention_factor=1.0693 factor=2.0 original_max_position_embeddings=1024 rope_type=yarn",
        rope_theta=5e5,
        original_max_position_embeddings=1024,
        rope_scaling={"type": "yarn", "factor": 2.0, "finetuned": True, "attn_factor": 1.0, "apply_yarn_scaling": True},
    ),
    row(
        "phi3",
        "32 x 96/96 10000 attention_factor=1.5 factor=32.0 long_factor=2.5... original_max_position_embeddings=4096 "
        "rope_type=longrope short_factor=1.5...",
        length=4097,
        max_position_embeddings=131072,
        rope_scaling={"type": "su", "short_mscale": 1.25, "long_mscale": 1.5} | LISTS,
    ),
    row(
        "sarvam_mla",
        "32 x 64/192 10000 attention_factor=1.0693 factor=2.0 original_max_position_embeddings=4096 rope_type=yarn; "
        "interleaved; last",
        head_dim=5,
        qk_head_dim=192,
        rope_theta=1e4,
        rope_scaling={"type": "deepseek_yarn", "factor": 2.0, "original_max_position_embeddings": 4096},
    ),
    row(
        "hunyuan",
        "1 x 32/32 10000 alpha=1000.0 rope_type=dynamic",
        **SIZES,
        num_hidden_layers=1,
        attention_head_dim=32,
        rope_scaling={"type": "dynamic", "alpha": 1000.0, "factor": 1.0},
    ),
    row(
        "internlm",
        "1 x 16/16 500000 factor=2.0 max_position_embeddings=64 rope_type=dynamic",
        **SIZES,
        length=128,
        num_hidden_layers=1,
        max_position_embeddings=64,
        rotary={"base": 5e5, "type": "dynamic", "scaling_factor": 2.0},
    ),
    row(
        "qwen",
        "1 x 16/16 10000 dynamic_steps=True max_position_embeddings=2048 rope_type=dynamic",
        **SIZES,
        length=4096,
        num_hidden_layers=1,
        seq_length=2048,
        use_logn_attn=False,
    ),
    row(
        "chatglm",
        "2 x 8/32 500000; interleaved",
        num_layers=2,
        kv_channels=32,
        hidden_size=128,
        num_attention_heads=4,
        rope_ratio=50,
        original_rope=True,
        rotary_percent=0.25,
    ),
    row("dbrx", "24 x 128/128 500000", attn_config={"rope_theta": 5e5}),
    row("nanochat", "12 x 128/128 10000 rope_backward=True"),
    # positions of several coordinates
    row(
        "ernie4_5_vl_moe_text",
        "28 x 16/16 500000 mrope_alternating=True mrope_section=(3, 3, 2); interleaved",
        **SIZES,
        rope_scaling={"type": "default", "mrope_section": [3, 3, 2]},
    ),
    row(
        "neomme",
        "1 x 32/32 500 mrope_interleaved=True mrope_section=(8, 8), "
        "1 x 16/32 500 mrope_interleaved=True mrope_section=(4, 4)",
        num_hidden_layers=2,
        head_dim=32,
        rope_theta=500.0,
        rope_parameters={FULL: {"partial_rotary_factor": 0.5}},
    ),
    # layers without positions
    row("bamba", "2 x -/128, 1 x 64/128 10000", num_hidden_layers=3, attn_layer_indices=[2], attn_rotary_emb=64),
    row(
        "beam",
        "5 x 128/128 10000, 1 x -/128 QueryScale(coefficient=0.1, period=2048, offset=1, variant='power')",
        num_hidden_layers=6,
    ),
    row(
        "cohere2_moe",
        "1 x 128/128 10000, 1 x -/128, 1 x 128/128 10000, 1 x -/128; interleaved",
        num_hidden_layers=4,
        layer_types=[FULL] * 4,
        mlp_layer_types=["dense", "sparse", "dense", "sparse"],
    ),
    row(
        "cohere2_moe",
        "1 x 128/128 10000, 1 x -/128, 1 x 128/128 10000, 1 x -/128; interleaved",
        num_hidden_layers=4,
        first_k_dense_replace=2,
        prefix_dense_sliding_window_pattern=2,
        sliding_window_pattern=2,
    ),
    row("exaone4", "32 x 128/128 10000", sliding_window=None),
    row(
        "exaone4_5",
        "1 x 16/16 10000, 1 x -/16, 1 x 16/16 10000, 1 x -/16",
        **SIZES,
        num_hidden_layers=4,
        sliding_window_pattern="LG",
    ),
    row(
        "granite_swa",
        "1 x 64/64 10000, 1 x -/64, 1 x 64/64 20000",
        head_dim=64,
        num_hidden_layers=3,
        layer_rope_theta=[1e4, 0, 2e4],
    ),
    row("granitemoehybrid", "2 x -/128", num_hidden_layers=2, layer_types=["mamba", "attention"]),
    row("kolibri1", "2 x 128/128 10000", num_hidden_layers=2, sliding_window=None, layer_types=[SLIDING, FULL]),
    row(
        "llama4_text",
        "1 x 128/128 500000, 1 x -/128 QueryScale(coefficient=0.1, period=8192, offset=1, variant='steps'); "
        "interleaved",
        num_hidden_layers=2,
        nope_layer_interval=2,
    ),
    row(
        "llama4_text", "3 x 128/128 500000, 1 x -/128; interleaved", num_hidden_layers=4, attn_temperature_tuning=False
    ),
    row("mllama_text_model", "3 x 128/128 500000, 1 x -/128, 4 x 128/128 500000", num_hidden_layers=8),
    row(
        "muse_glimmer_text",
        "1 x 16/16 500000, 1 x -/16, 1 x 16/16 500000, 1 x -/16, 2 x 16/16 500000",
        head_dim=16,
        num_hidden_layers=6,
        rope_theta=5e5,
        layer_rope_theta=[1, 0, 7, 0, 1, 1],
    ),
    row(
        "nemotron-nas",
        "1 x 16/16 500000, 2 x -/16",
        **SIZES,
        num_hidden_layers=3,
        rope_theta=5e5,
        block_configs=[{"attention": {x: True}} for x in ("other", "no_op", "replace_with_linear")],
    ),
    row("nemotron_h", "3 x -/32", hybrid_override_pattern="M*-", attention_head_dim=32),
    row("olmo_hybrid", "32 x -/128", rope_parameters={"rope_theta": None}),
    row(
        "recurrent_gemma",
        "1 x -/256, 1 x 128/256 10000, 1 x -/256, 1 x 128/256 10000",
        num_hidden_layers=4,
        _block_types=["recurrent", "attention"],
    ),
    row(
        "smollm3", "1 x -/128, 1 x 128/128 2e+06", num_hidden_layers=2, no_rope_layers=[0, 1], no_rope_layer_interval=3
    ),
    row("zamba2", "4 x -/64", num_hidden_layers=4, layers_block_type=["hybrid"] * 4, attention_head_dim=64),
    row(
        "zamba2",
        "2 x 32/32 10000 factor=2.0 max_position_embeddings=16384 rope_type=dynamic",
        **SIZES,
        num_hidden_layers=2,
        layers_block_type=["hybrid"] * 2,
        length=32768,
        rope_scaling={"type": "dynamic", "factor": 2.0},
        use_mem_rope=True,
        use_long_context=True,
    ),
    # how many layers
    row("dory", "1 x 256/256 10000, 1 x 256/256 1e+07", num_hidden_layers=4, layer_types=[SLIDING, "mlp", FULL, "mlp"]),
    row("hrm_text", "4 x 128/128 10000", num_hidden_layers=2, H_cycles=1, L_cycles=1),
    # a spectrum for each layer type, or for each layer
    row(
        "cohere_compass_text",
        "1 x -/128, 1 x 128/128 50000 mrope_interleaved=True mrope_section=(24, 20, 20)",
        num_hidden_layers=2,
        head_dim=128,
        layer_types=[FULL, SLIDING],
        rope_parameters={FULL: None, SLIDING: {"rope_theta": 5e4}, "rope_theta": 1e4, "rope_type": "default"},
    ),
    row(
        "gemma4_text",
        "1 x 256/256 10000, 1 x 512/512 1e+06 factor=1.0 partial_rotary_factor=0.25 rope_type=proportional",
        num_hidden_layers=2,
        layer_types=[SLIDING, SLIDING],
    ),
    row("llama", "1 x 128/128 10000, 1 x 64/64 10000", num_hidden_layers=2, per_layer_config={"1": {"head_dim": 64}}),
    row(
        "mimo_v2",
        "1 x 192/192 5e+06 factor=2.0 rope_type=linear, 1 x 64/192 10000",
        num_hidden_layers=2,
        hybrid_layer_pattern=[0, 1],
        rope_scaling=LINEAR,
    ),
    row(
        "mimo_v2",
        "1 x 96/192 5e+06, 2 x 96/192 20000",
        num_hidden_layers=3,
        hybrid_layer_pattern=[0, 1, 1],
        rope_theta=5e6,
        swa_rope_theta=2e4,
        partial_rotary_factor=0.5,
        swa_head_dim=192,
    ),
    row(
        "modernbert",
        "1 x 64/64 200000 factor=2.0 rope_type=linear, 1 x 64/64 30000 factor=2.0 rope_type=linear",
        num_hidden_layers=2,
        global_rope_theta=2e5,
        local_rope_theta=3e4,
        rope_scaling=LINEAR,
        position_embedding_type="absolute",
    ),
    row(
        "molmo2_text",
        "1 x 128/128 1e+06 factor=2.0 rope_type=linear, 35 x 128/128 1e+06",
        rope_scaling_layers=[0],
        rope_parameters=LINEAR | {"rope_theta": 1e6},
    ),
    row(
        "step3p5",
        "1 x 8/16 7, 1 x 4/16 9",
        num_hidden_layers=2,
        head_dim=16,
        partial_rotary_factor=0.5,
        layer_types=[FULL, SLIDING],
        rope_parameters={FULL: {"rope_theta": 7.0}, SLIDING: {"rope_theta": 9.0, "partial_rotary_factor": 0.25}},
    ),
    row(
        "step3p5",
        "1 x 8/16 5e+06 factor=2.0 rope_type=linear, 1 x 16/16 10000",
        num_hidden_layers=2,
        num_nextn_predict_layers=1,
        head_dim=16,
        layer_types=[FULL, SLIDING, SLIDING],
        rope_theta=[5e6, 1e4, 1e4],
        partial_rotary_factors=[0.5, 1.0, 1.0],
        partial_rotary_factor=1.0,  # which its code overwrites
        yarn_only_types=[FULL],
        rope_scaling=LINEAR,
    ),
    row(
        "ultrabert",
        "1 x 16/16 10000, 1 x 16/16 2e+06, 1 x 16/16 10000",
        **SIZES,
        num_hidden_layers=3,
        attention_windows=[8, 0, 8],
        rope_theta=[1e4, 2e6, 1e4],
    ),
    # latent attention, indexers, values that rotate
    row(
        "AXK1",
        "2 x 64/192 10000; last",
        num_hidden_layers=2,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        rope_interleave=False,
    ),
    row(
        "bailing_hybrid",
        "5 x -/192, 1 x 64/192 6e+06; interleaved; last",
        architectures=["BailingMoeV3ForCausalLM"],
        linear_silu=True,
        num_hidden_layers=6,
        rotary_dim=64,
        head_dim=128,
        partial_rotary_factor=0.5,
    ),
    row(
        "bailing_hybrid",
        "2 x -/192, 1 x 64/192 6e+06; interleaved; last",
        no_kda_lora=True,
        group_norm_size=1,
        num_hidden_layers=3,
        layer_group_size=3,
    ),
    row(
        "bailing_hybrid",
        "2 x -/192; interleaved",
        num_hidden_layers=2,
        rope_theta=6e6,
        rope_parameters={"rope_theta": 5e6},
    ),
    row("deepseek_v2", "32 x 16/16 10000", **SIZES, use_mla=False, qk_nope_head_dim=0, qk_rope_head_dim=0),
    row(
        "deepseek_v32",
        "61 x 64/192 10000; interleaved; last; indexer: 61 x 64/128 10000; interleaved",
        indexer_rope_interleave=True,
    ),
    row("deepseek_v4", f"43 x 64/512 160000; {V4_IN_WORDS}43 x 64/128 160000; interleaved; last"),
    row(
        "deepseek_v4",
        f"1 x 64/512 10000, 1 x 64/512 160000 attention_factor=1.7625 {YARN_IN_WORDS}; {V4_IN_WORDS}"
        f"1 x 64/128 10000, 1 x 64/128 160000 attention_factor=1.7625 {YARN_IN_WORDS}; interleaved; last",
        num_hidden_layers=2,
        compress_ratios=[0, 4],
        rope_parameters={
            "main": {"rope_theta": 1e4, "partial_rotary_factor": 0.125},
            "compress": YARN | {"rope_theta": 1.6e5, "partial_rotary_factor": 0.125},
        },
    ),
    row(
        "dots3_note_text",
        "2 x 64/192 456, 3 x 12/20 123, 1 x 64/192 456; interleaved; last; "
        "indexer: 2 x 64/128 456, 3 x 12/128 123, 1 x 64/128 456; interleaved",
        num_hidden_layers=6,
        rope_theta=456.0,
        swa_rope_theta=123.0,
        swa_head_dim=20,
        swa_qk_nope_head_dim=8,
    ),
    row(
        "dots3_note_text",
        "46 x 64/192 8e+07; interleaved; last; indexer: 46 x 64/128 8e+07; interleaved",
        use_sliding_window=False,
        partial_rotary_factor=0.5,
    ),
    row("glm4_moe_lite", "47 x 32/224 10000; interleaved; last", head_dim=32),
    row(
        "minimax_m3_vl_text",
        "60 x 64/128 5e+06; indexer: 60 x 64/256 5e+06",
        partial_rotary_factor=0.5,
        rotary_dim=64,
        sparse_attention_config={"sparse_index_dim": 256},
    ),
]


@pytest.mark.parametrize(("config", "words"), READ, ids=[f"{i} {x['model_type']}" for i, (x, _) in enumerate(READ)])
def test_a_config_is_read_as_this_plan(config, words):
    plan = read(config)
    assert in_words(plan) == words
    assert rotary_from_config(plan_to_config(plan), length=plan.length) == plan


# Types that are not in transformers, by their plan in words: four layers of 4,096 features and 32 heads.
REMOTE = {
    "3 x 128/128 10000, 1 x -/128": "exaone4_5_text",
    "4 x 128/128 10000": "aquila baichuan deepseek Dream dream hunyuan internlm internlm2 llada mimo minicpm openelm "
    "orion PanguEmbedded phi3_v phi4 phi4mm RefinedWeb RefinedWebModel sdar sdar_moe solar xverse Yi",
    "4 x 128/128 10000 QueryScale(coefficient=0.1311540946262694, period=2048, offset=1, variant='log')": "qwen",
    "4 x 128/128 100000": "bailing_moe bailing_moe_v2 deci internlmxcomposer2 minicpmo minicpmv minimax_m1 "
    "minimax_text_01 molmo nemotron-nas nemotron_nas qwen2_mtp qwen2_mtp_sensevoice",
    "4 x 128/128 1e+06": "phi3small",
    "4 x 128/128 500000": "iquestloopcoder",
    "4 x 128/128 5e+06; indexer: 4 x 128/128 5e+06": "minimax_m3",
    "4 x 256/256 500000": "step3_text",
    "4 x 32/128 10000": "gpt_neox_reward_model phi-msft stablelm_epoch",
    "4 x 64/128 10000; interleaved": "chatglm",
    "4 x 64/192 10000; interleaved; last": "AXK1 kimi_k2",
    "4 x 64/192 5e+06": "mimo_v2",
}


def test_types_that_are_not_in_transformers_are_read_as_these_plans():
    sizes, types_of = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 4}, {}
    for name in MODELS.keys() - FACTS["types"].keys():
        keys = {} if MODELS[name].theta else {"rope_theta": 1e5}  # of types that have no default
        keys |= {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64} if MODELS[name].latent else {}
        keys |= {"seq_length": 2048, "use_dynamic_ntk": False} if name == "qwen" else {}
        types_of.setdefault(in_words(read({"model_type": name} | sizes | keys)), []).append(name)
    assert {words: sorted(names) for words, names in types_of.items()} == {
        words: sorted(names.split()) for words, names in REMOTE.items()
    }


def test_a_config_may_be_an_object_with_to_dict():
    assert rotary_from_config(WithToDict({"model_type": "llama"})) == read({"model_type": "llama"})


# Keys that change nothing: no class reads the shares, and published files contradict them. DeepSeek-V4's rope_theta is
# that of its sliding layers.
IGNORED = {
    "bailing_hybrid": "partial_rotary_factor",
    "dots3_note_text": "partial_rotary_factor",
    "deepseek_v4": "rope_theta",
}


@pytest.mark.parametrize("name", MODELS)
def test_a_base_or_a_share_changes_the_plan_or_is_an_error(name):
    """No class has the values below. A plan without rotations, and keys in IGNORED, may stay as they are."""

    def plan(**more):
        try:
            return read(
                {"model_type": name, "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 8} | more
            )
        except ValueError:
            return None

    usual = plan()
    values = {"rope_theta": 12345.0, "rotary_emb_base": 12345.0, "partial_rotary_factor": 0.375, "rotary_pct": 0.375}
    for key, value in values.items():
        found = plan(**{key: value})
        never_rotates = found and not any(layer.rotary_dim for layer in found.layers)
        assert found is None or never_rotates or found != usual or IGNORED.get(name) == key, key
