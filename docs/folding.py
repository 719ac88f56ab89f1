"""Folds the assertions of a page's code away from the code that teaches."""

import ast
import re
import textwrap

BLOCK = re.compile(
    r"^(?P<indent> *)```python[^\n]*\n(?P<code>.*?)^(?P=indent)```\n"
    r'(?P<output>(?:\s*(?:```text[^\n]*\n *)?--8<-- "outputs/[\w.]+"\n(?: *```\n)?)?)',
    flags=re.MULTILINE | re.DOTALL,
)


def split(code: str) -> tuple[str, str]:
    """A block without the assertions at its end, and these; nothing is split where no other statement is left."""
    statements = ast.parse(code).body
    kept = len(statements)
    while kept and isinstance(statements[kept - 1], ast.Assert):
        kept -= 1
    if kept == len(statements) or all(isinstance(s, ast.Import | ast.ImportFrom) for s in statements[:kept]):
        return code, ""
    lines = code.splitlines(keepends=True)
    end = statements[kept - 1].end_lineno
    shown, checks = "".join(lines[:end]), "".join(lines[end:])
    return shown, textwrap.dedent(checks).strip("\n") + "\n"


def fold(markdown: str) -> str:
    """The page with the assertions that end a block folded away; blocks that are folded already stay."""

    def folded(match: re.Match[str]) -> str:
        indent, output = match["indent"], match["output"]
        above = [line for line in markdown[: match.start()].splitlines() if line.strip()]
        outer = next((line for line in reversed(above) if len(line) - len(line.lstrip()) < len(indent)), "")
        shown, checks = split(textwrap.dedent(match["code"]))
        if not checks or outer.lstrip().startswith("???"):
            return match[0]
        fence = textwrap.indent(f"```python\n{checks}```\n", "    ")
        check = textwrap.indent(f'??? success "Check"\n\n{fence}', indent)
        return f"{indent}```python\n{textwrap.indent(shown, indent)}{indent}```\n{output}\n{check}"

    return BLOCK.sub(folded, markdown)
