"""facts.json is what its release of transformers does, and each of its types is read or refused by name."""

import json
import logging
import warnings

import census
import pytest
import record_facts
import transformers


def test_facts_are_those_of_their_release():
    recorded, release = record_facts.read()
    if release != transformers.__version__:
        pytest.skip(f"facts.json is of transformers {release}: `record_facts.py --diff` shows what this one changes")
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings(action="ignore"):
        found = json.loads(json.dumps(record_facts.facts()))
    logging.disable(logging.NOTSET)
    assert not [*record_facts.changes(recorded, found)]


def test_every_model_type_with_rotary_code_is_read_or_refused():
    assert not census.MISSING
