"""The count of programs that the tests compile, and its budget."""

from types import SimpleNamespace

import pytest

from helpers import programs
from helpers.programs import CACHED, COMPILED, FOUND, Programs


def test_a_budget_is_that_of_the_version(monkeypatch, tmp_path):
    assert programs.budget() > 1000
    monkeypatch.setattr(programs, "BUDGET", tmp_path / "budget.toml")
    programs.BUDGET.write_text('[programs]\n"0.10" = 2_600\n"0.12" = 2_700\n', encoding="utf-8")
    found = [programs.budget(version) for version in ((0, 10, 0), (0, 11, 2), (0, 12, 0, 1), (1, 0, 0))]
    assert found == [2600, 2600, 2700, 2700]


def session_of(**changes):
    options = {"markexpr": "not slow", "keyword": ""} | changes
    config = SimpleNamespace(option=SimpleNamespace(**options), args=["tests"], getini=lambda _: ["tests"])
    return SimpleNamespace(config=config, exitstatus=0)


@pytest.mark.parametrize(
    ("entries", "session", "status"),
    [(3, {}, 1), (2, {}, 0), (3, {"markexpr": ""}, 0), (3, {"keyword": "rotary"}, 0)],
)
def test_the_default_tests_fail_over_their_budget(tmp_path, monkeypatch, entries, session, status):
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
    assert counted.programs == {"tests/test_a.py": 2} and counted.seconds == {"tests/test_a.py": 1.0}
    assert counted.total() == entries + 1
    session = session_of(**session)
    counted.pytest_sessionfinish(session)
    assert session.exitstatus == status


def test_a_run_that_finds_programs_has_no_budget(tmp_path):
    (tmp_path / "0-cache").touch()
    counted, session = Programs(tmp_path), session_of()
    counted.uncached = 10**6
    counted.pytest_sessionfinish(session)
    assert counted.total() == 10**6 and not session.exitstatus
