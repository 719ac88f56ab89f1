"""Flax NNX modules. Each holds settings and parameters, and calls one function of the library."""

from posenc_jax._flax.masks import SegmentMask
from posenc_jax.nnx._attention import positional_attention
from posenc_jax.nnx._biases import FIRE, KERPLE, ALiBi, ContentBias, RelativePositionBias, T5Bias
from posenc_jax.nnx._encodings import (
    FourierFeatures,
    LearnedEncoding,
    PoPE,
    RotaryEncoding,
    SinusoidalEncoding,
    TimestepEmbedding,
)

__all__ = [
    "ALiBi",
    "ContentBias",
    "FIRE",
    "FourierFeatures",
    "KERPLE",
    "LearnedEncoding",
    "PoPE",
    "RelativePositionBias",
    "RotaryEncoding",
    "SegmentMask",
    "SinusoidalEncoding",
    "T5Bias",
    "TimestepEmbedding",
    "positional_attention",
]
