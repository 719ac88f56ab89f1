"""Flax Linen modules, with the same settings and the same results as the modules of `posenc_jax.nnx`."""

from posenc_jax._flax.masks import SegmentMask
from posenc_jax.linen._attention import positional_attention
from posenc_jax.linen._biases import FIRE, KERPLE, ALiBi, ContentBias, RelativePositionBias, T5Bias
from posenc_jax.linen._encodings import (
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
