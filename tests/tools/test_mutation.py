"""Mutation testing: each mutant has one fault and compiles, and mutants leave the wording of messages alone."""

import ast
import importlib
from pathlib import Path

import pytest


@pytest.fixture
def mutants_of(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "mutation"))
    return importlib.import_module("mutants").mutants_of


def test_each_mutant_is_one_fault_that_compiles(mutants_of):
    source = "def f(x, y=2):\n    return g(x + y, x, axis=0, dtype=jnp.float32) if x < 3 else x\n"
    found = mutants_of("f.py", source)
    call = "g(x + y, x, axis=0, dtype=jnp.float32)"
    assert {(m.before, m.after) for m in found} >= {
        ("x + y", "x - y"),
        ("x < 3", "x <= 3"),
        ("2", "3"),
        ("jnp.float32", "jnp.float16"),
        (call, "g(x, x + y, axis=0, dtype=jnp.float32)"),
        (call, "g(x + y, x, dtype=jnp.float32)"),
    }
    assert len({m.source for m in found} | {source}) == len(found) + 1 and len({m.name for m in found}) == len(found)
    for mutant in found:
        ast.parse(mutant.source)
    # Names do not depend on the file, so a reason that excuses a mutant outlives a move.
    assert [m.name for m in mutants_of("hf/other.py", source)] == [m.name for m in found]


def test_the_wording_of_messages_is_left_alone(mutants_of):
    """The message of `require` is no fault, its condition is, and a string that is no message is."""
    found = mutants_of("f.py", 'require(x > 0, "x is {}", x)\ny = "{} x"\nnumber("z", y)\n')
    assert [(m.before, m.after) for m in found if "XX" in m.after] == [("'z'", "'zXX'")]
    assert ("require(x > 0, 'x is {}', x)", "pass") in [(m.before, m.after) for m in found]
