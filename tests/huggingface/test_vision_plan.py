"""`VisionPlan`: where patches are, in which order, and how slices of a head rotate by themselves."""

import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.quick import quick
from helpers.tiers import thorough
from oracles import rotations
from posenc_jax.hf import PatchGrid, RotaryLayer, RotaryPlan, VisionPlan, vision_rotary_from_config

RNG = np.random.default_rng(0)
PLAIN = {"hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 2}
GEMMA = vision_rotary_from_config({"model_type": "gemma4_vision", "head_dim": 16, "num_hidden_layers": 2})
QWEN = vision_rotary_from_config(PLAIN | {"model_type": "qwen2_5_vl_vision", "patch_size": 14, "window_size": 112})
LAYERS = (RotaryLayer(pe.axial(8, 2), 8),)


def at(shape, layer=None, **grid):
    plan = VisionPlan(LAYERS, "half", grids=(PatchGrid(**grid),))
    return np.asarray(plan.positions(shape, layer))


# Positions, against loops


def squares(rows, columns, side):
    """The patches of rows × columns, square by square, which end where the grid does."""
    for top in range(rows.start, rows.stop, side):
        for left in range(columns.start, columns.stop, side):
            yield range(top, min(top + side, rows.stop)), range(left, min(left + side, columns.stop))


@pytest.mark.parametrize(("height", "width"), [(2, 2), (4, 6), (6, 4), (10, 14), (14, 6)])
def test_squares_and_windows(height, width):
    for window in (0, 1, 2, 3):
        want = []
        for rows, columns in squares(range(height), range(width), 2 * window or 99):
            for inner_rows, inner_columns in squares(rows, columns, 2):
                want += [[r, c] for r in inner_rows for c in inner_columns]
        np.testing.assert_array_equal(at((height, width), merge=2, window=window), want)
        got = at((3, height, width), merge=2, window=window)
        np.testing.assert_array_equal(got, want * 3)


def test_windows_of_patches():
    want = [[r + 1, c + 1] for rows, columns in squares(range(5), range(7), 3) for r in rows for c in columns]
    np.testing.assert_array_equal(at((5, 7), window=3, offset=1), want)


def test_tokens_beside_patches():
    np.testing.assert_array_equal(at((1, 2), leading=2, offset=1), [[0, 0], [0, 0], [1, 1], [1, 2]])
    np.testing.assert_array_equal(at((1, 2), trailing=1, offset=1), [[1, 1], [1, 2], [0, 0]])
    np.testing.assert_array_equal(at((2, 1, 2), leading=1), [[0, 0], [0, 0], [0, 1], [0, 0], [0, 1]])
    np.testing.assert_array_equal(at((9, 9), inside=2), [[0, 0], [0, 1], [1, 0], [1, 1]])


def test_frames():
    want = [[t, r, c] for t in range(2) for c in range(2) for r in range(2)]  # one square each
    plan = VisionPlan((RotaryLayer(pe.axial((4, 2, 2)), 8),), "half", grids=(PatchGrid(timed=True, merge=2),))
    np.testing.assert_array_equal(np.sort(plan.positions((2, 2, 2)), 0), np.sort(want, 0))
    assert plan.positions((2, 2)).tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]]
    assert np.asarray(plan.positions((2, 2, 2)))[4:].tolist() == [[1, 0, 0], [1, 0, 1], [1, 1, 0], [1, 1, 1]]


def test_centres():
    got = at((3, 5), centres=True, leading=1)
    assert got.dtype == np.float32 and got[0].tolist() == [0, 0]
    want = [[(r + 0.5) / 3 * 2 - 1, (c + 0.5) / 5 * 2 - 1] for r in range(3) for c in range(5)]
    np.testing.assert_allclose(got[1:], want, rtol=0, atol=6e-8)


def test_dtypes_and_tracing():
    assert at((2, 3)).dtype == np.int32 and at((2, 3), centres=True).dtype == np.float32
    x = RNG.normal(size=(1, 24, 2, 64)).astype(np.float32)
    rotate = lambda plan, x: plan.rotate(x, 0, plan.positions((4, 6)), head_axis=-2)  # noqa: E731
    np.testing.assert_array_equal(jax.jit(rotate)(QWEN, x), rotate(QWEN, x))


# Slices of a head


def formula(x, positions):
    """Gemma 4: halves of a head, the first by the column, in float64."""
    w = 100.0 ** (-np.arange(x.shape[-1] // 4) / (x.shape[-1] // 4))
    halves = zip(np.split(np.float64(x), 2, -1), (1, 0), strict=True)
    return np.concatenate([rotations.rotate_by(h, positions[..., c, None] * w, "half") for h, c in halves], -1)


@pytest.mark.parametrize("head_axis", [thorough(-2), -3, thorough(2), None])
def test_slices(head_axis):
    shape = {-2: (2, 15, 3, 16), -3: (2, 3, 15, 16), 2: (2, 15, 3, 16), None: (2, 15, 16)}[head_axis]
    x, p = RNG.normal(size=shape).astype(np.float32), np.asarray(GEMMA.positions((3, 5)))
    heads = {-3: p[None], None: p}.get(head_axis, p[:, None])
    want = formula(x, heads)
    batched = np.broadcast_to(p, (2, 15, 2))

    @quick
    def each(x, layer, beyond):
        rotate = lambda layer, p: GEMMA.rotate(x, layer, p, head_axis=head_axis)  # noqa: E731
        return [rotate(1, p), rotate(1, batched), rotate(layer, p)], rotate(beyond, p)

    same, none = each(x, 0, 2)
    for got, how in zip(same, ("static", "batched", "traced"), strict=True):
        assert_within(got, want, 1e-6, against=f"float64, {how}")
    assert np.isnan(none).all()


def test_slices_under_transformations():
    x, p = RNG.normal(size=(4, 15, 2, 16)).astype(np.float32), GEMMA.positions((3, 5))
    f = lambda x: GEMMA.rotate(x, 0, p, head_axis=-2)  # noqa: E731
    half = x.astype(jnp.bfloat16)

    @jax.jit
    def each(x, half):
        return f(x), jax.vmap(f)(x), f(half), f(half.astype(np.float32))

    whole, mapped, of_half, unrounded = each(x, half)
    np.testing.assert_array_equal(mapped, whole)
    assert of_half.dtype == jnp.bfloat16
    np.testing.assert_array_equal(of_half, np.asarray(unrounded).astype(jnp.bfloat16))

    @quick
    def derivatives(x):
        backwards = f(x[::-1])
        forward = jax.jvp(f, (x,), (x[::-1],))[1]
        return forward, backwards, jax.grad(lambda x: jnp.sum(f(x) * f(x[::-1])))(x)

    forward, backwards, back = derivatives(x)
    np.testing.assert_allclose(forward, backwards, atol=1e-6)
    np.testing.assert_allclose(back, 2 * x[::-1], atol=2e-6)  # rotations keep lengths


def test_slices_on_a_mesh(on_cpu):
    mesh = jax.make_mesh((2, 4), ("d", "h"), axis_types=(AxisType.Explicit,) * 2, devices=jax.devices("cpu"))
    x, p = RNG.normal(size=(4, 15, 4, 16)).astype(np.float32), np.asarray(GEMMA.positions((3, 5)))
    f = lambda x: GEMMA.rotate(x, 0, p, head_axis=-2)  # noqa: E731
    want = jax.jit(f)(x)
    with jax.set_mesh(mesh):
        split = jax.device_put(x, NamedSharding(mesh, P("d", None, "h")))
        got = jax.jit(f)(split)
        assert jax.typeof(got).sharding == jax.typeof(split).sharding
        np.testing.assert_array_equal(got, want)


def test_a_head_of_slices_has_a_position_for_each_token():
    x, match = np.ones((5, 2, 16), np.float32), r"not be one for all 5 vectors of x, .*\(positions, \(5, 2\)\)"
    for p in (np.int32([3, 4]), np.int32([[3, 4]])):
        with pytest.raises(ValueError, match=match):
            GEMMA.rotate(x, 0, p, head_axis=-2)
    with pytest.raises(ValueError, match="VisionPlan.shift_keys: slices must be 1 to move keys, got 2"):
        GEMMA.shift_keys(x, 0, 7, head_axis=-2)


# Plans as values


def test_plans_are_values():
    again = pickle.loads(pickle.dumps(QWEN))
    assert again == QWEN and hash(again) == hash(QWEN) and again.grids == QWEN.grids
    assert QWEN != RotaryPlan(QWEN.layers, QWEN.layout) and jax.tree.leaves(QWEN) == []


GRID = PatchGrid()
GRID_TABLE = np.arange(16, dtype=np.float32).reshape(4, 4, 1)
BY_HAND = VisionPlan(LAYERS, "half", grids=(GRID,))


def with_table(table):
    return dataclasses.replace(BY_HAND, table=table)


SAM = vision_rotary_from_config(PLAIN | {"model_type": "sam3_vit_model", "global_attn_indexes": [1]})
IMAGES = vision_rotary_from_config(PLAIN | {"model_type": "pixtral"})
LLAMA = vision_rotary_from_config(PLAIN | {"model_type": "llama4_vision_model", "image_size": 56})
LLAMA_VIDEO = vision_rotary_from_config(PLAIN | {"model_type": "video_llama_3_vision"})
X = np.ones((1, 15, 2, 16), np.float32)


def test_rows_of_a_table():
    square = with_table("linear_aligned")
    assert BY_HAND.table == "unknown" and QWEN.table == "none" and QWEN.resampling is None
    rows = lambda *shape: np.asarray(square.table_rows(GRID_TABLE, shape))[:, 0].tolist()  # noqa: E731
    assert rows(2, 2) == [0, 3, 12, 15] and rows(2, 2, 2) == [0, 3, 12, 15] * 2  # two frames
    settings = square.resampling
    settings.clear()  # the caller's own
    assert square.resampling == {"method": "linear", "antialias": False, "align_corners": True}
    of_bfloat16 = jax.eval_shape(lambda: square.table_rows(GRID_TABLE.astype(jnp.bfloat16), (2, 2)))
    assert of_bfloat16.dtype == jnp.bfloat16
    inside = jax.jit(lambda plan, table: plan.table_rows(table, (2, 2)))(square, GRID_TABLE)
    np.testing.assert_array_equal(inside, square.table_rows(GRID_TABLE, (2, 2)))


def test_several_head_axes_of_a_tower_that_turns_slices():
    x, p = RNG.normal(size=(2, 15, 6, 16)).astype(np.float32), GEMMA.positions((3, 5))
    got = GEMMA.rotate(x.reshape(2, 15, 2, 3, 16), 0, p, head_axis=(-3, -2))
    np.testing.assert_array_equal(got.reshape(x.shape), GEMMA.rotate(x, 0, p, head_axis=-2))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: QWEN.positions((3, 4)), ValueError, r"VisionPlan.positions: shape must have sides that are multiples of 2, got \(3, 4\)"),
        (lambda: QWEN.positions((4,)), ValueError, r"shape must be \(height, width\) or \(time, height, width\), in patches, got \(4,\)"),
        (lambda: QWEN.positions((1, 2, 4, 4)), ValueError, "shape must be"),
        (lambda: IMAGES.positions((1, 4, 4)), ValueError, r"shape must be \(height, width\), in patches, got \(1, 4, 4\)"),
        (lambda: QWEN.positions(4), TypeError, "shape must be a sequence of integers, got int 4"),
        (lambda: QWEN.positions((4, 0)), ValueError, r"shape\[1\] must be at least 1, got 0"),
        (lambda: QWEN.positions((4.0, 2)), TypeError, r"shape\[0\] must be an integer"),
        (lambda: IMAGES.positions((2**16, 2**15)), ValueError, "shape must have fewer than 2³¹ tokens"),
        (lambda: LLAMA.positions((4, 5)), ValueError, r"shape must be \(4, 4\) in this layer, got \(4, 5\)"),
        (lambda: SAM.positions((72, 72)), ValueError, "layer must be given, because the layers of this tower differ, got None"),
        (lambda: SAM.positions((72, 71), 1), ValueError, r"shape must be \(72, 72\) in this layer"),
        (lambda: SAM.positions((72, 72), 2), ValueError, "layer must be from 0 to 1, got 2"),
        (lambda: SAM.positions((72, 72), 1.0), TypeError, "layer must be an integer"),
        (lambda: jax.jit(lambda i: SAM.positions((72, 72), i))(0), TypeError, "VisionPlan.positions: layer must be a Python integer, because"),
        (lambda: LLAMA_VIDEO.positions((4, 4)), ValueError, "merge_size must be given, because it comes with each image, got None"),
        (lambda: LLAMA_VIDEO.positions((4, 4), merge_size=0), ValueError, "merge_size must be at least 1"),
        (lambda: QWEN.positions((4, 4), merge_size=2), ValueError, "merge_size must not be given, because it is 2 in this tower, got 2"),
        (lambda: GEMMA.rotate(X, 0, head_axis=-2), ValueError, "VisionPlan.rotate: positions must be given, because they have several"),
        (lambda: GEMMA.rotate(X, 0, np.zeros((15, 3), np.int32), head_axis=-2), ValueError, r"positions must have a last axis of size 2, got shape \(15, 3\)"),
        (lambda: GEMMA.rotate(X, 0, np.zeros((14, 2), np.int32), head_axis=-2), ValueError, "VisionPlan.rotate: positions of shape"),
        (lambda: GEMMA.rotate(X[..., :8], 0, np.zeros((15, 2), np.int32), head_axis=-2), ValueError, "x must have 16 features in this layer"),
        (lambda: GEMMA.rotate(X, 2, np.zeros((15, 2), np.int32), head_axis=-2), ValueError, "VisionPlan.rotate: layer must be from 0 to 1, got 2"),
        (lambda: GEMMA.rotate(X, 0, np.zeros((15, 2), np.int32), head_axis=-1), ValueError, "VisionPlan.rotate: head_axis"),
        (lambda: GEMMA.rotate(X, 0, np.zeros((15, 2), np.int32), head_axis=1.5), TypeError, "VisionPlan.rotate: head_axis must be an integer, a tuple of integers or None"),
        (lambda: GEMMA.rotate(X, 0, np.zeros((15, 2), np.int32), head_axis=-2, role="q"), ValueError, "role must be one of"),
        (lambda: IMAGES.rotate(np.ones((1, 15, 2, 64), np.float32), 0, head_axis=-2), ValueError, "VisionPlan.rotate: positions"),
        (lambda: VisionPlan(LAYERS, "half", grids=(GRID,), table="bilinear"), ValueError, "VisionPlan: table must be one of .* got 'bilinear'"),  # type: ignore
        (lambda: BY_HAND.resampling, ValueError, "resampling: table is not known: this plan does not say"),
        (lambda: BY_HAND.table_rows(GRID_TABLE, (2, 3)), ValueError, "table_rows: table is not known: this plan does not say"),
        (lambda: QWEN.table_rows(GRID_TABLE, (2, 4)), ValueError, "table_rows: table must be left out: this tower has no learned table"),
        (lambda: GEMMA.resampling, ValueError, "resampling: table must be one that resize_table alone resizes, but this tower adds a row for the column"),
        (lambda: GEMMA.table_rows(GRID_TABLE, (2, 3)), ValueError, r"table_rows: table must have shape \(2, positions, dim\), got \(4, 4, 1\)"),
        (lambda: GEMMA.table_rows(GRID_TABLE[:2], (2, 5)), ValueError, r"table_rows: table of 4 positions is too small for \(2, 5\)"),
        (lambda: with_table("fixed").table_rows(GRID_TABLE, (4, 5)), ValueError, r"table_rows: table of \(4, 4\) rows and columns must be of the grid \(4, 5\)"),
        (lambda: with_table("tiled").resampling, ValueError, "resampling: .* but this tower repeats its table; use table_rows"),
        (lambda: with_table("fixed").resampling, ValueError, "resampling: .* but this tower has a row for each patch"),
        (lambda: with_table("linear_zeros_exchanged").resampling, ValueError, r"resampling: .* but this tower resizes its table to \(width, height\)"),
        (lambda: with_table("linear").table_rows(GRID_TABLE[0], (4, 4)), ValueError, r"table_rows: table must have shape \(rows, columns, dim\), got \(4, 1\)"),
        (lambda: with_table("linear").table_rows(GRID_TABLE[:0], (4, 4)), ValueError, r"table_rows: table must have shape \(rows, columns, dim\), got \(0, 4, 1\)"),
        (lambda: with_table("linear").table_rows(GRID_TABLE.astype(int), (4, 4)), TypeError, "table_rows: table must be a float array"),
        (lambda: with_table("linear").table_rows(GRID_TABLE, (4, 0)), ValueError, "table_rows: .*shape"),
        (lambda: VisionPlan(LAYERS, "half"), TypeError, "VisionPlan: grids must be a sequence of 1 PatchGrid, one for each layer"),
        (lambda: VisionPlan(LAYERS, "half", grids=(1,)), TypeError, "VisionPlan: grids must be a sequence of 1 PatchGrid"),
        (lambda: VisionPlan(LAYERS, "half", grids=(GRID,), slices=3), ValueError, "VisionPlan: slices must be 1, or the number of equal spectra"),
        (lambda: VisionPlan((RotaryLayer(pe.axial((4, 8)), 12),), "half", grids=(GRID,), slices=2), ValueError, "slices must be 1, or the number"),
        (lambda: VisionPlan((RotaryLayer(pe.geometric(8), 8),), "half", grids=(GRID,), slices=2), ValueError, "slices must be 1, or the number"),
        (lambda: VisionPlan(LAYERS, "halves", grids=(GRID,)), ValueError, "VisionPlan: layout must be one of"),  # type: ignore
        (lambda: PatchGrid(merge=-1), ValueError, "PatchGrid: merge must be at least 0, got -1"),
        (lambda: PatchGrid(leading=2**16), ValueError, "PatchGrid: leading must be below 65,536"),
        (lambda: PatchGrid(centres=1), TypeError, "PatchGrid: centres must be True or False"),  # type: ignore
        (lambda: PatchGrid(shapes=((1, 2, 3),)), ValueError, r"PatchGrid: shapes must hold \(height, width\)"),  # type: ignore
        (lambda: PatchGrid(centres=True, offset=1), ValueError, "PatchGrid: centres must have no offset"),
    ],
)  # fmt: skip
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_layers_that_differ_in_tokens():
    plan = dataclasses.replace(QWEN, grids=(QWEN.grids[0], PatchGrid()))
    with pytest.raises(ValueError, match="layer must be given"):
        plan.positions((4, 4))
    assert np.asarray(plan.positions((4, 4), np.int32(1)))[2].tolist() == [0, 2]
