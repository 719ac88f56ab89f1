"""Configs of vision towers: where a tower stands, what may be missing, and what is refused."""

import copy
import random
import re

import numpy as np
import pytest

import posenc_jax as pe
from helpers.plans import WithToDict
from oracles import recorded
from posenc_jax.hf import _towers, plan_to_config, rotary_from_config, vision_rotary_from_config

QWEN = {"model_type": "qwen2_5_vl", "depth": 3, "hidden_size": 1280, "num_heads": 16, "patch_size": 14}
QWEN |= {"spatial_merge_size": 2, "spatial_patch_size": 14, "window_size": 112, "fullatt_block_indexes": [1]}
PLAIN = {"hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 2}
DINO = PLAIN | {"model_type": "dinov3_vit"}
PIXTRAL = PLAIN | {"model_type": "pixtral"}
SAM_3 = PLAIN | {"model_type": "sam3_vit_model", "global_attn_indexes": [1]}
MEMORY = {"memory_attention_hidden_size": 256, "memory_attention_num_attention_heads": 1}
MEMORY |= {"memory_attention_num_layers": 4}
LOFTR = {"model_type": "efficientloftr", "hidden_size": 256, "num_attention_heads": 8, "num_attention_layers": 4}
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
        {"model_type": "my_wrapper", "vision_config": {"model_type": "qwen2_5_vl_vision"} | inner},
        {"model_type": "hyperclovax_vision_v2", "vision_config": inner},
        WithToDict({"model_type": "qwen2_5_vl", "vision_config": WithToDict(QWEN)}),
    ):
        assert read(config) == plan
    omni = {"model_type": "qwen2_5_omni", "thinker_config": {"vision_config": inner}}
    assert read(omni).grids == plan.grids
    assert plan.layers[0].frequencies == pe.axial(80, 2) and plan.grids[0].window == 4


def test_sam_3():
    vit = {key: value for key, value in SAM_3.items() if key != "model_type"}
    plan = read(SAM_3)
    assert read({"model_type": "sam3", "vision_config": {"backbone_config": vit}}) == plan
    assert read({"model_type": "sam3_vision_model", "backbone_config": SAM_3}) == plan
    assert plan.layers[1].frequencies == pe.linear_scaling(plan.layers[0].frequencies, 3.0)  # 72 / 24
    assert plan.positions((5, 7), 0).shape == (576, 2) and plan.positions((72, 72), 1).shape == (5184, 2)
    assert plan.positions((72, 72), 1)[73].tolist() == [1, 1]
    tracker = {"model_type": "sam3_tracker_video", "vision_config": {"backbone_config": vit | {"patch_size": 28}}}
    assert read(tracker | MEMORY).grids[0].shapes == ((36, 36),)
    assert read(tracker["vision_config"]["backbone_config"] | {"model_type": "sam3_vit_model"}).layers[0].head_dim == 64


# As published, and what each of them means
PUBLISHED = {
    "Qwen2.5-VL-7B": (
        {"model_type": "qwen2_5_vl", "rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}
        | {"vision_config": {"depth": 32, "fullatt_block_indexes": [7, 15, 23, 31], "hidden_act": "silu"}
           | {"hidden_size": 1280, "in_channels": 3, "in_chans": 3, "initializer_range": 0.02, "intermediate_size": 3420}
           | {"model_type": "qwen2_5_vl", "num_heads": 16, "out_hidden_size": 3584, "patch_size": 14}
           | {"spatial_merge_size": 2, "spatial_patch_size": 14, "temporal_patch_size": 2, "tokens_per_second": 2}
           | {"torch_dtype": "float32", "window_size": 112}},
        32, 80, pe.axial(80, 2), "half",
    ),
    "Qwen3-VL-4B": (
        {"model_type": "qwen3_vl", "text_config": {"rope_theta": 5000000}, "vision_config":
            {"deepstack_visual_indexes": [5, 11, 17], "depth": 24, "hidden_size": 1024, "intermediate_size": 4096}
            | {"model_type": "qwen3_vl", "num_heads": 16, "num_position_embeddings": 2304, "out_hidden_size": 2560}
            | {"patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2}},
        24, 64, pe.axial(64, 2), "half",
    ),
    "Llama 4 Scout": (
        {"model_type": "llama4", "vision_config":
            {"hidden_size": 1408, "image_size": 336, "intermediate_size": 5632, "model_type": "llama4_vision_model"}
            | {"num_attention_heads": 16, "num_channels": 3, "num_hidden_layers": 34, "patch_size": 14}
            | {"pixel_shuffle_ratio": 0.5, "rope_theta": 10000, "vision_feature_layer": -1, "vision_output_dim": 4096}},
        34, 88, pe.join(44, 44, axes=(1, 0)), "interleaved",
    ),
    "DINOv3 ViT-S/16": (
        {"architectures": ["DINOv3ViTModel"], "hidden_size": 384, "image_size": 224, "layerscale_value": 1.0}
        | {"model_type": "dinov3_vit", "num_attention_heads": 6, "num_hidden_layers": 12, "num_register_tokens": 4}
        | {"patch_size": 16, "pos_embed_jitter": None, "pos_embed_rescale": 2.0, "pos_embed_shift": None, "rope_theta": 100.0},
        12, 64, pe.linear_scaling(pe.axial(64, 2, 100.0), 1 / (2 * np.pi)), "half",
    ),
    "SAM 3's tracker": (
        {"model_type": "sam3_tracker_video", "num_maskmem": 7, "memory_attention_hidden_size": 256}
        | {"memory_attention_num_attention_heads": 1, "memory_attention_num_layers": 4}
        | {"memory_attention_downsample_rate": 1, "memory_attention_rope_feat_sizes": [72, 72]}
        | {"memory_attention_rope_theta": 10000, "enable_temporal_pos_encoding_for_object_pointers": True}
        | {"enable_occlusion_spatial_embedding": True, "vision_config": {"model_type": "sam3_vision_model"}},
        4, 256, pe.join(128, 128, axes=(1, 0)), "interleaved",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config(name):
    config, count, head_dim, frequencies, layout = PUBLISHED[name]
    plan = read(config)
    assert (len(plan.layers), plan.layers[0].head_dim, plan.layout) == (count, head_dim, layout)
    assert plan.layers[0].frequencies == frequencies


# What may be missing


def test_bases():
    names = {"qwen3_vl_vision": "rope_theta", "dinov3_vit": "rope_theta", "sam2_video": "memory_attention_rope_theta"}
    for name, key in names.items():
        facts = _towers.TOWERS[name]
        sizes = {"model_type": name, facts.hidden[0]: 256, facts.heads[0]: 2, facts.depth[0]: 1}
        base = read(sizes | {key: 77.0}).layers[0].frequencies.angular
        scale = 2 * np.pi if facts.in_cycles else 1
        np.testing.assert_allclose(base[:32], scale * 77.0 ** (-np.arange(32) / 32), rtol=1e-12)
        usual = read(sizes).layers[0].frequencies
        assert usual == read(sizes | {"rope_parameters": {"rope_theta": facts.theta}}).layers[0].frequencies
    for spelled in ({"rope_theta": 77.0}, {"rope_parameters": {"rope_theta": 77, "rope_type": "axial"}},
                    {"rope_scaling": {"rope_theta": 77.0, "type": "default"}}):  # fmt: skip
        assert read(PIXTRAL | spelled) == read(PIXTRAL | {"rope_theta": 77.0}) != read(PIXTRAL)


@pytest.mark.parametrize(
    ("name", "sizes", "other"),
    [
        ("dots3_note_vision_encoder", ("hidden_size", "num_attention_heads", "num_hidden_layers"), ("embed_dim", "num_heads", None)),
        ("step3p5_vision", ("hidden_size", "num_attention_heads", "num_hidden_layers"), ("width", "heads", "layers")),
        ("qwen2_vl_vision", ("embed_dim", "num_heads", "depth"), (None, "num_attention_heads", "num_hidden_layers")),
        ("glm4v_vision", ("hidden_size", "num_heads", "depth"), (None, "num_attention_heads", "num_hidden_layers")),
    ],
)  # fmt: skip
def test_other_names_of_sizes(name, sizes, other):
    values = (256, 4, 3)
    usual = {"model_type": name} | dict(zip(sizes, values, strict=True))
    plan = read(usual)
    assert (len(plan.layers), plan.layers[0].head_dim) == (3, 64)
    for key, alias, value in zip(sizes, other, values, strict=True):
        if alias:
            assert read({k: v for k, v in usual.items() if k != key} | {alias: value}) == plan
            with pytest.raises(
                ValueError, match=f"{key} = .* contradicts {alias} = |{alias} = .* contradicts {key} = "
            ):
                read(usual | {alias: 2 * value})


def test_class_defaults_of_grids():
    assert read(DINO | {"model_type": "sapiens2"}).grids[0].leading == 9
    assert read(DINO).grids[0].leading == 1 and read(DINO | {"num_register_tokens": 4}).grids[0].leading == 5
    eomt = read(DINO | {"model_type": "eomt_dinov3", "num_hidden_layers": 6})
    assert [grid.leading for grid in eomt.grids] == [5, 5, 205, 205, 205, 205]
    muse = read(PLAIN | {"model_type": "muse_spark_vision"}).grids[0]
    assert (muse.window, muse.merge, muse.offset) == (32, 1, 1)
    lfm = read(PLAIN | {"model_type": "lfm3_vl_vision", "num_hidden_layers": 6})
    assert [layer.rotary_dim for layer in lfm.layers] == [0, 0, 64, 0, 64, 0]
    assert read(MEMORY | {"model_type": "edgetam_video"}).grids[0].shapes == ((64, 64), (16, 16))
    assert read(PLAIN | {"model_type": "llama4_vision_model"}).grids[0].shapes == ((32, 32),)


# What a tower does not read changes nothing


@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name, facts in _towers.TOWERS.items() for key in facts.unread]
)
def test_keys_that_change_no_rotation(name, key):
    facts = _towers.TOWERS[name]
    sizes = {"model_type": name, facts.hidden[0]: 128, facts.depth[0]: 4} | {key: 2 for key in facts.heads[:1]}
    assert read(sizes | {key: 3}) == read(sizes)
    with pytest.raises(ValueError, match=f"the key {key} = 3 is not known or not used here"):
        read(PIXTRAL | {key: 3})


# What is refused

MISSPELLED = {
    "rope_parameters": {"rope_theta": 123.0}, "rope_scaling": {"rope_theta": 123.0}, "rope_theta": 123.0, "head_dim": 12,
    "spatial_merge_size": 3, "window_size": 56, "pos_emb_height": 48, "image_size": 448,
}  # fmt: skip


@pytest.mark.parametrize("key", MISSPELLED)
def test_a_misspelled_key_of_every_tower(key):
    """Where the tower reads the key, another case, separator or letter is an error that names it."""
    count, words = 0, (key.replace("_", "-"), key.upper(), "".join(map(str.capitalize, key.split("_"))))
    words = *words, f"{key}s", key[:-1], key[:3] + key[4:], key[:2] + key[3] + key[2] + key[4:]
    for config in SEEDS:
        plan, right = outcome(config), outcome(config | {key: MISSPELLED[key]})
        if right == plan or "is not known or not used here" in str(right):
            continue
        for word in words:
            got = outcome(config | {word: MISSPELLED[key]})
            assert isinstance(got, str) and f"the key {word} = " in got, (config["model_type"], word, got)
            count += 1
    assert count > 6


def outcome(config):
    try:
        return vision_rotary_from_config(config)
    except (TypeError, ValueError) as error:
        return str(error)


BAD = [
    ({"model_type": "paddleocr_vl", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 3}, "vision_config is missing: model_type 'paddleocr_vl' is a whole model"),
    # which tower
    (None, "config must be a mapping or have to_dict"),
    ([], "config must be a mapping"),
    ({}, "model_type is missing: no key says how a vision tower rotates"),
    (PLAIN, "model_type is missing"),
    ({1: 2}, "config must have keys that are strings"),
    ({"model_type": 3}, "model_type must be a string"),
    ({"vision_config": 3}, "vision_config must be a mapping"),
    (PLAIN | {"model_type": "my_tower"}, "model_type 'my_tower' is not known as a vision tower, and no key says"),
    ({"model_type": "my_model", "vision_config": PLAIN}, "model_type is missing"),
    (PLAIN | {"model_type": "llama"}, "model_type 'llama' is not known as a vision tower"),
    ({"model_type": "qwen2_5_vl", "text_config": PLAIN}, "vision_config is missing beside text_config"),
    ({"model_type": "qwen2_vl", "vision_config": PIXTRAL}, "model_type must be 'qwen2_vl_vision' in the vision tower of 'qwen2_vl', got 'pixtral'"),
    (PLAIN | {"model_type": "vjepa2"}, "model_type 'vjepa2' is not read: it gives the two features of a pair different angles, which is no rotation"),
    ({"model_type": "my_model", "vision_config": PLAIN | {"model_type": "siglip2_vision_model"}}, "model_type 'siglip2_vision_model' is not read: it has no rotary embedding"),
    ({"model_type": "sam3_video"}, "it is two models: read its detector_config or tracker_config"),
    ({"vision_config": {"vision_config": {"vision_config": {"vision_config": PIXTRAL}}}}, "config must hold its vision_config within four levels"),
    # what is missing
    ({"model_type": "pixtral"}, "num_hidden_layers is missing"),
    ({"model_type": "pixtral", "num_hidden_layers": 2}, "hidden_size is missing"),
    ({"model_type": "pixtral", "num_hidden_layers": 2, "hidden_size": 128}, "num_attention_heads is missing"),
    (PIXTRAL | {"num_heads": 2, "num_attention_heads": None}, "num_attention_heads is missing"),
    ({"model_type": "qwen2_vl_vision", "depth": 1, "num_heads": 2, "hidden_size": 128}, "embed_dim is missing"),
    ({"model_type": "qwen3_vl_vision", "hidden_size": 128, "num_heads": 2}, "depth or num_hidden_layers is missing"),
    (PIXTRAL | {"rope_theta": None}, "rope_theta is missing"),
    (QWEN | {"spatial_merge_size": None}, "spatial_merge_size is missing"),
    (QWEN | {"window_size": None}, "window_size is missing"),
    (DINO | {"num_register_tokens": None}, "num_register_tokens is missing"),
    (PIXTRAL | {"rope_parameters": {"rope_theta": None}}, "rope_parameters.rope_theta is missing"),
    # of the wrong type, or out of range
    (PIXTRAL | {"hidden_size": "128"}, "hidden_size must be an integer, got str"),
    (PIXTRAL | {"hidden_size": 128.0}, "hidden_size must be an integer, got float"),
    (PIXTRAL | {"hidden_size": True}, "hidden_size must be an integer, got bool"),
    (PIXTRAL | {"num_attention_heads": 0}, "num_attention_heads must be at least 1"),
    (PIXTRAL | {"num_attention_heads": 3}, "hidden_size = 128 must be a multiple of 3"),
    (PIXTRAL | {"num_attention_heads": 64}, "head_dim must be a multiple of 4, got 2"),
    (PIXTRAL | {"hidden_size": 2**30}, "head_dim must be at most 2²⁰"),
    (PIXTRAL | {"num_hidden_layers": 2**16 + 1}, "num_hidden_layers must be at most 65,536"),
    (PIXTRAL | {"rope_theta": -1}, "rope_theta must be positive"),
    (PIXTRAL | {"rope_theta": "1e4"}, "rope_theta must be a number"),
    (PIXTRAL | {"rope_parameters": {"rope_theta": float("nan")}}, "rope_parameters.rope_theta must be finite"),
    (PIXTRAL | {"rope_parameters": [1]}, "rope_parameters must be a mapping"),
    (PIXTRAL | {"rope_parameters": {"rope_type": "yarn"}}, r"rope_parameters.rope_type must be one of \('axial', 'default'\), got 'yarn'"),
    (PLAIN | {"model_type": "eomt_dinov3", "num_hidden_layers": 4, "rope_parameters": {"rope_type": "axial"}}, r"rope_type must be one of \('default',\), got 'axial'"),
    (QWEN | {"spatial_merge_size": 0}, "spatial_merge_size must be at least 1"),
    (QWEN | {"window_size": 20}, "window_size must hold a square of 2 patches of 14, got 20"),
    (DINO | {"num_register_tokens": -1}, "num_register_tokens must be at least 0"),
    (SAM_3 | {"global_attn_indexes": [0.5]}, r"global_attn_indexes\[0\] must be an integer"),
    (SAM_3 | {"global_attn_indexes": 7}, "global_attn_indexes must be a sequence"),
    (SAM_3 | {"image_size": [8, 8]}, r"image_size must hold a patch, got \(8, 8\)"),
    (SAM_3 | {"image_size": [1, 2, 3]}, "image_size must be a number or a width and a height"),
    (SAM_3 | {"image_size": "big"}, "image_size must be a sequence"),
    (PLAIN | {"model_type": "llama4_vision_model", "image_size": [336, 336]}, "image_size must be an integer, got list"),
    (PLAIN | {"model_type": "llama4_vision_model", "image_size": 8}, "image_size must hold a patch, got 8"),
    (PLAIN | {"model_type": "eomt_dinov3"}, "num_blocks must be at most 2 layers, got 4"),
    (PLAIN | {"model_type": "lfm3_vl_vision", "layer_types": ["conv"]}, "layer_types must hold 2 times 'conv' or 'full_attention'"),
    (PLAIN | {"model_type": "lfm3_vl_vision", "layer_types": []}, "layer_types must hold 2 times"),
    (PLAIN | {"model_type": "lfm3_vl_vision", "layer_types": ["conv", "mamba"]}, "layer_types must hold 2 times"),
    (MEMORY | {"model_type": "sam2_video", "memory_attention_rope_feat_sizes": [64]}, "memory_attention_rope_feat_sizes must hold a width and a height"),
    (MEMORY | {"model_type": "sam2_video", "memory_attention_downsample_rate": 3}, "memory_attention_hidden_size = 256 must be a multiple of 3"),
    # biases of tokens
    ({"model_type": "vitdet"}, "'vitdet' is not read: it has no rotary embedding: content_bias computes the biases of its tokens"),
    ({"model_type": "sam", "vision_config": {}}, "'sam' is not read: .*: content_bias computes"),
    ({"model_type": "got_ocr2", "text_config": {}, "vision_config": {"model_type": "got_ocr2_vision"}}, "'got_ocr2_vision' is not read: .*: content_bias"),
    # what contradicts
    (QWEN | {"num_attention_heads": 8}, "num_heads = 16 contradicts num_attention_heads = 8"),
    (PIXTRAL | {"head_dim": 32}, "hidden_size / heads = 64 contradicts head_dim = 32"),
    (PIXTRAL | {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e5}}, "rope_theta = 10000.0 contradicts rope_parameters.rope_theta = 100000.0"),
    (PIXTRAL | {"rope_scaling": {"rope_theta": 1e4}, "rope_parameters": {"rope_theta": 1e5}}, "rope_scaling.rope_theta = 10000.0 contradicts rope_parameters.rope_theta"),
    (PIXTRAL | {"rope_scaling": {"type": "axial"}, "rope_parameters": {"rope_theta": 1e5}}, "rope_scaling = 10000.0 contradicts rope_parameters.rope_theta = 100000.0"),
    (DINO | {"rope_parameters": {"rope_theta": 5.0}}, "the base of model_type 'dinov3_vit' = 100.0 contradicts rope_parameters.rope_theta = 5.0"),
    (MEMORY | {"model_type": "sam3_tracker_video", "memory_attention_rope_feat_sizes": [64, 64]}, r"image_size / patch_size = \(72, 72\) contradicts memory_attention_rope_feat_sizes"),
    (MEMORY | {"model_type": "sam2_video", "rope_theta": 5.0, "memory_attention_rope_theta": 7.0}, "rope_theta = 5.0 contradicts memory_attention_rope_theta = 7.0"),
    (LOFTR | {"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 4.0, half of the heads, got 0.5"),
    (LOFTR | {"num_attention_heads": 4, "rope_parameters": {"partial_rotary_factor": 4.0}}, "rope_parameters.partial_rotary_factor must be 2.0, half of the heads, got 4.0"),
    (LOFTR | {"num_attention_heads": 4}, "partial_rotary_factor, where absent, must be 2.0, half of the heads, got 4.0"),
    # what is not known or not used
    (PIXTRAL | {"rope_fraction": 0.5}, "the key rope_fraction = 0.5 is not known or not used here"),
    (PIXTRAL | {"partial_rotary_factor": 0.5}, "the key partial_rotary_factor = 0.5 is not known or not used here"),
    (PIXTRAL | {"window_size": 112}, "the key window_size = 112 is not known or not used here"),
    (PIXTRAL | {"spatial_merge_size": 2}, "the key spatial_merge_size = 2 is not known or not used here"),
    (PIXTRAL | {"num_register_tokens": 4}, "the key num_register_tokens = 4 is not known or not used here"),
    (PIXTRAL | {"rope_parameters": {"factor": 2.0}}, "the key rope_parameters.factor = 2.0 is not known or not used here"),
    (PIXTRAL | {"rope_parameters": {"mrope_section": [2, 2]}}, "the key rope_parameters.mrope_section"),
    (QWEN | {"model_type": "qwen3_vl_vision"}, "the key window_size = 112 is not known or not used here"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "match"), BAD, ids=range(len(BAD)))
def test_what_is_refused(config, match):
    with pytest.raises((ValueError, TypeError), match=f"^vision_rotary_from_config: .*{match}"):
        read(config)


def test_names_refused_are_no_towers():
    assert not {*_towers.REFUSED} & {*_towers.TOWERS}
    assert not {*_towers.FIXED} & {*_towers.CHOSEN}
    for name in {*_towers.FIXED.values(), *_towers.CHOSEN.values()}:
        assert name in _towers.TOWERS or name in _towers.CHOSEN, name


def test_the_language_side_points_here():
    for name in _towers.TOWERS:
        with pytest.raises(ValueError, match="vision_rotary_from_config reads|which vision_rotary_from_config reads"):
            rotary_from_config(PLAIN | {"model_type": name})
    with pytest.raises(ValueError, match="no config says this one|must be one that rotary_from_config made"):
        plan_to_config(read(PIXTRAL))


# Configs broken at random

SEEDS = [case["config"] for case in recorded.cases("hf_towers")]
JUNK = [
    None, True, 0, -1, 3, 2**40, 10**400, 0.5, float("nan"), float("inf"), "", "axial", "é" * 99, b"x", [], [None], [1, 2],
    [[1]], {}, {1: 2}, {"a": {}}, object(), float, np.float32(2), np.int64(4), np.arange(3), np.ones((2, 2)), (4, 4), {1},
]  # fmt: skip
NAMES = sorted(
    {key for seed in SEEDS for key in seed}
    | {
        key
        for facts in _towers.TOWERS.values()
        for key in (*facts.hidden, *facts.heads, *facts.depth, *facts.base_keys)
    }
    | {
        "rope_parameters",
        "rope_scaling",
        "rope_type",
        "type",
        "head_dim",
        "vision_config",
        "backbone_config",
        "window_size",
    }
    | {"num_register_tokens", "partial_rotary_factor", "memory_attention_downsample_rate", "global_attn_indexes"}
)
SPOKEN = {"config", "model_type", "head_dim", "vision_config", "the", "rope_theta", "image_size"}


def broken(case):
    rng = random.Random(case)
    config = copy.deepcopy(rng.choice(SEEDS))
    for _ in range(rng.choice([1, 1, 2, 3])):
        key, kind = rng.choice(sorted(config) or ["a"]), rng.randrange(5)
        if kind == 0:
            config.pop(key, None)
        elif kind == 1:
            config[key] = copy.deepcopy(rng.choice(JUNK))
        elif kind == 2:
            config[rng.choice(NAMES)] = copy.deepcopy(rng.choice(JUNK))
        elif kind == 3:
            other = rng.choice(SEEDS)
            name = rng.choice(sorted(other))
            config[name] = copy.deepcopy(other[name])
        else:
            config["rope_parameters"] = {
                rng.choice(["rope_theta", "rope_type", "factor", "x"]): rng.choice([1e4, 7, "axial", None])
            }
    return config


@pytest.mark.parametrize("chunk", range(2))
def test_broken_configs(chunk):
    read_count = 0
    for case in range(chunk, 2000, 2):
        config = broken(case)
        try:
            plan = read(config)
        except (TypeError, ValueError) as error:
            message = str(error)
            assert message.startswith("vision_rotary_from_config: "), (case, message)
            subject = re.search(r": (?:the key |the base of )?([\w.]+)", message)
            names = {*(str(key) for key in config), *NAMES, *SPOKEN}
            assert subject and subject[1].split(".")[0].split("[")[0] in names, (case, message)
            continue
        read_count += 1
        facts = _towers.TOWERS[config["model_type"]]
        bases = [config.get(word) for word in facts.base_keys] + [
            (config.get(name) or {}).get("rope_theta") for name in ("rope_scaling", "rope_parameters")
        ]
        base = next((base for base in bases if base is not None), facts.theta)
        f = next((layer.frequencies for layer in plan.layers if layer.rotary_dim), None)
        if f is not None:
            ratio = f.angular[f.angular < f.angular.max()].max() / f.angular.max()
            pairs = f.num_pairs // len(facts.axes) * (2 if facts.pairs == "halved" else 1)
            np.testing.assert_allclose(np.log(ratio) * pairs, -np.log(base), rtol=1e-9, err_msg=str(case))
    assert read_count > 50
