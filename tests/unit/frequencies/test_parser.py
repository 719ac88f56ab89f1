"""How functions of vectors (here `rotary`, `add_sinusoidal`, `shift`) take frequencies and positions.

- Frequencies are a width, `Frequencies`, or an array of ω. With several axes, one number may stand for equal
  coordinates.
- Positions broadcast to the vectors. Ambiguous shapes, and one position for a whole sequence, raise.
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
POSITIONS = np.int32([[0, 3, 70, 9, 1], [5, 4, 3, 2, 2**31 - 1]])
TWO_AXES = pe.axial(8, 2)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_an_array_of_two_axes_adds_the_angles_of_both_coordinates(layout):
    omega, positions = np.float32([[1, 0.5, 0.1, 0], [0.3, 0, 2, -1]]), np.stack([POSITIONS, POSITIONS[::-1]], -1)
    got = jax.jit(lambda x, w: pe.rotary(x, positions, w, head_axis=None, layout=layout))(X, omega)
    angles = [np.arctan2(*waves(positions[..., axis], omega[axis].tolist())) for axis in range(2)]
    want = rotations.rotate(X, np.sin(sum(angles)), np.cos(sum(angles)), layout)
    assert_within(got, want, 2e-6, against="mpmath")


def test_one_number_may_stand_for_equal_coordinates():
    want = pe.add_sinusoidal(X, np.stack([POSITIONS, POSITIONS], -1), TWO_AXES)
    np.testing.assert_array_equal(pe.add_sinusoidal(X, POSITIONS[..., None], TWO_AXES), want)


def test_positions_default_to_a_range_and_an_offset_broadcasts():
    np.testing.assert_array_equal(*jax.jit(lambda x: (pe.add_sinusoidal(x), pe.add_sinusoidal(x, np.arange(5))))(X))
    np.testing.assert_array_equal(*jax.jit(lambda x: (pe.shift(x, 3, 8), pe.shift(x, np.full((2, 5), 3), 8)))(X))


ONE = "positions must not be one for all 5 vectors of x, got shape"
LAST = "positions must have a last axis of size 2, one coordinate for each axis of the frequencies, got shape"


@pytest.mark.parametrize(
    ("x", "positions", "frequencies", "error", "match"),
    [
        (X, POSITIONS, True, TypeError, "frequencies must be Frequencies, an integer width or a float array"),
        (X, POSITIONS, -1, ValueError, "frequencies (a width) must be at least 0"),
        (X, POSITIONS, np.arange(4), TypeError, "frequencies must be a float array"),
        (X, POSITIONS, np.ones((2, 2), np.float32), ValueError, "frequencies as an array must have shape (num_pairs,)"),
        (X[0, 0], None, None, ValueError, "positions must be given where x has no sequence axis"),
        (X, None, TWO_AXES, ValueError, "positions must be given for frequencies of 2 axes"),
        (X[:, :1], None, None, ValueError, "positions must be given where x holds one token"),
        (X, np.int32(3), None, ValueError, f"{ONE} (): if they share it, use jnp.broadcast_to(positions, (2, 5))"),
        (X, POSITIONS[:, :1], None, ValueError, f"{ONE} (2, 1)"),
        (X, 8, None, ValueError, f"{ONE} (): if they share it, use jnp.broadcast_to(positions, (2, 5)); for a width"),
        (
            X,
            POSITIONS[:1, :1, None],
            TWO_AXES,
            ValueError,
            f"{ONE} (1, 1, 2): if they share it, use jnp.broadcast_to(positions, (2, 5, 2)",
        ),
        (X, POSITIONS[:, :4], None, ValueError, "positions of shape (2, 4) must broadcast to x without its last axis"),
        (X, POSITIONS[..., None].repeat(3, -1), TWO_AXES, ValueError, f"{LAST} (2, 5, 3)"),
        (
            X,
            POSITIONS[:, None, :3].repeat(2, 1),
            TWO_AXES,
            ValueError,
            f"{LAST} (2, 2, 3); pass positions[..., None] if all",
        ),
        (X[:, :2], POSITIONS[:, :2], TWO_AXES, ValueError, "positions of shape (2, 2) must have 3 axes"),
        (
            X[:1, :2].repeat(3, 0),
            POSITIONS[:, None, :2].repeat(3, 1),
            TWO_AXES,
            ValueError,
            "positions of shape (2, 3, 2) must have the axis of coordinates last",
        ),
    ],
)
def test_invalid_arguments_raise(x, positions, frequencies, error, match):
    with pytest.raises(error, match="^add_sinusoidal: " + re.escape(match)):
        pe.add_sinusoidal(x, positions, frequencies)


def test_an_offset_of_each_vector_must_broadcast():
    with pytest.raises(ValueError, match=r"^shift: offset of shape \(2, 4\) must broadcast to encodings without"):
        pe.shift(X, POSITIONS[:, :4], 8)
