"""Positional encodings for JAX and Flax: accurate at every int32 position, close to the speed of memory.

Flax modules are in `posenc_jax.nnx` and `posenc_jax.linen`, rotary settings of Hugging Face models in `posenc_jax.hf`,
functions for Pallas kernels in `posenc_jax.kernels`, and figures in `posenc_jax.plot`.
"""

# The public names in reading order.
# isort: off

# Frequencies of feature pairs.
from posenc_jax._frequencies import Frequencies, geometric

# Frequencies for longer contexts.
from posenc_jax._scalings import linear_scaling, yarn, longrope, llama3, proportional
from posenc_jax._ntk import ntk, dynamic_ntk

# Frequencies for positions of several coordinates.
from posenc_jax._axes import axial, join, multi_section

# Positions.
from posenc_jax._positions import (
    positions_from_segments,
    positions_from_lengths,
    positions_from_mask,
    grid_positions,
    shard_positions,
)
from posenc_jax._multimodal import multimodal_positions, positions_from_tokens

# Encodings that are added to embeddings.
from posenc_jax._sinusoidal import sinusoidal, add_sinusoidal
from posenc_jax._learned import learned, add_learned, resize_table

# Offsets in the sinusoidal encoding.
from posenc_jax._offsets import rotation_matrix, shift, offset_similarity

# Features of coordinates and of diffusion timesteps.
from posenc_jax._fourier import fourier_features, timestep_embedding

# Rotary embeddings of queries and keys.
from posenc_jax._rotary import rotary, shift_keys, cos_sin, CosSin, convert_layout
from posenc_jax._xpos import xpos
from posenc_jax._pope import pope

# Attention between the images of several cameras.
from posenc_jax._prope import prope

# Attention biases: by formula, then learned.
from posenc_jax._bias import alibi, kerple_log, kerple_power, sandwich
from posenc_jax._learned_bias import t5, fire
from posenc_jax._relative_bias import relative_position_bias
from posenc_jax._content_bias import content_bias

# Attention with any position bias.
from posenc_jax._attention import attention

# isort: on

__version__ = "0.1.0"

__all__ = [
    "CosSin",
    "Frequencies",
    "add_learned",
    "add_sinusoidal",
    "alibi",
    "attention",
    "axial",
    "content_bias",
    "convert_layout",
    "cos_sin",
    "dynamic_ntk",
    "fire",
    "fourier_features",
    "geometric",
    "grid_positions",
    "join",
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
    "pope",
    "positions_from_lengths",
    "positions_from_mask",
    "positions_from_segments",
    "positions_from_tokens",
    "prope",
    "proportional",
    "relative_position_bias",
    "resize_table",
    "rotary",
    "rotation_matrix",
    "sandwich",
    "shard_positions",
    "shift",
    "shift_keys",
    "sinusoidal",
    "t5",
    "timestep_embedding",
    "xpos",
    "yarn",
]
