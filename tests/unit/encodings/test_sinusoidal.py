"""The encoding and its addition: values, layouts, shapes, dtypes, errors."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.quick import quick
from helpers.tiers import slow, tiered
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
    table = np.asarray(pe.sinusoidal(np.arange(expected["length"])[None], expected["d_model"]))
    assert list(table.shape) == expected["shape"] and str(table.dtype) == expected["dtype"]
    np.testing.assert_allclose(table[0], encodings.textbook(range(128), 256), rtol=0, atol=9e-8)


def test_layouts_and_odd_widths():
    positions = np.array([0, 3, -17, 1_000_003], np.int32)
    cases = list(itertools.product((1, 2, 3, 7, 10), ("interleaved", "half")))
    encode = quick(lambda p: [pe.sinusoidal(p, dim, layout=layout) for dim, layout in cases])
    for (dim, layout), got in zip(cases, encode(positions), strict=True):
        want = encodings.encode(positions, dim, layout=layout)
        assert_within(got, want, 9e-8, against=f"width {dim}, {layout}, mpmath")


def test_base_and_endpoint_change_the_result():
    positions = np.arange(40)
    spectra = [pe.geometric(12, 100.0, endpoint=endpoint) for endpoint in (False, True)]
    for endpoint, got in enumerate(quick(lambda p: [pe.sinusoidal(p, f) for f in spectra])(positions)):
        want = encodings.encode(positions, 12, 100, endpoint=bool(endpoint))
        assert_within(got, want, 9e-8, against=f"mpmath, endpoint={bool(endpoint)}")


@pytest.mark.parametrize("shape", tiered([(), (1,), (5,), (2, 3), (2, 1, 4), (0,), (3, 0)], [(), (2, 1, 4), (3, 0)]))
def test_any_shape_of_positions(shape):
    positions = np.random.default_rng(0).integers(-(2**31), 2**31, shape).astype(np.int32)
    rows = [np.asarray(pe.sinusoidal(int(p), 8)) for p in positions.ravel()]
    want = np.array(rows, np.float32).reshape(*shape, 8)
    np.testing.assert_array_equal(pe.sinusoidal(positions, 8), want, strict=True)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_every_integer_dtype(dtype):
    positions = np.array([0, 1, 100, 127]).astype(dtype)
    np.testing.assert_array_equal(pe.sinusoidal(positions, 8), pe.sinusoidal(np.array([0, 1, 100, 127], np.int32), 8))


def test_narrow_results_are_the_float32_value_rounded_once():
    positions = np.random.default_rng(1).integers(-(2**31), 2**31, 2000).astype(np.int32)
    dtypes = jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, "bfloat16"
    encode = jax.jit(lambda p: (pe.sinusoidal(p, 32), [pe.sinusoidal(p, 32, dtype=dtype) for dtype in dtypes]))
    wide, narrow = encode(positions)
    for dtype, got in zip(dtypes, narrow, strict=True):
        assert got.dtype == jnp.dtype(dtype)
        want = np.asarray(wide).astype(jnp.dtype(dtype))  # rounded by NumPy and ml_dtypes
        np.testing.assert_array_equal(np.asarray(got).astype(np.float32), want.astype(np.float32), err_msg=str(dtype))


def test_float64_results_under_x64():
    with jax.enable_x64(True):
        encode = lambda p: (pe.sinusoidal(p, 6, dtype=jnp.float64), pe.sinusoidal(p, 6))  # noqa: E731
        got, want = jax.jit(encode)(np.arange(9))
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, np.asarray(want, np.float64))


@pytest.mark.parametrize(
    ("shape", "layout"), [slow((3, 5), "interleaved"), ((5, 3), "half"), ((2, 3, 4), "interleaved")]
)
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


def test_addition():
    x = np.random.default_rng(2).normal(size=(2, 3, 5, 8)).astype(np.float32)
    cases = [("interleaved", np.sqrt(8)), ("half", np.sqrt(8)), ("half", 2)]
    added = quick(lambda x: [pe.add_sinusoidal(x, layout=layout, scale=scale) for layout, scale in cases])(x)
    for (layout, scale), got in zip(cases, added, strict=True):
        want = add_reference(x, encodings.encode(np.arange(5), 8, layout=layout), scale)
        np.testing.assert_allclose(got, want, rtol=3e-7, atol=2e-7, err_msg=f"{layout}, scale {scale}")


def test_addition_at_given_positions():
    x = np.random.default_rng(3).normal(size=(2, 3, 5, 8)).astype(np.float32)
    shapes = [(5,), (1, 5), (2, 1, 5), (2, 3, 5)]
    positions = [np.random.default_rng(4).integers(-(2**31), 2**31, shape).astype(np.int32) for shape in shapes]
    added = quick(lambda x, ps: [pe.add_sinusoidal(x, p, pe.geometric(8, 77.0)) for p in ps])(x, positions)
    for shape, p, got in zip(shapes, positions, added, strict=True):
        encoding = encodings.encode(np.broadcast_to(p, (2, 3, 5)).ravel(), 8, 77.0).reshape(x.shape)
        want = add_reference(x, encoding)
        np.testing.assert_allclose(got, want, rtol=3e-7, atol=2e-7, err_msg=f"positions of shape {shape}")


def test_addition_on_a_grid():
    f, x = pe.axial(8, 2), np.zeros((2, 6, 8), np.float32)
    grid = np.stack(np.meshgrid(np.arange(2), np.arange(3), indexing="ij"), -1).reshape(6, 2).astype(np.int32)
    got, encoding = jax.jit(lambda x, grid: (pe.add_sinusoidal(x, grid, f), pe.sinusoidal(grid, f)))(x, grid)
    np.testing.assert_array_equal(got, np.broadcast_to(encoding, x.shape))


def test_addition_keeps_the_dtype_and_rounds_once():
    x, dtypes = np.random.default_rng(5).normal(size=(2, 300, 16)), (jnp.bfloat16, jnp.float16, np.float32)
    xs = [x.astype(dtype) for dtype in dtypes]
    add = jax.jit(lambda *xs: [pe.add_sinusoidal(x, scale=1.7) for x in xs])
    for dtype, got, inside in zip(dtypes, add(*xs), add(*(x.astype(np.float32) for x in xs)), strict=True):
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, np.asarray(inside).astype(dtype), err_msg=str(dtype))


def test_addition_of_float64_under_x64():
    with jax.enable_x64(True):
        x = np.random.default_rng(6).normal(size=(4, 6))
        got, encoding = jax.jit(lambda x: (pe.add_sinusoidal(x, scale=3), pe.sinusoidal(np.arange(4), 6)))(x)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, 3 * x + np.asarray(encoding, np.float64), rtol=1e-15)


def test_addition_derivatives():
    x, angular = np.ones((3, 4), np.float32), np.array([0.5, 0.1], np.float32)
    total = lambda x, w, s: jnp.sum(pe.add_sinusoidal(x, None, w, scale=s))  # noqa: E731
    by_x, by_angular, by_scale = jax.jit(jax.grad(total, argnums=(0, 1, 2)))(x, angular, 2.0)
    np.testing.assert_array_equal(by_x, np.full((3, 4), 2.0))
    p, w = np.arange(3)[:, None], angular[None]
    np.testing.assert_allclose(by_angular, (p * np.cos(p * w) - p * np.sin(p * w)).sum(0), rtol=0, atol=1e-6)
    assert float(by_scale) == 12.0


def test_bfloat16_constants_are_not_what_is_added():
    # bfloat16 positions would make 4095 and 4096 the same row.
    got = np.asarray(pe.add_sinusoidal(np.zeros((4097, 8), jnp.bfloat16)))
    assert (got[4095] != got[4096]).any()


X, KEY = np.zeros((2, 5, 8), np.float32), jax.random.wrap_key_data(np.zeros(2, np.uint32))


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
        (lambda: pe.sinusoidal(KEY, 8), TypeError, "positions must be an integer or float array"),
        (lambda: pe.sinusoidal(2**31, 8), ValueError, "sinusoidal: positions must fit into int32, got 2147483648"),
        (lambda: pe.sinusoidal(-(2**31) - 1, 8), ValueError, "positions must fit into int32, got -2147483649"),
        (lambda: pe.sinusoidal(np.array([0, 2**31]), 8), ValueError, "int32, got int64 values from 0 to 2147483648"),
        (lambda: pe.sinusoidal(np.array([-(2**40), 2]), 8), ValueError, "int32, got int64 values from -1099511627776 to 2"),
        (lambda: pe.sinusoidal(np.array([2**32 - 1], np.uint32), 8), ValueError, "int32, got uint32 values from 4294967295"),
        (lambda: pe.sinusoidal(jax.device_put(np.array([2**31], np.uint32)), 8), ValueError, "int32, got uint32 values from 2147483648"),
        (lambda: pe.sinusoidal(float(2**31), 8), ValueError, "sinusoidal: positions must fit into int32, got 2147483648.0"),
        (lambda: pe.sinusoidal(1e300, 8), ValueError, "positions must fit into int32, got 1e"),
        (lambda: pe.sinusoidal(np.array([1], "timedelta64[s]"), 8), TypeError, "positions must be an integer or float array, got timedelta64"),
        (lambda: pe.sinusoidal(np.array([1.0], np.longdouble), 8), TypeError, "positions is float128, which JAX does not have"),
        (lambda: pe.sinusoidal(np.array([1.0], ">f4"), 8), TypeError, "positions is >f4, which JAX does not have"),
        (lambda: pe.sinusoidal(0, 8, dtype=None), TypeError, "sinusoidal: dtype must be a float dtype, got None"),
        (lambda: pe.add_sinusoidal(X.astype(">f4")), TypeError, "add_sinusoidal: x is >f4, which JAX does not have; pass float32$"),
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
        (lambda: pe.add_sinusoidal(X.astype(np.int32)), TypeError, r"add_sinusoidal: x must be a float array of shape \(..., d_model\), got int32"),
        (lambda: pe.add_sinusoidal(X.astype(np.complex64)), TypeError, "x must be a float array"),
        (lambda: pe.add_sinusoidal(1.0), TypeError, "x must be a float array of shape .* got float 1.0"),
        (lambda: pe.add_sinusoidal(X[0, 0]), ValueError, r"positions must be given where x has no sequence axis, shape \(8,\)"),
        (lambda: pe.add_sinusoidal(X, None, 6), ValueError, r"frequencies of width 6 must match x, shape \(2, 5, 8\)"),
        (lambda: pe.add_sinusoidal(X, None, np.ones(3, np.float32)), ValueError, "frequencies of width 6 must match x"),
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


def test_float64_results_need_x64():
    with (
        jax.enable_x64(False),
        pytest.raises(TypeError, match="sinusoidal: dtype is float64, which jax_enable_x64=False cannot hold"),
    ):
        pe.sinusoidal(0, 8, dtype=np.float64)


def test_one_vector_at_one_position():
    x = np.random.default_rng(0).normal(size=8).astype(np.float32)
    for p in (3, np.int32(2**31 - 1), np.float32(0.5)):
        np.testing.assert_array_equal(pe.add_sinusoidal(x, p), pe.add_sinusoidal(x[None], p)[0])
    with pytest.raises(ValueError, match=r"positions of shape \(2,\) must broadcast"):
        pe.add_sinusoidal(x, np.arange(2))


@pytest.mark.parametrize("layout", [slow("half"), "interleaved"])
def test_an_odd_width_may_end_in_a_zero(layout):
    """As in Tensor2Tensor and the Flax examples."""
    x, p, w = np.ones((2, 5, 7), np.float32), np.int32([3, 0, 1, 2**31 - 1, -7]), np.float32([1.0, 0.1, 0.01])
    for f in (pe.geometric(6, endpoint=True), w):
        added = np.pad(pe.sinusoidal(p, f, layout=layout), [(0, 0), (0, 1)])
        np.testing.assert_array_equal(pe.add_sinusoidal(x, p, f, layout=layout), x + added)
        np.testing.assert_array_equal(pe.add_sinusoidal(0 * x[0], p, f, layout=layout), added)
    for width, f in ((7, 4), (7, 5), (8, 7), (8, 6)):
        with pytest.raises(ValueError, match=f"add_sinusoidal: frequencies of width {f} must match x"):
            pe.add_sinusoidal(np.ones((5, width), np.float32), p, f)


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


@pytest.mark.parametrize("dtype", [np.float32, slow(jnp.bfloat16)])
def test_a_batch_that_shares_a_table_gives_the_same_bits(dtype):
    x = np.random.default_rng(5).normal(size=(6, 33, 20)).astype(dtype)
    positions = np.arange(33, dtype=np.int32) * 60_000_000
    add = jax.jit(lambda x: (pe.add_sinusoidal(x), pe.add_sinusoidal(x, positions, scale=1.7)))
    together = np.asarray(add(x))
    for row in range(6):
        np.testing.assert_array_equal(add(x[row]), together[:, row], err_msg=f"row {row}")


def test_a_cpu_computes_what_a_batch_shares_once(on_cpu):
    of_batch = lambda batch: quick(pe.add_sinusoidal).lower(np.ones((batch, 64, 128), np.float32)).compile()  # noqa: E731
    assert of_batch(3).memory_analysis().temp_size_in_bytes == 0
    assert of_batch(16).memory_analysis().temp_size_in_bytes == 4 * 64 * 128
