"""Vision towers: each turns its patches as transformers does, and each fact of the table matters."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.towers import memory_of, positions_of
from oracles import recorded, rotations, tables
from posenc_jax.hf import _tower_quirks, _tower_tables, _towers, vision_rotary_from_config

CASES = {case["config"]["model_type"]: case for case in recorded.cases("hf_towers")}
TABLES = {case["config"]["model_type"]: case for case in recorded.cases("hf_tower_tables")}
BOUND = 3e-6  # transformers rounds frequencies and angles to float32
WRONG = 1e-3


def places(case, plan, found):
    """The positions of the recorded tokens, if the layer has as many tokens as the model."""
    of = memory_of if found["memory"] else positions_of
    positions = of(plan, case["config"]["model_type"], case["images"], found["layer"])
    return positions[found["tokens"]] if len(positions) == found["count"] else None


def formula(plan, layer, x, positions):
    """In float64."""
    f = plan.layers[layer].frequencies
    size = plan.layers[layer].head_dim // plan.slices
    parts, pairs = np.split(np.float64(x), plan.slices, -1), np.split(np.arange(f.num_pairs), plan.slices)
    turned = [
        rotate(part, positions, f.angular[i], np.array(f.axes)[i], plan.layout)
        for part, i in zip(parts, pairs, strict=True)
    ]
    assert all(part.shape[-1] == size for part in parts)
    return np.concatenate(turned, -1)


def rotate(x, positions, angular, axes, layout):
    width = 2 * len(angular)
    angles = np.float64(positions)[:, axes] * angular
    return np.concatenate([rotations.rotate_by(x[..., :width], angles, layout), x[..., width:]], -1)


def error(case, plan):
    """The largest difference of a plan from the model; infinite if the numbers of tokens or layers differ."""
    worst = 0.0
    if [i for i, layer in enumerate(plan.layers) if layer.rotary_dim] != case["attending"]:
        return np.inf
    for found in case["layers"]:
        positions = places(case, plan, found)
        if positions is None:
            return np.inf
        x, y = np.float32(found["before"]), np.float32(found["after"])
        worst = max(worst, np.abs(formula(plan, found["layer"], x, positions) - y).max())
    return worst


@pytest.mark.parametrize("model_type", CASES)
def test_each_tower_turns_as_its_model(model_type):
    case = CASES[model_type]
    plan = vision_rotary_from_config(case["config"])
    assert error(case, plan) < BOUND
    for found in case["layers"]:
        x, layer = np.float32(found["before"]), found["layer"]
        got = plan.rotate(x, layer, places(case, plan, found), head_axis=None)
        np.testing.assert_allclose(got, found["after"], rtol=0, atol=BOUND)


def test_every_tower_is_recorded():
    assert {*CASES} == {*_towers.TOWERS}
    assert recorded.read("hf_towers")["transformers"] == "5.23.0"


# Facts


def other_facts(model_type, facts):
    """Other values of the facts that say how a tower rotates and where its patches are."""
    yield "theta", 2 * facts.theta
    yield "axes", facts.axes[::-1]
    yield "pairs", "blocks" if facts.pairs == "alternating" else "alternating"
    yield "pairs", "halved" if facts.pairs == "blocks" else "blocks"
    yield "layout", "half" if facts.layout == "interleaved" else "interleaved"
    yield "heads", () if facts.heads else ("num_attention_heads",)
    yield "in_cycles", not facts.in_cycles
    yield "centres", not facts.centres
    yield "offset", facts.offset + 1
    yield "leading", facts.leading + 1
    if model_type != "video_llama_3_vision":
        yield "squares", None if facts.squares else "spatial_merge_size"
    if model_type != "sam3_vit_model":
        yield "windows", None if facts.windows else "window_size"
    if facts.frames and "glm4v" not in model_type:  # whose frames come as images
        yield "frames", False
    if "num_register_tokens" in facts.defaults:
        yield "defaults", {}
    if "head_dim" in facts.defaults:
        yield "defaults", {"head_dim": facts.defaults["head_dim"] // 2}


def other_plans(facts):
    """Changes of what only the quirks of single towers change."""
    yield lambda plan: with_grid(plan, timed=not plan.grids[0].timed)
    yield lambda plan: with_grid(plan, trailing=plan.grids[0].trailing + 1)
    yield lambda plan: with_grid(plan, merge=0 if plan.grids[0].merge else 1)
    if facts.layout == "half":  # interleaved pairs lie in one slice of the head anyway
        yield lambda plan: dataclasses.replace(plan, slices=3 - plan.slices)


def with_grid(plan, **changes):
    return dataclasses.replace(plan, grids=(dataclasses.replace(plan.grids[0], **changes),) * len(plan.grids))


def wrong_by(case, change=lambda plan: plan, **keys):
    """The error of a changed tower; None if it then cannot be read or applied."""
    try:
        return error(case, change(vision_rotary_from_config(keys | case["config"])))
    except (ValueError, TypeError, IndexError, AssertionError):
        return None


@pytest.mark.parametrize("model_type", CASES)
def test_each_fact_matters(model_type, monkeypatch):
    case, facts = CASES[model_type], _towers.TOWERS[model_type]
    for i, change in enumerate(other_plans(facts)):
        wrong = wrong_by(case, change)
        assert wrong is None or wrong > WRONG, (i, wrong)
    for name, value in other_facts(model_type, facts):
        monkeypatch.setitem(_towers.TOWERS, model_type, dataclasses.replace(facts, **{name: value}))
        windows = {"window_size": 8 if facts.squares else 4, "patch_size": 2} if name == "windows" else {}  # small ones
        wrong = wrong_by(case, **windows)
        assert wrong is None or wrong > WRONG, (name, value, wrong)


ONLY_CHECKS = "edgetam_video efficientloftr sam2_video sam3_tracker_video".split()  # which shapes and shares there are


@pytest.mark.parametrize("model_type", sorted({*_tower_quirks.QUIRKS}.difference(ONLY_CHECKS)))
def test_each_quirk_matters(model_type, monkeypatch):
    monkeypatch.delitem(_tower_quirks.QUIRKS, model_type)
    wrong = wrong_by(CASES[model_type])
    assert wrong is None or wrong > WRONG


# Learned tables


def shapes(case):
    """(time, height, width) of each image, without the time of one frame."""
    return [image[1:] if image[0] == 1 else image for image in case["images"]]


def whole(how, table, height, width):
    """The table for another grid, row by row, in float64; for Gemma 4 its two tables of coordinates."""
    row, column = np.indices((height, width))
    if how == "by_coordinate":
        return table[0, column] + table[1, row]
    if how == "tiled":
        return table[row % len(table), column % table.shape[1]]
    if how == "fixed":
        return table
    size = (width, height) if how == "linear_zeros_exchanged" else (height, width)
    places = {"align_corners": how == "linear_aligned", "zeros_outside": how == "linear_zeros_exchanged"}
    if how == "torch_cubic":
        return tables.cubic(table, size, -0.75)
    return tables.linear(table, size, **places).reshape(height, width, -1)


def rows_by_formula(how, case, plan):
    """The rows of all images, in the order of their patches."""
    table = np.float64(case["table"])[..., None]
    found = []
    for image in case["images"]:
        grid = dataclasses.replace(plan.grids[0], inside=0, leading=0, trailing=0, shapes=())
        plain = dataclasses.replace(plan, grids=(grid,) * len(plan.grids))
        at = np.asarray(plain.positions(image[-2:], 0)) - grid.offset
        patches = whole(how, table, *image[-2:])[at[:, 0], at[:, 1]]
        found += [patches] * image[0]
    return np.concatenate(found)


@pytest.mark.parametrize("model_type", TABLES)
def test_each_table_reaches_the_patches_as_in_its_model(model_type):
    case = TABLES[model_type]
    plan = vision_rotary_from_config(case["config"])
    table, want = np.float32(case["table"])[..., None], np.array(case["rows"])[:, None]
    got = np.concatenate([plan.table_rows(table, shape) for shape in shapes(case)])
    assert_within(got, want, 2e-6, against=f"{model_type} in transformers")
    assert_within(rows_by_formula(plan.table, case, plan), want, 2e-6, against=f"{model_type} in transformers")
    others = {*_tower_tables.TABLES} - {"unknown", "none", "by_coordinate", "fixed", plan.table}
    for other in others if plan.table not in ("by_coordinate", "fixed") else ():
        assert np.abs(rows_by_formula(other, case, plan) - want).max() > 0.01, other


def test_every_tower_says_what_it_does_with_a_table():
    says = {name: vision_rotary_from_config(CASES[name]["config"]).table for name in CASES}
    assert {name for name, table in says.items() if table != "none"} == {*TABLES}
    assert "unknown" not in says.values()
    aligned = {name for name, table in says.items() if table == "linear_aligned"}
    assert aligned == {
        "cohere_compass_vision",
        *(f"qwen3_{kind}vision" for kind in ("vl_", "vl_moe_", "5_", "5_moe_")),
        "qwen3_omni_moe_vision_encoder",
        "qwen4_exp_vision",
    }
    zeros = {name for name in TABLES if says[name] == "linear_zeros_exchanged"}
    assert zeros == {"muse_glimmer_vision", "muse_spark_vision"}


def test_the_page_lists_the_tables_as_they_are():
    page = (Path(__file__).parents[2] / "docs" / "huggingface.md").read_text(encoding="utf-8")
    lines = re.findall(r'^\| `"(\w+)"` \| .* \| (.*) \|$', page, re.MULTILINE)
    listed = {name: table for table, types in lines for name in re.findall(r"`(\w+)`", types)}
    assert listed == {name: tower.table for name, tower in _towers.TOWERS.items() if tower.table != "none"}
    assert {table for table, _ in lines} == {*_tower_tables.TABLES}


@pytest.mark.parametrize("model_type", ["qwen3_vl_vision", "kimi_k25_vision", "step3p5_vision"])
def test_the_settings_of_a_plan_are_those_of_resize_table(model_type):
    case = TABLES[model_type]
    plan = vision_rotary_from_config(case["config"])
    table, (height, width) = np.float32(case["table"])[..., None], case["images"][0][1:]
    resized = pe.resize_table(table, (height, width), **plan.resampling)
    want = whole(plan.table, np.float64(table), height, width)
    assert_within(resized, want, 2e-6, against="the formula in float64")
