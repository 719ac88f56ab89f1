"""`attention` beside what attention functions of transformers gave, and their gradients: recorded values."""

import functools
import re

import jax
import numpy as np
import pytest

import posenc_jax as pe
from helpers import pages
from helpers.quick import quick
from helpers.tiers import tiered
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


# Options that leave out or mistake what a model does
CONTROLS = {
    "a window of one more": ("GptOssAttention, layer 0", {"window": (3, None)}),
    "no sinks": ("GptOssAttention, layer 0", {"sinks": None}),
    "no cap": ("Gemma2Attention, layer 1", {"logits_soft_cap": None}),
    "the usual scale": ("Gemma2Attention, layer 1", {"scale": None}),
    "the usual scale of latent heads": ("DeepseekV3Attention, layer 0", {"scale": None}),
    "no window": ("MistralAttention, layer 0", {"window": (None, None)}),
}


@pytest.mark.parametrize("name", tiered(CONTROLS, [*CONTROLS][:4]))
def test_other_options_give_other_outputs(name):
    case, changes = CASES[CONTROLS[name][0]], CONTROLS[name][1]
    y = quick(functools.partial(attend, **options_of(case) | changes))(operands(case))
    assert np.max(np.abs(np.asarray(y) - np.array(case["output"]))) > CHANGED
