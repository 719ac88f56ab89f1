"""Vision towers: each turns its patches as transformers does, and each fact of the table matters."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from helpers.towers import memory_of, positions_of
from oracles import recorded, rotations
from posenc_jax.hf import (
    _towers,
    vision_rotary_from_config,
)

CASES = {case["config"]["model_type"]: case for case in recorded.cases("hf_towers")}
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
        x, layer = jnp.float32(found["before"]), found["layer"]
        got = plan.rotate(x, layer, places(case, plan, found), head_axis=None)
        np.testing.assert_allclose(got, found["after"], rtol=0, atol=BOUND)


def test_every_tower_is_recorded():
    assert {*CASES} == {*_towers.TOWERS}
    assert recorded.read("hf_towers")["transformers"] == "5.23.0"


# Facts


def changes(model_type, facts):
    """Other values of the facts that say how a tower rotates and where its patches are."""
    yield "theta", 2 * facts.theta
    yield "axes", facts.axes[::-1]
    yield "pairs", "blocks" if facts.pairs == "alternating" else "alternating"
    yield "pairs", "dealt" if facts.pairs == "blocks" else "blocks"
    yield "layout", "half" if facts.layout == "interleaved" else "interleaved"
    if facts.layout == "half":  # interleaved pairs lie in one part of the head anyway
        yield "apart", not facts.apart
    if not facts.head_dim:
        yield "joined", not facts.joined
    yield "turns", not facts.turns
    yield "centres", not facts.centres
    yield "offset", facts.offset + 1
    yield "timed", not facts.timed
    yield "leading", facts.leading + 1
    yield "trailing", facts.trailing + 1
    if not facts.by_image:
        yield "merged", None if facts.merged else "spatial_merge_size"
    if facts.kind != "windowed":
        yield "windows", None if facts.windows else "window_size"
    yield "by_image", not facts.by_image
    if facts.frames and "glm4v" not in model_type:  # whose frames come as images
        yield "frames", False
    if facts.registers is not None:
        yield "registers", None
    if facts.kind in ("conv", "queries", "windowed"):  # the others only say which shapes there are
        yield "kind", "plain"
    if facts.head_dim:
        yield "head_dim", facts.head_dim // 2


def wrong_by(case, facts, name, value, monkeypatch):
    """The error of a tower with another fact; None if it then cannot be read or applied."""
    model_type = case["config"]["model_type"]
    monkeypatch.setitem(_towers.TOWERS, model_type, dataclasses.replace(facts, **{name: value}))
    try:
        windows = {"window_size": 8 if facts.merged else 4, "patch_size": 2} if name == "windows" else {}  # small ones
        return error(case, vision_rotary_from_config(windows | case["config"]))
    except (ValueError, TypeError, IndexError, AssertionError):
        return None


@pytest.mark.parametrize("model_type", CASES)
def test_each_fact_matters(model_type, monkeypatch):
    case, facts = CASES[model_type], _towers.TOWERS[model_type]
    for name, value in changes(model_type, facts):
        wrong = wrong_by(case, facts, name, value, monkeypatch)
        assert wrong is None or wrong > WRONG, (name, value, wrong)
