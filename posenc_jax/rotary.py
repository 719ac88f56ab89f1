r"""Rotary position embeddings: each pair of features of a query or key turns with its position."""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from posenc_jax import _check
from posenc_jax._turn import Settings, turn
from posenc_jax.frequencies import Frequencies, Layout, counted, dim_of, positions_of, resolve, resolve_static

Part = Literal["first", "last"]


def rotary(
    x: ArrayLike,
    positions: ArrayLike | None = None,
    frequencies: Frequencies | int | jax.Array | None = None,
    *,
    layout: Layout = "half",
    head_axis: int | None = -2,
    part: Part = "first",
    inverse: bool = False,
) -> jax.Array:
    r"""Rotary position embedding: queries or keys turned by their positions, in one read and one write.

    Pair $i$ of the features at position $p$ is turned by $\omega_i p$,

    $$\begin{bmatrix} y_1 \\ y_2 \end{bmatrix} = a
      \begin{bmatrix} \cos\omega_i p & -\sin\omega_i p \\ \sin\omega_i p & \cos\omega_i p \end{bmatrix}
      \begin{bmatrix} x_1 \\ x_2 \end{bmatrix}$$

    with $a$ the frequencies' `attention_factor`. Rotations compose: turning by $p$ and then by $k$ is turning by
    $p + k$. So the score of a query at $p$ and a key at $q$ depends on $p - q$ alone, and keys that are cached move by
    an offset with `rotary(keys, offset, frequencies)` (with an `attention_factor` of 1, or it counts twice). The angles
    are right at every int32 position, and a position gives the same bits in a whole sequence and in a decode step.

    Several coordinates, sections, scaled spectra and features that are not turned are settings of the frequencies:
    `axial`, `multi_section`, `yarn` and the like, and a width below head_dim.

    Args:
      x: queries or keys, floats of shape (..., seq, heads, head_dim), as `jax.nn.dot_product_attention` takes them.
      positions: integers or floats of a shape that broadcasts to that of x without its head axis and its last:
        (seq,), (batch, seq), (batch, 1) or (); (tokens,) for x of shape (tokens, heads, head_dim). With a further last
        axis when the frequencies use several axes. `None` means 0, 1, 2, … along the sequence axis.
      frequencies: `Frequencies`, an int (a width: `geometric(width)`) or a float array of angular frequencies of shape
        (num_pairs,). Of an even width of at most head_dim; the other features pass through. `None` means
        `geometric(head_dim)`.
      layout: "half": the features (i, i + num_pairs) of those that are turned are a pair (Llama and most models as
        Hugging Face stores them). "interleaved": (2i, 2i + 1) are (GPT-J, Cohere, Meta's own Llama weights).
      head_axis: the axis of the heads, -2 for (..., seq, heads, head_dim), -3 for (..., heads, seq, head_dim), `None`
        for (..., seq, head_dim).
      part: which features are turned when the width is below head_dim, the "first" or the "last".
      inverse: undo it, $y \mapsto x$: turns by $-\omega_i p$ and divides by $a$.

    Returns:
      The rotated x, of its shape and dtype; computed in float32 and rounded once (products and sums in float64 if x
      is, of float32 waves). NaN where a
      position is outside int32 and this could not be known when tracing: then the derivative by frequencies is NaN too,
      even where such rows are masked. Differentiable in reverse mode, in x, in float positions and in frequencies that
      are an array; without the last two, nothing but the positions is kept for it.

    Raises:
      TypeError: if x is not an array of floats, positions are not integers or floats, or head_axis is not an integer.
      ValueError: if the width is odd or above head_dim, positions do not broadcast or are missing where they cannot be
        counted (several axes, no sequence axis, more than 2³¹ of them), head_dim is symbolic, or a setting is not one
        of the above.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> query = jnp.ones((2, 5, 4, 64), jnp.bfloat16)  # batch, seq, heads, head_dim
      >>> f = pe.geometric(64, 500_000.0)
      >>> pe.rotary(query, None, f).shape
      (2, 5, 4, 64)
      >>> step = pe.rotary(query[:, 3:4], jnp.full((2, 1), 3), f)  # a decode step
      >>> bool(jnp.all(step == pe.rotary(query, None, f)[:, 3:4]))
      True
      >>> cached = pe.rotary(jnp.ones((1, 5, 4, 64)), None, f)
      >>> moved = pe.rotary(cached, 1000, f)  # as if they had been at 1000, 1001, …
      >>> bool(jnp.allclose(moved, pe.rotary(jnp.ones((1, 5, 4, 64)), jnp.arange(1000, 1005), f), atol=1e-6))
      True

    Reference:
      Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, section 3.2.2, equation 15.
    """
    where = "rotary"
    x, positions, frequencies, axis = inputs(where, x, positions, frequencies, layout, head_axis, part)
    inverse = _check.flag(where, "inverse", inverse)
    if inverse and isinstance(frequencies, Frequencies):
        factor = frequencies.attention_factor
        if abs(factor) * float(np.finfo(np.float32).max) < 1:
            raise ValueError(f"{where}: inverse needs frequencies with an attention_factor above 3e-39, got {factor}")
        frequencies = dataclasses.replace(frequencies, attention_factor=1 / factor)
    return _rotary(x, positions, frequencies, layout=layout, head_axis=axis, part=part, inverse=inverse)


def inputs(where, x, positions, frequencies, layout, head_axis, part, name="x", positions_name="positions"):
    """The arguments, checked: x, positions with an axis of coordinates, frequencies, the head axis from the front."""
    _check.layout(where, layout)
    _check.one_of(where, "part", part, ("first", "last"))
    x = _check.floats(where, name, x, "(..., head_dim)" if head_axis is None else "(..., heads, head_dim)")
    if head_axis is not None:
        head_axis = _check.integer(where, "head_axis", head_axis, kinds="an integer or None")
        if not -x.ndim <= head_axis < x.ndim or head_axis % x.ndim == x.ndim - 1:
            message = f"head_axis must be an axis of {name} other than its last, shape {x.shape}, got {head_axis}"
            raise ValueError(f"{where}: {message}")
        head_axis %= x.ndim
    _check.known_size(where, name, x.shape, -1)
    if not x.shape[-1]:
        raise ValueError(f"{where}: {name} must have features to turn, got shape {x.shape}")
    frequencies = resolve(where, x.shape[-1] if frequencies is None else frequencies, even=True, whole=True)
    if dim_of(frequencies) > x.shape[-1]:
        width = dim_of(frequencies)
        raise ValueError(f"{where}: frequencies of width {width} must fit into head_dim, {name} has shape {x.shape}")
    if layout == "half" or dim_of(frequencies) < x.shape[-1]:
        _check.whole(where, name, x)
    rows = x.shape[:-1] if head_axis is None else x.shape[:head_axis] + x.shape[head_axis + 1 : -1]
    if positions is not None:
        positions = positions_of(where, positions_name, positions, frequencies)
        target = f"{name} without its head axis and its last"
        _check.broadcastable(where, positions_name, positions.shape[:-1], target, rows)
        _check.beside(where, positions_name, positions, name, x, head_axis)
    elif isinstance(frequencies, Frequencies) and frequencies.num_axes > 1:
        axes = frequencies.num_axes
        raise ValueError(f"{where}: {positions_name} must be given for frequencies of {axes} axes, got None")
    elif not rows:
        raise ValueError(f"{where}: {positions_name} must be given where {name} has no sequence axis, shape {x.shape}")
    else:
        _check.counted(where, name, rows[-1])
    return x, positions, frequencies, head_axis


def placed(x, positions, head_axis):
    """Positions of x's rank, (..., axes): counted where there are none, with the head axis put in."""
    if positions is None:
        return counted(x, x.ndim - (3 if head_axis == x.ndim - 2 else 2))
    if head_axis is None:
        return _check.align(positions, x.ndim)
    return jnp.expand_dims(_check.align(positions, x.ndim - 1), head_axis)


@functools.partial(jax.jit, static_argnames=("layout", "head_axis", "part", "inverse"), inline=True)
def _rotary(x, positions, frequencies, *, layout, head_axis, part, inverse):
    positions = placed(x, positions, head_axis)
    return turn(Settings(layout, part == "last", inverse), x, positions, frequencies)


def convert_layout(
    weights: ArrayLike,
    frequencies: Frequencies | int,
    *,
    source: Layout,
    target: Layout,
    axis: int,
    num_heads: int,
    part: Part = "first",
) -> jax.Array:
    r"""Weights or biases of a query or key projection, their outputs permuted from one layout to the other.

    A model whose weights are in one layout gives garbage, and no error, under the other. Within each head, feature
    $2i$ of the interleaved layout is feature $i$ of the half layout, and $2i + 1$ is $i + n$, for $n$ pairs. Scores do
    not change when the projections of queries and keys and the rotation all change their layout.

    Args:
      weights: of which `axis` holds the outputs, num_heads · head_dim of them, head by head: a kernel, a bias, one
        matrix of a low-rank adapter. For a kernel (inputs, heads, head_dim) as in Flax, num_heads is 1 and axis -1.
      frequencies: those of the rotation: `Frequencies` or a width, even, at most head_dim. Other features stay.
      source: the layout of the weights, "half" or "interleaved".
      target: the layout of the result.
      axis: of the outputs.
      num_heads: heads along that axis: for keys, the number of their own.
      part: as for `rotary`.

    Returns:
      The permuted weights, of their shape and dtype.

    Raises:
      TypeError: if weights are not an array, or axis or num_heads is not an integer.
      ValueError: if axis is not one of the weights, its size not a multiple of num_heads, the width odd or above
        head_dim, or a setting unknown.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> print(pe.convert_layout(jnp.arange(8), 4, source="interleaved", target="half", axis=0, num_heads=2))
      [0 2 1 3 4 6 5 7]

    Reference:
      Su et al., "RoFormer", 2021, equation 34, is interleaved; GPT-NeoX and Hugging Face's Llama are in halves.
    """
    where = "convert_layout"
    for name, value in (("source", source), ("target", target)):
        _check.one_of(where, name, value, ("interleaved", "half"))
    _check.one_of(where, "part", part, ("first", "last"))
    try:
        held = jnp.asarray(weights) if _check.is_array(weights) else None
    except TypeError:  # strings, times, another byte order
        held = None
    if held is None:
        raise TypeError(f"{where}: weights must be an array that JAX can hold, got {_check.describe(weights)}")
    axis = _check.integer(where, "axis", axis)
    if not -held.ndim <= axis < held.ndim:
        raise ValueError(f"{where}: axis must be one of weights, shape {held.shape}, got {axis}")
    if held.dtype != (dtype := getattr(weights, "dtype", None)):
        raise TypeError(f"{where}: weights are {dtype}, which this configuration cannot hold; pass 32 bits")
    num_heads = _check.positive_int(where, "num_heads", num_heads)
    _check.known_size(where, "weights", held.shape, axis)
    size, axis = held.shape[axis], axis % held.ndim
    if size % num_heads:
        raise ValueError(f"{where}: num_heads must divide axis {axis} of weights, shape {held.shape}, got {num_heads}")
    _check.whole(where, "weights", held, axis)
    head_dim, dim = size // num_heads, resolve_static(where, frequencies).dim
    if dim % 2 or dim > head_dim:
        raise ValueError(f"{where}: frequencies must have an even width of at most {head_dim}, the head_dim, got {dim}")
    # order[i] is the feature that comes to i.
    shape = (-1, 2) if source == "interleaved" else (2, -1)
    order = np.arange(head_dim)
    turned = slice(0, dim) if part == "first" else slice(head_dim - dim, head_dim)
    if source != target:
        order[turned] = order[turned].reshape(shape).T.reshape(-1)
    outputs = (np.arange(num_heads)[:, None] * head_dim + order).reshape(-1)
    return jnp.take(held, outputs, axis=axis)
