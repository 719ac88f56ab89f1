"""Rope settings at random, for every model type: the plan has the frequencies of the model's own class, or is refused."""

import random
import re

import numpy as np
import pytest
from embeddings import config_of, new_embedding, spectra_of
from rotary import TYPES

from posenc_jax import hf
from posenc_jax.hf import _models

VARIATIONS = 12
LENGTH = 3000  # of "dynamic" and "longrope"; between the lengths that are drawn
OUTER = {"bailing_hybrid", "cohere2_moe"}  # their classes keep a base beside the settings
# Their classes have the rotated part as a share only, which a drawn one would contradict.
SHARED = {"deepseek_v4", "mistral4"}
# The class holds ERNIE's frequencies by coordinate; nanochat's rotation, not its class, goes backwards.
REORDERED = {"ernie4_5_vl_moe_text", "nanochat"}
# Of these no variation is read: the class, or what it writes down, takes only its default settings.
FIXED = {"cosmos3_edge_text", "esm", "phimoe"}
REFUSALS = re.compile(
    "sections must sum|even number|max_position_embeddings is missing|contradicts (rotary|qk_rope_head)_dim|"
    "ignores rotary_dim|must be {} in model_type 'esm'"
)


def draw(rng, model, pairs):
    """Rope settings of one layer type, whose spectrum has `pairs` pairs if the whole head rotates."""
    share = rng.choice([None, 0.25, 0.5]) if model.partial is not None else None
    kind = rng.choice(["default", "linear", "dynamic", "yarn", "longrope", "llama3"])
    settings = {"rope_type": kind, "rope_theta": 10 ** rng.uniform(2, 7)}
    settings |= {"partial_rotary_factor": share} if share else {}
    settings |= {"llama_4_scaling_beta": 0.1} if model.query_scale == "beta" else {}
    if kind != "default":
        settings["factor"] = rng.uniform(1, 40)
    if kind in ("yarn", "longrope", "llama3"):
        settings["original_max_position_embeddings"] = rng.choice([512, 2048, 4096])
    if kind == "yarn":
        settings |= rng.choice([{}, {"beta_fast": 20.0, "beta_slow": 2.0}, {"attention_factor": 1.25}])
        settings |= rng.choice([{}, {"mscale": 1.0, "mscale_all_dim": 0.7}, {"mscale": 0.7}])
    if kind == "llama3":
        settings |= {"low_freq_factor": 1.0, "high_freq_factor": rng.choice([2.0, 4.0])}
    if kind == "longrope":
        width = int(pairs * (share or 1))
        settings |= {name: [rng.uniform(1, 5) for _ in range(width)] for name in ("short_factor", "long_factor")}
    return settings


def vary(model_type, seed):
    """A config whose rope settings are drawn, and keys of one layer type's settings that stand outside them too."""
    rng, model, base = random.Random(f"{model_type} {seed}"), _models.MODELS[model_type], TYPES[model_type]
    usual = config_of(base)
    plan = hf.rotary_from_config(usual.to_dict(), length=LENGTH)
    rotating = next(layer for layer in plan.layers if layer.rotary_dim)
    pairs = (rotating.rotary_dim if model.latent or model.partial is None else rotating.head_dim) // 2
    own = {"mrope_section": list(dict(rotating.settings)["mrope_section"])} if model.sections else {}
    kinds = dict.fromkeys(getattr(usual, "layer_types", None) or ()) if model.nested else ()
    drawn = {kind: draw(rng, model, pairs) | own for kind in kinds} or draw(rng, model, pairs) | own
    base = base | {"rope_parameters": drawn} | ({"rope_theta": drawn["rope_theta"]} if model_type in OUTER else {})
    if not model.nested or model.bases:
        return base, {}
    repeated = drawn[rng.choice([*drawn])]
    keys = [key for key in ("rope_theta", "partial_rotary_factor") if key in repeated]
    return base, {key: repeated[key] for key in keys if rng.choice([True, False])}


def compare(model_type, seed):
    """Whether a variation is read; its frequencies are then those of the model's class."""
    varied, outer = vary(model_type, seed)
    try:
        config = config_of(varied | outer)
        embedding, kinds = new_embedding(config), getattr(config, "layer_types", None) or [""]
        spectra = spectra_of(embedding, kinds, LENGTH)
    except Exception:  # whatever the class or its validation says of settings that it does not take
        return "refused by the class"
    try:
        plan = hf.rotary_from_config(config.to_dict() | outer, length=LENGTH)
    except (TypeError, ValueError) as error:
        return str(error)
    for i, layer in enumerate(plan.layers):
        if layer.rotary_dim:
            inverse, amplitude = spectra[kinds[i % len(kinds)]]
            ours = layer.frequencies.angular
            if model_type in REORDERED:
                ours, inverse = np.sort(np.abs(ours)), np.sort(inverse)
            # Between two bounds, float32 rounds multiples of the frequency that the factor divides.
            rtol = max(3e-6, 2**-23 * dict(layer.settings).get("factor", 1))
            np.testing.assert_allclose(ours, inverse, rtol=rtol, atol=0, err_msg=str(varied))
            assert layer.frequencies.attention_factor == pytest.approx(amplitude, rel=1e-6), varied
    return "read"


@pytest.mark.parametrize("model_type", [name for name in TYPES if name not in SHARED])
def test_variations(model_type):
    found = [compare(model_type, seed) for seed in range(VARIATIONS)]
    assert all(REFUSALS.search(x) for x in found if x not in ("read", "refused by the class")), found
    assert ("read" in found) == (model_type not in FIXED)
