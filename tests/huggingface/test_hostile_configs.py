"""Configs of Hugging Face, broken at random: a plan that is right by the formulas, or an error that names the key.

What a plan says is held against an oracle that shares nothing with the library, and its spectra against the formulas.
POSENC_HOSTILE=N multiplies the number of configs (`nox -s fuzz`). A failure names its case: `config_of(case)`.
"""

import collections
import copy
import dataclasses
import functools
import json
import math
import os
import random
import re

import numpy as np
import pytest

from helpers.plans import WithToDict
from helpers.rope import bound_of_float32
from helpers.tiers import thorough, tiered
from huggingface.seeds import CHANGES, OWN, SEEDS
from oracles import configs, recorded, spectra
from posenc_jax.hf import plan_to_config, rotary_from_config
from posenc_jax.hf._models import MODELS as TYPES

CASES = 3000 * int(os.environ.get("POSENC_HOSTILE", "1"))
CHUNKS = 4
MODELS = recorded.rotations()["models"]
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
        "full_attention sliding_attention use_rope rope_scaling_layers hybrid_layer_pattern swa_rope_theta swa_head_dim "
        "swa_qk_nope_head_dim swa_qk_rope_head_dim attention_windows use_mem_rope use_long_context index_head_dim "
        "indexer_head_dim indexer_rope_interleave query_scales attn_factor extrapolation_factor apply_yarn_scaling "
        "short_mscale long_mscale use_logn_attn use_dynamic_ntk seq_length block_configs attn_type_list "
        "hybrid_override_pattern partial_rotary_factors use_rope_layers yarn_only_types layer_group_size "
        "prefix_dense_sliding_window_pattern first_k_dense_replace mlp_layer_types dual_chunk_attention_config "
        "num_nextn_predict_layers num_layers_per_stack attn_config sparse_attention_config use_sliding_window "
        "decoder_num_hidden_layers decoder_num_attention_heads rotary_value compression_ratio llm_config chunk_size "
        "local_size attention layer_rope_theta num_transformer_layers rope_freq_constant rope_pct hybrid "
        "hybrid_sliding indexed_attention rope_dim use_mla nope_layer_interval lm_config "
        "mrope_alternating rope_backward main compress".split()
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


# What an error may speak of though the config does not: an argument, what is computed, what a default is.
SPOKEN_OF = {"layout", "length", "config", "head_dim", "rope_parameters", "rope_type", "rotary_dim", "index_head_dim"}
SUBJECT = re.compile(
    r"rotary_from_config: (?:the key |the width of |the language model of '\w+' must be a '\w+', got |the base of |the square that |the layer types \[.*\] of |the layer type '\w+' is not known for )?([\w.]+)"
)

SPELLING = re.compile(r" \(by the spelling of model_type '.+?': (.+)\)$")


def check_clear(case, config, message):
    """An error names the key at fault, as the config writes it, and its value; or keys that are missing."""
    assert message.startswith("rotary_from_config: ") and message.count("rotary_from_config: ") == 1, (case, message)
    keys, subject = {str(key) for m in mappings(config) for key in m}, SUBJECT.match(message)
    spelling = SPELLING.search(message)  # names keys in the place of the config's own
    if spelling and subject:
        message, said = message[: spelling.start()], subject[1].split(".")
        keys |= {*said} if {said[-1], *re.findall(r"\w+", spelling[1])} & (keys | SPOKEN_OF) else set()
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
    rope = dict(parameters)
    if rope["rope_type"] == "dynamic_steps":  # Qwen 1
        rope |= {"rope_type": "dynamic", "alpha": max(2.0 ** math.ceil(math.log2(length / maximum) + 1) - 1, 1.0)}
    omega, amplitude = spectra.from_parameters(rope, head_dim, maximum, length)
    return spectra.turns([-x for x in omega] if rope.get("rope_backward") else omega), amplitude


def check_layer(layer, length):
    """A layer's frequencies by the formulas, from its settings."""
    rope = dict(layer.settings)
    head_dim = layer.head_dim
    if layer.rotary_dim == 0:
        assert not rope
        return
    if rope.get("factor", 1) > 1e40 or layer.rotary_dim > 1024:
        return  # the reference has 60 digits, and takes its time
    if rope.get("original_max_position_embeddings") == 1:
        return  # the amplitude, which attention_factor replaces, would divide by its logarithm
    share = 1 if rope["rope_type"] == "proportional" else rope.get("partial_rotary_factor", 1)
    if layer.rotary_dim != int(head_dim * share):
        head_dim = layer.rotary_dim  # of latent attention
    cycles, amplitude = true_spectrum(layer.settings, head_dim, rope.get("max_position_embeddings", 1), length)
    assert max(abs(a - b) for a, b in zip(layer.frequencies.cycles, cycles, strict=True)) <= 2
    assert abs(layer.frequencies.attention_factor - amplitude) <= 4e-16 * abs(amplitude)
    if "mrope_alternating" in rope:  # height and width in turn, then time
        height, _, time = rope["mrope_section"]
        assert layer.frequencies.axes == (1, 2) * height + (0,) * time
    elif "mrope_section" in rope:
        assert layer.frequencies.axes == tuple(spectra.axes_from_parameters(rope, len(cycles)))


# Rope settings that a layer's own must repeat wherever they are written.
SETTINGS = "factor alpha low_freq_factor high_freq_factor attention_factor short_factor long_factor".split()


def check_said(plan, config):
    """What the config writes is what the plan says."""
    text = next((config[k] for k in ("thinker_config", "text_config", "language_config") if config.get(k)), None)
    if text is not None:
        return check_said(plan, text)
    of_all = [dict(layer.settings) for layer in plan.layers if layer.settings]
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
        types = config.get("layer_types")
        one_type = isinstance(types, list) and len(set(types)) == 1 or config.get("layer_rope_theta")
        if of_all and config.get(key) is not None and not one_type and not isinstance(config[key], list):
            unused = "local" in key and len(thetas) == 1  # all layers have full attention
            if config.get("model_type") == "deepseek_v4":  # rope_theta is for sliding layers
                unused = "sliding_attention" not in (types or ()) and 0 not in (config.get("compress_ratios") or ())
            assert config[key] in thetas or len(plan.layers) < 6 or unused, key
    counted_otherwise = config.get("model_type") in ("hrm_text", "longcat_flash", "nemotron_h")
    for key in ("num_hidden_layers", "n_layer", "num_layers") if config.get("model_type") != "dory" else ():
        assert counted_otherwise or config.get(key) in (None, len(plan.layers))


PROPERTIES = (*configs.OF_LAYERS, "layout", "part", "softmax_scale", "indexer", "rotates_values")


def read_off(plan):
    """What a plan says, by property, as the oracle puts it."""
    layers = []
    for layer in plan.layers:
        settings, scale = dict(layer.settings), layer.query_scale
        base, kind = settings.pop("rope_theta", None), settings.get("rope_type")
        if kind != "proportional":
            settings.pop("partial_rotary_factor", None)  # rotary_dim says it
        assert layer.learned_log_factor == settings.get("learned_log_factor")
        scale = scale and dataclasses.astuple(scale)
        layers.append((layer.rotary_dim > 0, layer.head_dim, layer.rotary_dim, base, settings, scale))
    rows = map(list, zip(*layers, strict=True))
    own = plan.indexer
    first = own and own.layers[0]
    indexer = own and (
        own.layout,
        own.part,
        first.head_dim,
        first.query_scale and dataclasses.astuple(first.query_scale),
    )
    if own:
        spectra = [[(how.frequencies, how.learned_log_factor) for how in either.layers] for either in (plan, own)]
        assert spectra[0] == spectra[1] and len({layer.head_dim for layer in own.layers}) == own.softmax_scale == 1
        assert len({layer.query_scale for layer in own.layers}) == 1
    rest = plan.layout, plan.part, plan.softmax_scale, indexer, plan.rotates_values
    return dict(zip(PROPERTIES, (*rows, *rest), strict=True))


# What few plans say: without them the comparison would see no more than the usual.
TELLING = (
    "interleaved", "latent", "layers of two kinds", "layers without positions", "parts of a head", "bases of a class",
    "scaled", "indexers", "query scales", "softmax scales",
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
        plan.indexer is not None,
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
    "short_mscale", "long_mscale",  # the length chooses between them
    "rope_scaling_layers",  # where there is no scaling
    "apply_yarn_scaling",  # where the amplitude is 1
}  # fmt: skip
SPEAKS = re.compile("rope|rotary|theta|alibi|index(er)?_head_dim|attn_type_list|query_scales")


def rotating_keys(config, within=False):
    """(mapping, key) of each value that speaks of rotations."""
    for key, value in config.items():
        if key in UNREAD:
            continue
        if isinstance(value, dict) and (
            within or SPEAKS.search(str(key)) or str(key).endswith(("text_config", "thinker_config"))
        ):
            yield from rotating_keys(value, within=not str(key).endswith("_config"))
        elif (within or SPEAKS.search(str(key))) and value is not None:
            yield config, key


def is_unread(config, key, layout):
    """Whether a plan may leave a key unread: transformers does not read it either, or another key overrules it."""
    settings = {key for m in mappings(config) for key in m}
    return (
        key in UNREAD
        or "interleave" in str(key)
        and layout is not None  # what the caller says
        or str(key).startswith("beta_")
        and "alpha" in settings  # Hunyuan
        or config.get("model_type") == "cohere_compass_text"
        and key in ("rope_type", "rope_theta")
        and key in (config.get("rope_parameters") or {})  # beside the layer types
    )


FLAGS = (
    *"interleave interleaved alternating backward alibi rotary rope rotary_embedding nope yarn_scaling on_values".split(),
)


def another(key, value):
    """Another value of the same type."""
    if isinstance(value, (bool, np.bool_)) or str(key).endswith(FLAGS):
        return not value
    if isinstance(value, str):
        return {"linear": "dynamic", "default": "linear", "mrope": "linear"}.get(value, "default")
    if isinstance(value, (list, tuple)):
        return [another(key, value[0]), *value[1:]] if value else [1]
    return type(value)(value * 3 / 4 if value * 3 / 4 != value else 0.3) if isinstance(value, float) else value * 2 + 3


def check_sensitive(case, plan, config, arguments):
    """No key that speaks of rotations can be changed without changing the plan."""
    changes = 0
    used = {layer.settings for layer in plan.layers if layer.settings}
    names = str([m.get("model_type") for m in mappings(config)])
    by_type = re.search("gemma3|gemma2_|modernbert|olmo3|dots3|neomme|ultrabert", names)
    none_scaled = config.get("rope_scaling_layers") == []
    one_spectrum = "deepseek_v4" in names and len(used) == 1
    if (
        not used or one_spectrum or none_scaled or by_type and len(plan.layers) < 6
    ):  # possibly none of the layer type that the settings are for
        return changes
    kinds = [
        value
        for m in mappings(config)
        for key, value in m.items()
        if re.search("_attention$|^hybrid", str(key)) and isinstance(value, dict)
    ]
    for d, key in list(rotating_keys(config)):
        old = d[key]
        if key == "no_rope_layers" and isinstance(old, list) and not old:
            continue  # as if it were not there
        unused = any(d is m for kind in kinds for m in mappings(kind)) or d is config and key == "rope_theta"
        unused = unused and len(used) < len(kinds) or "local" in str(key) and len(used) == 1
        if unused or is_unread(config, key, arguments["layout"]):
            continue  # the first: settings or a base for a layer type that no layer is of
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


@pytest.mark.parametrize("chunk", tiered(range(CHUNKS), [0]))
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
    for keys, share in ((PROPERTIES, 0.95), (TELLING[:-3], 0.02)):
        assert all(counts[key] > counts["plans"] * share for key in keys)


def test_a_share_that_is_none_is_refused_by_its_own_name():
    config = {"model_type": "step3p5", "num_hidden_layers": 6, "num_attention_heads": 64, "partial_rotary_factor": 4096}
    config |= {"max_position_embeddings": 128_000, "layer_types": ["full_attention"] * 6}
    settings = {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}
    message = outcome(0, config | settings, length=9, layout="half")
    assert "partial_rotary_factor must be more than 0 and at most 1, got 4096" in message
    config = {k: x for k, x in config.items() if k != "partial_rotary_factor"} | settings
    for word in ("rotary_pct", "rotary_emb_fraction"):  # the code does not read them
        assert outcome(0, config | {word: 1.0}) == outcome(0, config)
        assert f"contradicts {word} (of 128) = 64" in outcome(0, config | {word: 0.5})


def test_a_whole_config_gives_what_the_oracle_says():
    counts = collections.Counter()
    for config in SEEDS:
        counts.update(check_by_oracle(rotary_from_config(config, length=5000), config, None))
    print(dict(counts))
    assert min(counts[key] for key in PROPERTIES) == len(SEEDS)
    assert min(counts[key] for key in TELLING) >= 1


OVERLAPPING = 2, 3, 5, 9, 12, 14, 15, 16, 17  # another case changes the same keys, or few configs read them


@pytest.mark.parametrize(
    ("change", "read"),
    [thorough(*case) if i in OVERLAPPING else case for i, case in enumerate(CHANGES)],
    ids=[" ".join(change) for change, _ in CHANGES],
)
def test_a_changed_config_gives_what_the_oracle_says(change, read):
    """And as many of them are read as should be."""
    plans = 0
    for config in (*OWN, *(case["config"] for case in configs.RECORDED.values())):
        changed = {key: value for key, value in (config | change).items() if value is not ...}
        result = outcome(1, changed, length=5000)
        if not isinstance(result, str):
            check_by_oracle(result, changed, None)
            plans += 1
    assert plans == read


def test_every_model_type_has_a_seed_and_its_place_in_the_oracle():
    seeds = {configs.text_of(config).get("model_type") for config in SEEDS}
    assert TYPES.keys() == configs.KNOWN and TYPES.keys() <= seeds | {f"{name}_text" for name in seeds}


def test_the_oracle_says_what_was_recorded():
    """For every model type its widths, of those that transformers wrote down which layers rotate."""
    for name, case in configs.RECORDED.items():
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
