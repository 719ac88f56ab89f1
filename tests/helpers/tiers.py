"""Which cases of a test run by default, and which in `nox -s tests_all` alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest

both = False  # whether both tiers run; `conftest.py` sets it


def slow(*values: Any) -> Any:
    """A case for `pytest.mark.parametrize` that the default leaves out."""
    return pytest.param(*values, marks=pytest.mark.slow)


def tiered(values: Iterable[Any], default: Collection[Any]) -> list[Any]:
    """Cases of one argument, of which the default keeps those in `default`."""
    unknown = [value for value in default if value not in values]
    assert not unknown, f"{unknown} are no cases"
    return [value if value in default else slow(value) for value in values]


def eager(f: Callable[..., Any]) -> Callable[..., Any]:
    """f, whose calls each compile a program of their own."""
    return f


def compiled_by(jit: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    """Gives a test a `program` that compiles its calls as one; the slow case makes each call eagerly."""
    return pytest.mark.parametrize("program", [jit, slow(eager)])
