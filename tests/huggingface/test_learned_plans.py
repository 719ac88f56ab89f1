"""Configs of models that learn a part of their plan, or whose values rotate: Mistral Large 4 and DeepSeek-V4."""

import json

import numpy as np
import pytest

import posenc_jax as pe
from helpers.plans import widths
from posenc_jax.hf import plan_to_config, rotary_from_config

ROPE = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2048.0, "original_max_position_embeddings": 512}
WIDTHS = {"qk_nope_head_dim": 64, "qk_rope_head_dim": 64}
LARGE = WIDTHS | {"model_type": "mistral_large4_text", "num_hidden_layers": 5, "num_attention_heads": 64}
LARGE |= {"rope_parameters": ROPE}
BARE = {
    "model_type": "deepseek_v4",
    "num_hidden_layers": 4,
    "compress_ratios": [0, 128, 4, 0, 0],
    "qk_rope_head_dim": 64,
}
BARE |= {"num_nextn_predict_layers": 1}
V4 = BARE | {"rope_scaling": ROPE}
MAIN = {"rope_theta": 1e4, "partial_rotary_factor": 0.125}
SUB = ROPE | MAIN


def test_mistral_large_4():
    plan = rotary_from_config({"model_type": "mistral_large4", "text_config": LARGE})
    assert widths(plan) == [64, 64, 64, 0, 64]
    name = "layers.{layer}.attention."
    alpha = ("lerope.alpha", (32,))
    assert plan.parameters == (alpha, *((f"{name}ssmax_scaling.{x}", (64,)) for x in "sb"))
    assert plan.indexer.parameters == (alpha, *((f"{name}indexer.ssmax_scaling.{x}", (32,)) for x in "sb"))
    first, *_, still, _ = plan.layers
    assert first.frequencies == pe.yarn(64, 1e4, 2048.0, 512)
    assert still.learned_log_factor is None and still.query_scale == first.query_scale


def test_deepseek_v4():
    plan = rotary_from_config(V4)
    main, compress = pe.geometric(64), pe.yarn(64, 160_000.0, 2048.0, 512, attention_factor=1.0)
    assert [layer.frequencies for layer in plan.layers] == [main, compress, compress, main]
    assert (plan.part, plan.layout, plan.layers[0].head_dim, plan.softmax_scale) == ("last", "interleaved", 512, 1.0)
    assert plan.rotates_values and (plan.indexer.part, plan.indexer.layers[2].head_dim) == ("last", 128)
    sub = SUB | {"rope_theta": 160_000}
    nested = BARE | {"rope_parameters": {"main": MAIN, "compress": sub | {"attention_factor": 1.0}}}
    inside = {key: value for key, value in ROPE.items() if "original" not in key}
    for same in (nested, BARE | {"rope_scaling": inside, "original_max_position_embeddings": 512}):
        assert rotary_from_config(same) == plan
    # As transformers has it, an amplitude that nested settings leave to YaRN is YaRN's.
    louder = rotary_from_config(BARE | {"rope_parameters": {"main": MAIN, "compress": sub}})
    assert louder.layers[1].frequencies.attention_factor == pytest.approx(0.1 * np.log(2048) + 1)
    pattern = rotary_from_config({"model_type": "deepseek_v4", "num_hidden_layers": 6})
    assert {layer.frequencies for layer in pattern.layers} == {pe.geometric(64, 160_000.0)}


@pytest.mark.parametrize("config", [LARGE, V4], ids=["Mistral Large 4", "DeepSeek-V4"])
def test_round_trips(config):
    plan = rotary_from_config(config)
    written = json.loads(json.dumps(plan_to_config(plan)))
    assert rotary_from_config(written) == plan
    for key in {"rope_on_values", "query_scales", "indexer_query_scales"} & written.keys():
        assert rotary_from_config({k: x for k, x in written.items() if k != key}) != plan


def nested(**changes):
    return {"rope_scaling": {"main": MAIN, "compress": SUB} | changes}


PLAIN = {"num_hidden_layers": 1, "head_dim": 8}


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (V4 | {"compress_ratios": [0, 128, 8, 0]}, r"compress_ratios must hold \[0, 4, 128\], got \[0, 128, 8, 0\]"),
        (V4 | {"compress_ratios": [0, 128]}, "compress_ratios must have 4 items, one for each layer, got 2"),
        (V4 | {"layer_types": ["sliding_attention"] * 4}, "compress_ratios = .* contradicts layer_types"),
        (V4 | {"compress_ratios": None, "layer_types": ["full_attention"] * 4}, "the layer type 'full_attention' is not known"),
        (V4 | {"partial_rotary_factor": 0.25}, "partial_rotary_factor = 0.25 contradicts qk_rope_head_dim = 64"),
        (V4 | {"rope_scaling": ROPE | {"rope_theta": 5e6}}, "rope_scaling.rope_theta = 5000000.0 contradicts rope_theta = 10000.0"),
        (V4 | {"rope_scaling": ROPE | {"rope_type": "deepseek_yarn"}}, "'deepseek_yarn' has an amplitude of its own"),
        (V4 | {"rope_theta": None}, "rope_theta must have a value or be left out for 10000.0, got null"),
        (V4 | nested(main={"rope_theta": 1e4}), "main.partial_rotary_factor is missing"),
        (V4 | nested(main=MAIN | {"rope_theta": None}), "main.rope_theta is missing"),
        (V4 | nested() | {"compress_rope_theta": 7.0}, "contradicts compress_rope_theta"),
        (V4 | nested(compress=SUB | {"partial_rotary_factor": 0.5}), "0.5 contradicts qk_rope_head_dim = 64"),
        (V4 | nested(compress=None), "rope_scaling.compress.rope_theta is missing"),
        (BARE | {"rope_parameters": {"main": MAIN}}, "rope_parameters.compress.rope_theta is missing"),
        (LARGE | {"rope_parameters": ROPE | {"learned_log_factor": "a"}}, "learned_log_factor = 'a' contradicts"),
        (LARGE | {"num_attention_heads": None}, "num_attention_heads is missing"),
        (PLAIN | {"model_type": "roformer", "rotary_value": True}, "rotary_value must be False"),
        (PLAIN | {"model_type": "llama", "rope_on_values": True}, "the key rope_on_values = True"),
    ],
)  # fmt: skip
def test_what_is_refused(config, match):
    with pytest.raises(ValueError, match=match) as e:
        rotary_from_config(config)
    assert str(e.value).count("rotary_from_config: ") == 1


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_a_spectrum_that_is_no_mapping(key):
    with pytest.raises(TypeError, match=f"{key}.compress must be a mapping, got int 3"):
        rotary_from_config(BARE | {key: {"main": MAIN, "compress": 3}})
