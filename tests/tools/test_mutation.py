"""Mutants, and the modules in whose place they are imported."""

import ast
import importlib.util
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


def test_modules_of_equal_names_are_told_apart():
    from run import MODULES, Finder, module_of, users_of

    assert module_of("nnx/_biases.py") == "nnx._biases" and module_of("nnx/__init__.py") == "nnx"
    assert MODULES["linen._biases"] == "linen/_biases.py" and not {"nnx", "plot", "plot._figures"} & MODULES.keys()
    assert users_of("nnx/_biases.py") == ["nnx/_biases.py", "nnx/__init__.py"]
    assert {"_rotary/rotary.py", "nnx/_encodings.py", "__init__.py"} < set(users_of("_rotary/rotary.py"))
    finder = Finder(SimpleNamespace(file="nnx/_biases.py", source="fault = 1"))
    assert finder.find_spec("posenc_jax.linen._biases", None) is None
    spec = finder.find_spec("posenc_jax.nnx._biases", None)
    assert Path(spec.origin).parts[-3:] == ("posenc_jax", "nnx", "_biases.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.fault == 1


def test_a_sample_outlives_a_change_of_other_lines(monkeypatch, tmp_path):
    import run

    monkeypatch.setattr(run, "FOLDER", tmp_path)
    source = "".join(f"def f{i}(x):\n    return x + {i}\n" for i in range(40))
    (tmp_path / "kernels.py").write_text(source)
    before, total = run.draw(["kernels"], 12, 0)
    assert len(before) == 12 < total
    (tmp_path / "kernels.py").write_text("y = -1\n" + source.replace("x + 7", "x * 7"))
    names = [{m.name for m in run.draw(["kernels"], 12, seed)[0]} for seed in (0, 1)]
    assert len(names[0] & {m.name for m in before}) >= 10 and names[0] != names[1]


def test_calls_lose_and_swap_arguments_and_dtypes_change():
    from mutants import mutants_of

    found = {(m.before, m.after) for m in mutants_of("f.py", "y = f(a, b, axis=0, dtype=jnp.float32)\n")}
    assert found >= {
        ("f(a, b, axis=0, dtype=jnp.float32)", "f(b, a, axis=0, dtype=jnp.float32)"),
        ("f(a, b, axis=0, dtype=jnp.float32)", "f(a, b, dtype=jnp.float32)"),
        ("f(a, b, axis=0, dtype=jnp.float32)", "f(a, b, axis=0)"),
        ("jnp.float32", "jnp.float16"),
        ("0", "1"),
    }


def test_a_judgement_outlives_a_move():
    from mutants import mutants_of

    source = "def f(x):\n    return x + 1\n\n\ndef g(x):\n    return x + 1\n"
    here, there = ({m.name for m in mutants_of(file, source)} for file in ("_rotary/a.py", "hf/b.py"))
    assert here == there and len(here) == 4 and any(name.startswith("g, return x + 1: ") for name in here)


def test_a_sample_has_the_share_of_each_room():
    from run import draw

    modules = ["_positions.spans", "_positions.grids", "_jax.errors", "_flax.settings"]
    every, total = draw(modules, None, 0)
    drawn, same = draw(modules, 30, 7)
    assert len(every) == total == same and len(drawn) == 30
    for room in ("_positions", "_jax", "_flax"):
        share = sum(m.room == room for m in every) / total * 30
        assert abs(sum(m.room == room for m in drawn) - share) <= 1, room


def test_the_tests_of_its_own_room_come_first():
    from run import MODULES, TESTS, own_tests, tests_for

    mutant = SimpleNamespace(file="_rotary/rotary.py", room="_rotary", lines=(3,))
    own, other = "tests/unit/rotary/test_rotary.py", "tests/properties/test_sharding.py"
    cases = [f"{other}::b[0]", f"{other}::b[1]", f"{own}::a[0]", f"{own}::a[1]", f"{own}::c"]  # the cheapest first
    found = {"lines": {mutant.file: {"3": cases[::2]}}, "seconds": {case: i for i, case in enumerate(cases)}}
    assert tests_for(mutant, found) == [cases[i] for i in (2, 4, 3, 0, 1)]
    rooms = {module.partition(".")[0] for module in MODULES}
    assert all(any(test.startswith(own_tests(room)) for test in TESTS) for room in rooms)


@pytest.fixture
def judged(monkeypatch, tmp_path):
    """Judges the same four faults, two in each of two files, by four tests that are not run: `failing` fails."""
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

    def judge(failing, stop=9, reasons=(), **options):
        def tests_run(chosen, *_):
            for mutant, tests, _ in chosen:
                if mutant.source != source:
                    if len(tried) == stop:
                        raise KeyboardInterrupt
                    tried.append((mutant.room, mutant.after, len(tests)))
                failed = {failing} & {*tests} if mutant.source != source else set()
                yield mutant, "killed" if failed else "survived", failed

        tried.clear()
        monkeypatch.setattr(run, "run", tests_run)
        given = {"without": [], "fresh": False, "sample": None, "tier": "", "jobs": 1, "kept": tmp_path / "kept"}
        return run.kill(drawn, 4, found, reasons, SimpleNamespace(**given | options))

    judge.own, judge.other, judge.tried, judge.names = own, other, tried, [mutant.name for mutant in drawn]
    return judge


def test_an_interrupted_run_goes_on(judged, capsys):
    with pytest.raises(KeyboardInterrupt):
        judged(judged.own, stop=3)
    assert [room for room, *_ in judged.tried] == ["linen", "linen", "hf"]
    assert judged(judged.own) == 1 and judged.tried == [("hf", "2", 1)]
    assert capsys.readouterr().out.endswith(" s\n") and judged(judged.own) == 1 and not judged.tried
    assert capsys.readouterr().out.split("\n")[1:6] == [
        "| room | found by its own tests | by others | by none | judged |",
        "| --- | --- | --- | --- | --- |",
        "| hf | 0 | 0 | 2 | 0 |",
        "| linen | 2 | 0 | 0 | 0 |",
        "| all | 2 | 0 | 2 | 0 |",
    ]
    reasons = dict.fromkeys(judged.names, "nothing changes")
    assert judged(judged.own, reasons=reasons) == 0 and not judged.tried
    assert "| hf | 0 | 0 | 0 | 2 |" in capsys.readouterr().out
    assert judged(judged.other, reasons=reasons, fresh=True) == 0 and len(judged.tried) == 4
    assert "| all | 0 | 4 | 0 | 0 |" in capsys.readouterr().out


def test_tests_that_are_to_be_deleted_do_not_run(judged):
    assert judged(judged.other, without=["tests/unit/flax"]) == 0
    assert judged.tried == [("linen", "x - 1", 1), ("linen", "2", 1)]
    assert judged(judged.own, without=["tests/nowhere"]) == 0 and not judged.tried
