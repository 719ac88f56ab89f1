"""Settings as config.json files wrote them before `rope_parameters`, with what transformers makes of them."""

import importlib

_YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "rope_type": "yarn"}
_LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_FACTORS = {"short_factor": [1.0 + 0.25 * i for i in range(16)], "long_factor": [1.0 + i for i in range(16)]}
_SIZES = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 4, "max_position_embeddings": 131072}

# name: (model_type, classes, settings, length)
CASES = {
    "Llama 2": ("llama", "Llama", {"max_position_embeddings": 4096}, None),
    "Llama 2, rope_theta": ("llama", "Llama", {"rope_theta": 5_000_000.0, "rope_scaling": None}, None),
    "Llama 2, linear": ("llama", "Llama", {"rope_scaling": {"type": "linear", "factor": 4.0}}, None),
    "Llama 2, dynamic": (
        "llama",
        "Llama",
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 2048},
        5000,
    ),
    "Llama 3.1": (
        "llama",
        "Llama",
        {
            "rope_theta": 500_000.0,
            "rope_scaling": _LLAMA3 | {"factor": 8.0, "original_max_position_embeddings": 8192},
        },
        None,
    ),
    "Qwen2, YaRN": (
        "qwen2",
        "Qwen2",
        {
            "rope_theta": 1_000_000.0,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        },
        None,
    ),
    "Qwen2.5-VL": (
        "qwen2_5_vl_text",
        "Qwen2_5_VL",
        {"rope_theta": 1_000_000.0, "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]}},
        None,
    ),
    "Qwen3-VL": (
        "qwen3_vl_text",
        "Qwen3VLText",
        {
            "head_dim": 32,
            "rope_theta": 5_000_000.0,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": [6, 5, 5], "rope_type": "default"},
        },
        None,
    ),
    "Phi-3": (
        "phi3",
        "Phi3",
        {
            "rope_theta": 10_000.0,
            "original_max_position_embeddings": 4096,
            "rope_scaling": {"type": "longrope"} | _FACTORS,
        },
        4097,
    ),
    "Phi-3, su": (
        "phi3",
        "Phi3",
        {
            "rope_theta": 10_000.0,
            "rope_scaling": {"type": "su", "original_max_position_embeddings": 4096} | _FACTORS,
        },
        4096,
    ),
    "Gemma 3": (
        "gemma3_text",
        "Gemma3",
        {
            "head_dim": 32,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "sliding_window_pattern": 2,
        },
        None,
    ),
    "ModernBERT": (
        "modernbert",
        "ModernBert",
        {"global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0, "global_attn_every_n_layers": 3},
        None,
    ),
    "GPT-NeoX": ("gpt_neox", "GPTNeoX", {"rotary_pct": 0.25, "rotary_emb_base": 10_000}, None),
    "GLM-4": (
        "glm4",
        "Glm4",
        {"head_dim": 32, "partial_rotary_factor": 0.5, "rope_theta": 10_000.0, "rope_scaling": None},
        None,
    ),
    "StableLM": ("stablelm", "StableLm", {"partial_rotary_factor": 0.25, "rope_theta": 10_000}, None),
    "DeepSeek-V3": (
        "deepseek_v3",
        "DeepseekV3",
        {
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 32,
            "rope_theta": 10_000,
            "rope_scaling": {"type": "yarn"}
            | {"factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096},
        },
        None,
    ),
    "gpt-oss": (
        "gpt_oss",
        "GptOss",
        {
            "head_dim": 64,
            "initial_context_length": 4096,
            "rope_theta": 150_000,
            "rope_scaling": _YARN | {"factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096},
        },
        None,
    ),
    "OLMo 3": (
        "olmo3",
        "Olmo3",
        {
            "rope_theta": 500_000,
            "rope_scaling": _YARN
            | {"factor": 8.0, "attention_factor": 1.2079441541679836, "original_max_position_embeddings": 8192},
        },
        None,
    ),
    "SmolLM3": (
        "smollm3",
        "SmolLM3",
        {"rope_theta": 5_000_000.0, "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0]},
        None,
    ),
    "Cohere": ("cohere", "Cohere", {"rope_theta": 75_000_000.0, "max_position_embeddings": 8192}, None),
}


def read(name):
    """The settings as a file has them, the configuration that transformers reads, and its rotary embedding."""
    model_type, family, settings, length = CASES[name]
    raw = {"model_type": model_type} | _SIZES | settings
    module = model_type.removesuffix("_text")
    package = importlib.import_module(f"transformers.models.{module}")
    text = "Text" if model_type.endswith("_text") and not family.endswith("Text") else ""
    config = getattr(package, f"{family}{text}Config").from_dict(raw)
    modeling = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    return raw, config, getattr(modeling, f"{family}RotaryEmbedding")(config), length
