"""What functions that rotate require of x.

- Lengths may be symbolic, but not head_dim.
- On Explicit axes of a mesh, no axis may be sharded whose entries make pairs.
"""

import jax
import numpy as np
import pytest
from jax import export

import posenc_jax as pe

X, ONES = np.ones((2, 5, 4, 8), np.float32), np.ones((4, 8), np.float32)


def rotary(x, *arguments, **settings):
    return pe.rotary(x, *arguments, head_axis=-2, **settings)


def test_lengths_may_be_symbolic_but_not_head_dim():
    symbolic = lambda sizes: jax.ShapeDtypeStruct(export.symbolic_shape(sizes), np.float32)  # noqa: E731
    jax.eval_shape(rotary, symbolic("b, s, h, 8"))
    with pytest.raises(ValueError, match="^rotary: x must have"):
        jax.eval_shape(rotary, symbolic("2, 5, 4, d"))


# What the error names (and what is special) → a call with an array whose last axis `divide` shards
DIVIDED = {
    "rotary: x": lambda divide: rotary(divide(X)),
    "rotary: x, of which a part rotates": lambda divide: rotary(divide(X), None, 4, layout="interleaved"),
    "rotary: frequencies": lambda divide: rotary(X, None, divide(ONES[0, :4])),
    "rotary: cos_sin": lambda divide: rotary(X, cos_sin=pe.CosSin(*[divide(X[0, :, 0])] * 2, columns="half")),
    "pope: phase": lambda divide: pe.pope(X, phase=divide(ONES), head_axis=-2),
}


@pytest.mark.parametrize("name", DIVIDED)
def test_an_axis_whose_entries_make_pairs_must_not_be_sharded(name, on_cpu):
    mesh = jax.make_mesh((2,), ("a",), (jax.sharding.AxisType.Explicit,), devices=jax.devices("cpu")[:2])
    with jax.set_mesh(mesh), pytest.raises(ValueError, match=f"^{name.split(',')[0]} must not be sharded along axis"):
        DIVIDED[name](lambda x: jax.device_put(x, jax.P(*[None] * (x.ndim - 1), "a")))
