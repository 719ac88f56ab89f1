"""Rows of docs/attention_models.md give what attention of transformers and timm gave: recorded values.

The code of the page's tables runs with the numbers of a model's config:

- options: outputs and gradients of attention functions;
- position biases: outputs of modules, with their tables and coordinates.

Masks are in test_recorded_masks.py.
"""

import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers import pages
from helpers.closeness import assert_within
from helpers.slow import slow
from oracles import recorded

PAGE, TABLES = "docs/attention_models.md", "docs/offset_tables.md"


@pytest.fixture(autouse=True)
def as_a_user_runs_them():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def name_in(cell):
    return re.sub(r" with .*|\[|\].*", "", cell)


def options_in(code, names):
    return eval(f"dict({', '.join(code)})", names)


# Options

MODELS = {f"{case['class']}, layer {case['layer']}": case for case in recorded.cases("hf_attention")}
OPTIONS = {name_in(model): options for model, options, _ in pages.rows(PAGE, "model | options")}
FEW = "GptOssAttention, layer 0", "Gemma2Attention, layer 1"


def options_of_model(case):
    unwritten = str.maketrans("", "", " -")  # between a model's name and that of its class
    (row,) = (row for name, row in OPTIONS.items() if case["class"] == f"{name.title()}Attention".translate(unwritten))
    code = [x for x in pages.code_in(row) if x.startswith(("scale=", "logits_soft_cap=", "window="))]
    code += pages.code_in(OPTIONS["Mistral"]) if "the window as above" in row else []
    if case["sliding_window"] is None:
        code = [x for x in code if not x.startswith("window=")]
    names = {"sliding_window": case["sliding_window"], "attn_logit_softcapping": case["softcap"]}
    names |= {"query_pre_attn_scalar": case["scaling"] ** -2, "qk_nope_head_dim": 2, "qk_rope_head_dim": 2}
    return options_in(code, names | {"plan": types.SimpleNamespace(softmax_scale=2 * case["scaling"])})


@pytest.mark.parametrize("name", [name if name in FEW else slow(name) for name in MODELS])
def test_outputs_and_gradients_by_the_options_of_a_model(name):
    case = MODELS[name]
    options = {"causal": True, "block_size": 4} | options_of_model(case)

    @jax.jit
    def output_and_gradients(operands):
        def attend(operands):
            q, k, v = (operands[name] for name in ("query", "key", "value"))
            return pe.attention(q, k, v, sinks=operands.get("sinks"), **options)

        y, pull = jax.vjp(attend, operands)
        return {"output": y} | {f"{name}_grad": x for name, x in pull(np.float32(case["cotangent"]))[0].items()}

    operands = {name: np.float32(case[name]) for name in ("query", "key", "value", "sinks") if name in case}
    for name, x in output_and_gradients(operands).items():
        np.testing.assert_allclose(x, case[name], rtol=0, atol=5e-6, err_msg=name)


# Position biases

BIASES = {name_in(row[0]): row[-1] for row in pages.rows(PAGE, "model | its bias")}
CHECKPOINTS = {name_in(model): pages.code_in(code) for model, _, code in pages.rows(TABLES, "model | its table")}
MODULES = [(case.pop("row"), case) for case in recorded.cases("placed_biases")]


def names_of(row, case):
    """What the code of a row reads: the config's keys, the checkpoint's table, the coordinates."""
    names = {"pe": pe, "jax": jax, "jnp": jnp, "np": np} | case
    names |= {name: jnp.array(case[name], jnp.float32) for name in ("table", "logit_scale") if name in case}
    for page, name in ((PAGE, "mpt_slopes"), (PAGE, "falcon_alibi"), (TABLES, "continuous_table")):
        names = pages.run(pages.definition(page, name), names)
    if "window" not in case:
        return names
    window = tuple(case["window"])
    names["grid"] = grid = pe.grid_positions(window)
    names["tokens"] = jnp.pad(grid, ((1, 0), (0, 0)), constant_values=-1)
    names["coarse"] = 2 * pe.grid_positions(tuple(case.get("coarse", (1, 1))))
    names["regions"] = jnp.array(case.get("regions", 0))
    if "mlp" in case:
        mlp = (np.float32(x) for x in case["mlp"])
        return names | {"table": names["continuous_table"](window, *mlp, pretrained=tuple(case["pretrained"]))}
    code, *prefix = CHECKPOINTS[row.partition(",")[0]]
    names |= {"t": jnp.array(case["t"], jnp.float32), "w1": window[0], "w2": window[-1]}
    given = names | {"table": eval(code, names)}
    return given | (options_in(prefix[:1], names) if row == "BEiT" else {})


def options_of_bias(row, case):
    """The options of a row; Falcon's long text needs those by which the page repeats its rounding."""
    code = [x for x in pages.code_in(BIASES["Swin"]) if BIASES[row].startswith("as Swin")] + pages.code_in(BIASES[row])
    code = [x for x in code if re.match(r"[a-z_]+=", x)]
    if row == "Falcon" and case["length"] > 256:
        code = ["causal=True", *re.findall("`(bias=lambda i, j: falcon_alibi[^`]*)`", pages.text_of(PAGE))]
    return options_in(code, names_of(row, case))


def operands_of(row, case):
    """Queries, keys and values, and what a model does with them before they meet."""
    x = [np.array(case[name], np.float32) for name in ("query", "key", "value")]
    if case.get("clip_qkv"):
        x = [np.clip(y, -case["clip_qkv"], case["clip_qkv"]) for y in x]
    if row == "Swin V2":
        x[:2] = (y / np.linalg.norm(y, axis=-1, keepdims=True) for y in x[:2])
    return [np.concatenate([y] * (case.get("length", len(y)) // len(y))) for y in x]


def test_every_bias_is_recorded():
    assert {row for row, _ in MODULES} == BIASES.keys()


@pytest.mark.parametrize(("row", "case"), [slow(*x) if n % 2 else x for n, x in enumerate(MODULES)])
def test_the_output_of_a_module_with_a_bias(row, case):
    attend = jax.jit(lambda q, k, v: pe.attention(q, k, v, **options_of_bias(row, case)))
    output = np.asarray(attend(*operands_of(row, case)))[-len(case["output"]) :]
    assert_within(output, np.array(case["output"]), 1e-5, against=row)  # of outputs up to 7, by two float32 programs
