"""Small models of every type, run forward, with a record of the queries and keys that their layers attend with.

The attention that records returns zeros, so hidden states do not depend on positions. A pass at rest, in which all
cosines are 1 and all sines 0, records queries and keys before their rotation; a second pass records them after it.
"""

import contextlib
import copy
import functools
from typing import NamedTuple
from unittest import mock

import numpy as np
import small
import torch
from embeddings import at_rest, borrowed_class, model_class, modeling_of
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

POSITIONS = np.array([0, 1, 7, 37, 150, 299, 5_000, 100_000], np.int32)

# Models


def make_config(model_type, settings=None):
    """A small config: the settings of `COMMON` that its class knows, and those of `BY_TYPE` or `settings`."""
    config_class = CONFIG_MAPPING[model_type]
    known = config_class().to_dict().keys() | config_class.attribute_map
    common = {name: value for name, value in small.COMMON.items() if name in known}
    own = small.BY_TYPE.get(model_type, {}) if settings is None else settings
    return config_class(**copy.deepcopy(common | own))  # some classes change them


def make_model(model_type):
    """A model with weights from a fixed seed."""
    config, attention = make_config(model_type), "eager" if model_type in small.EAGER else "record"
    torch.manual_seed(0)
    cls = borrowed_class(config) or model_class(config, small.CLASSES.get(model_type))
    model = cls._from_config(config, attn_implementation=attention, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "experts" in name or not weight.any():  # left as memory has them, or hiding what they multiply
                weight.normal_(std=0.1)
        for name, buffer in model.named_buffers():
            if name.endswith(".alpha"):  # what is learned of frequencies, a parameter since transformers 5.24
                buffer.normal_(std=0.1)
    return model


def learned(model, names):
    """Arrays of a model by their names in checkpoints."""
    arrays, result = dict(model.named_parameters()) | dict(model.named_buffers()), {}
    for name in names:
        renamed = functools.reduce(lambda x, pair: x.replace(*pair), small.RENAMED.items(), name)
        if renamed in arrays:
            result[name] = arrays[renamed].detach().numpy()
    return result


def _call(model, positions):
    """The output for a row of equal tokens at positions of shape (seq,) or (seq, coordinates)."""
    model_type, ids, positions = model.config.model_type, torch.full((1, len(positions)), 5), torch.tensor(positions)
    inputs = {
        "attention_mask": torch.ones_like(ids),  # without it, transformers cuts the row where positions jump
        "position_ids": positions[None] if positions.ndim == 1 else positions.T[:, None],
        "use_cache": False,
    }
    if model_type in small.EMBEDDED:
        inputs["inputs_embeds"] = torch.nn.functional.one_hot(ids, model.config.hidden_size).float()
    elif model_type in small.CODEBOOKS:
        inputs["input_ids"] = ids[..., None].expand(-1, -1, small.CODEBOOKS[model_type])
    else:
        inputs["input_ids"] = ids
    inputs |= small.INPUTS.get(model_type, {})
    inputs = small.INDEXED.get(model_type, inputs)
    with torch.no_grad():
        return model(**{name: value for name, value in inputs.items() if value is not None})


# Records


class Call(NamedTuple):
    """What one layer attends with: queries and keys (batch, heads, seq, features), a factor of scores, a mask."""

    query: np.ndarray
    key: np.ndarray
    scaling: float | None = None
    mask: torch.Tensor | None = None


class Calls(NamedTuple):
    """The calls of one pass, by the index of the layer."""

    attention: dict[int, Call]
    indexer: dict[int, Call]  # of sparse attention


_calls = Calls({}, {})  # of the pass in progress


def _record(module, query, key, value, attention_mask=None, scaling=None, **_):
    """Attention that returns zeros, (batch, seq, heads, features)."""
    if not ("Cross" in type(module).__name__ or getattr(module, "is_cross_attention", False)):
        own = key[..., : query.shape[-2], :]  # keys of an encoder may follow
        _calls.attention.setdefault(_index(module), Call(query.numpy(), own.numpy(), scaling, attention_mask))
    return query.new_zeros(query.shape[0], *query.shape[2:0:-1], value.shape[-1]), None


def _index(module):
    """The index of a module's layer; if modules run several times, each time counts as one layer."""
    index = getattr(module, "layer_idx", None)
    return len(_calls.attention) if index is None or type(module).__name__ in small.REPEATING else index


AttentionInterface.register("record", _record)
AttentionMaskInterface.register("record", eager_mask)


def _record_products(calls, module, forward, *args, **kwargs):
    """Calls a module and records its queries and keys, the factors of its first product or of one product per query."""
    products, multiply = [], torch.matmul

    def matmul(q, k):
        products.append((q, k))
        return multiply(q, k) if products[1:] else 0 * multiply(q, k)

    with mock.patch.object(torch, "matmul", matmul):
        result = forward(*args, **kwargs)
    q, k = products[0]
    if q.ndim == 2:
        q, k = torch.stack([q for q, _ in products], 1)[None], products[-1][1][None, None]
    q = q if q.shape[2] == k.shape[3] else q.transpose(1, 2)
    calls.setdefault(_index(module), Call(q.numpy(), k.transpose(2, 3).numpy()))
    return result


_INTO_HALVES = "apply_rotary_pos_emb_interleave"


def _rotate_in_place(rotate, rest, q, k, *args, **kwargs):
    """Rotates pairs of neighbours, and puts features back in place, which `rotate` also sorts into halves."""
    if rest:
        return q, k
    return [x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2) for x in rotate(q, k, *args, **kwargs)]


def recorded(model, positions, rest=False):
    """The calls of a pass over a row of equal tokens, at rest or at positions."""
    modeling, model_type = modeling_of(model.config), model.config.model_type
    still = small.STILL.get(model_type)
    for calls in _calls:
        calls.clear()
    with contextlib.ExitStack() as stack:

        def patch(path, function, owner=modeling):
            *owners, name = path.split(".")
            stack.enter_context(mock.patch.object(functools.reduce(getattr, owners, owner), name, function))

        if rest:
            stack.enter_context(at_rest(model))
            if still:
                patch(*still)
        if rotate := getattr(modeling, _INTO_HALVES, None):
            patch(_INTO_HALVES, functools.partial(_rotate_in_place, rotate, rest))
        for module in model.modules():
            name = type(module).__name__
            calls = _calls.indexer if name.endswith("Indexer") else _calls.attention
            if name.endswith("Indexer") or name in small.MULTIPLYING:
                patch("forward", functools.partial(_record_products, calls, module, module.forward), module)
        _call(model, positions)
    return Calls(*map(dict, _calls))
