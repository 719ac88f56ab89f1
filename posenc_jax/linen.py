r"""Flax Linen modules: the same settings as in `posenc_jax.nnx`, and the same numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import ArrayLike

from posenc_jax import _check
from posenc_jax._rotary_attention import RotaryAttention
from posenc_jax.frequencies import Frequencies, Layout, resolve, resolve_static
from posenc_jax.learned import OutOfRange, add_learned
from posenc_jax.rotary import Part, rotary
from posenc_jax.sinusoidal import add_sinusoidal, sinusoidal

default_embedding_init = nn.initializers.normal(0.02)


class SinusoidalEncoding(nn.Module):
    r"""Adds the sinusoidal encoding to embeddings, $\text{scale} \cdot x + PE$; it has no variables.

    Args:
      frequencies: a width d_model, or `Frequencies` of that width.
      layout: as for `posenc_jax.sinusoidal`.
      scale: multiplies x, a Python number.

    Raises:
      TypeError: if frequencies is an array or scale is not a number.
      ValueError: as `posenc_jax.sinusoidal`.

    Example:
      >>> import jax.numpy as jnp
      >>> from posenc_jax.linen import SinusoidalEncoding
      >>> encoding = SinusoidalEncoding(8)
      >>> encoding.apply({}, jnp.zeros((2, 5, 8))).shape
      (2, 5, 8)
      >>> encoding.table(10).shape
      (10, 8)

    Reference:
      Vaswani et al., "Attention Is All You Need", 2017, section 3.5.
    """

    frequencies: Frequencies | int
    layout: Layout = "interleaved"
    scale: float = 1.0

    def __post_init__(self):
        """Checks the settings."""
        object.__setattr__(self, "frequencies", resolve_static("SinusoidalEncoding", self.frequencies))
        _check.layout("SinusoidalEncoding", self.layout)
        _check.number("SinusoidalEncoding", "scale", self.scale)
        super().__post_init__()

    def __call__(self, x: ArrayLike, positions: ArrayLike | None = None) -> jax.Array:
        """`add_sinusoidal` of x, (..., seq, d_model), with these settings."""
        return add_sinusoidal(x, positions, self.frequencies, layout=self.layout, scale=self.scale)

    def table(self, length: int, dtype: Any = jnp.float32) -> jax.Array:
        """The encodings of positions 0 to length − 1, shape (length, d_model)."""
        length = _check.positive_int("SinusoidalEncoding.table", "length", length)
        return sinusoidal(jnp.arange(length, dtype=jnp.int32), self.frequencies, layout=self.layout, dtype=dtype)


class LearnedEncoding(nn.Module):
    r"""Adds a learned table's rows to embeddings, $\text{scale} \cdot x + \text{embedding}_p$.

    Args:
      num_embeddings: length of the table.
      features: its width d_model.
      param_dtype: dtype of the table; the result has that of x.
      embedding_init: initialiser of the table, possibly with metadata (`nn.with_partitioning`).
      out_of_range: as for `posenc_jax.learned`.
      scale: multiplies x, a Python number.

    Raises:
      TypeError: if a size is not an integer or scale not a number.
      ValueError: if a size is not positive or out_of_range is unknown.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posenc_jax.linen import LearnedEncoding
      >>> encoding, x = LearnedEncoding(16, 8), jnp.zeros((2, 5, 8))
      >>> variables = encoding.init(jax.random.key(0), x)
      >>> encoding.apply(variables, x).shape
      (2, 5, 8)

    Reference:
      Devlin et al., "BERT", 2019, section 3.
    """

    num_embeddings: int
    features: int
    param_dtype: Any = jnp.float32
    embedding_init: nn.initializers.Initializer = default_embedding_init
    out_of_range: OutOfRange = "error"
    scale: float = 1.0

    def __post_init__(self):
        """Checks the settings."""
        where = "LearnedEncoding"
        _check.positive_int(where, "num_embeddings", self.num_embeddings)
        _check.positive_int(where, "features", self.features)
        _check.out_of_range(where, self.out_of_range)
        _check.number(where, "scale", self.scale)
        _check.floating_dtype(where, self.param_dtype, "param_dtype")
        super().__post_init__()

    @nn.compact
    def __call__(self, x: ArrayLike, positions: ArrayLike | None = None) -> jax.Array:
        """`add_learned` of x, (..., seq, d_model), with this table and these settings."""
        shape = (self.num_embeddings, self.features)
        table = self.param("embedding", self.embedding_init, shape, self.param_dtype)
        return add_learned(x, table, positions, scale=self.scale, out_of_range=self.out_of_range)


class RotaryEncoding(nn.Module):
    r"""Turns queries or keys by their positions, `posenc_jax.rotary`; it has no variables.

    Args:
      frequencies: the width that turns, or `Frequencies` of that width; even and at most head_dim.
      layout: as for `posenc_jax.rotary`.
      head_axis: as for `posenc_jax.rotary`: -2 for (..., seq, heads, head_dim), `None` for (..., seq, head_dim). It has
        no default: under the wrong one x would be turned by the indices of its heads, with no error.
      part: as for `posenc_jax.rotary`.

    Raises:
      TypeError: if frequencies is an array (call `posenc_jax.rotary` with learned frequencies).
      ValueError: as `posenc_jax.rotary`.

    Example:
      >>> import jax.numpy as jnp
      >>> from posenc_jax.linen import RotaryEncoding
      >>> rope = RotaryEncoding(8, head_axis=-2)
      >>> rope.apply({}, jnp.ones((1, 5, 2, 8))).shape
      (1, 5, 2, 8)

    Reference:
      Su et al., "RoFormer", 2021, section 3.2.2.
    """

    frequencies: Frequencies | int
    _: dataclasses.KW_ONLY
    layout: Layout = "half"
    head_axis: int | None
    part: Part = "first"

    def __post_init__(self):
        """Checks the settings."""
        where = "RotaryEncoding"
        object.__setattr__(self, "frequencies", resolve(where, resolve_static(where, self.frequencies), even=True))
        _check.layout(where, self.layout)
        _check.one_of(where, "part", self.part, ("first", "last"))
        super().__post_init__()

    def __call__(self, x: ArrayLike, positions: ArrayLike | None = None) -> jax.Array:
        """`rotary` of x, queries or keys, with these settings."""
        return rotary(x, positions, self.frequencies, layout=self.layout, head_axis=self.head_axis, part=self.part)


def rotary_attention(
    frequencies: Frequencies | int, *, layout: Layout = "half", part: Part = "first", decode: bool = False
) -> RotaryAttention:
    r"""An `attention_fn` for `nn.MultiHeadDotProductAttention`: queries and keys are turned by their positions.

    The score of a query at position $p$ and a key at $t$, with $R$ the rotation of `posenc_jax.rotary`, is

    $$(R_p q) \cdot (R_t k) / \sqrt{\text{head\_dim}}$$

    and the rest is `nn.dot_product_attention`, with all of its arguments.

    Positions are two more arguments of the attention_fn, each as for `rotary`, of one position for each query or key:
    `input_positions` of the inputs, queries and keys alike, and `key_positions` where the keys have others; bind them
    with `functools.partial`. With neither, both count from zero. Where queries and keys differ in number nothing is
    guessed: both are needed, but for `decode`.

    Args:
      frequencies: the width that turns, or `Frequencies` of that width; even and at most head_dim.
      layout: as for `posenc_jax.rotary`.
      part: as for `posenc_jax.rotary`.
      decode: where keys outnumber queries and have no positions, they are a cache that holds position i in slot i, as
        a layer with `decode=True` fills it. `input_positions` must then be the slots of the queries, in rows that are
        padded on the left too: a score depends on the distance alone. Flax keeps keys unturned and all are turned at
        each step; a cache of turned keys, as in the example of `posenc_jax.nnx.RotaryEncoding`, is cheaper.

    Returns:
      The attention_fn: a hashable value without arrays, equal to another of the same settings.

    Raises:
      TypeError: if frequencies is an array, or decode not a bool.
      ValueError: if a setting is not one of the above. When called: if positions are missing, or not one for each.

    Example:
      >>> import functools
      >>> import jax, jax.numpy as jnp
      >>> from flax import linen as nn
      >>> from posenc_jax.linen import rotary_attention
      >>> attend = rotary_attention(8)
      >>> layer = nn.MultiHeadDotProductAttention(2, attention_fn=attend)
      >>> x = jnp.ones((1, 5, 16), jnp.float32)
      >>> variables = layer.init(jax.random.key(0), x)
      >>> far = layer.clone(attention_fn=functools.partial(attend, input_positions=jnp.arange(1000, 1005)))
      >>> bool(jnp.allclose(layer.apply(variables, x), far.apply(variables, x), atol=1e-5))
      True

    Reference:
      Su et al., "RoFormer", 2021, section 3.2.2, equation 16.
    """
    return RotaryAttention(nn.dot_product_attention, frequencies, layout, part, decode)  # type: ignore[arg-type]
