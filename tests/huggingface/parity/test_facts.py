"""facts.json is what the release of transformers that it names does."""

import json
import logging
import warnings

import pytest
import record_facts
import transformers


def test_facts_are_those_of_their_release():
    kept, release = record_facts.read()
    if release != transformers.__version__:
        pytest.skip(f"facts.json is of transformers {release}: `record_facts.py --diff` shows what this one changes")
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings(action="ignore"):
        found = json.loads(json.dumps(record_facts.facts()))
    logging.disable(logging.NOTSET)
    assert not [*record_facts.changes(kept, found)]


def test_changes():
    before = {"types": {"a": {"theta": 1.0}, "b": {"latent": True}}}
    after = {"types": {"a": {"theta": 2.0, "partial": True}}}
    assert [*record_facts.changes(before, after)] == [
        "- types: `a`, partial: null → true",
        "- types: `a`, theta: 1.0 → 2.0",
        "- types: `b`, latent: true → null",
    ]
