"""The count of programs that the tests compile, and its budget."""

from types import SimpleNamespace

import pytest

from helpers import programs
from helpers.programs import CACHED, COMPILED, FOUND, Programs


@pytest.mark.parametrize(("entries", "chosen", "status"), [(3, "not slow", 1), (2, "not slow", 0), (3, "", 0)])
def test_the_default_tests_fail_over_their_budget(tmp_path, monkeypatch, entries, chosen, status):
    monkeypatch.setattr(programs, "BUDGET", tmp_path / "budget.toml")
    programs.BUDGET.write_text('[programs]\n"0.1" = 3\n', encoding="utf-8")
    counted = Programs(tmp_path)
    counted.pytest_runtest_logstart("tests/test_a.py::test")
    for events in ([CACHED], [CACHED, FOUND], []):  # compiled, found in the cache, compiled where there is none
        for event in events:
            counted.on_event(event)
        counted.on_duration(COMPILED, 0.5)
    for i in range(entries):
        (tmp_path / f"{i}-cache").touch()
    assert counted.programs == {"tests/test_a.py": 2} and counted.total() == entries + 1
    option = SimpleNamespace(markexpr=chosen, keyword="")
    config = SimpleNamespace(option=option, args=["tests"], getini=lambda _: ["tests"])
    session = SimpleNamespace(config=config, exitstatus=0)
    counted.pytest_sessionfinish(session)
    assert session.exitstatus == status
