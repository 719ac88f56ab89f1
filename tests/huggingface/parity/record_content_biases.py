"""Writes tests/oracles/recorded/content_biases.json: attention modules whose biases depend on tokens and distances.

    nox -s parity -- --record

does.
"""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import torch  # noqa: E402
import transformers  # noqa: E402
from content_modules import RECORDED, measured  # noqa: E402

from oracles.recorded import FOLDER  # noqa: E402

PATH = FOLDER / "content_biases.json"


def numbers(x):
    """Nine digits say which float32 it is."""
    return [numbers(y) for y in x] if x.ndim else float(f"{x:.9g}")


def record():
    """A line for each case."""
    lines = []
    for seed, (name, make) in enumerate(RECORDED.items()):
        case = {"name": name} | measured(make(), seed)
        case["output"] = numbers(case["output"])
        case["gradients"] = {name: numbers(x) for name, x in case["gradients"].items()}
        lines.append(json.dumps(case))
    head = {
        "about": "Attention modules of transformers: shapes of their arrays, which tests/helpers/content_biases.py draws from "
        "a seed, the output, and gradients of its sum with a cotangent that is drawn too. A mask is 0 for padding.",
        "command": "nox -s parity -- --record",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }
    text = [f' "{key}": {json.dumps(value)}' for key, value in head.items()]
    text.append(' "cases": [\n  ' + ",\n  ".join(lines) + "\n ]")
    PATH.write_text("{\n" + ",\n".join(text) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    record()
