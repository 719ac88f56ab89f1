"""The hashes of what public functions compute: drawn from every family, and changed by one bit."""

import numpy as np
import pytest

from tools import bits


@pytest.mark.slow
@pytest.mark.parametrize("family", bits.COMPUTED, ids=lambda family: family.__name__)
def test_every_family_can_be_drawn(family):
    assert bits.digest(list(family(np.random.default_rng(0)))) != bits.digest([])


def test_a_hash_sees_one_bit_the_shape_and_the_dtype():
    x = np.arange(6, dtype=np.float32)
    others = np.nextafter(x, 9), x.reshape(2, 3), x.astype(np.int32), -x[:1] * 0
    assert len({bits.digest(value) for value in (x, *others)}) == 5 and bits.digest(x) == bits.digest(x.copy())
