"""The names that a plan gives to what a model has learned of its rotations."""

import numpy as np
import torch
import transformers
from safetensors import safe_open

from helpers.layers import LEARNED
from oracles import recorded
from posenc_jax import hf


def test_the_names_of_parameters_are_those_of_a_saved_checkpoint(tmp_path):
    """Of a whole model, as transformers saves it; a plan's names stand in it for every layer."""
    tower = {"model_type": "pixtral", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    tower |= {"num_attention_heads": 2, "patch_size": 4, "image_size": 8}
    (text, *_) = (
        c["config"] for c in recorded.cases("hf_layers") if c["config"]["model_type"] == "mistral_large4_text"
    )
    text |= {"vocab_size": 8, "intermediate_size": 16, "first_k_dense_replace": 4}
    config = transformers.MistralLarge4Config(vision_config=tower, text_config=text)
    model = transformers.MistralLarge4ForConditionalGeneration(config)
    alpha = model.model.language_model.rotary_emb.alpha
    with torch.no_grad():
        alpha.normal_()
    model.save_pretrained(tmp_path)
    plan = hf.rotary_from_config(config.to_dict())
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        saved = {*file.keys()}
        for own in (plan, plan.indexer):
            for name, shape in own.parameters:
                for index in range(len(own.layers)):
                    assert file.get_tensor(name.format(layer=index)).shape == shape
        np.testing.assert_array_equal(file.get_tensor("lerope.alpha"), alpha.detach().numpy())
    named = {name.format(layer=i) for own in (plan, plan.indexer) for name, _ in own.parameters for i in range(4)}
    assert {name for name in saved if "lerope" in name or "ssmax" in name} == named
    assert LEARNED.keys() == {name for own in (plan, plan.indexer) for name, _ in own.parameters}
