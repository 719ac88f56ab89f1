"""`frequencies_from_rope_parameters`: formulas, plans, refusals, the cache."""

import numpy as np
import pytest

from helpers.spectra import assert_exact
from oracles import spectra
from posenc_jax.hf import frequencies_from_rope_parameters, rotary_from_config

LONGROPE = {"rope_type": "longrope", "factor": 32.0, "original_max_position_embeddings": 4096}
LONGROPE |= {"short_factor": [1 + i / 32 for i in range(32)], "long_factor": [1 + i * i / 4 for i in range(32)]}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}
YARN = {"factor": 40.0, "original_max_position_embeddings": 4096}
DYNAMIC = {"factor": 2.0, "max_position_embeddings": 2048}
MROPE = {"mrope_section": [8, 12, 12]}
# The settings as they are written, the same in the words of transformers 5, and the length.
CASES = {
    "none": ({}, {"rope_type": "default"}, None),
    "default": ({"rope_type": "default", "rope_theta": 500_000}, {"rope_type": "default"}, None),
    "a share": ({"partial_rotary_factor": 0.25}, {"rope_type": "default", "partial_rotary_factor": 0.25}, None),
    "linear": ({"type": "linear", "factor": 8}, {"rope_type": "linear", "factor": 8}, None),
    "dynamic": ({"type": "dynamic", **DYNAMIC}, {"rope_type": "dynamic", **DYNAMIC}, 5000),
    "yarn": ({"type": "yarn", **YARN}, {"rope_type": "yarn", **YARN}, None),
    "yarn, its own amplitude": ({"rope_type": "yarn", "attention_factor": 1.5, **YARN},) * 2 + (None,),
    "yarn, not truncated": ({"rope_type": "yarn", "truncate": False, **YARN},) * 2 + (None,),
    "yarn, mscale": ({"rope_type": "yarn", "mscale": 1.0, "mscale_all_dim": 0.8, **YARN},) * 2 + (None,),
    "longrope, short": (LONGROPE, LONGROPE, 4096),
    "longrope, long": (LONGROPE | {"rope_type": "su"}, LONGROPE, 4097),
    "llama3": (LLAMA3, LLAMA3, None),
    "proportional": ({"rope_type": "proportional", "partial_rotary_factor": 0.25},) * 2 + (None,),
    "sections": ({"type": "mrope", **MROPE}, {"rope_type": "default", **MROPE}, None),
    "interleaved sections": ({"rope_type": "default", "mrope_section": [11, 11, 10], "mrope_interleaved": True},) * 2
    + (None,),
}


@pytest.mark.parametrize("written, rope, length", CASES.values(), ids=CASES)
def test_formulas(written, rope, length):
    omegas, amplitude = spectra.from_parameters(rope | {"rope_theta": 500_000}, 64, 2048, length)
    f = frequencies_from_rope_parameters(64, 500_000, written, length=length)
    assert_exact(f, omegas)
    assert f.attention_factor == pytest.approx(float(amplitude), rel=1e-15)
    np.testing.assert_array_equal(f.axes, spectra.axes_from_parameters(rope, len(omegas)))
    text = frequencies_from_rope_parameters(64, 500_000, written, length=length, axes=False)
    assert text.num_axes == 1 and (text.cycles, text.attention_factor) == (f.cycles, f.attention_factor)


REFUSED = {
    "an unknown type": ({"rope_type": "yran"}, "rope_parameters.rope_type must be one of"),
    "an unknown key": (
        {"type": "linear", "factor": 2, "fcator": 3},
        "the key rope_parameters.fcator = 3 is not read by rope_type 'linear'",
    ),
    "an unused key": (
        {"rope_type": "linear", "factor": 2, "beta_fast": 32},
        "beta_fast = 32 is not read by rope_type 'linear'",
    ),
    "a missing key": ({"rope_type": "linear"}, "rope_parameters.factor is missing"),
    "no type": ({"factor": 2.0}, "rope_parameters.factor = 2.0 is not read by the rope_type 'default'"),
    "no maximum": ({"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings is missing"),
    "no length": ({"rope_type": "dynamic", **DYNAMIC}, "length must be given"),
    "a flag for a number": (
        {"rope_type": "linear", "factor": True},
        "rope_parameters.factor must be a number, got bool",
    ),
    "a float for an integer": ({"mrope_section": [8.0, 12, 12]}, r"mrope_section\[0\] must be an integer, got float"),
}


@pytest.mark.parametrize("settings, message", REFUSED.values(), ids=REFUSED)
def test_refused_as_by_the_reader(settings, message):
    config = {"num_hidden_layers": 1, "head_dim": 64, "rope_interleave": False, "rope_theta": 1e4}
    with pytest.raises((TypeError, ValueError), match=message) as of_reader:
        rotary_from_config(config | {"rope_parameters": settings})
    with pytest.raises(of_reader.type) as error:
        frequencies_from_rope_parameters(64, 1e4, settings)
    assert str(error.value) == str(of_reader.value).replace("rotary_from_config", "frequencies_from_rope_parameters")


def test_refused_without_a_config():
    of_types = {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "default"}}
    for head_dim, base, settings, message in [
        (64, 1e4, {"rope_theta": 5e5}, "base = 10000.0 contradicts rope_parameters.rope_theta = 500000.0"),
        (64, 1e4, of_types, "rope_parameters must be one set of settings, not those of layer types"),
        (64, 1e4, [], "rope_parameters must be a mapping, got list"),
        (64, 1e4, {"factor": {1}}, "rope_parameters must hold numbers, strings, booleans and lists, got set"),
        (64, 0, {}, "base must be positive"),
        (0, 1e4, {}, "head_dim must be at least 1"),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            frequencies_from_rope_parameters(head_dim, base, settings)


def test_cached_by_value():
    def read(**changes):
        return frequencies_from_rope_parameters(64, 1e4, LONGROPE | changes, length=9)

    assert read() is read()
    assert read(short_factor=np.array(LONGROPE["short_factor"])) is read()
    assert read(short_factor=[1.0] * 32) != read()
    assert frequencies_from_rope_parameters(64, 1e4, {"mrope_section": [8, 12, 12]}).num_axes == 3
    with pytest.raises(TypeError, match="must be an integer"):  # equal to the list before
        frequencies_from_rope_parameters(64, 1e4, {"mrope_section": [8.0, 12.0, 12.0]})
