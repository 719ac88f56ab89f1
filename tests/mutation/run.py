r"""How strong the tests are: small faults put into the library, and whether a test fails.

    python tests/mutation/run.py [--sample N] [--seed S] [MODULE …]

First the tests run once as they are, with what lines each runs and how long it takes. Then each mutant (see
`mutants.py`) is imported in place of its module in a process of its own, and the tests that run its statement are run,
the quick ones first, for at most `BUDGET` seconds by the first run's clock: one that fails kills it. `survivors.json`
gives the reason for those that were looked at: most change the speed alone, or nothing. One that has none is tried
again, for `LONG` seconds; if no test kills it then, it survives. It exits with 1 if fewer than nine tenths of a
module's mutants are killed, or if all mutants were tried and one without a reason survives.
"""

import argparse
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "posenc_jax"
MODULES = {
    "_phase": ["_phase"],
    "frequencies": ["frequencies"],
    "rotary": ["rotary", "_turn", "_mesh"],
    "rotation": ["rotation"],
    "bias": ["bias", "learned_bias", "_distance"],
    "hf": ["hf", "_hf_config", "_hf_models", "_hf_rope"],
}
# Not those that look at the source, at other programs or at whole models.
TESTS = [
    f"tests/test_{name}.py"
    for name in "phase frequencies scalings axes sinusoidal rotary rotary_memory rotation xpos bias bias_modules "
    "fourier same_bits parity_recorded hf conformance api positional_attention nnx attention plot sharding explicit_axes hostile "
    "hostile_configs hostile_spectra".split()
]
BUDGET, LONG, SLOWEST = 60.0, 480.0, 30.0  # seconds: of the tests for a mutant, at first and again; of one test
DEAD = "killed", "late"
FLAGS = [
    *("-q", "-x", "--no-header", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist"),
    "-Wignore::pytest.PytestAssertRewriteWarning",
    # Processes share what they compiled: one may meet a file that another one writes.
    "-Wignore:Error reading persistent compilation cache",
    f"--rootdir={ROOT}",
]


class Record:
    """A plugin of pytest: which lines of the library each test runs, and its seconds."""

    def __init__(self):
        import coverage

        self.coverage = coverage.Coverage(data_file=None, include=[f"{FOLDER}/*"], config_file=False)
        self.seconds = {}

    def pytest_runtest_logstart(self, nodeid):
        import jax

        jax.clear_caches()  # what is not traced anew is not seen
        for module in list(sys.modules.values()):
            if module.__name__.startswith("posenc_jax"):
                for value in list(vars(module).values()):
                    if hasattr(value, "cache_clear"):
                        value.cache_clear()
        self.coverage.switch_context(nodeid)
        self.start = time.perf_counter()

    def pytest_runtest_logfinish(self, nodeid):
        self.seconds[nodeid] = time.perf_counter() - self.start

    def lines(self):
        """{file: {line: tests}}"""
        data = self.coverage.get_data()
        return {Path(file).name: data.contexts_by_lineno(file) for file in data.measured_files()}


class Finder(importlib.abc.MetaPathFinder):
    """Imports a mutant in place of a module."""

    def __init__(self, mutant):
        self.name, self.source = "posenc_jax." + Path(mutant.file).stem, mutant.source

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        source, file = self.source, str(FOLDER / f"{name.split('.')[1]}.py")

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, fullname):
                return compile(source, file, "exec", dont_inherit=True)

        return importlib.util.spec_from_file_location(name, file, loader=Loader(name, file))


def fork(work, log=os.devnull):
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


def first_run(folder, jobs):
    """The tests once as they are: seconds and lines of each."""

    def work(i):
        import pytest

        plugin = Record()
        plugin.coverage.start()
        status = pytest.main([*(f for f in FLAGS if f != "-x"), *TESTS[i::jobs]], plugins=[plugin])
        plugin.coverage.stop()
        found = {"seconds": plugin.seconds, "lines": plugin.lines()}
        (folder / f"{i}.json").write_text(json.dumps(found))
        return status

    jobs = min(jobs, len(TESTS))
    children = [fork(functools.partial(work, i), folder / f"{i}.log") for i in range(jobs)]
    first = {"seconds": {}, "lines": defaultdict(lambda: defaultdict(list))}
    for i, child in enumerate(children):
        if os.waitpid(child, 0)[1]:
            sys.exit((folder / f"{i}.log").read_text() + "\nthe tests fail without a mutant")
        found = json.loads((folder / f"{i}.json").read_text())
        first["seconds"] |= found["seconds"]
        for file, lines in found["lines"].items():
            for line, tests in lines.items():
                first["lines"][file][line] += tests
    return first


def tests_for(mutant, files, first, budget):
    """Those that run its statement, for so many seconds by the first run's clock.

    For half of them the tests of its module, the quickest first; then of every function its quickest case, and so on.
    """
    lines, seconds = first["lines"], first["seconds"]
    own = "tests/test_{}.py".format(next(iter(files)).removesuffix(".py").lstrip("_"))
    everywhere = {test for file in files for tests in lines.get(file, {}).values() for test in tests if test}
    everywhere |= {test for test in seconds if test.startswith(own)}  # some read only what an import made
    here = {test for line in mutant.lines for test in lines.get(mutant.file, {}).get(str(line), []) if test}
    functions, chosen, left = defaultdict(list), [], budget
    for test in sorted(here or everywhere, key=seconds.get):  # what runs at import is seen by all
        if test.startswith(own) and seconds[test] <= left - budget / 2:
            left -= seconds[test]
            chosen.append(test)
        elif seconds[test] < SLOWEST:
            functions[test.split("[")[0]].append(test)
    ranked = [(i, seconds[test], test) for tests in functions.values() for i, test in enumerate(tests)]
    for _, cost, test in sorted(ranked):
        if cost > left and chosen:
            break
        left -= cost
        chosen.append(test)
    return chosen


def try_mutant(mutant, tests):
    """In a process of its own, by pytest's status."""

    def work():
        sys.meta_path.insert(0, Finder(mutant))
        import pytest

        try:
            import posenc_jax.hf  # noqa: F401
        except Exception:
            return pytest.ExitCode.TESTS_FAILED
        return pytest.main([*FLAGS, *tests])

    return fork(work)


def run(mutants, files, first, jobs, budget=BUDGET):
    """Yields (mutant, outcome) as they end."""
    waiting, running = list(mutants)[::-1], {}
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop()
            if tests := tests_for(mutant, files, first, budget):
                running[try_mutant(mutant, tests)] = mutant, time.monotonic() + 4 * budget + 60
            else:
                yield mutant, "not run by any test"
        for child, (mutant, deadline) in list(running.items()):
            done, status = os.waitpid(child, os.WNOHANG)
            late = not done and time.monotonic() > deadline
            if late:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
            if done or late:
                del running[child]
                # 1: a test fails; 2 and 4: a file of tests fails when it is read. A time-out counts as killed too.
                ended = {0: "survived", 1: "killed", 2: "killed", 4: "killed"}.get(
                    os.waitstatus_to_exitcode(status), "unclear"
                )
                yield mutant, "late" if late else ended
        time.sleep(0.02)


def run_twice(mutants, reasons, *settings):
    """The same; those that survive for no reason that is known are tried again with more tests."""
    again = []
    for mutant, outcome in run(mutants, *settings):
        if outcome in DEAD or mutant.name in reasons:
            yield mutant, outcome
        else:
            again.append(mutant)
    yield from run(again, *settings, LONG)


def main():
    parser = argparse.ArgumentParser(description="Puts small faults into the library and looks whether a test fails.")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(MODULES)} (default: all)")
    parser.add_argument("--sample", type=int, metavar="N", help="mutants of each module, drawn (default: all)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the drawing (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="J", help="at once (default: one a core)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what became of each mutant")
    options = parser.parse_args()
    if unknown := set(options.modules) - set(MODULES):
        parser.error(f"no module {', '.join(sorted(unknown))}; there are {', '.join(MODULES)}")

    sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]
    os.chdir(ROOT)
    os.environ["JAX_PLATFORMS"] = "cpu"
    import hypothesis
    import jax  # noqa: F401  once for all processes; its devices are not begun here
    from mutants import mutants_of

    hypothesis.settings.register_profile(
        "mutation", database=None, derandomize=True, deadline=None, phases=list(hypothesis.Phase)[:3]
    )
    hypothesis.settings.load_profile("mutation")
    reasons = json.loads((Path(__file__).parent / "survivors.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        # What is compiled is kept for all processes.
        jax.config.update("jax_compilation_cache_dir", f"{folder}/cache")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        start = time.monotonic()
        first = first_run(Path(folder), options.jobs)
        print(f"{len(first['seconds'])} tests in {time.monotonic() - start:.0f} s", flush=True)
        weak, outcomes = [], []
        for module in options.modules or MODULES:
            texts = {f"{name}.py": (FOLDER / f"{name}.py").read_text(encoding="utf-8") for name in MODULES[module]}
            mutants = [mutant for file, text in texts.items() for mutant in mutants_of(file, text)]
            total = len(mutants)
            if options.sample and options.sample < total:
                mutants = random.Random(f"{options.seed} {module}").sample(mutants, options.sample)
            # As it is, seen through the same eyes: no test may fail.
            control = mutants[0]._replace(source=texts[mutants[0].file])
            if [outcome for _, outcome in run([control], texts, first, 1)] != ["survived"]:
                sys.exit(f"{module} as it is fails a test")
            counts = Counter()
            for mutant, outcome in run_twice(mutants, reasons, texts, first, options.jobs):
                counts[outcome] += 1
                outcomes.append({"line": mutant.line, "name": mutant.name, "outcome": outcome})
                if outcome not in DEAD:
                    why = reasons.get(mutant.name)
                    counts["explained"] += bool(why)
                    print(f"  {outcome}: {mutant.line}: {mutant.name}{f' ({why})' if why else ''}", flush=True)
                if options.json:
                    options.json.write_text(json.dumps(outcomes, indent=1))
            killed = counts["killed"] + counts["late"]
            share = killed / len(mutants)
            print(
                f"{module}: {killed} of {len(mutants)} killed, {share:.0%}, {counts['late']} by a time-out "
                f"(of {total} mutants in all); {counts['explained']} others have a reason; "
                f"{time.monotonic() - start:.0f} s",
                flush=True,
            )
            left = len(mutants) - killed - counts["explained"]
            if share < 0.9 or (left and not options.sample):
                weak.append(module)
    return f"weak: {', '.join(weak)}" if weak else 0


if __name__ == "__main__":
    sys.exit(main())
