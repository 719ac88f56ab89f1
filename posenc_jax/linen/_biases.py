r"""Flax Linen modules of the attention biases."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import ArrayLike

from posenc_jax._biases.content import ContentOutOfRange, ContentSource
from posenc_jax._biases.formulas import alibi
from posenc_jax._biases.learned import check_scale, t5
from posenc_jax._flax import calls, initializers, settings
from posenc_jax._flax.initializers import default_embedding_init, default_t5_init, fire_bias_init, fire_kernel_init
from posenc_jax._flax.settings import Variant
from posenc_jax._jax import checks
from posenc_jax._jax.checks import OutOfRange
from posenc_jax._jax.errors import public


class ALiBi(nn.Module):
    r"""ALiBi's bias $-m_h\,|i - j|$ with the paper's slopes; see `posenc_jax.alibi`. It has no variables.

    Examples:
      >>> import jax.numpy as jnp
      >>> from posenc_jax.linen import ALiBi
      >>> ALiBi(8).apply({}, jnp.arange(5), jnp.arange(7)).shape
      (8, 5, 7)

    Args:
      num_heads: the number of heads.

    Raises:
      TypeError: if num_heads is not an integer.
      ValueError: if num_heads is not positive.

    Reference:
      Press et al., "Train Short, Test Long", 2022, section 3.
    """

    num_heads: int

    @public
    def __post_init__(self) -> None:
        """Checks the settings."""
        settings.check_fields(self, checks.positive_int, "num_heads")
        super().__post_init__()

    def __call__(self, query_positions: ArrayLike, key_positions: ArrayLike) -> jax.Array:
        """Returns the bias, a float32 array of shape (..., heads, queries, keys)."""
        return alibi(query_positions, key_positions, self.num_heads)


class T5Bias(nn.Module):
    """T5's bias, one learned value per head and bucket of distances; see `posenc_jax.t5`.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from posenc_jax.linen import T5Bias
      >>> bias, positions = T5Bias(8), jnp.arange(5)
      >>> variables = bias.init(jax.random.key(0), positions, positions)
      >>> bias.apply(variables, positions, jnp.arange(7)).shape
      (8, 5, 7)

      The layers of T5 share one table. In a scanned stack, a module made inside a layer, or passed to the layers, has
      one table per layer. For a shared table, call the module once, outside, and pass the bias to all layers:

      >>> import functools
      >>> from flax import linen as nn
      >>> class Block(nn.Module):
      ...     @nn.compact
      ...     def __call__(self, x, bias):
      ...         attend = functools.partial(nn.dot_product_attention, bias=bias)
      ...         return x + nn.MultiHeadDotProductAttention(2, attention_fn=attend)(x), None
      >>> class Stack(nn.Module):
      ...     @nn.compact
      ...     def __call__(self, x):
      ...         positions = jnp.arange(x.shape[1])[None]
      ...         bias = T5Bias(2)(positions, positions)
      ...         split = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
      ...         return nn.scan(Block, **split, in_axes=nn.broadcast, length=3)()(x, bias)[0]
      >>> variables = Stack().init(jax.random.key(0), jnp.ones((1, 5, 16), jnp.float32))
      >>> variables["params"]["T5Bias_0"]["embedding"].shape
      (32, 2)

    Args:
      num_heads: the number of heads.
      num_buckets: the number of rows of the table, for both directions together.
      max_distance: the distance from which all keys share the last bucket.
      bidirectional: whether keys after the query have buckets of their own; `False` in T5's decoder. See
        `posenc_jax.t5`.
      param_dtype: the dtype of the table.
      embedding_init: the initializer of the table, of shape (num_buckets, num_heads), which may add metadata
        (`nn.with_partitioning`); T5X's by default.

    Raises:
      TypeError: if num_heads, num_buckets or max_distance is not an integer, or bidirectional is not a bool.
      ValueError: if one of them is not positive. When called: for the same reasons as in `posenc_jax.t5`.

    Reference:
      Raffel et al., "Exploring the Limits of Transfer Learning", 2020, section 2.1.
    """

    num_heads: int
    _: dataclasses.KW_ONLY
    num_buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True
    param_dtype: Any = jnp.float32
    embedding_init: nn.initializers.Initializer = default_t5_init

    @public
    def __post_init__(self) -> None:
        """Checks the settings."""
        settings.check_fields(self, checks.positive_int, "num_heads num_buckets max_distance")
        settings.check_fields(self, checks.flag, "bidirectional")
        settings.check_fields(self, checks.floating_dtype, "param_dtype")
        super().__post_init__()

    @nn.compact
    def __call__(self, query_positions: ArrayLike, key_positions: ArrayLike) -> jax.Array:
        """Returns the bias, a float32 array of shape (..., heads, queries, keys)."""
        table = self.param("embedding", self.embedding_init, (self.num_buckets, self.num_heads), self.param_dtype)
        options = {"bidirectional": self.bidirectional, "max_distance": self.max_distance}
        return t5(query_positions, key_positions, table, **options)


class KERPLE(nn.Module):
    r"""KERPLE's bias with learned parameters; see `posenc_jax.kerple_log` and `posenc_jax.kerple_power`.

    $$-r_1 \ln(1 + r_2\,|i - j|) \text{ (log)} \qquad \text{or} \qquad -r_1\,|i - j|^{r_2} \text{ (power)}$$

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from posenc_jax.linen import KERPLE
      >>> bias, positions = KERPLE(8), jnp.arange(5)
      >>> variables = bias.init(jax.random.key(0), positions, positions)
      >>> bias.apply(variables, positions, jnp.arange(7)).shape
      (8, 5, 7)

    Args:
      num_heads: the number of heads.
      variant: "log" or "power".
      param_dtype: the dtype of the parameters.
      r1_init: the initializer of `free_r1`, of shape (num_heads,), which may add metadata. By default, as in the
        authors' code, $r_1$ is uniform from 0 to 2 (log) or from 0 to 1 (power).
      r2_init: the initializer of `free_r2`, of shape (num_heads,), which may add metadata. By default, $r_2$ is uniform
        from 0 to 1 (log) or from 0 to 2 (power).

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

    num_heads: int
    _: dataclasses.KW_ONLY
    variant: Variant = "log"
    param_dtype: Any = jnp.float32
    r1_init: nn.initializers.Initializer | None = None
    r2_init: nn.initializers.Initializer | None = None

    @public
    def __post_init__(self) -> None:
        """Checks the settings."""
        settings.check_fields(self, checks.positive_int, "num_heads")
        settings.check_fields(self, settings.parse_variant, "variant")
        settings.check_fields(self, checks.floating_dtype, "param_dtype")
        super().__post_init__()

    @nn.compact
    def __call__(self, query_positions: ArrayLike, key_positions: ArrayLike) -> jax.Array:
        """Returns the bias, a float32 array of shape (..., heads, queries, keys)."""
        default_r1_init, default_r2_init = initializers.default_kerple_inits(self.variant)
        r1 = self.param("free_r1", self.r1_init or default_r1_init, (self.num_heads,), self.param_dtype)
        r2 = self.param("free_r2", self.r2_init or default_r2_init, (self.num_heads,), self.param_dtype)
        return calls.unconstrained_kerple(self.variant, query_positions, key_positions, r1, r2)


class FIRE(nn.Module):
    r"""FIRE, a learned function of the relative distance, with learned $c$ and threshold $L$; see `posenc_jax.fire`.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from posenc_jax.linen import FIRE
      >>> bias, positions = FIRE(8), jnp.arange(5)
      >>> variables = bias.init(jax.random.key(0), positions, positions)
      >>> bias.apply(variables, positions, jnp.arange(7)).shape
      (8, 5, 7)

    Args:
      num_heads: the number of heads.
      hidden: the number of hidden units.
      c: the initial value of $c$.
      threshold: the initial value of $L$.
      param_dtype: the dtype of all parameters.
      kernel_init: the initializer of the weights, of shapes (1, hidden) and (hidden, num_heads), which may add
        metadata. By default uniform within $\pm 1/\sqrt{\text{fan in}}$, as in the authors' listing.
      bias_init: the initializer of the biases, of shapes (hidden,) and (num_heads,), which may add metadata. By default
        uniform within ±1, as the hidden biases are in the listing.

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

    num_heads: int
    _: dataclasses.KW_ONLY
    hidden: int = 32
    c: float = 0.1
    threshold: float = 512.0
    param_dtype: Any = jnp.float32
    kernel_init: nn.initializers.Initializer = fire_kernel_init
    bias_init: nn.initializers.Initializer = fire_bias_init

    @public
    def __post_init__(self) -> None:
        """Checks the settings."""
        settings.check_fields(self, checks.positive_int, "num_heads hidden")
        settings.check_fields(self, checks.floating_dtype, "param_dtype")
        check_scale(self.c, self.threshold)
        super().__post_init__()

    @nn.compact
    def __call__(self, query_positions: ArrayLike, key_positions: ArrayLike) -> jax.Array:
        """Returns the bias, a float32 array of shape (..., heads, queries, keys)."""
        w1 = self.param("kernel1", self.kernel_init, (1, self.hidden), self.param_dtype)
        w2 = self.param("kernel2", self.kernel_init, (self.hidden, self.num_heads), self.param_dtype)
        b1 = self.param("bias1", self.bias_init, (self.hidden,), self.param_dtype)
        b2 = self.param("bias2", self.bias_init, (self.num_heads,), self.param_dtype)
        c_init = nn.initializers.constant(initializers.inverse_softplus(self.c))
        c = self.param("free_c", c_init, (), self.param_dtype)
        multiplier_init = nn.initializers.constant(initializers.inverse_softplus(1.0))
        multiplier = self.param("free_multiplier", multiplier_init, (), self.param_dtype)
        mlp = w1, b1, w2, b2
        return calls.unconstrained_fire(query_positions, key_positions, mlp, c, multiplier, self.threshold)


class RelativePositionBias(nn.Module):
    """The bias of vision transformers, one learned value per head and offset; see `posenc_jax.relative_position_bias`.

    Examples:
      >>> import jax
      >>> import posenc_jax as pe
      >>> from posenc_jax.linen import RelativePositionBias
      >>> bias, grid = RelativePositionBias((7, 7), 4), pe.grid_positions((7, 7))
      >>> variables = bias.init(jax.random.key(0), grid, grid)
      >>> bias.apply(variables, grid, grid).shape
      (4, 49, 49)

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
        …, num_heads) if symmetric, which may add metadata (`nn.with_partitioning`). By default normal with standard
        deviation 0.02, as in Swin.
      prefix_init: the initializer of the biases of tokens outside the grid, of shape (3, num_heads), which may add
        metadata. It has the same default.

    Raises:
      TypeError: if window is not a sequence of integers, num_heads is not an integer, or class_token, symmetric or flat
        is not a bool.
      ValueError: if a number is not positive or out_of_range is unknown. When called: for the same reasons as in
        `posenc_jax.relative_position_bias`.

    Reference:
      Liu et al., "Swin Transformer", 2021, section 3.2, equation 4.
    """

    window: Sequence[int]
    num_heads: int
    _: dataclasses.KW_ONLY
    class_token: bool = False
    symmetric: bool = False
    flat: bool = False
    out_of_range: OutOfRange = "error"
    param_dtype: Any = jnp.float32
    embedding_init: nn.initializers.Initializer = default_embedding_init
    prefix_init: nn.initializers.Initializer = default_embedding_init

    @public
    def __post_init__(self) -> None:
        """Checks the settings."""
        self.window = checks.positive_ints("window", self.window)
        settings.check_fields(self, checks.positive_int, "num_heads")
        settings.check_fields(self, checks.flag, "class_token symmetric flat")
        settings.check_fields(self, checks.out_of_range, "out_of_range")
        settings.check_fields(self, checks.floating_dtype, "param_dtype")
        super().__post_init__()

    @nn.compact
    def __call__(self, query_positions: ArrayLike, key_positions: ArrayLike) -> jax.Array:
        """Returns the bias, a float32 array of shape (..., heads, queries, keys)."""
        shape = initializers.offsets_shape(tuple(self.window), self.num_heads, self.symmetric)
        table, prefix = self.param("embedding", self.embedding_init, shape, self.param_dtype), None
        if self.class_token:
            prefix = self.param("prefix", self.prefix_init, (3, self.num_heads), self.param_dtype)
        return calls.relative_bias(self, query_positions, key_positions, table, prefix)


class ContentBias(nn.Module):
    r"""The product of a token and one learned vector per offset, times a scale; see `posenc_jax.content_bias`.

    $$s \, q_i \cdot t_{i - j - f} \qquad \text{or} \qquad s \, k_j \cdot t_{i - j - f}$$

    Examples:
      Shaw's relative keys, clipped at a distance of 16, in a layer:

      >>> import jax, jax.numpy as jnp
      >>> from flax import linen as nn
      >>> from posenc_jax.linen import ContentBias, positional_attention
      >>> shaw = ContentBias(33, 8, source="query", scale=8**-0.5, out_of_range="nearest")
      >>> attend = positional_attention(content_bias=shaw)
      >>> layer = nn.MultiHeadDotProductAttention(2, attention_fn=attend)
      >>> x = jnp.ones((1, 50, 16), jnp.float32)
      >>> variables = layer.init(jax.random.key(0), x)
      >>> variables["params"]["attention_fn"]["content_bias"]["embedding"].shape
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
      embedding_init: the initializer of the table, of shape (num_rows, head_dim) or (num_rows, num_heads, head_dim),
        which may add metadata (`nn.with_partitioning`). By default normal with standard deviation 0.02.

    Raises:
      TypeError: if num_rows, head_dim, num_heads, first or max_distance is not an integer, or scale is not a number.
      ValueError: if num_rows, head_dim or num_heads is not positive, source is unknown, or `posenc_jax.content_bias`
        rejects num_rows, first, max_distance or out_of_range. When called: for the same reasons as in
        `posenc_jax.content_bias`.

    Reference:
      Shaw et al., "Self-Attention with Relative Position Representations", 2018, section 3.1, equation 4, and 3.2.
    """

    num_rows: int
    head_dim: int
    _: dataclasses.KW_ONLY
    source: ContentSource
    scale: float
    num_heads: int | None = None
    first: int | None = None
    max_distance: int | None = None
    out_of_range: ContentOutOfRange = "error"
    param_dtype: Any = jnp.float32
    embedding_init: nn.initializers.Initializer = default_embedding_init

    @public
    def __post_init__(self) -> None:
        """Checks the settings."""
        settings.check_fields(self, checks.positive_int, "num_rows head_dim")
        settings.check_fields(self, settings.parse_source, "source")
        settings.check_fields(self, settings.parse_factor, "scale")
        settings.check_fields(self, functools.partial(settings.optional, checks.positive_int), "num_heads")
        settings.check_rows(self)
        settings.check_fields(self, checks.floating_dtype, "param_dtype")
        super().__post_init__()

    @nn.compact
    def __call__(
        self, query_positions: ArrayLike, key_positions: ArrayLike, query: ArrayLike, key: ArrayLike
    ) -> jax.Array:
        """Returns the bias (..., heads, queries, keys) in float32, for query and key (..., length, heads, head_dim)."""
        shape = initializers.rows_shape(self.num_rows, self.num_heads, self.head_dim)
        table = self.param("embedding", self.embedding_init, shape, self.param_dtype)
        return calls.scaled_content_bias(self, query_positions, key_positions, query, key, table)
