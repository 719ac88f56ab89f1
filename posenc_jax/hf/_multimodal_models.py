"""The positions of images and videos among text in multimodal models of transformers, by model_type.

`facts.json` has the placeholders by default. By hand stays here what was read from the model's `get_rope_index` and its
processor. A field is a fact that at least two model types share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from posenc_jax.hf._models import FACTS, by_model_type


class Multimodal(NamedTuple):
    """The facts of a model_type.

    "By default" means: where the config does not have the key.
    """

    tokens: Mapping[str, int]  # by default: the placeholders, with keys such as image_token_id or image_token_index

    # The grids
    separate_frames: bool = False  # each frame of a video is its own run, with a timestamp before it
    frames_as_images: bool = False  # frames have the placeholder of images, between video_start and video_end
    merge_keys: tuple[str, ...] = ("spatial_merge_size",)  # for the patches of a token along an axis, 2 by default
    merge_part: str = "vision_config"  # the part of the config with these keys; "": the config itself

    # The times of a video's frames
    rate: tuple[str, str, int] | None = None  # positions per second: the part of the config, the key, the default
    whole_times: bool = True  # the times are rounded down

    # Omni models have audio, and the part after a grid starts above all positions of the grid, not at its longer side.
    # Times are ⌊(t · seconds) · rate⌋, each product in float32; of other models, ⌊t · (rate · seconds)⌋.
    omni: bool = False
    edges_share_position: bool = False  # the two tokens that start a video with audio share a position, as do the ends


_OMNI: Any = {"omni": True, "rate": ("", "position_id_per_seconds", 25)}
_QWEN25_OMNI: Any = _OMNI | {"edges_share_position": True}
_QWEN3_OMNI: Any = _OMNI | {"whole_times": False}

_GROUPS: dict[str, Any] = {
    # a video is one run
    "qwen2_vl paddleocr_vl": {},
    "qwen2_5_vl": {"rate": ("vision_config", "tokens_per_second", 4)},
    "ernie4_5_vl_moe": {"merge_keys": ("spatial_merge_size", "temporal_merge_size")},
    "qwen2_5_omni_thinker": _QWEN25_OMNI,
    "qwen2_5_omni_talker": _QWEN25_OMNI | {"merge_part": ""},
    "qwen3_omni_moe_thinker": _QWEN3_OMNI,
    "qwen3_omni_moe_talker": _QWEN3_OMNI | {"merge_part": ""},
    # timestamps stand between its frames
    "cohere_compass cosmos3_edge cosmos3_omni qwen3_5 qwen3_5_moe qwen3_vl qwen3_vl_moe qwen4_exp": {
        "separate_frames": True
    },
    # which have the placeholder of images
    "glm46v glm4v glm4v_moe glm_ocr glmga": {"separate_frames": True, "frames_as_images": True},
    # no videos
    "glm_image": {"merge_keys": ()},
}
MULTIMODAL = {  # a talker has the placeholders of its thinker
    name: Multimodal(FACTS["placeholders"].get(name.replace("talker", "thinker")), **facts)
    for name, facts in by_model_type(_GROUPS).items()
}
# Composites: the model_type of the part that has the placeholders.
THINKERS = {"qwen2_5_omni": "qwen2_5_omni_thinker", "qwen3_omni_moe": "qwen3_omni_moe_thinker"}

REFUSED = by_model_type(
    {
        "colqwen2 minicpm_ocr minicpmv4_6": (
            "the placeholders of its images count on like text, in all coordinates, as positions_from_mask counts"
        ),
        "minicpmv4_7": "it lays slices of images out on a canvas, around which its markers have positions of their own",
        "hy_v4_vl": (
            "each frame of its videos begins a new block of positions, and each row of a grid ends in a token of its "
            "own"
        ),
        "hunyuan_vl": (
            "its positions have four coordinates, with the number of the image; rotary_from_config does not read it "
            "either"
        ),
    }
)
