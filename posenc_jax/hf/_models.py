"""What the model code of transformers 5.23.0 and 5.24.0 does that no config.json contains.

Every entry was read from the model's `modeling_*.py` (which features make a pair, which layers rotate) and
`configuration_*.py` (the defaults of missing keys). A `ChangedDefault` differs between releases.

A field of `Model` is a fact that at least two model types share. What one type alone does is a rewriter, in
`_rewrites.py`: it writes the keys that `plan_to_config` writes, and `reads` lets its type read them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple


@dataclasses.dataclass(frozen=True)
class Pattern:
    """Layer i is of type full_attention where (i + phase) % period == 0, else of type `other`."""

    period: int
    key: str | None = None  # the config key that sets the period
    phase: int = 1
    other: str = "sliding_attention"
    last: bool = False  # the last layer is full_attention in any case


@dataclasses.dataclass(frozen=True)
class Indexer:
    """How the indexer of sparse attention rotates its queries and keys, by the spectra of the layers."""

    layout: Literal["half", "interleaved"]
    head_dim: int | None = None  # by default; None: without the key there is no indexer


class ChangedDefault(NamedTuple):
    """A default that differs between releases: that of `Model` since the release `since`, `before` in older ones.

    Code that a model was published with counts as older than the release that has its type.
    """

    since: str
    before: float
    key: str = "rope_theta"


_USUAL_KEYS = "rope_theta", "partial_rotary_factor"


@dataclasses.dataclass(frozen=True)
class Model:
    """The facts of a model_type.

    "By default" means: where the config does not have the key.
    """

    layout: Literal["half", "interleaved"] | None = "half"  # None: as the config sets it
    reads: tuple[str, ...] = _USUAL_KEYS  # the keys that apply to this type, of those that apply to some only

    # The base and the settings
    theta: float | None = 10_000.0  # the base by default; None: it must be given
    thetas: Mapping[str, tuple[str, float]] | None = None  # layer type → the key of its base in old configs, default
    changed_default: ChangedDefault | None = None  # the one of these bases that differs between releases
    scaled_types: tuple[str, ...] = ("full_attention",)  # of `thetas`, the layer types that an old rope_scaling scales
    needs_settings: bool = False  # rope settings must be given: the class has several defaults, which are not guessed
    nested: bool | None = False  # rope_parameters has an entry for each layer type; None: it may
    null_settings: bool = False  # a null in them: layers of this type have no positions
    original_max: int | None = None  # a top-level original_max_position_embeddings by default (Phi-3)

    # The width
    head_dim: int | None = None  # by default; None: hidden_size / num_attention_heads
    derives_head_dim: bool = False  # a null head_dim means hidden_size / num_attention_heads
    global_head_dim: int | None = None  # head_dim of full_attention layers (Gemma 4)
    partial: float | None = None  # the share of the head by default; None: the whole head, whatever the keys say
    whole_if_scaled: bool = False  # by default, `partial` is for rope type "default" alone
    rotary_dim: int | None = None  # `partial` as a number of features (GPT-J)
    latent: Literal["scaled", "unscaled"] | None = None  # the last features rotate; mscale_all_dim scales the scores

    # The layers
    pattern: Pattern | None = None  # layer_types by default
    needs_layer_types: bool = False  # layer_types must be given
    hybrid: bool = False  # some layers may have no attention
    never_rotates: bool = False  # no layer has positions, whatever the keys say
    sliding_only: bool = False  # full_attention layers have no positions
    all_without_window: bool = False  # but with a null sliding_window, they have
    no_rope_interval: int | None = None  # no_rope_layer_interval by default; 0: all rotate; None: not read

    # Coordinates, query scales, indexers
    sections: tuple[int, ...] | None = None  # mrope_section by default; (): no sections; None: not read
    interleaved_sections: bool | None = False  # coordinates take pairs in turn; None: as the config sets it
    query_scale: Literal["llama4", "beta", "beam", "logn"] | None = None  # None: queries are not scaled
    indexer: Indexer | None = None


def _all(names: str, *, also: str = "", reads: tuple[str, ...] = _USUAL_KEYS, **facts: Any) -> dict[str, Model]:
    """The same facts for several types, whose code reads the keys `also` too."""
    return {name: Model(reads=(*reads, *also.split()), **facts) for name in names.split()}


_NEOX = "rotary_emb_base", "rotary_pct"
_NESTED: Any = {"nested": True, "needs_settings": True}
_HYBRID: Any = {"hybrid": True, "needs_layer_types": True}
_LATENT: Any = {"layout": "interleaved", "latent": "scaled"}
_QWEN3_VL: Any = {"sections": (24, 20, 20), "interleaved_sections": True}
_SIX, _FOUR = Pattern(6, "sliding_window_pattern"), Pattern(4, "sliding_window_pattern")
_LINEAR = Pattern(4, "full_attention_interval", other="linear_attention")
_GEMMA3 = {"full_attention": ("rope_theta", 1e6), "sliding_attention": ("rope_local_base_freq", 1e4)}
_MODERNBERT: Any = {
    "thetas": {"full_attention": ("global_rope_theta", 160_000.0), "sliding_attention": ("local_rope_theta", 1e4)},
    "scaled_types": ("full_attention", "sliding_attention"),
    "pattern": Pattern(3, "global_attn_every_n_layers", phase=0),
}
_OLMO3 = {"full_attention": ("rope_theta", 5e5), "sliding_attention": ("rope_theta", 5e5)}

MODELS: dict[str, Model] = {
    **_all(
        "arcee aria_text chameleon deepseek_ocr2_encoder deepseek_ocr2_text diffllama doge dots1 esmc eurobert falcon "
        "gradium_phonon_tts granite granite4_vision_text granite_docling_text granitemoe granitemoeshared "
        "hyperclovax idefics jais2 lasr_encoder llama mimi mimi_decoder mimi_encoder ministral "
        "mistral moshi olmo olmo2 olmoe pocket_tts pocket_tts_audio_tokenizer pocket_tts_audio_tokenizer_decoder "
        "pocket_tts_audio_tokenizer_encoder qwen2 qwen2_moe qwen3_moe starcoder2 unlimited_ocr_text"
    ),
    **_all("falcon_h1 kyutai_speech_to_text", changed_default=ChangedDefault("5.0", 1e5)),
    **_all("exaone", theta=5e5, changed_default=ChangedDefault("5.24", 1e4)),
    **_all("hunyuan_v1_dense hunyuan_v1_moe", also="alpha"),
    **_all("nanochat", also="rope_backward"),
    **_all("esm", also="position_embedding_type"),
    **_all("dbrx voxtral_realtime_text", theta=None),
    **_all("apertus apertus1p5_text", theta=12e6, needs_settings=True),
    **_all("bitnet csm csm_depth_decoder_model evolla EvollaModel flex_olmo", theta=5e5),
    **_all("mllama_text_model", theta=5e5, also="cross_attention_layers"),
    **_all("emu3_text_model mixtral phimoe", theta=1e6),
    **_all("gte", theta=160_000.0),
    **_all("jina_embeddings_v3", theta=20_000.0),
    **_all("nomic_bert", theta=1_000.0, reads=("rope_theta", "rotary_emb_base", "rotary_emb_fraction")),
    **_all("voxtral_realtime_encoder", head_dim=64),
    **_all(
        "dia_decoder dia_encoder hrm_text iquestcoder qwen3 qwen3_omni_moe_talker_code_predictor seed_oss",
        head_dim=128,
    ),
    **_all("jetmoe", reads=("rope_theta", "kv_channels"), head_dim=128),
    **_all("muse_glimmer_assistant", theta=5e5, head_dim=128),
    **_all("higgs_audio_v2", head_dim=128, derives_head_dim=True, needs_settings=True),
    **_all("hy_v3", theta=11_158_840.0, head_dim=128),
    **_all("gemma gemma2 t5_gemma_module vaultgemma", head_dim=256),
    **_all("gpt_oss", theta=150_000.0, head_dim=64, needs_settings=True),
    **_all("cwm", theta=1e6, head_dim=128, needs_settings=True),
    **_all("ministral3", theta=None, head_dim=128, needs_settings=True, query_scale="beta"),
    # part of the head
    **_all("gpt_neox gpt_neox_reward_model", reads=_NEOX, partial=0.25),
    **_all("stablelm", partial=0.25),
    **_all("dots3_note_audio_encoder glm4_moe glmasr_encoder nemotron phi", partial=0.5),
    **_all("persimmon", partial=0.5, changed_default=ChangedDefault("5.0", 25_000.0)),
    **_all("gpt_neox_japanese", reads=_NEOX, partial=1.0),
    **_all("nemotron3_diarization_audio", partial=1.0),
    **_all("nemotron3_5_transcribe_asr_audio nemotron3_5_transcribe_word_timestamp", partial=1.0, needs_settings=True),
    **_all("phi3 phi4_multimodal", partial=1.0, original_max=4096),
    **_all("minimax_m2", also="rotary_dim", theta=5e6, partial=1.0, head_dim=128),
    **_all("minimax_m3_vl_text", theta=5e6, partial=1.0, head_dim=128, indexer=Indexer("half", 128)),
    **_all("solar_open", theta=1e6, partial=1.0, head_dim=128),
    **_all("sarvam_moe", theta=8e6, partial=1.0, head_dim=64),
    # pairs of neighbours
    **_all("blt_patcher roformer", layout="interleaved"),
    **_all("blt_global_transformer blt_local_decoder blt_local_encoder ernie4_5_moe", layout="interleaved", theta=5e5),
    **_all("cohere", layout="interleaved", theta=5e5, changed_default=ChangedDefault("5.0", 1e4)),
    **_all(
        "pe_audio_encoder pe_audio_video_encoder pe_video_encoder", layout="interleaved", theta=20_000.0, head_dim=128
    ),
    **_all("ernie4_5", layout="interleaved", theta=5e5, head_dim=128, derives_head_dim=True),
    **_all("helium", layout="interleaved", theta=1e5, head_dim=128),
    **_all("glm glm4", layout="interleaved", partial=0.5, head_dim=128),
    **_all("moonshine", layout="interleaved", partial=0.9),
    **_all("moonshine_streaming", layout="interleaved", partial=1.0, needs_settings=True),
    **_all("gptj codegen", layout="interleaved", reads=("rotary_dim",), partial=1.0, rotary_dim=64),
    **_all("openai_privacy_filter", layout="interleaved", theta=150_000.0, head_dim=64, needs_settings=True),
    # layers without positions, and without attention
    **_all("cohere2", layout="interleaved", pattern=_FOUR, sliding_only=True),
    **_all("afmoe", head_dim=128, pattern=Pattern(4, "global_attn_every_n_layers"), sliding_only=True),
    **_all("cohere2_moe", layout="interleaved", head_dim=128, no_rope_interval=0),
    **_all("exaone4 exaone4_5_text exaone_moe", pattern=_FOUR, sliding_only=True, all_without_window=True),
    **_all("lara_mini", head_dim=128, hybrid=True, sliding_only=True),
    **_all("kolibri1", head_dim=128, needs_layer_types=True, sliding_only=True, all_without_window=True),
    **_all("flint", head_dim=128, needs_layer_types=True, sliding_only=True),
    **_all("smollm3", theta=2e6, no_rope_interval=4),
    **_all("llama4_text", layout="interleaved", theta=5e5, head_dim=128, no_rope_interval=4, query_scale="llama4"),
    **_all("muse_spark_text", head_dim=64, needs_settings=True, no_rope_interval=0),
    **_all("muse_glimmer_text", head_dim=128, no_rope_interval=0),
    **_all("granite_swa granitemoe_swa", also="layer_rope_theta"),
    **_all("jamba", never_rotates=True),
    **_all("glm5_next_text kimi_linear", never_rotates=True),
    **_all("nemotron_h", reads=("attention_head_dim",), never_rotates=True, head_dim=128),
    **_all("granitemoehybrid", **_HYBRID, also="position_embedding_type"),
    **_all("minimax", theta=1e6, **_HYBRID),
    **_all("olmo_hybrid", **_HYBRID, no_rope_interval=0),
    **_all("zamba2", reads=("rope_theta", "attention_head_dim"), **_HYBRID, no_rope_interval=0),
    **_all("bamba", reads=("rope_theta", "attn_layer_indices"), partial=0.5, **_HYBRID),
    **_all("recurrent_gemma", partial=0.5, **_HYBRID, also="block_types"),
    **_all("lfm2 lfm2_moe", theta=1e6, **_HYBRID, also="full_attn_idxs"),
    **_all("qwen3_next", partial=0.25, head_dim=256, pattern=_LINEAR),
    # a spectrum for each layer type
    **_all("gemma3_text t5gemma2_text t5gemma2_decoder", head_dim=256, thetas=_GEMMA3, pattern=_SIX),
    **_all("gemma3n_text", head_dim=256, thetas=_GEMMA3, pattern=Pattern(5)),
    **_all("modernbert", **_MODERNBERT),
    **_all("modernbert-decoder", **_MODERNBERT, changed_default=ChangedDefault("5.0", 160_000.0, "local_rope_theta")),
    **_all("olmo3", thetas=_OLMO3, changed_default=ChangedDefault("5.13", 1e4), pattern=Pattern(4)),
    **_all("molmo2_text", head_dim=128, nested=None),
    **_all(
        "gemma4_text gemma4_unified_text diffusion_gemma_text",
        head_dim=256,
        global_head_dim=512,
        **_NESTED,
        pattern=Pattern(6, last=True),
    ),
    **_all(
        "embedding_gemma2_text",
        head_dim=256,
        global_head_dim=512,
        **_NESTED,
        pattern=Pattern(6, "sliding_window_pattern", last=True),
    ),
    **_all("dory", head_dim=256, **_NESTED, pattern=Pattern(4)),
    **_all("laguna mellum zaya", partial=1.0, head_dim=128, **_NESTED, needs_layer_types=True),
    **_all("step3p5", partial=1.0, head_dim=128, nested=True),
    **_all("ultrabert", **_NESTED, pattern=Pattern(3)),
    **_all(
        "dots3_note_text", layout="interleaved", latent="unscaled", nested=True, indexer=Indexer("interleaved", 128)
    ),
    **_all(
        "neomme",
        partial=1.0,
        head_dim=64,
        **_NESTED,
        pattern=Pattern(6, last=True),
        sections=(),
        interleaved_sections=True,
    ),
    **_all(
        "mimo_v2 mimo_v2_flash", partial=0.334, whole_if_scaled=True, head_dim=192, **_NESTED, needs_layer_types=True
    ),
    **_all("beam", head_dim=128, **_NESTED, null_settings=True, needs_layer_types=True, query_scale="beam"),
    **_all("lfm3", head_dim=128, **_NESTED, **_HYBRID, also="full_attn_idxs"),
    # latent attention
    **_all("axk1 AXK1 deepseek_v3 glm4_moe_lite kimi_k2 sarvam_mla youtu", **_LATENT, also="rope_interleave"),
    **_all("longcat_flash", theta=1e7, **_LATENT),
    **_all("bailing_hybrid", theta=6e6, **_LATENT, pattern=Pattern(6, "layer_group_size", other="linear_attention")),
    **_all("deepseek_v2", **_LATENT),
    **_all("axk2", **_LATENT, indexer=Indexer("half", 128)),
    # vLLM reads indexer_rope_interleave, which GLM-5 has under this model_type too; transformers does not.
    **_all("deepseek_v32", **_LATENT, also="indexer_rope_interleave", indexer=Indexer("half", 128)),
    **_all("glm_moe_dsa", **_LATENT, indexer=Indexer("interleaved", 128)),
    **_all("mistral4", theta=None, needs_settings=True, **_LATENT, also="rope_interleave", query_scale="beta"),
    **_all(
        "mistral_large4_text",
        theta=None,
        needs_settings=True,
        **_LATENT,
        also="learned_log_factor query_scales indexer_query_scales",
        no_rope_interval=4,
        indexer=Indexer("interleaved", 128),
    ),
    **_all("minicpm3", latent="scaled"),
    **_all("hy_v4", latent="scaled", also="indexer_part", indexer=Indexer("half", 128)),
    **_all(
        "hy_v4_vl_text",
        **_LATENT,
        also="indexer_part",
        indexer=Indexer("interleaved", 128),
        sections=(12, 10, 10),
        interleaved_sections=True,
    ),
    **_all(
        "deepseek_v4",
        layout="interleaved",
        latent="unscaled",
        nested=True,
        also="rope_on_values indexer_part",
        indexer=Indexer("interleaved", 128),
    ),
    # positions of several coordinates
    **_all("qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text", theta=1e6, sections=(16, 24, 24)),
    **_all("qwen2_5_omni_talker", theta=1e6, head_dim=128, sections=(16, 24, 24)),
    **_all("paddleocr_vl_text", theta=5e5, head_dim=128, derives_head_dim=True, sections=(16, 24, 24)),
    **_all("ernie4_5_vl_moe_text", layout="interleaved", theta=5e5, sections=(22, 22, 20), also="mrope_alternating"),
    **_all("glm4v_text glm_ocr_text", layout="interleaved", partial=1.0, sections=(8, 12, 12)),
    **_all("glm4v_moe_text", partial=0.5, sections=(8, 12, 12)),
    **_all("glm_image_text", partial=1.0, sections=(8, 12, 12)),
    **_all("qwen3_vl_text", theta=5e5, changed_default=ChangedDefault("5.0", 5e6), head_dim=128, **_QWEN3_VL),
    **_all("qwen3_omni_moe_talker_text", **_QWEN3_VL),
    **_all("cosmos3_edge_text", theta=1e8, head_dim=128, needs_settings=True, **_QWEN3_VL),
    **_all("cohere_compass_text", theta=None, **_NESTED, null_settings=True, **_QWEN3_VL),
    **_all("qwen3_vl_moe_text", theta=5e5, changed_default=ChangedDefault("5.0", 5e6), **_QWEN3_VL),
    **_all("qwen3_omni_moe_text", theta=1e6, **_QWEN3_VL),
    **_all(
        "qwen3_5_text qwen3_5_moe_text",
        partial=0.25,
        head_dim=256,
        pattern=_LINEAR,
        sections=(11, 11, 10),
        interleaved_sections=True,
    ),
    **_all(
        "qwen4_exp_text",
        partial=1.0,
        head_dim=256,
        pattern=_LINEAR,
        sections=(11, 11, 10),
        interleaved_sections=True,
        indexer=Indexer("half"),
    ),
    # not in transformers: as in the code with which the models were published
    **_all(
        "aquila baichuan deepseek Dream dream internlm internlm2 llada mimo minicpm openelm orion "
        "PanguEmbedded RefinedWeb RefinedWebModel sdar_moe solar xverse Yi"
    ),
    **_all("internlmxcomposer2 minicpmo minicpmv molmo qwen2_mtp qwen2_mtp_sensevoice", theta=None),
    **_all("phi3small", theta=1e6),
    **_all("phi3_v phi4 phi4mm", partial=1.0, original_max=4096),
    **_all("minimax_m3", theta=5e6, partial=1.0, head_dim=128, indexer=Indexer("half", 128)),
    **_all("internlm3", head_dim=128, derives_head_dim=True),
    **_all("sdar", head_dim=128),
    **_all("nemotron-nas nemotron_nas deci", theta=None, hybrid=True),
    **_all("iquestloopcoder", theta=5e5),
    **_all("step3_text", theta=5e5, head_dim=256),
    **_all("hunyuan", reads=("rope_theta", "attention_head_dim", "alpha")),
    **_all("bailing_moe bailing_moe_v2", also="rotary_dim", theta=None, partial=1.0),
    **_all("minimax_m1 minimax_text_01", also="rotary_dim", theta=None, partial=1.0, head_dim=128, **_HYBRID),
    **_all("phi-msft", also="rotary_dim", partial=1.0, rotary_dim=32),
    **_all("stablelm_epoch", partial=0.25),
    **_all("chatglm", layout="interleaved", also="kv_channels", partial=0.5),
    **_all("qwen", reads=("rotary_emb_base", "rotary_pct", "kv_channels"), partial=1.0, query_scale="logn"),
}


def canonical_type(name: str) -> str | None:
    """The name under which MODELS has the facts of a model_type.

    A multimodal config from before text_config existed has the model_type of the whole model.
    """
    return next((candidate for candidate in (name, f"{name}_text") if candidate in MODELS), None)


# A config without a model_type must have everything, in the keys that `plan_to_config` writes.
UNNAMED = Model(
    layout=None,
    reads=(
        *_USUAL_KEYS, *_NEOX, "rotary_emb_fraction", "rotary_dim", "kv_channels", "attention_head_dim",
        "qk_rope_head_dim", "attn_layer_indices", "full_attn_idxs", "block_types", "cross_attention_layers",
        "position_embedding_type", "layer_rope_theta", "rope_interleave", "rope_backward", "alpha",
        "mrope_alternating", "indexer_part", "indexer_rope_interleave", "query_scales", "indexer_query_scales",
        "learned_log_factor", "rope_on_values",
    ),
    nested=None,
    null_settings=True,
    partial=1.0,
    latent="scaled",
    hybrid=True,
    no_rope_interval=0,
    sections=(),
    interleaved_sections=None,
    indexer=Indexer("half"),
)  # fmt: skip
