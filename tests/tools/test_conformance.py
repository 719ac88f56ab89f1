"""The vectors of conformance/ are what the formulas give, this library passes all, and a wrong library fails.

The runner tells a missing function, an error, a wrong formula and float32 phases apart, and says how to repeat a case.
"""

import importlib
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from conformance import formulas, run, vectors
from conformance.adapters import NotOffered
from helpers.pages import text_of
from oracles import encodings, rotations, spectra

CASES = run.load()
# The first case of each function
FIRSTS = [*{(case["group"], case["function"]): case for case in reversed(CASES)}.values()]


def named(pattern):
    """The cases whose whole name matches; at least one."""
    found = [case for case in CASES if re.fullmatch(pattern, case["name"])]
    assert found, pattern
    return found


def outcomes(adapter, cases):
    return {case["name"]: run.judge(case, adapter)[0] for case in cases}


@pytest.mark.parametrize(
    "cases", [FIRSTS, pytest.param(CASES, marks=pytest.mark.slow)], ids=["the first of each function", "all"]
)
def test_this_library_passes(cases):
    adapter = importlib.import_module("conformance.adapters.posenc_jax")
    assert not [name for name, outcome in outcomes(adapter, cases).items() if outcome != run.PASSED]


@pytest.mark.slow
def test_the_vectors_are_what_the_formulas_give():
    for group, cases in vectors.GROUPS.items():
        committed = (vectors.FOLDER / f"{group}.json").read_text(encoding="utf-8")
        assert committed == vectors.text(group, cases()), group


def wrong(function, **changes):
    """A library of one function: its mpmath formula, after `changes` of arguments, each by a function of all of them.

    Without changes it is right.
    """

    def f(**arguments):
        return formulas.FUNCTIONS[function](**arguments | {k: v(arguments) for k, v in changes.items()})

    return SimpleNamespace(**{function: f})


def other_layout(arguments):
    return {"half": "interleaved", "interleaved": "half"}[arguments["layout"]]


# (function, the arguments that a mistake changes, a pattern of the names of the cases that show it)
WRONG = [
    ("rotary", {"layout": other_layout}, "(rotary-8|partial|axes)-(?!encoding).*-near"),
    ("rotary", {"base": lambda a: a["base"] * 1.001}, "rotary-8-.*"),
    ("rotary", {"scaling": lambda a: None}, "scaling-(?!dynamic.*near).*"),
    ("rotary", {"rotary_width": lambda a: len(a["x"])}, "partial-.*"),
    ("xpos", {"of": lambda a: "query"}, "xpos-key-.*"),
    ("timestep", {"cosines_first": lambda a: not a["cosines_first"]}, "timestep-.*"),
    ("alibi", {"heads": lambda a: 2 ** (a["heads"] - 1).bit_length()}, "alibi-(3|6|12)-.*"),
    ("t5", {"max_distance": lambda a: a["max_distance"] - 1}, "t5-.*-edges"),
    ("attention", {"window": lambda a: (None, None)}, "attention-(left|right|both|sliding).*-(near|far)"),
    ("attention", {"sinks": lambda a: None}, "attention-(sliding-sinks|sinks|all)-(near|decode|far)"),
]


@pytest.mark.parametrize(("function", "changes", "pattern"), WRONG)
def test_a_wrong_library_fails_every_case_that_shows_it(function, changes, pattern):
    assert set(outcomes(wrong(function), named(pattern)).values()) == {run.PASSED}
    assert set(outcomes(wrong(function, **changes), named(pattern)).values()) == {run.FAILED}


def test_float32_phases_fail_and_are_told_from_wrong_formulas():
    def float32_phases(positions, x, rotary_width, base, layout):
        phases = encodings.float32_phases(positions, spectra.geometric(rotary_width, base))
        return rotations.rotate_by([x] * len(phases), phases, layout)

    def reasons(adapter, pattern):
        """The different (outcome, reason) of the cases."""
        return {run.judge(case, adapter)[::2] for case in named(pattern)}

    rounded = SimpleNamespace(rotary=float32_phases)
    assert reasons(rounded, "rotary-.*-half-(text|long)") == {(run.FAILED, run.ROUNDED)}
    assert reasons(rounded, "rotary-.*-half-far") == {(run.FAILED, run.LOST)}
    mistaken = wrong("rotary", base=lambda a: a["base"] * 1.01)
    assert not {why for _, why in reasons(mistaken, "rotary-8-.*-(near|text)")} & {run.ROUNDED, run.LOST}


def test_what_is_not_offered_is_no_failure_and_an_error_is():
    [case] = named("rotary-8-10000-half-near")
    right = wrong("rotary").rotary

    def judged(result):
        """(outcome, reason) for a library whose `rotary` is this function."""
        return run.judge(case, SimpleNamespace(rotary=result))[::2]

    def raises(error):
        def f(**arguments):
            raise error

        return f

    assert run.judge(case, SimpleNamespace())[0] == run.ABSENT
    assert judged(raises(NotOffered("x"))) == (run.ABSENT, "x")
    assert judged(raises(ValueError("y\nz"))) == (run.FAILED, "ValueError: y")
    assert judged(lambda **a: right(**a)[1:]) == (run.FAILED, "shape (7, 8), expected (8, 8)")
    assert judged(lambda **a: np.array(right(**a), float) * np.nan)[0] == run.FAILED


def test_the_program_reports_a_failure_and_how_to_repeat_it(monkeypatch, capsys, tmp_path):
    # The second case is a bias, which the library lacks.
    broken = SimpleNamespace(NAME="broken", PACKAGES=("numpy",), **vars(wrong("rotary", layout=other_layout)))
    monkeypatch.setitem(sys.modules, "conformance.adapters.gemma", broken)
    monkeypatch.setattr(run, "afresh", lambda name, cases: f"{name} {cases[-1]}: failed, error 1, allowed 3.2e-07")
    page, case = tmp_path / "table.md", "rotary-8-10000-half-near"
    arguments = ["--adapter", "gemma", "--case", case, "alibi-12-decode"]
    assert run.main(arguments) == 1 and run.main([*arguments, "--markdown", str(page)]) == 0
    assert f"{case}: failed, error" in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert "| rotary | 0 of 1 |\n" in text and "| bias | – |\n" in text
    assert text.count(f"conformance.run --adapter gemma --case {case}  # error") == 1
    broken.rotary = wrong("rotary").rotary
    assert run.main(arguments) == 0


def test_the_file_that_readme_shows_runs_and_one_that_offers_nothing_fails(capsys, monkeypatch, tmp_path):
    library = SimpleNamespace(sinusoids=lambda *arguments: encodings.encode(*arguments, "half"))
    monkeypatch.setitem(sys.modules, "my_library", library)
    mine = tmp_path / "mine.py"
    code = re.search(r"```python\n(.*?)```", text_of("conformance/README.md"), re.DOTALL)[1]
    mine.write_text(code)
    assert run.main(["--adapter", str(mine)]) == 0
    assert "| sinusoidal | 20 of 20 |" in capsys.readouterr().out
    mine.write_text(code.replace("def sinusoidal", "def sinusoid"))
    assert run.main(["--adapter", str(mine)]) == 1
    said = capsys.readouterr()
    assert "58 cases: no sinusoidal" in said.out and "no case calls sinusoid;" in said.err
    monkeypatch.setattr(run, "repeat", lambda name, earlier, case, why: [case])
    mine.write_text(code.replace(", axes=None", ""))
    assert run.main(["--adapter", str(mine)]) == 1
    assert capsys.readouterr().out.count(" argument 'axes'") == 1
    for name, message in (("mine", "no adapter mine: there are posenc_jax, "), ("none.py", "no file none.py")):
        with pytest.raises(SystemExit):
            run.main(["--adapter", name])
        assert message in capsys.readouterr().err


def test_neither_the_runner_nor_the_formulas_import_a_library():
    code = "import sys, conformance.run, conformance.vectors; print({'posenc_jax', 'jax', 'torch'} & set(sys.modules))"
    folder = vectors.FOLDER.parents[1]
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)
    assert result.stdout == "set()\n", result.stderr
