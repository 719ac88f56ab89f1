"""Parses the arguments of biases: the positions of a tile of scores, and parameters per head."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posenc_jax._jax import checks
from posenc_jax._jax.checks import Kind
from posenc_jax._jax.errors import invalid, require, wrong_type


def parse_tile(
    queries: Any, keys: Any, kind: Kind = checks.POSITIONS, what: str = "positions"
) -> tuple[jax.Array, jax.Array]:
    """Positions or segments (..., queries) and (..., keys), of one dtype if they are integers."""
    names = f"query_{what}", f"key_{what}"
    queries, keys = (checks.array(n, x, kind) for n, x in zip(names, (queries, keys), strict=True))
    for name, x, axis in zip(names, (queries, keys), ("queries", "keys"), strict=True):
        require(x.ndim, "{} must have shape (..., {}), got ()", name, axis)
    if what == "positions":
        check_no_coordinates(names[0], queries)
        check_no_coordinates(names[1], keys)
    try:
        jnp.broadcast_shapes(queries.shape[:-1], keys.shape[:-1])
    except ValueError:
        both = f"{names[0]}, shape {queries.shape}, and {names[1]}, shape {keys.shape}"
        raise invalid(f"the leading axes of {both}, must broadcast") from None
    check_tile_sharded_together(queries, keys, {}, what)
    integers = all(jnp.issubdtype(x.dtype, jnp.integer) for x in (queries, keys))
    return to_common_dtype(names, queries, keys) if integers else (queries, keys)


def to_common_dtype(names: tuple[str, str], a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two arrays of integers, in their common dtype."""
    common = np.promote_types(a.dtype, b.dtype)
    if common.kind == "f" or jax.dtypes.canonicalize_dtype(common) != common:
        both = f"{names[0]} of {a.dtype} and {names[1]} of {b.dtype}"
        raise wrong_type(f"{both} have no common dtype here; pass int32")
    return a.astype(common), b.astype(common)


def check_no_coordinates(name: str, x: Any) -> None:
    """Raises if concrete positions (..., 2 or 3) are all points of a grid; a batch of short sequences never is one."""
    if not checks.is_concrete(x) or x.ndim < 2 or x.shape[-1] not in (2, 3):
        return
    rows = np.unique(np.asarray(x).reshape(-1, x.shape[-1]), axis=0)
    sizes = [len(np.unique(column)) for column in rows.T]
    grid = len(rows) == math.prod(sizes) and sum(n > 1 for n in sizes) > 1
    message = (
        "{} must be one number for each token, (..., tokens), got the coordinates of a grid, {}; bias each by itself"
    )
    require(not grid, message, name, x.shape)


def check_tile_sharded_together(
    queries: jax.Array, keys: jax.Array, per_head: dict[str, jax.Array], what: str = "positions", axes: int = 0
) -> None:
    """Raises if positions (..., tokens), with `axes` axes more, and arrays (..., heads) shard a tile differently."""
    (*batch, row), (*other, column) = (jax.typeof(x).sharding.spec[: x.ndim - axes] for x in (queries, keys))
    specs = {f"query_{what}": (*batch, None, row, None), f"key_{what}": (*other, None, None, column)}
    heads = {name: (jax.typeof(x).sharding.spec[-1], None, None) for name, x in per_head.items()}
    checks.sharded_together(specs | heads)


def parse_per_head(positions: tuple[jax.Array, jax.Array], **arrays: Any) -> list[jax.Array]:
    """Arrays (heads,) of one shape, whose shardings agree with the positions of a tile."""
    arrays = {name: checks.floats(name, x, ("heads",)) for name, x in arrays.items()}
    first, shape = next((name, x.shape) for name, x in arrays.items())
    for name, x in arrays.items():
        require(x.ndim == 1 and x.size, "{} must have shape (heads,), got {}", name, x.shape)
        require(x.shape == shape, "{} of shape {} must match {}, shape {}", name, x.shape, first, shape)
    check_tile_sharded_together(*positions, arrays)
    return list(arrays.values())
