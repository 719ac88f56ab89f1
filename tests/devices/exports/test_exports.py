"""What users store with another version of JAX loads here and gives the same results.

- Exported programs, which JAX promises to load for half a year, also with other shapes.
- Pickles, the settings of a plan, and the states of modules.

`write.py` wrote all of it into the folder POSENC_EXPORTS with JAX of the version POSENC_LOWEST.
"""

import json
import os
import pickle
from pathlib import Path

import jax
import numpy as np
import pytest
from cases import MODULES, bias_of, cases, flat, objects, results
from flax import nnx
from jax import export

from posenc_jax.hf import rotary_from_config

FOLDER, CASES = Path(os.environ.get("POSENC_EXPORTS", "")), cases()


def load(name):
    """An exported function, and the results that it had with the other version."""
    with np.load(FOLDER / f"{name}.npz") as file:
        return export.deserialize((FOLDER / f"{name}.bin").read_bytes()), dict(file)


def test_another_version_wrote_the_files():
    assert (FOLDER / "version").read_text() == os.environ["POSENC_LOWEST"] != jax.__version__


@pytest.mark.parametrize("name", CASES)
def test_an_exported_function_gives_the_same(name):
    """The same bits, or within 1e-6 where another version may round otherwise."""
    case, (loaded, want) = CASES[name], load(name)
    got = results(loaded.call, case)
    assert {key: value.dtype for key, value in got.items()} == {key: value.dtype for key, value in want.items()}
    for key, value in got.items():
        tolerance = 1e-6 * (key in case.rounded)
        np.testing.assert_allclose(value, want[key], rtol=tolerance, atol=tolerance)


def test_an_exported_rotation_takes_other_shapes():
    loaded, want = load("rotary")
    positions, x = CASES["rotary"].arguments
    np.testing.assert_array_equal(loaded.call(positions[:7], x[:7]), want["y"][:7])


def test_pickles_and_settings_of_a_plan_load():
    assert pickle.loads((FOLDER / "objects.pickle").read_bytes()) == objects()
    assert rotary_from_config(json.loads((FOLDER / "plan.json").read_text())) == objects()["plan"]


@pytest.mark.parametrize("name", MODULES)
def test_the_state_of_a_module_loads(name):
    """It has the names, shapes and dtypes of the module here, and gives the stored bias."""
    with np.load(FOLDER / f"state of {name}.npz") as file:
        stored = dict(file)
    want, (graph, state) = stored.pop("result"), nnx.split(MODULES[name]())
    described = lambda arrays: {key: (x.shape, x.dtype) for key, x in arrays.items()}  # noqa: E731
    assert described(stored) == described(flat(state))
    state = [(path, x.replace(stored[".".join(map(str, path))])) for path, x in nnx.to_flat_state(state)]
    np.testing.assert_allclose(bias_of(graph, nnx.from_flat_state(state)), want, rtol=1e-6, atol=1e-6)
