"""Vision towers rotate their patches, and add rows of learned tables to them, as in transformers: recorded values."""

import jax
import numpy as np
import pytest

from helpers.closeness import assert_within
from oracles import recorded
from posenc_jax.hf import vision_rotary_from_config
from posenc_jax.hf._towers import TOWERS

CASES = {case["config"]["model_type"]: case for case in recorded.cases("hf_towers")}
TABLES = {case["config"]["model_type"]: case for case in recorded.cases("hf_tower_tables")}
# What memory attention attends to beside the patches of two frames.
OBJECTS = 2  # pointers to objects, which do not rotate, after the frames
LATENTS = 3  # of each frame in EdgeTAM's memory, without a place, before those of a grid
LATENT_GRID = 2, 4


def shapes_of(case):
    """Of the images, (height, width), and of the videos, (time, height, width)."""
    return [tuple(image[1:] if image[0] == 1 else image) for image in case["images"]]


def positions_of(plan, case, layer):
    """The positions of the queries of a layer, (tokens, axes)."""
    merges = case["config"]["model_type"] == "video_llama_3_vision"  # that comes with each image
    images = [
        plan.positions(shape, layer, **({"merge_size": len(shape) - 1} if merges else {})) for shape in shapes_of(case)
    ]
    return np.concatenate(images)


def memory_of(plan, case, layer):
    """The positions of the keys of two frames in memory, and of pointers to objects."""
    frames = plan.positions((2, *case["images"][0][1:]), layer)
    if case["config"]["model_type"] == "edgetam_video":
        frame = np.pad(plan.positions(LATENT_GRID, layer), ((LATENTS, 0), (0, 0)))
        frames = np.concatenate([frame, frame])
    return np.pad(frames, ((0, OBJECTS), (0, 0)))


@pytest.mark.parametrize("model_type", TOWERS)
def test_each_tower_rotates_as_its_model(model_type):
    case = CASES[model_type]
    plan = vision_rotary_from_config(case["config"])
    assert [i for i, layer in enumerate(plan.layers) if layer.rotary_dim] == case["attending"]
    for layer in case["layers"]:
        positions = (memory_of if layer["memory"] else positions_of)(plan, case, layer["layer"])
        assert len(positions) == layer["count"]
        got = plan.rotate(np.float32(layer["before"]), layer["layer"], positions[layer["tokens"]], head_axis=None)
        assert_within(got, layer["after"], 3e-6, against="transformers")  # which rounds angles to float32


@pytest.mark.parametrize("model_type", TABLES)
def test_each_table_reaches_the_patches_as_in_its_model(model_type):
    case = TABLES[model_type]
    plan, table = vision_rotary_from_config(case["config"]), np.float32(case["table"])[..., None]
    rows = np.concatenate(jax.jit(lambda table: [plan.table_rows(table, shape) for shape in shapes_of(case)])(table))
    assert_within(rows[:, 0], case["rows"], 2e-6, against="transformers")


def test_a_tower_without_a_recorded_table_has_none():
    assert {name for name, tower in TOWERS.items() if tower.table != "none"} == TABLES.keys()
