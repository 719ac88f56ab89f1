"""`frequencies_from_rope_parameters`: coordinates, refusals, the cache; test_recorded.py has its values."""

import numpy as np
import pytest

import posenc_jax as pe
from posenc_jax.hf import frequencies_from_rope_parameters, rotary_from_config

LONGROPE = {"rope_type": "longrope", "factor": 32.0, "original_max_position_embeddings": 4096}
LONGROPE |= {"short_factor": [1 + i / 32 for i in range(32)], "long_factor": [1 + i * i / 4 for i in range(32)]}


def test_coordinates():
    yarn = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096}
    settings, spectrum = yarn | {"mrope_section": [11, 11, 10]}, pe.yarn(64, 5e5, 40.0, 4096)
    assert frequencies_from_rope_parameters(64, 5e5, settings) == pe.multi_section(spectrum, (11, 11, 10))
    assert frequencies_from_rope_parameters(64, 5e5, settings, axes=False) == spectrum
    interleaved = frequencies_from_rope_parameters(64, 5e5, settings | {"mrope_interleaved": True})
    assert interleaved == pe.multi_section(spectrum, (11, 11, 10), interleaved=True)
    assert frequencies_from_rope_parameters(64, 500_000) == pe.geometric(64, 5e5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rope_type": "linear", "factor": 2, "beta_fast": 32}, "beta_fast = 32 is not read by rope_type 'linear'"),
        ({"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 2048}, "length must be given"),
        ({"rope_type": "linear", "factor": True}, "rope_parameters.factor must be a number, got bool"),
    ],
)
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
        (64, 1e4, {"rope_theta": 5e5}, "rope_parameters.rope_theta = 500000.0 contradicts rope_theta = 10000.0"),
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
