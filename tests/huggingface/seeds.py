"""Whole configs of every model type, and changes to them."""

from huggingface.published import PUBLISHED
from oracles import recorded

RECORDED = [case["config"] for name in ("hf_model_types", "hf_frequencies") for case in recorded.cases(name)]
_LENGTH = {"original_max_position_embeddings": 4096}
_SIZES = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 4}
_ORIGINAL, _SHARED = {"original_max_position_embeddings": 4096}, {"rope_theta": 30_000, "partial_rotary_factor": 0.25}
# In the spelling that the model's own code has, and of types that are not in transformers.
OWN = [
    _SIZES | {"model_type": "Yi", "rope_theta": 5e6, "rope_scaling": None},
    _SIZES | {"model_type": "baichuan"},
    _SIZES | {"model_type": "chatglm", "kv_channels": 128, "rope_ratio": 500, "original_rope": True},
    _SIZES | {"model_type": "deepseek", "rope_scaling": {"type": "linear", "factor": 4.0}},
    {"model_type": "codegen", "n_embd": 4096, "n_head": 16, "n_layer": 4, "rotary_dim": 64},
    {"model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_layer": 4, "rotary_dim": 64, "rotary": True},
    _SIZES | {"model_type": "internlm3", "head_dim": 160, "rope_theta": 5e7},
    _SIZES | {"model_type": "internlm", "rotary": {"base": 1e5, "type": "origin"}},
    _SIZES | {"model_type": "internlm", "max_position_embeddings": 2048, "rotary": {"type": "dynamic"}},
    _SIZES
    | {"model_type": "internlm2", "rope_theta": 1e6, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    | {"max_position_embeddings": 2048},
    {"model_type": "jamba", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 8},
    {"model_type": "kimi_linear", "num_hidden_layers": 4, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64},
    {"model_type": "glm5_next_text", "num_hidden_layers": 4, "qk_nope_head_dim": 256, "qk_rope_head_dim": 0},
    {"model_type": "kimi_k2", "num_hidden_layers": 2, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    | {
        "rope_theta": 5e4,
        "rope_scaling": {"type": "yarn", "factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0, **_LENGTH},
    }
    | {"max_position_embeddings": 131072},
    {"model_type": "mimo_v2", "num_hidden_layers": 6, "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0], "swa_rope_theta": 1e4}
    | {"rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.334, "rope_type": "default"}},
    {"model_type": "mimo_v2_flash", "num_hidden_layers": 6, "head_dim": 192, "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0]}
    | {"rope_theta": 5e6, "swa_rope_theta": 1e4, "partial_rotary_factor": 0.334},
    _SIZES
    | {"model_type": "minimax_m1", "head_dim": 128, "rotary_dim": 64, "rope_theta": 1e7}
    | {"attn_type_list": [0, 0, 0, 1]},
    _SIZES
    | {"model_type": "nemotron-nas", "rope_theta": 5e5, "rope_scaling": None}
    | {"block_configs": [{"attention": {"no_op": no_op, "replace_with_linear": False}} for no_op in (False, True) * 2]},
    {"model_type": "nemotron_h", "head_dim": 128, "hybrid_override_pattern": "MEM*E-"},
    {"model_type": "openelm", "head_dim": 64, "num_transformer_layers": 4, "rope_freq_constant": 10_000},
    _SIZES | {"model_type": "phi-msft", "rotary_dim": 32},
    _SIZES
    | {"model_type": "qwen", "kv_channels": 128, "rotary_pct": 1.0, "rotary_emb_base": 10_000}
    | {"seq_length": 2048, "use_dynamic_ntk": True, "use_logn_attn": True, "max_position_embeddings": 8192},
    _SIZES | {"model_type": "roformer", "max_position_embeddings": 1536, "rotary_value": False},
    _SIZES | {"model_type": "stablelm_epoch", "rope_pct": 0.25, "rope_theta": 10_000},
    _SIZES
    | {"model_type": "molmo2_text", "rope_theta": 1e6, "rope_scaling_layers": [0, 2]}
    | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}},
    _SIZES
    | {"model_type": "step3p5", "head_dim": 128, "rope_theta": [5e6, 1e4, 1e4, 5e6, 1e4]}
    | {"partial_rotary_factors": [0.5, 1.0, 1.0, 0.5, 1.0], "num_nextn_predict_layers": 1, "use_rope_layers": []}
    | {"layer_types": [f"{kind}_attention" for kind in ("full", "sliding", "sliding", "full", "sliding")]}
    | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "yarn_only_types": ["full_attention"]},
    _SIZES | {"model_type": "ultrabert", "attention_windows": [0, 128, 0, 128], "rope_theta": [1e5, 1e4, 1e5, 1e4]},
    _SIZES | {"model_type": "cohere2_moe", "num_hidden_layers": 8, "first_k_dense_replace": 3},
    _SIZES | {"model_type": "exaone4", "sliding_window_pattern": "LLLG", "sliding_window": 4096},
    _SIZES
    | {"model_type": "embedding_gemma2_text", "layer_types": ["full_attention", *["sliding_attention"] * 3]}
    | {"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}},
    {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 4, "attn_config": {"rope_theta": 500_000}},
    _SIZES
    | {"model_type": "dots3_note_text", "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "swa_rope_theta": 2e4}
    | {"swa_qk_nope_head_dim": 96, "swa_head_dim": 128, "use_sliding_window": True, "index_head_dim": 64},
    _SIZES
    | {"model_type": "bailing_hybrid", "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "head_dim": 128}
    | {"partial_rotary_factor": 0.5, "layer_group_size": 2, "rope_interleave": True, "rope_theta": 6e6},
    _SIZES
    | {"model_type": "deepseek_v32", "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "index_head_dim": 96}
    | {"indexer_rope_interleave": True},
    _SIZES
    | {"model_type": "minimax_m3_vl_text", "rotary_dim": 64, "partial_rotary_factor": 0.5, "head_dim": 128}
    | {"rope_theta": 5e6, "sparse_attention_config": {"sparse_index_dim": 96}},
    _SIZES
    | {"model_type": "qwen2", "rope_theta": 1e7}
    | {"dual_chunk_attention_config": {"chunk_size": 262144, "local_size": 8192}},
    {"model_type": "deepseek_v4", "num_hidden_layers": 7, "head_dim": 256, "qk_rope_head_dim": 64}
    | {
        "compress_ratios": [0, 128, 4, 0, 4, 128, 0, 0],
        "num_nextn_predict_layers": 1,
        "max_position_embeddings": 262144,
    }
    | {"rope_theta": 20_000, "compress_rope_theta": 80_000, "rope_scaling": {"type": "yarn", "factor": 16} | _ORIGINAL},
    {"model_type": "deepseek_v4", "num_hidden_layers": 6, "partial_rotary_factor": 0.25, "index_head_dim": 160}
    | {
        "layer_types": [
            *["compressed_sparse_attention", "sliding_attention"] * 2,
            *["heavily_compressed_attention"] * 2,
        ]
    }
    | {"rope_parameters": {"main": _SHARED, "compress": _SHARED | _ORIGINAL | {"rope_type": "yarn", "factor": 4.0}}},
    {"model_type": "mistral_large4_text", "num_hidden_layers": 4, "num_attention_heads": 8, "qk_nope_head_dim": 32}
    | {"qk_rope_head_dim": 64, "index_n_heads": 4, "no_rope_layer_interval": 3}
    | {"rope_parameters": {"rope_type": "yarn", "rope_theta": 5e4, "factor": 8.0} | _ORIGINAL},
    # As `plan_to_config` writes.
    {"num_hidden_layers": 2, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "rope_interleave": True}
    | {"rope_parameters": {"rope_theta": 5e5, "learned_log_factor": "alpha"}, "rope_on_values": True}
    | {"query_scales": [{"scale": "s", "bias": "b", "num_heads": 8}, None], "index_head_dim": 128}
    | {"indexer_query_scales": [{"scale": "indexer.s", "bias": "indexer.b", "num_heads": 4}] * 2},
    {"num_hidden_layers": 2, "head_dim": 128, "rope_interleave": True}
    | {"rope_parameters": {"rope_theta": 5e5, "mrope_section": [22, 22, 20], "mrope_alternating": True}},
    {"num_hidden_layers": 2, "head_dim": 128, "rope_interleave": False}
    | {"rope_parameters": {"rope_theta": 1e4, "rope_backward": True}},
    {"num_hidden_layers": 3, "head_dim": 128, "rope_interleave": True, "rope_parameters": {"rope_theta": 5e5}}
    | {"query_scales": [None, {"coefficient": 0.1, "period": 8192, "offset": 1, "variant": "steps"}, None]}
    | {"index_head_dim": 160, "indexer_rope_interleave": False, "indexer_part": "last"},
    _SIZES | {"model_type": "deepseek_v2", "use_mla": False, "qk_rope_head_dim": 0, "qk_nope_head_dim": 0},
    _SIZES
    | {"model_type": "exaone4_5_text", "num_hidden_layers": 8, "rope_theta": 1e6, "sliding_window": 4096}
    | {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 16.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            **_LENGTH,
        }
    }
    | {"max_position_embeddings": 262144},
    {"model_type": "AXK1", "num_hidden_layers": 2, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_theta": 1e4},
    _SIZES
    | {"model_type": "minimax_m3", "num_attention_heads": 64, "partial_rotary_factor": 0.5, "rotary_dim": 64}
    | {"sparse_attention_config": {"sparse_index_dim": 128}},
    _SIZES | {"model_type": "minimax_text_01", "rotary_dim": 64, "rope_theta": 1e7, "attn_type_list": [0, 1, 0, 1]},
    *(
        _SIZES
        | {"model_type": name, "rope_theta": 1e4, "max_position_embeddings": 131072}
        | {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 64, "long_factor": [2.0] * 64}}
        for name in ("phi3_v", "phi4", "phi4mm")
    ),
    _SIZES | {"model_type": "phi3small", "rope_position_scale": 1.0, "rope_scaling": None},
    _SIZES | {"model_type": "phi3small", "rope_embedding_base": 5e5},
    _SIZES | {"model_type": "gpt_neox_reward_model", "rotary_emb_base": 20_000, "rotary_pct": 0.5},
    _SIZES
    | {"model_type": "hunyuan", "attention_head_dim": 128, "use_rotary_pos_emb": True}
    | {"rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}},
    {"model_type": "llada", "d_model": 4096, "n_heads": 32, "n_layers": 4, "rope_theta": 5e5, "rope": True},
    *(
        _SIZES
        | {"model_type": name, "rope_theta": 5e5}
        | {"block_configs": [{"attention": {"no_op": i == 1, "replace_with_linear": i == 2}} for i in range(4)]}
        for name in ("nemotron_nas", "deci")
    ),
    *(
        _SIZES | {"model_type": name, "rope_theta": 6e5}
        for name in (
            "bailing_moe bailing_moe_v2 internlmxcomposer2 minicpmo minicpmv molmo qwen2_mtp qwen2_mtp_sensevoice"
        ).split()
    ),
    *(
        _SIZES | {"model_type": name}
        for name in (
            "Dream dream EvollaModel PanguEmbedded RefinedWeb RefinedWebModel gpt_neox_reward_model "
            "iquestloopcoder minimax_m3 orion sdar sdar_moe step3_text"
        ).split()
    ),
    *(_SIZES | {"model_type": name, "rope_theta": 1e6} for name in ("aquila", "mimo", "minicpm", "solar", "xverse")),
]
SEEDS = [*PUBLISHED.values(), *OWN, *RECORDED]

# Changes to the config of every model type (...: without the key), so that more of the class's defaults count, and how
# many of these configs are read with each.
_WIDTHS = "rope_theta", "head_dim", "kv_channels", "rotary_dim", "rotary_pct", "partial_rotary_factor"
_LISTS = {"short_factor": [1.0] * 64, "long_factor": [2.0] * 64}
_SLIDING = {"sliding_attention": {"rope_theta": 1e4}}
_SCORES = {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.8, "rope_theta": 1e5}
_SCORES |= {"original_max_position_embeddings": 4096}
_LINEAR = {"rope_type": "linear", "factor": 2.0}
_BASED = _LINEAR | {"rope_theta": 1e5}
CHANGES = [
    ({"hidden_size": 12288, "num_attention_heads": 32}, 263),
    ({key: ... for key in _WIDTHS}, 258),
    ({"rope_parameters": _BASED}, 202),
    ({"rope_parameters": _BASED | {"partial_rotary_factor": 0.5}}, 41),
    ({"rope_parameters": _BASED | {"rope_type": "longrope", **_LISTS, **_LENGTH}}, 118),
    ({"rope_parameters": _BASED | {"rope_type": "yarn", **_LENGTH}}, 202),
    (
        {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e5}, **_SLIDING}},
        26,
    ),
    ({"rope_parameters": {"full_attention": _SCORES, "indexed_attention": _SCORES, **_SLIDING}}, 26),
    ({"rope_parameters": _SCORES}, 202),
    ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 230),
    ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_theta": 123_456.0}, 218),
    ({"rope_scaling": {"type": "dynamic", "alpha": 1000.0}}, 7),
    ({"rope_theta": 123_456.0}, 224),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": None}}, 8),
    ({"rope_interleave": False}, 240),
    ({"rope_interleave": True}, 55),
    ({"sliding_window": None}, 281),
    ({"position_embedding_type": "nope"}, 9),
    ({"layer_types": ..., "full_attn_idxs": [1]}, 28),
    ({"layer_types": ..., "num_hidden_layers": 6}, 249),
    ({"layer_rope_theta": [0, 1e4, 1e5], "num_hidden_layers": 3}, 16),
    ({"no_rope_layers": [0, 1, 1], "num_hidden_layers": 3}, 16),
    ({"partial_rotary_factor": 0.5}, 48),
    ({"partial_rotary_factor": 0.5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 38),
]
