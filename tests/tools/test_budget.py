"""The budget of what the project holds: code is counted without its prose, and a number above its budget fails."""

from tools import budget

TOML = "[tokens]\npackage = 3\nhf = 0\ntests = 50\n[site]\nwords = 6\npages = 1\nhome_kilobytes = 2\n"


def project(folder, source):
    """A project with a package, a test, pages and a built home page."""
    for name, text in {
        "posenc_jax/a.py": source,
        "posenc_jax/hf/a.py": "",
        "tests/unit/test_a.py": "x\n",
        "docs/index.md": "a b c",
        "docs/notebooks/b.md": "d e f",
        "mkdocs.yml": "docs_dir: docs\nnav:\n  - Home: index.md\n",
        "site/index.html": "x" * 2000,
        "tests/budget.toml": TOML,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder, folder / "tests" / "budget.toml"


def test_tokens_are_those_of_code():
    # X = 1; def f ( x ) :; "not one"; return x
    source = '"""Module."""\n\nX = 1  # comment\n\n\ndef f(x):\n    """Docstring."""\n    "not one"\n    return x\n'
    assert budget.tokens(source) == 3 + 6 + 1 + 2


def test_a_number_above_its_budget_fails_and_a_smaller_one_lowers_it(tmp_path, capsys):
    root, file = project(tmp_path, "x = 1\n")
    assert budget.main(root, file, []) == 0 and file.read_text() == TOML
    project(tmp_path, "x = 1\ny\n")
    assert budget.main(root, file, ["--lower"]) == 1
    assert "Over budget: tokens.package." in capsys.readouterr().out
    assert file.read_text() == TOML.replace("50", "1")


def test_the_budget_of_the_project_names_what_is_measured(tmp_path):
    limits = budget.allowed(budget.BUDGET.read_text(encoding="utf-8"))
    measured = budget.measured(project(tmp_path, "")[0])
    assert {name for name in limits if not name.startswith("programs.")} == {*measured}
