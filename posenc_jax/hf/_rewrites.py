"""What one type or family alone does or spells, rewritten in the keys that `plan_to_config` writes.

A rewriter changes some keys of a config; the others are read as in every config. Its docstring says what is special:
the site's table of model types and errors about rewritten keys show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc_jax.hf import _rewrite_layers as layers
from posenc_jax.hf import _rewrite_settings as settings
from posenc_jax.hf._models import canonical_type
from posenc_jax.hf._rewriting import Rewriter, RewrittenConfig, only, renamed

_FAMILIES: dict[str, Rewriter] = {
    "baichuan": layers.baichuan,
    "bailing_hybrid": settings.bailing_hybrid,
    "blt_patcher": settings.one_set_of_settings,
    "chatglm": settings.chatglm,
    "cohere2_moe": layers.cohere2_moe,
    "cohere_compass_text": settings.ignored_beside_types("rope_theta", "rope_type"),
    "dbrx": settings.dbrx,
    "DeepseekOCR deepseek_v2 deepseek_vl_v2": settings.deepseek_v2,
    "deepseek_v4": settings.deepseek_v4,
    "deepseek_ocr2_text unlimited_ocr_text": settings.deepseek_ocr,
    "dory": layers.dory,
    "dots3_note_audio_encoder": settings.even_heads,
    "dots3_note_text": settings.dots3,
    "ernie4_5 ernie4_5_moe": only({"compression_ratio": 1.0}, "rope_reorder", "fuse_rope"),
    "esm": layers.esm,
    "exaone4 exaone4_5_text exaone_moe": layers.exaone4,
    "embedding_gemma2_text gemma4_text gemma4_unified_text diffusion_gemma_text": layers.gemma4,
    "ernie4_5_vl_moe_text": settings.ernie4_5_vl,
    "gemma3_text gemma3n_text t5gemma2_decoder t5gemma2_text": settings.needs_rope_type,
    "modernbert modernbert-decoder": settings.modernbert,
    "olmo3": settings.needs_rope_type,
    "glm5_next_text kimi_linear": layers.latent_without_positions,
    "glm4_moe_lite": renamed(head_dim="qk_rope_head_dim"),
    "glm_moe_dsa": only({"indexer_rope_interleave": True}),
    "granitemoehybrid": layers.granitemoehybrid,
    "hrm_text": layers.hrm,
    "hunyuan": only({"use_rotary_pos_emb": True, "position_embedding_xdrope": False}),
    "hunyuan_v1_dense hunyuan_v1_moe": only({"position_embedding_xdrope": False}),
    "hy_v4 hy_v4_vl_text": settings.hy_v4,
    "internlm": settings.internlm,
    "lara_mini": layers.lara_mini,
    "lfm2 lfm2_moe": settings.lfm2,
    "llada": only({"rope": True, "rope_full_precision": True, "block_type": "llama"}, "alibi_bias_max"),
    "llama4_text": renamed(nope_layer_interval="no_rope_layer_interval"),
    "longcat_flash": layers.longcat,
    "mimo_v2 mimo_v2_flash": settings.mimo_v2,
    "minimax minimax_m1 minimax_m2 minimax_text_01": layers.minimax,
    "minimax_m3 minimax_m3_vl_text": settings.minimax_m3,
    "mistral_large4_text": settings.mistral_large4,
    "mllama_text_model": layers.mllama,
    "molmo": only({}, "use_position_ids"),
    "molmo2_text": settings.molmo2,
    "muse_glimmer_text muse_spark_text": layers.muse,
    "nanochat": settings.nanochat,
    "nemotron-nas nemotron_nas deci": layers.nemotron_nas,
    "nemotron_h": layers.nemotron_h,
    "nemotron": settings.nemotron,
    "neomme": settings.neomme,
    "olmo_hybrid": settings.olmo_hybrid,
    "openelm": layers.openelm,
    "phi-msft": only({}, "flash_rotary"),
    "phi3small": settings.phi3small,
    "qwen": settings.qwen,
    "recurrent_gemma": renamed(_block_types="block_types"),
    "roformer gptj codegen": settings.fixed_base,
    "sarvam_mla": settings.sarvam_mla,
    "stablelm_epoch": settings.stablelm_epoch,
    "step3p5": settings.step3p5,
    "ultrabert": settings.ultrabert,
    "voxtral_realtime_encoder": renamed(
        encoder_layers="num_hidden_layers", encoder_attention_heads="num_attention_heads"
    ),
    "zamba2": layers.zamba2,
    "zaya": settings.ignored_beside_types("rope_type"),
}
REWRITERS = {name: rewrite for names, rewrite in _FAMILIES.items() for name in names.split()}


def rewritten(values: Mapping[str, Any]) -> RewrittenConfig:
    """A config, rewritten for its model_type; it records which keys the rewriter looked up."""
    result, rewrite = RewrittenConfig(values), _rewriter_of(values)
    if rewrite:
        rewrite(result)
    return result


def note_of(values: Mapping[str, Any]) -> str:
    """What is special about the configs of this model_type."""
    rewrite = _rewriter_of(values)
    return (rewrite and rewrite.__doc__ or "").rstrip(".")


def _rewriter_of(values: Mapping[str, Any]) -> Rewriter | None:
    name = str(values.get("model_type"))
    return REWRITERS.get(canonical_type(name) or name)
