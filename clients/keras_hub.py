"""Keras Hub on JAX: RotaryEmbedding, SinePositionEncoding, AlibiBias."""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras_hub
import numpy as np
from keras_hub import layers

from clients.harness import Far, Replaced, Timed, Trial, drawn, layer

# --8<-- [start:copy]
import posenc_jax as pe


def rotary_call(self, inputs, start_index=0, positions=None):  # RotaryEmbedding.call
    sequence_axis, feature_axis = self._normalize_axes(inputs.shape)
    dim, base, slower = inputs.shape[feature_axis], self.max_wavelength, self.scaling_factor
    self._validate_rotary_dimension(dim)
    if self.rope_type == "yarn":
        betas = {"beta_fast": self.beta_fast, "beta_slow": self.beta_slow, "truncate": self.truncate}
        f = pe.yarn(dim, base, slower, self.original_max_position_embeddings, **betas)
    else:
        slower = {"linear": slower, "dynamic": slower ** (dim / max(1, dim - 2))}.get(self.rope_type, 1)
        f = pe.linear_scaling(pe.geometric(self.denominator_dim or dim, base)[: dim // 2], slower)
    x = jnp.moveaxis(inputs, (feature_axis, sequence_axis), (-1, 1))
    if positions is None:
        positions = jnp.arange(x.shape[1]) + start_index
    x = pe.rotary(x, positions, f, head_axis=tuple(range(2, x.ndim - 1)))
    return jnp.moveaxis(x, (-1, 1), (feature_axis, sequence_axis))


def sine_call(self, inputs, start_index=0, positions=None):  # SinePositionEncoding.call
    if positions is None:
        positions = jnp.arange(inputs.shape[-2]) + start_index
    f = pe.geometric(inputs.shape[-1], self.max_wavelength)
    return jnp.broadcast_to(pe.sinusoidal(positions, f, dtype=self.compute_dtype), inputs.shape)


def alibi_call(self, attention_scores):  # AlibiBias.call
    heads, keys = attention_scores.shape[-3], attention_scores.shape[-1]
    slopes = jnp.array(self._get_slopes(heads), jnp.float32)
    bias = pe.alibi(jnp.array([keys - 1]), jnp.arange(keys), slopes)  # of the last query, as theirs
    return attention_scores + bias[None].astype(attention_scores.dtype)


# --8<-- [end:copy]


def _same(self, x, *_, **__):
    return x


REPLACED = [
    Replaced(layers.RotaryEmbedding, "call", rotary_call, _same),
    Replaced(layers.SinePositionEncoding, "call", sine_call, lambda self, x, *_, **__: jnp.zeros_like(x)),
    Replaced(layers.AlibiBias, "call", alibi_call, _same),
]
FAR = Far(lambda x, at: layers.RotaryEmbedding(500_000)(x, positions=at))
GUARD = 'keras.config.backend() == "jax"', ["import jax.numpy as jnp"]  # of the patch: other backends keep their lines
PACKAGE = "keras-hub"
TESTS = [
    f"keras_hub/src/layers/modeling/{name}_test.py"
    for name in ("rotary_embedding", "sine_position_encoding", "alibi_bias")
]


def trials() -> Iterator[tuple[Trial, Timed | None]]:
    """Llama's backbone, and a layer of attention around each layer of theirs."""
    big = layers.RotaryEmbedding()
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 2048, 16, 128)), jnp.float32)
    timed = Timed(lambda x: big(x), (x,))
    llama = keras_hub.models.LlamaBackbone(96, 2, 4, 128, 96, 2)
    ids = jnp.asarray(np.random.default_rng(1).integers(0, 96, (2, 128)), jnp.int32)
    rest = [v.value for v in llama.non_trainable_variables]
    weights = drawn([jax.ShapeDtypeStruct(tuple(v.shape), jnp.float32) for v in llama.trainable_variables])

    def of_batch(params, ids):
        return llama.stateless_call(params, rest, {"token_ids": ids, "padding_mask": jnp.ones_like(ids)})[0]

    yield Trial("LlamaBackbone", of_batch, weights, (ids,)), timed
    at = jnp.broadcast_to(jnp.arange(256, dtype=jnp.int32), (2, 256))
    ropes = {
        "RotaryEmbedding": layers.RotaryEmbedding(),
        "RotaryEmbedding, dynamic": layers.RotaryEmbedding(rope_type="dynamic", scaling_factor=4.0),
        "RotaryEmbedding, yarn": layers.RotaryEmbedding(rope_type="yarn", scaling_factor=4.0),
    }
    for name, rope in ropes.items():
        call, params, tokens = layer(lambda x, p, rope=rope: rope(x, positions=p))
        yield Trial(name, call, params, (tokens, at), (tokens, at + 1_000_000)), None
    sine = layers.SinePositionEncoding()
    params = drawn(jax.ShapeDtypeStruct((64, 64), jnp.float32))
    yield Trial("SinePositionEncoding", lambda w, x: (x + sine(x)) @ w, params, (tokens,)), None
    alibi = layers.AlibiBias()

    def biased(w, x):
        scores = jnp.einsum("bqd,nde,bke->bnqk", x, w, x) / 8
        return jnp.einsum("bnqk,bkd->bqnd", jax.nn.softmax(alibi(scores)), x)

    yield Trial("AlibiBias", biased, drawn(jax.ShapeDtypeStruct((4, 64, 64), jnp.float32)), (tokens,)), None
