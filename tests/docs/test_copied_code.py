"""Each block of a page runs from what a reader sees: the blocks before it, without folds left closed or other tabs."""

import ast
import builtins
import doctest
import importlib
import inspect
import itertools
import re
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

from helpers.pages import program

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
folding, outputs = program("folding"), program("outputs")
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
    """A block of Python: the closed folds and the tabs around it; whether it checks others, and needs a newer Flax."""

    code: str
    folds: frozenset[int]
    tabs: frozenset[str]
    checks: bool
    new_flax: bool


def blocks_of(markdown: str) -> list[Block]:
    """The blocks of a page as it is shown: assertions folded away, unless it says that they are shown."""
    if not re.match(r"---\n(?:.*\n)*?assertions: shown\n", markdown):
        markdown = folding.fold(markdown)
    around, blocks = [], []
    for part in PART.finditer(markdown):
        around = [outer for outer in around if len(outer["indent"]) < len(part["indent"])]
        if part["opens"]:
            around.append(part)
        elif part["code"] is not None and re.search(r"\bpython\b", part["language"]):
            code = textwrap.dedent(part["code"])
            closed = [outer for outer in around if outer["opens"] == "???"]
            checks = any(outer["type"] == "success" for outer in closed)
            # The check of a block is folded away from the line that says what the block needs.
            new_flax = bool(outputs.NEEDS.match(code)) or (checks and blocks[-1].new_flax)
            folds = frozenset(outer.start() for outer in closed)
            tabs = frozenset(outer["title"] for outer in around if outer["opens"] == "===")
            blocks.append(Block(code, folds, tabs, checks, new_flax))
    return blocks


class Names(ast.NodeVisitor):
    """`read`: what a block takes from those before it; `bound`: what it leaves to those after it, and by what.

    Statements count in their order. The body of a function counts at the end of the block: it runs when it is called.
    """

    def __init__(self, code: str):
        self.read: set[str] = set()
        self.bound: dict[str, str | None] = {}
        self.locals: list[set[str]] = []  # of the functions, classes and comprehensions around a node
        self.later: list[tuple[list[set[str]], list[ast.AST]]] = []
        self.visit(ast.parse(code))
        while self.later:
            self.locals, nodes = self.later.pop()
            self.all(nodes)

    def all(self, nodes):
        for node in nodes:
            self.visit(node)

    def bind(self, name, by=None):
        if self.locals:
            self.locals[-1].add(name)
        else:
            self.bound[name] = by

    def visit_Name(self, node):
        if isinstance(node.ctx, ast.Store):
            self.bind(node.id)
        elif not any(node.id in scope for scope in (*self.locals, self.bound, dir(builtins), ("__name__",))):
            self.read.add(node.id)

    def visit_Import(self, node):
        for alias in node.names:
            module = getattr(node, "module", "")
            self.bind(alias.asname or alias.name.partition(".")[0], f"{module}.{alias.name} as {alias.asname}")

    visit_ImportFrom = visit_Import

    def visit_Assign(self, node):
        self.all([node.value, *node.targets])

    def visit_AnnAssign(self, node):
        self.all([node.annotation, *filter(None, [node.value]), node.target])

    def visit_AugAssign(self, node):
        self.all([ast.Name(node.target.id, ast.Load())] if isinstance(node.target, ast.Name) else [])
        self.all([node.value, node.target])

    def visit_NamedExpr(self, node):
        self.all([node.value, node.target])  # in a comprehension it binds outside, and no page does that

    def visit_For(self, node):
        self.all([node.iter, node.target, *node.body, *node.orelse])

    def visit_ExceptHandler(self, node):
        self.bind(node.name)
        self.generic_visit(node)

    def visit_comprehension(self, node):
        self.all([node.iter, node.target, *node.ifs])

    def visit_ListComp(self, node):
        self.locals = [*self.locals, set()]
        self.all([*node.generators, *([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])])
        self.locals = self.locals[:-1]

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def visit_Lambda(self, node):
        arguments = node.args
        self.all([*arguments.defaults, *filter(None, arguments.kw_defaults)])
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        self.all([a.annotation for a in every if a and a.annotation])
        body = node.body if isinstance(node.body, list) else [node.body]
        self.later.append(([*self.locals, {a.arg for a in every if a}], body))

    def visit_FunctionDef(self, node):
        self.all([*node.decorator_list, *filter(None, [node.returns])])
        self.bind(node.name)
        self.visit_Lambda(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node):
        self.all([*node.decorator_list, *node.bases, *node.keywords])
        self.locals = [*self.locals, set()]
        self.all(node.body)
        self.locals = self.locals[:-1]
        self.bind(node.name)


def lacking(markdown: str) -> list[str]:
    """What blocks read and readers do not have, or have of another block than the build of the page, which runs all.

    A reader follows one tab, opens the folds around a block and no others, and may have an older Flax. Checks stand
    apart: they may compare tabs.
    """
    blocks = blocks_of(markdown)
    names = [Names(block.code) for block in blocks]
    readers = itertools.product(sorted({tab for block in blocks for tab in block.tabs}) or [""], (True, False))
    found = []
    for tab, new_flax in readers:
        for i, block in enumerate(blocks):
            if (block.tabs and tab not in block.tabs) or block.new_flax > new_flax:
                continue
            built, seen = {}, {}
            for j, earlier in enumerate(blocks[:i]):
                if earlier.new_flax > new_flax:
                    continue
                bound = {name: by or f"block {j + 1}" for name, by in names[j].bound.items()}
                built |= bound
                if earlier.folds <= block.folds and (not earlier.tabs or tab in earlier.tabs or block.checks):
                    seen |= bound
            found += [
                f"block {i + 1}: {name}" for name in sorted(names[i].read) if seen.get(name, "") != built.get(name)
            ]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("page", sorted(name for name, text in PAGES.items() if "python" in text))
def test_each_block_runs_from_what_stands_visibly_before_it(page):
    assert lacking(PAGES[page]) == []


def test_each_example_of_the_reference_runs_by_itself():
    modules = [
        importlib.import_module(f"posenc_jax{name}") for name in ("", ".nnx", ".linen", ".hf", ".kernels", ".plot")
    ]
    public = {f"{module.__name__}.{name}": getattr(module, name) for module in modules for name in module.__all__}
    for name, value in dict(public).items():
        members = vars(value).items() if inspect.isclass(value) else ()
        public |= {f"{name}.{member}": v for member, v in members if not member.startswith("_")}
    examples = {name: doctest.DocTestParser().get_examples(inspect.getdoc(v) or "") for name, v in public.items()}
    code = {name: "".join(example.source for example in found) for name, found in examples.items() if found}
    assert len(code) > 90 and {name: read for name in code if (read := Names(code[name]).read)} == {}


IN_FOLD, ANY = '??? example "The code"\n\n    {}\n\n', "{}\n\n"
NNX, LINEN = '=== "NNX"\n\n    {}\n\n', '=== "Linen"\n\n    {}\n\n'


@pytest.mark.parametrize(
    "blocks, expected",
    [
        ([(ANY, "import math"), (ANY, "x = math.pi")], []),
        ([(ANY, "x = math.pi"), (ANY, "import math")], ["block 1: math"]),
        ([(IN_FOLD, "import math"), (ANY, "x = math.pi")], ["block 2: math"]),
        ([(IN_FOLD.replace("???", "???+"), "import math"), (ANY, "x = math.pi")], []),
        ([(ANY, "import math"), (IN_FOLD, "x = math.pi")], []),
        ([(IN_FOLD, "import math"), (IN_FOLD, "x = math.pi")], ["block 2: math"]),
        ([(ANY, "x = 1"), (IN_FOLD, "x = 2"), (ANY, "y = x")], ["block 3: x"]),  # the page shows what 2 gives
        ([(ANY, "import math"), (IN_FOLD, "import math"), (ANY, "x = math.pi")], []),
        ([(ANY, "x = 1\nassert (y := x)"), (ANY, "z = y")], ["block 3: y"]),  # 2 is the assertion
        ([(NNX, "x = 1"), (LINEN, "x = 1"), (NNX, "y = x")], ["block 3: x"]),  # the page shows Linen's
        ([(NNX, "x = 1"), (LINEN, "y = x")], ["block 2: x"]),
        ([(NNX, "x = 1"), (LINEN, "y = 1"), (NNX, "z = x"), (LINEN, "z = y")], []),
        ([(NNX, "x = 1"), (ANY, "y = x"), (LINEN, "z = 1")], ["block 2: x"]),
        ([(ANY, "# needs Flax 0.12.9\nx = 1"), (ANY, "y = x")], ["block 2: x"]),
        ([(ANY, "# needs Flax 0.12.9\nx = 1"), (ANY, "# needs Flax 0.12.9\ny = x")], []),
        ([(ANY, "def f(x):\n    return x + y"), (ANY, "f(1)")], ["block 1: y"]),
        ([(ANY, "x = [y for y in range(3) if y]\nz = lambda a, *b: (a, b, x)")], []),
        ([(ANY, "class A:\n    b = 1\n\n    def c(self):\n        return A.b, d")], ["block 1: d"]),
        ([(ANY, "x += 1")], ["block 1: x"]),
    ],
)  # fmt: skip
def test_what_a_reader_lacks_is_found(blocks, expected):
    fences = [(form, f"```python\n{code}\n```") for form, code in blocks]
    lines = [form.format(fence.replace("\n", "\n    ") if form != ANY else fence) for form, fence in fences]
    assert lacking("".join(lines)) == expected
