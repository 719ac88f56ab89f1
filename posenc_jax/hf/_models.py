"""What the code of each model_type does that no config.json contains.

`facts.json` has what a release of transformers says itself; `nox -f maintenance.py -s parity -- --facts` writes it. By
hand stays what no class says, read from the model's `modeling_*.py`, and all of the models whose code is not in
transformers.

A field of `Model` is a fact that at least two model types share. What one type alone does is a rewriter, in
`_rewriting.py` or `_rewrites.py`: it writes the keys that `plan_to_config` writes, and `reads` lets its type read them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from posenc_jax.hf._values import Json

FACTS: dict[str, Any] = json.loads(Path(__file__).with_name("facts.json").read_text(encoding="utf-8"))


class Pattern(NamedTuple):
    """Layer i is of type `full` where (i + phase) % period == 0, else of type `other`."""

    period: int
    key: str | None = None  # the config key that sets the period
    phase: int = 1
    other: str = "sliding_attention"
    last: bool = False  # the last layer is full_attention in any case
    full: str = "full_attention"
    backwards: bool = False  # i counts from the last layer

    def types(self, count: int) -> list[str]:
        """The types of `count` layers."""
        order = range(count)[:: -1 if self.backwards else 1]
        full = [(i + self.phase) % self.period == 0 or (self.last and i == count - 1) for i in order]
        return [self.full if x else self.other for x in full]


class Model(NamedTuple):
    """The facts of a model_type.

    "By default" means: where the config does not have the key.
    """

    layout: Literal["half", "interleaved"] | None = "half"  # None: as the config sets it
    reads: frozenset[str] = frozenset()  # the keys that its class has or takes, of those that may concern positions
    names: Mapping[str, str] = {}  # keys → the names that its class has for them
    defaults: Json = {}  # its values of keys

    # The base and the settings
    settings: Json = {}  # the rope settings by default
    theta: float | None = 10_000.0  # the base by default; None: it must be given
    writes_theta: bool = False  # its base stands beside rope_parameters too, and does not matter there
    ignores: Sequence[str] = ()  # of the base and the share, the keys that do not change its own `settings`
    bases: Mapping[str, tuple[str, float]] = {}  # layer type → (old key, default)
    changed_defaults: Mapping[str, tuple[str, float]] = {}  # key of a base → (release of today's default, that before)
    scaled_types: tuple[str, ...] = ("full_attention",)  # of `bases`, those that an old rope_scaling scales
    nested: bool | None = False  # rope_parameters has an entry for each layer type; None: it may
    null_settings: bool = False  # a null in them: layers of this type have no positions

    # The width
    derives_head_dim: bool = False  # a null head_dim means hidden_size / num_attention_heads
    partial: float | None = None  # the share of the head by default; None: the whole head, whatever the keys say
    whole_if_scaled: bool = False  # by default, `partial` is for rope type "default" alone
    latent: Literal["scaled", "unscaled"] | None = None  # the last features rotate; mscale_all_dim scales the scores

    # The layers
    # Layer types by default, by the fields of a Pattern or one for all; None: they must be given.
    pattern: Json | str | None = "full_attention"
    never_rotates: bool = False  # no layer has positions, whatever the keys say
    sliding_only: bool = False  # full_attention layers have no positions
    all_without_window: bool = False  # but with a null sliding_window, they have

    # Coordinates, query scales, indexers
    sections: tuple[int, ...] | None = None  # mrope_section by default; (): no sections; None: not read
    interleaved_sections: bool | None = False  # coordinates take pairs in turn; None: as the config sets it
    query_scale: Literal["llama4", "beta", "beam", "logn"] | None = None  # None: queries are not scaled
    indexer: Literal["half", "interleaved"] | None = None  # the layout of sparse attention's indexer


_FULL, _SLIDING, _INDEXED = "full_attention", "sliding_attention", "indexed_attention"


def by_model_type(groups: Json) -> dict[str, Any]:
    """The value of each model type, from those of groups, whose names spaces separate."""
    return {name: value for names, value in groups.items() for name in names.split()}


def _model(name: str, *, usual: str = "rope_theta partial_rotary_factor", also: str = "", **by_hand: Any) -> Model:
    """The facts of a class, and those by hand; code outside of transformers may take layer_types."""
    facts = FACTS["types"].get(name, {"reads": ["layer_types", "layers_block_type"]})
    names, defaults = ({**facts.get(key, {}), **by_hand.get(key, {})} for key in ("names", "defaults"))
    reads = frozenset((*usual.split(), *also.split(), *facts.get("reads", ()), *defaults, *names.values()))
    defaults = {key: value for key, value in defaults.items() if value is not None}
    return Model(**facts | by_hand | {"names": names, "defaults": defaults, "reads": reads})


_SPARSE = "compressed_sparse_attention", "heavily_compressed_attention"

# Facts by hand, of the types that a row names. Their code reads the keys `usual` and `also` beside those of the class;
# a default of None removes that of the class.
_GROUPS: dict[str, dict[str, Any]] = {
    # nothing more than the class says
    (
        "afmoe apertus apertus1p5_text arcee aria_text axk1 bailing_hybrid bitnet blt_global_transformer "
        "blt_local_decoder blt_local_encoder blt_patcher chameleon cohere2 cosmos3_edge_text csm "
        "csm_depth_decoder_model cwm dbrx deepseek_ocr2_encoder deepseek_v2 deepseek_v3 dia_decoder dia_encoder "
        "diffllama diffusion_gemma_text doge dory dots1 dots3_note_audio_encoder embedding_gemma2_text "
        "emu3_text_model esm esmc eurobert evolla EvollaModel exaone4 exaone_moe falcon flex_olmo flint gemma gemma2 "
        "gemma3_text gemma3n_text gemma4_text gemma4_unified_text glm glm4 glm4_moe glm4_moe_lite glm4v_moe_text "
        "glm4v_text glm5_next_text glm_image_text glm_ocr_text glmasr_encoder gpt_oss gradium_phonon_tts granite "
        "granite4_vision_text granite_docling_text granite_swa granitemoe granitemoe_swa granitemoehybrid "
        "granitemoeshared gte helium higgs_audio_v2 hrm_text hy_v3 hyperclovax idefics internlm3 iquestcoder jais2 "
        "jamba jina_embeddings_v3 kimi_linear kolibri1 laguna lara_mini lasr_encoder llama mimi "
        "mimi_decoder mimi_encoder minicpm3 minimax minimax_m2 ministral mistral mixtral mllama_text_model moonshine "
        "moshi muse_glimmer_assistant nemotron3_diarization_audio olmo olmo2 olmo_hybrid olmoe openai_privacy_filter "
        "paddleocr_vl_text pe_audio_encoder pe_audio_video_encoder pe_video_encoder phi phi3 phi4_multimodal phimoe "
        "pocket_tts pocket_tts_audio_tokenizer pocket_tts_audio_tokenizer_decoder pocket_tts_audio_tokenizer_encoder "
        "qwen2 qwen2_5_omni_talker qwen2_5_omni_text qwen2_5_vl_text qwen2_moe qwen2_vl_text qwen3 qwen3_5_moe_text "
        "qwen3_5_text qwen3_moe qwen3_next qwen3_omni_moe_talker_code_predictor qwen3_omni_moe_talker_text "
        "qwen3_omni_moe_text roformer sarvam_mla sarvam_moe seed_oss smollm3 solar_open stablelm starcoder2 "
        "t5_gemma_module t5gemma2_decoder t5gemma2_text ultrabert vaultgemma voxtral_realtime_encoder "
        "voxtral_realtime_text youtu zaya"
    ): {},
    # the base, in one release and in another
    "falcon_h1 kyutai_speech_to_text": {"changed_defaults": {"rope_theta": ("5.0", 1e5)}},
    "exaone": {"changed_defaults": {"rope_theta": ("5.24", 1e4)}},
    "persimmon": {"changed_defaults": {"rope_theta": ("5.0", 25_000.0)}},
    "cohere": {"changed_defaults": {"rope_theta": ("5.0", 1e4)}},
    # keys
    "hunyuan_v1_dense hunyuan_v1_moe": {"also": "alpha"},
    "ernie4_5 ernie4_5_moe": {"also": "rope_reorder fuse_rope"},
    "nemotron": {"names": {"rotary_pct": "rope_percent", "rotary_emb_fraction": "rope_percentage"}},
    "deepseek_ocr2_text unlimited_ocr_text": {"also": "qk_rope_head_dim qk_nope_head_dim use_mla"},
    "nanochat": {"also": "rope_backward"},
    "recurrent_gemma": {"names": {"block_types": "_block_types"}},
    "bamba": {"usual": "rope_theta", "also": "attn_rotary_emb"},
    "lfm2 lfm2_moe": {"also": "full_attn_idxs use_pos_enc", "names": {"rotary_emb_base": "theta"}},
    "lfm3": {"also": "full_attn_idxs"},
    "codegen gpt_neox gpt_neox_japanese gptj": {"usual": ""},
    "nomic_bert": {"usual": "rope_theta", "also": "rotary_emb_base rotary_emb_fraction"},
    "jetmoe mellum": {"usual": "rope_theta"},
    "nemotron_h": {"usual": "", "also": "attention_head_dim"},
    # the share of rope settings without one
    "moonshine_streaming nemotron3_5_transcribe_asr_audio nemotron3_5_transcribe_word_timestamp": {"partial": 1.0},
    "step3p5": {"also": "yarn_only_types use_rope_layers", "bases": {}},
    "mimo_v2 mimo_v2_flash": {
        "also": "swa_rope_theta",
        "partial": 0.334,
        "whole_if_scaled": True,
        "nested": True,
        "bases": {_FULL: ("rope_theta", 5e6), _SLIDING: ("swa_rope_theta", 1e4)},
        "defaults": {"head_dim": 192},
    },
    "molmo2_text": {"nested": None},
    # layers without positions
    "exaone4_5_text": {
        "sliding_only": True,
        "all_without_window": True,
        "pattern": {"period": 4, "key": "sliding_window_pattern"},
    },
    "cohere2_moe muse_glimmer_text muse_spark_text": {"sliding_only": False},
    "zamba2": {"usual": "rope_theta", "defaults": {"attention_head_dim": None}},
    "llama4_text": {"names": {"no_rope_layer_interval": "nope_layer_interval"}, "query_scale": "llama4"},
    # a spectrum for each layer type
    "modernbert": {"scaled_types": (_FULL, _SLIDING)},
    "modernbert-decoder": {
        "scaled_types": (_FULL, _SLIDING),
        "changed_defaults": {"local_rope_theta": ("5.0", 160_000.0)},
    },
    "olmo3": {"bases": {_FULL: ("rope_theta", 5e5), _SLIDING: ("rope_theta", 5e5)}},
    "dots3_note_text": {
        "also": "swa_qk_nope_head_dim swa_head_dim",
        "settings": {},
        "bases": {_SLIDING: ("swa_rope_theta", 5e4), _FULL: ("rope_theta", 8e7), _INDEXED: ("rope_theta", 8e7)},
        "latent": "unscaled",
        "indexer": "interleaved",
    },
    "neomme": {"sections": (), "interleaved_sections": True},
    "beam": {"query_scale": "beam"},
    # latent attention
    "longcat_flash": {"defaults": {"num_hidden_layers": None}},
    "AXK1 kimi_k2": {
        "layout": "interleaved",
        "latent": "scaled",
        "also": "rope_interleave qk_nope_head_dim qk_rope_head_dim",
    },
    "axk2 qwen4_exp_text": {"indexer": "half"},
    "hy_v4": {"indexer": "half", "defaults": {"indexer_part": "last"}},
    # vLLM reads indexer_rope_interleave, which GLM-5 has under this model_type too; transformers does not.
    "deepseek_v32": {"also": "indexer_rope_interleave", "indexer": "half"},
    "glm_moe_dsa": {"also": "indexer_rope_interleave", "indexer": "interleaved"},
    "mistral_large4_text": {
        "also": "learned_log_factor query_scale indexer_query_scale",
        "settings": FACTS["types"]["mistral_large4_text"]["settings"] | {"learned_log_factor": "lerope.alpha"},
        "defaults": {"no_rope_layer_interval": 4},
        "indexer": "interleaved",
    },
    "hy_v4_vl_text": {"indexer": "interleaved", "defaults": {"indexer_part": "last"}},
    "deepseek_v4": {
        "latent": "unscaled",
        "also": "compress_ratios compress_rates",
        "indexer": "interleaved",
        "bases": {_SLIDING: ("rope_theta", 1e4)} | dict.fromkeys(_SPARSE, ("compress_rope_theta", 160_000.0)),
        "scaled_types": _SPARSE,
        "settings": {},
        "defaults": {"qk_rope_head_dim": None, "indexer_part": "last", "rope_on_values": True},
    },
    "minimax_m3_vl_text": {"defaults": {"index_head_dim": None, "rotary_dim": None}, "indexer": "half"},
    "ministral3 mistral4": {"query_scale": "beta"},
    # positions of several coordinates
    "ernie4_5_vl_moe_text": {"also": "mrope_alternating"},
    "qwen3_vl_text qwen3_vl_moe_text": {"changed_defaults": {"rope_theta": ("5.0", 5e6)}},
    "cohere_compass_text": {"null_settings": True},
    # not in transformers: as in the code with which the models were published
    (
        "aquila baichuan deepseek Dream dream internlm internlm2 mimo minicpm orion PanguEmbedded RefinedWeb "
        "RefinedWebModel sdar_moe solar xverse Yi"
    ): {},
    "deci internlmxcomposer2 minicpmo minicpmv nemotron-nas nemotron_nas qwen2_mtp qwen2_mtp_sensevoice": {
        "theta": None
    },
    "llada": {"also": "rope_full_precision alibi_bias_max block_type"},
    "molmo": {"also": "use_position_ids", "theta": None},
    "openelm": {
        "also": "rope_max_length",
        "names": {"rope_theta": "rope_freq_constant", "num_hidden_layers": "num_transformer_layers"},
    },
    "phi3small": {"also": "rope_position_scale", "names": {"rope_theta": "rope_embedding_base"}, "theta": 1e6},
    "phi3_v phi4 phi4mm": {"partial": 1.0, "defaults": {"original_max_position_embeddings": 4096}},
    "gpt_neox_reward_model": {"usual": "rotary_emb_base rotary_pct", "partial": 0.25},
    "minimax_m3": {
        "also": "index_head_dim",
        "theta": 5e6,
        "partial": 1.0,
        "indexer": "half",
        "defaults": {"head_dim": 128},
    },
    "sdar": {"defaults": {"head_dim": 128}},
    "iquestloopcoder": {"theta": 5e5},
    "step3_text": {"theta": 5e5, "defaults": {"head_dim": 256}},
    "hunyuan": {"usual": "rope_theta", "also": "attention_head_dim alpha"},
    "bailing_moe bailing_moe_v2": {"also": "rotary_dim", "theta": None, "partial": 1.0},
    "minimax_m1 minimax_text_01": {"also": "rotary_dim", "theta": None, "partial": 1.0, "defaults": {"head_dim": 128}},
    "phi-msft": {
        "usual": "rope_theta",
        "also": "rotary_dim flash_rotary",
        "partial": 1.0,
        "defaults": {"rotary_dim": 32},
    },
    "stablelm_epoch": {
        "also": "rotary_scaling_factor",
        "names": {"partial_rotary_factor": "rope_pct"},
        "partial": 0.25,
    },
    "chatglm": {
        "layout": "interleaved",
        "also": "kv_channels rope_ratio original_rope position_encoding_2d interleaved_qkv",
        "names": {"partial_rotary_factor": "rotary_percent"},
        "partial": 0.5,
    },
    "qwen": {
        "usual": "rotary_emb_base rotary_pct",
        "also": "kv_channels use_logn_attn use_dynamic_ntk dynamic_steps",
        "partial": 1.0,
        "query_scale": "logn",
    },
}
MODELS = {name: _model(name, **by_hand) for name, by_hand in by_model_type(_GROUPS).items()}
# Keys that some class or published file has, which are no misspellings.
OTHER_KEYS = frozenset().union(
    *(model.reads for model in MODELS.values()),
    "head_dim_k head_dim_q head_dim_v head_k_dim head_v_dim kv_head_dim max_2d_position_embeddings use_mha use_mqa "
    "qk_head_dim use_mlp rope_global_base_freq".split(),
)
# Composites: the key of each part → the type that its class gives it where the file names none.
PARTS: dict[str, Any] = FACTS["parts"]


def canonical_type(name: str) -> str:
    """The name under which MODELS has the facts of a model_type; empty if it has none.

    A multimodal config from before text_config existed has the model_type of the whole model.
    """
    return next((candidate for candidate in (name, name + "_text") if candidate in MODELS), "")


# A config without a model_type must have everything, in the keys that `plan_to_config` writes.
UNNAMED = Model(
    layout=None,
    reads=frozenset(
        "rope_theta partial_rotary_factor rotary_emb_base rotary_pct rotary_emb_fraction rotary_dim kv_channels "
        "attention_head_dim global_head_dim qk_rope_head_dim qk_nope_head_dim index_head_dim indexer_head_dim n_embd "
        "d_model n_head n_heads decoder_num_attention_heads n_layer n_layers num_layers dynamic_steps "
        "decoder_num_hidden_layers layer_types layers_block_type attn_layer_indices full_attn_idxs block_types "
        "cross_attention_layers no_rope_layers no_rope_layer_interval sliding_window kind window chunk score_scale "
        "position_embedding_type layer_rope_theta rope_interleave rope_backward alpha mrope_alternating indexer_part "
        "indexer_rope_interleave query_scale indexer_query_scale learned_log_factor rope_on_values".split()
    ),
    nested=None,
    null_settings=True,
    partial=1.0,
    latent="scaled",
    sections=(),
    interleaved_sections=None,
    indexer="half",
)
