"""What one type or family alone does or spells, rewritten in the keys that `plan_to_config` writes.

A rewriter changes some keys of a config; the others are read as in every config. Its docstring says what is special:
the site's table of model types shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc_jax.hf import _rewrite_layers as layers
from posenc_jax.hf import _rewrite_settings as settings
from posenc_jax.hf._models import canonical_type
from posenc_jax.hf._rewriting import Rewriter, fixed

_FAMILIES: dict[str, Rewriter] = {
    "baichuan": layers.baichuan,
    "bailing_hybrid": settings.bailing_hybrid,
    "chatglm": settings.chatglm,
    "cohere2_moe": layers.cohere2_moe,
    "cohere_compass_text zaya": settings.ignored_beside_types,
    "dbrx": settings.dbrx,
    "DeepseekOCR deepseek_v2 deepseek_vl_v2": settings.deepseek_v2,
    "deepseek_v4": settings.deepseek_v4,
    "deepseek_ocr2_text unlimited_ocr_text": settings.deepseek_ocr,
    "dory": layers.dory,
    "dots3_note_audio_encoder": settings.even_heads,
    "dots3_note_text": settings.dots3,
    "esm": layers.esm,
    "exaone4 exaone4_5_text exaone_moe": layers.exaone4,
    "embedding_gemma2_text gemma4_text gemma4_unified_text diffusion_gemma_text": layers.gemma4,
    "ernie4_5_vl_moe_text": settings.ernie4_5_vl,
    "gemma3_text gemma3n_text olmo3 t5gemma2_decoder t5gemma2_text": settings.needs_rope_type,
    "modernbert modernbert-decoder": settings.modernbert,
    "glm5_next_text kimi_linear": layers.latent_without_positions,
    "glm_moe_dsa": fixed(indexer_rope_interleave=True),
    "granitemoehybrid": layers.granitemoehybrid,
    "hrm_text": layers.hrm,
    "hy_v4 hy_v4_vl_text": settings.hy_v4,
    "internlm": settings.internlm,
    "lara_mini": layers.lara_mini,
    "lfm2 lfm2_moe": settings.lfm2,
    "longcat_flash": layers.longcat,
    "mimo_v2 mimo_v2_flash": settings.mimo_v2,
    "minimax minimax_m1 minimax_m2 minimax_text_01": layers.minimax,
    "minimax_m3 minimax_m3_vl_text": settings.minimax_m3,
    "mistral_large4_text": settings.mistral_large4,
    "mllama_text_model": layers.mllama,
    "molmo2_text": settings.molmo2,
    "muse_glimmer_text muse_spark_text": layers.muse,
    "nanochat": settings.nanochat,
    "nemotron-nas nemotron_nas deci": layers.nemotron_nas,
    "nemotron_h": layers.nemotron_h,
    "nemotron": settings.nemotron,
    "neomme": settings.neomme,
    "olmo_hybrid": settings.olmo_hybrid,
    "phi3small": fixed(rope_position_scale=1.0),
    "qwen": settings.qwen,
    "roformer gptj codegen": settings.fixed_base,
    "sarvam_mla": settings.sarvam_mla,
    "stablelm_epoch": fixed(rotary_scaling_factor=1.0),
    "step3p5": settings.step3p5,
    "ultrabert": settings.ultrabert,
    "zamba2": layers.zamba2,
}
REWRITERS = {name: rewrite for names, rewrite in _FAMILIES.items() for name in names.split()}


def rewritten(values: Mapping[str, Any]) -> dict[str, Any]:
    """A config, rewritten for its model_type."""
    result, name = dict(values), str(values.get("model_type"))
    rewrite = REWRITERS.get(canonical_type(name) or name)
    if rewrite:
        rewrite(result)
    return result
