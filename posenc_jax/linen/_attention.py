r"""The `attention_fn` of Flax Linen layers: rotary embeddings and biases."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from posenc_jax._flax.attention import PositionalSettings, PositionKind, Rotation, parse_functions
from posenc_jax._flax.calls import bounded_phase
from posenc_jax._frequencies.frequencies import Frequencies
from posenc_jax._jax.checks import Layout, RotatedPart
from posenc_jax._jax.errors import naming, public
from posenc_jax.linen._encodings import PoPE, RotaryEncoding


class PositionalAttention(nn.Module):
    """An attention_fn, made by `positional_attention`. Modules with parameters are submodules of it."""

    settings: PositionalSettings
    rotation: PoPE | Rotation | None
    bias: Callable[..., jax.Array] | None
    content_bias: Callable[..., jax.Array] | None
    attention: Callable[..., jax.Array] | None

    @property
    def __signature__(self) -> inspect.Signature:
        """All arguments that are passed on, because Linen's layer drops those that are not here, even masks."""
        of_flax = inspect.signature(nn.dot_product_attention).parameters.values()
        of_positions = (
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
            for name in ("input_positions", "key_positions")
        )
        return inspect.Signature([*of_flax, *of_positions])

    @naming("positional_attention")
    def __call__(self, query: jax.Array, key: jax.Array, value: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
        """`nn.dot_product_attention`, with `input_positions` and `key_positions` among its arguments."""
        biases = self.bias, self.content_bias
        rotation: Any = bounded_phase(self.rotation.delta) if self.settings.polar else self.rotation  # type: ignore
        if self.attention is not None:
            biases = tuple(map(_without_scope, biases, ((), (query, key))))
        return self.settings.attend(
            nn.dot_product_attention, self.attention, rotation, biases, query, key, value, *args, **kwargs
        )


def _without_scope(bias: Any, data: tuple[Any, ...]) -> Any:
    """A bias as a function that JAX may trace, unlike a module inside another; initializes its parameters first."""
    if not isinstance(bias, nn.Module) or bias.scope is None:
        return bias
    if bias.is_initializing():
        one = jnp.zeros(1, jnp.int32)
        bias(one, one, *(x[..., :1, :, :] for x in data))
    module, variables = bias.unbind()
    return functools.partial(module.apply, variables)


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
    r"""An `attention_fn` for `nn.MultiHeadDotProductAttention`, with any rotary embedding and any biases.

    With $R$ the rotation of `posenc_jax.rotary`, the score of a query at position $p$ and a key at $t$ is

    $$(R_p q) \cdot (R_t k) / \sqrt{\text{head\_dim}} + \text{bias}(p, t) + \text{content\_bias}(p, t, q, k)$$

    Examples:
      >>> import functools
      >>> import jax, jax.numpy as jnp
      >>> from flax import linen as nn
      >>> from posenc_jax.linen import ALiBi, T5Bias, positional_attention
      >>> attend = positional_attention(bias=T5Bias(2))
      >>> layer = nn.MultiHeadDotProductAttention(2, attention_fn=attend)
      >>> x = jnp.ones((1, 5, 16), jnp.float32)
      >>> layer.init(jax.random.key(0), x)["params"]["attention_fn"]["bias"]["embedding"].shape
      (32, 2)

      Positions are bound to the attention_fn:

      >>> attend = positional_attention(rotation=8, bias=ALiBi(2))
      >>> layer = nn.MultiHeadDotProductAttention(2, attention_fn=attend)
      >>> variables = layer.init(jax.random.key(0), x)
      >>> bound = functools.partial(attend, input_positions=jnp.arange(1000, 1005))
      >>> far = layer.clone(attention_fn=bound)
      >>> bool(jnp.allclose(layer.apply(variables, x), far.apply(variables, x), atol=1e-5))
      True

    Args:
      rotation: a width, even and at most head_dim; `Frequencies`; a `RotaryEncoding` or `PoPE` with head_axis -2; or a
        function of (query, key, query_positions, key_positions) that returns both rotated. None means no rotation.
      bias: a function of (query_positions, key_positions) that returns floats of shape (..., heads, queries, keys),
        such as a module of `posenc_jax.linen` or `functools.partial(pe.alibi, heads=8)`.
      content_bias: a function of (query_positions, key_positions, query, key) that returns the same shape, such as
        `ContentBias`.
      attention: `posenc_jax.attention`, with options bound by `functools.partial`, for linear memory. None means Flax's
        `dot_product_attention`.
      layout: "half" or "interleaved", for a width or `Frequencies`; see `posenc_jax.rotary`.
      part: "first" or "last", for a width or `Frequencies`; see `posenc_jax.rotary`.
      num_axes: coordinates per position. None means the axes of the frequencies, or 1.
      bias_positions: which positions biases get: "input", the positions of the call, or "index", 0, 1, 2, ….

    Returns:
      The attention_fn: a module, and a hashable value without arrays, equal to any other with the same settings. Its
      variables are under "attention_fn" and then "rotation", "bias" or "content_bias".

    Raises:
      TypeError: if rotation, bias, content_bias or attention has the wrong type.
      ValueError: if a setting is unknown, nothing is given, or attention binds an argument of the attention_fn.
      ValueError: when called, if positions are missing, not one per token, or concrete and restart under a causal mask
        alone; if a function returns another shape; or if attention does not support an argument.

    Notes:
      The attention_fn takes the arguments of `nn.dot_product_attention`. It adds that function's bias to these biases,
      accepts a `SegmentMask` as mask, and takes two more arguments, which `functools.partial` binds:

      - `input_positions`, for the layer's inputs, queries and keys alike.
      - `key_positions`, for other keys, as in cross-attention.

      Without them, positions count from 0. If queries and keys differ in number, give both, except in a step of a layer
      with `decode=True`, whose keys are Flax's cache. content_bias gets query and key neither rotated nor scaled.

      A bias made outside any module becomes part of the layer. A bias made in another module's `setup` or `@nn.compact`
      belongs to that module: layers share its parameters, and positions can be bound.

    See Also:
      The guides to Flax models and to masks.

    Reference:
      Su et al., "RoFormer", 2021, section 3.2.2, equation 16.
    """
    modules = PoPE, RotaryEncoding
    settings, function = PositionalSettings.parse(rotation, layout, part, num_axes, bias_positions, *modules)
    parse_functions(settings, function, bias, content_bias, attention)
    return PositionalAttention(settings, function, bias, content_bias, attention)
