"""Distances between positions.

- Distances of integers are exact up to 2³² − 1, as unsigned integers; `tile_distance` rounds them to float32.
- The distance of an int32 or float32 from a float32 is float32.
- A tile of distances, and a parameter per head beside it, have an axis for heads.
"""

import jax
import numpy as np
import pytest

from posenc_jax._numerics import distances

ENDS = np.int32([0, 7, -7, 2**31 - 1, -(2**31)])


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.uint8])
def test_a_difference_of_integers_is_exact(dtype):
    a = ENDS.astype(dtype)
    size, less = jax.jit(distances.difference)(a[:, None], a[None])
    exact = a.astype(object)[:, None] - a.astype(object)
    assert size.dtype == f"uint{8 * a.itemsize}"
    np.testing.assert_array_equal(size, np.abs(exact))
    np.testing.assert_array_equal(less, exact < 0)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_a_difference_from_a_float32_is_float32(dtype):
    size, less = jax.jit(distances.difference)(np.array([3, 5], dtype), np.float32([3.5, 4.25]))
    assert size.dtype == np.float32
    np.testing.assert_array_equal(size, [0.5, 0.75])
    np.testing.assert_array_equal(less, [True, False])


def test_a_tile_has_an_axis_of_heads_and_its_distance_is_rounded_to_float32():
    queries, keys = ENDS[:4].reshape(2, 2), ENDS[:3]
    both = jax.jit(lambda *at: (*distances.tile_difference(*at), distances.tile_distance(*at)))
    distance, after, rounded = both(queries, keys)
    exact = queries.astype(object)[:, None, :, None] - keys.astype(object)
    np.testing.assert_array_equal(distance, np.abs(exact))
    np.testing.assert_array_equal(after, exact < 0)
    assert rounded.dtype == np.float32
    np.testing.assert_array_equal(rounded, np.abs(exact).astype(np.float32))


def test_a_parameter_per_head_lies_along_the_axis_of_heads_of_a_tile():
    tile = np.zeros((2, 1, 2, 3), np.float32)  # batch, heads, queries, keys
    shaped = jax.eval_shape(distances.per_head, np.float16([1, 2]), tile)
    assert shaped.shape == (1, 2, 1, 1) and shaped.dtype == np.float32
