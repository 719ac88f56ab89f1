"""Plans of vision towers beside transformers: recorded values.

- A tower's patches are rotated as by its model.
- The rows of a learned table that patches get are those of the model.
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
# In memory attention, the keys are two frames and then pointers to objects.
OBJECTS = 2  # pointers to objects, which are not rotated
# A frame in EdgeTAM's memory is latent vectors without positions, and then a grid of latent vectors.
LATENTS, LATENT_GRID = 3, (2, 4)


def shapes_of(case):
    """The shapes of images as (height, width), and of videos as (time, height, width)."""
    return [tuple(image[1:] if image[0] == 1 else image) for image in case["images"]]


def positions_of(plan, case, layer):
    """The positions of the queries of a layer, (tokens, axes)."""
    images = []
    for shape in shapes_of(case):
        # VideoLLaMA 3 gets a merge size with each input: here 1 for images and 2 for videos.
        options = {"merge_size": len(shape) - 1} if case["config"]["model_type"] == "video_llama_3_vision" else {}
        images.append(plan.positions(shape, layer, **options))
    return np.concatenate(images)


def memory_of(plan, case, layer):
    """The positions of the keys of memory attention; what is not rotated is at (0, 0)."""
    frames = plan.positions((2, *case["images"][0][1:]), layer)
    if case["config"]["model_type"] == "edgetam_video":
        frame = np.pad(plan.positions(LATENT_GRID, layer), ((LATENTS, 0), (0, 0)))
        frames = np.concatenate([frame, frame])
    return np.pad(frames, ((0, OBJECTS), (0, 0)))


@pytest.mark.parametrize("model_type", TOWERS)
def test_each_tower_rotates_patches_as_its_model(model_type):
    """Of each layer, some of the `count` vectors are recorded, before and after their rotation."""
    case = CASES[model_type]
    plan = vision_rotary_from_config(case["config"])
    assert [i for i, layer in enumerate(plan.layers) if layer.rotary_dim] == case["attending"]
    for layer in case["layers"]:
        positions = (memory_of if layer["memory"] else positions_of)(plan, case, layer["layer"])
        assert len(positions) == layer["count"]
        got = plan.rotate(np.float32(layer["before"]), layer["layer"], positions[layer["tokens"]], head_axis=None)
        assert_within(got, layer["after"], 3e-6, against="transformers")  # which rounds angles to float32


@pytest.mark.parametrize("model_type", TABLES)
def test_patches_get_the_rows_of_a_table_that_they_get_in_the_model(model_type):
    case = TABLES[model_type]
    plan, table = vision_rotary_from_config(case["config"]), np.float32(case["table"])[..., None]
    rows = np.concatenate(jax.jit(lambda table: [plan.table_rows(table, shape) for shape in shapes_of(case)])(table))
    assert_within(rows[:, 0], case["rows"], 2e-6, against="transformers")


def test_a_tower_without_a_recorded_table_has_none():
    assert {name for name, tower in TOWERS.items() if tower.table != "none"} == TABLES.keys()
