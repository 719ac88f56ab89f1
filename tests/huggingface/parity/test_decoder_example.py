"""`examples/decoder.py` and `checkpoint.py` beside transformers: small random models, saved by one and read by the other.

Logits in one piece, in chunks and steps with a cache, padded on the left, and packed; and the same logits again a million
positions on, since they depend on offsets alone.
"""

import functools
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from flax import nnx
from transformers import AutoConfig, AutoModelForCausalLM

import posenc_jax as pe
from helpers.quick import quick

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
checkpoint, decoder = map(importlib.import_module, ("checkpoint", "decoder"))

BATCH, LENGTH, CHUNK, CUT, VOCABULARY, HIDDEN = 2, 40, 16, 32, 96, 64
SIZES = {"hidden_size": HIDDEN, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"vocab_size": VOCABULARY, "max_position_embeddings": 512, "num_hidden_layers": 3}
SIZES |= {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}
SIZES |= {"initializer_range": 0.75 * HIDDEN**-0.5}  # scores and logits of order 1
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 64}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
LATENT = {"kv_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10, "num_key_value_heads": 4}
LATENT |= {"first_k_dense_replace": 3, "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.8}}
WINDOW = {"sliding_window": 8}
CASES = {
    "llama": {"rope_parameters": LLAMA3},
    "llama, biases": {"attention_bias": True, "mlp_bias": True, "head_dim": 24},
    "mistral": WINDOW,
    "qwen3": {"head_dim": 24, "tie_word_embeddings": True},
    "qwen3, windows": WINDOW | {"num_hidden_layers": 4, "use_sliding_window": True, "max_window_layers": 2},
    "gemma3_text": WINDOW
    | {"num_hidden_layers": 14, "head_dim": 16}  # two periods and two more
    | {"query_pre_attn_scalar": 24, "final_logit_softcapping": 5.0},
    "smollm3": {"num_hidden_layers": 6},
    "cohere2": WINDOW | {"num_hidden_layers": 9, "logit_scale": 0.75},
    "olmo3": WINDOW | {"num_hidden_layers": 8},
    "gpt_neox": {"num_key_value_heads": None},
    "gpt_neox, in turn": {"num_key_value_heads": None, "use_parallel_residual": False},
    "deepseek_v3": LATENT | {"q_lora_rank": 24},
    "deepseek_v2": LATENT | {"q_lora_rank": None},
}
TOKENS = np.random.default_rng(0).integers(3, VOCABULARY, (BATCH, LENGTH))
PACK = slice(0, 17), slice(17, 22), slice(22, LENGTH)


@pytest.fixture(scope="module", params=CASES)
def models(request, tmp_path_factory):
    """transformers' model, and the example's, read from the folder that transformers wrote."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(request.param.partition(",")[0], **SIZES | CASES[request.param])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if "norm" in path or path.endswith("bias"):  # initialised alike, so that swapped ones would not show
                weight.add_(0.25 * torch.randn_like(weight))
    folder = tmp_path_factory.mktemp("folder")
    model.save_pretrained(folder, max_shard_size="40KB" if request.param in ("llama", "gemma3_text") else "1GB")
    return model, checkpoint.load(folder)


def at(start, length=LENGTH):
    return np.tile(start + np.arange(length, dtype=np.int32), (BATCH, 1))


def ours(model, positions, cuts=(), segments=None):
    """Logits of tokens in parts that end at `cuts`, with a cache, or in one."""
    graph, state = nnx.split(model)

    @quick
    def forward(state, *inputs):
        model = nnx.merge(graph, state)
        hidden, cache = model(*inputs)
        return model.logits(hidden), cache

    if not cuts:
        segments = np.zeros_like(positions) if segments is None else segments
        return np.asarray(forward(state, TOKENS, positions, None, segments)[0])
    cache, parts = model.new_cache(BATCH, LENGTH, CHUNK), []
    for part, p in zip(np.split(TOKENS, cuts, 1), np.split(positions, cuts, 1), strict=True):
        logits, cache = forward(state, part, p, cache)
        parts.append(logits)
    return np.concatenate(parts, 1)


@torch.no_grad()
def theirs(model, positions, mask=None, part=slice(None)):
    tokens = TOKENS[:, part]
    inputs = {"attention_mask": np.ones_like(tokens) if mask is None else mask, "input_ids": tokens}
    inputs |= {"position_ids": positions[:, : tokens.shape[1]].astype(np.int64)}
    return model(**{name: torch.from_numpy(x) for name, x in inputs.items()}, use_cache=False).logits.numpy()


@pytest.mark.parametrize("start", [0, 1_000_000])
def test_logits(models, start):
    model, mine = models
    mask = np.arange(LENGTH) >= np.array([[0], [11]])  # of the second row, the left is padding
    positions = pe.positions_from_mask(mask)
    whole, padded = theirs(model, at(0)), theirs(model, np.where(mask, positions, 0), mask.astype(np.int64))
    alone = np.concatenate([theirs(model, at(0), part=part) for part in PACK], 1)
    assert 0.3 < whole.std() < 3
    close, far = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-5), np.int32(start)
    close(ours(mine, at(far)), whole)
    steps = CHUNK, *range(CUT, LENGTH)
    close(ours(mine, at(far), steps), whole)
    close(ours(mine, np.where(mask, positions + far, decoder.EMPTY).astype(np.int32), steps)[mask], padded[mask])
    ids = np.zeros((BATCH, LENGTH), np.int32)
    for i, part in enumerate(PACK):
        ids[:, part] = i
    close(ours(mine, np.asarray(pe.positions_from_segments(ids)) + far, segments=ids), alone)
