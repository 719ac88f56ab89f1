"""Models of every type, run forward: each layer turns its queries and keys as the plan says."""

import dataclasses

import forward
import numpy as np
import pytest
import small
import transformers
from packaging import version
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from posenc_jax import hf
from posenc_jax.hf import _models

HERE = version.parse(transformers.__version__)
NEWER = {name for release, names in small.NEWER.items() if HERE < version.parse(release) for name in names}
TYPES = sorted(_models.MODELS.keys() - small.WITHOUT - NEWER)
WRONG = 0.1  # the least difference of a wrong plan, of the largest feature
START, SHIFT = np.arange(1, 25), 1_400


@pytest.mark.parametrize("model_type", TYPES)
def test_queries_and_keys(model_type, tally):
    positions, _, moved, _ = forward.passes(model_type)
    farthest = positions.reshape(len(positions), -1).max(-1)
    within = 2e-6 + 1e-7 * farthest  # frequencies and phases are float32
    errors = forward.errors(model_type)
    assert {layer: error for layer, error in errors.items() if (error > within).any()} == {}
    plan = forward.plan(model_type)
    assert {i for i, layer in enumerate(plan.layers) if layer.rotary_dim} <= moved.attention.keys()
    assert moved.indexer or not plan.indexer
    tally["model types run forward"] += 1
    tally["their layers whose queries and keys turn as planned"] += len(moved.attention)
    tally["their indexers whose queries and keys turn as planned"] += len(moved.indexer)


@pytest.mark.parametrize("model_type", TYPES)
def test_every_kind_of_layer_occurs(model_type):
    kinds = [
        set(getattr(c, "layer_types", None) or ())
        for c in (CONFIG_MAPPING[model_type](), forward.make_config(model_type))
    ]
    assert kinds[0] <= kinds[1]


@pytest.mark.parametrize("model_type", TYPES)
def test_absent_keys(model_type):
    """Where keys are absent, the plan has the values of the class, or says what is missing."""
    rope, facts = small.BY_TYPE.get(model_type, {}).get("rope_parameters"), _models.MODELS[model_type]
    values = forward.make_config(model_type).to_diff_dict() | {"model_type": model_type, "rope_parameters": rope}
    if rope is None and (facts.needs_settings or facts.theta is None):
        with pytest.raises(ValueError, match="missing"):
            hf.rotary_from_config(values, length=forward.LENGTH)
    elif rope and rope.get("rope_type", "default") != "default" and "rope_theta" not in rope | values:
        with pytest.raises(ValueError, match="rope_theta is missing beside rope_type"):
            hf.rotary_from_config(values, length=forward.LENGTH)
        values["rope_parameters"] = rope | {"rope_theta": forward.make_config(model_type).rope_parameters["rope_theta"]}
        assert hf.rotary_from_config(values, length=forward.LENGTH) == forward.plan(model_type)
    else:
        assert hf.rotary_from_config(values, length=forward.LENGTH) == forward.plan(model_type)


@pytest.mark.parametrize("model_type", TYPES)
def test_scale_of_scores(model_type, tally):
    plan, compared = forward.plan(model_type), 0
    for layer, call in forward.passes(model_type).moved.attention.items():
        own = small.SCALES.get(model_type, plan.layers[layer].head_dim ** -0.5)
        if call.scaling is not None:
            assert call.scaling == pytest.approx(plan.softmax_scale * own, rel=1e-6)
            compared += 1
    told = model_type in small.ATTENDS and not forward.attends(forward.make_config(model_type))
    assert bool(compared) == (told or model_type not in small.UNTOLD)
    tally["their layers whose scores are scaled as planned"] += compared


@pytest.mark.parametrize("model_type", [name for name in TYPES if name not in small.INDEXED | small.UNSHIFTED])
def test_shift(model_type):
    """Only a query scale makes absolute positions matter."""
    here, stretched = forward.states(model_type, START), forward.states(model_type, 3 * START)
    shifted = forward.states(model_type, START, SHIFT)
    scaled = any(layer.query_scale for layer in forward.plan(model_type).layers)
    assert (_change(here, shifted) > 1e-3) == (scaled and model_type not in small.SCALED_BY_INDEX)
    rotating = any(layer.rotary_dim for layer in forward.plan(model_type).layers)
    assert (_change(here, stretched) > 1e-3) == rotating


def _change(x, y):
    return np.linalg.norm(y - x) / np.linalg.norm(x)


def in_the_other_layout(plan):
    return dataclasses.replace(plan, layout="half" if plan.layout == "interleaved" else "interleaved")


def in_the_other_part(plan):
    return dataclasses.replace(plan, part="first" if plan.part == "last" else "last")


def by_the_next_frequency(plan):
    return _with_frequencies(plan, lambda f: dataclasses.replace(f, cycles=(*f.cycles[1:], *f.cycles[:1])))


def by_another_coordinate(plan):
    return _with_frequencies(plan, lambda f: dataclasses.replace(f, axes=tuple(2 - axis for axis in f.axes)))


def with_every_layer_as_the_first(plan):
    return _with_frequencies(plan, lambda _: plan.layers[0].frequencies)


def without_amplitude(plan):
    return _with_frequencies(plan, lambda f: f.with_attention_factor(1.0))


def without_query_scale(plan):
    return _with_layers(plan, lambda layer: dataclasses.replace(layer, query_scale=None))


def without_what_is_learned_of_frequencies(plan):
    return _with_layers(plan, lambda layer: dataclasses.replace(layer, learned_log_factor=None))


def with_layers_shifted_by_one(plan):
    return dataclasses.replace(plan, layers=(*plan.layers[1:], plan.layers[0]))


def with_another_indexer(plan):
    return dataclasses.replace(plan, indexer=in_the_other_layout(plan.indexer))


def _with_frequencies(plan, change):
    return _with_layers(plan, lambda layer: dataclasses.replace(layer, frequencies=change(layer.frequencies)))


def _with_layers(plan, change):
    return dataclasses.replace(plan, layers=tuple(map(change, plan.layers)))


ROTATING = [name for name in TYPES if not _models.MODELS[name].never_rotates]
CHANGES = {
    in_the_other_layout: " ".join(ROTATING),
    in_the_other_part: "gpt_neox glm4 deepseek_v3 deepseek_v4 minicpm3",
    by_the_next_frequency: " ".join(ROTATING),
    by_another_coordinate: "qwen2_5_vl_text qwen3_vl_text glm4v_text hy_v4_vl_text",
    with_every_layer_as_the_first: "cohere2 dory exaone4 smollm3 llama4_text gemma3_text modernbert",
    without_amplitude: "gpt_oss",
    without_query_scale: "llama4_text ministral3 mistral4 mistral_large4_text beam",
    without_what_is_learned_of_frequencies: "mistral_large4_text",
    with_layers_shifted_by_one: "deepseek_v4 mistral_large4_text",
    with_another_indexer: "axk2 deepseek_v32 deepseek_v4 glm_moe_dsa hy_v4 hy_v4_vl_text mistral_large4_text",
}


@pytest.mark.parametrize(
    ("change", "model_type"),
    [(c, name) for c, names in CHANGES.items() for name in names.split() if name not in NEWER],
)
def test_another_plan_differs(change, model_type):
    assert max(error.max() for error in forward.errors(model_type, change).values()) > WRONG


@pytest.mark.parametrize("model_type", small.WITHOUT)
def test_types_without_a_model(model_type):
    assert model_type in _models.MODELS
    assert (model_type in CONFIG_MAPPING) == (small.WITHOUT[model_type] != small.ELSEWHERE)
    if model_type in CONFIG_MAPPING:
        with pytest.raises((ImportError, TypeError)):  # without timm, and with it without images
            forward.passes(model_type)


@pytest.mark.parametrize("release", small.NEWER)
def test_newer_types(release):
    here = version.parse(release) <= HERE
    assert {name: name in CONFIG_MAPPING for name in small.NEWER[release]} == dict.fromkeys(small.NEWER[release], here)
