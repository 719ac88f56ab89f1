"""Writes tests/oracles/recorded/hf_nulls.json: what a null says to the config classes of transformers.

    nox -s parity -- --record

does, for the types and keys that the file has. Types that the installed transformers does not have stay as they are.
"""

import copy
import importlib
import json
import logging
import pkgutil
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import transformers  # noqa: E402
from transformers.configuration_utils import PreTrainedConfig  # noqa: E402

from oracles.recorded import FOLDER, cases  # noqa: E402

PATH = FOLDER / "hf_nulls.json"
RECORDED = {case["config"]["model_type"]: case["config"] for case in cases("hf_model_types")}


def config_classes():
    """The first config class of each type."""
    found = {}
    for package in pkgutil.iter_modules(transformers.models.__path__):
        try:
            module = importlib.import_module(f"transformers.models.{package.name}.configuration_{package.name}")
        except ImportError:
            continue
        for value in vars(module).values():
            own = (
                isinstance(value, type) and issubclass(value, PreTrainedConfig) and value.__module__ == module.__name__
            )
            if own:
                found.setdefault(value.model_type, value)
    return found


def read(of_type, config):
    """What the class makes of a config, or None if it refuses it."""
    try:
        given = {name: value for name, value in copy.deepcopy(config).items() if name != "model_type"}
        return of_type(**given).to_dict()
    except Exception:  # whatever it raises
        return None


def said(of_type, config, key):
    """What a null says that a missing key does not."""
    without = {name: value for name, value in config.items() if name != key}
    missing, null = read(of_type, without), read(of_type, without | {key: None})
    if missing is None:
        return None
    if null is None:
        return "refused"
    same = all(missing.get(name) == null.get(name) for name in missing | null)
    return None if same else "another value"


def record():
    """A line for each key."""
    logging.disable(logging.CRITICAL)
    old, classes = json.loads(PATH.read_text(encoding="utf-8")), config_classes()
    types = old["types"].split()
    lines = []
    for key in old["nulls"]:
        names = {}
        before = {name: kind for kind, of_kind in old["nulls"][key].items() for name in of_kind.split()}
        for name in types:
            has = name in classes
            if kind := said(classes[name], RECORDED.get(name, {}), key) if has else before.get(name):
                names.setdefault(kind, []).append(name)
        lines.append(f'  "{key}": {json.dumps({kind: " ".join(names[kind]) for kind in sorted(names)})}')
    head = {
        "about": old["about"],
        "command": "nox -s parity -- --record",
        "transformers": transformers.__version__,
        "types": " ".join(types),
    }
    text = [f' "{name}": {json.dumps(value)}' for name, value in head.items()]
    PATH.write_text(
        "{\n" + ",\n".join([*text, ' "nulls": {\n' + ",\n".join(lines) + "\n }"]) + "\n}\n", encoding="utf-8"
    )


if __name__ == "__main__":
    record()
