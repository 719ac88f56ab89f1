"""The kill matrix: kept and read again, and the cover that is made of it."""

import ast
import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).parent / "mutation"


@pytest.fixture(autouse=True)
def mutation(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in ("run", "cover", "mutants"):
        sys.modules.pop(name, None)


def test_each_mutant_is_one_fault_that_compiles():
    from mutants import mutants_of

    source = "def f(x, y=2):\n    return x + y if x < 3 else x\n"
    found = mutants_of("f.py", source)
    assert {(m.before, m.after) for m in found} >= {("x + y", "x - y"), ("x < 3", "x <= 3"), ("2", "3"), ("3", "4")}
    assert len({m.source for m in found} | {source}) == len(found) + 1 and len({m.name for m in found}) == len(found)
    for mutant in found:
        ast.parse(mutant.source)


def test_the_wording_of_messages_is_left_alone():
    from mutants import mutants_of

    source = """
def check(x, y):
    require(x > 0, "x must be positive", x)
    message = "y must be {}, got {}"
    _checks.require(y == "a", message, "a", y)
    require_type(x, "x", "a number", x)
    _checks.number("z", y)
"""
    found = [(m.before, m.after) for m in mutants_of("f.py", source)]
    assert [before for before, after in found if after.endswith("XX'")] == ["'a'", "'z'"]
    assert ("require(x > 0, 'x must be positive', x)", "pass") in found
    assert ("require_type(x, 'x', 'a number', x)", "pass") in found


def test_a_matrix_is_kept_and_read_again(tmp_path):
    from run import Kills

    tests = {f"tests/test_a.py::test_{i}": 0.1 * i for i in range(6)}
    first, names = Kills(tmp_path / "kills.json"), list(tests)
    first.keep(tests, names[4:], {"m", "n"})
    first.add("m", {names[0], names[1], names[2], names[5]}, {names[3]})
    first.add("m", set(), {names[4]})
    first.add("n", {"import"}, set())
    again = Kills(tmp_path / "kills.json")
    assert again.seconds == tests and again.thorough == set(names[4:]) and again.mutants == first.mutants
    assert again.mutants["m"] == {
        "killed": {names[i] for i in (0, 1, 2, 5)},
        "passed": set(names[3:5]),
        "import": False,
    }
    assert again.mutants["n"]["import"]
    # A test and a mutant that are gone are forgotten; what is known of the others stays, whatever their numbers.
    del tests[names[1]]
    again.keep(tests, names[5:], {"m"})
    again.write()
    assert Kills(tmp_path / "kills.json").mutants == {
        "m": {"killed": {names[i] for i in (0, 2, 5)}, "passed": set(names[3:5]), "import": False}
    }


def test_modules_of_equal_names_are_told_apart():
    from run import MODULES, Finder, module_of, users_of

    assert module_of("nnx/_biases.py") == "nnx._biases" and module_of("nnx/__init__.py") == "nnx"
    assert MODULES["linen._biases"] == "linen/_biases.py" and not {"nnx", "plot", "_figure"} & MODULES.keys()
    assert users_of("nnx/_biases.py") == ["nnx/_biases.py", "nnx/__init__.py"]
    assert {"_rotary.py", "nnx/_encodings.py", "__init__.py"} < set(users_of("_rotary.py"))
    finder = Finder(SimpleNamespace(file="nnx/_biases.py", source="fault = 1"))
    assert finder.find_spec("posenc_jax.linen._biases", None) is None
    spec = finder.find_spec("posenc_jax.nnx._biases", None)
    assert Path(spec.origin).parts[-3:] == ("posenc_jax", "nnx", "_biases.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.fault == 1


def test_a_cover_takes_the_cheap_tests_that_kill_most():
    from cover import cover

    killers = {"a": {"quick", "dear"}, "b": {"quick", "dear"}, "c": {"dear"}, "d": {"alone", "dear"}, "e": set()}
    seconds = {"quick": 0.1, "dear": 50.0, "alone": 1.0}
    assert [name for name, _ in cover(killers, seconds, 1)] == ["quick", "alone", "dear"]
    assert {name for name, _ in cover(killers | {"c": {"quick"}}, seconds, 1)} == {"quick", "alone"}
    assert {name for name, _ in cover({"d": killers["d"]}, seconds, 2)} == {"alone", "dear"}


def test_a_sample_outlives_a_change_of_other_lines(monkeypatch, tmp_path):
    import run

    monkeypatch.setattr(run, "FOLDER", tmp_path)
    source = "".join(f"def f{i}(x):\n    return x + {i}\n" for i in range(40))
    (tmp_path / "_rotary.py").write_text(source)
    before, total, _ = run.draw(["_rotary"], 12, 0)["_rotary"]
    assert len(before) == 12 < total
    (tmp_path / "_rotary.py").write_text("y = -1\n" + source.replace("x + 7", "x * 7"))
    names = [{m.name for m in sample} for sample, *_ in (run.draw(["_rotary"], 12, s)["_rotary"] for s in (0, 1))]
    assert len(names[0] & {m.name for m in before}) >= 10 and names[0] != names[1]
    known = names[1] - names[0]
    assert known <= {m.name for m in run.draw(["_rotary"], 12, 0, known)["_rotary"][0]}


def test_what_the_marks_lose():
    from cover import lost
    from run import Kills

    matrix = Kills(Path("none"))
    matrix.seconds, matrix.thorough = {"a[1]": 1, "a[2]": 1, "b": 1}, {"a[2]", "b"}
    rows = {"x": {"a[1]", "b"}, "y": {"a[2]", "b"}, "z": set()}
    matrix.mutants = {name: {"killed": killed, "passed": set(), "import": False} for name, killed in rows.items()}
    assert lost(matrix) == {"y": {"a", "b"}}


def test_the_matrix_of_the_repository():
    """As far as it was made: a change of the library or of a test does not ask for another."""
    from run import FILES, Kills

    matrix = Kills()
    assert len(matrix.seconds) > 3500 and all("::test_" in name for name in matrix.seconds)
    assert 500 < len(matrix.thorough) < len(matrix.seconds) / 2
    modules = Counter(name.partition(",")[0] for name in matrix.mutants)
    assert set(modules) <= set(FILES) and sum(n >= 12 for n in modules.values()) >= 39
    assert sum(bool(row["killed"] or row["import"]) for row in matrix.mutants.values()) > 0.9 * len(matrix.mutants)
