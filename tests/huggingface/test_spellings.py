"""Configs in the spelling of one family: which layers rotate, by which base, in how many features."""

import re

import numpy as np
import pytest

import posenc_jax as pe
from helpers.plans import bases, close, plain, rotations_of, widths
from oracles import spectra
from oracles.configs import query_scale
from posenc_jax.hf import QueryScale, plan_to_config, rotary_from_config

HEADS = {"hidden_size": 64, "num_attention_heads": 4}
LATENT = {"qk_nope_head_dim": 8, "qk_rope_head_dim": 4}


def read(model_type, *, length=None, **keys):
    """The plan, which reads back as it is written."""
    plan = rotary_from_config({"model_type": model_type} | keys, length=length)
    assert rotary_from_config(plan_to_config(plan), length=plan.length) == plan
    return plan


# Which layers rotate


def test_letters_of_exaone_4():
    keys = HEADS | {"num_hidden_layers": 6, "rope_theta": 1e6, "sliding_window": 8}
    for model_type in ("exaone4", "exaone4_5_text", "exaone_moe"):
        plan = read(model_type, **keys, sliding_window_pattern="LLG")
        assert widths(plan) == [16, 16, 0, 16, 16, 0]
        types = ["full_attention", "sliding_attention"] * 3  # where both are there, layer_types counts
        assert widths(read(model_type, **keys, sliding_window_pattern="LLG", layer_types=types)) == [0, 16] * 3
    outer = {
        "model_type": "exaone4_5",
        "text_config": {"model_type": "exaone4_5_text", "sliding_window_pattern": "LG"} | keys,
    }
    assert widths(rotary_from_config(outer)) == [16, 0] * 3


def test_an_error_about_a_key_as_it_is_written_has_no_note():
    """The rewriter of nanochat only adds to the settings."""
    with pytest.raises(ValueError, match=r"^rotary_from_config: rope_scaling.factor is missing$"):
        read("nanochat", **HEADS, num_hidden_layers=1, rope_scaling={"type": "linear"})


@pytest.mark.parametrize(
    "keys",
    [
        {"hybrid_override_pattern": "MEM*-"},
        {"layers_block_type": ["mamba", "moe", "linear_attention", "attention", "mlp"]},
        {"hybrid_override_pattern": "MEM*-", "num_hidden_layers": 7, "rope_theta": 10000, "partial_rotary_factor": 1.0},
    ],
)
def test_nemotron_h_has_no_positions(keys):
    plan = rotary_from_config({"model_type": "nemotron_h", "attention_head_dim": 32} | keys, layout="half")
    assert widths(plan) == [0] * 5 and plan.layers[0].head_dim == 32
    assert read("nemotron_h", hybrid_override_pattern="M*").layers[1].head_dim == 128


@pytest.mark.parametrize(
    ("model_type", "keys", "head_dim"),
    [
        ("kimi_linear", LATENT | {"mla_use_nope": True, "rope_theta": 1e4, "head_dim": 72, "num_hidden_layers": 2}, 12),
        ("glm5_next_text", {"qk_nope_head_dim": 8, "qk_rope_head_dim": 0, "head_dim": 0, "num_hidden_layers": 2}, 8),
        ("jamba", HEADS | {"num_hidden_layers": 2, "attn_layer_period": 2}, 16),
    ],
)
def test_models_without_positions(model_type, keys, head_dim):
    plan = read(model_type, **keys)
    assert widths(plan) == [0, 0] and {layer.head_dim for layer in plan.layers} == {head_dim}
    if model_type == "kimi_linear":
        with pytest.raises(ValueError, match="mla_use_nope must be True in model_type 'kimi_linear'"):
            rotary_from_config({"model_type": model_type} | keys | {"mla_use_nope": False})


def test_blocks_of_nemotron_nas():
    blocks = [{"attention": {"no_op": i == 1, "replace_with_linear": i == 2, "n_heads_in_group": 8}} for i in range(4)]
    keys = HEADS | {"num_hidden_layers": 4, "rope_theta": 5e5, "position_embedding_type": "rope"}
    for model_type in ("nemotron-nas", "deci"):
        assert widths(read(model_type, **keys, block_configs=blocks)) == [16, 0, 0, 16]
    for changes, match in (
        ({"position_embedding_type": "rope_llama4"}, "position_embedding_type = 'rope_llama4' is not read by the code"),
        ({"block_configs": blocks[:3]}, "block_configs must have 4 items, one for each layer, got 3"),
        ({"block_configs": [{}] * 4}, "block_configs.attention is missing"),
    ):
        with pytest.raises(ValueError, match=match):
            rotary_from_config({"model_type": "nemotron-nas", "block_configs": blocks} | keys | changes)


def test_lists_of_attention_types():
    keys = {"head_dim": 16, "num_hidden_layers": 3, "rotary_dim": 8, "rope_theta": 1e7}
    plan = read("minimax_m1", **keys, attn_type_list=[0, 0, 1])
    assert widths(plan) == [0, 0, 8] and bases(plan) == [1e7]
    for flags in ([0, 1, 2], [0.0, 0, 1]):
        with pytest.raises(ValueError, match="attn_type_list must hold 0 or 1"):
            rotary_from_config({"model_type": "minimax_m1", "attn_type_list": flags} | keys)


def test_muse_marks_layers_without_positions_by_a_base_of_0():
    keys = {"head_dim": 16, "num_hidden_layers": 6, "rope_theta": 5e5}
    assert widths(read("muse_glimmer_text", **keys)) == [16, 0, 16, 16, 16, 0]  # every fourth, from the last
    plan = read("muse_glimmer_text", **keys, layer_rope_theta=[1, 0, 7, 0, 1, 1])
    assert widths(plan) == [16, 0, 16, 0, 16, 16] and set(bases(plan)) == {5e5}


def test_dense_layers_of_cohere_2_moe_rotate():
    keys = {"num_hidden_layers": 8, "rope_theta": 5e4, "first_k_dense_replace": 3}
    plan = read("cohere2_moe", **keys)
    assert plan.layout == "interleaved" and widths(plan) == [128] * 6 + [0, 128] and set(bases(plan)) == {5e4}
    assert widths(read("cohere2_moe", **keys, prefix_dense_sliding_window_pattern=2)) == [128, 0] + [128] * 4 + [0, 128]
    types = ["full_attention", "sliding_attention"] * 4
    assert widths(read("cohere2_moe", **keys, layer_types=types)) == [128, 128, 128, 128, 0, 128, 0, 128]
    mlp = ["sparse"] * 7 + ["dense"]
    plan = read("cohere2_moe", num_hidden_layers=8, layer_types=types, mlp_layer_types=mlp)
    assert widths(plan) == [0, 128] * 4
    for changes in ({"sliding_window": None}, {"rope_scaling": {"type": "linear", "factor": 2.0}}):
        with pytest.raises(ValueError, match="model_type 'cohere2_moe'"):
            rotary_from_config({"model_type": "cohere2_moe"} | keys | changes)


def test_zamba_2():
    types = ["mamba", "hybrid", "mamba"]
    keys = HEADS | {
        "num_hidden_layers": 3,
        "layers_block_type": types,
        "kv_channels": 16,
        "max_position_embeddings": 512,
    }
    assert widths(read("zamba2", **keys)) == [0, 0, 0]
    plan = read("zamba2", **keys, use_mem_rope=True)
    assert widths(plan) == [0, 32, 0] and plan.layers[0].head_dim == 32
    assert read("zamba2", **keys, use_mem_rope=True, attention_head_dim=8).layers[1].rotary_dim == 8
    dynamic = {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "use_mem_rope": True}
    long = read("zamba2", **keys, **dynamic, use_long_context=True, length=4096)
    assert (
        long.layers[1].frequencies
        == pe.geometric(32)
        != read("zamba2", **keys, **dynamic, length=4096).layers[1].frequencies
    )


def test_counts_of_layers():
    plan = read("longcat_flash", num_layers=3, **LATENT, head_dim=4)
    assert len(plan.layers) == 6 and plan.part == "last" and bases(plan) == [1e7] * 6
    assert len(read("longcat_flash", num_layers=3, num_hidden_layers=6, **LATENT).layers) == 6
    with pytest.raises(ValueError, match="num_hidden_layers must be 6 in model_type 'longcat_flash', got 3"):
        rotary_from_config({"model_type": "longcat_flash", "num_layers": 3, "num_hidden_layers": 3} | LATENT)
    assert len(read("hrm_text", num_hidden_layers=2).layers) == 16
    assert len(read("hrm_text", num_hidden_layers=2, H_cycles=1, L_cycles=1).layers) == 4
    assert len(read("hrm_text", num_hidden_layers=16, num_layers_per_stack=2).layers) == 16
    with pytest.raises(ValueError, match="num_hidden_layers must be 8 times num_layers_per_stack = 1, got 12"):
        rotary_from_config({"model_type": "hrm_text", "num_hidden_layers": 12, "num_layers_per_stack": 1})


def test_the_last_layer_of_embedding_gemma_2_is_full():
    rope = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    keys = {"head_dim": 8, "global_head_dim": 16, "num_hidden_layers": 3, "rope_parameters": rope}
    plan = read("embedding_gemma2_text", **keys, layer_types=["sliding_attention"] * 3)
    assert widths(plan) == [8, 8, 16] and bases(plan) == [1e4, 1e4, 1e6]


# A spectrum for each layer type


MIMO = {
    "num_hidden_layers": 3, "head_dim": 192, "hybrid_layer_pattern": [0, 1, 1], "rope_theta": 5e6, "swa_rope_theta": 1e4,
    "swa_head_dim": 192, "partial_rotary_factor": 0.334, "swa_num_attention_heads": 64, "swa_v_head_dim": 128,
}  # fmt: skip


def test_the_own_spelling_of_mimo_v2():
    plan = read("mimo_v2_flash", **MIMO)
    assert widths(plan) == [64] * 3 and bases(plan) == [5e6, 1e4, 1e4]
    flat = {"rope_theta": 5e6, "partial_rotary_factor": 0.334, "rope_type": "default", "type": "default"}
    assert read("mimo_v2", **MIMO, rope_parameters=flat) == rotations_of(plan)  # its code is not in transformers
    without = {key: value for key, value in MIMO.items() if key != "swa_rope_theta"}
    with pytest.raises(ValueError, match="swa_rope_theta is missing beside hybrid_layer_pattern"):
        read("mimo_v2_flash", **without)
    nested = {"full_attention": {"rope_theta": 5e6}, "sliding_attention": {"rope_theta": 1e4}}
    types = ["full_attention", "sliding_attention", "sliding_attention"]
    sizes = {"num_hidden_layers": 3, "layer_types": types, "rope_parameters": nested}
    assert read("mimo_v2_flash", **sizes) == plan  # 0.334 by default
    scaled = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "rope_theta": 5e6}
    plan = read("mimo_v2_flash", **sizes | {"rope_parameters": nested | {"full_attention": scaled}})
    assert widths(plan) == [192, 64, 64]  # that default is of the rope type "default" alone
    for changes, match in (
        ({"swa_head_dim": 128}, "swa_head_dim must be 192 in model_type"),
        ({"hybrid_layer_pattern": [0, 1, 2]}, "hybrid_layer_pattern must hold 0 or 1"),
        ({"rope_parameters": {"rope_theta": 1e6}}, "rope_parameters.rope_theta = 1000000.0 contradicts rope_theta"),
    ):
        with pytest.raises(ValueError, match=match):
            rotary_from_config({"model_type": "mimo_v2_flash"} | MIMO | changes)


BAILING = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_theta": 6e6, "num_hidden_layers": 2}
SIZES = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 2}
PLAIN = SIZES | {"use_mla": False, "qk_nope_head_dim": 0}


@pytest.mark.parametrize(
    ("model_type", "keys", "key", "right"),
    [
        *(
            ("mimo_v2_flash", MIMO | {"head_dim": width, "partial_rotary_factor": 0.5}, "swa_head_dim", width)
            for width in (32, 64, 80, 96, 128, 160, 192, 256)
        ),
        (
            "mimo_v2",
            {key: MIMO[key] for key in MIMO if key != "head_dim"},
            "swa_head_dim",
            192,
        ),
        ("bailing_hybrid", BAILING, "rotary_dim", 64),
        ("bailing_hybrid", BAILING | {"qk_rope_head_dim": 32}, "rotary_dim", 32),
        ("deepseek_v2", PLAIN, "qk_rope_head_dim", 0),
        ("deepseek_ocr2_text", SIZES, "qk_nope_head_dim", 0),
        ("unlimited_ocr_text", SIZES | {"num_attention_heads": 64}, "head_dim", 64),
        ("dots3_note_audio_encoder", SIZES, "head_dim", 128),
        ("dots3_note_audio_encoder", SIZES | {"num_attention_heads": 16}, "head_dim", 256),
        ("longcat_flash", {"num_layers": 3} | LATENT, "num_hidden_layers", 6),
        ("longcat_flash", {"num_layers": 3} | LATENT, "head_dim", 4),
        ("ernie4_5", SIZES, "compression_ratio", 1.0),
        ("ernie4_5_moe", SIZES, "compression_ratio", 1.0),
        ("stablelm_epoch", SIZES, "rotary_scaling_factor", 1.0),
        ("phi3small", SIZES, "rope_position_scale", 1.0),
    ],
)
def test_a_number_that_must_have_one_value_has_it_in_every_type(model_type, keys, key, right):
    """As an integer, a float and NumPy's; True is not 1, and an error shows both numbers as they are written."""
    others = {k: value for k, value in keys.items() if k != key}
    for value in (int(right), float(right), np.int64(right), np.float32(right)):
        assert read(model_type, **others, **{key: value}) == read(model_type, **others, **{key: right})
    for value in (right + 2, bool(right), str(right), [right]):
        match = rf"rotary_from_config: {key} must be {re.escape(repr(right))} in model_type '.*', got {re.escape(repr(value))}"
        with pytest.raises(ValueError, match=match):
            rotary_from_config({"model_type": model_type} | others | {key: value})


def test_half_of_each_head_of_mimo_v2():
    keys = {"num_hidden_layers": 2, "head_dim": 128, "swa_head_dim": 128, "hybrid_layer_pattern": [0, 1]}
    plan = read("mimo_v2_flash", **keys, rope_theta=5e6, swa_rope_theta=1e4, partial_rotary_factor=0.5)
    assert widths(plan) == [64, 64] and bases(plan) == [5e6, 1e4] and plan.layers[0].head_dim == 128


STEP = {
    "num_hidden_layers": 3, "num_nextn_predict_layers": 1, "head_dim": 16, "max_position_embeddings": 4096,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"],
    "rope_theta": [5e6, 1e4, 1e4, 1e4], "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0], "yarn_only_types": ["full_attention"],
    "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "use_rope_layers": [],
}  # fmt: skip


def test_the_own_spelling_of_step():
    plan = read("step3p5", **STEP)
    assert widths(plan) == [8, 16, 16]
    close(plan.layers[0].frequencies, plain(8, 5e6) / 2)
    close(plan.layers[1].frequencies, plain(16, 1e4))
    outer = {"model_type": "step3p7", "text_config": STEP | {"model_type": "anything"}}
    assert rotary_from_config(outer) == plan  # the code goes by the outer type
    rope = {
        "full_attention": {"rope_theta": 7.0},
        "sliding_attention": {"rope_theta": 9.0, "partial_rotary_factor": 0.5},
    }
    keys = {"num_hidden_layers": 2, "layer_types": list(rope), "rope_parameters": rope, "per_layer_config": {}}
    assert widths(read("step3p5", **keys)) == [128, 64]
    for changes, match in (
        ({"rope_theta": [5e6, 1e4, 1e5, 1e4]}, "rope_theta must be the same in all layers of type 'sliding_attention'"),
        ({"rope_theta": [5e6, 1e4]}, "rope_theta must have 3 items, one for each layer, got 2"),
        ({"use_rope_layers": [True]}, r"use_rope_layers must be \[\] in model_type 'step3p5'"),
        ({"yarn_only_types": []}, "yarn_only_types must be"),
    ):
        with pytest.raises(ValueError, match=match):
            rotary_from_config({"model_type": "step3p5"} | STEP | changes)


def test_windows_of_ultrabert():
    keys = HEADS | {"num_hidden_layers": 3, "attention_windows": [8, 0, 8], "rope_theta": [1e4, 2e6, 1e4]}
    assert bases(read("ultrabert", **keys)) == [1e4, 2e6, 1e4]
    with pytest.raises(ValueError, match="rope_theta must be the same in all layers of type 'sliding_attention'"):
        rotary_from_config({"model_type": "ultrabert"} | keys | {"rope_theta": [1e4, 2e6, 1e5]})


def test_scaled_layers_of_molmo_2():
    keys = HEADS | {"num_hidden_layers": 3, "rope_theta": 1e6, "head_dim": 16}
    scaling = {"rope_type": "linear", "factor": 4.0}
    plan = read("molmo2_text", **keys, rope_scaling=scaling, rope_scaling_layers=[0, 2])
    for layer, factor in zip(plan.layers, (4, 1, 4), strict=True):
        close(layer.frequencies, plain(16, 1e6) / factor)
    new = {"rope_parameters": scaling | {"rope_theta": 1e6}, "rope_theta": None}
    assert read("molmo2_text", **keys | new, rope_scaling_layers=[0, 2]) == plan
    assert read("molmo2_text", **keys, rope_scaling=scaling).layers[1] == plan.layers[0]
    for layers in ([3], [0.5], ["0"]):
        with pytest.raises(ValueError, match="rope_scaling_layers must be of the 3 layers"):
            rotary_from_config({"model_type": "molmo2_text", "rope_scaling_layers": layers} | keys)


def test_rows_and_columns_of_neomme_alternate():
    rope = {"full_attention": {"partial_rotary_factor": 0.25}, "sliding_attention": {"rope_theta": 500.0}}
    plan = read("neomme", num_hidden_layers=6, rope_parameters=rope)
    assert widths(plan) == [64] * 5 + [16] and bases(plan) == [500.0] * 5 + [1e6]
    assert plan.layers[5].frequencies.axes == (0, 1) * 4


def test_pairs_of_ernie_alternate():
    keys = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1, "rope_theta": 5e5}
    plan = read("ernie4_5_vl_moe_text", **keys, rope_scaling={"type": "default", "mrope_section": [3, 3, 2]})
    assert plan.layout == "interleaved" and plan.layers[0].frequencies.axes == (1, 2, 1, 2, 1, 2, 0, 0)
    assert bases(plan) == [5e5]
    same = np.broadcast_to(np.arange(5)[:, None], (5, 3))  # text, whose three coordinates are equal
    x = np.ones((1, 5, 1, 16), np.float32)
    text = pe.rotary(x, None, pe.geometric(16, 5e5), head_axis=-2, layout="interleaved")
    assert (plan.rotate(x, 0, same, head_axis=-2) == text).all()
    for sections in ([3, 2, 3], [4, 4], [3, 3, 3]):
        with pytest.raises(
            ValueError, match="mrope_section must be height, width and time, the first two equal, of 8 pairs"
        ):
            rotary_from_config(
                {"model_type": "ernie4_5_vl_moe_text", "rope_scaling": {"mrope_section": sections}} | keys
            )


def test_nanochat_rotates_backwards():
    plan = read("nanochat", **HEADS, num_hidden_layers=1)
    x = np.random.default_rng(0).standard_normal((1, 5, 1, 16), np.float32)
    back = pe.rotary(x, None, pe.geometric(16), head_axis=-2, inverse=True)
    np.testing.assert_allclose(plan.rotate(x, 0, head_axis=-2), back, atol=3e-7)


def test_cohere_compass_drops_what_stands_beside_its_layer_types():
    rope = {"full_attention": None, "sliding_attention": {"rope_theta": 5e4, "mrope_section": [24, 20, 20]}}
    keys = {"num_hidden_layers": 2, "layer_types": list(rope), "head_dim": 128}
    plan = read("cohere_compass_text", **keys, rope_parameters=rope | {"rope_theta": 1e4, "rope_type": "default"})
    assert widths(plan) == [0, 128] and bases(plan) == [5e4]
    assert plan.layers[1].frequencies == pe.multi_section(pe.geometric(128, 5e4), (24, 20, 20), interleaved=True)


def test_latent_heads_of_dots_3_differ_between_layer_types():
    keys = {"num_hidden_layers": 6, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "head_dim": 32}
    sliding = {"swa_head_dim": 20, "swa_qk_nope_head_dim": 8, "swa_rope_theta": 123.0}
    plan = read("dots3_note_text", **keys, **sliding, rope_theta=456.0)
    assert (plan.layout, plan.part) == ("interleaved", "last")
    assert [(x.head_dim, x.rotary_dim) for x in plan.layers] == [(24, 8)] * 2 + [(20, 12)] * 3 + [(24, 8)]
    assert bases(plan) == [456.0] * 2 + [123.0] * 3 + [456.0]
    assert plan.indexer and (plan.indexer.layout, plan.indexer.part) == ("interleaved", "first")
    types = ["full_attention"] * 2 + ["sliding_attention"] * 3 + ["indexed_attention"]
    base = {kind: {"rope_theta": 123.0 if "sliding" in kind else 456.0} for kind in types}
    written = {str(i): {"qk_nope_head_dim": 8, "qk_rope_head_dim": 12} for i in (2, 3, 4)}
    saved = {"layer_types": types, "rope_parameters": base, "per_layer_config": written}
    assert read("dots3_note_text", **keys, **saved) == plan
    with pytest.raises(ValueError, match="partial_rotary_factor = 0.5 contradicts qk_rope_head_dim = 8 of 32"):
        base["full_attention"]["partial_rotary_factor"] = 0.5
        rotary_from_config({"model_type": "dots3_note_text"} | keys | saved)


# Bases and widths


def test_shares_of_bailing_hybrid_are_of_head_dim():
    keys = LATENT | {"num_hidden_layers": 6, "head_dim": 8, "partial_rotary_factor": 0.5, "rotary_dim": 4}
    plan = read("bailing_hybrid", **keys, rope_interleave=True)
    assert widths(plan) == [0] * 5 + [4] and bases(plan) == [6e6] and plan.part == "last"
    dynamic = {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "model_max_length": 64}
    assert read("bailing_hybrid", **keys, **dynamic, length=128).length == 128
    with pytest.raises(ValueError, match="group_norm_size must be absent, got 4: the linear attention of Ring-2.5"):
        rotary_from_config({"model_type": "bailing_hybrid", "group_norm_size": 4} | keys)


@pytest.mark.parametrize("model_type", ["deepseek_ocr2_text", "unlimited_ocr_text"])
def test_keys_of_latent_attention_that_a_model_does_not_have(model_type):
    keys = HEADS | {"num_hidden_layers": 2, "qk_rope_head_dim": 0, "qk_nope_head_dim": 0, "use_mla": False}
    assert widths(read(model_type, **keys, head_dim=16)) == [16, 16]
    for changes in ({"use_mla": True}, {"qk_rope_head_dim": 4}, {"head_dim": 8}):
        with pytest.raises(ValueError, match=f"{next(iter(changes))} must be"):
            rotary_from_config({"model_type": model_type} | keys | changes)
    outer = model_type.removesuffix("_text")
    inner = {"model_type": outer, "language_config": {"model_type": "deepseek_v2"} | keys}
    assert widths(rotary_from_config(inner)) == [16, 16]


def test_minimax_m3():
    keys = {"num_hidden_layers": 2, "head_dim": 16, "layer_types": ["full_attention", "minimax_m3_sparse"]}
    plan = read(
        "minimax_m3_vl_text",
        **keys,
        partial_rotary_factor=0.5,
        rotary_dim=8,
        sparse_attention_config={"sparse_index_dim": 32},
    )
    assert widths(plan) == [8, 8] and bases(plan) == [5e6] * 2
    assert plan.indexer and [(x.head_dim, x.rotary_dim) for x in plan.indexer.layers] == [(32, 8)] * 2
    inside = {"rope_theta": 5e6, "partial_rotary_factor": 0.5}
    assert widths(read("minimax_m3_vl_text", **keys, rotary_dim=8, rope_parameters=inside)) == [8, 8]
    with pytest.raises(ValueError, match="partial_rotary_factor is missing: transformers ignores rotary_dim"):
        rotary_from_config({"model_type": "minimax_m3_vl_text", "rotary_dim": 8} | keys)


def test_the_base_of_dbrx_stands_in_attn_config():
    keys = {"d_model": 64, "n_heads": 4, "n_layers": 1, "max_seq_len": 32768}
    assert bases(read("dbrx", **keys, attn_config={"rope_theta": 5e5, "clip_qkv": 8})) == [5e5]
    for changes, match in (
        ({}, "rope_theta is missing"),
        ({"attn_config": {"rope_theta": 5e5}, "rope_theta": 1e4}, "attn_config.rope_theta = 500000.0 contradicts"),
        (
            {"attn_config": {"rope_theta": 5e5}, "rope_parameters": {"rope_theta": 1e4}},
            "contradicts rope_theta = 500000.0",
        ),
    ):
        with pytest.raises(ValueError, match=match):
            rotary_from_config({"model_type": "dbrx"} | keys | changes)


QWEN = {
    "hidden_size": 64, "num_attention_heads": 4, "kv_channels": 16, "num_hidden_layers": 1, "seq_length": 2048,
    "max_position_embeddings": 8192, "rotary_emb_base": 10000, "rotary_pct": 1.0, "use_dynamic_ntk": True, "use_logn_attn": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("length", "alpha"), [(100, 1), (2048, 1), (2049, 3), (4096, 3), (4097, 7), (8192, 7), (8193, 15)]
)
def test_the_base_of_qwen_1_grows_in_steps(length, alpha):
    plan = read("qwen", **QWEN, length=length)
    close(plan.layers[0].frequencies, spectra.floats(spectra.ntk(16, 10_000, alpha)))
    assert plan.length == length


def test_the_query_scale_of_qwen_1():
    plan = read("qwen", **QWEN, length=8192)
    scale = plan.layers[0].query_scale
    positions = np.array([0, 2046, 2047, 2048, 4095, 32766], np.int32)
    published = np.maximum(1, np.log(positions.astype(float) + 1) / np.log(2048))
    np.testing.assert_allclose(scale(positions), published, rtol=2e-7)
    np.testing.assert_allclose(query_scale(positions, scale.coefficient, 2048, 1, "log"), published, rtol=1e-12)
    without = read("qwen", **QWEN | {"use_logn_attn": False, "use_dynamic_ntk": False})
    assert without.layers[0].query_scale is None and without.layers[0].frequencies == pe.geometric(16)
    with pytest.raises(ValueError, match="length must be given"):
        rotary_from_config({"model_type": "qwen"} | QWEN)


def test_chatglm():
    keys = {"num_layers": 2, "kv_channels": 32, "seq_length": 8192, "original_rope": True}
    plan = read("chatglm", **keys)
    assert plan.layout == "interleaved" and widths(plan) == [16, 16] and bases(plan) == [1e4] * 2
    assert bases(read("chatglm", **keys, rope_ratio=500)) == [5e6] * 2
    for changes, match in (
        ({"rope_ratio": 16}, "rope_ratio = 16 divides the positions of ChatGLM2-6B-32K and multiplies the base"),
        ({"rope_ratio": 50, "rope_theta": 1e4}, "rope_theta = 10000.0 contradicts 10000 times rope_ratio = 500000.0"),
        ({"position_encoding_2d": True}, "the first ChatGLM has positions of two coordinates"),
        ({"original_rope": False}, "original_rope must be True in model_type 'chatglm'"),
    ):
        with pytest.raises(ValueError, match=match):
            rotary_from_config({"model_type": "chatglm"} | keys | changes)


def test_internlm():
    keys = HEADS | {"num_hidden_layers": 1, "max_position_embeddings": 64}
    assert bases(read("internlm", **keys)) == [1e4]
    assert bases(read("internlm", **keys, rotary={"base": 5e5, "type": "origin"})) == [5e5]
    plan = read("internlm", **keys, rotary={"base": 1e4, "type": "dynamic", "scaling_factor": 2.0}, length=128)
    assert plan.layers[0].frequencies == pe.dynamic_ntk(16, 1e4, 2.0, original_max=64, length=128)
    with pytest.raises(ValueError, match="rotary.type must be one of"):
        rotary_from_config({"model_type": "internlm", "rotary": {"type": "yarn"}} | keys)
    with pytest.raises(TypeError, match="rotary must have keys that are strings, got int 1"):
        rotary_from_config({"model_type": "internlm", "rotary": {1: 2}} | keys)


@pytest.mark.parametrize(
    ("model_type", "keys", "changes", "match"),
    [
        ("baichuan", {"hidden_size": 4096, "num_attention_heads": 32}, {"hidden_size": 5120, "num_attention_heads": 40}, "hidden_size must be 4096, got 5120: the larger"),
        ("llada", {"d_model": 64, "n_heads": 4, "rope": True, "block_type": "llama", "alibi": False, "alibi_bias_max": 8.0, "rope_full_precision": True}, {"rope": False}, "rope must be True"),
        ("llada", {"d_model": 64, "n_heads": 4}, {"alibi": True}, "the model has no rotary embedding"),
        ("hunyuan", HEADS | {"use_rotary_pos_emb": True, "position_embedding_xdrope": False}, {"position_embedding_xdrope": True}, "position_embedding_xdrope must be False"),
        ("hunyuan", HEADS, {"use_rotary_pos_emb": False}, "use_rotary_pos_emb must be True"),
        ("esm", HEADS | {"position_embedding_type": "rotary"}, {"position_embedding_type": "absolute"}, "position_embedding_type must be 'rotary', got 'absolute'"),
        ("esm", HEADS | {"position_embedding_type": "rotary"}, {"position_embedding_type": None}, "position_embedding_type is missing"),
        ("esm", HEADS | {"position_embedding_type": "rotary"}, {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling = .* is not read by the code of model_type 'esm'"),
        ("roformer", HEADS | {"rotary_value": False}, {"rotary_value": True}, "rotary_value must be False"),
        ("roformer", HEADS, {"rope_theta": 5e5}, "rope_theta must be 10000 in model_type 'roformer', got 500000.0"),
        ("ernie4_5", {"head_dim": 16, "compression_ratio": 1.0, "rope_reorder": False, "fuse_rope": True}, {"compression_ratio": 2.0}, "compression_ratio must be 1.0"),
        ("mimo", HEADS | {"use_mrope": False}, {"use_mrope": True}, "the key use_mrope = True is not known"),
    ],
)  # fmt: skip
def test_one_value_of_a_key_is_read(model_type, keys, changes, match):
    keys = keys | {"num_hidden_layers": 1}
    assert read(model_type, **keys).layers[0].rotary_dim in (16, 128)
    with pytest.raises(ValueError, match=match):
        rotary_from_config({"model_type": model_type} | keys | changes)


def test_words_of_other_types_may_only_agree():
    """The code of these types does not read them."""
    for model_type, keys, match in (
        (
            "bamba",
            {"partial_rotary_factor": 1.0, "layer_types": ["full_attention"]},
            "contradicts partial_rotary_factor",
        ),
        ("mixtral", {"kv_channels": 8}, "head_dim = 16 contradicts kv_channels = 8"),
        ("qwen2", {"attention_head_dim": 8}, "head_dim = 16 contradicts attention_head_dim = 8"),
        ("gemma3n_text", {"layers_block_type": ["full_attention"]}, "the key layers_block_type = .* is not known"),
        ("gptj", {"rope_theta": 5e5, "rotary_dim": 8}, "rope_theta must be 10000 in model_type 'gptj'"),
        ("codegen", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling = .* is not read by the code"),
        (
            "modernbert",
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope_scaling.type = 'linear' must be spelled rope_type in model_type 'modernbert'",
        ),
        ("olmo_hybrid", {"rope_parameters": {"full_attention": {"rope_theta": 7.0}}}, "must hold one set of settings"),
        ("granitemoehybrid", {"position_embedding_type": "rotary", "layer_types": ["full_attention"]}, "is not one of"),
        ("dots3_note_audio_encoder", {"head_dim": 8}, "head_dim must be 16"),
        ("llama", {"rope_scaling": {"rope_type": "dynamic_steps"}, "max_position_embeddings": 8}, "is not known"),
    ):
        with pytest.raises(ValueError, match=match):
            rotary_from_config({"model_type": model_type, "num_hidden_layers": 1} | HEADS | keys, length=9)
    scaled = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    keys = {"head_dim": 16, "num_hidden_layers": 6, "rope_scaling": scaled}
    plan = read("gemma3_text", **keys)
    close(plan.layers[5].frequencies, spectra.yarn(16, 1e6, 4, 512))
    half = read(
        "glm4", head_dim=16, num_hidden_layers=1, rope_parameters={"rope_type": "proportional", "rope_theta": 1e4}
    )
    assert np.count_nonzero(half.layers[0].frequencies.angular) == 4  # by the class's share
    with pytest.raises(
        ValueError, match="model_type must be 'gemma3_text' in the language model of 'gemma3', got 'llama'"
    ):
        rotary_from_config({"model_type": "gemma3", "text_config": LLAMA})


def test_other_names():
    keys = {"head_dim": 16, "num_hidden_layers": 1}
    assert bases(
        read("openelm", head_dim=16, num_transformer_layers=1, rope_freq_constant=5e5, rope_max_length=4096)
    ) == [5e5]
    assert widths(read("stablelm_epoch", **keys, rope_pct=0.5)) == [8] and widths(read("stablelm_epoch", **keys)) == [4]
    assert widths(read("phi-msft", n_embd=256, n_head=4, n_layer=1, rotary_dim=32)) == [32]


# Keys of vLLM and others in the rope settings


YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096}
LLAMA = {"model_type": "llama", "head_dim": 64, "num_hidden_layers": 1}
G = float(spectra.temperature(8))


@pytest.mark.parametrize(
    ("keys", "amplitude"),
    [
        ({}, G),
        ({"finetuned": True, "extrapolation_factor": 1.0, "attn_factor": 1.0, "apply_yarn_scaling": True}, G),
        ({"attn_factor": 0.5}, 0.5 * G),
        ({"apply_yarn_scaling": False}, 1.0),
        ({"apply_yarn_scaling": False, "attn_factor": 0.5}, 0.5),
        ({"mscale": 0.707}, G),  # transformers reads both or none
        ({"rope_type": "deepseek_yarn"}, G),
        ({"rope_type": "deepseek_yarn", "mscale": 0.707}, float(spectra.temperature(8, 0.707))),
        ({"rope_type": "deepseek_yarn", "mscale_all_dim": 1.0}, 1.0),
        ({"rope_type": "deepseek_yarn", "mscale": 0.5, "mscale_all_dim": 1.0}, float(spectra.temperature(8, 0.5)) / G),
    ],
)
def test_amplitudes_of_yarn(keys, amplitude):
    plan = rotary_from_config(LLAMA | {"rope_theta": 1e4, "rope_scaling": YARN | keys})
    frequencies = plan.layers[0].frequencies
    assert frequencies.attention_factor == pytest.approx(amplitude, rel=1e-14)
    close(frequencies, spectra.floats(spectra.yarn(64, 1e4, 8, 4096)))
    assert rotary_from_config(plan_to_config(plan)) == plan


@pytest.mark.parametrize(("length", "amplitude"), [(4096, 1.25), (4097, 1.5)])
def test_amplitudes_of_longrope(length, amplitude):
    lists = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32, "short_mscale": 1.25, "long_mscale": 1.5}
    rope = {"type": "longrope", "original_max_position_embeddings": 4096} | lists
    config = LLAMA | {"rope_theta": 1e4, "max_position_embeddings": 131072, "rope_scaling": rope}
    assert rotary_from_config(config, length=length).layers[0].frequencies.attention_factor == amplitude
    with pytest.raises(ValueError, match="attention_factor = 1.0 contradicts short_mscale and long_mscale"):
        rotary_from_config(config | {"rope_scaling": rope | {"attention_factor": 1.0}}, length=length)


def test_dual_chunks():
    """Qwen2.5-1M rotates as plain RoPE within one chunk."""
    chunks = {"chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144}
    config = LLAMA | {"model_type": "qwen2", "rope_theta": 1e7, "dual_chunk_attention_config": chunks}
    assert rotary_from_config(config, length=253952).layers[0].frequencies == pe.geometric(64, 1e7)
    for length, must in ((None, "given, at most"), (253953, "at most")):
        with pytest.raises(ValueError, match=f"length must be {must} 253952: dual-chunk attention equals plain RoPE"):
            rotary_from_config(config, length=length)


def test_the_query_scale_of_beam():
    rope = {"sliding_attention": {"rope_theta": 1e4}, "full_attention": None}
    types = ["sliding_attention", "full_attention"]
    plan = read("beam", num_hidden_layers=2, layer_types=types, rope_parameters=rope)
    assert [layer.query_scale for layer in plan.layers] == [None, QueryScale(0.1, 2048, 1, "power")]
    x = np.ones((1, 1, 1, 128), np.float32)
    scaled = plan.rotate(x, 1, np.array([100_000]), head_axis=-2, role="query")
    np.testing.assert_allclose(scaled, (1 + 100_001 / 2048) ** 0.1, rtol=2e-7)


@pytest.mark.parametrize(
    ("model_type", "layout", "part"),
    [
        ("deepseek_v32", "half", "first"),
        ("axk2", "half", "first"),
        ("glm_moe_dsa", "interleaved", "first"),
        ("hy_v4", "half", "last"),
    ],
)
def test_indexers(model_type, layout, part):
    keys = {"num_hidden_layers": 2, "rope_theta": 1e6, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64}
    plan = read(model_type, **keys)
    indexer = plan.indexer
    assert indexer and (indexer.layout, indexer.part) == (layout, part)
    assert [(x.head_dim, x.frequencies) for x in indexer.layers] == [(128, pe.geometric(64, 1e6))] * 2
    assert read(model_type, **keys, index_head_dim=96).indexer.layers[0].head_dim == 96
    if model_type in ("deepseek_v32", "glm_moe_dsa"):  # GLM-5 is published as either
        assert read(model_type, **keys, indexer_rope_interleave=True).indexer.layout == "interleaved"
    for other in (False, True):
        if (model_type, other) in (("glm_moe_dsa", False), ("axk2", True), ("hy_v4", False)):
            with pytest.raises(ValueError, match="indexer_rope_interleave (=|must be)"):
                rotary_from_config({"model_type": model_type, "indexer_rope_interleave": other} | keys)
    x = np.ones((1, 3, 2, 128), np.float32)
    turned = np.asarray(indexer.rotate(x, 0, head_axis=-2))
    kept = turned[..., 64:] if part == "first" else turned[..., :64]
    assert (kept == 1).all() and not (turned == 1).all()
