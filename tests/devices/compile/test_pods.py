"""Whole pods of 256 and 512 chips: no collective, and a device holds its share alone. `nox -s "compile(tpu)"`."""

import dataclasses
import functools

import jax.numpy as jnp
import pytest

import posenc_jax as pe
from devices.on_pods import BF16, F32, I32, PODS, TEXTBOOK, Case, N, P, S, cases

pytestmark = pytest.mark.compile_tpu
V5E, *OTHERS = PODS
# On the other pods one of each kind: all that is recorded was compiled for all of them.
FEW = {
    "sinusoidal",
    "sinusoidal, zigzag, in shard_map",
    "add_sinusoidal, counted, Explicit",
    "add_sinusoidal, batch and width, Explicit",
    "rotary, half, counted",
    "rotary, batch and heads",
    "learned",
    "alibi",
}


@pytest.mark.parametrize(
    ("pod", "case"),
    [
        pytest.param(pod, case, id=f"{pod}-{case.name}".replace(", ", "-"))
        for pod in PODS
        for case in cases(pod)
        if pod == V5E or case.name in FEW
    ],
)
def test_a_device_holds_its_share(pod, case):
    case.check(pod, case.figures(pod))


def refused(case, match):
    with pytest.raises(AssertionError, match=match):
        case.check(V5E, case.figures(V5E))


def test_control_the_textbook_formula_is_caught():
    refused(TEXTBOOK, "temporaries")


def test_control_a_mean_over_the_sequence_is_caught():
    x = (1, N, 128), F32, P(None, S)
    refused(Case("", lambda x: x - x.mean(1, keepdims=True), (x,), P(None, S), 2**20), "all-reduce")


def test_control_positions_of_all_for_those_of_one_device_are_caught():
    def zigzag(device):
        chunks = jnp.arange(N).reshape(2 * 256, -1)
        return jnp.concatenate([chunks[:256], chunks[:255:-1]], axis=1)[device]

    refused(Case("", zigzag, (), P(S), mode="shard_map"), "temporaries")


def test_a_device_computes_its_waves_of_positions_that_are_whole():
    length, (counted,) = 2**22, [case for case in cases(V5E) if case.name == "rotary, half, counted, Explicit"]
    arguments = ((1, length, 4, 128), BF16, P(None, S)), ((length,), I32, P())
    case = dataclasses.replace(
        counted, function=functools.partial(pe.rotary, head_axis=-2), arguments=arguments, length=length
    )
    case.check(V5E, case.figures(V5E))


def test_control_a_result_on_every_device_is_caught():
    refused(Case("", lambda p: pe.sinusoidal(p, 128), (((2**20,), I32, P(S)),), P(), length=2**20), "all-gather")
