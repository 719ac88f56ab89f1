"""Offsets in the sinusoidal encoding: the rotation matrix $M_k$ with $PE(p+k) = M_k PE(p)$, and dot products."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from posenc_jax._encodings.parser import parse_encoding, parse_shift
from posenc_jax._frequencies.angles import Angles, features, pair_sines
from posenc_jax._frequencies.frequencies import AnyFrequencies, Frequencies
from posenc_jax._frequencies.parser import amplitude_of, check_energy, dim_of, parse, parse_positions
from posenc_jax._jax import checks
from posenc_jax._jax.arrays import align
from posenc_jax._jax.checks import Layout
from posenc_jax._jax.errors import public
from posenc_jax._jax.workarounds import compiled
from posenc_jax._rotary.primitive import apply_rotation
from posenc_jax._rotary.rotation import RotationSettings


@public
def rotation_matrix(
    offset: ArrayLike,
    frequencies: Frequencies | int | jax.Array,
    *,
    layout: Layout = "interleaved",
    dtype: Any = jnp.float32,
) -> jax.Array:
    r"""The matrix $M_k$ with $PE(p+k) = M_k\,PE(p)$ for every position $p$.

    It consists of one 2 × 2 rotation per feature pair:

    $$\begin{bmatrix} \sin\omega(p+k) \\ \cos\omega(p+k) \end{bmatrix} =
      \begin{bmatrix} \cos\omega k & \sin\omega k \\ -\sin\omega k & \cos\omega k \end{bmatrix}
      \begin{bmatrix} \sin\omega p \\ \cos\omega p \end{bmatrix}$$

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> M = pe.rotation_matrix(5, 8)
      >>> shifted = jnp.matmul(M, pe.sinusoidal(3, 8), precision="highest")
      >>> bool(jnp.allclose(shifted, pe.sinusoidal(8, 8), atol=5e-7))
      True

    Args:
      offset: $k$, integer or float32 array of shape (...,), or (..., axes) if the frequencies use several axes.
      frequencies: `Frequencies`, a width or a float array; see `sinusoidal`. The width must be even.
      layout: "interleaved" or "half"; see `sinusoidal`. In the interleaved layout, the matrix is block diagonal.
      dtype: dtype of the result, any float dtype.

    Returns:
      The matrices, an array of shape (..., dim, dim) and the given dtype.

    Raises:
      TypeError: if the offset is not integers or float32, or for the same reasons as in `sinusoidal`.
      ValueError: if the width is odd, because a sine without its cosine cannot be rotated, or for the same reasons as
        in `sinusoidal`.

    Notes:
      The formula is the angle-addition identities. The matrix depends only on $k$, with $M_j M_k = M_{j+k}$ and
      $M_k^{-1} = M_{-k} = M_k^T$. It does not include the amplitude of the frequencies (`attention_factor`).

    Reference:
      Vaswani et al., "Attention Is All You Need", 2017, section 3.5: "for any fixed offset k, PE(pos+k) can be
      represented as a linear function of PE(pos)".
    """
    offset, frequencies = parse_encoding(offset, frequencies, layout, "offset", even=True)
    return _rotation_matrix(offset, frequencies, layout=layout, dtype=checks.floating_dtype("dtype", dtype))


@compiled("rotation_matrix", static_argnames=("layout", "dtype"))
def _rotation_matrix(offset: jax.Array, frequencies: AnyFrequencies, *, layout: Layout, dtype: Any) -> jax.Array:
    index, dim, angles = np.arange(dim_of(frequencies)), dim_of(frequencies), Angles(offset, _unit(frequencies))
    is_cosine, distance = (index % 2, 1) if layout == "interleaved" else (index // (dim // 2), dim // 2)
    # Row r holds cos ωk in column r. In the column of r's partner it holds sin ωk if r is a sine and −sin ωk if r is a
    # cosine.
    cosine, sine = (features(angles, layout, quarter)[..., None] for quarter in (np.ones(dim, int), 2 * is_cosine))
    row, column = index[:, None], index[None]
    partner = row + distance * (1 - 2 * is_cosine[:, None])
    is_diagonal, is_partner = (align(x == column, cosine.ndim) for x in (row, partner))
    return jnp.where(is_diagonal, cosine, jnp.where(is_partner, sine, np.float32(0))).astype(dtype)


@public
def shift(
    encodings: ArrayLike,
    offset: ArrayLike,
    frequencies: Frequencies | int | jax.Array,
    *,
    layout: Layout = "interleaved",
) -> jax.Array:
    r"""Shifts encodings by an offset, from $PE(p)$ to $PE(p+k) = M_k\,PE(p)$, without building the matrix $M_k$.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> table = pe.sinusoidal(jnp.arange(10), 8)
      >>> there = pe.sinusoidal(jnp.arange(100, 110), 8)
      >>> bool(jnp.allclose(pe.shift(table, 100, 8), there, atol=5e-7))
      True

    Args:
      encodings: float array of shape (..., dim).
      offset: $k$, integer or float32 array that broadcasts to the shape of the encodings without their last axis.
        Frequencies with several axes need one more axis at the end.
      frequencies: `Frequencies`, a width or a float array; see `sinusoidal`. The width must be even and equal to dim.
      layout: the layout of the encodings, "interleaved" or "half"; see `sinusoidal`.

    Returns:
      The shifted encodings, with the shape and dtype of `encodings`. They are computed in float32 (float64 if the
      encodings are float64). Differentiable, like `rotary`.

    Raises:
      TypeError: if encodings are not floats, or for the same reasons as in `rotation_matrix`.
      ValueError: if the width does not match, the offset does not broadcast, or for the same reasons as in
        `rotation_matrix`.

    Notes:
      Each shift rounds to the dtype of the encodings. In 16 bits, shift once by the sum of the offsets, not step by
      step.

    Reference:
      Vaswani et al., "Attention Is All You Need", 2017, section 3.5.
    """
    encodings, offset, frequencies = parse_shift(encodings, offset, frequencies, layout)
    return _shift(encodings, offset, frequencies, layout=layout)


@compiled("shift", static_argnames=("layout",))
def _shift(encodings: jax.Array, offset: jax.Array, frequencies: AnyFrequencies, *, layout: Layout) -> jax.Array:
    # A pair is (sine, cosine), so M_k rotates it backward.
    angles = Angles(align(offset, encodings.ndim), _unit(frequencies))
    return apply_rotation(RotationSettings(layout, backward=True), encodings, angles)


@public
def offset_similarity(offset: ArrayLike, frequencies: Frequencies | int | jax.Array) -> jax.Array:
    r"""The dot product of two sinusoidal encodings, which depends only on their offset.

    $$PE(p) \cdot PE(p+k) = \sum_i \cos \omega_i k$$

    Examples:
      >>> import posenc_jax as pe
      >>> print(pe.offset_similarity(0, 16))
      8.0
      >>> print(pe.offset_similarity(-3, 16) == pe.offset_similarity(3, 16))
      True

    Args:
      offset: $k$, integer or float32 array of shape (...,), or (..., axes) if the frequencies use several axes.
      frequencies: `Frequencies`, a width or a float array; see `sinusoidal`. The width must be even.

    Returns:
      A float32 array of shape (...,). At offset 0 it is dim / 2, the squared norm of every encoding.

    Raises:
      TypeError: for the same reasons as in `rotation_matrix`.
      ValueError: if the width is odd, because without its last cosine the product depends on the position, or for the
        same reasons as in `rotation_matrix`.

    Notes:
      - The identity holds exactly, at every $p$. The square of the frequencies' `attention_factor` multiplies the sum.
      - The compiler chooses the order of the sum, so the last bit may differ between programs.

    Reference:
      Vaswani et al., "Attention Is All You Need", 2017, section 3.5; the sum follows from the identity cos(a)cos(b) +
      sin(a)sin(b) = cos(a − b).
    """
    frequencies = parse(frequencies, even=True)
    check_energy(frequencies, dim_of(frequencies) / 2)
    return _offset_similarity(parse_positions("offset", offset, frequencies), frequencies)


@compiled("offset_similarity")
def _offset_similarity(offset: jax.Array, frequencies: AnyFrequencies) -> jax.Array:
    cosines = pair_sines(Angles(offset, _unit(frequencies)), np.int32(1))
    return jnp.sum(cosines, axis=-1) * np.float32(amplitude_of(frequencies) ** 2)


def _unit(frequencies: AnyFrequencies) -> AnyFrequencies:
    """The frequencies with amplitude 1, because a rotation preserves norms."""
    if isinstance(frequencies, Frequencies):
        return dataclasses.replace(frequencies, attention_factor=1.0)
    return frequencies
