"""Attention biases that multiply the query or key by one row of a table per offset, for any tile of scores.

How a tile is computed:

- On a CPU, if positions are consecutive, tokens are multiplied by one row per offset, and the products are moved to the
  diagonals of the offsets. If all pairs have the same row, tokens are multiplied by that row.
- Otherwise, tokens are multiplied by rows of the table, and each pair selects its product. If the table has more rows
  than the tile has offsets, one window of the table is multiplied, or one block after the other.

The products therefore need no more memory than twice the scores of the tile.
"""

from __future__ import annotations

import bisect
import functools
import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from posenc_jax._biases.parser import parse_tile
from posenc_jax._jax import checks, sharding
from posenc_jax._jax.arrays import align, compute_dtype
from posenc_jax._jax.errors import invalid, public, require
from posenc_jax._jax.primitives import varying
from posenc_jax._jax.workarounds import compiled, separate_loop
from posenc_jax._numerics.distances import tile_difference

ContentSource = Literal["query", "key"]
ContentOutOfRange = Literal["error", "nan", "zeros", "nearest"]
_WINDOW = 512  # the fewest rows of a table that are multiplied at once


@public
def content_bias(
    query_positions: ArrayLike,
    key_positions: ArrayLike,
    table: ArrayLike,
    *,
    query: ArrayLike | None = None,
    key: ArrayLike | None = None,
    first: int | None = None,
    max_distance: int | None = None,
    out_of_range: ContentOutOfRange = "error",
) -> jax.Array:
    r"""A bias that depends on a token and an offset: query $i$ or key $j$ times row $i - j$ of a table.

    $$q_i \cdot t_{i - j - f} \qquad \text{or} \qquad k_j \cdot t_{i - j - f}$$

    for every head, where the first row of the table, $t_0$, belongs to offset $f$.

    Examples:
      With one feature, and rows for offsets from −2 to 2:

      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> i, j, rows = jnp.array([3]), jnp.arange(7), jnp.arange(5.0)[:, None]
      >>> print(pe.content_bias(i, j, rows, query=jnp.ones((1, 1, 1)), out_of_range="nearest")[0])
      [[4. 4. 3. 2. 1. 0. 0.]]

    Args:
      query_positions: $i$, integer array of shape (..., queries).
      key_positions: $j$, integer array of shape (..., keys); leading axes broadcast.
      table: $t$, float array of shape (rows, heads, features), or (rows, features) if all heads share it. Unused rows
        must be finite too.
      query: $q$, float array of shape (..., queries, heads or 1, features).
      key: $k$, float array of shape (..., keys, heads or 1, features), instead of query.
      first: $f$, the offset $i - j$ of the first row. `None` means that the middle row belongs to offset 0; the number
        of rows must then be odd.
      max_distance: DeBERTa's `max_relative_positions`, which groups offsets into buckets. Every offset then has a row,
        first must be None, and the number of rows must be even.
      out_of_range: for offsets without a row. "error" raises if all positions are concrete, and gives NaN if some are
        traced. "nan" gives NaN. "zeros" gives 0. "nearest" uses the first or the last row.

    Returns:
      An array of shape (..., heads, queries, keys), float32 (float64 if query, key or table is float64). Differentiable
      in query, key and table to any order, in forward and reverse mode.

    Raises:
      TypeError: if positions are not integers of a common dtype, table, query or key is not a float array, or first or
        max_distance is not an integer.
      ValueError: if query and key are both given or both missing, shapes do not match, or out_of_range is unknown.
      ValueError: if concrete positions are out of range, or first is missing for an even number of rows.
      ValueError: with max_distance, if first or out_of_range is given, the number of rows is odd, below 8 or above 2¹²,
        or max_distance is at most a quarter of the rows, rounded down, plus 1.

    Notes:
      - The bias is not scaled. If the model scales it with the scores, multiply it by the same scale.
      - In `attention`, call it in the bias function, with query or key passed as query_data or key_data. It is then
        computed in tiles, in memory linear in the length.
      - Products have the default precision of `jax.lax.dot_general`.

    See Also:
      The guide to position biases, for the call of each model and DeBERTa's buckets.

    Reference:
      Shaw et al., "Self-Attention with Relative Position Representations", 2018, section 3.1; Dai et al.,
      "Transformer-XL", 2019, section 3.3; He et al., "DeBERTa", 2021, section 3.1, with the buckets and the sign of its
      code.
    """
    queries, keys = parse_tile(query_positions, key_positions, checks.INTEGERS)
    given = [name for name, x in (("query", query), ("key", key)) if x is not None]
    require(len(given) == 1, "either query or key must be given, got {}", " and ".join(given) or "neither")
    source: ContentSource = "query" if key is None else "key"
    content, table = _parse_content(source, query if key is None else key, queries, keys, table)
    _check_sharding(queries, keys, source, content, table)
    rows = parse_rows(table.shape[0], first, max_distance, out_of_range)
    if out_of_range == "error" and max_distance is None:
        _check_reach(queries, keys, rows)
    return _content_bias(queries, keys, content, table, rows=rows, source=source)


class Rows(NamedTuple):
    """The offset, or the bucket of offsets, that each row of the table is for."""

    number: int
    first: int  # the offset of the first row, in buckets if there are edges
    edges: tuple[int, ...]  # the least distance of each bucket after the first `edges[0]`, which have one distance each
    outside: Literal["nan", "zeros", "nearest"]  # the bias of offsets without a row

    def fill(self, dtype: Any) -> np.ndarray:
        """The bias of offsets without a row, unless it is that of the nearest."""
        return np.asarray(0 if self.outside == "zeros" else np.nan, dtype)

    def indices(self, queries: jax.Array, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The index of the row nearest to each offset, (..., 1, queries, keys), and whether it is the offset's own."""
        distance, after = tile_difference(queries, keys)
        last = self.first + self.number - 1
        if self.edges:
            reachable = [edge for edge in self.edges if edge <= np.iinfo(distance.dtype).max]
            edges = np.array(reachable, distance.dtype)
            beyond = jnp.searchsorted(edges, distance, side="right", method="scan_unrolled").astype(jnp.int32)
            exact = np.asarray(self.edges[0] - 1, distance.dtype)
            offset = jnp.minimum(distance, exact).astype(jnp.int32) + beyond
        else:  # beyond both ends of the table, all distances are the same
            most = np.asarray(max(abs(self.first), abs(last)) + 1, distance.dtype)
            offset = jnp.minimum(distance, most).astype(jnp.int32)
        offset = jnp.where(after, -offset, offset)
        in_table = (offset >= np.int32(self.first)) & (offset <= np.int32(last))
        return jnp.clip(offset, np.int32(self.first), np.int32(last)) - np.int32(self.first), in_table


@functools.lru_cache(maxsize=64)
def _edges(span: int, max_distance: int) -> tuple[int, ...]:
    """The least distance of each bucket beyond the middle, of DeBERTa's tables with 2 · span rows."""
    middle = span // 2
    steps, most = middle - 1, max_distance - 1

    def start(k: int) -> int:
        # ln(d/m) / ln(most/m) · steps > k is equivalent to d^steps > most^k · m^(steps − k).
        about = math.log(middle) + k / steps * (math.log(most) - math.log(middle))
        if about > 45:  # e⁴⁵ is beyond uint64
            return 2**64
        low, high = (max(int(math.exp(about) * (1 + sign * 1e-12)) + sign * 2, 0) for sign in (-1, 1))
        below, above = most**k * middle ** max(steps - k, 0), middle ** max(k - steps, 0)
        return low + bisect.bisect_right(range(low, high), below, key=lambda d: d**steps * above)

    return tuple(start(k) for k in range(span - middle))


@compiled("content_bias", static_argnames=("rows", "source"))
def _content_bias(
    queries: jax.Array, keys: jax.Array, content: jax.Array, table: jax.Array, *, rows: Rows, source: ContentSource
) -> jax.Array:
    ndim = max(queries.ndim, keys.ndim, content.ndim - 2)
    queries, keys, content = align(queries, ndim), align(keys, ndim), align(content, ndim + 2)
    if content.dtype != table.dtype:
        content, table = (x.astype(compute_dtype(content, table)) for x in (content, table))
    like = _of_tile_shape(queries, keys, content, table, source)
    # The transpose of `vary` sums the cotangents of replicated operands over devices, here and once. Inside a branch of
    # `lax.cond` the sum would wait forever for devices that take the other branch.
    axes = frozenset().union(*map(varying, (queries, keys, content, table)))
    arrays = (sharding.vary(x, axes) for x in (queries, keys, content, table))
    return sharding.sharded_as(like, functools.partial(_tile, rows, source), *arrays)


def _tile(
    rows: Rows, source: ContentSource, queries: jax.Array, keys: jax.Array, content: jax.Array, table: jax.Array
) -> jax.Array:
    n, m = queries.shape[-1], keys.shape[-1]
    shares_positions = math.prod((*queries.shape[:-1], *keys.shape[:-1])) == 1
    # Branches other than pairs write their tile to memory. They pay where the table has about a row for each offset.
    covers_tile = isinstance(n, int) and isinstance(m, int) and n and m and n + m - 2 < 2 * rows.number
    by_pairs = functools.partial(_by_pairs, rows, source)
    if not (shares_positions and covers_tile):
        return by_pairs(queries, keys, content, table)
    # Without `jax.checkpoint`, each branch would store what the derivatives of all branches read.
    branches = [jax.checkpoint(functools.partial(f, rows, source)) for f in (_by_row, _by_offsets, _by_pairs)]

    def by_positions(*arrays: jax.Array) -> jax.Array:
        consecutive = _are_consecutive(arrays[0]) & _are_consecutive(arrays[1])
        branch = jnp.where(_have_one_row(rows, *arrays[:2]), 0, jnp.where(consecutive, 1, 2))
        return lax.switch(branch, branches, *arrays)

    # A TPU is slow at rows of another length, which move between its lanes; on a GPU these were not timed.
    return lax.platform_dependent(queries, keys, content, table, cpu=by_positions, default=by_pairs)


def _are_consecutive(positions: jax.Array) -> jax.Array:
    """Whether each position is one more than the one before it."""
    steps = positions[..., 1:] - positions[..., :-1]
    return jnp.all(steps == 1) & jnp.all(positions[..., -1] >= positions[..., 0])  # int32 wraps


def _have_one_row(rows: Rows, queries: jax.Array, keys: jax.Array) -> jax.Array:
    """Whether all pairs have one row: that of the least and of the largest offset, since rows are in order."""
    (least, most), (first, last) = ((jnp.min(x).reshape(1), jnp.max(x).reshape(1)) for x in (queries, keys))
    low, high = rows.indices(least, last), rows.indices(most, first)
    return jnp.all((low[0] == high[0]) & (low[1] == high[1]))


def _by_row(
    rows: Rows, source: ContentSource, queries: jax.Array, keys: jax.Array, content: jax.Array, table: jax.Array
) -> jax.Array:
    """The tile of pairs that have one row."""
    row, in_table = (x.reshape(()) for x in rows.indices(queries.reshape(-1)[:1], keys.reshape(-1)[:1]))
    picked = lax.dynamic_index_in_dim(table if table.ndim == 3 else table[:, None], row, keepdims=False)
    products = jnp.einsum("...nhd,hd->...hn", content, picked, preferred_element_type=compute_dtype(content))
    if rows.outside != "nearest":
        products = jnp.where(in_table, products, rows.fill(products.dtype))
    products = products[..., None] if source == "query" else products[..., None, :]
    return jnp.broadcast_to(products, (*products.shape[:-2], queries.shape[-1], keys.shape[-1]))


def _by_offsets(
    rows: Rows, source: ContentSource, queries: jax.Array, keys: jax.Array, content: jax.Array, table: jax.Array
) -> jax.Array:
    """The tile of consecutive positions: products with a row for each offset, moved to the diagonals of the offsets."""
    queries, keys = queries.reshape(-1), keys.reshape(-1)
    tokens, others = (queries, keys) if source == "query" else (keys, queries)
    n, m = len(tokens), len(others)
    # The offsets of the first column, from its end, and of the first row
    pairs = (tokens[::-1], others[:1]), (tokens[:1], others[1:])
    indices = [rows.indices(*(pair if source == "query" else pair[::-1])) for pair in pairs]
    row, in_table = (jnp.concatenate([x.reshape(-1) for x in each]) for each in zip(*indices, strict=True))
    picked = jnp.moveaxis(jnp.take(table if table.ndim == 3 else table[:, None], row, axis=0, mode="clip"), 0, 1)
    # A block of tokens meets fewer offsets than all of them. Its last token comes first, for `_on_diagonals`.
    size = next((size for size in range(128, 63, -1) if n % size == 0), n)
    windows = [slice(start, start + size + m - 1) for start in range(n - size, -1, -size)]
    picked = jnp.stack([picked[:, window] for window in windows], axis=1)
    *batch, _, heads, width = content.shape
    blocks = content.reshape(math.prod(batch), len(windows), size, heads, width)[:, :, ::-1].transpose(3, 1, 0, 2, 4)
    heads = heads if len(picked) == 1 else len(picked)
    blocks, picked = (jnp.broadcast_to(x, (heads, *x.shape[1:])) for x in (blocks, picked))
    # One axis of heads and blocks, and one of tokens: XLA:CPU multiplies more slowly with several (JAX 0.12).
    blocks = blocks.reshape(heads * len(windows), math.prod(batch) * size, width)
    picked = picked.reshape(heads * len(windows), size + m - 1, width)
    products = jnp.einsum("snd,srd->snr", blocks, picked, preferred_element_type=compute_dtype(content))
    # Its transpose keeps the cotangents of the products, which XLA would compute once for each of both factors.
    products = separate_loop(products)
    products = products.reshape(heads, len(windows), math.prod(batch), size, size + m - 1)
    if rows.outside != "nearest":
        inside = jnp.stack([in_table[window] for window in windows])[None, :, None, None]
        products = jnp.where(inside, products, rows.fill(products.dtype))
    result = jnp.moveaxis(_on_diagonals(products, m)[..., ::-1, :], 2, 0)  # (batch, heads, blocks, size, m)
    result = result.reshape(*batch, heads, n, m)
    return result if source == "query" else jnp.swapaxes(result, -1, -2)


def _on_diagonals(x: jax.Array, m: int) -> jax.Array:
    """y[a, b] = x[a, a + b] for x (..., n, n + m - 1), read in rows that are longer by one.

    Dai et al., "Transformer-XL", 2019, appendix B.
    """
    *batch, n, width = x.shape
    flat = lax.pad(x.reshape(*batch, n * width), np.zeros((), x.dtype), [*((0, 0, 0) for _ in batch), (0, n, 0)])
    return flat.reshape(*batch, n, width + 1)[..., :m]


def _by_pairs(
    rows: Rows, source: ContentSource, queries: jax.Array, keys: jax.Array, content: jax.Array, table: jax.Array
) -> jax.Array:
    """The tile of any positions: each pair selects its row."""
    row, in_table = rows.indices(queries, keys)
    if source == "key":
        row = jnp.swapaxes(row, -1, -2)
    result = _selected_products(content, table, row)
    if source == "key":
        result = jnp.swapaxes(result, -1, -2)
    if rows.outside == "nearest":
        return result
    return jnp.where(in_table, result, rows.fill(result.dtype))


def _selected_products(content: jax.Array, table: jax.Array, row: jax.Array) -> jax.Array:
    """The products of content (..., n, heads or 1, d) with rows (..., 1, n, m) of the table, (..., heads, n, m)."""
    rows, offsets = table.shape[0], row.shape[-2] + row.shape[-1] - 1
    size = max(offsets, _WINDOW) if isinstance(offsets, int) else rows
    if rows <= size:
        return _products(content, table, row)
    least, most = jnp.min(row, initial=rows), jnp.max(row, initial=0)

    @jax.checkpoint  # otherwise a TPU would store the one-hot matrix, from the branch to its derivative
    def window_products() -> jax.Array:  # if positions are consecutive, one window has all offsets of a tile
        start = jnp.minimum(least, rows - size)
        return _products(content, lax.dynamic_slice_in_dim(table, start, size), jnp.clip(row - start, 0, size - 1))

    in_blocks = functools.partial(_products_in_blocks, content, table, row, size)
    return lax.cond(most - least < size, window_products, in_blocks)


def _products_in_blocks(content: jax.Array, table: jax.Array, row: jax.Array, size: int) -> jax.Array:
    """`_products` as a sum over blocks of `size` rows of the table."""
    starts = np.arange(0, table.shape[0], size, dtype=np.int32)
    missing = len(starts) * size - table.shape[0]
    table = jnp.pad(table, [(0, missing), *[(0, 0)] * (table.ndim - 1)])
    blocks = table.reshape(-1, size, *table.shape[1:])

    @jax.checkpoint
    def block_products(start: Any, block: jax.Array) -> jax.Array:
        row_in_block = row - start
        products = _products(content, block, jnp.clip(row_in_block, 0, size - 1))
        return jnp.where((row_in_block >= 0) & (row_in_block < size), products, np.zeros((), products.dtype))

    def step(total: jax.Array, start_and_block: Any) -> tuple[jax.Array, None]:
        return total + block_products(*start_and_block), None

    return lax.scan(step, block_products(starts[0], blocks[0]), (starts[1:], blocks[1:]))[0]


def _products(content: jax.Array, table: jax.Array, row: jax.Array) -> jax.Array:
    table = table if table.ndim == 3 else table[:, None]
    axes, dtype = "...nhd,rhd->...hnr", compute_dtype(content)
    products = jnp.einsum(axes, content, table, preferred_element_type=dtype)
    # A TPU fuses the one-hot matrix into the product, and is slow at gathers. Other compilers would store the matrix.
    return lax.platform_dependent(products, row, tpu=_select_by_product, default=_select_by_gather)


def _select_by_gather(products: jax.Array, row: jax.Array) -> jax.Array:
    return jnp.take_along_axis(products, row, axis=-1, mode="promise_in_bounds")


def _select_by_product(products: jax.Array, row: jax.Array) -> jax.Array:
    one_hot = row[..., None] == align(np.arange(products.shape[-1], dtype=np.int32), row.ndim + 1)
    axes, precision = "...nr,...nmr->...nm", lax.Precision.HIGHEST
    return jnp.einsum(axes, products, one_hot.astype(products.dtype), precision=precision)


# Arguments


def _parse_content(
    source: ContentSource, content: Any, queries: jax.Array, keys: jax.Array, table: Any
) -> tuple[jax.Array, jax.Array]:
    """Content (..., n, heads or 1, features) at n positions, and its table."""
    tokens, length = ("queries", queries.shape[-1]) if source == "query" else ("keys", keys.shape[-1])
    content = checks.floats(source, content, (..., tokens, "heads", "features"))
    table = checks.floats("table", table, ("rows", "features"), static_axes=(0,))
    shapes = "(rows, heads, features) or (rows, features)"
    require(table.ndim in (2, 3) and 0 not in table.shape[:-1], "table must have shape {}, got {}", shapes, table.shape)
    require(table.shape[0] < 2**30, "table must have fewer than 2³⁰ rows, got {}", table.shape)
    table_heads = table.shape[1] if table.ndim == 3 else 1
    (n, heads, width), leading = content.shape[-3:], content.shape[:-3]
    fits = n == length and width == table.shape[-1] and (heads == table_heads or 1 in (heads, table_heads))
    expected = f"(..., {length}, {'heads' if table_heads == 1 else f'{table_heads} or 1'}, {table.shape[-1]})"
    require(fits, "{} must have shape {}, by {}_positions and table, got {}", source, expected, source, content.shape)
    try:
        jnp.broadcast_shapes(queries.shape[:-1], keys.shape[:-1], leading)
    except ValueError:
        positions = f"positions, {queries.shape[:-1]} and {keys.shape[:-1]}"
        raise invalid(f"the leading axes of {source}, {leading}, must broadcast with those of {positions}") from None
    return content, table


def _check_sharding(
    queries: jax.Array, keys: jax.Array, source: ContentSource, content: jax.Array, table: jax.Array
) -> None:
    """Raises if arguments shard the tile differently, or shard an axis that is summed or looked up."""
    for name, x, axis in (("table", table, 0), ("table", table, -1), (source, content, -1)):
        checks.unsharded(name, x, axis)
    (*batch, row), (*other, column), (*leading, tokens, heads, _) = (
        jax.typeof(x).sharding.spec for x in (queries, keys, content)
    )
    rows_and_columns = (tokens, None) if source == "query" else (None, tokens)
    specs = {
        "query_positions": (*batch, None, row, None),
        "key_positions": (*other, None, None, column),
        source: (*leading, heads, *rows_and_columns),
    }
    if table.ndim == 3:
        specs["table"] = (jax.typeof(table).sharding.spec[1], None, None)
    checks.sharded_together(specs)


def _of_tile_shape(
    queries: jax.Array, keys: jax.Array, content: jax.Array, table: jax.Array, source: ContentSource
) -> list[Any]:
    """The arguments with axes like the tile's, (..., heads, queries, keys), to show how each shards it."""
    ndim = max(queries.ndim + 2, keys.ndim + 2, content.ndim)
    by_head = jnp.moveaxis(content[..., :1], -3, -1 if source == "key" else -2)
    tiles = [queries[..., None, :, None], keys[..., None, None, :], by_head]
    if table.ndim == 3:
        tiles.append(table[0, :, :1, None])
    return [align(x, ndim) for x in tiles]


def parse_rows(count: int, first: Any, max_distance: Any, out_of_range: Any) -> Rows:
    """The offsets or buckets of `count` rows."""
    out_of_range = checks.one_of("out_of_range", out_of_range, ("error", "nan", "zeros", "nearest"))
    if max_distance is None:
        if first is None:
            require(count % 2, "first must be given for a table with an even number of rows, {}, got None", count)
            first = -(count // 2)
        first = checks.integer("first", first)
        require(abs(first) <= 2**30, "first must be from -2³⁰ to 2³⁰, got {}", first)
        return Rows(count, first, (), "nan" if out_of_range == "error" else out_of_range)
    require(first is None, "first must not be given with max_distance, got {!r:.60}", first)
    require(out_of_range == "error", "out_of_range must not be given with max_distance, got {!r}", out_of_range)
    message = "table must have an even number of rows, from 8 to 2¹², with max_distance, got {}"
    require(count % 2 == 0 and 8 <= count <= 2**12, message, count)
    span, max_distance = count // 2, checks.integer("max_distance", max_distance)
    message = "max_distance must be above {} for a table of {} rows, got {}"
    require(max_distance > span // 2 + 1, message, span // 2 + 1, count, max_distance)
    return Rows(count, -span, _edges(span, max_distance), "nearest")


def _check_reach(queries: Any, keys: Any, rows: Rows) -> None:
    """Raises if all positions are concrete, and a query and a key are further apart than the table reaches."""
    if not checks.is_concrete(queries, keys) or not queries.size or not keys.size:
        return
    queries, keys = (np.asarray(x, np.int64) for x in (queries, keys))
    least, most = (queries.min(-1) - keys.max(-1)).min(), (queries.max(-1) - keys.min(-1)).max()
    last = rows.first + rows.number - 1
    message = "query_positions and key_positions must differ by {} to {} for this table, got {} to {}"
    require(rows.first <= least and most <= last, message, rows.first, last, least, most)
