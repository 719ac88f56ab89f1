"""Mutants of a module: its source with one small fault each, where a test should see it.

Left alone: docstrings, annotations, decorators, the wording of messages (f-strings, strings with replacement fields,
and what a `raise` or a call in `WORDING` says), imports, and `assert`, which is for the type checker.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

SWAPPED = (
    (ast.Add, ast.Sub),
    (ast.LShift, ast.RShift),
    (ast.BitAnd, ast.BitOr),
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
)
OPERATORS = {a: b for pair in SWAPPED for a, b in (pair, pair[::-1])}
OPERATORS |= {ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult}
OPERATORS |= {ast.BitXor: ast.BitAnd}
BUILTINS = {"min": "max", "max": "min", "any": "all", "all": "any"}
NAMES = "add sub", "sub add", "mul add", "minimum maximum", "maximum minimum", "floor ceil", "round floor", "cos sin"
NAMES += "sin cos", "exp log", "log exp", "exp2 exp", "log1p log", "shift_right_arithmetic shift_right_logical"
CALLS = BUILTINS | dict(name.split() for name in (*NAMES, "bitwise_and bitwise_or"))  # of jnp, lax and np
WORDING = "require", "require_type"  # what raises an error with the strings that it is given
DTYPES = {"float32": "float16", "int32": "int16", "uint32": "int32", "float64": "float32"}  # of jnp and np


class Mutant(NamedTuple):
    """A fault: where it is, what stood there and what stands there now."""

    file: str  # in the package
    line: int
    within: str  # the function around it, "" for the module
    text: str  # of that line, numbered where the same fault is there again
    before: str
    after: str
    lines: tuple[int, ...]  # of the statement: a test that runs none of them cannot see the fault; () at import
    source: str

    @property
    def name(self) -> str:
        """By which it is known while other lines change, and its file moves."""
        return f"{self.within or 'module'}, {self.text}: {self.before} → {self.after}"

    @property
    def address(self) -> str:
        """Its name in its file: other files may hold the same fault."""
        return f"{self.file}, {self.name}"

    @property
    def room(self) -> str:
        """The folder of the package that it is in, or the module at its top."""
        return self.file.partition("/")[0].removesuffix(".py")


def variants(node: ast.AST) -> Iterator[ast.AST]:
    """What a node may become."""
    changed = lambda **fields: _replaced(node, **fields)  # noqa: E731
    match node:
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in OPERATORS:
            yield changed(op=OPERATORS[type(op)]())
        case ast.Compare():
            for i, op in enumerate(node.ops):
                yield changed(ops=[OPERATORS[type(op)]() if i == j else o for j, o in enumerate(node.ops)])
        case ast.BoolOp():
            yield changed(op=ast.And() if isinstance(node.op, ast.Or) else ast.Or())
        case ast.Attribute(attr=name) if name in DTYPES and _name(node.value) in ("jnp", "np"):
            yield changed(attr=DTYPES[name])
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.IfExp():
            yield changed(body=node.orelse, orelse=node.body)
        case ast.If() if not isinstance(node.test, (ast.Compare, ast.UnaryOp)):  # those are mutated themselves
            yield changed(test=ast.UnaryOp(ast.Not(), node.test))
        case ast.Raise() | ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int()):
            yield ast.Constant(node.value + 1)
        case ast.Constant(value=float()):
            yield ast.Constant(node.value * 1.001 if node.value else 1.0)
        case ast.Constant(value=str()) if node.value:
            yield ast.Constant(node.value + "XX")
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=args):
            if isinstance(node.func, ast.Name) and name in BUILTINS:
                yield changed(func=ast.Name(BUILTINS[name]))
            if name in CALLS and _name(getattr(node.func, "value", None)) in ("jnp", "lax", "np"):
                yield changed(func=_replaced(node.func, attr=CALLS[name]))
            if name in WORDING:
                return
            starred = any(isinstance(x, ast.Starred) for x in args)
            if not starred and len(args) > 1 and ast.dump(args[-2]) != ast.dump(args[-1]):
                yield changed(args=[*args[:-2], args[-1], args[-2]])
            for i, keyword in enumerate(node.keywords):
                if keyword.arg:
                    yield changed(keywords=[*node.keywords[:i], *node.keywords[i + 1 :]])


def _name(node: Any) -> str | None:
    return getattr(node, "id", None)


def _replaced(node: Any, **fields: Any) -> Any:
    node = copy.copy(node)
    for name, value in fields.items():
        setattr(node, name, value)
    return node


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that may be mutated."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "exc", "cause", "msg"):
            continue
        for child in value if isinstance(value, list) else [value]:
            docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            skipped = (ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom)
            if isinstance(child, ast.AST) and not docstring and not isinstance(child, skipped):
                if not _is_wording(node, child):
                    yield child


def _is_wording(parent: ast.AST, child: ast.AST) -> bool:
    """Whether a string is part of a message."""
    if not isinstance(child, ast.Constant) or not isinstance(child.value, str):
        return False
    name = isinstance(parent, ast.Call) and (getattr(parent.func, "attr", None) or _name(parent.func))
    return name in WORDING or "{" in child.value


def _lines(statement: ast.stmt) -> range:
    """Those of a statement, without the statements in it."""
    body = getattr(statement, "body", None)
    return range(statement.lineno, body[0].lineno if body else statement.end_lineno + 1)


def mutants_of(file: str, source: str) -> list[Mutant]:
    """All mutants of a file, in the order of its text."""
    text = source.encode()  # columns count bytes
    rows, starts = source.splitlines(), [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found, again = [], Counter()

    def visit(node: Any, lines: tuple[int, ...], within: str) -> None:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            if getattr(node.value.value, "id", "") == "Literal":  # a type
                return
        if isinstance(node, ast.FunctionDef):  # defaults are seen where the function runs
            lines = tuple(range(node.lineno, node.end_lineno + 1))
            within = node.name
        elif isinstance(node, ast.stmt) and lines:
            lines = tuple(_lines(node))
        for new in variants(node):
            old = node
            if isinstance(node, ast.If):  # its test alone
                old, new = node.test, new.test
            start = starts[old.lineno - 1] + old.col_offset
            end = starts[old.end_lineno - 1] + old.end_col_offset
            before, after = ast.unparse(old), ast.unparse(ast.fix_missing_locations(new))
            inside = f"({after})" if isinstance(old, ast.expr) else after
            mutated = (text[:start] + inside.encode() + text[end:]).decode()
            row = rows[node.lineno - 1].strip()
            again[within, row, before, after] += 1
            if (count := again[within, row, before, after]) > 1:
                row += f" ({count})"
            found.append(Mutant(file, node.lineno, within, row, before, after, lines, mutated))
        for child in _children(node):
            visit(child, lines, within)

    visit(ast.parse(source), (), "")
    return found
