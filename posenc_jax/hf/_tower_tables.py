"""The learned table of a vision tower: how its rows reach the patches of an image."""

from __future__ import annotations

from typing import Any, get_args

import jax
import numpy as np

from posenc_jax._encodings.learned import resize_table
from posenc_jax._jax import checks
from posenc_jax._jax.errors import invalid, require
from posenc_jax._jax.workarounds import compiled
from posenc_jax.hf._patches import PatchGrid, patch_indices
from posenc_jax.hf._towers import TowerTable

TABLES: tuple[TowerTable, ...] = get_args(TowerTable)

# These equal the tower's code, which is `interpolate`, `grid_sample` or a weighted sum of rows.
_LINEAR: dict[str, Any] = {"method": "linear", "antialias": False}
RESAMPLING: dict[str, dict[str, Any]] = {
    "linear": _LINEAR,
    "linear_aligned": _LINEAR | {"align_corners": True},
    "torch_cubic": {"method": "torch_cubic", "antialias": False},
}
_OTHERS = {
    "linear_zeros_exchanged": "resizes its table to (width, height)",
    "tiled": "repeats its table",
    "by_coordinate": "adds a row for the column and a row for the row",
    "fixed": "has a row for each patch, and takes no other grid",
}


def resampling_of(table: TowerTable) -> dict[str, Any] | None:
    """The settings of `resize_table`, or None without a table; raises if the tower does something else."""
    if table == "none":
        return None
    _check_known(table)
    message = "table must be one that resize_table alone resizes, but this tower {}; use table_rows"
    require(table in RESAMPLING, message, _OTHERS.get(table))
    return {**RESAMPLING[table]}


def rows_of(method: TowerTable, grid: PatchGrid, table: Any, shape: Any) -> jax.Array:
    """The rows of an image's or video's patches, (patches, dim), in the tower's order."""
    _check_known(method)
    require(method != "none", "table must be left out: this tower has no learned table")
    axes = ("2", "positions", "dim") if method == "by_coordinate" else ("rows", "columns", "dim")
    table = checks.floats("table", table, axes)
    fits = table.ndim == 3 and 0 not in table.shape[:2] and (method != "by_coordinate" or table.shape[0] == 2)
    require(fits, "table must have shape {}, got {}", f"({', '.join(axes)})", table.shape)
    checks.unsharded("table", table, 0)
    checks.unsharded("table", table, 1)
    height, width, row, column = patch_indices(grid, shape)
    if method == "by_coordinate":
        longest = max(height, width)
        require(longest <= table.shape[1], "table of {} positions is too small for {}", table.shape[1], shape)
    same = method != "fixed" or table.shape[:2] == (height, width)
    require(same, "table of {} rows and columns must be of the grid {}", table.shape[:2], (height, width))
    row, column = (checks.on_device(x.astype(np.int32)) for x in (row, column))
    return _rows_of(table, row, column, method=method, size=(height, width))


@compiled("table_rows", static_argnames=("method", "size"))
def _rows_of(
    table: jax.Array, row: jax.Array, column: jax.Array, *, method: TowerTable, size: tuple[int, int]
) -> jax.Array:
    if method == "by_coordinate":
        return table[0, column] + table[1, row]
    if method == "tiled":
        return table[row % table.shape[0], column % table.shape[1]]
    if method == "linear_zeros_exchanged":
        table = resize_table(table, size[::-1], zeros_outside=True, **_LINEAR).reshape(*size, -1)
    elif method != "fixed":
        table = resize_table(table, size, **RESAMPLING[method])
    return table[row, column]


def _check_known(table: TowerTable) -> None:
    if table == "unknown":
        raise invalid("table is not known: this plan does not say how its tower resizes a learned table, if any")
