"""The table at the end of the session. Without transformers there is nothing to collect here."""

import collections
import importlib.util
from pathlib import Path

import pytest

collect_ignore = (
    [] if importlib.util.find_spec("transformers") else [path.name for path in Path(__file__).parent.glob("test_*.py")]
)

_TALLY = pytest.StashKey[collections.Counter]()
_ROWS = pytest.StashKey[list]()
_DIFFERENCES = pytest.StashKey[list]()


@pytest.fixture
def record(request):
    """Adds a line to the table at the end of the session."""
    return request.config.stash.setdefault(_ROWS, []).append


@pytest.fixture
def differences(request):
    """Adds a line of largest differences, a name and {column: number}, to a table at the end of the session."""
    rows = request.config.stash.setdefault(_DIFFERENCES, [])
    return lambda name, row: rows.append((name, row))


@pytest.fixture
def tally(request):
    """Counts by name, for the end of the session."""
    return request.config.stash.setdefault(_TALLY, collections.Counter())


def pytest_terminal_summary(terminalreporter, config):
    if counts := config.stash.get(_TALLY, {}):
        terminalreporter.section("model types, forward passes, configs")
        for name in sorted(counts):
            terminalreporter.write_line(f"{counts[name]:6} {name}")
    rows = config.stash.get(_ROWS, [])
    if rows:
        terminalreporter.section("rotated queries and keys, largest error / |pair|, positions below 4,096")
        head = ("model", "layer", *rows[0][2])
        terminalreporter.write_line("| " + " | ".join(head) + " |")
        terminalreporter.write_line("| " + " | ".join(["---"] * len(head)) + " |")
        for model, layer, errors in rows:
            cells = [x if isinstance(x, str) else f"{x:.1e}" for x in errors.values()]
            cells += ["–"] * (len(head) - 2 - len(cells))
            terminalreporter.write_line("| " + " | ".join((model, layer, *cells)) + " |")
    if rows := config.stash.get(_DIFFERENCES, []):
        terminalreporter.section(
            "attention, largest differences / standard deviation or largest gradient; logits of examples as they are"
        )
        for name, row in rows:
            cells = [f"{key} {x if isinstance(x, str) else f'{x:.1e}'}" for key, x in row.items()]
            terminalreporter.write_line(" | ".join((name, *cells)))
