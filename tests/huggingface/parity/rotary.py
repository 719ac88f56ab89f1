"""Records frequencies of transformers for model types and published configs, and queries and keys of small models.

A forward pass runs with the model's own functions; those for rotations and attention are wrapped, to record their
inputs and outputs.
"""

import json
import sys
import warnings
from unittest import mock

import record_facts
import torch
from embeddings import config_of, new_embedding, spectra_of
from transformers import AutoModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from oracles import recorded
from posenc_jax.hf import _models

# Model types

# Types without a class for frequencies or without any rotation, and another name of Evolla.
_WITHOUT = set("codegen gptj roformer glm5_next_text jamba kimi_linear nemotron_h EvollaModel".split())
TYPES = {name: {"model_type": name} for name in sorted(_models.MODELS.keys() & {*CONFIG_MAPPING} - _WITHOUT)}
# A recorded config replaces the defaults of its class: some defaults make no model with rotary layers.
TYPES |= {
    x["model_type"]: x for case in recorded.cases("hf_model_types") if (x := case["config"])["model_type"] in TYPES
}
# Keys that a recorded config has; other keys on rotations get the values of the class.
_RECORDED = """
    model_type hidden_size d_model num_hidden_layers num_layers num_layers_per_stack n_layers decoder_num_hidden_layers
    num_attention_heads n_heads decoder_num_attention_heads qk_nope_head_dim qk_rope_head_dim max_position_embeddings
    position_embedding_type global_head_dim cross_attention_layers block_types index_head_dim
""".split()


def hf_model_types(values):
    """The cases of all types by their classes; cases of types that are not installed stay as they are."""
    cases = {case["config"]["model_type"]: case for case in values["cases"]}
    cases |= {name: _described(config) for name, config in TYPES.items()}
    return {"cases": [cases[name] for name in sorted(cases)]}


def _described(written):
    """The case of a config: its keys, layout, spectra (pairs, slowest frequency, amplitude) and rotating layers."""
    config = config_of(written)
    embedding = new_embedding(config)
    if config.model_type == "nanochat":  # rotates backwards
        embedding.inv_freq = -embedding.inv_freq
    if config.model_type == "ernie4_5_vl_moe_text":  # its frequencies of height, of width and of time are contiguous
        embedding.inv_freq = embedding.recomposition_frequencies(embedding.inv_freq.expand(3, -1))[::2]
    spectra = {
        (len(inverse), float(str(min(inverse[inverse != 0], key=abs))), factor)
        for inverse, factor in filter(
            None, spectra_of(embedding, getattr(config, "layer_types", None) or [""]).values()
        )
    }
    values = config.to_dict()
    said = {key: values[key] for key in (*_RECORDED, *written, "transformers_version") if values.get(key) is not None}
    said |= {key: dict(sorted(value.items())) for key, value in said.items() if isinstance(value, dict)}
    turns = getattr(config, "no_rope_layers", None)  # one where a layer has positions
    bases = getattr(config, "layer_rope_theta", None) or ()
    turns = [int(base != 0) for base in bases] if 0 in bases else turns or None
    layout = record_facts.layout_of_functions(record_facts.code_of(type(config)))
    return {"config": said, "layout": layout, "spectra": sorted(spectra), "turns": turns}


# Published configs

LENGTH = 4097  # above the original length of Phi-3
# transformers 5.23.0 drops the outer base of Fuyu, the decoder_config of VibeVoice and the attn_config of DBRX, and
# does not have EXAONE.
_UNREAD = {"dbrx", "fuyu", "vibevoice", "exaone"}


def language_config(config):
    """The config of the language model in a file, by its class in transformers; None if no class reads the file."""
    name = config.get("model_type")
    if name not in CONFIG_MAPPING or name in _UNREAD:
        return None
    whole = CONFIG_MAPPING[name].from_dict(json.loads(json.dumps(config)))
    return getattr(whole, "thinker_config", whole).get_text_config(decoder=True)


def _spectra(config):
    """The amplitude and the frequencies of each layer, None if there are none, or why the class fails."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of deprecated keys
            language = language_config(config)
            if not language:
                return None
            kinds = getattr(language, "layer_types", None) or ["full_attention"] * language.num_hidden_layers
            found = spectra_of(new_embedding(language), kinds, LENGTH)
            assert any(found.values())  # GPT-J's class of transformers 5.24 keeps no frequencies
    except Exception as error:  # transformers fails in many ways on files that it does not read
        return f"{type(error).__name__}: {error}"[:100]
    # Sorted, as ERNIE has another order; None for layers without attention or positions.
    own = {k: x and (x[1], *sorted((float(str(w)) for w in x[0]), reverse=True)) for k, x in found.items()}
    return [own[kind] for kind in kinds]


def hf_published(values):
    """Each spectrum once, and for each layer its spectrum's number; types that are not installed stay as they are."""
    numbers, cases = {}, []
    for case in values["cases"]:
        before, layers = case["layers"], _spectra(case["config"])
        if layers is None and isinstance(before, list):
            layers = [None if i is None else tuple(values["spectra"][i]) for i in before]
        if isinstance(layers, str) and isinstance(before, str):
            layers = before  # another message of a failure is no change
        if isinstance(layers, list):
            layers = [x and numbers.setdefault(x, len(numbers)) for x in layers]
        cases.append(case | {"layers": layers})
    return {"spectra": [*numbers], "cases": cases}


# Rotations

_PROJECTIONS = "q_proj", "k_proj"
_ROTATIONS = "apply_rotary_pos_emb", "apply_rotary_emb", "apply_rotary_pos_emb_interleave"


def hf_rotations(values):
    """The layers of each model, with arrays (batch, heads, seq, head_dim)."""
    return {"models": {name: model | {"layers": _layers(name, model)} for name, model in values["models"].items()}}


def _layers(name, model):
    config, positions = config_of(model["config"]), torch.tensor(model["positions"], dtype=torch.int64)
    torch.manual_seed(sum(map(ord, name)))
    net = AutoModel.from_config(config, attn_implementation="eager").eval()
    batch, length = positions.shape[:2]
    tokens = torch.arange(3, 3 + batch * length).reshape(batch, length)
    positions = positions.movedim(-1, 0) if positions.ndim == 3 else positions
    calls = _captured(net, {"input_ids": tokens, "position_ids": positions})
    return [_layer(config, net, index, *calls[index]) for index in sorted(calls)]


def _captured(model, inputs):
    """A forward pass, by the index of the layer.

    Each layer has its query and key in attention, pairs (before, after) of the rotation, projections and scale.
    """
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
            own = [projected.get(name) for name in _PROJECTIONS]
            layers[getattr(module, "layer_idx", 0)] = (query.clone(), key.clone(), pending[:], own, scale)
            pending.clear()
            return function(module, query, key, *args, **kwargs)

        return wrapped

    for name, module in model.named_modules():
        if name.endswith(_PROJECTIONS):

            def keep(_, args, output, name=name[-6:]):
                projected[name] = output.clone()

            module.register_forward_hook(keep)
    patches = {name: rotating(getattr(code, name)) for name in _ROTATIONS if hasattr(code, name)}
    patches["eager_attention_forward"] = attending(code.eager_attention_forward)
    with mock.patch.multiple(code, **patches), torch.no_grad():
        model(**inputs)
    assert not pending
    return layers


def _layer(config, model, index, query, key, rotated, projected, scale):
    kinds, length, width = getattr(config, "layer_types", None), query.shape[2], query.shape[-1]
    kind = kinds[index] if kinds else "full_attention"
    result = {"index": index, "softmax_scale": scale, "turns": bool(rotated)}
    if not rotated:
        rotated = [(x.unflatten(-1, (-1, width)),) * 2 for x in projected]
    else:
        inverse, factor = spectra_of(model.rotary_emb, [kind])[kind]
        rope = dict(config.rope_parameters.get(kind, config.rope_parameters))
        result |= {"rope": rope, "frequencies": inverse.copy(), "attention_factor": factor}
    for name, final, pair in zip("qk", (query, key), rotated, strict=True):
        pair = [x if x.shape[2] == length else x.transpose(1, 2) for x in pair]  # heads before the sequence
        before, after = (_placed(final, x, pair[1]).numpy() for x in pair)
        result |= {name: before, f"{name}_rotated": after, f"{name}_attended": final.numpy()}
    return result


def _placed(final, part, after):
    """`final`, the features in attention, with `part` in place of the rotated features `after`: all, first or last."""
    width = part.shape[-1]
    if width == final.shape[-1]:
        return part
    ends = slice(None, width), slice(-width, None)
    (where,) = (s for s in ends if torch.equal(final[..., s], after.expand_as(final[..., s])))
    result = final.clone()
    result[..., where] = part.expand_as(result[..., where])
    return result
