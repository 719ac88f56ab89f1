"""A config broken at random gives a plan that is right by the formulas, or an error that names a key.

POSENC_HOSTILE=N multiplies the number of configs (`nox -f maintenance.py -s fuzz`). A failure names its case, an
integer, of which `config_of(case)` makes the config again.
"""

import copy
import functools
import json
import math
import os
import random
import re

import numpy as np

from helpers.plans import WithToDict
from huggingface.test_reading import READ
from oracles import recorded, spectra
from posenc_jax.hf import plan_to_config, rotary_from_config

CASES = 750 * int(os.environ.get("POSENC_HOSTILE", "1"))
# Configs to break: published ones that are not long, and those of test_reading.py.
SEEDS = [case["config"] for case in recorded.cases("hf_published") if len(str(case["config"])) < 3000]
SEEDS += [config for config, _ in READ]
# Names of keys that are widths: large widths are avoided, because their spectra take long.
WIDTH = re.compile("dim|channels|hidden|embd|d_model")
# Values that are put where a config should have something else.
JUNK = [
    *(None, True, False, 0, 1, 3, -1, 0.5, 1.5, -0.0, 5e-324, 1e308, 10**9, 10**400, 2**31 - 1, 2**63, float("nan")),
    *(float("inf"), "", "8.0", "yarn", "0x10", "²", "é" * 500, b"x", 1j, object(), float, [], [None], [1, 2], [[1]]),
    *(["1"] * 8, ["full_attention"], [0.0] * 8, [1e308] * 8, (1, 2), {1, 2}, range(3), {}, {1: 2}, {"a": {}}),
    *({"full_attention": None}, np.float32(2), np.int64(4), np.bool_(True), np.array(2.0), np.arange(3)),
]


def mappings(config, depth=3):
    """A config and the mappings inside it, down to a depth."""
    inner = [m for value in config.values() if isinstance(value, dict) and depth for m in mappings(value, depth - 1)]
    return [config, *inner]


NAMES = sorted({str(key) for config in SEEDS for m in mappings(config) for key in m})
# Words that an error may name though the config has no such key: keys of other configs, arguments, computed values.
NAMEABLE = {
    *NAMES,
    *"length layout config width layers class heads rotary embedding settings text_config".split(),
}


def mutate(config, rng):
    """Breaks a mapping: it adds, loses or renames a key, or takes junk, a key of another config, or a changed value."""
    d = rng.choice(mappings(config))  # changed in place
    key, kind = rng.choice([*d, None]), rng.randrange(6)
    if kind == 0 or key is None:
        d[rng.choice(NAMES)] = copy.deepcopy(rng.choice(JUNK))
    elif kind == 1:
        del d[key]
    elif kind == 2:
        value, name = d.pop(key), rng.choice(NAMES)
        d[name] = min(value, 4096) if WIDTH.search(name) and isinstance(value, int) else value
    elif kind == 3:
        d[key] = copy.deepcopy(rng.choice(JUNK))
    elif kind == 4 and (other := rng.choice(mappings(rng.choice(SEEDS)))):
        name = rng.choice(sorted(other, key=str))
        d[name] = copy.deepcopy(other[name])
    elif isinstance(d[key], list):
        d[key] = d[key][:-1] if rng.random() < 0.5 else d[key] * 2
    elif isinstance(d[key], (int, float)) and abs(d[key]) < 1e9:
        d[key] *= rng.choice([2, 0.5, -1, 2.0, 1e300])


def config_of(case):
    """The broken config of a case, an integer, and arguments of `rotary_from_config`."""
    rng = random.Random(case)
    config = copy.deepcopy(rng.choice(SEEDS))
    for _ in range(rng.choice([1, 1, 2, 3])):
        mutate(config, rng)
    length = rng.choice([None, 9, 5000, 100_000, 2**31 - 1])
    return config, {"length": length, "layout": rng.choice([None, None, "half"])}


def check_message(message, config):
    """An error names the function once, some key of a config (or an argument), and a value or what is missing."""
    assert message.startswith("rotary_from_config: ") and message.count("rotary_from_config: ") == 1
    keys = {str(key) for m in mappings(config) for key in m} | NAMEABLE
    assert " missing" in message or keys & {*re.findall(r"\w+", message)}
    assert re.search(r" = |, got |'|is missing|must be given|layer types \[|keys that are strings", message)


@functools.lru_cache(maxsize=4096)
def true_spectrum(parameters, head_dim, maximum, length):
    """The oracle's cycles per position, in units of 2⁻¹²⁸, and its amplitude."""
    rope = dict(parameters)
    if rope.get("dynamic_steps"):  # Qwen 1
        rope |= {"alpha": max(2.0 ** math.ceil(math.log2(length / maximum) + 1) - 1, 1.0)}
    omega, amplitude = spectra.from_parameters(rope, head_dim, maximum, length)
    return spectra.turns([-x for x in omega] if rope.get("rope_backward") else omega), amplitude


def check_layer(layer, length):
    """A layer's frequencies are those of the formulas, by its settings."""
    rope, head_dim, f = dict(layer.settings), layer.head_dim, layer.frequencies
    if layer.rotary_dim == 0:
        assert not rope
        return
    if rope.get("factor", 1) > 1e40 or layer.rotary_dim > 1024 or rope.get("original_max_position_embeddings") == 1:
        return  # the oracle would take long, by its 60 digits, or divide by the logarithm of 1
    share = 1 if rope["rope_type"] == "proportional" else rope.get("partial_rotary_factor", 1)
    if layer.rotary_dim != int(head_dim * share):
        head_dim = layer.rotary_dim  # in latent attention
    cycles, amplitude = true_spectrum(layer.settings, head_dim, rope.get("max_position_embeddings", 1), length)
    assert max(abs(a - b) for a, b in zip(f.cycles, cycles, strict=True)) <= 2  # units of 2⁻¹²⁸ cycles
    assert abs(f.attention_factor - amplitude) <= 4e-16 * abs(amplitude)
    if "mrope_alternating" in rope:  # the pairs of height and width alternate, then come those of time
        height, _, time = rope["mrope_section"]
        assert f.axes == (1, 2) * height + (0,) * time
    elif "mrope_section" in rope:
        assert f.axes == tuple(spectra.axes_from_parameters(rope, len(cycles)))


def test_a_broken_config_gives_a_right_plan_or_a_clear_error():
    """A plan's written config gives the same plan again."""
    plans = 0
    for case in range(CASES):
        config, arguments = config_of(case)
        try:
            try:
                plan = rotary_from_config(WithToDict(config) if case % 3 == 0 else config, **arguments)
            except (TypeError, ValueError) as error:
                check_message(str(error), config)
                continue
            plans += 1
            for layer in set(plan.layers):
                check_layer(layer, plan.length)
            written = json.loads(json.dumps(plan_to_config(plan)))
            assert rotary_from_config(written, length=plan.length) == plan
        except Exception as error:
            raise AssertionError(f"case {case}: {type(error).__name__} {error} {config}") from error
    assert CASES / 5 < plans < CASES * 4 / 5  # neither plans nor errors are rare
