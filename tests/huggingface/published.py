"""Settings of published models of types that no file of `oracles/recorded/hf_published.json` has.

Keys that do not speak of rotations are left out, and the layers are fewer.
"""

PUBLISHED = {
    "modernbert": {
        "model_type": "modernbert",
        "hidden_size": 768,
        "num_attention_heads": 12,
        "num_hidden_layers": 7,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        "position_embedding_type": "absolute",
    },
    "glm_4v": {
        "model_type": "glm4v",
        "text_config": {
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_hidden_layers": 2,
            "partial_rotary_factor": 0.5,
            "rope_theta": 10000.0,
            "rope_scaling": {"type": "default", "mrope_section": [8, 12, 12]},
        },
    },
}
