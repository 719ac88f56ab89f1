"""The model types that the library knows, with the settings of their classes in transformers."""

import torch
import transformers
from embeddings import inverse_frequencies, modeling_of, new_embedding
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from posenc_jax.hf import _models

# Without a class for frequencies, without any rotation, or another name of Evolla.
WITHOUT = set("codegen gptj roformer glm5_next_text jamba kimi_linear nemotron_h EvollaModel".split())
TYPES = sorted(_models.MODELS.keys() & {*CONFIG_MAPPING.keys()} - WITHOUT)

_PARTIAL = {"rope_type": "default", "partial_rotary_factor": 0.5, "rope_theta": 10_000.0, "mrope_section": [8, 12, 12]}
_DEALT = {"rope_type": "default", "rope_theta": 50_000.0, "mrope_section": [24, 20, 20]}
_MIXED = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
# Where the defaults of a class make no model with rotary layers.
SETTINGS = {
    "bamba": {"num_hidden_layers": 3, "attn_layer_indices": [1]},
    "cohere_compass_text": {
        **_MIXED,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"sliding_attention": _DEALT, "full_attention": None},
    },
    "deepseek_v4": {
        "num_hidden_layers": 4,
        "layer_types": [
            "sliding_attention",
            "heavily_compressed_attention",
            "compressed_sparse_attention",
            "sliding_attention",
        ],
    },
    "dory": {
        **{"num_hidden_layers": 4, "n_input_layers": 1, "n_output_layers": 1},
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
    },
    "esm": {"position_embedding_type": "rotary"},
    "glm4_moe": {"head_dim": 128},
    "glm4v_moe_text": {"head_dim": 128},
    "glm4v_text": {"rope_parameters": _PARTIAL},
    "glm_image_text": {"rope_parameters": _PARTIAL},
    "granitemoehybrid": {**_MIXED, "position_embedding_type": "rope"},
    "lfm2_moe": {**_MIXED, "layer_types": ["conv", "full_attention"]},
    "minimax_m3_vl_text": {  # its class writes a rotary_dim of half the head, and rotates the whole one
        "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5, "rope_theta": 5e6}
    },
    "qwen3_omni_moe_talker_text": {"head_dim": 128},
    "qwen3_omni_moe_text": {"head_dim": 128},
    "qwen4_exp_text": {
        "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25, "rope_theta": 1e7},
        **{"indexer_head_dim": 128, "indexer_n_heads": 2, "indexer_kv_heads": 1},
        **{"indexer_budget": 4, "indexer_compress_ratio": 2},
    },
    "zamba2": {"use_mem_rope": True},
}
# What a configuration needs to say; what else speaks of rotations, a class makes up.
SAID = (
    "model_type",
    "hidden_size",
    "d_model",
    "num_hidden_layers",
    "num_layers",
    "num_layers_per_stack",
    "n_layers",
    "decoder_num_hidden_layers",
    "num_attention_heads",
    "n_heads",
    "decoder_num_attention_heads",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "max_position_embeddings",
    "position_embedding_type",
    "global_head_dim",
    "cross_attention_layers",
    "block_types",
    "index_head_dim",
)


def read(model_type):
    """The configuration of a model type, its frequencies, below 0 if it rotates backwards, and the layout of its pairs."""
    config = CONFIG_MAPPING[model_type](**SETTINGS.get(model_type, {}))
    embedding = new_embedding(config)
    if model_type == "nanochat":
        embedding.inv_freq = -embedding.inv_freq
    if model_type == "ernie4_5_vl_moe_text":  # keeps those of height, of width and of time together
        embedding.inv_freq = embedding.recomposition_frequencies(embedding.inv_freq.expand(3, -1))[::2]
    return config, embedding, _layout(modeling_of(config), config)


def describe(model_type):
    """All that is recorded of a model type: what of its spectra its class makes up."""
    config, embedding, layout = read(model_type)
    found = inverse_frequencies(embedding, getattr(config, "layer_types", None) or [""])
    spectra = {
        (len(inverse), float(str(min(inverse[inverse != 0], key=abs))), factor)
        for inverse, factor in filter(None, found.values())
    }
    written, model = config.to_dict(), _models.MODELS[model_type]
    names = [*SAID, *SETTINGS.get(model_type, ()), *["layer_types", "layers_block_type"] * (model.pattern is None)]
    said = {key: written[key] for key in names if written.get(key) is not None}
    said |= {key: dict(sorted(value.items())) for key, value in said.items() if isinstance(value, dict)}
    turns = getattr(config, "no_rope_layers", None)  # one where a layer has positions
    bases = getattr(config, "layer_rope_theta", None) or ()
    turns = [int(base != 0) for base in bases] if 0 in bases else turns or None
    said["transformers_version"] = transformers.__version__
    return {"config": said, "layout": layout, "spectra": sorted(spectra), "turns": turns}


def _layout(modeling, config):
    """As its code turns eight features by a quarter; None where it has no function for that."""
    if hasattr(modeling, "apply_rotary_pos_emb_interleave") and "Audio" not in type(config).__name__:
        return "interleaved"
    names = "rotate_half_llm", "rotate_half_text", "rotate_half"
    quarter = next((getattr(modeling, name) for name in names if hasattr(modeling, name)), None)
    if quarter is None:
        return None
    turned = quarter(torch.arange(1.0, 9.0)[None, None, None]).flatten().tolist()
    return {2.0: "interleaved", 5.0: "half"}[abs(turned[0])]
