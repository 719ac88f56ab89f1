"""No key that a config class of transformers has is a misspelling of one that its type reads."""

import copy
import json
import warnings

import published
import pytest
from embeddings import keys_of
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from oracles import configs
from posenc_jax.hf import _config, rotary_from_config
from posenc_jax.hf._models import MODELS
from posenc_jax.hf._typos import _SIZES, KNOWN, _near, _words, similar_keys


def keys_looked_up(config, monkeypatch):
    """The keys that are looked up in a config."""
    made, init = [], _config.Config.__init__

    def recording(self, *arguments):
        init(self, *arguments)
        made.append(self)

    with monkeypatch.context() as patch:
        patch.setattr(_config.Config, "__init__", recording)
        rotary_from_config(config, length=5000)
    return {name for config in made for name in config.keys_looked_up}


def test_the_keys_of_a_class_are_no_misspellings(monkeypatch, tally):
    everything = set()
    for name in sorted(MODELS.keys() & configs.RECORDED.keys() & {*CONFIG_MAPPING}):
        looked_up = keys_looked_up(configs.RECORDED[name]["config"], monkeypatch)
        everything |= looked_up - _SIZES
        similar = {key: similar_keys(key, looked_up) for key in keys_of(CONFIG_MAPPING[name])}
        misspelled = {key: names for key, names in similar.items() if names}
        assert not misspelled, (name, json.dumps(misspelled))
    near = set()
    for name in CONFIG_MAPPING:
        near |= {key for key in keys_of(CONFIG_MAPPING[name]) if any(_is_near(key, other) for other in everything)}
    assert near - KNOWN - everything - {"dim_head"} == set()  # what is missing in KNOWN; this one is another name
    tally["keys of config classes near one that is read"] = len(near)


def _is_near(key, other):
    near = _near(key, other, 1) or _near(key, other, 2) or _words(key) == _words(other)
    return key != other and not key.startswith("_") and near


def theirs(name, config):
    """The plan of what a class makes of a config, or why there is none."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return published.outcome(CONFIG_MAPPING[name].from_dict(copy.deepcopy(config)).to_dict())
    except Exception as error:  # of sizes that do not fit
        return str(error)


ALIASED = sorted(
    name for name in MODELS.keys() & configs.RECORDED.keys() & {*CONFIG_MAPPING} if CONFIG_MAPPING[name].attribute_map
)


@pytest.mark.parametrize("name", ALIASED)
def test_other_names_of_a_key(name, tally):
    """A class takes either; both must agree here if a plan depends on them."""
    config, names = configs.RECORDED[name]["config"], CONFIG_MAPPING[name].attribute_map
    usual = CONFIG_MAPPING[name].from_dict(copy.deepcopy(config))
    for one, two in [*names.items(), *((two, one) for one, two in names.items())]:
        value = getattr(usual, one, None)
        if type(value) is not int:
            continue
        rest, other = {key: x for key, x in config.items() if key not in (one, two)}, value // 2
        alone = published.outcome(rest | {one: other})
        assert isinstance(alone, str) or alone == theirs(name, rest | {one: other}), one
        both, same = (published.outcome(rest | {one: value, two: x}) for x in (other, value))
        assert isinstance(both, str) or both == same == theirs(name, rest | {one: value, two: other}), (one, two)
        tally["other names of a key, by classes"] += 1
