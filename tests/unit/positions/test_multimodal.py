"""Positions of text, images and videos are those of loops and those that transformers' own functions gave.

- `multimodal_positions` counts texts and grids one after the other; times are in float32, as in the models.
- `positions_from_tokens` finds texts and grids by their placeholders, in each row of a batch, padded on any side. The
  frames of a video may be apart, with text between them.
- The part after a grid starts above all positions of the grid, or after the longer of its sides.
"""

import re

import jax
import numpy as np
import pytest

import posenc_jax as pe
from helpers.conversations import IMAGE, VIDEO, positions_of
from oracles import positions as loops
from oracles import recorded

QWEN, INDEXED = recorded.cases("qwen_positions"), recorded.cases("rope_index")


@pytest.mark.parametrize("case", QWEN, ids=lambda c: f"{c['model']} {c['parts']}")
def test_multimodal_positions_are_those_of_transformers(case):
    got = np.asarray(pe.multimodal_positions(case["parts"], following="side"))
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, case["positions"])
    assert int(got.max()) + 1 - len(got) == case["delta"]  # the next position less the length


@pytest.mark.parametrize(
    "parts",
    [
        [3],
        [(1, 2, 5)],
        [2, (1, 4, 3), 3, (1, 2, 2), (1, 1, 3), 1],
        [1, (7, 2, 3), 2],
        [(4, 2, 2, 2.5), 3, (3, 3, 1, 0.3), 2],
        [np.int64(2), np.array([2, 3, 2]), 1],
    ],
    ids=str,
)
@pytest.mark.parametrize("following", ["maximum", "side"])
def test_multimodal_positions_are_those_of_loops(parts, following):
    plain = [int(part) if np.ndim(part) == 0 else tuple(part) for part in parts]
    got = pe.multimodal_positions(parts, following=following)
    np.testing.assert_array_equal(got, loops.multimodal(plain, following))


def test_time_is_counted_in_float32():
    step = 25 * (2 / 7)  # 25 positions per second, 2/7 s per frame: 35 frames are 250 positions, but 249 in float64
    assert int(35 * step) == 249
    assert np.asarray(pe.multimodal_positions([(36, 1, 1, step)]))[35].tolist() == [250, 0, 0]
    assert pe.multimodal_positions([]).shape == (0, 3)


@pytest.mark.parametrize("model", {case["model"]: None for case in INDEXED})
def test_positions_from_tokens_are_those_of_transformers(model):
    for case in (case for case in INDEXED if case["model"] == model):
        got = np.asarray(positions_of(case))
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, case["positions"])


TOKENS = np.array([11, 4, *[IMAGE] * 6, 12, *[VIDEO] * 12, 13, 14])
GRIDS = {"image_token": IMAGE, "video_token": VIDEO, "image_grids": [(1, 4, 6)], "video_grids": [(3, 4, 4)]}
# the parts of TOKENS: lengths of text, and (time, height, width) of grids after merging 2 × 2 patches
PARTS = [2, (1, 2, 3), 1, (3, 2, 2), 2]


def test_a_row_of_tokens_has_the_positions_of_its_parts():
    want = pe.multimodal_positions(PARTS)
    np.testing.assert_array_equal(pe.positions_from_tokens(TOKENS, **GRIDS), want)
    after_sides = pe.positions_from_tokens(TOKENS, **GRIDS, following="side")
    np.testing.assert_array_equal(after_sides, pe.multimodal_positions(PARTS, following="side"))


def test_steps_of_videos_and_grids_may_be_arrays():
    arrays = {"image_grids": np.array([[1, 4, 6]]), "video_grids": jax.device_put(np.array([[3, 4, 4]]))}
    want = pe.multimodal_positions([2, (1, 2, 3), 1, (3, 2, 2, 2.5), 2])
    for steps in ([2.5], jax.device_put(np.float32([2.5]))):
        np.testing.assert_array_equal(pe.positions_from_tokens(TOKENS, video_steps=steps, **(GRIDS | arrays)), want)


def test_tokens_without_placeholders_are_text():
    want = np.arange(len(TOKENS))[:, None].repeat(3, 1)
    np.testing.assert_array_equal(pe.positions_from_tokens(TOKENS), want)
    assert pe.positions_from_tokens(TOKENS[:0]).shape == (0, 3)


@pytest.mark.parametrize("dtype", [bool, np.int32])
def test_padding_on_any_side_is_at_0(dtype):
    tokens = np.array([[0, 0, *TOKENS], [*TOKENS, IMAGE, VIDEO]])
    mask = np.array([[0, 0, *[1] * len(TOKENS)], [*[1] * len(TOKENS), 0, 0]]).astype(dtype)
    twice = {key: 2 * value if "grids" in key else value for key, value in GRIDS.items()}
    got, want = np.asarray(pe.positions_from_tokens(tokens, mask=mask, **twice)), pe.multimodal_positions(PARTS)
    np.testing.assert_array_equal(got[0], np.pad(want, [(2, 0), (0, 0)]))
    np.testing.assert_array_equal(got[1], np.pad(want, [(0, 2), (0, 0)]))
    assert not np.asarray(pe.positions_from_tokens(tokens, mask=mask & False)).any()


def test_frames_of_a_video_may_be_apart():
    tokens = np.array([11, VIDEO, VIDEO, 12, VIDEO, VIDEO, 13, 14, VIDEO, VIDEO])
    want = pe.multimodal_positions([1, (1, 1, 2), 1, (1, 1, 2), 2, (1, 1, 2)])
    got = pe.positions_from_tokens(tokens, video_token=VIDEO, video_grids=[(3, 2, 4)])
    np.testing.assert_array_equal(got, want)
    two = pe.positions_from_tokens(tokens, video_token=VIDEO, video_grids=[(1, 2, 4), (2, 2, 4)], video_steps=[3, 1])
    np.testing.assert_array_equal(two, want)


# three frames of 2 tokens, of which the last two are not apart
FRAMES = np.array([VIDEO, VIDEO, 12, VIDEO, VIDEO, VIDEO, VIDEO])
APART = {"tokens": FRAMES, "image_token": None, "image_grids": (), "video_grids": [(3, 2, 4)]}
SIDES = "image_grids[0] must be (time, height, width) with multiples of spatial_merge_size=2"


@pytest.mark.parametrize(
    ("changed", "error", "match"),
    [
        ({"image_grids": ()}, ValueError, "image_grids must have a grid for tokens[2:8]"),
        ({"tokens": TOKENS[None], "video_grids": ()}, ValueError, "video_grids must have a grid for tokens[0, 9:21]"),
        ({"image_token": None}, ValueError, "image_grids[0] must have 6 placeholders in tokens, got none"),
        ({"tokens": TOKENS[:9]}, ValueError, "video_grids[0] must have 12 placeholders in tokens, got none"),
        ({"image_grids": [(1, 4, 4)]}, ValueError, "image_grids[0] must have 4 placeholders, got 6 in tokens[2:8]"),
        ({"spatial_merge_size": 1}, ValueError, "image_grids[0] must have 24 placeholders, got 6 in tokens[2:8]"),
        ({"spatial_merge_size": 0}, ValueError, "spatial_merge_size must be at least 1"),
        (APART, ValueError, "frame 1 of video_grids[0] must have 2 placeholders, got 4 in tokens[3:7]"),
        (
            APART | {"tokens": FRAMES[:3]},
            ValueError,
            "frame 1 of video_grids[0] must have 2 placeholders in tokens, got",
        ),
        (APART | {"video_steps": [2]}, ValueError, "video_steps must be 1 for video_grids[0]"),
        (
            {"tokens": FRAMES, "image_token": VIDEO, "video_token": None, "image_grids": [(3, 2, 4)]},
            ValueError,
            "image_grids[0] must have 6 placeholders, got 2 in tokens[0:2]",
        ),
        ({"image_grids": [(1, 4, 7)]}, ValueError, SIDES),
        ({"image_grids": [(4, 6)]}, ValueError, SIDES),
        ({"image_grids": 1}, TypeError, "image_grids must be a sequence of grids"),
        ({"video_grids": [(2**31, 4, 4)]}, ValueError, "video_grids[0] must have fewer than 2³¹ tokens"),
        ({"video_steps": [1, 2]}, ValueError, "video_steps must have 1 numbers, as video_grids has, got 2"),
        ({"video_steps": [0]}, ValueError, "video_steps[0] must be positive"),
        ({"video_steps": [2e9]}, ValueError, "positions must fit into int32, got up to 4000000000"),
        ({"video_token": IMAGE}, ValueError, "video_token must differ from image_token"),
        ({"mask": TOKENS[:-1] > 0}, ValueError, "mask must have the shape of tokens, (23,), got (22,)"),
        ({"tokens": TOKENS[None, None]}, ValueError, "tokens must have shape (length,) or (batch, length)"),
        ({"following": "grid"}, ValueError, "following must be one of"),
    ],
)
def test_invalid_arguments_of_positions_from_tokens_raise(changed, error, match):
    with pytest.raises(error, match="^positions_from_tokens: " + re.escape(match)):
        pe.positions_from_tokens(**({"tokens": TOKENS} | GRIDS | changed))


@pytest.mark.parametrize("name", ["tokens", "mask", "video_steps"])
def test_traced_arrays_raise(name):
    arguments = {"tokens": TOKENS, "mask": TOKENS > 0, "video_steps": np.float32([1])} | GRIDS
    with pytest.raises(TypeError, match=f"^positions_from_tokens: {name} must be (known, not traced|a sequence of)"):
        jax.eval_shape(lambda x: pe.positions_from_tokens(**(arguments | {name: x})), arguments[name])


@pytest.mark.parametrize(
    ("parts", "error", "match"),
    [
        (7, TypeError, "parts must be a sequence of integers and grids"),
        ([0], ValueError, "parts[0] must be at least 1"),
        ([2**31], ValueError, "parts[0] must have fewer than 2³¹ tokens"),
        ([1.5], TypeError, "parts[0] must be a sequence of numbers, or an integer"),
        ([1, (1, 2)], ValueError, "parts[1] must be a length, (time, height, width) or these and Δ"),
        ([(1, 0, 2)], ValueError, "parts[0][1] must be at least 1"),
        ([(1, 2, 2, 0)], ValueError, "parts[0][3] must be positive"),
        ([(2, 2**15, 2**15)], ValueError, "parts[0] must have fewer than 2³¹ tokens"),
        ([(3, 1, 1, 1e30)], ValueError, "positions must fit into int32, got up to 2e+30"),
        ([1, (2, 1, 1, 2.0**31 - 1)], ValueError, "positions must fit into int32, got up to 2147483649"),
    ],
)
def test_invalid_parts_raise(parts, error, match):
    with pytest.raises(error, match="^multimodal_positions: " + re.escape(match)):
        pe.multimodal_positions(parts)
