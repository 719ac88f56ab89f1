"""The tables of `run.py`'s results in Markdown: `python benchmarks/report.py [--summary] results/cpu.json`."""

import argparse
import collections
import json
import pathlib

import numpy as np
from cases import case_of
from comparison import COPIES, OURS, is_ahead, medians, noise, ratios, short
from reference import markdown
from worker import settings

NOTE = """Speed is in copies: a time over the mean of two plain copies (or fills) of the same bytes in the same round;
what is written is the median over rounds, with quartiles in brackets. Behind a peer is what is slower than it by more
than 2 % at the median, and in three of four rounds. MB are 10⁶ bytes."""
JAX_AIM, FIRST_AIM = 3.0, 1.1  # times as fast as the fastest JAX peer; first call beside that of the fastest
MEGABYTES = "{:,.1f}".format
GROUPS = {
    "Tables, and tables added": ("table", "add"),
    "Rotary, half layout": ("rotary", "half"),
    "Rotary, interleaved layout": ("rotary", "interleaved"),
    "Decode steps": ("decode",),
    "Attention with ALiBi": ("attention",),
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
        order = [
            (name != OURS, name in COPIES, not self.is_jax(name), self.title(name).lower(), name) for name in names
        ]
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
        lines = ["# posenc_jax beside its peers", ", ".join(where) + ".", NOTE]
        peers = []
        for name, title in self.titles(set(present) - set(COPIES)).items():
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
        copy = 1e3 * float(np.median([t for copy in COPIES for t in entry["times"][copy]]))
        low, high = np.percentile(rounds[OURS], (25, 75))
        aim, verdicts = "–", []
        if case["aim"] is not None:
            aim = f"≤ {case['aim']:g}"
            verdicts.append(self.verdict(f"{name}, {aim} copies", ours <= case["aim"], f"{ours:.4g}"))
        beside = []
        for peers in (found, {n: x for n, x in found.items() if self.is_jax(n)}):
            best = min(peers, key=peers.get, default=None)
            beside += ["–", "–"] if best is None else [f"{self.title(best)}, {short(peers[best])}", peers[best] / ours]
        fastest, faster, fastest_jax, faster_jax = beside
        if fastest != "–":
            ahead = sorted([n for n in found if is_ahead(rounds[n], rounds[OURS])], key=found.get)
            behind = ", ".join(f"{self.title(n)}, {short(found[n])}" for n in ahead)
            if case["kind"] == "decode":
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
        return [name, str(len(rounds[OURS])), short(copy), ratio, aim, verdict, *beside]

    def speed(self):
        head = ["case", "rounds", "copy, ms", "posenc_jax, copies", "aim", "verdict"]
        head += ["fastest peer, copies", "times as fast"]
        head += ["fastest JAX peer, copies", f"times as fast; of tables and rotary, aim ≥ {JAX_AIM:g}"]
        lines = ["## Speed", markdown(head, [self.speed_row(entry) for entry in self.result["speed"]])]
        found = np.array([noise(entry) for entry in self.result["speed"]])
        if (known := 100 * found[~np.isnan(found)]).size:
            middle, least, most = (short(float(x)) for x in (np.median(known), known.min(), known.max()))
            lines.append(
                f"The two copies of a round differ by {middle} % in the median case, {least} to {most} % in all."
            )
        for group in GROUPS:
            entries = {e["name"]: medians(e) for e in self.result["speed"] if of_group(group, e["case"])}
            if entries:
                lines += [f"### {group}: copies", self.matrix("case", entries, turn=True)]
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
                size: {n: 1e3 * float(np.median(t)) for n, t in entry["times"].items() if n != COPIES[1]}
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

    def first(self):
        entries = self.result.get("first", [])
        if not entries:
            return []
        calls = {e["name"]: {n: 1e3 * float(np.median(t)) for n, t in e["calls"].items()} for e in entries}
        imports = collections.defaultdict(list)
        for name, times in (item for entry in entries for item in entry["imports"].items()):
            imports[name] += times
        columns = calls | {"import": {name: 1e3 * float(np.median(times)) for name, times in imports.items()}}
        lines = ["## First call and import on top of the framework: ms"]
        for title, jax in (("JAX, traced and compiled", True), ("PyTorch, not compiled", False)):
            kept = {c: {n: t for n, t in of.items() if self.is_jax(n) == jax} for c, of in columns.items()}
            if any(kept.values()):
                lines += [f"### {title}", self.matrix("", kept)]
        aims = []
        for entry in entries:
            mine, kind, name = calls[entry["name"]], entry["case"]["kind"], entry["name"]
            jax = [n for n in mine if self.is_jax(n) and n not in (OURS, *COPIES)]
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
        note = "The largest error of a cosine or sine; – where the interface does not reach. The truth is exact in its "
        note += "phases, and a sample of it is checked against mpmath at 40 digits."
        return ["## Errors", note, self.matrix("position", columns, "{:.1e}".format)]

    def closing(self):
        return ["## Missed", listed(self.missed)] if self.missed else ["All aims are met."]


def brief(error, most=100):
    """The message of an error, on one line, without characters that end a cell or open a tag."""
    line = " ".join(error.split(": ", 1)[-1].split()).replace("|", "/").replace("<", "‹")
    return line if len(line) <= most else line[: most - 1] + "…"


def listed(items):
    return "\n".join(f"- {item}" for item in items)


def text(result):
    """All tables, in Markdown."""
    report = Report(result)
    sections = (report.heading, report.speed, report.growth, report.memory, report.first, report.errors, report.closing)
    return "\n\n".join(line for section in sections for line in section() if line) + "\n"


def summary(result):
    """Of each case the times of this library and of the fastest other, in copies: the table of docs/speed.md."""
    report, rows = Report(result), []
    for entry in result["speed"]:
        found, aim = medians(entry), entry["case"]["aim"]
        ours, best = found.pop(OURS, None), min(found, key=found.get, default=None)
        if entry["case"]["kind"] == "decode":
            aim = found.get(best)
        beside = f"{short(found[best])}, {report.title(best)}" if best else "–"
        rows.append([entry["name"], short(ours) if ours else "–", short(aim) if aim else "–", beside])
    return markdown(["case", "posenc_jax", "aim", "the fastest other"], rows) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, help="a JSON file that run.py wrote")
    parser.add_argument("--summary", action="store_true", help="the table of docs/speed.md alone")
    options = parser.parse_args()
    print((summary if options.summary else text)(json.loads(options.results.read_text())), end="")


if __name__ == "__main__":
    main()
