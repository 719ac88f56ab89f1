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
    r"""ALiBi's bias $-m_h\,|i - j|$ with the paper's slopes, `posenc_jax.alibi`; it has no variables.

    Examples:
      >>> import jax.numpy as jnp
      >>> from posenc_jax.linen import ALiBi
      >>> ALiBi(8).apply({}, jnp.arange(5), jnp.arange(7)).shape
      (8, 5, 7)

    Args:
      num_heads: number of heads.

    Raises:
      TypeError: if num_heads is not an integer.
      ValueError: if it is not positive.

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
        """Float32 (..., heads, queries, keys)."""
        return alibi(query_positions, key_positions, self.num_heads)


class T5Bias(nn.Module):
    r"""T5's learned bias for each bucket of distances, `posenc_jax.t5`; the layers of T5 share one.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from posenc_jax.linen import T5Bias
      >>> bias, positions = T5Bias(8), jnp.arange(5)
      >>> variables = bias.init(jax.random.key(0), positions, positions)
      >>> bias.apply(variables, positions, jnp.arange(7)).shape
      (8, 5, 7)

      In a scanned stack, a module made inside a layer has one table for each layer, and so has a module that is passed
      to the layers. For one shared table, call the module once, outside, and broadcast the bias to the layers:

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
      num_heads: number of heads.
      num_buckets: rows of the table, for both directions together.
      max_distance: as for `posenc_jax.t5`.
      bidirectional: as for `posenc_jax.t5`; `False` in T5's decoder.
      param_dtype: dtype of the table.
      embedding_init: initialiser of the table (num_buckets, num_heads), which may add metadata
        (`nn.with_partitioning`); T5X's by default.

    Raises:
      TypeError: if a number is not an integer or bidirectional is not a bool.
      ValueError: if a number is not positive. When called: as `posenc_jax.t5`.

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
        """Float32 (..., heads, queries, keys)."""
        table = self.param("embedding", self.embedding_init, (self.num_buckets, self.num_heads), self.param_dtype)
        options = {"bidirectional": self.bidirectional, "max_distance": self.max_distance}
        return t5(query_positions, key_positions, table, **options)


class KERPLE(nn.Module):
    r"""Either variant of KERPLE, `posenc_jax.kerple_log` or `posenc_jax.kerple_power`, with learned parameters.

    $$-r_1 \ln(1 + r_2\,|i - j|) \qquad \text{or} \qquad -r_1\,|i - j|^{r_2}$$

    The parameters `free_r1` and `free_r2` are unconstrained. `jax.nn.softplus` maps them to $r_1$ and to the
    logarithm's $r_2$, 2 · `jax.nn.sigmoid` to the exponent $r_2$, so the kernel stays conditionally positive definite.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from posenc_jax.linen import KERPLE
      >>> bias, positions = KERPLE(8), jnp.arange(5)
      >>> variables = bias.init(jax.random.key(0), positions, positions)
      >>> bias.apply(variables, positions, jnp.arange(7)).shape
      (8, 5, 7)

    Args:
      num_heads: number of heads.
      variant: "log" or "power".
      param_dtype: dtype of the parameters.
      r1_init: initialiser of `free_r1` (num_heads,), which may add metadata. By default, as in the authors' code, $r_1$
        is uniform from 0 to 2 (log) or 1 (power).
      r2_init: the same for `free_r2`. By default $r_2$ is uniform from 0 to 1 (log) or 2 (power).

    Raises:
      TypeError: if num_heads is not an integer.
      ValueError: if it is not positive or variant is unknown.

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
        """Float32 (..., heads, queries, keys)."""
        default_r1_init, default_r2_init = initializers.default_kerple_inits(self.variant)
        r1 = self.param("free_r1", self.r1_init or default_r1_init, (self.num_heads,), self.param_dtype)
        r2 = self.param("free_r2", self.r2_init or default_r2_init, (self.num_heads,), self.param_dtype)
        return calls.unconstrained_kerple(self.variant, query_positions, key_positions, r1, r2)


class FIRE(nn.Module):
    r"""FIRE, a learned function of the relative distance, `posenc_jax.fire`, with learned $c$ and threshold $L$.

    In place of these two, the module learns unconstrained numbers: $c$ is `jax.nn.softplus` of `free_c`, and $L$ is its
    initial value times `jax.nn.softplus` of `free_multiplier`, a factor that begins at 1, so that one step size
    suits both.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from posenc_jax.linen import FIRE
      >>> bias, positions = FIRE(8), jnp.arange(5)
      >>> variables = bias.init(jax.random.key(0), positions, positions)
      >>> bias.apply(variables, positions, jnp.arange(7)).shape
      (8, 5, 7)

    Args:
      num_heads: number of heads.
      hidden: number of hidden units.
      c: initial value of $c$.
      threshold: initial value of $L$.
      param_dtype: dtype of all parameters.
      kernel_init: initialiser of the weights, of shapes (1, hidden) and (hidden, num_heads), which may add metadata;
        uniform within $\pm 1/\sqrt{\text{fan in}}$ by default, as in the authors' listing.
      bias_init: initialiser of the biases, (hidden,) and (num_heads,), which may add metadata; uniform within ±1 by
        default, as the hidden biases are in the listing: from 0, half of the hidden units would never learn. The biases
        of the heads do not change the attention weights.

    Raises:
      TypeError: if a size is not an integer, or c or threshold is not a number.
      ValueError: if one of these is not positive.

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
        """Float32 (..., heads, queries, keys)."""
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
    r"""The bias of vision transformers, a learned value for each offset, `posenc_jax.relative_position_bias`.

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
      num_heads: number of heads.
      class_token: whether tokens outside the grid have a bias of their own: the argument `prefix` of
        `posenc_jax.relative_position_bias`.
      symmetric: as for `posenc_jax.relative_position_bias`.
      flat: whether positions are indices of tokens, (..., queries), as `positional_attention` and
        `posenc_jax.attention` give them to a bias: a class token first, if there is one, then the grid row by row.
      out_of_range: as for `posenc_jax.relative_position_bias`.
      param_dtype: dtype of the parameters.
      embedding_init: initialiser of the table (2·side − 1 for each side of the window, num_heads), or of (side, …,
        num_heads) if symmetric, which may add metadata (`nn.with_partitioning`); normal with deviation 0.02 by default,
        as in Swin.
      prefix_init: the same for the rows for tokens outside the grid, (3, num_heads).

    Raises:
      TypeError: if window is not a sequence of integers, num_heads is not an integer, or class_token, symmetric or
        flat is not a bool.
      ValueError: if a number is not positive or out_of_range is unknown. When called: as
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
        """Float32 (..., heads, queries, keys)."""
        shape = initializers.offsets_shape(tuple(self.window), self.num_heads, self.symmetric)
        table, prefix = self.param("embedding", self.embedding_init, shape, self.param_dtype), None
        if self.class_token:
            prefix = self.param("prefix", self.prefix_init, (3, self.num_heads), self.param_dtype)
        return calls.relative_bias(self, query_positions, key_positions, table, prefix)


class ContentBias(nn.Module):
    r"""The product of a token and a learned vector for each offset, `posenc_jax.content_bias`, times a scale.

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
      num_rows: number of rows of the table $t$.
      head_dim: features of a head.
      source: the tokens whose vectors are multiplied, "query" or "key". The others are not read.
      scale: $s$: head_dim ** -0.5 where the model adds the term inside the scale of the scores, as Shaw's does, and 1.0
        where it adds the term after it, as ViTDet does.
      num_heads: number of heads if each has its own table; None: all share one.
      first: as for `posenc_jax.content_bias`.
      max_distance: as for `posenc_jax.content_bias`.
      out_of_range: as for `posenc_jax.content_bias`.
      param_dtype: dtype of the table.
      embedding_init: initialiser of the table, (num_rows, head_dim) or (num_rows, num_heads, head_dim), which may add
        metadata (`nn.with_partitioning`); normal with deviation 0.02 by default.

    Raises:
      TypeError: if num_rows, head_dim, num_heads, first or max_distance is not an integer, or scale is not a number.
      ValueError: if a number is not positive, source is unknown, or `posenc_jax.content_bias` rejects the number of
        rows, first, max_distance or out_of_range. When called: as `posenc_jax.content_bias`.

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
        """Float32 (..., heads, queries, keys), of query (..., queries, heads, head_dim) and key likewise."""
        shape = initializers.rows_shape(self.num_rows, self.num_heads, self.head_dim)
        table = self.param("embedding", self.embedding_init, shape, self.param_dtype)
        return calls.scaled_content_bias(self, query_positions, key_positions, query, key, table)
