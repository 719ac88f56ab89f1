"""Writes each teaching page as a notebook, from its own text, code and output: `python docs/notebooks.py`.

Blocks of Python become cells of code, with what `outputs.py` wrote that they print and the figure that they draw; the
rest becomes Markdown, with the other figures in it. Links between these pages lead from notebook to notebook; others
need SITE_URL.
"""

import argparse
import base64
import copy
import json
import os
import pathlib
import posixpath
import re
import textwrap
from typing import Any

DOCS = pathlib.Path(__file__).parent
README = DOCS.parent / "README.md"
INCLUDES = DOCS.parent / "build" / "docs"
FOLDER = DOCS / "downloads"
LEARN = "why sinusoidal rotations adding rope contexts dimensions vision biases tiles phases".split()
# A run of lines between fences, or a fence with its language and its content.
FENCE = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<content>.*?)^```\n?", flags=re.MULTILINE | re.DOTALL)
CONTAINER = re.compile(r'^(?:===|!!!|\?\?\?\+?) *(?:\w+ +)?"(?P<title>.+)"$')
INCLUDE = re.compile(r'--8<-- "(?P<name>[\w./-]+)(?::(?P<line>\d+):|:(?P<section>[\w-]+))?"')
# Not by a drawing of the site.
DRAWN = re.compile(r"\s*!\[(?P<alt>[^\]]*)\]\((?P<file>(?:\.\./)?figures/\w+\.svg)\)\n?")
OUTPUT = re.compile(r'\s*(?P<fence>```text[^\n]*\n)?--8<-- "outputs/(?P<name>[\w.]+)"\n(?(fence)```\n?)')
NOT_RUN = re.compile(r"^``` *\{ *\.(\w+)[^}\n]*\}$", flags=re.MULTILINE)  # code that is shown alone
_ATTRIBUTE = r"(?:[#.][a-zA-Z][\w-]*|\w+=\"[^\"]*\")"
ATTRIBUTES = re.compile(rf" *\{{ *{_ATTRIBUTE}(?: +{_ATTRIBUTE})* *\}}")
IMAGE = re.compile(r"!\[(?P<alt>[^\]]*)\]\((?P<file>[\w./]+?(?P<phone>_phone)?(?P<dark>_dark)?\.svg)(?:#[\w-]+)?\)")
LINK = re.compile(
    r"(?<!!)\[(?P<text>[^\[\]]*(?:\[[^\]]*\][^\[\]]*)*)\]"
    r"\((?P<page>[\w./]+\.md)?(?P<query>\?[\w=&]+)?(?P<anchor>#[\w.-]+)?\)"
)
TAG = re.compile(r"^ *</?(?:pe-view|div)\b[^>]*>\n?", flags=re.MULTILINE)


def pages() -> list[pathlib.Path]:
    """The pages that are notebooks too."""
    return [
        *sorted((DOCS / "notebooks").glob("*.md")),
        *(DOCS / f"{name}.md" for name in LEARN),
    ]


def flat(text: str) -> str:
    """The page with tabs, notes and folded parts as ordinary text below their titles."""
    lines, result, fenced = text.split("\n"), [], False
    while lines:
        line = lines.pop(0)
        fenced ^= line.startswith("```")
        title = None if fenced else CONTAINER.match(line)
        if not title:
            result.append(line)
            continue
        inner = []
        while lines and (not lines[0].strip() or lines[0].startswith("    ")):
            inner.append(lines.pop(0))
        result += [f"**{title['title']}**", "", flat(textwrap.dedent("\n".join(inner)).strip("\n")), ""]
    return "\n".join(result)


def included(match: re.Match[str]) -> str:
    """What a page includes: a file, a section of one, or its lines from a number on."""
    found = next(folder / match["name"] for folder in (INCLUDES, DOCS.parent) if (folder / match["name"]).exists())
    text = found.read_text(encoding="utf-8")
    if match["line"]:
        return "".join(text.splitlines(keepends=True)[int(match["line"]) - 1 :])
    if match["section"]:
        ends = (rf"^.*--8<-- \[{end}:{match['section']}\].*\n?" for end in ("start", "end"))
        _, text, _ = re.split("|".join(ends), text, flags=re.MULTILINE)
    return text


def image(match: re.Match[str]) -> str:
    """A figure of the page, inside the text; of its forms, the light and wide one on white."""
    if match["phone"] or match["dark"]:
        return ""
    return f"![{match['alt']}](data:image/svg+xml;base64,{base64.b64encode(figure(match['file']).encode()).decode()})"


def figure(file: str) -> str:
    """A figure of a page, on white."""
    svg = (DOCS / file.removeprefix("../")).read_text(encoding="utf-8")
    return svg.replace("<svg ", '<svg style="background: white" ', 1)


def words(text: str, page: pathlib.Path) -> str:
    """Markdown for a notebook: what is included stands there, links lead on or are plain text."""
    here = page.parent.relative_to(DOCS).as_posix()
    notebooks = {path.relative_to(DOCS).as_posix(): path.stem for path in pages()}
    site = os.environ.get("SITE_URL", "")

    def link(match: re.Match[str]) -> str:
        if not match["page"]:
            return match["text"]
        target = posixpath.normpath(posixpath.join(here, match["page"]))
        if target in notebooks:
            return f"[{match['text']}]({notebooks[target]}.ipynb)"
        address = f"{site.rstrip('/')}/{target.removesuffix('.md')}.html{match['query'] or ''}{match['anchor'] or ''}"
        return f"[{match['text']}]({address})" if site else match["text"]

    text = INCLUDE.sub(included, text)
    text = IMAGE.sub(image, ATTRIBUTES.sub("", NOT_RUN.sub(r"```\1", text)))
    return LINK.sub(link, TAG.sub("", text)).strip("\n")


def markdown(text: str) -> dict[str, Any]:
    """A cell of Markdown."""
    return {"cell_type": "markdown", "metadata": {}, "source": text}


def drawn(match: re.Match[str]) -> dict[str, Any]:
    """The output of a cell that draws this figure of the page."""
    data = {"image/svg+xml": figure(match["file"]), "text/plain": match["alt"]}
    return {"output_type": "display_data", "data": data, "metadata": {}}


def code(text: str, printed: str = "", *, rich: bool = False) -> dict[str, Any]:
    """A cell of code and what it printed, as text or as Markdown."""
    outputs: list[dict[str, Any]] = []
    if printed and rich:
        data = {"text/markdown": printed, "text/plain": printed}
        outputs = [{"output_type": "display_data", "data": data, "metadata": {}}]
    elif printed:
        outputs = [{"output_type": "stream", "name": "stdout", "text": printed}]
    return {"cell_type": "code", "metadata": {}, "source": text, "outputs": outputs, "execution_count": None}


def cells(page: pathlib.Path) -> list[dict[str, Any]]:
    """The cells of a page."""
    text, result, start = flat(page.read_text(encoding="utf-8")), [], 0
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    for fence in FENCE.finditer(text):
        if fence["language"] != "python" or fence.start() < start:
            continue
        before, start = words(text[start : fence.start()], page), fence.end()
        result += [markdown(before)] if before else []
        printed = ""
        if output := OUTPUT.match(text, start):
            start, name = output.end(), output["name"]
            printed = (INCLUDES / "outputs" / name).read_text(encoding="utf-8")
        cell = code(fence["content"].rstrip("\n"), printed, rich=bool(output) and not output["fence"])
        if picture := DRAWN.match(text, start):
            start = picture.end()
            cell["outputs"].append(drawn(picture))
        result.append(cell)
    last = words(text[start:], page)
    return result + ([markdown(last)] if last else [])


def requirement() -> str:
    """What pip installs, with the extra `plot`: as README says, but from the repository's address if it is known."""
    name = re.search(r"pip install (\S+)", README.read_text(encoding="utf-8"))[1]
    repository = os.environ.get("REPO_URL", "").rstrip("/")
    if name == "." and repository:
        return f'"posenc_jax[plot] @ git+{repository}"'
    return f'"{name}[plot]"' + "  # in a clone of the repository" * (name == ".")


def notebook(page: pathlib.Path) -> dict[str, Any]:
    """The notebook of a page, in version 4.5 of the format."""
    first, *rest = cells(page)
    title, _, below = first["source"].partition("\n")
    install = code(f"# Where the library is missing:\n# %pip install {requirement()}")
    found = [markdown(title), install, *([markdown(below.strip("\n"))] if below.strip() else []), *rest]
    return {
        "cells": [{"id": f"cell-{i}", **cell} for i, cell in enumerate(found)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def run(path: pathlib.Path) -> None:
    """Runs a notebook in Jupyter; raises if a cell fails, or prints something else than is stored in it."""
    import nbclient
    import nbformat

    stored = nbformat.read(path, as_version=4)
    new = nbclient.NotebookClient(copy.deepcopy(stored), timeout=600, kernel_name="python3").execute()
    for old, cell in zip(stored.cells, new.cells, strict=True):
        texts = [x for x in old.get("outputs", ()) if "image/svg+xml" not in x.get("data", ())]
        shown = [x.get("text") or x["data"]["text/plain"] for x in texts]
        printed = "".join(x.text for x in cell.get("outputs", ()) if x.get("name") == "stdout")
        if printed != "".join(shown):
            raise RuntimeError(f"{path.name}, {cell.id} prints\n{printed}\nand holds\n{''.join(shown)}")


def main() -> None:
    """Writes all notebooks, or runs those that are written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", action="store_true", help="run them, instead of writing them")
    parser.add_argument("names", nargs="*", help="of those to run; all if none is named")
    args = parser.parse_args()
    if args.run:
        for name in args.names or [page.stem for page in pages()]:
            print(f"runs {name}.ipynb", flush=True)
            run(FOLDER / f"{name}.ipynb")
        return
    FOLDER.mkdir(exist_ok=True)
    for page in pages():
        text = json.dumps(notebook(page), ensure_ascii=False, indent=1)
        (FOLDER / f"{page.stem}.ipynb").write_text(text + "\n", encoding="utf-8")
    print(f"{len(pages())} notebooks in {FOLDER}")


if __name__ == "__main__":
    main()
