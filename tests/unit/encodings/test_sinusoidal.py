"""`sinusoidal` and `add_sinusoidal`.

- Each feature is within 9e-8 of the truth at every int32 position, for every width, base and layout.
- Numbers of Python are taken at their exact value. Positions may be points of a grid.
- Narrow results are the float32 value, rounded once.
- `add_sinusoidal` adds in float32 (float64 for float64) and rounds once. The last feature of an odd width may have no
  encoding.
- Derivatives are those of the formula.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_rounded_once, assert_within
from helpers.differences import assert_derivatives
from oracles import encodings, recorded

RNG = np.random.default_rng(0)
NOTEBOOKS = recorded.read("notebook_values")
FAR = np.int32([0, 3, -17, 1_000_003, 2**31 - 1, -(2**31)])
X = RNG.normal(size=(2, 3, 5, 8)).astype(np.float32)


# The encoding


def test_it_gives_the_values_that_notebooks_print_at_width_6():
    expected = NOTEBOOKS["d6_len10"]
    table = np.asarray(pe.sinusoidal(np.arange(expected["length"]), expected["d_model"]))
    np.testing.assert_allclose(table, expected["encoding"], rtol=0, atol=expected["abs_tol"])


def test_it_gives_the_values_that_notebooks_print_at_width_10():
    expected = NOTEBOOKS["d10_len10"]
    table = np.asarray(pe.sinusoidal(np.arange(expected["length"]), expected["d_model"]))
    np.testing.assert_allclose(table[:, 0::2], expected["sin"], rtol=expected["rel_tol"], atol=1e-12)
    first = expected["encoding_first_6_rows"]
    np.testing.assert_allclose(table[: len(first)], first, rtol=expected["rel_tol"], atol=1e-12)


@pytest.mark.parametrize(
    ("dim", "base", "endpoint", "layout"),
    [(1, 10_000, False, "interleaved"), (7, 100, False, "half"), (8, 10_000, True, "interleaved")],
)
def test_features_are_exact_at_any_position(dim, base, endpoint, layout):
    f = pe.geometric(dim, base, endpoint=endpoint)
    got = jax.jit(lambda p: pe.sinusoidal(p, f, layout=layout))(FAR)
    assert_within(got, encodings.encode(FAR, dim, base, layout, endpoint), 9e-8, against="mpmath")


def test_numbers_of_python_are_exact():
    for p in (16_777_217, 2**31 - 1, -(2**31)):
        np.testing.assert_array_equal(pe.sinusoidal(float(p), 8), pe.sinusoidal(p, 8))
    np.testing.assert_array_equal(pe.sinusoidal(0.1, 8), pe.sinusoidal(np.float32(0.1), 8))
    assert np.isnan(pe.sinusoidal(float("nan"), 8)).all() and np.isnan(pe.sinusoidal(float("inf"), 8)).all()


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_an_axial_encoding_has_the_features_of_each_axis_or_the_sines_and_then_the_cosines(layout):
    grid = 1000 * np.stack(np.meshgrid(np.arange(2), np.arange(3), indexing="ij"), -1)
    first, second = (encodings.encode(grid[..., axis].ravel(), 8, layout=layout) for axis in range(2))
    halves = [first[:, :4], second[:, :4], first[:, 4:], second[:, 4:]]
    want = np.concatenate(halves if layout == "half" else [first, second], -1).reshape(2, 3, 16)
    assert_within(pe.sinusoidal(grid, pe.axial(16, 2), layout=layout), want, 9e-8, against="mpmath")


def test_a_narrow_result_is_the_float32_value_rounded_once():
    positions = RNG.integers(-(2**31), 2**31, 2000).astype(np.int32)
    got, wide = jax.jit(lambda p: (pe.sinusoidal(p, 32, dtype="bfloat16"), pe.sinusoidal(p, 32)))(positions)
    np.testing.assert_array_equal(got, np.asarray(wide).astype(jnp.bfloat16), strict=True)


def test_a_float64_result_needs_x64():
    with jax.enable_x64(True):
        got, narrow = jax.jit(lambda p: (pe.sinusoidal(p, 6, dtype=jnp.float64), pe.sinusoidal(p, 6)))(FAR)
    np.testing.assert_array_equal(got, np.float64(narrow), strict=True)
    with jax.enable_x64(False), pytest.raises(TypeError, match="^sinusoidal: dtype is float64, which jax_enable_x64=F"):
        pe.sinusoidal(0, 8, dtype=np.float64)


def test_derivatives_in_positions_and_frequencies_are_those_of_the_formula():
    def exact(p, w):
        return np.stack([np.sin(p[:, None] * w), np.cos(p[:, None] * w)], -1).reshape(5, 6)

    assert_derivatives(pe.sinusoidal, exact, np.linspace(-2, 3, 5, dtype=np.float32), np.float32([1.3, 0.2, 0.7]))


# The addition


@pytest.mark.parametrize(("layout", "scale"), [("interleaved", np.sqrt(8)), ("half", 1.0)])
def test_positions_count_from_zero_along_the_sequence(layout, scale):
    want = scale * np.float64(X) + encodings.encode(np.arange(5), 8, layout=layout)
    got = jax.jit(lambda x: pe.add_sinusoidal(x, layout=layout, scale=scale))(X)
    assert_within(got, want, 3e-7 * np.abs(want) + 2e-7, against="mpmath")


@pytest.mark.parametrize("shape", [(5,), (2, 1, 5)], ids=str)
def test_positions_broadcast_to_vectors(shape):
    p = RNG.integers(-(2**31), 2**31, shape).astype(np.int32)
    want = X + encodings.encode(np.broadcast_to(p, (2, 3, 5)).ravel(), 8, 77.0).reshape(X.shape)
    got = jax.jit(lambda x, p: pe.add_sinusoidal(x, p, pe.geometric(8, 77.0)))(X, p)
    assert_within(got, want, 3e-7 * np.abs(want) + 2e-7, against="mpmath")


def test_one_vector_has_one_position():
    want = X[0, 0, :1] + encodings.encode([7], 8)
    assert_within(pe.add_sinusoidal(X[0, 0, 0], 7), want[0], 5e-7, against="mpmath")


@pytest.mark.parametrize(
    ("frequencies", "layout"),
    [(pe.geometric(6, endpoint=True), "half"), (np.float32([1.0, 0.1, 0.01]), "interleaved")],
    ids=["Frequencies", "array"],
)
def test_an_odd_width_may_end_without_an_encoding(frequencies, layout):
    """As in Tensor2Tensor and the Flax examples."""
    x, p = np.ones((2, 5, 7), np.float32), np.int32([3, 0, 1, 2**31 - 1, -7])
    settings = {"frequencies": frequencies, "layout": layout}
    both = jax.jit(lambda x, p: (pe.sinusoidal(p, **settings), pe.add_sinusoidal(x, p, **settings)))
    encoding, got = both(x, p)
    np.testing.assert_array_equal(got, x + np.pad(encoding, [(0, 0), (0, 1)]))


def test_a_narrow_sum_is_rounded_once():
    assert_rounded_once(lambda x: pe.add_sinusoidal(x, scale=1.7), X.astype(jnp.bfloat16))


def test_a_sum_of_float64_is_float64():
    with jax.enable_x64(True):
        x = RNG.normal(size=(4, 6))
        got, encoding = jax.jit(lambda x: (pe.add_sinusoidal(x, scale=3), pe.sinusoidal(np.arange(4), 6)))(x)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, 3 * x + np.asarray(encoding, np.float64), rtol=1e-15)


def test_derivatives_of_the_sum_are_those_of_the_formula():
    def exact(x, p, w, scale):
        return scale * x + np.concatenate([np.sin(p[:, None] * w), np.cos(p[:, None] * w)], -1)

    f = lambda x, p, w, scale: pe.add_sinusoidal(x, p, w, layout="half", scale=scale)  # noqa: E731
    x, p = X[0, 0, :, :6], np.linspace(-2, 3, 5, dtype=np.float32)
    assert_derivatives(f, exact, x, p, np.float32([1.3, 0.2, 0.7]), np.float32(1.7))


def test_a_batch_that_shares_a_table_has_the_bits_of_each_row():
    x, positions = RNG.normal(size=(6, 33, 20)).astype(np.float32), np.arange(33, dtype=np.int32) * 60_000_000
    add = jax.jit(lambda x: pe.add_sinusoidal(x, positions, scale=1.7))
    together = np.asarray(add(x))
    for row, want in zip(x, together, strict=True):
        np.testing.assert_array_equal(add(row), want)


@pytest.mark.parametrize(("batch", "table_bytes"), [(3, 0), (16, 4 * 64 * 128)])
def test_a_cpu_computes_what_a_large_batch_shares_once(batch, table_bytes, on_cpu):
    """It stores the float32 table of encodings for a batch of 16, and nothing for a batch of 3."""
    compiled = jax.jit(pe.add_sinusoidal).lower(np.ones((batch, 64, 128), np.float32)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes == table_bytes


# Errors


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (ValueError, r"layout must be one of \('interleaved', 'half'\)", {"layout": "split"}),
        (TypeError, "dtype must be a float dtype", {"dtype": jnp.int32}),
        (ValueError, "positions must have a last axis of size 2", {"frequencies": pe.axial(8, 2)}),
    ],
)
def test_invalid_settings_raise(error, match, change):
    with pytest.raises(error, match=f"^sinusoidal: {match}"):
        pe.sinusoidal(**{"positions": 3, "frequencies": 8} | change)


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (TypeError, r"x must be a float array of shape \(..., d_model\)", {"x": X.astype(int)}),
        (ValueError, "frequencies of width 5 must match x", {"x": X[..., :6], "frequencies": 5}),
        (ValueError, "frequencies of width 8 must match x", {"x": X[..., :7], "frequencies": 8}),
        (ValueError, r"positions of shape \(4,\) must broadcast to x without", {"positions": np.arange(4)}),
        (TypeError, "scale must be a number", {"scale": True}),
        (ValueError, "scale must be a scalar", {"scale": np.ones(8, np.float32)}),
        (ValueError, "layout must be one of", {"layout": "halves"}),
    ],
)
def test_invalid_arguments_of_the_addition_raise(error, match, change):
    with pytest.raises(error, match=f"^add_sinusoidal: {match}"):
        pe.add_sinusoidal(**{"x": X} | change)
