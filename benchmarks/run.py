"""This library beside its peers, in one run: `python benchmarks/run.py [--quick] [--fresh] [--torch PYTHON]`.

Each peer has a process of its own (`worker.py`), and all of them the same cases (`cases.py`). A round times each once,
in an order drawn anew, and the case's unit twice: a plain copy or fill of the same bytes, or in loops the textbook
rotation; so what slows the machine down slows all. Then, by the same processes or fresh ones: growth with length and
heads, memory, import and first call, and errors.

Each step is written to `results/*.jsonl` when it is done, and a run that was interrupted goes on after the last, unless
a version, the processor, an option or a file of the package or of this folder has changed. At the end all figures are
in `results/cpu-….json`, a file for each processor, and `report.py` makes the tables of all of them.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import datetime
import hashlib
import importlib.util
import json
import os
import pathlib
import platform
import random
import select
import subprocess
import sys
import tempfile
import time

import numpy as np
import report
from cases import BASE, FIRST, GPU, GROWTH, LOOPS, POSITIONS, SPEED, WIDTH
from comparison import AGAIN, OURS, PLAIN, kept
from reference import check_sample, compact, geometric_turns, processor, progress, slug, true_waves
from worker import PEERS, has, settings

HERE = pathlib.Path(__file__).parent
LIMIT = 240.0  # seconds for an answer
AT_ONCE = os.cpu_count() or 1  # processes that load
# So that all that is allocated in a call is seen to come and go.
PLAIN_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


class Process:
    """A worker, asked through pipes; of one that ends or does not answer in time, the last that it wrote is told."""

    def __init__(self, name, python, environment=None):
        # A second process must find memory on the GPU, and nothing is to be downloaded.
        wanted = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "HF_HUB_OFFLINE": "1"}
        self.written = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [python, str(HERE / "worker.py"), name],
            env={**os.environ, **wanted, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.written,
            text=True,
        )

    def ask(self, what, **request):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"ask": what, **request}) + "\n")
            self.process.stdin.flush()
        in_time = select.select([self.process.stdout], [], [], LIMIT)[0]
        if not in_time:
            self.process.kill()
        if not (line := self.process.stdout.readline()).endswith("\n"):  # ended before or in an answer
            status = self.process.wait()
            what = f"ended with status {status}" if in_time else f"no answer in {LIMIT:g} s"
            raise RuntimeError(f"{what}; {self.last_written()}")
        reply = json.loads(line)
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["answer"]

    def last_written(self, most=300):
        self.written.seek(0)
        return self.written.read()[-most:].decode(errors="replace")

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()
        self.written.close()


class Bench:
    """The processes and what they have answered."""

    def __init__(self, options):
        self.options, self.processes = options, {}
        names = [path.stem for path in sorted(PEERS.glob("[a-z]*.py"))]
        self.names = [n for n in names if not options.peers or n in (OURS, PLAIN, "textbook", *options.peers)]
        self.peers, self.failures, self.place = {}, [], ""
        self.remembering = {}  # processes in which memory is measured

    def say(self, text, end="\n"):
        progress(f"{self.place}{text}", end=end)

    def start(self, name, environment=None):
        python = self.options.torch if settings(name)["FRAMEWORK"] == "torch" else sys.executable
        return Process(name, python, environment)

    def start_all(self):
        processes = {name: self.start(name) for name in self.names}
        for name in self.names:
            self.peers[name] = {"name": settings(name)["NAME"], "framework": settings(name)["FRAMEWORK"]}
        self.say("starting", end="\r")
        found = self.each(processes, "versions", at_once=AT_ONCE)
        missing = {failure["peer"]: failure["error"] for failure in self.failures}
        for name, process in processes.items():
            self.peers[name] |= found.get(name, {"missing": missing.get(name)})
            if name in found:
                self.processes[name] = process
            else:
                process.close()
        for name in {OURS, PLAIN} - set(self.processes):
            raise SystemExit(f"{name} cannot be measured: {missing[name]}")

    @property
    def on_cpu(self):
        return self.peers[OURS]["platform"] == "cpu"

    def each(self, processes, ask, at_once=1, **request):
        """The answers of all that have one; what fails is told, and the others go on."""

        def answer(name):
            try:
                return processes[name].ask(ask, **request)
            except RuntimeError as error:
                of = {"peer": name.removesuffix(AGAIN), "ask": ask, "request": request, "error": str(error)}
                self.failures.append(of)
                self.say(f"{name}, {ask}: {error}")
                return None

        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            found = dict(zip(processes, pool.map(answer, processes), strict=True))
        return {name: answer for name, answer in found.items() if answer is not None}

    def loaded(self, processes, case, environment=None):
        """The processes that have a case, with its arguments made and called once."""
        wanted = {name: process for name, process in processes.items() if has(name, case)}
        for name, process in wanted.items():
            if process.process.poll() is not None:  # it ended in a case before
                process.close()
                wanted[name] = processes[name] = self.start(name, environment)
        case_of = dataclasses.asdict(case)
        return {name: wanted[name] for name in self.each(wanted, "load", at_once=AT_ONCE, case=case_of)}

    def times(self, case, seconds, least=3):
        """Seconds of each in each round."""
        self.say(f"{case.name}: loading", end="\r")
        processes = self.loaded(self.processes, case)
        times = {name: [] for name in processes} | ({case.unit + AGAIN: []} if case.unit in processes else {})
        order, start, round = list(times), time.perf_counter(), 0
        shuffle = random.Random(0).shuffle  # who comes after whom may matter
        while round < least or round < self.options.rounds and time.perf_counter() - start < seconds:
            shuffle(order)
            round += 1
            self.say(f"{case.name}: round {round}", end="\r")
            for name in order:
                process = processes[name.removesuffix(AGAIN)]
                if len(times[name]) == round - 1:
                    times[name] += self.each({name: process}, "time").values()
        self.say(f"{case.name}: {round} rounds of {len(processes)}")
        # One that failed in a round is left out: its others would meet the units of other rounds.
        times = {name: t for name, t in times.items() if len(t) == round}
        return {"case": dataclasses.asdict(case), "name": case.name, "times": times}

    def memory(self, case):
        """Bytes that a call takes beside what it is given and gives."""
        for name in self.processes if not self.remembering else ():
            self.remembering[name] = self.start(name, PLAIN_MALLOC)
        processes = self.loaded(self.remembering, case, PLAIN_MALLOC)
        twice = [self.each(processes, "memory") for _ in range(2)]
        self.say(f"memory, {case.name}")
        least = {name: min(found[name] for found in twice) for name in twice[0] if name in twice[1]}
        return {"name": case.name, "bytes": least}

    def first(self, case, rounds):
        """Seconds of import and first call in fresh processes."""
        imports, calls = {}, {}
        for round in range(rounds):
            for name in [name for name in self.processes if has(name, case)]:
                if round and self.peers[name]["framework"] == "torch":  # nothing is compiled, and imports take seconds
                    continue
                self.say(f"import and first call, {case.name}: {round + 1} of {rounds}, {name}", end="\r")
                process = self.start(name)
                for imported, called in self.each({name: process}, "first", case=dataclasses.asdict(case)).values():
                    imports.setdefault(name, []).append(imported)
                    calls.setdefault(name, []).append(called)
                process.close()
        self.say(f"import and first call, {case.name}")
        return {"case": dataclasses.asdict(case), "name": case.name, "imports": imports, "calls": calls}

    def accuracy(self):
        """The largest error of a cosine or sine at each position."""
        positions, errors = np.array(POSITIONS, np.int32), {}
        self.say("errors")
        for name, found in self.each(self.processes, "waves", at_once=AT_ONCE, positions=list(POSITIONS)).items():
            endpoint = settings(name).get("ENDPOINT", False)
            true = true_waves(positions, geometric_turns(WIDTH, BASE, endpoint))
            off = 0.0 if endpoint else check_sample(positions, WIDTH, BASE, true, 40, np.random.default_rng(0))
            if off > 1e-15:
                raise AssertionError(f"the reference differs from mpmath at 40 digits by {off}")
            true = np.concatenate(true[::-1], axis=-1)
            rows = [
                None if w is None else float(np.abs(np.array(w) - t).max()) for w, t in zip(found, true, strict=False)
            ]
            if rows:
                errors[name] = rows
        return {"positions": list(POSITIONS), "errors": errors}

    def steps(self):
        """What a run does, one after the other: a section of the results, a name, and the call that measures it."""
        options, found = self.options, []
        seconds = 4.0 if options.quick else options.seconds
        speed = SPEED if self.on_cpu else GPU
        kept = [case for case in (*speed, *LOOPS) if options.cases in case.name and not (options.quick and case.slow)]
        found += [("speed", case.name, lambda case=case: self.times(case, seconds)) for case in kept]
        if options.cases:
            return found
        growth = [(over, case) for over, cases in GROWTH.items() for case in cases[: 3 if options.quick else None]]
        for over, case in growth:
            measure = lambda over=over, case=case: {"over": over, **self.times(case, 8.0)}  # noqa: E731
            found.append((f"growth with {over}", case.name, measure))
        found.append(("accuracy", "errors", self.accuracy))
        rounds = 1 if options.quick else 3
        found += [("first", case.name, lambda case=case: self.first(case, rounds)) for case in FIRST]
        for case in dict.fromkeys([*(case for case in kept if case in SPEED), *(case for _, case in growth)]):
            found.append(("memory", case.name, lambda case=case: self.memory(case)))
        return found

    def run(self, journal, expected):
        """All steps; those of the journal are not measured again."""
        steps, spent, guessed, result = self.steps(), 0.0, 0.0, {"failures": [], "seconds": {}}
        left = [f"{section}, {name}" for section, name, _ in steps]
        left = sum(expected.get(step, 10.0) for step in left if step not in journal.found)
        for i, (section, name, measure) in enumerate(steps):
            step = f"{section}, {name}"
            if step not in journal.found:
                minutes = left * (spent / guessed if guessed > 30 else 1) / 60
                self.place = f"[{i + 1} of {len(steps)}, {minutes:.0f} min left] "
                self.failures, start = [], time.perf_counter()
                answer = measure()
                seconds = time.perf_counter() - start
                journal.write({"step": step, "answer": answer, "failures": self.failures, "seconds": round(seconds, 1)})
                guess = expected.get(step, 10.0)
                spent, guessed, left = spent + seconds, guessed + guess, left - guess
            of = journal.found[step]
            result["failures"] += of["failures"]
            result["seconds"][step] = of["seconds"]
            if section == "accuracy":
                result[section] = of["answer"]
            else:
                result.setdefault(section.partition(" ")[0], []).append(of["answer"])
        self.place = ""
        return result


class Journal:
    """The steps that are done, a line of JSON each, below a line that says of what they are."""

    def __init__(self, path, key, fresh=False):
        self.path, self.found, key = path, {}, json.dumps(key)
        if path.exists() and not fresh:
            first, *lines = path.read_text().splitlines() or [""]
            with contextlib.suppress(ValueError):  # of a line that was being written
                for line in lines if first == key else []:
                    self.found |= {json.loads(line)["step"]: json.loads(line)}
            same = f"goes on after the {len(self.found)} steps of {path}"
            progress(same if first == key else f"{path} is of another run, and replaced")
        path.write_text("".join(f"{line}\n" for line in (key, *map(json.dumps, self.found.values()))))

    def write(self, entry):
        self.found[entry["step"]] = entry
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def fingerprint():
    """Of the package and of this folder's programs."""
    package = pathlib.Path(importlib.util.find_spec("posenc_jax").origin).parent
    files = [*sorted(package.rglob("*.py")), *sorted(HERE.glob("*.py")), *sorted(PEERS.glob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer cases and rounds: to see that all runs")
    parser.add_argument("--fresh", action="store_true", help="starts over where an interrupted run would go on")
    parser.add_argument("--rounds", type=int, default=15, help="at most, for each case; at least 3")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each case, unless 3 rounds take longer")
    parser.add_argument("--cases", default="", help="only those whose name contains this; nothing but speed")
    parser.add_argument("--peers", nargs="*", help="only these modules of benchmarks/peers")
    parser.add_argument("--torch", default=sys.executable, help="the Python that has torch and its libraries")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "results", help="folder of the results")
    options = parser.parse_args()
    began, bench = time.perf_counter(), Bench(options)
    bench.start_all()
    device = bench.peers[OURS]
    device, where = (device["device"] if device["platform"] != "cpu" else processor()), device["platform"]
    result = {
        "date": datetime.date.today().isoformat(),
        "quick": options.quick,
        "platform": where,
        "device": f"{device}, {os.cpu_count()} cores" if where == "cpu" else device,
        "python": platform.python_version(),
        "peers": bench.peers,
    }
    name = f"{where}-{slug(device)}{'_quick' * options.quick}{'_part' * bool(options.cases or options.peers)}"
    options.out.mkdir(parents=True, exist_ok=True)
    told = [str(getattr(options, of)) for of in ("quick", "rounds", "seconds", "cases", "peers")]
    key = {k: v for k, v in result.items() if k != "date"} | {"options": told, "files": fingerprint()}
    journal = Journal(options.out / f"{name}.jsonl", key, options.fresh)
    path = options.out / f"{name}.json"
    before = sorted(options.out.glob("*.json"), key=lambda other: other == path)  # its own counts most
    expected = {k: v for other in before for k, v in json.loads(other.read_text()).get("seconds", {}).items()}
    result |= bench.run(journal, expected)
    for process in (*bench.processes.values(), *bench.remembering.values()):
        process.close()
    path.write_text(compact(result) + "\n")
    journal.path.unlink()
    progress(f"wrote {path} in {(time.perf_counter() - began) / 60:.0f} min")
    whole = where == "cpu" and not (options.quick or options.cases or options.peers)
    text = report.text(kept(options.out) if whole else [result])
    (options.out / "cpu.md" if whole else path.with_suffix(".md")).write_text(text)
    print(text)
    if whole and options.out == HERE / "results":
        report.write()


if __name__ == "__main__":
    main()
