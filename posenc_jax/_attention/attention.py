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

    where the sums run over the keys that query $i$ sees. Results and derivatives are those of
    `jax.nn.dot_product_attention` with a dense bias, computed in tiles of at most block_size queries and block_size
    keys. Each tile computes its part of the bias, and computes it again in the derivative. Tiles in which no query can
    see a key, by the least and greatest of their positions, orders and segments, are skipped, in the derivative too;
    under `jax.vmap` over these, all tiles are computed. A query that sees no key yields zeros.

    Scores and sums are float32 (float64 for float64 operands). Attention weights are cast to the dtype of value before
    they multiply it. The function is differentiable in forward and reverse mode, including in the arrays that bias
    closes over; first and second derivatives take memory linear in the length. It has no `jax.linear_transpose`: use
    `jax.vjp`. Masked keys and values must still be finite, as in any attention. Sequence lengths must be known at trace
    time. Outside `jax.jit`, every call with a bias recompiles.

    On a mesh with Explicit axes, neither the sequences nor leading axes after the first may be sharded; use `jax.vmap`
    for such leading axes. Inside `jax.shard_map`, sequences may be sharded. There, pass bias its replicated parameters
    as `jax.lax.pcast(parameters, axes, to="varying")`: their cotangents are then summed over devices once instead of
    once per tile.

    If the keys come in parts $s$, for example one on each device, attend to one part at a time. The results $o^s$ and
    residuals $\ell^s_i = \ln \sum_{j \in s} e^{s_{ij}}$ of all parts combine into

    $$\ell_i = \ln \sum_s e^{\ell^s_i}, \qquad o_i = \sum_s e^{\ell^s_i - \ell_i} o^s_i.$$

    A float32 residual is accurate to $2^{-24} |\ell^s_i|$. If a query sees only distant keys under a large bias, the
    weights of the parts are no more accurate than that. Give sinks to one part only.

    Args:
      query: floats of shape (..., queries, heads, head_dim). head_dim is at least 1, because scores are
        divided by its root.
      key: floats of shape (..., keys, kv_heads, head_dim) and query's dtype. Each key head serves heads / kv_heads
        consecutive query heads.
      value: floats of shape (..., keys, kv_heads, value_dim) and query's dtype.
      bias: $b$, a function that takes the positions of a tile, (..., queries) and (..., keys), and returns floats that
        broadcast to (batch, heads, queries, keys), such as `lambda i, j: alibi(i, j, 8)`. These positions
        have a batch axis, possibly of size 1, only if query_positions or key_positions has leading axes.
      query_data: arrays that belong to the queries, one or a pytree, for a bias that sees the tokens: of shape (...,
        queries, heads, …) with the leading axes of query, each of which and heads may be 1. The bias is then called as
        bias(i, j, query_data, key_data), with the data of the tile, (batch or 1, queries, heads or 1, …).
      key_data: likewise for the keys, of shape (..., keys, kv_heads, …). The bias gets the data of each key head once
        for each of its query heads.
      query_positions: integers of shape (..., queries); leading axes broadcast to those of query. If query_positions
        and key_positions are both None, both count from 0. This requires as many keys as queries, unless there is
        no causal mask, no window and no bias.
      key_positions: integers of shape (..., keys), broadcast likewise. Give both query_positions and key_positions, or
        neither.
      query_order: integers of shape (..., queries), broadcast likewise: when each token came, such as its slot in a
        cache. The causal mask then goes by order alone; window and bias keep to the positions. Needed where positions
        do not tell earlier from later: in M-RoPE, the tokens of an image share their time coordinate. No order hides
        siblings in a tree of drafts from each other; these need a mask. None: the positions are the order.
      key_order: integers of shape (..., keys), broadcast likewise. Give both query_order and key_order, or neither.
      query_segments: integers of shape (..., queries), broadcast likewise. A query sees only keys with the same
        segment number.
      key_segments: integers of shape (..., keys), broadcast likewise. Give both query_segments and key_segments, or
        neither.
      causal: whether to mask keys at positions after the query's, or of a later order if orders are given. A key at the
        query's own position is seen, and so is one of another document, or padding, at a position that the query may
        see: tell them apart by segments. Known positions that return in a row of keys are an error (but for the
        greatest int32, of slots that hold nothing). Traced ones are taken as they are, and on an accelerator those of
        queries beside more keys, because each decode step would wait for the device.
      window: (left, right): a query at position $p$ sees keys at positions $p - \text{left}$ to $p + \text{right}$,
        None for no bound. The `sliding_window` $w$ of a causal model in Hugging Face, where a query is one of the $w$
        keys that it sees, is (w - 1, 0); with orders, as for images in Gemma 3, (w - 1, None). Encoders count in
        other ways: EmbeddingGemma's $w$ is (w // 2, w // 2), EmbeddingGemma 2's (w, w).
      logits_soft_cap: $a$, which bounds the scores before the bias: $a \tanh(c\,q_i \cdot k_j / a) + b(i, j)$; None
        for no bound, else from 1e-30 to 1e30.
      sinks: floats of shape (heads,), the score of one more key for each head, whose value is 0.
      scale: $c$; None for $1/\sqrt{\text{head\_dim}}$. An array that broadcasts to (..., queries, heads), which may be
        learned or depend on the query's position, multiplies the query, and the product is rounded to query's dtype,
        beyond whose range it is infinite. A traced number is such an array.
      block_size: the maximum number of queries, and of keys, in a tile.
      implementation: "xla" or None for XLA; "mosaic_gpu" for kernels that compute the forward pass and reverse mode on
        an NVIDIA Hopper GPU. They are experimental: forward seen on an H200 in an older form, backward compiled only.
        They need JAX 0.11 or later, bfloat16 or float16, a head_dim and value_dim of at most 256, and a soft cap of at
        most 100; what they cannot compute is an error. XLA, in tiles of block_size, computes forward mode and second
        derivatives. It also computes reverse mode if head_dim or value_dim is above 128, or with respect to what some
        biases learn.
      return_residual: whether to return $\ell_i = \ln \sum_j e^{s_{ij}}$ too. Unlike the residual of
        `jax.nn.dot_product_attention`, it is differentiable and is not rounded to the dtype of key.

    Returns:
      An array of shape (..., queries, heads, value_dim) and query's dtype. With return_residual, a tuple of that array
      and the residuals, float32 (float64 for float64 operands) of shape (..., queries, heads): $-\infty$ where a query
      sees no key and there is no sink.

    Raises:
      TypeError: if an operand is not a float array of query's dtype, positions, orders or segments are not integers,
        bias is not a function or does not return one float array, window is not a pair, or another argument has the
        wrong type.
      ValueError: if shapes do not match, the number of query heads is not a multiple of the number of key heads,
        positions, orders or segments are given for one side only, data are given without a bias or do not fit, orders
        are given and causal is False, known key positions return after others under a causal mask or a window that is
        bounded on the right, without segments, orders or data, positions are needed but cannot be counted, a tile of
        the bias does not broadcast, block_size is below 1, a side of window is negative, logits_soft_cap is out of
        bounds, a length, heads, head_dim or value_dim is symbolic, or the implementation is unknown or cannot compute
        what is asked for.
        On Explicit axes, also if a sequence, head_dim or a leading axis after the first is sharded, or if the batch or
        heads of key, value, sinks or bias are sharded differently from query's.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 1000, 8, 16))
      >>> @jax.jit
      ... def attend(q, k, v):
      ...     bias = lambda i, j: pe.alibi(i, j, 8)
      ...     return pe.attention(q, k, v, bias=bias, causal=True, block_size=128)
      >>> attend(q, k, v).shape
      (2, 1000, 8, 16)

      A sliding window of 128 keys with a sink:

      >>> pe.attention(q, k, v, window=(127, 0), sinks=jnp.zeros(8)).shape
      (2, 1000, 8, 16)

      One decode step, with a cache in which 7 keys have been written:

      >>> position = jnp.full((2, 1), 6)
      >>> where = {"query_positions": position, "key_positions": jnp.arange(1000)}
      >>> y = pe.attention(q[:, 6:7], k, v, causal=True, **where)
      >>> whole = pe.attention(q[:, :7], k[:, :7], v[:, :7], causal=True)
      >>> bool(jnp.allclose(y, whole[:, 6:], atol=1e-6))
      True

      Forgetting attention, whose bias $c_i - c_j$ is a difference of summed gates:

      >>> c = jnp.cumsum(jax.nn.log_sigmoid(jnp.ones((2, 1000, 8))), axis=1)
      >>> forget = lambda i, j, a, b: a.swapaxes(1, 2)[..., None] - b.swapaxes(1, 2)[..., None, :]
      >>> pe.attention(q, k, v, bias=forget, query_data=c, key_data=c, causal=True).shape
      (2, 1000, 8, 16)

      A word, an image of four tokens that share their time, and a word: causal by order, with a bias by time.

      >>> time, slot = jnp.array([0, 1, 1, 1, 1, 2]), jnp.arange(6)
      >>> where = {"query_positions": time, "key_positions": time}
      >>> order = {"query_order": slot, "key_order": slot}
      >>> words = [x[:, :6] for x in (q, k, v)]
      >>> bias = lambda i, j: pe.alibi(i, j, 8)
      >>> pe.attention(*words, bias=bias, causal=True, **where, **order).shape
      (2, 6, 8, 16)

      Attention to the keys in two parts:

      >>> slices = slice(600), slice(600, None)
      >>> parts = [pe.attention(q, k[:, s], v[:, s], return_residual=True) for s in slices]
      >>> (a, residual_a), (b, residual_b) = parts
      >>> weight = jax.nn.sigmoid(residual_a - residual_b)[..., None]
      >>> bool(jnp.allclose(weight * a + (1 - weight) * b, pe.attention(q, k, v), atol=1e-6))
      True

    Reference:
      Rabe and Staats, "Self-attention Does Not Need O(n²) Memory", 2021, section 2; Dao et al., "FlashAttention", 2022,
      appendix B, for the derivative. The cap is that of Gemma Team, "Gemma 2", 2024, section 2; sinks are those of Xiao
      et al., "Efficient Streaming Language Models with Attention Sinks", 2024, section 3.3, learned as in gpt-oss.
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
