"""`examples/t5.py` with the weights of transformers' T5: the features of its encoder, of both perceptrons, under padding."""

import importlib
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
import transformers

EXAMPLES = Path(__file__).parents[3] / "examples"
RNG = np.random.default_rng(0)
LENGTH = 70


@pytest.fixture(scope="module")
def t5():
    sys.path.insert(0, str(EXAMPLES))
    yield importlib.import_module("t5")
    sys.path.remove(str(EXAMPLES))


@pytest.mark.parametrize("perceptron", ["relu", "gated-gelu"])
@pytest.mark.parametrize("distance", [40, 128])
def test_the_example_computes_what_transformers_does(t5, perceptron, distance):
    sizes = {"vocab_size": 50, "d_model": 24, "d_kv": 8, "d_ff": 40, "num_layers": 3, "num_heads": 2}
    buckets = {"relative_attention_num_buckets": 16, "relative_attention_max_distance": distance}
    config = transformers.T5Config(**sizes, **buckets, feed_forward_proj=perceptron)
    torch.manual_seed(0)
    checkpoint = transformers.T5EncoderModel(config).eval()
    tokens, mask = RNG.integers(50, size=(2, LENGTH)), np.ones((2, LENGTH), int)
    mask[0, :7] = mask[1, 50:] = 0
    with torch.no_grad():
        for parameter in checkpoint.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
        given = {"input_ids": torch.tensor(tokens), "attention_mask": torch.tensor(mask)}
        want = checkpoint(**given).last_hidden_state.numpy()
    weights = {name: x.numpy() for name, x in checkpoint.state_dict().items()}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        got, other = (np.asarray(t5.load(weights, 2, d)(tokens, mask)) for d in (distance, 60))
    real = mask == 1
    assert np.abs(got - want)[real].max() < 1e-5
    assert np.abs(other - want)[real].max() > 1e-2  # with the buckets of another config
