"""`examples/t5.py` with the weights of transformers' T5: the features of its encoder, of both perceptrons, under padding."""

import importlib
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
t5 = importlib.import_module("t5")


@pytest.mark.parametrize("perceptron", ["relu", "gated-gelu"])
@pytest.mark.parametrize("distance", [40, 128])
def test_the_example_computes_what_transformers_does(perceptron, distance):
    sizes = {"vocab_size": 50, "d_model": 24, "d_kv": 8, "d_ff": 40, "num_layers": 3, "num_heads": 2}
    buckets = {"relative_attention_num_buckets": 16, "relative_attention_max_distance": distance}
    torch.manual_seed(0)
    model = transformers.T5EncoderModel(transformers.T5Config(**sizes, **buckets, feed_forward_proj=perceptron)).eval()
    tokens, mask = torch.randint(50, (2, 70)), torch.ones(2, 70, dtype=torch.long)
    mask[0, :7] = mask[1, 50:] = 0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
        want = model(input_ids=tokens, attention_mask=mask).last_hidden_state.numpy()
    weights, real = {name: x.numpy() for name, x in model.state_dict().items()}, mask.numpy() == 1
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        got, other = (np.asarray(t5.load(weights, 2, d)(tokens.numpy(), mask.numpy())) for d in (distance, 60))
    assert np.abs(got - want)[real].max() < 1e-5
    assert np.abs(other - want)[real].max() > 1e-2  # with the buckets of another config
