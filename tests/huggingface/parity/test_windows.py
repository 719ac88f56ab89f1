"""Models of every type, run forward: their layers attend within the windows that a plan has, by its scales."""

from unittest import mock

import forward
import numpy as np
import pytest
import small
import torch
from test_forward import TYPES
from transformers.cache_utils import get_layer_types_and_kwargs
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from posenc_jax import hf
from posenc_jax.hf import _attending, _models

LENGTH = 24
# Small enough to show in a row of this length.
WINDOWS = {"sliding_window": 6, "attention_window_size": 6, "local_attention": 10, "attention_chunk_size": 7}
WINDOWS |= {"use_sliding_window": True, "max_window_layers": 2}
SELECTING = {"glm5_next_text", "qwen4_exp_text"}  # an indexer hides some keys
BROKEN = {"qwen3_omni_moe_talker_code_predictor"}  # makes no masks for layers with a window
SCALED_BEFORE = {"esm", "openai_privacy_filter"}  # their queries, or queries and keys, are
UNREAD = {"qwen3_vl_moe_text"}  # its class drops sliding_window
ALIASES = {"minimax_m3_sparse": "indexed_attention"}  # another name in transformers
LISTING = {"cohere_compass_text", "dory"}  # their configs need layer_types
UNKNOWN = _attending._OTHER_MASKS | {name for name, facts in _models.MODELS.items() if facts.never_rotates}


def settings(model_type):
    """Those of a small model, with windows where the class has them."""
    known = set() if model_type in UNREAD | BROKEN else CONFIG_MAPPING[model_type]().to_dict().keys()
    return small.BY_TYPE.get(model_type, {}) | {key: value for key, value in WINDOWS.items() if key in known}


def visible(mask):
    """Which of the tokens' own keys, which come first, each query sees: booleans (queries, keys)."""
    queries = mask.shape[-2]
    seen = mask if mask.dtype == torch.bool else mask > -1e30
    return seen.reshape(-1, *mask.shape[-2:])[0, :, :queries].numpy()


def expected(layer, mask):
    """The mask of a layer, causal if the model's is."""
    i, j = np.indices(mask.shape)
    left, right = (LENGTH * 99 if side is None else side for side in layer.window or (None, None))
    causal = not np.triu(mask, 1).any()
    in_chunk = i // layer.chunk == j // layer.chunk if layer.chunk else True
    return (i - j <= left) & (j - i <= right) & in_chunk & (j <= (i if causal else LENGTH * 99))


@pytest.mark.parametrize("model_type", TYPES)
def test_masks_and_scales(model_type):
    with mock.patch.dict(small.BY_TYPE, {model_type: settings(model_type)}):
        plan = hf.rotary_from_config(forward.make_config(model_type).to_dict(), length=forward.LENGTH)
        positions = forward.spread(model_type, np.arange(LENGTH, dtype=np.int32))
        calls = forward.recorded(forward.make_model(model_type, "record"), positions).attention
    for index, (*_, scaling, mask) in calls.items():
        layer = plan.layers[index % len(plan.layers)]
        if scaling is not None and model_type not in SCALED_BEFORE:
            assert layer.score_scale == pytest.approx(scaling, rel=1e-6)
        if layer.window is None and layer.chunk is None:
            assert model_type in UNKNOWN, layer
        elif mask is None:
            assert layer.window == (None, None)
        elif model_type not in SELECTING | UNKNOWN:
            seen = visible(mask)
            np.testing.assert_array_equal(seen, expected(layer, seen), str((index, layer)))


@pytest.mark.parametrize("model_type", sorted({*TYPES} - UNKNOWN))
@pytest.mark.parametrize("listed", [True, False])
def test_kinds(model_type, listed):
    """Of the config's list, or of the class where it has none."""
    facts, own = _models.MODELS[model_type], settings(model_type)
    if not listed:
        if facts.pattern is None or model_type in LISTING:
            pytest.skip("layer types must be listed")
        own.pop("layer_types", None)
    with mock.patch.dict(small.BY_TYPE, {model_type: own}):
        config = forward.make_config(model_type)
    values = config.to_dict() if listed else {k: x for k, x in config.to_dict().items() if k != "layer_types"}
    kinds = getattr(config, "layer_types", None) or get_layer_types_and_kwargs(config)[0]
    layers = hf.rotary_from_config(values, length=forward.LENGTH).layers
    assert [layer.kind for layer in layers] == [ALIASES.get(kind, kind) for kind in kinds]
