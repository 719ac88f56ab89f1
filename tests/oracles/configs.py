"""What a plan should say for a config, worked out from the words of the config: nothing here is the library's.

What a config leaves to the class of its model is what transformers 5.23.0 gave for the model type: the layout, the base
and which attention is latent as recorded in recorded/hf_model_types.json, the rest as its code has it, in the tables
here. `expected` covers layout, part and softmax_scale of a plan, and of each layer: whether it rotates (layer types,
their patterns, intervals, lists, a null window), head_dim, rotary_dim, the base, the rope type with its settings and
sections, the query scale. It leaves out the spectrum, which follows, and all but the layout where WORDS stand.
"""

from __future__ import annotations

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


# The layout where none is recorded: it is not a function named rotate_half that turns.
LAYOUTS = table({"interleaved": "deepseek_v2 llama4_text openai_privacy_filter", "half": "gpt_oss"})
FLAGS = "rope_interleave", "rope_interleaved", "rotary_emb_interleaved"
SWITCHED = "axk1 deepseek_v3 glm4_moe_lite mistral4 youtu".split()  # the first is read, true where absent
# The base where what is recorded is of scaled settings, which the class has for a config without any.
BASES = table({12e6: "apertus", 1e6: "cwm", 150_000.0: "gpt_oss openai_privacy_filter"})
GEMMA_3, GEMMA_4 = "gemma3_text t5gemma2_text t5gemma2_decoder", "gemma4_text gemma4_unified_text diffusion_gemma_text"
MODERNBERT, QWEN, EXAONE = "modernbert modernbert-decoder", "qwen3_5_moe_text qwen3_5_text", "exaone4 exaone_moe"
BASE_KEYS = table({  # of full, of sliding attention
    ("rope_theta", "rope_local_base_freq"): f"{GEMMA_3} gemma3n_text",
    ("global_rope_theta", "local_rope_theta"): MODERNBERT, ("rope_theta", "rope_theta"): "olmo3",
})  # fmt: skip
HEADS = table({
    64: "gpt_oss openai_privacy_filter", 192: "mimo_v2_flash",
    128: "afmoe beam cwm ernie4_5 flint glm glm4 helium hy_v3 jetmoe kolibri1 laguna lfm3 llama4_text mellum "
    "minimax_m2 ministral3 paddleocr_vl_text qwen3 qwen3_vl_text seed_oss solar_open zaya",
    256: f"gemma gemma2 gemma3n_text vaultgemma qwen3_next {GEMMA_3} {GEMMA_4} {QWEN}",
})  # fmt: skip
# The share that rotates where no key says it, of those whose code reads one at all.
SHARES = table({
    0.25: f"gpt_neox stablelm qwen3_next {QWEN}", 0.334: "mimo_v2_flash", 0.9: "moonshine",
    0.5: "glm glm4 glm4_moe glm4v_moe_text nemotron persimmon phi",
    1.0: "glm4v_text glm_image_text glm_ocr_text gpt_neox_japanese laguna mellum minimax_m2 phi3 phi4_multimodal "
    "solar_open zaya",
})  # fmt: skip
# One layer of so many has full attention, and the key for how many.
PERIODS = table({
    (4, "sliding_window_pattern"): f"cohere2 {EXAONE}", (6, "sliding_window_pattern"): GEMMA_3,
    (4, "global_attn_every_n_layers"): "afmoe", (3, "global_attn_every_n_layers"): MODERNBERT,
    (4, "full_attention_interval"): f"qwen3_next {QWEN}", (4, ""): "olmo3", (5, ""): "gemma3n_text", (6, ""): GEMMA_4,
})  # fmt: skip
SLIDING_ONLY = f"afmoe cohere2 flint kolibri1 {EXAONE}".split()  # full attention has no positions
SECTIONS = table({
    (16, 24, 24): "qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text paddleocr_vl_text", (11, 11, 10): QWEN,
    (8, 12, 12): "glm4v_text glm_ocr_text glm4v_moe_text glm_image_text",
    (24, 20, 20): "qwen3_vl_text qwen3_vl_moe_text qwen3_omni_moe_text",
})  # fmt: skip
# Words that only these types read (-: none recorded). A plan heeds them for all; transformers takes no notice of them.
WORDS = table({
    "gpt_neox": "rotary_emb_base rotary_pct", "minimax_m2": "rotary_dim", "-": "rotary_emb_fraction attn_rotary_emb",
})  # fmt: skip
ALIASES = {"attention": "full_attention", "mamba": "linear_attention", "su": "longrope", "mrope": "default"}
ORIGINAL, MAXIMUM = "original_max_position_embeddings", "max_position_embeddings"
SETTINGS = {
    "default": "", "linear": "factor", "dynamic": f"factor {MAXIMUM}", "proportional": "partial_rotary_factor factor",
    "llama3": f"factor low_freq_factor high_freq_factor {ORIGINAL}",
    "yarn": f"factor beta_fast beta_slow truncate attention_factor {ORIGINAL}",
    "longrope": f"factor short_factor long_factor attention_factor {ORIGINAL}",
}  # fmt: skip


def said(d: Mapping[str, Any], *names: str, default: Any = None) -> Any:
    """What the first of the keys says that is there and not null."""
    return next((d[name] for name in names if d.get(name) is not None), default)


def text_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The innermost text_config, of the outer model_type where it has none."""
    inner = said(config, "thinker_config", "text_config", "language_config")
    inner = None if inner is None else text_of(inner)
    return inner | {"model_type": inner.get("model_type") or config.get("model_type")} if inner else config


def layers_of(config: Mapping[str, Any], name: str, count: int, windowless: bool) -> tuple[list[str], list[bool]]:
    """The type of each layer, and whether it rotates by what stands outside the rope settings."""
    known, written = name in RECORDED, said(config, "layer_types", "layers_block_type")
    period, key = (1, "") if windowless else PERIODS.get(name, (1, ""))
    period, other = said(config, key, default=period), "linear" if key == "full_attention_interval" else "sliding"
    place, last = 0 if name in MODERNBERT.split() else period - 1, count - 1 if name in GEMMA_4.split() else None
    kinds = [f"{'full' if i % period == place or i == last else other}_attention" for i in range(count)]
    listed = {} if written is not None else config
    blocks, full = said(listed, "block_types"), said(listed, "attn_layer_indices", "full_attn_idxs")
    full = [i for i in range(count) if blocks[i % len(blocks)] == "attention"] if blocks else full
    kinds = kinds if full is None else [("full" if i in full else "linear") + "_attention" for i in range(count)]
    kinds = kinds if written is None else [ALIASES.get(kind, kind) for kind in map(str, written)]
    still = {"conv", "linear_attention"} | ({"full_attention"} if name in SLIDING_ONLY and not windowless else set())
    turns = [kind not in still for kind in kinds]
    if not known or name in ("llama4_text", "smollm3"):
        interval = said(config, "no_rope_layer_interval", default=4 if known else count + 1)
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
    head_dim = said(config, *names, default=None if {*names} & {*config} else HEADS.get(name))  # a null is not absence
    if head_dim is None:
        hidden, heads = ("hidden_size", "n_embd", "d_model"), ("num_attention_heads", "n_head", "n_heads")
        head_dim = said(config, *hidden) // said(config, *heads)
    if name in GEMMA_4.split() and kind == "full_attention" and "per_layer_config" not in config:
        head_dim = said(config, "global_head_dim", default=512)
    if name in RECORDED and name not in SHARES or said(d, "rope_type", "type") == "proportional":
        return head_dim, head_dim
    share = said(config, "partial_rotary_factor", "rotary_pct", "rotary_emb_fraction", default=SHARES.get(name, 1))
    width = int(head_dim * said(d, "partial_rotary_factor", default=share))
    return head_dim, said(config, "rotary_dim", "attn_rotary_emb", default=width)


def base_of(d: Mapping[str, Any], config: Mapping[str, Any], name: str, kind: str) -> Any:
    """The base; that of a class as closely as its slowest frequency, a float32, tells."""
    sliding = kind == "sliding_attention"
    keys = [BASE_KEYS[name][sliding]] if name in BASE_KEYS else ["rope_theta", "rotary_emb_base"]
    written = said(d, "rope_theta", default=said(config, *keys, default=BASES.get(name)))
    if written is not None or name not in RECORDED:
        return 10_000.0 if written is None else written
    # Where there are two, full attention has the larger base.
    pairs, slowest, _ = sorted(RECORDED[name]["spectra"], key=lambda spectrum: spectrum[1])[-sliding]
    return pytest.approx(slowest ** (-pairs / (pairs - 1)), rel=1e-5)


def settings_of(
    d: Mapping[str, Any], config: Mapping[str, Any], name: str, nested: bool, latent: Any
) -> tuple[dict[str, Any], Any, float]:
    """The rope type and its settings, complete but for base and share; the query scale; the scale of the scores."""
    kind = said(d, "rope_type", "type", default="default")
    kind, maximum = ALIASES.get(kind, kind), said(d, MAXIMUM, default=config.get(MAXIMUM))
    outside = ({ORIGINAL: 4096} if name in ("phi3", "phi4_multimodal") else {}) | config
    original = said({} if nested else outside, ORIGINAL, default=said(d, ORIGINAL, default=maximum))
    every = {"truncate": True, "partial_rotary_factor": said(config, "partial_rotary_factor", default=1.0)}
    every |= {key: value for key, value in d.items() if value is not None} | {ORIGINAL: original, MAXIMUM: maximum}
    every |= {"beta_fast": d.get("beta_fast") or 32, "beta_slow": d.get("beta_slow") or 1}
    if kind in ("yarn", "longrope", "proportional") and "factor" not in every:
        every["factor"] = 1.0 if kind == "proportional" else maximum / original
    factor, amplitude, scores, all_dim = every.get("factor"), 1.0, 1.0, d.get("mscale_all_dim")
    if kind == "yarn":
        both = [temperature(factor, m) for m in (d.get("mscale"), all_dim) if m]
        amplitude = float(both[0] / both[1] if len(both) == 2 else temperature(factor, 1))
        scores = float(both[-1] ** 2) if latent and all_dim else 1.0
    elif kind == "longrope" and factor > 1:
        amplitude = float(longrope_amplitude(factor, original))
    every.setdefault("attention_factor", pytest.approx(amplitude, rel=1e-12))
    result = {key: every[key] for key in ("alpha" if d.get("alpha") else SETTINGS[kind]).split()}
    result |= {key: tuple(result[key]) for key in ("short_factor", "long_factor") if key in result}
    result |= {"mscale_all_dim": all_dim} if latent and kind == "yarn" and all_dim else {}
    if name in SECTIONS or name not in RECORDED and "mrope_section" in every:
        dealt = "qwen3" in name if name in RECORDED else said(d, "mrope_interleaved", "interleaved", default=False)
        result |= {"mrope_section": tuple(every.get("mrope_section") or SECTIONS[name]), "mrope_interleaved": dealt}
    beta = every.get("llama_4_scaling_beta") if name in ("ministral3", "mistral4") or name not in RECORDED else None
    result |= {} if beta is None else {"llama_4_scaling_beta": beta, ORIGINAL: original}
    return {"rope_type": kind} | result, None if beta is None else (beta, original, 0), scores


def expected(config: Mapping[str, Any], layout: str | None = None) -> dict[str, Any]:
    """What a plan should say, by property; of the layers in lists."""
    config = text_of(config)
    name = str(config.get("model_type"))
    name, known = (name, True) if name in RECORDED else (f"{name}_text", f"{name}_text" in RECORDED)
    flag = said(config, *FLAGS) if layout is None and (not known or name in SWITCHED) else None
    own = layout or LAYOUTS.get(name) or known and RECORDED[name]["layout"]
    result = {"layout": own if flag is None else "interleaved" if flag else "half"}
    raw = config.get("rope_scaling") or config.get("rope_parameters") or {}
    window, layers, scores = config.get("sliding_window", 0), [], 1.0
    foreign = known and any(x not in name and (raw | config).get(key) is not None for key, x in WORDS.items())
    # Nor can it say: these do not run without their window; an old base of OLMo 3 is half forgotten in transformers 5.
    if foreign or window is None and name in ("cohere2", "flint") or name == "olmo3" and said(config, "rope_theta"):
        return result
    windowless = window is None and name in (*EXAONE.split(), "kolibri1")
    latent = "qk_rope_head_dim" in (RECORDED[name]["config"] if known else config) and config["qk_rope_head_dim"]
    count = said(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    kinds, turning = layers_of(config, name, count, windowless)
    nested = any(key in kinds or isinstance(value, dict) for key, value in raw.items())
    bases = said(config, "layer_rope_theta") if "_swa" in name or not known else None
    for i, (kind, turns) in enumerate(zip(kinds, turning, strict=True)):
        here = config | dict((config.get("per_layer_config") or {}).get(str(i), {}))
        old = not nested and name in BASE_KEYS and name not in MODERNBERT.split() and kind != "full_attention"
        d = raw.get(kind) if nested else {} if old else raw
        if turns and d is not None and (bases is None or bases[i]):
            settings, scale, scores = settings_of(d, here, name, nested, latent)
            base = base_of(d, here, name, kind) if bases is None else bases[i]
            layers.append((True, *widths_of(d, here, name, kind, latent), base, settings, scale))
        else:
            scale = said(config, "attn_scale", default=0.1), said(config, "floor_scale", default=8192), 1
            tuned = (not known or name == "llama4_text") and said(config, "attn_temperature_tuning", default=known)
            layers.append((False, widths_of({}, here, name, kind, latent)[0], 0, None, {}, scale if tuned else None))
    result |= dict(zip(OF_LAYERS, map(list, zip(*layers, strict=True)), strict=True))
    result["part"] = "last" if latent and any(result["rotates"]) else "first"
    return result | {"softmax_scale": pytest.approx(scores, rel=1e-12)}


def query_scale(positions: Any, coefficient: float, period: int, offset: int) -> np.ndarray:
    """What queries are multiplied by, float64."""
    return 1 + coefficient * np.log1p((np.asarray(positions, np.int64) + offset) // period)
