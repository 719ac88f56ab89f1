"""Vision towers beside transformers and timm, where nothing is recorded: configs, composites, windows, and EVA-02."""

import numpy as np
import pytest
import torch
import towers
from embeddings import config_of
from timm import layers
from transformers import vision_utils
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import posenc_jax as pe
from helpers.closeness import assert_within
from oracles import recorded
from posenc_jax import hf
from posenc_jax.hf import _towers, vision_rotary_from_config


@pytest.mark.parametrize("case", recorded.cases("hf_towers"), ids=lambda case: case["config"]["model_type"])
def test_what_a_class_fills_in(case):
    """A config and all its keys read alike; and a model has a table where its plan says so."""
    plan, config = vision_rotary_from_config(case["config"]), config_of(case["config"])
    assert vision_rotary_from_config(config.to_dict()) == plan
    assert (plan.table != "none") == bool(towers.learned(towers.make_model(config)))


def towers_in(config):
    for name in ("vision_config", "thinker_config", "backbone_config"):
        if (part := getattr(config, name, None)) is not None:
            yield from [part] if part.model_type in _towers.TOWERS else []
            yield from towers_in(part)


def without_types(values):
    return {k: without_types(v) if isinstance(v, dict) else v for k, v in values.items() if k != "model_type"}


def test_composites():
    read = 0
    for name in CONFIG_MAPPING.keys() - _towers.TOWERS.keys():
        try:
            config = CONFIG_MAPPING[name]()
        except Exception:  # classes without defaults
            continue
        for tower in [*towers_in(config)][:1]:
            want = vision_rotary_from_config(tower.to_dict())
            assert vision_rotary_from_config(config) == want, name
            assert vision_rotary_from_config({"model_type": name} | without_types(config.to_dict())) == want, name
            read += 1
    assert read > 35


@pytest.mark.parametrize("side", [0, 8, 16, 24])
def test_orders_of_many_grids(side):
    """Squares and windows of any images, as transformers orders them."""
    grids = [(1, 2, 2), (1, 4, 6), (2, 6, 4), (1, 10, 14), (3, 14, 2), (1, 18, 10), (2, 8, 8)]
    grid = hf.PatchGrid(merge=2, window=side // 4)
    plan = hf.VisionPlan((hf.RotaryLayer(pe.axial(8, 2), 8),), "half", grids=(grid,))
    at = vision_utils.get_vision_position_ids(torch.tensor(grids), 2)
    if side:
        index, _ = vision_utils.get_vision_window_index(torch.tensor(grids), 2, side, 2)
        at = at.reshape(-1, 4, 2)[index].reshape(-1, 2)
    np.testing.assert_array_equal(np.concatenate([plan.positions(g) for g in grids]), at.numpy())


@pytest.mark.parametrize("trained", [(3, 5), (4, 4)])
def test_eva(trained):
    """Of timm, whose models have no config.json: positions are scaled to the grid that a model was trained on."""
    sizes = {"in_pixels": False, "feat_shape": (3, 5), "ref_feat_shape": trained}
    x = torch.randn(2, 1, 15, 32)
    theirs = layers.apply_rot_embed_cat(x, layers.RotaryEmbeddingCat(32, **sizes).get_embed())
    positions = np.float32(pe.grid_positions((3, 5))) * np.float32(trained) / np.float32((3, 5))
    ours = pe.rotary(x.numpy(), positions, pe.axial(32, 2), layout="interleaved", head_axis=-3)
    assert_within(ours, theirs.numpy(), 1e-5, against="timm")
