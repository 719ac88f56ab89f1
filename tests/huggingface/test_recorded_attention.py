"""`attention` beside what attention functions of transformers gave, and their gradients: recorded values."""

import functools
import re
import types

import jax
import numpy as np
import pytest

import posenc_jax as pe
from helpers import pages
from helpers.tiers import slow
from oracles import recorded

CASES = {f"{case['class']}, layer {case['layer']}": case for case in recorded.cases("hf_attention")}
OPERANDS = ("query", "key", "value", "sinks")
UNWRITTEN = str.maketrans("", "", " -")  # between a model's name and that of its class
ROWS = {
    re.sub(r"\[|\].*", "", model): options
    for model, options, _ in pages.rows("docs/attention_models.md", "model | options")
}
# Two float32 programs: of outputs and gradients, which are of order 1.
TOLERANCE = 5e-6
FEW = "GptOssAttention, layer 0", "Gemma2Attention, layer 1"


def operands(case):
    return {name: np.float32(case[name]) for name in OPERANDS if name in case}


def options_of(case):
    """What docs/attention_models.md says of the model, with the numbers of its config."""
    (row,) = (row for name, row in ROWS.items() if case["class"] == f"{name.title()}Attention".translate(UNWRITTEN))
    code = [x for x in pages.code_in(row) if x.startswith(("scale=", "logits_soft_cap=", "window="))]
    code += pages.code_in(ROWS["Mistral"]) if "the window as above" in row else []
    if case["sliding_window"] is None:
        code = [x for x in code if not x.startswith("window=")]
    names = {"sliding_window": case["sliding_window"], "attn_logit_softcapping": case["softcap"]}
    names |= {"query_pre_attn_scalar": case["scaling"] ** -2, "qk_nope_head_dim": 2, "qk_rope_head_dim": 2}
    names["plan"] = types.SimpleNamespace(softmax_scale=2 * case["scaling"])
    return {"causal": True, "block_size": 4} | eval(f"dict({', '.join(code)})", names)


def attend(given, **options):
    return pe.attention(given["query"], given["key"], given["value"], **{"sinks": given.get("sinks")} | options)


@pytest.mark.parametrize("name", [name if name in FEW else slow(name) for name in CASES])
def test_outputs_and_gradients(name):
    case = CASES[name]

    @jax.jit
    def with_gradients(given, cotangent):
        y, pull = jax.vjp(functools.partial(attend, **options_of(case)), given)
        return {"output": y} | {f"{name}_grad": x for name, x in pull(cotangent)[0].items()}

    for name, x in with_gradients(operands(case), np.float32(case["cotangent"])).items():
        np.testing.assert_allclose(x, case[name], rtol=0, atol=TOLERANCE, err_msg=name)
