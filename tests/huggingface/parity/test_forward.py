"""Models of every type, run forward: each layer turns its queries and keys as the plan says."""

import dataclasses

import forward
import pytest
import small
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from posenc_jax.hf import _models

WITHOUT = small.WITHOUT | small.NEWER - {*CONFIG_MAPPING}
TYPES = sorted(_models.MODELS.keys() - WITHOUT)
WRONG = 0.1  # the least difference of a wrong plan, of the largest feature


@pytest.mark.parametrize("model_type", TYPES)
def test_queries_and_keys(model_type):
    """Of every kind of layer that the class has, and the scales of scores; plans with another layout or spectrum differ."""
    plan, (positions, _, moved, _) = forward.plan(model_type), forward.passes(model_type)
    configs = CONFIG_MAPPING[model_type](), (own_config := forward.make_config(model_type))
    of_class, own = ({*(getattr(config, "layer_types", None) or ())} for config in configs)
    assert of_class <= own
    within = 2e-6 + 1e-7 * positions.reshape(len(positions), -1).max(-1)  # frequencies and phases are float32
    assert {layer: x for layer, x in forward.errors(model_type).items() if (x > within).any()} == {}
    assert {i for i, layer in enumerate(plan.layers) if layer.rotary_dim} <= moved.attention.keys()
    assert moved.indexer or not plan.indexer
    for change in (in_the_other_layout, by_the_next_frequency) if not _models.MODELS[model_type].never_rotates else ():
        assert max(error.max() for error in forward.errors(model_type, change).values()) > WRONG
    scales = {}  # of the scores of layers whose attention is told
    for layer, called in moved.attention.items():
        if called.scaling is not None:
            own = small.SCALES.get(model_type, plan.layers[layer].head_dim ** -0.5)
            scales[layer] = called.scaling == pytest.approx(plan.softmax_scale * own, rel=1e-6)
    assert all(scales.values())
    told = model_type in small.ATTENDS and not forward.attends(own_config)
    assert bool(scales) == (told or model_type not in small.UNTOLD)


def in_the_other_layout(plan):
    return dataclasses.replace(plan, layout="half" if plan.layout == "interleaved" else "interleaved")


def by_the_next_frequency(plan):
    spectra = [layer.frequencies for layer in plan.layers]
    spectra = [dataclasses.replace(f, cycles=(*f.cycles[1:], *f.cycles[:1])) for f in spectra]
    layers = [dataclasses.replace(layer, frequencies=f) for layer, f in zip(plan.layers, spectra, strict=True)]
    return dataclasses.replace(plan, layers=tuple(layers))


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_types_without_a_model(name):
    assert name in _models.MODELS and (name in CONFIG_MAPPING) == (name in small.OF_VIDEO)
    if name in CONFIG_MAPPING:
        with pytest.raises((ImportError, TypeError)):  # without timm, and with it without images
            forward.passes(name)
