"""Runs the Python blocks of the pages and writes what they print where the pages include it: `python docs/outputs.py`.

A page's blocks share one namespace, in their order. The include of `outputs/NAME` after a block shows what it prints,
in a fence of `text` or, if it is Markdown, by itself; a block without one prints nothing. A picture `figures/NAME.svg`
after a block, or after what it prints, is matplotlib's current figure. A block that begins with
`# needs Flax 0.12.9` is not run on an older Flax, and prints nothing. `outputs/model_types.md` and
`outputs/diffusion_*.md` list the models that configs are read of, `outputs/evidence_*.md` the runs of
demo/evidence.json.
"""

import argparse
import contextlib
import io
import pathlib
import re
import textwrap
import time
import warnings
from typing import Any, NamedTuple

import diffusion_models
import drawings
import figures
import findings
import flax
import jax
import matplotlib
import model_types
import numpy as np

DOCS = pathlib.Path(__file__).parent
INCLUDES = DOCS.parent / "build" / "docs"
FIGURES = DOCS / "figures"
BLOCK = re.compile(
    r"^(?P<indent> *)```python[^\n]*\n(?P<code>.*?)^(?P=indent)```\n"
    r'(?:\s*(?:```text[^\n]*\n *)?--8<-- "outputs/(?P<output>[\w.]+)"\n(?: *```\n)?)?'
    r"(?:\s*!\[[^\]]*\]\((?:\.\./)?figures/(?P<figure>\w+)\.svg\))?",
    flags=re.MULTILINE | re.DOTALL,
)
WIDTH, HEIGHT = 5.4, 3.6  # inches, at most: on a phone, its text is legible
STYLE = figures.STYLE | {
    "axes.grid": False,
    "axes.prop_cycle": matplotlib.cycler(color=drawings.COLOURS),
    "figure.facecolor": "white",
    "font.size": 11,
    "legend.facecolor": "white",
    "legend.frameon": True,
    "savefig.facecolor": "white",
}
NEEDS = re.compile(r"# needs Flax (\d+(?:\.\d+)*)\b")


class Block(NamedTuple):
    """A block of code, the line it begins at, and the files that take what it prints and what it draws."""

    code: str
    line: int
    output: str | None
    figure: str | None


def pages() -> list[pathlib.Path]:
    """Every page with Python in it, and CONTRIBUTING.md."""
    files = [*sorted(DOCS.rglob("*.md")), DOCS.parent / "CONTRIBUTING.md"]
    return [file for file in files if "```python" in file.read_text(encoding="utf-8")]


def blocks_of(page: pathlib.Path) -> list[Block]:
    """The blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(textwrap.dedent(match["code"]), text.count("\n", 0, match.start()) + 2, match["output"], match["figure"])
        for match in BLOCK.finditer(text)
    ]


def too_new(code: str) -> str | None:
    """The version of Flax that a block needs, if it is newer than the one here."""
    needed = NEEDS.match(code)
    numbers = lambda version: [int(n) for n in re.findall(r"\d+", version)[:3]]  # noqa: E731
    return needed[1] if needed and numbers(needed[1]) > numbers(flax.__version__) else None


def draw(name: str) -> None:
    """Writes matplotlib's current figure in the style of the site, on white."""
    from matplotlib import pyplot

    FIGURES.mkdir(exist_ok=True)
    figure = pyplot.gcf()
    figure.set_size_inches(min(WIDTH, figure.get_figwidth()), min(HEIGHT, figure.get_figheight()))
    figure.tight_layout()
    (FIGURES / f"{name}.svg").write_text(figures.in_scheme(figures.svg(figure), 0), encoding="utf-8")
    pyplot.close("all")


def run(page: pathlib.Path) -> dict[str, str]:
    """What the blocks of a page print, by the names of the files that the page includes."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed: dict[str, str] = {}
    for code, line, output, figure in blocks_of(page):
        if output and NEEDS.match(code):
            raise RuntimeError(
                f"{page.name}, line {line}: the block is not run on every Flax, so it must print nothing"
            )
        if version := too_new(code):
            print(f"line {line} needs Flax {version} and is not run, ", end="")
            continue
        stream = io.StringIO()
        # Blank lines, so that a traceback names the line of the page.
        with contextlib.redirect_stdout(stream):
            exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)
        if figure:
            draw(figure)
        text = stream.getvalue()
        wrong = {
            "prints what the page does not include": text and not output,
            "prints nothing, but the page includes it": output and not text,
            "prints what is included as another's": output in printed,
        }
        for what in filter(wrong.get, wrong):
            raise RuntimeError(f"{page.name}, line {line}: the block {what}")
        if output:
            printed[output] = text
    return printed


def main() -> None:
    """Runs all pages, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", type=pathlib.Path, help="pages; all of them if none is named")
    parser.add_argument("--includes", type=pathlib.Path, default=INCLUDES / "outputs", help="where the lines go")
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)  # for devices.md; the other pages use one
    # What an earlier build or the tests compiled is not compiled again, unless another process is writing that file.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
    jax.config.update("jax_compilation_cache_dir", str(DOCS.parent / "build" / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    args.includes.mkdir(parents=True, exist_ok=True)
    (args.includes / "model_types.md").write_text("\n".join(model_types.lines()) + "\n", encoding="utf-8")
    for name, text in (diffusion_models.texts() | findings.texts()).items():
        (args.includes / name).write_text(text, encoding="utf-8")
    chosen = args.pages or pages()
    for i, page in enumerate(chosen):
        print(f"page {i + 1} of {len(chosen)}: {page.name}, ", end="", flush=True)
        start = time.perf_counter()
        with np.printoptions(), matplotlib.rc_context(STYLE):  # a page may set its own
            printed = run(page)
        for name, text in printed.items():
            (args.includes / name).write_text(text, encoding="utf-8")
        print(f"{len(blocks_of(page))} blocks, {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
