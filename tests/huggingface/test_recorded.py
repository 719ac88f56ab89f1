"""Rotary embeddings beside what transformers computed: recorded values, with their provenance in the files."""

import dataclasses

import numpy as np
import pytest

import posenc_jax as pe
from helpers import rope as checks
from helpers.tiers import thorough
from oracles import recorded
from posenc_jax import hf

SPECTRA = recorded.cases("hf_frequencies")
TYPES = recorded.cases("hf_model_types")
MODELS = recorded.rotations()["models"]
# Keys that some classes fill in with defaults of their own, which are not guessed.
MADE_UP = "rope_parameters", "layer_types", "layers_block_type", "cross_attention_layers"
NEEDED = [
    (case["config"], key)
    for case in TYPES
    for key in MADE_UP
    # The class of the first has no settings, that of the second has a pattern, and that of the third has both.
    if key in case["config"] and case["config"]["model_type"] not in ("minimax_m3_vl_text", "deepseek_v4", "dory")
]
TURNING = [(name, layer["index"]) for name, model in MODELS.items() for layer in model["layers"] if layer["turns"]]


def kind_of(name, index):
    """What decides how a recorded layer is turned: rope type, layout, part, sections, scales, and whether all turns."""
    model, layer = MODELS[name], MODELS[name]["layers"][index]
    rope, whole = layer["rope"], layer["head_dim"] == 2 * len(layer["frequencies"])
    return (
        rope["rope_type"],
        model["layout"],
        model["part"],
        "mrope_section" in rope,
        whole,
        layer["attention_factor"] != 1,
    )


# The first layer of each kind: rope type, layout, part, axes and scales of queries.
KINDS = list({kind_of(*case): case for case in reversed(TURNING)}.values())
FACTORED = [(name, i) for name, i in TURNING if MODELS[name]["layers"][i]["attention_factor"] != 1]


def apart(name, index=0, plan=None, **changes):
    """How far from the reference queries and keys are, in |pair|, with changes to what the plan says."""
    layer = checks.Layer(MODELS[name], index)
    return np.max(layer.apart(layer.ours(plan, **{"change": layer.with_theirs} | changes), layer.reference))


@pytest.mark.parametrize("case", SPECTRA, ids=lambda case: case["name"])
def test_frequencies_by_hand_and_from_the_configuration(case):
    config = case["config"]
    rope, limit = config["rope_parameters"], config["max_position_embeddings"]
    by_hand = checks.functions_of(rope, case["head_dim"], limit, case["length"])
    checks.check_spectrum(by_hand, case)
    plan = hf.rotary_from_config(config, length=case["length"])
    assert {layer.frequencies for layer in plan.layers} == {by_hand}


@pytest.mark.parametrize("name", MODELS)
def test_plans(name):
    checks.check_plan(MODELS[name])


@pytest.mark.parametrize(("name", "index"), [case if case in KINDS else thorough(*case) for case in TURNING])
def test_rotations(name, index):
    checks.check_layer(MODELS[name], index)


@pytest.mark.parametrize("case", TYPES, ids=lambda case: case["config"]["model_type"])
def test_what_a_configuration_leaves_out(case):
    plan = hf.rotary_from_config(case["config"], length=4096)
    assert plan.layout == (case["layout"] or plan.layout)
    if case["turns"]:
        assert [layer.rotary_dim > 0 for layer in plan.layers] == list(map(bool, case["turns"]))
    found = {layer.frequencies for layer in plan.layers} - {pe.geometric(0)}
    assert len(found) == len(case["spectra"])
    slowest_of = {f: min(f.angular[f.angular != 0], key=abs) for f in found}
    ordered = sorted(found, key=lambda f: (f.num_pairs, slowest_of[f]))
    for ours, (pairs, slowest, factor) in zip(ordered, case["spectra"], strict=True):
        assert (ours.num_pairs, ours.attention_factor) == (pairs, factor)
        assert slowest_of[ours] == pytest.approx(slowest, rel=checks.bound_of_float32(1e8))


@pytest.mark.parametrize(("config", "key"), NEEDED, ids=[f"{config['model_type']}-{key}" for config, key in NEEDED])
def test_what_a_configuration_may_not_leave_out(config, key):
    with pytest.raises(ValueError, match="is missing|sections must sum"):
        hf.rotary_from_config({name: value for name, value in config.items() if name != key}, length=4096)


def test_what_is_recorded():
    assert len(MODELS) >= 22 and len(TURNING) >= 27 and len(FACTORED) >= 5
    kinds = {case["config"]["rope_parameters"]["rope_type"] for case in SPECTRA}
    assert kinds == {"default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional"}
    still = {name for name, model in MODELS.items() if not all(layer["turns"] for layer in model["layers"])}
    assert still == {"Llama 4 (text)", "SmolLM3"}
    scaled = {name for name in MODELS if any(layer.query_scale for layer in checks.plan_of(MODELS[name]).layers)}
    assert scaled == {"Llama 4 (text)", "Ministral 3"}
    assert checks.plan_of(MODELS["DeepSeek-V3"]).softmax_scale == pytest.approx(1.8738542070926265, rel=1e-15)


# What a wrong reading would give: each is far from what transformers computed. Controls of the recorded values.


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "index"), TURNING)
def test_control_the_other_layout(name, index):
    other = {"half": "interleaved", "interleaved": "half"}[MODELS[name]["layout"]]
    assert apart(name, index, layout=other) > 0.1


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "index"), TURNING)
@pytest.mark.parametrize("by", [-1, 1])
def test_control_positions_shifted_by_one(name, index, by):
    assert apart(name, index, positions=MODELS[name]["positions"] + by) > 0.1


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["Llama 2", "GPT-J", "Qwen3-VL", "DeepSeek-V3"])
def test_control_the_other_direction(name):
    assert apart(name, inverse=True) > 0.1


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["GPT-NeoX", "GPT-J", "GLM-4", "Phi-3, long", "DeepSeek-V3"])
def test_control_the_other_end_of_the_features(name):
    assert apart(name, part={"first": "last", "last": "first"}[MODELS[name]["part"]]) == np.inf


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["Qwen2.5-VL", "Qwen3-VL"])
@pytest.mark.parametrize("order", [(0, 2, 1), (1, 0, 2), (2, 1, 0), (1, 2, 0)])
def test_control_the_order_of_the_axes(name, order):
    assert apart(name, positions=MODELS[name]["positions"][..., order]) > 0.1


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "other"), [("Qwen2.5-VL", "Qwen3-VL"), ("Qwen3-VL", "Qwen2.5-VL")])
def test_control_axes_dealt_out_the_other_way(name, other):
    axes = checks.plan_of(MODELS[other]).layers[0].frequencies.axes
    assert apart(name, change=lambda frequencies: dataclasses.replace(frequencies, axes=axes)) > 0.1


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "index"), FACTORED)
def test_control_the_attention_factor_dropped(name, index):
    assert apart(name, index, change=lambda frequencies: dataclasses.replace(frequencies, attention_factor=1.0)) > 0.1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("gpt-oss", "truncate", True),
        ("Qwen2, YaRN", "truncate", False),
        ("DeepSeek-V3", "truncate", False),
        ("DeepSeek-V3", "beta_fast", 16),
        ("DeepSeek-V3", "factor", 20.0),
        ("Llama 3.1", "factor", 32.0),
        ("Llama 3.1", "high_freq_factor", 2.0),
        ("Llama 3.1", "original_max_position_embeddings", 4096),
        ("Llama, dynamic", "factor", 4.0),
        ("Cohere", "rope_theta", 20_000.0),
    ],
)
def test_control_another_value_in_the_configuration(name, key, value):
    parameters = MODELS[name]["config"]["rope_parameters"]
    assert parameters.get(key) != value
    wrong = checks.plan_of(MODELS[name], rope_parameters=parameters | {key: value})
    assert apart(name, plan=wrong, change=lambda frequencies: frequencies) > 0.02


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "other"), [("Phi-3, short", "Phi-3, long"), ("Phi-3, long", "Phi-3, short")])
def test_control_the_other_factors_of_longrope(name, other):
    wrong = checks.plan_of(MODELS[other])
    assert apart(name, plan=wrong, change=lambda frequencies: frequencies) > 0.1


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["Gemma 3", "ModernBERT", "OLMo 3"])
def test_control_layer_types_swapped(name):
    plan = checks.plan_of(MODELS[name])
    swapped = dataclasses.replace(plan, layers=plan.layers[::-1])
    assert apart(name, plan=swapped, change=lambda frequencies: frequencies) > 0.1
