"""A primitive of two operands that broadcast, linear in each of them.

The example multiplies all features of x but the last by w.

- Either operand, or both, may be mapped by `jax.vmap`.
- Tangents by each operand and by both are those of the formula; a cotangent is summed to the shape of its operand.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.closeness import assert_within
from posenc_jax._jax import bilinear
from posenc_jax._jax.primitives import set_jvp

RNG = np.random.default_rng(0)
FLOAT32 = jnp.dtype("float32")
MULTIPLIED = np.array([[[True, True, True, False]]])


def multiply(x, w, *, result):
    return jnp.where(MULTIPLIED, x.astype(np.float32) * w, x.astype(np.float32)).astype(result)


scaled = bilinear.broadcasting_primitive(
    "scaled", {None: multiply}, parameters=("result",), dtype=lambda x, result: result
)


def f(x, w, result=FLOAT32):
    return bilinear.bind(scaled, x, w, result=result)


def jvp(primals, tangents, *, result):
    return bilinear.bilinear_jvp(f, primals, tangents, result=result, compute_dtype=FLOAT32, multiplied=MULTIPLIED)


set_jvp(scaled, jvp)
X, W, DX, DW = (RNG.normal(size=shape).astype(np.float32) for shape in ((2, 1, 4), (1, 3, 4)) * 2)


def formula(x, w):
    return np.where(MULTIPLIED, np.float64(x) * w, x)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 1)])
def test_any_operand_may_be_mapped(axes):
    x, w = (a if axis is None else np.stack([a, 2 * a, -a], axis) for a, axis in zip((X, W), axes, strict=True))
    rows = [[a if axis is None else a.take(i, axis) for a, axis in zip((x, w), axes, strict=True)] for i in range(3)]
    assert_within(jax.jit(jax.vmap(f, axes))(x, w), [formula(*row) for row in rows], 1e-6, against="row by row")


# the tangent by w along DW
BY_W = np.where(MULTIPLIED, X * np.float64(DW), 0)


@pytest.mark.parametrize(
    ("call", "primals", "tangents", "want"),
    [
        (lambda x: f(x, W), (X,), (DX,), formula(DX, W)),
        (lambda w: f(X, w), (W,), (DW,), BY_W),
        (f, (X, W), (DX, DW), formula(DX, W) + BY_W),
    ],
    ids=["x", "w", "both"],
)
def test_tangents_are_those_of_the_formula(call, primals, tangents, want):
    y, dy = jax.jit(lambda p, t: jax.jvp(call, p, t))(primals, tangents)
    assert_within(y, formula(X, W), 1e-6, against="NumPy")
    assert_within(dy, want, 1e-6, against="NumPy")


def test_a_cotangent_is_summed_to_the_axes_of_its_operand():
    like, dy = jax.ShapeDtypeStruct((1, 3, 1, 1), np.float32), RNG.normal(size=(2, 3, 1, 1)).astype(np.float32)
    assert bilinear.broadcast_axes(like) == [0, 2]
    np.testing.assert_array_equal(bilinear.sum_to(like, dy), dy.sum(0, keepdims=True))
