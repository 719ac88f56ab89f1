"""What the table of models says where a config does not."""

import dataclasses
import importlib
import re
from pathlib import Path

import pytest

from helpers.plans import close, plain, widths
from huggingface.published import LLAMA_31, llama
from oracles import configs
from posenc_jax.hf import rotary_from_config
from posenc_jax.hf._models import MODELS
from posenc_jax.hf._multimodal_models import MULTIMODAL
from posenc_jax.hf._refused import REFUSED
from posenc_jax.hf._towers import TOWERS

FACTS = [MODELS, MULTIMODAL, TOWERS]
FACTS += [
    {name: getattr(model, kind) for name, model in MODELS.items() if getattr(model, kind)}
    for kind in ("indexer", "pattern")
]


@pytest.mark.parametrize("facts", FACTS)
def test_a_field_serves_at_least_two_model_types(facts):
    """What one alone does is a rewriter, or a quirk of a tower."""
    for field in dataclasses.fields(next(iter(facts.values()))):
        usual = {} if field.default_factory is dict else field.default
        assert sum(getattr(x, field.name) != usual for x in facts.values()) > 1, field.name


def test_the_layout_is_the_model_s_or_the_caller_s():
    llama_31 = rotary_from_config(LLAMA_31)
    for said in ("rope_interleave", "rope_interleaved", "rotary_emb_interleaved"):
        assert rotary_from_config(LLAMA_31 | {said: False}) == llama_31
    other = rotary_from_config(LLAMA_31, layout="interleaved")
    assert other == dataclasses.replace(llama_31, layout="interleaved")
    unnamed = {"head_dim": 8, "num_hidden_layers": 1}
    for layout in ("half", "interleaved"):
        assert rotary_from_config(unnamed, layout=layout).layout == layout
        assert rotary_from_config(unnamed | {"rope_interleave": layout == "interleaved"}).layout == layout
    with pytest.raises(ValueError, match='layout must be given, "half" or "interleaved", for a config without a model'):
        rotary_from_config(unnamed)


def test_without_a_model_type_all_keys_are_understood():
    for key in ("swa_rope_theta", "my_key", "sliding_window"):
        with pytest.raises(ValueError, match=f"the key {key} = True is not known or not used here"):
            rotary_from_config({"head_dim": 8, "num_hidden_layers": 1, key: True}, layout="half")


def test_keys_that_speak_of_positions():
    """A key with such a name may change what the code does, so a model_type that does not read it refuses it."""
    for key in (
        "hybrid_layer_pattern hybrid_override_pattern swa_rope_theta swa_head_dim "
        "yarn_only_types rope_ratio position_layers attn_type_list attn_scale log_scaling_alpha"
    ).split():
        with pytest.raises(ValueError, match=f"the key {key} = 1 is not known or not used here"):
            rotary_from_config(llama(**{key: 1}))
    for key in "use_mrope mla_use_nope use_dynamic_ntk use_logn_attn use_fope".split():
        assert rotary_from_config(llama(**{key: False})) == rotary_from_config(llama())
        with pytest.raises(ValueError, match=f"the key {key} = True is not known or not used here"):
            rotary_from_config(llama(**{key: True}))
    for key in ("max_position_embeddings", "max_2d_position_embeddings", "n_positions", "position_id_per_seconds"):
        assert rotary_from_config(llama(**{key: 512})) == rotary_from_config(llama())


FOUR = {"head_dim": 8, "num_hidden_layers": 4}


@pytest.mark.parametrize(
    ("name", "keys", "rotated"),
    [
        ("moonshine", {"head_dim": 52}, [46] * 4),  # of 46.8, rounded down
        ("codegen", {"head_dim": 128}, [64] * 4),
        ("gptj", {"rotary_dim": 4, "rotary": True}, [4] * 4),
        ("cohere2", {"sliding_window": 64}, [8, 8, 8, 0]),
        ("cohere2", {"sliding_window": None}, [8, 8, 8, 0]),
        ("afmoe", {"global_attn_every_n_layers": 3}, [8, 8, 0, 8]),
    ],
)
def test_the_features_that_rotate(name, keys, rotated):
    assert widths(rotary_from_config(FOUR | {"model_type": name} | keys)) == rotated


def test_old_settings_of_olmo_3_scale_full_attention_alone():
    old = {"model_type": "olmo3", "rope_theta": 7e5, "transformers_version": "4.57.0"}
    old |= {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    *sliding, full = (layer.frequencies for layer in rotary_from_config(FOUR | old).layers)
    close(full, plain(8, 7e5) / 2)
    for f in sliding:
        close(f, plain(8, 7e5))


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"model_type": "dbrx"}, "rope_theta is missing"),
        (
            {"rope_parameters": {"rope_theta": None}},
            "rope_theta must have a value or be left out for 10000.0, got null",
        ),
    ],
)
def test_the_base_that_no_key_says(keys, match):
    with pytest.raises(ValueError, match=match):
        rotary_from_config(FOUR | keys, layout="half")
    close(rotary_from_config(FOUR, layout="half").layers[0].frequencies, plain(8, 1e4))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_by_name(name):
    assert name not in MODELS
    for config in (llama(model_type=name), {"model_type": "my_wrapper", "text_config": llama(model_type=name)}):
        with pytest.raises(ValueError) as e:
            rotary_from_config(config, layout="half")
        assert str(e.value) == f"rotary_from_config: model_type {name!r} is not read: {REFUSED[name]}"


# Types whose keys are their own: the tests of configs read them.
ELSEWHERE = """
baichuan codegen deepseek_ocr2_text deepseek_v4 dots3_note_audio_encoder dots3_note_text esm glm4_moe_lite glm5_next_text
gptj granitemoehybrid hrm_text hy_v4_vl_text jamba kimi_linear longcat_flash mistral_large4_text mllama_text_model
nemotron_h qwen roformer unlimited_ocr_text zamba2
""".split()


@pytest.mark.parametrize("name", sorted(MODELS.keys() - ELSEWHERE))
def test_every_model_type_reads(name):
    """With settings that none has for a default, so that no entry of the table is without use."""
    model, rope = MODELS[name], {"rope_type": "default", "rope_theta": 123.0}
    config = {"model_type": name, "head_dim": 128, "num_hidden_layers": 2}
    config |= {"qk_nope_head_dim": 16, "qk_rope_head_dim": 8} if model.latent else {}
    if model.query_scale == "beta":
        rope |= {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 4096}
    if model.sections or model.partial:
        rope |= {"partial_rotary_factor": sum(model.sections) / 64 if model.sections else 0.5}
    if model.needs_layer_types or model.nested or model.thetas or model.sliding_only or model.pattern:
        config["layer_types"] = ["sliding_attention", "full_attention"]
    if model.nested or model.thetas:
        rope = dict.fromkeys(config["layer_types"], rope)
    first, _ = rotary_from_config(config | {"rope_parameters": rope}, length=9).layers
    assert first.head_dim == (24 if model.latent else 128)
    assert abs(first.frequencies.angular[1]) == pytest.approx(123 ** (-2 / first.rotary_dim))


def test_the_site_says_of_which_types_a_value_is_recorded(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs"))
    model_types = importlib.import_module("model_types")
    held = model_types.recorded()
    assert configs.RECORDED.keys() <= held and MODELS.keys() - held <= configs.OTHERS.keys()
    *_, with_value, without = model_types.census()
    assert [{*re.findall(r"`([\w-]+)`", row)} for row in (with_value, without)] == [held, MODELS.keys() - held]
