"""This library's positions of the recorded rows of tokens."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import posenc_jax as pe

IMAGE, VIDEO = 5, 6


def positions_of(case: dict[str, Any], **changed: Any) -> jax.Array:
    tokens, placeholders = np.array(case["tokens"]), (IMAGE, VIDEO)
    if "mm_token_type_ids" in case:
        tokens, placeholders = np.array(case["mm_token_type_ids"]), (1, 2)
    steps, videos = None, case["video_grid_thw"]
    if "tokens_per_second" in case:
        steps = case["tokens_per_second"] * np.float32(case.get("second_per_grid_ts", np.ones(len(videos))))
    settings = {
        "image_token": placeholders[0],
        "video_token": placeholders[1],
        "image_grids": case["image_grid_thw"],
        "video_grids": videos,
        "video_steps": steps,
        "spatial_merge_size": case["spatial_merge_size"],
        "mask": None if case["mask"] is None else np.array(case["mask"]),
        "following": "side",
    }
    return pe.positions_from_tokens(tokens, **settings | changed)
