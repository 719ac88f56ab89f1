"""Layers whose values rotate, or that learn spectra, beside those of transformers: outputs and gradients."""

import functools

import jax
import layers
import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open

from helpers.layers import LAYERS, LEARNED, Changes
from posenc_jax import hf

# Of the standard deviation of outputs, and of the largest gradient of an array: those of what is learned of frequencies
# nearly cancel.
OUTPUT, GRADIENTS = 1e-5, 1e-4


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", layers.CASES)
def test_layer(name, seed, differences):
    layer = layers.Layer(name, seed)
    x, cotangent = layer.x.clone().requires_grad_(), torch.randn_like(layer.x)
    y = layer.run(x)
    (y * cotangent).sum().backward()
    weights, config = layer.weights(), layer.written()
    f = functools.partial(LAYERS[config["model_type"]], config, layer=layer.index, changes=Changes())
    value, pull = jax.vjp(jax.jit(lambda w, x: f(w, x)), weights, layer.x[0].numpy())
    by_weights, by_x = pull(cotangent[0].numpy())
    want = {key: w.grad for key, w in layer.module.named_parameters()} | {"input": x.grad[0]}
    want |= {key: w.grad for key, w in layer.embedding.named_parameters()}  # alpha, since transformers 5.24
    got = by_weights | {"input": by_x}
    found = {key: _relative(got[key], w.numpy()) for key, w in want.items() if w is not None and w.any()}
    row = {"output": _relative(value, y.detach()[0].numpy(), np.std), "gradients": max(found.values())}
    differences(f"{name}, seed {seed}", row)
    assert row["output"] <= OUTPUT and row["gradients"] <= GRADIENTS, found


def _relative(x, y, size=lambda y: np.max(np.abs(y))):
    return float(np.max(np.abs(np.asarray(x) - y)) / size(y))


def test_the_names_of_parameters_are_those_of_a_saved_checkpoint(tmp_path):
    """Of a whole model, as transformers saves it; a plan's names stand in it for every layer."""
    tower = {"model_type": "pixtral", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    tower |= {"num_attention_heads": 2, "patch_size": 4, "image_size": 8}
    text = layers.MISTRAL_LARGE_4 | {"intermediate_size": 16, "first_k_dense_replace": 4}
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
