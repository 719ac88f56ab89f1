r"""The sinusoidal encoding, and its addition to embeddings."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from posenc_jax import _check, _mesh
from posenc_jax._phase import kept, product
from posenc_jax.frequencies import (
    Frequencies,
    Layout,
    counted,
    dim_of,
    features,
    has_derivatives,
    is_shared,
    positions_of,
    resolve,
)


def sinusoidal(
    positions: ArrayLike,
    frequencies: Frequencies | int | jax.Array,
    *,
    layout: Layout = "interleaved",
    dtype: Any = jnp.float32,
) -> jax.Array:
    r"""The sinusoidal encoding, $PE(p)_{2i} = \sin \omega_i p$, $PE(p)_{2i+1} = \cos \omega_i p$.

    All of it is multiplied by the frequencies' `attention_factor`. In float32 (and without such a factor), within 9e-8
    of the true value at every int32 position, of either sign, for every width and base.

    Args:
      positions: integers or floats of shape (...,), or (..., axes) when the frequencies use several axes. Their unit
        is the token. The floats of an array are taken at their exact value; a Python float is rounded to float32
        unless it is whole.
      frequencies: `Frequencies`, an int (a width: `geometric(width)`), or a float array of angular frequencies of
        shape (num_pairs,), learned or traced: the encoding is differentiable in them and in float positions.
      layout: "interleaved": features (2i, 2i+1) are the sine and cosine of pair i. "half": features
        (i, i + num_pairs) are. An odd width drops the last cosine.
      dtype: any float dtype; computed in float32 and rounded once.

    Returns:
      The encoding, shape (..., dim), of the given dtype. NaN where a position is NaN or outside int32 and this
      could not be known when tracing (a traced int64 or uint32, or a float). With precision="float32", whatever the
      float32 formula gives.

    Raises:
      TypeError: if positions are not integers or floats; if anything is float64 where x64 is off.
      ValueError: if integer positions are known to lie outside int32, or shape or layout is not one of the above.

    Examples:
      >>> import numpy as np
      >>> import posenc_jax as pe
      >>> print(np.asarray(pe.sinusoidal(np.arange(3), 4)).round(3))
      [[ 0.     1.     0.     1.   ]
       [ 0.841  0.54   0.01   1.   ]
       [ 0.909 -0.416  0.02   1.   ]]
      >>> pe.sinusoidal(2**31 - 1, 4).shape
      (4,)

    Reference:
      Vaswani et al., "Attention Is All You Need", 2017, section 3.5.
    """
    where = "sinusoidal"
    _check.layout(where, layout)
    frequencies = resolve(where, frequencies, whole=layout == "half")
    positions = positions_of(where, "positions", positions, frequencies)
    return _sinusoidal(positions, frequencies, layout=layout, dtype=_check.floating_dtype(where, dtype))


@functools.partial(jax.jit, static_argnames=("layout", "dtype"), inline=True)
def _sinusoidal(positions, frequencies, *, layout, dtype):
    return features(positions, frequencies, layout).astype(dtype)


def add_sinusoidal(
    x: ArrayLike,
    positions: ArrayLike | None = None,
    frequencies: Frequencies | int | jax.Array | None = None,
    *,
    layout: Layout = "interleaved",
    scale: ArrayLike = 1.0,
) -> jax.Array:
    r"""Embeddings with their positions, $\text{scale} \cdot x + PE$, in one read and one write of x.

    A CPU keeps the encodings, float32 (seq, d_model), while it runs, if four sequences or more share integer positions
    and frequencies are static.

    Args:
      x: floats of shape (..., seq, d_model).
      positions: of a shape that broadcasts to (..., seq), so (seq,), (batch, seq) or (batch, 1), with a further last
        axis when the frequencies use several axes. `None` means 0, 1, 2, … along the sequence axis.
      frequencies: as for `sinusoidal`, of width d_model. `None` means `geometric(d_model)`.
      layout: as for `sinusoidal`.
      scale: multiplies x, a scalar; $\sqrt{d_{model}}$ in the original Transformer.

    Returns:
      The sum, of the shape and dtype of x: computed in float32 (float64 if x is), rounded once.

    Raises:
      TypeError: if x is not an array of floats, or as `sinusoidal`.
      ValueError: if the width is not that of x, if positions do not broadcast, if `None` positions are given to
        frequencies of several axes or to more than 2³¹ rows, d_model is symbolic, or scale is not a scalar; else as
        `sinusoidal`.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> x = jnp.zeros((2, 5, 8), jnp.bfloat16)
      >>> y = pe.add_sinusoidal(x)
      >>> y.shape, y.dtype
      ((2, 5, 8), dtype(bfloat16))

    Reference:
      Vaswani et al., "Attention Is All You Need", 2017, sections 3.4 and 3.5.
    """
    where = "add_sinusoidal"
    _check.layout(where, layout)
    x = _check.floats(where, "x", x, "(..., seq, d_model)")
    _check.known_size(where, "x", x.shape, -1)
    frequencies = resolve(where, x.shape[-1] if frequencies is None else frequencies)
    if dim_of(frequencies) != x.shape[-1]:
        raise ValueError(f"{where}: frequencies of width {dim_of(frequencies)} must match x, shape {x.shape}")
    one = isinstance(scale, (int, float)) and not isinstance(scale, bool) and scale == 1
    factor = None if one else _check.scalar(where, "scale", scale, _check.inside(x))
    if positions is not None:
        positions = positions_of(where, "positions", positions, frequencies)
        _check.broadcastable(where, "positions", positions.shape[:-1], "x without its last axis", x.shape[:-1])
        _check.beside(where, "positions", positions, "x", x)
    elif isinstance(frequencies, Frequencies) and frequencies.num_axes > 1:
        raise ValueError(f"{where}: positions must be given for frequencies of {frequencies.num_axes} axes, got None")
    else:
        _check.counted(where, "x", x.shape[-2])
    return _add_sinusoidal(x, positions, frequencies, factor, layout=layout)


@functools.partial(jax.jit, static_argnames=("layout",), inline=True)
def _add_sinusoidal(x, positions, frequencies, scale, *, layout):
    if positions is None:
        positions = counted(x, x.ndim - 2)
    positions, inside = _check.align(positions, x.ndim), _check.inside(x)

    # Broadcast the positions, not the encoding: else compilers keep a (seq, d_model) table for the batch to share,
    # which costs a TPU or GPU more than computing each element where it is added.
    def each(positions, frequencies):
        positions = jnp.broadcast_to(positions, (*x.shape[:-1], positions.shape[-1]))
        return features(positions, frequencies, layout)

    # A CPU computes slower than it reads.
    def shared(positions, frequencies):
        return jnp.broadcast_to(kept(features(positions, frequencies, layout)), x.shape)

    encode = each
    if is_shared(x, positions) and not has_derivatives(positions, frequencies):
        encode = functools.partial(jax.lax.platform_dependent, cpu=shared, default=each)
    encoding = _mesh.sharded_as([x, positions], encode, positions, frequencies)
    scaled = x.astype(inside)
    if scale is not None:
        scaled = product(scale.astype(inside), scaled)
    return (scaled + encoding.astype(inside)).astype(x.dtype)
