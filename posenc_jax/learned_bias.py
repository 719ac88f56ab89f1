r"""Attention biases that are learned functions of the distance, for any tile of positions: T5's buckets and FIRE.

Positions are as for the biases by formula. A tile of `t5` has the bits of that tile of the whole; of `fire`, which
divides and sums as the compiler likes, all but the last. For derivatives only distances are kept, one for all heads.
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

from posenc_jax import _check, _mesh
from posenc_jax._distance import per_head, tile_difference, tile_distance


def t5(
    query_positions: ArrayLike,
    key_positions: ArrayLike,
    table: ArrayLike,
    *,
    bidirectional: bool = True,
    max_distance: int = 128,
) -> jax.Array:
    r"""T5's learned bias for each bucket of distances.

    Of $n$ buckets for a direction, $e = \lfloor n/2 \rfloor$ hold one distance each, and a distance $d \ge e$ is in

    $$\min\left(n - 1,\; e + \left\lfloor \frac{\ln(d/e)}{\ln(\text{max}/e)}\,(n - e) \right\rfloor\right).$$

    The distances at which a bucket begins are found in integers, so the bucket is right at every distance, where
    a logarithm in float32 is one off at some edges. It is an elementwise expression: a select for each row, no gather.

    Args:
      query_positions: integers of shape (..., queries).
      key_positions: integers of shape (..., keys); leading axes broadcast.
      table: floats of shape (buckets, heads).
      bidirectional: the first half of the table is for keys at or before the query, the second for keys after it. If
        not, the table is for keys at or before the query, and keys after it (to be masked) count as at distance 0.
      max_distance: from which on all keys share the last bucket.

    Returns:
      float32 of shape (..., heads, queries, keys). Differentiable in the table, in reverse mode.

    Raises:
      TypeError: if positions are not integers, the table not of floats, or as `alibi`.
      ValueError: if the table has not two axes, or rows for fewer than two buckets a direction or an odd number for
        two directions, max_distance is not above the distances that have buckets of their own, or as `alibi`.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> table = jnp.arange(32.0)[:, None]  # one head, to which each bucket gives its number
      >>> print(pe.t5(jnp.array([1000]), jnp.array([1000, 999, 992, 991, 900, 0, 1001]), table)[0, 0])
      [ 0.  1.  8.  8. 15. 15. 17.]

    Reference:
      Raffel et al., "Exploring the Limits of Transfer Learning", 2020, section 2.1; the buckets as in the authors' code
      (Mesh TensorFlow).
    """
    where = "t5"
    queries, keys = _check.pair(where, "positions", query_positions, key_positions, "an integer array")
    table = _check.floats(where, "table", table, "(buckets, heads)")
    if table.ndim != 2 or not table.shape[1]:
        raise ValueError(f"{where}: table must have shape (buckets, heads), got {table.shape}")
    _check.known_size(where, "table", table.shape, 0)
    _check.whole(where, "table", table, 0)
    _check.of_tile(where, "positions", queries, keys, table=table)
    directions = 1 + _check.flag(where, "bidirectional", bidirectional)
    buckets, odd = divmod(table.shape[0], directions)
    if odd or buckets < 2:
        rows = "an even number of rows, at least 4" if directions == 2 else "at least 2 rows"
        raise ValueError(f"{where}: table must have {rows} with bidirectional={bidirectional}, got {table.shape}")
    max_distance = _check.positive_int(where, "max_distance", max_distance)
    if max_distance <= buckets // 2:
        expected = f"above {buckets // 2}, half the buckets of a direction"
        raise ValueError(f"{where}: max_distance must be {expected}, got {max_distance}")
    return _t5(queries, keys, table, edges=_edges(buckets, max_distance), bidirectional=directions == 2)


@functools.lru_cache(maxsize=64)
def _edges(buckets: int, max_distance: int) -> tuple[int, ...]:
    """The smallest distance in each bucket but the first; none for buckets that begin beyond int64."""
    exact = buckets // 2
    steps = buckets - exact
    reachable = range(min(max_distance, 2**63 - 2) + 1)

    def begins(k):
        # ln(d/e) / ln(max/e) · steps ≥ k, which is d^steps ≥ max^k · e^(steps − k)
        return bisect.bisect_left(reachable, max_distance**k * exact ** (steps - k), key=lambda d: d**steps)

    edges = (*range(1, exact + 1), *(begins(k) for k in range(1, steps)))
    return tuple(edge for edge in edges if edge in reachable)


@functools.partial(jax.jit, static_argnames=("edges", "bidirectional"), inline=True)
def _t5(queries, keys, table, *, edges, bidirectional):
    distance, after = tile_difference(queries, keys)
    if not bidirectional:
        distance = jnp.where(after, jnp.zeros_like(distance), distance)
    edges = tuple(edge for edge in edges if edge <= np.iinfo(distance.dtype).max)
    return _rows((edges, table.shape[0] // 2 * bidirectional), distance, after, table.astype(jnp.float32))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rows(buckets, distance, after, table):
    """The row of each distance's bucket; rows for keys after the query begin at an offset, unless it is 0."""
    edges, offset = buckets
    columns = [per_head(row, distance) for row in table]
    if offset:
        columns = [jnp.where(after, *pair) for pair in zip(columns[offset:], columns[:offset], strict=True)]
    result = jnp.broadcast_to(columns[0], jnp.broadcast_shapes(columns[0].shape, distance.shape))
    for edge, column in zip(edges, columns[1:], strict=False):
        result = jnp.where(distance >= np.asarray(edge, distance.dtype), column, result)
    return result


def _row(buckets, distance, after):
    """The number of that row, (..., queries, keys)."""
    edges, offset = buckets
    begun = sum(((distance >= np.asarray(edge, distance.dtype)).astype(jnp.int32) for edge in edges), jnp.int32(0))
    return jnp.squeeze(begun + jnp.where(after, np.int32(offset), np.int32(0)), -3)


def _rows_forward(buckets, distance, after, table):
    return _rows(buckets, distance, after, table), (distance, after, table)


def _rows_backward(buckets, residuals, dy):
    distance, after, table = residuals
    # A TPU's matrix unit makes the one-hot matrix as it multiplies; elsewhere it would be the size of many biases.
    sums = functools.partial(lax.platform_dependent, tpu=_sums_by_product, default=_sums_by_scatter)
    total = _mesh.sharded_as([table], sums, _row(buckets, distance, after), dy, table)
    return None, None, _mesh.cotangent_of(jax.typeof(table), total)


_rows.defvjp(_rows_forward, _rows_backward)


def _sums_by_scatter(row, dy, table):
    # Of each query by itself: one number after the other, a sum of ones in float32 ends at 2²⁴.
    of_query = jnp.vectorize(lambda row, dy: jnp.zeros_like(table).at[row].add(dy), signature="(k),(k,h)->(b,h)")
    sums = of_query(row, jnp.moveaxis(dy, -3, -1))
    return jnp.sum(sums, axis=tuple(range(sums.ndim - 2)))


def _sums_by_product(row, dy, table):
    ones = row[..., None] == _check.align(np.arange(table.shape[0], dtype=np.int32), row.ndim + 1)
    axes = list(range(row.ndim))
    over = [*axes[:-2], row.ndim - 1, row.ndim]  # of dy: all but the heads
    return jnp.tensordot(ones.astype(dy.dtype), dy, (axes, over), precision=lax.Precision.HIGHEST)


def fire(
    query_positions: ArrayLike,
    key_positions: ArrayLike,
    mlp: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike],
    *,
    c: ArrayLike,
    threshold: ArrayLike,
) -> jax.Array:
    r"""FIRE: a learned function of the distance, relative to how far the query has come.

    $$f\left(\frac{\ln(c\,|i - j| + 1)}{\ln(c\,\max(L, i) + 1)}\right), \qquad
      f(x) = W_2^\top \max(w_1 x + b_1, 0) + b_2$$

    Positions count from 0 at the beginning of the sequence, or of each packed segment. It is for causal attention,
    $j \le i$, where the argument of $f$ is at most 1. Later keys are to be masked; they count by their distance, as in
    the authors' code, so that values and gradients are finite. Learned $c$ and $L$ stay positive as `jax.nn.softplus`
    of free ones.

    Args:
      query_positions: $i$, integers or floats of shape (..., queries).
      key_positions: $j$, integers or floats of shape (..., keys); leading axes broadcast.
      mlp: $(w_1, b_1, W_2, b_2)$, floats of shapes (hidden,), (hidden,), (hidden, heads) and (heads,); 32 hidden units
        in the paper.
      c: positive, a number or a scalar array; 0.1 at first in the paper.
      threshold: $L$, positive, a number or a scalar array.

    Returns:
      float32 of shape (..., heads, queries, keys). Differentiable in the weights, c, the threshold and float positions,
      in reverse mode.

    Raises:
      TypeError: if the weights are not of floats, c or threshold is not a number or a scalar, or as `alibi`.
      ValueError: if the weights' shapes do not fit each other, a number is not positive, float32 cannot hold it or $c$
        times $L$ or any distance, or as `alibi`.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> mlp = jnp.array([1.0]), jnp.array([0.0]), jnp.array([[-2.0]]), jnp.array([0.0])
      >>> print(pe.fire(jnp.array([2, 8]), jnp.array([0]), mlp, c=1.0, threshold=2)[0])  # as far as can be
      [[-2.]
       [-2.]]

    Reference:
      Li et al., "Functional Interpolation for Relative Positions Improves Long Context Transformers", 2024, section 3
      and appendix (code), without the 1e-6 that the code adds to the denominator.
    """
    where = "fire"
    positions = _check.pair(where, "positions", query_positions, key_positions)
    if not isinstance(mlp, (tuple, list)) or len(mlp) != 4:
        raise TypeError(f"{where}: mlp must be four arrays, (w1, b1, w2, b2), got {_check.describe(mlp)}")
    axes = ("(hidden,)", "(hidden,)", "(hidden, heads)", "(heads,)")
    names = ("w1", "b1", "w2", "b2")
    weights = tuple(_check.floats(where, f"{n} of mlp", w, a) for n, w, a in zip(names, mlp, axes, strict=True))
    shapes = tuple(w.shape for w in weights)
    for n, shape in zip(names, shapes, strict=True):
        _check.known_size(where, f"{n} of mlp", shape, 0)
    if weights[2].ndim != 2 or shapes != (shapes[2][:1], shapes[2][:1], shapes[2], shapes[2][1:]) or 0 in shapes[2]:
        raise ValueError(f"{where}: mlp must have shapes {', '.join(axes)}, got {shapes}")
    _check.of_tile(
        where, "positions", *positions, **{f"{n} of mlp": w for n, w in zip(names[2:], weights[2:], strict=True)}
    )
    for n, w in zip(names[:3], weights, strict=False):
        _check.whole(where, f"{n} of mlp", w, 0)
    scalars = {"c": c, "threshold": threshold}
    numbers = {n: x for n, x in scalars.items() if isinstance(x, (int, float, np.integer, np.floating))}
    check_scale(where, **numbers)
    return _fire(*positions, weights, *(_check.scalar(where, n, x, np.float32) for n, x in scalars.items()))


def check_scale(where: str, c: Any = 1.0, threshold: Any = 1.0) -> tuple[float, float]:
    """$c$ and $L$ as Python floats, where float32 holds them, and $c$ times $L$ and any distance."""
    c, threshold = _check.positive_float32(where, "c", c), _check.positive_float32(where, "threshold", threshold)
    _check.positive_float32(where, "c times the threshold", c * threshold)
    _check.positive_float32(where, "c times a distance of 2³²", c * 2.0**32)
    return c, threshold


@functools.partial(jax.jit, inline=True)
def _fire(queries, keys, weights, c, threshold):
    c, threshold = c.astype(jnp.float32), threshold.astype(jnp.float32)
    distance = tile_distance(queries, keys)
    far = _check.align(jnp.maximum(queries.astype(jnp.float32), threshold)[..., None, :, None], distance.ndim)
    argument = jnp.log1p(c * distance) / jnp.log1p(c * far)
    return _perceptron(argument, *(w.astype(jnp.float32) for w in weights))


@jax.custom_vjp
def _perceptron(x, w1, b1, w2, b2):
    """f(x) for x (..., 1, queries, keys) on the axis before the queries; nothing is kept for the derivative but x."""
    return lax.platform_dependent(x, w1, b1, w2, b2, tpu=_by_product, default=_by_units)


def _by_product(x, w1, b1, w2, b2):
    """For TPU, where the matrix unit makes the hidden features as it multiplies, and for derivatives."""
    hidden = jax.nn.relu(per_head(w1, x) * x + per_head(b1, x))
    y = jnp.tensordot(hidden, w2, ((x.ndim - 3,), (0,)), precision=lax.Precision.HIGHEST)
    return jnp.moveaxis(y, -1, -3) + per_head(b2, x)


def _by_units(x, w1, b1, w2, b2):
    """One elementwise expression, where hidden features would be several times the size of the bias."""
    y = jnp.broadcast_to(per_head(b2, x), (*x.shape[:-3], b2.shape[0], *x.shape[-2:]))
    for unit in range(w1.shape[0]):
        y += per_head(w2[unit], x) * jax.nn.relu(per_head(w1[unit, None], x) * x + per_head(b1[unit, None], x))
    return y


def _perceptron_backward(arguments, dy):
    like = tuple([x] for x in arguments)
    return _mesh.sharded_as(like, lambda arguments, dy: jax.vjp(_by_product, *arguments)[1](dy), arguments, dy)


_perceptron.defvjp(lambda *arguments: (_perceptron(*arguments), arguments), _perceptron_backward)
