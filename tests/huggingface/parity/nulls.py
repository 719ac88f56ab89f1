"""What a null says to the config classes of transformers that a missing key does not."""

import copy
import importlib
import logging
import pkgutil
import warnings

import transformers
from transformers.configuration_utils import PreTrainedConfig

from oracles import recorded as oracle


def config_classes():
    """The first config class of each type."""
    found = {}
    for package in pkgutil.iter_modules(transformers.models.__path__):
        try:
            code = importlib.import_module(f"transformers.models.{package.name}.configuration_{package.name}")
        except ImportError:
            continue
        for value in vars(code).values():
            is_config = isinstance(value, type) and issubclass(value, PreTrainedConfig)
            if is_config and value.__module__ == code.__name__:
                found.setdefault(value.model_type, value)
    return found


def read(config_class, config):
    """What the class makes of a config, or None if it refuses it."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of deprecated keys
            return config_class(**copy.deepcopy(config)).to_dict()
    except Exception:  # whatever it raises
        return None


def said(config_class, config, key):
    missing, null = read(config_class, config), read(config_class, config | {key: None})
    if missing is None or null is None:
        return "refused" if missing else None
    same = all(missing.get(name) == null.get(name) for name in missing | null)
    return None if same else "another value"


def recorded(values):
    """By key and kind, the types; those that the installed transformers does not have stay as they are."""
    logging.disable(logging.CRITICAL)
    classes, result = config_classes(), {}
    configs = {case["config"]["model_type"]: case["config"] for case in oracle.cases("hf_model_types")}
    for key, kinds in values["nulls"].items():
        before = {name: kind for kind, names in kinds.items() for name in names.split()}
        result[key] = names = {}
        for name in values["types"].split():
            config = {k: x for k, x in configs.get(name, {}).items() if k not in (key, "model_type")}
            if kind := said(classes[name], config, key) if name in classes else before.get(name):
                names.setdefault(kind, []).append(name)
        result[key] = {kind: " ".join(names[kind]) for kind in sorted(names)}
    return {"nulls": result}
