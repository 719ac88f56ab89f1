"""Each block of a page uses only names that it defines, or a block above it that is in no closed fold and no other tab.

- The same holds for the example of each public name, by itself.
- Nothing is run: the names that code reads are found in its bytecode. `nox -s docs` runs all blocks of a page in one
  namespace, so it does not find names that a reader lacks.
"""

import builtins
import dis
import doctest
import importlib
import inspect
import re
import textwrap

import pytest

from helpers.pages import ROOT, program, text_of

PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in ROOT.glob("docs/**/*.md")}
PAGES |= {name: text_of(name) for name in ("README.md", "conformance/README.md")}
# Pages by path. Of some, sections by heading: each is copied after the head of its page.
for page, level in {"docs/flax.md": "###?", "docs/inference.md": "###?", "docs/vision.md": "##"}.items():
    head, *sections = re.split(rf"^(?={level} )", PAGES.pop(page), flags=re.MULTILINE)
    PAGES |= {f"{page}, {section.splitlines()[0]}": head + section for section in sections}
# One part of a page: a block of code; a line that opens a fold (???), a tab (===) or a box (!!!); or a line of text.
PART = re.compile(
    r"^(?P<indent> *)(?:```(?P<language>[^\n]*)\n(?P<code>.*?)^(?P=indent)```"
    r'|(?P<opens>\?\?\?\+?|===|!!!)(?: \w+)?(?: "(?P<title>[^\n]*)")?|\S[^\n]*)$',
    flags=re.MULTILINE | re.DOTALL,
)


def blocks_of(markdown: str) -> list[tuple[str, set[int], set[str]]]:
    """The blocks of Python of a page as it is shown, assertions folded: (code, closed folds, tabs) around each."""
    around, blocks = [], []  # around: the folds, tabs and boxes that are open where the part stands
    for part in PART.finditer(program("folding").fold(markdown)):
        around = [outer for outer in around if len(outer["indent"]) < len(part["indent"])]
        if part["opens"]:
            around.append(part)
        elif part["code"] is not None and re.search(r"\bpython\b", part["language"]):
            folds = {outer.start() for outer in around if outer["opens"] == "???"}
            tabs = {outer["title"] for outer in around if outer["opens"] == "==="}
            blocks.append((textwrap.dedent(part["code"]), folds, tabs))
    return blocks


def undefined_names(source: str) -> set[str]:
    """The names that code reads before it defines them. Bodies of functions are read at the end, as they run later.

    So a function that is called before its names are defined is not found.
    """
    lacks, bound, functions = set(), {*dir(builtins), "__annotations__"}, []

    def visit(code, local):
        """Adds what a code object lacks, where `bound` and `local` names are defined."""
        for step in dis.get_instructions(code):
            if inspect.iscode(step.argval):
                if step.argval.co_flags & inspect.CO_OPTIMIZED:
                    functions.append(step.argval)
                else:  # the body of a class
                    visit(step.argval, set())
            elif step.opname in ("LOAD_NAME", "LOAD_GLOBAL") and step.argval not in bound | local:
                lacks.add(step.argval)
            elif step.opname == "STORE_NAME":
                local.add(step.argval)

    visit(compile(source, "block", "exec"), bound)
    while functions:
        visit(functions.pop(), set())
    return lacks


@pytest.mark.parametrize("page", sorted(name for name, text in PAGES.items() if "python" in text))
def test_each_block_uses_names_that_its_reader_has_seen(page):
    """A reader follows one tab and opens the folds around a block; code in a fold may use the names of all tabs."""
    blocks = blocks_of(PAGES[page])
    for tab in {"", *(tab for *_, tabs in blocks for tab in tabs)}:
        for n, (code, folds, tabs) in enumerate(blocks):
            if not tabs or tab in tabs:
                seen = [
                    above
                    for above, its_folds, its_tabs in blocks[:n]
                    if its_folds <= folds and (not its_tabs or tab in its_tabs or folds)
                ]
                assert undefined_names("\n".join([*seen, code])) == set(), code


def test_undefined_names_closed_folds_and_tabs_are_found():
    assert undefined_names("a = b; b = 1") == {"b"}
    page = '??? note\n\n    ```python\n    a = 1\n    ```\n\n=== "x"\n\n    ```python\n    b = 2\n    ```\n'
    (_, folds, _), (_, _, tabs) = blocks_of(page)
    assert folds and tabs == {"x"}


def test_each_example_of_the_reference_defines_its_names():
    for module in ("", ".nnx", ".linen", ".hf", ".kernels", ".plot"):
        module = importlib.import_module(f"posenc_jax{module}")
        for name in module.__all__:
            for found in doctest.DocTestFinder().find(getattr(module, name), name):
                assert undefined_names("".join(example.source for example in found.examples)) == set(), found.name
