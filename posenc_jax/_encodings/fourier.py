"""Fourier features of coordinates (random, octaves or learned), and the embedding of diffusion timesteps."""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from posenc_jax._frequencies import angles
from posenc_jax._frequencies.frequencies import Frequencies, geometric_cycles, limited
from posenc_jax._frequencies.parser import parse_positions
from posenc_jax._jax import checks
from posenc_jax._jax.checks import Layout
from posenc_jax._jax.errors import invalid, public, require
from posenc_jax._jax.workarounds import compiled
from posenc_jax._numerics import sines


@public
def fourier_features(
    x: ArrayLike, matrix: ArrayLike, *, layout: Layout = "half", dtype: Any = jnp.float32
) -> jax.Array:
    r"""Fourier features of coordinates, $\gamma(x) = [\sin 2\pi x B,\ \cos 2\pi x B]$.

    Examples:
      >>> import numpy as np
      >>> import posenc_jax as pe
      >>> B = np.array([[1.0, 0.0], [0.0, 0.5]], np.float32)
      >>> print(np.asarray(pe.fourier_features(np.array([0.25, 0.5], np.float32), B)).round(4))
      [1. 1. 0. 0.]

      The octaves of NeRF, $\sin(2^k\pi x)$ and $\cos(2^k\pi x)$ of each coordinate for $k = 0, …, 9$:

      >>> octaves = np.kron(np.eye(3), 2.0 ** np.arange(-1, 9)).astype(np.float32)
      >>> pe.fourier_features(np.zeros((5, 3), np.float32), octaves, layout="interleaved").shape
      (5, 60)

    Args:
      x: $x$, float or integer array of shape (..., inputs), of magnitude below 2³¹.
      matrix: $B$, float array of shape (inputs, n), in cycles per unit of each coordinate, of magnitude below 2²⁸.
      layout: the order of the features. "half": n sines before n cosines, as in the paper's code. "interleaved":
        features 2j and 2j + 1 are the sine and the cosine of column j.
      dtype: dtype of the result, any float dtype. The features are computed in float32 and rounded once.

    Returns:
      The features, an array of shape (..., 2n) and the given dtype. They are NaN for an x with a coordinate that is NaN
      or out of range, and for a column of the matrix with such an entry. Differentiable in x and the matrix.

    Raises:
      TypeError: if x is not floats or integers, if the matrix is not a float array, or if anything is float64 while x64
        is off.
      ValueError: if the matrix does not have two axes, if the last axis of x does not match its inputs, or if the
        layout is unknown.

    Notes:
      - For Gaussian features, the matrix is `sigma * jax.random.normal(key, (inputs, n))`, fixed or learned.
      - The phases $x_k B_{kj}$ and their sum over $k$ are fixed-point fractions of a cycle. No matrix product rounds
        the sum, so it has the same bits in every program.
      - With $m$ coordinates, features are within $9\cdot10^{-8} + 6\cdot10^{-9}\,m$ of their true values for the given
        $x$ and $B$, for entries of $x$ up to 2³¹ and of $B$ up to 2²⁴.
      - The paper's formula puts the cosine before the sine and has an amplitude.

    Reference:
      Tancik et al., "Fourier Features Let Networks Learn High Frequency Functions in Low Dimensional Domains", 2020,
      section 5, equation 5; Mildenhall et al., "NeRF", 2020, equation 4, for octaves.
    """
    x, matrix = _coordinates(x, matrix, layout)
    return _fourier_features(x, matrix, layout=layout, dtype=checks.floating_dtype("dtype", dtype))


def _coordinates(x: Any, matrix: Any, layout: Any) -> tuple[jax.Array, jax.Array]:
    """Checks x (..., inputs) and the matrix (inputs, n)."""
    checks.layout("layout", layout)
    x = checks.on_device(checks.array("x", x, checks.NUMBERS))
    matrix = checks.on_device(checks.array("matrix", matrix, checks.FLOATS))
    require(matrix.ndim == 2, "matrix must have shape (inputs, n), got {}", matrix.shape)
    if layout == "half":
        checks.unsharded("matrix", matrix)
    if x.shape[-1:] != matrix.shape[:1]:
        raise invalid(f"x must have shape (..., {matrix.shape[0]}) for matrix {matrix.shape}, got {x.shape}")
    (*rows, _), (_, columns) = (jax.typeof(a).sharding.spec for a in (x, matrix))
    checks.sharded_together({"x": (*rows, None), "matrix": (columns,)})
    return x, matrix


@compiled("fourier_features", static_argnames=("layout", "dtype"))
def _fourier_features(x: jax.Array, matrix: jax.Array, *, layout: Layout, dtype: Any) -> jax.Array:
    sine, cosine = (sines.sine_of_dot(x, matrix, quarter).astype(dtype) for quarter in range(2))
    columns = jnp.stack([sine, cosine], -2 if layout == "half" else -1)
    return columns.reshape(*x.shape[:-1], 2 * matrix.shape[1])


@public
def timestep_embedding(
    timesteps: ArrayLike,
    dim: int,
    *,
    flip_sin_to_cos: bool = False,
    downscale_freq_shift: float = 1.0,
    scale: float = 1.0,
    max_period: float = 10_000.0,
    dtype: Any = jnp.float32,
) -> jax.Array:
    r"""The embedding of diffusion timesteps, $[\sin \omega_i t,\ \cos \omega_i t]$, sines first.

    $$\omega_i = \text{scale} \cdot \text{max\_period}^{-i/(n - \text{shift})}, \quad n = \lfloor \text{dim}/2 \rfloor$$

    Examples:
      >>> import numpy as np
      >>> import posenc_jax as pe
      >>> t = np.array([0.5], np.float32)
      >>> print(np.asarray(pe.timestep_embedding(t, 5, flip_sin_to_cos=True)).round(4))
      [[0.8776 1.     0.4794 0.     0.    ]]

    Args:
      timesteps: $t$, integer or float32 array of shape (...,).
      dim: the number of features. For an odd width, the last feature is zero.
      flip_sin_to_cos: whether the cosines come first.
      downscale_freq_shift: shift, below n. With 1, the last frequency is exactly scale/max_period (DDPM, Stable
        Diffusion's predecessors). With 0, the frequencies end one step short of it (Stable Diffusion, DiT).
      scale: multiplies the timesteps; 1000 for timesteps from 0 to 1, as in many flow models.
      max_period: the base of the frequencies, positive.
      dtype: dtype of the result, any float dtype. The embedding is computed in float32 and rounded once.

    Returns:
      The embedding, an array of shape (..., dim) and the given dtype. It is NaN where a timestep is NaN or outside
      int32. Differentiable in float timesteps.

    Raises:
      TypeError: if timesteps are not integers or float32, if dim is not an integer, or if another argument has the
        wrong type.
      ValueError: if dim is negative, if the shift is not below n, if scale or max_period is not positive, or if a
        frequency would reach 2²⁸ cycles per timestep.

    Notes:
      - The names and the defaults are the same as in diffusers.
      - Frequencies are exact. Features are within 9e-8 of their true values for every timestep below 2³¹ that an array
        can hold. A float32 reference is already off by 1e-4 at $t = 1000$.
      - bfloat16 timesteps are rejected, because they would be rounded: 937 becomes 936.
      - A single frequency ($n = 1$) is `scale` for any shift.

    Reference:
      Ho et al., "Denoising Diffusion Probabilistic Models", 2020, appendix B; `get_timestep_embedding` of diffusers.
    """
    dim = checks.size("dim", dim, 0)
    shift, scale, max_period = _parse_timestep_settings(dim // 2, downscale_freq_shift, scale, max_period)
    frequencies = _timestep_frequencies(dim // 2, Fraction(shift), Fraction(scale), max_period)
    timesteps = parse_positions("timesteps", timesteps, frequencies)
    flip, dtype = checks.flag("flip_sin_to_cos", flip_sin_to_cos), checks.floating_dtype("dtype", dtype)
    return _timestep_embedding(timesteps, frequencies, odd=dim % 2, flip=flip, dtype=dtype)


def _parse_timestep_settings(half: int, shift: Any, scale: Any, max_period: Any) -> tuple[float, float, float]:
    """Shift, scale and max_period, for `half` pairs."""
    shift = checks.number("downscale_freq_shift", shift)
    scale, max_period = checks.positive("scale", scale), checks.positive("max_period", max_period)
    require(scale < 1.6e9, "scale must be below 1.6e9, got {}", scale)  # 2²⁸ cycles per timestep
    require(half <= 1 or shift < half, "downscale_freq_shift must be below dim // 2 = {}, got {}", half, shift)
    return shift, scale, max_period


@functools.lru_cache(maxsize=256)
def _timestep_frequencies(half: int, shift: Fraction, scale: Fraction, max_period: float) -> Frequencies:
    step = 1 / (half - shift) if half > 1 else Fraction(0)
    cycles = geometric_cycles(half, max_period, step.numerator, step.denominator)
    cycles = limited("max_period", max_period, tuple(round(t * scale) for t in cycles))
    return Frequencies(cycles, 2 * half)


@compiled("timestep_embedding", static_argnames=("odd", "flip", "dtype"))
def _timestep_embedding(
    timesteps: jax.Array, frequencies: Frequencies, *, odd: int, flip: bool, dtype: Any
) -> jax.Array:
    first = np.arange(frequencies.dim) < frequencies.num_pairs
    quarter = np.where(first, int(flip), int(not flip))
    embedding = angles.features(angles.Angles(timesteps, frequencies), "half", quarter).astype(dtype)
    return jnp.pad(embedding, [(0, 0)] * (embedding.ndim - 1) + [(0, odd)])
