"""What one type or family alone does or spells, rewritten in the keys that `plan_to_config` writes.

A rewriter changes some keys of a config; the others are read as in every config. Its docstring says what is special:
the site's table of model types shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc_jax.hf import _rewrite_layers as layers
from posenc_jax.hf import _rewrite_settings as settings
from posenc_jax.hf._models import MODELS, UNNAMED, by_model_type, canonical_type
from posenc_jax.hf._rewriting import FULL, Draft
from posenc_jax.hf._values import equal

_NO_SCALING = {"rope_scaling": {}, "rope_parameters": {}}
# Keys that the code does not read, and the only values that files may have there.
FIXED = by_model_type(
    {
        "chatglm": {"original_rope": True, "position_encoding_2d": False},
        "cohere2_moe dots3_note_text": {"rope_scaling": {}},
        "deepseek_ocr2_text unlimited_ocr_text": {"qk_rope_head_dim": 0, "qk_nope_head_dim": 0, "use_mla": False},
        "esm": _NO_SCALING,
        "glm_moe_dsa": {"indexer_rope_interleave": True},
        "glm5_next_text kimi_linear": {"mla_use_nope": True},
        "lfm2 lfm2_moe": {"use_pos_enc": True},
        "phi3small": {"rope_position_scale": 1.0},
        "qwen": {"pos_emb": "rotary"},
        "roformer gptj codegen": {"rope_theta": 10_000.0, "rotary_value": False, **_NO_SCALING},
        "stablelm_epoch": {"rotary_scaling_factor": 1.0},
        "step3p5": {"yarn_only_types": [FULL], "use_rope_layers": []},
    }
)
REWRITERS = layers.REWRITERS | settings.REWRITERS


def rewritten(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config, rewritten for its model_type."""
    draft, name = Draft(values), canonical_type(str(values.get("model_type"))) or ""
    model = MODELS.get(name, UNNAMED)
    is_usual = model.writes_theta and equal(values.get("rope_theta"), model.theta)
    if is_usual and draft.get_mapping("rope_parameters").look_up("rope_theta"):
        draft.take("rope_theta")
    draft.take_only(**FIXED.get(name, {}))
    if name in REWRITERS:
        REWRITERS[name](draft)
    return draft.values
