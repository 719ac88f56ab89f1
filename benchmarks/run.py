"""This library beside its peers, in one run: `python benchmarks/run.py [--quick] [--torch PYTHON]`.

Each peer has a process of its own (`worker.py`), and all of them the same cases (`cases.py`). A round times each once,
in an order drawn anew, and a plain copy or fill of the same bytes twice; so what slows the machine down slows all.
Then, by the same processes or fresh ones: growth with length and heads, memory, import and first call, and errors.
Writes all figures to a JSON file, prints them as tables (`report.py`) and draws them (`figures.py`).
"""

import argparse
import contextlib
import dataclasses
import datetime
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

import figures
import numpy as np
import report
from cases import BASE, FIRST, GROWTH, POSITIONS, SPEED, WIDTH
from comparison import COPIES, OURS
from reference import check_sample, geometric_turns, processor, progress, true_waves
from worker import PEERS, settings

HERE = pathlib.Path(__file__).parent
YARDSTICK, AGAIN = COPIES  # the same process, timed twice in a round
LIMIT = 600.0  # seconds for an answer
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
        self.names = [n for n in names if not options.peers or n in (OURS, YARDSTICK, *options.peers)]
        self.peers, self.failures = {}, []

    def start(self, name, environment=None):
        python = self.options.torch if settings(name)["FRAMEWORK"] == "torch" else sys.executable
        return Process(name, python, environment)

    def start_all(self):
        for name in self.names:
            progress(f"starting {name}", end="\r")
            process, fields = self.start(name), settings(name)
            self.peers[name] = {"name": fields["NAME"], "framework": fields["FRAMEWORK"]}
            try:
                self.peers[name] |= process.ask("versions")
                self.processes[name] = process
            except RuntimeError as error:
                self.peers[name]["missing"] = str(error)
                process.close()
                progress(f"without {name}: {error}")
        for name in {OURS, YARDSTICK} - set(self.processes):
            raise SystemExit(f"{name} cannot be measured: {self.peers[name]['missing']}")

    def each(self, processes, ask, **request):
        """The answers of all that have one."""
        found = {}
        for name, process in list(processes.items()):
            try:
                found[name] = process.ask(ask, **request)
            except RuntimeError as error:
                self.failures.append(
                    {"peer": name.removesuffix(" again"), "ask": ask, "request": request, "error": str(error)}
                )
                progress(f"{name}, {ask}: {error}")
                if process.process.poll() is not None:
                    processes.pop(name)
                    self.processes = {n: p for n, p in self.processes.items() if p is not process}
                    process.close()
        return {name: answer for name, answer in found.items() if answer is not None}

    def times(self, case, seconds):
        """Seconds of each in each round."""
        case_of = dataclasses.asdict(case)
        loaded = {name: self.processes[name] for name in self.each(self.processes, "load", case=case_of)}
        times = {name: [] for name in loaded} | ({AGAIN: []} if YARDSTICK in loaded else {})
        order, start, round = list(times), time.perf_counter(), 0
        shuffle = random.Random(0).shuffle  # who comes after whom may matter
        while round < 3 or round < self.options.rounds and time.perf_counter() - start < seconds:
            shuffle(order)
            round += 1
            progress(f"{case.name}: round {round}", end="\r")
            for name in order:
                process = loaded[name.removesuffix(" again")]
                if process.process.poll() is None:
                    times[name] += self.each({name: process}, "time").values()
        progress(f"{case.name}: {round} rounds of {len(loaded)}")
        # One that failed in a round is left out: its others would meet the copies of other rounds.
        return {"case": case_of, "name": case.name, "times": {name: t for name, t in times.items() if len(t) == round}}

    def memory(self, cases):
        """Bytes of each case that a call takes beside what it is given and gives."""
        processes = {name: self.start(name, PLAIN_MALLOC) for name in self.processes}
        figures = []
        for case in cases:
            progress(f"memory, {case.name}")
            case_of = dataclasses.asdict(case)
            loaded = {name: processes[name] for name in self.each(processes, "load", case=case_of)}
            twice = [self.each(loaded, "memory") for _ in range(2)]
            processes = {name: p for name, p in processes.items() if p.process.poll() is None}
            least = {name: min(found[name] for found in twice) for name in twice[0] if name in twice[1]}
            figures.append({"case": case_of, "name": case.name, "bytes": least})
        for process in processes.values():
            process.close()
        return figures

    def first(self, case, rounds):
        """Seconds of import and first call in fresh processes."""
        imports, calls = {}, {}
        for round in range(rounds):
            for name in self.processes:
                if round and self.peers[name]["framework"] == "torch":  # nothing is compiled, and imports take seconds
                    continue
                progress(f"import and first call, {case.name}: {round + 1} of {rounds}, {name}", end="\r")
                process = self.start(name)
                for imported, called in self.each({name: process}, "first", case=dataclasses.asdict(case)).values():
                    imports.setdefault(name, []).append(imported)
                    calls.setdefault(name, []).append(called)
                process.close()
        calls = {name: t for name, t in calls.items() if None not in t}
        progress(f"import and first call, {case.name}")
        return {"case": dataclasses.asdict(case), "name": case.name, "imports": imports, "calls": calls}

    def accuracy(self):
        """The largest error of a cosine or sine at each position."""
        positions, errors = np.array(POSITIONS, np.int32), {}
        for name, found in self.each(self.processes, "waves", positions=list(POSITIONS)).items():
            progress(f"errors, {name}", end="\r")
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer cases and rounds: to see that all runs")
    parser.add_argument("--rounds", type=int, default=15, help="at most, for each case; at least 3")
    parser.add_argument("--seconds", type=float, default=40.0, help="for each case, unless 3 rounds take longer")
    parser.add_argument("--cases", default="", help="only those whose name contains this; nothing but speed")
    parser.add_argument("--peers", nargs="*", help="only these modules of benchmarks/peers")
    parser.add_argument("--torch", default=sys.executable, help="the Python that has torch and its libraries")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "results", help="folder of the results")
    options = parser.parse_args()
    bench = Bench(options)
    bench.start_all()
    device = bench.peers[OURS]
    result = {
        "date": datetime.date.today().isoformat(),
        "quick": options.quick,
        "platform": device["platform"],
        "device": device["device"] if device["platform"] != "cpu" else f"{processor()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "peers": bench.peers,
        "failures": bench.failures,
    }
    speed = [case for case in SPEED if options.cases in case.name and not (options.quick and case.slow)]
    seconds = 4.0 if options.quick else options.seconds
    result["speed"] = [bench.times(case, seconds) for case in speed]
    if not options.cases:
        growth = [(over, case) for over, cases in GROWTH.items() for case in cases[: 3 if options.quick else None]]
        result["growth"] = [{"over": over, **bench.times(case, seconds / 4)} for over, case in growth]
        result["accuracy"] = bench.accuracy()
        result["first"] = [bench.first(case, 1 if options.quick else 5) for case in FIRST]
        result["memory"] = bench.memory(list(dict.fromkeys([*speed, *(case for _, case in growth)])))
    name = f"{device['platform']}{'_quick' * options.quick}{'_part' * bool(options.cases or options.peers)}"
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    for process in bench.processes.values():
        process.close()
    text = report.text(result)
    (options.out / f"{name}.md").write_text(text)
    print(text)
    for path in figures.draw(result, options.out, name):
        progress(f"wrote {path}")


if __name__ == "__main__":
    main()
