"""Whole pods of 256 and 512 chips: no collective, and a device holds its share alone. `nox -s "compile(tpu)"`."""

import dataclasses

import jax.numpy as jnp
import pytest

import posenc_jax as pe
from devices.on_pods import BF16, F32, I32, PODS, TEXTBOOK, Case, N, P, S, cases

pytestmark = pytest.mark.compile_tpu
V5E, *OTHERS = PODS
# On the other pods one of each kind: all that is recorded was compiled for all of them.
FEW = {
    "sinusoidal, zigzag, in shard_map",
    "add_sinusoidal, batch and width, Explicit",
    "rotary, half, counted",
    "rotary, batch and heads",
    "learned",
    "alibi",
}


@pytest.mark.parametrize(
    ("pod", "case"),
    [(pod, case) for pod in PODS for case in cases(pod) if pod == V5E or case.name in FEW],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_device_holds_its_share(pod, case):
    case.check(pod, case.figures(pod))


def test_a_device_computes_its_share_of_positions_that_are_whole():
    length, (counted,) = 2**22, [case for case in cases(V5E) if case.name == "rotary, half, counted, Explicit"]
    arguments = ((1, length, 4, 128), BF16, P(None, S)), ((length,), I32, P())
    case = dataclasses.replace(counted, arguments=arguments, length=length)
    case.check(V5E, case.figures(V5E))


def zigzag_of_all(device):
    chunks = jnp.arange(N).reshape(2 * 256, -1)
    return jnp.concatenate([chunks[:256], chunks[:255:-1]], axis=1)[device]


ROWS = (1, N, 128), F32, P(None, S)
ALL = Case("", lambda p: pe.sinusoidal(p, 128), (((2**20,), I32, P(S)),), P(), length=2**20)
CONTROLS = {
    "the textbook formula": (TEXTBOOK, "temporaries"),
    "a mean over the sequence": (Case("", lambda x: x - x.mean(1, keepdims=True), (ROWS,), ROWS[2], 2**20), "all-red"),
    "positions of all devices": (Case("", zigzag_of_all, (), P(S), mode="shard_map"), "temporaries"),
    "a result on every device": (ALL, "all-gather"),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_control(name):
    case, message = CONTROLS[name]
    with pytest.raises(AssertionError, match=message):
        case.check(V5E, case.figures(V5E))
