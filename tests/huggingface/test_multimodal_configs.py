"""`positions_from_tokens`: the positions of token ids, by a config.

- Positions are those of transformers' own functions: recorded values.
- Every type whose positions have several coordinates is known, or refused by name.
- Tokens, grids and times that contradict one another, and traced tokens, are refused.
"""

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
        inputs = {"video_seconds": case["video_seconds"]} if case.get("video_seconds") else {}
        inputs |= {name: case[name] for name in ("image_grids", "video_grids")} | {"mask": np.array(case["mask"])}
        got = hf.positions_from_tokens(case["config"], np.array(case["tokens"]), **inputs)
        assert got.dtype == (np.float32 if model.startswith("qwen3_omni") else np.int32)
        np.testing.assert_array_equal(got, case["positions"])


def test_every_type_with_coordinates_is_read_or_refused():
    """A language model "x_text" with sections of coordinates belongs to the whole model "x"."""
    wholes = {name.removesuffix("_text") for name, model in MODELS.items() if model.sections}
    assert wholes <= {*MULTIMODAL, *REFUSED, *THINKERS}


# Token ids. 9 and 8 are placeholders, of the kind that each config says; the others are text.
ROW = np.array([1, 2, 3, *[9] * 12, 4, 5, 6])
BOTH = np.array([1, 2, 9, 9, 8, 8, 9, 9, 3, 4])
QWEN = {"model_type": "qwen2_vl", "image_token_id": 9, "video_token_id": 8}
QWEN_2_5 = {"model_type": "qwen2_5_vl", "video_token_id": 9}
OMNI = {"model_type": "qwen2_5_omni", "thinker_config": {"video_token_index": 9, "audio_token_index": 8}}
TOGETHER = {"model_type": "qwen2_5_omni", "thinker_config": {"video_token_id": 9, "image_token_id": 8}}
IMAGE, VIDEO = {"image_grids": [(1, 4, 6)]}, {"video_grids": [(3, 4, 4)]}
TIMED, TWO = VIDEO | {"video_seconds": [2.0]}, {"video_grids": [(2, 2, 4)], "video_seconds": [1.0]}


@pytest.mark.parametrize("seconds", [2 / 25, 2 / 3])
def test_times_are_float32_products_in_the_order_of_the_model(seconds):
    """Qwen2.5-VL multiplies the rate by the seconds first, and Qwen2.5-Omni the frame's number by the seconds."""
    tokens, grids = np.full(30, 9), {"video_grids": [(30, 2, 2)], "video_seconds": [seconds]}
    vl = QWEN_2_5 | {"vision_config": {"tokens_per_second": 25}}
    omni = {"model_type": "qwen2_5_omni_thinker", "video_token_id": 9}
    t, rate, step = np.arange(30, dtype=np.float32), np.float32(25), np.float32(seconds)
    for config, want in ((vl, t * (rate * step)), (omni, t * step * rate)):
        got = np.asarray(hf.positions_from_tokens(config, tokens, **grids))[:, 0]
        np.testing.assert_array_equal(got, np.floor(want))


@pytest.mark.parametrize(
    ("words", "config", "given"),
    [
        # words of the error (see `refused`), config, arguments beside or instead of tokens=ROW
        ("TypeError: positions_from_tokens: config must be a mapping", [QWEN], IMAGE),
        ("model_type is missing", {}, IMAGE),
        ("'qwen2_vl_text' is not known", {"model_type": "qwen2_vl_text"}, IMAGE),
        ("'hunyuan_vl' is not read", {"model_type": "hunyuan_vl"}, IMAGE),
        ("thinker_config.model_type must be 'qwen2_5_omni_thinker'", OMNI | {"thinker_config": QWEN}, IMAGE),
        ("TypeError: image_token_id must be an integer", QWEN | {"image_token_id": "<image>"}, IMAGE),
        ("image_token_id = 9 contradicts image_token_index = 5", QWEN | {"image_token_index": 5}, IMAGE),
        ("the tokens must differ", QWEN | {"video_token_id": 9}, IMAGE),
        (r"image_grids\[0\] must .* multiples of .*=5", QWEN | {"vision_config": {"spatial_merge_size": 5}}, IMAGE),
        (r"image_grids\[0\] must have 6 placeholders, got 12 in tokens\[3:15\]", QWEN, IMAGE),
        (r"image_grids\[0\] must have 6 placeholders in tokens, got none", QWEN, IMAGE | {"tokens": ROW[:3]}),
        ("video_seconds must not be given", QWEN, TIMED),
        (r"video_grids\[0\] must have a time that is a multiple of 2", {"model_type": "ernie4_5_vl_moe"}, VIDEO),
        ("video_seconds must be given", OMNI, VIDEO),
        (r"video_seconds\[0\] must be positive", OMNI, VIDEO | {"video_seconds": [0.0]}),
        ("positions must fit into int32", OMNI, VIDEO | {"video_seconds": [1e9]}),
        ("the rate times the seconds of .* must", QWEN_2_5 | {"vision_config": {"tokens_per_second": 3e38}}, TIMED),
        (
            r"video_grids\[0\] must have 4 placeholders, got 2 in tokens\[2:4\] to tokens\[4:6\]",
            OMNI,
            TWO | {"tokens": BOTH[[0, 1, 2, 3, 4, 5, 8]]},
        ),
        (r"tokens\[0:1\] must have two tokens that end", OMNI, TWO | {"tokens": BOTH[1:]}),
        ("must have text between placeholders", TOGETHER, TWO | {"tokens": BOTH}),
        ("is vision_config.spatial_merge_size meant", QWEN_2_5 | {"vision_config": {"spatial_merge_sizes": 2}}, TIMED),
        ("is vision_config.tokens_per_second meant", QWEN_2_5 | {"vision_config": {"tokensPerSecond": 2}}, TIMED),
    ],
)
def test_invalid_inputs_are_refused(words, config, given):
    with refused(words):
        hf.positions_from_tokens(config, **{"tokens": ROW} | given)


def test_traced_tokens_are_refused():
    with pytest.raises(TypeError, match="tokens must be known, not traced"):
        jax.eval_shape(lambda t: hf.positions_from_tokens(QWEN, t), ROW)
