"""What a config.json says: published settings worked out by hand, every contradiction, and the way back."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from posenc_jax._hf_models import MODELS, REFUSED
from posenc_jax.hf import QueryScale, RotaryLayer, RotaryPlan, plan_to_config, rotary_from_config


# The formulas, pair by pair, in float64: nothing here is the library's.
def plain(width, base):
    return np.array([base ** (-2 * i / width) for i in range(width // 2)])


def dynamic(width, base, factor, maximum, length):
    stretch = factor * max(length, maximum) / maximum - (factor - 1)
    return plain(width, base * stretch ** (width / (width - 2)))


def yarn(width, base, factor, original, fast=32, slow=1, truncate=True):
    def index(beta):
        return width * math.log(original / (2 * math.pi * beta)) / (2 * math.log(base))

    low, high = index(fast), index(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    share = np.clip((np.arange(width // 2) - low) / (high - low), 0, 1)
    return plain(width, base) * (1 - share + share / factor)


def llama3(width, base, factor, low, high, original):
    w = plain(width, base)
    smooth = np.clip((original * w / (2 * np.pi) - low) / (high - low), 0, 1)
    return w * ((1 - smooth) / factor + smooth)


def close(frequencies, angular):
    np.testing.assert_allclose(frequencies.angular, angular, rtol=3e-13)


def spectrum_of(plan):
    """The spectrum of a plan all of whose layers are the same."""
    assert len(set(plan.layers)) == 1
    return plan.layers[0].frequencies


BASE = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
SPREAD = [1 + i / 8 for i in range(8)]


def llama(**keys):
    return {**BASE, **keys}


def scaled(kind, **keys):
    return llama(rope_parameters={"rope_type": kind, "rope_theta": 10_000.0, **keys}, max_position_embeddings=8192)


# Settings of published models; the keys that do not speak of rotations are left out, the layers are fewer.
LLAMA_31 = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 3,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}
PHI_3 = {
    "model_type": "phi3",
    "hidden_size": 3072,
    "num_attention_heads": 32,
    "num_hidden_layers": 2,
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "rope_scaling": {"type": "su", "short_factor": [1.0 + i / 48 for i in range(48)], "long_factor": [1.0 + i for i in range(48)]},
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_hidden_layers": 2,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
    "rope_theta": 10000,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
}
GEMMA_3 = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "num_hidden_layers": 12,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
}
GEMMA_4 = {
    "model_type": "gemma4_text",
    "hidden_size": 2304,
    "num_attention_heads": 8,
    "num_hidden_layers": 8,
    "head_dim": 256,
    "global_head_dim": 512,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
}
MODERNBERT = {
    "model_type": "modernbert",
    "hidden_size": 768,
    "num_attention_heads": 12,
    "num_hidden_layers": 7,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "position_embedding_type": "absolute",
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "head_dim": 64,
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "max_position_embeddings": 131072,
    "rope_theta": 150000,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
}
LLAMA_4 = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text",
        "head_dim": 128,
        "hidden_size": 5120,
        "num_attention_heads": 40,
        "num_hidden_layers": 8,
        "no_rope_layers": [],
        "attn_temperature_tuning": 4,
        "floor_scale": 8192,
        "attn_scale": 0.1,
        "max_position_embeddings": 10485760,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 16.0,
            "high_freq_factor": 1.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
    },
}
MINISTRAL_3 = {
    "model_type": "mistral3",
    "text_config": {
        "model_type": "ministral3",
        "head_dim": 128,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 2,
        "max_position_embeddings": 262144,
        "rope_parameters": {
            "type": "yarn",
            "rope_type": "yarn",
            "rope_theta": 1000000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 16384,
            "max_position_embeddings": 262144,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    },
}
QWEN_25_VL = {
    "model_type": "qwen2_5_vl",
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_hidden_layers": 2,
    "rope_theta": 1000000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vision_config": {"depth": 32},
}
QWEN_3_VL = {
    "model_type": "qwen3_vl",
    "text_config": {
        "model_type": "qwen3_vl_text",
        "head_dim": 128,
        "hidden_size": 2560,
        "num_attention_heads": 32,
        "num_hidden_layers": 2,
        "rope_theta": 5000000,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
    },
}
SMOLLM_3 = {
    "model_type": "smollm3",
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_hidden_layers": 6,
    "no_rope_layers": [1, 1, 1, 0, 1, 0],
    "no_rope_layer_interval": 4,
    "rope_theta": 5000000.0,
    "rope_scaling": None,
}
GLM_4V = {
    "model_type": "glm4v",
    "text_config": {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 2,
        "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "default", "mrope_section": [8, 12, 12]},
    },
}
HUNYUAN = {
    "model_type": "hunyuan_v1_dense",
    "head_dim": 128,
    "num_hidden_layers": 2,
    "max_position_embeddings": 262144,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "alpha": 1000.0,
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "type": "dynamic",
    },
}
PUBLISHED = {
    name.lower(): value
    for name, value in globals().items()
    if isinstance(value, dict) and name.isupper() and "num_hidden_layers" in value.get("text_config", value)
}


def test_llama_3_1():
    plan = rotary_from_config(LLAMA_31)
    close(spectrum_of(plan), llama3(128, 500000.0, 8, 1, 4, 8192))
    assert (plan.layout, plan.part, plan.softmax_scale, plan.length) == ("half", "first", 1.0, None)
    assert plan.layers[0] == plan.layers[2] and len(plan.layers) == 3
    assert plan.layers[0].head_dim == plan.layers[0].rotary_dim == 128


@pytest.mark.parametrize(("length", "name"), [(1, "short_factor"), (4096, "short_factor"), (4097, "long_factor")])
def test_phi_3_chooses_by_the_length(length, name):
    plan = rotary_from_config(PHI_3, length=length)
    close(spectrum_of(plan), plain(96, 10000) / PHI_3["rope_scaling"][name])
    assert spectrum_of(plan).attention_factor == pytest.approx(1.190238, abs=1e-6)
    assert plan.length == length


def test_phi_3_of_a_part_of_the_head():
    lists = {"short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    keys = {"num_attention_heads": 24, "partial_rotary_factor": 0.75, "rope_scaling": {"type": "longrope", **lists}}
    (layer, _) = rotary_from_config(PHI_3 | keys, length=5000).layers
    assert (layer.head_dim, layer.rotary_dim) == (128, 96)
    close(layer.frequencies, plain(96, 10000) / 2)


def test_the_original_length_outside_wins_over_that_within_a_flat_dict():
    lists = {"short_factor": [1.0] * 48, "long_factor": [2.0] * 48, "original_max_position_embeddings": 1024}
    config = PHI_3 | {"rope_scaling": {"type": "longrope", **lists}}
    close(spectrum_of(rotary_from_config(config, length=4096)), plain(96, 10000))
    absent = {k: v for k, v in config.items() if k != "original_max_position_embeddings"}
    with pytest.raises(ValueError, match=r"original_max_position_embeddings = 1024 contradicts .* = 4096"):
        rotary_from_config(absent, length=4096)  # the class of Phi-3 has a default for the key outside


def test_deepseek_v3():
    plan = rotary_from_config(DEEPSEEK_V3)
    close(spectrum_of(plan), yarn(64, 10000, 40, 4096))
    assert spectrum_of(plan).attention_factor == 1
    assert (plan.layout, plan.part) == ("interleaved", "last")
    assert (plan.layers[0].head_dim, plan.layers[0].rotary_dim) == (192, 64)
    assert plan.softmax_scale == pytest.approx((0.1 * math.log(40) + 1) ** 2)
    assert plan.softmax_scale == pytest.approx(1.8739, abs=5e-5)
    assert rotary_from_config(DEEPSEEK_V3 | {"rope_interleave": False}).layout == "half"
    assert rotary_from_config(DEEPSEEK_V3 | {"rope_scaling": None}).softmax_scale == 1
    lite = DEEPSEEK_V3["rope_scaling"] | {"mscale": 0.707, "mscale_all_dim": 0.5}
    plan = rotary_from_config(DEEPSEEK_V3 | {"rope_scaling": lite, "model_type": "deepseek_v2"})
    g = [0.1 * m * math.log(40) + 1 for m in (0.707, 0.5)]
    assert spectrum_of(plan).attention_factor == pytest.approx(g[0] / g[1], rel=1e-15)
    assert plan.softmax_scale == pytest.approx(g[1] ** 2, rel=1e-15)


def test_one_scale_of_the_scores():
    own = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 4096}
    types = ["full_attention", "sliding_attention"]
    nested = {kind: own | {"mscale_all_dim": all_dim} for kind, all_dim in zip(types, (1.0, 0.5), strict=True)}
    config = DEEPSEEK_V3 | {"layer_types": types, "rope_scaling": None, "rope_theta": None, "rope_parameters": nested}
    with pytest.raises(ValueError, match="mscale_all_dim asks for different scales of the scores"):
        rotary_from_config(config)
    nested["full_attention"] = nested["sliding_attention"]
    assert rotary_from_config(config).softmax_scale == pytest.approx((0.05 * math.log(4) + 1) ** 2, rel=1e-15)


def test_a_share_in_latent_attention_may_be_of_the_head_or_of_its_last_part():
    for share in (1.0, 64 / 192, 0.335):  # Mistral 4 writes the share of the whole head
        assert rotary_from_config(DEEPSEEK_V3 | {"partial_rotary_factor": share}) == rotary_from_config(DEEPSEEK_V3)
        settings = DEEPSEEK_V3["rope_scaling"] | {"partial_rotary_factor": share}
        assert rotary_from_config(DEEPSEEK_V3 | {"rope_scaling": settings}) == rotary_from_config(DEEPSEEK_V3)


def test_mscale_all_dim_scales_no_scores_outside_latent_attention():
    plan = rotary_from_config(MINISTRAL_3)
    assert plan.softmax_scale == 1


def test_gemma_3_as_it_was_published():
    plan = rotary_from_config(GEMMA_3)
    full = [i for i, layer in enumerate(plan.layers) if layer.frequencies != plan.layers[0].frequencies]
    assert full == [5, 11] and plan.layout == "half"
    close(plan.layers[5].frequencies, plain(256, 1e6) / 8)
    close(plan.layers[0].frequencies, plain(256, 1e4))
    assert {layer.head_dim for layer in plan.layers} == {256}


def test_gemma_3_in_all_spellings():
    text = GEMMA_3["text_config"] | {"num_hidden_layers": 4, "sliding_window_pattern": 2, "rope_theta": 2e6}
    old = rotary_from_config(text | {"rope_local_base_freq": 2e4})
    close(old.layers[1].frequencies, plain(256, 2e6) / 8)
    close(old.layers[0].frequencies, plain(256, 2e4))
    nested = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6}, "sliding_attention": {"rope_theta": 2e4}}  # fmt: skip
    base = {"model_type": "gemma3_text", "num_hidden_layers": 4, "head_dim": 256, "rope_parameters": nested}
    assert rotary_from_config(base | {"sliding_window_pattern": 2}) == old
    assert rotary_from_config(base | {"layer_types": ["sliding_attention", "full_attention"] * 2}) == old
    assert (
        rotary_from_config(base | {"sliding_window_pattern": 2, "rope_theta": 2e6, "rope_local_base_freq": 2e4}) == old
    )
    with pytest.raises(
        ValueError, match=r"sliding_attention.rope_theta = 20000.0 contradicts rope_local_base_freq = 1"
    ):
        rotary_from_config(base | {"rope_local_base_freq": 1e4})


def test_gemma_3_of_one_layer_type():
    keys = {"num_hidden_layers": 2, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": None}
    for kind, theta in (("full_attention", 1e6), ("sliding_attention", 1e4)):
        plan = rotary_from_config(GEMMA_3["text_config"] | keys | {"layer_types": [kind] * 2})
        close(spectrum_of(plan), plain(256, theta))
    with pytest.raises(
        ValueError, match="the layer type 'chunked_attention' is not known for model_type 'gemma3_text'"
    ):
        rotary_from_config(GEMMA_3["text_config"] | keys | {"layer_types": ["chunked_attention"] * 2})


def test_gemma_3_with_a_head_of_its_own():
    assert rotary_from_config(GEMMA_3["text_config"] | {"head_dim": 128}).layers[0].head_dim == 128
    heads = {"head_dim": None, "num_attention_heads": 8}  # null is not absence: derived, where absence is 256
    assert rotary_from_config(GEMMA_3["text_config"] | heads).layers[0].head_dim == 320


def test_gemma_4():
    plan = rotary_from_config(GEMMA_4)
    full = [layer.head_dim == 512 for layer in plan.layers]
    assert full == [False] * 5 + [True] + [False] + [True]  # every sixth, and the last
    close(plan.layers[0].frequencies, plain(256, 1e4))
    turning = plan.layers[5].frequencies.angular
    np.testing.assert_allclose(turning[:64], 1e6 ** (-2 * np.arange(64) / 512), rtol=3e-13)
    assert not turning[64:].any() and len(turning) == 256 and plan.layers[5].rotary_dim == 512
    today = {k: v for k, v in GEMMA_4.items() if k != "global_head_dim"}
    assert rotary_from_config(today) == plan  # 512 is the default of the class
    assert rotary_from_config(today | {"per_layer_config": {"05": {"head_dim": 512}, "07": {"head_dim": 512}}}) == plan
    only = rotary_from_config(today | {"per_layer_config": {5: {"head_dim": 128, "num_key_value_heads": 1}}})
    assert [layer.head_dim for layer in only.layers] == [256] * 5 + [128, 256, 256]
    with pytest.raises(ValueError, match="global_head_dim = 512 contradicts head_dim = 256"):
        rotary_from_config(GEMMA_4 | {"per_layer_config": {"05": {"head_dim": 512}}})


def test_modernbert():
    plan = rotary_from_config(MODERNBERT)
    thetas = [160000, 10000, 10000, 160000, 10000, 10000, 160000]
    for layer, theta in zip(plan.layers, thetas, strict=True):
        close(layer.frequencies, plain(64, theta))
    scaling = {"rope_type": "linear", "factor": 4.0}  # of both, other than with Gemma 3
    plan = rotary_from_config(MODERNBERT | {"rope_scaling": scaling})
    close(plan.layers[0].frequencies, plain(64, 160000) / 4)
    close(plan.layers[1].frequencies, plain(64, 10000) / 4)
    layers = rotary_from_config(MODERNBERT | {"global_attn_every_n_layers": 2}).layers
    assert [layer == layers[0] for layer in layers] == [True, False] * 3 + [True]
    absent = {k: v for k, v in MODERNBERT.items() if "theta" not in k and "every" not in k}
    assert rotary_from_config(absent) == rotary_from_config(MODERNBERT)


def test_gpt_neox_and_its_spellings():
    base = {"model_type": "gpt_neox", "hidden_size": 6144, "num_attention_heads": 64, "num_hidden_layers": 1}
    plan = rotary_from_config(base)
    close(spectrum_of(plan), plain(24, 10000))
    assert (plan.layers[0].head_dim, plan.layers[0].rotary_dim) == (96, 24)
    for keys in (
        {"rotary_pct": 0.25, "rotary_emb_base": 10000},
        {"partial_rotary_factor": 0.25, "rope_theta": 10000.0},
        {"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.25, "rope_type": "default"}},
        {"rope_scaling": {}, "rope_parameters": None, "rotary_dim": 24},
        {"rotary_emb_fraction": 0.25, "rotary_dim": 24, "rotary_pct": 0.25},
    ):
        assert rotary_from_config(base | keys) == plan, keys
    close(spectrum_of(rotary_from_config(base | {"rotary_pct": 1.0, "rotary_emb_base": 25000})), plain(96, 25000))


def test_llama_4():
    plan = rotary_from_config(LLAMA_4)
    assert [layer.frequencies is None for layer in plan.layers] == [False, False, False, True] * 2
    assert plan.layout == "interleaved" and plan.layers[3].head_dim == 128 and plan.layers[3].rotary_dim == 0
    assert [layer.query_scale for layer in plan.layers] == [None, None, None, QueryScale(0.1, 8192, 1)] * 2
    w = plain(128, 500000.0)  # equal bounds: a step where a pair turns once in the original length
    close(plan.layers[0].frequencies, np.where(8192 * w / (2 * np.pi) > 1, w, w / 16))
    text = LLAMA_4["text_config"]
    off = rotary_from_config(text | {"attn_temperature_tuning": False})
    assert {layer.query_scale for layer in off.layers} == {None}
    absent = {k: v for k, v in text.items() if k not in ("attn_scale", "floor_scale", "attn_temperature_tuning")}
    assert rotary_from_config(absent) == plan
    assert rotary_from_config(text | {"no_rope_layer_interval": 2}).layers[1].frequencies is None
    every = rotary_from_config(text | {"no_rope_layers": [1] * 8})
    assert all(layer.frequencies is not None for layer in every.layers)


def test_the_query_scale_of_a_model_that_is_not_known():
    keys = {"head_dim": 64, "num_hidden_layers": 2, "no_rope_layers": [1, 0], "attn_scale": 0.2, "floor_scale": 16}
    for tuned, scale in ((True, QueryScale(0.2, 16, 1)), (False, None), (None, None)):
        plan = rotary_from_config(keys | {"attn_temperature_tuning": tuned}, layout="half")
        assert [layer.query_scale for layer in plan.layers] == [None, scale]


def test_ministral_3():
    plan = rotary_from_config(MINISTRAL_3)
    close(spectrum_of(plan), yarn(128, 1e6, 16, 16384))
    assert spectrum_of(plan).attention_factor == 1  # mscale over mscale_all_dim
    assert plan.layers[0].query_scale == QueryScale(0.1, 16384, 0)
    mistral = MINISTRAL_3["text_config"] | {"model_type": "mistral4", "qk_nope_head_dim": 64, "qk_rope_head_dim": 64}
    assert rotary_from_config(mistral).layers[0].query_scale == QueryScale(0.1, 16384, 0)


def test_gpt_oss_does_not_truncate():
    plan = rotary_from_config(GPT_OSS)
    close(spectrum_of(plan), yarn(64, 150000, 32, 4096, truncate=False))
    assert spectrum_of(plan).attention_factor == pytest.approx(0.1 * math.log(32) + 1, rel=1e-15)
    ramp = np.flatnonzero(plain(64, 150000) / spectrum_of(plan).angular > 1 + 1e-9)
    assert ramp[0] == 9  # the first pair over 8.092779
    assert not np.allclose(spectrum_of(plan).angular, yarn(64, 150000, 32, 4096), rtol=1e-3)


def test_positions_of_three_coordinates():
    blocks = spectrum_of(rotary_from_config(QWEN_25_VL))
    assert blocks.axes == (0,) * 16 + (1,) * 24 + (2,) * 24
    close(blocks, plain(128, 1e6))
    dealt = rotary_from_config(QWEN_3_VL)
    assert dealt.layout == "half" and spectrum_of(dealt).axes == (0, 1, 2) * 20 + (0,) * 4
    close(spectrum_of(dealt), plain(128, 5e6))
    glm = rotary_from_config(GLM_4V)
    assert spectrum_of(glm).axes == (0,) * 8 + (1,) * 12 + (2,) * 12
    assert (glm.layout, glm.layers[0].head_dim, glm.layers[0].rotary_dim) == ("interleaved", 128, 64)
    # Long videos, as the model's page tells: YaRN, and the sections stay.
    long = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 32768, "mrope_section": [16, 24, 24]}
    scaled = spectrum_of(rotary_from_config(QWEN_25_VL | {"rope_scaling": long}))
    assert scaled.axes == blocks.axes
    close(scaled, yarn(128, 1e6, 4, 32768))
    again = {"type": "mrope", "rope_type": "default", "mrope_section": [16, 24, 24]}  # as transformers 5 saves it
    assert spectrum_of(rotary_from_config(QWEN_25_VL | {"rope_scaling": again})) == blocks
    assert spectrum_of(rotary_from_config(QWEN_25_VL | {"rope_scaling": None})) == blocks


def test_layers_without_positions():
    plan = rotary_from_config(SMOLLM_3)
    assert [layer.frequencies is None for layer in plan.layers] == [False, False, False, True, False, True]
    assert plan.layers[3].query_scale is None
    interval = {k: v for k, v in SMOLLM_3.items() if k != "no_rope_layers"}
    plan = rotary_from_config(interval)
    assert [layer.frequencies is None for layer in plan.layers] == [False, False, False, True, False, False]
    cohere = {"model_type": "cohere2", "hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 5}
    plan = rotary_from_config(cohere | {"rotary_pct": 1.0, "position_embedding_type": "rope_gptj", "rope_theta": 50000})
    assert [layer.frequencies is None for layer in plan.layers] == [False, False, False, True, False]
    assert plan.layout == "interleaved"
    plan = rotary_from_config(cohere | {"sliding_window_pattern": 2})
    assert [layer.frequencies is None for layer in plan.layers] == [False, True, False, True, False]
    exaone = {"model_type": "exaone4", "head_dim": 64, "num_hidden_layers": 4, "rope_theta": 1e6}
    assert rotary_from_config(exaone | {"sliding_window": 4096}).layers[3].frequencies is None
    assert rotary_from_config(exaone | {"sliding_window": None}).layers[3].frequencies is not None


def test_layers_of_other_kinds():
    types = {"num_hidden_layers": 4, "layer_types": ["linear_attention", "attention", "mamba", "conv"]}
    plan = rotary_from_config(llama(**types))
    assert [layer.frequencies is None for layer in plan.layers] == [True, False, True, True]
    qwen = {"model_type": "qwen3_next", "num_hidden_layers": 4, "rope_theta": 1e7, "head_dim": 256}
    plan = rotary_from_config(qwen)
    assert [layer.rotary_dim for layer in plan.layers] == [0, 0, 0, 64]
    assert [x.rotary_dim for x in rotary_from_config(qwen | {"full_attention_interval": 2}).layers] == [0, 64, 0, 64]
    bamba = {"model_type": "bamba", "head_dim": 64, "num_hidden_layers": 3, "attn_layer_indices": [1]}
    assert [layer.rotary_dim for layer in rotary_from_config(bamba).layers] == [0, 32, 0]
    assert rotary_from_config(bamba | {"attn_rotary_emb": 32}) == rotary_from_config(bamba)
    lfm = {"model_type": "lfm2", "head_dim": 64, "num_hidden_layers": 3, "full_attn_idxs": [0, 2]}
    assert [layer.rotary_dim for layer in rotary_from_config(lfm).layers] == [64, 0, 64]
    gemma = {"model_type": "recurrent_gemma", "head_dim": 64, "num_hidden_layers": 5}
    gemma |= {"block_types": ["recurrent", "recurrent", "attention"]}
    assert [layer.rotary_dim for layer in rotary_from_config(gemma).layers] == [0, 0, 32, 0, 0]
    vision = {"model_type": "mllama_text_model", "head_dim": 64, "num_hidden_layers": 3, "cross_attention_layers": [1]}
    assert [layer.rotary_dim for layer in rotary_from_config(vision).layers] == [64, 0, 64]
    granite = {"model_type": "granitemoehybrid", "head_dim": 64, "num_hidden_layers": 2, "rope_theta": 10000}
    granite["layers_block_type"] = ["mamba", "attention"]
    assert [x.rotary_dim for x in rotary_from_config(granite | {"position_embedding_type": "rope"}).layers] == [0, 64]
    for silent in ("nope", None):
        plan = rotary_from_config(granite | {"position_embedding_type": silent})
        assert [x.rotary_dim for x in plan.layers] == [0, 0]
    swa = {"model_type": "granite_swa", "head_dim": 64, "num_hidden_layers": 3, "layer_rope_theta": [1e4, 0, 2e4]}
    one, two, three = rotary_from_config(swa).layers
    close(one.frequencies, plain(64, 1e4))
    close(three.frequencies, plain(64, 2e4))
    assert two.frequencies is None
    assert rotary_from_config(swa | {"layer_rope_theta": [1e4, None, 2e4]}).layers == (one, two, three)
    said = plan_to_config(rotary_from_config(swa))
    assert said["layer_types"] == ["rope_0", "no_rope", "rope_1"] == list(said["rope_parameters"])
    olmo = {"model_type": "olmo_hybrid", "head_dim": 64, "num_hidden_layers": 1, "layer_types": ["full_attention"]}
    assert rotary_from_config(olmo | {"rope_parameters": {"rope_theta": None}}).layers[0].frequencies is None
    assert rotary_from_config(olmo).layers[0].frequencies is not None


def test_every_layer_type():
    """As transformers names them, today and before."""
    turning = (
        "attention chunked_attention deepseek_sparse_attention full_attention hybrid hybrid_sliding indexed_attention "
        "reference_sliding_attention sliding_attention"
    )
    for names, width in ((turning, 16), ("conv linear_attention mamba", 0)):
        for name in names.split():
            assert rotary_from_config(llama(layer_types=[name] * 2)).layers[0].rotary_dim == width, name


def test_every_spelling_of_a_size():
    """GPT-J, MPT, Falcon and Moonshine have names of their own for them."""
    config = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    plan = rotary_from_config(config, layout="half")
    for name, others in {
        "num_hidden_layers": "n_layer n_layers num_layers decoder_num_hidden_layers",
        "hidden_size": "n_embd d_model",
        "num_attention_heads": "n_head n_heads decoder_num_attention_heads",
    }.items():
        for other in others.split():
            renamed = {other if key == name else key: value for key, value in config.items()}
            assert rotary_from_config(renamed, layout="half") == plan, other
    for other in ("head_dim", "kv_channels", "attention_head_dim"):
        assert rotary_from_config({"num_hidden_layers": 2, other: 16}, layout="half") == plan, other


def test_settings_for_each_layer_type():
    nested = {"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}, "sliding_attention": None}
    types = ["sliding_attention", "full_attention", "linear_attention"]
    keys = {"layer_types": types, "num_hidden_layers": 3, "rope_parameters": nested}
    plan = rotary_from_config(llama(**keys))
    assert [layer.frequencies is None for layer in plan.layers] == [True, False, True]
    close(plan.layers[1].frequencies, plain(16, 1e6) / 2)
    # The outer base is for the types that have none; the original length outside is for none.
    part = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {}}
    plan = rotary_from_config(llama(**keys | {"rope_parameters": part}, rope_theta=2e4))
    close(plan.layers[0].frequencies, plain(16, 2e4))
    close(plan.layers[1].frequencies, plain(16, 1e6))
    scaling = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 2048}
    part = {"full_attention": scaling, "sliding_attention": None}
    plan = rotary_from_config(llama(**keys | {"rope_parameters": part}, original_max_position_embeddings=1024))
    close(plan.layers[1].frequencies, yarn(16, 1e4, 4, 2048))
    for name in ("layer_types", "layers_block_type"):  # settings for a type that no layer has
        plan = rotary_from_config(llama(**{name: ["full_attention"] * 2}, rope_parameters=part))
        close(spectrum_of(plan), yarn(16, 1e4, 4, 2048))
    only = {"full_attention": scaling}  # without layer_types, which make no difference
    assert rotary_from_config(llama(rope_parameters=only)) == plan
    mimo = {"partial_rotary_factor": 0.334, "rope_theta": 1e4}  # int(192 · 0.334) = 64
    keys = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "rope_parameters": {"full_attention": mimo}}
    assert rotary_from_config({"model_type": "mimo_v2_flash", **keys}).layers[0].rotary_dim == 64


@pytest.mark.parametrize(
    ("config", "length", "angular", "amplitude"),
    [
        (scaled("default"), None, plain(16, 1e4), 1),
        (scaled("linear", factor=2.5), None, plain(16, 1e4) / 2.5, 1),
        (scaled("dynamic", factor=4.0), 8192, plain(16, 1e4), 1),
        (scaled("dynamic", factor=4.0), 100, plain(16, 1e4), 1),
        (scaled("dynamic", factor=4.0), 20000, dynamic(16, 1e4, 4, 8192, 20000), 1),
        (scaled("dynamic", alpha=50.0) | {"model_type": "hunyuan_v1_dense"}, None, plain(16, 1e4 * 50 ** (16 / 14)), 1),
        (scaled("yarn", factor=4.0), None, yarn(16, 1e4, 4, 8192), 0.1 * math.log(4) + 1),
        (scaled("yarn", factor=None, original_max_position_embeddings=2048), None, yarn(16, 1e4, 4, 2048), 0.1 * math.log(4) + 1),
        (scaled("yarn", factor=4.0, original_max_position_embeddings=512, beta_fast=8, beta_slow=0.5, attention_factor=1.25),
         None, yarn(16, 1e4, 4, 512, 8, 0.5), 1.25),
        (scaled("yarn", factor=4.0, mscale=0.5, mscale_all_dim=0.0), None, yarn(16, 1e4, 4, 8192), 0.1 * math.log(4) + 1),
        (scaled("yarn", factor=4.0, mscale=0.5), None, yarn(16, 1e4, 4, 8192), 0.1 * math.log(4) + 1),
        (scaled("yarn", factor=4.0, original_max_position_embeddings=512, truncate=False), None, yarn(16, 1e4, 4, 512, truncate=False),
         0.1 * math.log(4) + 1),
        (scaled("yarn", factor=1.0), None, plain(16, 1e4), 1),
        (scaled("longrope", short_factor=[1.0] * 8, long_factor=SPREAD), 9000, plain(16, 1e4) / SPREAD, 1),
        (scaled("longrope", short_factor=SPREAD, long_factor=[1.0] * 8, factor=16.0), 9, plain(16, 1e4) / SPREAD,
         math.sqrt(1 + math.log(16) / math.log(8192))),
        (scaled("longrope", short_factor=SPREAD, long_factor=SPREAD, factor=16.0, attention_factor=1.5), 9, plain(16, 1e4) / SPREAD, 1.5),
        (scaled("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=1024),
         None, llama3(16, 1e4, 8, 1, 4, 1024), 1),
        (scaled("proportional", partial_rotary_factor=0.3, factor=2.0), None, [0.5, 0.5 * 1e4 ** (-2 / 16), 0, 0, 0, 0, 0, 0], 1),
        (scaled("proportional"), None, plain(16, 1e4), 1),
    ],
)  # fmt: skip
def test_every_rope_type(config, length, angular, amplitude):
    settings = config["rope_parameters"]
    kind, theta = settings["rope_type"], settings["rope_theta"]
    plan = rotary_from_config(config, length=length)
    close(spectrum_of(plan), angular)
    assert spectrum_of(plan).attention_factor == pytest.approx(amplitude, rel=1e-15)
    assert plan.length == length
    if length is None:  # where no length is needed, one may be given
        assert rotary_from_config(config, length=5) == plan
    rest = {k: v for k, v in settings.items() if k not in ("rope_type", "rope_theta")}
    for old in ({"type": kind, **rest}, {"rope_type": kind, **rest}, {"type": kind, "rope_type": kind, **rest}):
        legacy = {**config, "rope_parameters": None, "rope_theta": theta, "rope_scaling": old}
        assert rotary_from_config(legacy, length=length) == plan
        both = legacy | {"rope_parameters": settings}
        assert rotary_from_config(both, length=length) == plan
    said = plan_to_config(plan)
    assert rotary_from_config(json.loads(json.dumps(said)), length=plan.length) == plan
    assert "model_type" not in said and said["rope_parameters"]["rope_type"] == kind


@pytest.mark.parametrize("name", PUBLISHED)
def test_there_and_back(name):
    plan = rotary_from_config(PUBLISHED[name], length=5000)
    said = json.loads(json.dumps(plan_to_config(plan)))
    assert rotary_from_config(said, length=plan.length) == plan
    assert rotary_from_config(said, length=5000) == plan
    assert plan_to_config(rotary_from_config(said, length=5000)) == said


def test_the_share_of_proportional_may_stand_outside():
    config = scaled("proportional", factor=2.0) | {"partial_rotary_factor": 0.3}
    assert rotary_from_config(config) == rotary_from_config(
        scaled("proportional", factor=2.0, partial_rotary_factor=0.3)
    )


def test_sections_of_a_model_that_is_not_known():
    settings = {"rope_theta": 1e4, "mrope_section": [4, 2, 2]}
    config = {"head_dim": 16, "num_hidden_layers": 1, "rope_parameters": settings}
    assert rotary_from_config(config, layout="half").layers[0].frequencies.axes == (0, 0, 0, 0, 1, 1, 2, 2)
    for name in ("mrope_interleaved", "interleaved"):
        dealt = config | {"rope_parameters": settings | {name: True}}
        assert rotary_from_config(dealt, layout="half").layers[0].frequencies.axes == (0, 1, 2, 0, 1, 2, 0, 0)


def test_hunyuan_keeps_keys_that_it_does_not_read():
    close(spectrum_of(rotary_from_config(HUNYUAN)), plain(128, 1e4 * 1000 ** (128 / 126)))
    with pytest.raises(ValueError, match="factor = 2.0 contradicts the factor that goes with alpha = 1.0"):
        rotary_from_config(HUNYUAN | {"rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 2.0}})


def test_a_share_of_the_head_survives_the_way_back():
    for head_dim in (44, 46, 52, 86, 96, 128, 192):  # int(44 · (30 / 44)) is 29
        for width in range(2, head_dim, 2):
            config = {"num_hidden_layers": 1, "head_dim": head_dim, "rotary_dim": width}
            plan = rotary_from_config(config, layout="half")
            assert plan.layers[0].rotary_dim == width
            assert rotary_from_config(plan_to_config(plan)) == plan
    said = plan_to_config(
        rotary_from_config({"num_hidden_layers": 1, "head_dim": 128, "rotary_dim": 32}, layout="half")
    )
    assert said["rope_parameters"]["partial_rotary_factor"] == 0.25


def test_an_object_with_to_dict():
    class Config:
        def __init__(self, values):
            self.values = values

        def to_dict(self):
            return self.values

    assert rotary_from_config(Config(LLAMA_31)) == rotary_from_config(LLAMA_31)
    assert rotary_from_config(Config({"model_type": "llava", "text_config": Config(LLAMA_31)})) == rotary_from_config(
        LLAMA_31
    )
    for wrong in (Config, dict, type("Odd", (), {"to_dict": LLAMA_31})()):
        with pytest.raises(TypeError, match=r"^rotary_from_config: config must be a mapping or have to_dict\(\), got "):
            rotary_from_config(wrong)


def test_settings_beside_the_text_config():
    text = LLAMA_31 | {"model_type": None}
    outer = {"model_type": "llama", "text_config": text, "thinker_config": None}
    assert rotary_from_config(outer) == rotary_from_config(LLAMA_31)
    twice = {key: LLAMA_31[key] for key in ("rope_theta", "rope_scaling", "hidden_size")}
    assert rotary_from_config(outer | twice) == rotary_from_config(LLAMA_31)
    for keys in ({"rope_theta": 1e4}, {"rope_scaling": {"type": "linear", "factor": 2.0}}, {"rotary_pct": 1.0}):
        with pytest.raises(ValueError, match=f"the key {next(iter(keys))} = .* is not known or not used here"):
            rotary_from_config(outer | keys)
    assert rotary_from_config({"thinker_config": outer}) == rotary_from_config(LLAMA_31)
    assert rotary_from_config({"language_config": LLAMA_31}) == rotary_from_config(LLAMA_31)
    assert rotary_from_config({"text_config": {"text_config": outer}}) == rotary_from_config(LLAMA_31)
    with pytest.raises(ValueError, match="config must hold its text_config within four levels"):
        rotary_from_config({"text_config": {"text_config": {"text_config": outer}}})


def test_nothing_given_is_changed():
    before = json.dumps(GEMMA_3)
    rotary_from_config(GEMMA_3)
    assert json.dumps(GEMMA_3) == before


def test_the_name_of_the_positions():
    base = {"head_dim": 64, "num_hidden_layers": 1}
    for name, width in (("rope", 64), ("rotary", 64), ("nope", 0)):
        plan = rotary_from_config(base | {"position_embedding_type": name}, layout="half")
        assert plan.layers[0].rotary_dim == width, name


def test_the_layout_is_the_model_s_or_the_caller_s():
    interleaved = {name for name, model in MODELS.items() if model.layout == "interleaved"}
    assert interleaved == set(
        "axk1 axk2 codegen cohere cohere2 deepseek_v2 deepseek_v3 deepseek_v32 ernie4_5 ernie4_5_moe glm glm4 glm4_moe_lite "
        "glm4v_text glm_moe_dsa glm_ocr_text gptj helium llama4_text mistral4 moonshine openai_privacy_filter youtu".split()
    )
    for said in ("rope_interleave", "rope_interleaved", "rotary_emb_interleaved"):
        assert rotary_from_config(LLAMA_31 | {said: False}) == rotary_from_config(LLAMA_31)
    assert rotary_from_config(LLAMA_31, layout="interleaved").layout == "interleaved"
    assert rotary_from_config(LLAMA_31, layout="interleaved").layers == rotary_from_config(LLAMA_31).layers
    unknown = {"model_type": "mine", "head_dim": 8, "num_hidden_layers": 1, "rope_theta": 1e4}
    for layout in ("half", "interleaved"):
        assert rotary_from_config(unknown, layout=layout).layout == layout
        assert rotary_from_config(unknown | {"rope_interleave": layout == "interleaved"}).layout == layout
    for config in (unknown, {k: v for k, v in unknown.items() if k != "model_type"}):
        with pytest.raises(ValueError, match='layout must be given, "half" or "interleaved": that of model_type'):
            rotary_from_config(config)


def test_the_base_that_no_key_says():
    """10,000 by the rule, the model's own where it is known, and an error where it cannot be."""
    base = {"head_dim": 64, "num_hidden_layers": 1}
    for name, theta in {
        "llama": 1e4,
        "mixtral": 1e6,
        "cohere": 5e5,
        "helium": 1e5,
        "smollm3": 2e6,
        "qwen2": 1e4,
    }.items():
        close(rotary_from_config(base | {"model_type": name}).layers[0].frequencies, plain(64, theta))
    close(rotary_from_config(base, layout="half").layers[0].frequencies, plain(64, 1e4))
    for keys in ({"model_type": "mine"}, {"rope_parameters": {"rope_theta": None}}):
        with pytest.raises(ValueError, match="rope_theta is missing"):
            rotary_from_config(base | keys, layout="half")


def test_the_defaults_of_classes():
    """As the configuration classes of transformers 5.23.0 have them; those that are not there have the usual one."""
    thetas = {
        1e3: "nomic_bert",
        2e4: "jina_embeddings_v3",
        1e5: "helium",
        150_000: "gpt_oss openai_privacy_filter",
        160_000: "gte",
        5e5: "bitnet cohere csm ernie4_5 ernie4_5_moe flex_olmo llama4_text mllama_text_model paddleocr_vl_text "
        "qwen3_vl_moe_text qwen3_vl_text",
        1e6: "cwm emu3_text_model lfm2 lfm2_moe minimax mixtral phimoe qwen2_5_omni_text qwen2_5_vl_text qwen2_vl_text "
        "qwen3_omni_moe_text solar_open",
        2e6: "smollm3",
        5e6: "minimax_m2",
        11_158_840: "hy_v3",
        12e6: "apertus",
        None: "ministral3 mistral4",
    }
    heads = {
        64: "gpt_oss openai_privacy_filter",
        128: "afmoe beam cwm ernie4_5 flint glm glm4 helium hy_v3 internlm3 iquestcoder jetmoe kolibri1 laguna lfm3 "
        "llama4_text mellum minimax_m2 ministral3 paddleocr_vl_text qwen3 qwen3_vl_text seed_oss solar_open zaya",
        192: "mimo_v2_flash",
        256: "diffusion_gemma_text gemma gemma2 gemma3_text gemma3n_text gemma4_text gemma4_unified_text "
        "qwen3_5_moe_text qwen3_5_text qwen3_next t5gemma2_decoder t5gemma2_text vaultgemma",
    }
    shares = {
        0.25: "gpt_neox qwen3_5_moe_text qwen3_5_text qwen3_next stablelm",
        0.334: "mimo_v2_flash",
        0.5: "bamba glm glm4 glm4_moe glm4v_moe_text nemotron persimmon phi recurrent_gemma",
        0.9: "moonshine",
        1.0: "codegen glm4v_text glm_image_text glm_ocr_text gpt_neox_japanese gptj laguna mellum minimax_m2 phi3 "
        "phi4_multimodal solar_open zaya",
    }
    for field, usual, facts in (("theta", 1e4, thetas), ("head_dim", None, heads), ("partial", None, shares)):
        expected = {name: value for value, names in facts.items() for name in names.split()}
        assert {name: getattr(m, field) for name, m in MODELS.items() if getattr(m, field) != usual} == expected


def test_the_facts_of_code():
    """As the modelling code of transformers 5.23.0 has them."""
    facts = {
        "required": "apertus beam cwm diffusion_gemma_text gemma4_text gemma4_unified_text gpt_oss laguna lfm3 mellum "
        "mimo_v2_flash ministral3 mistral4 openai_privacy_filter zaya",
        "sliding_only": "afmoe cohere2 exaone4 exaone_moe flint kolibri1",
        "windowless": "exaone4 exaone_moe kolibri1",
        "typed": "bamba beam flint granitemoehybrid kolibri1 laguna lfm2 lfm2_moe lfm3 mellum mimo_v2_flash minimax "
        "olmo_hybrid recurrent_gemma zaya",
        "nested": "beam diffusion_gemma_text gemma4_text gemma4_unified_text laguna lfm3 mellum mimo_v2_flash zaya",
        "thetas": "gemma3_text gemma3n_text modernbert modernbert-decoder olmo3 t5gemma2_decoder t5gemma2_text",
        "latent": "axk1 axk2 deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa hy_v4 minicpm3 mistral4 youtu",
        "switched": "axk1 deepseek_v3 glm4_moe_lite mistral4 youtu",
        "dealt": "qwen3_5_moe_text qwen3_5_text qwen3_omni_moe_text qwen3_vl_moe_text qwen3_vl_text",
        "layer_thetas": "granite_swa granitemoe_swa",
        "interval": "llama4_text smollm3",
        "temperature": "llama4_text ministral3 mistral4",
        "null_theta": "olmo_hybrid",
    }
    for field, names in facts.items():
        assert {name for name, model in MODELS.items() if getattr(model, field)} == set(names.split()), field
    sections = {name: model.sections for name, model in MODELS.items() if model.sections}
    assert {sections.pop(f"qwen2_{x}_text") for x in ("vl", "5_vl", "5_omni")} == {(16, 24, 24)}
    assert {sections.pop(f"qwen3_{x}_text") for x in ("vl", "vl_moe", "omni_moe")} == {(24, 20, 20)}
    assert {sections.pop(f"qwen3_{x}_text") for x in ("5", "5_moe")} == {(11, 11, 10)}
    assert sections.pop("paddleocr_vl_text") == (16, 24, 24)
    assert set(sections) == {"glm4v_text", "glm_ocr_text", "glm4v_moe_text", "glm_image_text"}
    assert set(sections.values()) == {(8, 12, 12)}
    refused = "cohere2_moe deepseek_v4 ernie4_5_vl_moe hunyuan_vl mistral_large4 nanochat neomme"
    assert set(REFUSED) == set(refused.split())


def test_the_layer_types_that_no_key_says():
    base = {"head_dim": 64, "num_hidden_layers": 13, "rope_theta": 7e5}
    full = {"gemma3_text": 6, "gemma3n_text": 5, "t5gemma2_text": 6, "t5gemma2_decoder": 6}
    for name, period in full.items():
        layers = rotary_from_config(base | {"model_type": name}).layers
        assert [layer.frequencies == layers[period - 1].frequencies for layer in layers] == [
            (i + 1) % period == 0 for i in range(13)
        ], name
    scaling = {"rope_type": "linear", "factor": 2.0}
    layers = rotary_from_config(base | {"model_type": "olmo3", "rope_scaling": scaling}).layers
    for i, layer in enumerate(layers):
        close(layer.frequencies, plain(64, 7e5) / (2 if i % 4 == 3 else 1))
    base = {"head_dim": 64, "num_hidden_layers": 9}
    for name in ("cohere2", "afmoe", "exaone4", "exaone_moe"):
        layers = rotary_from_config(base | {"model_type": name, "sliding_window": 64}).layers
        assert [layer.frequencies is None for layer in layers] == [False, False, False, True] * 2 + [False], name
    key = {"model_type": "afmoe", "global_attn_every_n_layers": 3}
    assert rotary_from_config(base | key).layers[2].frequencies is None


def test_the_share_that_no_key_says():
    base = {"head_dim": 128, "num_hidden_layers": 1}
    shares = {
        "gpt_neox": 0.25,
        "stablelm": 0.25,
        "phi": 0.5,
        "persimmon": 0.5,
        "nemotron": 0.5,
        "glm": 0.5,
        "glm4": 0.5,
    }
    shares |= {"glm4_moe": 0.5, "gptj": 0.5, "codegen": 0.5, "phi3": 1.0, "llama": 1.0, "minimax_m2": 1.0}
    for name, share in shares.items():
        assert rotary_from_config(base | {"model_type": name}).layers[0].rotary_dim == 128 * share, name
    whole = base | {"model_type": "gptj", "rotary_dim": None}  # null is not absence
    assert rotary_from_config(whole).layers[0].rotary_dim == 128
    gptj = {"model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_layer": 1, "rotary_dim": 32, "rotary": True}
    assert (rotary_from_config(gptj).layers[0].head_dim, rotary_from_config(gptj).layers[0].rotary_dim) == (256, 32)


def test_the_plan_is_static_and_hashable():
    plans = [rotary_from_config(LLAMA_4) for _ in range(2)]
    assert plans[0] == plans[1] and hash(plans[0]) == hash(plans[1]) and len({*plans}) == 1
    assert jax.tree.leaves(plans[0]) == []
    rotated = jax.jit(lambda x, plan: pe.rotary(x, None, plan.layers[0].frequencies, layout=plan.layout))(
        jnp.ones((1, 4, 2, 128)), plans[0]
    )
    assert rotated.shape == (1, 4, 2, 128)
    assert plans[0] != rotary_from_config(LLAMA_4, layout="half")
    assert RotaryPlan(plans[0].layers, "interleaved") == plans[0]
    assert "parameters" not in repr(plans[0])


@pytest.mark.parametrize(
    "scale", [QueryScale(0.1, 8192, 1), QueryScale(0.25, 16384, 0), QueryScale(1.0, 3, 2), QueryScale(0.1, 2**31 - 1)]
)
def test_query_scale(scale):
    positions = [0, 1, 2, 3, 8190, 8191, 8192, 16383, 16384, 131071, 10**6, 2**31 - 2, 2**31 - 1]
    want = [1 + scale.coefficient * math.log(1 + (p + scale.offset) // scale.period) for p in positions]
    got = scale(np.array(positions, np.int32))
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, rtol=2.5e-7)
    few = positions[:10]  # which float32 holds
    np.testing.assert_array_equal(scale(jnp.array(few, jnp.float32)), got[:10])
    np.testing.assert_array_equal(jax.jit(scale)(jnp.array(few)), got[:10])
    assert scale(7).shape == ()


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
    (scaled("yarn", factor=2.0) | {"max_position_embeddings": None}, "max_position_embeddings is missing"),
    (scaled("mrope"), "rope_parameters.mrope_section is missing"),
    (llama(rope_theta=None), "rope_theta is missing"),
    (llama(rope_parameters={"rope_theta": None}), "rope_theta is missing"),
    ({"model_type": "gpt_oss", "num_hidden_layers": 1}, "rope_parameters is missing, and model_type 'gpt_oss' has a default of its own"),
    (GEMMA_4 | {"rope_parameters": None}, "rope_parameters is missing, and model_type 'gemma4_text' has"),
    ({"model_type": "lfm2", "num_hidden_layers": 1, "head_dim": 8}, "layer_types is missing"),
    (llama(rope_parameters={"full_attention": {"rope_theta": 1e4}, "sliding_attention": {}}), r"layer_types is missing, and rope_parameters has settings for \['full_attention', 'sliding_attention'\]"),
    # what is not known or not used
    (scaled("ntk", factor=2.0), r"rope_type must be one of \['default', 'dynamic', .*\], got 'ntk'"),
    (scaled("axial"), "got 'axial'"),
    (llama(rope_scaling={"type": "Linear", "factor": 2.0}), "type must be one of .* got 'Linear'"),
    (llama(rope_scaling={"type": ["linear"], "factor": 2.0}), "type must be one of .* got"),
    (scaled("default", factor=8.0), "the key rope_parameters.factor = 8.0 is not known or not used here"),
    (scaled("linear", factor=8.0, beta_fast=32), "the key rope_parameters.beta_fast = 32 is not known or not used"),
    (scaled("dynamic", factor=8.0, original_max_position_embeddings=2048), "the key rope_parameters.original_max_position_embeddings = 2048"),
    (scaled("yarn", factor=8.0, finetuned=True), "the key rope_parameters.finetuned = True is not known"),
    (scaled("yarn", factor=8.0, low_freq_factor=1.0), "the key rope_parameters.low_freq_factor = 1.0"),
    (scaled("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, attention_factor=1.0), "the key rope_parameters.attention_factor"),
    (scaled("default", mrope_section=[2, 3, 3]), r"the key rope_parameters.mrope_section = \[2, 3, 3\] is not known or not used here"),
    (scaled("default", llama_4_scaling_beta=0.1), "the key rope_parameters.llama_4_scaling_beta"),
    (llama(rope_local_base_freq=1e4), "the key rope_local_base_freq = 10000.0 is not known or not used here"),
    (llama(no_rope_layers=[1, 0]), r"the key no_rope_layers = \[1, 0\] is not known or not used here"),
    (llama(layer_rope_theta=[1e4, 0]), "the key layer_rope_theta"),
    (llama(rope_scaling={"type": "mrope", "mrope_section": [2, 3, 3]}), r"the key rope_scaling.mrope_section = \[2, 3, 3\] is not known or not used"),
    (llama(rope_ratio=50), "the key rope_ratio = 50 is not known"),
    (llama(alibi_bias_max=8), "the key alibi_bias_max = 8 is not known"),
    (llama(qk_rope_head_dim=64), "the key qk_rope_head_dim = 64"),
    ({"model_type": "m", "text_config": llama(), "rope_scaling": {"type": "linear", "factor": 2.0}}, "the key rope_scaling = .* is not known or not used here"),
    (llama(layer_types=["full_attention", "moe"]), r"the layer types \['moe'\] of layer_types are not known"),
    (llama(layer_types=["full_attention"] * 2, rope_parameters={"full_attention": {}, "main": {}}), "the key rope_parameters.main = {} is none of the layer_types"),
    (llama(layer_types=["full_attention"] * 2, rope_parameters={"full_attention": {"rope_theta": 1.0}, "truncate": False}), "the key rope_parameters.truncate = False is none of"),
    (llama(layer_types=["full_attention"] * 2, rope_parameters={"full_attention": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 4096, "truncate": False}}), "rope_parameters.full_attention.truncate = False, which transformers does not read"),
    (llama(per_layer_config={"0": {"rope_theta": 1e4}}), "the key per_layer_config.0.rope_theta is not known"),
    # what contradicts
    (llama(rope_theta=1e6, rope_parameters={"rope_theta": 1e4}), r"rope_parameters.rope_theta = 10000.0 contradicts rope_theta = 1000000.0"),
    (llama(rope_theta=1e6, rotary_emb_base=1e4), "rope_theta = 1000000.0 contradicts rotary_emb_base = 10000.0"),
    (llama(rope_scaling={"type": "linear", "rope_type": "dynamic", "factor": 2.0}), "rope_scaling.rope_type = 'dynamic' contradicts rope_scaling.type = 'linear'"),
    (llama(rope_scaling={"type": "linear", "factor": 2.0}, rope_parameters={"rope_type": "linear", "factor": 4.0}), r"rope_scaling = \{'type': 'linear', 'factor': 2.0\} contradicts rope_parameters = \{'rope_"),
    (llama(rope_scaling={"type": "linear", "factor": 2.0}, rope_parameters={"rope_type": "default", "rope_theta": 1e4}), r"rope_scaling = \{'type': 'linear', 'factor': 2.0\} contradicts rope_parameters = \{'rope_"),
    ({"model_type": "gpt_neox", "head_dim": 64, "num_hidden_layers": 1, "rotary_dim": 32, "rotary_pct": 0.25}, r"rotary_pct \(of 64\) = 16 contradicts rotary_dim = 32"),
    ({"model_type": "gpt_neox", "head_dim": 64, "num_hidden_layers": 1, "partial_rotary_factor": 0.5, "rotary_pct": 0.25}, r"partial_rotary_factor \(of 64\) = 32 contradicts rotary_pct \(of 64\) = 16"),
    (llama(partial_rotary_factor=0.5), r"partial_rotary_factor \(of 16\) = 8 contradicts the width of model_type 'llama' = 16"),
    (llama(rope_interleave=True), "rope_interleave = 'interleaved' contradicts the layout of model_type 'llama' = 'half'"),
    (llama(n_embd=32), "hidden_size = 64 contradicts n_embd = 32"),
    (QWEN_25_VL | {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24], "mrope_interleaved": True}}, "mrope_interleaved = True contradicts that of model_type 'qwen2_5_vl' = False"),
    (DEEPSEEK_V3 | {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5 contradicts qk_rope_head_dim = 64 of 192 features"),
    (scaled("yarn", factor=2.0, original_max_position_embeddings=2048, max_position_embeddings=4096), "rope_parameters.max_position_embeddings = 4096 contradicts max_position_embeddings = 8192"),
    (llama(layer_types=["full_attention"] * 2, rope_theta=1e5, rope_parameters={"full_attention": {"rope_theta": 1e6}}), r"rope_theta = 100000.0 contradicts rope_parameters, whose layer types have \[1000000.0\]"),
    (llama(layer_types=["full_attention"] * 2, rope_theta=1e5, rope_parameters={"full_attention": None}), "rope_theta = 100000.0 contradicts rope_parameters, whose layer types have no positions"),
    (llama(model_type=None, attn_layer_indices=np.arange(2), full_attn_idxs=np.arange(2, 4)), r"attn_layer_indices = array\(\[0, 1\]\) contradicts full_attn_idxs"),
    # what does not fit
    (scaled("dynamic", factor=2.0) | {"max_position_embeddings": 2**31}, "^rotary_from_config: max_position_embeddings must fit into int32, got 2147483648"),
    (llama(num_hidden_layers=2**16 + 1), "num_hidden_layers must be at most 65,536, got 65537"),
    (llama(layer_types=["full_attention", 3]), "layer_types must name the 2 layers of num_hidden_layers"),
    (DEEPSEEK_V3 | {"rope_scaling": DEEPSEEK_V3["rope_scaling"] | {"mscale_all_dim": 1e200}}, "the square that mscale_all_dim asks for must be finite"),
    (scaled("longrope", short_factor=SPREAD[1:], long_factor=SPREAD), "rope_parameters.rope_type 'longrope': longrope: short_factor"),
    (scaled("linear", factor=0), "rope_parameters.rope_type 'linear': linear_scaling: factor must be positive, got 0.0"),
    (scaled("yarn", factor=0.5), "rope_type 'yarn': yarn: factor must be at least 1, got 0.5"),
    (scaled("dynamic", factor=0.5), "rope_type 'dynamic': dynamic_ntk: factor must be at least 1"),
    (scaled("yarn", factor=None, original_max_position_embeddings=10000), "yarn: factor must be at least 1, got 0.8192"),
    (QWEN_25_VL | {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 20]}}, "multi_section: sections must sum to the 64 pairs"),
    ({"model_type": "phi", "head_dim": 30, "num_hidden_layers": 1}, "head_dim must rotate an even number of features, from 2 to 30, got 15"),
    ({"model_type": "phi", "head_dim": 32, "num_hidden_layers": 1, "rotary_dim": 64}, "rotary_dim must rotate an even number of features, from 2 to 32, got 64"),
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
    ({"head_dim": 64, "num_hidden_layers": 1, "position_embedding_type": "absolute", "rope_interleave": False}, "position_embedding_type = 'absolute' is not rotary"),
    (llama(model_type="nanochat"), "model_type 'nanochat' rotates in a way that a plan cannot say: it rotates backwards"),
    # the two spectra of Gemma 3
    (GEMMA_3["text_config"] | {"rope_scaling": None, "rope_parameters": {"rope_type": "linear", "factor": 8.0}}, "rope_parameters must hold settings for each of the layer types"),
    (GEMMA_3["text_config"] | {"rope_scaling": {"full_attention": {}}}, "rope_scaling.sliding_attention is missing"),
    (GEMMA_3["text_config"] | {"rope_scaling": {"full_attention": {}, "sliding_attention": None}}, "rope_scaling.sliding_attention = None: no model_type 'gemma3_text' is without positions"),
    (GEMMA_4 | {"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters must hold settings for each of the layer types"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "match"), BAD, ids=range(len(BAD)))
def test_what_is_refused(config, match):
    with pytest.raises(ValueError, match=match) as e:
        rotary_from_config(config, length=9)
    assert str(e.value).startswith("rotary_from_config: ") and str(e.value).count("rotary_from_config") == 1


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
        (lambda: rotary_from_config(scaled("yarn", factor=2.0, truncate="no")), TypeError, "rope_type 'yarn': yarn: truncate must be True or False"),
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
        (lambda: plan_to_config(RotaryPlan((), "half")), TypeError, r"plan_to_config: plan.layers must be a tuple of RotaryLayer, got tuple \(\)"),
        (lambda: plan_to_config(RotaryPlan((RotaryLayer(None, 8), 5), "half")), TypeError, "plan_to_config: plan.layers must be a tuple of RotaryLayer"),  # type: ignore
        (lambda: plan_to_config(RotaryPlan(None, "half")), TypeError, "plan_to_config: plan.layers must be a tuple of RotaryLayer, got NoneType"),  # type: ignore
        (lambda: rotary_from_config(llama(per_layer_config=[])), TypeError, "per_layer_config must be a mapping"),
        (lambda: rotary_from_config({"model_type": "exaone4", "num_hidden_layers": 2, "sliding_window_pattern": "LLLG"}), TypeError, "sliding_window_pattern must be an integer"),
        (lambda: rotary_from_config(llama(rope_parameters={"full_attention": 3, "sliding_attention": {}})), TypeError, "rope_parameters.full_attention must be a mapping"),
        (lambda: rotary_from_config(PHI_3), ValueError, "length must be given: the spectrum of rope_scaling.rope_type depends on it"),
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


def test_the_settings_of_a_query_scale_are_read():
    given = LLAMA_4["text_config"] | {"attn_temperature_tuning": True, "attn_scale": 0.25, "floor_scale": 100}
    scales = {layer.query_scale for layer in rotary_from_config(given).layers}
    assert scales == {None, QueryScale(0.25, 100, 1)}
    off = rotary_from_config(given | {"attn_temperature_tuning": False})
    assert {layer.query_scale for layer in off.layers} == {None}


def test_a_share_of_a_head_is_rounded_down():
    moonshine = {"model_type": "moonshine", "head_dim": 52, "num_hidden_layers": 1}
    for given in (moonshine, moonshine | {"partial_rotary_factor": 0.9}):  # 46.8
        assert rotary_from_config(given).layers[0].rotary_dim == 46


def test_a_null_window_leaves_the_pattern():
    cohere = {"model_type": "cohere2", "head_dim": 16, "num_hidden_layers": 4, "sliding_window": None}
    assert [layer.frequencies is None for layer in rotary_from_config(cohere).layers] == [False, False, False, True]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_rotations_that_a_plan_cannot_say(name):
    for model_type in (name, f"{name}_text"):
        with pytest.raises(ValueError, match=f"model_type '{model_type}' rotates in a way that a plan cannot say"):
            rotary_from_config(llama(model_type=model_type), layout="half")


def test_every_model_type_reads():
    """With settings that none has for a default, so that no entry of the table is without use."""
    for name, model in MODELS.items():
        config = {
            "model_type": name,
            "head_dim": 128,
            "num_hidden_layers": 2,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
        }
        config = {k: v for k, v in config.items() if not k.startswith("qk") or model.latent}
        settings = {"rope_type": "default", "rope_theta": 123.0}
        if model.temperature == "beta":
            settings |= {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 4096}
        if model.sections or model.partial:
            share = 0.5 if model.sections is None else sum(model.sections) / 64
            settings |= {"partial_rotary_factor": share}
        if model.typed or model.nested or model.thetas or model.sliding_only or model.pattern:
            config["layer_types"] = ["sliding_attention", "full_attention"]
        if model.position:
            config["position_embedding_type"] = model.position
        if model.nested or model.thetas:
            settings = {"sliding_attention": settings, "full_attention": settings}
        plan = rotary_from_config(config | {"rope_parameters": settings}, length=9)
        (first, _) = plan.layers
        assert first.frequencies is not None and first.frequencies.angular[1] < 1, name
        assert first.frequencies.angular[1] == pytest.approx(123 ** (-2 / first.rotary_dim)), name
        assert rotary_from_config(plan_to_config(plan)) == plan, name


def test_latent_attention_of_which_some_layers_rotate():
    plan = rotary_from_config(DEEPSEEK_V3 | {"layer_types": ["full_attention", "linear_attention"]})
    assert plan.part == "last" and [layer.rotary_dim for layer in plan.layers] == [64, 0]
    assert rotary_from_config(plan_to_config(plan)) == plan


def test_a_width_of_0_is_no_latent_attention():
    config = {"num_hidden_layers": 1, "head_dim": 16}
    plan = rotary_from_config(config, layout="half")
    assert rotary_from_config(config | {"qk_rope_head_dim": 0}, layout="half") == plan


def test_the_length_is_the_plan_s_where_one_layer_needs_it():
    nested = {"full_attention": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}, "sliding_attention": {"rope_theta": 1e4}}  # fmt: skip
    types = ["full_attention", "sliding_attention"]
    config = llama(layer_types=types, rope_parameters=nested, max_position_embeddings=512)
    plan = rotary_from_config(config, length=2000)
    close(plan.layers[0].frequencies, dynamic(16, 1e4, 2, 512, 2000))
    assert plan.length == 2000 and rotary_from_config(plan_to_config(plan), length=2000) == plan


def test_so_many_layers():
    assert len(rotary_from_config(llama(num_hidden_layers=2**16)).layers) == 2**16


def test_latent_attention_of_which_no_layer_rotates():
    plan = rotary_from_config(DEEPSEEK_V3 | {"layer_types": ["linear_attention"] * 2})
    assert {(layer.frequencies, layer.head_dim) for layer in plan.layers} == {(None, 192)}
    assert plan.part == "first" and rotary_from_config(plan_to_config(plan)) == plan
