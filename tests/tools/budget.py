"""Measures the size of the project against `tests/budget.toml`: `python tests/tools/budget.py [--lower]`.

The program prints each number beside its budget, and exits with 1 if a number exceeds it. `--lower` writes numbers that
have become smaller into the budget; the program raises none. The tests themselves count the programs that they compile.
The home page is measured if `nox -s docs` has built it.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUDGET = ROOT / "tests" / "budget.toml"
FOLDERS = {"package": "posenc_jax", "hf": "posenc_jax/hf", "tests": "tests"}
DOCUMENTED = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
STRINGS = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}  # of Python 3.12 and later
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def tokens(source: str, characters: bool = False) -> int:
    """The tokens of a module without docstrings, comments and layout.

    With `characters`, a string counts one for each four of its characters.
    """
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None
    }
    counted = lambda token: -(-len(token.string) // 4) if characters and token.type in STRINGS else 1  # noqa: E731
    return sum(
        counted(token)
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in LAYOUT and token.start not in docstrings
    )


def measured(root: Path) -> dict[str, int]:
    """The measured numbers by their names in the budget; without the home page if no site was built."""
    read = lambda path: path.read_text(encoding="utf-8")  # noqa: E731
    result = {
        "site.words": sum(len(read(path).split()) for path in (root / "docs").rglob("*.md")),
        "site.pages": len(re.findall(r"^ +- [^\n]*\.md$", read(root / "mkdocs.yml").partition("\nnav:")[2], re.M)),
    }
    for name, folder in FOLDERS.items():
        files = (root / folder).rglob("*.py")
        result[f"tokens.{name}"] = sum(tokens(read(path), name == "tests") for path in files)
    if (home := root / "site" / "index.html").exists():
        result["site.home_kilobytes"] = -(-home.stat().st_size // 1000)
    return result


def allowed(text: str) -> dict[str, int]:
    """The numbers of the budget, as "table.name"."""
    return {f"{table}.{name}": number for table, rows in tomllib.loads(text).items() for name, number in rows.items()}


def main(root: Path = ROOT, lower: bool = False) -> int:
    """Prints the table; 1 if a number is exceeded, else 0."""
    file = root / "tests" / "budget.toml"
    text, found = file.read_text(encoding="utf-8"), measured(root)
    limits, too_many = allowed(text), []
    for name, number in found.items():
        print(f"{name:22} {number:9,} of {limits[name]:9,}")
        if number > limits[name]:
            too_many.append(f"{name} by {number - limits[name]:,}")
        elif lower:
            key = name.partition(".")[2]
            text = re.sub(rf"(?m)^{key} = [\d_]+", f"{key} = {number:_}", text)
    file.write_text(text, encoding="utf-8")
    if too_many:
        print(f"Over budget: {', '.join(too_many)}. Cut, or raise the line in {file.name} and say why in the commit.")
    return bool(too_many)


if __name__ == "__main__":
    if sys.version_info < (3, 12):
        sys.exit("the budget counts tokens as Python 3.12 and later read them: take `--force-python 3.13`")
    sys.exit(main(lower="--lower" in sys.argv))
