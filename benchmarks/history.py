"""How fast this library was at each commit: `python benchmarks/history.py FOLDER RESULT.json …`.

Adds a line of JSON for each result of `run.py` or `compiled.py` to FOLDER/history.jsonl, for the commit that is checked
out, and draws FOLDER/index.html of all lines. Figures are ratios: to copies of the same round, with their quartiles, or
to a copy's cycles as a compiler estimates them. The first to be slower than the ten before, spread and all, is marked.
"""

import argparse
import html
import json
import pathlib
import subprocess

import numpy as np
from comparison import OURS, ratios

BEFORE, TOLERANCE, SHOWN = 10, 1.02, 200  # points that say what is usual, what is more, and lines that are drawn
WIDTH, HEIGHT, LEFT, TOP = 320, 90, 34, 8
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>posenc_jax: speed over commits</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1080px; padding: 0 1rem; }}
main {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(320px, 1fr)); gap: 1rem; }}
figure {{ margin: 0; }} figcaption {{ font-size: 12px; }} svg {{ width: 100%; }}
text {{ font-size: 9px; fill: currentColor; }}
.line {{ fill: none; stroke: #3f51b5; }} .spread {{ stroke: #7986cb; stroke-width: 3; opacity: .6; }}
.grid {{ stroke: currentColor; opacity: .25; }} .point {{ fill: #3f51b5; }} .slower {{ fill: #d32f2f; }}
@media (prefers-color-scheme: dark) {{
  .line {{ stroke: #9fa8da; }} .point {{ fill: #9fa8da; }} .slower {{ fill: #ef9a9a; }}
}}
</style>
<h1>Speed over commits</h1>
<p>Ratios to a copy of the same bytes: less is faster. A bar spans the quartiles of a run's rounds. A red point is
slower than the runs before it, beyond the spread of both.</p>
{slower}
{sections}
</html>
"""


def summary(result):
    """Device → case → lower quartile, median and upper quartile of this library's ratios."""
    if "speed" in result:
        found = {entry["name"]: ratios(entry).get(OURS) for entry in result["speed"]}
        kept = {name: np.quantile(of, (0.25, 0.5, 0.75)) for name, of in found.items() if of is not None}
        return {result["device"]: {name: np.round(of, 4).tolist() for name, of in kept.items()}}
    return {
        f"{target}, as compiled": {
            row["case"]: [round(row["ratio"], 4)] * 3
            for row in of["figures"]
            if row["who"] == "posenc_jax" and row["ratio"] is not None
        }
        for target, of in result.items()
    }


def series(lines):
    """Device → case → its points in the order of the lines: a commit, and its three figures."""
    found = {}
    for line in lines:
        for device, cases in line["figures"].items():
            for case, figures in cases.items():
                found.setdefault(device, {}).setdefault(case, []).append((line["commit"], *figures))
    return {device: cases for device, cases in found.items() if cases}


def slower(points):
    """Which points are slower than those before, by more than both spreads and the tolerance."""
    marked = []
    for i, (_, low, _, _) in enumerate(points):
        before = np.array([point[1:] for point, mark in zip(points, marked, strict=False) if not mark][-BEFORE:])
        usual = np.median(before[:, 2]) if len(before) else np.inf  # their upper quartiles
        marked.append(i > 0 and low > usual * TOLERANCE)
    return marked


def drawing(case, points, marked):
    """A case's ratios over commits."""
    top = 1.1 * max(high for *_, high in points)
    x = [LEFT + (WIDTH - LEFT - 10) * (i + 0.5) / len(points) for i in range(len(points))]
    y = lambda ratio: TOP + HEIGHT * (1 - ratio / top)  # noqa: E731
    parts = []
    for tick in (0, 1, *([round(top / 1.1, 1)] if top > 1.5 else [])):
        parts.append(f'<path class="grid" d="M{LEFT} {y(tick):.1f}H{WIDTH}"/>')
        parts.append(f'<text x="{LEFT - 4}" y="{y(tick) + 3:.1f}" text-anchor="end">{tick:g}</text>')
    parts += [
        f'<path class="spread" d="M{at:.1f} {y(low):.1f}V{y(high):.1f}"/>'
        for at, (_, low, _, high) in zip(x, points, strict=True)
    ]
    line = " ".join(f"{at:.1f},{y(median):.1f}" for at, (_, _, median, _) in zip(x, points, strict=True))
    parts.append(f'<polyline class="line" points="{line}"/>')
    for at, (commit, low, median, high), mark in zip(x, points, marked, strict=True):
        title = f"<title>{commit}: {median:.3g}, quartiles {low:.3g} and {high:.3g}</title>"
        place = f'cx="{at:.1f}" cy="{y(median):.1f}" r="2.5"'
        parts.append(f'<circle class="{"slower" if mark else "point"}" {place}>{title}</circle>')
    name = html.escape(case)
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 2 * TOP}" role="img" aria-label="{name} over {len(points)} commits">'
    return f"<figure><figcaption>{name}: {points[-1][2]:.3g}</figcaption>{svg}{''.join(parts)}</svg></figure>"


def page(lines):
    """The page, and a line for each case that became slower."""
    sections, found = [], []
    for device, cases in series(lines).items():
        figures = []
        for case, points in cases.items():
            marked = slower(points)
            figures.append(drawing(case, points, marked))
            found += [
                f"{device}, {case}, {commit}: {median:.3g}"
                for (commit, _, median, _), mark in zip(points, marked, strict=True)
                if mark
            ]
        sections.append(f"<h2>{html.escape(device)}</h2>\n<main>{''.join(figures)}</main>")
    listed = "".join(f"<li>{html.escape(text)}</li>" for text in found)
    told = f"<p>Slower than before:</p><ul>{listed}</ul>" if found else "<p>Nothing is slower than before.</p>"
    return PAGE.format(slower=told, sections="\n".join(sections)), found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("results", type=pathlib.Path, nargs="*")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    kept = options.folder / "history.jsonl"
    told = subprocess.check_output(["git", "log", "-1", "--format=%h %cs"], text=True)
    commit, date = told.split()
    figures = {}
    for path in options.results:
        figures |= summary(json.loads(path.read_text(encoding="utf-8")))
    if figures:
        with kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"commit": commit, "date": date, "figures": figures}) + "\n")
    lines = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
    text, found = page(lines[-SHOWN:])
    (options.folder / "index.html").write_text(text, encoding="utf-8")
    print(f"{options.folder / 'index.html'}: {len(lines)} runs")
    print("\n".join(f"slower: {text}" for text in found if f", {commit}: " in text))


if __name__ == "__main__":
    main()
