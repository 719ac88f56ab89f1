"""Rotary embeddings beside transformers' own, as it computes them here and now."""

import functools
import json

import families
import legacy
import models
import numpy as np
import pytest
import spectra
import torch
import transformers
from embeddings import inverse_frequencies
from transformers.models.llama import modeling_llama

import posenc_jax as pe
from helpers import rope as checks
from oracles import configs, recorded
from posenc_jax import hf

CASES = {case.name: case for case in models.CASES}


def compare_with_embedding(layer, kind, embedding):
    """The frequencies of a layer and those of a model's own class."""
    inverse, factor = inverse_frequencies(embedding, [kind])[kind]
    np.testing.assert_allclose(layer.frequencies.angular, inverse, rtol=checks.bound_of_float32(1e8), atol=0)
    assert layer.frequencies.attention_factor == factor


def split_floats(x):
    """What JSON makes of x with None for floats, and the floats."""
    floats = []
    return json.loads(json.dumps(x), parse_float=lambda digits: floats.append(float(digits))), floats


@functools.cache
def described(name):
    return models.describe(CASES[name])


@pytest.mark.parametrize("case", list(spectra.cases()), ids=spectra.name)
def test_frequencies(case):
    case = spectra.describe(case)
    config = case["config"]
    by_hand = checks.functions_of(
        config["rope_parameters"], case["head_dim"], config["max_position_embeddings"], case["length"]
    )
    checks.check_spectrum(by_hand, case)
    assert {layer.frequencies for layer in hf.rotary_from_config(config, length=case["length"]).layers} == {by_hand}


def same_as_recorded(old, new):
    # But for the last places: powers are the machine's own.
    (old, old_floats), (new, new_floats) = map(split_floats, (old, new))
    assert old == new
    np.testing.assert_allclose(old_floats, new_floats, rtol=2**-22)


def test_recorded_frequencies_are_those_of_this_version():
    same_as_recorded(recorded.cases("hf_frequencies"), [*map(spectra.describe, spectra.cases())])


@pytest.mark.parametrize("model_type", families.TYPES)
def test_recorded_model_types_are_those_of_this_version(model_type):
    old, new = configs.RECORDED[model_type], families.describe(model_type)
    same_as_recorded(*(case | {"config": case["config"] | {"transformers_version": ""}} for case in (old, new)))


@pytest.mark.parametrize("name", CASES)
def test_plans(name):
    checks.check_plan(described(name))


@pytest.mark.parametrize("name", CASES)
def test_rotations(name, record):
    model = described(name)
    for layer in model["layers"]:
        errors = checks.check_layer(model, layer["index"]) if layer["turns"] else {"": "does not turn"}
        record((name, f"{layer['index']} {layer['kind']}", errors))


@pytest.mark.parametrize("name", CASES)
def test_a_configuration_is_read_as_an_object_too(name):
    config, length = CASES[name].make()[0], int(CASES[name].positions.max()) + 1
    assert hf.rotary_from_config(config, length=length) == checks.plan_of(described(name))


def test_every_position_below_4096():
    config = transformers.LlamaConfig(hidden_size=128, num_attention_heads=1, num_hidden_layers=1)
    embedding, positions = modeling_llama.LlamaRotaryEmbedding(config), torch.arange(4096)[None]
    x = torch.randn(1, 1, 4096, 128, generator=torch.Generator().manual_seed(0))
    theirs, _ = modeling_llama.apply_rotary_pos_emb(x, x, *embedding(x, positions))
    plan = hf.rotary_from_config(config)
    frequencies = checks.with_float32(plan.layers[0].frequencies, embedding.inv_freq.numpy())
    ours = pe.rotary(x.numpy(), positions.numpy().astype(np.int32), frequencies, layout=plan.layout, head_axis=-3)
    assert np.max(checks.distance(np.asarray(ours), theirs.numpy(), x.numpy(), 128, "half", "first")) <= checks.FLOAT32


@pytest.mark.parametrize("name", legacy.CASES)
def test_older_spellings(name):
    raw, config, embedding, length = legacy.read(name)
    plan, same = (hf.rotary_from_config(x, length=length) for x in (raw, config))
    assert (plan.layout, plan.part, plan.softmax_scale) == (same.layout, same.part, same.softmax_scale)
    kinds = getattr(config, "layer_types", None) or [""] * config.num_hidden_layers
    for kind, ours, theirs in zip(kinds, plan.layers, same.layers, strict=True):
        assert (ours.frequencies, ours.head_dim, ours.query_scale) == (
            theirs.frequencies,
            theirs.head_dim,
            theirs.query_scale,
        )
        if ours.rotary_dim > 0:
            if length:  # the spectrum is chosen by the last position
                embedding(torch.zeros(1), torch.tensor([[length - 1]]))
            compare_with_embedding(ours, kind, embedding)


@pytest.mark.parametrize("model_type", families.TYPES)
def test_every_model_type(model_type):
    config, embedding, layout = families.read(model_type)
    plan = hf.rotary_from_config(config, length=4096)
    assert layout in (plan.layout, None)
    kinds = getattr(config, "layer_types", None) or [""] * len(plan.layers)
    compared = [
        compare_with_embedding(layer, kind, embedding)
        for kind, layer in zip(kinds, plan.layers, strict=True)
        if layer.rotary_dim > 0
    ]
    assert compared
