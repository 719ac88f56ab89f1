"""PoPE: the content of a token sets the magnitude of each feature, and its position alone sets the angle."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from posenc_jax._frequencies.angles import Angles, features, is_shared, pair_sines
from posenc_jax._frequencies.frequencies import Frequencies
from posenc_jax._jax import sharding
from posenc_jax._jax.arrays import align, compute_dtype
from posenc_jax._jax.checks import Layout
from posenc_jax._jax.errors import public
from posenc_jax._jax.workarounds import CPU, GPU, compiled, computed_where_used, product
from posenc_jax._numerics.exponentials import softplus
from posenc_jax._rotary.parser import parse_pope
from posenc_jax._rotary.rotary import expand_positions
from posenc_jax._rotary.rotation import is_second


@public
def pope(
    x: ArrayLike,
    positions: ArrayLike | None = None,
    frequencies: Frequencies | int | jax.Array | None = None,
    *,
    head_axis: int | tuple[int, ...] | None,
    phase: ArrayLike | None = None,
    layout: Layout = "half",
) -> jax.Array:
    r"""Polar coordinate position embedding (PoPE): features set magnitudes, and positions alone set angles.

    Feature $i$ of $d$ at position $p$ becomes a pair,

    $$y_i = a\,\mu_i\,(\cos\theta_i,\ \sin\theta_i), \qquad \mu_i = \ln(1 + e^{x_i}), \qquad
      \theta_i = \omega_i p + \delta_i$$

    where $a$ is the `attention_factor` of the frequencies, and $\delta_i$ is the `phase`, which is for keys only.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> # batch, seq, heads, head_dim
      >>> query = key = value = jnp.ones((2, 5, 4, 64), jnp.bfloat16)
      >>> delta = jnp.zeros((4, 64))  # learned, one row per key head
      >>> query, key = pe.pope(query, head_axis=-2), pe.pope(key, head_axis=-2, phase=delta)
      >>> query.shape
      (2, 5, 4, 128)
      >>> pe.attention(query, key, value, causal=True, scale=64**-0.5).shape
      (2, 5, 4, 64)

    Args:
      x: queries or keys, float array of shape (..., seq, heads, head_dim).
      positions: integer or float32 array that broadcasts to (..., seq); see `rotary`. `None` means 0, 1, 2, ….
      frequencies: `Frequencies`, a width (`geometric(width)`) or a float array of angular frequencies of shape
        (head_dim,). The width is twice head_dim. `None` means `geometric(2 * head_dim)`, with
        $\omega_i = 10000^{-i/d}$.
      head_axis: the axis of the heads; see `rotary`.
      phase: $\delta$ in radians, float array of shape (head_dim,) or (heads, head_dim), learned or traced. `None` means
        0.
      layout: how a pair is stored. "half": in features i and i + head_dim, all cosines before all sines. "interleaved":
        in features 2i and 2i + 1. Scores do not depend on it if queries and keys use the same layout.

    Returns:
      The pairs, an array of shape (..., 2 · head_dim) and x's dtype. It is NaN where a position lies outside int32 but
      could not be rejected at trace time, or where $|\delta| \ge 2^{31}$.

    Raises:
      TypeError: if x or the phase is not a float array, positions are not integers or float32, or head_axis is not an
        integer.
      ValueError: if the width is not twice head_dim, the phase has another shape, the layout is unknown, or for the
        same reasons as in `rotary`.

    Notes:
      - The score of a query $u$ at $p$ and a key $v$ at $q$ is
        $a^2 \sum_i \mu_i(u)\,\mu_i(v)\,\cos\bigl(\omega_i (q - p) + \delta_i\bigr)$. The amplitudes
        $\mu_i(u)\,\mu_i(v)$ are never negative, so $\delta$ alone sets the offsets at which the cosines peak.
      - The result is twice as wide as x, so scores take twice the work. Scale scores by $1/\sqrt{d}$ for the $d$
        features of x.
      - Angles are correct at every int32 position, and a decode step has the same bits as the full sequence. Magnitudes
        and products are float32 (float64 for float64 x) and rounded once. Sines and cosines are float32.
      - Differentiable in x, float positions, an array of frequencies and the phase, in forward and reverse mode.
        Reverse mode stores only arguments.

    See Also:
      `shift_keys`, to move cached keys; the guide to RoPE, section "PoPE: content apart from position".

    Reference:
      Gopalakrishnan et al., "Decoupling the 'What' and 'Where' With Polar Coordinate Positional Embeddings", 2025,
      section 3.
    """
    x, positions, frequencies, phase, heads = parse_pope(x, positions, frequencies, phase, layout, head_axis)
    return polar_vectors(x, positions, frequencies, phase, layout=layout, heads=heads)


@compiled("pope", static_argnames=("layout", "heads"))
def polar_vectors(
    x: jax.Array,
    positions: jax.Array | None,
    frequencies: Frequencies | jax.Array,
    phase: jax.Array | None,
    *,
    layout: Layout,
    heads: tuple[int, ...],
) -> jax.Array:
    """`pope` of parsed arguments."""
    angles = Angles(expand_positions(x, positions, heads), frequencies, phase)
    arrays = [array for array in (angles.positions, angles.start) if array is not None]
    # Otherwise the backward pass would store sines and cosines of the result's size.
    return sharding.recomputed([x, *arrays], functools.partial(_polar, layout), x, angles)


def _polar(layout: Layout, x: jax.Array, angles: Angles) -> jax.Array:
    """The magnitudes of x times the sines and cosines of angles, of x's rank, by the lowering of the platform."""
    cpu, default = (functools.partial(lowering, layout) for lowering in (_stacked, _padded))
    return lax.platform_dependent(x, angles, cpu=cpu, default=default)


def _stacked(layout: Layout, x: jax.Array, angles: Angles) -> jax.Array:
    """Stacks the cosines and the sines, which XLA:CPU computes in one vectorized loop."""
    magnitude = softplus(x.astype(compute_dtype(x)))
    if is_shared(x, angles):
        sine, cosine = jnp.split(_stored(features(angles, "half")), 2, axis=-1)
    else:
        sine, cosine = (pair_sines(angles, quarter) for quarter in np.arange(2, dtype=np.int32))
    sin_cos = (each.astype(magnitude.dtype) for each in (cosine, sine))
    pairs = [product(magnitude, each).astype(x.dtype) for each in sin_cos]
    return jnp.stack(pairs, -2 if layout == "half" else -1).reshape(*x.shape[:-1], angles.dim)


_stored = jax.custom_jvp(CPU.stored)
_stored.defjvps(lambda tangent, *_: tangent)


def _padded(layout: Layout, x: jax.Array, angles: Angles) -> jax.Array:
    """Spreads x over the features of the result, in one elementwise expression.

    A GPU makes it one pass, as a TPU does for halves; interleaved, a TPU spreads x in a pass of its own. `GPU.stored`
    is also what a TPU is told.
    """
    second, unpadded = is_second(layout, angles.dim), [(0, 0, 0)] * (x.ndim - 1)
    around = ((0, x.shape[-1], 0), (x.shape[-1], 0, 0)) if layout == "half" else ((0, 1, 1), (1, 0, 1))
    first_x, second_x = (lax.pad(x, np.zeros((), x.dtype), [*unpadded, each]) for each in around)
    spread = jnp.where(align(second, x.ndim), second_x, first_x)
    encode = functools.partial(features, layout=layout, quarter=(~second).astype(np.int32))
    sin_cos = GPU.stored(encode(angles)) if is_shared(x, angles) else computed_where_used(encode, x, angles)
    magnitude = softplus(spread.astype(compute_dtype(x)))
    return product(magnitude, sin_cos.astype(magnitude.dtype)).astype(x.dtype)
