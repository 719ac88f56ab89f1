"""What pages of the reference show: names that they write out, and the public names of modules that they introduce."""

import ast
import re
from pathlib import Path

PAGES = Path(__file__).parent / "api"
PACKAGE = Path(__file__).parents[1] / "posenc_jax"
INTRODUCED = re.compile(r"^::: (?P<module>[\w.]+)\n    options: {members: false.*\n", re.MULTILINE)
ENTRY = re.compile(r"^::: ([\w.]+)\n(?! +options)", re.MULTILINE)
ROW = re.compile(r"^(\| \[.+?\]\((\w*\.md)?(?:#\w+)?\) \| .+ \|)$", re.MULTILINE)


def public_names() -> dict[str, list[str]]:
    """The public names of each module: of private ones in the package's reading order, else those of `__all__`."""
    body = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8")).body
    names = {
        node.module: [f"posenc_jax.{name.name}" for name in node.names]
        for node in body
        if isinstance(node, ast.ImportFrom)
    }
    for file in ("nnx/__init__.py", "linen/__init__.py", "hf/__init__.py", "plot/__init__.py", "kernels.py"):
        module = f"posenc_jax.{file.partition('/')[0].removesuffix('.py')}"
        for node in ast.parse((PACKAGE / file).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                names[module] = [f"{module}.{name}" for name in ast.literal_eval(node.value)]
    return names


NAMES = public_names()


def completed(page: str) -> str:
    """A page with an entry below each module that it introduces for each name that it does not write out."""
    written = ENTRY.findall(page)

    def entries(match: re.Match[str]) -> str:
        others = [name for name in NAMES.get(match["module"], ()) if name not in written]
        return match[0] + "".join(f"\n::: {name}\n" for name in others)

    return INTRODUCED.sub(entries, page.rstrip("\n") + "\n")


def overview(index: str) -> str:
    """The overview with its entries, and the table of pages with the names that each shows."""

    def names(row: re.Match[str]) -> str:
        page = row[2] or "index.md"
        shown = completed((PAGES / page).read_text(encoding="utf-8"))
        public = [name for name in ENTRY.findall(shown) if not name.startswith("posenc_jax.linen.")]  # as in NNX
        links = (f"[`{name.removeprefix('posenc_jax.')}`]({page}#{name})" for name in public)
        return f"{row[1]} {', '.join(links)} |"

    return ROW.sub(names, completed(index))
