r"""Flax Linen modules: the same settings as in `posenc_jax.nnx`, and the same numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import ArrayLike

from posenc_jax import _check
from posenc_jax._linen_attention import FIRE, KERPLE, ALiBi, T5Bias, positional_attention
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

    Examples:
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
        where = "SinusoidalEncoding.table"
        length = _check.counted(where, "table", _check.positive_int(where, "length", length))
        return sinusoidal(jnp.arange(length, dtype=jnp.int32), self.frequencies, layout=self.layout, dtype=dtype)


class LearnedEncoding(nn.Module):
    r"""Adds a learned table's rows to embeddings, $\text{scale} \cdot x + \text{embedding}_p$.

    Args:
      num_embeddings: length of the table.
      features: its width d_model.
      param_dtype: dtype of the table; the result has that of x.
      embedding_init: initialiser of the table, possibly with metadata (`nn.with_partitioning`); normal of deviation
        0.02 by default, as in BERT (GPT-2: 0.01).
      out_of_range: as for `posenc_jax.learned`.
      scale: multiplies x, a Python number.

    Raises:
      TypeError: if a size is not an integer or scale not a number.
      ValueError: if a size is not positive or out_of_range is unknown.

    Examples:
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

    Examples:
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


class FourierFeatures(nn.Module):
    r"""Random Fourier features of coordinates, $[\sin 2\pi x B,\ \cos 2\pi x B]$ with a Gaussian $B$ drawn once.

    Args:
      in_features: coordinates of x.
      num_features: $n$, columns of the matrix; 2n features come out.
      scale: standard deviation of the matrix, in turns for a unit of x.
      learned: whether the matrix is in the collection "params". If not, it is in "constants": part of the variables and
        of checkpoints, but not of what gradients and optimizers take, so that no weight decay shrinks it either.
      layout: as for `posenc_jax.fourier_features`.
      dtype: of the features.
      param_dtype: dtype of the matrix.

    Raises:
      TypeError: if a size is not an integer, scale not a number or learned not a bool.
      ValueError: if a size or scale is not positive.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from posenc_jax.linen import FourierFeatures
      >>> features, x = FourierFeatures(2, 64, scale=10.0), jnp.zeros((5, 2))
      >>> variables = features.init(jax.random.key(0), x)
      >>> features.apply(variables, x).shape
      (5, 128)

    Reference:
      Tancik et al., "Fourier Features Let Networks Learn High Frequency Functions in Low Dimensional Domains", 2020,
      section 5.
    """

    in_features: int
    num_features: int
    _: dataclasses.KW_ONLY
    scale: float
    learned: bool = False
    layout: Layout = "half"
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    def __post_init__(self):
        """Checks the settings."""
        where = "FourierFeatures"
        _check.positive_int(where, "in_features", self.in_features)
        _check.positive_int(where, "num_features", self.num_features)
        _check.positive(where, "scale", self.scale)
        _check.flag(where, "learned", self.learned)
        _check.layout(where, self.layout)
        _check.floating_dtype(where, self.dtype)
        _check.floating_dtype(where, self.param_dtype, "param_dtype")
        super().__post_init__()

    @nn.compact
    def __call__(self, x: ArrayLike) -> jax.Array:
        """`fourier_features` of x, (..., in_features), with this matrix and these settings."""
        draw, shape = nn.initializers.normal(self.scale), (self.in_features, self.num_features)
        if self.learned:
            matrix = self.param("matrix", draw, shape, self.param_dtype)
        else:
            once = lambda: draw(self.make_rng("params"), shape, self.param_dtype)  # noqa: E731
            matrix = self.variable("constants", "matrix", once).value
        return fourier_features(x, matrix, layout=self.layout, dtype=self.dtype)


class TimestepEmbedding(nn.Module):
    r"""The embedding of diffusion timesteps, `posenc_jax.timestep_embedding`; it has no variables.

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
      >>> from posenc_jax.linen import TimestepEmbedding
      >>> embedding = TimestepEmbedding(320, flip_sin_to_cos=True, downscale_freq_shift=0)
      >>> embedding.apply({}, jnp.array([0, 999])).shape
      (2, 320)

    Reference:
      Ho et al., "Denoising Diffusion Probabilistic Models", 2020, appendix B.
    """

    dim: int
    _: dataclasses.KW_ONLY
    flip_sin_to_cos: bool = False
    downscale_freq_shift: float = 1.0
    scale: float = 1.0
    max_period: float = 10_000.0
    dtype: Any = jnp.float32

    def __post_init__(self):
        """Checks the settings."""
        jax.eval_shape(self._embed, 0)
        super().__post_init__()

    def __call__(self, timesteps: ArrayLike) -> jax.Array:
        """`timestep_embedding` of timesteps (...,), with these settings."""
        return self._embed(timesteps)

    def _embed(self, timesteps):
        return timestep_embedding(
            timesteps,
            self.dim,
            flip_sin_to_cos=self.flip_sin_to_cos,
            downscale_freq_shift=self.downscale_freq_shift,
            scale=self.scale,
            max_period=self.max_period,
            dtype=self.dtype,
        )
