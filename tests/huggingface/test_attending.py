"""What a plan says of attention: kinds of layers, windows, chunks, scales of scores."""

import dataclasses
import json
import math

import pytest

from helpers.plans import in_runs
from posenc_jax.hf import RotaryLayer, RotaryPlan, plan_to_config, rotary_from_config

FULL, SLIDING = "full_attention", "sliding_attention"
CAUSAL = "full_attention (None, None) 0.125"
YARN = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale_all_dim": 1.0}
LATENT = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_theta": 1e4, "rope_scaling": YARN}


def read(model_type, **config):
    return rotary_from_config({"model_type": model_type, "num_hidden_layers": 4, "head_dim": 64} | config)


def in_words(layer):
    chunks = f" chunks of {layer.chunk}" if layer.chunk else ""
    return f"{layer.kind} {layer.window}{chunks} {layer.score_scale}"


# By the type: the layers' kinds, windows or chunks, and scales of scores; and the config.
CASES = {
    "llama": (f"4 x {CAUSAL}", {}),
    "mistral": ("4 x sliding_attention (5, None) 0.125", {"sliding_window": 6}),
    "qwen2": (
        f"3 x {CAUSAL}, 1 x sliding_attention (5, None) 0.125",
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 3},
    ),
    "molmo2_text": (f"4 x {CAUSAL}", {"rope_scaling_layers": [0]}),
    "qwen3": (f"4 x {CAUSAL}", {"use_sliding_window": False, "sliding_window": 6, "max_window_layers": 0}),
    "gemma2": (
        "1 x sliding_attention (5, None) 0.0625, 1 x full_attention (None, None) 0.0625",
        {"sliding_window": 6, "query_pre_attn_scalar": 256, "num_hidden_layers": 2},
    ),
    "gemma3_text": (  # query_pre_attn_scalar is 256
        "3 x sliding_attention (3, 3) 0.0625, 1 x full_attention (None, None) 0.0625",
        {"sliding_window_pattern": 4, "sliding_window": 7, "use_bidirectional_attention": True},
    ),
    "gemma4_text": (
        "1 x sliding_attention (5, None) 1.0, 1 x full_attention (None, None) 1.0",
        {"sliding_window": 6, "layer_types": [SLIDING, FULL], "num_hidden_layers": 2},
    ),
    "modernbert": (
        f"1 x {CAUSAL}, 2 x sliding_attention (5, 5) 0.125",
        {"local_attention": 10, "num_hidden_layers": 3},
    ),
    "modernbert-decoder": (
        f"1 x {CAUSAL}, 2 x sliding_attention (4, None) 0.125",
        {"local_attention": 10, "num_hidden_layers": 3, "transformers_version": "5.24.0"},
    ),
    "qwen2_moe": (  # the class has a window of 4096
        ", ".join([f"1 x sliding_attention (4095, None) 0.125, 1 x {CAUSAL}"] * 2),
        {"use_sliding_window": True, "max_window_layers": 3},
    ),
    "step3p5": (f"4 x {CAUSAL}", {"rope_theta": 1e4}),  # the class makes a scale of head_dim
    "muse_glimmer_text": (  # counts from the last layer
        f"3 x sliding_attention (5, None) 0.125, 1 x {CAUSAL}",
        {"sliding_window": 6},
    ),
    "recurrent_gemma": (
        "1 x linear_attention None None, 1 x sliding_attention (5, None) 0.125",
        {"attention_window_size": 6, "block_types": ["recurrent", "attention"], "num_hidden_layers": 2},
    ),
    "minimax_m3_vl_text": (
        f"3 x indexed_attention (None, None) 0.125, 1 x {CAUSAL}",
        {"layer_types": ["minimax_m3_sparse", "qwen_sparse_attention", "deepseek_sparse_attention", FULL]},
    ),
    "minimax": (
        "1 x linear_attention None None, 3 x full_attention (5, None) 0.125",
        {"sliding_window": 6, "layer_types": ["linear_attention", FULL, FULL, FULL]},
    ),
    "granite": ("4 x full_attention (None, None) 0.25", {"attention_multiplier": 0.25}),
    "deepseek_v3": (f"4 x full_attention (None, None) {(0.1 * math.log(40) + 1) ** 2 / math.sqrt(192)}", LATENT),
    "llada": ("4 x None None None", {}),  # its code is not in transformers
    "llama4_text": (f"3 x chunked_attention None chunks of 7 0.125, 1 x {CAUSAL}", {"attention_chunk_size": 7}),
}


@pytest.mark.parametrize("name", CASES)
def test_kinds_windows_and_scales(name):
    words, config = CASES[name]
    plan = read(name, **config)
    assert in_runs(map(in_words, plan.layers)) == words
    assert rotary_from_config(json.loads(json.dumps(plan_to_config(plan)))) == plan


def test_without_chunks_all_layers_of_llama_4_are_full():
    assert {layer.kind for layer in read("llama4_text", attention_chunk_size=None).layers} == {FULL}


def test_an_indexer_has_no_scale_of_the_layers():
    plan = read("deepseek_v32", **LATENT)
    assert plan.layers[0].score_scale and {layer.score_scale for layer in plan.indexer.layers} == {None}


def test_a_plan_made_by_hand_says_nothing_of_attention():
    plan = RotaryPlan((RotaryLayer(64, 64, settings=read("llama").layers[0].settings),), "half")
    assert plan_to_config(plan).keys().isdisjoint({"query_scale", "indexer_query_scale"})
    assert not plan_to_config(plan)["per_layer_config"]
    assert dataclasses.astuple(plan.layers[0])[5:] == (None, None, None, None)
