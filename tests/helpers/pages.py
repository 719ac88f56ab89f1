"""The code and the tables of the documentation's pages, for tests that run or compare them."""

from __future__ import annotations

import ast
import importlib
import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
# A fenced block of Python: its indentation and its code
CODE = re.compile(r"^( *)``` ?\{? ?\.?python[^\n]*\n(.*?)^\1```$", flags=re.M | re.S)


def program(name: str) -> ModuleType:
    """Imports a program of docs/, such as "outputs"."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "docs"))


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def block(page: str, containing: str) -> str:
    """The page's only block of Python that contains a text."""
    (code,) = (textwrap.dedent(code) for _, code in CODE.findall(text_of(page)) if containing in code)
    return code


def definition(page: str, name: str) -> str:
    """The source of a page's function alone. `name` is its name, or the beginning of its signature if two share it."""
    opened = name if "(" in name else f"{name}("
    module = block(page, f"def {opened}")
    (found,) = (
        node
        for node in ast.parse(module).body
        if isinstance(node, ast.FunctionDef)
        and (ast.get_source_segment(module, node) or "").startswith(f"def {opened}")
    )
    return ast.get_source_segment(module, found) or ""


def run(code: str, names: dict[str, Any]) -> dict[str, Any]:
    """Runs code where `names` are defined, and returns all names that are defined afterwards."""
    names = dict(names)
    exec(code, names)
    return names


def rows(page: str, first: str) -> list[list[str]]:
    """The rows, as lists of cells, of the page's only table whose first column has the title `first`."""
    (table,) = re.findall(rf"^\| {re.escape(first)} \|.*\n\|[ :|-]+\|\n((?:\|.*\n)+)", text_of(page), flags=re.M)
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()]


def code_in(cell: str) -> list[str]:
    """The pieces of code of a cell."""
    return re.findall(r"`([^`]+)`", cell)
