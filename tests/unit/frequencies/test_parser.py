"""Frequencies and positions as functions of vectors take them.

- Frequencies are a width, `Frequencies`, or an array of ω; with several axes, equal coordinates may be one.
- Positions broadcast to the vectors; what could be meant in two ways, and one position for a whole sequence, raises.
"""

import re

import jax
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_within
from oracles import rotations
from oracles.encodings import waves

X = np.random.default_rng(0).normal(size=(2, 5, 8)).astype(np.float32)
AT = np.int32([[0, 3, 70, 9, 1], [5, 4, 3, 2, 2**31 - 1]])
TWO = pe.axial(8, 2)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_an_array_of_two_axes_adds_the_angles_of_both_coordinates(layout):
    omega, at = np.float32([[1, 0.5, 0.1, 0], [0.3, 0, 2, -1]]), np.stack([AT, AT[::-1]], -1)
    got = jax.jit(lambda x, w: pe.rotary(x, at, w, head_axis=None, layout=layout))(X, omega)
    angles = [np.arctan2(*waves(at[..., axis], omega[axis].tolist())) for axis in range(2)]
    want = rotations.rotate(X, np.sin(sum(angles)), np.cos(sum(angles)), layout)
    assert_within(got, want, 2e-6, against="mpmath")


def test_equal_coordinates_may_be_one():
    want = pe.add_sinusoidal(X, np.stack([AT, AT], -1), TWO)
    np.testing.assert_array_equal(pe.add_sinusoidal(X, AT[..., None], TWO), want)


def test_counted_positions_are_those_of_a_range():
    np.testing.assert_array_equal(*jax.jit(lambda x: (pe.add_sinusoidal(x), pe.add_sinusoidal(x, np.arange(5))))(X))
    np.testing.assert_array_equal(*jax.jit(lambda x: (pe.shift(x, 3, 8), pe.shift(x, np.full((2, 5), 3), 8)))(X))


ONE = "positions must not be one for all 5 vectors of x, got shape"
LAST = "positions must have a last axis of size 2, one coordinate for each axis of the frequencies, got shape"


@pytest.mark.parametrize(
    ("x", "positions", "frequencies", "error", "match"),
    [
        (X, AT, True, TypeError, "frequencies must be Frequencies, an integer width or a float array"),
        (X, AT, -1, ValueError, "frequencies (a width) must be at least 0"),
        (X, AT, np.arange(4), TypeError, "frequencies must be a float array"),
        (X, AT, np.ones((2, 2), np.float32), ValueError, "frequencies as an array must have shape (num_pairs,)"),
        (X[0, 0], None, None, ValueError, "positions must be given where x has no sequence axis"),
        (X, None, TWO, ValueError, "positions must be given for frequencies of 2 axes"),
        (X[:, :1], None, None, ValueError, "positions must be given where x holds one token"),
        (X, np.int32(3), None, ValueError, f"{ONE} (): if they share it, use jnp.broadcast_to(positions, (2, 5))"),
        (X, AT[:, :1], None, ValueError, f"{ONE} (2, 1)"),
        (X, 8, None, ValueError, f"{ONE} (): if they share it, use jnp.broadcast_to(positions, (2, 5)); for a width"),
        (
            X,
            AT[:1, :1, None],
            TWO,
            ValueError,
            f"{ONE} (1, 1, 2): if they share it, use jnp.broadcast_to(positions, (2, 5, 2)",
        ),
        (X, AT[:, :4], None, ValueError, "positions of shape (2, 4) must broadcast to x without its last axis"),
        (X, AT[..., None].repeat(3, -1), TWO, ValueError, f"{LAST} (2, 5, 3)"),
        (X, AT[:, None, :3].repeat(2, 1), TWO, ValueError, f"{LAST} (2, 2, 3); pass positions[..., None] if all"),
        (X[:, :2], AT[:, :2], TWO, ValueError, "positions of shape (2, 2) must have 3 axes"),
        (
            X[:1, :2].repeat(3, 0),
            AT[:, None, :2].repeat(3, 1),
            TWO,
            ValueError,
            "positions of shape (2, 3, 2) must have the axis of coordinates last",
        ),
    ],
)
def test_arguments_that_raise(x, positions, frequencies, error, match):
    with pytest.raises(error, match="^add_sinusoidal: " + re.escape(match)):
        pe.add_sinusoidal(x, positions, frequencies)


def test_an_offset_of_each_vector_must_broadcast():
    with pytest.raises(ValueError, match=r"^shift: offset of shape \(2, 4\) must broadcast to encodings without"):
        pe.shift(X, AT[:, :4], 8)
