"""`vision_rotary_from_config` reads the vision tower of a config.

- It finds the tower where models have it in their configs.
- What a config leaves out has the value of the class.
- A config that it cannot read rightly is refused, with an error that names the key; no value crashes.
"""

import numpy as np
import pytest

import posenc_jax as pe
from helpers.hostile import MANY
from helpers.plans import WithToDict, row
from huggingface.test_hostile_configs import JUNK
from oracles import recorded
from posenc_jax.hf import PatchGrid, plan_to_config, rotary_from_config
from posenc_jax.hf import vision_rotary_from_config as read
from posenc_jax.hf._towers import TOWERS

QWEN = {"depth": 3, "hidden_size": 1280, "num_heads": 16, "patch_size": 14, "spatial_merge_size": 2}
QWEN |= {"spatial_patch_size": 14, "window_size": 112, "fullatt_block_indexes": [1]}
PLAIN = {"hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 2}
PIXTRAL = PLAIN | {"model_type": "pixtral"}
SAM_3 = PLAIN | {"global_attn_indexes": [1]}
# Recorded configs, one for each tower, and what the package knows of the tower.
CASES = [(case["config"], TOWERS[case["config"]["model_type"]]) for case in recorded.cases("hf_towers")]


# Where a tower stands


@pytest.mark.parametrize(
    "config",
    [
        QWEN | {"model_type": "qwen2_5_vl"},
        {"model_type": "qwen2_5_vl", "vision_config": QWEN},
        # the class ignores the model_type of the part
        {"model_type": "qwen2_5_vl", "vision_config": QWEN | {"model_type": "pixtral"}},
        {"model_type": "qwen2_5_vl", "vision_config": QWEN, "rope_theta": 1e6, "rope_scaling": {"type": "mrope"}},
        {"model_type": "my_wrapper", "vision_config": {"model_type": "qwen2_5_vl_vision"} | QWEN},
        {"model_type": "hyperclovax_vision_v2", "vision_config": QWEN},
        WithToDict({"model_type": "qwen2_5_vl", "vision_config": WithToDict(QWEN)}),
    ],
    ids=range(7),
)
def test_the_tower_of_a_model_is_read_as_the_tower_alone(config):
    assert read(config) == read({"model_type": "qwen2_5_vl_vision"} | QWEN)


def test_towers_are_found_in_other_parts_of_a_config():
    omni = {"model_type": "qwen2_5_omni", "thinker_config": {"vision_config": QWEN}}
    assert read(omni).grids == read(QWEN | {"model_type": "qwen2_5_vl"}).grids
    unsized = {"model_type": "hyperclovax_vision_v2", "vision_config": {"model_type": "qwen2_5_vl"}}
    assert read(unsized) == read({"model_type": "qwen2_5_vl_vision"})
    assert read({"model_type": "llava", "vision_config": PIXTRAL}) == read(PIXTRAL)
    assert read({"model_type": "mlcd"}) == read({"model_type": "mlcd_vision_model"})
    assert read({"model_type": "colqwen2", "vlm_config": {"vision_config": {"embed_dim": 64, "num_heads": 1}}})


def test_sam_3_has_windows_and_whole_grids():
    plan = read(SAM_3 | {"model_type": "sam3_vit_model"})
    assert read({"model_type": "sam3", "vision_config": {"backbone_config": SAM_3}}) == plan
    # Layer 0 has windows of 24 × 24 patches, and layer 1 the whole grid of 72 × 72.
    assert plan.layers[1].frequencies == pe.linear_scaling(plan.layers[0].frequencies, 3.0)
    assert plan.positions((5, 7), 0).shape == (576, 2) and plan.positions((72, 72), 1).shape == (5184, 2)
    assert np.asarray(plan.positions((72, 72), 1))[73].tolist() == [1, 1]
    tower = {"backbone_config": SAM_3 | {"patch_size": 28}}
    assert read({"model_type": "sam3_tracker_video", "vision_config": tower}).grids[0].shapes == ((36, 36),)
    assert read({"model_type": "sam3_vision_model"} | tower).layers[0].head_dim == 64


# What may be missing: the class has it


def test_sizes_and_bases_left_out_are_those_of_the_class():
    """77.0 is the base of no class."""
    for config, facts in CASES:
        name, base, plan = {"model_type": config["model_type"]}, facts.rope["rope_theta"], read(config)
        nulls = dict.fromkeys(["rope_parameters", "rope_scaling"])
        assert read(name) == read(name | facts.defaults) == read(name | nulls)
        assert read(config | {"rope_theta": base}) == plan != read(config | {"rope_theta": 77.0})
        if "rope_parameters" in facts.keys:
            settings = {"rope_theta": 77.0, "type": "default"}
            assert read(config | {"rope_scaling": settings}) == read(config | {"rope_theta": 77.0})
    sam_2 = {"model_type": "sam2_video"}
    assert read(sam_2 | {"memory_attention_rope_theta": 77.0}) == read(sam_2 | {"rope_theta": 77.0})


def test_a_key_may_have_its_other_name_but_not_another_value():
    for config, facts in CASES:
        for key in {facts.hidden, facts.heads, facts.depth} & facts.names.keys():
            written, other = (key, facts.names[key]) if key in config else (facts.names[key], key)
            assert read({other if k == written else k: v for k, v in config.items()}) == read(config)
            with pytest.raises(ValueError, match=f"{key} = .* contradicts {facts.names[key]} = "):
                read(config | {other: 2 * config[written]})


@pytest.mark.parametrize(
    ("model_type", "names"),
    [
        ("dots3_note_vision_encoder", "num_hidden_layers embed_dim num_heads"),
        ("kimi_k25_vision", "vt_num_hidden_layers vt_hidden_size vt_num_attention_heads"),
        ("step3p5_vision", "layers width heads"),
    ],
)
def test_published_files_have_other_names_for_sizes(model_type, names):
    plan = read({"model_type": model_type} | dict(zip(names.split(), (3, 128, 4), strict=True)))
    assert len(plan.layers) == 3 and plan.layers[0].head_dim == 32


def test_grids_and_rotating_layers_are_those_of_the_class():
    def first(model_type, **config):
        return read(PLAIN | {"model_type": model_type} | config).grids[0]

    assert first("pixtral") == PatchGrid(frames=False)
    assert first("sapiens2").leading == 9 and first("dinov3_vit").leading == 1
    assert first("dinov3_vit", num_register_tokens=4).leading == 5
    eomt = read(PLAIN | {"model_type": "eomt_dinov3", "num_hidden_layers": 6})
    assert [grid.leading for grid in eomt.grids] == [5, 5, 205, 205, 205, 205]
    muse = first("muse_spark_vision")
    assert (muse.window, muse.merge, muse.offset) == (32, 1, 1)
    lfm = read(PLAIN | {"model_type": "lfm3_vl_vision", "num_hidden_layers": 6})
    assert [layer.rotary_dim for layer in lfm.layers] == [0, 0, 64, 0, 64, 0]
    assert read({"model_type": "edgetam_video"}).grids[0].shapes == ((64, 64), (16, 16))
    assert first("llama4_vision_model").shapes == ((32, 32),)
    assert read({"model_type": "inkling2_vision", "adapter_merge_size": 4}).grids[0].merge == 4


# What is refused


def test_a_misspelled_size_is_refused_in_every_tower():
    """Unknown keys that are near no missing key are ignored, as by the class."""
    for config, facts in CASES:
        for key in {facts.hidden, facts.heads, facts.depth} & config.keys():
            word = key[:3] + key[4:]  # without one letter
            with pytest.raises(ValueError, match=f"{word} = .* is not read by .*: is {key} meant"):
                read({word if k == key else k: v for k, v in config.items()})
        assert read(config | {"my_key": 3, "moe_layer_freq": 2}) == read(config)


def plain(model_type, words, **config):
    """A row whose config has the sizes of `PLAIN`."""
    return row(model_type, words, **PLAIN, **config)


CLIP = {"model_type": "clip_vision_model"}
# Configs, and words of the error.
BAD = [
    # which tower
    (None, "config must be a mapping or have to_dict"),
    ({}, "model_type is missing"),
    row("", "vision_config must be a mapping", vision_config=3),
    plain("my_tower", "'my_tower' is not known as a vision tower"),
    row("kimi_k3", "vision_config.model_type is missing", vision_config=PLAIN),
    plain("llama", "'llama' is no vision tower"),
    row("paddleocr_vl", "'paddleocr_vl' is a whole model, and vision_config is missing", hidden_size=64),
    row("qwen2_5_omni", "'qwen2_5_omni_thinker' is a whole model, and vision_config", thinker_config={}),
    row("sam3_video", "without a vision tower: it has detector_config, tracker_config"),
    row(
        "",
        "config must hold its vision_config within four levels",
        vision_config={"vision_config": {"vision_config": {"vision_config": PIXTRAL}}},
    ),
    row(
        "",
        "vision_config = .* contradicts backbone_config",
        vision_config=PIXTRAL,
        backbone_config={"model_type": "mlcd"},
    ),
    # a tower that does not rotate
    plain("vjepa2", "'vjepa2' is not read: it is a vision tower"),
    row("llava", "'clip_vision_model' is not read", vision_config={}),
    # a null where a default would apply
    plain("pixtral", "rope_theta must have a value", rope_theta=None),
    # values of the wrong type, or out of range
    row("pixtral", "hidden_size must be an integer", hidden_size=128.0),
    row("pixtral", "num_attention_heads must be at least 1", num_attention_heads=0),
    row("pixtral", "head_dim must be a multiple of 4", hidden_size=128, num_attention_heads=64),
    row("pixtral", "num_hidden_layers must be below 65,536", num_hidden_layers=2**16),
    row("pixtral", "rope_parameters must be a mapping", rope_parameters=[1]),
    row("pixtral", r"rope_type must be one of \('axial', 'default'\)", rope_parameters={"rope_type": "yarn"}),
    row("eomt_dinov3", r"rope_type must be one of \('default',\)", rope_parameters={"rope_type": "axial"}),
    row("qwen2_5_vl_vision", "window_size must hold a square of 2 patches of 14", window_size=20),
    row("dinov3_vit", "num_register_tokens must be at least 0", num_register_tokens=-1),
    row("sam3_vit_model", r"global_attn_indexes\[0\] must be an integer", global_attn_indexes=[0.5]),
    row("sam3_vit_model", "global_attn_indexes must be a sequence", global_attn_indexes=7),
    row("sam3_vit_model", r"image_size must hold a patch, got \(8, 8\)", image_size=[8, 8]),
    row("sam3_vit_model", "image_size must be a number or a width and a height", image_size=[1, 2, 3]),
    plain("eomt_dinov3", "num_blocks must be at most 2 layers"),
    plain("lfm3_vl_vision", "layer_types must hold 2 times", layer_types=["conv", "mamba"]),
    row("sam2_video", "memory_attention_hidden_size = 256 must be a multiple", memory_attention_downsample_rate=3),
    # keys that contradict each other
    plain("pixtral", "hidden_size / heads = 64 contradicts head_dim = 32", head_dim=32),
    plain(
        "pixtral",
        "rope_theta = 10000.0 contradicts rope_parameters.",
        rope_theta=1e4,
        rope_parameters={"rope_theta": 1e5},
    ),
    plain(
        "pixtral",
        "rope_scaling = .* contradicts rope_parameters = ",
        rope_scaling={"type": "axial"},
        rope_parameters={"rope_theta": 1e5},
    ),
    row(
        "sam3_tracker_video",
        r"image_size / patch_size = \(72, 72\) contradicts memory_attention_rope_feat_sizes",
        memory_attention_rope_feat_sizes=[64, 64],
    ),
    row("efficientloftr", "partial_rotary_factor must be half of", partial_rotary_factor=0.5),
    row("minimax_m3_vl", "rope_mode must be one of .*, got '2d'", vision_config=CLIP | {"rope_mode": "2d"}),
    row(
        "minimax_m3_vl",
        "position_embedding_type must be one of .*, got 'learned'",
        vision_config=CLIP | {"position_embedding_type": "learned"},
    ),
    # keys that the class does not read
    row("pixtral", "rope_fraction = 0.5 is not read", rope_fraction=0.5),
    row("pixtral", "rope_parameters.factor = 2.0 is not read", rope_parameters={"factor": 2.0}),
]


@pytest.mark.parametrize(("config", "words"), BAD, ids=range(len(BAD)))
def test_a_config_is_refused_with_these_words(config, words):
    with pytest.raises((ValueError, TypeError), match=f"^vision_rotary_from_config: .*{words}"):
        read(config)


def test_rotary_from_config_names_this_function_for_every_tower():
    for name in TOWERS:
        with pytest.raises(ValueError, match="vision_rotary_from_config reads( it)?$"):
            rotary_from_config(PLAIN | {"model_type": name})


def test_no_config_is_written_from_a_towers_plan():
    with pytest.raises(ValueError, match="no config gives this one|must be one that rotary_from_config made"):
        plan_to_config(read(PIXTRAL))


def test_no_value_crashes():
    """Any value of any key is read, or refused with an error that names the function.

    Each key takes a third of JUNK, another third in the next tower; all of it if POSENC_HOSTILE is above 1.
    """
    for n, (config, facts) in enumerate(CASES):
        for i, key in enumerate((*facts.keys, "rope_parameters", "rope_scaling", "vision_config"), n):
            for junk in JUNK if MANY > 1 else JUNK[i % 3 :: 3]:
                try:
                    read(config | {key: junk})
                except (ValueError, TypeError) as error:
                    assert str(error).startswith("vision_rotary_from_config: ")
