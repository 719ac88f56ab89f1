"""The table at the end of the session. Without transformers there is nothing to collect here."""

import importlib.util

import pytest

collect_ignore = [] if importlib.util.find_spec("transformers") else ["test_parity.py"]

_ROWS = pytest.StashKey[list]()


@pytest.fixture
def record(request):
    """Adds a line to the table at the end of the session."""
    return request.config.stash.setdefault(_ROWS, []).append


def pytest_terminal_summary(terminalreporter, config):
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
