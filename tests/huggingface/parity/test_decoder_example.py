"""`examples/decoder.py` and `checkpoint.py` beside transformers: small random models, saved by one and read by the other.

Logits in one piece, in chunks and steps with a cache, padded on the left, packed; 64 greedy tokens; and all of it again
a million positions on, beside transformers' own model in float64 with the waves of float64 phases.
"""

import contextlib
import functools
import importlib
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import transformers
from attention_modules import CACHE
from flax import nnx

import posenc_jax as pe
from helpers.quick import quick

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
checkpoint, decoder, generate = map(importlib.import_module, ("checkpoint", "decoder", "generate"))

TOLERANCE, FAR, STEPS = 1e-5, 1_000_000, 64
BATCH, LENGTH, CHUNK, CUT, WINDOW, VOCABULARY, HIDDEN, HEAD_DIM = 2, 40, 16, 32, 8, 96, 64, 16
COMMON = {
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "initializer_range": 0.75 * HIDDEN**-0.5,  # scores and logits of order 1
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "mscale": 1.0,
    "mscale_all_dim": 0.8,
}
LATENT = {"kv_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10}
LATENT |= {"num_hidden_layers": 3, "first_k_dense_replace": 3, "rope_parameters": YARN, "num_key_value_heads": 4}
CASES = {
    "llama": ("Llama", {"num_hidden_layers": 3, "rope_parameters": LLAMA3}),
    "llama, biases": ("Llama", {"num_hidden_layers": 2, "attention_bias": True, "mlp_bias": True, "head_dim": 24}),
    "mistral": ("Mistral", {"num_hidden_layers": 3, "sliding_window": WINDOW}),
    "qwen3": ("Qwen3", {"num_hidden_layers": 3, "head_dim": 24, "tie_word_embeddings": True}),
    "qwen3, windows": (
        "Qwen3",
        {"num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
    ),
    "gemma3": (
        "Gemma3",
        {
            "num_hidden_layers": 14,  # two periods and two more
            "head_dim": HEAD_DIM,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 24,
            "final_logit_softcapping": 5.0,
        },
    ),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 6}),
    "cohere2": ("Cohere2", {"num_hidden_layers": 9, "sliding_window": WINDOW, "logit_scale": 0.75}),
    "olmo3": ("Olmo3", {"num_hidden_layers": 8, "sliding_window": WINDOW}),
    "gpt_neox": ("GPTNeoX", {"num_hidden_layers": 3, "num_key_value_heads": None}),
    "gpt_neox, in turn": (
        "GPTNeoX",
        {"num_hidden_layers": 2, "num_key_value_heads": None, "use_parallel_residual": False},
    ),
    "deepseek_v3": ("DeepseekV3", LATENT | {"q_lora_rank": 24}),
    "deepseek_v2": ("DeepseekV2", LATENT | {"q_lora_rank": None}),
}
TOKENS = np.random.default_rng(0).integers(3, VOCABULARY, (BATCH, LENGTH))


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """For torch, whose threads take longer to meet than such small products take."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """Name, transformers' model, and the example's, read from the folder that transformers wrote."""
    name, settings = CASES[request.param]
    cls = getattr(transformers, f"{name}ForCausalLM")
    torch.manual_seed(0)
    config = cls.config_class(**COMMON | settings)
    model = cls._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if "norm" in path or path.endswith("bias"):  # initialised alike, so that swapped ones would not show
                weight.add_(0.25 * torch.randn_like(weight))
    folder = tmp_path_factory.mktemp("folder")
    shards = {"max_shard_size": "40KB"} if request.param in ("llama", "gemma3") else {}
    model.save_pretrained(folder, **shards)
    assert len(list(folder.glob("*.safetensors"))) > 3 or not shards
    return request.param, model, checkpoint.load(folder)


def at(start, length=LENGTH):
    return np.tile(start + np.arange(length, dtype=np.int32), (BATCH, 1))


# Both models by one call: tokens (batch, length) in parts that end at `cuts`


@functools.cache
def compiled(model):
    graph, state = nnx.split(model)

    def forward(state, *inputs):
        model = nnx.merge(graph, state)
        hidden, cache = model(*inputs)
        return model.logits(hidden), cache

    return functools.partial(quick(forward), state)


def ours(model, tokens, positions, cuts=(), segments=None):
    forward = compiled(model)
    if not cuts:
        segments = np.zeros_like(positions) if segments is None else segments
        return np.asarray(forward(tokens, positions, None, segments)[0])
    cache, parts = model.new_cache(len(tokens), tokens.shape[1], CHUNK), []
    for part, p in zip(np.split(tokens, cuts, 1), np.split(positions, cuts, 1), strict=True):
        logits, cache = forward(part, p, cache)
        parts.append(logits)
    return np.concatenate(parts, 1)


@torch.no_grad()
def theirs(model, tokens, positions, mask=None):
    mask = np.ones_like(tokens) if mask is None else mask
    inputs = {"attention_mask": mask, "position_ids": positions.astype(np.int64), "input_ids": tokens}
    return model(**{k: torch.from_numpy(x) for k, x in inputs.items()}, use_cache=False).logits.numpy()


@contextlib.contextmanager
def in_float64(model, plan):
    """The same model in float64, with the waves of float64 phases: 10⁶ turns to 10⁻¹⁰ of one."""
    model.double()

    def forward(x, position_ids, layer_type=None):
        types = getattr(model.config, "layer_types", None) or [None] * len(plan.layers)
        chosen = (z.frequencies for z, kind in zip(plan.layers, types, strict=True) if layer_type in (None, kind))
        f = next(f for f in chosen if f.dim)
        phases = position_ids[..., None].double() * torch.from_numpy(np.array(f.angular))
        cos, sin = (wave(phases) * f.attention_factor for wave in (torch.cos, torch.sin))
        if model.config.model_type == "deepseek_v2":
            return torch.complex(cos, sin)
        if model.config.model_type == "cohere2":  # pairs of neighbours
            return cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
        return torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)

    module = next(m for m in model.modules() if type(m).__name__.endswith("RotaryEmbedding"))
    keep_double = mock.patch.object(torch.Tensor, "float", torch.Tensor.double)
    with mock.patch.object(module, "forward", forward), keep_double, mock.patch.object(torch, "float32", torch.float64):
        yield model
    model.float()


def difference(x, y):
    return float(np.abs(np.asarray(x, np.float64) - y).max())


@pytest.mark.parametrize("start", [0, FAR])
def test_logits(case, start, differences):
    name, model, mine = case
    whole, row = theirs(model, TOKENS, at(start)), {}
    assert 0.3 < whole.std() < 3
    with in_float64(model, mine.settings.plan) as wide:
        exact = theirs(wide, TOKENS, at(start))
    want = whole if start == 0 else exact
    row["whole"] = difference(ours(mine, TOKENS, at(start)), want)
    row["chunks and steps"] = difference(ours(mine, TOKENS, at(start), (CHUNK, *range(CUT, LENGTH))), want)
    pad = np.int64([0, 11])  # of each row, on the left
    mask = np.arange(LENGTH) >= pad[:, None]
    positions = np.where(mask, pe.positions_from_mask(mask) + np.int32(start), decoder.EMPTY).astype(np.int32)
    with in_float64(model, mine.settings.plan) if start else contextlib.nullcontext(model) as other:
        padded = theirs(other, TOKENS, np.where(mask, positions, 0), mask.astype(np.int64))
        alone = [theirs(other, TOKENS[:, part], at(start)[:, : len(TOKENS[0, part])]) for part in PACK]
    got = ours(mine, TOKENS, positions, (CHUNK, *range(CUT, LENGTH)))
    row["padded"] = difference(got[mask], padded[mask])
    ids = (
        np.repeat(np.arange(len(PACK)), [len(TOKENS[0, part]) for part in PACK]).astype(np.int32)[None].repeat(BATCH, 0)
    )
    packed = ours(mine, TOKENS, np.asarray(pe.positions_from_segments(ids)) + np.int32(start), segments=ids)
    row["packed"] = difference(packed, np.concatenate(alone, 1))
    row |= {"from float64": difference(ours(mine, TOKENS, at(start)), exact), "transformers": difference(whole, exact)}
    differences(f"example {name} at {start:,}", row)
    assert max(row["whole"], row["chunks and steps"], row["padded"], row["packed"]) <= TOLERANCE


PACK = slice(0, 17), slice(17, 22), slice(22, LENGTH)


@torch.no_grad()
def their_tokens(model, tokens, start):
    """Greedy, with transformers' cache; and the least lead of a token over the next."""
    cache, steps, lead = None, [], np.inf
    ids, positions = torch.from_numpy(tokens), torch.from_numpy(at(start, tokens.shape[1]).astype(np.int64))
    for _ in range(STEPS):
        mask = torch.ones(BATCH, tokens.shape[1] + len(steps), dtype=torch.int64)
        settings = {"attention_mask": mask, CACHE: cache, "use_cache": True}
        output = model(input_ids=ids, position_ids=positions, **settings)
        cache, top = getattr(output, CACHE), output.logits[:, -1].topk(2)
        lead = min(lead, float((top.values[:, 0] - top.values[:, 1]).min()))
        ids, positions = top.indices[:, :1], positions[:, -1:] + 1
        steps.append(ids[:, 0].numpy())
    return np.array(steps), lead


@pytest.mark.parametrize("start", [0, FAR])
def test_greedy_tokens(case, start, differences):
    name, model, mine = case
    prompts = TOKENS[:, :24]
    began = generate.prefill(mine, prompts.tolist(), 24 + STEPS, chunk=CHUNK, start=start)
    got = np.array(list(generate.continued(mine, began, STEPS)))
    own, _ = their_tokens(model, prompts, start)
    with in_float64(model, mine.settings.plan) if start else contextlib.nullcontext(model) as other:
        want, lead = their_tokens(other, prompts, start)
    same = lambda x: f"{(x == want).all(1).cumprod().sum()} of {STEPS}"  # noqa: E731
    differences(f"example {name} greedy at {start:,}", {"equal": same(got), "transformers'": same(own), "lead": lead})
    np.testing.assert_array_equal(got, want)
