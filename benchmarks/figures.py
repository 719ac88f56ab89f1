"""Figures of `run.py`'s results, for light and dark pages: `python benchmarks/figures.py [results/cpu-….json]`.

Bars of times in copies, errors against position, time and memory against length and against heads. This library is
blue; peers are grey in bars, and differ by colour and marker in lines. The background is transparent.
"""

import argparse
import collections
import itertools
import json
import pathlib
import textwrap

import matplotlib
import numpy as np
from cases import LAYOUTS, Case
from comparison import AGAIN, OURS, PLAIN, kept, medians, short
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter, NullLocator

COLOURED = ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color")
SCHEMES = {
    "": {"text": "#24292f", "ours": "#0072B2", "jax": "#6e7781", "torch": "#b4bcc4", "grid": "#8c959f40"},
    "_dark": {"text": "#d7dde3", "ours": "#56B4E9", "jax": "#9aa4ae", "torch": "#59636e", "grid": "#8c959f40"},
}
# Okabe and Ito's without blues, black and yellow; a violet and a grey. A circle is this library's.
COLOURS, MARKERS = ("#D55E00", "#009E73", "#CC79A7", "#E69F00", "#8A63D2", "#8A8F95"), ("s", "D", "^", "v")
PAGE = 4096  # bytes: the least that is seen
DASHES = ("-", (0, (5, 1.5)))
LEGEND = {"ours": "posenc_jax", "jax": "libraries for JAX", "torch": "libraries for PyTorch"}
KINDS = {"table": "Table", "add": "Table added", "rotary": "Rotary", "decode": "Decode step"}
BARS = [
    [Case("table", (131_072, 128))],
    *[
        [Case(kind, shape, dtype, layout, backward) for dtype in ("float32", "bfloat16")]
        for kind, shape, layout, backward in (
            ("add", (16, 4096, 512), "", False),
            *(("rotary", (1, 4096, 32, 128), layout, backward) for layout in LAYOUTS for backward in (False, True)),
            *(("decode", (32, 1, 32, 128), layout, False) for layout in LAYOUTS),
        )
    ],
]


def title_of(case):
    """Of a panel, in two lines."""
    words = [KINDS[case.kind], case.layout, "forward and backward" * case.backward]
    return f"{', '.join(filter(None, words))}\n{case.dtype}, {' × '.join(f'{n:,}' for n in case.shape)}"


def style_of(result, scheme):
    """How the line of each peer looks: the same in each figure of growth."""
    rotary, others = (
        {n for entry in result["growth"] if (entry["case"]["kind"] == "rotary") == is_rotary for n in entry["times"]}
        for is_rotary in (True, False)
    )
    # First those of the fullest panels, so that no colour is there twice.
    peers = [name for name in [*sorted(rotary), *sorted(others - rotary)] if name not in (OURS, PLAIN, PLAIN + AGAIN)]
    styles = {OURS: {"color": scheme["ours"], "marker": "o", "markersize": 5, "lw": 2.4, "zorder": 4}}
    styles[PLAIN] = {"color": scheme["text"], "ls": ":", "lw": 1.2}
    for i, name in enumerate(peers):
        look = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "markerfacecolor": "none"}
        styles[name] = look | {"markersize": 6, "lw": 1, "ls": DASHES[i // len(COLOURS) % 2]}
    return styles


def bars(result, scheme):
    """A panel for each case: times in copies, the fastest on top."""
    entries = {entry["name"]: entry for entry in result["speed"]}
    found = {case: medians(entries[case.name]) for row in BARS for case in row if case.name in entries}
    width = matplotlib.rcParams["figure.figsize"][0]
    columns = 2 if width > 5 else 1
    rows = BARS if columns == 2 else [[case] for row in BARS for case in row]
    rows = [row for row in rows if any(found.get(case) for case in row)]
    if not rows:
        return None
    counts = [max(len(found.get(case, ())) for case in row) for row in rows]
    # In inches: names at the left of bars, and above and below each row its title and its numbers.
    names, bar, above, below = 1.62, 0.19, 0.44, 0.36
    beside = width / columns - names - 0.15
    top = 0.8 / columns if len(rows[0]) == columns else 0  # for the legend, if the first row has no room
    height = top + bar * sum(counts) + (above + below) * len(rows)
    figure, drawn, bottom = Figure(figsize=(width, height)), [], height - top
    for row, count in zip(rows, counts, strict=True):
        bottom -= above + bar * count
        for i, case in enumerate(row):
            if found.get(case):
                place = ((i * width / columns + names) / width, bottom / height, beside / width, bar * count / height)
                drawn.append((figure.add_axes(place), case))
        bottom -= below
    # Decode steps are short, so that what a call costs is many copies: they have an axis of their own.
    for decode in (False, True):
        part = [(panel, case) for panel, case in drawn if (case.kind == "decode") == decode]
        limits = limits_of([x for _, case in part for x in found[case].values()])
        for panel, case in part:
            draw_bars(panel, found[case], result["peers"], scheme, limits)
            panel.set_title(title_of(case), loc="left", size="medium", x=0.08 - names / beside)
    handles = [Patch(color=scheme[key], label=label) for key, label in LEGEND.items()]
    handles.append(Line2D([], [], color=scheme["text"], lw=1, label="1: the time of a plain copy or fill"))
    at, columns = ((0, 1), columns) if top else ((0.52, 1 - (above - 0.1) / height), 1)
    figure.legend(handles=handles, ncols=columns, frameon=False, borderaxespad=0, loc="upper left", bbox_to_anchor=at)
    return figure


def limits_of(values):
    """Of the axis of bars: from 0.8, or what is less, and at the right with room for a number."""
    low, high = min([0.8, *(0.9 * x for x in values)]), max([2.0, *values])
    return low, high * (high / low) ** 0.2


def draw_bars(panel, ratios, peers, scheme, limits):
    names = sorted(ratios, key=ratios.get, reverse=True)
    colours = [scheme["ours" if name == OURS else peers[name]["framework"]] for name in names]
    panel.axvline(1, color=scheme["text"], lw=1)
    panel.barh([peers[name]["name"] for name in names], [ratios[name] for name in names], color=colours, height=0.72)
    for i, (name, label) in enumerate(zip(names, panel.get_yticklabels(), strict=True)):
        style = {"color": scheme["ours"], "weight": "bold"} if name == OURS else {}
        label.set(**style)
        at = (max(1, ratios[name]), i)  # not upon the line
        style |= {"textcoords": "offset points", "va": "center_baseline", "size": "small"}
        panel.annotate(short(ratios[name]), at, xytext=(3, 0), **style)
    ticks = [n * 10.0**power for power in range(-4, 7) for n in (1, 2, 5)]
    ticks = [tick for tick in ticks if limits[0] <= tick <= limits[1]]
    if len(ticks) > 6:
        ticks = [tick for tick in ticks if np.log10(tick).round(6) % 1 == 0]
    panel.set(xscale="log", xlim=limits, ylim=(-0.6, len(names) - 0.4))
    panel.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.grid(visible=False, axis="y")
    panel.tick_params(axis="y", length=0)
    panel.tick_params(axis="x", which="both", labelsize="small")


def alike(errors):
    """Peers in groups: those that reach equally far, with errors within a factor of two of the first's."""
    groups = []
    for name, row in errors.items():
        known = np.array([np.nan if e is None else max(e, 1e-12) for e in row])
        for first, group in groups:
            if (np.isnan(first) == np.isnan(known)).all() and np.nanmax(np.abs(np.log2(first / known))) <= 1:
                group.append(name)
                break
        else:
            groups.append((known, [name]))
    return [group for _, group in groups]


def accuracy(result, scheme):
    """A line for each peer; one entry of the legend for those that coincide."""
    if not result.get("accuracy", {}).get("errors"):
        return None
    positions, errors = result["accuracy"]["positions"], result["accuracy"]["errors"]
    errors = {name: row for name, row in errors.items() if any(e is not None for e in row)}
    figure, axes = single("position (tokens)", "largest error of a cosine or sine", 4.6)
    groups = sorted(alike(errors), key=lambda group: (OURS not in group, -len(group)))
    plain = zip(itertools.cycle(COLOURS), itertools.cycle(MARKERS), strict=False)
    for group in groups:
        ours = OURS in group
        colour, marker = (scheme["ours"], "o") if ours else next(plain)
        reach = max(p for name in group for p, e in zip(positions, errors[name], strict=True) if e is not None)
        names = "; ".join(sorted((result["peers"][name]["name"] for name in group), key=str.lower))
        last = "" if reach == positions[-1] else f" (no further than {reach:,})"
        for name in group:
            row = [np.nan if e is None else max(e, 1e-12) for e in errors[name]]
            style = {"color": colour, "marker": marker, "markersize": 5 if ours else 6, "lw": 2.4 if ours else 1}
            label = textwrap.fill(names + last, int(10 * figure.get_figwidth())) if name == group[0] else None
            face = colour if ours else "none"
            axes.plot(positions, row, label=label, markerfacecolor=face, zorder=4 if ours else 2, **style)
    axes.axhline(2.0**-24, color=scheme["text"], lw=1, ls=":")
    axes.annotate(
        "6e-8: the rounding of float32",
        (1, 2.0**-24),
        xycoords=("axes fraction", "data"),
        xytext=(-5, 4),
        textcoords="offset points",
        ha="right",
    )
    axes.set(xscale="log", yscale="log")
    figure.legend(loc="outside lower left", frameon=False, handlelength=2.5)
    return figure


def single(xlabel, ylabel, height):
    figure = Figure(figsize=(matplotlib.rcParams["figure.figsize"][0], height), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(True)
    return figure, axes


def growth(result, scheme, over):
    """Time and memory: a row for each kind, with a legend of its own at its right."""
    kinds = collections.defaultdict(list)
    for entry in result.get("growth", []):
        if entry["over"] == over:
            kinds[entry["case"]["kind"]].append(entry)
    if not kinds:
        return None
    memory = {entry["name"]: entry["bytes"] for entry in result.get("memory", []) if entry["bytes"]}
    columns = ["time of a call (ms)"] + ["memory beside results (MB)"] * bool(memory)
    width, ratios = matplotlib.rcParams["figure.figsize"][0], [1] * len(columns) + [0.62]
    if width > 5:
        figure = Figure(figsize=(width, 0.35 + 2.65 * len(kinds)), layout="constrained")
        grid = figure.subplots(len(kinds), len(ratios), squeeze=False, width_ratios=ratios)
    else:  # one below another
        figure = Figure(figsize=(width, 2.65 * sum(ratios) * len(kinds)), layout="constrained")
        grid = figure.subplots(len(kinds) * len(ratios), 1, height_ratios=ratios * len(kinds)).reshape(len(kinds), -1)
    styles = style_of(result, scheme)
    for line, (kind, entries) in zip(grid, kinds.items(), strict=True):
        axis = {"length": 0 if kind == "table" else 1, "heads": 2}[over]
        sizes = [entry["case"]["shape"][axis] for entry in entries]
        times = series([{n: 1e3 * np.median(t) for n, t in entry["times"].items()} for entry in entries])
        times.pop(PLAIN + AGAIN, None)
        bytes_ = series([memory.get(entry["name"], {}) for entry in entries])
        bytes_ = {n: np.maximum(row, PAGE) / 1e6 for n, row in bytes_.items() if n in styles and n != PLAIN}
        words = KINDS[kind], entries[0]["case"]["layout"], entries[0]["case"]["dtype"]
        for panel, label, values in zip(line, columns, (times, bytes_), strict=False):
            for name, row in values.items():
                panel.plot(sizes, row, **styles[name])
            panel.set(xscale="log", yscale="log", xlabel=f"{over}{' (tokens)' * (over == 'length')}", ylabel=label)
            panel.set_title(", ".join(filter(None, words)), loc="left", size="medium")
            panel.set_xticks(sizes, [shorter(n) for n in sizes])
            panel.xaxis.set_minor_locator(NullLocator())
            panel.grid(True)
        order = sorted(times, key=lambda name: -np.nan_to_num(times[name][-1]))
        handles = [Line2D([], [], label=result["peers"][name]["name"], **styles[name]) for name in order]
        line[-1].axis("off")
        line[-1].legend(handles=handles, loc="center left", frameon=False, borderaxespad=0, handlelength=2.2)
    return figure


def series(values):
    """A row for each peer of what is given in a dict for each size."""
    return {name: [of.get(name, np.nan) for of in values] for name in dict.fromkeys(n for of in values for n in of)}


def shorter(n):
    """1k is 1,024, as lengths are told."""
    return f"{n >> 20}M" if n >= 2**20 else f"{n >> 10}k" if n >= 2**10 else str(n)


def draw(result, folder, name):
    """Write all figures for which there are results; their paths."""
    paths = []
    for suffix, scheme in SCHEMES.items():
        style = dict.fromkeys(COLOURED, scheme["text"])
        style |= {"font.size": 9, "grid.color": scheme["grid"], "grid.linewidth": 0.6, "axes.titlesize": "large"}
        style |= {"figure.figsize": (7.5, 4.6)}  # the width of all
        with matplotlib.rc_context(style):
            drawn = {
                "bars": bars(result, scheme),
                "errors": accuracy(result, scheme),
                "length": growth(result, scheme, "length"),
                "heads": growth(result, scheme, "heads"),
            }
            for what, figure in drawn.items():
                if figure:
                    paths.append(folder / f"{name}_{what}{suffix}.png")
                    figure.savefig(paths[-1], dpi=160, transparent=True)
    return paths


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, nargs="?", help="a JSON file that run.py wrote; else the newest")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(), help="folder of the figures")
    options = parser.parse_args()
    result = json.loads(options.results.read_text()) if options.results else kept()[0]
    for path in draw(result, options.out, options.results.stem if options.results else "cpu"):
        print(path)


if __name__ == "__main__":
    main()
