"""The encoding and its addition: values, layouts, shapes, dtypes, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from oracles import encodings, recorded

NOTEBOOKS = recorded.read("notebook_values")


def test_values_that_notebooks_print_at_width_6():
    expected = NOTEBOOKS["d6_len10"]
    table = np.asarray(pe.sinusoidal(np.arange(expected["length"]), expected["d_model"]))
    np.testing.assert_allclose(table, expected["encoding"], rtol=0, atol=expected["abs_tol"])
    np.testing.assert_allclose(1 / pe.geometric(6).angular, expected["denominator"], rtol=2e-5)


def test_values_that_notebooks_print_at_width_10():
    expected = NOTEBOOKS["d10_len10"]
    table = np.asarray(pe.sinusoidal(np.arange(expected["length"]), expected["d_model"]))
    np.testing.assert_allclose(table[:, 0::2], expected["sin"], rtol=expected["rel_tol"], atol=1e-12)
    first = expected["encoding_first_6_rows"]
    np.testing.assert_allclose(table[: len(first)], first, rtol=expected["rel_tol"], atol=1e-12)
    np.testing.assert_allclose(1 / pe.geometric(10).angular, expected["denominator"], rtol=expected["rel_tol"])


def test_the_course_table_of_128_by_256():
    expected = NOTEBOOKS["d256_len128"]
    table = pe.sinusoidal(np.arange(expected["length"])[None], expected["d_model"])
    assert list(table.shape) == expected["shape"] and str(table.dtype) == expected["dtype"]
    np.testing.assert_allclose(table[0], encodings.textbook(range(128), 256), rtol=0, atol=9e-8)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("dim", [1, 2, 3, 7, 10])
def test_layouts_and_odd_widths(dim, layout):
    positions = np.array([0, 3, -17, 1_000_003])
    got = pe.sinusoidal(positions, dim, layout=layout)
    assert got.shape == (4, dim)
    np.testing.assert_allclose(got, encodings.encode(positions, dim, layout=layout), rtol=0, atol=9e-8)


@pytest.mark.parametrize("endpoint", [False, True])
def test_base_and_endpoint_change_the_result(endpoint):
    positions = np.arange(40)
    f = pe.geometric(12, 100.0, endpoint=endpoint)
    np.testing.assert_allclose(
        pe.sinusoidal(positions, f), encodings.encode(positions, 12, 100, endpoint=endpoint), rtol=0, atol=9e-8
    )


@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (2, 1, 4), (0,), (3, 0)])
def test_any_shape_of_positions(shape):
    positions = np.random.default_rng(0).integers(-(2**31), 2**31, shape).astype(np.int32)
    got = pe.sinusoidal(positions, 6)
    assert got.shape == (*shape, 6)
    rows = [np.asarray(pe.sinusoidal(int(p), 6)) for p in positions.ravel()]
    np.testing.assert_array_equal(got, np.array(rows, np.float32).reshape(*shape, 6))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_every_integer_dtype(dtype):
    positions = np.array([0, 1, 100, 127]).astype(dtype)
    np.testing.assert_array_equal(pe.sinusoidal(positions, 8), pe.sinusoidal(np.array([0, 1, 100, 127], np.int32), 8))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, "bfloat16"])
def test_narrow_results_are_the_float32_value_rounded_once(dtype):
    positions = np.random.default_rng(1).integers(-(2**31), 2**31, 2000).astype(np.int32)
    got = pe.sinusoidal(positions, 32, dtype=dtype)
    assert got.dtype == jnp.dtype(dtype)
    want = np.asarray(pe.sinusoidal(positions, 32)).astype(jnp.dtype(dtype))  # rounded by NumPy and ml_dtypes
    np.testing.assert_array_equal(np.asarray(got).astype(np.float32), want.astype(np.float32))


def test_float64_results_under_x64():
    with jax.enable_x64(True):
        got = pe.sinusoidal(np.arange(9), 6, dtype=jnp.float64)
        assert got.dtype == np.float64
        np.testing.assert_array_equal(got, np.asarray(pe.sinusoidal(np.arange(9), 6), np.float64))


@pytest.mark.parametrize(("shape", "layout"), [((3, 5), "interleaved"), ((5, 3), "half"), ((2, 3, 4), "interleaved")])
def test_axial_is_the_concatenation_of_its_axes(shape, layout):
    axes = len(shape)
    grid = np.stack(np.meshgrid(*(np.arange(n) * 1000 for n in shape), indexing="ij"), -1)  # not square: axes differ
    got = np.asarray(pe.sinusoidal(grid, pe.axial(8 * axes, axes), layout=layout))
    assert got.shape == (*shape, 8 * axes)
    parts = [encodings.encode(grid[..., a].ravel(), 8, layout=layout).reshape(*shape, 8) for a in range(axes)]
    if layout == "half":  # all sines, then all cosines
        parts = [p[..., :4] for p in parts] + [p[..., 4:] for p in parts]
    np.testing.assert_allclose(got, np.concatenate(parts, -1), rtol=0, atol=9e-8)


def add_reference(x, encoding, scale=1.0):
    return np.float64(scale) * np.asarray(x, np.float64) + encoding


@pytest.mark.parametrize(("layout", "scale"), [("interleaved", np.sqrt(8)), ("half", np.sqrt(8)), ("half", 2)])
def test_addition(layout, scale):
    x = np.random.default_rng(2).normal(size=(2, 3, 5, 8)).astype(np.float32)
    got = pe.add_sinusoidal(x, layout=layout, scale=scale)
    want = add_reference(x, encodings.encode(np.arange(5), 8, layout=layout), scale)
    np.testing.assert_allclose(got, want, rtol=3e-7, atol=2e-7)


@pytest.mark.parametrize("shape", [(5,), (1, 5), (2, 1, 5), (2, 3, 5), (2, 3, 1), (), (1,)])
def test_addition_at_given_positions(shape):
    x = np.random.default_rng(3).normal(size=(2, 3, 5, 8)).astype(np.float32)
    positions = np.random.default_rng(4).integers(-(2**31), 2**31, shape).astype(np.int32)
    encoding = encodings.encode(np.broadcast_to(positions, (2, 3, 5)).ravel(), 8, 77.0).reshape(x.shape)
    got = pe.add_sinusoidal(x, positions, pe.geometric(8, 77.0))
    np.testing.assert_allclose(got, add_reference(x, encoding), rtol=3e-7, atol=2e-7)


def test_addition_on_a_grid():
    x = np.zeros((2, 6, 8), np.float32)
    grid = np.stack(np.meshgrid(np.arange(2), np.arange(3), indexing="ij"), -1).reshape(6, 2)
    got = pe.add_sinusoidal(x, grid, pe.axial(8, 2))
    np.testing.assert_array_equal(got, np.broadcast_to(pe.sinusoidal(grid, pe.axial(8, 2)), x.shape))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_addition_keeps_the_dtype_and_rounds_once(dtype):
    x = jnp.asarray(np.random.default_rng(5).normal(size=(2, 300, 16)), dtype)
    got = pe.add_sinusoidal(x, scale=2.0)
    assert got.dtype == dtype
    inside = np.asarray(pe.add_sinusoidal(x.astype(jnp.float32), scale=2.0))
    np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(inside.astype(dtype), np.float32))


def test_addition_of_float64_under_x64():
    with jax.enable_x64(True):
        x = np.random.default_rng(6).normal(size=(4, 6))
        got = pe.add_sinusoidal(x, scale=3)
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, 3 * x + np.asarray(pe.sinusoidal(np.arange(4), 6), np.float64), rtol=1e-15)


def test_addition_derivatives():
    x, angular = jnp.ones((3, 4)), jnp.array([0.5, 0.1], jnp.float32)
    grad = jax.grad(lambda x, w, s: pe.add_sinusoidal(x, None, w, scale=s).sum(), argnums=(0, 1, 2))(x, angular, 2.0)
    np.testing.assert_array_equal(grad[0], np.full((3, 4), 2.0))
    p, w = np.arange(3)[:, None], np.asarray(angular)[None]
    np.testing.assert_allclose(grad[1], (p * np.cos(p * w) - p * np.sin(p * w)).sum(0), rtol=0, atol=1e-6)
    assert grad[2] == 12.0


def test_bfloat16_constants_are_not_what_is_added():
    # bfloat16 positions would make 4095 and 4096 the same row.
    got = pe.add_sinusoidal(jnp.zeros((4097, 8), jnp.bfloat16))
    assert (got[4095] != got[4096]).any()


X = np.zeros((2, 5, 8), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: pe.sinusoidal(1j, 8), TypeError, "sinusoidal: positions must be an integer or float array, got complex 1j"),  # type: ignore
        (lambda: pe.sinusoidal(np.ones(3, np.complex64), 8), TypeError, r"got complex64 of shape \(3,\)"),
        (lambda: pe.sinusoidal(True, 8), TypeError, "positions must be an integer or float array, got bool True"),
        (lambda: pe.sinusoidal(np.array([True]), 8), TypeError, r"positions must be .* got bool of shape \(1,\)"),
        (lambda: pe.sinusoidal([1, 2], 8), TypeError, r"positions must be an integer or float array, got list \[1, 2\]"),  # type: ignore
        (lambda: pe.sinusoidal(None, 8), TypeError, "positions must be .* got NoneType None"),  # type: ignore
        (lambda: pe.sinusoidal("3", 8), TypeError, "positions must be .* got str '3'"),  # type: ignore
        (lambda: pe.sinusoidal(jax.random.key(0), 8), TypeError, "positions must be an integer or float array"),
        (lambda: pe.sinusoidal(2**31, 8), ValueError, "sinusoidal: positions must fit into int32, got 2147483648"),
        (lambda: pe.sinusoidal(-(2**31) - 1, 8), ValueError, "positions must fit into int32, got -2147483649"),
        (lambda: pe.sinusoidal(np.array([0, 2**31]), 8), ValueError, "int32, got int64 values from 0 to 2147483648"),
        (lambda: pe.sinusoidal(np.array([-(2**40), 2]), 8), ValueError, "int32, got int64 values from -1099511627776 to 2"),
        (lambda: pe.sinusoidal(np.array([2**32 - 1], np.uint32), 8), ValueError, "int32, got uint32 values from 4294967295"),
        (lambda: pe.sinusoidal(jnp.array([2**31], jnp.uint32), 8), ValueError, "int32, got uint32 values from 2147483648"),
        (lambda: pe.sinusoidal(float(2**31), 8), ValueError, "sinusoidal: positions must fit into int32, got 2147483648.0"),
        (lambda: pe.sinusoidal(1e300, 8), ValueError, "positions must fit into int32, got 1e"),
        (lambda: pe.sinusoidal(np.array([1], "timedelta64[s]"), 8), TypeError, "positions must be an integer or float array, got timedelta64"),
        (lambda: pe.sinusoidal(np.array([1.0], np.longdouble), 8), TypeError, "positions is float128, which JAX does not have"),
        (lambda: pe.sinusoidal(np.array([1.0], ">f4"), 8), TypeError, "positions is >f4, which JAX does not have"),
        (lambda: pe.sinusoidal(0, 8, dtype=None), TypeError, "sinusoidal: dtype must be a float dtype, got None"),
        (lambda: pe.add_sinusoidal(X.astype(">f4")), TypeError, "add_sinusoidal: x is >f4, which JAX does not have"),
        (lambda: pe.add_sinusoidal(X, scale=10**400), ValueError, "add_sinusoidal: scale must be finite, got inf"),
        (lambda: pe.add_sinusoidal(X, scale=1e40), ValueError, "scale must fit into float32, got 1e"),
        (lambda: pe.add_sinusoidal(X, scale=True), TypeError, "scale must be a number"),  # type: ignore
        (lambda: pe.add_sinusoidal(X, scale=1j), TypeError, "scale must be a number or a scalar .* got complex 1j"),  # type: ignore
        (lambda: pe.sinusoidal(0, 8, layout="split"), ValueError, r"sinusoidal: layout must be one of \('interleaved', 'half'\), got 'split'"),  # type: ignore
        (lambda: pe.sinusoidal(0, 8, layout=None), ValueError, "layout must be one of .* got None"),  # type: ignore
        (lambda: pe.sinusoidal(0, 8, dtype="float31"), TypeError, "sinusoidal: dtype must be a float dtype, got float31"),
        (lambda: pe.sinusoidal(0, 8, dtype=jnp.int32), TypeError, "dtype must be a float dtype, got int32"),
        (lambda: pe.sinusoidal(0, 8, dtype=np.float32(2)), TypeError, "dtype must be a float dtype, got 2.0"),  # type: ignore
        (lambda: pe.sinusoidal(0, 8, dtype=jax.ShapeDtypeStruct((), jnp.float32)), TypeError, "dtype must be a float dtype, got ShapeDtypeStruct"),  # type: ignore
        (lambda: pe.sinusoidal(0, 8, dtype=jnp.complex64), TypeError, "dtype must be a float dtype, got complex64"),
        (lambda: pe.sinusoidal(np.zeros((4, 3), np.int32), pe.axial(8, 2)), ValueError, r"positions must have a last axis of size 2, .* got shape \(4, 3\)"),
        (lambda: pe.sinusoidal(3, pe.axial(8, 2)), ValueError, r"positions must have a last axis of size 2, .* got shape \(\)"),
        (lambda: pe.add_sinusoidal(X.astype(np.int32)), TypeError, r"add_sinusoidal: x must be a float array of shape \(..., seq, d_model\), got int32"),
        (lambda: pe.add_sinusoidal(X.astype(np.complex64)), TypeError, "x must be a float array"),
        (lambda: pe.add_sinusoidal(1.0), TypeError, "x must be a float array of shape .* got float 1.0"),
        (lambda: pe.add_sinusoidal(X[0, 0]), ValueError, r"x must have shape \(..., seq, d_model\), got \(8,\)"),
        (lambda: pe.add_sinusoidal(X, None, 6), ValueError, r"frequencies of width 6 must match x, shape \(2, 5, 8\)"),
        (lambda: pe.add_sinusoidal(X, None, jnp.ones(3)), ValueError, "frequencies of width 6 must match x"),
        (lambda: pe.add_sinusoidal(X, np.arange(4)), ValueError, r"add_sinusoidal: positions of shape \(4,\) must broadcast to x without its last axis, shape \(2, 5\)"),
        (lambda: pe.add_sinusoidal(X, np.zeros((3, 2, 5), np.int32)), ValueError, r"positions of shape \(3, 2, 5\) must broadcast to .* \(2, 5\)"),
        (lambda: pe.add_sinusoidal(X, None, pe.axial(8, 2)), ValueError, "positions must be given for frequencies of 2 axes, got None"),
        (lambda: pe.add_sinusoidal(X, scale=np.ones(8, np.float32)), ValueError, r"scale must be a scalar, got shape \(8,\)"),
        (lambda: pe.add_sinusoidal(X, scale="2"), TypeError, "scale must be .* got str '2'"),  # type: ignore
        (lambda: pe.add_sinusoidal(X, layout="halves"), ValueError, "add_sinusoidal: layout must be one of"),  # type: ignore
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: pe.sinusoidal(np.array([0.5]), 8), "sinusoidal: positions is float64, which jax_enable_x64=False cannot hold"),
        (lambda: pe.sinusoidal(np.float64(0.5), 8), "positions is float64"),
        (lambda: pe.sinusoidal(0, np.array([0.5])), "sinusoidal: frequencies is float64"),
        (lambda: pe.sinusoidal(0, 8, dtype=np.float64), "sinusoidal: dtype is float64, which jax_enable_x64=False cannot hold"),
        (lambda: pe.add_sinusoidal(np.zeros((5, 8))), "add_sinusoidal: x is float64"),
    ],
)  # fmt: skip
def test_float64_where_x64_is_off(call, match):
    with jax.enable_x64(False), pytest.raises(TypeError, match=match):
        call()


def test_errors_come_at_trace_time():
    with pytest.raises(ValueError, match="must broadcast"):
        jax.eval_shape(pe.add_sinusoidal, X, np.arange(4, dtype=np.int32))
    with pytest.raises(TypeError, match="positions must be an integer or float array, got bool"):
        jax.jit(lambda p: pe.sinusoidal(p, 8))(np.array([True]))


def test_python_floats_that_are_whole_are_exact():
    for p in (16_777_217, 2**31 - 1, -(2**31)):
        np.testing.assert_array_equal(pe.sinusoidal(float(p), 8), pe.sinusoidal(p, 8))
    np.testing.assert_array_equal(pe.sinusoidal(0.1, 8), pe.sinusoidal(np.float32(0.1), 8))
    assert np.isnan(pe.sinusoidal(float("nan"), 8)).all() and np.isnan(pe.sinusoidal(float("inf"), 8)).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_batch_that_shares_a_table_gives_the_same_bits(dtype):
    x = jnp.asarray(np.random.default_rng(5).normal(size=(6, 33, 20)), dtype)
    positions = np.arange(33, dtype=np.int32) * 60_000_000
    for add in (pe.add_sinusoidal, lambda x: pe.add_sinusoidal(x, positions, scale=1.7)):
        together = np.asarray(jax.jit(add)(x).astype(jnp.float32))
        for row in range(6):
            np.testing.assert_array_equal(np.asarray(add(x[row]).astype(jnp.float32)), together[row])


def test_a_cpu_computes_what_a_batch_shares_once(on_cpu):
    text = lambda batch: jax.jit(pe.add_sinusoidal).lower(jnp.ones((batch, 64, 128))).compile()  # noqa: E731
    assert text(3).memory_analysis().temp_size_in_bytes == 0
    assert text(16).memory_analysis().temp_size_in_bytes == 4 * 64 * 128
