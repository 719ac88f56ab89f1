"""The page of recipes: each is short, proved, and linked both ways. `nox -s docs` runs its code."""

import importlib
import re

import pytest

from helpers.pages import CODE, ROOT, program, text_of

TEXT = text_of("docs/recipes.md")
SECTIONS = {name: body for name, body in re.findall(r"^## [^\n]+ \{ #([\w-]+) \}\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S)}
FOLDED = re.compile(r"^\?\?\? .*\n(?:\n|    .*\n)*", flags=re.M)
PROVED = re.findall(r'\brecipe\("(\w+)', text_of("tests/docs/test_page_code.py"))  # functions, beside float64
MODULES = ("nnx", "linen", "hf")


def used(body):
    """The public names in what a recipe shows before anything is unfolded."""
    shown = re.sub(r"(?<![.\w])rotate\(", "pe.rotary(", FOLDED.sub("", body))  # the page's own short name
    names = {f"posenc_jax.{name}" for name in re.findall(r"\bpe\.(\w+)", shown)}
    for module in MODULES:
        public = importlib.import_module(f"posenc_jax.{module}").__all__
        imported = ", ".join(re.findall(rf"^from posenc_jax\.{module} import (.+)$", TEXT, re.M)).split(", ")
        called = [name for name in imported if re.search(rf"(?<![.\w]){name}\(", shown)]
        names |= {f"posenc_jax.{module}.{n}" for n in called + re.findall(rf"\b{module}\.(\w+)", shown) if n in public}
    return names


def test_every_recipe_has_a_name():
    assert len(SECTIONS) == TEXT.count("\n## ")


@pytest.mark.parametrize("name", SECTIONS)
def test_a_recipe_is_short_proved_and_leads_to_a_guide(name):
    body = SECTIONS[name]
    for _, code in CODE.findall(FOLDED.sub("", program("folding").fold(body))):
        assert sum(bool(line.strip()) for line in code.splitlines()) <= 12, code
    assert re.search(r"^ *assert ", body, re.M) or any(f"def {function}(" in body for function in PROVED)
    assert re.search(r"\]\((?!recipes|#)[\w/]+\.md(#[\w.-]+)?\)", body)


@pytest.mark.parametrize("name", SECTIONS)
def test_the_reference_leads_to_a_recipe_from_the_names_that_it_uses(name):
    reference = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md"))
    lines = re.findall(r"^::: ([\w.]+)\n\n(Recipes: (?:.+\n)+)", reference, re.M)
    assert {public for public, line in lines if f"recipes.md#{name})" in line} == used(SECTIONS[name]) != set()
