"""Settings that replace those of a file, as recipes of serving engines have them: what they lose is an error."""

import pytest

from helpers.plans import bases
from oracles import configs
from posenc_jax.hf import rotary_from_config
from posenc_jax.hf._models import MODELS

LENGTH = {"original_max_position_embeddings": 1024}
SCALINGS = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 2.0} | LENGTH,
    "longrope": {"factor": 2.0, "short_factor": [1.0] * 64, "long_factor": [2.0] * 64} | LENGTH,
    "llama3": {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0} | LENGTH,
    "proportional": {"factor": 2.0},
}
SIZES = {"head_dim": 128, "num_hidden_layers": 2, "max_position_embeddings": 4096}
FULL = ["full_attention"] * 2
BASES = "rope_theta", "rotary_emb_base"


def read(config):
    return rotary_from_config(config, length=100)


def outcome(config):
    try:
        return read(config)
    except ValueError as error:
        return str(error)


def with_settings(name, settings):
    """The plan of a model type with these settings instead of its own, or the message of the error."""
    config = {k: x for k, x in configs.RECORDED[name]["config"].items() if k not in BASES}
    if MODELS[name].nested or MODELS[name].thetas:
        types = config.get("layer_types") or ["full_attention", "sliding_attention"]
        settings = {kind: settings for kind in types if kind not in ("linear_attention", "mlp")}
    return outcome(config | {"rope_parameters": settings})


@pytest.mark.parametrize("kind", SCALINGS)
def test_a_scaling_without_the_base_of_the_file(kind):
    """Of every model type that reads the scaling with a base."""
    settings, reading = {"rope_type": kind} | SCALINGS[kind], 0
    for name in configs.RECORDED:
        if not isinstance(with_settings(name, settings | {"rope_theta": 1e5}), str):
            lost = with_settings(name, settings)
            assert isinstance(lost, str) and f"rope_theta is missing beside rope_type = '{kind}'" in lost, name
            reading += 1
    assert reading > (20 if kind == "longrope" else 120)  # few heads have 64 pairs


@pytest.mark.parametrize("kind", SCALINGS)
def test_a_base_beside_the_settings_or_in_the_old_spelling_is_enough(kind):
    llama, settings = SIZES | {"model_type": "llama"}, {"rope_type": kind} | SCALINGS[kind]
    plan = read(llama | {"rope_parameters": settings | {"rope_theta": 1e6}})
    assert read(llama | {"rope_theta": 1e6, "rope_parameters": settings}) == plan
    assert read(llama | {"rope_theta": 1e6, "rope_scaling": settings}) == plan
    old = read(llama | {"rope_scaling": settings})  # of the time before rope_theta
    assert old == read(llama | {"rope_scaling": settings, "rope_theta": 1e4}) != plan
    both = llama | {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}, "rope_scaling": settings}
    with pytest.raises(
        ValueError, match="contradicts rope_parameters = .*: write all settings into one of them, the base"
    ):
        read(both)


@pytest.mark.parametrize("kind", [kind for kind, settings in SCALINGS.items() if LENGTH.keys() <= settings.keys()])
@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters", "full_attention"])
def test_a_scaling_without_the_length_before_it(kind, place):
    """max_position_embeddings may be the length after it."""
    settings = {"rope_type": kind, "rope_theta": 1e6} | SCALINGS[kind]
    lost = {k: x for k, x in settings.items() if k not in LENGTH}
    config = SIZES | {"model_type": "laguna", "layer_types": ["full_attention"] * 2}

    def placed(d):
        return config | (
            {"rope_parameters": {place: d}} if place in config["layer_types"] else {"model_type": "llama", place: d}
        )

    assert bases(read(placed(settings)))
    match = f"{place}.original_max_position_embeddings is missing: write the length .* max_position_embeddings = 4096"
    for d in (lost, lost | {"original_max_position_embeddings": None}):
        with pytest.raises(ValueError, match=match if d is lost else "original_max_position_embeddings"):
            read(placed(d))
    if place != "full_attention":
        assert read(placed(lost) | LENGTH) == read(placed(settings))


@pytest.mark.parametrize("kind", [kind for kind, settings in SCALINGS.items() if LENGTH.keys() <= settings.keys()])
def test_two_lengths(kind):
    """Releases and types differ in which one transformers takes; beside settings of layer types, it reads no outer one."""
    settings, more = {"rope_type": kind, "rope_theta": 1e6} | SCALINGS[kind], {"original_max_position_embeddings": 2048}
    llama = SIZES | {"model_type": "llama"}
    for place in ("rope_parameters", "rope_scaling"):
        inner = llama | {place: settings, "rope_theta": 1e6}
        assert read(inner | LENGTH) == read(inner)
        with pytest.raises(ValueError, match="original_max_position_embeddings = 1024 contradicts original_max_pos"):
            read(inner | more)
    old = SIZES | {"rope_theta": 1e6, "layer_types": ["full_attention"] * 2}
    scaling = {k: x for k, x in settings.items() if k != "rope_theta"}
    nested = {
        name: SIZES | {"model_type": name, "rope_parameters": {"full_attention": settings}, "layer_types": FULL}
        for name in ("laguna", "gemma3_text", "olmo3", "mellum")
    }
    for config in (
        *nested.values(),
        *(old | {"model_type": x, "rope_scaling": scaling} for x in ("gemma3_text", "olmo3")),
    ):
        assert read(config | LENGTH) == read(config)
        match = r"\w+.original_max_position_embeddings = 1024 contradicts original_max_position_embeddings = 2048"
        with pytest.raises(ValueError, match=match):
            read(config | more)
    lost = {k: x for k, x in scaling.items() if k not in LENGTH}  # transformers takes the maximum
    with pytest.raises(ValueError, match="rope_scaling.original_max_position_embeddings is missing"):
        read(old | {"model_type": "gemma3_text", "rope_scaling": lost} | more)


def test_a_length_beside_the_language_model():
    """It may repeat the one inside, and stand where no spectrum is scaled."""
    llama = SIZES | {"model_type": "llama", "rope_theta": 1e6}
    scaled = llama | {"rope_scaling": {"rope_type": "yarn"} | SCALINGS["yarn"]}
    lost = {key: value for key, value in scaled["rope_scaling"].items() if key not in LENGTH}
    for text, length in ((scaled, LENGTH), (llama, LENGTH)):
        assert read({"model_type": "llava", "text_config": text} | length) == read(text)
    inside = r"= 2048 contradicts text_config.rope_scaling.original_max_position_embeddings = 1024"
    for text, match in ((scaled, inside), (llama | {"rope_scaling": lost}, "stands beside text_config, where nothing")):
        with pytest.raises(ValueError, match=match):
            read({"model_type": "llava", "text_config": text, "original_max_position_embeddings": 2048})
    with pytest.raises(ValueError, match=r"rope_scaling.original_max_position_embeddings is missing") as error:
        read(llama | {"rope_scaling": lost})
    assert "meant" not in str(error.value)


def test_words_that_hold_others():
    llama = SIZES | {"model_type": "llama", "rope_theta": 1e6}
    assert read(llama | {"is_composition": True, "properties": 3}) == read(llama)
    with pytest.raises(ValueError, match="the key my_position = 3 is not known"):
        read(llama | {"my_position": 3})


def test_layers_of_which_some_are_scaled():
    molmo = SIZES | {"model_type": "molmo2_text", "rope_scaling_layers": [0]}
    settings = {"rope_type": "linear", "factor": 2.0}
    assert bases(read(molmo | {"rope_parameters": settings | {"rope_theta": 1e6}}))[1] == 1e6
    with pytest.raises(ValueError, match="rope_parameters.rope_theta is missing beside rope_scaling_layers"):
        read(molmo | {"rope_parameters": settings})
    yarn = {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6} | SCALINGS["yarn"]}
    assert read(molmo | yarn | LENGTH) == read(molmo | yarn)
    with pytest.raises(ValueError, match="original_max_position_embeddings = 1024 contradicts original_max_pos"):
        read(molmo | yarn | {"original_max_position_embeddings": 2048})


def test_a_base_for_each_spectrum():
    v4 = SIZES | {
        "model_type": "deepseek_v4",
        "qk_rope_head_dim": 64,
        "rope_parameters": {"rope_type": "yarn"} | SCALINGS["yarn"],
    }
    with pytest.raises(ValueError, match="rope_parameters.rope_theta is missing beside rope_type = 'yarn'"):
        read(v4)
    for base in ({"compress_rope_theta": 4e4}, {"rope_theta": 1e4}):
        assert read(v4 | base)


def test_a_class_with_a_length_of_its_own():
    lists = {"short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    phi = {"model_type": "phi3", "head_dim": 96, "num_hidden_layers": 2, "max_position_embeddings": 131072}
    phi |= {"rope_theta": 1e4, "rope_scaling": {"type": "longrope", **lists}}
    assert read(phi) == read(phi | {"original_max_position_embeddings": 4096})
