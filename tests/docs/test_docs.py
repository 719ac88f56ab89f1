"""The pages: every block of code, figure, public name and path is where it should be. `nox -s docs` runs the code."""

import ast
import hashlib
import importlib
import re

import pytest

from helpers.pages import ROOT, program

DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
CODE = sorted(name for name, text in PAGES.items() if "```python" in text)


def includes(kind, text):
    return re.findall(rf'^ *--8<-- "{kind}/([\w.]+)"$', text, flags=re.MULTILINE)


def test_no_block_of_python_is_overlooked():
    for page in CODE:
        assert len(program("outputs").blocks_of(DOCS / page)) == PAGES[page].count("```python"), page
    assert not [name for name, text in PAGES.items() if re.search(r"^ *```(py|python3|pycon)\b", text, re.MULTILINE)]


def test_no_output_is_shown_by_two_pages():
    shown = [name for text in PAGES.values() for name in set(includes("outputs", text))]
    assert shown and len(shown) == len(set(shown))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("print(1)\n```\n", "line 2: the block prints what the page does not include"),
        ('x = 1\n```\n\n--8<-- "outputs/x.md"\n', "line 2: the block prints nothing, but the page includes it"),
        (2 * 'print(1)\n```\n\n--8<-- "outputs/x.md"\n\n```python\n', "line 8: .* included as another's"),
        ('# needs Flax 0.1\nprint(1)\n```\n\n--8<-- "outputs/x.md"\n', "line 2: .* so it must print nothing"),
    ],
)
def test_a_page_that_shows_something_else_is_refused(tmp_path, code, message):
    page = tmp_path / "page.md"
    page.write_text(f"```python\n{code}")
    with pytest.raises(RuntimeError, match=message):
        program("outputs").run(page)


def test_a_block_that_needs_a_newer_flax_is_not_run(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("```python\n# needs Flax 99.0\nassert False\n```\n")
    assert program("outputs").run(page) == {} and "line 2 needs Flax 99.0" in capsys.readouterr().out
    page.write_text("```python\n# needs Flax 0.1\nassert False\n```\n")
    with pytest.raises(AssertionError):
        program("outputs").run(page)


def test_every_figure_is_shown_described_and_drawn_without_arguments():
    code = [ast.parse(path.read_text(encoding="utf-8")).body for path in (DOCS / "drawings").glob("*.py")]
    functions = [node for body in code for node in body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]
    shown = {name.removesuffix(".md") for text in PAGES.values() for name in includes("figures", text)}
    assert sorted(function.name for function in functions) == sorted(shown)
    assert not [f.name for f in functions if f.args.args or not ast.get_docstring(f)]


def test_every_public_name_is_on_an_api_page():
    entries = program("entries")
    modules = [
        importlib.import_module(f"posenc_jax{name}") for name in ("", ".hf", ".kernels", ".nnx", ".linen", ".plot")
    ]
    public = [f"{module.__name__}.{name}" for module in modules for name in module.__all__]
    pages = [entries.completed(text) for name, text in PAGES.items() if re.fullmatch(r"api/(?!index)\w+\.md", name)]
    assert sorted(name for page in pages for name in entries.ENTRY.findall(page)) == sorted(public)


@pytest.mark.parametrize(
    ("code", "shown", "folded"),
    [
        ("x = 1\n# why\nassert x == (\n    1\n)\nassert x\n", "x = 1\n", "# why\nassert x == (\n    1\n)\nassert x\n"),
        ("x = 1\nassert x\ny = 2\n", "x = 1\nassert x\ny = 2\n", ""),  # only at the end
        ("import math\n\nassert math.pi\n", "import math\n\nassert math.pi\n", ""),  # nothing would be left
    ],
)
def test_assertions_at_the_end_of_a_block_are_folded(code, shown, folded):
    assert program("folding").split(code) == (shown, folded)


def test_a_folded_check_stands_below_what_the_block_prints():
    text = '```python\nprint(1)\nassert 1\n```\n\n```text\n--8<-- "outputs/x.txt"\n```\n\nMore.\n'
    shown, check = program("folding").fold(text).split("??? success")
    assert shown.endswith('outputs/x.txt"\n```\n\n') and check.endswith("    assert 1\n    ```\n\nMore.\n")


@pytest.mark.parametrize("page", CODE)
def test_no_line_of_code_is_lost_by_folding(page):
    lines = re.compile(r"^ *(?!```|\?\?\?)(\S.*)$", flags=re.M)
    assert sorted(lines.findall(program("folding").fold(PAGES[page]))) == sorted(lines.findall(PAGES[page]))


@pytest.mark.parametrize("folder", ["docs/assets/katex", "docs/assets/iframe-worker", "tests/docs/browser/axe"])
def test_what_is_vendored_is_what_its_origin_says(folder):
    origin = (ROOT / folder / "ORIGIN.txt").read_text(encoding="utf-8")
    sums = {name: of_file for of_file, name in re.findall(r"^([0-9a-f]{64})  (\S+)$", origin, flags=re.MULTILINE)}
    files = [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.name != "ORIGIN.txt"]
    assert {p.relative_to(ROOT / folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files} == sums
    assert "LICENSE" in sums
