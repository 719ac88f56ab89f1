"""Positional encodings for JAX and Flax: accurate at every int32 position, close to the speed of memory.

Flax modules are in `posenc_jax.nnx` and `posenc_jax.linen`, rotary settings of Hugging Face models in `posenc_jax.hf`,
functions for Pallas kernels in `posenc_jax.kernels`, and figures in `posenc_jax.plot`.
"""

# The public names in reading order.
# isort: off

# Frequencies of feature pairs.
from posenc_jax._frequencies.frequencies import Frequencies, geometric

# Frequencies for longer contexts.
from posenc_jax._frequencies.scalings import linear_scaling, yarn, longrope, llama3, proportional, riflex
from posenc_jax._frequencies.ntk import ntk, dynamic_ntk

# Frequencies for positions of several coordinates.
from posenc_jax._frequencies.axes import axial, join, multi_section

# Positions.
from posenc_jax._positions.grids import grid_positions
from posenc_jax._positions.sequences import positions_from_segments, positions_from_lengths, positions_from_mask
from posenc_jax._positions.shards import shard_positions
from posenc_jax._positions.multimodal import multimodal_positions, positions_from_tokens

# Encodings that are added to embeddings.
from posenc_jax._encodings.sinusoidal import sinusoidal, add_sinusoidal
from posenc_jax._encodings.learned import learned, add_learned, resize_table

# Offsets in the sinusoidal encoding.
from posenc_jax._encodings.shifts import rotation_matrix, shift, offset_similarity

# Features of coordinates and of diffusion timesteps.
from posenc_jax._encodings.fourier import fourier_features, timestep_embedding

# Rotary embeddings of queries and keys.
from posenc_jax._rotary.cos_sin import cos_sin, CosSin
from posenc_jax._rotary.layouts import convert_layout
from posenc_jax._rotary.rotary import rotary, shift_keys
from posenc_jax._rotary.xpos import xpos
from posenc_jax._rotary.pope import pope

# Attention between the images of several cameras.
from posenc_jax._rotary.prope import prope

# Attention biases: by formula, then learned.
from posenc_jax._biases.formulas import alibi, kerple_log, kerple_power, sandwich
from posenc_jax._biases.learned import t5, fire
from posenc_jax._biases.relative import relative_position_bias
from posenc_jax._biases.content import content_bias

# Attention with any position bias.
from posenc_jax._attention.attention import attention

# Keys, values and positions of tokens before.
from posenc_jax._attention.cache import KVCache, kv_cache

# isort: on

__version__ = "0.1.0"

__all__ = [
    "CosSin",
    "Frequencies",
    "KVCache",
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
    "kv_cache",
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
    "riflex",
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
