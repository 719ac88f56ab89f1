"""Files that transformers reads and writes.

- Its reader of GGUF files converts the layout of LLaMA as `convert_layout` does.
- The names of a plan's parameters are those in a saved checkpoint.
- A config that transformers reads and saves again gives the plan of the old file.
"""

import dataclasses
import json
import warnings

import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open
from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import posenc_jax as pe
from oracles import recorded
from posenc_jax import hf


def test_gguf_of_llama_is_interleaved():
    """transformers undoes the interleaving by llama.cpp's converter, here for keys of two heads."""
    file = np.arange(48.0).reshape(16, 3)
    ours = pe.convert_layout(file, 8, source="interleaved", target="half", axis=0, num_heads=2)
    np.testing.assert_array_equal(ours, LlamaTensorProcessor()._reverse_permute_weights(file, 4, 2))


def test_the_names_of_parameters_are_those_of_a_saved_checkpoint(tmp_path):
    """Mistral Large 4, a whole model, saved by transformers: the file has each name for every layer."""
    *_, text = (case["config"] for case in recorded.cases("hf_layers"))
    text |= {"vocab_size": 8, "intermediate_size": 16, "first_k_dense_replace": 4}
    tower = {"model_type": "pixtral", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.MistralLarge4Config(vision_config=tower, text_config=text)
    model = transformers.MistralLarge4ForConditionalGeneration(config)
    alpha = model.model.language_model.rotary_emb.alpha
    with torch.no_grad():
        alpha.normal_()
    model.save_pretrained(tmp_path)
    plan = hf.rotary_from_config(config.to_dict())
    parameters = plan.parameters + plan.indexer.parameters
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        shapes = {name: file.get_tensor(name).shape for name in file.keys() if "lerope" in name or "ssmax" in name}
        np.testing.assert_array_equal(file.get_tensor("lerope.alpha"), alpha.detach().numpy())
    assert shapes == {name.format(layer=i): shape for name, shape in parameters for i in range(4)}


LENGTH = 4097  # above the original length of Phi-3
# LOST: the class does not read the language model of the old file. FAILING: the class fails.
LOST, FAILING = {"et-gemma3-1b-it", "glm-asr", "ttf-vibevoice"}, {"ome-dbrx-132b", "specforge-qwen2.5-vl-32b-eagle3"}


def is_read(config):
    """Whether the package reads a config."""
    try:
        return hf.rotary_from_config(config, length=LENGTH) is not None
    except (TypeError, ValueError):
        return False


CASES = recorded.cases("hf_published") + recorded.cases("hf_model_types")
CONFIGS = {case.get("name", case["config"].get("model_type")): case["config"] for case in CASES}
READ = [name for name, x in CONFIGS.items() if x.get("model_type") in CONFIG_MAPPING and is_read(x)]


@pytest.mark.parametrize("name", [name for name in READ if name not in FAILING])
def test_a_config_saved_again_gives_the_same_plan(name):
    """Saved in full, and without its defaults."""
    plan = hf.rotary_from_config(CONFIGS[name], length=LENGTH)
    with warnings.catch_warnings(action="ignore"):
        read = CONFIG_MAPPING[CONFIGS[name]["model_type"]].from_dict(json.loads(json.dumps(CONFIGS[name])))
    for diff in (False, True):
        saved = json.loads(read.to_json_string(use_diff=diff))
        if name in LOST:
            assert not is_read(saved)
            continue
        again = hf.rotary_from_config(saved, length=LENGTH)
        # A fact that the old plan does not know (None) may be known of the type of the class, which saved the file.
        known = [{key: x for key, x in vars(layer).items() if x is not None} for layer in plan.layers]
        layers = [vars(layer) | own for layer, own in zip(again.layers, known, strict=True)]
        assert dataclasses.replace(again, layers=plan.layers) == plan
        assert [vars(layer) for layer in again.layers] == layers
