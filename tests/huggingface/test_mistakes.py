"""Mistakes that people make in a config.json: errors say what the file says, and nothing is refused without need."""

import re

import pytest

from huggingface.published import QWEN_25_VL, llama
from oracles import configs
from posenc_jax.hf import positions_from_tokens, rotary_from_config, vision_rotary_from_config
from posenc_jax.hf._models import MODELS
from posenc_jax.hf._refused import REFUSED

SIZES = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 2, "max_position_embeddings": 4096}
SCALINGS = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
    "mscale_all_dim": 1.0, "attention_factor": 1.0, "attn_factor": 1.0, "extrapolation_factor": 1.0, "truncate": False,
    "short_factor": [1.0] * 64, "long_factor": [1.0] * 64, "alpha": 1000.0,
}  # fmt: skip

TYPES = "default", "dynamic", "linear", "llama3", "longrope", "proportional", "yarn"
# Flags of many files, and what they say where layers have positions.
WORDS = "rope rotary use_rope use_rotary use_rotary_embedding use_rotary_pos_emb"
WORDS = dict.fromkeys(WORDS.split(), True)
WORDS |= dict.fromkeys(("alibi", "use_alibi", "nope", "use_nope"), False)


def refused(config, match):
    with pytest.raises(ValueError, match=match):
        rotary_from_config(config, length=100)


@pytest.mark.parametrize("name", sorted(configs.RECORDED))
def test_words_that_only_say_what_the_code_does(name):
    """Whether there is a rotary embedding, and which layout it has, in every model type."""
    config = configs.RECORDED[name]["config"]
    plan = rotary_from_config(config, length=5000)
    rotates = any(layer.rotary_dim for layer in plan.layers)
    for word, with_positions in WORDS.items():
        right = with_positions if rotates or "alibi" in word else not with_positions
        assert rotary_from_config(config | {word: right}, length=5000) == plan
        none, one = "no rotary embedding: {} is {}", "{} = {} contradicts the layers: none has positions"
        refused(config | {word: not right}, (none if rotates or "alibi" in word else one).format(word, not right))
        refused(config | {word: None}, f"{word} must have a value or be left out for {with_positions}, got null")
    interleaved = plan.layout == "interleaved"
    for word in ("rope_traditional", "interleaved") if rotates and MODELS[name].layout else ():
        if word == "interleaved" and MODELS[name].sections is not None:  # it may be about coordinates
            refused(config | {word: interleaved}, "the key interleaved = .* is not known or not used here")
        else:
            assert rotary_from_config(config | {word: interleaved}, length=5000) == plan
            refused(config | {word: not interleaved}, f"{word} = {not interleaved} contradicts the layout")


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("emu3", "emu3_text_model"),
        ("mllama", "mllama_text_model"),
        ("qwen2_5_omni_thinker", "qwen2_5_omni_text"),
        ("qwen3_omni_moe_thinker", "qwen3_omni_moe_text"),
        ("t5gemma2_encoder", "t5gemma2_text"),
    ],
)
def test_a_language_model_without_a_type(outer, inner):
    """It has the type that the composite's class fixes."""
    text = SIZES | ({"cross_attention_layers": [1]} if outer == "mllama" else {})
    plan = rotary_from_config({"model_type": outer, "text_config": text})
    assert plan == rotary_from_config(text | {"model_type": inner})


@pytest.mark.parametrize("part", ["text_config", "language_config", "llm_config", "lm_config"])
@pytest.mark.parametrize("outer", ["mistral3", "llava", "llava_next", "paligemma", "internvl_chat", "idefics3", "aria"])
def test_a_language_model_that_may_have_any_type(outer, part):
    if outer == "aria":  # whose class fixes it
        assert rotary_from_config({"model_type": outer, part: SIZES}).layers
        return
    refused(
        {"model_type": outer, part: SIZES},
        f"{part}.model_type is missing: model_type '{outer}' may hold any language model",
    )
    assert rotary_from_config({"model_type": outer, part: SIZES | {"model_type": "llama"}}).layers


@pytest.mark.parametrize(
    "part",
    "textConfig text-config text_configs TextConfig text_cfg txt_text language_model language_model_config llm lm lm_cfg "
    "text_model text decoder decoder_config text_config_dict language_config_".split(),
)
def test_a_misspelled_language_model(part):
    """It would be passed over: the outer config may have all keys of one, as in files before text_config."""
    outer = SIZES | {"model_type": "qwen3_vl", "rope_theta": 5e6}
    for text in (SIZES | {"model_type": "qwen3_vl_text"}, {"rope_theta": 1e6}, {"rope_scaling": {}}):
        for whole in (outer, {"model_type": "llava"}, {"model_type": "gemma3"}, {}):
            refused(
                whole | {part: text}, f"the key {part} = .* is not known and holds a language model: write text_conf"
            )
    assert rotary_from_config(outer | {part: {"dropout": 0.0}, "transformers_version": "5.23.0"}).layers
    assert rotary_from_config(outer | {part: None}).layers


@pytest.mark.parametrize("tower", ["vision_config", "audio_config"])
def test_a_composite_without_a_language_model(tower):
    message = f"text_config is missing beside {tower}, with the language model of model_type 'my_vl'"
    for text in ({}, {"text_config": None}):
        refused({"model_type": "my_vl", tower: SIZES} | text, message)
    refused({"model_type": "my_vl", tower: SIZES} | SIZES, "model_type 'my_vl' is not known, and its code may do")


@pytest.mark.parametrize("part", ["text_config", "language_config"])
@pytest.mark.parametrize(
    "override",
    [
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
        {"rope_theta": 1e6},
        {"partial_rotary_factor": 0.5},
    ],
)
def test_an_override_beside_the_language_model(override, part):
    (key,) = override
    config = {"model_type": "llava", part: SIZES | {"model_type": "llama"}}
    refused(
        config | override, f"the key {key} = .* stands beside {part}, where nothing reads it: write it into {part}$"
    )
    repeated = SIZES | {"model_type": "llama", "rope_theta": 1e6}
    assert rotary_from_config(config | {part: repeated, "rope_theta": 1e6}) == rotary_from_config(repeated)


@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters", "full_attention"])
@pytest.mark.parametrize("key", SCALINGS)
def test_a_missing_rope_type(key, place):
    """The error does not call the scaling's own key unknown."""
    settings = {"rope_theta": 1e4, key: SCALINGS[key]}
    config = SIZES | {"model_type": "laguna", "layer_types": ["full_attention"] * 2}
    config |= (
        {"rope_parameters": {place: settings}}
        if place == "full_attention"
        else {"model_type": "llama", place: settings}
    )
    refused(config, rf"{place}.rope_type is missing beside [\w.]+{place}.{key} = " if "_a" in place else f"{place}.rope_type is missing beside {place}.{key} = ")  # fmt: skip


@pytest.mark.parametrize("name", sorted(name for name, model in MODELS.items() if model.nested))
def test_one_set_of_settings_where_layer_types_have_their_own(name):
    """The error does not look into its values, nor ask for settings of layers without attention."""
    config = SIZES | {"model_type": name, "head_dim": 64, "layer_types": ["sliding_attention", "full_attention"]}
    config |= {"qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "transformers_version": "5.23.0"}
    for settings in ({"rope_theta": 1e6}, {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e6}):
        if name == "deepseek_v4":
            refused(config | {"rope_parameters": settings}, "layer_types must be of|rope_theta .*contradicts")
        else:
            refused(
                config | {"rope_parameters": settings}, "rope_parameters must hold settings for each (of the )?layer t"
            )
    if MODELS[name].hybrid:
        config |= {"layer_types": ["conv", "full_attention"], "rope_parameters": {"rope_theta": 1e6}}
        refused(config, r"must hold settings for each of the layer types \['full_attention'\]$")


@pytest.mark.parametrize("key", ["original_max_position_embeddings", "max_position_embeddings"])
def test_a_length_may_be_a_whole_float(key):
    """As transformers reads it in the settings; the error of another one names the place."""
    yarn = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e6, "original_max_position_embeddings": 1024}
    for place in ("rope_scaling", "rope_parameters"):
        plan = rotary_from_config(SIZES | {"model_type": "llama", place: yarn})
        config = SIZES | {"model_type": "llama", place: yarn | {key: float((SIZES | yarn)[key])}}
        assert rotary_from_config(config) == plan
        for wrong in (1024.5, "1024", True):
            with pytest.raises(TypeError, match=f"{place}.{key} must be an integer, got") as error:
                rotary_from_config(
                    SIZES | {"model_type": "llama", place: yarn | {key: wrong}} | {"max_position_embeddings": None}
                )
            assert repr(wrong) in str(error.value)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("yran", ": is 'yarn' meant?"),
        ("longrop", ": is 'longrope' meant?"),
        ("long_rope", ": is 'longrope' meant?"),
        ("llama-3", ": is 'llama3' meant?"),
        ("dynamic_ntk", ""),
        ("ntk-by-parts", ""),
    ]
    + [(case(x), f": is '{x}' meant?") for x in TYPES for case in (str.upper, str.capitalize)],
)
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_a_misspelled_rope_type(key, value, hint):
    refused(
        llama(rope_scaling={key: value, "factor": 2.0}),
        rf"rope_scaling.{key} must be one of .*'yarn'\], got '{value}'{re.escape(hint)}$",
    )


def test_the_case_of_a_model_type():
    lower = {name for name in MODELS if name == name.lower()}
    for name in lower:
        for other in {name.upper(), name.capitalize(), name.replace("_", "-"), name.title()} - MODELS.keys():
            if other not in REFUSED and f"{other}_text" not in MODELS:
                refused(
                    {"model_type": other} | SIZES, f"^rotary_from_config: model_type '{other}' is not known: write '"
                )
    for other, name in {"Llama": "llama", "Qwen2-VL": "qwen2_vl", "GPT-NeoX": "gpt_neox", "DeBERTa": "deberta"}.items():
        refused({"model_type": other} | SIZES, f"model_type '{other}' is not known: write '{name}' if that is meant$")
    # a composite, its language model, the whole model with images, and the tower
    refused({"model_type": "Gemma3", "text_config": SIZES}, "model_type 'Gemma3' is not known: write 'gemma3' if that")
    refused(
        {"model_type": "llava", "text_config": SIZES | {"model_type": "Qwen2"}}, "'Qwen2' is not known: write 'qwen2'"
    )
    tower = {"model_type": "paddleocr_vl", "patch_size": 14} | SIZES  # whose name is that of the whole model
    refused(tower, "model_type 'paddleocr_vl' is not known, and its code may do")
    with pytest.raises(
        ValueError, match="^positions_from_tokens: model_type 'Qwen2-VL' is not known: write 'qwen2_vl' if"
    ):
        positions_from_tokens({"model_type": "Qwen2-VL"}, [[1]])
    with pytest.raises(
        ValueError, match="^vision_rotary_from_config: model_type 'Pixtral' is not known: write 'pixtral' if"
    ):
        vision_rotary_from_config({"model_type": "Pixtral"})


@pytest.mark.parametrize("head_dim", [1, 7, 63, 127])
def test_an_odd_width_of_heads(head_dim):
    message = (
        f"^rotary_from_config: head_dim must rotate an even number of features, from 2 to {head_dim}, got {head_dim}$"
    )
    for keys in ({"head_dim": head_dim}, {"hidden_size": 32 * head_dim, "head_dim": None}):
        refused(SIZES | {"model_type": "llama"} | keys, message)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (llama(rope_interleave=True), "^rotary_from_config: rope_interleave = True contradicts the layout of model_type 'llama' = 'half'$"),
        (llama(model_type=None, rope_interleave=True, rope_interleaved=False), "rope_interleave = True contradicts rope_interleaved = False"),
        (llama(model_type="deepseek_v3", qk_rope_head_dim=8, qk_nope_head_dim=8, rope_interleave=True, rope_interleaved=False), "rope_interleave = True contradicts rope_interleaved = False"),
        (llama(model_type="cohere", rope_theta=8e6, rotary_emb_interleaved=False), "rotary_emb_interleaved = False contradicts the layout of"),
        (llama(rope_scaling={"type": "su", "rope_type": "linear", "factor": 2.0}), "rope_scaling.rope_type = 'linear' contradicts rope_scaling.type = 'su'"),
        (llama(rope_scaling={"type": "su", "short_factor": [1.0], "long_factor": [1.0], "factor": 2.0, "original_max_position_embeddings": 32}, max_position_embeddings=64), "^rotary_from_config: rope_scaling.type 'su': longrope: short_factor"),
        (QWEN_25_VL | {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 20]}}, "^rotary_from_config: rope_scaling.type 'mrope': multi_section: .* got \\(16, 24, 20\\)"),
        (SIZES | {"model_type": "qwen3_5_text", "rope_theta": 1e7, "head_dim": 64, "layer_types": ["full_attention"] * 2}, r"^rotary_from_config: rope_parameters.mrope_section is missing, and \(11, 11, 10\) of model_type 'qwen3_5_text' do not sum to 8 pairs"),
        (QWEN_25_VL | {"rope_scaling": None, "head_dim": 64}, r"mrope_section is missing, and \(16, 24, 24\) of model_type 'qwen2_5_vl' do not sum to 32 pairs"),
    ],
)  # fmt: skip
def test_an_error_shows_what_the_file_says(config, match):
    refused(config, match)


def test_a_note_about_a_spelling_stands_on_errors_about_it_alone():
    rope = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    config = SIZES | {"model_type": "gemma4_text", "head_dim": 256, "rope_parameters": rope}
    for types in (["full_attention"] * 2, ["sliding_attention"] * 2):
        for broken in (
            {"head_dim": 255},
            {"rope_parameters": rope | {"main": {}}},
            {"rope_parameters": rope | {"full_attention": {"rope_theta": -1.0}}},
        ):
            if types[0] == "full_attention" and "head_dim" in broken:
                continue  # of a layer type that no layer has
            with pytest.raises(ValueError) as error:  # noqa: PT011
                rotary_from_config(config | {"layer_types": types} | broken)
            assert "spelling" not in str(error.value)
    mimo = SIZES | {"model_type": "mimo_v2_flash", "hybrid_layer_pattern": [0, 1], "rope_theta": -1.0}
    mimo |= {"swa_rope_theta": 1e4}
    refused(
        mimo,
        "^rotary_from_config: rope_parameters.full_attention.rope_theta .*by the spelling of model_type 'mimo_v2_flash'",
    )
