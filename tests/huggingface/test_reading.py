"""What a config is read as: a table of fragments of configs, with the plan in words or the error.

A fragment is the whole config: what it leaves out has the value of its class. `length` and `layout` are the arguments of
these names.
"""

import pytest

from helpers.plans import WithToDict, in_runs
from posenc_jax.hf import plan_to_config, rotary_from_config
from posenc_jax.hf._models import FACTS, MODELS
from posenc_jax.hf._refused import REFUSED as TYPES_REFUSED

FULL, SLIDING = "full_attention", "sliding_attention"
USUAL = {"rope_type": "default", "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True, "attention_factor": 1.0}


def in_words(plan):
    """Each run of equal layers: how many, the features that rotate of those of a head, the base, other settings."""
    words = [in_runs(map(layer_in_words, plan.layers))]
    words += [plan.layout] * (plan.layout != "half") + [plan.part] * (plan.part != "first")
    words += [f"scores x {plan.softmax_scale:.4f}"] * (plan.softmax_scale != 1)
    words += ["values rotate"] * plan.rotates_values
    return "; ".join(words + ([f"indexer: {in_words(plan.indexer)}"] if plan.indexer else []))


def layer_in_words(layer):
    settings = dict(layer.settings)
    if settings.get("rope_type") != "proportional":
        settings.pop("partial_rotary_factor", None)
    words = [f"{layer.rotary_dim or '-'}/{layer.head_dim}"]
    words += [f"{settings.pop('rope_theta'):g}"] if settings else []
    words += [f"{name}={in_short(value)}" for name, value in settings.items() if USUAL.get(name) != value]
    return " ".join(words + [str(layer.query_scale)] * bool(layer.query_scale))


def in_short(value):
    if isinstance(value, tuple) and len(value) > 3:
        return f"{value[0]}..."
    return round(value, 4) if isinstance(value, float) else value


def read(model_type, fragment):
    config = ({"model_type": model_type} if model_type else {}) | fragment
    return rotary_from_config(config, **{name: config.pop(name) for name in ("length", "layout") if name in config})


# fmt: off
READ = [
    ("", {"head_dim": 8, "num_hidden_layers": 2, "rope_interleave": True, "layer_types": ["a", "b"], "rope_parameters": {"a": {"rope_theta": 10.0}, "b": None}},
     "1 x 8/8 10, 1 x -/8; interleaved"),
    ("", {"layout": "half", "head_dim": 64, "num_hidden_layers": 2, "no_rope_layers": [1, 0], "per_layer_config": {"1": {"query_scale": {"coefficient": 0.2, "period": 16, "offset": 1, "variant": "log"}}}},
     "1 x 64/64 10000, 1 x -/64 QueryScale(coefficient=0.2, period=16, offset=1, variant='log')"),
    ("", {"text_config": {"head_dim": 64, "num_hidden_layers": 2, "rope_interleave": False, "rope_theta": 1e5}},
     "2 x 64/64 100000"),
    ("apertus", {},
     "32 x 128/128 1.2e+07 factor=8.0 high_freq_factor=4.0 low_freq_factor=1.0 original_max_position_embeddings=8192 rope_type=llama3"),
    ("AXK1", {"num_hidden_layers": 2, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_interleave": False},
     "2 x 64/192 10000; last"),
    ("bailing_hybrid", {"architectures": ["BailingMoeV3ForCausalLM"], "linear_silu": True, "num_hidden_layers": 6, "rotary_dim": 64, "head_dim": 128, "partial_rotary_factor": 0.5},
     "5 x -/192, 1 x 64/192 6e+06; interleaved; last"),
    ("bailing_hybrid", {"no_kda_lora": True, "group_norm_size": 1, "num_hidden_layers": 6, "layer_group_size": 3},
     "2 x -/192, 1 x 64/192 6e+06, 2 x -/192, 1 x 64/192 6e+06; interleaved; last"),
    ("bailing_hybrid", {"num_hidden_layers": 2, "rope_theta": 6e6, "rope_parameters": {"rope_theta": 5e6}},
     "2 x -/192; interleaved"),
    ("bamba", {"num_hidden_layers": 3, "attn_layer_indices": [2], "attn_rotary_emb": 64},
     "2 x -/128, 1 x 64/128 10000"),
    ("beam", {"num_hidden_layers": 6},
     "5 x 128/128 10000, 1 x -/128 QueryScale(coefficient=0.1, period=2048, offset=1, variant='power')"),
    ("chatglm", {"num_layers": 2, "kv_channels": 32, "hidden_size": 128, "num_attention_heads": 4, "rope_ratio": 50, "original_rope": True, "rotary_percent": 0.25},
     "2 x 8/32 500000; interleaved"),
    ("cohere", {"transformers_version": "4.9", "position_embedding_type": "rope_gptj"},
     "40 x 128/128 10000; interleaved"),
    ("cohere2_moe", {"num_hidden_layers": 4, "layer_types": [FULL] * 4, "mlp_layer_types": ["dense", "sparse", "dense", "sparse"]},
     "1 x 128/128 10000, 1 x -/128, 1 x 128/128 10000, 1 x -/128; interleaved"),
    ("cohere2_moe", {"num_hidden_layers": 6, "first_k_dense_replace": 2, "prefix_dense_sliding_window_pattern": 2, "sliding_window_pattern": 2},
     "1 x 128/128 10000, 1 x -/128, 1 x 128/128 10000, 1 x -/128, 1 x 128/128 10000, 1 x -/128; interleaved"),
    ("cohere_compass_text", {"num_hidden_layers": 2, "head_dim": 128, "layer_types": [FULL, SLIDING], "rope_parameters": {"full_attention": None, "sliding_attention": {"rope_theta": 5e4}, "rope_theta": 1e4, "rope_type": "default"}},
     "1 x -/128, 1 x 128/128 50000 mrope_interleaved=True mrope_section=(24, 20, 20)"),
    ("dbrx", {"attn_config": {"rope_theta": 5e5}}, "24 x 128/128 500000"),
    ("deepseek_v2", {"use_mla": False, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "hidden_size": 4096, "num_attention_heads": 32},
     "32 x 128/128 10000"),
    ("deepseek_v32", {"indexer_rope_interleave": True},
     "61 x 64/192 10000; interleaved; last; indexer: 61 x 64/128 10000; interleaved"),
    ("deepseek_v4", {"num_hidden_layers": 4, "compress_ratios": [0, 128, 4, 0, 0], "num_nextn_predict_layers": 1, "original_max_position_embeddings": 512, "rope_scaling": {"rope_type": "yarn", "factor": 2048.0}},
     "1 x 64/512 10000, 2 x 64/512 160000 factor=2048.0 original_max_position_embeddings=512 rope_type=yarn, 1 x 64/512 10000; interleaved; last; values rotate; indexer: 1 x 64/128 10000, 2 x 64/128 160000 factor=2048.0 original_max_position_embeddings=512 rope_type=yarn, 1 x 64/128 10000; interleaved; last"),
    ("deepseek_v4", {"num_hidden_layers": 2, "compress_ratios": [0, 4], "rope_parameters": {"main": {"rope_theta": 1e4, "partial_rotary_factor": 0.125}, "compress": {"rope_type": "yarn", "rope_theta": 1.6e5, "factor": 2048.0, "original_max_position_embeddings": 512, "partial_rotary_factor": 0.125}}},
     "1 x 64/512 10000, 1 x 64/512 160000 attention_factor=1.7625 factor=2048.0 original_max_position_embeddings=512 rope_type=yarn; interleaved; last; values rotate; indexer: 1 x 64/128 10000, 1 x 64/128 160000 attention_factor=1.7625 factor=2048.0 original_max_position_embeddings=512 rope_type=yarn; interleaved; last"),
    ("deepseek_v4", {},
     "43 x 64/512 160000; interleaved; last; values rotate; indexer: 43 x 64/128 160000; interleaved; last"),
    ("dia", {"decoder_config": {"num_hidden_layers": 2}}, "2 x 128/128 10000"),
    ("dory", {"num_hidden_layers": 13, "rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}},
     "3 x 256/256 10000, 1 x 256/256 1e+06, 3 x 256/256 10000, 1 x 256/256 1e+06, 3 x 256/256 10000, 1 x 256/256 1e+06, 1 x 256/256 10000"),
    ("dory", {"num_hidden_layers": 4, "layer_types": [SLIDING, "mlp", FULL, "mlp"]},
     "1 x 256/256 10000, 1 x 256/256 1e+07"),
    ("dots3_note_text", {"num_hidden_layers": 6, "rope_theta": 456.0, "swa_rope_theta": 123.0, "swa_head_dim": 20, "swa_qk_nope_head_dim": 8},
     "2 x 64/192 456, 3 x 12/20 123, 1 x 64/192 456; interleaved; last; indexer: 2 x 64/128 456, 3 x 12/128 123, 1 x 64/128 456; interleaved"),
    ("dots3_note_text", {"num_hidden_layers": 2, "partial_rotary_factor": 0.5},
     "2 x 64/192 8e+07; interleaved; last; indexer: 2 x 64/128 8e+07; interleaved"),
    ("dots3_note_text", {"use_sliding_window": False},
     "46 x 64/192 8e+07; interleaved; last; indexer: 46 x 64/128 8e+07; interleaved"),
    ("ernie4_5_vl_moe_text", {"hidden_size": 64, "num_attention_heads": 4, "rope_scaling": {"type": "default", "mrope_section": [3, 3, 2]}},
     "28 x 16/16 500000 mrope_alternating=True mrope_section=(3, 3, 2); interleaved"),
    ("esm", {"position_embedding_type": "rotary"}, "12 x 64/64 10000"),
    ("exaone", {"num_layers": 2, "transformers_version": "5.23.1"}, "2 x 128/128 10000"),
    ("exaone", {"num_layers": 2, "transformers_version": "v5.24"}, "2 x 128/128 500000"),
    ("exaone4", {"num_hidden_layers": 4, "sliding_window": 64}, "3 x 128/128 10000, 1 x -/128"),
    ("exaone4", {"sliding_window": None}, "32 x 128/128 10000"),
    ("exaone4_5", {"hidden_size": 768, "num_attention_heads": 8, "num_hidden_layers": 4, "sliding_window_pattern": "LG"},
     "1 x 96/96 10000, 1 x -/96, 1 x 96/96 10000, 1 x -/96"),
    ("gemma3_text", {"num_hidden_layers": 2, "sliding_window_pattern": 2, "rope_theta": 2e6, "rope_local_base_freq": 2e4},
     "1 x 256/256 20000, 1 x 256/256 2e+06"),
    ("gemma4_text", {"num_hidden_layers": 2, "layer_types": [SLIDING, SLIDING]},
     "1 x 256/256 10000, 1 x 512/512 1e+06 factor=1.0 partial_rotary_factor=0.25 rope_type=proportional"),
    ("colqwen2", {"vlm_config": {"model_type": "qwen2_vl", "text_config": {"num_hidden_layers": 2}}}, "2 x 128/128 1e+06 mrope_interleaved=False mrope_section=(16, 24, 24)"),
    ("glm4_moe_lite", {"head_dim": 32}, "47 x 32/224 10000; interleaved; last"),
    ("gpt_neox", {"rotary_emb_base": 5000, "rotary_pct": 0.5}, "44 x 48/96 5000"),
    ("gptj", {"n_layer": 2, "rotary_dim": 32, "rotary": True}, "2 x 32/256 10000; interleaved"),
    ("granite_swa", {"head_dim": 64, "num_hidden_layers": 3, "layer_rope_theta": [1e4, 0, 2e4]},
     "1 x 64/64 10000, 1 x -/64, 1 x 64/64 20000"),
    ("granitemoehybrid", {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"], "position_embedding_type": "rope"},
     "1 x -/128, 1 x 128/128 10000"),
    ("granitemoehybrid", {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"]}, "2 x -/128"),
    ("hrm_text", {"num_hidden_layers": 16, "num_layers_per_stack": 2}, "16 x 128/128 10000"),
    ("hrm_text", {"num_hidden_layers": 2, "H_cycles": 1, "L_cycles": 1}, "4 x 128/128 10000"),
    ("hunyuan", {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1, "attention_head_dim": 32, "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}},
     "1 x 32/32 10000 alpha=1000.0 rope_type=dynamic"),
    ("internlm", {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1, "rotary": {"base": 5e5, "type": "origin"}},
     "1 x 16/16 500000"),
    ("internlm", {"length": 128, "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1, "max_position_embeddings": 64, "rotary": {"type": "dynamic", "scaling_factor": 2.0}},
     "1 x 16/16 10000 factor=2.0 max_position_embeddings=64 rope_type=dynamic"),
    ("jamba", {}, "32 x -/128"),
    ("jetmoe", {"kv_channels": 64}, "12 x 64/64 10000"),
    ("kimi_k25", {"text_config": {"model_type": "kimi_k2", "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "num_hidden_layers": 2, "rope_theta": 5e4}},
     "2 x 64/192 50000; interleaved; last"),
    ("kimi_linear", {"mla_use_nope": True}, "27 x -/192"),
    ("kolibri1", {"num_hidden_layers": 2, "sliding_window": None, "layer_types": [SLIDING, FULL]}, "2 x 128/128 10000"),
    ("lara_mini", {"num_hidden_layers": 2, "layer_types": [SLIDING, FULL], "rope_parameters": {"rope_theta": 123.0}},
     "1 x 128/128 123, 1 x -/128"),
    ("lara_mini", {"num_hidden_layers": 5}, "1 x -/128, 1 x 128/128 10000, 2 x -/128, 1 x 128/128 10000"),
    ("lfm2", {"full_attn_idxs": [1], "theta": 1e6}, "1 x -/80, 1 x 80/80 1e+06, 30 x -/80"),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
     "32 x 128/128 10000 factor=2.0 rope_type=linear"),
    ("llama", {"rope_theta": 5e5, "rope_scaling": {"type": "yarn", "factor": 8.0, "mscale": 0.7, "mscale_all_dim": 0.5, "original_max_position_embeddings": 1024}},
     "32 x 128/128 500000 attention_factor=1.0377 factor=8.0 original_max_position_embeddings=1024 rope_type=yarn"),
    ("llama", {"rope_theta": 5e5, "rope_scaling": {"type": "yarn", "factor": None, "original_max_position_embeddings": 1024, "beta_fast": 16, "beta_slow": 2, "truncate": False, "attn_factor": 1.0, "apply_yarn_scaling": True, "finetuned": True}},
     "32 x 128/128 500000 attention_factor=1.0693 beta_fast=16.0 beta_slow=2.0 factor=2.0 original_max_position_embeddings=1024 rope_type=yarn truncate=False"),
    ("llama", {"use_rope": True, "alibi": False, "use_mrope": False, "nope": False, "rope_traditional": False, "my_key": 3, "moe_layer_freq": 1, "layer_types": 5},
     "32 x 128/128 10000"),
    ("llama", {"per_layer_config": {"1": {"head_dim": 64}}, "rope_scaling": {"type": "linear", "factor": 4.0}},
     "1 x 128/128 10000 factor=4.0 rope_type=linear, 1 x 64/64 10000 factor=4.0 rope_type=linear, 30 x 128/128 10000 factor=4.0 rope_type=linear"),
    ("llama4_text", {"num_hidden_layers": 4, "nope_layer_interval": 2},
     "1 x 128/128 500000, 1 x -/128 QueryScale(coefficient=0.1, period=8192, offset=1, variant='steps'), 1 x 128/128 500000, 1 x -/128 QueryScale(coefficient=0.1, period=8192, offset=1, variant='steps'); interleaved"),
    ("llama4_text", {"num_hidden_layers": 8, "attn_temperature_tuning": False, "rope_theta": 5e5, "rope_scaling": {"factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}},
     "3 x 128/128 500000 factor=16.0 high_freq_factor=1.0 low_freq_factor=1.0 original_max_position_embeddings=8192 rope_type=llama3, 1 x -/128, 3 x 128/128 500000 factor=16.0 high_freq_factor=1.0 low_freq_factor=1.0 original_max_position_embeddings=8192 rope_type=llama3, 1 x -/128; interleaved"),
    ("llava", {"text_config": {"model_type": "llama"}}, "32 x 128/128 10000"),
    ("llava", {"text_config": {"rope_theta": 5e5}, "rope_theta": 5e5}, "32 x 128/128 500000"),
    ("longcat_flash", {"num_layers": 3}, "6 x 64/192 1e+07; interleaved; last"),
    ("mimo_v2", {"num_hidden_layers": 2, "hybrid_layer_pattern": [0, 1], "rope_scaling": {"type": "linear", "factor": 2.0}},
     "1 x 192/192 5e+06 factor=2.0 rope_type=linear, 1 x 64/192 10000"),
    ("mimo_v2", {"hidden_size": 4096, "num_attention_heads": 64, "num_hidden_layers": 3, "hybrid_layer_pattern": [0, 1, 1], "rope_theta": 5e6, "swa_rope_theta": 2e4, "partial_rotary_factor": 0.5, "swa_head_dim": 192},
     "1 x 96/192 5e+06, 2 x 96/192 20000"),
    ("minimax_m2", {"rotary_dim": 64}, "62 x 64/128 5e+06"),
    ("minimax_m3_vl_text", {"partial_rotary_factor": 0.5, "rotary_dim": 64, "sparse_attention_config": {"sparse_index_dim": 256}},
     "60 x 64/128 5e+06; indexer: 60 x 64/256 5e+06"),
    ("mistral_large4_text", {"num_hidden_layers": 4},
     "3 x 64/128 10000 factor=2048.0 learned_log_factor=lerope.alpha original_max_position_embeddings=512 rope_type=yarn HeadScale(scale='layers.{layer}.attention.ssmax_scaling.s', bias='layers.{layer}.attention.ssmax_scaling.b', num_heads=64), 1 x -/128 HeadScale(scale='layers.{layer}.attention.ssmax_scaling.s', bias='layers.{layer}.attention.ssmax_scaling.b', num_heads=64); interleaved; last; indexer: 3 x 64/128 10000 factor=2048.0 learned_log_factor=lerope.alpha original_max_position_embeddings=512 rope_type=yarn HeadScale(scale='layers.{layer}.attention.indexer.ssmax_scaling.s', bias='layers.{layer}.attention.indexer.ssmax_scaling.b', num_heads=32), 1 x -/128 HeadScale(scale='layers.{layer}.attention.indexer.ssmax_scaling.s', bias='layers.{layer}.attention.indexer.ssmax_scaling.b', num_heads=32); interleaved"),
    ("mllama_text_model", {"num_hidden_layers": 8}, "3 x 128/128 500000, 1 x -/128, 4 x 128/128 500000"),
    ("ministral3", {"max_position_embeddings": 32768, "num_hidden_layers": 1, "query_scale": 1},
     "1 x 128/128 1e+06 factor=16.0 original_max_position_embeddings=16384 rope_type=yarn QueryScale(coefficient=0.1, period=16384, offset=0, variant='steps')"),
    ("mllama_text_model", {"cross_attention_layers": [1]},
     "1 x 128/128 500000, 1 x -/128, 38 x 128/128 500000"),
    ("modernbert", {"num_hidden_layers": 2, "global_rope_theta": 2e5, "local_rope_theta": 3e4, "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "position_embedding_type": "absolute"},
     "1 x 64/64 200000 factor=2.0 rope_type=linear, 1 x 64/64 30000 factor=2.0 rope_type=linear"),
    ("modernbert", {"num_hidden_layers": 7},
     "1 x 64/64 160000, 2 x 64/64 10000, 1 x 64/64 160000, 2 x 64/64 10000, 1 x 64/64 160000"),
    ("modernbert-decoder", {"transformers_version": "4.57.0"}, "22 x 64/64 160000"),
    ("modernbert-decoder", {"num_hidden_layers": 2, "transformers_version": "5.0.0"},
     "1 x 64/64 160000, 1 x 64/64 10000"),
    ("molmo2_text", {"rope_scaling_layers": [0], "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}},
     "1 x 128/128 1e+06 factor=2.0 rope_type=linear, 35 x 128/128 1e+06"),
    ("muse_glimmer_text", {"head_dim": 16, "num_hidden_layers": 6, "rope_theta": 5e5, "layer_rope_theta": [1, 0, 7, 0, 1, 1]},
     "1 x 16/16 500000, 1 x -/16, 1 x 16/16 500000, 1 x -/16, 2 x 16/16 500000"),
    ("muse_spark_text", {"num_hidden_layers": 6}, "1 x 64/64 500000, 1 x -/64, 3 x 64/64 500000, 1 x -/64"),
    ("nanochat", {}, "12 x 128/128 10000 rope_backward=True"),
    ("nemotron", {"rope_percent": 0.5}, "32 x 64/128 10000"),
    ("nemotron-nas", {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3, "rope_theta": 5e5, "block_configs": [{"attention": {"no_op": False}}, {"attention": {"no_op": True}}, {"attention": {"replace_with_linear": True}}]},
     "1 x 16/16 500000, 2 x -/16"),
    ("nemotron_h", {"hybrid_override_pattern": "M*-", "attention_head_dim": 32}, "3 x -/32"),
    ("nemotron_h", {}, "4 x -/128"),
    ("neomme", {"num_hidden_layers": 2, "head_dim": 32, "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}}},
     "1 x 32/32 10000 mrope_interleaved=True mrope_section=(8, 8), 1 x 16/32 1e+06 mrope_interleaved=True mrope_section=(4, 4)"),
    ("neomme", {"num_hidden_layers": 7, "rope_theta": 500.0},
     "5 x 64/64 500 mrope_interleaved=True mrope_section=(16, 16), 2 x 16/64 500 mrope_interleaved=True mrope_section=(4, 4)"),
    ("olmo3", {"num_hidden_layers": 4, "transformers_version": "5.13.0", "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
     "3 x 128/128 500000, 1 x 128/128 500000 factor=2.0 rope_type=linear"),
    ("olmo_hybrid", {"rope_parameters": {"rope_theta": None}}, "32 x -/128"),
    ("olmo_hybrid", {"num_hidden_layers": 4}, "3 x -/128, 1 x 128/128 10000"),
    ("openelm", {"num_transformer_layers": 2, "head_dim": 16, "rope_freq_constant": 5e5}, "2 x 16/16 500000"),
    ("persimmon", {"transformers_version": "4.9"}, "36 x 32/64 25000"),
    ("phi-msft", {"n_layer": 2, "n_embd": 2048, "n_head": 32, "rotary_dim": 16, "flash_rotary": True},
     "2 x 16/64 10000"),
    ("phi3", {"length": 4096, "max_position_embeddings": 131072, "rope_scaling": {"type": "su", "short_factor": [1.5] * 48, "long_factor": [2.5] * 48}},
     "32 x 96/96 10000 attention_factor=1.1902 factor=32.0 long_factor=2.5... original_max_position_embeddings=4096 rope_type=longrope short_factor=1.5..."),
    ("phi3", {"length": 4097, "max_position_embeddings": 131072, "rope_scaling": {"type": "su", "short_factor": [1.5] * 48, "long_factor": [2.5] * 48, "short_mscale": 1.25, "long_mscale": 1.5}},
     "32 x 96/96 10000 attention_factor=1.5 factor=32.0 long_factor=2.5... original_max_position_embeddings=4096 rope_type=longrope short_factor=1.5..."),
    ("phi3small", {"num_hidden_layers": 2, "head_dim": 16, "rope_embedding_base": 5e5}, "2 x 16/16 500000"),
    ("qwen", {"length": 4096, "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1, "seq_length": 2048, "use_logn_attn": False},
     "1 x 16/16 10000 dynamic_steps=True max_position_embeddings=2048 rope_type=dynamic"),
    ("qwen3_asr", {"text_config": {"num_hidden_layers": 2}, "audio_config": {}}, "2 x 128/128 10000"),
    ("qwen3_vl_text", {"transformers_version": "4.57"},
     "32 x 128/128 5e+06 mrope_interleaved=True mrope_section=(24, 20, 20)"),
    ("recurrent_gemma", {"num_hidden_layers": 4, "_block_types": ["recurrent", "attention"]},
     "1 x -/256, 1 x 128/256 10000, 1 x -/256, 1 x 128/256 10000"),
    ("sarvam_mla", {"head_dim": 5, "rope_theta": 1e4, "rope_scaling": {"type": "deepseek_yarn", "factor": 2.0, "original_max_position_embeddings": 4096}},
     "32 x 64/192 10000 attention_factor=1.0693 factor=2.0 original_max_position_embeddings=4096 rope_type=yarn; interleaved; last"),
    ("sarvam_mla", {"qk_head_dim": 192}, "32 x 64/192 10000; interleaved; last"),
    ("smollm3", {"num_hidden_layers": 4, "no_rope_layers": [0, 1, 1, 0], "no_rope_layer_interval": 3},
     "1 x -/128, 2 x 128/128 2e+06, 1 x -/128"),
    ("smollm3", {"num_hidden_layers": 5}, "3 x 128/128 2e+06, 1 x -/128, 1 x 128/128 2e+06"),
    ("stablelm_epoch", {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "rope_pct": 0.5},
     "2 x 8/16 10000"),
    ("step3p5", {"num_hidden_layers": 2, "head_dim": 16, "partial_rotary_factor": 0.5, "layer_types": [FULL, SLIDING], "rope_parameters": {"full_attention": {"rope_theta": 7.0}, "sliding_attention": {"rope_theta": 9.0, "partial_rotary_factor": 0.25}}},
     "1 x 8/16 7, 1 x 4/16 9"),
    ("step3p5", {"num_hidden_layers": 3, "num_nextn_predict_layers": 1, "head_dim": 16, "layer_types": [FULL, SLIDING, SLIDING, SLIDING], "rope_theta": [5e6, 1e4, 1e4, 1e4], "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0], "yarn_only_types": [FULL], "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
     "1 x 8/16 5e+06 factor=2.0 rope_type=linear, 2 x 16/16 10000"),
    ("step3p7", {"text_config": {"model_type": "anything", "num_hidden_layers": 2}}, "2 x 128/128 10000"),
    ("ultrabert", {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3, "attention_windows": [8, 0, 8], "rope_theta": [1e4, 2e6, 1e4]},
     "1 x 16/16 10000, 1 x 16/16 2e+06, 1 x 16/16 10000"),
    ("vibevoice", {"decoder_config": {"model_type": "qwen2", "num_hidden_layers": 2}}, "2 x 128/128 10000"),
    ("voxtral", {"text_config": {"num_hidden_layers": 2}}, "2 x 128/128 1e+08"),
    ("zamba2", {"layers_block_type": ["hybrid"] * 4, "length": 32768, "hidden_size": 768, "num_attention_heads": 8, "num_hidden_layers": 4, "rope_scaling": {"type": "dynamic", "factor": 2.0}, "use_mem_rope": True, "use_long_context": True},
     "4 x 192/192 10000 factor=2.0 max_position_embeddings=16384 rope_type=dynamic"),
    ("zamba2", {"num_hidden_layers": 4, "layers_block_type": ["hybrid"] * 4, "attention_head_dim": 64}, "4 x -/64"),
]
REFUSED = [
    ("", {"head_dim": 64, "num_hidden_layers": 1, "rope_parameters": {"rope_theta": None}},
     "rope_parameters.rope_theta must have a value or be left out for 10000.0, got null"),
    ("", {"layout": "half", "head_dim": 64, "num_hidden_layers": 1, "per_layer_config": {"0": {"kinds": FULL}}},
     "the key per_layer_config.0.kinds = 'full_attention' is not read by rotary_from_config: is per_layer_config.0.kind meant?"),
    ("", {"head_dim": 64, "num_hidden_layers": 1, "query_scale": {"coefficient": 0.2, "period": 16, "offset": 1, "variant": "exp"}},
     "variant must be one of ('steps', 'log', 'power'), got 'exp'"),
    ("", {"head_dim": 64, "num_hidden_layers": 1, "query_scale": {"period": 16}}, "query_scale.coefficient is missing"),
    ("", {"head_dim": 8, "num_hidden_layers": 1},
     'layout must be given, "half" or "interleaved", for a config without a model_type'),
    ("", {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "truncate": False}}},
     "rope_parameters.full_attention.truncate = False, which transformers does not read in settings for a layer type"),
    ("", {"layout": "interleaved", "num_hidden_layers": 2, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "layer_types": [FULL, SLIDING], "rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 4096, "mscale_all_dim": 1.0}, "sliding_attention": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 4096, "mscale_all_dim": 0.5}}},
     "mscale_all_dim asks for different scales of the scores, [1.143433966251171, 1.2964769927807063]"),
    ("", {"num_hidden_layers": 2, "rope_parameters": {FULL: {}, SLIDING: {}}},
     "layer_types is missing, and rope_parameters has settings for ['full_attention', 'sliding_attention']"),
    ("", {"lm": {"rope_scaling": {}}}, "the key lm = {'rope_scaling': {}} is not read by a config without a model_type"),
    ("", {"num_hidden_layers": 2, "attn_layer_indices": [0, 1], "full_attn_idxs": [2, 3]},
     "attn_layer_indices = [0, 1] contradicts full_attn_idxs = [2, 3]"),
    ("", {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 3},
     "head_dim is missing, and hidden_size = 64 is no multiple of 3 heads"),
    ("", {"num_hidden_layers": 2, "hidden_size": 64},
     "num_attention_heads or n_head or n_heads or decoder_num_attention_heads is missing"),
    ("", {"num_hidden_layers": 2, "rope_theta": 1e5, "rope_parameters": {"full_attention": None}},
     "rope_theta = 100000.0 contradicts rope_parameters, whose layer types have no positions"),
    ("", {"num_hidden_layers": 2}, "hidden_size or n_embd or d_model is missing"),
    ("", {"textConfig": {"rope_scaling": {}}},
     "the key textConfig = {'rope_scaling': {}} is not read by rotary_from_config: is text_config meant?"),
    ("", {"text_config": {"text_config": {"text_config": {"text_config": {}}}}},
     "config must hold its text_config within four levels"),
    ("", {1: 2}, "each key of config must be a string, got int 1"),
    ("", {}, "num_hidden_layers or n_layer or n_layers or num_layers or decoder_num_hidden_layers is missing"),
    ("afmoe", {"layer_types": 3}, "layer_types must be a sequence of strings or numbers, got int 3"),
    ("axk1", {"rope_interleave": None}, "rope_interleave must have a value or be left out for True, got null"),
    ("axk2", {"index_head_dim": 16}, "index_head_dim must be at least 32, got 16"),
    ("baichuan", {"hidden_size": 5120, "num_attention_heads": 40},
     "hidden_size must be 4096, got 5120: the larger models of this type have ALiBi"),
    ("bailing_hybrid", {"architectures": ["BailingMoeV2_5ForCausalLM"]},
     "{'architectures': ['BailingMoeV2_5ForCausalLM']} are those of Ring-2.5 or Ling-2.6, whose linear attention rotates too: they are not read"),
    ("bailing_hybrid", {"linear_silu": True},
     "{'linear_silu': True} are those of Ring-2.5 or Ling-2.6, whose linear attention rotates too: they are not read"),
    ("bailing_hybrid", {"qk_rope_head_dim": None}, "qk_rope_head_dim is missing"),
    ("bailing_hybrid", {"rotary_dim": 66}, "rotary_dim must be 64 in model_type 'bailing_hybrid', got 66"),
    ("bamba", {"num_hidden_layers": 1, "layer_types": [FULL], "partial_rotary_factor": 1.0},
     "the class's rope_parameters.partial_rotary_factor (of 128) = 64 contradicts partial_rotary_factor (of 128) = 128"),
    ("bamba", {"num_hidden_layers": 2, "attn_layer_indices": [7]}, "attn_layer_indices must be of the 2 layers, got 7"),
    ("bert", {}, "model_type 'bert' is not read: it has no rotary embedding"),
    ("chatglm", {"position_encoding_2d": True},
     "position_encoding_2d must be False in model_type 'chatglm', got True"),
    ("chatglm", {"rope_ratio": 16},
     "rope_ratio = 16 divides the positions of ChatGLM2-6B-32K and multiplies the base of other models: write rope_theta or rope_scaling in its place"),
    ("chatglm", {"rope_ratio": 50, "rope_theta": 1e4},
     "rope_theta = 10000.0 contradicts 10000 times rope_ratio = 500000.0"),
    ("clvp_encoder", {},
     "model_type 'clvp_encoder' is not read: it rotates its values too, and does not rotate the outputs of attention back"),
    ("cohere", {"transformers_version": "5.0.0.dev0"},
     "rope_theta is missing: its default is 500000.0 since transformers 5.0 and 10000.0 before: write it, or the release that the config is for as transformers_version, got '5.0.0.dev0'"),
    ("cohere2_moe", {"rope_scaling": {"type": "linear", "factor": 2.0}},
     "rope_scaling must be {} in model_type 'cohere2_moe', got {'type': 'linear', 'factor': 2.0}"),
    ("cohere2_moe", {"sliding_window": None}, "sliding_window must not be null in model_type 'cohere2_moe'"),
    ("dbrx", {"rope_parameters": {"rope_type": "linear"}},
     "rope_parameters.rope_theta is missing beside rope_type = 'linear': transformers takes 10000.0, which the model may not have been trained with: write its base"),
    ("deepseek_ocr2_text", {"qk_nope_head_dim": 2},
     "qk_nope_head_dim must be 0 in model_type 'deepseek_ocr2_text', got 2"),
    ("deepseek_ocr2_text", {"use_mla": True}, "use_mla must be False in model_type 'deepseek_ocr2_text', got True"),
    ("deepseek_v3", {"qk_nope_head_dim": 1048576},
     "qk_nope_head_dim + qk_rope_head_dim must be at most 2²⁰, got 1048640"),
    ("deepseek_v3", {"rope_scaling": {"factor": 40, "mscale_all_dim": 1e+200, "original_max_position_embeddings": 4096, "type": "yarn"}},
     "score_scale must be finite, got inf"),
    ("deepseek_v4", {"head_dim": 61, "qk_rope_head_dim": 64},
     "head_dim must be more than the 64 features that rotate, got 61"),
    ("deepseek_v4", {"num_hidden_layers": 2, "layer_types": [SLIDING, FULL]},
     "the layer type 'full_attention' is not known for model_type 'deepseek_v4'"),
    ("deepseek_v4", {"rope_parameters": {"compress": {"rope_theta": 1e5}}},
     "rope_parameters.compress.partial_rotary_factor is missing"),
    ("deepseek_v4", {"compress_rope_theta": 7.0, "rope_parameters": {"compress": {"rope_theta": 1e4, "partial_rotary_factor": 0.125}}},
     "rope_parameters.heavily_compressed_attention.rope_theta = 10000.0 contradicts compress_rope_theta = 7.0"),
    ("deepseek_v4", {"num_hidden_layers": 1, "compress_ratios": [0], "rope_parameters": {"main": {}}},
     "rope_parameters.main.rope_theta is missing"),
    ("deepseek_v4", {"num_hidden_layers": 2, "compress_ratios": [0, 8]},
     "compress_ratios must hold [0, 4, 128], got [0, 8]"),
    ("deepseek_v4", {"rope_parameters": {"main": {}, "compress": 3}},
     "rope_parameters.compress must be a mapping, got int 3"),
    ("deepseek_v4", {"rope_scaling": {"rope_theta": 5e6}},
     "rope_scaling.rope_theta = 5000000.0 contradicts rope_theta = 10000.0"),
    ("deepseek_v4", {"rope_scaling": {"type": "deepseek_yarn"}},
     "rope_scaling.type must be one of ['default', 'dynamic', 'linear', 'llama3', 'longrope', 'proportional', 'yarn'], got 'deepseek_yarn'"),
    ("dots3_note_text", {"rope_scaling": {"type": "linear", "factor": 2.0}},
     "rope_scaling must be {} in model_type 'dots3_note_text', got {'type': 'linear', 'factor': 2.0}"),
    ("ernie4_5_vl_moe_text", {"rope_scaling": {"mrope_section": [4, 4]}, "hidden_size": 64, "num_attention_heads": 4},
     "rope_scaling.mrope_section must be height, width and time, the first two equal, of 8 pairs, got (4, 4)"),
    ("esm", {"position_embedding_type": None}, "position_embedding_type must be one of ['rotary'], got None"),
    ("esm", {}, "position_embedding_type must be one of ['rotary'], got 'absolute'"),
    ("exaone4", {"sliding_window_pattern": "LLS"},
     "sliding_window_pattern must be a number or letters L and G, got 'LLS'"),
    ("exaone4", {"sliding_window_pattern": 4.0}, "sliding_window_pattern must be an integer, got float 4.0"),
    ("falcon_h1", {"layer_types": [FULL]},
     "layer_types must name the 32 layers of num_hidden_layers, got 1: ('full_attention',)"),
    ("flint", {}, "layer_types is missing"),
    ("gemma3_text", {"rope_global_base_freq": 1e6},
     "the key rope_global_base_freq = 1000000.0 is not read by model_type 'gemma3_text'"),
    ("gemma3_text", {"rope_parameters": {"factor": 8.0}},
     "rope_parameters must hold settings for each of the layer types ['full_attention', 'sliding_attention']"),
    ("gemma3_text", {"rope_parameters": {"sliding_attention": None}},
     "rope_parameters.sliding_attention must be a mapping, got NoneType None"),
    ("gemma3_text", {"rope_scaling": {"full_attention": {}}},
     "rope_scaling must hold one set of settings, not those of layer types, got {'full_attention': {}}"),
    ("glm4_moe_lite", {"partial_rotary_factor": 0.25},  # a share of the latent width, which is a quarter of the head
     "partial_rotary_factor = 0.25 contradicts qk_rope_head_dim = 64 of 256 features"),
    ("glm_moe_dsa", {"indexer_rope_interleave": False},
     "indexer_rope_interleave must be True in model_type 'glm_moe_dsa', got False"),
    ("gptj", {"rotary": "false"}, "rotary must be true or false, got str 'false'"),
    ("granite_swa", {"layer_rope_theta": ["1"]}, "layer_rope_theta must be a number, got str '1'"),
    ("granite_swa", {"num_hidden_layers": 2, "layer_rope_theta": [1.0]}, "layer_rope_theta must hold 2 numbers, got 1"),
    ("granitemoehybrid", {"position_embedding_type": "rotary"},
     "position_embedding_type must be one of ('nope', 'rope'), got 'rotary'"),
    ("hunyuan_v1_dense", {"position_embedding_xdrope": True},
     "position_embedding_xdrope = True contradicts the code of model_type 'hunyuan_v1_dense'"),
    ("hunyuan_v1_dense", {"rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 2.0}},
     "rope_scaling.factor = 2.0 contradicts the factor that goes with alpha = 1.0"),
    ("internlm", {"rotary": {1: 2}}, "each key of rotary must be a string, got int 1"),
    ("jamba", {"position_embedding_type": "rope"},
     "position_embedding_type = 'rope' contradicts the code of model_type 'jamba'"),
    ("kimi_linear", {"mla_use_nope": False}, "mla_use_nope must be True in model_type 'kimi_linear', got False"),
    ("lfm2", {"use_pos_enc": False}, "use_pos_enc must be True in model_type 'lfm2', got False"),
    ("Llama", {},
     "model_type 'Llama' is not known, and its code may do what no key says: a known type may be written in its place only if the code of both is the same in this: which features make a pair, how many rotate, the base, which layers have positions, what scales queries and scores"),
    ("llama", {"alibi": True},
     "alibi = True contradicts the code of model_type 'llama'"),
    ("llama", {"head_dim": 64, "rotary_dim": 32}, "the width of model_type 'llama' = 64 contradicts rotary_dim = 32"),
    ("llama", {"hidden_size": 64, "num_attention_heads": 4, "partial_rotary_factor": 8},
     "the width of model_type 'llama' = 16 contradicts partial_rotary_factor (of 16) = 128"),
    ("llama", {"length": 0}, "length must be at least 1, got 0"),
    ("llama", {"length": 4096, "rope_scaling": {"type": "longrope", "original_max_position_embeddings": 4096, "short_factor": [1.0] * 32, "long_factor": [2.0] * 32, "short_mscale": 1.25, "attention_factor": 1.0}},
     "rope_scaling.attention_factor = 1.0 contradicts rope_scaling.short_mscale = 1.25"),
    ("llama", {"max_position_embeddings": 4096, "rope_theta": 1e6, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
     "rope_scaling.original_max_position_embeddings is missing: write the length that the model was trained for before its scaling; transformers takes max_position_embeddings = 4096, which may be that after it"),
    ("llama", {"nope": True}, "nope = True contradicts the code of model_type 'llama'"),
    ("llama", {"num_hidden_layers": 2, "per_layer_config": {"2": {"head_dim": 8}}},
     "per_layer_config must map layers below 2 to mappings, got '2': {'head_dim': 8}"),
    ("llama", {"num_hidden_layers": 65537}, "num_hidden_layers must be at most 65,536, got 65537"),
    ("llama", {"per_layer_config": []}, "per_layer_config must be a mapping, got list []"),
    ("llama", {"per_layer_config": {"0": {"head_dims": 64}}},
     "the key per_layer_config.0.head_dims = 64 is not read by rotary_from_config: is per_layer_config.0.head_dim meant?"),
    ("llama", {"position_embedding_type": "alibi"},
     "position_embedding_type = 'alibi' contradicts the code of model_type 'llama'"),
    ("llama", {"position_embedding_type": 5}, "position_embedding_type must be a string, got int 5"),
    ("llama", {"ropeTheta": 5e5},
     "the key ropeTheta = 500000.0 is not read by model_type 'llama': is rope_theta meant?"),
    ("llama", {"rope_interleave": True},
     "rope_interleave = True contradicts that of model_type 'llama' = False"),
    ("llama", {"rope_on_values": True}, "the key rope_on_values = True is not read by model_type 'llama'"),
    ("llama", {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
     "rope_parameters must hold one set of settings, not those of layer types, got {'full_attention': {'rope_theta': 10000.0}}"),
    ("llama", {"rope_parameters": {"max_position_embeddings": 4096}, "max_position_embeddings": 8192},
     "rope_parameters.max_position_embeddings = 4096 contradicts max_position_embeddings = 8192"),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, "max_position_embeddings": None},
     "max_position_embeddings is missing"),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
     "length must be given: the spectrum of rope_parameters.rope_type depends on it"),
    ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 0}},
     "rope_parameters.rope_type 'linear': linear_scaling: factor must be positive, got 0.0"),
    ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}, "rope_scaling": {"factor": 2.0}},
     "rope_scaling = {'factor': 2.0} contradicts rope_parameters = {'rope_type': 'linear', 'rope_theta': 10000.0}: write all settings into one of them, the base of the model too"),
    ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 4.0}},
     "rope_parameters.high_freq_factor is missing"),
    ("llama", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}},
     "rope_parameters.short_factor is missing"),
    ("llama", {"rope_parameters": {"rope_type": "mllama4"}},
     "rope_parameters.rope_type must be one of ['default', 'dynamic', 'linear', 'llama3', 'longrope', 'proportional', 'yarn'], got 'mllama4'"),
    ("llama", {"rope_parameters": {"rope_type": "mrope"}}, "rope_parameters.mrope_section is missing"),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 8192, "attention_factor": 1.0, "attn_factor": 2.0}},
     "rope_parameters.attn_factor = 2.0 contradicts that of the code = 1.0"),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 8192, "extrapolation_factor": 0.5}},
     "rope_parameters.extrapolation_factor = 0.5 contradicts that of the code = 1.0"),
    ("llama", {"rope_scaling": "linear"}, "rope_scaling must be a mapping, got str 'linear'"),
    ("llama", {"rope_scaling": {"factor": 2.0}}, "the key rope_scaling.factor = 2.0 is not read by the rope_type 'default', because none is written"),
    ("llama", {"rope_scaling": {"rope_type": "proportional", "rope_theta": 1e5, "factor": None}},
     "rope_scaling.factor must have a value or be left out for 1.0, got null"),
    ("llama", {"rope_scaling": {"type": "linear", "facter": 2.0}},
     "the key rope_scaling.facter = 2.0 is not read by rope_type 'linear'"),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
     "rope_scaling = {'type': 'linear', 'factor': 2.0} contradicts rope_parameters = {'rope_type': 'default', 'rope_theta': 10000.0}: write all settings into one of them, the base of the model too"),
    ("llama", {"rope_scaling": {"type": "su", "rope_type": "linear"}},
     "rope_scaling.rope_type = 'linear' contradicts rope_scaling.type = 'su'"),
    ("llama", {"rope_scaling": {"type": "yran"}},
     "rope_scaling.type must be one of ['default', 'dynamic', 'linear', 'llama3', 'longrope', 'proportional', 'yarn'], got 'yran'"),
    ("llama", {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}},
     "rope_parameters.rope_theta = 500000.0 contradicts rope_theta = 10000.0"),
    ("llama", {"rope_theta": None}, "rope_theta must have a value or be left out for 10000.0, got null"),
    ("llama", {"use_rope": False},
     "use_rope = False contradicts the code of model_type 'llama'"),
    ("llama4_text", {"attn_scale": None}, "attn_scale must have a value or be left out for 0.1, got null"),
    ("llama4_text", {"floor_scale": 1}, "floor_scale must be at least 2, got 1"),
    ("llava", {"lm_config": {}}, "lm_config.model_type is missing: model_type 'llava' may hold any language model"),
    ("llava", {"text_config": {"rope_theta": 5e5}, "rope_theta": 1e4},
     "{'rope_theta': 10000.0} beside the language model's config would change it, but its class does not read it there: write it into that config, or remove it"),
    ("llava", {"text_config": {}, "position_embedding_type": "t5"},
     "{'position_embedding_type': 't5'} beside the language model's config would change it, but its class does not read it there: write it into that config, or remove it"),
    ("llava", {"text_config": {}, "rope_traditional": "yes"},
     "{'rope_traditional': 'yes'} beside the language model's config would change it, but its class does not read it there: write it into that config, or remove it"),
    ("llava", {}, "text_config is missing, with the language model of model_type 'llava'"),
    ("longcat_flash", {"head_dim": 128}, "head_dim must be 64 in model_type 'longcat_flash', got 128"),
    ("longcat_flash", {"num_layers": 3, "num_hidden_layers": 3},
     "num_hidden_layers must be 6 in model_type 'longcat_flash', got 3"),
    ("mimo_v2_flash", {"num_hidden_layers": 3, "hybrid_layer_pattern": [0, 0, 1], "layer_types": [FULL, SLIDING, SLIDING]},
     "hybrid_layer_pattern = ['full_attention', 'full_attention', 'sliding_attention'] contradicts layer_types = ['full_attention', 'sliding_attention', 'sliding_attention']"),
    ("mimo_v2_flash", {"num_hidden_layers": 3, "rope_theta": 1e4, "layer_types": [FULL, SLIDING, SLIDING], "rope_parameters": {"full_attention": {"rope_theta": 5e6}, "sliding_attention": {}}},
     "rope_parameters.full_attention.rope_theta = 5000000.0 contradicts rope_theta = 10000.0"),
    ("mimo_v2_flash", {"swa_head_dim": 128}, "swa_head_dim must be 192 in model_type 'mimo_v2_flash', got 128"),
    ("minimax_m1", {"attn_type_list": [0, 1, 2], "num_hidden_layers": 3},
     "attn_type_list must hold [0, 1], got [0, 1, 2]"),
    ("minimax_m3_vl_text", {"rotary_dim": 64},
     "partial_rotary_factor is missing: transformers ignores rotary_dim, and other code reads it"),
    ("mistral4", {"qk_nope_head_dim": 128},
     "the class's rope_parameters.partial_rotary_factor = 0.5 contradicts qk_rope_head_dim = 64 of 192 features"),
    ("mistral_large4_text", {"rope_parameters": {"learned_log_factor": "a"}},
     "rope_parameters.learned_log_factor = 'a' contradicts learned_log_factor = 'lerope.alpha'"),
    ("mllama_text_model", {"num_hidden_layers": 2, "cross_attention_layers": [40]}, "cross_attention_layers must be of the 40 layers, got 40"),
    ("mllama_text_model", {"cross_attention_layers": ["3"]}, "cross_attention_layers must be of the 40 layers, got '3'"),
    ("ministral3", {"query_scale": 1, "max_position_embeddings": 32768, "rope_theta": 2e4},
     "the class's rope_parameters.rope_theta = 1000000.0 contradicts rope_theta = 20000.0"),
    ("apertus", {"rope_theta": 2e4}, "the class's rope_parameters.rope_theta = 12000000.0 contradicts rope_theta = 20000.0"),
    ("gemma4_text", {"rope_theta": 2e4}, "the class's rope_parameters.rope_theta = 10000.0 contradicts rope_theta = 20000.0"),
    ("gemma4_text", {"partial_rotary_factor": 0.5}, "the width of model_type 'gemma4_text' = 256 contradicts partial_rotary_factor (of 256) = 128"),
    ("deepseek_v3", {"rotary_dim": 32}, "qk_rope_head_dim = 64 contradicts rotary_dim = 32"),
    ("mellum", {"partial_rotary_factor": 0.5, "layer_types": [FULL] * 28},
     "the width of model_type 'mellum' = 128 contradicts partial_rotary_factor (of 128) = 64"),
    ("nomic_bert", {"rotary_emb_base": 1e4}, "rotary_emb_base must be 1000.0 in model_type 'nomic_bert', got 10000.0"),
    ("persimmon", {"transformers_version": "5"},
     "rope_theta is missing: its default is 10000.0 since transformers 5.0 and 25000.0 before: write it, or the release that the config is for as transformers_version, got '5'"),
    ("laguna", {"rope_theta": 2e4, "rope_parameters": {x: {"rope_type": "default", "rope_theta": None} for x in (FULL, SLIDING)}},
     "rope_parameters.full_attention.rope_theta must have a value or be left out for 20000.0, got null"),
    ("llama", {"rope_theta": 1e4, "rope_scaling": {"rope_type": "dynamic", "dynamic_steps": True}}, "the key rope_scaling.dynamic_steps = True is not read by rope_type 'dynamic'"),
    ("modernbert", {"rope_scaling": {"type": "linear"}},
     "rope_scaling.type = 'linear' must be spelled rope_type for this model_type"),
    ("molmo", {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}, "rope_theta is missing"),
    ("molmo2_text", {"rope_scaling_layers": ["0"]}, "rope_scaling_layers must be of the 36 layers, got '0'"),
    ("molmo2_text", {"rope_scaling_layers": [0], "rope_parameters": {"original_max_position_embeddings": 1024}, "original_max_position_embeddings": 2048},
     "rope_parameters.original_max_position_embeddings = 1024 contradicts original_max_position_embeddings = 2048"),
    ("my_model", {},
     "model_type 'my_model' is not known, and its code may do what no key says: a known type may be written in its place only if the code of both is the same in this: which features make a pair, how many rotate, the base, which layers have positions, what scales queries and scores"),
    ("my_vl", {"audio_config": {}}, "text_config is missing, with the language model of model_type 'my_vl'"),
    ("nanochat", {"rope_scaling": {"type": "linear"}}, "rope_scaling.factor is missing"),
    ("nemotron-nas", {"block_configs": [{}, {}, {}], "num_hidden_layers": 4},
     "block_configs must have 4 items, one for each layer, got 3"),
    ("neomme", {"head_dim": None}, "head_dim is missing"),
    ("neomme", {"rope_parameters": {"full_attention": None}}, "full_attention must be a mapping, got NoneType None"),
    ("neomme", {"rope_parameters": {"rope_theta": 5e5}},
     "the key rope_parameters.rope_theta = 500000.0 is not read by model_type 'neomme'"),
    ("step3p5", {"partial_rotary_factors": 0.5}, "partial_rotary_factors must be a sequence of strings or numbers, got float 0.5"),
    ("olmo3", {"num_hidden_layers": 3, "layer_types": [SLIDING, "full", FULL]},
     "the layer types ['full'] of layer_types are not known"),
    ("olmo3", {"rope_theta": 12345.0},
     "rope_theta must be 500000.0 in model_type 'olmo3', got 12345.0"),
    ("cohere", {"transformers_version": 5.0}, "transformers_version must be a string, got float 5.0"),
    ("olmo_hybrid", {"rope_parameters": {"rope_theta": None}, "rope_scaling": {"rope_theta": 1e4}},
     "rope_scaling = {'rope_theta': 10000.0} contradicts rope_parameters = {'rope_theta': None}: write all settings into one of them, the base of the model too"),
    ("paddleocr_vl_text", {"head_dim": None},
     "the class's rope_parameters.mrope_section: multi_section: sections must sum to the 32 pairs of frequencies, got (16, 24, 24)"),
    ("phi", {"head_dim": 30},
     "the class's rope_parameters.partial_rotary_factor (of 30) must rotate an even number of features, from 2 to 30, got 15"),
    ("phi", {"head_dim": 32, "rotary_dim": 8}, "the class's rope_parameters.partial_rotary_factor (of 32) = 16 contradicts rotary_dim = 8"),
    ("phi", {"rope_parameters": {"partial_rotary_factor": None}},
     "rope_parameters.partial_rotary_factor must have a value or be left out for 0.5, got null"),
    ("phi3", {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48, "original_max_position_embeddings": 1024}},
     "rope_scaling.original_max_position_embeddings = 1024 contradicts original_max_position_embeddings = 4096"),
    ("phi3small", {"rope_position_scale": 2.0}, "rope_position_scale must be 1.0 in model_type 'phi3small', got 2.0"),
    ("qwen", {"kv_channels": 16, "num_hidden_layers": 1, "seq_length": 2048},
     "length must be given: the spectrum of rope_scaling.type depends on it"),
    ("qwen", {"length": 5000, "hidden_size": 768, "num_attention_heads": 8, "num_hidden_layers": 4, "seq_length": 1},
     "seq_length must be at least 2, got 1"),
    ("qwen2", {"use_mrope": True},
     "use_mrope = True contradicts the code of model_type 'qwen2'"),
    ("qwen2_5_vl", {"hidden_size": 3584, "num_attention_heads": 28, "rope_scaling": {"mrope_section": [16, 24, 20]}},
     "rope_scaling.mrope_section: multi_section: sections must sum to the 64 pairs of frequencies, got (16, 24, 20)"),
    ("qwen2_5_vl", {"rope_scaling": {"mrope_interleaved": True}},
     "rope_scaling.mrope_interleaved = True contradicts that of model_type 'qwen2_5_vl' = False"),
    ("qwen2_vl", {"rope_scaling": {"mrope_section": None}},
     "rope_scaling.mrope_section must have a value or be left out for [16, 24, 24], got null"),
    ("qwen3", {"head_dim": None}, "head_dim must have a value or be left out for 128, got null"),
    ("qwen3", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
     "rope_scaling.rope_theta is missing beside rope_type = 'yarn': transformers takes 10000.0, which the model may not have been trained with: write its base"),
    ("recurrent_gemma", {"block_types": ["1"]}, "block_types must be one of ('recurrent', 'attention'), got '1'"),
    ("roformer", {"rope_theta": 5e5}, "rope_theta must be 10000.0 in model_type 'roformer', got 500000.0"),
    ("roformer", {"rotary_value": True}, "rotary_value must be False in model_type 'roformer', got True"),
    ("smollm3", {"no_rope_layer_interval": None},
     "no_rope_layer_interval must have a value or be left out for 4, got null"),
    ("smollm3", {"num_hidden_layers": 6, "no_rope_layers": [1, 0]},
     "no_rope_layers must hold 6 times 0 or 1, got [1, 0]"),
    ("step3p5", {"use_rope_layers": [True]}, "use_rope_layers must be [] in model_type 'step3p5', got [True]"),
    ("step3p5", {"yarn_only_types": []}, "yarn_only_types must be ['full_attention'] in model_type 'step3p5', got []"),
    ("ultrabert", {"num_hidden_layers": 3, "attention_windows": [8, 0, 8], "rope_theta": [1e4, 2e6, 1e5]},
     "rope_parameters.sliding_attention.rope_theta = 10000.0 contradicts rope_theta = 100000.0"),
    ("unlimited_ocr_text", {"hidden_size": 4096, "num_attention_heads": 64, "head_dim": 66},
     "head_dim must be 64 in model_type 'unlimited_ocr_text', got 66"),
    ("voxtral_realtime_encoder", {"encoder_layers": 3, "num_hidden_layers": 1},
     "encoder_layers = 3 contradicts num_hidden_layers = 1"),
    ("step3p5", {"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1.0 in model_type 'step3p5', got 0.5"),
    ("step3p5", {"rope_parameters": {"rope_type": "linear", "factor": 4.0}},
     "rope_parameters must be {} in model_type 'step3p5', got {'rope_type': 'linear', 'factor': 4.0}"),
    ("wavlm", {},
     "model_type 'wavlm' is not read: it has no rotary embedding: its bias is t5 times a gate of each token, which attention takes as query_data"),
    ("zamba2", {"num_attention_heads": None}, "num_attention_heads is missing"),
    ("zaya", {"rope_parameters": {"full_attention": {}}},
     "rope_parameters.hybrid is missing"),
    ("zaya", {"rope_parameters": {"hybrid": {}, "rope_type": "llama3"}},
     "the key rope_parameters.rope_type = 'llama3' is none of the layer_types"),
]
# Not in transformers, by what they are with four layers of 32 heads of 128 features.
REMOTE = {
    "3 x 128/128 10000, 1 x -/128": "exaone4_5_text",
    "4 x 128/128 10000": (
        "aquila baichuan deepseek Dream dream hunyuan internlm internlm2 llada mimo minicpm openelm orion "
        "PanguEmbedded phi3_v phi4 phi4mm RefinedWeb RefinedWebModel sdar sdar_moe solar xverse Yi"
    ),
    "4 x 128/128 10000 QueryScale(coefficient=0.1311540946262694, period=2048, offset=1, variant='log')": "qwen",
    "4 x 128/128 100000": (
        "bailing_moe bailing_moe_v2 deci internlmxcomposer2 minicpmo minicpmv minimax_m1 minimax_text_01 molmo "
        "nemotron-nas nemotron_nas qwen2_mtp qwen2_mtp_sensevoice"
    ),
    "4 x 128/128 1e+06": "phi3small",
    "4 x 128/128 500000": "iquestloopcoder",
    "4 x 128/128 5e+06; indexer: 4 x 128/128 5e+06": "minimax_m3",
    "4 x 256/256 500000": "step3_text",
    "4 x 32/128 10000": "gpt_neox_reward_model phi-msft stablelm_epoch",
    "4 x 64/128 10000; interleaved": "chatglm",
    "4 x 64/192 10000; interleaved; last": "AXK1 kimi_k2",
    "4 x 64/192 5e+06": "mimo_v2",
}
# fmt: on


@pytest.mark.parametrize(("model_type", "fragment", "plan"), READ, ids=[f"{i} {row[0]}" for i, row in enumerate(READ)])
def test_what_is_read(model_type, fragment, plan):
    found = read(model_type, fragment)
    assert in_words(found) == plan
    assert rotary_from_config(plan_to_config(found), length=found.length) == found


@pytest.mark.parametrize(
    ("model_type", "fragment", "message"), REFUSED, ids=[f"{i} {row[0]}" for i, row in enumerate(REFUSED)]
)
def test_what_is_refused(model_type, fragment, message):
    with pytest.raises((ValueError, TypeError)) as error:
        read(model_type, fragment)
    assert str(error.value) == f"rotary_from_config: {message}"


def test_types_that_are_not_in_transformers():
    sizes, found = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 4}, {}
    for name in MODELS.keys() - FACTS["types"].keys():
        keys = {} if MODELS[name].theta else {"rope_theta": 1e5}
        keys |= {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64} if MODELS[name].latent else {}
        keys |= {"seq_length": 2048, "use_dynamic_ntk": False} if name == "qwen" else {}
        found.setdefault(in_words(read(name, sizes | keys)), []).append(name)
    assert {
        words: " ".join(sorted(names, key=lambda name: (name.lower(), name))) for words, names in found.items()
    } == REMOTE


@pytest.mark.parametrize("name", MODELS)
def test_a_key_that_the_class_does_not_take_is_an_error_where_it_speaks_of_positions_or_is_near_one_that_is_read(name):
    for key in ("my_rope_key", "ropeFraction", "num_hidden_layerz", "rope_scalings"):
        with pytest.raises(ValueError, match=f"the key {key} = 1 is not read by model_type '{name}'"):
            read(name, {key: 1})
    with pytest.raises(ValueError, match="is num_hidden_layers meant"):
        read(name, {"num_hidden_layerz": 1})


BASES_AND_SHARES = {
    "rope_theta": 12345.0,
    "rotary_emb_base": 12345.0,
    "partial_rotary_factor": 0.375,
    "rotary_pct": 0.375,
}
# The classes do not read these keys, and published files contradict them; DeepSeek-V4's is that of sliding layers alone.
IGNORED = {
    "bailing_hybrid": "partial_rotary_factor",
    "dots3_note_text": "partial_rotary_factor",
    "deepseek_v4": "rope_theta",
}


@pytest.mark.parametrize("name", MODELS)
def test_a_base_or_a_share_changes_the_plan_or_is_an_error(name):
    def plan(**more):
        try:
            return read(name, {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 8, **more})
        except ValueError:
            return None

    usual = plan()
    for key, value in BASES_AND_SHARES.items():
        found = plan(**{key: value})
        still = found and not any(layer.rotary_dim for layer in found.layers)
        assert found is None or still or found != usual or IGNORED.get(name) == key, key


def test_other_keys_are_ignored_as_the_class_ignores_them():
    others = {
        "my_key": 1,
        "moe_layer_freq": 2,
        "interleave_moe_layer_step": 2,
        "max_2d_position_embeddings": 8,
        "_rope": 1,
    }
    assert read("llama", others) == read("llama", {})
    assert rotary_from_config(WithToDict({"model_type": "llama"})) == read("llama", {})


def test_types_without_rotary_embedding():
    assert {"bert", "t5", "vit", "whisper"} <= {*FACTS["without_rope"]} - MODELS.keys()
    for name in TYPES_REFUSED.keys() - MODELS.keys():
        with pytest.raises(ValueError, match=f"^rotary_from_config: model_type '{name}' is not read: "):
            read(name, {})
