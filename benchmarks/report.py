"""The tables of `run.py`'s results in Markdown: `python benchmarks/report.py [--write] [results/cpu-….json …]`.

Without files, the results of all processors stand side by side, the newest first. `--write` makes results/cpu.md of
them, whose parts the site includes, and puts the newest into README's tables.
"""

import argparse
import collections
import json
import pathlib
import re

import numpy as np
from cases import PROGRAMS, case_of
from comparison import AGAIN, CASES, OURS, PLAIN, is_ahead, kept, medians, noise, ratios, short, units
from reference import markdown
from worker import settings

HERE = pathlib.Path(__file__).parent
NOTE = """Times are divided by a unit measured in the same round: the mean of two plain copies (or fills) of the same
bytes. Forward and backward are divided by two copies in one call; loops and compilations by the textbook
formula in the same program; stacks by the stack that does not rotate. Tables show the median over rounds.
Brackets show the shortest time divided by the unit's shortest (in tables of all processors), or quartiles.
Bold figures miss their aim. BEHIND means more than 2% slower than that peer at the median, and slower in
three of four rounds. MB are 10⁶ bytes."""
JAX_AIM, FIRST_AIM = 3.0, 1.1  # times as fast as the fastest JAX peer; first call beside that of the fastest
MEGABYTES = "{:,.1f}".format
BESIDE = ("decode", "stack")  # kinds whose aim is that no peer is ahead
UNITS = {"loop": "the textbook", "stack": "without rotation"}
GROUPS = {
    "Tables, and tables added": ("table", "add"),
    "Rotary, half layout": ("rotary", "half"),
    "Rotary, interleaved layout": ("rotary", "interleaved"),
    "Decode steps": ("decode",),
    "Attention with ALiBi": ("attention",),
    "Loops": ("loop",),
    "Stacks of 16 layers": ("stack",),
    "Compilation of 64 rotations with projections": ("compile",),
}


def of_group(group, case):
    kinds = GROUPS[group]
    return case["kind"] in kinds and (case["kind"] != "rotary" or case["layout"] in kinds)


class Report:
    """The sections; `missed` gathers the aims that are not met."""

    def __init__(self, result):
        self.result, self.missed = result, []
        self.bytes = {
            entry["name"]: {name: count / 1e6 for name, count in entry["bytes"].items()}
            for entry in result.get("memory", [])
        }

    def title(self, name):
        return self.result["peers"][name]["name"]

    def is_jax(self, name):
        return self.result["peers"][name]["framework"] == "jax"

    def titles(self, names):
        """Of each peer by its module; this library first, then those of JAX, the copy last."""
        order = [(name != OURS, name == PLAIN, not self.is_jax(name), self.title(name).lower(), name) for name in names]
        return {key[-1]: self.title(key[-1]) for key in sorted(order)}

    def matrix(self, corner, columns, write=short, turn=False):
        """A row for each peer and a column for each of `columns`, which holds values by peer; or turned."""
        peers = self.titles({name for column in columns.values() for name in column})
        grid = [[corner, *peers.values()]]
        grid += [
            [head, *(write(c[name]) if c.get(name) is not None else "–" for name in peers)]
            for head, c in columns.items()
        ]
        grid = grid if turn else [list(row) for row in zip(*grid, strict=True)]
        return markdown(grid[0], grid[1:])

    def verdict(self, what, met, found):
        if not met:
            self.missed.append(f"{what}: {found}")
        return "met" if met else "MISSED"

    def heading(self):
        result, present = self.result, {n: p for n, p in self.result["peers"].items() if "missing" not in p}
        versions = {k: v for peer in present.values() for k, v in peer["versions"].items() if k in ("jax", "torch")}
        where = [result["device"], result["date"], f"Python {result['python']}"]
        where += [f"{k} {v}" for k, v in sorted(versions.items())] + ["quick: noisy"] * result["quick"]
        lines = [f"# {result['device']}", ", ".join(where[1:]) + "."]
        peers = []
        for name, title in self.titles(set(present) - {PLAIN}).items():
            own = [f"{k} {v}" for k, v in present[name]["versions"].items() if k not in ("jax", "torch", "numpy")]
            peers.append(f"{title} ({', '.join(own)})" if own else title)
        lines.append(f"Measured: {'; '.join(peers)}.")
        for peer in result["peers"].values():
            if "missing" in peer:
                lines.append(f"Without {peer['name']}: {brief(peer['missing'])}")
        counts = collections.Counter()
        for failure in result["failures"]:
            case = failure["request"].get("case")
            of = f", {case_of(case).name}" if case else ""
            counts[f"{self.title(failure['peer'])}, {failure['ask']}{of}: {brief(failure['error'])}"] += 1
        failed = [text + f" ({count} times)" * (count > 1) for text, count in counts.items()]
        return lines + (["Failed:", listed(failed)] if failed else [])

    def speed_row(self, entry):
        case, rounds, found, name = entry["case"], ratios(entry), medians(entry), entry["name"]
        ours = found.pop(OURS, None)
        if ours is None:
            self.missed.append(f"{name}: not measured")
            return [name, *["–"] * 9]
        unit = duration(np.median(np.concatenate(units(entry))))
        low, high = np.percentile(rounds[OURS], (25, 75))
        aim, verdicts = "–", []
        if case["aim"] is not None:
            aim = f"≤ {case['aim']:g}"
            verdicts.append(self.verdict(f"{name}, {aim}", ours <= case["aim"], f"{ours:.4g}"))
        beside = []
        for peers in (found, {n: x for n, x in found.items() if self.is_jax(n)}):
            best = min(peers, key=peers.get, default=None)
            beside += ["–", "–"] if best is None else [f"{self.title(best)}, {short(peers[best])}", peers[best] / ours]
        fastest, faster, fastest_jax, faster_jax = beside
        if fastest != "–":
            ahead = sorted([n for n in found if is_ahead(rounds[n], rounds[OURS])], key=found.get)
            behind = ", ".join(f"{self.title(n)}, {short(found[n])}" for n in ahead)
            if case["kind"] in BESIDE:
                aim = "the fastest peer"
                verdicts.append("MISSED" if behind else "met")
            if behind:
                verdicts.append("BEHIND")
                self.missed.append(f"{name}: BEHIND {behind}, at {short(ours)}")
            faster = short(faster)
        if fastest_jax != "–":
            written = short(faster_jax)
            if case["kind"] in ("table", "rotary"):
                what = f"{name}, {JAX_AIM:g} times as fast as {fastest_jax}"
                written += f", {self.verdict(what, faster_jax >= JAX_AIM, written)}"
            faster_jax = written
        ratio = f"{short(ours)} ({short(low)}–{short(high)})"
        verdict = ", ".join(verdicts) or "–"
        beside = [fastest, faster, fastest_jax, faster_jax]
        return [name, str(len(rounds[OURS])), unit, ratio, aim, verdict, *beside]

    def speed(self):
        head = ["case", "rounds", "unit", "posenc_jax", "aim", "verdict"]
        head += ["fastest peer", "times as fast"]
        head += ["fastest JAX peer", f"times as fast; of tables and rotary, aim ≥ {JAX_AIM:g}"]
        lines = ["## Speed", markdown(head, [self.speed_row(entry) for entry in self.result["speed"]])]
        found = np.array([noise(entry) for entry in self.result["speed"]])
        if (known := 100 * found[~np.isnan(found)]).size:
            middle, least, most = (short(float(x)) for x in (np.median(known), known.min(), known.max()))
            lines.append(
                f"The two units of a round differ by {middle} % in the median case, {least} to {most} % in all."
            )
        for group in GROUPS:
            entries = {e["name"]: medians(e) for e in self.result["speed"] if of_group(group, e["case"])}
            if entries:
                lines += [f"### {group}: multiples of the unit", self.matrix("case", entries, turn=True)]
        return lines

    def growth(self):
        lines, tables = [], collections.defaultdict(list)
        for entry in self.result.get("growth", []):
            tables[entry["over"], entry["case"]["kind"]].append(entry)
        for (over, kind), entries in tables.items():
            place = {"length": 0 if kind == "table" else 1, "heads": 2}[over]
            sizes = {f"{entry['case']['shape'][place]:,}": entry for entry in entries}
            corner = f"{over} of {entries[0]['name'].split(', (')[0]}"
            times = {
                size: {n: 1e3 * float(np.median(t)) for n, t in entry["times"].items() if not n.endswith(AGAIN)}
                for size, entry in sizes.items()
            }
            lines += [f"### {corner}: ms", self.matrix(over, times)]
            memory = {size: self.bytes.get(entry["name"], {}) for size, entry in sizes.items()}
            if any(memory.values()):
                lines += [f"### {corner}: MB beside arguments and results", self.matrix(over, memory, MEGABYTES)]
        return ["## Growth", *lines] if lines else []

    def memory(self):
        lines = []
        for group in GROUPS:
            names = [entry["name"] for entry in self.result["speed"] if of_group(group, entry["case"])]
            if entries := {name: self.bytes[name] for name in names if self.bytes.get(name)}:
                lines += [f"### {group}: MB", self.matrix("case", entries, MEGABYTES, turn=True)]
        return ["## Memory beside arguments and results", *lines] if lines else []

    def first_calls(self):
        """Milliseconds of each library's first calls, and of its import."""
        entries = self.result.get("first", [])
        calls = {e["name"]: {n: 1e3 * float(np.median(t)) for n, t in e["calls"].items()} for e in entries}
        imports = collections.defaultdict(list)
        for name, times in (item for entry in entries for item in entry["imports"].items()):
            imports[name] += times
        return calls | {"import": {name: 1e3 * float(np.median(times)) for name, times in imports.items()}}

    def of_framework(self, columns, jax):
        return {c: {n: t for n, t in of.items() if self.is_jax(n) == jax} for c, of in columns.items()}

    def first(self):
        entries = self.result.get("first", [])
        if not entries:
            return []
        columns = calls = self.first_calls()
        lines = ["## First call and import on top of the framework: ms"]
        for title, jax in (("JAX, traced and compiled", True), ("PyTorch, not compiled", False)):
            kept = self.of_framework(columns, jax)
            if any(kept.values()):
                lines += [f"### {title}", self.matrix("", kept)]
        aims = []
        for entry in entries:
            mine, kind, name = calls[entry["name"]], entry["case"]["kind"], entry["name"]
            jax = [n for n in mine if self.is_jax(n) and n not in (OURS, PLAIN)]
            compiled = [n for n in jax if kind not in settings(n).get("EAGER", ())]
            aims += [
                f"{self.title(n)} makes its {kind} on the host and compiles nothing." for n in jax if n not in compiled
            ]
            if compiled and OURS in mine:
                best = min(compiled, key=mine.get)
                beside = f"{self.title(best)}, {short(mine[best])} ms"
                aim = f"{name}, first call, at most {FIRST_AIM:g} times that of {beside}"
                verdict = self.verdict(aim, mine[OURS] <= FIRST_AIM * mine[best], f"{short(mine[OURS])} ms")
                aims.append(f"{aim}: {short(mine[OURS])} ms, {verdict}.")
        return [*lines, listed(aims)]

    def errors(self):
        if not (found := self.result.get("accuracy")):
            return []
        columns = {
            f"{position:,}": {name: errors[i] for name, errors in found["errors"].items()}
            for i, position in enumerate(found["positions"])
        }
        note = "The largest error of a cosine or sine; – where the interface takes no such position. The reference has "
        note += "exact phases; a sample of it is checked with mpmath to 40 digits."
        return ["## Errors", note, self.matrix("position", columns, "{:.1e}".format)]

    def closing(self):
        return ["## Missed", listed(self.missed)] if self.missed else ["All aims are met."]


def brief(error, most=100):
    """The message of an error, on one line, without characters that end a cell or open a tag."""
    line = " ".join(error.split(": ", 1)[-1].split()).replace("|", "/").replace("<", "‹")
    return line if len(line) <= most else line[: most - 1] + "…"


def listed(items):
    return "\n".join(f"- {item}" for item in items)


def duration(seconds):
    """With its unit, three digits."""
    scale, unit = next(((f, u) for f, u in ((1, "s"), (1e3, "ms")) if seconds * f >= 0.1), (1e6, "µs"))
    return f"{short(float(seconds * scale))} {unit}"


def summary(results, kinds):
    """Of each case the times of this library on each processor, and on the first the fastest other, in units."""
    results = [result for result in results if any(e["case"]["kind"] in kinds for e in result["speed"])]
    if not results:
        return "Not measured yet."
    programs, rows = kinds[0] in PROGRAMS, []
    first, *others = (result["device"].partition(", ")[0] for result in results)
    head = ["case", "aim", *[UNITS.get(kinds[0])] * programs, f"posenc_jax, {first}", "the fastest other", *others]
    for case in (case for case in CASES.values() if case.kind in kinds):
        (unit, ours, beside), *more = (cells(Report(result), case) for result in results)
        row = [*[unit] * programs, ours, beside, *(mine for _, mine, _ in more)]
        if set(row) != {"–"}:
            aim = "the fastest other" if case.kind in BESIDE else "–" if case.aim is None else f"{case.aim:g}"
            rows.append([case.name, aim, *row])
    return markdown(head, rows)


def cells(report, case):
    """The unit's time, this library's in units, and the fastest other.

    In bold is what misses the aim, in brackets the least time over that of the unit.
    """
    entry = next((entry for entry in report.result["speed"] if entry["name"] == case.name), None)
    if entry is None:
        return ["–"] * 3
    found, rounds, both = medians(entry), ratios(entry), np.concatenate(units(entry))
    ours, best = found.pop(OURS, None), min(found, key=found.get, default=None)
    unit, beside = duration(np.median(both)), f"{short(found[best])}, {report.title(best)}" if best else "–"
    if ours is None:
        return [unit, "–", beside]
    missed = case.aim is not None and round(ours, 2) > round(case.aim, 2)
    if case.kind in BESIDE:
        missed = any(is_ahead(rounds[name], rounds[OURS]) for name in found)
    mine = f"**{short(ours)}**" if missed else short(ours)
    return [unit, f"{mine} ({short(float(min(entry['times'][OURS]) / both.min()))})", beside]


def machine(result):
    """What was measured where, in a sentence."""
    found = [100 * noise(entry) for entry in result["speed"]]
    versions = {k: v for peer in result["peers"].values() for k, v in peer.get("versions", {}).items()}
    libraries = " and ".join(f"{k} {versions[k]}" for k in ("jax", "torch") if k in versions)
    noisy = f"two copies in one round differ by {np.nanmedian(found):.0f}% in the median case"
    return f"{result['device']}, on {result['date']}, with {libraries}; {noisy}"


def part(name, text):
    """What the site includes by this name."""
    return f"<!-- --8<-- [start:{name}] -->\n\n{text}\n\n<!-- --8<-- [end:{name}] -->"


def text(results):
    """All tables, in Markdown: those of all processors side by side, then each processor's own."""
    newest = Report(results[0])
    lines = ["# posenc_jax beside its peers", NOTE, part("machines", listed(map(machine, results)))]
    tables = {
        "summary": ("table", "add", "rotary", "decode", "attention"),
        "loops": ("loop", "compile"),
        "stacks": ("stack",),
    }
    lines += [part(name, summary(results, kinds)) for name, kinds in tables.items()]
    if results[0].get("first"):
        calls = newest.of_framework(newest.first_calls(), jax=True)
        lines.append(part("first", newest.matrix("", calls)))
    for report in map(Report, results):
        sections = (report.heading, report.speed, report.growth, report.memory, report.first, report.errors)
        lines += [line for section in (*sections, report.closing) for line in section() if line]
    return "\n\n".join(lines) + "\n"


def readme(page, result):
    """README with the figures of a result in its rows."""
    report, peers, written = Report(result), ("posenc", "flax_nnx", "transformers_llama"), {}
    for label, position in (("Error at position 10⁶", 10**6), ("Error at position 2³¹ − 1", 2**31 - 1)):
        at = result["accuracy"]["positions"].index(position)
        found = {name: errors[at] for name, errors in result["accuracy"]["errors"].items() if errors[at] is not None}
        written[label] = [f"{found[n]:{'.1e' if found[n] < 1 else '.1f'}}" if n in found else "" for n in peers]
    entries = {entry["name"]: medians(entry) for entry in result["speed"]}
    turned = entries["rotary, (1,4096,32,128), float32, half"]
    written["Time of RoPE in float32, (1,4096,32,128), where copying takes 1"] = [
        short(turned[n]) if n in turned else "" for n in peers
    ]
    for label, (ours, nnx, llama) in written.items():
        page = replaced(page, label, f"{ours} | {nnx} | {llama} |")
    turned = entries["rotary, (1,4096,32,128), bfloat16, half"]
    best = min(turned.keys() - {OURS}, key=turned.get)
    beside = f"{short(turned[best])}, {report.title(best)}, the fastest other"
    label = "Time of RoPE in bfloat16, (1,4096,32,128), where copying takes 1"
    return replaced(page, label, f"{short(turned[OURS])} | {beside} | `nox -s bench` |")


def replaced(page, label, cells):
    """A page with other cells in the row of a label."""
    page, count = re.subn(rf"^\| {re.escape(label)} \|.*$", f"| {label} | {cells}", page, flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"README has {count} rows of {label!r}")
    return page


def write():
    """Writes results/cpu.md and README's figures."""
    results, page = kept(), HERE.parent / "README.md"
    (HERE / "results" / "cpu.md").write_text(text(results), encoding="utf-8")
    page.write_text(readme(page.read_text(encoding="utf-8"), results[0]), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, nargs="*", help="JSON files that run.py wrote")
    parser.add_argument("--write", action="store_true", help="results/cpu.md and README")
    options = parser.parse_args()
    if options.write:
        write()
    else:
        print(text([json.loads(path.read_text()) for path in options.results] or kept()), end="")


if __name__ == "__main__":
    main()
