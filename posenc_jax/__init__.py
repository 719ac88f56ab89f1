"""Positional encodings for JAX and Flax: right at every position, at the speed of memory."""

from posenc_jax.frequencies import Frequencies, axial, geometric
from posenc_jax.learned import add_learned, learned, resize_table
from posenc_jax.rotation import offset_similarity, rotation_matrix, shift
from posenc_jax.sinusoidal import add_sinusoidal, sinusoidal

__version__ = "0.1.0"

__all__ = [
    "Frequencies",
    "add_learned",
    "add_sinusoidal",
    "axial",
    "geometric",
    "learned",
    "offset_similarity",
    "resize_table",
    "rotation_matrix",
    "shift",
    "sinusoidal",
]
