"""The order of features in files of other programs, which docs/huggingface.md says, beside the code that reads them."""

import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, LlamaTensorProcessor, TensorProcessor

import posenc_jax as pe


@pytest.mark.parametrize(("heads", "key_heads"), [(4, 4), (4, 2)])
def test_gguf_of_llama_is_interleaved(heads, key_heads):
    """transformers undoes what llama.cpp's converter did."""
    read = LlamaTensorProcessor()._reverse_permute_weights
    for own in (heads, key_heads):
        file = np.random.default_rng(own).normal(size=(own * 8, 3)).astype(np.float32)
        how = {"source": "interleaved", "target": "half"}
        ours = pe.convert_layout(file, 8, **how, axis=0, num_heads=own)
        np.testing.assert_array_equal(ours, read(file, heads, own))


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
