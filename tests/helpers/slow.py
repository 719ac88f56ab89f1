"""Cases that `nox -s tests` leaves out."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """A case for `pytest.mark.parametrize` that `nox -s tests_all` alone runs."""
    return pytest.param(*values, marks=pytest.mark.slow)
