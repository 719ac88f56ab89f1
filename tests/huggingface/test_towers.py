"""Vision towers: each rotates its patches as transformers does, and each fact of the table matters."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from helpers.closeness import assert_within
from helpers.towers import memory_of, positions_of
from oracles import recorded, rotations
from posenc_jax.hf import _patches, _towers, _vision, vision_rotary_from_config

CASES = {case["config"]["model_type"]: case for case in recorded.cases("hf_towers")}
TABLES = {case["config"]["model_type"]: case for case in recorded.cases("hf_tower_tables")}
BOUND = 3e-6  # transformers rounds frequencies and angles to float32
WRONG = 1e-3


def recorded_positions(case, plan, layer):
    """The positions of the recorded tokens of a layer."""
    of = memory_of if layer["memory"] else positions_of
    positions = of(plan, case["config"]["model_type"], case["images"], layer["layer"])
    assert len(positions) == layer["count"]
    return positions[layer["tokens"]]


def formula(plan, layer, x, positions):
    """Rotated features, in float64; each slice of a head rotates by itself."""
    f, result = plan.layers[layer].frequencies, []
    for part, pairs in zip(
        np.split(np.float64(x), plan.slices, -1), np.split(np.arange(f.num_pairs), plan.slices), strict=True
    ):
        angles, width = np.float64(positions)[:, np.array(f.axes)[pairs]] * f.angular[pairs], 2 * len(pairs)
        result += [rotations.rotate_by(part[..., :width], angles, plan.layout), part[..., width:]]
    return np.concatenate(result, -1)


def error(case, plan):
    """The largest difference of a plan from the model."""
    assert [i for i, layer in enumerate(plan.layers) if layer.rotary_dim] == case["attending"]
    return max(
        np.abs(
            formula(plan, layer["layer"], layer["before"], recorded_positions(case, plan, layer)) - layer["after"]
        ).max()
        for layer in case["layers"]
    )


@pytest.mark.parametrize("model_type", _towers.TOWERS)
def test_each_tower_rotates_as_its_model(model_type):
    case = CASES[model_type]
    plan = vision_rotary_from_config(case["config"])
    assert error(case, plan) < BOUND
    for layer in case["layers"]:
        positions = recorded_positions(case, plan, layer)
        got = plan.rotate(np.float32(layer["before"]), layer["layer"], positions, head_axis=None)
        np.testing.assert_allclose(got, layer["after"], rtol=0, atol=BOUND)


# Facts


def other_facts(model_type, facts):
    """Other values of the facts that say how a tower rotates and where its patches are."""
    yield "rope", {**facts.rope, "rope_theta": 2 * facts.rope["rope_theta"]}
    yield "axes", facts.axes[::-1]
    yield from (("pairs", pairs) for pairs in ("blocks", "alternating", "halved") if pairs != facts.pairs)
    yield "layout", "half" if facts.layout == "interleaved" else "interleaved"
    yield "heads", None if facts.heads else "num_attention_heads"
    grid = facts.grid
    if not grid.offset and not grid.timed:
        yield "grid", dataclasses.replace(grid, centres=not grid.centres)
    if not grid.centres:
        yield "grid", dataclasses.replace(grid, offset=grid.offset + 1)
    yield "grid", dataclasses.replace(grid, leading=grid.leading + 1)
    yield "grid", dataclasses.replace(grid, trailing=grid.trailing + 1)
    if not grid.merge:
        yield "grid", dataclasses.replace(grid, merge=1)
    if model_type != "video_llama_3_vision":
        yield "squares", not facts.squares
    if model_type != "sam3_vit_model":
        yield "windows", None if facts.windows else "window_size"
    if grid.frames and "glm4v" not in model_type:  # whose frames come as images
        yield "grid", dataclasses.replace(grid, frames=False)


def assert_wrong(case, **keys):
    """Asserts that a tower whose facts were changed is not read or applied, or differs from the model."""
    try:
        wrong = error(case, vision_rotary_from_config(keys | case["config"]))
    except (ValueError, TypeError, IndexError, KeyError, AssertionError):
        return
    assert wrong > WRONG


@pytest.mark.parametrize("model_type", CASES)
def test_each_fact_matters(model_type, monkeypatch):
    facts = _towers.TOWERS[model_type]
    for name, value in other_facts(model_type, facts):
        monkeypatch.setitem(_towers.TOWERS, model_type, facts._replace(**{name: value}))
        windows = {"window_size": 8 if facts.squares else 4, "patch_size": 2} if name == "windows" else {}  # small ones
        assert_wrong(CASES[model_type], **windows)


ONLY_CHECKS = "efficientloftr minimax_m3_vl_vision sam3_tracker_video".split()


@pytest.mark.parametrize("model_type", sorted(_vision.QUIRKS.keys() - ONLY_CHECKS))
def test_each_quirk_matters(model_type, monkeypatch):
    monkeypatch.delitem(_vision.QUIRKS, model_type)
    assert_wrong(CASES[model_type])


# Learned tables


def rows_of(plan, case):
    """The rows of all images, in the order of their patches."""
    table, images = np.float32(case["table"])[..., None], case["images"]
    shapes = [image[1:] if image[0] == 1 else image for image in images]
    return np.concatenate([plan.table_rows(table, shape) for shape in shapes])


@pytest.mark.parametrize("model_type", TABLES)
def test_each_table_reaches_the_patches_as_in_its_model(model_type):
    case = TABLES[model_type]
    plan, want = vision_rotary_from_config(case["config"]), np.array(case["rows"])[:, None]
    assert_within(rows_of(plan, case), want, 2e-6, against=f"{model_type} in transformers")
    if plan.table not in ("by_coordinate", "fixed"):
        for other in {*_patches.TABLES} - {"unknown", "none", "by_coordinate", "fixed", plan.table}:
            assert np.abs(rows_of(dataclasses.replace(plan, table=other), case) - want).max() > 0.01, other


def test_a_tower_without_a_recorded_table_has_none():
    for name, tower in _towers.TOWERS.items():
        assert (tower.table != "none") == (name in TABLES), name


def test_the_page_lists_the_tables_as_they_are():
    page = (Path(__file__).parents[2] / "docs" / "huggingface.md").read_text(encoding="utf-8")
    lines = re.findall(r'^\| `"(\w+)"` \| .* \| (.*) \|$', page, re.MULTILINE)
    listed = {name: table for table, types in lines for name in re.findall(r"`(\w+)`", types)}
    assert listed == {name: tower.table for name, tower in _towers.TOWERS.items() if tower.table != "none"}
    assert {table for table, _ in lines} == {*_patches.TABLES}
