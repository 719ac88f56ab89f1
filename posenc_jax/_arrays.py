"""The rank and the dtype in which arrays are computed."""

from __future__ import annotations

from typing import Any

import numpy as np


def align(x: Any, ndim: int) -> Any:
    """Prepends axes of size 1 to x up to rank `ndim`, as jax_numpy_rank_promotion="raise" requires."""
    return x.reshape((1,) * (ndim - x.ndim) + x.shape)


def compute_dtype(*arrays: Any) -> Any:
    """float64 if one of the arrays is, else float32."""
    return np.float64 if any(x.dtype == np.float64 for x in arrays) else np.float32
