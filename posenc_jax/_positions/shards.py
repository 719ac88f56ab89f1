r"""Positions in the shards of a sequence."""

from __future__ import annotations

import functools
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from posenc_jax._jax import checks, sharding
from posenc_jax._jax.errors import public, require
from posenc_jax._jax.workarounds import compiled
from posenc_jax._positions.sequences import LIMIT, document_ends, document_starts, document_stops, parse_lengths


@public
def shard_positions(
    length: int,
    shards: int,
    *,
    order: Literal["contiguous", "zigzag", "striped"] = "contiguous",
    lengths: ArrayLike | None = None,
) -> jax.Array:
    """The indices of the tokens in each shard of a sequence, for context parallelism and ring attention.

    With the sequence split into chunks $c_0, c_1, …$ of equal length, shard $s$ of $n$ has

    - "contiguous": chunk $c_s$ of $n$ chunks;
    - "zigzag": chunks $c_s$ and $c_{2n-1-s}$ of $2n$ chunks, which gives every shard the same work in causal attention;
    - "striped": tokens $s, s + n, s + 2n, …$, which also spreads the work.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> pe.shard_positions(8, 2).tolist()
      [[0, 1, 2, 3], [4, 5, 6, 7]]
      >>> pe.shard_positions(8, 2, order="zigzag").tolist()
      [[0, 1, 6, 7], [2, 3, 4, 5]]
      >>> pe.shard_positions(8, 2, order="striped").tolist()
      [[0, 2, 4, 6], [1, 3, 5, 7]]

      For a pack of two documents, the indices, and the positions within each document:

      >>> lengths = jnp.array([4, 8])
      >>> indices = pe.shard_positions(12, 2, order="zigzag", lengths=lengths)
      >>> indices.tolist()
      [[0, 3, 4, 5, 10, 11], [1, 2, 6, 7, 8, 9]]
      >>> pe.positions_from_lengths(lengths, 12)[indices].tolist()
      [[0, 3, 0, 1, 6, 7], [1, 2, 2, 3, 4, 5]]

    Args:
      length: the length of the whole sequence.
      shards: $n$, the number of shards.
      order: "contiguous", "zigzag" or "striped", as above.
      lengths: the lengths of the documents of a pack, integer array of shape (..., documents), which sum to at most
        `length`. Each document, and the padding after the last one, is then split separately, as in Transformer Engine
        and Megatron: a shard holds its chunks of the first document, then its chunks of the second, and so on.

    Returns:
      An int32 array of shape (shards, length / shards), or (..., shards, length / shards) with lengths. It contains
      every index once. Without lengths, the indices are also the positions.

    Raises:
      TypeError: if length or shards is not an integer, or lengths are not an integer array.
      ValueError: if length or shards is below 1, if length is 2³¹ or more or not a multiple of shards (of 2·shards for
        "zigzag"), if concrete lengths are not such multiples, are negative or sum to more than length, or if order is
        unknown.

    Notes:
      - `x[indices.reshape(-1)]` puts a sequence x into this order, and `y[jnp.argsort(indices.reshape(-1))]` restores
        it. If lengths have leading axes, every pack has its own indices, for `jnp.take_along_axis`.
      - Inside `jax.shard_map` over an axis "context", index with `indices[jax.lax.axis_index("context")]`, which
        computes that row alone. Or pass the indices as an argument that is split along its first axis.
      - Traced lengths cannot raise. If the lengths of a pack do not fit, it is ordered as if it were a single document.
        Attention is still correct, but its work is balanced differently.

    Reference:
      Liu et al., "Ring Attention", 2023; Brandon et al., "Striped Attention", 2023, section 3; zigzag as in Llama 3,
      Grattafiori et al., 2024, section 3.3.2; packs as in Transformer Engine's `thd_get_partitioned_indices`.
    """
    checks.one_of("order", order, ("contiguous", "zigzag", "striped"))
    length, shards = checks.positive_int("length", length), checks.positive_int("shards", shards)
    multiple = f"2·shards = {2 * shards} for order='zigzag'" if order == "zigzag" else f"shards = {shards}"
    chunks = 2 * shards if order == "zigzag" else shards
    require(length % chunks == 0, "length must be a multiple of {}, got {}", multiple, length)
    require(length < LIMIT, "length must be below 2³¹, got {}", length)
    if lengths is not None:
        lengths = parse_lengths(lengths, "length", length, chunks, multiple)
    return _shard_positions(lengths, length=length, shards=shards, order=order)


@compiled("shard_positions", static_argnames=("length", "shards", "order"))
def _shard_positions(lengths: jax.Array | None, *, length: int, shards: int, order: str) -> jax.Array:
    # Computed from the index alone, so that indexing by device compiles to one row.
    shard_length = length // shards
    start, stop, batch = 0, shard_length, ()
    if lengths is not None:
        chunks, batch = 2 * shards if order == "zigzag" else shards, lengths.shape[:-1]
        bounds = functools.partial(_document_bounds, length=length, shards=shards, chunks=chunks)
        start, stop = (x[..., None, :] for x in sharding.sharded_as(([lengths], [lengths]), bounds, lengths))
    shape = (*batch, shards, shard_length)
    shard, index = (lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (len(batch), len(batch) + 1))
    size, offset = stop - start, index - start
    if order == "contiguous":
        return shards * start + size * shard + offset
    if order == "striped":
        return shards * index + shard
    half = size // 2
    return shards * start + offset + jnp.where(offset < half, half * shard, half * (2 * shards - 2 - shard))


def _document_bounds(lengths: jax.Array, length: int, shards: int, chunks: int) -> tuple[jax.Array, jax.Array]:
    """The start and stop, in a shard, of the document at each index; of one document if the lengths do not fit."""
    ends, shard_length = document_ends(lengths), length // shards
    fits = ((lengths >= 0) & (lengths % chunks == 0) & (ends <= length)).all(-1, keepdims=True)
    ends = jnp.where(fits, ends // shards, shard_length)
    return document_starts(ends, shard_length), document_stops(ends, shard_length)
