"""Configurations of every rope_type, and the frequencies and factors that transformers makes of them."""

import importlib
import itertools

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

_LLAMA = ("llama", "Llama")
_NEOX = ("gpt_neox", "GPTNeoX")
_HUNYUAN = ("hunyuan_v1_dense", "HunYuanDenseV1")
_KEPT = (
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "head_dim",
    "layer_types",
    "max_position_embeddings",
    "original_max_position_embeddings",
    "rope_parameters",
)


def _yarn(factor, original, **rest):
    return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original, **rest}


def _llama3(factor, low, high, original):
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _longrope(pairs, original, **rest):
    return {
        "rope_type": "longrope",
        "short_factor": [round(1 + 0.02 * i, 2) for i in range(pairs)],
        "long_factor": [round(1 + 0.05 * i * i, 2) for i in range(pairs)],
        "original_max_position_embeddings": original,
        **rest,
    }


def cases():
    """(family, head_dim, base, max_position_embeddings, parameters, length) of every case."""
    for head_dim, base in itertools.product((16, 64, 80, 128), (10_000.0, 500_000.0, 1_000_000.0)):
        yield _LLAMA, head_dim, base, 4096, {"rope_type": "default"}, None
    for head_dim, share in ((64, 0.25), (80, 0.25), (96, 0.5), (80, 0.3)):
        yield _NEOX, head_dim, 10_000.0, 2048, {"rope_type": "default", "partial_rotary_factor": share}, None
    for head_dim, base, factor in ((64, 10_000.0, 2.0), (128, 1_000_000.0, 8.0), (80, 500_000.0, 2.5)):
        yield _LLAMA, head_dim, base, 4096, {"rope_type": "linear", "factor": factor}, None
    yield _NEOX, 80, 10_000.0, 2048, {"rope_type": "linear", "factor": 4.0, "partial_rotary_factor": 0.25}, None
    for head_dim, base, factor in ((64, 10_000.0, 2.0), (128, 500_000.0, 4.0), (80, 10_000.0, 1.5)):
        for length in (17, 2048, 2049, 3000, 16384):
            yield _LLAMA, head_dim, base, 2048, {"rope_type": "dynamic", "factor": factor}, length
    rope = {"rope_type": "dynamic", "factor": 2.0, "partial_rotary_factor": 0.5}
    yield _NEOX, 64, 10_000.0, 2048, rope, 6000
    for head_dim, alpha in ((64, 50.0), (128, 1000.0)):
        yield _HUNYUAN, head_dim, 10_000.0, 32768, {"rope_type": "dynamic", "alpha": alpha, "factor": 1.0}, 4096
    for truncate in (True, False):
        yield _LLAMA, 128, 1_000_000.0, 131072, _yarn(4.0, 32768, truncate=truncate), None
        yield _LLAMA, 64, 150_000.0, 131072, _yarn(32.0, 4096, truncate=truncate, beta_fast=32, beta_slow=1), None
        yield _LLAMA, 80, 10_000.0, 8192, _yarn(2.0, 4096, truncate=truncate, beta_fast=64.0, beta_slow=2.0), None
        yield _LLAMA, 16, 500_000.0, 65536, _yarn(8.0, 8192, truncate=truncate), None
    yield _LLAMA, 64, 10_000.0, 163840, _yarn(40.0, 4096, mscale=1.0, mscale_all_dim=1.0), None
    yield _LLAMA, 64, 10_000.0, 163840, _yarn(40.0, 4096, mscale=0.707, mscale_all_dim=1.0), None
    yield _LLAMA, 64, 10_000.0, 163840, _yarn(40.0, 4096, mscale=1.0), None
    yield _LLAMA, 64, 10_000.0, 163840, _yarn(40.0, 4096, mscale=1.0, mscale_all_dim=0), None
    yield _LLAMA, 128, 500_000.0, 65536, _yarn(8.0, 8192, attention_factor=1.2079441541679836), None
    yield _LLAMA, 128, 500_000.0, 8192, _yarn(1.0, 8192), None
    yield _LLAMA, 64, 10_000.0, 65536, _yarn(None, 4096), None
    yield _LLAMA, 16, 10_000.0, 64, _yarn(16.0, 4), None  # both bounds at the first pair
    yield _LLAMA, 16, 50.0, 65536, _yarn(16.0, 4096), None  # the upper bound beyond the last pair
    yield _NEOX, 96, 10_000.0, 8192, _yarn(4.0, 2048, partial_rotary_factor=0.5), None
    for length in (4096, 4097):
        yield _LLAMA, 96, 10_000.0, 131072, _longrope(48, 4096), length
        yield _LLAMA, 64, 500_000.0, 131072, _longrope(32, 8192, factor=16.0), 2 * length
        yield _LLAMA, 64, 10_000.0, 131072, _longrope(32, 4096, attention_factor=1.25), length
        yield _LLAMA, 64, 10_000.0, 4096, _longrope(32, 4096), length
        yield _NEOX, 128, 10_000.0, 131072, _longrope(48, 4096, partial_rotary_factor=0.75), length
    yield _LLAMA, 128, 500_000.0, 131072, _llama3(8.0, 1.0, 4.0, 8192), None
    yield _LLAMA, 64, 500_000.0, 131072, _llama3(32.0, 1.0, 4.0, 8192), None
    yield _LLAMA, 80, 10_000.0, 16384, _llama3(4.0, 2.0, 8.0, 1024), None
    yield _LLAMA, 16, 500_000.0, 131072, _llama3(16.0, 1.0, 1.5, 8192), None
    yield _NEOX, 128, 500_000.0, 131072, _llama3(8.0, 1.0, 4.0, 8192) | {"partial_rotary_factor": 0.5}, None
    for head_dim, share, factor in ((128, 0.25, 1.0), (64, 0.25, 2.0), (80, 0.3, 8.0), (64, 1.0, 1.0)):
        rope = {"rope_type": "proportional", "partial_rotary_factor": share, "factor": factor}
        yield _LLAMA, head_dim, 1_000_000.0, 4096, rope, None


def name(case):
    (_, family), head_dim, base, limit, rope, length = case
    rest = [f"{k}={x:g}" for k, x in rope.items() if isinstance(x, (int, float))]
    return " ".join([family, rope["rope_type"], f"{head_dim} {base:g} {limit} {length}", *rest])


def describe(case):
    """All that is recorded of a case."""
    (module, family), head_dim, base, limit, rope, length = case
    config_class = getattr(importlib.import_module(f"transformers.models.{module}"), f"{family}Config")
    heads = {"hidden_size": 2 * head_dim, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = config_class(
        **heads,
        **({} if module == "gpt_neox" else {"head_dim": head_dim}),
        max_position_embeddings=limit,
        rope_parameters={"rope_theta": base} | rope,
    )
    modeling = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    rotary = getattr(modeling, f"{family}RotaryEmbedding")
    if rope["rope_type"] == "default":
        frequencies, factor = rotary.compute_default_rope_parameters(config)
    elif "alpha" in rope:
        embedding = rotary(config)
        frequencies, factor = embedding.inv_freq, embedding.attention_scaling
    else:
        frequencies, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, seq_len=length)
    assert frequencies.dtype == torch.float32
    written = config.to_dict()
    return {
        "name": name(case),
        "config": {key: written[key] for key in _KEPT if key in written},
        "head_dim": head_dim,
        "length": length,
        "attention_factor": float(factor),
        "frequencies": [float(str(x)) for x in frequencies.numpy()],
    }
