"""Writes tests/oracles/recorded/placed_biases.json: attention with a bias, as modules of transformers and timm compute it.

    nox -s parity -- --record

does.
"""

import json
from pathlib import Path

import numpy as np
import placed_biases
import timm
import torch
import transformers


def numbers(x):
    """Nine digits say which float32 it is."""
    if isinstance(x, np.ndarray | list):
        return [numbers(y) for y in (x.tolist() if isinstance(x, np.ndarray) else x)]
    return float(f"{x:.9g}") if isinstance(x, float) else x


def record():
    """A line for each case."""
    head = {
        "about": "Queries, keys and values (tokens, heads, width), and what attention with a bias makes of them, before its "
        "output is projected. Texts repeat them to a length, and keep the outputs of their last queries.",
        "command": "nox -s parity -- --record",
        "versions": {peer.__name__: peer.__version__ for peer in (transformers, timm, torch)},
    }
    lines = [f' "{key}": {json.dumps(value)}' for key, value in head.items()]
    found = [
        json.dumps({"row": row} | {name: numbers(x) for name, x in c.items()}) for row, c in placed_biases.cases(0)
    ]
    lines.append(' "cases": [\n  ' + ",\n  ".join(found) + "\n ]")
    path = Path(__file__).parents[2] / "oracles" / "recorded" / "placed_biases.json"
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    record()
