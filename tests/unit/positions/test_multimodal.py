"""Positions of text, images and videos, against loops and what transformers' own functions gave."""

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
    assert int(got.max()) + 1 - len(got) == case["delta"]
    higher = pe.multimodal_positions(case["parts"])
    # The two rules differ after a video that is longer than its sides, and nowhere else.
    longer = any(isinstance(p, list) and (p[0] - 1) * (p[3:] or [1])[0] >= max(p[1:3]) for p in case["parts"])
    assert np.array_equal(higher, got) == (not longer)


PARTS = [
    [3],
    [(1, 2, 5)],
    [2, (1, 4, 3), 3, (1, 2, 2), (1, 1, 3), 1],
    [1, (7, 2, 3), 2],
    [(4, 2, 2, 2.5), 3, (3, 3, 1, 0.3), 2],
    [np.int64(2), np.array([2, 3, 2]), 1],
]


def test_multimodal_positions_after_the_maximum():
    in_a_program = jax.jit(lambda: list(map(pe.multimodal_positions, PARTS)))()
    for parts, got in zip(PARTS, in_a_program, strict=True):
        plain = [p if isinstance(p, tuple) else p.tolist() if isinstance(p, np.ndarray) else int(p) for p in parts]
        np.testing.assert_array_equal(pe.multimodal_positions(parts), loops.multimodal(plain), str(parts))
        np.testing.assert_array_equal(got, loops.multimodal(plain), f"{parts} in a program")


def test_multimodal_positions_of_nothing_and_of_time_in_float32():
    assert pe.multimodal_positions([]).shape == (0, 3)
    assert np.asarray(pe.multimodal_positions([(4, 1, 1, 4 / 3)]))[:, 0].tolist() == [0, 1, 2, 4]
    # 25 positions a second and 2/7 of a second a frame: 35 frames make 250, but 249 in float64.
    step = 25 * (2 / 7)
    assert int(35 * step) == 249
    assert np.asarray(pe.multimodal_positions([(36, 1, 1, step)]))[35].tolist() == [250, 0, 0]


@pytest.mark.parametrize("model", {case["model"]: None for case in INDEXED})
def test_positions_from_tokens_are_those_of_transformers(model):
    for case in (case for case in INDEXED if case["model"] == model):
        got = np.asarray(positions_of(case))
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, case["positions"])
        tokens = got.shape[1] if case["mask"] is None else np.sum(case["mask"], 1)
        np.testing.assert_array_equal(got.max((1, 2)) + 1 - tokens, case["rope_deltas"])


def test_the_recorded_rows_try_what_can_go_wrong():
    """Padding on both sides, several grids of either kind, rates and merges, and videos longer than their sides."""
    masks = [row for case in INDEXED for row in case["mask"] or []]
    assert any(row[0] < row[-1] for row in masks) and any(row[0] > row[-1] for row in masks)
    assert {case["spatial_merge_size"] for case in INDEXED} == {1, 2, 3}
    assert all(max(len(case[f"{kind}_grid_thw"]) for case in INDEXED) > 4 for kind in ("image", "video"))
    assert len({step for case in INDEXED for step in case.get("second_per_grid_ts", [])}) > 3
    higher = [np.array_equal(positions_of(case, following="maximum"), case["positions"]) for case in INDEXED]
    assert any(higher) and not all(higher)


TOKENS = np.array([11, 4, *[IMAGE] * 6, 12, *[VIDEO] * 12, 13, 14])
GRIDS = {"image_token": IMAGE, "video_token": VIDEO, "image_grids": [(1, 4, 6)], "video_grids": [(3, 4, 4)]}


def test_a_row_of_tokens():
    want = pe.multimodal_positions([2, (1, 2, 3), 1, (3, 2, 2), 2])
    np.testing.assert_array_equal(pe.positions_from_tokens(TOKENS, **GRIDS), want)
    known = jax.device_put(TOKENS)
    np.testing.assert_array_equal(jax.jit(lambda: pe.positions_from_tokens(known, **GRIDS))(), want)
    arrays = GRIDS | {"image_grids": np.array([[1, 4, 6]]), "video_grids": jax.device_put(np.array([[3, 4, 4]]))}
    np.testing.assert_array_equal(pe.positions_from_tokens(TOKENS, **arrays), want)
    timed = pe.multimodal_positions([2, (1, 2, 3), 1, (3, 2, 2, 2.5), 2])
    for steps in ([2.5], np.array([2.5]), jax.device_put(np.float32([2.5]))):
        np.testing.assert_array_equal(pe.positions_from_tokens(TOKENS, video_steps=steps, **GRIDS), timed)
    plain = pe.positions_from_tokens(TOKENS)
    np.testing.assert_array_equal(plain, np.arange(len(TOKENS))[:, None].repeat(3, 1))
    padded = np.array([[0, 0, *TOKENS], [*TOKENS, IMAGE, VIDEO]])
    mask = np.array([[0, 0, *[1] * len(TOKENS)], [*[1] * len(TOKENS), 0, 0]])
    twice = {key: 2 * value if "grids" in key else value for key, value in GRIDS.items()}
    for of_tokens in (mask, mask > 0):
        got = np.asarray(pe.positions_from_tokens(padded, mask=of_tokens, **twice))
        np.testing.assert_array_equal(got[0, 2:], want)
        np.testing.assert_array_equal(got[1, :-2], want)
        assert not got[0, :2].any() and not got[1, -2:].any()
    assert not np.asarray(pe.positions_from_tokens(padded, mask=0 * mask)).any()
    assert pe.positions_from_tokens(TOKENS[:0]).shape == (0, 3)


def test_frames_that_are_apart():
    tokens = np.array([11, VIDEO, VIDEO, 12, VIDEO, VIDEO, 13, 14, VIDEO, VIDEO])
    want = pe.multimodal_positions([1, (1, 1, 2), 1, (1, 1, 2), 2, (1, 1, 2)])
    got = pe.positions_from_tokens(tokens, video_token=VIDEO, video_grids=[(3, 2, 4)])
    np.testing.assert_array_equal(got, want)
    two = pe.positions_from_tokens(tokens, video_token=VIDEO, video_grids=[(1, 2, 4), (2, 2, 4)], video_steps=[3, 1])
    np.testing.assert_array_equal(two, want)


def without(*names):
    return {key: value for key, value in GRIDS.items() if key not in names}


FRAMES = np.array([VIDEO, VIDEO, 12, VIDEO, VIDEO, VIDEO, VIDEO])


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: pe.positions_from_tokens(TOKENS, **without("image_grids")), ValueError, r"positions_from_tokens: image_grids must have a grid for tokens\[2:8\]"),
        (lambda: pe.positions_from_tokens(TOKENS[None], **without("video_grids")), ValueError, r"positions_from_tokens: video_grids must have a grid for tokens\[0, 9:21\]"),
        (lambda: pe.positions_from_tokens(TOKENS, **without("image_token")), ValueError, r"positions_from_tokens: image_grids\[0\] must have 6 placeholders in tokens, got none"),
        (lambda: pe.positions_from_tokens(TOKENS[:9], **GRIDS), ValueError, r"video_grids\[0\] must have 12 placeholders in tokens, got none"),
        (lambda: pe.positions_from_tokens(TOKENS, **GRIDS | {"image_grids": [(1, 4, 6), (1, 2, 2)]}), ValueError, r"image_grids\[1\] must have 1 placeholders in tokens, got none"),
        (lambda: pe.positions_from_tokens(TOKENS, **GRIDS | {"image_grids": [(1, 4, 4)]}), ValueError, r"image_grids\[0\] must have 4 placeholders, got 6 in tokens\[2:8\]"),
        (lambda: pe.positions_from_tokens(TOKENS, spatial_merge_size=1, **GRIDS), ValueError, r"image_grids\[0\] must have 24 placeholders, got 6 in tokens\[2:8\]"),
        (lambda: pe.positions_from_tokens(np.array([IMAGE] * 12), **without("video_grids") | {"image_grids": [(1, 4, 6)] * 2}), ValueError, r"image_grids\[0\] must have 6 placeholders, got 12 in tokens\[0:12\]"),
        (lambda: pe.positions_from_tokens(FRAMES, video_token=VIDEO, video_grids=[(3, 2, 4)]), ValueError, r"frame 1 of video_grids\[0\] must have 2 placeholders, got 4 in tokens\[3:7\]"),
        (lambda: pe.positions_from_tokens(FRAMES[:3], video_token=VIDEO, video_grids=[(3, 2, 4)]), ValueError, r"frame 1 of video_grids\[0\] must have 2 placeholders in tokens, got none"),
        (lambda: pe.positions_from_tokens(FRAMES, image_token=VIDEO, image_grids=[(3, 2, 4)]), ValueError, r"image_grids\[0\] must have 6 placeholders, got 2 in tokens\[0:2\]"),
        (lambda: pe.positions_from_tokens(FRAMES, video_token=VIDEO, video_grids=[(3, 2, 4)], video_steps=[2]), ValueError, r"video_steps must be 1 for video_grids\[0\], whose frames are separate runs of tokens, got 2.0"),
        (lambda: pe.positions_from_tokens(TOKENS, **GRIDS | {"image_grids": [(1, 4, 7)]}), ValueError, r"image_grids\[0\] must be \(time, height, width\) with multiples of spatial_merge_size=2 for height and width, got \(1, 4, 7\)"),
        (lambda: pe.positions_from_tokens(TOKENS, **GRIDS | {"image_grids": [(4, 6)]}), ValueError, r"image_grids\[0\] must be \(time, height, width\) .* got \(4, 6\)"),
        (lambda: pe.positions_from_tokens(TOKENS, **GRIDS | {"image_grids": (1, 4, 6)}), TypeError, r"image_grids\[0\] must be a sequence of integers, got int 1"),
        (lambda: pe.positions_from_tokens(TOKENS, video_steps=[1, 2], **GRIDS), ValueError, "video_steps must have 1 numbers, as video_grids has, got 2"),
        (lambda: pe.positions_from_tokens(TOKENS, video_steps=[0], **GRIDS), ValueError, r"video_steps\[0\] must be positive, got 0.0"),
        (lambda: pe.positions_from_tokens(TOKENS, video_steps=[2e9], **GRIDS), ValueError, "positions must fit into int32, got up to 4000000000"),
        (lambda: pe.positions_from_tokens(TOKENS, **GRIDS | {"video_token": IMAGE}), ValueError, f"video_token must differ from image_token, got {IMAGE}"),
        (lambda: pe.positions_from_tokens(TOKENS, mask=TOKENS[:-1] > 0, **GRIDS), ValueError, r"mask must have the shape of tokens, \(23,\), got \(22,\)"),
        (lambda: pe.positions_from_tokens(TOKENS[None, None], **GRIDS), ValueError, r"tokens must have shape \(length,\) or \(batch, length\), got \(1, 1, 23\)"),
        (lambda: pe.positions_from_tokens(TOKENS * 1.0, **GRIDS), TypeError, "tokens must be an integer array, got float64"),
        (lambda: jax.jit(lambda t: pe.positions_from_tokens(t, **GRIDS))(TOKENS), TypeError, r"tokens must be known, not traced, got int\d+ of shape \(23,\)"),
        (lambda: jax.jit(lambda m: pe.positions_from_tokens(TOKENS, mask=m, **GRIDS))(TOKENS > 0), TypeError, r"mask must be known, not traced, got bool of shape \(23,\)"),
        (lambda: pe.multimodal_positions(7), TypeError, "multimodal_positions: parts must be a sequence of integers and grids, got int 7"),  # type: ignore
        (lambda: pe.multimodal_positions(b"\1\2"), TypeError, "multimodal_positions: parts must be a sequence of integers and grids, got bytes"),  # type: ignore
        (lambda: pe.multimodal_positions([0]), ValueError, r"multimodal_positions: parts\[0\] must be at least 1, got 0"),
        (lambda: pe.multimodal_positions([1, (1, 2)]), ValueError, r"multimodal_positions: parts\[1\] must be a length, \(time, height, width\) or these and Δ, got \(1, 2\)"),
        (lambda: pe.multimodal_positions([(1, 0, 2)]), ValueError, r"multimodal_positions: parts\[0\]\[1\] must be at least 1, got 0"),
        (lambda: pe.multimodal_positions([(1, 2.0, 2)]), TypeError, r"multimodal_positions: parts\[0\]\[1\] must be an integer, got float 2.0"),
        (lambda: pe.multimodal_positions([(1, 2, 2, 0)]), ValueError, r"multimodal_positions: parts\[0\]\[3\] must be positive, got 0.0"),
        (lambda: pe.multimodal_positions([1.5]), TypeError, r"multimodal_positions: parts\[0\] must be a sequence of numbers, or an integer, got float 1.5"),  # type: ignore
        (lambda: pe.multimodal_positions([True]), TypeError, r"multimodal_positions: parts\[0\] must be an integer, got bool True"),
        (lambda: pe.multimodal_positions([(3, 1, 1, 2e9)]), ValueError, "multimodal_positions: positions must fit into int32, got up to 4000000000"),
        (lambda: pe.multimodal_positions([(3, 1, 1, 1e30)]), ValueError, r"multimodal_positions: positions must fit into int32, got up to 2e\+30"),
        (lambda: pe.multimodal_positions([1, (2, 1, 1, 2.0**31 - 1)]), ValueError, "multimodal_positions: positions must fit into int32, got up to 2147483649"),
        (lambda: pe.multimodal_positions([(1, 1, 1, 1e300)]), ValueError, r"multimodal_positions: parts\[0\]\[3\] must be from .* for float32, got 1e\+300"),
        (lambda: pe.multimodal_positions([1], following="grid"), ValueError, "multimodal_positions: following must be one of .* got 'grid'"),  # type: ignore
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_times_of_videos_must_be_known():
    f = lambda steps: pe.positions_from_tokens(np.array([9]), video_token=9, video_grids=[(1, 2, 2)], video_steps=steps)  # noqa: E731
    assert f(jax.device_put(np.float32([1.0]))).tolist() == [[0, 0, 0]]
    with pytest.raises(
        TypeError, match="^positions_from_tokens: video_steps must be a sequence of numbers, got float32"
    ):
        jax.jit(f)(np.float32([1.0]))
