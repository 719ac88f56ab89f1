r"""The `attention_fn` of Flax NNX layers: rotary embeddings and biases."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import lax

from posenc_jax._flax.attention import PositionalSettings, parse_attention
from posenc_jax._flax.calls import bounded_phase
from posenc_jax._frequencies.frequencies import Frequencies
from posenc_jax._jax.checks import Layout, RotatedPart
from posenc_jax._jax.errors import naming, public
from posenc_jax.nnx._encodings import PoPE


class PositionalAttention(nnx.Module):
    """An attention_fn, made by `positional_attention`. The parameters of its modules are part of the layer's state."""

    def __init__(
        self,
        settings: PositionalSettings,
        pope: PoPE | None,
        bias: Callable[..., jax.Array] | None,
        content_bias: Callable[..., jax.Array] | None,
        attention: Callable[..., jax.Array] | None,
    ):
        self.settings = settings
        self.pope = pope
        self.bias = bias
        self.content_bias = content_bias
        self.attention = attention

    @naming("positional_attention")
    def __call__(self, query: jax.Array, key: jax.Array, value: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
        """`nnx.dot_product_attention`, with `input_positions` and `key_positions` among its arguments."""
        function, biases = nnx.dot_product_attention, (self.bias, self.content_bias)
        if self.pope is not None:
            function, kwargs = _with_narrow_values, kwargs | {"phase": bounded_phase(self.pope.phase[...])}
        return self.settings.attend(function, self.attention, biases, query, key, value, *args, **kwargs)


@functools.wraps(nnx.dot_product_attention)
def _with_narrow_values(query: jax.Array, key: jax.Array, value: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
    """`nnx.dot_product_attention` of values narrower than keys, which JAX's own function rejects."""
    padding = [(0, 0, 0)] * (value.ndim - 1) + [(0, key.shape[-1] - value.shape[-1], 0)]
    padded = lax.pad(value, np.zeros((), value.dtype), padding)
    return nnx.dot_product_attention(query, key, padded, *args, **kwargs)[..., : value.shape[-1]]


@public
def positional_attention(
    frequencies: Frequencies | int | PoPE,
    *,
    bias: Callable[..., jax.Array] | None = None,
    content_bias: Callable[..., jax.Array] | None = None,
    attention: Callable[..., jax.Array] | None = None,
    layout: Layout = "half",
    part: RotatedPart = "first",
) -> PositionalAttention:
    r"""An `attention_fn` for `nnx.MultiHeadAttention`: any rotary embedding and any biases.

    The score of a query at position $p$ and a key at $t$, with $R$ the rotation of `posenc_jax.rotary`, is

    $$(R_p q) \cdot (R_t k) / \sqrt{\text{head\_dim}} + \text{bias}(p, t) + \text{content\_bias}(p, t, q, k)$$

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from flax import nnx
      >>> from posenc_jax.nnx import T5Bias, positional_attention
      >>> rngs = nnx.Rngs(0)
      >>> bias = T5Bias(2, rngs=rngs)
      >>> attend = positional_attention(8, bias=bias)
      >>> settings = {"decode": False, "attention_fn": attend, "rngs": rngs}
      >>> layer = nnx.MultiHeadAttention(2, 16, **settings)
      >>> layer(jnp.ones((1, 5, 16), jnp.float32)).shape
      (1, 5, 16)

      The same in tiles, with a window of 128 keys:

      >>> import functools
      >>> import posenc_jax as pe
      >>> tiles = functools.partial(pe.attention, window=(127, 0))
      >>> of_tiles = positional_attention(8, bias=bias, attention=tiles)
      >>> # batch, seq, heads, head_dim
      >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 5, 2, 8))
      >>> whole = attend(q, k, v, is_causal=True)
      >>> bool(jnp.allclose(of_tiles(q, k, v, is_causal=True), whole, atol=1e-6))
      True

    Args:
      frequencies: the width that rotates, even and at most head_dim, or `Frequencies` of that width. 0: no rotation. Or
        `PoPE` with head_axis -2, which replaces the rotation.
      bias: a function of (query_positions, key_positions) that returns floats (..., heads, queries, keys), as a module
        of `posenc_jax.nnx` or `functools.partial(pe.alibi, heads=8)`.
      content_bias: a function of (query_positions, key_positions, query, key) that returns floats of the same shape:
        `ContentBias`, or a module of your own.
      attention: None for Flax's `dot_product_attention`, whose scores are a matrix of queries and keys. Or
        `posenc_jax.attention`, with options bound by `functools.partial`, in memory linear in the length.
      layout: as for `posenc_jax.rotary`; `PoPE` has its own.
      part: as for `posenc_jax.rotary`.

    Returns:
      The attention_fn, a module whose only parameters are those of the biases and of `PoPE`. They become those of the
      layer; layers that are given the same module share them.

    Raises:
      TypeError: if frequencies is an array, or bias, content_bias or attention cannot be called.
      ValueError: if a setting is unknown, the width is 0 and there is no bias, there is a bias and positions have
        several axes, or attention binds an argument of the attention_fn. When called: if positions are missing or not
        one per token, a bias has another shape, or attention cannot take an argument.

    Notes:
      The attention_fn takes the arguments of `nnx.dot_product_attention`, whose bias is added to these, and two more,
      with one position for each query or key. `input_positions` are for the inputs, queries and keys alike;
      `nnx.MultiHeadAttention` passes them on (since Flax 0.12.9). `key_positions` are for other keys, as in
      cross-attention. With neither, both count from zero. If queries and keys differ in number, give both, except in a
      step of a layer with `decode=True`, whose keys are Flax's cache.

      content_bias gets query and key, (..., seq, heads, head_dim), neither rotated nor scaled. Its result is not scaled
      either.

    See Also:
      The guide to Flax models: where positions come from, decoding with Flax's cache, attention in tiles.

    Reference:
      Su et al., "RoFormer", 2021, section 3.2.2, equation 16, for the rotation.
    """
    settings = PositionalSettings.parse(frequencies, layout, part, PoPE)
    pope = frequencies if isinstance(frequencies, PoPE) else None
    return PositionalAttention(settings, pope, *settings.parse_biases(bias, content_bias), parse_attention(attention))
