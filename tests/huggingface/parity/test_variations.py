"""With settings of every rope type, a plan of every model type has the frequencies of the class, or is refused."""

import itertools
import re

import numpy as np
import pytest
from embeddings import config_of, new_embedding, spectra_of
from rotary import TYPES

from posenc_jax import hf
from posenc_jax.hf import _models

LENGTH = 3000  # for "dynamic" and "longrope": between the two original lengths below
OUTER = {"bailing_hybrid", "cohere2_moe"}  # their classes keep a base beside the settings
# Types whose share of rotated features is fixed by other keys, so that another share contradicts them.
SHARED = {"deepseek_v4", "mistral4"}
# Reasons for which a plan may be refused.
REFUSALS = re.compile(
    "sections must sum|even number|max_position_embeddings is missing|contradicts (rotary|qk_rope_head)_dim|"
    "ignores rotary_dim|must be {} in model_type 'esm'"
)
SHORT, LONG = {"original_max_position_embeddings": 512}, {"original_max_position_embeddings": 4096}
SETTINGS = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 2.5},
    {"rope_type": "dynamic", "factor": 7.5},
    {"rope_type": "yarn", "factor": 20.0, "beta_fast": 20.0, "beta_slow": 2.0} | LONG,
    {"rope_type": "yarn", "factor": 3.5, "mscale": 1.0, "mscale_all_dim": 0.7} | SHORT,
    {"rope_type": "yarn", "factor": 3.5, "attention_factor": 1.25} | SHORT,
    {"rope_type": "longrope", "factor": 8.0} | SHORT,
    {"rope_type": "longrope", "factor": 8.0} | LONG,
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0} | LONG,
]


def vary(model_type, first, share):
    """A config with `SETTINGS[first]` and this share of rotated features; other layer types have other settings."""
    model, base = _models.MODELS[model_type], TYPES[model_type]
    usual = config_of(base)
    plan = hf.rotary_from_config(usual.to_dict(), length=LENGTH)
    rotating = next(layer for layer in plan.layers if layer.rotary_dim)
    pairs = (rotating.rotary_dim if model.latent or model.partial is None else rotating.head_dim) // 2
    own = {"mrope_section": list(dict(rotating.settings)["mrope_section"])} if model.sections else {}
    own |= {"llama_4_scaling_beta": 0.1} if model.query_scale == "beta" else {}
    if share and model.partial is not None:
        own, pairs = own | {"partial_rotary_factor": share}, int(pairs * share)
    lists = {f"{name}_factor": np.linspace(1, last, pairs).tolist() for name, last in (("short", 2), ("long", 5))}
    drawn = [x | own | (lists if x["rope_type"] == "longrope" else {}) for x in SETTINGS[first:] + SETTINGS[:first]]
    drawn = [x | {"rope_theta": 10 ** (3.25 + i)} for i, x in enumerate(drawn)]
    kinds = dict.fromkeys(getattr(usual, "layer_types", None) or ()) if model.nested else ()
    outer = {"rope_theta": drawn[0]["rope_theta"]} if model_type in OUTER else {}
    return base | outer | {"rope_parameters": dict(zip(kinds, drawn, strict=False)) or drawn[0]}


def compare(model_type, first, share):
    """ "read" after comparing frequencies with the class, "refused by the class", or the package's error."""
    varied = vary(model_type, first, share)
    try:
        config = config_of(varied)
        embedding, kinds = new_embedding(config), getattr(config, "layer_types", None) or [""]
        spectra = spectra_of(embedding, kinds, LENGTH)
    except Exception:  # of the class or its validation
        return "refused by the class"
    try:
        plan = hf.rotary_from_config(config.to_dict(), length=LENGTH)
    except (TypeError, ValueError) as error:
        return str(error)
    for i, layer in enumerate(plan.layers):
        if layer.rotary_dim:
            inverse, amplitude = spectra[kinds[i % len(kinds)]]
            ours = layer.frequencies.angular
            ours, inverse = np.sort(np.abs(ours)), np.sort(inverse)  # nanochat's code, not its class, goes backwards
            # Between two bounds, float32 rounds multiples of the frequency that the factor divides.
            rtol = max(3e-6, 2**-23 * dict(layer.settings).get("factor", 1))
            np.testing.assert_allclose(ours, inverse, rtol=rtol, err_msg=str(varied))
            assert layer.frequencies.attention_factor == pytest.approx(amplitude, rel=1e-6), varied
    return "read"


@pytest.mark.parametrize("model_type", [name for name in TYPES if name not in SHARED])
def test_a_variation_has_the_frequencies_of_the_class_or_is_refused(model_type):
    found = [compare(model_type, *x) for x in itertools.product(range(len(SETTINGS)), (None, 0.25, 0.5))]
    assert all(REFUSALS.search(x) for x in found if x not in ("read", "refused by the class")), found
    assert ("read" in found) == (model_type != "esm")  # its class takes the default settings alone
