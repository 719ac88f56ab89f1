"""Model types that are not read, by the reason.

Those by hand have rotary code or biases of tokens in their modules; `facts.json` lists the types that have neither.
"""

from __future__ import annotations

from posenc_jax.hf._models import FACTS

_REASONS = {
    "it is a vision tower, which vision_rotary_from_config reads": """
        cohere_compass_vision dinov3_vit dots3_note_vision_encoder ernie4_5_vl_moe_vision exaone4_5_vision gemma4_vision
        glm4v_moe_vision glm4v_vision glm5_next_vision glm_ocr_vision inkling2_vision kimi_k25_vision lfm3_vl_vision
        llama4_vision_model minimax_m3_vl_vision mlcd mlcd_vision_model muse_glimmer_vision muse_spark_vision
        paddleocr_vl_vision pixtral qwen2_5_omni_vision_encoder qwen2_5_vl_vision qwen2_vl_vision qwen3_5_moe_vision
        qwen3_5_vision qwen3_omni_moe_vision_encoder qwen3_vl_moe_vision qwen3_vl_vision qwen4_exp_vision
        sam3_vision_model sam3_vit_model sapiens2 step3p5_vision video_llama_3_vision""",
    "it finds or follows objects in images, and vision_rotary_from_config reads it": """
        edgetam_video efficientloftr eomt_dinov3 sam2_video sam3 sam3_tracker_video""",
    "it is a vision tower, and gives the two features of a pair different angles, which is no rotation": "vjepa2",
    "it matches points of images by learned projections of their coordinates": "lightglue",
    "it is any model of timm, whose config does not say how it rotates": "timm_backbone timm_wrapper",
    "it forecasts time series, and normalizes and scales features after the rotation": "timesfm2_5",
    "it rotates its values too, and does not rotate the outputs of attention back": "clvp_encoder",
    "it rotates by the index of the head, not by the position": "neucodec xcodec2",
    "it rotates only the first head": "qwen2_5_omni_dit qwen2_5_omni_token2wav",
    "it rotates hidden states before they become queries and keys, or content_bias computes biases of its tokens": """
        seamless_m4t wav2vec2-bert wav2vec2-conformer""",
    "it has no rotary embedding: content_bias computes the biases of its tokens": """
        deberta deberta-v2 deepseek_ocr2_sam_vision_model fastspeech2_conformer fastspeech2_conformer_with_hifigan
        funnel gemma3n_audio gemma4_audio got_ocr2_vision granite_speech5_ctc granite_speech5_encoder
        granite_speech_encoder granite_speech_plus_encoder inkling2_loop_text inkling2_text nemotron_asr_streaming
        nemotron_asr_streaming_encoder parakeet_ctc parakeet_encoder parakeet_rnnt parakeet_tdt pp_formulanet_vision
        sam sam_hq sam_hq_vision_model sam_vision_model seamless_m4t_v2 seggpt sew-d slanext slanext_vision speecht5
        unlimited_ocr_sam_vision_model vitdet vits xlnet""",
    "it has no rotary embedding: its bias is t5 times a gate of each token, which attention takes as query_data": """
        wavlm""",
    "the two features of a pair may rotate by different coordinates": "hunyuan_vl hunyuan_vl_text",
    "it is four models: read its global_config, encoder_config, decoder_config and patcher_config": "blt",
    "it holds an encoder with a config of its own: read its encoder_config": "deepseek_ocr2_vision lasr_ctc",
    "it holds an audio encoder with a config of its own: read its audio_config": "nemotron3_diarization",
    "it holds an audio encoder with a config of its own: read its asr_config": "nemotron3_5_transcribe_audio",
    "it has no rotary embedding": """
        canary clvp clvp_decoder cohere_asr idefics_vision moshi_depth omniasr_ctc pp_doclayout_v2""",
}
REFUSED = dict.fromkeys(FACTS["without_rope"], "it has no rotary embedding") | {
    name: reason for reason, names in _REASONS.items() for name in names.split()
}
