r"""Small faults put into the library, to see which tests find them.

    python tests/tools/mutation/run.py [MODULE or ROOM …] [--default] [--own] [--sample N] [--seed S] [--without TEST …]

The tests first run once as they are, to learn which lines each of them runs and what it costs; that is kept in
`build/mutation` until the library or a test changes. Then each mutant (see `mutants.py`) is imported in place of its
module in a process of its own, which runs the tests that reach its statement until one fails: first those of its own
room (`tests/unit/ROOM`, and `tests/huggingface` for `hf`), then the others, the cheapest case of every test first.

`--default` uses the tests of `nox -s tests` alone, and `--own` those of the rooms named, in minutes. `--sample` draws
so many mutants. `--without` leaves out tests that are to be deleted, by the beginnings of their names
(`tests/unit/x.py::test`), and tries only the mutants that they reach. What becomes of a mutant is kept in
`build/mutation` too, so that a run that is interrupted goes on.

The draw by which tests are cut must not be the one by which the cut is accepted: take another seed.

`survivors.json` gives the reason for the mutants that no test can kill: most change the speed alone, or nothing. It
names them by their function and text, so it outlives a move; they are not tried. The exit status is 1 if fewer than
95 % of the others are killed, or if all were tried and one survives.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.machinery
import json
import multiprocessing
import multiprocessing.connection
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mutants import Mutant

ROOT = Path(__file__).parents[3]
FOLDER, WORK = ROOT / "posenc_jax", ROOT / "build" / "mutation"
FILES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.py"))
# These look at other programs, at pages or at whole models.
NOT_RUN = {f"test_{name}" for name in ("demo", "evidence", "docs", "benchmarks", "closeness", "mutation")}
TESTS = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("tests/*", "tests/unit/*")
    for path in ROOT.glob(f"{folder}/test_*.py")
    if path.stem not in NOT_RUN
)
LOOK_AT_NAMES = "tests/tools/test_api.py", "tests/properties/test_package.py"
SECONDS = 480.0  # of CPU, for the tests of a mutant
HANGS = 3 * SECONDS
OWN = {  # of rooms whose tests are not in tests/unit/ROOM
    "hf": ("tests/huggingface/",),
    "kernels": ("tests/unit/test_kernel_tiles.py", "tests/properties/test_kernels.py"),
    "linen": ("tests/unit/flax/",),
    "nnx": ("tests/unit/flax/",),
}
FLAGS = [
    *("-q", "-x", "--no-header", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist"),
    "-Wignore::pytest.PytestAssertRewriteWarning",
    f"--rootdir={ROOT}",
]


def module_of(file: str) -> str:
    """What a file of the package is on the command line: "hf._plan" of hf/_plan.py, and "hf" of hf/__init__.py."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


# Neither what draws, nor what only lists names.
MODULES = {module_of(file): file for file in FILES if Path(file).stem != "__init__" and not file.startswith("plot/")}


class Reach:
    """A plugin of pytest: which lines of the library each test runs, and its CPU seconds."""

    def __init__(self) -> None:
        import coverage

        self.coverage = coverage.Coverage(data_file=None, include=[f"{FOLDER}/*"], config_file=False)
        self.seconds = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        import jax

        jax.clear_caches()  # coverage sees only what is traced anew
        for module in list(sys.modules.values()):
            if module.__name__.startswith("posenc_jax"):
                for value in list(vars(module).values()):
                    if hasattr(value, "cache_clear"):
                        value.cache_clear()
        self.coverage.switch_context(nodeid)
        self.start = time.process_time()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.seconds[nodeid] = round(time.process_time() - self.start, 3)

    def lines(self) -> dict[str, dict[int, list[str]]]:
        """{file: {line: tests}}"""
        data = self.coverage.get_data()
        files = {file: Path(file).relative_to(FOLDER).as_posix() for file in data.measured_files()}
        return {name: data.contexts_by_lineno(file) for file, name in files.items()}


class Chosen:
    """A plugin of pytest: runs the tests given, in their order, for `SECONDS`, and writes which one it began."""

    def __init__(self, tests: Sequence[str], known: set[str], began: Path) -> None:
        self.rank, self.known, self.began = {test: i for i, test in enumerate(tests)}, known, began

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """The tests chosen, and last those to which the mutant gives other names."""
        items[:] = [item for item in items if item.nodeid in self.rank or item.nodeid not in self.known]
        items.sort(key=lambda item: self.rank.get(item.nodeid, len(self.rank)))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:  # a file of tests calls the library when it is imported
            self.began.write_text(report.nodeid)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if time.process_time() > SECONDS:
            os._exit(pytest.ExitCode.OK)
        self.began.write_text(nodeid)


def replace_module(mutant: Mutant) -> None:
    """From now on the mutant is imported in place of its module."""
    loader, file = importlib.machinery.SourceFileLoader, str(FOLDER / mutant.file)
    whole = loader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, name: str) -> Any:
        return compile(mutant.source, file, "exec", dont_inherit=True) if self.path == file else whole(self, name)

    loader.get_code = get_code


def fork(work: Callable[[], Any], log: str | Path = os.devnull) -> multiprocessing.Process:
    """Runs work() in a process of its own, which prints to a file; its result is the exit code."""

    def logged() -> None:
        output, status = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), int(pytest.ExitCode.INTERNAL_ERROR)
        os.dup2(output, 1)
        os.dup2(output, 2)
        try:
            status = int(work())
        finally:
            sys.stdout.flush()
            os._exit(status)

    process = multiprocessing.get_context("fork").Process(target=logged, daemon=True)  # which ends with this one
    process.start()
    return process


def short_hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def fingerprint() -> str:
    """Of the library and its tests."""
    files = sorted(path for name in ("posenc_jax", "tests", "conformance") for path in (ROOT / name).rglob("*.py"))
    return short_hash(b"\0".join(path.read_bytes() for path in files))


def reach(jobs: int, tier: str, files: Sequence[str]) -> dict[str, Any]:
    """What the first run found: the seconds and lines of each test of a tier, which is an expression of pytest's -m."""
    kept = WORK / f"reach-{short_hash(f'{fingerprint()} {tier} {files}'.encode())}.json"
    if kept.exists():
        return json.loads(kept.read_text())

    def work(i: int) -> int:
        plugin = Reach()
        plugin.coverage.start()
        status = pytest.main([*FLAGS, "-m", tier, *files[i::jobs]], plugins=[plugin])
        plugin.coverage.stop()
        (WORK / f"{i}.json").write_text(json.dumps({"seconds": plugin.seconds, "lines": plugin.lines()}))
        return status

    children = [fork(functools.partial(work, i), WORK / f"{i}.log") for i in range(min(jobs, len(files)))]
    found = {"seconds": {}, "lines": defaultdict(lambda: defaultdict(list))}
    for i, child in enumerate(children):
        child.join()
        if child.exitcode:
            sys.exit((WORK / f"{i}.log").read_text() + "\nthe tests fail without a mutant")
        part = json.loads((WORK / f"{i}.json").read_text())
        found["seconds"] |= part["seconds"]
        for file, lines in part["lines"].items():
            for line, tests in lines.items():
                found["lines"][file][line] += filter(None, tests)
    kept.write_text(json.dumps(found))
    return found


def own_tests(room: str) -> tuple[str, ...]:
    """How the names of a room's own tests begin."""
    return OWN.get(room, (f"tests/unit/{room.removeprefix('_')}/",))


def tests_for(mutant: Mutant, found: dict[str, Any]) -> list[str]:
    """Those that reach its statement, its own room's first: the cheapest case of each test, then the second, ….

    A statement that no test runs, runs at import: all tests may see it, first those that run a line of its file.
    """
    lines, seconds, own = found["lines"].get(mutant.file, {}), found["seconds"], own_tests(mutant.room)
    in_file = {test for tests in lines.values() for test in tests}
    here = {test for line in mutant.lines for test in lines.get(str(line), [])} or set(seconds)
    here |= {test for test in seconds if test.startswith(LOOK_AT_NAMES)}  # and defaults, which no line shows
    here = {test.split("[")[0] for test in here}  # cases may share what the first of them computes
    ranks, cases = {}, Counter()
    for test in sorted(seconds, key=seconds.get):
        if (function := test.split("[")[0]) in here:
            ranks[test] = not test.startswith(own), test not in in_file, cases[function], seconds[test], test
            cases[function] += 1
    return sorted(ranks, key=ranks.__getitem__)


def try_mutant(mutant: Mutant, tests: Sequence[str], known: set[str], tier: str, began: Path) -> int:
    """Runs the tests on the mutant: pytest's exit code."""
    replace_module(mutant)
    try:
        import posenc_jax.hf  # noqa: F401
    except Exception:
        return pytest.ExitCode.USAGE_ERROR
    files = [*dict.fromkeys(test.split("::")[0] for test in tests)]  # those of its own room first
    return pytest.main([*FLAGS, "-m", tier, *files], plugins=[Chosen(tests, known, began)])


def run(
    chosen: Iterable[tuple[Mutant, list[str]]], known: set[str], tier: str, jobs: int
) -> Iterator[tuple[Mutant, str, str]]:
    """Yields (mutant, outcome, the test that fails or "") as they end, for (mutant, tests) in `chosen`."""
    waiting, running = list(chosen)[::-1], []
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant, tests = waiting.pop()
            if not tests:
                yield mutant, "not run by any test", ""
                continue
            began = WORK / f"{time.monotonic_ns()}.txt"
            began.write_text("import")  # of the library, which every test does
            child = fork(functools.partial(try_mutant, mutant, tests, known, tier, began))
            running.append((child, mutant, began, time.monotonic() + HANGS))
        multiprocessing.connection.wait([child.sentinel for child, *_ in running], timeout=1)
        for entry in running[:]:
            child, mutant, began, deadline = entry
            late = child.is_alive() and time.monotonic() > deadline
            if late:
                child.kill()
            elif child.is_alive():
                continue
            child.join()
            running.remove(entry)
            # A test fails, files of tests or the library cannot be imported, or Python itself dies.
            killed = child.exitcode in (1, 2, 4) or child.exitcode < 0
            word = "late" if late else "killed" if killed else "unclear" if child.exitcode else "survived"
            yield mutant, word, began.read_text() if killed else ""
            began.unlink()


def draw(modules: Iterable[str], sample: int | None, seed: int) -> tuple[list[Mutant], int]:
    """(mutants of the modules, how many there are in all)

    A sample takes those of the smallest hashes: a change of some lines leaves the others in it.
    """
    from mutants import mutants_of

    files = [MODULES[module] for module in modules]
    found = [mutant for file in files for mutant in mutants_of(file, (FOLDER / file).read_text(encoding="utf-8"))]
    found.sort(key=lambda mutant: hashlib.sha256(f"{seed} {mutant.name}".encode()).digest())
    return found[:sample], len(found)


def kill(drawn: list[Mutant], total: int, found: dict[str, Any], reasons: dict[str, str], options: Any) -> int:
    """Tries the mutants drawn that no earlier run tried; prints what becomes of each, and a table of the rooms."""
    tests, start = set(found["seconds"]), time.monotonic()
    chosen = [(mutant, tests_for(mutant, found)) for mutant in drawn]
    if options.without:
        left_out = {test for test in tests if test.startswith(tuple(options.without))}
        chosen = [(m, [t for t in reached if t not in left_out]) for m, reached in chosen if left_out & {*reached}]
        print(f"{len(left_out)} tests are left out; they reach {len(chosen)} of {len(drawn)} mutants", flush=True)
    options.kept.touch()
    finders = {mutant.address: "judged" for mutant, _ in chosen if mutant.name in reasons}
    finders |= dict(map(json.loads, options.kept.read_text().splitlines()))
    waiting = [(mutant, reached) for mutant, reached in chosen if mutant.address not in finders]
    # Each module as it is, seen through the same eyes: no test may fail.
    whole = {m.file: (m._replace(source=(FOLDER / m.file).read_text()), reached[:20]) for m, reached in waiting}
    for control, outcome, _ in run(whole.values(), tests, options.tier, options.jobs):
        if outcome not in ("survived", "not run by any test"):
            sys.exit(f"{control.file} as it is fails a test")
    tried = run(waiting, tests, options.tier, options.jobs)
    for i, (mutant, outcome, test) in enumerate(tried, 1):
        own = test.startswith((*own_tests(mutant.room), "import"))
        finders[mutant.address] = ("own" if own else "others") if test else "none"
        with options.kept.open("a") as file:
            print(json.dumps([mutant.address, finders[mutant.address]]), file=file)
        by = f" by {test}" if test else ""
        print(f"{i} of {len(waiting)}: {outcome}{by}: {mutant.file}:{mutant.line}: {mutant.name}", flush=True)
    counts = defaultdict(Counter)
    for mutant, _ in chosen:
        for room in (mutant.room, "all"):
            counts[room][finders[mutant.address]] += 1
    print("| room | found by its own tests | by others | by none | judged |", "| --- " * 5 + "|", sep="\n")
    for room in sorted(counts, key=lambda room: (room == "all", room)):
        print("|", room, *(f"| {counts[room][finder]}" for finder in ("own", "others", "none", "judged")), "|")
    dead, alive = counts["all"]["own"] + counts["all"]["others"], counts["all"]["none"]
    print(
        f"{dead} of {dead + alive} without a reason killed, {dead / max(dead + alive, 1):.1%}; "
        f"of {total} mutants in all; {time.monotonic() - start:.0f} s"
    )
    return alive > (0.05 * (dead + alive) if options.sample else 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="(default: all)")
    parser.add_argument("--sample", type=int, metavar="N", help="mutants (default: all)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the sample (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="J", help="(default: one a core)")
    parser.add_argument("--default", action="store_true", help="without slow tests")
    parser.add_argument("--own", action="store_true", help="only tests of the rooms tried")
    parser.add_argument("--without", nargs="+", default=[], metavar="TEST", help="tests that are to be deleted")
    options = parser.parse_args()
    options.tier = "not slow" if options.default else ""
    rooms = {module: module.partition(".")[0] for module in MODULES}
    if unknown := set(options.modules) - {*rooms, *rooms.values()}:
        parser.error(f"no module {', '.join(sorted(unknown))}; there are {', '.join(MODULES)}")
    modules = [module for module, room in rooms.items() if {module, room} & {*(options.modules or rooms)}]
    own = tuple(beginning for module in modules for beginning in own_tests(rooms[module]))
    files = [file for file in TESTS if file.startswith(own)] if options.own else TESTS

    sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]
    os.chdir(ROOT)
    WORK.mkdir(parents=True, exist_ok=True)
    # Mutants compile programs of their own: they are kept apart from those of ordinary runs.
    os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(WORK / "compiled")}
    import hypothesis
    import jax  # noqa: F401  once for all processes; its devices are not begun here

    hypothesis.settings.register_profile(
        "mutation", database=None, derandomize=True, deadline=None, phases=list(hypothesis.Phase)[:3]
    )
    hypothesis.settings.load_profile("mutation")
    start = time.monotonic()
    found = reach(options.jobs, options.tier, files)
    print(f"{len(found['seconds'])} tests, looked at in {time.monotonic() - start:.0f} s", flush=True)
    reasons = json.loads((Path(__file__).parent / "survivors.json").read_text(encoding="utf-8"))
    drawn, total = draw(modules, options.sample, options.seed)
    asked = f"{fingerprint()} {options.tier} {sorted(options.without)} {files}"
    options.kept = WORK / f"outcomes-{short_hash(asked.encode())}.jsonl"
    return kill(drawn, total, found, reasons, options)


if __name__ == "__main__":
    sys.exit(main())
