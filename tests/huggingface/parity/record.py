"""Writes to tests/oracles/recorded what other libraries compute: `record.py [NAME…]`, by default for all files.

A case in a file is its inputs, of which the recorder computes the rest. To record another case, write its inputs into the
file and run this. `nox -s parity -- --record` does; `SOURCE=FILE` names code of authors to run too, see `authors.py`.
"""

import importlib
import json
import sys
from importlib import metadata
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import numpy as np

from oracles import recorded

# By the name of a file, the function of a case, or of all that is in the file.
OF_CASES = {
    "authors": "authors.computed",
    "cameras": "authors.computed",
    "content_biases": "biases.of_content",
    "diffusers_rotations": "vectors.of_diffusers",
    "diffusers_timesteps": "tables.timesteps",
    "hf_attention": "attention.operands",
    "hf_frequencies": "rotary.frequencies",
    "hf_layers": "attention.layer",
    "hf_masks": "masks.computed",
    "hf_multimodal": "positions.by_config",
    "hf_tower_tables": "towers.table",
    "hf_towers": "towers.layers",
    "placed_biases": "placed_biases.computed",
    "pope": "vectors.of_pope",
    "qwen_positions": "positions.of_sequence",
    "relative_biases": "biases.of_grid",
    "rope_index": "positions.by_grids",
    "timm_grids": "tables.grid",
    "timm_resized": "tables.resized_by_timm",
    "torch_resized": "tables.resized_by_torch",
    "turns": "vectors.of_model",
}
OF_FILES = {
    "biases": "authors.biases",
    "hf_model_types": "rotary.model_types",
    "hf_published": "published.recorded",
    "hf_rotations": "rotary.rotations",
}
PEERS = {"PoPE-pytorch", "diffusers", "jax", "timm", "torch", "transformers"}


def function(path):
    module, name = path.split(".")
    return getattr(importlib.import_module(module), name)


def read(name):
    return recorded.rotations() if name == "hf_rotations" else recorded.read(name)


def fresh(name):
    """All of a file, with what the installed libraries compute."""
    values = read(name)
    for head in (values, values.get("versions", {})):
        head.update({peer: metadata.version(peer) for peer in PEERS & head.keys()})
    if name in OF_FILES:
        return values | function(OF_FILES[name])(values)
    compute = function(OF_CASES[name])
    return values | {k: [c | compute(c) for c in x] for k, x in values.items() if isinstance(x, list)}


def write(name, values):
    """A line for each item of its lists."""
    lines = []
    for key, value in values.items():
        many = isinstance(value, list)
        text = ",\n  ".join(json.dumps(x, ensure_ascii=False) for x in (value if many else [value]))
        lines.append(f" {json.dumps(key)}: " + (f"[\n  {text}\n ]" if many else text))
    (recorded.FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def write_rotations(values):
    """Arrays by model, layer and name, where what nothing changed is there once, and the rest as text."""
    arrays = {}
    for name, model in values["models"].items():
        arrays |= {f"{name}/{key}": model.pop(key) for key in ("positions", "scale_positions")}
        for layer in model["layers"]:
            own = {key: layer.pop(key) for key in [*layer] if isinstance(layer[key], np.ndarray)}
            for key, value in own.items():
                source = {"rotated": key[0], "attended": f"{key[0]}_rotated"}.get(key[2:])
                if not (source and np.array_equal(value, own[source])):
                    arrays[f"{name}/{layer['index']}/{key}"] = value
    np.savez_compressed(recorded.FOLDER / "hf_rotations.npz", about=json.dumps(values), **arrays)


def main(*arguments):
    sources = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    if sources:
        importlib.import_module("authors").FILES.update(sources)
    for name in [x for x in arguments if "=" not in x] or sorted(OF_CASES | OF_FILES):
        write_rotations(fresh(name)) if name == "hf_rotations" else write(name, fresh(name))


if __name__ == "__main__":
    main(*sys.argv[1:])
