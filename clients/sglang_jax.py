"""sglang-jax, which serves models on TPU, from a checkout: RoPE of its models with all rope types, and M-RoPE.

Its Llama is run, prefill and a step of decoding, with JAX's attention and a cache behind it instead of its engine's.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import sgl_jax  # of sgl-project/sglang-jax
from sgl_jax.srt.layers import embeddings, linear
from sgl_jax.srt.layers.embeddings import MRotaryEmbedding, RotaryEmbedding
from sgl_jax.srt.models import llama

from clients import truth
from clients.harness import Far, Replaced, Timed, Trial, layer, parameters, tokens, video

# --8<-- [start:copy]
import posenc_jax as pe
from posenc_jax.hf import frequencies_from_rope_parameters


def get_rope(
    head_size, rotary_dim, max_position, base, is_neox_style=True, rope_scaling=None, dtype=jnp.bfloat16,
    partial_rotary_factor=1.0, dual_chunk_attention_config=None,
):  # fmt: skip
    settings = {"partial_rotary_factor": partial_rotary_factor, "max_position_embeddings": max_position}
    rope = RotaryEmbedding(head_size, rotary_dim, max_position, base, is_neox_style, dtype)
    rope.frequencies = frequencies_from_rope_parameters(rotary_dim, base, settings | (rope_scaling or {}))
    return rope


def rotary(self, positions, query, key):  # RotaryEmbedding and MRotaryEmbedding
    f, at = pe.geometric(self.rotary_dim, self.base), positions.flatten()
    if sections := getattr(self, "mrope_section", None):
        f = pe.multi_section(f, sections, interleaved=self.mrope_interleaved)
        at = jnp.broadcast_to(positions, (3, positions.shape[-1])).T
    f, layout = getattr(self, "frequencies", f), "half" if self.is_neox_style else "interleaved"

    def rotate(x):
        heads = x.reshape(len(at), -1, self.head_size)
        return pe.rotary(heads, at, f, head_axis=-2, layout=layout).reshape(x.shape)

    return rotate(query), rotate(key)


# --8<-- [end:copy]


# As transformers has it, in float64


def _true_get_rope(
    head_size, rotary_dim, max_position, base, is_neox_style=True, rope_scaling=None, dtype=jnp.bfloat16,
    partial_rotary_factor=1.0, dual_chunk_attention_config=None,
):  # fmt: skip
    rope = RotaryEmbedding(head_size, rotary_dim, max_position, base, is_neox_style, dtype)
    rope.settings = {"partial_rotary_factor": partial_rotary_factor} | (rope_scaling or {})
    return rope


def _true_rotary(self, positions, query, key):
    settings = {"rope_type": "default", "rope_theta": self.base} | getattr(self, "settings", {})
    if sections := getattr(self, "mrope_section", None):
        settings |= {"mrope_section": sections, "mrope_interleaved": self.mrope_interleaved}
    waves = truth.cos_sin(positions.reshape(-1, positions.shape[-1]).T, self.rotary_dim, settings)
    layout = "half" if self.is_neox_style else "interleaved"
    return tuple(
        truth.rotate(x.reshape(len(waves[0]), -1, self.head_size), waves, layout).reshape(x.shape) for x in (query, key)
    )


def _none(self, positions, query, key):
    return query, key


REPLACED = [
    Replaced(embeddings, "get_rope", get_rope, get_rope, _true_get_rope),
    Replaced(RotaryEmbedding, "__call__", rotary, _none, _true_rotary),
    Replaced(MRotaryEmbedding, "__call__", rotary, _none, _true_rotary),
]


def _far(x, at):
    rope = embeddings.get_rope(64, 64, 16_777_216, 500_000, dtype=jnp.float32)
    return rope(at[0], x[0], x[0])[0][None]


FAR = Far(_far)
ROOT = Path(sgl_jax.__file__).parents[1]
PACKAGE = "sgl-project/sglang-jax"
TESTS: list[str] = []  # those of positions ask for the bits of their own rounding to bfloat16

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA["original_max_position_embeddings"] = 8192


class _Attention:
    """Of one sequence: to what is cached, and to what is new."""

    def __call__(self, q, k, v, layer, batch, caches, **_):
        cache = caches[layer.layer_id]
        if cache is not None:
            k, v = (jnp.concatenate(both) for both in zip(cache, (k, v), strict=True))
        out = jax.nn.dot_product_attention(q[None], k[None], v[None], is_causal=cache is None)
        return out.reshape(len(q), -1), (k, v)


llama.get_rope = lambda **options: lambda *x: embeddings.get_rope(**options)(*x)  # as it is when it is called
linear.NamedSharding = embeddings.NamedSharding = lambda *_: None  # of their mesh of TPUs


def _model(settings: Any) -> tuple[Any, Any]:
    """Outputs of tokens (batch, seq), all but the last in one call and the last in another, and parameters."""
    from transformers import LlamaConfig

    sizes = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    config = LlamaConfig(**sizes, rope_theta=500_000.0, rope_scaling=settings, max_position_embeddings=131_072)
    mesh = jax.make_mesh((1, 1), ("data", "tensor"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        call, params = parameters(llama.LlamaModel(config, mesh, jnp.float32))

    def of_sequence(params, ids, at):
        batch = lambda part: types.SimpleNamespace(input_ids=ids[part], positions=at[part], attn_backend=_Attention())  # noqa: E731
        x, _, caches, _ = call(params, batch(slice(None, -1)), [None, None])
        return jnp.concatenate([x, call(params, batch(slice(-1, None)), caches)[0]])

    return jax.vmap(of_sequence, (None, 0, 0)), params


def trials() -> Iterator[tuple[Trial, Timed | None]]:
    """Llama of two layers with rope types; a layer of attention around the others."""
    ids, at = tokens(96, length=64)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2048, 16, 64)), jnp.float32)
    text = jnp.arange(2048, dtype=jnp.int32)
    models = {
        "Llama": (None, ""),
        "Llama 3.1": (LLAMA, "Llama 3's scaling is computed in a method that nothing calls"),
        "Llama, YaRN × 4": (YARN, ""),
        "Llama, YaRN × 4, attention_factor 1": (YARN | {"attention_factor": 1.0}, "attention_factor is not read"),
    }
    for name, (settings, wrong) in models.items():
        options = {"rope_scaling": settings, "dtype": jnp.float32}
        rope = lambda x, p, options=options: embeddings.get_rope(64, 64, 131_072, 5e5, **options)(p, x, x)  # noqa: E731
        yield Trial(name, *_model(settings), (ids, at), (ids, at + 1_000_000), wrong), Timed(rope, (x, text))

    along = video(256)
    for name, interleaved in {"M-RoPE of Qwen 2.5-VL, a video": False, "M-RoPE of Qwen 3-VL, a video": True}.items():
        rope = MRotaryEmbedding(64, 64, 131_072, 5_000_000, True, jnp.float32, [12, 10, 10], interleaved)
        turn = lambda x, p, rope=rope: rope(p, x, x)[0]  # noqa: E731
        call, params, y = layer(jax.vmap(turn), head_dim=64)
        yield (
            Trial(name, call, params, (y, along), (y, along + 1_000_000)),
            Timed(turn, (x, jnp.stack([text, text // 2, text // 3]))),
        )
    at = jnp.broadcast_to(jnp.arange(256, dtype=jnp.int32), (2, 256))
    ropes = {
        "Half of the head, interleaved": {"partial_rotary_factor": 0.5, "is_neox_style": False},
        "Gemma 4's proportional RoPE": {"rope_scaling": {"rope_type": "proportional", "partial_rotary_factor": 0.25}},
    }
    for name, options in ropes.items():
        options = {"dtype": jnp.float32} | options
        rope = lambda x, p, options=options: embeddings.get_rope(64, 64, 131_072, 1e6, **options)(p, x, x)[0]  # noqa: E731
        call, params, y = layer(jax.vmap(rope), head_dim=64)
        yield Trial(name, call, params, (y, at), (y, at + 1_000_000)), None
