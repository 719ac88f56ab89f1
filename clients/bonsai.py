"""Bonsai, from a checkout: RoPE of Qwen 3, Gemma 3, LLaDA, SAM 2 and DINOv3, and UMT5's bias."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from pathlib import Path

import bonsai  # of jax-ml/bonsai
import jax
import jax.numpy as jnp
import numpy as np
from bonsai.models.dinov3 import modeling as dinov3
from bonsai.models.gemma3 import modeling as gemma3
from bonsai.models.qwen3 import modeling as qwen3
from bonsai.models.sam2 import model_positional_encoding as sam2
from bonsai.models.umt5 import modeling as umt5
from bonsai.utils import rope

from clients.harness import Far, Replaced, Timed, Trial, layer, parameters, tokens

# --8<-- [start:copy]
import posenc_jax as pe


def rope_call(self, positions):  # RoPE of bonsai.utils, of LLaDA
    settings = dict(self.rope_kwargs)
    f = pe.geometric(settings["head_dim"], settings.get("rope_theta", 1_000_000))
    return pe.cos_sin(positions, pe.linear_scaling(f, settings.get("factor", 1.0)))[::-1]


def generate_pos_embeddings(positions, head_dim, rope_theta=1_000_000):  # Qwen 3
    return pe.cos_sin(positions, pe.geometric(head_dim, rope_theta))[::-1]


def scaled_pos_embeddings(positions, head_dim, rope_theta=1_000_000, factor=1.0):  # Gemma 3
    return pe.cos_sin(positions, pe.linear_scaling(pe.geometric(head_dim, rope_theta), factor))[::-1]


def apply_rope(x, sin, cos):  # all three
    return pe.rotary(x, cos_sin=pe.CosSin(cos, sin, columns="pair"), head_axis=-2)


def apply_rotary_pos_emb(q, k, cos, sin):  # DINOv3
    cos_sin = pe.CosSin(cos, sin, columns="half")  # a column per feature

    def turn(x):
        prefix = x.shape[-2] - cos.shape[-2]  # class and register tokens
        patches = pe.rotary(x[..., prefix:, :], cos_sin=cos_sin, head_axis=-3)
        return jnp.concatenate([x[..., :prefix, :], patches], axis=-2)

    return turn(q), turn(k)


def compute_axial_cis(dim, end_x, end_y, theta=10000.0):  # SAM 2
    y, x = jnp.indices((end_y, end_x)).reshape(2, -1)
    return jax.lax.complex(*pe.cos_sin(jnp.stack([x, y], -1), pe.axial(dim, 2, theta)))


def apply_rotary_enc(q, k, freqs_cis, repeat_freqs_k=False):  # SAM 2
    def turn(x, cis):
        cos_sin = pe.CosSin(cis.real, cis.imag, columns="pair")
        return pe.rotary(x, cos_sin=cos_sin, head_axis=-3, layout="interleaved")

    repeats = k.shape[2] // q.shape[2] if repeat_freqs_k else 1
    return turn(q, freqs_cis), turn(k, jnp.repeat(freqs_cis, repeats, axis=0))


def compute_bias(self, q_len, k_len):  # UMT5
    table, most = self.relative_attention_bias.embedding[...], self.relative_attention_max_distance
    at = jnp.arange(q_len), jnp.arange(k_len)
    return pe.t5(*at, table, bidirectional=not self.is_decoder, max_distance=most)[None]


# --8<-- [end:copy]


def _pair(q, k, *_, **__):
    return q, k


REPLACED = [
    Replaced(rope.RoPE, "__call__", rope_call, rope_call),
    Replaced(rope, "apply_rope", apply_rope),
    Replaced(qwen3, "_generate_pos_embeddings", generate_pos_embeddings, generate_pos_embeddings),
    Replaced(qwen3, "apply_rope", apply_rope),
    Replaced(gemma3, "_generate_pos_embeddings", scaled_pos_embeddings, scaled_pos_embeddings),
    Replaced(gemma3, "apply_rope", apply_rope),
    Replaced(dinov3, "apply_rotary_pos_emb", apply_rotary_pos_emb, _pair),
    Replaced(sam2, "compute_axial_cis", compute_axial_cis, compute_axial_cis),
    Replaced(sam2, "apply_rotary_enc", apply_rotary_enc, _pair),
    Replaced(umt5.UMT5Attention, "compute_bias", compute_bias, lambda self, q, k: jnp.zeros((1, self.n_heads, q, k))),
]
FAR = Far(lambda x, at: qwen3.apply_rope(x, *qwen3._generate_pos_embeddings(at, 64, 500_000)))
ROOT = Path(bonsai.__file__).parents[1]
PACKAGE = "jax-ml/bonsai"
TESTS: list[str] = []  # they compare with PyTorch, and most load weights from a hub


@contextlib.contextmanager
def _in_float32() -> Iterator[None]:
    """DINOv3 whose rotation is not cast to bfloat16, which hides all other differences."""
    before = dinov3.jnp
    dinov3.jnp = types.SimpleNamespace(**vars(jnp) | {"bfloat16": jnp.float32})
    try:
        yield
    finally:
        dinov3.jnp = before


def trials() -> Iterator[tuple[Trial, Timed | None]]:
    """Qwen 3, DINOv3 and UMT5 of two layers, and a layer of attention around the others."""
    from flax import nnx

    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 2048, 16, 128)), jnp.float32)
    at = jnp.arange(2048, dtype=jnp.int32)[None]
    timed = Timed(lambda x, p: qwen3.apply_rope(x, *qwen3._generate_pos_embeddings(p, 128)), (x, at))
    config = qwen3.ModelConfig(
        num_layers=2, vocab_size=96, emb_dim=64, mlp_dim=96, num_heads=4, head_dim=32, num_kv_heads=2,
        rope_theta=1_000_000, rope_scaling_factor=1.0, local_rope_theta=1e4, norm_eps=1e-6, tie_word_embeddings=True,
    )  # fmt: skip
    call, params = parameters(qwen3.Qwen3(config, rngs=nnx.Rngs(0)))

    def qwen(params, ids, call=call):
        cache = qwen3.init_cache(config, *ids.shape, 0, jnp.float32)
        return call(params, ids, cache=cache, segment_ids=jnp.ones_like(ids))

    ids, _ = tokens(96)
    yield Trial("Qwen 3", qwen, params, (ids,)), timed

    of_llada = rope.RoPE(rope_type="default", head_dim=32, rope_theta=500_000.0)
    ropes = {
        "Qwen 3's RoPE": lambda x, p: qwen3.apply_rope(x, *qwen3._generate_pos_embeddings(p, 32)),
        "Gemma 3's RoPE": lambda x, p: gemma3.apply_rope(x, *gemma3._generate_pos_embeddings(p, 32, 10_000, 8.0)),
        "LLaDA's RoPE": lambda x, p: rope.apply_rope(x, *of_llada(p)),
    }
    at = jnp.broadcast_to(jnp.arange(256, dtype=jnp.int32), (2, 256))
    for name, rotate in ropes.items():
        call, params, x = layer(rotate)
        yield Trial(name, call, params, (x, at), (x, at + 1_000_000)), None

    def of_image(x):  # heads come before the 16 × 16 tokens; the keys are of two images
        x = jnp.swapaxes(x, 1, 2)
        q, k = sam2.apply_rotary_enc(x, jnp.concatenate([x, x], 2), sam2.compute_axial_cis(32, 16, 16), True)
        return jnp.swapaxes(q + k[:, :, ::2], 1, 2)

    call, params, x = layer(of_image)
    yield Trial("SAM 2's RoPE", call, params, (x,)), None

    sizes = dinov3.ModelConfig(hidden_size=128, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
    call, params = parameters(dinov3.Dinov3ViTModel(sizes, rngs=nnx.Rngs(0)))

    def dino(params, pixels, call=call):
        with _in_float32():
            return call(params, pixels)["last_hidden_state"]

    pixels = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 128, 128)), jnp.float32)
    yield Trial("DINOv3 without its casts", dino, params, (pixels,)), None

    for name, decoder in {"UMT5's encoder": False, "UMT5's decoder": True}.items():
        sizes = umt5.ModelConfig(
            vocab_size=96, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, dropout_rate=0.0, is_decoder=decoder
        )
        call, params = parameters(umt5.UMT5Stack(sizes, rngs=nnx.Rngs(0)))
        yield Trial(name, call, params, (ids,)), None
