"""Two assertions about arrays: that errors stay within a bound, and that results are rounded once.

Where an error exceeds its bound, the message gives the largest error, its place, and what was compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def assert_within(got: Any, want: Any, bound: Any, *, against: str = "expected") -> None:
    """Asserts |got − want| ≤ bound everywhere; NaN and infinities match themselves alone.

    `bound` is a number or an array that broadcasts to both; `against` names where `want` comes from.
    """
    __tracebackhide__ = True
    got, want = (np.asarray(x) for x in (got, want))
    assert got.shape == want.shape, f"shape {got.shape}, {against}: {want.shape}"
    wide = np.complex128 if np.iscomplexobj(got) or np.iscomplexobj(want) else np.float64
    got, want = got.astype(wide), want.astype(wide)
    with np.errstate(invalid="ignore"):
        error = np.where((got == want) | (np.isnan(got) & np.isnan(want)), 0, np.abs(got - want))
    bound = np.broadcast_to(np.asarray(bound, np.float64), got.shape)
    beyond = ~(error <= bound)  # so NaN is beyond any bound
    if not beyond.any():
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        # how many times its bound each error is
        times = np.where(beyond, np.nan_to_num(error / bound, nan=np.inf, posinf=np.inf), 0)
    worst = np.unravel_index(np.argmax(times), got.shape)
    place = f" at [{', '.join(map(str, worst))}]" if worst else ""
    raise AssertionError(
        f"largest error {error[worst]:.3g}, bound {bound[worst]:.3g}{place}: got {got[worst]}, {against} {want[worst]}"
        f"; {np.count_nonzero(beyond)} of {got.size} elements are beyond the bound"
    )


def assert_rounded_once(f: Callable[..., Any], *narrow: Any) -> None:
    """Asserts that f of 16-bit arrays is f of the same values in float32, rounded to 16 bits at the end."""
    both = jax.jit(lambda *inputs: [jax.tree.leaves(f(*arrays)) for arrays in inputs])
    got, wide = jax.device_get(both(narrow, [x.astype(np.float32) for x in narrow]))
    for y, want in zip(got, wide, strict=True):
        assert want.dtype == np.float32
        np.testing.assert_array_equal(y, want.astype(narrow[0].dtype), strict=True)
