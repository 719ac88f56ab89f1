"""What a plan says of attention: kinds of layers, windows, scales of scores."""

import dataclasses
import json
import math

import jax
import pytest

import posenc_jax as pe
from helpers.plans import in_runs
from posenc_jax.hf import RotaryLayer, RotaryPlan, plan_to_config, rotary_from_config

FULL, SLIDING = "full_attention", "sliding_attention"
SIZES = {"num_hidden_layers": 4, "head_dim": 64}
YARN = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale_all_dim": 1.0}
DEEPSEEK = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_theta": 1e4, "rope_scaling": YARN}
# By the type, the config, and the layers' kinds, windows or chunks, and scales of scores.
CASES = {
    "llama": ({}, "4 x full_attention (None, None) 0.125"),
    "mistral": ({"sliding_window": 6}, "4 x sliding_attention (5, None) 0.125"),
    "phi3": ({"sliding_window": None}, "4 x full_attention (None, None) 0.125"),
    "qwen2": ({"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 3},
              "3 x full_attention (None, None) 0.125, 1 x sliding_attention (5, None) 0.125"),
    "qwen3": ({"use_sliding_window": False, "sliding_window": 6, "max_window_layers": 0},
              "4 x full_attention (None, None) 0.125"),
    "gemma2": ({"sliding_window": 6, "query_pre_attn_scalar": 256, "num_hidden_layers": 2},
               "1 x sliding_attention (5, None) 0.0625, 1 x full_attention (None, None) 0.0625"),
    "gemma3_text": ({"sliding_window_pattern": 4, "sliding_window": 7, "use_bidirectional_attention": True},
                    "3 x sliding_attention (3, 3) 0.0625, 1 x full_attention (None, None) 0.0625"),  # the scalar is 256
    "gemma4_text": ({"sliding_window": 6, "layer_types": [SLIDING, FULL, FULL, FULL]},
                    "1 x sliding_attention (5, None) 1.0, 3 x full_attention (None, None) 1.0"),
    "modernbert": ({"local_attention": 10, "num_hidden_layers": 3},
                   "1 x full_attention (None, None) 0.125, 2 x sliding_attention (5, 5) 0.125"),
    "modernbert-decoder": ({"local_attention": 10, "num_hidden_layers": 3, "transformers_version": "5.24.0"},
                           "1 x full_attention (None, None) 0.125, 2 x sliding_attention (4, None) 0.125"),
    "qwen2_moe": ({"use_sliding_window": True, "max_window_layers": 3, "num_hidden_layers": 5},  # the class says 4096
                  "1 x sliding_attention (4095, None) 0.125, 1 x full_attention (None, None) 0.125, "
                  "1 x sliding_attention (4095, None) 0.125, 2 x full_attention (None, None) 0.125"),
    "step3p5": ({"rope_theta": 1e4}, "4 x full_attention (None, None) 0.125"),  # the class makes a scale of head_dim
    "muse_glimmer_text": ({"sliding_window": 6},  # counts from the last layer
                          "3 x sliding_attention (5, None) 0.125, 1 x full_attention (None, None) 0.125"),
    "recurrent_gemma": ({"attention_window_size": 6, "block_types": ["recurrent", "attention"], "num_hidden_layers": 2},
                        "1 x linear_attention None None, 1 x sliding_attention (5, None) 0.125"),
    "minimax": ({"sliding_window": 6, "layer_types": ["linear_attention", FULL, FULL, FULL]},
                "1 x linear_attention None None, 3 x full_attention (5, None) 0.125"),
    "granite": ({"attention_multiplier": 0.25}, "4 x full_attention (None, None) 0.25"),
    "deepseek_v3": (DEEPSEEK, f"4 x full_attention (None, None) {(0.1 * math.log(40) + 1) ** 2 / math.sqrt(192)}"),
    "lfm2": ({"layer_types": ["conv", FULL, FULL, FULL]}, "1 x conv None None, 3 x full_attention (None, None) 0.125"),
    "llada": ({}, "4 x None None None"),  # its code is not in transformers
    "llama4_text": ({"attention_chunk_size": 7},
                    "3 x chunked_attention None chunks of 7 0.125, 1 x full_attention (None, None) 0.125"),
    "starcoder2": ({}, "4 x full_attention (None, None) 0.125"),  # its class has no sliding_window by default
}  # fmt: skip


def read(name, **changes):
    return rotary_from_config({"model_type": name} | SIZES | CASES[name][0] | changes)


def in_words(layer):
    chunks = f" chunks of {layer.chunk}" if layer.chunk else ""
    return f"{layer.kind} {layer.window}{chunks} {layer.score_scale}"


@pytest.mark.parametrize("name", CASES)
def test_kinds_windows_scales(name):
    plan = read(name)
    assert in_runs(map(in_words, plan.layers)) == CASES[name][1]
    assert rotary_from_config(json.loads(json.dumps(plan_to_config(plan)))) == plan


def test_without_chunks_all_layers_of_llama_4_are_full():
    assert {layer.kind for layer in read("llama4_text", attention_chunk_size=None).layers} == {FULL}


def test_an_indexer_has_no_scale_of_the_layers():
    plan = read("deepseek_v3", model_type="deepseek_v32")
    assert plan.layers[0].score_scale and {layer.score_scale for layer in plan.indexer.layers} == {None}


def test_plans_with_different_windows_are_not_equal():
    """A plan is static under jit, so a program is traced again for another window."""
    assert read("mistral", sliding_window=6) != read("mistral", sliding_window=9)


def test_what_attention_takes():
    layer = read("gemma2").layers[0]
    q = jax.random.normal(jax.random.key(0), (1, 12, 2, 64))
    got = pe.attention(q, q, q, causal=True, window=layer.window, scale=layer.score_scale)
    mask = jax.numpy.tril(jax.numpy.ones((12, 12), bool)) & ~jax.numpy.tril(jax.numpy.ones((12, 12), bool), -6)
    want = jax.nn.dot_product_attention(q, q, q, mask=mask, scale=1 / 16)
    assert jax.numpy.allclose(got, want, atol=1e-6)


def test_a_plan_made_by_hand_says_nothing():
    plan = RotaryPlan((RotaryLayer(64, 64, settings=read("llama").layers[0].settings),), "half")
    assert plan_to_config(plan).keys().isdisjoint({"query_scale", "indexer_query_scale"})
    assert not plan_to_config(plan)["per_layer_config"]
    assert dataclasses.astuple(plan.layers[0])[5:] == (None, None, None, None)
