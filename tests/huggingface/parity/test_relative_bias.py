"""Relative position biases beside the layers of transformers and timm, bit for bit where both look up a table."""

import numpy as np
import pytest
import vision_biases

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.vision_biases import bias_of, of_offsets

WINDOWS = [(2, 2), (7, 7), (14, 14)], [(1, 4), (3, 7), (16, 6)]


@pytest.mark.parametrize("peer", vision_biases.LAYERS)
def test_biases(peer):
    rng = np.random.default_rng(1)
    for window in WINDOWS[0] if peer in vision_biases.SQUARE else sum(WINDOWS, []):
        if "Mlp" in peer and 1 in window:  # which divides by 0
            continue
        theirs = vision_biases.LAYERS[peer](rng, window, 3)
        got = bias_of(peer, window, theirs)
        bound = 2e-6 * np.abs(theirs["bias"]) if "Mlp" in peer else 0
        assert_within(got, theirs["bias"], bound, against=f"{peer}, window {window}")


@pytest.mark.parametrize(("old", "new"), [(7, 12), (12, 7), (7, 8), (2, 24), (24, 3)])
def test_resizing_as_timm_does_for_levit(old, new):
    case = vision_biases.resized_by_timm(np.random.default_rng(old), old, new, 4)
    got = pe.resize_table(of_offsets(case["table"], (old, old)), (2 * new - 1,) * 2, method="cubic")
    assert_within(got, of_offsets(case["resized"], (new, new)), 5e-6, against="bicubic with antialias")


@pytest.mark.parametrize(("old", "new"), [(7, 12), (7, 8), (2, 24)])
def test_larger_windows_of_beit(old, new):
    case = vision_biases.resized_by_beit(np.random.default_rng(new), old, new, 4)
    inner = pe.resize_table(of_offsets(case["table"][:-3], (old, old)), (2 * new - 1,) * 2)
    table = np.concatenate([inner.reshape(-1, 4), case["table"][-3:]])
    got = bias_of("transformers, BEiT", (new, new), {"table": table})
    assert_within(got, case["bias"], 2e-6, against="bilinear")
