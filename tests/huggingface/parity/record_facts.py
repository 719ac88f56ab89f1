"""Writes posenc_jax/hf/facts.json: what the config classes and the code of transformers have for each model type.

    nox -s parity -- --facts

does, for the installed release; `python tests/huggingface/parity/record_facts.py --diff` prints what that release would
change beside the file, as Markdown.
"""

import copy
import difflib
import functools
import inspect
import itertools
import json
import logging
import os
import re
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import forward
import torch
import transformers
from embeddings import keys_of, modeling_of
from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from posenc_jax.hf._towers import TOWERS

PATH = Path(__file__).parents[3] / "posenc_jax" / "hf" / "facts.json"
ABOUT = {
    "about": "What config classes and models of transformers do that no config.json contains; what is usual is left out.",
    "command": "nox -s parity -- --facts",
    "transformers": transformers.__version__,
}
# Values on which a plan depends, beside rope_parameters.
SIZES = (
    "num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim", "kv_channels", "attention_head_dim",
    "qk_nope_head_dim", "qk_rope_head_dim", "global_head_dim", "index_head_dim", "indexer_head_dim", "rotary_dim",
    "max_position_embeddings", "original_max_position_embeddings",
)  # fmt: skip
VALUES = SIZES + (
    "sliding_window", "attention_chunk_size", "partial_rotary_factor", "rope_theta", "rope_interleave",
    "indexer_rope_interleave", "no_rope_layer_interval", "attn_scale", "floor_scale", "attn_temperature_tuning",
    "position_embedding_type", "layer_rope_theta", "rotary_pct", "use_mem_rope", "attn_layer_indices", "block_types",
    "full_attn_idxs", "cross_attention_layers", "compress_rope_theta", "swa_rope_theta", "global_rope_theta",
    "local_rope_theta", "rope_local_base_freq",
)  # fmt: skip
TOWER_VALUES = SIZES[:4] + (
    "patch_size", "image_size", "window_size", "spatial_merge_size", "temporal_patch_size", "num_register_tokens",
    "pos_emb_height", "pos_emb_width", "num_position_embeddings", "rope_theta", "fullatt_block_indexes",
    "global_attn_indexes", "num_attention_layers", "memory_attention_hidden_size", "memory_attention_num_layers",
    "memory_attention_num_attention_heads", "memory_attention_rope_theta", "memory_attention_downsample_rate",
    "memory_attention_rope_feat_sizes", "memory_attention_rope_k_sizes",
)  # fmt: skip
BASES = (
    "rope_theta", "rotary_emb_base", "rope_local_base_freq", "global_rope_theta", "local_rope_theta", "swa_rope_theta",
    "compress_rope_theta", "rope_base", "rope_global_base_freq",
)  # fmt: skip
SHARES = {"partial_rotary_factor": 0.5, "rotary_pct": 0.5, "rotary_emb_fraction": 0.5, "rotary_dim": 32}
LAYERS = 13  # of which a pattern of layer types is read
# Keys that every class takes, and the words of names of keys that speak of positions.
TAKEN = {"rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", "max_position_embeddings"}
WORDS = set(
    "rope rotary rotate theta yarn alibi nope ntk logn xpos mrope fope position positional temperature".split()
)
ROTARY = re.compile(r"rotate_half|rotate_every_two|apply_(multimodal_)?rot|RotaryEmbedding|rotary|RopePosition|\brope_")


@functools.cache
def _source(thing):
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return ""


@functools.cache
def _used(thing):
    """The classes and functions of models that the code of a class or function names."""
    names = vars(sys.modules[thing.__module__])
    found = (names.get(word) for word in sorted({*re.findall(r"\b[A-Za-z_]\w+", _source(thing))}))
    return [
        x for x in found
        if (inspect.isclass(x) or inspect.isfunction(x)) and ".modeling_" in x.__module__ and ".auto" not in x.__module__
        if x.__module__.startswith("transformers.models.") and not x.__name__.endswith("PreTrainedModel")
    ]  # fmt: skip


def made(config_class, **settings):
    """A config, or why there is none; classes may change what they are given."""
    try:
        config = config_class(**copy.deepcopy(settings))
        config.allow_global_per_layer_attribute_access = True  # of widths that some layers alone have
        return config
    except Exception as error:
        return error


@functools.cache
def code_of(config_class):
    """The classes and functions that the models of a config class use."""
    try:
        modeling = modeling_of(made(config_class))
    except (ImportError, AttributeError):  # it needs another package
        return ()
    own = [x for x in vars(modeling).values() if inspect.isclass(x) and x.__module__ == modeling.__name__]
    found = [x for x in own if not x.__name__.endswith("PreTrainedModel") and _is_for(x, config_class)]
    todo, seen = found or own, {}
    while todo:
        thing = todo.pop()
        if thing not in seen:
            seen[thing] = None
            todo += _used(thing)
    return tuple(seen)


def _is_for(model, config_class):
    notes = getattr(model.__init__, "__annotations__", {}) if "__init__" in vars(model) else {}
    own = getattr(model, "config_class", None) is config_class
    return own or any(x in (config_class, config_class.__name__) for x in notes.values())


def rotates(config_class):
    """Whether the models of a config class have rotary code of their own, and heads."""
    config = made(config_class)
    if hasattr(config, "qk_rope_head_dim"):
        return True
    return hasattr(config, "num_attention_heads") and any(ROTARY.search(_source(x)) for x in code_of(config_class))


# Facts of one type


def _values(config, names):
    config.allow_global_per_layer_attribute_access = True  # of widths that some layers alone have
    found = {name: getattr(config, name, None) for name in names}
    return {name: _plain(value) for name, value in found.items() if value is not None}


def _plain(value):
    return json.loads(json.dumps(value, default=str))


def _rope(config):
    return _plain(getattr(config, "rope_parameters", None))


def _by_type(rope):
    """Rope settings by layer type; flat ones by an empty name."""
    nested = any(isinstance(value, dict) for value in (rope or {}).values())
    return (rope or {}) if nested else {"": rope or {}}


def _layer_types(config):
    return list(getattr(config, "layer_types", None) or ())


def _where(config_class, key, value, name):
    """The layer types whose settings take a value from a top-level key."""
    ropes = _by_type(_rope(made(config_class, **{key: value})))
    found = [kind for kind, rope in ropes.items() if isinstance(rope, dict) and rope.get(name) == value]
    return found[0] if len(found) == 1 else found if found else None


def _head_dim(config_class, config):
    """Whether head_dim grows with hidden_size, whether a null means hidden_size / heads, and that of some layers."""
    heads, hidden, width = (getattr(config, key, None) for key in ("num_attention_heads", "hidden_size", "head_dim"))
    of_layers = (config.to_dict().get("per_layer_config") or {}).values()
    result = {"global_head_dim": max((own["head_dim"] for own in of_layers if "head_dim" in own), default=None)}
    if isinstance(heads, int) and isinstance(hidden, int) and width:
        result["derived"] = getattr(made(config_class, hidden_size=2 * hidden), "head_dim", None) == 2 * width
        if not result["derived"] and getattr(made(config_class, head_dim=None), "head_dim", None) == hidden // heads:
            result["null_head_dim"] = "derived"
    return {key: value for key, value in result.items() if value}


def _pattern(config_class, **settings):
    """The pattern of layer types that a class makes for 13 layers, as posenc_jax.hf describes it, or the types."""
    types = _layer_types(made(config_class, num_hidden_layers=LAYERS, **settings))
    kinds = sorted({*types})
    if not kinds or kinds == ["full_attention"]:
        return None
    if len(kinds) == 1:
        return kinds[0]
    for full in sorted(kinds, key=lambda kind: (kind != "full_attention", kind)):
        other = next(kind for kind in kinds if kind != full)
        for last, period in itertools.product((False, True), range(2, LAYERS)):
            for phase in range(period):
                fits = ((i + phase) % period == 0 or last and i == LAYERS - 1 for i in range(LAYERS))
                if [full if fit else other for fit in fits] == types:
                    return {"period": period, "phase": phase, "other": other, "last": last, "full": full}
    return types


def _layers(config_class, keys):
    pattern = _pattern(config_class)
    if not isinstance(pattern, dict):
        return {"layer_types": pattern} if pattern else {}
    for key in sorted(keys):
        if re.search("pattern|interval|every|group_size|freq", key):
            other = _pattern(config_class, **{key: pattern["period"] + 1})
            if isinstance(other, dict) and other["period"] == pattern["period"] + 1:
                pattern["key"] = key
                break
    usual = {"last": False, "full": "full_attention", "phase": 1, "other": "sliding_attention"}
    return {"pattern": {key: value for key, value in pattern.items() if usual.get(key) != value}}


def _layout(code):
    """Which features make a pair, as the functions that rotate say."""
    if any(x.__name__ == "apply_rotary_pos_emb_interleave" for x in code):
        return "interleaved"
    for function in code:
        if function.__name__.startswith("rotate_half"):
            quarter = function(torch.arange(1.0, 9.0)[None, None, None]).flatten().tolist()
            return {2.0: "interleaved", 5.0: "half"}[abs(quarter[0])]
    text = "".join(_source(x) for x in code if re.search("rot|rope|Attention", x.__name__))
    if re.search(r"view_as_complex|rotate_every_two|stack_freqs|\.\.\., (0)?::2\]", text):
        return "interleaved"
    return "half" if "chunk(" in text else None


def _embedding(config, code):
    """The rotary embedding in the code of a config's models; the name of its class is most like the config's."""
    found = [x for x in code if x.__name__.endswith("RotaryEmbedding")]
    name = type(config).__name__
    return max(found, key=lambda x: (len(os.path.commonprefix([x.__name__, name])), -len(x.__name__)))(config)


def _probes(config, code):
    """What the rotary embedding does with settings: of layer types, shares, coordinates."""
    embeddings, kinds = {}, [kind for kind in _by_type(_rope(config)) if kind] or sorted({*_layer_types(config)})
    for share in (None, 1.0, 0.25):
        settings = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": share}
        for flat in (True, False):
            try:
                given = config if share is None else copy.deepcopy(config)
                if share is not None:
                    given.rope_parameters = settings if flat else {kind: dict(settings) for kind in kinds}
                embeddings.setdefault(share, _embedding(given, code))
            except Exception:  # no such class, or settings of the other kind
                continue
    found = {share: _widths(embedding) for share, embedding in embeddings.items()}
    if not found:
        return {}
    embedding = embeddings.get(1.0) or next(iter(embeddings.values()))
    nested = "layer_type" in inspect.signature(embedding.forward).parameters
    width, sections = max(next(iter(found.values())), default=0), getattr(embedding, "mrope_section", None)
    sections = next(iter(sections.values())) if isinstance(sections, dict) else sections
    latent = getattr(config, "qk_rope_head_dim", None) == width and getattr(config, "qk_nope_head_dim", None)
    result = {
        "by_layer_type": nested and bool(kinds),
        "partial": found.get(1.0) != found.get(0.25),
        "latent": bool(latent),
        "sections": list(sections or ()),
    }
    return result | (_order(embedding, nested, kinds) if sections else {})


def _widths(embedding):
    return [2 * len(x) for name, x in embedding.named_buffers() if name.endswith("inv_freq") and "original" not in name]


def _order(embedding, nested, kinds):
    """How pairs are divided among coordinates, by those that the second one rotates."""
    positions = torch.tensor([0, 1, 0])[:, None, None]
    try:
        waves = embedding(torch.zeros(1, 1, 8), positions, **({"layer_type": kinds[0]} if nested else {}))
    except Exception:
        return {}
    sines = waves[1].flatten()
    if len(sines) != len(waves[1][0].flatten()):  # not divided yet
        return {}
    pairs = sines[: len(sines) // 2].nonzero().flatten().tolist()
    step = pairs[1] - pairs[0]
    return {"interleaved_sections": step == 3, "alternating_sections": step == 2}


# A condition of a rotation, and one that holds in all layers without a window.
_IF_ROTATED = re.compile(r"\bif [^\n]*:\n(?:[^\n]*\n)?[^\n]*= apply_rot")
_WITHOUT_WINDOW = "if self.sliding_window is None or"


def _still(name, config, code):
    """The layers of a small model that do not rotate, if some may not: their types, or their indices."""
    flags = getattr(made(type(config), num_hidden_layers=8), "no_rope_layers", None) or ()
    if 0 in flags:
        return {"without_positions": [i for i, flag in enumerate(flags) if not flag]}
    conditions = {x[0] for thing in code for x in _IF_ROTATED.finditer(_source(thing))}
    if hasattr(config, "rope_parameters") and not conditions:
        return {}
    try:
        types, rotates = _run(name)
    except Exception as error:
        print(f"{name} is not run forward: {error!r:.100}", file=sys.stderr)
        return {}
    if not any(rotates.values()):
        return {"never": True}
    still = {types[i] for i, moved in rotates.items() if not moved}
    if not still:
        return {}
    all_rotate = any(_WITHOUT_WINDOW in condition for condition in conditions)
    return {"types_without_positions": sorted(still), "all_without_window": all_rotate}


def _run(name):
    """The layer types of a small model, and whether its attention layers rotate."""
    model, calls = forward.make_model(name, "record"), []
    for rest in (True, False):
        with forward._recording(model, rest):
            forward._call(model, [5] * len(forward.POSITIONS), forward.POSITIONS)
        calls.append({layer: call.query for layer, call in forward._calls.attention.items()})
    ropes = _by_type(_rope(model.config))
    types = [kind for kind in _layer_types(model.config)] or [""] * 99
    return types, {i: bool((x != calls[1][i]).any()) or ropes.get(types[i], 1) is None for i, x in calls[0].items()}


def facts_of(name, config_class):
    """The facts of a type, without what is usual."""
    config, code = made(config_class), code_of(config_class)
    defaults, rope = _values(config, VALUES), _rope(config)
    result = {"defaults": defaults} | _head_dim(config_class, config)
    if rope != {"rope_theta": 10_000.0, "rope_type": "default"}:
        result["rope"] = rope
    result |= _bases(config_class, rope)
    result["names"] = {k: x for k, x in config_class.attribute_map.items() if {k, x} & {*SIZES}}
    result["keys"] = sorted(_keys(config_class) - defaults.keys())
    result |= _layers(config_class, keys_of(config_class))
    result |= {"layout": _layout(code)} | _probes(config, code) | _still(name, config, code)
    if result.pop("derived", False) or result.get("latent"):
        defaults.pop("head_dim", None)
    if result.get("never") or result["layout"] == "half":
        del result["layout"]
    return {key: value for key, value in result.items() if value not in ({}, [], False)}


def _bases(config_class, rope):
    """What settings without a base get, and the keys of old configs that become one, or a share."""
    result, kinds = {}, _by_type(rope)
    given = {"rope_type": "linear", "factor": 2.0}
    given = given if [*kinds] == [""] else {kind: dict(given) for kind in kinds}
    usual = {kind: (own or {}).get("rope_theta") for kind, own in kinds.items()}
    for name, key in {"theta": "rope_parameters", "theta_in_scaling": "rope_scaling"}.items():
        config = made(config_class, **{key: given})
        if isinstance(config, Exception):
            result[name] = None
            continue
        bases = {kind: (own or {}).get("rope_theta") for kind, own in _by_type(_rope(config)).items()}
        if bases != usual:
            result[name] = next(iter(bases.values())) if len({*bases.values()}) == 1 else bases
    for name, sentinels, key in (
        ("legacy", dict.fromkeys(BASES, 12_345.0), "rope_theta"),
        ("shares", SHARES, "partial_rotary_factor"),
    ):
        found = {one: _where(config_class, one, value, key) for one, value in sentinels.items()}
        result[name] = {one: where for one, where in found.items() if where is not None}
    usual = {"legacy": {"rope_theta": ""}, "shares": {"partial_rotary_factor": ""}}
    return {name: value for name, value in result.items() if value != usual.get(name, 0)}


def _keys(config_class):
    """The keys of a class that speak of positions, or are near those that a plan depends on."""
    read = {*VALUES, *BASES, *SHARES, "layer_types", "no_rope_layers", "layers_block_type", "rope_parameters"}
    return {
        key for key in keys_of(config_class) - TAKEN
        if WORDS & {*key.lower().split("_")} or re.search("layer_type|pattern|_scal|layers_block", key)
        or difflib.get_close_matches(key, read, 1, 0.85)
    }  # fmt: skip


def tower_of(config_class):
    """The facts of a tower."""
    config = made(config_class)
    result = {"defaults": _values(config, TOWER_VALUES), "rope": _rope(config), "keys": sorted(_keys(config_class))}
    result["names"] = {k: x for k, x in config_class.attribute_map.items() if {k, x} & {*TOWER_VALUES}}
    return {key: value for key, value in result.items() if value}


# Composites


def parts_of(config_class):
    """The parts of a composite: their types, and what its class writes into them."""
    result = {}
    whole = made(config_class)
    try:
        language = whole.get_text_config(decoder=True)
    except Exception:
        language = None
    for key, spec in config_class.sub_configs_defaults.items():
        fact = {"type": spec.model_type}
        part = getattr(made(config_class, **{key: {}}), key, None)
        plain = made(CONFIG_MAPPING[spec.model_type]) if spec.model_type in CONFIG_MAPPING else None
        if isinstance(part, PreTrainedConfig) and isinstance(plain, PreTrainedConfig):
            names = (*VALUES, "rope_parameters")
            own, usual = _values(part, names), _values(plain, names)
            fact["defaults"] = {name: value for name, value in own.items() if usual.get(name) != value}
            if fact["defaults"].keys() & {"hidden_size", "num_attention_heads"} and "head_dim" in own:
                fact["defaults"]["head_dim"] = own["head_dim"]
        other = "llama" if spec.model_type != "llama" else "mistral"
        written = getattr(made(config_class, **{key: {"model_type": other}}), key, None)
        if spec.config_class is not AutoConfig or getattr(written, "model_type", other) != other:
            fact["always"] = True
        if language is not None and language is not whole and language is getattr(whole, key, None):
            fact["language"] = True
        result[key] = {name: value for name, value in fact.items() if value}
    return result


def facts():
    """All facts, by the sections of the file."""
    classes = {name: CONFIG_MAPPING[name] for name in sorted(CONFIG_MAPPING)}
    towers = {name: tower_of(classes[name]) for name in sorted(TOWERS.keys() & classes.keys())}
    composite = {name: x for name, x in classes.items() if x.sub_configs_defaults}
    types = {name: facts_of(name, x) for name, x in classes.items() if name not in towers and rotates(x)}
    turning, parts, grown = {*types, *towers}, {}, True
    while grown:
        grown = False
        for name, x in composite.items():
            specs = x.sub_configs_defaults.values()
            if name not in parts and any(s.model_type in turning or s.config_class is AutoConfig for s in specs):
                parts[name], grown = parts_of(x), True
                turning.add(name)
    parts = dict(sorted(parts.items()))
    without = sorted(classes.keys() - {*types, *towers, *parts})
    return {"types": types, "towers": towers, "parts": parts, "without_rope": without}


def text(found):
    """The file."""
    sections = []
    for name, values in found.items():
        if isinstance(values, dict):
            lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
            sections.append(f' "{name}": {{\n' + ",\n".join(lines) + "\n }")
        else:
            sections.append(f' "{name}": {json.dumps(values)}')
    return f"{json.dumps(ABOUT, indent=1)[:-2]},\n" + ",\n".join(sections) + "\n}\n"


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    PATH.write_text(text(facts()), encoding="utf-8")
