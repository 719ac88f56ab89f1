"""Converts the weights of query and key projections from one layout of feature pairs to the other."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from posenc_jax._frequencies.frequencies import Frequencies
from posenc_jax._frequencies.parser import parse_static
from posenc_jax._jax import checks
from posenc_jax._jax.arrays import unwrap_array
from posenc_jax._jax.checks import Layout, RotatedPart
from posenc_jax._jax.errors import invalid, public, require, require_type, wrong_type


@public
def convert_layout(
    weights: ArrayLike,
    frequencies: Frequencies | int,
    *,
    source: Layout,
    target: Layout,
    axis: int,
    num_heads: int,
    part: RotatedPart = "first",
) -> jax.Array:
    """Permutes the outputs of a query or key projection from one layout of feature pairs to the other.

    In a head of $n$ pairs, feature $2i$ of the interleaved layout is feature $i$ of the half layout, and feature
    $2i + 1$ is feature $i + n$.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> layouts = {"source": "interleaved", "target": "half"}
      >>> print(pe.convert_layout(jnp.arange(8), 4, **layouts, axis=0, num_heads=2))
      [0 2 1 3 4 6 5 7]

    Args:
      weights: a kernel, a bias, or one matrix of a low-rank adapter. Along `axis` it holds num_heads · head_dim
        outputs, head by head.
      frequencies: the `Frequencies` of the rotation, or their width, even and at most head_dim. Features beyond the
        width stay where they are.
      source: the layout of the weights, "half" or "interleaved".
      target: the layout of the result, "half" or "interleaved".
      axis: the axis of the outputs.
      num_heads: the number of heads along that axis; for keys, the number of key heads. For a Flax kernel of shape
        (inputs, heads, head_dim), pass num_heads=1 and axis=-1.
      part: which features of a head are rotated, "first" or "last"; see `rotary`.

    Returns:
      The permuted weights, with their shape and dtype. NumPy's float64 is rounded to float32 if x64 is off.

    Raises:
      TypeError: if weights are not an array, or axis or num_heads is not an integer.
      ValueError: if axis is not an axis of weights, if num_heads does not divide its size, if the width is odd or above
        head_dim, or if a setting is unknown.

    Notes:
      A model whose weights are in one layout gives wrong results with the other, without an error. Attention scores do
      not change if the query projection, the key projection and the rotation all change layout.

    Reference:
      Su et al., "RoFormer", 2021, equation 34, uses interleaved pairs; GPT-NeoX and Hugging Face's Llama use halves.
    """
    array, axis, head_dim, dim = _projection(weights, frequencies, axis, num_heads)
    checks.layout("source", source)
    checks.layout("target", target)
    checks.part("part", part)
    # order[i] is the old index of feature i.
    shape = (-1, 2) if source == "interleaved" else (2, -1)
    order = np.arange(head_dim)
    rotated = slice(0, dim) if part == "first" else slice(head_dim - dim, head_dim)
    if source != target:
        order[rotated] = order[rotated].reshape(shape).T.reshape(-1)
    outputs = np.arange(array.shape[axis]).reshape(num_heads, head_dim)[:, order].reshape(-1)
    return jnp.take(array, outputs, axis=axis)


def _projection(weights: Any, frequencies: Any, axis: Any, num_heads: Any) -> tuple[jax.Array, int, int, int]:
    """Checks the arguments; returns weights as a jax.Array, the nonnegative axis, head_dim and the rotated width."""
    array: Any = None
    weights = unwrap_array(weights)
    with contextlib.suppress(TypeError):  # strings, dates and times, another byte order
        array = jnp.asarray(weights) if checks.is_array(weights) else None
    require_type(array is not None, "weights", "an array that JAX can hold", weights)
    axis = checks.integer("axis", axis)
    require(-array.ndim <= axis < array.ndim, "axis must be one of weights, shape {}, got {}", array.shape, axis)
    dtype = getattr(weights, "dtype", None)
    rounded = isinstance(weights, np.ndarray) and dtype == np.float64
    if array.dtype != dtype and not rounded:
        raise wrong_type(f"weights are {dtype}, which this configuration cannot hold; pass 32 bits")
    num_heads = checks.positive_int("num_heads", num_heads)
    checks.require_static_size("weights", array.shape, axis)
    size, axis = array.shape[axis], axis % array.ndim
    if size % num_heads:
        raise invalid(f"num_heads must divide axis {axis} of weights, shape {array.shape}, got {num_heads}")
    checks.unsharded("weights", array, axis)
    head_dim, dim = size // num_heads, parse_static(frequencies).dim
    if dim % 2 or dim > head_dim:
        raise invalid(f"frequencies must have an even width of at most {head_dim}, the head_dim, got {dim}")
    return array, axis, head_dim, dim
