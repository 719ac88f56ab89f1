r"""Flax Linen modules of the encodings, of Fourier features and of diffusion timesteps."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import ArrayLike

from posenc_jax._encodings.fourier import fourier_features
from posenc_jax._encodings.learned import add_learned
from posenc_jax._encodings.sinusoidal import add_sinusoidal
from posenc_jax._flax import calls, settings
from posenc_jax._flax.initializers import default_embedding_init, default_phase_init
from posenc_jax._frequencies.frequencies import Frequencies
from posenc_jax._frequencies.parser import parse_static
from posenc_jax._jax import checks
from posenc_jax._jax.checks import Layout, OutOfRange, RotatedPart
from posenc_jax._jax.errors import public
from posenc_jax._rotary.rotary import rotary


class SinusoidalEncoding(nn.Module):
    r"""Adds the sinusoidal encoding to embeddings, $\text{scale} \cdot x + PE$. It has no variables.

    Examples:
      >>> import jax.numpy as jnp
      >>> from posenc_jax.linen import SinusoidalEncoding
      >>> encoding = SinusoidalEncoding(8)
      >>> encoding.apply({}, jnp.zeros((2, 5, 8))).shape
      (2, 5, 8)
      >>> encoding.table(10).shape
      (10, 8)

    Args:
      frequencies: the width d_model, or `Frequencies` of that width.
      layout: "interleaved" or "half"; see `posenc_jax.sinusoidal`.
      scale: a Python number that multiplies x; $\sqrt{d_{model}}$ in the original Transformer.

    Raises:
      TypeError: if frequencies is an array, or scale is not a number. For learned frequencies, call
        `posenc_jax.add_sinusoidal`.
      ValueError: for the same reasons as in `posenc_jax.sinusoidal`.

    Reference:
      Vaswani et al., "Attention Is All You Need", 2017, section 3.5.
    """

    frequencies: Frequencies | int
    layout: Layout = "interleaved"
    scale: float = 1.0

    @public
    def __post_init__(self) -> None:
        """Checks the settings."""
        frequencies, *_ = settings.parse_sinusoidal_settings(self.frequencies, self.layout, self.scale)
        object.__setattr__(self, "frequencies", frequencies)
        super().__post_init__()

    def __call__(self, x: ArrayLike, positions: ArrayLike | None = None) -> jax.Array:
        """Returns `add_sinusoidal` of x, (..., seq, d_model), with these settings."""
        positions = calls.counted_at_init(self, x, positions)
        return add_sinusoidal(x, positions, self.frequencies, layout=self.layout, scale=self.scale)

    @public
    def table(self, length: int, dtype: Any = jnp.float32) -> jax.Array:
        """The encodings of positions 0 to length − 1, an array of shape (length, d_model)."""
        return calls.sinusoidal_table(length, self.frequencies, self.layout, dtype)


class LearnedEncoding(nn.Module):
    r"""Adds rows of a learned table to embeddings, $\text{scale} \cdot x + \text{embedding}_p$.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from posenc_jax.linen import LearnedEncoding
      >>> encoding, x = LearnedEncoding(16, 8), jnp.zeros((2, 5, 8))
      >>> variables = encoding.init(jax.random.key(0), x)
      >>> encoding.apply(variables, x).shape
      (2, 5, 8)

    Args:
      num_embeddings: the length of the table.
      features: the width of the table, d_model.
      param_dtype: the dtype of the table. The result has the dtype of x.
      embedding_init: the initializer of the table, which may add metadata (`nn.with_partitioning`). By default normal
        with standard deviation 0.02, as in BERT (GPT-2: 0.01).
      out_of_range: "error", "nan" or "zeros" for positions outside the table; see `posenc_jax.learned`.
      scale: a Python number that multiplies x.

    Raises:
      TypeError: if a size is not an integer or scale is not a number.
      ValueError: if a size is not positive or out_of_range is unknown.

    Reference:
      Devlin et al., "BERT", 2019, section 3.
    """

    num_embeddings: int
    features: int
    param_dtype: Any = jnp.float32
    embedding_init: nn.initializers.Initializer = default_embedding_init
    out_of_range: OutOfRange = "error"
    scale: float = 1.0

    @public
    def __post_init__(self) -> None:
        """Checks the settings."""
        settings.check_fields(self, checks.positive_int, "num_embeddings features")
        settings.check_fields(self, checks.out_of_range, "out_of_range")
        settings.check_fields(self, checks.floating_dtype, "param_dtype")
        checks.number("scale", self.scale)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: ArrayLike, positions: ArrayLike | None = None) -> jax.Array:
        """Returns `add_learned` of x, (..., seq, d_model), with this table and these settings."""
        shape = (self.num_embeddings, self.features)
        embedding = self.param("embedding", self.embedding_init, shape, self.param_dtype)
        positions = calls.counted_at_init(self, x, positions)
        return add_learned(x, embedding, positions, scale=self.scale, out_of_range=self.out_of_range)


class RotaryEncoding(nn.Module):
    """Rotates queries or keys according to position; see `posenc_jax.rotary`. It has no variables.

    Examples:
      >>> import jax.numpy as jnp
      >>> from posenc_jax.linen import RotaryEncoding
      >>> rope = RotaryEncoding(8, head_axis=-2)
      >>> rope.apply({}, jnp.ones((1, 5, 2, 8))).shape
      (1, 5, 2, 8)

    Args:
      frequencies: the width to rotate, or `Frequencies` of that width, even and at most head_dim.
      layout: "half" or "interleaved"; see `posenc_jax.rotary`.
      head_axis: the axis of the heads: -2 for (..., seq, heads, head_dim), `None` for (..., seq, head_dim). It has no
        default, because a wrong axis gives no error, but rotates x by the indices of its heads.
      part: which features are rotated if the width is below head_dim: the "first" or the "last".

    Raises:
      TypeError: if frequencies is an array. For learned frequencies, call `posenc_jax.rotary`.
      ValueError: for the same reasons as in `posenc_jax.rotary`.

    Reference:
      Su et al., "RoFormer", 2021, section 3.2.2.
    """

    frequencies: Frequencies | int
    _: dataclasses.KW_ONLY
    layout: Layout = "half"
    head_axis: int | tuple[int, ...] | None
    part: RotatedPart = "first"

    @public
    def __post_init__(self) -> None:
        """Checks the settings."""
        frequencies, *_ = settings.parse_rotary_settings(self.frequencies, self.layout, self.part)
        object.__setattr__(self, "frequencies", frequencies)
        super().__post_init__()

    def __call__(self, x: ArrayLike, positions: ArrayLike | None = None) -> jax.Array:
        """Returns `rotary` of x, queries or keys, with these settings."""
        positions = calls.counted_at_init(self, x, positions, self.head_axis)
        return rotary(x, positions, self.frequencies, layout=self.layout, head_axis=self.head_axis, part=self.part)


class PoPE(nn.Module):
    r"""PoPE of queries and keys, with a learned phase $\delta$ per feature of each key head; see `posenc_jax.pope`.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from posenc_jax.linen import PoPE
      >>> pope, x = PoPE(2, 16, head_axis=-2), jnp.ones((1, 5, 2, 8))
      >>> variables = pope.init(jax.random.key(0), x, x)
      >>> query, key = pope.apply(variables, x, x)
      >>> query.shape, variables["params"]["phase"].shape
      ((1, 5, 2, 16), (2, 8))

    Args:
      num_heads: the number of key heads.
      frequencies: the width of the result, which is twice head_dim, or `Frequencies` of that width.
      layout: "half" or "interleaved"; see `posenc_jax.pope`.
      head_axis: the axis of the heads, -3 or -2; see `posenc_jax.rotary`. `None` is not supported, because each head
        has its own phase.
      param_dtype: the dtype of the phase.
      phase_init: the initializer of the phase, of shape (num_heads, head_dim), which may add metadata
        (`nn.with_partitioning`). Zeros by default, as in PoPE-pytorch and x-transformers, which both also offer uniform
        values in $[-2\pi, 0]$.

    Raises:
      TypeError: if num_heads is not an integer or frequencies is an array.
      ValueError: if num_heads is not positive or the width is odd. When called: for the same reasons as in
        `posenc_jax.pope`.

    Notes:
      - The phase is clipped to $[-2\pi, 0]$ before it is used, as in PoPE-pytorch.
      - Both results are twice as wide as head_dim, so pass the attention function a scale of
        $1/\sqrt{\text{head\_dim}}$. In a Flax layer, `positional_attention` does so.

    Reference:
      Gopalakrishnan et al., "Decoupling the 'What' and 'Where' With Polar Coordinate Positional Embeddings", 2025,
      section 3.
    """

    num_heads: int
    frequencies: Frequencies | int
    _: dataclasses.KW_ONLY
    layout: Layout = "half"
    head_axis: int
    param_dtype: Any = jnp.float32
    phase_init: nn.initializers.Initializer = default_phase_init

    @public
    def __post_init__(self) -> None:
        """Checks the settings."""
        settings.check_fields(self, checks.positive_int, "num_heads")
        object.__setattr__(self, "frequencies", parse_static(self.frequencies, even=True))
        settings.check_fields(self, checks.layout, "layout")
        settings.check_fields(self, checks.integer, "head_axis")
        settings.check_fields(self, checks.floating_dtype, "param_dtype")
        super().__post_init__()

    def setup(self) -> None:
        """Makes the parameter, which `positional_attention` reads too."""
        shape = self.num_heads, parse_static(self.frequencies).num_pairs
        self.delta = self.param("phase", self.phase_init, shape, self.param_dtype)

    def __call__(
        self,
        query: ArrayLike,
        key: ArrayLike,
        positions: ArrayLike | None = None,
        *,
        key_positions: ArrayLike | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Returns `pope` of query and key, (..., seq, heads, head_dim). By default, both have the same positions."""
        key_positions = positions if key_positions is None else key_positions
        counted = functools.partial(calls.counted_at_init, self, head_axis=self.head_axis)
        return calls.polar(self, query, key, counted(query, positions), counted(key, key_positions), self.delta)


class FourierFeatures(nn.Module):
    r"""Random Fourier features of coordinates, $[\sin 2\pi x B,\ \cos 2\pi x B]$, with a Gaussian matrix $B$.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from posenc_jax.linen import FourierFeatures
      >>> features, x = FourierFeatures(2, 64, scale=10.0), jnp.zeros((5, 2))
      >>> variables = features.init(jax.random.key(0), x)
      >>> features.apply(variables, x).shape
      (5, 128)

    Args:
      in_features: the number of coordinates of x.
      num_features: $n$, the number of columns of the matrix. The result has 2n features.
      scale: the standard deviation of the matrix, in cycles per unit of x.
      learned: whether the matrix is trained. If so, it is in the collection "params". If not, it is in "constants":
        part of the variables and of checkpoints, but not of the variables that gradients and optimizers select, so
        weight decay does not shrink it.
      layout: "half" or "interleaved"; see `posenc_jax.fourier_features`.
      dtype: the dtype of the features.
      param_dtype: the dtype of the matrix.

    Raises:
      TypeError: if a size is not an integer, scale is not a number or learned is not a bool.
      ValueError: if a size or scale is not positive.

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

    @public
    def __post_init__(self) -> None:
        """Checks the settings."""
        settings.check_fields(self, checks.positive_int, "in_features num_features")
        settings.check_fields(self, checks.flag, "learned")
        settings.check_fields(self, checks.layout, "layout")
        settings.check_fields(self, checks.floating_dtype, "dtype param_dtype")
        checks.positive("scale", self.scale)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: ArrayLike) -> jax.Array:
        """Returns `fourier_features` of x, (..., in_features), with this matrix and these settings."""
        matrix_init, shape = nn.initializers.normal(self.scale), (self.in_features, self.num_features)

        def draw() -> jax.Array:
            return matrix_init(self.make_rng("params"), shape, self.param_dtype)

        if self.learned:
            matrix = self.param("matrix", matrix_init, shape, self.param_dtype)
        else:
            matrix = self.variable("constants", "matrix", draw).value
        return fourier_features(x, matrix, layout=self.layout, dtype=self.dtype)


class TimestepEmbedding(nn.Module):
    """The embedding of diffusion timesteps; see `posenc_jax.timestep_embedding`. It has no variables.

    Examples:
      >>> import jax.numpy as jnp
      >>> from posenc_jax.linen import TimestepEmbedding
      >>> embedding = TimestepEmbedding(320, flip_sin_to_cos=True, downscale_freq_shift=0)
      >>> embedding.apply({}, jnp.array([0, 999])).shape
      (2, 320)

    Args:
      dim: the number of features.
      flip_sin_to_cos: whether the cosines come before the sines.
      downscale_freq_shift: 1 for DDPM, 0 for Stable Diffusion and DiT; see `posenc_jax.timestep_embedding`.
      scale: multiplies the timesteps.
      max_period: the base of the frequencies.
      dtype: the dtype of the features.

    Raises:
      TypeError: for the same reasons as in `posenc_jax.timestep_embedding`.
      ValueError: for the same reasons as in `posenc_jax.timestep_embedding`.

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

    def __post_init__(self) -> None:
        """Checks the settings."""
        calls.check_timestep_settings(self)
        super().__post_init__()

    def __call__(self, timesteps: ArrayLike) -> jax.Array:
        """Returns `timestep_embedding` of timesteps, (...,), with these settings."""
        return calls.embed_timesteps(self, timesteps)


# Flax writes `__init__`, whose error for a base would not name `frequencies`.
for _module in (SinusoidalEncoding, RotaryEncoding, PoPE):
    _module.__init__ = public(_module.__init__)  # type: ignore[assignment]
