"""Defaults that releases of transformers changed: the file's own release decides, and none is guessed."""

import pytest

from helpers.plans import bases
from posenc_jax.hf import rotary_from_config
from posenc_jax.hf._models import MODELS

CHANGED = {name: model.changed_default for name, model in MODELS.items() if model.changed_default}
# The defaults that moved, as read in classes of transformers 4.57.6, 5.0.0, 5.12.1, 5.13.0, 5.23.0 and 5.24.0; that of
# exaone before 5.24 is in the code that it was published with.
MOVED = {
    "cohere": ("5.0", "rope_theta", 1e4, 5e5),
    "exaone": ("5.24", "rope_theta", 1e4, 5e5),
    "falcon_h1": ("5.0", "rope_theta", 1e5, 1e4),
    "kyutai_speech_to_text": ("5.0", "rope_theta", 1e5, 1e4),
    "modernbert-decoder": ("5.0", "local_rope_theta", 160_000.0, 1e4),
    "olmo3": ("5.13", "rope_theta", 1e4, 5e5),
    "persimmon": ("5.0", "rope_theta", 25_000.0, 1e4),
    "qwen3_vl_moe_text": ("5.0", "rope_theta", 5e6, 5e5),
    "qwen3_vl_text": ("5.0", "rope_theta", 5e6, 5e5),
}
SIZES = {"head_dim": 128, "num_hidden_layers": 6, "max_position_embeddings": 4096}


def numbers(release):
    return tuple(map(int, release.split(".")))[:2]


def base_of(name, **keys):
    """The base that CHANGED is about."""
    found = bases(rotary_from_config(SIZES | {"model_type": name} | keys))
    return found[1] if CHANGED[name].key == "local_rope_theta" else found[0]


def test_the_defaults_that_moved():
    assert CHANGED.keys() == MOVED.keys()
    for name, (since, key, before, after) in MOVED.items():
        assert CHANGED[name] == (since, before, key)
        assert base_of(name, transformers_version=f"{since}.0") == after


@pytest.mark.parametrize("name", CHANGED)
def test_the_release_of_the_file_decides(name):
    key, (major, minor) = CHANGED[name].key, numbers(CHANGED[name].since)
    after = base_of(name, transformers_version=f"{major}.{minor}.0")
    assert after != CHANGED[name].before
    before = f"{major}.{minor - 1}.9" if minor else f"{major - 1}.57.6"
    old, new = ("4.0.0", before, "4.1.0.dev0", "v4.2.0"), ("9.1", "9.1.0.dev0", f" {major}.{minor}.0")
    for release, base in [(release, CHANGED[name].before) for release in old] + [(release, after) for release in new]:
        assert base_of(name, transformers_version=release) == base
        outer = {"model_type": "a_composite", "transformers_version": release}
        plan = rotary_from_config(outer | {"text_config": SIZES | {"model_type": name}})
        assert plan == rotary_from_config(SIZES | {"model_type": name, "transformers_version": release})
        inner = SIZES | {"model_type": name, "transformers_version": release}
        assert rotary_from_config(outer | {"transformers_version": "4.1.0", "text_config": inner}) == plan
    for unsaid in (
        {},
        {"transformers_version": None},
        {"transformers_version": "main"},
        {"transformers_version": f"{major}.{minor}.0.dev0"},
    ):
        with pytest.raises(ValueError, match="is missing; its default is") as error:
            base_of(name, **unsaid)
        words = key, str(after), str(CHANGED[name].before), CHANGED[name].since, f"write {key}", "transformers_version"
        assert all(word in str(error.value) for word in words)
    with pytest.raises(TypeError, match="transformers_version must be a string, got float 5.0"):
        base_of(name, transformers_version=5.0)


@pytest.mark.parametrize("name", CHANGED)
def test_a_base_that_is_written_needs_no_release(name):
    full = {"layer_types": ["full_attention"] * SIZES["num_hidden_layers"]}  # sliding layers forget it
    config = SIZES | {"model_type": name, CHANGED[name].key: 123.0} | (full if name == "olmo3" else {})
    plan = rotary_from_config(config)
    for release in ("4.0.0", "9.0.0", "main"):
        assert rotary_from_config(config | {"transformers_version": release}) == plan
    assert 123.0 in bases(plan)


def test_other_types_need_no_release():
    plan = rotary_from_config(SIZES | {"model_type": "llama"})
    for release in ("4.0.0", "9.0.0", "main", None):
        assert rotary_from_config(SIZES | {"model_type": "llama", "transformers_version": release}) == plan


def test_a_config_without_a_type_has_no_default_that_a_release_could_move():
    inner = {"head_dim": 64, "num_hidden_layers": 2, "rope_interleave": False, "rope_theta": 1e5}
    plan = rotary_from_config({"transformers_version": "5.24.0", "text_config": inner})
    assert plan == rotary_from_config(inner)


@pytest.mark.parametrize(
    ("name", "key", "default", "types"),
    [("nomic_bert", "rotary_emb_base", 1_000.0, []), ("olmo3", "rope_theta", 500_000.0, ["sliding_attention"])],
)
def test_a_base_that_transformers_5_forgets(name, key, default, types):
    """Of all layers, or of sliding ones: it is read where the file is older, or has the class's value."""
    config = {"model_type": name, "hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 4, key: 12_345.0}
    for version in ("4.34.0", "4.57.0.dev0"):
        plan = rotary_from_config(config | {"transformers_version": version})
        assert {dict(layer.settings)["rope_theta"] for layer in plan.layers} == {12_345.0}
    for version in (None, "5.0.0", "5.24.0"):
        said = {} if version is None else {"transformers_version": version}
        match = f"{key} = 12345.0 is the base of all layers in code before .* have {default}: .* got {version!r}"
        with pytest.raises(ValueError, match=match):
            rotary_from_config(config | said)
        assert rotary_from_config(config | said | {key: default}).layers
    if types:
        full = config | {"layer_types": ["full_attention"] * 4}
        assert rotary_from_config(full).layers
