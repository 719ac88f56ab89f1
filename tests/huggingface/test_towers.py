"""Plans of vision towers reproduce values recorded from transformers.

- A tower's patches are rotated as by its model.
- A tower takes videos if its model does.
- Patches get the rows of a learned table that they get in the model.
"""

import jax
import numpy as np
import pytest

from helpers.closeness import assert_within
from oracles import recorded
from posenc_jax.hf import vision_rotary_from_config
from posenc_jax.hf._towers import TOWERS

CASES = {case["config"]["model_type"]: case for case in recorded.cases("hf_towers")}
TABLES = {case["config"]["model_type"]: case for case in recorded.cases("hf_tower_tables")}
# In memory attention, the keys are two frames and then pointers to objects, which are not rotated.
POINTERS = 2
# Towers that take videos, though images alone are recorded.
WITHOUT_VIDEO = set("edgetam_video glm4v_moe_vision glm4v_vision sam2_video sam3_tracker_video".split())
# A frame in EdgeTAM's memory is latent vectors without positions, and then a grid of latent vectors.
UNPLACED, LATENT_GRID = 3, (2, 4)


def shapes_of(case):
    """The shapes of images as (height, width), recorded as time 1, and of videos as (time, height, width)."""
    return [tuple(image[1:] if image[0] == 1 else image) for image in case["images"]]


def positions_of_queries(plan, case, layer):
    """Those of the queries of a layer, (tokens, axes)."""
    images = []
    for shape in shapes_of(case):
        # VideoLLaMA 3 gets a merge size with each input: here 1 for images and 2 for videos, the axes but one.
        options = {"merge_size": len(shape) - 1} if case["config"]["model_type"] == "video_llama_3_vision" else {}
        images.append(plan.positions(shape, layer, **options))
    return np.concatenate(images)


def positions_of_keys(plan, case, layer):
    """Those of the keys of memory attention; what is not rotated is at (0, 0)."""
    frames = plan.positions((2, *case["images"][0][1:]), layer)
    if case["config"]["model_type"] == "edgetam_video":
        frame = np.pad(plan.positions(LATENT_GRID, layer), ((UNPLACED, 0), (0, 0)))
        frames = np.concatenate([frame, frame])
    return np.pad(frames, ((0, POINTERS), (0, 0)))


@pytest.mark.parametrize("model_type", CASES)
def test_each_tower_rotates_patches_as_its_model(model_type):
    """Of one layer of each kind, eight of `count` vectors are recorded, before and after their rotation."""
    case = CASES[model_type]
    plan = vision_rotary_from_config(case["config"])
    assert [i for i, layer in enumerate(plan.layers) if layer.rotary_dim] == case["attending"]
    for theirs in case["layers"]:
        positions = (positions_of_keys if theirs["memory"] else positions_of_queries)(plan, case, theirs["layer"])
        assert len(positions) == theirs["count"]
        got = plan.rotate(np.float32(theirs["before"]), theirs["layer"], positions[theirs["tokens"]], head_axis=None)
        assert_within(got, theirs["after"], 3e-6, against="transformers")  # which rounds angles to float32


def test_towers_take_videos_if_their_models_do():
    for model_type, case in CASES.items():
        videos = model_type in WITHOUT_VIDEO or any(len(shape) == 3 for shape in shapes_of(case))
        grids = vision_rotary_from_config(case["config"]).grids
        assert {grid.frames for grid in grids if grid} == {videos}, model_type


@pytest.mark.parametrize("model_type", TABLES)
def test_patches_get_the_models_rows_of_a_table(model_type):
    case = TABLES[model_type]
    plan, table = vision_rotary_from_config(case["config"]), np.float32(case["table"])[..., None]  # one feature
    rows = np.concatenate(jax.jit(lambda table: [plan.table_rows(table, shape) for shape in shapes_of(case)])(table))
    assert_within(rows[:, 0], case["rows"], 2e-6, against="transformers")


def test_each_tower_and_each_table_is_recorded():
    assert TOWERS.keys() == CASES.keys()
    assert {name for name, tower in TOWERS.items() if tower.table != "none"} == TABLES.keys()
