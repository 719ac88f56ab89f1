"""Positions of token ids by a config, against what transformers' own functions gave."""

import jax
import numpy as np
import pytest

from helpers.plans import WithToDict
from oracles import recorded
from posenc_jax import hf
from posenc_jax.hf._models import MODELS
from posenc_jax.hf._multimodal_models import MULTIMODAL, REFUSED, THINKERS

CASES = recorded.cases("hf_multimodal")


def positions_of(case, **changed):
    grids = {f"{kind}_grids": case[f"{kind}_grids"] for kind in ("image", "video")}
    given = {"video_seconds": case["video_seconds"]} if case.get("video_seconds") else {}
    tokens, mask = np.array(case["tokens"]), np.array(case["mask"])
    return hf.positions_from_tokens(case["config"], tokens, **grids | given | {"mask": mask} | changed)


@pytest.mark.parametrize("model", MULTIMODAL)
def test_positions_are_those_of_transformers(model):
    cases = [case for case in CASES if case["config"]["model_type"] == model]
    assert len(cases) > 1
    for case in cases:
        got = positions_of(case)
        assert got.dtype == (np.float32 if model.startswith("qwen3_omni") else np.int32)
        np.testing.assert_array_equal(got, case["positions"])


def test_what_is_recorded():
    """Padding on both sides, keys that are missing and keys that are not, and videos longer than their sides."""
    masks = [row for case in CASES for row in case["mask"]]
    assert any(row[0] < row[-1] for row in masks) and any(row[0] > row[-1] for row in masks)
    assert {len(case["config"]) > 3 for case in CASES} == {False, True}
    for omni in (True, False):  # a grid of n frames reaches n or more positions: "side" and "maximum" differ
        of_omni = [case for case in CASES if ("omni_thinker" in case["config"]["model_type"]) == omni]
        assert any(t > max(h, w) for case in of_omni for t, h, w in case["video_grids"])


def test_the_table_is_complete():
    """Every language model with M-RoPE whose whole has a model_type in the table of plans is placed or refused."""
    text = {name.removesuffix("_text") for name, model in MODELS.items() if model.sections}
    wholes = {name for name in text if name not in MULTIMODAL and name not in REFUSED and name not in THINKERS}
    assert wholes == set()


def test_the_whole_config_of_an_omni_model():
    case = next(c for c in CASES if c["config"]["model_type"] == "qwen3_omni_moe_thinker" and len(c["config"]) > 3)
    whole = WithToDict({"model_type": "qwen3_omni_moe", "thinker_config": case["config"]})
    np.testing.assert_array_equal(positions_of(case | {"config": whole}), case["positions"])


@pytest.mark.parametrize("seconds", [2 / 25, 2 / 3])
def test_times_are_float32_products_in_the_order_of_the_model(seconds):
    row, grids = np.full(30, 9), {"video_grids": [(30, 2, 2)], "video_seconds": [seconds]}
    vl = {"model_type": "qwen2_5_vl", "video_token_id": 9, "vision_config": {"tokens_per_second": 25}}
    omni = {"model_type": "qwen2_5_omni_thinker", "video_token_id": 9}
    t, rate, rounded = np.arange(30, dtype=np.float32), np.float32(25), np.float32(seconds)
    by_rate, by_seconds = np.floor(t * (rate * rounded)), np.floor(t * rounded * rate)
    np.testing.assert_array_equal(hf.positions_from_tokens(vl, row, **grids)[:, 0], by_rate)
    np.testing.assert_array_equal(hf.positions_from_tokens(omni, row, **grids)[:, 0], by_seconds)
    rounded_last = np.floor(t * np.float32(25 * seconds))
    assert (by_rate != by_seconds).any() or (by_rate != rounded_last).any()


OMNI = {"model_type": "qwen2_5_omni", "thinker_config": {"video_token_index": 9, "audio_token_index": 8}}


def test_audio_is_like_text():
    assert hf.positions_from_tokens(OMNI, np.array([1, 2, 8, 8, 8, 3])).tolist() == [[i] * 3 for i in range(6)]


ROW = np.array([1, 2, 3, *[9] * 12, 4, 5, 6])
QWEN = {"model_type": "qwen2_vl", "image_token_id": 9, "video_token_id": 8}
QWEN3 = QWEN | {"model_type": "qwen3_vl", "video_token_id": 9, "image_token_id": 8}
QWEN25 = {"model_type": "qwen2_5_vl", "video_token_id": 9, "vision_config": {"tokens_per_second": 3e38}}
IMAGE = {"image_grids": [(1, 4, 6)]}
VIDEO = {"video_grids": [(3, 4, 4)]}
TIMED = VIDEO | {"video_seconds": [1.0]}
MIXED = np.array([1, 2, 9, 9, 8, 8, 9, 9, 3, 4])
TWO = {"video_grids": [(2, 2, 4)], "video_seconds": [1.0]}
BAD = [
    ([QWEN], {}, "positions_from_tokens: config must be a mapping or have to_dict"),
    ({}, {}, "model_type is missing: it says how a model places images and videos"),
    ({"model_type": "qwen2_vl_text"}, {}, "model_type 'qwen2_vl_text' is not known .* write that type in its place"),
    ({"model_type": "hunyuan_vl"}, {}, "model_type 'hunyuan_vl' is not read: its positions have four coordinates"),
    ({"model_type": "qwen2_5_omni"}, {}, "thinker_config is missing"),
    ({"model_type": "qwen2_5_omni", "thinker_config": QWEN}, {}, "thinker_config.model_type must be 'qwen2_5_omni_thinker', got 'qwen2_vl'"),
    (QWEN | {"image_token_id": "<image>"}, {}, "image_token_id must be an integer, got str"),
    (QWEN | {"image_token_index": 5}, {}, "image_token_id = 9 contradicts image_token_index = 5"),
    (QWEN | {"video_token_id": 9}, {}, "the token of video must differ from that of image, got 9"),
    (QWEN | {"vision_config": {"spatial_merge_size": 0}}, IMAGE, "vision_config.spatial_merge_size must be at least 1, got 0"),
    (QWEN | {"vision_config": {"spatial_merge_size": 5}}, IMAGE, r"image_grids\[0\] must be .* multiples of spatial_merge_size=5"),
    (QWEN | {"vision_config": 2}, IMAGE, "vision_config must be a mapping, got int 2"),
    (QWEN, IMAGE, r"image_grids\[0\] must have 6 placeholders, got 12 in tokens\[3:15\]"),
    (QWEN, {}, r"image_grids must have a grid for tokens\[3:15\]"),
    (QWEN, IMAGE | {"tokens": ROW[:3]}, r"image_grids\[0\] must have 6 placeholders in tokens, got none"),
    (QWEN, TIMED, r"video_seconds must not be given: the model does not read them, got \[1.0\]"),
    (QWEN3, VIDEO, r"frame 0 of video_grids\[0\] must have 4 placeholders, got 12"),
    ({"model_type": "glm4v", "image_token_id": 9}, VIDEO, "image_grids must have a grid"),
    ({"model_type": "glm_image"}, VIDEO, "video_grids must be empty: the model takes no videos, got 1"),
    ({"model_type": "ernie4_5_vl_moe"}, VIDEO, r"video_grids\[0\] must have a time that is a multiple of 2, got \(3, 4, 4\)"),
    (OMNI, VIDEO, "video_seconds must be given: the times of frames depend on them"),
    (OMNI, TIMED | {"video_seconds": [1.0, 2.0]}, "video_seconds must have 1 numbers, as video_grids has, got 2"),
    (OMNI, TIMED | {"video_seconds": [0.0]}, r"video_seconds\[0\] must be positive, got 0.0"),
    (OMNI, TIMED | {"video_seconds": [1e9]}, "positions must fit into int32, got up to 50000000000"),
    (QWEN25, TIMED | {"video_seconds": [2.0]}, r"vision_config.tokens_per_second times the seconds of video_grids\[0\] must be from"),
    (OMNI, TWO | {"tokens": MIXED[[0, 1, 2, 3, 4, 5, 8]]}, r"video_grids\[0\] must have 4 placeholders, got 2 in tokens\[2:4\] to tokens\[4:6\]"),
    (OMNI, TWO | {"tokens": MIXED[1:]}, r"tokens\[0:1\] must have two tokens that end, and two that start, a video with audio"),
    (OMNI | {"thinker_config": {"video_token_id": 9, "image_token_id": 8}}, TWO | {"tokens": MIXED}, "must have text between placeholders, unless they are those of a video and its audio"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "given", "match"), BAD, ids=range(len(BAD)))
def test_what_is_refused(config, given, match):
    with pytest.raises((ValueError, TypeError), match=match):
        hf.positions_from_tokens(config, **{"tokens": ROW} | given)


@pytest.mark.parametrize("word", ["spatial_merge_sizes", "tokens_per_seconds", "tokensPerSecond"])
def test_a_misspelled_key_of_the_tower(word):
    """The default would count other patches, or other times."""
    config, tokens = {"model_type": "qwen2_5_vl", "vision_config": {word: 2}}, [7, 151656, 151656, 8]
    message = f"the key vision_config.{word} = 2 is not read by this model: is vision_config.(spatial|tokens)_.* meant"
    with pytest.raises(ValueError, match=message):
        hf.positions_from_tokens(config, np.array(tokens), video_grids=[(2, 2, 2)], video_seconds=[2.0])


def test_tokens_are_known():
    with pytest.raises(TypeError, match="tokens must be known, not traced"):
        jax.jit(lambda t: hf.positions_from_tokens(QWEN, t))(ROW)
