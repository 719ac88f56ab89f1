"""What a failure of `assert_within` says, and what it lets pass."""

import numpy as np
import pytest

from helpers.closeness import assert_within


def test_a_failure_says_how_far_where_and_against_what():
    want = np.zeros((2, 3))
    got = want + [[0, 1e-8, 0], [0, 0, -2e-6]]
    with pytest.raises(AssertionError) as error:
        assert_within(got, want, 1e-7, against="mpmath at 40 digits")
    assert str(error.value) == (
        "largest error 2e-06, bound 1e-07 at [1, 2]: got -2e-06, mpmath at 40 digits 0.0; 1 of 6 elements are beyond the bound"
    )


@pytest.mark.parametrize(
    ("got", "want", "bound"),
    [
        (np.nan, 0.0, np.inf),
        (0.0, np.nan, 1.0),
        (np.inf, 0.0, 1e300),
        (np.inf, -np.inf, 1.0),
        (1 + 1e-3j, 1.0, 1e-4),
        (np.float32([1, 1]), np.float32([1]), 1.0),  # no broadcasting
        ([1.0, 2.0], [1.1, 2.0], [0.01, 1.0]),
    ],
)
def test_what_is_beyond(got, want, bound):
    with pytest.raises(AssertionError):
        assert_within(got, want, bound)


def test_what_is_within():
    assert_within([np.nan, np.inf, -np.inf, 1.0], [np.nan, np.inf, -np.inf, 1.1], 0.11)
    assert_within([1.0, 2.0], [1.5, 2.0], [0.5, 0])
    assert_within(np.zeros(0), np.zeros(0), 0)
