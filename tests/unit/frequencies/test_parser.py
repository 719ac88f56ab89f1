"""What `rotary`, `add_sinusoidal` and `shift` take as frequencies and as positions of vectors x, and what raises.

- Frequencies are a width, `Frequencies`, or an array of ω. Where they have several axes, a position whose coordinates
  are equal may be one number.
- Positions broadcast to the vectors. Ambiguous shapes, and one position for a whole sequence, raise (errors are tested
  on `add_sinusoidal`).
"""

import re

import jax
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_within
from oracles import rotations
from oracles.encodings import waves
from posenc_jax._frequencies.parser import check_energy

X = np.random.default_rng(0).normal(size=(2, 5, 8)).astype(np.float32)
POSITIONS = np.int32([[0, 3, 70, 9, 1], [5, 4, 3, 2, 2**31 - 1]])
TWO_AXES = pe.axial(8, 2)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_frequencies_of_two_axes_turn_a_pair_by_the_sum_of_both_angles(layout):
    omega, positions = np.float32([[1, 0.5, 0.1, 0], [0.3, 0, 2, -1]]), np.stack([POSITIONS, POSITIONS[::-1]], -1)
    got = jax.jit(lambda x, w: pe.rotary(x, positions, w, head_axis=None, layout=layout))(X, omega)
    angles = [np.arctan2(*waves(positions[..., axis], omega[axis].tolist())) for axis in range(2)]
    want = rotations.rotate(X, np.sin(sum(angles)), np.cos(sum(angles)), layout)
    assert_within(got, want, 2e-6, against="mpmath")


def test_an_array_may_have_one_axis_and_one_head_but_not_none():
    x, omega = X[:, :, None], np.float32([1, 0.5, 0.1, 0])
    want = pe.rotary(x, POSITIONS, omega, head_axis=-2)
    for shape in (1, 4), (1, 1, 4):
        np.testing.assert_array_equal(pe.rotary(x, POSITIONS, omega.reshape(shape), head_axis=-2), want)
    with pytest.raises(ValueError, match=r"^rotary: frequencies as an array must have shape .*, got \(0, 1, 4\)"):
        pe.rotary(x, POSITIONS, np.ones((0, 1, 4), np.float32), head_axis=-2)


def test_a_position_may_be_one_number_if_its_coordinates_are_equal():
    want = pe.add_sinusoidal(X, np.stack([POSITIONS, POSITIONS], -1), TWO_AXES)
    np.testing.assert_array_equal(pe.add_sinusoidal(X, POSITIONS[..., None], TWO_AXES), want)


def test_positions_left_out_are_0_1_and_so_on_and_one_offset_serves_all_vectors():
    # each pair: the short form, and the same written out
    np.testing.assert_array_equal(*jax.jit(lambda x: (pe.add_sinusoidal(x), pe.add_sinusoidal(x, np.arange(5))))(X))
    np.testing.assert_array_equal(*jax.jit(lambda x: (pe.shift(x, 3, 8), pe.shift(x, np.full((2, 5), 3), 8)))(X))


ONE_FOR_ALL = "positions must not be one for all 5 vectors of x, got shape"
SHARED = f"{ONE_FOR_ALL} (): if they share it, use jnp.broadcast_to(positions, (2, 5))"
LAST_AXIS = "positions must have a last axis of size 2, one coordinate for each axis of the frequencies, got shape"


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
        (X, np.int32(3), None, ValueError, SHARED),
        (X, POSITIONS[:, :1], None, ValueError, f"{ONE_FOR_ALL} (2, 1)"),
        (X, 8, None, ValueError, f"{SHARED}; for a width"),  # a width where positions belong
        (
            X,
            POSITIONS[:1, :1, None],
            TWO_AXES,
            ValueError,
            f"{ONE_FOR_ALL} (1, 1, 2): if they share it, use jnp.broadcast_to(positions, (2, 5, 2))",
        ),
        (X, POSITIONS[:, :4], None, ValueError, "positions of shape (2, 4) must broadcast to x without its last axis"),
        (
            X,
            POSITIONS[..., None].repeat(3, -1),
            TWO_AXES,
            ValueError,
            f"{LAST_AXIS} (2, 5, 3); pass positions[..., None] if all coordinates are equal, as in text, or",
        ),
        (X[:, :2], POSITIONS[:, :2], TWO_AXES, ValueError, "positions of shape (2, 2) must have 3 axes"),
        (  # coordinates first
            X[:1, :2].repeat(3, 0),
            POSITIONS[:, None, :2].repeat(3, 1),
            TWO_AXES,
            ValueError,
            "positions of shape (2, 3, 2) must have the axis of coordinates last",
        ),
    ],
)
def test_add_sinusoidal_names_what_is_wrong(x, positions, frequencies, error, match):
    with pytest.raises(error, match="^add_sinusoidal: " + re.escape(match)):
        pe.add_sinusoidal(x, positions, frequencies)


def test_the_energy_of_encodings_must_fit_into_float32():
    """n · a² must be below 2¹²⁸, for n squared amplitudes."""
    large = pe.geometric(8).with_attention_factor(2.0**62)
    check_energy(large, 15.9)
    with pytest.raises(
        ValueError, match="frequencies must have an attention_factor whose square float32 holds 16 times"
    ):
        check_energy(large, 16)


def test_an_offset_of_each_vector_must_broadcast():
    with pytest.raises(ValueError, match=r"^shift: offset of shape \(2, 4\) must broadcast to encodings without"):
        pe.shift(X, POSITIONS[:, :4], 8)
