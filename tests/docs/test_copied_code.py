"""Each block of a page runs from what a reader sees: the blocks before it, without folds left closed or other tabs.

`nox -s docs` runs all blocks of a page in one namespace, so it does not find what a reader lacks.
"""

import builtins
import dis
import doctest
import importlib
import inspect
import re
import textwrap
from typing import NamedTuple

import pytest

from helpers.pages import ROOT, program

PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in ROOT.glob("docs/**/*.md")}
PAGES |= {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "conformance/README.md")}
HEAD, *RECIPES = re.split(r"^(?=## )", PAGES.pop("docs/recipes.md"), flags=re.MULTILINE)
PAGES |= {recipe.partition("\n")[0]: HEAD + recipe for recipe in RECIPES}  # each needs the first lines alone
# A block of code, what opens a fold, a tab or a box, or a line of text.
PART = re.compile(
    r"^(?P<indent> *)(?:```(?P<language>[^\n]*)\n(?P<code>.*?)^(?P=indent)```"
    r'|(?P<opens>\?\?\?\+?|===|!!!)(?: (?P<type>\w+))?(?: "(?P<title>[^\n]*)")?|\S[^\n]*)$',
    flags=re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A block of Python, the closed folds and the tabs around it, and whether it checks other blocks."""

    code: str
    folds: set[int]
    tabs: set[str]
    checks: bool


def blocks_of(markdown: str) -> list[Block]:
    """The blocks of a page as it is shown: assertions folded away, unless it says that they are shown."""
    if not re.match(r"---\n(?:.*\n)*?assertions: shown\n", markdown):
        markdown = program("folding").fold(markdown)
    around, blocks = [], []
    for part in PART.finditer(markdown):
        around = [outer for outer in around if len(outer["indent"]) < len(part["indent"])]
        if part["opens"]:
            around.append(part)
        elif part["code"] is not None and re.search(r"\bpython\b", part["language"]):
            closed = [outer for outer in around if outer["opens"] == "???"]
            tabs = {outer["title"] for outer in around if outer["opens"] == "==="}
            checks = any(outer["type"] == "success" for outer in closed)
            blocks.append(Block(textwrap.dedent(part["code"]), {outer.start() for outer in closed}, tabs, checks))
    return blocks


def names(source: str) -> tuple[set[str], dict[str, str]]:
    """What a block reads of the blocks before it; and what it leaves to those after it, with what an import imported.

    Statements count in their order. The body of a function counts at the end of the block: it runs when it is called.
    """
    read, bound, functions = set(), {}, []
    known = {*dir(builtins), "__annotations__"}

    def visit(code, top=False):
        local, imported = set(), ""
        for step in dis.get_instructions(code):
            if inspect.iscode(step.argval):
                if step.argval.co_flags & inspect.CO_OPTIMIZED:
                    functions.append(step.argval)
                else:  # the body of a class
                    visit(step.argval)
            elif step.opname in ("LOAD_NAME", "LOAD_GLOBAL") and step.argval not in known | local | bound.keys():
                read.add(step.argval)
            elif step.opname == "STORE_NAME":
                if top:
                    bound[step.argval] = imported
                local.add(step.argval)
                imported = ""
            elif step.opname.startswith("IMPORT_"):
                imported = f"{imported}.{step.argval}"

    visit(compile(source, "block", "exec"), top=True)
    while functions:
        visit(functions.pop())
    return read, bound


def lacking(markdown: str) -> set[str]:
    """What blocks read and readers do not have, or have of another block than the build of the page, which runs all.

    A reader follows one tab, and opens the folds around a block and no others. Checks stand apart: they may compare tabs.
    """
    blocks, found = blocks_of(markdown), set()
    of_blocks = [names(block.code) for block in blocks]
    for tab in {"", *(tab for block in blocks for tab in block.tabs)}:
        for i, block in enumerate(blocks):
            if block.tabs and tab not in block.tabs:
                continue
            built, seen = {}, {}
            for j, earlier in enumerate(blocks[:i]):
                bound = {name: imported or j for name, imported in of_blocks[j][1].items()}
                built |= bound
                if earlier.folds <= block.folds and (not earlier.tabs or tab in earlier.tabs or block.checks):
                    seen |= bound
            lost = {name for name in of_blocks[i][0] if name not in seen or seen[name] != built[name]}
            found |= {f"block {i + 1}: {name}" for name in lost}
    return found


@pytest.mark.parametrize("page", sorted(name for name, text in PAGES.items() if "python" in text))
def test_each_block_runs_from_what_stands_visibly_before_it(page):
    assert lacking(PAGES[page]) == set()


def test_each_example_of_the_reference_runs_by_itself():
    public = {}
    for module in ("", ".nnx", ".linen", ".hf", ".kernels", ".plot"):
        module = importlib.import_module(f"posenc_jax{module}")
        for name in module.__all__:
            value = getattr(module, name)
            members = {k: v for k, v in vars(value).items() if k[0] != "_"} if inspect.isclass(value) else {}
            public |= {f"{module.__name__}.{name}.{member}": v for member, v in ({"": value} | members).items()}
    for name, value in public.items():
        examples = doctest.DocTestParser().get_examples(inspect.getdoc(value) or "")
        assert names("".join(example.source for example in examples))[0] == set(), name
