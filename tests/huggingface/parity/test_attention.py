"""`pe.attention` as the attention function of whole models of transformers, with the options that each layer tells it."""

import numpy as np
import pytest
import torch
from attention import CACHE
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import AttentionMaskInterface

import posenc_jax as pe

WINDOW, CHUNK, LENGTH = 5, 6, 24
SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 64}
SIZES |= {"num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "initializer_range": 32**-0.5}
SIZES |= {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}
YARN = {"rope_type": "yarn", "rope_theta": 1e3, "factor": 8.0, "original_max_position_embeddings": 16}
KINDS = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": WINDOW}
LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 20}
MODELS = {
    "gpt_oss": KINDS | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gemma2": KINDS | {"attn_logit_softcapping": 1.5, "query_pre_attn_scalar": 24},
    "gemma3_text": KINDS | {"query_pre_attn_scalar": 24},  # differs from head_dim, as in the 27B model
    "mistral": {"sliding_window": WINDOW},
    "deepseek_v3": LATENT
    | {"num_key_value_heads": 4, "head_dim": 8, "first_k_dense_replace": 4}
    | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    "llama4_text": {"intermediate_size_mlp": 32, "moe_layers": [], "no_rope_layers": [1, 0] * 2}
    | {"attention_chunk_size": CHUNK, "floor_scale": 4, "attn_scale": 0.5},
}


class Attention:
    """Tokens end at `end`: the cache of a sliding layer keeps only its last keys."""

    end = 0

    def __call__(self, module, query, key, value, mask, scaling, sliding_window=None, softcap=None, s_aux=None, **_):
        assert mask is None  # the options say all
        q, k, v = (x.transpose(1, 2).numpy() for x in (query, key, value))
        i, j = (np.arange(self.end - x.shape[1], self.end, dtype=np.int32) for x in (q, k))
        options = {"window": (None if sliding_window is None else sliding_window - 1, 0), "logits_soft_cap": softcap}
        options |= {"scale": scaling, "sinks": None if s_aux is None else s_aux.numpy()}
        if module.config.model_type == "llama4_text" and module.use_rope:
            options |= {"query_segments": i // CHUNK, "key_segments": j // CHUNK}
        y = pe.attention(q, k, v, query_positions=i, key_positions=j, block_size=8, **options)
        return torch.from_numpy(np.array(y)), None


ATTENTION = Attention()
AttentionInterface.register("posenc_jax", ATTENTION)
AttentionMaskInterface.register("posenc_jax", lambda *_, **__: None)


@torch.no_grad()
def logits(name, implementation, parts):
    """Logits of a model from a fixed seed, called once for each part of the tokens, with its cache."""
    torch.manual_seed(3)
    config = AutoConfig.for_model(name, **SIZES | {"rope_parameters": YARN} | MODELS[name])
    model, cache, found = AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval(), None, []
    for key, weight in model.named_parameters():
        if weight.ndim == 1 and "norm" not in key:  # biases, initialised to zero, and sinks
            weight.normal_()
        if key.endswith(("q_proj.weight", "q_b_proj.weight")):
            weight.mul_(2)
    ATTENTION.end = 0
    for part in parts:
        ATTENTION.end += part.shape[1]
        output = model(torch.from_numpy(part), **{CACHE: cache}, use_cache=True)
        cache = getattr(output, CACHE)
        found.append(output.logits.numpy())
    return np.concatenate(found, axis=1)


@pytest.mark.parametrize("cuts", [[], [*range(LENGTH // 2, LENGTH, 4), LENGTH - 1]], ids=["prefill", "decode"])
@pytest.mark.parametrize("name", MODELS)
def test_logits(name, cuts):
    parts = np.split(np.random.default_rng(2).integers(0, 64, (2, LENGTH)), cuts, axis=1)
    got, want = (logits(name, implementation, parts) for implementation in ("posenc_jax", "eager"))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * want.std())
