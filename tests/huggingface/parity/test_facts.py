"""facts.json is what the release of transformers that it names does, and each of its types is read or refused by name."""

import json
import logging
import warnings

import census
import pytest
import record_facts
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from posenc_jax.hf import _refused


def test_facts_are_those_of_their_release():
    kept, release = record_facts.read()
    if release != transformers.__version__:
        pytest.skip(f"facts.json is of transformers {release}: `record_facts.py --diff` shows what this one changes")
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings(action="ignore"):
        found = json.loads(json.dumps(record_facts.facts()))
    logging.disable(logging.NOTSET)
    assert not [*record_facts.changes(kept, found)]


def test_no_model_type_is_missing():
    assert not census.MISSING


def test_types_with_biases_of_tokens_exist():
    names = {name for name, why in _refused.REFUSED.items() if "content_bias" in why}
    assert len(names) > 30 and names - {*CONFIG_MAPPING} <= {"inkling2_loop_text"}  # of transformers 5.24.0
