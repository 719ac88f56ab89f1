"""Configs of published checkpoints: each layer has the frequencies of transformers, or the config is refused."""

import numpy as np
import pytest

from oracles import recorded
from posenc_jax.hf import plan_to_config, rotary_from_config

SPECTRA = recorded.read("hf_published")["spectra"]  # (amplitude, frequencies…), which layers name by number
CASES = {case["name"]: case for case in recorded.cases("hf_published")}
LENGTH = 4097  # with which the values were recorded
# By words of the error, the names of the configs that are refused.
REFUSED = {
    "model_type 'cohere_asr' is not read": "cohere-transcribe-arabic",
    "is not known, and its code may do what no key says": "bora-1.1b deepseek-v4-flash-fp8 deepseek-v4-pro-fp8 "
    "infimm-zephyr ipex-yuan logics-thinking telechat-115b telechat-12b-v2 telechat-7b yuan2-2b",
    "text_config is missing": "ipex-llava ome-llava-v1.5-7b step-3.7-flash step-3.7-flash-fp8",
    "the key rope_local_base_freq = 10000.0 is not read by model_type 'gemma4": "et-gemma4-e2b et-gemma4-e4b",
    "rope_theta is missing: its default is 10000.0 since transformers 5.0 and 25000.0 before": "fuyu-8b",
    "its default is 500000.0 since transformers 5.0 and 10000.0 before": "ome-command-r-35b",  # without its 8e6
    "the larger models of this type have ALiBi": "ipex-baichuan",
    "the key rope_scaling.mrope_section = .* is not read": "specforge-qwen2-5-vl-7b-eagle3 "
    "specforge-qwen2.5-vl-32b-eagle3",
    "rope_scaling.type must be one of": "ming-flash-or-lite-2",  # video_rope
}
REASONS = {name: reason for reason, names in REFUSED.items() for name in names.split()}


@pytest.mark.parametrize("name", REASONS)
def test_a_published_config_is_refused_with_this_reason(name):
    with pytest.raises(ValueError, match=REASONS[name]):
        rotary_from_config(CASES[name]["config"], length=LENGTH)


@pytest.mark.parametrize("name", sorted(CASES.keys() - REASONS))
def test_a_published_config_has_the_frequencies_of_transformers(name):
    """A config written from the plan gives the same plan."""
    plan, layers = rotary_from_config(CASES[name]["config"], length=LENGTH), CASES[name]["layers"]
    assert rotary_from_config(plan_to_config(plan), length=plan.length) == plan
    if not isinstance(layers, list):
        return  # transformers has no class for this config, or no frequencies
    for layer, number in set(zip(plan.layers, layers, strict=True)):  # each pair once
        if layer.rotary_dim:
            amplitude, *frequencies = SPECTRA[number]
            ours = np.sort(layer.frequencies.angular)[::-1]
            np.testing.assert_allclose(ours, frequencies, rtol=recorded.bound_of_float32(1e8))
            assert layer.frequencies.attention_factor == pytest.approx(amplitude, rel=2e-7)
