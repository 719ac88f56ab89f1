"""Models with images, prefixes or encoders: rows of docs/attention_models.md give the recorded masks,
scales and caps of transformers.
"""

import jax
import numpy as np
import pytest

import posenc_jax as pe
from helpers import pages
from oracles import recorded

PAGE = "docs/attention_models.md"
# All sequences are filled up to this length, with tokens in no block: rows that differ only in numbers share a program.
LENGTH = 20
RECORDED = {case["model"]: case for case in recorded.cases("hf_masks")}
# By model and kind of layers, the code of the options.
ROWS = {
    (model.partition(",")[0], layers): pages.code_in(options) + ["**by_block"] * (blocks not in ([], ["none"]))
    for model, layers, *blocks, options in pages.rows(PAGE, "model | layers | blocks")
    + pages.rows(PAGE, "model | layers | options")
}


def options_of(model, layers):
    """The options in a row, with the numbers of the model's config; `by_block` is the option of tokens in blocks."""
    names = dict(RECORDED[model])
    blocks = names.get("blocks")
    if blocks:
        block_order = pages.run(pages.definition(PAGE, "block_order"), {"jnp": np})["block_order"]
        order, p = block_order(np.array([blocks + [-1] * (LENGTH - len(blocks))])), np.arange(LENGTH)
        names["by_block"] = {"query_order": order, "key_order": order, "query_positions": p, "key_positions": p}
    return eval(f"dict(causal={bool(blocks)}, {', '.join(ROWS[model, layers])})", names)


@pytest.mark.parametrize(("model", "layers"), ROWS)
def test_the_row_gives_the_mask_of_the_model(model, layers):
    """Queries of zeros and one-hot values: the output is 1/n for each of the n keys that a query sees."""
    case, options = RECORDED[model], {"scale": 8**-0.5} | options_of(model, layers)
    static = {name: options.pop(name) for name in ("causal", "window", "logits_soft_cap") if name in options}
    # The masks (queries, keys) of each call; in a second call, the keys of the first one are cached.
    calls = [np.array([list(map(int, row)) for row in mask]) for mask in case[layers]]
    n = calls[-1].shape[1]
    q, values = np.zeros((1, LENGTH, 1, 8), np.float32), np.eye(LENGTH, dtype=np.float32)[None, :, None]
    attend = jax.jit(lambda q, v, options: pe.attention(q, q, v, **static, **options))
    got = np.asarray(attend(q, values, options))[0, :n, 0, :n]
    seen = np.concatenate([np.pad(mask, ((0, 0), (0, n - mask.shape[1]))) for mask in calls])
    np.testing.assert_allclose(got, seen / seen.sum(1, keepdims=True), rtol=0, atol=1e-6)
    assert options["scale"] == pytest.approx(case["scale"])
    assert static.get("logits_soft_cap") == case["cap"]


def test_every_recorded_layer_with_a_mask_has_a_row():
    # A "0" in a recorded mask is a key that a query does not see.
    layers = [(model, kind) for model in RECORDED for kind in ("sliding", "full")]
    assert {x for x in layers if "0" in str(RECORDED[x[0]].get(x[1]))} == ROWS.keys()
