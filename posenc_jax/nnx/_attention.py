r"""The `attention_fn` of Flax NNX layers: rotary embeddings and biases."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import lax

from posenc_jax._flax.attention import PositionalSettings, PositionKind, Rotation, parse_functions
from posenc_jax._flax.calls import bounded_phase
from posenc_jax._frequencies.frequencies import Frequencies
from posenc_jax._jax.checks import Layout, RotatedPart
from posenc_jax._jax.errors import naming, public
from posenc_jax.nnx._encodings import PoPE, RotaryEncoding


class PositionalAttention(nnx.Module):
    """An attention_fn, made by `positional_attention`. The parameters of its modules are part of the layer's state."""

    def __init__(
        self,
        settings: PositionalSettings,
        rotation: PoPE | Rotation | None,
        bias: Callable[..., jax.Array] | None,
        content_bias: Callable[..., jax.Array] | None,
        attention: Callable[..., jax.Array] | None,
    ):
        self.settings = settings
        self.rotation = rotation
        self.bias = bias
        self.content_bias = content_bias
        self.attention = attention

    @naming("positional_attention")
    def __call__(self, query: jax.Array, key: jax.Array, value: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
        """`nnx.dot_product_attention`, with `input_positions` and `key_positions` among its arguments."""
        function, biases = nnx.dot_product_attention, (self.bias, self.content_bias)
        rotation: Any = self.rotation
        if self.settings.polar:
            function, rotation = _with_narrow_values, bounded_phase(rotation.phase[...])
        return self.settings.attend(function, self.attention, rotation, biases, query, key, value, *args, **kwargs)


@functools.wraps(nnx.dot_product_attention)
def _with_narrow_values(query: jax.Array, key: jax.Array, value: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
    """`nnx.dot_product_attention` of values narrower than keys, which JAX's own function rejects."""
    padding = [(0, 0, 0)] * (value.ndim - 1) + [(0, key.shape[-1] - value.shape[-1], 0)]
    padded = lax.pad(value, np.zeros((), value.dtype), padding)
    return nnx.dot_product_attention(query, key, padded, *args, **kwargs)[..., : value.shape[-1]]


@public
def positional_attention(
    *,
    rotation: Frequencies | int | RotaryEncoding | PoPE | Rotation | None = None,
    bias: Callable[..., jax.Array] | None = None,
    content_bias: Callable[..., jax.Array] | None = None,
    attention: Callable[..., jax.Array] | None = None,
    layout: Layout = "half",
    part: RotatedPart = "first",
    num_axes: int | None = None,
    bias_positions: PositionKind = "input",
) -> PositionalAttention:
    r"""An `attention_fn` for `nnx.MultiHeadAttention`, with any rotary embedding and any biases.

    With $R$ the rotation of `posenc_jax.rotary`, the score of a query at position $p$ and a key at $t$ is

    $$(R_p q) \cdot (R_t k) / \sqrt{\text{head\_dim}} + \text{bias}(p, t) + \text{content\_bias}(p, t, q, k)$$

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from flax import nnx
      >>> from posenc_jax.nnx import T5Bias, positional_attention
      >>> rngs = nnx.Rngs(0)
      >>> bias = T5Bias(2, rngs=rngs)
      >>> attend = positional_attention(rotation=8, bias=bias)
      >>> settings = {"decode": False, "attention_fn": attend, "rngs": rngs}
      >>> layer = nnx.MultiHeadAttention(2, 16, **settings)
      >>> layer(jnp.ones((1, 5, 16), jnp.float32)).shape
      (1, 5, 16)

      The same in tiles, with a window of 128 keys:

      >>> import functools
      >>> import posenc_jax as pe
      >>> tiles = functools.partial(pe.attention, window=(127, 0))
      >>> of_tiles = positional_attention(rotation=8, bias=bias, attention=tiles)
      >>> # batch, seq, heads, head_dim
      >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 5, 2, 8))
      >>> whole = attend(q, k, v, is_causal=True)
      >>> bool(jnp.allclose(of_tiles(q, k, v, is_causal=True), whole, atol=1e-6))
      True

    Args:
      rotation: a width, even and at most head_dim; `Frequencies`; a `RotaryEncoding` or `PoPE` with head_axis -2; or a
        function of (query, key, query_positions, key_positions) that returns both rotated. None means no rotation.
      bias: a function of (query_positions, key_positions) that returns floats of shape (..., heads, queries, keys),
        such as a module of `posenc_jax.nnx` or `functools.partial(pe.alibi, heads=8)`.
      content_bias: a function of (query_positions, key_positions, query, key) that returns the same shape, such as
        `ContentBias`.
      attention: `posenc_jax.attention`, with options bound by `functools.partial`, for linear memory. None means Flax's
        `dot_product_attention`.
      layout: "half" or "interleaved", for a width or `Frequencies`; see `posenc_jax.rotary`.
      part: "first" or "last", for a width or `Frequencies`; see `posenc_jax.rotary`.
      num_axes: coordinates per position. None means the axes of the frequencies, or 1.
      bias_positions: which positions biases get: "input", the positions of the call, or "index", 0, 1, 2, ….

    Returns:
      The attention_fn, a module with the parameters of rotation and biases. They become parameters of the layer. Layers
      that are given the same module share them.

    Raises:
      TypeError: if rotation, bias, content_bias or attention has the wrong type.
      ValueError: if a setting is unknown, nothing is given, or attention binds an argument of the attention_fn.
      ValueError: when called, if positions are missing, not one per token, or concrete and restart under a causal mask
        alone; if a function returns another shape; or if attention does not support an argument.

    Notes:
      The attention_fn takes the arguments of `nnx.dot_product_attention`. It adds that function's bias to these biases,
      accepts a `SegmentMask` as mask, and takes two more arguments:

      - `input_positions`, for the layer's inputs, queries and keys alike. `nnx.MultiHeadAttention` passes them on
        (since Flax 0.12.9).
      - `key_positions`, for other keys, as in cross-attention.

      Without them, positions count from 0. If queries and keys differ in number, give both, except in a step of a layer
      with `decode=True`, whose keys are Flax's cache. content_bias gets query and key neither rotated nor scaled.

    See Also:
      The guides to Flax models and to masks.

    Reference:
      Su et al., "RoFormer", 2021, section 3.2.2, equation 16.
    """
    modules = PoPE, RotaryEncoding
    settings, function = PositionalSettings.parse(rotation, layout, part, num_axes, bias_positions, *modules)
    parse_functions(settings, function, bias, content_bias, attention)
    return PositionalAttention(settings, function, bias, content_bias, attention)
