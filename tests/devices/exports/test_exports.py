"""What another version of JAX exported, loaded here: the results it had there. JAX promises it for half a year.

And what else users store: pickles, the settings of a plan, and the states of modules.
"""

import functools
import json
import os
import pickle
from pathlib import Path

import jax
import numpy as np
import pytest
from cases import QUERIES, ROUNDED, bias_of, biases_of_modules, cases, derivative_of, flat, objects, sharding
from flax import nnx
from jax import export

from posenc_jax.hf import rotary_from_config

FOLDER = Path(os.environ.get("POSENC_EXPORTS", ""))


def load(name):
    """What was exported, and its results there."""
    with np.load(FOLDER / f"{name}.npz") as file:
        return export.deserialize((FOLDER / f"{name}.bin").read_bytes()), dict(file)


@pytest.mark.parametrize("name", cases())
def test_loads_and_gives_the_same(name):
    _, arguments, _, derivative = cases()[name]
    loaded, want = load(name)
    if name == "sharded":
        arguments = [jax.device_put(a, sharding()) for a in arguments]
    got = {"y": loaded.call(*arguments)}
    if derivative:
        got["dx"] = jax.jit(functools.partial(derivative_of, loaded.call))(arguments)
    assert set(got) == set(want)
    for key, value in got.items():
        assert value.dtype == want[key].dtype
        if name in ROUNDED:
            np.testing.assert_allclose(value, want[key], rtol=1e-6, atol=1e-6)
        else:
            np.testing.assert_array_equal(value, want[key])


def test_other_shapes_than_those_it_was_tried_with():
    loaded, want = load("rotary")
    _, (positions, x), *_ = cases()["rotary"]
    np.testing.assert_array_equal(loaded.call(positions[:7], x[:7]), want["y"][:7])


def test_pickles_carry_objects():
    assert pickle.loads((FOLDER / "objects.pickle").read_bytes()) == objects()


def test_the_settings_of_a_plan():
    assert rotary_from_config(json.loads((FOLDER / "plan.json").read_text())) == objects()["plan"]


@pytest.mark.parametrize("name", biases_of_modules())
def test_the_state_of_a_module(name):
    module = biases_of_modules()[name]
    with np.load(FOLDER / "states" / f"{name}.npz") as file:
        stored = dict(file)
    want = stored.pop("result")
    assert {key: (x.shape, x.dtype) for key, x in stored.items()} == {
        key: (x.shape, x.dtype) for key, x in flat(module).items()
    }
    graph, state = nnx.split(module)
    state = [(path, x.replace(stored[".".join(map(str, path))])) for path, x in nnx.to_flat_state(state)]
    got = bias_of(nnx.merge(graph, nnx.from_flat_state(state)))
    assert got.shape == want.shape and got.shape[-2] == len(QUERIES)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_says_what_made_it(capsys):
    made = (FOLDER / "version").read_text()
    with capsys.disabled():
        print(f"\nexported by JAX {made}, loaded by {jax.__version__}")
    assert made == os.environ["POSENC_LOWEST"] != jax.__version__
