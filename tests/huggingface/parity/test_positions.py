"""Positions of token ids and interpolated tables beside the functions of transformers' models."""

from pathlib import Path

import conversations
import multimodal
import numpy as np
import pytest
import tables
import torch
import transformers

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.conversations import positions_of
from posenc_jax import hf
from posenc_jax.hf._multimodal_models import MULTIMODAL, REFUSED, THINKERS


@pytest.mark.parametrize("model", conversations.MODELS)
def test_positions_from_tokens(model):
    rng = np.random.default_rng(1)
    for _ in range(100):
        case = conversations.conversation(rng, model)
        got = positions_of(case)
        np.testing.assert_array_equal(got, case["positions"])
        tokens = got.shape[1] if case["mask"] is None else np.sum(case["mask"], 1)
        np.testing.assert_array_equal(got.max((1, 2)) + 1 - tokens, case["rope_deltas"])


@pytest.mark.parametrize("model", multimodal.MODELS)
def test_positions_by_a_config(model):
    rng = np.random.default_rng(1)
    for _ in range(100):
        case = multimodal.conversation(rng, model, changed=rng.integers(3) > 0, with_audio=bool(rng.integers(2)))
        given = {key: case[key] for key in ("image_grids", "video_grids", "video_seconds", "mask") if case.get(key)}
        given["mask"] = np.array(given["mask"])
        got = hf.positions_from_tokens(case["config"], np.array(case["tokens"]), **given)
        np.testing.assert_array_equal(got, case["positions"])


def test_every_model_that_indexes_grids_is_known():
    """By the folders of transformers' models, whose names are model types."""
    files = Path(transformers.__file__).parent.glob("models/*/modeling_*.py")
    found = {file.parent.name for file in files if "def get_rope_index" in file.read_text(encoding="utf-8")}
    assert len(found) > 15
    assert found - {*MULTIMODAL, *REFUSED, *THINKERS} == set()
    assert set(MULTIMODAL) == set(multimodal.MODELS)


SIDES = [(7, (7, 9)), (7, (12, 5)), (14, (16, 24)), (16, (37, 20)), (37, (16, 24)), (7, (3, 3))]


@pytest.mark.parametrize("model", tables.MODELS)
def test_interpolate_pos_encoding(model):
    for old, new in SIDES:
        case = tables.interpolated(model, np.random.default_rng(old), old, new, 16)
        got = pe.resize_table(case["table"], new, method=case["method"], antialias=case["antialias"])
        assert_within(got, case["resized"], 1e-6, against=f"{model}, {old} to {new}")


SHAPES = [((4, 7), (9, 5)), ((14, 14), (16, 24)), ((37, 37), (50, 33)), ((1, 3), (2, 7)), ((64, 5), (14, 100))]


@pytest.mark.parametrize("settings", [*tables.MODES, *tables.PLACED], ids=str)
def test_interpolate(settings):
    for old, new in SHAPES:
        case = tables.by_torch(np.random.default_rng(0), old, new, 4, settings, scale=0.02)
        got = pe.resize_table(case["table"], new, **settings)
        assert_within(got, case["resized"], 1e-6, against=f"{settings}, {old} to {new}")


@pytest.mark.parametrize("new", [(16, 16), (37, 24), (50, 33), (7, 60)])
def test_dinov2_as_its_authors_resize(new):
    """By a scale factor: torch then places rows by it, and not by the sizes."""
    table = (0.02 * np.random.default_rng(0).normal(size=(37, 37, 4))).astype(np.float32)
    factors = tuple((n + 0.1) / 37 for n in new)
    channels = torch.tensor(table).permute(2, 0, 1)[None]
    want = torch.nn.functional.interpolate(channels, scale_factor=factors, mode="bicubic")[0].permute(1, 2, 0)
    got = pe.resize_table(table, new, method="torch_cubic", antialias=False, size_offset=0.1)
    assert_within(got, want, 1e-6, against=f"37 to {new}")


@pytest.mark.parametrize("settings", [*tables.MODES[1::2], *tables.PLACED[:2]], ids=str)
def test_grid_sample_with_the_border_repeated(settings):
    for old, new in SHAPES:
        table = (0.02 * np.random.default_rng(0).normal(size=(*old, 4))).astype(np.float32)
        channels, mode = torch.tensor(table).permute(2, 0, 1)[None], tables.NAMES[settings["method"]]
        want = tables.sampled(channels, new, mode, settings.get("align_corners", False), "border")
        got = pe.resize_table(table, new, **settings)
        assert_within(got, want[0].permute(1, 2, 0), 1e-6, against=f"{settings}, {old} to {new}")
