"""A pytest plugin that counts the programs that tests compile, and the seconds of compiling, by file.

The number of distinct programs has a budget, `tests/budget.toml`: it is the number of entries in a cache that was empty
before the run, whatever the machine and the number of workers. Seconds are printed and have no budget.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import pytest

BUDGET = Path(__file__).parents[1] / "budget.toml"
COMPILED, FOUND = "/jax/core/compile/backend_compile_duration", "/jax/compilation_cache/cache_hits"
# An event of a program that is looked for in the cache and will be stored there; the others are not stored.
CACHED = "/jax/compilation_cache/compile_requests_use_cache"


def budget(version: tuple[int, ...] = jax.__version_info__) -> int:
    """The allowed number of programs: budget.toml's line for the newest listed JAX that is not newer than `version`."""
    listed = tomllib.loads(BUDGET.read_text(encoding="utf-8"))["programs"]
    by_version = {tuple(map(int, key.split("."))): number for key, number in listed.items()}
    return by_version[max(key for key in by_version if key <= version[:2])]


class Programs:
    """Counts in each worker, and reports in the process that has a terminal; without workers both are one process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder  # of the cache
        self.file = ""  # whose test runs, or which is collected
        self.found, self.cached = False, False  # of the program that is being compiled: by events before its duration
        self.before = self.entries()
        self.whole = False  # whether all default tests run and started with an empty cache, so that the budget holds
        self.programs, self.seconds, self.uncached = Counter[str](), Counter[str](), 0

    def listen(self) -> Programs:
        """Registers the listeners, so that programs count from now on."""
        jax.monitoring.register_event_listener(self.on_event)
        jax.monitoring.register_event_duration_secs_listener(self.on_duration)
        return self

    def entries(self) -> int:
        return len(list(self.folder.glob("*-cache")))

    def on_event(self, event: str, **_: Any) -> None:
        self.found |= event == FOUND
        self.cached |= event == CACHED

    def on_duration(self, event: str, seconds: float, **_: Any) -> None:
        if event != COMPILED:
            return
        if not self.found:
            self.programs[self.file] += 1
            self.seconds[self.file] += seconds
            self.uncached += not self.cached
        self.found = self.cached = False

    # Hooks that run in a worker, or in the only process

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        self.file = collector.nodeid.split("::")[0]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.file = nodeid.split("::")[0]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        config = session.config
        if hasattr(config, "workeroutput"):
            config.workeroutput["programs"] = dict(self.programs), dict(self.seconds), self.uncached
            return
        default = config.option.markexpr == "not slow" and not config.option.keyword
        self.whole = default and not self.before and config.args == [*config.getini("testpaths")]
        if self.whole and self.total() > budget():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    # Hooks that run in the process with the terminal

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        programs, seconds, uncached = getattr(node, "workeroutput", {}).get("programs", ({}, {}, 0))
        self.programs.update(programs)
        self.seconds.update(seconds)
        self.uncached += uncached

    def total(self) -> int:
        return self.entries() - self.before + self.uncached

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        seconds = sum(self.seconds.values())
        line = f"{self.total()} programs compiled in {seconds:.0f} CPU seconds"
        if self.whole:
            line += f", of a budget of {budget()} (tests/budget.toml)"
        elif self.before:
            line += f", beside {self.before} that earlier runs left in {self.folder}"
        terminalreporter.section("programs compiled, and seconds, of the ten dearest files")
        for file, cost in self.seconds.most_common(10):
            terminalreporter.write_line(f"{self.programs[file]:5} {cost:6.0f} s  {file or 'before any test'}")
        terminalreporter.write_line(line)
