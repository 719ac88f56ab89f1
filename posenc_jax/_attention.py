"""Attention under any bias of positions, in memory that grows with the length and not with its square."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from posenc_jax import _arguments, _checks, _mesh
from posenc_jax._blockwise import BlockwiseSettings, Side, blockwise, grid
from posenc_jax._checks import InvalidType, public


class _Options(TypedDict, total=False):
    bias: Callable[[jax.Array, jax.Array], jax.Array] | None
    query_positions: ArrayLike | None
    key_positions: ArrayLike | None
    query_segments: ArrayLike | None
    key_segments: ArrayLike | None
    causal: bool
    scale: float | None
    block_size: int


@overload
def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    return_residual: Literal[False] = ...,
    **options: Unpack[_Options],
) -> jax.Array: ...
@overload
def attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, *, return_residual: Literal[True], **options: Unpack[_Options]
) -> tuple[jax.Array, jax.Array]: ...
@public
def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    bias: Callable[[jax.Array, jax.Array], jax.Array] | None = None,
    query_positions: ArrayLike | None = None,
    key_positions: ArrayLike | None = None,
    query_segments: ArrayLike | None = None,
    key_segments: ArrayLike | None = None,
    causal: bool = False,
    scale: float | None = None,
    block_size: int = 512,
    return_residual: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    r"""Attention in memory that grows with the length, not with its square.

    $$o_i = \sum_j \frac{e^{s_{ij}}}{\sum_k e^{s_{ik}}} v_j, \qquad s_{ij} = c\,q_i \cdot k_j + b(i, j),$$

    over the keys $j$ that query $i$ sees, with the results and derivatives of `jax.nn.dot_product_attention` under a
    dense bias, in tiles of at most block_size queries and as many keys. The bias is computed where it is used, in the
    derivative too. A tile in which nothing is seen costs nothing. A query that sees nothing gives zeros.

    Scores and sums are of float32 (float64 for float64); weights are multiplied in the dtype of value. It is
    differentiable in reverse mode, in the arrays that bias closes over too. What a query does not see must be finite
    all the same, as in any attention. Lengths must be known when tracing. A call with a bias is compiled anew each time
    unless it is inside `jax.jit`. On a mesh with Explicit axes sequences must not be sharded, nor leading axes after
    the first; `jax.vmap` takes those. Inside `jax.shard_map` sequences may be; give bias its replicated parameters as
    `jax.lax.pcast(parameters, axes, to="varying")` there: their cotangents are then summed over devices once, and not
    for every tile.

    Keys in parts $s$, such as those of several devices, are attended to one part at a time: of the results $o^s$ and
    residuals $\ell^s_i = \ln \sum_{j \in s} e^{s_{ij}}$ of all parts

    $$\ell_i = \ln \sum_s e^{\ell^s_i}, \qquad o_i = \sum_s e^{\ell^s_i - \ell_i} o^s_i.$$

    In float32 a residual is right to $2^{-24} |\ell^s_i|$: where a bias of far keys is all that a query has, parts are
    weighed no better than that.

    Args:
      query: floats of shape (..., queries, heads, head_dim).
      key: of shape (..., keys, kv_heads, head_dim) and query's dtype; each of its heads serves heads / kv_heads
        consecutive ones of query.
      value: like key.
      bias: $b$, a function of positions (..., queries) and (..., keys) of a tile to floats that broadcast to (batch,
        heads, queries, keys), such as `lambda i, j: alibi(i, j, 8)`. Positions have an axis of batches, or of one, only
        if query_positions or key_positions has.
      query_positions: integers of shape (..., queries), leading axes broadcast to those of query. If both are None,
        both count from 0; with as many keys as queries, unless neither the mask nor a bias asks for them.
      key_positions: integers of shape (..., keys), in the same way, given if query_positions is.
      query_segments: integers of shape (..., queries), in the same way: a query sees keys with its own number only.
      key_segments: integers of shape (..., keys), in the same way, given if query_segments is.
      causal: whether a query sees no key at a position after its own.
      scale: $c$; None for $1/\sqrt{\text{head\_dim}}$.
      block_size: how many queries, and how many keys, a tile has.
      return_residual: whether to return $\ell_i = \ln \sum_j e^{s_{ij}}$ too. Unlike that of
        `jax.nn.dot_product_attention` it has a derivative, and is not rounded to the dtype of key.

    Returns:
      Like query. With return_residual, that and the residuals, of shape (..., queries, heads), in float32 (float64 for
      float64): $-\infty$ where a query sees nothing.

    Raises:
      TypeError: if an operand is not of floats or not of query's dtype, positions or segments are not integers, bias is
        not a function or gives anything but floats, or another argument has the wrong type.
      ValueError: if shapes do not fit each other, the heads of query are no multiple of key's, positions or segments of
        one side only are given, positions are needed and cannot be counted, a tile of the bias has another shape,
        block_size is below 1, a length, heads or head_dim are symbolic, or on Explicit axes a sequence, head_dim or
        second leading axis is sharded, or a key's or the bias's batch or heads otherwise than query's.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 1000, 8, 16))
      >>> @jax.jit
      ... def attend(q, k, v):
      ...     return pe.attention(q, k, v, bias=lambda i, j: pe.alibi(i, j, 8), causal=True, block_size=128)
      >>> attend(q, k, v).shape
      (2, 1000, 8, 16)

      One step of decoding, with the keys of a cache of which 7 are written:

      >>> position = jnp.full((2, 1), 6)
      >>> y = pe.attention(q[:, 6:7], k, v, query_positions=position, key_positions=jnp.arange(1000), causal=True)
      >>> bool(jnp.allclose(y, pe.attention(q[:, :7], k[:, :7], v[:, :7], causal=True)[:, 6:], atol=1e-6))
      True

      Keys in two parts:

      >>> parts = [pe.attention(q, k[:, s], v[:, s], return_residual=True) for s in (slice(600), slice(600, None))]
      >>> (a, of_a), (b, of_b) = parts
      >>> share = jax.nn.sigmoid(of_a - of_b)[..., None]
      >>> bool(jnp.allclose(share * a + (1 - share) * b, pe.attention(q, k, v), atol=1e-6))
      True

    Reference:
      Rabe and Staats, "Self-attention Does Not Need O(n²) Memory", 2021, section 2; Dao et al., "FlashAttention", 2022,
      appendix B, for the derivative.
    """
    query, key, value = operands = _arguments.operands(query, key, value)
    causal, return_residual = _checks.flag("causal", causal), _checks.flag("return_residual", return_residual)
    scale = _checks.number("scale", 1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    block_size = _checks.positive_int("block_size", block_size)
    settings = BlockwiseSettings(causal, _checks.fits_float32("scale", scale), block_size, residual=return_residual)
    if bias is not None and not callable(bias):
        _checks.wrong_type("bias", "a function of positions", bias)

    needed = causal or bias is not None
    positions = _arguments.positions_of_sides(query_positions, key_positions, query, key, needed)
    segments = _arguments.sides("segments", query_segments, key_segments, query, key) or (None, None)
    settings = settings._replace(skips=causal or query_segments is not None)
    sides = tuple(map(Side, positions, segments))
    operands = tuple(x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:]) for x in operands)
    # All vary along the same manual axes of a mesh; the transpose of this sums the cotangents along them, once.
    axes = frozenset().union(*map(_mesh.varying, jax.tree.leaves((operands, sides))))
    operands, sides = jax.tree.map(functools.partial(_mesh.vary, axes=axes), (operands, sides))
    arrays = []
    if bias is not None:
        settings, arrays = _traced(settings, bias, operands[0], sides, axes)
    results = blockwise(settings, *operands, sides, arrays)
    if return_residual:
        return results[0].reshape(query.shape), results[1].reshape(query.shape[:-1])
    return results.reshape(query.shape)


def _traced(
    settings: BlockwiseSettings, bias: Callable[..., Any], query: jax.Array, sides: Any, axes: frozenset[Any]
) -> tuple[BlockwiseSettings, list[Any]]:
    """The settings with the bias as a jaxpr, and the arrays that it closes over, which may have derivatives."""
    positions = [jax.typeof(side.positions) for side in sides]
    tiles = [x.update(shape=(*x.shape[:-1], grid(settings, x.shape[-1])[1]), weak_type=False) for x in positions]
    with _checks.callback():
        traced = jax.make_jaxpr(bias)(*tiles)
    found, arrays = traced.out_avals, traced.consts
    if len(found) != 1 or not jnp.issubdtype(found[0].dtype, jnp.floating):
        raise InvalidType(f"bias must give one float array, got {', '.join(map(str, found)) or 'none'}")
    target = query.shape[0], query.shape[2], *(x.shape[-1] for x in tiles)
    _checks.broadcastable("bias", found[0].shape, "a tile (batch, heads, queries, keys)", target)
    batch, _, heads, _ = jax.typeof(query).sharding.spec
    want = PartitionSpec(batch, heads, None, None)
    _arguments.sharded_like("a tile of bias", found[0].sharding.spec, "query", want)
    # Only traced arrays can have a derivative.
    learned = [i for i, x in enumerate(arrays) if isinstance(x, Tracer) and jnp.issubdtype(x.dtype, jnp.floating)]
    # Every tile sums the cotangent of a parameter that does not vary along an axis, over all devices: none may skip.
    skips = settings.skips and all(_mesh.varying(arrays[i]) == axes for i in learned)
    return settings._replace(skips=skips, bias=traced.jaxpr, learned=tuple(learned)), arrays
