"""What a plan says of attention: for each layer its kind, its window or chunk, and its scale of scores.

What is not known is None, as in plans made by hand.
"""

import json
import math

import pytest

from helpers.plans import in_runs
from posenc_jax.hf import RotaryLayer, RotaryPlan, plan_to_config, rotary_from_config

FULL, SLIDING = "full_attention", "sliding_attention"
ALL_KEYS = "full_attention (None, None) 0.125"  # no window, and a scale of 64 ** -0.5
YARN = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale_all_dim": 1.0}
LATENT = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_theta": 1e4, "rope_scaling": YARN}


def read(model_type, **config):
    """The plan of a config with four layers and heads of 64 features, unless its keys say otherwise."""
    return rotary_from_config({"model_type": model_type, "num_hidden_layers": 4, "head_dim": 64} | config)


def in_words(layer):
    """A layer's kind, its window as (keys before the query, keys after it), its chunk and its scale of scores."""
    chunks = f" chunks of {layer.chunk}" if layer.chunk else ""
    return f"{layer.kind} {layer.window}{chunks} {layer.score_scale}"


# By model type: the layers in words, and keys of the config. A sliding_window of 6 counts the query: 5 keys before it.
CASES = {
    "llama": (f"4 x {ALL_KEYS}", {}),
    "mistral": ("4 x sliding_attention (5, None) 0.125", {"sliding_window": 6}),
    "qwen2": (
        f"3 x {ALL_KEYS}, 1 x sliding_attention (5, None) 0.125",
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 3},
    ),
    "molmo2_text": (f"4 x {ALL_KEYS}", {"rope_scaling_layers": [0]}),
    "qwen3": (f"4 x {ALL_KEYS}", {"use_sliding_window": False, "sliding_window": 6, "max_window_layers": 0}),
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
        f"1 x {ALL_KEYS}, 2 x sliding_attention (5, 5) 0.125",
        {"local_attention": 10, "num_hidden_layers": 3},
    ),
    "modernbert-decoder": (
        f"1 x {ALL_KEYS}, 2 x sliding_attention (4, None) 0.125",
        {"local_attention": 10, "num_hidden_layers": 3, "transformers_version": "5.24.0"},
    ),
    "qwen2_moe": (  # the default window of the class is 4096
        ", ".join([f"1 x sliding_attention (4095, None) 0.125, 1 x {ALL_KEYS}"] * 2),
        {"use_sliding_window": True, "max_window_layers": 3},
    ),
    "step3p5": (f"4 x {ALL_KEYS}", {"rope_theta": 1e4}),  # the class computes the scale from head_dim
    "muse_glimmer_text": (  # its pattern of kinds counts from the last layer
        f"3 x sliding_attention (5, None) 0.125, 1 x {ALL_KEYS}",
        {"sliding_window": 6},
    ),
    "recurrent_gemma": (
        "1 x linear_attention None None, 1 x sliding_attention (5, None) 0.125",
        {"attention_window_size": 6, "block_types": ["recurrent", "attention"], "num_hidden_layers": 2},
    ),
    "minimax_m3_vl_text": (
        f"3 x indexed_attention (None, None) 0.125, 1 x {ALL_KEYS}",
        {"layer_types": ["minimax_m3_sparse", "qwen_sparse_attention", "deepseek_sparse_attention", FULL]},
    ),
    "minimax": (
        "1 x linear_attention None None, 3 x full_attention (5, None) 0.125",
        {"sliding_window": 6, "layer_types": ["linear_attention", FULL, FULL, FULL]},
    ),
    "granite": ("4 x full_attention (None, None) 0.25", {"attention_multiplier": 0.25}),
    "zamba2": (  # whose scale counts half of a head's features
        f"4 x hybrid (None, None) {32**-0.5}",
        {"layers_block_type": ["hybrid"] * 4, "attention_head_dim": 64},
    ),
    "deepseek_v3": (f"4 x full_attention (None, None) {(0.1 * math.log(40) + 1) ** 2 / math.sqrt(192)}", LATENT),
    "llada": ("4 x None None None", {}),  # its code is not in transformers: its attention is not known
    "llama4_text": (f"3 x chunked_attention None chunks of 7 0.125, 1 x {ALL_KEYS}", {"attention_chunk_size": 7}),
}


@pytest.mark.parametrize("name", CASES)
def test_layers_have_the_kinds_windows_and_scales_of_their_type(name):
    """A config written from the plan keeps them."""
    words, config = CASES[name]
    plan = read(name, **config)
    assert in_runs(map(in_words, plan.layers)) == words
    assert rotary_from_config(json.loads(json.dumps(plan_to_config(plan)))) == plan


def test_without_chunks_all_layers_of_llama_4_are_full():
    assert {layer.kind for layer in read("llama4_text", attention_chunk_size=None).layers} == {FULL}


def test_only_the_layers_have_a_scale_of_scores_not_their_indexers():
    plan = read("deepseek_v32", **LATENT)
    assert plan.layers[0].score_scale
    assert {layer.score_scale for layer in plan.indexer.layers} == {None}


def test_a_plan_made_by_hand_says_nothing_of_attention():
    layer = RotaryLayer(64, 64, settings=read("llama").layers[0].settings)
    plan = RotaryPlan((layer,), "half")
    assert plan_to_config(plan).keys().isdisjoint({"query_scale", "indexer_query_scale"})
    assert not plan_to_config(plan)["per_layer_config"]
    assert (layer.kind, layer.window, layer.chunk, layer.score_scale) == (None, None, None, None)
