"""Configs that contradict themselves, or say what a plan cannot: each error names the key."""

import numpy as np
import pytest

import posenc_jax as pe
from huggingface.published import (
    BASE,
    DEEPSEEK_V3,
    GEMMA_3,
    GEMMA_4,
    LLAMA_4,
    PHI_3,
    QWEN_25_VL,
    SMOLLM_3,
    SPREAD,
    llama,
    scaled,
)
from posenc_jax.hf import QueryScale, RotaryLayer, RotaryPlan, plan_to_config, rotary_from_config

BAD = [
    # what is missing
    ({}, "num_hidden_layers or n_layer or .* is missing"),
    ({"num_hidden_layers": 2}, "hidden_size or n_embd or d_model is missing"),
    ({"num_hidden_layers": 2, "hidden_size": 64}, "num_attention_heads or .* is missing"),
    ({"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 3}, "head_dim is missing, and hidden_size = 64 is no multiple of 3 heads"),
    (DEEPSEEK_V3 | {"qk_nope_head_dim": None}, "qk_nope_head_dim is missing"),
    (DEEPSEEK_V3 | {"qk_nope_head_dim": 2**20}, r"qk_nope_head_dim \+ qk_rope_head_dim must be at most 2²⁰, got 1048640"),
    (scaled("linear"), "rope_parameters.factor is missing"),
    (scaled("dynamic"), "rope_parameters.factor is missing"),
    (scaled("yarn"), "rope_parameters.factor is missing"),
    (scaled("llama3", factor=8.0, high_freq_factor=4.0), "rope_parameters.low_freq_factor is missing"),
    (scaled("llama3", factor=8.0, low_freq_factor=4.0), "rope_parameters.high_freq_factor is missing"),
    (scaled("llama3", low_freq_factor=1.0, high_freq_factor=4.0), "rope_parameters.factor is missing"),
    (scaled("longrope", short_factor=SPREAD), "rope_parameters.long_factor is missing"),
    (scaled("longrope", long_factor=SPREAD), "rope_parameters.short_factor is missing"),
    (scaled("dynamic", factor=2.0) | {"max_position_embeddings": None}, "max_position_embeddings is missing"),
    (scaled("yarn", factor=None, original_max_position_embeddings=512) | {"max_position_embeddings": None}, "max_position_embeddings is missing"),
    (scaled("yarn", factor=2.0), "^rotary_from_config: rope_parameters.original_max_position_embeddings is missing: write the length that the model was trained for"),
    (scaled("mrope"), "rope_parameters.mrope_section is missing"),
    (llama(rope_theta=None), "rope_theta must have a value or be left out for 10000.0, got null"),
    (llama(rope_parameters={"rope_theta": None}), "rope_parameters.rope_theta must have a value or be left out for 10000.0, got null"),
    ({"model_type": "gpt_oss", "num_hidden_layers": 1}, "rope_parameters is missing, and model_type 'gpt_oss' has its own default"),
    (GEMMA_4 | {"rope_parameters": None}, "rope_parameters is missing, and model_type 'gemma4_text' has"),
    ({"model_type": "lfm2", "num_hidden_layers": 1, "head_dim": 8}, "layer_types is missing"),
    (llama(model_type=None, rope_parameters={"full_attention": {"rope_theta": 1e4}, "sliding_attention": {}}), r"layer_types is missing, and rope_parameters has settings for \['full_attention', 'sliding_attention'\]"),
    # what is not known or not used
    (scaled("ntk", factor=2.0), r"rope_type must be one of \['default', 'dynamic', .*\], got 'ntk'"),
    (scaled("axial"), "got 'axial'"),
    (llama(rope_scaling={"type": "Linear", "factor": 2.0}), "type must be one of .* got 'Linear'"),
    (llama(rope_scaling={"type": ["linear"], "factor": 2.0}), "type must be one of .* got"),
    (scaled("default", factor=8.0), "the key rope_parameters.factor = 8.0 is not known or not used here"),
    (scaled("linear", factor=8.0, beta_fast=32), "the key rope_parameters.beta_fast = 32 is not known or not used"),
    (scaled("dynamic", factor=8.0, original_max_position_embeddings=2048), "the key rope_parameters.original_max_position_embeddings = 2048"),
    (scaled("yarn", factor=8.0, original_max_position_embeddings=8192, extrapolation_factor=0.5), "rope_parameters.extrapolation_factor must be 1, which keeps fast pairs as they are, got 0.5"),
    (scaled("yarn", factor=8.0, original_max_position_embeddings=8192, attention_factor=1.0, attn_factor=2.0), "rope_parameters.attention_factor = 1.0 contradicts rope_parameters.attn_factor"),
    (scaled("xdrope", alpha=8.0), "rope_parameters.rope_type = 'xdrope' is not read: its two features"),
    (scaled("mllama4"), "rope_parameters.rope_type = 'mllama4' is not read: it is that of Llama 4's vision tower"),
    (scaled("yarn", factor=8.0, original_max_position_embeddings=8192, low_freq_factor=1.0), "the key rope_parameters.low_freq_factor = 1.0"),
    (scaled("llama3", factor=8.0, original_max_position_embeddings=8192, low_freq_factor=1.0, high_freq_factor=4.0, attention_factor=1.0), "the key rope_parameters.attention_factor"),
    (scaled("default", mrope_section=[2, 3, 3]), r"the key rope_parameters.mrope_section = \[2, 3, 3\] is not known or not used here"),
    (scaled("default", llama_4_scaling_beta=0.1), "the key rope_parameters.llama_4_scaling_beta"),
    (llama(rope_local_base_freq=1e4), "the key rope_local_base_freq = 10000.0 is not known or not used here"),
    (llama(no_rope_layers=[1, 0]), r"the key no_rope_layers = \[1, 0\] is not known or not used here"),
    (llama(layer_rope_theta=[1e4, 0]), "the key layer_rope_theta"),
    (llama(rope_scaling={"type": "mrope", "mrope_section": [2, 3, 3]}), r"the key rope_scaling.mrope_section = \[2, 3, 3\] is not known or not used"),
    (llama(rope_ratio=50), "the key rope_ratio = 50 is not known"),
    (llama(alibi_bias_max=8), "the key alibi_bias_max = 8 is not known"),
    (llama(qk_rope_head_dim=64), "the key qk_rope_head_dim = 64"),
    ({"model_type": "m", "text_config": llama(), "rope_scaling": {"type": "linear", "factor": 2.0}}, "the key rope_scaling = .* stands beside text_config"),
    (llama(layer_types=["full_attention", "moe"]), r"the layer types \['moe'\] of layer_types are not known"),
    (llama(model_type="zaya", layer_types=["hybrid"] * 2, rope_parameters={"hybrid": {}, "rope_type": "llama3"}), "the key rope_parameters.rope_type = 'llama3' is none of the layer_types"),
    (llama(model_type="deepseek_v4", head_dim=61, qk_rope_head_dim=64), "head_dim must be more than the 64 features that rotate, got 61"),
    (llama(model_type=None, layer_types=["full_attention"] * 2, rope_parameters={"full_attention": {}, "main": {}}), "the key rope_parameters.main = {} is none of the layer_types"),
    (llama(model_type=None, layer_types=["full_attention"] * 2, rope_parameters={"full_attention": {"rope_theta": 1.0}, "truncate": False}), "the key rope_parameters.truncate = False is none of"),
    (llama(model_type=None, layer_types=["full_attention"] * 2, rope_parameters={"full_attention": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 4096, "truncate": False}}), "rope_parameters.full_attention.truncate = False, which transformers does not read"),
    (llama(per_layer_config={"0": {"rope_theta": 1e4}}), "the key per_layer_config.0.rope_theta is not known"),
    # what contradicts
    (llama(rope_theta=1e6, rope_parameters={"rope_theta": 1e4}), r"rope_parameters.rope_theta = 10000.0 contradicts rope_theta = 1000000.0"),
    (llama(rope_theta=1e6, rotary_emb_base=1e4), "rope_theta = 1000000.0 contradicts rotary_emb_base = 10000.0"),
    (llama(rope_scaling={"type": "linear", "rope_type": "dynamic", "factor": 2.0}), "rope_scaling.rope_type = 'dynamic' contradicts rope_scaling.type = 'linear'"),
    (llama(rope_scaling={"type": "linear", "factor": 2.0}, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}), r"rope_scaling = \{'type': 'linear', 'factor': 2.0\} contradicts rope_parameters = \{'rope_"),
    (llama(rope_scaling={"type": "linear", "factor": 2.0}, rope_parameters={"rope_type": "default", "rope_theta": 1e4}), r"rope_scaling = \{'type': 'linear', 'factor': 2.0\} contradicts rope_parameters = \{'rope_"),
    ({"model_type": "gpt_neox", "head_dim": 64, "num_hidden_layers": 1, "rotary_dim": 32, "rotary_pct": 0.25}, r"rotary_pct \(of 64\) = 16 contradicts rotary_dim = 32"),
    ({"model_type": "gpt_neox", "head_dim": 64, "num_hidden_layers": 1, "partial_rotary_factor": 0.5, "rotary_pct": 0.25}, r"rotary_pct \(of 64\) = 16 contradicts partial_rotary_factor \(of 64\) = 32"),
    (llama(partial_rotary_factor=0.5), r"partial_rotary_factor \(of 16\) = 8 contradicts the width of model_type 'llama' = 16"),
    (llama(rotary_emb_base=1e6), "the base of model_type 'llama' = 10000.0 contradicts rotary_emb_base = 1000000.0"),
    ({"model_type": "gpt_neox", "head_dim": 64, "num_hidden_layers": 1, "rope_theta": 1e6}, "the base of model_type 'gpt_neox' = 10000.0 contradicts rope_theta = 1000000.0"),
    ({"model_type": "phi", "head_dim": 32, "num_hidden_layers": 1, "rotary_dim": 8}, "the width of model_type 'phi' = 16 contradicts rotary_dim = 8"),
    (llama(model_type=None, layer_types=["full_attention"] * 2, partial_rotary_factor=0.5, rope_parameters={"full_attention": {"rope_theta": 1e6}}), r"head_dim = 16 contradicts partial_rotary_factor \(of 16\) = 8"),
    (llama(rope_interleave=True), "rope_interleave = True contradicts the layout of model_type 'llama' = 'half'"),
    (llama(n_embd=32), "hidden_size = 64 contradicts n_embd = 32"),
    (QWEN_25_VL | {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24], "mrope_interleaved": True}}, "mrope_interleaved = True contradicts that of model_type 'qwen2_5_vl' = False"),
    (DEEPSEEK_V3 | {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5 contradicts qk_rope_head_dim = 64 of 192 features"),
    (scaled("yarn", factor=2.0, original_max_position_embeddings=2048, max_position_embeddings=4096), "rope_parameters.max_position_embeddings = 4096 contradicts max_position_embeddings = 8192"),
    (llama(model_type=None, layer_types=["full_attention"] * 2, rope_theta=1e5, rope_parameters={"full_attention": {"rope_theta": 1e6}}), r"rope_theta = 100000.0 contradicts rope_parameters, whose layer types have \[1000000.0\]"),
    (llama(model_type=None, layer_types=["full_attention"] * 2, rope_theta=1e5, rope_parameters={"full_attention": None}), "rope_theta = 100000.0 contradicts rope_parameters, whose layer types have no positions"),
    (llama(model_type=None, attn_layer_indices=np.arange(2), full_attn_idxs=np.arange(2, 4)), r"attn_layer_indices = array\(\[0, 1\]\) contradicts full_attn_idxs"),
    # what does not fit
    (scaled("dynamic", factor=2.0) | {"max_position_embeddings": 2**31}, "^rotary_from_config: max_position_embeddings must fit into int32, got 2147483648"),
    (llama(num_hidden_layers=2**16 + 1), "num_hidden_layers must be at most 65,536, got 65537"),
    (llama(layer_types=["full_attention", 3]), "layer_types must name the 2 layers of num_hidden_layers"),
    (DEEPSEEK_V3 | {"rope_scaling": DEEPSEEK_V3["rope_scaling"] | {"mscale_all_dim": 1e200}}, "the square that mscale_all_dim asks for must be finite"),
    (scaled("longrope", short_factor=SPREAD[1:], long_factor=SPREAD, original_max_position_embeddings=8192), "rope_parameters.rope_type 'longrope': longrope: short_factor"),
    (scaled("linear", factor=0), "rope_parameters.rope_type 'linear': linear_scaling: factor must be positive, got 0.0"),
    (scaled("yarn", factor=0.5, original_max_position_embeddings=8192), "rope_type 'yarn': yarn: factor must be at least 1, got 0.5"),
    (scaled("dynamic", factor=0.5), "rope_type 'dynamic': dynamic_ntk: factor must be at least 1"),
    (scaled("yarn", factor=None, original_max_position_embeddings=10000), "yarn: factor must be at least 1, got 0.8192"),
    (QWEN_25_VL | {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 20]}}, "multi_section: sections must sum to the 64 pairs"),
    ({"model_type": "phi", "head_dim": 30, "num_hidden_layers": 1}, "head_dim must rotate an even number of features, from 2 to 30, got 15"),
    ({"model_type": "minimax_m2", "head_dim": 32, "num_hidden_layers": 1, "rotary_dim": 64}, "rotary_dim must rotate an even number of features, from 2 to 32, got 64"),
    ({"model_type": "gptj", "head_dim": 32, "num_hidden_layers": 1}, "rotary_dim must rotate an even number of features, from 2 to 32, got 64"),
    (DEEPSEEK_V3 | {"qk_rope_head_dim": 7}, "qk_rope_head_dim must rotate an even number of features, from 2 to 135, got 7"),
    (llama(rope_theta=float("nan")), "rope_theta must be finite, got nan"),
    ({"model_type": "bamba", "head_dim": 8, "num_hidden_layers": 2, "attn_layer_indices": [7]}, "attn_layer_indices must be of the 2 layers, got 7"),
    (SMOLLM_3 | {"no_rope_layers": [[1], 0, 1, 0, 1, 0]}, "no_rope_layers must hold 6 times 0 or 1"),
    (LLAMA_4["text_config"] | {"floor_scale": 0}, "floor_scale must be at least 1, got 0"),
    (llama(head_dim=15), "must rotate an even number of features, from 2 to 15, got 15"),
    (llama(layer_types=["full_attention"]), "layer_types must name the 2 layers of num_hidden_layers, got 1"),
    (SMOLLM_3 | {"no_rope_layers": [1, 0]}, r"no_rope_layers must hold 6 times 0 or 1, got \[1, 0\]"),
    (SMOLLM_3 | {"no_rope_layers": [4] * 6}, "no_rope_layers must hold 6 times 0 or 1"),
    ({"model_type": "granite_swa", "head_dim": 8, "num_hidden_layers": 2, "layer_rope_theta": [1.0]}, "layer_rope_theta must hold 2 numbers, got 1"),
    (llama(model_type="recurrent_gemma", block_types=["1"]), r"block_types must be one of \('recurrent', 'attention'\), got '1'"),
    (llama(model_type="mllama_text_model", cross_attention_layers=[2]), "cross_attention_layers must be of the 2 layers, got 2"),
    (llama(cross_attention_layers=[1]), r"the key cross_attention_layers = \[1\] is not used by model_type 'llama'"),
    (llama(full_attn_idxs=[1]), r"the key full_attn_idxs = \[1\] is not used by model_type 'llama'"),
    (llama(model_type="lfm2", attn_layer_indices=[1]), r"the key attn_layer_indices = \[1\] is not used by model_type 'lfm2'"),
    (llama(block_types=["recurrent"]), r"the key block_types = \['recurrent'\] is not used by model_type 'llama'"),
    (scaled("dynamic", factor=1.0, alpha=1000.0), "the key rope_parameters.alpha = 1000.0 is not known or not used here"),
    (llama(per_layer_config={"2": {"head_dim": 8}}), "per_layer_config must map layers below 2 to mappings, got '2'"),
    (llama(rope_theta=-1.0), "rope_theta must be positive, got -1.0"),
    # what is no rotary embedding, or none that a plan can say
    ({"model_type": "falcon", "head_dim": 64, "num_hidden_layers": 1, "alibi": True}, "the model has no rotary embedding"),
    ({"model_type": "gptj", "head_dim": 64, "num_hidden_layers": 1, "rotary": False}, "the model has no rotary embedding"),
    ({"head_dim": 64, "num_hidden_layers": 1, "position_embedding_type": "absolute", "rope_interleave": False}, r"position_embedding_type = 'absolute' is not one of \('nope', 'rope', 'rotary'\)"),
    (llama(model_type="xcodec2"), "model_type 'xcodec2' is not read: it rotates by the index of the head, not by the position"),
    # biases of tokens
    ({"model_type": "deberta-v2", "num_hidden_layers": 1}, "'deberta-v2' is not read: it has no rotary embedding: content_bias computes"),
    ({"model_type": "wav2vec2-conformer", "position_embeddings_type": "relative"}, "or content_bias computes biases of its tokens"),
    ({"model_type": "inkling2", "text_config": {"model_type": "inkling2_text"}}, "'inkling2_text' is not read: .*: content_bias computes"),
    ({"model_type": "sam", "vision_config": {"model_type": "sam_vision_model"}}, "'sam' is not read: .*: content_bias computes"),
    ({"model_type": "wavlm"}, "its bias is t5 times a gate of each token, which attention takes as query_data"),
    # the two spectra of Gemma 3
    (GEMMA_3["text_config"] | {"rope_scaling": None, "rope_parameters": {"rope_type": "linear", "factor": 8.0}}, "rope_parameters must hold settings for each of the layer types"),
    (GEMMA_3["text_config"] | {"rope_scaling": {"full_attention": {}}}, "rope_scaling must hold one set of settings, not those of layer types, got"),
    (GEMMA_3["text_config"] | {"rope_scaling": None, "rope_parameters": {"full_attention": {}}}, "rope_parameters.sliding_attention is missing"),
    (GEMMA_3["text_config"] | {"rope_scaling": None, "rope_parameters": {"full_attention": {}, "sliding_attention": None}}, "rope_parameters.sliding_attention must be a mapping, got None: in model_type 'gemma3_text' every layer type has positions"),
    (GEMMA_4 | {"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters must hold settings for each of the layer types"),
    (llama(rope_scaling={"rope_type": np.arange(3), "factor": 2.0}), "rope_type must be one of .* got array"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "match"), BAD, ids=range(len(BAD)))
def test_what_is_refused(config, match):
    with pytest.raises(ValueError, match=match) as e:
        rotary_from_config(config, length=9)
    assert str(e.value).startswith("rotary_from_config: ") and str(e.value).count("rotary_from_config: ") == 1


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: rotary_from_config("config.json"), TypeError, "config must be a mapping or have .*, got str 'config.json'"),
        (lambda: rotary_from_config(None), TypeError, "rotary_from_config: config must be a mapping"),
        (lambda: rotary_from_config(llama(model_type=3)), TypeError, "model_type must be a string, got int 3"),
        (lambda: rotary_from_config(llama(num_hidden_layers="2")), TypeError, "num_hidden_layers must be an integer, got str '2'"),
        (lambda: rotary_from_config(llama(rope_scaling="linear")), TypeError, "rope_scaling must be a mapping, got str 'linear'"),
        (lambda: rotary_from_config(llama(rope_theta="10000")), TypeError, "rope_theta must be a number, got str '10000'"),
        (lambda: rotary_from_config(scaled("linear", factor="2")), TypeError, "rope_parameters.factor must be a number, got str '2'"),
        (lambda: rotary_from_config(scaled("yarn", factor=2.0, original_max_position_embeddings=8192, truncate="no")), TypeError, "rope_type 'yarn': yarn: truncate must be True or False"),
        (lambda: rotary_from_config(scaled("longrope", short_factor=3, long_factor=SPREAD), length=1), TypeError, "short_factor must be a sequence of numbers, got int 3"),
        (lambda: rotary_from_config(llama(layer_types="full_attention")), TypeError, "layer_types must be a sequence of strings"),
        (lambda: rotary_from_config(llama(model_type=None, qk_rope_head_dim=np.ones((2, 2)))), TypeError, "qk_rope_head_dim must be an integer, got float64 of shape"),
        (lambda: rotary_from_config(llama(model_type="mllama_text_model", cross_attention_layers=5)), TypeError, "cross_attention_layers must be a sequence of strings or numbers, got int 5"),
        (lambda: rotary_from_config(SMOLLM_3 | {"no_rope_layers": 5}), TypeError, "no_rope_layers must be a sequence of strings or numbers, got int 5"),
        (lambda: rotary_from_config({"model_type": "recurrent_gemma", "head_dim": 8, "num_hidden_layers": 2, "block_types": 5}), TypeError, "block_types must be a sequence"),
        (lambda: rotary_from_config({"model_type": "bamba", "head_dim": 8, "num_hidden_layers": 2, "attn_layer_indices": 5}), TypeError, "attn_layer_indices must be a sequence"),
        (lambda: rotary_from_config({"model_type": "granite_swa", "head_dim": 8, "num_hidden_layers": 2, "layer_rope_theta": 5}), TypeError, "layer_rope_theta must be a sequence"),
        (lambda: rotary_from_config({"model_type": "granite_swa", "head_dim": 8, "num_hidden_layers": 1, "layer_rope_theta": ["1"]}), TypeError, "layer_rope_theta must be a number, got str '1'"),
        (lambda: rotary_from_config(llama(layer_types=np.ones((2, 2)))), TypeError, "layer_types must be a sequence of strings or numbers, got one of float64 of shape"),
        (lambda: rotary_from_config(llama(rope_scaling={1: 2})), TypeError, "rope_scaling must have keys that are strings, got int 1"),
        (lambda: rotary_from_config(DEEPSEEK_V3 | {"partial_rotary_factor": "a"}), TypeError, "partial_rotary_factor must be a number, got str 'a'"),
        (lambda: rotary_from_config(LLAMA_4["text_config"] | {"floor_scale": "a"}), TypeError, "floor_scale must be an integer, got str 'a'"),
        (lambda: rotary_from_config(LLAMA_4["text_config"] | {"attn_temperature_tuning": "false"}), TypeError, "attn_temperature_tuning must be true or false, got str 'false'"),
        (lambda: rotary_from_config(DEEPSEEK_V3 | {"rope_interleave": "false"}), TypeError, "rope_interleave must be true or false, got str 'false'"),
        (lambda: rotary_from_config({"model_type": "gptj", "head_dim": 64, "num_hidden_layers": 1, "rotary": "false"}), TypeError, "rotary must be true or false"),
        (lambda: rotary_from_config({"model_type": "falcon", "head_dim": 64, "num_hidden_layers": 1, "alibi": "false"}), TypeError, "alibi must be true or false"),
        (lambda: rotary_from_config(llama(position_embedding_type=5)), TypeError, "position_embedding_type must be a string, got int 5"),
        (lambda: rotary_from_config({1: 2}), TypeError, "config must have keys that are strings, got int 1"),
        (lambda: plan_to_config(RotaryPlan((), "half")), TypeError, r"RotaryPlan: layers must be a sequence of at least one RotaryLayer, got tuple \(\)"),
        (lambda: plan_to_config(RotaryPlan((RotaryLayer(pe.geometric(0), 8), 5), "half")), TypeError, "RotaryPlan: layers must be a sequence of at least one RotaryLayer"),  # type: ignore
        (lambda: plan_to_config(RotaryPlan(None, "half")), TypeError, "RotaryPlan: layers must be a sequence of RotaryLayer, got NoneType"),  # type: ignore
        (lambda: rotary_from_config(llama(per_layer_config=[])), TypeError, "per_layer_config must be a mapping"),
        (lambda: rotary_from_config({"model_type": "exaone4", "num_hidden_layers": 2, "sliding_window_pattern": 4.0}), TypeError, "sliding_window_pattern must be an integer"),
        (lambda: rotary_from_config({"model_type": "exaone4", "num_hidden_layers": 2, "sliding_window_pattern": "LLS"}), ValueError, "sliding_window_pattern must be a number or letters L and G, got 'LLS'"),
        (lambda: rotary_from_config(llama(model_type=None, rope_parameters={"full_attention": 3, "sliding_attention": {}})), TypeError, "rope_parameters.full_attention must be a mapping"),
        (lambda: rotary_from_config(PHI_3), ValueError, "length must be given: the spectrum of rope_scaling.type depends on it"),
        (lambda: rotary_from_config(scaled("dynamic", factor=2.0)), ValueError, "length must be given: the spectrum of rope_parameters.rope_type"),
        (lambda: rotary_from_config(BASE, layout="pairs"), ValueError, r"layout must be one of \('interleaved', 'half'\), got 'pairs'"),
        (lambda: rotary_from_config(BASE, length=0), ValueError, "length must be at least 1, got 0"),
        (lambda: rotary_from_config(BASE, length=1.5), TypeError, "length must be an integer, got float 1.5"),
        (lambda: plan_to_config(BASE), TypeError, "plan_to_config: plan must be a RotaryPlan, got dict"),
        (lambda: plan_to_config(RotaryPlan((RotaryLayer(pe.geometric(8), 8),), "half")), ValueError, "plan_to_config: plan must be one that rotary_from_config made"),
        (lambda: QueryScale("0.1", 8), TypeError, "QueryScale: coefficient must be a number"),
        (lambda: QueryScale(0.1, 0), ValueError, "QueryScale: period must be at least 1, got 0"),
        (lambda: QueryScale(0.1, 2**31), ValueError, "QueryScale: period must fit into int32, got 2147483648"),
        (lambda: QueryScale(0.1, 8, 8), ValueError, "QueryScale: offset must be an integer from 0 to below 8, got 8"),
        (lambda: QueryScale(0.1, 8, True), ValueError, "QueryScale: offset must be an integer from 0 to below 8, got True"),
        (lambda: QueryScale(0.1, 8, -1), ValueError, "QueryScale: offset must be an integer from 0"),
        (lambda: QueryScale(0.1, 8)("7"), TypeError, "QueryScale: positions must be an integer or float array"),
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()


@pytest.mark.parametrize("misspelled", ["sliding_atention", "sliding", "Sliding_attention", "full"])
@pytest.mark.parametrize("model_type", ["gemma3_text", "olmo3", "modernbert"])
def test_a_misspelled_layer_type_is_no_layer_without_positions(model_type, misspelled):
    """Also where each layer type has settings of its own."""
    own = {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ("full_attention", "sliding_attention")}
    config = {"model_type": model_type, "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4}
    config |= {"head_dim": 16, "rope_parameters": own}
    types = ["sliding_attention", misspelled, "full_attention"]
    with pytest.raises(ValueError, match=rf"the layer types \['{misspelled}'\] of layer_types are not known"):
        rotary_from_config(config | {"layer_types": types})
