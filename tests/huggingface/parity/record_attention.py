"""Writes tests/oracles/recorded/hf_attention.json: what attention functions of transformers take and give.

    nox -s parity -- --record

does. Queries, keys and values are those of a small module with random weights, rotated, as it passes them on.
"""

import json
from pathlib import Path

import numpy as np
import torch
import transformers
from attention_modules import MODELS
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

LENGTH = 8
SMALL = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "sliding_window": 3}
LATENT = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 2}
LATENT |= {"qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 3}
CASES = [("gpt_oss", 0), ("gpt_oss", 1), ("gemma2", 0), ("gemma2", 1), ("mistral", 0), ("deepseek_v3", 0)]


def numbers(x):
    """Nine digits say which float32 it is; the one sequence of the batch, (seq, heads, width)."""
    x = np.asarray(x.detach())
    return [float(f"{v:.9g}") for v in x] if x.ndim == 1 else [numbers(torch.from_numpy(row)) for row in x]


def case(name, layer):
    """One call of the eager attention of a module, and its gradients for a random cotangent."""
    model, found = MODELS[name], {}
    config = model.config(**LATENT if name == "deepseek_v3" else SMALL)

    def recording(module, query, key, value, mask, **told):
        operands = [x.detach().clone().requires_grad_() for x in (query, key, value)]
        y, weights = model.code.eager_attention_forward(module, *operands, mask, **told)
        cotangent = torch.randn_like(y)
        (y * cotangent).sum().backward()
        q, k, v = (x.transpose(1, 2)[0] for x in operands)
        dq, dk, dv = (x.grad.transpose(1, 2)[0] for x in operands)
        arrays = {"query": q, "key": k, "value": v, "output": y[0], "cotangent": cotangent[0]}
        arrays |= {"query_grad": dq, "key_grad": dk, "value_grad": dv}
        if hasattr(module, "sinks"):
            arrays |= {"sinks": module.sinks, "sinks_grad": module.sinks.grad}
        told = {key: told.get(key) for key in ("scaling", "sliding_window", "softcap")}
        found.update({"class": type(module).__name__, "layer": layer} | told)
        found.update({key: numbers(x) for key, x in arrays.items()})
        return y, weights

    AttentionInterface.register("recording", recording)
    AttentionMaskInterface.register("recording", eager_mask)
    config._attn_implementation = "recording"
    module = model.module(config, layer)
    positions = torch.arange(LENGTH)[None]
    model.run(module, torch.randn(1, LENGTH, config.hidden_size), positions, torch.ones_like(positions))
    return found


def record():
    """A line for each case."""
    head = {
        "about": "Attention of transformers: operands as a small random module rotated them, its eager attention's output "
        "(seq, heads, width), and gradients by autograd. Causal.",
        "command": "nox -s parity -- --record",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }
    lines = [f' "{key}": {json.dumps(value)}' for key, value in head.items()]
    lines.append(' "cases": [\n  ' + ",\n  ".join(json.dumps(case(*c)) for c in CASES) + "\n ]")
    path = Path(__file__).parents[2] / "oracles" / "recorded" / "hf_attention.json"
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    record()
