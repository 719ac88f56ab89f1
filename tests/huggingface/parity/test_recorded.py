"""What the installed libraries compute is what is recorded of them, from which the other tests take it."""

import json

import numpy as np
import pytest
import record

# Powers are the machine's own, and so is the order of sums: beside spectra, attention is compared, of order 1.
SPECTRA = {"hf_frequencies", "hf_model_types", "hf_published"}
VERSIONS = record.PEERS | {"versions", "transformers_version"}


def split(values):
    """Without versions and with None for floats; and the floats."""
    floats, others = [], lambda items: {key: value for key, value in items.items() if key not in VERSIONS}
    text = json.dumps(values, default=record.as_lists, sort_keys=True)
    return json.loads(text, parse_float=lambda digits: floats.append(float(digits)), object_hook=others), floats


@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")  # WavLM's own masks
@pytest.mark.parametrize("name", sorted(record.RECORDERS))
def test_what_is_recorded(name):
    try:
        fresh = record.fresh(name)
    except ModuleNotFoundError as error:  # each is in the dependency group "parity"
        pytest.skip(str(error))
    (old, old_floats), (new, new_floats) = map(split, (record.read(name), fresh))
    assert new == old
    np.testing.assert_allclose(new_floats, old_floats, rtol=2**-22, atol=0 if name in SPECTRA else 1e-5)
