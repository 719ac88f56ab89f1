r"""Flax NNX modules of the attention biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import ArrayLike

from posenc_jax._biases.content import ContentOutOfRange, ContentSource
from posenc_jax._biases.formulas import alibi
from posenc_jax._biases.learned import check_scale, t5
from posenc_jax._flax import calls, initializers, settings
from posenc_jax._flax.initializers import default_embedding_init, default_t5_init, fire_bias_init, fire_kernel_init
from posenc_jax._flax.settings import Variant
from posenc_jax._jax import checks
from posenc_jax._jax.checks import OutOfRange
from posenc_jax._jax.errors import callback, public


class ALiBi(nnx.Module):
    r"""ALiBi's bias $-m_h\,|i - j|$ with the paper's slopes; see `posenc_jax.alibi`. It has no parameters and no state.

    Examples:
      >>> import jax.numpy as jnp
      >>> from posenc_jax.nnx import ALiBi
      >>> ALiBi(8)(jnp.arange(5), jnp.arange(7)).shape
      (8, 5, 7)

    Args:
      num_heads: the number of heads.

    Raises:
      TypeError: if num_heads is not an integer.
      ValueError: if num_heads is not positive.

    Reference:
      Press et al., "Train Short, Test Long", 2022, section 3.
    """

    @public
    def __init__(self, num_heads: int):
        self.num_heads = checks.positive_int("num_heads", num_heads)

    def __call__(self, query_positions: ArrayLike, key_positions: ArrayLike) -> jax.Array:
        """Returns the bias, a float32 array of shape (..., heads, queries, keys)."""
        return alibi(query_positions, key_positions, self.num_heads)


class T5Bias(nnx.Module):
    """T5's bias, one learned value per head and bucket of distances; see `posenc_jax.t5`.

    Examples:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from posenc_jax.nnx import T5Bias
      >>> T5Bias(8, rngs=nnx.Rngs(0))(jnp.arange(5), jnp.arange(7)).shape
      (8, 5, 7)

      The layers of T5 share one table. In a scanned stack, a module made inside a layer has one table per layer. For a
      shared table, make the module outside, call it once, and pass the bias to all layers:

      >>> import copy, functools
      >>> class Block(nnx.Module):
      ...     def __init__(self, rngs):
      ...         self.attention = nnx.MultiHeadAttention(2, 16, decode=False, rngs=rngs)
      ...
      ...     def __call__(self, x, bias):
      ...         attention = copy.copy(self.attention)  # the same parameters
      ...         attention.attention_fn = functools.partial(attention.attention_fn, bias=bias)
      ...         return x + attention(x)
      >>> rngs, positions = nnx.Rngs(0), jnp.arange(5)[None]
      >>> t5, blocks = T5Bias(2, rngs=rngs), nnx.split_rngs(splits=3)(nnx.vmap(Block))(rngs)
      >>> axes = {"in_axes": (nnx.Carry, 0, None), "out_axes": nnx.Carry}
      >>> stack = nnx.scan(lambda x, block, bias: block(x, bias), **axes)
      >>> stack(jnp.ones((1, 5, 16), jnp.float32), blocks, t5(positions, positions)).shape
      (1, 5, 16)

    Args:
      num_heads: the number of heads.
      num_buckets: the number of rows of the table, for both directions together.
      max_distance: the distance from which all keys share the last bucket.
      bidirectional: whether keys after the query have buckets of their own; `False` in T5's decoder. See
        `posenc_jax.t5`.
      param_dtype: the dtype of the table.
      embedding_init: the initializer of the table, of shape (num_buckets, num_heads); T5X's by default.
      embedding_metadata: metadata of the parameter, such as its sharding.
      rngs: the random number generators for the initial values.

    Raises:
      TypeError: if num_heads, num_buckets or max_distance is not an integer, or bidirectional is not a bool.
      ValueError: if one of them is not positive. When called: for the same reasons as in `posenc_jax.t5`.

    Reference:
      Raffel et al., "Exploring the Limits of Transfer Learning", 2020, section 2.1.
    """

    @public
    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        param_dtype: Any = jnp.float32,
        embedding_init: nnx.Initializer = default_t5_init,
        embedding_metadata: Mapping[str, Any] = MappingProxyType({}),
        rngs: nnx.Rngs,
    ):
        self.num_heads = checks.positive_int("num_heads", num_heads)
        self.num_buckets = checks.positive_int("num_buckets", num_buckets)
        self.max_distance = checks.positive_int("max_distance", max_distance)
        self.bidirectional = checks.flag("bidirectional", bidirectional)
        param_dtype = checks.floating_dtype("param_dtype", param_dtype)
        with callback():
            value = embedding_init(rngs.params(), (self.num_buckets, self.num_heads), param_dtype)
        self.embedding = nnx.Param(value, **embedding_metadata)

    def __call__(self, query_positions: ArrayLike, key_positions: ArrayLike) -> jax.Array:
        """Returns the bias, a float32 array of shape (..., heads, queries, keys)."""
        options = {"bidirectional": self.bidirectional, "max_distance": self.max_distance}
        return t5(query_positions, key_positions, self.embedding[...], **options)


class KERPLE(nnx.Module):
    r"""KERPLE's bias with learned parameters; see `posenc_jax.kerple_log` and `posenc_jax.kerple_power`.

    $$-r_1 \ln(1 + r_2\,|i - j|) \text{ (log)} \qquad \text{or} \qquad -r_1\,|i - j|^{r_2} \text{ (power)}$$

    Examples:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from posenc_jax.nnx import KERPLE
      >>> KERPLE(8, rngs=nnx.Rngs(0))(jnp.arange(5), jnp.arange(7)).shape
      (8, 5, 7)

    Args:
      num_heads: the number of heads.
      variant: "log" or "power".
      param_dtype: the dtype of the parameters.
      r1_init: the initializer of `free_r1`, of shape (num_heads,). By default, as in the authors' code, $r_1$ is
        uniform from 0 to 2 (log) or from 0 to 1 (power).
      r2_init: the initializer of `free_r2`, of shape (num_heads,). By default, $r_2$ is uniform from 0 to 1 (log) or
        from 0 to 2 (power).
      metadata: metadata of both parameters, such as their sharding.
      rngs: the random number generators for the initial values.

    Raises:
      TypeError: if num_heads is not an integer.
      ValueError: if num_heads is not positive or variant is unknown.

    Notes:
      The parameters `free_r1` and `free_r2` are unconstrained. $r_1$ is `jax.nn.softplus` of `free_r1`. $r_2$ is
      `jax.nn.softplus` of `free_r2` (log), or 2 · `jax.nn.sigmoid` of it (power). The kernel therefore stays
      conditionally positive definite.

    Reference:
      Chi et al., "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation", 2022, section 4.
    """

    variant: Variant

    @public
    def __init__(
        self,
        num_heads: int,
        *,
        variant: Variant = "log",
        param_dtype: Any = jnp.float32,
        r1_init: nnx.Initializer | None = None,
        r2_init: nnx.Initializer | None = None,
        metadata: Mapping[str, Any] = MappingProxyType({}),
        rngs: nnx.Rngs,
    ):
        self.num_heads = checks.positive_int("num_heads", num_heads)
        self.variant = settings.parse_variant("variant", variant)
        param_dtype = checks.floating_dtype("param_dtype", param_dtype)
        default_r1_init, default_r2_init = initializers.default_kerple_inits(self.variant)
        with callback():
            r1 = (r1_init or default_r1_init)(rngs.params(), (self.num_heads,), param_dtype)
            r2 = (r2_init or default_r2_init)(rngs.params(), (self.num_heads,), param_dtype)
        self.free_r1, self.free_r2 = nnx.Param(r1, **metadata), nnx.Param(r2, **metadata)

    def __call__(self, query_positions: ArrayLike, key_positions: ArrayLike) -> jax.Array:
        """Returns the bias, a float32 array of shape (..., heads, queries, keys)."""
        r1, r2 = self.free_r1[...], self.free_r2[...]
        return calls.unconstrained_kerple(self.variant, query_positions, key_positions, r1, r2)


class FIRE(nnx.Module):
    r"""FIRE, a learned function of the relative distance, with learned $c$ and threshold $L$; see `posenc_jax.fire`.

    Examples:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from posenc_jax.nnx import FIRE
      >>> FIRE(8, rngs=nnx.Rngs(0))(jnp.arange(5), jnp.arange(7)).shape
      (8, 5, 7)

    Args:
      num_heads: the number of heads.
      hidden: the number of hidden units.
      c: the initial value of $c$.
      threshold: the initial value of $L$.
      param_dtype: the dtype of all parameters.
      kernel_init: the initializer of the weights, of shapes (1, hidden) and (hidden, num_heads). By default uniform
        within $\pm 1/\sqrt{\text{fan in}}$, as in the authors' listing.
      bias_init: the initializer of the biases, of shapes (hidden,) and (num_heads,). By default uniform within ±1, as
        the hidden biases are in the listing.
      kernel_metadata: metadata of the weights, such as their sharding.
      bias_metadata: metadata of the biases.
      rngs: the random number generators for the initial values.

    Raises:
      TypeError: if a size is not an integer, or c or threshold is not a number.
      ValueError: if one of these is not positive.

    Notes:
      - Instead of $c$ and $L$, the module learns unconstrained parameters. $c$ is `jax.nn.softplus` of `free_c`. $L$ is
        its initial value times `jax.nn.softplus` of `free_multiplier`, a factor that begins at 1, so that one step size
        suits both.
      - If the hidden biases started at 0, half of the hidden units would never learn. The biases of the heads do not
        change the attention weights.

    Reference:
      Li et al., "Functional Interpolation for Relative Positions Improves Long Context Transformers", 2024, section 3
      and appendix (code).
    """

    @public
    def __init__(
        self,
        num_heads: int,
        *,
        hidden: int = 32,
        c: float = 0.1,
        threshold: float = 512.0,
        param_dtype: Any = jnp.float32,
        kernel_init: nnx.Initializer = fire_kernel_init,
        bias_init: nnx.Initializer = fire_bias_init,
        kernel_metadata: Mapping[str, Any] = MappingProxyType({}),
        bias_metadata: Mapping[str, Any] = MappingProxyType({}),
        rngs: nnx.Rngs,
    ):
        self.num_heads = checks.positive_int("num_heads", num_heads)
        self.hidden = checks.positive_int("hidden", hidden)
        c, self.threshold = check_scale(c, threshold)
        param_dtype = checks.floating_dtype("param_dtype", param_dtype)
        with callback():
            w1 = kernel_init(rngs.params(), (1, self.hidden), param_dtype)
            w2 = kernel_init(rngs.params(), (self.hidden, self.num_heads), param_dtype)
            b1 = bias_init(rngs.params(), (self.hidden,), param_dtype)
            b2 = bias_init(rngs.params(), (self.num_heads,), param_dtype)
        self.kernel1, self.kernel2 = nnx.Param(w1, **kernel_metadata), nnx.Param(w2, **kernel_metadata)
        self.bias1, self.bias2 = nnx.Param(b1, **bias_metadata), nnx.Param(b2, **bias_metadata)
        self.free_c = nnx.Param(jnp.asarray(initializers.inverse_softplus(c), param_dtype))
        self.free_multiplier = nnx.Param(jnp.asarray(initializers.inverse_softplus(1.0), param_dtype))

    def __call__(self, query_positions: ArrayLike, key_positions: ArrayLike) -> jax.Array:
        """Returns the bias, a float32 array of shape (..., heads, queries, keys)."""
        mlp = self.kernel1[...], self.bias1[...], self.kernel2[...], self.bias2[...]
        learned = self.free_c[...], self.free_multiplier[...]
        return calls.unconstrained_fire(query_positions, key_positions, mlp, *learned, self.threshold)


class RelativePositionBias(nnx.Module):
    """The bias of vision transformers, one learned value per head and offset; see `posenc_jax.relative_position_bias`.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> from flax import nnx
      >>> from posenc_jax.nnx import RelativePositionBias
      >>> grid = pe.grid_positions((7, 7))
      >>> RelativePositionBias((7, 7), 4, rngs=nnx.Rngs(0))(grid, grid).shape
      (4, 49, 49)

      In a layer, with a class token before the grid:

      >>> rngs = nnx.Rngs(0)
      >>> bias = RelativePositionBias((7, 7), 4, class_token=True, flat=True, rngs=rngs)
      >>> attend = pe.nnx.positional_attention(bias=bias)
      >>> settings = {"attention_fn": attend, "decode": False, "rngs": rngs}
      >>> attention = nnx.MultiHeadAttention(4, 16, **settings)
      >>> attention(jnp.ones((2, 50, 16), jnp.float32)).shape
      (2, 50, 16)

    Args:
      window: the sides of the grid: (7, 7) in Swin, (frames, height, width) for video, (length,) for a sequence.
      num_heads: the number of heads.
      class_token: whether tokens outside the grid, such as a class token, have their own biases: `prefix` in
        `posenc_jax.relative_position_bias`.
      symmetric: whether the table is indexed by distances instead of offsets, as in LeViT.
      flat: whether positions are indices of tokens, (..., queries), as `positional_attention` and
        `posenc_jax.attention` pass to a bias. A class token comes first, if there is one, then the grid row by row.
      out_of_range: "error", "nan" or "zeros" for offsets beyond the table; see `posenc_jax.relative_position_bias`.
      param_dtype: the dtype of the parameters.
      embedding_init: the initializer of the table, of shape (2·side − 1 per side of the window, num_heads), or (side,
        …, num_heads) if symmetric. By default normal with standard deviation 0.02, as in Swin.
      prefix_init: the initializer of the biases of tokens outside the grid, of shape (3, num_heads). It has the same
        default.
      embedding_metadata: metadata of the table, such as its sharding.
      prefix_metadata: metadata of the biases of tokens outside the grid.
      rngs: the random number generators for the initial values.

    Raises:
      TypeError: if window is not a sequence of integers, num_heads is not an integer, or class_token, symmetric or flat
        is not a bool.
      ValueError: if a number is not positive or out_of_range is unknown. When called: for the same reasons as in
        `posenc_jax.relative_position_bias`.

    Reference:
      Liu et al., "Swin Transformer", 2021, section 3.2, equation 4.
    """

    @public
    def __init__(
        self,
        window: Sequence[int],
        num_heads: int,
        *,
        class_token: bool = False,
        symmetric: bool = False,
        flat: bool = False,
        out_of_range: OutOfRange = "error",
        param_dtype: Any = jnp.float32,
        embedding_init: nnx.Initializer = default_embedding_init,
        prefix_init: nnx.Initializer = default_embedding_init,
        embedding_metadata: Mapping[str, Any] = MappingProxyType({}),
        prefix_metadata: Mapping[str, Any] = MappingProxyType({}),
        rngs: nnx.Rngs,
    ):
        self.window = checks.positive_ints("window", window)
        self.num_heads = checks.positive_int("num_heads", num_heads)
        class_token, self.flat = checks.flag("class_token", class_token), checks.flag("flat", flat)
        self.symmetric = checks.flag("symmetric", symmetric)
        self.out_of_range = checks.out_of_range("out_of_range", out_of_range)
        param_dtype = checks.floating_dtype("param_dtype", param_dtype)
        shape = initializers.offsets_shape(self.window, self.num_heads, self.symmetric)
        with callback():
            table = embedding_init(rngs.params(), shape, param_dtype)
            prefix = prefix_init(rngs.params(), (3, self.num_heads), param_dtype) if class_token else None
        self.embedding = nnx.Param(table, **embedding_metadata)
        self.prefix = None if prefix is None else nnx.Param(prefix, **prefix_metadata)

    def __call__(self, query_positions: ArrayLike, key_positions: ArrayLike) -> jax.Array:
        """Returns the bias, a float32 array of shape (..., heads, queries, keys)."""
        prefix = None if self.prefix is None else self.prefix[...]
        return calls.relative_bias(self, query_positions, key_positions, self.embedding[...], prefix)


class ContentBias(nnx.Module):
    r"""The product of a token and one learned vector per offset, times a scale; see `posenc_jax.content_bias`.

    $$s \, q_i \cdot t_{i - j - f} \qquad \text{or} \qquad s \, k_j \cdot t_{i - j - f}$$

    Examples:
      Shaw's relative keys, clipped at a distance of 16, in a layer:

      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from posenc_jax.nnx import ContentBias, positional_attention
      >>> rngs = nnx.Rngs(0)
      >>> settings = {"scale": 8**-0.5, "out_of_range": "nearest", "rngs": rngs}
      >>> shaw = ContentBias(33, 8, source="query", **settings)
      >>> attend = positional_attention(content_bias=shaw)
      >>> settings = {"attention_fn": attend, "decode": False, "rngs": rngs}
      >>> layer = nnx.MultiHeadAttention(2, 16, **settings)
      >>> layer(jnp.ones((1, 50, 16), jnp.float32)).shape
      (1, 50, 16)
      >>> layer.attention_fn.content_bias.embedding.shape
      (33, 8)

    Args:
      num_rows: the number of rows of the table $t$.
      head_dim: the number of features of a head.
      source: the tokens to multiply, "query" or "key". The other tokens are not read.
      scale: $s$. head_dim ** -0.5 if the model adds the term before it scales the scores, as Shaw's does; 1.0 if it
        adds the term afterwards, as ViTDet does.
      num_heads: the number of heads, if each head has its own table. None means that all heads share one table.
      first: $f$, the offset of the first row; see `posenc_jax.content_bias`.
      max_distance: DeBERTa's `max_relative_positions`; see `posenc_jax.content_bias`.
      out_of_range: "error", "nan", "zeros" or "nearest" for offsets without a row; see `posenc_jax.content_bias`.
      param_dtype: the dtype of the table.
      embedding_init: the initializer of the table, of shape (num_rows, head_dim) or (num_rows, num_heads, head_dim). By
        default normal with standard deviation 0.02.
      embedding_metadata: metadata of the table, such as its sharding.
      rngs: the random number generators for the initial values.

    Raises:
      TypeError: if num_rows, head_dim, num_heads, first or max_distance is not an integer, or scale is not a number.
      ValueError: if num_rows, head_dim or num_heads is not positive, source is unknown, or `posenc_jax.content_bias`
        rejects num_rows, first, max_distance or out_of_range. When called: for the same reasons as in
        `posenc_jax.content_bias`.

    Reference:
      Shaw et al., "Self-Attention with Relative Position Representations", 2018, section 3.1, equation 4, and 3.2.
    """

    source: ContentSource
    out_of_range: ContentOutOfRange

    @public
    def __init__(
        self,
        num_rows: int,
        head_dim: int,
        *,
        source: ContentSource,
        scale: float,
        num_heads: int | None = None,
        first: int | None = None,
        max_distance: int | None = None,
        out_of_range: ContentOutOfRange = "error",
        param_dtype: Any = jnp.float32,
        embedding_init: nnx.Initializer = default_embedding_init,
        embedding_metadata: Mapping[str, Any] = MappingProxyType({}),
        rngs: nnx.Rngs,
    ):
        self.num_rows = checks.positive_int("num_rows", num_rows)
        self.head_dim = checks.positive_int("head_dim", head_dim)
        self.source, self.scale = settings.parse_source("source", source), settings.parse_factor("scale", scale)
        self.num_heads = settings.optional(checks.positive_int, "num_heads", num_heads)
        self.first = settings.optional(checks.integer, "first", first)
        self.max_distance = settings.optional(checks.integer, "max_distance", max_distance)
        self.out_of_range = out_of_range
        settings.check_rows(self)
        param_dtype = checks.floating_dtype("param_dtype", param_dtype)
        shape = initializers.rows_shape(self.num_rows, self.num_heads, self.head_dim)
        with callback():
            value = embedding_init(rngs.params(), shape, param_dtype)
        self.embedding = nnx.Param(value, **embedding_metadata)

    def __call__(
        self, query_positions: ArrayLike, key_positions: ArrayLike, query: ArrayLike, key: ArrayLike
    ) -> jax.Array:
        """Returns the bias (..., heads, queries, keys) in float32, for query and key (..., length, heads, head_dim)."""
        return calls.scaled_content_bias(self, query_positions, key_positions, query, key, self.embedding[...])
