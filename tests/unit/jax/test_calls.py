"""Arguments are parsed once per type, and spectra are made once per value: no wrong argument passes behind a right one.

Each call comes twice, so that the second one finds the first in a cache.
"""

import collections

import jax
import numpy as np
import pytest

import posenc_jax as pe

X, AT, FAR, POSE, WIDE, LENS, Q, FOUR, PACKED = jax.device_put(
    (
        np.ones((2, 6, 4), np.float32),
        np.arange(6, dtype=np.int32),
        np.arange(6, dtype=np.float32) + 2**31,
        np.eye(4, dtype=np.float32),
        2 * np.eye(4, dtype=np.float32),
        np.float32([[9, 0, 5], [0, 9, 5], [0, 0, 1]]),
        np.ones((1, 4, 1, 4), np.float32),
        np.arange(4, dtype=np.int32),
        np.int32([0, 1, 0, 1]),
    )
)
VIEW = {"role": "query", "head_axis": None, "image_size": (10, 10)}


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"inverse": 1}, TypeError),
        ({"head_axis": -2.0}, TypeError),
        ({"frequencies": True}, TypeError),
        ({"positions": FAR}, ValueError),
        ({"x": np.ones((2, 6, 4), np.complex64)}, TypeError),
        ({"layout": "halves"}, ValueError),
    ],
)
def test_rotary_rejects_what_equals_a_right_argument(changed, error):
    right = {"x": X, "positions": AT, "frequencies": 4, "head_axis": None, "inverse": True}
    for _ in range(2):
        pe.rotary(**right)
        with pytest.raises(error, match="^rotary: "):
            pe.rotary(**right | changed)


def test_arrays_of_numpy_and_traced_ones_have_the_same_bits():
    want = pe.rotary(X, AT, 4, head_axis=None)
    for x, at in ((np.asarray(X), AT), (X, np.arange(6.0)), (X, np.arange(6, dtype=np.int8))):
        np.testing.assert_array_equal(pe.rotary(x, at, 4, head_axis=None), want)
    np.testing.assert_array_equal(jax.jit(lambda x: pe.rotary(x, AT, 4, head_axis=None))(X), want)


def test_positions_of_attention_are_checked_in_every_call():
    for _ in range(2):
        pe.attention(Q, Q, Q, query_positions=FOUR, key_positions=FOUR, causal=True)
        with pytest.raises(ValueError, match="^attention: key_positions must not return"):
            pe.attention(Q, Q, Q, query_positions=PACKED, key_positions=PACKED, causal=True)
    at = {"query_positions": PACKED, "key_positions": PACKED, "query_order": FOUR, "key_order": FOUR}
    pe.attention(Q, Q, Q, **at, causal=True)
    grid = jax.device_put(np.indices((2, 2), np.int32).reshape(2, 4).T)
    with pytest.raises(ValueError, match="^attention: query_positions must be one number for each token"):
        pe.attention(*[Q.reshape(4, 2, 1, 2)] * 3, query_positions=grid, key_positions=grid, window=(5, 5))
    pe.attention(Q, Q, Q, window=(1, None))
    with pytest.raises(TypeError, match=r"^attention: window\[0\] must be an integer"):
        pe.attention(Q, Q, Q, window=(True, None))


def test_cameras_are_checked_in_every_call():
    for _ in range(2):
        pe.prope(X, POSE, LENS, **VIEW)
        with pytest.raises(ValueError, match="^prope: extrinsics must be rigid"):
            pe.prope(X, WIDE, LENS, **VIEW)
        with pytest.raises(ValueError, match="^prope: intrinsics must be in the unit"):
            pe.prope(X, POSE, LENS, **VIEW | {"image_size": (1000, 1000)})


def test_a_setting_by_position_raises_as_python_does():
    with pytest.raises(TypeError, match=r"cos_sin\(\) takes 2 positional arguments but 3 were given"):
        pe.cos_sin(AT, 8, "half")


class Sections(collections.UserList):
    """A sequence that compares and hashes by identity."""

    __eq__, __hash__ = object.__eq__, object.__hash__


def test_equal_spectra_are_one_object_and_equal_numbers_of_other_types_are_not():
    assert pe.linear_scaling(8, 2) is pe.linear_scaling(8, 2)
    assert pe.yarn(8, 1e4, factor=4, original_max=64) is pe.yarn(8, 1e4, factor=4, original_max=64)
    assert pe.linear_scaling(8, 2) != pe.linear_scaling(8, 3)
    pe.linear_scaling(8, 1), pe.axial((2, 6))
    sections = Sections([2, 2])
    before = pe.multi_section(8, sections)
    sections[:] = [1, 3]
    assert pe.multi_section(8, sections) == pe.multi_section(8, [1, 3]) != before
    with pytest.raises(TypeError, match="^linear_scaling: factor must be a number, got bool"):
        pe.linear_scaling(8, True)
    with pytest.raises(TypeError, match="^axial: "):
        pe.axial((2.0, 6))
    assert pe.longrope(8, [1.0] * 4, [2.0] * 4, original_max=8, factor=2, length=16) == pe.longrope(
        8, np.ones(4), np.full(4, 2.0), original_max=8, factor=2, length=16
    )
