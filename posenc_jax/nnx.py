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
from posenc_jax.frequencies import Frequencies, Layout, resolve_static
from posenc_jax.learned import OutOfRange, add_learned
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
