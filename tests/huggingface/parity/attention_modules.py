"""Attention modules of transformers with small random weights, and the masks and rotations that their models give them."""

import dataclasses
import importlib
import inspect
from typing import Any

import torch
from transformers import masking_utils

# The name of an argument and of an output, which transformers 5.24 changed.
CACHE = "cache" if "cache" in inspect.signature(masking_utils.create_causal_mask).parameters else "past_key_values"
HIDDEN, HEADS, KEY_HEADS, HEAD_DIM, WINDOW, CHUNK = 32, 4, 2, 16, 5, 6
SLIDING = ["sliding_attention", "full_attention"]
COMMON = {
    "hidden_size": HIDDEN,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": 4,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "initializer_range": HIDDEN**-0.5,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e3},
}
YARN = {"rope_type": "yarn", "rope_theta": 1e3, "factor": 8.0, "original_max_position_embeddings": 16}
T5 = {"d_model": HIDDEN, "d_kv": HEAD_DIM, "num_heads": HEADS}
T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """A model type: where its code is, settings beside the common ones, and which of its layers to compare."""

    folder: str
    prefix: str
    settings: dict[str, Any]
    layers: tuple[int, ...] = (0, 1)
    whole: str | None = None  # the class of the whole model

    def config(self, **changes):
        """The config of a small model."""
        package = importlib.import_module(f"transformers.models.{self.folder}.configuration_{self.folder}")
        name = next(name for name in (f"{self.prefix}TextConfig", f"{self.prefix}Config") if hasattr(package, name))
        config = getattr(package, name)(**COMMON | self.settings | changes)
        config._attn_implementation = "eager"
        return config

    @property
    def code(self):
        return importlib.import_module(f"transformers.models.{self.folder}.modeling_{self.folder}")

    def module(self, config, layer):
        """The attention of one layer, with random weights that make scores of about 2."""
        options = {"has_relative_attention_bias": True} if self.folder == "t5" else {}
        torch.manual_seed(layer)
        module = getattr(self.code, f"{self.prefix}Attention")(config, layer_idx=layer, **options).eval()
        with torch.no_grad():
            for name, weight in module.named_parameters():
                weight.normal_(0, weight.shape[-1] ** -0.5 if weight.ndim == 2 else 1.0)
                if "norm" in name:
                    weight.mul_(0.25).add_(0.0 if self.folder == "gemma3" else 1.0)  # Gemma 3 adds 1 itself
                if name in ("q_proj.weight", "q_b_proj.weight"):
                    weight.mul_(2)
        return module

    def run(self, module, x, positions, real):
        """The module's output, with the rotation and the mask that its model makes."""
        config, layer = module.config, module.layer_idx
        mask = mask_of(config, layer, x, real)
        if self.folder == "t5":
            return module(x, mask=mask)[0]
        kinds = (config.layer_types[layer],) if self.folder == "gemma3" else ()
        waves = getattr(self.code, f"{self.prefix}RotaryEmbedding")(config)(x, positions, *kinds)
        return module(x, position_embeddings=waves, attention_mask=mask)[0]


def mask_of(config, layer, x, real):
    """The mask that a model makes for one of its layers, hiding what is not real."""
    kinds, local = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    kind = kinds[layer] if kinds else "sliding_attention" if local else "full_attention"
    if config.model_type == "t5" and not config.is_decoder:
        kind = "bidirectional"
    make = {
        "full_attention": masking_utils.create_causal_mask,
        "sliding_attention": masking_utils.create_sliding_window_causal_mask,
        "chunked_attention": masking_utils.create_chunked_causal_mask,
        "bidirectional": masking_utils.create_bidirectional_mask,
    }[kind]
    return make(config=config, inputs_embeds=x, attention_mask=real, **{CACHE: None})


MODELS = {
    "gpt_oss": Model(
        "gpt_oss",
        "GptOss",
        {
            "layer_types": SLIDING * 2,
            "sliding_window": WINDOW,
            "rope_parameters": YARN | {"truncate": False},
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
        whole="GptOssForCausalLM",
    ),
    "gemma2": Model(
        "gemma2",
        "Gemma2",
        {
            "layer_types": SLIDING * 2,
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 1.5,
            "query_pre_attn_scalar": 24,  # differs from head_dim, as in the 27B model
        },
        whole="Gemma2ForCausalLM",
    ),
    "gemma3": Model(
        "gemma3",
        "Gemma3",
        {
            "layer_types": SLIDING * 2,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 24,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e2},
                "full_attention": {"rope_type": "linear", "rope_theta": 1e3, "factor": 8.0},
            },
        },
        whole="Gemma3ForCausalLM",
    ),
    "mistral": Model("mistral", "Mistral", {"sliding_window": WINDOW}, layers=(0,), whole="MistralForCausalLM"),
    "deepseek_v3": Model(
        "deepseek_v3",
        "DeepseekV3",
        {
            "num_key_value_heads": HEADS,
            "head_dim": 8,  # qk_rope_head_dim
            "q_lora_rank": 24,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 20,
            "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
            "first_k_dense_replace": 4,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "num_experts_per_tok": 2,
        },
        layers=(0,),
        whole="DeepseekV3ForCausalLM",
    ),
    "llama4": Model(
        "llama4",
        "Llama4Text",
        {
            "intermediate_size_mlp": HIDDEN,
            "moe_layers": [],
            "no_rope_layers": [1, 0] * 2,
            "attention_chunk_size": CHUNK,
            "floor_scale": 4,
            "attn_scale": 0.5,
        },
        whole="Llama4ForCausalLM",
    ),
    "t5": Model("t5", "T5", T5, layers=(0,)),
    "t5 decoder": Model("t5", "T5", T5 | {"is_decoder": True}, layers=(0,)),
}
