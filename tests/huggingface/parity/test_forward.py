"""Models of every type, run forward: each layer turns its queries and keys as the plan says."""

import dataclasses

import forward
import numpy as np
import pytest
import small
import transformers
from packaging import version
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from posenc_jax.hf import _models

HERE = version.parse(transformers.__version__)
NEWER = {name for release, names in small.NEWER.items() if HERE < version.parse(release) for name in names}
TYPES = sorted(_models.MODELS.keys() - small.WITHOUT - NEWER)
WRONG = 0.1  # the least difference of a wrong plan, of the largest feature
START, SHIFT = np.arange(1, 25), 1_400


@pytest.mark.parametrize("model_type", TYPES)
def test_queries_and_keys(model_type, tally):
    """Of every kind of layer that the class has; a plan with other frequencies, or another layout, differs."""
    plan, (positions, _, moved, _) = forward.plan(model_type), forward.passes(model_type)
    of_class, own = CONFIG_MAPPING[model_type](), forward.make_config(model_type)
    assert {*(getattr(of_class, "layer_types", None) or ())} <= {*(getattr(own, "layer_types", None) or ())}
    within = 2e-6 + 1e-7 * positions.reshape(len(positions), -1).max(-1)  # frequencies and phases are float32
    assert {layer: x for layer, x in forward.errors(model_type).items() if (x > within).any()} == {}
    assert {i for i, layer in enumerate(plan.layers) if layer.rotary_dim} <= moved.attention.keys()
    assert moved.indexer or not plan.indexer
    for change in (in_the_other_layout, by_the_next_frequency) if not _models.MODELS[model_type].never_rotates else ():
        assert max(error.max() for error in forward.errors(model_type, change).values()) > WRONG
    tally["model types run forward"] += 1


def in_the_other_layout(plan):
    return dataclasses.replace(plan, layout="half" if plan.layout == "interleaved" else "interleaved")


def by_the_next_frequency(plan):
    spectra = [layer.frequencies for layer in plan.layers]
    spectra = [dataclasses.replace(f, cycles=(*f.cycles[1:], *f.cycles[:1])) for f in spectra]
    layers = [dataclasses.replace(layer, frequencies=f) for layer, f in zip(plan.layers, spectra, strict=True)]
    return dataclasses.replace(plan, layers=tuple(layers))


@pytest.mark.parametrize("model_type", TYPES)
def test_scale_of_scores(model_type):
    plan, compared = forward.plan(model_type), False
    for layer, call in forward.passes(model_type).moved.attention.items():
        own = small.SCALES.get(model_type, plan.layers[layer].head_dim ** -0.5)
        if call.scaling is not None:
            assert call.scaling == pytest.approx(plan.softmax_scale * own, rel=1e-6)
            compared = True
    told = model_type in small.ATTENDS and not forward.attends(forward.make_config(model_type))
    assert compared == (told or model_type not in small.UNTOLD)


@pytest.mark.parametrize("model_type", [name for name in TYPES if name not in small.INDEXED | small.UNSHIFTED])
def test_shift(model_type):
    """Only a query scale makes absolute positions matter."""
    layers, here = forward.plan(model_type).layers, forward.states(model_type, START)
    scaled = any(layer.query_scale for layer in layers) and model_type not in small.SCALED_BY_INDEX
    assert _differs(here, forward.states(model_type, START, SHIFT)) == scaled
    assert _differs(here, forward.states(model_type, 3 * START)) == any(layer.rotary_dim for layer in layers)


def _differs(x, y):
    return np.linalg.norm(y - x) > 1e-3 * np.linalg.norm(x)


@pytest.mark.parametrize("name", sorted(small.WITHOUT | NEWER))
def test_types_without_a_model(name):
    assert name in _models.MODELS and (name in CONFIG_MAPPING) == (name in small.OF_VIDEO)
    if name in CONFIG_MAPPING:
        with pytest.raises((ImportError, TypeError)):  # without timm, and with it without images
            forward.passes(name)
