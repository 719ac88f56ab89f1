"""Configs of vision towers: where a tower stands, what may be missing, and what is refused."""

import json

import numpy as np
import pytest

import posenc_jax as pe
from helpers.plans import WithToDict
from huggingface.test_hostile_configs import JUNK
from oracles import recorded
from posenc_jax.hf import _towers, plan_to_config, rotary_from_config, vision_rotary_from_config

QWEN = {"model_type": "qwen2_5_vl", "depth": 3, "hidden_size": 1280, "num_heads": 16, "patch_size": 14}
QWEN |= {"spatial_merge_size": 2, "spatial_patch_size": 14, "window_size": 112, "fullatt_block_indexes": [1]}
PLAIN = {"hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 2}
DINO = PLAIN | {"model_type": "dinov3_vit"}
PIXTRAL = PLAIN | {"model_type": "pixtral"}
SAM_3 = PLAIN | {"model_type": "sam3_vit_model", "global_attn_indexes": [1]}
LLAMA_4 = PLAIN | {"model_type": "llama4_vision_model"}
LFM_3 = PLAIN | {"model_type": "lfm3_vl_vision"}
SAM_2 = {"model_type": "sam2_video"}
LOFTR = {"model_type": "efficientloftr"}
EOMT = PLAIN | {"model_type": "eomt_dinov3"}
MINIMAX = {"model_type": "minimax_m3_vl", "vision_config": {"model_type": "clip_vision_model"}}
read = vision_rotary_from_config


# Where a tower stands


def test_a_tower_within_a_model():
    inner = {key: value for key, value in QWEN.items() if key != "model_type"}
    plan = read({"model_type": "qwen2_5_vl_vision"} | inner)
    text = {"rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}  # not the tower's
    for config in (
        QWEN,
        {"model_type": "qwen2_5_vl", "vision_config": inner},
        {"model_type": "qwen2_5_vl", "vision_config": QWEN} | text,
        {"model_type": "qwen2_5_vl", "vision_config": inner | {"model_type": "pixtral"}},  # which its class ignores
        {"model_type": "my_wrapper", "vision_config": {"model_type": "qwen2_5_vl_vision"} | inner},
        {"model_type": "hyperclovax_vision_v2", "vision_config": inner},
        WithToDict({"model_type": "qwen2_5_vl", "vision_config": WithToDict(QWEN)}),
    ):
        assert read(config) == plan
    omni = {"model_type": "qwen2_5_omni", "thinker_config": {"vision_config": inner}}
    assert read(omni).grids == plan.grids
    unsized = {"model_type": "hyperclovax_vision_v2", "vision_config": {"model_type": "qwen2_5_vl"}}
    assert read(unsized) == read({"model_type": "qwen2_5_vl_vision"})
    assert read({"model_type": "llava", "vision_config": PIXTRAL}) == read(PIXTRAL)
    assert read({"model_type": "mlcd"}) == read({"model_type": "mlcd_vision_model"})
    assert read({"model_type": "colqwen2", "vlm_config": {"vision_config": {"embed_dim": 64, "num_heads": 1}}})


def test_sam_3():
    vit = {key: value for key, value in SAM_3.items() if key != "model_type"}
    plan = read(SAM_3)
    assert read({"model_type": "sam3", "vision_config": {"backbone_config": vit}}) == plan
    assert read({"model_type": "sam3_vision_model", "backbone_config": SAM_3}) == plan
    assert plan.layers[1].frequencies == pe.linear_scaling(plan.layers[0].frequencies, 3.0)  # 72 / 24
    assert plan.positions((5, 7), 0).shape == (576, 2) and plan.positions((72, 72), 1).shape == (5184, 2)
    assert plan.positions((72, 72), 1)[73].tolist() == [1, 1]
    tracker = {"model_type": "sam3_tracker_video", "vision_config": {"backbone_config": vit | {"patch_size": 28}}}
    assert read(tracker).grids[0].shapes == ((36, 36),)
    assert read(tracker["vision_config"]["backbone_config"] | {"model_type": "sam3_vit_model"}).layers[0].head_dim == 64


COLUMN_FIRST = pe.join(128, 128, axes=(1, 0))
# As published, without the language model, and what each of them means: layers, features of a head, spectrum, layout
PUBLISHED = {
    "Qwen2.5-VL-7B": ("""{"model_type": "qwen2_5_vl", "rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section":
        [16, 24, 24]}, "vision_config": {"depth": 32, "fullatt_block_indexes": [7, 15, 23, 31], "hidden_act": "silu",
        "hidden_size": 1280, "in_channels": 3, "in_chans": 3, "initializer_range": 0.02, "intermediate_size": 3420,
        "model_type": "qwen2_5_vl", "num_heads": 16, "out_hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2,
        "spatial_patch_size": 14, "temporal_patch_size": 2, "tokens_per_second": 2, "torch_dtype": "float32",
        "window_size": 112}}""", 32, 80, pe.axial(80, 2), "half"),
    "Qwen3.6-27B-NVFP4": ("""{"model_type": "qwen3_5", "transformers_version": "5.7.0", "vision_config":
        {"deepstack_visual_indexes": [], "depth": 27, "dtype": "bfloat16", "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 1152, "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 4304, "model_type":
        "qwen3_5_vision", "num_heads": 16, "num_position_embeddings": 2304, "out_hidden_size": 5120, "patch_size": 16,
        "spatial_merge_size": 2, "temporal_patch_size": 2}}""", 27, 72, pe.axial(72, 2), "half"),
    "Gemma 4 26B A4B": ("""{"model_type": "gemma4", "transformers_version": "5.5.0.dev0", "vision_config":
        {"attention_bias": false, "default_output_length": 280, "global_head_dim": 72, "head_dim": 72, "hidden_size": 1152,
        "intermediate_size": 4304, "max_position_embeddings": 131072, "model_type": "gemma4_vision",
        "num_attention_heads": 16, "num_hidden_layers": 27, "num_key_value_heads": 16, "patch_size": 16,
        "pooling_kernel_size": 3, "position_embedding_size": 10240, "rope_parameters": {"rope_theta": 100.0, "rope_type":
        "default"}, "standardize": true}}""", 27, 72, pe.join(*[pe.geometric(36, 100.0)] * 2, axes=(1, 0)), "half"),
    "Kimi-K2.5-NVFP4": ("""{"model_type": "kimi_k25", "transformers_version": "4.57.1", "use_unified_vision_chunk": true,
        "vision_config": {"init_pos_emb_height": 64, "init_pos_emb_time": 4, "init_pos_emb_width": 64, "merge_kernel_size":
        [2, 2], "merge_type": "sd2_tpool", "mm_hidden_size": 1152, "mm_projector_type": "patchmerger", "model_type": "",
        "patch_size": 14, "pos_emb_type": "divided_fixed", "projector_hidden_act": "gelu", "projector_ln_eps": 1e-05,
        "text_hidden_size": 7168, "video_attn_type": "spatial_temporal", "vt_hidden_size": 1152, "vt_intermediate_size":
        4304, "vt_num_attention_heads": 16, "vt_num_hidden_layers": 27}}""",
        27, 72, pe.join(36, 36, axes=(1, 0))[[i + axis * 18 for i in range(18) for axis in (0, 1)]], "half"),
    "MiniMax-M3": ("""{"model_type": "minimax_m3_vl", "image_token_index": 200025, "vision_config": {"model_type":
        "clip_vision_model", "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32,
        "num_attention_heads": 16, "patch_size": 14, "image_size": 2016, "projection_dim": 6144,
        "position_embedding_type": "rope", "rope_mode": "3d", "rope_theta": 10000.0, "hidden_act": "gelu",
        "img_token_compression_config": {"image_token_compression_method": "patch_merge", "spatial_merge_size": 2,
        "temporal_patch_size": 2}, "vision_segment_max_frames": 4}}""",
        32, 80, pe.join(26, 26, 26, axes=(0, 1, 2)), "half"),
    "Step-3.7-Flash": ("""{"model_type": "step3p7", "image_token_id": 128001, "understand_projector_stride": 2,
        "vision_config": {"model_type": "perception_encoder", "image_size": 728, "patch_size": 14, "width": 1536,
        "layers": 47, "heads": 16, "use_cls_token": false, "ls_init_value": 0.1, "use_ln_post": false, "use_rope2d": true,
        "hidden_act": "quick_gelu", "output_dim": null, "pool_type": "none"}}""",
        47, 96, pe.join(48, 48, axes=(1, 0)), "half"),
    "Llama 4 Scout": ("""{"model_type": "llama4", "vision_config": {"hidden_size": 1408, "image_size": 336,
        "intermediate_size": 5632, "model_type": "llama4_vision_model", "num_attention_heads": 16, "num_channels": 3,
        "num_hidden_layers": 34, "patch_size": 14, "pixel_shuffle_ratio": 0.5, "rope_theta": 10000,
        "vision_feature_layer": -1, "vision_output_dim": 4096}}""",
        34, 88, pe.join(44, 44, axes=(1, 0)), "interleaved"),
    "DINOv3 ViT-S/16": ("""{"architectures": ["DINOv3ViTModel"], "hidden_size": 384, "image_size": 224, "layerscale_value":
        1.0, "model_type": "dinov3_vit", "num_attention_heads": 6, "num_hidden_layers": 12, "num_register_tokens": 4,
        "patch_size": 16, "pos_embed_jitter": null, "pos_embed_rescale": 2.0, "pos_embed_shift": null, "rope_theta":
        100.0}""", 12, 64, pe.linear_scaling(pe.axial(64, 2, 100.0), 1 / (2 * np.pi)), "half"),
    "SAM 3's tracker": ("""{"model_type": "sam3_tracker_video", "num_maskmem": 7, "memory_attention_hidden_size": 256,
        "memory_attention_num_attention_heads": 1, "memory_attention_num_layers": 4, "memory_attention_downsample_rate": 1,
        "memory_attention_rope_feat_sizes": [72, 72], "memory_attention_rope_theta": 10000,
        "enable_temporal_pos_encoding_for_object_pointers": true, "enable_occlusion_spatial_embedding": true,
        "vision_config": {"model_type": "sam3_vision_model"}}""", 4, 256, COLUMN_FIRST, "interleaved"),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_tower(name):
    text, count, head_dim, frequencies, layout = PUBLISHED[name]
    plan = read(json.loads(text))
    assert (len(plan.layers), plan.layers[0].head_dim, plan.layout) == (count, head_dim, layout)
    assert plan.layers[0].frequencies == frequencies


REASONS = (
    "is a whole model|is no vision tower|is not known as a vision tower|has no rotary embedding|is not read: it is"
)


def test_published_language_models_have_no_tower():
    for case in recorded.cases("hf_published"):
        with pytest.raises(ValueError, match=f"^vision_rotary_from_config: .*({REASONS}|model_type is missing)"):
            read(case["config"])


# What may be missing: the class says it


CASES = [(case["config"], _towers.TOWERS[case["config"]["model_type"]]) for case in recorded.cases("hf_towers")]


def test_sizes_and_bases_of_the_class():
    for config, facts in CASES:
        name = {"model_type": config["model_type"]}
        assert (
            read(name) == read(name | facts.defaults) == read(name | dict.fromkeys(["rope_parameters", "rope_scaling"]))
        )
        base, plan = facts.rope["rope_theta"], read(config)
        assert read(config | {"rope_theta": base}) == plan != read(config | {"rope_theta": 77.0})
        if "rope_parameters" in facts.keys:
            for other in (base, 77.0):
                settings = {"rope_theta": other, "type": "default"}
                assert read(config | {"rope_scaling": settings}) == read(config | {"rope_theta": other})
    assert read(SAM_2 | {"memory_attention_rope_theta": 77.0}) == read(SAM_2 | {"rope_theta": 77.0})


def test_other_names_of_keys():
    for config, facts in CASES:
        for key in {facts.hidden, facts.heads, facts.depth} & facts.names.keys():
            written, other = (key, facts.names[key]) if key in config else (facts.names[key], key)
            assert read({other if k == written else k: v for k, v in config.items()}) == read(config)
            with pytest.raises(ValueError, match=f"{key} = .* contradicts {facts.names[key]} = "):
                read(config | {other: 2 * config[written]})


def test_grids_of_the_class():
    assert read(DINO | {"model_type": "sapiens2"}).grids[0].leading == 9
    assert read(DINO).grids[0].leading == 1 and read(DINO | {"num_register_tokens": 4}).grids[0].leading == 5
    eomt = read(EOMT | {"num_hidden_layers": 6})
    assert [grid.leading for grid in eomt.grids] == [5, 5, 205, 205, 205, 205]
    muse = read(PLAIN | {"model_type": "muse_spark_vision"}).grids[0]
    assert (muse.window, muse.merge, muse.offset) == (32, 1, 1)
    lfm = read(LFM_3 | {"num_hidden_layers": 6})
    assert [layer.rotary_dim for layer in lfm.layers] == [0, 0, 64, 0, 64, 0]
    assert read({"model_type": "edgetam_video"}).grids[0].shapes == ((64, 64), (16, 16))
    assert read(LLAMA_4).grids[0].shapes == ((32, 32),)
    assert read({"model_type": "inkling2_vision", "adapter_merge_size": 4}).grids[0].merge == 4


# What is refused


def test_a_misspelled_key_of_every_tower():
    """A size is missing and a key is near its name; other unknown keys are ignored, as by the class."""
    for config, facts in CASES:
        for key in {facts.hidden, facts.heads, facts.depth} & config.keys():
            for word in (key[:-1], key[:3] + key[4:], key.upper()):
                with pytest.raises(ValueError, match=f"the key {word} = .* is not read by .*: is {key} meant"):
                    read({word if k == key else k: v for k, v in config.items()})
        assert read(config | {"my_key": 3, "moe_layer_freq": 2}) == read(config)


BAD = [
    # which tower
    (None, "config must be a mapping or have to_dict"),
    ({}, "model_type is missing: no key says how a vision tower rotates"),
    ({1: 2}, "each key of config must be a string"),
    ({"model_type": 3}, "model_type must be a string"),
    ({"vision_config": 3}, "vision_config must be a mapping"),
    (PLAIN | {"model_type": "my_tower"}, "model_type 'my_tower' is not known as a vision tower, and no key says"),
    ({"model_type": "kimi_k3", "vision_config": PLAIN}, "vision_config.model_type is missing"),
    (PLAIN | {"model_type": "llama"}, "model_type 'llama' is no vision tower: rotary_from_config reads it"),
    ({"model_type": "paddleocr_vl", "hidden_size": 64}, "'paddleocr_vl' is a whole model, and vision_config is missing"),
    ({"model_type": "llava", "text_config": {}}, "'llava' is a whole model, and vision_config is missing"),
    ({"model_type": "qwen2_5_omni", "thinker_config": {}}, "'qwen2_5_omni_thinker' is a whole model, and vision_config"),
    ({"model_type": "qwen3_asr", "thinker_config": {}}, "'qwen3_asr' is a whole model without a vision tower: it has audio_config, text_config"),
    ({"model_type": "sam3_video"}, "without a vision tower: it has detector_config, tracker_config"),
    ({"vision_config": {"vision_config": {"vision_config": {"vision_config": PIXTRAL}}}}, "config must hold its vision_config within four levels"),
    ({"vision_config": PIXTRAL, "backbone_config": DINO}, "vision_config = .* contradicts backbone_config = "),
    # which does not rotate
    (PLAIN | {"model_type": "vjepa2"}, "'vjepa2' is not read: it is a vision tower, and gives the two features of a pair different angles"),
    ({"model_type": "llava", "vision_config": {}}, "'clip_vision_model' is not read: it has no rotary embedding"),
    ({"model_type": "hunyuan_vl", "vision_config": {}}, "'hunyuan_vl_vision' is not read: it has no rotary embedding"),
    ({"model_type": "perception_lm", "vision_config": {}}, "'timm_wrapper' is not read: it is any model of timm"),
    ({"model_type": "sam", "vision_config": {}}, "'sam' is not read: it has no rotary embedding: content_bias computes"),
    # a null, where no default applies
    (PIXTRAL | {"rope_theta": None}, "rope_theta must have a value or be left out for 10000.0, got null"),
    (PIXTRAL | {"rope_parameters": {"rope_theta": None}}, "rope_parameters.rope_theta must have a value or be left out"),
    ({"model_type": "glm4v_vision", "depth": None}, "num_hidden_layers must be an integer, got NoneType None"),
    # of the wrong type, or out of range
    (PIXTRAL | {"hidden_size": 128.0}, "hidden_size must be an integer, got float"),
    (PIXTRAL | {"num_attention_heads": 0}, "num_attention_heads must be at least 1"),
    (PIXTRAL | {"num_attention_heads": 3}, "hidden_size = 128 must be a multiple of 3"),
    (PIXTRAL | {"num_attention_heads": 64}, "head_dim must be a multiple of 4, got 2"),
    (PIXTRAL | {"num_hidden_layers": 2**16}, "num_hidden_layers must be below 65,536, got 65536"),
    (PIXTRAL | {"rope_theta": -1}, "rope_theta must be positive"),
    (PIXTRAL | {"rope_parameters": {"rope_theta": float("nan")}}, "rope_theta must be finite"),
    (PIXTRAL | {"rope_parameters": [1]}, "rope_parameters must be a mapping"),
    (PIXTRAL | {"rope_parameters": {"rope_type": "yarn"}}, r"rope_parameters.rope_type must be one of \('axial', 'default'\), got 'yarn'"),
    (EOMT | {"rope_parameters": {"rope_type": "axial"}}, r"rope_type must be one of \('default',\), got 'axial'"),
    (QWEN | {"window_size": 20}, "window_size must hold a square of 2 patches of 14, got 20"),
    (DINO | {"num_register_tokens": -1}, "num_register_tokens must be at least 0"),
    (SAM_3 | {"global_attn_indexes": [0.5]}, r"global_attn_indexes\[0\] must be an integer"),
    (SAM_3 | {"global_attn_indexes": 7}, "global_attn_indexes must be a sequence"),
    (SAM_3 | {"image_size": [8, 8]}, r"image_size must hold a patch, got \(8, 8\)"),
    (SAM_3 | {"image_size": [1, 2, 3]}, "image_size must be a number or a width and a height"),
    (EOMT, "num_blocks must be at most 2 layers, got 4"),
    (LFM_3 | {"layer_types": []}, "layer_types must hold 2 times 'conv' or 'full_attention'"),
    (LFM_3 | {"layer_types": ["conv", "mamba"]}, "layer_types must hold 2 times"),
    (SAM_2 | {"memory_attention_downsample_rate": 3}, "memory_attention_hidden_size = 256 must be a multiple of 3"),
    # what contradicts
    (PIXTRAL | {"head_dim": 32}, "hidden_size / heads = 64 contradicts head_dim = 32"),
    (PIXTRAL | {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e5}}, "rope_theta = 10000.0 contradicts rope_parameters.rope_theta = 100000.0"),
    (PIXTRAL | {"rope_scaling": {"type": "axial"}, "rope_parameters": {"rope_theta": 1e5}}, "rope_scaling = .* contradicts rope_parameters = "),
    ({"model_type": "sam3_tracker_video", "memory_attention_rope_feat_sizes": [64, 64]}, r"image_size / patch_size = \(72, 72\) contradicts memory_attention_rope_feat_sizes"),
    (LOFTR | {"partial_rotary_factor": 0.5}, "partial_rotary_factor must be half of num_attention_heads = 8, got 0.5"),
    (LOFTR | {"num_attention_heads": 4}, "partial_rotary_factor must be half of num_attention_heads = 4, got 4.0"),
    (MINIMAX | {"vision_config": {"rope_mode": "2d"}}, "rope_mode must be one of .*, got '2d'"),
    (MINIMAX | {"vision_config": {"position_embedding_type": "learned"}}, "position_embedding_type must be one of .*, got 'learned'"),
    # what its class does not read
    (PIXTRAL | {"rope_fraction": 0.5}, "the key rope_fraction = 0.5 is not read by model_type 'pixtral'"),
    (PIXTRAL | {"partial_rotary_factor": 0.5}, "the key partial_rotary_factor = 0.5 is not read"),
    (PIXTRAL | {"rope_parameters": {"factor": 2.0}}, "the key rope_parameters.factor = 2.0 is not read"),
    (DINO | {"rope_parameters": {"rope_theta": 5.0}}, "the key rope_parameters = .* is not read by model_type 'dinov3_vit'"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "match"), BAD, ids=range(len(BAD)))
def test_what_is_refused(config, match):
    with pytest.raises((ValueError, TypeError), match=f"^vision_rotary_from_config: .*{match}"):
        read(config)


def test_the_language_side_points_here():
    for name in _towers.TOWERS:
        with pytest.raises(ValueError, match="vision_rotary_from_config reads|which vision_rotary_from_config reads"):
            rotary_from_config(PLAIN | {"model_type": name})
    with pytest.raises(ValueError, match="no config says this one|must be one that rotary_from_config made"):
        plan_to_config(read(PIXTRAL))


def test_no_value_crashes():
    """Any value of any key is read, or an error of the right kind; each key has a half of the values."""
    for config, facts in CASES:
        more = "rope_parameters", "rope_scaling", "head_dim", "vision_config", "model_type"
        for i, key in enumerate((*facts.keys, *more)):
            for junk in JUNK[i % 2 :: 2]:
                try:
                    read(config | {key: junk})
                except (ValueError, TypeError) as error:
                    assert str(error).startswith("vision_rotary_from_config: ")
