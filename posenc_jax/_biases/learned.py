"""Attention biases learned as functions of distance, for any tile of scores: T5's buckets and FIRE.

Positions have the same shapes and meaning as in the biases given by a formula. A tile of `t5` has the same bits as the
corresponding part of the full bias. In `fire` the last bit may differ, because the compiler chooses how to divide and
in which order to sum. Reverse mode stores only distances, in one array for all heads.
"""

from __future__ import annotations

import bisect
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from posenc_jax._biases.parser import check_tile_sharded_together, parse_tile
from posenc_jax._jax import checks, sharding
from posenc_jax._jax.arrays import align
from posenc_jax._jax.errors import invalid, public, require, require_type
from posenc_jax._jax.workarounds import compiled
from posenc_jax._numerics.distances import per_head, tile_difference, tile_distance


@public
def t5(
    query_positions: ArrayLike,
    key_positions: ArrayLike,
    table: ArrayLike,
    *,
    bidirectional: bool = True,
    max_distance: int = 128,
) -> jax.Array:
    r"""T5's bias: one learned value per head and bucket of distances.

    Of the $n$ buckets in each direction, the first $e = \lfloor n/2 \rfloor$ hold one distance each. A distance
    $d \ge e$ falls into bucket

    $$\min\left(n - 1,\; e + \left\lfloor \frac{\ln(d/e)}{\ln(\text{max}/e)}\,(n - e) \right\rfloor\right).$$

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> table = jnp.arange(32.0)[:, None]  # one head; each bucket's value is its index
      >>> keys = jnp.array([1000, 999, 992, 991, 900, 0, 1001])
      >>> print(pe.t5(jnp.array([1000]), keys, table)[0, 0])
      [ 0.  1.  8.  8. 15. 15. 17.]

    Args:
      query_positions: integer array of shape (..., queries).
      key_positions: integer array of shape (..., keys); leading axes broadcast.
      table: float array of shape (buckets, heads).
      bidirectional: if True, the first half of the table is for keys at or before the query, and the second half for
        keys after it. If False, the whole table is for keys at or before the query. Later keys, which should be masked,
        then count as distance 0.
      max_distance: the distance from which all keys share the last bucket.

    Returns:
      A float32 array of shape (..., heads, queries, keys), differentiable in the table to any order, in forward and
      reverse mode.

    Raises:
      TypeError: if positions are not integers, the table is not a float array, or for the same reasons as in `alibi`.
      ValueError: if the table does not have two axes, has fewer than two rows per direction, or has an odd number of
        rows for two directions; if max_distance is not above $e$; or for the same reasons as in `alibi`.

    Notes:
      Integer arithmetic finds the distance at which each bucket begins, so every distance falls into the right bucket.
      A float32 logarithm is off by one at some edges. The lookup is elementwise: one select per row of the table, no
      gather.

    Reference:
      Raffel et al., "Exploring the Limits of Transfer Learning", 2020, section 2.1; the buckets follow the authors'
      code (Mesh TensorFlow).
    """
    queries, keys = parse_tile(query_positions, key_positions, checks.INTEGERS)
    bidirectional = checks.flag("bidirectional", bidirectional)
    max_distance = checks.positive_int("max_distance", max_distance)
    table, buckets = _parse_table(queries, keys, table, bidirectional, max_distance)
    return _t5(queries, keys, table, edges=_edges(buckets, max_distance), bidirectional=bidirectional)


def _parse_table(
    queries: jax.Array, keys: jax.Array, table: Any, bidirectional: bool, max_distance: int
) -> tuple[jax.Array, int]:
    """The table (buckets, heads), and the number of buckets of one direction."""
    table = checks.floats("table", table, ("buckets", "heads"), static_axes=(0,))
    require(table.ndim == 2 and table.shape[1], "table must have shape (buckets, heads), got {}", table.shape)
    checks.unsharded("table", table, 0)
    check_tile_sharded_together(queries, keys, {"table": table})
    buckets, odd = divmod(table.shape[0], 2 if bidirectional else 1)
    rows = "an even number of rows, at least 4" if bidirectional else "at least 2 rows"
    if odd or buckets < 2:
        raise invalid(f"table must have {rows} with bidirectional={bidirectional}, got {table.shape}")
    half = buckets // 2
    if max_distance <= half:
        raise invalid(f"max_distance must be above {half}, half the buckets of a direction, got {max_distance}")
    return table, buckets


@functools.lru_cache(maxsize=64)
def _edges(buckets: int, max_distance: int) -> tuple[int, ...]:
    """The smallest distance in each bucket after the first, without buckets that begin beyond int64."""
    exact = buckets // 2
    steps = buckets - exact
    reachable = range(min(max_distance, 2**63 - 2) + 1)

    def start(k: int) -> int:
        # ln(d/e) / ln(max/e) · steps ≥ k is equivalent to d^steps ≥ max^k · e^(steps − k).
        return bisect.bisect_left(reachable, max_distance**k * exact ** (steps - k), key=lambda d: d**steps)

    edges = (*range(1, exact + 1), *(start(k) for k in range(1, steps)))
    return tuple(edge for edge in edges if edge in reachable)


@compiled("t5", static_argnames=("edges", "bidirectional"))
def _t5(
    queries: jax.Array, keys: jax.Array, table: jax.Array, *, edges: tuple[int, ...], bidirectional: bool
) -> jax.Array:
    distance, after = tile_difference(queries, keys)
    if not bidirectional:
        distance = jnp.where(after, jnp.zeros_like(distance), distance)
    edges = tuple(edge for edge in edges if edge <= np.iinfo(distance.dtype).max)
    return _rows((edges, table.shape[0] // 2 * bidirectional), distance, after, table.astype(jnp.float32))


Buckets = tuple[tuple[int, ...], int]  # edges, and the first row for keys after the query (0 if unidirectional)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _rows(buckets: Buckets, distance: jax.Array, after: jax.Array, table: jax.Array) -> jax.Array:
    """Looks up the row of the table for each distance."""
    edges, offset = buckets
    columns = [per_head(row, distance) for row in table]
    if offset:
        columns = [jnp.where(after, *pair) for pair in zip(columns[offset:], columns[:offset], strict=True)]
    result = jnp.broadcast_to(columns[0], jnp.broadcast_shapes(columns[0].shape, distance.shape))
    for edge, column in zip(edges, columns[1:], strict=False):
        result = jnp.where(distance >= np.asarray(edge, distance.dtype), column, result)
    return result


@_rows.defjvp
def _rows_jvp(buckets: Buckets, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    """The tangent is the lookup in the table's tangent, in a form that transposes to sums over buckets."""
    distance, after, table = primals

    def tangent(distance: jax.Array, after: jax.Array, d_table: jax.Array) -> jax.Array:
        row = _row_index(buckets, distance, after)
        # A TPU fuses the one-hot matrix into the product; other compilers would store it, at the size of many biases.
        return lax.platform_dependent(row, d_table, tpu=_rows_by_product, default=_rows_by_gather)

    y = _rows(buckets, distance, after, table)
    return y, sharding.recomputed(y, tangent, distance, after, tangents[2])


def _row_index(buckets: Buckets, distance: jax.Array, after: jax.Array) -> jax.Array:
    """The index of the row that `_rows` looks up, (..., queries, keys)."""
    edges, offset = buckets
    bucket = sum(((distance >= np.asarray(edge, distance.dtype)).astype(jnp.int32) for edge in edges), jnp.int32(0))
    return jnp.squeeze(bucket + jnp.where(after, np.int32(offset), np.int32(0)), -3)


def _rows_by_gather(row: jax.Array, table: jax.Array) -> jax.Array:
    # One table per query, so that the transpose sums each query first: a running float32 sum of ones stalls at 2²⁴.
    tables = jnp.broadcast_to(table, (*row.shape[:-1], *table.shape))
    lookup = jnp.vectorize(lambda row, table: table[row], signature="(k),(b,h)->(k,h)")
    return jnp.moveaxis(lookup(row, tables), -1, -3)


def _rows_by_product(row: jax.Array, table: jax.Array) -> jax.Array:
    one_hot = row[..., None] == align(np.arange(table.shape[0], dtype=np.int32), row.ndim + 1)
    return jnp.moveaxis(jnp.matmul(one_hot.astype(table.dtype), table, precision=lax.Precision.HIGHEST), -1, -3)


@public
def fire(
    query_positions: ArrayLike,
    key_positions: ArrayLike,
    mlp: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike],
    *,
    c: ArrayLike,
    threshold: ArrayLike,
) -> jax.Array:
    r"""FIRE: a learned function $f$ of the distance, normalized by the position of the query.

    $$f\left(\frac{\ln(c\,|i - j| + 1)}{\ln(c\,\max(L, i) + 1)}\right), \qquad
      f(x) = W_2^\top \max(w_1 x + b_1, 0) + b_2$$

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> mlp = jnp.array([1.0]), jnp.array([0.0]), jnp.array([[-2.0]]), jnp.array([0.0])
      >>> # relative distance 1
      >>> print(pe.fire(jnp.array([2, 8]), jnp.array([0]), mlp, c=1.0, threshold=2)[0])
      [[-2.]
       [-2.]]

    Args:
      query_positions: $i$, integer or float32 array of shape (..., queries), counted from 0 at the start of the
        sequence or of each packed segment.
      key_positions: $j$, integer or float32 array of shape (..., keys); leading axes broadcast.
      mlp: $(w_1, b_1, W_2, b_2)$, float arrays of shapes (hidden,), (hidden,), (hidden, heads) and (heads,). The paper
        uses 32 hidden units.
      c: $c$, a positive number or scalar array; the paper initializes it to 0.1.
      threshold: $L$, a positive number or scalar array.

    Returns:
      A float32 array of shape (..., heads, queries, keys), differentiable in the weights, c, threshold and float
      positions to any order, in forward and reverse mode.

    Raises:
      TypeError: if mlp is not four float arrays, c or threshold is neither a number nor a numeric array, or for the
        same reasons as in `alibi`.
      ValueError: if the shapes in mlp do not match, c or threshold is an array but not a scalar, or for the same
        reasons as in `alibi`. If c and threshold are numbers: also if one is not positive, or if $c$, $L$, $cL$ or $c$
        times any distance does not fit into float32.

    Notes:
      - FIRE is for causal attention, $j \le i$, where the argument of $f$ is at most 1. Mask later keys. Their bias
        is computed from their distance too, as in the authors' code, so that values and gradients are finite.
      - To keep learned $c$ and $L$ positive, compute them as `jax.nn.softplus` of unconstrained parameters.

    Reference:
      Li et al., "Functional Interpolation for Relative Positions Improves Long Context Transformers", 2024, section 3
      and appendix (code), without the 1e-6 that the code adds to the denominator.
    """
    positions = parse_tile(query_positions, key_positions)
    weights, scalars = _perceptron_weights(positions, mlp), {"c": c, "threshold": threshold}
    check_scale(**{n: x for n, x in scalars.items() if isinstance(x, (int, float, np.integer, np.floating))})
    return _fire(*positions, weights, *(checks.scalar(n, x, np.float32) for n, x in scalars.items()))


def _perceptron_weights(positions: tuple[jax.Array, jax.Array], mlp: Any) -> tuple[jax.Array, ...]:
    """Parses mlp into w₁ (hidden,), b₁ (hidden,), W₂ (hidden, heads) and b₂ (heads,)."""
    require_type(isinstance(mlp, (tuple, list)) and len(mlp) == 4, "mlp", "four arrays, (w1, b1, w2, b2)", mlp)
    axes = {"w1": ("hidden",), "b1": ("hidden",), "w2": ("hidden", "heads"), "b2": ("heads",)}
    named = {f"{n} of mlp": checks.floats(f"{n} of mlp", x, axes[n], (0,)) for n, x in zip(axes, mlp, strict=True)}
    shapes = tuple(w.shape for w in named.values())
    hidden, *_, heads = shapes
    if shapes != (hidden, hidden, hidden + heads, heads) or len(hidden + heads) != 2 or 0 in hidden + heads:
        raise invalid(f"mlp must have shapes (hidden,), (hidden,), (hidden, heads), (heads,), got {shapes}")
    check_tile_sharded_together(*positions, {name: named[name] for name in ("w2 of mlp", "b2 of mlp")})
    for name in ("w1 of mlp", "b1 of mlp", "w2 of mlp"):
        checks.unsharded(name, named[name], 0)
    return tuple(named.values())


def check_scale(c: Any = 1.0, threshold: Any = 1.0) -> tuple[float, float]:
    """$c$ and $L$ as Python floats. Raises unless float32 holds them, $cL$ and $c$ times any distance."""
    c, threshold = checks.positive_float32("c", c), checks.positive_float32("threshold", threshold)
    checks.positive_float32("c times the threshold", c * threshold)
    checks.positive_float32("c times a distance of 2³²", c * 2.0**32)
    return c, threshold


@compiled("fire")
def _fire(
    queries: jax.Array, keys: jax.Array, weights: tuple[jax.Array, ...], c: jax.Array, threshold: jax.Array
) -> jax.Array:
    c, threshold = c.astype(jnp.float32), threshold.astype(jnp.float32)
    distance = tile_distance(queries, keys)
    longest = align(jnp.maximum(queries.astype(jnp.float32), threshold)[..., None, :, None], distance.ndim)
    argument = jnp.log1p(c * distance) / jnp.log1p(c * longest)
    return _perceptron(argument, *(w.astype(jnp.float32) for w in weights))


@jax.custom_jvp
def _perceptron(x: jax.Array, w1: jax.Array, b1: jax.Array, w2: jax.Array, b2: jax.Array) -> jax.Array:
    """f(x), (..., heads, queries, keys), for x (..., 1, queries, keys)."""
    return lax.platform_dependent(x, w1, b1, w2, b2, tpu=_by_product, default=_by_units)


@_perceptron.defjvp
def _perceptron_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    y = _perceptron(*primals)
    return y, sharding.recomputed(y, lambda x, dx: jax.jvp(_by_product, x, dx)[1], primals, tangents)


def _by_product(x: jax.Array, w1: jax.Array, b1: jax.Array, w2: jax.Array, b2: jax.Array) -> jax.Array:
    """As a matrix product: for derivatives, and for TPUs, which fuse the hidden features into it."""
    hidden = jax.nn.relu(per_head(w1, x) * x + per_head(b1, x))
    y = jnp.tensordot(hidden, w2, ((x.ndim - 3,), (0,)), precision=lax.Precision.HIGHEST)
    return jnp.moveaxis(y, -1, -3) + per_head(b2, x)


def _by_units(x: jax.Array, w1: jax.Array, b1: jax.Array, w2: jax.Array, b2: jax.Array) -> jax.Array:
    """As one elementwise expression, because an array of hidden features would be several times the bias's size."""
    y = jnp.broadcast_to(per_head(b2, x), (*x.shape[:-3], b2.shape[0], *x.shape[-2:]))
    for unit in range(w1.shape[0]):
        y += per_head(w2[unit], x) * jax.nn.relu(per_head(w1[unit, None], x) * x + per_head(b1[unit, None], x))
    return y
