"""Checks of arguments: each returns the argument in the form that computations take, or raises and names it."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from posenc_jax._jax import checks
from posenc_jax._jax.checks import FLOATS, INTEGERS

TINY, LARGEST = (float(x) for x in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))


@pytest.mark.parametrize(
    ("check", "value", "expected"),
    [
        (checks.number, np.float32(0.5), 0.5),
        (checks.positive, 3, 3.0),
        (checks.positive_float32, TINY, TINY),
        (checks.positive_float32, LARGEST, LARGEST),
        (partial(checks.integer, least=2), np.int8(2), 2),
        (checks.length, 2**31 - 1, 2**31 - 1),
        (checks.size, 2**20, 2**20),
        (checks.flag, np.bool_(True), True),
        (checks.positive_ints, np.array([1, 2]), (1, 2)),
    ],
)
def test_a_value_becomes_a_plain_python_value(check, value, expected):
    got = check("x", value)
    assert got == expected and type(got) is type(expected)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (3, checks.POSITIONS, np.int32(3)),
        (3.0, checks.POSITIONS, np.int32(3)),
        (0.5, checks.POSITIONS, np.float32(0.5)),
        (np.float64([1, 2]), checks.POSITIONS, np.int32([1, 2])),
        (np.float64([1, 2.5]), checks.POSITIONS, np.float32([1, 2.5])),
        (np.float64([0.1]), checks.FLOATS, np.float32([0.1])),
        (np.float64([np.nan, 1]), checks.POSITIONS, np.float32([np.nan, 1])),
        (np.uint32([5]), INTEGERS, np.int32([5])),
        (np.int8([-5]), INTEGERS, np.int32([-5])),
        (np.float16([0.5]), FLOATS, np.float32([0.5])),
        (np.float32([0.5]), checks.POSITIONS, np.float32([0.5])),
    ],
)
def test_arrays_have_the_dtype_of_computations(value, kind, expected):
    with jax.enable_x64(False):
        np.testing.assert_array_equal(checks.array("x", value, kind), expected, strict=True)


def test_traced_integers_that_may_not_fit_keep_their_dtype():
    for dtype, expected in ((np.uint32, np.uint32), (np.int8, np.int32), (np.int32, np.int32)):
        assert jax.eval_shape(lambda x: checks.array("x", x, INTEGERS), np.zeros(2, dtype)).dtype == expected


def test_an_object_that_holds_an_array_is_that_array():
    class Holder:
        def __jax_array__(self):
            return jnp.ones(3)

    for check in (checks.array, partial(checks.floats, axes=("n",)), checks.data):
        assert check("x", Holder()).shape == (3,)


def test_data_of_any_dtype_keeps_its_values():
    with jax.enable_x64(False):
        for x, dtype in ((np.float64([0.1]), "float32"), (np.int64([2**31 - 1]), "int32"), (np.array([True]), "bool")):
            got = checks.data("x", x)
            assert isinstance(got, jax.Array) and got.dtype == dtype
            np.testing.assert_array_equal(got, x.astype(dtype))


MASKED = np.ma.MaskedArray(np.ones(2, np.float32))
FLOAT = partial(checks.floats, axes=(..., "n", "features"))
array_of = lambda kind: partial(checks.array, kind=kind)  # noqa: E731
CHANGED = "float32 holds within 0.001, got float64 16777216.1, which becomes 16777216.0"


@pytest.mark.parametrize(
    ("check", "value", "error", "match"),
    [
        (checks.number, "1", TypeError, "x must be a number, got str '1'"),
        (checks.number, True, TypeError, "x must be a number"),
        (checks.number, np.timedelta64(1, "s"), TypeError, "x must be a number"),
        (checks.number, np.nan, ValueError, "x must be finite, got nan"),
        (checks.number, 10**400, ValueError, "x must be finite, got inf"),
        (partial(checks.number, float32=True), -1e39, ValueError, "x must fit into float32"),
        (checks.positive, 0, ValueError, "x must be positive"),
        (checks.positive_float32, 1e-39, ValueError, "x must be from 1.2e-38 to 3.4e+38 for float32"),
        (checks.positive_float32, 1e39, ValueError, "x must be from 1.2e-38 to 3.4e+38 for float32"),
        (checks.integer, 1.0, TypeError, "x must be an integer"),
        (partial(checks.integer, least=2), 1, ValueError, "x must be at least 2"),
        (checks.positive_int, 0, ValueError, "x must be at least 1"),
        (checks.length, 2**31, ValueError, "x must fit into int32"),
        (checks.size, 2**20 + 1, ValueError, "x must be at most 2²⁰"),
        (checks.size, 0, ValueError, "x must be at least 1"),
        (checks.flag, 1, TypeError, "x must be True or False"),
        (checks.layout, "x", ValueError, "x must be one of ('interleaved', 'half'), got 'x'"),
        (checks.part, 1, ValueError, "x must be one of ('first', 'last')"),
        (checks.out_of_range, None, ValueError, "x must be one of ('error', 'nan', 'zeros')"),
        *((checks.positive_ints, x, TypeError, "x must be a sequence") for x in ("1", b"1", 1, np.array(1))),
        (checks.positive_ints, [1, 0], ValueError, "x[1] must be at least 1"),
        (checks.array, [1], TypeError, "x must be an integer or float array, got list [1]"),
        (checks.array, MASKED, TypeError, "x must be an integer or float array, got masked"),
        (checks.array, 2**31, ValueError, "x must fit into int32"),
        (
            checks.array,
            np.array([0, 2**31]),
            ValueError,
            "x must fit into int32, got int64 values from 0 to 2147483648",
        ),
        (
            checks.array,
            np.float32([2.0**31]),
            ValueError,
            "x must fit into int32, got float32 values from 2147483648.0",
        ),
        (checks.array, np.array([2.0**24 + 0.1]), ValueError, f"x must be integers or floats that {CHANGED}"),
        (checks.array, np.array([0.1 + 2**20]), ValueError, "x must be integers or floats that float32 holds within"),
        (
            checks.array,
            np.float16([1]),
            TypeError,
            "x must be integers or float32, got float16 of shape (1,), in which 2049",
        ),
        (
            array_of(checks.FREQUENCIES),
            np.float16([1]),
            TypeError,
            "x must be float32, got float16 of shape (1,), which rounds",
        ),
        (array_of(INTEGERS), np.float32([1]), TypeError, "x must be an integer array"),
        (array_of(INTEGERS), 1.0, TypeError, "x must be an integer array"),
        (array_of(FLOATS), np.array([1e39]), ValueError, "x must fit into float32, got float64 values up to 1e+39"),
        (array_of(FLOATS), np.array([1]), TypeError, "x must be a float array"),
        (FLOAT, np.ones((3, 2), int), TypeError, "x must be a float array of shape (..., n, features), got int64"),
        (FLOAT, np.ones(3, np.float32), ValueError, "x must have shape (..., n, features), got (3,)"),
        (FLOAT, np.ones((3, 2), ">f4"), TypeError, "x is >f4, which JAX does not have"),
        (checks.data, [1], TypeError, "x must be an array"),
        (checks.data, np.ones(2, ">f4"), TypeError, "x is >f4, which JAX does not have"),
        (checks.data, np.array([2**31]), ValueError, "x must fit into int32"),
        (partial(checks.scalar, dtype=np.float32), 1e39, ValueError, "x must fit into float32"),
        (partial(checks.scalar, dtype=np.float32), np.ones(2, np.float32), ValueError, "x must be a scalar"),
        (checks.floating_dtype, int, TypeError, "x must be a float dtype, got int64"),
        (checks.floating_dtype, None, TypeError, "x must be a float dtype, got None"),
        (checks.floating_dtype, "float64", TypeError, "x is float64, which jax_enable_x64=False cannot hold"),
        (checks.floating_dtype, jnp.float8_e8m0fnu, TypeError, "x is float8_e8m0fnu, which has no negative numbers"),
        (checks.floating_dtype, jnp.float4_e2m1fn, TypeError, "x is float4_e2m1fn, which has no NaN"),
        (checks.refuse_narrow_frequencies, np.float16(1), TypeError, "x must be float32, got float16"),
        (checks.countable, 2**31 + 1, ValueError, "at most 2³¹ positions can be counted, got x of length 2147483649"),
    ],
)
def test_invalid_values_raise(check, value, error, match):
    with jax.enable_x64(False), pytest.raises(error, match="^" + re.escape(match)):
        check("x", value)


def test_a_shape_broadcasts_to_another_or_raises():
    assert checks.broadcasts((), (2, 3)) and checks.broadcasts((1, 3), (2, 3)) and checks.broadcasts((3,), (2, 3))
    assert not checks.broadcasts((2,), (2, 3)) and not checks.broadcasts((1, 2, 3), (2, 3))
    with pytest.raises(ValueError, match=r"^x of shape \(2,\) must broadcast to y, shape \(2, 3\)"):
        checks.broadcastable("x", (2,), "y", (2, 3))


def test_shardings_on_explicit_axes_agree_or_raise(on_cpu):
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2, devices=jax.devices("cpu")[:4])
    x = jax.ShapeDtypeStruct((4, 4), np.float32, sharding=NamedSharding(mesh, P(None, "a")))
    with jax.set_mesh(mesh):
        jax.eval_shape(lambda x: checks.unsharded("x", x, 0), x)
        with pytest.raises(ValueError, match="^x must not be sharded along axis 1 on Explicit axes of a mesh"):
            jax.eval_shape(lambda x: checks.unsharded("x", x), x)
    checks.sharded_like("x", P("a", None), "y", P("b", "a", None))
    checks.sharded_like("x", P("a", "b"), "y", P("a", "b"))
    with pytest.raises(ValueError, match="^x must be sharded on Explicit axes of a mesh as y is"):
        checks.sharded_like("x", P("b", None), "y", P("a", None))
    checks.sharded_together({"x": ("a", None), "y": (None, "b"), "z": ("a", None)})
    for y in (("b", None), (None, "a"), (None, ("b", "a"))):
        with pytest.raises(ValueError, match="^x, y must be sharded alike where they share an axis of the result"):
            checks.sharded_together({"x": ("a", None), "y": y})
