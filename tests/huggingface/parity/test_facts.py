"""hf/facts.json, what each model of transformers and diffusers does, is what record_facts.py writes for their releases.

Each type of transformers with rotary code, and each transformer of diffusers, is in a table of what is read, or is
refused by name.
"""

import importlib
import inspect
import json
import logging
import pkgutil
import warnings

import census
import pytest
import record_facts
import transformers
from diffusers.models import ModelMixin
from diffusers.models import transformers as diffusion_transformers

from posenc_jax.hf import _diffusion_models as diffusion


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


def test_each_transformer_of_diffusers_is_read_or_refused():
    prefix = diffusion_transformers.__name__ + "."
    modules = [
        importlib.import_module(each.name) for each in pkgutil.iter_modules(diffusion_transformers.__path__, prefix)
    ]
    found = {
        x.__name__
        for module in modules
        for x in vars(module).values()
        if isinstance(x, type) and issubclass(x, ModelMixin) and x.__module__.startswith(prefix)
    }
    assert found == diffusion.MODELS.keys() | diffusion.REFUSED.keys()


def test_the_variants_of_wan_rotate_as_wan_does():
    """They are not run: their forwards take controls, poses and faces too."""
    names = "transformer_wan", "transformer_wan_vace", "transformer_wan_animate"
    modules = [importlib.import_module(f"{diffusion_transformers.__name__}.{name}") for name in names]
    assert len({inspect.getsource(module.WanRotaryPosEmbed).strip() for module in modules}) == 1
    for module in modules:
        assert "rotary_emb = self.rope(hidden_states)" in inspect.getsource(module)
