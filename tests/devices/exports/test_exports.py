"""What another version of JAX exported, loaded here: the results it had there. JAX promises it for half a year."""

import functools
import os
from pathlib import Path

import jax
import numpy as np
import pytest
from cases import ROUNDED, cases, derivative_of, sharding
from jax import export

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


def test_says_what_made_it(capsys):
    made = (FOLDER / "version").read_text()
    with capsys.disabled():
        print(f"\nexported by JAX {made}, loaded by {jax.__version__}")
    assert made == os.environ["POSENC_LOWEST"] != jax.__version__
