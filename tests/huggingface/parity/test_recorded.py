"""The installed libraries compute what tests/oracles/recorded holds, to which other tests compare the package."""

import json

import numpy as np
import pytest
import record

# Files of frequencies, whose floats have a relative bound. Other files have numbers of order 1, with an absolute bound:
# powers and the order of sums differ between machines.
SPECTRA = {"hf_frequencies", "hf_model_types", "hf_published"}
# What differs between machines: the releases, and how far powers in float32 are off.
VERSIONS = record.PEERS | {"versions", "transformers_version", "error"}


def split(values):
    """The values without versions and with None for each float, and the list of floats."""
    floats, others = [], lambda items: {key: value for key, value in items.items() if key not in VERSIONS}
    text = json.dumps(values, default=record.as_lists, sort_keys=True)
    return json.loads(text, parse_float=lambda digits: floats.append(float(digits)), object_hook=others), floats


@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")  # WavLM's own masks
@pytest.mark.parametrize("name", sorted(record.RECORDERS))
def test_installed_libraries_compute_what_is_recorded(name):
    try:
        fresh = record.fresh(name)
    except ModuleNotFoundError as error:  # each is in the dependency group "parity"
        pytest.skip(str(error))
    (old, old_floats), (new, new_floats) = map(split, (record.read(name), fresh))
    assert new == old
    np.testing.assert_allclose(new_floats, old_floats, rtol=2**-22, atol=0 if name in SPECTRA else 1e-5)
