"""`examples/content_attention.py`: each layer computes what its module of transformers computes: recorded values.

A layer and its gradient hold no array of queries by keys; the program prints how far layers are from formulas.
"""

import importlib
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from helpers.closeness import assert_within
from helpers.content_biases import drawn, hidden_and_cotangent
from helpers.slow import slow
from oracles import recorded

CASES = {case["name"]: case for case in recorded.cases("content_biases")}
BOUND = 1e-5  # relative to the largest number: both sides compute in float32
BLOCK = 8  # a block_size below the sequence lengths, which are from 9 to 29
FEW = ("DeBERTa v2, buckets",)  # biases of queries and of keys; the other cases are slow, and run the same functions


@pytest.fixture(autouse=True)
def as_a_user_runs_them():
    """Examples run with JAX's usual promotion of dtypes and ranks, which the test suite forbids."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module")
def example():
    """The module examples/content_attention.py."""
    folder = str(Path(__file__).parents[2] / "examples")
    sys.path.insert(0, folder)
    yield importlib.import_module("content_attention")
    sys.path.remove(folder)


@pytest.mark.parametrize("name", [name if name in FEW else slow(name) for name in CASES])
def test_the_outputs_and_gradients_of_a_layer_are_those_of_the_module(example, name):
    case = CASES[name]
    layer, seed, mask = example.LAYERS[case["layer"]], case["seed"], case["mask"]
    weights = {name: drawn(seed, name, shape) for name, shape in case["weights"].items()}
    x, cotangent = hidden_and_cotangent(seed, case["hidden"], mask)
    options = case["settings"] | ({} if mask is None else {"mask": np.int32(mask)})

    @jax.jit
    def output_and_gradients(x, weights):
        y, back = jax.vjp(lambda x, weights: layer(x, weights, **options, block_size=BLOCK), x, weights)
        of_hidden, of_weights = back(cotangent)
        return y, {"hidden": of_hidden} | of_weights

    output, gradients = jax.device_get(output_and_gradients(x, weights))
    seen = ... if mask is None else np.array(mask) == 1  # outputs of padding may differ
    pairs = [(output[seen], np.array(case["output"])[seen])]
    pairs += [(gradients[name], np.array(x)) for name, x in case["gradients"].items()]
    for got, want in pairs:
        assert_within(got, want, BOUND * np.abs(want).max(), against="transformers")


def test_the_program_prints_a_small_difference_for_each_layer(example, capsys, monkeypatch):
    monkeypatch.delitem(example.LAYERS, "deberta_v2")  # to save time: the test above has it
    example.main()
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines.keys() == example.LAYERS.keys()
    assert all(float(line.rpartition(" ")[2]) < BOUND for line in lines.values()), lines


def sizes(jaxpr):
    """The sizes of all arrays that a program computes, also in its loops and inner functions."""
    for equation in jaxpr.eqns:
        yield from (x.aval.size for x in equation.outvars)
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                yield from sizes(getattr(inner, "jaxpr", inner))


@pytest.mark.parametrize(
    "name", ["deberta_v2", "deberta", "conformer", "relative_keys", "sam", "inkling", "wavlm", "forgetting"]
)
def test_no_array_of_queries_by_keys_exists(example, name):
    """Hidden states are 64² tokens by 32 features; no array is even a quarter of 64² queries by 64² keys."""
    _, weights, settings = importlib.import_module("content_formulas").example(name, np.random.default_rng(0))
    x = jax.ShapeDtypeStruct((1, 64, 64, 32) if name == "sam" else (1, 64**2, 32), np.float32)
    gradient = jax.grad(lambda x, w: example.LAYERS[name](x, w, **settings, block_size=64).sum(), (0, 1))
    assert 64**2 * 32 <= max(sizes(jax.make_jaxpr(gradient)(x, weights).jaxpr)) < 64**4 / 4
