"""What files of checkpoints hold: the order of features in GGUF, shapes of norms, and names of what was learned."""

import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, LlamaTensorProcessor, TensorProcessor

import posenc_jax as pe
from helpers.layers import LEARNED
from oracles import recorded
from posenc_jax import hf


@pytest.mark.parametrize("heads", [4, 2])
def test_gguf_of_llama_is_interleaved(heads):
    """transformers undoes what llama.cpp's converter did, for 4 heads of queries and as many or fewer of keys."""
    file = np.random.default_rng(heads).normal(size=(heads * 8, 3)).astype(np.float32)
    ours = pe.convert_layout(file, 8, source="interleaved", target="half", axis=0, num_heads=heads)
    np.testing.assert_array_equal(ours, LlamaTensorProcessor()._reverse_permute_weights(file, 4, heads))


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "phi3", "olmo2"])
def test_gguf_of_others_is_as_on_the_hub(architecture):
    assert TENSOR_PROCESSORS["llama"] is LlamaTensorProcessor
    assert TENSOR_PROCESSORS.get(architecture, TensorProcessor) is TensorProcessor  # which changes nothing


@pytest.mark.parametrize(
    ("name", "shape"), [("qwen3", (8,)), ("gemma3_text", (8,)), ("cohere", (4, 8)), ("olmo2", (32,))]
)
def test_shapes_of_norms(name, shape):
    sizes = {"hidden_size": 32, "intermediate_size": 8, "vocab_size": 8, "num_hidden_layers": 1, "head_dim": 8}
    config = transformers.AutoConfig.for_model(name, **sizes, num_attention_heads=4, num_key_value_heads=4)
    config.use_qk_norm = True  # Cohere's
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert {p.shape for key, p in model.named_parameters() if key.endswith("q_norm.weight")} == {shape}


def test_the_names_of_parameters_are_those_of_a_saved_checkpoint(tmp_path):
    """Of a whole model, as transformers saves it; a plan's names stand in it for every layer."""
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
    parameters = dict(plan.parameters + plan.indexer.parameters)
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        shapes = {name: file.get_tensor(name).shape for name in file.keys() if "lerope" in name or "ssmax" in name}
        np.testing.assert_array_equal(file.get_tensor("lerope.alpha"), alpha.detach().numpy())
    assert shapes == {name.format(layer=i): shape for name, shape in parameters.items() for i in range(4)}
    assert LEARNED.keys() == parameters.keys()
