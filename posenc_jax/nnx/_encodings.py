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
from posenc_jax._nnx_attention import FIRE, KERPLE, ALiBi, T5Bias, positional_attention
from posenc_jax.fourier import fourier_features, timestep_embedding
from posenc_jax.frequencies import Frequencies, Layout, resolve, resolve_static
from posenc_jax.learned import OutOfRange, add_learned
from posenc_jax.rotary import Part, rotary
from posenc_jax.sinusoidal import add_sinusoidal, sinusoidal

__all__ = [
    "ALiBi",
    "FIRE",
    "FourierFeatures",
    "KERPLE",
    "LearnedEncoding",
    "RotaryEncoding",
    "SinusoidalEncoding",
    "T5Bias",
    "TimestepEmbedding",
    "positional_attention",
]

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

    Examples:
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
        where = "SinusoidalEncoding.table"
        length = _check.counted(where, "table", _check.positive_int(where, "length", length))
        return sinusoidal(jnp.arange(length, dtype=jnp.int32), self.frequencies, layout=self.layout, dtype=dtype)


class LearnedEncoding(nnx.Module):
    r"""Adds a learned table's rows to embeddings, $\text{scale} \cdot x + \text{embedding}_p$.

    Args:
      num_embeddings: length of the table.
      features: its width d_model.
      param_dtype: dtype of the table; the result has that of x.
      embedding_init: initialiser of the table; normal of deviation 0.02 by default, as in BERT (GPT-2: 0.01).
      out_of_range: as for `posenc_jax.learned`.
      scale: multiplies x, a Python number.
      embedding_metadata: metadata of the parameter, such as its sharding.
      rngs: source of the initial values.

    Raises:
      TypeError: if a size is not an integer or scale not a number.
      ValueError: if a size is not positive or out_of_range is unknown.

    Examples:
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

    Examples:
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


class FourierFeatures(nnx.Module):
    r"""Random Fourier features of coordinates, $[\sin 2\pi x B,\ \cos 2\pi x B]$ with a Gaussian $B$ drawn once.

    Args:
      in_features: coordinates of x.
      num_features: $n$, columns of the matrix; 2n features come out.
      scale: standard deviation of the matrix, in turns for a unit of x.
      learned: whether the matrix is an `nnx.Param`. If not, it is an `nnx.Variable`: part of the state and of
        checkpoints, but of no kind that gradients and optimizers take, so that no weight decay shrinks it either.
      layout: as for `posenc_jax.fourier_features`.
      dtype: of the features.
      param_dtype: dtype of the matrix.
      matrix_metadata: metadata of the matrix, such as its sharding.
      rngs: source of the matrix.

    Raises:
      TypeError: if a size is not an integer, scale not a number or learned not a bool.
      ValueError: if a size or scale is not positive.

    Examples:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from posenc_jax.nnx import FourierFeatures
      >>> FourierFeatures(2, 64, scale=10.0, rngs=nnx.Rngs(0))(jnp.zeros((5, 2))).shape
      (5, 128)

    Reference:
      Tancik et al., "Fourier Features Let Networks Learn High Frequency Functions in Low Dimensional Domains", 2020,
      section 5.
    """

    def __init__(
        self,
        in_features: int,
        num_features: int,
        *,
        scale: float,
        learned: bool = False,
        layout: Layout = "half",
        dtype: Any = jnp.float32,
        param_dtype: Any = jnp.float32,
        matrix_metadata: Mapping[str, Any] = MappingProxyType({}),
        rngs: nnx.Rngs,
    ):
        """See the class."""
        where = "FourierFeatures"
        self.in_features = _check.positive_int(where, "in_features", in_features)
        self.num_features = _check.positive_int(where, "num_features", num_features)
        self.layout = _check.layout(where, layout)
        self.dtype = _check.floating_dtype(where, dtype)
        draw = nnx.initializers.normal(_check.positive(where, "scale", scale))
        kind = nnx.Param if _check.flag(where, "learned", learned) else nnx.Variable
        param_dtype = _check.floating_dtype(where, param_dtype, "param_dtype")
        self.matrix = kind(draw(rngs.params(), (self.in_features, self.num_features), param_dtype), **matrix_metadata)

    def __call__(self, x: ArrayLike) -> jax.Array:
        """`fourier_features` of x, (..., in_features), with this matrix and these settings."""
        return fourier_features(x, self.matrix[...], layout=self.layout, dtype=self.dtype)


class TimestepEmbedding(nnx.Module):
    r"""The embedding of diffusion timesteps, `posenc_jax.timestep_embedding`; it has no parameters and no state.

    Args:
      dim: number of features.
      flip_sin_to_cos: as for `posenc_jax.timestep_embedding`, like all that follow.
      downscale_freq_shift: 1 for DDPM, 0 for Stable Diffusion and DiT.
      scale: multiplies the timesteps.
      max_period: the base of the frequencies.
      dtype: of the features.

    Raises:
      TypeError: as `posenc_jax.timestep_embedding`.
      ValueError: as `posenc_jax.timestep_embedding`.

    Examples:
      >>> import jax.numpy as jnp
      >>> from posenc_jax.nnx import TimestepEmbedding
      >>> TimestepEmbedding(320, flip_sin_to_cos=True, downscale_freq_shift=0)(jnp.array([0, 999])).shape
      (2, 320)

    Reference:
      Ho et al., "Denoising Diffusion Probabilistic Models", 2020, appendix B.
    """

    def __init__(
        self,
        dim: int,
        *,
        flip_sin_to_cos: bool = False,
        downscale_freq_shift: float = 1.0,
        scale: float = 1.0,
        max_period: float = 10_000.0,
        dtype: Any = jnp.float32,
    ):
        """See the class."""
        self.dim = dim
        self.flip_sin_to_cos = flip_sin_to_cos
        self.downscale_freq_shift = downscale_freq_shift
        self.scale = scale
        self.max_period = max_period
        self.dtype = dtype
        jax.eval_shape(self, 0)  # checks the settings

    def __call__(self, timesteps: ArrayLike) -> jax.Array:
        """`timestep_embedding` of timesteps (...,), with these settings."""
        return timestep_embedding(
            timesteps,
            self.dim,
            flip_sin_to_cos=self.flip_sin_to_cos,
            downscale_freq_shift=self.downscale_freq_shift,
            scale=self.scale,
            max_period=self.max_period,
            dtype=self.dtype,
        )
