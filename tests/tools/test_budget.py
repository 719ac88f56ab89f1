"""The budget of what the project holds: what is counted, and what happens above it."""

import re

import pytest

from tools import budget

SOURCE = '''"""A module."""

X = 1  # a comment


def f(x):
    """A docstring."""
    "not one"
    return x
'''
TOML = "[tokens]\npackage = 100\nhf = 0\ntests = 50\n[site]\nwords = 6\npages = 1\nhome_kilobytes = 2\n"


def test_tokens_are_those_of_code():
    # X = 1; def f ( x ) :; "not one"; return x
    assert budget.tokens(SOURCE) == 3 + 6 + 1 + 2
    assert budget.tokens("class A:\n    '''doc'''\n\n    x: int = 2\n") == 3 + 5
    assert budget.tokens("def f(): 'doc'") == 5


def project(folder, words="a b c", pages=1, home=2000, source="x = 1\n", hf="", test="x\n"):
    """A project of a package, a test and pages, with a built home page, and its budget."""
    for name, text in {
        "posenc_jax/a.py": source,
        "posenc_jax/hf/a.py": hf,
        "tests/unit/test_a.py": test,
        "docs/index.md": words,
        "docs/notebooks/b.md": "d e f",
        "mkdocs.yml": "docs_dir: docs\nnav:\n" + "  - Home: index.md\n" * pages,
        "site/index.html": "x" * home,
        "tests/budget.toml": TOML,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder, folder / "tests" / "budget.toml"


@pytest.mark.parametrize(
    ("changes", "over"),
    [
        ({}, []),
        ({"source": "x = 1\n" * 34}, ["tokens.package"]),
        ({"hf": "x"}, ["tokens.hf"]),
        ({"test": "x\n" * 51}, ["tokens.tests"]),
        ({"words": "a b c d"}, ["site.words"]),
        ({"pages": 2}, ["site.pages"]),
        ({"home": 2001}, ["site.home_kilobytes"]),
    ],
)
def test_a_number_above_its_budget_fails(tmp_path, capsys, changes, over):
    root, file = project(tmp_path, **changes)
    assert budget.main(root, file, []) == bool(over) and file.read_text() == TOML
    assert re.findall(r"Over budget: (.*?)\. Cut", capsys.readouterr().out) == over


def test_numbers_are_lowered_and_never_raised(tmp_path):
    root, file = project(tmp_path, words="a b c d e", home=900)
    assert budget.main(root, file, ["--lower"]) == 1
    assert file.read_text() == TOML.replace("100", "3").replace("50", "1").replace("kilobytes = 2", "kilobytes = 1")


def test_the_budget_of_the_project_names_what_is_measured(tmp_path):
    limits = budget.allowed(budget.BUDGET.read_text(encoding="utf-8"))
    named = {name for name in limits if not name.startswith("programs.")}
    assert named == {*budget.measured(project(tmp_path)[0])}
