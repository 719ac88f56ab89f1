"""Positions of token ids by a config, against what transformers' own functions gave."""

import jax
import numpy as np
import pytest

from helpers.plans import refused
from oracles import recorded
from posenc_jax import hf
from posenc_jax.hf._models import MODELS
from posenc_jax.hf._multimodal_models import MULTIMODAL, REFUSED, THINKERS

CASES = recorded.cases("hf_multimodal")


@pytest.mark.parametrize("model", MULTIMODAL)
def test_positions_are_those_of_transformers(model):
    cases = [case for case in CASES if case["config"]["model_type"] == model]
    assert len(cases) > 1
    for case in cases:
        given = {"video_seconds": case["video_seconds"]} if case.get("video_seconds") else {}
        given |= {name: case[name] for name in ("image_grids", "video_grids")} | {"mask": np.array(case["mask"])}
        got = hf.positions_from_tokens(case["config"], np.array(case["tokens"]), **given)
        assert got.dtype == (np.float32 if model.startswith("qwen3_omni") else np.int32)
        np.testing.assert_array_equal(got, case["positions"])


def test_the_table_is_complete():
    """Every language model with M-RoPE whose whole has a model_type in the table of plans is placed or refused."""
    text = {name.removesuffix("_text") for name, model in MODELS.items() if model.sections}
    wholes = {name for name in text if name not in MULTIMODAL and name not in REFUSED and name not in THINKERS}
    assert wholes == set()


# What a config and its tokens say, by hand

OMNI = {"model_type": "qwen2_5_omni", "thinker_config": {"video_token_index": 9, "audio_token_index": 8}}
ROW = np.array([1, 2, 3, *[9] * 12, 4, 5, 6])
VIDEO = {"video_grids": [(3, 4, 4)]}
TIMED = VIDEO | {"video_seconds": [2.0]}


@pytest.mark.parametrize("seconds", [2 / 25, 2 / 3])
def test_times_are_float32_products_in_the_order_of_the_model(seconds):
    row, grids = np.full(30, 9), {"video_grids": [(30, 2, 2)], "video_seconds": [seconds]}
    vl = {"model_type": "qwen2_5_vl", "video_token_id": 9, "vision_config": {"tokens_per_second": 25}}
    omni = {"model_type": "qwen2_5_omni_thinker", "video_token_id": 9}
    t, rate, step = np.arange(30, dtype=np.float32), np.float32(25), np.float32(seconds)
    for config, want in ((vl, t * (rate * step)), (omni, t * step * rate)):
        got = np.asarray(hf.positions_from_tokens(config, row, **grids))[:, 0]
        np.testing.assert_array_equal(got, np.floor(want))


# What is refused

QWEN = {"model_type": "qwen2_vl", "image_token_id": 9, "video_token_id": 8}
IMAGE = {"image_grids": [(1, 4, 6)]}
BOTH = np.array([1, 2, 9, 9, 8, 8, 9, 9, 3, 4])
TWO = {"video_grids": [(2, 2, 4)], "video_seconds": [1.0]}


@pytest.mark.parametrize(
    ("config", "given", "match"),
    [
        ([QWEN], IMAGE, "TypeError: positions_from_tokens: config must be a mapping or have to_dict"),
        ({}, IMAGE, "model_type is missing: it says how a model places images and videos"),
        ({"model_type": "qwen2_vl_text"}, IMAGE, "model_type 'qwen2_vl_text' is not known .* write that type in its place"),
        ({"model_type": "hunyuan_vl"}, IMAGE, "model_type 'hunyuan_vl' is not read: its positions have four coordinates"),
        ({"model_type": "qwen2_5_omni"}, IMAGE, "thinker_config is missing"),
        ({"model_type": "qwen2_5_omni", "thinker_config": QWEN}, IMAGE, "thinker_config.model_type must be 'qwen2_5_omni_thinker', got 'qwen2_vl'"),
        (QWEN | {"image_token_id": "<image>"}, IMAGE, "TypeError: image_token_id must be an integer, got str"),
        (QWEN | {"image_token_index": 5}, IMAGE, "image_token_id = 9 contradicts image_token_index = 5"),
        (QWEN | {"video_token_id": 9}, IMAGE, "the tokens must differ, got {'image': 9, 'video': 9}"),
        (QWEN | {"vision_config": {"spatial_merge_size": 0}}, IMAGE, "vision_config.spatial_merge_size must be at least 1, got 0"),
        (QWEN | {"vision_config": {"spatial_merge_size": 5}}, IMAGE, r"image_grids\[0\] must be .* multiples of spatial_merge_size=5"),
        (QWEN | {"vision_config": 2}, IMAGE, "TypeError: vision_config must be a mapping, got int 2"),
        (QWEN, IMAGE, r"image_grids\[0\] must have 6 placeholders, got 12 in tokens\[3:15\]"),
        (QWEN, IMAGE | {"tokens": ROW[:3]}, r"image_grids\[0\] must have 6 placeholders in tokens, got none"),
        (QWEN, TIMED, r"video_seconds must not be given: the model does not read them, got \[2.0\]"),
        ({"model_type": "glm_image"}, VIDEO, r"video_grids\[0\] must have 48 placeholders in tokens, got none"),
        ({"model_type": "ernie4_5_vl_moe"}, VIDEO, r"video_grids\[0\] must have a time that is a multiple of 2, got \(3, 4, 4\)"),
        (OMNI, VIDEO, "video_seconds must be given: the times of frames depend on them"),
        (OMNI, VIDEO | {"video_seconds": [0.0]}, r"video_seconds\[0\] must be positive, got 0.0"),
        (OMNI, VIDEO | {"video_seconds": [1e9]}, "positions must fit into int32, got up to 50000000000"),
        ({"model_type": "qwen2_5_vl", "vision_config": {"tokens_per_second": 3e38}}, TIMED, r"the rate times the seconds of video_grids\[0\] must be from"),
        (OMNI, TWO | {"tokens": BOTH[[0, 1, 2, 3, 4, 5, 8]]}, r"video_grids\[0\] must have 4 placeholders, got 2 in tokens\[2:4\] to tokens\[4:6\]"),
        (OMNI, TWO | {"tokens": BOTH[1:]}, r"tokens\[0:1\] must have two tokens that end, and two that start, a video with audio"),
        (OMNI | {"thinker_config": {"video_token_id": 9, "image_token_id": 8}}, TWO | {"tokens": BOTH}, "must have text between placeholders, unless they are those of a video and its audio"),
        ({"model_type": "qwen2_5_vl", "vision_config": {"spatial_merge_sizes": 2}}, TIMED, "the key vision_config.spatial_merge_sizes = 2 is not read by this model: is vision_config.spatial_merge_size meant"),
        ({"model_type": "qwen2_5_vl", "vision_config": {"tokensPerSecond": 2}}, TIMED, "tokensPerSecond = 2 is not read by this model: is vision_config.tokens_per_second meant"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_refused(config, given, match):
    with refused(match):
        hf.positions_from_tokens(config, **{"tokens": ROW} | given)


def test_tokens_are_known():
    with pytest.raises(TypeError, match="tokens must be known, not traced"):
        jax.jit(lambda t: hf.positions_from_tokens(QWEN, t))(ROW)
