"""Attention functions and layers of transformers, by operands, weights and inputs that are given."""

import importlib
import inspect
import re

import numpy as np
import torch
from embeddings import config_of, modeling_of, new_embedding
from transformers import MistralConfig, masking_utils
from values import numbers

# The name of an argument and of an output, which transformers 5.24 changed.
CACHE = "cache" if "cache" in inspect.signature(masking_utils.create_causal_mask).parameters else "past_key_values"


def causal_mask(config, x, **options):
    """Of a sliding window if the config has one."""
    config._attn_implementation = "eager"
    sliding = getattr(config, "sliding_window", None)
    make = masking_utils.create_sliding_window_causal_mask if sliding else masking_utils.create_causal_mask
    return make(config=config, inputs_embeds=x, attention_mask=None, **{CACHE: None}, **options)


def operands(case):
    """The eager attention of a module's code, (seq, heads, width), and its gradients for a cotangent."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z0-9])", "_", case["class"].removesuffix("Attention")).lower().replace("_v_", "_v")
    name = {"gemma_2": "gemma2", "deepseek_v_3": "deepseek_v3"}.get(name, name)
    code = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    given = {key: torch.tensor(case[key]) for key in ("query", "key", "value", "sinks", "cotangent") if key in case}
    q, k, v = (given[key].transpose(0, 1)[None].requires_grad_() for key in ("query", "key", "value"))
    module = torch.nn.Module().eval()
    module.num_key_value_groups = q.shape[1] // k.shape[1]
    if "sinks" in given:
        module.sinks = torch.nn.Parameter(given["sinks"])
    mask = causal_mask(MistralConfig(sliding_window=case["sliding_window"]), q[:, 0])
    told = {key: case[key] for key in ("scaling", "sliding_window", "softcap")}
    y, _ = code.eager_attention_forward(module, q, k, v, mask, **told)
    (y[0] * given["cotangent"]).sum().backward()
    found = {f"{key}_grad": x.grad[0].transpose(0, 1) for key, x in (("query", q), ("key", k), ("value", v))}
    found |= {"output": y[0]} | ({"sinks_grad": module.sinks.grad} if "sinks" in given else {})
    return {key: numbers(x) for key, x in found.items()}


def layer(case):
    """The output (seq, hidden_size) of a layer whose values rotate, or that learns spectra."""
    config = config_of(case["config"])
    code, x, weights = modeling_of(config), torch.tensor(case["input"])[None], dict(case["weights"])
    config._attn_implementation = "eager"
    (attention,) = (cls for name, cls in vars(code).items() if name == type(config).__name__[:-6] + "Attention")
    module, embedding = attention(config, layer_idx=case["layer"]).eval(), new_embedding(config)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            weight.copy_(torch.tensor(weights.pop(name)))
        if weights:
            embedding.alpha.copy_(torch.tensor(weights.pop("alpha")))
        assert not weights
        positions = torch.arange(x.shape[1])[None]
        if config.model_type == "deepseek_v4":
            waves = {name: embedding(x, positions, layer_type=name) for name in ("main", "compress")}
            y = module(x, waves, positions, causal_mask(config, x))[0]
        else:
            mask = causal_mask(config, x, allow_is_causal_skip=False)
            y = module(x, embedding(x, positions), mask, {}, positions)[0]
    return {"output": numbers(np.asarray(y[0]))}
