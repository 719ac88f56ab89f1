"""Facts that no config says, each with a list of the model types that it holds for: those that read a key, or need one.

They stand in the code of transformers 5.23.0, or in that of the models that are not in it.
"""

import numpy as np
import pytest

import posenc_jax as pe
from helpers.plans import bases, widths
from posenc_jax.hf import rotary_from_config

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
SIZES = {"hidden_size": 768, "num_attention_heads": 8, "num_hidden_layers": 4}  # 96 features are no class's head
LATENT = (
    "AXK1 axk1 axk2 bailing_hybrid deepseek_v2 deepseek_v3 deepseek_v32 dots3_note_text glm4_moe_lite glm_moe_dsa hy_v4 "
    "hy_v4_vl_text kimi_k2 kimi_linear longcat_flash mistral4 sarvam_mla youtu"
).split()
NESTED = "beam cohere_compass_text laguna lfm3 mellum mimo_v2 mimo_v2_flash"
WIDE = "diffusion_gemma_text embedding_gemma2_text gemma4_text gemma4_unified_text"
BETA = {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 4096}
BASES = {FULL: {"rope_theta": 1e6}, SLIDING: {"rope_theta": 1e4}}


def read(model_type, **keys):
    latent = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64} if model_type in LATENT else {}
    return rotary_from_config(SIZES | latent | {"model_type": model_type} | keys, length=5000)


def refused(match, model_type, **keys):
    with pytest.raises(ValueError, match=match):
        read(model_type, **keys)


def each(names):
    """A parameter for each of the names."""
    return pytest.mark.parametrize("model_type", names.split())


# What must be given


@each(
    "bamba beam flint granitemoehybrid kolibri1 laguna lfm2 lfm2_moe lfm3 mellum mimo_v2 mimo_v2_flash minimax minimax_m1 "
    "minimax_text_01 olmo_hybrid recurrent_gemma zamba2 zaya"
)
def test_layer_types_must_be_given(model_type):
    settings = {"rope_theta": 1e4}
    settings = {FULL: settings} if model_type in ("zaya", *NESTED.split()) else settings
    read_words = model_type in ("granitemoehybrid", "olmo_hybrid")
    keys = {"rope_parameters": settings} | ({"position_embedding_type": "rope"} if read_words else {})
    refused("^rotary_from_config: layer_types is missing$", model_type, **keys)
    kind = "hybrid" if model_type in ("zamba2", "zaya") else FULL
    keys["rope_parameters"] = {kind: settings[FULL]} if FULL in settings else settings
    assert len(read(model_type, **keys, layer_types=[kind] * 4).layers) == 4


@each(
    f"{NESTED} {WIDE} apertus apertus1p5_text cosmos3_edge_text cwm gpt_oss higgs_audio_v2 ministral3 mistral4 moonshine_streaming "
    "muse_spark_text nemotron3_5_transcribe_asr_audio nemotron3_5_transcribe_word_timestamp openai_privacy_filter ultrabert zaya"
)
def test_rope_settings_must_be_given(model_type):
    """Its class has settings of its own where a config has none."""
    refused("rope_parameters is missing, and model_type", model_type, layer_types=[FULL] * 4)


@each(
    "bailing_moe bailing_moe_v2 dbrx deci internlmxcomposer2 minicpmo minicpmv minimax_m1 minimax_text_01 ministral3 mistral4 "
    "molmo nemotron-nas nemotron_nas qwen2_mtp qwen2_mtp_sensevoice voxtral_realtime_text"
)
def test_a_base_must_be_given(model_type):
    settings = {"rope_type": "default"} | (BETA if "istral" in model_type else {})
    keys = {"rope_parameters": settings, "layer_types": [FULL] * 4, "max_position_embeddings": 4096}
    refused("rope_theta is missing", model_type, **keys)
    keys["rope_parameters"] = settings | {"rope_theta": 1e5}
    assert bases(read(model_type, **keys)) == [1e5] * 4


@each("glm4v_text glm_image_text kimi_k2 llama step3p5 voxtral_realtime_text")
def test_a_base_is_enough(model_type):
    assert bases(read(model_type, rope_theta=1e5, head_dim=64)) == [1e5] * 4


def test_layer_types_may_be_missing():
    plan = read("cohere_compass_text", head_dim=128, rope_parameters={FULL: {"rope_theta": 1e5}})
    assert bases(plan) == [1e5] * 4  # all layers have full attention


@each("cohere deepseek exaone4_5_text glm4 gpt_neox hunyuan internlm2 kimi_k2 llama phi3_v phi4 phi4mm qwen2 roformer")
def test_a_null_base_is_no_base(model_type):
    """It does not take positions away, as in olmo_hybrid."""
    refused("rope_theta must have a value|is not read", model_type, rope_parameters={"rope_theta": None})
    assert widths(read("olmo_hybrid", rope_parameters={"rope_theta": None}, layer_types=[FULL] * 4)) == [0] * 4


@each(f"{NESTED} {WIDE} dots3_note_text step3p5 ultrabert")
def test_settings_for_each_layer_type(model_type):
    """A layer type without a base has none, whatever the class would put there."""
    keys = {"layer_types": [FULL, SLIDING, SLIDING, FULL], "head_dim": 128}
    assert bases(read(model_type, **keys, rope_parameters=BASES)) == [1e6, 1e4, 1e4, 1e6]
    without = BASES | {FULL: {"rope_type": "default"}}
    refused("rope_theta is missing", model_type, **keys, rope_parameters=without)


# Which layers

_KEYS = {
    "sliding_window_pattern": "4 cohere2 exaone4 exaone4_5_text exaone_moe / 6 embedding_gemma2_text gemma3_text "
    "t5gemma2_decoder t5gemma2_text",
    "global_attn_every_n_layers": "4 afmoe / 3 modernbert modernbert-decoder",
    "full_attention_interval": "4 qwen3_5_moe_text qwen3_5_text qwen3_next qwen4_exp_text",
    "layer_group_size": "6 bailing_hybrid",
    "": "3 ultrabert / 4 dory olmo3 / 5 gemma3n_text / 6 diffusion_gemma_text gemma4_text gemma4_unified_text neomme",
}
PERIODS = [
    (name, key, int(period))
    for key, groups in _KEYS.items()
    for period, *names in map(str.split, groups.split("/"))
    for name in names
]


@pytest.mark.parametrize(("model_type", "key", "period"), PERIODS, ids=[name for name, _, _ in PERIODS])
def test_the_period_of_full_attention_and_its_key(model_type, key, period):
    keys = {"num_hidden_layers": 13, "transformers_version": "5.24.0"}
    keys |= {"head_dim": 64} if model_type == "qwen4_exp_text" else {}
    keys |= {"rope_parameters": BASES} if model_type in (*WIDE.split(), "dory", "neomme", "ultrabert") else {}
    keys |= {"rope_scaling": {"rope_type": "linear", "factor": 2.0}} if model_type == "olmo3" else {}
    last = 12 if model_type in (*WIDE.split(), "neomme") else None
    for every, said in ((period, {}), *([(2, {key: 2})] if key else [])):
        layers, place = read(model_type, **keys, **said).layers, 0 if "modernbert" in model_type else every - 1
        full = [i for i in range(13) if layers[i] == layers[place]]
        assert full == [i for i in range(13) if i % every == place or i == last]


@each("exaone4 exaone4_5_text exaone_moe kolibri1")
def test_without_a_window_all_layers_have_positions(model_type):
    keys = {"head_dim": 128, "layer_types": [SLIDING, FULL] * 2, "rope_theta": 1e6}
    assert widths(read(model_type, **keys, sliding_window=64)) == [128, 0] * 2
    assert widths(read(model_type, **keys, sliding_window=None)) == [128] * 4


@each("afmoe cohere2 flint lara_mini")
def test_with_or_without_a_window_full_layers_have_no_positions(model_type):
    keys = {"head_dim": 128, "layer_types": [SLIDING, FULL] * 2}
    for window in (64, None):
        assert widths(read(model_type, **keys, sliding_window=window)) == [128, 0] * 2


@pytest.mark.parametrize(
    ("model_type", "key"),
    [("bamba", "attn_layer_indices"), *((name, "full_attn_idxs") for name in ("lfm2", "lfm2_moe", "lfm3"))],
)
def test_lists_of_layers_with_attention(model_type, key):
    settings = {"rope_parameters": {FULL: {"rope_theta": 1e6}}} if model_type == "lfm3" else {}
    assert [width > 0 for width in widths(read(model_type, **{key: [1, 2]}, **settings))] == [False, True, True, False]
    refused(f"the key {key} = .* is not used by model_type 'llama'", "llama", **{key: [1]})


@each("granite_swa granitemoe_swa")
def test_a_base_for_each_layer(model_type):
    plan = read(model_type, layer_rope_theta=[1e4, 0, 1e6, 1e4])
    assert widths(plan) == [96, 0, 96, 96] and bases(plan) == [1e4, 1e6, 1e4]


@each("llama4_text smollm3")
def test_flags_for_layers_without_positions(model_type):
    assert [width > 0 for width in widths(read(model_type, no_rope_layers=[1, 0, 0, 1]))] == [True, False, False, True]
    assert [width > 0 for width in widths(read(model_type))] == [True, True, True, False]


@each(
    f"{NESTED} codegen cohere dbrx deci flint gptj granite_swa granitemoehybrid kolibri1 lfm2 lfm2_moe llada llama "
    "longcat_flash minimax minimax_m1 minimax_text_01 mllama_text_model moonshine nemotron-nas nemotron_nas olmo_hybrid "
    "openelm qwen2 qwen3_5_moe_text qwen3_5_text qwen3_next qwen4_exp_text zaya"
)
def test_flags_that_others_do_not_read(model_type):
    kind = {"flint": SLIDING, "kolibri1": SLIDING, "zaya": "hybrid"}.get(model_type, FULL)
    settings = {"rope_theta": 1e4}
    settings = {"rope_parameters": {kind: settings}} if model_type in ("zaya", *NESTED.split()) else settings
    keys = settings | {"layer_types": [kind] * 4, "position_embedding_type": "rope"}
    keys |= {"cross_attention_layers": []} if model_type == "mllama_text_model" else {}
    keys["head_dim"] = {"qwen3_5": 256, "qwen4_e": 64, "longcat": 64, "moonshi": 80}.get(model_type[:7], 128)
    refused("no_rope_layers = ", model_type, **keys, no_rope_layers=[1, 0, 0, 1])


# How they rotate


@each("AXK1 axk1 deepseek_v3 glm4_moe_lite kimi_k2 mistral4 sarvam_mla youtu")
def test_rope_interleave_is_read(model_type):
    keys = {"rope_parameters": {"rope_theta": 1e4}, "max_position_embeddings": 4096}
    keys["rope_parameters"] |= BETA if model_type == "mistral4" else {}
    assert read(model_type, **keys).layout == "interleaved"
    for layout, said in (("interleaved", True), ("half", False)):
        assert read(model_type, **keys, rope_interleave=said).layout == layout


@each("axk2 bailing_hybrid deepseek_v2 deepseek_v32 glm_moe_dsa longcat_flash")
def test_rope_interleave_may_only_agree(model_type):
    refused("rope_interleave = |contradicts", model_type, rope_interleave=False)
    assert read(model_type, rope_interleave=True).layout == "interleaved"


HEADS = {
    128: "cosmos3_edge_text internlm3 iquestcoder minimax_m1 minimax_m3 minimax_m3_vl_text minimax_text_01 paddleocr_vl_text "
    "qwen2_5_omni_talker qwen3 qwen3_vl_text sdar",
    192: "mimo_v2_flash",
    256: "gemma qwen3_next step3_text",
    64: "gpt_oss sarvam_moe voxtral_realtime_encoder",
}


@pytest.mark.parametrize(
    ("head_dim", "model_type"), [(n, name) for n, names in HEADS.items() for name in names.split()]
)
def test_the_head_of_a_class(head_dim, model_type):
    settings = {FULL: {"rope_theta": 1e4}} if model_type == "mimo_v2_flash" else {"rope_theta": 1e4}
    plan = read(model_type, rope_parameters=settings, layer_types=[FULL] * 4)
    assert {layer.head_dim for layer in plan.layers} == {head_dim}


@each(
    "bailing_moe bailing_moe_v2 gpt_neox_japanese minimax_m1 minimax_m2 minimax_m3 minimax_text_01 "
    "nemotron3_diarization_audio phi3 phi3_v phi4 phi4_multimodal phi4mm qwen sarvam_moe solar_open"
)
def test_a_share_is_read_that_the_class_leaves_at_1(model_type):
    key = "rotary_pct" if model_type in ("gpt_neox_japanese", "qwen") else "partial_rotary_factor"
    keys = {"rotary_emb_base" if key == "rotary_pct" else "rope_theta": 1e4, "head_dim": 64, "seq_length": 8192}
    keys |= {"layer_types": [FULL] * 4}
    assert widths(read(model_type, **keys)) == [64] * 4
    assert widths(read(model_type, **keys, **{key: 0.5})) == [32] * 4


@each("laguna mellum step3p5 zaya")
def test_a_share_is_read_for_each_layer_type(model_type):
    kinds = ["hybrid", "hybrid_sliding"] * 2 if model_type == "zaya" else [FULL, SLIDING] * 2
    settings = {kinds[0]: {"rope_theta": 1e4, "partial_rotary_factor": 0.5}, kinds[1]: {"rope_theta": 1e4}}
    assert widths(read(model_type, head_dim=64, layer_types=kinds, rope_parameters=settings)) == [32, 64] * 2


# What stands outside the settings for each layer type, and in them: the layer type's wins. Every class of transformers
# 5.23.0 was asked, with the same values.


def kinds_of(model_type):
    return ["hybrid", "hybrid_sliding"] if model_type == "zaya" else [FULL, SLIDING]


@each("laguna mellum mimo_v2 mimo_v2_flash neomme step3p5 zaya")
def test_a_share_outside_may_be_that_of_one_layer_type(model_type):
    kinds = kinds_of(model_type)
    settings = {
        kind: {"rope_theta": 1e4, "partial_rotary_factor": x} for kind, x in zip(kinds, (0.5, 1.0), strict=True)
    }
    keys = {"head_dim": 64, "layer_types": kinds * 2, "rope_parameters": settings}
    plan = read(model_type, **keys)
    assert widths(plan) == [32, 64] * 2
    for share in (0.5, 1.0):
        assert read(model_type, **keys, partial_rotary_factor=share) == plan
    match = r"partial_rotary_factor = 0.25 contradicts rope_parameters, whose layer types have \[0.5, 1.0\]"
    refused(match, model_type, **keys, partial_rotary_factor=0.25)


@pytest.mark.parametrize(
    ("model_type", "alone", "beside"),
    [("laguna", None, [48, 96]), ("mellum", None, [48, 96]), ("mimo_v2_flash", None, [48, 32]), ("step3p5", [48, 48], [48, 48])],
)  # fmt: skip
def test_layer_types_without_a_share(model_type, alone, beside):
    """The share outside fills them in Step alone; `alone` is where no layer type has one, `beside` where the first has."""
    own = {FULL: {"rope_theta": 1e4, "partial_rotary_factor": 0.5}, SLIDING: {"rope_theta": 1e4}}
    keys = {"head_dim": 96, "layer_types": [FULL, SLIDING] * 2, "partial_rotary_factor": 0.5}
    assert widths(read(model_type, **keys, rope_parameters=own)) == beside * 2
    none = {FULL: {"rope_theta": 1e4}, SLIDING: {"rope_theta": 1e4}}
    if alone:
        assert widths(read(model_type, **keys, rope_parameters=none)) == alone * 2
    else:
        refused(r"contradicts partial_rotary_factor \(of 96\) = 48", model_type, **keys, rope_parameters=none)


@each("laguna mellum zaya")
def test_a_whole_head_outside_is_what_a_layer_type_without_a_share_has(model_type):
    kinds = kinds_of(model_type)
    settings = {kinds[0]: {"rope_theta": 1e4, "partial_rotary_factor": 0.25}, kinds[1]: {"rope_theta": 1e4}}
    keys = {"head_dim": 64, "layer_types": kinds * 2, "rope_parameters": settings}
    plan = read(model_type, **keys, partial_rotary_factor=1.0)
    assert widths(plan) == [16, 64] * 2
    assert plan == read(model_type, **keys)
    refused("contradicts partial_rotary_factor", model_type, **keys, partial_rotary_factor=0.5)


@each(f"{WIDE} lfm3")
def test_a_share_outside_that_selects_frequencies(model_type):
    settings = BASES | {FULL: {"rope_theta": 1e6, "rope_type": "proportional", "partial_rotary_factor": 0.25}}
    keys = {"layer_types": [SLIDING, FULL] * 2, "rope_parameters": settings}
    assert read(model_type, **keys, partial_rotary_factor=0.25) == read(model_type, **keys)
    refused("contradicts partial_rotary_factor", model_type, **keys, partial_rotary_factor=0.5)
    settings = {FULL: {"rope_theta": 1e6, "rope_type": "proportional"}}
    keys = {"layer_types": [FULL] * 4, "rope_parameters": settings}
    refused("the key partial_rotary_factor = 0.25 is not", model_type, **keys, partial_rotary_factor=0.25)


def test_a_share_outside_the_latent_heads_of_dots():
    keys = {"head_dim": 256, "rope_parameters": {"indexed_attention": {}, SLIDING: {"rope_theta": 1e4}}}
    keys = {"layer_types": ["indexed_attention", SLIDING] * 2, "rope_theta": 8e7} | keys
    assert read("dots3_note_text", **keys, partial_rotary_factor=0.25) == read("dots3_note_text", **keys)
    refused("partial_rotary_factor = 0.5 contradicts", "dots3_note_text", **keys, partial_rotary_factor=0.5)


@each(f"{NESTED} {WIDE} neomme step3p5 ultrabert zaya")
def test_a_base_outside_may_be_that_of_one_layer_type(model_type):
    kinds = kinds_of(model_type)
    settings = {kind: {"rope_theta": base} for kind, base in zip(kinds, (1e6, 1e4), strict=True)}
    keys = {"layer_types": kinds * 2, "rope_parameters": settings, "head_dim": 128}
    plan = read(model_type, **keys)
    assert sorted({*bases(plan)}) == [1e4, 1e6]
    for base in (1e6, 1e4):
        assert read(model_type, **keys, rope_theta=base) == plan
    refused(
        r"rope_theta = 30000.0 contradicts rope_parameters, whose layer types have", model_type, **keys, rope_theta=3e4
    )


@pytest.mark.parametrize(("model_type", "base"), [("lfm3", 5e5), ("step3p5", None), ("ultrabert", None)])
def test_layer_types_without_a_base(model_type, base):
    keys = {"layer_types": [FULL, SLIDING] * 2, "rope_parameters": {FULL: {"rope_theta": 5e5}, SLIDING: {}}}
    if base:
        assert bases(read(model_type, **keys, rope_theta=base)) == [base] * 4
    else:  # the code takes its own default in these
        refused("rope_theta = 500000.0 is not read by the code of", model_type, **keys, rope_theta=5e5)


def test_lists_beside_the_settings_for_each_layer_type():
    types = {"layer_types": [FULL, SLIDING] * 2}
    settings = {
        FULL: {"rope_theta": 1e6, "partial_rotary_factor": 0.5},
        SLIDING: {"rope_theta": 1e4, "partial_rotary_factor": 1.0},
    }
    plan = read("step3p5", **types, rope_parameters=settings)
    lists = {"rope_theta": [1e6, 1e4] * 2, "partial_rotary_factors": [0.5, 1.0] * 2}
    assert read("step3p5", **types, **lists, rope_parameters=settings) == plan
    assert bases(read("ultrabert", **types, rope_theta=[1e6, 1e4] * 2, rope_parameters=BASES)) == [1e6, 1e4] * 2
    match = r"rope_parameters.full_attention.rope_theta = 1000000.0 contradicts rope_theta of full_attention = 20000.0"
    for model_type in ("step3p5", "ultrabert"):
        refused(match, model_type, **types, rope_theta=[2e4, 1e4] * 2, rope_parameters=BASES)


@each("beam cohere_compass_text laguna lfm3 mellum mimo_v2_flash step3p5 ultrabert")
def test_an_original_length_outside_is_not_for_layer_types(model_type):
    scaling = {"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0}
    keys = {"layer_types": [FULL] * 4, "max_position_embeddings": 8192, "head_dim": 128}
    length = {"original_max_position_embeddings": 512}
    own = read(model_type, **keys, rope_parameters={FULL: scaling | length})
    assert read(model_type, **keys, **length, rope_parameters={FULL: scaling | length}) == own
    keys |= {"original_max_position_embeddings": 2048}
    name = "original_max_position_embeddings"
    match = f"^rotary_from_config: rope_parameters.full_attention.{name} = 512 contradicts {name} = 2048$"
    refused(match, model_type, **keys, rope_parameters={FULL: scaling | length})
    match = f"^rotary_from_config: rope_parameters.full_attention.{name} is missing"
    refused(match, model_type, **keys, rope_parameters={FULL: scaling})


def test_a_rope_type_beside_the_layer_types_of_zaya():
    settings = {kind: {"rope_theta": 1e4} for kind in kinds_of("zaya")}
    keys = {"layer_types": kinds_of("zaya") * 2}
    plan = read("zaya", **keys, rope_parameters=settings)
    assert read("zaya", **keys, rope_parameters=settings | {"rope_type": "default"}) == plan
    refused(
        "rope_parameters.rope_type = 'default' is none of the layer_types",
        "laguna",
        layer_types=[FULL] * 4,
        rope_parameters={FULL: {"rope_theta": 1e4}, "rope_type": "default"},
    )


@each(
    "cohere_compass_text cosmos3_edge_text ernie4_5_vl_moe_text hunyuan paddleocr_vl_text qwen2_5_omni_talker qwen2_5_omni_text "
    "qwen2_5_vl_text qwen2_vl_text qwen3_omni_moe_talker_text qwen3_omni_moe_text qwen3_vl_moe_text qwen3_vl_text"
)
def test_a_share_is_not_read(model_type):
    """With it, as many features would rotate as there are sections for."""
    settings = {"rope_theta": 1e4, "partial_rotary_factor": 0.5}
    settings = {FULL: settings} if model_type == "cohere_compass_text" else settings
    refused("contradicts", model_type, head_dim=256, layer_types=[FULL] * 4, rope_parameters=settings)


@each(f"{WIDE} beam lfm3 ultrabert")
def test_a_share_is_not_read_for_each_layer_type(model_type):
    settings = {FULL: {"rope_theta": 1e6, "partial_rotary_factor": 0.5}}
    refused("contradicts", model_type, layer_types=[FULL] * 4, rope_parameters=settings)


@each("bailing_moe bailing_moe_v2 codegen gptj minimax_m1 minimax_m2 minimax_text_01 phi-msft")
def test_rotary_dim_is_read(model_type):
    keys = {"rope_theta": 1e4, "head_dim": 128, "layer_types": [FULL] * 4, "rotary_dim": 48}
    assert widths(read(model_type, **keys)) == [48] * 4
    refused("contradicts rotary_dim", "llama", rope_theta=1e4, head_dim=128, rotary_dim=48)


@each(
    "dots3_note_audio_encoder glm glm4 glm4_moe glmasr_encoder moonshine_streaming nemotron nemotron3_5_transcribe_asr_audio "
    "nemotron3_5_transcribe_word_timestamp persimmon phi phi-msft recurrent_gemma solar_open stablelm"
)
def test_a_share_is_read_beside_the_settings(model_type):
    settings = {"rope_parameters": {"rope_theta": 1e4}, "partial_rotary_factor": 0.75}
    assert widths(read(model_type, head_dim=96, layer_types=[FULL] * 4, **settings)) == [72] * 4


@each("glm4v_moe_text glm4v_text glm_image_text glm_ocr_text qwen3_5_moe_text qwen3_5_text qwen4_exp_text")
def test_a_share_is_read_beside_the_settings_and_fits_the_sections(model_type):
    share = {"head_dim": 512, "partial_rotary_factor": 0.125}
    assert widths(read(model_type, layer_types=[FULL] * 4, **share)) == [64] * 4


def test_words_of_one_family():
    for name in ("gpt_neox", "gpt_neox_japanese", "gpt_neox_reward_model", "nomic_bert", "qwen"):
        own = {"use_dynamic_ntk": False, "seq_length": 9} if name == "qwen" else {"transformers_version": "4.34.0"}
        assert bases(read(name, rotary_emb_base=5e4, **own)) == [5e4] * 4, name
    for name in ("chatglm", "jetmoe"):
        assert read(name, kv_channels=64).layers[0].head_dim == 64
    for name in ("hunyuan", "nemotron_h", "zamba2"):
        assert read(name, attention_head_dim=64, layer_types=["hybrid"] * 4).layers[0].head_dim == 64


def test_the_width_of_a_class():
    for name, width in (("gptj", 64), ("codegen", 64), ("phi-msft", 32)):
        assert widths(read(name)) == [width] * 4
    assert widths(read("glm4v_moe_text", head_dim=128)) == [64] * 4
    assert widths(read("qwen4_exp_text", head_dim=64, layer_types=[FULL] * 4)) == [64] * 4
    assert widths(read("gpt_neox_reward_model")) == [24] * 4
    for name in ("glm4v_moe_text", "qwen3_omni_moe_talker_text", "qwen3_omni_moe_text"):
        assert read(name, hidden_size=1024).layers[0].head_dim == 128, name  # shared evenly


def test_the_base_of_a_class():
    for name, base in {"EvollaModel": 5e5, "minimax_m3": 5e6, "openelm": 1e4, "phi3small": 1e6, "qwen": 1e4}.items():
        own = {"use_dynamic_ntk": False, "seq_length": 9} if name == "qwen" else {}
        assert bases(read(name, **own)) == [base] * 4, name
    assert bases(read("qwen4_exp_text", head_dim=64)) == [1e4]


@each("hunyuan hunyuan_v1_dense hunyuan_v1_moe")
def test_alpha_is_read(model_type):
    dynamic = {"type": "dynamic", "alpha": 1000.0}
    plan = read(model_type, rope_scaling=dynamic)
    assert plan.layers[0].frequencies == pe.ntk(96, 1e4, 1000.0)
    refused("factor is missing", "llama", rope_scaling=dynamic)


@each("axk2 deepseek_v32 dots3_note_text glm_moe_dsa hy_v4 minimax_m3 minimax_m3_vl_text")
def test_the_width_of_an_indexer(model_type):
    plan = read(model_type, head_dim=64)
    assert {layer.head_dim for layer in plan.indexer.layers} == {128}


def test_an_indexer_that_a_config_must_ask_for():
    assert read("qwen4_exp_text", head_dim=64).indexer is None
    assert read("qwen4_exp_text", head_dim=64, indexer_head_dim=96).indexer.layers[3].head_dim == 96
    kinds = [LINEAR, "qwen_sparse_attention"] * 2
    assert widths(read("qwen4_exp_text", head_dim=64, layer_types=kinds)) == [0, 64] * 2


@each("phi3 phi3_v phi4 phi4_multimodal phi4mm")
def test_the_original_length_of_a_class(model_type):
    lists = {"short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    keys = {"max_position_embeddings": 131072, "rope_scaling": {"type": "longrope"} | lists}
    plan = read(model_type, **keys)  # 32 times 4096
    assert dict(plan.layers[0].settings)["factor"] == 32
    np.testing.assert_allclose(plan.layers[0].frequencies.angular, pe.geometric(96).angular / 2, rtol=1e-9)


# Keys of one type


@each("deci nemotron-nas nemotron_nas")
def test_all_layers_have_attention_without_block_configs(model_type):
    assert widths(read(model_type, rope_theta=1e5)) == [96] * 4


def test_what_nemotron_h_counts():
    assert len(read("nemotron_h", hybrid_override_pattern="M*").layers) == 2
    assert len(read("nemotron_h", hybrid_override_pattern="M*", num_layers=7).layers) == 2


def test_the_long_context_of_zamba2():
    scaling = {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 4096}
    keys = scaling | {"layer_types": ["hybrid"] * 4, "use_mem_rope": True, "use_long_context": True}
    plan = rotary_from_config(SIZES | {"model_type": "zamba2"} | keys, length=32768)
    assert plan.layers[0].frequencies == pe.dynamic_ntk(192, 1e4, 2.0, original_max=16384, length=32768)


def test_neomme_fills_in_settings():
    plan = read("neomme", num_hidden_layers=6, rope_parameters={FULL: {}, SLIDING: {}})
    assert widths(plan) == [64] * 5 + [16] and bases(plan) == [1e4] * 5 + [1e6]
    plan = read("neomme", num_hidden_layers=6, rope_parameters={FULL: {"rope_theta": 7e5}}, rope_theta=7e5)
    assert bases(plan) == [7e5] * 6


def test_dots_3_with_windows_and_without():
    plan = read("dots3_note_text")
    assert bases(plan) == [8e7, 8e7, 5e4, 5e4] and {layer.head_dim for layer in plan.layers} == {192, 256}
    assert bases(read("dots3_note_text", use_sliding_window=False)) == [8e7] * 4
    share = {FULL: {"rope_theta": 1e6, "partial_rotary_factor": 0.25}}  # of 256
    assert bases(read("dots3_note_text", layer_types=[FULL] * 4, rope_parameters=share)) == [1e6] * 4


def test_deepseek_without_latent_attention():
    keys = {"qk_nope_head_dim": 0, "qk_rope_head_dim": 0}
    plan = read("deepseek_v2", **keys)
    assert (plan.layout, plan.part, widths(plan)) == ("half", "first", [96] * 4)
    assert read("deepseek_v2").layout == "interleaved"
    outer = {"model_type": "deepseek_vl_v2", "language_config": {"model_type": "deepseek_v2"} | keys} | SIZES
    assert rotary_from_config(outer) == plan


def test_the_defaults_of_qwen_1():
    plan = read("qwen", seq_length=2048, pos_emb="rotary")
    assert plan.layers[0].frequencies == pe.ntk(96, 1e4, 7.0) and plan.layers[0].query_scale.period == 2048
    refused("pos_emb must be 'rotary'", "qwen", seq_length=2048, pos_emb="alibi")
    refused("seq_length must be over 1, got 1", "qwen", seq_length=1)


@pytest.mark.parametrize(
    ("model_type", "keys", "match"),
    [
        ("bailing_hybrid", {"linear_silu": True}, "linear_silu"),
        ("bailing_hybrid", {"num_kv_heads_for_linear_attn": 4}, "num_kv_heads_for_linear_attn"),
        ("kimi_linear", {"mla_use_nope": 1}, "mla_use_nope must be True .*, got 1"),
        ("llama4_text", {"floor_scale": 1}, "floor_scale must be over 1, got 1"),
        ("longcat_flash", {"head_dim": 128}, "head_dim must be 64 .*, got 128"),
        ("muse_glimmer_text", {"no_rope_layers": [1, 0, 1, 1]}, "no_rope_layers = .* is not read by the code"),
        ("phi3small", {"rope_position_scale": 2.0}, "rope_position_scale must be 1.0 .*, got 2.0"),
        ("step3p5", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5 is not read by the code"),
        ("llama", {"use_xpos": True}, "the key use_xpos = True"),
        ("llama", {"dual_chunk_size": 8}, "the key dual_chunk_size = 8"),
        ("llama", {"qk_interleave": True}, "the key qk_interleave = True"),
        ("llama", {"attn_temperature_tuning": True}, "the key attn_temperature_tuning = True"),
        ("hrm_text", {"no_rope_layers": [1] * 32}, "the key no_rope_layers = "),
        ("llama", {"use_mrope": True}, "the key use_mrope = True"),
    ],
)
def test_what_is_refused(model_type, keys, match):
    refused(match, model_type, **keys)


@each("qwen2_vl_text qwen2_5_vl_text qwen3_vl_text")
def test_use_mrope_is_read_with_sections(model_type):
    plan = read(model_type, head_dim=128, rope_theta=1e6)
    assert read(model_type, head_dim=128, rope_theta=1e6, use_mrope=True) == plan


def test_an_mscale_of_0():
    """By vLLM's name for YaRN, it leaves the amplitude at 1."""
    scaling = {"rope_type": "deepseek_yarn", "factor": 8.0, "original_max_position_embeddings": 4096, "mscale": 0.0}
    assert read("llama", rope_scaling=scaling).layers[0].frequencies.attention_factor == 1


def test_a_dropout_is_no_rotation():
    assert read("lasr_encoder", dropout_positions=0.1) == read("lasr_encoder")


def test_alternating_coordinates_are_not_interleaved_too():
    rope = {"rope_theta": 1e4, "mrope_section": [16, 16, 16], "mrope_alternating": True, "mrope_interleaved": True}
    with pytest.raises(ValueError, match="mrope_interleaved = True is not known or not used here"):
        rotary_from_config(SIZES | {"rope_interleave": True, "rope_parameters": rope})


# Parts of composites


@pytest.mark.parametrize(
    ("outer", "part", "inner", "beside"),
    [
        ("dia", "decoder_config", "dia_decoder", {}),
        ("esmfold2", "esmc_config", "esmc", {}),
        ("glmasr", "text_config", "llama", {"use_rope": True}),
        ("musicflamingo", "text_config", "qwen2", {"rope_parameters": {"rope_theta": 1200.0}}),
        ("t5gemma", "decoder", "t5_gemma_module", {}),
        ("t5gemma2", "decoder", "t5gemma2_decoder", {}),
        ("vibevoice", "decoder_config", "qwen2", {}),
    ],
)
def test_the_language_model_of_a_composite(outer, part, inner, beside):
    config = {"model_type": outer, part: SIZES | {"model_type": inner}}
    assert rotary_from_config(config | beside) == read(inner)


def test_types_that_a_composite_knows_better():
    text = SIZES | {"model_type": "deepseek_v2", "qk_rope_head_dim": 0, "qk_nope_head_dim": 0, "use_mla": False}
    outer = {"model_type": "deepseek_ocr2", "text_config": text}
    assert rotary_from_config(outer) == read("deepseek_ocr2_text")
    text["use_mla"] = True
    refused("use_mla must be False in model_type 'deepseek_ocr2_text'", "deepseek_ocr2", text_config=text)
    flat = SIZES | {"model_type": "exaone4_5", "sliding_window": 64, "sliding_window_pattern": "LG"}
    assert widths(rotary_from_config(flat)) == [96, 0] * 2
