r"""Rotary position embeddings: each pair of features of a query or key turns with its position."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from posenc_jax import _arguments, _checks, _mesh
from posenc_jax._arrays import align
from posenc_jax._checks import InvalidType, public, require
from posenc_jax._frequencies import Frequencies, Layout, parse_static
from posenc_jax._turn import TurnSettings, turn

Part = Literal["first", "last"]


@public
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
    x, positions, frequencies, axis = _arguments.rotated(
        x, positions, frequencies, layout=layout, head_axis=head_axis, part=part
    )
    if _checks.flag("inverse", inverse) and isinstance(frequencies, Frequencies):
        factor = frequencies.attention_factor
        representable = abs(factor) * float(np.finfo(np.float32).max) >= 1
        require(representable, "inverse needs frequencies with an attention_factor above 3e-39, got {}", factor)
        frequencies = dataclasses.replace(frequencies, attention_factor=1 / factor)
    settings = TurnSettings(layout, part == "last", bool(inverse))
    return _rotary(settings, x, positions, frequencies, axis)


@functools.partial(jax.jit, static_argnums=(0, 4), inline=True)
def _rotary(
    settings: TurnSettings,
    x: jax.Array,
    positions: jax.Array | None,
    frequencies: Frequencies | jax.Array,
    head_axis: int | None,
) -> jax.Array:
    return turn(settings, x, placed(x, positions, head_axis), frequencies)


def placed(x: jax.Array, positions: jax.Array | None, head_axis: int | None) -> jax.Array:
    """Positions (..., axes) of x's rank: counted if there are none, with an axis for the heads."""
    if positions is None:
        return _mesh.count_along(x, x.ndim - (3 if head_axis == x.ndim - 2 else 2))
    if head_axis is None:
        return align(positions, x.ndim)
    return jnp.expand_dims(align(positions, x.ndim - 1), head_axis)


@public
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
    held, axis, head_dim, dim = _projection(weights, frequencies, axis, num_heads)
    for name, value in (("source", source), ("target", target)):
        _checks.layout(value, name)
    _checks.part(part)
    # order[i] is the feature that comes to i.
    shape = (-1, 2) if source == "interleaved" else (2, -1)
    order = np.arange(head_dim)
    turned = slice(0, dim) if part == "first" else slice(head_dim - dim, head_dim)
    if source != target:
        order[turned] = order[turned].reshape(shape).T.reshape(-1)
    outputs = (np.arange(num_heads)[:, None] * head_dim + order).reshape(-1)
    return jnp.take(held, outputs, axis=axis)


def _projection(weights: Any, frequencies: Any, axis: Any, num_heads: Any) -> tuple[jax.Array, int, int, int]:
    """The weights as JAX holds them, the axis of their outputs, the head_dim, and how many features of it turn."""
    try:
        held = jnp.asarray(weights) if _checks.is_array(weights) else None
    except TypeError:  # strings, times, another byte order
        held = None
    if held is None:
        _checks.wrong_type("weights", "an array that JAX can hold", weights)
    axis = _checks.integer("axis", axis)
    require(-held.ndim <= axis < held.ndim, "axis must be one of weights, shape {}, got {}", held.shape, axis)
    if held.dtype != (dtype := getattr(weights, "dtype", None)):
        raise InvalidType(f"weights are {dtype}, which this configuration cannot hold; pass 32 bits")
    num_heads = _checks.positive_int("num_heads", num_heads)
    _checks.known_size("weights", held.shape, axis)
    size, axis = held.shape[axis], axis % held.ndim
    message = "num_heads must divide axis {} of weights, shape {}, got {}"
    require(size % num_heads == 0, message, axis, held.shape, num_heads)
    _checks.unsharded("weights", held, axis)
    head_dim, dim = size // num_heads, parse_static(frequencies).dim
    message = "frequencies must have an even width of at most {}, the head_dim, got {}"
    require(dim % 2 == 0 and dim <= head_dim, message, head_dim, dim)
    return held, axis, head_dim, dim
