"""Layers whose values rotate, or that learn spectra, beside what those of transformers gave: recorded values."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.layers import LAYERS, Changes
from helpers.quick import quick
from helpers.tiers import thorough, tiered
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
    return lambda plan: dataclasses.replace(
        plan, layers=tuple(change(plan.layers)), indexer=plan.indexer and with_layers(change)(plan.indexer)
    )


def without_amplitude(plan):
    without = lambda how: dataclasses.replace(how, frequencies=how.frequencies.with_attention_factor(1.0))  # noqa: E731
    return with_layers(lambda layers: map(without, layers))(plan)


def shifted(layers):
    return (*layers[1:], layers[0])


def all_as(index):
    return lambda layers: [layers[index]] * len(layers)


def each(**changes):
    return lambda layers: [dataclasses.replace(how, **changes) for how in layers]


# What a layer may leave out or mistake.
PLAIN = {"value": None}, {"output": None}, {"value": None, "output": None}, {"output": "value"}, {"value": "output"}
OTHERWISE = [
    *((name, f"{roles}", Changes(roles=roles)) for name in (SLIDING, SPARSE, HEAVY, AMPLITUDE) for roles in PLAIN),
    (SLIDING, "the other spectrum", Changes(plan=with_layers(all_as(1)))),
    (SPARSE, "the other spectrum", Changes(plan=with_layers(all_as(0)))),
    (HEAVY, "the other spectrum", Changes(plan=with_layers(all_as(0)))),
    (SLIDING, "layers shifted", Changes(plan=with_layers(shifted))),
    (HEAVY, "layers shifted", Changes(plan=with_layers(shifted))),
    (AMPLITUDE, "no amplitude", Changes(plan=without_amplitude)),
    *(
        (name, label, Changes(blocks=at))
        for name in (SPARSE, HEAVY)
        for label, at in {
            "blocks counted": lambda rate, count: np.arange(count, dtype=np.int32),
            "blocks at their last token": lambda rate, count: rate * np.arange(1, count + 1, dtype=np.int32) - 1,
            "blocks at the next": lambda rate, count: rate * np.arange(1, count + 1, dtype=np.int32),
        }.items()
    ),
    (LARGE, "no factor", Changes(plan=with_layers(each(learned_log_factor=None)))),
    (LARGE, "no scale", Changes(plan=with_layers(each(query_scale=None)))),
    (LARGE, "layers shifted", Changes(plan=with_layers(lambda layers: shifted(shifted(shifted(layers)))))),
    (LARGE, "factor, not its logarithm", Changes(parameters=lambda name, a: jnp.log1p(a) if "alpha" in name else a)),
    (LARGE, "factor of the next pair", Changes(parameters=lambda name, a: jnp.roll(a, 1) if "alpha" in name else a)),
    (LARGE, "the other heads", Changes(parameters=lambda name, a: a if "alpha" in name else a[::-1])),
    (LARGE, "scale and no bias", Changes(parameters=lambda name, a: 0 * a if name.endswith(".b") else a)),
    (LARGE, "bias and no scale", Changes(parameters=lambda name, a: 0 * a if name.endswith(".s") else a)),
    (STILL, "no scale", Changes(plan=with_layers(each(query_scale=None)))),
    (STILL, "layers shifted", Changes(plan=with_layers(shifted))),
]
DEFAULT = {(HEAVY, str(PLAIN[1]))}


@pytest.mark.parametrize(
    ("name", "label", "changes"),
    [case if case[:2] in DEFAULT else thorough(*case) for case in OTHERWISE],
    ids=[f"{name}: {label}" for name, label, _ in OTHERWISE],
)
def test_another_layer_gives_another_output(name, label, changes):
    assert apart(name, changes) > CHANGED


def test_what_is_recorded():
    kinds = [case["config"].get("layer_types", [None] * 4)[case["layer"]] for case in CASES.values()]
    compressed = ["compressed_sparse_attention", *["heavily_compressed_attention"] * 2]
    assert kinds == ["sliding_attention", *compressed, *["indexed_attention"] * 2]
    for case in CASES.values():
        assert min(len(rows) for rows in (case["input"], case["output"])) == 24
    assert jax.tree.all(jax.tree.map(lambda w: abs(round(w, 3) - w) == 0, [case["weights"] for case in CASES.values()]))
