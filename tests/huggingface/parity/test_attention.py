"""`pe.attention` as the attention function of whole models of transformers, with the options that each layer tells it."""

import numpy as np
import pytest
import torch
from attention import CACHE
from embeddings import config_of
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.masking_utils import AttentionMaskInterface

import posenc_jax as pe
from oracles import recorded

CHUNK, LENGTH = 6, 24
WINDOW = {"sliding_window": 5}
# Small models that are recorded, with changes to their configs.
RECORDED = recorded.rotations()["models"]
MODELS = {
    "gpt-oss": WINDOW,
    "Gemma 3": WINDOW | {"attn_logit_softcapping": 1.5},
    "Mistral": WINDOW,
    "DeepSeek-V3": {},
    "Llama 4 (text)": {"attention_chunk_size": CHUNK},
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
    config = config_of(RECORDED[name]["config"] | MODELS[name])
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
    parts = np.split(np.random.default_rng(2).integers(0, 32, (2, LENGTH)), cuts, axis=1)
    got, want = (logits(name, implementation, parts) for implementation in ("posenc_jax", "eager"))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * want.std())
