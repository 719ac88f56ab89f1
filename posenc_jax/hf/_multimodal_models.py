"""How multimodal models of transformers 5.23.0 place images and videos among text, by model_type.

Every entry was read from the model's `get_rope_index`, from its processor, which writes the placeholders, and from
`configuration_*.py`, whose defaults stand for missing keys. A field is a fact that at least two model types share.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal


@dataclasses.dataclass(frozen=True)
class Multimodal:
    """The facts of a model_type.

    "By default" means: where the config does not have the key.
    """

    # The placeholders by default; their keys are image_token_id or image_token_index, and so on
    image: int
    video: int | None  # None: the model takes no videos, or marks them by `video_edges`
    video_edges: tuple[int, int] | None = None  # video_start_token_id, video_end_token_id: images between are frames
    audio: int | None = None  # in videos; audio elsewhere is like text

    # The grids
    following: Literal["maximum", "side"] = "side"  # where the part after a grid starts
    separate_frames: bool = False  # each frame of a video is its own run, with a timestamp before it
    merge_keys: tuple[str, ...] = ("spatial_merge_size",)  # for the patches of a token along an axis, 2 by default
    merge_part: str = "vision_config"  # the part of the config with these keys; "": the config itself

    # The times of a video's frames
    rate: tuple[str, str, int] | None = None  # positions per second: the part of the config, the key, the default
    seconds_first: bool = False  # ⌊(t · seconds) · rate⌋, each product in float32; not ⌊t · (rate · seconds)⌋
    whole_times: bool = True  # the times are rounded down
    edges_share_position: bool = False  # the two tokens that start a video with audio share a position, as do the ends


def _all(names: str, **facts: Any) -> dict[str, Multimodal]:
    return {name: Multimodal(**facts) for name in names.split()}


_QWEN: Any = {"image": 151655, "video": 151656}
_QWEN35: Any = {"image": 248056, "video": 248057}
_OMNI: Any = _QWEN | {
    "audio": 151646,
    "following": "maximum",
    "rate": ("", "position_id_per_seconds", 25),
    "seconds_first": True,
}
_QWEN25_OMNI: Any = _OMNI | {"edges_share_position": True}
_QWEN3_OMNI: Any = _OMNI | {"whole_times": False}

MULTIMODAL: dict[str, Multimodal] = {
    # a video is one run
    **_all("qwen2_vl", **_QWEN),
    **_all("qwen2_5_vl", **_QWEN, rate=("vision_config", "tokens_per_second", 4)),
    **_all("paddleocr_vl", image=100295, video=100296),
    **_all("ernie4_5_vl_moe", image=100295, video=103367, merge_keys=("spatial_merge_size", "temporal_merge_size")),
    **_all("qwen2_5_omni_thinker", **_QWEN25_OMNI),
    **_all("qwen2_5_omni_talker", **_QWEN25_OMNI, merge_part=""),
    **_all("qwen3_omni_moe_thinker", **_QWEN3_OMNI),
    **_all("qwen3_omni_moe_talker", **_QWEN3_OMNI, merge_part=""),
    # timestamps stand between its frames
    **_all("cosmos3_omni qwen3_vl qwen3_vl_moe", **_QWEN, separate_frames=True),
    **_all("qwen3_5 qwen3_5_moe qwen4_exp", **_QWEN35, separate_frames=True),
    **_all("cohere_compass", image=255031, video=255032, separate_frames=True),
    **_all("cosmos3_edge", image=19, video=18, separate_frames=True),
    # its frames have the placeholder of images
    **_all("glm4v", image=151343, video=None, video_edges=(151341, 151342), separate_frames=True),
    **_all("glm4v_moe", image=151363, video=None, video_edges=(151341, 151342), separate_frames=True),
    **_all("glm46v glmga", image=151343, video=None, video_edges=(151361, 151362), separate_frames=True),
    **_all("glm_ocr", image=59280, video=None, video_edges=(59258, 59259), separate_frames=True),
    # no videos
    **_all("glm_image", image=167855, video=None, merge_keys=()),
}
# Composites: the model_type of the part that has the placeholders.
THINKERS = {"qwen2_5_omni": "qwen2_5_omni_thinker", "qwen3_omni_moe": "qwen3_omni_moe_thinker"}

_REASONS = {
    "the placeholders of its images count on like text, in all coordinates, as positions_from_mask counts": """
        colqwen2 minicpm_ocr minicpmv4_6""",
    "it lays slices of images out on a canvas, around which its markers have positions of their own": "minicpmv4_7",
    "each frame of its videos begins a new block of positions, and each row of a grid ends in a token of its own": """
        hy_v4_vl""",
    "its positions have four coordinates, with the number of the image; rotary_from_config does not read it either": """
        hunyuan_vl""",
}
REFUSED = {name: reason for reason, names in _REASONS.items() for name in names.split()}
