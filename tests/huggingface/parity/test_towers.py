"""Vision towers beside the installed transformers: values that a class fills in, and configs of whole models."""

import pytest
import towers
from embeddings import config_of
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from oracles import recorded
from posenc_jax.hf import _towers, vision_rotary_from_config


@pytest.mark.parametrize("case", recorded.cases("hf_towers"), ids=lambda case: case["config"]["model_type"])
def test_a_config_filled_in_by_its_class_gives_the_same_plan(case):
    """The model has a learned table of positions if the plan says so."""
    plan, config = vision_rotary_from_config(case["config"]), config_of(case["config"])
    assert vision_rotary_from_config(config.to_dict()) == plan
    assert (plan.table != "none") == bool(towers.learned(towers.make_model(config)))


def towers_in(config):
    """The configs of vision towers in a config of transformers."""
    for name in ("vision_config", "thinker_config", "backbone_config"):
        if (part := getattr(config, name, None)) is not None:
            yield from [part] if part.model_type in _towers.TOWERS else towers_in(part)


def without_types(values):
    """A config.json whose parts have no model_type."""
    return {k: without_types(v) if isinstance(v, dict) else v for k, v in values.items() if k != "model_type"}


def test_a_whole_models_config_gives_the_plan_of_its_tower():
    """With and without the model types of its parts."""
    read = 0
    for name in CONFIG_MAPPING.keys() - _towers.TOWERS.keys():
        try:
            config = CONFIG_MAPPING[name]()
        except Exception:  # classes without defaults
            continue
        for tower in [*towers_in(config)][:1]:
            want = vision_rotary_from_config(tower.to_dict())
            assert vision_rotary_from_config(config) == want, name
            assert vision_rotary_from_config({"model_type": name} | without_types(config.to_dict())) == want, name
            read += 1
    assert read > 35  # most of the whole models with towers can be made
