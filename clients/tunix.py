"""Tunix: RoPE of its six models."""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
from tunix.models.gemma import model as gemma
from tunix.models.gemma3 import model as gemma3
from tunix.models.gemma4 import model as gemma4
from tunix.models.llama3 import model as llama3
from tunix.models.qwen2 import model as qwen2
from tunix.models.qwen3 import model as qwen3

from clients.harness import Far, Replaced, Timed, Trial, causal, parameters, tokens

# --8<-- [start:copy]
import posenc_jax as pe


def apply_rope(inputs, positions, head_dim, rope_theta=1_000_000):  # Llama 3 and Qwen 3
    return pe.rotary(inputs, positions, pe.geometric(head_dim, rope_theta), head_axis=-2)


def gemma_rope(inputs, positions, head_dim, max_wavelength=10_000):
    return pe.rotary(inputs, positions, pe.geometric(head_dim, max_wavelength), head_axis=-2)


def gemma3_rope(inputs, positions, *, head_dim, base_frequency, scale_factor=1.0):
    f = pe.linear_scaling(pe.geometric(head_dim, base_frequency), scale_factor)
    return pe.rotary(inputs, positions, f, head_axis=-2)


def gemma4_rope(inputs, positions, *, base_frequency, scale_factor=1.0, rope_proportion=1.0):
    f = pe.proportional(inputs.shape[-1], base_frequency, rope_proportion, scale_factor)
    return pe.rotary(inputs, positions, f, head_axis=-2)


def generate_pos_embeddings(positions, features, rope_theta):  # Qwen 2
    return pe.cos_sin(positions, pe.geometric(features, rope_theta))[::-1]


def apply_rotary_embedding(x, sin, cos):
    return pe.rotary(x, cos_sin=pe.CosSin(cos, sin, columns="pair"), head_axis=-2)


# --8<-- [end:copy]

REPLACED = [
    Replaced(llama3, "apply_rope", apply_rope),
    Replaced(qwen3, "apply_rope", apply_rope),
    Replaced(gemma, "apply_rope", gemma_rope),
    Replaced(gemma3, "apply_rope", gemma3_rope),
    Replaced(gemma4, "apply_rope", gemma4_rope),
    Replaced(qwen2, "_generate_pos_embeddings", generate_pos_embeddings, generate_pos_embeddings),
    Replaced(qwen2, "apply_rotary_embedding", apply_rotary_embedding),
]
FAR = Far(lambda x, at: llama3.apply_rope(x, at, 64, 500_000))
PACKAGE = "google-tunix"
TESTS = ["tests/models"]  # of a checkout

SIZES = {"num_layers": 2, "embed_dim": 64, "hidden_dim": 96, "num_heads": 4, "head_dim": 32, "num_kv_heads": 2}


def trials() -> Iterator[tuple[Trial, Timed | None]]:
    """Two layers of each model."""
    from flax import nnx

    plain = {"vocab_size": 96, "rope_theta": 10_000, "norm_eps": 1e-6}
    of_gemma = {"num_embed": 96}
    both = gemma.AttentionType.LOCAL_SLIDING, gemma.AttentionType.GLOBAL
    models = {
        "Llama 3": (llama3.Llama3, llama3.ModelConfig(**SIZES, **plain)),
        "Qwen 2": (qwen2.Qwen2, qwen2.ModelConfig(**SIZES, **plain)),
        "Qwen 3": (qwen3.Qwen3, qwen3.ModelConfig(**SIZES, **plain)),
        "Gemma": (
            gemma.Gemma,
            gemma.ModelConfig(
                **SIZES, **of_gemma, final_logit_softcap=30.0, use_post_attn_norm=True, use_post_ffw_norm=True,
                attention_types=both, sliding_window_size=32,
            ),
        ),
        "Gemma 3": (
            gemma3.Gemma3,
            gemma3.ModelConfig(
                **SIZES | {"num_layers": 6}, **of_gemma, sliding_window_size=32, global_base_frequency=1_000_000,
                global_scale_factor=8.0, param_dtype=jnp.float32,
            ),
        ),
        "Gemma 4": (
            gemma4.Gemma4,
            gemma4.ModelConfig(**SIZES | {"num_layers": 6}, **of_gemma, sliding_window_size=32, global_key_size=64),
        ),
    }  # fmt: skip
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 2048, 16, 128)), jnp.float32)
    positions = jnp.arange(2048, dtype=jnp.int32)[None]
    timed = Timed(lambda x, p: llama3.apply_rope(x, p, 128), (x, positions))
    for name, (make, config) in models.items():
        call, params = parameters(make(config, rngs=nnx.Rngs(0)))

        def forward(params, ids, positions, mask, call=call):
            logits, *_ = call(params, ids, positions, None, mask)
            return logits

        ids, at = tokens(96)
        far = None if name == "Gemma" else (ids, at + 1_000_000, causal())  # its windows begin at position 0
        yield Trial(name, forward, params, (ids, at, causal()), far), timed
        timed = None
