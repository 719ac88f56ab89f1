"""Positional encodings for JAX and Flax: right at every position, close to the speed of memory."""

from posenc_jax._attention import attention
from posenc_jax._axes import axial, multi_section
from posenc_jax._bias import alibi, kerple_log, kerple_power, sandwich
from posenc_jax._fourier import fourier_features, timestep_embedding
from posenc_jax._frequencies import Frequencies, geometric
from posenc_jax._learned import add_learned, learned, resize_table
from posenc_jax._learned_bias import fire, t5
from posenc_jax._positions import (
    grid_positions,
    multimodal_positions,
    positions_from_mask,
    positions_from_segments,
    shard_positions,
)
from posenc_jax._rotary import convert_layout, rotary
from posenc_jax._rotation import offset_similarity, rotation_matrix, shift
from posenc_jax._scalings import dynamic_ntk, linear_scaling, llama3, longrope, ntk, proportional, yarn
from posenc_jax._sinusoidal import add_sinusoidal, sinusoidal
from posenc_jax._xpos import xpos

__version__ = "0.1.0"

__all__ = [
    "Frequencies",
    "add_learned",
    "add_sinusoidal",
    "alibi",
    "attention",
    "axial",
    "convert_layout",
    "dynamic_ntk",
    "fire",
    "fourier_features",
    "geometric",
    "grid_positions",
    "kerple_log",
    "kerple_power",
    "learned",
    "linear_scaling",
    "llama3",
    "longrope",
    "multi_section",
    "multimodal_positions",
    "ntk",
    "offset_similarity",
    "positions_from_mask",
    "positions_from_segments",
    "proportional",
    "resize_table",
    "rotary",
    "rotation_matrix",
    "sandwich",
    "shard_positions",
    "shift",
    "sinusoidal",
    "t5",
    "timestep_embedding",
    "xpos",
    "yarn",
]
