"""Images, prefixes and encoders: rows of docs/attention_models.md give the masks of transformers."""

import functools

import jax
import numpy as np
import pytest

import posenc_jax as pe
from helpers import pages
from oracles import recorded

PAGE = "docs/attention_models.md"
RECORDED = {case["model"]: case for case in recorded.cases("hf_masks")}
ROWS = {
    (model.partition(",")[0], layers): pages.code_in(options)
    for model, layers, *_, options, _ in pages.rows(PAGE, "model | layers | blocks")
    + pages.rows(PAGE, "model | layers | options")
}


def options_of(model, layers):
    """What the page says, with the numbers of the model's config and the orders of its blocks."""
    names = dict(RECORDED[model])
    if blocks := names.get("blocks"):
        block_order = pages.run(pages.definition(PAGE, "block_order"), {"jnp": np})["block_order"]
        order, p = block_order(np.array([blocks])), np.arange(len(blocks))
        names["by_block"] = {"query_order": order, "key_order": order, "query_positions": p, "key_positions": p}
    return eval(f"dict(causal={bool(blocks)}, {', '.join(ROWS[model, layers])})", names)


def shares(mask):
    """Of each query, a like share for every key that it sees."""
    seen = np.array([[int(key) for key in row] for row in mask])
    return seen / seen.sum(1, keepdims=True)


@pytest.mark.parametrize(("model", "layers"), ROWS)
def test_the_row_is_the_models_mask(model, layers):
    case, options = RECORDED[model], options_of(model, layers)
    calls = case[layers]  # of π0 two: the prompt, then state and actions with its keys in the cache
    n = len(calls[-1][0])
    q, values = np.zeros((1, n, 1, 8), np.float32), np.eye(n, dtype=np.float32)[None, :, None]
    got = np.asarray(jax.jit(functools.partial(pe.attention, **options))(q, q, values))[0, :, 0]
    want = np.concatenate([np.pad(shares(mask), ((0, 0), (0, n - len(mask[0])))) for mask in calls])
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
    assert options.get("scale", 8**-0.5) == pytest.approx(case["scale"])
    assert options.get("logits_soft_cap") == case["cap"]
