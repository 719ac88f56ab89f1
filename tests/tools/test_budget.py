"""The budget: prose is not counted as code, strings of tests cost their length, and a number above its budget fails."""

from tools import budget

# A small project, and a budget of more tokens for its tests than they have
TOML = "[tokens]\npackage = 3\nhf = 0\ntests = 50\n[site]\nwords = 6\npages = 1\nhome_kilobytes = 2\n"
FILES = {
    "posenc_jax/hf/a.py": "",
    "tests/unit/test_a.py": "x, '12345678'\n",
    "docs/index.md": "a b c",
    "docs/notebooks/b.md": "d e f",
    "mkdocs.yml": "docs_dir: docs\nnav:\n  - Home: index.md\n",
    "site/index.html": "x" * 2000,
    "tests/budget.toml": TOML,
}


def test_tokens_are_counted_without_docstrings_comments_and_layout():
    # Tokens: X = 1 (3); def f ( x ) : (6); "not one" (1, or 3 by its characters); return x (2)
    source = '"""Module."""\n\nX = 1  # comment\n\n\ndef f(x):\n    """Docstring."""\n    "not one"\n    return x\n'
    assert budget.tokens(source) == 3 + 6 + 1 + 2
    assert budget.tokens(source, characters=True) == 3 + 6 + 3 + 2


def test_a_number_above_its_budget_fails_and_a_smaller_one_lowers_it(tmp_path, capsys):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    file, package = tmp_path / "tests/budget.toml", tmp_path / "posenc_jax/a.py"
    package.write_text("x = 1\n")
    assert budget.main(tmp_path) == 0 and file.read_text() == TOML
    package.write_text("x = 1\ny\n")
    assert budget.main(tmp_path, lower=True) == 1
    assert "Over budget: tokens.package by 1." in capsys.readouterr().out
    assert file.read_text() == TOML.replace("50", "5")
    # The project's own budget has a number for each that is measured.
    limits = budget.allowed(budget.BUDGET.read_text(encoding="utf-8"))
    assert {name for name in limits if not name.startswith("programs.")} == {*budget.measured(tmp_path)}
