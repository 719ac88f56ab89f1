"""Rotary embeddings beside what transformers computed: recorded values, with their provenance in the files."""

import numpy as np
import pytest

from helpers import rope as checks
from helpers.tiers import slow
from oracles import recorded
from posenc_jax import hf

SPECTRA = recorded.cases("hf_frequencies")
TYPES = recorded.cases("hf_model_types")
MODELS = recorded.rotations()["models"]
# Keys that the classes of these types fill in, and that their cases say.
FILLED = "rope_parameters", "layer_types", "layers_block_type"
# Types whose cases say something else than their classes.
OTHERWISE = set(
    "cohere_compass_text deepseek_v4 dory glm4v_text glm_image_text granitemoehybrid lfm2_moe minimax minimax_m3_vl_text "
    "qwen4_exp_text zamba2".split()
)
LEFT_OUT = [(case["config"], key) for case in TYPES for key in FILLED if key in case["config"]]
LEFT_OUT = [(config, key) for config, key in LEFT_OUT if config["model_type"] not in OTHERWISE]
# Their patterns follow from nothing that a config says.
MUST_LIST = set("flint laguna lfm3 mellum mimo_v2_flash zaya".split())
TURNING = [(name, layer["index"]) for name, model in MODELS.items() for layer in model["layers"] if layer["turns"]]


def kind_of(name, index):
    model, layer = MODELS[name], MODELS[name]["layers"][index]
    rope = layer["rope"]
    return model["layout"], model["part"], rope["rope_type"], "mrope_section" in rope, layer["attention_factor"] != 1


FIRST = list({kind_of(*case): case for case in reversed(TURNING)}.values())  # of each kind


@pytest.mark.parametrize("case", SPECTRA, ids=lambda case: case["name"])
def test_frequencies_by_hand_and_from_the_configuration(case):
    config = case["config"]
    rope, limit = config["rope_parameters"], config["max_position_embeddings"]
    by_hand = checks.functions_of(rope, case["head_dim"], limit, case["length"])
    checks.check_spectrum(by_hand, case)
    plan = hf.rotary_from_config(config, length=case["length"])
    assert {layer.frequencies for layer in plan.layers} == {by_hand}
    settings = rope | {"max_position_embeddings": limit}
    alone = hf.frequencies_from_rope_parameters(case["head_dim"], rope["rope_theta"], settings, length=case["length"])
    assert alone == by_hand


@pytest.mark.parametrize("name", MODELS)
def test_plans(name):
    checks.check_plan(MODELS[name])


@pytest.mark.parametrize(("name", "index"), [case if case in FIRST else slow(*case) for case in TURNING])
def test_rotations(name, index):
    checks.check_layer(MODELS[name], index)


@pytest.mark.parametrize("case", TYPES, ids=lambda case: case["config"]["model_type"])
def test_what_a_configuration_leaves_out(case):
    plan = hf.rotary_from_config(case["config"], length=4096)
    assert hf.rotary_from_config(hf.plan_to_config(plan), length=plan.length) == plan
    assert plan.layout == (case["layout"] or plan.layout)
    if case["turns"]:
        assert [layer.rotary_dim > 0 for layer in plan.layers] == list(map(bool, case["turns"]))
    found = {layer.frequencies for layer in plan.layers if layer.rotary_dim}
    slowest_of = {f: min(f.angular[f.angular != 0], key=abs) for f in found}
    ours = sorted((f.num_pairs, slowest_of[f], f.attention_factor) for f in found)
    (*exact, slowest), (*wanted, slowest_wanted) = (
        np.reshape(x, (-1, 3)).T[[0, 2, 1]] for x in (ours, case["spectra"])
    )
    np.testing.assert_array_equal(exact, wanted)
    np.testing.assert_allclose(slowest, slowest_wanted, rtol=checks.bound_of_float32(1e8))


@pytest.mark.parametrize(("config", "key"), LEFT_OUT, ids=[f"{config['model_type']}-{key}" for config, key in LEFT_OUT])
def test_what_a_class_fills_in(config, key):
    """Each case has the defaults of the class but for a few lists of layers."""
    rest = {name: value for name, value in config.items() if name != key}
    if key != "rope_parameters" and config["model_type"] in MUST_LIST:
        with pytest.raises(ValueError, match="layer_types is missing"):
            hf.rotary_from_config(rest, length=4096)
    else:
        assert hf.rotary_from_config(rest, length=4096) == hf.rotary_from_config(config, length=4096)


def test_each_rope_type_is_recorded():
    kinds = {case["config"]["rope_parameters"]["rope_type"] for case in SPECTRA}
    assert kinds == {"default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("GPT-J", {"layout": "half"}),
        ("Llama 2", {"positions": MODELS["Llama 2"]["positions"] + 1}),
        ("Qwen3-VL", {"positions": MODELS["Qwen3-VL"]["positions"][..., [0, 2, 1]]}),
        ("Phi-3, short", {"plan": checks.plan_of(MODELS["Phi-3, long"])}),
    ],
)
def test_another_reading_is_far_from_what_is_recorded(name, changes):
    layer = checks.Layer(MODELS[name])
    assert np.max(layer.apart(layer.ours(lambda f: f, **changes)[0], layer.reference)) > 0.1
