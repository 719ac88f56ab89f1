"""`count_along` counts along an axis of an array, and its result is sharded as that axis is, without a mesh too."""

from functools import partial

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from posenc_jax._jax.sharding import count_along

D, S = "data", "sequence"
pytestmark = pytest.mark.usefixtures("on_cpu")


def test_counted_positions_are_sharded_as_their_axis():
    x = jax.ShapeDtypeStruct((2, 8, 4), np.float32)
    assert jax.typeof(jax.eval_shape(partial(count_along, axis=1), x)).sharding.spec == P(None, None, None)
    mesh = jax.make_mesh((2, 4), (D, S), (AxisType.Explicit,) * 2, devices=jax.devices("cpu"))
    with jax.set_mesh(mesh):
        for spec, want in ((P(D, S), P(None, S, None)), (P(D), P(None, None, None))):
            counts = jax.eval_shape(partial(count_along, axis=1), x.update(sharding=NamedSharding(mesh, spec)))
            assert counts.shape == (1, 8, 1) and counts.dtype == np.int32 and counts.sharding.spec == want
