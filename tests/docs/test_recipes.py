"""The page of recipes: short, proved, linked both ways. `nox -s docs` runs its code."""

import importlib
import re
from pathlib import Path

import pytest

from helpers.pages import program

DOCS = Path(__file__).parents[2] / "docs"
folding = program("folding")
TEXT = (DOCS / "recipes.md").read_text(encoding="utf-8")
SECTIONS = {
    anchor: (title, body)
    for title, anchor, body in re.findall(r"^## ([^\n]+) \{ #([\w-]+) \}\n(.*?)(?=^## |\Z)", TEXT, flags=re.M | re.S)
}
FOLDED = re.compile(r"^\?\?\? .*\n(?:\n|    .*\n)*", flags=re.M)
CODE = re.compile(r"^( *)``` ?\{? ?\.?python[^\n]*\n(.*?)^\1```$", flags=re.M | re.S)
MODULES = ("nnx", "linen", "hf")
# Functions of the page, as their first lines begin, that test_page_code.py runs beside float64 or their authors' code.
RUN = [
    f"def {name}" if "(" in name else f"def {name}("
    for name in re.findall(
        r'''\("docs/recipes\.md", "(?:def )?([^"]+)"''',
        Path(__file__).with_name("test_page_code.py").read_text(encoding="utf-8"),
    )
]


def used(body):
    """The public names in what a recipe shows before anything is unfolded."""
    shown = FOLDED.sub("", body)
    shown = re.sub(r"(?<![.\w])rotate\(", "pe.rotary(", shown)  # the page's own short name
    names = {f"posenc_jax.{name}" for name in re.findall(r"\bpe\.(\w+)", shown)}
    for module in MODULES:
        public = importlib.import_module(f"posenc_jax.{module}").__all__
        for line in re.findall(rf"^from posenc_jax\.{module} import (.+)$", TEXT, re.M):
            public_here = [name for name in line.split(", ") if name in public]
            names |= {f"posenc_jax.{module}.{n}" for n in public_here if re.search(rf"(?<![.\w]){n}\(", shown)}
        names |= {f"posenc_jax.{module}.{n}" for n in re.findall(rf"\b{module}\.(\w+)", shown) if n in public}
    return names


def test_they_are_short_and_each_has_its_proof_and_its_guide():
    assert len(SECTIONS) == TEXT.count("\n## ") >= 18
    for anchor, (title, body) in SECTIONS.items():
        blocks = [code for _, code in CODE.findall(FOLDED.sub("", folding.fold(body)))]
        assert blocks, anchor
        for code in blocks:
            assert sum(bool(line.strip()) for line in code.splitlines()) <= 12, f"{title}\n{code}"
        proved = any(line in body for line in RUN)
        assert proved or re.search(r"^ *assert ", body, flags=re.M), title
        assert re.search(r"\]\((?!recipes|#)[\w/]+\.md(#[\w.-]+)?\)", body), f"{title} has no guide"


@pytest.mark.parametrize("anchor", SECTIONS)
def test_the_reference_leads_to_them(anchor):
    title, body = SECTIONS[anchor]
    links = {
        name: line
        for path in (DOCS / "api").glob("*.md")
        for name, line in re.findall(r"^::: ([\w.]+)\n\n(Recipes: (?:.+\n)+)", path.read_text(encoding="utf-8"), re.M)
    }
    assert used(body) and {name for name, line in links.items() if f"recipes.md#{anchor})" in line} == used(body), title
