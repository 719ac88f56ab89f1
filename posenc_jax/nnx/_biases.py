r"""What Flax NNX attention takes: modules of the biases, and the attention_fn of rotary embeddings and biases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import ArrayLike

from posenc_jax import _bias_parameters as free
from posenc_jax import _check
from posenc_jax._positional_attention import Settings
from posenc_jax.bias import alibi
from posenc_jax.frequencies import Frequencies, Layout
from posenc_jax.learned_bias import check_scale, t5
from posenc_jax.rotary import Part

default_t5_init = nnx.initializers.variance_scaling(1.0, "fan_avg", "uniform")
_NONE: Mapping[str, Any] = MappingProxyType({})


class ALiBi(nnx.Module):
    r"""The bias $-m_h\,|i - j|$ with the paper's slopes, `posenc_jax.alibi`; it has no parameters and no state.

    Args:
      num_heads: how many heads.

    Raises:
      TypeError: if num_heads is not an integer.
      ValueError: if it is not positive.

    Examples:
      >>> import jax.numpy as jnp
      >>> from posenc_jax.nnx import ALiBi
      >>> ALiBi(8)(jnp.arange(5), jnp.arange(7)).shape
      (8, 5, 7)

    Reference:
      Press et al., "Train Short, Test Long", 2022, section 3.
    """

    def __init__(self, num_heads: int):
        """See the class."""
        self.num_heads = _check.positive_int("ALiBi", "num_heads", num_heads)

    def __call__(self, query_positions: ArrayLike, key_positions: ArrayLike) -> jax.Array:
        """Float32 (..., heads, queries, keys)."""
        return alibi(query_positions, key_positions, self.num_heads)


class T5Bias(nnx.Module):
    r"""T5's learned bias for each bucket of distances, `posenc_jax.t5`; T5 shares one among its layers.

    Args:
      num_heads: how many heads.
      num_buckets: rows of the table, of both directions together.
      max_distance: as for `posenc_jax.t5`.
      bidirectional: as for `posenc_jax.t5`; T5's decoder has `False`.
      param_dtype: dtype of the table.
      embedding_init: initialiser of the table (num_buckets, num_heads); by default that of T5X.
      embedding_metadata: metadata of the parameter, such as its sharding.
      rngs: source of the initial values.

    Raises:
      TypeError: if a number is not an integer or bidirectional not a bool.
      ValueError: if a number is not positive. When called: as `posenc_jax.t5`.

    Examples:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from posenc_jax.nnx import T5Bias
      >>> T5Bias(8, rngs=nnx.Rngs(0))(jnp.arange(5), jnp.arange(7)).shape
      (8, 5, 7)

    Reference:
      Raffel et al., "Exploring the Limits of Transfer Learning", 2020, section 2.1.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        param_dtype: Any = jnp.float32,
        embedding_init: nnx.Initializer = default_t5_init,
        embedding_metadata: Mapping[str, Any] = _NONE,
        rngs: nnx.Rngs,
    ):
        """See the class."""
        where = "T5Bias"
        self.num_heads = _check.positive_int(where, "num_heads", num_heads)
        self.num_buckets = _check.positive_int(where, "num_buckets", num_buckets)
        self.max_distance = _check.positive_int(where, "max_distance", max_distance)
        self.bidirectional = _check.flag(where, "bidirectional", bidirectional)
        param_dtype = _check.floating_dtype(where, param_dtype, "param_dtype")
        value = embedding_init(rngs.params(), (self.num_buckets, self.num_heads), param_dtype)
        self.embedding = nnx.Param(value, **embedding_metadata)

    def __call__(self, query_positions: ArrayLike, key_positions: ArrayLike) -> jax.Array:
        """Float32 (..., heads, queries, keys)."""
        settings = {"bidirectional": self.bidirectional, "max_distance": self.max_distance}
        return t5(query_positions, key_positions, self.embedding[...], **settings)


class KERPLE(nnx.Module):
    r"""KERPLE's bias of either form, `posenc_jax.kerple_log` or `posenc_jax.kerple_power`, with learned parameters.

    $$-r_1 \ln(1 + r_2\,|i - j|) \qquad \text{or} \qquad -r_1\,|i - j|^{r_2}$$

    What is learned are free numbers, `free_r1` and `free_r2`: $r_1$ and the logarithm's $r_2$ are `jax.nn.softplus` of
    theirs, the exponent is 2 · `jax.nn.sigmoid` of it, so that the kernel stays conditionally positive definite.

    Args:
      num_heads: how many heads.
      form: "log" or "power".
      param_dtype: dtype of the parameters.
      r1_init: initialiser of the free numbers (num_heads,) of $r_1$. By default, as in the authors' code, $r_1$ begins
        uniform from 0 to 2 (log) or 1 (power).
      r2_init: the same of $r_2$, which begins uniform from 0 to 1 (log) or 2 (power).
      metadata: metadata of both parameters, such as their sharding.
      rngs: source of the initial values.

    Raises:
      TypeError: if num_heads is not an integer.
      ValueError: if it is not positive or form is unknown.

    Examples:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from posenc_jax.nnx import KERPLE
      >>> KERPLE(8, rngs=nnx.Rngs(0))(jnp.arange(5), jnp.arange(7)).shape
      (8, 5, 7)

    Reference:
      Chi et al., "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation", 2022, section 4.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        form: free.Form = "log",
        param_dtype: Any = jnp.float32,
        r1_init: nnx.Initializer | None = None,
        r2_init: nnx.Initializer | None = None,
        metadata: Mapping[str, Any] = _NONE,
        rngs: nnx.Rngs,
    ):
        """See the class."""
        where = "KERPLE"
        self.num_heads = _check.positive_int(where, "num_heads", num_heads)
        self.form: free.Form = free.form(where, form)
        param_dtype = _check.floating_dtype(where, param_dtype, "param_dtype")
        first, second = free.kerple_inits(self.form)
        shape = (self.num_heads,)
        self.free_r1 = nnx.Param((r1_init or first)(rngs.params(), shape, param_dtype), **metadata)
        self.free_r2 = nnx.Param((r2_init or second)(rngs.params(), shape, param_dtype), **metadata)

    def __call__(self, query_positions: ArrayLike, key_positions: ArrayLike) -> jax.Array:
        """Float32 (..., heads, queries, keys)."""
        return free.kerple(self.form, query_positions, key_positions, self.free_r1[...], self.free_r2[...])


class FIRE(nnx.Module):
    r"""FIRE, a learned function of the relative distance, `posenc_jax.fire`, with learned $c$ and threshold $L$.

    What is learned of these two are free numbers: $c$ is `jax.nn.softplus` of `free_c`, and $L$ is its initial value
    times that of `free_multiplier`, which begins at 1, so that steps of one size suit both.

    Args:
      num_heads: how many heads.
      hidden: hidden units of the perceptron.
      c: its initial value.
      threshold: initial value of $L$.
      param_dtype: dtype of all parameters.
      kernel_init: initialiser of the weights, of shapes (1, hidden) and (hidden, num_heads); uniform within
        $\pm 1/\sqrt{\text{fan in}}$ by default, as in the authors' listing.
      bias_init: initialiser of the biases, (hidden,) and (num_heads,); uniform within ±1 by default, as the listing has
        the former: begun at 0, half of the units would never learn. The latter change no weight of attention.
      kernel_metadata: metadata of the weights, such as their sharding.
      bias_metadata: metadata of the biases.
      rngs: source of the initial values.

    Raises:
      TypeError: if a size is not an integer, or c or threshold not a number.
      ValueError: if one of these is not positive.

    Examples:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from posenc_jax.nnx import FIRE
      >>> FIRE(8, rngs=nnx.Rngs(0))(jnp.arange(5), jnp.arange(7)).shape
      (8, 5, 7)

    Reference:
      Li et al., "Functional Interpolation for Relative Positions Improves Long Context Transformers", 2024, section 3
      and appendix (code).
    """

    def __init__(
        self,
        num_heads: int,
        *,
        hidden: int = 32,
        c: float = 0.1,
        threshold: float = 512.0,
        param_dtype: Any = jnp.float32,
        kernel_init: nnx.Initializer = free.fire_kernel_init,
        bias_init: nnx.Initializer = free.fire_bias_init,
        kernel_metadata: Mapping[str, Any] = _NONE,
        bias_metadata: Mapping[str, Any] = _NONE,
        rngs: nnx.Rngs,
    ):
        """See the class."""
        where = "FIRE"
        self.num_heads = _check.positive_int(where, "num_heads", num_heads)
        self.hidden = _check.positive_int(where, "hidden", hidden)
        c, self.threshold = check_scale(where, c, threshold)
        start = free.free(c)
        dtype = _check.floating_dtype(where, param_dtype, "param_dtype")
        shapes = (1, self.hidden), (self.hidden, self.num_heads)
        self.kernel1, self.kernel2 = (
            nnx.Param(kernel_init(rngs.params(), shape, dtype), **kernel_metadata) for shape in shapes
        )
        self.bias1, self.bias2 = (
            nnx.Param(bias_init(rngs.params(), shape[1:], dtype), **bias_metadata) for shape in shapes
        )
        self.free_c, self.free_multiplier = (nnx.Param(jnp.asarray(value, dtype)) for value in (start, free.ONE))

    def __call__(self, query_positions: ArrayLike, key_positions: ArrayLike) -> jax.Array:
        """Float32 (..., heads, queries, keys)."""
        mlp = self.kernel1[...], self.bias1[...], self.kernel2[...], self.bias2[...]
        learned = self.free_c[...], self.free_multiplier[...]
        return free.fire_of(query_positions, key_positions, mlp, *learned, self.threshold)


class PositionalAttention(nnx.Module):
    """An attention_fn, made by `positional_attention`. The parameters of its bias are part of the layer's state."""

    def __init__(self, settings: Settings, bias: Callable[..., jax.Array] | None):
        """See `positional_attention`."""
        self.settings = settings
        self.bias = settings.fit(bias)

    def __call__(self, query: jax.Array, key: jax.Array, value: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
        """`nnx.dot_product_attention`, with `input_positions` and `key_positions` among its arguments."""
        return self.settings(nnx.dot_product_attention, self.bias, query, key, value, *args, **kwargs)


def positional_attention(
    frequencies: Frequencies | int | None = None,
    *,
    bias: Callable[..., jax.Array] | None = None,
    layout: Layout = "half",
    part: Part = "first",
    decode: bool = False,
) -> PositionalAttention:
    r"""An `attention_fn` for `nnx.MultiHeadAttention`: any rotary embedding and any bias, or both.

    The score of a query at position $p$ and a key at $t$, with $R$ the rotation of `posenc_jax.rotary`, is

    $$(R_p q) \cdot (R_t k) / \sqrt{\text{head\_dim}} + \text{bias}(p, t)$$

    and the rest is `nnx.dot_product_attention`, with all of its arguments; the bias is added to one given there.

    Positions are two more arguments of the attention_fn, of one position for each query or key: `input_positions` of
    the inputs, queries and keys alike, which `nnx.MultiHeadAttention` passes on (since flax 0.12.9), and
    `key_positions` where the keys have others. With neither, both count from zero. Where queries and keys differ in
    number nothing is guessed: both are needed, but for `decode`.

    Args:
      frequencies: the width that turns, or `Frequencies` of that width; even and at most head_dim. `None`: no rotation.
      bias: a function of (query_positions, key_positions) that gives floats (..., heads, queries, keys): a module of
        `posenc_jax.nnx`, whose parameters become those of the layer, or say `functools.partial(pe.alibi, heads=8)`.
        Layers that get the same module share its parameters.
      layout: as for `posenc_jax.rotary`.
      part: as for `posenc_jax.rotary`.
      decode: where keys outnumber queries and have no positions, they are a cache that holds position i in slot i, as
        a layer with `decode=True` fills it. `input_positions` must then be the slots of the queries, in rows that are
        padded on the left too, if scores depend on the distance alone (those of `FIRE` do not). Flax keeps keys
        unturned and all are turned at each step; a cache of turned keys, as in the example of `RotaryEncoding`, is
        cheaper.

    Returns:
      The attention_fn, a module without parameters but for those of the bias.

    Raises:
      TypeError: if frequencies is an array, bias cannot be called, or decode is not a bool.
      ValueError: if a setting is not one of the above, there are neither frequencies nor a bias, or there are both but
        positions have several axes. When called: if positions are missing, or not one for each, or the bias is not of
        the shape above.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from flax import nnx
      >>> from posenc_jax.nnx import T5Bias, positional_attention
      >>> attend = positional_attention(8, bias=T5Bias(2, rngs=nnx.Rngs(1)), decode=True)
      >>> layer = nnx.MultiHeadAttention(2, 16, decode=False, attention_fn=attend, rngs=nnx.Rngs(0))
      >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 5, 2, 8))  # batch, seq, heads, head_dim
      >>> whole = attend(q, k, v, is_causal=True)
      >>> written = (jnp.arange(5) <= 3)[None, None, None]
      >>> step = attend(q[:, 3:4], k, v, input_positions=jnp.array([3]), mask=written)
      >>> bool(jnp.allclose(step, whole[:, 3:4], atol=1e-6))
      True

    Reference:
      Su et al., "RoFormer", 2021, section 3.2.2, equation 16, for the rotation.
    """
    return PositionalAttention(Settings(frequencies, layout, part, decode), bias)  # type: ignore[arg-type]
