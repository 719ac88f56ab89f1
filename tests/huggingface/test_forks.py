"""Types that are not known, and have a name like a known one: the error says what to compare, and invites to nothing."""

import re

import pytest

from helpers.tiers import thorough
from posenc_jax.hf import rotary_from_config, vision_rotary_from_config
from posenc_jax.hf._models import MODELS, canonical_type
from posenc_jax.hf._refused import REFUSED
from posenc_jax.hf._towers import TOWERS

WORDS = {"half": "pairs features i and i + r/2", "interleaved": "pairs features 2i and 2i + 1"}
CHECKED = (
    "which features make a pair, how many rotate, the base, which layers have positions, what scales queries and scores"
)


def message(name):
    with pytest.raises(ValueError, match="is not known, and its code may do what no key says") as error:
        rotary_from_config({"model_type": name, "num_hidden_layers": 2, "head_dim": 64, "rope_theta": 1e4})
    return str(error.value)


@pytest.mark.parametrize("tail", ["_x", *map(thorough, ("_vl", "2", "_moe"))])
def test_a_fork_of_every_type(tail):
    """Its error has the facts of a known type with a near name."""
    for name, model in MODELS.items():
        fork = name.removesuffix("_text") + tail
        if canonical_type(fork) or fork in REFUSED or len(name) < 4:
            continue
        if (right := fork.replace("_", "")) in MODELS:  # granite_moe
            with pytest.raises(ValueError, match=f"'{fork}' is not known: write '{right}' if that is meant"):
                rotary_from_config({"model_type": fork})
            continue
        text = message(fork)
        assert (
            CHECKED in text and "a known type may be written in its place only if the code of both is the same" in text
        )
        if not name.endswith("_text") and name == name.lower() and model.layout and not model.never_rotates:
            assert (
                tail != "_x" or f"'{name}' {WORDS[model.layout]}" in text.partition("a near name proves nothing")[2]
            ), fork


def test_what_two_forks_do_otherwise():
    assert "'hy_v4' pairs features i and i + r/2, rotates the last features of a head" in message("hy_v4_video")
    assert "'glm4_moe' pairs features i and i + r/2, rotates 0.5 of a head, has base 10,000" in message("glm4_moe2")
    assert MODELS["hy_v4_vl_text"].layout != MODELS["hy_v4"].layout
    assert MODELS["sarvam_moe"].partial != MODELS["glm4_moe"].partial
    assert (
        "'gemma3_text' pairs features i and i + r/2, rotates the whole head, has base 1,000,000 and 10,000"
        in message("gemma3_txt")
    )
    assert "near name" not in message("my_model")


@pytest.mark.parametrize(
    ("fork", "facts"),
    [
        ("gptj2", "'gptj' pairs features 2i and 2i + 1, rotates 64 features of a head, has base 10,000"),
        (
            "deepseek_v5",
            "'deepseek_v4' pairs features 2i and 2i + 1, rotates the last features of a head, rotates values too",
        ),
        (
            "nanochat2",
            "'nanochat' pairs features i and i + r/2, rotates the whole head, has base 10,000, rotates backwards",
        ),
        ("cohere2_moe2", "'cohere2_moe' .*, has base 10,000, may have layers without positions"),
        ("muse_glimmer2", "'muse_glimmer_text' .*, has base 10,000, may have layers without positions"),
    ],
)
def test_what_a_name_does_not_say(fork, facts):
    assert re.search(facts.replace("+", "[+]"), message(fork))


def test_a_base_that_the_settings_must_say():
    """It is no default of the type, so that the error names none."""
    for name, model in MODELS.items():
        if model.nested and not canonical_type(f"{name.removesuffix('_text')}2") and len(name) > 4:
            facts = message(f"{name.removesuffix('_text')}2").partition(f"{name!r} ")[2].partition(";")[0]
            assert "has base" not in facts, name


def test_towers():
    for name in TOWERS:
        with pytest.raises(ValueError, match="only if the code of both rotates the same pairs by the same coordinates"):
            vision_rotary_from_config({"model_type": f"{name}_x"})
