"""`rotary_from_config` gives what was recorded from transformers; the recorded files name the releases.

- Every model type has the layout and the spectra (number of pairs, slowest frequency, amplitude) of its class, and the
  class's rope settings and layer types where a config leaves them out.
- Every rope type has the true frequencies.
- Layers of whole models rotate queries and keys, and scale queries, as the layers of transformers do.
"""

import functools
import math

import jax
import numpy as np
import pytest

import posenc_jax as pe
from oracles import recorded, rotations, spectra
from posenc_jax.hf import frequencies_from_rope_parameters, plan_to_config, rotary_from_config

# Model types


TYPE_CASES = recorded.cases("hf_model_types")
# Keys that a config may leave out: its class fills them in.
DEFAULTED = "rope_parameters", "layer_types", "layers_block_type"
# Types whose cases have other values for these keys than their classes fill in.
NOT_DEFAULT = set(
    "cohere_compass_text deepseek_v4 dory glm4v_text glm_image_text granitemoehybrid lfm2_moe minimax "
    "minimax_m3_vl_text qwen4_exp_text zamba2".split()
)
CONFIGS = [case["config"] for case in TYPE_CASES if case["config"]["model_type"] not in NOT_DEFAULT]
LEFT_OUT = [(config, key) for config in CONFIGS for key in DEFAULTED if key in config]
# Types whose configs must list their layer types, because no other key gives the pattern.
MUST_LIST = set("flint laguna lfm3 mellum mimo_v2_flash zaya".split())


@pytest.mark.parametrize("case", TYPE_CASES, ids=lambda case: case["config"]["model_type"])
def test_a_model_type_has_the_layout_and_the_spectra_of_its_class(case):
    """Of a spectrum, the number of pairs, the slowest frequency and the amplitude are recorded."""
    plan = rotary_from_config(case["config"], length=4096)
    assert rotary_from_config(plan_to_config(plan), length=plan.length) == plan  # written, and read again
    assert case["layout"] in (None, plan.layout)  # None: not recorded
    if case["turns"]:  # recorded for a few types: for each layer, whether it rotates
        assert [layer.rotary_dim > 0 for layer in plan.layers] == list(map(bool, case["turns"]))
    ours = {layer.frequencies for layer in plan.layers if layer.rotary_dim}
    slowest_of = {f: min(f.angular[f.angular != 0], key=abs) for f in ours}
    rows = sorted((f.num_pairs, slowest_of[f], f.attention_factor) for f in ours)
    pairs, slowest, amplitudes = np.reshape(rows, (-1, 3)).T
    want_pairs, want_slowest, want_amplitudes = np.reshape(case["spectra"], (-1, 3)).T
    np.testing.assert_array_equal([pairs, amplitudes], [want_pairs, want_amplitudes])
    np.testing.assert_allclose(slowest, want_slowest, rtol=recorded.bound_of_float32(1e8))  # above every base


@pytest.mark.parametrize(("config", "key"), LEFT_OUT, ids=[f"{config['model_type']}-{key}" for config, key in LEFT_OUT])
def test_a_key_left_out_has_the_value_of_the_class_or_is_asked_for(config, key):
    rest = {name: value for name, value in config.items() if name != key}
    if key != "rope_parameters" and config["model_type"] in MUST_LIST:
        with pytest.raises(ValueError, match="layer_types is missing"):
            rotary_from_config(rest, length=4096)
    else:
        assert rotary_from_config(rest, length=4096) == rotary_from_config(config, length=4096)


# Rope types


@pytest.mark.parametrize("case", recorded.cases("hf_frequencies"), ids=lambda case: case["name"])
def test_frequencies_are_the_true_ones_and_those_of_transformers(case):
    """Within 2⁻¹²⁷ cycles of the formula, and within the rounding of transformers, which computes in float32."""
    config, head_dim, length = case["config"], case["head_dim"], case["length"]
    rope, limit = config["rope_parameters"], config["max_position_embeddings"]
    settings = rope | {"max_position_embeddings": limit}
    found = frequencies_from_rope_parameters(head_dim, rope["rope_theta"], settings, length=length)
    assert {layer.frequencies for layer in rotary_from_config(config, length=length).layers} == {found}
    omega, amplitude = spectra.from_parameters(rope, head_dim, limit, length)
    assert max(abs(a - b) for a, b in zip(found.cycles, spectra.turns(omega), strict=True)) <= 2  # units of 2⁻¹²⁸
    for factor in (found.attention_factor, case["attention_factor"]):
        assert abs(factor - amplitude) <= 4e-16 * amplitude  # roundings of float64
    np.testing.assert_allclose(case["frequencies"], found.angular, rtol=recorded.bound_of_float32(rope["rope_theta"]))


# Models


MODELS = recorded.rotations()["models"]


def plan_of(model):
    """The plan for the length of the recorded sequences."""
    return rotary_from_config(model["config"], length=int(model["positions"].max()) + 1)


@pytest.mark.parametrize("name", MODELS)
def test_layers_rotate_and_scale_queries_where_those_of_transformers_do(name):
    model = MODELS[name]
    plan = plan_of(model)
    assert (plan.layout, plan.part, len(plan.layers)) == (model["layout"], model["part"], len(model["layers"]))
    for ours, theirs in zip(plan.layers, model["layers"], strict=True):
        # In latent attention (part "last"), YaRN multiplies the usual scale of the scores.
        scale = theirs["softmax_scale"] * math.sqrt(theirs["q_attended"].shape[-1]) if plan.part == "last" else 1
        assert plan.softmax_scale == pytest.approx(scale, rel=1e-15)
        assert ours.head_dim == theirs["q_attended"].shape[-1]
        assert (ours.rotary_dim > 0) == theirs["turns"]
        np.testing.assert_array_equal(theirs["k_attended"], theirs["k_rotated"])  # of the data: keys have no scale
        query, rtol = theirs["q_rotated"], 0  # without a scale, their attention gets the rotated query
        if ours.query_scale:
            scale = np.asarray(jax.jit(ours.query_scale)(model["scale_positions"]))
            query, rtol = query * scale[:, None, :, None], 3e-7
        np.testing.assert_allclose(query, theirs["q_attended"], rtol=rtol)


def queries_and_keys(layer, after=""):
    """Recorded queries and keys, joined along the heads: before rotation, or `after="_rotated"`."""
    return np.concatenate([layer[f"{role}{after}"] for role in "qk"], -3)


@pytest.mark.parametrize("name", MODELS)
def test_a_layer_rotates_as_in_transformers(name):
    """With the float32 frequencies of transformers, each rotated pair is within 1e-6 of its length."""
    model, plan = MODELS[name], plan_of(MODELS[name])
    both = zip(plan.layers, model["layers"], strict=True)
    rotating = [(ours.frequencies, theirs) for ours, theirs in both if theirs["turns"]]
    with_their_frequencies = [f.with_precision("float32").with_angular(theirs["frequencies"]) for f, theirs in rotating]
    for f, theirs in rotating:
        bound = recorded.bound_of_float32(theirs["rope"]["rope_theta"])
        np.testing.assert_allclose(theirs["frequencies"], f.angular, rtol=bound)
        assert f.attention_factor == pytest.approx(theirs["attention_factor"], rel=4e-16)
    rotate = functools.partial(pe.rotary, layout=plan.layout, part=plan.part, head_axis=-3)
    rotate_each = jax.jit(lambda xs, p: [rotate(x, p, f) for x, f in zip(xs, with_their_frequencies, strict=True)])
    outputs = rotate_each([queries_and_keys(theirs) for _, theirs in rotating], np.int32(model["positions"]))
    for (f, theirs), y in zip(rotating, jax.device_get(outputs), strict=True):
        # transformers returns what it rotated in the layout model["written"]
        *pair, _ = rotations.split(queries_and_keys(theirs), f.dim, plan.layout, plan.part)
        *got, rest = rotations.split(y, f.dim, plan.layout, plan.part)
        *want, rest_wanted = rotations.split(queries_and_keys(theirs, "_rotated"), f.dim, model["written"], plan.part)
        np.testing.assert_array_equal(rest, rest_wanted)
        errors, lengths = np.hypot(*np.subtract(got, want)), f.attention_factor * np.hypot(*pair)
        assert np.all(errors <= 1e-6 * lengths), f"layer {theirs['index']}"
