"""`assert_within` fails on a difference beyond the bound, on NaN and on another shape, and says where.

NaN and infinities match themselves alone.
"""

import numpy as np
import pytest

from helpers.closeness import assert_within

INFINITE = [np.nan, np.inf, -np.inf]


def test_a_failure_says_how_far_and_where():
    want = np.zeros((2, 3))
    with pytest.raises(
        AssertionError, match=r"2e-06, bound 1e-07 at \[1, 2\]: got -2e-06, mpmath 0.0; 1 of 6 elements"
    ):
        assert_within(want + [[0, 1e-8, 0], [0, 0, -2e-6]], want, 1e-7, against="mpmath")


@pytest.mark.parametrize(
    ("got", "want", "bound"),
    [
        (np.nan, 0, np.inf),
        (0, np.nan, 1),
        (np.inf, -np.inf, 1),
        (np.ones(2), np.ones(1), 1),
        ([1.0, 2.0], [1.1, 2.0], [0.01, 1.0]),
    ],
)
def test_a_difference_beyond_the_bound_fails(got, want, bound):
    with pytest.raises(AssertionError):
        assert_within(got, want, bound)


def test_a_difference_within_the_bound_passes():
    assert_within([*INFINITE, 1.0], [*INFINITE, 1.1], 0.11)
