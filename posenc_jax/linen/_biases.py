r"""What Flax Linen attention takes: modules of the biases, and the attention_fn of rotary embeddings and biases."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import ArrayLike

from posenc_jax import _bias_parameters as free
from posenc_jax import _check
from posenc_jax._positional_attention import Settings
from posenc_jax.bias import alibi
from posenc_jax.frequencies import Frequencies, Layout
from posenc_jax.learned_bias import check_scale, t5
from posenc_jax.rotary import Part

default_t5_init = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")


class ALiBi(nn.Module):
    r"""The bias $-m_h\,|i - j|$ with the paper's slopes, `posenc_jax.alibi`; it has no variables.

    Args:
      num_heads: how many heads.

    Raises:
      TypeError: if num_heads is not an integer.
      ValueError: if it is not positive.

    Examples:
      >>> import jax.numpy as jnp
      >>> from posenc_jax.linen import ALiBi
      >>> ALiBi(8).apply({}, jnp.arange(5), jnp.arange(7)).shape
      (8, 5, 7)

    Reference:
      Press et al., "Train Short, Test Long", 2022, section 3.
    """

    num_heads: int

    def __post_init__(self):
        """Checks the settings."""
        _check.positive_int("ALiBi", "num_heads", self.num_heads)
        super().__post_init__()

    def __call__(self, query_positions: ArrayLike, key_positions: ArrayLike) -> jax.Array:
        """Float32 (..., heads, queries, keys)."""
        return alibi(query_positions, key_positions, self.num_heads)


class T5Bias(nn.Module):
    r"""T5's learned bias for each bucket of distances, `posenc_jax.t5`; T5 shares one among its layers.

    Args:
      num_heads: how many heads.
      num_buckets: rows of the table, of both directions together.
      max_distance: as for `posenc_jax.t5`.
      bidirectional: as for `posenc_jax.t5`; T5's decoder has `False`.
      param_dtype: dtype of the table.
      embedding_init: initialiser of the table (num_buckets, num_heads), possibly with metadata
        (`nn.with_partitioning`); by default that of T5X.

    Raises:
      TypeError: if a number is not an integer or bidirectional not a bool.
      ValueError: if a number is not positive. When called: as `posenc_jax.t5`.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from posenc_jax.linen import T5Bias
      >>> bias, positions = T5Bias(8), jnp.arange(5)
      >>> variables = bias.init(jax.random.key(0), positions, positions)
      >>> bias.apply(variables, positions, jnp.arange(7)).shape
      (8, 5, 7)

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

    def __post_init__(self):
        """Checks the settings."""
        where = "T5Bias"
        _check.positive_int(where, "num_heads", self.num_heads)
        _check.positive_int(where, "num_buckets", self.num_buckets)
        _check.positive_int(where, "max_distance", self.max_distance)
        _check.flag(where, "bidirectional", self.bidirectional)
        _check.floating_dtype(where, self.param_dtype, "param_dtype")
        super().__post_init__()

    @nn.compact
    def __call__(self, query_positions: ArrayLike, key_positions: ArrayLike) -> jax.Array:
        """Float32 (..., heads, queries, keys)."""
        table = self.param("embedding", self.embedding_init, (self.num_buckets, self.num_heads), self.param_dtype)
        settings = {"bidirectional": self.bidirectional, "max_distance": self.max_distance}
        return t5(query_positions, key_positions, table, **settings)


class KERPLE(nn.Module):
    r"""KERPLE's bias of either form, `posenc_jax.kerple_log` or `posenc_jax.kerple_power`, with learned parameters.

    $$-r_1 \ln(1 + r_2\,|i - j|) \qquad \text{or} \qquad -r_1\,|i - j|^{r_2}$$

    What is learned are free numbers, `free_r1` and `free_r2`: $r_1$ and the logarithm's $r_2$ are `jax.nn.softplus` of
    theirs, the exponent is 2 · `jax.nn.sigmoid` of it, so that the kernel stays conditionally positive definite.

    Args:
      num_heads: how many heads.
      form: "log" or "power".
      param_dtype: dtype of the parameters.
      r1_init: initialiser of the free numbers (num_heads,) of $r_1$, possibly with metadata. By default, as in the
        authors' code, $r_1$ begins uniform from 0 to 2 (log) or 1 (power).
      r2_init: the same of $r_2$, which begins uniform from 0 to 1 (log) or 2 (power).

    Raises:
      TypeError: if num_heads is not an integer.
      ValueError: if it is not positive or form is unknown.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from posenc_jax.linen import KERPLE
      >>> bias, positions = KERPLE(8), jnp.arange(5)
      >>> variables = bias.init(jax.random.key(0), positions, positions)
      >>> bias.apply(variables, positions, jnp.arange(7)).shape
      (8, 5, 7)

    Reference:
      Chi et al., "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation", 2022, section 4.
    """

    num_heads: int
    _: dataclasses.KW_ONLY
    form: free.Form = "log"
    param_dtype: Any = jnp.float32
    r1_init: nn.initializers.Initializer | None = None
    r2_init: nn.initializers.Initializer | None = None

    def __post_init__(self):
        """Checks the settings."""
        where = "KERPLE"
        _check.positive_int(where, "num_heads", self.num_heads)
        free.form(where, self.form)
        _check.floating_dtype(where, self.param_dtype, "param_dtype")
        super().__post_init__()

    @nn.compact
    def __call__(self, query_positions: ArrayLike, key_positions: ArrayLike) -> jax.Array:
        """Float32 (..., heads, queries, keys)."""
        first, second = free.kerple_inits(self.form)
        r1 = self.param("free_r1", self.r1_init or first, (self.num_heads,), self.param_dtype)
        r2 = self.param("free_r2", self.r2_init or second, (self.num_heads,), self.param_dtype)
        return free.kerple(self.form, query_positions, key_positions, r1, r2)


class FIRE(nn.Module):
    r"""FIRE, a learned function of the relative distance, `posenc_jax.fire`, with learned $c$ and threshold $L$.

    What is learned of these two are free numbers: $c$ is `jax.nn.softplus` of `free_c`, and $L$ is its initial value
    times that of `free_multiplier`, which begins at 1, so that steps of one size suit both.

    Args:
      num_heads: how many heads.
      hidden: hidden units of the perceptron.
      c: its initial value.
      threshold: initial value of $L$.
      param_dtype: dtype of all parameters.
      kernel_init: initialiser of the weights, of shapes (1, hidden) and (hidden, num_heads), possibly with metadata;
        uniform within $\pm 1/\sqrt{\text{fan in}}$ by default, as in the authors' listing.
      bias_init: initialiser of the biases, (hidden,) and (num_heads,), possibly with metadata; uniform within ±1 by
        default, as the listing has the former: begun at 0, half of the units would never learn. The latter change no
        weight of attention.

    Raises:
      TypeError: if a size is not an integer, or c or threshold not a number.
      ValueError: if one of these is not positive.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from posenc_jax.linen import FIRE
      >>> bias, positions = FIRE(8), jnp.arange(5)
      >>> variables = bias.init(jax.random.key(0), positions, positions)
      >>> bias.apply(variables, positions, jnp.arange(7)).shape
      (8, 5, 7)

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
    kernel_init: nn.initializers.Initializer = free.fire_kernel_init
    bias_init: nn.initializers.Initializer = free.fire_bias_init

    def __post_init__(self):
        """Checks the settings."""
        where = "FIRE"
        _check.positive_int(where, "num_heads", self.num_heads)
        _check.positive_int(where, "hidden", self.hidden)
        check_scale(where, self.c, self.threshold)
        _check.floating_dtype(where, self.param_dtype, "param_dtype")
        super().__post_init__()

    @nn.compact
    def __call__(self, query_positions: ArrayLike, key_positions: ArrayLike) -> jax.Array:
        """Float32 (..., heads, queries, keys)."""
        kernels, biases = ("kernel1", "kernel2"), ("bias1", "bias2")
        shapes = (1, self.hidden), (self.hidden, self.num_heads)
        w1, w2 = (self.param(n, self.kernel_init, s, self.param_dtype) for n, s in zip(kernels, shapes, strict=True))
        b1, b2 = (self.param(n, self.bias_init, s[1:], self.param_dtype) for n, s in zip(biases, shapes, strict=True))
        starts = {"free_c": free.free(self.c), "free_multiplier": free.ONE}
        c, multiplier = (self.param(n, nn.initializers.constant(v), (), self.param_dtype) for n, v in starts.items())
        return free.fire_of(query_positions, key_positions, (w1, b1, w2, b2), c, multiplier, self.threshold)


class PositionalAttention(nn.Module):
    """An attention_fn, made by `positional_attention`. A bias with parameters is a submodule of it."""

    settings: Settings
    bias: Callable[..., jax.Array] | None

    @property
    def __signature__(self) -> inspect.Signature:
        """With the names of what is passed on: Linen leaves out the arguments that it does not find here, masks too."""
        own = inspect.signature(nn.dot_product_attention).parameters.values()
        ours = (inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in _POSITIONS)
        return inspect.Signature([*own, *ours])

    def __call__(self, query: jax.Array, key: jax.Array, value: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
        """`nn.dot_product_attention`, with `input_positions` and `key_positions` among its arguments."""
        return self.settings(nn.dot_product_attention, self.bias, query, key, value, *args, **kwargs)


_POSITIONS = ("input_positions", "key_positions")


def positional_attention(
    frequencies: Frequencies | int | None = None,
    *,
    bias: Callable[..., jax.Array] | None = None,
    layout: Layout = "half",
    part: Part = "first",
    decode: bool = False,
) -> PositionalAttention:
    r"""An `attention_fn` for `nn.MultiHeadDotProductAttention`: any rotary embedding and any bias, or both.

    The score of a query at position $p$ and a key at $t$, with $R$ the rotation of `posenc_jax.rotary`, is

    $$(R_p q) \cdot (R_t k) / \sqrt{\text{head\_dim}} + \text{bias}(p, t)$$

    and the rest is `nn.dot_product_attention`, with all of its arguments; the bias is added to one given there.

    Positions are two more arguments of the attention_fn, of one position for each query or key: `input_positions` of
    the inputs, queries and keys alike, and `key_positions` where the keys have others; bind them with
    `functools.partial`. With neither, both count from zero. Where queries and keys differ in number nothing is guessed:
    both are needed, but for `decode`.

    Args:
      frequencies: the width that turns, or `Frequencies` of that width; even and at most head_dim. `None`: no rotation.
      bias: a function of (query_positions, key_positions) that gives floats (..., heads, queries, keys): a module of
        `posenc_jax.linen`, or say `functools.partial(pe.alibi, heads=8)`. A module made outside of others becomes that
        of the layer, at "attention_fn" and "bias" among its variables. One made in a module's `setup` or
        `@nn.compact` belongs to that module: layers that get it share its parameters, and positions can be bound.
      layout: as for `posenc_jax.rotary`.
      part: as for `posenc_jax.rotary`.
      decode: where keys outnumber queries and have no positions, they are a cache that holds position i in slot i, as
        a layer with `decode=True` fills it. `input_positions` must then be the slots of the queries, in rows that are
        padded on the left too, if scores depend on the distance alone (those of `FIRE` do not). Flax keeps keys
        unturned and all are turned at each step; a cache of turned keys, as in the example of
        `posenc_jax.nnx.RotaryEncoding`, is cheaper.

    Returns:
      The attention_fn: a module, and a hashable value without arrays, equal to another of the same settings.

    Raises:
      TypeError: if frequencies is an array, bias cannot be called, or decode is not a bool.
      ValueError: if a setting is not one of the above, there are neither frequencies nor a bias, or there are both but
        positions have several axes. When called: if positions are missing, or not one for each, or the bias is not of
        the shape above.

    Examples:
      >>> import functools
      >>> import jax, jax.numpy as jnp
      >>> from flax import linen as nn
      >>> from posenc_jax.linen import ALiBi, T5Bias, positional_attention
      >>> layer = nn.MultiHeadDotProductAttention(2, attention_fn=positional_attention(bias=T5Bias(2)))
      >>> x = jnp.ones((1, 5, 16), jnp.float32)
      >>> layer.init(jax.random.key(0), x)["params"]["attention_fn"]["bias"]["embedding"].shape
      (32, 2)
      >>> attend = positional_attention(8, bias=ALiBi(2))  # nothing to learn, so positions can be bound here too
      >>> layer = nn.MultiHeadDotProductAttention(2, attention_fn=attend)
      >>> variables = layer.init(jax.random.key(0), x)
      >>> far = layer.clone(attention_fn=functools.partial(attend, input_positions=jnp.arange(1000, 1005)))
      >>> bool(jnp.allclose(layer.apply(variables, x), far.apply(variables, x), atol=1e-5))
      True

    Reference:
      Su et al., "RoFormer", 2021, section 3.2.2, equation 16, for the rotation.
    """
    settings = Settings(frequencies, layout, part, decode)  # type: ignore[arg-type]
    return PositionalAttention(settings, settings.fit(bias))
