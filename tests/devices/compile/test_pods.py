"""On a whole pod of 256 chips, no function needs a collective, and a device holds its share alone.

`nox -s "compile(tpu)"`; tests/tools/test_benchmarks.py reads the recorded figures of the other pods.
"""

import dataclasses

import pytest

import posenc_jax as pe
from devices.on_pods import BF16, F32, I32, PODS, TEXTBOOK, Case, N, P, S, cases

pytestmark = pytest.mark.compile_tpu
V5E = next(iter(PODS))  # "v5e:16x16"


@pytest.mark.parametrize("case", cases(V5E), ids=lambda case: case.name)
def test_a_device_holds_its_share(case):
    case.check(V5E, case.figures(V5E))


def test_a_device_computes_its_share_of_positions_that_are_whole():
    """Where x is split and its positions are not, a device still keeps cosines and sines of its own positions alone."""
    length, (counted,) = 2**22, [case for case in cases(V5E) if case.name == "rotary, half, counted, Explicit"]
    arguments = ((1, length, 4, 128), BF16, P(None, S)), ((length,), I32, P())
    case = dataclasses.replace(counted, arguments=arguments, length=length)
    case.check(V5E, case.figures(V5E))


# Controls: a mean over the sequence, and a table that every device gets whole
MEAN = Case("", lambda x: x - x.mean(1, keepdims=True), (((1, N, 128), F32, P(None, S)),), P(None, S))
WHOLE = Case("", lambda p: pe.sinusoidal(p, 128), (((2**20,), I32, P(S)),), P(), length=2**20)


@pytest.mark.parametrize(("case", "message"), [(TEXTBOOK, "temporaries"), (MEAN, "all-reduce"), (WHOLE, "all-gather")])
def test_control_a_collective_and_an_array_of_all_positions_are_caught(case, message):
    with pytest.raises(AssertionError, match=message):
        case.check(V5E, case.figures(V5E))
