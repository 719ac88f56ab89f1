"""Lines of the package by purpose: `python tests/tools/lines.py [FOLDER]`.

A line of code is one of *checking* if it belongs to

- a module that only checks (`CHECKERS`), or a private function most of whose lines check,
- a `raise`, an `assert`, or an `if`, `for`, `with` or handler that does nothing else,
- a local that only refusals read (a message, a condition),
- a statement that calls one of those modules, to check or to convert an argument.

Every other line of a body is *work*. Signatures (with decorators) and imports are neither.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

CHECKERS = {"_check", "_checks", "_arguments", "_tile_arguments"}
PURPOSES = ("work", "checks", "signatures", "imports", "docstrings", "comments", "blank")
PACKAGE = Path(__file__).parents[2] / "posenc_jax"


def names_of(tree: ast.AST) -> set[str]:
    """How a module calls those that check: the modules' names, and what it imports from them."""
    names = set(CHECKERS)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[-1] in CHECKERS:
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names if alias.name in CHECKERS}
    return names


def calls(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression calls one of those names, or a function of a module of that name."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            f = call.func
            while isinstance(f, ast.Attribute):
                f = f.value
            if isinstance(f, ast.Name) and f.id in names:
                return True
    return False


def only_checks(statements: list[ast.stmt], names: set[str]) -> bool:
    return all(is_check(s, names) for s in statements)


def is_check(node: ast.stmt, names: set[str]) -> bool:
    """Whether a statement only checks."""
    match node:
        case ast.Raise() | ast.Assert():
            return True
        case ast.If():
            return only_checks(node.body, names | {"_"}) and only_checks(node.orelse, names) or _builds(node, names)
        case ast.For() | ast.With():
            return only_checks(node.body, names) or _builds(node, names)
        case ast.Expr() | ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Return():
            return node.value is not None and calls(node.value, names)
    return False


def _builds(node: ast.If | ast.For | ast.With, names: set[str]) -> bool:
    """Whether a body ends in a raise, after statements that make its message."""
    orelse = getattr(node, "orelse", [])
    simple = (ast.Assign, ast.AnnAssign, ast.AugAssign)
    return (
        isinstance(node.body[-1], ast.Raise)
        and all(isinstance(s, simple) or is_check(s, names) for s in node.body)
        and only_checks(orelse, names)
    )


def refusals(function: ast.AST) -> set[int]:
    """The lines of a function's `raise` statements and of its calls that only check, as of `require`."""
    found = [n for n in ast.walk(function) if isinstance(n, ast.Raise)]
    found += [n for n in ast.walk(function) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)]
    return {line for node in found for line in range(node.lineno, node.end_lineno + 1)}


def locals_of_checks(function: ast.AST, found: dict[int, str]) -> Iterator[ast.Assign]:
    """The assignments of a function that only its refusals read, such as a message and a condition, last first."""
    lines = {line for line in refusals(function) if found.get(line) == "checks"}
    loads = [n for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    for node in reversed([node for node in ast.walk(function) if isinstance(node, ast.Assign)]):
        names = {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        reads = [n for n in loads if n.id in names and not node.lineno <= n.lineno <= node.end_lineno]
        if reads and all(n.lineno in lines for n in reads):
            lines.update(range(node.lineno, node.end_lineno + 1))
            yield node


def purposes(source: str, checker: bool = False) -> dict[int, str]:
    """The purpose of each line, from 1."""
    tree, lines = ast.parse(source), source.splitlines()
    names, found = names_of(tree), {}

    def mark(first: int, last: int, purpose: str) -> None:
        found.update(dict.fromkeys(range(first, last + 1), purpose))

    def visit(body: list[ast.stmt]) -> None:
        for node in body:
            first, last = node.lineno, node.end_lineno
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                first = min([first, *(d.lineno for d in node.decorator_list)])
                mark(first, node.body[0].lineno - 1, "signatures")
                visit(node.body)
                for statement in locals_of_checks(node, found):
                    mark(statement.lineno, statement.end_lineno, "checks")
                inside = Counter(found.get(n) for n in range(node.body[0].lineno, last + 1))
                if node.name.startswith("_") and not node.name.endswith("__") and inside["checks"] > inside["work"]:
                    found.update({n: "checks" for n in range(node.body[0].lineno, last + 1) if found.get(n) == "work"})
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                mark(first, last, "docstrings" if isinstance(node.value.value, str) else "signatures")
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                mark(first, last, "imports")
            elif checker or is_check(node, names):
                mark(first, last, "checks")
            else:
                mark(first, last, "work")
                for part in ("body", "orelse", "finalbody"):
                    visit(getattr(node, part, []))
                for handler in getattr(node, "handlers", []):
                    visit(handler.body)
                    if only_checks(handler.body, names):
                        mark(handler.lineno, handler.end_lineno, "checks")

    visit(tree.body)
    for number, line in enumerate(lines, 1):
        if found.get(number) != "docstrings" and not line.strip():
            found[number] = "blank"
        elif found.get(number) != "docstrings" and line.strip().startswith("#"):
            found[number] = "comments"
    return found


def count(package: Path = PACKAGE) -> dict[str, Counter]:
    """Lines by purpose of each module."""
    return {
        str(path.relative_to(package).with_suffix("")): Counter(
            purposes(path.read_text(encoding="utf-8"), path.stem in CHECKERS).values()
        )
        for path in sorted(package.rglob("*.py"))
    }


def main() -> None:
    found = count(*map(Path, sys.argv[1:2]))
    total = sum(found.values(), Counter())
    print(f"{'':26}", *(f"{p:>10}" for p in PURPOSES), "checks/work")
    for name, of in [*found.items(), ("the package", total)]:
        ratio = f"{of['checks'] / of['work']:11.2f}" if of["work"] else f"{'–':>11}"
        print(f"{name:26}", *(f"{of[p]:10}" for p in PURPOSES), ratio)


if __name__ == "__main__":
    main()
