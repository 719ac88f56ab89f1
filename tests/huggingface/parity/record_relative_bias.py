"""Writes tests/oracles/recorded/relative_biases.json: relative position biases as transformers and timm compute them.

    nox -s parity -- --record

does.
"""

import json
from pathlib import Path

import numpy as np
import timm
import torch
import transformers
import vision_biases

RESIZED = [(3, 5), (4, 2), (2, 6)]


def numbers(x):
    """Nine digits say which float32 it is."""
    return [float(f"{v:.9g}") for v in x] if np.ndim(x) == 1 else [numbers(row) for row in x]


def case(about, arrays):
    return about | {name: numbers(x) for name, x in arrays.items()}


def record():
    rng = np.random.default_rng(0)
    layers = [
        case({"peer": name, "window": window}, layer(rng, tuple(window), 2))
        for name, layer in vision_biases.LAYERS.items()
        for window in [[3, 3] if name in vision_biases.SQUARE else [2, 3]]
    ]
    resized = [
        case({"window": old, "new": new}, vision_biases.resized_by_timm(rng, old, new, 2)) for old, new in RESIZED
    ]
    of_beit = [case({"window": 2, "new": 3}, vision_biases.resized_by_beit(rng, 2, 3, 2))]
    head = {
        "about": "Biases of queries and keys (heads, queries, keys) by layers of random tables, a grid row by row; tables "
        "that timm's resize_rel_pos_bias_table_levit resizes from window × window to new × new; the bias of BEiT in "
        "transformers for a window larger than its table's.",
        "command": "nox -s parity -- --record",
        "versions": {peer.__name__: peer.__version__ for peer in (transformers, timm, torch)},
    }
    lines = [f' "{key}": {json.dumps(value)}' for key, value in head.items()]
    for name, items in {"layers": layers, "resized": resized, "larger": of_beit}.items():
        lines.append(f' "{name}": [\n  ' + ",\n  ".join(map(json.dumps, items)) + "\n ]")
    path = Path(__file__).parents[2] / "oracles" / "recorded" / "relative_biases.json"
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    record()
