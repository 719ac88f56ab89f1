"""Models of `examples/` compute what those of transformers compute, with small random weights that transformers saved.

- `decoder.py` and `checkpoint.py`: logits of whole sequences, of padded ones by a cache, and of packed ones.
- `t5.py`: the features of an encoder with padding, for both kinds of perceptrons.
"""

import importlib
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
import transformers
from flax import nnx

import posenc_jax as pe

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
checkpoint, decoder, t5 = map(importlib.import_module, ("checkpoint", "decoder", "t5"))

# With a cache, tokens come as CHUNK, then up to CUT, then one by one.
BATCH, LENGTH, CHUNK, CUT, VOCABULARY = 2, 40, 16, 32, 96
SIZES = dict(
    hidden_size=64,
    intermediate_size=96,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_hidden_layers=3,
    vocab_size=VOCABULARY,
    max_position_embeddings=512,
    pad_token_id=None,
    bos_token_id=1,
    eos_token_id=2,
    initializer_range=0.75 / 8,  # scores and logits of order 1
)
YARN = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=128)
YARN |= dict(mscale=1.0, mscale_all_dim=0.8)
LATENT = dict(kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10, num_key_value_heads=4)
LATENT |= dict(first_k_dense_replace=3, rope_parameters=YARN)
CASES = {
    "llama": dict(attention_bias=True, mlp_bias=True, head_dim=24),
    "mistral": dict(sliding_window=8),
    "qwen3": dict(tie_word_embeddings=True, sliding_window=8, use_sliding_window=True, max_window_layers=2),
    # two periods of six layers and two layers more
    "gemma3_text": dict(
        sliding_window=8, num_hidden_layers=14, head_dim=16, query_pre_attn_scalar=24, final_logit_softcapping=5.0
    ),
    "smollm3": dict(num_hidden_layers=6),
    "cohere2": dict(sliding_window=8, num_hidden_layers=9, logit_scale=0.75),
    "olmo3": dict(sliding_window=8, num_hidden_layers=8),
    "gpt_neox": dict(num_key_value_heads=None),
    "gpt_neox, in turn": dict(num_key_value_heads=None, use_parallel_residual=False),
    "deepseek_v3": LATENT | dict(q_lora_rank=24),
    "deepseek_v2": LATENT | dict(q_lora_rank=None),
}
TOKENS = np.random.default_rng(0).integers(3, VOCABULARY, (BATCH, LENGTH))
MASK = np.arange(LENGTH) >= np.array([[0], [11]])  # the second row begins with padding
FAR = np.int32(1_000_000)  # the cache starts here: logits depend on offsets alone
PACK = slice(0, 17), slice(17, 22), slice(22, LENGTH)


@pytest.fixture(scope="module", params=CASES)
def models(request, tmp_path_factory):
    """transformers' model, and the example's, read from the folder that transformers wrote."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(request.param.partition(",")[0], **SIZES | CASES[request.param])
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if "norm" in path or path.endswith("bias"):  # initialised alike, so that swapped ones would not show
                weight.add_(0.25 * torch.randn_like(weight))
    folder = tmp_path_factory.mktemp("folder")
    model.save_pretrained(folder, max_shard_size="40KB" if request.param in ("llama", "gemma3_text") else "1GB")
    return model, checkpoint.load(folder)


@torch.no_grad()
def logits_of_transformers(model, tokens, mask, positions):
    arrays = {"input_ids": tokens, "attention_mask": mask, "position_ids": positions}
    inputs = {name: torch.from_numpy(np.int64(x)) for name, x in arrays.items()}
    return model(**inputs, use_cache=False).logits.numpy()


def test_logits_of_a_decoder_are_those_of_transformers(models):
    """Whole sequences; then sequences padded on the left, by a cache; then three texts in one packed sequence."""
    model, (graph, state) = models[0], nnx.split(models[1])

    @jax.jit
    def forward(state, *inputs):
        ours = nnx.merge(graph, state)
        hidden, cache = ours(*inputs)
        return ours.logits(hidden), cache

    def assert_close(got, want):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)

    at = np.tile(np.arange(LENGTH, dtype=np.int32), (BATCH, 1))
    whole = logits_of_transformers(model, TOKENS, 0 * at + 1, at)
    assert 0.3 < whole.std() < 3
    assert_close(forward(state, TOKENS, at, None, 0 * at)[0], whole)

    positions = np.asarray(pe.positions_from_mask(MASK))
    padded = logits_of_transformers(model, TOKENS, MASK, np.where(MASK, positions, 0))
    steps = [CHUNK, *range(CUT, LENGTH)]
    placed = np.where(MASK, FAR + positions, decoder.EMPTY).astype(np.int32)
    cache, parts = models[1].new_cache(BATCH, LENGTH, CHUNK), []
    for tokens, p in zip(np.split(TOKENS, steps, 1), np.split(placed, steps, 1), strict=True):
        logits, cache = forward(state, tokens, p, cache)
        parts.append(logits)
    assert_close(np.concatenate(parts, 1)[MASK], padded[MASK])

    ids = np.zeros_like(at)
    for i, part in enumerate(PACK):
        ids[:, part] = i
    alone = [
        logits_of_transformers(model, TOKENS[:, part], 0 * at[:, part] + 1, at[:, part] - part.start) for part in PACK
    ]
    packed = forward(state, TOKENS, FAR + np.asarray(pe.positions_from_segments(ids)), None, ids)[0]
    assert_close(packed, np.concatenate(alone, 1))


@pytest.mark.parametrize("perceptron", ["relu", "gated-gelu"])
def test_features_of_t5_are_those_of_transformers(perceptron):
    sizes = dict(vocab_size=50, d_model=24, d_kv=8, d_ff=40, num_layers=3, num_heads=2, feed_forward_proj=perceptron)
    buckets = dict(relative_attention_num_buckets=16, relative_attention_max_distance=40)
    torch.manual_seed(0)
    model = transformers.T5EncoderModel(transformers.T5Config(**sizes, **buckets)).eval()
    tokens, mask = torch.randint(50, (2, 70)), torch.ones(2, 70, dtype=torch.long)
    mask[0, :7] = mask[1, 50:] = 0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
        want = model(input_ids=tokens, attention_mask=mask).last_hidden_state.numpy()
    weights, real = {name: x.numpy() for name, x in model.state_dict().items()}, mask.numpy() == 1
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        got = np.asarray(t5.load(weights, 2, 40)(tokens.numpy(), mask.numpy()))
    np.testing.assert_allclose(got[real], want[real], rtol=0, atol=1e-5)
