r"""Flax NNX modules: settings and parameters, and one call to a function of the library each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import ArrayLike

from posenc_jax import _check
from posenc_jax._rotary_attention import RotaryAttention
from posenc_jax.frequencies import Frequencies, Layout, resolve, resolve_static
from posenc_jax.learned import OutOfRange, add_learned
from posenc_jax.rotary import Part, rotary
from posenc_jax.sinusoidal import add_sinusoidal, sinusoidal

default_embedding_init = nnx.initializers.normal(0.02)


class SinusoidalEncoding(nnx.Module):
    r"""Adds the sinusoidal encoding to embeddings, $\text{scale} \cdot x + PE$; it has no parameters and no state.

    Args:
      frequencies: a width d_model, or `Frequencies` of that width.
      layout: as for `posenc_jax.sinusoidal`.
      scale: multiplies x, a Python number; $\sqrt{d_{model}}$ in the original Transformer.

    Raises:
      TypeError: if frequencies is an array (call `posenc_jax.add_sinusoidal` with learned frequencies) or scale is
        not a number.
      ValueError: as `posenc_jax.sinusoidal`.

    Example:
      >>> import jax.numpy as jnp
      >>> from posenc_jax.nnx import SinusoidalEncoding
      >>> encoding = SinusoidalEncoding(8)
      >>> encoding(jnp.zeros((2, 5, 8))).shape
      (2, 5, 8)
      >>> encoding.table(10).shape
      (10, 8)

    Reference:
      Vaswani et al., "Attention Is All You Need", 2017, section 3.5.
    """

    def __init__(self, frequencies: Frequencies | int, *, layout: Layout = "interleaved", scale: float = 1.0):
        """See the class."""
        self.frequencies = resolve_static("SinusoidalEncoding", frequencies)
        self.layout = _check.layout("SinusoidalEncoding", layout)
        self.scale = _check.number("SinusoidalEncoding", "scale", scale)

    def __call__(self, x: ArrayLike, positions: ArrayLike | None = None) -> jax.Array:
        """`add_sinusoidal` of x, (..., seq, d_model), with these settings."""
        return add_sinusoidal(x, positions, self.frequencies, layout=self.layout, scale=self.scale)

    def table(self, length: int, dtype: Any = jnp.float32) -> jax.Array:
        """The encodings of positions 0 to length − 1, shape (length, d_model)."""
        length = _check.positive_int("SinusoidalEncoding.table", "length", length)
        return sinusoidal(jnp.arange(length, dtype=jnp.int32), self.frequencies, layout=self.layout, dtype=dtype)


class LearnedEncoding(nnx.Module):
    r"""Adds a learned table's rows to embeddings, $\text{scale} \cdot x + \text{embedding}_p$.

    Args:
      num_embeddings: length of the table.
      features: its width d_model.
      param_dtype: dtype of the table; the result has that of x.
      embedding_init: initialiser of the table; normal of deviation 0.02 by default, as in BERT and GPT-2.
      out_of_range: as for `posenc_jax.learned`.
      scale: multiplies x, a Python number.
      embedding_metadata: metadata of the parameter, such as its sharding.
      rngs: source of the initial values.

    Raises:
      TypeError: if a size is not an integer or scale not a number.
      ValueError: if a size is not positive or out_of_range is unknown.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from posenc_jax.nnx import LearnedEncoding
      >>> encoding = LearnedEncoding(16, 8, rngs=nnx.Rngs(0))
      >>> encoding(jnp.zeros((2, 5, 8))).shape
      (2, 5, 8)

    Reference:
      Devlin et al., "BERT", 2019, section 3.
    """

    def __init__(
        self,
        num_embeddings: int,
        features: int,
        *,
        param_dtype: Any = jnp.float32,
        embedding_init: nnx.Initializer = default_embedding_init,
        out_of_range: OutOfRange = "error",
        scale: float = 1.0,
        embedding_metadata: Mapping[str, Any] = MappingProxyType({}),
        rngs: nnx.Rngs,
    ):
        """See the class."""
        where = "LearnedEncoding"
        self.num_embeddings = _check.positive_int(where, "num_embeddings", num_embeddings)
        self.features = _check.positive_int(where, "features", features)
        self.out_of_range = _check.out_of_range(where, out_of_range)
        self.scale = _check.number(where, "scale", scale)
        param_dtype = _check.floating_dtype(where, param_dtype, "param_dtype")
        value = embedding_init(rngs.params(), (self.num_embeddings, self.features), param_dtype)
        self.embedding = nnx.Param(value, **embedding_metadata)

    def __call__(self, x: ArrayLike, positions: ArrayLike | None = None) -> jax.Array:
        """`add_learned` of x, (..., seq, d_model), with this table and these settings."""
        return add_learned(x, self.embedding[...], positions, scale=self.scale, out_of_range=self.out_of_range)


class RotaryEncoding(nnx.Module):
    r"""Turns queries or keys by their positions, `posenc_jax.rotary`; it has no parameters and no state.

    With `head_axis=None` it stands wherever `flax.nnx.RoPE` does, as in
    `nnx.dot_product_attention_with_rope(query, key, value, rope=RotaryEncoding(head_dim, head_axis=None))`.

    Args:
      frequencies: the width that turns, or `Frequencies` of that width; even and at most head_dim.
      layout: as for `posenc_jax.rotary`.
      head_axis: as for `posenc_jax.rotary`: -2 for (..., seq, heads, head_dim), `None` for (..., seq, head_dim). It has
        no default, because the two conventions meet here: `posenc_jax.rotary` takes the former, `flax.nnx.RoPE` the
        latter, and under the wrong one x would be turned by the indices of its heads, with no error.
      part: as for `posenc_jax.rotary`.

    Raises:
      TypeError: if frequencies is an array (call `posenc_jax.rotary` with learned frequencies).
      ValueError: as `posenc_jax.rotary`.

    Example:
      A cache of turned keys, filled at once and then step by step, has the bits of the whole sequence.

      >>> import jax, jax.numpy as jnp
      >>> from posenc_jax.nnx import RotaryEncoding
      >>> rope = RotaryEncoding(8, head_axis=-2)
      >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 6, 2, 8), jnp.float32)  # batch, seq, heads, head_dim
      >>> cache = jnp.zeros_like(k).at[:, :4].set(rope(k[:, :4]))
      >>> for p in (4, 5):
      ...     cache = cache.at[:, p].set(rope(k[:, p : p + 1], p)[:, 0])
      ...     query = rope(q[:, p : p + 1], p)
      ...     out = jax.nn.dot_product_attention(query, cache, v, mask=(jnp.arange(6) <= p)[None, None, None])
      >>> bool(jnp.all(cache == rope(k)) and jnp.all(query == rope(q)[:, 5:]))
      True

    Reference:
      Su et al., "RoFormer", 2021, section 3.2.2.
    """

    def __init__(
        self,
        frequencies: Frequencies | int,
        *,
        layout: Layout = "half",
        head_axis: int | None,
        part: Part = "first",
    ):
        """See the class."""
        where = "RotaryEncoding"
        self.frequencies = resolve(where, resolve_static(where, frequencies), even=True)
        self.layout = _check.layout(where, layout)
        self.head_axis = head_axis
        self.part = _check.one_of(where, "part", part, ("first", "last"))

    def __call__(self, x: ArrayLike, positions: ArrayLike | None = None) -> jax.Array:
        """`rotary` of x, queries or keys, with these settings."""
        return rotary(x, positions, self.frequencies, layout=self.layout, head_axis=self.head_axis, part=self.part)


def rotary_attention(
    frequencies: Frequencies | int, *, layout: Layout = "half", part: Part = "first", decode: bool = False
) -> RotaryAttention:
    r"""An `attention_fn` for `nnx.MultiHeadAttention`: queries and keys are turned by their positions.

    The score of a query at position $p$ and a key at $t$, with $R$ the rotation of `posenc_jax.rotary`, is

    $$(R_p q) \cdot (R_t k) / \sqrt{\text{head\_dim}}$$

    and the rest is `nnx.dot_product_attention`, with all of its arguments.

    Positions are two more arguments of the attention_fn, each as for `rotary`, of one position for each query or key:
    `input_positions` of the inputs, queries and keys alike, which `nnx.MultiHeadAttention` passes on (since flax
    0.12.9), and `key_positions` where the keys have others. With neither, both count from zero. Where queries and keys
    differ in number nothing is guessed: both are needed, but for `decode`.

    Args:
      frequencies: the width that turns, or `Frequencies` of that width; even and at most head_dim.
      layout: as for `posenc_jax.rotary`.
      part: as for `posenc_jax.rotary`.
      decode: where keys outnumber queries and have no positions, they are a cache that holds position i in slot i, as
        a layer with `decode=True` fills it. `input_positions` must then be the slots of the queries, in rows that are
        padded on the left too: a score depends on the distance alone. Flax keeps keys unturned and all are turned at
        each step; a cache of turned keys, as in the example of `RotaryEncoding`, is cheaper.

    Returns:
      The attention_fn: a hashable value without arrays, equal to another of the same settings.

    Raises:
      TypeError: if frequencies is an array, or decode not a bool.
      ValueError: if a setting is not one of the above. When called: if positions are missing, or not one for each.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from flax import nnx
      >>> from posenc_jax.nnx import rotary_attention
      >>> attend = rotary_attention(8, decode=True)
      >>> layer = nnx.MultiHeadAttention(2, 16, decode=False, attention_fn=attend, rngs=nnx.Rngs(0))
      >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 5, 2, 8), jnp.float32)  # batch, seq, heads, head_dim
      >>> whole = attend(q, k, v, is_causal=True)
      >>> written = (jnp.arange(5) <= 3)[None, None, None]
      >>> step = attend(q[:, 3:4], k, v, input_positions=jnp.array([3]), mask=written)
      >>> bool(jnp.allclose(step, whole[:, 3:4], atol=1e-6))
      True

    Reference:
      Su et al., "RoFormer", 2021, section 3.2.2, equation 16.
    """
    return RotaryAttention(nnx.dot_product_attention, frequencies, layout, part, decode)  # type: ignore[arg-type]
