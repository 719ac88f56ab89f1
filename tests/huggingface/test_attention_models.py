"""The rows of docs/attention_models.md compute what attention of transformers and timm computed: recorded values.

The tests run the code in the page's tables, with the numbers of a model's config:

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

PAGE, TABLES = "docs/attention_models.md", "docs/biases.md"


@pytest.fixture(autouse=True)
def as_a_user_runs_them():
    """Code of pages runs with JAX's usual promotion of dtypes and ranks, which the test suite forbids."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def name_in(cell):
    """The model's name in a cell of a table, without its link, and without what follows the name."""
    return re.sub(r" with .*|\[|\].*", "", cell)


def options_in(code, names):
    """The dict of options that pieces of code such as "scale=1" make, evaluated with these names."""
    return eval(f"dict({', '.join(code)})", names)


# Options

MODELS = {f"{case['class']}, layer {case['layer']}": case for case in recorded.cases("hf_attention")}
OPTIONS = {name_in(model): options for model, options in pages.rows(PAGE, "model | options")}
FEW = "GptOssAttention, layer 0", "Gemma2Attention, layer 1"  # the first has sinks, the second a cap; others are slow


def options_of_model(case):
    """The options in a model's row, with the numbers of the recorded config."""
    dropped = str.maketrans("", "", " -")  # what a model's name on the page has and the name of its class has not
    (row,) = (row for name, row in OPTIONS.items() if case["class"] == f"{name.title()}Attention".translate(dropped))
    code = [x for x in pages.code_in(row) if x.startswith(("scale=", "logits_soft_cap=", "window="))]
    code += pages.code_in(OPTIONS["Mistral"]) if "the window as above" in row else []
    if case["sliding_window"] is None:
        code = [x for x in code if not x.startswith("window=")]
    names = {"sliding_window": case["sliding_window"], "attn_logit_softcapping": case["softcap"]}
    # A head of 2 + 2 features and this softmax_scale, for which DeepSeek-V3's row gives the recorded scaling:
    # scale = softmax_scale * (2 + 2) ** -0.5.
    names |= {"query_pre_attn_scalar": case["scaling"] ** -2, "qk_nope_head_dim": 2, "qk_rope_head_dim": 2}
    return options_in(code, names | {"plan": types.SimpleNamespace(softmax_scale=2 * case["scaling"])})


@pytest.mark.parametrize("name", [name if name in FEW else slow(name) for name in MODELS])
def test_the_options_of_a_model_give_its_outputs_and_gradients(name):
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

BIASES = {name_in(model): options for model, options in pages.rows(PAGE, "model with a bias | options")}
CHECKPOINTS = {name_in(model): pages.code_in(code) for model, _, code in pages.rows(TABLES, "model | axes of `t`")}
# Pairs of a row of the page, by its name, and a recorded case of a module.
MODULES = [(case.pop("row"), case) for case in recorded.cases("placed_biases")]


def names_of(row, case):
    """The names in the code of a row: the config's keys, the checkpoint's table, functions of pages, coordinates."""
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
    # The first code makes the table from the checkpoint's `t`; BEiT's second one is the option `prefix`.
    table, *options = CHECKPOINTS[row.partition(",")[0]]
    names |= {"t": jnp.array(case["t"], jnp.float32), "w1": window[0], "w2": window[-1]}
    given = names | {"table": eval(table, names)}
    return given | (options_in(options[:1], names) if row == "BEiT" else {})


def options_of_bias(row, case):
    """The options in a row of the page.

    Falcon rounds its bias, which shows in a long text: then the options are those of the page that round it too.
    """
    code = [x for x in pages.code_in(BIASES["Swin"]) if BIASES[row].startswith("as Swin")] + pages.code_in(BIASES[row])
    code = [x for x in code if re.match(r"[a-z_]+=", x)]
    if row == "Falcon" and case["length"] > 256:
        code = ["causal=True", *re.findall("`(bias=lambda i, j: falcon_alibi[^`]*)`", pages.text_of(PAGE))]
    return options_in(code, names_of(row, case))


def operands_of(row, case):
    """Queries, keys and values as attention takes them: clipped or normalized as by the model, tiled to `length`."""
    x = [np.array(case[name], np.float32) for name in ("query", "key", "value")]
    if case.get("clip_qkv"):
        x = [np.clip(y, -case["clip_qkv"], case["clip_qkv"]) for y in x]
    if row == "Swin V2":
        x[:2] = (y / np.linalg.norm(y, axis=-1, keepdims=True) for y in x[:2])
    return [np.concatenate([y] * (case.get("length", len(y)) // len(y))) for y in x]


def test_every_bias_on_the_page_has_a_recorded_case():
    assert {row for row, _ in MODULES} == BIASES.keys()


# Every second case is slow.
@pytest.mark.parametrize(("row", "case"), [slow(*x) if n % 2 else x for n, x in enumerate(MODULES)])
def test_the_options_of_a_bias_give_the_outputs_of_its_module(row, case):
    """Of a long text, the last outputs are recorded."""
    attend = jax.jit(lambda q, k, v: pe.attention(q, k, v, **options_of_bias(row, case)))
    output = np.asarray(attend(*operands_of(row, case)))[-len(case["output"]) :]
    assert_within(output, np.array(case["output"]), 1e-5, against=row)  # outputs are up to 7, and both are float32
