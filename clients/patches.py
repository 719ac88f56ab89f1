"""The lines of a client as a patch to its codebase, which is installed: `python -m clients.patches NAME` prints it.

Each function of theirs keeps its signature, its docstring and the checks that it begins with; what follows becomes the
body of ours, as it stands in clients/NAME.py. `--check` applies the patch to a copy of the codebase and compiles that.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import inspect
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
import types
from pathlib import Path
from typing import Any

from clients.run import NAMES


def named(tree: ast.AST, path: str) -> Any:
    """The definition of a dotted name, or None."""
    for name in path.split("."):
        tree = next((node for node in getattr(tree, "body", []) if getattr(node, "name", None) == name), None)
    return tree


def staying(function: ast.FunctionDef, *, checks: bool) -> int:
    """How many statements a function begins with that stay: its docstring and, with `checks`, its checks."""
    kept = first = int(ast.get_docstring(function) is not None)
    for i, node in enumerate(function.body[first:] if checks else [], first + 1):
        shape = isinstance(node, ast.Assign) and ast.unparse(node.value).endswith(".shape")
        if isinstance(node, ast.Assert) or isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise):
            kept = i
        elif not shape:
            break
    return kept


def indented(lines: list[str], by: int, unit: int) -> list[str]:
    """Lines in steps of four spaces, in steps of `unit`, behind `by` spaces."""
    deep = lambda line: by + (len(line) - len(line.lstrip())) * unit // 4  # noqa: E731
    return [" " * deep(line) + line.lstrip() if line.strip() else "" for line in lines]


def rewritten(text: str, ours: str, calls: dict[str, str], guard: tuple[str, list[str]] | None = None) -> str:
    """A file of theirs with the body of each function in `calls` (theirs: ours), and the helpers that these need.

    With a guard, a condition and imports, our lines stand before theirs, under that condition.
    """
    lines, tree, source = text.splitlines(), ast.parse(text), ast.parse(ours)
    unit = min(node.body[0].col_offset for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef)))
    own, imports = ours.splitlines(), [ast.unparse(node) for node in source.body if "posenc_jax" in ast.unparse(node)]
    edits: list[tuple[int, int, list[str]]] = []
    used = set()
    for theirs, name in calls.items():
        new = named(source, name)
        body = [line[4:] for line in own[new.body[0].lineno - 1 : new.end_lineno]]
        used |= {node.id for node in ast.walk(new) if isinstance(node, ast.Name)}
        old = named(tree, theirs)
        if old is None:  # inherited
            owner = named(tree, theirs.rpartition(".")[0])
            head = f"def {theirs.rpartition('.')[2]}({ast.unparse(new.args)}):"
            added = ["", *indented([head, *("    " + line for line in body)], owner.body[0].col_offset, unit)]
            edits.append((owner.end_lineno, owner.end_lineno, added))
            continue
        if arguments(old) != arguments(new):
            raise ValueError(f"{theirs} takes {arguments(old)}, {name} takes {arguments(new)}")
        column = old.body[0].col_offset
        kept = staying(old, checks=not guard)
        if kept and isinstance(new.body[0], ast.FunctionDef):
            body.insert(0, "")
        start, end = old.body[kept - 1].end_lineno if kept else old.body[0].lineno - 1, old.end_lineno
        if guard:
            condition, first = guard
            body = [f"if {condition}:", *("    " + line for line in [*first, *imports, "", *body]), ""]
            end = start
        edits.append((start, end, indented(body, column, unit)))
    if not guard:
        top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        edits.append((top[-1].end_lineno, top[-1].end_lineno, imports))
        helpers = [node for node in source.body if isinstance(node, ast.FunctionDef) and node.name in used]
        first = next(named(tree, theirs.split(".")[0]) for theirs in calls)
        before = min([first.lineno, *(node.lineno for node in first.decorator_list)]) - 1
        for node in helpers:
            edits.append((before, before, [*indented(own[node.lineno - 1 : node.end_lineno], 0, unit), "", ""]))
    for start, end, new in sorted(edits, key=lambda edit: edit[:2], reverse=True):
        lines[start:end] = new
    return "\n".join(lines) + "\n"


def arguments(function: ast.FunctionDef) -> list[str]:
    """The names of a function's parameters."""
    given = function.args
    return [x.arg for x in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


def files(client: Any) -> dict[Path, dict[str, str]]:
    """For each file of theirs, what is replaced there: the names of theirs and of ours."""
    found: dict[Path, dict[str, str]] = {}
    for each in client.REPLACED:
        owner = "" if isinstance(each.owner, types.ModuleType) else each.owner.__qualname__ + "."
        calls = found.setdefault(Path(inspect.getsourcefile(each.owner)), {})
        calls[owner + each.name] = each.ours.__name__
    return found


def root(client: Any) -> Path:
    """The folder that holds the codebase's package: a checkout, or where it is installed."""
    return getattr(client, "ROOT", None) or next(
        path for path in next(iter(files(client))).parents if path.name == "site-packages"
    )


def patch(client: Any) -> str:
    """The unified diff."""
    ours, found = Path(client.__file__).read_text(encoding="utf-8"), []
    for path, calls in sorted(files(client).items()):
        text, name = path.read_text(encoding="utf-8"), path.relative_to(root(client)).as_posix()
        new = rewritten(text, ours, calls, getattr(client, "GUARD", None))
        found += difflib.unified_diff(text.splitlines(True), new.splitlines(True), f"a/{name}", f"b/{name}")
    return "".join(found)


def check(client: Any) -> None:
    """Raises if the patch does not apply, or gives code that Python does not read."""
    package = next(iter(files(client))).relative_to(root(client)).parts[0]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(root(client) / package, Path(folder, package))
        subprocess.run(["git", "apply", "-"], cwd=folder, check=True, input=patch(client), text=True)
        for path in files(client):
            ast.parse(Path(folder, path.relative_to(root(client))).read_text(encoding="utf-8"))


def main() -> None:
    """Prints or checks one client's patch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("client", choices=NAMES)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    try:
        client = importlib.import_module(f"clients.{options.client}")
    except ModuleNotFoundError as error:
        pins = tomllib.loads(Path(__file__).with_name("pins.toml").read_text(encoding="utf-8"))[options.client]
        beside = ", and have a checkout of {} at {:.7} on PYTHONPATH".format(*pins.get("checkout", ("", "")))
        install = shlex.join(["pip", "install", *pins["packages"]]) + beside * ("checkout" in pins)
        install += "".join(f" && pip install --no-deps {each}" for each in pins.get("alone", ()))
        sys.exit(f"{error.name} is not installed: {install}")
    if options.check:
        check(client)
    else:
        print(patch(client), end="")


if __name__ == "__main__":
    main()
