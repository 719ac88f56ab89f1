r"""Rotary position embeddings (RoPE): rotate each feature pair of a query or key according to its position."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from posenc_jax._frequencies.angles import Angles, SinCosTable
from posenc_jax._frequencies.frequencies import AnyFrequencies, Frequencies
from posenc_jax._jax import checks, errors, sharding
from posenc_jax._jax.arrays import align
from posenc_jax._jax.checks import Layout, RotatedPart
from posenc_jax._jax.errors import invalid, public, require
from posenc_jax._jax.workarounds import compiled
from posenc_jax._rotary.cos_sin import CosSin
from posenc_jax._rotary.parser import parse_rotary, parse_rotary_by_cos_sin
from posenc_jax._rotary.primitive import apply_rotation
from posenc_jax._rotary.rotation import RotationSettings


@public
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
    r"""Rotary position embedding (RoPE): rotates queries or keys by their positions, in one read and one write of x.

    Feature pair $i$ at position $p$ rotates by the angle $\omega_i p$:

    $$\begin{bmatrix} y_1 \\ y_2 \end{bmatrix} = a
      \begin{bmatrix} \cos\omega_i p & -\sin\omega_i p \\ \sin\omega_i p & \cos\omega_i p \end{bmatrix}
      \begin{bmatrix} x_1 \\ x_2 \end{bmatrix}$$

    where $a$ is the `attention_factor` of the frequencies. The score of a query at $p$ and a key at $q$ depends only on
    $p - q$. Angles are correct at every int32 position, and a position gives the same bits in a full sequence and in a
    decode step. To move keys that are already rotated, use `shift_keys`.

    The frequencies also define positions of several coordinates (`axial`), M-RoPE sections (`multi_section`), context
    extension (`yarn` and others) and partial rotation (a width below head_dim).

    Args:
      x: queries or keys, floats of shape (..., seq, heads, head_dim), as `jax.nn.dot_product_attention` takes them.
        NumPy's float64 is rounded to float32 where x64 is off, as `jnp` does.
      positions: integers or float32 of a shape that broadcasts to the shape of x without its head axis and its last
        axis: (seq,) or (batch, seq); (tokens,) for x of shape (tokens, heads, head_dim). A scalar, (1,) and (batch, 1)
        are for one token; tokens that share a position take it from `jnp.broadcast_to`. Frequencies of several axes
        need one more axis at the end, of size 1 if all coordinates are equal, as in text: `positions[..., None]`.
        `None` means 0, 1, 2, … along the sequence axis, which must not hold a single token: a decode step has its own
        position. NumPy's float64: as for `sinusoidal`.
      frequencies: `Frequencies`, an int (a width: `geometric(width)`) or a float array of angular frequencies of shape
        (num_pairs,), (axes, num_pairs) or (heads, axes, num_pairs). With several axes, an array rotates each pair by
        the sum $\sum_c \omega_{c,i}\,p_c$ over the coordinates of a position; by heads, each head has its own
        (RoPE-Mixed). The width must be even and at most head_dim; the other features pass through. A width of 0
        rotates nothing, as in layers without positions (NoPE). `None` means `geometric(head_dim)`.
      layout: which of the rotated features form a pair. "half": features i and i + num_pairs (Llama and most models, as
        stored by Hugging Face). "interleaved": features 2i and 2i + 1 (GPT-J, Cohere, Meta's own Llama weights).
      head_axis: the axis of the heads: -2 for (..., seq, heads, head_dim), -3 for (..., heads, seq, head_dim), `None`
        for (..., seq, head_dim); (-3, -2) for two, as in (..., seq, kv_heads, group, head_dim). It has no default,
        because shapes cannot tell which axis is the sequence.
      part: which features rotate if the width is below head_dim: the "first" or the "last".
      inverse: applies the inverse, $y \mapsto x$, which rotates by $-\omega_i p$ and divides by $a$.
      cos_sin: what `cos_sin` returns, which is computed once for all layers, in place of positions and frequencies; or
        a `CosSin` of arrays from elsewhere. Their leading axes broadcast as those of positions do. If they differ by
        head, head_axis is None. The result has the same bits. The arrays already include the amplitude.

    Returns:
      The rotated x, with its shape and dtype. It is computed in float32 and rounded once; for float64 x, products and
      sums are float64, but sines and cosines remain float32. Where a position lies outside int32 but could not be
      rejected at trace time, the result is NaN, and so is the gradient for the frequencies, even if such rows are
      masked. Differentiable in x, in float positions, in an array of frequencies and in cos_sin, in forward and reverse
      mode and in any order of both. The derivative in x alone stores only the positions, and the frequencies if they
      are an array. JAX sees one operation: `checkify` does not look inside it, and Pallas kernels for a TPU or GPU
      cannot call it; they call `posenc_jax.kernels`.

    Raises:
      TypeError: if x is not a float array, positions are not integers or float32, or head_axis has another type.
      ValueError: if head_axis is not an axis of x before its last, or head_dim is symbolic.
      ValueError: if the width is odd or above head_dim, or layout or part is unknown.
      ValueError: if positions do not broadcast, or are `None` where they cannot be counted (several axes, no sequence
        axis, more than 2³¹ of them).
      ValueError: if frequencies by heads do not have one entry for each.
      ValueError: if one position, or one row of cos_sin, serves several tokens, or a single token has no position.
      ValueError: if positions, frequencies or inverse are given beside cos_sin, or its columns do not fit the layout.
      ValueError: if inverse is True and float32 cannot hold the inverse of the attention_factor.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> query = jnp.ones((2, 5, 4, 64), jnp.bfloat16)  # batch, seq, heads, head_dim
      >>> f = pe.geometric(64, 500_000.0)
      >>> pe.rotary(query, None, f, head_axis=-2).shape
      (2, 5, 4, 64)
      >>> step = pe.rotary(query[:, 3:4], jnp.full((2, 1), 3), f, head_axis=-2)  # a decode step
      >>> bool(jnp.all(step == pe.rotary(query, None, f, head_axis=-2)[:, 3:4]))
      True

    Reference:
      Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, section 3.2.2, equation 15;
      Heo et al., "Rotary Position Embedding for Vision Transformer", 2024, section 3.2, for frequencies by heads.
    """
    inverse = checks.flag("inverse", inverse)
    if cos_sin is not None:
        for name, value in {"positions": positions, "frequencies": frequencies, "inverse": inverse or None}.items():
            require(value is None, "{} must not be given beside cos_sin, got {}", name, errors.describe(value))
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
    r"""Moves rotated keys by an offset, as a cache does that drops its oldest tokens ("context shift", "K-shift").

    Rotations compose, so a key at $p$ moves to $p + k$ by one more rotation, without its amplitude, which it has:

    $$R_{p + k}\,x = R_k R_p\,x$$

    Move keys once, from where they were written. Each move rounds to their dtype: in 16 bits a thousand moves by one
    position leave the slow pairs behind, off by several standard deviations. If keys must move at every step, store
    them unrotated and rotate them when they are read.

    Args:
      keys: keys that `rotary` or `pope` has rotated, floats of shape (..., seq, heads, head_dim).
      offset: $k$, integers or float32: a scalar, or of a shape that broadcasts to the shape of keys without its head
        axis and its last axis, such as (batch, 1). Frequencies of several axes need one more axis at the end.
      frequencies: those of the rotation, as for `rotary`.
      head_axis: as for `rotary`.
      layout: that of the rotation.
      part: that of the rotation.

    Returns:
      The keys at their new positions, with their shape and dtype. Differentiable, as for `rotary`.

    Raises:
      TypeError: if keys are not a float array, or offset is not an integer or float32 array.
      ValueError: if offset does not broadcast, or as `rotary`.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> keys, f = jnp.ones((1, 5, 4, 64)), pe.yarn(64, 1e4, factor=4, original_max=4096)
      >>> cached = pe.rotary(keys, jnp.arange(1000, 1005), f, head_axis=-2)
      >>> moved = pe.shift_keys(cached, -1000, f, head_axis=-2)
      >>> bool(jnp.allclose(moved, pe.rotary(keys, None, f, head_axis=-2), atol=1e-6))
      True

    Reference:
      Su et al., "RoFormer", 2021, section 3.2.2, equation 16; Xiao et al., "Efficient Streaming Language Models with
      Attention Sinks", 2024, section 3.2, for positions within a cache.
    """
    errors.require_type(offset is not None, "offset", checks.POSITIONS.text, offset)
    names: dict[str, Any] = {"name": "keys", "positions_name": "offset"}
    x, positions, frequencies, heads = parse_rotary(
        keys, offset, frequencies, layout, head_axis, part, ndim=3, shared=True, **names
    )
    if isinstance(frequencies, Frequencies):
        frequencies = frequencies.with_attention_factor(1.0)
    return rotate_vectors(RotationSettings(layout, part == "last"), x, Angles(positions, frequencies), heads)


jax.tree_util.register_pytree_with_keys(
    CosSin,
    lambda c: ([(jax.tree_util.SequenceKey(i), x) for i, x in enumerate(c)], c.columns),
    lambda columns, arrays: CosSin(*arrays, columns=columns),  # type: ignore[arg-type]
)
jax.export.register_pytree_node_serialization(
    CosSin, serialized_name="posenc_jax.CosSin", serialize_auxdata=str.encode, deserialize_auxdata=bytes.decode
)


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
