"""hf/facts.json, what each model type of transformers does, is what record_facts.py writes for the release it names.

Each of its types with rotary code is in the table of what `rotary_from_config` reads, or is refused by name.
"""

import json
import logging
import warnings

import census
import pytest
import record_facts
import transformers


def test_facts_json_is_what_the_recorder_finds_in_the_release_it_names():
    recorded, release = record_facts.read()
    if release != transformers.__version__:
        pytest.skip(
            f"facts.json is of transformers {release}: the session `parity -- --newest` shows what another changes"
        )
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings(action="ignore"):
        found = json.loads(json.dumps(record_facts.facts()))  # with lists for tuples, as in the file
    logging.disable(logging.NOTSET)
    assert not [*record_facts.changes(recorded, found)]


def test_each_type_with_rotary_code_is_in_a_table_or_refused():
    assert not census.MISSING
