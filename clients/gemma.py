"""Gemma, DeepMind's library: RoPE of Gemma 1 to 4 and of Gemma 4's vision tower, and the sinusoids of SigLIP."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from gemma import gm
from gemma.gm.math import _positional_embeddings
from gemma.gm.nn import _modules
from gemma.gm.nn.gemma4 import _gemma4
from gemma.gm.nn.gemma4.vision import _modules as vision
from gemma.gm.nn.vision import _vision_utils

from clients.harness import Far, Replaced, Timed, Trial, causal, drawn, layer, tokens

# --8<-- [start:copy]
import posenc_jax as pe


def apply_rope(inputs, positions, *, base_frequency, scale_factor=1.0, rope_proportion=1.0):
    f = pe.proportional(inputs.shape[-1], base_frequency, rope_proportion, scale_factor)
    return pe.rotary(inputs, positions, f, head_axis=-2)


def posemb_sincos_2d(h, w, *, width, temperature=10_000.0, dtype=jnp.float32):
    row, column = pe.grid_positions((h, w)).T
    f = pe.geometric(width // 2, temperature, endpoint=True)
    halves = [pe.sinusoidal(p, f, layout="half", dtype=dtype) for p in (column, row)]
    return jnp.concatenate(halves, axis=-1)[None]


# --8<-- [end:copy]


def _no_sinusoids(h, w, *, width, **_):
    return jnp.zeros((1, h * w, width))


REPLACED = [
    Replaced(_positional_embeddings, "apply_rope", apply_rope),
    Replaced(_vision_utils, "_posemb_sincos_2d", posemb_sincos_2d, _no_sinusoids),
]
FAR = Far(lambda x, at: _positional_embeddings.apply_rope(x, at, base_frequency=500_000))
PACKAGE = "gemma"
TESTS = ["gemma/gm/math", "gemma/gm/nn"]  # of a checkout

SIZES = {"num_embed": 96, "embed_dim": 64, "hidden_dim": 96, "num_heads": 4, "head_dim": 32, "num_kv_heads": 2}
SIZES |= {"sliding_window_size": 16}
LOCAL, GLOBAL = _modules.AttentionType.LOCAL_SLIDING, _modules.AttentionType.GLOBAL


def trials() -> Iterator[tuple[Trial, Timed | None]]:
    """Models of two or three layers, and what the vision towers do."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 2048, 16, 128)), jnp.float32)
    rope = lambda x, p: _positional_embeddings.apply_rope(x, p, base_frequency=10_000)  # noqa: E731
    timed = Timed(rope, (x, jnp.arange(2048, dtype=jnp.int32)[None]))
    third = dataclasses.replace(gm.nn.Gemma3_270M.config, **SIZES, attention_types=[LOCAL, GLOBAL])
    first = dataclasses.replace(third, use_qk_norm=False, use_post_attn_norm=False, use_post_ffw_norm=False)
    first = dataclasses.replace(first, global_base_frequency=10_000, attention_types=[GLOBAL, GLOBAL])
    fourth = dataclasses.replace(
        gm.nn.Gemma4_31B.config, **SIZES, num_global_kv_heads=1, global_key_size=64, vision_encoder=None,
        attention_types=[_gemma4._modules.AttentionType.LOCAL_SLIDING, _gemma4._modules.AttentionType.GLOBAL],
    )  # fmt: skip
    models = {
        "Gemma 1": gm.nn.Gemma3_270M(config=first, dtype=jnp.float32),
        "Gemma 3": gm.nn.Gemma3_270M(config=third, dtype=jnp.float32),
        "Gemma 4": gm.nn.Gemma4_31B(config=fourth, dtype=jnp.float32),
    }
    for name, model in models.items():
        ids, at = tokens(96, length=64)

        def forward(params, ids, at, mask, model=model):
            return model.apply({"params": params}, ids, positions=at, attention_mask=mask).logits

        mask = causal(length=64)
        params = jax.eval_shape(model.init, jax.random.key(0), ids, positions=at, attention_mask=mask)["params"]
        yield Trial(name, forward, drawn(params), (ids, at, mask), (ids, at + 1_000_000, mask)), timed
        timed = None

    call, params, patches = layer(lambda x, at: vision.apply_multidimensional_rope(x, at, base_frequency=100))
    at = jnp.broadcast_to(jnp.stack(jnp.indices((16, 16)), -1).reshape(1, 256, 2), (2, 256, 2))
    yield Trial("Gemma 4's patches", call, params, (patches, at), (patches, at + 1_000_000)), None

    def siglip(params, patches):
        return jnp.einsum("bld,de->ble", patches + _vision_utils._posemb_sincos_2d(16, 16, width=64), params)

    weights = drawn(jax.ShapeDtypeStruct((64, 64), jnp.float32))
    yield Trial("SigLIP's sinusoids", siglip, weights, (patches,)), None
