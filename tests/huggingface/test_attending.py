"""What a plan says of attention: kinds of layers, windows, scales of scores."""

import dataclasses
import json
import math

import jax
import pytest

import posenc_jax as pe
from posenc_jax.hf import RotaryLayer, RotaryPlan, plan_to_config, rotary_from_config

FULL, SLIDING = "full_attention", "sliding_attention"
NO_WINDOW = (None, None)
SIZES = {"num_hidden_layers": 4, "head_dim": 64}
YARN = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale_all_dim": 1.0}
DEEPSEEK = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_theta": 1e4, "rope_scaling": YARN}
RELEASE = {"transformers_version": "5.24.0"}
OF_TYPES = {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in (FULL, SLIDING)}
# The config, the kinds and windows of its four layers, and the scale of their scores.
CASES = {
    "llama": ({}, [FULL] * 4, [NO_WINDOW] * 4, 0.125),
    "mistral": ({"sliding_window": 6}, [SLIDING] * 4, [(5, None)] * 4, 0.125),
    "phi3": ({"sliding_window": None}, [FULL] * 4, [NO_WINDOW] * 4, 0.125),
    "qwen2": (
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 3},
        [FULL] * 3 + [SLIDING],
        [NO_WINDOW] * 3 + [(5, None)],
        0.125,
    ),
    "qwen3": (
        {"use_sliding_window": False, "sliding_window": 6, "max_window_layers": 0},
        [FULL] * 4,
        [NO_WINDOW] * 4,
        0.125,
    ),
    "gemma2": (
        {"sliding_window": 6, "query_pre_attn_scalar": 256},
        [SLIDING, FULL] * 2,
        [(5, None), NO_WINDOW] * 2,
        1 / 16,
    ),
    "gemma3_text": (
        {"sliding_window_pattern": 2, "sliding_window": 7, "use_bidirectional_attention": True},
        [SLIDING, FULL] * 2,
        [(3, 3), NO_WINDOW] * 2,
        1 / 16,  # query_pre_attn_scalar is 256
    ),
    "gemma4_text": (
        {"rope_parameters": OF_TYPES, "global_head_dim": 64, "sliding_window": 6, "layer_types": [SLIDING, FULL] * 2},
        [SLIDING, FULL] * 2,
        [(5, None), NO_WINDOW] * 2,
        1.0,
    ),
    "modernbert": (
        {"local_attention": 10, "num_attention_heads": 1, "hidden_size": 64},
        [FULL, SLIDING, SLIDING, FULL],
        [NO_WINDOW, (5, 5), (5, 5), NO_WINDOW],
        0.125,
    ),
    "modernbert-decoder": (
        {"local_attention": 10, "num_attention_heads": 1, "hidden_size": 64} | RELEASE,
        [FULL, SLIDING, SLIDING, FULL],
        [NO_WINDOW, (4, None), (4, None), NO_WINDOW],
        0.125,
    ),
    "qwen2_moe": (  # the class has a window of 4096
        {"use_sliding_window": True, "max_window_layers": 3, "num_attention_heads": 1},
        [SLIDING, FULL] * 2,
        [(4095, None), NO_WINDOW] * 2,
        0.125,
    ),
    "step3p5": ({"rope_theta": 1e4}, [FULL] * 4, [NO_WINDOW] * 4, 0.125),  # the class makes a scale of head_dim
    "muse_glimmer_text": (  # counts from the last layer
        {"sliding_window": 6, "num_hidden_layers": 4},
        [SLIDING] * 3 + [FULL],
        [(5, None)] * 3 + [NO_WINDOW],
        0.125,
    ),
    "recurrent_gemma": (
        {"attention_window_size": 6, "block_types": ["recurrent", "attention"]},
        ["linear_attention", SLIDING] * 2,
        [None, (5, None)] * 2,
        0.125,
    ),
    "minimax": (
        {"sliding_window": 6, "layer_types": ["linear_attention", FULL] * 2},
        ["linear_attention", FULL] * 2,
        [None, (5, None)] * 2,
        0.125,
    ),
    "granite": ({"attention_multiplier": 0.25}, [FULL] * 4, [NO_WINDOW] * 4, 0.25),
    "deepseek_v3": (
        DEEPSEEK,
        [FULL] * 4,
        [NO_WINDOW] * 4,
        (0.1 * math.log(40) + 1) ** 2 / math.sqrt(192),
    ),
    "lfm2": (
        {"layer_types": ["conv", FULL] * 2},
        ["conv", FULL] * 2,
        [None, NO_WINDOW] * 2,
        0.125,
    ),
    "llada": ({}, [None] * 4, [None] * 4, None),  # its code is not in transformers
    "starcoder2": ({}, [FULL] * 4, [NO_WINDOW] * 4, 0.125),  # its class has no sliding_window by default
}


def read(name, **changes):
    return rotary_from_config({"model_type": name} | SIZES | CASES[name][0] | changes)


@pytest.mark.parametrize("name", CASES)
def test_kinds_windows_scales(name):
    _, kinds, windows, scale = CASES[name]
    plan = read(name)
    assert [layer.kind for layer in plan.layers] == kinds
    assert [layer.window for layer in plan.layers] == windows
    for layer in plan.layers:
        has_scores = scale is not None and layer.kind not in ("conv", "linear_attention")
        assert layer.score_scale == (pytest.approx(scale, rel=1e-15) if has_scores else None)
    assert rotary_from_config(json.loads(json.dumps(plan_to_config(plan)))) == plan


def test_chunks_of_llama_4():
    keys = {"model_type": "llama4_text", "rope_theta": 5e5, "attention_chunk_size": 7}
    layers = rotary_from_config(SIZES | keys).layers
    assert [(layer.kind, layer.window, layer.chunk) for layer in layers] == [("chunked_attention", None, 7)] * 3 + [
        (FULL, NO_WINDOW, None)
    ]
    assert {layer.kind for layer in rotary_from_config(SIZES | keys | {"attention_chunk_size": None}).layers} == {FULL}


def test_an_indexer_has_no_scale_of_the_layers():
    plan = rotary_from_config(SIZES | DEEPSEEK | {"model_type": "deepseek_v32"})
    assert plan.layers[0].score_scale and {layer.score_scale for layer in plan.indexer.layers} == {None}


def test_a_program_is_traced_again_for_another_window():
    """A plan is static under jit, so plans with different windows must not be equal."""
    attend = jax.jit(lambda x, plan: x * plan.layers[0].window[0], static_argnums=1)
    assert [float(attend(1.0, read("mistral", sliding_window=n))) for n in (6, 9)] == [5.0, 8.0]


def test_what_attention_takes():
    layer = read("gemma2").layers[0]
    q = jax.random.normal(jax.random.key(0), (1, 12, 2, 64))
    got = pe.attention(q, q, q, causal=True, window=layer.window, scale=layer.score_scale)
    mask = jax.numpy.tril(jax.numpy.ones((12, 12), bool)) & ~jax.numpy.tril(jax.numpy.ones((12, 12), bool), -6)
    want = jax.nn.dot_product_attention(q, q, q, mask=mask, scale=1 / 16)
    assert jax.numpy.allclose(got, want, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": 1}, "kind must be a string or None, got int"),
        ({"window": 5}, r"window must be a pair \(left, right\) of integers or None, got int"),
        ({"window": (-1, None)}, r"window\[0\] must be at least 0"),
        ({"chunk": 0}, "chunk must be at least 1"),
        ({"score_scale": "a"}, "score_scale must be a number"),
    ],
)
def test_refused_by_hand(fields, message):
    with pytest.raises((TypeError, ValueError), match=message):
        RotaryLayer(64, 64, **fields)


def test_a_written_plan_that_is_wrong():
    config = plan_to_config(read("mistral"))
    for attention, message in [
        (config["layer_attention"][:3], "layer_attention must hold a mapping for 4 layers, got 3"),
        (
            [{"kinds": FULL}] * 4,
            r"the key layer_attention\[0\].kinds = 'full_attention' is not read by layer_attention",
        ),
        ([5] * 4, r"layer_attention\[0\] must be a mapping"),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            rotary_from_config(config | {"layer_attention": attention})


def test_a_plan_made_by_hand_says_nothing():
    plan = RotaryPlan((RotaryLayer(64, 64, settings=read("llama").layers[0].settings),), "half")
    assert "layer_attention" not in plan_to_config(plan)
    assert dataclasses.astuple(plan.layers[0])[5:] == (None, None, None, None)
