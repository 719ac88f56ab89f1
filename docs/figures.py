"""Draws the figures of the site and writes what pages include to show them: `python docs/figures.py`.

A drawing is a public function of a module in `drawings`: it returns a matplotlib figure, its docstring is the text for
those who do not see it, and a page shows it by including `figures/NAME.md`. There are four files of each, light and
dark, for a page's column and for a phone, with letters of the reader's own font. Every run writes the same bytes.
`phase_error.png` and its dark form, which README shows, are error_home at twice its size, as a browser draws it.
"""

import argparse
import importlib
import inspect
import io
import pathlib
import re
from collections.abc import Callable
from types import ModuleType

import drawings
import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, MaxNLocator, NullFormatter

DOCS = pathlib.Path(__file__).parent
INCLUDES = DOCS.parent / "build" / "docs"
INK, FAINT = "#24292f", "#57606a"
# What a colour of a drawing is on light and on dark pages: those of assets/views.css.
COLOURS = {
    INK: ("#212121", "#d3d5da"),
    FAINT: ("#595959", "#b1b3b9"),
    drawings.GREY: ("#999999", "#858790"),
    drawings.FIRST: ("#0072b2", "#56b4e9"),
    drawings.SECOND: ("#c14a00", "#f5a35c"),
    drawings.QUERY: ("#00785c", "#4ccfa0"),
    drawings.KEY: ("#94368a", "#e39ad8"),
    drawings.AMBER: ("#a87400", "#e6c04f"),
    drawings.SKY: ("#4a9fd4", "#a6d8f7"),
    drawings.SEEN: ("#7f97ab", "#7d93a8"),
    drawings.NEW: ("#d55e00", "#f0803c"),
    drawings.GOOD: ("#1f7a3a", "#4fc878"),
    drawings.BAD: ("#c8321c", "#f27a66"),
    # of benchmarks/figures.py: this library, those for JAX and for PyTorch, a seventh and an eighth line
    "#0072b2": ("#0072b2", "#56b4e9"),
    "#6e7781": ("#6e7781", "#9aa4ae"),
    "#b4bcc4": ("#b4bcc4", "#59636e"),
    "#8a63d2": ("#7450c0", "#b59af0"),
    "#8a8f95": ("#7d838a", "#9ba1a8"),
}
SCHEMES = ("", "_dark")
FORMS = {"": ("pe-wide", drawings.WIDE), "_phone": ("pe-phone", drawings.NARROW)}
COLOUR = re.compile(r"#[0-9a-f]{6}\b")
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": drawings.GREY,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": FAINT,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "axes.titleweight": "bold",
    "figure.constrained_layout.wspace": 0.05,
    "figure.facecolor": "none",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.4,  # points: 12.5 pixels, as in the views
    "grid.alpha": 0.3,
    "grid.color": drawings.GREY,
    "legend.columnspacing": 1.2,
    "legend.fontsize": "medium",
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",  # letters: the reader's browser has the font
    "svg.hashsalt": "posenc_jax",  # without it, names inside the file are random
    "text.color": INK,
    "xtick.color": drawings.GREY,
    "xtick.labelcolor": FAINT,
    "ytick.color": drawings.GREY,
    "ytick.labelcolor": FAINT,
} | {f"{axis}tick.{which}.size": 0 for axis in "xy" for which in ("major", "minor")}


def modules() -> list[ModuleType]:
    """The modules of drawings, by name."""
    names = sorted(path.stem for path in (DOCS / "drawings").glob("[!_]*.py"))
    return [importlib.import_module(f"drawings.{name}") for name in names]


def functions() -> dict[str, Callable[[], Figure]]:
    """Every drawing by its name."""
    found = {}
    for module in modules():
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and not name.startswith("_"):
                assert name not in found, f"two drawings are called {name}"
                found[name] = function
    return found


def power(value: float, _: int | None = None) -> str:
    """A power of ten, in letters that every font has."""
    exponent = round(np.log10(value))
    return {0: "1", 1: "10"}.get(exponent, f"10{str(exponent).translate(SUPERSCRIPT)}")


def tidy(axes: Axes) -> None:
    """No box around images and scales of colours; powers of ten as text; no more numbers than have room."""
    if axes.images or axes.get_label() == "<colorbar>":
        axes.spines[:].set_visible(False)
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log" and isinstance(axis.get_major_formatter(), LogFormatter):
            axis.set_major_formatter(power)
            axis.set_minor_formatter(NullFormatter())
    if type(locator := axes.xaxis.get_major_locator()) is MaxNLocator:
        room = 96 / axes.figure.dpi * axes.get_window_extent().width
        locator.set_params(nbins=max(2, min(6, room // 32)), steps=[1, 2, 4, 5, 10])


def svg(figure: Figure) -> str:
    """The figure as text, in the reader's font."""
    figure.draw_without_rendering()
    for axes in figure.axes:
        tidy(axes)
    stream = io.StringIO()
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(stream, format="svg", metadata=metadata)
    return stream.getvalue().replace("'DejaVu Sans', sans-serif", "system-ui, sans-serif")


def in_scheme(text: str, scheme: int) -> str:
    """The figure in the colours of a scheme."""
    return COLOUR.sub(lambda match: COLOURS.get(match[0], (match[0],) * 2)[scheme], text)


def draw(name: str, function: Callable[[], Figure], figures: pathlib.Path, includes: pathlib.Path) -> None:
    """One drawing in its two forms and both schemes, and the lines that show it."""
    alt = " ".join(inspect.getdoc(function).split())
    assert not set('"[]<>') & set(alt), f"{name}: text for a figure without quotes, brackets and tags, got {alt}"
    lines = []
    for form, (style, width) in FORMS.items():
        with matplotlib.rc_context(STYLE | {"figure.figsize": (width / 96, 3)}):
            figure = function()
            text = svg(figure)
        width, height = (round(96 * inches) for inches in figure.get_size_inches())
        for i, suffix in enumerate(SCHEMES):
            file = f"{name}{form}{suffix}.svg"
            (figures / file).write_text(in_scheme(text, i), encoding="utf-8")
            where = f"figures/{file}#only-{'dark' if suffix else 'light'}"
            lines.append(f'![{alt}]({where}){{ width="{width}" height="{height}" }}')
        lines += [f"{{ .{style} }}", ""]
    (includes / f"{name}.md").write_text("\n".join(lines), encoding="utf-8")


def main() -> None:
    """Draws all, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="drawings; all of them if none is named")
    parser.add_argument("--figures", type=pathlib.Path, default=DOCS / "figures", help="where the pictures go")
    parser.add_argument("--includes", type=pathlib.Path, default=INCLUDES / "figures", help="where the lines go")
    args = parser.parse_args()
    for folder in (args.figures, args.includes):
        folder.mkdir(parents=True, exist_ok=True)
    found = functions()
    for i, name in enumerate(args.names or found):
        print(f"figure {i + 1} of {len(args.names or found)}: {name}", flush=True)
        draw(name, found[name], args.figures, args.includes)


if __name__ == "__main__":
    main()
