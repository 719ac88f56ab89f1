"""`learned`, `add_learned` and `resize_table`.

- A position reads its row, in the table's dtype. A position out of range raises, or gives NaN or zeros.
- Rows that are read get a gradient, and no others.
- A sum is computed in float32 and rounded once.
- A resized table is the formula, and what timm and torch compute, with antialiasing and without.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_rounded_once, assert_within
from helpers.differences import assert_derivatives
from helpers.slow import slow
from oracles import recorded
from oracles.tables import cubic, linear

RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(7, 4)).astype(np.float32)
X = RNG.normal(size=(2, 5, 4)).astype(np.float32)
ROWS = np.array([[6, 0, 2, 2, 1], [0, 1, 2, 3, 4]])


# Rows


@pytest.mark.parametrize(("shape", "dtype"), [((), np.int32), ((2, 3), np.uint8)])
def test_a_position_reads_its_row(shape, dtype):
    positions = RNG.integers(0, 7, shape).astype(dtype)
    np.testing.assert_array_equal(jax.jit(pe.learned)(positions, TABLE), TABLE[positions])


def test_a_table_may_have_one_row():
    assert jax.eval_shape(lambda: pe.learned(0, TABLE[:1])).shape == (4,)
    np.testing.assert_array_equal(pe.resize_table(TABLE[:1], 3), TABLE[[0, 0, 0]])


@pytest.mark.parametrize("position", [-1, 7])
def test_a_concrete_position_out_of_range_raises(position):
    message = f"^learned: positions must be from 0 to 6, got {min(position, 2)} to {max(position, 2)}"
    for positions in (np.array([2, position]), jnp.asarray(np.int32([2, position]))):
        with pytest.raises(ValueError, match=message):
            pe.learned(positions, TABLE)


@pytest.mark.parametrize(("rule", "fill"), [("error", np.nan), ("nan", np.nan), ("zeros", 0)])
def test_a_traced_position_out_of_range_reads_no_row(rule, fill):
    outside = np.int32([2, -1, -7, 7, 2**31 - 1, -(2**31)])
    got = jax.jit(lambda p: pe.learned(p, TABLE, out_of_range=rule))(outside)
    np.testing.assert_array_equal(got, [TABLE[2]] + 5 * [[fill] * 4])


def test_concrete_positions_are_checked_while_another_function_is_traced():
    within, beyond = jnp.array([1, 3]), jnp.array([1, 7])
    np.testing.assert_array_equal(jax.jit(lambda t: pe.learned(within, t))(TABLE), TABLE[[1, 3]])
    with pytest.raises(ValueError, match="^learned: positions must be from 0 to 6, got 1 to 7"):
        jax.jit(lambda t: pe.learned(beyond, t))(TABLE)


def test_rows_that_are_read_get_a_gradient_and_no_others():
    positions = np.array([1, 1, 5, -1, 9], np.int32)
    got = jax.jit(jax.grad(lambda t: jnp.nansum(pe.learned(positions, t, out_of_range="nan") * 3.0)))(TABLE)
    np.testing.assert_array_equal(got, 3 * np.eye(7, dtype=np.float32)[[1, 1, 5]].sum(0)[:, None] * np.ones(4))


def test_a_row_has_the_dtype_of_the_table_and_a_concrete_position_out_of_range_may_give_nan():
    got = np.asarray(pe.learned(np.array([3, -1]), TABLE.astype(jnp.bfloat16), out_of_range="nan"))
    assert got.dtype == jnp.bfloat16 and np.isnan(got[1]).all()


# Sums


def test_positions_count_from_zero_or_are_given():
    add = pe.add_learned
    three = jax.jit(lambda x, table: (add(x, table, scale=0.5), add(x, table, ROWS), add(x[0, 0], table, 3)))
    wants = 0.5 * X + TABLE[:5], X + TABLE[ROWS], X[0, 0] + TABLE[3]
    for got, want in zip(three(X, TABLE), wants, strict=True):
        np.testing.assert_array_equal(got, want)


def test_nothing_is_added_at_a_position_out_of_range_with_zeros():
    got = jax.jit(lambda p: pe.add_learned(X, TABLE, p, out_of_range="zeros"))(ROWS + 3)
    rows = np.concatenate([TABLE, np.zeros_like(TABLE)])
    np.testing.assert_array_equal(got, X + rows[ROWS + 3])


def test_a_sum_keeps_the_dtype_of_x_and_is_rounded_once():
    x = X.astype(jnp.bfloat16)
    want = (1.5 * x.astype(np.float32) + TABLE[:5]).astype(jnp.bfloat16)
    add = jax.jit(pe.add_learned, static_argnames="scale")
    np.testing.assert_array_equal(add(x, TABLE, scale=1.5), want, strict=True)
    with jax.enable_x64(True):
        wide = add(X, TABLE.astype(np.float64), scale=1 / 3)
    np.testing.assert_array_equal(wide, (X.astype(np.float64) / 3 + TABLE[:5]).astype(np.float32), strict=True)


def test_derivatives_of_a_sum_are_those_of_the_formula():
    f = lambda x, table, scale: pe.add_learned(x, table, ROWS, scale=scale)  # noqa: E731
    assert_derivatives(f, lambda x, table, scale: scale * x + table[ROWS], X, TABLE, np.float32(1.7))


# Tables of another shape

TORCH = {"method": "torch_cubic", "antialias": False}
ALIGNED = {"method": "linear", "antialias": False, "align_corners": True}
OFFSET = {"size_offset": 0.1}
# How positions of the new rows are placed in the old table, with the settings that allow each way
PLACED = [
    TORCH | {"align_corners": True, "zeros_outside": True},
    TORCH | OFFSET,
    {"method": "linear", "antialias": False} | OFFSET,
    {"method": "linear", "antialias": False, "zeros_outside": True} | OFFSET,
]


def resized(table, shape, **settings):
    return np.asarray(jax.jit(lambda t: pe.resize_table(t, shape, **settings))(table))


@pytest.mark.parametrize("settings", PLACED, ids=str)
def test_rows_are_sampled_where_the_formula_says(settings):
    """The table has 1, 5 and 7 rows along its axes, and gets 3, 1 and 12."""
    table, placement = RNG.normal(size=(1, 5, 7, 2)), dict(settings)
    assert not placement.pop("antialias")
    exact = {"linear": linear, "torch_cubic": cubic}[placement.pop("method")]
    with jax.enable_x64(True):
        got = resized(table, (3, 1, 12), **settings)
    assert got.dtype == np.float64
    assert_within(got, exact(table, (3, 1, 12), **placement), 1e-14, against="float64")


# By default, only those of torch with 9 × 5 new rows run.
PEERS = recorded.cases("timm_resized") + recorded.cases("torch_resized")


@pytest.mark.parametrize(
    "case", [case if case.get("model") == "torch" and case["new"] == [9, 5] else slow(case) for case in PEERS]
)
def test_resizing_is_that_of_timm_and_torch(case):
    settings = {name: case[name] for name in ("method", "antialias", "align_corners", "zeros_outside") if name in case}
    if "interpolation" in case:
        settings["method"] = {"bicubic": "cubic", "bilinear": "linear"}[case["interpolation"]]
    # torch rounds the positions that it samples at to float32, which matters for its tables of random numbers.
    atol = {"timm": 1e-5, "torch": 2e-6}.get(case.get("model", "timm"), 1e-7)
    got = resized(np.float32(case["table"]).reshape(*case["old"], 2), tuple(case["new"]), **settings)
    assert_within(got, np.reshape(case["resized"], got.shape), atol, against="what they record")


@pytest.mark.parametrize("settings", [{"method": "cubic"}, TORCH], ids=str)
def test_the_same_length_keeps_bits_and_another_has_no_tf32(settings):
    """Products have the precision HIGHEST, or a GPU would round them to TF32."""
    np.testing.assert_array_equal(resized(TABLE, 7, **settings), TABLE)
    assert "HIGHEST" in str(jax.make_jaxpr(lambda t: pe.resize_table(t, 9, **settings))(TABLE))


def test_a_resized_table_in_16_bits_is_rounded_once():
    assert_rounded_once(lambda table: pe.resize_table(table, 9, **TORCH), TABLE.astype(jnp.bfloat16))


# Errors


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (TypeError, "positions must be an integer array", {"positions": np.float32([0.5])}),
        (TypeError, r"table must be a float array of shape \(length, dim\)", {"table": TABLE.astype(int)}),
        (ValueError, r"table must have shape \(length, dim\) .* at least 1", {"table": TABLE[0]}),
        (ValueError, "table must have shape .* length at least 1", {"table": TABLE[:0]}),
        (ValueError, "out_of_range must be one of", {"out_of_range": "clip"}),
    ],
)
def test_invalid_arguments_of_learned_raise(error, match, change):
    with pytest.raises(error, match=f"^learned: {match}"):
        pe.learned(**{"positions": 1, "table": TABLE} | change)


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (ValueError, "table of 4 rows is too small for a sequence of 5", {"table": TABLE[:4]}),
        (ValueError, "table of width 4 must match x", {"x": X[..., :3]}),
        (ValueError, "positions must be from 0 to 6", {"positions": np.arange(3, 8)}),
        (ValueError, r"positions of shape \(4,\) must broadcast to x without", {"positions": np.arange(4)}),
        (ValueError, "positions must not be one for all 5 vectors of x", {"positions": 3}),
        (ValueError, "positions must be given where x has no sequence axis", {"x": X[0, 0]}),
        (ValueError, "scale must be a scalar", {"scale": X[0]}),
    ],
)
def test_invalid_arguments_of_add_learned_raise(error, match, change):
    with pytest.raises(error, match=f"^add_learned: {match}"):
        pe.add_learned(**{"x": X, "table": TABLE} | change)


def test_arrays_that_a_mesh_shards_differently_raise(on_cpu):
    explicit = (jax.sharding.AxisType.Explicit,) * 2
    with jax.set_mesh(jax.make_mesh((2, 2), ("a", "b"), explicit, devices=jax.devices("cpu")[:4])):
        sharded = lambda x, *axes: jax.typeof(jax.device_put(x, jax.P(*axes)))  # noqa: E731
        table = sharded(TABLE, None, "a")
        with pytest.raises(ValueError, match="^learned: positions, table must be sharded alike"):
            jax.eval_shape(pe.learned, sharded(np.arange(2), "a"), table)
        with pytest.raises(ValueError, match="^add_learned: x, table must be sharded alike"):
            jax.eval_shape(pe.add_learned, sharded(X, None, None, "b"), table)


CUBIC = {"method": "cubic", "antialias": False}


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (TypeError, r"table must be a float array of shape \(length, dim\)", {"table": TABLE.astype(int)}),
        (ValueError, "table must have at least one row", {"table": TABLE[:0]}),
        (ValueError, r"shape must have 1 entries for a table of shape \(7, 4\)", {"shape": (3, 4)}),
        (ValueError, "each entry of shape must be at least 1", {"shape": 0}),
        (TypeError, "each entry of shape must be an integer", {"shape": (2.5,)}),
        (ValueError, "shape must have fewer than 2³¹ rows", {"table": X, "shape": (2**16, 2**15)}),
        (ValueError, "method must be one of", {"method": "nearest"}),
        (TypeError, "antialias must be True or False", {"antialias": 1}),
        (ValueError, "antialias must be False for method='torch_cubic'", {"method": "torch_cubic"}),
        (ValueError, "antialias must be False for align_corners=True", {"align_corners": True}),
        (ValueError, "antialias must be False for zeros_outside=True", {"zeros_outside": True}),
        (ValueError, "method must be .* for align_corners=True", CUBIC | {"align_corners": True}),
        (ValueError, "method must be .* for zeros_outside=True", CUBIC | {"zeros_outside": True}),
        (TypeError, "align_corners must be True or False", {"align_corners": 1}),
        (TypeError, "zeros_outside must be True or False", {"zeros_outside": "border"}),
        (TypeError, "size_offset must be a number", {"size_offset": "0.1"}),
        (ValueError, "size_offset must be from 0 to below 1", TORCH | {"size_offset": 1}),
        (ValueError, "size_offset must be from 0 to below 1", TORCH | {"size_offset": -0.5}),
        (ValueError, "size_offset must be 0 with antialias, align_corners or 'cubic'", OFFSET),
        (ValueError, "size_offset must be 0 with", CUBIC | OFFSET),
        (ValueError, "size_offset must be 0 with", ALIGNED | OFFSET),
    ],
)
def test_invalid_arguments_of_resize_table_raise(error, match, change):
    with pytest.raises(error, match=f"^resize_table: {match}"):
        pe.resize_table(**{"table": TABLE, "shape": 3} | change)
