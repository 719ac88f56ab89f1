"""Attention layers of transformers whose values rotate, or that learn spectra, small and with random weights."""

import numpy as np
import torch
from attention_modules import CACHE
from transformers import DeepseekV4Config, MistralLarge4TextConfig, masking_utils
from transformers.models.deepseek_v4 import modeling_deepseek_v4
from transformers.models.mistral_large4 import modeling_mistral_large4

LENGTH = 24
_COMMON = {"hidden_size": 16, "num_attention_heads": 2, "vocab_size": 8, "moe_intermediate_size": 8}
_COMMON |= {"n_routed_experts": 2, "num_experts_per_tok": 1, "index_n_heads": 8, "index_head_dim": 8, "index_topk": 3}
_YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16}
DEEPSEEK_V4 = _COMMON | {
    "num_hidden_layers": 4,
    "layer_types": [
        "sliding_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
        "sliding_attention",
    ],
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 6},
    "head_dim": 8,
    "partial_rotary_factor": 0.5,
    "q_lora_rank": 8,
    "o_groups": 2,
    "o_lora_rank": 4,
    "sliding_window": 5,
    "max_position_embeddings": 128,
    "rope_theta": 100.0,
    "compress_rope_theta": 1000.0,
}
MISTRAL_LARGE_4 = _COMMON | {
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "kv_lora_rank": 6,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 8,
    "v_head_dim": 5,
    "index_topk": 6,
    "max_position_embeddings": 128,
    "rope_parameters": _YARN | {"rope_theta": 1000.0, "attention_factor": 1.25, "mscale_all_dim": 0.8},
}
_AMPLITUDE = {"main": {"rope_type": "default", "rope_theta": 100.0}}
_AMPLITUDE |= {"compress": _YARN | {"rope_theta": 1000.0, "attention_factor": 1.25}}
# The model type, its settings and the layer; the last one's values have an amplitude, twice.
CASES = {
    "DeepSeek-V4, sliding": ("deepseek_v4", DEEPSEEK_V4 | {"rope_parameters": _YARN}, 0),
    "DeepSeek-V4, compressed sparse": ("deepseek_v4", DEEPSEEK_V4 | {"rope_parameters": _YARN}, 1),
    "DeepSeek-V4, heavily compressed": ("deepseek_v4", DEEPSEEK_V4 | {"rope_parameters": _YARN}, 2),
    "DeepSeek-V4, heavily compressed, with an amplitude": (
        "deepseek_v4",
        DEEPSEEK_V4 | {"rope_parameters": _AMPLITUDE},
        2,
    ),
    "Mistral Large 4": ("mistral_large4_text", MISTRAL_LARGE_4, 0),
    "Mistral Large 4, without positions": ("mistral_large4_text", MISTRAL_LARGE_4, 3),
}
# Keys of a config that the layer reads.
_KEPT = (
    "model_type", "num_hidden_layers", "num_attention_heads", "layer_types", "compress_rates", "head_dim", "rope_theta",
    "partial_rotary_factor", "compress_rope_theta", "qk_rope_head_dim", "qk_nope_head_dim", "o_groups", "sliding_window",
    "max_position_embeddings", "rope_parameters", "index_n_heads", "index_head_dim", "index_topk", "rms_norm_eps",
    "kv_lora_rank", "no_rope_layers",
)  # fmt: skip


class Layer:
    """A layer of a model, with random weights that make scores of about 2."""

    def __init__(self, name, seed=0):
        model_type, settings, self.index = CASES[name]
        self.code = modeling_deepseek_v4 if model_type == "deepseek_v4" else modeling_mistral_large4
        self.config = (DeepseekV4Config if model_type == "deepseek_v4" else MistralLarge4TextConfig)(**settings)
        self.config._attn_implementation = "eager"
        prefix = "DeepseekV4" if model_type == "deepseek_v4" else "MistralLarge4Text"
        torch.manual_seed(seed)
        self.module = getattr(self.code, f"{prefix}Attention")(self.config, layer_idx=self.index).eval()
        self.embedding = getattr(self.code, f"{prefix}RotaryEmbedding")(self.config)
        with torch.no_grad():
            for key, weight in self.module.named_parameters():
                weight.normal_(0, weight.shape[-1] ** -0.5 if weight.ndim == 2 else 0.25)
                if "norm.weight" in key or "layernorm" in key or "scaling.bias" in key:
                    weight.add_(1)
                if key in ("q_proj.weight", "q_b_proj.weight"):
                    weight.mul_(2)
            if model_type != "deepseek_v4":
                self.embedding.alpha.normal_(0, 0.25)
            self.x = torch.randn(1, LENGTH, self.config.hidden_size)
            learned = [self.embedding.alpha] if model_type != "deepseek_v4" else []
            for array in (*self.module.parameters(), *learned, self.x):
                array.copy_((array * 1000).round() / 1000)  # short as text

    def run(self, x):
        """The output (1, seq, hidden_size), with the rotation and the mask that the model makes."""
        config, positions = self.config, torch.arange(x.shape[1])[None]
        told = {"config": config, "inputs_embeds": x, "attention_mask": None, CACHE: None}
        if config.model_type == "deepseek_v4":
            mask = masking_utils.create_sliding_window_causal_mask(**told)
            waves = {name: self.embedding(x, positions, layer_type=name) for name in ("main", "compress")}
            return self.module(x, waves, positions, mask)[0]
        mask = masking_utils.create_causal_mask(**told, allow_is_causal_skip=False)
        return self.module(x, self.embedding(x, positions), mask, {}, positions)[0]

    def weights(self):
        """By name; of Mistral Large 4 also what was learned of frequencies."""
        result = {key: weight.detach().numpy() for key, weight in self.module.named_parameters()}
        if hasattr(self.embedding, "alpha"):
            result["alpha"] = self.embedding.alpha.detach().numpy()
        return result

    def written(self):
        """The config, as JSON has it."""
        values = self.config.to_dict()
        return {key: values[key] for key in _KEPT if values.get(key) is not None}


def output(layer):
    """Its output for its own input, (seq, hidden_size)."""
    with torch.no_grad():
        return np.array(layer.run(layer.x)[0])
