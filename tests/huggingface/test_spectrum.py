"""`frequencies_from_rope_parameters` divides pairs among coordinates, checks its arguments and caches its results.

Its errors are those of `rotary_from_config`, under its own name. Values are in test_recorded.py.
"""

import numpy as np
import pytest

import posenc_jax as pe
from posenc_jax.hf import frequencies_from_rope_parameters, rotary_from_config


def test_sections_divide_the_pairs_among_coordinates():
    settings, sections = {"rope_type": "linear", "factor": 4.0, "mrope_section": [11, 11, 10]}, (11, 11, 10)
    spectrum = pe.linear_scaling(pe.geometric(64, 5e5), 4.0)
    assert frequencies_from_rope_parameters(64, 5e5, settings) == pe.multi_section(spectrum, sections)
    assert frequencies_from_rope_parameters(64, 5e5, settings, axes=False) == spectrum
    interleaved = frequencies_from_rope_parameters(64, 5e5, settings | {"mrope_interleaved": True})
    assert interleaved == pe.multi_section(spectrum, sections, interleaved=True)
    # without settings, the rope type is "default"
    assert frequencies_from_rope_parameters(64, 500_000) == pe.geometric(64, 5e5)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rope_type": "linear", "factor": 2, "beta_fast": 32}, "beta_fast = 32 is not read by rope_type 'linear'"),
        ({"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 2048}, "length must be given"),
        ({"rope_type": "linear", "factor": True}, "rope_parameters.factor must be a number"),
    ],
)
def test_errors_are_those_of_rotary_from_config_under_the_functions_name(settings, words):
    config = {"num_hidden_layers": 1, "head_dim": 64, "rope_interleave": False, "rope_theta": 1e4}
    # rope_interleave says the layout in place of a model_type
    with pytest.raises((TypeError, ValueError), match=words) as of_reader:
        rotary_from_config(config | {"rope_parameters": settings})
    with pytest.raises(of_reader.type) as error:
        frequencies_from_rope_parameters(64, 1e4, settings)
    assert str(error.value) == str(of_reader.value).replace("rotary_from_config", "frequencies_from_rope_parameters")


@pytest.mark.parametrize(
    ("head_dim", "base", "settings", "words"),
    [
        (64, 1e4, {"rope_theta": 5e5}, "rope_parameters.rope_theta = 500000.0 contradicts rope_theta"),
        (64, 1e4, {"full_attention": {}}, "rope_parameters must be one set of settings, not one per layer type"),
        (64, 1e4, [], "rope_parameters must be a mapping"),
        (64, 1e4, {"factor": {1}}, "rope_parameters must hold numbers, strings, booleans and lists"),
        (64, 0, {}, "base must be positive"),
        (0, 1e4, {}, "head_dim must be at least 1"),
    ],
)
def test_invalid_arguments_raise(head_dim, base, settings, words):
    with pytest.raises((TypeError, ValueError), match=f"^frequencies_from_rope_parameters: {words}"):
        frequencies_from_rope_parameters(head_dim, base, settings)


def test_results_are_cached_by_value_and_type():
    settings = {"rope_type": "longrope", "factor": 32.0, "original_max_position_embeddings": 4096}
    factors = [1 + i / 32 for i in range(32)]

    def read(short_factor):  # which serves a length of 9
        changes = {"short_factor": short_factor, "long_factor": [4.0] * 32}
        return frequencies_from_rope_parameters(64, 1e4, settings | changes, length=9)

    assert read(factors) is read(np.array(factors))
    assert read(factors) != read([1.0] * 32)
    assert frequencies_from_rope_parameters(64, 1e4, {"mrope_section": [8, 12, 12]}).num_axes == 3
    with pytest.raises(TypeError, match="must be an integer"):  # though 8.0 == 8, this list is not found in the cache
        frequencies_from_rope_parameters(64, 1e4, {"mrope_section": [8.0, 12.0, 12.0]})
