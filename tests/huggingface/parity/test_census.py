"""Every model type of transformers with rotary code is read or refused by name."""

import census
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from posenc_jax.hf import _refused


def test_no_model_type_is_missing():
    assert not census.MISSING


def test_types_with_biases_of_tokens_exist():
    names = {name for name, why in _refused.REFUSED.items() if "content_bias" in why}
    assert len(names) > 30 and names - {*CONFIG_MAPPING} <= {"inkling2_loop_text"}  # of transformers 5.24.0
