"""Classes of transformers: configs, the code of a config, its class for frequencies, and the spectra that it makes."""

import contextlib
import copy
import functools
import importlib.util
import inspect
import os
import re

import torch
import transformers
from transformers import AutoConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

# Classes of rotary embeddings that return sines before cosines.
SINES_FIRST = {"CodeGenRotaryEmbedding", "GPTJRotaryEmbedding"}


def modeling(name):
    """The module with the models of a folder of transformers."""
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def config_of(written):
    """The config that transformers makes of a config.json."""
    return AutoConfig.for_model(**copy.deepcopy(written))


def eager(config):
    """The config, of models with eager attention."""
    config._attn_implementation = "eager"
    return config


def borrowed_class(config):
    """The model class of another type, for a config whose type has no code of its own; None if it has code."""
    name = type(config).__module__.replace(".configuration_", ".modeling_")
    if importlib.util.find_spec(name) or not isinstance(MODEL_MAPPING_NAMES.get(config.model_type), str):
        return None
    return getattr(transformers, MODEL_MAPPING_NAMES[config.model_type])


def modeling_of(config):
    """The module with the models of a configuration."""
    borrowed = borrowed_class(config)
    name = borrowed.__module__ if borrowed else type(config).__module__.replace(".configuration_", ".modeling_")
    return importlib.import_module(name)


def model_class(config, name=None):
    """The class with this name in the module of a configuration, or else its first model, encoder or decoder."""
    if name:
        return getattr(modeling_of(config), name)
    return next(
        value
        for name, value in vars(modeling_of(config)).items()
        if inspect.isclass(value) and issubclass(value, PreTrainedModel) and value.config_class is type(config)
        if name.endswith(("Model", "Encoder", "Decoder")) and not name.endswith("PreTrainedModel")
    )


def new_embedding(config, code=None):
    """A new rotary embedding for a config: of the classes in its module, or in `code`, the one named most like it."""
    names = {x.__name__: x for x in code} if code else vars(modeling_of(config))
    alike = lambda name: len(os.path.commonprefix([name, type(config).__name__]))  # noqa: E731
    named = [name for name in names if name.endswith("RotaryEmbedding")]
    return names[max(named, key=lambda name: (alike(name), -len(name)))](config)


# The names that DeepSeek-V4 has for the spectra of its layer types.
_LABELS = dict.fromkeys(("compressed_sparse_attention", "heavily_compressed_attention"), "compress")
_LABELS["sliding_attention"] = "main"


def spectra_of(embedding, kinds, length=None):
    """By kind of layer, the float32 frequencies and the amplitude of cosines and sines; None without frequencies.

    The amplitude is the factor of the class; with a length, the cosine at position 0 of a sequence of that length.
    """
    result = {}
    for kind in kinds:
        label = next((x for x in (kind, _LABELS.get(kind)) if hasattr(embedding, f"{x}_inv_freq")), "")
        prefix = label and f"{label}_"
        if not hasattr(embedding, f"{prefix}inv_freq"):
            result[kind] = None
            continue
        amplitude = getattr(embedding, f"{prefix}attention_scaling", 1.0)
        if length:
            amplitude = _cosine(embedding, {"layer_type": label} if label else {}, length, amplitude)
        result[kind] = getattr(embedding, f"{prefix}inv_freq").float().numpy(), float(amplitude)
    return result


def _cosine(embedding, options, length, usual):
    """The cosine at position 0, computed with the last position; the usual amplitude of a class without cosines."""
    positions = torch.tensor([[0, length - 1]])
    try:
        waves = embedding(torch.zeros(1, 2, 8), positions, **options)
    except (IndexError, RuntimeError):  # positions of several coordinates
        waves = embedding(torch.zeros(1, 2, 8), positions.expand(3, 1, 2), **options)
    return waves[0].flatten()[0] if isinstance(waves, tuple) else usual


@functools.cache
def keys_of(config_class):
    """The keys that a configuration class knows: its fields, their other names, and those that its code takes out."""
    names = {*config_class.attribute_map, *config_class.attribute_map.values()}
    for base in config_class.__mro__:
        names |= {*getattr(base, "__annotations__", {})}
        if base.__module__.startswith("transformers.models"):
            names |= {*re.findall(r"kwargs\.(?:get|pop|setdefault)\(\s*\"(\w+)\"", inspect.getsource(base))}
    return frozenset(names)


@contextlib.contextmanager
def at_rest(model):
    """A context in which all rotary embeddings of a model return cosines of 1 and sines of 0."""

    def still(module, args, waves):
        if not isinstance(waves, tuple):
            return torch.ones_like(waves)
        zeros, ones = torch.zeros_like(waves[0]), torch.ones_like(waves[1])
        return (zeros, ones) if type(module).__name__ in SINES_FIRST else (ones, zeros)

    with contextlib.ExitStack() as stack:
        for module in model.modules():
            if type(module).__name__.endswith(("RotaryEmbedding", "RopePositionEmbedding")):
                stack.callback(module.register_forward_hook(still).remove)
        yield
