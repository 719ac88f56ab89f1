r"""Rotary position embeddings (RoPE): rotate each feature pair of a query or key according to its position."""

from __future__ import annotations

import dataclasses
from types import NoneType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from posenc_jax._frequencies.angles import Angles, SinCosTable
from posenc_jax._frequencies.frequencies import AnyFrequencies, Frequencies
from posenc_jax._jax import checks, sharding
from posenc_jax._jax.arrays import align
from posenc_jax._jax.calls import parsed_once
from posenc_jax._jax.checks import Layout, RotatedPart
from posenc_jax._jax.errors import describe, invalid, public, require, require_type
from posenc_jax._jax.workarounds import compiled
from posenc_jax._rotary.cos_sin import CosSin
from posenc_jax._rotary.parser import parse_rotary, parse_rotary_by_cos_sin
from posenc_jax._rotary.primitive import apply_rotation
from posenc_jax._rotary.rotation import RotationSettings


@public
@parsed_once(
    integers=["positions"],
    frequencies=(Frequencies, int, NoneType),
    head_axis=(int, tuple, NoneType),
    layout=(str,),
    part=(str,),
    inverse=(bool,),
)
def rotary(
    x: ArrayLike,
    positions: ArrayLike | None = None,
    frequencies: Frequencies | int | jax.Array | None = None,
    *,
    head_axis: int | tuple[int, ...] | None,
    layout: Layout = "half",
    part: RotatedPart = "first",
    inverse: bool = False,
    cos_sin: CosSin | None = None,
) -> jax.Array:
    r"""Rotary position embedding (RoPE): rotates queries or keys according to their positions.

    Feature pair $i$ at position $p$ is rotated by the angle $\omega_i p$ and multiplied by $a$, the `attention_factor`
    of the frequencies:

    $$y_1 = a\,(x_1 \cos\omega_i p - x_2 \sin\omega_i p), \qquad y_2 = a\,(x_2 \cos\omega_i p + x_1 \sin\omega_i p)$$

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> query = jnp.ones((2, 5, 4, 64), jnp.bfloat16)  # batch, seq, heads, head_dim
      >>> rotated = pe.rotary(query, head_axis=-2)
      >>> step = pe.rotary(query[:, 3:4], jnp.array([3]), head_axis=-2)  # decode step
      >>> bool(jnp.all(step == rotated[:, 3:4]))
      True

    Args:
      x: queries or keys, float array of shape (..., seq, heads, head_dim).
      positions: integer or float32 array that broadcasts to (..., seq), with a last axis of coordinates if the
        frequencies have several axes. `None` means 0, 1, 2, ….
      frequencies: `Frequencies`, a width (`geometric(width)`) or a float array of angular frequencies, of shape
        (num_pairs,), (axes, num_pairs) or (heads, axes, num_pairs). Features beyond the width are unchanged. `None`
        means `geometric(head_dim)`, base 10,000.
      head_axis: the axis of the heads: -2 for (..., seq, heads, head_dim), -3 for (..., heads, seq, head_dim), `None`
        for (..., seq, head_dim), or a tuple of axes.
      layout: which features form a pair: "half", i and i + num_pairs (most Hugging Face models), or "interleaved", 2i
        and 2i + 1 (GPT-J, Cohere, Meta's Llama weights).
      part: which features are rotated if the width is below head_dim: the "first" or the "last".
      inverse: whether to undo the rotation, and divide by $a$.
      cos_sin: a `CosSin`, such as `cos_sin` returns, instead of positions and frequencies.

    Returns:
      The rotated x, with its shape and dtype. It is NaN where a position lies outside int32 but could not be checked.

    Raises:
      TypeError: if an argument has the wrong type or dtype.
      ValueError: if shapes do not fit, head_dim is symbolic, or several tokens would share one position or one row of
        cos_sin.
      ValueError: if positions are `None`, and the frequencies have several axes or x has a single token, no sequence
        axis or over 2³¹ tokens.
      ValueError: if positions, frequencies or inverse are given with cos_sin, or its columns do not fit the layout.
      ValueError: if layout or part is unknown, the width is odd, or inverse is True and $1/a$ is beyond float32.

    Notes:
      - The score of a query at $p$ and a key at $q$ depends only on $p - q$.
      - Angles are correct at every int32 position, with the same bits in a decode step. Products and sums are float32
        (float64 for float64 x) and rounded once. Sines and cosines are float32.
      - Differentiable in all float arrays to any order, in forward and reverse mode. The derivative with respect to x
        alone stores only positions and frequencies.
      - `checkify` does not check the code inside. In Pallas kernels, call `posenc_jax.kernels` instead.

    See Also:
      `shift_keys`; `axial` for several coordinates; `yarn` for longer contexts.

    Reference:
      Su et al., "RoFormer", 2021, section 3.2.2, equation 15; Heo et al., "Rotary Position Embedding for Vision
      Transformer", 2024, section 3.2 (frequencies per head).
    """
    inverse = checks.flag("inverse", inverse)
    if cos_sin is not None:
        for name, value in {"positions": positions, "frequencies": frequencies, "inverse": inverse or None}.items():
            require(value is None, "{} must not be given beside cos_sin, got {}", name, describe(value))
        x, table, heads = parse_rotary_by_cos_sin(x, cos_sin, layout, head_axis, part)
        return rotate_vectors(RotationSettings(layout, part == "last"), x, SinCosTable(table), heads)
    x, positions, frequencies, heads = parse_rotary(x, positions, frequencies, layout, head_axis, part, ndim=3)
    if inverse:
        frequencies = _with_inverse_amplitude(frequencies)
    return rotate_vectors(RotationSettings(layout, part == "last", inverse), x, Angles(positions, frequencies), heads)


@compiled("rotary", static_argnums=(0, 3))
def rotate_vectors(
    settings: RotationSettings, x: jax.Array, angles: Angles | SinCosTable, heads: tuple[int, ...]
) -> jax.Array:
    """`rotary` of parsed arguments; counts from 0 if positions are None."""
    if isinstance(angles, SinCosTable):
        return apply_rotation(settings, x, SinCosTable(expand_positions(x, angles.table, heads)))
    frequencies = _expand_frequencies(x, angles.frequencies, heads)
    return apply_rotation(settings, x, Angles(expand_positions(x, angles.positions, heads), frequencies))


def _expand_frequencies(x: jax.Array, frequencies: AnyFrequencies, heads: tuple[int, ...]) -> AnyFrequencies:
    """Expands an array (axes, pairs) or (heads, axes, pairs) to x's rank and (..., axes·pairs)."""
    if not isinstance(frequencies, jax.Array) or frequencies.ndim == 1:
        return frequencies
    head_axes = heads if frequencies.ndim == 3 else ()
    flat = frequencies.reshape(*(x.shape[axis] for axis in head_axes), -1)
    return jnp.expand_dims(flat, [axis for axis in range(x.ndim - 1) if axis not in head_axes])


@public
def shift_keys(
    keys: ArrayLike,
    offset: ArrayLike,
    frequencies: Frequencies | int | jax.Array,
    *,
    head_axis: int | tuple[int, ...] | None,
    layout: Layout = "half",
    part: RotatedPart = "first",
) -> jax.Array:
    r"""Moves rotated keys by an offset, as for a cache that drops its oldest tokens ("context shift", "K-shift").

    Rotations compose, so one more rotation moves a key from position $p$ to position $p + k$:

    $$R_{p + k}\,x = R_k R_p\,x$$

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> keys, f = jnp.ones((1, 5, 4, 64)), pe.yarn(64, 1e4, factor=4, original_max=4096)
      >>> cached = pe.rotary(keys, jnp.arange(1000, 1005), f, head_axis=-2)
      >>> moved = pe.shift_keys(cached, -1000, f, head_axis=-2)
      >>> bool(jnp.allclose(moved, pe.rotary(keys, None, f, head_axis=-2), atol=1e-6))
      True

    Args:
      keys: keys rotated by `rotary` or `pope`, float array of shape (..., seq, heads, head_dim).
      offset: $k$, integers or float32: a scalar, or an array that broadcasts to the shape of keys without the head axis
        and the last axis, such as (batch, 1). Frequencies with several axes need one more axis at the end.
      frequencies: the frequencies by which the keys were rotated; see `rotary`.
      head_axis: the axis of the heads; see `rotary`.
      layout: the layout in which the keys were rotated.
      part: the part of the features that was rotated.

    Returns:
      The keys at their new positions, with their shape and dtype. Differentiable, like `rotary`.

    Raises:
      TypeError: if keys are not a float array, or offset is not an integer or float32 array.
      ValueError: if offset does not broadcast, or for the same reasons as in `rotary`.

    Notes:
      - The `attention_factor` of the frequencies is not applied again, because the keys already include it.
      - Move keys once, from the positions at which they were written. Each move rounds to the dtype of the keys: in 16
        bits, after a thousand moves by one position, slow pairs are off by several standard deviations. If keys must
        move at every step, store them unrotated and rotate them when they are read.

    Reference:
      Su et al., "RoFormer", 2021, section 3.2.2, equation 16; Xiao et al., "Efficient Streaming Language Models with
      Attention Sinks", 2024, section 3.2, for positions within a cache.
    """
    require_type(offset is not None, "offset", checks.POSITIONS.text, offset)
    names: dict[str, Any] = {"name": "keys", "positions_name": "offset"}
    x, positions, frequencies, heads = parse_rotary(
        keys, offset, frequencies, layout, head_axis, part, ndim=3, shared=True, **names
    )
    if isinstance(frequencies, Frequencies):
        frequencies = frequencies.with_attention_factor(1.0)
    return rotate_vectors(RotationSettings(layout, part == "last"), x, Angles(positions, frequencies), heads)


def _with_inverse_amplitude(frequencies: AnyFrequencies) -> AnyFrequencies:
    if not isinstance(frequencies, Frequencies):
        return frequencies
    amplitude = frequencies.attention_factor
    if abs(amplitude) * float(np.finfo(np.float32).max) < 1:
        raise invalid(f"inverse needs frequencies with an attention_factor above 3e-39, got {amplitude}")
    return dataclasses.replace(frequencies, attention_factor=1 / amplitude)


def expand_positions(x: jax.Array, positions: jax.Array | None, heads: tuple[int, ...]) -> jax.Array:
    """Expands positions to x's rank, with axes for the heads; counts from 0 if positions are None."""
    if positions is None:
        return sharding.count_along(x, max(axis for axis in range(x.ndim - 1) if axis not in heads))
    return jnp.expand_dims(align(positions, x.ndim - len(heads)), heads)
