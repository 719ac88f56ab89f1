"""The counts at the end of the session. Without transformers there is nothing to collect here."""

import collections
import importlib.util
from pathlib import Path

import pytest

collect_ignore = (
    [] if importlib.util.find_spec("transformers") else [path.name for path in Path(__file__).parent.glob("test_*.py")]
)

_TALLY = pytest.StashKey[collections.Counter]()


@pytest.fixture
def tally(request):
    """Counts by name, for the end of the session."""
    return request.config.stash.setdefault(_TALLY, collections.Counter())


def pytest_terminal_summary(terminalreporter, config):
    if counts := config.stash.get(_TALLY, {}):
        terminalreporter.section("model types, layers")
        for name in sorted(counts):
            terminalreporter.write_line(f"{counts[name]:6} {name}")
