"""Writes tests/oracles/recorded/hf_layers.json: attention layers whose values rotate, or that learn spectra.

    nox -s parity -- --record

does. Weights and inputs are random, of three decimals.
"""

import json
from pathlib import Path

import layers
import numpy as np
import torch
import transformers


def numbers(x, digits=6):
    """Six digits are more than weights have; nine say which float32 a number is."""
    x = np.asarray(x)
    return [float(f"{v:.{digits}g}") for v in x] if x.ndim == 1 else [numbers(row, digits) for row in x]


def case(name):
    """A layer: its config, weights, input and output."""
    layer = layers.Layer(name)
    found = {"name": name, "layer": layer.index, "config": layer.written()}
    found["weights"] = {key: numbers(weight) for key, weight in layer.weights().items()}
    return found | {"input": numbers(layer.x[0]), "output": numbers(layers.output(layer), 9)}


def record():
    """A line for each case."""
    head = {
        "about": "Attention layers of transformers with random weights: config, weights, input and output (seq, hidden).",
        "command": "nox -s parity -- --record",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }
    lines = [f' "{key}": {json.dumps(value)}' for key, value in head.items()]
    lines.append(' "cases": [\n  ' + ",\n  ".join(json.dumps(case(name)) for name in layers.CASES) + "\n ]")
    path = Path(__file__).parents[2] / "oracles" / "recorded" / "hf_layers.json"
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    record()
