"""Runs the vectors through libraries: `python -m conformance.run --adapter NAME … [--markdown FILE]`.

A name is that of a module of adapters/, or the path of a Python file, such as mine.py. Prints tables, why cases were
not offered, and for each failure a line that runs its case again; failures with the same message share one. A failure
counts as "float32 phases" if rounding position times frequency to float32 explains an error of that size, and as
"beyond float32 phases" if that rounding may reach a radian, which explains any error. Every other failure is run again
in new processes: if the case fails only when run after others, as with a table that a library keeps from an earlier
case, its line names them. Exits with 1 if a case failed or an adapter tried none, except with --markdown, which asks
for the tables alone.
"""

import argparse
import datetime
import importlib
import importlib.metadata
import importlib.util
import json
import platform
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from conformance.adapters import NotOffered

FOLDER = Path(__file__).parent / "vectors"
ADAPTERS = ("posenc_jax", "jax_nn", "flax_nnx", "equinox", "keras_hub", "gemma", "transformers")
PASSED, FAILED, ABSENT = "passed", "failed", "not offered"
ROUNDED, LOST = "float32 phases", "beyond float32 phases"


def load(folder=FOLDER):
    """All cases, each with the name of its group."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return [case | {"group": file["group"]} for file in files for case in file["cases"]]


def judge(case, adapter):
    """The outcome of a case, the largest error, None if there are no numbers to compare, and why it failed."""
    function = getattr(adapter, case["function"], None)
    if function is None:
        return ABSENT, None, f"no {case['function']}"
    try:
        got = np.asarray(function(**case["inputs"], **case["parameters"]), np.float64)
    except NotOffered as reason:
        return ABSENT, None, str(reason)
    except Exception as error:  # an error for what it says it offers
        return FAILED, None, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    expected = np.array(case["expected"])
    if got.shape != expected.shape:
        return FAILED, None, f"shape {got.shape}, expected {expected.shape}"
    errors = np.abs(got - expected)
    allowed = case["tolerance"]["absolute"] + case["tolerance"]["relative"] * np.abs(expected)
    worst = float(errors.max()) if np.isfinite(errors).all() else float("inf")
    if (errors <= allowed).all():
        return PASSED, worst, ""
    if worst <= (explained := case.get("float32_phases", 0)):
        return FAILED, worst, ROUNDED if explained < 1 else LOST
    return FAILED, worst, f"allowed {allowed.reshape(-1)[np.argmax(np.nan_to_num(errors, nan=np.inf))]:.1e}"


def versions(adapter):
    return " ".join(f"{name} {importlib.metadata.version(name)}" for name in adapter.PACKAGES) or adapter.NAME


def cell(outcomes):
    count = Counter(outcomes)
    tried = count[PASSED] + count[FAILED]
    return f"{count[PASSED]} of {tried}" if tried else "–"


def table(rows):
    """Markdown of rows of texts, the first of which is the head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "| --- |" + " --- |" * (len(rows[0]) - 1), *lines[1:]])


def by(key, results):
    """Passed of those tried, for every value of a key of the cases and each library."""
    values = list(dict.fromkeys(key(case) for outcomes in results.values() for case, *_ in outcomes))
    rows = [["cases", *results]]
    for value in values:
        rows.append([value, *(cell(o for c, o, *_ in found if key(c) == value) for found in results.values())])
    return table(rows)


def summary(results):
    """How many passed, how many were not offered, and why others failed."""
    counts = []
    for found in results.values():
        reasons = [why for _, outcome, _, why in found if outcome == FAILED]
        passed, absent = (sum(o == outcome for _, o, *_ in found) for outcome in (PASSED, ABSENT))
        rounded, lost = reasons.count(ROUNDED), reasons.count(LOST)
        counts.append((passed, rounded, lost, len(reasons) - rounded - lost, absent))
    labels = ("passed", f"failed: {ROUNDED}", f"failed: {LOST}", "failed: anything else", "not offered")
    rows = [[label, *map(str, row)] for label, row in zip(labels, zip(*counts, strict=True), strict=True)]
    return table([["outcome", *results], *rows])


def line(name, case, outcome, worst, why):
    error = "" if worst is None else f", error {worst:.3e}"
    return f"{name} {case['name']}: {outcome}{error}{', ' + why if why else ''}"


def afresh(name, cases):
    """What a new process that judges these cases says of the last."""
    command = [sys.executable, "-m", "conformance.run", "--adapter", name, "--case", *cases]
    return "".join(subprocess.run(command, capture_output=True, text=True).stdout.splitlines()[-1:])


def repeat(name, earlier, case, why):
    """The names by which a new process repeats a failure: that of the case, after earlier ones if it needs them."""

    def fails(before):
        said = afresh(name, [*before, case])
        return said.startswith(f"{name} {case}: {FAILED}, ") and said.endswith(why)

    if fails([]):
        return [case]
    low, high = 0, len(earlier)  # it fails after all from low on, and not after those from high on
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fails(earlier[middle:]) else (low, middle)
    one = earlier[low:high]
    return [*(one if fails(one) else earlier[low:]), case]


def failures(name, outcomes):
    lines, tried = [], []
    same = Counter(why for _, outcome, worst, why in outcomes if outcome == FAILED and worst is None)
    for case, outcome, worst, why in outcomes:
        if outcome == FAILED and (worst is not None or why in same):
            cases = [case["name"]] if why in (ROUNDED, LOST) else repeat(name, tried, case["name"], why)
            said = f"{why}, {same.pop(why)} cases" if worst is None else f"error {worst:.1e}, {why}"
            lines.append(f"python -m conformance.run --adapter {name} --case {' '.join(cases)}  # {said}")
        if outcome != ABSENT:
            tried.append(case["name"])
    return "\n".join(lines)


def absences(name, outcomes):
    """Lines that say why cases were not offered, and how many."""
    reasons = Counter(why for _, outcome, _, why in outcomes if outcome == ABSENT)
    return [f"{name} does not offer {count} cases: {why}" for why, count in reasons.most_common()]


def uncalled(name, adapter, functions):
    """A line that names the public functions of a file that no case calls, such as a misspelt one, if it has any."""
    if not name.endswith(".py"):
        return []
    own = {x for x, f in vars(adapter).items() if getattr(f, "__module__", "") == adapter.__name__ and x[0] != "_"}
    said = f"{name}: no case calls {', '.join(sorted(own - functions))}; cases call {', '.join(sorted(functions))}"
    return [said] if own - functions else []


def report(adapters, results):
    """The tables, and each failure with the line that repeats it."""
    named = {adapters[name].NAME: outcomes for name, outcomes in results.items()}
    made = "; ".join(versions(adapter) for adapter in adapters.values())
    total = len(next(iter(named.values())))
    parts = [f"{total} cases, {datetime.date.today()}, Python {platform.python_version()}: {made}.", summary(named)]
    parts += ["Passed of those that a library offers, by group; – where it offers none:"]
    parts += [by(lambda case: case["group"], named), "The same by the range of positions:"]
    parts += [by(lambda case: case["name"].rsplit("-", 1)[1], named)]
    for name, outcomes in results.items():
        if lines := failures(name, outcomes):
            count = sum(outcome == FAILED for _, outcome, *_ in outcomes)
            head = f'<details markdown="1"><summary>{adapters[name].NAME}: {count} failures</summary>'
            parts += [f"{head}\n\n```text\n{lines}\n```\n\n</details>"]
    return "\n\n".join(parts) + "\n"


def loaded(name):
    """The adapter of this name or in this file, which need not have NAME and PACKAGES."""
    if not name.endswith(".py"):
        return importlib.import_module(f"conformance.adapters.{name}")
    spec = importlib.util.spec_from_file_location(Path(name).stem, name)
    adapter = importlib.util.module_from_spec(spec)
    adapter.NAME, adapter.PACKAGES = Path(name).stem, ()
    spec.loader.exec_module(adapter)
    return adapter


def main(arguments=None):
    """Runs it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m conformance.run", description=__doc__)
    parser.add_argument("--adapter", nargs="+", required=True, help=f"of {', '.join(ADAPTERS)}, or a file")
    parser.add_argument("--case", nargs="+", help="names of cases, in order, else all")
    parser.add_argument("--markdown", type=Path, help="write the tables and failures there")
    options = parser.parse_args(arguments)
    cases = {case["name"]: case for case in load()}
    if unknown := set(options.case or ()) - set(cases):
        parser.error(f"no case {', '.join(sorted(unknown))}")
    chosen = [cases[name] for name in options.case or cases]
    if unknown := {name for name in options.adapter if not name.endswith(".py")} - {*ADAPTERS}:
        parser.error(f"no adapter {', '.join(sorted(unknown))}: there are {', '.join(ADAPTERS)}, or pass a file")
    if missing := [name for name in options.adapter if name.endswith(".py") and not Path(name).is_file()]:
        parser.error(f"no file {', '.join(missing)}")
    adapters = {}
    for name in options.adapter:
        try:
            adapters[name] = loaded(name)
        except ModuleNotFoundError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    if not adapters:
        return 1
    results = {name: [(c, *judge(c, adapter)) for c in chosen] for name, adapter in adapters.items()}
    if options.case:
        print(*(line(name, *found) for name, outcomes in results.items() for found in outcomes), sep="\n")
    page = report(adapters, results) if options.markdown or not options.case else ""
    if not options.case:
        print(page, *sum(map(absences, results, results.values()), []), sep="\n")
    functions = {case["function"] for case in cases.values()}
    idle = [name for name, outcomes in results.items() if {outcome for _, outcome, *_ in outcomes} == {ABSENT}]
    for name, adapter in adapters.items():
        notes = uncalled(name, adapter, functions) + [f"{name}: no case was tried"] * (name in idle)
        print(*notes, sep="\n", end="\n" * bool(notes), file=sys.stderr)
    if options.markdown:
        options.markdown.write_text(page, encoding="utf-8")
        return 0
    return int(bool(idle) or any(outcome == FAILED for outcomes in results.values() for _, outcome, *_ in outcomes))


if __name__ == "__main__":
    sys.exit(main())
