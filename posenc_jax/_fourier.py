r"""Features of coordinates and of time: random, octave or learned Fourier features, and the timesteps of diffusion."""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from posenc_jax import _checks, _waves
from posenc_jax._checks import public, require
from posenc_jax._frequencies import Frequencies, Layout, limited, parse_positions, spectrum


@public
def fourier_features(
    x: ArrayLike, matrix: ArrayLike, *, layout: Layout = "half", dtype: Any = jnp.float32
) -> jax.Array:
    r"""Fourier features, $\gamma(x) = [\sin 2\pi x B,\ \cos 2\pi x B]$.

    Every phase $x_k B_{kj}$ is a fraction of a turn in integers, and so is their sum over $k$: no matrix product rounds
    it, and it has the same bits in every program. Of $m$ coordinates, features are within $9\cdot10^{-8} +
    6\cdot10^{-9}\,m$ of the true value for the given $x$ and $B$, up to 2³¹ and 2²⁴ in size.

    Gaussian features are a matrix `sigma * jax.random.normal(key, (inputs, n))`, kept as it is or learned. NeRF's
    octaves $\sin(2^k\pi x), \cos(2^k\pi x)$ of each coordinate, $k = 0, …, L - 1$, are exactly the matrix
    `np.kron(np.eye(inputs), 2.0 ** np.arange(-1, L - 1))` with the interleaved layout.

    Args:
      x: $x$, floats or integers of shape (..., inputs), below 2³¹ in size.
      matrix: $B$, turns a unit of each coordinate, floats of shape (inputs, n), below 2²⁸ in size.
      layout: "half": n sines before n cosines, as the paper's code has them. "interleaved": features (2j, 2j + 1) are
        the sine and cosine of column j; the formula of the paper has the cosine before the sine, and an amplitude.
      dtype: any float dtype; computed in float32 and rounded once.

    Returns:
      The features, shape (..., 2n), of the given dtype. NaN for an x that is NaN or out of range in a coordinate, and
      for such a column of the matrix. Differentiable in both.

    Raises:
      TypeError: if x is not of floats or integers or the matrix not of floats; if anything is float64 where x64 is off.
      ValueError: if the matrix has not two axes, x has not its number of inputs, or the layout is another.

    Examples:
      >>> import numpy as np
      >>> import posenc_jax as pe
      >>> B = np.array([[1.0, 0.0], [0.0, 0.5]], np.float32)
      >>> print(np.asarray(pe.fourier_features(np.array([0.25, 0.5], np.float32), B)).round(4))
      [1. 1. 0. 0.]
      >>> octaves = np.kron(np.eye(3), 2.0 ** np.arange(-1, 9)).astype(np.float32)
      >>> pe.fourier_features(np.zeros((5, 3), np.float32), octaves, layout="interleaved").shape
      (5, 60)

    Reference:
      Tancik et al., "Fourier Features Let Networks Learn High Frequency Functions in Low Dimensional Domains", 2020,
      section 5, equation 5; Mildenhall et al., "NeRF", 2020, equation 4, for octaves.
    """
    x, matrix = _coordinates(x, matrix, layout)
    return _fourier_features(x, matrix, layout=layout, dtype=_checks.floating_dtype(dtype))


def _coordinates(x: Any, matrix: Any, layout: Any) -> tuple[jax.Array, jax.Array]:
    """Numbers (..., inputs), and a matrix (inputs, n)."""
    _checks.layout(layout)
    x = jnp.asarray(_checks.array("x", x))
    matrix = jnp.asarray(_checks.array("matrix", matrix, _checks.FLOATS))
    require(matrix.ndim == 2, "matrix must have shape (inputs, n), got {}", matrix.shape)
    if layout == "half":
        _checks.unsharded("matrix", matrix)
    inputs, message = matrix.shape[0], "x must have shape (..., {}) for matrix {}, got {}"
    require(x.ndim and x.shape[-1] == inputs, message, inputs, matrix.shape, x.shape)
    (*rows, _), (_, columns) = (jax.typeof(a).sharding.spec for a in (x, matrix))
    _checks.sharded_together({"x": (*rows, None), "matrix": (columns,)})
    return x, matrix


@functools.partial(jax.jit, static_argnames=("layout", "dtype"), inline=True)
def _fourier_features(x: jax.Array, matrix: jax.Array, *, layout: Layout, dtype: Any) -> jax.Array:
    sine, cosine = (_waves.wave_of_dot(x, matrix, quarter).astype(dtype) for quarter in range(2))
    waves = jnp.stack([sine, cosine], -2 if layout == "half" else -1)
    return waves.reshape(*x.shape[:-1], 2 * matrix.shape[1])


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
    r"""The embedding of diffusion timesteps, $[\sin \omega_i t,\ \cos \omega_i t]$ with the sines first.

    $$\omega_i = \text{scale} \cdot \text{max\_period}^{-i/(n - \text{shift})}, \quad n = \lfloor \text{dim}/2 \rfloor$$

    Frequencies are exact, and the features are within 9e-8 of the true value for every timestep that an array can hold
    below 2³¹; a float32 reference has lost 1e-4 at $t = 1000$. The names and defaults are those of diffusers.

    Args:
      timesteps: $t$, integers or floats of shape (...,).
      dim: number of features, at least 2. An odd width ends in a zero.
      flip_sin_to_cos: cosines first.
      downscale_freq_shift: shift, below n: 1 ends the frequencies at exactly scale/max_period (DDPM, Stable Diffusion's
        predecessors), 0 one step short of it (Stable Diffusion, DiT). A single frequency is `scale` for any shift.
      scale: multiplies the timesteps, 1000 for those from 0 to 1 in many flow models.
      max_period: positive.
      dtype: any float dtype; computed in float32 and rounded once.

    Returns:
      The embedding, shape (..., dim), of the given dtype. NaN where a timestep is NaN or outside int32. Differentiable
      in float timesteps.

    Raises:
      TypeError: if timesteps are not integers or floats, dim not an integer, or another argument of another type.
      ValueError: if dim is below 2, the shift not below n, scale or max_period not positive, or so that a frequency
        would turn 2²⁸ times a timestep.

    Examples:
      >>> import numpy as np
      >>> import posenc_jax as pe
      >>> print(np.asarray(pe.timestep_embedding(np.array([0.5]).astype(np.float32), 5, flip_sin_to_cos=True)).round(4))
      [[0.8776 1.     0.4794 0.     0.    ]]

    Reference:
      Ho et al., "Denoising Diffusion Probabilistic Models", 2020, appendix B; `get_timestep_embedding` of diffusers.
    """
    dim = _checks.integer("dim", _checks.size("dim", dim), 2)
    frequencies = _timestep_spectrum(dim // 2, downscale_freq_shift, scale, max_period)
    timesteps = parse_positions("timesteps", timesteps, frequencies)
    flip, dtype = _checks.flag("flip_sin_to_cos", flip_sin_to_cos), _checks.floating_dtype(dtype)
    return _timestep_embedding(timesteps, frequencies, odd=dim % 2, flip=flip, dtype=dtype)


def _timestep_spectrum(half: int, shift: Any, scale: Any, max_period: Any) -> Frequencies:
    """The frequencies of so many pairs, by checked settings."""
    shift = _checks.number("downscale_freq_shift", shift)
    scale, max_period = _checks.positive("scale", scale), _checks.positive("max_period", max_period)
    require(scale < 1.6e9, "scale must be below 1.6e9, got {}", scale)  # 2²⁸ turns
    require(half == 1 or shift < half, "downscale_freq_shift must be below dim // 2 = {}, got {}", half, shift)
    return _timestep_frequencies(half, Fraction(shift), Fraction(scale), max_period)


@functools.lru_cache(maxsize=256)
def _timestep_frequencies(half: int, shift: Fraction, scale: Fraction, max_period: float) -> Frequencies:
    step = 1 / (half - shift) if half > 1 else Fraction(0)
    turns = spectrum(half, max_period, step.numerator, step.denominator)
    turns = limited("max_period", max_period, tuple(round(t * scale) for t in turns))
    return Frequencies(turns, 2 * half)


@functools.partial(jax.jit, static_argnames=("odd", "flip", "dtype"), inline=True)
def _timestep_embedding(
    timesteps: jax.Array, frequencies: Frequencies, *, odd: int, flip: bool, dtype: Any
) -> jax.Array:
    first = np.arange(frequencies.dim) < frequencies.num_pairs
    quarter = np.where(first, int(flip), int(not flip))
    embedding = _waves.features(timesteps, frequencies, "half", quarter).astype(dtype)
    return jnp.pad(embedding, [(0, 0)] * (embedding.ndim - 1) + [(0, odd)])
