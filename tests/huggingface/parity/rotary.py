"""What transformers makes of rope settings, and what the rotary code of small models does to queries and keys.

A forward pass runs with the model's own functions; the ones that rotate and the one that attends are wrapped, to see what
goes in and what comes out.
"""

import contextlib
import sys
from unittest import mock

import families
import torch
from embeddings import config_of, inverse_frequencies, new_embedding
from transformers import AutoModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


def frequencies(case):
    """Those of a config, told of the length of a sequence if its settings depend on it."""
    config, rope = config_of(case["config"]), case["config"]["rope_parameters"]
    embedding = new_embedding(config)
    inverse, factor = embedding.inv_freq, embedding.attention_scaling
    if case["length"] and "alpha" not in rope:
        inverse, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, seq_len=case["length"])
    return {"attention_factor": float(factor), "frequencies": [float(str(x)) for x in inverse.numpy()]}


PROJECTIONS = "q_proj", "k_proj"
ROTATIONS = "apply_rotary_pos_emb", "apply_rotary_emb", "apply_rotary_pos_emb_interleave"


def captured(model, inputs):
    """By the index of the layer, what attends and how it came about: query, key, (before, after) of each, scale."""
    code, pending, projected, layers = sys.modules[type(model).__module__], [], {}, {}

    def rotating(function):
        def wrapped(*args, **kwargs):
            result = function(*args, **kwargs)
            # (q, k, …) → (q', k'), or one tensor at a time.
            pairs = zip(args, result, strict=False) if isinstance(result, tuple) else [(args[0], result)]
            pending.extend((before.clone(), after.clone()) for before, after in pairs)
            return result

        return wrapped

    def attending(function):
        def wrapped(module, query, key, *args, **kwargs):
            scale = kwargs.get("scaling", getattr(module, "scaling", None))
            own = [projected.get(name) for name in PROJECTIONS]
            layers[getattr(module, "layer_idx", 0)] = (query.clone(), key.clone(), pending[:], own, scale)
            pending.clear()
            return function(module, query, key, *args, **kwargs)

        return wrapped

    for name, module in model.named_modules():
        if name.endswith(PROJECTIONS):
            keep = lambda _, args, output, name=name[-6:]: projected.__setitem__(name, output.clone())  # noqa: E731
            module.register_forward_hook(keep)
    # GPT-J attends in a method.
    holder, attend = (code, "eager_attention_forward") if hasattr(code, "eager_attention_forward") else (None, "_attn")
    holder = holder or code.GPTJAttention
    patches = [(holder, attend, attending)] + [(code, name, rotating) for name in ROTATIONS if hasattr(code, name)]
    with contextlib.ExitStack() as stack, torch.no_grad():
        for owner, name, wrap in patches:
            stack.enter_context(mock.patch.object(owner, name, wrap(getattr(owner, name))))
        model(**inputs)
    assert not pending
    return layers


def model_types(values):
    """What classes make up, by type; types that are not installed stay as they are."""
    cases = {case["config"]["model_type"]: case for case in values["cases"]}
    cases |= {name: families.describe(config) for name, config in families.TYPES.items()}
    return {"cases": [cases[name] for name in sorted(cases)]}


def rotations(values):
    """Of each model its layers, whose arrays are (batch, heads, seq, head_dim)."""
    return {"models": {name: model | described(name, model) for name, model in values["models"].items()}}


def described(name, model):
    config, positions = config_of(model["config"]), torch.tensor(model["positions"], dtype=torch.int64)
    torch.manual_seed(sum(map(ord, name)))
    net = AutoModel.from_config(config, attn_implementation="eager").eval()
    batch, length = positions.shape[:2]
    positions = positions.movedim(-1, 0) if positions.ndim == 3 else positions
    tokens = torch.arange(3, 3 + batch * length).reshape(batch, length)
    layers = captured(net, {"input_ids": tokens, "position_ids": positions})
    return {"layers": [_layer(config, net, index, *layers[index]) for index in sorted(layers)]}


def _layer(config, model, index, query, key, rotated, projected, scale):
    kinds, length, width = getattr(config, "layer_types", None), query.shape[2], query.shape[-1]
    kind = kinds[index] if kinds else "full_attention"
    result = {"index": index, "kind": kind, "softmax_scale": scale, "turns": bool(rotated)}
    if not rotated:
        rotated = [(x.unflatten(-1, (-1, width)),) * 2 for x in projected]
    elif config.model_type == "gptj":  # has no settings, and keeps a table of sines; it rotates the key first
        rotated, n = rotated[::-1], config.rotary_dim
        inverse, factor = (1.0 / (10000 ** (torch.arange(0, n, 2, dtype=torch.int64) / n))).numpy(), 1.0
        result |= {"rope": {"rope_type": "default", "rope_theta": 10_000.0}, "head_dim": n}
        result["softmax_scale"] = None  # of which its code tells since transformers 5.24 alone
    else:
        inverse, factor = inverse_frequencies(model.rotary_emb, [kind])[kind]
        result["rope"] = dict(config.rope_parameters.get(kind, config.rope_parameters))
        result["head_dim"] = getattr(config, "qk_rope_head_dim", width)
    if result["turns"]:
        result |= {"frequencies": inverse.copy(), "attention_factor": float(factor)}
    for name, final, pair in zip("qk", (query, key), rotated, strict=True):
        pair = [x if x.shape[2] == length else x.transpose(1, 2) for x in pair]  # heads before the sequence
        full = [_placed(final, x, pair[1]) for x in pair]
        result |= {
            f"{name}{of}": x.numpy() for of, x in zip(("", "_rotated", "_attended"), (*full, final), strict=True)
        }
    return result


def _placed(final, part, after):
    """`part` among the features that the attention gets, where it has `after`: all, the first or the last."""
    width = part.shape[-1]
    if width == final.shape[-1]:
        return part
    ends = slice(None, width), slice(-width, None)
    (where,) = (s for s in ends if torch.equal(final[..., s], after.expand_as(final[..., s])))
    result = final.clone()
    result[..., where] = part.expand_as(result[..., where])
    return result
