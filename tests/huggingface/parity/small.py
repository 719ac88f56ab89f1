"""Settings and inputs for a small model of each model type, with every kind of layer that the type has."""

import torch
import transformers

from posenc_jax.hf._models import by_model_type

# Sizes, and the keys that have them.
_SIZES = {
    256: "hidden_size adapter_input_size cross_hidden_size hidden_size_global upsample_groups",
    128: "indexer_head_dim",
    64: "intermediate_size vocab_size",
    32: "moe_intermediate_size",
    16: "codebook_dim feature_size vector_quantization_hidden_dimension",
    8: "hidden_size_per_layer_input",
    5: "conv_kernel_size",
    4: "num_experts num_local_experts n_routed_experts mamba_n_heads indexer_budget num_filters",
    2: """
        num_attention_heads num_key_value_heads num_experts_per_tok eos_token_id indexer_n_heads n_groups
        index_n_heads linear_num_heads linear_num_key_heads linear_num_value_heads swa_num_attention_heads
        swa_num_key_value_heads
    """,
    1: "n_group topk_group n_shared_experts bos_token_id index_kpool indexer_compress_ratio indexer_kv_heads",
}
COMMON = {name: size for size, names in _SIZES.items() for name in names.split()} | {
    "num_hidden_layers": 6,
    "max_position_embeddings": 16_384,
    "initializer_range": 0.06,  # 1/√hidden_size: queries and keys of unit scale
    "pad_token_id": 0,
    "attention_multiplier": 0.1,
    "mamba_d_ssm": 512,
    # Small enough to show in a row of eight tokens.
    "sliding_window": 4,
    "attention_window_size": 4,
    "local_attention": 6,
    "attention_chunk_size": 3,
    "use_sliding_window": True,
    "max_window_layers": 2,
}

_YARN = dict(rope_type="yarn", factor=16.0, original_max_position_embeddings=1024, mscale=1.0, mscale_all_dim=0.8)
_SECTIONS = dict(rope_type="default", partial_rotary_factor=0.5, mrope_section=[8, 12, 12])
_SLIDING = ["sliding_attention", "full_attention"]

_V4 = ["sliding_attention", "heavily_compressed_attention", "compressed_sparse_attention"]
# Settings of single types.
_GROUPS = {
    (
        "axk1 axk2 deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa hy_v4 hy_v4_vl_text minicpm3 "
        "sarvam_mla youtu"
    ): dict(rope_parameters=_YARN),
    "t5_gemma_module t5gemma2_decoder t5gemma2_text": dict(dropout_rate=0.0),
    "bamba": dict(attn_layer_indices=[1, 4]),
    "chameleon": dict(vocabulary_map={"<image>": 4}),
    "codegen gptj": dict(num_attention_heads=4, hidden_size=512, num_hidden_layers=2, max_position_embeddings=100_001),
    "cohere_compass_text": dict(
        layer_types=_SLIDING * 3,
        rope_parameters=dict(
            sliding_attention=dict(rope_type="default", rope_theta=5e4, mrope_section=[24, 20, 20]), full_attention=None
        ),
    ),
    "dbrx": dict(
        d_model=256,
        attn_config=dict(kv_n_heads=2, rope_theta=5e5, clip_qkv=8),
        ffn_config=dict(ffn_hidden_size=32, moe_num_experts=2, moe_top_k=1),
        rope_parameters=dict(rope_type="default", rope_theta=5e5),
    ),
    "deepseek_ocr2_text": dict(mlp_layer_types=["dense"] + ["sparse"] * 5),
    "deepseek_v4": dict(
        head_dim=128,
        layer_types=_V4 + ["compressed_sparse_attention"] + _V4[:2],
        rope_parameters=dict(rope_type="yarn", factor=16.0, original_max_position_embeddings=1024),
        index_n_heads=4,
    ),
    "diffusion_gemma_text": dict(top_k_experts=2),
    "hrm_text": dict(num_hidden_layers=2),
    "ernie4_5_vl_moe_text": dict(moe_intermediate_size=[32, 32]),
    "esm": dict(position_embedding_type="rotary"),
    "evolla EvollaModel": dict(protein_encoder_config=dict(num_hidden_layers=1)),
    "gemma3n_text": dict(num_hidden_layers=12, num_kv_shared_layers=2),
    "glm4v_text glm_image_text glm_ocr_text": dict(rope_parameters=_SECTIONS),
    "glmasr_encoder lasr_encoder": dict(num_mel_bins=16),
    "granitemoehybrid": dict(
        num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], position_embedding_type="rope"
    ),
    "hunyuan_v1_dense hunyuan_v1_moe ministral": dict(head_dim=128),
    "idefics": dict(vision_config=dict(num_hidden_layers=1)),
    "kyutai_speech_to_text": dict(num_codebooks=2, audio_pad_token_id=192),
    "mistral_large4_text": dict(rope_parameters=_YARN | dict(rope_theta=1e4)),
    "lfm2_moe": dict(num_hidden_layers=4, layer_types=["conv", "conv", "full_attention", "conv"]),
    "llama4_text": dict(moe_layers=[], floor_scale=2),
    "longcat_flash": dict(num_layers=3),
    "mimi mimi_decoder mimi_encoder": dict(num_hidden_layers=2, codebook_size=16),
    "mimo_v2_flash": dict(num_attention_heads=8),
    "minimax_m3_vl_text": dict(
        num_hidden_layers=3,
        layer_types=["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
        mlp_layer_types=["dense", "sparse", "sparse"],
        index_local_blocks=0,
        rope_parameters=dict(rope_type="default", partial_rotary_factor=0.5),
    ),
    "ministral3 mistral4": dict(rope_parameters=_YARN | dict(rope_theta=1e4, llama_4_scaling_beta=0.1)),
    "mllama_text_model": dict(cross_attention_layers=[3]),
    "moonshine": dict(hidden_size=72),
    "moonshine_streaming": dict(num_key_value_heads=2),
    "moshi": dict(num_codebooks=2),
    "muse_glimmer_assistant": dict(target_layer_ids=[0], layer_types=_SLIDING * 3),
    "nemotron3_5_transcribe_word_timestamp": dict(blank_token_id=63),
    "pe_audio_encoder": dict(
        dac_config=dict(encoder_hidden_size=4, hidden_size=32, downsampling_ratios=[2, 2], decoder_hidden_size=16)
    ),
    "phi4_multimodal": dict(vision_config=dict(num_hidden_layers=2), audio_config=dict(num_blocks=1)),
    "gradium_phonon_tts pocket_tts": dict(flow_head_config=dict(num_hidden_layers=1, condition_dim=256)),
    "pocket_tts_audio_tokenizer pocket_tts_audio_tokenizer_decoder pocket_tts_audio_tokenizer_encoder": dict(
        num_hidden_layers=2, latent_dim=8
    ),
    "qwen2_5_omni_talker": dict(embedding_size=256),
    # without a window: the first makes no masks for it, and the second drops it
    "qwen3_omni_moe_talker_code_predictor qwen3_vl_moe_text": dict(sliding_window=None),
    "qwen3_omni_moe_talker_text": dict(shared_expert_intermediate_size=32),  # which its class does not set
    "qwen4_exp_text": dict(
        num_hidden_layers=4,
        rope_parameters=dict(rope_type="default", partial_rotary_factor=0.25, mrope_section=[11, 11, 10]),
    ),
    "step3p5": dict(
        num_hidden_layers=4,
        layer_types=_SLIDING * 2,
        rope_parameters=dict(
            full_attention=dict(
                rope_type="llama3",
                rope_theta=5e6,
                factor=2.0,
                original_max_position_embeddings=1024,
                low_freq_factor=1.0,
                high_freq_factor=32.0,
                partial_rotary_factor=0.5,
            ),
            sliding_attention=dict(rope_type="default", rope_theta=1e4),
        ),
    ),
    "zamba2": dict(
        num_hidden_layers=3,
        layers_block_type=["hybrid", "hybrid", "mamba"],
        use_mem_rope=True,
        mamba_d_state=8,
        chunk_size=8,
    ),
    "zaya": dict(num_experts_per_tok=1, num_hidden_layers=4, layer_types=["hybrid", "hybrid_sliding"] * 2),
}

BY_TYPE = by_model_type(_GROUPS)

# The class to build, where it is not the first one of its module.
CLASSES = {
    "blt_global_transformer": "BltGlobalTransformer",
    "blt_patcher": "BltPatcher",
    "moonshine": "MoonshineDecoder",
    "t5_gemma_module": "T5GemmaEncoder",
}

# Types without a model here: those that begin with a model of timm, which sees images, and those without a choice of
# attention functions.
NOT_RUN = {"pe_audio_video_encoder", "pe_video_encoder", "falcon", "gpt_neox_japanese"}
NOT_RUN |= {"codegen", "gptj"} if transformers.__version__ == "5.23.0" else set()


def _noise(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


# All arguments of the forward pass, of types whose models count tokens or frames and take no positions.
_INDEXED = {
    "csm_depth_decoder_model": dict(input_ids=torch.full((1, 32), 5)),
    "dia_encoder roformer": dict(input_ids=torch.full((1, 300), 5)),
    "dots3_note_audio_encoder": dict(
        input_features=_noise(1, 16, 1600), chunk_sample_lengths=torch.tensor([1600 * 160])
    ),
    "glmasr_encoder": dict(input_features=_noise(1, 16, 600)),
    "lasr_encoder": dict(input_features=_noise(1, 1200, 16)),
    "mimi mimi_encoder": dict(input_values=_noise(1, 1, 24_000)),
    "mimi_decoder": dict(latents=_noise(1, 256, 300)),
    "nemotron3_5_transcribe_word_timestamp": dict(inputs_embeds=_noise(1, 150, 256)),
    "pe_audio_encoder": dict(input_values=_noise(1, 1, 1200)),
    "pocket_tts_audio_tokenizer pocket_tts_audio_tokenizer_encoder": dict(input_values=_noise(1, 1, 19_200)),
    "pocket_tts_audio_tokenizer_decoder": dict(latents=_noise(1, 256, 20)),
}
INDEXED = by_model_type(_INDEXED)

# The number of tokens in a block, of types whose indexer has one key per block, at the position of its first token.
COMPRESSED = {"deepseek_v4": 4}

# What modules of transformers call the parameters that a model has learned, by parts of their names in checkpoints.
RENAMED = {
    "lerope.": "rotary_emb.",
    ".attention.": ".self_attn.",
    "ssmax_scaling.s": "softmax_scaling.scale",
    "ssmax_scaling.b": "softmax_scaling.bias",
}

# Types whose query scale counts tokens, whatever their positions.
SCALED_BY_INDEX = {"llama4_text"}

# Functions that change queries though cosines are 1 and sines 0, and what a pass at rest has in their place.
STILL = {
    "beam": ("compute_attention_scaling", lambda positions: torch.ones(())),
    "roformer": ("RoFormerSelfAttention.apply_rotary_position_embeddings", staticmethod(lambda waves, q, k: (q, k))),
}

# Types whose layers reset at position 0: a pass at rest must have the same positions as the other pass.
RESTARTING = {"recurrent_gemma"}

# Attention classes of models that run their layers several times: each time counts as one layer.
REPEATING = {"HrmTextAttention", "Zamba2Attention"}

# The number of codebooks of which a token consists.
CODEBOOKS = {"csm": 32, "dia_decoder": 9, "kyutai_speech_to_text": 3}

# Types with eager attention alone, in a method that scales the scores by itself.
EAGER = {"roformer"}

# Types that take embeddings, not tokens.
EMBEDDED = set(
    "blt_global_transformer blt_local_decoder deepseek_ocr2_encoder gradium_phonon_tts nemotron3_diarization_audio "
    "nemotron3_5_transcribe_asr_audio qwen3_omni_moe_talker_code_predictor qwen3_omni_moe_talker_text "
    "voxtral_realtime_encoder".split()
)

# Further arguments of the forward pass, for a row of eight tokens.
_INPUTS = {
    "blt_local_decoder": dict(patch_embeds=torch.zeros(1, 8, 256)),
    "blt_local_encoder": dict(num_patches=2, patch_ids=torch.zeros(1, 8, dtype=torch.long)),
    "blt_patcher": dict(patch_size=4, threshold=1.3),
    "deepseek_ocr2_encoder": dict(num_patches=3, attention_mask=None),
    "dia_decoder t5gemma2_decoder": dict(encoder_hidden_states=torch.zeros(1, 3, 256)),
    "idefics": dict(image_encoder_embeddings=torch.zeros(1, 1, 5, 768), image_attention_mask=torch.ones(1, 8, 1)),
    "moonshine": dict(encoder_hidden_states=torch.zeros(1, 3, 72)),
    "moonshine_streaming": dict(encoder_hidden_states=torch.zeros(1, 3, 320)),
    "muse_glimmer_assistant": dict(
        input_ids=None, noise_embeds=_noise(1, 8, 256), context_hidden_states=torch.zeros(1, 0, 256)
    ),
    "voxtral_realtime_text": dict(t_cond=torch.zeros(1, 1, 256)),
}
INPUTS = by_model_type(_INPUTS)

# Attention classes that multiply queries and keys themselves, as all classes do whose names end in Indexer.
MULTIPLYING = {"RoFormerSelfAttention"}
