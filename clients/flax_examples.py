"""Flax's examples, from a checkout: RoPE of its Gemma, and the sinusoids of Gemma, lm1b, wmt and nlp_seq."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import examples  # of google/flax
import jax
import jax.numpy as jnp
import numpy as np
from examples.lm1b import models as lm1b
from examples.nlp_seq import models as nlp_seq
from examples.wmt import models as wmt
from flax.core import meta

ROOT = Path(examples.__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples/gemma"))  # whose modules import each other by their bare names

import positional_embeddings
import transformer
import transformer_cfg

from clients.harness import Far, Replaced, Timed, Trial, causal, drawn, parameters, tokens

# --8<-- [start:copy]
import posenc_jax as pe


def add_positional_embedding(input_embedding, position, max_wavelength=10_000):  # Gemma
    f = pe.geometric(input_embedding.shape[-1] // 2 * 2, max_wavelength, endpoint=True)
    return pe.add_sinusoidal(input_embedding, position, f, layout="half")


def apply_rope(inputs, positions, head_dim, max_wavelength=10_000, scale_factor=1.0):  # Gemma
    if scale_factor < 1.0:
        raise ValueError(f"scale_factor must be >= 1.0, got {scale_factor}")
    f = pe.linear_scaling(pe.geometric(head_dim, max_wavelength), scale_factor)
    return pe.rotary(inputs, positions, f, head_axis=-2)


def sinusoidal_init(max_len=2048, min_scale=1.0, max_scale=10000.0):  # lm1b and wmt
    def init(key, shape, dtype=np.float32):
        f = pe.geometric(shape[-1] // 2 * 2, max_scale / min_scale, endpoint=True)
        f = pe.linear_scaling(f, 1 / min_scale)
        return pe.add_sinusoidal(jnp.zeros((1, max_len, shape[-1])), None, f, layout="half")

    return init


def interleaved_init(max_len=2048):  # sinusoidal_init of nlp_seq
    def init(key, shape, dtype=np.float32):
        return pe.sinusoidal(jnp.arange(max_len), shape[-1])[None]

    return init


# --8<-- [end:copy]


def _none(max_len, **_):
    return lambda key, shape, dtype: jnp.zeros((1, max_len, shape[-1]))


REPLACED = [
    Replaced(positional_embeddings, "add_positional_embedding", add_positional_embedding),
    Replaced(positional_embeddings, "apply_rope", apply_rope),
    Replaced(lm1b, "sinusoidal_init", sinusoidal_init, _none),
    Replaced(wmt, "sinusoidal_init", sinusoidal_init, _none),
    Replaced(nlp_seq, "sinusoidal_init", interleaved_init, _none),
]
FAR = Far(lambda x, at: positional_embeddings.apply_rope(x, at, 64, 500_000))
PACKAGE = "google/flax"
TESTS = [f"examples/gemma/{name}_test.py" for name in ("positional_embeddings", "modules", "transformer", "sampler")]

SIZES = {"vocab_size": 96, "output_vocab_size": 96, "emb_dim": 64, "num_heads": 4, "num_layers": 2}
SIZES |= {"qkv_dim": 64, "mlp_dim": 96, "max_len": 256}


def trials() -> Iterator[tuple[Trial, Timed | None]]:
    """Two layers of each model, and a vector of odd width."""
    from flax import nnx

    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 2048, 16, 128)), jnp.float32)
    at = jnp.arange(2048, dtype=jnp.int32)[None]
    timed = Timed(lambda x, p: positional_embeddings.apply_rope(x, p, 128), (x, at))
    kinds = transformer_cfg.AttentionType
    third = transformer_cfg.TransformerConfig(
        num_layers=2, num_embed=96, embed_dim=64, hidden_dim=96, num_heads=4, head_dim=32, num_kv_heads=2,
        final_logit_softcap=None, use_post_attn_norm=True, use_post_ffw_norm=True, use_qk_norm=True,
        attention_types=(kinds.LOCAL_SLIDING, kinds.GLOBAL), sliding_window_size=32,
        global_base_frequency=1_000_000, global_scale_factor=8.0,
    )  # fmt: skip
    first = dataclasses.replace(
        third, num_kv_heads=1, attention_types=(kinds.GLOBAL,) * 2, use_post_attn_norm=False,
        use_post_ffw_norm=False, use_qk_norm=False,
    )  # fmt: skip
    ids, at = tokens(96)
    for name, config in {"Gemma 1": first, "Gemma 3": third}.items():
        call, params = parameters(transformer.Transformer(config, rngs=nnx.Rngs(0)))

        def gemma(params, ids, at, mask, call=call):
            return call(params, ids, at, None, mask)[0]

        yield Trial(name, gemma, params, (ids, at, causal()), (ids, at + 1_000_000, causal())), timed
        timed = None

    def odd(params, x):
        with jax.ensure_compile_time_eval():  # theirs cannot be traced by jit
            added = positional_embeddings.add_positional_embedding(jnp.zeros(65), 100)
        return (x + added) @ params

    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 1, 65)), jnp.float32)
    yield (
        Trial("add_positional_embedding, odd width", odd, drawn(jax.ShapeDtypeStruct((65, 64), jnp.float32)), (x,)),
        None,
    )

    ids = jnp.maximum(ids, 1)  # 0 is padding
    segments = 1 + at // 64
    lm = lm1b.TransformerLM(lm1b.TransformerConfig(**SIZES, deterministic=True))
    translator = wmt.Transformer(wmt.TransformerConfig(**SIZES, deterministic=True))
    tagger = nlp_seq.Transformer(nlp_seq.TransformerConfig(**SIZES))
    calls = {
        "lm1b": (lm, lambda call, ids: call(ids), (ids,)),
        "lm1b, packed": (lm, lambda call, *inputs: call(*inputs), (ids, at % 64, segments)),
        "wmt": (translator, lambda call, *inputs: call(*inputs), (ids, ids[:, ::-1])),
        "nlp_seq": (tagger, lambda call, ids: call(inputs=ids, train=False), (ids,)),
    }
    for name, (model, called, inputs) in calls.items():

        def linen(params, *inputs, model=model, called=called):
            return called(functools.partial(model.apply, {"params": params}), *inputs)

        start = functools.partial(model.init, jax.random.key(0))
        params = meta.unbox(jax.eval_shape(lambda *x, start=start, called=called: called(start, *x), *inputs)["params"])
        yield Trial(name, linen, drawn(params), inputs), None
