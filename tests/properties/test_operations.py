"""What tests/tools/operations.py counts: no function hands more to compilers than tests/operations.json says."""

import json

import jax
import pytest

from tools import operations

WRITTEN = json.loads(operations.PATH.read_text("utf-8"))
VERSION = WRITTEN.pop("jax")
FORMULA = ", the formula"


@pytest.mark.slow
@pytest.mark.skipif(not jax.__version__.startswith(VERSION + "."), reason="versions of JAX write different programs")
@pytest.mark.parametrize("name", [name for name in WRITTEN if FORMULA not in name])
def test_no_more_operations_than_before(name):
    counts = operations.counts(*operations.functions()[name])
    assert counts.keys() == WRITTEN[name].keys()
    assert not {program: count for program, count in counts.items() if count > WRITTEN[name][program]}


def test_every_function_has_its_counts():
    assert [*operations.functions()] == [*WRITTEN], "write them: python tests/tools/operations.py --write"
    assert operations.PAGE.read_text("utf-8") == operations.markdown(WRITTEN)


@pytest.mark.parametrize("name", ["rotary", "attention"])
def test_many_equal_calls_have_fewer_than_the_formula(name):
    ours, formula = WRITTEN[name], WRITTEN[name + FORMULA]
    assert all(ours[program] < formula[program] for program in ours if program.endswith("of 64"))
