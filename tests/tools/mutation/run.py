r"""Small faults put into the library, to see which tests find them.

    python tests/tools/mutation/run.py [--sample N] [--seed S] [--default] [--kills] [MODULE …]

The tests first run once as they are, to learn which lines each of them runs and what it costs; that is kept in
`build/mutation` until the library or a test changes. Then each mutant (see `mutants.py`) is imported in place of its
module in a process of its own, which runs the tests that reach its statement, the cheapest case of every test first.

Without options, a mutant's tests stop at the first that fails. `survivors.json` gives the reason for the mutants that
no test can kill: most change the speed alone, or nothing. Of the others, the exit status is 1 if fewer than nine tenths
of a module's are killed, or if all were tried and one survives. `--default` uses the tests of `nox -s tests` alone.

With `--kills` they go on: `kills.json` lists, for each mutant, the tests that kill it and those that pass, and what
each test costs. A mutant gets `--budget` CPU seconds, and until its first kill up to `LONG`. A later call goes on where
an earlier one stopped, with the tests not yet tried; `cover.py` makes the default tier's cover of it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import re
import signal
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mutants import Mutant

ROOT = Path(__file__).parents[3]
FOLDER, WORK, KILLS = ROOT / "posenc_jax", ROOT / "build" / "mutation", Path(__file__).parent / "kills.json"
FILES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.py"))
# These look at other programs, at pages or at whole models.
NOT_RUN = {
    "test_demo",
    "test_evidence",
    "test_findings",
    "test_docs",
    "test_benchmarks",
    "test_closeness",
    "test_mutation",
}
ROOMS = [path for path in (ROOT / "tests").glob("*/test_*.py") if path.stem not in NOT_RUN]
TESTS = sorted(path.relative_to(ROOT).as_posix() for path in ROOMS)
LOOK_AT_NAMES = "tests/tools/test_api.py", "tests/properties/test_package.py"
BUDGET, LONG = 60.0, 480.0  # CPU seconds of the tests of a mutant: at first, and if none kills it
ATTEMPTS = 3 * LONG  # seconds after which a mutant hangs
DEAD = "killed", "late"
FLAGS = [
    *("-q", "-m", "thorough or not thorough", "--no-header", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist"),
    "-Wignore::pytest.PytestAssertRewriteWarning",
    f"--rootdir={ROOT}",
]


def module_of(file: str) -> str:
    """What a file of the package is on the command line: "hf._plan" of hf/_plan.py, and "hf" of hf/__init__.py."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


# Neither what draws, nor what only lists names.
MODULES = {module_of(file): file for file in FILES if Path(file).stem not in ("__init__", "plot", "_figure")}


class Reach:
    """A plugin of pytest: which lines of the library each test runs, its CPU seconds, and its tier."""

    def __init__(self) -> None:
        import coverage

        self.coverage = coverage.Coverage(data_file=None, include=[f"{FOLDER}/*"], config_file=False)
        self.seconds, self.thorough = {}, []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.thorough = [item.nodeid for item in items if item.get_closest_marker("thorough")]

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


class Outcomes:
    """A plugin of pytest: writes what becomes of each test, and stops them all when a mutant has had its time.

    That is `alive` CPU seconds if nothing kills it, and `dead` if something does or did before.
    """

    def __init__(
        self, tests: Sequence[str], known: set[str], file: Path, dead: float, alive: float, killed: bool = False
    ) -> None:
        self.rank, self.known = {test: i for i, test in enumerate(tests)}, known
        self.file, self.dead, self.alive, self.killed, self.failed = file.open("a"), dead, alive, killed, False

    def _write(self, word: str, nodeid: str) -> None:
        self.file.write(f"{word} {nodeid}\n")
        self.file.flush()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """The tests chosen, and last those to which the mutant gives other names."""
        renamed = lambda item: item.nodeid not in self.known and not item.get_closest_marker("thorough")  # noqa: E731
        items[:] = [item for item in items if item.nodeid in self.rank or renamed(item)]
        items.sort(key=lambda item: self.rank.get(item.nodeid, len(self.rank)))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.failed = False
        self._write("start", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.killed |= self.failed
        self._write("fail" if self.failed else "pass", nodeid)

    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        if time.process_time() > (self.dead if self.killed or self.failed else self.alive):
            item.session.shouldstop = "the time of this mutant is over"


class Finder(importlib.abc.MetaPathFinder):
    """Imports a mutant in place of a module."""

    def __init__(self, mutant: Mutant) -> None:
        self.name, self.file = f"posenc_jax.{module_of(mutant.file)}", str(FOLDER / mutant.file)
        self.source = mutant.source

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name:
            return None
        source, file = self.source, self.file

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, fullname: str) -> Any:
                return compile(source, file, "exec", dont_inherit=True)

        return importlib.util.spec_from_file_location(name, file, loader=Loader(name, file))


def fork(work: Callable[[], Any], log: str | Path = os.devnull) -> int:
    """Runs work() in a process of its own, which prints to a file; its result is the exit status."""
    child = os.fork()
    if child:
        return child
    status = 3
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        status = int(work())
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def fingerprint() -> str:
    """Of the library and its tests."""
    files = sorted(path for name in ("posenc_jax", "tests", "conformance") for path in (ROOT / name).rglob("*.py"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:16]


def parts_of_the_tests(number: int) -> list[list[str]]:
    """The files of tests in parts that cost about the same, as far as kills.json knows."""
    seconds, parts = Counter(), [[] for _ in range(min(number, len(TESTS)))]
    for test, cost in Kills().seconds.items():
        seconds[test.split("::")[0]] += cost
    for file in sorted(TESTS, key=lambda file: seconds[file], reverse=True):
        min(parts, key=lambda part: sum(seconds[f] for f in part)).append(file)
    return parts


def reach(jobs: int) -> dict[str, Any]:
    """What the first run found: the seconds and lines of each test, and which are of the thorough tier."""
    kept = WORK / f"reach-{fingerprint()}.json"
    if kept.exists():
        return json.loads(kept.read_text())

    def work(i: int, files: list[str]) -> int:
        plugin = Reach()
        plugin.coverage.start()
        status = pytest.main([*FLAGS, *files], plugins=[plugin])
        plugin.coverage.stop()
        found = {"seconds": plugin.seconds, "thorough": plugin.thorough, "lines": plugin.lines()}
        (WORK / f"{i}.json").write_text(json.dumps(found))
        return status

    parts = enumerate(parts_of_the_tests(jobs))
    children = [fork(functools.partial(work, i, files), WORK / f"{i}.log") for i, files in parts]
    found = {"seconds": {}, "thorough": [], "lines": defaultdict(lambda: defaultdict(list))}
    for i, child in enumerate(children):
        if os.waitpid(child, 0)[1]:
            sys.exit((WORK / f"{i}.log").read_text() + "\nthe tests fail without a mutant")
        part = json.loads((WORK / f"{i}.json").read_text())
        found["seconds"] |= part["seconds"]
        found["thorough"] += part["thorough"]
        for file, lines in part["lines"].items():
            for line, tests in lines.items():
                found["lines"][file][line] += [test for test in tests if test]
    kept.write_text(json.dumps(found))
    return found


@functools.cache
def users_of(file: str) -> list[str]:
    """A module and those that import it."""
    package, _, name = f"posenc_jax.{module_of(file)}".rpartition(".")
    imports = re.compile(rf"^from {re.escape(package)}(\.| import .*\b){name}\b", re.M)
    return [file, *(other for other in FILES if imports.search((FOLDER / other).read_text(encoding="utf-8")))]


def tests_for(mutant: Mutant, found: dict[str, Any], tier: set[str]) -> list[str]:
    """Those of a tier that reach its statement: the cheapest case of every test, then the second, and so on."""
    lines, seconds = found["lines"].get(mutant.file, {}), found["seconds"]
    here = {test for line in mutant.lines for test in lines.get(str(line), [])}
    if not here:  # it runs at import: every test of the module, of its importers and of tables
        users = [found["lines"].get(file, {}) for file in users_of(mutant.file)]
        here = {test for lines in users for tests in lines.values() for test in tests} or set(seconds)
        running = {test for lines in found["lines"].values() for tests in lines.values() for test in tests}
        here |= set(seconds) - running
    here |= {test for test in seconds if test.startswith(LOOK_AT_NAMES)}  # and defaults, which no line shows
    # Cases may share what the first of them computes.
    here, cases = {test.split("[")[0] for test in here}, defaultdict(list)
    for test in sorted(tier, key=seconds.get):
        if (function := test.split("[")[0]) in here:
            cases[function].append(test)
    ranked = [(i, seconds[test], test) for tests in cases.values() for i, test in enumerate(tests)]
    return [test for _, _, test in sorted(ranked)]


def try_mutant(mutant: Mutant, tests: Sequence[str], known: set[str], file: Path, *times: Any) -> int:
    """Runs the tests on the mutant in a process of its own; for `times` see `Outcomes`."""

    def work() -> int:
        sys.meta_path.insert(0, Finder(mutant))

        try:
            import posenc_jax.hf  # noqa: F401
        except Exception:
            return pytest.ExitCode.USAGE_ERROR
        files = sorted({test.split("::")[0] for test in tests})
        return pytest.main([*FLAGS, *files], plugins=[Outcomes(tests, known, file, *times)])

    return fork(work)


def outcomes_in(file: Path) -> tuple[set[str], set[str], str | None]:
    """(tests that failed, tests that passed, the one that had not ended or None)"""
    rows = [line.split(" ", 1) for line in file.read_text().splitlines()]
    named = {word: {test for w, test in rows if w == word} for word in ("start", "fail", "pass")}
    hanging = named["start"] - named["fail"] - named["pass"]
    return named["fail"], named["pass"], min(hanging, default=None)


def run(
    chosen: Iterable[tuple[Any, ...]], known: set[str], jobs: int
) -> Iterator[tuple[Mutant, str, set[str], set[str]]]:
    """Yields (mutant, outcome, tests that fail, tests that pass) as they end, for (mutant, tests, times) in `chosen`."""
    waiting, running = list(chosen)[::-1], {}
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant, tests, times = waiting.pop()
            if not tests:
                yield mutant, "not run by any test", set(), set()
                continue
            file = WORK / f"{time.monotonic_ns()}.txt"
            file.touch()
            child = try_mutant(mutant, tests, known, file, *times)
            running[child] = mutant, file, time.monotonic() + ATTEMPTS
        for child, (mutant, file, deadline) in list(running.items()):
            done, status = os.waitpid(child, os.WNOHANG)
            late = not done and time.monotonic() > deadline
            if late:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
            if done or late:
                del running[child]
                failed, passed, hanging = outcomes_in(file)
                file.unlink()
                code = None if late else os.waitstatus_to_exitcode(status)
                failed |= {hanging} - {None}  # it hangs, or Python itself dies
                if not failed | passed and code in (2, 4):
                    failed = {"import"}  # of the library, or of a file of tests
                outcome = "late" if late else "killed" if failed else "survived" if passed else "unclear"
                yield mutant, outcome, failed, passed
        time.sleep(0.02)


class Kills:
    """The kill matrix, as kept in a file: for each mutant the tests that kill it and those that pass."""

    def __init__(self, path: Path = KILLS) -> None:
        self.path, self.seconds, self.thorough, self.mutants = path, {}, set(), {}
        if path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
            self.seconds, names = kept["tests"], list(kept["tests"])
            self.thorough = {names[i] for i in _numbers(kept["thorough"])}
            for name, row in kept["mutants"].items():
                self.mutants[name] = {word: {names[i] for i in _numbers(row[word])} for word in ("killed", "passed")}
                self.mutants[name]["import"] = row.get("import", False)

    def keep(self, seconds: dict[str, float], thorough: Iterable[str], mutants: set[str]) -> None:
        """Forgets tests and mutants that are no longer there."""
        self.seconds, self.thorough = dict(sorted(seconds.items())), set(thorough)
        self.mutants = {name: row for name, row in self.mutants.items() if name in mutants}
        for row in self.mutants.values():
            for word in ("killed", "passed"):
                row[word] &= set(seconds)

    def add(self, name: str, failed: set[str], passed: set[str]) -> None:
        row = self.mutants.setdefault(name, {"killed": set(), "passed": set(), "import": False})
        row["import"] |= not failed <= set(self.seconds)  # "import", or a test to which the mutant gives another name
        row["killed"] |= failed & set(self.seconds)
        row["passed"] |= passed & set(self.seconds)
        self.write()

    def write(self) -> None:
        number = {test: i for i, test in enumerate(self.seconds)}
        rows = {
            name: {word: _ranges(sorted(number[test] for test in row[word])) for word in ("killed", "passed")}
            | ({"import": True} if row["import"] else {})
            for name, row in sorted(self.mutants.items())
        }
        thorough = _ranges(sorted(number[test] for test in self.thorough))
        kept = {"tests": self.seconds, "thorough": thorough, "mutants": rows}
        text = json.dumps(kept, indent=0, ensure_ascii=False)
        new = self.path.with_suffix(".new")
        new.write_text(text + "\n", encoding="utf-8")
        new.replace(self.path)


def _ranges(numbers: Iterable[int]) -> str:
    """[1, 2, 3, 7] → "1-3 7" """
    parts = []
    for n in numbers:
        if parts and parts[-1][1] == n - 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _numbers(text: str) -> Iterator[int]:
    for part in text.split():
        a, _, b = part.partition("-")
        yield from range(int(a), int(b or a) + 1)


def draw(
    modules: Iterable[str], sample: int | None, seed: int, first: Container[str] = ()
) -> dict[str, tuple[list[Mutant], int, str]]:
    """{module: (its mutants, how many there are in all, its source)}

    A sample takes the names in `first`, then those of the smallest hashes: a change of some lines leaves the others in it.
    """
    from mutants import mutants_of

    def rank(mutant: Mutant) -> tuple[bool, bytes]:
        return mutant.name not in first, hashlib.sha256(f"{seed} {mutant.name}".encode()).digest()

    drawn = {}
    for module in modules:
        source = (FOLDER / MODULES[module]).read_text(encoding="utf-8")
        mutants = mutants_of(MODULES[module], source)
        drawn[module] = sorted(mutants, key=rank)[:sample] if sample else mutants, len(mutants), source
    return drawn


def fill(
    drawn: dict[str, tuple[list[Mutant], int, str]], found: dict[str, Any], tier: set[str], jobs: int, budget: float
) -> int:
    """The kill matrix of the mutants drawn: of every module the first, then of every module the second, and so on."""
    from mutants import mutants_of

    kills = Kills()
    every = {m.name for file in FILES for m in mutants_of(file, (FOLDER / file).read_text(encoding="utf-8"))}
    kills.keep(found["seconds"], found["thorough"], every)
    order = sorted((i, module) for module, (mutants, *_) in drawn.items() for i in range(len(mutants)))
    chosen = []
    for i, module in order:
        mutant = drawn[module][0][i]
        row = kills.mutants.get(mutant.name, {"killed": set(), "passed": set(), "import": False})
        tried = row["killed"] | row["passed"]
        spent = sum(found["seconds"][test] for test in tried)
        left = [test for test in tests_for(mutant, found, tier) if test not in tried]
        if left and not row["import"] and spent < (budget if row["killed"] else LONG):
            chosen.append((mutant, left, (budget, LONG, bool(row["killed"]))))
    chosen.sort(key=lambda x: x[0].name in kills.mutants)  # what was never tried comes first
    print(f"{len(chosen)} of {len(order)} mutants have tests to try", flush=True)
    for mutant, outcome, failed, passed in run(chosen, set(found["seconds"]), jobs):
        kills.add(mutant.name, failed, passed)
        print(f"{outcome} by {len(failed)} of {len(failed | passed)}: {mutant.line}: {mutant.name}", flush=True)
    return 0


def kill(
    drawn: dict[str, tuple[list[Mutant], int, str]],
    found: dict[str, Any],
    tier: set[str],
    jobs: int,
    reasons: dict[str, str],
    options: argparse.Namespace,
) -> int | str:
    """Whether a test kills each mutant drawn; prints those that survive, and the shares."""
    known, start = set(found["seconds"]), time.monotonic()
    # Each module as it is, seen through the same eyes: no test may fail.
    controls = [mutants[0]._replace(source=source) for mutants, _, source in drawn.values()]
    chosen = [(m, tests_for(m, found, tier)[:20], (0, LONG)) for m in controls]
    for control, outcome, *_ in run(chosen, known, jobs):
        if outcome != "survived":
            sys.exit(f"{control.file} as it is fails a test")
    every, counts, outcomes = [m for mutants, *_ in drawn.values() for m in mutants], defaultdict(Counter), []
    # The first failure ends a mutant's tests. What is known to survive is not tried for long.
    chosen = [(m, tests_for(m, found, tier), (0, BUDGET if m.name in reasons else LONG)) for m in every]
    for mutant, outcome, failed, _ in run(chosen, known, jobs):
        why = reasons.get(mutant.name) if outcome not in DEAD else None
        counts[module_of(mutant.file)] += Counter({outcome: 1, "explained": bool(why)})
        outcomes.append({"line": mutant.line, "name": mutant.name, "outcome": outcome, "by": sorted(failed)})
        if outcome not in DEAD:
            print(f"  {outcome}: {mutant.line}: {mutant.name}{f' ({why})' if why else ''}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(outcomes, indent=1))
    weak, whole = [], Counter()
    for module, (mutants, total, _) in drawn.items():
        late, explained = counts[module]["late"], counts[module]["explained"]
        dead, judged = counts[module]["killed"] + late, len(mutants) - explained
        print(
            f"{module}: {dead} of {len(mutants)} killed, {late} by a time-out (of {total} mutants in all); "
            f"{explained} others have a reason"
        )
        whole += Counter(dead=dead, judged=judged)
        if dead < 0.9 * judged or (dead < judged and not options.sample):
            weak.append(module)
    share = whole["dead"] / whole["judged"]
    print(
        f"{whole['dead']} of {whole['judged']} without a reason killed, {share:.1%}; {time.monotonic() - start:.0f} s"
    )
    return f"weak: {', '.join(weak)}" if weak else 0


def main() -> int | str:
    parser = argparse.ArgumentParser(description="Puts small faults into the library and looks which tests fail.")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(MODULES)} (default: all)")
    parser.add_argument("--sample", type=int, metavar="N", help="mutants of each module, drawn (default: all)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the drawing (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="J", help="at once (default: one a core)")
    parser.add_argument("--default", action="store_true", help="the tests of `nox -s tests` alone")
    parser.add_argument("--kills", action="store_true", help="all tests that kill each mutant, into kills.json")
    parser.add_argument("--budget", type=float, default=BUDGET, metavar="B", help="of --kills: CPU seconds of a mutant")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what became of each mutant")
    options = parser.parse_args()
    if unknown := set(options.modules) - MODULES.keys():
        parser.error(f"no module {', '.join(sorted(unknown))}; there are {', '.join(MODULES)}")

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
    found = reach(options.jobs)
    print(f"{len(found['seconds'])} tests, looked at in {time.monotonic() - start:.0f} s", flush=True)
    tier = set(found["seconds"]) - set(found["thorough"] if options.default else ())
    first = Kills().mutants if options.kills else ()
    drawn = draw(options.modules or MODULES, options.sample, options.seed, first)
    if options.kills:
        with contextlib.suppress(KeyboardInterrupt):
            return fill(drawn, found, tier, options.jobs, options.budget)
        return 130
    reasons = json.loads((Path(__file__).parent / "survivors.json").read_text(encoding="utf-8"))
    return kill(drawn, found, tier, options.jobs, reasons, options)


if __name__ == "__main__":
    sys.exit(main())
