r"""Flax Linen modules: the same settings as in `posenc_jax.nnx`, and the same numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import ArrayLike

from posenc_jax import _check
from posenc_jax.frequencies import Frequencies, Layout, resolve_static
from posenc_jax.learned import OutOfRange, add_learned
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
