"""Writes to tests/oracles/recorded what other libraries compute: `record.py [NAME…]`, by default for all files.

A case in a file is its inputs. The recorder, a function of a module below with the name of the file, takes them and
returns the rest as numbers or arrays. To record another case, write its inputs into the file and run this, as
`nox -f maintenance.py -s parity -- --record` does. `SOURCE=FILE` names code of authors to run too, see `authors.py`.
"""

import importlib
import json
import sys
from importlib import metadata
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import numpy as np
import torch

from oracles import recorded

MODULES = {
    "attention": "hf_attention hf_layers hf_masks",
    "authors": "authors biases cameras",
    "biases": "content_biases relative_biases",
    "diffusion": "hf_diffusion",
    "placed_biases": "placed_biases",
    "positions": "hf_multimodal qwen_positions rope_index",
    "rotary": "hf_model_types hf_published hf_rotations",
    "towers": "hf_tower_tables hf_towers",
    "vectors": "diffusers_rotations diffusers_timesteps hf_frequencies pope timm_grids timm_resized torch_resized "
    "turns",
}
RECORDERS = {name: module for module, names in MODULES.items() for name in names.split()}
# Files whose recorders take the whole file, not one case.
WHOLE = {"biases", "hf_model_types", "hf_published", "hf_rotations"}
# Digits of floats in a file; by default nine, which determine a float32.
DIGITS = {"biases": 17, "hf_multimodal": 17, "cameras": 12, "hf_diffusion": 7, "hf_towers": 7, "hf_tower_tables": 7}
PEERS = {"PoPE-pytorch", "diffusers", "jax", "timm", "torch", "transformers"}


def read(name):
    return recorded.rotations() if name == "hf_rotations" else recorded.read(name)


def fresh(name):
    """The contents of a file, with values that the installed libraries compute."""
    values, compute = read(name), getattr(importlib.import_module(RECORDERS[name]), name)
    for versions in (values, values.get("versions", {})):
        versions.update({peer: metadata.version(peer) for peer in PEERS & versions.keys()})
    if name in WHOLE:
        return values | compute(values)
    return values | {k: [c | compute(c) for c in x] for k, x in values.items() if isinstance(x, list)}


def as_lists(x, digits=9):
    """An array as JSON has it."""
    x = np.asarray(x.detach() if torch.is_tensor(x) else x)
    if x.ndim:
        return [as_lists(row, digits) for row in x]
    return float(f"{x:.{digits}g}") if x.dtype.kind == "f" else x.item()


def write(name, values):
    """Writes a file, with one line for each item of its lists."""

    def text(x):
        return json.dumps(x, ensure_ascii=False, default=lambda array: as_lists(array, DIGITS.get(name, 9)))

    lines = []
    for key, x in values.items():
        lines.append(
            f" {text(key)}: " + ("[\n  " + ",\n  ".join(map(text, x)) + "\n ]" if type(x) is list else text(x))
        )
    (recorded.FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def write_rotations(values):
    """Writes arrays by model, layer and name; one that a step left unchanged is left out. The rest is a text."""
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
    for name in [x for x in arguments if "=" not in x] or sorted(RECORDERS):
        write_rotations(fresh(name)) if name == "hf_rotations" else write(name, fresh(name))


if __name__ == "__main__":
    main(*sys.argv[1:])
