"""Settings of published models, and small ones that a test changes.

Keys that do not speak of rotations are left out, and the layers are fewer.
"""

BASE = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
SPREAD = [1 + i / 8 for i in range(8)]


def llama(**keys):
    return {**BASE, **keys}


def scaled(kind, **keys):
    return llama(rope_parameters={"rope_type": kind, "rope_theta": 10_000.0, **keys}, max_position_embeddings=8192)


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
