"""Facts that a file has twice: those that agree are accepted, those that contradict each other are errors naming both."""

import itertools

import pytest

from helpers.plans import bases
from huggingface.published import DEEPSEEK_V3, MODERNBERT
from oracles import configs
from posenc_jax import geometric, linear_scaling
from posenc_jax.hf import rotary_from_config
from posenc_jax.hf._config import REDUNDANT_FLAGS
from posenc_jax.hf._models import MODELS

SIZES = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 3, "max_position_embeddings": 4096}
FULL, SLIDING = "full_attention", "sliding_attention"
PARTS = "text_config", "language_config", "llm_config", "lm_config", "decoder_config"


def read(config):
    return rotary_from_config(config, length=5000)


def refused(config, match):
    with pytest.raises(ValueError, match=match):
        read(config)


# MiMo, as transformers 5 saves it

MIMO = {
    "model_type": "mimo_v2_flash", "num_hidden_layers": 3, "head_dim": 192, "hybrid_layer_pattern": [0, 1, 1],
    "rope_theta": 5e6, "swa_rope_theta": 1e4, "swa_head_dim": 192, "partial_rotary_factor": 0.334,
}  # fmt: skip
SAVED = MIMO | {
    "layer_types": [FULL, SLIDING, SLIDING],
    "rope_parameters": {
        FULL: {"partial_rotary_factor": 0.334, "rope_theta": 5e6, "rope_type": "default"},
        SLIDING: {"partial_rotary_factor": 0.334, "rope_theta": 1e4, "rope_type": "default"},
    },
}


def test_mimo_with_the_older_keys_beside_the_settings():
    plan = read(MIMO)
    assert bases(plan) == [5e6, 1e4, 1e4]
    older = "hybrid_layer_pattern", "swa_rope_theta", "rope_theta", "partial_rotary_factor", "swa_head_dim"
    for count in range(len(older) + 1):
        for gone in itertools.combinations(older, count):
            assert read({key: value for key, value in SAVED.items() if key not in gone}) == plan, gone


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            {"swa_rope_theta": 2e4},
            r"rope_parameters.sliding_attention.rope_theta = 10000.0 contradicts swa_rope_theta = 2",
        ),
        (
            {"rope_theta": 1e4},
            r"rope_parameters.full_attention.rope_theta = 5000000.0 contradicts rope_theta = 10000.0",
        ),
        (
            {"rope_theta": 2e4},
            r"rope_parameters.full_attention.rope_theta = 5000000.0 contradicts rope_theta = 20000.0",
        ),
        ({"swa_rope_theta": 5e6, "rope_theta": 1e4}, "contradicts swa_rope_theta = 5000000.0"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5 contradicts rope_parameters"),
        ({"hybrid_layer_pattern": [0, 0, 1]}, "hybrid_layer_pattern contradicts layer_types"),
        ({"swa_head_dim": 128}, "swa_head_dim must be 192"),
    ],
)
def test_mimo_with_older_keys_that_contradict_the_settings(change, match):
    refused(SAVED | change, match)
    kind = SLIDING if "swa_rope_theta" in change else FULL
    own = {k: x for k, x in SAVED["rope_parameters"][kind].items() if k != "rope_theta"}
    missing = f"rope_parameters.{kind}.rope_theta is missing"
    refused(SAVED | {"rope_parameters": {**SAVED["rope_parameters"], kind: own}}, missing)


# Settings beside the language model

PERSIMMON = SIZES | {"model_type": "persimmon"}
SETTINGS = {"rope_type": "linear", "factor": 2.0, "rope_theta": 25_000.0, "partial_rotary_factor": 0.5}
INNER = {
    "rope_parameters": {"rope_parameters": SETTINGS | {"type": "linear"}},
    "rope_scaling": {
        "rope_scaling": {"type": "linear", "factor": 2.0},
        "rope_theta": 25_000.0,
        "partial_rotary_factor": 0.5,
    },
}
BESIDE = {
    "rope_theta": (25_000, 10_000.0),
    "partial_rotary_factor": (0.5, 0.25),
    "rope_scaling": ({"type": "linear", "factor": 2}, {"type": "linear", "factor": 4.0}),
    "rope_parameters": (SETTINGS, SETTINGS | {"rope_theta": 1e6}),
}


@pytest.mark.parametrize("spelling", INNER)
@pytest.mark.parametrize("part", PARTS)
def test_settings_beside_the_language_model(part, spelling):
    """As transformers saves Fuyu again."""
    outer, inner = "vibevoice" if part == "decoder_config" else "fuyu", PERSIMMON | INNER[spelling]
    plan, whole = read(inner), {"model_type": outer, part: inner}
    assert plan.layers[0].rotary_dim == 32 and plan.layers[0].frequencies == linear_scaling(
        geometric(32, 25_000.0), 2.0
    )
    for key, (same, other) in BESIDE.items():
        said = same
        if key == "rope_parameters" and spelling == "rope_scaling":
            said = {("type" if k == "rope_type" else k): x for k, x in same.items()}
        assert read(whole | {key: said}) == plan, key
        assert read(whole | {key: None}) == plan
        refused(whole | {key: other}, rf"^rotary_from_config: {key}.* contradicts {part}\.")
        bare = {"model_type": outer, part: PERSIMMON | {"rope_theta": 3e4} if key != "rope_theta" else PERSIMMON}
        match = f"stands beside {part}, where nothing reads it|contradicts {part}.rope_theta = 30000"
        refused(bare | {key: other if key == "partial_rotary_factor" else said}, match)


def test_settings_beside_the_language_model_in_other_words():
    """A missing type is the default; types have other names; a null says nothing; each setting must stand inside."""
    bare = PERSIMMON | {"rope_theta": 25_000.0}
    for settings in (
        {"rope_type": "default"},
        {"type": "default", "factor": None},
        {"rope_type": "default", "rope_theta": 25e3},
    ):
        for key in ("rope_scaling", "rope_parameters"):
            assert read({"model_type": "fuyu", "text_config": bare, key: settings}) == read(bare)
    inner = bare | {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 16, "long_factor": [2.0] * 16}}
    inner |= {"original_max_position_embeddings": 2048}
    whole = {"model_type": "fuyu", "text_config": inner}
    assert read(whole | {"rope_scaling": inner["rope_scaling"] | {"type": "su"}}) == read(inner)
    refused(
        whole | {"rope_scaling": inner["rope_scaling"] | {"type": "default"}},
        "type = 'default' contradicts text_config",
    )
    for settings in (
        {"rope_type": "linear"},
        {"rope_theta": 25e3, "rope_type": "linear", "factor": 2.0},
        {"factor": 2.0},
    ):
        refused({"model_type": "fuyu", "text_config": bare, "rope_parameters": settings}, "stands beside text_config")
    sections = {"type": "mrope", "mrope_section": [16, 24, 24]}
    text = SIZES | {"hidden_size": 512, "model_type": "qwen2_5_vl_text", "rope_theta": 1e6}
    text |= {"rope_scaling": sections | {"type": "default"}}
    assert read({"model_type": "qwen2_5_vl", "text_config": text, "rope_scaling": sections}) == read(text)


LINEAR = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
BY_TYPE = {
    "gemma3": {FULL: LINEAR, SLIDING: {"rope_type": "default", "rope_theta": 1e4}},
    "gemma4": {FULL: PROPORTIONAL, SLIDING: {"rope_type": "default", "rope_theta": 1e4}},
}
WAYS = {
    "the same": dict,
    "in another order": lambda d: dict(reversed(list(d.items()))),
    "in integers": lambda d: {k: int(x) if x in (8.0, 1e4, 1e6) else x for k, x in d.items()},
    "in the older word": lambda d: {"type" if k == "rope_type" else k: x for k, x in d.items()},
    "without the default": lambda d: {k: x for k, x in d.items() if x != "default"},
    "with the default": lambda d: {"partial_rotary_factor": 1.0} | d,
    "with a null": lambda d: d | {"original_max_position_embeddings": None},
}


def of_types(name, settings):
    text = SIZES | {"model_type": f"{name}_text", "head_dim": 256, "num_hidden_layers": 6}
    return text | {"layer_types": [SLIDING] * 5 + [FULL], "rope_parameters": settings}


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("name", BY_TYPE)
def test_settings_for_layer_types_beside_those_that_mean_the_same(name, key):
    """On either side, in every way to say the same; one layer type's may be missing outside."""
    settings = BY_TYPE[name]
    plan = read(of_types(name, settings))
    for way, said in itertools.product(WAYS.values(), (settings, {FULL: settings[FULL]})):
        written = {kind: way(d) for kind, d in said.items()}
        assert read({"model_type": name, "text_config": of_types(name, settings), key: written}) == plan
        inner = of_types(name, settings | written)
        assert read({"model_type": name, "text_config": inner, key: settings}) == plan
    whole, sliding = {"model_type": name, "text_config": of_types(name, settings)}, settings[SLIDING]
    own = rf"text_config.rope_parameters.{SLIDING}"
    for wrong, match in (
        ({SLIDING: sliding | {"rope_theta": 2e4}}, rf"{SLIDING}.rope_theta = 20000.0 contradicts {own}.rope_theta = 1"),
        ({SLIDING: sliding | {"rope_type": "yarn"}}, rf"{SLIDING}.rope_type = 'yarn' contradicts {own}.rope_type = 'd"),
        ({SLIDING: sliding | {"factor": 2.0}}, rf"the key {key}.{SLIDING}.factor = 2.0 stands beside text_config"),
        ({SLIDING: sliding | {"partial_rotary_factor": 0.5}}, rf"{SLIDING}.partial_rotary_factor = 0.5 stands beside"),
        ({"main": sliding}, f"the key {key}.main.rope_type = 'default' stands beside text_config"),
        ({SLIDING: None}, f"the key {key} = .* stands beside text_config"),
        ({"rope_theta": 1e6}, rf"rope_theta = 1000000.0 contradicts {own}.rope_theta = 10000.0"),
    ):
        refused(whole | {key: settings | wrong}, match)


def test_settings_for_layer_types_beside_one_set():
    """Which is for all layers, or an old one of Gemma 3, for its full layers alone."""
    llama = SIZES | {"model_type": "llama", "rope_theta": 5e5}
    whole = {"model_type": "llava", "text_config": llama}
    assert read(whole | {"rope_parameters": {FULL: {"rope_theta": 500_000}}}) == read(llama)
    for kind, theta, match in ((FULL, 1e4, "contradicts text_config.rope_theta"), ("main", 5e5, "stands beside")):
        refused(whole | {"rope_parameters": {kind: {"rope_theta": theta}}}, match)
    old = {key: x for key, x in of_types("gemma3", {}).items() if key != "rope_parameters"}
    old |= {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    whole = {"model_type": "gemma3", "text_config": old}
    assert read(whole | {"rope_parameters": BY_TYPE["gemma3"]}) == read(old)
    for wrong in (LINEAR | {"rope_theta": 1e4}, {"rope_theta": 1e6}):
        refused(
            whole | {"rope_parameters": {SLIDING: wrong}}, f"{SLIDING}.* stands beside|contradicts text_config.rope_l"
        )


def test_what_a_missing_setting_means_beside_the_language_model():
    """The class's base and share, unless releases differ, or the composite has another, or other words may say it."""
    bare = SIZES | {"model_type": "llama"}
    for key, value in (("rope_theta", 10_000), ("partial_rotary_factor", 1.0)):
        assert read({"model_type": "llava", "text_config": bare, key: value}) == read(bare)
    for text, key, value in (
        (PERSIMMON, "rope_theta", 10_000.0),
        (SIZES | {"model_type": "openelm", "rope_freq_constant": 5e5}, "rope_theta", 10_000.0),
        (SIZES | {"model_type": "gpt_neox", "rotary_pct": 0.5}, "partial_rotary_factor", 0.25),
        (SIZES | {"model_type": "gptj"}, "partial_rotary_factor", 1.0),
    ):
        refused(
            {"model_type": "llava", "text_config": text, key: value}, f"the key {key} = .* stands beside text_config"
        )
    refused(
        {"model_type": "voxtral", "text_config": bare, "rope_theta": 1e4}, "contradicts text_config.rope_theta = 1000"
    )


def test_settings_beside_those_of_layer_types():
    inner = {
        key: value for key, value in SAVED.items() if key in ("num_hidden_layers", "layer_types", "rope_parameters")
    }
    inner |= {"model_type": "mimo_v2_flash"}
    whole = {"model_type": "llava", "text_config": inner}
    assert read(whole | {"partial_rotary_factor": 0.334}) == read(inner)
    for key, value, own in (("rope_theta", 5e6, 10_000.0), ("rope_theta", 1e4, 5_000_000.0)):
        refused(whole | {key: value}, f"rope_theta = .* contradicts text_config.rope_parameters.*rope_theta = {own}")


# Flags that repeat what the code does

TEXT = SIZES | {"model_type": "llama"}


@pytest.mark.parametrize("flag", [*REDUNDANT_FLAGS, "rope_traditional"])
def test_redundant_flags_beside_the_language_model(flag):
    usual = REDUNDANT_FLAGS.get(flag, False)
    for outer, text in (("llava", TEXT), ("kimi_k25", DEEPSEEK_V3)):
        right = text is not TEXT if flag == "rope_traditional" else usual
        whole, plan = {"model_type": outer, "text_config": text}, read(text)
        assert read(whole | {flag: right}) == read(whole | {flag: None}) == plan
        refused(
            whole | {flag: not right},
            f"{flag} is {not right}|{flag} = {not right} contradicts|the layout of .* contradicts",
        )
        inside = {"model_type": outer, "text_config": text | {flag: right}}
        assert read(inside | {flag: right}) == plan
        refused(inside | {flag: not right}, f"{flag} = {not right} contradicts text_config.{flag} = {right}")
        with pytest.raises(TypeError, match=f"{flag} must be true or false"):
            read(whole | {flag: "yes"})


OTHERS = "alibi absolute relative relative_key learned sinusoidal xpos nope none t5 bloom rope_2d sans_pos".split()


@pytest.mark.parametrize("name", sorted(configs.RECORDED))
def test_the_name_of_the_positions_in_every_type(name):
    """Where the code does not read it, it may say that layers rotate, if they do."""
    config, key = configs.RECORDED[name]["config"], "position_embedding_type"
    plan, model = read(config), MODELS[name]
    if key in model.reads:
        for word in ("alibi", "absolute"):
            refused(config | {key: word}, key)
        return
    rotates = any(layer.rotary_dim for layer in plan.layers)
    for word in ("rope", "rotary", "RoPE", None) if rotates else ("nope", None):
        assert read(config | {key: word}) == plan, word
    for word in OTHERS if rotates else ("rope", "rotary", *sorted({*OTHERS} - {"nope"})):
        if word in ("absolute", "sans_pos") and name in ("modernbert", "modernbert-decoder"):  # as they were published
            assert read(config | {key: word}) == plan
        else:
            refused(config | {key: word}, f"{key} = '{word}' is not read by the code|{key} must be 'rope'")
    if rotates:
        refused(config | {key: "rope_gptj"}, key) if model.layout != "interleaved" else read(
            config | {key: "rope_gptj"}
        )


def test_the_name_of_the_positions_beside_the_language_model():
    key = "position_embedding_type"
    whole = {"model_type": "llava", "text_config": TEXT}
    for word in ("rope", "rotary", None):
        assert read(whole | {key: word}) == read(TEXT)
    for word in OTHERS:
        refused(whole | {key: word}, f"{key} = '{word}' is not read by the code of model_type 'llama'")
    inner = {"model_type": "llava", "text_config": TEXT | {key: "rope"}}
    refused(inner | {key: "rotary"}, f"{key} = 'rotary' contradicts text_config.{key} = 'rope'")
    granite = SIZES | {"model_type": "granitemoehybrid", "layer_types": [FULL] * 3}  # reads it: null is none
    refused({"model_type": "llava", "text_config": granite, key: "rope"}, f"{key} = 'rope' stands beside text_config")
    assert read({"model_type": "llava", "text_config": granite | {key: "rope"}, key: "rope"}).layers[0].rotary_dim
    assert read(MODERNBERT).layers[0].rotary_dim == 64
    unnamed = {"text_config": SIZES | {"rope_parameters": {"rope_theta": 1e4}, "rope_interleave": False}}
    assert read(unnamed).layers[0].rotary_dim
    for whole in ({"model_type": "llava", "text_config": SIZES | {"model_type": "esm"}}, unnamed):
        for word in ("rotary", "nope"):  # ESM reads the word, and so does a config without a type
            refused(whole | {key: word}, f"{key} = '{word}' stands beside text_config")


def test_the_name_of_the_positions_of_olmo_hybrid():
    key, config = "position_embedding_type", configs.RECORDED["olmo_hybrid"]["config"]
    still = config | {"rope_parameters": {"rope_theta": None, "rope_type": "default"}}
    assert read(still | {key: "nope"}) == read(still) != read(config) == read(config | {key: "rope"})
    for file, word, has in ((still, "rope", "no positions"), (config, "nope", "a rotary embedding")):
        refused(file | {key: word}, f"{key} = '{word}' is not read by the code of .*, whose layers have {has}")


# Keys that transformers writes


@pytest.mark.parametrize(("name", "base"), [("cohere2_moe", 10_000.0), ("bailing_hybrid", 6e6)])
def test_the_base_of_the_class_beside_that_of_the_settings(name, base):
    """As transformers saves it: it reads that of the settings."""
    config = {key: x for key, x in configs.RECORDED[name]["config"].items() if key != "rope_parameters"}
    given = config | {"rope_parameters": {"rope_type": "default", "rope_theta": 123_456.0}}
    assert read(given | {"rope_theta": base}) == read(given) != read(config) == read(config | {"rope_theta": base})
    refused(given | {"rope_theta": 2 * base}, "rope_parameters.rope_theta = 123456.0 contradicts rope_theta = ")
    yarn = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024}
    assert read(config | {"rope_parameters": yarn, "rope_theta": base})


# Keys of published files that no code of transformers reads


@pytest.mark.parametrize(
    ("name", "key", "usual", "unread"),
    [
        ("lfm2", "rope_theta", 1e6, "theta"),
        ("lfm2_moe", "rope_theta", 1e6, "theta"),
        ("nemotron", "partial_rotary_factor", 0.5, "rope_percent"),
        ("nemotron", "partial_rotary_factor", 0.5, "rope_percentage"),
    ],
)
def test_keys_that_repeat_what_is_read(name, key, usual, unread):
    config = SIZES | {"model_type": name, "layer_types": [FULL] * 3}
    other = {"rope_theta": 5e5, "partial_rotary_factor": 0.25}[key]
    for value, said in ((usual, {}), (usual, {key: usual}), (other, {key: other})):
        assert read(config | said | {unread: value}) == read(config | said) == read(config | {key: value})
        wrong = other if value == usual else usual
        refused(config | said | {unread: wrong}, f"{key}.* = {value}.* contradicts {unread} = {wrong}")
    settings = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5, key: other}
    assert read(config | {"rope_parameters": settings, unread: other}) == read(config | {"rope_parameters": settings})
    refused(config | {"rope_parameters": settings, unread: usual}, f"rope_parameters.{key} = .* contradicts {unread} =")


@pytest.mark.parametrize(
    ("name", "one", "two", "value"),
    [
        ("glm4_moe_lite", "head_dim", "qk_rope_head_dim", 64),
        ("voxtral_realtime_encoder", "encoder_layers", "num_hidden_layers", 3),
        ("voxtral_realtime_encoder", "encoder_attention_heads", "num_attention_heads", 4),
    ],
)
def test_two_names_of_a_key(name, one, two, value):
    config = SIZES | {"model_type": name} | ({"qk_nope_head_dim": 64} if name == "glm4_moe_lite" else {})
    rest = {key: x for key, x in config.items() if key not in (one, two)}
    plan = read(rest | {two: value})
    assert read(rest | {one: value}) == read(rest | {one: value, two: value}) == plan
    for null, other in ((one, two), (two, one)):
        refused(rest | {other: value, null: None}, f"{null} must have a value or be left out for {value}, got null")
    refused(rest | {one: value, two: value // 2}, f"{one} = {value} contradicts {two} = {value // 2}")
    if two != "num_attention_heads":  # the class has a head_dim
        refused(rest, f"{two}.* is missing")


@pytest.mark.parametrize("name", ["lfm2", "lfm2_moe"])
def test_a_flag_of_lfm2(name):
    config = SIZES | {"model_type": name, "layer_types": [FULL] * 3}
    assert read(config | {"use_pos_enc": True}) == read(config)
    refused(config | {"use_pos_enc": False}, "use_pos_enc must be True in model_type 'lfm2")


@pytest.mark.parametrize("name", ["hunyuan_v1_dense", "hunyuan_v1_moe"])
def test_a_flag_of_hunyuan(name):
    config = SIZES | {"model_type": name}
    assert read(config | {"position_embedding_xdrope": False}) == read(config)
    refused(config | {"position_embedding_xdrope": True}, "position_embedding_xdrope must be False")


# Defaults that a composite's class has for its language model


@pytest.mark.parametrize(("outer", "inner", "base"), [("voxtral", "llama", 1e8), ("voxtral_realtime", None, 1e6)])
def test_defaults_of_a_composite(outer, inner, base):
    text = {"model_type": inner or "voxtral_realtime_text", "hidden_size": 3072, "num_attention_heads": 32}
    text |= {"num_hidden_layers": 2, "max_position_embeddings": 4096}

    def plan(**keys):
        return read({"model_type": outer, "text_config": text | keys})

    def alone(**keys):
        return read(text | keys)

    assert plan() == plan(rope_theta=base, head_dim=128) == alone(rope_theta=base, head_dim=128)
    assert bases(plan()) == [base] * 2 and plan().layers[0].head_dim == 128
    assert plan(rope_theta=1e5) == alone(rope_theta=1e5, head_dim=128)
    assert plan(head_dim=64) == alone(rope_theta=base, head_dim=64)
    assert plan(head_dim=None) == alone(rope_theta=base) and alone(rope_theta=base).layers[0].head_dim == 96
    for settings in ({"rope_type": "default"}, {"rope_type": "default", "rope_theta": 1e5}):
        own = settings | {"rope_theta": settings.get("rope_theta", base)}
        for key in ("rope_parameters", "rope_scaling"):
            assert plan(**{key: settings}) == alone(rope_parameters=own, head_dim=128)
    null = f"text_config.rope_theta must have a value or be left out for {base}, got null"
    refused({"model_type": outer, "text_config": text | {"rope_theta": None}}, null)
    if inner:  # whatever type it has
        assert read({"model_type": outer, "text_config": text | {"model_type": "mistral"}}) == read(
            text | {"model_type": "mistral", "rope_theta": base, "head_dim": 128}
        )
