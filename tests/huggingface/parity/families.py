"""The model types that the library knows, with the settings of their classes in transformers."""

import importlib

import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from posenc_jax.hf import _models

# Without model code, or without a class for frequencies; Bamba's and RecurrentGemma's layers stand under other keys.
WITHOUT = {"bamba", "codegen", "gptj", "granite4_vision_text", "internlm3", "iquestcoder", "recurrent_gemma"}
TYPES = sorted(set(_models.MODELS) - WITHOUT)

_PARTIAL = {"rope_type": "default", "partial_rotary_factor": 0.5, "rope_theta": 10_000.0, "mrope_section": [8, 12, 12]}
# Where the defaults of a class make no model with rotary layers.
SETTINGS = {
    "glm4_moe": {"head_dim": 128},
    "glm4v_moe_text": {"head_dim": 128, "rope_parameters": _PARTIAL},
    "glm4v_text": {"rope_parameters": _PARTIAL},
    "glm_image_text": {"rope_parameters": _PARTIAL},
    "granitemoehybrid": {
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "position_embedding_type": "rope",
    },
    "lfm2_moe": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    "qwen3_omni_moe_text": {"head_dim": 128},
}
# What a configuration needs to say; what else speaks of rotations, a class makes up.
SAID = (
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "max_position_embeddings",
    "position_embedding_type",
    "global_head_dim",
)


def read(model_type):
    """The configuration of a model type, its class for frequencies, and the layout of its pairs."""
    config = CONFIG_MAPPING[model_type](**SETTINGS.get(model_type, {}))
    modeling = importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))
    classes = [
        value
        for name, value in vars(modeling).items()
        if name.endswith("RotaryEmbedding") and not any(word in name for word in ("Vision", "Audio"))
    ]
    text = [value for value in classes if "Text" in value.__name__ or "Thinker" in value.__name__]
    return config, (text or classes)[0](config), _layout(modeling)


def describe(model_type):
    """All that is recorded of a model type: what of its spectra its class makes up."""
    config, embedding, layout = read(model_type)
    spectra = set()
    for kind in getattr(config, "layer_types", None) or [""]:
        prefix = f"{kind}_" if hasattr(embedding, f"{kind}_inv_freq") else ""
        inverse = getattr(embedding, f"{prefix}inv_freq", None)  # none for layers that are no attention
        if inverse is not None:
            slowest = float(str(inverse[inverse > 0].min().float().numpy()))
            spectra.add((len(inverse), slowest, getattr(embedding, f"{prefix}attention_scaling", 1.0)))
    written = config.to_dict()
    said = {key: written[key] for key in SAID if written.get(key) is not None}
    turns = getattr(config, "no_rope_layers", None)  # one where a layer has positions
    return {"config": said, "layout": layout, "spectra": sorted(spectra), "turns": turns or None}


def _layout(modeling):
    """As its code turns eight features by a quarter; None where it has no function for that."""
    if hasattr(modeling, "apply_rotary_pos_emb_interleave"):
        return "interleaved"
    quarter = getattr(modeling, "rotate_half_llm", getattr(modeling, "rotate_half", None))
    if quarter is None:
        return None
    turned = quarter(torch.arange(1.0, 9.0)[None, None, None]).flatten().tolist()
    return {-2.0: "interleaved", -5.0: "half"}[turned[0]]
