"""Values that other libraries and notebooks computed: each file names its source, and the command that wrote it.

They stay apart from the formulas: their independence is the point.
"""

import json
import math
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent


def read(name):
    """All of a file."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def cases(name):
    """The cases of a file."""
    return read(name)["cases"]


def rotations():
    """Queries and keys as transformers turned them: a description of each model, its layers holding arrays."""
    with np.load(FOLDER / "hf_rotations.npz", allow_pickle=False) as file:
        arrays = dict(file)
    about = json.loads(str(arrays.pop("about")))
    for name, model in about["models"].items():
        model.update({key: arrays[f"{name}/{key}"] for key in ("positions", "scale_positions")})
        for layer in model["layers"]:
            prefix = f"{name}/{layer['index']}/"
            layer.update({k.removeprefix(prefix): x for k, x in arrays.items() if k.startswith(prefix)})
            for part in "qk":  # what nothing changed is stored once
                layer.setdefault(f"{part}_rotated", layer[part])
                layer.setdefault(f"{part}_attended", layer[f"{part}_rotated"])
    return about


def bound_of_float32(base):
    """How far the float32 ω that transformers computes may lie from the true one, relative.

    It raises the base to an exponent rounded to 2⁻²⁵, which moves ω by ln(base)·2⁻²⁵; the power, quotients and
    products add a unit of 2⁻²⁴ or so each.
    """
    return (math.log(base) / 2 + 5) * 2.0**-24
