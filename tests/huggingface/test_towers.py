"""Vision towers rotate their patches, and add rows of learned tables to them, as in transformers: recorded values."""

import numpy as np
import pytest

from helpers.closeness import assert_within
from helpers.towers import memory_of, positions_of
from oracles import recorded
from posenc_jax.hf import vision_rotary_from_config
from posenc_jax.hf._towers import TOWERS

CASES = {case["config"]["model_type"]: case for case in recorded.cases("hf_towers")}
TABLES = {case["config"]["model_type"]: case for case in recorded.cases("hf_tower_tables")}
BOUND = 3e-6  # transformers rounds frequencies and angles to float32


@pytest.mark.parametrize("model_type", TOWERS)
def test_each_tower_rotates_as_its_model(model_type):
    case = CASES[model_type]
    plan = vision_rotary_from_config(case["config"])
    assert [i for i, layer in enumerate(plan.layers) if layer.rotary_dim] == case["attending"]
    for layer in case["layers"]:
        of = memory_of if layer["memory"] else positions_of
        positions = of(plan, model_type, case["images"], layer["layer"])
        assert len(positions) == layer["count"]
        x = np.float32(layer["before"])
        got = plan.rotate(x, layer["layer"], positions[layer["tokens"]], head_axis=None)
        assert_within(got, layer["after"], BOUND, against="transformers")


@pytest.mark.parametrize("model_type", TABLES)
def test_each_table_reaches_the_patches_as_in_its_model(model_type):
    case = TABLES[model_type]
    plan, table = vision_rotary_from_config(case["config"]), np.float32(case["table"])[..., None]
    shapes = [image[1:] if image[0] == 1 else image for image in case["images"]]
    rows = np.concatenate([plan.table_rows(table, shape) for shape in shapes])
    assert_within(rows[:, 0], case["rows"], 2e-6, against="transformers")


def test_a_tower_without_a_recorded_table_has_none():
    for name, tower in TOWERS.items():
        assert (tower.table != "none") == (name in TABLES), name
