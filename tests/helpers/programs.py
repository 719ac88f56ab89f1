"""How many programs the tests compile: a plugin of pytest that fails where they are more than `tests/budget.toml` allows.

A run that starts with an empty cache leaves one entry for each distinct program, whatever the machine and the number of
workers.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import jax
import pytest

BUDGET = Path(__file__).parents[1] / "budget.toml"
COMPILED = "/jax/core/compile/backend_compile_duration"  # an event of jax.monitoring


def budget(version: tuple[int, ...] = jax.__version_info__) -> int:
    """The number for the newest JAX listed that is not newer than `version`."""
    listed = tomllib.loads(BUDGET.read_text(encoding="utf-8"))["programs"]
    by_version = {tuple(map(int, key.split("."))): number for key, number in listed.items()}
    return by_version[max(key for key in by_version if key <= version[:2])]


class Programs:
    """Counts the entries of the cache, where pytest has a terminal."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.line = folder, ""
        self.before = self.entries()

    def entries(self) -> int:
        return len(list(self.folder.glob("*-cache")))

    @pytest.hookimpl(trylast=True)  # after the workers have ended
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        options, compiled = session.config.option, self.entries() - self.before
        self.line = f"{compiled} programs compiled"
        whole = options.markexpr == "not slow" and not options.keyword
        if self.before:
            self.line += f", beside {self.before} that earlier runs left in {self.folder}"
        elif whole and session.config.args == session.config.getini("testpaths"):
            self.line += f", of a budget of {budget()} (tests/budget.toml)"
            if compiled > budget():
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.write_line(self.line)
