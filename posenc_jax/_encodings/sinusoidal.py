r"""The sinusoidal encoding and its addition to embeddings."""

from __future__ import annotations

import functools
from types import NoneType
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from posenc_jax._encodings.parser import parse_added_encoding, parse_encoding
from posenc_jax._frequencies.angles import Angles, features, is_shared
from posenc_jax._frequencies.frequencies import AnyFrequencies, Frequencies
from posenc_jax._jax import checks, sharding
from posenc_jax._jax.arrays import align, compute_dtype
from posenc_jax._jax.calls import parsed_once
from posenc_jax._jax.checks import Layout
from posenc_jax._jax.errors import public
from posenc_jax._jax.workarounds import compiled, computed_where_used, materialized, product


@public
@parsed_once(integers=["positions"], frequencies=(Frequencies, int), layout=(str,))
def sinusoidal(
    positions: ArrayLike,
    frequencies: Frequencies | int | jax.Array,
    *,
    layout: Layout = "interleaved",
    dtype: Any = jnp.float32,
) -> jax.Array:
    r"""The sinusoidal encoding of positions, $PE(p)_{2i} = \sin \omega_i p$ and $PE(p)_{2i+1} = \cos \omega_i p$.

    Examples:
      >>> import numpy as np
      >>> import posenc_jax as pe
      >>> print(np.asarray(pe.sinusoidal(np.arange(3), 4)).round(3))
      [[ 0.     1.     0.     1.   ]
       [ 0.841  0.54   0.01   1.   ]
       [ 0.909 -0.416  0.02   1.   ]]
      >>> pe.sinusoidal(2**31 - 1, 4).shape
      (4,)

    Args:
      positions: $p$, integer or float32 array of shape (...,), or (..., axes) if the frequencies use several axes. The
        unit is one token.
      frequencies: $\omega$, as `Frequencies`, as an int (a width, for `geometric(width)`), or as a float array of
        angular frequencies of shape (num_pairs,), which may be learned or traced.
      layout: which features form a pair. "interleaved": features 2i and 2i + 1 are the sine and the cosine of pair i.
        "half": they are features i and i + num_pairs. An odd width drops the last cosine.
      dtype: dtype of the result, any float dtype. The encoding is computed in float32 and rounded once.

    Returns:
      The encoding, an array of shape (..., dim) and the given dtype. It is NaN where a position is NaN, or lies outside
      int32 but could not be rejected at trace time (a traced int64 or uint32, or a float).

    Raises:
      TypeError: if positions are not integers or float32, or if dtype is float64 while x64 is off.
      ValueError: if concrete integer positions lie outside int32, if rounding to float32 would change a position by
        more than 0.001, if a shape does not fit, or if layout is unknown.

    Notes:
      - In float32, each feature is within 9e-8 of its true value at every int32 position, positive or negative, for
        every width and base. The `attention_factor` of the frequencies, 1 by default, multiplies every feature, and so
        this bound.
      - Float positions are taken at their exact values: float32, and float64 if x64 is on. If x64 is off, a NumPy
        float64 array of integers is exact too. Other NumPy float64 arrays and Python floats are rounded to float32, or
        rejected if that would change a position by more than 0.001, such as 10⁹ + ½.
      - Floats of 16 bits or fewer are rejected, because they cannot represent every integer: in bfloat16, 257 becomes
        256.
      - The encoding is differentiable in float positions and in an array of frequencies. A NumPy float64 array of
        frequencies is taken at its exact values.
      - Frequencies with precision="float32" follow the float32 formula for positions outside int32 too.

    Reference:
      Vaswani et al., "Attention Is All You Need", 2017, section 3.5.
    """
    positions, frequencies = parse_encoding(positions, frequencies, layout)
    return _sinusoidal(positions, frequencies, layout=layout, dtype=checks.floating_dtype("dtype", dtype))


@compiled("sinusoidal", static_argnames=("layout", "dtype"))
def _sinusoidal(positions: jax.Array, frequencies: AnyFrequencies, *, layout: Layout, dtype: Any) -> jax.Array:
    return features(Angles(positions, frequencies), layout).astype(dtype)


@public
@parsed_once(integers=["positions"], frequencies=(Frequencies, int, NoneType), layout=(str,))
def add_sinusoidal(
    x: ArrayLike,
    positions: ArrayLike | None = None,
    frequencies: Frequencies | int | jax.Array | None = None,
    *,
    layout: Layout = "interleaved",
    scale: ArrayLike = 1.0,
) -> jax.Array:
    r"""Adds the sinusoidal encoding to embeddings, $\text{scale} \cdot x + PE$, in one read and one write of x.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> x = jnp.zeros((2, 5, 8), jnp.bfloat16)
      >>> y = pe.add_sinusoidal(x)
      >>> y.shape, y.dtype
      ((2, 5, 8), dtype(bfloat16))

    Args:
      x: embeddings, float array of shape (..., seq, d_model), or (d_model,) for one vector. NumPy's float64 is rounded
        to float32 if x64 is off, as `jnp` does.
      positions: integer or float32 array that broadcasts to (..., seq), such as (seq,), (batch, seq) or (batch, 1).
        Frequencies with several axes need one more axis at the end. `None` means 0, 1, 2, … along the sequence.
      frequencies: `Frequencies`, a width or a float array, of width d_model; see `sinusoidal`. `None` means
        `geometric(d_model)`. For an odd d_model, the width may also be d_model − 1.
      layout: "interleaved" or "half"; see `sinusoidal`.
      scale: a scalar that multiplies x; $\sqrt{d_{model}}$ in the original Transformer.

    Returns:
      The sum, with the shape and dtype of x. It is computed in float32 (float64 if x is float64) and rounded once.

    Raises:
      TypeError: if x is not a float array, or for the same reasons as in `sinusoidal`.
      ValueError: if the width differs from the width of x, if positions do not broadcast, if d_model is symbolic, if
        scale is not a scalar, or for the same reasons as in `sinusoidal`.
      ValueError: if positions are `None`, and the frequencies have several axes or x has more than 2³¹ rows.

    Notes:
      - If d_model is odd and the width is d_model − 1, the last feature gets no encoding. Tensor2Tensor and the Flax
        examples do this: `geometric(d_model - 1, endpoint=True)` with layout "half".
      - On a CPU, the call stores the encodings, a float32 array of shape (seq, d_model), if at least four sequences
        share integer positions and the frequencies are static.

    Reference:
      Vaswani et al., "Attention Is All You Need", 2017, sections 3.4 and 3.5.
    """
    x, positions, frequencies = parse_added_encoding(x, positions, frequencies, layout)
    unscaled = isinstance(scale, (int, float)) and not isinstance(scale, bool) and scale == 1
    factor = None if unscaled else checks.scalar("scale", scale, compute_dtype(x))
    return _add_sinusoidal(x, positions, frequencies, factor, layout=layout)


@compiled("add_sinusoidal", static_argnames=("layout",))
def _add_sinusoidal(
    x: jax.Array,
    positions: jax.Array | None,
    frequencies: AnyFrequencies,
    scale: jax.Array | None,
    *,
    layout: Layout,
) -> jax.Array:
    positions = align(sharding.count_along(x, x.ndim - 2) if positions is None else positions, x.ndim)
    encoding = _encoding_of(x, Angles(positions, frequencies), layout).astype(compute_dtype(x))
    scaled = x.astype(encoding.dtype)
    if scale is not None:
        scaled = product(scale.astype(encoding.dtype), scaled)
    return (scaled + encoding).astype(x.dtype)


def _encoding_of(x: jax.Array, angles: Angles, layout: Layout) -> jax.Array:
    """Encodes angles of x's rank to the shape of x."""
    encode = functools.partial(features, layout=layout, margin=(0, x.shape[-1] - angles.dim))
    computed = functools.partial(computed_where_used, encode, x)
    if angles.have_derivatives or not is_shared(x, angles):
        return computed(angles)
    # A CPU reads a table faster than it computes the encoding again.
    table = lambda angles: jnp.broadcast_to(materialized(encode(angles)), x.shape)  # noqa: E731
    cpu = functools.partial(sharding.sharded_as, [x, angles.positions], table)
    return jax.lax.platform_dependent(angles, cpu=cpu, default=computed)
