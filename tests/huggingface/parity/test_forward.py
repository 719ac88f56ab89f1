"""In a small model of every type, each layer rotates and attends as the plan of its config says.

- Queries and keys are those of a pass at rest, rotated by the plan; a plan with the other layout is wrong.
- Scores are multiplied by the plan's scale.
- A query sees the keys in the plan's window.
- Kinds of layers that a config does not list are those of the class.
"""

import dataclasses
import functools

import forward
import numpy as np
import pytest
import small
import torch
from transformers.cache_utils import get_layer_types_and_kwargs
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from oracles.attention import may_see
from posenc_jax import hf
from posenc_jax.hf import _attending, _models

TYPES = sorted(_models.MODELS.keys() & {*CONFIG_MAPPING} - small.NOT_RUN)
LENGTH = 131_072  # above all positions
WRONG = 0.1  # a wrong plan differs by more than this part of the largest feature
# Types whose masks a plan does not know.
UNKNOWN = _attending._OTHER_MASKS | {name for name, facts in _models.MODELS.items() if facts.never_rotates}
SELECTING = {"glm5_next_text", "qwen4_exp_text"}  # an indexer hides some keys
SCALED_BEFORE = {"esm", "openai_privacy_filter"}  # these scale queries, or queries and keys, and not scores
ALIASES = {"minimax_m3_sparse": "indexed_attention"}  # another name in transformers
LISTING = {"cohere_compass_text", "dory"}  # their configs need layer_types


@functools.cache
def plan_of(model_type):
    return hf.rotary_from_config(forward.make_config(model_type).to_dict(), length=LENGTH)


@functools.cache
def passes(model_type):
    """The positions of a row of equal tokens, `Calls` at rest and at these positions, and learned arrays by name."""
    model, plan, positions = forward.make_model(model_type), plan_of(model_type), forward.POSITIONS
    axes = max(layer.frequencies.num_axes for layer in plan.layers)
    if axes > 1:  # with different coordinates
        positions = np.stack([positions // (i + 1) + 11 * i for i in range(axes)], -1)
    start = positions if model_type in small.RESTARTING else 0 * positions
    rest, moved = forward.recorded(model, start, rest=True), forward.recorded(model, positions)
    if model_type in small.INDEXED:
        positions = np.arange(next(iter(rest.attention.values())).query.shape[2], dtype=np.int32)
    parameters = plan.parameters + (plan.indexer.parameters if plan.indexer else ())
    names = [name.format(layer=i) for name, _ in parameters for i in range(len(plan.layers))]
    return positions, rest, moved, forward.learned(model, names)


def errors(model_type, plan):
    """How far the plan's rotation of vectors at rest is from the model's, for each position.

    Relative to the largest feature; by part ("attention" or "indexer"), layer and role.
    """
    (positions, rest, moved, arrays), result = passes(model_type), {}
    for part, own in {"attention": plan, "indexer": plan.indexer}.items():
        for layer, after in getattr(moved, part).items():
            for role in ("query", "key"):
                x, y, at = getattr(getattr(rest, part)[layer], role), getattr(after, role), positions
                if (part, role) == ("indexer", "key") and model_type in small.COMPRESSED:
                    at = small.COMPRESSED[model_type] * np.arange(x.shape[2], dtype=np.int32)
                elif model_type in small.SCALED_BY_INDEX and not own.layers[layer].rotary_dim:
                    # The scale of queries counts tokens, also in the pass at rest; the first token has a scale of 1.
                    x, at = x[..., :1, :] + 0 * x, np.arange(len(positions), dtype=np.int32)
                if own is not None:  # else an indexer that does not rotate
                    parameters = {name: arrays[name.format(layer=layer)] for name, _ in own.parameters}
                    options = {"head_axis": -3, "role": role, "scaled": False, "parameters": parameters}
                    x = np.asarray(own.rotate(x, layer, at, **options))
                error = np.abs(x - y).max((0, 1, 3)) / np.abs(y).max()
                result[part, layer, role] = error if len(at) == len(positions) else np.full(len(positions), error.max())
    return result


@pytest.mark.parametrize("model_type", TYPES)
def test_queries_and_keys_are_rotated_as_the_plan_says(model_type):
    """In every kind of layer that the class has."""
    plan, (positions, _, moved, _) = plan_of(model_type), passes(model_type)
    configs = CONFIG_MAPPING[model_type](), forward.make_config(model_type)
    of_class, of_model = ({*(getattr(config, "layer_types", None) or ())} for config in configs)
    assert of_class <= of_model
    assert {i for i, layer in enumerate(plan.layers) if layer.rotary_dim} <= moved.attention.keys()
    assert moved.indexer or not plan.indexer
    within = 2e-6 + 1e-7 * positions.reshape(len(positions), -1).max(-1)  # frequencies and phases are float32
    assert {layer: x for layer, x in errors(model_type, plan).items() if (x > within).any()} == {}
    if not _models.MODELS[model_type].never_rotates:
        other = dataclasses.replace(plan, layout="half" if plan.layout == "interleaved" else "interleaved")
        assert max(error.max() for error in errors(model_type, other).values()) > WRONG


@pytest.mark.parametrize("model_type", [name for name in TYPES if name not in SCALED_BEFORE])
def test_scores_have_the_scale_of_the_plan(model_type):
    layers = plan_of(model_type).layers
    calls = {i: call.scaling for i, call in passes(model_type)[2].attention.items() if call.scaling is not None}
    assert calls or model_type in small.EAGER
    assert {i: layers[i % len(layers)].score_scale for i in calls} == pytest.approx(calls, rel=1e-6)


@pytest.mark.parametrize("model_type", TYPES)
def test_a_query_sees_the_keys_that_the_plan_says(model_type):
    layers = plan_of(model_type).layers
    for index, (*_, mask) in passes(model_type)[2].attention.items():
        layer = layers[index % len(layers)]
        if layer.window is None and layer.chunk is None:
            assert model_type in UNKNOWN, layer
        elif mask is None:
            assert layer.window == (None, None)
        elif model_type not in SELECTING | UNKNOWN:
            seen, at = visible(mask), np.arange(mask.shape[-2])
            chunks = (at // layer.chunk,) * 2 if layer.chunk else None
            causal = not np.triu(seen, 1).any()  # no plan says this: it is read from the model's mask
            want = may_see(at, at, causal, chunks, layer.window or (None, None))[0]
            np.testing.assert_array_equal(seen, want, str((index, layer)))


def visible(mask):
    """Which of the tokens' own keys, which come first, each query sees: booleans (queries, keys)."""
    seen = mask if mask.dtype == torch.bool else mask > -1e30
    return seen.reshape(-1, *mask.shape[-2:])[0, :, : mask.shape[-2]].numpy()


@pytest.mark.parametrize("model_type", sorted({*TYPES} - UNKNOWN))
def test_kinds_of_layers_are_those_of_the_class(model_type):
    """If a pattern gives the kinds, they are left out of the config."""
    settings, left_out = dict(small.BY_TYPE.get(model_type, {})), set()
    if _models.MODELS[model_type].pattern is not None and model_type not in LISTING:
        settings.pop("layer_types", None)
        left_out = {"layer_types"}
    config = forward.make_config(model_type, settings)
    values = {key: x for key, x in config.to_dict().items() if key not in left_out}
    kinds = getattr(config, "layer_types", None) or get_layer_types_and_kwargs(config)[0]
    layers = hf.rotary_from_config(values, length=LENGTH).layers
    assert [layer.kind for layer in layers] == [ALIASES.get(kind, kind) for kind in kinds]
