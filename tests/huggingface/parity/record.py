"""Writes to tests/oracles/recorded what transformers computes: `nox -s parity -- --record`."""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import families
import models
import numpy as np
import spectra
import torch
import transformers

from oracles import recorded

ABOUT = {
    "about": "Rotary embeddings as transformers computes them, for small randomly initialised models.",
    "command": "nox -s parity -- --record",
    "transformers": transformers.__version__,
    "torch": torch.__version__,
}
_ARRAYS = ("q", "k", "q_rotated", "k_rotated", "q_attended", "k_attended", "frequencies")


def _write(name, cases):
    lines = ",\n".join(map(json.dumps, cases))
    text = f'{json.dumps(ABOUT, indent=1)[:-2]},\n "cases": [\n{lines}\n]\n}}\n'
    (recorded.FOLDER / name).write_text(text, encoding="utf-8")


def record():
    """Frequencies as text, a line for each case; rotations as arrays, with their description as text."""
    _write("hf_frequencies.json", map(spectra.describe, spectra.cases()))
    kept = [c for c in recorded.cases("hf_model_types") if c["config"]["model_type"] not in families.CONFIG_MAPPING]
    types = [*kept, *map(families.describe, families.TYPES)]  # kept: of a newer release than the installed one
    _write("hf_model_types.json", sorted(types, key=lambda case: case["config"]["model_type"]))

    about, arrays = {**ABOUT, "models": {}}, {}
    for case in models.CASES:
        model = models.describe(case)
        for layer in model["layers"]:
            for key in _ARRAYS:
                source = {"rotated": key[0], "attended": f"{key[0]}_rotated"}.get(key[2:])
                value = layer.get(key)
                if value is not None and not (source and np.array_equal(value, layer[source])):
                    arrays[f"{case.name}/{layer['index']}/{key}"] = value
        for key in ("positions", "scale_positions"):
            arrays[f"{case.name}/{key}"] = model.pop(key)
        model["layers"] = [{k: x for k, x in y.items() if k not in _ARRAYS} for y in model["layers"]]
        about["models"][case.name] = model
    np.savez_compressed(recorded.FOLDER / "hf_rotations.npz", about=json.dumps(about), **arrays)


if __name__ == "__main__":
    record()
