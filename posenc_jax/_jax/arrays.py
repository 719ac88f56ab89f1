"""The array inside an object, and the rank and the dtype in which arrays are computed."""

from __future__ import annotations

from typing import Any

import numpy as np


def unwrap_array(x: Any) -> Any:
    """The array that an object with `__jax_array__` holds, such as an `nnx.Param`; any other value as it is."""
    convert = getattr(x, "__jax_array__", None)  # tracers have it, and it is None
    return x if convert is None else convert()


def align(x: Any, ndim: int) -> Any:
    """Prepends axes of size 1 to x up to rank `ndim`, as jax_numpy_rank_promotion="raise" requires."""
    return x.reshape((1,) * (ndim - x.ndim) + x.shape)


def compute_dtype(*arrays: Any) -> Any:
    """float64 if one of the arrays is, else float32."""
    return np.float64 if any(x.dtype == np.float64 for x in arrays) else np.float32
