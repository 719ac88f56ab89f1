"""Attention with any position bias, in memory linear in the sequence length."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import NoneType
from typing import Any, Literal, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.typing import ArrayLike

from posenc_jax._attention import blockwise
from posenc_jax._attention.parser import (
    check_positions,
    parse_attributes,
    parse_bias,
    parse_data,
    parse_mask,
    parse_operands,
    parse_scale,
    parse_settings,
    parse_sinks,
    trace_bias,
)
from posenc_jax._attention.tiles import Operands, Settings
from posenc_jax._jax import checks, sharding
from posenc_jax._jax.calls import parsed_once
from posenc_jax._jax.errors import public
from posenc_jax._jax.primitives import varying


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
    mask: ArrayLike | None
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
@parsed_once(
    check=check_positions,
    bias=(NoneType,),
    query_data=(NoneType,),
    key_data=(NoneType,),
    causal=(bool,),
    window=(tuple, int, NoneType),
    logits_soft_cap=(float, int, NoneType),
    scale=(float, int, NoneType),
    block_size=(int,),
    implementation=(NoneType,),
    return_residual=(bool,),
)
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
    mask: ArrayLike | None = None,
    causal: bool = False,
    window: tuple[int | None, int | None] = (None, None),
    logits_soft_cap: float | None = None,
    sinks: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    block_size: int = 512,
    implementation: Literal["xla", "mosaic_gpu"] | None = None,
    return_residual: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    r"""Attention with any bias of positions and tokens, in memory linear in the sequence length.

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
      query: float array (..., queries, heads, head_dim).
      key: float array (..., keys, kv_heads, head_dim) of query's dtype. Each key head serves heads / kv_heads
        consecutive query heads.
      value: float array (..., keys, kv_heads, value_dim) of query's dtype.
      bias: $b$, a function of a tile's query and key positions, (..., queries) and (..., keys). It returns floats that
        broadcast to (batch, heads, queries, keys).
      query_data: an array or pytree of arrays (..., queries, heads or 1, …), for a bias that reads the tokens: bias(i,
        j, query_data, key_data) gets the data of a tile.
      key_data: an array or pytree of arrays (..., keys, kv_heads or 1, …).
      query_positions: integer array (..., queries), which broadcasts to query's leading axes. None means 0, 1, 2, …;
        queries and keys must then be equally many if a mask or bias reads positions.
      key_positions: integer array (..., keys). Give positions, orders and segments for both or for neither.
      query_order: integer array (..., queries), such as cache slots, which causal compares instead of positions.
      key_order: integer array (..., keys).
      query_segments: integer array (..., queries). A query sees the keys whose segment equals its own.
      key_segments: integer array (..., keys).
      mask: boolean array (..., heads, queries, keys), True where a query sees a key. Any axis may be 1.
      causal: whether to mask keys after the query, according to positions or orders.
      window: (left, right): a query at $p$ sees keys at positions $p - \text{left}$ to $p + \text{right}$. None means
        no bound.
      logits_soft_cap: $a$, from 1e-30 to 1e30, for scores $a \tanh(c\,q_i \cdot k_j / a) + b(i, j)$.
      sinks: float array (heads,), the score of one extra key per head, whose value is 0.
      scale: $c$, $1/\sqrt{\text{head\_dim}}$ by default. An array that broadcasts to (..., queries, heads) multiplies
        the query.
      block_size: the largest number of queries or keys per tile.
      implementation: None and "xla" are the same; "mosaic_gpu" selects experimental kernels on NVIDIA Hopper.
      return_residual: whether to return $\ell_i = \ln \sum_j e^{s_{ij}}$ too.

    Returns:
      An array (..., queries, heads, value_dim) of query's dtype, 0 where a query sees no key. With return_residual, a
      pair with $\ell$, an array (..., queries, heads), float32 (float64 for float64 operands), $-\infty$ where a query
      sees neither key nor sink.

    Raises:
      TypeError: if an argument, the dtype of key or value, or the result of bias has the wrong type.
      ValueError: if shapes or shardings do not fit, or an axis that is not leading is symbolic.
      ValueError: if one of a pair of arguments is missing, data are given without bias, or orders without causal.
      ValueError: if concrete key positions go back, as in packed rows, under a causal mask or a window with a right
        bound, and no segments, orders, data or mask per query keep documents apart.
      ValueError: if a number is out of bounds, or the implementation is unknown or does not support this.

    Notes:
      - Tiles that masks hide are skipped. Other tiles compute their bias, and compute it again for derivatives. Outside
        `jax.jit`, each call with a bias recompiles.
      - Residuals are differentiable too, and so are arrays that bias closes over, in forward and reverse mode. Second
        derivatives take linear memory too. Use `jax.vjp`, not `jax.linear_transpose`.
      - Scores and sums are float32 (float64 for float64 operands). Weights are cast to value's dtype. Masked keys and
        values must be finite.
      - Explicit mesh axes may shard the first leading axis and heads. In `jax.shard_map`, sequences may be sharded too.

    Reference:
      Rabe and Staats, "Self-attention Does Not Need O(n²) Memory", 2021, section 2; Dao et al., "FlashAttention", 2022,
      appendix B (derivative); Gemma Team, "Gemma 2", 2024, section 2 (cap); Xiao et al., "Efficient Streaming Language
      Models with Attention Sinks", 2024, section 3.3.
    """
    query, key, value = parse_operands(query, key, value)
    query, scale = parse_scale(query, scale)
    if implementation is not None:
        checks.one_of("implementation", implementation, ("xla", "mosaic_gpu"))
    sinks, return_residual = parse_sinks(sinks, query), checks.flag("return_residual", return_residual)
    settings = parse_settings(causal, window, logits_soft_cap, scale, block_size)
    has_data, mask = parse_bias(bias, query_data, key_data), parse_mask(mask, query, key)
    settings, query_tokens, key_tokens = parse_attributes(
        settings,
        query,
        key,
        positions=(query_positions, key_positions),
        order=(query_order, key_order),
        segments=(query_segments, key_segments),
        mask=mask,
        has_bias=bias is not None,
        has_data=has_data,
    )
    q, k, v = (x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:]) for x in (query, key, value))
    data = parse_data(query_data, key_data, query, key)

    x = Operands(q, k, v, sinks, query_tokens, key_tokens, mask, data.query, data.key, ())
    attend = blockwise.attend
    if implementation == "mosaic_gpu":
        from posenc_jax._attention.hopper import attend as hopper  # noqa: PLC0415 - for few, and a tenth of the import

        settings, x = hopper.prepare(settings, x, bias, counted=query_positions is None, reads_data=has_data)
        attend = hopper.attend
    x = sharding.vary_like(x, x)
    if bias is not None:
        settings, x = _with_bias(settings, x, bias, data.structures)
    leaves, tree = jax.tree.flatten(x)
    out, total, maximum = attend(settings._replace(tree=tree), *leaves)
    out = out.reshape(*query.shape[:-1], value.shape[-1])
    return (out, (maximum + jnp.log(total)).reshape(query.shape[:-1])) if return_residual else out


def _with_bias(
    settings: Settings, x: Operands, bias: Callable[..., Any], structures: tuple[Any, ...]
) -> tuple[Settings, Operands]:
    """The settings with the jaxpr of the bias, and the operands with the arrays that it closes over."""
    jaxpr, arrays = trace_bias(settings, bias, x, structures)
    # The scores vary like the bias that is added to them. The positions stay as they are in the jaxpr.
    scored = x.query, x.key, x.value, x.sinks, x.kernel
    query, key, value, sinks, kernel = sharding.vary_like(scored, (x.query, arrays))
    # Only tracers can have a derivative. For parameters that do not vary along all axes, a tile sums cotangents over
    # devices, so no device may skip it.
    parameters = [a for a in (*arrays, *x.query_data, *x.key_data) if isinstance(a, Tracer)]
    floats = [a for a in parameters if jnp.issubdtype(a.dtype, jnp.floating)]
    skips = settings.skips and all(varying(a) == varying(query) for a in floats)
    settings = settings._replace(skips=skips, bias=jaxpr)
    return settings, x._replace(query=query, key=key, value=value, sinks=sinks, kernel=kernel, arrays=arrays)
