r"""Flax NNX modules of the encodings, of Fourier features and of diffusion timesteps."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
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
from posenc_jax._jax.errors import callback, public
from posenc_jax._rotary.rotary import rotary


class SinusoidalEncoding(nnx.Module):
    r"""Adds the sinusoidal encoding to embeddings, $\text{scale} \cdot x + PE$. It has no parameters and no state.

    Examples:
      >>> import jax.numpy as jnp
      >>> from posenc_jax.nnx import SinusoidalEncoding
      >>> encoding = SinusoidalEncoding(8)
      >>> encoding(jnp.zeros((2, 5, 8))).shape
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

    layout: Layout

    @public
    def __init__(self, frequencies: Frequencies | int, *, layout: Layout = "interleaved", scale: float = 1.0):
        self.frequencies, self.layout, self.scale = settings.parse_sinusoidal_settings(frequencies, layout, scale)

    def __call__(self, x: ArrayLike, positions: ArrayLike | None = None) -> jax.Array:
        """Returns `add_sinusoidal` of x, (..., seq, d_model), with these settings."""
        return add_sinusoidal(x, positions, self.frequencies, layout=self.layout, scale=self.scale)

    @public
    def table(self, length: int, dtype: Any = jnp.float32) -> jax.Array:
        """The encodings of positions 0 to length − 1, an array of shape (length, d_model)."""
        return calls.sinusoidal_table(length, self.frequencies, self.layout, dtype)


class LearnedEncoding(nnx.Module):
    r"""Adds rows of a learned table to embeddings, $\text{scale} \cdot x + \text{embedding}_p$.

    Examples:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from posenc_jax.nnx import LearnedEncoding
      >>> encoding = LearnedEncoding(16, 8, rngs=nnx.Rngs(0))
      >>> encoding(jnp.zeros((2, 5, 8))).shape
      (2, 5, 8)

    Args:
      num_embeddings: the length of the table.
      features: the width of the table, d_model.
      param_dtype: the dtype of the table. The result has the dtype of x.
      embedding_init: the initializer of the table. By default normal with standard deviation 0.02, as in BERT (GPT-2:
        0.01).
      out_of_range: "error", "nan" or "zeros" for positions outside the table; see `posenc_jax.learned`.
      scale: a Python number that multiplies x.
      embedding_metadata: metadata of the parameter, such as its sharding.
      rngs: the random number generators for the initial values.

    Raises:
      TypeError: if a size is not an integer or scale is not a number.
      ValueError: if a size is not positive or out_of_range is unknown.

    Reference:
      Devlin et al., "BERT", 2019, section 3.
    """

    out_of_range: OutOfRange

    @public
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
        self.num_embeddings = checks.positive_int("num_embeddings", num_embeddings)
        self.features = checks.positive_int("features", features)
        self.out_of_range = checks.out_of_range("out_of_range", out_of_range)
        param_dtype = checks.floating_dtype("param_dtype", param_dtype)
        self.scale = checks.number("scale", scale)
        with callback():
            value = embedding_init(rngs.params(), (self.num_embeddings, self.features), param_dtype)
        self.embedding = nnx.Param(value, **embedding_metadata)

    def __call__(self, x: ArrayLike, positions: ArrayLike | None = None) -> jax.Array:
        """Returns `add_learned` of x, (..., seq, d_model), with this table and these settings."""
        return add_learned(x, self.embedding[...], positions, scale=self.scale, out_of_range=self.out_of_range)


class RotaryEncoding(nnx.Module):
    """Rotates queries or keys according to position; see `posenc_jax.rotary`. It has no parameters and no state.

    Examples:
      A cache of rotated keys, first prefilled and then extended, is bitwise equal to rotating the whole sequence:

      >>> import jax, jax.numpy as jnp
      >>> from posenc_jax.nnx import RotaryEncoding
      >>> rope = RotaryEncoding(8, head_axis=-2)
      >>> # batch, seq, heads, head_dim
      >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 6, 2, 8), jnp.float32)
      >>> cache = jnp.zeros_like(k).at[:, :4].set(rope(k[:, :4]))
      >>> for p in (4, 5):
      ...     cache = cache.at[:, p].set(rope(k[:, p : p + 1], p)[:, 0])
      ...     query = rope(q[:, p : p + 1], p)
      ...     seen = (jnp.arange(6) <= p)[None, None, None]
      ...     out = jax.nn.dot_product_attention(query, cache, v, mask=seen)
      >>> bool(jnp.all(cache == rope(k)) and jnp.all(query == rope(q)[:, 5:]))
      True

    Args:
      frequencies: the width to rotate, or `Frequencies` of that width, even and at most head_dim.
      layout: "half" or "interleaved"; see `posenc_jax.rotary`.
      head_axis: the axis of the heads: -2 for (..., seq, heads, head_dim), `None` for (..., seq, head_dim). It has no
        default because both conventions are in use: `jax.nn.dot_product_attention` takes the first shape,
        `flax.nnx.RoPE` the second. A wrong axis gives no error, but rotates x by the indices of its heads.
      part: which features are rotated if the width is below head_dim: the "first" or the "last".

    Raises:
      TypeError: if frequencies is an array. For learned frequencies, call `posenc_jax.rotary`.
      ValueError: for the same reasons as in `posenc_jax.rotary`.

    Notes:
      With `head_axis=None`, it can replace `flax.nnx.RoPE`:
      `nnx.dot_product_attention_with_rope(query, key, value, rope=RotaryEncoding(head_dim, head_axis=None))`. In Flax
      0.12.12 that function raises if `input_positions` are given, for Flax's own RoPE too. `positional_attention`
      accepts them.

    Reference:
      Su et al., "RoFormer", 2021, section 3.2.2.
    """

    layout: Layout
    part: RotatedPart

    @public
    def __init__(
        self,
        frequencies: Frequencies | int,
        *,
        layout: Layout = "half",
        head_axis: int | tuple[int, ...] | None,
        part: RotatedPart = "first",
    ):
        self.frequencies, self.layout, self.part = settings.parse_rotary_settings(frequencies, layout, part)
        self.head_axis = head_axis

    def __call__(self, x: ArrayLike, positions: ArrayLike | None = None) -> jax.Array:
        """Returns `rotary` of x, queries or keys, with these settings."""
        return rotary(x, positions, self.frequencies, layout=self.layout, head_axis=self.head_axis, part=self.part)


class PoPE(nnx.Module):
    r"""PoPE of queries and keys, with a learned phase $\delta$ per feature of each key head; see `posenc_jax.pope`.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from flax import nnx
      >>> from posenc_jax.nnx import PoPE
      >>> pope = PoPE(2, 16, head_axis=-2, rngs=nnx.Rngs(0))
      >>> # batch, seq, heads, head_dim
      >>> q, k = jax.random.normal(jax.random.key(0), (2, 1, 5, 2, 8))
      >>> query, key = pope(q, k)
      >>> query.shape
      (1, 5, 2, 16)
      >>> step, cached = pope(q[:, 3:4], k[:, 3:4], jnp.array([3]))  # a decode step
      >>> bool(jnp.all(step == query[:, 3:4]) and jnp.all(cached == key[:, 3:4]))
      True

    Args:
      num_heads: the number of key heads.
      frequencies: the width of the result, which is twice head_dim, or `Frequencies` of that width.
      layout: "half" or "interleaved"; see `posenc_jax.pope`.
      head_axis: the axis of the heads, -3 or -2; see `posenc_jax.rotary`. `None` is not supported, because each head
        has its own phase.
      param_dtype: the dtype of the phase.
      phase_init: the initializer of the phase, of shape (num_heads, head_dim). Zeros by default, as in PoPE-pytorch and
        x-transformers, which both also offer uniform values in $[-2\pi, 0]$.
      phase_metadata: metadata of the parameter, such as its sharding.
      rngs: the random number generators for the initial values.

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

    layout: Layout

    @public
    def __init__(
        self,
        num_heads: int,
        frequencies: Frequencies | int,
        *,
        layout: Layout = "half",
        head_axis: int,
        param_dtype: Any = jnp.float32,
        phase_init: nnx.Initializer = default_phase_init,
        phase_metadata: Mapping[str, Any] = MappingProxyType({}),
        rngs: nnx.Rngs,
    ):
        self.num_heads = checks.positive_int("num_heads", num_heads)
        self.frequencies = parse_static(frequencies, even=True)
        self.layout, self.head_axis = checks.layout("layout", layout), checks.integer("head_axis", head_axis)
        param_dtype = checks.floating_dtype("param_dtype", param_dtype)
        with callback():
            value = phase_init(rngs.params(), (self.num_heads, self.frequencies.num_pairs), param_dtype)
        self.phase = nnx.Param(value, **phase_metadata)

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
        return calls.polar(self, query, key, positions, key_positions, self.phase[...])


class FourierFeatures(nnx.Module):
    r"""Random Fourier features of coordinates, $[\sin 2\pi x B,\ \cos 2\pi x B]$, with a Gaussian matrix $B$.

    Examples:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from posenc_jax.nnx import FourierFeatures
      >>> FourierFeatures(2, 64, scale=10.0, rngs=nnx.Rngs(0))(jnp.zeros((5, 2))).shape
      (5, 128)

    Args:
      in_features: the number of coordinates of x.
      num_features: $n$, the number of columns of the matrix. The result has 2n features.
      scale: the standard deviation of the matrix, in cycles per unit of x.
      learned: whether the matrix is trained. If so, it is an `nnx.Param`. If not, it is an `nnx.Variable`: part of the
        state and of checkpoints, but not of the variables that gradients and optimizers select, so weight decay does
        not shrink it.
      layout: "half" or "interleaved"; see `posenc_jax.fourier_features`.
      dtype: the dtype of the features.
      param_dtype: the dtype of the matrix.
      matrix_metadata: metadata of the matrix, such as its sharding.
      rngs: the random number generators for the matrix.

    Raises:
      TypeError: if a size is not an integer, scale is not a number or learned is not a bool.
      ValueError: if a size or scale is not positive.

    Reference:
      Tancik et al., "Fourier Features Let Networks Learn High Frequency Functions in Low Dimensional Domains", 2020,
      section 5.
    """

    layout: Layout

    @public
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
        self.in_features = checks.positive_int("in_features", in_features)
        self.num_features = checks.positive_int("num_features", num_features)
        self.layout, self.dtype = checks.layout("layout", layout), checks.floating_dtype("dtype", dtype)
        param_dtype = checks.floating_dtype("param_dtype", param_dtype)
        learned, scale = checks.flag("learned", learned), checks.positive("scale", scale)
        matrix_init, shape = nnx.initializers.normal(scale), (self.in_features, self.num_features)
        value = matrix_init(rngs.params(), shape, param_dtype)
        self.matrix = nnx.Param(value, **matrix_metadata) if learned else nnx.Variable(value, **matrix_metadata)

    def __call__(self, x: ArrayLike) -> jax.Array:
        """Returns `fourier_features` of x, (..., in_features), with this matrix and these settings."""
        return fourier_features(x, self.matrix[...], layout=self.layout, dtype=self.dtype)


class TimestepEmbedding(nnx.Module):
    """The embedding of diffusion timesteps; see `posenc_jax.timestep_embedding`. It has no parameters and no state.

    Examples:
      >>> import jax.numpy as jnp
      >>> from posenc_jax.nnx import TimestepEmbedding
      >>> embed = TimestepEmbedding(320, flip_sin_to_cos=True, downscale_freq_shift=0)
      >>> embed(jnp.array([0, 999])).shape
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
        self.dim = dim
        self.flip_sin_to_cos = flip_sin_to_cos
        self.downscale_freq_shift = downscale_freq_shift
        self.scale = scale
        self.max_period = max_period
        self.dtype = dtype
        calls.check_timestep_settings(self)

    def __call__(self, timesteps: ArrayLike) -> jax.Array:
        """Returns `timestep_embedding` of timesteps, (...,), with these settings."""
        return calls.embed_timesteps(self, timesteps)
