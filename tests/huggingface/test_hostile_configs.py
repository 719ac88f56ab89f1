"""Configs of Hugging Face, broken at random: a plan that is right by the formulas, or an error that names the key.

What a plan says is held against an oracle that shares nothing with the library, and its spectra against the formulas.
POSENC_HOSTILE=N multiplies the number of configs (`nox -s fuzz`). A failure names its case: `config_of(case)`.
"""

import collections
import copy
import functools
import json
import math
import os
import random
import re

import numpy as np
import pytest

from helpers.rope import bound_of_float32
from huggingface.published import PUBLISHED
from oracles import configs, recorded, spectra
from posenc_jax.hf import plan_to_config, rotary_from_config

CASES = 3000 * int(os.environ.get("POSENC_HOSTILE", "1"))
CHUNKS = 4
RECORDED = [case["config"] for name in ("hf_model_types", "hf_frequencies") for case in recorded.cases(name)]
MODELS = recorded.rotations()["models"]
SEEDS = [*PUBLISHED.values(), *RECORDED]
NAMES = sorted(
    set(
        "rope_theta rotary_emb_base rotary_pct rotary_dim rotary_emb_fraction partial_rotary_factor rope_scaling "
        "rope_parameters rope_type type factor alpha low_freq_factor high_freq_factor beta_fast beta_slow mscale "
        "mscale_all_dim attention_factor truncate short_factor long_factor original_max_position_embeddings "
        "max_position_embeddings mrope_section mrope_interleaved interleaved llama_4_scaling_beta rope_interleave "
        "rope_interleaved rotary_emb_interleaved no_rope_layers no_rope_layer_interval layer_types layers_block_type "
        "attn_layer_indices full_attn_idxs block_types cross_attention_layers alibi rotary position_embedding_type "
        "per_layer_config layer_rope_theta head_dim kv_channels attention_head_dim hidden_size n_embd d_model "
        "num_attention_heads n_head n_heads num_hidden_layers n_layer n_layers num_layers qk_rope_head_dim "
        "qk_nope_head_dim global_head_dim attn_temperature_tuning attn_scale floor_scale sliding_window "
        "sliding_window_pattern global_attn_every_n_layers full_attention_interval local_rope_theta global_rope_theta "
        "rope_local_base_freq attn_rotary_emb text_config thinker_config language_config model_type rope_ratio "
        "full_attention sliding_attention use_rope".split()
    )
)
# What stands where something else should; no sizes at which a spectrum takes long.
WIDTH = re.compile("dim|channels|hidden|embd|d_model")
JUNK = [
    None, True, False, 0, 1, 2, 3, -1, 0.5, 1.5, -0.0, 5e-324, 1e-300, 1e308, 1e9, 10**9, 10**400, -(10**400), 2**31 - 1,
    2**31, 2**63, float("nan"), float("inf"), -float("inf"), "", "8.0", "yarn", "0x10", "²", "é" * 500, b"x", 1j, object(),
    float, [], [None], [1, 2], [[1]], ["1"] * 8, ["full_attention"], [0.0] * 8, [float("nan")] * 8, [1e308] * 8, (1, 2),
    {1, 2}, range(3), {}, {1: 2}, {"a": {}}, {"full_attention": {}}, {"full_attention": None, "sliding_attention": {}},
    np.float32(2), np.int64(4), np.float64("nan"), np.bool_(True), np.array(2.0), np.arange(3), np.ones((2, 2)),
]  # fmt: skip


def mappings(config, depth=3):
    inner = [m for value in config.values() if isinstance(value, dict) and depth for m in mappings(value, depth - 1)]
    return [config, *inner]


def mutate(config, rng):
    """One key is lost, renamed, of another type, new, of another model, or of another number or length."""
    d = rng.choice(mappings(config))
    key = rng.choice([*d, None])
    kind = rng.randrange(6)
    if kind == 0 or key is None:
        d[rng.choice(NAMES)] = copy.deepcopy(rng.choice(JUNK))
    elif kind == 1:
        del d[key]
    elif kind == 2:
        value, name = d.pop(key), rng.choice(NAMES)
        d[name] = (
            value if not WIDTH.search(name) or not isinstance(value, int) else min(value, 4096)
        )  # else it takes long
    elif kind == 3:
        d[key] = copy.deepcopy(rng.choice(JUNK))
    elif kind == 4:
        other = rng.choice(mappings(rng.choice(SEEDS)))
        d.update(copy.deepcopy(dict(rng.sample(sorted(other.items(), key=str), min(len(other), 1)))))
    elif isinstance(d[key], list):
        d[key] = d[key][:-1] if rng.random() < 0.5 else d[key] * 2
    elif isinstance(d[key], (bool, str)):
        d[key] = str(d[key]) + "s"
    elif isinstance(d[key], (int, float)) and abs(d[key]) < 1e9:
        d[key] *= rng.choice([2, 0.5, -1, 2.0, 1e300])


def config_of(case):
    """A broken config and the arguments that go with it."""
    rng = random.Random(case)
    config = copy.deepcopy(rng.choice(SEEDS))
    for _ in range(rng.choice([1, 1, 2, 3])):
        mutate(config, rng)
    length = rng.choice([None, 9, 5000, 100_000, 2**31 - 1])
    return config, {"length": length, "layout": rng.choice([None, None, "half"])}


class WithToDict:
    """A config as transformers has them."""

    def __init__(self, values):
        self.values = values

    def to_dict(self):
        return self.values


# What an error may speak of though the config does not: an argument, what is computed, what a default is.
SPOKEN_OF = {"layout", "length", "config", "head_dim", "rope_parameters", "rope_type"}
SUBJECT = re.compile(r"rotary_from_config: (?:the key |the width of |the layer type '\w+' is not known for )?([\w.]+)")


def check_clear(case, config, message):
    """An error names the key at fault, as the config writes it, and its value; or keys that are missing."""
    assert message.startswith("rotary_from_config: ") and message.count("rotary_from_config") == 1, (case, message)
    keys, subject = {str(key) for m in mappings(config) for key in m}, SUBJECT.match(message)
    if " is missing" in message:
        assert subject and subject[1].split(".")[-1] in NAMES, (case, message)
    elif "has no rotary embedding" in message:
        assert re.search(rf"\b({'|'.join(keys)})\b", message.partition(": ")[2]), (case, message)
    else:
        assert subject and {*subject[1].split(".")} <= keys | SPOKEN_OF, (case, message)
        assert re.search(r"( = |, got |'|must be given|layer types \[)", message), (case, message)


def outcome(case, config, **arguments):
    """The plan, or the message of an error that is clear."""
    try:
        return rotary_from_config(WithToDict(config) if case % 3 == 0 else config, **arguments)
    except (TypeError, ValueError) as e:
        message = str(e)
        check_clear(case, config, message)
        return message
    except Exception as e:
        raise AssertionError(f"case {case}: {type(e).__name__}: {e}") from e


@functools.lru_cache(maxsize=4096)
def true_spectrum(parameters, head_dim, maximum, length):
    omega, amplitude = spectra.from_parameters(dict(parameters), head_dim, maximum, length)
    return spectra.turns(omega), amplitude


def check_layer(layer, length):
    """A layer's frequencies by the formulas, from its settings."""
    rope = dict(layer.parameters)
    head_dim = layer.head_dim
    if layer.frequencies is None:
        assert not rope
        return
    if rope.get("factor", 1) > 1e40 or layer.rotary_dim > 1024:
        return  # the reference has 60 digits, and takes its time
    if rope["rope_type"] != "proportional" and layer.rotary_dim != int(head_dim * rope.get("partial_rotary_factor", 1)):
        head_dim = layer.rotary_dim  # of latent attention
    turns, amplitude = true_spectrum(layer.parameters, head_dim, rope.get("max_position_embeddings", 1), length)
    assert max(abs(a - b) for a, b in zip(layer.frequencies.turns, turns, strict=True)) <= 2
    assert abs(layer.frequencies.attention_factor - amplitude) <= 4e-16 * abs(amplitude)
    if "mrope_section" in rope:
        assert layer.frequencies.axes == tuple(spectra.axes_from_parameters(rope, len(turns)))


# Rope settings that a layer's own must repeat wherever they are written.
SETTINGS = "factor alpha low_freq_factor high_freq_factor attention_factor short_factor long_factor llama_4_scaling_beta".split()


def check_said(plan, config):
    """What the config writes is what the plan says."""
    text = next((config[k] for k in ("thinker_config", "text_config", "language_config") if config.get(k)), None)
    if text is not None:
        return check_said(plan, text)
    of_all = [dict(layer.parameters) for layer in plan.layers if layer.parameters]
    for name in ("rope_scaling", "rope_parameters"):
        raw = config.get(name) or {}
        few = len(plan.layers) < 6  # possibly none of the layer type that the settings are for
        for settings in (m for m in mappings(raw) if of_all and not few):
            for key in SETTINGS:
                said = settings.get(key)
                if said is not None and (settings is raw or len(raw) == 1):
                    said = tuple(said) if isinstance(said, (list, range, np.ndarray)) else said
                    # alpha = 0 is none, and where there is one its factor of 1 says nothing.
                    if not (key == "alpha" and not said or key == "factor" and any("alpha" in s for s in of_all)):
                        assert any(s.get(key) == said for s in of_all), key
    thetas = {s["rope_theta"] for s in of_all}
    for key in ("rope_theta", "rotary_emb_base", "rope_local_base_freq", "local_rope_theta", "global_rope_theta"):
        one_type = len(set(config.get("layer_types") or [0, 1])) == 1 or config.get("layer_rope_theta")
        if of_all and config.get(key) is not None and not one_type:
            assert config[key] in thetas or len(plan.layers) < 6, key
    for key in ("num_hidden_layers", "n_layer", "num_layers"):
        assert config.get(key) in (None, len(plan.layers))


PROPERTIES = (*configs.OF_LAYERS, "layout", "part", "softmax_scale")


def read_off(plan):
    """What a plan says, by property, as the oracle puts it."""
    layers = []
    for layer in plan.layers:
        settings, scale = dict(layer.parameters), layer.query_scale
        base, kind = settings.pop("rope_theta", None), settings.get("rope_type")
        if kind != "proportional":
            settings.pop("partial_rotary_factor", None)  # rotary_dim says it
        scale = scale and (scale.coefficient, scale.period, scale.offset)
        layers.append((layer.frequencies is not None, layer.head_dim, layer.rotary_dim, base, settings, scale))
    rows = map(list, zip(*layers, strict=True))
    return dict(zip(PROPERTIES, (*rows, plan.layout, plan.part, plan.softmax_scale), strict=True))


# What few plans say: without them the comparison would see no more than the usual.
TELLING = (
    "interleaved", "latent", "layers of two kinds", "layers without positions", "parts of a head", "bases of a class",
    "scaled", "query scales", "softmax scales",
)  # fmt: skip


def check_by_oracle(plan, config, layout):
    """What a plan says against what it should say; which properties were compared, and which were TELLING."""
    got, want = read_off(plan), configs.expected(config, layout)
    for key, value in want.items():
        name = configs.text_of(config).get("model_type")
        assert got[key] == value, f"{name}: {key} is {got[key]}, by the oracle {value}"
    telling = (
        layout is None and plan.layout == "interleaved",
        plan.part == "last",
        plan.layers.count(plan.layers[0]) < len(plan.layers),
        not all(got["rotates"]),
        any(0 < width < whole for width, whole in zip(got["rotary_dim"], got["head_dim"], strict=True)),
        "±" in str(want.get("base")),
        any(settings.get("rope_type", "default") != "default" for settings in got["settings"]),
        any(got["query_scale"]),
        plan.softmax_scale != 1,
    )
    return [*want, *(name for name, true in zip(TELLING, telling, strict=True) if true and len(want) > 1)]


def check_plan(plan, config):
    hash(plan)
    for layer in set(plan.layers):
        check_layer(layer, plan.length)
    check_said(plan, config)
    said = json.loads(json.dumps(plan_to_config(plan)))
    assert rotary_from_config(said, length=plan.length) == plan


# What a plan may leave unread: what transformers does not read either, or what another key overrules.
UNREAD = {
    "mscale", "mscale_all_dim",  # outside latent attention, or one without the other, or beside attention_factor
    "max_position_embeddings",  # Ministral 3 keeps a copy within
    "no_rope_layer_interval",  # beside no_rope_layers
}  # fmt: skip
SPEAKS = re.compile("rope|rotary|theta|alibi")


def rotating_keys(config, within=False):
    """(mapping, key) of each value that speaks of rotations."""
    for key, value in config.items():
        if key in UNREAD:
            continue
        if isinstance(value, dict) and (
            within or SPEAKS.search(key) or key.endswith(("text_config", "thinker_config"))
        ):
            yield from rotating_keys(value, within=not key.endswith("_config"))
        elif (within or SPEAKS.search(key)) and value is not None:
            yield config, key


def is_unread(config, key, layout):
    """Whether a plan may leave a key unread: transformers does not read it either, or another key overrules it."""
    settings = {key for m in mappings(config) for key in m}
    return (
        key in UNREAD
        or "interleave" in key
        and layout is not None  # what the caller says
        or key.startswith("beta_")
        and "alpha" in settings  # Hunyuan
        or key == "original_max_position_embeddings"
        and sum(key in m for m in mappings(config)) > 1  # the outer one wins
    )


def another(key, value):
    """Another value of the same type."""
    if isinstance(value, (bool, np.bool_)) or key.endswith(("interleave", "interleaved", "alibi", "rotary")):
        return not value
    if isinstance(value, str):
        return {"linear": "dynamic", "default": "linear", "mrope": "linear"}.get(value, "default")
    if isinstance(value, (list, tuple)):
        return [*value[:-1], another(key, value[-1])] if value else [1]
    return type(value)(value * 3 / 4 or 0.3) if isinstance(value, float) else value * 2 + 1


def check_sensitive(case, plan, config, arguments):
    """No key that speaks of rotations can be changed without changing the plan."""
    changes = 0
    used = {layer.parameters for layer in plan.layers if layer.parameters}
    by_type = re.search("gemma3|modernbert|olmo3", str([m.get("model_type") for m in mappings(config)]))
    if not used or by_type and len(plan.layers) < 6:  # possibly none of the layer type that the settings are for
        return changes
    kinds = [
        m for m in mappings(config) for key, m in m.items() if str(key).endswith("_attention") and isinstance(m, dict)
    ]
    for d, key in list(rotating_keys(config)):
        old = d[key]
        if key == "no_rope_layers" and isinstance(old, list) and not old:
            continue  # as if it were not there
        if is_unread(config, key, arguments["layout"]) or d in kinds and len(used) < len(kinds):
            continue  # the last: settings for a layer type that no layer is of
        try:
            new = another(key, old)
        except (TypeError, ValueError):
            continue
        d[key] = new
        got = outcome(case, config, **arguments)
        d[key] = old
        changes += 1
        assert got != plan, f"case {case}: {key} = {old!r} and {new!r} give the same plan of {config}"
    return changes


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_broken_config_gives_the_right_plan_or_a_clear_error(chunk, record_property):
    counts = collections.Counter()
    for case in range(chunk, CASES, CHUNKS):
        config, arguments = config_of(case)
        result = outcome(case, config, **arguments)
        counts["configs"] += 1
        if isinstance(result, str):
            counts["refused"] += 1
            continue
        counts["plans"] += 1
        try:
            check_plan(result, config)
            counts.update(check_by_oracle(result, config, arguments["layout"]))
        except Exception as e:
            raise AssertionError(f"case {case}: {type(e).__name__} {e} {config}") from e
        counts["changed keys"] += check_sensitive(case, result, config, arguments)
    print(dict(counts))
    record_property("counts", str(dict(counts)))
    assert counts["plans"] > counts["configs"] / 20 and counts["refused"] > counts["configs"] / 4
    for keys, share in ((PROPERTIES, 0.95), (TELLING[:-2], 0.02)):
        assert all(counts[key] > counts["plans"] * share for key in keys)


def test_a_whole_config_gives_what_the_oracle_says():
    counts = collections.Counter()
    for config in SEEDS:
        try:
            plan = rotary_from_config(config, length=5000)
        except ValueError:
            assert config not in PUBLISHED.values()
        else:
            counts.update(["plans", *check_by_oracle(plan, config, None)])
    print(dict(counts))
    assert min(counts[key] for key in PROPERTIES) == counts["plans"] > len(SEEDS) * 0.8
    assert min(counts[key] for key in TELLING) >= 1


# Of these a config as recorded does not hold the layer types, or what else its class or the recorder made up.
MADE_UP = (
    "flint glm4_moe glm4v_moe_text glm4v_text glm_image_text kolibri1 laguna lfm3 moonshine qwen3_omni_moe_text zaya"
)


def test_the_oracle_says_what_was_recorded():
    """For every model type its widths, of those that transformers wrote down which layers rotate."""
    for name, case in configs.RECORDED.items():
        if name not in MADE_UP.split():
            want = configs.expected(case["config"])
            assert set(want["rotary_dim"]) - {0} == {2 * pairs for pairs, _, _ in case["spectra"]}, name
            assert want["layout"] == (case["layout"] or want["layout"])
            assert case["turns"] in (None, list(map(int, want["rotates"]))), name


def check_spectrum(want, index, config, length, frequencies, attention_factor):
    """A layer's frequencies by the oracle's settings against those that transformers computed."""
    settings, base, width = (want[key][index] for key in ("settings", "base", "rotary_dim"))
    assert (2 * len(frequencies), attention_factor) == (width, settings.get("attention_factor", 1.0))
    rope = {key: value for key, value in settings.items() if key != "attention_factor"} | {"rope_theta": base}
    omega, _ = spectra.from_parameters(rope, width, config.get("max_position_embeddings", 1), length)
    np.testing.assert_allclose(frequencies, np.array(omega, float), rtol=bound_of_float32(base))


def test_the_oracle_says_the_frequencies_that_were_recorded():
    for case in recorded.cases("hf_frequencies"):
        want = configs.expected(case["config"])
        check_spectrum(want, 0, case["config"], case["length"], case["frequencies"], case["attention_factor"])


@pytest.mark.parametrize("name", MODELS)
def test_the_oracle_says_what_the_recorded_models_do(name):
    model, config = MODELS[name], MODELS[name]["config"]
    unknown = config["model_type"] not in configs.RECORDED
    want = configs.expected(config, model["layout"] if unknown else None)
    layers, length = model["layers"], int(model["positions"].max()) + 1
    assert (want["layout"], want["part"]) == (model["layout"], model["part"])
    assert want["rotates"] == [layer["turns"] for layer in layers]
    assert want["head_dim"] == [layer["q_attended"].shape[-1] for layer in layers]
    for i, layer in enumerate(layers):
        if layer["turns"]:
            check_spectrum(want, i, config, length, layer["frequencies"], layer["attention_factor"])
        if want["part"] == "last":
            assert layer["softmax_scale"] * math.sqrt(want["head_dim"][i]) == want["softmax_scale"]
        scale = np.float32(1)
        if want["query_scale"][i]:
            scale = configs.query_scale(model["scale_positions"], *want["query_scale"][i])[:, None, :, None]
        np.testing.assert_allclose(scale * layer["q_rotated"], layer["q_attended"], rtol=3e-7)
