"""The documentation's pages: their code and figures are found, every public name has its place. `nox -s docs` runs both."""

import ast
import hashlib
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.pages import program

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
MODULES = {
    path.stem: program("entries").completed(path.read_text(encoding="utf-8"))
    for path in (DOCS / "api").glob("*.md")
    if path.stem != "index"
}
CODE = sorted(name for name, text in PAGES.items() if "```python" in text)


def python(*args, **environment):
    """A program as a user runs it: without this process's settings of JAX."""
    env = os.environ | {"JAX_PLATFORMS": "cpu"} | environment
    return subprocess.run([sys.executable, *map(str, args)], capture_output=True, text=True, env=env)


def includes(kind, text):
    return re.findall(rf'^ *--8<-- "{kind}/([\w.]+)"$', text, flags=re.MULTILINE)


def test_no_block_is_overlooked_and_no_output_is_shown_by_two_pages():
    outputs = program("outputs")
    assert {"index.md", "rope.md", "flax.md"} <= set(CODE)
    for page in CODE:
        assert len(outputs.blocks_of(DOCS / page)) == PAGES[page].count("```python"), page
    shown = [name for text in PAGES.values() for name in set(includes("outputs", text))]
    assert len(shown) == len(set(shown)) > 20
    # The only fences without a language show what was printed elsewhere.
    assert not [name for name, text in PAGES.items() if re.search(r"^ *```(py|python3|pycon)\b", text, re.MULTILINE)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "code, message",
    [
        ("print(1)", "prints what the page does not include"),
        ('x = 1\n```\n\n```text\n--8<-- "outputs/x.txt"', "prints nothing"),
        (
            'print(1)\n```\n\n--8<-- "outputs/x.md"\n\n```python\nprint(2)\n```\n\n--8<-- "outputs/x.md"\n\n```',
            "as another's",
        ),
        ("\nraise ValueError('wrong')", 'page.md", line 5, in <module>'),
    ],
)
def test_a_page_that_shows_something_else_is_refused(tmp_path, code, message):
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n```python\n{code}\n```\n")
    result = python(DOCS / "outputs.py", page, "--includes", tmp_path)
    assert result.returncode == 1 and message in result.stderr


def test_a_block_that_needs_a_newer_flax_is_shown_and_not_run(tmp_path, capsys):
    run, page = program("outputs").run, tmp_path / "page.md"
    page.write_text("```python\n# needs Flax 0.12.7\nassert False\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError):
        run(page)
    page.write_text("```python\n# needs Flax 99.0\nassert False\n```\n", encoding="utf-8")
    assert run(page) == {} and "line 2 needs Flax 99.0 and is not run" in capsys.readouterr().out
    page.write_text('```python\n# needs Flax 0.12.7\nprint(1)\n```\n\n--8<-- "outputs/x.txt"\n', encoding="utf-8")
    with pytest.raises(
        RuntimeError, match="page.md, line 2: the block is not run on every Flax, so it must print nothing"
    ):
        run(page)


def test_every_figure_is_shown_and_every_shown_figure_is_drawn():
    drawn = [
        node
        for path in (DOCS / "drawings").glob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]
    shown = {name.removesuffix(".md") for text in PAGES.values() for name in includes("figures", text)}
    assert sorted(node.name for node in drawn) == sorted(shown)
    for node in drawn:
        assert len(ast.get_docstring(node) or "") > 80, f"{node.name}: what is to be seen is not said"
        assert not node.args.args, node.name


@pytest.mark.slow
def test_figures_are_the_same_in_every_run(tmp_path):
    for folder in "ab":
        where = ["--figures", tmp_path / folder, "--includes", tmp_path / folder]
        result = python(DOCS / "figures.py", "mesh", "torn", "three_tokens", *where, PYTHONHASHSEED=str(ord(folder)))
        assert result.returncode == 0, result.stderr
    files = {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()}
    assert len(files) == 9 and files == {p.name: p.read_bytes() for p in (tmp_path / "b").iterdir()}
    assert files["mesh.svg"] != files["mesh_dark.svg"]
    assert b"![Heatmap of 128 positions by 256 features" in files["mesh.md"]


def shown(text):
    """The names that a page shows, and the module whose text introduces it, if one does."""
    names = re.findall(r"^::: ([\w.]+)$", text, flags=re.MULTILINE)
    (introduction,) = re.findall(r"^::: ([\w.]+)\n    options: {members: false", text, flags=re.MULTILINE) or [None]
    return [name for name in names if name != introduction], introduction


def test_every_public_name_is_on_an_api_page():
    apart = "hf", "kernels", "nnx", "linen", "plot"  # what users import by name
    modules = ["posenc_jax", *(f"posenc_jax.{name}" for name in apart)]
    public = [f"{module}.{name}" for module in modules for name in importlib.import_module(module).__all__]
    assert sorted(name for text in MODULES.values() for name in shown(text)[0]) == sorted(public)
    for page, text in MODULES.items():
        names, introduction = shown(text)
        module = f"posenc_jax.{page}" if page in apart else "posenc_jax"
        assert {name.rpartition(".")[0] for name in names} == {module}, page
        if introduction:
            introduced = importlib.import_module(introduction)
            assert introduced.__doc__ and hasattr(introduced, names[0].rpartition(".")[2]), page


def included(path, section):
    """The lines of a file between the marks of a section, as the site takes them in."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return re.search(rf"--8<-- \[start:{section}\]\n(.*)^[^\n]*--8<-- \[end:{section}\]", text, flags=re.M | re.S)[1]


@pytest.mark.parametrize("name", ["README.md", *(f"docs/{name}" for name in sorted(PAGES))])
def test_code_is_set_in_80_columns(name):
    """So that it fits on a page, as 105 do in the smaller type of `.long-lines`; on a phone it scrolls."""
    text = (ROOT / name).read_text(encoding="utf-8")
    fences = re.findall(r"^( *)```([ {.]*(?:python|bash)\b[^\n]*)\n(.*?)^\1```$", text, flags=re.M | re.S)
    for indent, kind, code in fences:
        code = re.sub(r'--8<-- "([^":]+):(\w+)"\n', lambda include: included(*include.groups()), code)
        room = len(indent) + (105 if ".long-lines" in kind else 80)
        assert [line for line in code.splitlines() if len(line) > room] == []


@pytest.mark.parametrize("name", sorted(PAGES))
def test_columns_have_names_in_words(name):
    """A screen reader takes a header that is a formula alone for an empty one."""
    headers = re.findall(r"^ *\|(.*)\|\n *\|[-: |]+\|$", PAGES[name], flags=re.M)
    assert [cell for row in headers for cell in row.split(" | ") if re.fullmatch(r"\s*\$[^$]+\$\s*", cell)] == []


@pytest.mark.parametrize(
    "code, shown, folded",
    [
        ("x = 1\nassert x\n", "x = 1\n", "assert x\n"),
        ("x = 1\n# why\nassert x == (\n    1\n)\nassert x\n", "x = 1\n", "# why\nassert x == (\n    1\n)\nassert x\n"),
        ("x = 1\nassert x\ny = 2\n", "x = 1\nassert x\ny = 2\n", ""),  # only at the end
        ("import math\n\nassert math.pi\n", "import math\n\nassert math.pi\n", ""),  # nothing would be left
    ],
)
def test_assertions_at_the_end_of_a_block_are_folded(code, shown, folded):
    assert program("folding").split(code) == (shown, folded)


def test_no_line_of_code_is_lost_by_folding():
    folding, lines = program("folding"), re.compile(r"^ *(?!```|\?\?\?)(\S.*)$", flags=re.M)
    for name in CODE:
        assert sorted(lines.findall(folding.fold(PAGES[name]))) == sorted(lines.findall(PAGES[name])), name
    text = '```python\nx = 1\nprint(x)\nassert x\n```\n\n```text\n--8<-- "outputs/x.txt"\n```\n\nMore.\n'
    shown, check = folding.fold(text).split("??? success")
    assert shown.endswith('outputs/x.txt"\n```\n\n') and check.endswith("    assert x\n    ```\n\nMore.\n")


def test_every_page_is_in_the_navigation():
    listed = re.findall(
        r"^ +- .*: ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert sorted(listed) == sorted(PAGES)


@pytest.mark.parametrize("folder", ["docs/assets/katex", "docs/assets/iframe-worker", "tests/docs/browser/axe"])
def test_what_is_vendored_is_what_its_origin_says(folder):
    origin = (ROOT / folder / "ORIGIN.txt").read_text(encoding="utf-8")
    sums = dict(re.findall(r"^([0-9a-f]{64})  (\S+)$", origin, flags=re.MULTILINE))
    files = [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.name != "ORIGIN.txt"]
    assert {hashlib.sha256(p.read_bytes()).hexdigest(): p.relative_to(ROOT / folder).as_posix() for p in files} == sums
    assert "LICENSE" in sums.values() and re.search(r" \d+\.\d+\.\d+, from the npm registry", origin)
