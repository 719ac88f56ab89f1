"""The programs of docs/ that make the pages: no block is overlooked, no line lost, and no wrong output shown.

- `outputs` runs the blocks of Python and rejects pages that include something else than what a block printed.
- `folding` hides assertions at the end of a block; `entries` writes the reference, with every public name.
- Vendored files are the ones of their origin.

`nox -s docs` runs these programs over all pages, and tests/docs/site reads what they made.
"""

import hashlib
import importlib
import re

import pytest

from helpers.pages import ROOT, program

DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}


def test_every_block_of_python_is_run_and_kept_by_folding():
    """`outputs` finds every fence of Python, and `folding` only moves lines."""
    lines = re.compile(r"^ *(?!```|\?\?\?)(\S.*)$", flags=re.M)
    for page, text in PAGES.items():
        assert len(program("outputs").blocks_of(DOCS / page)) == text.count("```python"), page
        assert not re.search(r"^ *```(py|python3|pycon)\b", text, re.MULTILINE), page
        assert sorted(lines.findall(program("folding").fold(text))) == sorted(lines.findall(text)), page


def test_no_output_is_shown_by_two_pages():
    shown = [name for text in PAGES.values() for name in {*re.findall(r'--8<-- "outputs/([\w.]+)"', text)}]
    assert shown and len(shown) == len(set(shown))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("print(1)\n```\n", "line 2: .* prints what the page does not include"),
        ('x = 1\n```\n\n--8<-- "outputs/x.md"\n', "line 2: .* prints nothing"),
        (2 * 'print(1)\n```\n\n--8<-- "outputs/x.md"\n\n```python\n', "line 8: .* included as another's"),
    ],
)
def test_a_page_that_shows_something_else_is_refused(tmp_path, code, message):
    page = tmp_path / "page.md"
    page.write_text(f"```python\n{code}")
    with pytest.raises(RuntimeError, match=message):
        program("outputs").run(page)


@pytest.mark.parametrize(("version", "runs"), [("99.0", False), ("0.1", True)])
def test_a_block_that_needs_a_newer_flax_is_not_run(version, runs):
    assert (program("outputs").too_new(f"# needs Flax {version}\n") is None) == runs


def test_every_public_name_is_on_an_api_page():
    """An API page has an entry for it, written there or completed by `entries`."""
    entries = program("entries")
    shown = " ".join(entries.completed(text) for name, text in PAGES.items() if name.startswith("api/"))
    for module in ("", ".hf", ".kernels", ".nnx", ".linen", ".plot"):
        module = importlib.import_module(f"posenc_jax{module}")
        missing = {f"{module.__name__}.{name}" for name in module.__all__} - {*entries.ENTRY.findall(shown)}
        assert missing == set()


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


@pytest.mark.parametrize("folder", ["docs/assets/katex", "docs/assets/iframe-worker", "tests/docs/browser/axe"])
def test_what_is_vendored_is_what_its_origin_says(folder):
    """Each file has the SHA-256 that ORIGIN.txt lists, and the license is among the files."""
    origin = (ROOT / folder / "ORIGIN.txt").read_text(encoding="utf-8")
    sums = {name: digest for digest, name in re.findall(r"^([0-9a-f]{64})  (\S+)$", origin, flags=re.MULTILINE)}
    assert "LICENSE" in sums
    for path in (ROOT / folder).rglob("*"):
        if path.is_file() and path.name != "ORIGIN.txt":
            name = path.relative_to(ROOT / folder).as_posix()
            assert hashlib.sha256(path.read_bytes()).hexdigest() == sums[name], name
