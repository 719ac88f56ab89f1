"""A learned attention bias per offset on a grid, as in vision transformers, for any tile of scores.

Positions are the coordinates of tokens. The same call therefore computes the bias of a window, of a tile, or of queries
on a coarser grid than the keys. A tile has the same bits as the corresponding part of the full bias.

On CPUs and GPUs, XLA computes each index where it looks up the value, so no other array of the size of the bias is
stored. On TPUs, XLA stores the values with heads padded to 128. Derivatives store only positions.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from posenc_jax._biases.parser import check_no_coordinates, check_tile_sharded_together, to_common_dtype
from posenc_jax._jax import checks, sharding
from posenc_jax._jax.arrays import align
from posenc_jax._jax.checks import OutOfRange
from posenc_jax._jax.errors import invalid, public, require
from posenc_jax._jax.workarounds import compiled
from posenc_jax._numerics.distances import difference


@public
def relative_position_bias(
    query_positions: ArrayLike,
    key_positions: ArrayLike,
    table: ArrayLike,
    *,
    prefix: ArrayLike | None = None,
    symmetric: bool = False,
    out_of_range: OutOfRange = "error",
) -> jax.Array:
    r"""The bias of vision transformers: one learned value per head and offset on a grid.

    For a query at $p$ and a key at $q$, in a window of $w_a$ positions along axis $a$, the bias of all heads is

    $$\text{table}[p_1 - q_1 + w_1 - 1, \;\dots,\; p_n - q_n + w_n - 1] \qquad \text{or} \qquad
      \text{table}[|p_1 - q_1|, \;\dots,\; |p_n - q_n|] \;\text{ (symmetric).}$$

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> table = jnp.arange(15.0).reshape(3, 5, 1)  # one head, a window of 2 × 3
      >>> grid = pe.grid_positions((2, 3))
      >>> print(pe.relative_position_bias(grid[:2], grid, table)[0])
      [[7. 6. 5. 2. 1. 0.]
       [8. 7. 6. 3. 2. 1.]]

      With a class token before the grid, as in BEiT:

      >>> tokens = jnp.pad(grid, ((1, 0), (0, 0)), constant_values=-1)
      >>> beit = jnp.zeros((18, 8))
      >>> table, prefix = beit[:-3].reshape(3, 5, 8), beit[-3:]
      >>> pe.relative_position_bias(tokens, tokens, table, prefix=prefix).shape
      (8, 7, 7)

    Args:
      query_positions: $p$, integer array of shape (..., queries, axes), as `grid_positions` returns; or (..., queries)
        for a table with one axis of offsets.
      key_positions: $q$, integer array of shape (..., keys, axes) or (..., keys); leading axes broadcast.
      table: float array of shape ($2w_1 - 1, \dots, 2w_n - 1$, heads), or ($w_1, \dots, w_n$, heads) if symmetric, for
        any number of axes.
      prefix: biases of tokens outside the grid, such as a class token: float array of shape (3, heads). A token is
        outside if its first coordinate is negative. The rows are for an outside query with grid keys, for grid queries
        with an outside key, and for two outside tokens. Without prefix, negative coordinates have no special meaning.
      symmetric: whether the table is indexed by distances instead of offsets, as in LeViT.
      out_of_range: for offsets beyond the table. "error" raises a `ValueError` if all positions are concrete, and gives
        NaN if some are traced, as they always are in `attention`. "nan" gives NaN without a check. "zeros" gives 0.

    Returns:
      A float32 array of shape (..., heads, queries, keys), differentiable in table and prefix, in forward and reverse
      mode.

    Raises:
      TypeError: if positions are not integers of a common dtype, or table or prefix is not a float array.
      ValueError: if positions do not have one coordinate per axis of the table (for one axis: if concrete positions are
        coordinates of a grid), or their leading axes do not broadcast.
      ValueError: if the table has no heads, or an even or symbolic number of offsets along an axis; or prefix does not
        have shape (3, heads).
      ValueError: if concrete positions are out of range.

    Notes:
      Only differences matter: positions may start anywhere and have gaps.

    See Also:
      The guide to position biases, for the checkpoints of Swin, BEiT, MaxViT and LeViT, and for another window.

    Reference:
      Liu et al., "Swin Transformer", 2021, section 3.2, equation 4; Graham et al., "LeViT", 2021, section 4.2; Bao et
      al., "BEiT", 2022; Tu et al., "MaxViT", 2022. Signs and orders follow the authors' code.
    """
    symmetric, out_of_range = checks.flag("symmetric", symmetric), checks.out_of_range("out_of_range", out_of_range)
    table, prefix, sides = _parse_table(table, prefix, symmetric)
    window = Window(sides, symmetric, prefix is not None, 0.0 if out_of_range == "zeros" else None)
    queries, keys = _parse_positions(query_positions, key_positions, window, out_of_range == "error")
    per_head = {"table": table} if prefix is None else {"table": table, "prefix": prefix}
    check_tile_sharded_together(queries, keys, per_head, axes=1)
    return _relative_position_bias(queries, keys, table, prefix, window=window)


class Window(NamedTuple):
    """The window of a table, which gives each offset its row of the flattened table."""

    sides: tuple[int, ...]  # w for each axis
    symmetric: bool
    has_prefix: bool  # three more rows
    outside: float | None  # the bias of offsets without a row; None for NaN, because NaN is not equal to itself

    def indices(self, queries: jax.Array, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The index of the row nearest to each offset, (..., queries, keys), and whether it is the offset's own."""
        ndim = max(queries.ndim, keys.ndim) + 1
        queries, keys = align(queries[..., :, None, :], ndim), align(keys[..., None, :, :], ndim)
        row: Any = np.int32(0)
        in_table: Any = np.True_
        for axis, side in enumerate(self.sides):
            distance, after = difference(queries[..., axis], keys[..., axis])
            last = np.asarray(side - 1, distance.dtype)
            in_table = in_table & (distance <= last)
            step = jnp.minimum(distance, last).astype(jnp.int32)  # exact: the distance is unsigned
            if not self.symmetric:
                step = jnp.where(after, np.int32(side - 1) - step, np.int32(side - 1) + step)
            row = row * np.int32(side if self.symmetric else 2 * side - 1) + step
        if self.has_prefix:
            from_outside, to_outside, n = queries[..., 0] < 0, keys[..., 0] < 0, self.offsets
            row = jnp.where(to_outside, np.int32(n + 1), row)
            row = jnp.where(from_outside, jnp.where(to_outside, np.int32(n + 2), np.int32(n)), row)
            in_table = in_table | from_outside | to_outside
        return row, in_table

    @property
    def offsets(self) -> int:
        """The number of offsets."""
        return math.prod(side if self.symmetric else 2 * side - 1 for side in self.sides)


@compiled("relative_position_bias", static_argnames=("window",))
def _relative_position_bias(
    queries: jax.Array, keys: jax.Array, table: jax.Array, prefix: jax.Array | None, *, window: Window
) -> jax.Array:
    table = table.astype(jnp.float32).reshape(-1, table.shape[-1])
    if prefix is not None:
        prefix = sharding.resharded(prefix.astype(jnp.float32), jax.typeof(table).sharding.spec, table)
        table = jnp.concatenate([table, prefix])
    return _look_up(window, queries, keys, table)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _look_up(window: Window, queries: jax.Array, keys: jax.Array, table: jax.Array) -> jax.Array:
    row, in_table = window.indices(queries, keys)
    # On Explicit axes of a mesh, JAX must be told how the result is sharded.
    spec = (*jax.typeof(row).sharding.spec, jax.typeof(table).sharding.spec[1])
    values = table.at[row].get(mode="promise_in_bounds", out_sharding=sharding.named_sharding(spec, row, table))
    outside = np.float32(np.nan if window.outside is None else window.outside)
    return jnp.moveaxis(jnp.where(in_table[..., None], values, outside), -1, -3)


@_look_up.defjvp
def _look_up_jvp(window: Window, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    queries, keys, table = primals
    bias = _look_up(window, queries, keys, table)
    return bias, sharding.recomputed(bias, functools.partial(_tangent, window), queries, keys, tangents[2])


def _tangent(window: Window, queries: jax.Array, keys: jax.Array, table: jax.Array) -> jax.Array:
    """`_look_up` with a copy of the table for each of up to 64 groups of queries.

    The transpose sums each group first, because a running float32 sum of ones stalls at 2²⁴.
    """
    *_, n, axes = queries.shape
    groups = max(1, min(64, n)) if isinstance(n, int) else 1
    queries = jnp.pad(queries, [*[(0, 0)] * (queries.ndim - 2), (0, -n % groups), (0, 0)])
    *batch, padded, _ = queries.shape
    row, in_table = window.indices(queries.reshape(*batch, groups, padded // groups, axes), keys[..., None, :, :])
    copies = jnp.broadcast_to(align(table, row.ndim), (*row.shape[:-2], *table.shape))
    look_up = jnp.vectorize(
        lambda table, row: table.at[row].get(mode="promise_in_bounds"), signature="(n,h),(q,k)->(q,k,h)"
    )
    values = jnp.moveaxis(jnp.where(in_table[..., None], look_up(copies, row), np.float32(0)), -1, -4)
    return values.reshape(*values.shape[:-3], padded, values.shape[-1])[..., :n, :]


# Arguments


def _parse_table(table: Any, prefix: Any, symmetric: bool) -> tuple[jax.Array, jax.Array | None, tuple[int, ...]]:
    """A table, its prefix, and the side of its window along each axis."""
    table = checks.floats("table", table, (..., "offsets", "heads"))
    rows, heads = table.shape[:-1], table.shape[-1]
    require(table.ndim > 1 and heads, "table must have shape (..., offsets, heads), got {}", table.shape)
    checks.require_static_size("table", table.shape, *range(len(rows)))
    fits = all(n >= 1 and (symmetric or n % 2) for n in rows)
    number = "at least one distance" if symmetric else "an odd number of offsets, 2w − 1 for a window of w,"
    require(fits, "table must have {} along each axis with symmetric={}, got {}", number, symmetric, table.shape)
    require(math.prod(rows) < 2**31 - 3, "table must have fewer than 2³¹ rows, got shape {}", table.shape)
    for axis in range(len(rows)):
        checks.unsharded("table", table, axis)
    if prefix is not None:
        prefix = checks.floats("prefix", prefix, ("rows", "heads"))
        require(prefix.shape == (3, heads), "prefix must have shape (3, heads) = (3, {}), got {}", heads, prefix.shape)
        checks.unsharded("prefix", prefix, 0)
    return table, prefix, tuple(n if symmetric else (n + 1) // 2 for n in rows)


def _parse_positions(queries: Any, keys: Any, window: Window, check_reach: bool) -> tuple[jax.Array, jax.Array]:
    """Coordinates (..., queries, axes) and (..., keys, axes) of one dtype. `check_reach` is for concrete ones."""
    axes = len(window.sides)
    queries = _parse_coordinates("query_positions", "queries", queries, axes)
    keys = _parse_coordinates("key_positions", "keys", keys, axes)
    batch, other = (x.shape[: -1 if axes == 1 else -2] for x in (queries, keys))
    try:
        jnp.broadcast_shapes(batch, other)
    except ValueError:
        both = f"query_positions, {batch}, and of key_positions, {other}"
        raise invalid(f"the leading axes of {both}, must broadcast") from None
    if check_reach:
        _check_reach(queries, keys, window)
    queries, keys = (x[..., None] if axes == 1 else x for x in (queries, keys))
    return to_common_dtype(("query_positions", "key_positions"), queries, keys)


def _parse_coordinates(name: str, tokens: str, positions: Any, axes: int) -> Any:
    """Integers (..., tokens, axes), or (..., tokens) for one axis. Concrete ones stay concrete."""
    x = checks.array(name, positions, checks.INTEGERS)
    if axes == 1:
        require(x.ndim, "{} must have shape (..., {}), got ()", name, tokens)
        check_no_coordinates(name, x)
        return x
    fits = x.ndim > 1 and x.shape[-1] == axes
    message = "{} must have shape (..., {}, {}), one coordinate for each axis of the table, got {}"
    require(fits, message, name, tokens, axes, x.shape)
    checks.unsharded(name, x)
    return x


def _check_reach(queries: Any, keys: Any, window: Window) -> None:
    """Raises if all positions are concrete, and a query and a key are further apart than the table reaches."""
    if not checks.is_concrete(queries, keys) or not queries.size or not keys.size:
        return
    (low, high), (first, last) = (_extent(np.asarray(x, np.int64), window) for x in (queries, keys))
    reach = np.maximum(high - first, last - low).reshape(-1, len(window.sides)).max(axis=0)
    for axis, (distance, side) in enumerate(zip(reach.tolist(), window.sides, strict=True)):
        message = "query_positions and key_positions must differ by at most {} in coordinate {} for this table, got {}"
        require(distance < side, message, side - 1, axis, distance)


def _extent(x: np.ndarray, window: Window) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest coordinates of each batch's tokens on the grid."""
    x = x[..., None] if len(window.sides) == 1 else x
    on_grid, far = x[..., :1] >= 0 if window.has_prefix else True, 2**40
    return x.min(-2, where=on_grid, initial=far), x.max(-2, where=on_grid, initial=-far)
