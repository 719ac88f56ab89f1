"""Writes hf_towers.json and hf_tower_tables.json of tests/oracles/recorded: `nox -s parity -- --record`."""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import numpy as np
import torch
import tower_tables
import towers
import transformers

from oracles import recorded

ABOUT = {
    "about": "Queries and keys of small vision towers with random weights, before and after transformers turns them: of "
    "the first head of the first image, or of all images that share a sequence, and of the first layer of each kind.",
    "command": "nox -s parity -- --record",
    "transformers": transformers.__version__,
    "torch": torch.__version__,
}
ABOUT_TABLES = ABOUT | {
    "about": "Learned tables of small vision towers, the sizes (time, height, width) of images, and the rows that reach "
    "their patches in transformers, in the order in which the tower holds them; one feature of each row.",
}


def _numbers(rows):
    return [[float(f"{x:.7g}") for x in row] for row in rows]


def describe(model_type):
    """The config of a small tower, its images, and what some tokens of its layers look like."""
    made, kinds, found = towers.plan(model_type), set(), []
    for of in towers.attentions(model_type, made):
        kind = made.layers[of.layer], made.grids[of.layer], of.role, of.memory
        if kind in kinds or of.role == "key" and not of.memory:
            continue
        kinds.add(kind)
        count = of.rest.shape[2]
        tokens = np.random.default_rng(1).permutation(count)[:8]
        before, after = (_numbers(x[0, 0, tokens]) for x in (of.rest, of.moved))
        found.append({"layer": of.layer, "memory": of.memory, "count": count, "tokens": tokens.tolist()})
        found[-1] |= {"before": before, "after": after}
    config = {"model_type": model_type} | towers.settings_of(model_type)
    attending = sorted({*towers.layers_of(model_type)})
    return {"config": config, "images": towers.CASES[model_type].images, "attending": attending, "layers": found}


def describe_table(model_type):
    """The table of a small tower and what reaches its patches."""
    case, size = tower_tables.case(model_type), towers.settings_of(model_type)
    table = _numbers(case["table"][..., 0])
    rows = _numbers(case["rows"].T)[0]
    return {"config": {"model_type": model_type} | size, "images": case["images"], "table": table, "rows": rows}


def _write(name, about, cases):
    """A line for each case."""
    lines = ",\n".join(json.dumps(case) for case in cases)
    text = f'{json.dumps(about, indent=1)[:-2]},\n "cases": [\n{lines}\n]\n}}\n'
    (recorded.FOLDER / name).write_text(text, encoding="utf-8")


def record():
    """A line for each tower."""
    _write("hf_towers.json", ABOUT, map(describe, sorted(towers.CASES)))
    _write("hf_tower_tables.json", ABOUT_TABLES, map(describe_table, sorted(tower_tables.TABLES)))


if __name__ == "__main__":
    record()
