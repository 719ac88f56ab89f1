"""Mutants: each is one fault that compiles, and is counted by what finds it."""

import ast
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).parent / "mutation"


@pytest.fixture(autouse=True)
def mutation(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in ("run", "mutants"):
        sys.modules.pop(name, None)


def test_each_mutant_is_one_fault_that_compiles():
    from mutants import mutants_of

    source = "def f(x, y=2):\n    return g(x + y, x, axis=0, dtype=jnp.float32) if x < 3 else x\n"
    found = mutants_of("f.py", source)
    assert {(m.before, m.after) for m in found} >= {
        ("x + y", "x - y"),
        ("x < 3", "x <= 3"),
        ("2", "3"),
        ("jnp.float32", "jnp.float16"),
        ("g(x + y, x, axis=0, dtype=jnp.float32)", "g(x, x + y, axis=0, dtype=jnp.float32)"),
        ("g(x + y, x, axis=0, dtype=jnp.float32)", "g(x + y, x, dtype=jnp.float32)"),
    }
    assert len({m.source for m in found} | {source}) == len(found) + 1 and len({m.name for m in found}) == len(found)
    for mutant in found:
        ast.parse(mutant.source)
    # A reason given for one outlives a move to another file.
    assert [m.name for m in mutants_of("hf/other.py", source)] == [m.name for m in found]


def test_the_wording_of_messages_is_left_alone():
    from mutants import mutants_of

    source = """
def check(x, y):
    require(x > 0, "x must be positive", x)
    message = "y must be {}, got {}"
    checks.number("z", y)
"""
    found = [(m.before, m.after) for m in mutants_of("f.py", source)]
    assert [before for before, after in found if after.endswith("XX'")] == ["'z'"]
    assert ("require(x > 0, 'x must be positive', x)", "pass") in found


def test_an_interrupted_run_goes_on_and_counts_what_finds_each_fault(monkeypatch, tmp_path, capsys):
    """Two faults in each of two files, of which the tests of one file alone find theirs."""
    import run
    from mutants import mutants_of

    source, files, tried = "def f(x):\n    return x + 1\n", ("linen/a.py", "hf/a.py"), []
    monkeypatch.setattr(run, "FOLDER", tmp_path)
    for file in files:
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text(source)
    drawn = [mutant for file in files for mutant in mutants_of(file, source)]
    own, other = "tests/unit/flax/test_a.py::a", "tests/docs/test_b.py::b"
    found = {"lines": {files[0]: {"2": [own, other]}, files[1]: {"2": [other]}}, "seconds": {own: 1, other: 2}}

    def tests_run(chosen, *_):
        for mutant, tests, _ in chosen:
            if mutant.source == source:  # the control
                yield mutant, "survived", ""
                continue
            if len(tried) == 3:
                tried.append(None)
                raise KeyboardInterrupt
            tried.append(mutant.address)
            yield mutant, *(("killed", own) if own in tests else ("survived", ""))

    monkeypatch.setattr(run, "run", tests_run)
    options = SimpleNamespace(without=[], sample=None, tier="", jobs=1, kept=tmp_path / "kept")
    with pytest.raises(KeyboardInterrupt):
        run.kill(drawn, 4, found, {}, options)
    assert run.kill(drawn, 4, found, {}, options) == 1
    assert [address for address in tried if address] == [mutant.address for mutant in drawn]
    rows = ["| hf | 0 | 0 | 2 | 0 |", "| linen | 2 | 0 | 0 | 0 |", "| all | 2 | 0 | 2 | 0 |"]
    assert "\n".join(rows) in capsys.readouterr().out
    # All have a reason, so nothing is left to find.
    assert run.kill(drawn, 4, found, {mutant.name: "nothing changes" for mutant in drawn}, options) == 0
