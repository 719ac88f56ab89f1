"""Published settings, worked out by hand."""

import json

import numpy as np
import pytest

from helpers.plans import close, plain, spectrum_of
from huggingface.published import (
    DEEPSEEK_V3,
    GEMMA_3,
    GEMMA_4,
    GLM_4V,
    GPT_OSS,
    HUNYUAN,
    LLAMA_4,
    LLAMA_31,
    MINISTRAL_3,
    MODERNBERT,
    PHI_3,
    PUBLISHED,
    QWEN_3_VL,
    QWEN_25_VL,
)
from oracles import spectra
from posenc_jax.hf import QueryScale, plan_to_config, rotary_from_config


def test_llama_3_1():
    plan = rotary_from_config(LLAMA_31)
    close(spectrum_of(plan), spectra.llama3(128, 500000.0, 8, 1, 4, 8192))
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


def test_two_original_lengths_must_agree():
    lists = {"short_factor": [1.0] * 48, "long_factor": [2.0] * 48, "original_max_position_embeddings": 1024}
    config = PHI_3 | {"rope_scaling": {"type": "longrope", **lists}}
    absent = {k: v for k, v in config.items() if k != "original_max_position_embeddings"}
    for given in (config, absent):  # the class of Phi-3 has a default for the key outside
        with pytest.raises(ValueError, match=r"original_max_position_embeddings = 1024 contradicts .* = 4096"):
            rotary_from_config(given, length=4096)


def test_deepseek_v3():
    plan = rotary_from_config(DEEPSEEK_V3)
    close(spectrum_of(plan), spectra.yarn(64, 10000, 40, 4096))
    assert spectrum_of(plan).attention_factor == 1
    assert (plan.layout, plan.part) == ("interleaved", "last")
    assert (plan.layers[0].head_dim, plan.layers[0].rotary_dim) == (192, 64)
    assert plan.softmax_scale == pytest.approx(float(spectra.temperature(40) ** 2))
    assert plan.softmax_scale == pytest.approx(1.8739, abs=5e-5)
    assert rotary_from_config(DEEPSEEK_V3 | {"rope_interleave": False}).layout == "half"
    assert rotary_from_config(DEEPSEEK_V3 | {"rope_scaling": None}).softmax_scale == 1
    lite = DEEPSEEK_V3["rope_scaling"] | {"mscale": 0.707, "mscale_all_dim": 0.5}
    plan = rotary_from_config(DEEPSEEK_V3 | {"rope_scaling": lite, "model_type": "deepseek_v2"})
    g = [spectra.temperature(40, m) for m in (0.707, 0.5)]
    assert spectrum_of(plan).attention_factor == pytest.approx(float(g[0] / g[1]), rel=1e-15)
    assert plan.softmax_scale == pytest.approx(float(g[1] ** 2), rel=1e-15)


def test_one_scale_of_the_scores():
    own = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 4096}
    types = ["full_attention", "sliding_attention"]
    nested = {kind: own | {"mscale_all_dim": all_dim} for kind, all_dim in zip(types, (1.0, 0.5), strict=True)}
    config = DEEPSEEK_V3 | {
        "model_type": None,
        "layer_types": types,
        "rope_scaling": None,
        "rope_theta": None,
        "rope_parameters": nested,
        "v_head_dim": None,
    }
    with pytest.raises(ValueError, match="mscale_all_dim asks for different scales of the scores"):
        rotary_from_config(config, layout="interleaved")
    nested["full_attention"] = nested["sliding_attention"]
    assert rotary_from_config(config, layout="interleaved").softmax_scale == pytest.approx(
        float(spectra.temperature(4, 0.5) ** 2), rel=1e-15
    )


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
    base |= {"sliding_window": text["sliding_window"]}
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
    heads = {"head_dim": None, "num_attention_heads": 8}
    with pytest.raises(ValueError, match="head_dim must have a value or be left out for 256, got null"):
        rotary_from_config(GEMMA_3["text_config"] | heads)


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
    assert [layer.rotary_dim == 0 for layer in plan.layers] == [False, False, False, True] * 2
    assert plan.layout == "interleaved" and plan.layers[3].head_dim == 128 and plan.layers[3].rotary_dim == 0
    assert [layer.query_scale for layer in plan.layers] == [None, None, None, QueryScale(0.1, 8192, 1)] * 2
    # Equal bounds: a step where a pair turns once in the original length.
    close(plan.layers[0].frequencies, spectra.llama3(128, 500000.0, 16, 1, 1, 8192))
    text = LLAMA_4["text_config"]
    off = rotary_from_config(text | {"attn_temperature_tuning": False})
    assert {layer.query_scale for layer in off.layers} == {None}
    absent = {k: v for k, v in text.items() if k not in ("attn_scale", "floor_scale", "attn_temperature_tuning")}
    assert rotary_from_config(absent) == plan
    assert rotary_from_config(text | {"no_rope_layer_interval": 2}).layers[1].rotary_dim == 0
    every = rotary_from_config(text | {"no_rope_layers": [1] * 8})
    assert all(layer.rotary_dim > 0 for layer in every.layers)


def test_query_scales_of_a_config_without_a_model_type():
    keys = {"head_dim": 64, "num_hidden_layers": 2, "no_rope_layers": [1, 0]}
    scale = QueryScale(0.2, 16, 1, "power")
    written = [None, {"coefficient": 0.2, "period": 16, "offset": 1, "variant": "power"}]
    plan = rotary_from_config(keys | {"query_scales": written}, layout="half")
    assert [layer.query_scale for layer in plan.layers] == [None, scale]
    assert rotary_from_config(plan_to_config(plan)) == plan
    for changes, match in (
        ({"query_scales": written[:1]}, "query_scales must hold a mapping or null for 2 layers, got 1"),
        ({"query_scales": [None, {"period": 16, "variant": "log"}]}, r"query_scales\[1\].coefficient is missing"),
        ({"query_scales": [None, written[1] | {"variant": "exp"}]}, "variant must be one of"),
        ({"attn_temperature_tuning": True}, "the key attn_temperature_tuning = True is not known"),
    ):
        with pytest.raises(ValueError, match=match):
            rotary_from_config(keys | changes, layout="half")


def test_ministral_3():
    plan = rotary_from_config(MINISTRAL_3)
    close(spectrum_of(plan), spectra.yarn(128, 1e6, 16, 16384))
    assert spectrum_of(plan).attention_factor == 1  # mscale over mscale_all_dim
    assert plan.layers[0].query_scale == QueryScale(0.1, 16384, 0)
    mistral = MINISTRAL_3["text_config"] | {"model_type": "mistral4", "qk_nope_head_dim": 64, "qk_rope_head_dim": 64}
    assert rotary_from_config(mistral).layers[0].query_scale == QueryScale(0.1, 16384, 0)


def test_gpt_oss_does_not_truncate():
    plan = rotary_from_config(GPT_OSS)
    close(spectrum_of(plan), spectra.yarn(64, 150000, 32, 4096, truncate=False))
    assert spectrum_of(plan).attention_factor == pytest.approx(float(spectra.temperature(32)), rel=1e-15)
    ramp = np.flatnonzero(plain(64, 150000) / spectrum_of(plan).angular > 1 + 1e-9)
    assert ramp[0] == 9  # the first pair over 8.092779
    truncated = spectra.floats(spectra.yarn(64, 150000, 32, 4096))
    assert not np.allclose(spectrum_of(plan).angular, truncated, rtol=1e-3)


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
    close(scaled, spectra.yarn(128, 1e6, 4, 32768))
    again = {"type": "mrope", "rope_type": "default", "mrope_section": [16, 24, 24]}  # as transformers 5 saves it
    assert spectrum_of(rotary_from_config(QWEN_25_VL | {"rope_scaling": again})) == blocks
    assert spectrum_of(rotary_from_config(QWEN_25_VL | {"rope_scaling": None})) == blocks


@pytest.mark.parametrize("name", PUBLISHED)
def test_there_and_back(name):
    plan = rotary_from_config(PUBLISHED[name], length=5000)
    said = json.loads(json.dumps(plan_to_config(plan)))
    assert rotary_from_config(said, length=plan.length) == plan
    assert rotary_from_config(said, length=5000) == plan
    assert plan_to_config(rotary_from_config(said, length=5000)) == said


def test_hunyuan_keeps_keys_that_it_does_not_read():
    close(spectrum_of(rotary_from_config(HUNYUAN)), spectra.ntk(128, 1e4, 1000))
    with pytest.raises(ValueError, match="factor = 2.0 contradicts the factor that goes with alpha = 1.0"):
        rotary_from_config(HUNYUAN | {"rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 2.0}})


def test_the_settings_of_a_query_scale_are_read():
    given = LLAMA_4["text_config"] | {"attn_temperature_tuning": True, "attn_scale": 0.25, "floor_scale": 100}
    scales = {layer.query_scale for layer in rotary_from_config(given).layers}
    assert scales == {None, QueryScale(0.25, 100, 1)}
    off = rotary_from_config(given | {"attn_temperature_tuning": False})
    assert {layer.query_scale for layer in off.layers} == {None}
