"""`VisionPlan`: a plan for the patches of images and videos.

- Patches are in the order of the model, by squares and windows, at the places that the grid says.
- A plan is a static value.
- Slices of a head rotate by their own axes, whatever axes hold the heads.
- Rows of a table follow the patches.
"""

import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from posenc_jax.hf import PatchGrid, RotaryLayer, RotaryPlan, VisionPlan, vision_rotary_from_config

RNG = np.random.default_rng(0)
LAYERS = (RotaryLayer(pe.axial(8, 2), head_dim=8),) * 2


def positions_of(shape, **grid):
    """The positions of all tokens of an image or video, with this grid."""
    return np.asarray(VisionPlan(LAYERS[:1], "half", grids=(PatchGrid(**grid),)).positions(shape))


def squares(rows, columns, side):
    """Divides rows × columns into squares, row by row; squares at the edges are cut off. Yields pairs of ranges."""
    for top in range(rows.start, rows.stop, side):
        for left in range(columns.start, columns.stop, side):
            yield range(top, min(top + side, rows.stop)), range(left, min(left + side, columns.stop))


@pytest.mark.parametrize(("merge", "height", "width"), [(2, 2, 2), (2, 4, 6), (2, 14, 6), (1, 5, 7)])
@pytest.mark.parametrize("window", [0, 1, 2, 3])
def test_patches_are_ordered_by_windows_and_in_them_by_squares(merge, height, width, window):
    want = []  # of one of the three frames; where window is 0, a square of 99 holds all patches
    for rows, columns in squares(range(height), range(width), merge * window or 99):
        for inner_rows, inner_columns in squares(rows, columns, merge):
            want += [[r, c] for r in inner_rows for c in inner_columns]
    np.testing.assert_array_equal(positions_of((3, height, width), merge=merge, window=window), want * 3)


# Two frames of 1 × 2 patches at an offset of 1, and three tokens around them that are no patches.
AROUND = [[0, 0], [0, 0], [1, 1], [1, 2], [1, 1], [1, 2], [0, 0]]


@pytest.mark.parametrize(
    ("shape", "grid", "want"),
    [
        ((2, 1, 2), {"leading": 2, "trailing": 1, "offset": 1}, AROUND),
        ((9, 9), {"inside": 2}, [*np.ndindex(2, 2)]),
        ((2, 2, 2), {"timed": True, "merge": 2}, [*np.ndindex(2, 2, 2)]),  # one square for each frame
        ((3, 5), {"centres": True}, [[(2 * r + 1) / 3 - 1, (2 * c + 1) / 5 - 1] for r, c in np.ndindex(3, 5)]),
    ],
)
def test_tokens_are_at_these_positions(shape, grid, want):
    got = positions_of(shape, **grid)
    assert got.dtype == (np.float32 if "centres" in grid else np.int32)
    np.testing.assert_allclose(got, want, rtol=0, atol=6e-8)


def test_plans_are_static_values():
    plan = VisionPlan(LAYERS, "half", grids=(PatchGrid(merge=2, window=2), PatchGrid()))
    again = pickle.loads(pickle.dumps(plan))
    assert again == plan and hash(again) == hash(plan) and again.grids == plan.grids
    assert RotaryPlan(LAYERS, "half") != plan and jax.tree.leaves(plan) == []
    third = jax.jit(lambda plan: [plan.positions((4, 4), layer)[2] for layer in (0, np.int32(1))])
    np.testing.assert_array_equal(third(plan), [[1, 0], [0, 2]])


def test_slices_rotate_with_heads_anywhere():
    """Beside one head at a time, in slices of Gemma 4, whose values test_towers.py compares with transformers."""
    plan = vision_rotary_from_config({"model_type": "gemma4_vision", "head_dim": 16, "num_hidden_layers": 2})
    x, p = RNG.normal(size=(2, 15, 4, 16)).astype(np.float32), np.asarray(plan.positions((3, 5)))

    @jax.jit
    def each(x, layer, beyond):
        rotate, heads_first = functools.partial(plan.rotate, head_axis=-2), x.swapaxes(1, 2)
        alone, swapped = (plan.rotate(heads_first, 0, p, head_axis=axis).swapaxes(1, 2) for axis in (None, -3))
        grouped = plan.rotate(x.reshape(2, 15, 2, 2, 16), 0, p, head_axis=(-3, -2)).reshape(x.shape)
        others = rotate(x, 1, p), rotate(x, 0, np.stack([p, p])), rotate(x, layer, p)
        return alone, (swapped, grouped, *others), rotate(x, beyond, p)

    want, others, no_such_layer = each(x, 0, 2)
    for got in others:
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
    assert np.isnan(no_such_layer).all()


def test_rows_of_a_table_follow_the_patches():
    """test_towers.py compares rows of real towers with transformers."""
    tower = functools.partial(VisionPlan, LAYERS[:1], "half", grids=(PatchGrid(inside=3),))
    table, square = np.arange(16, dtype=np.float32).reshape(4, 4, 1), tower(table="linear_aligned")
    assert tower().table == "unknown" and tower(table="none").resampling is None
    rows = jax.jit(lambda plan, table: plan.table_rows(table, (2, 2, 2))[:, 0])
    assert rows(square, table).tolist() == [0, 3, 12, 15] * 2  # two frames
    square.resampling.clear()  # a copy, which the caller may change
    assert square.resampling == {"method": "linear", "antialias": False, "align_corners": True}
    assert jax.eval_shape(rows, square, table.astype(jnp.bfloat16)).dtype == jnp.bfloat16
