"""Attention with any position bias, in memory linear in the sequence length."""

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

from posenc_jax._attention.blockwise import attend
from posenc_jax._attention.hopper import attend as hopper
from posenc_jax._attention.parser import (
    by_batch,
    check_sharded_like,
    parse_data,
    parse_operands,
    parse_positions_of_sides,
    parse_scale,
    parse_settings,
    parse_sides,
    parse_sinks,
    refuse_recurring,
)
from posenc_jax._attention.tiles import Operands, Settings, Side, by_query_heads, grid
from posenc_jax._jax import checks, errors, sharding
from posenc_jax._jax.errors import public
from posenc_jax._jax.primitives import retyped, varying


class _Options(TypedDict, total=False):
    bias: Callable[..., jax.Array] | None
    query_data: Any
    key_data: Any
    query_positions: ArrayLike | None
    key_positions: ArrayLike | None
    query_order: ArrayLike | None
    key_order: ArrayLike | None
    query_segments: ArrayLike | None
    key_segments: ArrayLike | None
    causal: bool
    window: tuple[int | None, int | None]
    logits_soft_cap: float | None
    sinks: ArrayLike | None
    scale: ArrayLike | None
    block_size: int
    implementation: Literal["xla", "mosaic_gpu"] | None


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
    bias: Callable[..., jax.Array] | None = None,
    query_data: Any = None,
    key_data: Any = None,
    query_positions: ArrayLike | None = None,
    key_positions: ArrayLike | None = None,
    query_order: ArrayLike | None = None,
    key_order: ArrayLike | None = None,
    query_segments: ArrayLike | None = None,
    key_segments: ArrayLike | None = None,
    causal: bool = False,
    window: tuple[int | None, int | None] = (None, None),
    logits_soft_cap: float | None = None,
    sinks: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    block_size: int = 512,
    implementation: Literal["xla", "mosaic_gpu"] | None = None,
    return_residual: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    r"""Attention in memory linear in the sequence length, with any bias of positions and tokens.

    $$o_i = \sum_j \frac{e^{s_{ij}}}{\sum_k e^{s_{ik}}} v_j, \qquad s_{ij} = c\,q_i \cdot k_j + b(i, j),$$

    summed over the keys that query $i$ sees.

    Examples:
      >>> import jax
      >>> import posenc_jax as pe
      >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 1000, 8, 16))
      >>> @jax.jit
      ... def attend(q, k, v):
      ...     bias = lambda i, j: pe.alibi(i, j, 8)
      ...     return pe.attention(q, k, v, bias=bias, causal=True)
      >>> attend(q, k, v).shape
      (2, 1000, 8, 16)

    Args:
      query: floats of shape (..., queries, heads, head_dim).
      key: floats of shape (..., keys, kv_heads, head_dim) and query's dtype. Each key head serves heads / kv_heads
        consecutive query heads.
      value: likewise, (..., keys, kv_heads, value_dim).
      bias: $b$, a function from the positions of a tile, (..., queries) and (..., keys), to floats that broadcast to
        (batch, heads, queries, keys).
      query_data: an array or a pytree of arrays, (..., queries, heads or 1, …), for a bias that sees the tokens. It is
        then called as bias(i, j, query_data, key_data), with the data of a tile.
      key_data: likewise, (..., keys, kv_heads or 1, …).
      query_positions: integers of shape (..., queries), broadcast to query's leading axes. None counts from 0, which
        requires as many keys as queries if a mask or bias reads positions.
      key_positions: likewise, (..., keys). Give both or neither, as with orders and segments.
      query_order: integers shaped like query_positions, such as cache slots. If given, causal masks by them and
        not by positions.
      key_order: likewise for the keys.
      query_segments: integers shaped like query_positions. A query sees only keys with the same number.
      key_segments: likewise for the keys.
      causal: whether to mask keys at positions after the query's, or of a later order.
      window: (left, right): a query at $p$ sees keys at positions $p - \text{left}$ to $p + \text{right}$; None for no
        bound.
      logits_soft_cap: $a$, from 1e-30 to 1e30, for the scores $a \tanh(c\,q_i \cdot k_j / a) + b(i, j)$.
      sinks: floats of shape (heads,), the score of one more key per head, of value 0.
      scale: $c$; None for $1/\sqrt{\text{head\_dim}}$. An array that broadcasts to (..., queries, heads) multiplies the
        query.
      block_size: the most queries and keys in a tile.
      implementation: "xla" or None; "mosaic_gpu" for experimental kernels for NVIDIA Hopper GPUs.
      return_residual: whether to return $\ell_i = \ln \sum_j e^{s_{ij}}$ too.

    Returns:
      An array of shape (..., queries, heads, value_dim) and query's dtype, 0 where a query sees no key. With
      return_residual, a pair with $\ell$, float32 (float64 for float64 operands) of shape (..., queries, heads),
      $-\infty$ where a query sees neither key nor sink.

    Raises:
      TypeError: if an argument, the dtype of key or value, or what bias returns is of the wrong type.
      ValueError: if shapes or shardings do not fit, or a size other than a leading axis is symbolic.
      ValueError: if one of two arguments that belong together is missing, or data have no bias, or orders no causal.
      ValueError: if concrete key positions return, as in packed rows, and a mask of later ones has no segments, orders
        or data to tell them apart.
      ValueError: if a number is out of bounds, or the implementation is unknown or cannot compute this.

    Notes:
      - Tiles that masks hide are skipped; the others compute their part of the bias, again in derivatives. Outside
        `jax.jit`, calls with a bias recompile.
      - Forward and reverse mode reach residuals and what bias closes over; second derivatives take linear memory too.
        Instead of `jax.linear_transpose`, use `jax.vjp`.
      - Scores and sums are float32 (float64 for float64 operands); weights are cast to value's dtype. Masked keys and
        values must be finite.
      - Explicit axes of a mesh may shard the first leading axis and heads; under `jax.shard_map`, sequences too.

    See Also:
      The pages "Attention in tiles" (masks, kernels), "Attention of today's models" (windows, orders), "Biases that see
      the tokens" (data), "Many devices" (sharding, keys in parts).

    Reference:
      Rabe and Staats, "Self-attention Does Not Need O(n²) Memory", 2021, section 2; Dao et al., "FlashAttention", 2022,
      appendix B (derivative); Gemma Team, "Gemma 2", 2024, section 2 (cap); Xiao et al., "Efficient Streaming Language
      Models with Attention Sinks", 2024, section 3.3.
    """
    query, key, value = parse_operands(query, key, value)
    query, scale = parse_scale(query, scale)
    if implementation is not None:
        checks.one_of("implementation", implementation, ("xla", "mosaic_gpu"))
    sinks, returned = parse_sinks(sinks, query), checks.flag("return_residual", return_residual)
    settings = parse_settings(causal, window, logits_soft_cap, scale, block_size)
    errors.require_type(bias is None or callable(bias), "bias", "a function of positions", bias)
    orders = parse_sides("order", query_order, key_order, query, key)
    if orders:
        errors.require(settings.causal, "causal must be True if query_order and key_order are given, got False")
        settings = settings._replace(causal=False)
    needed = settings.masked or bias is not None
    positions = parse_positions_of_sides(query_positions, key_positions, query, key, needed)
    segments = parse_sides("segments", query_segments, key_segments, query, key) or (None, None)
    told_apart = orders or query_segments is not None or query_data is not None or key_data is not None
    if key_positions is not None and not told_apart and (settings.causal or settings.window[1] is not None):
        refuse_recurring(*positions, settings.window[0], settings.causal)
    settings = settings._replace(skips=settings.masked or bool(orders) or query_segments is not None)

    batch = query.shape[:-3]
    sides = tuple(map(Side, *(by_batch(x, batch) for x in (positions, segments, orders or (None, None)))))
    q, k, v = (x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:]) for x in (query, key, value))
    data = parse_data("query_data", query_data, "query", query)
    data = data, parse_data("key_data", key_data, "key", key)
    given = query_data is not None or key_data is not None
    errors.require(bias is not None or not given, "bias must be given with query_data or key_data, got None")
    # Makes all operands vary along the same manual axes; the transpose sums their cotangents over these axes once.
    query_leaves, key_leaves = (tuple(jax.tree.leaves(of_side)) for of_side in data)
    x, run = Operands(q, k, v, sinks, sides, query_leaves, key_leaves, ()), attend
    if implementation == "mosaic_gpu":
        settings, x = hopper.prepare(settings, x, bias, counted=query_positions is None, reads_data=given)
        run = hopper.attend
    axes = frozenset().union(*map(varying, jax.tree.leaves(x)))
    x = jax.tree.map(functools.partial(sharding.vary, axes=axes), x)
    if bias is not None:
        structures = map(jax.tree.structure, data) if given else ()
        settings, x = _trace_bias(settings, bias, x, tuple(structures))
    leaves, tree = jax.tree.flatten(x)
    out, total, top = run(settings._replace(tree=tree), *leaves)
    out = out.reshape(*query.shape[:-1], value.shape[-1])
    return (out, (top + jnp.log(total)).reshape(query.shape[:-1])) if returned else out


def _trace_bias(
    settings: Settings, bias: Callable[..., Any], x: Operands, structures: tuple[Any, ...]
) -> tuple[Settings, Operands]:
    """Traces the bias to a jaxpr. Returns the settings with it, and the operands with the arrays it closes over.

    `structures` are those of the data of queries and of keys, or () if the bias takes positions alone.
    """
    positions = [jax.typeof(side.positions) for side in x.sides]
    sizes = [grid(settings.block_size, p.shape[-1])[1] for p in positions]
    tiles = [retyped(p, (*p.shape[:-1], n)) for p, n in zip(positions, sizes, strict=True)]
    group = x.query.shape[2] // x.key.shape[2]
    leaves = x.query_data, [jax.eval_shape(functools.partial(by_query_heads, group=group), a) for a in x.key_data]
    data = [
        structure.unflatten([retyped(a, (a.shape[0], size, *a.shape[2:])) for a in map(jax.typeof, of_side)])
        for structure, of_side, size in zip(structures, leaves, sizes, strict=False)
    ]
    with errors.callback():
        traced = jax.make_jaxpr(bias)(*tiles, *data)
    outputs: Any = traced.out_avals
    arrays = tuple(traced.consts)
    checks.one_float_array("bias", outputs)
    target = x.query.shape[0], x.query.shape[2], *sizes
    checks.broadcastable("bias", outputs[0].shape, "a tile (batch, heads, queries, keys)", target)
    batch, _, heads, _ = jax.typeof(x.query).sharding.spec
    want = PartitionSpec(batch, heads, None, None)
    check_sharded_like("a tile of bias", outputs[0].sharding.spec, "query", want)
    # What is added to scores makes them vary. The positions stay as they are in the jaxpr.
    axes = frozenset().union(*map(varying, (x.query, *arrays)))
    varied = jax.tree.map(functools.partial(sharding.vary, axes=axes), x._replace(sides=None))
    # Only tracers can have a derivative. For parameters that do not vary along all axes, a tile sums cotangents over
    # devices, so no device may skip it.
    read = *arrays, *x.query_data, *x.key_data
    learned = [a for a in read if isinstance(a, Tracer) and jnp.issubdtype(a.dtype, jnp.floating)]
    skips = settings.skips and all(varying(a) == axes for a in learned)
    kept = {"sides": x.sides, "query_data": x.query_data, "key_data": x.key_data, "arrays": arrays}
    return settings._replace(skips=skips, bias=traced.jaxpr), varied._replace(**kept)
