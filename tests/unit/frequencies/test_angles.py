"""`expand` repeats one entry for each pair to one for each feature, in both layouts, and keeps the sharding."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from posenc_jax._frequencies.angles import expand


@pytest.mark.parametrize(
    ("layout", "dim", "margin", "want"),
    [
        ("half", 4, (0, 0), [[1, 2, 1, 2], [3, 4, 3, 4]]),
        ("half", 3, (0, 0), [[1, 2, 1], [3, 4, 3]]),
        ("interleaved", 4, (0, 0), [[1, 1, 2, 2], [3, 3, 4, 4]]),
        ("interleaved", 4, (1, 2), [[0, 1, 1, 2, 2, 0, 0], [0, 3, 3, 4, 4, 0, 0]]),
    ],
)
def test_each_feature_has_the_entry_of_its_pair(layout, dim, margin, want):
    x = np.float32([[1, 2], [3, 4]])
    np.testing.assert_array_equal(expand(x, layout, dim, margin), np.float32(want))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_the_result_is_sharded_as_its_rows(layout, on_cpu):
    mesh = jax.make_mesh((2,), ("data",), (AxisType.Explicit,), devices=jax.devices("cpu")[:2])
    with jax.set_mesh(mesh):
        x = jax.ShapeDtypeStruct((4, 2), np.float32, sharding=NamedSharding(mesh, P("data", None)))
        assert jax.eval_shape(lambda x: expand(x, layout, 4), x).sharding.spec == P("data", None)
