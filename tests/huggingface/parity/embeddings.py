"""The class for frequencies of a configuration of transformers, its frequencies and the amplitude of its waves."""

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

# Classes for waves that return sines first.
SINES_FIRST = {"CodeGenRotaryEmbedding", "GPTJRotaryEmbedding"}


def config_of(written):
    """The config that transformers makes of a config.json."""
    return AutoConfig.for_model(**copy.deepcopy(written))


def borrowed_class(config):
    """The model of another type that a configuration without code of its own has; None if it has code."""
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
    """The rotary embedding of a configuration in its module or some code, of a name most like that of its class."""
    names = {x.__name__: x for x in code} if code else vars(modeling_of(config))
    alike = lambda name: len(os.path.commonprefix([name, type(config).__name__]))  # noqa: E731
    named = [name for name in names if name.endswith("RotaryEmbedding")]
    return names[max(named, key=lambda name: (alike(name), -len(name)))](config)


# The names that DeepSeek-V4 has for the spectra of its layer types.
_LABELS = {
    "sliding_attention": "main",
    "compressed_sparse_attention": "compress",
    "heavily_compressed_attention": "compress",
}


def prefix_of(embedding, kind):
    """What the names of a class for frequencies begin with for a kind of layer."""
    names = (kind, _LABELS.get(kind))
    return next((f"{name}_" for name in names if hasattr(embedding, f"{name}_inv_freq")), "")


def inverse_frequencies(embedding, kinds):
    """Of each kind of layer the frequencies, float32, or None, and the factor that the class has for its waves."""
    result = {}
    for kind in kinds:
        prefix = prefix_of(embedding, kind)
        inverse = getattr(embedding, f"{prefix}inv_freq", None)  # none for layers that are no attention
        factor = getattr(embedding, f"{prefix}attention_scaling", 1.0)
        result[kind] = None if inverse is None else (inverse.float().numpy(), factor)
    return result


def embedding_of(config, length):
    """The rotary embedding of a configuration, told of the last position of a sequence of this length."""
    embedding = new_embedding(config)
    kinds = [name.removesuffix("_inv_freq") for name in dict(embedding.named_buffers()) if name.endswith("_inv_freq")]
    kinds = [kind for kind in kinds if "original" not in kind] or [""]
    embedding.amplitudes = {kind: _amplitude(embedding, kind, length) for kind in kinds}
    return embedding


def _amplitude(embedding, kind, length):
    """The cosine at position 0, computed with the last position; what the class says if it returns no cosines."""
    positions, of_kind = torch.tensor([[0, length - 1]]), {"layer_type": kind} if kind else {}
    try:
        waves = embedding(torch.zeros(1, 2, 8), positions, **of_kind)
    except (IndexError, RuntimeError):  # positions of several coordinates
        waves = embedding(torch.zeros(1, 2, 8), positions.expand(3, 1, 2), **of_kind)
    if isinstance(waves, tuple):
        return float(waves[0].flatten()[0])
    return float(getattr(embedding, f"{kind}_attention_scaling" if kind else "attention_scaling", 1.0))


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
    """A model in which all cosines are 1 and all sines 0."""

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
