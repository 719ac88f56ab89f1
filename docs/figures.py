"""Draws the figures of the site, light and dark, and writes what pages include to show them: `python docs/figures.py`.

A drawing is a public function of a module in `drawings`: it returns a matplotlib figure, its docstring is the text for
those who do not see it, and a page shows it by including `figures/NAME.md`. Every run writes the same bytes.
"""

import argparse
import importlib
import inspect
import pathlib
from collections.abc import Callable
from types import ModuleType

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

DOCS = pathlib.Path(__file__).parent
INCLUDES = DOCS.parent / "build" / "docs"
COLOURED = ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color")
SCHEMES = {"": "#24292f", "_dark": "#d7dde3"}
STYLE = {
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.grid": False,
    "grid.color": "#8c959f40",
    "svg.hashsalt": "posenc_jax",  # without it, names inside the file are random
}


def modules() -> list[ModuleType]:
    """The modules of drawings, by name."""
    names = sorted(path.stem for path in (DOCS / "drawings").glob("[!_]*.py"))
    return [importlib.import_module(f"drawings.{name}") for name in names]


def drawings() -> dict[str, Callable[[], Figure]]:
    """Every drawing by its name."""
    found = {}
    for module in modules():
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and not name.startswith("_"):
                assert name not in found, f"two drawings are called {name}"
                found[name] = function
    return found


def draw(name: str, function: Callable[[], Figure], figures: pathlib.Path, includes: pathlib.Path) -> None:
    """One drawing in both schemes, and the lines that show it."""
    alt = " ".join(inspect.getdoc(function).split())
    assert not set('"[]<>') & set(alt), f"{name}: text for a figure without quotes, brackets and tags, got {alt}"
    lines = []
    for suffix, text in SCHEMES.items():
        with matplotlib.rc_context(STYLE | dict.fromkeys(COLOURED, text)):
            figure = function()
            FigureCanvasSVG(figure).print_svg(
                figures / f"{name}{suffix}.svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
            )
        width, height = (round(96 * inches) for inches in figure.get_size_inches())
        where = f"figures/{name}{suffix}.svg#only-{'dark' if suffix else 'light'}"
        lines.append(f'![{alt}]({where}){{ width="{width}" height="{height}" }}')
    (includes / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Draws all, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="drawings; all of them if none is named")
    parser.add_argument("--figures", type=pathlib.Path, default=DOCS / "figures", help="where the pictures go")
    parser.add_argument("--includes", type=pathlib.Path, default=INCLUDES / "figures", help="where the lines go")
    args = parser.parse_args()
    for folder in (args.figures, args.includes):
        folder.mkdir(parents=True, exist_ok=True)
    found = drawings()
    for i, name in enumerate(args.names or found):
        print(f"figure {i + 1} of {len(args.names or found)}: {name}", flush=True)
        draw(name, found[name], args.figures, args.includes)


if __name__ == "__main__":
    main()
