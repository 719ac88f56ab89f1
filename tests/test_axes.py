"""Spectra of several coordinates."""

import numpy as np

import posenc_jax as pe


def test_axial_is_an_equal_share_for_each_axis():
    one, two = pe.geometric(8, 100.0), pe.axial(16, 2, 100.0)
    assert two.axes == (0,) * 4 + (1,) * 4 and two.num_axes == 2 and two.dim == 16
    np.testing.assert_array_equal(two.angular, np.tile(one.angular, 2))
    assert pe.axial(16, 1) == pe.geometric(16)
    assert pe.axial(4, 2).angular.tolist() == [1.0, 1.0]
