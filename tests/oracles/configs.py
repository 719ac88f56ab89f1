"""What a plan should say for a config, worked out from the words of the config: nothing here is the library's.

What a config leaves to the class of its model is what transformers 5.23.0 gave for the model type: the layout, the base
and which attention is latent as recorded in recorded/hf_model_types.json, the rest as its code has it, in the tables
here; what the models outside transformers do is what their own code does. `expected` covers layout, part, softmax_scale,
indexer of a plan and whether values rotate, and of each layer: whether it rotates (layer types, their patterns, intervals, lists, a null
window), head_dim, rotary_dim, the base, the rope type with its settings and sections, the query scale. It leaves out the
spectrum, which follows, the settings where the length chooses between two, and all but the layout where WORDS stand.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from oracles import recorded
from oracles.spectra import longrope_amplitude, temperature

OF_LAYERS = "rotates", "head_dim", "rotary_dim", "base", "settings", "query_scale"
RECORDED = {case["config"]["model_type"]: case for case in recorded.cases("hf_model_types")}


def table(facts: Mapping[Any, str]) -> dict[str, Any]:
    return {name: fact for fact, names in facts.items() for name in names.split()}


# Of these nothing is recorded: they are not in transformers, or have no class for frequencies there. Their layouts.
STILL = "jamba nemotron_h kimi_linear glm5_next_text"  # no layer has positions
OTHERS = table({
    "half": f"{STILL} Dream EvollaModel PanguEmbedded RefinedWeb RefinedWebModel Yi aquila baichuan bailing_moe "
    "bailing_moe_v2 deci deepseek dream exaone4_5_text gpt_neox_reward_model hunyuan internlm internlm2 "
    "internlmxcomposer2 iquestloopcoder llada mimo mimo_v2 minicpm minicpmo minicpmv minimax_m1 minimax_m3 "
    "minimax_text_01 molmo nemotron-nas nemotron_nas openelm orion phi-msft phi3_v phi3small phi4 phi4mm qwen qwen2_mtp "
    "qwen2_mtp_sensevoice sdar sdar_moe solar stablelm_epoch step3_text xverse",
    "interleaved": "AXK1 chatglm codegen gptj kimi_k2 roformer",
})  # fmt: skip
KNOWN = RECORDED.keys() | OTHERS.keys()
# The layout where none is recorded: it is not a function named rotate_half that turns.
LAYOUTS = OTHERS | table({
    "half": "gpt_oss", "interleaved": "deepseek_v2 llama4_text openai_privacy_filter pe_audio_encoder "
    "pe_audio_video_encoder pe_video_encoder",
})  # fmt: skip
FLAGS = "rope_interleave", "rope_interleaved", "rotary_emb_interleaved"
SWITCHED = (
    "AXK1 axk1 deepseek_v3 glm4_moe_lite kimi_k2 mistral4 sarvam_mla youtu".split()
)  # the first is read, true where absent
# The base where none is recorded, or that of settings which the class has for a config without any.
BASES = table({
    12e6: "apertus", 1e6: "cwm", 150_000.0: "gpt_oss openai_privacy_filter",
    10_000.0: " ".join(["muse_spark_text higgs_audio_v2 qwen4_exp_text", *OTHERS]),
}) | {"EvollaModel": 5e5, "iquestloopcoder": 5e5, "minimax_m3": 5e6, "phi3small": 1e6, "step3_text": 5e5}  # fmt: skip
LATENT = {*SWITCHED, "kimi_linear", "glm5_next_text"}  # where nothing is recorded
UNSCALED = "deepseek_v4", "dots3_note_text"  # latent attention whose scores mscale_all_dim does not scale
# The indexer of sparse attention: its layout and part.
INDEXERS = table({
    ("half", "first"): "axk2 deepseek_v32 minimax_m3 minimax_m3_vl_text qwen4_exp_text", ("half", "last"): "hy_v4",
    ("interleaved", "first"): "glm_moe_dsa dots3_note_text mistral_large4_text", ("interleaved", "last"): "deepseek_v4 hy_v4_vl_text",
})  # fmt: skip
GEMMA_3, GEMMA_4 = "gemma3_text t5gemma2_text t5gemma2_decoder", "gemma4_text gemma4_unified_text diffusion_gemma_text"
WIDE = f"{GEMMA_4} embedding_gemma2_text".split()  # full attention has wider heads, and the last layer
MODERNBERT, QWEN = "modernbert modernbert-decoder", "qwen3_5_moe_text qwen3_5_text"
EXAONE = "exaone4 exaone4_5_text exaone_moe"
# The release of transformers since when a base by default is that of BASES, and the one before.
MOVED = {
    "exaone": ([5, 24], 1e4), "falcon_h1": ([5, 0], 1e5), "kyutai_speech_to_text": ([5, 0], 1e5), "cohere": ([5, 0], 1e4),
    "persimmon": ([5, 0], 25e3), "qwen3_vl_text": ([5, 0], 5e6), "qwen3_vl_moe_text": ([5, 0], 5e6),
}  # fmt: skip
BASE_KEYS = table({  # of full, of sliding attention
    ("rope_theta", "rope_local_base_freq"): f"{GEMMA_3} gemma3n_text",
    ("global_rope_theta", "local_rope_theta"): MODERNBERT, ("rope_theta", "rope_theta"): "olmo3",
})  # fmt: skip
HEADS = table({
    64: "gpt_oss muse_spark_text neomme openai_privacy_filter sarvam_moe voxtral_realtime_encoder", 192: "mimo_v2 mimo_v2_flash",
    128: "afmoe beam cohere2_moe cosmos3_edge_text cwm dia_decoder dia_encoder ernie4_5 flint glm glm4 helium "
    "higgs_audio_v2 hrm_text hy_v3 internlm3 iquestcoder jetmoe kolibri1 laguna lara_mini lfm3 llama4_text mellum minimax_m1 "
    "minimax_m2 minimax_m3 minimax_m3_vl_text minimax_text_01 ministral3 molmo2_text sdar muse_glimmer_assistant "
    "muse_glimmer_text nemotron_h paddleocr_vl_text pe_audio_encoder pe_audio_video_encoder pe_video_encoder "
    "qwen2_5_omni_talker qwen3 qwen3_omni_moe_talker_code_predictor qwen3_vl_text seed_oss solar_open step3p5 zaya",
    256: "dory gemma gemma2 gemma3n_text step3_text embedding_gemma2_text qwen3_next qwen4_exp_text t5_gemma_module vaultgemma "
    f"{GEMMA_3} {GEMMA_4} {QWEN}",
})  # fmt: skip
# The share that rotates where no key says it, of those whose code reads one at all.
SHARES = table({
    0.25: f"gpt_neox gpt_neox_reward_model stablelm stablelm_epoch qwen3_next {QWEN}", 0.334: "mimo_v2 mimo_v2_flash",
    0.9: "moonshine",
    0.5: "bamba chatglm dots3_note_audio_encoder glm glm4 glm4_moe glm4v_moe_text glmasr_encoder nemotron persimmon phi "
    "recurrent_gemma",
    1.0: "bailing_moe bailing_moe_v2 codegen glm4v_text glm_image_text glm_ocr_text gpt_neox_japanese gptj laguna mellum "
    "minimax_m1 minimax_m2 minimax_m3 minimax_m3_vl_text minimax_text_01 moonshine_streaming neomme "
    "nemotron3_5_transcribe_asr_audio nemotron3_5_transcribe_word_timestamp nemotron3_diarization_audio phi-msft phi3 "
    "phi3_v phi4 phi4_multimodal phi4mm qwen qwen4_exp_text sarvam_moe solar_open step3p5 "
    "zaya",
})  # fmt: skip
# One layer of so many has full attention, and the key for how many.
PERIODS = table({
    (4, "sliding_window_pattern"): f"cohere2 {EXAONE}", (6, "sliding_window_pattern"): f"embedding_gemma2_text {GEMMA_3}",
    (4, "global_attn_every_n_layers"): "afmoe", (3, "global_attn_every_n_layers"): MODERNBERT,
    (4, "full_attention_interval"): f"qwen3_next qwen4_exp_text {QWEN}", (6, "layer_group_size"): "bailing_hybrid",
    (3, ""): "ultrabert", (4, ""): "dory olmo3", (5, ""): "gemma3n_text", (6, ""): f"neomme {GEMMA_4}",
})  # fmt: skip
SLIDING_ONLY = f"afmoe cohere2 flint kolibri1 lara_mini {EXAONE}".split()  # full attention has no positions
SECTIONS = table({
    (16, 24, 24): "qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text qwen2_5_omni_talker paddleocr_vl_text",
    (8, 12, 12): "glm4v_text glm_ocr_text glm4v_moe_text glm_image_text", (11, 11, 10): f"qwen4_exp_text {QWEN}",
    (12, 10, 10): "hy_v4_vl_text", (22, 22, 20): "ernie4_5_vl_moe_text", (24, 20, 20): "qwen3_vl_text qwen3_vl_moe_text qwen3_omni_moe_text qwen3_omni_moe_talker_text cosmos3_edge_text "
    "cohere_compass_text",
})  # fmt: skip
CONTIGUOUS = "qwen2", "paddleocr", "glm"  # the names of types whose sections are not dealt out in turn
# Words that only these types read (-: none recorded). A plan heeds them for all; transformers takes no notice of them.
WORDS = table({
    "gpt_neox": "rotary_emb_base rotary_pct", "minimax_m": "rotary_dim", "-": "rotary_emb_fraction attn_rotary_emb rope_dim",
})  # fmt: skip
ALIASES = {"attention": "full_attention", "mamba": "linear_attention", "su": "longrope", "mrope": "default"}
ALIASES |= table({"indexed_attention": "deepseek_sparse_attention qwen_sparse_attention minimax_m3_sparse"})
PHI = "phi3", "phi3_v", "phi4", "phi4_multimodal", "phi4mm"  # their class has an original length
ORIGINAL, MAXIMUM = "original_max_position_embeddings", "max_position_embeddings"
SETTINGS = {
    "default": "", "linear": "factor", "dynamic": f"factor {MAXIMUM}", "proportional": "partial_rotary_factor factor",
    "dynamic_steps": MAXIMUM,
    "llama3": f"factor low_freq_factor high_freq_factor {ORIGINAL}",
    "yarn": f"factor beta_fast beta_slow truncate attention_factor {ORIGINAL}",
    "longrope": f"factor short_factor long_factor attention_factor {ORIGINAL}",
}  # fmt: skip


def said(d: Mapping[str, Any], *names: str, default: Any = None) -> Any:
    """What the first of the keys says that is there and not null."""
    return next((d[name] for name in names if d.get(name) is not None), default)


def text_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The innermost text_config, of the outer model_type where it has none."""
    inner = said(config, "thinker_config", "text_config", "language_config", "llm_config", "lm_config")
    inner = None if inner is None else text_of(inner)
    return inner | {"model_type": inner.get("model_type") or config.get("model_type")} if inner else config


FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
TURNS = "whether each layer has positions"  # a key that no config has
Changes = dict[str, Any]


def settings(rope: Mapping[str, Any]) -> Changes:
    """`rope` as the only rope settings."""
    return {"rope_parameters": rope, "rope_scaling": None, "rope_theta": None, "partial_rotary_factor": None}


def is_nested(rope: Mapping[str, Any]) -> bool:
    return any(isinstance(value, dict) for value in rope.values())


# What the keys that a model_type has for itself mean in the keys of others: (config, rope settings, number of layers).


def of_bailing(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    return {MAXIMUM: said(config, "model_max_length", MAXIMUM)}


def of_chatglm(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    return {"rope_theta": said(config, "rope_theta", default=1e4 * said(config, "rope_ratio", default=1))}


def of_cohere2_moe(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    first, prefix, period = (
        said(config, key, default=default)
        for key, default in (
            ("first_k_dense_replace", 0),
            ("prefix_dense_sliding_window_pattern", 1),
            ("sliding_window_pattern", 4),
        )
    )
    kinds = [SLIDING if (i + 1) % prefix else FULL for i in range(min(first, count))]
    kinds += [SLIDING if (i + 1) % period else FULL for i in range(count - first)]
    kinds = said(config, "layer_types", default=kinds)
    dense = said(config, "mlp_layer_types", default=["dense" if i < first else "" for i in range(count)])
    turns = [kind == SLIDING or mlp == "dense" and prefix == 1 for kind, mlp in zip(kinds, dense, strict=True)]
    return {"layer_types": kinds, TURNS: turns}


def of_dbrx(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    inner = said(config, "attn_config", default={})
    return {"rope_theta": said(inner, "rope_theta", default=config.get("rope_theta"))}


def of_deepseek_v4(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    names = {0: SLIDING, 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    ratios = [4 if i % 2 and i > 2 else 128 for i in range(count)]
    kinds = [names[ratio] for ratio in said(config, "compress_ratios", default=ratios)[:count]]
    kinds = list(said(config, "layer_types", default=kinds))[:count]
    head_dim, share = said(config, "head_dim", default=512), config.get("partial_rotary_factor")
    width = said(config, "qk_rope_head_dim", default=head_dim // 8) if share is None else int(head_dim * share)
    raw = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if is_nested(rope):
        main, compress = rope["main"], rope["compress"]
    else:
        main = {"rope_theta": said(config, "rope_theta", default=1e4)}
        compress = {} if "attention_factor" in raw else {"attention_factor": 1.0}
        compress |= {**rope, "rope_theta": said(config, "compress_rope_theta", default=160_000)}
        compress |= {ORIGINAL: config[ORIGINAL]} if config.get(ORIGINAL) else {}
    widths = {"qk_nope_head_dim": head_dim - width, "qk_rope_head_dim": width}
    return settings({kind: main if kind == SLIDING else compress for kind in kinds}) | {"layer_types": kinds} | widths


def of_dots3(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    windows = said(config, "use_sliding_window", default=True)
    kinds = [FULL if i < 2 or i % 4 == 1 or not windows else SLIDING for i in range(count)]
    kinds = said(config, "layer_types", default=kinds)
    bases = {SLIDING: said(config, "swa_rope_theta", default=5e4), "": said(config, "rope_theta", default=8e7)}
    rope = rope if is_nested(rope) else {kind: {"rope_theta": bases.get(kind, bases[""])} for kind in kinds}
    nope, whole = said(config, "swa_qk_nope_head_dim", default=192), said(config, "swa_head_dim", default=256)
    width = said(config, "swa_qk_rope_head_dim", default=whole - nope)
    own = {"qk_nope_head_dim": nope, "qk_rope_head_dim": width}
    own = {str(i): own for i, kind in enumerate(kinds) if kind == SLIDING}
    return settings(rope) | {"layer_types": kinds, "per_layer_config": said(config, "per_layer_config", default=own)}


def of_dory(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    kinds = config.get("layer_types")
    return {"layer_types": [kind for kind in kinds if kind != "mlp"]} if kinds else {}


def of_lara(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    kinds = [{1: SLIDING, 3: FULL, 4: SLIDING}.get(i % 5, LINEAR) for i in range(count)]
    return {"layer_types": said(config, "layer_types", default=kinds)}


def of_exaone(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    letters = config.get("sliding_window_pattern")
    if not isinstance(letters, str):
        return {}
    kinds = [SLIDING if letters[i % len(letters)] == "L" else FULL for i in range(count)]
    return {"layer_types": said(config, "layer_types", default=kinds), "sliding_window_pattern": None}


def of_gemma4(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    return {"layer_types": [*config["layer_types"][:-1], FULL]} if config.get("layer_types") else {}


def of_kimi_linear(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    default = 64 if config["model_type"] == "kimi_linear" else 0
    return {"qk_rope_head_dim": said(config, "qk_rope_head_dim", default=default)}


def of_internlm(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    own = said(config, "rotary", default={})
    dynamic = {"rope_scaling": {"rope_type": "dynamic", "factor": said(own, "scaling_factor", default=1.0)}}
    base = {"rope_theta": said(own, "base", default=config.get("rope_theta"))}
    return base | (dynamic if own.get("type") == "dynamic" else {})


def of_mimo_v2(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    flags = config.get("hybrid_layer_pattern")
    if flags is None:
        return {}
    types = {"layer_types": [SLIDING if flag else FULL for flag in flags]}
    if any(isinstance(value, Mapping) for value in rope.values()):  # as transformers 5 saves it
        return types
    names = "rope_theta", "partial_rotary_factor"
    rope = rope | {key: config[key] for key in names if config.get(key) is not None}
    base = said(config, "swa_rope_theta", default=rope.get("rope_theta"))
    sliding = {"rope_theta": base, "partial_rotary_factor": rope.get("partial_rotary_factor")}
    return settings({FULL: rope, SLIDING: sliding}) | types


def of_minimax(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    flags = config.get("attn_type_list")
    return {} if flags is None else {"layer_types": [FULL if flag else LINEAR for flag in flags]}


def of_molmo2(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    layers = config.get("rope_scaling_layers")
    if layers is None:
        return {}
    base = {"rope_theta": said(rope, "rope_theta", default=said(config, "rope_theta"))}
    return settings({FULL: rope | base, SLIDING: base}) | {
        "layer_types": [FULL if i in layers else SLIDING for i in range(count)]
    }


def of_muse(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    bases = said(config, "layer_rope_theta", default=[(count - 1 - i) % 4 for i in range(count)])
    return {TURNS: [base != 0 for base in bases]}


def of_nemotron_nas(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    blocks = [block["attention"] for block in said(config, "block_configs", default=())]
    kinds = [LINEAR if said(x, "no_op") or said(x, "replace_with_linear") else FULL for x in blocks]
    return {"layer_types": kinds} if kinds else {}


def of_neomme(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    result = {}
    for kind, base, share in ((FULL, 1e6, 0.25), (SLIDING, 1e4, 1.0)):
        own = {"rope_theta": said(config, "rope_theta", default=base), "partial_rotary_factor": share}
        own |= {key: value for key, value in (rope.get(kind) or {}).items() if value is not None}
        half = int(said(config, "head_dim", default=64) * own["partial_rotary_factor"]) // 4
        result[kind] = own | {"mrope_section": (half, half)}  # pairs of the row, of the column
    return settings(result)


def of_olmo_hybrid(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    raw = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return {TURNS: [0] * count} if raw.get("rope_theta", 0) is None else {}


def of_openelm(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    return {"rope_theta": said(config, "rope_freq_constant", "rope_theta")}


def of_phi3small(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    return {"rope_theta": said(config, "rope_embedding_base", "rope_theta")}


def of_qwen(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    steps = {"rope_scaling": {"rope_type": "dynamic_steps"}} if said(config, "use_dynamic_ntk", default=True) else {}
    return {MAXIMUM: config.get("seq_length")} | steps


def of_stablelm_epoch(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    return {"partial_rotary_factor": said(config, "rope_pct", "partial_rotary_factor")}


def of_step3p5(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    kinds = said(config, "layer_types", default=[FULL] * count)[:count]
    if is_nested(rope):
        return settings(rope) | {"layer_types": kinds}
    lists = [config.get(key) for key in ("rope_theta", "partial_rotary_factors")]
    bases, shares = (x if isinstance(x, (list, tuple)) else [x] * count for x in lists)
    result = {}
    for kind, base, share in zip(kinds, bases, shares, strict=False):
        own = {"rope_theta": 1e4 if base is None else base, "partial_rotary_factor": share}
        result[kind] = (rope if kind == FULL else {}) | own
    return settings(result) | {"layer_types": kinds}


def of_ultrabert(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    windows, bases = config.get("attention_windows"), config.get("rope_theta")
    kinds = said(config, "layer_types", default=windows and [SLIDING if window else FULL for window in windows])
    if not rope and isinstance(bases, (list, tuple)):
        rope = {kind: {"rope_theta": base} for kind, base in zip(kinds, bases, strict=True)}
    return settings(rope) | {"layer_types": kinds}


def of_zamba2(config: Mapping[str, Any], rope: Mapping[str, Any], count: int) -> Changes:
    turns = said(config, "use_mem_rope", default=False)
    kinds = said(config, "layers_block_type", "layer_types")
    maximum = 16384 if config.get("use_long_context") else config.get(MAXIMUM)
    head_dim = said(config, "head_dim", "attention_head_dim")
    if head_dim is None:
        head_dim = 2 * said(config, "hidden_size") // said(config, "num_attention_heads")
    flags = [turns and kind == "hybrid" for kind in kinds]
    return {TURNS: flags, MAXIMUM: maximum, "kv_channels": None, "head_dim": head_dim}


OWN = table({
    of_bailing: "bailing_hybrid", of_chatglm: "chatglm", of_cohere2_moe: "cohere2_moe", of_dbrx: "dbrx",
    of_dory: "dory", of_lara: "lara_mini",
    of_deepseek_v4: "deepseek_v4", of_dots3: "dots3_note_text", of_exaone: EXAONE, of_gemma4: " ".join(WIDE), of_kimi_linear: "glm5_next_text kimi_linear",
    of_internlm: "internlm", of_mimo_v2: "mimo_v2 mimo_v2_flash", of_minimax: "minimax minimax_m1 minimax_m2 minimax_text_01",
    of_molmo2: "molmo2_text", of_muse: "muse_glimmer_text muse_spark_text",
    of_nemotron_nas: "deci nemotron-nas nemotron_nas", of_neomme: "neomme", of_olmo_hybrid: "olmo_hybrid",
    of_openelm: "openelm", of_phi3small: "phi3small", of_qwen: "qwen", of_stablelm_epoch: "stablelm_epoch",
    of_step3p5: "step3p5", of_ultrabert: "ultrabert", of_zamba2: "zamba2",
})  # fmt: skip


def plain(config: Mapping[str, Any], name: str, count: int) -> Mapping[str, Any]:
    """The config in the keys of others."""
    if name not in OWN:
        return config
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    rope = {key: value for key, value in rope.items() if value is not None}
    return dict(config) | OWN[name](config, rope, count)


def count_of(config: Mapping[str, Any], name: str) -> int:
    """The number of layers."""
    if name == "nemotron_h":
        blocks = said(config, "layers_block_type", "layer_types", "hybrid_override_pattern")
        if blocks is not None:
            return len(blocks)
    if name == "dory" and "mlp" in said(config, "layer_types", default=()):
        return len(config["layer_types"]) // 2
    if name == "longcat_flash" and config.get("num_layers") is not None:
        return 2 * config["num_layers"]  # pairs of attentions
    names = (
        "num_hidden_layers",
        "n_layer",
        "n_layers",
        "num_layers",
        "decoder_num_hidden_layers",
        "num_transformer_layers",
    )
    count = said(config, *names)
    if name == "hrm_text" and config.get("num_layers_per_stack") is None:
        return count * said(config, "H_cycles", default=2) * (said(config, "L_cycles", default=3) + 1)
    return count


def layers_of(config: Mapping[str, Any], name: str, count: int, windowless: bool) -> tuple[list[str], list[bool]]:
    """The type of each layer, and whether it rotates by what stands outside the rope settings."""
    known, written = name in KNOWN, said(config, "layer_types", "layers_block_type")
    if name in STILL.split():
        return ["full_attention"] * count, [False] * count
    period, key = (1, "") if windowless else PERIODS.get(name, (1, ""))
    linear = key in ("full_attention_interval", "layer_group_size")
    period, other = said(config, key, default=period), "linear" if linear else "sliding"
    place, last = 0 if name in MODERNBERT.split() else period - 1, count - 1 if name in (*WIDE, "neomme") else None
    kinds = [f"{'full' if i % period == place or i == last else other}_attention" for i in range(count)]
    listed = {} if written is not None else config
    blocks, full = said(listed, "block_types"), said(listed, "attn_layer_indices", "full_attn_idxs")
    full = [i for i in range(count) if blocks[i % len(blocks)] == "attention"] if blocks else full
    kinds = kinds if full is None else [("full" if i in full else "linear") + "_attention" for i in range(count)]
    kinds = kinds if written is None else [ALIASES.get(kind, kind) for kind in map(str, written)]
    turns = [kind not in ("conv", LINEAR) for kind in kinds]
    if name in SLIDING_ONLY and not windowless:
        turns = [kind == SLIDING for kind in kinds]
    if TURNS in config:
        turns = [x and bool(flag) for x, flag in zip(turns, config[TURNS], strict=True)]
    if not known or name in ("llama4_text", "mistral_large4_text", "smollm3"):
        interval = said(config, "no_rope_layer_interval", "nope_layer_interval", default=4 if known else count + 1)
        flags = list(said(config, "no_rope_layers", default=())) or [(i + 1) % interval for i in range(count)]
        turns = [x and flag != 0 for x, flag in zip(turns, flags, strict=True)]
    silent = (None, "nope") if name == "granitemoehybrid" else () if known else ("nope",)
    turns = [x and config.get("position_embedding_type") not in silent for x in turns]
    return kinds, [x and i not in said(config, "cross_attention_layers", default=()) for i, x in enumerate(turns)]


def widths_of(d: Mapping[str, Any], config: Mapping[str, Any], name: str, kind: str, latent: Any) -> tuple[int, int]:
    """head_dim and rotary_dim."""
    if latent:
        return config["qk_nope_head_dim"] + config["qk_rope_head_dim"], config["qk_rope_head_dim"]
    names = "head_dim", "kv_channels", "attention_head_dim"
    head_dim = said(config, *names, default=None if "head_dim" in config else HEADS.get(name))  # a null is not absence
    if head_dim is None:
        heads = "num_attention_heads", "n_head", "n_heads", "decoder_num_attention_heads"
        head_dim = said(config, "hidden_size", "n_embd", "d_model") // said(config, *heads)
    if name in WIDE and kind == "full_attention" and "per_layer_config" not in config:
        head_dim = said(config, "global_head_dim", default=512)
    rope_type = said(d, "rope_type", "type", default="default")
    if name in KNOWN and name not in SHARES or rope_type == "proportional":
        return head_dim, head_dim
    default = 1 if "mimo_v2" in name and rope_type not in ("default", "mrope") else SHARES.get(name, 1)
    share = said(config, "partial_rotary_factor", "rotary_pct", "rotary_emb_fraction", default=default)
    width = int(head_dim * said(d, "partial_rotary_factor", default=share))
    shares = [said(x, "partial_rotary_factor", "rotary_pct") for x in (d, config)]
    if shares == [None, None] and "rotary_dim" not in config:  # a null is not absence
        width = {"gptj": 64, "codegen": 64, "phi-msft": 32}.get(name, width)
    return head_dim, said(config, "rotary_dim", "attn_rotary_emb", "rope_dim", default=width)


def base_of(d: Mapping[str, Any], config: Mapping[str, Any], name: str, kind: str) -> Any:
    """The base; that of a class as closely as its slowest frequency, a float32, tells."""
    sliding = kind == "sliding_attention"
    keys = [BASE_KEYS[name][sliding]] if name in BASE_KEYS else ["rope_theta", "rotary_emb_base"]
    release = [*map(int, re.findall(r"\d+", str(config.get("transformers_version")))[:2])]
    since, before = MOVED.get(name, ([], None))
    default = before if release and release < since else BASES.get(name)
    written = said(d, "rope_theta", default=said(config, *keys, default=default))
    if written is not None or name not in RECORDED:
        return 10_000.0 if written is None else written
    # Where there are two, full attention has the larger base.
    pairs, slowest, _ = sorted(RECORDED[name]["spectra"], key=lambda spectrum: spectrum[1])[-sliding]
    return pytest.approx(abs(slowest) ** (-pairs / (pairs - 1)), rel=1e-5)


def settings_of(
    d: Mapping[str, Any], config: Mapping[str, Any], name: str, nested: bool, latent: Any
) -> tuple[dict[str, Any], Any, float]:
    """The rope type and its settings, complete but for base and share; the query scale; the scale of the scores."""
    kind = said(d, "rope_type", "type", default="default")
    kind, maximum = ALIASES.get(kind, kind), said(d, MAXIMUM, default=config.get(MAXIMUM))
    outside = ({ORIGINAL: 4096} if name in PHI else {}) | config
    original = said({} if nested else outside, ORIGINAL, default=said(d, ORIGINAL, default=maximum))
    every = {"truncate": True, "partial_rotary_factor": said(config, "partial_rotary_factor", default=1.0)}
    every |= {key: value for key, value in d.items() if value is not None} | {ORIGINAL: original, MAXIMUM: maximum}
    if kind == "yarn":
        every |= {"beta_fast": d.get("beta_fast") or 32, "beta_slow": d.get("beta_slow") or 1}
    if kind in ("yarn", "longrope", "proportional") and "factor" not in every:
        every["factor"] = 1.0 if kind == "proportional" else maximum / original
    factor, amplitude, scores, all_dim = every.get("factor"), 1.0, 1.0, d.get("mscale_all_dim")
    if kind == "yarn":
        both = [temperature(factor, m) for m in (d.get("mscale"), all_dim) if m]
        amplitude = both[0] / both[1] if len(both) == 2 else temperature(factor, 1)
        amplitude = amplitude if said(d, "apply_yarn_scaling", default=True) else 1  # this and attn_factor: vLLM's
        amplitude = float(amplitude) * said(d, "attn_factor", default=1)
        all_dim = all_dim if latent and name not in UNSCALED else None  # whose code does not scale its scores
        scores = float(both[-1] ** 2) if all_dim else 1.0
    elif kind == "longrope" and factor > 1:
        amplitude = float(longrope_amplitude(factor, original))
    every.setdefault("attention_factor", pytest.approx(amplitude, rel=1e-12))
    result = {key: every[key] for key in ("alpha" if d.get("alpha") else SETTINGS[kind]).split()}
    result |= {key: tuple(result[key]) for key in ("short_factor", "long_factor") if key in result}
    result |= {"mscale_all_dim": all_dim} if kind == "yarn" and all_dim else {}
    if name in (*SECTIONS, "neomme") or name not in KNOWN and "mrope_section" in every:
        dealt = said(d, "mrope_interleaved", "interleaved", default=False)
        dealt = not name.startswith(CONTIGUOUS) if name in KNOWN else dealt
        alternating = name == "ernie4_5_vl_moe_text" or name not in KNOWN and bool(d.get("mrope_alternating"))
        result |= {"mrope_alternating": True} if alternating else {"mrope_interleaved": dealt}
        result |= {"mrope_section": tuple(every.get("mrope_section") or SECTIONS[name])}
    backward = name == "nanochat" or name not in KNOWN and d.get("rope_backward")
    result |= {"rope_backward": True} if backward else {}
    learned = (
        "lerope.alpha" if name == "mistral_large4_text" else None if name in KNOWN else d.get("learned_log_factor")
    )
    result |= {"learned_log_factor": learned} if learned else {}
    beta = every.get("llama_4_scaling_beta") if name in ("ministral3", "mistral4") else None
    scale = None if beta is None else (beta, original, 0, "steps")
    if name == "qwen" and said(config, "use_logn_attn", default=True):
        scale = pytest.approx(1 / math.log(config["seq_length"])), config["seq_length"], 1, "log"
    return {"rope_type": kind} | result, scale, scores


def indexer_of(config: Mapping[str, Any], name: str) -> tuple[Any, ...] | None:
    """Layout, part and head_dim of the indexer, whose spectra are those of the layers."""
    width = said(config, "index_head_dim", "indexer_head_dim")
    if (name in KNOWN or width is None) and name not in INDEXERS or width is None and name == "qwen4_exp_text":
        return None
    layout, part = INDEXERS.get(name, ("half", said(config, "indexer_part", default="first")))
    flag = config.get("indexer_rope_interleave")
    sparse = said(config, "sparse_attention_config", default={}) if name.startswith("minimax_m3") else {}
    layout = layout if flag is None else "interleaved" if flag else "half"
    scale = scales_of(config, name, "indexer_query_scales")[0]
    return layout, part, said(sparse, "sparse_index_dim", default=width or 128), scale


def scales_of(config: Mapping[str, Any], name: str, key: str) -> list[tuple[Any, ...] | None]:
    """The query scale of each layer, as what the model has learned or a config without a model_type writes; else None."""
    count = count_of(config, name)
    if name == "mistral_large4_text":
        heads, module = (
            ("index_n_heads", "attention.indexer") if "indexer" in key else ("num_attention_heads", "attention")
        )
        names = (f"layers.{{layer}}.{module}.ssmax_scaling.{letter}" for letter in "sb")
        return [(*names, said(config, heads, default=32))] * count
    if name in KNOWN or not config.get(key):
        return [None] * count
    keys = ("scale", "bias", "num_heads"), ("coefficient", "period", "offset", "variant")
    return [scale and tuple(scale.get(k, 0) for k in keys["period" in scale]) for scale in config[key]]


def expected(config: Mapping[str, Any], layout: str | None = None) -> dict[str, Any]:
    """What a plan should say, by property; of the layers in lists."""
    config = text_of(config)
    name = str(config.get("model_type"))
    if name == "deepseek_v2" and not said(config, "use_mla", default=config.get("qk_rope_head_dim") != 0):
        name = "deepseek"  # the smaller models of DeepSeek-VL2
    name, known = (name, True) if name in KNOWN else (f"{name}_text", f"{name}_text" in KNOWN)
    flag = said(config, *FLAGS) if layout is None and (not known or name in SWITCHED) else None
    own = layout or LAYOUTS.get(name) or known and RECORDED[name]["layout"]
    result = {"layout": own if flag is None else "interleaved" if flag else "half"}
    raw = config.get("rope_scaling") or config.get("rope_parameters") or {}
    window, layers, scores = config.get("sliding_window", 0), [], 1.0
    foreign = any(x not in name and (raw | config).get(key) is not None for key, x in WORDS.items())
    # Nor can it say: these do not run without their window; an old base of OLMo 3 is half forgotten in transformers 5.
    foreign = foreign and name in RECORDED or name == "olmo3" and said(config, "rope_theta")
    if foreign or window is None and name in ("cohere2", "flint", "cohere2_moe"):
        return result
    count = count_of(config, name)
    config = plain(config, name, count)
    raw = config.get("rope_scaling") or config.get("rope_parameters") or {}
    windowless = window is None and name in (*EXAONE.split(), "kolibri1")
    has_latent = "qk_rope_head_dim" in RECORDED[name]["config"] if name in RECORDED else not known or name in LATENT
    latent = has_latent and (said(config, "qk_rope_head_dim", default=0) or OWN.get(name) is of_kimi_linear)
    kinds, turning = layers_of(config, name, count, windowless)
    nested = any(key in kinds or isinstance(value, dict) for key, value in raw.items())
    bases = said(config, "layer_rope_theta") if "_swa" in name or not known else None
    for i, (kind, turns) in enumerate(zip(kinds, turning, strict=True)):
        here = config | dict((config.get("per_layer_config") or {}).get(str(i), {}))
        here |= {"partial_rotary_factor": None} if nested and name in RECORDED else {}
        old = not nested and name in BASE_KEYS and name not in MODERNBERT.split() and kind != "full_attention"
        d = raw.get(kind) if nested else {} if old else raw
        if turns and d is not None and (bases is None or bases[i]):
            settings, scale, scores = settings_of(d, here, name, nested, latent)
            base = base_of(d, here, name, kind) if bases is None else bases[i]
            layers.append((True, *widths_of(d, here, name, kind, latent), base, settings, scale))
        else:
            scale = said(config, "attn_scale", default=0.1), said(config, "floor_scale", default=8192), 1, "steps"
            tuned = name == "llama4_text" and said(config, "attn_temperature_tuning", default=True)
            scale = (0.1, 2048, 1, "power") if name == "beam" else scale if tuned else None
            layers.append((False, widths_of({}, here, name, kind, latent)[0], 0, None, {}, scale))
    result |= dict(zip(OF_LAYERS, map(list, zip(*layers, strict=True)), strict=True))
    if any(scales := scales_of(config, name, "query_scales")):
        result["query_scale"] = scales
    result["rotates_values"] = name == "deepseek_v4" or not known and bool(config.get("rope_on_values"))
    if any(key in d for d in (raw, *raw.values()) if isinstance(d, dict) for key in ("short_mscale", "long_mscale")):
        del result["settings"]  # the length chooses between them
    result["part"] = "last" if latent and any(result["rotates"]) else "first"
    result["indexer"] = indexer_of(config, name)
    return result | {"softmax_scale": pytest.approx(scores, rel=1e-12)}


def query_scale(positions: Any, coefficient: float, period: int, offset: int, form: str = "steps") -> np.ndarray:
    """What queries are multiplied by, float64."""
    p = np.asarray(positions, np.int64) + offset
    if form == "power":
        return (1 + p / period) ** coefficient
    return 1 + coefficient * (np.log1p(p // period) if form == "steps" else np.log(np.maximum(p / period, 1)))
