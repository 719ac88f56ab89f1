"""Learned tables: never the wrong row; addition; resizing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.quick import quick
from helpers.tiers import slow, tiered
from oracles import recorded
from oracles.tables import centres, cubic, lengthened, linear

RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(7, 4)).astype(np.float32)


ROWS = [(shape, dtype) for dtype in (np.int32, np.uint8, np.int64, np.uint32) for shape in ((), (3,), (2, 3), (0,))]


@pytest.mark.parametrize(("shape", "dtype"), [rows if i % 5 == 0 else slow(*rows) for i, rows in enumerate(ROWS)])
def test_rows(shape, dtype):
    positions = RNG.integers(0, 7, shape).astype(dtype)
    np.testing.assert_array_equal(pe.learned(positions, TABLE), TABLE[positions])
    np.testing.assert_array_equal(jax.jit(pe.learned)(positions, TABLE), TABLE[positions])


OUTSIDE = [-1, -7, 7, 8, 2**31 - 1, -(2**31)]


@pytest.mark.parametrize("position", OUTSIDE)
def test_known_positions_out_of_range_are_an_error(position):
    message = f"learned: positions must be from 0 to 6, got {min(position, 2)} to {max(position, 2)}"
    for positions in (np.array([2, position]), jnp.array([2, position])):
        with pytest.raises(ValueError, match=message):
            pe.learned(positions, TABLE)
    with pytest.raises(ValueError, match="positions must be from 0 to 6"):
        pe.learned(position, TABLE)


@pytest.mark.parametrize("position", OUTSIDE)
def test_traced_positions_out_of_range_read_no_row(position):
    positions = np.array([2, position], np.int32)
    for rule in ("error", "nan"):
        got = jax.jit(lambda p, rule=rule: pe.learned(p, TABLE, out_of_range=rule))(positions)
        np.testing.assert_array_equal(got, [TABLE[2], [np.nan] * 4])
    np.testing.assert_array_equal(pe.learned(positions, TABLE, out_of_range="nan"), [TABLE[2], [np.nan] * 4])
    np.testing.assert_array_equal(pe.learned(positions, TABLE, out_of_range="zeros"), [TABLE[2], [0.0] * 4])
    wide = jax.jit(lambda p: pe.learned(p, TABLE))(positions.astype(np.uint32))
    np.testing.assert_array_equal(wide, [TABLE[2], [np.nan] * 4])


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.int8, int])
def test_known_positions_are_known_while_another_function_is_traced(dtype):
    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    within, beyond = (jnp.asarray(np.array(rows, dtype)) for rows in ([1, 3], [1, 7]))
    np.testing.assert_array_equal(jax.jit(lambda t: pe.learned(within, t))(table), table[[1, 3]])
    np.testing.assert_array_equal(jax.jit(lambda: pe.sinusoidal(within, 4))(), pe.sinusoidal(within, 4))
    with pytest.raises(ValueError, match="learned: positions must be from 0 to 4, got 1 to 7"):
        jax.jit(lambda t: pe.learned(beyond, t))(table)


def test_traced_int64_does_not_wrap():
    with jax.enable_x64(True):
        got = jax.jit(lambda p: pe.learned(p, TABLE))(np.array([1, 2**32 + 1], np.int64))
    np.testing.assert_array_equal(got, [TABLE[1], [np.nan] * 4])


def test_gradient_goes_to_the_rows_read_and_nowhere_else():
    positions = np.array([1, 1, 5, -1, 9], np.int32)
    tripled = jax.grad(lambda t: jnp.sum(pe.learned(positions, t, out_of_range="zeros") * 3.0))
    masked = jax.grad(lambda t: jnp.nansum(pe.learned(positions, t, out_of_range="nan")))
    zeros, nan = jax.jit(lambda t: (tripled(t), masked(t)))(TABLE)
    want = np.zeros_like(TABLE)
    want[1], want[5] = 6, 3
    np.testing.assert_array_equal(zeros, want)
    np.testing.assert_array_equal(nan, want / 3)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_dtype_is_that_of_the_table(dtype):
    got = pe.learned(np.array([3, -1]), TABLE.astype(dtype), out_of_range="nan")
    assert got.dtype == dtype and np.isnan(np.asarray(got)[1]).all()


def test_addition():
    x = RNG.normal(size=(2, 5, 4)).astype(np.float32)
    np.testing.assert_allclose(pe.add_learned(x, TABLE, scale=0.5), 0.5 * x + TABLE[:5], rtol=1e-6)
    positions = np.array([[6, 0, 2, 2, 1], [0, 1, 2, 3, 4]])
    np.testing.assert_allclose(pe.add_learned(x, TABLE, positions), x + TABLE[positions], rtol=1e-6)
    np.testing.assert_array_equal(pe.add_learned(x, TABLE, positions[1]), pe.add_learned(x, TABLE))
    nan = np.asarray(jax.jit(lambda p: pe.add_learned(x, TABLE, p))(positions + 3))
    assert np.isnan(nan[positions + 3 > 6]).all() and np.isfinite(nan[positions + 3 <= 6]).all()


def test_addition_keeps_the_dtype_of_x_and_rounds_once():
    x = RNG.normal(size=(3, 4)).astype(jnp.bfloat16)
    got = pe.add_learned(x, TABLE, scale=1.5)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got, (1.5 * x.astype(np.float32) + TABLE[:3]).astype(jnp.bfloat16))


def test_addition_has_the_same_bits_in_any_program():
    x, table = RNG.normal(size=(64, 12)).astype(np.float32), RNG.normal(size=(64, 12)).astype(np.float32)
    whole = np.asarray(jax.jit(lambda x: pe.add_learned(x, table, scale=1.7))(x))
    for i in range(0, 64, 7):
        row = pe.add_learned(x[i : i + 1], table, np.array([i]), scale=1.7)
        np.testing.assert_array_equal(row, whole[i : i + 1])
    packed = pe.add_learned(x.reshape(4, 2, 8, 12), table, np.arange(64).reshape(4, 2, 8), scale=1.7)
    np.testing.assert_array_equal(np.asarray(packed).reshape(64, 12), whole)


TORCH = {"method": "torch_cubic", "antialias": False}
ALIGNED = {"method": "linear", "antialias": False, "align_corners": True}
FADED = {"method": "linear", "antialias": False, "zeros_outside": True}
PLACED = [
    ALIGNED,
    FADED,
    TORCH | {"align_corners": True},
    TORCH | {"zeros_outside": True},
    TORCH | {"align_corners": True, "zeros_outside": True},
]
PLACES = ("align_corners", "zeros_outside")


def resized(table, *calls):
    """`pe.resize_table` of the table for each (shape, settings), in one program."""
    return quick(lambda t: [pe.resize_table(t, shape, **settings) for shape, settings in calls])(table)


def test_lengthening_is_linear_interpolation_at_cell_centres():
    lengths = 8, 14, 21, 70
    for length, got in zip(lengths, resized(TABLE, *((length, {}) for length in lengths)), strict=True):
        assert_within(got, lengthened(TABLE, length), 1e-6, against=f"interpolation of {length} rows")


def test_a_grid_is_resized_axis_by_axis():
    grid = RNG.normal(size=(3, 5, 2)).astype(np.float32)
    along = lambda t, axis, n: jax.vmap(lambda t: pe.resize_table(t, n), axis, axis)(t)  # noqa: E731
    got, want = quick(lambda t: (pe.resize_table(t, (6, 7)), along(along(t, 1, 6), 0, 7)))(grid)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)


def test_shrinking_averages():
    table = np.tile(np.array([[0.0], [1.0]], np.float32), (8, 1))  # alternating
    assert np.abs(np.asarray(pe.resize_table(table, 4)) - 0.5).max() < 0.13


@pytest.mark.parametrize("settings", [slow({"method": "linear"}), slow({"method": "cubic"}), TORCH], ids=str)
def test_resizing_keeps_bits_dtype_and_constants(settings):
    narrow, constant = TABLE.astype(jnp.bfloat16), np.full((5, 2), 3, np.float32)
    calls = (TABLE, 7), (narrow, 9), (narrow.astype(np.float32), 9), (constant, 11)
    tables, lengths = zip(*calls, strict=True)
    resize = lambda t, n: pe.resize_table(t, n, **settings)  # noqa: E731
    same, rounded, inside, threes = jax.jit(lambda tables: [*map(resize, tables, lengths)])(tables)
    np.testing.assert_array_equal(same, TABLE)
    assert rounded.dtype == jnp.bfloat16 and rounded.shape == (9, 4)
    np.testing.assert_array_equal(rounded, np.asarray(inside).astype(jnp.bfloat16))  # in float32, rounded once
    assert "HIGHEST" in str(jax.make_jaxpr(lambda t: resize(t, 9))(TABLE))  # no TF32
    np.testing.assert_allclose(threes, 3.0, rtol=1e-6)


def test_cubic_reproduces_a_parabola_where_it_has_neighbours():
    table = (np.arange(16.0) ** 2)[:, None].astype(np.float32)
    at = centres(16, 32)
    got, by_lines = map(np.asarray, resized(table, (32, {"method": "cubic"}), (32, {})))
    np.testing.assert_allclose(got[4:-4, 0], at[4:-4] ** 2, rtol=1e-5)
    assert np.abs(by_lines[4:-4, 0] - at[4:-4] ** 2).max() > 0.1


def peers(name):
    """Recorded cases by their grids, old and new."""
    found = {}
    for case in recorded.cases(name):
        found.setdefault((tuple(case["old"]), tuple(case["new"])), []).append(case)
    return found


def settings_of(case):
    if "interpolation" in case:
        return {"method": {"bicubic": "cubic", "bilinear": "linear"}[case["interpolation"]]}
    names = ("method", "antialias", "align_corners", "zeros_outside")
    return {name: case[name] for name in names if name in case}


@pytest.mark.parametrize(
    ("peer", "grids"),
    [
        (peer, grids) if grids == ((5, 7), (8, 6)) or grids == ((4, 7), (9, 5)) else slow(peer, grids)
        for peer in ("timm_resized", "torch_resized")
        for grids in peers(peer)
    ],
    ids=str,
)
def test_resizing_as_timm_and_torch_do(peer, grids):
    cases, (old, new) = peers(peer)[grids], grids
    settings = [*map(settings_of, cases)]
    tables = [np.float32(case["table"]).reshape(*old, 2) for case in cases]
    found = quick(lambda tables: [pe.resize_table(t, new, **s) for t, s in zip(tables, settings, strict=True)])(tables)
    for case, how, got in zip(cases, settings, found, strict=True):
        # torch rounds where it samples to float32, which counts for random tables of deviation 1.
        atol = 1e-5 if peer == "timm_resized" else 2e-6 if case["model"] == "torch" else 1e-7
        want = np.reshape(case["resized"], (*new, 2))
        assert_within(got, want, atol, against=f"{case.get('model', 'timm')} {how}")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        slow((14,), (31,)),
        slow((7,), (3,)),
        ((5, 7), (8, 6)),
        slow((1, 2), (4, 3)),
        slow((16, 3, 4), (37, 2, 9)),
        slow((512,), (700,)),
    ],
)
def test_cubic_convolution_with_the_kernel_of_torch(old, new):
    table = RNG.normal(size=(*old, 3)).astype(np.float32)
    got, want = pe.resize_table(table, new, **TORCH), cubic(table, new, -0.75)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6)
    assert np.abs(cubic(table, new, -0.5) - want).max() > 0.01
    np.testing.assert_array_equal(jax.jit(lambda t: pe.resize_table(t, new, **TORCH))(table), got)
    with jax.enable_x64(True):
        wide = pe.resize_table(table.astype(np.float64), new, **TORCH)
        assert wide.dtype == np.float64
        np.testing.assert_allclose(wide, want, rtol=0, atol=1e-14)


# Aligned corners, and zeros outside the table


def by_formula(table, new, settings):
    """In float64."""
    places = {name: settings.get(name, False) for name in PLACES}
    return linear(table, new, **places) if settings["method"] == "linear" else cubic(table, new, -0.75, **places)


GRIDS = [slow((6, 6), (4, 10)), ((1, 5, 7), (3, 1, 12)), ((9,), (25,))]


@pytest.mark.parametrize(("old", "new"), GRIDS, ids=str)
def test_where_rows_are_sampled_and_what_is_outside(old, new):
    table = RNG.normal(size=(*old, 2)).astype(np.float32)
    for settings, got in zip(PLACED, resized(table, *((new, settings) for settings in PLACED)), strict=True):
        want = by_formula(table, new, settings)
        assert_within(got, want, 2e-6, against=f"the formula in float64 of {settings}")
        for name in PLACES:  # linear weights are within the grid when corners are aligned
            other = by_formula(table, new, settings | {name: not settings.get(name, False)})
            same = name == "zeros_outside" and settings == ALIGNED
            assert (np.abs(other - want).max() > 0.01) != same, (settings, name)
        if len({*old}) < len(old):  # the axes exchanged
            assert np.abs(by_formula(table.swapaxes(0, 1), new, settings) - want).max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("settings", PLACED, ids=str)
@pytest.mark.parametrize(("old", "new"), GRIDS, ids=str)
def test_resizing_has_the_same_bits_under_jit(settings, old, new):
    table = RNG.normal(size=(*old, 2)).astype(np.float32)
    got = pe.resize_table(table, new, **settings)
    np.testing.assert_array_equal(jax.jit(lambda t: pe.resize_table(t, new, **settings))(table), got)


@pytest.mark.parametrize(("old", "new"), [((7, 7), (9, 5)), slow((6, 6), (6, 13))])
def test_sizes_with_an_offset_as_dinos_authors_resize(old, new):
    table = RNG.normal(size=(*old, 2)).astype(np.float32)
    calls = [(new, how | {"size_offset": 0.1}) for how in (TORCH, {"method": "linear", "antialias": False}, FADED)]
    for got, (_, how) in zip(resized(table, *calls), calls, strict=True):
        settings = {name: how[name] for name in ("size_offset", "zeros_outside") if name in how}
        resample = linear if how["method"] == "linear" else lambda *x, **more: cubic(*x, -0.75, **more)
        want = resample(table, new, **settings)
        assert_within(got, want, 2e-6, against=f"the formula in float64 of {how}")
        assert np.abs(resample(table, new, **settings | {"size_offset": 0.0}) - want).max() > 0.01


def test_aligned_corners_are_rows_at_equal_steps_from_the_first_to_the_last():
    table = np.random.default_rng(0).normal(size=(6, 6, 3)).astype(np.float32)
    got = pe.resize_table(table, (4, 10), **ALIGNED)

    def at_steps(line, new):
        return np.interp(np.linspace(0, 5, new), np.arange(6), line)

    want = np.apply_along_axis(at_steps, 1, np.apply_along_axis(at_steps, 0, table, 4), 10)
    assert_within(got, want, 1e-6, against="np.interp")
    np.testing.assert_allclose(want[0, 1], [0.11415794, -0.35630737, 0.48551843], rtol=0, atol=1e-7)


@pytest.mark.parametrize("settings", [ALIGNED, slow(FADED), PLACED[-1]], ids=str)
def test_places_keep_what_they_must(settings):
    narrow = TABLE.astype(jnp.bfloat16)
    calls = (TABLE, 7), (TABLE, 9), (TABLE, 1), (narrow, 9), (narrow.astype(np.float32), 9)
    tables, lengths = zip(*calls, strict=True)
    resize = lambda t, n: pe.resize_table(t, n, **settings)  # noqa: E731
    found = jax.jit(lambda tables: [*map(resize, tables, lengths)])(tables)
    same, wide, one, rounded, inside = map(np.asarray, found)
    np.testing.assert_array_equal(same, TABLE)
    if settings.get("align_corners"):
        np.testing.assert_array_equal(wide[[0, -1]], TABLE[[0, -1]])
        np.testing.assert_array_equal(one, TABLE[:1])
    else:
        fades = np.abs(wide[0] / TABLE[0] - 1) > 0.01
        assert fades.all()
    np.testing.assert_array_equal(rounded, inside.astype(jnp.bfloat16))  # computed in float32, rounded once
    with jax.enable_x64(True):
        exact = pe.resize_table(TABLE.astype(np.float64), 9, **settings)
    assert exact.dtype == np.float64
    np.testing.assert_allclose(exact, by_formula(TABLE, (9,), settings), rtol=0, atol=1e-14)
    assert "HIGHEST" in str(jax.make_jaxpr(lambda t: resize(t, 9))(TABLE))  # no TF32


LINEAR = [{"method": "linear"}, {"method": "cubic"}, {"method": "cubic", "antialias": False}, TORCH, *PLACED[:4:3]]


@pytest.mark.parametrize("settings", tiered(LINEAR, [TORCH]), ids=str)
def test_resizing_is_linear_in_the_table(settings):
    table, ct = RNG.normal(size=(4, 5, 2)).astype(np.float32), RNG.normal(size=(7, 3, 2)).astype(np.float32)
    f = lambda t: pe.resize_table(t, (7, 3), **settings)  # noqa: E731

    @quick
    def compute(table, ct, entries):
        y, back = jax.vjp(f, table)
        return y, jax.jvp(f, (table,), (2 * table,))[1], back(ct)[0], jax.vmap(f)(entries)

    # The matrix has a row for each entry.
    y, moved, back, matrix = map(np.asarray, compute(table, ct, np.eye(40, dtype=np.float32).reshape(40, 4, 5, 2)))
    np.testing.assert_allclose(moved, 2 * y, rtol=0, atol=2e-6)
    np.testing.assert_allclose(back.reshape(-1), matrix.reshape(40, -1) @ ct.reshape(-1), rtol=0, atol=3e-6)


def test_without_antialiasing_shrinking_drops_rows():
    table = np.float32([0, 0, 0, 0, 9, 0, 0, 0, 0])[:, None]
    calls = [{"antialias": False}, {}, {"method": "cubic", "antialias": False}]
    dropped, averaged, of_cubic = map(np.asarray, resized(table, *((3, settings) for settings in calls)))
    assert dropped[1, 0] == 9 > averaged[1, 0]
    assert of_cubic[1, 0] == 9


def test_resizing_to_2_31_rows_is_refused():
    with pytest.raises(ValueError, match=r"^resize_table: shape must have fewer than 2³¹ rows, got \(65536, 32768\)"):
        jax.eval_shape(lambda table: pe.resize_table(table, (2**16, 2**15)), np.ones((2, 2, 1), np.float32))


def test_one_vector_at_one_position():
    x = RNG.normal(size=4).astype(np.float32)
    np.testing.assert_array_equal(pe.add_learned(x, TABLE, 3), x + TABLE[3])
    with pytest.raises(
        ValueError, match=r"^add_learned: positions must be given where x has no sequence axis, shape \(4,\)"
    ):
        pe.add_learned(x, TABLE)


X = np.zeros((2, 5, 4), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: pe.learned(np.array([0.5], np.float32), TABLE), TypeError, r"learned: positions must be an integer array, got float32 of shape \(1,\)"),
        (lambda: pe.learned(1.0, TABLE), TypeError, "learned: positions must be an integer array, got float"),
        (lambda: pe.learned(True, TABLE), TypeError, "learned: positions must be an integer array, got bool True"),
        (lambda: pe.learned(1, TABLE.astype(int)), TypeError, r"learned: table must be a float array of shape \(length, dim\), got int64"),
        (lambda: pe.learned(1, TABLE[0]), ValueError, r"learned: table must have shape \(length, dim\) with length at least 1, got \(4,\)"),
        (lambda: pe.learned(1, TABLE[None]), ValueError, r"learned: table must have shape \(length, dim\) .* got \(1, 7, 4\)"),
        (lambda: pe.learned(1, TABLE[:0]), ValueError, r"learned: table must have shape .* length at least 1, got \(0, 4\)"),
        (lambda: pe.resize_table(TABLE[:0], 3), ValueError, r"resize_table: table must have at least one row, got \(0, 4\)"),
        (lambda: pe.resize_table(np.ones((2, 0, 4), np.float32), (3, 3)), ValueError, r"resize_table: table must have at least one row, got \(2, 0, 4\)"),
        (lambda: pe.learned(1, TABLE, out_of_range="clip"), ValueError, "learned: out_of_range must be one of .* got 'clip'"),  # type: ignore
        (lambda: pe.add_learned(np.zeros((8, 4), np.float32), TABLE), ValueError, "add_learned: table of 7 rows is too small for a sequence of 8"),
        (lambda: jax.jit(pe.add_learned)(np.zeros((8, 4), np.float32), TABLE), ValueError, "table of 7 rows is too small for a sequence of 8"),
        (lambda: pe.add_learned(X, TABLE, np.arange(3, 8)), ValueError, "add_learned: positions must be from 0 to 6, got 3 to 7"),
        (lambda: pe.add_learned(X, TABLE, np.arange(4)), ValueError, r"add_learned: positions of shape \(4,\) must broadcast to x without its last axis, shape \(2, 5\)"),
        (lambda: pe.add_learned(X[..., :3], TABLE), ValueError, r"add_learned: table of width 4 must match x, shape \(2, 5, 3\)"),
        (lambda: pe.add_learned(X.astype(int), TABLE), TypeError, "add_learned: x must be a float array"),
        (lambda: pe.add_learned(X, TABLE, scale=X[0]), ValueError, "add_learned: scale must be a scalar"),
        (lambda: pe.resize_table(TABLE, (3, 4)), ValueError, r"resize_table: shape must have 1 entries for a table of shape \(7, 4\), got \(3, 4\)"),
        (lambda: pe.resize_table(TABLE, 0), ValueError, "resize_table: each entry of shape must be at least 1, got 0"),
        (lambda: pe.resize_table(TABLE, 2.5), TypeError, "resize_table: each entry of shape must be an integer, got float 2.5"),  # type: ignore
        (lambda: pe.resize_table(TABLE, (2.5,)), TypeError, "resize_table: each entry of shape must be an integer, got float 2.5"),  # type: ignore
        (lambda: pe.resize_table(TABLE.astype(int), 3), TypeError, "resize_table: table must be a float array"),
        (lambda: pe.resize_table(TABLE, 3, method="torch_cubic"), ValueError, "resize_table: antialias must be False for method='torch_cubic'; PyTorch's antialiased bicubic is 'cubic'"),
        (lambda: pe.resize_table(TABLE, 3, align_corners=True), ValueError, "resize_table: antialias must be False for align_corners=True, got True"),
        (lambda: pe.resize_table(TABLE, 3, zeros_outside=True), ValueError, "resize_table: antialias must be False for zeros_outside=True, got True"),
        (lambda: pe.resize_table(TABLE, 3, method="cubic", antialias=False, align_corners=True), ValueError, "resize_table: method must be 'linear' or 'torch_cubic' for align_corners=True, got 'cubic'"),
        (lambda: pe.resize_table(TABLE, 3, method="cubic", antialias=False, zeros_outside=True), ValueError, "resize_table: method must be 'linear' or 'torch_cubic' for zeros_outside=True, got 'cubic'"),
        (lambda: pe.resize_table(TABLE, 3, align_corners=1), TypeError, "resize_table: align_corners must be True or False, got int 1"),  # type: ignore
        (lambda: pe.resize_table(TABLE, 3, **TORCH, size_offset=1), ValueError, "resize_table: size_offset must be from 0 to below 1, got 1"),
        (lambda: pe.resize_table(TABLE, 3, size_offset=0.1), ValueError, "resize_table: size_offset must be 0 with antialias, align_corners or 'cubic', got 0.1"),
        (lambda: pe.resize_table(TABLE, 3, method="cubic", antialias=False, size_offset=0.1), ValueError, "resize_table: size_offset must be 0 with"),
        (lambda: pe.resize_table(TABLE, 3, **ALIGNED, size_offset=0.1), ValueError, "resize_table: size_offset must be 0 with"),
        (lambda: pe.resize_table(TABLE, 3, size_offset="0.1"), TypeError, "resize_table: size_offset must be a number"),  # type: ignore
        (lambda: pe.resize_table(TABLE, 3, zeros_outside="border"), TypeError, "resize_table: zeros_outside must be True or False, got str 'border'"),  # type: ignore
        (lambda: pe.resize_table(TABLE, 3, antialias=1), TypeError, "resize_table: antialias must be True or False, got int 1"),  # type: ignore
        (lambda: pe.resize_table(TABLE, 3, method="nearest"), ValueError, "resize_table: method must be one of"),  # type: ignore
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
