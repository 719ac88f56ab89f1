"""Writes posenc_jax/hf/facts.json: what transformers does for each model type, by its class and code, not its config.

`nox -f maintenance.py -s parity -- --facts` runs this with the installed release. With `--newest` instead of `--facts`,
it prints, as Markdown, what the newest release would change.
"""

import contextlib
import copy
import difflib
import functools
import inspect
import itertools
import json
import logging
import re
import sys
import warnings
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import diffusers
import forward
import torch
import transformers
from embeddings import keys_of, modeling_of, new_embedding
from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from posenc_jax.hf import _diffusion_models as diffusion
from posenc_jax.hf import _models
from posenc_jax.hf._multimodal_models import MULTIMODAL
from posenc_jax.hf._towers import TOWERS
from posenc_jax.hf._values import speaks_of_positions

PATH = Path(_models.__file__).parent / "facts.json"
ABOUT = {
    "about": "What transformers and diffusers do for each model that no config says; what is usual is left out.",
    "command": "nox -f maintenance.py -s parity -- --facts",
    "transformers": transformers.__version__,
    "diffusers": diffusers.__version__,
}
SCALES = "query_pre_attn_scalar", "attention_multiplier"
# Keys of configs on which a plan depends: sizes, rope settings, layers, windows and scales; then keys of towers.
VALUES = set(
    """
    num_hidden_layers hidden_size num_attention_heads head_dim kv_channels attention_head_dim qk_nope_head_dim
    qk_rope_head_dim index_head_dim indexer_head_dim rotary_dim max_position_embeddings original_max_position_embeddings
    rope_parameters partial_rotary_factor rotary_pct rope_theta compress_rope_theta rope_interleave
    indexer_rope_interleave no_rope_layer_interval layer_rope_theta position_embedding_type use_mem_rope
    attn_layer_indices block_types full_attn_idxs cross_attention_layers
    sliding_window attention_chunk_size use_sliding_window max_window_layers local_attention attention_window_size
    use_bidirectional_attention query_pre_attn_scalar attention_multiplier attn_scale floor_scale
    attn_temperature_tuning

    patch_size image_size window_size spatial_merge_size num_register_tokens num_attention_layers pos_emb_height
    pos_emb_width num_position_embeddings fullatt_block_indexes global_attn_indexes embed_dim num_blocks num_queries
    memory_attention_hidden_size memory_attention_num_layers memory_attention_num_attention_heads
    memory_attention_rope_theta memory_attention_downsample_rate memory_attention_rope_feat_sizes
    memory_attention_rope_k_sizes
""".split()
)
# Keys of diffusers' classes on which a plan depends, beside those that speak of positions
DIFFUSION = set(
    """
    attention_head_dim num_attention_heads hidden_size dim n_heads axes_dims axes_dims_a axes_lens mrope_section
    patch_size patch_size_t sample_height sample_width scale_factor vae_scale_factors base_height base_width
    causal_offset audio_freqs_scaling audio_patch_size_t audio_num_attention_heads audio_attention_head_dim
    audio_cross_attention_dim audio_scale_factor audio_sampling_rate audio_hop_length pos_embed_max_pos
    audio_pos_embed_max_pos pos_embed_max_size max_resolution siglip_feat_dim attention_type
""".split()
)
BASES = """
    rope_theta rotary_emb_base rope_local_base_freq global_rope_theta local_rope_theta swa_rope_theta
    compress_rope_theta
""".split()
SHARES = "partial_rotary_factor", "rotary_pct", "rotary_emb_fraction"
READ = *VALUES, *BASES, *"rotary_emb_fraction layer_types layers_block_type no_rope_layers".split()
# Keys that every class takes, and parts of the names of keys that concern positions.
TAKEN = {"rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", "max_position_embeddings"}
CONCERNS = re.compile(
    "(^|_)(rope|rotary|rotate|theta|yarn|alibi|nope|ntk|logn|xpos|mrope|fope|position(al)?|temperature)(_|$)"
    "|layer_type|pattern|_scal|layers_block"
)
ROTARY = re.compile(r"rotate_half|rotate_every_two|apply_(multimodal_)?rot|RotaryEmbedding|rotary|RopePosition|\brope_")
_IF_ROTATED = re.compile(r"\bif [^\n]*:\n(?:[^\n]*\n)?[^\n]*= apply_rot")
_ALL_WITHOUT_WINDOW = "if self.sliding_window is None or"
LAYERS = 13, 14  # numbers of layers for which a class lists types, to find their pattern
# Keys that are no defaults: rope settings have them, or they fit only the default number of layers.
OF_SETTINGS = set(
    "partial_rotary_factor rope_theta rotary_pct layer_rope_theta compress_rope_theta swa_rope_theta full_attn_idxs "
    "attn_layer_indices".split()
)
USUAL = _models.Model._field_defaults | {
    "settings": {"rope_theta": 10_000.0, "rope_type": "default"},
    "reads": [],
    "ignores": [],
}


def made(config_class, **settings):
    """A config, which also gives widths that only some layers have; or the error of its class."""
    try:
        config = config_class(**copy.deepcopy(settings))
    except Exception as error:
        return error
    config.allow_global_per_layer_attribute_access = True
    return config


# The code of a type


@functools.cache
def _source(thing):
    """The source of a class or function, empty if there is none."""
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return ""


@functools.cache
def _used(thing):
    """The classes and functions of models that the code of a class or function names."""
    names, words = vars(sys.modules[thing.__module__]), {*re.findall(r"\b[A-Za-z_]\w+", _source(thing))}
    return [names[word] for word in sorted(words & names.keys()) if _is_code(names[word])]


def _is_code(x):
    """Whether x is a class or function in a module of models."""
    is_code = (inspect.isclass(x) or inspect.isfunction(x)) and not x.__name__.endswith("PreTrainedModel")
    return is_code and re.match(r"transformers\.models\.(?!auto).*\.modeling_", x.__module__)


@functools.cache
def code_of(config_class):
    """The classes and functions that the models of a config class use."""
    try:
        modeling = modeling_of(made(config_class))
    except (ImportError, AttributeError):  # it needs another package, or there is none
        return ()
    own = [
        x for x in vars(modeling).values() if _is_code(x) and inspect.isclass(x) and x.__module__ == modeling.__name__
    ]
    todo, seen = [x for x in own if _is_for(x, config_class)] or own, {}
    while todo:
        thing = todo.pop()
        if thing not in seen:
            seen[thing] = None
            todo += _used(thing)
    return tuple(seen)


def _is_for(model, config_class):
    """Whether a model class takes configs of this class, by its attribute or its annotations."""
    notes = getattr(model.__init__, "__annotations__", {}) if "__init__" in vars(model) else {}
    named = {config_class, config_class.__name__} & {x for x in notes.values() if isinstance(x, (str, type))}
    return bool(named) or getattr(model, "config_class", None) is config_class


def rotates(config_class):
    """Whether models of a config class rotate, or have what other models rotate."""
    config = made(config_class)
    has_code = any(ROTARY.search(_source(x)) for x in code_of(config_class))
    return hasattr(config, "qk_rope_head_dim") or hasattr(config, "num_attention_heads") and has_code


# Facts of config classes


def _values(config):
    """The keys of `VALUES` that a config has, as JSON."""
    found = {name: value for name in sorted(VALUES) if (value := getattr(config, name, None)) is not None}
    return json.loads(json.dumps(found, default=str))


def _attention(config_class, values):
    """The window when it is switched on; None for a window or scale that follows from other keys."""
    made_up = set()
    for key in {"head_dim", "local_attention"} & values.keys():
        other = _values(made(config_class, **{key: 2 * values[key]}))
        made_up |= {name for name in ("sliding_window", *SCALES) if other.get(name) != values.get(name)}
    switched = {"use_sliding_window": True} if values.get("use_sliding_window") is False else {}
    window = getattr(made(config_class, **switched), "sliding_window", None)
    return {"sliding_window": window} | dict.fromkeys(made_up)


def _rope(config):
    """Rope settings by layer type; settings for all layers have the empty name."""
    rope = getattr(config, "rope_parameters", None) or {}
    return rope if any(isinstance(value, dict) for value in rope.values()) else {"": rope}


def _setting(config, name):
    """One rope setting, by layer type."""
    return {kind: (own or {}).get(name) for kind, own in _rope(config).items()}


def _bases(config):
    """The base, by layer type."""
    return _setting(config, "rope_theta")


def _ignores(config_class, config):
    """The names of settings that no key of the config outside the settings changes."""

    def follows(name, keys, value):
        return any(value in _setting(made(config_class, **{key: value}), name).values() for key in keys)

    keys_of_setting = {"rope_theta": (BASES, 12_345.0), "partial_rotary_factor": (SHARES, 0.375)}
    own = [name for name in keys_of_setting if any(x is not None for x in _setting(config, name).values())]
    return [name for name in own if not follows(name, *keys_of_setting[name])]


def _settled(config_class, config):
    """The base of settings that have none, if it is unusual; and the layer types whose base an old key sets.

    An old key is a base outside the settings, which a class moves into them.
    """
    kinds, linear = [*_rope(config)], {"rope_type": "linear", "factor": 2.0}
    scaled = linear if kinds == [""] else {kind: dict(linear) for kind in kinds}
    usual, bases, legacy = _bases(config), _bases(made(config_class, rope_parameters=scaled)), {}
    for key in BASES:
        settings = _bases(made(config_class, **{key: 12_345.0}))
        if where := [kind for kind, base in settings.items() if base == 12_345.0]:
            legacy[key] = where
    return bases[kinds[0]] if bases != usual else None, legacy


def _head_dim(config_class, config):
    """Two booleans: whether head_dim follows from other keys, and whether it does so only if it is null."""
    heads, hidden, width = (getattr(config, key, None) for key in ("num_attention_heads", "hidden_size", "head_dim"))
    if not (isinstance(heads, int) and isinstance(hidden, int) and width):
        return False, False
    changed = made(config_class, hidden_size=2 * hidden), made(config_class, num_attention_heads=heads // 2)
    follows = any(getattr(other, "head_dim", None) == 2 * width for other in changed)
    return follows, not follows and getattr(made(config_class, head_dim=None), "head_dim", None) == hidden // heads


def _types(config):
    """The types of a config's layers, empty if it lists none."""
    return list(getattr(config, "layer_types", None) or ())


def _pattern(config_class, **settings):
    """The pattern of a class's layer types, as fields of posenc_jax.hf's `Pattern`; else its type or types."""
    made_up = {count: _types(made(config_class, num_hidden_layers=count, **settings)) for count in LAYERS}
    types = made_up[LAYERS[0]] or _types(made(config_class))
    kinds = sorted({*types}, key=lambda kind: (kind != "full_attention", kind))
    if len(kinds) < 2:
        return kinds[0] if kinds else None
    either, numbers = (False, True), range(LAYERS[0])
    for both, backwards, last, period, phase in itertools.product(
        itertools.permutations(kinds[:2]), either, either, numbers[2:], numbers
    ):
        facts = dict(period=period, phase=phase, last=last, backwards=backwards, full=both[0], other=both[1])
        pattern = _models.Pattern(**facts)
        if phase < period and all(pattern.types(count) == types for count, types in made_up.items()):
            return facts
    return kinds


def _layers(config_class):
    """The unusual fields of a class's pattern and the key of its period; or the only type; None without a pattern."""
    pattern = _pattern(config_class)
    if not isinstance(pattern, dict):
        return None if isinstance(pattern, list) else pattern or "full_attention"
    for key in sorted(keys_of(config_class)):
        if re.search("pattern|interval|every|group_size", key) and "key" not in pattern:
            other = _pattern(config_class, **{key: pattern["period"] + 1})
            follows = isinstance(other, dict) and other["period"] == pattern["period"] + 1
            pattern |= {"key": key} if follows else {}
    usual = _models.Pattern._field_defaults
    return {key: pattern[key] for key in _models.Pattern._fields if key in pattern and pattern[key] != usual.get(key)}


def _keys(config_class):
    """The keys of a class that concern positions, or whose names are near the keys on which a plan depends."""
    keys = {*keys_of(config_class)} - TAKEN
    return {key for key in keys if CONCERNS.search(key) or difflib.get_close_matches(key, READ, 1, 0.85)}


# Facts of their code


def layout_of_functions(code):
    """Which features make a pair, as the functions that rotate show; None if there are none."""
    if any(x.__name__ == "apply_rotary_pos_emb_interleave" for x in code):
        return "interleaved"
    for function in code:
        if function.__name__.startswith("rotate_half"):
            quarter = function(torch.arange(1.0, 9.0)[None, None, None]).flatten().tolist()
            return {2.0: "interleaved", 5.0: "half"}[abs(quarter[0])]
    return None


def _layout(code):
    """Which features make a pair, as its functions show or its text says."""
    if layout := layout_of_functions(code):
        return layout
    text = "".join(_source(x) for x in code if re.search("rot|rope|Attention", x.__name__))
    if re.search(r"view_as_complex|rotate_every_two|stack_freqs|\.\.\., 0?::2\]", text):
        return "interleaved"
    return "half" if "chunk(" in text else None


def _spectra(config, code):
    """Whether the rotary embedding reads settings per layer type and a share of features; and its sections."""
    kinds = [kind for kind in _rope(config) if kind] or sorted({*(getattr(config, "layer_types", 0) or ())})

    def embedding(share, nested):
        settings = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": share}
        given = copy.deepcopy(config)
        given.rope_parameters = {kind: dict(settings) for kind in kinds} if nested else settings
        return new_embedding(given, code)

    for nested in (False, True):
        with contextlib.suppress(Exception):  # no such class, or settings of the other kind
            whole, quarter = embedding(1.0, nested), embedding(0.25, nested)
            break
    else:
        return {}
    buffers = dict(whole.named_buffers())
    widths = {name: len(x) for name, x in buffers.items() if name.endswith("inv_freq")}
    nested = bool(kinds) and "layer_type" in inspect.signature(whole.forward).parameters
    sections = getattr(whole, "mrope_section", ())
    sections = next(iter(sections.values())) if isinstance(sections, dict) else sections
    partial = widths != {name: len(x) for name, x in quarter.named_buffers() if name in widths}
    result = {"nested": nested, "partial": partial}
    if sections:
        result["sections"] = (config.rope_parameters or {}).get("mrope_section", [*sections])
        with contextlib.suppress(RuntimeError):  # sections of another width, or divided later, in blocks
            waves = whole(torch.zeros(1, 1, 8), torch.tensor([0, 1, 0])[:, None, None], *kinds[: int(nested)])
            # The pairs that the second coordinate rotates.
            first, second, *_ = waves[1].view(2 * max(widths.values())).nonzero().flatten().tolist()
            result["interleaved_sections"] = second - first == 3
    return result


def _still(name, config, code):
    """Which types of layers do not rotate in a small model, if no key lists such layers and some may exist."""
    conditions = [x[0] for thing in code for x in _IF_ROTATED.finditer(_source(thing))]
    if 0 in (getattr(config, "no_rope_layers", None) or ()) or hasattr(config, "rope_parameters") and not conditions:
        return {}
    try:
        rotate = _run(name)
    except Exception as error:
        print(f"{name} is not run forward: {error!r:.100}", file=sys.stderr)
        return {}
    still = sorted({kind for kind, moved in rotate if not moved})
    if not any(moved for _, moved in rotate):
        return {"never_rotates": True}
    all_rotate = bool(still) and any(_ALL_WITHOUT_WINDOW in condition for condition in conditions)
    return {"sliding_only": still == ["full_attention"], "all_without_window": all_rotate}


def _run(name):
    """For each attention layer of a small model, its type and whether it rotates."""
    model = forward.make_model(name)
    rest, moved = (forward.recorded(model, forward.POSITIONS, rest).attention for rest in (True, False))
    types, rope = getattr(model.config, "layer_types", None), _rope(model.config)
    kinds = {i: types[i] if types else "" for i in rest}
    return [(kind, rope.get(kind, 0) is None or (rest[i].query != moved[i].query).any()) for i, kind in kinds.items()]


# The file


def facts_of(name, config_class):
    """The fields of posenc_jax.hf's `Model` or `Tower` that differ from their usual values."""
    config, code = made(config_class), code_of(config_class)
    values = _values(config)
    values |= _attention(config_class, values)
    rope = values.pop("rope_parameters", None)
    follows, derives = _head_dim(config_class, config)
    latent = values.keys() >= {"qk_nope_head_dim", "qk_rope_head_dim"}
    if follows or latent:
        values.pop("head_dim", None)
    values = {key: value for key, value in values.items() if value is not None}
    mapped = [(k, x) for k, x in config_class.attribute_map.items() if {k, x} & VALUES and k != "num_key_value_heads"]
    names = dict((x, k) if x in values else (k, x) for k, x in mapped)
    if name in TOWERS:
        rope = rope or {"rope_theta": values.pop("rope_theta")}
        facts = {"defaults": values, "keys": sorted(_keys(config_class) - values.keys()), "names": names, "rope": rope}
        return {key: x for key, x in facts.items() if x}
    of_layers = (config.to_dict().get("per_layer_config") or {}).values()
    if widths := [own["head_dim"] for own in of_layers if "head_dim" in own]:
        values["global_head_dim"] = max(widths)
    settings = rope or {}
    if all(isinstance(value, dict) for value in settings.values()):
        settings = dict(sorted(settings.items()))  # by layer type, which transformers has in the order of a set
    theta, legacy = _settled(config_class, config)
    if legacy == {"rope_theta": [""]}:
        legacy = {}
    spectra, still = _spectra(config, code), _still(name, config, code)
    nested, is_partial = spectra.pop("nested", False), spectra.pop("partial", False) or "rotary_dim" in values
    bases = {kind: (key, settings[kind]["rope_theta"]) for key, kinds in legacy.items() for kind in kinds if nested}
    defaults = {key: value for key, value in values.items() if key not in OF_SETTINGS}
    facts = {
        "defaults": defaults,
        "reads": sorted({*_keys(config_class), *values, *legacy, *names, *names.values()} - defaults.keys()),
        "names": names,
        "layout": _layout(code),
        "settings": settings,
        "theta": theta or settings.get("rope_theta", 10_000.0),
        "writes_theta": "rope_theta" in values,
        "ignores": _ignores(config_class, config),
        "bases": bases if bases.keys() == settings.keys() else {},
        "nested": nested,
        "null_settings": nested and None in settings.values(),
        "derives_head_dim": derives,
        "partial": settings.get("partial_rotary_factor", 1.0 if is_partial else None),
        "latent": "scaled" if latent and not still.get("never_rotates") else None,
        "pattern": _layers(config_class),
    }
    facts |= still | spectra
    return {key: x for key, x in facts.items() if x != USUAL.get(key) and not (key == "layout" and x is None)}


def _part(config_class, key, **settings):
    """The part of a composite into which settings are written; None if there is none."""
    part = getattr(made(config_class, **{key: settings}), key, None)
    if isinstance(part, PreTrainedConfig):
        part.allow_global_per_layer_attribute_access = True
        return part
    return None


def parts_of(config_class):
    """The parts of a composite: their types, and what its class writes into them."""
    whole, result = made(config_class), {}
    try:
        language = whole.get_text_config(decoder=True)
    except Exception:  # there are several
        language = None
    for key, spec in config_class.sub_configs_defaults.items():
        result[key] = fact = {"type": spec.model_type} if spec.model_type else {}
        part = functools.partial(_part, config_class, key)
        if spec.model_type in CONFIG_MAPPING and (values := _values(part())):
            usual, other = (
                _values(made(CONFIG_MAPPING[spec.model_type])),
                _values(part(hidden_size=768, num_attention_heads=8)),
            )
            differ = {name: x for name, x in values.items() if usual.get(name) != x}
            if "hidden_size" in differ and "head_dim" in values and values["head_dim"] == other.get("head_dim"):
                differ["head_dim"] = values["head_dim"]
            fact |= {"defaults": differ} if differ else {}
        other = "mistral" if spec.model_type == "llama" else "llama"
        if spec.config_class is not AutoConfig or getattr(part(model_type=other), "model_type", other) != other:
            fact["always"] = True
        if getattr(whole, key, 0) is language:
            fact["language"] = True
    return result


def placeholders_of(config_class):
    """The ids of the tokens that a whole model has in place of images, videos and audio, and around videos."""
    names = "image", "video", "audio", "video_start", "video_end"
    ids = {name: getattr(made(config_class), f"{name}_token_id", None) for name in names}
    return {name: token for name, token in ids.items() if token is not None}


def diffusion_of(name):
    """The keys of a class of diffusers that concern positions or are named like them, and its values for them."""
    values = {x.name: x.default for x in inspect.signature(getattr(diffusers, name).__init__).parameters.values()}
    kept, near = set(), {key for key in values if key in DIFFUSION or speaks_of_positions(key)}
    while near != kept:
        kept, near = near, {key for key in values if difflib.get_close_matches(key, near, 1, 0.85)}
    return {key: value for key, value in values.items() if key in kept}


def facts():
    """All facts, by the sections of the file."""
    classes = {name: CONFIG_MAPPING[name] for name in sorted(CONFIG_MAPPING)}
    rotating = {name: x for name, x in classes.items() if name in TOWERS or rotates(x)}
    found = {name: facts_of(name, x) for name, x in rotating.items()}
    whole, parts = {name: x.sub_configs_defaults.values() for name, x in classes.items()}, {}
    for _ in range(4):  # levels of parts
        for name, specs in whole.items():
            if any(spec.config_class is AutoConfig or spec.model_type in found | parts for spec in specs):
                parts[name] = parts_of(classes[name])
    return {
        "types": {name: x for name, x in found.items() if name not in TOWERS},
        "towers": {name: x for name, x in found.items() if name in TOWERS},
        "parts": dict(sorted(parts.items())),
        "placeholders": {name: placeholders_of(x) for name, x in classes.items() if name in MULTIMODAL},
        "diffusion": {name: diffusion_of(name) for name in sorted(diffusion.MODELS)},
        "without_rope": {name: {"rotates": False} for name in sorted(classes.keys() - {*found, *parts})},
    }


def read():
    """The facts in the file, and their release of transformers."""
    kept = json.loads(PATH.read_text(encoding="utf-8"))
    kept["without_rope"] = {name: {"rotates": False} for name in kept["without_rope"]}
    return {name: value for name, value in kept.items() if name not in ABOUT}, kept["transformers"]


def write(found):
    """Writes the file, with one line for each type."""
    sections = []
    for name, types in found.items():
        lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in types.items())
        body = json.dumps(sorted(types)) if name == "without_rope" else "{\n" + ",\n".join(lines) + "\n }"
        sections.append(f' "{name}": {body}')
    PATH.write_text(f"{json.dumps(ABOUT, indent=1)[:-2]},\n" + ",\n".join(sections) + "\n}\n", encoding="utf-8")


def changes(before, after):
    """What differs between two sets of facts, as lines of a list."""
    for section, types in after.items():
        for name in sorted({*before[section], *types}):
            old, new = (found.get(name, {}) for found in (before[section], types))
            for fact in sorted({*old, *new}):
                if old.get(fact) != new.get(fact):
                    yield f"- {section}: `{name}`, {fact}: {json.dumps(old.get(fact))} → {json.dumps(new.get(fact))}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    if sys.argv[1:] == ["--diff"]:
        before, release = read()
        print(f"# transformers {transformers.__version__} beside {release}\n")
        print(*changes(before, json.loads(json.dumps(facts()))), sep="\n")
    else:
        write(facts())
