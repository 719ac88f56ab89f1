"""What pages of the reference show: what they name, and the other public names of the modules that they introduce."""

import ast
import re
from pathlib import Path

PAGES = Path(__file__).parent / "api"
INIT = Path(__file__).parents[1] / "posenc_jax" / "__init__.py"
# The public names of each module, in reading order.
NAMES = {
    node.module: [f"posenc_jax.{name.name}" for name in node.names]
    for node in ast.parse(INIT.read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom)
}
INTRODUCED = re.compile(r"^::: ([\w.]+)\n    options: {members: false", re.MULTILINE)
ENTRY = re.compile(r"^::: ([\w.]+)\n(?! +options)", re.MULTILINE)
ROW = re.compile(r"^(\| \[.+?\]\((\w+\.md)\) \| .+ \|)$", re.MULTILINE)


def completed(page: str) -> str:
    """A page with an entry for each name of its modules that it does not write out."""
    written = ENTRY.findall(page)
    others = [name for module in INTRODUCED.findall(page) for name in NAMES.get(module, ()) if name not in written]
    return page.rstrip("\n") + "\n" + "".join(f"\n::: {name}\n" for name in others)


def overview(index: str) -> str:
    """The table of pages, with the names that each shows."""

    def names(row: re.Match[str]) -> str:
        page = completed((PAGES / row[2]).read_text(encoding="utf-8"))
        links = (f"[`{name.rpartition('.')[2]}`]({row[2]}#{name})" for name in ENTRY.findall(page))
        return f"{row[1]} {', '.join(links)} |"

    return ROW.sub(names, index)
