"""`attention` beside what attention functions of transformers gave, and their gradients: recorded values."""

import functools
import re

import jax
import numpy as np
import pytest

import posenc_jax as pe
from helpers import pages
from helpers.quick import quick
from helpers.tiers import thorough, tiered
from oracles import recorded

CASES = {f"{case['class']}, layer {case['layer']}": case for case in recorded.cases("hf_attention")}
OPERANDS = ("query", "key", "value", "sinks")
# Two float32 programs: of outputs and gradients, which are of order 1.
TOLERANCE, CHANGED = 5e-6, 0.1


def operands(case):
    return {name: np.float32(case[name]) for name in OPERANDS if name in case}


def options_of(case):
    """What its config says, as options."""
    window = case["sliding_window"]
    return {
        "causal": True,
        "window": (None if window is None else window - 1, None),
        "logits_soft_cap": case["softcap"],
        "scale": case["scaling"],
        "block_size": 4,
    }


def apart(case, **changes):
    """The largest differences of the output and of each gradient, by name."""

    def with_gradients(given, cotangent):
        y, pull = jax.vjp(functools.partial(attend, **options_of(case) | changes), given)
        return y, pull(cotangent)[0]

    y, got = quick(with_gradients)(operands(case), np.float32(case["cotangent"]))
    found = {"output": y} | {f"{name}_grad": x for name, x in got.items()}
    return {name: float(np.max(np.abs(np.asarray(x) - np.array(case[name])))) for name, x in found.items()}


def attend(given, **options):
    options = {"sinks": given.get("sinks")} | options
    return pe.attention(given["query"], given["key"], given["value"], **options)


@pytest.mark.parametrize("name", tiered(CASES, ["GptOssAttention, layer 0", "Gemma2Attention, layer 1"]))
def test_outputs_and_gradients(name):
    assert max(apart(CASES[name]).values()) <= TOLERANCE


UNWRITTEN = str.maketrans("", "", " -")  # between a model's name and that of its class
ROWS = {
    re.sub(r"\[|\].*", "", model): options
    for model, options, _ in pages.rows("docs/attention_models.md", "model | options")
}


@pytest.mark.parametrize("model", ["gpt-oss", "Gemma 2", "Mistral"])
def test_the_page_says_these_options(model):
    """The row of docs/attention_models.md, read with the numbers of a case."""
    for case in (c for name, c in CASES.items() if name.startswith(f"{model.title()}Attention".translate(UNWRITTEN))):
        config = {"sliding_window": case["sliding_window"], "attn_logit_softcapping": case["softcap"]}
        config |= {"query_pre_attn_scalar": case["scaling"] ** -2}
        said = [code for code in pages.code_in(ROWS[model]) if code.startswith(("scale=", "logits_soft_cap="))]
        if case["sliding_window"]:
            said.append(pages.code_in(ROWS["Mistral"])[0])
            assert said[-1] in ROWS[model] or "the window as above" in ROWS[model]
        options = {"scale": 0.5, "logits_soft_cap": None, "window": (None, 0)} | eval(
            f"dict({', '.join(said)})", config
        )
        want = options_of(case)  # a head_dim of 4
        assert options["window"] == (want["window"][0], 0)
        assert options["logits_soft_cap"] == want["logits_soft_cap"]
        assert options["scale"] == pytest.approx(want["scale"])


def test_what_is_recorded():
    features = [
        (c["class"], c["sliding_window"] is not None, "sinks" in c, c["softcap"] is not None) for c in CASES.values()
    ]
    assert features == [
        ("GptOssAttention", True, True, False),
        ("GptOssAttention", False, True, False),
        ("Gemma2Attention", True, False, True),
        ("Gemma2Attention", False, False, True),
        ("MistralAttention", True, False, False),
        ("DeepseekV3Attention", False, False, False),
    ]
    latent = CASES["DeepseekV3Attention, layer 0"]
    assert len(latent["value"][0][0]) != len(latent["query"][0][0])


# Options that leave out or mistake what a model does, of one layer of each kind by default.
CONTROLS = [
    *((name, {"window": (w, None)}) for name, c in CASES.items() if c["sliding_window"] for w in (None, 1, 3)),
    *((name, {"logits_soft_cap": None}) for name, c in CASES.items() if c["softcap"]),
    *((name, {"sinks": None}) for name, c in CASES.items() if "sinks" in c),
    *((name, {"scale": None}) for name, c in CASES.items() if c["class"] in ("Gemma2Attention", "DeepseekV3Attention")),
    *((name, {"causal": False, "window": (None, None)}) for name in CASES),
]
DEFAULT = ("GptOssAttention, layer 0", {"window": (3, None)}), ("GptOssAttention, layer 0", {"sinks": None})
DEFAULT += ("Gemma2Attention, layer 1", {"logits_soft_cap": None}), ("Gemma2Attention, layer 1", {"scale": None})


@pytest.mark.parametrize(("name", "changes"), [c if c in DEFAULT else thorough(*c) for c in CONTROLS], ids=str)
def test_other_options_give_other_outputs(name, changes):
    case = CASES[name]
    y = quick(functools.partial(attend, **options_of(case) | changes))(operands(case))
    assert np.max(np.abs(np.asarray(y) - np.array(case["output"]))) > CHANGED
