"""Layers whose values rotate, or that learn spectra, beside what those of transformers gave: recorded values."""

import dataclasses
import functools

import numpy as np
import pytest

from helpers.layers import LAYERS, Changes
from helpers.quick import quick
from helpers.tiers import tiered
from oracles import recorded

CASES = {case["name"]: case for case in recorded.cases("hf_layers")}
# Of the standard deviation of outputs.
TOLERANCE, CHANGED = 1e-5, 0.02
SLIDING, SPARSE, HEAVY, AMPLITUDE, LARGE, STILL = CASES


def apart(name, changes):
    """The largest difference from the recorded output."""
    case = CASES[name]
    weights = {key: np.float32(weight) for key, weight in case["weights"].items()}
    f = functools.partial(LAYERS[case["config"]["model_type"]], case["config"], layer=case["layer"], changes=changes)
    want = np.array(case["output"])
    got = np.asarray(quick(lambda w, x: f(w, x))(weights, np.float32(case["input"])))
    return np.max(np.abs(got - want)) / want.std()


@pytest.mark.parametrize("name", tiered(CASES, [AMPLITUDE]))
def test_outputs(name):
    assert apart(name, Changes()) <= TOLERANCE


def with_layers(change):
    return lambda plan: dataclasses.replace(plan, layers=tuple(map(change, plan.layers)))


def without_amplitude(how):
    return dataclasses.replace(how, frequencies=how.frequencies.with_attention_factor(1.0))


# What a layer may leave out or mistake
OTHERWISE = {
    "outputs stay": (HEAVY, Changes(roles={"output": None})),
    "values turn back": (SLIDING, Changes(roles={"value": "output"})),
    "no amplitude": (AMPLITUDE, Changes(plan=with_layers(without_amplitude))),
    "blocks at the next": (HEAVY, Changes(blocks=lambda rate, n: rate * np.arange(1, n + 1, dtype=np.int32))),
    "the other heads": (LARGE, Changes(parameters=lambda name, a: a if "alpha" in name else a[::-1])),
    "no scale": (STILL, Changes(plan=with_layers(lambda how: dataclasses.replace(how, query_scale=None)))),
}


@pytest.mark.parametrize("label", tiered(OTHERWISE, ["outputs stay"]))
def test_another_layer_gives_another_output(label):
    assert apart(*OTHERWISE[label]) > CHANGED
