"""Defaults that releases of transformers moved: the file's own release decides, and none is guessed."""

import itertools

import pytest

from helpers.defaults import moved, of_releases
from helpers.plans import bases
from oracles import recorded
from posenc_jax.hf import rotary_from_config
from posenc_jax.hf._layers import _LEGACY
from posenc_jax.hf._models import MODELS

RELEASES = of_releases(recorded.read("hf_defaults"))
MOVED = {name: model.moved for name, model in MODELS.items() if model.moved}
SIZES = {"head_dim": 128, "num_hidden_layers": 6, "max_position_embeddings": 4096}
PUBLISHED = {"exaone": 1e4}  # what the code that a model was published with has, where no release has that


def numbers(release):
    return tuple(map(int, release.split(".")))[:2]


def base_of(name, **keys):
    """The base that MOVED is about."""
    found = bases(rotary_from_config(SIZES | {"model_type": name} | keys))
    return found[1] if MOVED[name].key == "local_rope_theta" else found[0]


def same(value):
    """A list of layer types by their names today."""
    return [_LEGACY.get(item, item) for item in value] if isinstance(value, list) else value


def test_all_that_moved_is_in_the_table():
    """Between any two releases that are recorded, no default of a type that is read moved, but for these bases."""
    found = {}
    for before, after in itertools.pairwise(RELEASES):
        for name, key, old, new in moved(RELEASES[before], RELEASES[after]):
            if name in MODELS and same(old) != same(new):
                assert name not in found
                found[name] = (key, old, new, numbers(before), numbers(after))
    assert found.keys() == MOVED.keys() - PUBLISHED.keys()
    for name, (key, old, new, before, after) in found.items():
        since = numbers(MOVED[name].since)
        assert (MOVED[name].key, MOVED[name].before) == (key, old) and before < since <= after
        assert base_of(name, transformers_version=".".join(map(str, after))) == new


def test_what_was_published_before_a_release_had_it():
    for name, before in PUBLISHED.items():
        with_it = [release for release, types in RELEASES.items() if name in types]
        assert MOVED[name].before == before and numbers(MOVED[name].since) == numbers(with_it[0])
        assert (
            base_of(name, transformers_version=with_it[0])
            == RELEASES[with_it[0]][name]["rope_parameters"]["rope_theta"]
        )


@pytest.mark.parametrize("name", MOVED)
def test_the_release_of_the_file_decides(name):
    key, (major, minor) = MOVED[name].key, numbers(MOVED[name].since)
    after = base_of(name, transformers_version=f"{major}.{minor}.0")
    assert after != MOVED[name].before
    before = f"{major}.{minor - 1}.9" if minor else f"{major - 1}.57.6"
    old, new = ("4.0.0", before, "4.1.0.dev0", "v4.2.0"), ("9.1", "9.1.0.dev0", f" {major}.{minor}.0")
    for release, base in [(release, MOVED[name].before) for release in old] + [(release, after) for release in new]:
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
        words = key, str(after), str(MOVED[name].before), MOVED[name].since, f"write {key}", "transformers_version"
        assert all(word in str(error.value) for word in words)
    with pytest.raises(TypeError, match="transformers_version must be a string, got float 5.0"):
        base_of(name, transformers_version=5.0)


@pytest.mark.parametrize("name", MOVED)
def test_a_base_that_is_written_needs_no_release(name):
    plan = rotary_from_config(SIZES | {"model_type": name, MOVED[name].key: 123.0})
    for release in ("4.0.0", "9.0.0", "main"):
        config = SIZES | {"model_type": name, MOVED[name].key: 123.0, "transformers_version": release}
        assert rotary_from_config(config) == plan
    assert 123.0 in bases(plan)


def test_other_types_need_no_release():
    plan = rotary_from_config(SIZES | {"model_type": "llama"})
    for release in ("4.0.0", "9.0.0", "main", None):
        assert rotary_from_config(SIZES | {"model_type": "llama", "transformers_version": release}) == plan


def test_a_config_without_a_type_has_no_default_that_a_release_could_move():
    inner = {"head_dim": 64, "num_hidden_layers": 2, "rope_interleave": False, "rope_theta": 1e5}
    plan = rotary_from_config({"transformers_version": "5.24.0", "text_config": inner})
    assert plan == rotary_from_config(inner)
