"""What the model code of transformers 5.23.0 does that a config.json does not say.

Every entry was read from the model's `modeling_*.py` (which features make a pair, which layers rotate) and
`configuration_*.py` (the values that stand for missing keys).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal


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
    """The rotation of an indexer's queries and keys: their first or last features, by the spectra of the layers."""

    layout: Literal["half", "interleaved"]
    part: Literal["first", "last"] = "first"
    head_dim: int | None = 128  # where no key says it; None: no indexer then
    switched: bool = False  # indexer_rope_interleave is read, and wins over `layout`


_USUAL_WORDS = "rope_theta", "partial_rotary_factor"


@dataclasses.dataclass(frozen=True)
class Model:
    """The facts of a model_type.

    "By default" means: where the config does not have the key.
    """

    # The rotation
    layout: Literal["half", "interleaved"] | None = "half"  # None: as the config says
    switched: bool = False  # rope_interleave is read, and wins over `layout`
    backward: bool | None = False  # it rotates backwards; None: as the config says

    # The base and the settings
    theta: float | None = 10_000.0  # the base by default; None: it must be given
    thetas: Mapping[str, tuple[str, float]] | None = None  # layer type → the key of its base in old configs, default
    layer_thetas: bool = False  # layer_rope_theta is read: the base of each layer
    null_theta: bool = False  # a null rope_theta means that no layer has positions
    words: tuple[str, ...] = _USUAL_WORDS  # of the keys for a base, a share or a width, those that the code reads
    required: bool = False  # rope settings must be given: the class has several by default, which are not guessed here
    nested: bool | None = False  # rope_parameters has an entry for each layer type; None: it may
    scaled: tuple[str, ...] = ("full_attention",)  # of `thetas`, the layer types to which an old rope_scaling applies
    alpha: bool = False  # rope type "dynamic" reads alpha
    original_max: int | None = None  # a top-level original_max_position_embeddings by default (Phi-3)

    # The width
    head_dim: int | None = None  # by default; None: hidden_size / num_attention_heads
    global_head_dim: int | None = None  # head_dim of full_attention layers (Gemma 4)
    partial: float | None = None  # the share of the head by default; None: the whole head, whatever the keys say
    shared: bool = False  # a share outside the settings for each layer type is for those without one
    partial_unscaled: bool = False  # `partial` is for rope type "default"; with the others, the whole head rotates
    rotary_dim: int | None = None  # the same as a number of features (GPT-J)
    latent: bool | None = False  # the last features rotate; None: if the config has a qk_rope_head_dim
    plain_scores: bool = False  # latent attention that does not scale its scores by mscale_all_dim

    # The layers
    pattern: Pattern | None = None  # layer_types by default
    typed: bool = False  # layer_types must be given
    mixed: bool = False  # some layers may have no attention
    still: bool = False  # no layer has positions, whatever the keys say
    lists: tuple[str, ...] = ()  # the keys with lists of layers that the code reads
    sliding_only: bool = False  # full_attention layers have no positions
    windowless: bool = False  # with a null sliding_window, they have positions after all
    interval: int | None = None  # no_rope_layer_interval by default; 0: all rotate; None: not read
    position: str | None = None  # the position_embedding_type of layers that rotate; "": may be absent; None: not read

    # Coordinates, query scales, indexers
    sections: tuple[int, ...] | None = None  # mrope_section by default; (): no sections; None: not read
    dealt: bool | None = False  # sections are interleaved; None: as the config says
    alternating: bool | None = False  # height and width alternate, time comes last; None: as the config says
    temperature: Literal["llama4", "beta", "beam", "logn"] | None = None  # which query scale
    indexer: Indexer | None = None  # how the indexer of sparse attention rotates


def _all(names: str, **facts: Any) -> dict[str, Model]:
    return {name: Model(**facts) for name in names.split()}


_NEOX = "rotary_emb_base", "rotary_pct"
_DIM = *_USUAL_WORDS, "rotary_dim"
_SIX, _FOUR = Pattern(6, "sliding_window_pattern"), Pattern(4, "sliding_window_pattern")
_LINEAR = Pattern(4, "full_attention_interval", other="linear_attention")
_GEMMA3 = {"full_attention": ("rope_theta", 1e6), "sliding_attention": ("rope_local_base_freq", 1e4)}
_MODERNBERT = {"full_attention": ("global_rope_theta", 160_000.0), "sliding_attention": ("local_rope_theta", 1e4)}
# transformers 5 forgets a legacy rope_theta for the sliding layers (4 did not); every published model has the default.
_OLMO3 = {"full_attention": ("rope_theta", 5e5), "sliding_attention": ("rope_theta", 5e5)}

MODELS: dict[str, Model] = {
    **_all(
        "arcee aria_text chameleon deepseek_ocr2_encoder deepseek_ocr2_text diffllama doge dots1 esmc eurobert falcon "
        "falcon_h1 gradium_phonon_tts granite granite4_vision_text granite_docling_text granitemoe granitemoeshared "
        "hyperclovax idefics jais2 kyutai_speech_to_text lasr_encoder llama mimi mimi_decoder mimi_encoder ministral "
        "mistral moshi olmo olmo2 olmoe pocket_tts pocket_tts_audio_tokenizer pocket_tts_audio_tokenizer_decoder "
        "pocket_tts_audio_tokenizer_encoder qwen2 qwen2_moe qwen3_moe starcoder2 unlimited_ocr_text"
    ),
    **_all("hunyuan_v1_dense hunyuan_v1_moe", alpha=True),
    **_all("nanochat", backward=True),
    **_all("esm"),
    **_all("dbrx voxtral_realtime_text", theta=None),
    **_all("apertus", theta=12e6, required=True),
    **_all("bitnet csm csm_depth_decoder_model evolla EvollaModel flex_olmo", theta=5e5),
    **_all("mllama_text_model", theta=5e5, lists=("cross_attention_layers",)),
    **_all("emu3_text_model mixtral phimoe", theta=1e6),
    **_all("gte", theta=160_000.0),
    **_all("jina_embeddings_v3", theta=20_000.0),
    **_all("nomic_bert", theta=1_000.0, words=("rope_theta", "rotary_emb_base", "rotary_emb_fraction")),
    **_all("voxtral_realtime_encoder", head_dim=64),
    **_all(
        "dia_decoder dia_encoder hrm_text internlm3 iquestcoder qwen3 qwen3_omni_moe_talker_code_predictor seed_oss",
        head_dim=128,
    ),
    **_all("jetmoe", words=("rope_theta", "kv_channels"), head_dim=128),
    **_all("muse_glimmer_assistant", theta=5e5, head_dim=128),
    **_all("higgs_audio_v2", head_dim=128, required=True),
    **_all("hy_v3", theta=11_158_840.0, head_dim=128),
    **_all("gemma gemma2 t5_gemma_module vaultgemma", head_dim=256),
    **_all("gpt_oss", theta=150_000.0, head_dim=64, required=True),
    **_all("cwm", theta=1e6, head_dim=128, required=True),
    **_all("ministral3", theta=None, head_dim=128, required=True, temperature="beta"),
    # part of the head
    **_all("gpt_neox gpt_neox_reward_model", words=_NEOX, partial=0.25),
    **_all("stablelm", partial=0.25),
    **_all("dots3_note_audio_encoder glm4_moe glmasr_encoder nemotron persimmon phi", partial=0.5),
    **_all("gpt_neox_japanese", words=_NEOX, partial=1.0),
    **_all("nemotron3_diarization_audio", partial=1.0),
    **_all("nemotron3_5_transcribe_asr_audio nemotron3_5_transcribe_word_timestamp", partial=1.0, required=True),
    **_all("phi3 phi4_multimodal", partial=1.0, original_max=4096),
    **_all("minimax_m2", words=_DIM, theta=5e6, partial=1.0, head_dim=128),
    **_all("minimax_m3_vl_text", theta=5e6, partial=1.0, head_dim=128, indexer=Indexer("half")),
    **_all("solar_open", theta=1e6, partial=1.0, head_dim=128),
    # pairs of neighbours
    **_all("blt_patcher roformer", layout="interleaved"),
    **_all(
        "blt_global_transformer blt_local_decoder blt_local_encoder cohere ernie4_5_moe",
        layout="interleaved",
        theta=5e5,
    ),
    **_all(
        "pe_audio_encoder pe_audio_video_encoder pe_video_encoder", layout="interleaved", theta=20_000.0, head_dim=128
    ),
    **_all("ernie4_5", layout="interleaved", theta=5e5, head_dim=128),
    **_all("helium", layout="interleaved", theta=1e5, head_dim=128),
    **_all("glm glm4", layout="interleaved", partial=0.5, head_dim=128),
    **_all("moonshine", layout="interleaved", partial=0.9),
    **_all("moonshine_streaming", layout="interleaved", partial=1.0, required=True),
    **_all("gptj codegen", layout="interleaved", words=("rotary_dim",), partial=1.0, rotary_dim=64),
    **_all("openai_privacy_filter", layout="interleaved", theta=150_000.0, head_dim=64, required=True),
    # layers without positions, and without attention
    **_all("cohere2", layout="interleaved", pattern=_FOUR, sliding_only=True),
    **_all("afmoe", head_dim=128, pattern=Pattern(4, "global_attn_every_n_layers"), sliding_only=True),
    **_all("cohere2_moe", layout="interleaved", head_dim=128, interval=0),
    **_all("exaone4 exaone4_5_text exaone_moe", pattern=_FOUR, sliding_only=True, windowless=True),
    **_all("kolibri1", head_dim=128, typed=True, sliding_only=True, windowless=True),
    **_all("flint", head_dim=128, typed=True, sliding_only=True),
    **_all("smollm3", theta=2e6, interval=4),
    **_all("llama4_text", layout="interleaved", theta=5e5, head_dim=128, interval=4, temperature="llama4"),
    **_all("muse_spark_text", head_dim=64, required=True, interval=0),
    **_all("muse_glimmer_text", head_dim=128, interval=0),
    **_all("granite_swa granitemoe_swa", layer_thetas=True),
    **_all("jamba", still=True),
    **_all("glm5_next_text kimi_linear", still=True),
    **_all("nemotron_h", words=("attention_head_dim",), still=True, head_dim=128),
    **_all("granitemoehybrid", mixed=True, typed=True, position="rope"),
    **_all("minimax", theta=1e6, mixed=True, typed=True),
    **_all("olmo_hybrid", mixed=True, typed=True, null_theta=True),
    **_all("zamba2", words=("rope_theta", "attention_head_dim"), mixed=True, typed=True, interval=0),
    **_all("bamba", words=("rope_theta",), partial=0.5, mixed=True, typed=True, lists=("attn_layer_indices",)),
    **_all("recurrent_gemma", partial=0.5, mixed=True, typed=True, lists=("block_types",)),
    **_all("lfm2 lfm2_moe", theta=1e6, mixed=True, typed=True, lists=("full_attn_idxs",)),
    **_all("qwen3_next", partial=0.25, head_dim=256, pattern=_LINEAR),
    # a spectrum for each layer type
    **_all("gemma3_text t5gemma2_text t5gemma2_decoder", head_dim=256, thetas=_GEMMA3, pattern=_SIX),
    **_all("gemma3n_text", head_dim=256, thetas=_GEMMA3, pattern=Pattern(5)),
    **_all(
        "modernbert modernbert-decoder",
        thetas=_MODERNBERT,
        scaled=("full_attention", "sliding_attention"),
        pattern=Pattern(3, "global_attn_every_n_layers", phase=0),
    ),
    **_all("olmo3", thetas=_OLMO3, pattern=Pattern(4)),
    **_all("molmo2_text", head_dim=128, nested=None),
    **_all(
        "gemma4_text gemma4_unified_text diffusion_gemma_text",
        head_dim=256,
        global_head_dim=512,
        nested=True,
        required=True,
        pattern=Pattern(6, last=True),
    ),
    **_all(
        "embedding_gemma2_text",
        head_dim=256,
        global_head_dim=512,
        nested=True,
        required=True,
        pattern=Pattern(6, "sliding_window_pattern", last=True),
    ),
    **_all("laguna mellum zaya", partial=1.0, head_dim=128, nested=True, required=True, typed=True),
    **_all("step3p5", partial=1.0, shared=True, head_dim=128, nested=True),
    **_all("ultrabert", nested=True, required=True, pattern=Pattern(3)),
    **_all(
        "dots3_note_text",
        layout="interleaved",
        latent=True,
        plain_scores=True,
        nested=True,
        indexer=Indexer("interleaved"),
    ),
    **_all(
        "neomme",
        partial=1.0,
        head_dim=64,
        nested=True,
        required=True,
        pattern=Pattern(6, last=True),
        sections=(),
        dealt=None,
    ),
    **_all(
        "mimo_v2 mimo_v2_flash",
        partial=0.334,
        partial_unscaled=True,
        head_dim=192,
        nested=True,
        required=True,
        typed=True,
    ),
    **_all("beam", head_dim=128, nested=True, required=True, typed=True, temperature="beam"),
    **_all("lfm3", head_dim=128, nested=True, required=True, mixed=True, typed=True, lists=("full_attn_idxs",)),
    # latent attention
    **_all("axk1 AXK1 deepseek_v3 glm4_moe_lite kimi_k2 youtu", layout="interleaved", latent=True, switched=True),
    **_all("longcat_flash", layout="interleaved", theta=1e7, latent=True),
    **_all(
        "bailing_hybrid",
        layout="interleaved",
        theta=6e6,
        latent=True,
        pattern=Pattern(6, "layer_group_size", other="linear_attention"),
    ),
    **_all("deepseek_v2", layout="interleaved", latent=True),
    **_all("axk2", layout="interleaved", latent=True, indexer=Indexer("half")),
    # vLLM reads indexer_rope_interleave, which GLM-5 has under this model_type too; transformers does not.
    **_all("deepseek_v32", layout="interleaved", latent=True, indexer=Indexer("half", switched=True)),
    **_all("glm_moe_dsa", layout="interleaved", latent=True, indexer=Indexer("interleaved")),
    **_all(
        "mistral4",
        layout="interleaved",
        theta=None,
        required=True,
        latent=True,
        switched=True,
        temperature="beta",
    ),
    **_all("minicpm3", latent=True),
    **_all("hy_v4", latent=True, indexer=Indexer("half", "last")),
    # positions of several coordinates
    **_all("qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text", theta=1e6, sections=(16, 24, 24)),
    **_all("qwen2_5_omni_talker", theta=1e6, head_dim=128, sections=(16, 24, 24)),
    **_all("paddleocr_vl_text", theta=5e5, head_dim=128, sections=(16, 24, 24)),
    **_all("ernie4_5_vl_moe_text", layout="interleaved", theta=5e5, sections=(22, 22, 20), alternating=True),
    **_all("glm4v_text glm_ocr_text", layout="interleaved", partial=1.0, sections=(8, 12, 12)),
    **_all("glm4v_moe_text", partial=0.5, sections=(8, 12, 12)),
    **_all("glm_image_text", partial=1.0, sections=(8, 12, 12)),
    **_all("qwen3_vl_text", theta=5e5, head_dim=128, sections=(24, 20, 20), dealt=True),
    **_all("qwen3_omni_moe_talker_text", sections=(24, 20, 20), dealt=True),
    **_all("cosmos3_edge_text", theta=1e8, head_dim=128, required=True, sections=(24, 20, 20), dealt=True),
    **_all("cohere_compass_text", theta=None, nested=True, required=True, sections=(24, 20, 20), dealt=True),
    **_all("qwen3_vl_moe_text", theta=5e5, sections=(24, 20, 20), dealt=True),
    **_all("qwen3_omni_moe_text", theta=1e6, sections=(24, 20, 20), dealt=True),
    **_all(
        "qwen3_5_text qwen3_5_moe_text",
        partial=0.25,
        head_dim=256,
        pattern=_LINEAR,
        sections=(11, 11, 10),
        dealt=True,
    ),
    **_all(
        "qwen4_exp_text",
        partial=1.0,
        head_dim=256,
        pattern=_LINEAR,
        sections=(11, 11, 10),
        dealt=True,
        indexer=Indexer("half", head_dim=None),
    ),
    # not in transformers 5.23.0: as the code that the models were published with has it
    **_all(
        "aquila baichuan deepseek Dream dream exaone internlm internlm2 llada mimo minicpm openelm orion "
        "PanguEmbedded RefinedWeb RefinedWebModel sdar_moe solar xverse Yi"
    ),
    **_all("internlmxcomposer2 minicpmo minicpmv molmo qwen2_mtp qwen2_mtp_sensevoice", theta=None),
    **_all("phi3small", theta=1e6),
    **_all("phi3_v phi4 phi4mm", partial=1.0, original_max=4096),
    **_all("minimax_m3", theta=5e6, partial=1.0, head_dim=128, indexer=Indexer("half")),
    **_all("sdar", head_dim=128),
    **_all("nemotron-nas nemotron_nas deci", theta=None, mixed=True),
    **_all("iquestloopcoder", theta=5e5),
    **_all("step3_text", theta=5e5, head_dim=256),
    **_all("hunyuan", words=("rope_theta", "attention_head_dim"), alpha=True),
    **_all("bailing_moe bailing_moe_v2", words=_DIM, theta=None, partial=1.0),
    **_all("minimax_m1 minimax_text_01", words=_DIM, theta=None, partial=1.0, head_dim=128, mixed=True, typed=True),
    **_all("phi-msft", words=_DIM, partial=1.0, rotary_dim=32),
    **_all("stablelm_epoch", partial=0.25),
    **_all("chatglm", layout="interleaved", words=(*_USUAL_WORDS, "kv_channels"), partial=0.5),
    **_all("qwen", words=("rotary_emb_base", "rotary_pct", "kv_channels"), partial=1.0, temperature="logn"),
}


def known(name: str) -> str | None:
    """The name under which MODELS has the facts of a model_type.

    A multimodal config from before text_config existed has the model_type of the whole model.
    """
    return next((known for known in (name, f"{name}_text") if known in MODELS), None)


# A config without a model_type must say everything, in the keys that `plan_to_config` writes.
UNNAMED = Model(
    layout=None,
    switched=True,
    backward=None,
    layer_thetas=True,
    words=(*_USUAL_WORDS, *_NEOX, "rotary_emb_fraction", "rotary_dim", "kv_channels", "attention_head_dim"),
    nested=None,
    alpha=True,
    partial=1.0,
    latent=None,
    mixed=True,
    lists=("attn_layer_indices", "full_attn_idxs", "block_types", "cross_attention_layers"),
    interval=0,
    position="",
    sections=(),
    dealt=None,
    alternating=None,
)
